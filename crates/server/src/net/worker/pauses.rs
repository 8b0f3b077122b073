//! The worker's part in CLIENT PAUSE: connections whose next request is held back wait on a list of their own.

use std::time::Duration;

use super::Worker;

impl Worker<'_> {
    /// Lists the connections that CLIENT PAUSE has held back, if the pause has ended. Returns how long the worker may
    /// sleep.
    pub(super) fn resume_paused(&mut self) -> Duration {
        if self.visits.paused.is_empty() {
            return Duration::MAX;
        }
        let now_ms = self.shared.clock_ms();
        if let Some((_, left_ms)) = self.shared.clients.pause.current(now_ms) {
            return Duration::from_millis(left_ms);
        }
        for slot in std::mem::take(&mut self.visits.paused) {
            if let Some(conn) = self.table.get_mut(slot)
                && conn.status.paused
            {
                (conn.status.paused, conn.marks.listed) = (false, false);
                self.visits.add(slot, conn);
            }
        }
        Duration::ZERO
    }
}
