//! Statistics of the server, which INFO, `stats` and the admin port read.
//!
//! * [`counters`]: counts of requests, connections and batches.
//! * [`commands`]: calls and times of each command. [`histogram`]: distribution of times.
//! * [`hot_keys`]: the most requested keys.
//! * [`latency`]: how long requests take.
//! * [`process`]: CPU time and memory of the process.
//! * [`slow_log`]: the latest slow requests and latency peaks.

pub(crate) mod commands;
pub(crate) mod counters;
pub(crate) mod histogram;
pub(crate) mod hot_keys;
pub(crate) mod latency;
pub(crate) mod process;
pub(crate) mod slow_log;
