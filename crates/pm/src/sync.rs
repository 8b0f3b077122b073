//! The one place atomics, locks and threads come from.
//!
//! Ordinary builds use `std`. Under `--cfg shuttle` or `--cfg loom` the same names come from the
//! model checker, so that the code that is checked is the code that runs.

pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, RwLock, atomic};
pub use std::thread;
