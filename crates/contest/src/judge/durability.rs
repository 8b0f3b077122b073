//! Durability phase: power cuts on simulated memory, and a kill on a real pool.
//!
//! The contest's crash judge ran one set on a pool of 10,000 records. It reverted each unfenced 8-byte word with a
//! probability of one half. Here the crash explorer does this at every fence, with reused blocks, and during recovery
//! too. It has three modes: each word survives independently (`word`), lines do (`adr`), nothing is lost (`eadr`).
//!
//! A kill loses only what the engine held in DRAM. It comes after a set and a get phase, so that hot keys have been
//! updated a few thousand times.

use std::path::PathBuf;

use farbank_bench::figure::{Error, Figure, ProgressFn, Report, Step};
use farbank_bench::kv::PoolPlace;
use farbank_bench::temp::TempFile;
use farbank_check::{explore, explore::ExploreConfig};
use farbank_pm::media::{OpenOptions, open_path};
use farbank_pm::sim::Persistency;

use super::JudgeOptions;
use super::contender::Contender;
use super::phases::{EngineTrial, KILL, timed_and_checked, verdict};
use super::plan::ContestPhase;

/// Persistency modes: that of the contest's judge, then those of real machines.
const MODES: [Persistency; 3] = [Persistency::Word, Persistency::Adr, Persistency::Eadr];

/// Crashes and kills an engine that claims to be durable.
pub(super) fn durability(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    if !contender.is_durable() {
        let name = contender.name();
        report.notes.push(format!(
            "{name} does not claim to be durable; its durability phase is skipped"
        ));
        return Ok(());
    }
    for mode in MODES {
        crash(options, contender, mode, report, watch)?;
    }
    kill(options, contender, report, watch)
}

fn crash(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    mode: Persistency,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let Some((target, known)) = contender.target() else {
        return Ok(());
    };
    let (name, seeds) = (contender.name(), options.crash_seeds);
    let what = format!("{name}: crashes under {mode}");
    let (config, mut go_on) = (ExploreConfig::new(mode), true);
    let from = options.seed;
    let found = explore(
        target,
        &config,
        from..from + seeds,
        options.threads,
        &mut |so_far| {
            go_on &= watch(Step {
                what: &what,
                done: so_far.counts.seeds,
                all: seeds,
            });
            go_on
        },
    );
    if !go_on {
        return Err(Error::Stopped);
    }
    let counted = |what: String, count: u64| Figure::counted(name, what, count as f64);
    let broken = counted(
        format!("{mode}: runs that lose or corrupt"),
        found.violations.len() as u64,
    );
    report.figures.extend([
        counted(format!("{mode}: crash images judged"), found.counts.images),
        match known {
            None => broken.at_most(0.0),
            Some(_) => broken,
        },
    ]);
    if let Some(violation) = found.violations.first() {
        let known = known.map_or(String::new(), |known| format!(" (known: {known})"));
        report.notes.push(format!(
            "{name} under {mode}, seed {:#x}: {}{known}; reproduce with: {}",
            violation.seed, violation.what, violation.command
        ));
    }
    Ok(())
}

/// Drops the engine of a pool in a file, opens the pool again and reads every key.
fn kill(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let terms = options.terms_for(contender);
    let path: PathBuf = match &options.place {
        PoolPlace::Dram => TempFile::on_tmpfs("judge")?,
        PoolPlace::File(path) => path.clone(),
    };
    let (_file, medium) = PoolPlace::File(path.clone()).make(terms.far_bytes, watch)?;
    let mut trial = EngineTrial::new(options, contender);
    let engine = contender.create(medium.into(), &terms)?;
    let mut phases = Vec::new();
    for phase in [ContestPhase::Set, ContestPhase::Get(0)] {
        phases.push(trial.phase(&*engine, phase, timed_and_checked(1), watch)?);
        if phases.iter().any(|found| found.refused > 0) {
            verdict(report, contender, KILL, &phases.iter().collect::<Vec<_>>());
            return Ok(());
        }
    }
    // The engine is dropped without a close, as after a kill.
    drop(engine);
    let medium = open_path(&path, &OpenOptions::default())?;
    let started = std::time::Instant::now();
    let engine = contender.open(medium.into(), &terms)?;
    let opened = started.elapsed().as_secs_f64() * 1e3;
    phases.push(trial.phase(&*engine, ContestPhase::ReadAll, timed_and_checked(1), watch)?);
    verdict(report, contender, KILL, &phases.iter().collect::<Vec<_>>());
    let figure = Figure::measured(contender.name(), "kill: opened again in", opened);
    report.figures.push(figure.unit("ms"));
    Ok(())
}
