//! The tree in the paper's rack: Sherman, FG+ and what lies between them, in virtual time.
//!
//! Eight compute and eight memory servers, 22 threads each, one operation at a time a client. Counts
//! (round trips, retries, bytes) are exact for the simulated rack; throughput and latency are modelled. Index caches are warm when a run
//! begins, as after hours (`Compute::warm`). The constants of the rack were calibrated on the paper's micro-benchmark of
//! locks and its knee at 256 bytes only (`farbank_fabric::sim::Constants`); every other figure was held out.
//!
//! | experiment | runs                                                     | shows                                          |
//! |------------|----------------------------------------------------------|------------------------------------------------|
//! | mix        | every system with one mix and skew                       | throughput, latency, fairness, costs           |
//! | counts     | Sherman and FG+, write-intensive, skew 0.99              | round trips, retries, sizes (section 5.5)      |
//! | locks      | clients that take and release locks, five ways           | the calibration (section 5.6)                  |
//! | messages   | writes of all sizes to one server                        | the calibration: the knee at 256 bytes         |
//! | ablation   | FG+ to Sherman, one technique after another              | what each gains (section 5.2)                  |
//! | paper      | both systems on the paper's mixes, uniform and skewed    | throughput and latency over FG+                |
//! | ranges     | range queries, alone and beside inserts                  | throughput over FG+, reads thrown away         |
//! | scale      | 16 to 528 clients, three skews                           | peaks, who keeps them (section 5.4)            |
//! | keys       | keys of 16 bytes to 1 KiB                                | throughput over FG+                            |
//! | caches     | index caches of a fifth to all of the paper's            | hits, throughput                               |
//! | held-out   | the six before this                                      | how much is within 35 %, which orders hold     |
//! | published  | locks, messages, counts and held-out                     | every published value, scored                  |
//! | causes     | the rack with one thing changed                          | why what misses does                           |

mod compare;
mod costs;
mod experiments;
mod load;
mod ratios;
mod run;
mod sensitivity;
mod sweeps;

pub use experiments::{TreeExperiment, TreeOptions, TreeSystem, run};
pub use load::TreeMix;
pub use run::{TreeOutcome, TreeSetup};

#[cfg(test)]
mod tests;
