//! What tables of Dash (Lu et al., VLDB '20) are made of: buckets with fingerprints, and a segment of them.
//!
//! ```text
//!   segment                                                 bucket (256 bytes)
//!   ┌───────┬───────┬────────┬────────┬─ ... ─┬─────────┐    ┌──────┬──────┬──────────────┬──────┬─ ... ─┬───────┐
//!   │stash 0│stash 1│bucket 0│bucket 1│       │bucket 63│    │ word │ bits │ fingerprints │pair 0│       │pair 13│
//!   └───────┴───────┴────────┴────────┴─ ... ─┴─────────┘    └──────┴──────┴──────────────┴──────┴─ ... ─┴───────┘
//!                                                             8      8      14 of 16       16 each
//!   bits    0..14 which pairs are live, 14..28 which of them are guests: the bucket before is their home
//!   word    a bucket's: what of its keys is in the stash; stash 0's: the table's
//! ```
//!
//! A key's home is the bucket its hash names. It is put into its home or the next one, whichever has more room; if
//! neither has, a pair of theirs that can live in its own other bucket is moved there (displacement); then the stash
//! takes it, and its home's word says so: up to four fingerprints with the stash they are in, there or in the next
//! bucket's word, and a count of what did not fit. Then the segment is full, which is the table's affair.
//!
//! # Invariants
//! S1  A pair is durable before the bit that makes it live is set; its fingerprint is in the line of the bit.
//! S2  A pair that is displaced is durable, live, where it goes before it is dead where it was, and that is durable
//!     before its place is written to. So a crash may leave it twice, never not at all.
//! S3  A segment is changed under its lock in DRAM, let go when the change is durable.
//! S4  The words about the stash are hints for who looks: never flushed, made again from the stash at the first touch
//!     after an open, exact from then on.
//!
//! # Crash argument
//! | crash between            | the first touch sees          | and does                                   |
//! |--------------------------|-------------------------------|--------------------------------------------|
//! | pair, bit                | a dead pair                   | nothing: the place is free (S1)            |
//! | displaced, dead there    | a guest also in its home      | makes the guest dead: both are the same    |
//! | bit in the stash, word   | a word that does not say so   | makes all words of the segment again (S4)  |
//! | (a kill) store, drain    | bytes a power cut could take  | makes all durable, before it mends anything|

mod bucket;
mod mend;
mod ops;

use farbank_pm::fault::Named;
use farbank_pm::{LINE, Medium, Off};

use bucket::{HEAD, PAIR};
pub(crate) use mend::Keys;

/// What they can be made to leave out.
pub(crate) const NO_MENDING: Named = Named {
    name: "dash.no_mending",
    what: "the first touch after a crash leaves pairs twice that were being displaced",
    source: "the published code, whose crash version may be lost: then segments look mended",
};

/// How segments and buckets are shaped; fixed when a table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Buckets of a segment without its stash, as a power of two.
    pub bucket_bits: u32,
    /// Buckets of its stash, up to 4.
    pub stash: u32,
    /// Pairs of a bucket, up to 14.
    pub slots: u32,
}

impl Shape {
    /// The paper's: 64 buckets and 2 of stash, 14 pairs each.
    pub const PAPER: Shape = Shape {
        bucket_bits: 6,
        stash: 2,
        slots: 14,
    };

    /// Small enough that half a dozen keys fill it.
    pub const SMALL: Shape = Shape {
        bucket_bits: 2,
        stash: 2,
        slots: 1,
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
    pub(crate) fn of(words: &[u64]) -> Shape {
        let small = |n: usize| u32::try_from(words[n]).unwrap_or(u32::MAX);
        Shape {
            bucket_bits: small(0),
            stash: small(1),
            slots: small(2),
        }
    }

    fn buckets(&self) -> u64 {
        1 << self.bucket_bits
    }

    /// Bytes of a bucket.
    pub(crate) fn bucket_bytes(&self) -> u64 {
        (HEAD + PAIR * u64::from(self.slots))
            .next_power_of_two()
            .max(2 * LINE as u64)
    }

    /// Where in a bucket its pairs start: they end where it ends, so that some are not in the line of their bits.
    fn pairs_at(&self) -> u64 {
        self.bucket_bytes() - PAIR * u64::from(self.slots)
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
pub(crate) struct Place {
    /// The home bucket's number.
    pub(crate) bucket: u64,
    pub(crate) finger: u8,
}

/// Where a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) bucket: Off,
    pub(crate) slot: u32,
    /// Which bucket of the stash it is in, if it is.
    pub(crate) stash: Option<u64>,
}

/// The segments of a medium, by their shape.
pub(crate) struct Dash<'a, M> {
    pub(crate) medium: &'a M,
    pub(crate) shape: Shape,
}

impl<M: Medium> Dash<'_, M> {
    /// Bucket `n` of a segment, counted around.
    #[inline]
    pub(crate) fn bucket(&self, segment: Off, n: u64) -> Off {
        let n = u64::from(self.shape.stash) + (n & (self.shape.buckets() - 1));
        segment.plus(n * self.shape.bucket_bytes())
    }

    /// The home and the next bucket of a place.
    #[inline]
    pub(crate) fn pair_of(&self, segment: Off, place: Place) -> (Off, Off) {
        (
            self.bucket(segment, place.bucket),
            self.bucket(segment, place.bucket + 1),
        )
    }

    /// The buckets of the stash.
    pub(crate) fn stashes(&self, segment: Off) -> impl Iterator<Item = Off> {
        let bytes = self.shape.bucket_bytes();
        (0..u64::from(self.shape.stash)).map(move |n| segment.plus(n * bytes))
    }

    /// All buckets: those of the stash with their numbers.
    pub(crate) fn buckets(&self, segment: Off) -> impl Iterator<Item = (Off, Option<u64>)> {
        let stash = (0..)
            .zip(self.stashes(segment))
            .map(|(n, at)| (at, Some(n)));
        stash.chain((0..self.shape.buckets()).map(move |n| (self.bucket(segment, n), None)))
    }

    /// Tells of each live pair: where, its key, its value.
    pub(crate) fn each(&self, segment: Off, mut each: impl FnMut(Spot, u64, u64)) {
        for (bucket, stash) in self.buckets(segment) {
            for slot in bucket::ones(self.bits(bucket).live()) {
                let (key, value) = self.pair(bucket, slot);
                each(
                    Spot {
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
