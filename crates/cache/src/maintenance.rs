//! Background maintenance: a thread that does the work of a session once a second.
//!
//! It records the clock, removes expired items from some pages, merges a sparse page and balances classes. When few
//! pages are free it grows the pool.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farbank_pm::Medium;
use farbank_pm::sync::{Arc, Mutex, lock};
use farbank_store::Error;

use crate::engine::Engine;
use crate::worker::CacheWorker;

/// Interval of background maintenance.
const TICK: Duration = Duration::from_secs(1);
/// Pages that one round of maintenance searches for expired items.
const PAGES_A_TICK: u32 = 64;

/// The thread of background maintenance, if there is one.
#[derive(Default)]
pub(crate) struct MaintenanceThread(Mutex<Option<JoinHandle<()>>>);

impl MaintenanceThread {
    /// Starts the thread.
    pub(crate) fn start<N: Medium, F: Medium>(engine: &Arc<Engine<N, F>>) -> MaintenanceThread {
        let shared = Arc::clone(engine);
        let thread = std::thread::spawn(move || maintain(shared));
        engine.set_grower(thread.thread().clone());
        MaintenanceThread(Mutex::new(Some(thread)))
    }

    /// Stops the thread, and waits until it has ended. In a forked child, to whose parent the thread belongs, this
    /// has no effect.
    pub(crate) fn stop<N: Medium, F: Medium>(&self, engine: &Engine<N, F>) {
        if !engine.is_own_process() {
            return;
        }
        engine.stop_maintenance();
        let mut thread = lock(&self.0);
        if let Some(thread) = thread.take() {
            thread.thread().unpark();
            // A panic of the background thread was already reported.
            let _ = thread.join();
        }
    }
}

fn maintain<N: Medium, F: Medium>(engine: Arc<Engine<N, F>>) {
    let mut from = 0;
    let mut next = Instant::now() + TICK;
    while !engine.is_stopping() {
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        let _one = engine.lock_round();
        let mut worker = CacheWorker::new(Arc::clone(&engine));
        worker.grow_ahead();
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + TICK;
        match round(&mut worker, from) {
            Ok(next) => from = next,
            Err(_) => return, // The medium has failed; the next write returns the error.
        }
    }
}

/// Runs a round of maintenance, which searches pages from `from` on. Returns the page from which the next one searches.
fn round<N: Medium, F: Medium>(worker: &mut CacheWorker<N, F>, from: u32) -> Result<u32, Error> {
    let next = worker.sweep(from, PAGES_A_TICK)?;
    worker.merge()?;
    worker.balance()?;
    worker.follow_clock()?;
    worker.keep_time()?;
    Ok(next)
}
