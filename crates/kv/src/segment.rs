//! Segments: equal pieces of the pool, each with a life of its own.
//!
//! ```text
//!  0                        64                                              n - 64        n
//!  ┌────────────────────────┬─ records, from left to right ─ ... ───────────┬─────────────┐
//!  │ head                   │                                               │ tail        │
//!  └────────────────────────┴───────────────────────────────────────────────┴─────────────┘
//!
//!  head   0 magic  4 crc  8 generation  16 unused      40 opened  48 sealed  56 unused
//!  tail   the first 16 bytes again, with a crc of their own place
//! ```
//!
//! A segment is born *free*: head and tail are written under a generation no segment had before, and
//! drained. That ends its former life: records are checksummed with their generation, so nothing old
//! can be found in it again. Its first batch also writes `opened` (and what for), one drain makes both
//! durable. When all its records are durable, `sealed` says where they end; nobody waits for that
//! word, it rides on a later drain.
//!
//! # Invariants
//! S1  Generations only grow, over the whole pool. Head and tail agree, except after a crash while a
//!     segment was being reborn, when nothing in either life is needed; the later one then counts.
//! S2  `opened` is durable before anything in the segment is acknowledged. Not opened: free.
//! S3  `sealed` is written after everything before that point was durable. What fails its checksum
//!     there is damage; in an unsealed segment it may be a torn write.

use crc32c::{crc32c, crc32c_append};
use farbank_pm::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use farbank_pm::{LINE, Lane, Medium, Off};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::FromZeros;

use crate::record::{u32_at, u64_at};

/// Where records begin in a segment.
pub(crate) const FIRST: usize = LINE;
/// Bytes of a segment that hold no records.
pub(crate) const OVERHEAD: usize = 2 * LINE;

const MAGIC: u32 = u32::from_le_bytes(*b"FBsg");
const FIXED: usize = 16;
const OPENED_AT: usize = 40;
const SEALED_AT: usize = 48;

/// What a segment was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Records.
    Log = 1,
    /// Bytes of one large value, or members of one large group.
    Extent = 2,
    /// A piece of the index snapshot.
    Snapshot = 3,
}

/// What the head and tail of a segment say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life {
    pub generation: u64,
    /// What it was opened for; `None`: free.
    pub opened: Option<Purpose>,
    /// Where its records end, once that is settled.
    pub sealed: Option<usize>,
    /// Whether one of the two copies must be written again.
    pub repair: bool,
}

/// Where a segment lies and whose it is: enough to write and read its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub at: Off,
    pub bytes: usize,
    pub pool: u64,
}

impl Place {
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

    /// Writes head and tail of a new, free life. The caller drains before the segment is used.
    pub(crate) fn be_born<M: Medium>(&self, m: &M, lane: &mut Lane, generation: u64) {
        let head = self.fixed(self.at, generation);
        m.copy_in(lane, self.at, &[&head, &[0; LINE - FIXED]]);
        self.write_tail(m, lane, generation);
    }

    fn write_tail<M: Medium>(&self, m: &M, lane: &mut Lane, generation: u64) {
        let tail = self.fixed(self.tail(), generation);
        m.copy_in(lane, self.tail(), &[&tail, &[0; LINE - FIXED]]);
    }

    /// Writes the head's and the tail's fixed part again, over a damaged copy.
    pub(crate) fn repair<M: Medium>(&self, m: &M, lane: &mut Lane, life: &Life) {
        m.copy_in(lane, self.at, &[&self.fixed(self.at, life.generation)]);
        self.write_tail(m, lane, life.generation);
    }

    /// Writes `opened`; it rides on the drain of the first batch (S2).
    pub(crate) fn open<M: Medium>(&self, m: &M, lane: &mut Lane, generation: u64, purpose: Purpose) {
        let word = opened_word(generation, purpose);
        m.copy_in(lane, self.at.plus(OPENED_AT as u64), &[&word.to_le_bytes()]);
    }

    /// Writes `sealed`; everything before `end` must be durable (S3).
    pub(crate) fn seal<M: Medium>(&self, m: &M, lane: &mut Lane, generation: u64, end: usize) {
        let word = sealed_word(generation, end);
        m.copy_in(lane, self.at.plus(SEALED_AT as u64), &[&word.to_le_bytes()]);
    }

    /// Reads what head and tail say. `None`: both are damaged.
    pub(crate) fn read<M: Medium>(&self, m: &M) -> Option<Life> {
        let (mut head, mut tail) = ([0; LINE], [0; FIXED]);
        m.copy_out(self.at, &mut head);
        m.copy_out(self.tail(), &mut tail);
        let from_head = self.decode(&head[..FIXED], self.at);
        let from_tail = self.decode(&tail, self.tail());
        let generation = from_head.max(from_tail)?;
        let opened = u64_at(&head, OPENED_AT);
        let purpose = [Purpose::Log, Purpose::Extent, Purpose::Snapshot]
            .into_iter()
            .find(|p| opened_word(generation, *p) == opened);
        let sealed = u64_at(&head, SEALED_AT);
        let end = (sealed as u32) as usize;
        Some(Life {
            generation,
            // A damaged word is not zero: the segment was opened, most likely for records.
            opened: if opened == 0 { None } else { purpose.or(Some(Purpose::Log)) },
            sealed: (sealed != 0
                && sealed_word(generation, end) == sealed
                && (FIRST..=self.bytes - LINE).contains(&end))
            .then_some(end),
            repair: from_head != from_tail,
        })
    }

    /// Whether head and tail were never written: the pool was being made, or grown, when it stopped.
    pub(crate) fn is_unborn<M: Medium>(&self, m: &M) -> bool {
        m.matches(self.at, &[0; LINE]) && m.matches(self.tail(), &[0; LINE])
    }

    fn decode(&self, bytes: &[u8], at: Off) -> Option<u64> {
        let crc = crc32c_append(self.seed_of(at), &bytes[8..FIXED]);
        (u32_at(bytes, 0) == MAGIC && u32_at(bytes, 4) == crc)
            .then(|| u64_at(bytes, 8))
    }

    /// The seed of the head crcs of this life's records, before their place is mixed in.
    pub(crate) fn record_seed(&self, generation: u64) -> u32 {
        xxh3_64_with_seed(&generation.to_le_bytes(), self.pool ^ self.at.0.rotate_left(32)) as u32
    }
}

fn opened_word(generation: u64, purpose: Purpose) -> u64 {
    u64::from(crc32c(&generation.to_le_bytes())) << 32 | 0x6f70_6500 | purpose as u64
}

fn sealed_word(generation: u64, end: usize) -> u64 {
    let end = (end as u32).to_le_bytes();
    u64::from(crc32c_append(crc32c(&generation.to_le_bytes()), &end)) << 32
        | u64::from(u32::from_le_bytes(end))
}

/// What a segment is doing now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// Reborn, waiting to be opened.
    Free = 0,
    /// Some lane, or the cleaner, appends to it.
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
    /// Damaged: left alone, for `pool dump`.
    Quarantined = 7,
}

/// What DRAM knows of a segment. All-zero is a free segment without a life.
#[derive(FromZeros, Default, Debug)]
#[repr(C)]
pub(crate) struct Info {
    pub generation: AtomicU64,
    /// Stamp of the log's clock when it was opened: what a tombstone's fence is compared with.
    pub opened: AtomicU64,
    /// When its bytes were written, on average, in appended bytes of the whole log.
    pub born: AtomicU64,
    /// No expiry in it is earlier than this (0: nothing in it expires).
    pub expires_ms: AtomicU64,
    pub seed: AtomicU32,
    /// Bytes of records the index points at.
    pub live: AtomicU32,
    /// Bytes of tombstones that are still needed.
    pub tombs: AtomicU32,
    /// Where its records end.
    pub used: AtomicU32,
    /// Records that are staged but not yet published or given up: it cannot be cleaned before.
    pub unpublished: AtomicU32,
    /// Records the index points at.
    pub records: AtomicU32,
    state: AtomicU8,
    /// Times it was cleaned and live records remained.
    pub failures: AtomicU8,
    unused: [u8; 6],
}

impl Info {
    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Free,
            1 => State::Open,
            2 => State::Sealed,
            3 => State::Cleaning,
            4 => State::Limbo,
            5 => State::Extent,
            6 => State::Members,
            _ => State::Quarantined,
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Moves from one state to another; false if it was in a third.
    pub(crate) fn turn(&self, from: State, to: State) -> bool {
        self.state
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Forgets its former life.
    pub(crate) fn reset(&self, generation: u64, seed: u32) {
        self.generation.store(generation, Ordering::Relaxed);
        self.seed.store(seed, Ordering::Relaxed);
        for counter in [&self.live, &self.tombs, &self.used, &self.unpublished, &self.records] {
            counter.store(0, Ordering::Relaxed);
        }
        self.expires_ms.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.born.store(0, Ordering::Relaxed);
    }
}
