//! What the real media and pools promise, each promise a test. Nothing here depends on time, but how soon `watching` sees.

mod common;
mod contents;
mod creating;
mod faults;
mod lease;
mod opening;
mod page_cache;
mod pools;
mod syncing;
mod watching;
