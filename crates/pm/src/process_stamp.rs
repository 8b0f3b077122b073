//! The process that opened a pool, told from a child that was forked from it.
//!
//! A forked child has the parent's mappings and files and none of its threads. It would wait for a sync that no thread
//! makes, and write where the parent writes. A page that the kernel clears in a child (`MADV_WIPEONFORK`) tells the
//! two apart by one load, where `getpid` is a system call.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::medium::Poisoned;
use crate::sync::CHECKED;

/// The process in which a value of this type was made.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStamp {
    /// The page that is cleared in a child; `None`: the kernel has no such pages.
    page: Option<&'static AtomicU32>,
    id: u32,
}

impl ProcessStamp {
    /// The process that calls.
    #[must_use]
    pub fn current() -> ProcessStamp {
        let (page, id) = (wiped_page(), std::process::id());
        if let Some(page) = page {
            page.store(id, Ordering::Relaxed);
        }
        ProcessStamp { page, id }
    }

    /// Whether the caller runs in this process, and not in a child that was forked from it.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        match self.page {
            Some(page) => page.load(Ordering::Relaxed) == self.id,
            None => std::process::id() == self.id,
        }
    }

    /// # Errors
    /// The caller runs in a forked child.
    #[inline]
    pub fn check(&self) -> Result<(), Poisoned> {
        match self.is_current() {
            true => Ok(()),
            false => Err(self.forked()),
        }
    }

    #[cold]
    fn forked(&self) -> Poisoned {
        Poisoned {
            reason: format!(
                "process {} was forked from process {}, which has the pool open: only that one can use it",
                std::process::id(),
                self.id
            )
            .into(),
        }
    }
}

/// A number for the calling thread, from 1 on; 0 under a model checker, all of whose threads are one.
#[inline]
#[must_use]
pub fn this_thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    match CHECKED {
        true => 0,
        // A thread that is ending has no number any more.
        false => NUMBER.try_with(|number| *number).unwrap_or(0),
    }
}

/// Runs `check` in a child that is forked from this process, and returns what it returned. For tests of what a forked
/// child may do with what its parent has open.
///
/// # Errors
/// The child could not be made.
pub fn in_forked_child(
    mut check: impl FnMut() -> bool + Send + Sync + 'static,
) -> std::io::Result<bool> {
    use std::os::unix::process::CommandExt;
    const NO: i32 = 33; // EDOM, which no step of making a process answers with.
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg("--version").stdout(std::process::Stdio::null());
    let child = move || match check() {
        // It ends here and runs no other program.
        true => {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .map_err(std::io::Error::from)
        }
        false => Err(std::io::Error::from_raw_os_error(NO)),
    };
    // SAFETY: the closure is the caller's, which knows that only the calling thread exists in the child.
    let spawned = unsafe { command.pre_exec(child) }.spawn();
    match spawned {
        Ok(mut child) => child.wait().map(|_| true),
        Err(error) if error.raw_os_error() == Some(NO) => Ok(false),
        Err(error) => Err(error),
    }
}

/// One page of this process that is zero in a forked child until that child writes it.
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
    // SAFETY: a fresh anonymous mapping where the kernel chooses: it overlaps nothing.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the range is the mapping made above. The advice changes what a child finds there, nothing here.
    unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the mapping is aligned, zeroed, never unmapped, and only ever reached as this atomic.
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
    fn a_forked_child_is_another_process_until_it_says_who_it_is() {
        let process = ProcessStamp::current();
        let differs = move || process.check().is_err() && ProcessStamp::current().is_current();
        assert!(in_forked_child(differs).unwrap());
        assert!(process.is_current());
        assert!(!in_forked_child(move || process.is_current()).unwrap());
    }
}
