//! Workloads of the tree: mixes, and the distribution of keys.
//!
//! The key space has a quarter more keys than the tree has entries at the start, spread evenly. So an insert of a
//! random key is an update four times in five. Ranks of the zipfian distribution are scattered over the key space.
//! Ranks are always drawn from the paper's key space of a billion keys and folded onto the tree's. So even in a small
//! tree the hottest keys are as hot as in the paper, which determines the contention.
//!
//! The mixes of YCSB (Cooper et al., SoCC 2010) have the names `ycsb-a` to `ycsb-f`. Their updates are inserts of this key space;
//! a read-modify-write is a lookup and compare-and-swaps until one succeeds. New keys are greater than all others.

use std::sync::atomic::{AtomicU64, Ordering};

use farbank_fabric::Fabric;
use farbank_pm::rng::Rng;
use farbank_tree::{CasOutcome, Client, TreeError};

/// Mix of operations.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TreeMix {
    /// Name, as in the paper.
    pub name: &'static str,
    /// Percentage of inserts among the operations of clients without range queries; the others are lookups.
    pub inserts: u64,
    /// Percentage of clients that only run range queries.
    pub rangers: u64,
    /// Number of entries of a range query; of one in a YCSB mix, the maximum.
    pub range_len: usize,
    /// Operations of a YCSB mix besides lookups and inserts.
    ycsb: Option<YcsbShares>,
}

/// Percentages of the operations that only YCSB mixes have, and their distribution of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct YcsbShares {
    new_keys: u64,
    ranges: u64,
    modifies: u64,
    /// Whether lookups prefer the newest keys.
    prefers_new: bool,
}

impl TreeMix {
    /// Inserts only.
    pub const WRITE_ONLY: TreeMix = TreeMix::of("write-only", 100, 0);
    /// Half inserts, half lookups.
    pub const WRITE_INTENSIVE: TreeMix = TreeMix::of("write-intensive", 50, 0);
    /// One insert in twenty operations.
    pub const READ_INTENSIVE: TreeMix = TreeMix::of("read-intensive", 5, 0);
    /// Range queries only.
    pub const RANGE_ONLY: TreeMix = TreeMix::of("range-only", 0, 100);
    /// Half of the clients insert, the other half run range queries.
    pub const RANGE_WRITE: TreeMix = TreeMix::of("range-write", 100, 50);

    const fn of(name: &'static str, inserts: u64, rangers: u64) -> TreeMix {
        TreeMix {
            name,
            inserts,
            rangers,
            range_len: 100,
            ycsb: None,
        }
    }

    const fn ycsb(name: &'static str, updates: u64, shares: YcsbShares) -> TreeMix {
        TreeMix {
            ycsb: Some(shares),
            ..TreeMix::of(name, updates, 0)
        }
    }

    /// YCSB A to F, in their order.
    pub const YCSB: [TreeMix; 6] = {
        const NONE: YcsbShares = YcsbShares {
            new_keys: 0,
            ranges: 0,
            modifies: 0,
            prefers_new: false,
        };
        [
            TreeMix::ycsb("ycsb-a", 50, NONE),
            TreeMix::ycsb("ycsb-b", 5, NONE),
            TreeMix::ycsb("ycsb-c", 0, NONE),
            TreeMix::ycsb(
                "ycsb-d",
                0,
                YcsbShares {
                    new_keys: 5,
                    prefers_new: true,
                    ..NONE
                },
            ),
            TreeMix::ycsb(
                "ycsb-e",
                0,
                YcsbShares {
                    new_keys: 5,
                    ranges: 95,
                    ..NONE
                },
            ),
            TreeMix::ycsb(
                "ycsb-f",
                0,
                YcsbShares {
                    modifies: 50,
                    ..NONE
                },
            ),
        ]
    };

    /// The paper's mixes.
    pub const PAPER: [TreeMix; 5] = [
        TreeMix::WRITE_ONLY,
        TreeMix::WRITE_INTENSIVE,
        TreeMix::READ_INTENSIVE,
        TreeMix::RANGE_ONLY,
        TreeMix::RANGE_WRITE,
    ];

    /// All mixes.
    pub const ALL: [TreeMix; 11] = {
        let [p0, p1, p2, p3, p4] = TreeMix::PAPER;
        let [a, b, c, d, e, f] = TreeMix::YCSB;
        [p0, p1, p2, p3, p4, a, b, c, d, e, f]
    };
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TreeOp {
    Get(u64),
    Insert(u64),
    Range(u64, usize),
    /// A lookup, then compare-and-swaps until one succeeds.
    Modify(u64),
}

/// Keys of the paper's key space: its tree has room for a billion entries and is filled to 80 %.
const PAPER_KEYS: u64 = 1_000_000_000;

/// Ranks with a zipfian distribution (Gray et al., SIGMOD 1994), or uniform with a skew of 0.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub(super) fn new(items: u64, theta: f64) -> Zipf {
        let zeta = zeta(items, theta);
        let two = 1.0 + 0.5_f64.powf(theta);
        Zipf {
            items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta: (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - two / zeta),
        }
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        if self.theta == 0.0 {
            return rng.below(self.items);
        }
        let u = (rng.draw() >> 11) as f64 / (1_u64 << 53) as f64;
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// Returns the sum of n^-theta for n up to `items`. The first terms are added up. The others follow from the
/// Euler-Maclaurin formula, whose first omitted term is below 1e-12.
fn zeta(items: u64, theta: f64) -> f64 {
    const ADDED: u64 = 10_000;
    let term = |n: u64| (n as f64).powf(-theta);
    let first: f64 = (1..=items.min(ADDED)).map(term).sum();
    if items <= ADDED {
        return first;
    }
    let whole = |n: u64| (n as f64).powf(1.0 - theta) / (1.0 - theta);
    let ends = f64::midpoint(term(items), -term(ADDED));
    let slope = |n: u64| -theta * term(n) / n as f64 / 12.0;
    first + whole(items) - whole(ADDED) + ends + slope(items) - slope(ADDED)
}

/// Keys of a run.
#[derive(Debug)]
pub(super) struct RunKeys {
    space: u64,
    /// Number of keys: the key space and the new keys.
    keys: AtomicU64,
    zipf: Zipf,
    /// Scatters ranks over the key space. It is coprime to the size of the key space.
    stride: u64,
}

impl RunKeys {
    /// Creates the keys of a tree with `entries` entries at the start.
    pub(super) fn new(entries: u64, theta: f64) -> RunKeys {
        let space = entries / 4 * 5 + 5;
        let mut stride = (space / 8 * 5) | 1;
        while divisor(stride, space) > 1 {
            stride += 2;
        }
        RunKeys {
            space,
            keys: AtomicU64::new(space),
            zipf: Zipf::new(space.max(PAPER_KEYS), theta),
            stride,
        }
    }

    /// Returns the entries at the start, ordered by key.
    pub(super) fn start(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let there = |key: &u64| RunKeys::is_drawn(*key);
        (0..self.space).filter(there).map(|key| (key, key + 1))
    }

    /// Returns whether `key` has an entry at the start.
    pub(super) fn is_at_start(&self, key: u64) -> bool {
        key < self.space && RunKeys::is_drawn(key)
    }

    fn is_drawn(key: u64) -> bool {
        !Rng::new(key).draw().is_multiple_of(5)
    }

    /// Returns the size of the key space.
    pub(super) fn space(&self) -> u64 {
        self.space
    }

    /// Returns a key that is greater than all others.
    fn new_key(&self) -> u64 {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }

    /// Draws a key. The newest is the most probable one.
    fn draw_new(&self, rng: &mut Rng) -> u64 {
        let keys = self.keys.load(Ordering::Relaxed);
        keys - 1 - self.zipf.draw(rng) % keys
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        let rank = u128::from(self.zipf.draw(rng));
        (rank * u128::from(self.stride) % u128::from(self.space)) as u64
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

impl TreeMix {
    /// Returns this mix with range queries of `range_len` entries.
    #[must_use]
    pub const fn with_range(self, range_len: usize) -> TreeMix {
        TreeMix { range_len, ..self }
    }

    /// Returns whether client `number` of a compute server runs range queries. Such clients are spread evenly.
    pub(super) fn is_ranger(&self, number: u64) -> bool {
        (number + 1) * self.rangers / 100 > number * self.rangers / 100
    }

    /// Draws the next operation of a client.
    pub(super) fn draw(&self, ranger: bool, keys: &RunKeys, rng: &mut Rng) -> TreeOp {
        let key = keys.draw(rng);
        let n = rng.below(100);
        match self.ycsb {
            _ if ranger => TreeOp::Range(key, self.range_len),
            _ if n < self.inserts => TreeOp::Insert(key),
            None => TreeOp::Get(key),
            Some(shares) => self.draw_ycsb(shares, key, n - self.inserts, keys, rng),
        }
    }

    /// Returns an operation of a YCSB mix on `key` that is not an update. `n` is below 100 less the updates.
    fn draw_ycsb(
        &self,
        shares: YcsbShares,
        key: u64,
        n: u64,
        keys: &RunKeys,
        rng: &mut Rng,
    ) -> TreeOp {
        let YcsbShares {
            new_keys,
            ranges,
            modifies,
            prefers_new,
        } = shares;
        if n < new_keys {
            TreeOp::Insert(keys.new_key())
        } else if n < new_keys + ranges {
            TreeOp::Range(key, 1 + rng.below(self.range_len as u64) as usize)
        } else if n < new_keys + ranges + modifies {
            TreeOp::Modify(key)
        } else if prefers_new {
            TreeOp::Get(keys.draw_new(rng))
        } else {
            TreeOp::Get(key)
        }
    }
}

/// Performs an operation. `value` is the value of a write.
pub(super) async fn perform<F: Fabric>(
    client: &Client<F>,
    op: TreeOp,
    value: u64,
) -> Result<(), TreeError> {
    match op {
        TreeOp::Get(key) => client.get(key).await.map(drop),
        TreeOp::Insert(key) => client.insert(key, value).await.map(drop),
        TreeOp::Range(key, count) => client.range(key, count).await.map(drop),
        TreeOp::Modify(key) => {
            let mut found = client.get(key).await?;
            while let CasOutcome::Differs(other) =
                client.compare_and_swap(key, found, Some(value)).await?
            {
                found = other;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_keys_in_five_exist_at_the_start_and_ranks_reach_all_keys() {
        let keys = RunKeys::new(10_000, 0.0);
        let there = keys.start().count();
        assert!((9_700..10_300).contains(&there), "{there}");
        let scattered: std::collections::BTreeSet<u64> = (0..keys.space)
            .map(|rank| rank * keys.stride % keys.space)
            .collect();
        assert_eq!(scattered.len() as u64, keys.space);
    }

    #[test]
    fn the_ycsb_mixes_have_their_operations() {
        // Lookups, updates, new keys, ranges and read-modify-writes, in percent.
        let published = [
            [50, 50, 0, 0, 0],
            [95, 5, 0, 0, 0],
            [100, 0, 0, 0, 0],
            [95, 0, 5, 0, 0],
            [0, 0, 5, 95, 0],
            [50, 0, 0, 0, 50],
        ];
        for (mix, expected) in TreeMix::YCSB.iter().zip(published) {
            let keys = RunKeys::new(1_000, 0.99);
            let mut rng = Rng::new(1);
            let mut found = [0_u64; 5];
            for _ in 0..100_000 {
                let kind = match mix.draw(false, &keys, &mut rng) {
                    TreeOp::Get(_) => 0,
                    TreeOp::Insert(key) if key < keys.space => 1,
                    TreeOp::Insert(_) => 2,
                    TreeOp::Range(_, count) => {
                        assert!((1..=100).contains(&count), "{count}");
                        3
                    }
                    TreeOp::Modify(_) => 4,
                };
                found[kind] += 1;
            }
            for (found, percent) in found.iter().zip(expected) {
                let near = found.abs_diff(percent * 1000) < 600;
                assert!(
                    near,
                    "{}: {found} of 100,000, expected {percent} %",
                    mix.name
                );
            }
        }
    }

    #[test]
    fn half_the_clients_of_range_write_run_range_queries() {
        for (mix, due) in [
            (TreeMix::RANGE_WRITE, 11),
            (TreeMix::RANGE_ONLY, 22),
            (TreeMix::WRITE_ONLY, 0),
        ] {
            let rangers = (0..22).filter(|number| mix.is_ranger(*number)).count();
            assert_eq!(rangers, due, "{}", mix.name);
        }
    }

    #[test]
    fn the_zeta_formula_equals_the_sum_of_its_terms() {
        for theta in [0.0, 0.5, 0.9, 0.99] {
            let added: f64 = (1..=1_000_000_u64).map(|n| (n as f64).powf(-theta)).sum();
            let found = zeta(1_000_000, theta);
            assert!(
                (found / added - 1.0).abs() < 1e-9,
                "{theta}: {found}, {added}"
            );
        }
    }

    #[test]
    fn a_skew_of_0_99_gives_the_first_rank_its_share() {
        let zipf = Zipf::new(1_000_000, 0.99);
        let mut rng = Rng::new(1);
        let first = (0..100_000).filter(|_| zipf.draw(&mut rng) == 0).count();
        let share = 100_000.0 / zipf.zeta;
        assert!(
            (first as f64 - share).abs() < share / 10.0,
            "rank 1 was drawn {first} times, expected {share}"
        );
    }
}
