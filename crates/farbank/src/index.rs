//! `farbank bench index`: the persistent hash indexes beside each other.

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::index::keys::Distribution;
use farbank_bench::index::{self, Experiment, Options, Ratios};
use farbank_index::registry::{Preset, Table};
use serde_json::json;

use crate::Failure;
use crate::bench::{measure, table};

const EXAMPLES: &str = "\
Examples:
  farbank bench index
      inserts, lookups that find and that do not, deletes, of every table
  farbank bench index --experiment counts -n 2000000
      flushes, fences and bytes an operation, exactly
  farbank bench index --experiment mix -r 0.8 -i 0.2 --distribution zipfian --skew 0.99 -t 2
      four lookups to an insert, on PiBench's ids
  farbank bench index --experiment recovery -n 16000000 --json
      how long until the first answer after a kill; one JSON object on the last line";

/// Run persistent hash indexes: PiBench's options, and the study's experiments.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchIndex {
    /// What is found out.
    #[arg(long, value_enum, default_value = "throughput")]
    experiment: ExperimentChoice,
    /// The tables, one after another; all if not given.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    target: Vec<Table>,
    /// Ours, or as published as far as that is a matter of parameters.
    #[arg(long, value_enum, default_value = "farbank")]
    preset: PresetChoice,
    /// Keys that are loaded.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    records: u64,
    /// For mix: operations.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    operations: u64,
    /// Threads.
    #[arg(short = 't', long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100))]
    threads: u32,
    /// Slots of a new table, as far as its parts allow.
    #[arg(short = 'S', long, value_name = "N", default_value_t = 65_536, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    hash_size: u64,
    /// For mix: share of lookups. The shares add up to 1.
    #[arg(short = 'r', long, value_name = "SHARE", default_value_t = 1.0)]
    read_ratio: f64,
    /// For mix: share of inserts of new keys.
    #[arg(short = 'i', long, value_name = "SHARE", default_value_t = 0.0)]
    insert_ratio: f64,
    /// For mix: share of updates.
    #[arg(short = 'u', long, value_name = "SHARE", default_value_t = 0.0)]
    update_ratio: f64,
    /// For mix: share of removals.
    #[arg(short = 'd', long, value_name = "SHARE", default_value_t = 0.0)]
    remove_ratio: f64,
    /// For mix: how ids are drawn.
    #[arg(long, value_enum, default_value = "uniform", ignore_case = true)]
    distribution: DistributionChoice,
    /// For mix: of selfsimilar, the share of ids that is drawn most; of zipfian, the exponent.
    #[arg(long, value_name = "SKEW", default_value_t = 0.2)]
    skew: f64,
    /// For mix: what the draws start from.
    #[arg(long, value_name = "N", default_value_t = 1729)]
    seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExperimentChoice {
    /// Millions of operations a second, and how long one takes.
    Throughput,
    /// One mix of operations, on ids that PiBench draws.
    Mix,
    /// Flushes, fences and bytes an operation.
    Counts,
    /// Load factor and utilisation while a table grows.
    LoadFactor,
    /// Milliseconds to the first answer after a kill.
    Recovery,
}

#[derive(Clone, Copy, ValueEnum)]
enum PresetChoice {
    Farbank,
    Published,
}

#[derive(Clone, Copy, ValueEnum)]
enum DistributionChoice {
    Uniform,
    Selfsimilar,
    Zipfian,
}

impl BenchIndex {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let options = self.options()?;
        let settings = json!({
            "tables": options.tables.iter().map(|table| table.name()).collect::<Vec<_>>(),
            "records": options.records, "operations": options.operations,
            "threads": options.threads, "slots": options.slots, "seed": options.seed,
        });
        measure("index", settings, self.json, table, |watch| {
            index::run(&options, watch)
        })
    }

    fn options(&self) -> Result<Options, Failure> {
        let ratios = Ratios {
            read: self.read_ratio,
            insert: self.insert_ratio,
            update: self.update_ratio,
            remove: self.remove_ratio,
        };
        let shares = [ratios.read, ratios.insert, ratios.update, ratios.remove];
        let sum: f64 = shares.iter().sum();
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) || (sum - 1.0).abs() > 1e-6 {
            return Err(Failure::Usage(format!(
                "the shares -r, -i, -u and -d add up to {sum}, and should to 1, none of them negative"
            )));
        }
        if !(self.skew > 0.0 && self.skew < 1.0) {
            let skew = self.skew;
            return Err(Failure::Usage(format!(
                "--skew {skew}: it is between 0 and 1"
            )));
        }
        Ok(Options {
            experiment: match self.experiment {
                ExperimentChoice::Throughput => Experiment::Throughput,
                ExperimentChoice::Mix => Experiment::Mix,
                ExperimentChoice::Counts => Experiment::Counts,
                ExperimentChoice::LoadFactor => Experiment::LoadFactor,
                ExperimentChoice::Recovery => Experiment::Recovery,
            },
            tables: match self.target.as_slice() {
                [] => Table::ALL.to_vec(),
                some => some.to_vec(),
            },
            preset: match self.preset {
                PresetChoice::Farbank => Preset::Farbank,
                PresetChoice::Published => Preset::Published,
            },
            records: self.records,
            operations: self.operations,
            threads: self.threads,
            slots: self.hash_size,
            ratios,
            distribution: match self.distribution {
                DistributionChoice::Uniform => Distribution::Uniform,
                DistributionChoice::Selfsimilar => Distribution::SelfSimilar(self.skew),
                DistributionChoice::Zipfian => Distribution::Zipfian(self.skew),
            },
            seed: self.seed,
        })
    }
}
