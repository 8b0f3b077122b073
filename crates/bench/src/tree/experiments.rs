//! Experiments: the runs of each, and their order.

use super::bench::{TreeBench, describe};
use super::compare::share_near;
use super::options::{TreeExperiment, TreeOptions};
use super::{costs, ratios, sensitivity, successors, sweeps};
use crate::figure::{Error, ProgressFn, Report};

impl TreeExperiment {
    /// Returns the number of runs of the experiment.
    fn runs(self, options: &TreeOptions) -> u64 {
        match self {
            TreeExperiment::Mix => options.systems.len() as u64,
            TreeExperiment::Successors => successors::SUCCESSORS_RUNS,
            TreeExperiment::Counts => costs::COUNTS_RUNS,
            TreeExperiment::Locks => costs::LOCKS_RUNS,
            TreeExperiment::Messages => costs::MESSAGES_RUNS,
            TreeExperiment::Ablation => ratios::ABLATION_RUNS,
            TreeExperiment::Paper => ratios::PAPER_RUNS,
            TreeExperiment::Ranges => ratios::RANGES_RUNS,
            TreeExperiment::Scale => sweeps::SCALE_RUNS,
            TreeExperiment::Keys => sweeps::KEYS_RUNS,
            TreeExperiment::Caches => sweeps::CACHES_RUNS,
            TreeExperiment::Causes => sensitivity::RUNS,
            TreeExperiment::HeldOut => HELD_OUT.iter().map(|part| part.runs(options)).sum(),
            TreeExperiment::Published => PUBLISHED.iter().map(|part| part.runs(options)).sum(),
        }
    }

    fn run(self, bench: &mut TreeBench<'_>) -> Result<(), Error> {
        match self {
            TreeExperiment::Mix => mix(bench),
            TreeExperiment::Successors => successors::successors(bench),
            TreeExperiment::Counts => costs::counts(bench),
            TreeExperiment::Locks => costs::locks(bench),
            TreeExperiment::Messages => costs::messages(bench),
            TreeExperiment::Ablation => ratios::ablation(bench),
            TreeExperiment::Paper => ratios::paper(bench),
            TreeExperiment::Ranges => ratios::ranges(bench),
            TreeExperiment::Scale => sweeps::scale(bench),
            TreeExperiment::Keys => sweeps::keys(bench),
            TreeExperiment::Caches => sweeps::caches(bench),
            TreeExperiment::Causes => sensitivity::causes(bench),
            TreeExperiment::HeldOut => {
                for part in HELD_OUT {
                    part.run(bench)?;
                }
                bench.show(share_near(bench.report.figures.iter()));
                Ok(())
            }
            TreeExperiment::Published => PUBLISHED.iter().try_for_each(|part| part.run(bench)),
        }
    }
}

const HELD_OUT: [TreeExperiment; 6] = [
    TreeExperiment::Ablation,
    TreeExperiment::Paper,
    TreeExperiment::Ranges,
    TreeExperiment::Scale,
    TreeExperiment::Keys,
    TreeExperiment::Caches,
];

const PUBLISHED: [TreeExperiment; 4] = [
    TreeExperiment::Locks,
    TreeExperiment::Messages,
    TreeExperiment::Counts,
    TreeExperiment::HeldOut,
];

/// Runs the experiment.
///
/// # Errors
/// An operation failed, or `watch` stopped the run.
pub fn run(options: &TreeOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut bench = TreeBench::new(options, options.experiment.runs(options), watch);
    options.experiment.run(&mut bench)?;
    Ok(bench.into_report())
}

fn mix(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let options = bench.options;
    for system in &options.systems {
        let setup = options.setup(system.config(), options.mix, options.theta);
        let outcome = bench.run(system.name(), &setup)?;
        describe(&mut bench.report, "mix", system.name(), &outcome);
        let digest = format!("{}: digest {:016x}", system.name(), outcome.digest);
        bench.report.notes.push(digest);
    }
    Ok(())
}
