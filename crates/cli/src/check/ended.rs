//! Code shared by the checks that kill or stop real processes: the server, its pool, and the report of a check.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use farbank_check::child::{self, ServerLaunch};
use serde_json::Value;

use crate::common::{Failure, size};

/// Minimum size of a pool. The checks fill the pool so far that the cleaner is always active.
const SIZE_MIN: u64 = 32 << 20;

/// Figures of a check so far.
pub(super) trait CheckFigures {
    /// Cycles of ending and restarting the server whose data was correct.
    fn cycles(&self) -> u64;
    /// One line of text.
    fn line(&self) -> String;
    /// The same figures as a JSON object.
    fn json(&self) -> Value;
}

/// Options for the server, its pool and the number of cycles.
#[derive(Args)]
pub(super) struct EndedServerArgs {
    /// Number of times the server is killed or stopped.
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) cycles: u64,
    /// Worker threads of the server; 0 means the server's default, or a random number if the power is cut.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) workers: usize,
    /// Connections that generate load.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) connections: u32,
    /// Path of the new pool, which is removed if the check holds. Default: a file in memory (/dev/shm).
    #[arg(long, value_name = "PATH")]
    pool: Option<PathBuf>,
    /// Medium that the pool must be on, as for serve.
    #[arg(long, value_name = "MEDIUM", default_value = "auto")]
    medium: String,
    /// When a write is synced, as for serve.
    #[arg(long, value_name = "WHEN", default_value = "always")]
    sync: String,
    /// Size of the pool, at least 32mb. It is filled so far that the cleaner is always active.
    #[arg(long, value_name = "SIZE", default_value = "64mb", value_parser = size::parse)]
    size: u64,
    /// Seed of the random number generator. Timing still differs from run to run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

impl EndedServerArgs {
    /// Returns the size of the pool in bytes.
    pub(super) fn pool_bytes(&self) -> Result<u64, Failure> {
        match self.size {
            ..SIZE_MIN => Err(Failure::Usage("--size must be at least 32mb".into())),
            size => Ok(size),
        }
    }

    /// Returns how to start the server, with `more` arguments.
    pub(super) fn launch(
        &self,
        check: &str,
        more: &[String],
        memcached: bool,
    ) -> Result<ServerLaunch, Failure> {
        let pool_bytes = self.pool_bytes()?;
        let pool = self.pool.clone().unwrap_or_else(|| in_memory(check));
        if pool.exists() {
            let pool = pool.display();
            return Err(Failure::Usage(format!(
                "--pool {pool}: the file already exists"
            )));
        }
        let program = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find the path of this program: {e}")))?;
        let workers = self.workers.to_string();
        let own = [
            ["--medium", &self.medium],
            ["--sync", &self.sync],
            ["--workers", &workers],
            // Many checkpoints of the index, also in a small pool.
            ["--checkpoint-bytes", "64kb"],
            ["--log-level", "error"],
        ];
        Ok(ServerLaunch {
            program,
            pool,
            pool_bytes,
            arguments: own
                .concat()
                .into_iter()
                .map(OsString::from)
                .chain(more.iter().map(OsString::from))
                .collect(),
            memcached,
        })
    }

    /// Runs a check, and removes the pool if the check holds.
    pub(super) fn run<F: CheckFigures>(
        &self,
        check: &str,
        pool: &Path,
        run: impl FnOnce(&mut dyn FnMut(&F)) -> Result<F, child::RunFailure>,
    ) -> Result<(), Failure> {
        self.report(check, pool)
            .run(run, |pool| std::fs::remove_file(pool))
    }

    /// Returns how the check reports. If it fails, `kept` is kept for inspection.
    pub(super) fn report<'a>(&self, check: &'a str, kept: &'a Path) -> CheckReport<'a> {
        CheckReport {
            check,
            cycles: self.cycles,
            json: self.json,
            kept,
        }
    }
}

/// How a check of cycles reports.
pub(super) struct CheckReport<'a> {
    /// Name of the check.
    pub(super) check: &'a str,
    /// Number of cycles.
    pub(super) cycles: u64,
    /// Whether the result is one JSON object on the last line.
    pub(super) json: bool,
    /// What is kept for inspection if the check fails: a pool, or a folder with several.
    pub(super) kept: &'a Path,
}

impl CheckReport<'_> {
    /// Runs the check, prints a line at every tenth of the cycles and the result, and calls `remove` if the check holds.
    pub(super) fn run<F: CheckFigures>(
        &self,
        run: impl FnOnce(&mut dyn FnMut(&F)) -> Result<F, child::RunFailure>,
        remove: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let every = (self.cycles / 10).max(1);
        let ran = run(&mut |figures| {
            if !self.json && figures.cycles() % every == 0 {
                println!("{}", figures.line());
            }
        });
        let figures = ran.map_err(|failure| self.broken(failure))?;
        remove(self.kept)
            .map_err(|e| Failure::failed(format!("cannot remove {}: {e}", self.kept.display())))?;
        match self.json {
            true => println!("{}", figures.json()),
            false => println!("check {}: holds; {}", self.check, figures.line()),
        }
        Ok(())
    }

    /// Reports a failed check.
    fn broken(&self, failure: child::RunFailure) -> Failure {
        let check = self.check;
        let what = described(check, failure);
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "check": check, "holds": false, "what": what })
            );
        }
        let kept = self.kept;
        let hint = kept
            .exists()
            .then(|| format!("the pool is kept in {} for inspection", kept.display()));
        Failure::Failed { error: what, hint }
    }
}

/// Describes a failed check. Prints the history of a violation.
fn described(check: &str, failure: child::RunFailure) -> String {
    match failure {
        child::RunFailure::Broken(why) => why.to_string(),
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
    }
}

/// Returns a path for a pool in /dev/shm, or in the temporary folder if that does not exist.
pub(super) fn in_memory(check: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    };
    folder.join(format!("farbank-check-{check}-{}", std::process::id()))
}
