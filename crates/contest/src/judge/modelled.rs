//! The judge on the model of far memory: sixteen virtual workers on six DIMMs.
//!
//! Each virtual worker executes the plan's operations of a thread. The engine's far-memory accesses become steps of
//! the machine. All other work takes a fixed time per operation, [`CPU_NS`], the same for every engine. So a ratio of
//! two engines compares their far-memory accesses and leaves out their tables in DRAM. The modelled processor cache is
//! scaled down with the pool, so that it holds the same share of it as at full size.

use farbank_bench::figure::{Error, Figure, ProgressFn, Report, report_every};
use farbank_pm::media::Mapped;
use farbank_pm::model::{
    self, Category, Machine, MachineConfig, Modelled, Step as Does, StepKind, Trace,
};
use farbank_pm::rng::Rng;

use super::contender::{Contender, FarMemory};
use super::plan::{AckedValues, ContestOp, ContestPhase, RoundPlan, ThreadKeys};
use super::{ContestRound, JudgeOptions};
use crate::{ContestLimits, Engine, EngineRequest, Worker};

/// Number of virtual workers: the contest's threads.
const WORKERS: usize = 16;
/// DIMMs of one socket of the contest's machine.
const DIMMS: u32 = 6;
/// Nanoseconds of an operation without far memory. This is an assumption.
const CPU_NS: u32 = 100;
/// Smallest divisor of the scale that is modelled: 393,216 operations per phase.
const PART_MIN: u64 = 1024;
/// Size of the modelled cache at full scale, in bytes.
const CACHE_BYTES: u64 = 36 << 20;

/// Millions of operations per virtual second in a set phase and in a get phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelledRates {
    pub(super) sets: f64,
    pub(super) gets: f64,
}

fn config(seed: u64, part: u64) -> MachineConfig {
    MachineConfig {
        seed,
        cache_bytes: (CACHE_BYTES / part).max(64 << 10),
        places: false,
        ..MachineConfig::study(DIMMS)
    }
}

/// Runs a set and a get phase of `contender` on the model, and reports the rates.
pub(super) fn run(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<Option<ModelledRates>, Error> {
    let found = rates(options, contender, &|terms| terms, watch)?;
    let modelled =
        |what, value| Figure::modelled(contender.name(), what, value).unit("M operations/s");
    report.figures.extend(found.iter().flat_map(|rates| {
        [
            modelled("set phase, 16 workers", rates.sets),
            modelled("get phase, 16 workers", rates.gets),
        ]
    }));
    Ok(found)
}

/// Returns the rates of a set and a get phase on the model, with limits changed by `room`. `None` if the engine has
/// threads of its own, because their steps belong to no virtual worker.
pub(super) fn rates(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    room: &dyn Fn(ContestLimits) -> ContestLimits,
    watch: ProgressFn<'_>,
) -> Result<Option<ModelledRates>, Error> {
    if options.round == ContestRound::Preliminary {
        return Ok(None);
    }
    let part = options.part.max(PART_MIN);
    let options = JudgeOptions {
        contenders: Vec::new(),
        place: options.place.clone(),
        part,
        threads: WORKERS,
        ..*options
    };
    let terms = room(options.terms_for(contender));
    let memory = Mapped::anonymous(terms.far_bytes).map_err(Error::doing("map memory"))?;
    let medium = Modelled::new(memory);
    let trace = medium.trace();
    trace.record(false);
    let engine = contender.create(FarMemory::Modelled(medium), &terms)?;
    let plan = options.plan();
    let (ledger, mut owns) = (plan.ledger(), vec![ThreadKeys::default(); WORKERS]);
    let mut machine = Machine::new(config(options.seed, part));
    let mut rates = [0.0; 2];
    for (phase, rate) in [ContestPhase::Set, ContestPhase::Get(0)]
        .into_iter()
        .zip(&mut rates)
    {
        machine.restart();
        trace.record(true);
        let asked = (&plan, &ledger);
        play(
            &mut machine,
            &*engine,
            &trace,
            asked,
            &mut owns,
            phase,
            watch,
        )?;
        *rate = machine.outcome().throughput() / 1e6;
    }
    let [sets, gets] = rates;
    Ok(Some(ModelledRates { sets, gets }))
}

/// Runs a phase: executes each virtual worker's operations in the order of the virtual clocks.
fn play(
    machine: &mut Machine,
    engine: &dyn Engine,
    trace: &Trace,
    (plan, ledger): (&RoundPlan, &AckedValues),
    owns: &mut [ThreadKeys],
    phase: ContestPhase,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let mut workers: Vec<Box<dyn Worker>> = owns.iter().map(|_| engine.worker()).collect();
    let mut streams: Vec<_> = (owns.iter_mut().enumerate())
        .map(|(thread, own)| plan.stream(phase, thread, ledger, own))
        .collect();
    let (mut done, mut failed) = (0, None);
    let (mut value, mut out, mut found) = (Vec::new(), Vec::new(), false);
    let what = format!("{}, modelled", phase.name());
    machine.run(workers.len(), |worker, steps| {
        let next = streams[worker].next(&[]);
        let (None, Some(op)) = (&failed, next) else {
            return false;
        };
        trace.compute(CPU_NS);
        let (ContestOp::Set { id, .. } | ContestOp::Get { id, .. }) = op;
        let key = plan.names.key(id);
        let spending = Category::KeyValue.scope();
        let mut ask = match op {
            ContestOp::Set { version, bytes, .. } => {
                value.clear();
                plan.names.value(id, version, bytes, &mut value);
                ledger.acknowledge(id, version, bytes);
                EngineRequest::Set(&key, &value)
            }
            ContestOp::Get { .. } => EngineRequest::Get(&key, &mut out, &mut found),
        };
        let did = workers[worker].run_batch(std::slice::from_mut(&mut ask));
        drop(spending);
        failed = did.map_err(|error| Error::Failed(error.to_string())).err();
        done += 1;
        let all = plan.terms.operations;
        if let Err(stopped) = report_every(watch, &what, done, all) {
            failed = Some(stopped);
        }
        trace.take(steps);
        true
    });
    failed.map_or(Ok(()), Err)
}

/// Reports v2's rates relative to v1's: one write per set compared with two.
pub(super) fn compare(rates: &[(&'static str, ModelledRates)], report: &mut Report) {
    let of = |name| {
        rates
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, rates)| rates)
    };
    if let (Some(first), Some(second)) = (of("v1"), of("v2")) {
        let figure = |what, value| Figure::modelled("v2", what, value).unit("times");
        report.figures.extend([
            figure("set phase, 16 workers, by v1's", second.sets / first.sets)
                .published(14.9 / 9.8, f64::INFINITY)
                .at_least(1.5),
            figure("get phase, 16 workers, by v1's", second.gets / first.gets)
                .published(46.3 / 28.8, f64::INFINITY),
        ]);
    }
}

/// Reports the cost of two writes, each followed by a wait, relative to one: 152 and 8 bytes compared with 160.
///
/// The published measurement used one thread that wrote one record after another, so the 8 bytes were in a line
/// written just before. In an engine they are in a bucket at a random place: [`SecondWrite::Anywhere`].
pub(super) fn two_writes(seed: u64, report: &mut Report) {
    let cost = |second| write_ns(seed, second);
    let one = cost(SecondWrite::None);
    for (what, second) in [
        (
            "152 + 8 bytes, by 160 in one write, same record",
            SecondWrite::SameRecord,
        ),
        (
            "152 + 8 bytes, by 160 in one write, any bucket",
            SecondWrite::Anywhere,
        ),
    ] {
        let figure = Figure::modelled("micro", what, cost(second) / one);
        report
            .figures
            .push(figure.unit("times").published(3.0, f64::INFINITY));
    }
}

/// Place of the second write, of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecondWrite {
    /// No second write: all 160 bytes are one write.
    None,
    /// After the first 152 bytes, when those are durable.
    SameRecord,
    /// Anywhere in a table, when the first bytes are durable.
    Anywhere,
}

/// Returns the virtual nanoseconds in which one worker writes a record of 160 bytes.
fn write_ns(seed: u64, second: SecondWrite) -> f64 {
    const RECORDS: u64 = 50_000;
    const RECORD_BYTES: u64 = 160;
    const TABLE_LINES: u64 = (32 << 20) / 64;
    let mut machine = Machine::new(config(seed, PART_MIN));
    let (mut rng, mut left) = (Rng::new(seed), RECORDS);
    machine.run(1, |_, steps: &mut Vec<Does>| {
        let Some(next) = left.checked_sub(1) else {
            return false;
        };
        let at = (RECORDS - left) * RECORD_BYTES;
        left = next;
        let mut write = |from: u64, bytes: u64| {
            for line in from / 64..(from + bytes).div_ceil(64) {
                steps.extend(
                    [StepKind::Store, StepKind::Flush].map(|act| Does::new(act, line as u32)),
                );
            }
            steps.push(Does::new(StepKind::Fence, 0));
        };
        match second {
            SecondWrite::None => write(at, RECORD_BYTES),
            SecondWrite::SameRecord => {
                write(at, RECORD_BYTES - 8);
                write(at + RECORD_BYTES - 8, 8);
            }
            SecondWrite::Anywhere => {
                write(at, RECORD_BYTES - 8);
                write(RECORDS * RECORD_BYTES + rng.below(TABLE_LINES) * 64, 8);
            }
        }
        true
    });
    machine.outcome().elapsed_ps as f64 / 1e3 / RECORDS as f64
}

/// Returns the note that describes the model of all modelled figures.
pub(super) fn label(options: &JudgeOptions<'_>) -> String {
    let part = options.part.max(PART_MIN);
    format!(
        "modelled at 1/{part} of the contest's size: {}, cache of {} KiB, {WORKERS} workers, {CPU_NS} ns an \
         operation besides far memory, which is an assumption and the same for every engine",
        model::MachineConfig::label(&config(options.seed, part)),
        config(options.seed, part).cache_bytes >> 10,
    )
}
