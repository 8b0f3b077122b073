//! Changes of keys that a thread has made and not announced yet, for client-side caching (`state::tracking`).
//!
//! ```text
//!   RecordingSession ─▶ events of the request that executes ─ settle ─▶ changes of the batch ─ durable ─▶ announced
//! ```
//!
//! The events of one request keep their order, together with the keys that the request has read, so that its client
//! gets the invalidations that Redis would send it. Once the request has ended, only the changes remain.

use std::collections::HashSet;

/// What the request that executes has done with keys, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyEvent {
    /// A tracked read. `is_new`: the client was not registered for the key before.
    Read { key: Box<[u8]>, is_new: bool },
    /// The key has another value. `by_client`: the request has changed it; otherwise it has expired or was evicted.
    Changed { key: Box<[u8]>, by_client: bool },
    /// Keys that are not listed may have changed.
    Flushed,
}

/// A change that is announced once it is visible to all sessions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// `origin`: the client that has changed the key; 0 if none has.
    Key { key: Box<[u8]>, origin: u64 },
    /// Every key may have changed.
    All { origin: u64 },
}

/// The changes of a thread; see the module.
#[derive(Default)]
pub(crate) struct ChangeLog {
    events: Vec<KeyEvent>,
    event_bytes: usize,
    /// Keys of removed events for which the request has registered its client.
    registered: HashSet<Box<[u8]>>,
    /// The changes of the requests that have ended.
    changes: Vec<KeyChange>,
    change_bytes: usize,
    /// While set, changes of single keys are not listed.
    is_flushing: bool,
    /// While set, changes are not those of the client.
    is_evicting: bool,
}

/// Bytes of listed changes above which one [`KeyChange::All`] replaces them.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of an entry besides its key, with the allocator's overhead.
const ENTRY_BYTES: usize = 64;

impl ChangeLog {
    /// Position of the next event.
    pub(crate) fn mark(&self) -> usize {
        self.events.len()
    }

    /// Removes the events from `mark` on, because they had no effect. A flush may have had one, so it is announced.
    pub(crate) fn rewind(&mut self, mark: usize) {
        let removed = self.events.get(mark..).unwrap_or_default();
        if removed.contains(&KeyEvent::Flushed) {
            self.changes.push(KeyChange::All { origin: 0 });
        }
        for event in self.events.drain(mark.min(self.events.len())..) {
            if let KeyEvent::Read { key, is_new: true } = event {
                self.registered.insert(key);
            }
        }
    }

    /// Adds an event of the request that executes.
    pub(crate) fn push(&mut self, mut event: KeyEvent) {
        // A group that runs again registers its client again.
        if let KeyEvent::Read { key, is_new } = &mut event {
            *is_new |= self.registered.contains(key);
        }
        let bytes = match &event {
            KeyEvent::Changed { .. } if self.is_flushing => return,
            KeyEvent::Read { key, .. } | KeyEvent::Changed { key, .. } => key.len(),
            KeyEvent::Flushed => 0,
        };
        self.event_bytes += bytes + ENTRY_BYTES;
        if self.event_bytes > BYTES_MAX {
            self.events.clear();
            self.event_bytes = 0;
            self.events.push(KeyEvent::Flushed);
            return;
        }
        self.events.push(event);
    }

    /// Records that the request has changed `key`.
    pub(crate) fn note_change(&mut self, key: &[u8]) {
        let (key, by_client) = (key.into(), !self.is_evicting);
        self.push(KeyEvent::Changed { key, by_client });
    }

    /// While `is_on`, changes of single keys are not listed, because [`KeyEvent::Flushed`] stands for all of them.
    pub(crate) fn set_flushing(&mut self, is_on: bool) {
        self.is_flushing = is_on;
    }

    /// While `is_on`, keys are evicted: no client is the origin of the changes.
    pub(crate) fn set_evicting(&mut self, is_on: bool) {
        self.is_evicting = is_on;
    }

    /// Takes the events of the request that has ended.
    pub(crate) fn take_events(&mut self) -> Vec<KeyEvent> {
        self.event_bytes = 0;
        self.registered.clear();
        std::mem::take(&mut self.events)
    }

    /// Lists the changes among `events` as those of `origin`.
    pub(crate) fn settle(&mut self, events: Vec<KeyEvent>, origin: u64) {
        for event in events {
            match event {
                KeyEvent::Read { .. } => {}
                KeyEvent::Changed { key, by_client } => {
                    self.change_bytes += key.len() + ENTRY_BYTES;
                    let origin = if by_client { origin } else { 0 };
                    self.changes.push(KeyChange::Key { key, origin });
                }
                KeyEvent::Flushed => self.changes.push(KeyChange::All { origin }),
            }
        }
        if self.change_bytes > BYTES_MAX {
            self.changes.clear();
            self.change_bytes = 0;
            // No client is the origin of all of them.
            self.changes.push(KeyChange::All { origin: 0 });
        }
    }

    /// Lists changes that were taken before.
    pub(crate) fn relist(&mut self, changes: Vec<KeyChange>) {
        self.changes.extend(changes);
    }

    /// Takes the changes since the last call. Those of a request that has not settled them have no origin.
    pub(crate) fn take_changes(&mut self) -> Vec<KeyChange> {
        let events = self.take_events();
        self.settle(events, 0);
        self.change_bytes = 0;
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_changes_become_a_change_of_every_key() {
        let mut log = ChangeLog::default();
        let key = vec![7; 1 << 20];
        for _ in 0..BYTES_MAX >> 20 {
            log.note_change(&key);
        }
        assert_eq!(log.take_changes(), [KeyChange::All { origin: 0 }]);
        for _ in 0..=BYTES_MAX >> 20 {
            log.note_change(&key);
            let events = log.take_events();
            log.settle(events, 5);
        }
        let changes = log.take_changes();
        assert_eq!(changes[0], KeyChange::All { origin: 0 });
        assert!(changes.len() <= 2);
        assert_eq!(log.take_changes(), []);
    }

    #[test]
    fn changes_without_a_request_have_no_origin() {
        let mut log = ChangeLog::default();
        log.note_change(b"a");
        let mark = log.mark();
        log.note_change(b"b");
        log.rewind(mark);
        log.set_flushing(true);
        log.note_change(b"c");
        log.set_flushing(false);
        let key = b"a"[..].into();
        assert_eq!(log.take_changes(), [KeyChange::Key { key, origin: 0 }]);
    }
}
