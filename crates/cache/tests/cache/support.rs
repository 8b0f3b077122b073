//! Helpers of the cache's tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_cache::Config;
use farbank_store::Key;
use farbank_store::clock::ClockFn;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn config(time: &Arc<AtomicU64>) -> Config {
    let time = Arc::clone(time);
    let clock: ClockFn = Arc::new(move || time.load(Relaxed));
    Config {
        clock: Arc::clone(&clock),
        uptime: clock,
        background_maintenance: false,
        ..Config::default()
    }
}

pub(crate) fn clock() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(1_700_000_000_000))
}

pub(crate) fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}
