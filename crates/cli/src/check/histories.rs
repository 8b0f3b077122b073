//! `farbank check histories`: what clients of a killed server saw, and whether an order of all calls explains it.

use clap::Args;
use farbank_bench::histories;
use serde_json::Value;

use super::ended::{CheckFigures, EndedServerArgs};
use crate::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank check histories --cycles 100
      a pool in memory, as on persistent memory, its server ended a hundred times
  farbank check histories --pool /var/tmp/histories --medium file --max-size 256mb
      an ordinary file that grows, acknowledged after each fdatasync";

/// Kill a real server under clients that share keys, and look for an order of all their calls.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HistoriesArgs {
    /// The pool may grow to this size.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
    /// Keep the pool full: many writes are refused.
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
            "{cycles} cycles ({} by SHUTDOWN, {} by SIGTERM and SIGKILL; {} kills in recovery), {answered} calls answered, \
         {refused} refused, {in_flight} in flight at an end, {histories} histories have an order, {given_up} given up; \
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
