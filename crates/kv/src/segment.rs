//! Segments: equal pieces of the pool, each with a life of its own.
//!
//! ```text
//!  0                        64                                              n - 64        n
//!  ┌────────────────────────┬─ records, from left to right ─ ... ───────────┬─────────────┐
//!  │ head                   │                                               │ tail        │
//!  └────────────────────────┴───────────────────────────────────────────────┴─────────────┘
//!
//!  head   0 magic  4 crc  8 generation  16 unused      32 opened, 40 opened  48 sealed  56 unused
//!  tail   the first 16 bytes again, with a crc of their own place
//! ```
//!
//! A segment is born *free*: its tail, then its head are written under a generation no segment had
//! before, each drained. That ends its former life: records are checksummed with their generation, so
//! nothing old can be found in it again. Its first batch also writes `opened` (and what for), one drain makes both
//! durable. When all its records are durable, `sealed` says where they end; nobody waits for that
//! word, it leaves the cache when its line does. `opened` is there twice: without it no record could be read.
//!
//! # Invariants
//! S1  Generations only grow, over the whole pool. At any time head or tail is whole, and they agree,
//!     except after a crash while a segment was being reborn, when nothing in either life is needed;
//!     the later one then counts.
//! S2  `opened` is durable before anything in the segment is acknowledged. Not opened: free.
//!     Records are checksummed with the number of the pool's opening, too: what a crash left of a batch
//!     in a segment that was not opened yet counts as nothing when the segment is used later.
//! S3  `sealed` is written after everything before that point was durable. What fails its checksum
//!     there is damage; in an unsealed segment it may be a torn write. A segment that was not opened is
//!     never sealed: its next use would lie beyond an end that was settled already.

use std::cell::Cell;

use crc32c::{crc32c, crc32c_append};
use farbank_pm::fault;
use farbank_pm::model::Category;
use farbank_pm::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use farbank_pm::{LINE, Medium, Off, PersistCtx, WORD};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::record::{HEADER_MAX, RecordHeader, u32_at, u64_at};

/// Where records begin in a segment.
pub(crate) const FIRST: usize = LINE;
/// Bytes of a segment that hold no records.
pub(crate) const OVERHEAD: usize = 2 * LINE;

const MAGIC: u32 = u32::from_le_bytes(*b"FBsg");
const FIXED: usize = 16;
/// More lives than any pool has: a later generation was forged.
const GENERATION_MAX: u64 = 1 << 62;
const OPENED_AT: [usize; 2] = [32, 40];
const SEALED_AT: usize = 48;
/// Openings of the pool are told apart by their low bits.
const BOOT_MASK: u32 = 0xff_ffff;

/// What a segment was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SegmentPurpose {
    /// Records.
    Log = 1,
    /// Bytes of one large value, or members of one large group.
    Extent = 2,
    /// A piece of the index snapshot.
    Snapshot = 3,
}

/// What the head and tail of a segment say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentMeta {
    pub generation: u64,
    /// What it was opened for; `None`: free.
    pub opened: Option<SegmentPurpose>,
    /// The opening of the pool in which it was opened.
    pub boot: u32,
    /// Where its records end, once that is settled.
    pub sealed: Option<usize>,
    /// The copy that fails its checksum, if one does.
    pub damaged: Option<MetaCopy>,
    /// Whether one of the two copies of `opened` was not written, or fails its checksum.
    pub opened_once: bool,
    /// Whether a rebirth stopped half-way: it holds nothing, and must be reborn again.
    pub torn: bool,
    /// Whether the head is all zeros: not yet born, or damaged.
    pub headless: bool,
}

/// One of the two copies of what a segment says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MetaCopy {
    Head,
    Tail,
}

/// Where a segment lies and whose it is: enough to write and read its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPlace {
    pub at: Off,
    pub bytes: usize,
    pub pool: u64,
}

impl SegmentPlace {
    fn tail(&self) -> Off {
        self.at.plus((self.bytes - LINE) as u64)
    }

    fn fixed(&self, at: Off, generation: u64) -> [u8; FIXED] {
        let mut bytes = [0; FIXED];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&generation.to_le_bytes());
        let crc = crc32c_append(self.seed_of(at), &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn seed_of(&self, at: Off) -> u32 {
        xxh3_64_with_seed(&at.0.to_le_bytes(), self.pool) as u32
    }

    /// Writes the tail of a new, free life: the first step of a rebirth, drained before the second.
    pub(crate) fn write_tail<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, generation: u64) {
        let _spending = Category::Allocator.spend();
        let tail = self.fixed(self.tail(), generation);
        m.copy_in(ctx, self.tail(), &[&tail, &[0; LINE - FIXED]]);
    }

    /// Writes the head of a new, free life: the second step, drained before the segment is used.
    pub(crate) fn write_head<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, generation: u64) {
        let _spending = Category::Allocator.spend();
        let head = self.fixed(self.at, generation);
        m.copy_in(ctx, self.at, &[&head, &[0; LINE - FIXED]]);
    }

    /// Flushes the head. A tail needs none: it was durable before its head was written, or the head is
    /// enough.
    pub(crate) fn flush_head<M: Medium>(&self, m: &M, ctx: &mut PersistCtx) {
        m.flush(ctx, self.at, LINE);
    }

    /// Writes a damaged copy of the fixed part, or of `opened`, again. A head is to be flushed after that.
    pub(crate) fn repair<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, life: &SegmentMeta) {
        match life.damaged {
            None => {}
            Some(MetaCopy::Head) => {
                let fixed = self.fixed(self.at, life.generation);
                for at in (0..FIXED).step_by(WORD) {
                    m.store(ctx, self.at.plus(at as u64), u64_at(&fixed, at));
                }
            }
            // Where the device cannot read, it may not be able to write.
            Some(MetaCopy::Tail) if m.unreadable(self.tail(), LINE).is_some() => {}
            Some(MetaCopy::Tail) => self.write_tail(m, ctx, life.generation),
        }
        if let Some(purpose) = life.opened.filter(|_| life.opened_once) {
            self.open(m, ctx, life.generation, life.boot, purpose);
        }
    }

    /// Writes `opened`; it rides on the drain of the first batch (S2).
    pub(crate) fn open<M: Medium>(
        &self,
        m: &M,
        ctx: &mut PersistCtx,
        generation: u64,
        boot: u32,
        purpose: SegmentPurpose,
    ) {
        let _spending = Category::Allocator.spend();
        let word = opened_word(generation, boot, purpose).to_le_bytes();
        m.copy_in(ctx, self.at.plus(OPENED_AT[0] as u64), &[&word, &word]);
    }

    /// Writes `sealed`; everything before `end` must be durable (S3). Nobody waits for this word, and
    /// nothing flushes it: without it an open reads on to where the records end.
    pub(crate) fn seal<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, generation: u64, end: usize) {
        let _spending = Category::Allocator.spend();
        let at = self.at.plus(SEALED_AT as u64);
        m.store(ctx, at, sealed_word(generation, end));
    }

    /// Reads what head and tail say. `None`: both are damaged.
    pub(crate) fn read<M: Medium>(&self, m: &M) -> Option<SegmentMeta> {
        let [from_head, from_tail] = [self.at, self.tail()].map(|at| {
            let decode = |bytes: &[u8]| self.decode(bytes, at);
            checked::<FIXED, _>(m, at, decode)
        });
        let generation = from_head.max(from_tail)?;
        let damaged = match (from_head, from_tail) {
            (None, _) => Some(MetaCopy::Head),
            (_, None) => Some(MetaCopy::Tail),
            _ => None,
        };
        if from_tail > from_head && damaged.is_none() {
            // A rebirth stopped between its steps: the head is of the life before.
            return Some(SegmentMeta {
                generation,
                opened: None,
                boot: 0,
                sealed: None,
                damaged,
                opened_once: false,
                torn: true,
                headless: false,
            });
        }
        let opened = OPENED_AT.map(|at| {
            let decode = |bytes: &[u8]| opened_of(generation, u64_at(bytes, 0));
            checked::<WORD, _>(m, self.at.plus(at as u64), decode)
        });
        let unopened = || m.matches(self.at.plus(OPENED_AT[0] as u64), &[0; 2 * WORD]);
        let (purpose, boot) = match opened[0].or(opened[1]) {
            Some((purpose, boot)) => (Some(purpose), boot),
            // A damaged word is not zero: the segment was opened, most likely for records.
            None => ((!unopened()).then_some(SegmentPurpose::Log), 0),
        };
        let sealed = checked::<WORD, _>(m, self.at.plus(SEALED_AT as u64), |bytes| {
            let word = u64_at(bytes, 0);
            let end = (word as u32) as usize;
            let whole = word != 0 && sealed_word(generation, end) == word;
            (whole && (FIRST..=self.bytes - LINE).contains(&end)).then_some(end)
        });
        Some(SegmentMeta {
            generation,
            opened: purpose,
            sealed,
            boot,
            damaged,
            opened_once: opened[0].is_some() != opened[1].is_some(),
            torn: false,
            headless: from_head.is_none() && self.is_headless(m),
        })
    }

    /// Whether the head is all zeros.
    pub(crate) fn is_headless<M: Medium>(&self, m: &M) -> bool {
        m.matches(self.at, &[0; LINE])
    }

    /// The opening of the pool, up to `boot`, in which the first record of this life was written. For
    /// a segment that has lost its head: nothing else there says so.
    pub(crate) fn opening_of<M: Medium>(&self, m: &M, generation: u64, boot: u64) -> Option<u32> {
        let mut bytes = [0; HEADER_MAX];
        m.copy_out(self.at.plus(FIRST as u64), &mut bytes);
        let openings = (0..=boot.min(u64::from(BOOT_MASK)) as u32).rev();
        let fits = |boot: &u32| {
            let seed = self.record_seed(generation, *boot) ^ FIRST as u32;
            RecordHeader::decode(&bytes, seed).is_some()
        };
        openings.into_iter().find(fits)
    }

    fn decode(&self, bytes: &[u8], at: Off) -> Option<u64> {
        let crc = crc32c_append(self.seed_of(at), &bytes[8..FIXED]);
        let sound = u32_at(bytes, 0) == MAGIC && u32_at(bytes, 4) == crc;
        let generation = u64_at(bytes, 8);
        (sound && generation <= GENERATION_MAX).then_some(generation)
    }

    /// The seed of the head crcs of this life's records, before their place is mixed in. What an
    /// earlier opening of the pool left in a segment whose `opened` never became durable is not
    /// valid under a later one's.
    pub(crate) fn record_seed(&self, generation: u64, boot: u32) -> u32 {
        let boot = if fault!("kv.seed_without_opening") {
            0
        } else {
            boot
        };
        let life = [
            generation.to_le_bytes(),
            u64::from(boot & BOOT_MASK).to_le_bytes(),
        ];
        xxh3_64_with_seed(life.as_flattened(), self.pool ^ self.at.0.rotate_left(32)) as u32
    }
}

/// What `decode` makes of the `N` bytes at `at`, if their checksum holds.
fn checked<const N: usize, R: std::marker::Copy>(
    m: &impl Medium,
    at: Off,
    decode: impl Fn(&[u8]) -> Option<R>,
) -> Option<R> {
    let decoded = Cell::new(None);
    let vouched = |bytes: &[u8]| {
        decoded.set(decode(bytes));
        if decoded.get().is_some() { N } else { 0 }
    };
    let holds = m.copy_out_if(at, &mut [0; N], &vouched);
    decoded.get().filter(|_| holds)
}

fn opened_word(generation: u64, boot: u32, purpose: SegmentPurpose) -> u64 {
    let low = (boot & BOOT_MASK) << 8 | purpose as u32;
    let crc = crc32c_append(crc32c(&generation.to_le_bytes()), &low.to_le_bytes());
    u64::from(crc) << 32 | u64::from(low)
}

/// What a copy of `opened` says, if it was written in this life and is whole.
fn opened_of(generation: u64, word: u64) -> Option<(SegmentPurpose, u32)> {
    let boot = (word >> 8) as u32 & BOOT_MASK;
    let purpose = [
        SegmentPurpose::Log,
        SegmentPurpose::Extent,
        SegmentPurpose::Snapshot,
    ]
    .into_iter()
    .find(|p| opened_word(generation, boot, *p) == word)?;
    Some((purpose, boot))
}

fn sealed_word(generation: u64, end: usize) -> u64 {
    let end = (end as u32).to_le_bytes();
    u64::from(crc32c_append(crc32c(&generation.to_le_bytes()), &end)) << 32
        | u64::from(u32::from_le_bytes(end))
}

/// What a segment is doing now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SegmentState {
    /// Reborn, waiting to be opened.
    Free = 0,
    /// Some context, or the cleaner, appends to it.
    Open = 1,
    /// Full; holds records.
    Sealed = 2,
    /// The cleaner is emptying it.
    Cleaning = 3,
    /// Emptied; some reader may still look at it.
    Limbo = 4,
    /// Holds bytes of a large value or group.
    Extent = 5,
    /// Holds records of a large group.
    Members = 6,
    /// Damaged: left alone.
    Quarantined = 7,
}

farbank_pm::zeroed! {
    /// What DRAM knows of a segment. All-zero is a free segment without a life.
    #[repr(C, align(64))]
    pub(crate) struct SegmentInfo {
        pub generation: AtomicU64,
        /// Stamp of the log's clock when it was opened: what a tombstone's fence is compared with.
        pub opened: AtomicU64,
        /// When its bytes were written, on average, in appended bytes of the whole log.
        pub born: AtomicU64,
        /// No expiry in it is earlier than this (0: nothing in it expires).
        pub expires_ms: AtomicU64,
        /// Records the index points at: bytes in the low half, how many in the high half.
        live: AtomicU64,
        pub seed: AtomicU32,
        /// Bytes of its tombstones that were once a key's newest record; those that were copied out of it, too.
        pub tombs: AtomicU32,
        /// Where its records end.
        pub used: AtomicU32,
        /// Whether its end is still to be written down: its last records may be unpublished, and it cannot
        /// be cleaned before.
        pub unsettled: AtomicU32,
        /// Records of large groups: their members lie in extents and leave with them.
        pub groups: AtomicU32,
        state: AtomicU8,
        /// Times it was cleaned and live records remained.
        pub failures: AtomicU8,
        unused: [u8; 2],
    }
}

impl SegmentInfo {
    pub(crate) fn state(&self) -> SegmentState {
        match self.state.load(Ordering::Acquire) {
            0 => SegmentState::Free,
            1 => SegmentState::Open,
            2 => SegmentState::Sealed,
            3 => SegmentState::Cleaning,
            4 => SegmentState::Limbo,
            5 => SegmentState::Extent,
            6 => SegmentState::Members,
            _ => SegmentState::Quarantined,
        }
    }

    pub(crate) fn set_state(&self, state: SegmentState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Moves from one state to another; false if it was in a third.
    pub(crate) fn turn(&self, from: SegmentState, to: SegmentState) -> bool {
        self.state
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Counts a record that the index points at from now on.
    pub(crate) fn mark_live(&self, bytes: u32) {
        self.live
            .fetch_add(1 << 32 | u64::from(bytes), Ordering::Relaxed);
    }

    /// Counts a record that the index no longer points at. A damaged header hides its length: bytes
    /// are left over then.
    pub(crate) fn mark_dead(&self, bytes: u32) {
        self.live
            .fetch_sub(1 << 32 | u64::from(bytes), Ordering::Relaxed);
    }

    /// Bytes of the records the index points at.
    pub(crate) fn live_bytes(&self) -> u32 {
        self.live.load(Ordering::Relaxed) as u32
    }

    /// Bytes of a large value that an extent has.
    pub(crate) fn extent_bytes(&self) -> i64 {
        i64::from(self.used.load(Ordering::Relaxed)) - FIRST as i64
    }

    /// Whether it is an extent of a large group whose members have all been replaced.
    pub(crate) fn is_dead_extent(&self) -> bool {
        self.state() == SegmentState::Members && self.live_records() == 0
    }

    /// How many records the index points at.
    pub(crate) fn live_records(&self) -> u32 {
        (self.live.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Counts so many records, of so many bytes.
    pub(crate) fn set_live(&self, records: u32, bytes: u32) {
        self.live.store(
            u64::from(records) << 32 | u64::from(bytes),
            Ordering::Relaxed,
        );
    }

    /// Counts no record any more. Returns the bytes that were counted.
    pub(crate) fn forget_live(&self) -> u32 {
        self.live.swap(0, Ordering::Relaxed) as u32
    }

    /// Forgets its former life.
    pub(crate) fn reset(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        for counter in [&self.tombs, &self.used, &self.unsettled, &self.groups] {
            counter.store(0, Ordering::Relaxed);
        }
        self.live.store(0, Ordering::Relaxed);
        self.expires_ms.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.born.store(0, Ordering::Relaxed);
    }
}
