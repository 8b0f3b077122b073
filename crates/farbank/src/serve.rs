//! `farbank serve`: from a path to a served store, and back.
//!
//! The pool is opened, or made if there is none; a [`Kv`] stands on its medium; a [`Server`] serves
//! it until a signal or a client's SHUTDOWN; then the store is closed cleanly.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use farbank_kv::store::{Opened, Store};
use farbank_kv::{Config, Kv, SEGMENTS_MIN, segment_bytes_for};
use farbank_pm::media::{AnyMedium, OpenError, OpenOptions, SyncPolicy, create_path, open_path};
use farbank_pm::{Kind, Medium};
use farbank_server::{Handle, Options, Server};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::level_filters::LevelFilter;

use crate::{Failure, size};

const EXAMPLES: &str = "\
Examples:
  farbank serve
      a pool of 1 GiB in ./farbank.pool, on port 6379 of this machine only
  farbank serve --pool /mnt/pmem0/bank --size 64gb
      a pool on persistent memory; the medium is found out and printed
  farbank serve --pool /var/lib/farbank/pool --max-size 100gb --sync everysec
      an ordinary file that grows as it fills, synced once a second
  redis-cli -p 6379 set greeting hello
      talks to it";

/// Creating a pool takes this long before a progress bar is worth showing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serve a pool to Redis clients.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The pool: a file, or a devdax device. Made if it is not there.
    #[arg(long, value_name = "PATH", default_value = "./farbank.pool")]
    pool: PathBuf,
    /// The medium the pool must be on; auto takes what the path is best at.
    #[arg(long, value_enum, default_value = "auto")]
    medium: MediumChoice,
    /// Size of a new pool.
    #[arg(long, value_name = "SIZE", default_value = "1gb", value_parser = size::parse)]
    size: u64,
    /// Size the pool may grow to as it fills; without this it does not grow.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
    /// Segment size of a new pool, a power of two from 4kb; chosen from --size if not given.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    segment_bytes: Option<u64>,
    /// When a write to a file is durable: before it is acknowledged, once a second, or at the end.
    /// Persistent memory needs no sync and ignores this.
    #[arg(long, value_enum, default_value = "always")]
    sync: SyncChoice,
    /// Addresses to listen on. Others than loopback need --unsafe-no-auth.
    #[arg(
        long,
        value_name = "IP",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    bind: Vec<IpAddr>,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 6379)]
    port: u16,
    /// Threads that serve clients; 0 is one a CPU, at most 4.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Most clients at a time.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    maxclients: u64,
    /// Let anyone who can reach the address read and change everything: there is no password.
    #[arg(long)]
    unsafe_no_auth: bool,
    /// What is logged to stderr: off, error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: LevelFilter,
}

#[derive(Clone, Copy, ValueEnum)]
enum MediumChoice {
    Auto,
    Dax,
    Dram,
    File,
}

#[derive(Clone, Copy, ValueEnum)]
enum SyncChoice {
    Always,
    Everysec,
    Never,
}

impl Serve {
    /// Serves until told to stop.
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.check()?;
        tracing_subscriber::fmt()
            .with_max_level(self.log_level)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .init();
        let server = self.bind()?;
        // Before the pool is touched: from here on a signal ends the server, not the process.
        let handle = server.handle();
        let mut signals = Signals::new([SIGTERM, SIGINT])
            .map_err(|e| Failure::failed(format!("cannot wait for signals: {e}")))?;
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || stop_on_signal(&mut signals, &handle))
            .map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))?;
        let (medium, made) = self.medium()?;
        match medium {
            AnyMedium::Mapped(medium) => self.serve(medium, made, server, |_| Ok(())),
            AnyMedium::File(medium) => self.serve(medium, made, server, |medium| medium.close()),
        }
    }

    /// Refuses what cannot work before anything is done.
    fn check(&self) -> Result<(), Failure> {
        if let Some(open) = self.bind.iter().find(|ip| !ip.is_loopback())
            && !self.unsafe_no_auth
        {
            return Err(Failure::Usage(format!(
                "{open} can be reached from other machines, and there is no password yet: anyone \
                 there could read and change everything. Pass --unsafe-no-auth if that is meant"
            )));
        }
        let segment_bytes = self.segment_bytes();
        if !segment_bytes.is_power_of_two() || segment_bytes < 4096 {
            let text = "--segment-bytes must be a power of two from 4kb";
            return Err(Failure::Usage(text.into()));
        }
        let least = segment_bytes.saturating_mul(SEGMENTS_MIN + 1);
        if self.size < least {
            let least = size::human(least);
            return Err(Failure::Usage(format!("--size must be at least {least}")));
        }
        if self.max_size.is_some_and(|max| max < self.size) {
            return Err(Failure::Usage("--max-size is less than --size".into()));
        }
        Ok(())
    }

    fn segment_bytes(&self) -> u64 {
        self.segment_bytes
            .unwrap_or_else(|| segment_bytes_for(self.size))
    }

    fn sync(&self) -> SyncPolicy {
        match self.sync {
            SyncChoice::Always => SyncPolicy::Always,
            SyncChoice::Everysec => SyncPolicy::EverySec,
            SyncChoice::Never => SyncPolicy::Never,
        }
    }

    fn bind(&self) -> Result<Server, Failure> {
        let addrs: Vec<_> = self
            .bind
            .iter()
            .map(|&ip| SocketAddr::new(ip, self.port))
            .collect();
        let pool = std::path::absolute(&self.pool).unwrap_or_else(|_| self.pool.clone());
        let options = Options {
            workers: self.workers,
            clients_max: self.maxclients,
            sync: match self.sync() {
                SyncPolicy::Never => "no",
                other => other.name(),
            },
            pool: pool.display().to_string(),
        };
        Server::bind(&addrs, options).map_err(|error| {
            let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
            Failure::Failed {
                error: format!("cannot listen on {}: {error}", addrs.join(", ")),
                hint: Some("another server may be there; choose another --port".into()),
            }
        })
    }

    /// Opens the pool's medium, or makes it; whether it was made.
    fn medium(&self) -> Result<(AnyMedium, bool), Failure> {
        let kind = match self.medium {
            MediumChoice::Auto => None,
            MediumChoice::Dax => Some(Kind::Dax),
            MediumChoice::Dram => Some(Kind::Dram),
            MediumChoice::File => Some(Kind::File),
        };
        let options = OpenOptions {
            medium: kind,
            sync: self.sync(),
            ..OpenOptions::default()
        };
        if self.pool.exists() {
            let medium = open_path(&self.pool, &options).map_err(|e| refused(&e))?;
            return Ok((medium, false));
        }
        let mut progress = Progress::new("making the pool");
        let made = create_path(&self.pool, self.size, &options, &mut |done, all| {
            progress.show(done, all);
        });
        let medium = made.map_err(|e| refused(&e))?;
        medium.prefault(&mut |done, all| progress.show(done, all));
        progress.clear();
        Ok((medium, true))
    }

    /// Serves the store on `medium`; `close` lets the medium go when the store is closed.
    fn serve<M: Medium>(
        &self,
        medium: M,
        made: bool,
        server: Server,
        close: impl Fn(M) -> Result<(), farbank_pm::Poisoned>,
    ) -> Result<(), Failure> {
        let config = Config {
            pool_bytes_max: self.max_size.unwrap_or(0),
            ..Config::default()
        };
        let store = if made {
            let store = Kv::create(medium, self.segment_bytes(), config);
            if store.is_err() {
                // What was made here a moment ago holds nothing, and would be in the way.
                remove(&self.pool);
            }
            store
        } else {
            Kv::open(medium, config)
        };
        let store = store.map_err(|error| self.not_opened(&error.to_string()))?;
        self.greet(&server, &store, made);
        let served = server.run(&store);
        let closed = store.close().map_err(Failure::failed)?;
        if let Some(medium) = closed {
            close(medium).map_err(Failure::failed)?;
        }
        served.map_err(|e| Failure::failed(format!("the server stopped: {e}")))
    }

    fn not_opened(&self, error: &str) -> Failure {
        Failure::failed(format!("{}: {error}", self.pool.display()))
    }

    /// Says where it listens, on what, what survives, and how the keys came back.
    fn greet(&self, server: &Server, store: &dyn Store, made: bool) {
        let (stats, caps, opened) = (store.stats(), store.caps(), store.opened());
        let addrs: Vec<_> = server
            .addrs()
            .iter()
            .map(|addr| format!("redis://{addr}"))
            .collect();
        println!(
            "farbank {} listens on {}",
            env!("CARGO_PKG_VERSION"),
            addrs.join(" and ")
        );
        println!(
            "pool {}: {} in segments of {}, medium {}",
            self.pool.display(),
            size::human(stats.pool_bytes),
            size::human(stats.segment_bytes),
            caps.kind.name()
        );
        println!("an acknowledged write survives {}", caps.survives);
        println!("{}", keys_line(opened, made));
        for line in &opened.damage {
            eprintln!("damage: {line}");
        }
        if self.unsafe_no_auth {
            eprintln!("warning: --unsafe-no-auth: anyone who can connect can change everything");
        }
    }
}

fn keys_line(opened: &Opened, made: bool) -> String {
    let Opened {
        clean,
        keys,
        records_scanned,
        elapsed_ms,
        ..
    } = opened;
    match (made, clean) {
        (true, _) => format!("new and empty, ready in {elapsed_ms:.1} ms"),
        (_, true) => format!("{keys} keys came back in {elapsed_ms:.1} ms, after a clean close"),
        (_, false) => format!(
            "{keys} keys came back in {elapsed_ms:.1} ms, after a crash: {records_scanned} records \
             read"
        ),
    }
}

fn refused(error: &OpenError) -> Failure {
    let hint = match error {
        OpenError::InUse { .. } => Some("one server at a time serves a pool; stop the other one"),
        OpenError::NoSpace { .. } => Some("a smaller --size, or another file system, would do"),
        OpenError::Unavailable { .. } => Some("--medium auto takes what the path is best at"),
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the empty pool was left behind");
    }
}

/// The first signal ends the server in good order; a second one ends the process.
fn stop_on_signal(signals: &mut Signals, handle: &Handle) {
    for (count, signal) in signals.forever().enumerate() {
        if count > 0 {
            std::process::exit(1);
        }
        tracing::info!(signal, "stopping");
        handle.stop();
    }
}

/// A progress bar for people, once something takes long.
struct Progress {
    since: Instant,
    what: &'static str,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(what: &'static str) -> Progress {
        Progress {
            since: Instant::now(),
            what,
            bar: None,
        }
    }

    fn show(&mut self, done: u64, all: u64) {
        if self.bar.is_none() {
            if self.since.elapsed() < PATIENCE || !std::io::stderr().is_terminal() {
                return;
            }
            let bar = ProgressBar::new(all).with_message(self.what);
            let template = "{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left";
            self.bar = Some(match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            });
        }
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
