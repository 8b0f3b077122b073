//! Last-level cache misses, counted by the processor where that is supported and permitted.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter as Inner};

use crate::figure::Error;

/// Counter of this thread's cache misses.
pub(crate) struct MissCounter(Inner);

impl MissCounter {
    /// Creates a stopped counter.
    ///
    /// # Errors
    /// `perf_event_open` failed: the counter is not supported or not permitted.
    pub(crate) fn new() -> io::Result<MissCounter> {
        Builder::new(Hardware::CACHE_MISSES)
            .build()
            .map(MissCounter)
    }

    /// Resets the counter to 0 and starts it.
    pub(crate) fn start(&mut self) -> Result<(), Error> {
        let started = self.0.reset().and_then(|()| self.0.enable());
        started.map_err(Error::doing("start the counter of cache misses"))
    }

    /// Stops the counter. Returns the misses since the start.
    pub(crate) fn stop(&mut self) -> Result<u64, Error> {
        let read = self.0.disable().and_then(|()| self.0.read());
        read.map_err(Error::doing("read the counter of cache misses"))
    }
}
