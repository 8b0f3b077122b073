//! Thread that watches the file of an open pool: whether it is removed, moved or truncated, or in use by another host.
//!
//! | the thread finds that                           | reported as       | later writes                       |
//! |-------------------------------------------------|-------------------|------------------------------------|
//! | the file is shorter than the medium             | truncated         | are refused                        |
//! | the file has no name; the path does not exist   | removed           | are refused, except with `page_cache` |
//! | the file has no name; the path is another file  | replaced          | are refused, except with `page_cache` |
//! | the file has another name                       | moved             | continue, into the same file       |
//! | another host has taken the lease                | lease-lost        | are refused                        |
//!
//! The reader detects unreadable pages, not this thread ([`unreadable`] describes them). The
//! length of the file is unchanged then, and writes continue.
//!
//! Writes stay refused until the pool is opened again, because the medium is poisoned.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::lease::{self, Lease};
use super::pool_path::PoolPath;
use super::space::PoolFile;
use crate::medium::{FileTrouble, Off};
use crate::sync::ignore_poison;

/// Interval between two checks of the file.
const EVERY: Duration = Duration::from_millis(500);

/// Poison flag of a medium.
pub(super) trait PoisonFlag: Send {
    /// Poisons the medium: no later write is acknowledged. Keeps the first reason.
    fn poison(&self, reason: Arc<str>);
    /// Returns whether the medium is poisoned. Nothing is written to a poisoned medium.
    fn is_poisoned(&self) -> bool;
}

/// Handle of the watch thread, with its last finding. Dropping it ends the thread.
pub(super) struct FileWatch {
    shared: Arc<WatchShared>,
    thread: Option<JoinHandle<()>>,
}

struct WatchShared {
    /// Length of the medium in bytes.
    served: AtomicU64,
    state: Mutex<WatchState>,
    ends: Condvar,
}

#[derive(Default)]
struct WatchState {
    ending: bool,
    trouble: Option<FileTrouble>,
}

struct WatchThread {
    file: fs::File,
    name: Arc<PoolPath>,
    /// Absolute path, which stays valid if the process changes its working directory.
    path: PathBuf,
    /// Whether writes continue after the file was removed: with [`OpenOptions::page_cache`](super::OpenOptions).
    may_be_removed: bool,
    poison: Box<dyn PoisonFlag>,
    /// Lease on the file, which shows other hosts that the pool is open.
    lease: Option<Lease>,
    /// Time of the last increment of the lease's count.
    refreshed: Instant,
    shared: Arc<WatchShared>,
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl FileWatch {
    /// Starts a thread that watches `file`, under a medium of `bytes` bytes.
    pub(super) fn start(
        file: &PoolFile,
        bytes: u64,
        may_be_removed: bool,
        lease: Option<Lease>,
        poison: Box<dyn PoisonFlag>,
    ) -> io::Result<FileWatch> {
        let shared = Arc::new(WatchShared {
            served: AtomicU64::new(bytes),
            state: Mutex::default(),
            ends: Condvar::new(),
        });
        let watcher = WatchThread {
            file: file.fd().try_clone_to_owned()?.into(),
            name: Arc::clone(file.name()),
            path: std::path::absolute(file.path())?,
            may_be_removed,
            poison,
            lease,
            refreshed: Instant::now(),
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("farbank-watch".into());
        let thread = Some(thread.spawn(move || watcher.run())?);
        Ok(FileWatch { shared, thread })
    }

    /// Sets the length of the medium after growth.
    pub(super) fn set_len(&self, bytes: u64) {
        self.shared.served.store(bytes, Ordering::Release);
    }

    /// Returns the last finding of the thread.
    pub(super) fn trouble(&self) -> Option<FileTrouble> {
        self.shared.state().trouble.clone()
    }
}

/// Describes unreadable pages of `file`: `bytes` bytes in total, the first at `first`.
pub(super) fn unreadable(file: &PoolFile, first: Off, bytes: u64) -> FileTrouble {
    let text = format!(
        "reading byte {} of the pool's file {} failed: the device or the file system reports an \
         error; {} KiB cannot be read, and records there are damaged",
        first.0,
        file.path().display(),
        bytes >> 10
    );
    FileTrouble {
        what: "unreadable",
        text: text.into(),
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.shared.state().ending = true;
        self.shared.ends.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread loses no data, because it only checks the file.
            let _ = thread.join();
        }
    }
}

impl WatchShared {
    fn state(&self) -> MutexGuard<'_, WatchState> {
        ignore_poison(self.state.lock())
    }
}

impl WatchThread {
    fn run(mut self) {
        while !self.ends_within(EVERY) {
            let trouble = self.lease_trouble().or_else(|| self.look());
            if let Some(trouble) = &trouble
                && self.loses_writes(trouble.what)
            {
                self.poison.poison(Arc::clone(&trouble.text));
            }
            self.shared.state().trouble = trouble;
        }
        // Dropping the lease gives it back by a write. Nothing may be written to a poisoned medium, so the record
        // stays.
        if let Some(lease) = self.lease.take_if(|_| self.poison.is_poisoned()) {
            lease.forget_without_return();
        }
    }

    /// Waits for `time`, or until the thread must end. Returns whether it must end.
    fn ends_within(&self, time: Duration) -> bool {
        let state = self.shared.state();
        let goes_on = |state: &mut WatchState| !state.ending;
        let waited = self.shared.ends.wait_timeout_while(state, time, goes_on);
        ignore_poison(waited).0.ending
    }

    /// Increments the lease's count once a second. Returns the trouble if another host has taken the lease.
    fn lease_trouble(&mut self) -> Option<FileTrouble> {
        let lease = self.lease.as_mut()?;
        if self.refreshed.elapsed() >= lease::PERIOD && !self.poison.is_poisoned() {
            self.refreshed = Instant::now();
            lease.refresh();
        }
        let host = lease.lost_to()?;
        let text = format!(
            "another host, {host:?}, has opened the pool's file {} while it is open here; writes of both hosts \
             may be lost",
            self.path.display()
        );
        Some(FileTrouble {
            what: "lease-lost",
            text: text.into(),
        })
    }

    fn loses_writes(&self, what: &str) -> bool {
        match what {
            "truncated" | "lease-lost" => true,
            "removed" | "replaced" => !self.may_be_removed,
            _ => false,
        }
    }

    fn look(&self) -> Option<FileTrouble> {
        let served = self.shared.served.load(Ordering::Acquire);
        let file = self.file.metadata().ok()?;
        let path = self.path.display();
        if file.len() < served {
            let found = file.len();
            return Some(FileTrouble {
                what: "truncated",
                text: format!(
                    "the pool's file {path} was cut to {found} bytes while it is open; expected at least {served} \
                     bytes"
                )
                .into(),
            });
        }
        if !self.name.is_published() {
            return None;
        }
        let named = match fs::metadata(&self.path) {
            Ok(named) if (named.dev(), named.ino()) == (file.dev(), file.ino()) => return None,
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            // The state of the path is unknown: the directory is not readable, or the network is down.
            Err(_) => return None,
        };
        let (what, text) = match (file.nlink(), named) {
            (0, true) => (
                "replaced",
                format!(
                    "the pool's file {path} was removed while it is open, and replaced by another \
                     file; the data of the pool is lost when this process ends: copy its keys \
                     to another server first"
                ),
            ),
            (0, false) => (
                "removed",
                format!(
                    "the pool's file {path} was removed while it is open; the data of the pool is \
                     lost when this process ends: copy its keys to another server first"
                ),
            ),
            _ => (
                "moved",
                format!(
                    "the pool's file is no longer at {path}: it was moved while it is open; \
                     writes continue into it, under its new name"
                ),
            ),
        };
        let text = text.into();
        Some(FileTrouble { what, text })
    }
}
