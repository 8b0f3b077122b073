//! Trees under test, and the options of a run.

use farbank_fabric::sim::ClusterConstants;
use farbank_tree::{Config, NodeFormat};

use super::load::TreeMix;
use super::run::TreeSetup;

/// Tree under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeSystem {
    /// All techniques, on the layout with a version in each line.
    Sherman,
    /// All techniques, on the published layout.
    ShermanPublished,
    /// No technique except an index cache and a release by write.
    FgPlus,
    /// No technique.
    Fg,
    /// Sherman's and later techniques.
    Farbank,
}

impl TreeSystem {
    /// All variants.
    pub const ALL: [TreeSystem; 5] = [
        TreeSystem::Sherman,
        TreeSystem::ShermanPublished,
        TreeSystem::FgPlus,
        TreeSystem::Fg,
        TreeSystem::Farbank,
    ];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TreeSystem::Sherman => "sherman",
            TreeSystem::ShermanPublished => "sherman, published layout",
            TreeSystem::FgPlus => "fg+",
            TreeSystem::Fg => "fg",
            TreeSystem::Farbank => "farbank",
        }
    }

    /// Returns the name on the command line.
    #[must_use]
    pub const fn option_name(self) -> &'static str {
        match self {
            TreeSystem::ShermanPublished => "sherman-published",
            TreeSystem::Sherman | TreeSystem::FgPlus | TreeSystem::Fg | TreeSystem::Farbank => {
                self.name()
            }
        }
    }

    /// Returns the description on the command line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            TreeSystem::Sherman => {
                "Sherman with the safe node layout, which has a version in each line"
            }
            TreeSystem::ShermanPublished => "Sherman with the published node layout",
            TreeSystem::FgPlus => "FG+, the paper's improved baseline",
            TreeSystem::Fg => "FG, the baseline without an index cache",
            TreeSystem::Farbank => {
                "Sherman with later techniques: shared operations on one key, reads with locks, hashed leaves"
            }
        }
    }

    pub(super) fn config(self) -> Config {
        match self {
            TreeSystem::Sherman => Config::sherman(),
            TreeSystem::ShermanPublished => Config::sherman_published(),
            TreeSystem::FgPlus => Config::fg_plus(),
            TreeSystem::Fg => Config::fg(),
            TreeSystem::Farbank => Config::farbank(),
        }
    }
}

/// Experiment on the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeExperiment {
    /// One mix and skew on the selected systems.
    Mix,
    /// From Sherman to Farbank, one technique after another, with one mix and skew.
    Successors,
    /// Costs of operations with the paper's setup.
    Counts,
    /// Locks alone: the calibration.
    Locks,
    /// Throughput by the size of messages: the other part of the calibration.
    Messages,
    /// Gain of each technique.
    Ablation,
    /// The paper's mixes.
    Paper,
    /// Range queries.
    Ranges,
    /// Number of clients.
    Scale,
    /// Length of keys.
    Keys,
    /// Size of index caches.
    Caches,
    /// Causes of figures that differ from the published ones.
    Causes,
    /// All held-out experiments: ablation, paper, ranges, scale, keys, caches.
    HeldOut,
    /// Every published value: locks, messages, counts, and the held-out experiments.
    Published,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// Experiment to run.
    pub experiment: TreeExperiment,
    /// Systems of [`TreeExperiment::Mix`].
    pub systems: Vec<TreeSystem>,
    /// Mix of [`TreeExperiment::Mix`] and [`TreeExperiment::Successors`].
    pub mix: TreeMix,
    /// Skew of [`TreeExperiment::Mix`] and [`TreeExperiment::Successors`].
    pub theta: f64,
    /// Number of compute servers, and of memory servers.
    pub servers: u16,
    /// Threads of each compute server.
    pub threads: u16,
    /// Clients of each thread.
    pub coroutines: u16,
    /// Entries at the start.
    pub entries: u64,
    /// Length of a key in bytes.
    pub key_bytes: usize,
    /// Size of each compute server's index cache in bytes. `None` scales the paper's cache to the size of the tree.
    pub cache_bytes: Option<usize>,
    /// Length of the measured window in virtual microseconds.
    pub window_us: u64,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Size of the paper's tree, to which caches are scaled: room for a billion entries, filled to 80 %.
const PAPER_ENTRIES: u64 = 800_000_000;
const PAPER_CACHE_BYTES: u64 = 500 << 20;

impl TreeOptions {
    /// Returns a run of `config` with mix `mix` and skew `theta`.
    pub(super) fn setup(&self, config: Config, mix: TreeMix, theta: f64) -> TreeSetup {
        let cache_bytes = match config.cache_bytes {
            0 => 0,
            _ => self
                .cache_bytes
                .unwrap_or_else(|| self.in_proportion(PAPER_CACHE_BYTES)),
        };
        let setup = TreeSetup {
            servers: self.servers,
            threads: self.threads,
            coroutines: self.coroutines,
            entries: self.entries,
            mix,
            theta,
            config: Config {
                cache_bytes,
                // No client dies here, and none renews a lease.
                doubt_ns: u64::MAX,
                ..config
            },
            constants: ClusterConstants {
                read_line_order: config.layout.format == NodeFormat::Paper,
                ..ClusterConstants::default()
            },
            window_ns: self.window_us * 1000,
            seed: self.seed,
        };
        match self.key_bytes {
            8 => setup,
            key_bytes => with_keys(setup, key_bytes),
        }
    }

    /// Scales the size of a cache of the paper's tree to this tree.
    pub(super) fn in_proportion(&self, cache_bytes: u64) -> usize {
        (cache_bytes * self.entries / PAPER_ENTRIES) as usize
    }
}

/// Changes a run to keys of `key_bytes`, with as many entries per node and as many cached nodes as before.
pub(super) fn with_keys(setup: TreeSetup, key_bytes: usize) -> TreeSetup {
    let layout = setup.config.layout;
    let layout = layout.with_keys(key_bytes, layout.entries());
    let cache_bytes = setup.config.cache_bytes / setup.config.layout.node_bytes * layout.node_bytes;
    TreeSetup {
        config: Config {
            layout,
            cache_bytes,
            ..setup.config
        },
        ..setup
    }
}
