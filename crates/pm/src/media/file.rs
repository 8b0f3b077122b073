//! An ordinary file: read through a mapping or by `pread`, written by `pwritev`, made durable by `fdatasync`.
//!
//! One thread per medium calls `fdatasync`, for all contexts at once. A drain only requests the next sync that
//! has not started yet, and returns the number of that sync as the ticket. Only a call of `wait` blocks:
//!
//! ```text
//!   context 1   write drain─▶2
//!   context 2          write drain─▶2          write drain─▶3
//!   context 3      write drain─▶2
//!   syncer  ├────── sync 1 ──────┤├────── sync 2 ──────┤├────── sync 3 ──────┤
//!                                                      ▲ tickets 2 become durable, wakers are called
//! ```
//!
//! Reads and writes use the same page cache, so a read returns the bytes of every completed `pwritev`.
//!
//! # Invariants
//! PM-FILE-1  Only the sync thread calls `fdatasync`, so at most one call is in flight. Sync `n + 1` starts
//!     after sync `n` has ended, tickets become durable in order, and the kernel reports a sync error to
//!     no other caller.
//! PM-FILE-2  A drain takes its ticket under the lock that numbers syncs, after its context's writes
//!     have returned. The sync with that number starts later and covers those writes.
//! PM-FILE-3  After the first failed write or sync, no ticket becomes durable and nothing is written. The
//!     kernel may have dropped the pages that it could not write, and report success for the next sync.
//!     Nothing is retried, and the first reason is kept.
//! PM-FILE-4  A failed write or sync of one context, or during growth, fails every context: they share the file.
//!     (If growth cannot write its zeros, it gives the space back and poisons nothing.)
//!
//! Words: a lock serialises `store` and `cas`, and each writes its 8 bytes by one system call.
//! A `load` is atomic if the kernel copies the word in one access. On x86-64 the kernel does so for
//! aligned words, although no standard guarantees it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::lease::Lease;
use super::open_options::{OpenOptions, SyncPolicy};
use super::reader::FileReader;
use super::space::{FileKind, PoolFile, Progress};
use super::watch::{self, FileWatch, unreadable};
use crate::medium::{
    Caps, Drain, FileId, FileTrouble, Kind, Medium, Off, Poisoned, Ticket, WORD, total_bytes,
};
use crate::offset::PAGE;
use crate::persist_ctx::PersistCtx;
use crate::process_stamp::ProcessStamp;
use crate::sync::ignore_poison;

/// Medium on an ordinary file. See the module documentation.
pub struct File {
    // Declared before `shared`: dropping unmaps the pages before it releases the lock on the file.
    reader: FileReader,
    shared: Arc<FileShared>,
    caps: Caps,
    watch: FileWatch,
    /// Held while the medium grows.
    growing: Mutex<()>,
    /// Serialises `store`, `store_words` and `cas`.
    word_lock: Mutex<()>,
    syncer: Option<JoinHandle<()>>,
}

/// State shared by the contexts and the sync thread.
struct FileShared {
    file: PoolFile,
    policy: SyncPolicy,
    sync_state: Mutex<SyncTurns>,
    /// The sync thread waits here for work.
    work: Condvar,
    /// Callers of `wait` block here until their tickets are durable.
    ticket_durable: Condvar,
    /// Number of the last sync that succeeded.
    done: AtomicU64,
    /// Whether a write completed since the last sync started.
    dirty: AtomicBool,
    /// Reason of the first failure (PM-FILE-3).
    poison: OnceLock<Poisoned>,
    wakers: Mutex<Vec<Waker>>,
    /// The process that runs the sync thread.
    process: ProcessStamp,
}

type Waker = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct SyncTurns {
    /// Number of the last sync that has started.
    started: u64,
    /// Highest sync number that was requested: at most `started + 1`.
    wanted: u64,
    closing: bool,
}

/// Next action of the sync thread.
enum SyncWork {
    /// Run the sync with this number.
    Sync(u64),
    /// Call the wakers, because the medium is poisoned.
    Report,
    /// End the thread.
    End,
}

/// Returns the failures that an acknowledged write survives, for [`Caps::survives`].
fn survives(policy: SyncPolicy, place: FileKind) -> &'static str {
    match (policy, place) {
        (_, FileKind::Memory) => {
            "a kill of the process; lost in a restart or power cut: the file is in memory"
        }
        (SyncPolicy::Always, _) => "a kill and a power cut: acknowledged after an fdatasync",
        (SyncPolicy::EverySec, _) => {
            "a kill of the process; a power cut may lose the writes of the last second, or of the last \
             sync if that takes longer"
        }
        (SyncPolicy::Never, _) => {
            "a kill of the process; a power cut may lose any write since the pool was opened"
        }
    }
}

/// Poisons the medium if the sync thread panics, so that no context waits for it forever.
struct PoisonOnPanic<'a>(&'a FileShared);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0
                .poison(Poisoned::new("a waker panicked on the sync thread"));
        }
    }
}

impl File {
    /// Makes a medium of the first `bytes` bytes of `file`.
    pub(super) fn on_file(
        file: PoolFile,
        place: FileKind,
        bytes: u64,
        options: &OpenOptions,
        lease: Option<Lease>,
    ) -> io::Result<File> {
        const SECTOR_BYTES: usize = 512;
        let policy = options.sync;
        let reader = FileReader::new(&file, options.read_by, bytes)?;
        let shared = Arc::new(FileShared {
            file,
            policy,
            sync_state: Mutex::default(),
            work: Condvar::new(),
            ticket_durable: Condvar::new(),
            done: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            poison: OnceLock::new(),
            wakers: Mutex::default(),
            process: ProcessStamp::current(),
        });
        let poison = Box::new(Arc::clone(&shared));
        let watch = FileWatch::start(&shared.file, bytes, options.page_cache, lease, poison)?;
        let syncer = thread::Builder::new().name("farbank-sync".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let _mourner = PoisonOnPanic(&shared);
                shared.run_sync_thread();
            }
        })?;
        let caps = Caps {
            kind: Kind::File,
            tear_bytes: SECTOR_BYTES,
            drain: match policy {
                SyncPolicy::Always => Drain::Sync,
                SyncPolicy::EverySec | SyncPolicy::Never => Drain::Relaxed,
            },
            read_mode: options.read_by.name(),
            stores_are_durable: false,
            survives: survives(policy, place).into(),
            warnings: Vec::new(),
        };
        Ok(File {
            reader,
            shared,
            caps,
            watch,
            growing: Mutex::new(()),
            word_lock: Mutex::new(()),
            syncer: Some(syncer),
        })
    }

    pub(super) fn caps_mut(&mut self) -> &mut Caps {
        &mut self.caps
    }

    /// Returns the number of syncs that have succeeded.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Reads the whole file into the page cache, and maps it if it is read through a mapping. Later reads then
    /// cause no page faults.
    pub fn prefault(&self, progress: Progress<'_>) {
        self.reader.prefault(progress);
    }

    /// Syncs outstanding writes and closes the file. On `Ok` every drained write is durable, under any
    /// policy. Dropping does the same but cannot report an error.
    ///
    /// # Errors
    /// A write or sync has failed, now or earlier.
    pub fn close(mut self) -> Result<(), Poisoned> {
        self.stop();
        match self.shared.poison.get() {
            None => Ok(()),
            Some(poisoned) => Err(poisoned.clone()),
        }
    }

    fn stop(&mut self) {
        let Some(syncer) = self.syncer.take() else {
            return;
        };
        if self.shared.process.check().is_err() {
            return; // After a fork: the sync thread runs in the parent process only.
        }
        self.shared.sync_state().closing = true;
        self.shared.work.notify_all();
        // A panic in a waker has already poisoned the medium, so the result adds nothing.
        let _ = syncer.join();
    }

    /// Writes `parts` at `at`, or does nothing if the medium is poisoned (PM-FILE-3).
    fn write(&self, at: Off, parts: &[&[u8]]) {
        if self.shared.poison.get().is_some() {
            return;
        }
        match self.shared.file.write(parts, at.0) {
            // Set after the write: a sync that starts later covers it.
            Ok(()) => self.shared.dirty.store(true, Ordering::Release),
            Err(e) => return self.fail("writing", at, e),
        }
        if self.reader.has_unreadable()
            && let Err(e) = self.reader.mark_readable(&self.shared.file, at, parts)
        {
            self.fail("mapping", at, e);
        }
    }

    #[cold]
    fn fail(&self, doing: &str, at: Off, error: io::Error) {
        let path = self.shared.file.path().display();
        let operation = format_args!("{doing} at byte {} of {path}", at.0);
        self.shared.poison(Poisoned::from_io(operation, error));
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.shared.file)
            .finish_non_exhaustive()
    }
}

impl watch::PoisonFlag for Arc<FileShared> {
    fn poison(&self, reason: Arc<str>) {
        FileShared::poison(self, Poisoned::new(&*reason));
    }

    fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }
}

impl FileShared {
    fn sync_state(&self) -> MutexGuard<'_, SyncTurns> {
        ignore_poison(self.sync_state.lock())
    }

    /// Main loop of the sync thread.
    fn run_sync_thread(&self) {
        let mut reported = false;
        loop {
            match self.next_work(reported) {
                SyncWork::Sync(number) => {
                    if self.sync(number) {
                        self.ticket_durable.notify_all();
                        self.wake();
                    }
                }
                SyncWork::Report => {
                    reported = true;
                    self.wake();
                }
                SyncWork::End => return,
            }
        }
    }

    /// Runs the `fdatasync` with this number. Returns whether its tickets became durable.
    fn sync(&self, number: u64) -> bool {
        // Cleared before the sync: a write that completes later may need the next sync.
        self.dirty.store(false, Ordering::Release);
        if let Err(e) = self.file.sync() {
            let operation = format_args!("fdatasync of {}", self.file.path().display());
            self.poison(Poisoned::from_io(operation, e));
            return false;
        }
        let _turns = self.sync_state();
        let turns = self.poison.get().is_none(); // PM-FILE-3
        if turns {
            self.done.store(number, Ordering::Release);
        }
        turns
    }

    /// Waits for the next work of the sync thread.
    fn next_work(&self, reported: bool) -> SyncWork {
        const EVERY: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + EVERY;
        let mut turns = self.sync_state();
        loop {
            let asked = turns.wanted > turns.started;
            let ticks = self.policy == SyncPolicy::EverySec && self.poison.get().is_none();
            let due = turns.closing || (ticks && Instant::now() >= deadline);
            if self.poison.get().is_some() {
                if !reported {
                    return SyncWork::Report;
                }
            } else if asked || (due && self.is_dirty()) {
                turns.started += 1; // PM-FILE-1, PM-FILE-2
                return SyncWork::Sync(turns.started);
            }
            if turns.closing {
                return SyncWork::End;
            }
            turns = if ticks {
                // If the deadline has passed with nothing to sync, check again one second later.
                let left = deadline.saturating_duration_since(Instant::now());
                let wait = if left.is_zero() { EVERY } else { left };
                ignore_poison(self.work.wait_timeout(turns, wait)).0
            } else {
                ignore_poison(self.work.wait(turns))
            };
        }
    }

    fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Poisons the medium: no later drain is acknowledged (PM-FILE-3). The sync thread then calls the wakers.
    fn poison(&self, failure: Poisoned) {
        let turns = self.sync_state();
        // Keeps the first reason.
        let _ = self.poison.set(failure);
        drop(turns);
        self.work.notify_all();
        self.ticket_durable.notify_all();
    }

    fn wake(&self) {
        let wakers = ignore_poison(self.wakers.lock()).clone();
        for wake in wakers {
            wake();
        }
    }

    /// Requests the next sync that has not started. Returns its number, and whether this is the first request
    /// for it.
    fn request_sync(&self) -> (u64, bool) {
        let mut turns = self.sync_state();
        let number = turns.started + 1; // PM-FILE-2
        let first = turns.wanted < number;
        if first {
            turns.wanted = number;
            drop(turns);
            self.work.notify_all();
        }
        (number, first)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if self.poll(ticket)? {
            return Ok(());
        }
        self.process.check()?;
        let mut turns = self.sync_state();
        while !self.poll(ticket)? {
            turns = ignore_poison(self.ticket_durable.wait(turns));
        }
        Ok(())
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        if ticket.0 <= self.done.load(Ordering::Acquire) {
            return Ok(true);
        }
        match self.poison.get() {
            None => Ok(false),
            Some(poisoned) => Err(poisoned.clone()),
        }
    }
}

impl Medium for File {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn len(&self) -> u64 {
        self.reader.len()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let _growing = ignore_poison(self.growing.lock());
        let (from, len) = (self.len(), len.next_multiple_of(PAGE));
        if len <= from {
            return Ok(());
        }
        if let Some(poisoned) = self.shared.poison.get() {
            return Err(io::Error::other(poisoned.clone()));
        }
        self.reader.check_room(len)?;
        let file = &self.shared.file;
        // The sync thread syncs: the kernel reports an error to only one `fdatasync` of a file description (PM-FILE-1, PM-FILE-4).
        let sync = || {
            let (number, _) = self.shared.request_sync();
            self.shared.wait(Ticket(number)).map_err(io::Error::other)
        };
        file.grow(from, len, sync)?;
        if let Err(e) = self.reader.extend(file, len) {
            file.truncate(from)?;
            return Err(e);
        }
        self.watch.set_len(len);
        Ok(())
    }

    #[inline]
    fn load(&self, at: Off) -> u64 {
        self.reader.load(at)
    }

    #[inline]
    fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        self.reader.load_words(at, step)
    }

    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        self.reader.check_aligned(at, WORD);
        let _turn = ignore_poison(self.word_lock.lock());
        self.write(at, &[&value.to_le_bytes()]);
        ctx.counters.bytes += WORD as u64;
    }

    fn store_words(&self, ctx: &mut PersistCtx, at: Off, words: &[u64]) {
        let len = words.len() * WORD;
        self.reader.check_aligned(at, len);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let _turn = ignore_poison(self.word_lock.lock());
        self.write(at, &[&bytes]);
        ctx.counters.bytes += len as u64;
    }

    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        self.reader.load(at); // A wrong offset panics here, before the lock is taken.
        let _turn = ignore_poison(self.word_lock.lock());
        let found = self.reader.load(at);
        if found != old {
            return Err(found);
        }
        self.write(at, &[&new.to_le_bytes()]);
        ctx.counters.bytes += WORD as u64;
        Ok(found)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.reader.copy_out(at, to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.reader.append_out(at, len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.reader.matches(at, bytes)
    }

    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        let len = total_bytes(parts);
        self.reader.check_aligned(at, len);
        self.write(at, parts);
        ctx.copied_in(at, len);
    }

    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        self.reader.check(at, len);
        ctx.flushed(at, len);
    }

    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        if !ctx.take_undrained() {
            return Ticket::DURABLE;
        }
        ctx.counters.fences += 1;
        if self.shared.poison.get().is_some() {
            return Ticket::NEVER;
        }
        if self.shared.policy != SyncPolicy::Always {
            return Ticket::DURABLE;
        }
        let (number, first) = self.shared.request_sync();
        ctx.counters.syncs += u64::from(first);
        Ticket(number)
    }

    /// The page cache shows every write at once.
    fn make_visible(&self, _: &mut PersistCtx) {}

    #[inline]
    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.shared.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.shared.wait(ticket)
    }

    fn wait_until_durable(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if self.shared.policy == SyncPolicy::Always {
            return self.shared.wait(ticket);
        }
        let (number, _) = self.shared.request_sync();
        self.shared.wait(Ticket(number))
    }

    fn file_id(&self) -> Option<FileId> {
        self.shared.file.id()
    }

    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        self.reader.unreadable(at, len)
    }

    fn file_trouble(&self) -> Option<FileTrouble> {
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let unreadable = || {
            let first = self.reader.unreadable(Off(0), len)?;
            let bytes = self.reader.unreadable_bytes();
            Some(unreadable(&self.shared.file, first, bytes))
        };
        self.watch.trouble().or_else(unreadable)
    }

    fn on_durable(&self, wake: Waker) {
        ignore_poison(self.shared.wakers.lock()).push(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.reader.crc(at, len, seed)
    }

    fn prefetch(&self, at: Off, len: usize) {
        self.reader.prefetch(at, len);
    }
}
