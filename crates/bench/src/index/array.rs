//! The study's array: entries of 16 bytes written anywhere, alone or some of them side by side, on the model.
//!
//! It has no structure, so what it shows is what any table pays for: how much is gained by writing side by side, and
//! how little by leaving out flushes and fences.

use farbank_pm::LINE;
use farbank_pm::model::{Act, Config, Machine, Step};
use farbank_pm::sim::Rng;

use super::Options;
use crate::figure::{Figure, Report};

const ENTRY_BYTES: u64 = 16;
/// Bytes that are written side by side, and the study's rate of entries that are only stored. It does not say what else an
/// entry took there, so the rates are no targets; their order is.
const GROUPS: [(u64, f64); 3] = [(16, 31.0), (64, 91.0), (256, 141.0)];
/// Bytes of the array: many times the cache.
const ARRAY_BYTES: u64 = 256 << 20;
const CACHE_BYTES: u64 = 4 << 20;
const DIMMS: u32 = 6;

/// How entries are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Store,
    Flush,
    Fence,
    Both,
    Around,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Store, "stored"),
    (Way::Flush, "flushed"),
    (Way::Fence, "fenced"),
    (Way::Both, "flushed and fenced"),
    (Way::Around, "around the cache, fenced"),
];

/// The steps of one group at `at`.
fn steps(way: Way, at: u64, bytes: u64, steps: &mut Vec<Step>) {
    let line = |byte: u64| (byte / LINE as u64) as u32;
    let lines = line(at)..=line(at + bytes - 1);
    match way {
        Way::Around => steps.extend(lines.map(|line| Step::new(Act::Around, line))),
        _ => {
            let entries = (at..at + bytes).step_by(ENTRY_BYTES as usize);
            steps.extend(entries.map(|entry| Step::new(Act::Store, line(entry))));
            if matches!(way, Way::Flush | Way::Both) {
                steps.extend(lines.map(|line| Step::new(Act::Flush, line)));
            }
        }
    }
    if matches!(way, Way::Fence | Way::Both | Way::Around) {
        steps.push(Step::new(Act::Fence, 0));
    }
}

/// Millions of entries a second.
fn rate(options: &Options, way: Way, bytes: u64) -> (f64, String) {
    let mut machine = Machine::new(Config {
        seed: options.seed,
        places: false,
        cache_bytes: CACHE_BYTES,
        ..Config::small_dimms(DIMMS)
    });
    let mut rng = Rng::new(options.seed);
    let mut left = options.records * ENTRY_BYTES / bytes;
    let groups = left;
    machine.run(options.threads as usize, |_, played| {
        if left == 0 {
            return false;
        }
        left -= 1;
        let nanoseconds = u64::from(options.cpu_ns) * bytes / ENTRY_BYTES;
        played.push(Step::new(Act::Compute, nanoseconds as u32));
        steps(way, rng.below(ARRAY_BYTES / bytes) * bytes, bytes, played);
        true
    });
    let outcome = machine.outcome();
    let entries = (groups * bytes / ENTRY_BYTES) as f64;
    let seconds = outcome.elapsed_ps as f64 / 1e12;
    (entries / seconds / 1e6, machine.config().label())
}

/// Runs all of them.
pub(super) fn array(options: &Options) -> Report {
    let mut report = Report::default();
    for (bytes, published) in GROUPS {
        for (way, name) in WAYS {
            let (rate, label) = rate(options, way, bytes);
            let name = format!("{bytes} bytes side by side, {name}");
            let figure = Figure::modelled("array", name, rate).unit("M entries/s");
            report.figures.push(match way {
                Way::Store => figure.published(published, f64::INFINITY),
                _ => figure,
            });
            report.notes = vec![label];
        }
    }
    report
}
