//! The worker's part in prefetching: it reads what several ready connections have sent, and prefetches the keys of connections that
//! have sent one request, before it executes a request of the first one.
//!
//! ```text
//!   ready ▶ c1 c2 c3 ... ──▶ read each socket ──▶ parse each ──▶ prefetch k1 k2 k3 ... ──▶ visit c1, c2, c3 ...
//!           a group          (`receive`)          a window       in the store              (execute)
//! ```
//!
//! Without this, a connection that sends one request at a time waits for each line of far memory that its request needs. With it,
//! the lines of a group arrive together. A connection that sends several requests at a time does without: the pipeline of its
//! protocol prefetches the keys of a window.
//!
//! # Invariants
//! SRV-AHEAD-1  Reading ahead executes nothing and consumes no input. So a visit finds what it would have read itself, and a connection
//!     that is closed before its visit loses requests that were not executed.
//! SRV-AHEAD-2  A connection is read ahead only if its visit would read at once: it may read, has no unexecuted input, and waits for
//!     nothing. And only if its last visit executed one request at most.
//! SRV-AHEAD-3  A group ends after [`GROUP_BYTES`] bytes, so that its input stays in the CPU's cache until it is executed.

use std::io;
use std::sync::atomic::Ordering;

use super::{BATCH_BYTES, BATCH_REQUESTS, Worker};
use crate::exec_context::{STALL_BYTES, WINDOW, WindowKeys};
use crate::net::connection::Connection;
use crate::stats::counters::Counter;

/// Bytes of input after which a group gets no further connection.
const GROUP_BYTES: usize = 16 << 10;

/// A connection to visit.
#[derive(Clone, Copy, Default)]
struct GroupMember {
    slot: usize,
    /// Bytes that were read ahead.
    bytes: usize,
}

impl Worker<'_> {
    /// Visits the ready connections. Those that become ready meanwhile wait for the next iteration of the loop.
    pub(super) fn visit_ready(&mut self) {
        let mut left = self.visits.ready.len();
        while left > 0 {
            let mut group = [GroupMember::default(); WINDOW];
            let count = self.take_group(&mut group[..left.min(WINDOW)]);
            if count == 0 {
                return;
            }
            left -= count;
            for member in &group[..count] {
                self.visit(member.slot, member.bytes);
                if self.executor.thread.requests >= BATCH_REQUESTS
                    || self.batch.bytes >= BATCH_BYTES
                {
                    self.commit_batch();
                }
            }
        }
    }

    /// Takes connections from the list of ready ones, at most as many as `group` has, reads what they have sent, and prefetches their
    /// keys. Returns their number.
    fn take_group(&mut self, group: &mut [GroupMember]) -> usize {
        let is_alone = group.len() == 1;
        let (mut count, mut bytes) = (0, 0);
        for member in &mut *group {
            let Some(slot) = self.visits.ready.pop_front() else {
                break;
            };
            count += 1;
            *member = GroupMember { slot, bytes: 0 };
            if !is_alone {
                member.bytes = self.receive_ahead(slot);
            }
            bytes += member.bytes;
            if bytes >= GROUP_BYTES {
                break;
            }
        }
        if count > 1 {
            self.prefetch(&group[..count]);
        }
        count
    }

    /// Reads what a connection has sent, if its visit would read it at once (SRV-AHEAD-2). Returns the number of bytes.
    fn receive_ahead(&mut self, slot: usize) -> usize {
        let Some(mut conn) = self.table.take(slot) else {
            return 0;
        };
        let may_read = conn.readiness.readable
            && !conn.status.closing
            && !conn.status.awaits_long
            && !conn.marks.is_pipelining
            && conn.output.pending() < STALL_BYTES
            && conn.input.unread().is_empty()
            && !self.awaits_messages(&mut conn);
        let received = match may_read {
            true => self.receive(&mut conn),
            false => Ok(None),
        };
        self.table.put(slot, conn);
        match received {
            Ok(bytes) => bytes.unwrap_or(0),
            Err(error) => {
                self.close_failed(slot, &error);
                0
            }
        }
    }

    /// Reads once from a connection's socket. Returns the number of bytes, or `None` if there was nothing to read.
    pub(super) fn receive(&mut self, conn: &mut Connection) -> io::Result<Option<usize>> {
        let received = conn.fill(&mut self.inputs.pool)?;
        if let Some(bytes) = received {
            let counters = &mut self.executor.thread.counters;
            counters.count(Counter::BytesIn, bytes);
            counters.count(Counter::Reads, 1);
            self.batch.bytes += bytes;
            conn.client_info
                .active_ms
                .store(self.shared.clock_ms(), Ordering::Relaxed);
        }
        Ok(received)
    }

    /// Prefetches the keys of the connections of `group` that have sent one request.
    fn prefetch(&mut self, group: &[GroupMember]) {
        let received = || group.iter().filter(|member| member.bytes > 0);
        for member in received() {
            if let Some(conn) = self.table.get_mut(member.slot) {
                conn.parse_ahead(self.shared);
            }
        }
        let mut keys = WindowKeys::new();
        for member in received() {
            let conn = self.table.get(member.slot);
            keys.add(conn.and_then(|conn| conn.lone_key(self.shared)));
        }
        keys.prefetch(&mut *self.executor.session);
    }
}
