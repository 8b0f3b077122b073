//! One connection: its socket, what has arrived, what is to leave, and when it may.
//!
//! ```text
//!   output   ......[ may leave        ][ held by ticket 7 ][ held by 8 ][ this batch  ]
//!            ▲      ▲                   ▲                   ▲            ▲      ▲
//!            0      sent                released            held[0].end  ...    mark: first reply
//!                                                                               that must wait
//! ```
//!
//! # Invariants
//! O1  Bytes leave in the order they were written, and only those before `released`.
//! O2  A reply that tells of an undurable write, and every reply after it, is behind `mark` until its
//!     batch is committed, then behind that batch's ticket.
//! O3  While anything is held, reads of this connection may see undurable writes, so they count as
//!     such replies (the reader of its own writes sees them; nobody learns what may yet be lost).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farbank_pm::Ticket;
use mio::net::TcpStream;

use crate::cmd::Client;
use crate::memcached::Talk;
use crate::resp::{Parser, ReplyBuffer};
use crate::settings::Protocol;
use crate::shared::Card;
use crate::shelf::{SMALL_BYTES, Shelf, size_class};

/// Bytes read at once from a connection that owes nothing.
pub(crate) const READ_BYTES: usize = SMALL_BYTES;
/// Most bytes read at once, so that others are visited in between.
const READ_BYTES_MAX: usize = 1 << 20;
/// Most bytes that are made ready for a request when little of it has arrived: a value of 1 MiB.
const READY_BYTES_MAX: usize = 5 << 18;
/// Sent bytes in front of unsent ones that are worth moving the latter.
const COMPACT_BYTES: usize = 1 << 20;

/// What has arrived and is not yet executed. `buffer` is all initialised; `start..end` is unread.
#[derive(Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Largest `end` since the buffer was taken, and that of the buffer before.
    peak: usize,
    last_peak: usize,
}

impl Input {
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

    /// Room to read into. `needed` bytes, from the first unread one, are known to come; beyond [`READY_BYTES_MAX`] no
    /// more than double what has arrived is made ready for them.
    fn space(&mut self, needed: usize, shelf: &mut Shelf) -> &mut [u8] {
        let unread = self.end - self.start;
        if self.buffer.len() < READ_BYTES {
            // What was large the last time is likely to be large again.
            let large = Some(self.last_peak).filter(|&peak| peak > READ_BYTES);
            let large = large.and_then(|peak| shelf.take_large(peak));
            let buffer = large.or_else(|| shelf.take_small());
            self.move_to(buffer.unwrap_or_else(|| vec![0; READ_BYTES]));
        }
        let tight = self.end == self.buffer.len() || self.start + needed > self.buffer.len();
        if self.start > 0 && tight {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
        }
        if self.end == self.buffer.len() {
            let needed = needed.max(self.end + READ_BYTES);
            // One that is there already takes no more memory, however little will come.
            let buffer = shelf.take_large(needed).unwrap_or_else(|| {
                let most = READY_BYTES_MAX.max(self.buffer.len() * 2);
                vec![0; size_class(needed).min(most)]
            });
            shelf.put(self.move_to(buffer));
        }
        let room = &mut self.buffer[self.end..];
        let len = room.len().min(READ_BYTES_MAX);
        &mut room[..len]
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
    pub(crate) fn rest(&mut self, shelf: &mut Shelf) {
        let unread = self.end - self.start;
        if unread > READ_BYTES / 16 || self.buffer.len() < READ_BYTES {
            return;
        }
        (self.last_peak, self.peak) = (self.peak, 0);
        let rest = self.unread().to_vec();
        let buffer = std::mem::replace(&mut self.buffer, rest);
        (self.start, self.end) = (0, unread);
        shelf.put(buffer);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }
}

/// What is to leave: see the module's picture.
#[derive(Default)]
pub(crate) struct Output {
    pub(crate) buffer: ReplyBuffer,
    sent: usize,
    released: usize,
    held: VecDeque<(usize, Ticket)>,
    pub(crate) mark: Option<usize>,
}

impl Output {
    /// Whether something waits for a ticket.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Bytes that have not left.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Whether something may leave.
    pub(crate) fn can_send(&self) -> bool {
        self.sent < self.released
    }

    /// The batch is committed: `ticket` covers what is behind the mark. Returns whether the ticket
    /// holds something back.
    pub(crate) fn settle(&mut self, ticket: Ticket) -> bool {
        let end = self.buffer.len();
        let mark = self.mark.take();
        let before = mark.filter(|_| ticket != Ticket::DURABLE).unwrap_or(end);
        match self.held.back_mut() {
            Some((held_end, _)) => *held_end = before,
            None => self.released = before,
        }
        if before < end || (mark.is_some() && ticket != Ticket::DURABLE) {
            self.held.push_back((end, ticket));
            return true;
        }
        false
    }

    /// `ticket` has turned: what it, and those before it, held may leave.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        while let Some(&(end, held)) = self.held.front() {
            if held > ticket {
                break;
            }
            self.released = end;
            self.held.pop_front();
        }
    }

    /// The medium failed: what is held will never leave. Returns whether there was any.
    pub(crate) fn forsake(&mut self) -> bool {
        let lost = self.mark.is_some() || self.holds();
        if lost {
            let keep = if self.holds() {
                self.released
            } else {
                self.mark.unwrap_or(0)
            };
            self.buffer.truncate(keep);
            self.released = keep;
            self.mark = None;
            self.held.clear();
        }
        lost
    }

    /// Sends what may leave; whether the socket took all of it.
    fn send(&mut self, stream: &mut TcpStream) -> io::Result<(bool, usize)> {
        let mut written = 0;
        while self.can_send() {
            match stream.write(&self.buffer.as_slice()[self.sent..self.released]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.sent += n;
                    written += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.compact();
                    return Ok((false, written));
                }
                Err(e) => return Err(e),
            }
        }
        self.compact();
        Ok((true, written))
    }

    fn compact(&mut self) {
        let all = self.sent == self.buffer.len();
        if all || (self.sent >= COMPACT_BYTES && self.sent > self.buffer.len() / 2) {
            self.remove_sent();
        }
    }

    fn remove_sent(&mut self) {
        self.buffer.remove_front(self.sent);
        let gone = std::mem::take(&mut self.sent);
        self.released -= gone;
        for (end, _) in &mut self.held {
            *end -= gone;
        }
        if let Some(mark) = &mut self.mark {
            *mark -= gone;
        }
    }

    /// Takes a buffer from the shelf if there is none, and sets how many bytes of replies it may hold.
    pub(crate) fn open(&mut self, shelf: &mut Shelf, bytes_max: usize) {
        if self.buffer.capacity() == 0 {
            self.buffer = ReplyBuffer::reusing(shelf.take_small().unwrap_or_default());
        }
        if self.sent > 0 && self.buffer.len() > bytes_max / 2 {
            self.remove_sent();
        }
        self.buffer.set_bytes_max(bytes_max);
    }

    /// Puts the buffer back once it is empty.
    pub(crate) fn shelve(&mut self, shelf: &mut Shelf) {
        if self.buffer.is_empty() && self.buffer.capacity() > 0 && !self.holds() {
            shelf.put(std::mem::take(&mut self.buffer).into_bytes());
        }
    }
}

/// The protocol of a connection, and how far it has come in it.
pub(crate) enum Speech {
    Resp { client: Client, parser: Parser },
    Memcached(Talk),
}

/// A connection.
pub(crate) struct Conn {
    pub(crate) stream: TcpStream,
    pub(crate) card: Arc<Card>,
    pub(crate) speech: Speech,
    pub(crate) input: Input,
    pub(crate) output: Output,
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
    /// Is on the worker's list of connections to visit.
    pub(crate) listed: bool,
    /// Is on the worker's list of connections touched in this batch.
    pub(crate) touched: bool,
    /// Since when its output is above the soft limit, in milliseconds of the server's clock.
    pub(crate) soft_since_ms: Option<u64>,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream, card: Arc<Card>) -> Conn {
        let speech = match card.protocol {
            Protocol::Resp => Speech::Resp {
                client: Client::new(Arc::clone(&card)),
                parser: Parser::default(),
            },
            Protocol::Memcached => Speech::Memcached(Talk::default()),
        };
        Conn {
            stream,
            card,
            speech,
            input: Input::default(),
            output: Output::default(),
            readable: true,
            writable: true,
            ending: false,
            closing: false,
            stalled: false,
            awaits_room: false,
            awaits_long: false,
            is_forsaken: false,
            unfinished: false,
            listed: false,
            touched: false,
            soft_since_ms: None,
        }
    }

    /// Reads once. The number of bytes, or nothing if there was nothing to read.
    ///
    /// A read that leaves room has drained the socket, so the next event tells of more; only an end
    /// that was announced together with data must be read for again.
    pub(crate) fn fill(&mut self, shelf: &mut Shelf) -> io::Result<Option<usize>> {
        let needed = match &self.speech {
            Speech::Resp { parser, .. } => parser.needed(),
            Speech::Memcached(talk) => talk.needed(),
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
            Speech::Resp { client, parser } => {
                client.show();
                let bytes = parser.held_bytes();
                self.card.argument_bytes.store(bytes, Ordering::Relaxed);
            }
            Speech::Memcached(talk) => talk.show(&self.card),
        }
    }

    /// Bytes of memory this connection takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let speech = match &self.speech {
            Speech::Resp { client, parser } => client.memory_bytes() + parser.held_bytes(),
            Speech::Memcached(_) => 0,
        };
        size_of::<Conn>() + self.input.bytes() + self.output.buffer.len() + speech
    }

    /// Sends what may leave; the number of bytes.
    pub(crate) fn send(&mut self) -> io::Result<usize> {
        let (all, written) = self.output.send(&mut self.stream)?;
        self.writable = all;
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Sink;

    fn reply(output: &mut Output, text: &[u8], waits: bool) {
        if waits {
            output.mark.get_or_insert(output.buffer.len());
        }
        output.buffer.extend_from_slice(text);
    }

    fn released(output: &Output) -> &[u8] {
        &output.buffer.as_slice()[output.sent..output.released]
    }

    #[test]
    fn what_needs_no_ticket_leaves_with_its_batch() {
        let mut output = Output::default();
        reply(&mut output, b"a", false);
        assert_eq!(released(&output), b"");
        assert!(!output.settle(Ticket(5)));
        assert_eq!(released(&output), b"a");
        reply(&mut output, b"b", true);
        assert!(!output.settle(Ticket::DURABLE));
        assert_eq!(released(&output), b"ab");
    }

    #[test]
    fn held_replies_leave_in_order_and_hold_what_follows() {
        let mut output = Output::default();
        reply(&mut output, b"a", false);
        reply(&mut output, b"b", true);
        reply(&mut output, b"c", false);
        assert!(output.settle(Ticket(1)));
        assert_eq!(released(&output), b"a");
        reply(&mut output, b"d", false);
        assert!(!output.settle(Ticket::DURABLE));
        reply(&mut output, b"e", true);
        assert!(output.settle(Ticket(2)));
        assert_eq!(released(&output), b"a");
        output.release(Ticket(1));
        assert_eq!(released(&output), b"abcd");
        output.release(Ticket(2));
        assert_eq!(released(&output), b"abcde");
        assert!(!output.holds());
    }

    #[test]
    fn a_failed_medium_keeps_only_what_was_promised() {
        let mut output = Output::default();
        reply(&mut output, b"a", false);
        assert!(!output.forsake());
        reply(&mut output, b"b", true);
        reply(&mut output, b"c", false);
        assert!(output.forsake());
        assert!(!output.settle(Ticket::DURABLE));
        assert_eq!(released(&output), b"a");
        reply(&mut output, b"d", true);
        assert!(output.settle(Ticket(1)));
        assert!(output.forsake());
        assert_eq!(released(&output), b"a");
    }

    #[test]
    fn the_input_grows_with_what_arrives_not_with_what_was_announced() {
        let (mut input, mut shelf) = (Input::default(), Shelf::new(usize::MAX));
        assert_eq!(input.space(512 << 20, &mut shelf).len(), READ_BYTES);
        input.end = READ_BYTES;
        assert_eq!(input.space(512 << 20, &mut shelf).len(), READ_BYTES_MAX);
        assert_eq!(input.bytes(), READY_BYTES_MAX);
        input.end = READY_BYTES_MAX;
        assert_eq!(input.space(512 << 20, &mut shelf).len(), READ_BYTES_MAX);
        assert_eq!(input.bytes(), 2 * READY_BYTES_MAX);
        input.consume(READY_BYTES_MAX);
        input.rest(&mut shelf);
        let bytes = READ_BYTES + 3 * READY_BYTES_MAX;
        assert_eq!((input.bytes(), shelf.bytes()), (0, bytes));
    }

    #[test]
    fn the_input_takes_a_large_buffer_that_is_there_and_reads_a_bounded_part() {
        let (mut input, mut shelf) = (Input::default(), Shelf::new(usize::MAX));
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
        let (mut input, mut shelf) = (Input::default(), Shelf::new(usize::MAX));
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
        let (mut input, mut shelf) = (Input::default(), Shelf::new(usize::MAX));
        input.space(0, &mut shelf)[..3].copy_from_slice(b"abc");
        input.end = 3;
        input.consume(1);
        input.rest(&mut shelf);
        assert_eq!(
            (input.bytes(), shelf.bytes(), input.unread()),
            (2, READ_BYTES, b"bc".as_slice())
        );
        input.space(0, &mut shelf)[0] = b'd';
        input.end += 1;
        assert_eq!((input.unread(), shelf.bytes()), (b"bcd".as_slice(), 0));
    }
}
