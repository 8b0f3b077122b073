//! `farbank bench`: measures the published figures of Farbank on this machine.
//!
//! Each experiment prints a table of figures. A row says how the figure was obtained (counted, measured or modelled)
//! and which bound it must hold. The command fails if a bound does not hold. The measurements are in `farbank_bench`.
//!
//! ```text
//!   kv  server  judge  index  cache  tree     the arguments of each benchmark
//!     │    │      │      │      │      │
//!     └────┴──────┴──┬───┴──────┴──────┘
//!                    ▼
//!                 report                      runs a measurement, prints its figures, checks their bounds
//! ```
//!
//! `unused` rejects options that the selected experiment ignores. `apart` runs a plug-in in a process of its own.

mod apart;
mod cache;
mod index;
mod judge;
mod kv;
mod report;
mod server;
mod tree;
pub(crate) mod unused;

use clap::Subcommand;

use crate::common::Failure;

/// Run the benchmarks; fails if a bound does not hold.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// The engine alone: write amplification, cost of a set, time to open.
    Kv(kv::BenchKv),
    /// The server, compared with redis-server or memcached: CPU time per operation.
    Server(server::BenchServer),
    /// Engines under the workload and rules of the Tair contest.
    Judge(judge::BenchJudge),
    /// Persistent hash indexes: throughput, latency, load factor, flushes and fences, recovery.
    Index(index::BenchIndex),
    /// The cache: cost of its memory layout, hit ratio.
    Cache(cache::BenchCache),
    /// Sherman and its baselines on a simulated cluster: round trips, throughput, latency.
    Tree(tree::BenchTree),
}

impl BenchCommand {
    /// Runs the subcommand.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            BenchCommand::Kv(bench) => bench.run(),
            BenchCommand::Server(bench) => bench.run(),
            BenchCommand::Judge(bench) => bench.run(),
            BenchCommand::Index(bench) => bench.run(),
            BenchCommand::Cache(bench) => bench.run(),
            BenchCommand::Tree(bench) => bench.run(),
        }
    }
}
