//! Hot keys: the effect of skew on writes and reads, and the number of writes that a batch merges.
//!
//! Half of the operations are sets, half are gets. A commit follows every window of operations, like after a round of
//! requests in a server. The skews are those that Tair's team reports from production: 1 % of the keys gets half of
//! the operations, in extreme cases 90 %. Memory is this process's, with real write-backs and fences. Skews take
//! turns, round after round.

use std::time::Instant;

use farbank_cache::{Cache, CacheSession, EvictionOrder};
use farbank_pm::media::Mapped;
use farbank_store::{Ops, ReadView, Session, Stats, Store, Value};

use super::{CacheOptions, failed, in_memory, named};
use crate::figure::{Error, Figure, ProgressFn, Report, median, report_progress};
use crate::index::keys::MinStdEngine as Draws;

/// Number of operations between two commits.
const WINDOW: u64 = 64;
const ROUNDS: usize = 5;
/// Smallest number of keys: then the smallest hot set is one key.
pub const ITEMS_MIN: u64 = 10_000;

/// Distribution of requests over keys.
struct RequestSkew {
    name: &'static str,
    /// Share of the operations that use hot keys.
    share: f64,
    /// One of this many keys is hot.
    one_in: u64,
}

const SKEWS: [RequestSkew; 4] = [
    RequestSkew {
        name: "uniform",
        share: 0.0,
        one_in: 1,
    },
    RequestSkew {
        name: "50 % on 1 % of the keys",
        share: 0.5,
        one_in: 100,
    },
    RequestSkew {
        name: "90 % on 1 % of the keys",
        share: 0.9,
        one_in: 100,
    },
    RequestSkew {
        name: "90 % on 0.01 % of the keys",
        share: 0.9,
        one_in: ITEMS_MIN,
    },
];

fn merged_writes(stats: &Stats) -> u64 {
    stats.cache.as_ref().map_or(0, |cache| cache.merged_writes)
}

/// Cache in which all keys have been stored.
struct FilledCache {
    cache: Cache<Mapped>,
    draws: Draws,
    value: Vec<u8>,
    items: u64,
}

/// Result of a round with one skew.
struct SkewRound {
    millions: f64,
    merged: u64,
    lines: u64,
    sets: u64,
}

pub(super) fn run(options: &CacheOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut filled = FilledCache::new(options)?;
    let mut rounds: [Vec<SkewRound>; SKEWS.len()] = Default::default();
    for round in 0..ROUNDS {
        for (skew, done) in SKEWS.iter().zip(&mut rounds) {
            report_progress(watch, skew.name, round as u64, ROUNDS as u64)?;
            done.push(filled.round(skew, options.requests)?);
        }
    }
    let mut report = Report::default();
    for (skew, done) in SKEWS.iter().zip(&rounds) {
        let pairs = done.iter().zip(&rounds[0]);
        let ratios: Vec<_> = pairs
            .map(|(one, uniform)| one.millions / uniform.millions)
            .collect();
        let millions: Vec<_> = done.iter().map(|round| round.millions).collect();
        let sum = |of: fn(&SkewRound) -> u64| done.iter().map(of).sum::<u64>() as f64;
        let sets = sum(|round| round.sets);
        let figures = [
            Figure::measured(skew.name, "operations", median(&millions)).unit("M/s"),
            Figure::measured(skew.name, "times uniform", median(&ratios)).at_least(1.0),
            Figure::counted(skew.name, "writes merged", sum(|r| r.merged) / sets * 100.0).unit("%"),
            Figure::counted(skew.name, "far lines", sum(|r| r.lines) / sets).unit("a set"),
        ];
        report.figures.extend(figures);
    }
    Ok(report)
}

impl FilledCache {
    fn new(options: &CacheOptions) -> Result<FilledCache, Error> {
        let filled = FilledCache {
            cache: in_memory(options.mib, EvictionOrder::Lru)?,
            draws: Draws::new(options.seed + 1),
            value: vec![b'x'; options.value_bytes],
            items: options.items,
        };
        let mut door = filled.cache.new_session();
        for key in 0..filled.items {
            filled.put(&mut door, key).map_err(failed)?;
        }
        door.commit().map_err(failed)?;
        drop(door);
        match filled
            .cache
            .stats()
            .cache
            .map_or(0, |cache| cache.evictions)
        {
            0 => Ok(filled),
            _ => Err(Error::Failed(format!(
                "{} items of {} bytes do not fit into {} MiB: ask for fewer, or for more with --mib",
                filled.items, options.value_bytes, options.mib
            ))),
        }
    }

    fn put(&self, door: &mut CacheSession<Mapped>, key: u64) -> Result<u64, farbank_store::Error> {
        let name = key.to_le_bytes();
        let value = Value {
            bytes: &self.value,
            ..Value::default()
        };
        door.put(named(&name), value)
    }

    fn draw(&mut self, skew: &RequestSkew) -> u64 {
        let among = match self.draws.canonical() < skew.share {
            true => self.items / skew.one_in,
            false => self.items,
        };
        (self.draws.canonical() * among as f64) as u64
    }

    fn round(&mut self, skew: &RequestSkew, requests: u64) -> Result<SkewRound, Error> {
        let mut door = self.cache.new_session();
        let before = self.cache.stats();
        let (mut out, mut sets) = (Vec::new(), 0);
        let keys: Vec<u64> = (0..requests).map(|_| self.draw(skew)).collect();
        let began = Instant::now();
        for window in keys.chunks(WINDOW as usize) {
            for (&key, set) in window.iter().zip([true, false].into_iter().cycle()) {
                if set {
                    self.put(&mut door, key).map_err(failed)?;
                    sets += 1;
                    continue;
                }
                out.clear();
                let name = key.to_le_bytes();
                let found = door.get(named(&name), ReadView::Pending, &mut out, &mut |_, _| true);
                if !found.map_err(failed)? || out != self.value {
                    return Err(Error::Failed(format!(
                        "key {key} is missing or its value differs from the stored one"
                    )));
                }
            }
            door.commit().map_err(failed)?;
        }
        let millions = requests as f64 / began.elapsed().as_secs_f64() / 1e6;
        let after = self.cache.stats();
        Ok(SkewRound {
            millions,
            merged: merged_writes(&after) - merged_writes(&before),
            lines: after.persistence.lines - before.persistence.lines,
            sets,
        })
    }
}
