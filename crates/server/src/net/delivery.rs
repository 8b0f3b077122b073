//! Delivery of published messages to the connections of one worker.
//!
//! ```text
//!   inbox ─▶ queue of deliveries ─▶ output queues of the receivers ─▶ sockets
//!                      append                            send
//! ```
//!
//! # Invariants
//! SRV-DELIVER-1  Each loop iteration appends and sends for one time slice, or to one connection. Other connections are
//!     visited in between, however many receivers a message has.
//! SRV-DELIVER-2  A connection with subscriptions executes requests only after the messages that were queued before. So no
//!     message arrives after the reply that confirms the end of its subscription, if the message was published before.

use std::collections::VecDeque;
use std::time::Instant;

use farbank_pm::Ticket;

use super::connection::{Connection, ProtocolState};
use super::connection_table::{ConnectionTable, LentMessage};
use crate::buffers::pool::BufferPool;
use crate::buffers::reply::ReplySink;
use crate::protocol::resp::RespVersion;
use crate::state::messages::{Delivery, Message, Receiver, Target};
use crate::state::shared::ServerShared;

/// Most connections with appended messages that are not sent yet. More messages for one connection are sent together.
const UNSENT_MAX: usize = 64;
/// Bytes of messages after which they are sent.
const APPENDED_BYTES_MAX: usize = 1 << 20;

/// Messages for the connections of one worker; see the module.
#[derive(Default)]
pub(super) struct DeliveryQueue {
    queue: VecDeque<Delivery>,
    /// The next target of the first delivery, and its next receiver.
    target: usize,
    receiver: usize,
    /// Slots of connections whose messages are to be sent.
    unsent: VecDeque<usize>,
    /// Deliveries that have ever arrived.
    arrived: u64,
}

impl DeliveryQueue {
    pub(super) fn push(&mut self, delivery: Delivery) {
        self.queue.push_back(delivery);
        self.arrived += 1;
    }

    /// Whether there are messages to append or to send.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.unsent.is_empty()
    }

    /// Number of the last delivery that has arrived.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Number of the last delivery that was appended to the output queues of all its receivers.
    pub(super) fn appended(&self) -> u64 {
        self.arrived - self.queue.len() as u64
    }

    /// Takes the slot of a connection to which messages were appended.
    pub(super) fn next_unsent(&mut self) -> Option<usize> {
        self.unsent.pop_front()
    }

    /// Appends messages to output queues until `deadline`.
    pub(super) fn append(
        &mut self,
        table: &mut ConnectionTable,
        buffer_pool: &mut BufferPool,
        shared: &ServerShared<'_>,
        deadline: Instant,
    ) {
        /// Receivers between two readings of the clock.
        const STRIDE: usize = 16;
        let (mut bytes, mut count) = (0, 0);
        while let Some(delivery) = self.queue.front() {
            let Some(target) = delivery.targets.get(self.target) else {
                self.queue.pop_front();
                (self.target, self.receiver) = (0, 0);
                continue;
            };
            let Some(&receiver) = target.receivers.get(self.receiver) else {
                (self.target, self.receiver) = (self.target + 1, 0);
                continue;
            };
            if self.unsent.len() >= UNSENT_MAX || bytes >= APPENDED_BYTES_MAX {
                return;
            }
            self.receiver += 1;
            if delivery.except != Some(receiver.id) {
                let message = &delivery.message;
                if let Some(conn) = connection_of(table, receiver) {
                    let before = conn.output.pending();
                    if append_to(conn, buffer_pool, shared, target, message) {
                        bytes += conn.output.pending() - before;
                        if !conn.marks.has_unsent {
                            conn.marks.has_unsent = true;
                            self.unsent.push_back(receiver.slot);
                        }
                    }
                } else {
                    keep_for_lent(table, shared, receiver, target, message);
                }
            }
            count += 1;
            if count % STRIDE == 0 && Instant::now() >= deadline {
                return;
            }
        }
    }
}

/// The connection of a receiver, unless it is closed or lent.
fn connection_of(table: &mut ConnectionTable, receiver: Receiver) -> Option<&mut Connection> {
    let conn = table.get_mut(receiver.slot);
    conn.filter(|conn| conn.client_info.id == receiver.id)
}

/// Appends a message to a connection's output queue, if the client still has the subscription. Returns whether it did.
fn append_to(
    conn: &mut Connection,
    buffer_pool: &mut BufferPool,
    shared: &ServerShared<'_>,
    target: &Target,
    message: &Message,
) -> bool {
    let Some(resp) = prepare_for(conn, buffer_pool, shared, target) else {
        return false;
    };
    message.append(&mut conn.output.buffer, resp, target);
    // Outside a batch: only tickets that hold earlier replies hold the message.
    conn.output.hold_until(Ticket::DURABLE);
    true
}

/// Prepares the output queue of a connection for a message, if the client still has the subscription. Returns the version
/// of the client's protocol.
fn prepare_for(
    conn: &mut Connection,
    buffer_pool: &mut BufferPool,
    shared: &ServerShared<'_>,
    target: &Target,
) -> Option<RespVersion> {
    let ProtocolState::Resp { client, .. } = &conn.protocol else {
        return None;
    };
    if conn.status.closing || conn.output.buffer.is_cut() || !client.receives(target) {
        return None;
    }
    let bytes_max = shared.reply_bytes_max(&conn.client_info);
    conn.output.prepare_buffer(buffer_pool, bytes_max);
    Some(client.resp())
}

/// Keeps a message for a connection that is lent. The messages count against the limit of its output.
fn keep_for_lent(
    table: &mut ConnectionTable,
    shared: &ServerShared<'_>,
    receiver: Receiver,
    target: &Target,
    message: &Message,
) {
    let Some(away) = table.lent.get_mut(&receiver.slot) else {
        return;
    };
    if away.id != receiver.id || away.is_killed {
        return;
    }
    let mut bytes = Vec::new();
    message.append(&mut bytes, away.resp, target);
    away.message_bytes += bytes.len();
    if away.message_bytes > shared.settings.output_limit(true).bytes_max() {
        tracing::warn!(
            client = away.id,
            "closed: its messages exceed client-output-buffer-limit"
        );
        away.is_killed = true;
        away.messages = Vec::new();
        return;
    }
    let (target, resp) = (target.clone(), away.resp);
    away.messages.push(LentMessage {
        target,
        resp,
        bytes,
    });
}

/// Appends the messages that arrived while a connection was lent.
pub(super) fn append_kept(
    conn: &mut Connection,
    buffer_pool: &mut BufferPool,
    shared: &ServerShared<'_>,
    messages: Vec<LentMessage>,
) {
    if messages.is_empty() {
        return;
    }
    for message in messages {
        let resp = prepare_for(conn, buffer_pool, shared, &message.target);
        if resp == Some(message.resp) {
            conn.output.buffer.extend_from_slice(&message.bytes);
        }
    }
    conn.output.hold_until(Ticket::DURABLE);
}
