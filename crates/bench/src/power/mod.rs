//! Power cuts: writers that say what was acknowledged, and checks that come after.
//!
//! This is what runs inside a guest that loses its power (`guest/README.md`). Whoever watches it reads its output:
//!
//! ```text
//!   CHECK engine lost=0 of 20480     what an earlier life was told is there, all of it
//!   ACK engine 320 321 319 320       so many batches of each writer are durable
//!   ENOUGH                           every subject has acknowledged enough: cut the power now
//!   ACK engine 320 321 320 320       it goes on until that happens
//! ```
//!
//! A line is printed after what it tells of was acknowledged, so it is never wrong in the dangerous direction. The
//! next life is given the output of this one, checks, does what was left half done, and goes on writing to the
//! same pool.
//!
//! | subject | is                                                                      |
//! |---------|-------------------------------------------------------------------------|
//! | raw     | a bare pool: `copy_in` of several lengths, `drain`, `wait`              |
//! | engine  | sessions of the engine: sets, deletes, groups, updates, large values    |
//! | server  | the same over connections to `farbank serve`, in pipelines              |
//!
//! Pools are small and much of them lives, so that the cleaner is at work. On a device, of which there is one, only the
//! engine runs.

mod ack_log;
mod ack_sink;
mod engine;
mod plan;
mod raw;
mod replay;
mod served;
mod unflushed;

use std::path::{Path, PathBuf};

use ack_log::{AckLog, PowerSubject};
use ack_sink::BatchSink;
use engine::FlushMode;
use plan::{CheckFindings, WriterPlan};
use served::ServedProcess;

pub use engine::SyncMode;
pub use replay::{ReplayDevices, ReplayFigures, mark, replay};

/// Writers of the engine, and connections to the server.
const WRITERS: usize = 4;
/// Bytes of a pool, and of its segments.
const POOL_BYTES: u64 = 6 << 20;
const SEGMENT_BYTES: u64 = 16 << 10;
/// Batches of each writer whose writes and syncs are recorded.
const LOGGED_BATCHES: u64 = 16;
/// What is printed of what is wrong.
const WRONG_LINES: usize = 8;

/// What is done after the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterCheck {
    /// Nothing more.
    End,
    /// Write until the power goes.
    Write,
    /// The same with the engine alone, on a medium that makes nothing durable: its next check must fail.
    WriteInVain,
}

/// Checks what `previous`, the output of an earlier life at `place`, says was acknowledged, and goes on. `place` is a
/// folder, or a device; `farbank` the program that serves.
pub fn live(place: &Path, previous: &str, farbank: &Path, then: AfterCheck) -> Result<(), String> {
    let names: &[&'static str] = match place.is_dir() && then != AfterCheck::WriteInVain {
        true => &["raw", "engine", "server"],
        false => &["engine"],
    };
    let names = names
        .iter()
        .filter(|name| then != AfterCheck::End || PowerSubject::is_in(name, previous));
    let mut lives = Vec::new();
    for name in names {
        let path = match place.is_dir() {
            true => place.join(name),
            false => place.into(),
        };
        lives.push(CheckedSubject::begin(
            PowerSubject::new(name, previous),
            path,
            farbank,
        )?);
    }
    let fine = lives.iter().all(|life| life.fine);
    if !fine || lives.is_empty() {
        return Err("acknowledged writes are lost, or something else is wrong".into());
    }
    if then == AfterCheck::End {
        return Ok(());
    }
    let flushing = match then {
        AfterCheck::WriteInVain => FlushMode::Never,
        _ => FlushMode::Always,
    };
    let tell = |line: &str| {
        println!("{line}");
        Ok(())
    };
    write(lives, flushing, SyncMode::Always, u64::MAX, &tell)
}

/// Writes to a new pool at `pool` for a while, and calls `mark` with every line that tells of an acknowledgement.
pub fn record(
    pool: &Path,
    syncing: SyncMode,
    mark: &(dyn Fn(&str) -> Result<(), String> + Sync),
) -> Result<(), String> {
    let life = CheckedSubject {
        subject: PowerSubject::new("engine", ""),
        path: pool.into(),
        served: None,
        in_doubt: Vec::new(),
        fine: true,
    };
    write(vec![life], FlushMode::Always, syncing, LOGGED_BATCHES, mark)
}

/// A subject that was checked and can go on.
struct CheckedSubject {
    subject: PowerSubject,
    path: PathBuf,
    served: Option<ServedProcess>,
    /// What is to be settled, writer by writer; nothing in a new pool.
    in_doubt: Vec<CheckFindings>,
    fine: bool,
}

impl CheckedSubject {
    /// Checks, unless this is the subject's first life.
    fn begin(
        subject: PowerSubject,
        path: PathBuf,
        farbank: &Path,
    ) -> Result<CheckedSubject, String> {
        let served = match subject.name {
            "server" => Some(ServedProcess::start(farbank, &path)),
            _ => None,
        };
        let acknowledged = &subject.acknowledged;
        let judged = match (subject.is_new(), subject.name, &served) {
            (true, ..) => Ok(Vec::new()),
            (_, "raw", _) => raw::check(&path, acknowledged[0]).map(|judged| vec![judged]),
            (_, _, None) => engine::check(&path, acknowledged),
            (_, _, Some(Ok(served))) => served
                .connect()
                .and_then(|banks| check_after_cut(banks, acknowledged)),
            (_, _, Some(Err(why))) => Err(why.clone()),
        };
        let fine = subject.is_new() || report(&subject, &judged);
        Ok(CheckedSubject {
            // What did not start has been reported, unless there was nothing to check.
            served: served
                .transpose()
                .or_else(|why| if fine { Err(why) } else { Ok(None) })?,
            in_doubt: judged.unwrap_or_default(),
            subject,
            path,
            fine,
        })
    }

    /// What its writers write to; none for the raw pool, which has one of its own.
    fn banks(&self, engine: &dyn engine::CheckedEngine) -> Result<Vec<Box<dyn BatchSink>>, String> {
        match (self.subject.name, &self.served) {
            ("raw", _) => Ok(Vec::new()),
            (_, Some(served)) => served.connect(),
            (_, None) => Ok(engine::sessions(engine)),
        }
    }
}

/// Checks what each writer's keys hold.
fn check_after_cut(
    banks: Vec<Box<dyn BatchSink>>,
    acknowledged: &[u64],
) -> Result<Vec<CheckFindings>, String> {
    let writers = banks.into_iter().zip(acknowledged).zip(0..);
    writers
        .map(|((mut bank, count), writer)| WriterPlan::new(writer).check(&mut *bank, *count))
        .collect()
}

/// Prints what a check found. Returns whether nothing is wrong.
fn report(subject: &PowerSubject, judged: &Result<Vec<CheckFindings>, String>) -> bool {
    let (lost, wrong) = match judged {
        Ok(judged) => (
            judged.iter().map(|j| j.lost).sum(),
            judged.iter().flat_map(|j| j.wrong.clone()).collect(),
        ),
        // What cannot be opened has lost everything.
        Err(why) => (subject.writes(), vec![why.clone()]),
    };
    for line in wrong.iter().take(WRONG_LINES) {
        println!("WRONG {} {line}", subject.name);
    }
    let (name, writes) = (subject.name, subject.writes());
    println!("CHECK {name} lost={lost} wrong={} of {writes}", wrong.len());
    wrong.is_empty() && lost == 0
}

/// Writes to all of them at once: `last` batches of each writer, or until the power goes.
fn write(
    lives: Vec<CheckedSubject>,
    flushing: FlushMode,
    syncing: SyncMode,
    last: u64,
    tell: &(dyn Fn(&str) -> Result<(), String> + Sync),
) -> Result<(), String> {
    let engine = lives.iter().find(|life| life.subject.name == "engine");
    let engine = engine.ok_or("there is always an engine")?;
    let engine = engine::open(&engine.path, flushing, syncing)?;
    let subjects = lives.iter().map(|life| life.subject.clone()).collect();
    let ledger = &AckLog::new(subjects, tell);
    let mut banks = Vec::new();
    for life in &lives {
        banks.push(life.banks(&*engine)?);
    }
    std::thread::scope(|scope| {
        for (subject, (life, banks)) in lives.iter().zip(banks).enumerate() {
            if life.subject.name == "raw" {
                let (from, to) = (life.subject.acknowledged[0], ledger.line(subject, 0));
                scope.spawn(move || ledger.keep(raw::write(&life.path, from, &to)));
            }
            for (writer, mut bank) in banks.into_iter().enumerate() {
                let judged = life.in_doubt.get(writer);
                let to = ledger.line(subject, writer);
                let plan = WriterPlan::new(writer as u64);
                scope.spawn(move || ledger.keep(run(plan, judged, &mut *bank, last, &to)));
            }
        }
    });
    ledger.outcome()
}

/// One writer: settles what is in doubt, then writes batch after batch.
fn run(
    plan: WriterPlan,
    judged: Option<&CheckFindings>,
    bank: &mut dyn BatchSink,
    last: u64,
    to: &ack_log::WriterLog<'_>,
) -> Result<(), String> {
    let mut next = 1;
    if let Some(judged) = judged {
        plan.settle(judged, bank)?;
        next = judged.in_doubt.1;
        to.acknowledge(next - 1)?;
    }
    while next <= last && !to.is_over() {
        bank.commit(&plan.steps(next))?;
        to.acknowledge(next)?;
        next += 1;
    }
    Ok(())
}
