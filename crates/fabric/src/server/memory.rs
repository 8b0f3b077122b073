//! [`WordMemory`]: the memory of a memory server, on a medium that all its threads access by atomic words.
//!
//! ```text
//!   0                 HEAD_AT           + 4096         + 524288
//!   │ of the medium   │ header          │ slots        │ lock memory │ host memory
//!
//!   header:  0       8        16           24           32           40            48           1024     2048     3072
//!            │ magic │ server │ generation │ lock bytes │ host bytes │ chunk bytes │ next chunk │ floors │ joined │ sharing
//!
//!   56, before the floors: format of the locks, 0: parts of words, 1: whole words
//! ```
//!
//! Media keep a lease of the host in their first pages, so the header begins after them. The last digit of the magic
//! number is the version of the format. Processes of the same host use `sharing` and the slots (`sharing`, `slots`).

use std::fmt;

use farbank_pm::{Medium, Off, PersistCtx, WORD};

use crate::addr::GAddr;
use crate::service::ServiceResponse;
use crate::wire::{FLOORS, Floors};

const MAGIC: u64 = u64::from_le_bytes(*b"frbkmem3");
/// The magic number without the version.
const MAGIC_MASK: u64 = u64::MAX >> 8;
/// Start of the header, after the 8 KiB that media and pools use.
const HEAD_AT: u64 = 16 << 10;
const MAGIC_AT: Off = Off(HEAD_AT);
const SERVER_AT: Off = Off(HEAD_AT + 8);
const GENERATION_AT: Off = Off(HEAD_AT + 16);
const LOCK_BYTES_AT: Off = Off(HEAD_AT + 24);
const HOST_BYTES_AT: Off = Off(HEAD_AT + 32);
const CHUNK_BYTES_AT: Off = Off(HEAD_AT + 40);
const NEXT_CHUNK_AT: Off = Off(HEAD_AT + 48);
/// Whether locks are whole words.
const WHOLE_LOCKS_AT: Off = Off(HEAD_AT + 56);
/// Floor of each compute server, one byte each.
const FLOORS_AT: u64 = HEAD_AT + 1024;
/// Newest epoch in which each compute server has connected, one byte each.
const JOINED_AT: u64 = HEAD_AT + 2048;
/// Words for processes that map the medium.
pub(super) const SHARING_AT: u64 = HEAD_AT + 3072;
/// Slots of each compute server that maps the medium, one line each.
pub(super) const SLOTS_AT: u64 = HEAD_AT + 4096;
/// Slots of a compute server.
pub(crate) const SLOT_PARTS: u8 = 8;
/// Start of the lock memory.
const LOCK_AT: u64 = SLOTS_AT + (64 << 10) * SLOT_PARTS as u64;
const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: u64 = WORD as u64;
/// Words in a line.
const LINE_WORDS: usize = 8;

/// The sizes of a memory server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySettings {
    /// Number of the server; 0 is the lease server.
    pub server: u16,
    /// Bytes of lock memory, a multiple of 4096.
    pub lock_bytes: u64,
    /// Bytes of a chunk of host memory, a multiple of 4096. The first chunk is not allocated: structures have data at
    /// fixed addresses there.
    pub chunk_bytes: u64,
    /// Whether locks are whole words, because compute servers use the memory over libfabric, which cannot compare and swap parts of a
    /// word.
    pub whole_locks: bool,
}

impl MemorySettings {
    /// Returns the settings of server `server` with the lock memory of a ConnectX-5, chunks of 1 MiB and locks of 16 bits.
    #[must_use]
    pub fn new(server: u16) -> MemorySettings {
        MemorySettings {
            server,
            lock_bytes: 256 << 10,
            chunk_bytes: 1 << 20,
            whole_locks: false,
        }
    }
}

/// The reason why a medium cannot be a memory server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemoryError {
    /// The medium is smaller than its header, its lock memory and one chunk.
    TooSmall {
        /// Bytes of the medium.
        bytes: u64,
        /// Minimum bytes.
        least: u64,
    },
    /// A size is 0 or no multiple of 4096.
    Unaligned {
        /// The size.
        bytes: u64,
    },
    /// The medium is a memory server's memory of another version of the format.
    Version {
        /// The version found, as an ASCII digit.
        found: u8,
    },
    /// The medium is shorter than its header says: it was truncated.
    Truncated {
        /// Bytes of the medium.
        bytes: u64,
        /// Bytes that the header says.
        expected: u64,
    },
    /// The medium has other contents than a memory server's memory.
    NoMemory {
        /// A word found in place of the magic number or of zeros.
        found: u64,
    },
    /// The medium has locks in the format of another fabric.
    OtherLocks {
        /// Whether its locks are whole words, as libfabric needs.
        are_whole: bool,
    },
    /// The medium is the memory of another server, or has other sizes.
    Other {
        /// Offset of the header's word that differs.
        at: u64,
        /// The word found.
        found: u64,
        /// The word expected.
        expected: u64,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::TooSmall { bytes, least } => write!(
                f,
                "the medium has {bytes} bytes, a memory server needs at least {least}"
            ),
            MemoryError::Unaligned { bytes } => {
                write!(
                    f,
                    "a size is {bytes} bytes, expected a multiple of 4096 above 0"
                )
            }
            MemoryError::Version { found } => write!(
                f,
                "the medium has version {} of the format of a memory server's memory, expected version {}: create it \
                 again",
                char::from(*found).escape_default(),
                char::from((MAGIC >> 56) as u8)
            ),
            MemoryError::Truncated { bytes, expected } => write!(
                f,
                "the medium has {bytes} bytes, expected {expected}: its file was truncated"
            ),
            MemoryError::NoMemory { found } => write!(
                f,
                "the medium has data that no memory server wrote: found the word {found:#x}, expected zeros or {MAGIC:#x} at \
                 {HEAD_AT:#x}"
            ),
            MemoryError::OtherLocks { are_whole: true } => f.write_str(
                "the medium was created for --fabric libfabric, whose locks have another format: serve it with --fabric \
                 libfabric, or create it again",
            ),
            MemoryError::OtherLocks { are_whole: false } => f.write_str(
                "the medium was created without --fabric libfabric, whose locks have another format: serve it with --fabric \
                 tcp, or create it again",
            ),
            MemoryError::Other {
                at,
                found,
                expected,
            } => write!(
                f,
                "the medium belongs to a memory server with other settings: the word at {at:#x} is {found:#x}, \
                 expected {expected:#x}"
            ),
        }
    }
}

impl std::error::Error for MemoryError {}

/// The memory of a memory server: a header, lock memory and host memory.
pub struct WordMemory<M> {
    medium: M,
    settings: MemorySettings,
    generation: u64,
    host_bytes: u64,
}

impl<M: Medium> WordMemory<M> {
    /// Opens `medium` in a new generation, or formats it if it begins with zeros. `generation` is the number of the
    /// new generation if it is larger than all earlier ones: the time, for a medium that does not keep them.
    ///
    /// # Errors
    /// The medium is too small, or has other contents.
    pub fn open(
        medium: M,
        settings: MemorySettings,
        generation: u64,
    ) -> Result<WordMemory<M>, MemoryError> {
        for bytes in [settings.lock_bytes, settings.chunk_bytes] {
            if bytes == 0 || bytes % PAGE_BYTES != 0 {
                return Err(MemoryError::Unaligned { bytes });
            }
        }
        let (bytes, before) = (medium.len(), LOCK_AT + settings.lock_bytes);
        let least = before + settings.chunk_bytes;
        if bytes < least {
            return Err(MemoryError::TooSmall { bytes, least });
        }
        let mut memory = WordMemory {
            medium,
            settings,
            generation,
            host_bytes: (bytes - before) / WORD_BYTES * WORD_BYTES,
        };
        memory.begin_generation()?;
        Ok(memory)
    }

    /// Attaches to the memory in `medium`, which another process serves.
    ///
    /// # Errors
    /// The medium is no memory server's memory, or is too short.
    pub(crate) fn attach(medium: M) -> Result<WordMemory<M>, MemoryError> {
        let bytes = medium.len();
        if bytes < LOCK_AT {
            let least = LOCK_AT;
            return Err(MemoryError::TooSmall { bytes, least });
        }
        match medium.load(MAGIC_AT) {
            MAGIC => {}
            found => return Err(other_magic(found)),
        }
        let (lock_bytes, host_bytes) = (medium.load(LOCK_BYTES_AT), medium.load(HOST_BYTES_AT));
        let expected = LOCK_AT
            .saturating_add(lock_bytes)
            .saturating_add(host_bytes);
        if bytes < expected {
            return Err(MemoryError::Truncated { bytes, expected });
        }
        let settings = MemorySettings {
            server: medium.load(SERVER_AT) as u16,
            lock_bytes,
            chunk_bytes: medium.load(CHUNK_BYTES_AT),
            whole_locks: medium.load(WHOLE_LOCKS_AT) != 0,
        };
        let generation = medium.load(GENERATION_AT);
        Ok(WordMemory {
            medium,
            settings,
            generation,
            host_bytes,
        })
    }

    /// Returns the medium.
    pub(crate) fn medium(&self) -> &M {
        &self.medium
    }

    fn begin_generation(&mut self) -> Result<(), MemoryError> {
        let mut ctx = PersistCtx::new(0);
        let fixed = [
            (SERVER_AT, u64::from(self.settings.server)),
            (LOCK_BYTES_AT, self.settings.lock_bytes),
            (HOST_BYTES_AT, self.host_bytes),
            (CHUNK_BYTES_AT, self.settings.chunk_bytes),
            (WHOLE_LOCKS_AT, self.settings.whole_locks.into()),
        ];
        match self.medium.load(MAGIC_AT) {
            0 => {
                if let Some(found) = self.other_data() {
                    return Err(MemoryError::NoMemory { found });
                }
                for (at, word) in fixed {
                    self.medium.store(&mut ctx, at, word);
                }
                let first = self.settings.chunk_bytes;
                self.medium.store(&mut ctx, NEXT_CHUNK_AT, first);
                self.medium.store(&mut ctx, MAGIC_AT, MAGIC);
            }
            MAGIC => {
                for (at, expected) in fixed {
                    let found = self.medium.load(at);
                    if found != expected && at == WHOLE_LOCKS_AT {
                        let are_whole = found != 0;
                        return Err(MemoryError::OtherLocks { are_whole });
                    }
                    if found != expected {
                        return Err(MemoryError::Other {
                            at: at.0,
                            found,
                            expected,
                        });
                    }
                }
            }
            found => return Err(other_magic(found)),
        }
        let before = self.medium.load(GENERATION_AT);
        self.generation = self.generation.max(before + 1);
        self.medium.store(&mut ctx, GENERATION_AT, self.generation);
        Ok(())
    }

    /// Returns a word of data at the start of a medium without a header: of a pool, for example. A medium's lease, which
    /// begins at byte 1024, is none.
    fn other_data(&self) -> Option<u64> {
        const POOL_BYTES: u64 = 1024;
        let words = (0..POOL_BYTES).chain(HEAD_AT..LOCK_AT).step_by(WORD);
        words
            .map(|at| self.medium.load(Off(at)))
            .find(|word| *word != 0)
    }

    /// Returns the number of the server.
    #[must_use]
    pub fn server(&self) -> u16 {
        self.settings.server
    }

    /// Returns the generation. It increases with each opening.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether the memory was opened again, in a newer generation.
    pub(crate) fn has_newer_generation(&self) -> bool {
        self.medium.load(GENERATION_AT) != self.generation
    }

    /// Returns the bytes of host memory.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.host_bytes
    }

    /// Returns the bytes of lock memory.
    #[must_use]
    pub fn lock_bytes(&self) -> u64 {
        self.settings.lock_bytes
    }

    /// Returns the position of the lock memory, which the host memory follows.
    #[cfg(feature = "libfabric")]
    pub(crate) fn verbs_at(&self) -> u64 {
        LOCK_AT
    }

    /// Returns whether locks are whole words.
    #[must_use]
    pub fn has_whole_locks(&self) -> bool {
        self.settings.whole_locks
    }

    /// Returns the position of `len` bytes at `at`, if they are in this server's memory.
    pub(crate) fn place(&self, at: GAddr, len: usize) -> Option<u64> {
        let (start, bytes) = match at.is_lock() {
            true => (LOCK_AT, self.settings.lock_bytes),
            false => (LOCK_AT + self.settings.lock_bytes, self.host_bytes),
        };
        let end = at.at().checked_add(len as u64)?;
        let inside = at.server() == self.settings.server && end <= bytes;
        inside.then_some(start + at.at())
    }

    /// Returns whether the `len` bytes at position `place` are in the lock or host memory.
    pub(super) fn has_place(&self, place: u64, len: usize) -> bool {
        let end = LOCK_AT + self.settings.lock_bytes + self.host_bytes;
        let inside = place.checked_add(len as u64).is_some_and(|to| to <= end);
        place >= LOCK_AT && inside
    }

    /// Returns the position of the aligned word at `at`, if it is in this server's memory.
    pub(crate) fn word_place(&self, at: GAddr) -> Option<Off> {
        let place = self.place(at, WORD)?;
        place.is_multiple_of(WORD_BYTES).then_some(Off(place))
    }

    /// Appends the `len` bytes at position `place` to `out` (MEMSRV-1).
    pub(super) fn read(&self, place: u64, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + len, 0);
        self.read_into(place, &mut out[start..]);
    }

    /// Reads the bytes at position `place` into `to` (MEMSRV-1).
    pub(crate) fn read_into(&self, place: u64, to: &mut [u8]) {
        const LINE_BYTES: usize = LINE_WORDS * WORD;
        let (mut at, mut rest) = (place, to);
        while !rest.is_empty() {
            let within = (at % WORD_BYTES) as usize;
            let is_line = within == 0 && rest.len() >= LINE_BYTES;
            let part_bytes = match is_line {
                true => LINE_BYTES,
                false => (WORD - within).min(rest.len()),
            };
            let (part, later) = rest.split_at_mut(part_bytes);
            if is_line {
                let words = self.medium.load_words::<LINE_WORDS>(Off(at), 1);
                for (to, word) in part.chunks_exact_mut(WORD).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            } else {
                let bytes = self.medium.load(Off(at - within as u64)).to_le_bytes();
                part.copy_from_slice(&bytes[within..within + part_bytes]);
            }
            at += part_bytes as u64;
            rest = later;
        }
    }

    /// Writes `bytes` at position `place` (MEMSRV-1).
    pub(crate) fn write(&self, ctx: &mut PersistCtx, place: u64, bytes: &[u8]) {
        let mut at = place;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % WORD_BYTES) as usize;
            let (part, later) = rest.split_at(rest.len().min(WORD - within));
            let word = Off(at - within as u64);
            match <[u8; WORD]>::try_from(part) {
                Ok(whole) => self.medium.store(ctx, word, u64::from_le_bytes(whole)),
                Err(_) => {
                    self.update(ctx, word, |old| {
                        let mut new = old.to_le_bytes();
                        new[within..within + part.len()].copy_from_slice(part);
                        u64::from_le_bytes(new)
                    });
                }
            }
            at += part.len() as u64;
            rest = later;
        }
    }

    /// Replaces the word at `word` by what `change` makes of it. Returns the word found.
    pub(crate) fn update(
        &self,
        ctx: &mut PersistCtx,
        word: Off,
        change: impl Fn(u64) -> u64,
    ) -> u64 {
        let mut old = self.medium.load(word);
        loop {
            match self.medium.cas(ctx, word, old, change(old)) {
                Ok(_) => return old,
                Err(found) => old = found,
            }
        }
    }

    /// Replaces the bits `mask` of the word at `word` by those of `new` if they equal those of `old`. Returns the word
    /// found.
    pub(crate) fn masked_cas(
        &self,
        ctx: &mut PersistCtx,
        word: Off,
        old: u64,
        new: u64,
        mask: u64,
    ) -> u64 {
        let mut found = self.medium.load(word);
        while (found ^ old) & mask == 0 {
            let next = (found & !mask) | (new & mask);
            match self.medium.cas(ctx, word, found, next) {
                Ok(_) => return found,
                Err(other) => found = other,
            }
        }
        found
    }

    /// Allocates a chunk of host memory.
    pub(super) fn allocate_chunk(&self, ctx: &mut PersistCtx) -> ServiceResponse {
        let bytes = self.settings.chunk_bytes;
        let fits = |at: u64| {
            at.checked_add(bytes)
                .is_some_and(|end| end <= self.host_bytes)
        };
        let at = self.update(ctx, NEXT_CHUNK_AT, |at| match fits(at) {
            true => at + bytes,
            false => at,
        });
        match fits(at) {
            true => ServiceResponse::Chunk { at, bytes },
            false => ServiceResponse::Full,
        }
    }

    /// Returns whether the host memory has at least `bytes` bytes.
    pub(super) fn has_host_memory(&self, bytes: u64) -> bool {
        bytes <= self.host_bytes
    }

    /// Excludes the host memory before byte `to` from chunks.
    pub(super) fn reserve(&self, ctx: &mut PersistCtx, to: u64) {
        let to = to.next_multiple_of(PAGE_BYTES);
        self.update(ctx, NEXT_CHUNK_AT, |at| at.max(to));
    }

    /// Returns the floors of all compute servers.
    pub(super) fn floors(&self) -> Floors {
        self.epochs_at(FLOORS_AT)
    }

    /// Returns the newest epoch in which each compute server has connected.
    pub(super) fn joined(&self) -> Floors {
        self.epochs_at(JOINED_AT)
    }

    /// Returns the floor of `compute`.
    pub(crate) fn floor(&self, compute: u16) -> u8 {
        let at = FLOORS_AT + u64::from(compute);
        let within = at % WORD_BYTES;
        self.medium.load(Off(at - within)).to_le_bytes()[within as usize]
    }

    fn epochs_at(&self, table: u64) -> Floors {
        let mut bytes = Vec::with_capacity(FLOORS);
        self.read(table, FLOORS, &mut bytes);
        let mut epochs = Floors::new();
        epochs.0.copy_from_slice(&bytes);
        epochs
    }

    /// Raises the floor of `compute` to `floor`, if it is lower (MEMSRV-5).
    pub(super) fn raise_floor(&self, ctx: &mut PersistCtx, compute: u16, floor: u8) {
        self.raise_epoch(ctx, FLOORS_AT, compute, floor);
    }

    /// Records that `compute` has connected in `epoch`.
    pub(super) fn record_join(&self, ctx: &mut PersistCtx, compute: u16, epoch: u8) {
        self.raise_epoch(ctx, JOINED_AT, compute, epoch);
    }

    fn raise_epoch(&self, ctx: &mut PersistCtx, table: u64, compute: u16, epoch: u8) {
        let at = table + u64::from(compute);
        let within = (at % WORD_BYTES) as usize;
        let word = Off(at - within as u64);
        let raised = |word: u64| {
            let mut bytes = word.to_le_bytes();
            bytes[within] = bytes[within].max(epoch);
            u64::from_le_bytes(bytes)
        };
        let found = self.medium.load(word);
        if raised(found) != found {
            self.update(ctx, word, raised);
        }
    }
}

/// Returns the error of a medium whose magic number is `found`.
fn other_magic(found: u64) -> MemoryError {
    match (found ^ MAGIC) & MAGIC_MASK {
        0 => MemoryError::Version {
            found: (found >> 56) as u8,
        },
        _ => MemoryError::NoMemory { found },
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::media::Mapped;

    use super::*;

    /// Bytes of a medium with ten chunks.
    const MEDIUM_BYTES: u64 = LOCK_AT + 11 * 4096;

    fn memory(medium: Mapped) -> Result<WordMemory<Mapped>, MemoryError> {
        let settings = MemorySettings {
            server: 3,
            lock_bytes: 4096,
            chunk_bytes: 4096,
            whole_locks: false,
        };
        WordMemory::open(medium, settings, 7)
    }

    fn fresh() -> WordMemory<Mapped> {
        memory(Mapped::anonymous(MEDIUM_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn bytes_written_at_any_alignment_are_read_back_and_others_keep_their_value() {
        let (memory, mut ctx) = (fresh(), PersistCtx::new(1));
        for start in 0..9 {
            for len in 0..150 {
                let whole = memory.place(GAddr::host(3, 4096), 256).unwrap();
                memory.write(&mut ctx, whole, &[0xee; 256]);
                let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
                let at = memory.place(GAddr::host(3, 4096 + start), bytes.len());
                memory.write(&mut ctx, at.unwrap(), &bytes);
                let mut read = Vec::new();
                memory.read(whole, 256, &mut read);
                let mut expected = vec![0xee; 256];
                expected[start as usize..start as usize + bytes.len()].copy_from_slice(&bytes);
                assert_eq!(read, expected, "{len} bytes at {start}");
                read.clear();
                memory.read(at.unwrap(), bytes.len(), &mut read);
                assert_eq!(read, bytes);
            }
        }
    }

    #[test]
    fn addresses_outside_of_the_memory_have_no_place() {
        let memory = fresh();
        let host = memory.host_bytes();
        assert!(memory.place(GAddr::host(3, host - 8), 8).is_some());
        assert!(memory.place(GAddr::host(3, host - 7), 8).is_none());
        assert!(memory.place(GAddr::host(2, 0), 8).is_none());
        assert!(memory.place(GAddr::lock(3, 4096), 1).is_none());
        assert!(memory.place(GAddr(u64::MAX), usize::MAX).is_none());
        assert!(memory.word_place(GAddr::host(3, 4)).is_none());
    }

    #[test]
    fn a_medium_with_other_data_is_refused_and_unchanged() {
        for at in [0, 1016, HEAD_AT + 8] {
            let (medium, mut ctx) = (Mapped::anonymous(MEDIUM_BYTES).unwrap(), PersistCtx::new(1));
            medium.store(&mut ctx, Off(at), 77);
            let error = memory(medium).err();
            assert_eq!(error, Some(MemoryError::NoMemory { found: 77 }), "{at}");
        }
    }

    #[test]
    fn chunks_do_not_overlap_and_the_reserved_memory_is_not_allocated() {
        let (memory, mut ctx) = (fresh(), PersistCtx::new(1));
        memory.reserve(&mut ctx, 10_000);
        let mut next = 12_288;
        while let ServiceResponse::Chunk { at, bytes } = memory.allocate_chunk(&mut ctx) {
            assert_eq!((at, bytes), (next, 4096));
            next += bytes;
        }
        assert_eq!(next, memory.host_bytes());
    }

    #[test]
    fn an_opened_medium_keeps_its_contents_and_begins_a_new_generation() {
        let (first, mut ctx) = (fresh(), PersistCtx::new(1));
        first.raise_floor(&mut ctx, 9, 4);
        first.raise_floor(&mut ctx, 9, 2);
        first.record_join(&mut ctx, 1022, 6);
        assert_eq!(first.generation(), 7);
        let again = memory(first.medium).unwrap();
        assert_eq!((again.generation(), again.floors().0[9]), (8, 4));
        assert_eq!(again.joined().0[1022], 6);
        let settings = MemorySettings {
            whole_locks: true,
            ..again.settings
        };
        let server = again.settings.server;
        let other = WordMemory::open(again.medium, settings, 0);
        assert!(matches!(
            other,
            Err(MemoryError::OtherLocks { are_whole: false })
        ));
        let again = memory(fresh().medium).unwrap();
        let settings = MemorySettings {
            server: 1,
            ..again.settings
        };
        assert_eq!(server, again.settings.server);
        let other = WordMemory::open(again.medium, settings, 0).err();
        let expected = MemoryError::Other {
            at: SERVER_AT.0,
            found: 3,
            expected: 1,
        };
        assert_eq!(other, Some(expected));
    }
}
