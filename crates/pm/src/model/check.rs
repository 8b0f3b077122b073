//! A comparison of the model with published measurements.

use super::memory::MachineConfig;
use super::micro::{
    AccessKind, AccessOrder, MixedWorker, inserts, latency_ns, run_mixed,
    write_amplification_of_region,
};
use super::published::{
    self, CURVE_BOUND, FigureUse, LATENCIES, LINK, MIXED, NUMA_BOUND, NUMA_LOSSES, XPBUFFER_CURVE,
};
use super::step::{Step, StepKind};

/// A published figure and the model's figure for it.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelRow {
    /// Group of figures.
    pub group: &'static str,
    /// The measurement.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Published figure.
    pub published: f64,
    /// The model's figure.
    pub modelled: f64,
    /// Use of the published figure.
    pub how: FigureUse,
    /// The publication.
    pub source: &'static str,
}

impl ModelRow {
    /// Returns the relative error of the model; positive if its figure is too high.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.modelled / self.published - 1.0
    }

    /// Returns whether the error is within the row's bound. A row without a bound always holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        match self.how {
            FigureUse::HeldOut(Some(bound)) => self.error().abs() <= bound,
            _ => true,
        }
    }
}

/// All rows of a comparison.
#[derive(Clone, Debug)]
pub struct ModelReport {
    /// The rows, in the order they are printed.
    pub rows: Vec<ModelRow>,
    /// Root mean square of the errors of the XPBuffer curve.
    pub curve_rms: f64,
    /// Steps that were simulated for the bandwidths.
    pub steps: u64,
}

impl ModelReport {
    /// Returns the rows that exceed their bounds.
    pub fn broken(&self) -> impl Iterator<Item = &ModelRow> {
        self.rows.iter().filter(|row| !row.holds())
    }

    /// Returns whether all rows and the XPBuffer curve are within their bounds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.curve_rms <= CURVE_BOUND && self.broken().next().is_none()
    }

    /// Returns a hash of all modelled figures.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for row in &self.rows {
            hash.update(row.name.as_bytes());
            hash.update(&row.modelled.to_bits().to_le_bytes());
        }
        hash.digest()
    }
}

/// Runs the groups that `only` selects, over `lines` lines each. `tell` is called with the name of each group or row
/// before it runs, and skips the group or ends the bandwidth rows if it returns `false`.
#[must_use]
pub fn run(
    seed: u64,
    lines: u64,
    only: impl Fn(&str) -> bool,
    tell: &mut dyn FnMut(&str) -> bool,
) -> ModelReport {
    let mut check = ModelReport {
        rows: Vec::new(),
        curve_rms: 0.0,
        steps: 0,
    };
    let groups: [(&str, RowGroup); 6] = [
        ("bandwidth", bandwidths),
        ("xpbuffer", curve),
        ("latency", latencies),
        ("mixed", mixed),
        ("link", link),
        ("numa loss", losses),
    ];
    for (group, of) in groups {
        if only(group) && tell(group) {
            of(&mut check, seed, lines, tell);
        }
    }
    check
}

type RowGroup = fn(&mut ModelReport, u64, u64, &mut dyn FnMut(&str) -> bool);

fn bandwidths(check: &mut ModelReport, seed: u64, lines: u64, tell: &mut dyn FnMut(&str) -> bool) {
    for row in published::bandwidths() {
        let micro = row.micro;
        let what = match micro.access {
            AccessKind::Load => "load",
            AccessKind::Around => "ntstore",
            AccessKind::Flush => "store+clwb",
            AccessKind::Store => "store",
        };
        let order = match micro.order {
            AccessOrder::Sequential => "sequential",
            AccessOrder::Random => "random",
        };
        let (dimms, bytes, threads) = (micro.dimms, micro.bytes, micro.threads);
        let name = format!("{dimms} DIMM {order} {what} {bytes} B, {threads} threads");
        if !tell(&name) {
            return;
        }
        let (modelled, outcome) = micro.run(lines, seed);
        check.steps += outcome.steps;
        check.rows.push(ModelRow {
            group: "bandwidth",
            name,
            unit: "GB/s",
            published: row.gb_s,
            modelled,
            how: row.how,
            source: row.source,
        });
    }
}

fn curve(check: &mut ModelReport, seed: u64, _: u64, _: &mut dyn FnMut(&str) -> bool) {
    let mut sum = 0.0;
    for (bytes, published) in XPBUFFER_CURVE {
        let modelled = write_amplification_of_region(bytes, seed);
        sum += (modelled - published) * (modelled - published);
        check.rows.push(ModelRow {
            group: "xpbuffer",
            name: format!("region of {bytes} B, halves in turn"),
            unit: "writes",
            published,
            modelled,
            how: FigureUse::Calibrated,
            source: "graphs/09",
        });
    }
    check.curve_rms = (sum / XPBUFFER_CURVE.len() as f64).sqrt();
}

fn latencies(check: &mut ModelReport, seed: u64, _: u64, _: &mut dyn FnMut(&str) -> bool) {
    let step = Step::new;
    let runs: [(&[Step], &[Step]); 4] = [
        (&[], &[step(StepKind::Load, 64)]),
        (&[step(StepKind::Load, 64)], &[step(StepKind::Load, 65)]),
        (&[], &[step(StepKind::Around, 64), step(StepKind::Fence, 0)]),
        (
            &[step(StepKind::Load, 64)],
            &[
                step(StepKind::Store, 64),
                step(StepKind::Flush, 64),
                step(StepKind::Fence, 0),
            ],
        ),
    ];
    for ((name, published), (before, steps)) in LATENCIES.into_iter().zip(runs) {
        check.rows.push(ModelRow {
            group: "latency",
            name: name.into(),
            unit: "ns",
            published,
            modelled: latency_ns(seed, before, steps),
            // The constants are these figures, so this checks the equations, not the values.
            how: FigureUse::Calibrated,
            source: "graphs/02",
        });
    }
}

fn mixed(check: &mut ModelReport, seed: u64, lines: u64, _: &mut dyn FnMut(&str) -> bool) {
    for (loads, writes, published) in MIXED {
        let worker = |loads| MixedWorker { of: 1, loads };
        let mut mixes = vec![worker(1); loads as usize];
        mixes.resize((loads + writes) as usize, worker(0));
        let config = MachineConfig {
            cache_bytes: 1 << 20,
            places: false,
            seed,
            ..MachineConfig::study(6)
        };
        check.rows.push(ModelRow {
            group: "mixed",
            name: format!("6 DIMM random 64 B, {loads} threads load, {writes} ntstore"),
            unit: "GB/s",
            published,
            modelled: run_mixed(config, &mixes, AccessOrder::Random, 64, lines),
            how: FigureUse::HeldOut(None),
            source: "graphs/06",
        });
    }
}

fn link(check: &mut ModelReport, seed: u64, lines: u64, _: &mut dyn FnMut(&str) -> bool) {
    for (loads, writes, local, remote, how) in LINK {
        let mix = MixedWorker {
            of: loads + writes,
            loads,
        };
        for (where_, remote_from, published, how) in [
            ("local", usize::MAX, local, FigureUse::HeldOut(None)),
            ("remote", 0, remote, how),
        ] {
            let config = MachineConfig {
                cache_bytes: 1 << 20,
                places: false,
                remote_from,
                seed,
                ..MachineConfig::study(6)
            };
            check.rows.push(ModelRow {
                group: "link",
                name: format!("{where_}, {loads} loads to {writes} ntstores, 4 threads"),
                unit: "GB/s",
                published,
                modelled: run_mixed(config, &[mix; 4], AccessOrder::Sequential, 256, lines),
                how,
                source: "graphs/17",
            });
        }
    }
}

fn losses(check: &mut ModelReport, seed: u64, _: u64, _: &mut dyn FnMut(&str) -> bool) {
    const WORKERS: usize = 32;
    for profile in NUMA_LOSSES {
        let local = inserts(&profile, WORKERS, false, seed);
        let remote = inserts(&profile, WORKERS, true, seed);
        check.rows.push(ModelRow {
            group: "numa loss",
            name: format!(
                "{} insert, {WORKERS} threads, local to remote",
                profile.name
            ),
            unit: "times",
            published: profile.loss,
            modelled: local / remote,
            how: FigureUse::HeldOut(Some(NUMA_BOUND)),
            source: "index study, figure 14",
        });
    }
}
