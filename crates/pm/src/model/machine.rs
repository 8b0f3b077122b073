//! [`Machine`], which runs virtual workers in virtual time.
//!
//! The worker with the least clock runs next, for one step. At the end of its operation it executes its
//! next operation at once, and then plays the steps that this operation recorded. Nothing else orders
//! the workers, so the same seed and the same operations give the same figures.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::constants as c;
use super::count::{AccessCounts, CountsByCategory, DimmCounts, Hotspot, WearFigures, imbalance};
use super::dimm::ps;
use super::memory::{AcceptedLine, MachineConfig, MemorySystem, NO_WORKER};
use super::step::{Step, StepKind};

/// An unknown time: the line waits for its DIMM.
const UNKNOWN: u64 = u64::MAX;

/// A machine and the virtual time on it.
pub struct Machine {
    memory: MemorySystem,
    workers: Vec<ModelWorker>,
    events: BinaryHeap<Reverse<(u64, MachineEvent)>>,
    locks: HashMap<u32, ModelLock>,
    at_barrier: Vec<u32>,
    running: usize,
    latencies_ns: Vec<u32>,
    steps: u64,
    begun: u64,
    now: u64,
    costs: CpuCosts,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MachineEvent {
    /// A DIMM's write queue has room.
    Room(u32),
    /// A line that was fetched for a store and was flushed before it arrived has arrived; it is written back now.
    Arrives { worker: u32, line: u32, owner: u32 },
    /// A worker continues.
    Worker(u32),
}

/// Times of the CPU's own work, in picoseconds.
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
    /// Dirty lines that the cache evicted.
    evictions: LinesInFlight,
    /// Lines flushed since the last fence.
    flushed: Vec<u32>,
    ordered: bool,
    blocked: bool,
}

/// Lines in flight, and the times at which they arrive ([`UNKNOWN`] until then).
#[derive(Default)]
struct LinesInFlight(Vec<(u32, u64)>);

impl LinesInFlight {
    /// Checks that fewer than `most` lines are in flight at `now`. `Err` is the time to try again, or [`UNKNOWN`].
    fn room(&mut self, most: usize, now: u64) -> Result<(), u64> {
        self.0.retain(|(_, done)| *done > now);
        if self.0.len() < most {
            return Ok(());
        }
        Err(self.0.iter().map(|(_, done)| *done).min().unwrap_or(now))
    }

    /// Returns the time at which the line arrives, if known. An entry with an unknown time is of an earlier fetch of
    /// the line, which was flushed since.
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

    /// Sets the unknown arrival time of a line.
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

/// The outcome of a step.
enum StepOutcome {
    /// The step is done; the worker's clock advances to this time.
    Until(u64),
    /// The step has to be tried again at this time.
    Again(u64),
    /// The step is done, and an event wakes the worker later.
    Blocked,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct MachineOutcome {
    /// Number of operations.
    pub operations: u64,
    /// Number of steps.
    pub steps: u64,
    /// Elapsed virtual time, in picoseconds.
    pub elapsed_ps: u64,
    /// Counts, by category.
    pub counts: CountsByCategory,
    /// Counts of each DIMM.
    pub dimms: Vec<DimmCounts>,
    /// The media's wear.
    pub wear: WearFigures,
    /// Latencies of the operations in nanoseconds, ascending.
    latencies_ns: Vec<u32>,
}

impl MachineOutcome {
    /// Returns the sum of the counts of all categories.
    #[must_use]
    pub fn total(&self) -> AccessCounts {
        self.counts.total()
    }

    /// Returns the operations per second of virtual time.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.operations as f64 / (self.elapsed_ps as f64 / 1e12)
    }

    /// Returns the latency in nanoseconds that a `share` (0 to 1) of the operations does not exceed.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u32 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.latencies_ns.get(at).copied().unwrap_or_default()
    }

    /// Returns the sum of the latencies of the `n` slowest operations, in nanoseconds.
    #[must_use]
    pub fn longest_ns(&self, n: u64) -> u64 {
        let longest = self.latencies_ns.iter().rev().take(n as usize);
        longest.map(|ns| u64::from(*ns)).sum()
    }

    /// Returns the writes of the DIMM with the most, divided by the mean of all DIMMs.
    #[must_use]
    pub fn write_imbalance(&self) -> f64 {
        imbalance(self.dimms.iter().map(|dimm| dimm.writes))
    }

    /// Returns a hash of all figures.
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
    /// Creates a machine with empty caches and buffers.
    #[must_use]
    pub fn new(config: MachineConfig) -> Machine {
        Machine {
            memory: MemorySystem::new(config),
            workers: Vec::new(),
            events: BinaryHeap::new(),
            locks: HashMap::new(),
            at_barrier: Vec::new(),
            running: 0,
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

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &MachineConfig {
        &self.memory.config
    }

    /// Resets all counts and times, but not the contents of caches and buffers. Call it after a warm-up.
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

    /// Runs `workers` workers until none has an operation left.
    ///
    /// `next` executes a worker's next operation and appends its steps, or returns `false` if there is none.
    ///
    /// # Panics
    /// If workers wait forever for a lock.
    pub fn run(&mut self, workers: usize, mut next: impl FnMut(usize, &mut Vec<Step>) -> bool) {
        self.workers.clear();
        self.workers.resize_with(workers, ModelWorker::default);
        self.running = workers;
        for worker in 0..workers as u32 {
            if self.begin(worker, self.now, &mut next) {
                self.events
                    .push(Reverse((self.now, MachineEvent::Worker(worker))));
            }
        }
        let mut first = self.pop();
        while let Some((now, event)) = first.take().or_else(|| self.pop()) {
            match event {
                MachineEvent::Worker(worker) => first = self.run_worker(worker, now, &mut next),
                MachineEvent::Room(dimm) => self.make_room(dimm, now),
                MachineEvent::Arrives {
                    worker,
                    line,
                    owner,
                } => self.arrives(worker, line, owner, now),
            }
            self.plan_room_events(now);
        }
        assert!(
            self.running == 0,
            "{} workers wait forever: a lock was taken and never released",
            self.running
        );
    }

    fn pop(&mut self) -> Option<(u64, MachineEvent)> {
        self.events.pop().map(|Reverse(event)| event)
    }

    /// Writes the contents of the XPBuffers to the media, and returns the results so far.
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

    /// Returns the `n` lines that were written most often.
    #[must_use]
    pub fn hottest_lines(&self, n: usize) -> Vec<Hotspot> {
        self.memory.hot.hottest(1, n)
    }

    /// Returns the `n` pages of 4 KiB that were written most often.
    #[must_use]
    pub fn hottest_pages(&self, n: usize) -> Vec<Hotspot> {
        const LINES: usize = 4096 / c::LINE_BYTES as usize;
        self.memory.hot.hottest(LINES, n)
    }

    /// Executes a worker's next operation. Returns `false` if there is none.
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
        self.running -= 1;
        self.now = self.now.max(now);
        self.open_barrier(now);
        false
    }

    /// Plays a worker's steps while its clock is the least. Returns the next event, if it has taken it from the queue.
    fn run_worker(
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
            self.plan_room_events(clock);
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
            StepKind::Compute => StepOutcome::Until(now + u64::from(step.argument) * 1000),
            StepKind::Lock => self.lock(worker, step, now),
            StepKind::Unlock => self.unlock(step, now),
            StepKind::Barrier => self.barrier(worker, now),
        }
    }

    fn load(&mut self, worker: u32, step: Step, now: u64, wait: bool) -> StepOutcome {
        let me = &mut self.workers[worker as usize];
        // The cache lookup changes the cache, so it happens once: first check that there is room.
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
                .push((step.argument, done));
        }
        let me = &self.workers[worker as usize];
        match wait {
            true => StepOutcome::Until(done.max(me.loads.last())),
            false => StepOutcome::Until(now + self.costs.issue),
        }
    }

    /// Accesses a line in the cache, and records an evicted dirty line in the worker. Returns whether it was a hit.
    fn cached(&mut self, worker: u32, step: Step, dirty: bool, now: u64) -> bool {
        let (hit, left) = self.memory.access_cache(step, dirty, worker, now);
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
                .push((step.argument, done));
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
        counts.flushes_again += u64::from(me.flushed.contains(&step.argument));
        me.flushed.push(step.argument);
        me.ordered = true;
        if self.memory.config.eadr {
            return StepOutcome::Until(now + self.costs.issue);
        }
        if !self.memory.clean(step.argument) {
            self.memory.counts[step.category].flushes_clean += 1;
            return StepOutcome::Until(now + self.costs.issue);
        }
        let here = me.fills.find(step.argument).unwrap_or(now);
        if here > now {
            // The line still counts as a fill in flight until its write-back starts.
            me.fills.0.retain(|(line, _)| *line != step.argument);
            me.fills.0.push((step.argument, UNKNOWN));
            me.writes.0.push((step.argument, UNKNOWN));
            let (line, owner) = (step.argument, step.owner());
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
        self.memory.clean(step.argument);
        self.send(worker, step, now, self.costs.around_accepted);
        StepOutcome::Until(now + self.costs.around_issue)
    }

    /// Sends a line to its DIMM.
    fn send(&mut self, worker: u32, step: Step, now: u64, accepted: u64) {
        let done = match self.memory.write(step, worker, now, accepted) {
            AcceptedLine::At(done) => done,
            AcceptedLine::Waits => UNKNOWN,
        };
        self.workers[worker as usize]
            .writes
            .0
            .push((step.argument, done));
    }

    /// Plans events for the times at which queues that have become full have room again.
    fn plan_room_events(&mut self, now: u64) {
        while let Some(dimm) = self.memory.newly_full.pop() {
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
            argument: line,
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
        while let Some(line) = self.memory.admit_waiting(dimm as usize, now) {
            if line.worker != NO_WORKER {
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
        let lock = self.locks.entry(step.argument).or_default();
        if lock.held {
            lock.waiting.push_back(worker);
            return StepOutcome::Blocked;
        }
        lock.held = true;
        StepOutcome::Until(now + self.costs.lock)
    }

    fn unlock(&mut self, step: Step, now: u64) -> StepOutcome {
        if let Some(lock) = self.locks.get_mut(&step.argument) {
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

    /// Wakes all workers at the barrier if all workers that still run are there.
    fn open_barrier(&mut self, now: u64) {
        if !self.at_barrier.is_empty() && self.at_barrier.len() == self.running {
            for worker in self.at_barrier.drain(..) {
                self.events
                    .push(Reverse((now, MachineEvent::Worker(worker))));
            }
        }
    }
}
