//! Histogram of how long requests take.
//!
//! A worker measures a batch of requests: from when it begins to read the first of them until it sends the replies,
//! which is after the batch is durable where the medium needs a sync for that. All requests of the batch count with
//! that time. Time that a request spends in the socket before the worker reads it is not included.
//!
//! ```text
//!   units of 256 ns:   0 1 .. 7 │ 8 9 .. 15 │ 16 18 .. 30 │ 32 36 .. 60 │ ...   eight buckets for each power of two
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds of the unit of time.
const UNIT_NS: u64 = 256;
/// Binary logarithm of the number of buckets for each power of two.
const SUB_BITS: u32 = 3;
/// Buckets for each power of two.
const SUB: usize = 1 << SUB_BITS;
/// Powers of two with buckets; the last bucket also counts all longer times. They end at 69 seconds.
const OCTAVES: usize = 26;
const BUCKETS: usize = SUB * OCTAVES;

/// Counts of one thread. Only that thread records; others read.
pub(crate) struct LatencyHistogram {
    counts: [AtomicU64; BUCKETS],
    /// Sum of all times in nanoseconds.
    sum_ns: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl LatencyHistogram {
    /// Counts `requests` that took `time` each.
    #[inline]
    pub(crate) fn record(&self, time: Duration, requests: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // One thread writes, so a load and a store lose nothing.
        let add = |to: &AtomicU64, more: u64| {
            to.store(
                to.load(Ordering::Relaxed).wrapping_add(more),
                Ordering::Relaxed,
            );
        };
        add(&self.counts[bucket_of(ns)], requests);
        add(&self.sum_ns, ns.saturating_mul(requests));
    }
}

/// Sums over several [`LatencyHistogram`]s.
pub(crate) struct LatencyTotals {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl LatencyTotals {
    /// Adds `histograms`.
    pub(crate) fn of<'a>(histograms: impl Iterator<Item = &'a LatencyHistogram>) -> LatencyTotals {
        let mut totals = LatencyTotals {
            counts: [0; BUCKETS],
            sum_ns: 0,
        };
        for histogram in histograms {
            for (total, count) in totals.counts.iter_mut().zip(&histogram.counts) {
                *total += count.load(Ordering::Relaxed);
            }
            let sum_ns = histogram.sum_ns.load(Ordering::Relaxed);
            totals.sum_ns = totals.sum_ns.wrapping_add(sum_ns);
        }
        totals
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all times in seconds.
    pub(crate) fn sum_secs(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Returns the buckets that are not empty: the upper limit of each in microseconds, and its count.
    pub(crate) fn buckets_us(&self) -> Vec<(f64, u64)> {
        let counted = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        counted
            .map(|(at, n)| (upper_ns(at) as f64 / 1e3, *n))
            .collect()
    }

    /// Returns one bucket for each power of two: its upper limit in seconds, and its count.
    pub(crate) fn octaves_secs(&self) -> Vec<(f64, u64)> {
        let octaves = self.counts.chunks(SUB).enumerate();
        octaves
            .map(|(octave, counts)| {
                let upper = upper_ns(octave * SUB + SUB - 1) as f64 / 1e9;
                (upper, counts.iter().sum())
            })
            .collect()
    }
}

/// Returns the bucket of a time.
fn bucket_of(ns: u64) -> usize {
    let units = ns / UNIT_NS;
    if units < SUB as u64 {
        return units as usize;
    }
    let octave = units.ilog2() - SUB_BITS;
    let sub = (units >> octave) as usize - SUB;
    ((octave as usize + 1) * SUB + sub).min(BUCKETS - 1)
}

/// Returns the first nanosecond above a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (octave, sub) = (bucket / SUB, (bucket % SUB) as u64);
    let units = match octave {
        0 => sub + 1,
        _ => (SUB as u64 + sub + 1) << (octave - 1),
    };
    units * UNIT_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_ends_above_it() {
        for ns in (0..2_000_000).step_by(61).chain([1 << 30, 1 << 35]) {
            let bucket = bucket_of(ns);
            assert!(ns < upper_ns(bucket), "{ns} in {bucket}");
            assert!(bucket == 0 || ns >= upper_ns(bucket - 1), "{ns}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_totals_add_all_threads() {
        let threads = [LatencyHistogram::default(), LatencyHistogram::default()];
        threads[0].record(Duration::from_micros(10), 3);
        threads[1].record(Duration::from_millis(2), 4);
        let totals = LatencyTotals::of(threads.iter());
        assert_eq!(totals.count(), 7);
        assert!((totals.sum_secs() - 0.008_03).abs() < 1e-9);
        let buckets = totals.buckets_us();
        let counts: Vec<_> = buckets.iter().map(|(_, n)| *n).collect();
        assert_eq!(counts, [3, 4]);
        assert!((10.0..11.5).contains(&buckets[0].0), "{buckets:?}");
        assert!((2000.0..2300.0).contains(&buckets[1].0), "{buckets:?}");
        let octaves = totals.octaves_secs();
        assert!(octaves.is_sorted_by(|a, b| a.0 < b.0), "{octaves:?}");
        assert_eq!(octaves.iter().map(|(_, n)| n).sum::<u64>(), 7);
    }
}
