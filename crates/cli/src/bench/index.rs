//! `farbank bench index`: compares the persistent hash indexes.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum, value_parser};
use farbank_bench::index::keys::Distribution;
use farbank_bench::index::{
    self, BYTES_MAX, IndexContender, IndexExperiment, IndexOptions, KeyValueBytes, MixRatios,
};
use farbank_index::hash::Hashing;
use farbank_index::registry::{TableKind, TablePreset};
use serde_json::json;

use super::apart::apart;
use super::report::{OutputForm, failure, measure, table};
use crate::common::choice::{experiment, named, one_of};
use crate::common::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank bench index
      inserts, successful and failed lookups and deletes, for every table and for a hash map in DRAM
  farbank bench index --experiment counts -n 2000000
      flushes, fences and bytes per operation, counted exactly
  farbank bench index --experiment mix -r 0.8 -i 0.2 --distribution zipfian --skew 0.99 -t 2
      four lookups per insert, with keys drawn as PiBench does
  farbank bench index --plugin ./fptree.so -n 1000000 -p 1000000 --output pibench
      a library written for PiBench, with output in PiBench's format
  farbank bench index --plugin ./fptree.so --experiment mix -r 0.5 -s 0.5 --mode time --seconds 10
      lookups and scans for ten seconds
  farbank bench index --experiment dimms --target clht -t 16
      throughput of one table on the far-memory model, with one to six DIMMs
  farbank bench index --experiment load-factor -n 400000 --svg load-factor.svg
      load factor while the tables grow, drawn as an SVG chart
  farbank bench index --workload workloads/index-reads-hot.toml
      the options of a workload file: lookups of hot keys and some updates
  farbank bench index --experiment recovery -n 16000000 --json
      time from a kill to the first reply; one JSON object on the last line";

/// Benchmark persistent hash indexes, with PiBench's options and the experiments of the published study.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct BenchIndex {
    /// TOML file of options: keys are option names without dashes, plus `bench` and `question`. Options on the
    /// command line override it. See workloads/.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Experiment to run.
    #[arg(long, default_value = "throughput", value_parser = experiment::<IndexExperiment>())]
    experiment: IndexExperiment,
    /// Tables to measure, one after another; papaya is a hash map in DRAM. Default: all.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',', value_parser = contender)]
    target: Vec<IndexContender>,
    /// Shared library written for PiBench or HashEvaluation. It is measured after the targets, or alone if --target
    /// is not given. It runs in a separate process.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Table parameters: Farbank's, or the published ones. Default: published for bytes, dimms, numa and orders,
    /// which are compared with the study's results; farbank otherwise.
    #[arg(long, value_parser = one_of(&TablePreset::ALL, TablePreset::name))]
    preset: Option<TablePreset>,
    /// Hash function of the tables. published: the study's, which reproduces the published results. seeded: one with
    /// a random secret seed for each table, as outside benchmarks.
    #[arg(long, default_value = "published", value_parser = named([("published", "", Hashing::Published), ("seeded", "", Hashing::Random)]))]
    hash: Hashing,
    /// Omit flushes and fences, to measure the cost of durability.
    #[arg(long)]
    no_flush: bool,
    /// Keys loaded before the run. Default: 1,000,000. For tables on the model 781,250: 1/256 of the study's keys,
    /// just as 65,536 slots are 1/256 of its slots.
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    records: Option<u64>,
    /// For mix: end the run after --operations or after --seconds.
    #[arg(
        short = 'm',
        long,
        value_enum,
        default_value = "operation",
        ignore_case = true
    )]
    mode: RunMode,
    /// For mix with --mode time: duration of the run, rounded down to whole windows of --sampling-ms. Keys are drawn
    /// during the run.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// For mix with --mode operation: number of operations.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    operations: u64,
    /// Threads; virtual threads on the model. Default: 1, or 32 on the model, as in the study.
    #[arg(short = 't', long, value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    threads: Option<u32>,
    /// Slots of a new table, rounded to what its layout allows.
    #[arg(short = 'S', long, alias = "hash_size", value_name = "N", default_value_t = 65_536, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    hash_size: u64,
    /// Prefix of each key. Keys of tables have 8 bytes including the prefix.
    #[arg(
        short = 'f',
        long,
        alias = "key_prefix",
        value_name = "TEXT",
        default_value = ""
    )]
    key_prefix: String,
    /// Bytes of a key after its prefix. A key longer than 8 bytes has zeros before its number.
    #[arg(short = 'k', long, alias = "key_size", value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u8).range(1..=BYTES_MAX as i64))]
    key_size: u8,
    /// Bytes of a value. Values of tables have 8 bytes.
    #[arg(short = 'v', long, alias = "value_size", value_name = "BYTES", default_value_t = 8, value_parser = value_parser!(u8).range(4..=BYTES_MAX as i64))]
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
    /// For mix: share of scans, for a plug-in only, because the tables are unordered. A scan succeeds if it finds a
    /// key.
    #[arg(
        short = 's',
        long,
        alias = "scan_ratio",
        value_name = "SHARE",
        default_value_t = 0.0
    )]
    scan_ratio: f64,
    /// For mix: maximum number of keys that a scan returns.
    #[arg(long, alias = "scan_size", value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=1000))]
    scan_size: u32,
    /// For mix: distribution of the keys.
    #[arg(long, value_enum, default_value = "uniform", ignore_case = true)]
    distribution: DistributionChoice,
    /// For mix: skew of the distribution. selfsimilar: the share of the keys that gets most of the accesses. zipfian:
    /// the exponent.
    #[arg(long, value_name = "SKEW", default_value_t = 0.2)]
    skew: f64,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 1729)]
    seed: u64,
    /// For mix: skip loading; the plug-in's pool already holds the keys.
    #[arg(long, alias = "skip_load", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    skip_load: bool,
    /// Accepted for compatibility with PiBench. Intel's performance counters are not supported, so only false is
    /// valid.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
    pcm: bool,
    /// For mix: share of operations whose latency is measured.
    #[arg(
        long,
        alias = "latency_sampling",
        value_name = "SHARE",
        default_value_t = 0.01
    )]
    latency_sampling: f64,
    /// For mix: milliseconds between two throughput samples.
    #[arg(long, alias = "sampling_ms", value_name = "MS", default_value_t = 1000, value_parser = value_parser!(u32).range(1..))]
    sampling_ms: u32,
    /// Path of the plug-in's pool.
    #[arg(long, alias = "pool_path", value_name = "PATH")]
    pool_path: Option<PathBuf>,
    /// Bytes of a plug-in's pool.
    #[arg(long, alias = "pool_size", value_name = "BYTES", default_value = "0", value_parser = size::parse)]
    pool_size: u64,
    /// For load-factor and resize: draw keys with replacement, as the study did.
    #[arg(long)]
    with_replacement: bool,
    /// On the model: CPU time of an operation in nanoseconds, without far-memory accesses.
    #[arg(long, value_name = "NS", default_value_t = 50)]
    cpu_ns: u32,
    /// On the model: bytes of the processor cache. Default: the study's 22 MiB, scaled down by the ratio of the
    /// number of keys to the study's 200,000,000; 4 MiB for array.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    cache: Option<u64>,
    /// Output format: a table of results, or PiBench's format (for mix of one index).
    #[arg(long, value_enum, default_value = "table", conflicts_with_all = ["json", "svg"])]
    output: OutputFormat,
    #[command(flatten)]
    show: OutputForm,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RunMode {
    /// End after --operations.
    Operation,
    /// End after --seconds.
    Time,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Table,
    Pibench,
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

/// Returns `value`, or an error if it is not between 0 and 1.
fn share(name: &str, value: f64) -> Result<f64, Failure> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(Failure::Usage(format!(
            "{name} is {value}, but a share must be between 0 and 1"
        ))),
    }
}

/// Returns the first contender that is not a plug-in. Such a contender has 8-byte keys and values, and is unordered.
fn first_of_words(contenders: &[IndexContender]) -> Option<&IndexContender> {
    let is_plugin = |contender: &&IndexContender| matches!(contender, IndexContender::Plugin(_));
    contenders.iter().find(|contender| !is_plugin(contender))
}

impl BenchIndex {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Some(library) = &self.plugin else {
            return self.run_here();
        };
        self.options()?; // reject a wrong command line before starting a process
        apart(&format!("the plug-in {}", library.display()), || {
            self.run_here()
        })
    }

    fn run_here(&self) -> Result<(), Failure> {
        let options = self.options()?;
        if self.output == OutputFormat::Pibench {
            if self.experiment != IndexExperiment::Mix {
                let why = "--output pibench works only with --experiment mix";
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
            "preset": options.preset.name(),
        });
        measure("index", settings, &self.show, table, |watch| {
            index::run(&options, watch)
        })
    }

    /// Returns whether every kind of contender can run the experiment, not only tables.
    fn for_anyone(&self) -> bool {
        use IndexExperiment::{Latency, Mix, Throughput};
        matches!(self.experiment, Throughput | Latency | Mix)
    }

    /// Returns whether the experiment runs tables on the model and compares them with the study.
    fn models_tables(&self) -> bool {
        use IndexExperiment::{Bytes, Dimms, Numa, Orders};
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
        let default = match self.models_tables() {
            true => TablePreset::Published,
            false => TablePreset::Farbank,
        };
        self.preset.unwrap_or(default)
    }

    fn threads(&self) -> u32 {
        let on_model = self.models_tables() || self.experiment == IndexExperiment::Array;
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
                "{} cannot run this experiment, which is for tables only; it can run throughput, latency and mix",
                other.name()
            )));
        }
        if contenders.is_empty() {
            // First, because the results of the others are printed as multiples of it.
            contenders.extend(self.for_anyone().then_some(IndexContender::Papaya));
            contenders.extend(TableKind::ALL.map(IndexContender::Table));
        }
        if self.scan_ratio > 0.0
            && let Some(unordered) = first_of_words(&contenders)
        {
            return Err(Failure::Usage(format!(
                "{} is unordered and has no scans: use --scan-ratio with an ordered --plugin and without --target",
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
                "the shares -r, -i, -u, -d and -s add up to {sum}, but must add up to 1"
            ))),
        }
    }

    /// Returns the format of keys and values. Fails if a contender does not support it, or if it has fewer distinct
    /// keys than the run needs.
    fn bytes(&self, contenders: &[IndexContender]) -> Result<KeyValueBytes, Failure> {
        let (key, value) = (usize::from(self.key_size), usize::from(self.value_size));
        let (with_prefix, prefix) = (self.key_prefix.len() + key, &self.key_prefix);
        let usage = |why| Err(Failure::Usage(why));
        if (with_prefix, value) != (8, 8)
            && let Some(words) = first_of_words(contenders)
        {
            return usage(format!(
                "{} needs keys and values of 8 bytes, but these have {with_prefix} (--key-prefix {prefix:?} and \
                 --key-size {key}) and {value} (--value-size)",
                words.name()
            ));
        }
        if with_prefix > BYTES_MAX {
            return usage(format!(
                "--key-prefix {prefix:?} and --key-size {key} make a key of {with_prefix} bytes, but at most {BYTES_MAX} are supported"
            ));
        }
        if with_prefix != key && !self.for_anyone() {
            return usage("--key-prefix is only for throughput, latency and mix".into());
        }
        // The phases need one more bit, for lookups of absent keys.
        let ids = self.records() + self.operations;
        if key < 8 && ids > 1 << (8 * key - 1) {
            return usage(format!(
                "--key-size {key} is too short for {ids} distinct keys"
            ));
        }
        Ok(KeyValueBytes {
            prefix: prefix.clone(),
            key,
            value,
        })
    }

    /// Returns the duration of a mix in seconds, or `None` if the number of operations ends it.
    fn lasts(&self) -> Result<Option<u32>, Failure> {
        let endless = self.distribution == DistributionChoice::Zipfian && self.insert_ratio > 0.0;
        match self.mode {
            RunMode::Operation => Ok(None),
            RunMode::Time if endless => Err(Failure::Usage(
                "--distribution zipfian with inserts needs --mode operation: the distribution depends on the final number of keys".into(),
            )),
            RunMode::Time => Ok(Some(self.seconds)),
        }
    }

    fn options(&self) -> Result<IndexOptions, Failure> {
        if !(self.skew > 0.0 && self.skew < 1.0) {
            let skew = self.skew;
            return Err(Failure::Usage(format!(
                "--skew is {skew}, but must be between 0 and 1"
            )));
        }
        if self.pcm {
            return Err(Failure::Usage(
                "--pcm true: processor counters are not supported".into(),
            ));
        }
        let timed = share("--latency-sampling", self.latency_sampling)?;
        let contenders = self.contenders()?;
        Ok(IndexOptions {
            experiment: self.experiment,
            bytes: self.bytes(&contenders)?,
            contenders,
            preset: self.preset(),
            hashing: self.hash,
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
