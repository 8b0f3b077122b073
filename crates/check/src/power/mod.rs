//! Power cuts: writers that report what was acknowledged, and checks after the next boot.
//!
//! This code runs inside a guest whose power is cut (`guest/README.md`). The test driver on the host reads its output:
//!
//! ```text
//!   CHECK engine lost=0 wrong=0 of 20480     all writes acknowledged in earlier boots are found
//!   ACK engine 320 321 319 320               the number of durable batches of each writer
//!   ENOUGH                                   every subject has acknowledged enough: the power may be cut now
//!   ACK engine 320 321 320 320               writing goes on until then
//! ```
//!
//! A line is printed after the writes it reports were acknowledged. So a lost line can hide an acknowledged write, but
//! a line never claims one that was not acknowledged. The next boot gets this output as input. It checks the pool,
//! completes the batches that were cut off, and continues to write to the same pool.
//!
//! | subject | is                                                                      |
//! |---------|-------------------------------------------------------------------------|
//! | raw     | a bare pool: `copy_in` of several lengths, `drain`, `wait`              |
//! | engine  | sessions of the engine: sets, deletes, groups, updates, large values    |
//! | server  | the same over connections to `farbank serve`, in pipelines              |
//!
//! Pools are small and mostly live, so that the cleaner runs. On a device only the engine runs, as there is one pool.

mod ack_log;
mod ack_sink;
mod engine;
mod error;
mod plan;
mod raw;
mod replay;
mod served;
mod unflushed;

use std::path::{Path, PathBuf};

use farbank_pm::media::SyncPolicy;

use ack_log::{AckLog, PowerSubject};
use plan::{CheckFindings, WriterPlan};
use served::ServedProcess;

pub use ack_sink::{BatchSink, WriteStep};
pub use engine::{FlushMode, OpenEngine, PowerEngine};
pub use error::PowerError;
pub use replay::{ReplayDevices, ReplayFigures, mark, replay};
pub use unflushed::UnflushedMedium;

/// Number of engine sessions, and of connections to the server.
const WRITERS: usize = 4;
/// Size of a pool in bytes.
pub const POOL_BYTES: u64 = 6 << 20;
/// Size of a segment in bytes.
pub const SEGMENT_BYTES: u64 = 16 << 10;
/// Batches of each writer in a recording.
const LOGGED_BATCHES: u64 = 16;
/// Largest number of violations printed for one check.
const WRONG_LINES: usize = 8;

/// What to do after the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterCheck {
    /// End the process.
    End,
    /// Write until the power is cut.
    Write,
    /// Write with the engine only, on a medium that makes nothing durable. The check of the next boot must fail.
    WriteInVain,
}

/// Checks that everything acknowledged in `previous`, the output of an earlier boot, is still at `place`. Then does
/// `then`. `place` is a directory or a device; `engine` is the engine under test, and `farbank` the path of the server
/// binary.
///
/// # Errors
/// A check found a violation, or a writer failed.
pub fn check_and_write(
    engine: &dyn PowerEngine,
    place: &Path,
    previous: &str,
    farbank: &Path,
    then: AfterCheck,
) -> Result<(), PowerError> {
    let names: &[&'static str] = match place.is_dir() && then != AfterCheck::WriteInVain {
        true => &["raw", "engine", "server"],
        false => &["engine"],
    };
    let names = names
        .iter()
        .filter(|name| then != AfterCheck::End || PowerSubject::is_in(name, previous));
    let mut all_checked = Vec::new();
    for name in names {
        let path = match place.is_dir() {
            true => place.join(name),
            false => place.into(),
        };
        let subject = PowerSubject::new(name, previous);
        all_checked.push(CheckedSubject::begin(engine, subject, path, farbank)?);
    }
    let fine = all_checked.iter().all(|checked| checked.fine);
    if !fine || all_checked.is_empty() {
        return Err(PowerError::CheckFailed);
    }
    if then == AfterCheck::End {
        return Ok(());
    }
    let flushing = match then {
        AfterCheck::WriteInVain => FlushMode::Never,
        _ => FlushMode::Always,
    };
    let report_line = |line: &str| {
        println!("{line}");
        Ok(())
    };
    let opened = open(engine, &all_checked, flushing, SyncPolicy::Always)?;
    write(all_checked, &*opened, u64::MAX, &report_line)
}

/// Writes to a new pool at `pool` for a fixed number of batches. Calls `mark` with every line that reports an
/// acknowledgement.
///
/// # Errors
/// The engine or `mark` failed.
pub fn record(
    engine: &dyn PowerEngine,
    pool: &Path,
    syncing: SyncPolicy,
    mark: &(dyn Fn(&str) -> Result<(), PowerError> + Sync),
) -> Result<(), PowerError> {
    let checked = CheckedSubject {
        subject: PowerSubject::new("engine", ""),
        path: pool.into(),
        served: None,
        in_doubt: Vec::new(),
        fine: true,
    };
    let all_checked = vec![checked];
    let opened = open(engine, &all_checked, FlushMode::Always, syncing)?;
    write(all_checked, &*opened, LOGGED_BATCHES, mark)
}

/// Subject that was checked and can continue to write.
struct CheckedSubject {
    subject: PowerSubject,
    path: PathBuf,
    served: Option<ServedProcess>,
    /// Findings of each writer, whose batches in doubt are to be completed. Empty for a new pool.
    in_doubt: Vec<CheckFindings>,
    fine: bool,
}

impl CheckedSubject {
    /// Checks the subject, unless its pool is new.
    fn begin(
        engine: &dyn PowerEngine,
        subject: PowerSubject,
        path: PathBuf,
        farbank: &Path,
    ) -> Result<CheckedSubject, PowerError> {
        let started = match subject.name {
            "server" => ServedProcess::start(farbank, &path).map(Some),
            _ => Ok(None),
        };
        let acknowledged = &subject.acknowledged;
        let (served, findings) = match started {
            Ok(served) if subject.is_new() => (served, Ok(Vec::new())),
            Ok(served) => {
                let findings = match (subject.name, &served) {
                    ("raw", _) => raw::check(&path, acknowledged[0]).map(|findings| vec![findings]),
                    (_, None) => check_engine(engine, &path, acknowledged),
                    (_, Some(served)) => served
                        .connect()
                        .and_then(|sinks| check_after_cut(sinks, acknowledged)),
                };
                (served, findings)
            }
            Err(why) if subject.is_new() => return Err(why),
            // Counts as a failed check.
            Err(why) => (None, Err(why)),
        };
        let fine = subject.is_new() || report(&subject, &findings);
        Ok(CheckedSubject {
            served,
            in_doubt: findings.unwrap_or_default(),
            subject,
            path,
            fine,
        })
    }

    /// Returns a sink for each writer. Empty for the raw pool, whose writer opens the pool itself.
    fn sinks(&self, engine: &dyn OpenEngine) -> Result<Vec<Box<dyn BatchSink>>, PowerError> {
        match (self.subject.name, &self.served) {
            ("raw", _) => Ok(Vec::new()),
            (_, Some(served)) => served.connect(),
            (_, None) => Ok(engine_sinks(engine)),
        }
    }
}

/// Returns a sink of the engine for each writer.
fn engine_sinks(engine: &dyn OpenEngine) -> Vec<Box<dyn BatchSink>> {
    (0..WRITERS).map(|_| engine.sink()).collect()
}

/// Opens the pool at `path` after a power cut, compares it with the `acknowledged` counts and runs the engine's own
/// check.
fn check_engine(
    engine: &dyn PowerEngine,
    path: &Path,
    acknowledged: &[u64],
) -> Result<Vec<CheckFindings>, PowerError> {
    let opened = engine.open_to_check(path)?;
    let mut findings = check_after_cut(engine_sinks(&*opened), acknowledged)?;
    if let Err(why) = opened.verify() {
        findings[0].wrong.push(why.to_string());
    }
    Ok(findings)
}

/// Checks the keys of each writer.
fn check_after_cut(
    sinks: Vec<Box<dyn BatchSink>>,
    acknowledged: &[u64],
) -> Result<Vec<CheckFindings>, PowerError> {
    let writers = sinks.into_iter().zip(acknowledged).zip(0..);
    writers
        .map(|((mut sink, count), writer)| WriterPlan::new(writer).check(&mut *sink, *count))
        .collect()
}

/// Prints the findings of a check. Returns whether there is no violation.
fn report(subject: &PowerSubject, findings: &Result<Vec<CheckFindings>, PowerError>) -> bool {
    let (lost, wrong) = match findings {
        Ok(findings) => (
            findings.iter().map(|j| j.lost).sum(),
            findings.iter().flat_map(|j| j.wrong.clone()).collect(),
        ),
        // A pool that cannot be opened counts as having lost all writes.
        Err(why) => (subject.writes(), vec![why.to_string()]),
    };
    for line in wrong.iter().take(WRONG_LINES) {
        println!("WRONG {} {line}", subject.name);
    }
    let (name, writes) = (subject.name, subject.writes());
    println!("CHECK {name} lost={lost} wrong={} of {writes}", wrong.len());
    wrong.is_empty() && lost == 0
}

/// Opens the pool of the subject that is an engine.
fn open(
    engine: &dyn PowerEngine,
    all_checked: &[CheckedSubject],
    flushing: FlushMode,
    syncing: SyncPolicy,
) -> Result<Box<dyn OpenEngine>, PowerError> {
    let checked = all_checked
        .iter()
        .find(|checked| checked.subject.name == "engine");
    let checked = checked.ok_or(PowerError::NoEngine)?;
    engine.open(&checked.path, flushing, syncing)
}

/// Runs the writers of all subjects: for `last` batches each, or until the power is cut.
fn write(
    all_checked: Vec<CheckedSubject>,
    engine: &dyn OpenEngine,
    last: u64,
    report_line: &(dyn Fn(&str) -> Result<(), PowerError> + Sync),
) -> Result<(), PowerError> {
    let subjects = all_checked
        .iter()
        .map(|checked| checked.subject.clone())
        .collect();
    let ledger = &AckLog::new(subjects, report_line);
    let mut sinks = Vec::new();
    for checked in &all_checked {
        sinks.push(checked.sinks(engine)?);
    }
    std::thread::scope(|scope| {
        for (subject, (checked, sinks)) in all_checked.iter().zip(sinks).enumerate() {
            if checked.subject.name == "raw" {
                let (from, to) = (
                    checked.subject.acknowledged[0],
                    ledger.writer_log(subject, 0),
                );
                scope.spawn(move || ledger.record_outcome(raw::write(&checked.path, from, &to)));
            }
            for (writer, mut sink) in sinks.into_iter().enumerate() {
                let findings = checked.in_doubt.get(writer);
                let to = ledger.writer_log(subject, writer);
                let plan = WriterPlan::new(writer as u64);
                scope.spawn(move || {
                    ledger.record_outcome(run(plan, findings, &mut *sink, last, &to))
                });
            }
        }
    });
    ledger.outcome()
}

/// Runs one writer: completes the batches in doubt, then writes batch after batch.
fn run(
    plan: WriterPlan,
    findings: Option<&CheckFindings>,
    sink: &mut dyn BatchSink,
    last: u64,
    to: &ack_log::WriterLog<'_>,
) -> Result<(), PowerError> {
    let mut next = 1;
    if let Some(findings) = findings {
        plan.settle(findings, sink)?;
        next = findings.in_doubt.1;
        to.acknowledge(next - 1)?;
    }
    while next <= last && !to.is_over() {
        sink.commit(&plan.steps(next))?;
        to.acknowledge(next)?;
        next += 1;
    }
    Ok(())
}
