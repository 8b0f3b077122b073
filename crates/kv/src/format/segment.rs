//! Segments: the equal pieces of a pool that are allocated, filled and recycled as a whole.
//!
//! ```text
//!  0                        64                                              n - 64        n
//!  ┌────────────────────────┬─ records, from left to right ─ ... ───────────┬─────────────┐
//!  │ head                   │                                               │ tail        │
//!  └────────────────────────┴───────────────────────────────────────────────┴─────────────┘
//!
//!  head   0 magic  4 crc  8 generation  16 unused      32 opened, 40 opened  48 sealed  56 unused
//!  tail   the first 16 bytes of the head again, with a crc for the tail's offset
//! ```
//!
//! A segment is initialised as *free*: its tail and then its head are written with a new generation, and each is
//! drained. That ends the earlier generation. The checksums of records include the generation, so no earlier record
//! is valid any more. The first batch in a segment also writes `opened`, with the segment's purpose; one drain makes
//! both durable. When all records of a full segment are durable, `sealed` is written with the end of the records.
//! No thread waits for that word: it reaches the medium when its line leaves the cache. `opened` has two copies,
//! because no record can be read without it.
//!
//! # Invariants
//! KV-SEG-1  Generations only grow, over the whole pool. At any time the head or the tail is valid. Both have the same
//!     generation, except after a crash while the segment was recycled. Then no record of either generation is
//!     needed, and the higher generation counts.
//! KV-SEG-2  `opened` is durable before any record in the segment is acknowledged. A segment that is not opened is free.
//!     The checksums of records include the open epoch, too. So if a crash leaves parts of a batch in a segment that
//!     was not opened yet, they are invalid when the segment is used later.
//! KV-SEG-3  `sealed` is written when everything before the end that it gives is durable. Bytes before that end that fail
//!     their checksum are damage; in an unsealed segment they may be a torn write. A segment that was not opened is
//!     never sealed: its next records would lie beyond an end that is final.

use std::cell::Cell;

use crc32c::{crc32c, crc32c_append};
use farbank_pm::fault;
use farbank_pm::model::Category;
use farbank_pm::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use farbank_pm::{LINE, Medium, Off, PersistCtx, WORD};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::record::{HEADER_MAX, RecordHeader, u32_at, u64_at};

/// Offset of the first record in a segment.
pub(crate) const FIRST: usize = LINE;
/// Bytes of a segment that hold no records.
pub(crate) const OVERHEAD: usize = 2 * LINE;

const MAGIC: u32 = u32::from_le_bytes(*b"FBsg");
const FIXED: usize = 16;
/// Highest generation that is valid. No pool reaches it, so a higher one was forged.
const GENERATION_MAX: u64 = 1 << 62;
const OPENED_AT: [usize; 2] = [32, 40];
const SEALED_AT: usize = 48;
/// Bits of the open epoch that a segment stores.
const OPEN_EPOCH_MASK: u32 = 0xff_ffff;

/// Purpose that a segment was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SegmentPurpose {
    /// Records.
    Log = 1,
    /// Bytes of one large value, or members of one large group.
    Extent = 2,
    /// A piece of the index snapshot or of a checkpoint of the index.
    Snapshot = 3,
}

/// Content of the head and tail of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentMeta {
    pub generation: u64,
    /// Purpose of the segment; `None`: free.
    pub opened: Option<SegmentPurpose>,
    /// The open epoch in which it was opened.
    pub open_epoch: u32,
    /// End of its records, if the segment is sealed.
    pub sealed: Option<usize>,
    /// The copy that fails its checksum, if one does.
    pub damaged: Option<MetaCopy>,
    /// Whether only one of the two copies of `opened` is valid.
    pub has_one_valid_opened: bool,
    /// Whether a crash interrupted recycling: the segment holds nothing, and must be recycled again.
    pub is_recycling_interrupted: bool,
    /// Whether the head is invalid and all zeros: not yet initialised, or damaged.
    pub is_head_zero: bool,
}

/// One of the two copies of a segment's magic and generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MetaCopy {
    Head,
    Tail,
}

/// Location of a segment, and the key of its pool: enough to write and read its head.
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

    /// Writes the tail of a free segment with a new `generation`: the first step of recycling, drained before the
    /// second.
    pub(crate) fn write_tail<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, generation: u64) {
        let _spending = Category::Allocator.scope();
        let tail = self.fixed(self.tail(), generation);
        m.copy_in(ctx, self.tail(), &[&tail, &[0; LINE - FIXED]]);
    }

    /// Writes the head of a free segment with a new `generation`: the second step of recycling, drained before the
    /// segment is used.
    pub(crate) fn write_head<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, generation: u64) {
        let _spending = Category::Allocator.scope();
        let head = self.fixed(self.at, generation);
        m.copy_in(ctx, self.at, &[&head, &[0; LINE - FIXED]]);
    }

    /// Flushes the head. The tail needs no flush: either it was durable before the head was written, or the head is
    /// enough.
    pub(crate) fn flush_head<M: Medium>(&self, m: &M, ctx: &mut PersistCtx) {
        m.flush(ctx, self.at, LINE);
    }

    /// Rewrites the copy of the generation or of `opened` that is damaged, from the valid copy. The caller flushes the
    /// head after that.
    pub(crate) fn repair<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, meta: &SegmentMeta) {
        match meta.damaged {
            None => {}
            Some(MetaCopy::Head) => {
                let fixed = self.fixed(self.at, meta.generation);
                for at in (0..FIXED).step_by(WORD) {
                    m.store(ctx, self.at.plus(at as u64), u64_at(&fixed, at));
                }
            }
            // A device may fail to write a line that it cannot read.
            Some(MetaCopy::Tail) if m.unreadable(self.tail(), LINE).is_some() => {}
            Some(MetaCopy::Tail) => self.write_tail(m, ctx, meta.generation),
        }
        if let Some(purpose) = meta.opened.filter(|_| meta.has_one_valid_opened) {
            self.open(m, ctx, meta.generation, meta.open_epoch, purpose);
        }
    }

    /// Writes `opened`. The drain of the segment's first batch makes it durable (KV-SEG-2).
    pub(crate) fn open<M: Medium>(
        &self,
        m: &M,
        ctx: &mut PersistCtx,
        generation: u64,
        open_epoch: u32,
        purpose: SegmentPurpose,
    ) {
        let _spending = Category::Allocator.scope();
        let word = opened_word(generation, open_epoch, purpose).to_le_bytes();
        m.copy_in(ctx, self.at.plus(OPENED_AT[0] as u64), &[&word, &word]);
    }

    /// Writes `sealed`; everything before `end` must be durable (KV-SEG-3). This word is not flushed, and no thread waits
    /// for it: without it an open scans to the end of the segment.
    pub(crate) fn seal<M: Medium>(&self, m: &M, ctx: &mut PersistCtx, generation: u64, end: usize) {
        let _spending = Category::Allocator.scope();
        let at = self.at.plus(SEALED_AT as u64);
        m.store(ctx, at, sealed_word(generation, end));
    }

    /// Reads the head and the tail. `None`: both are invalid.
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
            // Recycling was interrupted between its steps: the head has the earlier generation.
            return Some(SegmentMeta {
                generation,
                opened: None,
                open_epoch: 0,
                sealed: None,
                damaged,
                has_one_valid_opened: false,
                is_recycling_interrupted: true,
                is_head_zero: false,
            });
        }
        let opened = OPENED_AT.map(|at| {
            let decode = |bytes: &[u8]| opened_of(generation, u64_at(bytes, 0));
            checked::<WORD, _>(m, self.at.plus(at as u64), decode)
        });
        let unopened = || m.matches(self.at.plus(OPENED_AT[0] as u64), &[0; 2 * WORD]);
        let (purpose, open_epoch) = match opened[0].or(opened[1]) {
            Some((purpose, open_epoch)) => (Some(purpose), open_epoch),
            // A damaged word is not zero: the segment was opened, and most segments are opened for records.
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
            open_epoch,
            damaged,
            has_one_valid_opened: opened[0].is_some() != opened[1].is_some(),
            is_recycling_interrupted: false,
            is_head_zero: from_head.is_none() && self.is_headless(m),
        })
    }

    /// Whether the head is all zeros.
    pub(crate) fn is_headless<M: Medium>(&self, m: &M) -> bool {
        m.matches(self.at, &[0; LINE])
    }

    /// Returns the open epoch, `open_epoch` at most, in which the first record of `generation` was written. `None` if the
    /// record fits none. For a segment that has lost its head, the only other place with the open epoch.
    pub(crate) fn find_open_epoch<M: Medium>(
        &self,
        m: &M,
        generation: u64,
        open_epoch: u64,
    ) -> Option<u32> {
        let mut bytes = [0; HEADER_MAX];
        m.copy_out(self.at.plus(FIRST as u64), &mut bytes);
        let openings = (0..=open_epoch.min(u64::from(OPEN_EPOCH_MASK)) as u32).rev();
        let fits = |open_epoch: &u32| {
            let seed = self.record_seed(generation, *open_epoch) ^ FIRST as u32;
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

    /// Returns the seed of the head crcs of records of `generation`, before a record's own offset is mixed in. The seed
    /// includes the open epoch. So if `opened` of a segment never became durable, records of that open epoch
    /// are invalid in a later one.
    pub(crate) fn record_seed(&self, generation: u64, open_epoch: u32) -> u32 {
        let open_epoch = if fault!("kv.seed_without_opening") {
            0
        } else {
            open_epoch
        };
        let words = [
            generation.to_le_bytes(),
            u64::from(open_epoch & OPEN_EPOCH_MASK).to_le_bytes(),
        ];
        xxh3_64_with_seed(words.as_flattened(), self.pool ^ self.at.0.rotate_left(32)) as u32
    }
}

/// Decodes the `N` bytes at `at`. `None` if `decode` finds their checksum wrong.
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

fn opened_word(generation: u64, open_epoch: u32, purpose: SegmentPurpose) -> u64 {
    let low = (open_epoch & OPEN_EPOCH_MASK) << 8 | purpose as u32;
    let crc = crc32c_append(crc32c(&generation.to_le_bytes()), &low.to_le_bytes());
    u64::from(crc) << 32 | u64::from(low)
}

/// Decodes a copy of `opened`. `None` if its checksum for `generation` does not hold.
fn opened_of(generation: u64, word: u64) -> Option<(SegmentPurpose, u32)> {
    let open_epoch = (word >> 8) as u32 & OPEN_EPOCH_MASK;
    let purpose = [
        SegmentPurpose::Log,
        SegmentPurpose::Extent,
        SegmentPurpose::Snapshot,
    ]
    .into_iter()
    .find(|p| opened_word(generation, open_epoch, *p) == word)?;
    Some((purpose, open_epoch))
}

fn sealed_word(generation: u64, end: usize) -> u64 {
    let end = (end as u32).to_le_bytes();
    u64::from(crc32c_append(crc32c(&generation.to_le_bytes()), &end)) << 32
        | u64::from(u32::from_le_bytes(end))
}

/// Number of classes of expected lifetime.
pub(crate) const CLASSES: usize = 4;

/// State of a segment, in DRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SegmentState {
    /// Initialised or recycled, and not opened.
    Free = 0,
    /// A session or the cleaner appends to it.
    Open = 1,
    /// Full; holds records.
    Sealed = 2,
    /// A victim of the cleaner's pass.
    Cleaning = 3,
    /// Retired: emptied, but a pinned reader may still read from it.
    Retired = 4,
    /// Holds bytes of a large value or group.
    Extent = 5,
    /// Holds records of a large group.
    Members = 6,
    /// Damaged: neither cleaned nor used again.
    Quarantined = 7,
    /// Holds a piece of the index snapshot or of a checkpoint.
    Piece = 8,
}

farbank_pm::zeroed! {
    /// Facts about a segment that the engine keeps in DRAM. All zeros: a free segment without a generation.
    #[repr(C, align(64))]
    pub(crate) struct SegmentInfo {
        pub generation: AtomicU64,
        /// Number of segment openings when this segment was opened. Reclaim stamps are compared with it.
        pub opened: AtomicU64,
        /// Average write time of its bytes, in bytes appended to the whole log.
        pub written_at_average: AtomicU64,
        /// Lower bound of the expiry times of its records, in milliseconds since 1970; 0: no record expires.
        pub expires_ms: AtomicU64,
        /// Records that the index points at: their bytes in the low half, their number in the high half.
        live: AtomicU64,
        /// Seed of the head crcs of its records ([`SegmentPlace::record_seed`]).
        pub seed: AtomicU32,
        /// Bytes of its tombstones that were once a key's newest record, including those already copied out of it.
        pub tombstone_bytes: AtomicU32,
        /// End of its records, in bytes from its start.
        pub used: AtomicU32,
        /// Nonzero while `sealed` is yet to be written: its last records may be unpublished, and it cannot be cleaned.
        pub is_end_unwritten: AtomicU32,
        /// Number of records of large groups in it. Their extents are freed when this segment is emptied.
        pub large_groups: AtomicU32,
        state: AtomicU8,
        /// How often it was cleaned and still had live records afterwards.
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
            4 => SegmentState::Retired,
            5 => SegmentState::Extent,
            6 => SegmentState::Members,
            8 => SegmentState::Piece,
            _ => SegmentState::Quarantined,
        }
    }

    pub(crate) fn set_state(&self, state: SegmentState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Changes the state from `from` to `to`. Returns false if the state is not `from`.
    pub(crate) fn transition(&self, from: SegmentState, to: SegmentState) -> bool {
        self.state
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Counts a record that the index now points at.
    pub(crate) fn mark_live(&self, bytes: u32) {
        self.live
            .fetch_add(1 << 32 | u64::from(bytes), Ordering::Relaxed);
    }

    /// Stops counting a record that the index no longer points at. If a damaged header hides the record's length,
    /// live bytes stay counted.
    pub(crate) fn mark_dead(&self, bytes: u32) {
        self.live
            .fetch_sub(1 << 32 | u64::from(bytes), Ordering::Relaxed);
    }

    /// Bytes of the records that the index points at.
    pub(crate) fn live_bytes(&self) -> u32 {
        self.live.load(Ordering::Relaxed) as u32
    }

    /// Lowers the earliest expiry of its records to `expires_ms`, unless that is 0.
    pub(crate) fn note_expiry(&self, expires_ms: u64) {
        if expires_ms != 0 {
            let earlier = |known: u64| (known == 0 || known > expires_ms).then_some(expires_ms);
            let _ = self
                .expires_ms
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
        }
    }

    /// Bytes of a large value in this extent.
    pub(crate) fn extent_bytes(&self) -> i64 {
        i64::from(self.used.load(Ordering::Relaxed)) - FIRST as i64
    }

    /// Whether it is an extent of a large group whose members have all been replaced.
    pub(crate) fn is_dead_extent(&self) -> bool {
        self.state() == SegmentState::Members && self.live_records() == 0
    }

    /// Number of records that the index points at.
    pub(crate) fn live_records(&self) -> u32 {
        (self.live.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Number of records that the index points at in the high half, their bytes in the low half.
    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// Sets the counts of live records and of their bytes.
    pub(crate) fn set_live(&self, records: u32, bytes: u32) {
        self.live.store(
            u64::from(records) << 32 | u64::from(bytes),
            Ordering::Relaxed,
        );
    }

    /// Sets the counts of live records and bytes to 0. Returns the bytes counted before.
    pub(crate) fn clear_live(&self) -> u32 {
        self.live.swap(0, Ordering::Relaxed) as u32
    }

    /// Resets everything but the state for a new `generation`.
    pub(crate) fn reset(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        for counter in [
            &self.tombstone_bytes,
            &self.used,
            &self.is_end_unwritten,
            &self.large_groups,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.live.store(0, Ordering::Relaxed);
        self.expires_ms.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.written_at_average.store(0, Ordering::Relaxed);
    }
}
