//! The worker's part in publish and subscribe: it sends what its connections publish, delivers messages to its
//! connections, and ends the subscriptions of closed connections.

use std::sync::Arc;
use std::time::Instant;

use farbank_pm::Ticket;

use super::{Recording, Worker};
use crate::net::connection::{Connection, ProtocolState};
use crate::settings::size;
use crate::state::change_log::KeyChange;
use crate::state::messages::Publication;

impl Worker<'_> {
    /// Sends the messages of this batch, except those that `ticket` holds, which it returns.
    pub(super) fn publish_outbox(&mut self, ticket: Ticket) -> Vec<Publication> {
        if self.executor.thread.outbox.is_empty() {
            return Vec::new();
        }
        let (mut messages, mut held) = self.executor.thread.outbox.take();
        if ticket == Ticket::DURABLE {
            messages.append(&mut held);
        }
        self.publish(messages);
        held
    }

    /// Sends published messages to the workers of their receivers.
    pub(super) fn publish(&mut self, messages: Vec<Publication>) {
        if !messages.is_empty() {
            for delivery in self.pool.publish(messages, Some(self.number)) {
                self.messages.deliveries.push(delivery);
            }
        }
    }

    /// Sends the invalidations of changes that are visible to all sessions.
    pub(super) fn announce(&mut self, changes: &[KeyChange]) {
        let invalidations = self.executor.announce(changes);
        self.publish(invalidations);
    }

    /// Reports when no write of this worker is missing in its change log any more (SRV-TRACK-4). Called between two
    /// batches: from here on, turns see that clients track keys.
    pub(super) fn follow_tracking(&mut self) {
        if self.commits.recording == Recording::Complete || !self.shared.interests.tracking.is_on()
        {
            return;
        }
        let ticket = match self.commits.recording {
            Recording::From(ticket) => ticket,
            _ => self.commits.last_ticket,
        };
        self.commits.recording = Recording::From(ticket);
        // After a failure, no write becomes visible any more.
        if self.executor.session.durable(ticket).unwrap_or(true) {
            self.commits.recording = Recording::Complete;
            self.shared.interests.tracking.note_ready_worker();
        }
    }

    /// Keeps the table of tracked keys within its limit.
    pub(super) fn limit_tracked_keys(&mut self, deadline: Instant) {
        let keys_max = size(&self.shared.settings.tracked_keys);
        let shared = self.shared;
        while shared.interests.tracking.is_over(keys_max) && Instant::now() < deadline {
            let mut invalidations = Vec::new();
            for key in shared.interests.tracking.evict(keys_max) {
                let clients = &shared.clients;
                invalidations.extend(shared.interests.tracking.invalidation(
                    clients,
                    &key.name,
                    &key.clients,
                ));
            }
            self.publish(invalidations);
        }
    }

    /// Delivers queued messages for one time slice (SRV-DELIVER-1).
    pub(super) fn deliver(&mut self) {
        if !self.messages.deliveries.has_work() {
            return;
        }
        let deadline = Instant::now() + self.shared.options.time_slice;
        let buffer_pool = &mut self.executor.thread.buffer_pool;
        self.messages
            .deliveries
            .append(&mut self.table, buffer_pool, self.shared, deadline);
        while let Some(slot) = self.messages.deliveries.next_unsent() {
            if let Some(conn) = self.table.get_mut(slot)
                && std::mem::take(&mut conn.marks.has_unsent)
            {
                self.send_messages(slot);
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        self.evict_clients();
    }

    /// Sends a connection's messages, or closes the connection if they exceed its limit.
    fn send_messages(&mut self, slot: usize) {
        let Some(conn) = self.table.take(slot) else {
            return;
        };
        let kept = self.check_output_limit(&conn);
        self.table.put(slot, conn);
        match kept {
            Ok(()) => self.finish(slot),
            Err(_) => self.close(slot),
        }
    }

    /// Whether a connection must receive queued messages before it executes requests (SRV-DELIVER-2).
    pub(super) fn awaits_messages(&self, conn: &mut Connection) -> bool {
        if self.messages.deliveries.has_work() && conn.receives_messages() {
            let arrived = self.messages.deliveries.arrived();
            if *conn.waits_for.get_or_insert(arrived) > self.messages.deliveries.appended() {
                return true;
            }
        }
        conn.waits_for = None;
        false
    }

    /// Ends the subscriptions of a connection that is being closed.
    pub(super) fn end_subscriptions(&mut self, conn: &mut Connection) {
        if let ProtocolState::Resp { client, .. } = &mut conn.protocol
            && let Some(own) = client.take_subscriptions()
        {
            self.messages
                .ended
                .push((Arc::clone(&conn.client_info), own));
            self.remove_ended();
        }
    }

    /// Removes subscriptions of closed connections from the registry, a few at a time.
    pub(super) fn remove_ended(&mut self) {
        const REMOVED: usize = 512;
        if let Some((client_info, own)) = self.messages.ended.last_mut() {
            for (kind, name) in own.drain(REMOVED) {
                self.shared
                    .interests
                    .subscriptions
                    .remove(client_info, kind, &name);
            }
            if own.total() == 0 {
                self.messages.ended.pop();
            }
        }
    }
}
