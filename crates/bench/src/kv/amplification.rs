//! Write amplification: bytes written to the medium per byte that users write, and refused writes.

use farbank_pm::Ticket;
use farbank_pm::rng::Rng;
use farbank_store::{Error as Refusal, Key, Session, Store};

use super::{KvOptions, UpdatePattern, put, store_on};
use crate::figure::{
    Error, Figure, PROGRESS_EVERY, ProgressFn, Report, report_every, report_progress,
};

/// Number of refusals after which a change of sizes is given up.
const REFUSALS_MAX: u64 = 1000;

impl UpdatePattern {
    /// Returns the name in figures.
    fn label(self) -> &'static str {
        match self {
            UpdatePattern::Hot => "90 % on 10 % of keys",
            UpdatePattern::Uniform | UpdatePattern::Sizes => self.name(),
        }
    }

    fn key(self, rng: &mut Rng, keys: u64) -> u64 {
        match self {
            UpdatePattern::Hot if rng.below(10) < 9 => rng.below(keys / 10),
            _ => rng.below(keys),
        }
    }
}

pub(super) fn run(
    options: &KvOptions,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    const TURNS: u64 = 8;
    for (percent, pattern, bound) in [
        (78, UpdatePattern::Uniform, Some(2.9)),
        (78, UpdatePattern::Hot, Some(1.8)),
        (86, UpdatePattern::Uniform, None),
        (86, UpdatePattern::Hot, None),
    ] {
        if !options.updates.contains(&pattern) {
            continue;
        }
        let (_file, medium) = options.place.make(options.pool_bytes, watch)?;
        let store = store_on(medium)?;
        let name = format!("{percent} % live, {}", pattern.label());
        let found = update(&*store, pattern, percent, TURNS, &mut |done, all| {
            report_progress(watch, &name, done, all)
        })?;
        let figure = Figure::counted("amplification", name, found).unit("writes a write");
        report.figures.push(Figure {
            at_most: bound,
            ..figure
        });
    }
    if !options.updates.contains(&UpdatePattern::Sizes) {
        return Ok(());
    }
    let (_file, medium) = options.place.make(options.pool_bytes, watch)?;
    change_sizes(&*store_on(medium)?, report, watch)
}

/// Session that commits after every operation and waits for every 64th commit.
struct CommittingWriter {
    session: Box<dyn Session>,
    done: u64,
    newest: Ticket,
}

impl CommittingWriter {
    fn new(store: &dyn Store) -> CommittingWriter {
        CommittingWriter {
            session: store.session(),
            done: 0,
            newest: Ticket::DURABLE,
        }
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        put(&mut *self.session, key, value)?;
        self.commit()
    }

    fn delete(&mut self, key: u64) -> Result<(), Refusal> {
        let name = key.to_le_bytes();
        self.session.delete(Key {
            db: 0,
            bytes: &name,
        })?;
        self.commit()
    }

    fn commit(&mut self) -> Result<(), Refusal> {
        // On a medium whose drain is a sync, one sync serves this many commits.
        const TOGETHER: u64 = 64;
        self.newest = self.session.commit()?;
        self.done += 1;
        if self.done.is_multiple_of(TOGETHER) {
            self.session.wait(self.newest)?;
        }
        Ok(())
    }
}

/// Fills `percent` of the pool with live records and updates them, `turns` times as often as there are keys. Returns
/// total bytes written per user byte over the last half.
fn update(
    store: &dyn Store,
    pattern: UpdatePattern,
    percent: u64,
    turns: u64,
    look: &mut dyn FnMut(u64, u64) -> Result<(), Error>,
) -> Result<f64, Error> {
    const VALUE: [u8; 200] = [7; 200];
    const RECORD_BYTES: u64 = (24 + 8 + VALUE.len() as u64).next_multiple_of(16);
    let pool = store.stats().pool;
    let keys = u64::from(pool.segments) * pool.segment_bytes / 100 * percent / RECORD_BYTES;
    let mut writer = CommittingWriter::new(store);
    for key in 0..keys {
        writer.put(key, &VALUE)?;
    }
    let mut rng = Rng::new(1);
    let updates = keys * turns;
    let mut start = store.stats().writes;
    for n in 0..updates {
        if n == updates / 2 {
            start = store.stats().writes;
        }
        if n.is_multiple_of(PROGRESS_EVERY) {
            look(n, updates)?;
        }
        writer.put(pattern.key(&mut rng, keys), &VALUE)?;
    }
    let end = store.stats().writes;
    let user = (end.user_bytes - start.user_bytes) as f64;
    Ok((user + (end.moved_bytes - start.moved_bytes) as f64) / user)
}

/// Fills the pool with values of one size, then replaces them by values of the next size, key by key in random order.
/// Before each write, it deletes just enough old keys to make room, so the pool stays equally full. Then it updates
/// each size for a turn.
fn change_sizes(
    store: &dyn Store,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let pool = store.stats().pool;
    let full = u64::from(pool.segments) * pool.segment_bytes / 100 * 78;
    let mut change = Change {
        store,
        writer: CommittingWriter::new(store),
        rng: Rng::new(2),
        keys: Vec::new(),
        next: 0,
        refusals: 0,
    };
    for value_bytes in [200, 60, 1500] {
        change.replace_all_values(value_bytes, full, watch)?;
        change.update(value_bytes, watch)?;
    }
    let Change {
        refusals,
        keys,
        mut writer,
        ..
    } = change;
    let found = writer.session.len(0)?;
    if refusals == 0 && found != keys.len() as u64 {
        let expected = keys.len();
        return Err(Error::Failed(format!(
            "the store holds {found} keys, expected {expected}"
        )));
    }
    let name = "200 to 60 to 1500 bytes a value, 78 % live: refusals";
    report
        .figures
        .push(Figure::counted("amplification", name, refusals as f64).at_most(0.0));
    Ok(())
}

struct Change<'a> {
    store: &'a dyn Store,
    writer: CommittingWriter,
    rng: Rng,
    /// Existing keys.
    keys: Vec<u64>,
    next: u64,
    refusals: u64,
}

impl Change<'_> {
    /// Replaces every key by new keys with values of `value_bytes`, until `full` bytes are live.
    fn replace_all_values(
        &mut self,
        value_bytes: usize,
        full: u64,
        watch: ProgressFn<'_>,
    ) -> Result<(), Error> {
        let what = format!("changing to {value_bytes} bytes");
        let record_bytes = (40 + 8 + value_bytes as u64).next_multiple_of(16);
        let value = vec![7; value_bytes];
        let mut old = std::mem::take(&mut self.keys);
        for last in (1..old.len()).rev() {
            old.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
        loop {
            while self.store.stats().pool.live_bytes + record_bytes > full {
                let Some(key) = old.pop() else { return Ok(()) };
                let deleted = self.writer.delete(key);
                self.is_accepted(deleted)?;
            }
            let done = self.keys.len() as u64;
            report_every(watch, &what, done, full / record_bytes)?;
            let put = self.writer.put(self.next, &value);
            if self.is_accepted(put)? {
                self.keys.push(self.next);
            } else if self.refusals >= REFUSALS_MAX {
                return Ok(());
            }
            self.next += 1;
        }
    }

    /// Updates uniformly chosen keys, as many times as there are keys.
    fn update(&mut self, value_bytes: usize, watch: ProgressFn<'_>) -> Result<(), Error> {
        let what = format!("updating {value_bytes} bytes");
        let value = vec![8; value_bytes];
        let keys = self.keys.len() as u64;
        for n in 0..keys {
            report_every(watch, &what, n, keys)?;
            let key = self.keys[self.rng.below(keys) as usize];
            let put = self.writer.put(key, &value);
            self.is_accepted(put)?;
        }
        Ok(())
    }

    /// Returns whether an operation succeeded. Counts a refusal because the pool is full.
    fn is_accepted(&mut self, outcome: Result<(), Refusal>) -> Result<bool, Error> {
        match outcome {
            Ok(()) => Ok(true),
            Err(Refusal::Full) => {
                self.refusals += 1;
                Ok(false)
            }
            Err(other) => Err(other.into()),
        }
    }
}
