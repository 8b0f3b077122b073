//! The study's array on the model: entries of 16 bytes written at random places, alone or in adjacent groups.
//!
//! The array has no structure, so it shows what applies to any table: the gain of adjacent writes, and the small gain
//! of leaving out flushes and fences.

use farbank_pm::LINE;
use farbank_pm::model::{Machine, MachineConfig, Step, StepKind};
use farbank_pm::rng::Rng;

use super::IndexOptions;
use super::published::NEAR;
use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};
use crate::scale::DataScale;

const ENTRY_BYTES: u64 = 16;
/// Group size in bytes, and the study's rate for entries that are only stored, in millions per second. The study does
/// not say what other work an entry took.
const GROUPS: [(u64, f64); 3] = [(16, 31.0), (64, 91.0), (256, 141.0)];
/// Size of the array in bytes: many times the cache.
const ARRAY_BYTES: u64 = 256 << 20;
/// Size of the cache in bytes, if it is not given.
const CACHE_BYTES: u64 = 4 << 20;
/// Before the clock starts, this many times the lines of the cache are stored to. From then on every store evicts a
/// dirty line.
const WARM_CACHES: u64 = 3;
const DIMMS: u32 = 6;

/// How an entry is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteWay {
    Store,
    Flush,
    Fence,
    Both,
    Around,
}

const WAYS: [(WriteWay, &str); 5] = [
    (WriteWay::Store, "stored"),
    (WriteWay::Flush, "flushed"),
    (WriteWay::Fence, "fenced"),
    (WriteWay::Both, "flushed and fenced"),
    (WriteWay::Around, "around the cache, fenced"),
];

/// Appends the steps that write one group at `at`.
fn steps(way: WriteWay, at: u64, bytes: u64, steps: &mut Vec<Step>) {
    let line = |byte: u64| (byte / LINE as u64) as u32;
    let lines = line(at)..=line(at + bytes - 1);
    match way {
        WriteWay::Around => steps.extend(lines.map(|line| Step::new(StepKind::Around, line))),
        _ => {
            let entries = (at..at + bytes).step_by(ENTRY_BYTES as usize);
            steps.extend(entries.map(|entry| Step::new(StepKind::Store, line(entry))));
            if matches!(way, WriteWay::Flush | WriteWay::Both) {
                steps.extend(lines.map(|line| Step::new(StepKind::Flush, line)));
            }
        }
    }
    if matches!(way, WriteWay::Fence | WriteWay::Both | WriteWay::Around) {
        steps.push(Step::new(StepKind::Fence, 0));
    }
}

/// Returns the rate in millions of entries per second, measured once the cache is full of dirty lines.
fn rate(options: &IndexOptions, way: WriteWay, bytes: u64) -> (f64, String, DataScale) {
    let mut machine = Machine::new(MachineConfig {
        seed: options.seed,
        places: false,
        cache_bytes: options.cache_bytes.unwrap_or(CACHE_BYTES),
        ..MachineConfig::small_dimms(DIMMS)
    });
    let scale = DataScale {
        data_bytes: ARRAY_BYTES,
        cache_bytes: machine.config().cache_bytes,
    };
    let mut rng = Rng::new(options.seed);
    let mut run = |machine: &mut Machine, groups: u64| {
        let mut left = groups;
        machine.run(options.threads as usize, |_, played| {
            if left == 0 {
                return false;
            }
            left -= 1;
            let nanoseconds = u64::from(options.cpu_ns) * bytes / ENTRY_BYTES;
            played.push(Step::new(StepKind::Compute, nanoseconds as u32));
            steps(way, rng.below(ARRAY_BYTES / bytes) * bytes, bytes, played);
            true
        });
    };
    let lines = bytes.div_ceil(LINE as u64);
    run(
        &mut machine,
        WARM_CACHES * scale.cache_bytes / LINE as u64 / lines,
    );
    machine.restart();
    let groups = (options.records * ENTRY_BYTES / bytes).max(1);
    run(&mut machine, groups);
    let outcome = machine.outcome();
    let entries = (groups * bytes / ENTRY_BYTES) as f64;
    let seconds = outcome.elapsed_ps as f64 / 1e12;
    (entries / seconds / 1e6, machine.config().label(), scale)
}

/// Runs all group sizes with all ways of writing.
pub(super) fn array(options: &IndexOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let (mut report, mut done) = (Report::default(), 0);
    let all = (GROUPS.len() * WAYS.len()) as u64;
    for (bytes, published) in GROUPS {
        for (way, name) in WAYS {
            report_progress(watch, "array", done, all)?;
            done += 1;
            let (rate, label, scale) = rate(options, way, bytes);
            let name = format!("{bytes} bytes side by side, {name}");
            let figure = Figure::modelled("array", name, rate).unit("M entries/s");
            let figure = figure.caveat(scale.caveat());
            report.figures.push(match way {
                WriteWay::Store => figure.compared(published, NEAR),
                _ => figure,
            });
            report.notes = vec![label, scale.text()];
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that does not warm the cache would measure only the cache, as its stores never reach the media.
    #[test]
    fn plain_stores_are_as_fast_in_a_short_run_as_in_a_long_one() {
        let short = super::super::tests::options(super::super::IndexExperiment::Array);
        let short = IndexOptions {
            records: 50_000,
            threads: 32,
            ..short
        };
        let long = IndexOptions {
            records: 500_000,
            ..short.clone()
        };
        for (bytes, _) in GROUPS {
            let (short, ..) = rate(&short, WriteWay::Store, bytes);
            let (long, ..) = rate(&long, WriteWay::Store, bytes);
            assert!((short / long - 1.0).abs() < 0.1, "{bytes}: {short}, {long}");
        }
    }
}
