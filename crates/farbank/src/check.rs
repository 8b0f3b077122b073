//! `farbank check`: the checks by which we know that an acknowledged write survives, for everyone.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use farbank_bench::kill;
use farbank_check::explore::{Config, explore};
use farbank_check::{Pick, Report, Target};
use farbank_kv::target::KvTarget;
use farbank_pm::sim::Persistency;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{Failure, size};

const CRASH_EXAMPLES: &str = "\
Examples:
  farbank check crash
      the engine under 16 seeds in each mode, in two minutes or so
  farbank check crash --persistency adr --seeds 0..1000000 --minutes 5
      as many seeds as five minutes allow, caches lost
  farbank check crash --persistency page --seeds 0x51ab --crash 212 --image 17
      one crash of one seed again, as a violation names it";

/// Check that what is promised holds.
#[derive(Subcommand)]
pub(crate) enum Check {
    /// Crash a structure everywhere, in a simulation, and judge what every power cut could leave.
    Crash(Crash),
    /// Kill a real server under load, again and again, and check that nothing acknowledged is lost.
    Kill(Kill),
}

impl Check {
    /// Runs the check; an error if it does not hold.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Check::Crash(crash) => crash.run(),
            Check::Kill(kill) => kill.run(),
        }
    }
}

/// Crash a structure everywhere and judge what is left.
#[derive(Args)]
#[command(after_help = CRASH_EXAMPLES)]
pub(crate) struct Crash {
    /// What is checked.
    #[arg(long, value_enum, default_value = "kv")]
    target: TargetChoice,
    /// What a power cut may take: caches (adr), nothing stored (eadr), sectors since the last sync
    /// (page), or one mode after the other.
    #[arg(long, value_enum, default_value = "all")]
    persistency: PersistencyChoice,
    /// Seeds to run: one, or a range without its end. Numbers may be hexadecimal.
    #[arg(long, value_name = "A..B", default_value = "0..16")]
    seeds: Seeds,
    /// Look only at this crash of the one seed.
    #[arg(long, value_name = "N")]
    crash: Option<u64>,
    /// Look only at this image of the crash: its number, or `kill`.
    #[arg(long, value_name = "N", requires = "crash")]
    image: Option<Pick>,
    /// Steps of a run.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Most images judged at one crash.
    #[arg(long, value_name = "N")]
    cap: Option<usize>,
    /// Start no further seeds after so many minutes, shared by the modes.
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Threads; 0 is one a CPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print one JSON object on the last line instead of the report.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum TargetChoice {
    /// The key-value engine.
    Kv,
}

#[derive(Clone, Copy, ValueEnum)]
enum PersistencyChoice {
    Adr,
    Eadr,
    Page,
    All,
}

impl PersistencyChoice {
    fn modes(self) -> &'static [Persistency] {
        match self {
            PersistencyChoice::Adr => &[Persistency::Adr],
            PersistencyChoice::Eadr => &[Persistency::Eadr],
            PersistencyChoice::Page => &[Persistency::Page],
            PersistencyChoice::All => &Persistency::ALL,
        }
    }
}

/// A range of seeds as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let seeds = match text.split_once("..") {
            Some((start, end)) => number(start)?..number(end)?,
            None => {
                let seed = number(text)?;
                let end = seed.checked_add(1).ok_or("that seed is too large")?;
                seed..end
            }
        };
        if seeds.is_empty() {
            return Err("no seed is in that range".into());
        }
        Ok(Seeds(seeds))
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|e| format!("{text:?}: {e}"))
}

impl Crash {
    fn run(self) -> Result<(), Failure> {
        if self.crash.is_some() && self.seeds.0.end - self.seeds.0.start != 1 {
            return Err(Failure::Usage(
                "--crash needs one seed: --seeds 0x...".into(),
            ));
        }
        let target = match self.target {
            TargetChoice::Kv => KvTarget,
        };
        let mut reports = Vec::new();
        let modes = self.persistency.modes();
        for (done, mode) in modes.iter().enumerate() {
            let left = (modes.len() - done) as f64;
            let minutes = self.minutes.map(|all| {
                let used: f64 = reports
                    .iter()
                    .map(|r: &Report| r.elapsed.as_secs_f64())
                    .sum();
                (all - used / 60.0) / left
            });
            let report = self.explore(&target, *mode, minutes);
            if !self.json {
                println!("{report}\n");
            }
            reports.push(report);
        }
        let complaints = self.complaints(&reports);
        let figures = Figures {
            reports: &reports,
            holds: complaints.is_empty(),
        };
        println!(
            "{}",
            if self.json {
                figures.json()
            } else {
                figures.line()
            }
        );
        match complaints.into_iter().next() {
            None => Ok(()),
            Some(complaint) => Err(Failure::failed(complaint)),
        }
    }

    fn config(&self, persistency: Persistency) -> Config {
        let usual = Config::new(persistency);
        Config {
            steps: self.steps.unwrap_or(usual.steps),
            cap: self.cap.unwrap_or(usual.cap),
            only: self.crash.map(|crash| (crash, self.image)),
            ..usual
        }
    }

    fn explore(&self, target: &dyn Target, mode: Persistency, minutes: Option<f64>) -> Report {
        let seeds = self.seeds.0.clone();
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let end = minutes
            .map(|minutes| Instant::now() + Duration::from_secs_f64((minutes * 60.0).max(0.0)));
        let bar = progress_bar(seeds.end - seeds.start, mode);
        let report = explore(target, &self.config(mode), seeds, threads, &mut |report| {
            bar.set_position(report.counts.seeds);
            bar.set_message(format!("{} distinct images", report.counts.distinct_images));
            end.is_none_or(|end| Instant::now() < end)
        });
        bar.finish_and_clear();
        report
    }

    /// Why this does not hold, if it does not.
    fn complaints(&self, reports: &[Report]) -> Vec<String> {
        let mut complaints = Vec::new();
        for report in reports {
            if let Some(first) = report.violations.first() {
                complaints.push(format!("{}: {}", report.persistency, first.what));
            }
            if self.crash.is_none() {
                complaints.extend(report.uncovered().map(|place| {
                    format!(
                        "{}: no crash was tried where {} at {} was at stake: more seeds may help",
                        report.persistency,
                        place.act.name(),
                        farbank_pm::sim::brief(place.at)
                    )
                }));
            }
        }
        complaints
    }
}

const KILL_EXAMPLES: &str = "\
Examples:
  farbank check kill --cycles 100
      a pool in memory, as on persistent memory, killed a hundred times
  farbank check kill --pool /var/tmp/killed --medium file --size 128mb
      an ordinary file, acknowledged after each fdatasync";

/// Kill a real server under load and check what it says afterwards.
#[derive(Args)]
#[command(after_help = KILL_EXAMPLES)]
pub(crate) struct Kill {
    /// How many times it is killed.
    #[arg(long, value_name = "N", default_value_t = 20)]
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
    fn run(self) -> Result<(), Failure> {
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

/// What all modes found together.
struct Figures<'a> {
    reports: &'a [Report],
    holds: bool,
}

impl Figures<'_> {
    fn line(&self) -> String {
        let sum = |of: fn(&Report) -> u64| self.reports.iter().map(of).sum::<u64>();
        let seconds: f64 = self.reports.iter().map(|r| r.elapsed.as_secs_f64()).sum();
        let modes: Vec<_> = self.reports.iter().map(|r| r.persistency.name()).collect();
        format!(
            "check crash {}: {}; {} distinct images, {} judged, {} violations, {} of {} places \
             crashed at; {seconds:.1} s",
            modes.join(" "),
            if self.holds { "holds" } else { "DOES NOT HOLD" },
            sum(|r| r.counts.distinct_images),
            sum(|r| r.counts.images),
            sum(|r| r.violations.len() as u64),
            sum(|r| (r.places.len() - r.uncovered().count()) as u64),
            sum(|r| r.places.len() as u64),
        )
    }

    fn json(&self) -> String {
        let runs: Vec<_> = self.reports.iter().map(Report::json).collect();
        let (holds, runs) = (self.holds, runs.join(","));
        format!("{{\"check\":\"crash\",\"holds\":{holds},\"runs\":[{runs}]}}")
    }
}

/// A bar for people; hidden elsewhere.
fn progress_bar(seeds: u64, mode: Persistency) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(seeds).with_prefix(mode.name());
    let template = "{prefix} {wide_bar} {pos}/{len} seeds, {msg}, {elapsed}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_as_written() {
        for (text, seeds) in [
            ("0..40", 0..40),
            ("7", 7..8),
            ("0x51ab", 0x51ab..0x51ac),
            ("1..0x10", 1..16),
        ] {
            assert_eq!(text.parse(), Ok(Seeds(seeds)), "{text}");
        }
        for text in ["", "..", "4..4", "5..1", "x", "18446744073709551615"] {
            assert!(text.parse::<Seeds>().is_err(), "{text}");
        }
    }
}
