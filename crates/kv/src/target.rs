//! The engine as a target of the explorers: `check crash --target kv`, `kv-alone`, `kv-large`, `kv-classes`,
//! `kv-slices` and `kv-checkpoint`.
//!
//! The pool has a few small segments, so that every run has records, groups, large values, cleaning and recovery. A
//! [`TargetSubject`] executes all operations in the caller's thread. Each [`TargetClient`] has a thread of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_check::Violation;
use farbank_check::target::{
    KeyWrite, OpAnswer, SharedTarget, Target, TargetClient, TargetOp, TargetShape, TargetSubject,
    Value as Stored,
};
use farbank_pm::epoch::EpochSlot;
use farbank_pm::fault::NamedFault;
use farbank_pm::pool::CopiedPoolPolicy;
use farbank_pm::sim::{Persistency, Sim};
use farbank_pm::situation::Situation;
use farbank_pm::{Medium, Ticket};
use farbank_store::Error;
use farbank_store::explored::{BatchMode, IDENTITY, SessionClient};

use crate::api::Kv;
use crate::config::{CleaningMode, Config};
use crate::format::geometry::map_bytes;
use crate::format::segment::{CLASSES, OVERHEAD};

/// A configuration of the engine for exploration. The machine's clock is wrong most of the time. It is behind when a
/// pool is opened, and jumps ahead and back while time passes. At some cleaning steps it has been behind for so long
/// that the store's clock follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvTarget {
    /// The default configuration, on a pool of 16 segments of 4 KiB that may grow to 24.
    Plain,
    /// Like [`KvTarget::Plain`], but each operation is a batch of its own. Values are written by
    /// [`put_durable`](farbank_store::Session::put_durable).
    Alone,
    /// Values of up to three extents, on 40 segments. The pool does not grow.
    Large,
    /// As many lifetime classes as a large pool has, on 32 segments. The pool does not grow. At every second cleaning
    /// step a reader pins an epoch until the next step, so that segments emptied meanwhile do not become free.
    Classes,
    /// Like [`KvTarget::Plain`] with more segments, and a cleaner that moves two records at a time. Operations, crashes
    /// and FLUSHALL happen between two slices of a pass.
    Slices,
    /// Like [`KvTarget::Plain`] on 28 segments, with a checkpoint of the index after every few writes. Operations, crashes
    /// and FLUSHALL happen between two slices of a checkpoint.
    Checkpoint,
}

const SEGMENT_BYTES: u64 = 4 << 10;
/// Bytes of a large value in one extent.
const EXTENT_BYTES: u32 =
    SEGMENT_BYTES as u32 - (OVERHEAD + map_bytes(SEGMENT_BYTES as usize)) as u32;

/// Number of segments that explored opens have read by their maps, in this process.
static SEGMENTS_MAPPED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of segments that explored opens have read by their maps in this process so far.
#[must_use]
pub fn segments_mapped() -> u64 {
    SEGMENTS_MAPPED.load(Relaxed)
}
const SESSIONS: usize = 2;
impl KvTarget {
    fn batches(self) -> BatchMode {
        match self {
            KvTarget::Plain
            | KvTarget::Large
            | KvTarget::Classes
            | KvTarget::Slices
            | KvTarget::Checkpoint => BatchMode::Many,
            KvTarget::Alone => BatchMode::OfOne,
        }
    }

    /// Maximum number of records in one slice of the cleaner.
    fn slice_records(self) -> u32 {
        match self {
            KvTarget::Plain | KvTarget::Alone | KvTarget::Large | KvTarget::Classes => 1_024,
            KvTarget::Slices => 2,
            KvTarget::Checkpoint => 1,
        }
    }

    /// Does one cleaning step: a slice, or until a segment is free.
    fn clean<M: Medium>(self, kv: &Kv<M>) -> Result<(), Violation> {
        let done = match (self, kv.engine.now_ms() % 5) {
            (KvTarget::Slices, 1..) => kv.clean_slice(),
            (KvTarget::Checkpoint, 1..) => kv.checkpoint_slice(),
            _ => kv.clean().map(drop),
        };
        done.map_err(Violation::from)
    }

    fn config(self, machine: &TestMachine) -> Config {
        let (wall, uptime) = (Arc::clone(&machine.wall), Arc::clone(&machine.uptime));
        let (classes, pool_bytes_max) = match self {
            KvTarget::Plain | KvTarget::Alone => (0, pool_bytes(24)),
            KvTarget::Slices => (0, pool_bytes(28)),
            KvTarget::Checkpoint => (0, pool_bytes(36)),
            KvTarget::Large => (0, 0),
            KvTarget::Classes => (CLASSES, 0),
        };
        Config {
            clock: Arc::new(move || wall.load(Relaxed)),
            uptime: Arc::new(move || uptime.load(Relaxed)),
            step_held_ms: STEP_HELD_MS,
            cleaning: CleaningMode::Inline,
            pool_bytes_max,
            classes,
            slice_records: self.slice_records(),
            copies: CopiedPoolPolicy::Refuse,
            keys_expected: 0,
            // One row for each stripe, so that keys share rows.
            read_cache_bytes: 1,
            checkpoint_bytes: match self {
                KvTarget::Checkpoint => SEGMENT_BYTES,
                _ => 0,
            },
            checkpoint_share: 1,
            // By the time of the open, each checkpoint takes the segments of the one before it: early, or late.
            checkpoint_pair_share: machine.wall.load(Relaxed) % 2 * 16,
            checkpoint_buffer_bytes: machine.wall.load(Relaxed) / 2 % 2 * SEGMENT_BYTES,
            open_threads: 1,
            // A pinned reader is this thread itself, or a thread that needs few yields.
            patience: 8,
        }
    }

    fn shared(self, sim: Sim, now_ms: u64) -> Result<KvSharedTarget<Sim>, Violation> {
        let machine = TestMachine::new(behind(now_ms));
        let kv = Kv::open(sim, self.config(&machine))?;
        machine.set_time(&kv, now_ms);
        SEGMENTS_MAPPED.fetch_add(kv.opened().segments_mapped, Relaxed);
        match kv.opened().damage.first() {
            Some(damage) => Err(Violation::new(format!(
                "the open reports damage, but nothing was damaged: {damage}"
            ))),
            None => Ok(KvSharedTarget {
                kv,
                machine,
                target: self,
            }),
        }
    }
}

impl Target for KvTarget {
    fn name(&self) -> &str {
        match self {
            KvTarget::Plain => "kv",
            KvTarget::Alone => "kv-alone",
            KvTarget::Large => "kv-large",
            KvTarget::Classes => "kv-classes",
            KvTarget::Slices => "kv-slices",
            KvTarget::Checkpoint => "kv-checkpoint",
        }
    }

    fn has_command(&self) -> bool {
        true
    }

    fn modes(&self) -> &'static [Persistency] {
        match self {
            // An operation is durable when it returns only if tickets are durable.
            KvTarget::Alone => &Persistency::ALL,
            _ => &Persistency::EVERY,
        }
    }

    fn shape(&self) -> TargetShape {
        // The longest values lie in extents.
        let (segments, keys, value_bytes) = match self {
            KvTarget::Plain | KvTarget::Alone => (16, 12, (8, 1_500)),
            // Some groups take several extents.
            KvTarget::Slices => (24, 9, (8, 2_500)),
            KvTarget::Checkpoint => (28, 12, (8, 1_500)),
            KvTarget::Large => (40, 6, (8, 9_000)),
            KvTarget::Classes => (32, 12, (8, 1_500)),
        };
        TargetShape {
            pool_bytes: pool_bytes(segments),
            keys,
            value_bytes,
            part_bytes: match self {
                KvTarget::Large => EXTENT_BYTES,
                _ => 0,
            },
            sessions: SESSIONS,
            batches: self.batches() == BatchMode::Many,
            deletes: true,
            // A member of a group has no extents of its own.
            groups: self != &KvTarget::Large,
            updates: true,
            decides: true,
            expiry: true,
            flush_all: true,
            swaps: true,
            abandons: self.batches() == BatchMode::Many,
            cleans: true,
            ..TargetShape::default()
        }
    }

    fn faults(&self) -> &'static [NamedFault] {
        match self {
            KvTarget::Large => &crate::faults::LARGE,
            KvTarget::Slices => &crate::faults::IN_SLICES,
            KvTarget::Checkpoint => &crate::faults::IN_CHECKPOINTS,
            KvTarget::Plain | KvTarget::Alone | KvTarget::Classes => &crate::faults::ALL,
        }
    }

    fn situations(&self) -> Vec<Situation> {
        match self {
            KvTarget::Checkpoint => crate::situations::IN_CHECKPOINTS.to_vec(),
            _ => crate::situations::ALL.to_vec(),
        }
    }

    fn faults_in_threads(&self) -> &'static [NamedFault] {
        match self {
            KvTarget::Plain | KvTarget::Large | KvTarget::Classes => &crate::faults::IN_THREADS,
            KvTarget::Slices | KvTarget::Checkpoint => &[],
            KvTarget::Alone => &crate::faults::IN_THREADS_ALONE,
        }
    }

    fn shape_in_threads(&self) -> TargetShape {
        let segments = match self {
            KvTarget::Plain | KvTarget::Alone | KvTarget::Slices => 14,
            KvTarget::Checkpoint => 28,
            KvTarget::Large => 40,
            KvTarget::Classes => 32,
        };
        TargetShape {
            pool_bytes: pool_bytes(segments),
            ..self.shape()
        }
    }

    fn create(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        let machine = TestMachine::new(now_ms);
        let kv = Kv::create_as(sim, SEGMENT_BYTES, IDENTITY, self.config(&machine));
        let kv = kv?;
        Ok(KvSubject::over(kv, machine, *self))
    }

    fn open(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        let KvSharedTarget {
            kv,
            machine,
            target,
        } = self.shared(sim, now_ms)?;
        Ok(KvSubject::over(kv, machine, target))
    }

    fn share(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn SharedTarget>, Violation> {
        Ok(Box::new(self.shared(sim, now_ms)?))
    }
}

/// The clocks of the machine.
struct TestMachine {
    wall: Arc<AtomicU64>,
    uptime: Arc<AtomicU64>,
}

impl TestMachine {
    fn new(wall_ms: u64) -> TestMachine {
        TestMachine {
            wall: Arc::new(AtomicU64::new(wall_ms)),
            uptime: Arc::default(),
        }
    }

    /// Advances the uptime until the time of `kv` is `now_ms`. A jump of the wall clock must not affect an open pool,
    /// so the wall clock is set far ahead at every even `now_ms`.
    fn set_time<M: Medium>(&self, kv: &Kv<M>, now_ms: u64) {
        let passed = now_ms.saturating_sub(kv.engine.now_ms());
        self.uptime.fetch_add(passed, Relaxed);
        let times = if now_ms.is_multiple_of(2) { 50 } else { 1 };
        self.wall.store(now_ms * times, Relaxed);
    }

    /// Sets the wall clock back for so long that the store's clock follows. Values that have expired by now count as
    /// expired.
    fn set_back<M: Medium>(&self, kv: &Kv<M>) -> Result<(), Violation> {
        kv.engine.superblock.clock().act_on_time();
        self.wall
            .store(behind(kv.engine.now_ms()) - STEP_HELD_MS, Relaxed);
        for passed in [0, STEP_HELD_MS] {
            self.wall.fetch_add(passed, Relaxed);
            self.uptime.fetch_add(passed, Relaxed);
            kv.engine.follow_clock()?;
        }
        Ok(())
    }
}

/// Time for which the wall clock must differ before the store's clock follows it, in milliseconds: the minimum.
const STEP_HELD_MS: u64 = 1;

/// Returns a time before `now_ms`, by a little or by much.
fn behind(now_ms: u64) -> u64 {
    match now_ms % 3 {
        0 => now_ms.saturating_sub(700).max(STEP_HELD_MS),
        1 => (now_ms / 2).max(STEP_HELD_MS),
        _ => STEP_HELD_MS,
    }
}

const fn pool_bytes(segments: u64) -> u64 {
    8192 + segments * SEGMENT_BYTES
}

/// The engine for one thread, which calls all sessions in turn.
struct KvSubject<M: Medium> {
    /// Declared before the store, because sessions are dropped first.
    clients: Vec<SessionClient>,
    /// Keys that each session has staged and not committed.
    staged: Vec<HashSet<u64>>,
    /// For each session, the bytes that all sessions had committed when its batch began.
    began: Vec<Option<u64>>,
    /// A reader that pins an epoch at every second cleaning step.
    reader: SlowReader,
    kv: Kv<M>,
    machine: TestMachine,
    target: KvTarget,
}

/// A reader that keeps emptied segments from being recycled while it pins an epoch.
enum SlowReader {
    /// The target has no such reader.
    Absent,
    /// The reader pins no epoch.
    Unpinned(EpochSlot),
    /// The reader pins an epoch.
    Pinned(EpochSlot),
}

impl<M: Medium> KvSubject<M> {
    fn over(kv: Kv<M>, machine: TestMachine, target: KvTarget) -> Box<dyn TargetSubject> {
        let reader = match target {
            KvTarget::Plain
            | KvTarget::Alone
            | KvTarget::Large
            | KvTarget::Slices
            | KvTarget::Checkpoint => SlowReader::Absent,
            KvTarget::Classes => SlowReader::Unpinned(kv.engine.epochs.slot()),
        };
        Box::new(KvSubject {
            clients: (0..SESSIONS)
                .map(|_| SessionClient::new(kv.session(), target.batches()))
                .collect(),
            staged: vec![HashSet::new(); SESSIONS],
            began: vec![None; SESSIONS],
            reader,
            kv,
            machine,
            target,
        })
    }

    /// Checks the samples of a session of its own, whose pins end when it is dropped, against the contents of the store.
    fn check_sample(&self, contents: &[(u64, Stored)]) -> Result<(), Violation> {
        let mut reader = SessionClient::new(self.kv.session(), self.target.batches());
        reader.check_sample(contents, self.kv.engine.pending.is_quiet())
    }

    /// Commits what all sessions but `session` have staged.
    fn commit_others(&mut self, session: Option<usize>) -> Result<(), Violation> {
        for other in (0..SESSIONS).filter(|other| Some(*other) != session) {
            self.staged[other].clear();
            self.clients[other].commit()?;
        }
        Ok(())
    }

    /// Pins the reader's epoch if it is not pinned, and unpins it otherwise.
    fn turn_reader(&mut self) {
        self.reader = match std::mem::replace(&mut self.reader, SlowReader::Absent) {
            SlowReader::Absent => SlowReader::Absent,
            SlowReader::Unpinned(slot) => {
                self.kv.engine.epochs.pin(&slot);
                SlowReader::Pinned(slot)
            }
            SlowReader::Pinned(slot) => {
                slot.unpin();
                SlowReader::Unpinned(slot)
            }
        };
    }

    /// Commits the other sessions that have staged keys of `op`, because `session` would wait for them, and there is
    /// only one thread.
    fn commit_conflicting_sessions(
        &mut self,
        session: usize,
        op: &TargetOp,
    ) -> Result<(), Violation> {
        let keys: Vec<u64> = match op {
            TargetOp::Write(write) => vec![write.key()],
            TargetOp::Group(writes) => writes.iter().map(KeyWrite::key).collect(),
            TargetOp::Update { key, .. } => vec![*key],
            TargetOp::Get { .. } => return Ok(()),
            TargetOp::FlushAll => {
                self.staged[session].clear();
                self.began[session] = None;
                return Ok(());
            }
            TargetOp::Swap { .. } => {
                self.staged[session].clear();
                self.began.fill(None);
                return self.commit_others(Some(session));
            }
        };
        for other in (0..SESSIONS).filter(|other| *other != session) {
            if keys.iter().any(|key| self.staged[other].contains(key)) {
                self.staged[other].clear();
                self.clients[other].commit()?;
            }
        }
        let committed = self.kv.engine.counters.user_bytes.load(Relaxed);
        self.began[session].get_or_insert(committed);
        self.staged[session].extend(keys);
        Ok(())
    }
}

/// The engine for several threads.
struct KvSharedTarget<M: Medium> {
    kv: Kv<M>,
    machine: TestMachine,
    target: KvTarget,
}

impl<M: Medium> SharedTarget for KvSharedTarget<M> {
    fn client(&self) -> Box<dyn TargetClient> {
        Box::new(SessionClient::new(self.kv.session(), self.target.batches()))
    }

    fn clean(&self) -> Result<(), Violation> {
        self.target.clean(&self.kv)
    }

    fn into_subject(self: Box<Self>) -> Box<dyn TargetSubject> {
        KvSubject::over(self.kv, self.machine, self.target)
    }
}

impl<M: Medium> TargetSubject for KvSubject<M> {
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, Violation> {
        self.commit_conflicting_sessions(session, op)?;
        match self.clients[session].apply(op) {
            // A group has staged keys beside its own (KV-GROUP-6), and there is only one thread.
            Err(error) if error == Violation::from(Error::Conflict) => {
                self.commit_others(Some(session))?;
                self.clients[session].apply(op)
            }
            answer => answer,
        }
    }

    fn commit(&mut self, session: usize) -> Result<Ticket, Violation> {
        self.staged[session].clear();
        self.began[session] = None;
        let ticket = self.clients[session].commit()?;
        // In a server the background thread writes maps, ten times a second.
        let written = self.kv.engine.write_all_maps();
        written.map_err(Violation::from).map(|()| ticket)
    }

    fn durable(&mut self, session: usize, ticket: Ticket) -> Result<bool, Violation> {
        self.clients[session].durable(ticket)
    }

    fn abandon(&mut self, session: usize) -> Result<bool, Violation> {
        let committed = self.kv.engine.counters.user_bytes.load(Relaxed);
        let never = self.began[session].take() == Some(committed);
        self.staged[session].clear();
        self.clients[session] = SessionClient::new(self.kv.session(), self.target.batches());
        let keeps = |staged: &HashSet<u64>| !staged.is_empty();
        if !self.staged.iter().any(keeps) && self.kv.engine.pending.is_staged() {
            return Err(Violation::new("a dropped session still has staged writes"));
        }
        Ok(never)
    }

    fn contents(&mut self) -> Result<Vec<(u64, Stored)>, Violation> {
        let contents = self.clients[0].contents()?;
        self.check_sample(&contents)?;
        Ok(contents)
    }

    fn check(&mut self) -> Result<(), Violation> {
        Ok(self.kv.verify()?)
    }

    fn clean(&mut self) -> Result<(), Violation> {
        self.turn_reader();
        // Only this reader may pin an epoch here: sessions pin none between batches.
        match self.target.clean(&self.kv) {
            // The cleaner waits for a session whose group has staged keys beside its own (KV-GROUP-6).
            Err(error) if error == Violation::from(Error::Conflict) => {
                self.commit_others(None)?;
                self.target.clean(&self.kv)?;
            }
            done => done?,
        }
        match self.kv.engine.now_ms().is_multiple_of(2) {
            true => self.machine.set_back(&self.kv),
            false => Ok(()),
        }
    }

    fn set_time(&mut self, now_ms: u64) {
        self.machine.set_time(&self.kv, now_ms);
    }

    fn close(self: Box<Self>) -> Result<(), Violation> {
        let KvSubject {
            clients,
            reader,
            kv,
            ..
        } = *self;
        if let SlowReader::Pinned(slot) = reader {
            slot.unpin();
        }
        drop(clients);
        match kv.close() {
            Ok(_) | Err(Error::NoSnapshot { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
