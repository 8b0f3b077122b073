//! `farbank check histories`: kills a real server, or cuts the power of one on a simulated medium, and checks that the
//! calls of its clients are linearizable.

use clap::Args;
use farbank_check::histories::{self, ServerProcess};
use farbank_pm::sim::Persistency;
use serde_json::Value;

use super::ended::{CheckFigures, EndedServerArgs, in_memory};
use super::simulated_server::{SimulatedLaunch, SimulatedServer};
use super::targets::persistency;
use crate::common::choice::AnyOr;
use crate::common::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank check histories --cycles 100
      a pool in memory, treated as persistent memory; the server is killed or stopped a hundred times
  farbank check histories --pool /var/tmp/histories --medium file --max-size 256mb
      a pool in an ordinary file that grows; a write is acknowledged after its fdatasync
  farbank check histories --persistency page --cycles 300
      a pool in a simulated file; the power is cut, and what was not synced is lost or kept at random";

/// End a server while clients share keys, and check that the recorded calls are linearizable.
///
/// The server is a process that is killed or stopped. With --persistency it runs in this process, on a simulated
/// medium whose power is cut.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HistoriesArgs {
    /// What a power cut can lose: serve a simulated pool in this process, and cut its power.
    #[arg(long, value_name = "MODE", value_parser = persistency(), conflicts_with_all = ["pool", "medium", "sync"])]
    persistency: Option<AnyOr<Persistency>>,
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
        let options = histories::HistoryOptions {
            cycles: self.ended.cycles,
            connections: self.ended.connections as usize,
            full: self.full,
            seed: self.ended.seed,
        };
        match self.persistency {
            Some(mode) => self.cut_power(mode, &options),
            None => self.kill(&options),
        }
    }

    /// Runs the check on a simulated medium.
    fn cut_power(
        &self,
        mode: AnyOr<Persistency>,
        options: &histories::HistoryOptions,
    ) -> Result<(), Failure> {
        let AnyOr::One(persistency) = mode else {
            return Err(Failure::Usage("--persistency all: name one mode".into()));
        };
        if persistency == Persistency::Relaxed {
            return Err(Failure::Usage(
                "--persistency relaxed: a power cut may lose acknowledged writes there, so no order explains them"
                    .into(),
            ));
        }
        let mut server = SimulatedServer::new(SimulatedLaunch {
            persistency,
            pool_bytes: self.ended.pool_bytes()?,
            pool_bytes_max: self.max_size.unwrap_or(0),
            workers: self.ended.workers,
            seed: options.seed,
        });
        let image = in_memory("histories");
        self.ended.report("histories", &image).run(
            |progress| {
                let ran = histories::run(&mut server, options, progress);
                if ran.is_err()
                    && let Err(error) = server.save(&image)
                {
                    eprintln!("cannot write {}: {error}", image.display());
                }
                ran
            },
            |_| Ok(()),
        )
    }

    /// Runs the check on a process.
    fn kill(&self, options: &histories::HistoryOptions) -> Result<(), Failure> {
        let more: Vec<String> = self
            .max_size
            .iter()
            .flat_map(|bytes| ["--max-size".to_owned(), bytes.to_string()])
            .collect();
        let launch = self.ended.launch("histories", &more, true)?;
        let pool = launch.pool.clone();
        let mut server = ServerProcess::new(launch);
        self.ended.run("histories", &pool, |progress| {
            histories::run(&mut server, options, progress)
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
            "{cycles} cycles ({} by SHUTDOWN, {} by SIGTERM and SIGKILL, {} by power cuts; {} ends during recovery; {} media failed), {answered} calls answered, \
         {refused} refused, {in_flight} in flight at the end of a server, {histories} histories linearizable, {given_up} not decided; \
         {:.1} s",
            self.shutdowns,
            self.terminated,
            self.power_cuts,
            self.ends_in_recovery,
            self.media_failures,
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
            "power_cuts": self.power_cuts,
            "ends_in_recovery": self.ends_in_recovery,
            "media_failures": self.media_failures,
            "answered": self.answered,
            "in_flight": self.in_flight,
            "refused": self.refused,
            "histories": self.histories,
            "given_up": self.given_up,
            "elapsed_s": self.elapsed.as_secs_f64(),
        })
    }
}
