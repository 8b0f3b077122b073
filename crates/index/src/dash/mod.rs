//! What tables of Dash (Lu et al., VLDB '20) are made of: buckets with fingerprints, and a segment of them.
//!
//! ```text
//!   segment                                                 bucket (256 bytes)
//!   ┌───────┬───────┬────────┬────────┬─ ... ─┬─────────┐    ┌──────┬──────┬──────────────┬──────┬─ ... ─┬───────┐
//!   │stash 0│stash 1│bucket 0│bucket 1│       │bucket 63│    │ word │ bits │ fingerprints │pair 0│       │pair 13│
//!   └───────┴───────┴────────┴────────┴─ ... ─┴─────────┘    └──────┴──────┴──────────────┴──────┴─ ... ─┴───────┘
//!                                                             8      8      14 of 16       16 each
//!   bits    0..14 which pairs are live, 14..28 which of them are guests: the bucket before is their home;
//!           28..63 of a chained bucket: the table's word of its segment
//!   word    a bucket's: what of its keys is in the stash; stash 0's: the table's; the last of the stash's: what is
//!           chained to it
//! ```
//!
//! A key's home is the bucket its hash names. It is put into its home or the next one, whichever has more room; if
//! neither has, a pair of theirs that can live in its own other bucket is moved there (displacement); then the stash
//! takes it, and its home's word says so: up to four fingerprints with the stash they are in, there or in the next
//! bucket's word, and a count of what did not fit. Then the segment is full, or its stash gets one more bucket, a block of
//! its own: which of both is the table's choice.
//!
//! ```text
//!   stash 0        stash 1        chained        chained
//!   ┌───────┬─ ┐    ┌──────┬─ ┐    ┌──────┬─ ┐    ┌──────┬─ ┐
//!   │table's│  │    │ word │──────▶│ word │──────▶│  0   │       as long as they are chained, words lead to the next one
//!   └───────┴─ ┘    └──────┴─ ┘    └──────┴─ ┘    └──────┴─ ┘
//! ```
//!
//! # Invariants
//! S1  A pair is durable before the bit that makes it live is set, or is stored before it into the same line, of which no later
//!     store becomes durable without the earlier ones; its fingerprint always is.
//! S2  A pair that is displaced, or brought home from the stash after a split, is durable, live, where it goes before it is dead
//!     where it was, and that is durable before its place is written to. So a crash may leave it twice, never not at all.
//! S3  A segment is changed under its lock in DRAM, let go when the change is durable.
//! S4  The words about the stash are hints for who looks: never flushed, made again from the stash at the first touch
//!     after an open, exact from then on.
//! S5  A chained bucket is durable, empty, before a word leads to it; and it stays where it is as long as readers can
//!     reach the segment. It says whose it is, for the allocator's doubts.
//! S6  Nothing of a segment is followed before whoever first comes to it after an open has seen that its bits are of pairs
//!     it has room for, and that what is chained to it are blocks in use which say that they are its.
//!
//! # Crash argument
//! | crash between            | the first touch sees          | and does                                   |
//! |--------------------------|-------------------------------|--------------------------------------------|
//! | pair, bit                | a dead pair                   | nothing: the place is free (S1)            |
//! | displaced, dead there    | a guest also in its home      | makes the guest dead: both are the same    |
//! | brought home, dead there | a pair also in the stash      | makes that dead, likewise                  |
//! | bit in the stash, word   | a word that does not say so   | makes all words of the segment again (S4)  |
//! | chained, led to          | (the open) a block in doubt   | frees it: its segment does not lead there  |
//! | (a kill) store, drain    | bytes a power cut could take  | makes all durable, before it mends anything|

mod bucket;
mod ops;
mod repair;
mod table;

use farbank_pm::fault::NamedFault;
use farbank_pm::{LINE, Medium, Off};

use crate::pool_heap::TablePool;

use bucket::{HEAD, PAIR};
pub(crate) use repair::KeyHashes;
pub(crate) use table::{DashTable, LockedDashSegment};

/// What they can be made to leave out.
pub(crate) const NO_MENDING: NamedFault = NamedFault {
    name: "dash.no_mending",
    what: "the first touch after a crash leaves pairs twice that were being displaced",
    source: "the published code, whose crash version may be lost: then segments look mended",
    shows_in: None,
};

/// How segments and buckets are shaped; fixed when a table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DashShape {
    /// Buckets of a segment without its stash, as a power of two.
    pub bucket_bits: u32,
    /// Buckets of its stash, up to 4.
    pub stash: u32,
    /// Pairs of a bucket, up to 14.
    pub slots: u32,
}

impl DashShape {
    /// The paper's: 64 buckets and 2 of stash, 14 pairs each.
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

    /// Of what [`Shape::words`] were stored, sound or not.
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

    /// Bytes of a bucket.
    pub(crate) fn bucket_bytes(&self) -> u64 {
        (self.pairs_at() + PAIR * u64::from(self.slots)).next_power_of_two()
    }

    /// Pairs of a bucket that are in the line of their bits: as many as fit, but not all there are, so that buckets of two
    /// pairs have one of each kind.
    fn in_line(&self) -> u64 {
        let fit = (LINE as u64 - HEAD) / PAIR;
        fit.min(u64::from(self.slots).div_ceil(2))
    }

    /// Where in a bucket its pairs start.
    fn pairs_at(&self) -> u64 {
        LINE as u64 - PAIR * self.in_line()
    }

    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.bucket_bytes() * (self.buckets() + u64::from(self.stash))
    }

    /// Pairs of a segment.
    pub(crate) fn segment_slots(&self) -> u64 {
        u64::from(self.slots) * (self.buckets() + u64::from(self.stash))
    }
}

/// Where a hash sends its key within a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPlace {
    /// The home bucket's number.
    pub(crate) bucket: u64,
    pub(crate) finger: u8,
}

/// Where a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairSlot {
    pub(crate) bucket: Off,
    pub(crate) slot: u32,
    /// Which bucket of the stash it is in, if it is.
    pub(crate) stash: Option<u64>,
}

/// What became of a pair that was to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    There,
    /// It is there, and the stash has a bucket more.
    Chained,
    /// The segment has no room for it, and nothing changed.
    Full,
}

/// A shape, and what follows from it, worked out once.
pub(crate) struct BucketLayout {
    shape: DashShape,
    /// The allocator's class of what is chained to a stash; `None`: nothing is.
    chain: Option<usize>,
    bucket_bytes: u64,
    pairs_at: u64,
    pub(crate) segment_bytes: u64,
    /// Whether it also does what published code does and this does without.
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

/// The segments of a medium, by their form.
pub(crate) struct DashSegments<'a, M> {
    ground: &'a TablePool<M>,
    medium: &'a M,
    form: &'a BucketLayout,
}

impl<'a, M: Medium> DashSegments<'a, M> {
    #[inline]
    pub(crate) fn of(ground: &'a TablePool<M>, form: &'a BucketLayout) -> DashSegments<'a, M> {
        DashSegments {
            ground,
            medium: ground.medium(),
            form,
        }
    }

    /// Bucket `n` of a segment, counted around.
    #[inline]
    pub(crate) fn bucket(&self, segment: Off, n: u64) -> Off {
        let n = u64::from(self.form.shape.stash) + (n & (self.form.shape.buckets() - 1));
        segment.plus(n * self.form.bucket_bytes)
    }

    /// The home and the next bucket of a place.
    #[inline]
    pub(crate) fn pair_of(&self, segment: Off, place: SegmentPlace) -> (Off, Off) {
        (
            self.bucket(segment, place.bucket),
            self.bucket(segment, place.bucket + 1),
        )
    }

    /// The last of the stash that is in the segment: its word leads to what is chained.
    pub(crate) fn last_stash(&self, segment: Off) -> Off {
        let others = u64::from(self.form.shape.stash) - 1;
        segment.plus(others * self.form.bucket_bytes)
    }

    /// The buckets of the stash, what is chained to it last.
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

    /// What is chained to the stash.
    pub(crate) fn chained(&self, segment: Off) -> impl Iterator<Item = Off> {
        self.stashes(segment).skip(self.form.shape.stash as usize)
    }

    /// What a chained bucket says of whose it is: any word, if it is none.
    pub(crate) fn owner(&self, chained: Off) -> u64 {
        self.bits(chained).owner()
    }

    /// All buckets: those of the stash with their numbers.
    pub(crate) fn buckets(&self, segment: Off) -> impl Iterator<Item = (Off, Option<u64>)> {
        let stash = (0..)
            .zip(self.stashes(segment))
            .map(|(n, at)| (at, Some(n)));
        stash.chain((0..self.form.shape.buckets()).map(move |n| (self.bucket(segment, n), None)))
    }

    /// How many pairs of a segment are live, and slots for them, without its stash. Nothing of the segment is followed.
    pub(crate) fn live_at_home(&self, segment: Off) -> (u64, u64) {
        let buckets = self.form.shape.buckets();
        let live = (0..buckets).map(|n| self.bits(self.bucket(segment, n)).live());
        let pairs = live.map(|live| u64::from(live.count_ones())).sum();
        (pairs, buckets * u64::from(self.form.shape.slots))
    }

    /// Tells of each live pair: where, its key, its value.
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
