//! `farbank check kill`: kills a real server under load and checks its data after each restart.

use clap::Args;
use farbank_check::kill;
use serde_json::Value;

use super::ended::{CheckFigures, EndedServerArgs};
use crate::common::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank check kill --cycles 100
      a pool in memory, treated as persistent memory; the server is killed a hundred times
  farbank check kill --pool /var/tmp/killed --medium file --size 128mb
      a pool in an ordinary file; a write is acknowledged after its fdatasync
  farbank check kill --maxmemory 40mb
      a server that evicts keys; each start has another policy";

/// Kill a real server under load, and check its data after each restart.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    ended: EndedServerArgs,
    /// Limit above which the server evicts keys, at most three quarters of the pool. The keys need more space. 0: no limit.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    maxmemory: u64,
    /// Eviction policy of every start. Default: each start has another one.
    #[arg(long, value_name = "POLICY", requires = "maxmemory")]
    maxmemory_policy: Option<String>,
}

impl KillArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let launch = self.ended.launch("kill", &[], false)?;
        if self.maxmemory > launch.pool_bytes / 4 * 3 {
            let message = "--maxmemory must be at most three quarters of --size";
            return Err(Failure::Usage(message.into()));
        }
        let pool = launch.pool.clone();
        let options = kill::KillOptions {
            launch,
            cycles: self.ended.cycles,
            connections: self.ended.connections as usize,
            seed: self.ended.seed,
            eviction: (self.maxmemory > 0).then_some(kill::EvictionOptions {
                maxmemory: self.maxmemory,
                policy: self.maxmemory_policy,
            }),
        };
        self.ended
            .run("kill", &pool, |progress| kill::run(&options, progress))
    }
}

impl CheckFigures for kill::KillFigures {
    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn line(&self) -> String {
        let kill::KillFigures {
            cycles,
            acknowledged,
            in_flight,
            keys_checked,
            segments_cleaned,
            keys_evicted,
            refused,
            ..
        } = self;
        format!(
            "{cycles} cycles ({} clean shutdowns, {} kills during recovery, {} opens by a checkpoint), {acknowledged} commands acknowledged, \
         {in_flight} in flight when killed, {keys_checked} keys checked, {segments_cleaned} segments \
         cleaned, {keys_evicted} keys evicted, {refused} writes refused, at least {:.1} % live, slowest open {:.1} ms; {:.1} s",
            self.shutdowns,
            self.kills_in_recovery,
            self.opens_by_checkpoint,
            self.live_share_min * 100.0,
            self.open_ms_max,
            self.elapsed.as_secs_f64(),
        )
    }

    fn json(&self) -> Value {
        serde_json::json!({
            "check": "kill",
            "holds": true,
            "cycles": self.cycles,
            "shutdowns": self.shutdowns,
            "kills_in_recovery": self.kills_in_recovery,
            "acknowledged": self.acknowledged,
            "in_flight": self.in_flight,
            "keys_checked": self.keys_checked,
            "segments_cleaned": self.segments_cleaned,
            "keys_evicted": self.keys_evicted,
            "refused": self.refused,
            "live_share_min": self.live_share_min,
            "opens_by_checkpoint": self.opens_by_checkpoint,
            "open_ms_max": self.open_ms_max,
            "elapsed_s": self.elapsed.as_secs_f64(),
        })
    }
}
