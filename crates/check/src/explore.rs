//! The eager explorer: run, crash everywhere, open every image, judge.
//!
//! ```text
//!   run of a seed    ──●──────●──────●──▶         crash points: before drains, after operations
//!                      │      │
//!            images ┌──┼──┐   └─ kill ──▶ open, a few steps   ── a run of its own (depth 1),
//!                   ▼  ▼  ▼               ●────●────●            with crash points of its own
//!                 open, judge, check
//!                   └─ some: the crash points of this open, and their images in turn
//! ```
//!
//! Every distinct image of a crash point is opened once; what it shows is judged against the
//! history at that moment, and again, without opening it, under every later history in which it
//! can still be left. From some images, and from some kills, a *nested run* starts: its recovery is
//! crashed in the middle (judged by the outer history), what it shows at the end is from then on
//! acknowledged, and crashes after it must leave exactly that.
//!
//! # Invariants
//! X1  A run is a function of target, configuration and seed; what is judged does not change it. So
//!     a crash point is named by its number, an image by its number among the point's images.
//! X2  What is drawn at a crash point is drawn from its own number, so that it can be looked at
//!     alone: [`Config::only`].

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farbank_pm::fault;
use farbank_pm::sim::{CrashState, Cut, Image, Persistency, Places, Rng, Sim, brief};

use crate::history::History;
use crate::oracle::judge;
use crate::report::{Counts, Pick, Report, Violation};
use crate::target::{Answer, Op, Shape, Subject, Target, Value, View, Write};
use crate::workload::{START_MS, Step, Workload};

/// How to explore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What a power cut may take.
    pub persistency: Persistency,
    /// Steps of a run.
    pub steps: usize,
    /// Most images judged at one crash point; a point with more is sampled.
    pub cap: usize,
    /// The same at the crash points of nested runs.
    pub cap_nested: usize,
    /// Of so many distinct images, one has its recovery crashed.
    pub nest_one_in: u64,
    /// At one of so many crash points the process is also killed.
    pub kill_one_in: u64,
    /// Steps after the open of a nested run.
    pub nested_steps: usize,
    /// Of so many distinct images, one is opened twice and used.
    pub probe_one_in: u64,
    /// Whether drains fail now and then.
    pub io_errors: bool,
    /// What deviates while it runs.
    pub fault: Option<fault::Fault>,
    /// Judge only this crash point, and there only this.
    pub only: Option<(u64, Option<Pick>)>,
}

impl Config {
    /// The usual.
    #[must_use]
    pub fn new(persistency: Persistency) -> Config {
        Config {
            persistency,
            steps: 120,
            cap: 128,
            cap_nested: 12,
            nest_one_in: 24,
            kill_one_in: 12,
            nested_steps: 4,
            probe_one_in: 16,
            io_errors: true,
            fault: None,
            only: None,
        }
    }

    /// The command that looks at one crash of one seed again, under this configuration.
    fn command(&self, target: &str, seed: u64, crash: Option<(u64, Pick)>) -> String {
        let usual = Config::new(self.persistency);
        let mut command = format!(
            "farbank check crash --target {target} --persistency {} --seeds {seed:#x}",
            self.persistency
        );
        if let Some((crash, pick)) = crash {
            command += &format!(" --crash {crash} --image {pick}");
        }
        if self.steps != usual.steps {
            command += &format!(" --steps {}", self.steps);
        }
        if self.cap != usual.cap {
            command += &format!(" --cap {}", self.cap);
        }
        if let Some(fault) = &self.fault {
            command += &format!(" --fault '{fault}'");
        }
        command
    }
}

/// Explores `target` under every seed of `seeds`, on `threads` threads, and reports. A seed ends at
/// its first violation. `progress` is told the counts so far, and says whether to go on.
pub fn explore(
    target: &dyn Target,
    config: &Config,
    seeds: Range<u64>,
    threads: usize,
    progress: &mut dyn FnMut(&Report) -> bool,
) -> Report {
    /// Seeds between two looks at the progress: fixed, so that figures do not depend on threads.
    const TURN: u64 = 8;
    let start = Instant::now();
    let mut report = Report::new(target.name().into(), config.persistency);
    let mut next = seeds.start;
    while next < seeds.end {
        let turn: Vec<u64> = (next..seeds.end.min(next.saturating_add(TURN))).collect();
        next += turn.len() as u64;
        let results = Mutex::new(Vec::new());
        let queue = Mutex::new(turn.iter());
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, turn.len()) {
                scope.spawn(|| {
                    loop {
                        let taken = queue.lock().expect("no holder panics").next().copied();
                        let Some(seed) = taken else { return };
                        let result = explore_seed(target, config, seed);
                        results
                            .lock()
                            .expect("no holder panics")
                            .push((seed, result));
                    }
                });
            }
        });
        let mut results = results.into_inner().expect("no holder panics");
        results.sort_by_key(|(seed, _)| *seed);
        for (_, result) in results {
            report.counts.add(&result.counts);
            report.add_places(&result.places);
            report.violations.extend(result.violations);
        }
        report.elapsed = start.elapsed();
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Explores one seed.
pub fn explore_seed(target: &dyn Target, config: &Config, seed: u64) -> Report {
    let start = Instant::now();
    let places = Arc::new(Places::new());
    let mut explorer = Explorer {
        target,
        config,
        shape: target.shape(),
        places: Arc::clone(&places),
        known: HashMap::new(),
        counts: Counts {
            seeds: 1,
            ..Counts::default()
        },
    };
    let failure = fault::with(config.fault.as_ref(), || explorer.run(seed)).err();
    let mut report = Report::new(target.name().into(), config.persistency);
    report.counts = explorer.counts;
    report.places = places.list();
    report.violations.extend(failure.map(|failure| Violation {
        seed,
        crash: failure.crash,
        command: config.command(target.name(), seed, failure.crash),
        trail: failure.trail,
        what: failure.what,
        history: failure.history,
        survivors: failure.survivors,
        distinct: explorer.counts.distinct_images,
    }));
    report.elapsed = start.elapsed();
    report
}

/// What went wrong, on its way up.
#[derive(Debug, Default)]
struct Failure {
    crash: Option<(u64, Pick)>,
    trail: Vec<String>,
    what: String,
    history: Vec<String>,
    survivors: Vec<String>,
}

impl Failure {
    fn new(history: &History, key: Option<u64>, what: String) -> Box<Failure> {
        Box::new(Failure {
            what,
            history: history.tail(key, 24),
            ..Failure::default()
        })
    }

    /// Prepends where it came from.
    fn after(mut self: Box<Failure>, step: String) -> Box<Failure> {
        self.trail.insert(0, step);
        self
    }

    /// Adds what was volatile, unless a crash nearer to the failure has.
    fn surviving(mut self: Box<Failure>, state: &CrashState, cut: &Cut) -> Box<Failure> {
        const SHOWN: usize = 16;
        if self.survivors.is_empty() {
            let all = state.survivors(cut);
            self.survivors = all.iter().take(SHOWN).map(ToString::to_string).collect();
            if all.len() > SHOWN {
                self.survivors
                    .push(format!("and {} more", all.len() - SHOWN));
            }
        }
        self
    }
}

type Contents = Arc<[(u64, Value)]>;

struct Explorer<'a> {
    target: &'a dyn Target,
    config: &'a Config,
    shape: Shape,
    places: Arc<Places>,
    /// What each image shows, by its hash and the time it was opened at.
    known: HashMap<u64, Contents>,
    counts: Counts,
}

/// One structure going through a workload, with its crash points captured.
struct Run {
    nested: bool,
    seed: u64,
    sim: Sim,
    subject: Option<Box<dyn Subject>>,
    history: History,
    workload: Workload,
    now_ms: u64,
    captured: Arc<Mutex<Vec<CrashState>>>,
    crashes: u64,
    /// Images judged under the history's present version.
    judged: HashSet<u64>,
    judged_version: u64,
}

impl Run {
    fn failure(&self, key: Option<u64>, what: String) -> Box<Failure> {
        Failure::new(&self.history, key, what)
    }
}

impl Explorer<'_> {
    fn run(&mut self, seed: u64) -> Result<(), Box<Failure>> {
        let workload = Workload::new(&self.shape, seed, self.config.io_errors);
        let sim = Sim::new(self.shape.pool_bytes, self.config.persistency);
        let history = History::new();
        let subject = guarded(|| self.target.create(sim.clone(), START_MS))
            .map_err(|e| Failure::new(&history, None, format!("it cannot be created: {e}")))?;
        let mut run = Run {
            nested: false,
            seed,
            sim,
            subject: Some(subject),
            history,
            workload,
            now_ms: START_MS,
            captured: Arc::default(),
            crashes: 0,
            judged: HashSet::new(),
            judged_version: 0,
        };
        self.attach(&run);
        for _ in 0..self.config.steps {
            self.step(&mut run)?;
            self.counts.steps += 1;
            if self
                .config
                .only
                .is_some_and(|(crash, _)| crash < run.crashes)
            {
                break;
            }
        }
        Ok(())
    }

    /// Starts from `sim` as a crash left it: opens it, then goes on for a few steps.
    fn nest(&mut self, run: &Run, sim: Sim, seed: u64) -> Result<(), Box<Failure>> {
        self.counts.nested_runs += 1;
        let mut nested = Run {
            nested: true,
            seed,
            sim: sim.clone(),
            subject: None,
            history: run.history.clone(),
            workload: run.workload.branch(seed),
            now_ms: run.now_ms,
            captured: Arc::default(),
            crashes: 0,
            judged: HashSet::new(),
            judged_version: 0,
        };
        self.reopen(&mut nested, sim)?;
        for _ in 0..self.config.nested_steps {
            self.step(&mut nested)?;
        }
        Ok(())
    }

    /// Captures the crash points of the run's medium.
    fn attach(&self, run: &Run) {
        let captured = Arc::clone(&run.captured);
        run.sim.count_places(Arc::clone(&self.places));
        run.sim.observe(Some(Arc::new(move |state| {
            captured.lock().expect("no holder panics").push(state);
        })));
    }

    fn step(&mut self, run: &mut Run) -> Result<(), Box<Failure>> {
        let step = run.workload.step();
        match step {
            Step::Apply(session, op) => self.apply(run, session, &op)?,
            Step::Commit(session) => self.commit(run, session)?,
            Step::Sync => self.settle(run)?,
            Step::Clean => {
                run.history.note(None, "clean".into());
                self.call(run, "a cleaning step", |s| s.clean())?;
            }
            Step::Advance(ms) => {
                run.now_ms += ms;
                let now_ms = run.now_ms;
                run.history.note(None, format!("the time is {now_ms} ms"));
                self.call(run, "setting the time", |s| {
                    s.set_time(now_ms);
                    Ok(())
                })?;
            }
            Step::Close => self.close(run)?,
            Step::Kill => self.kill(run)?,
            Step::Cut => self.cut(run)?,
            Step::Fail(n) => {
                run.history.note(None, format!("drain {n} from here fails"));
                run.sim.fail_drain(n);
            }
        }
        self.judge_state(run, &run.sim.crash_state())
    }

    /// Calls the subject, judges the crash points it passed. `None`: it failed because a drain was
    /// made to fail, and has been killed and opened again.
    fn call<R>(
        &mut self,
        run: &mut Run,
        what: &str,
        f: impl FnOnce(&mut dyn Subject) -> Result<R, String>,
    ) -> Result<Option<R>, Box<Failure>> {
        let subject = run
            .subject
            .as_mut()
            .expect("a run has a subject between its steps");
        let result = guarded(|| f(subject.as_mut()));
        self.judge_captured(run)?;
        match result {
            Ok(r) => Ok(Some(r)),
            Err(_) if run.sim.is_poisoned() => {
                self.kill(run)?;
                Ok(None)
            }
            Err(e) => Err(run.failure(None, format!("{what} failed: {e}"))),
        }
    }

    fn apply(&mut self, run: &mut Run, session: usize, op: &Op) -> Result<(), Box<Failure>> {
        let id = run.history.invoke(session, op);
        let what = format!("operation #{id}");
        let Some(answer) = self.call(run, &what, |s| s.apply(session, op))? else {
            return Ok(());
        };
        if answer == Answer::Refused {
            self.counts.refused += 1;
        }
        run.history
            .answered(session, id, op, &answer, run.now_ms)
            .map_err(|wrong| {
                run.failure(
                    Some(wrong.key),
                    format!("key {}: {}", wrong.key, wrong.what),
                )
            })
    }

    fn commit(&mut self, run: &mut Run, session: usize) -> Result<(), Box<Failure>> {
        if let Some(ticket) = self.call(run, "a commit", |s| s.commit(session))? {
            run.history.commit(session, ticket);
            self.poll(run, session, false)?;
        }
        Ok(())
    }

    /// Acknowledges what is durable; all of it must be if the medium has just synced.
    fn poll(&mut self, run: &mut Run, session: usize, must: bool) -> Result<(), Box<Failure>> {
        for ticket in run.history.tickets(session) {
            match self.call(run, "asking for a ticket", |s| s.durable(session, ticket))? {
                Some(true) => run.history.durable(session, ticket),
                Some(false) if must => {
                    let what = format!("{ticket:?} of session {session} has not turned by a sync");
                    return Err(run.failure(None, what));
                }
                Some(false) => {}
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Syncs, and sees every ticket turn; now and then has the structure check itself.
    fn settle(&mut self, run: &mut Run) -> Result<(), Box<Failure>> {
        let synced = run.sim.sync();
        self.judge_captured(run)?;
        if synced.is_err() {
            return self.kill(run);
        }
        run.history.note(None, "sync".into());
        for session in 0..self.shape.sessions {
            self.poll(run, session, true)?;
        }
        self.call(run, "its own check", |s| s.check())?;
        Ok(())
    }

    fn close(&mut self, run: &mut Run) -> Result<(), Box<Failure>> {
        for session in 0..self.shape.sessions {
            self.commit(run, session)?;
        }
        self.settle(run)?;
        run.history.note(None, "close".into());
        let subject = run
            .subject
            .take()
            .expect("a run has a subject between its steps");
        let closed = guarded(|| subject.close());
        self.judge_captured(run)?;
        match closed {
            Err(e) if !run.sim.is_poisoned() => {
                return Err(run.failure(None, format!("it does not close: {e}")));
            }
            _ => {}
        }
        let state = run.sim.crash_state();
        self.judge_state(run, &state)?;
        self.reopen(run, state.killed())
    }

    fn kill(&mut self, run: &mut Run) -> Result<(), Box<Failure>> {
        run.history.note(None, "kill".into());
        let sim = run.sim.crash_state().killed();
        self.bury(run);
        self.reopen(run, sim)
    }

    fn cut(&mut self, run: &mut Run) -> Result<(), Box<Failure>> {
        run.history.note(None, "power cut".into());
        let state = run.sim.crash_state();
        self.bury(run);
        let seed = Rng::new(run.seed).fork(run.crashes).draw();
        let cuts: Vec<Cut> = state.images(32, seed).collect();
        let cut = &cuts[Rng::new(seed).below(cuts.len() as u64) as usize];
        let sim = Sim::from_image(state.image(cut), self.config.persistency);
        self.reopen(run, sim)
            .map_err(|failure| failure.surviving(&state, cut))
    }

    /// Forgets the subject of a process that is no more; what its going writes is nobody's.
    fn bury(&self, run: &mut Run) {
        run.sim.observe(None);
        let subject = run.subject.take();
        // The dead do not complain: a panic here says nothing about the pool.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(subject)));
    }

    /// Opens what is in `sim`, with crashes; what it shows is the start of what follows.
    fn reopen(&mut self, run: &mut Run, sim: Sim) -> Result<(), Box<Failure>> {
        run.sim = sim;
        self.attach(run);
        let (sim, now_ms) = (run.sim.clone(), run.now_ms);
        let opened = guarded(|| self.target.open(sim, now_ms));
        self.judge_captured(run)
            .map_err(|failure| failure.after("during the open".into()))?;
        let subject = opened.map_err(|e| run.failure(None, format!("it does not open: {e}")))?;
        run.subject = Some(subject);
        let subject = run.subject.as_mut().expect("just set");
        let contents = guarded(|| sorted(subject.contents()?))
            .and_then(|contents| subject.check().map(|()| contents));
        self.judge_captured(run)?;
        let contents = contents.map_err(|e| run.failure(None, format!("after an open: {e}")))?;
        judge(&run.history, &contents, run.now_ms)
            .map_err(|c| run.failure(Some(c.key), format!("after an open: {}", c.what)))?;
        run.history.recovered(&contents, run.now_ms);
        let state = run.sim.crash_state();
        self.judge_state(run, &state)
            .map_err(|failure| failure.after("after the open".into()))
    }

    fn judge_captured(&mut self, run: &mut Run) -> Result<(), Box<Failure>> {
        let states = std::mem::take(&mut *run.captured.lock().expect("no holder panics"));
        states
            .iter()
            .try_for_each(|state| self.judge_state(run, state))
    }

    /// One crash point.
    fn judge_state(&mut self, run: &mut Run, state: &CrashState) -> Result<(), Box<Failure>> {
        run.crashes += 1;
        let number = run.crashes;
        let only = self.config.only.filter(|_| !run.nested);
        if only.is_some_and(|(crash, _)| crash != number) {
            return Ok(());
        }
        let pick = only.and_then(|(_, pick)| pick);
        let place = state
            .place()
            .map_or(String::new(), |at| format!(", {}", brief(at)));
        let crash = format!("crash {number} ({}{place})", state.moment.name());
        let rng = Rng::new(run.seed).fork(number);
        let cap = if run.nested {
            self.counts.nested_points += 1;
            self.config.cap_nested
        } else {
            self.counts.crash_points += 1;
            self.config.cap
        };
        let images = state.images(cap, rng.fork(1).draw());
        self.counts.exhaustive_points += u64::from(!run.nested && images.exhaustive());
        for cut in images {
            if pick.is_some_and(|pick| pick != Pick::Image(cut.number)) {
                continue;
            }
            self.judge_cut(run, state, &cut, &rng, only.is_some())
                .map_err(|failure| {
                    let mut failure = failure
                        .surviving(state, &cut)
                        .after(format!("{crash}, image {}", cut.number));
                    failure.crash = Some((number, Pick::Image(cut.number)));
                    failure
                })?;
        }
        let kill = !run.nested && rng.fork(2).one_in(self.config.kill_one_in);
        if (kill && only.is_none()) || pick == Some(Pick::Kill) {
            self.counts.kills += 1;
            self.nest(run, state.killed(), rng.fork(3).draw())
                .map_err(|failure| {
                    let mut failure = failure.after(format!("{crash}, kill"));
                    failure.crash = Some((number, Pick::Kill));
                    failure
                })?;
        }
        Ok(())
    }

    /// One image of a crash point.
    fn judge_cut(
        &mut self,
        run: &mut Run,
        state: &CrashState,
        cut: &Cut,
        rng: &Rng,
        always_nest: bool,
    ) -> Result<(), Box<Failure>> {
        if run.judged_version != run.history.version() {
            run.judged.clear();
            run.judged_version = run.history.version();
        }
        if !run.judged.insert(cut.hash) {
            return Ok(());
        }
        self.counts.images += 1;
        let key = cut.hash ^ Rng::new(run.now_ms).draw();
        let rng = rng.fork(cut.number as u64);
        let fresh = !self.known.contains_key(&key);
        if fresh {
            self.counts.distinct_images += 1;
            let probe = always_nest || rng.fork(4).one_in(self.config.probe_one_in);
            let shown = self.recover(state.image(cut), run.now_ms, probe);
            self.known
                .insert(key, shown.map_err(|what| run.failure(None, what))?);
        }
        judge(&run.history, &self.known[&key], run.now_ms)
            .map_err(|c| run.failure(Some(c.key), c.what))?;
        let nest = fresh && rng.fork(5).one_in(self.config.nest_one_in);
        if !run.nested && (nest || always_nest) {
            let sim = Sim::from_image(state.image(cut), self.config.persistency);
            self.nest(run, sim, rng.fork(6).draw())?;
        }
        Ok(())
    }

    /// Opens an image and says what it shows. A probe also opens it twice, and uses it.
    fn recover(&mut self, image: Image, now_ms: u64, probe: bool) -> Result<Contents, String> {
        let sim = Sim::from_image(image, self.config.persistency);
        let (subject, contents) = self.open_and_check(&sim, now_ms)?;
        if !probe {
            return Ok(contents.into());
        }
        self.counts.probes += 1;
        drop(subject);
        let again = sim.crash_state().killed();
        let (mut subject, second) = self.open_and_check(&again, now_ms)?;
        if contents != second {
            let differs = |c: &&(u64, Value), other: &[(u64, Value)]| !other.contains(c);
            let one = contents.iter().find(|c| differs(c, &second));
            let other = second.iter().find(|c| differs(c, &contents));
            return Err(format!(
                "a second recovery shows something else: {one:?} at first, then {other:?}"
            ));
        }
        guarded(|| self.usable(subject.as_mut(), &again))
            .map_err(|e| format!("after recovery it cannot be used: {e}"))?;
        Ok(contents.into())
    }

    fn open_and_check(&self, sim: &Sim, now_ms: u64) -> Result<Recovered, String> {
        let mut subject = guarded(|| self.target.open(sim.clone(), now_ms))
            .map_err(|e| format!("it does not open: {e}"))?;
        let contents = guarded(|| sorted(subject.contents()?))?;
        guarded(|| subject.check()).map_err(|e| format!("its own check after recovery: {e}"))?;
        Ok((subject, contents))
    }

    /// A key nobody has used can be stored, found, deleted and not found.
    fn usable(&self, subject: &mut dyn Subject, sim: &Sim) -> Result<(), String> {
        let key = self.shape.keys + 1;
        let value = Value {
            id: u64::MAX >> 1,
            bytes: self.shape.value_bytes.0,
        };
        let put = Op::Write(Write::Put {
            key,
            value,
            expires_ms: 0,
        });
        if subject.apply(0, &put)? == Answer::Refused {
            return Ok(());
        }
        for (op, expected) in [
            (None, Some(value)),
            (Some(Op::Write(Write::Delete { key })), None),
        ] {
            if let Some(op) = op {
                subject.apply(0, &op)?;
            }
            let ticket = subject.commit(0)?;
            sim.sync().map_err(|e| e.to_string())?;
            if !subject.durable(0, ticket)? {
                return Err(format!("{ticket:?} does not turn"));
            }
            let found = subject.apply(
                0,
                &Op::Get {
                    key,
                    view: View::Durable,
                },
            )?;
            if found != Answer::Found(expected) {
                return Err(format!("a fresh key should be {expected:?}, got {found:?}"));
            }
        }
        subject.check()
    }
}

type Recovered = (Box<dyn Subject>, Vec<(u64, Value)>);

fn sorted(mut contents: Vec<(u64, Value)>) -> Result<Vec<(u64, Value)>, String> {
    contents.sort_unstable();
    Ok(contents)
}

/// A panic is an error like any other.
fn guarded<R>(f: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}
