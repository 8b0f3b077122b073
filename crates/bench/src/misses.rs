//! Last-level cache misses as the processor counts them, where it does and lets itself be asked.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter as Inner};

use crate::figure::Error;

/// Counts this thread's misses.
pub(crate) struct MissCounter(Inner);

impl MissCounter {
    /// A counter that stands still; the error says why there is none.
    pub(crate) fn new() -> Result<MissCounter, String> {
        let counter = Builder::new(Hardware::CACHE_MISSES).build();
        counter
            .map(MissCounter)
            .map_err(|e| format!("perf_event_open: {e}"))
    }

    /// Counts from now on, from 0.
    pub(crate) fn start(&mut self) -> Result<(), Error> {
        let started = self.0.reset().and_then(|()| self.0.enable());
        started.map_err(Error::doing("start the counter of cache misses"))
    }

    /// Stops: misses since the start.
    pub(crate) fn stop(&mut self) -> Result<u64, Error> {
        let read = self.0.disable().and_then(|()| self.0.read());
        read.map_err(Error::doing("read the counter of cache misses"))
    }
}
