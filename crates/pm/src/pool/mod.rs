//! A pool: a medium with a superblock, divided into equal segments.
//!
//! ```text
//!   0        4096      8192        first segment               the end
//!   ┌────────┬─────────┬─ unused ─┬───────────┬───────────┬─ ... ─┐
//!   │ copy A │ copy B  │          │ segment 0 │ segment 1 │       │
//!   └────────┴─────────┴──────────┴───────────┴───────────┴─ ... ─┘
//! ```
//!
//! A copy of the superblock is the first 512 bytes of its page: one sector, which a power cut never
//! tears on a file. On persistent memory a power cut can tear it; its checksum detects that. The first
//! segment starts at 8192 rounded up to the smaller of a segment and 2 MiB, so that segments fit huge pages.
//!
//! # Invariants
//! PM-POOL-1  An update of the superblock writes copy A, drains and waits, then copy B, drains and waits.
//!     Between updates both copies are equal, so one damaged copy loses nothing.
//! PM-POOL-2  Of two valid copies, the one with the higher update number is the current one. A crash between
//!     the two writes leaves the newer, intact copy in A.
//! PM-POOL-3  The medium is at least as long as the superblock records: it grows, durably, before the
//!     superblock records the new length.
//! PM-POOL-4  From before the first write after an open to after the last write of a clean close, the superblock
//!     records the identity of the file. So `open` recognises a copy of the file that was made in this
//!     time or after a crash. Such a copy may mix older and newer parts: see [`CopiedPoolPolicy`].
//!
//! # Crash argument
//! | crash between                | `open` sees                    | and does                       |
//! |------------------------------|--------------------------------|--------------------------------|
//! | `create`, A durable          | no magic, or a damaged A       | refuses: no pool existed yet   |
//! | update: start, A durable     | A old, new or damaged; B old   | takes the newer; writes both   |
//! | update: A durable, B durable | A new; B old, new or damaged   | takes A; writes both           |
//! | grow: medium, superblock     | a medium longer than recorded  | ignores the excess (PM-POOL-3)        |
//!
//! `open` first writes the copy it takes again, waits, and then writes the other copy. If both copies are
//! equal, it writes only B again: one copy was durable before the other was written. If that was A, a
//! killed process may not have waited for B, and the next update overwrites A first. So the accepted
//! superblock is durable before any write depends on it, also after a crash of only the process.

mod pool_error;
mod superblock;

use std::fmt;
use std::io;
use std::time::SystemTime;

pub use pool_error::PoolError;
use superblock::{
    BYTES, Features, MAGIC, SWAPPED_DATABASES, Superblock, SuperblockCopy, UPDATE_MAX, VERSIONS,
};

use crate::corruption::Corruption;
use crate::key_hash::KeyHash;
use crate::medium::{FileId, Medium, Off, Poisoned};
use crate::persist_ctx::PersistCtx;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, lock};

/// Words of the superblock that belong to the storage engine, which documents their meaning.
pub const ROOT_WORDS: usize = 40;

/// The engine's words of the superblock. [`Pool::set_root`] replaces all of them at once.
pub type PoolRoot = [u64; ROOT_WORDS];

/// Smallest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;
/// Largest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

const COPY_A: Off = Off(0);
const COPY_B: Off = Off(4096);
/// End of the two pages of the superblock, in bytes.
pub(crate) const HEAD_BYTES: u64 = 8192;
/// Most bytes by which a pool grows at once, rounded to whole segments, at least one. All of them are
/// written and synced: 5 to 10 ms in memory, a few tens of ms on a disk. Other syncs of the file and
/// updates of the superblock wait for that.
pub const GROWTH_STEP_BYTES: u64 = 16 << 20;
/// Largest alignment of the first segment, in bytes: a huge page.
const HUGE: u64 = 2 << 20;

/// Offsets of the copies of the superblock.
pub const COPIES: [Off; 2] = [COPY_A, COPY_B];
/// Bytes in a copy.
pub const COPY_BYTES: usize = BYTES;

/// Returns the length in bytes of the pool with these superblock copies, if they are valid.
pub(crate) fn recorded_bytes(copies: &[[u8; COPY_BYTES]; 2]) -> Option<u64> {
    let [a, b] = copies.each_ref().map(Superblock::classify);
    let (superblock, _) = choose(&a, &b).ok()?;
    check(&superblock).ok()
}

/// The contents of a superblock, for display.
#[derive(Clone, Debug)]
pub struct PoolSummary {
    /// Format version.
    pub version: u32,
    /// Bytes in a segment.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: u32,
    /// Bytes of the medium that the pool takes.
    pub pool_bytes: u64,
    /// Creation time of the pool, in seconds of Unix time.
    pub created_unix_s: u64,
    /// Whether one of the two copies is damaged or older. The next open repairs it.
    pub needs_repair: bool,
    /// The engine's words.
    pub root: PoolRoot,
    /// The file in which the pool is open, or was open at the last crash. `None` after a clean close.
    pub in_use_as: Option<FileId>,
}

/// How to open a copy of a pool that was in use: a pool that was not closed cleanly and is in another file
/// than the one it was open in. Such a copy may mix older and newer parts, so that acknowledged keys are
/// missing, and no other check detects that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopiedPoolPolicy {
    /// Refuse it with [`PoolError::Copy`].
    #[default]
    Refuse,
    /// Open it. From then on it is an ordinary pool.
    Accept,
    /// Open it for inspection. It stays marked as a copy, so the next open refuses it.
    Inspect,
}

/// Decodes two copies of a superblock: the first [`COPY_BYTES`] bytes of the pages at [`COPIES`].
/// Changes nothing and needs no lock.
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
        needs_repair: healthy != HealthyCopies::Both,
        root: superblock.root,
        in_use_as: superblock.in_use_as,
    })
}

/// Returns whether a file with these first bytes begins as a pool does.
pub(crate) fn begins_as_pool(bytes: &[u8; 8]) -> bool {
    *bytes == MAGIC
}

/// Returns whether `medium` has a pool, intact or damaged: a copy of the superblock with the right magic.
pub(crate) fn is_pool<M: Medium>(medium: &M) -> bool {
    medium.len() >= HEAD_BYTES
        && read_copies(medium)
            .iter()
            .any(|copy| !matches!(copy, SuperblockCopy::Foreign(_)))
}

/// The layout of a pool.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    /// Bytes in a segment: a power of two from 4 KiB to 1 GiB.
    pub segment_bytes: u64,
}

impl PoolLayout {
    /// Returns the offset of the first segment, in bytes.
    #[must_use]
    pub const fn first_segment(&self) -> u64 {
        let align = if self.segment_bytes < HUGE {
            self.segment_bytes
        } else {
            HUGE
        };
        HEAD_BYTES.next_multiple_of(align)
    }

    /// Returns the bytes a medium must have to hold `segments` segments.
    #[must_use]
    pub const fn pool_bytes(&self, segments: u32) -> u64 {
        self.first_segment() + segments as u64 * self.segment_bytes
    }

    /// Checks that a pool can have segments of this size.
    ///
    /// # Errors
    /// [`PoolError::Layout`] if it cannot.
    pub fn check(&self) -> Result<(), PoolError> {
        if self.is_sound() {
            return Ok(());
        }
        Err(PoolError::Layout(format!(
            "the segment size is {} bytes, but it must be a power of two from {SEGMENT_BYTES_MIN} to \
             {SEGMENT_BYTES_MAX} bytes",
            self.segment_bytes
        )))
    }

    fn is_sound(&self) -> bool {
        self.segment_bytes.is_power_of_two()
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
    }
}

/// The identity of a new pool. It is the only part of a pool that depends on randomness or on the time.
#[derive(Clone, Copy)]
pub struct PoolIdentity {
    /// Secret, random bytes: see [`Pool::id`].
    pub id: [u8; 16],
    /// Creation time of the pool, in seconds of Unix time.
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
    /// Returns a new random identity with the current time.
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

/// A medium with a superblock.
pub struct Pool<M> {
    medium: M,
    version: u32,
    layout: PoolLayout,
    id: [u8; 16],
    created_unix_s: u64,
    segments: AtomicU32,
    copied_pool_policy: CopiedPoolPolicy,
    /// The contents of both copies on the medium. Locked during an update, so that updates are serial.
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
    /// Creates an empty pool on `medium` with as many whole segments as fit, and overwrites the superblock
    /// of any existing pool. Durable on `Ok`.
    pub fn create(
        medium: M,
        ctx: &mut PersistCtx,
        layout: &PoolLayout,
    ) -> Result<Pool<M>, PoolError> {
        let identity = PoolIdentity::fresh().map_err(PoolError::Random)?;
        Pool::create_as(medium, ctx, layout, identity)
    }

    /// Creates a pool as [`Pool::create`] does, with a given identity: for media on which the same calls
    /// must produce the same bytes.
    pub fn create_as(
        medium: M,
        ctx: &mut PersistCtx,
        layout: &PoolLayout,
        identity: PoolIdentity,
    ) -> Result<Pool<M>, PoolError> {
        Pool::create_with_root(medium, ctx, layout, identity, &[0; ROOT_WORDS])
    }

    /// Creates a pool as [`Pool::create_as`] does, in a given format version. An engine that uses more of the
    /// format than version 1 defines needs a later one.
    ///
    /// # Panics
    /// If this program does not support the version.
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

    /// Creates a pool as [`Pool::create_as`] does, with the engine's words. The pool never exists without
    /// them, so the data that they refer to must already be durable.
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
        superblock.in_use_as = medium.file_id(); // PM-POOL-4
        write_copies(&medium, ctx, &superblock, &COPIES)?;
        Ok(Pool::from_superblock(
            medium,
            superblock,
            CopiedPoolPolicy::Refuse,
        ))
    }

    /// Opens the pool on `medium`, and repairs a damaged or older superblock copy from the other. On `Ok` the
    /// superblock is durable. A copy of a pool in use is refused.
    pub fn open(medium: M, ctx: &mut PersistCtx) -> Result<Pool<M>, PoolError> {
        Pool::open_with(medium, ctx, CopiedPoolPolicy::Refuse)
    }

    /// Opens the pool as [`Pool::open`] does; `copies` is the policy for a copy of a pool in use.
    pub fn open_with(
        medium: M,
        ctx: &mut PersistCtx,
        copies: CopiedPoolPolicy,
    ) -> Result<Pool<M>, PoolError> {
        if medium.len() < HEAD_BYTES {
            return Err(PoolError::NotAPool(format!(
                "not a pool: it has {} bytes, fewer than a superblock",
                medium.len()
            )));
        }
        let [a, b] = read_copies(&medium);
        let (superblock, healthy) = choose(&a, &b)?;
        let (recorded, found) = (check(&superblock)?, medium.len());
        if recorded > found {
            return Err(PoolError::Short { recorded, found });
        }
        let copies = match check_not_a_copy(&superblock, medium.file_id()) {
            Some(error) if copies == CopiedPoolPolicy::Refuse => return Err(error),
            None if copies == CopiedPoolPolicy::Inspect => CopiedPoolPolicy::Refuse, // It is not a copy.
            _ => copies,
        };
        match healthy {
            HealthyCopies::Both => write_copies(&medium, ctx, &superblock, &[COPY_B])?,
            // The current copy comes first: it may not be durable yet.
            HealthyCopies::A => write_copies(&medium, ctx, &superblock, &COPIES)?,
            HealthyCopies::B => write_copies(&medium, ctx, &superblock, &[COPY_B, COPY_A])?,
        }
        let pool = Pool::from_superblock(medium, superblock, copies);
        pool.record_in_use(ctx, true)?;
        Ok(pool)
    }

    fn from_superblock(medium: M, superblock: Superblock, copies: CopiedPoolPolicy) -> Pool<M> {
        Pool {
            copied_pool_policy: copies,
            medium,
            version: superblock.version,
            layout: superblock.layout(),
            id: superblock.id,
            created_unix_s: superblock.created_unix_s,
            segments: AtomicU32::new(superblock.segments as u32),
            current: Mutex::new(superblock),
        }
    }

    /// Returns the format version, which the pool keeps from its creation.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Returns the medium and drops the pool. Does not record a clean close: see [`Pool::record_clean_close`].
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// Returns the secret, random id of the pool. Its knowledge allows forging records, so never print it.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Returns the keyed hash function for keys that clients choose. It is the same in every open of the pool.
    pub fn key_hash(&self) -> KeyHash {
        KeyHash::of_pool(&self.id)
    }

    /// Returns a secret seed for keyed hashing for `purpose`. It is the same in every open of the pool.
    pub fn seed(&self, purpose: &str) -> u64 {
        let key = xxhash_rust::xxh3::xxh3_64(purpose.as_bytes());
        xxhash_rust::xxh3::xxh3_64_with_seed(&self.id, key)
    }

    /// Returns the creation time of the pool, in seconds of Unix time.
    pub fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }

    /// Returns the bytes in a segment.
    #[inline]
    pub fn segment_bytes(&self) -> u64 {
        self.layout.segment_bytes
    }

    /// Returns the current number of segments.
    #[inline]
    pub fn segments(&self) -> u32 {
        self.segments.load(Ordering::Acquire)
    }

    /// Returns the offset of segment `index`. An index not below [`Pool::segments`] gives an offset outside
    /// the pool.
    #[inline]
    pub fn segment(&self, index: u32) -> Off {
        Off(self.layout.pool_bytes(index))
    }

    /// Returns the engine's words, as last set or as created.
    pub fn root(&self) -> PoolRoot {
        lock(&self.current).root
    }

    /// Replaces the engine's words. Durable in both copies on `Ok`. Updates by several threads are serial.
    pub fn set_root(&self, ctx: &mut PersistCtx, root: &PoolRoot) -> Result<(), Poisoned> {
        self.update(ctx, |superblock| superblock.root = *root)
    }

    /// As [`Pool::set_root`], for an engine whose words have a mapping of the databases' numbers. With `has_swapped`, that
    /// mapping is not the identity, and programs that do not know it refuse the pool.
    pub fn set_root_of_databases(
        &self,
        ctx: &mut PersistCtx,
        root: &PoolRoot,
        has_swapped: bool,
    ) -> Result<(), Poisoned> {
        self.update(ctx, |superblock| {
            superblock.root = *root;
            superblock.features.incompat = match has_swapped {
                true => SWAPPED_DATABASES,
                false => 0,
            };
        })
    }

    /// Returns whether this is a copy of a pool in use, opened with [`CopiedPoolPolicy::Inspect`].
    pub fn is_copy(&self) -> bool {
        self.copied_pool_policy == CopiedPoolPolicy::Inspect
    }

    /// Records a clean close, durably on `Ok`. The caller writes no more until the pool is opened again.
    /// From now on copies of the file are complete pools (PM-POOL-4).
    pub fn record_clean_close(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        self.record_in_use(ctx, false)
    }

    /// Records that the pool is in use in its file, or that it is not in use. Has no effect on a copy that
    /// is only inspected.
    fn record_in_use(&self, ctx: &mut PersistCtx, in_use: bool) -> Result<(), Poisoned> {
        if self.is_copy() {
            return Ok(());
        }
        let file = self.medium.file_id().filter(|_| in_use);
        self.update(ctx, |superblock| superblock.in_use_as = file)
    }

    /// Returns the number of segments that fit in `bytes` of the medium, at least the current number.
    pub fn segments_within(&self, bytes: u64) -> u32 {
        let room = bytes.saturating_sub(self.segment(0).0);
        let segments = u32::try_from(room / self.segment_bytes()).unwrap_or(u32::MAX);
        segments.max(self.segments())
    }

    /// Returns the number of segments after the next growth step, at most `most`. A step is a quarter of the
    /// segments, at least 16, but at most [`GROWTH_STEP_BYTES`].
    pub fn segments_next(&self, most: u32) -> u32 {
        let before = self.segments();
        let step_max = (GROWTH_STEP_BYTES / self.segment_bytes()).max(1);
        let step = u64::from((before / 4).max(16)).min(step_max) as u32;
        before.saturating_add(step).min(most)
    }

    /// Grows the medium to hold `segments` segments, then records the number. Durable on `Ok`. On an error
    /// the number of segments is unchanged. A number below the current one is an error.
    pub fn grow(&self, ctx: &mut PersistCtx, segments: u32) -> io::Result<()> {
        let has = self.segments();
        if segments < has {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a pool cannot shrink: it has {has} segments, and {segments} were requested"
                ),
            ));
        }
        let bytes = self.layout.pool_bytes(segments);
        if bytes > self.medium.len() {
            self.medium.grow(bytes)?; // PM-POOL-3
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
        let mut current = lock(&self.current);
        let mut next = current.clone();
        change(&mut next);
        if next == *current {
            return Ok(());
        }
        // If both copies have the highest number, `choose` takes copy A, which is written first.
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
            let bytes = bytes.try_into().expect("a whole copy");
            match Superblock::classify(bytes) {
                SuperblockCopy::Valid(_) | SuperblockCopy::Version(_) => BYTES,
                SuperblockCopy::Damaged | SuperblockCopy::Foreign(_) => 0,
            }
        };
        if !medium.copy_out_if(at, &mut bytes, &vouched) {
            // The copy is torn or damaged. Its magic decides whether it is a pool at all.
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

/// Writes one copy, waits until it is durable, then the next (PM-POOL-1).
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
        medium.wait_until_durable(ticket)?;
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
            "{bytes} bytes hold {segments} segments of {} bytes, but a pool has from 1 to {} segments \
             and so at least {} bytes",
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

/// Returns the error for a pool with this superblock in `file` if it is a copy of a pool in use (PM-POOL-4).
fn check_not_a_copy(superblock: &Superblock, file: Option<FileId>) -> Option<PoolError> {
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

/// Returns the current superblock (PM-POOL-2), and the copies that hold it.
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
                "the pool has format version {v}, but this program supports only versions {} to {}",
                VERSIONS.start(),
                VERSIONS.end()
            )))
        }
        (SuperblockCopy::Valid(a), _) => Ok((a.clone(), HealthyCopies::A)),
        (_, SuperblockCopy::Valid(b)) => Ok((b.clone(), HealthyCopies::B)),
        (SuperblockCopy::Foreign(found), SuperblockCopy::Foreign(_)) => {
            Err(PoolError::NotAPool(foreign(found)))
        }
        _ => Err(PoolError::Damaged(Corruption {
            what: "both copies of the superblock, the first".into(),
            at: COPY_A,
            expected: "the XXH3-128 of their first 496 bytes".into(),
            found: "wrong checksums".into(),
        })),
    }
}

fn foreign(found: &[u8; 8]) -> String {
    match found {
        [0, 0, 0, 0, 0, 0, 0, 0] => "not a pool: it begins with zeros, as after an interrupted \
                                     creation; if so, create the pool again: remove a file first, \
                                     leave a device as it is"
            .into(),
        _ => format!(
            "not a pool: it begins with \"{}\", but a pool begins with \"{}\"",
            found.escape_ascii(),
            MAGIC.escape_ascii()
        ),
    }
}

/// Checks the fields of an intact superblock, and returns the length of the pool in bytes.
fn check(superblock: &Superblock) -> Result<u64, PoolError> {
    let Features {
        compat: _,
        ro_compat,
        incompat,
    } = superblock.features;
    let unknown = incompat & !SWAPPED_DATABASES;
    if unknown != 0 {
        return Err(PoolError::Unknown(format!(
            "the pool uses features that this program does not support: incompatible {}",
            bits(unknown)
        )));
    }
    if ro_compat != 0 {
        return Err(PoolError::Unknown(format!(
            "the pool uses features that this program does not support, so it must not write the pool: \
             read-only compatible {}",
            bits(ro_compat)
        )));
    }
    let layout = superblock.layout();
    let segments = u32::try_from(superblock.segments).ok().filter(|n| *n > 0);
    let Some(segments) = segments.filter(|_| layout.is_sound()) else {
        return Err(PoolError::Damaged(Corruption {
            what: "the superblock".into(),
            at: COPY_A,
            expected: format!(
                "1 to {} segments, each of a power of two from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes",
                u32::MAX
            )
            .into(),
            found: format!(
                "{} segments of {} bytes",
                superblock.segments, superblock.segment_bytes
            )
            .into(),
        }));
    };
    Ok(layout.pool_bytes(segments))
}

fn bits(set: u64) -> String {
    let bits = (0..u64::BITS).filter(|bit| set >> bit & 1 == 1);
    bits.map(|bit| format!("bit {bit}"))
        .collect::<Vec<_>>()
        .join(", ")
}
