//! One connection: its socket, what has arrived, and how far it is served.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::net::TcpStream;

use crate::buffer_pool::{BufferPool, SMALL_BYTES, size_class};
use crate::commands::ClientState;
use crate::memcached::MemcachedConn;
use crate::output::OutputQueue;
use crate::resp::RequestParser;
use crate::settings::WireProtocol;
use crate::shared::ClientInfo;

/// Bytes read at once from a connection that owes nothing.
pub(crate) const READ_BYTES: usize = SMALL_BYTES;
/// Most bytes read at once, so that others are visited in between: the kernel copies a mebibyte in one to three
/// milliseconds.
const READ_BYTES_MAX: usize = 256 << 10;
/// Arrived bytes of one request from which on its buffer grows by [`GROWTH`], so that few of them are copied.
const LARGE_BYTES: usize = 4 << 20;
const GROWTH: usize = 8;

/// What has arrived and is not yet executed. `buffer` is all initialised; `start..end` is unread.
#[derive(Default)]
pub(crate) struct InputBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the buffer that memory was used for before it was taken.
    used: usize,
    /// Largest `end` since the buffer was taken, and that of the buffer before.
    peak: usize,
    last_peak: usize,
}

impl InputBuffer {
    /// The bytes not yet executed.
    #[inline]
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes `bytes` off the front.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room to read into. `needed` bytes, from the first unread one, are announced, and there is one buffer for all of
    /// them: none is copied when more arrive. A fresh one takes memory only where bytes have arrived.
    fn space(&mut self, needed: usize, shelf: &mut BufferPool) -> &mut [u8] {
        let unread = self.end - self.start;
        if self.buffer.len() < READ_BYTES {
            // What was large the last time is likely to be large again.
            let large = Some(self.last_peak).filter(|&peak| peak > READ_BYTES);
            let large = large.and_then(|peak| shelf.take_large(peak));
            let buffer = large.or_else(|| shelf.take_small());
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
            let kept = shelf.take_large(needed);
            let used = kept.as_ref().map_or(0, Vec::len);
            let buffer = kept.unwrap_or_else(|| self.larger(needed));
            shelf.put(self.move_to(buffer));
            self.used = used;
        }
        let room = &mut self.buffer[self.end..];
        let len = room.len().min(READ_BYTES_MAX);
        &mut room[..len]
    }

    /// A fresh buffer for `needed` bytes; for less if the machine does not have so many addresses to give.
    fn larger(&self, needed: usize) -> Vec<u8> {
        let growth = if self.end < LARGE_BYTES { 2 } else { GROWTH };
        let len = size_class(needed.max(growth * self.end));
        if len <= LARGE_BYTES || Vec::<u8>::new().try_reserve_exact(len).is_ok() {
            vec![0; len]
        } else {
            vec![0; 2 * self.end]
        }
    }

    /// Copies the unread bytes to the front of `buffer`, which takes the place of the one it returns.
    fn move_to(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let unread = self.end - self.start;
        buffer[..unread].copy_from_slice(self.unread());
        (self.start, self.end) = (0, unread);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// Gives the buffer back if little or nothing is left in it, so that an idle connection keeps
    /// none.
    pub(crate) fn rest(&mut self, shelf: &mut BufferPool) {
        let unread = self.end - self.start;
        if unread > READ_BYTES / 16 || self.buffer.len() < READ_BYTES {
            return;
        }
        (self.last_peak, self.peak) = (self.peak, 0);
        let rest = self.unread().to_vec();
        let buffer = std::mem::replace(&mut self.buffer, rest);
        (self.start, self.end, self.used) = (0, unread, unread);
        shelf.put(buffer);
    }

    /// The connection is closed: its buffer goes to `shelf`, unless that is only what [`Input::rest`] has kept.
    pub(crate) fn give_up(self, shelf: &mut BufferPool) {
        if self.buffer.len() >= READ_BYTES {
            shelf.put(self.buffer);
        }
    }

    /// Bytes of memory that the buffer takes.
    pub(crate) fn bytes(&self) -> usize {
        self.used.max(self.peak).min(self.buffer.len())
    }
}

/// The protocol of a connection, and how far it has come in it.
pub(crate) enum ProtocolState {
    Resp {
        client: ClientState,
        parser: RequestParser,
    },
    Memcached(MemcachedConn),
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) card: Arc<ClientInfo>,
    pub(crate) speech: ProtocolState,
    pub(crate) input: InputBuffer,
    pub(crate) output: OutputQueue,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The socket may take more.
    pub(crate) writable: bool,
    /// The peer will send no more: read until the end is seen.
    pub(crate) ending: bool,
    /// Nothing more is read or executed; closed when all replies have left.
    pub(crate) closing: bool,
    /// Waits for its client to read replies before it executes more.
    pub(crate) stalled: bool,
    /// The next request waits until the store has made room for it.
    pub(crate) awaits_room: bool,
    /// The next request is long: the worker lends the connection to the thread that executes it.
    pub(crate) awaits_long: bool,
    /// The medium failed while it was lent: closed once what was promised before has left.
    pub(crate) is_forsaken: bool,
    /// Its turn ended before all that has arrived was executed.
    pub(crate) unfinished: bool,
    /// Its last turn moved many bytes and took its whole time: its next one is not in the same round as those of others
    /// like it.
    pub(crate) is_slow: bool,
    /// Is on the worker's list of connections to visit.
    pub(crate) listed: bool,
    /// Is on the worker's list of connections touched in this batch.
    pub(crate) touched: bool,
    /// Since when its output is above the soft limit, in milliseconds of the server's clock.
    pub(crate) soft_since_ms: Option<u64>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, card: Arc<ClientInfo>) -> Connection {
        let speech = match card.protocol {
            WireProtocol::Resp => ProtocolState::Resp {
                client: ClientState::new(Arc::clone(&card)),
                parser: RequestParser::default(),
            },
            WireProtocol::Memcached => ProtocolState::Memcached(MemcachedConn::default()),
        };
        Connection {
            stream,
            card,
            speech,
            input: InputBuffer::default(),
            output: OutputQueue::default(),
            readable: true,
            writable: true,
            ending: false,
            closing: false,
            stalled: false,
            awaits_room: false,
            awaits_long: false,
            is_forsaken: false,
            unfinished: false,
            is_slow: false,
            listed: false,
            touched: false,
            soft_since_ms: None,
        }
    }

    /// Reads once. The number of bytes, or nothing if there was nothing to read.
    ///
    /// A read that leaves room has drained the socket, so the next event tells of more; only an end
    /// that was announced together with data must be read for again.
    pub(crate) fn fill(&mut self, shelf: &mut BufferPool) -> io::Result<Option<usize>> {
        let needed = match &self.speech {
            ProtocolState::Resp { parser, .. } => parser.needed(),
            ProtocolState::Memcached(talk) => talk.needed(),
        };
        let space = self.input.space(needed, shelf);
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

    /// Shows on its card what others may know.
    pub(crate) fn show(&mut self) {
        match &mut self.speech {
            ProtocolState::Resp { client, parser } => {
                client.show();
                let bytes = parser.held_bytes();
                self.card.argument_bytes.store(bytes, Ordering::Relaxed);
            }
            ProtocolState::Memcached(talk) => talk.show(&self.card),
        }
    }

    /// Bytes of memory this connection takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let speech = match &self.speech {
            ProtocolState::Resp { client, parser } => client.memory_bytes() + parser.held_bytes(),
            ProtocolState::Memcached(_) => 0,
        };
        size_of::<Connection>() + self.input.bytes() + self.output.bytes() + speech
    }

    /// Sends of what may leave as much as one turn may send; the number of bytes. Buffers that are empty then go to
    /// `shelf`.
    pub(crate) fn send(&mut self, shelf: &mut BufferPool) -> io::Result<usize> {
        let sent = self.output.send(&mut self.stream, shelf)?;
        self.writable = !sent.is_blocked;
        Ok(sent.bytes)
    }

    /// Whether there is something to send that the socket may take.
    pub(crate) fn can_send(&self) -> bool {
        self.writable && self.output.can_send()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_request_has_one_buffer_which_takes_memory_where_bytes_have_arrived() {
        let (mut input, mut shelf) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        assert_eq!(input.space(512 << 20, &mut shelf).len(), READ_BYTES);
        assert_eq!(input.bytes(), READ_BYTES);
        (input.end, input.peak) = (READ_BYTES, READ_BYTES);
        let place = input.space(512 << 20, &mut shelf).as_ptr_range().start;
        for _ in 0..100 {
            assert_eq!(input.bytes(), input.end);
            let space = input.space(512 << 20, &mut shelf);
            assert_eq!(space.len(), READ_BYTES_MAX);
            input.end += READ_BYTES_MAX;
            input.peak = input.end;
        }
        let first = input.unread().as_ptr();
        assert_eq!(place as usize - first as usize, READ_BYTES);
        input.consume(input.end);
        input.rest(&mut shelf);
        assert_eq!((input.bytes(), shelf.bytes()), (0, READ_BYTES));
        assert_eq!(shelf.take_huge().len(), 1);
    }

    #[test]
    fn a_request_of_many_parts_is_copied_few_times() {
        let (mut input, mut shelf) = (InputBuffer::default(), BufferPool::new(0));
        let (mut moves, mut copied, mut place) = (0, 0, std::ptr::null());
        while input.end < 200 << 20 {
            let end = input.end;
            input.space(end + 100, &mut shelf);
            if place != input.buffer.as_ptr() {
                (moves, copied, place) = (moves + 1, copied + end, input.buffer.as_ptr());
            }
            input.end = input.buffer.len().min(input.end + READ_BYTES_MAX);
        }
        assert!(moves < 30 && copied < 300 << 20, "{moves} {copied}");
    }

    #[test]
    fn the_input_takes_a_large_buffer_that_is_there_and_reads_a_bounded_part() {
        let (mut input, mut shelf) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        let large = vec![0; 4 << 20];
        let place = large.as_ptr();
        shelf.put(large);
        input.space(3 << 20, &mut shelf)[..3].copy_from_slice(b"abc");
        input.end = READ_BYTES;
        assert_eq!(input.space(3 << 20, &mut shelf).len(), READ_BYTES_MAX);
        assert_eq!(
            (input.buffer.as_ptr(), &input.unread()[..3]),
            (place, b"abc".as_slice())
        );
        input.consume(READ_BYTES);
        input.rest(&mut shelf);
        assert_eq!((input.bytes(), shelf.bytes()), (0, (4 << 20) + READ_BYTES));
    }

    #[test]
    fn a_connection_whose_last_request_was_large_begins_with_a_large_buffer() {
        let (mut input, mut shelf) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        let large = 4 * READ_BYTES;
        shelf.put(vec![0; large]);
        for (peak, bytes) in [(READ_BYTES + 1, READ_BYTES), (9, large), (9, READ_BYTES)] {
            input.space(0, &mut shelf);
            assert_eq!(input.bytes(), bytes);
            (input.end, input.peak) = (9, peak);
            input.consume(9);
            input.rest(&mut shelf);
        }
    }

    #[test]
    fn a_partial_request_keeps_little() {
        let (mut input, mut shelf) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        input.space(0, &mut shelf)[..3].copy_from_slice(b"abc");
        input.end = 3;
        input.consume(1);
        input.rest(&mut shelf);
        assert_eq!(
            (input.bytes(), shelf.bytes(), input.unread()),
            (2, READ_BYTES, b"bc".as_slice())
        );
        let mut other = InputBuffer::default();
        other.space(0, &mut shelf)[..2].copy_from_slice(b"ef");
        other.end = 2;
        other.rest(&mut shelf);
        other.give_up(&mut shelf);
        assert_eq!(shelf.bytes(), READ_BYTES, "no shorter one is put there");
        input.space(0, &mut shelf)[0] = b'd';
        input.end += 1;
        assert_eq!((input.unread(), shelf.bytes()), (b"bcd".as_slice(), 0));
    }
}
