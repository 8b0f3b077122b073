//! Virtual time: workers' clocks, and whose step is next.
//!
//! Always the worker whose clock is least goes on, by one step. When its operation is at its end it
//! executes the next one, functionally and at once, and takes the steps that it recorded. Nothing else
//! orders the workers, so the same seed and the same operations give the same figures.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::constants as c;
use super::count::{AccessCounts, CountsByCategory, DimmCounts, Hotspot, WearFigures, imbalance};
use super::dimm::ps;
use super::memory::{AcceptedLine, MachineConfig, MemorySystem, NOBODY};
use super::step::{Step, StepKind};

/// Not known yet: the line waits for its DIMM.
const UNKNOWN: u64 = u64::MAX;

/// A machine and the virtual time on it.
pub struct Machine {
    memory: MemorySystem,
    workers: Vec<ModelWorker>,
    events: BinaryHeap<Reverse<(u64, MachineEvent)>>,
    locks: HashMap<u32, ModelLock>,
    at_barrier: Vec<u32>,
    going: usize,
    latencies_ns: Vec<u32>,
    steps: u64,
    begun: u64,
    now: u64,
    costs: CpuCosts,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MachineEvent {
    /// A DIMM's queue has room.
    Room(u32),
    /// A line that was fetched to be written, and flushed meanwhile, is here and goes on its way.
    Arrives { worker: u32, line: u32, owner: u32 },
    /// A worker goes on.
    Worker(u32),
}

/// What the processor itself takes, in picoseconds.
struct CpuCosts {
    cached: u64,
    issue: u64,
    flush_issue: u64,
    around_issue: u64,
    flush_accepted: u64,
    around_accepted: u64,
    fence: u64,
    lock: u64,
    hand_off: u64,
}

#[derive(Default)]
struct ModelWorker {
    steps: Vec<Step>,
    next: usize,
    began: u64,
    loads: LinesInFlight,
    fills: LinesInFlight,
    writes: LinesInFlight,
    /// Dirty lines that had to leave the cache.
    evictions: LinesInFlight,
    /// Lines flushed since the last fence.
    flushed: Vec<u32>,
    ordered: bool,
    blocked: bool,
}

/// Lines on their way, and when they arrive.
#[derive(Default)]
struct LinesInFlight(Vec<(u32, u64)>);

impl LinesInFlight {
    /// Whether another can go at `now`; else when to try again, [`UNKNOWN`] if nobody knows.
    fn room(&mut self, most: usize, now: u64) -> Result<(), u64> {
        self.0.retain(|(_, done)| *done > now);
        if self.0.len() < most {
            return Ok(());
        }
        Err(self.0.iter().map(|(_, done)| *done).min().unwrap_or(now))
    }

    /// When the line arrives, if that is known. Where it is not, it has been flushed meanwhile and fetched again since.
    fn find(&self, line: u32) -> Option<u64> {
        self.0
            .iter()
            .find(|(of, done)| *of == line && *done != UNKNOWN)
            .map(|(_, done)| *done)
    }

    fn last(&self) -> u64 {
        self.0
            .iter()
            .map(|(_, done)| *done)
            .max()
            .unwrap_or_default()
    }

    /// The line is known to arrive at `done`.
    fn settle(&mut self, line: u32, done: u64) {
        if let Some(slot) = self
            .0
            .iter_mut()
            .find(|slot| slot.0 == line && slot.1 == UNKNOWN)
        {
            slot.1 = done;
        }
    }
}

#[derive(Default)]
struct ModelLock {
    held: bool,
    waiting: VecDeque<u32>,
}

/// What became of a step.
enum StepOutcome {
    /// It is done; the worker's clock.
    Until(u64),
    /// Try it again then.
    Again(u64),
    /// It is done, and somebody will wake the worker.
    Blocked,
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct MachineOutcome {
    /// Operations that were run.
    pub operations: u64,
    /// Steps that were played.
    pub steps: u64,
    /// Virtual picoseconds it took.
    pub elapsed_ps: u64,
    /// Counts, by category.
    pub counts: CountsByCategory,
    /// Each DIMM.
    pub dimms: Vec<DimmCounts>,
    /// The media's wear.
    pub wear: WearFigures,
    /// Nanoseconds of each operation, sorted.
    latencies_ns: Vec<u32>,
}

impl MachineOutcome {
    /// All categories' counts together.
    #[must_use]
    pub fn total(&self) -> AccessCounts {
        self.counts.total()
    }

    /// Operations a virtual second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.operations as f64 / (self.elapsed_ps as f64 / 1e12)
    }

    /// Nanoseconds that this share of operations took at most.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u32 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.latencies_ns.get(at).copied().unwrap_or_default()
    }

    /// Nanoseconds that the `n` longest operations took together.
    #[must_use]
    pub fn longest_ns(&self, n: u64) -> u64 {
        let longest = self.latencies_ns.iter().rev().take(n as usize);
        longest.map(|ns| u64::from(*ns)).sum()
    }

    /// Writes of the busiest DIMM, by the mean.
    #[must_use]
    pub fn write_imbalance(&self) -> f64 {
        imbalance(self.dimms.iter().map(|dimm| dimm.writes))
    }

    /// A number that any other figure would change.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let mut put = |value: u64| hash.update(&value.to_le_bytes());
        put(self.operations);
        put(self.elapsed_ps);
        for category in super::Category::ALL {
            self.counts[category]
                .named()
                .iter()
                .for_each(|(_, count)| put(*count));
        }
        for dimm in &self.dimms {
            [dimm.reads, dimm.writes, dimm.busy_ps]
                .into_iter()
                .for_each(&mut put);
            dimm.series
                .iter()
                .flatten()
                .for_each(|count| put(u64::from(*count)));
        }
        put(u64::from(self.wear.max));
        put(self.wear.xplines);
        self.latencies_ns.iter().for_each(|ns| put(u64::from(*ns)));
        hash.digest()
    }
}

impl Machine {
    /// A machine nothing has happened on.
    #[must_use]
    pub fn new(config: MachineConfig) -> Machine {
        Machine {
            memory: MemorySystem::new(config),
            workers: Vec::new(),
            events: BinaryHeap::new(),
            locks: HashMap::new(),
            at_barrier: Vec::new(),
            going: 0,
            latencies_ns: Vec::new(),
            steps: 0,
            begun: 0,
            now: 0,
            costs: CpuCosts {
                cached: ps(c::LOAD_CACHED.value),
                issue: ps(c::ISSUE.value),
                flush_issue: ps(c::FLUSH_ISSUE.value),
                around_issue: ps(c::AROUND_ISSUE.value),
                flush_accepted: ps(c::FLUSH_ACCEPTED.value),
                around_accepted: ps(c::AROUND_ACCEPTED.value),
                fence: ps(c::FENCE.value),
                lock: ps(c::LOCK.value),
                hand_off: ps(c::LOCK_HAND_OFF.value),
            },
        }
    }

    /// What it has.
    #[must_use]
    pub fn config(&self) -> &MachineConfig {
        &self.memory.config
    }

    /// Forgets all counts and times, but not what caches and buffers hold: the end of a warm-up.
    pub fn restart(&mut self) {
        self.memory.counts = CountsByCategory::default();
        self.memory.wear = super::count::WearMap::default();
        self.memory.hot = super::count::HotMap::default();
        for dimm in &mut self.memory.dimms {
            dimm.counts = DimmCounts::default();
        }
        self.latencies_ns.clear();
        self.steps = 0;
        self.begun = self.now;
    }

    /// Runs `workers` workers until none has anything left to do.
    ///
    /// `next` executes a worker's next operation and appends its steps; `false`: there is none.
    pub fn run(&mut self, workers: usize, mut next: impl FnMut(usize, &mut Vec<Step>) -> bool) {
        self.workers.clear();
        self.workers.resize_with(workers, ModelWorker::default);
        self.going = workers;
        for worker in 0..workers as u32 {
            if self.begin(worker, self.now, &mut next) {
                self.events
                    .push(Reverse((self.now, MachineEvent::Worker(worker))));
            }
        }
        let mut first = self.pop();
        while let Some((now, event)) = first.take().or_else(|| self.pop()) {
            match event {
                MachineEvent::Worker(worker) => first = self.go_on(worker, now, &mut next),
                MachineEvent::Room(dimm) => self.make_room(dimm, now),
                MachineEvent::Arrives {
                    worker,
                    line,
                    owner,
                } => self.arrives(worker, line, owner, now),
            }
            self.expect_room(now);
        }
        assert!(
            self.going == 0,
            "{} workers wait for ever: a lock was taken and never let go",
            self.going
        );
    }

    fn pop(&mut self) -> Option<(u64, MachineEvent)> {
        self.events.pop().map(|Reverse(event)| event)
    }

    /// Everything so far, as if the XPBuffers were written to the media now.
    #[must_use]
    pub fn outcome(&mut self) -> MachineOutcome {
        self.memory.drain(self.now);
        let mut latencies_ns = self.latencies_ns.clone();
        latencies_ns.sort_unstable();
        let elapsed_ps = self.now - self.begun;
        MachineOutcome {
            operations: latencies_ns.len() as u64,
            steps: self.steps,
            elapsed_ps,
            counts: self.memory.counts,
            dimms: self
                .memory
                .dimms
                .iter()
                .map(|dimm| dimm.counts.clone())
                .collect(),
            wear: self.memory.wear.figures(elapsed_ps),
            latencies_ns,
        }
    }

    /// The `n` lines that arrived most often to be written.
    #[must_use]
    pub fn hottest_lines(&self, n: usize) -> Vec<Hotspot> {
        self.memory.hot.hottest(1, n)
    }

    /// The same of pages of 4 KiB.
    #[must_use]
    pub fn hottest_pages(&self, n: usize) -> Vec<Hotspot> {
        const LINES: usize = 4096 / c::LINE_BYTES as usize;
        self.memory.hot.hottest(LINES, n)
    }

    /// A worker's next operation; `false` if there is none.
    fn begin(
        &mut self,
        worker: u32,
        now: u64,
        next: &mut impl FnMut(usize, &mut Vec<Step>) -> bool,
    ) -> bool {
        let me = &mut self.workers[worker as usize];
        me.steps.clear();
        me.next = 0;
        me.began = now;
        if next(worker as usize, &mut me.steps) {
            return true;
        }
        self.going -= 1;
        self.now = self.now.max(now);
        self.open_barrier(now);
        false
    }

    /// Plays a worker's steps for as long as its clock is the least; then whatever is next.
    fn go_on(
        &mut self,
        worker: u32,
        now: u64,
        next: &mut impl FnMut(usize, &mut Vec<Step>) -> bool,
    ) -> Option<(u64, MachineEvent)> {
        let mut clock = now;
        loop {
            let me = &mut self.workers[worker as usize];
            let Some(step) = me.steps.get(me.next).copied() else {
                let took = ((clock - me.began) / 1000).min(u64::from(u32::MAX)) as u32;
                self.latencies_ns.push(took);
                if !self.begin(worker, clock, next) {
                    return None;
                }
                continue;
            };
            let played = self.play(worker, step, clock);
            self.expect_room(clock);
            clock = match played {
                StepOutcome::Until(later) => {
                    self.advance(worker);
                    later
                }
                StepOutcome::Again(UNKNOWN) => {
                    self.workers[worker as usize].blocked = true;
                    return None;
                }
                StepOutcome::Again(later) => later,
                StepOutcome::Blocked => {
                    self.advance(worker);
                    return None;
                }
            };
            let event = Reverse((clock, MachineEvent::Worker(worker)));
            if let Some(mut least) = self.events.peek_mut()
                && *least > event
            {
                let Reverse(least) = std::mem::replace(&mut *least, event);
                return Some(least);
            }
        }
    }

    fn advance(&mut self, worker: u32) {
        self.workers[worker as usize].next += 1;
        self.steps += 1;
    }

    fn play(&mut self, worker: u32, step: Step, now: u64) -> StepOutcome {
        match step.act {
            StepKind::Load => self.load(worker, step, now, true),
            StepKind::Fetch => self.load(worker, step, now, false),
            StepKind::Store => self.store(worker, step, now),
            StepKind::Flush => self.flush(worker, step, now),
            StepKind::Around => self.around(worker, step, now),
            StepKind::Fence => self.fence(worker, step, now),
            StepKind::Compute => StepOutcome::Until(now + u64::from(step.what) * 1000),
            StepKind::Lock => self.lock(worker, step, now),
            StepKind::Unlock => self.unlock(step, now),
            StepKind::Barrier => self.barrier(worker, now),
        }
    }

    fn load(&mut self, worker: u32, step: Step, now: u64, wait: bool) -> StepOutcome {
        let me = &mut self.workers[worker as usize];
        // Whether it is in the cache is asked once, because asking changes it: first make room.
        if let Err(later) = me.loads.room(c::LOADS_IN_FLIGHT.value as usize, now) {
            return StepOutcome::Again(later);
        }
        if let Err(later) = me.evictions.room(c::WRITES_IN_FLIGHT.value as usize, now) {
            return StepOutcome::Again(later);
        }
        self.memory.counts[step.category].loads += 1;
        let mut done = now + self.costs.cached;
        if !self.cached(worker, step, false, now) {
            self.memory.counts[step.category].cache_misses += 1;
            done = self.memory.fetch(step, false, worker, now);
            self.workers[worker as usize]
                .loads
                .0
                .push((step.what, done));
        }
        let me = &self.workers[worker as usize];
        match wait {
            true => StepOutcome::Until(done.max(me.loads.last())),
            false => StepOutcome::Until(now + self.costs.issue),
        }
    }

    /// Whether the cache has the line; the worker sees to it that a dirty one that leaves gets away.
    fn cached(&mut self, worker: u32, step: Step, dirty: bool, now: u64) -> bool {
        let (hit, left) = self.memory.cached(step, dirty, worker, now);
        if let Some((line, accepted)) = left {
            let done = match accepted {
                AcceptedLine::At(done) => done,
                AcceptedLine::Waits => UNKNOWN,
            };
            let me = &mut self.workers[worker as usize];
            me.evictions.0.push((line, done));
        }
        hit
    }

    fn store(&mut self, worker: u32, step: Step, now: u64) -> StepOutcome {
        let me = &mut self.workers[worker as usize];
        if let Err(later) = me.fills.room(c::FILLS_IN_FLIGHT.value as usize, now) {
            return StepOutcome::Again(later);
        }
        if let Err(later) = me.evictions.room(c::WRITES_IN_FLIGHT.value as usize, now) {
            return StepOutcome::Again(later);
        }
        self.memory.counts[step.category].stores += 1;
        if !self.cached(worker, step, true, now) {
            self.memory.counts[step.category].fills += 1;
            let done = self.memory.fetch(step, true, worker, now);
            self.workers[worker as usize]
                .fills
                .0
                .push((step.what, done));
        }
        StepOutcome::Until(now + self.costs.issue)
    }

    fn flush(&mut self, worker: u32, step: Step, now: u64) -> StepOutcome {
        let me = &mut self.workers[worker as usize];
        if let Err(later) = me.writes.room(c::WRITES_IN_FLIGHT.value as usize, now) {
            return StepOutcome::Again(later);
        }
        let counts = &mut self.memory.counts[step.category];
        counts.flushes += 1;
        counts.flushes_again += u64::from(me.flushed.contains(&step.what));
        me.flushed.push(step.what);
        me.ordered = true;
        if self.memory.config.eadr {
            return StepOutcome::Until(now + self.costs.issue);
        }
        if !self.memory.clean(step.what) {
            self.memory.counts[step.category].flushes_clean += 1;
            return StepOutcome::Until(now + self.costs.issue);
        }
        let here = me.fills.find(step.what).unwrap_or(now);
        if here > now {
            // It holds its place among the fills, too, until it is on its way.
            me.fills.0.retain(|(line, _)| *line != step.what);
            me.fills.0.push((step.what, UNKNOWN));
            me.writes.0.push((step.what, UNKNOWN));
            let (line, owner) = (step.what, step.owner());
            self.events.push(Reverse((
                here,
                MachineEvent::Arrives {
                    worker,
                    line,
                    owner,
                },
            )));
        } else {
            self.send(worker, step, now, self.costs.flush_accepted);
        }
        StepOutcome::Until(now + self.costs.flush_issue)
    }

    fn around(&mut self, worker: u32, step: Step, now: u64) -> StepOutcome {
        let me = &mut self.workers[worker as usize];
        if let Err(later) = me.writes.room(c::WRITES_IN_FLIGHT.value as usize, now) {
            return StepOutcome::Again(later);
        }
        me.ordered = true;
        self.memory.counts[step.category].around += 1;
        self.memory.clean(step.what);
        self.send(worker, step, now, self.costs.around_accepted);
        StepOutcome::Until(now + self.costs.around_issue)
    }

    /// A line leaves for its DIMM.
    fn send(&mut self, worker: u32, step: Step, now: u64, accepted: u64) {
        let done = match self.memory.write(step, worker, now, accepted) {
            AcceptedLine::At(done) => done,
            AcceptedLine::Waits => UNKNOWN,
        };
        self.workers[worker as usize]
            .writes
            .0
            .push((step.what, done));
    }

    /// Wakes up when queues that have become full have room again.
    fn expect_room(&mut self, now: u64) {
        while let Some(dimm) = self.memory.crowded.pop() {
            if let Some(at) = self.memory.dimms[dimm].next_room() {
                self.events
                    .push(Reverse((at.max(now), MachineEvent::Room(dimm as u32))));
            }
        }
    }

    fn arrives(&mut self, worker: u32, line: u32, owner: u32, now: u64) {
        let step = Step {
            act: StepKind::Flush,
            category: super::Category::ALL[(owner & 0xff) as usize],
            place: (owner >> 8) as u16,
            what: line,
        };
        match self
            .memory
            .write(step, worker, now, self.costs.flush_accepted)
        {
            AcceptedLine::At(done) => self.arrived(worker, line, done, now),
            AcceptedLine::Waits => {}
        }
    }

    fn arrived(&mut self, worker: u32, line: u32, done: u64, now: u64) {
        let me = &mut self.workers[worker as usize];
        me.writes.settle(line, done);
        me.fills.settle(line, done);
        me.evictions.settle(line, done);
        if std::mem::take(&mut me.blocked) {
            self.events
                .push(Reverse((now, MachineEvent::Worker(worker))));
        }
    }

    fn make_room(&mut self, dimm: u32, now: u64) {
        while let Some(line) = self.memory.let_in(dimm as usize, now) {
            if line.worker != NOBODY {
                self.arrived(line.worker, line.line, now, now);
            }
        }
        if let Some(at) = self.memory.dimms[dimm as usize].next_room() {
            self.events
                .push(Reverse((at.max(now), MachineEvent::Room(dimm))));
        }
    }

    fn fence(&mut self, worker: u32, step: Step, now: u64) -> StepOutcome {
        let me = &mut self.workers[worker as usize];
        let last = me.writes.last();
        if last == UNKNOWN {
            return StepOutcome::Again(UNKNOWN);
        }
        let counts = &mut self.memory.counts[step.category];
        counts.fences += 1;
        counts.fences_idle += u64::from(!std::mem::take(&mut me.ordered));
        me.flushed.clear();
        let times = match self.memory.is_remote(worker) {
            true => c::REMOTE_WRITE.value,
            false => 1.0,
        };
        let fence = (self.costs.fence as f64 * times) as u64;
        StepOutcome::Until(last.max(now) + fence)
    }

    fn lock(&mut self, worker: u32, step: Step, now: u64) -> StepOutcome {
        let lock = self.locks.entry(step.what).or_default();
        if lock.held {
            lock.waiting.push_back(worker);
            return StepOutcome::Blocked;
        }
        lock.held = true;
        StepOutcome::Until(now + self.costs.lock)
    }

    fn unlock(&mut self, step: Step, now: u64) -> StepOutcome {
        if let Some(lock) = self.locks.get_mut(&step.what) {
            match lock.waiting.pop_front() {
                Some(heir) => {
                    let at = now + self.costs.hand_off;
                    self.events.push(Reverse((at, MachineEvent::Worker(heir))));
                }
                None => lock.held = false,
            }
        }
        StepOutcome::Until(now + self.costs.issue)
    }

    fn barrier(&mut self, worker: u32, now: u64) -> StepOutcome {
        self.at_barrier.push(worker);
        self.open_barrier(now);
        StepOutcome::Blocked
    }

    /// Lets everybody go on when everybody is there.
    fn open_barrier(&mut self, now: u64) {
        if !self.at_barrier.is_empty() && self.at_barrier.len() == self.going {
            for worker in self.at_barrier.drain(..) {
                self.events
                    .push(Reverse((now, MachineEvent::Worker(worker))));
            }
        }
    }
}
