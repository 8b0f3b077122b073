//! `farbank bench kv`: measures the engine alone, without a server.

use std::path::PathBuf;

use clap::{Args, value_parser};
use farbank_bench::kv::{KvExperiment, UpdatePattern};
use farbank_bench::{kv, modelled};
use farbank_kv::POOL_BYTES_MAX;
use serde_json::json;

use super::report::{OutputForm, measure, table};
use crate::common::choice::{described, experiment};
use crate::common::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank bench kv --experiment all
      all figures of the engine, in about three minutes and 1 GiB of memory
  farbank bench kv --experiment amplification --size 1gb
      write amplification of the medium, on a larger pool
  farbank bench kv --experiment reopen --keys 20000000 --medium /mnt/pmem0/bench.pool
      time to open a pool with 20 million keys on persistent memory; the file is removed afterwards
  farbank bench kv --workload workloads/updates-hot.toml
      the options of a workload file: the cost of hot keys
  farbank bench kv --medium sim --workers 1,8,32
      accesses to persistent memory, counted, and the throughput on the model of it";

/// Benchmark the engine alone, without a server.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct BenchKv {
    /// TOML file of options: keys are option names without dashes, plus `bench` and `question`. Options on the
    /// command line override it. See workloads/.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Experiment to run.
    #[arg(long, default_value = "all", value_parser = experiment::<KvExperiment>())]
    experiment: KvExperiment,
    /// Medium of the pools. dram: memory of this process (for reopen a file in /dev/shm). PATH: a file that must not
    /// exist yet and is removed afterwards. sim: the model of persistent memory, which has an experiment of its own.
    #[arg(long, value_name = "dram|sim|PATH", default_value = "dram", value_parser = medium)]
    medium: BenchMedium,
    /// Keys that are loaded, and that a reopen recovers; on sim also operations per run. Default: 5,000,000, or
    /// 200,000 on sim.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(100..=1_000_000_000))]
    keys: Option<u64>,
    /// For amplification: size of the pool.
    #[arg(long, value_name = "BYTES", default_value = "128mb", value_parser = size::parse)]
    size: u64,
    /// For amplification: pattern of the updates.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "uniform,hot,sizes",
        value_parser = described(&UpdatePattern::ALL, UpdatePattern::name, UpdatePattern::summary)
    )]
    updates: Vec<UpdatePattern>,
    /// On sim: numbers of virtual workers, with one run for each.
    #[arg(long, value_name = "N,N,...", default_value = "1,2,4,8,16,32", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=256))]
    workers: Vec<u16>,
    /// On sim: number of DIMMs.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = value_parser!(u32).range(1..=64))]
    dimms: u32,
    /// On sim: CPU time of an operation in nanoseconds, without far-memory accesses.
    #[arg(long, value_name = "NS", default_value_t = 100)]
    cpu_ns: u32,
    /// On sim: seed of the random number generator. The same seed gives the same digest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    show: OutputForm,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum BenchMedium {
    Real(kv::PoolPlace),
    Sim,
}

fn medium(text: &str) -> Result<BenchMedium, String> {
    match text {
        "" => Err("the path must not be empty".into()),
        "sim" => Ok(BenchMedium::Sim),
        "dram" => Ok(BenchMedium::Real(kv::PoolPlace::Dram)),
        path => Ok(BenchMedium::Real(kv::PoolPlace::File(path.into()))),
    }
}

impl BenchKv {
    /// Runs the subcommand.
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.medium.clone() {
            BenchMedium::Real(place) => self.run_on(place),
            BenchMedium::Sim => self.run_modelled(),
        }
    }

    fn run_modelled(self) -> Result<(), Failure> {
        let options = modelled::ModelledOptions {
            keys: self.keys.unwrap_or(200_000),
            workers: self.workers.into_iter().map(usize::from).collect(),
            dimms: self.dimms,
            seed: self.seed,
            cpu_ns: self.cpu_ns,
        };
        let settings = json!({
            "medium": "sim", "keys": options.keys, "workers": options.workers,
            "dimms": options.dimms, "seed": options.seed, "cpu_ns": options.cpu_ns,
        });
        measure("kv", settings, &self.show, table, |watch| {
            modelled::run(&options, watch)
        })
    }

    fn run_on(self, place: kv::PoolPlace) -> Result<(), Failure> {
        if self.size < kv::POOL_BYTES_MIN {
            let least = size::human(kv::POOL_BYTES_MIN);
            return Err(Failure::Usage(format!("--size must be at least {least}")));
        }
        if self.size > POOL_BYTES_MAX {
            let most = size::human(POOL_BYTES_MAX);
            return Err(Failure::Usage(format!("--size must be at most {most}")));
        }
        let options = kv::KvOptions {
            experiment: self.experiment,
            place,
            keys: self.keys.unwrap_or(5_000_000),
            pool_bytes: self.size,
            updates: self.updates,
        };
        let settings = json!({
            "workload": self.workload, "keys": options.keys, "size": options.pool_bytes,
        });
        measure("kv", settings, &self.show, table, |watch| {
            kv::run(&options, watch)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_is_dram_sim_or_a_path() {
        let file = |path: &str| Ok(BenchMedium::Real(kv::PoolPlace::File(path.into())));
        assert_eq!(medium("dram"), Ok(BenchMedium::Real(kv::PoolPlace::Dram)));
        assert_eq!(medium("sim"), Ok(BenchMedium::Sim));
        assert_eq!(medium("./sim"), file("./sim"));
        assert!(medium("").is_err());
    }
}
