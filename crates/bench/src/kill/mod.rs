//! Killing a real server under load, again and again, and checking what it says afterwards.
//!
//! ```text
//!   start ──▶ check every key ──▶ pipelined load on all connections ──▶ SIGKILL ──┐
//!     ▲                                                                           │
//!     └──── now and then killed while it opens, or ended by SHUTDOWN ◀────────────┘
//! ```
//!
//! Each connection owns its keys and is the only one to write them, so what may be found is exact: the
//! last acknowledged value, or one that was sent after it. All connections share one counter. The
//! pool is filled until more than 77 % of its bytes are live, so that the cleaner is always at work.
//!
//! # What is checked
//! K1  Every acknowledged effect is there; no key is older than acknowledged; no value that nobody
//!     wrote.
//! K2  An MSET is there whole or not at all, also one that does not fit into the log.
//! K3  A counter is at least what was acknowledged and at most what was sent.
//! K4  What has expired is absent; what has not is there.
//! K5  A pipeline sees its own writes, and replies are what a single server would say.
//! K6  As many keys as were found are counted: none that nobody wrote.

mod owner;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use farbank_pm::sim::Rng;

use owner::{Load, Owner};

use crate::child::{Client, Failure, Launch, Server, Stop};

/// What is run, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server that is killed. Its pool must not be there yet.
    pub launch: Launch,
    /// How many times it is killed.
    pub cycles: u64,
    /// Connections, each with keys of its own.
    pub connections: usize,
    /// Where chance starts from.
    pub seed: u64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Cycles that ended with a check that held.
    pub cycles: u64,
    /// Of them, those that ended with SHUTDOWN instead of a kill.
    pub shutdowns: u64,
    /// Kills while the server was opening its pool.
    pub kills_in_recovery: u64,
    /// Commands that were acknowledged.
    pub acknowledged: u64,
    /// Commands that were sent and not acknowledged when the server died.
    pub in_flight: u64,
    /// Keys read back after all restarts together.
    pub keys_checked: u64,
    /// Segments cleaned under load.
    pub segments_cleaned: u64,
    /// The smallest share of the pool that was live under load.
    pub live_share_min: f64,
    /// The longest open, in milliseconds.
    pub open_ms_max: f64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// The counter that all connections increment.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) sent: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
}

/// The key of [`Shared`].
pub(crate) const SHARED_KEY: &str = "shared";

/// How a cycle ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    Shutdown,
}

/// Runs every cycle, and calls `progress` with the figures after each.
pub fn run(options: &Options, progress: &mut dyn FnMut(&Figures)) -> Result<Figures, Failure> {
    let started = Instant::now();
    let mut rng = Rng::new(options.seed);
    let shared = Shared::default();
    let mut owners: Vec<Owner> = (0..options.connections)
        .map(|id| {
            Owner::new(
                id,
                options.launch.pool_bytes / options.connections as u64,
                options.seed,
            )
        })
        .collect();
    let mut figures = Figures {
        live_share_min: 1.0,
        ..Figures::default()
    };
    let mut server = Server::start(&options.launch).map_err(Failure::Broken)?;
    fill(&server, &mut owners, &shared)?;
    for cycle in 0..options.cycles {
        let end = if cycle % 8 == 7 {
            End::Shutdown
        } else {
            End::Kill
        };
        let load = Duration::from_millis(30 + rng.below(400));
        put_under_load(&mut server, &mut owners, &shared, load, end, &mut figures)?;
        if rng.one_in(4) {
            let patience = Duration::from_micros(rng.below(40_000));
            Server::start_and_kill(&options.launch, patience).map_err(Failure::Broken)?;
            figures.kills_in_recovery += 1;
        }
        server = Server::start(&options.launch).map_err(Failure::Broken)?;
        figures.open_ms_max = figures.open_ms_max.max(server.open_ms());
        check(&server, &mut owners, &shared, &mut figures)?;
        figures.cycles += 1;
        figures.shutdowns += u64::from(end == End::Shutdown);
        figures.elapsed = started.elapsed();
        progress(&figures);
    }
    server.kill().map_err(Failure::Broken)?;
    Ok(figures)
}

/// Runs `work` for every owner, on a thread and a connection each.
fn each_owner<R: Send>(
    server: &Server,
    owners: &mut [Owner],
    work: impl Fn(&mut Owner, &mut Client) -> Result<R, Stop> + Sync,
) -> Vec<Result<R, Stop>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = owners
            .iter_mut()
            .map(|owner| scope.spawn(move || work(owner, &mut Client::connect(server.addr())?)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a connection does not panic"))
            .collect()
    })
}

fn fill(server: &Server, owners: &mut [Owner], shared: &Shared) -> Result<(), Failure> {
    let filled = each_owner(server, owners, |owner, client| owner.fill(client, shared));
    filled
        .into_iter()
        .collect::<Result<(), Stop>>()
        .map_err(Stop::into_failure)
}

/// Loads the server and ends it after `time`.
fn put_under_load(
    server: &mut Server,
    owners: &mut [Owner],
    shared: &Shared,
    time: Duration,
    end: End,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let addr = server.addr().to_owned();
    let (results, seen) = thread::scope(|scope| {
        let load = scope.spawn(|| {
            thread::sleep(time);
            // Before the end: what the cleaner did in this life of the server.
            let seen = Client::connect(&addr).and_then(|mut client| client.pool_figures());
            let ended = match end {
                End::Kill => server.kill(),
                End::Shutdown => server.shutdown(),
            };
            ended.and(Ok(seen))
        });
        let results = run_load(&addr, owners, shared);
        (results, load.join().expect("nothing panics"))
    });
    let seen = seen.map_err(Failure::Broken)?.map_err(Stop::into_failure)?;
    figures.segments_cleaned += seen.segments_cleaned;
    figures.live_share_min = figures.live_share_min.min(seen.live_share);
    for result in results {
        match result {
            Ok(load) => {
                figures.acknowledged += load.acknowledged;
                figures.in_flight += load.in_flight;
            }
            Err(stop) => return Err(stop.into_failure()),
        }
    }
    Ok(())
}

fn run_load(addr: &str, owners: &mut [Owner], shared: &Shared) -> Vec<Result<Load, Stop>> {
    thread::scope(|scope| {
        let threads: Vec<_> = owners
            .iter_mut()
            .map(|owner| scope.spawn(move || owner.load(addr, shared)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a connection does not panic"))
            .collect()
    })
}

/// K1 to K4 and K6 on a server that has come back.
fn check(
    server: &Server,
    owners: &mut [Owner],
    shared: &Shared,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let mut there = 0;
    let mut expiring = 0;
    for checked in each_owner(server, owners, |owner, client| owner.check(client)) {
        let found = checked.map_err(Stop::into_failure)?;
        there += found.there;
        expiring += found.expiring;
        figures.keys_checked += found.checked;
    }
    let mut client = Client::connect(server.addr()).map_err(Stop::into_failure)?;
    let (acknowledged, sent) = (
        shared.acknowledged.load(Ordering::SeqCst),
        shared.sent.load(Ordering::SeqCst),
    );
    let value = client.number(SHARED_KEY).map_err(Stop::into_failure)?;
    let broken = |key: &str, what: String| Err(Stop::wrong(key, what).into_failure());
    if !(acknowledged..=sent).contains(&value) {
        return broken(
            SHARED_KEY,
            format!("{value}, acknowledged {acknowledged}, sent {sent}"),
        );
    }
    shared.acknowledged.store(value, Ordering::SeqCst);
    shared.sent.store(value, Ordering::SeqCst);
    there += u64::from(value > 0);
    let keys = client.key_count().map_err(Stop::into_failure)?;
    if !(there..=there + expiring).contains(&keys) {
        return broken(
            "DBSIZE",
            format!("{keys} keys, found {there} and {expiring} expiring ones"),
        );
    }
    Ok(())
}
