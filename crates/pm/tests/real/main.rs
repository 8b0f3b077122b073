//! Guarantees of the real media and pools, one test for each. Only `watching` and `lease` depend on time.

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
