//! Linearizability test of a real server that is killed: is there an order of all calls that explains every answer?
//!
//! ```text
//!   clients  ──▶ calls on few families of keys, several clients on each key ──▶ SIGKILL, or SIGTERM and SIGKILL,
//!                                                                               or SHUTDOWN; kills during recovery
//!   reader   ──▶ every key of every family, after the server restarted
//!   search   ──▶ per family: an order of all calls, starting from the state that the previous reader found
//! ```
//!
//! [`crate::kill`] gives each connection keys of its own, so the allowed values of a key are known exactly. Here all
//! clients share all keys, over both protocols. A search for a linearization (`search.rs`) decides what is allowed,
//! against the specification in `family.rs`.
//!
//! # What is checked
//! HISTORIES-1  An answered call takes effect between its sending and its answer, and its effect survives a kill. A
//!              call without an answer takes effect once, at any time after its sending, or never.
//! HISTORIES-2  A call on several keys takes effect at one moment: MSET, MSETNX, DEL, EXISTS, MULTI, MGET, and a script,
//!              whose keys are known only when it runs.
//! HISTORIES-3  WATCH and `cas` write only if the keys still hold the values that were read.
//! HISTORIES-4  A value is never torn: its bytes are a function of its id.
//! HISTORIES-5  DBSIZE equals the number of keys, in each database.
//!
//! A write that is not yet durable is visible to its own connection only, and decides what conditional writes do
//! (docs/compatibility.md). A pipeline that reads its own write gets its answers when that write is durable, but its
//! other reads happened earlier. So the calls of a pipeline use different keys here and may take effect in any order.
//!
//! Limits: FLUSHALL is one atomic call for each family, not for all families together. A transaction that is refused
//! because a watched key changed is not checked further. FLUSHDB is left out: it deletes key by key while other
//! clients write (docs/compatibility.md). So does DEL of several keys in a full pool, which is left out there.
//! A `cas` that answers EXISTS is not checked further either.

mod actor;
mod family;
mod search;
mod values;

use std::thread;
use std::time::Duration;

use farbank_pm::rng::Rng;

use crate::child::{
    ChildError, ChildServer, ConnectionStop, RespClient, RespReply, RunFailure, ServerLaunch,
    ServerViolation,
};
use actor::{ClientCalls, HistoryClient, HistoryShared};
use family::{CallAnswer, FAMILIES, FamilyState};
use search::{SearchVerdict, SeenCall, search};

/// Size in bytes of the values that fill the pool.
const FILLER_BYTES: usize = 50_000;
/// The report of a violation shows the calls this long before and after it, in nanoseconds.
const SHOWN_NS: u64 = 4_000_000;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// Server under test. Its pool must not exist yet.
    pub launch: ServerLaunch,
    /// How many times the server is ended and restarted.
    pub cycles: u64,
    /// Number of RESP connections. One memcached connection is added.
    pub connections: usize,
    /// Whether the pool is kept full with values that the calls do not touch.
    pub full: bool,
    /// Seed of the random choices. Timing differs between runs even with the same seed.
    pub seed: u64,
}

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryFigures {
    /// Cycles that were checked without a violation.
    pub cycles: u64,
    /// Cycles that ended with SHUTDOWN.
    pub shutdowns: u64,
    /// Cycles that ended with SIGTERM, followed by SIGKILL if the server still ran.
    pub terminated: u64,
    /// Kills while the server was opening its pool.
    pub kills_in_recovery: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that had no answer when the server ended.
    pub in_flight: u64,
    /// Calls that found the pool full, and transactions that failed because a watched key changed.
    pub refused: u64,
    /// Histories of a family that were explained by an order.
    pub histories: u64,
    /// Histories whose search was given up after too many steps.
    pub given_up: u64,
    /// Duration of the run.
    pub elapsed: Duration,
}

/// How the server is ended at the end of a cycle.
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

    fn end(self, server: &mut ChildServer, rng: &mut Rng) -> Result<(), ChildError> {
        match self {
            ServerEnd::Kill => server.kill(),
            ServerEnd::Terminate => server.terminate(Duration::from_micros(rng.below(20_000))),
            ServerEnd::Shutdown => server.shutdown(),
        }
    }
}

/// Runs all cycles, and calls `progress` with the counters after each.
///
/// # Errors
/// No order explains a history, or the server ended before it was killed, or it does not start.
pub fn run(
    options: &HistoryOptions,
    progress: &mut dyn FnMut(&HistoryFigures),
) -> Result<HistoryFigures, RunFailure> {
    let shared = HistoryShared::new(options.full);
    let mut rng = Rng::new(options.seed);
    let mut figures = HistoryFigures::default();
    let mut states = vec![FamilyState::default(); FAMILIES];
    let mut server = ChildServer::start(&options.launch)?;
    for cycle in 0..options.cycles {
        if options.full {
            fill(server.addr())?;
        }
        let end = ServerEnd::draw(&mut rng);
        let mut seen = put_under_load(options, &shared, &mut server, end, &mut rng.fork(cycle))?;
        while rng.one_in(3) {
            let patience = Duration::from_micros(rng.below(40_000));
            ChildServer::start_and_kill(&options.launch, patience)?;
            figures.kills_in_recovery += 1;
        }
        server = ChildServer::start(&options.launch)?;
        let reader = HistoryClient::new(&shared, rng.fork(cycle));
        let (last, found) = reader.read_all(server.addr())?;
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
    server.kill()?;
    Ok(figures)
}

/// Fills a database that belongs to no family until the pool is full.
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

/// Runs all clients, ends the server after a random time, and returns the calls of each client.
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
        let ended = end.end(server, rng);
        let joined = actors
            .into_iter()
            .map(|actor| actor.join().expect("a client thread panicked"));
        (
            joined.collect::<Result<Vec<ClientCalls>, ConnectionStop>>(),
            ended,
        )
    });
    let seen = seen?;
    ended?;
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

/// Searches for an order that explains the history of each family.
fn check_histories(
    states: &[FamilyState],
    seen: Vec<ClientCalls>,
    figures: &mut HistoryFigures,
) -> Result<(), RunFailure> {
    let mut lists: Vec<Vec<Vec<SeenCall>>> = vec![Vec::new(); FAMILIES];
    for client in seen {
        for (family, events) in client.into_iter().enumerate() {
            lists[family].push(events);
        }
    }
    for (family, clients) in lists.iter().enumerate() {
        let had_effect = |event: &&SeenCall| event.answer != Some(CallAnswer::Refused);
        let searched: Vec<Vec<SeenCall>> = clients
            .iter()
            .map(|events| events.iter().filter(had_effect).cloned().collect())
            .collect();
        match search(states[family], &searched) {
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

/// Describes a history that no order explains, with the calls around the point where the search got stuck.
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
    let mut history = vec![format!("state at the start: {start:?}")];
    history.extend(calls.into_iter().map(|(.., line)| line));
    // The point of failure stands last, because a log that is cut keeps its end.
    history.push(format!("last state that an order explains: {state:?}"));
    history.push("calls that cannot come next:".to_owned());
    history.extend(stuck.iter().map(call_line));
    ServerViolation {
        key: format!("database {family}"),
        what: "no order of all calls explains their answers".into(),
        history,
    }
}

/// Formats a call of a client for the report.
fn line(client: usize, event: &SeenCall, stuck: &[SeenCall]) -> String {
    let is_stuck = stuck
        .iter()
        .any(|other| other.sent == event.sent && other.call == event.call);
    let explained = if is_stuck { ", NOT EXPLAINED" } else { "" };
    format!("client {client}, {}{explained}", call_line(event))
}

/// Formats a call with its times and its answer.
fn call_line(event: &SeenCall) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let ended = match event.answered {
        u64::MAX => "never".into(),
        time => format!("{:.3} ms", ms(time)),
    };
    let (sent, call, answer) = (ms(event.sent), &event.call, &event.answer);
    format!("{sent:.3} ms to {ended}: {call:?} answered {answer:?}")
}
