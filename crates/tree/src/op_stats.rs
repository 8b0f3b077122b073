//! Counted costs of operations.

use std::collections::BTreeMap;

/// Counted costs of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpStats {
    /// Awaited batches, without failed attempts to take a lock. The paper counts these separately (section 5.5), and so
    /// does [`OpStats::lock_retries`].
    pub round_trips: u32,
    /// Repeated reads of nodes, because a read was torn or too slow.
    pub read_retries: u32,
    /// Failed attempts to take a lock.
    pub lock_retries: u32,
    /// Bytes written besides locks.
    pub bytes_written: u32,
    /// Whether the index cache led to the right leaf.
    pub cache_hit: bool,
    /// Whether the lock was handed over.
    pub handed_over: bool,
    /// Whether another client of the compute server performed it ([`crate::Config::shares_keys`]).
    pub shared: bool,
    /// Nodes split.
    pub splits: u32,
    /// Splits whose new leaf has the memory of a freed one.
    pub reused_leaves: u32,
    /// Leaves merged.
    pub merges: u32,
    /// Locks taken from dead owners.
    pub taken_over: u32,
    /// Separators added and moves completed for clients that did not finish.
    pub mended: u32,
}

/// Counts of numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// Counts one more of `what`.
    pub fn add(&mut self, what: u64) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Returns the total count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the share of numbers that satisfy `which`; 0 if there are none.
    #[must_use]
    pub fn share(&self, which: impl Fn(u64) -> bool) -> f64 {
        let those: u64 = self
            .0
            .iter()
            .filter(|(n, _)| which(**n))
            .map(|(_, c)| c)
            .sum();
        those as f64 / self.count().max(1) as f64
    }

    /// Returns the least number such that at least the share `part` of all numbers do not exceed it; 0 if there are
    /// none.
    #[must_use]
    pub fn quantile(&self, part: f64) -> u64 {
        let rank = (self.count() as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (&what, &count) in &self.0 {
            seen += count;
            if seen >= rank {
                return what;
            }
        }
        0
    }

    /// Returns the largest number; 0 if there are none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.0.keys().next_back().copied().unwrap_or(0)
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (&what, &count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

/// Counted costs of many operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeStats {
    /// Round trips of each write.
    pub write_trips: Histogram,
    /// Bytes written by each write.
    pub write_bytes: Histogram,
    /// Lock retries of each write.
    pub lock_retries: Histogram,
    /// Read retries of each lookup.
    pub read_retries: Histogram,
    /// Discarded reads of ranges.
    pub range_rereads: u64,
    /// Round trips of ranges.
    pub range_trips: u64,
    /// Operations that the cache led to the right leaf.
    pub cache_hits: u64,
    /// All operations on single keys.
    pub operations: u64,
    /// Writes whose lock was handed over.
    pub handed_over: u64,
    /// Nodes split.
    pub splits: u64,
    /// Leaves merged.
    pub merges: u64,
}

impl TreeStats {
    fn both(&mut self, op: &OpStats) {
        self.operations += 1;
        self.cache_hits += u64::from(op.cache_hit);
    }

    /// Counts a lookup.
    pub fn lookup(&mut self, op: &OpStats) {
        self.both(op);
        self.read_retries.add(op.read_retries.into());
    }

    /// Counts an insert, an update or a delete.
    pub fn write(&mut self, op: &OpStats) {
        self.both(op);
        self.write_trips.add(op.round_trips.into());
        self.write_bytes.add(op.bytes_written.into());
        self.lock_retries.add(op.lock_retries.into());
        self.handed_over += u64::from(op.handed_over);
        self.splits += u64::from(op.splits);
        self.merges += u64::from(op.merges);
    }

    /// Counts a range.
    pub fn range(&mut self, op: &OpStats) {
        self.range_rereads += u64::from(op.read_retries);
        self.range_trips += u64::from(op.round_trips);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &TreeStats) {
        self.range_rereads += other.range_rereads;
        self.range_trips += other.range_trips;
        self.write_trips.merge(&other.write_trips);
        self.write_bytes.merge(&other.write_bytes);
        self.lock_retries.merge(&other.lock_retries);
        self.read_retries.merge(&other.read_retries);
        self.cache_hits += other.cache_hits;
        self.operations += other.operations;
        self.handed_over += other.handed_over;
        self.splits += other.splits;
        self.merges += other.merges;
    }
}
