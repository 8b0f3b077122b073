//! `farbank bench cache`: the cost of the cache's memory layout, its hit ratio, and its behaviour with hot keys.

use std::path::PathBuf;

use clap::{Args, value_parser};
use farbank_bench::cache::{self, CacheExperiment, CacheOptions, HOT_ITEMS_MIN};
use serde_json::json;

use super::report::{OutputForm, measure, table};
use crate::common::Failure;
use crate::common::choice::experiment;

const EXAMPLES: &str = "\
Examples:
  farbank bench cache
      the cost of the placement of Tair MDB's metadata and of its lock, on a model with four DIMMs
  farbank bench cache --experiment hits --memcached memcached
      hit ratios compared with memcached's, with equal memory
  farbank bench cache --experiment hot
      throughput with hot keys
  farbank bench cache --workload workloads/cache-hotspot.toml
      the options of a workload file: a write hotspot is detected and moved";

/// Benchmark the cache; fails if a bound does not hold.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct BenchCache {
    /// Experiment to run.
    #[arg(long, default_value = "arrangements", value_parser = experiment::<CacheExperiment>())]
    experiment: CacheExperiment,
    /// TOML file of options: keys are option names without dashes, plus `bench` and `question`. Options on the
    /// command line override it. See workloads/.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// For arrangements: number of virtual workers.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=256))]
    threads: u32,
    /// For arrangements: number of DIMMs of the model.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=16))]
    dimms: u32,
    /// For arrangements: CPU time of an operation in nanoseconds, without memory accesses.
    #[arg(long, default_value_t = 300)]
    cpu_ns: u32,
    /// Number of items. Default: 2,000,000 for hits, 200,000 otherwise. At least 10,000 for hot.
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(1000..=100_000_000))]
    items: Option<u64>,
    /// Bytes of a value; for hits the average.
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u64).range(8..=100_000))]
    value_bytes: u64,
    /// For hits: requests of a run. For hot: operations of a round.
    #[arg(long, default_value_t = 4_000_000, value_parser = value_parser!(u64).range(1000..))]
    requests: u64,
    /// For hits and hot: memory of each cache in MiB.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(8..=16_384))]
    mib: u64,
    /// For hits: path of the memcached binary, which gets the same requests.
    #[arg(long, value_name = "PROGRAM")]
    memcached: Option<PathBuf>,
    /// Seed of the random number generator.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

impl BenchCache {
    pub(super) fn run(self) -> Result<(), Failure> {
        let options = CacheOptions {
            experiment: self.experiment,
            threads: self.threads,
            dimms: self.dimms,
            cpu_ns: self.cpu_ns,
            items: self.items.unwrap_or(match self.experiment {
                CacheExperiment::Hits => 2_000_000,
                CacheExperiment::Arrangements | CacheExperiment::Hot => 200_000,
            }),
            value_bytes: self.value_bytes as usize,
            requests: self.requests,
            mib: self.mib,
            memcached: self.memcached,
            seed: self.seed,
        };
        if options.experiment == CacheExperiment::Hot && options.items < HOT_ITEMS_MIN {
            return Err(Failure::Usage(format!(
                "--experiment hot has one hot key in {HOT_ITEMS_MIN}, so -n must be at least {HOT_ITEMS_MIN}"
            )));
        }
        let settings = json!({
            "items": options.items, "value_bytes": options.value_bytes, "threads": options.threads,
            "dimms": options.dimms, "cpu_ns": options.cpu_ns, "requests": options.requests, "mib": options.mib,
            "seed": options.seed, "workload": self.workload,
        });
        measure(
            "cache",
            settings,
            &OutputForm::json(self.json),
            table,
            |watch| cache::run(&options, watch),
        )
    }
}
