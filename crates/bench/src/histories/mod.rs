//! Histories of a real server that is killed: what clients saw, and whether an order of all calls explains it.
//!
//! ```text
//!   actors   ──▶ calls on few families of keys, several clients on each key ──▶ SIGKILL, or SIGTERM and SIGKILL,
//!                                                                               or SHUTDOWN; kills while it opens
//!   reader   ──▶ every key of every family, on the server that has come back
//!   search   ──▶ per family: an order of all calls, from what the reader before had found
//! ```
//!
//! [`crate::kill`] gives each connection keys of its own, so that what may be found is exact. Here all clients share
//! all keys, over both protocols, and what may be found is what a search for a linearization allows (`search.rs`,
//! against the specification in `family.rs`).
//!
//! # What is checked
//! HISTORIES-1  A call that was answered happened between its sending and its answer, and is there after a kill. One that
//!              was not answered happened once since it was sent, or never.
//! HISTORIES-2  What is one call happened at one moment: MSET, MSETNX, DEL and EXISTS of several keys, MULTI, MGET.
//! HISTORIES-3  A WATCH and a `cas` write only if what was read is still there.
//! HISTORIES-4  Values are whole: each is a function of its number.
//! HISTORIES-5  As many keys are counted as there are, in each database.
//!
//! What is not durable is seen by its own connection only, and decides what conditional writes do (docs/compatibility.md):
//! a pipeline that reads what it has written is answered when that is durable, but has read the rest before. So a
//! pipeline's calls are of different keys here, and may happen in any order.
//!
//! Limits: FLUSHALL is one call of each family, not of all at once. A transaction that is refused because something was
//! changed is not asked why. FLUSHDB is no call: it deletes key by key, while others write (docs/compatibility.md).

mod actor;
mod family;
mod search;
mod values;

use std::thread;
use std::time::Duration;

use farbank_pm::sim::Rng;

use crate::child::{
    ChildServer, ConnectionStop, RespClient, RespReply, RunFailure, ServerLaunch, ServerViolation,
};
use actor::{ClientCalls, HistoryClient, HistoryShared};
use family::{CallAnswer, FAMILIES, FamilyState};
use search::{SearchVerdict, SeenCall, search};

/// Bytes of the values that a full pool is filled with.
const FILLER_BYTES: usize = 50_000;
/// Of a history that no order explains, what happened so long before and after is shown, in nanoseconds.
const SHOWN_NS: u64 = 4_000_000;

/// What is run, and how often.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// The server that is killed. Its pool must not be there yet.
    pub launch: ServerLaunch,
    /// How many times it is ended.
    pub cycles: u64,
    /// Connections by Redis's protocol. One more speaks memcached's.
    pub connections: usize,
    /// Whether the pool is kept full, by values that the calls do not touch.
    pub full: bool,
    /// Where chance starts from. Timing differs from run to run all the same.
    pub seed: u64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryFigures {
    /// Cycles whose histories hold.
    pub cycles: u64,
    /// Of them, those that ended with SHUTDOWN.
    pub shutdowns: u64,
    /// Of them, those that ended with SIGTERM, and SIGKILL soon after.
    pub terminated: u64,
    /// Kills while the server was opening its pool.
    pub kills_in_recovery: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that were sent and not answered when the server died.
    pub in_flight: u64,
    /// Calls that found no room, and transactions that found something changed.
    pub refused: u64,
    /// Histories of a family that an order was found for.
    pub histories: u64,
    /// Histories whose search was given up, as it took too many steps.
    pub given_up: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// How a cycle ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerEnd {
    Kill,
    Terminate,
    Shutdown,
}

impl ServerEnd {
    fn draw(rng: &mut Rng) -> ServerEnd {
        match rng.below(8) {
            0 => ServerEnd::Shutdown,
            1 | 2 => ServerEnd::Terminate,
            _ => ServerEnd::Kill,
        }
    }

    fn of(self, server: &mut ChildServer, rng: &mut Rng) -> Result<(), String> {
        match self {
            ServerEnd::Kill => server.kill(),
            ServerEnd::Terminate => server.terminate(Duration::from_micros(rng.below(20_000))),
            ServerEnd::Shutdown => server.shutdown(),
        }
    }
}

/// Runs every cycle, and calls `progress` with the figures after each.
///
/// # Errors
/// No order explains a history, or the server went by itself or does not start.
pub fn run(
    options: &HistoryOptions,
    progress: &mut dyn FnMut(&HistoryFigures),
) -> Result<HistoryFigures, RunFailure> {
    let shared = HistoryShared::new();
    let mut rng = Rng::new(options.seed);
    let mut figures = HistoryFigures::default();
    let mut states = vec![FamilyState::default(); FAMILIES];
    let mut server = ChildServer::start(&options.launch).map_err(RunFailure::Broken)?;
    for cycle in 0..options.cycles {
        if options.full {
            fill(server.addr()).map_err(ConnectionStop::into_failure)?;
        }
        let end = ServerEnd::draw(&mut rng);
        let mut seen = put_under_load(options, &shared, &mut server, end, &mut rng.fork(cycle))?;
        while rng.one_in(3) {
            let patience = Duration::from_micros(rng.below(40_000));
            ChildServer::start_and_kill(&options.launch, patience).map_err(RunFailure::Broken)?;
            figures.kills_in_recovery += 1;
        }
        server = ChildServer::start(&options.launch).map_err(RunFailure::Broken)?;
        let reader = HistoryClient::new(&shared, rng.fork(cycle));
        let (last, found) = reader
            .read_all(server.addr())
            .map_err(ConnectionStop::into_failure)?;
        seen.push(last);
        count(&seen, &mut figures);
        check_histories(&states, seen, &mut figures)?;
        states = found;
        figures.cycles += 1;
        figures.shutdowns += u64::from(end == ServerEnd::Shutdown);
        figures.terminated += u64::from(end == ServerEnd::Terminate);
        figures.elapsed = shared.began.elapsed();
        progress(&figures);
    }
    server.kill().map_err(RunFailure::Broken)?;
    Ok(figures)
}

/// Stores values in a database that no family has, until there is no room for another.
fn fill(addr: &str) -> Result<(), ConnectionStop> {
    let mut client = RespClient::connect(addr)?;
    client.request(&["SELECT", &FAMILIES.to_string()])?;
    let value = "f".repeat(FILLER_BYTES);
    for number in 0.. {
        let key = format!("filler{number}");
        if let RespReply::Error(text) = client.request(&["SETNX", &key, &value])? {
            if text.starts_with("OOM") {
                break;
            }
            return Err(ConnectionStop::wrong(key, text));
        }
    }
    Ok(())
}

/// Lets all actors work, and ends the server after a while. What each of them saw.
fn put_under_load(
    options: &HistoryOptions,
    shared: &HistoryShared,
    server: &mut ChildServer,
    end: ServerEnd,
    rng: &mut Rng,
) -> Result<Vec<ClientCalls>, RunFailure> {
    let addr = server.addr().to_owned();
    let memcached = server.memcached_addr().map(str::to_owned);
    let time = Duration::from_millis(20 + rng.below(180));
    let (seen, ended) = thread::scope(|scope| {
        let mut actors = Vec::new();
        for number in 0..options.connections {
            let actor = HistoryClient::new(shared, rng.fork(number as u64 + 1));
            let addr = &addr;
            actors.push(scope.spawn(move || actor.work(addr)));
        }
        if let Some(addr) = &memcached {
            let actor = HistoryClient::new(shared, rng.fork(0));
            actors.push(scope.spawn(move || actor.work_memcached(addr)));
        }
        thread::sleep(time);
        let ended = end.of(server, rng);
        let joined = actors
            .into_iter()
            .map(|actor| actor.join().expect("no actor panics"));
        (
            joined.collect::<Result<Vec<ClientCalls>, ConnectionStop>>(),
            ended,
        )
    });
    let seen = seen.map_err(ConnectionStop::into_failure)?;
    ended.map_err(RunFailure::Broken)?;
    Ok(seen)
}

fn count(seen: &[ClientCalls], figures: &mut HistoryFigures) {
    for event in seen.iter().flatten().flatten() {
        let count = match event.answer {
            None => &mut figures.in_flight,
            Some(CallAnswer::Refused) => &mut figures.refused,
            Some(_) => &mut figures.answered,
        };
        *count += 1;
    }
}

/// Searches an order for the history of each family.
fn check_histories(
    states: &[FamilyState],
    seen: Vec<ClientCalls>,
    figures: &mut HistoryFigures,
) -> Result<(), RunFailure> {
    let mut lists: Vec<Vec<Vec<SeenCall>>> = vec![Vec::new(); FAMILIES];
    for client in seen {
        for (family, mut events) in client.into_iter().enumerate() {
            events.retain(|event| event.answer != Some(CallAnswer::Refused));
            lists[family].push(events);
        }
    }
    for (family, clients) in lists.iter().enumerate() {
        match search(states[family], clients) {
            SearchVerdict::Holds => figures.histories += 1,
            SearchVerdict::Open => figures.given_up += 1,
            SearchVerdict::Fails { state, stuck } => {
                let (start, clients) = (states[family], clients.as_slice());
                let violation = violation(family, start, state, clients, &stuck);
                return Err(RunFailure::Violation(violation));
            }
        }
    }
    Ok(())
}

/// What no order explains: the calls around the moment up to which most were explained.
fn violation(
    family: usize,
    start: FamilyState,
    state: FamilyState,
    clients: &[Vec<SeenCall>],
    stuck: &[SeenCall],
) -> ServerViolation {
    let moment = stuck.iter().map(|event| event.answered).min();
    let moment = moment.unwrap_or(u64::MAX);
    let shown = moment.saturating_sub(SHOWN_NS)..moment.saturating_add(SHOWN_NS);
    let mut calls = Vec::new();
    for (client, events) in clients.iter().enumerate() {
        for (at, event) in events.iter().enumerate() {
            if event.answered >= shown.start && event.sent < shown.end {
                calls.push((event.sent, at, line(client, event, stuck)));
            }
        }
    }
    calls.sort();
    let mut history = vec![
        format!("at first {start:?}"),
        format!("explained up to {state:?}"),
    ];
    history.extend(calls.into_iter().map(|(.., line)| line));
    ServerViolation {
        key: format!("database {family}"),
        what: "no order of all calls explains what was answered".into(),
        history,
    }
}

/// A call as it is shown.
fn line(client: usize, event: &SeenCall, stuck: &[SeenCall]) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let ended = match event.answered {
        u64::MAX => "never".into(),
        time => format!("{:.3} ms", ms(time)),
    };
    let is_stuck = stuck
        .iter()
        .any(|other| other.sent == event.sent && other.call == event.call);
    let explained = if is_stuck { ", NOT EXPLAINED" } else { "" };
    let (sent, call, answer) = (ms(event.sent), &event.call, &event.answer);
    format!("client {client}, {sent:.3} ms to {ended}: {call:?} answered {answer:?}{explained}")
}
