//! The recent commands of a connection, for the history of a violation.

use std::collections::VecDeque;

use crate::child::{ConnectionStop, ServerViolation};

/// Number of recent commands that are kept.
const EVENTS: usize = 50_000;
/// Most commands in the history of a violation.
const HISTORY: usize = 24;

/// Recent commands, each with its key.
#[derive(Default)]
pub(super) struct EventLog {
    events: VecDeque<(String, String)>,
}

impl EventLog {
    pub(super) fn note(&mut self, key: &str, what: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((key.to_owned(), what));
    }

    /// Returns a violation of `key`, with its recent commands.
    pub(super) fn violation(&self, key: &str, what: String) -> ConnectionStop {
        let of_key = self.events.iter().filter(|(k, _)| k == key);
        let history: Vec<_> = of_key.map(|(_, what)| what.clone()).collect();
        let history = history[history.len().saturating_sub(HISTORY)..].to_vec();
        ConnectionStop::Wrong(Box::new(ServerViolation {
            key: key.into(),
            what,
            history,
        }))
    }
}
