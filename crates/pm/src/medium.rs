//! The door to far memory: one trait that real media and the simulator implement.
//!
//! A structure names far memory by [`Off`] only; no reference to its bytes ever exists. Bytes are
//! read by [`Medium::load`] and [`Medium::copy_out`], made by [`Medium::copy_in`] while nobody can
//! see them, and become durable in two steps: [`Medium::flush`] starts writing them back,
//! [`Medium::drain`] asks that everything this context flushed be durable and answers with a
//! [`Ticket`]. On persistent memory the ticket is durable when it is issued; on a file it turns
//! durable when one `fdatasync`, shared by every context, has ended.
//!
//! Every method that can persist something is `#[track_caller]`: the simulator knows each flush and
//! drain by its place in the source. On real media the location is inlined away.

use std::fmt;
use std::sync::Arc;

use crate::persist_ctx::PersistCtx;

/// Bytes in a word: what the CPU stores, and far memory keeps, atomically.
pub const WORD: usize = 8;
/// Bytes in a cache line: what a flush writes back.
pub const LINE: usize = 64;

/// A place in far memory: bytes from the start of the pool. 0 is null.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Off(pub u64);

impl Off {
    /// The null offset.
    pub const NULL: Off = Off(0);

    /// Whether this is the null offset.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The offset `bytes` further on.
    ///
    /// # Panics
    /// When there is no such offset: the sum does not fit 64 bits.
    #[inline]
    #[must_use]
    #[track_caller]
    pub const fn plus(self, bytes: u64) -> Off {
        match self.0.checked_add(bytes) {
            Some(at) => Off(at),
            None => no_offset(),
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
const fn no_offset() -> ! {
    panic!("an offset has 64 bits, and the one asked for has more")
}

impl fmt::Debug for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

/// A promise of durability: what a drain answers with. Tickets of one medium turn in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

impl Ticket {
    /// A ticket that is durable already.
    pub const DURABLE: Ticket = Ticket(0);
    /// A ticket that never turns: [`Medium::poll`] of it is an error once the medium is poisoned.
    pub const NEVER: Ticket = Ticket(u64::MAX);
}

/// A file, as the file system knows it: the same after a rename or a restart of the machine, another
/// one for a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    /// Inode number; never 0.
    pub inode: u64,
    /// Time of its creation, in nanoseconds since 1970; 0 where the file system does not keep it.
    pub born_ns: u64,
}

impl FileId {
    /// Whether both can be the same file. A birth time that is not known decides nothing.
    #[must_use]
    pub fn may_be(self, other: FileId) -> bool {
        let dated = self.born_ns != 0 && other.born_ns != 0;
        self.inode == other.inode && (!dated || self.born_ns == other.born_ns)
    }
}

/// What has happened to a pool's file while the pool is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileTrouble {
    /// One word for monitoring: `moved`, `removed`, `replaced`, `truncated`,
    /// `unreadable` or `lease-lost`.
    pub what: &'static str,
    /// One line for people: the path, what was found, what follows from it.
    pub text: Arc<str>,
}

/// An I/O error, or the loss of its file, has made the medium untrustworthy: nothing is acknowledged
/// any more.
///
/// What was durable before stays readable. Closing and opening the pool again is the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// What failed, where, and with which error.
    pub reason: Arc<str>,
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the pool stopped taking writes ({}); put that right, then restart",
            self.reason
        )
    }
}

impl std::error::Error for Poisoned {}

/// Which medium this is, as it is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A DAX mapping (`MAP_SYNC` or a device): loads and stores reach persistent memory.
    Dax,
    /// Anonymous memory, or a mapped file on tmpfs: outlives at most the process.
    Dram,
    /// An ordinary file, read through a mapping and written by `pwritev`.
    File,
    /// The simulator.
    Sim,
}

impl Kind {
    /// The medium's name on the command line and in banners.
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

/// What a drain means on a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// A store fence: the ticket is durable when it is issued.
    Fence,
    /// An `fdatasync` shared by all contexts: the ticket turns later.
    Sync,
    /// Nothing is waited for: an acknowledged write may be lost in a power cut.
    Relaxed,
}

/// What a structure may rely on.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Which medium this is.
    pub kind: Kind,
    /// Largest aligned unit that is never torn by a power cut, in bytes (8, or 512 on a file).
    pub tear_bytes: usize,
    /// What a drain means.
    pub drain: Drain,
    /// How bytes are read, by its name on the command line: `mapped`, or of a file `pread` or `direct`.
    pub read_by: &'static str,
    /// Whether bytes are durable as soon as they are stored (eADR): flushes cost nothing.
    pub stores_are_durable: bool,
    /// One line for people: what an acknowledged write survives.
    pub survives: String,
    /// One line each, for people: what was found at the pool's place that its operator should know.
    pub warnings: Vec<String>,
}

/// Bytes of `parts` together.
///
/// # Panics
/// When they are more than an address space has: the same large part many times.
#[inline]
#[track_caller]
pub(crate) fn bytes_of(parts: &[&[u8]]) -> usize {
    let sum = parts
        .iter()
        .try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
    sum.expect("the parts are longer than any medium")
}

/// The offset behind `len` bytes at `at`.
///
/// # Panics
/// When there is no such offset: the bytes are outside any medium.
#[inline]
#[track_caller]
pub(crate) fn end_of(at: Off, len: usize) -> u64 {
    match at.0.checked_add(len as u64) {
        Some(end) => end,
        None => panic!("{len} bytes at {at:?} are outside any medium"),
    }
}

/// # Panics
/// When `at` is not where a pair of words begins.
#[inline]
#[track_caller]
pub(crate) fn check_pair(at: Off) {
    const PAIR_BYTES: u64 = 2 * WORD as u64;
    assert!(at.0.is_multiple_of(PAIR_BYTES), "{at:?} is no pair's");
}

/// Far memory reached by load and store, or something that behaves like it.
///
/// # What a caller can do wrong
/// No argument is undefined behaviour on any medium.
///
/// | argument                                              | what happens                            |
/// |-------------------------------------------------------|-----------------------------------------|
/// | bytes not all in `0..len()`                           | a panic that names offset, length and end; nothing has changed. Of [`Medium::prefetch`]: no effect |
/// | a word, or bytes to be copied in, not 8-aligned; a pair not 16-aligned | the same                |
/// | bytes that another thread writes meanwhile            | each word is read old or new; bytes copied out may be torn within a word |
/// | two contexts copy in the same bytes, or parts of one word | each word is one's or the other's; the last word, if partial, may keep what it was |
/// | another thread reads what was copied in before the drain | each word is found old or new, in any order |
/// | a context used by another thread before its drain        | what it wrote may not be durable when its ticket is |
/// | a ticket of another medium                            | an answer that means nothing            |
///
/// So callers check what they read from a pool before they follow it.
pub trait Medium: Send + Sync + 'static {
    /// What a structure may rely on here.
    fn caps(&self) -> &Caps;

    /// Bytes that can be addressed now. Only [`Medium::grow`] changes it, upwards.
    fn len(&self) -> u64;

    /// Whether the medium has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the medium `len` bytes long: space is allocated and written, never sparse, and durable.
    /// Offsets stay valid and concurrent access goes on. A length below [`Medium::len`] changes
    /// nothing.
    ///
    /// # Errors
    /// There is no space, there are no addresses, or the medium is poisoned. Nothing has changed.
    fn grow(&self, len: u64) -> std::io::Result<()>;

    /// Loads the word at `at` (8-aligned) with acquire ordering.
    fn load(&self, at: Off) -> u64;

    /// Loads `N` words, `step` words from one to the next, each as [`Medium::load`] does. A racing
    /// writer may be seen in some of them and not in others.
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

    /// Stores the word at `at` (8-aligned) with release ordering. Volatile until flushed and drained.
    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64);

    /// Stores `words`, one after another, from `at` (8-aligned) on, as [`Medium::store`] does: on a file by one system call.
    /// No other thread reads or writes them meanwhile. A crash may leave some of them and not others.
    #[track_caller]
    fn store_words(&self, ctx: &mut PersistCtx, at: Off, words: &[u64]) {
        for (number, word) in words.iter().enumerate() {
            self.store(ctx, at.plus((number * WORD) as u64), *word);
        }
    }

    /// Compare-and-swap of the word at `at`; `Err` holds what was there. Never a drain.
    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64>;

    /// Copies published or immutable bytes out. Racing writers give torn words, never undefined
    /// behaviour.
    fn copy_out(&self, at: Off, to: &mut [u8]);

    /// Appends `len` bytes at `at` to `to`, without zeroing the space first. On a panic `to` is as it
    /// was.
    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>);

    /// Whether the bytes at `at` equal `bytes`.
    fn matches(&self, at: Off, bytes: &[u8]) -> bool;

    /// Writes `parts`, one after another, at `at` (8-aligned): unpublished bytes of this context, which no
    /// other thread writes meanwhile; nor what else is in the last word, which is written again as it
    /// was found. They are on their way to durability when this returns (no flush is needed) and
    /// readable by this thread; other threads may rely on them, and durability on a ticket, only after
    /// this context's next drain.
    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]);

    /// Writes two words at `at` (16-aligned) as [`Medium::copy_in`] does: for a line of which the caches are likely to have
    /// nothing, and of which nothing else is needed. The two may become durable in any order.
    #[track_caller]
    fn copy_in_pair(&self, ctx: &mut PersistCtx, at: Off, pair: [u64; 2]) {
        check_pair(at);
        self.copy_in(ctx, at, &[pair.map(u64::to_le_bytes).as_flattened()]);
    }

    /// Starts writing back every line of `at..at + len`.
    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize);

    /// Asks that everything this context copied in or flushed become durable.
    ///
    /// After it returns, other threads see those bytes. An I/O error poisons the medium: the ticket
    /// then never turns.
    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket;

    /// Whether `ticket` has turned durable.
    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned>;

    /// Waits until `ticket` has turned durable.
    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned>;

    /// Waits until everything drained so far is durable for certain, also where drains are relaxed:
    /// for steps that others build on, like using space again. `ticket` is the caller's last.
    fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.wait(ticket)
    }

    /// The first of `len` bytes at `at` that could not be read, because the device reports an error or
    /// the file is too short; zeros are read in its place. `None`: all that was read of them so far was
    /// there. What has a checksum fails it; what says nothing by zeros ("empty", "the end") asks this
    /// after it has read them. Words that are loaded ([`Medium::load`], [`Medium::load_words`],
    /// [`Medium::cas`]) are never such zeros: the call panics.
    fn unreadable(&self, _at: Off, _len: usize) -> Option<Off> {
        None
    }

    /// The file under the medium. `None`: there is no file, or its file system does not keep inode
    /// numbers.
    fn file_id(&self) -> Option<FileId> {
        None
    }

    /// What has happened to the medium's file since it was opened, as far as is known. Real media look
    /// twice a second.
    fn file_trouble(&self) -> Option<FileTrouble> {
        None
    }

    /// Has `wake` called, from any thread, whenever tickets have turned or the medium was poisoned.
    /// A medium whose tickets are durable at once never calls it.
    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>);

    /// CRC-32C of the bytes at `at`, continuing from `seed`. One event to the explorers.
    fn crc(&self, at: Off, len: usize, seed: u32) -> u32;

    /// Whether the CRC-32C of the bytes at `at`, continuing from `seed`, is `expected`. The way to
    /// ask about bytes that a crash may have torn: lazy simulated memory need not decide how.
    #[inline]
    fn crc_is(&self, at: Off, len: usize, seed: u32, expected: u32) -> bool {
        self.crc(at, len, seed) == expected
    }

    /// Copies bytes out that carry a checksum of their own; `check` says how many of the leading
    /// bytes it vouches for, from those bytes alone, or 0 if it does not hold. Answers whether it
    /// held; the bytes behind those may be anything then. If it held, the last call of `check` was about
    /// what is answered; if not, about anything.
    ///
    /// As with [`Medium::crc_is`], lazy simulated memory tells apart only whole content and all
    /// other; the bytes copied out are some of what they can be.
    #[inline(always)]
    fn copy_out_if(&self, at: Off, to: &mut [u8], check: &dyn Fn(&[u8]) -> usize) -> bool {
        self.copy_out(at, to);
        check(to) != 0
    }

    /// Hints that the bytes at `at` will be read soon. Out-of-range hints are ignored.
    fn prefetch(&self, at: Off, len: usize);
}

/// One medium of several owners.
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

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        (**self).poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        (**self).wait(ticket)
    }

    fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        (**self).settle(ticket)
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

    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        (**self).on_turn(wake);
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

/// Flushes `at..at + len`, drains and waits: what was stored there is durable on `Ok`.
#[track_caller]
pub fn persist<M: Medium + ?Sized>(
    medium: &M,
    ctx: &mut PersistCtx,
    at: Off,
    len: usize,
) -> Result<(), Poisoned> {
    medium.flush(ctx, at, len);
    let ticket = medium.drain(ctx);
    medium.settle(ticket)
}
