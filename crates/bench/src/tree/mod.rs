//! The tree in the paper's cluster: Sherman, FG+ and the steps between them, in virtual time. [`measured`] runs the mixes
//! over TCP, in real time.
//!
//! Eight compute and eight memory servers, 22 threads each, one operation in flight per client. Counts (round trips,
//! retries, bytes) are exact for the simulated cluster; throughput and latency are modelled. Index caches are warm
//! when a run begins, as after hours (`Compute::warm`). The constants of the cluster were calibrated only on the
//! paper's micro-benchmark of locks and on its knee at 256 bytes (`farbank_fabric::sim::Constants`). All other figures
//! are held out.
//!
//! | experiment | runs                                                 | shows                                       |
//! |------------|------------------------------------------------------|---------------------------------------------|
//! | mix        | every system with one mix and skew                   | throughput, latency, fairness, costs        |
//! | successors | Sherman to Farbank, one technique after another       | throughput relative to Sherman              |
//! | counts     | Sherman and FG+, write-intensive, skew 0.99          | round trips, retries, sizes (section 5.5)   |
//! | locks      | clients that take and release locks, in five ways    | the calibration (section 5.6)               |
//! | messages   | writes of all sizes to one server                    | the calibration: the knee at 256 bytes      |
//! | ablation   | FG+ to Sherman, one technique after another          | the gain of each (section 5.2)              |
//! | paper      | both systems, the paper's mixes, uniform and skewed  | throughput and latency relative to FG+      |
//! | ranges     | range queries, alone and together with inserts       | throughput relative to FG+, discarded reads |
//! | scale      | 16 to 528 clients, three skews                       | peaks, loss beyond the peak (section 5.4)   |
//! | keys       | keys of 16 bytes to 1 KiB                            | throughput relative to FG+                  |
//! | caches     | index caches from a fifth of the paper's to all of it | hits, throughput                            |
//! | held-out   | the six before this                                  | share of near values, orders that hold      |
//! | published  | locks, messages, counts and held-out                 | every published value, scored               |
//! | causes     | the cluster with one parameter changed               | causes of differences from the paper        |

mod bench;
mod compare;
mod costs;
mod experiments;
mod load;
pub mod measured;
mod options;
mod ratios;
mod run;
mod sensitivity;
mod successors;
mod sweeps;

pub use experiments::run;
pub use load::TreeMix;
pub use options::{TreeExperiment, TreeOptions, TreeSystem};
pub use run::{TreeOutcome, TreeSetup};

#[cfg(test)]
mod tests;
