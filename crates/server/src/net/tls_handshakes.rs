//! The thread that performs TLS handshakes, so that no worker computes signatures or waits for half-open connections.
//!
//! ```text
//!   accept ── socket ──▶ this thread: handshakes of many sockets, none blocks ── connection ──▶ worker
//! ```
//!
//! `handshake_queue` has the sockets whose handshakes have not begun.
//!
//! # Invariants
//! TLS-2  A handshake takes at most [`HANDSHAKE_TIME`]. Then its socket is closed.
//! TLS-3  A worker gets a connection only after its handshake, so after the check of the client's certificate.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustls::ServerConnection;

use super::assignment::assign_to_worker;
use super::executor::ServerParts;
use super::handshake_queue::WaitingSocket;
use super::tls_stream::TlsStream;
use super::worker::WAKE;
use crate::settings::WireProtocol;
use crate::state::clients::PeerAddr;
use crate::state::threads::ServerThreads;

/// Longest handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How often slow handshakes are looked for.
const TICK: Duration = Duration::from_millis(500);

/// A handshake in progress.
struct Handshake {
    stream: TcpStream,
    peer: PeerAddr,
    protocol: WireProtocol,
    session: Box<ServerConnection>,
    began: Instant,
}

/// Performs handshakes until the server stops.
pub(super) fn run(parts: &ServerParts<'_>, mut poll: Poll) -> io::Result<()> {
    let queue = &parts.pool.handshakes;
    let mut open: HashMap<usize, Handshake> = HashMap::new();
    let mut events = Events::with_capacity(256);
    let mut next = 0;
    while !parts.pool.is_stopping() {
        let timeout = (!open.is_empty()).then_some(TICK);
        match poll.poll(&mut events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        let mut ready: Vec<_> = events.iter().map(|event| event.token()).collect();
        ready.retain(|token| *token != WAKE);
        for socket in queue.take() {
            let begun = begin(parts, &poll, socket, next);
            match begun {
                Ok(handshake) => {
                    open.insert(next, handshake);
                    ready.push(Token(next));
                    next = (next + 1) % WAKE.0;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot begin a TLS handshake");
                    queue.note_ended(1);
                }
            }
        }
        for token in ready {
            let Some(handshake) = open.get_mut(&token.0) else {
                continue;
            };
            match handshake.session.complete_io(&mut handshake.stream) {
                Ok(_) if handshake.session.is_handshaking() => {}
                Ok(_) => {
                    if let Some(complete) = open.remove(&token.0) {
                        finish(parts, &poll, complete);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    let peer = open.remove(&token.0).map(|failed| failed.peer.to_string());
                    tracing::info!(%error, peer, "a TLS handshake failed");
                    parts.shared.security.tls.note_failed_handshake();
                    queue.note_ended(1);
                }
            }
        }
        let before = open.len();
        open.retain(|_, handshake| handshake.began.elapsed() < HANDSHAKE_TIME); // TLS-2
        queue.note_ended(before - open.len());
    }
    Ok(())
}

fn begin(
    parts: &ServerParts<'_>,
    poll: &Poll,
    socket: WaitingSocket,
    token: usize,
) -> io::Result<Handshake> {
    let WaitingSocket {
        mut stream,
        peer,
        protocol,
    } = socket;
    let config = parts.shared.security.tls.config();
    let config = config.ok_or_else(|| io::Error::other("there is no certificate"))?;
    let session = ServerConnection::new(config).map_err(io::Error::other)?;
    let interest = Interest::READABLE | Interest::WRITABLE;
    poll.registry()
        .register(&mut stream, Token(token), interest)?;
    Ok(Handshake {
        stream,
        peer,
        protocol,
        session: Box::new(session),
        began: Instant::now(),
    })
}

/// Gives a connection whose handshake is complete to a worker.
fn finish(parts: &ServerParts<'_>, poll: &Poll, complete: Handshake) {
    let Handshake {
        mut stream,
        peer,
        protocol,
        session,
        ..
    } = complete;
    parts.pool.handshakes.note_ended(1);
    if let Err(error) = poll.registry().deregister(&mut stream) {
        tracing::debug!(%error, "cannot remove a connection from the poll of handshakes");
        return;
    }
    let tls = TlsStream::new(session);
    assign_to_worker(parts, stream, &peer, protocol, Some(tls));
}
