//! One table through one experiment.

use std::sync::Barrier;
use std::time::Instant;

use farbank_index::registry::{Size, Table};
use farbank_index::{Index, Plan, Refused, Worker};
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path, open_path};

use super::keys::{Engine, Ids, key_of};
use super::{Options, Ratios};
use crate::figure::{Error, Figure, median};
use crate::temp::TempFile;

/// One operation in so many is timed.
const TIMED_ONE_IN: u64 = 128;
/// Rounds of a recovery.
const ROUNDS: usize = 5;
/// Points of a curve.
const POINTS: u64 = 200;

/// The keys of the phases: odd, so that the even ones beside them are never there.
fn odd(id: u64) -> u64 {
    key_of(id) << 1 | 1
}

fn refused(refused: Refused) -> Error {
    Error::Failed(refused.to_string())
}

/// Far memory for `records` keys in any of the tables, growth included.
fn pool_bytes(options: &Options, records: u64) -> u64 {
    (64 << 20) + 320 * records + 96 * options.slots
}

fn new_table(options: &Options, table: Table) -> Result<Box<dyn Index>, Error> {
    let bytes = pool_bytes(options, options.records + options.operations);
    let medium = Mapped::anonymous(bytes).map_err(Error::doing("map memory"))?;
    let size = Size::Slots(options.slots);
    let made = table.create(medium, &Plan::default(), size, options.preset);
    made.map_err(|error| Error::Failed(error.to_string()))
}

/// What a phase of all threads took.
struct Phase {
    /// Operations, in millions a second.
    millions: f64,
    /// Nanoseconds of those that were timed, sorted.
    times_ns: Vec<u64>,
    /// Operations that did what they should.
    done: u64,
}

impl Phase {
    fn quantile(&self, share: f64) -> f64 {
        let last = self.times_ns.len().saturating_sub(1);
        let at = (last as f64 * share) as usize;
        self.times_ns.get(at).map_or(0.0, |ns| *ns as f64)
    }
}

/// Has every thread run `op` for its share of `0..count`; `op` says whether it did what it should.
fn phase(
    table: &dyn Index,
    threads: u32,
    count: u64,
    op: impl Fn(&mut Worker, u64) -> Result<bool, Refused> + Sync,
) -> Result<Phase, Error> {
    let (start, op) = (Barrier::new(threads as usize + 1), &op);
    let share = count.div_ceil(u64::from(threads));
    let run = |thread: u64, worker: &mut Worker| -> Result<(u64, Vec<u64>), Refused> {
        let mine = thread * share..((thread + 1) * share).min(count);
        let mut times_ns = Vec::with_capacity((share / TIMED_ONE_IN) as usize + 1);
        let mut done = 0;
        start.wait();
        for n in mine {
            if n % TIMED_ONE_IN == 0 {
                let began = Instant::now();
                done += u64::from(op(worker, n)?);
                times_ns.push(began.elapsed().as_nanos() as u64);
            } else {
                done += u64::from(op(worker, n)?);
            }
        }
        Ok((done, times_ns))
    };
    let workers: Result<Vec<Worker>, Refused> = (0..threads).map(|_| table.worker()).collect();
    let workers = workers.map_err(refused)?;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..)
            .zip(workers)
            .map(|(thread, mut worker)| scope.spawn(move || run(thread, &mut worker)))
            .collect();
        start.wait();
        let began = Instant::now();
        let (mut done, mut times_ns) = (0, Vec::new());
        for thread in running {
            let (more, times) = thread.join().expect("no thread panics").map_err(refused)?;
            done += more;
            times_ns.extend(times);
        }
        times_ns.sort_unstable();
        Ok(Phase {
            millions: count as f64 / began.elapsed().as_secs_f64() / 1e6,
            times_ns,
            done,
        })
    })
}

/// Insert, positive and negative search, delete.
pub(super) fn throughput(options: &Options, table: Table) -> Result<Vec<Figure>, Error> {
    let made = new_table(options, table)?;
    let (index, count) = (&*made, options.records);
    let mut figures = Vec::new();
    let mut run =
        |what: &str,
         expected: u64,
         op: &(dyn Fn(&mut Worker, u64) -> Result<bool, Refused> + Sync)| {
            let phase = phase(index, options.threads, count, op)?;
            let name = |of: &str| format!("{what}{of}");
            let wrong = expected.abs_diff(phase.done);
            figures.extend([
                Figure::measured(table.name(), name(""), phase.millions).unit("M/s"),
                Figure::measured(table.name(), name(", half take"), phase.quantile(0.5)).unit("ns"),
                Figure::measured(table.name(), name(", 99 of 100"), phase.quantile(0.99))
                    .unit("ns"),
                Figure::counted(table.name(), name(", answers wrong"), wrong as f64).at_most(0.0),
            ]);
            Ok::<(), Error>(())
        };
    run("insert", count, &|worker, n| {
        Ok(index.insert(worker, odd(n), n)?.is_none())
    })?;
    run("positive search", count, &|worker, n| {
        Ok(index.get(worker, odd(n)) == Some(n))
    })?;
    run("negative search", 0, &|worker, n| {
        Ok(index.get(worker, odd(n) - 1).is_some())
    })?;
    run("delete", count, &|worker, n| {
        Ok(index.remove(worker, odd(n))? == Some(n))
    })?;
    Ok(figures)
}

/// What a draw of the mix means.
#[derive(Clone, Copy)]
enum Op {
    Read,
    Insert,
    Update,
    Remove,
}

impl Ratios {
    fn op(&self, drawn: f64) -> Op {
        match drawn {
            d if d < self.read => Op::Read,
            d if d < self.read + self.insert => Op::Insert,
            d if d < self.read + self.insert + self.update => Op::Update,
            _ => Op::Remove,
        }
    }
}

/// PiBench's run: ids 1 to `records` are loaded; then each thread draws what to do, and to which id.
pub(super) fn mix(options: &Options, table: Table) -> Result<Vec<Figure>, Error> {
    let made = new_table(options, table)?;
    let index = &*made;
    phase(index, options.threads, options.records, |worker, n| {
        Ok(index.insert(worker, key_of(n + 1), n)?.is_none())
    })?;
    let inserts = (options.operations as f64 * options.ratios.insert) as u64;
    let ids = Ids::new(options.records + inserts, options.distribution);
    let threads = u64::from(options.threads);
    let draws = |thread: u64| {
        let mut engine = Engine::new(options.seed.wrapping_mul(thread + 1));
        let mut next = options.records + 1 + (10 + inserts / threads) * thread;
        let share = options.operations.div_ceil(threads);
        let draw = move |ids: &Ids| match options.ratios.op(engine.canonical()) {
            Op::Insert => {
                next += 1;
                (Op::Insert, key_of(next - 1))
            }
            op => (op, key_of(ids.draw(&mut engine))),
        };
        (draw, share)
    };
    let drawn: Vec<Vec<(Op, u64)>> = (0..threads)
        .map(|thread| {
            let (mut draw, share) = draws(thread);
            (0..share).map(|_| draw(&ids)).collect()
        })
        .collect();
    let share = options.operations.div_ceil(threads);
    let run = phase(index, options.threads, options.operations, |worker, n| {
        let (op, key) = drawn[(n / share) as usize][(n % share) as usize];
        Ok(match op {
            Op::Read => index.get(worker, key).is_some(),
            Op::Insert => index.insert(worker, key, n)?.is_none(),
            Op::Update => index.update(worker, key, n)?.is_some(),
            Op::Remove => index.remove(worker, key)?.is_some(),
        })
    })?;
    let succeeded = run.done as f64 / options.operations as f64;
    let figure = |name: &str, value| Figure::measured(table.name(), name, value);
    Ok(vec![
        figure("completed", run.millions).unit("M/s"),
        figure("succeeded", run.millions * succeeded).unit("M/s"),
        figure("half take", run.quantile(0.5)).unit("ns"),
        figure("99 of 100 take", run.quantile(0.99)).unit("ns"),
        figure("99.9 of 100 take", run.quantile(0.999)).unit("ns"),
        figure("the slowest timed", run.quantile(1.0)).unit("ns"),
    ])
}

/// Flushes, fences and bytes an operation, growth and allocator included.
pub(super) fn counts(options: &Options, table: Table) -> Result<Vec<Figure>, Error> {
    let made = new_table(options, table)?;
    let (index, count) = (&*made, options.records);
    let mut worker = index.worker().map_err(refused)?;
    let mut figures = Vec::new();
    let mut run = |what: &str, op: &dyn Fn(&mut Worker, u64) -> Result<(), Refused>| {
        let before = worker.counters();
        for n in 0..count {
            op(&mut worker, n).map_err(refused)?;
        }
        let after = worker.counters();
        let each = |before: u64, after: u64| (after - before) as f64 / count as f64;
        let figure =
            |name: &str, value| Figure::counted(table.name(), format!("{what}: {name}"), value);
        figures.extend([
            figure("lines flushed", each(before.lines, after.lines)),
            figure("fences", each(before.fences, after.fences)),
            figure("bytes written", each(before.bytes, after.bytes)),
        ]);
        Ok::<(), Error>(())
    };
    run("insert", &|worker, n| {
        index.insert(worker, odd(n), n).map(drop)
    })?;
    run("update", &|worker, n| {
        index.update(worker, odd(n), !n).map(drop)
    })?;
    run("search", &|worker, n| {
        index.get(worker, odd(n));
        Ok(())
    })?;
    run("delete", &|worker, n| {
        index.remove(worker, odd(n)).map(drop)
    })?;
    Ok(figures)
}

/// How full a table is while it grows.
pub(super) fn load_factor(options: &Options, table: Table) -> Result<Vec<Figure>, Error> {
    let made = new_table(options, table)?;
    let mut worker = made.worker().map_err(refused)?;
    let every = (options.records / POINTS).max(1);
    let (mut factors, mut uses) = (Vec::new(), Vec::new());
    for n in 0..options.records {
        made.insert(&mut worker, odd(n), n).map_err(refused)?;
        if (n + 1) % every == 0 {
            let space = made.space(&mut worker);
            factors.push(space.load_factor());
            uses.push(space.utilisation());
        }
    }
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let figure =
        |name: &str, value: f64| Figure::counted(table.name(), name, 100.0 * value).unit("%");
    let last = |values: &[f64]| values.last().copied().unwrap_or_default();
    Ok(vec![
        figure("load factor, at most", most(&factors)),
        figure("load factor, median of the growth", median(&factors)),
        figure("load factor, at the end", last(&factors)),
        figure("utilisation, at most", most(&uses)),
        figure("utilisation, median of the growth", median(&uses)),
        figure("utilisation, at the end", last(&uses)),
    ])
}

/// From an open of what a process left behind to the first answer. The table is on tmpfs: what a kill leaves.
pub(super) fn recovery(options: &Options, table: Table) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for records in [options.records / 16, options.records / 4, options.records] {
        let path = TempFile::on_tmpfs(table.name())?;
        let bytes = pool_bytes(options, records);
        let _file = TempFile::new(&path);
        let medium = create_path(&path, bytes, &OpenOptions::default(), &mut |_, _| ());
        let made = match medium.map_err(Error::Medium)? {
            AnyMedium::Mapped(medium) => {
                let size = Size::Slots(options.slots);
                table.create(medium, &Plan::default(), size, options.preset)
            }
            AnyMedium::File(_) => return Err(Error::Failed("/dev/shm is no tmpfs".into())),
        };
        let made = made.map_err(|error| Error::Failed(error.to_string()))?;
        let mut worker = made.worker().map_err(refused)?;
        for n in 0..records {
            made.insert(&mut worker, odd(n), n).map_err(refused)?;
        }
        drop((worker, made));
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(first_answer_ms(table, &path)?);
        }
        let name = format!("first answer of {records} keys");
        let figure = Figure::measured(table.name(), name, median(&rounds));
        figures.push(figure.unit("ms").spread(&rounds));
    }
    Ok(figures)
}

fn first_answer_ms(table: Table, path: &std::path::Path) -> Result<f64, Error> {
    let medium = open_path(path, &OpenOptions::default()).map_err(Error::Medium)?;
    let AnyMedium::Mapped(medium) = medium else {
        return Err(Error::Failed("/dev/shm is no tmpfs".into()));
    };
    let began = Instant::now();
    let opened = table.open(medium);
    let opened = opened.map_err(|error| Error::Failed(error.to_string()))?;
    let mut worker = opened.worker().map_err(refused)?;
    let found = opened.get(&mut worker, odd(1));
    let ms = began.elapsed().as_secs_f64() * 1e3;
    match found {
        Some(1) => Ok(ms),
        other => Err(Error::Failed(format!(
            "{table} came back with {other:?} for 1"
        ))),
    }
}
