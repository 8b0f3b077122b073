//! `farbank bench tree`: the tree and its baselines in the paper's rack, in virtual time.

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::tree::{self, TreeMix, TreeSystem};
use serde_json::json;

use crate::bench::{OutputForm, measure, table};
use crate::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank bench tree
      Sherman and FG+, half inserts and half lookups at a skew of 0.99: eight servers, 176 clients
  farbank bench tree --experiment counts --entries 10000000
      round trips, retries and sizes as the paper counts them
  farbank bench tree --experiment locks
      locks alone, in host memory and on chip: what the simulated rack was calibrated on
  farbank bench tree --experiment messages
      throughput by the size of messages: the other half of the calibration
  farbank bench tree --experiment held-out --json
      every published ratio beside the one found here (minutes); one JSON object on the last line
  farbank bench tree --experiment published --markdown
      every value the paper gives, scored, as a table for a document
  farbank bench tree --experiment causes
      what would explain those that are not near
  farbank bench tree --system sherman,fg+ --mix range-write --range 1000 --coroutines 3
      half of 528 clients insert, the other half ask for ranges of 1000
  farbank bench tree --system fg --skew 0 --key-bytes 64 --cache 1mb --entries 200000
      another tree, rack and load";

/// Run Sherman and its baselines on a simulated rack.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchTree {
    /// What is found out.
    #[arg(long, value_enum, default_value = "mix")]
    experiment: TreeExperimentChoice,
    /// What memory servers are reached over: sim, a rack in virtual time.
    #[arg(long, value_enum, default_value = "sim")]
    fabric: FabricChoice,
    /// For mix: the systems, one after another.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "sherman,sherman-published,fg+"
    )]
    system: Vec<SystemChoice>,
    /// For mix: what clients do.
    #[arg(long, value_enum, default_value = "write-intensive")]
    mix: MixChoice,
    /// For mix: how uneven the keys are, 0 (even) to 0.99.
    #[arg(long, value_name = "0..0.99", default_value = "0.99", value_parser = skew)]
    skew: f64,
    /// For mix: entries that a range query asks for.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    range: u32,
    /// Compute servers, and memory servers, which share their cards.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Threads of each compute server.
    #[arg(long, value_name = "N", default_value_t = 22, value_parser = value_parser!(u16).range(1..=128))]
    threads: u16,
    /// Clients of each thread, which take turns on it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=7))]
    coroutines: u16,
    /// Entries of the tree at the start.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1_000..=200_000_000))]
    entries: u64,
    /// Bytes of a key.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(8..=1024))]
    key_bytes: u16,
    /// Bytes of internal nodes that each compute server may keep; if not given, in proportion to the paper's 500
    /// MiB for 800 million entries.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    cache: Option<u64>,
    /// Virtual microseconds that are measured; where nothing is fought over a fifth of that.
    #[arg(long, value_name = "US", default_value_t = 40_000, value_parser = value_parser!(u64).range(100..=10_000_000))]
    window_us: u64,
    /// Decides everything that chance decides: the same seed gives the same digest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    show: OutputForm,
}

#[derive(Clone, Copy, ValueEnum)]
enum TreeExperimentChoice {
    /// Systems under one mix and skew.
    Mix,
    /// What operations cost, with the bounds that the paper's counts give.
    Counts,
    /// Locks alone: the calibration.
    Locks,
    /// Throughput by the size of messages: the calibration.
    Messages,
    /// From FG+ to Sherman, one technique after another.
    Ablation,
    /// The paper's mixes.
    Paper,
    /// Range queries.
    Ranges,
    /// 16 to 528 clients.
    Scale,
    /// Keys of 16 bytes to 1 KiB.
    Keys,
    /// Index caches of a fifth to all of the paper's.
    Caches,
    /// Ablation, paper, ranges, scale, keys and caches, and how much of them is near.
    HeldOut,
    /// Locks, messages, counts and held-out: every published value, scored.
    Published,
    /// The rack with one thing changed: why what is not near is not.
    Causes,
}

#[derive(Clone, Copy, ValueEnum)]
enum FabricChoice {
    Sim,
}

#[derive(Clone, Copy, ValueEnum)]
enum SystemChoice {
    /// Sherman on the layout with a version in each line.
    Sherman,
    /// Sherman on the published layout.
    ShermanPublished,
    /// Its baseline.
    #[value(name = "fg+")]
    FgPlus,
    /// The baseline without a cache.
    Fg,
}

#[derive(Clone, Copy, ValueEnum)]
enum MixChoice {
    WriteOnly,
    WriteIntensive,
    ReadIntensive,
    RangeOnly,
    RangeWrite,
}

fn skew(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(theta) if (0.0..=0.99).contains(&theta) => Ok(theta),
        _ => Err("a skew is a number from 0 to 0.99".into()),
    }
}

impl BenchTree {
    /// Runs it.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let FabricChoice::Sim = self.fabric;
        let mix = match self.mix {
            MixChoice::WriteOnly => TreeMix::WRITE_ONLY,
            MixChoice::WriteIntensive => TreeMix::WRITE_INTENSIVE,
            MixChoice::ReadIntensive => TreeMix::READ_INTENSIVE,
            MixChoice::RangeOnly => TreeMix::RANGE_ONLY,
            MixChoice::RangeWrite => TreeMix::RANGE_WRITE,
        };
        let systems = self.system.iter().map(|system| match system {
            SystemChoice::Sherman => TreeSystem::Sherman,
            SystemChoice::ShermanPublished => TreeSystem::ShermanPublished,
            SystemChoice::FgPlus => TreeSystem::FgPlus,
            SystemChoice::Fg => TreeSystem::Fg,
        });
        let options = tree::TreeOptions {
            experiment: match self.experiment {
                TreeExperimentChoice::Mix => tree::TreeExperiment::Mix,
                TreeExperimentChoice::Counts => tree::TreeExperiment::Counts,
                TreeExperimentChoice::Locks => tree::TreeExperiment::Locks,
                TreeExperimentChoice::Messages => tree::TreeExperiment::Messages,
                TreeExperimentChoice::Ablation => tree::TreeExperiment::Ablation,
                TreeExperimentChoice::Paper => tree::TreeExperiment::Paper,
                TreeExperimentChoice::Ranges => tree::TreeExperiment::Ranges,
                TreeExperimentChoice::Scale => tree::TreeExperiment::Scale,
                TreeExperimentChoice::Keys => tree::TreeExperiment::Keys,
                TreeExperimentChoice::Caches => tree::TreeExperiment::Caches,
                TreeExperimentChoice::HeldOut => tree::TreeExperiment::HeldOut,
                TreeExperimentChoice::Published => tree::TreeExperiment::Published,
                TreeExperimentChoice::Causes => tree::TreeExperiment::Causes,
            },
            systems: systems.collect(),
            mix: TreeMix {
                range_len: self.range as usize,
                ..mix
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
            "fabric": "sim", "mix": mix.name, "skew": self.skew, "servers": self.servers,
            "clients": self.servers * self.threads * self.coroutines, "entries": self.entries,
            "key_bytes": self.key_bytes, "window_us": self.window_us, "seed": self.seed,
        });
        measure("tree", settings, &self.show, table, |watch| {
            tree::run(&options, watch)
        })
    }
}
