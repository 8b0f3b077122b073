//! The persistent hash indexes beside each other: throughput, latency, load factor, what far memory is asked for.
//!
//! Tables run on anonymous memory with real flushes and fences. Each phase is run by all threads at once, every thread with a
//! share of the keys; one operation in 128 is timed. Published figures are those of the original codes as plug-ins of the study's benchmark, 65,536
//! slots at first, on a quiet machine with two processors; they are shown beside, not asked for: another machine.

pub mod keys;
mod run;

use farbank_index::registry::{Preset, Table};

use crate::figure::{Error, Report, Step};
use keys::Distribution;

/// What is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Inserts, lookups that find and that do not, deletes: millions a second, and how long one takes.
    Throughput,
    /// One mix of operations, on ids that PiBench draws.
    Mix,
    /// Flushes, fences and bytes an operation.
    Counts,
    /// Load factor and utilisation while a table grows.
    LoadFactor,
    /// Milliseconds from an open after a kill to the first answer, at several sizes.
    Recovery,
}

/// Shares of operations in a mix; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Lookups.
    pub read: f64,
    /// Inserts of new keys.
    pub insert: f64,
    /// Updates of keys that are there.
    pub update: f64,
    /// Removals.
    pub remove: f64,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is found out.
    pub experiment: Experiment,
    /// The tables, one after another.
    pub tables: Vec<Table>,
    /// How they are arranged.
    pub preset: Preset,
    /// Keys that are loaded.
    pub records: u64,
    /// Operations of a mix.
    pub operations: u64,
    /// Threads.
    pub threads: u32,
    /// Slots of a new table.
    pub slots: u64,
    /// Of a mix: shares of operations.
    pub ratios: Ratios,
    /// Of a mix: how ids are drawn.
    pub distribution: Distribution,
    /// Of a mix: what the draws start from; a thread's is this times its number from 1.
    pub seed: u64,
}

/// Runs it. `watch` answers whether to go on.
pub fn run(options: &Options, watch: &mut dyn FnMut(Step<'_>) -> bool) -> Result<Report, Error> {
    let mut report = Report::default();
    for (done, table) in (0..).zip(&options.tables) {
        let step = Step {
            what: table.name(),
            done,
            all: options.tables.len() as u64,
        };
        if !watch(step) {
            return Err(Error::Stopped);
        }
        let figures = match options.experiment {
            Experiment::Throughput => run::throughput(options, *table)?,
            Experiment::Mix => run::mix(options, *table)?,
            Experiment::Counts => run::counts(options, *table)?,
            Experiment::LoadFactor => run::load_factor(options, *table)?,
            Experiment::Recovery => run::recovery(options, *table)?,
        };
        report.figures.extend(figures);
    }
    Ok(report)
}
