//! Bytes that tables write, divided by purpose like in the study.
//!
//! ```text
//!   lines written, 64 bytes each
//!   ├ by accesses of the allocator ──────────────▶ allocator
//!   ├ by accesses that move existing entries ────▶ resize
//!   ├ because a lock was stored in them last ────▶ locks
//!   └ all others ─┬ 16 bytes per insert ─────────▶ key and value
//!                 └ all other bytes ─────────────▶ others
//! ```
//!
//! The study counts a key and its value as 16 bytes. The other bytes of the line flushed with them count as others. A
//! line that is stored to after its flush is dirty again and is written once more when it leaves the cache. So the
//! published locks, which share lines with the entries they guard, cost one more line.

use farbank_index::registry::TableKind;
use farbank_pm::model::{Category, MachineOutcome};

use super::IndexOptions;
use super::model::{ALL_DIMMS, PhasedRun, run};
use super::published::{
    BYTES_ORDERS, BytesPart, MEANS, NEAR, PAIR_BYTES, bytes, compare_with_study, percent,
};
use super::rankings::score_pairs;
use crate::figure::{Error, Figure, ProgressFn, Report};

/// Bytes of an XPLine.
const XPLINE_BYTES: f64 = 256.0;
/// Bytes of a line.
const LINE_BYTES: f64 = 64.0;

/// Returns bytes per operation.
fn each(outcome: &MachineOutcome, count: u64, bytes: f64) -> f64 {
    count as f64 * bytes / outcome.operations.max(1) as f64
}

/// Returns the bytes that an insert writes, by part.
fn parts(outcome: &MachineOutcome) -> InsertBytes {
    let lines =
        |category: Category| each(outcome, outcome.counts[category].lines_written, LINE_BYTES);
    let rest = lines(Category::KeyValue) + lines(Category::Other);
    BytesPart::ALL.map(|part| {
        let bytes = match part {
            BytesPart::Allocator => lines(Category::Allocator),
            BytesPart::Resize => lines(Category::Resize),
            BytesPart::Lock => lines(Category::Lock),
            BytesPart::KeyValue => PAIR_BYTES.min(rest),
            BytesPart::Others => (rest - PAIR_BYTES).max(0.0),
        };
        (part, bytes)
    })
}

/// Bytes that an insert writes, by part, in the order of [`BytesPart::ALL`].
type InsertBytes = [(BytesPart, f64); 5];
/// Tables, with the bytes that an insert of each writes.
pub(super) type Parts = Vec<(TableKind, InsertBytes)>;

/// Measures the bytes written and read per operation of a table, by purpose.
pub(super) fn table(
    options: &IndexOptions,
    table: TableKind,
    found: &mut Parts,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let PhasedRun { phases, scale } = run(options, table, watch, ALL_DIMMS, usize::MAX)?;
    report.notes.push(format!("{table}: {}", scale.text()));
    for (what, outcome) in &phases {
        let name = |of: &str| format!("{what}: {of}");
        let modelled = |of: &str, value: f64, unit| {
            let figure = Figure::modelled(table.name(), name(of), value).unit(unit);
            figure.caveat(scale.caveat())
        };
        let total = outcome.total();
        let written = each(outcome, total.lines_written, LINE_BYTES);
        report
            .figures
            .push(modelled("lines written", written, "B an operation"));
        if *what == "insert" {
            let parts = parts(outcome);
            for (part, value) in parts {
                let figure = modelled(part.name(), value, "B an operation");
                let figure = compare_with_study(options, figure, bytes(table, part), NEAR);
                let share = 100.0 * value / written.max(f64::MIN_POSITIVE);
                let share = modelled(&format!("{}, share", part.name()), share, "%");
                let share = compare_with_study(options, share, percent(table, part), NEAR);
                report.figures.extend([figure, share]);
            }
            found.push((table, parts));
        }
        let media = [
            ("media written", total.media_writes),
            ("media read", total.media_reads + total.media_reads_to_write),
        ];
        for (of, count) in media {
            let value = each(outcome, count, XPLINE_BYTES);
            report.figures.push(modelled(of, value, "B an operation"));
        }
    }
    Ok(())
}

fn all(parts: &InsertBytes) -> f64 {
    parts.iter().map(|(_, bytes)| bytes).sum()
}

/// Reports means over tables and published rankings, for which all their tables were measured.
pub(super) fn together(options: &IndexOptions, found: &Parts, report: &mut Report) {
    for (tables, part, published_bytes, published_percent) in MEANS {
        let of = |table: &TableKind| found.iter().find(|(other, _)| other == table);
        let Some(these) = tables.iter().map(of).collect::<Option<Vec<_>>>() else {
            continue;
        };
        let bytes = |parts: &InsertBytes| parts[part as usize].1;
        let mean = |value: &dyn Fn(&InsertBytes) -> f64| {
            these.iter().map(|(_, parts)| value(parts)).sum::<f64>() / these.len() as f64
        };
        let names: Vec<&str> = tables.iter().map(|table| table.name()).collect();
        let name = |of: &str| format!("insert: {}{of}, mean of {}", part.name(), names.join(", "));
        let share = mean(&|parts| 100.0 * bytes(parts) / all(parts).max(f64::MIN_POSITIVE));
        let share = Figure::modelled("bytes", name(", share"), share).unit("%");
        let bytes = Figure::modelled("bytes", name(""), mean(&bytes)).unit("B an operation");
        report.figures.extend([
            compare_with_study(options, bytes, published_bytes, NEAR),
            compare_with_study(options, share, published_percent, NEAR),
        ]);
    }
    for (part, order) in BYTES_ORDERS {
        let bytes = |name: &str| {
            let (_, parts) = found.iter().find(|(table, _)| table.name() == name)?;
            Some(part.map_or_else(|| all(parts), |part| parts[part as usize].1))
        };
        let names = order.split([' ', '>', '~']).filter(|name| !name.is_empty());
        if !names.clone().all(|name| bytes(name).is_some()) {
            continue;
        }
        let judged = score_pairs(order, |name| bytes(name).unwrap_or(f64::NAN));
        let what = part.map_or("all bytes", BytesPart::name);
        let name = format!("insert: {what}, pairs of {} as published", judged.pairs);
        let figure = Figure::modelled("bytes", &*name, f64::from(judged.hold));
        report.figures.push(figure);
        let misses = judged.misses.join(", ");
        report.notes.push(format!("{name}: {order}; not: {misses}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_what_was_written_and_a_pair_is_16_bytes() {
        use farbank_pm::model::{Machine, MachineConfig, Step, StepKind};
        let mut machine = Machine::new(MachineConfig {
            cache_bytes: 11 * 64,
            ..MachineConfig::study(6)
        });
        // An insert flushes its line, then stores its lock in that line. Later inserts evict the line from the cache.
        let mut n = 0;
        machine.run(1, |_, steps| {
            let of = |category, act| Step {
                category,
                ..Step::new(act, 16 * n)
            };
            steps.extend([
                of(Category::Lock, StepKind::Store),
                of(Category::KeyValue, StepKind::Store),
                of(Category::KeyValue, StepKind::Flush),
                of(Category::Lock, StepKind::Store),
            ]);
            n += 1;
            n <= 1000
        });
        let parts = parts(&machine.outcome());
        let bytes = |part: BytesPart| parts[part as usize].1;
        assert_eq!(bytes(BytesPart::KeyValue), 16.0);
        assert_eq!(bytes(BytesPart::Others), 48.0);
        // All but the eleven lines that are still in the cache at the end.
        assert!((63.0..64.0).contains(&bytes(BytesPart::Lock)), "{parts:?}");
        assert_eq!(
            (bytes(BytesPart::Allocator), bytes(BytesPart::Resize)),
            (0.0, 0.0)
        );
    }
}
