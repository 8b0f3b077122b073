//! The worker's part in the limits of connections: those that exceed one are closed.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Worker, buffer_pool_bytes_max};
use crate::net::connection::Connection;
use crate::settings::size;
use crate::stats::counters::Counter;

impl Worker<'_> {
    /// Fails if a reply exceeded the output limit; the caller then closes the connection.
    pub(super) fn check_output_limit(&mut self, conn: &Connection) -> io::Result<()> {
        if !conn.output.buffer.is_cut() {
            return Ok(());
        }
        self.executor
            .thread
            .counters
            .count(Counter::OutputLimits, 1);
        let (client, bytes) = (conn.client_info.id, conn.output.pending());
        let bytes_max = conn.output.buffer.bytes_max();
        tracing::warn!(
            client,
            bytes,
            bytes_max,
            "closed: its replies exceed client-output-buffer-limit"
        );
        Err(io::Error::other("replies above client-output-buffer-limit"))
    }

    /// Closes the clients that use the most memory until all clients together use at most maxmemory-clients.
    pub(super) fn evict_clients(&mut self) {
        let bytes_max = self.shared.settings.clients_bytes_max();
        if self.shared.clients.memory_bytes() <= bytes_max {
            return;
        }
        let mut clients = self.shared.clients.all();
        clients.retain(|client_info| !client_info.is_eviction_exempt.load(Ordering::Relaxed));
        clients.sort_by_key(|client_info| client_info.counted_bytes.load(Ordering::Relaxed));
        while let Some(client_info) = clients.pop() {
            if self.shared.clients.memory_bytes() <= bytes_max {
                break;
            }
            let bytes = client_info.counted_bytes.load(Ordering::Relaxed);
            if self.shared.clients.mark_closing(&client_info) {
                tracing::warn!(
                    client = client_info.id,
                    bytes,
                    "closed: all clients together exceed maxmemory-clients"
                );
                self.executor.thread.counters.count(Counter::Evictions, 1);
                match self.table.slot_of(client_info.id) {
                    Some(slot) => self.close(slot),
                    None => self.shared.kill(&client_info),
                }
            }
        }
    }

    /// Once a second, closes connections that are idle for too long or whose client reads too slowly.
    pub(super) fn tick(&mut self) {
        let now = self.shared.clock_ms();
        if now.saturating_sub(self.ticked_ms) < 1000 {
            return;
        }
        if self.number == 0 {
            self.shared.stats.counters.sample_rate(now - self.ticked_ms);
            self.shared.stats.memory.measure();
        }
        self.ticked_ms = now;
        self.limit_tracked_keys(Instant::now() + self.shared.options.time_slice);
        self.inputs.pool.tick(buffer_pool_bytes_max(self.shared));
        self.executor
            .thread
            .buffer_pool
            .tick(buffer_pool_bytes_max(self.shared));
        let settings = &self.shared.settings;
        let idle_ms = settings
            .timeout_secs
            .load(Ordering::Relaxed)
            .saturating_mul(1000);
        for slot in 0..self.table.len() {
            let Some(conn) = self.table.get_mut(slot) else {
                continue;
            };
            let idle = now.saturating_sub(conn.client_info.active_ms.load(Ordering::Relaxed));
            let is_subscribed = conn.client_info.is_subscribed.load(Ordering::Relaxed);
            let limit = settings.output_limit(is_subscribed);
            let soft_bytes = size(&limit.soft_bytes);
            let soft_secs = limit.soft_secs.load(Ordering::Relaxed);
            let soft_ms = soft_secs.saturating_mul(1000);
            let above = soft_bytes > 0 && conn.output.pending() > soft_bytes;
            let since = above.then(|| conn.soft_since_ms.unwrap_or(now));
            conn.soft_since_ms = since;
            let slow = since.is_some_and(|since| now - since >= soft_ms);
            // As in Redis, a client with subscriptions may be idle.
            let may_idle =
                idle_ms == 0 || is_subscribed || conn.output.holds() || conn.status.paused;
            if slow || (idle > idle_ms && !may_idle) {
                tracing::debug!(client = conn.client_info.id, slow, "closed: idle or slow");
                self.executor
                    .thread
                    .counters
                    .count(Counter::IdleKicks, usize::from(!slow));
                self.executor
                    .thread
                    .counters
                    .count(Counter::OutputLimits, usize::from(slow));
                self.close(slot);
            }
        }
    }
}
