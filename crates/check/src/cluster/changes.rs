//! Memory servers that join and leave during a run.
//!
//! Changes follow one another: a server joins, then one leaves, and so on. The process of a change is killed now and then, or
//! fails because of another fault, and is started again.

use std::collections::BTreeSet;

use super::process::{ChangeProcess, ChangeState, ServerChange};
use super::{ClusterOptions, SERVERS};
use crate::child::ChildError;

/// The changes of a run.
pub(super) struct ServerChanges {
    /// Those that have not begun, the next one last.
    planned: Vec<ServerChange>,
    /// Cycles between the beginnings of two changes.
    every: u64,
    begun: u64,
    /// The change that is under way, and its process.
    running: Option<(ServerChange, ChangeProcess)>,
    left: BTreeSet<usize>,
    pub(super) joined: u64,
    pub(super) repeated: u64,
}

impl ServerChanges {
    pub(super) fn new(options: &ClusterOptions) -> ServerChanges {
        let planned = plan(options.joins, options.leaves);
        ServerChanges {
            every: options.cycles / (planned.len() as u64 + 1),
            planned: planned.into_iter().rev().collect(),
            begun: 0,
            running: None,
            left: BTreeSet::new(),
            joined: 0,
            repeated: 0,
        }
    }

    /// Returns whether server `number` has left.
    pub(super) fn has_left(&self, number: usize) -> bool {
        self.left.contains(&number)
    }

    /// Returns the number of servers that have left.
    pub(super) fn left(&self) -> u64 {
        self.left.len() as u64
    }

    /// Returns whether a change is under way.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Takes the next change if none is under way, and it is time or `is_over`: the cycles have ended.
    pub(super) fn next(&mut self, cycle: u64, is_over: bool) -> Option<ServerChange> {
        let is_time = is_over || cycle >= (self.begun + 1) * self.every;
        if self.running.is_some() || !is_time {
            return None;
        }
        let change = self.planned.pop()?;
        self.begun += 1;
        Some(change)
    }

    /// Continues `change` in `process`.
    pub(super) fn run(&mut self, change: ServerChange, process: ChangeProcess) {
        self.running = Some((change, process));
    }

    /// Ends the process of the change that is under way. Returns the change, which is to be repeated.
    pub(super) fn interrupt(&mut self) -> Option<ServerChange> {
        let (change, process) = self.running.take()?;
        drop(process);
        self.repeated += 1;
        Some(change)
    }

    /// Looks at the process of the change that is under way. Returns the change if it is complete.
    pub(super) fn poll(&mut self) -> Result<(ChangeState, Option<ServerChange>), ChildError> {
        let Some((change, process)) = &mut self.running else {
            return Ok((ChangeState::Done, None));
        };
        let (change, state) = (*change, process.state()?);
        if !matches!(state, ChangeState::Done) {
            return Ok((state, None));
        }
        self.running = None;
        match change {
            ServerChange::Join(_) => self.joined += 1,
            ServerChange::Leave(server) => drop(self.left.insert(server.into())),
        }
        Ok((ChangeState::Done, Some(change)))
    }
}

/// Returns the changes in their order. The servers that leave are those with the least numbers, except server 0.
fn plan(joins: u16, leaves: u16) -> Vec<ServerChange> {
    let join = |n: u16| (n < joins).then_some(ServerChange::Join(SERVERS + n));
    let leave = |n: u16| (n < leaves).then_some(ServerChange::Leave(1 + n));
    let pairs = (0..joins.max(leaves)).map(|n| [join(n), leave(n)]);
    pairs.flatten().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_join_and_leave_in_turn() {
        use ServerChange::{Join, Leave};
        assert_eq!(plan(0, 0), []);
        assert_eq!(plan(2, 1), [Join(2), Leave(1), Join(3)]);
        assert_eq!(plan(1, 2), [Join(2), Leave(1), Leave(2)]);
    }
}
