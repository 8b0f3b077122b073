//! What each writer writes, and what a check must find after a power cut.
//!
//! A writer has keys of its own. Its batches are a function of the writer's number and the batch number. So a check
//! after a power cut can derive from two numbers what each key may hold: the number of acknowledged batches, and the
//! newest batch with any effect in the store:
//!
//! ```text
//!   batch  1  2  3  ...  acknowledged  ...  newest-1 │ newest  newest+1
//!          ───────────── must exist ─────────────────┴─── may exist ───
//! ```
//!
//! # Invariants
//! CHECK-POWER-1  A batch is durable before the next one begins: its writer waits.
//! CHECK-POWER-2  Every batch writes the writer's head key, so the head key's version shows how far the writer came.
//! CHECK-POWER-3  A value is a function of its key and its version. A version identifies its batch.
//! CHECK-POWER-4  Only group writes change the members of a group, and each changes all members.

use std::collections::HashMap;

use farbank_pm::rng::Rng;

use super::ack_sink::{BatchSink, WriteStep};
use super::error::PowerError;
use crate::child::UnwrittenValue;

/// Writes in a batch.
pub(crate) const BATCH_WRITES: u64 = 64;

const PLAIN: u64 = 1_200;
const GROUPS: u64 = 64;
const MEMBERS: u64 = 3;
const COUNTERS: u64 = 8;
/// A writer is never this many batches ahead of its acknowledgements. A larger distance is a violation.
const AHEAD_MAX: u64 = 1_000;

/// Key of one writer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WriterKey {
    Head,
    Plain(u64),
    Member(u64, u64),
    Counter(u64),
}

/// Version that a key holds, or `None` if the key does not exist. A counter's version is its count.
pub(crate) type KeyState = Option<u64>;

#[derive(Clone, Copy)]
enum PlannedWrite {
    Put(WriterKey, u64),
    Delete(WriterKey),
    PutGroup(u64, u64),
    DeleteGroup(u64),
    Count(u64),
}

/// Deterministic sequence of batches of one writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterPlan {
    writer: u64,
}

/// Result of a check.
#[derive(Default, Debug)]
pub(crate) struct CheckFindings {
    /// Number of acknowledged writes that are missing.
    pub(crate) lost: u64,
    /// Descriptions of all violations.
    pub(crate) wrong: Vec<String>,
    /// Batches that may be partly missing: from the first one (inclusive) to the first one not begun (exclusive).
    pub(crate) in_doubt: (u64, u64),
}

impl WriterPlan {
    pub(crate) fn new(writer: u64) -> WriterPlan {
        WriterPlan { writer }
    }

    fn keys(self) -> impl Iterator<Item = WriterKey> {
        let members =
            (0..GROUPS).flat_map(|group| (0..MEMBERS).map(move |m| WriterKey::Member(group, m)));
        std::iter::once(WriterKey::Head)
            .chain((0..PLAIN).map(WriterKey::Plain))
            .chain(members)
            .chain((0..COUNTERS).map(WriterKey::Counter))
    }

    fn name(self, key: WriterKey) -> String {
        let writer = self.writer;
        match key {
            WriterKey::Head => format!("w{writer}:head"),
            WriterKey::Plain(n) => format!("w{writer}:plain:{n}"),
            WriterKey::Member(group, member) => format!("w{writer}:group:{group}:{member}"),
            WriterKey::Counter(n) => format!("w{writer}:counter:{n}"),
        }
    }

    /// Returns the value of a version: mostly some hundred bytes. One in a hundred does not fit into the log of a
    /// small pool.
    fn value(self, key: WriterKey, version: u64) -> Vec<u8> {
        if let WriterKey::Counter(_) = key {
            return version.to_string().into_bytes();
        }
        let place = match key {
            WriterKey::Member(group, member) => (1 << 32) + group * MEMBERS + member,
            WriterKey::Plain(n) => n,
            _ => 1 << 33,
        };
        let mut rng = Rng::new(version).fork(place).fork(self.writer);
        let len = match rng.below(100) {
            0 => 4_000 + rng.below(8_000),
            1..=6 => 600 + rng.below(2_400),
            _ => rng.below(600),
        };
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend((0..len.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes()));
        bytes
    }

    /// Returns the state that `found` stands for. Fails if no write of `key` has these bytes.
    fn state(self, key: WriterKey, found: Option<&[u8]>) -> Result<KeyState, UnwrittenValue> {
        let Some(found) = found else {
            return Ok(None);
        };
        let version = match key {
            WriterKey::Counter(_) => std::str::from_utf8(found).ok().and_then(|s| s.parse().ok()),
            _ => found.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        };
        version
            .filter(|version| self.value(key, *version) == found)
            .map(Some)
            .ok_or_else(|| {
                UnwrittenValue(format!(
                    "{}: found {} bytes that were never written",
                    self.name(key),
                    found.len()
                ))
            })
    }

    fn batch(self, batch: u64) -> Vec<PlannedWrite> {
        let mut rng = Rng::new(batch).fork(self.writer);
        let first = batch * BATCH_WRITES;
        let others = (first + 1..first + BATCH_WRITES).map(|version| match rng.below(20) {
            0..=1 => PlannedWrite::Delete(WriterKey::Plain(rng.below(PLAIN))),
            2..=4 => PlannedWrite::PutGroup(rng.below(GROUPS), version),
            5 => PlannedWrite::DeleteGroup(rng.below(GROUPS)),
            6..=8 => PlannedWrite::Count(rng.below(COUNTERS)),
            _ => PlannedWrite::Put(WriterKey::Plain(rng.below(PLAIN)), version),
        });
        std::iter::once(PlannedWrite::Put(WriterKey::Head, first))
            .chain(others)
            .collect()
    }

    /// Returns the writes of a batch.
    pub(crate) fn steps(self, batch: u64) -> Vec<WriteStep> {
        let put = |key, version| (self.name(key), Some(self.value(key, version)));
        let members = |group| (0..MEMBERS).map(move |member| WriterKey::Member(group, member));
        let step = |write| match write {
            PlannedWrite::Put(key, version) => {
                WriteStep::Put(self.name(key), self.value(key, version))
            }
            PlannedWrite::Delete(key) => WriteStep::Delete(self.name(key)),
            PlannedWrite::PutGroup(group, version) => {
                WriteStep::Group(members(group).map(|key| put(key, version)).collect())
            }
            PlannedWrite::DeleteGroup(group) => {
                WriteStep::Group(members(group).map(|key| (self.name(key), None)).collect())
            }
            PlannedWrite::Count(n) => WriteStep::Count(self.name(WriterKey::Counter(n))),
        };
        self.batch(batch).into_iter().map(step).collect()
    }

    /// Completes the batches in doubt: each key that such a batch changes gets its state after that batch.
    pub(crate) fn settle(
        self,
        findings: &CheckFindings,
        sink: &mut dyn BatchSink,
    ) -> Result<(), PowerError> {
        let (from, to) = findings.in_doubt;
        let mut histories = self.histories(from - 1);
        for batch in from..to {
            self.play(batch, &mut histories);
            let mut groups = Vec::new();
            let mut steps = Vec::new();
            for (key, history) in &histories {
                let Some((_, state)) = history.last().filter(|(at, _)| *at == batch) else {
                    continue;
                };
                match (*key, *state) {
                    (WriterKey::Member(group, _), state) => groups.push((group, state)),
                    (key, Some(version)) => {
                        steps.push(WriteStep::Put(self.name(key), self.value(key, version)));
                    }
                    (key, None) => steps.push(WriteStep::Delete(self.name(key))),
                }
            }
            groups.sort_unstable();
            groups.dedup();
            steps.extend(groups.into_iter().map(|(group, state)| {
                let members = (0..MEMBERS).map(|member| WriterKey::Member(group, member));
                let value = |key| {
                    (
                        self.name(key),
                        state.map(|version| self.value(key, version)),
                    )
                };
                WriteStep::Group(members.map(value).collect())
            }));
            sink.commit(&steps)?;
        }
        Ok(())
    }

    /// Returns the states of each key and the batches that wrote them, oldest first, up to batch `last`.
    fn histories(self, last: u64) -> Histories {
        let mut histories = self.keys().map(|key| (key, Vec::new())).collect();
        (1..=last).for_each(|batch| self.play(batch, &mut histories));
        histories
    }

    fn play(self, batch: u64, histories: &mut Histories) {
        let mut now = |key: WriterKey, state: KeyState| {
            histories.entry(key).or_default().push((batch, state));
        };
        let mut counted = Vec::new();
        for write in self.batch(batch) {
            match write {
                PlannedWrite::Put(key, version) => now(key, Some(version)),
                PlannedWrite::Delete(key) => now(key, None),
                PlannedWrite::PutGroup(group, version) => {
                    (0..MEMBERS).for_each(|m| now(WriterKey::Member(group, m), Some(version)));
                }
                PlannedWrite::DeleteGroup(group) => {
                    (0..MEMBERS).for_each(|m| now(WriterKey::Member(group, m), None));
                }
                PlannedWrite::Count(n) => counted.push(n),
            }
        }
        for n in counted {
            let history = histories.entry(WriterKey::Counter(n)).or_default();
            let next = history.last().and_then(|(_, state)| *state).unwrap_or(0) + 1;
            history.push((batch, Some(next)));
        }
    }

    /// Compares the stored keys of this writer with its number of `acknowledged` batches.
    pub(crate) fn check(
        self,
        sink: &mut dyn BatchSink,
        acknowledged: u64,
    ) -> Result<CheckFindings, PowerError> {
        let mut found = HashMap::new();
        let mut wrong = Vec::new();
        let keys: Vec<WriterKey> = self.keys().collect();
        for keys in keys.chunks(256) {
            let names: Vec<String> = keys.iter().map(|key| self.name(*key)).collect();
            for (key, value) in keys.iter().zip(sink.get(&names)?) {
                match self.state(*key, value.as_deref()) {
                    Ok(state) => drop(found.insert(*key, state)),
                    Err(why) => wrong.push(why.0),
                }
            }
        }
        Ok(self.compare_with_plan(&found, acknowledged, wrong))
    }

    fn compare_with_plan(
        self,
        found: &HashMap<WriterKey, KeyState>,
        acknowledged: u64,
        mut wrong: Vec<String>,
    ) -> CheckFindings {
        let versions = found
            .iter()
            .filter(|(key, _)| !matches!(key, WriterKey::Counter(_)));
        let newest = versions.filter_map(|(_, state)| *state).max().unwrap_or(0) / BATCH_WRITES;
        let sure = acknowledged.max(newest.saturating_sub(1));
        let last = newest.max(acknowledged) + 1;
        if last > acknowledged + AHEAD_MAX {
            wrong.push(format!(
                "found batch {newest}, but only {acknowledged} batches were acknowledged"
            ));
            return CheckFindings {
                lost: 0,
                wrong,
                in_doubt: (last, last),
            };
        }
        let mut lost = 0;
        for (key, history) in self.histories(last) {
            let Some(state) = found.get(&key) else {
                continue; // Already reported in `wrong`.
            };
            let due = history.partition_point(|(batch, _)| *batch <= sure);
            // Place 0 is the state before the first write: the key does not exist.
            let place = history
                .iter()
                .rposition(|(_, past)| past == state)
                .map(|at| at + 1);
            let place = place.or(state.is_none().then_some(0));
            match place {
                Some(place) if place >= due => {}
                None => wrong.push(format!(
                    "{}: found state {state:?}, which the key never had",
                    self.name(key)
                )),
                Some(place) => {
                    let last_acknowledged =
                        history.partition_point(|(batch, _)| *batch <= acknowledged);
                    // A group counts as one write, that of its first member.
                    if !matches!(key, WriterKey::Member(_, 1..)) {
                        lost += last_acknowledged.saturating_sub(place) as u64;
                    }
                    let (name, batch) = (self.name(key), history[due - 1].0);
                    wrong.push(format!(
                        "{name}: found the stale state {state:?}, batch {batch} wrote a newer one"
                    ));
                }
            }
        }
        wrong.extend(self.torn_groups(found));
        let in_doubt = (sure + 1, last + 1);
        CheckFindings {
            lost,
            wrong,
            in_doubt,
        }
    }

    fn torn_groups(self, found: &HashMap<WriterKey, KeyState>) -> impl Iterator<Item = String> {
        (0..GROUPS).filter_map(move |group| {
            let member = |m| {
                found
                    .get(&WriterKey::Member(group, m))
                    .copied()
                    .unwrap_or_default()
            };
            let states: Vec<KeyState> = (0..MEMBERS).map(member).collect();
            let whole = states.iter().all(|state| *state == states[0]);
            (!whole).then(|| format!("w{}:group:{group} is torn: {states:?}", self.writer))
        })
    }
}

type Histories = HashMap<WriterKey, Vec<(u64, KeyState)>>;

#[cfg(test)]
mod tests {
    use super::*;

    /// In-memory store from which tests remove writes.
    #[derive(Clone, Default)]
    struct ForgetfulStore(HashMap<String, Vec<u8>>);

    impl BatchSink for ForgetfulStore {
        fn commit(&mut self, steps: &[WriteStep]) -> Result<(), PowerError> {
            for step in steps.iter().cloned() {
                match step {
                    WriteStep::Put(name, bytes) => drop(self.0.insert(name, bytes)),
                    WriteStep::Delete(name) => drop(self.0.remove(&name)),
                    WriteStep::Group(members) => {
                        for (name, bytes) in members {
                            self.0.remove(&name);
                            self.0.extend(bytes.map(|bytes| (name, bytes)));
                        }
                    }
                    WriteStep::Count(name) => {
                        let count = self.0.get(&name).map_or(0, |digits| {
                            String::from_utf8_lossy(digits)
                                .parse::<u64>()
                                .expect("a number")
                        });
                        self.0.insert(name, (count + 1).to_string().into_bytes());
                    }
                }
            }
            Ok(())
        }

        fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, PowerError> {
            Ok(names.iter().map(|name| self.0.get(name).cloned()).collect())
        }
    }

    const PLAN: WriterPlan = WriterPlan { writer: 2 };

    fn after(batches: u64) -> ForgetfulStore {
        let mut memory = ForgetfulStore::default();
        for batch in 1..=batches {
            memory
                .commit(&PLAN.steps(batch))
                .expect("the in-memory store accepts every write");
        }
        memory
    }

    fn judge(memory: &mut ForgetfulStore, acknowledged: u64) -> CheckFindings {
        PLAN.check(memory, acknowledged)
            .expect("the in-memory store can be read")
    }

    #[test]
    fn a_store_that_holds_all_acknowledged_batches_passes() {
        for acknowledged in 0..=20 {
            let findings = judge(&mut after(20), acknowledged);
            assert_eq!(
                (findings.lost, findings.wrong),
                (0, vec![]),
                "{acknowledged}"
            );
        }
    }

    #[test]
    fn a_batch_in_flight_may_be_partly_stored() {
        let mut memory = after(20);
        let parts = PLAN.steps(21);
        memory
            .commit(&parts[..30])
            .expect("the in-memory store accepts every write");
        let findings = judge(&mut memory, 20);
        assert_eq!((findings.lost, findings.wrong), (0, vec![]));
    }

    #[test]
    fn lost_writes_are_counted() {
        // An absent key matches an older delete, so the writes before that delete do not count as lost.
        let lost = judge(&mut after(15), 20).lost;
        assert!(
            (3 * BATCH_WRITES..=5 * BATCH_WRITES).contains(&lost),
            "{lost}"
        );
        let lost = judge(&mut ForgetfulStore::default(), 20).lost;
        assert!(
            (14 * BATCH_WRITES..=20 * BATCH_WRITES).contains(&lost),
            "{lost}"
        );
    }

    #[test]
    fn one_stale_value_is_detected() {
        let (mut memory, old) = (after(20), after(10));
        let changed = old
            .0
            .iter()
            .filter(|(name, value)| memory.0.get(*name) != Some(value));
        let plain = changed.filter(|(name, _)| name.contains("plain"));
        let (name, value) = plain.min().expect("something changed");
        memory.0.insert(name.clone(), value.clone());
        assert_eq!(judge(&mut memory, 20).wrong.len(), 1);
    }

    #[test]
    fn a_torn_group_and_a_damaged_value_are_detected() {
        let mut memory = after(20);
        let group = memory
            .0
            .keys()
            .find(|name| name.contains("group"))
            .expect("a group")
            .clone();
        memory.0.remove(&group);
        assert!(
            judge(&mut memory, 0)
                .wrong
                .iter()
                .any(|why| why.contains("is torn"))
        );
        let mut memory = after(20);
        memory.0.get_mut("w2:head").expect("a head")[9] ^= 1;
        assert!(judge(&mut memory, 20).wrong[0].contains("never written"));
    }

    #[test]
    fn a_writer_completes_its_batches_in_doubt_and_continues() {
        let mut memory = after(20);
        memory
            .commit(&PLAN.steps(21)[20..])
            .expect("the in-memory store accepts every write");
        let findings = judge(&mut memory, 18);
        PLAN.settle(&findings, &mut memory)
            .expect("the in-memory store accepts every write");
        let next = findings.in_doubt.1;
        memory
            .commit(&PLAN.steps(next))
            .expect("the in-memory store accepts every write");
        let findings = judge(&mut memory, next);
        assert_eq!((findings.lost, findings.wrong), (0, vec![]));
        assert_eq!(memory.0, after(next).0);
    }
}
