//! What is asked, of whom, in which order: a function of the round, the scale, the threads and the seed.
//!
//! ```text
//!   key number  =  place of the key among its thread's  x  threads  +  thread
//!
//!   set phase   new keys and updates, spread evenly; now and then a key is read back
//!   hot keys    every so-many-th key of each thread:  read, written, read, written, ...
//!               of the read ones the first fiftieth, over all threads, is the hot spot
//!   get phase   3 gets of read keys, by anyone, 3 in 4 of them of the hot spot
//!               1 set of a written key of one's own; one in 64 of a read key
//! ```
//!
//! No list of keys is kept: a key is a number, and its bytes follow from it. What is kept is the
//! [`Ledger`], 4 bytes a key, because every read is to be judged by what was acknowledged.
//!
//! # Invariants
//! P1  A key belongs to one thread, and only that one sets it: nobody writes what somebody else writes.
//! P2  A thread's new keys are exactly its share of the round's, unless the limit on live bytes forbids
//!     one: then it updates instead.
//! P3  The values that are live never have more bytes than the round allows: a value that would be one
//!     too many is cut, to no less than the shortest.
//!
//! # What was not published
//! The load of the final's get phase is not public. That of the public judge draws sets and gets from
//! one bell curve, gets from its middle and sets from its tails, so that what is read often is not what is
//! written often. It must be so here, too: engines reported that 98 % of gets were answered by a
//! cache that every set of a key empties for it, and 99.99 % by one that forgets what was used longest
//! ago. So no quarter of the gets can go to all keys alike. That 75 % belong to the hot spot, and that some
//! 50,000 keys are hot, is published; that the spot is a fiftieth of the keys read is our choice.

use std::sync::atomic::{AtomicU32, Ordering};

use farbank_contest::ContestLimits;
use farbank_pm::sim::Rng;

use super::value::{KeyNames, VALUE_BYTES_MIN};

/// Keys that are hot at full size.
const HOT_KEYS: u64 = 50_000;
/// Of the keys that are read, one in so many belongs to the hot spot; of the gets, 3 in 4.
const SPOT: u64 = 50;
/// Of the sets of a get phase, one in so many is of a key that is read.
const SETS_OF_READ: u64 = 64;
/// After one in so many sets of the set phase, a key is read back.
const READ_BACK: u64 = 64;
/// When all keys have been read, so many times fewer that were never stored are asked for.
const ABSENT: u64 = 16;
/// The longest value of a get phase.
const GET_PHASE_BYTES_MAX: usize = 128;
/// Lengths of the final's values: so many in a hundred are from here to there.
const BANDS: [(u64, usize, usize); 4] = [
    (55, 80, 128),
    (25, 129, 256),
    (15, 257, 512),
    (5, 513, 1024),
];

/// Which round of the contest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContestRound {
    /// Values of 80 bytes, hardly an update, nothing durable; 95 gets to 5 sets.
    Preliminary,
    /// Values of 80 to 1,024 bytes, 43.1 % updates, every set durable; 75 gets to 25 sets.
    Final,
}

/// A phase of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContestPhase {
    /// The keys are stored and updated.
    Set,
    /// They are read and updated; the rounds of it are numbered.
    Get(u32),
    /// Every key is read once, by the thread it belongs to, and then one in 16 times as many that are
    /// not there. No phase of the contest's.
    ReadAll,
}

impl ContestPhase {
    /// What it is called.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            ContestPhase::Set => "set phase".into(),
            ContestPhase::Get(round) => format!("get phase {}", round + 1),
            ContestPhase::ReadAll => "reading every key".into(),
        }
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContestOp {
    /// Store this version of a key of one's own, of so many bytes.
    Set {
        /// The key's number.
        id: u64,
        /// The version, from 1 on.
        version: u32,
        /// Bytes of the value.
        bytes: usize,
        /// Bytes of the value it replaces; 0 if the key is new.
        old_bytes: usize,
    },
    /// Read a key.
    Get {
        /// The key's number.
        id: u64,
        /// The version that was acknowledged before; 0 if none was.
        version: u32,
        /// Whether the key is one's own, so that it can be no other.
        own: bool,
    },
}

/// The round, whole.
#[derive(Clone, Debug)]
pub struct RoundPlan {
    /// Which round it is.
    pub round: ContestRound,
    /// What it allows.
    pub terms: ContestLimits,
    /// Keys and values.
    pub names: KeyNames,
    seed: u64,
    /// Hot keys of each thread.
    hot: u64,
}

/// The version and length of every key's value that was acknowledged.
#[derive(Debug)]
pub struct AckedValues(Vec<AtomicU32>);

/// Bits of a word of the ledger that are the length.
const LENGTH_BITS: u32 = 11;

impl AckedValues {
    /// Version and length; 0 and 0 of a key that was never stored.
    #[must_use]
    pub fn get(&self, id: u64) -> (u32, usize) {
        let word = self.0[id as usize].load(Ordering::Acquire);
        (
            word >> LENGTH_BITS,
            (word & ((1 << LENGTH_BITS) - 1)) as usize,
        )
    }

    /// A set was acknowledged.
    pub fn acknowledge(&self, id: u64, version: u32, bytes: usize) {
        let word = version << LENGTH_BITS | bytes as u32;
        self.0[id as usize].store(word, Ordering::Release);
    }
}

/// What a thread knows of its own keys, from phase to phase.
#[derive(Clone, Debug, Default)]
pub struct ThreadKeys {
    /// Keys it has stored.
    pub keys: u64,
    /// Bytes of their values.
    pub live_bytes: u64,
    /// The most there ever were.
    pub live_bytes_max: u64,
    /// Values that were cut because of the limit.
    pub cut: u64,
}

impl RoundPlan {
    /// The plan of a round on these terms.
    #[must_use]
    pub fn new(round: ContestRound, terms: ContestLimits, seed: u64) -> RoundPlan {
        let threads = terms.threads as u64;
        let part = (1u64 << (28 - terms.hash_bits.min(28))).max(1);
        RoundPlan {
            hot: (HOT_KEYS / part / threads).max(4),
            names: KeyNames::new(seed),
            round,
            terms,
            seed,
        }
    }

    /// A ledger in which nothing is stored yet, all of it present in memory.
    #[must_use]
    pub fn ledger(&self) -> AckedValues {
        let ledger = AckedValues((0..self.terms.keys).map(|_| AtomicU32::new(1)).collect());
        ledger
            .0
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        ledger
    }

    fn share(&self, of: u64, thread: usize) -> u64 {
        let threads = self.terms.threads as u64;
        of / threads + u64::from((thread as u64) < of % threads)
    }

    /// Keys of a thread.
    #[must_use]
    pub fn keys_of(&self, thread: usize) -> u64 {
        self.share(self.terms.keys, thread)
    }

    /// Operations of a thread in each phase; reading back comes on top.
    #[must_use]
    pub fn operations_of(&self, thread: usize) -> u64 {
        self.share(self.terms.operations, thread)
    }

    /// The number of a thread's key.
    fn id(&self, thread: usize, place: u64) -> u64 {
        place * self.terms.threads as u64 + thread as u64
    }

    /// The place of a thread's hot key among its keys.
    fn hot_place(&self, thread: usize, hot: u64) -> u64 {
        let keys = self.keys_of(thread);
        hot * (keys / self.hot).max(1) % keys.max(1)
    }

    /// The operations of a thread in a phase.
    #[must_use]
    pub fn stream<'a>(
        &'a self,
        phase: ContestPhase,
        thread: usize,
        ledger: &'a AckedValues,
        own: &'a mut ThreadKeys,
    ) -> OpStream<'a> {
        let purpose = match phase {
            ContestPhase::Set => 0,
            ContestPhase::Get(round) => u64::from(round) + 1,
            ContestPhase::ReadAll => u64::from(u32::MAX),
        };
        let rng = Rng::new(self.seed).fork(purpose << 32 | thread as u64);
        let left = match phase {
            ContestPhase::ReadAll => own.keys + own.keys / ABSENT,
            ContestPhase::Set | ContestPhase::Get(_) => self.operations_of(thread),
        };
        OpStream {
            left,
            plan: self,
            phase,
            thread,
            ledger,
            own,
            rng,
            read_back: false,
        }
    }
}

/// The operations of one thread in one phase.
#[derive(Debug)]
pub struct OpStream<'a> {
    plan: &'a RoundPlan,
    phase: ContestPhase,
    thread: usize,
    ledger: &'a AckedValues,
    own: &'a mut ThreadKeys,
    rng: Rng,
    left: u64,
    read_back: bool,
}

impl OpStream<'_> {
    /// The next operation. `batch` are those since the ledger was last told what was acknowledged.
    pub fn next(&mut self, batch: &[ContestOp]) -> Option<ContestOp> {
        if std::mem::take(&mut self.read_back) {
            let place = self.rng.below(self.own.keys);
            return Some(self.get(self.thread, place, batch));
        }
        self.left = self.left.checked_sub(1)?;
        Some(match self.phase {
            ContestPhase::Set => self.of_set_phase(batch),
            ContestPhase::Get(_) => self.of_get_phase(batch),
            ContestPhase::ReadAll if self.left < self.own.keys => {
                self.get(self.thread, self.left, batch)
            }
            ContestPhase::ReadAll => ContestOp::Get {
                id: self
                    .plan
                    .id(self.thread, self.plan.keys_of(self.thread) + self.left),
                version: 0,
                own: true,
            },
        })
    }

    fn of_set_phase(&mut self, batch: &[ContestOp]) -> ContestOp {
        self.read_back = self.rng.one_in(READ_BACK);
        let new = self.plan.keys_of(self.thread) - self.own.keys;
        // P2: of the sets that are left, this one included, `new` are of new keys.
        let is_new = self.own.keys == 0 || self.rng.below(self.left + 1) < new;
        let bytes = match self.plan.round {
            ContestRound::Preliminary => self.plan.terms.value_bytes.1,
            ContestRound::Final => self.value_bytes(),
        };
        if is_new && self.room(0) >= self.plan.terms.value_bytes.0 as u64 {
            self.own.keys += 1;
            return self.set(self.own.keys - 1, bytes, batch);
        }
        let place = self.rng.below(self.own.keys);
        self.set(place, bytes, batch)
    }

    fn of_get_phase(&mut self, batch: &[ContestOp]) -> ContestOp {
        let gets_in_100 = match self.plan.round {
            ContestRound::Preliminary => 95,
            ContestRound::Final => 75,
        };
        if self.rng.below(100) < gets_in_100 {
            let threads = self.plan.terms.threads as u64;
            let all = self.plan.hot / 2 * threads;
            let among = match self.rng.below(4) {
                0 => all,
                _ => (all / SPOT).max(1),
            };
            let n = self.rng.below(among);
            let thread = (n % threads) as usize;
            let place = self.plan.hot_place(thread, n / threads * 2);
            return self.get(thread, place, batch);
        }
        let pair = self.rng.below(self.plan.hot / 2) * 2;
        let written = u64::from(!self.rng.one_in(SETS_OF_READ));
        let place = self.plan.hot_place(self.thread, pair + written);
        let (least, most) = self.plan.terms.value_bytes;
        let most = most.min(GET_PHASE_BYTES_MAX);
        let bytes = least + self.rng.below((most - least) as u64 + 1) as usize;
        self.set(place.min(self.own.keys - 1), bytes, batch)
    }

    fn value_bytes(&mut self) -> usize {
        let mut draw = self.rng.below(100);
        for (share, from, to) in BANDS {
            if draw < share {
                return from + self.rng.below((to - from) as u64 + 1) as usize;
            }
            draw -= share;
        }
        unreachable!("the bands' shares are a hundred")
    }

    /// Bytes a value may have that replaces one of `old_bytes`.
    fn room(&self, old_bytes: u64) -> u64 {
        let limit = self.plan.terms.live_bytes_max / self.plan.terms.threads as u64;
        limit.saturating_sub(self.own.live_bytes - old_bytes)
    }

    /// Version and length of a key as they are after `batch`.
    fn now(&self, id: u64, batch: &[ContestOp]) -> (u32, usize) {
        let set = batch.iter().rev().find_map(|op| match *op {
            ContestOp::Set {
                id: of,
                version,
                bytes,
                ..
            } if of == id => Some((version, bytes)),
            _ => None,
        });
        set.unwrap_or_else(|| self.ledger.get(id))
    }

    fn set(&mut self, place: u64, bytes: usize, batch: &[ContestOp]) -> ContestOp {
        let id = self.plan.id(self.thread, place);
        let (version, old_bytes) = self.now(id, batch);
        // P3. What is replaced was not longer than the room it leaves.
        let least = self.plan.terms.value_bytes.0.max(VALUE_BYTES_MIN);
        let room = self.room(old_bytes as u64).max(least as u64);
        self.own.cut += u64::from(room < bytes as u64);
        let bytes = bytes.min(room as usize);
        self.own.live_bytes = self.own.live_bytes - old_bytes as u64 + bytes as u64;
        self.own.live_bytes_max = self.own.live_bytes_max.max(self.own.live_bytes);
        ContestOp::Set {
            id,
            version: version + 1,
            bytes,
            old_bytes,
        }
    }

    fn get(&self, thread: usize, place: u64, batch: &[ContestOp]) -> ContestOp {
        let id = self.plan.id(thread, place);
        let own = thread == self.thread;
        let (version, _) = match own {
            true => self.now(id, batch),
            false => self.ledger.get(id),
        };
        ContestOp::Get { id, version, own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation of a phase, acknowledged one by one.
    fn all(
        plan: &RoundPlan,
        phase: ContestPhase,
        ledger: &AckedValues,
        owns: &mut [ThreadKeys],
    ) -> Vec<ContestOp> {
        let mut ops = Vec::new();
        for (thread, own) in owns.iter_mut().enumerate() {
            let mut stream = plan.stream(phase, thread, ledger, own);
            while let Some(op) = stream.next(&[]) {
                if let ContestOp::Set {
                    id, version, bytes, ..
                } = op
                {
                    ledger.acknowledge(id, version, bytes);
                }
                ops.push(op);
            }
        }
        ops
    }

    fn of(round: ContestRound, threads: usize) -> (RoundPlan, AckedValues, Vec<ThreadKeys>) {
        let terms = match round {
            ContestRound::Preliminary => ContestLimits::preliminary(4096),
            ContestRound::Final => ContestLimits::finals(1024),
        };
        let plan = RoundPlan::new(round, terms.with_threads(threads), 7);
        let ledger = plan.ledger();
        (plan, ledger, vec![ThreadKeys::default(); threads])
    }

    fn sets(ops: &[ContestOp]) -> Vec<(u64, u32, usize, usize)> {
        ops.iter()
            .filter_map(|op| match *op {
                ContestOp::Set {
                    id,
                    version,
                    bytes,
                    old_bytes,
                } => Some((id, version, bytes, old_bytes)),
                ContestOp::Get { .. } => None,
            })
            .collect()
    }

    fn share(count: usize, of: usize) -> f64 {
        count as f64 / of as f64
    }

    #[test]
    fn the_finals_set_phase_is_as_published() {
        let (plan, ledger, mut owns) = of(ContestRound::Final, 3);
        let ops = all(&plan, ContestPhase::Set, &ledger, &mut owns);
        let sets = sets(&ops);
        assert_eq!(sets.len() as u64, plan.terms.operations);
        let new = sets.iter().filter(|set| set.3 == 0).count();
        assert_eq!(new as u64, plan.terms.keys);
        assert!((share(new, sets.len()) - 0.5688).abs() < 1e-4);
        for (percent, from, to) in BANDS {
            let in_band = |set: &&(u64, u32, usize, usize)| (from..=to).contains(&set.2);
            let found = share(sets.iter().filter(in_band).count(), sets.len());
            assert!(
                (found - percent as f64 / 100.0).abs() < 0.004,
                "{from}: {found}"
            );
        }
        let mean = sets.iter().map(|set| set.2).sum::<usize>() as f64 / sets.len() as f64;
        assert!((mean - 201.4).abs() < 1.0, "{mean}");
        let read_back = share(ops.len() - sets.len(), sets.len());
        assert!((read_back - 1.0 / 64.0).abs() < 0.002, "{read_back}");
        let live: u64 = owns.iter().map(|own| own.live_bytes_max).sum();
        assert!(live <= plan.terms.live_bytes_max, "{live}");
        assert!(live > plan.terms.live_bytes_max / 10 * 9, "{live}");
        assert_eq!(owns.iter().map(|own| own.cut).sum::<u64>(), 0);
    }

    #[test]
    fn the_finals_get_phase_reads_a_hot_spot_and_updates_what_is_hot() {
        let (plan, ledger, mut owns) = of(ContestRound::Final, 2);
        all(&plan, ContestPhase::Set, &ledger, &mut owns);
        let ops = all(&plan, ContestPhase::Get(0), &ledger, &mut owns);
        assert_eq!(ops.len() as u64, plan.terms.operations);
        let sets = sets(&ops);
        assert!((share(sets.len(), ops.len()) - 0.25).abs() < 0.005);
        assert!(
            sets.iter()
                .all(|set| set.1 > 1 && (80..=128).contains(&set.2))
        );
        let mut gets = std::collections::HashMap::new();
        for op in &ops {
            if let ContestOp::Get { id, .. } = op {
                *gets.entry(*id).or_insert(0_usize) += 1;
            }
        }
        assert!(gets.len() as u64 <= plan.hot / 2 * 2);
        let hottest = gets.values().max().copied().unwrap_or_default();
        // At this scale the hot spot is one key.
        let found = share(hottest, ops.len() - sets.len());
        assert!((found - 0.75).abs() < 0.03, "{found}");
        let read = sets.iter().filter(|set| gets.contains_key(&set.0)).count();
        assert!((share(read, sets.len()) - 1.0 / 64.0).abs() < 0.005);
    }

    #[test]
    fn the_preliminarys_phases_are_as_published() {
        let (plan, ledger, mut owns) = of(ContestRound::Preliminary, 2);
        let ops = all(&plan, ContestPhase::Set, &ledger, &mut owns);
        let stored = sets(&ops);
        let updates = stored.iter().filter(|set| set.3 != 0).count();
        assert!((0.001..=0.002).contains(&share(updates, stored.len())));
        assert!(stored.iter().all(|set| set.2 == 80));
        let ops = all(&plan, ContestPhase::Get(3), &ledger, &mut owns);
        assert!((share(sets(&ops).len(), ops.len()) - 0.05).abs() < 0.005);
    }

    #[test]
    fn the_same_seed_asks_the_same_and_another_seed_does_not() {
        let run = |seed| {
            let terms = ContestLimits::finals(16_384).with_threads(2);
            let plan = RoundPlan::new(ContestRound::Final, terms, seed);
            let (ledger, mut owns) = (plan.ledger(), vec![ThreadKeys::default(); 2]);
            let mut ops = all(&plan, ContestPhase::Set, &ledger, &mut owns);
            ops.extend(all(&plan, ContestPhase::Get(0), &ledger, &mut owns));
            ops
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn a_key_belongs_to_one_thread() {
        let (plan, ledger, mut owns) = of(ContestRound::Final, 3);
        for phase in [ContestPhase::Set, ContestPhase::Get(0)] {
            for (thread, own) in owns.iter_mut().enumerate() {
                let mut stream = plan.stream(phase, thread, &ledger, own);
                let mut before = None;
                while let Some(op) = stream.next(&[]) {
                    if let ContestOp::Set {
                        id, version, bytes, ..
                    } = op
                    {
                        assert_eq!(id % 3, thread as u64);
                        ledger.acknowledge(id, version, bytes);
                    }
                    assert_ne!(before.replace(op), Some(op));
                    if matches!(op, ContestOp::Get { .. }) {
                        before = None;
                    }
                }
            }
        }
    }

    #[test]
    fn the_limit_on_live_bytes_holds_where_it_is_tight() {
        let mut terms = ContestLimits::finals(4096).with_threads(2);
        terms.live_bytes_max /= 2;
        let plan = RoundPlan::new(ContestRound::Final, terms, 7);
        let (ledger, mut owns) = (plan.ledger(), vec![ThreadKeys::default(); 2]);
        let ops = all(&plan, ContestPhase::Set, &ledger, &mut owns);
        assert_eq!(sets(&ops).len() as u64, plan.terms.operations);
        assert!(owns.iter().all(|own| own.cut > 0));
        let live: u64 = owns.iter().map(|own| own.live_bytes_max).sum();
        assert!(live <= plan.terms.live_bytes_max, "{live}");
        let stored: usize = (0..plan.terms.keys).map(|id| ledger.get(id).1).sum();
        let now: u64 = owns.iter().map(|own| own.live_bytes).sum();
        assert_eq!(stored as u64, now);
    }

    #[test]
    fn every_key_is_read_once_at_the_end() {
        let (plan, ledger, mut owns) = of(ContestRound::Final, 3);
        all(&plan, ContestPhase::Set, &ledger, &mut owns);
        let ops = all(&plan, ContestPhase::ReadAll, &ledger, &mut owns);
        let ids: std::collections::HashSet<u64> = ops
            .iter()
            .map(|op| match *op {
                ContestOp::Get { id, version, own } => {
                    assert!(own);
                    assert_eq!(version > 0, id < plan.terms.keys);
                    id
                }
                other @ ContestOp::Set { .. } => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ops.len(), ids.len());
        let absent = ids.iter().filter(|id| **id >= plan.terms.keys).count() as u64;
        assert_eq!(ids.len() as u64 - absent, plan.terms.keys);
        assert!((share(absent as usize, ids.len()) - 1.0 / 17.0).abs() < 0.001);
    }

    #[test]
    fn what_a_batch_sets_counts_before_it_is_acknowledged() {
        let (plan, ledger, mut owns) = of(ContestRound::Final, 1);
        let mut stream = plan.stream(ContestPhase::Set, 0, &ledger, &mut owns[0]);
        let mut batch = Vec::new();
        let mut versions = std::collections::HashMap::new();
        for _ in 0..200 {
            let op = stream.next(&batch).unwrap();
            match op {
                ContestOp::Set { id, version, .. } => {
                    let before = versions.insert(id, version).unwrap_or(0);
                    assert_eq!(version, before + 1);
                }
                ContestOp::Get { id, version, own } => {
                    assert!(own);
                    assert_eq!(versions[&id], version);
                }
            }
            batch.push(op);
        }
        assert!(versions.values().any(|version| *version > 1));
    }
}
