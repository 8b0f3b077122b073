//! The last failure to grow the pool.

use std::io;
use std::time::{Duration, Instant};

use farbank_pm::sync::{Arc, Mutex, unpoisoned};

/// Pause before another attempt after growth has failed: a full disk stays full for a while, and each attempt asks
/// the file system for space.
const PAUSE: Duration = Duration::from_secs(1);

/// The last failed growth, if none has succeeded since.
#[derive(Debug, Default)]
pub(crate) struct GrowthState(Mutex<Option<GrowthFailure>>);

#[derive(Debug)]
struct GrowthFailure {
    why: Arc<str>,
    when: Instant,
}

impl GrowthState {
    /// Returns whether an attempt is worthwhile.
    pub(crate) fn may_succeed(&self) -> bool {
        let last = unpoisoned(self.0.lock());
        last.as_ref()
            .is_none_or(|failure| failure.when.elapsed() >= PAUSE)
    }

    pub(crate) fn failed(&self, error: &io::Error) {
        *unpoisoned(self.0.lock()) = Some(GrowthFailure {
            why: error.to_string().into(),
            when: Instant::now(),
        });
    }

    pub(crate) fn succeeded(&self) {
        *unpoisoned(self.0.lock()) = None;
    }

    /// Returns the reason why the last growth failed.
    pub(crate) fn error(&self) -> Option<Arc<str>> {
        let last = unpoisoned(self.0.lock());
        last.as_ref().map(|failure| Arc::clone(&failure.why))
    }
}
