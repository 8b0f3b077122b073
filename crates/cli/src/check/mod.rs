//! `farbank check`: the correctness checks, in particular that acknowledged writes survive.

mod crash;
mod ended;
mod faults;
mod histories;
mod kill;
mod model;
mod schedules;
mod situations;
mod tree;

use std::io::IsTerminal;
use std::ops::Range;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum};
use farbank_cache::target::MdbTarget;
use farbank_check::{AckRule, Target};
use farbank_contest::kid::KidConfig;
use farbank_contest::target::EngineTarget;
use farbank_contest::v1::{self, V1Config};
use farbank_contest::v2::{self, V2Config};
use farbank_index::hash::Hashing;
use farbank_index::registry::TableKind;
use farbank_index::target::TableTarget;
use farbank_kv::target::KvTarget;
use farbank_pm::sim::Persistency;
use indicatif::{ProgressBar, ProgressStyle};

use crate::common::Failure;

/// Run the correctness checks.
#[derive(Subcommand)]
pub(crate) enum CheckCommand {
    /// Crash a structure at every crash point of a simulation, and check what a power cut could leave.
    Crash(crash::CrashArgs),
    /// Omit each flush and drain, and enable each named fault. The crash explorer must detect all of them.
    Faults(faults::FaultsArgs),
    /// Kill a real server while clients share keys, and check that the recorded calls are linearizable.
    Histories(histories::HistoriesArgs),
    /// Kill a real server under load repeatedly, and check that no acknowledged write is lost.
    Kill(kill::KillArgs),
    /// Compare the media model with published measurements of persistent memory.
    Model(model::ModelArgs),
    /// Run threads, or the tree's clients on a simulated cluster, under many schedules with injected failures.
    Schedules(schedules::SchedulesArgs),
    /// Explore until every situation (threshold or rare branch) that a structure lists is reached, and count how
    /// often each is.
    Situations(situations::SituationsArgs),
}

impl CheckCommand {
    /// Runs the check. Returns an error if it does not hold.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            CheckCommand::Crash(crash) => crash.run(),
            CheckCommand::Faults(faults) => faults.run(),
            CheckCommand::Histories(histories) => histories.run(),
            CheckCommand::Kill(kill) => kill.run(),
            CheckCommand::Model(model) => model.run(),
            CheckCommand::Schedules(schedules) => schedules.run(),
            CheckCommand::Situations(situations) => situations.run(),
        }
    }
}

/// Structures that can be checked.
#[derive(Clone, Copy, ValueEnum)]
enum TargetChoice {
    /// The key-value engine.
    Kv,
    /// The key-value engine, with each operation in a batch of its own.
    KvAlone,
    /// The key-value engine with values of several extents.
    KvLarge,
    /// The key-value engine with as many size classes as on a large pool, and a reader that stays open.
    KvClasses,
    /// The key-value engine with a cleaner that moves two records at a time.
    KvSlices,
    /// The Tair MDB cache.
    Mdb,
    /// The engine described in the contest slides. It has known defects and fails.
    Kid,
    /// The contest's `v1` engine, as published. Readers see the writes of a killed process, which a later power cut
    /// may lose.
    V1,
    /// The contest's `v2` engine, as published. It is known to lose and to corrupt data.
    V2,
    /// Cacheline-conscious extendible hashing.
    Cceh,
    /// CLHT, the cache-line hash table, made persistent.
    Clht,
    /// SOFT: sets with an optimal flushing technique.
    Soft,
    /// Level hashing.
    Level,
    /// Clevel hashing: level hashing with lock-free searches.
    Clevel,
    /// Dash with extendible hashing.
    DashEh,
    /// Dash with linear hashing.
    DashLh,
    /// The tree on memory servers of a simulated cluster. Only for schedules and faults.
    Tree,
}

impl TargetChoice {
    /// Returns the target that the crash explorer runs. `None` for the tree, whose memory is never cut off from
    /// power.
    fn target(self) -> Option<&'static dyn Target> {
        Some(match self {
            TargetChoice::Kv => &KvTarget::Plain,
            TargetChoice::KvAlone => &KvTarget::Alone,
            TargetChoice::KvLarge => &KvTarget::Large,
            TargetChoice::KvClasses => &KvTarget::Classes,
            TargetChoice::KvSlices => &KvTarget::Slices,
            TargetChoice::Mdb => &MdbTarget,
            TargetChoice::Kid => &EngineTarget(KidConfig),
            TargetChoice::V1 => &EngineTarget(V1Config(v1::V1Tuning::PUBLISHED)),
            TargetChoice::V2 => &EngineTarget(V2Config(v2::V2Tuning::PUBLISHED)),
            TargetChoice::Cceh => &TableTarget(TableKind::Cceh, Hashing::Published),
            TargetChoice::Clht => &TableTarget(TableKind::Clht, Hashing::Published),
            TargetChoice::Soft => &TableTarget(TableKind::Soft, Hashing::Published),
            TargetChoice::Level => &TableTarget(TableKind::Level, Hashing::Published),
            TargetChoice::Clevel => &TableTarget(TableKind::Clevel, Hashing::Published),
            TargetChoice::DashEh => &TableTarget(TableKind::DashEh, Hashing::Published),
            TargetChoice::DashLh => &TableTarget(TableKind::DashLh, Hashing::Published),
            TargetChoice::Tree => return None,
        })
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum VerdictChoice {
    Strict,
    Acknowledged,
}

impl VerdictChoice {
    fn verdict(self) -> AckRule {
        match self {
            VerdictChoice::Strict => AckRule::Strict,
            VerdictChoice::Acknowledged => AckRule::Acknowledged,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum PersistencyChoice {
    Adr,
    Eadr,
    Word,
    Page,
    /// A file under `--sync everysec` or `never`: a power cut may lose everything written since the last sync.
    Relaxed,
    All,
}

impl PersistencyChoice {
    /// Returns the selected modes. Fails if `target` does not support the selected mode.
    fn modes(self, target: &dyn Target) -> Result<&'static [Persistency], Failure> {
        let modes: &[Persistency] = match self {
            PersistencyChoice::Adr => &[Persistency::Adr],
            PersistencyChoice::Eadr => &[Persistency::Eadr],
            PersistencyChoice::Word => &[Persistency::Word],
            PersistencyChoice::Page => &[Persistency::Page],
            PersistencyChoice::Relaxed => &[Persistency::Relaxed],
            PersistencyChoice::All => return Ok(target.modes()),
        };
        if target.modes().contains(&modes[0]) {
            return Ok(modes);
        }
        let made_for: Vec<_> = target.modes().iter().map(ToString::to_string).collect();
        Err(Failure::Usage(format!(
            "{} does not support the mode {}; it supports {}",
            target.name(),
            modes[0],
            made_for.join(", ")
        )))
    }
}

/// A range of seeds, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeedRange(Range<u64>);

impl FromStr for SeedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<SeedRange, String> {
        let seeds = match text.split_once("..") {
            Some((start, end)) => number(start)?..number(end)?,
            None => {
                let seed = number(text)?;
                let end = seed.checked_add(1).ok_or("the seed is too large")?;
                seed..end
            }
        };
        if seeds.is_empty() {
            return Err("the range of seeds is empty".into());
        }
        Ok(SeedRange(seeds))
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|e| format!("{text:?}: {e}"))
}

/// Returns the number of threads; 0 means one per CPU.
fn threads(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// Returns a progress bar, hidden if standard error is not a terminal.
fn progress_bar(seeds: u64, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(seeds).with_prefix(what);
    let template = "{prefix} {wide_bar} {pos}/{len} seeds, {msg}, {elapsed}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_as_written() {
        for (text, seeds) in [
            ("0..40", 0..40),
            ("7", 7..8),
            ("0x51ab", 0x51ab..0x51ac),
            ("1..0x10", 1..16),
        ] {
            assert_eq!(text.parse(), Ok(SeedRange(seeds)), "{text}");
        }
        for text in ["", "..", "4..4", "5..1", "x", "18446744073709551615"] {
            assert!(text.parse::<SeedRange>().is_err(), "{text}");
        }
    }
}
