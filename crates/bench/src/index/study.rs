//! Experiments on our tables only: counts, load factor, growth and recovery.

use std::time::Instant;

use farbank_index::registry::{TableKind, TableSize};
use farbank_index::{PoolPlan, TableWorker};
use farbank_pm::media::{AnyMedium, OpenOptions, create_path, open_path};

use super::IndexOptions;
use super::contender::{PagePreparation, new_table, pool_bytes, refused};
use super::keys::{MinStdEngine, key_of, odd};
use super::phase::quantile;
use super::published::{
    self, COUNTED_NEAR, LOAD_FACTOR_PERCENT, PAIR_BYTES, RESIZES, UTILISATION_PERCENT,
    UTILISATION_WITH_DRAM_PERCENT, compare_with_study,
};
use super::scale::not_the_studys_growth;
use crate::chart::Charts;
use crate::figure::{Error, Figure, ProgressFn, median, report_every};
use crate::temp::TempFile;

/// Number of rounds of a recovery.
const ROUNDS: usize = 5;
/// Number of points of a curve.
const POINTS: u64 = 200;

/// Counts flushes, fences and bytes per operation, including those of growth and of the allocator.
pub(super) fn counts(
    options: &IndexOptions,
    table: TableKind,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let made = new_table(options, table, options.records, PagePreparation::AsTouched)?;
    let (index, count) = (&*made, options.records);
    let mut worker = index.worker().map_err(refused)?;
    let mut figures = Vec::new();
    let mut run = |what: &str, op: &dyn Fn(&mut TableWorker, u64) -> Result<(), Error>| {
        let before = worker.counters();
        for n in 0..count {
            report_every(watch, what, n, count)?;
            op(&mut worker, n)?;
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
        index.insert(worker, odd(n), n).map(drop).map_err(refused)
    })?;
    run("update", &|worker, n| {
        index.update(worker, odd(n), !n).map(drop).map_err(refused)
    })?;
    run("search", &|worker, n| {
        index.get(worker, odd(n)).map(drop).map_err(refused)
    })?;
    run("delete", &|worker, n| {
        index.remove(worker, odd(n)).map(drop).map_err(refused)
    })?;
    Ok(figures)
}

/// Returns the keys of an insert-only run: PiBench's, each once, or drawn with replacement like the study's.
pub(super) fn insert_keys(
    options: &IndexOptions,
    replacing: bool,
) -> impl FnMut(u64) -> u64 + use<> {
    let (mut engine, most) = (MinStdEngine::new(options.seed), options.records - 1);
    move |n| match replacing {
        true => key_of(1 + engine.up_to(most)),
        false => odd(n),
    }
}

/// Measures the load factor and utilisation of a table while it grows.
pub(super) fn load_factor(
    options: &IndexOptions,
    table: TableKind,
    charts: &mut Charts,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let made = new_table(options, table, options.records, PagePreparation::AsTouched)?;
    let mut worker = made.worker().map_err(refused)?;
    let mut key = insert_keys(options, options.with_replacement);
    let every = (options.records / POINTS).max(1);
    let (mut factors, mut uses) = (Vec::new(), Vec::new());
    for n in 0..options.records {
        report_every(watch, "growth", n, options.records)?;
        made.insert(&mut worker, key(n), n).map_err(refused)?;
        if (n + 1) % every == 0 {
            let space = made.space(&mut worker).map_err(refused)?;
            factors.push(space.load_factor());
            uses.push(space.utilisation());
        }
    }
    for (title, shares) in [("load factor", &factors), ("utilisation", &uses)] {
        let keys = (1..).map(|n| (n * every) as f64 / 1e6);
        let points = keys.zip(shares.iter().map(|share| 100.0 * share)).collect();
        charts.line(
            title,
            ("keys inserted, millions", "%"),
            table.name(),
            points,
        );
    }
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let figure =
        |name: &str, value: f64| Figure::counted(table.name(), name, 100.0 * value).unit("%");
    let last = |values: &[f64]| values.last().copied().unwrap_or_default();
    let scored = |figure: Figure, values: &published::ByTable| {
        let value = published::of(values, table);
        let figure = compare_with_study(options, figure, value, COUNTED_NEAR);
        match figure.published {
            Some(_) => figure.caveat(not_the_studys_growth(options)),
            None => figure,
        }
    };
    let mut figures = vec![
        scored(
            figure("load factor, at most", most(&factors)),
            &LOAD_FACTOR_PERCENT,
        ),
        figure("load factor, median of the growth", median(&factors)),
        figure("load factor, at the end", last(&factors)),
        scored(
            figure("utilisation, at most", most(&uses)),
            &UTILISATION_PERCENT,
        ),
        figure("utilisation, median of the growth", median(&uses)),
        figure("utilisation, at the end", last(&uses)),
    ];
    let space = made.space(&mut worker).map_err(refused)?;
    let bytes = space.table_bytes + space.dram_bytes;
    let with_dram = PAIR_BYTES * space.keys as f64 / bytes.max(1) as f64;
    figures.push(scored(
        figure("utilisation with DRAM, at the end", with_dram),
        &UTILISATION_WITH_DRAM_PERCENT,
    ));
    let keys = space.keys as f64;
    figures.push(Figure::counted(table.name(), "keys, each once", keys));
    Ok(figures)
}

/// Measures the inserts that change the table's structure: their times and their share of the run.
pub(super) fn resize(
    options: &IndexOptions,
    table: TableKind,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let made = new_table(
        options,
        table,
        options.records,
        PagePreparation::Prefault(watch),
    )?;
    let mut worker = made.worker().map_err(refused)?;
    let mut key = insert_keys(options, options.with_replacement);
    let mut changes_ns = Vec::new();
    let began = Instant::now();
    for n in 0..options.records {
        report_every(watch, "growth", n, options.records)?;
        let (before, started) = (worker.reshapes(), Instant::now());
        made.insert(&mut worker, key(n), n).map_err(refused)?;
        if worker.reshapes() > before {
            changes_ns.push(started.elapsed().as_nanos() as u64);
        }
    }
    let all_ns = began.elapsed().as_nanos() as f64;
    changes_ns.sort_unstable();
    let at = |share| quantile(&changes_ns, share) as f64 / 1e3;
    let measured = |name: &str, value| Figure::measured(table.name(), name, value);
    let share = 100.0 * changes_ns.iter().sum::<u64>() as f64 / all_ns;
    let changes = Figure::counted(
        table.name(),
        "changes of structure",
        changes_ns.len() as f64,
    );
    let published = published::of(&RESIZES, table);
    let caveat = published.and_then(|_| not_the_studys_growth(options));
    Ok(vec![
        compare_with_study(options, changes, published, COUNTED_NEAR).caveat(caveat),
        measured("a change, half take", at(0.5)).unit("us"),
        measured("a change, 99 % take", at(0.99)).unit("us"),
        measured("a change, the slowest", at(1.0)).unit("us"),
        measured("changes, share of the run", share).unit("%"),
    ])
}

/// Measures the time from an open after a kill to the first answer. The table is on tmpfs and is not closed, as in a
/// kill.
pub(super) fn recovery(
    options: &IndexOptions,
    table: TableKind,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for records in [16, 4, 1].map(|part| (options.records / part).max(2)) {
        let path = TempFile::on_tmpfs(table.name())?;
        let bytes = pool_bytes(options, records);
        let _file = TempFile::new(&path);
        let medium = create_path(&path, bytes, &OpenOptions::default(), &mut |_, _| ());
        let made = match medium.map_err(Error::Medium)? {
            AnyMedium::Mapped(medium) => {
                let size = TableSize::Slots(options.slots);
                let plan = PoolPlan {
                    hashing: options.hashing,
                    ..PoolPlan::default()
                };
                table.create(medium, &plan, size, options.preset)
            }
            AnyMedium::File(_) => return Err(Error::Failed("/dev/shm is not a tmpfs".into())),
        };
        let made = made.map_err(|error| Error::Failed(error.to_string()))?;
        let mut worker = made.worker().map_err(refused)?;
        for n in 0..records {
            report_every(watch, "load", n, records)?;
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

fn first_answer_ms(table: TableKind, path: &std::path::Path) -> Result<f64, Error> {
    let medium = open_path(path, &OpenOptions::default()).map_err(Error::Medium)?;
    let AnyMedium::Mapped(medium) = medium else {
        return Err(Error::Failed("/dev/shm is not a tmpfs".into()));
    };
    let began = Instant::now();
    let opened = table.open(medium);
    let opened = opened.map_err(|error| Error::Failed(error.to_string()))?;
    let mut worker = opened.worker().map_err(refused)?;
    let found = opened.get(&mut worker, odd(1)).map_err(refused)?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    match found {
        Some(1) => Ok(ms),
        other => Err(Error::Failed(format!(
            "{table}: after reopening, key 1 has {other:?}"
        ))),
    }
}
