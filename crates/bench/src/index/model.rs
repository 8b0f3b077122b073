//! Tables on the model of far memory: their accesses by purpose, and the effect of DIMMs and sockets.
//!
//! Virtual workers insert the keys into a new table, look them up and delete them. Every access becomes steps of
//! [`Machine`]. The study's machine is modelled: 128 GB DIMMs, two sockets. An operation is executed as a whole. So
//! workers never wait for locks in DRAM, and lists in DRAM are not modelled: the model covers media, not contention.

use farbank_index::registry::TableKind;
use farbank_index::{Index, TableWorker};
use farbank_pm::model::{Machine, MachineOutcome};

use super::IndexOptions;
use super::contender::{modelled_table, refused};
use super::published::{
    self, DIMMS_INSERT_TIMES, DIMMS_SEARCH_TIMES, NEAR, REMOTE_TIMES, compare_with_study,
};
use super::scale::{machine, of_table, untouched};
use super::study::insert_keys;
use crate::figure::{Error, Figure, ProgressFn, Report, report_every};
use crate::scale::DataScale;

/// Numbers of DIMMs of the runs.
const DIMMS: [u32; 4] = [1, 2, 4, 6];
/// DIMMs of one socket.
pub(super) const ALL_DIMMS: u32 = 6;
/// Bytes of an XPLine.
const XPLINE_BYTES: f64 = 256.0;
/// Length in seconds of a window in which a DIMM's accesses are counted.
const WINDOW_S: f64 = 0.015;
/// Number of windows that are printed.
const WINDOWS: usize = 12;

/// Operation of a worker on a key.
type ModelOp = fn(&dyn Index, &mut TableWorker, u64) -> Result<(), Error>;

const PHASES: [(&str, ModelOp); 3] = [
    ("insert", |index, worker, key| {
        index.insert(worker, key, key).map(drop).map_err(refused)
    }),
    ("search", |index, worker, key| {
        index.get(worker, key).map(drop).map_err(refused)
    }),
    ("delete", |index, worker, key| {
        index.remove(worker, key).map(drop).map_err(refused)
    }),
];

/// Outcomes of the phases, and the size of the table after the inserts.
pub(super) struct PhasedRun {
    pub(super) phases: Vec<(&'static str, MachineOutcome)>,
    pub(super) scale: DataScale,
}

impl PhasedRun {
    /// Returns the reason why the figures of a phase do not measure far memory, if there is one.
    fn caveat(&self, options: &IndexOptions, outcome: &MachineOutcome) -> Option<String> {
        let untouched = untouched(&outcome.total(), options.threads, options.cpu_ns);
        untouched.or_else(|| self.scale.caveat())
    }
}

/// Runs the phases on a new table. Each phase has a machine of its own with `dimms` DIMMs, on which the workers from
/// `remote_from` on are on the other socket. Keys are drawn with replacement, as in the study, and are the same in
/// each phase.
pub(super) fn run(
    options: &IndexOptions,
    table: TableKind,
    watch: ProgressFn<'_>,
    dimms: u32,
    remote_from: usize,
) -> Result<PhasedRun, Error> {
    let (made, trace) = modelled_table(options, table, options.threads)?;
    let workers: Result<Vec<TableWorker>, _> =
        (0..options.threads).map(|_| made.worker()).collect();
    let mut workers = workers.map_err(refused)?;
    let config = || farbank_pm::model::MachineConfig {
        remote_from,
        ..machine(options, dimms)
    };
    let mut scale = DataScale {
        data_bytes: 0,
        cache_bytes: config().cache_bytes,
    };
    trace.record(true);
    let mut phases = Vec::new();
    for (what, op) in PHASES {
        let mut machine = Machine::new(config());
        let mut key = insert_keys(options, true);
        let (mut next, mut failed) = (0, None);
        machine.run(workers.len(), |worker, steps| {
            if next == options.records || failed.is_some() {
                return false;
            }
            let told = report_every(watch, what, next, options.records);
            trace.compute(options.cpu_ns);
            let done = told.and_then(|()| op(&*made, &mut workers[worker], key(next)));
            failed = done.err();
            next += 1;
            trace.take(steps);
            true
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if phases.is_empty() {
            scale = of_table(&*made, &trace, &mut workers[0], scale.cache_bytes)?;
        }
        phases.push((what, machine.outcome()));
    }
    Ok(PhasedRun { phases, scale })
}

/// Measures throughput by the number of DIMMs, and the transfers of each DIMM in windows of 15 ms.
pub(super) fn dimms(
    options: &IndexOptions,
    table: TableKind,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let mut rates: [Vec<(f64, f64)>; PHASES.len()] = Default::default();
    let mut on_all: Vec<(&str, MachineOutcome)> = Vec::new();
    for dimms in DIMMS {
        let run = run(options, table, watch, dimms, usize::MAX)?;
        if dimms == ALL_DIMMS {
            report.notes.push(format!("{table}: {}", run.scale.text()));
        }
        for ((what, outcome), rates) in run.phases.iter().zip(&mut rates) {
            let caveat = run.caveat(options, outcome);
            let rate = outcome.throughput() / 1e6;
            rates.push((f64::from(dimms), rate));
            let name = format!("{what}, DIMMs: {dimms}");
            let figure = Figure::modelled(table.name(), &*name, rate);
            figures.push(figure.unit("M/s").caveat(caveat.clone()));
            if dimms > 1 {
                let times = rate / rates[0].1;
                let published = match (*what, dimms) {
                    ("insert", ALL_DIMMS) => published::of(&DIMMS_INSERT_TIMES, table),
                    ("search", ALL_DIMMS) => published::of(&DIMMS_SEARCH_TIMES, table),
                    _ => None,
                };
                let name = format!("{name}, times one");
                let figure = Figure::modelled(table.name(), name, times);
                figures.push(compare_with_study(options, figure, published, NEAR).caveat(caveat));
            }
        }
        if dimms == ALL_DIMMS {
            on_all = run.phases;
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

/// Reports the transfers of each DIMM by window: as charts, and the first windows as notes.
fn windows(table: TableKind, what: &str, outcome: &MachineOutcome, report: &mut Report) {
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

/// Measures throughput with all, half, or none of the workers on the memory's socket.
pub(super) fn numa(
    options: &IndexOptions,
    table: TableKind,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    let threads = options.threads as usize;
    let places = [("local", usize::MAX), ("half", threads / 2), ("remote", 0)];
    let mut local: Vec<f64> = Vec::new();
    for (place, remote_from) in places {
        let run = run(options, table, watch, ALL_DIMMS, remote_from)?;
        if local.is_empty() {
            report.notes.push(format!("{table}: {}", run.scale.text()));
        }
        for (n, (what, outcome)) in run.phases.iter().enumerate() {
            let rate = outcome.throughput() / 1e6;
            let name = format!("{what}, {place}");
            let caveat = run.caveat(options, outcome);
            let figure = Figure::modelled(table.name(), &*name, rate);
            figures.push(figure.unit("M/s").caveat(caveat.clone()));
            if remote_from == usize::MAX {
                local.push(rate);
                continue;
            }
            let slower = format!("{name}, times slower than local");
            let figure = Figure::modelled(table.name(), slower, local[n] / rate).caveat(caveat);
            let published = match (*what, remote_from) {
                ("insert", 0) => published::of(&REMOTE_TIMES, table),
                _ => None,
            };
            figures.push(compare_with_study(options, figure, published, NEAR));
        }
    }
    Ok(figures)
}
