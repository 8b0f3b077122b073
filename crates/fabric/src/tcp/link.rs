//! [`ServerLink`]: the connection of a fabric to one memory server.
//!
//! ```text
//!                 posted                                        response
//!   connecting ────────────▶ kept in `output` until connected     │
//!       ▲   │ connected                                           ▼
//!       │   └──────────────▶ connected: output ─▶ socket ─▶ input ─▶ request ends
//!       │ error, end, or a request's time is over: all requests end with `Timeout`
//!       └───────────────────────┘
//! ```

use std::collections::{HashSet, VecDeque};
use std::io::{self, Write};

use super::buffer::InputBuffer;
use super::handshake::StreamError;
use crate::fabric::{FabricError, Nanos};
use crate::wire::{Challenge, Frame, NONCE_BYTES};

/// State of a link.
pub(super) enum LinkState {
    /// A thread connects.
    Connecting,
    Connected(mio::net::TcpStream),
    /// No request can succeed any more.
    Lost(FabricError),
}

/// The connection to a memory server, and the requests on it.
pub(super) struct ServerLink {
    pub(super) server: u16,
    pub(super) state: LinkState,
    /// What the server said when the fabric connected first.
    pub(super) challenge: Challenge,
    /// Number of the last attempt to connect (TCP-2).
    pub(super) attempt: u64,
    input: InputBuffer,
    /// Frames to send; the first `sent` bytes have been sent.
    output: Vec<u8>,
    sent: usize,
    /// Requests in the order in which they were posted, with their deadlines.
    posted: VecDeque<(u64, Nanos)>,
    /// Batches that are not answered, also those whose futures were dropped.
    batches: HashSet<u64>,
}

impl ServerLink {
    pub(super) fn new(challenge: Challenge) -> ServerLink {
        ServerLink {
            server: challenge.server,
            state: LinkState::Connecting,
            challenge,
            attempt: 0,
            input: InputBuffer::new(),
            output: Vec::new(),
            sent: 0,
            posted: VecDeque::new(),
            batches: HashSet::new(),
        }
    }

    /// Creates the link of a server that is not used.
    pub(super) fn unused(server: u16) -> ServerLink {
        let challenge = Challenge {
            server,
            generation: 0,
            host_bytes: 0,
            lock_bytes: 0,
            lease_ns: 0,
            nonce: [0; NONCE_BYTES],
        };
        ServerLink {
            state: LinkState::Lost(FabricError::Unlisted { server }),
            ..ServerLink::new(challenge)
        }
    }

    /// Begins to use a new connection.
    pub(super) fn connected(&mut self, stream: mio::net::TcpStream, input: InputBuffer) {
        self.state = LinkState::Connected(stream);
        self.input = input;
    }

    /// Appends a request to the output: `encode` appends its frame and returns whether it did.
    pub(super) fn post(
        &mut self,
        id: u64,
        deadline: Nanos,
        is_batch: bool,
        encode: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> Result<(), FabricError> {
        if let LinkState::Lost(error) = self.state {
            return Err(error);
        }
        if !encode(&mut self.output) {
            let server = self.server;
            return Err(FabricError::Rejected { server });
        }
        self.posted.push_back((id, deadline));
        if is_batch {
            self.batches.insert(id);
        }
        Ok(())
    }

    /// Returns whether the link is connected and no batch is under way on it.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, LinkState::Connected(_)) && self.batches.is_empty()
    }

    /// Sends as much of the output as the socket takes.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let LinkState::Connected(stream) = &mut self.state else {
            return Ok(());
        };
        while self.sent < self.output.len() {
            match stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives what the socket has, and passes each frame to `each`, which returns whether it was expected.
    pub(super) fn receive(
        &mut self,
        mut each: impl FnMut(Frame<'_>) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        let LinkState::Connected(stream) = &mut self.state else {
            return Ok(());
        };
        loop {
            match self.input.fill(stream) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let may_have_more = self.input.is_full();
            while let Some((frame, len)) = self.input.frame()? {
                self.batches.remove(&frame.id);
                each(frame)?;
                self.input.consume(len);
            }
            // Bytes that arrive after a read that did not fill the buffer cause another event.
            if !may_have_more {
                return Ok(());
            }
        }
    }

    /// Returns the deadline of the oldest request, after the removal of those that `is_over`.
    pub(super) fn oldest(&mut self, is_over: impl Fn(u64) -> bool) -> Option<Nanos> {
        while let Some((id, deadline)) = self.posted.front().copied() {
            if !is_over(id) {
                return Some(deadline);
            }
            self.posted.pop_front();
        }
        None
    }

    /// Ends the connection, and all its requests, whose numbers it returns (TCP-3).
    pub(super) fn close(&mut self, next: LinkState) -> Vec<u64> {
        self.state = next;
        self.input.clear();
        self.output.clear();
        self.sent = 0;
        self.batches.clear();
        self.posted.drain(..).map(|(id, _)| id).collect()
    }
}
