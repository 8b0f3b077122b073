//! Experiment: how long a used pool takes to open, for several live shares, after a kill and after a clean close.
//!
//! A pool is filled until its live records are a given share of its capacity. Then random keys are overwritten until
//! three times the pool's bytes were written. So its segments hold dead records of all ages, as in a long-running
//! server. Dropping the store stands for a kill: it leaves no snapshot. Before each kill, a random number of keys is
//! overwritten, so that the kill comes at any time between two checkpoints. The cleaner runs in the background.

use std::path::Path;
use std::time::{Duration, Instant};

use farbank_kv::{AnyKv, Config};
use farbank_pm::media::{OpenOptions, open_path};
use farbank_pm::rng::Rng;
use farbank_store::{Error as Refusal, Store};

use crate::figure::{Error, Figure, PROGRESS_EVERY, ProgressFn, Report, median, report_progress};
use crate::kv::{LOAD_RECORD_BYTES, LOAD_VALUE_BYTES, OPENS, PoolPlace, fill, put, store_with};

/// Live shares of the pool's capacity, in percent.
const SHARES: [u64; 3] = [30, 60, 90];
/// How many times a pool's bytes are written before it counts as used.
const OVERWRITTEN: u64 = 3;
/// Bytes of a pool that the shares leave out: space for the cleaner and for open segments.
const RESERVED_BYTES: u64 = 32 << 20;
/// Updates per commit.
const BATCH: u64 = 64;
/// Time the store idles before it is closed, so that background work is done.
const IDLE: Duration = Duration::from_millis(500);

/// Runs the experiment with `keys` live keys, on a file at `path`.
pub(crate) fn run(
    keys: u64,
    path: &Path,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let mut rng = Rng::new(keys);
    for share in SHARES {
        let live_bytes = keys * LOAD_RECORD_BYTES;
        let pool_bytes = live_bytes * 100 / share / 15 * 16 + RESERVED_BYTES;
        let (_file, medium) = PoolPlace::File(path.to_owned()).make(pool_bytes, watch)?;
        let mut store = store_with(medium, Config::default())?;
        fill(&*store, keys, watch)?;
        overwrite(
            &*store,
            keys,
            OVERWRITTEN * pool_bytes / LOAD_RECORD_BYTES,
            watch,
        )?;
        for (clean, how) in [(false, "after a kill"), (true, "after a close")] {
            let mut times = Vec::new();
            let mut reads = Vec::new();
            for open in 0..OPENS {
                report_progress(watch, &format!("opening {how}"), open, OPENS)?;
                match clean {
                    true => {
                        std::thread::sleep(IDLE);
                        drop(store.close());
                    }
                    false => {
                        overwrite(&*store, keys, rng.below(keys), watch)?;
                        drop(store);
                    }
                }
                let started = Instant::now();
                store = open_again(path)?;
                times.push(started.elapsed().as_secs_f64() * 1e3);
                let opened = store.opened();
                if opened.keys != keys || !opened.damage.is_empty() {
                    return Err(Error::Failed(format!(
                        "the reopened store differs from the state {how}: {opened:?}"
                    )));
                }
                reads.push(opened.records_scanned as f64 / keys as f64);
            }
            let name = |what: &str| format!("overwritten, {share} % live, {how}: {what}");
            report.figures.extend([
                Figure::measured("reopen", name("median"), median(&times))
                    .unit("ms")
                    .spread(&times),
                Figure::counted("reopen", name("records read a key"), median(&reads))
                    .spread(&reads),
            ]);
        }
    }
    Ok(())
}

fn overwrite(
    store: &dyn Store,
    keys: u64,
    writes: u64,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let value = [9; LOAD_VALUE_BYTES];
    let mut session = store.session();
    let mut rng = Rng::new(keys);
    for first in (0..writes).step_by(BATCH as usize) {
        for _ in 0..BATCH {
            put(&mut *session, rng.below(keys), &value)?;
        }
        let ticket = session.commit()?;
        session.wait(ticket).map_err(Refusal::from)?;
        if first % PROGRESS_EVERY < BATCH {
            report_progress(watch, "overwriting the pool", first, writes)?;
        }
    }
    Ok(())
}

fn open_again(path: &Path) -> Result<Box<dyn Store>, Error> {
    let medium = open_path(path, &OpenOptions::default())?;
    Ok(AnyKv::open(medium, Config::default())?.into_store())
}
