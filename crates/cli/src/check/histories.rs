//! `farbank check histories`: kills a real server, and checks that the calls of its clients are linearizable.

use clap::Args;
use farbank_check::histories;
use serde_json::Value;

use super::ended::{CheckFigures, EndedServerArgs};
use crate::common::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank check histories --cycles 100
      a pool in memory, treated as persistent memory; the server is killed or stopped a hundred times
  farbank check histories --pool /var/tmp/histories --medium file --max-size 256mb
      a pool in an ordinary file that grows; a write is acknowledged after its fdatasync";

/// Kill a real server while clients share keys, and check that the recorded calls are linearizable.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HistoriesArgs {
    /// Size up to which the pool may grow.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
    /// Keep the pool full, so that many writes are refused.
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    ended: EndedServerArgs,
}

impl HistoriesArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let more: Vec<String> = self
            .max_size
            .iter()
            .flat_map(|bytes| ["--max-size".to_owned(), bytes.to_string()])
            .collect();
        let launch = self.ended.launch("histories", &more, true)?;
        let pool = launch.pool.clone();
        let options = histories::HistoryOptions {
            launch,
            cycles: self.ended.cycles,
            connections: self.ended.connections as usize,
            full: self.full,
            seed: self.ended.seed,
        };
        self.ended.run("histories", &pool, |progress| {
            histories::run(&options, progress)
        })
    }
}

impl CheckFigures for histories::HistoryFigures {
    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn line(&self) -> String {
        let histories::HistoryFigures {
            cycles,
            answered,
            in_flight,
            refused,
            histories,
            given_up,
            ..
        } = self;
        format!(
            "{cycles} cycles ({} by SHUTDOWN, {} by SIGTERM and SIGKILL; {} kills during recovery), {answered} calls answered, \
         {refused} refused, {in_flight} in flight at the end of a server, {histories} histories linearizable, {given_up} not decided; \
         {:.1} s",
            self.shutdowns,
            self.terminated,
            self.kills_in_recovery,
            self.elapsed.as_secs_f64(),
        )
    }

    fn json(&self) -> Value {
        serde_json::json!({
            "check": "histories",
            "holds": true,
            "cycles": self.cycles,
            "shutdowns": self.shutdowns,
            "terminated": self.terminated,
            "kills_in_recovery": self.kills_in_recovery,
            "answered": self.answered,
            "in_flight": self.in_flight,
            "refused": self.refused,
            "histories": self.histories,
            "given_up": self.given_up,
            "elapsed_s": self.elapsed.as_secs_f64(),
        })
    }
}
