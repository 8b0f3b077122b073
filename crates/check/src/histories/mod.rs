//! Linearizability test of a server that ends under load: is there an order of all calls that explains every answer?
//!
//! ```text
//!   clients  ──▶ calls on few families of keys, several clients on each key ──▶ a process: SIGKILL, or SIGTERM and
//!                                                                               SIGKILL, or SHUTDOWN
//!                                                                               a simulated medium: a power cut
//!   reader   ──▶ every key of every family, after the server restarted
//!   search   ──▶ per family: an order of all calls, starting from the state that the previous reader found
//! ```
//!
//! [`crate::kill`] gives each connection keys of its own, so the allowed values of a key are known exactly. Here all
//! clients share all keys, over both protocols. A search for a linearization (`search.rs`) decides what is allowed,
//! against the specification in `family.rs`.
//!
//! # What is checked
//! HISTORIES-1  An answered call takes effect between its sending and its answer, and its effect survives the end of the
//!              server. A call without an answer takes effect once, at any time after its sending, or never. An answer
//!              that arrives after a power cut began counts as none.
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
mod server;
mod values;

use std::ops::Range;
use std::thread;
use std::time::Duration;

use farbank_pm::rng::Rng;

use crate::child::{ConnectionStop, RespClient, RespReply, RunFailure, ServerViolation};
use actor::{ClientCalls, HistoryClient, HistoryShared};
use family::{CallAnswer, FAMILIES, FamilyState};
use search::{SearchVerdict, SeenCall, search};

pub use server::{EndKind, HistoryServer, ServerAddresses, ServerEnd, ServerProcess};

/// Size in bytes of the values that fill the pool.
const FILLER_BYTES: usize = 50_000;
/// The report of a violation shows the calls this long before and after it, in nanoseconds.
const SHOWN_NS: u64 = 4_000_000;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
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
    /// Cycles that ended with a power cut.
    pub power_cuts: u64,
    /// Cycles in which the medium failed before the end.
    pub media_failures: u64,
    /// Kills or power cuts while the server was opening its pool.
    pub ends_in_recovery: u64,
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

impl HistoryFigures {
    fn count_end(&mut self, end: &ServerEnd) {
        self.media_failures += u64::from(end.medium_failed);
        match end.kind {
            EndKind::Killed => {}
            EndKind::Terminated => self.terminated += 1,
            EndKind::Shutdown => self.shutdowns += 1,
            EndKind::PowerCut => self.power_cuts += 1,
        }
    }
}

/// Runs all cycles on `server`, and calls `progress` with the counters after each.
///
/// # Errors
/// No order explains a history, or the server ended before it was told to, or it does not start.
pub fn run(
    server: &mut dyn HistoryServer,
    options: &HistoryOptions,
    progress: &mut dyn FnMut(&HistoryFigures),
) -> Result<HistoryFigures, RunFailure> {
    let shared = HistoryShared::new(options.full, server.medium_may_fail());
    let mut rng = Rng::new(options.seed);
    let mut figures = HistoryFigures::default();
    let mut states = vec![FamilyState::default(); FAMILIES];
    let mut addresses = server.start()?;
    for cycle in 0..options.cycles {
        if options.full {
            fill(&addresses.resp)?;
        }
        let mut rng_of_cycle = rng.fork(cycle);
        let (mut seen, end) =
            put_under_load(options, &shared, server, &addresses, &mut rng_of_cycle)?;
        figures.count_end(&end);
        while rng.one_in(3) {
            server.end_in_recovery(&mut rng)?;
            figures.ends_in_recovery += 1;
        }
        addresses = server.start()?;
        let reader = HistoryClient::new(&shared, rng.fork(cycle));
        let (last, found) = reader.read_all(&addresses.resp)?;
        seen.push(last);
        count(&seen, &mut figures);
        check_histories(&states, seen, &mut figures)?;
        states = found;
        figures.cycles += 1;
        figures.elapsed = shared.began.elapsed();
        progress(&figures);
    }
    // Fails if the server has ended since the last cycle.
    server.end(&|| shared.now(), &mut rng)?;
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
    server: &mut dyn HistoryServer,
    addresses: &ServerAddresses,
    rng: &mut Rng,
) -> Result<(Vec<ClientCalls>, ServerEnd), RunFailure> {
    let time = Duration::from_millis(20 + rng.below(180));
    server.before_load();
    let (seen, ended) = thread::scope(|scope| {
        let mut actors = Vec::new();
        for number in 0..options.connections {
            let actor = HistoryClient::new(shared, rng.fork(number as u64 + 1));
            let addr = &addresses.resp;
            actors.push(scope.spawn(move || actor.work(addr)));
        }
        if let Some(addr) = &addresses.memcached {
            let actor = HistoryClient::new(shared, rng.fork(0));
            actors.push(scope.spawn(move || actor.work_memcached(addr)));
        }
        thread::sleep(time);
        let ended = server.end(&|| shared.now(), rng);
        let joined = actors
            .into_iter()
            .map(|actor| actor.join().expect("a client thread panicked"));
        (
            joined.collect::<Result<Vec<ClientCalls>, ConnectionStop>>(),
            ended,
        )
    });
    let (mut seen, end) = (seen?, ended?);
    if let Some(captured) = &end.captured {
        for events in seen.iter_mut().flatten() {
            cut_off(events, captured);
        }
    }
    Ok((seen, end))
}

/// Removes the calls and answers that came too late for a pool that was captured in the period `captured`.
fn cut_off(events: &mut Vec<SeenCall>, captured: &Range<u64>) {
    events.retain(|event| event.sent <= captured.end);
    for event in events {
        if event.answered >= captured.start {
            event.answer = None;
            event.answered = u64::MAX;
        }
    }
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
    let answered = clients.iter().flatten().map(|event| event.answered);
    let before = answered.filter(|answered| *answered < moment).max();
    // The reader's answer is long after the calls that it contradicts.
    let first = before.unwrap_or(moment).saturating_sub(SHOWN_NS);
    let shown = first..moment.saturating_add(SHOWN_NS);
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
