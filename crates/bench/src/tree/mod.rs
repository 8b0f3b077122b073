//! The tree in the paper's rack: Sherman, FG+ and what lies between them, in virtual time.
//!
//! Eight compute and eight memory servers, 22 clients each, one operation at a time a client. Counts
//! (round trips, retries, bytes) are exact for the simulated rack; throughput and latency are modelled. The constants of the rack
//! were calibrated on the paper's micro-benchmark of locks and its knee at 256 bytes only
//! (`farbank_fabric::sim::Constants`); every other figure was held out.
//!
//! | experiment | runs                                                     | shows                                          |
//! |------------|----------------------------------------------------------|------------------------------------------------|
//! | mix        | every system with one mix and skew                       | throughput, latency, what operations cost      |
//! | counts     | Sherman and FG+, write-intensive, skew 0.99              | round trips, retries, sizes (section 5.5)      |
//! | ablation   | FG+ to Sherman, one technique after another              | what each gains (section 5.2)                  |
//! | locks      | clients that take and release locks, four steps          | the calibration (section 5.6)                  |
//! | paper      | both systems on the paper's mixes, uniform and skewed    | the ratios that were published                 |

mod experiments;
mod load;
mod run;

pub use experiments::{Experiment, Options, System, run};
pub use load::Mix;
pub use run::{Outcome, Setup};
