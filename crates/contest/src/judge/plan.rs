//! Plan of a round: the operations of each thread, as a function of the round, the scale, the threads and the seed.
//!
//! ```text
//!   key number  =  index of the key among its thread's keys  x  threads  +  thread
//!
//!   set phase   new keys and updates, spread evenly; after some sets a key is read back
//!   hot keys    every n-th key of each thread:  read, written, read, written, ...
//!               the first fiftieth of the read keys, over all threads, is the hot spot
//!   get phase   gets of read keys, by any thread, 3 in 4 of them of the hot spot
//!               sets of the thread's own written keys; one set in 64 is of a read key
//! ```
//!
//! No list of keys is kept: a key is computed from its number. Only [`AckedValues`] is stored, 4 bytes per key,
//! because every read is checked against the acknowledged values.
//!
//! # Invariants
//! JUDGE-PLAN-1  A key belongs to one thread, and only this thread sets it.
//! JUDGE-PLAN-2  A thread's new keys are exactly its share of the round's keys. Exception: if a new key would exceed the limit
//!     on live bytes, the thread updates an old key instead.
//! JUDGE-PLAN-3  The live values never have more bytes than the round allows. A value that would exceed the limit is cut, at
//!     most to the shortest length.
//!
//! # What was not published
//! The load of the final's get phase is not public. The public judge draws sets and gets from one bell curve: gets
//! from its middle and sets from its tails, so that often-read keys are not often-written keys. The final must have
//! done the same: engines reported that a cache answered 98 % of gets although every set of a key invalidates it, and
//! that an LRU cache answered 99.99 %. So gets cannot be uniform over all keys, not even a quarter of them. It is
//! published that 75 % of gets go to the hot spot, and that some 50,000 keys are hot. That the spot is a fiftieth of
//! the read keys is our choice.

use std::sync::atomic::{AtomicU32, Ordering};

use farbank_pm::rng::Rng;

use super::value::{KeyNames, VALUE_BYTES_MIN};
use crate::ContestLimits;

/// Number of hot keys at full size.
const HOT_KEYS: u64 = 50_000;
/// One of this many read keys belongs to the hot spot, which gets 3 of 4 gets.
const SPOT: u64 = 50;
/// One of this many sets of a get phase updates a key that is read.
const SETS_OF_READ: u64 = 64;
/// After one of this many sets of the set phase, a key is read back.
const READ_BACK: u64 = 64;
/// After all keys have been read, one absent key is read for each of this many keys.
const ABSENT: u64 = 16;
/// Longest value in a get phase, in bytes.
const GET_PHASE_BYTES_MAX: usize = 128;
/// Lengths of the final's values: percentage, shortest and longest length in bytes.
const BANDS: [(u64, usize, usize); 4] = [
    (55, 80, 128),
    (25, 129, 256),
    (15, 257, 512),
    (5, 513, 1024),
];

/// Round of the contest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContestRound {
    /// Values of 80 bytes, almost no updates, nothing durable; 95 gets to 5 sets.
    Preliminary,
    /// Values of 80 to 1,024 bytes, 43.1 % updates, every set durable; 75 gets to 25 sets.
    Final,
}

impl ContestRound {
    /// Both rounds.
    pub const ALL: [ContestRound; 2] = [ContestRound::Preliminary, ContestRound::Final];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ContestRound::Preliminary => "preliminary",
            ContestRound::Final => "final",
        }
    }

    /// Returns the description on the command line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            ContestRound::Preliminary => {
                "Values of 80 bytes, almost no updates, 95 gets per 5 sets. Nothing has to be durable"
            }
            ContestRound::Final => {
                "Values of 80 to 1,024 bytes, 43.1 % updates, 75 gets per 25 sets. Every set is durable"
            }
        }
    }
}

/// Phase of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContestPhase {
    /// Stores and updates the keys.
    Set,
    /// Reads and updates keys. The number is the repetition.
    Get(u32),
    /// Reads every key once, by the thread that owns it, and then a 16th as many keys that do not exist. The contest
    /// had no such phase.
    ReadAll,
}

impl ContestPhase {
    /// Returns the name used in reports.
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
    /// Stores a version of a key of this thread.
    Set {
        /// Number of the key.
        id: u64,
        /// Version, from 1 on.
        version: u32,
        /// Length of the value in bytes.
        bytes: usize,
        /// Length of the value that it replaces; 0 if the key is new.
        old_bytes: usize,
    },
    /// Reads a key.
    Get {
        /// Number of the key.
        id: u64,
        /// Version acknowledged before this read; 0 if the key was not stored.
        version: u32,
        /// Whether the key belongs to this thread, so that the version must match exactly.
        own: bool,
    },
}

/// Plan of a round.
#[derive(Clone, Debug)]
pub struct RoundPlan {
    /// Round of the contest.
    pub round: ContestRound,
    /// Limits of the round.
    pub terms: ContestLimits,
    /// Generator of keys and values.
    pub names: KeyNames,
    seed: u64,
    /// Number of hot keys of each thread.
    hot: u64,
}

/// Version and length of the last acknowledged value of every key.
#[derive(Debug)]
pub struct AckedValues(Vec<AtomicU32>);

/// Bits of a word that hold the length.
const LENGTH_BITS: u32 = 11;

impl AckedValues {
    /// Returns version and length; 0 and 0 for a key that was never stored.
    #[must_use]
    pub fn get(&self, id: u64) -> (u32, usize) {
        let word = self.0[id as usize].load(Ordering::Acquire);
        (
            word >> LENGTH_BITS,
            (word & ((1 << LENGTH_BITS) - 1)) as usize,
        )
    }

    /// Records that a set was acknowledged.
    pub fn acknowledge(&self, id: u64, version: u32, bytes: usize) {
        let word = version << LENGTH_BITS | bytes as u32;
        self.0[id as usize].store(word, Ordering::Release);
    }
}

/// State of a thread's own keys, kept from phase to phase.
#[derive(Clone, Debug, Default)]
pub struct ThreadKeys {
    /// Number of keys stored.
    pub keys: u64,
    /// Bytes of their live values.
    pub live_bytes: u64,
    /// Largest value of `live_bytes` so far.
    pub live_bytes_max: u64,
    /// Number of values that were cut because of the limit.
    pub cut: u64,
}

impl RoundPlan {
    /// Creates the plan of a round with these limits.
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

    /// Returns an empty table of acknowledged values, with all pages present.
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

    /// Returns the number of keys of a thread.
    #[must_use]
    pub fn keys_of(&self, thread: usize) -> u64 {
        self.share(self.terms.keys, thread)
    }

    /// Returns the number of operations of a thread in each phase, without keys that are read back.
    #[must_use]
    pub fn operations_of(&self, thread: usize) -> u64 {
        self.share(self.terms.operations, thread)
    }

    /// Returns the number of a thread's key.
    fn id(&self, thread: usize, place: u64) -> u64 {
        place * self.terms.threads as u64 + thread as u64
    }

    /// Returns the index of a thread's hot key among its keys.
    fn hot_place(&self, thread: usize, hot: u64) -> u64 {
        let keys = self.keys_of(thread);
        hot * (keys / self.hot).max(1) % keys.max(1)
    }

    /// Returns the operations of a thread in a phase.
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

/// Operations of one thread in one phase.
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
    /// Returns the next operation. `batch` holds the operations since the last acknowledgement.
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
        // JUDGE-PLAN-2: of the remaining sets, including this one, `new` must store new keys.
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
        unreachable!("the percentages of BANDS add up to 100")
    }

    /// Returns the largest allowed length of a value that replaces one of `old_bytes`.
    fn room(&self, old_bytes: u64) -> u64 {
        let limit = self.plan.terms.live_bytes_max / self.plan.terms.threads as u64;
        limit.saturating_sub(self.own.live_bytes - old_bytes)
    }

    /// Returns version and length of a key after `batch`.
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
        // JUDGE-PLAN-3. The old value was not longer than the room that its removal leaves.
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

    /// Returns all operations of a phase, each acknowledged at once.
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
    fn the_set_phase_of_the_final_matches_published_numbers() {
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
    fn the_get_phase_of_the_final_reads_a_hot_spot_and_updates_other_hot_keys() {
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
    fn the_phases_of_the_preliminary_round_match_published_numbers() {
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
    fn a_seed_determines_all_operations() {
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
    fn only_the_owning_thread_sets_a_key() {
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
    fn a_tight_limit_on_live_bytes_is_respected() {
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
    fn a_read_expects_the_versions_set_earlier_in_its_batch() {
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
