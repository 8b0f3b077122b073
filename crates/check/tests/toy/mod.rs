//! A small durable structure that tests the explorer: an append-only log.
//!
//! ```text
//!   0         512                                            tail
//!   ┌───────┬─┬────────────────┬────────────────┬── ... ──┬───┬──────
//!   │ epoch │ │ record         │ record         │         │ ▲ │ stale
//!   └───────┴─┴────────────────┴────────────────┴── ... ──┴───┴──────
//!               crc32, bytes │ epoch │ writes...
//! ```
//!
//! CHECK-TOY-1  A record is valid iff its checksum is correct and its epoch is at most the pool's and at least that of the
//!     record before it. Data that a crash left beyond the tail has an older epoch than the record that overwrites
//!     it.
//! CHECK-TOY-2  The epoch is durable before the first record that has it.
//! CHECK-TOY-3  A recovery makes durable all records that it accepts.
//! CHECK-TOY-4  A reader of another session sees a write only after its ticket is durable.
//! CHECK-TOY-5  A recovery durably wipes a record that it rejects at the tail before a new one is written there. Otherwise
//!     words of the next record could complete the rejected one, and it would become valid.
//! CHECK-TOY-6  One context writes the log for all sessions: a record is valid only if the records before it are. Its newest
//!     ticket covers all records before it.
//! CHECK-TOY-7  A batch whose answers depend on pending writes has the newest ticket and publishes these writes, even if it
//!     writes nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use farbank_check::{
    Change, KeyWrite, OpAnswer, ReadView, Target, TargetOp, TargetShape, TargetSubject, Value,
    Violation,
};
use farbank_pm::medium::persist;
use farbank_pm::sim::Sim;
use farbank_pm::{Medium, Off, PersistCtx, Ticket};

const LOG: u64 = 512;

/// Bug in this log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    None,
    /// The record's first word is not flushed.
    MissingFlush,
    /// A commit reports its batch durable without a drain.
    MissingDrain,
    /// The head is written before the body, and its checksum does not cover the body.
    HeaderFirst,
    /// A recovery has an intermediate state from which the next recovery fails.
    RecoveryNotIdempotent,
    /// CHECK-TOY-3 is not implemented.
    RecoveryNotDurable,
    /// A group is several records.
    TornGroup,
    /// CHECK-TOY-2 is not implemented, nor CHECK-TOY-1.
    NoEpoch,
    /// CHECK-TOY-4 is not implemented.
    EarlyRead,
    /// CHECK-TOY-7 is not implemented. A drain that is a fence makes all pending writes durable, so only a file's later sync
    /// reveals it.
    EarlyAnswer,
    /// CHECK-TOY-5 is not implemented.
    NoWipe,
    /// An expired value uncovers the one before it.
    ExpiryUncovers,
}

impl Mutant {
    /// Mutants that a few seeds detect.
    pub(crate) const ALL: [Mutant; 9] = [
        Mutant::MissingFlush,
        Mutant::MissingDrain,
        Mutant::HeaderFirst,
        Mutant::RecoveryNotIdempotent,
        Mutant::RecoveryNotDurable,
        Mutant::TornGroup,
        Mutant::NoEpoch,
        Mutant::EarlyRead,
        Mutant::ExpiryUncovers,
    ];
}

/// The target.
pub(crate) struct Toy(pub(crate) Mutant);

impl Target for Toy {
    fn name(&self) -> &str {
        "toy"
    }

    fn shape(&self) -> TargetShape {
        TargetShape {
            value_bytes: (8, 150),
            sessions: 2,
            batches: true,
            groups: true,
            updates: true,
            decides: true,
            expiry: true,
            flush_all: true,
            ..TargetShape::default()
        }
    }

    fn create(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        self.open(sim, now_ms)
    }

    fn open(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        Log::open(sim, self.0, now_ms).map(|log| Box::new(log) as _)
    }
}

/// A write and the offset of its record. A larger offset is newer.
type LoggedWrite = (u64, KeyWrite);

#[derive(Default)]
struct Session {
    staged: Vec<LoggedWrite>,
    /// Pending writes on which answers of this batch depend. They are published with it.
    depends: Vec<LoggedWrite>,
    waiting: Vec<(Ticket, Vec<LoggedWrite>)>,
}

struct Log {
    sim: Sim,
    mutant: Mutant,
    ctx: PersistCtx,
    /// The newest ticket (CHECK-TOY-6).
    asked: Ticket,
    epoch: u64,
    tail: u64,
    now_ms: u64,
    sessions: [Session; 2],
    /// The durable writes of each key in the order of the log (all of them, for one mutant).
    durable: BTreeMap<u64, Vec<LoggedWrite>>,
}

impl Log {
    fn open(sim: Sim, mutant: Mutant, now_ms: u64) -> Result<Log, Violation> {
        let mut log = Log {
            epoch: sim.load(Off(0)),
            sim,
            mutant,
            ctx: PersistCtx::new(1),
            asked: Ticket::DURABLE,
            tail: LOG,
            now_ms,
            sessions: Default::default(),
            durable: BTreeMap::new(),
        };
        let mut epoch = 0;
        while let Some((at, writes, next)) = log.record(log.tail, epoch) {
            let from = std::mem::replace(&mut log.tail, next);
            epoch = at;
            writes
                .into_iter()
                .for_each(|write| log.publish((from, write)));
        }
        if mutant != Mutant::RecoveryNotDurable && log.tail > LOG {
            persist(&log.sim, &mut log.ctx, Off(LOG), (log.tail - LOG) as usize)?; // CHECK-TOY-3
        }
        if mutant != Mutant::NoWipe && log.tail < log.sim.len() && log.sim.load(Off(log.tail)) != 0
        {
            log.sim.store(&mut log.ctx, Off(log.tail), 0);
            persist(&log.sim, &mut log.ctx, Off(log.tail), 8)?; // CHECK-TOY-5
        }
        if mutant == Mutant::RecoveryNotIdempotent {
            log.sim.store(&mut log.ctx, Off(0), 0);
            persist(&log.sim, &mut log.ctx, Off(0), 8)?;
        }
        if mutant != Mutant::NoEpoch {
            log.epoch += 1;
            log.sim.store(&mut log.ctx, Off(0), log.epoch);
            persist(&log.sim, &mut log.ctx, Off(0), 8)?; // CHECK-TOY-2
        }
        Ok(log)
    }

    /// Returns the valid record at `at`, if any (CHECK-TOY-1).
    fn record(&self, at: u64, epoch: u64) -> Option<(u64, Vec<KeyWrite>, u64)> {
        if at + 16 > self.sim.len() {
            return None;
        }
        let head = self.sim.load(Off(at));
        let (crc, bytes) = (head as u32, head >> 32);
        let end = at + 8 + bytes;
        if bytes < 8 || end > self.sim.len() || crc != self.crc(at, bytes) {
            return None;
        }
        let its = self.sim.load(Off(at + 8));
        if its < epoch || its > self.epoch {
            return None;
        }
        let mut body = vec![0; bytes as usize - 8];
        self.sim.copy_out(Off(at + 16), &mut body);
        Some((its, decode(&body)?, end.next_multiple_of(8)))
    }

    fn crc(&self, at: u64, bytes: u64) -> u32 {
        let covered = if self.mutant == Mutant::HeaderFirst {
            0
        } else {
            bytes
        };
        self.sim.crc(Off(at + 8), covered as usize, bytes as u32)
    }

    /// Appends a record. Returns false if there is no space.
    fn append(&mut self, writes: &[KeyWrite]) -> bool {
        let body = encode(writes);
        let bytes = body.len() as u64 + 8;
        let at = self.tail;
        if at + 8 + bytes > self.sim.len() {
            return false;
        }
        let epoch = self.epoch.to_le_bytes();
        let parts: [&[u8]; 2] = [&epoch, &body];
        if self.mutant != Mutant::HeaderFirst {
            self.sim.copy_in(&mut self.ctx, Off(at + 8), &parts);
        }
        let head = u64::from(self.crc(at, bytes)) | bytes << 32;
        self.sim.store(&mut self.ctx, Off(at), head);
        if self.mutant == Mutant::HeaderFirst {
            self.sim.copy_in(&mut self.ctx, Off(at + 8), &parts);
        }
        if self.mutant != Mutant::MissingFlush {
            self.sim.flush(&mut self.ctx, Off(at), 8);
        }
        self.tail = (at + 8 + bytes).next_multiple_of(8);
        true
    }

    fn publish(&mut self, logged: LoggedWrite) {
        let writes = self.durable.entry(logged.1.key()).or_default();
        writes.push(logged);
        writes.sort_by_key(|(at, _)| *at);
    }

    /// Returns the value that writes of one key, in log order, leave.
    fn visible(&self, writes: &[LoggedWrite]) -> Option<Value> {
        let alive = |write: &KeyWrite| match *write {
            KeyWrite::Put { expires_ms, .. } => expires_ms == 0 || self.now_ms < expires_ms,
            KeyWrite::Delete { .. } => true,
        };
        let last = match self.mutant {
            Mutant::ExpiryUncovers => writes.iter().rev().find(|(_, write)| alive(write))?,
            _ => writes.last().filter(|(_, write)| alive(write))?,
        };
        match last.1 {
            KeyWrite::Put { value, .. } => Some(value),
            KeyWrite::Delete { .. } => None,
        }
    }

    fn get(&self, session: usize, key: u64, view: ReadView) -> Option<Value> {
        let mut writes = self.durable.get(&key).cloned().unwrap_or_default();
        for (id, of) in self.sessions.iter().enumerate() {
            if (view == ReadView::Own && id == session) || self.mutant == Mutant::EarlyRead {
                writes.extend(of.pending().filter(|(_, write)| write.key() == key));
            }
        }
        writes.sort_by_key(|(at, _)| *at);
        self.visible(&writes)
    }

    /// Returns the value on which an update of `key` is based.
    fn newest(&self, key: u64) -> Option<Value> {
        let mut writes = self.durable.get(&key).cloned().unwrap_or_default();
        let pending = self.sessions.iter().flat_map(Session::pending);
        writes.extend(pending.filter(|(_, write)| write.key() == key));
        writes.sort_by_key(|(at, _)| *at);
        self.visible(&writes)
    }
}

impl Session {
    /// Returns staged and committed writes that are not durable yet.
    fn pending(&self) -> impl Iterator<Item = LoggedWrite> {
        self.waiting
            .iter()
            .flat_map(|(_, writes)| writes)
            .chain(&self.staged)
            .copied()
    }
}

impl TargetSubject for Log {
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, Violation> {
        let writes = match op {
            TargetOp::Get { key, view } => {
                return Ok(OpAnswer::Found(self.get(session, *key, *view)));
            }
            TargetOp::Write(write) => vec![*write],
            &TargetOp::Update { key, change } => match change {
                Change::Keep => vec![],
                Change::Delete => vec![KeyWrite::Delete { key }],
                Change::Put(value) => vec![KeyWrite::Put {
                    key,
                    value,
                    expires_ms: 0,
                }],
            },
            TargetOp::Group(writes) => writes.clone(),
            TargetOp::FlushAll => {
                let pending = self.sessions.iter().flat_map(Session::pending);
                let keys = self
                    .durable
                    .keys()
                    .copied()
                    .chain(pending.map(|(_, w)| w.key()));
                let keys: BTreeSet<u64> = keys.collect();
                keys.into_iter()
                    .map(|key| KeyWrite::Delete { key })
                    .collect()
            }
            TargetOp::Swap { .. } => unreachable!("the shape has no swaps"),
        };
        let answer = match op {
            TargetOp::Update { key, .. } => OpAnswer::Found(self.newest(*key)),
            TargetOp::Write(KeyWrite::Delete { key }) => OpAnswer::Was(self.newest(*key).is_some()),
            TargetOp::Group(writes) => {
                OpAnswer::Saw(writes.iter().map(|w| self.newest(w.key())).collect())
            }
            _ => OpAnswer::Done,
        };
        if answer != OpAnswer::Done {
            let pending: Vec<LoggedWrite> =
                self.sessions.iter().flat_map(Session::pending).collect();
            self.sessions[session].depends = pending;
        }
        let at = self.tail;
        let whole = self.mutant != Mutant::TornGroup;
        let appended = if whole {
            self.append(&writes)
        } else {
            writes.iter().all(|&write| self.append(&[write]))
        };
        if !appended {
            return Ok(OpAnswer::Refused);
        }
        self.sessions[session]
            .staged
            .extend(writes.into_iter().map(|write| (at, write)));
        if *op == TargetOp::FlushAll {
            let ticket = self.commit(session)?;
            self.sim.wait(ticket)?;
            self.durable(session, ticket)?;
        }
        Ok(answer)
    }

    fn commit(&mut self, session: usize) -> Result<Ticket, Violation> {
        if self.mutant != Mutant::MissingDrain {
            self.asked = self.asked.max(self.sim.drain(&mut self.ctx));
        }
        let ticket = self.asked;
        let session = &mut self.sessions[session];
        let mut staged = std::mem::take(&mut session.staged);
        let depends = std::mem::take(&mut session.depends);
        if self.mutant != Mutant::EarlyAnswer {
            staged.extend(depends);
        }
        if staged.is_empty() {
            return Ok(Ticket::DURABLE);
        }
        session.waiting.push((ticket, staged));
        Ok(ticket)
    }

    fn durable(&mut self, session: usize, ticket: Ticket) -> Result<bool, Violation> {
        if !self.sim.poll(ticket)? {
            return Ok(false);
        }
        let waiting = std::mem::take(&mut self.sessions[session].waiting);
        let (done, waiting) = waiting.into_iter().partition(|(t, _)| *t <= ticket);
        self.sessions[session].waiting = waiting;
        let done: Vec<(Ticket, Vec<LoggedWrite>)> = done;
        done.into_iter()
            .flat_map(|(_, writes)| writes)
            .for_each(|logged| self.publish(logged));
        Ok(true)
    }

    fn contents(&mut self) -> Result<Vec<(u64, Value)>, Violation> {
        let all = self.durable.iter();
        Ok(all
            .filter_map(|(&key, versions)| Some((key, self.visible(versions)?)))
            .collect())
    }

    fn check(&mut self) -> Result<(), Violation> {
        let inside = (LOG..=self.sim.len()).contains(&self.tail);
        inside
            .then_some(())
            .ok_or_else(|| Violation::new(format!("the tail {} is outside the log", self.tail)))
    }

    fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn close(self: Box<Self>) -> Result<(), Violation> {
        Ok(())
    }
}

fn encode(writes: &[KeyWrite]) -> Vec<u8> {
    let mut body = Vec::new();
    for write in writes {
        let (value, expires_ms) = match *write {
            KeyWrite::Put {
                value, expires_ms, ..
            } => (value.encode(), expires_ms),
            KeyWrite::Delete { .. } => (Vec::new(), 0),
        };
        for word in [write.key(), expires_ms, value.len() as u64] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        body.extend_from_slice(&value);
    }
    body
}

/// Decodes a record's body. Returns `None` if it is invalid, which the checksum should have detected.
fn decode(mut body: &[u8]) -> Option<Vec<KeyWrite>> {
    let mut writes = Vec::new();
    while !body.is_empty() {
        let mut word = || {
            let (head, rest) = body.split_first_chunk()?;
            body = rest;
            Some(u64::from_le_bytes(*head))
        };
        let (key, expires_ms, bytes) = (word()?, word()?, word()?);
        let (value, rest) = body.split_at_checked(bytes as usize)?;
        body = rest;
        writes.push(match value {
            [] => KeyWrite::Delete { key },
            // Damaged bytes are reported as a value of length 0, which the oracle rejects.
            _ => {
                let id = value.first_chunk().map_or(0, |id| u64::from_le_bytes(*id));
                let value = Value::decode(value).unwrap_or(Value { id, bytes: 0 });
                KeyWrite::Put {
                    key,
                    value,
                    expires_ms,
                }
            }
        });
    }
    Some(writes)
}
