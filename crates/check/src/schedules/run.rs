//! Runs schedules, under `--cfg shuttle`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use farbank_pm::fault;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{CrashState, ImageCut, PoolImage, Sim, SourceLines, brief};
use farbank_pm::sync::shuttle::scheduler::{
    PctScheduler, RandomScheduler, Schedule, Scheduler as Chooser, Task, TaskId,
};
use farbank_pm::sync::shuttle::{self, FailurePersistence, Runner};
use farbank_pm::sync::{ignore_poison, thread};

use super::program::{ProgramGenerator, ProgramStep};
use super::{
    SCHEDULES_PER_SEED, ScheduleConfig, ScheduleCounts, ScheduleReport, ScheduleViolation,
    Scheduler,
};
use crate::Violation;
use crate::guard::guarded;
use crate::record::CallRecord;
use crate::target::{SharedTarget, Target, TargetClient, TargetOp, Value};
use crate::workload::START_MS;

/// Priority changes per schedule, plus one.
const PCT_DEPTH: usize = 3;
/// Stack size of a thread. Recovery also runs on such a stack.
const STACK_BYTES: usize = 512 << 10;

/// Runs schedules of `target` until one shows a violation. Calls `progress` after each seed with the report so far;
/// the run stops if it returns false.
pub fn schedules(
    target: &'static dyn Target,
    config: &ScheduleConfig,
    progress: &mut dyn FnMut(&ScheduleReport) -> bool,
) -> ScheduleReport {
    let start = Instant::now();
    let mut report = ScheduleReport {
        target: target.name().into(),
        scheduler: config.scheduler,
        counts: ScheduleCounts::default(),
        violation: None,
        elapsed: start.elapsed(),
    };
    let mut seed = config.seed;
    while report.counts.schedules < config.schedules && report.violation.is_none() {
        let schedules = SCHEDULES_PER_SEED.min(config.schedules - report.counts.schedules);
        let run = Arc::new(SeedSchedules::new(target, config, seed));
        fault::with(config.fault.as_ref(), || run.all(schedules));
        report.counts.add(&lock(&run.counts));
        report.violation = lock(&run.violation).take();
        report.elapsed = start.elapsed();
        seed = seed.wrapping_add(1);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// The schedules of one seed. Its own locks and counters are from `std`, so that they are no scheduling points.
struct SeedSchedules {
    target: &'static dyn Target,
    config: ScheduleConfig,
    seed: u64,
    programs: ProgramGenerator,
    /// Pool from which every schedule starts.
    base: Mutex<Option<Base>>,
    number: AtomicU64,
    world: Mutex<Option<Arc<ScheduleWorld>>>,
    counts: Mutex<ScheduleCounts>,
    violation: Mutex<Option<ScheduleViolation>>,
}

#[derive(Clone)]
struct Base {
    image: PoolImage,
    contents: Vec<(u64, Value)>,
}

/// State of a running schedule.
struct ScheduleWorld {
    sim: Sim,
    record: Mutex<CallRecord>,
    shots: Mutex<CrashMoments>,
    /// First error in a thread.
    wrong: Mutex<Option<Violation>>,
}

/// A random sample of the crash states of a schedule, in which each state is equally likely.
struct CrashMoments {
    most: usize,
    rng: Rng,
    moments: u64,
    kept: Vec<(CrashState, CallRecord)>,
}

/// A violation, with its crash.
struct FoundViolation {
    crash: Option<(CrashState, ImageCut)>,
    record: CallRecord,
    what: Violation,
}

impl SeedSchedules {
    fn new(target: &'static dyn Target, config: &ScheduleConfig, seed: u64) -> SeedSchedules {
        SeedSchedules {
            target,
            config: config.clone(),
            seed,
            programs: ProgramGenerator::new(target, seed),
            base: Mutex::default(),
            number: AtomicU64::new(0),
            world: Mutex::default(),
            counts: Mutex::default(),
            violation: Mutex::default(),
        }
    }

    fn all(self: &Arc<SeedSchedules>, schedules: u64) {
        let count = schedules as usize;
        let decisions = Arc::new(AtomicU64::new(0));
        let ended = match self.config.scheduler {
            Scheduler::Random => {
                self.run(RandomScheduler::new_from_seed(self.seed, count), &decisions)
            }
            Scheduler::Pct => self.run(
                PctScheduler::new_from_seed(self.seed, PCT_DEPTH, count),
                &decisions,
            ),
        };
        lock(&self.counts).decisions = decisions.load(Relaxed);
        if let Err(what) = ended {
            // A deadlock, or a panic outside the threads.
            let record = lock(&self.world).as_ref().map(|w| lock(&w.record).clone());
            self.violated(FoundViolation {
                crash: None,
                record: record.unwrap_or_else(|| CallRecord::new(&[])),
                what,
            });
        }
    }

    fn run(
        self: &Arc<SeedSchedules>,
        chooser: impl Chooser + 'static,
        decisions: &Arc<AtomicU64>,
    ) -> Result<(), Violation> {
        let mut config = shuttle::Config::new();
        config.stack_size = STACK_BYTES;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true;
        let run = Arc::clone(self);
        let counted = CountedScheduler {
            chooser,
            decisions: Arc::clone(decisions),
        };
        let work = move || {
            if lock(&run.violation).is_none()
                && let Err(found) = run.schedule()
            {
                run.violated(found);
            }
        };
        guarded(|| Runner::new(counted, config).run(work)).map(|_| ())
    }

    /// Runs one schedule and checks it.
    fn schedule(&self) -> Result<(), FoundViolation> {
        let number = self.number.fetch_add(1, Relaxed);
        lock(&self.counts).schedules += 1;
        let nothing = |what| FoundViolation {
            crash: None,
            record: CallRecord::new(&[]),
            what,
        };
        let base = self.base().map_err(nothing)?;
        let world = Arc::new(ScheduleWorld::new(self, number, &base));
        *lock(&self.world) = Some(Arc::clone(&world));
        let shared = self.target.share(world.sim.clone(), START_MS);
        let shared = Arc::new(shared.map_err(nothing)?);
        world.watch();
        let threads = self.programs.threads(number).into_iter().enumerate();
        let threads: Vec<_> = threads
            .map(|(thread, steps)| {
                let (world, shared) = (Arc::clone(&world), Arc::clone(&shared));
                let client = shared.client();
                thread::spawn(move || world.work(thread, client, &**shared, &steps))
            })
            .collect();
        for thread in threads {
            thread.join().expect("threads catch their panics");
        }
        world.sim.observe(None);
        let mut counts = lock(&self.counts);
        counts.moments += lock(&world.shots).moments;
        drop(counts);
        self.judge(&world, shared)
    }

    /// Returns the pool with its initial contents, which the first schedule creates.
    fn base(&self) -> Result<Base, Violation> {
        if let Some(base) = &*lock(&self.base) {
            return Ok(base.clone());
        }
        let image = self.target.shape_in_threads().image(0);
        let sim = Sim::from_image(image, self.programs.persistency);
        let mut subject = self.target.create(sim.clone(), START_MS)?;
        for op in self.programs.prologue() {
            subject.apply(0, &op)?;
            let ticket = subject.commit(0)?;
            sim.sync()?;
            subject.durable(0, ticket)?;
        }
        let contents = subject.contents()?;
        drop(subject);
        let base = Base {
            image: sim.visible(),
            contents,
        };
        *lock(&self.base) = Some(base.clone());
        Ok(base)
    }

    /// Checks the contents without a crash, then the contents after crashes.
    fn judge(
        &self,
        world: &ScheduleWorld,
        shared: Arc<Box<dyn SharedTarget>>,
    ) -> Result<(), FoundViolation> {
        let record = lock(&world.record).clone();
        lock(&self.counts).operations += record.answers();
        let wrong = |what| FoundViolation {
            crash: None,
            record: record.clone(),
            what,
        };
        if let Some(what) = lock(&world.wrong).take() {
            // Its locks may be poisoned, so it is leaked instead of closed.
            std::mem::forget(shared);
            return Err(wrong(what));
        }
        let shared = Arc::into_inner(shared).expect("the threads have gone");
        let mut subject = shared.into_subject();
        let left = subject.contents().and_then(|left| {
            subject.check()?;
            Ok(record.explain(&left)?)
        });
        left.map_err(wrong)?;
        drop(subject);
        let shots = std::mem::take(&mut lock(&world.shots).kept);
        let mut crashes = ScheduleCrashes {
            run: self,
            shown: HashMap::new(),
            judged: HashSet::new(),
        };
        lock(&self.counts).crashes += shots.len() as u64;
        shots.iter().try_for_each(|shot| crashes.judge(shot))
    }

    fn violated(&self, found: FoundViolation) {
        let number = self.number.load(Relaxed).saturating_sub(1);
        let (crash, survivors) = match &found.crash {
            None => (None, Vec::new()),
            Some((state, cut)) => {
                let at = state.place().map(brief).unwrap_or_default();
                let crash = format!("crash {} {at}, image {}", state.moment.name(), cut.number);
                let survivors = state
                    .survivors(cut)
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                (Some(crash), survivors)
            }
        };
        lock(&self.violation).get_or_insert(ScheduleViolation {
            seed: self.seed,
            number,
            persistency: self.programs.persistency,
            crash,
            what: found.what.into(),
            history: found.record.lines().to_vec(),
            survivors,
            command: self.config.command(self.target.name(), self.seed, number),
        });
    }
}

impl ScheduleWorld {
    fn new(run: &SeedSchedules, number: u64, base: &Base) -> ScheduleWorld {
        let sim = Sim::from_image(base.image.clone(), run.programs.persistency);
        sim.count_places(Arc::new(SourceLines::new()));
        let record = CallRecord::new(&base.contents);
        ScheduleWorld {
            sim,
            record: Mutex::new(record.forgetting(run.target.shape().forgets)),
            shots: Mutex::new(CrashMoments {
                most: run.config.crashes,
                rng: Rng::new(run.seed).fork(3).fork(number),
                moments: 0,
                kept: Vec::new(),
            }),
            wrong: Mutex::default(),
        }
    }

    /// Captures crash states with the record of the same moment (CHECK-SCHED-1).
    fn watch(self: &Arc<ScheduleWorld>) {
        let world = Arc::downgrade(self);
        self.sim.observe(Some(Arc::new(move |crash| {
            if let Some(world) = world.upgrade() {
                lock(&world.shots).offer(crash, &lock(&world.record));
            }
        })));
    }

    fn record(&self) -> MutexGuard<'_, CallRecord> {
        lock(&self.record)
    }

    /// Runs the steps of one thread.
    fn work(
        &self,
        thread: usize,
        mut client: Box<dyn TargetClient>,
        shared: &dyn SharedTarget,
        steps: &[ProgramStep],
    ) {
        let ended = guarded(|| {
            for step in steps {
                self.step(thread, &mut *client, shared, step)?;
                self.sim.notify_observer();
            }
            self.commit(thread, &mut *client)?;
            while self.record().ticket(thread).is_some() {
                self.sim.sync()?;
                self.acknowledge(thread, &mut *client)?;
            }
            self.sim.notify_observer();
            Ok(())
        });
        let Err(wrong) = ended.and_then(|ended| ended) else {
            return;
        };
        lock(&self.wrong).get_or_insert(wrong.context(format_args!("thread {thread}")));
        // The client may hold locks, so it is leaked instead of dropped.
        std::mem::forget(client);
    }

    fn step(
        &self,
        thread: usize,
        client: &mut dyn TargetClient,
        shared: &dyn SharedTarget,
        step: &ProgramStep,
    ) -> Result<(), Violation> {
        match step {
            ProgramStep::Apply(op) => self.apply(thread, client, op),
            ProgramStep::Commit => self.commit(thread, client),
            ProgramStep::Clean => {
                self.commit(thread, client)?;
                shared.clean()
            }
            ProgramStep::Sync => {
                self.sim.sync()?;
                self.acknowledge(thread, client)
            }
        }
    }

    fn apply(
        &self,
        thread: usize,
        client: &mut dyn TargetClient,
        op: &TargetOp,
    ) -> Result<(), Violation> {
        let call = self.record().invoke(thread, op);
        let answer = client.apply(op)?;
        self.record().answered(call, answer);
        Ok(())
    }

    fn commit(&self, thread: usize, client: &mut dyn TargetClient) -> Result<(), Violation> {
        let ticket = client.commit()?;
        self.record().committed(thread, ticket);
        self.acknowledge(thread, client)
    }

    /// Acknowledges the thread's calls whose ticket is durable.
    fn acknowledge(&self, thread: usize, client: &mut dyn TargetClient) -> Result<(), Violation> {
        let Some(ticket) = self.record().ticket(thread) else {
            return Ok(());
        };
        if client.durable(ticket)? {
            self.record().durable(thread, ticket);
        }
        Ok(())
    }
}

impl CrashMoments {
    fn offer(&mut self, crash: CrashState, record: &CallRecord) {
        self.moments += 1;
        if self.kept.len() < self.most {
            self.kept.push((crash, record.clone()));
            return;
        }
        let place = self.rng.below(self.moments) as usize;
        if let Some(kept) = self.kept.get_mut(place) {
            *kept = (crash, record.clone());
        }
    }
}

/// Checks of the crash states of one schedule.
struct ScheduleCrashes<'a> {
    run: &'a SeedSchedules,
    /// Contents of each image, by its hash.
    shown: HashMap<u64, Arc<Result<Vec<(u64, Value)>, Violation>>>,
    /// Checked pairs of image hash and record version.
    judged: HashSet<(u64, u64)>,
}

impl ScheduleCrashes<'_> {
    fn judge(&mut self, (crash, record): &(CrashState, CallRecord)) -> Result<(), FoundViolation> {
        for cut in crash.images(self.run.config.images, self.run.seed) {
            if !self.judged.insert((cut.hash, record.version())) {
                continue;
            }
            lock(&self.run.counts).judged += 1;
            let shown = self.show(crash, &cut);
            let explained = match &*shown {
                Err(what) => Err(what.clone()),
                Ok(shown) => record.explain(shown).map_err(Violation::from),
            };
            explained.map_err(|what| FoundViolation {
                crash: Some((crash.clone(), cut.clone())),
                record: record.clone(),
                what,
            })?;
        }
        Ok(())
    }

    fn show(
        &mut self,
        crash: &CrashState,
        cut: &ImageCut,
    ) -> Arc<Result<Vec<(u64, Value)>, Violation>> {
        let (run, shown) = (self.run, &mut self.shown);
        let shown = shown.entry(cut.hash).or_insert_with(|| {
            lock(&run.counts).opened += 1;
            let sim = Sim::from_image(crash.image(cut), run.programs.persistency);
            let open = || run.target.open(sim, START_MS)?.contents();
            Arc::new(guarded(open).and_then(|opened| opened))
        });
        Arc::clone(shown)
    }
}

impl ScheduleCounts {
    fn add(&mut self, other: &ScheduleCounts) {
        self.schedules += other.schedules;
        self.operations += other.operations;
        self.decisions += other.decisions;
        self.moments += other.moments;
        self.crashes += other.crashes;
        self.judged += other.judged;
        self.opened += other.opened;
    }
}

/// A scheduler that counts its decisions.
#[derive(Debug)]
struct CountedScheduler<S> {
    chooser: S,
    decisions: Arc<AtomicU64>,
}

impl<S: Chooser> Chooser for CountedScheduler<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.chooser.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        if let [only] = runnable {
            return Some(only.id());
        }
        self.decisions.fetch_add(1, Relaxed);
        self.chooser.next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.chooser.next_u64()
    }
}

/// Locks one of this module's own mutexes. Poisoning is ignored, because a thread that panicked had changed nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}
