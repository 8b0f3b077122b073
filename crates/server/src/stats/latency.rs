//! How long requests take.
//!
//! A worker measures a batch of requests: from when it begins to execute the first of them until it sends the replies,
//! which is after the batch is durable where the medium needs a sync for that. All requests of the batch count with
//! that time. Time that a request spends in the socket before the worker reads it is not included.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::histogram::{Durations, Histogram, add};

/// Limits of the buckets that [`LatencyTotals::octaves_secs`] returns, as powers of two of nanoseconds: 1 microsecond to
/// 34 seconds.
const OCTAVES: std::ops::RangeInclusive<u32> = 10..=35;

/// Times of one thread's requests. Only that thread records; others read.
#[derive(Default)]
pub(crate) struct LatencyHistogram {
    times: Histogram,
    /// Sum of all times in nanoseconds.
    sum_ns: AtomicU64,
}

impl LatencyHistogram {
    /// Counts `requests` that took `time` each.
    #[inline]
    pub(crate) fn record(&self, time: Duration, requests: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times.record(ns, requests);
        add(&self.sum_ns, ns.saturating_mul(requests));
    }
}

/// Sums over several [`LatencyHistogram`]s.
#[derive(Default)]
pub(crate) struct LatencyTotals {
    times: Durations,
    sum_ns: u64,
}

impl LatencyTotals {
    /// Adds `histograms`.
    pub(crate) fn of<'a>(histograms: impl Iterator<Item = &'a LatencyHistogram>) -> LatencyTotals {
        let mut totals = LatencyTotals::default();
        for histogram in histograms {
            totals.times.add(&histogram.times);
            let sum_ns = histogram.sum_ns.load(Ordering::Relaxed);
            totals.sum_ns = totals.sum_ns.wrapping_add(sum_ns);
        }
        totals
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.times.count()
    }

    /// Returns the sum of all times in seconds.
    pub(crate) fn sum_secs(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Returns the buckets that are not empty: the upper limit of each in microseconds, and its count.
    pub(crate) fn buckets_us(&self) -> Vec<(f64, u64)> {
        let buckets = self.times.buckets();
        buckets
            .map(|(highest, count)| ((highest + 1) as f64 / 1e3, count))
            .collect()
    }

    /// Returns one bucket for each power of two: its upper limit in seconds, and its count. The last one has all longer
    /// times; its limit, `f64::MAX`, is what the OpenMetrics format writes as `+Inf`.
    pub(crate) fn octaves_secs(&self) -> Vec<(f64, u64)> {
        let octaves = OCTAVES.map(|bits| {
            let limit_ns = 1_u64 << bits;
            (limit_ns as f64 / 1e9, self.times.count_to(limit_ns - 1))
        });
        let mut before = 0;
        octaves
            .chain([(f64::MAX, self.count())])
            .map(|(limit, upto)| (limit, upto - std::mem::replace(&mut before, upto)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_add_all_threads() {
        let threads = [LatencyHistogram::default(), LatencyHistogram::default()];
        threads[0].record(Duration::from_micros(10), 3);
        threads[1].record(Duration::from_millis(2), 4);
        threads[1].record(Duration::from_secs(50), 1);
        let totals = LatencyTotals::of(threads.iter());
        assert_eq!(totals.count(), 8);
        assert!((totals.sum_secs() - 50.008_03).abs() < 1e-9);
        let buckets = totals.buckets_us();
        let counts: Vec<_> = buckets.iter().map(|(_, n)| *n).collect();
        assert_eq!(counts, [3, 4, 1]);
        assert!((10.0..10.4).contains(&buckets[0].0), "{buckets:?}");
        assert!((2000.0..2070.0).contains(&buckets[1].0), "{buckets:?}");
        let octaves = totals.octaves_secs();
        assert!(octaves.is_sorted_by(|a, b| a.0 < b.0), "{octaves:?}");
        assert_eq!(octaves.iter().map(|(_, n)| n).sum::<u64>(), 8);
        assert_eq!(octaves.last().map(|(_, n)| *n), Some(1));
    }
}
