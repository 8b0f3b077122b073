//! The calls of a cycle, and the check that an order of them explains their results.

use std::collections::BTreeMap;
use std::time::Duration;

use super::calls::{ClusterAnswer, ClusterCall, ClusterLine};
use crate::child::ServerViolation;
use crate::oracle::{CALLS_MAX, CallEffect, KeyCall, linearizable};

/// A call with its result.
#[derive(Clone, Debug)]
pub(super) struct MadeCall {
    process: u64,
    client: u64,
    key: u64,
    call: ClusterCall,
    began_ns: u64,
    /// Time and result; `None` if the process was killed.
    ended: Option<(u64, ClusterAnswer)>,
}

/// The values of keys; an absent key has none.
pub(super) type KeyValues = BTreeMap<u64, u64>;

/// Outcome of the check of one key.
pub(super) enum KeyVerdict {
    Holds,
    /// The key has more calls than the search accepts.
    Open,
    Fails(ServerViolation),
}

/// Collects the calls of the lines of process `process`.
pub(super) fn collect(process: u64, lines: Vec<ClusterLine>) -> Vec<MadeCall> {
    let mut calls: Vec<MadeCall> = Vec::new();
    let mut running = BTreeMap::new();
    for line in lines {
        match line {
            ClusterLine::Begin {
                client,
                ns,
                key,
                call,
            } => {
                running.insert(client, calls.len());
                calls.push(MadeCall {
                    process,
                    client,
                    key,
                    call,
                    began_ns: ns,
                    ended: None,
                });
            }
            ClusterLine::End { client, ns, answer } => {
                if let Some(call) = running.remove(&client) {
                    calls[call].ended = Some((ns, answer));
                }
            }
            ClusterLine::Done { .. } => {}
        }
    }
    calls
}

impl MadeCall {
    /// Returns whether process `process` made it.
    pub(super) fn is_of(&self, process: u64) -> bool {
        self.process == process
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.ended.is_none()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Returns the reason why the call failed, if it did.
    pub(super) fn failure(&self) -> Option<&str> {
        match &self.ended {
            Some((_, ClusterAnswer::Failed(reason))) => Some(reason),
            _ => None,
        }
    }

    /// Returns the time that a call took, in nanoseconds.
    fn took_ns(&self) -> Option<u64> {
        let (ended, _) = self.ended.as_ref()?;
        Some(ended.saturating_sub(self.began_ns))
    }

    /// Returns the value that a get found, with its key.
    pub(super) fn got(&self) -> Option<(u64, Option<u64>)> {
        match (&self.call, &self.ended) {
            (ClusterCall::Get, Some((_, ClusterAnswer::Found(id)))) => Some((self.key, *id)),
            _ => None,
        }
    }

    /// Returns the effect on `key`, or `None` if the call tells nothing about it.
    fn effect(&self, key: u64) -> Option<CallEffect> {
        let answer = self.ended.as_ref().map(|(_, answer)| answer);
        let answer = answer.filter(|answer| !matches!(answer, ClusterAnswer::Failed(_)));
        if let ClusterCall::Scan { is_down, count } = self.call {
            let Some(ClusterAnswer::Entries(entries)) = answer else {
                return None;
            };
            let end = entries.get(count - 1).map(|(key, _)| *key);
            let spans = match is_down {
                false => (self.key..=end.unwrap_or(u64::MAX)).contains(&key),
                true => (end.unwrap_or(0)..=self.key).contains(&key),
            };
            let found = entries.iter().find(|(other, _)| *other == key);
            return spans.then(|| CallEffect::Read(found.map(|(_, id)| *id)));
        }
        if self.key != key {
            return None;
        }
        Some(match (self.call, answer) {
            (ClusterCall::Get, Some(ClusterAnswer::Found(id))) => CallEffect::Read(*id),
            (ClusterCall::Swap { expected, .. }, Some(ClusterAnswer::Found(id)))
                if *id != expected =>
            {
                CallEffect::Read(*id)
            }
            (ClusterCall::Swap { expected, new }, _) => CallEffect::Update(expected, new),
            (ClusterCall::Put(id), _) => CallEffect::Write(Some(id)),
            (ClusterCall::Delete, Some(ClusterAnswer::Removed(was))) => CallEffect::Remove(*was),
            (ClusterCall::Delete, _) => CallEffect::Write(None),
            (ClusterCall::Get | ClusterCall::Scan { .. }, _) => return None,
        })
    }

    pub(super) fn is_answered(&self) -> bool {
        !self.is_in_flight() && !self.has_failed()
    }

    pub(super) fn line(&self, began_ns: u64) -> String {
        let us = |ns: u64| ns.saturating_sub(began_ns) as f64 / 1_000.0;
        let ended = match &self.ended {
            Some((ns, answer)) => format!("{:10.1} us: {answer}", us(*ns)),
            None => "never".into(),
        };
        format!(
            "{:10.1} us to {ended:<10}   process {} client {}: {} of key {}",
            us(self.began_ns),
            self.process,
            self.client,
            self.call,
            self.key
        )
    }
}

/// Returns the longest time of a call that has ended, and the call.
pub(super) fn longest_call<'a>(
    calls: impl Iterator<Item = &'a MadeCall>,
) -> (Duration, Vec<String>) {
    let timed = calls.filter_map(|made| Some((made.took_ns()?, made)));
    match timed.max_by_key(|(took_ns, _)| *took_ns) {
        Some((took_ns, made)) => (
            Duration::from_nanos(took_ns),
            vec![made.line(made.began_ns)],
        ),
        None => (Duration::ZERO, Vec::new()),
    }
}

/// Checks whether an order of `calls` leads from the value in `start` to that in `end`.
pub(super) fn check_key(
    key: u64,
    calls: &[MadeCall],
    start: &KeyValues,
    end: &KeyValues,
) -> KeyVerdict {
    let concerned: Vec<(&MadeCall, CallEffect)> = calls
        .iter()
        .filter_map(|made| Some((made, made.effect(key)?)))
        .collect();
    if concerned.len() > CALLS_MAX {
        return KeyVerdict::Open;
    }
    let searched: Vec<KeyCall> = concerned
        .iter()
        .map(|(made, act)| KeyCall {
            act: *act,
            invoked: made.began_ns,
            acked: made
                .is_answered()
                .then(|| made.ended.as_ref().map_or(0, |(ns, _)| *ns)),
        })
        .collect();
    let (first, last) = (start.get(&key).copied(), end.get(&key).copied());
    if linearizable(&searched, first, last) {
        return KeyVerdict::Holds;
    }
    let began_ns = calls.iter().map(|made| made.began_ns).min().unwrap_or(0);
    let mut history = vec![format!("value at the start: {first:?}")];
    history.extend(concerned.iter().map(|(made, _)| made.line(began_ns)));
    history.push(format!("value at the end: {last:?}"));
    KeyVerdict::Fails(ServerViolation {
        key: key.to_string(),
        what: "no order of the calls explains their results".into(),
        history,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<ClusterLine> {
        text.iter().map(|line| line.parse().unwrap()).collect()
    }

    fn holds(text: &[&str], start: &[(u64, u64)], end: &[(u64, u64)]) -> bool {
        let calls = collect(0, lines(text));
        let (start, end) = (
            start.iter().copied().collect(),
            end.iter().copied().collect(),
        );
        matches!(check_key(7, &calls, &start, &end), KeyVerdict::Holds)
    }

    #[test]
    fn a_lost_write_a_late_write_and_a_short_scan_are_violations() {
        let put = ["begin 1 10 7 put 5", "end 1 20 stored"];
        assert!(holds(&put, &[], &[(7, 5)]));
        assert!(!holds(&put, &[], &[]), "an acknowledged write is lost");
        for failed in [
            &["begin 1 10 7 put 5"][..],
            &["begin 1 10 7 put 5", "end 1 20 failed x"],
        ] {
            assert!(holds(failed, &[], &[(7, 5)]));
            assert!(
                holds(failed, &[], &[]),
                "a write without an answer may have no effect"
            );
        }
        assert!(
            !holds(&[], &[], &[(7, 5)]),
            "a write of an earlier cycle took effect"
        );
        let swap = ["begin 1 10 7 swap 4 5", "end 1 20 found 4"];
        assert!(holds(&swap, &[(7, 4)], &[(7, 5)]));
        assert!(
            !holds(&swap, &[(7, 3)], &[(7, 5)]),
            "the swap compared with another value"
        );
        let differs = ["begin 1 10 7 swap 4 5", "end 1 20 found -"];
        assert!(holds(&differs, &[], &[]) && !holds(&differs, &[], &[(7, 5)]));
        for (call, result) in [("scan up 2", "6=1,8=2"), ("scan down 2", "8=2,6=1")] {
            let begin = format!(
                "begin 1 10 {} {call}",
                if result.starts_with('6') { 5 } else { 9 }
            );
            let end = format!("end 1 20 entries {result}");
            let scan = [begin.as_str(), &end];
            assert!(holds(&scan, &[], &[]));
            assert!(!holds(&scan, &[(7, 5)], &[(7, 5)]), "the scan missed a key");
        }
        let outside = ["begin 1 10 5 scan up 1", "end 1 20 entries 6=1"];
        assert!(holds(&outside, &[(7, 5)], &[(7, 5)]));
    }
}
