//! What the checks that end a real server have in common: the server, its pool, and what is said of a failure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use farbank_bench::child::{self, ServerLaunch};
use serde_json::Value;

use crate::{Failure, size};

/// A pool is this large at least: so much of it is filled that the cleaner always works.
const SIZE_MIN: u64 = 32 << 20;

/// What a check has seen so far.
pub(super) trait CheckFigures {
    /// How many times the server was ended and what it showed then was right.
    fn cycles(&self) -> u64;
    /// One line for people.
    fn line(&self) -> String;
    /// The same as a JSON object.
    fn json(&self) -> Value;
}

/// The server that is ended, its pool, and how often.
#[derive(Args)]
pub(super) struct EndedServerArgs {
    /// How many times it is ended.
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) cycles: u64,
    /// Threads of the server; 0 is its own choice.
    #[arg(long, value_name = "N", default_value_t = 0)]
    workers: usize,
    /// Connections that load it.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) connections: u32,
    /// Where the pool is made, and removed if all is well; in memory (/dev/shm) if not given.
    #[arg(long, value_name = "PATH")]
    pool: Option<PathBuf>,
    /// The medium the pool must be on, as for serve.
    #[arg(long, value_name = "MEDIUM", default_value = "auto")]
    medium: String,
    /// When a write is acknowledged, as for serve.
    #[arg(long, value_name = "WHEN", default_value = "always")]
    sync: String,
    /// Size of the pool, from 32mb: so much of it is filled that the cleaner always works.
    #[arg(long, value_name = "SIZE", default_value = "64mb", value_parser = size::parse)]
    size: u64,
    /// Where chance starts from. Timing differs from run to run all the same.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

impl EndedServerArgs {
    /// How the server is started, with `more` arguments.
    pub(super) fn launch(
        &self,
        check: &str,
        more: &[String],
        memcached: bool,
    ) -> Result<ServerLaunch, Failure> {
        if self.size < SIZE_MIN {
            return Err(Failure::Usage("--size must be at least 32mb".into()));
        }
        let pool = self.pool.clone().unwrap_or_else(|| in_memory(check));
        if pool.exists() {
            let pool = pool.display();
            return Err(Failure::Usage(format!("{pool} is there already")));
        }
        let program = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
        let workers = self.workers.to_string();
        let own = [
            ["--medium", &self.medium],
            ["--sync", &self.sync],
            ["--workers", &workers],
            ["--log-level", "error"],
        ];
        Ok(ServerLaunch {
            program,
            pool,
            pool_bytes: self.size,
            arguments: own
                .concat()
                .into_iter()
                .map(OsString::from)
                .chain(more.iter().map(OsString::from))
                .collect(),
            memcached,
        })
    }

    /// Runs a check, with a line each tenth of the way, says how it ended, and removes the pool if it holds.
    pub(super) fn run<F: CheckFigures>(
        &self,
        check: &str,
        pool: &Path,
        run: impl FnOnce(&mut dyn FnMut(&F)) -> Result<F, child::RunFailure>,
    ) -> Result<(), Failure> {
        let every = (self.cycles / 10).max(1);
        let ran = run(&mut |figures| {
            if !self.json && figures.cycles() % every == 0 {
                println!("{}", figures.line());
            }
        });
        let figures = ran.map_err(|failure| self.broken(check, failure, pool))?;
        std::fs::remove_file(pool)
            .map_err(|e| Failure::failed(format!("cannot remove {}: {e}", pool.display())))?;
        match self.json {
            true => println!("{}", figures.json()),
            false => println!("check {check}: holds; {}", figures.line()),
        }
        Ok(())
    }

    /// Tells what broke; the pool stays, to be looked at.
    fn broken(&self, check: &str, failure: child::RunFailure, pool: &Path) -> Failure {
        let what = match failure {
            child::RunFailure::Broken(why) => why,
            child::RunFailure::Violation(violation) => {
                eprintln!("violation: key {}: {}", violation.key, violation.what);
                for event in &violation.history {
                    eprintln!("    {event}");
                }
                format!(
                    "check {check}: VIOLATED: key {}: {}",
                    violation.key, violation.what
                )
            }
        };
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "check": check, "holds": false, "what": what })
            );
        }
        let hint = pool
            .exists()
            .then(|| format!("the pool is left in {}", pool.display()));
        Failure::Failed { error: what, hint }
    }
}

/// A pool in memory, if there is a folder for that.
fn in_memory(check: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    };
    folder.join(format!("farbank-check-{check}-{}", std::process::id()))
}
