//! What the checks that end a real server have in common: the server, its pool, and what is said of a failure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use farbank_bench::child::{self, Launch};

use crate::{Failure, size};

/// A pool is this large at least: so much of it is filled that the cleaner always works.
const SIZE_MIN: u64 = 32 << 20;

/// The server that is ended, and its pool.
#[derive(Args)]
pub(super) struct Ended {
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
    pub(super) json: bool,
}

impl Ended {
    /// How the server is started, with `more` arguments.
    pub(super) fn launch(
        &self,
        check: &str,
        more: &[String],
        memcached: bool,
    ) -> Result<Launch, Failure> {
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
        let own = ["--medium", &self.medium, "--sync", &self.sync];
        let more_own = ["--workers", &workers, "--log-level", "error"];
        let own = own.into_iter().chain(more_own);
        Ok(Launch {
            program,
            pool,
            pool_bytes: self.size,
            arguments: own
                .map(OsString::from)
                .chain(more.iter().map(OsString::from))
                .collect(),
            memcached,
        })
    }

    /// Removes the pool of a check that holds, and says so.
    pub(super) fn held(
        &self,
        check: &str,
        pool: &Path,
        line: &str,
        json: serde_json::Value,
    ) -> Result<(), Failure> {
        std::fs::remove_file(pool)
            .map_err(|e| Failure::failed(format!("cannot remove {}: {e}", pool.display())))?;
        match self.json {
            true => println!("{json}"),
            false => println!("check {check}: holds; {line}"),
        }
        Ok(())
    }

    /// Tells what broke; the pool stays, to be looked at.
    pub(super) fn broken(&self, check: &str, failure: child::Failure, pool: &Path) -> Failure {
        let what = match failure {
            child::Failure::Broken(why) => why,
            child::Failure::Violation(violation) => {
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
