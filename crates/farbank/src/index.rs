//! `farbank bench index`: the persistent hash indexes beside each other.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::index::keys::Distribution;
use farbank_bench::index::{self, Contender, Experiment, Options, Ratios};
use farbank_index::registry::{Preset, Table};
use serde_json::json;

use crate::bench::{Show, failure, measure, table};
use crate::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank bench index
      inserts, lookups that find and that do not, deletes, of every table and of a map in DRAM
  farbank bench index --experiment counts -n 2000000
      flushes, fences and bytes an operation, exactly
  farbank bench index --experiment mix -r 0.8 -i 0.2 --distribution zipfian --skew 0.99 -t 2
      four lookups to an insert, on PiBench's ids
  farbank bench index --plugin ./fptree.so -n 1000000 -p 1000000 --output pibench
      a library written for PiBench, with PiBench's output
  farbank bench index --experiment dimms --target clht -t 16
      how the model of far memory bears a table, on one DIMM to six
  farbank bench index --experiment load-factor -n 400000 --svg load-factor.svg
      how full tables are while they grow, as a picture
  farbank bench index --workload workloads/index-reads-hot.toml
      hot keys looked up and some replaced, as the file says
  farbank bench index --experiment recovery -n 16000000 --json
      how long until the first answer after a kill; one JSON object on the last line";

/// Run persistent hash indexes: PiBench's options, and the study's experiments.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct BenchIndex {
    /// Options from a TOML file, named as here without dashes, with the `question` it answers; those given
    /// here count. See workloads/.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// What is found out.
    #[arg(long, value_enum, default_value = "throughput")]
    experiment: ExperimentChoice,
    /// Who is measured, one after another: tables, or papaya, a map in DRAM. All if not given.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',', value_parser = contender)]
    target: Vec<Contender>,
    /// A library written for PiBench, which is measured after them, or alone if there are none.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Ours, or as published as far as that is a matter of parameters.
    #[arg(long, value_enum, default_value = "farbank")]
    preset: PresetChoice,
    /// Leave out flushes and fences: what durability costs.
    #[arg(long)]
    no_flush: bool,
    /// Keys that are loaded. 1,000,000; on the model 200,000.
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    records: Option<u64>,
    /// For mix: operations.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    operations: u64,
    /// Threads; on the model virtual ones.
    #[arg(short = 't', long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100))]
    threads: u32,
    /// Slots of a new table, as far as its parts allow.
    #[arg(short = 'S', long, alias = "hash_size", value_name = "N", default_value_t = 65_536, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    hash_size: u64,
    /// Bytes of a key: 8 is what there is.
    #[arg(short = 'k', long, alias = "key_size", value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u8).range(8..=8))]
    key_size: u8,
    /// Bytes of a value: 8 is what there is.
    #[arg(short = 'v', long, alias = "value_size", value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u8).range(8..=8))]
    value_size: u8,
    /// For mix: share of lookups. The shares add up to 1.
    #[arg(
        short = 'r',
        long,
        alias = "read_ratio",
        value_name = "SHARE",
        default_value_t = 1.0
    )]
    read_ratio: f64,
    /// For mix: share of inserts of new keys.
    #[arg(
        short = 'i',
        long,
        alias = "insert_ratio",
        value_name = "SHARE",
        default_value_t = 0.0
    )]
    insert_ratio: f64,
    /// For mix: share of updates.
    #[arg(
        short = 'u',
        long,
        alias = "update_ratio",
        value_name = "SHARE",
        default_value_t = 0.0
    )]
    update_ratio: f64,
    /// For mix: share of removals.
    #[arg(
        short = 'd',
        long,
        alias = "remove_ratio",
        value_name = "SHARE",
        default_value_t = 0.0
    )]
    remove_ratio: f64,
    /// For mix: how ids are drawn.
    #[arg(long, value_enum, default_value = "uniform", ignore_case = true)]
    distribution: DistributionChoice,
    /// For mix: of selfsimilar, the share of ids that is drawn most; of zipfian, the exponent.
    #[arg(long, value_name = "SKEW", default_value_t = 0.2)]
    skew: f64,
    /// What draws start from.
    #[arg(long, value_name = "N", default_value_t = 1729)]
    seed: u64,
    /// For mix: the keys are there already, in a plug-in's pool.
    #[arg(long, alias = "skip_load")]
    skip_load: bool,
    /// For mix: share of operations that are timed.
    #[arg(
        long,
        alias = "latency_sampling",
        value_name = "SHARE",
        default_value_t = 0.01
    )]
    latency_sampling: f64,
    /// For mix: milliseconds between two looks at how far it is.
    #[arg(long, alias = "sampling_ms", value_name = "MS", default_value_t = 1000, value_parser = value_parser!(u32).range(1..))]
    sampling_ms: u32,
    /// Where a plug-in's pool is to be.
    #[arg(long, alias = "pool_path", value_name = "PATH")]
    pool_path: Option<PathBuf>,
    /// Bytes of a plug-in's pool.
    #[arg(long, alias = "pool_size", value_name = "BYTES", default_value = "0", value_parser = size::parse)]
    pool_size: u64,
    /// For load-factor and resize: draw keys with replacement, as the study did.
    #[arg(long)]
    with_replacement: bool,
    /// On the model: nanoseconds an operation takes besides far memory.
    #[arg(long, value_name = "NS", default_value_t = 50)]
    cpu_ns: u32,
    /// For mix of one index: the table of figures, or what PiBench prints.
    #[arg(long, value_enum, default_value = "table", conflicts_with_all = ["json", "svg"])]
    output: Output,
    #[command(flatten)]
    show: Show,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Pibench,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExperimentChoice {
    /// Millions of operations a second, and how long one takes.
    Throughput,
    /// How long the slowest in a hundred thousand takes.
    Latency,
    /// One mix of operations, on ids that PiBench draws.
    Mix,
    /// Flushes, fences and bytes an operation.
    Counts,
    /// Load factor and utilisation while a table grows.
    LoadFactor,
    /// How long changes of the structure take, and their share of the run.
    Resize,
    /// Milliseconds to the first answer after a kill.
    Recovery,
    /// Bytes written and read an operation on the model, by what they are for.
    Bytes,
    /// Throughput on one to six DIMMs of the model.
    Dimms,
    /// Throughput on the model, beside the memory and from the other socket.
    Numa,
    /// Which table is faster than which on the model, beside what was published.
    Orders,
    /// No table: entries written anywhere into an array of the model.
    Array,
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

fn contender(name: &str) -> Result<Contender, String> {
    if name == Contender::Papaya.name() {
        return Ok(Contender::Papaya);
    }
    let table = name.parse::<Table>();
    table
        .map(Contender::Table)
        .map_err(|why| format!("{why}, papaya"))
}

/// A share, or why it is none.
fn share(name: &str, value: f64) -> Result<f64, Failure> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(Failure::Usage(format!(
            "{name} {value}: a share is between 0 and 1"
        ))),
    }
}

impl BenchIndex {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let options = self.options()?;
        if self.output == Output::Pibench {
            if self.experiment != ExperimentChoice::Mix {
                let why = "--output pibench is for --experiment mix";
                return Err(Failure::Usage(why.into()));
            }
            print!("{}", index::pibench(&options).map_err(failure)?);
            return Ok(());
        }
        let settings = json!({
            "contenders": options.contenders.iter().map(Contender::name).collect::<Vec<_>>(),
            "records": options.records, "operations": options.operations,
            "threads": options.threads, "slots": options.slots, "seed": options.seed,
            "durable": options.durable, "workload": self.workload,
        });
        measure("index", settings, &self.show, table, |watch| {
            index::run(&options, watch)
        })
    }

    /// Whether all of them can do it, or only tables.
    fn for_anyone(&self) -> bool {
        use ExperimentChoice::{Latency, Mix, Throughput};
        matches!(self.experiment, Throughput | Latency | Mix)
    }

    fn contenders(&self) -> Result<Vec<Contender>, Failure> {
        let mut contenders = self.target.clone();
        contenders.extend(self.plugin.clone().map(Contender::Plugin));
        let other = contenders
            .iter()
            .find(|contender| !matches!(contender, Contender::Table(_)));
        if let (Some(other), false) = (other, self.for_anyone()) {
            return Err(Failure::Usage(format!(
                "{} has no such experiment: it is for tables; any can do throughput, latency and mix",
                other.name()
            )));
        }
        if contenders.is_empty() {
            // First, so that the others are told in multiples of it.
            contenders.extend(self.for_anyone().then_some(Contender::Papaya));
            contenders.extend(Table::ALL.map(Contender::Table));
        }
        Ok(contenders)
    }

    fn ratios(&self) -> Result<Ratios, Failure> {
        let ratios = Ratios {
            read: share("--read-ratio", self.read_ratio)?,
            insert: share("--insert-ratio", self.insert_ratio)?,
            update: share("--update-ratio", self.update_ratio)?,
            remove: share("--remove-ratio", self.remove_ratio)?,
        };
        let sum = ratios.read + ratios.insert + ratios.update + ratios.remove;
        match (sum - 1.0).abs() <= 1e-6 {
            true => Ok(ratios),
            false => Err(Failure::Usage(format!(
                "the shares -r, -i, -u and -d add up to {sum}, and should to 1"
            ))),
        }
    }

    fn options(&self) -> Result<Options, Failure> {
        use ExperimentChoice as Choice;
        if !(self.skew > 0.0 && self.skew < 1.0) {
            let skew = self.skew;
            return Err(Failure::Usage(format!(
                "--skew {skew}: it is between 0 and 1"
            )));
        }
        let on_model = matches!(
            self.experiment,
            Choice::Bytes | Choice::Dimms | Choice::Numa | Choice::Orders | Choice::Array
        );
        let timed = share("--latency-sampling", self.latency_sampling)?;
        Ok(Options {
            experiment: match self.experiment {
                Choice::Throughput => Experiment::Throughput,
                Choice::Latency => Experiment::Latency,
                Choice::Mix => Experiment::Mix,
                Choice::Counts => Experiment::Counts,
                Choice::LoadFactor => Experiment::LoadFactor,
                Choice::Resize => Experiment::Resize,
                Choice::Recovery => Experiment::Recovery,
                Choice::Bytes => Experiment::Bytes,
                Choice::Dimms => Experiment::Dimms,
                Choice::Numa => Experiment::Numa,
                Choice::Orders => Experiment::Orders,
                Choice::Array => Experiment::Array,
            },
            contenders: self.contenders()?,
            preset: match self.preset {
                PresetChoice::Farbank => Preset::Farbank,
                PresetChoice::Published => Preset::Published,
            },
            durable: !self.no_flush,
            records: self
                .records
                .unwrap_or(if on_model { 200_000 } else { 1_000_000 }),
            operations: self.operations,
            threads: self.threads,
            slots: self.hash_size,
            with_replacement: self.with_replacement,
            ratios: self.ratios()?,
            distribution: match self.distribution {
                DistributionChoice::Uniform => Distribution::Uniform,
                DistributionChoice::Selfsimilar => Distribution::SelfSimilar(self.skew),
                DistributionChoice::Zipfian => Distribution::Zipfian(self.skew),
            },
            seed: self.seed,
            timed_one_in: if timed > 0.0 {
                (1.0 / timed).round() as u64
            } else {
                0
            },
            sampling_ms: self.sampling_ms,
            skip_load: self.skip_load,
            pool: self.pool_path.clone().unwrap_or_default(),
            pool_bytes: self.pool_size,
            cpu_ns: self.cpu_ns,
        })
    }
}
