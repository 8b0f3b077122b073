//! A thread that looks after the file of an open pool: is it still there, as long as it was, and this host's?
//!
//! | found                                           | is        | writes                         |
//! |-------------------------------------------------|-----------|--------------------------------|
//! | the file is shorter than what is served of it   | truncated | are refused                    |
//! | the file has no name, the path none or another  | removed, replaced | are refused, except in a cache |
//! | the file has another name                       | moved     | go on, into the same file      |
//! | another host has taken the lease                | lease-lost | are refused                   |
//!
//! A page that cannot be read is found by the reader, not here ([`unreadable`] says so to people): the
//! file is as long as it was, and writes go on.
//!
//! A write that is refused is refused for good, until the pool is opened again: the medium is poisoned.

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

/// How often the file is looked at.
const EVERY: Duration = Duration::from_millis(500);

/// The medium's poison.
pub(super) trait PoisonFlag: Send {
    /// Nothing may be acknowledged any more, for this reason.
    fn poison(&self, reason: Arc<str>);
    /// Whether that is so already: then nothing is written any more.
    fn is_poisoned(&self) -> bool;
}

/// The thread, and what it has found. Dropping it ends the thread.
pub(super) struct FileWatch {
    shared: Arc<WatchShared>,
    thread: Option<JoinHandle<()>>,
}

struct WatchShared {
    /// Bytes of the file that are served.
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
    /// The path, whatever folder the process goes to.
    path: PathBuf,
    /// Whether a file that was removed may still be written: of a cache.
    may_be_removed: bool,
    poison: Box<dyn PoisonFlag>,
    /// What tells other hosts that the pool is open, and when it was counted up.
    lease: Option<Lease>,
    refreshed: Instant,
    shared: Arc<WatchShared>,
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl FileWatch {
    /// Watches `file`, of which `bytes` are served.
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

    /// The file has grown: so many bytes are served.
    pub(super) fn serves(&self, bytes: u64) {
        self.shared.served.store(bytes, Ordering::Release);
    }

    /// What was found last.
    pub(super) fn trouble(&self) -> Option<FileTrouble> {
        self.shared.state().trouble.clone()
    }
}

/// Says that pages of `file` cannot be read: `bytes` of them, of which the first is at `first`.
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
            // It only looks; were it to panic, nothing would be lost.
            let _ = thread.join();
        }
    }
}

impl WatchShared {
    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().expect("no holder panics")
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
        // Dropping the lease gives it back. A medium that has failed writes nothing more: the record stays.
        if let Some(lease) = self.lease.take_if(|_| self.poison.is_poisoned()) {
            lease.keep();
        }
    }

    /// Waits for so long, or until the thread is to end; whether it is.
    fn ends_within(&self, time: Duration) -> bool {
        let state = self.shared.state();
        let goes_on = |state: &mut WatchState| !state.ending;
        let waited = self.shared.ends.wait_timeout_while(state, time, goes_on);
        waited.expect("no holder panics").0.ending
    }

    /// Counts the lease up, once a second; what there is to tell if another host has it.
    fn lease_trouble(&mut self) -> Option<FileTrouble> {
        let lease = self.lease.as_mut()?;
        if self.refreshed.elapsed() >= lease::PERIOD && !self.poison.is_poisoned() {
            self.refreshed = Instant::now();
            lease.refresh();
        }
        let host = lease.lost_to()?;
        let text = format!(
            "another host, {host:?}, has opened the pool's file {} while it is open here; which writes of \
             either are lost is not known",
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
                    "the pool's file {path} was cut to {found} bytes while it is open; {served} \
                     bytes of it are served"
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
            // Nothing is known: the folder may not be read, or the network is away.
            Err(_) => return None,
        };
        let (what, text) = match (file.nlink(), named) {
            (0, true) => (
                "replaced",
                format!(
                    "the pool's file {path} was removed while it is open, and another file put in \
                     its place; what is in the pool is gone when this process ends: copy its keys \
                     to another server before"
                ),
            ),
            (0, false) => (
                "removed",
                format!(
                    "the pool's file {path} was removed while it is open; what is in the pool is \
                     gone when this process ends: copy its keys to another server before"
                ),
            ),
            _ => (
                "moved",
                format!(
                    "the pool's file is not at {path} any more, it was moved while it is open; \
                     writes go on into it, under its new name"
                ),
            ),
        };
        let text = text.into();
        Some(FileTrouble { what, text })
    }
}
