//! A histogram of durations with a relative error of at most 3 %.
//!
//! ```text
//!   nanoseconds   0 .. 31   32 .. 63   64 .. 127   128 .. 255   ...   up to 68 s
//!   buckets       32 of 1   32 of 1    32 of 2     32 of 4
//! ```
//!
//! One thread writes, any thread reads. A write is a load and a store, without a locked instruction.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of each power of two, as a power of two.
const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;
/// Durations of `1 << MAX_BITS` nanoseconds (68 s) and more count in the last bucket.
const MAX_BITS: u32 = 36;
const BUCKETS: usize = SUBS * (MAX_BITS - SUB_BITS + 1) as usize;

/// Durations that one thread has recorded.
pub(crate) struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([const { AtomicU64::new(0) }; BUCKETS])
    }
}

/// The bucket of a duration.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << MAX_BITS) - 1);
    let bits = u64::BITS - ns.leading_zeros();
    let shift = bits.saturating_sub(SUB_BITS + 1);
    SUBS * shift as usize + (ns >> shift) as usize
}

/// The longest duration of a bucket.
fn highest_of(bucket: usize) -> u64 {
    let shift = (bucket / SUBS).saturating_sub(1) as u32;
    let first = (bucket - SUBS * shift as usize) as u64;
    ((first + 1) << shift) - 1
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

impl Histogram {
    /// Records `count` durations of `ns` nanoseconds. Only the thread that owns the histogram may call this.
    #[inline]
    pub(crate) fn record(&self, ns: u64, count: u64) {
        add(&self.0[bucket_of(ns)], count);
    }

    /// Removes all durations. Only the thread that owns the histogram may call this.
    pub(crate) fn clear(&self) {
        for bucket in &self.0 {
            bucket.store(0, Ordering::Relaxed);
        }
    }
}

/// Sum of the histograms of several threads.
pub(crate) struct Durations(Vec<u64>);

impl Default for Durations {
    fn default() -> Durations {
        Durations(vec![0; BUCKETS])
    }
}

impl Durations {
    pub(crate) fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.0.iter_mut().zip(&histogram.0) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }

    /// Number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the buckets that are not empty: the longest duration of each in nanoseconds, and its count.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(bucket, count)| (highest_of(bucket), *count))
    }

    /// Number of durations of at most `ns` nanoseconds, if `ns + 1` is a power of two.
    pub(crate) fn count_to(&self, ns: u64) -> u64 {
        self.0[..=bucket_of(ns)].iter().sum()
    }

    /// The duration, in nanoseconds, that `percent` percent of the durations do not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let count = self.count();
        let wanted = ((count as f64 * percent / 100.0).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let reached = self.0.iter().position(|bucket| {
            seen += bucket;
            seen >= wanted
        });
        reached.map_or(0, highest_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_durations_that_differ_by_three_percent() {
        let mut last = None;
        for ns in (0..5000).chain((13..36).flat_map(|bits| [(1 << bits) - 1, 1 << bits])) {
            let bucket = bucket_of(ns);
            let highest = highest_of(bucket);
            assert!(highest >= ns && highest - ns <= ns / 32, "{ns}: {highest}");
            assert!(last.is_none_or(|last| bucket >= last), "{ns}");
            last = Some(bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_all_threads() {
        let threads = [Histogram::default(), Histogram::default()];
        threads[0].record(1_000, 98);
        threads[1].record(1_000_000, 2);
        let mut sum = Durations::default();
        threads.iter().for_each(|thread| sum.add(thread));
        assert_eq!(sum.count(), 100);
        assert!((1_000..1_032).contains(&sum.percentile(50.0)));
        assert!((1_000..1_032).contains(&sum.percentile(98.0)));
        assert!((1_000_000..1_031_000).contains(&sum.percentile(99.0)));
        assert_eq!((sum.count_to(1023), sum.count_to((1 << 20) - 1)), (98, 100));
        threads[0].clear();
        assert_eq!(Durations::default().percentile(50.0), 0);
    }
}
