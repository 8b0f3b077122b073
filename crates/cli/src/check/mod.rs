//! `farbank check`: the checks by which we know that an acknowledged write survives, for everyone.

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

use crate::Failure;

/// Check that what is promised holds.
#[derive(Subcommand)]
pub(crate) enum CheckCommand {
    /// Crash a structure everywhere, in a simulation, and judge what every power cut could leave.
    Crash(crash::CrashArgs),
    /// Leave out each flush and drain, and turn on each known bug: the checks must object.
    Faults(faults::FaultsArgs),
    /// Kill a real server under clients that share keys, and look for an order of all their calls.
    Histories(histories::HistoriesArgs),
    /// Kill a real server under load, again and again, and check that nothing acknowledged is lost.
    Kill(kill::KillArgs),
    /// Compare the media model with what was measured on persistent memory.
    Model(model::ModelArgs),
    /// Run threads, or the tree's clients on a simulated rack, under many schedules with disasters in between.
    Schedules(schedules::SchedulesArgs),
    /// Explore until every threshold and rare branch that a structure lists was met, and say how often each was.
    Situations(situations::SituationsArgs),
}

impl CheckCommand {
    /// Runs the check; an error if it does not hold.
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

/// What can be checked.
#[derive(Clone, Copy, ValueEnum)]
enum TargetChoice {
    /// The key-value engine.
    Kv,
    /// The key-value engine, every operation a batch by itself.
    KvAlone,
    /// The key-value engine with values of several extents.
    KvLarge,
    /// The key-value engine with as many classes as on a large pool, and a reader that stays.
    KvClasses,
    /// The key-value engine with a cleaner that moves two records at a time.
    KvSlices,
    /// The Tair MDB cache.
    Mdb,
    /// The contest engine of the slides. It has known defects and fails.
    Kid,
    /// The contest's `v1`, as published: what a killed process wrote it shows, and may lose.
    V1,
    /// The contest's `v2`, as published: known to lose and to corrupt.
    V2,
    /// Cacheline-conscious extendible hashing.
    Cceh,
    /// The cache-line hash table, made persistent.
    Clht,
    /// Sets with an optimal flushing technique.
    Soft,
    /// Level hashing.
    Level,
    /// Level hashing whose searches are not blocked.
    Clevel,
    /// Dash, extendible.
    DashEh,
    /// Dash, linear.
    DashLh,
    /// The tree on memory servers, on a simulated rack: schedules and faults only.
    Tree,
}

impl TargetChoice {
    /// What the explorer crashes; `None`: the tree, whose memory loses no power.
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
    /// A file under `--sync everysec` or `never`: a power cut may take what was written since the last sync.
    Relaxed,
    All,
}

impl PersistencyChoice {
    /// The modes that are meant, of those `target` is made for.
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
            "{} is not made for {}: {}",
            target.name(),
            modes[0],
            made_for.join(", ")
        )))
    }
}

/// A range of seeds as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeedRange(Range<u64>);

impl FromStr for SeedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<SeedRange, String> {
        let seeds = match text.split_once("..") {
            Some((start, end)) => number(start)?..number(end)?,
            None => {
                let seed = number(text)?;
                let end = seed.checked_add(1).ok_or("that seed is too large")?;
                seed..end
            }
        };
        if seeds.is_empty() {
            return Err("no seed is in that range".into());
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

/// As many threads as asked for; 0 is one a CPU.
fn threads(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// A bar for people; hidden elsewhere.
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
