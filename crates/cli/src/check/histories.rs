//! `farbank check histories`: what clients of a killed server saw, and whether an order of all calls explains it.

use clap::Args;
use farbank_bench::histories;

use super::ended::Ended;
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
pub(crate) struct Histories {
    /// How many times it is ended.
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..))]
    cycles: u64,
    /// The pool may grow to this size.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
    /// Keep the pool full: many writes are refused.
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    ended: Ended,
}

impl Histories {
    pub(super) fn run(self) -> Result<(), Failure> {
        let more: Vec<String> = self
            .max_size
            .iter()
            .flat_map(|bytes| ["--max-size".to_owned(), bytes.to_string()])
            .collect();
        let launch = self.ended.launch("histories", &more, true)?;
        let pool = launch.pool.clone();
        let options = histories::Options {
            launch,
            cycles: self.cycles,
            connections: self.ended.connections as usize,
            full: self.full,
            seed: self.ended.seed,
        };
        // A line each tenth of the way.
        let every = (self.cycles / 10).max(1);
        let ran = histories::run(&options, &mut |figures| {
            if !self.ended.json && figures.cycles % every == 0 {
                println!("{}", line(figures));
            }
        });
        let figures = ran.map_err(|failure| self.ended.broken("histories", failure, &pool))?;
        self.ended
            .held("histories", &pool, &line(&figures), json(&figures))
    }
}

fn line(figures: &histories::Figures) -> String {
    let histories::Figures {
        cycles,
        answered,
        in_flight,
        refused,
        histories,
        given_up,
        ..
    } = figures;
    format!(
        "{cycles} cycles ({} by SHUTDOWN, {} by SIGTERM and SIGKILL; {} kills in recovery), {answered} calls answered, \
         {refused} refused, {in_flight} in flight at an end, {histories} histories have an order, {given_up} given up; \
         {:.1} s",
        figures.shutdowns,
        figures.terminated,
        figures.kills_in_recovery,
        figures.elapsed.as_secs_f64(),
    )
}

fn json(figures: &histories::Figures) -> serde_json::Value {
    serde_json::json!({
        "check": "histories",
        "holds": true,
        "cycles": figures.cycles,
        "shutdowns": figures.shutdowns,
        "terminated": figures.terminated,
        "kills_in_recovery": figures.kills_in_recovery,
        "answered": figures.answered,
        "in_flight": figures.in_flight,
        "refused": figures.refused,
        "histories": figures.histories,
        "given_up": figures.given_up,
        "elapsed_s": figures.elapsed.as_secs_f64(),
    })
}
