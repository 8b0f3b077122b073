//! One connection: its socket, its protocol and its state.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farbank_store::Key;
use mio::event::Event;
use mio::net::TcpStream;

use super::output::OutputQueue;
use super::tls_stream::{TlsStream, TlsWriter};
use crate::buffers::input::InputBuffer;
use crate::buffers::pool::BufferPool;
use crate::commands::context::client_state::ClientState;
use crate::commands::memcached::pipeline::MemcachedConn;
use crate::commands::table::COMMANDS;
use crate::commands::{memcached, pipeline};
use crate::exec_context::TurnStatus;
use crate::protocol::resp::{RequestParser, RespVersion};
use crate::settings::WireProtocol;
use crate::state::clients::ClientInfo;
use crate::state::shared::ServerShared;
use crate::state::tracking::Tracking;
use crate::state::users::UserRegistry;

/// A connection's protocol and its state in it.
pub(super) enum ProtocolState {
    Resp {
        client: Box<ClientState>,
        parser: RequestParser,
    },
    Memcached(MemcachedConn),
}

/// What events have reported about a socket. They are edge-triggered, so this is kept until a call would block.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Readiness {
    /// The socket may have more to read.
    pub(super) readable: bool,
    /// The socket may accept more bytes.
    writable: bool,
    /// The peer has closed its side: read until the end of the stream.
    ending: bool,
}

impl Readiness {
    /// Records what `event` reports.
    pub(super) fn record(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.ending |= event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable();
    }

    /// Adds what was recorded elsewhere.
    pub(super) fn add(&mut self, other: Readiness) {
        self.readable |= other.readable;
        self.writable |= other.writable;
        self.ending |= other.ending;
    }
}

/// A client's connection.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// The session of an encrypted connection.
    tls: Option<TlsStream>,
    pub(super) client_info: Arc<ClientInfo>,
    pub(super) protocol: ProtocolState,
    pub(super) input: InputBuffer,
    pub(super) output: OutputQueue,
    pub(super) readiness: Readiness,
    pub(super) status: TurnStatus,
    /// A commit failed while the connection was lent: it is closed once its durable replies are sent.
    pub(super) commit_failed: bool,
    pub(super) marks: ListMarks,
    /// The delivery that it must receive before it executes more requests (SRV-DELIVER-2).
    pub(super) waits_for: Option<u64>,
    /// When its output rose above the soft limit, in milliseconds of the server's clock.
    pub(super) soft_since_ms: Option<u64>,
}

/// On which lists of the worker a connection is, and what its last visit has shown.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ListMarks {
    /// Its last visit moved many bytes and used its whole time slice, or it has more to send. The worker visits one
    /// slow connection per loop iteration (SRV-WORKER-5).
    pub(super) is_slow: bool,
    /// Its last visit executed several requests.
    pub(super) is_pipelining: bool,
    /// It is on one of the lists of connections to visit.
    pub(super) listed: bool,
    /// It is on the list of connections visited in this batch.
    pub(super) touched: bool,
    /// It is on the list of connections with messages to send.
    pub(super) has_unsent: bool,
}

impl Connection {
    /// Creates a connection of the user `default`.
    pub(super) fn new(
        stream: TcpStream,
        tls: Option<TlsStream>,
        client_info: Arc<ClientInfo>,
        users: &UserRegistry,
    ) -> Connection {
        let protocol = match client_info.protocol {
            WireProtocol::Resp => ProtocolState::Resp {
                client: Box::new(ClientState::new(Arc::clone(&client_info), &COMMANDS, users)),
                parser: RequestParser::default(),
            },
            WireProtocol::Memcached => ProtocolState::Memcached(MemcachedConn::default()),
        };
        Connection {
            stream,
            tls,
            client_info,
            protocol,
            input: InputBuffer::default(),
            output: OutputQueue::default(),
            readiness: Readiness {
                readable: true,
                writable: true,
                ending: false,
            },
            status: TurnStatus::default(),
            commit_failed: false,
            marks: ListMarks::default(),
            waits_for: None,
            soft_since_ms: None,
        }
    }

    /// Reads once from the socket. Returns the number of bytes, or `None` if there was nothing to read.
    ///
    /// A read that does not fill the space has emptied the socket, so an event will report further bytes. The exception
    /// is a peer that has closed its side (`ending`): the end of the stream needs another read.
    pub(super) fn fill(&mut self, buffer_pool: &mut BufferPool) -> io::Result<Option<usize>> {
        let needed = match &self.protocol {
            ProtocolState::Resp { parser, .. } => parser.needed(),
            ProtocolState::Memcached(conn) => conn.needed(),
        };
        let space = self.input.space(needed, buffer_pool);
        let room = space.len();
        if let Some(tls) = &mut self.tls {
            let read = tls.read(&mut self.stream, space)?;
            self.input.arrived(read.bytes);
            if read.bytes == 0 && read.is_ended {
                self.status.closing = true;
            }
            // The end of the stream is found again by the next read.
            self.readiness.readable = !read.is_blocked && !self.status.closing;
            return Ok((read.bytes > 0).then_some(read.bytes));
        }
        loop {
            match self.stream.read(space) {
                Ok(0) => {
                    self.readiness.readable = false;
                    self.status.closing = true;
                    return Ok(None);
                }
                Ok(n) => {
                    self.input.arrived(n);
                    self.readiness.readable = n == room || self.readiness.ending;
                    return Ok(Some(n));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readiness.readable = false;
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Parses the requests that have arrived, for [`Connection::lone_key`]. Their execution does not parse them again.
    pub(super) fn parse_ahead(&mut self, shared: &ServerShared<'_>) {
        if let ProtocolState::Resp { client, parser } = &mut self.protocol {
            // An error is met again by the execution, which replies with it.
            let _ = pipeline::parse_ahead(shared, client, parser, self.input.unread());
        }
    }

    /// The key of the only request that has arrived, and whether the request reads its value. `None` if several have arrived: the
    /// pipeline prefetches their keys.
    pub(super) fn lone_key(&self, shared: &ServerShared<'_>) -> Option<(Key<'_>, bool)> {
        let input = self.input.unread();
        match &self.protocol {
            ProtocolState::Resp { client, parser } => pipeline::lone_key(client, parser, input),
            ProtocolState::Memcached(conn) => {
                memcached::pipeline::lone_key(conn, input, shared.item_bytes_max())
            }
        }
    }

    /// Follows changes of users. Returns whether the connection may go on.
    pub(super) fn follow_users(&mut self, users: &UserRegistry) -> bool {
        match &mut self.protocol {
            ProtocolState::Resp { client, .. } => client.follow_users(users),
            ProtocolState::Memcached(_) => true,
        }
    }

    /// Version of its protocol, if that is RESP.
    pub(super) fn resp(&self) -> RespVersion {
        match &self.protocol {
            ProtocolState::Resp { client, .. } => client.resp(),
            ProtocolState::Memcached(_) => RespVersion::V2,
        }
    }

    /// Whether its client has subscriptions, or tracks keys.
    pub(super) fn receives_messages(&self) -> bool {
        match &self.protocol {
            ProtocolState::Resp { client, .. } => client.receives_messages(),
            ProtocolState::Memcached(_) => false,
        }
    }

    /// Ends its client-side caching.
    pub(super) fn end_tracking(&mut self, tracking: &Tracking) {
        if let ProtocolState::Resp { client, .. } = &mut self.protocol {
            client.end_tracking(tracking);
        }
    }

    /// Publishes the connection's state in its [`ClientInfo`], for other threads.
    pub(super) fn publish_info(&mut self) {
        let paused = self.status.paused;
        self.client_info.is_paused.store(paused, Ordering::Relaxed);
        match &mut self.protocol {
            ProtocolState::Resp { client, parser } => {
                client.show();
                let bytes = parser.held_bytes();
                self.client_info
                    .argument_bytes
                    .store(bytes, Ordering::Relaxed);
            }
            ProtocolState::Memcached(conn) => conn.show(&self.client_info),
        }
    }

    /// Bytes of memory that this connection uses.
    pub(super) fn memory_bytes(&self) -> usize {
        let protocol = match &self.protocol {
            ProtocolState::Resp { client, parser } => client.memory_bytes() + parser.held_bytes(),
            ProtocolState::Memcached(_) => 0,
        };
        let tls = self.tls.as_ref().map_or(0, TlsStream::memory_bytes);
        size_of::<Connection>() + self.input.bytes() + self.output.bytes() + protocol + tls
    }

    /// Sends released replies, up to the limit of one visit. Returns the number of bytes sent. Emptied buffers return
    /// to the pool.
    pub(super) fn send(&mut self, buffer_pool: &mut BufferPool) -> io::Result<usize> {
        let sent = match &mut self.tls {
            None => self.output.send(&mut self.stream, buffer_pool)?,
            Some(tls) => {
                let stream = &mut self.stream;
                let mut sent = self
                    .output
                    .send(&mut TlsWriter { tls, stream }, buffer_pool)?;
                sent.is_blocked |= !tls.flush(&mut self.stream)?;
                sent
            }
        };
        self.readiness.writable = !sent.is_blocked;
        Ok(sent.bytes)
    }

    /// Whether there are released replies that the socket has not accepted, encrypted or not.
    pub(super) fn has_unsent(&self) -> bool {
        self.output.can_send() || self.has_unsent_tls()
    }

    /// Whether encrypted bytes wait for the socket.
    pub(super) fn has_unsent_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsStream::has_unsent)
    }

    /// Whether there are released replies and the socket may accept them.
    pub(super) fn can_send(&self) -> bool {
        self.readiness.writable && self.has_unsent()
    }

    /// Tells the client of an encrypted connection that it ends.
    pub(super) fn end_tls(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.end(&mut self.stream);
        }
    }
}
