//! One connection: its socket, its input buffer and its state.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::net::TcpStream;

use crate::buffers::pool::{BufferPool, SMALL_BYTES, size_class};
use crate::commands::ClientState;
use crate::commands::memcached::MemcachedConn;
use crate::net::output::OutputQueue;
use crate::protocol::resp::RequestParser;
use crate::settings::WireProtocol;
use crate::state::shared::ClientInfo;

/// Bytes of a connection's first input buffer, and so of a read while little input is pending.
pub(crate) const READ_BYTES: usize = SMALL_BYTES;
/// Most bytes of one read, so that the worker visits other connections in between. The kernel copies a mebibyte in one
/// to three milliseconds.
const READ_BYTES_MAX: usize = 256 << 10;
/// Bytes of input from which the buffer grows by [`GROWTH`] instead of 2, so that less is copied.
const LARGE_BYTES: usize = 4 << 20;
const GROWTH: usize = 8;

/// Input that has arrived and is not yet executed. All of `buffer` is initialised; `start..end` is unread.
#[derive(Default)]
pub(crate) struct InputBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the buffer that were already backed by memory when it was taken.
    used: usize,
    /// Largest `end` since the buffer was taken.
    peak: usize,
    /// `peak` of the previous buffer.
    last_peak: usize,
}

impl InputBuffer {
    /// The bytes not yet executed.
    #[inline]
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Removes `bytes` from the front.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns space to read into. The current request has announced `needed` bytes, counted from the first unread
    /// byte. One buffer takes all of them, so none is copied when more arrive. A fresh buffer uses memory only where
    /// bytes have arrived.
    fn space(&mut self, needed: usize, buffer_pool: &mut BufferPool) -> &mut [u8] {
        let unread = self.end - self.start;
        if self.buffer.len() < READ_BYTES {
            // A client whose last request was large is likely to send a large one again.
            let large = Some(self.last_peak).filter(|&peak| peak > READ_BYTES);
            let large = large.and_then(|peak| buffer_pool.take_large(peak));
            let buffer = large.or_else(|| buffer_pool.take_small());
            self.move_to(buffer.unwrap_or_else(|| vec![0; READ_BYTES]));
            self.used = self.buffer.len();
        }
        let tight = self.end == self.buffer.len() || self.start + needed > self.buffer.len();
        if self.start > 0 && tight {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
        }
        if self.end == self.buffer.len() {
            let needed = needed.max(self.end + READ_BYTES);
            let kept = buffer_pool.take_large(needed);
            let used = kept.as_ref().map_or(0, Vec::len);
            let buffer = kept.unwrap_or_else(|| self.larger(needed));
            buffer_pool.put(self.move_to(buffer));
            self.used = used;
        }
        let room = &mut self.buffer[self.end..];
        let len = room.len().min(READ_BYTES_MAX);
        &mut room[..len]
    }

    /// Allocates a buffer for `needed` bytes, or a smaller one if the address space has no room for them.
    fn larger(&self, needed: usize) -> Vec<u8> {
        let growth = if self.end < LARGE_BYTES { 2 } else { GROWTH };
        let len = size_class(needed.max(growth * self.end));
        if len <= LARGE_BYTES || Vec::<u8>::new().try_reserve_exact(len).is_ok() {
            vec![0; len]
        } else {
            vec![0; 2 * self.end]
        }
    }

    /// Copies the unread bytes to the front of `buffer` and uses it from now on. Returns the old buffer.
    fn move_to(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let unread = self.end - self.start;
        buffer[..unread].copy_from_slice(self.unread());
        (self.start, self.end) = (0, unread);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// Returns the buffer to the pool if little or no input is left in it, so that an idle connection keeps none.
    pub(crate) fn release_if_idle(&mut self, buffer_pool: &mut BufferPool) {
        let unread = self.end - self.start;
        if unread > READ_BYTES / 16 || self.buffer.len() < READ_BYTES {
            return;
        }
        (self.last_peak, self.peak) = (self.peak, 0);
        let rest = self.unread().to_vec();
        let buffer = std::mem::replace(&mut self.buffer, rest);
        (self.start, self.end, self.used) = (0, unread, unread);
        buffer_pool.put(buffer);
    }

    /// Returns the buffer of a closed connection to the pool, unless it is the short remainder that
    /// [`InputBuffer::release_if_idle`] has kept.
    pub(crate) fn release(self, buffer_pool: &mut BufferPool) {
        if self.buffer.len() >= READ_BYTES {
            buffer_pool.put(self.buffer);
        }
    }

    /// Bytes of memory that the buffer uses.
    pub(crate) fn bytes(&self) -> usize {
        self.used.max(self.peak).min(self.buffer.len())
    }
}

/// A connection's protocol and its state in it.
pub(crate) enum ProtocolState {
    Resp {
        client: ClientState,
        parser: RequestParser,
    },
    Memcached(MemcachedConn),
}

/// A client's connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) client_info: Arc<ClientInfo>,
    pub(crate) protocol: ProtocolState,
    pub(crate) input: InputBuffer,
    pub(crate) output: OutputQueue,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The socket may accept more bytes.
    pub(crate) writable: bool,
    /// The peer has closed its side: read until the end of the stream.
    pub(crate) ending: bool,
    /// Nothing more is read or executed; the connection is closed when all replies are sent.
    pub(crate) closing: bool,
    /// Executes no more requests until its client has read more replies.
    pub(crate) stalled: bool,
    /// The next request waits until the store has freed space for it.
    pub(crate) awaits_room: bool,
    /// The next request is long: the worker will lend the connection to the thread of long requests.
    pub(crate) awaits_long: bool,
    /// A commit failed while the connection was lent: it is closed once its durable replies are sent.
    pub(crate) commit_failed: bool,
    /// Its time slice ended before all complete requests were executed.
    pub(crate) unfinished: bool,
    /// Its last visit moved many bytes and used its whole time slice, or it has more to send. The worker visits one
    /// slow connection per loop iteration (SRV-WORKER-5).
    pub(crate) is_slow: bool,
    /// Is on one of the worker's lists of connections to visit.
    pub(crate) listed: bool,
    /// Is on the worker's list of connections visited in this batch.
    pub(crate) touched: bool,
    /// When its output rose above the soft limit, in milliseconds of the server's clock.
    pub(crate) soft_since_ms: Option<u64>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, client_info: Arc<ClientInfo>) -> Connection {
        let protocol = match client_info.protocol {
            WireProtocol::Resp => ProtocolState::Resp {
                client: ClientState::new(Arc::clone(&client_info)),
                parser: RequestParser::default(),
            },
            WireProtocol::Memcached => ProtocolState::Memcached(MemcachedConn::default()),
        };
        Connection {
            stream,
            client_info,
            protocol,
            input: InputBuffer::default(),
            output: OutputQueue::default(),
            readable: true,
            writable: true,
            ending: false,
            closing: false,
            stalled: false,
            awaits_room: false,
            awaits_long: false,
            commit_failed: false,
            unfinished: false,
            is_slow: false,
            listed: false,
            touched: false,
            soft_since_ms: None,
        }
    }

    /// Reads once from the socket. Returns the number of bytes, or `None` if there was nothing to read.
    ///
    /// A read that does not fill the space has emptied the socket, so an event will report further bytes. The exception
    /// is a peer that has closed its side (`ending`): the end of the stream needs another read.
    pub(crate) fn fill(&mut self, buffer_pool: &mut BufferPool) -> io::Result<Option<usize>> {
        let needed = match &self.protocol {
            ProtocolState::Resp { parser, .. } => parser.needed(),
            ProtocolState::Memcached(talk) => talk.needed(),
        };
        let space = self.input.space(needed, buffer_pool);
        let room = space.len();
        loop {
            match self.stream.read(space) {
                Ok(0) => {
                    self.readable = false;
                    self.closing = true;
                    return Ok(None);
                }
                Ok(n) => {
                    self.input.end += n;
                    self.input.peak = self.input.peak.max(self.input.end);
                    self.readable = n == room || self.ending;
                    return Ok(Some(n));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Publishes the connection's state in its [`ClientInfo`], for other threads.
    pub(crate) fn publish_info(&mut self) {
        match &mut self.protocol {
            ProtocolState::Resp { client, parser } => {
                client.show();
                let bytes = parser.held_bytes();
                self.client_info
                    .argument_bytes
                    .store(bytes, Ordering::Relaxed);
            }
            ProtocolState::Memcached(talk) => talk.show(&self.client_info),
        }
    }

    /// Bytes of memory that this connection uses.
    pub(crate) fn memory_bytes(&self) -> usize {
        let protocol = match &self.protocol {
            ProtocolState::Resp { client, parser } => client.memory_bytes() + parser.held_bytes(),
            ProtocolState::Memcached(_) => 0,
        };
        size_of::<Connection>() + self.input.bytes() + self.output.bytes() + protocol
    }

    /// Sends released replies, up to the limit of one visit. Returns the number of bytes sent. Emptied buffers return
    /// to the pool.
    pub(crate) fn send(&mut self, buffer_pool: &mut BufferPool) -> io::Result<usize> {
        let sent = self.output.send(&mut self.stream, buffer_pool)?;
        self.writable = !sent.is_blocked;
        Ok(sent.bytes)
    }

    /// Whether there are released replies and the socket may accept them.
    pub(crate) fn can_send(&self) -> bool {
        self.writable && self.output.can_send()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_request_gets_one_buffer_that_uses_memory_only_for_arrived_bytes() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        assert_eq!(input.space(512 << 20, &mut buffer_pool).len(), READ_BYTES);
        assert_eq!(input.bytes(), READ_BYTES);
        (input.end, input.peak) = (READ_BYTES, READ_BYTES);
        let place = input
            .space(512 << 20, &mut buffer_pool)
            .as_ptr_range()
            .start;
        for _ in 0..100 {
            assert_eq!(input.bytes(), input.end);
            let space = input.space(512 << 20, &mut buffer_pool);
            assert_eq!(space.len(), READ_BYTES_MAX);
            input.end += READ_BYTES_MAX;
            input.peak = input.end;
        }
        let first = input.unread().as_ptr();
        assert_eq!(place as usize - first as usize, READ_BYTES);
        input.consume(input.end);
        input.release_if_idle(&mut buffer_pool);
        assert_eq!((input.bytes(), buffer_pool.bytes()), (0, READ_BYTES));
        assert_eq!(buffer_pool.take_huge().len(), 1);
    }

    #[test]
    fn a_request_that_arrives_in_many_parts_is_copied_few_times() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(0));
        let (mut moves, mut copied, mut place) = (0, 0, std::ptr::null());
        while input.end < 200 << 20 {
            let end = input.end;
            input.space(end + 100, &mut buffer_pool);
            if place != input.buffer.as_ptr() {
                (moves, copied, place) = (moves + 1, copied + end, input.buffer.as_ptr());
            }
            input.end = input.buffer.len().min(input.end + READ_BYTES_MAX);
        }
        assert!(moves < 30 && copied < 300 << 20, "{moves} {copied}");
    }

    #[test]
    fn the_input_reuses_a_large_pooled_buffer_and_reads_a_bounded_part_at_once() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        let large = vec![0; 4 << 20];
        let place = large.as_ptr();
        buffer_pool.put(large);
        input.space(3 << 20, &mut buffer_pool)[..3].copy_from_slice(b"abc");
        input.end = READ_BYTES;
        assert_eq!(input.space(3 << 20, &mut buffer_pool).len(), READ_BYTES_MAX);
        assert_eq!(
            (input.buffer.as_ptr(), &input.unread()[..3]),
            (place, b"abc".as_slice())
        );
        input.consume(READ_BYTES);
        input.release_if_idle(&mut buffer_pool);
        assert_eq!(
            (input.bytes(), buffer_pool.bytes()),
            (0, (4 << 20) + READ_BYTES)
        );
    }

    #[test]
    fn a_connection_whose_last_request_was_large_starts_with_a_large_buffer() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        let large = 4 * READ_BYTES;
        buffer_pool.put(vec![0; large]);
        for (peak, bytes) in [(READ_BYTES + 1, READ_BYTES), (9, large), (9, READ_BYTES)] {
            input.space(0, &mut buffer_pool);
            assert_eq!(input.bytes(), bytes);
            (input.end, input.peak) = (9, peak);
            input.consume(9);
            input.release_if_idle(&mut buffer_pool);
        }
    }

    #[test]
    fn a_connection_with_a_partial_request_keeps_no_full_buffer() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        input.space(0, &mut buffer_pool)[..3].copy_from_slice(b"abc");
        input.end = 3;
        input.consume(1);
        input.release_if_idle(&mut buffer_pool);
        assert_eq!(
            (input.bytes(), buffer_pool.bytes(), input.unread()),
            (2, READ_BYTES, b"bc".as_slice())
        );
        let mut other = InputBuffer::default();
        other.space(0, &mut buffer_pool)[..2].copy_from_slice(b"ef");
        other.end = 2;
        other.release_if_idle(&mut buffer_pool);
        other.release(&mut buffer_pool);
        assert_eq!(
            buffer_pool.bytes(),
            READ_BYTES,
            "short remainders are not put in the pool"
        );
        input.space(0, &mut buffer_pool)[0] = b'd';
        input.end += 1;
        assert_eq!(
            (input.unread(), buffer_pool.bytes()),
            (b"bcd".as_slice(), 0)
        );
    }
}
