//! The workers as other threads see them: an inbox each, wakers, and the stop signal.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use farbank_store::{EvictionListener, Key};
use mio::Waker;
use mio::net::TcpStream;

use super::handshake_queue::HandshakeQueue;
use super::long_queue::{LentConnection, LongRequests};
use super::tls_stream::TlsStream;
use crate::lock::lock;
use crate::state::clients::ClientInfo;
use crate::state::expiries::Expiries;
use crate::state::messages::{Delivery, Publication};
use crate::state::saves::SaveQueue;
use crate::state::threads::ServerThreads;

/// Handles of all workers, the queue of long requests, and the stop signal. Outlives the server, because the store
/// keeps a callback to it.
pub(super) struct WorkerPool {
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) accept_waker: Waker,
    pub(super) long: LongRequests,
    pub(super) expiries: Expiries,
    pub(super) saves: SaveQueue,
    pub(super) handshakes: HandshakeQueue,
    stopping: AtomicBool,
}

impl WorkerPool {
    pub(super) fn new(
        workers: Vec<WorkerHandle>,
        accept_waker: Waker,
        handshakes: HandshakeQueue,
    ) -> WorkerPool {
        WorkerPool {
            workers,
            accept_waker,
            long: LongRequests::default(),
            expiries: Expiries::default(),
            saves: SaveQueue::default(),
            handshakes,
            stopping: AtomicBool::new(false),
        }
    }

    /// Wakes every worker.
    pub(super) fn wake_workers(&self) {
        for worker in &self.workers {
            wake(&worker.waker);
        }
    }

    /// Sends published messages to the workers that have receivers. Returns what worker `own` delivers.
    pub(super) fn publish(
        &self,
        publications: Vec<Publication>,
        own: Option<usize>,
    ) -> Vec<Delivery> {
        let mut by_worker: Vec<Vec<Delivery>> = Vec::new();
        by_worker.resize_with(self.workers.len(), Vec::new);
        for publication in publications {
            for (worker, delivery) in publication.deliveries {
                by_worker[worker].push(delivery);
            }
        }
        let mut returned = Vec::new();
        for (worker, deliveries) in by_worker.into_iter().enumerate() {
            if own == Some(worker) {
                returned = deliveries;
            } else if !deliveries.is_empty() {
                self.workers[worker].send(WorkerMsg::Deliver(deliveries));
            }
        }
        returned
    }

    /// Wakes the workers that wait for tickets. The store calls it when tickets have become durable.
    pub(super) fn wake_ticket_waiters(&self) {
        for worker in &self.workers {
            // Both sides swap: if this swap precedes the worker's, the worker's check after it sees the ticket.
            if worker.waiting.swap(false, Ordering::AcqRel) {
                wake(&worker.waker);
            }
        }
    }
}

impl EvictionListener for WorkerPool {
    fn is_on(&self) -> bool {
        self.expiries.collects_evicted()
    }

    fn evicted(&self, key: Key<'_>) {
        self.expiries.note_evicted(key);
    }
}

impl ServerThreads for WorkerPool {
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        wake(&self.accept_waker);
        self.long.wake();
        self.expiries.wake();
        self.saves.close();
        self.handshakes.wake();
        self.wake_workers();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn expiries(&self) -> &Expiries {
        &self.expiries
    }

    fn saves(&self) -> &SaveQueue {
        &self.saves
    }

    fn wake(&self) {
        self.wake_workers();
    }

    fn users_changed(&self) {
        for worker in &self.workers {
            worker.send(WorkerMsg::UsersChanged);
        }
    }

    fn close(&self, client_info: &ClientInfo) {
        if let Some(worker) = self.workers.get(client_info.worker) {
            worker.send(WorkerMsg::Kill(client_info.id));
        }
    }
}

/// Wakes a thread. A failure loses nothing: a worker also wakes at its next tick.
fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        tracing::warn!(%error, "cannot wake a thread");
    }
}

/// A message to a worker.
pub(super) enum WorkerMsg {
    /// Serve this connection.
    Accept(TcpStream, Option<TlsStream>, Arc<ClientInfo>),
    /// Close the connection with this id.
    Kill(u64),
    /// Users have changed: close the connections that may not go on.
    UsersChanged,
    /// Deliver these published messages.
    Deliver(Vec<Delivery>),
    /// Resume this connection: its long request was executed.
    ReturnLent(LentConnection),
}

/// A worker's inbox and waker.
pub(super) struct WorkerHandle {
    inbox: Mutex<Vec<WorkerMsg>>,
    waker: Waker,
    /// Connections assigned to this worker.
    pub(super) connections: AtomicUsize,
    waiting: AtomicBool,
}

impl WorkerHandle {
    pub(super) fn new(waker: Waker) -> WorkerHandle {
        WorkerHandle {
            inbox: Mutex::default(),
            waker,
            connections: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
        }
    }

    /// Sends a message and wakes the worker.
    pub(super) fn send(&self, message: WorkerMsg) {
        lock(&self.inbox).push(message);
        wake(&self.waker);
    }

    /// Takes all messages.
    pub(super) fn drain_inbox(&self) -> Vec<WorkerMsg> {
        std::mem::take(&mut lock(&self.inbox))
    }

    /// Announces that the worker will sleep until tickets become durable. The worker must check them once more after
    /// this call.
    pub(super) fn will_wait(&self) {
        self.waiting.swap(true, Ordering::AcqRel);
    }
}
