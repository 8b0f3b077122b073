//! Record of the calls of concurrent threads, and the check that they are linearizable.
//!
//! ```text
//!   thread 0   ├─ put a ─┤    ├─ get b ─┤        ├ ─ ─ ─ commit ─ ─ ─▶ acknowledged
//!   thread 1        ├── group {a b} ──┤  crash
//!   clock      1    2    3    4    5    6  ...   one clock for all threads
//! ```
//!
//! *Strict durable linearizability*: without the crash, there is an order of the calls in which each answer is
//! correct and which leads to the contents found. The order has all acknowledged calls, and may have pending ones. A
//! call precedes another if it was acknowledged before the other was invoked. The search covers all keys at once,
//! because a group is one call and must be seen as a whole or not at all.
//!
//! # Invariants
//! CHECK-RECORD-1  A call that writes is acknowledged when the ticket of its batch is durable. So is a read of a session's own
//!     pending writes, because its reply waits for them. A read of durable data is acknowledged when it is answered.
//! CHECK-RECORD-2  A session sees its own calls on one key in order, acknowledged or not. Reads of durable data are the
//!     exception, because they do not see the session's pending writes.
//! CHECK-RECORD-3  The value that an update replaced is binding only after the update is acknowledged. Before, no client has seen
//!     it, and a crash may keep a pending update of a key and lose the pending write that it replaced (CHECK-TARGET-1).
//! CHECK-RECORD-4  The puts of a group happen at one instant. Its deletes are separate calls: a delete that finds its key absent
//!     takes effect when it is invoked, and need not wait until the puts are visible.
//! CHECK-RECORD-5  In a structure that forgets, a crash may remove the key of a pending write, as if a delete had been pending
//!     too.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use farbank_pm::Ticket;

use crate::history::describe;
use crate::oracle::{CALLS_MAX, CallEffect, KeyCall, Unexplained, linearizable};
use crate::target::{Change, DATABASES, KeyWrite, OpAnswer, ReadView, TargetOp, Value, partner};

/// Calls of several threads, in the order of their events.
#[derive(Clone, Debug)]
pub struct CallRecord {
    start: BTreeMap<u64, Value>,
    forgets: bool,
    clock: u64,
    calls: Vec<RecordedCall>,
    /// Calls, with their thread, that the next commit covers; then committed batches with their tickets.
    staged: Vec<(usize, usize)>,
    waiting: Vec<(usize, Ticket, Vec<usize>)>,
    lines: Vec<String>,
}

#[derive(Clone, Debug)]
struct RecordedCall {
    thread: usize,
    op: TargetOp,
    invoked: u64,
    answer: Option<OpAnswer>,
    acked: Option<u64>,
}

/// A call in the search: its effects on several keys at one instant.
struct JointCall {
    acts: Vec<(usize, CallEffect)>,
    thread: usize,
    invoked: u64,
    acked: Option<u64>,
    sees_pending: bool,
    /// Bit mask of the calls that must precede this one (CHECK-RECORD-2).
    before: u32,
}

impl CallRecord {
    /// Creates a record without calls, with `start` as the initial contents.
    #[must_use]
    pub fn new(start: &[(u64, Value)]) -> CallRecord {
        CallRecord {
            start: start.iter().copied().collect(),
            forgets: false,
            clock: 0,
            calls: Vec::new(),
            staged: Vec::new(),
            waiting: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Sets whether the structure may forget keys (CHECK-RECORD-5).
    #[must_use]
    pub fn forgetting(self, forgets: bool) -> CallRecord {
        CallRecord { forgets, ..self }
    }

    /// Returns a number that changes with every event.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.clock
    }

    /// Returns the number of answered calls.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.calls
            .iter()
            .filter(|call| call.answer.is_some())
            .count() as u64
    }

    /// Returns the events, one line each.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    fn tick(&mut self, line: String) -> u64 {
        self.clock += 1;
        self.lines.push(line);
        self.clock
    }

    /// Records that `thread` invokes `op`. Returns the number of the call.
    pub fn invoke(&mut self, thread: usize, op: &TargetOp) -> usize {
        let call = self.calls.len();
        let invoked = self.tick(format!("t{thread} #{call} {}", describe(op)));
        self.calls.push(RecordedCall {
            thread,
            op: op.clone(),
            invoked,
            answer: None,
            acked: None,
        });
        call
    }

    /// Records the answer of `call`.
    pub fn answered(&mut self, call: usize, answer: OpAnswer) {
        let thread = self.calls[call].thread;
        let now = self.tick(format!("t{thread} #{call} {answer:?}"));
        let mine = |of: usize| of == thread;
        let is_clear = !self.staged.iter().any(|(of, _)| mine(*of))
            && !self.waiting.iter().any(|(of, _, _)| mine(*of));
        let entry = &mut self.calls[call];
        entry.answer = Some(answer);
        match entry.op {
            TargetOp::Get { view, .. } if view == ReadView::Durable || is_clear => {
                entry.acked = Some(now)
            } // CHECK-RECORD-1
            TargetOp::FlushAll | TargetOp::Swap { .. } => {
                self.staged.push((thread, call));
                self.committed(thread, Ticket::DURABLE);
                let own = self.waiting.iter_mut().filter(|(of, _, _)| *of == thread);
                own.for_each(|(_, ticket, _)| *ticket = Ticket::DURABLE);
                self.durable(thread, Ticket::DURABLE);
            }
            _ => self.staged.push((thread, call)),
        }
    }

    /// Records that `thread` has committed its staged operations and got `ticket`.
    pub fn committed(&mut self, thread: usize, ticket: Ticket) {
        let (own, others) = std::mem::take(&mut self.staged)
            .into_iter()
            .partition(|(of, _)| *of == thread);
        self.staged = others;
        let own: Vec<(usize, usize)> = own;
        self.tick(format!("t{thread} commits: {ticket:?}"));
        let calls = own.into_iter().map(|(_, call)| call).collect();
        self.waiting.push((thread, ticket, calls));
    }

    /// Returns the last ticket that `thread` waits for.
    #[must_use]
    pub fn ticket(&self, thread: usize) -> Option<Ticket> {
        let own = self.waiting.iter().filter(|(of, _, _)| *of == thread);
        own.map(|(_, ticket, _)| *ticket).max()
    }

    /// Records that `ticket` of `thread` is durable.
    pub fn durable(&mut self, thread: usize, ticket: Ticket) {
        let now = self.tick(format!("t{thread} acknowledges up to {ticket:?}"));
        let calls = &mut self.calls;
        self.waiting.retain(|(of, theirs, batch)| {
            let turned = *of == thread && *theirs <= ticket;
            if turned {
                batch.iter().for_each(|call| calls[*call].acked = Some(now));
            }
            !turned
        });
    }

    /// Checks that some legal order of the calls leads to the contents `shown`.
    ///
    /// # Panics
    /// On more than [`CALLS_MAX`] calls.
    pub fn explain(&self, shown: &[(u64, Value)]) -> Result<(), Unexplained> {
        let keys = self.keys(shown);
        let found: BTreeMap<u64, Value> = shown.iter().copied().collect();
        let twice = (found.len() < shown.len()).then(|| "a key is listed twice".to_owned());
        if let Some(what) = twice {
            return Err(Unexplained { key: 0, what });
        }
        let state = |of: &BTreeMap<u64, Value>| -> Vec<Option<u64>> {
            keys.iter().map(|key| of.get(key).map(|v| v.id)).collect()
        };
        let (start, end) = (state(&self.start), state(&found));
        let calls = self.joint(&keys);
        assert!(calls.len() <= CALLS_MAX, "too many calls to search");
        let alone = if self.has_swap() { &[] } else { &keys[..] };
        for (place, &key) in alone.iter().enumerate() {
            if !linearizable(&calls_on_key(&calls, place), start[place], end[place]) {
                let what = format!(
                    "key {key}: no order of its calls explains {:?} at the end",
                    found.get(&key)
                );
                return Err(Unexplained { key, what });
            }
        }
        if linearizable_together(&calls, &start, &end) {
            return Ok(());
        }
        let what = format!(
            "each key alone is linearizable, but all keys together are not (part of a group was seen, or a \
             session's own writes out of order): {found:?} at the end"
        );
        Err(Unexplained { key: keys[0], what })
    }

    /// Whether keys are not independent of each other, because two databases were exchanged.
    fn has_swap(&self) -> bool {
        let is_swap = |call: &RecordedCall| matches!(call.op, TargetOp::Swap { .. });
        self.calls.iter().any(is_swap)
    }

    fn keys(&self, shown: &[(u64, Value)]) -> Vec<u64> {
        let asked = self.calls.iter().flat_map(|call| keys_of(&call.op));
        let known = self.start.keys().copied();
        let shown = shown.iter().map(|(key, _)| *key);
        let mut all: BTreeSet<u64> = known.chain(asked).chain(shown).collect();
        if self.has_swap() {
            let of_name = |key: u64| (0..DATABASES).map(move |db| key - key % DATABASES + db);
            all = all.into_iter().flat_map(of_name).collect();
        }
        all.into_iter().collect()
    }

    /// Returns the calls that may have happened.
    fn joint(&self, keys: &[u64]) -> Vec<JointCall> {
        let mut calls: Vec<JointCall> = Vec::new();
        for entry in &self.calls {
            for acts in acts_of(entry, keys) {
                let mut joint = JointCall {
                    acts,
                    thread: entry.thread,
                    invoked: entry.invoked,
                    acked: entry.acked,
                    sees_pending: entry.sees_pending(),
                    before: 0,
                };
                let earlier = calls.iter().enumerate();
                let before = earlier.filter(|(_, other)| other.stays_before(&joint));
                joint.before = before.fold(0, |mask, (other, _)| mask | 1 << other);
                let lost = self.forgets.then(|| joint.lost()).flatten();
                calls.push(joint);
                calls.extend(lost);
            }
        }
        calls
    }
}

impl RecordedCall {
    fn sees_pending(&self) -> bool {
        let durable = ReadView::Durable;
        !matches!(self.op, TargetOp::Get { view, .. } if view == durable)
    }
}

impl JointCall {
    /// Returns the delete that a crash may turn a pending write into (CHECK-RECORD-5).
    fn lost(&self) -> Option<JointCall> {
        let acts: Vec<_> = self
            .acts
            .iter()
            .filter(|(_, act)| !matches!(act, CallEffect::Read(_)))
            .map(|&(key, _)| (key, CallEffect::Write(None)))
            .collect();
        (self.acked.is_none() && !acts.is_empty()).then_some(JointCall { acts, ..*self })
    }

    /// Returns whether this earlier call of the same session must precede `then` whatever their times are (CHECK-RECORD-2).
    fn stays_before(&self, then: &JointCall) -> bool {
        let on = |key: usize| then.acts.iter().any(|(theirs, _)| *theirs == key);
        self.thread == then.thread
            && self.sees_pending
            && then.sees_pending
            && self.acts.iter().any(|(ours, _)| on(*ours))
    }
}

fn keys_of(op: &TargetOp) -> Vec<u64> {
    match op {
        TargetOp::Write(write) => vec![write.key()],
        TargetOp::Group(writes) => writes.iter().map(KeyWrite::key).collect(),
        TargetOp::Update { key, .. } | TargetOp::Get { key, .. } => vec![*key],
        TargetOp::FlushAll | TargetOp::Swap { .. } => Vec::new(),
    }
}

/// Returns the effects of a call, one list per instant (CHECK-RECORD-4). The list is empty if the call cannot have happened, or
/// has no effect and no answer.
fn acts_of(entry: &RecordedCall, keys: &[u64]) -> Vec<Vec<(usize, CallEffect)>> {
    let place = |key: u64| keys.binary_search(&key).expect("every key is known");
    let write = |write: &KeyWrite| match *write {
        KeyWrite::Put { key, value, .. } => (place(key), CallEffect::Write(Some(value.id))),
        KeyWrite::Delete { key } => (place(key), CallEffect::Write(None)),
    };
    let id = |found: Option<Value>| found.map(|v| v.id);
    match (&entry.op, &entry.answer) {
        (_, Some(OpAnswer::Refused)) => Vec::new(),
        (TargetOp::Write(w), Some(OpAnswer::Was(was))) if entry.acked.is_some() => {
            vec![vec![(place(w.key()), CallEffect::Remove(*was))]]
        }
        (TargetOp::Write(w), _) => vec![vec![write(w)]],
        (TargetOp::Group(writes), answer) => {
            let saw = match answer {
                Some(OpAnswer::Saw(saw)) if entry.acked.is_some() => Some(saw),
                _ => None, // CHECK-RECORD-3
            };
            let act = |(number, of): (usize, &KeyWrite)| match (write(of), saw) {
                ((key, CallEffect::Write(to)), Some(saw)) => {
                    (key, CallEffect::Update(id(saw[number]), to))
                }
                (act, _) => act,
            };
            let puts = |(_, act): &(usize, CallEffect)| {
                !matches!(act, CallEffect::Write(None) | CallEffect::Update(_, None))
            };
            let (puts, deletes): (Vec<_>, Vec<_>) =
                writes.iter().enumerate().map(act).partition(puts);
            let puts = (!puts.is_empty()).then_some(puts);
            puts.into_iter()
                .chain(deletes.into_iter().map(|act| vec![act]))
                .collect()
        }
        (&TargetOp::Get { key, .. }, &Some(OpAnswer::Found(found))) => {
            vec![vec![(place(key), CallEffect::Read(id(found)))]]
        }
        (TargetOp::Get { .. }, _) => Vec::new(),
        (&TargetOp::Update { key, change }, answer) => {
            let saw = match *answer {
                Some(OpAnswer::Found(saw)) if entry.acked.is_some() => Some(id(saw)),
                _ => None, // CHECK-RECORD-3
            };
            let act = match (change, saw) {
                (Change::Keep, None) => return Vec::new(),
                (Change::Keep, Some(saw)) => CallEffect::Read(saw),
                (Change::Put(_) | Change::Delete, None) => CallEffect::Write(written(change)),
                (Change::Put(_) | Change::Delete, Some(saw)) => {
                    CallEffect::Update(saw, written(change))
                }
            };
            vec![vec![(place(key), act)]]
        }
        (TargetOp::FlushAll, _) => {
            let all = 0..keys.len();
            vec![all.map(|key| (key, CallEffect::Write(None))).collect()]
        }
        (&TargetOp::Swap { first, second }, _) => {
            let numbered = keys.iter().enumerate();
            let taken = numbered.filter_map(|(at, key)| {
                let other = partner(*key, first, second)?;
                Some((at, CallEffect::Take(place(other))))
            });
            vec![taken.collect()]
        }
    }
}

/// Returns the id of the value that an update leaves.
fn written(change: Change) -> Option<u64> {
    match change {
        Change::Put(value) => Some(value.id),
        Change::Delete | Change::Keep => None,
    }
}

/// Returns the calls on one key.
fn calls_on_key(calls: &[JointCall], place: usize) -> Vec<KeyCall> {
    let on = |call: &JointCall| {
        let &(_, act) = call.acts.iter().find(|(at, _)| *at == place)?;
        Some(KeyCall {
            act,
            invoked: call.invoked,
            acked: call.acked,
        })
    };
    calls.iter().filter_map(on).collect()
}

/// Searches like [`linearizable`], over all keys at once and with CHECK-RECORD-2.
fn linearizable_together(calls: &[JointCall], start: &[Option<u64>], end: &[Option<u64>]) -> bool {
    let required = (0..calls.len())
        .filter(|&i| calls[i].acked.is_some())
        .fold(0_u32, |mask, i| mask | 1 << i);
    let mut seen = HashSet::new();
    let mut stack = vec![(0_u32, start.to_vec())];
    while let Some((done, state)) = stack.pop() {
        if done & required == required && state == end {
            return true;
        }
        let is_done = |i: usize| done & 1 << i != 0;
        let left = |i: &usize| !is_done(*i);
        let first_ack = (0..calls.len())
            .filter(left)
            .filter_map(|i| calls[i].acked)
            .min();
        for next in (0..calls.len()).filter(left) {
            let call = &calls[next];
            let too_late = (0..calls.len()).any(|i| is_done(i) && calls[i].before & 1 << next != 0);
            if too_late || first_ack.is_some_and(|ack| ack < call.invoked) {
                continue;
            }
            if let Some(after) = apply(call, &state)
                && seen.insert((done | 1 << next, after.clone()))
            {
                stack.push((done | 1 << next, after));
            }
        }
    }
    false
}

/// Returns the state after `call`, or `None` if `state` contradicts what it saw.
fn apply(call: &JointCall, state: &[Option<u64>]) -> Option<Vec<Option<u64>>> {
    let mut after = state.to_vec();
    for &(key, act) in &call.acts {
        match act {
            CallEffect::Write(to) => after[key] = to,
            CallEffect::Take(from) => after[key] = state[from],
            CallEffect::Read(saw) if saw == state[key] => {}
            CallEffect::Update(saw, to) if saw == state[key] => after[key] = to,
            CallEffect::Remove(was) if was == state[key].is_some() => after[key] = None,
            CallEffect::Read(_) | CallEffect::Update(..) | CallEffect::Remove(_) => return None,
        }
    }
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(id: u64) -> Value {
        Value { id, bytes: 8 }
    }

    fn put(key: u64, id: u64) -> KeyWrite {
        KeyWrite::Put {
            key,
            value: value(id),
            expires_ms: 0,
        }
    }

    fn get(key: u64, view: ReadView) -> TargetOp {
        TargetOp::Get { key, view }
    }

    /// Adds a call to the record: answered, and acknowledged if `acked`.
    fn call(record: &mut CallRecord, thread: usize, op: TargetOp, answer: OpAnswer, acked: bool) {
        let number = record.invoke(thread, &op);
        record.answered(number, answer);
        if acked {
            record.committed(thread, Ticket(1));
            record.durable(thread, Ticket(1));
        }
    }

    #[test]
    fn an_acknowledged_write_must_survive_and_a_pending_one_may() {
        let mut record = CallRecord::new(&[(1, value(1))]);
        call(
            &mut record,
            0,
            TargetOp::Write(put(1, 2)),
            OpAnswer::Done,
            true,
        );
        call(
            &mut record,
            1,
            TargetOp::Write(put(1, 3)),
            OpAnswer::Done,
            false,
        );
        for (left, right) in [(1, false), (2, true), (3, true), (4, false)] {
            assert_eq!(record.explain(&[(1, value(left))]).is_ok(), right, "{left}");
        }
        assert!(record.explain(&[]).is_err(), "nothing deleted it");
    }

    #[test]
    fn a_write_that_a_reader_saw_survives() {
        let mut record = CallRecord::new(&[]);
        call(
            &mut record,
            0,
            TargetOp::Write(put(1, 2)),
            OpAnswer::Done,
            false,
        );
        let saw = OpAnswer::Found(Some(value(2)));
        call(&mut record, 1, get(1, ReadView::Durable), saw, false);
        assert!(record.explain(&[(1, value(2))]).is_ok());
        assert!(record.explain(&[]).is_err(), "thread 1 has read it");
    }

    #[test]
    fn a_group_is_read_and_recovered_as_a_whole() {
        let group = TargetOp::Group(vec![put(1, 2), put(2, 3)]);
        let mut record = CallRecord::new(&[]);
        call(&mut record, 0, group, OpAnswer::Done, false);
        assert!(record.explain(&[(1, value(2)), (2, value(3))]).is_ok());
        assert!(record.explain(&[]).is_ok());
        assert!(
            record.explain(&[(1, value(2))]).is_err(),
            "half of the group is left"
        );
        let saw = OpAnswer::Found(Some(value(2)));
        call(&mut record, 1, get(1, ReadView::Durable), saw, false);
        let saw = OpAnswer::Found(None);
        call(&mut record, 1, get(2, ReadView::Durable), saw, false);
        let all = [(1, value(2)), (2, value(3))];
        assert!(record.explain(&all).is_err(), "half of the group was seen");
    }

    #[test]
    fn a_read_of_the_own_view_sees_pending_writes_and_a_durable_read_does_not() {
        for (view, right) in [(ReadView::Own, false), (ReadView::Durable, true)] {
            let mut record = CallRecord::new(&[]);
            call(
                &mut record,
                0,
                TargetOp::Write(put(1, 2)),
                OpAnswer::Done,
                false,
            );
            call(&mut record, 0, get(1, view), OpAnswer::Found(None), true);
            assert_eq!(record.explain(&[(1, value(2))]).is_ok(), right, "{view:?}");
        }
    }

    #[test]
    fn the_later_of_two_writes_of_one_session_wins() {
        let mut record = CallRecord::new(&[]);
        call(
            &mut record,
            0,
            TargetOp::Write(put(1, 2)),
            OpAnswer::Done,
            false,
        );
        call(
            &mut record,
            0,
            TargetOp::Write(put(1, 3)),
            OpAnswer::Done,
            true,
        );
        assert!(record.explain(&[(1, value(3))]).is_ok());
        assert!(record.explain(&[(1, value(2))]).is_err());
    }

    #[test]
    fn a_swap_of_databases_concerns_all_keys_at_once() {
        let swap = TargetOp::Swap {
            first: 0,
            second: 1,
        };
        // Keys 3 and 4 have the same name in databases 0 and 1.
        let before = [(3, value(1)), (4, value(2)), (5, value(3))];
        let after = [(3, value(2)), (4, value(1)), (5, value(3))];
        let half = [(3, value(2)), (4, value(2)), (5, value(3))];
        let mut record = CallRecord::new(&before);
        record.invoke(0, &swap);
        assert!(record.explain(&before).is_ok() && record.explain(&after).is_ok());
        assert!(record.explain(&half).is_err());
        record.answered(0, OpAnswer::Done);
        assert!(record.explain(&after).is_ok());
        assert!(record.explain(&before).is_err() && record.explain(&half).is_err());
        let saw = OpAnswer::Found(Some(value(1)));
        call(&mut record, 1, get(3, ReadView::Durable), saw, false);
        assert!(
            record.explain(&after).is_err(),
            "a later read has seen the old database"
        );
    }

    #[test]
    fn an_update_follows_what_it_saw() {
        let update = |id| TargetOp::Update {
            key: 1,
            change: Change::Put(value(id)),
        };
        let mut record = CallRecord::new(&[]);
        call(&mut record, 0, update(2), OpAnswer::Found(None), true);
        call(&mut record, 1, update(3), OpAnswer::Found(None), true);
        assert!(
            record.explain(&[(1, value(3))]).is_err(),
            "an update was lost"
        );
    }
}
