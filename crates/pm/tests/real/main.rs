//! What the real media and pools promise, each promise a test. Nothing here depends on time.

mod common;
mod contents;
mod opening;
mod pools;
mod syncing;
