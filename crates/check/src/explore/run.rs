//! A run: one structure executes a workload, and its crash points are captured.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use farbank_pm::Ticket;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{CrashState, ImageCut, Persistency, Sim};
use farbank_pm::situation::uncounted;
use farbank_pm::sync::unpoisoned;

use super::open_subject::OpenSubject;
use super::{Explorer, SeedFailure, sorted};
use crate::Violation;
use crate::guard::guarded;
use crate::history::{History, OpId};
use crate::oracle::check_history;
use crate::target::{OpAnswer, TargetOp, TargetSubject};
use crate::workload::{START_MS, Workload, WorkloadStep};

/// Images and crash points that were checked against one state of the history.
#[derive(Default)]
struct CheckedImages {
    hashes: HashSet<u64>,
    /// Version of the history, and time.
    at: (u64, u64),
}

/// Place of a run among nested runs.
pub(super) struct Nesting {
    /// Consecutive crashes at the run's crash points: 1 for the first run, more for nested runs.
    pub(super) depth: usize,
    /// Number of runs that it may still nest.
    pub(super) left: usize,
}

/// A structure that executes a workload, with its captured crash points.
pub(super) struct WorkloadRun {
    pub(super) nesting: Nesting,
    /// Whether `create` has not returned yet (CHECK-EXPLORE-4).
    pub(super) creating: bool,
    pub(super) seed: u64,
    pub(super) history: History,
    /// After a kill that must lose nothing: the history with everything that was answered counted as acknowledged
    /// (CHECK-EXPLORE-5).
    promised: Option<History>,
    pub(super) now_ms: u64,
    pub(super) crashes: u64,
    checked: CheckedImages,
    sim: Sim,
    subject: Option<OpenSubject>,
    workload: Workload,
    captured: Arc<Mutex<Vec<CrashState>>>,
}

impl WorkloadRun {
    fn new(seed: u64, sim: Sim, workload: Workload) -> WorkloadRun {
        WorkloadRun {
            nesting: Nesting {
                depth: 1,
                left: usize::MAX,
            },
            creating: true,
            seed,
            history: History::new(),
            promised: None,
            now_ms: START_MS,
            crashes: 0,
            checked: CheckedImages::default(),
            sim,
            subject: None,
            workload,
            captured: Arc::default(),
        }
    }

    /// Returns whether an image or crash point with this hash was not yet checked against the current history.
    pub(super) fn is_new(&mut self, hash: u64) -> bool {
        let at = (self.history.version(), self.now_ms);
        if self.checked.at != at {
            self.checked.hashes.clear();
            self.checked.at = at;
        }
        self.checked.hashes.insert(hash)
    }

    pub(super) fn failure(&self, key: Option<u64>, what: impl Into<String>) -> Box<SeedFailure> {
        SeedFailure::new(&self.history, key, what)
    }
}

impl Explorer<'_> {
    pub(super) fn run(&mut self, seed: u64) -> Result<(), Box<SeedFailure>> {
        let workload = Workload::new(&self.shape, seed, self.config.io_errors);
        let image = uncounted(|| self.target.before(seed));
        let mut run = WorkloadRun {
            history: History::judged_by(self.config.verdict())
                .forgetting(self.shape.forgets)
                .relaxed(self.config.persistency == Persistency::Relaxed),
            ..WorkloadRun::new(seed, self.sim(image), workload)
        };
        self.create(&mut run)?;
        let only = self.config.only.as_ref().map_or(u64::MAX, |only| only.0);
        for _ in 0..self.config.steps {
            if run.crashes > only {
                break;
            }
            self.step(&mut run)?;
            self.counts.steps += 1;
        }
        Ok(())
    }

    fn create(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        self.attach(run);
        let created = guarded(|| self.target.create(run.sim.clone(), START_MS));
        self.check_captured(run)
            .map_err(|failure| failure.after("while it was created".into()))?;
        let subject = created.and_then(|refused| refused);
        let cannot = |e: Violation| run.failure(None, e.context("creation failed"));
        run.subject = Some(OpenSubject::new(subject.map_err(cannot)?));
        run.creating = false;
        self.check_state(run, &run.sim.crash_state())
    }

    /// Runs a nested run: opens `sim` as a crash left it, then executes a few steps.
    pub(super) fn nest(
        &mut self,
        run: &WorkloadRun,
        sim: Sim,
        seed: u64,
    ) -> Result<(), Box<SeedFailure>> {
        self.counts.nested_runs += 1;
        let mut nested = WorkloadRun {
            nesting: Nesting {
                depth: run.nesting.depth + 1,
                left: self.config.nests_deeper,
            },
            creating: run.creating,
            history: run.history.clone(),
            now_ms: run.now_ms,
            ..WorkloadRun::new(seed, sim.clone(), run.workload.branch(seed))
        };
        self.reopen(&mut nested, sim)?;
        for _ in 0..self.config.nested_steps {
            if nested.subject.is_some() {
                self.step(&mut nested)?;
            }
        }
        Ok(())
    }

    /// Starts capturing the crash points of the run's medium.
    fn attach(&self, run: &WorkloadRun) {
        let captured = Arc::clone(&run.captured);
        run.sim.count_places(Arc::clone(&self.places));
        run.sim.observe(Some(Arc::new(move |state| {
            unpoisoned(captured.lock()).push(state);
        })));
    }

    fn step(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        let step = run.workload.step();
        match step {
            WorkloadStep::Apply(session, op) => self.apply(run, session, &op)?,
            WorkloadStep::Commit(session) => self.commit(run, session)?,
            WorkloadStep::Abandon(session) => self.abandon(run, session)?,
            WorkloadStep::Sync => self.sync_and_acknowledge(run)?,
            WorkloadStep::Clean => {
                run.history.note(None, "clean".into());
                self.call(run, "a cleaning step", |s| s.clean())?;
            }
            WorkloadStep::Advance(ms) => {
                run.now_ms += ms;
                let now_ms = run.now_ms;
                run.history.note(None, format!("the time is {now_ms} ms"));
                self.call(run, "setting the time", |s| {
                    s.set_time(now_ms);
                    Ok(())
                })?;
            }
            WorkloadStep::Close => self.close(run)?,
            WorkloadStep::Kill => self.kill(run)?,
            WorkloadStep::Cut => self.cut(run)?,
            WorkloadStep::Fail(n) => {
                run.history.note(None, format!("drain {n} from here fails"));
                run.sim.fail_drain(n);
            }
        }
        self.check_state(run, &run.sim.crash_state())
    }

    /// Calls the subject and checks the crash points captured during the call. Returns `None` if the call failed
    /// because of an injected drain failure. The subject was then killed and opened again.
    fn call<R>(
        &mut self,
        run: &mut WorkloadRun,
        what: &str,
        f: impl FnOnce(&mut dyn TargetSubject) -> Result<R, Violation>,
    ) -> Result<Option<R>, Box<SeedFailure>> {
        self.call_of(run, None, what, f)
    }

    /// As [`call`](Self::call), for the operation `op` of the history.
    fn call_of<R>(
        &mut self,
        run: &mut WorkloadRun,
        op: Option<OpId>,
        what: &str,
        f: impl FnOnce(&mut dyn TargetSubject) -> Result<R, Violation>,
    ) -> Result<Option<R>, Box<SeedFailure>> {
        let subject = run
            .subject
            .as_mut()
            .expect("a run has a subject between its steps");
        let result = guarded(|| f(&mut **subject)).and_then(|result| result);
        // A failed operation may have begun to evict.
        run.history
            .made_room(result.is_err() || subject.made_room());
        self.check_captured(run)?;
        match result {
            Ok(r) => Ok(Some(r)),
            Err(_) if run.sim.is_poisoned() => {
                self.commit_after_failure(run, op)?;
                self.kill(run)?;
                Ok(None)
            }
            Err(e) => Err(run.failure(None, e.context(format_args!("{what} failed")))),
        }
    }

    /// Commits every session after the medium has failed, in operation `op` or otherwise (CHECK-EXPLORE-6). A commit may
    /// fail. What it acknowledges must survive.
    fn commit_after_failure(
        &mut self,
        run: &mut WorkloadRun,
        op: Option<OpId>,
    ) -> Result<(), Box<SeedFailure>> {
        if self.config.persistency == Persistency::Relaxed {
            return Ok(()); // A durable ticket promises nothing (CHECK-EXPLORE-5).
        }
        if let Some(id) = op {
            run.history.failed(id);
        }
        for session in 0..self.shape.sessions {
            let subject = run.subject.as_mut().expect("the failed call had a subject");
            let committed = guarded(|| {
                let ticket = subject.commit(session)?;
                Ok(subject.durable(session, ticket)?.then_some(ticket))
            });
            if let Ok(Some(ticket)) = committed.and_then(|committed| committed) {
                run.history.commit(session, ticket);
                run.history.durable(session, ticket);
            }
            self.check_captured(run)?;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        run: &mut WorkloadRun,
        session: usize,
        op: &TargetOp,
    ) -> Result<(), Box<SeedFailure>> {
        let id = run.history.invoke(session, op);
        let what = format!("operation #{id}");
        let answer = self.call_of(run, Some(id), &what, |s| s.apply(session, op))?;
        let Some(answer) = answer else {
            return Ok(());
        };
        if answer == OpAnswer::Refused {
            self.counts.refused += 1;
        }
        let answered = run.history.answered(session, id, op, &answer, run.now_ms);
        if !self.shape.batches {
            run.history.commit(session, Ticket::DURABLE);
            run.history.durable(session, Ticket::DURABLE);
        }
        answered.map_err(|wrong| {
            let what = format!("key {}: {}", wrong.key, wrong.what);
            run.failure(Some(wrong.key), what)
        })
    }

    fn commit(&mut self, run: &mut WorkloadRun, session: usize) -> Result<(), Box<SeedFailure>> {
        if let Some(ticket) = self.call(run, "a commit", |s| s.commit(session))? {
            run.history.commit(session, ticket);
            self.acknowledge_durable(run, session, false)?;
        }
        Ok(())
    }

    fn abandon(&mut self, run: &mut WorkloadRun, session: usize) -> Result<(), Box<SeedFailure>> {
        if let Some(never) = self.call(run, "dropping a session", |s| s.abandon(session))? {
            run.history.abandoned(session, never);
        }
        Ok(())
    }

    /// Acknowledges the durable tickets. With `must`, the medium has just synced and every ticket must be durable.
    fn acknowledge_durable(
        &mut self,
        run: &mut WorkloadRun,
        session: usize,
        must: bool,
    ) -> Result<(), Box<SeedFailure>> {
        if !must && self.config.persistency == Persistency::Relaxed {
            return Ok(()); // A durable ticket promises nothing (CHECK-EXPLORE-5).
        }
        for ticket in run.history.tickets(session) {
            match self.call(run, "polling a ticket", |s| s.durable(session, ticket))? {
                Some(true) => run.history.durable(session, ticket),
                Some(false) if must => {
                    let what =
                        format!("{ticket:?} of session {session} is not durable after a sync");
                    return Err(run.failure(None, what));
                }
                Some(false) => {}
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Syncs, checks that every ticket is durable, and runs the structure's own check.
    fn sync_and_acknowledge(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        let synced = run.sim.sync();
        self.check_captured(run)?;
        if synced.is_err() {
            return self.kill(run);
        }
        run.history.note(None, "sync".into());
        for session in 0..self.shape.sessions {
            self.acknowledge_durable(run, session, true)?;
        }
        self.call(run, "its own check", |s| s.check())?;
        Ok(())
    }

    fn close(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        for session in 0..self.shape.sessions {
            self.commit(run, session)?;
        }
        self.sync_and_acknowledge(run)?;
        run.history.note(None, "close".into());
        let subject = run
            .subject
            .take()
            .expect("a run has a subject between its steps");
        let closed = guarded(|| subject.into_inner().close()).and_then(|closed| closed);
        self.check_captured(run)?;
        match closed {
            Err(e) if !run.sim.is_poisoned() => {
                return Err(run.failure(None, e.context("close failed")));
            }
            _ => {}
        }
        let state = run.sim.crash_state();
        self.check_state(run, &state)?;
        let sim = self.killed(run, &state);
        self.reopen(run, sim)
    }

    fn kill(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        run.history.note(None, "kill".into());
        if self.config.persistency == Persistency::Relaxed && !run.sim.is_poisoned() {
            let mut promised = run.history.clone();
            for session in 0..self.shape.sessions {
                promised.durable(session, Ticket(u64::MAX));
            }
            run.promised = Some(promised); // CHECK-EXPLORE-5
        }
        let sim = self.killed(run, &run.sim.crash_state());
        self.drop_killed_subject(run);
        self.reopen(run, sim)
    }

    /// Returns the medium that the next process finds after a kill in `state`. After a failed sync of a file, the
    /// page cache shows more than the device has.
    fn killed(&self, run: &WorkloadRun, state: &CrashState) -> Sim {
        if !self.config.persistency.is_file() || !run.sim.is_poisoned() {
            return state.killed();
        }
        let sim = state.killed_after_failed_sync(&drawn_cut(run, state));
        sim.drain_on_cas(self.config.locked_drains);
        sim.drop_lost_pages();
        sim
    }

    fn cut(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        run.history.note(None, "power cut".into());
        let state = run.sim.crash_state();
        self.drop_killed_subject(run);
        let cut = drawn_cut(run, &state);
        let sim = self.sim(state.image(&cut));
        self.reopen(run, sim).map_err(|failure| {
            let failure = failure.surviving(&state.survivors(&cut));
            failure.after("after a power cut of the run itself".into())
        })
    }

    /// Drops the subject of a killed process. Writes made by the drop are discarded.
    fn drop_killed_subject(&self, run: &mut WorkloadRun) {
        run.sim.observe(None);
        run.subject = None;
    }

    /// Opens the structure in `sim`, with its crash points checked. Its contents are the start of the following
    /// steps. An open may refuse an unfinished creation; then there is no subject.
    fn reopen(&mut self, run: &mut WorkloadRun, sim: Sim) -> Result<(), Box<SeedFailure>> {
        run.sim = sim;
        self.attach(run);
        let (sim, now_ms) = (run.sim.clone(), run.now_ms);
        let opened = guarded(|| self.target.open(sim, now_ms));
        self.check_captured(run)
            .map_err(|failure| failure.after("during the open".into()))?;
        let cannot = |e: Violation| run.failure(None, e.context("open failed"));
        run.subject = match opened.map_err(cannot)? {
            Err(_) if run.creating => return Ok(()),
            opened => Some(OpenSubject::new(opened.map_err(cannot)?)),
        };
        run.creating = false;
        if self.shape.repairs_on_access && Rng::new(run.seed).fork(run.crashes).one_in(2) {
            run.history.died();
        } else {
            self.take_over(run)?;
        }
        let state = run.sim.crash_state();
        self.check_state(run, &state)
            .map_err(|failure| failure.after("after the open".into()))
    }

    /// Checks the contents after an open, and makes them the start of the following steps.
    fn take_over(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        let subject = run.subject.as_mut().expect("it has been opened");
        let contents = guarded(|| {
            let contents = sorted(subject.contents()?);
            subject.check().map(|()| contents)
        });
        self.check_captured(run)?;
        let wrong = |e: Violation| run.failure(None, e.context("after an open"));
        let contents = contents.and_then(|contents| contents).map_err(wrong)?;
        let promised = run.promised.take();
        let history = promised.as_ref().unwrap_or(&run.history);
        check_history(history, &contents, run.now_ms)
            .map_err(|c| run.failure(Some(c.key), format!("after an open: {}", c.what)))?;
        run.history.recovered(&contents, run.now_ms);
        Ok(())
    }

    fn check_captured(&mut self, run: &mut WorkloadRun) -> Result<(), Box<SeedFailure>> {
        let states = std::mem::take(&mut *unpoisoned(run.captured.lock()));
        states
            .iter()
            .try_for_each(|state| self.check_state(run, state))
    }
}

/// Returns one of the images that a power cut in `state` can leave, drawn from the run's seed.
fn drawn_cut(run: &WorkloadRun, state: &CrashState) -> ImageCut {
    let seed = Rng::new(run.seed).fork(run.crashes).draw();
    state.drawn_cut(32, seed)
}
