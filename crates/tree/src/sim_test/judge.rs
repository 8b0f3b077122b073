//! Checks of a trial's calls: linearizability, and errors.

use std::collections::BTreeMap;

use farbank_check::oracle::{CallEffect, KeyCall, linearizable};
use farbank_fabric::Nanos;

use super::clients::{ClientCall, ClientLog, ClientRequest, KEYS, UNKNOWN, shown};
use super::{COMPUTES, FaultOutcome, TIMEOUT_NS, TrialViolation};
use crate::TreeError;

/// Maximum time in nanoseconds from the failure of a memory server to the error of a call that needs it. The call may wait for
/// the locks of clients of the other compute servers, each of which waits for one timeout. One more timeout covers the
/// time between.
const ERROR_NS_MAX: Nanos = (COMPUTES as Nanos + 1) * TIMEOUT_NS;
/// Further time if splits spread over the servers or a server leaves: then clients wait longer for locks, because others allocate
/// memory or move nodes under theirs.
const LONG_HOLDS_NS: Nanos = 10 * TIMEOUT_NS;

/// Checks that calls which need the failed memory server fail in time, with an error that names it.
pub(super) fn check_errors(
    book: &mut ClientLog,
    server: u16,
    has_long_holds: bool,
) -> Result<(), TrialViolation> {
    use farbank_fabric::FabricError::{Empty, Timeout};
    let ns_max = match has_long_holds {
        true => ERROR_NS_MAX + LONG_HOLDS_NS,
        false => ERROR_NS_MAX,
    };
    let gone_ns = book.struck.as_ref().map_or(0, |struck| struck.at_ns);
    for made in &book.calls {
        let Some(error) = made.error else { continue };
        let named = matches!(
            error,
            TreeError::Fabric(Timeout { server: at } | Empty { server: at }) if at == server
        );
        let ended_ns = made.ended_ns.unwrap_or(gone_ns);
        let took_ns = ended_ns.saturating_sub(made.began_ns.max(gone_ns));
        book.slowest_error_ns = book.slowest_error_ns.max(took_ns);
        let what = match (named, took_ns <= ns_max) {
            (false, _) => format!(
                "memory server {server} has failed, but a call ended with another error: {error}"
            ),
            (true, false) => format!(
                "memory server {server} has failed, and a call returned the error after {took_ns} ns, expected at most {ns_max} ns"
            ),
            (true, true) => continue,
        };
        let one = std::slice::from_ref(made);
        return Err(violation(one, book.struck.as_ref(), what));
    }
    Ok(())
}

/// Checks that the calls on every key are linearizable, ending in the value in `end`.
pub(super) fn check_linearizable(
    start: &[(u64, u64)],
    book: &ClientLog,
    end: &BTreeMap<u64, Option<u64>>,
) -> Result<(), TrialViolation> {
    for key in 0..KEYS {
        let concerned: Vec<ClientCall> = book
            .calls
            .iter()
            .filter(|made| match made.ask {
                ClientRequest::Range | ClientRequest::RangeDown => {
                    made.acked.is_some() && made.spans(key)
                }
                _ => made.key == key,
            })
            .cloned()
            .collect();
        let mut calls: Vec<KeyCall> = concerned
            .iter()
            .filter_map(|made| call(made, key))
            .collect();
        if let Some(found) = end.get(&key) {
            let times = concerned
                .iter()
                .map(|made| made.acked.max(Some(made.invoked)));
            let last = times.max().flatten().unwrap_or(0);
            calls.push(KeyCall {
                act: CallEffect::Read(*found),
                invoked: last + 1,
                acked: Some(last + 2),
            });
        }
        let first = start.iter().find(|(other, _)| *other == key);
        if !explained(&calls, first.map(|(_, value)| *value)) {
            let at_the_end = match end.get(&key) {
                Some(Some(value)) => format!("; its final value is {}", shown(*value)),
                Some(None) => "; it is finally absent".into(),
                None => String::new(),
            };
            let what = format!("the calls on key {key} are not linearizable{at_the_end}");
            return Err(violation(&concerned, book.struck.as_ref(), what));
        }
    }
    Ok(())
}

/// Returns whether the calls are linearizable with any final value.
fn explained(calls: &[KeyCall], start: Option<u64>) -> bool {
    let mut ends = vec![None, start];
    ends.extend(calls.iter().filter_map(|call| match call.act {
        CallEffect::Write(to) | CallEffect::Update(_, to) => Some(to),
        CallEffect::Read(_) | CallEffect::Remove(_) | CallEffect::Take(_) => None,
    }));
    ends.iter().any(|end| linearizable(calls, start, *end))
}

/// Converts a call for the linearizability check. The result of a failed call is unknown.
fn call(made: &ClientCall, key: u64) -> Option<KeyCall> {
    let found = made.found.iter().find(|(other, _)| *other == key);
    let found = found.map(|(_, value)| *value);
    let act = match (made.ask, made.acked) {
        (ClientRequest::Get | ClientRequest::Range | ClientRequest::RangeDown, acked) => {
            acked?;
            CallEffect::Read(found)
        }
        (ClientRequest::Swap { expected, .. }, Some(_)) if found != expected => {
            CallEffect::Read(found)
        }
        (ClientRequest::Swap { expected, new }, _) => CallEffect::Update(expected, new),
        (ClientRequest::Insert(value), Some(_)) if found == Some(UNKNOWN) => {
            CallEffect::Write(Some(value))
        }
        (ClientRequest::Insert(value), Some(_)) => CallEffect::Update(found, Some(value)),
        (ClientRequest::Remove, Some(_)) if found == Some(UNKNOWN) => CallEffect::Write(None),
        (ClientRequest::Remove, Some(_)) => CallEffect::Update(found, None),
        (ClientRequest::Insert(value), None) => CallEffect::Write(Some(value)),
        (ClientRequest::Remove, None) => CallEffect::Write(None),
    };
    Some(KeyCall {
        act,
        invoked: made.invoked,
        acked: made.acked,
    })
}

/// Creates a violation, with its calls formatted for people.
pub(super) fn violation(
    made: &[ClientCall],
    struck: Option<&FaultOutcome>,
    what: String,
) -> TrialViolation {
    let us = |ns: u64| ns as f64 / 1000.0;
    let mut lines: Vec<(u64, String)> = Vec::new();
    for made in made {
        let ask = match made.ask {
            ClientRequest::Get => format!("get {}", made.key),
            ClientRequest::Insert(value) => format!("insert {} = {}", made.key, shown(value)),
            ClientRequest::Remove => format!("remove {}", made.key),
            ClientRequest::Range => format!("range from {}", made.key),
            ClientRequest::RangeDown => format!("range down from {}", made.key),
            ClientRequest::Swap { expected, new } => {
                let text = |value: Option<u64>| value.map_or("absent".into(), shown);
                format!("swap {}: {} to {}", made.key, text(expected), text(new))
            }
        };
        let found: Vec<String> = match made.ask {
            ClientRequest::Range | ClientRequest::RangeDown => made
                .found
                .iter()
                .map(|(key, value)| format!("{key}={}", shown(*value)))
                .collect(),
            _ => made.found.iter().map(|(_, value)| shown(*value)).collect(),
        };
        let end = match (made.acked, made.error) {
            (Some(_), _) if found.is_empty() => "found nothing".into(),
            (Some(_), _) => format!("found {}", found.join(" ")),
            (None, Some(error)) => format!("failed: {error}"),
            (None, None) => "cut off".into(),
        };
        let ended = made
            .ended_ns
            .map_or("          ".into(), |ns| format!("{:10.3}", us(ns)));
        let began = us(made.began_ns);
        let line = format!(
            "{began:10.3} to {ended} us  client {}  {ask:<20} {end}",
            made.client
        );
        lines.push((made.began_ns, line));
    }
    if let Some(struck) = struck {
        let doing: Vec<_> = struck.doing.iter().map(|moment| moment.name()).collect();
        let doing = match (doing.is_empty(), struck.locks) {
            (true, _) => String::new(),
            (false, 0) => format!(", {}", doing.join(", ")),
            (false, locks) => format!(", {}; {locks} locks name it", doing.join(", ")),
        };
        let line = format!("{:10.3} us  ==== {}{doing}", us(struck.at_ns), struck.who);
        lines.push((struck.at_ns, line));
    }
    lines.sort_by_key(|(began, _)| *began);
    TrialViolation {
        what,
        history: lines.into_iter().map(|(_, line)| line).collect(),
    }
}
