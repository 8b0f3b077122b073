//! Experiment on a full pool: the time of refused writes, accepted writes and reads.
//!
//! One thread does what a server's worker does for two clients: between any two steps of a write it answers a read. A
//! write is timed from its first attempt until it is accepted or refused, including the time in which it waits for
//! room.
//!
//! | history     | how the pool was filled                                                    |
//! |-------------|----------------------------------------------------------------------------|
//! | loaded      | with new keys until one was refused                                        |
//! | overwritten | as loaded; then random keys were overwritten, as many as the pool holds    |
//! | holes       | as loaded; then a random third of the keys was deleted and replaced        |

use std::time::Instant;

use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::media::Mapped;
use farbank_pm::rng::Rng;
use farbank_store::{Error as Refusal, Key, ReadView, RoomReply, Session, Store, Value};

use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};

/// Sizes of values in bytes.
const VALUE_BYTES: [usize; 6] = [10, 100, 1_000, 10_000, 150_000, 1 << 20];
/// Sizes of pools in bytes.
const POOL_BYTES: [u64; 2] = [32 << 20, 256 << 20];
/// Number of refused writes per cell, and of accepted ones.
const WRITES: u32 = 2_000;
/// Bound on the 99.99th percentile of each time, in milliseconds.
const SLOWEST_MS: f64 = 5.0;
const EXPERIMENT: &str = "full";

/// How a pool was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FillHistory {
    Loaded,
    Overwritten,
    Holes,
}

impl FillHistory {
    const ALL: [FillHistory; 3] = [
        FillHistory::Loaded,
        FillHistory::Overwritten,
        FillHistory::Holes,
    ];

    fn name(self) -> &'static str {
        match self {
            FillHistory::Loaded => "loaded",
            FillHistory::Overwritten => "overwritten",
            FillHistory::Holes => "holes",
        }
    }
}

/// Times in nanoseconds.
#[derive(Default)]
struct FullTimes {
    refused: Vec<u64>,
    accepted: Vec<u64>,
    reads: Vec<u64>,
}

impl FullTimes {
    fn add(&mut self, other: FullTimes) {
        self.refused.extend(other.refused);
        self.accepted.extend(other.accepted);
        self.reads.extend(other.reads);
    }
}

/// A session and the keys that it has stored.
struct FullClient {
    session: Box<dyn Session>,
    value: Vec<u8>,
    keys: Vec<u64>,
    next: u64,
    rng: Rng,
    out: Vec<u8>,
}

/// Runs all cells: each pool size with each value size and history.
pub(crate) fn run(report: &mut Report, watch: ProgressFn<'_>) -> Result<(), Error> {
    let cells: Vec<(u64, usize, FillHistory)> = POOL_BYTES
        .into_iter()
        .flat_map(|pool| VALUE_BYTES.map(|value| (pool, value)))
        .flat_map(|(pool, value)| FillHistory::ALL.map(|history| (pool, value, history)))
        .collect();
    let mut all = FullTimes::default();
    for (done, &(pool_bytes, value_bytes, history)) in cells.iter().enumerate() {
        report_progress(watch, "filling pools", done as u64, cells.len() as u64)?;
        let times = cell(pool_bytes, value_bytes, history)?;
        report.notes.push(format!(
            "full: {} MiB, values of {value_bytes} bytes, {}: slowest refused {:.3} ms, accepted {:.3} ms, read {:.3} ms",
            pool_bytes >> 20,
            history.name(),
            slowest_ms(&times.refused),
            slowest_ms(&times.accepted),
            slowest_ms(&times.reads),
        ));
        all.add(times);
    }
    report_progress(
        watch,
        "filling pools",
        cells.len() as u64,
        cells.len() as u64,
    )?;
    for (name, mut times) in [
        ("a refused SET", all.refused),
        ("an accepted SET", all.accepted),
        ("a GET beside them", all.reads),
    ] {
        times.sort_unstable();
        let median = Figure::measured(EXPERIMENT, format!("{name}, median"), at_ms(&times, 0.5));
        let late = Figure::measured(
            EXPERIMENT,
            format!("{name}, 99.99 %"),
            at_ms(&times, 0.9999),
        );
        let worst = Figure::measured(EXPERIMENT, format!("{name}, slowest"), slowest_ms(&times));
        report.figures.push(median.unit("ms"));
        report.figures.push(late.unit("ms").at_most(SLOWEST_MS));
        report.figures.push(worst.unit("ms"));
    }
    Ok(())
}

fn slowest_ms(times: &[u64]) -> f64 {
    times.iter().max().map_or(0.0, |ns| *ns as f64 / 1e6)
}

/// Returns the percentile `share` of the sorted `times`, in milliseconds.
fn at_ms(times: &[u64], share: f64) -> f64 {
    let rank = (times.len() as f64 * share).ceil() as usize;
    let place = rank.clamp(1, times.len().max(1)) - 1;
    times.get(place).map_or(0.0, |ns| *ns as f64 / 1e6)
}

fn cell(pool_bytes: u64, value_bytes: usize, history: FillHistory) -> Result<FullTimes, Error> {
    let medium = Mapped::anonymous(pool_bytes).map_err(Error::doing("map memory"))?;
    medium.prefault(&mut |_, _| {});
    let config = Config {
        cleaning: CleaningMode::Background,
        ..Config::default()
    };
    let kv = Kv::create(medium, segment_bytes_for(pool_bytes), config)?;
    let mut client = FullClient {
        session: Store::session(&kv),
        value: vec![7; value_bytes],
        keys: Vec::new(),
        next: 0,
        rng: Rng::new(pool_bytes ^ value_bytes as u64),
        out: Vec::new(),
    };
    let mut times = FullTimes::default();
    client.fill(&mut times)?;
    match history {
        FillHistory::Loaded => {}
        FillHistory::Overwritten => client.overwrite(&mut times)?,
        FillHistory::Holes => client.make_holes(&mut times)?,
    }
    let mut times = FullTimes::default();
    for _ in 0..WRITES {
        if client.set_next(&mut times)? {
            return Err(Error::Failed(format!(
                "values of {value_bytes} bytes, history {}: a write succeeded although the pool had refused it before",
                history.name()
            )));
        }
    }
    for _ in 0..WRITES {
        client.delete_one()?;
        if !client.set_next(&mut times)? {
            return Err(Error::Failed(format!(
                "values of {value_bytes} bytes, history {}: a write was refused although a key of this size was just deleted",
                history.name()
            )));
        }
    }
    Ok(times)
}

impl FullClient {
    fn fill(&mut self, times: &mut FullTimes) -> Result<(), Error> {
        while self.set_next(times)? {}
        Ok(())
    }

    /// Deletes one key in 64, overwrites random keys, as many times as there are keys, and fills the pool again.
    fn overwrite(&mut self, times: &mut FullTimes) -> Result<(), Error> {
        self.delete_some(64)?;
        for _ in 0..self.keys.len() {
            let place = self.random_index();
            let key = self.keys[place];
            self.set(key, times)?;
        }
        self.fill(times)
    }

    fn make_holes(&mut self, times: &mut FullTimes) -> Result<(), Error> {
        self.delete_some(3)?;
        self.fill(times)
    }

    /// Deletes one of `part` keys, at random.
    fn delete_some(&mut self, part: usize) -> Result<(), Error> {
        for _ in 0..(self.keys.len() / part).max(1) {
            self.delete_one()?;
        }
        Ok(())
    }

    fn random_index(&mut self) -> usize {
        self.rng.below(self.keys.len() as u64) as usize
    }

    fn delete_one(&mut self) -> Result<(), Error> {
        let place = self.random_index();
        let key = self.keys.swap_remove(place);
        while self.session.prepare(16, true).map_err(failed)? == RoomReply::Wait {
            std::thread::yield_now();
        }
        self.session
            .delete(name(&key.to_le_bytes()))
            .map_err(failed)?;
        self.session.commit().map_err(failed)?;
        Ok(())
    }

    /// Sets a new key. Returns whether the write was accepted.
    fn set_next(&mut self, times: &mut FullTimes) -> Result<bool, Error> {
        let key = self.next;
        let accepted = self.set(key, times)?;
        if accepted {
            self.next += 1;
            self.keys.push(key);
        }
        Ok(accepted)
    }

    /// Sets one key, and reads other keys while the write waits for room. Returns whether the write was accepted.
    fn set(&mut self, key: u64, times: &mut FullTimes) -> Result<bool, Error> {
        let started = Instant::now();
        while self
            .session
            .prepare(8 + self.value.len(), false)
            .map_err(failed)?
            == RoomReply::Wait
        {
            self.get(times)?;
        }
        let value = Value {
            bytes: &self.value,
            ..Value::default()
        };
        let done = self.session.put_durable(name(&key.to_le_bytes()), value);
        let elapsed = started.elapsed().as_nanos() as u64;
        let accepted = match done {
            Ok(_) => true,
            Err(Refusal::Full) => false,
            Err(error) => return Err(failed(error)),
        };
        match accepted {
            true => times.accepted.push(elapsed),
            false => times.refused.push(elapsed),
        }
        self.get(times)?;
        Ok(accepted)
    }

    /// Reads a random existing key.
    fn get(&mut self, times: &mut FullTimes) -> Result<(), Error> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let place = self.random_index();
        let key = self.keys[place];
        self.out.clear();
        let started = Instant::now();
        let found = self
            .session
            .get(
                name(&key.to_le_bytes()),
                ReadView::Durable,
                &mut self.out,
                &mut |_, _| true,
            )
            .map_err(failed)?;
        self.session.rest();
        times.reads.push(started.elapsed().as_nanos() as u64);
        match found && self.out.len() == self.value.len() {
            true => Ok(()),
            false => Err(Error::Failed(format!(
                "key {key} is missing or its value has a wrong length"
            ))),
        }
    }
}

fn name(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}
