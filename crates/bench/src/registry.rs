//! The registry of experiments: one row for each experiment that an option of `farbank bench` selects.
//!
//! ```text
//!               ┌──▶ command line     the option's values and their help; options that the experiment ignores
//!   rows of a   ├──▶ documents        the table of experiments in docs/performance.md, --experiment NAME on any page
//!   benchmark ──┼──▶ workload files   the keys `bench` and `experiment`
//!               └──▶ benchmark        `run` is the experiment in the benchmark's options
//! ```
//!
//! `crates/cli/tests/experiments.rs` compares the documents and the workload files with the rows. Three runs have an
//! option of their own and no row: `bench kv --medium sim` ([`crate::modelled`]), `bench server --open-loop`
//! ([`crate::server::open_loop`]) and `bench tree --fabric tcp` ([`crate::tree::measured`]).

use crate::cache::CacheExperiment;
use crate::index::IndexExperiment;
use crate::kv::KvExperiment;
use crate::server::PeerKind;
use crate::tree::TreeExperiment;

/// An experiment of a benchmark. `K` is the type of the benchmark's experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experiment<K = ()> {
    /// Value that selects the experiment on the command line.
    pub name: &'static str,
    /// What the experiment finds out.
    pub question: &'static str,
    /// Bounds that fail the command if a figure does not keep them. Empty: the experiment has no bounds.
    pub bounds: &'static str,
    /// Options that this experiment uses and another experiment of the benchmark ignores.
    pub options: &'static [&'static str],
    /// The experiment, as the benchmark's `run` function takes it.
    pub run: K,
}

/// Type of the experiments of one benchmark that one option selects.
pub trait ExperimentKey: Copy + PartialEq + Send + Sync + 'static {
    /// Name of the benchmark, as in `farbank bench kv`.
    const BENCH: &'static str;
    /// Option that selects the experiment, without its dashes.
    const OPTION: &'static str = "experiment";
    /// The experiments, in the order of the command line's help.
    const ROWS: &'static [Experiment<Self>];

    /// Returns the row of this experiment.
    #[must_use]
    fn row(self) -> &'static Experiment<Self> {
        let mut rows = Self::ROWS.iter();
        let row = rows.find(|row| row.run == self);
        row.expect("every experiment has a row")
    }

    /// Returns the value that selects this experiment on the command line.
    #[must_use]
    fn name(self) -> &'static str {
        self.row().name
    }
}

/// A benchmark, or a part of one: the experiments that one option selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisteredBench {
    /// Name of the benchmark.
    pub name: &'static str,
    /// Option that selects the experiment, without its dashes.
    pub option: &'static str,
    /// The experiments.
    pub experiments: Vec<Experiment>,
}

/// Returns all experiments of this crate. `farbank_contest::judge` adds those of `farbank bench
/// judge`.
#[must_use]
pub fn benches() -> Vec<RegisteredBench> {
    vec![
        bench::<KvExperiment>(),
        bench::<PeerKind>(),
        bench::<IndexExperiment>(),
        bench::<CacheExperiment>(),
        bench::<TreeExperiment>(),
    ]
}

/// Returns the experiments that one option selects.
#[must_use]
pub fn bench<K: ExperimentKey>() -> RegisteredBench {
    let untyped = |row: &Experiment<K>| Experiment {
        name: row.name,
        question: row.question,
        bounds: row.bounds,
        options: row.options,
        run: (),
    };
    RegisteredBench {
        name: K::BENCH,
        option: K::OPTION,
        experiments: K::ROWS.iter().map(untyped).collect(),
    }
}

impl RegisteredBench {
    /// Returns the options that only some of the experiments use, each once.
    #[must_use]
    pub fn options(&self) -> Vec<&'static str> {
        let mut options = Vec::new();
        for option in self.experiments.iter().flat_map(|row| row.options) {
            if !options.contains(option) {
                options.push(*option);
            }
        }
        options
    }

    /// Returns the names of the experiments that use `option`, one of [`RegisteredBench::options`].
    #[must_use]
    pub fn users_of(&self, option: &str) -> Vec<&'static str> {
        let mut users = self.experiments.clone();
        users.retain(|row| row.options.contains(&option));
        users.iter().map(|row| row.name).collect()
    }
}

/// Formats experiments as the Markdown table of docs/performance.md.
#[must_use]
pub fn markdown(benches: &[RegisteredBench]) -> String {
    let mut text =
        "| `farbank bench` | option | value | shows | bounds |\n|---|---|---|---|---|\n".to_owned();
    for bench in benches {
        let (name, option) = (bench.name, bench.option);
        for row in &bench.experiments {
            let (value, question, bounds) = (row.name, row.question, row.bounds);
            text += &format!("| `{name}` | `--{option}` | `{value}` | {question} | {bounds} |\n");
        }
    }
    text
}

impl ExperimentKey for KvExperiment {
    const BENCH: &'static str = "kv";
    const ROWS: &'static [Experiment<KvExperiment>] = &[
        Experiment {
            name: "amplification",
            question: "Medium writes per user write, and whether any write is refused while value sizes change",
            bounds: "at most 2.9 writes a write at 78 % live, 1.8 with hot keys; no refusal",
            options: &["size", "updates"],
            run: KvExperiment::Amplification,
        },
        Experiment {
            name: "load",
            question: "Fences, far-memory reads and index bytes per new key, and the slowest insert",
            bounds: "at most 1 fence a set, or 1/15 with 16 a commit; 0.01 far-memory reads a set; 12 index bytes a key; 1 ms of CPU time",
            options: &["keys"],
            run: KvExperiment::Load,
        },
        Experiment {
            name: "reopen",
            question: "Time to open the pool after a kill and after a clean close, in milliseconds",
            bounds: "at most 500 ms after a kill and 100 ms after a clean close",
            options: &["keys"],
            run: KvExperiment::Reopen,
        },
        Experiment {
            name: "full",
            question: "The slowest write, refused or accepted, on a full pool, and the slowest read at the same time. \
                       Varies the sizes of values and pools, and how the pool was filled",
            bounds: "at most 5 ms for 99.99 % of refused writes, of accepted writes and of reads",
            options: &[],
            run: KvExperiment::Full,
        },
        Experiment {
            name: "all",
            question: "All experiments",
            bounds: "those of each experiment",
            options: &["size", "updates", "keys"],
            run: KvExperiment::All,
        },
    ];
}

impl ExperimentKey for PeerKind {
    const BENCH: &'static str = "server";
    const OPTION: &'static str = "peer";
    const ROWS: &'static [Experiment<PeerKind>] = &[
        Experiment {
            name: "redis",
            question: "CPU time and throughput of SET and GET, compared with redis-server's",
            bounds: "at most 0.5 of the CPU time in pipelines of 64, 0.6 of 16, 1.05 of 1",
            options: &["redis", "redis-benchmark"],
            run: PeerKind::Redis,
        },
        Experiment {
            name: "memcached",
            question: "CPU time and throughput of the cache's set and get, compared with memcached's",
            bounds: "at most 0.5 of the CPU time of a set and 0.2 of a get in pipelines of 16 and 64, 1.0 of both in pipelines of 1",
            options: &["memcached"],
            run: PeerKind::Memcached,
        },
    ];
}

/// Options of the experiments on any index: tables, a map in DRAM, plug-ins.
const TIMED: &[&str] = &[
    "target",
    "plugin",
    "pool-path",
    "pool-size",
    "preset",
    "hash-size",
    "no-flush",
    "threads",
];
/// Options of `mix`.
const MIXED: &[&str] = &[
    "target",
    "plugin",
    "pool-path",
    "pool-size",
    "preset",
    "hash-size",
    "no-flush",
    "threads",
    "mode",
    "seconds",
    "operations",
    "read-ratio",
    "insert-ratio",
    "update-ratio",
    "remove-ratio",
    "scan-ratio",
    "scan-size",
    "distribution",
    "skew",
    "skip-load",
    "latency-sampling",
    "sampling-ms",
    "seed",
];
/// Options of the experiments on tables that grow.
const GROWN: &[&str] = &[
    "target",
    "preset",
    "hash-size",
    "no-flush",
    "seed",
    "with-replacement",
];
/// Options of the experiments that run tables on the model.
const MODELLED: &[&str] = &[
    "target",
    "preset",
    "hash-size",
    "no-flush",
    "threads",
    "seed",
    "cpu-ns",
    "cache",
];

impl ExperimentKey for IndexExperiment {
    const BENCH: &'static str = "index";
    const ROWS: &'static [Experiment<IndexExperiment>] = &[
        Experiment {
            name: "throughput",
            question: "Millions of operations per second, and latency percentiles",
            bounds: "no wrong answer",
            options: TIMED,
            run: IndexExperiment::Throughput,
        },
        Experiment {
            name: "latency",
            question: "Tail latency, up to the slowest of 100,000 operations",
            bounds: "no wrong answer",
            options: TIMED,
            run: IndexExperiment::Latency,
        },
        Experiment {
            name: "mix",
            question: "One mix of operations, with keys drawn as PiBench does",
            bounds: "",
            options: MIXED,
            run: IndexExperiment::Mix,
        },
        Experiment {
            name: "counts",
            question: "Flushes, fences and bytes per operation",
            bounds: "",
            options: &["target", "preset", "hash-size", "no-flush"],
            run: IndexExperiment::Counts,
        },
        Experiment {
            name: "load-factor",
            question: "Load factor and utilisation while a table grows",
            bounds: "",
            options: GROWN,
            run: IndexExperiment::LoadFactor,
        },
        Experiment {
            name: "resize",
            question: "Duration of structural changes such as splits and rehashes, and their share of the run",
            bounds: "",
            options: GROWN,
            run: IndexExperiment::Resize,
        },
        Experiment {
            name: "recovery",
            question: "Milliseconds from a kill to the first reply",
            bounds: "",
            options: &["target", "preset", "hash-size"],
            run: IndexExperiment::Recovery,
        },
        Experiment {
            name: "bytes",
            question: "Bytes written and read per operation on the model, by purpose",
            bounds: "",
            options: MODELLED,
            run: IndexExperiment::Bytes,
        },
        Experiment {
            name: "dimms",
            question: "Throughput on one to six DIMMs of the model",
            bounds: "",
            options: MODELLED,
            run: IndexExperiment::Dimms,
        },
        Experiment {
            name: "numa",
            question: "Throughput on the model, with local and with remote (other socket) memory",
            bounds: "",
            options: MODELLED,
            run: IndexExperiment::Numa,
        },
        Experiment {
            name: "orders",
            question: "Ranking of the tables on the model, compared with the published ranking",
            bounds: "at least 80 % of the pairs are ranked as published",
            options: &["preset", "hash-size", "no-flush", "seed", "cpu-ns", "cache"],
            run: IndexExperiment::Orders,
        },
        Experiment {
            name: "array",
            question: "No table: random writes into an array on the model",
            bounds: "",
            options: &["threads", "seed", "cpu-ns", "cache"],
            run: IndexExperiment::Array,
        },
    ];
}

impl ExperimentKey for CacheExperiment {
    const BENCH: &'static str = "cache";
    const ROWS: &'static [Experiment<CacheExperiment>] = &[
        Experiment {
            name: "arrangements",
            question: "Writes on the model: metadata in far memory, padded or in DRAM; pages prepared while the lock \
                       is held or outside it",
            bounds: "the four published ratios, within 15 %",
            options: &["threads", "dimms", "cpu-ns"],
            run: CacheExperiment::Arrangements,
        },
        Experiment {
            name: "hits",
            question: "Hit ratio of both orders of eviction, compared with memcached",
            bounds: "with `--memcached`: at most one percentage point below memcached",
            options: &["requests", "mib", "memcached"],
            run: CacheExperiment::Hits,
        },
        Experiment {
            name: "hot",
            question: "Throughput by skew, and the number of writes that a batch merges",
            bounds: "hot keys are at least as fast as uniform ones",
            options: &["requests", "mib"],
            run: CacheExperiment::Hot,
        },
    ];
}

/// Options of `mix` of the tree. The first selects the systems.
const TREE_MIX: &[&str] = &[
    "system",
    "mix",
    "skew",
    "range",
    "entries",
    "key-bytes",
    "cache",
    "threads",
    "coroutines",
];
/// Options of `successors` of the tree: those of `mix`, except the systems.
const TREE_SUCCESSORS: &[&str] = TREE_MIX.split_at(1).1;
/// Options of the experiments that run trees of one size.
const TREE: &[&str] = &["entries", "key-bytes", "cache", "threads", "coroutines"];
/// Bounds of the experiments that repeat a comparison of the paper.
const PUBLISHED_ORDERS: &str = "the published orders";

impl ExperimentKey for TreeExperiment {
    const BENCH: &'static str = "tree";
    const ROWS: &'static [Experiment<TreeExperiment>] = &[
        Experiment {
            name: "mix",
            question: "The systems under one mix and one skew",
            bounds: "",
            options: TREE_MIX,
            run: TreeExperiment::Mix,
        },
        Experiment {
            name: "successors",
            question: "From Sherman to Farbank, adding one technique at a time, under one mix and one skew",
            bounds: "",
            options: TREE_SUCCESSORS,
            run: TreeExperiment::Successors,
        },
        Experiment {
            name: "counts",
            question: "Cost of operations, with bounds from the counts in the paper",
            bounds: "the counts of the paper's text: round trips, retries, splits and bytes",
            options: TREE,
            run: TreeExperiment::Counts,
        },
        Experiment {
            name: "locks",
            question: "Locks alone, for calibration",
            bounds: "the published gains, within 15 %; the published order of tails",
            options: &["threads", "coroutines"],
            run: TreeExperiment::Locks,
        },
        Experiment {
            name: "messages",
            question: "Throughput by message size, for calibration",
            bounds: "below 256 bytes at least 0.9 of the rate at 16 bytes; at 512 bytes 0.4 to 0.6 of the rate at 256",
            options: &["threads", "coroutines"],
            run: TreeExperiment::Messages,
        },
        Experiment {
            name: "ablation",
            question: "From FG+ to Sherman, adding one technique at a time",
            bounds: PUBLISHED_ORDERS,
            options: TREE,
            run: TreeExperiment::Ablation,
        },
        Experiment {
            name: "paper",
            question: "The mixes in the paper",
            bounds: PUBLISHED_ORDERS,
            options: TREE,
            run: TreeExperiment::Paper,
        },
        Experiment {
            name: "ranges",
            question: "Range queries",
            bounds: PUBLISHED_ORDERS,
            options: TREE,
            run: TreeExperiment::Ranges,
        },
        Experiment {
            name: "scale",
            question: "16 to 528 clients",
            bounds: PUBLISHED_ORDERS,
            options: &["entries", "key-bytes", "cache"],
            run: TreeExperiment::Scale,
        },
        Experiment {
            name: "keys",
            question: "Keys of 16 bytes to 1 KiB",
            bounds: PUBLISHED_ORDERS,
            options: &["entries", "cache", "threads", "coroutines"],
            run: TreeExperiment::Keys,
        },
        Experiment {
            name: "caches",
            question: "Index caches from a fifth of the paper's size to the full size",
            bounds: PUBLISHED_ORDERS,
            options: &["entries", "key-bytes", "threads", "coroutines"],
            run: TreeExperiment::Caches,
        },
        Experiment {
            name: "held-out",
            question: "Ablation, paper, ranges, scale, keys and caches, and the share of their results that is near \
                       the published ones",
            bounds: "those of each experiment; two thirds of the results are near",
            options: &["entries", "cache", "threads", "coroutines"],
            run: TreeExperiment::HeldOut,
        },
        Experiment {
            name: "published",
            question: "Locks, messages, counts and held-out, with every published value scored",
            bounds: "those of each experiment",
            options: &["entries", "cache", "threads", "coroutines"],
            run: TreeExperiment::Published,
        },
        Experiment {
            name: "causes",
            question: "The cluster with one parameter changed, to explain results that are not near",
            bounds: "",
            options: TREE,
            run: TreeExperiment::Causes,
        },
    ];
}
