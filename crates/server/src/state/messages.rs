//! Published messages: their bytes, and to which connections they go.
//!
//! ```text
//!   PUBLISH ─▶ Publication ─▶ Outbox of the thread ─▶ one Delivery for each worker with receivers ─▶ output queues
//!              (receivers        (until the batch
//!               are fixed)        is committed)
//! ```
//!
//! # Invariants
//! SRV-PUB-1  The receivers of a message are the connections subscribed when the command that publishes it executes. The
//!     command's reply counts them.
//! SRV-PUB-2  A message whose publisher has undurable writes, or waits for them, is sent when these writes are durable. So a
//!     receiver that reads what the publisher has written before sees it.
//! SRV-PUB-3  The messages of one publisher reach a connection in the order in which they were published.
//! SRV-PUB-4  All receivers share the bytes of a message until they are written to a connection's output queue. The bytes
//!     of the messages that are not written yet are counted; above [`QUEUED_BYTES_MAX`], publishers wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::buffers::reply::ReplySink;
use crate::protocol::resp::{RespVersion, reply};

/// Bytes of messages that are not written to output queues yet, above which publishers wait.
pub(crate) const QUEUED_BYTES_MAX: usize = 32 << 20;
/// Bytes counted for a message besides its text: its deliveries and their lists.
const MESSAGE_OVERHEAD: usize = 512;

/// Kind of a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubscriptionKind {
    Channel,
    Pattern,
    /// A shard channel. This server has one shard.
    Shard,
    /// The requests of all clients (MONITOR).
    Monitor,
}

impl SubscriptionKind {
    /// All kinds.
    pub(crate) const ALL: [SubscriptionKind; 4] = [
        SubscriptionKind::Channel,
        SubscriptionKind::Pattern,
        SubscriptionKind::Shard,
        SubscriptionKind::Monitor,
    ];
}

/// Why a connection receives a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetKind {
    /// It is subscribed.
    Subscription(SubscriptionKind),
    /// It caches keys that have changed, and speaks RESP3.
    Invalidation,
    /// The client that caches the keys has redirected its invalidations to it.
    Redirected,
    /// It has redirected its invalidations to a client that does not exist any more.
    BrokenRedirect,
}

/// A connection that receives a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Receiver {
    /// The client's id.
    pub(crate) id: u64,
    /// The connection's slot in its worker's table.
    pub(crate) slot: usize,
}

/// A message; see SRV-PUB-4.
pub(crate) struct Message {
    /// Channel and text, each as a bulk string; or a whole line of MONITOR; or the last part of an invalidation.
    tail: Vec<u8>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Message {
    pub(crate) fn new(channel: &[u8], text: &[u8], queued_bytes: &Arc<AtomicUsize>) -> Message {
        const FRAME_BYTES_MAX: usize = 48;
        let mut tail = Vec::with_capacity(channel.len() + text.len() + FRAME_BYTES_MAX);
        reply::bulk(&mut tail, channel);
        reply::bulk(&mut tail, text);
        Message::of(tail, queued_bytes)
    }

    /// Creates a line of MONITOR.
    pub(crate) fn line(text: &[u8], queued_bytes: &Arc<AtomicUsize>) -> Message {
        Message::of([b"+", text, b"\r\n"].concat(), queued_bytes)
    }

    /// Creates the message of an invalidation. `tail`: its last part, in RESP.
    pub(crate) fn invalidation(tail: Vec<u8>, queued_bytes: &Arc<AtomicUsize>) -> Message {
        Message::of(tail, queued_bytes)
    }

    fn of(tail: Vec<u8>, queued_bytes: &Arc<AtomicUsize>) -> Message {
        queued_bytes.fetch_add(tail.len() + MESSAGE_OVERHEAD, Ordering::Relaxed);
        Message {
            tail,
            queued_bytes: Arc::clone(queued_bytes),
        }
    }

    /// Appends the message as the receivers of `target` get it.
    pub(crate) fn append(&self, out: &mut impl ReplySink, resp: RespVersion, target: &Target) {
        let kind = match target.kind {
            TargetKind::Subscription(kind) => kind,
            kind => return append_invalidation(out, resp, kind, &self.tail),
        };
        match kind {
            SubscriptionKind::Channel => {
                reply::push(out, resp, 3);
                out.extend_from_slice(b"$7\r\nmessage\r\n");
            }
            SubscriptionKind::Shard => {
                reply::push(out, resp, 3);
                out.extend_from_slice(b"$8\r\nsmessage\r\n");
            }
            SubscriptionKind::Pattern => {
                reply::push(out, resp, 4);
                out.extend_from_slice(b"$8\r\npmessage\r\n");
                reply::bulk(out, &target.name);
            }
            SubscriptionKind::Monitor => {}
        }
        out.extend_from_slice(&self.tail);
    }
}

/// Appends an invalidation with the last part `tail`. As in Redis, RESP2 gets only those that are redirected to it.
pub(crate) fn append_invalidation(
    out: &mut impl ReplySink,
    resp: RespVersion,
    kind: TargetKind,
    tail: &[u8],
) {
    let head: &[u8] = match (resp, kind) {
        (_, TargetKind::Subscription(_)) => return,
        (RespVersion::V3, TargetKind::BrokenRedirect) => b">2\r\n$21\r\ntracking-redir-broken\r\n",
        (RespVersion::V3, _) => b">2\r\n$10\r\ninvalidate\r\n",
        (RespVersion::V2, TargetKind::Redirected) => {
            b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n"
        }
        (RespVersion::V2, _) => return,
    };
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
}

impl Drop for Message {
    fn drop(&mut self) {
        let bytes = self.tail.len() + MESSAGE_OVERHEAD;
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A channel or pattern that has subscribers at one worker, or the receivers of an invalidation.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) kind: TargetKind,
    /// Name of the channel or pattern.
    pub(crate) name: Arc<[u8]>,
    /// The connections, by client id.
    pub(crate) receivers: Arc<Vec<Receiver>>,
}

/// A message for the connections of one worker.
pub(crate) struct Delivery {
    pub(crate) message: Arc<Message>,
    pub(crate) targets: Vec<Target>,
    /// The client that has published the message and has received it already.
    pub(crate) except: Option<u64>,
}

/// A message and its receivers at all workers.
#[derive(Default)]
pub(crate) struct Publication {
    /// Number of receivers. A connection that receives the message through several subscriptions counts for each.
    pub(crate) receivers: usize,
    /// Workers and what they deliver.
    pub(crate) deliveries: Vec<(usize, Delivery)>,
}

/// What the commands of a thread have published since its last commit.
#[derive(Default)]
pub(crate) struct Outbox {
    /// In order of publication. `true`: waits for the batch's ticket (SRV-PUB-2).
    publications: Vec<(Publication, bool)>,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.publications.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.publications.len()
    }

    /// Adds a message. `waits`: it waits for the batch's ticket.
    pub(crate) fn push(&mut self, publication: Publication, waits: bool) {
        self.publications.push((publication, waits));
    }

    /// Removes all but the first `len` messages, because the group that has published them had no effect.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.publications.truncate(len);
    }

    /// Removes the messages that wait for the batch's ticket, because the commit has failed.
    pub(crate) fn abort_unacknowledged(&mut self) {
        self.publications.retain(|(_, waits)| !waits);
    }

    /// Takes the messages that may be sent now, then those that wait for the batch's ticket.
    pub(crate) fn take(&mut self) -> (Vec<Publication>, Vec<Publication>) {
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for (publication, waits) in self.publications.drain(..) {
            match waits {
                true => later.push(publication),
                false => now.push(publication),
            }
        }
        (now, later)
    }
}
