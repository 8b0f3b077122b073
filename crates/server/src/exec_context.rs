//! What a protocol works with while it executes one connection's requests.
//!
//! The thread contributes its session and counters, the connection its buffers. `commands::pipeline` and `memcached`
//! read requests from the input, a window ahead, and append replies to the output. They use neither sockets nor
//! tickets: the output's mark separates replies that must wait for the commit.

use std::time::Instant;

use farbank_store::Session;

use crate::buffers::pool::BufferPool;
use crate::net::connection::InputBuffer;
use crate::net::output::OutputQueue;
use crate::state::shared::{CounterTotals, ServerShared, WorkerFigures};
use crate::stats::hot_keys::Sampler;

/// Most requests of a connection that are parsed ahead.
pub(crate) const WINDOW: usize = 16;
/// Bytes of unsent replies at which a connection's requests wait. This is many times what sockets buffer, so that a
/// client that writes a long pipeline before it reads does not deadlock.
pub(crate) const STALL_BYTES: usize = 64 << 20;

/// Bytes of a request and its reply from which the clock is read after the request.
pub(crate) const LONG_BYTES: usize = 16 << 10;
/// The clock is read after every `SHORT_REQUESTS` short requests, because each may have processed a large value.
const SHORT_REQUESTS: u32 = 4;

/// A connection's time slice. Does not read the clock after each short request.
#[derive(Debug)]
pub(crate) struct TimeBudget {
    deadline: Instant,
    /// Short requests since the clock was last read.
    short: u32,
}

impl TimeBudget {
    /// Creates a time slice that ends at `deadline`.
    pub(crate) fn until(deadline: Instant) -> TimeBudget {
        TimeBudget { deadline, short: 0 }
    }

    /// Whether the time slice is over after a request. The request and its reply have `bytes` bytes together.
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

/// What a protocol works with while it executes one connection's requests.
pub(crate) struct ExecContext<'a> {
    /// When the time slice ends.
    pub(crate) deadline: Instant,
    /// The thread executes one request, however long it is. Otherwise a long request stays in the input.
    pub(crate) executes_long: bool,
    pub(crate) session: &'a mut dyn Session,
    pub(crate) shared: &'a ServerShared<'a>,
    /// Where the thread publishes its counters and hot keys.
    pub(crate) figures: &'a WorkerFigures,
    /// Buffers for large replies.
    pub(crate) buffer_pool: &'a mut BufferPool,
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) counters: &'a mut CounterTotals,
    pub(crate) input: &'a mut InputBuffer,
    pub(crate) output: &'a mut OutputQueue,
    /// Set when nothing more may be read or executed.
    pub(crate) closing: &'a mut bool,
    /// Set when the client must read replies before more requests are executed.
    pub(crate) stalled: &'a mut bool,
    /// Set when the next request waits until the store has freed space for it.
    pub(crate) awaits_room: &'a mut bool,
    /// Set when the next request is long and this thread does not execute long requests.
    pub(crate) awaits_long: &'a mut bool,
    /// Set when the time slice ended before all complete requests were executed.
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
