//! Sockets that wait for their TLS handshakes, and the number of handshakes that are not complete.
//!
//! # Invariants
//! TLS-1  At most [`HANDSHAKES_MAX`] handshakes are not complete. Further sockets are closed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::Waker;
use mio::net::TcpStream;

use crate::lock::lock;
use crate::settings::WireProtocol;
use crate::state::clients::PeerAddr;

/// Most handshakes that are not complete.
const HANDSHAKES_MAX: usize = 1024;

/// An accepted socket whose handshake has not begun.
pub(super) struct WaitingSocket {
    pub stream: TcpStream,
    pub peer: PeerAddr,
    /// What the client speaks after the handshake.
    pub protocol: WireProtocol,
}

/// Accepted sockets whose handshakes have not begun, and the number of all that are not complete.
pub(super) struct HandshakeQueue {
    sockets: Mutex<Vec<WaitingSocket>>,
    open: AtomicUsize,
    waker: Waker,
}

impl HandshakeQueue {
    pub(super) fn new(waker: Waker) -> HandshakeQueue {
        HandshakeQueue {
            sockets: Mutex::default(),
            open: AtomicUsize::new(0),
            waker,
        }
    }

    /// Number of handshakes that are not complete.
    pub(super) fn len(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Adds a socket. Returns `false`, and closes it, if there are too many (TLS-1).
    pub(super) fn add(&self, socket: WaitingSocket) -> bool {
        if self.len() >= HANDSHAKES_MAX {
            return false;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        lock(&self.sockets).push(socket);
        self.wake();
        true
    }

    /// Takes the sockets whose handshakes have not begun.
    pub(super) fn take(&self) -> Vec<WaitingSocket> {
        std::mem::take(&mut lock(&self.sockets))
    }

    /// Records that `count` handshakes are complete or have failed.
    pub(super) fn note_ended(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::Relaxed);
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "cannot wake the thread of TLS handshakes");
        }
    }
}
