//! `farbank check kill`: kills a real server under load and checks its data after each restart.

use clap::Args;
use farbank_check::kill;
use serde_json::Value;

use super::ended::{CheckFigures, EndedServerArgs};
use crate::common::Failure;

const EXAMPLES: &str = "\
Examples:
  farbank check kill --cycles 100
      a pool in memory, treated as persistent memory; the server is killed a hundred times
  farbank check kill --pool /var/tmp/killed --medium file --size 128mb
      a pool in an ordinary file; a write is acknowledged after its fdatasync";

/// Kill a real server under load, and check its data after each restart.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    ended: EndedServerArgs,
}

impl KillArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let launch = self.ended.launch("kill", &[], false)?;
        let pool = launch.pool.clone();
        let options = kill::KillOptions {
            launch,
            cycles: self.ended.cycles,
            connections: self.ended.connections as usize,
            seed: self.ended.seed,
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
            ..
        } = self;
        format!(
            "{cycles} cycles ({} clean shutdowns, {} kills during recovery, {} opens by a checkpoint), {acknowledged} commands acknowledged, \
         {in_flight} in flight when killed, {keys_checked} keys checked, {segments_cleaned} segments \
         cleaned, at least {:.1} % live, slowest open {:.1} ms; {:.1} s",
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
            "live_share_min": self.live_share_min,
            "opens_by_checkpoint": self.opens_by_checkpoint,
            "open_ms_max": self.open_ms_max,
            "elapsed_s": self.elapsed.as_secs_f64(),
        })
    }
}
