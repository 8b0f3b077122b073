//! Statistics of the server. An admin endpoint (metrics) would read them, as INFO and `stats` do.
//!
//! * [`counters`]: counts of requests, connections and batches.
//! * [`commands`]: calls and times of each command. [`histogram`]: distribution of times.
//! * [`hot_keys`]: the most requested keys.
//! * [`process`]: CPU time and memory of the process.
//! * [`slow_log`]: the latest slow requests and latency peaks.

pub(crate) mod commands;
pub(crate) mod counters;
pub(crate) mod histogram;
pub(crate) mod hot_keys;
pub(crate) mod process;
pub(crate) mod slow_log;
