//! Locks of state that threads share.

use std::sync::{Mutex, MutexGuard};

use farbank_pm::sync::ignore_poison;

/// Locks `mutex` even if a thread panicked while it held the lock: no holder leaves the data inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}
