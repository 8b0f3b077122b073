//! A pool: a medium with a superblock, cut into equal segments.
//!
//! ```text
//!   0        4096      8192        first segment               the end
//!   ┌────────┬─────────┬─ unused ─┬───────────┬───────────┬─ ... ─┐
//!   │ copy A │ copy B  │          │ segment 0 │ segment 1 │       │
//!   └────────┴─────────┴──────────┴───────────┴───────────┴─ ... ─┘
//! ```
//!
//! A copy is the first 512 bytes of its page: one sector, which no power cut tears on a file. On
//! persistent memory, where only words are whole, its checksum tells. The first segment starts at
//! 8192 rounded up to the smaller of a segment and 2 MiB, so that segments fit huge pages.
//!
//! # Invariants
//! P1  An update of the superblock writes copy A, drains and waits, then copy B, drains and waits.
//!     Between updates both copies are equal, so one damaged copy loses nothing.
//! P2  Of two valid copies the one with the higher update number counts: a crash between the two
//!     writes leaves the newer, whole copy in A.
//! P3  The medium is at least as long as the superblock says: it grows, durably, before the
//!     superblock records it.
//! P4  From before the first write of an opening to after the last one of a clean close, the superblock
//!     names the file the pool is in. So a copy that was taken meanwhile, parts of it earlier than others,
//!     and a copy of what a crash left, are told from the file itself: see [`Copies`].
//!
//! # Crash argument
//! | crash between                | `open` sees                    | and does                       |
//! |------------------------------|--------------------------------|--------------------------------|
//! | `create`, A durable          | no magic, or a damaged A       | refuses: the pool never was    |
//! | update: nothing, A durable   | A old, new or damaged; B old   | takes the newer; writes both   |
//! | update: A durable, B durable | A new; B old, new or damaged   | takes A; writes both           |
//! | grow: medium, superblock     | a medium longer than recorded  | ignores the rest (P3)          |
//!
//! `open` writes the copy it takes again before the other one, and waits in between. Of copies that are
//! equal it writes B again: one of the two was durable before the other was written, and if that was A, a
//! process that was killed may not have waited for B; the next update begins with A. So whatever is
//! accepted is durable before anyone builds on it, also when the crash was of the process only.

mod superblock;

use std::fmt;
use std::io;
use std::time::SystemTime;

use superblock::{BYTES, Features, MAGIC, Superblock, SuperblockCopy, UPDATE_MAX, VERSIONS};

use crate::key_hash::KeyHash;
use crate::medium::{FileId, Medium, Off, Poisoned};
use crate::persist_ctx::PersistCtx;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Words of the superblock that belong to the engine above: see its own documentation.
pub const ROOT_WORDS: usize = 40;

/// The engine's part of the superblock, replaced whole by [`Pool::set_root`].
pub type PoolRoot = [u64; ROOT_WORDS];

/// Smallest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;
/// Largest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

const COPY_A: Off = Off(0);
const COPY_B: Off = Off(4096);
/// Where the two pages of the superblock end, in bytes.
pub(crate) const HEAD_BYTES: u64 = 8192;
/// Bytes by which a pool grows at once, in whole segments, one at least. All of them are written and
/// synced, which other syncs of the file and updates of the superblock wait for: 5 to 10 ms in memory,
/// a few tens of ms on a disk.
pub const GROWTH_STEP_BYTES: u64 = 16 << 20;
/// What the first segment is aligned to if it is large, in bytes.
const HUGE: u64 = 2 << 20;

/// Where the copies of the superblock are.
pub const COPIES: [Off; 2] = [COPY_A, COPY_B];
/// Bytes in a copy.
pub const COPY_BYTES: usize = BYTES;

/// How many bytes the pool takes whose superblock copies these are, if they are sound.
pub(crate) fn recorded_bytes(copies: &[[u8; COPY_BYTES]; 2]) -> Option<u64> {
    let [a, b] = copies.each_ref().map(Superblock::classify);
    let (superblock, _) = choose(&a, &b).ok()?;
    check(&superblock).ok()
}

/// What a superblock says of its pool, for people.
#[derive(Clone, Debug)]
pub struct PoolSummary {
    /// Version of the format.
    pub version: u32,
    /// Bytes in a segment.
    pub segment_bytes: u64,
    /// How many segments there are.
    pub segments: u32,
    /// Bytes the pool takes of its medium.
    pub pool_bytes: u64,
    /// When the pool was made, in seconds of Unix time.
    pub created_unix_s: u64,
    /// Whether one of the two copies is damaged or older: the next open mends it.
    pub mended_at_open: bool,
    /// The engine's words.
    pub root: PoolRoot,
    /// The file the pool is in use in, or was when it crashed; `None` after a clean close.
    pub in_use_as: Option<FileId>,
}

/// What becomes of a pool that was not closed cleanly and is not in the file it was open in: a copy of a
/// pool in use. Parts of it may be older than others, so that keys that were acknowledged are missing, and
/// nothing else tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopiedPoolPolicy {
    /// It is refused: [`PoolError::Copy`].
    #[default]
    Refuse,
    /// It is taken as it is, and is a pool like any other from then on.
    Accept,
    /// It is opened, but stays a copy, which the next open refuses: for looking into it.
    Inspect,
}

/// Reads what two copies of a superblock, the first [`COPY_BYTES`] bytes of the pages at [`COPIES`],
/// say. Changes nothing, and needs no lock.
pub fn summary(copies: &[[u8; COPY_BYTES]; 2]) -> Result<PoolSummary, PoolError> {
    let [a, b] = copies.each_ref().map(Superblock::classify);
    let (superblock, healthy) = choose(&a, &b)?;
    let pool_bytes = check(&superblock)?;
    Ok(PoolSummary {
        version: superblock.version,
        segment_bytes: superblock.segment_bytes,
        segments: superblock.segments as u32,
        pool_bytes,
        created_unix_s: superblock.created_unix_s,
        mended_at_open: healthy != HealthyCopies::Both,
        root: superblock.root,
        in_use_as: superblock.in_use_as,
    })
}

/// Whether `bytes`, the first of a file, are how a pool begins.
pub(crate) fn begins_as_pool(bytes: &[u8; 8]) -> bool {
    *bytes == MAGIC
}

/// Whether something that calls itself a pool, whole or damaged, is on `medium`.
pub(crate) fn is_pool<M: Medium>(medium: &M) -> bool {
    medium.len() >= HEAD_BYTES
        && read_copies(medium)
            .iter()
            .any(|copy| !matches!(copy, SuperblockCopy::Foreign(_)))
}

/// How a new pool is laid out.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    /// Bytes in a segment: a power of two from 4 KiB to 1 GiB.
    pub segment_bytes: u64,
}

impl PoolLayout {
    /// Where the first segment starts, in bytes.
    #[must_use]
    pub const fn first_segment(&self) -> u64 {
        let align = if self.segment_bytes < HUGE {
            self.segment_bytes
        } else {
            HUGE
        };
        HEAD_BYTES.next_multiple_of(align)
    }

    /// Bytes a medium must have to hold `segments` segments.
    #[must_use]
    pub const fn pool_bytes(&self, segments: u32) -> u64 {
        self.first_segment() + segments as u64 * self.segment_bytes
    }

    /// Whether a pool can have segments of this size.
    ///
    /// # Errors
    /// [`PoolError::Layout`] if it cannot.
    pub fn check(&self) -> Result<(), PoolError> {
        if self.is_sound() {
            return Ok(());
        }
        Err(PoolError::Layout(format!(
            "a segment of {} bytes cannot be: it is a power of two from {SEGMENT_BYTES_MIN} to \
             {SEGMENT_BYTES_MAX}",
            self.segment_bytes
        )))
    }

    fn is_sound(&self) -> bool {
        self.segment_bytes.is_power_of_two()
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
    }
}

/// What tells a new pool from every other. Chance and the time enter a pool here only.
#[derive(Clone, Copy)]
pub struct PoolIdentity {
    /// Secret and random: see [`Pool::id`].
    pub id: [u8; 16],
    /// When the pool was made, in seconds of Unix time.
    pub created_unix_s: u64,
}

impl fmt::Debug for PoolIdentity {
    /// Leaves out the secret id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("created_unix_s", &self.created_unix_s)
            .finish_non_exhaustive()
    }
}

impl PoolIdentity {
    /// One that nobody has, made now.
    pub fn fresh() -> io::Result<PoolIdentity> {
        let mut id = [0; 16];
        fill_random(&mut id)?;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(PoolIdentity {
            id,
            created_unix_s: since_1970.map_or(0, |t| t.as_secs()),
        })
    }
}

/// Why a pool could not be made or opened. Nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// The medium refused.
    Poisoned(Poisoned),
    /// The layout asked for cannot be: which bound it breaks.
    Layout(String),
    /// The bytes are no pool of ours, or a damaged one: what was found, what was expected, where.
    NotAPool(String),
    /// A pool of another version of the format, or with features this program does not know.
    Unknown(String),
    /// The medium is shorter than the pool on it.
    Short {
        /// Bytes the superblock records.
        recorded: u64,
        /// Bytes the medium has.
        found: u64,
    },
    /// The pool was not closed cleanly, and this is not the file it was open in: a copy. See [`Copies`].
    Copy {
        /// The file the pool was open in.
        recorded: FileId,
        /// This file.
        found: FileId,
    },
    /// The system gave no randomness for the pool's secret.
    Random(io::Error),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Poisoned(p) => p.fmt(f),
            PoolError::Layout(why) | PoolError::NotAPool(why) | PoolError::Unknown(why) => {
                f.write_str(why)
            }
            PoolError::Short { recorded, found } => write!(
                f,
                "the pool is cut short: its superblock records {recorded} bytes, but only {found} \
                 are there; restore the file from a copy that was made while the pool was closed"
            ),
            PoolError::Copy { recorded, found } => write!(
                f,
                "this is a copy of a pool that was in use or had crashed: acknowledged writes may be \
                 missing in it (the pool was open in the file with inode {} made at {}, this one has \
                 inode {} and was made at {}); open the original file, or close the pool cleanly and \
                 copy it again",
                recorded.inode,
                FileBirth(recorded.born_ns),
                found.inode,
                FileBirth(found.born_ns)
            ),
            PoolError::Random(e) => write!(f, "no random bytes for the pool's secret: {e}"),
        }
    }
}

/// A file's birth, for people.
struct FileBirth(u64);

impl fmt::Display for FileBirth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND_NS: u64 = 1_000_000_000;
        match self.0 {
            0 => f.write_str("an unknown time"),
            ns => write!(f, "{}.{:09} s", ns / SECOND_NS, ns % SECOND_NS),
        }
    }
}

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PoolError::Poisoned(p) => Some(p),
            PoolError::Random(e) => Some(e),
            _ => None,
        }
    }
}

impl From<Poisoned> for PoolError {
    fn from(poisoned: Poisoned) -> PoolError {
        PoolError::Poisoned(poisoned)
    }
}

/// A medium with a superblock.
pub struct Pool<M> {
    medium: M,
    version: u32,
    layout: PoolLayout,
    id: [u8; 16],
    created_unix_s: u64,
    segments: AtomicU32,
    copies: CopiedPoolPolicy,
    /// What both copies on the medium say. Held through an update, so that updates follow each
    /// other.
    current: Mutex<Superblock>,
}

impl<M> fmt::Debug for Pool<M> {
    /// Leaves out the secret id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("segment_bytes", &self.layout.segment_bytes)
            .field("segments", &self.segments)
            .finish_non_exhaustive()
    }
}

impl<M: Medium> Pool<M> {
    /// Makes a new, empty pool of all of `medium`, as many whole segments as fit, over whatever is
    /// there. Durable on `Ok`.
    pub fn create(
        medium: M,
        ctx: &mut PersistCtx,
        layout: &PoolLayout,
    ) -> Result<Pool<M>, PoolError> {
        let identity = PoolIdentity::fresh().map_err(PoolError::Random)?;
        Pool::create_as(medium, ctx, layout, identity)
    }

    /// As [`Pool::create`], with an identity of the caller's choosing: for a medium on which the same
    /// calls shall make the same bytes.
    pub fn create_as(
        medium: M,
        ctx: &mut PersistCtx,
        layout: &PoolLayout,
        identity: PoolIdentity,
    ) -> Result<Pool<M>, PoolError> {
        Pool::create_with_root(medium, ctx, layout, identity, &[0; ROOT_WORDS])
    }

    /// As [`Pool::create_as`], in a version of the format of the caller's choosing: an engine that uses more of the
    /// pool than version 1 has takes a later one.
    ///
    /// # Panics
    /// If this program does not know the version.
    pub fn create_versioned(
        medium: M,
        ctx: &mut PersistCtx,
        layout: &PoolLayout,
        identity: PoolIdentity,
        version: u32,
    ) -> Result<Pool<M>, PoolError> {
        assert!(VERSIONS.contains(&version), "format version {version}");
        let superblock = Superblock {
            version,
            ..new_superblock(layout, medium.len(), identity)?
        };
        Pool::create_from(medium, ctx, superblock)
    }

    /// As [`Pool::create_as`], with the engine's words: there is no pool without them at any time. What they
    /// speak of must be durable.
    pub fn create_with_root(
        medium: M,
        ctx: &mut PersistCtx,
        layout: &PoolLayout,
        identity: PoolIdentity,
        root: &PoolRoot,
    ) -> Result<Pool<M>, PoolError> {
        let superblock = Superblock {
            root: *root,
            ..new_superblock(layout, medium.len(), identity)?
        };
        Pool::create_from(medium, ctx, superblock)
    }

    fn create_from(
        medium: M,
        ctx: &mut PersistCtx,
        mut superblock: Superblock,
    ) -> Result<Pool<M>, PoolError> {
        superblock.in_use_as = medium.file_id(); // P4
        write_copies(&medium, ctx, &superblock, &COPIES)?;
        Ok(Pool::of(medium, superblock, CopiedPoolPolicy::Refuse))
    }

    /// Opens the pool on `medium`; repairs a damaged or older superblock copy from the other. What
    /// the pool then says is durable. A copy of a pool in use is refused.
    pub fn open(medium: M, ctx: &mut PersistCtx) -> Result<Pool<M>, PoolError> {
        Pool::open_with(medium, ctx, CopiedPoolPolicy::Refuse)
    }

    /// As [`Pool::open`]; `copies` says what becomes of a copy of a pool in use.
    pub fn open_with(
        medium: M,
        ctx: &mut PersistCtx,
        copies: CopiedPoolPolicy,
    ) -> Result<Pool<M>, PoolError> {
        if medium.len() < HEAD_BYTES {
            return Err(PoolError::NotAPool(format!(
                "not a pool: its {} bytes are fewer than those of a superblock",
                medium.len()
            )));
        }
        let [a, b] = read_copies(&medium);
        let (superblock, healthy) = choose(&a, &b)?;
        let (recorded, found) = (check(&superblock)?, medium.len());
        if recorded > found {
            return Err(PoolError::Short { recorded, found });
        }
        let copies = match copied(&superblock, medium.file_id()) {
            Some(error) if copies == CopiedPoolPolicy::Refuse => return Err(error),
            None if copies == CopiedPoolPolicy::Inspect => CopiedPoolPolicy::Refuse, // It is no copy.
            _ => copies,
        };
        match healthy {
            HealthyCopies::Both => write_copies(&medium, ctx, &superblock, &[COPY_B])?,
            // The copy that counts comes first: it may not be durable yet.
            HealthyCopies::A => write_copies(&medium, ctx, &superblock, &COPIES)?,
            HealthyCopies::B => write_copies(&medium, ctx, &superblock, &[COPY_B, COPY_A])?,
        }
        let pool = Pool::of(medium, superblock, copies);
        pool.is_in_use(ctx, true)?;
        Ok(pool)
    }

    fn of(medium: M, superblock: Superblock, copies: CopiedPoolPolicy) -> Pool<M> {
        Pool {
            copies,
            medium,
            version: superblock.version,
            layout: superblock.layout(),
            id: superblock.id,
            created_unix_s: superblock.created_unix_s,
            segments: AtomicU32::new(superblock.segments as u32),
            current: Mutex::new(superblock),
        }
    }

    /// Version of the format: the one the pool was made in.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// The medium back, the pool closed.
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// The secret, random identity of the pool. Who knows it can forge records: never print it.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The keyed hash function of keys that clients choose, the same whenever the pool is opened.
    pub fn key_hash(&self) -> KeyHash {
        KeyHash::of_pool(&self.id)
    }

    /// A secret seed for `purpose`, the same whenever the pool is opened: for keyed hashing.
    pub fn seed(&self, purpose: &str) -> u64 {
        let key = xxhash_rust::xxh3::xxh3_64(purpose.as_bytes());
        xxhash_rust::xxh3::xxh3_64_with_seed(&self.id, key)
    }

    /// When the pool was made, in seconds of Unix time.
    pub fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }

    /// Bytes in a segment.
    #[inline]
    pub fn segment_bytes(&self) -> u64 {
        self.layout.segment_bytes
    }

    /// How many segments the pool has now.
    #[inline]
    pub fn segments(&self) -> u32 {
        self.segments.load(Ordering::Acquire)
    }

    /// Where segment `index` starts. An index beyond [`Pool::segments`] gives a place outside the
    /// pool, which the medium refuses.
    #[inline]
    pub fn segment(&self, index: u32) -> Off {
        Off(self.layout.pool_bytes(index))
    }

    /// The engine's words: as created (zeros), or as last set.
    pub fn root(&self) -> PoolRoot {
        self.current.lock().expect("no holder panics").root
    }

    /// Replaces the engine's words. Durable, in both copies, on `Ok`; updates of several threads
    /// follow each other.
    pub fn set_root(&self, ctx: &mut PersistCtx, root: &PoolRoot) -> Result<(), Poisoned> {
        self.update(ctx, |superblock| superblock.root = *root)
    }

    /// Whether this is a copy of a pool in use, opened to look into it ([`Copies::Inspect`]).
    pub fn is_copy(&self) -> bool {
        self.copies == CopiedPoolPolicy::Inspect
    }

    /// Records that nothing is written any more until the pool is opened again, durably on `Ok`: from now
    /// on copies of the pool are as good as itself (P4).
    pub fn closed(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        self.is_in_use(ctx, false)
    }

    /// Records the file the pool is in use in, or that it is not. A copy that is looked into stays one.
    fn is_in_use(&self, ctx: &mut PersistCtx, in_use: bool) -> Result<(), Poisoned> {
        if self.is_copy() {
            return Ok(());
        }
        let file = self.medium.file_id().filter(|_| in_use);
        self.update(ctx, |superblock| superblock.in_use_as = file)
    }

    /// Segments that fit `bytes` of the medium, but no fewer than the pool has: how far it may grow.
    pub fn segments_within(&self, bytes: u64) -> u32 {
        let room = bytes.saturating_sub(self.segment(0).0);
        let segments = u32::try_from(room / self.segment_bytes()).unwrap_or(u32::MAX);
        segments.max(self.segments())
    }

    /// Segments a pool that fills up is to have next: a quarter more, 16 at least, but no more than
    /// [`GROWTH_STEP_BYTES`] have, and `most` at most.
    pub fn segments_next(&self, most: u32) -> u32 {
        let before = self.segments();
        let step_max = (GROWTH_STEP_BYTES / self.segment_bytes()).max(1);
        let step = u64::from((before / 4).max(16)).min(step_max) as u32;
        before.saturating_add(step).min(most)
    }

    /// Grows the medium to hold `segments` segments, then records it. Durable on `Ok`; on an error
    /// the pool is as it was. Fewer segments than there are is an error, as many changes nothing.
    pub fn grow(&self, ctx: &mut PersistCtx, segments: u32) -> io::Result<()> {
        let has = self.segments();
        if segments < has {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a pool cannot shrink: it has {has} segments, {segments} were asked for"),
            ));
        }
        let bytes = self.layout.pool_bytes(segments);
        if bytes > self.medium.len() {
            self.medium.grow(bytes)?; // P3
        }
        if crate::fault!("pool.growth_unrecorded") {
            self.segments.store(segments, Ordering::Release);
            return Ok(());
        }
        self.update(ctx, |superblock| {
            superblock.segments = superblock.segments.max(u64::from(segments));
        })
        .map_err(io::Error::other)
    }

    fn update(
        &self,
        ctx: &mut PersistCtx,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), Poisoned> {
        let mut current = self.current.lock().expect("no holder panics");
        let mut next = current.clone();
        change(&mut next);
        if next == *current {
            return Ok(());
        }
        // Where numbers end, copy A, which is written first, counts as the newer one.
        next.update = UPDATE_MAX.min(next.update + 1);
        write_copies(&self.medium, ctx, &next, &COPIES)?;
        self.segments.store(next.segments as u32, Ordering::Release);
        *current = next;
        Ok(())
    }
}

impl Superblock {
    fn layout(&self) -> PoolLayout {
        PoolLayout {
            segment_bytes: self.segment_bytes,
        }
    }
}

fn read_copies<M: Medium>(medium: &M) -> [SuperblockCopy; 2] {
    COPIES.map(|at| {
        let mut bytes = [0; BYTES];
        let vouched = |bytes: &[u8]| {
            let bytes = bytes.try_into().expect("as many as were asked for");
            match Superblock::classify(bytes) {
                SuperblockCopy::Valid(_) | SuperblockCopy::Version(_) => BYTES,
                SuperblockCopy::Damaged | SuperblockCopy::Foreign(_) => 0,
            }
        };
        if !medium.copy_out_if(at, &mut bytes, &vouched) {
            // Whatever else is torn or damaged: whose it is matters.
            let mut magic = [0; MAGIC.len()];
            medium.copy_out(at, &mut magic);
            return if magic == MAGIC {
                SuperblockCopy::Damaged
            } else {
                SuperblockCopy::Foreign(magic)
            };
        }
        Superblock::classify(&bytes)
    })
}

/// Writes one copy, waits until it is durable, then the next (P1).
fn write_copies<M: Medium>(
    medium: &M,
    ctx: &mut PersistCtx,
    superblock: &Superblock,
    places: &[Off],
) -> Result<(), Poisoned> {
    let bytes = superblock.to_bytes();
    for &at in places {
        medium.copy_in(ctx, at, &[&bytes]);
        let ticket = medium.drain(ctx);
        medium.settle(ticket)?;
    }
    Ok(())
}

fn new_superblock(
    layout: &PoolLayout,
    bytes: u64,
    identity: PoolIdentity,
) -> Result<Superblock, PoolError> {
    layout.check()?;
    let segments = bytes.saturating_sub(layout.first_segment()) / layout.segment_bytes;
    if segments == 0 || u32::try_from(segments).is_err() {
        return Err(PoolError::Layout(format!(
            "{bytes} bytes make {segments} segments of {} bytes; a pool has from 1 to {} of them, \
             so at least {} bytes",
            layout.segment_bytes,
            u32::MAX,
            layout.pool_bytes(1)
        )));
    }
    Ok(Superblock {
        version: *VERSIONS.start(),
        features: Features::default(),
        id: identity.id,
        segment_bytes: layout.segment_bytes,
        segments,
        created_unix_s: identity.created_unix_s,
        update: 1,
        root: [0; ROOT_WORDS],
        in_use_as: None,
    })
}

/// Whether a pool with this superblock, in `file`, is a copy of one in use (P4).
fn copied(superblock: &Superblock, file: Option<FileId>) -> Option<PoolError> {
    let (recorded, found) = (superblock.in_use_as?, file?);
    (!recorded.may_be(found)).then_some(PoolError::Copy { recorded, found })
}

pub(crate) fn fill_random(mut to: &mut [u8]) -> io::Result<()> {
    use rustix::rand::{GetRandomFlags, getrandom};
    while !to.is_empty() {
        let filled = rustix::io::retry_on_intr(|| getrandom(&mut *to, GetRandomFlags::empty()))?;
        to = &mut to[filled..];
    }
    Ok(())
}

/// Which copies need no repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HealthyCopies {
    Both,
    A,
    B,
}

/// The superblock that counts (P2), and which copies hold it.
fn choose(
    a: &SuperblockCopy,
    b: &SuperblockCopy,
) -> Result<(Superblock, HealthyCopies), PoolError> {
    match (a, b) {
        (SuperblockCopy::Valid(a), SuperblockCopy::Valid(b)) if a == b => {
            Ok((a.clone(), HealthyCopies::Both))
        }
        (SuperblockCopy::Valid(a), SuperblockCopy::Valid(b)) if a.update < b.update => {
            Ok((b.clone(), HealthyCopies::B))
        }
        (SuperblockCopy::Version(v), _) | (_, SuperblockCopy::Version(v)) => {
            Err(PoolError::Unknown(format!(
                "the pool has format version {v}, this program knows versions {} to {} only",
                VERSIONS.start(),
                VERSIONS.end()
            )))
        }
        (SuperblockCopy::Valid(a), _) => Ok((a.clone(), HealthyCopies::A)),
        (_, SuperblockCopy::Valid(b)) => Ok((b.clone(), HealthyCopies::B)),
        (SuperblockCopy::Foreign(found), SuperblockCopy::Foreign(_)) => {
            Err(PoolError::NotAPool(foreign(found)))
        }
        _ => Err(PoolError::NotAPool(
            "both copies of the pool's superblock, at 0 and 4096, are damaged: their checksums do \
             not hold; restore the file from a copy that was made while the pool was closed"
                .into(),
        )),
    }
}

fn foreign(found: &[u8; 8]) -> String {
    match found {
        [0, 0, 0, 0, 0, 0, 0, 0] => "not a pool: it begins with zeros, as after a creation that was \
                                     interrupted; if so, make it again: a file after removing it, a \
                                     device as it is"
            .into(),
        _ => format!(
            "not a pool: it begins with \"{}\", a pool begins with \"{}\"",
            found.escape_ascii(),
            MAGIC.escape_ascii()
        ),
    }
}

/// Checks what a whole copy says before anything is built on it, and how many bytes that takes.
fn check(superblock: &Superblock) -> Result<u64, PoolError> {
    let Features {
        compat: _,
        ro_compat,
        incompat,
    } = superblock.features;
    if incompat != 0 {
        return Err(PoolError::Unknown(format!(
            "the pool uses features this program does not know: incompatible {}",
            bits(incompat)
        )));
    }
    if ro_compat != 0 {
        return Err(PoolError::Unknown(format!(
            "the pool uses features this program does not know and so must not write: read-only \
             compatible {}",
            bits(ro_compat)
        )));
    }
    let layout = superblock.layout();
    let segments = u32::try_from(superblock.segments).ok().filter(|n| *n > 0);
    let Some(segments) = segments.filter(|_| layout.is_sound()) else {
        return Err(PoolError::NotAPool(format!(
            "the superblock makes no sense: {} segments of {} bytes",
            superblock.segments, superblock.segment_bytes
        )));
    };
    Ok(layout.pool_bytes(segments))
}

fn bits(set: u64) -> String {
    let bits = (0..u64::BITS).filter(|bit| set >> bit & 1 == 1);
    bits.map(|bit| format!("bit {bit}"))
        .collect::<Vec<_>>()
        .join(", ")
}
