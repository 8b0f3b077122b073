//! The buckets and segments of the Dash tables (Lu et al., VLDB '20): buckets with fingerprints, and a segment of them.
//!
//! ```text
//!   segment                                                 bucket (256 bytes)
//!   ┌───────┬───────┬────────┬────────┬─ ... ─┬─────────┐    ┌──────┬──────┬──────────────┬──────┬─ ... ─┬───────┐
//!   │stash 0│stash 1│bucket 0│bucket 1│       │bucket 63│    │ word │ bits │ fingerprints │pair 0│       │pair 13│
//!   └───────┴───────┴────────┴────────┴─ ... ─┴─────────┘    └──────┴──────┴──────────────┴──────┴─ ... ─┴───────┘
//!                                                             8      8      14 of 16       16 each
//!   bits    0..14: live pairs; 14..28: the guests among them, whose home is the bucket before;
//!           28..63: in a chained bucket, the first word of its segment
//!   word    of a bucket: its keys in the stash; of stash 0: defined by the table; of the last fixed stash bucket and
//!           of chained ones: offset of the next chained bucket
//! ```
//!
//! A key's home is the bucket that its hash selects. A pair is inserted into its home or the next bucket, whichever has
//! more free slots. If both are full, the insert displaces a pair of them into that pair's other bucket. If that fails
//! too, the pair goes to the stash, and the home's word records it: up to four fingerprints with their stash bucket, in
//! the home's word or the next bucket's word, and a count of the others. If the stash is full, the table decides:
//! either the segment is full, or another bucket, a block of its own, is chained to the stash.
//!
//! ```text
//!   stash 0        stash 1        chained        chained
//!   ┌───────┬─ ┐    ┌──────┬─ ┐    ┌──────┬─ ┐    ┌──────┬─ ┐
//!   │table's│  │    │ word │──────▶│ word │──────▶│  0   │       each word holds the offset of the next chained bucket
//!   └───────┴─ ┘    └──────┴─ ┘    └──────┴─ ┘    └──────┴─ ┘
//! ```
//!
//! # Invariants
//! IX-DASH-1  A pair is durable before the bit that makes it live is set. If pair and bit share a line, storing the pair first
//!     is enough: no later store to a line becomes durable without the earlier ones. The fingerprint shares the bit's
//!     line.
//! IX-DASH-2  A displaced pair, or one moved home from the stash after a split, is durably live at its new place before it is
//!     dead at the old one, and durably dead there before the old slot is reused. So a crash may leave a pair twice,
//!     but never loses it.
//! IX-DASH-3  A segment is changed under its lock in DRAM, which is released when the change is durable.
//! IX-DASH-4  The words about the stash are hints for searches. They are never flushed. The first access after an open
//!     rebuilds them from the stash; from then on they are exact.
//! IX-DASH-5  A chained bucket is durable and empty before a word leads to it. It stays chained as long as readers can reach
//!     the segment. It names its segment, so that recovery can decide whether the block is in use.
//! IX-DASH-6  The first access after an open validates a segment before it follows any reference in it: its bits denote
//!     existing slots, and its chained buckets are allocated blocks that name this segment.
//!
//! # Crash argument
//! | crash between            | the first access sees         | and does                                   |
//! |--------------------------|-------------------------------|--------------------------------------------|
//! | pair, bit                | a dead pair                   | nothing: the slot is free (IX-DASH-1)             |
//! | displaced, dead there    | a guest also in its home      | makes the guest dead: both are the same    |
//! | moved home, dead there   | a pair also in the stash      | makes the stash's copy dead                |
//! | bit in the stash, word   | a word without the entry      | rebuilds all words of the segment (IX-DASH-4)     |
//! | chained, linked          | (the open) a block in doubt   | frees it: its segment does not refer to it |
//! | (a kill) store, drain    | bytes that are not durable    | makes all durable, then repairs            |

mod check;
mod layout;
mod ops;
mod recover;
mod resize;
mod table;

use farbank_pm::fault::NamedFault;
use farbank_pm::{LINE, Medium, Off};

use crate::hash::Hasher;
use crate::pool_heap::TablePool;
use layout::{HEAD, PAIR};
pub(crate) use table::{DashTable, LockedDashSegment};

/// Fault: the first access does not repair interrupted displacements.
pub(crate) const NO_MENDING: NamedFault = NamedFault {
    name: "dash.no_mending",
    description: "the first access after a crash does not remove the second copy of a displaced pair",
    source: "the published code, whose crash version may be lost: then segments seem to be repaired",
    shows_in: None,
};

/// Dimensions of segments and buckets, fixed at a table's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DashShape {
    /// Binary logarithm of the buckets of a segment, without its stash.
    pub bucket_bits: u32,
    /// Fixed buckets of the stash: 1 to 4.
    pub stash: u32,
    /// Slots of a bucket: 1 to 14.
    pub slots: u32,
}

impl DashShape {
    /// The paper's shape: 64 buckets and 2 stash buckets, 14 slots each.
    pub const PAPER: DashShape = DashShape {
        bucket_bits: 6,
        stash: 2,
        slots: 14,
    };

    pub(crate) fn is_sound(&self) -> bool {
        (1..=10).contains(&self.bucket_bits)
            && (1..=4).contains(&self.stash)
            && (1..=14).contains(&self.slots)
    }

    pub(crate) fn words(&self) -> [u64; 3] {
        [self.bucket_bits, self.stash, self.slots].map(u64::from)
    }

    /// Decodes the words of [`DashShape::words`], without a validity check.
    pub(crate) fn of(words: &[u64]) -> DashShape {
        let small = |n: usize| u32::try_from(words[n]).unwrap_or(u32::MAX);
        DashShape {
            bucket_bits: small(0),
            stash: small(1),
            slots: small(2),
        }
    }

    #[inline]
    fn buckets(&self) -> u64 {
        1 << self.bucket_bits
    }

    /// Returns the bytes of a bucket.
    pub(crate) fn bucket_bytes(&self) -> u64 {
        (self.pairs_at() + PAIR * u64::from(self.slots)).next_power_of_two()
    }

    /// Returns the number of slots in the same line as the bits: as many as fit, but at most half of them (rounded up),
    /// so that small buckets of two slots have one of each kind.
    fn in_line(&self) -> u64 {
        let fit = (LINE as u64 - HEAD) / PAIR;
        fit.min(u64::from(self.slots).div_ceil(2))
    }

    /// Returns the position of the first pair in a bucket.
    fn pairs_at(&self) -> u64 {
        LINE as u64 - PAIR * self.in_line()
    }

    /// Returns the bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.bucket_bytes() * (self.buckets() + u64::from(self.stash))
    }

    /// Returns the slots of a segment.
    pub(crate) fn segment_slots(&self) -> u64 {
        u64::from(self.slots) * (self.buckets() + u64::from(self.stash))
    }
}

/// A key's home bucket in its segment, and its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPlace {
    /// Number of the home bucket.
    pub(crate) bucket: u64,
    pub(crate) finger: u8,
}

/// Functions of keys by their hashes, for one segment.
pub(crate) struct KeyHashes<'a> {
    pub(crate) hasher: Hasher,
    /// Returns the home bucket and the fingerprint of a hash.
    pub(crate) place: &'a dyn Fn(u64) -> SegmentPlace,
    /// Returns whether a hash belongs to this segment.
    pub(crate) owned: &'a dyn Fn(u64) -> bool,
}

impl KeyHashes<'_> {
    fn place(&self, key: u64) -> SegmentPlace {
        (self.place)(self.hasher.hash(key))
    }

    fn own(&self, key: u64) -> bool {
        (self.owned)(self.hasher.hash(key))
    }
}

/// Location of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairSlot {
    bucket: Off,
    slot: u32,
    /// Number of its stash bucket, if it is in the stash.
    stash: Option<u64>,
}

/// Result of an insert into a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    There,
    /// The pair is inserted, and a bucket was chained to the stash.
    Chained,
    /// The segment has no free slot for the pair. Nothing changed.
    Full,
}

/// A shape with the sizes derived from it.
pub(crate) struct BucketLayout {
    shape: DashShape,
    /// Block class of chained stash buckets; `None`: the table chains none.
    chain: Option<usize>,
    bucket_bytes: u64,
    pairs_at: u64,
    pub(crate) segment_bytes: u64,
    /// Whether writers also store the published code's locks and persist each pair separately.
    as_published: bool,
}

impl BucketLayout {
    pub(crate) fn of(shape: DashShape, chain: Option<usize>, as_published: bool) -> BucketLayout {
        BucketLayout {
            shape,
            chain,
            bucket_bytes: shape.bucket_bytes(),
            pairs_at: shape.pairs_at(),
            segment_bytes: shape.segment_bytes(),
            as_published,
        }
    }
}

/// Access to the segments of a pool with one layout.
pub(crate) struct DashSegments<'a, M> {
    table_pool: &'a TablePool<M>,
    medium: &'a M,
    form: &'a BucketLayout,
}

impl<'a, M: Medium> DashSegments<'a, M> {
    #[inline]
    pub(crate) fn of(ground: &'a TablePool<M>, form: &'a BucketLayout) -> DashSegments<'a, M> {
        DashSegments {
            table_pool: ground,
            medium: ground.medium(),
            form,
        }
    }

    /// Returns bucket `n` of a segment, modulo the number of buckets.
    #[inline]
    pub(crate) fn bucket(&self, segment: Off, n: u64) -> Off {
        let n = u64::from(self.form.shape.stash) + (n & (self.form.shape.buckets() - 1));
        segment.plus(n * self.form.bucket_bytes)
    }

    /// Returns the home bucket and the next bucket of a place.
    #[inline]
    pub(crate) fn pair_of(&self, segment: Off, place: SegmentPlace) -> (Off, Off) {
        (
            self.bucket(segment, place.bucket),
            self.bucket(segment, place.bucket + 1),
        )
    }

    /// Returns the last fixed stash bucket. Its word leads to the first chained bucket.
    pub(crate) fn last_stash(&self, segment: Off) -> Off {
        let others = u64::from(self.form.shape.stash) - 1;
        segment.plus(others * self.form.bucket_bytes)
    }

    /// Returns the buckets of the stash: the fixed ones, then the chained ones.
    pub(crate) fn stashes(&self, segment: Off) -> impl Iterator<Item = Off> {
        let last = self.last_stash(segment);
        std::iter::successors(Some(segment), move |bucket| {
            if (segment..last).contains(bucket) {
                return Some(bucket.plus(self.form.bucket_bytes));
            }
            self.form.chain?;
            let next = Off(self.medium.load(*bucket));
            (!next.is_null()).then_some(next)
        })
    }

    /// Returns the chained buckets of the stash.
    pub(crate) fn chained(&self, segment: Off) -> impl Iterator<Item = Off> {
        self.stashes(segment).skip(self.form.shape.stash as usize)
    }

    /// Returns the segment's first word as a chained bucket stores it. For a block that is no chained bucket the result
    /// is arbitrary.
    pub(crate) fn owner(&self, chained: Off) -> u64 {
        self.bits(chained).owner()
    }

    /// Returns all buckets of a segment. Stash buckets come with their numbers.
    pub(crate) fn buckets(&self, segment: Off) -> impl Iterator<Item = (Off, Option<u64>)> {
        let stash = (0..)
            .zip(self.stashes(segment))
            .map(|(n, at)| (at, Some(n)));
        stash.chain((0..self.form.shape.buckets()).map(move |n| (self.bucket(segment, n), None)))
    }

    /// Returns the number of live pairs and of slots of a segment without its stash. Follows no reference, so it works
    /// before validation.
    pub(crate) fn live_at_home(&self, segment: Off) -> (u64, u64) {
        let buckets = self.form.shape.buckets();
        let live = (0..buckets).map(|n| self.bits(self.bucket(segment, n)).live());
        let pairs = live.map(|live| u64::from(live.count_ones())).sum();
        (pairs, buckets * u64::from(self.form.shape.slots))
    }

    /// Calls `each` with the location, key and value of each live pair.
    pub(crate) fn each(&self, segment: Off, mut each: impl FnMut(PairSlot, u64, u64)) {
        for (bucket, stash) in self.buckets(segment) {
            for slot in farbank_pm::simd::ones(self.bits(bucket).live()) {
                let (key, value) = self.pair(bucket, slot);
                each(
                    PairSlot {
                        bucket,
                        slot,
                        stash,
                    },
                    key,
                    value,
                );
            }
        }
    }
}
