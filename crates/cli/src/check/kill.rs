//! `farbank check kill`: kill a real server under load.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use farbank_bench::kill;

use crate::{Failure, size};

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
    /// Threads of the server; 0 is its own choice.
    #[arg(long, value_name = "N", default_value_t = 0)]
    workers: usize,
    /// Connections that load it.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Where the pool is made, and removed if all is well; in memory (/dev/shm) if not given.
    #[arg(long, value_name = "PATH")]
    pool: Option<PathBuf>,
    /// The medium the pool must be on, as for serve.
    #[arg(long, value_name = "MEDIUM", default_value = "auto")]
    medium: String,
    /// Size of the pool, from 32mb: so much of it is filled that the cleaner always works.
    #[arg(long, value_name = "SIZE", default_value = "64mb", value_parser = size::parse)]
    size: u64,
    /// Where chance starts from. Timing differs from run to run all the same.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

impl Kill {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.size < 32 << 20 {
            return Err(Failure::Usage("--size must be at least 32mb".into()));
        }
        let pool = self.pool.clone().unwrap_or_else(|| {
            let memory = PathBuf::from("/dev/shm");
            let folder = if memory.is_dir() {
                memory
            } else {
                std::env::temp_dir()
            };
            folder.join(format!("farbank-check-kill-{}", std::process::id()))
        });
        if pool.exists() {
            return Err(Failure::Usage(format!(
                "{} is there already",
                pool.display()
            )));
        }
        let options = self.options(pool.clone())?;
        // A line each tenth of the way.
        let every = (self.cycles / 10).max(1);
        let ended = kill::run(&options, &mut |figures| {
            if !self.json && figures.cycles % every == 0 {
                println!("{}", line(figures));
            }
        });
        let figures = ended.map_err(|failure| self.broken(failure, &pool))?;
        std::fs::remove_file(&pool)
            .map_err(|e| Failure::failed(format!("cannot remove {}: {e}", pool.display())))?;
        println!(
            "{}",
            if self.json {
                json(&figures)
            } else {
                format!("check kill: holds; {}", line(&figures))
            }
        );
        Ok(())
    }

    fn options(&self, pool: PathBuf) -> Result<kill::Options, Failure> {
        let program = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
        let workers = self.workers.to_string();
        let arguments = ["--medium", &self.medium, "--workers", &workers];
        Ok(kill::Options {
            program,
            pool,
            pool_bytes: self.size,
            arguments: arguments.into_iter().map(OsString::from).collect(),
            cycles: self.cycles,
            connections: self.connections as usize,
            seed: self.seed,
        })
    }

    /// Tells what broke; the pool stays, to be looked at.
    fn broken(&self, failure: kill::Failure, pool: &std::path::Path) -> Failure {
        let what = match failure {
            kill::Failure::Broken(why) => why,
            kill::Failure::Violation(violation) => {
                eprintln!("violation: key {}: {}", violation.key, violation.what);
                for event in &violation.history {
                    eprintln!("    {event}");
                }
                format!(
                    "check kill: VIOLATED: key {}: {}",
                    violation.key, violation.what
                )
            }
        };
        if self.json {
            let what = serde_json::Value::from(what.as_str());
            println!("{{\"check\":\"kill\",\"holds\":false,\"what\":{what}}}");
        }
        let hint = pool
            .exists()
            .then(|| format!("the pool is left in {}", pool.display()));
        Failure::Failed { error: what, hint }
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

fn json(figures: &kill::Figures) -> String {
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
    .to_string()
}
