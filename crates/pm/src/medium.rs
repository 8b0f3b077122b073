//! [`Medium`], the trait for access to far memory. Real media and the simulator implement it.
//!
//! A structure refers to far memory by [`Off`] only; no reference to its bytes ever exists.
//! [`Medium::load`] and [`Medium::copy_out`] read bytes. [`Medium::copy_in`] writes bytes that are not
//! published yet. Bytes become durable in two steps: [`Medium::flush`] starts their write-back, and
//! [`Medium::drain`] makes everything that this context flushed durable and returns a [`Ticket`]. On
//! persistent memory the ticket is durable at once. On a file it becomes durable when an `fdatasync`,
//! shared by all contexts, has completed.
//!
//! Every method that can persist bytes is `#[track_caller]`: the simulator identifies each flush and
//! drain by its source line. On real media the location is inlined away.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use crate::persist_ctx::PersistCtx;

pub use crate::offset::{LINE, Off, WORD};

/// The name of a drain, to ask whether it is durable. Tickets of one medium become durable in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

impl Ticket {
    /// A ticket that is already durable.
    pub const DURABLE: Ticket = Ticket(0);
    /// A ticket that never becomes durable. [`Medium::poll`] of it is an error once the medium is poisoned.
    pub const NEVER: Ticket = Ticket(u64::MAX);
}

/// The identity of a file in its file system. A rename or a restart of the machine keeps it; a copy of
/// the file has another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    /// Inode number; never 0.
    pub inode: u64,
    /// Creation time, in nanoseconds since 1970; 0 if the file system does not record it.
    pub created_ns: u64,
}

impl FileId {
    /// Returns whether both can be the same file. Creation times are compared only if both are known.
    #[must_use]
    pub fn may_be(self, other: FileId) -> bool {
        let dated = self.created_ns != 0 && other.created_ns != 0;
        self.inode == other.inode && (!dated || self.created_ns == other.created_ns)
    }
}

/// A change to a pool's file, made by another program while the pool is open, or the loss of its lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileTrouble {
    /// One word for monitoring: `moved`, `removed`, `replaced`, `truncated`,
    /// `unreadable` or `lease-lost`.
    pub what: &'static str,
    /// A one-line message: the path, the state found, and the consequence.
    pub text: Arc<str>,
}

/// The error of a medium that takes no more writes, after an I/O error or the loss of its file.
///
/// No write is acknowledged any more. Data that was durable before stays readable. To recover, close
/// the pool and open it again.
///
/// Its source is the error of the system call, if a system call has failed.
#[derive(Clone, Debug)]
pub struct Poisoned {
    // One pointer, so that the result of a poll is returned in registers.
    failure: Arc<MediumFailure>,
}

/// The failure that poisoned a medium.
#[derive(Debug)]
struct MediumFailure {
    reason: String,
    error: Option<io::Error>,
}

impl Poisoned {
    /// Creates the error of a medium that failed for `reason`: the operation and where it failed.
    pub fn new(reason: impl Into<String>) -> Poisoned {
        Poisoned::of(reason.into(), None)
    }

    /// Creates the error of a medium on which the system call of `operation` failed with `error`.
    pub fn from_io(operation: impl fmt::Display, error: io::Error) -> Poisoned {
        Poisoned::of(format!("{operation} failed: {error}"), Some(error))
    }

    fn of(reason: String, error: Option<io::Error>) -> Poisoned {
        Poisoned {
            failure: Arc::new(MediumFailure { reason, error }),
        }
    }

    /// Returns the operation that failed, where, and its error, as text.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.failure.reason
    }
}

impl PartialEq for Poisoned {
    /// Compares the reasons, which contain the text of the system call's error.
    fn eq(&self, other: &Poisoned) -> bool {
        self.reason() == other.reason()
    }
}

impl Eq for Poisoned {}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the pool stopped taking writes ({}); correct the cause, then restart",
            self.reason()
        )
    }
}

impl Error for Poisoned {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let error = self.failure.error.as_ref()?;
        Some(error)
    }
}

/// The kind of a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A DAX mapping (`MAP_SYNC` or a device): loads and stores reach persistent memory.
    Dax,
    /// Anonymous memory, or a mapped file on tmpfs: its contents survive at most the end of the process.
    Dram,
    /// An ordinary file, read through a mapping and written by `pwritev`.
    File,
    /// The simulator.
    Sim,
}

impl Kind {
    /// Returns the name of the kind on the command line and in banners.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Dax => "dax",
            Kind::Dram => "dram",
            Kind::File => "file",
            Kind::Sim => "sim",
        }
    }
}

/// How a medium drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// A store fence: the ticket is durable when it is issued.
    Fence,
    /// An `fdatasync` shared by all contexts: the ticket becomes durable later.
    Sync,
    /// A drain waits for nothing: a power cut may lose an acknowledged write.
    Relaxed,
}

/// The capabilities of a medium: the properties that structures rely on.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Kind of the medium.
    pub kind: Kind,
    /// Largest aligned unit that a power cut never tears, in bytes (8, or 512 on a file).
    pub tear_bytes: usize,
    /// How the medium drains.
    pub drain: Drain,
    /// How bytes are read, as on the command line: `mapped`, or for a file also `pread` or `direct`.
    pub read_mode: &'static str,
    /// Whether bytes are durable as soon as they are stored (eADR). Flushes then cost nothing.
    pub stores_are_durable: bool,
    /// A one-line message: the failures that an acknowledged write survives.
    pub survives: String,
    /// One-line warnings for the operator about the file or device that holds the pool.
    pub warnings: Vec<String>,
}

/// Returns the total length of `parts`, in bytes.
///
/// # Panics
/// If the total exceeds the address space, which happens when a large part is repeated.
#[inline]
#[track_caller]
pub(crate) fn total_bytes(parts: &[&[u8]]) -> usize {
    let sum = parts
        .iter()
        .try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
    sum.expect("the parts are longer than any medium")
}

/// Checks that a pair of words can begin at `at`.
///
/// # Panics
/// If `at` is not 16-aligned.
#[inline]
#[track_caller]
pub(crate) fn check_pair(at: Off) {
    const PAIR_BYTES: u64 = 2 * WORD as u64;
    assert!(
        at.0.is_multiple_of(PAIR_BYTES),
        "pair at {at:?} is not aligned"
    );
}

/// Far memory: persistent memory, a file or a simulation, accessed by loads, stores and copies.
///
/// # Misuse
/// No argument causes undefined behaviour on any medium.
///
/// | misuse                                            | effect                                                |
/// |---------------------------------------------------|-------------------------------------------------------|
/// | bytes not all in `0..len()`                       | panic with offset, length, end; a prefetch: no effect |
/// | misaligned word, copy in (8 B) or pair (16 B)     | the same                                              |
/// | a read while another thread writes                | each word is old or new; a copy out may tear words    |
/// | two contexts copy in parts of one word            | one of the two; a partial last word may stay old      |
/// | another thread reads copied-in bytes before the drain | each word is read old or new, in any order        |
/// | another thread uses a context before its drain    | earlier writes may not be durable when the ticket is  |
/// | a ticket of another medium                        | a meaningless result                                  |
///
/// So callers validate what they read from a pool before they use it as an offset or a length.
pub trait Medium: Send + Sync + 'static {
    /// Returns the properties that structures rely on.
    fn caps(&self) -> &Caps;

    /// Returns the length in bytes. Only [`Medium::grow`] changes it, and only upwards.
    fn len(&self) -> u64;

    /// Returns whether the medium has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Grows the medium to `len` bytes. The new space is allocated and written, never sparse, and durable
    /// on `Ok`. Offsets stay valid and concurrent accesses continue. A length below [`Medium::len`] has
    /// no effect.
    ///
    /// # Errors
    /// There is no space, there are no addresses, or the medium is poisoned. The medium is unchanged.
    fn grow(&self, len: u64) -> std::io::Result<()>;

    /// Loads the word at `at` (8-aligned) with acquire ordering.
    fn load(&self, at: Off) -> u64;

    /// Loads `N` words from `at`, `step` words apart, each as [`Medium::load`] does. Some of them may
    /// show a concurrent write and others not.
    #[inline]
    fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N]
    where
        Self: Sized,
    {
        std::array::from_fn(|n| {
            let bytes = n.checked_mul(step).and_then(|n| n.checked_mul(WORD));
            self.load(at.plus(bytes.expect("the words are outside any medium") as u64))
        })
    }

    /// Stores the word at `at` (8-aligned) with release ordering. It is volatile until flushed and drained.
    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64);

    /// Stores consecutive `words` from `at` (8-aligned), as [`Medium::store`] does; on a file with one
    /// system call. No other thread may read or write them meanwhile. A crash may keep only some of them.
    #[track_caller]
    fn store_words(&self, ctx: &mut PersistCtx, at: Off, words: &[u64]) {
        for (number, word) in words.iter().enumerate() {
            self.store(ctx, at.plus((number * WORD) as u64), *word);
        }
    }

    /// Compares and swaps the word at `at`. `Err` holds the value found. Never drains.
    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64>;

    /// Copies the bytes at `at` into `to`: published or immutable bytes. A concurrent write can tear words,
    /// but never causes undefined behaviour.
    fn copy_out(&self, at: Off, to: &mut [u8]);

    /// Appends the `len` bytes at `at` to `to`, without zeroing the space first. A panic leaves `to`
    /// unchanged.
    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>);

    /// Returns whether the bytes at `at` equal `bytes`.
    fn matches(&self, at: Off, bytes: &[u8]) -> bool;

    /// Writes the concatenated `parts` at `at` (8-aligned), which must be unpublished space of this context.
    ///
    /// No other thread may write these bytes meanwhile, nor the other bytes of the last word: the copy
    /// writes those again as it found them. When the call returns, the bytes are flushed and this thread
    /// can read them. Other threads can rely on them only after this context's next drain; they are
    /// durable when that drain's ticket is.
    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]);

    /// Writes two words at `at` (16-aligned) as [`Medium::copy_in`] does. Use it for a line that is probably
    /// not cached and whose other words are not needed. The two may become durable in any order.
    #[track_caller]
    fn copy_in_pair(&self, ctx: &mut PersistCtx, at: Off, pair: [u64; 2]) {
        check_pair(at);
        self.copy_in(ctx, at, &[pair.map(u64::to_le_bytes).as_flattened()]);
    }

    /// Starts the write-back of every line of `at..at + len`.
    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize);

    /// Makes everything that this context copied in or flushed durable, and returns the ticket to wait for.
    ///
    /// After it returns, other threads see those bytes. An I/O error poisons the medium; the ticket
    /// then never becomes durable.
    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket;

    /// Makes everything that this context copied in visible to other threads, before its later stores. It need not be durable.
    fn make_visible(&self, ctx: &mut PersistCtx);

    /// Returns whether `ticket` is durable.
    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned>;

    /// Waits until `ticket` is durable.
    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned>;

    /// Waits until everything drained so far is durable, even if the medium's drains are relaxed.
    /// `ticket` is the caller's last. Use it before a step that is wrong without durability, such as
    /// the reuse of space.
    fn wait_until_durable(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.wait(ticket)
    }

    /// Returns the first of the `len` bytes at `at` that a read failed to get, because the device reported
    /// an error or the file is too short. Such bytes read as zeros. `None`: all reads of these bytes so
    /// far succeeded.
    ///
    /// A checksum detects such zeros. A caller for which zeros are a valid value ("empty", "the end") must
    /// call this after its read. Word loads ([`Medium::load`], [`Medium::load_words`], [`Medium::cas`])
    /// never return such zeros: they panic.
    fn unreadable(&self, _at: Off, _len: usize) -> Option<Off> {
        None
    }

    /// Returns the identity of the medium's file. `None`: there is no file, or its file system has no
    /// inode numbers.
    fn file_id(&self) -> Option<FileId> {
        None
    }

    /// Returns the last known change to the medium's file since it was opened. Real media check the
    /// file twice a second.
    fn file_trouble(&self) -> Option<FileTrouble> {
        None
    }

    /// Registers `wake`, which the medium calls from any thread when tickets became durable or the medium
    /// was poisoned. A medium whose tickets are durable at once never calls it.
    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>);

    /// Returns the CRC-32C of the bytes at `at`, continuing from `seed`. Explorers see it as one event.
    fn crc(&self, at: Off, len: usize, seed: u32) -> u32;

    /// Returns whether the CRC-32C of the bytes at `at`, continuing from `seed`, is `expected`. Use it for
    /// bytes that a crash may have torn: lazy simulated memory then need not decide how they are torn.
    #[inline]
    fn crc_is(&self, at: Off, len: usize, seed: u32, expected: u32) -> bool {
        self.crc(at, len, seed) == expected
    }

    /// Copies out bytes that carry their own checksum, and returns whether it holds.
    ///
    /// `check` returns how many leading bytes the checksum covers, from those bytes alone, or 0 if it does
    /// not hold. Bytes after the covered ones can have any value. On `true` the last call of `check` saw
    /// the bytes that are returned in `to`; on `false` it may have seen others.
    ///
    /// As with [`Medium::crc_is`], lazy simulated memory distinguishes only intact content from all
    /// other; if the check fails, the bytes copied out are one of the possible contents.
    #[inline(always)]
    fn copy_out_if(&self, at: Off, to: &mut [u8], check: &dyn Fn(&[u8]) -> usize) -> bool {
        self.copy_out(at, to);
        check(to) != 0
    }

    /// Hints that the bytes at `at` will be read soon. Out-of-range hints are ignored.
    fn prefetch(&self, at: Off, len: usize);
}

/// A medium with several owners.
impl<M: Medium> Medium for Arc<M> {
    fn caps(&self) -> &Caps {
        (**self).caps()
    }

    fn len(&self) -> u64 {
        (**self).len()
    }

    fn grow(&self, len: u64) -> std::io::Result<()> {
        (**self).grow(len)
    }

    fn load(&self, at: Off) -> u64 {
        (**self).load(at)
    }

    fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        (**self).load_words(at, step)
    }

    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        (**self).store(ctx, at, value);
    }

    #[track_caller]
    fn store_words(&self, ctx: &mut PersistCtx, at: Off, words: &[u64]) {
        (**self).store_words(ctx, at, words);
    }

    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        (**self).cas(ctx, at, old, new)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        (**self).copy_out(at, to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        (**self).append_out(at, len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        (**self).matches(at, bytes)
    }

    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        (**self).copy_in(ctx, at, parts);
    }

    #[track_caller]
    fn copy_in_pair(&self, ctx: &mut PersistCtx, at: Off, pair: [u64; 2]) {
        (**self).copy_in_pair(ctx, at, pair);
    }

    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        (**self).flush(ctx, at, len);
    }

    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        (**self).drain(ctx)
    }

    fn make_visible(&self, ctx: &mut PersistCtx) {
        (**self).make_visible(ctx);
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        (**self).poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        (**self).wait(ticket)
    }

    fn wait_until_durable(&self, ticket: Ticket) -> Result<(), Poisoned> {
        (**self).wait_until_durable(ticket)
    }

    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        (**self).unreadable(at, len)
    }

    fn file_id(&self) -> Option<FileId> {
        (**self).file_id()
    }

    fn file_trouble(&self) -> Option<FileTrouble> {
        (**self).file_trouble()
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        (**self).on_durable(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        (**self).crc(at, len, seed)
    }

    fn crc_is(&self, at: Off, len: usize, seed: u32, expected: u32) -> bool {
        (**self).crc_is(at, len, seed, expected)
    }

    fn copy_out_if(&self, at: Off, to: &mut [u8], check: &dyn Fn(&[u8]) -> usize) -> bool {
        (**self).copy_out_if(at, to, check)
    }

    fn prefetch(&self, at: Off, len: usize) {
        (**self).prefetch(at, len);
    }
}

/// Flushes `at..at + len`, drains and waits. On `Ok` the bytes stored there are durable.
#[track_caller]
pub fn persist<M: Medium + ?Sized>(
    medium: &M,
    ctx: &mut PersistCtx,
    at: Off,
    len: usize,
) -> Result<(), Poisoned> {
    medium.flush(ctx, at, len);
    let ticket = medium.drain(ctx);
    medium.wait_until_durable(ticket)
}
