//! Kills a real server under load, many times, and checks every key after each restart.
//!
//! ```text
//!   start ──▶ check every key ──▶ pipelined load on all connections ──▶ SIGKILL ──┐
//!     ▲                                                                           │
//!     └──── sometimes killed during recovery, or ended by SHUTDOWN ◀──────────────┘
//! ```
//!
//! Only one connection writes a key, so the allowed values of a key are known exactly: the last acknowledged value, or
//! one that was sent after it. All connections share one counter. The keys fill the pool until more than 77 % of its
//! bytes are live, so that the cleaner always runs.
//!
//! # What is checked
//! CHECK-KILL-1  Every acknowledged effect survives: no key holds a value older than the last acknowledged one, and no key holds
//!     a value that was never written.
//! CHECK-KILL-2  An MSET is atomic, also one that does not fit into the log.
//! CHECK-KILL-3  A counter lies between the acknowledged count and the sent count.
//! CHECK-KILL-4  Expired keys are absent; other keys exist.
//! CHECK-KILL-5  A pipeline sees its own writes, and its replies are correct.
//! CHECK-KILL-6  DBSIZE equals the number of keys found: no key exists that was never written.
//!
//! With [`KillOptions::eviction`], other connections load the server (`evicting`). Their keys need more space than
//! `maxmemory` allows, and each start of the server has another eviction policy. Their rules are CHECK-EVICT-1 to
//! CHECK-EVICT-5.

mod event_log;
mod evicting;
mod workload;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use farbank_pm::rng::Rng;

use evicting::EvictingOwner;
pub use evicting::EvictionOptions;
use workload::{KeyOwner, LoadOutcome, RestartFindings};

use crate::child::{ChildServer, ConnectionStop, RespClient, RunFailure, ServerLaunch};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct KillOptions {
    /// Server under test. Its pool must not exist yet.
    pub launch: ServerLaunch,
    /// How many times the server is ended and restarted.
    pub cycles: u64,
    /// Number of connections. Each writes keys of its own.
    pub connections: usize,
    /// Seed of the random choices.
    pub seed: u64,
    /// Limit above which the server evicts keys. `None`: the server has no limit.
    pub eviction: Option<EvictionOptions>,
}

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KillFigures {
    /// Cycles that were checked without a violation.
    pub cycles: u64,
    /// Cycles that ended with SHUTDOWN instead of SIGKILL.
    pub shutdowns: u64,
    /// Kills while the server was opening its pool.
    pub kills_in_recovery: u64,
    /// Opens that read a checkpoint of the index.
    pub opens_by_checkpoint: u64,
    /// Commands that were acknowledged.
    pub acknowledged: u64,
    /// Commands that were sent but had no reply when the server ended.
    pub in_flight: u64,
    /// Keys read back, summed over all restarts.
    pub keys_checked: u64,
    /// Segments cleaned under load.
    pub segments_cleaned: u64,
    /// Smallest share of the pool that was live under load.
    pub live_share_min: f64,
    /// Keys evicted under load.
    pub keys_evicted: u64,
    /// Writes that were refused because the limit was reached and no key could be evicted.
    pub refused: u64,
    /// Longest time to open the pool, in milliseconds.
    pub open_ms_max: f64,
    /// Duration of the run.
    pub elapsed: Duration,
}

/// Returns the time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Counts of the counter that all connections increment.
#[derive(Debug, Default)]
pub(crate) struct KillShared {
    pub(crate) sent: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
}

/// Key of the counter in [`KillShared`].
pub(crate) const SHARED_KEY: &str = "shared";

/// One connection of the load and the keys that only it writes.
trait KillLoad: Send {
    /// Prepares for the load of a server with this eviction policy. `None`: the server evicts no keys.
    fn begin(&mut self, policy: Option<&str>) {
        let _ = policy;
    }

    /// Stores every key once.
    fn fill(&mut self, client: &mut RespClient, shared: &KillShared) -> Result<(), ConnectionStop>;

    /// Sends pipelines until the server ends.
    fn load(&mut self, addr: &str, shared: &KillShared) -> Result<LoadOutcome, ConnectionStop>;

    /// Reads and checks every key. The values found count as acknowledged from now on.
    fn check(&mut self, client: &mut RespClient) -> Result<RestartFindings, ConnectionStop>;
}

/// How the server is ended at the end of a cycle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KillKind {
    Kill,
    Shutdown,
}

/// Runs all cycles, and calls `progress` with the counters after each.
///
/// # Errors
/// A check found a violation, or the server ended before it was killed, or it does not start.
pub fn run(
    options: &KillOptions,
    progress: &mut dyn FnMut(&KillFigures),
) -> Result<KillFigures, RunFailure> {
    let connections = options.connections;
    match &options.eviction {
        None => {
            let share_bytes = options.launch.pool_bytes / connections as u64;
            let owner = |id| KeyOwner::new(id, share_bytes, options.seed);
            run_load_of((0..connections).map(owner).collect(), options, progress)
        }
        Some(eviction) => {
            let share_bytes = eviction.maxmemory / connections as u64;
            let owner = |id| EvictingOwner::new(id, share_bytes, options.seed);
            run_load_of((0..connections).map(owner).collect(), options, progress)
        }
    }
}

/// Runs all cycles with the load of `owners`.
fn run_load_of<L: KillLoad>(
    mut owners: Vec<L>,
    options: &KillOptions,
    progress: &mut dyn FnMut(&KillFigures),
) -> Result<KillFigures, RunFailure> {
    let started = Instant::now();
    let mut rng = Rng::new(options.seed);
    let shared = KillShared::default();
    let mut figures = KillFigures {
        live_share_min: 1.0,
        ..KillFigures::default()
    };
    let mut server = ChildServer::start(&options.launch)?;
    begin(options, &server, &mut owners, 0)?;
    fill(&server, &mut owners, &shared)?;
    for cycle in 0..options.cycles {
        let end = if cycle % 8 == 7 {
            KillKind::Shutdown
        } else {
            KillKind::Kill
        };
        let load = Duration::from_millis(30 + rng.below(400));
        put_under_load(&mut server, &mut owners, &shared, load, end, &mut figures)?;
        if rng.one_in(4) {
            let patience = Duration::from_micros(rng.below(40_000));
            ChildServer::start_and_kill(&options.launch, patience)?;
            figures.kills_in_recovery += 1;
        }
        server = ChildServer::start(&options.launch)?;
        figures.open_ms_max = figures.open_ms_max.max(server.open_ms());
        figures.opens_by_checkpoint += u64::from(server.has_read_checkpoint());
        check(&server, &mut owners, &shared, &mut figures)?;
        begin(options, &server, &mut owners, cycle + 1)?;
        figures.cycles += 1;
        figures.shutdowns += u64::from(end == KillKind::Shutdown);
        figures.elapsed = started.elapsed();
        progress(&figures);
    }
    server.kill()?;
    Ok(figures)
}

/// Sets the limit and the policy of `cycle` in the server, if it is to evict keys, and prepares the owners.
fn begin<L: KillLoad>(
    options: &KillOptions,
    server: &ChildServer,
    owners: &mut [L],
    cycle: u64,
) -> Result<(), RunFailure> {
    let policy = match &options.eviction {
        Some(eviction) => Some(eviction.apply(server.addr(), cycle)?),
        None => None,
    };
    for owner in owners {
        owner.begin(policy);
    }
    Ok(())
}

/// Runs `work` for every owner, each on its own thread and connection.
fn each_owner<L: KillLoad, R: Send>(
    server: &ChildServer,
    owners: &mut [L],
    work: impl Fn(&mut L, &mut RespClient) -> Result<R, ConnectionStop> + Sync,
) -> Vec<Result<R, ConnectionStop>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = owners
            .iter_mut()
            .map(|owner| scope.spawn(move || work(owner, &mut RespClient::connect(server.addr())?)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a connection's thread panicked"))
            .collect()
    })
}

fn fill<L: KillLoad>(
    server: &ChildServer,
    owners: &mut [L],
    shared: &KillShared,
) -> Result<(), RunFailure> {
    let filled = each_owner(server, owners, |owner, client| owner.fill(client, shared));
    Ok(filled.into_iter().collect::<Result<(), ConnectionStop>>()?)
}

/// Puts the server under load and ends it after `time`.
fn put_under_load<L: KillLoad>(
    server: &mut ChildServer,
    owners: &mut [L],
    shared: &KillShared,
    time: Duration,
    end: KillKind,
    figures: &mut KillFigures,
) -> Result<(), RunFailure> {
    let addr = server.addr().to_owned();
    let (results, seen) = thread::scope(|scope| {
        let load = scope.spawn(|| {
            thread::sleep(time);
            // Read before the server ends, because the cleaner's counters start at 0 with each process.
            let seen = RespClient::connect(&addr).and_then(|mut client| client.pool_figures());
            let ended = match end {
                KillKind::Kill => server.kill(),
                KillKind::Shutdown => server.shutdown(),
            };
            ended.and(Ok(seen))
        });
        let results = run_load(&addr, owners, shared);
        (
            results,
            load.join()
                .expect("the thread that ends the server panicked"),
        )
    });
    let seen = seen??;
    figures.segments_cleaned += seen.segments_cleaned;
    figures.keys_evicted += seen.keys_evicted;
    figures.live_share_min = figures.live_share_min.min(seen.live_share);
    for result in results {
        match result {
            Ok(load) => {
                figures.acknowledged += load.acknowledged;
                figures.in_flight += load.in_flight;
                figures.refused += load.refused;
            }
            Err(stop) => return Err(stop.into()),
        }
    }
    Ok(())
}

fn run_load<L: KillLoad>(
    addr: &str,
    owners: &mut [L],
    shared: &KillShared,
) -> Vec<Result<LoadOutcome, ConnectionStop>> {
    thread::scope(|scope| {
        let threads: Vec<_> = owners
            .iter_mut()
            .map(|owner| scope.spawn(move || owner.load(addr, shared)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a connection's thread panicked"))
            .collect()
    })
}

/// Checks CHECK-KILL-1 to CHECK-KILL-4 and CHECK-KILL-6, or CHECK-EVICT-1 to CHECK-EVICT-5, on a server that has restarted.
fn check<L: KillLoad>(
    server: &ChildServer,
    owners: &mut [L],
    shared: &KillShared,
    figures: &mut KillFigures,
) -> Result<(), RunFailure> {
    let mut there = 0;
    let mut expiring = 0;
    for checked in each_owner(server, owners, |owner, client| owner.check(client)) {
        let found = checked?;
        there += found.existing;
        expiring += found.expiring;
        figures.keys_checked += found.checked;
    }
    let mut client = RespClient::connect(server.addr())?;
    let (acknowledged, sent) = (
        shared.acknowledged.load(Ordering::SeqCst),
        shared.sent.load(Ordering::SeqCst),
    );
    let value = client.number(SHARED_KEY)?;
    let broken = |key: &str, what: String| Err(ConnectionStop::wrong(key, what).into());
    if !(acknowledged..=sent).contains(&value) {
        return broken(
            SHARED_KEY,
            format!(
                "the counter is {value}, expected {acknowledged} (acknowledged) to {sent} (sent)"
            ),
        );
    }
    shared.acknowledged.store(value, Ordering::SeqCst);
    shared.sent.store(value, Ordering::SeqCst);
    there += u64::from(value > 0);
    let keys = client.key_count()?;
    if !(there..=there + expiring).contains(&keys) {
        return broken(
            "DBSIZE",
            format!(
                "DBSIZE is {keys}; {there} keys were found and up to {expiring} more may have expired"
            ),
        );
    }
    Ok(())
}
