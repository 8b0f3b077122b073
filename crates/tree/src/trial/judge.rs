//! Whether what everybody was told can be explained.

use std::collections::BTreeMap;

use farbank_check::oracle::{Act, Call, linearizable};

use super::clients::{Ask, Book, KEYS, Made, UNKNOWN, shown};
use super::{LEASE_NS, Struck, Violation};
use crate::Error;

/// When a memory server is gone, what needs it fails by name and within a lease.
pub(super) fn judge_errors(book: &mut Book, server: u16) -> Result<(), Violation> {
    use farbank_fabric::Error::{Empty, Timeout};
    let gone_ns = book.struck.as_ref().map_or(0, |struck| struck.at_ns);
    for made in &book.made {
        let Some(error) = made.error else { continue };
        let named = matches!(
            error,
            Error::Fabric(Timeout { server: at } | Empty { server: at }) if at == server
        );
        let ended_ns = made.ended_ns.unwrap_or(gone_ns);
        let took_ns = ended_ns.saturating_sub(made.began_ns.max(gone_ns));
        book.slowest_error_ns = book.slowest_error_ns.max(took_ns);
        let what = match (named, took_ns <= LEASE_NS) {
            (false, _) => format!("memory server {server} is gone, and a call ended with: {error}"),
            (true, false) => format!(
                "memory server {server} is gone, and a call took {took_ns} ns to say so; a lease lasts {LEASE_NS} ns"
            ),
            (true, true) => continue,
        };
        let one = std::slice::from_ref(made);
        return Err(told(one, book.struck.as_ref(), what));
    }
    Ok(())
}

/// Whether the calls on every key can be put in an order that leaves what `end` has of it.
pub(super) fn judge(
    start: &[(u64, u64)],
    book: &Book,
    end: &BTreeMap<u64, Option<u64>>,
) -> Result<(), Violation> {
    for key in 0..KEYS {
        let concerned: Vec<Made> = book
            .made
            .iter()
            .filter(|made| match made.ask {
                Ask::Range => made.acked.is_some() && made.spans(key),
                _ => made.key == key,
            })
            .cloned()
            .collect();
        let mut calls: Vec<Call> = concerned
            .iter()
            .filter_map(|made| call(made, key))
            .collect();
        if let Some(found) = end.get(&key) {
            let times = concerned
                .iter()
                .map(|made| made.acked.max(Some(made.invoked)));
            let last = times.max().flatten().unwrap_or(0);
            calls.push(Call {
                act: Act::Read(*found),
                invoked: last + 1,
                acked: Some(last + 2),
            });
        }
        let first = start.iter().find(|(other, _)| *other == key);
        if !explained(&calls, first.map(|(_, value)| *value)) {
            let at_the_end = match end.get(&key) {
                Some(Some(value)) => format!("; at the end it has {}", shown(*value)),
                Some(None) => "; at the end it is absent".into(),
                None => String::new(),
            };
            let what = format!("key {key}: no order of its calls explains them{at_the_end}");
            return Err(told(&concerned, book.struck.as_ref(), what));
        }
    }
    Ok(())
}

/// Whether there is an order, whatever it leaves behind.
fn explained(calls: &[Call], start: Option<u64>) -> bool {
    let mut ends = vec![None, start];
    ends.extend(calls.iter().filter_map(|call| match call.act {
        Act::Write(to) | Act::Update(_, to) => Some(to),
        Act::Read(_) | Act::Remove(_) => None,
    }));
    ends.iter().any(|end| linearizable(calls, start, *end))
}

/// A call as the search sees it. What a call that failed found is not known.
fn call(made: &Made, key: u64) -> Option<Call> {
    let found = made.found.iter().find(|(other, _)| *other == key);
    let found = found.map(|(_, value)| *value);
    let act = match (made.ask, made.acked) {
        (Ask::Get | Ask::Range, None) => return None,
        (Ask::Get | Ask::Range, Some(_)) => Act::Read(found),
        (Ask::Insert(value), Some(_)) if found == Some(UNKNOWN) => Act::Write(Some(value)),
        (Ask::Insert(value), Some(_)) => Act::Update(found, Some(value)),
        (Ask::Remove, Some(_)) if found == Some(UNKNOWN) => Act::Write(None),
        (Ask::Remove, Some(_)) => Act::Update(found, None),
        (Ask::Insert(value), None) => Act::Write(Some(value)),
        (Ask::Remove, None) => Act::Write(None),
    };
    Some(Call {
        act,
        invoked: made.invoked,
        acked: made.acked,
    })
}

/// A violation, with the calls it is about as people read them.
pub(super) fn told(made: &[Made], struck: Option<&Struck>, what: String) -> Violation {
    let us = |ns: u64| ns as f64 / 1000.0;
    let mut lines: Vec<(u64, String)> = Vec::new();
    for made in made {
        let ask = match made.ask {
            Ask::Get => format!("get {}", made.key),
            Ask::Insert(value) => format!("insert {} = {}", made.key, shown(value)),
            Ask::Remove => format!("remove {}", made.key),
            Ask::Range => format!("range from {}", made.key),
        };
        let found: Vec<String> = match made.ask {
            Ask::Range => made
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
    Violation {
        what,
        history: lines.into_iter().map(|(_, line)| line).collect(),
    }
}
