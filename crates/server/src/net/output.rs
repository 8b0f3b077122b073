//! Output queue of a connection: its unsent replies, and which of them may be sent.
//!
//! ```text
//!            full buffers               the buffer that replies are appended to
//!   output   [ sent ][ released ][ released   ][ held by ticket 7 ][ held by 8 ][ this batch ]
//!            ▲       ▲                         ▲                   ▲            ▲      ▲
//!            0       sent                      released            held[0].end  ...    mark: first reply
//!                                                                                      that must wait
//! ```
//!
//! Replies stay in the buffer they were written to. A buffer that has become large moves to the full buffers before
//! the next visit, and is sent from there. So no reply is copied again, even if the client does not read and many wait.
//!
//! # Invariants
//! SRV-OUT-1  Bytes are sent in the order they were written, and only those before `released`.
//! SRV-OUT-2  A reply that reveals an undurable write, and every reply after it, is behind `mark` until its batch is
//!     committed, then behind that batch's ticket.
//! SRV-OUT-3  While a ticket holds a reply, reads of this connection may see undurable writes, its own included. The replies
//!     to these reads are held as well: no client learns of a write that a crash may still lose.
//! SRV-OUT-4  `mark` counts from the start of `buffer`, all other positions from the first byte of the queue. `buffer` moves
//!     to the full buffers only while there is no mark.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use farbank_pm::Ticket;

use crate::buffers::pool::{BufferPool, SMALL_BYTES};
use crate::buffers::reply::ReplyBuffer;
use crate::exec_context::{ReplyTarget, STALL_BYTES};

/// Bytes from which a buffer moves to the full buffers before more is appended.
const FULL_BYTES: usize = SMALL_BYTES;
/// Most bytes sent in one visit, so that the worker visits other connections in between. A value of a mebibyte takes
/// one visit.
const SEND_BYTES_MAX: usize = 5 << 18;
/// Most buffers sent in one system call.
const SLICES_MAX: usize = 16;

/// Unsent replies of a connection; see the module's diagram.
#[derive(Default)]
pub(super) struct OutputQueue {
    /// Full buffers, which precede `buffer`.
    full: VecDeque<Vec<u8>>,
    full_bytes: usize,
    pub(super) buffer: ReplyBuffer,
    sent: usize,
    released: usize,
    held: VecDeque<(usize, Ticket)>,
    pub(super) mark: Option<usize>,
}

/// Result of [`OutputQueue::send`].
pub(super) struct SendOutcome {
    pub(super) bytes: usize,
    /// The socket accepts no more bytes for now.
    pub(super) is_blocked: bool,
}

impl OutputQueue {
    /// Whether replies wait for a ticket.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Bytes in the queue, including sent bytes of buffers that are not sent completely.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.full_bytes + self.buffer.len()
    }

    /// Bytes that are not sent yet.
    #[inline]
    pub(super) fn pending(&self) -> usize {
        self.bytes() - self.sent
    }

    /// Returns where the replies of the next requests go.
    pub(super) fn replies(&mut self) -> ReplyTarget<'_> {
        let unacknowledged = self.holds();
        let stalled_len = self.buffer.len() + STALL_BYTES.saturating_sub(self.pending());
        ReplyTarget {
            out: &mut self.buffer,
            mark: &mut self.mark,
            unacknowledged,
            stalled_len,
        }
    }

    /// Whether there are released replies to send.
    pub(super) fn can_send(&self) -> bool {
        self.sent < self.released
    }

    /// Ends a committed batch: replies behind the mark wait for `ticket`, replies before it are released. Returns
    /// whether `ticket` holds a reply.
    pub(super) fn hold_until(&mut self, ticket: Ticket) -> bool {
        let end = self.bytes();
        let mark = self.mark.take().map(|mark| self.full_bytes + mark);
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

    /// Releases the replies held by `ticket` and earlier tickets; `ticket` is durable.
    pub(super) fn release(&mut self, ticket: Ticket) {
        while let Some(&(end, held)) = self.held.front() {
            if held > ticket {
                break;
            }
            self.released = end;
            self.held.pop_front();
        }
    }

    /// Drops the replies that wait for a commit or a ticket, because it has failed. Returns whether there were any.
    pub(super) fn abort_unacknowledged(&mut self) -> bool {
        let lost = self.mark.is_some() || self.holds();
        if lost {
            let keep = if self.holds() {
                self.released
            } else {
                self.full_bytes + self.mark.unwrap_or(0)
            };
            self.truncate(keep);
            self.released = keep;
            self.mark = None;
            self.held.clear();
        }
        lost
    }

    /// Removes all but the first `len` bytes.
    fn truncate(&mut self, len: usize) {
        while self.full_bytes > len
            && let Some(mut last) = self.full.pop_back()
        {
            self.buffer.truncate(0);
            self.full_bytes -= last.len();
            if self.full_bytes < len {
                last.truncate(len - self.full_bytes);
                self.full_bytes = len;
                self.full.push_back(last);
            }
        }
        self.buffer.truncate(len - self.full_bytes);
    }

    /// All buffers, in order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let full = self.full.iter().map(Vec::as_slice);
        full.chain([self.buffer.as_slice()])
    }

    /// Slices for the next system call, and their number: at most `bytes_max` bytes of released replies.
    fn slices(&self, bytes_max: usize) -> ([IoSlice<'_>; SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut at) = (0, 0);
        let (from, end) = (self.sent, self.released.min(self.sent + bytes_max));
        for part in self.parts() {
            let (first, last) = (from.max(at), end.min(at + part.len()));
            if first < last && count < SLICES_MAX {
                slices[count] = IoSlice::new(&part[first - at..last - at]);
                count += 1;
            }
            at += part.len();
            if at >= end || count == SLICES_MAX {
                break;
            }
        }
        (slices, count)
    }

    /// Sends released replies, up to the limit of one visit. Emptied buffers return to the pool.
    pub(super) fn send(
        &mut self,
        to: &mut impl Write,
        buffer_pool: &mut BufferPool,
    ) -> io::Result<SendOutcome> {
        let mut sent = SendOutcome {
            bytes: 0,
            is_blocked: false,
        };
        while self.can_send() && sent.bytes < SEND_BYTES_MAX && !sent.is_blocked {
            let (slices, count) = self.slices(SEND_BYTES_MAX - sent.bytes);
            match to.write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.sent += n;
                    sent.bytes += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => sent.is_blocked = true,
                Err(e) => return Err(e),
            }
        }
        self.release_sent(buffer_pool);
        Ok(sent)
    }

    /// Returns buffers that are sent completely to the pool.
    fn release_sent(&mut self, buffer_pool: &mut BufferPool) {
        while self
            .full
            .front()
            .is_some_and(|first| first.len() <= self.sent)
            && let Some(mut first) = self.full.pop_front()
        {
            self.full_bytes -= first.len();
            self.shift_positions(first.len());
            first.clear();
            buffer_pool.put(first);
        }
        if self.full.is_empty() && self.sent > 0 && self.sent == self.buffer.len() {
            self.mark = self.mark.map(|mark| mark - self.sent);
            self.buffer.truncate(0);
            self.shift_positions(self.sent);
        }
    }

    /// Adjusts positions after the first `count` bytes were removed.
    fn shift_positions(&mut self, count: usize) {
        self.sent -= count;
        self.released -= count;
        for (end, _) in &mut self.held {
            *end -= count;
        }
    }

    /// Prepares a buffer for replies. The queue may hold at most `bytes_max` unsent bytes.
    pub(super) fn prepare_buffer(&mut self, buffer_pool: &mut BufferPool, bytes_max: usize) {
        if self.buffer.len() >= FULL_BYTES && self.mark.is_none() {
            let full = std::mem::take(&mut self.buffer).into_bytes();
            self.full_bytes += full.len();
            self.full.push_back(full);
        }
        if self.buffer.capacity() == 0 {
            self.buffer = ReplyBuffer::reusing(buffer_pool.take_small().unwrap_or_default());
        }
        let unsent = self.full_bytes.saturating_sub(self.sent);
        self.buffer.set_bytes_max(bytes_max.saturating_sub(unsent));
    }

    /// Returns the buffer to the pool if it is empty.
    pub(super) fn release_if_empty(&mut self, buffer_pool: &mut BufferPool) {
        if self.buffer.is_empty() && self.buffer.capacity() > 0 && !self.holds() {
            buffer_pool.put(std::mem::take(&mut self.buffer).into_bytes());
        }
    }

    /// Returns the buffers of a closed connection to the pool.
    pub(super) fn into_pool(self, buffer_pool: &mut BufferPool) {
        let buffers = self.full.into_iter().chain([self.buffer.into_bytes()]);
        for mut buffer in buffers {
            buffer.clear();
            buffer_pool.put(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::reply::ReplySink;

    fn reply(output: &mut OutputQueue, text: &[u8], waits: bool) {
        if waits {
            output.mark.get_or_insert(output.buffer.len());
        }
        output.buffer.extend_from_slice(text);
    }

    /// The unsent bytes that may be sent.
    fn released(output: &OutputQueue) -> Vec<u8> {
        let all: Vec<u8> = output.parts().flatten().copied().collect();
        all[output.sent..output.released].to_vec()
    }

    #[test]
    fn a_reply_that_needs_no_ticket_is_released_with_its_batch() {
        let mut output = OutputQueue::default();
        reply(&mut output, b"a", false);
        assert_eq!(released(&output), b"");
        assert!(!output.hold_until(Ticket(5)));
        assert_eq!(released(&output), b"a");
        reply(&mut output, b"b", true);
        assert!(!output.hold_until(Ticket::DURABLE));
        assert_eq!(released(&output), b"ab");
    }

    #[test]
    fn held_replies_are_released_in_order_and_hold_the_replies_after_them() {
        let mut output = OutputQueue::default();
        reply(&mut output, b"a", false);
        reply(&mut output, b"b", true);
        reply(&mut output, b"c", false);
        assert!(output.hold_until(Ticket(1)));
        assert_eq!(released(&output), b"a");
        reply(&mut output, b"d", false);
        assert!(!output.hold_until(Ticket::DURABLE));
        reply(&mut output, b"e", true);
        assert!(output.hold_until(Ticket(2)));
        assert_eq!(released(&output), b"a");
        output.release(Ticket(1));
        assert_eq!(released(&output), b"abcd");
        output.release(Ticket(2));
        assert_eq!(released(&output), b"abcde");
        assert!(!output.holds());
    }

    #[test]
    fn after_a_failed_commit_only_released_replies_remain() {
        let mut output = OutputQueue::default();
        reply(&mut output, b"a", false);
        assert!(!output.abort_unacknowledged());
        reply(&mut output, b"b", true);
        reply(&mut output, b"c", false);
        assert!(output.abort_unacknowledged());
        assert!(!output.hold_until(Ticket::DURABLE));
        assert_eq!(released(&output), b"a");
        reply(&mut output, b"d", true);
        assert!(output.hold_until(Ticket(1)));
        assert!(output.abort_unacknowledged());
        assert_eq!(released(&output), b"a");
    }

    /// A socket that accepts at most `at_once` bytes per slice, and `room` bytes in all.
    struct Socket {
        taken: Vec<u8>,
        at_once: usize,
        room: usize,
    }

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.at_once).min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.taken.extend_from_slice(&bytes[..count]);
            self.room -= count;
            Ok(count)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let mut all = 0;
            for slice in slices {
                match self.write(slice) {
                    Ok(count) if count == slice.len() => all += count,
                    Ok(count) => return Ok(all + count),
                    Err(error) if all == 0 => return Err(error),
                    Err(_) => return Ok(all),
                }
            }
            Ok(all)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Sends replies of many lengths, some of which wait for tickets, to a client that reads in pieces.
    #[test]
    fn full_buffers_are_sent_in_order_and_only_once_released() {
        let mut buffer_pool = BufferPool::new(usize::MAX);
        for at_once in [1_000, 70_000, usize::MAX] {
            let mut output = OutputQueue::default();
            let mut socket = Socket {
                taken: Vec::new(),
                at_once,
                room: 0,
            };
            let (mut all, mut may_leave) = (Vec::new(), Vec::new());
            for turn in 0..200_u64 {
                output.prepare_buffer(&mut buffer_pool, usize::MAX);
                let bytes = vec![turn as u8; (turn as usize * 7_919) % 200_000];
                reply(&mut output, &bytes, turn % 3 == 0);
                let before = all.len();
                all.extend_from_slice(&bytes);
                assert_eq!(output.hold_until(Ticket(turn + 1)), turn % 3 == 0);
                if turn % 3 == 2 {
                    output.release(Ticket(turn + 1));
                    may_leave.push(all.len());
                } else if turn % 3 == 0 {
                    may_leave.push(before);
                }
                socket.room = 100_000;
                output
                    .send(&mut socket, &mut buffer_pool)
                    .expect("the socket has room");
                let most = *may_leave.last().expect("a turn");
                assert!(socket.taken.len() <= most, "turn {turn}");
                assert_eq!(output.pending(), all.len() - socket.taken.len());
            }
            output.release(Ticket(200));
            while output.can_send() {
                socket.room = SEND_BYTES_MAX / 3;
                output
                    .send(&mut socket, &mut buffer_pool)
                    .expect("the socket has room");
            }
            assert!(socket.taken == all);
            assert_eq!((output.pending(), output.bytes()), (0, 0));
        }
    }

    #[test]
    fn one_send_sends_a_bounded_part() {
        let (mut output, mut buffer_pool) = (OutputQueue::default(), BufferPool::new(usize::MAX));
        for _ in 0..3 {
            output.prepare_buffer(&mut buffer_pool, usize::MAX);
            reply(&mut output, &vec![7; SEND_BYTES_MAX], false);
            output.hold_until(Ticket::DURABLE);
        }
        let mut socket = Socket {
            taken: Vec::new(),
            at_once: usize::MAX,
            room: usize::MAX,
        };
        let sent = output
            .send(&mut socket, &mut buffer_pool)
            .expect("the socket has room");
        assert_eq!((sent.bytes, sent.is_blocked), (SEND_BYTES_MAX, false));
        assert!(output.can_send());
    }

    #[test]
    fn a_failed_commit_also_drops_held_replies_in_full_buffers() {
        for keep in [1, FULL_BYTES, FULL_BYTES + 1, 2 * FULL_BYTES] {
            let (mut output, mut buffer_pool) =
                (OutputQueue::default(), BufferPool::new(usize::MAX));
            reply(&mut output, &vec![1; keep], false);
            reply(&mut output, &vec![2; 3 * FULL_BYTES - keep], true);
            assert!(output.hold_until(Ticket(1)));
            for _ in 0..3 {
                output.prepare_buffer(&mut buffer_pool, usize::MAX);
                reply(&mut output, &[3; FULL_BYTES], false);
                assert!(!output.hold_until(Ticket::DURABLE));
            }
            assert!(output.abort_unacknowledged());
            assert_eq!(released(&output), vec![1; keep]);
            assert_eq!(output.pending(), keep);
        }
    }
}
