//! `farbank bench index`: the persistent hash indexes beside each other.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum, value_parser};
use farbank_bench::index::keys::Distribution;
use farbank_bench::index::{
    self, IndexContender, IndexExperiment, IndexOptions, KeyValueBytes, MOST_BYTES, MixRatios,
};
use farbank_index::hash::Hashing;
use farbank_index::registry::{TableKind, TablePreset};
use serde_json::json;

use crate::apart::apart;
use crate::bench::{OutputForm, failure, measure, table};
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
  farbank bench index --plugin ./fptree.so --experiment mix -r 0.5 -s 0.5 --mode time --seconds 10
      as many lookups and scans as can be done in ten seconds
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
    experiment: IndexExperimentChoice,
    /// Who is measured, one after another: tables, or papaya, a map in DRAM. All if not given.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',', value_parser = contender)]
    target: Vec<IndexContender>,
    /// A library written for PiBench or for HashEvaluation, which is measured after them, or alone if there are none, in a process
    /// of its own.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Ours, or as published as far as that is a matter of parameters. Published for bytes, dimms, numa and orders, which are
    /// compared with the study's tables; else ours.
    #[arg(long, value_enum)]
    preset: Option<PresetChoice>,
    /// The hash function of the tables: the study's, with which published figures come out again, or one with a secret seed
    /// for each table, as tables have by default.
    #[arg(long, value_enum, default_value = "published")]
    hash: HashChoice,
    /// Leave out flushes and fences: what durability costs.
    #[arg(long)]
    no_flush: bool,
    /// Keys that are loaded. 1,000,000; for tables on the model 781,250, a 256th of the study's, as 65,536 slots are of its
    /// slots.
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    records: Option<u64>,
    /// For mix: whether it ends after so many operations, or after so many seconds.
    #[arg(
        short = 'm',
        long,
        value_enum,
        default_value = "operation",
        ignore_case = true
    )]
    mode: RunMode,
    /// For mix by time: how long it lasts, in whole windows of --sampling-ms. Ids are drawn as it goes.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// For mix by operation: how many.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    operations: u64,
    /// Threads; on the model virtual ones. 1; on the model 32, as the study's.
    #[arg(short = 't', long, value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    threads: Option<u32>,
    /// Slots of a new table, as far as its parts allow.
    #[arg(short = 'S', long, alias = "hash_size", value_name = "N", default_value_t = 65_536, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    hash_size: u64,
    /// What each key begins with. Keys of tables have 8 bytes with it.
    #[arg(
        short = 'f',
        long,
        alias = "key_prefix",
        value_name = "TEXT",
        default_value = ""
    )]
    key_prefix: String,
    /// Bytes of a key after its prefix; beyond 8 it has zeros before its number.
    #[arg(short = 'k', long, alias = "key_size", value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u8).range(1..=MOST_BYTES as i64))]
    key_size: u8,
    /// Bytes of a value; those of tables have 8.
    #[arg(short = 'v', long, alias = "value_size", value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u8).range(4..=MOST_BYTES as i64))]
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
    /// For mix: share of scans, of a plug-in; tables have no order. One that finds a key has succeeded.
    #[arg(
        short = 's',
        long,
        alias = "scan_ratio",
        value_name = "SHARE",
        default_value_t = 0.0
    )]
    scan_ratio: f64,
    /// For mix: most keys that a scan finds.
    #[arg(long, alias = "scan_size", value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=1000))]
    scan_size: u32,
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
    #[arg(long, alias = "skip_load", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    skip_load: bool,
    /// PiBench's counters of Intel's processors: there are none, and false is all it can be.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
    pcm: bool,
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
    /// On the model: bytes of the processor's cache. If not given, the study's 22 MiB, as much smaller as there are fewer keys
    /// than its 200,000,000; for array 4 MiB.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    cache: Option<u64>,
    /// For mix of one index: the table of figures, or what PiBench prints.
    #[arg(long, value_enum, default_value = "table", conflicts_with_all = ["json", "svg"])]
    output: OutputFormat,
    #[command(flatten)]
    show: OutputForm,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RunMode {
    /// After --operations.
    Operation,
    /// After --seconds.
    Time,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Table,
    Pibench,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IndexExperimentChoice {
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
enum HashChoice {
    Published,
    Seeded,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DistributionChoice {
    Uniform,
    Selfsimilar,
    Zipfian,
}

fn contender(name: &str) -> Result<IndexContender, String> {
    if name == IndexContender::Papaya.name() {
        return Ok(IndexContender::Papaya);
    }
    let table = name.parse::<TableKind>();
    table
        .map(IndexContender::Table)
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

/// The first that is no plug-in: its keys and values are words, and it has no order.
fn first_of_words(contenders: &[IndexContender]) -> Option<&IndexContender> {
    let is_plugin = |contender: &&IndexContender| matches!(contender, IndexContender::Plugin(_));
    contenders.iter().find(|contender| !is_plugin(contender))
}

impl BenchIndex {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(library) = &self.plugin else {
            return self.run_here();
        };
        self.options()?; // a wrong command line needs no process
        apart(&format!("the plug-in {}", library.display()), || {
            self.run_here()
        })
    }

    fn run_here(&self) -> Result<(), Failure> {
        let options = self.options()?;
        if self.output == OutputFormat::Pibench {
            if self.experiment != IndexExperimentChoice::Mix {
                let why = "--output pibench is for --experiment mix";
                return Err(Failure::Usage(why.into()));
            }
            print!("{}", index::pibench(&options).map_err(failure)?);
            return Ok(());
        }
        let settings = json!({
            "contenders": options.contenders.iter().map(IndexContender::name).collect::<Vec<_>>(),
            "records": options.records, "operations": options.operations,
            "seconds": options.seconds, "threads": options.threads, "slots": options.slots, "seed": options.seed,
            "durable": options.durable, "workload": self.workload, "cache": options.cache_bytes,
            "preset": match options.preset {
                TablePreset::Farbank => "farbank",
                TablePreset::Published => "published",
            },
        });
        measure("index", settings, &self.show, table, |watch| {
            index::run(&options, watch)
        })
    }

    /// Whether all of them can do it, or only tables.
    fn for_anyone(&self) -> bool {
        use IndexExperimentChoice::{Latency, Mix, Throughput};
        matches!(self.experiment, Throughput | Latency | Mix)
    }

    /// Whether it runs tables on the model, beside the study's.
    fn models_tables(&self) -> bool {
        use IndexExperimentChoice::{Bytes, Dimms, Numa, Orders};
        matches!(self.experiment, Bytes | Dimms | Numa | Orders)
    }

    fn records(&self) -> u64 {
        let default = match self.models_tables() {
            true => 781_250,
            false => 1_000_000,
        };
        self.records.unwrap_or(default)
    }

    fn preset(&self) -> TablePreset {
        match (self.preset, self.models_tables()) {
            (Some(PresetChoice::Published), _) | (None, true) => TablePreset::Published,
            (Some(PresetChoice::Farbank), _) | (None, false) => TablePreset::Farbank,
        }
    }

    fn threads(&self) -> u32 {
        let on_model = self.models_tables() || self.experiment == IndexExperimentChoice::Array;
        self.threads.unwrap_or(if on_model { 32 } else { 1 })
    }

    fn contenders(&self) -> Result<Vec<IndexContender>, Failure> {
        let mut contenders = self.target.clone();
        contenders.extend(self.plugin.clone().map(IndexContender::Plugin));
        let other = contenders
            .iter()
            .find(|contender| !matches!(contender, IndexContender::Table(_)));
        if let (Some(other), false) = (other, self.for_anyone()) {
            return Err(Failure::Usage(format!(
                "{} has no such experiment: it is for tables; any can do throughput, latency and mix",
                other.name()
            )));
        }
        if contenders.is_empty() {
            // First, so that the others are told in multiples of it.
            contenders.extend(self.for_anyone().then_some(IndexContender::Papaya));
            contenders.extend(TableKind::ALL.map(IndexContender::Table));
        }
        if self.scan_ratio > 0.0
            && let Some(unordered) = first_of_words(&contenders)
        {
            return Err(Failure::Usage(format!(
                "{} has no order: --scan-ratio is for a --plugin that has one, alone",
                unordered.name()
            )));
        }
        Ok(contenders)
    }

    fn ratios(&self) -> Result<MixRatios, Failure> {
        let ratios = MixRatios {
            read: share("--read-ratio", self.read_ratio)?,
            insert: share("--insert-ratio", self.insert_ratio)?,
            update: share("--update-ratio", self.update_ratio)?,
            remove: share("--remove-ratio", self.remove_ratio)?,
            scan: share("--scan-ratio", self.scan_ratio)?,
        };
        let sum = ratios.read + ratios.insert + ratios.update + ratios.remove + ratios.scan;
        match (sum - 1.0).abs() <= 1e-6 {
            true => Ok(ratios),
            false => Err(Failure::Usage(format!(
                "the shares -r, -i, -u, -d and -s add up to {sum}, and should to 1"
            ))),
        }
    }

    /// What keys and values look like, if all contenders can have such, and there are as many as are asked for.
    fn bytes(&self, contenders: &[IndexContender]) -> Result<KeyValueBytes, Failure> {
        let (key, value) = (usize::from(self.key_size), usize::from(self.value_size));
        let (with_prefix, prefix) = (self.key_prefix.len() + key, &self.key_prefix);
        let usage = |why| Err(Failure::Usage(why));
        if (with_prefix, value) != (8, 8)
            && let Some(words) = first_of_words(contenders)
        {
            return usage(format!(
                "{} has keys and values of 8 bytes, and these have {with_prefix} (--key-prefix {prefix:?} and \
                 --key-size {key}) and {value} (--value-size)",
                words.name()
            ));
        }
        if with_prefix > MOST_BYTES {
            return usage(format!(
                "--key-prefix {prefix:?} and --key-size {key} are {with_prefix} bytes: {MOST_BYTES} at most"
            ));
        }
        if with_prefix != key && !self.for_anyone() {
            return usage("--key-prefix is for throughput, latency and mix".into());
        }
        // The phases need one bit more, for keys that are not there.
        let ids = self.records() + self.operations;
        if key < 8 && ids > 1 << (8 * key - 1) {
            return usage(format!(
                "--key-size {key}: too short for {ids} different keys"
            ));
        }
        Ok(KeyValueBytes {
            prefix: prefix.clone(),
            key,
            value,
        })
    }

    /// How long a mix lasts, if that is what ends it.
    fn lasts(&self) -> Result<Option<u32>, Failure> {
        let endless = self.distribution == DistributionChoice::Zipfian && self.insert_ratio > 0.0;
        match self.mode {
            RunMode::Operation => Ok(None),
            RunMode::Time if endless => Err(Failure::Usage(
                "--distribution zipfian with inserts has no end by time: its sum is over all ids there may be".into(),
            )),
            RunMode::Time => Ok(Some(self.seconds)),
        }
    }

    fn options(&self) -> Result<IndexOptions, Failure> {
        use IndexExperimentChoice as Choice;
        if !(self.skew > 0.0 && self.skew < 1.0) {
            let skew = self.skew;
            return Err(Failure::Usage(format!(
                "--skew {skew}: it is between 0 and 1"
            )));
        }
        if self.pcm {
            return Err(Failure::Usage(
                "--pcm true: there are no such counters".into(),
            ));
        }
        let timed = share("--latency-sampling", self.latency_sampling)?;
        let contenders = self.contenders()?;
        Ok(IndexOptions {
            experiment: match self.experiment {
                Choice::Throughput => IndexExperiment::Throughput,
                Choice::Latency => IndexExperiment::Latency,
                Choice::Mix => IndexExperiment::Mix,
                Choice::Counts => IndexExperiment::Counts,
                Choice::LoadFactor => IndexExperiment::LoadFactor,
                Choice::Resize => IndexExperiment::Resize,
                Choice::Recovery => IndexExperiment::Recovery,
                Choice::Bytes => IndexExperiment::Bytes,
                Choice::Dimms => IndexExperiment::Dimms,
                Choice::Numa => IndexExperiment::Numa,
                Choice::Orders => IndexExperiment::Orders,
                Choice::Array => IndexExperiment::Array,
            },
            bytes: self.bytes(&contenders)?,
            contenders,
            preset: self.preset(),
            hashing: match self.hash {
                HashChoice::Published => Hashing::Published,
                HashChoice::Seeded => Hashing::Random,
            },
            durable: !self.no_flush,
            records: self.records(),
            operations: self.operations,
            seconds: self.lasts()?,
            threads: self.threads(),
            slots: self.hash_size,
            with_replacement: self.with_replacement,
            ratios: self.ratios()?,
            scan_size: self.scan_size,
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
            cache_bytes: self.cache,
        })
    }
}
