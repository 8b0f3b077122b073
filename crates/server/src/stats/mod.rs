//! Statistics of the server, which INFO, `stats` and the admin port read.
//!
//! * [`counters`]: counts of requests, connections and batches.
//! * [`hot_keys`]: the most requested keys.
//! * [`latency`]: how long requests take.
//! * [`process`]: CPU time and memory of the process.

pub(crate) mod counters;
pub(crate) mod hot_keys;
pub(crate) mod latency;
pub(crate) mod process;
