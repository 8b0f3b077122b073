//! `farbank bench tree`: runs the Sherman tree and its baselines on a simulated cluster like the paper's, in virtual
//! time; with `--fabric tcp` or `--fabric shm`, over TCP or shared memory in real time.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::tree::measured::{self, MeasuredFabric, MeasuredOptions, ServerChoice};
use farbank_bench::tree::{self, TreeExperiment, TreeMix, TreeSystem};
use farbank_fabric::shm::ServerAddress;
use farbank_fabric::tcp::WaitMode;
use serde_json::json;

use super::report::{OutputForm, measure, table};
use crate::common::choice::{described, experiment, one_of};
use crate::common::{Failure, read_key, size};

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
  farbank bench tree --fabric tcp --mix ycsb-a
      measured over TCP on this machine: two memory servers, one compute server of eight clients
  farbank bench tree --fabric tcp --servers 1 --threads 2 --coroutines 32 --mix read-intensive --wait spin
      more clients, whose threads do not sleep while they wait
  farbank bench tree --fabric shm --threads 2 --mix ycsb-b
      measured over shared memory: one compute server of two threads
  farbank bench tree --fabric libfabric --mix ycsb-b
      measured over libfabric's provider tcp;ofi_rxm, for programs built with it
  farbank bench tree --fabric tcp --memory-servers 10.0.0.1:7411,10.0.0.2:7411 --key-file key --system sherman
      measured over the network, on memory servers of other hosts
  farbank bench tree --system fg --skew 0 --key-bytes 64 --cache 1mb --entries 200000
      a different tree, cluster and load";

/// Benchmark Sherman and its baselines on a simulated cluster.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchTree {
    /// Experiment to run.
    #[arg(long, default_value = "mix", value_parser = experiment::<TreeExperiment>())]
    experiment: TreeExperiment,
    /// Network between compute and memory servers.
    #[arg(long, value_enum, default_value = "sim")]
    fabric: FabricChoice,
    /// For mix: systems to measure, one after another. Default: sherman,sherman-published,fg+; measured: sherman,fg+.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = described(&TreeSystem::ALL, TreeSystem::option_name, TreeSystem::summary)
    )]
    system: Vec<TreeSystem>,
    /// For mix and successors: operations of the clients.
    #[arg(long, default_value = "write-intensive", value_parser = one_of(&TreeMix::ALL, |mix| mix.name))]
    mix: TreeMix,
    /// For mix and successors: Zipfian skew of the keys, from 0 (uniform) to 0.99.
    #[arg(long, value_name = "0..0.99", default_value = "0.99", value_parser = skew)]
    skew: f64,
    /// For mix and successors: entries that a range query requests.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    range: u32,
    /// Number of compute servers and of memory servers. A compute server and a memory server share a NIC. Default: 8.
    /// Measured, number of memory servers. Default: 2.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=64))]
    servers: Option<u16>,
    /// Measured: memory servers that run already, in the order of their numbers, with new memory: IP:PORT, shm:FILE or libfabric:IP:PORT. They
    /// get the tree of one system. Default: threads of this process.
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        conflicts_with = "servers",
        requires = "key_file"
    )]
    memory_servers: Vec<ServerAddress>,
    /// Key of --memory-servers.
    #[arg(long, value_name = "FILE", requires = "memory_servers")]
    key_file: Option<PathBuf>,
    /// Threads of each compute server. Default: 22; measured, 1.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=128))]
    threads: Option<u16>,
    /// Measured: number of compute servers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=16))]
    compute_servers: u16,
    /// Clients per thread, which run as coroutines: at most 7 in the simulated cluster. Default: 1; measured, 8.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=256))]
    coroutines: Option<u16>,
    /// Number of entries in the tree at the start. Default: 1000000; measured, 100000.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1_000..=200_000_000))]
    entries: Option<u64>,
    /// Bytes of a key.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(8..=1024))]
    key_bytes: u16,
    /// Bytes of internal nodes that each compute server may cache. Default: in proportion to the paper's 500 MiB for
    /// 800 million entries; measured, 64 MiB.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    cache: Option<u64>,
    /// Length of the measured window in virtual microseconds; one fifth of it for runs without contention. Default: 40000.
    /// Measured, in real microseconds. Default: 2000000.
    #[arg(long, value_name = "US", value_parser = value_parser!(u64).range(100..=600_000_000))]
    window_us: Option<u64>,
    /// Measured: how clients and servers wait for the network.
    #[arg(long, value_enum, default_value = "block")]
    wait: WaitChoice,
    /// Seed of the random number generator. The same seed gives the same digest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    show: OutputForm,
}

#[derive(Clone, Copy, ValueEnum)]
enum FabricChoice {
    /// A simulated cluster in virtual time.
    Sim,
    /// TCP in real time, by default over loopback with the memory servers in threads of this process.
    Tcp,
    /// Shared memory in real time, by default with the memory servers in threads of this process.
    Shm,
    /// libfabric in real time, by default over loopback with the memory servers in threads of this process. Only in programs that
    /// were built with the feature libfabric.
    Libfabric,
}

#[derive(Clone, Copy, ValueEnum)]
enum WaitChoice {
    /// Threads sleep until data arrives.
    Block,
    /// Threads poll: lower latency if each has a CPU of its own.
    Spin,
}

/// Maximum number of clients per thread of the simulated cluster.
const SIM_COROUTINES_MAX: u16 = 7;
/// Maximum window in the simulated cluster, in microseconds.
const SIM_WINDOW_US_MAX: u64 = 10_000_000;

/// Systems that are simulated by default.
const SIM_SYSTEMS: [TreeSystem; 3] = [
    TreeSystem::Sherman,
    TreeSystem::ShermanPublished,
    TreeSystem::FgPlus,
];

fn skew(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(theta) if (0.0..=0.99).contains(&theta) => Ok(theta),
        _ => Err("a skew must be a number from 0 to 0.99".into()),
    }
}

impl BenchTree {
    /// Runs the subcommand.
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.fabric {
            FabricChoice::Sim => self.simulate(),
            FabricChoice::Tcp => self.measure(MeasuredFabric::Tcp),
            FabricChoice::Shm => self.measure(MeasuredFabric::Shm),
            #[cfg(feature = "libfabric")]
            FabricChoice::Libfabric => self.measure(MeasuredFabric::Libfabric),
            #[cfg(not(feature = "libfabric"))]
            FabricChoice::Libfabric => {
                let text = "--fabric libfabric: this program was built without libfabric; build it with `--features libfabric`";
                Err(Failure::Usage(text.into()))
            }
        }
    }

    fn simulate(self) -> Result<(), Failure> {
        if !self.memory_servers.is_empty() {
            let text = "--memory-servers needs --fabric tcp, shm or libfabric";
            return Err(Failure::Usage(text.into()));
        }
        let options = tree::TreeOptions {
            experiment: self.experiment,
            systems: match self.system.is_empty() {
                true => SIM_SYSTEMS.to_vec(),
                false => self.system,
            },
            mix: self.mix.with_range(self.range as usize),
            theta: self.skew,
            servers: self.servers.unwrap_or(8),
            threads: self.threads.unwrap_or(22),
            coroutines: self.coroutines.unwrap_or(1),
            entries: self.entries.unwrap_or(1_000_000),
            key_bytes: self.key_bytes.into(),
            cache_bytes: self.cache.map(|bytes| bytes as usize),
            window_us: self.window_us.unwrap_or(40_000),
            seed: self.seed,
        };
        if options.coroutines > SIM_COROUTINES_MAX || options.window_us > SIM_WINDOW_US_MAX {
            return Err(Failure::Usage(format!(
                "the simulated cluster has at most {SIM_COROUTINES_MAX} coroutines per thread and a window of at most \
                 {SIM_WINDOW_US_MAX} us"
            )));
        }
        let settings = json!({
            "fabric": "sim", "mix": options.mix.name, "skew": options.theta, "servers": options.servers,
            "clients": options.servers * options.threads * options.coroutines, "entries": options.entries,
            "key_bytes": options.key_bytes, "window_us": options.window_us, "seed": options.seed,
        });
        measure("tree", settings, &self.show, table, |watch| {
            tree::run(&options, watch)
        })
    }

    /// Returns the memory servers of a measured run.
    fn server_choice(&self, fabric: MeasuredFabric) -> Result<ServerChoice, Failure> {
        let Some(key_file) = &self.key_file else {
            return Ok(ServerChoice::Threads(self.servers.unwrap_or(2)));
        };
        let other = |address: &&ServerAddress| match address {
            ServerAddress::Tcp(_) => fabric != MeasuredFabric::Tcp,
            ServerAddress::Shm(_) => fabric != MeasuredFabric::Shm,
            ServerAddress::Libfabric(_) => fabric.name() != "libfabric",
            ServerAddress::Left => true,
        };
        if let Some(address) = self.memory_servers.iter().find(other) {
            let name = fabric.name();
            return Err(Failure::Usage(format!(
                "--memory-servers: {address} is not reached with --fabric {name}"
            )));
        }
        if self.system.len() != 1 {
            let text = "--memory-servers get the tree of one system: give one --system";
            return Err(Failure::Usage(text.into()));
        }
        Ok(ServerChoice::Running {
            addresses: self.memory_servers.clone(),
            key: read_key(key_file)?,
        })
    }

    fn measure(self, fabric: MeasuredFabric) -> Result<(), Failure> {
        if self.system.contains(&TreeSystem::ShermanPublished) {
            let name = fabric.name();
            return Err(Failure::Usage(format!(
                "sherman-published has no effect with --fabric {name}: there, nodes have checksums"
            )));
        }
        let window_us = self.window_us.unwrap_or(2_000_000);
        let servers = self.server_choice(fabric)?;
        let count = match &servers {
            ServerChoice::Threads(count) => usize::from(*count),
            ServerChoice::Running { addresses, .. } => addresses.len(),
        };
        let options = MeasuredOptions {
            fabric,
            systems: match self.system.is_empty() {
                true => vec![TreeSystem::Sherman, TreeSystem::FgPlus],
                false => self.system,
            },
            mix: self.mix.with_range(self.range as usize),
            theta: self.skew,
            servers,
            compute_servers: self.compute_servers,
            threads: self.threads.unwrap_or(1),
            coroutines: self.coroutines.unwrap_or(8),
            entries: self.entries.unwrap_or(100_000),
            cache_bytes: self
                .cache
                .map_or(measured::CACHE_BYTES, |bytes| bytes as usize),
            window: Duration::from_micros(window_us),
            wait: match self.wait {
                WaitChoice::Block => WaitMode::Block,
                WaitChoice::Spin => WaitMode::Spin,
            },
            seed: self.seed,
        };
        let settings = json!({
            "fabric": fabric.name(), "mix": options.mix.name, "skew": options.theta, "servers": count,
            "clients": options.clients(), "entries": options.entries,
            "window_us": window_us, "seed": options.seed,
        });
        measure("tree", settings, &self.show, table, |watch| {
            measured::run(&options, watch)
        })
    }
}
