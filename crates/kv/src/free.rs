//! The free segments, and how those who need them wake whoever makes more.

use std::time::Duration;

use farbank_pm::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use farbank_pm::sync::{Condvar, Mutex};

/// The free segments, and a bell for whoever makes more.
#[derive(Debug, Default)]
pub(crate) struct Free {
    pub list: Mutex<std::collections::VecDeque<u32>>,
    pub count: AtomicU32,
    bell: Condvar,
    bell_lock: Mutex<()>,
    /// Rung, and not yet heard.
    rung: AtomicBool,
}

impl Free {
    /// Wakes whoever makes more. Cheap while nobody has heard it yet: waking costs a system call.
    pub(crate) fn ring(&self) {
        if !self.rung.load(Relaxed) && !self.rung.swap(true, Relaxed) {
            self.bell.notify_all();
        }
    }

    /// Waits for the bell, but not longer than `most`.
    pub(crate) fn listen(&self, most: Duration) {
        let bell = self.bell_lock.lock().expect("no holder panics");
        if !self.rung.swap(false, Relaxed) {
            let woken = self.bell.wait_timeout(bell, most);
            drop(woken.expect("no holder panics"));
            self.rung.store(false, Relaxed);
        }
    }
}
