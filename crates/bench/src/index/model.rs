//! Tables on the model of far memory: what they ask of it, by what it is for, and how DIMMs and sockets bear it.
//!
//! Virtual workers insert the keys into a new table, and then look them up; every access of theirs becomes steps of
//! [`Machine`]. The study's machine is modelled: 128 GB DIMMs, two sockets. An operation is executed whole, so locks
//! in DRAM are never waited for: what is modelled is the media, not contention.

use farbank_index::registry::Table;
use farbank_index::{Index, Worker};
use farbank_pm::model::{Category, Config, Machine, Outcome};

use super::Options;
use super::contender::{modelled_table, refused};
use super::keys::odd;
use crate::figure::{Error, Figure, Report, Watch, now_and_then};

/// DIMMs of the runs.
const DIMMS: [u32; 4] = [1, 2, 4, 6];
/// DIMMs of a socket.
pub(super) const ALL_DIMMS: u32 = 6;
/// Bytes of an XPLine.
const XPLINE_BYTES: f64 = 256.0;
/// Seconds of a window in which a DIMM's accesses are counted.
const WINDOW_S: f64 = 0.015;
/// Windows that are printed.
const WINDOWS: usize = 12;

/// What the workers do to the n-th key.
type Op = fn(&dyn Index, &mut Worker, u64) -> Result<(), Error>;

const PHASES: [(&str, Op); 3] = [
    ("insert", |index, worker, n| {
        index.insert(worker, odd(n), n).map(drop).map_err(refused)
    }),
    ("search", |index, worker, n| {
        index.get(worker, odd(n)).map(drop).map_err(refused)
    }),
    ("delete", |index, worker, n| {
        index.remove(worker, odd(n)).map(drop).map_err(refused)
    }),
];

/// Runs the phases on a new table, each on a machine of its own.
fn run(
    options: &Options,
    table: Table,
    watch: Watch<'_>,
    config: impl Fn() -> Config,
) -> Result<Vec<(&'static str, Outcome)>, Error> {
    let (made, trace) = modelled_table(options, table, options.threads)?;
    let workers: Result<Vec<Worker>, _> = (0..options.threads).map(|_| made.worker()).collect();
    let mut workers = workers.map_err(refused)?;
    trace.record(true);
    let mut outcomes = Vec::new();
    for (what, op) in PHASES {
        let mut machine = Machine::new(config());
        let (mut next, mut failed) = (0, None);
        machine.run(workers.len(), |worker, steps| {
            if next == options.records || failed.is_some() {
                return false;
            }
            let told = now_and_then(watch, what, next, options.records);
            trace.compute(options.cpu_ns);
            let done = told.and_then(|()| op(&*made, &mut workers[worker], next));
            failed = done.err();
            next += 1;
            trace.take(steps);
            true
        });
        match failed {
            Some(error) => return Err(error),
            None => outcomes.push((what, machine.outcome())),
        }
    }
    Ok(outcomes)
}

fn study(options: &Options, dimms: u32) -> Config {
    Config {
        seed: options.seed,
        places: false,
        ..Config::small_dimms(dimms)
    }
}

/// Bytes written and read an operation, by what they are for.
pub(super) fn bytes(
    options: &Options,
    table: Table,
    notes: &mut Vec<String>,
    watch: Watch<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let config = study(options, ALL_DIMMS);
    notes.push(format!("{table}: {}", config.label()));
    for (what, outcome) in run(options, table, watch, || study(options, ALL_DIMMS))? {
        let each = |count: u64, bytes: f64| count as f64 * bytes / outcome.operations as f64;
        for category in Category::ALL {
            let counts = outcome.counts[category];
            let name = |of: &str| format!("{what}, {}: {of}", category.name());
            let modelled = |of: &str, value: f64| {
                Figure::modelled(table.name(), name(of), value).unit("B an operation")
            };
            let read = counts.media_reads + counts.media_reads_to_write;
            let lines = each(counts.lines_written, 64.0);
            if lines + each(read, 1.0) > 0.0 {
                figures.extend([
                    modelled("lines written", lines),
                    modelled("media written", each(counts.media_writes, XPLINE_BYTES)),
                    modelled("media read", each(read, XPLINE_BYTES)),
                ]);
            }
        }
        let total = outcome.total();
        let lines = each(total.lines_written, 64.0);
        let figure = Figure::modelled(table.name(), format!("{what}: lines written"), lines);
        figures.push(figure.unit("B an operation"));
    }
    Ok(figures)
}

/// Throughput on one DIMM and more, and what each DIMM moves in 15 ms.
pub(super) fn dimms(
    options: &Options,
    table: Table,
    report: &mut Report,
    watch: Watch<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let mut rates: [Vec<(f64, f64)>; PHASES.len()] = Default::default();
    let mut on_all = Vec::new();
    for dimms in DIMMS {
        for ((what, outcome), rates) in run(options, table, watch, || study(options, dimms))?
            .into_iter()
            .zip(&mut rates)
        {
            let rate = outcome.throughput() / 1e6;
            rates.push((f64::from(dimms), rate));
            let name = format!("{what}, DIMMs: {dimms}");
            let figure = Figure::modelled(table.name(), &*name, rate);
            figures.push(figure.unit("M/s"));
            if dimms > 1 {
                let times = format!("{name}, times one");
                let figure = Figure::modelled(table.name(), times, rate / rates[0].1);
                figures.push(figure);
            }
            if dimms == ALL_DIMMS {
                on_all.push((what, outcome));
            }
        }
    }
    for ((what, _), rates) in PHASES.iter().zip(rates) {
        let title = format!("{what}, {} threads", options.threads);
        let axes = ("DIMMs", "million operations a second");
        report.charts.line(&title, axes, table.name(), rates);
    }
    for (what, outcome) in &on_all {
        windows(table, what, outcome, report);
    }
    Ok(figures)
}

/// What each DIMM moved, window by window: the first as notes.
fn windows(table: Table, what: &str, outcome: &Outcome, report: &mut Report) {
    let gigabytes = |count: u32| f64::from(count) * XPLINE_BYTES / WINDOW_S / 1e9;
    for (n, dimm) in outcome.dimms.iter().enumerate() {
        let shown: Vec<_> = dimm
            .series
            .iter()
            .take(WINDOWS)
            .map(|[reads, writes]| format!("{:.2}/{:.2}", gigabytes(*reads), gigabytes(*writes)))
            .collect();
        report.notes.push(format!(
            "{table}, {what}, DIMM {n}: GB/s read/written in each 15 ms: {}",
            shown.join(" ")
        ));
        if dimm.series.len() < 2 {
            continue; // no curve yet
        }
        for (way, moved) in ["read", "written"].into_iter().enumerate() {
            let title = format!("{table}, {what}: what each of {ALL_DIMMS} DIMMs has {moved}");
            let windows = (0..).zip(&dimm.series);
            let points = windows
                .map(|(window, counts)| {
                    let ms = f64::from(window) * WINDOW_S * 1e3;
                    (ms, gigabytes(counts[way]))
                })
                .collect();
            let axes = ("ms of the run, in windows of 15", "GB a second");
            report
                .charts
                .line(&title, axes, format!("DIMM {n}"), points);
        }
    }
}

/// Throughput of workers beside the memory, half of them, or none.
pub(super) fn numa(
    options: &Options,
    table: Table,
    watch: Watch<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let threads = options.threads as usize;
    let places = [("local", usize::MAX), ("half", threads / 2), ("remote", 0)];
    let mut local: Vec<f64> = Vec::new();
    for (place, remote_from) in places {
        let config = || Config {
            remote_from,
            ..study(options, ALL_DIMMS)
        };
        for (n, (what, outcome)) in (0..).zip(run(options, table, watch, config)?) {
            let rate = outcome.throughput() / 1e6;
            let name = format!("{what}, {place}");
            let figure = Figure::modelled(table.name(), &*name, rate);
            figures.push(figure.unit("M/s"));
            match remote_from {
                usize::MAX => local.push(rate),
                _ => {
                    let slower = format!("{name}, times slower than local");
                    let figure = Figure::modelled(table.name(), slower, local[n as usize] / rate);
                    figures.push(figure);
                }
            }
        }
    }
    Ok(figures)
}
