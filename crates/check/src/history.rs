//! History of the operations of a structure, and the states that a crash may leave.
//!
//! ```text
//!   invoke ─────── answer ─────── commit ─────── acknowledged         stages of an operation
//!          pending: after a crash it may have happened or not │ it must have
//! ```
//!
//! A [`History`] keeps for each key its *versions*: the states that a crash at this moment may legally leave. A write
//! adds a version. An acknowledgement removes the versions that precede it. So a check is a look-up, however long the
//! history is, and a clone is cheap enough for every crash.
//!
//! # Invariants
//! CHECK-HIST-1  Version `a` precedes `b` in three cases: their session invoked `a` first; `a` was acknowledged, or its process
//!     died, before `b` was invoked; or `b` is an update of `a`. Other versions are concurrent, and both orders are
//!     legal.
//! CHECK-HIST-2  A version is legal unless a version that it precedes has been acknowledged.
//! CHECK-HIST-3  Under the strict rule, a value returned by a read of the durable view counts as acknowledged from then on, and
//!     as the newest version acknowledged by then: such reads see only durable data. The reply to an operation that
//!     sees pending writes (a read of the own view, an update, a delete, a group) is withheld until the ticket of its
//!     batch is durable. What that operation saw counts as acknowledged at that time.
//! CHECK-HIST-4  The contents that a recovery has shown are acknowledged as a whole: the next crash must leave them.
//! CHECK-HIST-5  A structure that forgets (a cache) may show a key as absent while a write of it is pending, and any key after
//!     it had to make room. An absence is then no evidence, but a value that is shown later must still be legal. A
//!     key that a recovery has not shown is forgotten for good.
//! CHECK-HIST-6  Where tickets promise nothing, a delete in a group that found its key absent is not part of the group. It
//!     writes nothing, and a power cut may undo the earlier delete of the key and keep the group.
//! CHECK-HIST-7  A value built on a group's value, by an update or by another group that had read it, is evidence of the group:
//!     if it is found, the whole group is. Where tickets promise nothing, the update may survive and the group be
//!     lost.
//! CHECK-HIST-8  A swap of databases exchanges the histories of keys with their partners, and acknowledges everything before it.
//!     Until it is answered, a crash may leave the state before it or after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;

use farbank_pm::Ticket;

use crate::target::{Change, KeyWrite, OpAnswer, ReadView, TargetOp, Value, partner};

/// Rule that decides which writes count as acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AckRule {
    /// Writes whose ticket is durable, and values that a read has returned: durable linearizability.
    #[default]
    Strict,
    /// Only writes whose ticket is durable. A value that a read returned may be lost, as in structures whose readers
    /// do not wait for the drains of writers.
    Acknowledged,
}

impl AckRule {
    /// All rules.
    pub const ALL: [AckRule; 2] = [AckRule::Strict, AckRule::Acknowledged];

    /// Returns its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            AckRule::Strict => "strict",
            AckRule::Acknowledged => "acknowledged",
        }
    }
}

impl fmt::Display for AckRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of an operation in its history, from 1. 0 is the initial state.
pub type OpId = usize;

/// A version: a state of a key that a crash may leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyVersion {
    pub(crate) op: OpId,
    session: usize,
    invoked: u64,
    acked: Option<u64>,
    /// Time at which its process died or its session was dropped. The write has happened by then, or never will.
    died: Option<u64>,
    state: Option<(Value, u64)>,
    /// For an update: the version it replaced.
    over: Option<OpId>,
}

impl KeyVersion {
    /// The initial state: absent.
    const ABSENT: KeyVersion = KeyVersion {
        op: 0,
        session: usize::MAX,
        invoked: 0,
        acked: Some(0),
        died: None,
        state: None,
        over: None,
    };

    /// Returns whether this version precedes `other` (CHECK-HIST-1).
    pub(crate) fn precedes(&self, other: &KeyVersion) -> bool {
        let same = self.session == other.session && self.session != usize::MAX;
        let ended = self.acked.or(self.died);
        (same && self.op < other.op)
            || ended.is_some_and(|at| at < other.invoked)
            || other.over == Some(self.op)
    }

    /// Returns the value that a reader finds at `now_ms`.
    pub(crate) fn reads_as(&self, now_ms: u64) -> Option<Value> {
        let (value, expires_ms) = self.state?;
        (expires_ms == 0 || now_ms < expires_ms).then_some(value)
    }
}

/// A committed batch whose ticket is not durable yet.
#[derive(Clone, Debug)]
struct PendingBatch {
    session: usize,
    ticket: Ticket,
    ops: Vec<OpId>,
}

/// A group of writes, of which a crash must leave all or none.
#[derive(Clone, Debug)]
pub(crate) struct PendingGroup {
    pub(crate) op: OpId,
    pub(crate) keys: Arc<[u64]>,
}

/// A line of the log that violations quote.
#[derive(Clone, Debug)]
struct HistoryEvent {
    /// Affected keys; `None` means all.
    keys: Option<Arc<[u64]>>,
    text: Arc<str>,
}

/// What a structure promises.
#[derive(Clone, Copy, Debug, Default)]
struct HistoryRules {
    verdict: AckRule,
    /// Whether the structure may forget keys (CHECK-HIST-5).
    forgets: bool,
    /// Whether a ticket promises nothing.
    relaxed: bool,
}

/// The operations so far, and the states that may be found.
#[derive(Clone, Debug, Default)]
pub struct History {
    rules: HistoryRules,
    made_room: bool,
    clock: u64,
    ops: OpId,
    pub(crate) keys: BTreeMap<u64, Vec<KeyVersion>>,
    pub(crate) groups: Vec<PendingGroup>,
    staged: Vec<(usize, OpId)>,
    waiting: Vec<PendingBatch>,
    touched: BTreeMap<OpId, Arc<[u64]>>,
    /// Versions that a withheld reply contains, by the operation of the reply (CHECK-HIST-3).
    seen: BTreeMap<OpId, (u64, OpId)>,
    /// The databases of a swap that is not answered.
    swapping: Option<(u64, u64)>,
    log: Vec<HistoryEvent>,
}

/// What an operation has observed of a key.
#[derive(Clone, Copy)]
enum ObservedState {
    /// Its value, or absence.
    Value(Option<Value>),
    /// Whether it is present.
    Presence(bool),
}

impl ObservedState {
    fn is(self, found: Option<Value>) -> bool {
        match self {
            ObservedState::Value(value) => value == found,
            ObservedState::Presence(there) => there == found.is_some(),
        }
    }
}

/// A read that found an illegal state.
#[derive(Clone, Debug)]
pub struct WrongRead {
    /// The key that was read.
    pub key: u64,
    /// Message with the state found and the legal states.
    pub what: String,
}

impl WrongRead {
    fn new<'a>(
        key: u64,
        sight: ObservedState,
        could: impl Iterator<Item = &'a KeyVersion>,
        now_ms: u64,
    ) -> WrongRead {
        let could: Vec<_> = could.map(|v| v.reads_as(now_ms)).collect();
        let found = match sight {
            ObservedState::Value(found) => format!("{found:?}"),
            ObservedState::Presence(true) => "something".into(),
            ObservedState::Presence(false) => "nothing".into(),
        };
        WrongRead {
            key,
            what: format!("a read found {found}, expected one of {could:?}"),
        }
    }
}

impl History {
    /// Creates the history of an empty structure, with the strict rule.
    #[must_use]
    pub fn new() -> History {
        History::default()
    }

    /// Creates the history of an empty structure, with the rule `verdict`.
    #[must_use]
    pub fn judged_by(verdict: AckRule) -> History {
        History::default().with(|rules| rules.verdict = verdict)
    }

    fn with(mut self, set: impl FnOnce(&mut HistoryRules)) -> History {
        set(&mut self.rules);
        self
    }

    /// Sets whether the structure may forget keys (CHECK-HIST-5).
    #[must_use]
    pub fn forgetting(self, forgets: bool) -> History {
        self.with(|rules| rules.forgets = forgets)
    }

    /// Sets whether the medium's tickets promise nothing until it is synced (CHECK-HIST-6).
    #[must_use]
    pub fn relaxed(self, relaxed: bool) -> History {
        self.with(|rules| rules.relaxed = relaxed)
    }

    /// Records that the structure had to make room, if `made_room`. From now on it may have forgotten any key (CHECK-HIST-5).
    pub fn made_room(&mut self, made_room: bool) {
        if made_room && !self.made_room {
            self.made_room = true;
            self.clock += 1;
        }
    }

    /// Returns whether a key may be absent although none of its versions says so (CHECK-HIST-5).
    pub(crate) fn may_miss(&self, versions: &[KeyVersion]) -> bool {
        self.rules.forgets && (self.made_room || versions.iter().any(|v| v.acked.is_none()))
    }

    /// Returns whether operation `op` wrote `version`, one of `versions`, or `version` was built on that write by
    /// updates (CHECK-HIST-7).
    pub(crate) fn contains(&self, versions: &[KeyVersion], version: &KeyVersion, op: OpId) -> bool {
        if version.op == op {
            return true;
        }
        let base = version
            .over
            .filter(|_| version.state.is_some() && !self.rules.relaxed);
        let base = base.and_then(|base| versions.iter().find(|v| v.op == base));
        let base = base.filter(|base| base.state.is_some());
        base.is_some_and(|base| self.contains(versions, base, op))
    }

    fn has_missed(&self, key: u64, found: Option<Value>) -> bool {
        let known = self.keys.get(&key);
        found.is_none() && known.is_some_and(|versions| self.may_miss(versions))
    }

    /// Returns a number that changes with every event that can change the result of a check.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.clock
    }

    /// Records that `session` invokes `op`. Returns the number of the operation.
    pub fn invoke(&mut self, session: usize, op: &TargetOp) -> OpId {
        self.clock += 1;
        self.ops += 1;
        let id = self.ops;
        let keys: Arc<[u64]> = match op {
            TargetOp::Write(write) => {
                self.add(session, id, write);
                [write.key()].into()
            }
            TargetOp::Group(writes) => {
                writes.iter().for_each(|write| self.add(session, id, write));
                writes.iter().map(KeyWrite::key).collect()
            }
            TargetOp::FlushAll => {
                let all: Vec<u64> = self.keys.keys().copied().collect();
                all.iter()
                    .for_each(|&key| self.add(session, id, &KeyWrite::Delete { key }));
                all.into()
            }
            &TargetOp::Update { key, change } => {
                let expires_ms = 0;
                let write = match change {
                    Change::Keep => None,
                    Change::Delete => Some(KeyWrite::Delete { key }),
                    Change::Put(value) => Some(KeyWrite::Put {
                        key,
                        value,
                        expires_ms,
                    }),
                };
                write.iter().for_each(|w| self.add(session, id, w));
                [key].into()
            }
            TargetOp::Get { key, .. } => [*key].into(),
            &TargetOp::Swap { first, second } => {
                self.swapping = Some((first, second));
                self.note(None, format!("#{id} s{session} {}", describe(op)));
                return id;
            }
        };
        self.note(Some(&keys), format!("#{id} s{session} {}", describe(op)));
        if matches!(op, TargetOp::Group(_) | TargetOp::FlushAll) {
            self.groups.push(PendingGroup {
                op: id,
                keys: Arc::clone(&keys),
            });
        }
        if !matches!(
            op,
            TargetOp::Get {
                view: ReadView::Durable,
                ..
            }
        ) {
            self.touched.insert(id, keys);
            self.staged.push((session, id));
        }
        id
    }

    fn add(&mut self, session: usize, op: OpId, write: &KeyWrite) {
        let state = match *write {
            KeyWrite::Put {
                value, expires_ms, ..
            } => Some((value, expires_ms)),
            KeyWrite::Delete { .. } => None,
        };
        let invoked = self.clock;
        let version = KeyVersion {
            op,
            session,
            invoked,
            acked: None,
            died: None,
            state,
            over: None,
        };
        self.keys
            .entry(write.key())
            .or_insert_with(|| vec![KeyVersion::ABSENT])
            .push(version);
    }

    /// Records the answer of operation `id` of `session` at `now_ms`. Returns an error if the answer contains an
    /// illegal state.
    pub fn answered(
        &mut self,
        session: usize,
        id: OpId,
        op: &TargetOp,
        answer: &OpAnswer,
        now_ms: u64,
    ) -> Result<(), WrongRead> {
        self.clock += 1;
        match (op, answer) {
            (&TargetOp::Get { key, view }, OpAnswer::Found(found)) => {
                self.note(Some(&[key].into()), format!("#{id} found {found:?}"));
                return self.read(session, id, key, view, *found, now_ms);
            }
            (&TargetOp::Update { key, .. }, OpAnswer::Found(found)) => {
                self.note(Some(&[key].into()), format!("#{id} replaced {found:?}"));
                return self.saw(session, id, key, ObservedState::Value(*found), now_ms);
            }
            (TargetOp::Write(write), &OpAnswer::Was(was)) => {
                let key = write.key();
                self.note(Some(&[key].into()), format!("#{id} was there: {was}"));
                return self.saw(session, id, key, ObservedState::Presence(was), now_ms);
            }
            (TargetOp::Group(writes), OpAnswer::Saw(saw)) => {
                let keys = self.touched.get(&id).cloned();
                self.note(keys.as_ref(), format!("#{id} saw {saw:?}"));
                if self.rules.relaxed {
                    self.leave_out_absent(id, writes, saw); // CHECK-HIST-6
                }
                let mut each = writes.iter().zip(saw);
                return each.try_for_each(|(write, found)| {
                    self.saw(
                        session,
                        id,
                        write.key(),
                        ObservedState::Value(*found),
                        now_ms,
                    )
                });
            }
            (_, OpAnswer::Refused) => self.refused(id),
            (TargetOp::FlushAll, _) => {
                self.commit(session, Ticket::DURABLE);
                let own = self
                    .waiting
                    .iter_mut()
                    .filter(|batch| batch.session == session);
                own.for_each(|batch| batch.ticket = Ticket::DURABLE);
                self.durable(session, Ticket::DURABLE);
            }
            (TargetOp::Swap { .. }, _) => {
                self.note(None, format!("#{id} acknowledged"));
                *self = self.after_swap().unwrap_or_default();
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the history in which the swap that is not answered has happened (CHECK-HIST-8). `None` if there is none.
    pub(crate) fn after_swap(&self) -> Option<History> {
        let (first, second) = self.swapping?;
        let mut after = self.clone();
        after.swapping = None;
        let staged = self.staged.iter().map(|(session, _)| *session);
        let waiting = self.waiting.iter().map(|batch| batch.session);
        for session in staged.chain(waiting) {
            after.commit(session, Ticket::DURABLE);
            after.durable(session, Ticket(u64::MAX));
        }
        let moved = |key: u64| partner(key, first, second).unwrap_or(key);
        let keys = std::mem::take(&mut after.keys).into_iter();
        after.keys = keys.map(|(key, versions)| (moved(key), versions)).collect();
        // Groups of dropped sessions are still checked.
        for group in &mut after.groups {
            group.keys = group.keys.iter().map(|key| moved(*key)).collect();
        }
        Some(after)
    }

    /// Removes the deletes that found their key absent from group `id`.
    fn leave_out_absent(&mut self, id: OpId, writes: &[KeyWrite], saw: &[Option<Value>]) {
        let wrote = |(write, found): &(&KeyWrite, &Option<Value>)| {
            found.is_some() || matches!(write, KeyWrite::Put { .. })
        };
        let keys = writes.iter().zip(saw).filter(wrote).map(|(w, _)| w.key());
        let keys: Arc<[u64]> = keys.collect();
        let group = self.groups.iter_mut().find(|group| group.op == id);
        group.into_iter().for_each(|g| g.keys = Arc::clone(&keys));
    }

    fn refused(&mut self, id: OpId) {
        let Some(keys) = self.touched.remove(&id) else {
            return;
        };
        self.seen.remove(&id);
        for key in &*keys {
            if let Some(versions) = self.keys.get_mut(key) {
                versions.retain(|v| v.op != id);
            }
        }
        self.groups.retain(|group| group.op != id);
        self.staged.retain(|&(_, op)| op != id);
        self.note(Some(&keys), format!("#{id} refused"));
    }

    fn read(
        &mut self,
        session: usize,
        id: OpId,
        key: u64,
        view: ReadView,
        found: Option<Value>,
        now_ms: u64,
    ) -> Result<(), WrongRead> {
        if self.has_missed(key, found) {
            return Ok(());
        }
        let versions = self
            .keys
            .entry(key)
            .or_insert_with(|| vec![KeyVersion::ABSENT]);
        let own = |v: &KeyVersion| view == ReadView::Own && v.session == session;
        let counts = |v: &KeyVersion| v.acked.is_some() || own(v);
        let legal = |c: &KeyVersion| !versions.iter().any(|v| counts(v) && c.precedes(v)); // CHECK-HIST-2
        let mut seen = versions
            .iter()
            .filter(|c| legal(c) && c.reads_as(now_ms) == found);
        let Some(&first) = seen.next() else {
            let could = versions.iter().filter(|c| legal(c));
            return Err(WrongRead::new(
                key,
                ObservedState::Value(found),
                could,
                now_ms,
            ));
        };
        let told = view == ReadView::Durable || first.acked.is_some();
        let tells = self.rules.verdict == AckRule::Strict && seen.next().is_none();
        if tells && !told {
            self.seen.insert(id, (key, first.op));
        } else if tells {
            // The value read is the newest of those acknowledged so far, so the other ones precede it (CHECK-HIST-3).
            let goes_on = |v: &KeyVersion| v.acked.is_none() && v.died.is_none();
            versions.retain(|v| v.op == first.op || goes_on(v));
            self.ack(key, first.op);
        }
        Ok(())
    }

    /// Checks that `sight`, which operation `id` saw of `key`, is legal as the newest state, counting pending writes
    /// of other sessions.
    fn saw(
        &mut self,
        session: usize,
        id: OpId,
        key: u64,
        sight: ObservedState,
        now_ms: u64,
    ) -> Result<(), WrongRead> {
        if sight.is(None) && self.has_missed(key, None) {
            return Ok(());
        }
        let versions = self
            .keys
            .entry(key)
            .or_insert_with(|| vec![KeyVersion::ABSENT]);
        let counts = |v: &KeyVersion| v.acked.is_some() || v.session == session;
        let before: Vec<KeyVersion> = versions.iter().filter(|v| v.op != id).copied().collect();
        let legal = |c: &&KeyVersion| !before.iter().any(|v| counts(v) && c.precedes(v)); // CHECK-HIST-2
        let mut seen = before
            .iter()
            .filter(legal)
            .filter(|c| sight.is(c.reads_as(now_ms)));
        let Some(first) = seen.next() else {
            return Err(WrongRead::new(
                key,
                sight,
                before.iter().filter(legal),
                now_ms,
            ));
        };
        if seen.next().is_none() {
            let own = versions.iter_mut().find(|v| v.op == id);
            match own {
                Some(own) => own.over = Some(first.op),
                None if self.rules.verdict == AckRule::Strict => {
                    self.seen.insert(id, (key, first.op));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Records that `session` has committed its staged operations and got `ticket`.
    pub fn commit(&mut self, session: usize, ticket: Ticket) {
        self.clock += 1;
        let mut ops = Vec::new();
        self.staged.retain(|&(s, op)| {
            if s == session {
                ops.push(op);
            }
            s != session
        });
        // Replies are sent in order: a batch with only reads waits for the session's earlier batches.
        let before = self.waiting.iter().filter(|b| b.session == session);
        let ticket = before.map(|b| b.ticket).fold(ticket, Ticket::max);
        if !ops.is_empty() {
            self.note(
                None,
                format!("s{session} commits #{}.. : {ticket:?}", ops[0]),
            );
            self.waiting.push(PendingBatch {
                session,
                ticket,
                ops,
            });
        }
    }

    /// Records that operation `id` failed with the medium: no commit answers it. It has happened, or never will.
    pub fn failed(&mut self, id: OpId) {
        self.clock += 1;
        self.staged.retain(|(_, op)| *op != id);
        self.seen.remove(&id);
    }

    /// Records that `session` was dropped. With `never`, its staged operations have not happened. Otherwise each has
    /// happened by now, or never will.
    pub fn abandoned(&mut self, session: usize, never: bool) {
        self.clock += 1;
        let own = |&&(of, _): &&(usize, OpId)| of == session;
        let ops: Vec<OpId> = self.staged.iter().filter(own).map(|(_, op)| *op).collect();
        self.note(None, format!("s{session} is dropped"));
        if never {
            ops.into_iter().for_each(|op| self.refused(op));
            return;
        }
        self.staged.retain(|(of, _)| *of != session);
        self.seen.retain(|op, _| !ops.contains(op));
        for version in self.keys.values_mut().flatten() {
            if ops.contains(&version.op) && version.acked.is_none() {
                (version.session, version.died) = (usize::MAX, Some(self.clock));
            }
        }
    }

    /// Returns the tickets that `session` waits for, oldest first.
    #[must_use]
    pub fn tickets(&self, session: usize) -> Vec<Ticket> {
        self.waiting
            .iter()
            .filter(|b| b.session == session)
            .map(|b| b.ticket)
            .collect()
    }

    /// Records that `ticket` of `session` is durable, which acknowledges its batch and all earlier ones.
    pub fn durable(&mut self, session: usize, ticket: Ticket) {
        self.clock += 1;
        let (done, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|b| b.session == session && b.ticket <= ticket);
        self.waiting = waiting;
        let done: Vec<PendingBatch> = done;
        for id in done.into_iter().flat_map(|batch| batch.ops) {
            let Some(keys) = self.touched.remove(&id) else {
                continue;
            };
            if let Some((key, op)) = self.seen.remove(&id) {
                self.ack(key, op); // CHECK-HIST-3
            }
            for &key in &*keys {
                self.ack(key, id);
            }
            self.groups.retain(|group| group.op != id);
            self.note(Some(&keys), format!("#{id} acknowledged"));
        }
    }

    /// Acknowledges a version, which makes the versions that precede it illegal (CHECK-HIST-2).
    fn ack(&mut self, key: u64, op: OpId) {
        let Some(versions) = self.keys.get_mut(&key) else {
            return;
        };
        let Some(version) = versions.iter_mut().find(|v| v.op == op) else {
            return;
        };
        if version.acked.is_none() {
            version.acked = Some(self.clock);
        }
        let acked = *version;
        versions.retain(|v| !v.precedes(&acked));
    }

    /// Records the contents that a recovery at `now_ms` has shown and that were found legal. They are the new initial
    /// state (CHECK-HIST-4).
    pub fn recovered(&mut self, contents: &[(u64, Value)], now_ms: u64) {
        self.clock += 1;
        let old = std::mem::take(&mut self.keys);
        let swapping = self.swapping.take();
        for &(key, value) in contents {
            // After a swap that was not answered, the value may be that of the key's partner.
            let other = swapping.and_then(|(first, second)| partner(key, first, second));
            let both = [Some(key), other].into_iter().flatten();
            let mut versions = both.filter_map(|key| old.get(&key)).flatten();
            let same = versions.find(|v| v.reads_as(now_ms) == Some(value));
            let expires_ms = same
                .and_then(|v| v.state)
                .map_or(0, |(_, expires_ms)| expires_ms);
            let state = Some((value, expires_ms));
            self.keys.insert(
                key,
                vec![KeyVersion {
                    state,
                    ..KeyVersion::ABSENT
                }],
            );
        }
        self.groups.clear();
        self.staged.clear();
        self.waiting.clear();
        self.touched.clear();
        self.seen.clear();
        let shown: BTreeMap<u64, Value> = contents.iter().copied().collect();
        let keys: BTreeSet<u64> = old.into_keys().chain(shown.keys().copied()).collect();
        for key in keys {
            let text = format!("recovered, shows key {key} as {:?}", shown.get(&key));
            self.note(Some(&[key].into()), text);
        }
    }

    /// Records that the process died and the contents were not read after the open. Any write that was not
    /// acknowledged may have happened.
    pub fn died(&mut self) {
        self.clock += 1;
        self.staged.clear();
        self.waiting.clear();
        self.seen.clear();
        for version in self.keys.values_mut().flatten() {
            if version.acked.is_none() {
                (version.session, version.died) = (usize::MAX, Some(self.clock));
            }
        }
        self.note(None, "opened, contents not read".into());
    }

    /// Adds a line to the log, about `keys` or about all keys.
    pub(crate) fn note(&mut self, keys: Option<&Arc<[u64]>>, text: String) {
        self.log.push(HistoryEvent {
            keys: keys.cloned(),
            text: text.into(),
        });
    }

    /// Returns the last `n` lines of the log about `key`.
    #[must_use]
    pub fn tail(&self, key: Option<u64>, n: usize) -> Vec<String> {
        let concerns = |event: &&HistoryEvent| match (&event.keys, key) {
            (Some(keys), Some(key)) => keys.contains(&key),
            _ => true,
        };
        let mut tail: Vec<String> = self
            .log
            .iter()
            .rev()
            .filter(concerns)
            .take(n)
            .map(|e| e.text.to_string())
            .collect();
        tail.reverse();
        tail
    }
}

/// Formats an operation for a violation.
pub(crate) fn describe(op: &TargetOp) -> String {
    let write = |write: &KeyWrite| match *write {
        KeyWrite::Put {
            key,
            value,
            expires_ms: 0,
        } => format!("put {key} = {value:?}"),
        KeyWrite::Put {
            key,
            value,
            expires_ms,
        } => {
            format!("put {key} = {value:?} until {expires_ms} ms")
        }
        KeyWrite::Delete { key } => format!("delete {key}"),
    };
    match op {
        TargetOp::Write(w) => write(w),
        TargetOp::Group(writes) => {
            let mut text = String::from("group {");
            for w in writes {
                let _ = write!(text, " {};", write(w));
            }
            text + " }"
        }
        TargetOp::Update { key, change } => match change {
            Change::Put(value) => format!("update {key} to {value:?}"),
            Change::Delete => format!("update {key}: delete"),
            Change::Keep => format!("update {key}: keep"),
        },
        TargetOp::Get { key, view } => format!("get {key} ({view:?})"),
        TargetOp::FlushAll => "flush all".into(),
        TargetOp::Swap { first, second } => format!("swap databases {first} and {second}"),
    }
}
