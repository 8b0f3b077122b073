//! Whether what was found can be explained.
//!
//! Two judges. [`judge`] is exact and quick for histories of one driver: what a recovery shows
//! against a [`History`]. [`linearizable`] is the general search (Wing and Gong, with Lowe's memo)
//! over the calls of one key, for histories recorded from threads. Both judge *durable
//! linearizability*: acknowledged operations have happened, pending ones may have, each at one
//! instant between its invocation and its acknowledgement. Keys are independent of each other, so
//! each is judged alone; groups are judged across their keys.

use std::collections::{BTreeMap, HashSet};

use crate::history::{History, KeyVersion, PendingGroup};
use crate::target::Value;

/// Why what a recovery shows cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained {
    /// The key concerned.
    pub key: u64,
    /// What was found, what could have been.
    pub what: String,
}

/// Judges what a recovery at `now_ms` shows.
pub fn check_history(
    history: &History,
    shown: &[(u64, Value)],
    now_ms: u64,
) -> Result<(), Unexplained> {
    let mut found = BTreeMap::new();
    for &(key, value) in shown {
        if found.insert(key, value).is_some() {
            let what = format!("key {key} is there twice");
            return Err(Unexplained { key, what });
        }
        if !history.keys.contains_key(&key) {
            let what = format!("key {key} was never written, but {value:?} was found");
            return Err(Unexplained { key, what });
        }
    }
    for (&key, versions) in &history.keys {
        let found = found.get(&key).copied();
        if found.is_none() && history.may_miss(versions) {
            continue; // H5
        }
        if !versions.iter().any(|v| v.reads_as(now_ms) == found) {
            let what = complaint(key, found, versions, now_ms);
            return Err(Unexplained { key, what });
        }
    }
    history
        .groups
        .iter()
        .try_for_each(|group| check_group(history, group, &found, now_ms))
}

fn complaint(key: u64, found: Option<Value>, versions: &[KeyVersion], now_ms: u64) -> String {
    let mut could: Vec<_> = versions.iter().map(|v| v.reads_as(now_ms)).collect();
    could.dedup();
    match (found, &could[..]) {
        (None, [Some(v)]) => format!("key {key} acknowledged as {v:?}, not found"),
        (Some(v), [None]) => format!("key {key} acknowledged as absent, found {v:?}"),
        (Some(v), [Some(w)]) => format!("key {key} acknowledged as {w:?}, found {v:?}"),
        (found, could) => format!("key {key}: found {found:?}, could have been one of {could:?}"),
    }
}

/// All members or none. A member that a later write of its key hides tells nothing, but an update of it tells that it was
/// there.
fn check_group(
    history: &History,
    group: &PendingGroup,
    found: &BTreeMap<u64, Value>,
    now_ms: u64,
) -> Result<(), Unexplained> {
    let (mut surely_in, mut surely_out) = (None, None);
    for &key in &*group.keys {
        let versions = &history.keys[&key];
        let Some(member) = versions.iter().find(|v| v.op == group.op) else {
            continue;
        };
        let found = found.get(&key).copied();
        if found.is_none() && history.may_miss(versions) {
            continue; // H5
        }
        let mut explanations = versions.iter().filter(|v| v.reads_as(now_ms) == found);
        if explanations
            .clone()
            .all(|v| history.contains(versions, v, group.op))
        {
            surely_in = Some(key);
        } else if explanations.all(|v| v.op != group.op && v.precedes(member)) {
            surely_out = Some(key);
        }
    }
    match (surely_in, surely_out) {
        (Some(a), Some(b)) => {
            let what = format!(
                "group #{} is torn: key {a} has it, key {b} has not",
                group.op
            );
            Err(Unexplained { key: b, what })
        }
        _ => Ok(()),
    }
}

/// Most calls [`linearizable`] takes.
pub const CALLS_MAX: usize = 32;

/// What a call does to its key. States are whatever identifies them; `None` is absence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEffect {
    /// Puts a value, or deletes.
    Write(Option<u64>),
    /// Reads: what was found.
    Read(Option<u64>),
    /// Reads and writes at one instant: what was found, what was written.
    Update(Option<u64>, Option<u64>),
    /// Deletes, and tells whether anything was there.
    Remove(bool),
}

/// One call on one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyCall {
    /// What it does.
    pub act: CallEffect,
    /// When it was invoked.
    pub invoked: u64,
    /// When it was acknowledged; `None`: pending at the end, so it may or may not have happened.
    pub acked: Option<u64>,
}

/// Whether `calls` on one key, which was `start`, can have happened so that `end` is left.
///
/// # Panics
/// On more than [`CALLS_MAX`] calls: cut the history into windows.
#[must_use]
pub fn linearizable(calls: &[KeyCall], start: Option<u64>, end: Option<u64>) -> bool {
    assert!(
        calls.len() <= CALLS_MAX,
        "{} calls on one key are too many",
        calls.len()
    );
    let required = calls
        .iter()
        .enumerate()
        .filter(|(_, c)| c.acked.is_some())
        .fold(0, |m, (i, _)| m | 1 << i);
    let mut seen = HashSet::new();
    let mut stack = vec![(0u32, start)];
    while let Some((done, state)) = stack.pop() {
        if done & required == required && state == end {
            return true;
        }
        if !seen.insert((done, state)) {
            continue;
        }
        let left = |i: usize| done & 1 << i == 0;
        // A call may be next only if no call left was acknowledged before it was invoked.
        let first_ack = (0..calls.len())
            .filter(|&i| left(i))
            .filter_map(|i| calls[i].acked)
            .min();
        for (i, call) in calls.iter().enumerate().filter(|&(i, _)| left(i)) {
            if first_ack.is_some_and(|ack| ack < call.invoked) {
                continue;
            }
            let next = match call.act {
                CallEffect::Write(to) => to,
                CallEffect::Read(saw) if saw == state => state,
                CallEffect::Update(saw, to) if saw == state => to,
                CallEffect::Remove(was) if was == state.is_some() => None,
                CallEffect::Read(_) | CallEffect::Update(..) | CallEffect::Remove(_) => continue,
            };
            stack.push((done | 1 << i, next));
        }
    }
    false
}
