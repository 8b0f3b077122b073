//! `farbank bench tree`: runs the Sherman tree and its baselines on a simulated cluster like the paper's, in virtual
//! time.

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::tree::{self, TreeExperiment, TreeMix, TreeSystem};
use serde_json::json;

use super::report::{OutputForm, measure, table};
use crate::common::choice::{described, experiment, one_of};
use crate::common::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank bench tree
      Sherman and FG+, half inserts and half lookups at a skew of 0.99: eight servers, 176 clients
  farbank bench tree --experiment counts --entries 10000000
      round trips, retries and sizes as the paper counts them
  farbank bench tree --experiment locks
      locks alone, in host memory and in NIC memory: the measurements that calibrate the simulated cluster
  farbank bench tree --experiment messages
      throughput by message size: the other half of the calibration
  farbank bench tree --experiment held-out --json
      every published ratio and the ratio found here (takes minutes); one JSON object on the last line
  farbank bench tree --experiment published --markdown
      every value in the paper, scored, as a Markdown table
  farbank bench tree --experiment causes
      possible causes of the results that are not near the published ones
  farbank bench tree --system sherman,fg+ --mix range-write --range 1000 --coroutines 3
      half of 528 clients insert, the other half run range queries of 1000 entries
  farbank bench tree --system fg --skew 0 --key-bytes 64 --cache 1mb --entries 200000
      a different tree, cluster and load";

/// Benchmark Sherman and its baselines on a simulated cluster.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchTree {
    /// Experiment to run.
    #[arg(long, default_value = "mix", value_parser = experiment::<TreeExperiment>())]
    experiment: TreeExperiment,
    /// Network between compute and memory servers. sim: a simulated cluster in virtual time.
    #[arg(long, value_enum, default_value = "sim")]
    fabric: FabricChoice,
    /// For mix: systems to measure, one after another.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sherman,sherman-published,fg+",
        value_parser = described(&TreeSystem::ALL, TreeSystem::option_name, TreeSystem::summary)
    )]
    system: Vec<TreeSystem>,
    /// For mix: operations of the clients.
    #[arg(long, default_value = "write-intensive", value_parser = one_of(&TreeMix::ALL, |mix| mix.name))]
    mix: TreeMix,
    /// For mix: Zipfian skew of the keys, from 0 (uniform) to 0.99.
    #[arg(long, value_name = "0..0.99", default_value = "0.99", value_parser = skew)]
    skew: f64,
    /// For mix: entries that a range query requests.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    range: u32,
    /// Number of compute servers and of memory servers. A compute server and a memory server share a NIC.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Threads of each compute server.
    #[arg(long, value_name = "N", default_value_t = 22, value_parser = value_parser!(u16).range(1..=128))]
    threads: u16,
    /// Clients per thread, which run as coroutines.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=7))]
    coroutines: u16,
    /// Number of entries in the tree at the start.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1_000..=200_000_000))]
    entries: u64,
    /// Bytes of a key.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(8..=1024))]
    key_bytes: u16,
    /// Bytes of internal nodes that each compute server may cache. Default: in proportion to the paper's 500 MiB for
    /// 800 million entries.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    cache: Option<u64>,
    /// Length of the measured window in virtual microseconds; one fifth of it for runs without contention.
    #[arg(long, value_name = "US", default_value_t = 40_000, value_parser = value_parser!(u64).range(100..=10_000_000))]
    window_us: u64,
    /// Seed of the random number generator. The same seed gives the same digest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    show: OutputForm,
}

#[derive(Clone, Copy, ValueEnum)]
enum FabricChoice {
    Sim,
}

fn skew(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(theta) if (0.0..=0.99).contains(&theta) => Ok(theta),
        _ => Err("a skew must be a number from 0 to 0.99".into()),
    }
}

impl BenchTree {
    /// Runs the subcommand.
    pub(super) fn run(self) -> Result<(), Failure> {
        let FabricChoice::Sim = self.fabric;
        let options = tree::TreeOptions {
            experiment: self.experiment,
            systems: self.system,
            mix: TreeMix {
                range_len: self.range as usize,
                ..self.mix
            },
            theta: self.skew,
            servers: self.servers,
            threads: self.threads,
            coroutines: self.coroutines,
            entries: self.entries,
            key_bytes: self.key_bytes.into(),
            cache_bytes: self.cache.map(|bytes| bytes as usize),
            window_us: self.window_us,
            seed: self.seed,
        };
        let settings = json!({
            "fabric": "sim", "mix": self.mix.name, "skew": self.skew, "servers": self.servers,
            "clients": self.servers * self.threads * self.coroutines, "entries": self.entries,
            "key_bytes": self.key_bytes, "window_us": self.window_us, "seed": self.seed,
        });
        measure("tree", settings, &self.show, table, |watch| {
            tree::run(&options, watch)
        })
    }
}
