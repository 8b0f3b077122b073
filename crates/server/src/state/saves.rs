//! What all threads know of backups: the one that BGSAVE has begun, and how the last ones ended.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use farbank_pm::sync::ignore_poison;
use farbank_store::Backup;

use crate::lock::lock;

/// Most clients that receive a copy of the store at the same time.
pub(crate) const COPIES_MAX: usize = 8;

/// Work of the thread of backups.
pub(crate) enum SaveJob {
    /// Write a backup, whose moment has passed, to this file.
    File(Box<dyn Backup>, PathBuf),
    /// Send a copy of the store to a client.
    Copy(CopyRequest),
}

/// A client that has asked for a copy of the store. Its connection belongs to the thread that sends the copy.
pub(crate) struct CopyRequest {
    /// The client's socket.
    pub(crate) socket: OwnedFd,
    /// What precedes the length of the copy.
    pub(crate) preamble: Vec<u8>,
    /// The backup, whose moment has passed.
    pub(crate) backup: Box<dyn Backup>,
}

/// A copy that a command has begun for the client of its connection.
pub(crate) struct BegunCopy {
    pub(crate) preamble: Vec<u8>,
    pub(crate) backup: Box<dyn Backup>,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<SaveJob>,
    is_closed: bool,
}

/// The jobs that the thread of backups has not begun.
#[derive(Default)]
pub(crate) struct SaveQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

impl SaveQueue {
    /// Queues a job. A closed queue drops it.
    pub(crate) fn push(&self, job: SaveJob) {
        let mut state = lock(&self.state);
        if !state.is_closed {
            state.jobs.push_back(job);
            self.changed.notify_one();
        }
    }

    /// Waits for the next job. `None`: the queue is closed.
    pub(crate) fn next(&self) -> Option<SaveJob> {
        let is_idle = |state: &mut QueueState| state.jobs.is_empty() && !state.is_closed;
        let waited = self.changed.wait_while(lock(&self.state), is_idle);
        ignore_poison(waited).jobs.pop_front()
    }

    /// Drops the queued jobs and accepts no more: the server stops.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.jobs.clear();
        self.changed.notify_all();
    }
}

/// The state of backups.
#[derive(Default)]
pub(crate) struct Saves {
    /// Whether BGSAVE's backup is waiting or being written, and since when.
    began: Mutex<Option<Instant>>,
    has_failed: AtomicBool,
    /// Duration of the last BGSAVE in seconds, plus one; 0: there was none.
    last_secs: AtomicI64,
    pub(crate) keys_done: AtomicU64,
    pub(crate) keys_total: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Backups written to a file since the start.
    pub(crate) saves: AtomicU64,
    /// Copies sent, or being sent, to clients since the start; and those being sent now.
    pub(crate) copies: AtomicU64,
    pub(crate) copies_now: Arc<AtomicUsize>,
    /// Changes of keys when the last backup began, and when the last one that was written had begun.
    pub(crate) changes_at_begin: AtomicU64,
    pub(crate) changes_at_save: AtomicU64,
    /// Damaged records that the last backup has left out.
    pub(crate) damaged: AtomicU64,
}

impl Saves {
    /// Records that BGSAVE's backup, of `keys` keys, is queued.
    pub(crate) fn begin(&self, keys: u64) {
        self.note_progress(0, keys, 0);
        *lock(&self.began) = Some(Instant::now());
    }

    /// Records how BGSAVE's backup has ended. `None`: it was given up for a reason that is no failure.
    pub(crate) fn end(&self, succeeded: Option<bool>) {
        let began = lock(&self.began).take();
        if let Some(succeeded) = succeeded {
            self.has_failed.store(!succeeded, Ordering::Relaxed);
        }
        if let Some(began) = began {
            let secs = i64::try_from(began.elapsed().as_secs()).unwrap_or(i64::MAX - 1);
            self.last_secs.store(secs + 1, Ordering::Relaxed);
        }
        self.note_progress(0, 0, 0);
    }

    /// Records the progress of the backup that is being written.
    pub(crate) fn note_progress(&self, done: u64, total: u64, bytes: u64) {
        self.keys_done.store(done, Ordering::Relaxed);
        self.keys_total.store(total, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// How long BGSAVE's backup has run; `None` if there is none.
    pub(crate) fn running(&self) -> Option<Duration> {
        lock(&self.began).map(|began| began.elapsed())
    }

    /// Seconds that the last BGSAVE took; -1 if there was none.
    pub(crate) fn last_secs(&self) -> i64 {
        self.last_secs.load(Ordering::Relaxed) - 1
    }

    /// Whether the last BGSAVE has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}
