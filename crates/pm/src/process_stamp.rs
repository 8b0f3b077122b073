//! [`ProcessStamp`], which distinguishes the process that opened a pool from its forked children.
//!
//! A forked child has the parent's mappings and files but none of its threads. It would wait for a sync that no thread
//! makes, and its writes would mix with the parent's. The kernel clears one page in a child (`MADV_WIPEONFORK`). So
//! one load detects a child, where `getpid` would need a system call.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::medium::Poisoned;
use crate::sync::CHECKED;

/// The process in which this value was created.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStamp {
    /// The page that the kernel clears in a child. `None`: the kernel does not support it.
    page: Option<&'static AtomicU32>,
    id: u32,
}

impl ProcessStamp {
    /// Returns the stamp of the calling process.
    #[must_use]
    pub fn current() -> ProcessStamp {
        let (page, id) = (wiped_page(), std::process::id());
        if let Some(page) = page {
            page.store(id, Ordering::Relaxed);
        }
        ProcessStamp { page, id }
    }

    /// Returns whether the caller runs in this process, not in a child that was forked from it.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        match self.page {
            Some(page) => page.load(Ordering::Relaxed) == self.id,
            None => std::process::id() == self.id,
        }
    }

    /// Checks that the caller runs in this process.
    ///
    /// # Errors
    /// The caller runs in a forked child.
    #[inline]
    pub fn check(&self) -> Result<(), Poisoned> {
        match self.is_current() {
            true => Ok(()),
            false => Err(self.forked_error()),
        }
    }

    #[cold]
    fn forked_error(&self) -> Poisoned {
        Poisoned::new(format!(
            "process {} was forked from process {}, which has the pool open: only process {1} can use it",
            std::process::id(),
            self.id
        ))
    }
}

/// Returns a number that identifies the calling thread, from 1. Under a model checker, whose threads share one
/// system thread, it is always 0.
#[inline]
#[must_use]
pub fn this_thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    match CHECKED {
        true => 0,
        // The number of an ending thread may already be destroyed.
        false => NUMBER.try_with(|number| *number).unwrap_or(0),
    }
}

/// Runs `check` in a child that is forked from this process, and returns its result. For tests of the use of a pool in
/// a forked child.
///
/// # Errors
/// The child could not be created.
pub fn in_forked_child(
    mut check: impl FnMut() -> bool + Send + Sync + 'static,
) -> std::io::Result<bool> {
    use std::os::unix::process::CommandExt;
    const NO: i32 = 33; // EDOM, an error that no step of creating a process returns.
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg("--version").stdout(std::process::Stdio::null());
    let child = move || match check() {
        // The child ends here and does not execute the program.
        true => {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .map_err(std::io::Error::from)
        }
        false => Err(std::io::Error::from_raw_os_error(NO)),
    };
    // SAFETY: the closure must be safe in a child that has only the calling thread; the caller, a test, guarantees it.
    let spawned = unsafe { command.pre_exec(child) }.spawn();
    match spawned {
        Ok(mut child) => child.wait().map(|_| true),
        Err(error) if error.raw_os_error() == Some(NO) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns a page of this process that is zero in a forked child until the child writes it.
fn wiped_page() -> Option<&'static AtomicU32> {
    static PAGE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    *PAGE.get_or_init(map_wiped_page)
}

#[cfg(miri)]
fn map_wiped_page() -> Option<&'static AtomicU32> {
    None
}

#[cfg(not(miri))]
fn map_wiped_page() -> Option<&'static AtomicU32> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const PAGE_BYTES: usize = 4096;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of a new anonymous mapping, so it overlaps no memory in use.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the range is the mapping made above. The advice changes its contents only in a child.
    unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the mapping is aligned, zeroed and never unmapped, and this atomic is the only access to it.
    Some(unsafe { AtomicU32::from_ptr(page.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_made_it_is_current() {
        let process = ProcessStamp::current();
        assert!(process.is_current());
        assert!(ProcessStamp { id: 1, ..process }.check().is_err());
    }

    #[test]
    #[cfg(not(miri))]
    fn a_forked_child_is_not_current_until_it_makes_its_own_stamp() {
        let process = ProcessStamp::current();
        let differs = move || process.check().is_err() && ProcessStamp::current().is_current();
        assert!(in_forked_child(differs).unwrap());
        assert!(process.is_current());
        assert!(!in_forked_child(move || process.is_current()).unwrap());
    }
}
