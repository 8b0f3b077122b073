//! `farbank check kill`: kill a real server under load.

use clap::Args;
use farbank_bench::kill;

use super::ended::Ended;
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  farbank check kill --cycles 100
      a pool in memory, as on persistent memory, killed a hundred times
  farbank check kill --pool /var/tmp/killed --medium file --size 128mb
      an ordinary file, acknowledged after each fdatasync";

/// Kill a real server under load and check what it says afterwards.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Kill {
    /// How many times it is killed.
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..))]
    cycles: u64,
    #[command(flatten)]
    ended: Ended,
}

impl Kill {
    pub(super) fn run(self) -> Result<(), Failure> {
        let launch = self.ended.launch("kill", &[], false)?;
        let pool = launch.pool.clone();
        let options = kill::Options {
            launch,
            cycles: self.cycles,
            connections: self.ended.connections as usize,
            seed: self.ended.seed,
        };
        // A line each tenth of the way.
        let every = (self.cycles / 10).max(1);
        let ran = kill::run(&options, &mut |figures| {
            if !self.ended.json && figures.cycles % every == 0 {
                println!("{}", line(figures));
            }
        });
        let figures = ran.map_err(|failure| self.ended.broken("kill", failure, &pool))?;
        self.ended
            .held("kill", &pool, &line(&figures), json(&figures))
    }
}

fn line(figures: &kill::Figures) -> String {
    let kill::Figures {
        cycles,
        acknowledged,
        in_flight,
        keys_checked,
        segments_cleaned,
        ..
    } = figures;
    format!(
        "{cycles} cycles ({} clean ends, {} kills in recovery), {acknowledged} commands acknowledged, \
         {in_flight} in flight at a kill, {keys_checked} keys checked, {segments_cleaned} segments \
         cleaned, at least {:.1} % live, slowest open {:.1} ms; {:.1} s",
        figures.shutdowns,
        figures.kills_in_recovery,
        figures.live_share_min * 100.0,
        figures.open_ms_max,
        figures.elapsed.as_secs_f64(),
    )
}

fn json(figures: &kill::Figures) -> serde_json::Value {
    serde_json::json!({
        "check": "kill",
        "holds": true,
        "cycles": figures.cycles,
        "shutdowns": figures.shutdowns,
        "kills_in_recovery": figures.kills_in_recovery,
        "acknowledged": figures.acknowledged,
        "in_flight": figures.in_flight,
        "keys_checked": figures.keys_checked,
        "segments_cleaned": figures.segments_cleaned,
        "live_share_min": figures.live_share_min,
        "open_ms_max": figures.open_ms_max,
        "elapsed_s": figures.elapsed.as_secs_f64(),
    })
}
