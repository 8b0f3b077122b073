//! `farbank bench cache`: what the cache's arrangement costs, how often it hits, and what hot keys do.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::cache::{self, CacheExperiment, CacheOptions, HOT_ITEMS_MIN};
use serde_json::json;

use crate::Failure;
use crate::bench::{OutputForm, measure, table};

const EXAMPLES: &str = "\
Examples:
  farbank bench cache
      where Tair MDB's metadata and its lock cost what, on a model of four DIMMs
  farbank bench cache --experiment hits --memcached memcached
      hit ratios beside memcached's, at equal memory
  farbank bench cache --experiment hot
      what hot keys do to it
  farbank bench cache --workload workloads/cache-hotspot.toml
      the write hotspot found and moved, as the file says";

/// Measure the cache; an error if a bound does not hold.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct BenchCache {
    /// What is found out.
    #[arg(long, value_enum, default_value = "arrangements")]
    experiment: CacheExperimentChoice,
    /// Options from a workload file; those given here count.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Of arrangements: virtual workers.
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Of arrangements: DIMMs of the model.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=16))]
    dimms: u32,
    /// Of arrangements: nanoseconds an operation takes besides memory.
    #[arg(long, default_value_t = 300)]
    cpu_ns: u32,
    /// Items; if not given 2,000,000 of hits, 200,000 of the others. Of hot 10,000 at least.
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(1000..=100_000_000))]
    items: Option<u64>,
    /// Bytes of a value; of hits on average.
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u64).range(8..=100_000))]
    value_bytes: u64,
    /// Of hits: requests of a run. Of hot: operations of a round.
    #[arg(long, default_value_t = 4_000_000, value_parser = value_parser!(u64).range(1000..))]
    requests: u64,
    /// Of hits and hot: MiB each cache has.
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(8..=16_384))]
    mib: u64,
    /// Of hits: memcached's program, to be asked the same.
    #[arg(long, value_name = "PROGRAM")]
    memcached: Option<PathBuf>,
    /// Decides what chance decides.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CacheExperimentChoice {
    /// Writes on the model: metadata far, padded, in DRAM; pages made ready in the lock or outside.
    Arrangements,
    /// How often a read finds its item, beside memcached.
    Hits,
    /// What skew does to throughput, and how many writes a batch merges.
    Hot,
}

impl BenchCache {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let options = CacheOptions {
            experiment: match self.experiment {
                CacheExperimentChoice::Arrangements => CacheExperiment::Arrangements,
                CacheExperimentChoice::Hits => CacheExperiment::Hits,
                CacheExperimentChoice::Hot => CacheExperiment::Hot,
            },
            threads: self.threads,
            dimms: self.dimms,
            cpu_ns: self.cpu_ns,
            items: self.items.unwrap_or(match self.experiment {
                CacheExperimentChoice::Hits => 2_000_000,
                CacheExperimentChoice::Arrangements | CacheExperimentChoice::Hot => 200_000,
            }),
            value_bytes: self.value_bytes as usize,
            requests: self.requests,
            mib: self.mib,
            memcached: self.memcached,
            seed: self.seed,
        };
        if options.experiment == CacheExperiment::Hot && options.items < HOT_ITEMS_MIN {
            return Err(Failure::Usage(format!(
                "--experiment hot: one key in {HOT_ITEMS_MIN} is hot; ask for -n {HOT_ITEMS_MIN} at least"
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
