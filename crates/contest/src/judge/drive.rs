//! Runs one phase of one engine: threads, the clock, and the check of every answer.
//!
//! ```text
//!   thread:  │ draw 64 operations, make keys and values │ run them │ check, acknowledge │ draw 64 ...
//!                                                       └─ clock ──┘
//! ```
//!
//! The time of a phase is the sum of the clocked intervals of its slowest thread. The clock is stopped while the judge
//! works. A small part of the judge is still timed, a call and a loop step per operation. [`own_cost_ns`] measures it
//! with an engine that does nothing.
//!
//! # What is compared
//! JUDGE-DRIVE-1  A key of the thread's own has exactly the value that was set last.
//! JUDGE-DRIVE-2  A key of another thread has a complete value. It is not older than the value acknowledged when the get was
//!     drawn, not newer than the last value that can have been set since, and not older than the value this thread saw
//!     before.
//! JUDGE-DRIVE-3  A key that exists is found.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use farbank_bench::counted::{MediumCounts, Meter};
use farbank_bench::figure::{Error, ProgressFn, Step};
use farbank_check::explore::computed_by_thread;

use super::plan::{AckedValues, ContestOp, ContestPhase, OpStream, RoundPlan, ThreadKeys};
use super::value::{KeyNames, WrongAnswer};
use crate::{Engine, EngineRequest, EngineStats, Error as Refusal, Key, Worker};

/// Number of operations that are drawn, run and checked at a time.
const BATCH: usize = 64;
/// Number of keys for which a thread remembers the last version it saw.
const SEEN: usize = 4096;
/// Number of wrong answers that are reported for a phase and a thread.
const REPORTED_MAX: usize = 3;

/// Options of a phase.
#[derive(Clone, Copy)]
pub(super) struct DriveMode<'a> {
    /// Number of operations passed to an engine in one call.
    pub group: usize,
    /// Meter whose counts are attributed to sets and gets. Operations are then run one by one.
    pub meter: Option<&'a Meter>,
    /// Whether answers are checked.
    pub compare: bool,
}

/// Results of a phase.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseFindings {
    /// Time of the slowest thread.
    pub seconds: f64,
    /// Largest processor time of a thread, over the same intervals.
    pub cpu_seconds: f64,
    /// Number of sets.
    pub sets: u64,
    /// Number of sets of existing keys.
    pub updates: u64,
    /// Number of gets.
    pub gets: u64,
    /// Medium operations of sets, including those of the engine's own threads.
    pub by_sets: MediumCounts,
    /// Medium operations of gets.
    pub by_gets: MediumCounts,
    /// Wrong answers by reason.
    pub wrong: BTreeMap<WrongAnswer, u64>,
    /// Sets that the engine refused.
    pub refused: u64,
    /// Descriptions of the first wrong answers.
    pub told: Vec<String>,
}

impl PhaseFindings {
    fn join(&mut self, other: PhaseFindings) {
        self.seconds = self.seconds.max(other.seconds);
        self.cpu_seconds = self.cpu_seconds.max(other.cpu_seconds);
        self.sets += other.sets;
        self.updates += other.updates;
        self.gets += other.gets;
        self.by_sets += other.by_sets;
        self.by_gets += other.by_gets;
        for (wrong, count) in other.wrong {
            *self.wrong.entry(wrong).or_default() += count;
        }
        self.refused += other.refused;
        self.told.extend(other.told);
    }

    /// Returns the number of wrong answers.
    pub(super) fn wrong_answers(&self) -> u64 {
        self.wrong.values().sum()
    }
}

/// Runs a phase with one thread for each of `owns`.
///
/// # Errors
/// The engine panicked, or `watch` stopped the run.
pub(super) fn run(
    engine: &dyn Engine,
    (plan, ledger): (&RoundPlan, &AckedValues),
    owns: &mut [ThreadKeys],
    phase: ContestPhase,
    how: DriveMode<'_>,
    watch: ProgressFn<'_>,
) -> Result<PhaseFindings, Error> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Barrier::new(owns.len());
    let before = how.meter.map(Meter::total);
    let mut found = PhaseFindings::default();
    // All workers are created before any thread starts, so a panic here leaves no thread waiting.
    let workers: Vec<_> = owns.iter().map(|_| engine.worker()).collect();
    let joined = std::thread::scope(|scope| {
        let threads: Vec<_> = (owns.iter_mut().zip(workers))
            .enumerate()
            .map(|(thread, (own, worker))| {
                let (done, stop, start) = (&done, &stop, &start);
                scope.spawn(move || {
                    let mut runner = DriveThread {
                        worker,
                        plan,
                        ledger,
                        how,
                        batch: OpBatch::default(),
                        seen: vec![(u64::MAX, 0); SEEN],
                        found: PhaseFindings::default(),
                    };
                    let mut stream = plan.stream(phase, thread, ledger, own);
                    start.wait();
                    runner.run(&mut stream, done, stop);
                    runner.found
                })
            })
            .collect();
        let what = phase.name();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
            let step = Step {
                what: &what,
                done: done.load(Relaxed),
                all: plan.terms.operations,
            };
            if !watch(step) {
                stop.store(true, Relaxed);
            }
        }
        // All threads are joined first: a panic of one may have made others panic.
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ends.into_iter().try_for_each(|end| match end {
            Ok(of_thread) => {
                found.join(of_thread);
                Ok(())
            }
            Err(panic) => Err(Error::Failed(format!(
                "the engine panicked in the {what}: {}",
                words_of(&*panic)
            ))),
        })
    });
    joined?;
    if stop.load(Relaxed) && found.refused == 0 {
        return Err(Error::Stopped);
    }
    if let (Some(meter), Some(before)) = (how.meter, before) {
        let (mut threads, all) = (found.by_sets, meter.total() - before);
        threads += found.by_gets;
        found.by_sets += all - threads;
    }
    Ok(found)
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "without a message".into())
}

/// State of one thread.
struct DriveThread<'a> {
    worker: Box<dyn Worker>,
    plan: &'a RoundPlan,
    ledger: &'a AckedValues,
    how: DriveMode<'a>,
    batch: OpBatch,
    /// Key number and newest version seen, in a direct-mapped table.
    seen: Vec<(u64, u32)>,
    found: PhaseFindings,
}

/// A batch of operations with their keys, values and answers.
#[derive(Default)]
struct OpBatch {
    ops: Vec<ContestOp>,
    keys: Vec<Key>,
    /// Values of all sets, concatenated. A get has an empty range.
    values: Vec<u8>,
    ends: Vec<usize>,
    outs: Vec<Vec<u8>>,
    found: Vec<bool>,
}

impl OpBatch {
    fn fill(&mut self, stream: &mut OpStream<'_>, names: &KeyNames) {
        self.ops.clear();
        self.keys.clear();
        self.values.clear();
        self.ends.clear();
        while self.ops.len() < BATCH {
            let Some(op) = stream.next(&self.ops) else {
                break;
            };
            let (ContestOp::Set { id, .. } | ContestOp::Get { id, .. }) = op;
            if let ContestOp::Set { version, bytes, .. } = op {
                names.value(id, version, bytes, &mut self.values);
            }
            self.ends.push(self.values.len());
            self.keys.push(names.key(id));
            self.ops.push(op);
        }
        self.outs.resize_with(BATCH, Vec::new);
        self.found.clear();
        self.found.resize(BATCH, false);
    }

    /// Returns the batch as requests to the engine.
    fn asks(&mut self) -> Vec<EngineRequest<'_>> {
        let mut from = 0;
        let keys = self.keys.iter().zip(&self.ends);
        let answers = self.outs.iter_mut().zip(&mut self.found);
        let all = self.ops.iter().zip(keys).zip(answers);
        all.map(|((op, (key, end)), (out, found))| {
            let value = &self.values[std::mem::replace(&mut from, *end)..*end];
            match op {
                ContestOp::Set { .. } => EngineRequest::Set(key, value),
                ContestOp::Get { .. } => EngineRequest::Get(key, out, found),
            }
        })
        .collect()
    }
}

impl DriveThread<'_> {
    fn run(&mut self, stream: &mut OpStream<'_>, done: &AtomicU64, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            self.batch.fill(stream, &self.plan.names);
            if self.batch.ops.is_empty() {
                return;
            }
            if let Err(why) = self.execute() {
                // A refused set would make all later answers look wrong.
                self.found.refused += 1;
                self.found.told.push(why.to_string());
                stop.store(true, Relaxed);
                return;
            }
            self.check_answer();
            done.fetch_add(self.batch.ops.len() as u64, Relaxed);
        }
    }

    fn execute(&mut self) -> Result<(), Refusal> {
        if let Some(meter) = self.how.meter {
            return self.execute_metered(meter);
        }
        let (worker, group) = (&mut self.worker, self.how.group);
        let mut asks = self.batch.asks();
        let (cpu, wall) = (computed_by_thread(), Instant::now());
        let result = match group {
            1 => one_by_one(&mut **worker, &mut asks),
            _ => asks
                .chunks_mut(group)
                .try_for_each(|asks| worker.run_batch(asks)),
        };
        self.found.seconds += wall.elapsed().as_secs_f64();
        self.found.cpu_seconds += computed_by_thread().saturating_sub(cpu).as_secs_f64();
        result
    }

    fn execute_metered(&mut self, meter: &Meter) -> Result<(), Refusal> {
        for ask in &mut self.batch.asks() {
            meter.begin();
            let before = meter.mine();
            let by = match ask {
                EngineRequest::Set(..) => &mut self.found.by_sets,
                EngineRequest::Get(..) => &mut self.found.by_gets,
            };
            one_by_one(&mut *self.worker, std::slice::from_mut(ask))?;
            *by += meter.mine() - before;
        }
        Ok(())
    }

    /// Acknowledges the sets and checks the answers of the gets.
    fn check_answer(&mut self) {
        for n in 0..self.batch.ops.len() {
            match self.batch.ops[n] {
                ContestOp::Set {
                    id,
                    version,
                    bytes,
                    old_bytes,
                } => {
                    self.found.sets += 1;
                    self.found.updates += u64::from(old_bytes > 0);
                    self.ledger.acknowledge(id, version, bytes);
                }
                ContestOp::Get { id, version, own } => {
                    self.found.gets += 1;
                    if self.how.compare {
                        self.compare(n, id, version, own);
                    }
                }
            }
        }
    }

    fn compare(&mut self, n: usize, id: u64, version: u32, own: bool) {
        let answer = match self.batch.found[n] {
            false if version == 0 => return,
            false => Err(WrongAnswer::Missing),
            true => self.plan.names.version(id, &self.batch.outs[n]),
        };
        // JUDGE-DRIVE-2: between two acknowledgements a thread sets a key at most BATCH times.
        let most = match own {
            true => version,
            false => self.ledger.get(id).0 + BATCH as u32,
        };
        let seen = &mut self.seen[id as usize % SEEN];
        let least = match seen.0 == id {
            true => seen.1.max(version),
            false => version,
        };
        let (wrong, found) = match answer {
            Ok(found) if found < least => (WrongAnswer::Stale, Some(found)),
            Ok(found) if found > most => (WrongAnswer::Early, Some(found)),
            Ok(found) => {
                *seen = (id, found);
                return;
            }
            Err(wrong) => (wrong, None),
        };
        *self.found.wrong.entry(wrong).or_default() += 1;
        if self.found.told.len() < REPORTED_MAX {
            let found = found.map_or(String::new(), |found| format!(", found version {found}"));
            self.found.told.push(format!(
                "{wrong}: key {id} ({:02x?}), at least version {least}{found}",
                self.batch.keys[n]
            ));
        }
    }
}

fn one_by_one(worker: &mut dyn Worker, asks: &mut [EngineRequest<'_>]) -> Result<(), Refusal> {
    for ask in asks {
        match ask {
            EngineRequest::Set(key, value) => worker.set(key, value)?,
            EngineRequest::Get(key, out, found) => **found = worker.get(key, out),
        }
    }
    Ok(())
}

/// Returns the part of the measured time that the judge itself takes, in nanoseconds per operation of a get phase. It
/// is measured with an engine that does nothing.
pub(super) fn own_cost_ns(plan: &RoundPlan) -> Result<f64, Error> {
    let (ledger, mut owns) = (plan.ledger(), [ThreadKeys::default()]);
    let one = RoundPlan::new(plan.round, plan.terms.clone().with_threads(1), 1);
    let how = DriveMode {
        group: 1,
        meter: None,
        compare: false,
    };
    let mut cost = |phase| {
        run(
            &NullEngine,
            (&one, &ledger),
            &mut owns,
            phase,
            how,
            &mut |_| true,
        )
    };
    cost(ContestPhase::Set)?;
    let found = cost(ContestPhase::Get(0))?;
    Ok(found.seconds * 1e9 / (found.sets + found.gets).max(1) as f64)
}

/// Engine that does nothing.
struct NullEngine;

impl Engine for NullEngine {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(NullEngine)
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn far_bytes(&self) -> u64 {
        0
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

impl Worker for NullEngine {
    fn set(&mut self, _: &Key, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn get(&mut self, _: &Key, _: &mut Vec<u8>) -> bool {
        true
    }
}
