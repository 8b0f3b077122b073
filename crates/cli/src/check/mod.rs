//! `farbank check`: the correctness checks, in particular that acknowledged writes survive.

mod cluster;
mod crash;
mod ended;
mod faults;
mod histories;
mod kill;
mod model;
mod schedules;
mod simulated_server;
mod situations;
mod targets;
mod tree;

use std::io::IsTerminal;
use std::ops::Range;
use std::str::FromStr;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};

use crate::common::Failure;

/// Run the correctness checks.
#[derive(Subcommand)]
pub(crate) enum CheckCommand {
    /// Kill and pause processes of a tree on memory servers, and check that the recorded calls are linearizable.
    Cluster(cluster::CheckClusterArgs),
    #[command(hide = true)]
    ClusterClient(cluster::CheckClusterClientArgs),
    /// Crash a structure at every crash point of a simulation, and check what a power cut could leave.
    Crash(crash::CrashArgs),
    /// Omit each flush and drain, and enable each named fault. The crash explorer must detect all of them.
    Faults(faults::FaultsArgs),
    /// End a server while clients share keys, and check that the recorded calls are linearizable.
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
            CheckCommand::Cluster(cluster) => cluster.run(),
            CheckCommand::ClusterClient(client) => client.run(),
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
