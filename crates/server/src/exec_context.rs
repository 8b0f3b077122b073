//! One connection's turn: what its protocol works with while requests are executed.
//!
//! The thread lends its session and tally, the connection its buffers; `cmd::pipeline`
//! and `memcached` read requests from the one, a window ahead, and append replies
//! to the other. Neither knows a socket or a ticket: what must wait is behind the output's mark.

use std::time::Instant;

use farbank_kv::store::Session;

use crate::buffer_pool::BufferPool;
use crate::connection::InputBuffer;
use crate::hotkeys::Sampler;
use crate::output::OutputQueue;
use crate::shared::{CounterTotals, ServerShared, WorkerFigures};

/// Requests of a connection that are read ahead.
pub(crate) const WINDOW: usize = 16;
/// Unread replies at which a connection's requests wait: many times what sockets buffer, so that a
/// client that sends a long pipeline before it reads is not left waiting for itself.
pub(crate) const STALL_BYTES: usize = 64 << 20;

/// Bytes of a request and its reply from which on the clock is read after it.
pub(crate) const LONG_BYTES: usize = 16 << 10;
/// The clock is read after one in so many requests that are short by their names and bytes: a large value may be behind
/// any of them.
const SHORT_REQUESTS: u32 = 4;

/// Tells when a turn is over, without a look at the clock after each short request.
#[derive(Debug)]
pub(crate) struct TimeBudget {
    deadline: Instant,
    /// Short requests since the last look at the clock.
    short: u32,
}

impl TimeBudget {
    /// The time until `deadline`.
    pub(crate) fn until(deadline: Instant) -> TimeBudget {
        TimeBudget { deadline, short: 0 }
    }

    /// Whether the turn is over after a request, which with its reply has `bytes` bytes.
    #[inline]
    pub(crate) fn is_spent(&mut self, is_short: bool, bytes: usize) -> bool {
        self.short += 1;
        if is_short && bytes < LONG_BYTES && self.short < SHORT_REQUESTS {
            return false;
        }
        self.short = 0;
        Instant::now() >= self.deadline
    }
}

pub(crate) struct ExecContext<'a> {
    /// When the turn ends.
    pub(crate) deadline: Instant,
    /// The thread executes one request, however long it is. Else a long request stays in the input.
    pub(crate) executes_long: bool,
    pub(crate) session: &'a mut dyn Session,
    pub(crate) shared: &'a ServerShared<'a>,
    /// Where others see what the thread does.
    pub(crate) figures: &'a WorkerFigures,
    /// Buffers for large replies.
    pub(crate) shelf: &'a mut BufferPool,
    pub(crate) stride: &'a mut Sampler,
    pub(crate) tally: &'a mut CounterTotals,
    pub(crate) input: &'a mut InputBuffer,
    pub(crate) output: &'a mut OutputQueue,
    /// Set when nothing more is to be read or executed.
    pub(crate) closing: &'a mut bool,
    /// Set when the client must read before more is executed.
    pub(crate) stalled: &'a mut bool,
    /// Set when the store is making room for the next request, which waits.
    pub(crate) awaits_room: &'a mut bool,
    /// Set when the next request is long, and this thread does not execute such.
    pub(crate) awaits_long: &'a mut bool,
    /// Set when the turn ended before all that has arrived was executed.
    pub(crate) unfinished: &'a mut bool,
    /// Requests executed since the last commit.
    pub(crate) requests: &'a mut usize,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_is_read_after_long_requests_and_after_some_short_ones() {
        let mut over = TimeBudget::until(Instant::now());
        assert!(over.is_spent(false, 0));
        assert!(over.is_spent(true, LONG_BYTES));
        for _ in 1..SHORT_REQUESTS {
            assert!(!over.is_spent(true, LONG_BYTES - 1));
        }
        assert!(over.is_spent(true, 0));
        let mut begun = TimeBudget::until(Instant::now() + Duration::from_secs(3600));
        assert!(!begun.is_spent(false, usize::MAX));
    }
}
