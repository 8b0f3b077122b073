//! Oracles that decide whether the observed contents are legal.
//!
//! There are two oracles. [`check_history`] is exact and fast for histories of one driver: it compares the contents
//! after a recovery with a [`History`]. [`linearizable`] is the general search (Wing and Gong, with Lowe's
//! memoization) over the calls of one key, for histories of concurrent threads. Both check *durable linearizability*:
//! an acknowledged operation has happened, and a pending one may have, each at one instant between its invocation and
//! its acknowledgement. Keys are independent, so each key is checked alone. Groups are checked across their keys.

use std::collections::{BTreeMap, HashSet};

use crate::Violation;
use crate::history::{History, KeyVersion, PendingGroup};
use crate::target::Value;

/// Reason why the contents after a recovery are not legal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained {
    /// The key whose contents are not legal.
    pub key: u64,
    /// Message with the state found and the legal states.
    pub what: String,
}

impl From<Unexplained> for Violation {
    fn from(unexplained: Unexplained) -> Violation {
        Violation::new(unexplained.what)
    }
}

/// Checks the contents that a recovery at `now_ms` shows against `history`.
pub fn check_history(
    history: &History,
    shown: &[(u64, Value)],
    now_ms: u64,
) -> Result<(), Unexplained> {
    match (check_versions(history, shown, now_ms), history.after_swap()) {
        (Err(before), Some(after)) => check_versions(&after, shown, now_ms).map_err(|after| {
            let what = format!("{}; after the swap: {}", before.what, after.what);
            Unexplained { what, ..before }
        }),
        (checked, _) => checked,
    }
}

/// Checks the contents against the versions of each key and the groups.
fn check_versions(
    history: &History,
    shown: &[(u64, Value)],
    now_ms: u64,
) -> Result<(), Unexplained> {
    let mut found = BTreeMap::new();
    for &(key, value) in shown {
        if found.insert(key, value).is_some() {
            let what = format!("key {key} is listed twice");
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
            continue; // CHECK-HIST-5
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
        (None, [Some(v)]) => format!("key {key}: acknowledged as {v:?}, not found"),
        (Some(v), [None]) => format!("key {key}: acknowledged as absent, found {v:?}"),
        (Some(v), [Some(w)]) => format!("key {key}: acknowledged as {w:?}, found {v:?}"),
        (found, could) => format!("key {key}: found {found:?}, expected one of {could:?}"),
    }
}

/// Checks that all members of a group are found, or none. If a later write of its key hides a member, that key gives
/// no evidence. An update built on a member is evidence that the member was applied.
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
            continue; // CHECK-HIST-5
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
                "group #{} is torn: key {a} has its write, key {b} does not",
                group.op
            );
            Err(Unexplained { key: b, what })
        }
        _ => Ok(()),
    }
}

/// Maximum number of calls that [`linearizable`] accepts.
pub const CALLS_MAX: usize = 32;

/// Effect of a call on its key. A state is the id of a value; `None` means absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEffect {
    /// Stores a value, or deletes.
    Write(Option<u64>),
    /// Reads; holds the state found.
    Read(Option<u64>),
    /// Reads and writes at one instant; holds the state found and the state written.
    Update(Option<u64>, Option<u64>),
    /// Deletes, and returns whether the key was present.
    Remove(bool),
    /// Gets the state that another key, at this place among the keys, has before the call.
    Take(usize),
}

/// One call on one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyCall {
    /// Effect of the call.
    pub act: CallEffect,
    /// Time of the invocation.
    pub invoked: u64,
    /// Time of the acknowledgement. `None` means pending at the end: the call may or may not have happened.
    pub acked: Option<u64>,
}

/// Returns whether some legal order of `calls` on one key leads from the state `start` to the state `end`.
///
/// # Panics
/// On more than [`CALLS_MAX`] calls. Split a longer history into windows.
#[must_use]
pub fn linearizable(calls: &[KeyCall], start: Option<u64>, end: Option<u64>) -> bool {
    assert!(
        calls.len() <= CALLS_MAX,
        "{} calls on one key, at most {CALLS_MAX} are supported",
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
        // A call may be next only if no remaining call was acknowledged before its invocation.
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
                CallEffect::Take(_) => unreachable!("it concerns several keys"),
                CallEffect::Read(_) | CallEffect::Update(..) | CallEffect::Remove(_) => continue,
            };
            stack.push((done | 1 << i, next));
        }
    }
    false
}
