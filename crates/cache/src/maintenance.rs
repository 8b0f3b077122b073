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
const TICK: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::thread::ThreadId;

    use farbank_pm::media::Mapped;

    use super::*;
    use crate::{Cache, Config};

    /// Counts the uses of the clock by other threads than that of the test: those of background maintenance.
    #[derive(Default)]
    struct ClockUses {
        others: AtomicU64,
        /// Whether the next use by the test's thread waits, to see whether the other thread still runs.
        watches: AtomicBool,
        is_seen: AtomicBool,
    }

    impl ClockUses {
        fn note(&self, test: ThreadId) {
            if std::thread::current().id() != test {
                self.others.fetch_add(1, SeqCst);
            } else if self.watches.swap(false, SeqCst) {
                self.is_seen.store(self.changes_within(10 * TICK), SeqCst);
            }
        }

        fn changes_within(&self, time: Duration) -> bool {
            let (before, started) = (self.others.load(SeqCst), Instant::now());
            while started.elapsed() < time {
                if self.others.load(SeqCst) != before {
                    return true;
                }
                std::thread::sleep(TICK / 4);
            }
            false
        }
    }

    fn maintained() -> (Cache<Mapped>, Arc<ClockUses>) {
        let (uses, test) = (Arc::new(ClockUses::default()), std::thread::current().id());
        let noted = Arc::clone(&uses);
        let config = Config {
            background_maintenance: true,
            uptime: Arc::new(move || {
                noted.note(test);
                1
            }),
            ..Config::default()
        };
        let medium = Mapped::anonymous(1 << 20).unwrap();
        let cache = Cache::create(medium, 64 << 10, config).unwrap();
        (cache, uses)
    }

    #[test]
    fn a_close_ends_maintenance_before_it_writes() {
        let (cache, uses) = maintained();
        assert!(uses.changes_within(500 * TICK), "maintenance does not run");
        uses.watches.store(true, SeqCst);
        cache.close().unwrap();
        assert!(
            !uses.watches.load(SeqCst),
            "the close does not use the clock"
        );
        assert!(
            !uses.is_seen.load(SeqCst),
            "maintenance runs while it closes"
        );
    }

    #[test]
    fn maintenance_does_nothing_while_the_lock_of_rounds_is_held() {
        let (cache, uses) = maintained();
        let round = cache.engine().lock_round();
        assert!(!uses.changes_within(10 * TICK));
        drop(round);
        assert!(uses.changes_within(500 * TICK));
    }
}
