//! Keyspace notifications: the events that commands publish, and the count of changes (`rdb_changes_since_last_save`).
//!
//! As in Redis, a change is counted where its event is published, whether or not notifications are on.
//!
//! An event is published with the message of its batch (SRV-PUB-2): subscribers receive it when the write that it tells
//! of is visible to them. While notifications are off, an event costs one relaxed load.

use farbank_store::{Key, ReadView};

use super::context::CommandContext;
use crate::exec_context::StoreAccess;
use crate::keyspace_events::KeyspaceEvents;
use crate::state::expiries::holds_expired;
use crate::state::messages::Publication;
use crate::stats::counters::Counter;

impl CommandContext<'_> {
    /// Whether events of `class` are published.
    #[inline]
    pub(super) fn notifies(&self, class: KeyspaceEvents) -> bool {
        self.shared.settings.keyspace_events().tells(class)
    }

    /// Publishes an event of `key`.
    #[inline]
    pub(super) fn notify(&mut self, class: KeyspaceEvents, event: &'static str, key: Key<'_>) {
        if self.notifies(class) {
            self.publish_event(event, key);
        }
    }

    #[cold]
    fn publish_event(&mut self, event: &'static str, key: Key<'_>) {
        for publication in self.shared.event(event, key) {
            self.send_with_batch(publication);
        }
    }

    /// Sends a message when the replies of this batch are sent (SRV-PUB-2).
    pub(super) fn send_with_batch(&mut self, publication: Publication) {
        let waits = self.mark.is_some();
        self.thread.outbox.push(publication, waits);
    }

    /// Counts changes of keys.
    #[inline]
    pub(super) fn count_changes(&mut self, changes: u64) {
        let changes = usize::try_from(changes).unwrap_or(usize::MAX);
        self.thread.counters.count(Counter::Changes, changes);
    }

    /// Counts a change of a string and publishes its event, after `new` if the key was absent.
    #[inline]
    pub(super) fn notify_string(&mut self, event: &'static str, key: Key<'_>, was_absent: bool) {
        self.count_changes(1);
        let events = self.shared.settings.keyspace_events();
        if was_absent && events.tells(KeyspaceEvents::NEW) {
            self.publish_event("new", key);
        }
        if events.tells(KeyspaceEvents::STRING) {
            self.publish_event(event, key);
        }
    }

    /// Counts a change of a key and publishes its event, which is of the class of all types.
    #[inline]
    pub(super) fn notify_generic(&mut self, event: &'static str, key: Key<'_>) {
        self.count_changes(1);
        self.notify(KeyspaceEvents::GENERIC, event, key);
    }

    /// Publishes that a command has not found the key that it reads.
    #[inline]
    pub(super) fn notify_miss(&mut self, key: Key<'_>) {
        if self.thread.records {
            self.notify_if_expired(key);
        }
        self.notify(KeyspaceEvents::MISS, "keymiss", key);
    }

    /// Publishes that `key` has expired if a write will replace its expired value, or a read has found it, unless the
    /// thread of expiries has published it (SRV-EXPIRY-1).
    #[inline]
    pub(super) fn notify_if_expired(&mut self, key: Key<'_>) {
        if (self.thread.records || self.notifies(KeyspaceEvents::EXPIRED))
            && let StoreAccess::Session(session) = &mut self.store
            && self
                .shared
                .threads
                .expiries()
                .claim(self.shared.stored_key(key), session.now_ms())
            && holds_expired(&mut **session, key, ReadView::Pending)
        {
            self.note_expired(key);
            self.notify(KeyspaceEvents::EXPIRED, "expired", key);
        }
    }

    /// Records that a value that expires at `expires_ms` was stored; 0 means that it does not expire.
    #[inline]
    pub(super) fn note_expiry(&mut self, key: Key<'_>, expires_ms: u64) {
        if expires_ms != 0
            && (self.thread.records
                || self.notifies(KeyspaceEvents::EXPIRED)
                    && !self.shared.interests.subscriptions.is_empty())
        {
            let now_ms = self.ops().now_ms();
            let key = self.shared.stored_key(key);
            self.shared.threads.expiries().note(key, expires_ms, now_ms);
        }
    }
}
