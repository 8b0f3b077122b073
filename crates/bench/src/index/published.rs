//! What the study of persistent hash indexes published (Hu et al., PVLDB 14(5), 2021), where an experiment finds the same quantity.
//!
//! All tolerances were set before a run was compared. The study ran 200 million operations on tables of 16 Mi slots at first;
//! bytes are told there for the whole run and here for an operation.

use farbank_index::registry::{Preset, Table};

use super::Options;
use crate::figure::Figure;

/// Operations of the study.
pub(super) const OPERATIONS: u64 = 200_000_000;
/// Slots of its tables at first.
pub(super) const SLOTS: u64 = 16_777_216;
/// Bytes of a key and its value.
pub(super) const PAIR_BYTES: f64 = 16.0;
/// How far from a modelled value of the study a near one may be, as a part of it.
pub(super) const NEAR: f64 = 0.3;
/// The same of a counted one, which depends on no machine.
pub(super) const COUNTED_NEAR: f64 = 0.05;

/// Values by table.
pub(super) type ByTable = [(Table, f64)];

/// The value of `table`, if there is one.
pub(super) fn of(values: &ByTable, table: Table) -> Option<f64> {
    let found = values.iter().find(|(of, _)| *of == table);
    found.map(|(_, value)| *value)
}

/// Share of a run that changes of the structure take, in percent (figure 9).
pub(super) const RESIZE_PERCENT: [(Table, f64); 4] = [
    (Table::Level, 24.8),
    (Table::Clht, 13.6),
    (Table::Cceh, 5.0),
    (Table::DashEh, 5.8),
];

/// How many times slower inserts from the other socket are (figure 14).
pub(super) const REMOTE_TIMES: [(Table, f64); 4] = [
    (Table::DashEh, 2.6),
    (Table::Cceh, 2.3),
    (Table::Level, 1.4),
    (Table::Clht, 1.4),
];

/// How many times as fast inserts are on six DIMMs as on one (figure 6).
pub(super) const DIMMS_INSERT_TIMES: [(Table, f64); 1] = [(Table::Level, 1.0)];
/// The same of positive searches.
pub(super) const DIMMS_SEARCH_TIMES: [(Table, f64); 1] = [(Table::Soft, 1.0)];

/// Largest load factor of a growing table, in percent (figure 10).
pub(super) const LOAD_FACTOR_PERCENT: [(Table, f64); 6] = [
    (Table::Cceh, 44.0),
    (Table::DashEh, 86.0),
    (Table::Level, 79.0),
    (Table::Clevel, 83.0),
    (Table::Clht, 83.0),
    (Table::Soft, 100.0),
];

/// Largest utilisation, in percent (table 2); of SOFT that of its far memory alone, "close to 100 %".
pub(super) const UTILISATION_PERCENT: [(Table, f64); 6] = [
    (Table::Cceh, 44.0),
    (Table::DashEh, 74.6),
    (Table::Level, 52.6),
    (Table::Clevel, 55.3),
    (Table::Clht, 62.2),
    (Table::Soft, 100.0),
];

/// Utilisation with DRAM, in percent (table 2).
pub(super) const UTILISATION_WITH_DRAM_PERCENT: [(Table, f64); 1] = [(Table::Soft, 22.0)];

/// Changes of the structure in an insert-only run (section 4.6).
pub(super) const RESIZES: [(Table, f64); 2] = [(Table::Level, 5.0), (Table::Clht, 2.0)];

/// Where bytes written by inserts go, as the study divides them (section 4.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Finding and freeing space.
    Allocator,
    /// Moving what is there.
    Resize,
    /// The keys and values: 16 bytes an insert, and nothing of what is written around them.
    KeyValue,
    /// Locks that are stored in far memory.
    Lock,
    /// The rest: what lines have besides keys and values, bitmaps, fingerprints, displaced pairs.
    Others,
}

impl Part {
    pub(super) const ALL: [Part; 5] = [
        Part::Allocator,
        Part::Resize,
        Part::KeyValue,
        Part::Lock,
        Part::Others,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Part::Allocator => "allocator",
            Part::Resize => "resize",
            Part::KeyValue => "key and value",
            Part::Lock => "locks",
            Part::Others => "others",
        }
    }
}

/// A part of a table's bytes: gigabytes of the run, and percent of all.
type Bytes = (Table, Part, f64, Option<f64>);

const BYTES: [Bytes; 9] = [
    (Table::DashEh, Part::Allocator, 8.5, Some(18.0)),
    (Table::Cceh, Part::Allocator, 3.9, Some(13.0)),
    (Table::Clht, Part::Allocator, 4.4, Some(11.0)),
    (Table::Soft, Part::Allocator, 3.5, Some(28.0)),
    (Table::Level, Part::Allocator, 0.041, None),
    (Table::Level, Part::Resize, 6.8, Some(16.0)),
    (Table::Clht, Part::Resize, 4.6, Some(11.0)),
    (Table::Cceh, Part::Resize, 3.0, Some(9.0)),
    (Table::DashEh, Part::Resize, 2.2, Some(5.0)),
];

/// Percent of Clevel's bytes that are neither of the other parts.
const CLEVEL_OTHERS_PERCENT: f64 = 92.0;

/// Bytes an insert of `table` writes for `part`.
pub(super) fn bytes(table: Table, part: Part) -> Option<f64> {
    let gigabytes = BYTES.iter().find(|row| (row.0, row.1) == (table, part));
    gigabytes.map(|row| row.2 * 1e9 / OPERATIONS as f64)
}

/// Percent of what an insert of `table` writes that is for `part`.
pub(super) fn percent(table: Table, part: Part) -> Option<f64> {
    if (table, part) == (Table::Clevel, Part::Others) {
        return Some(CLEVEL_OTHERS_PERCENT);
    }
    let row = BYTES.iter().find(|row| (row.0, row.1) == (table, part));
    row.and_then(|row| row.3)
}

/// Means over several tables: of which, of which part, bytes an insert if they were told, and percent. Key and value are a
/// quarter of the others, by the study's words.
pub(super) const MEANS: [(&[Table], Part, Option<f64>, f64); 3] = [
    (
        &[Table::Cceh, Table::DashEh, Table::Clht],
        Part::Lock,
        Some(12.5e9 / OPERATIONS as f64),
        32.0,
    ),
    (
        &[Table::Cceh, Table::DashEh, Table::Clht, Table::Soft],
        Part::KeyValue,
        None,
        10.0,
    ),
    (
        &[Table::Cceh, Table::DashEh, Table::Clht, Table::Soft],
        Part::Others,
        None,
        40.0,
    ),
];

/// Published orders of bytes an insert writes, from many to few; `None`: of all parts together.
pub(super) const BYTES_ORDERS: [(Option<Part>, &str); 5] = [
    (None, "clevel > dash-eh > clht ~ level > cceh > soft"),
    (
        Some(Part::Allocator),
        "dash-eh > clht > cceh > soft > level",
    ),
    (Some(Part::Resize), "level ~ clevel > clht > cceh > dash-eh"),
    (Some(Part::Lock), "dash-eh > cceh > clht"),
    (
        Some(Part::Others),
        "clevel > level > clht > dash-eh > cceh > soft",
    ),
];

/// Scores a figure, if there is a value and the tables are arranged as the study's.
pub(super) fn beside(
    options: &Options,
    figure: Figure,
    value: impl Into<Option<f64>>,
    near: f64,
) -> Figure {
    match (options.preset, value.into()) {
        (Preset::Published, Some(value)) => figure.compared(value, near),
        _ => figure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_an_insert_are_the_gigabytes_of_the_run() {
        assert_eq!(bytes(Table::DashEh, Part::Allocator), Some(42.5));
        assert_eq!(percent(Table::DashEh, Part::Allocator), Some(18.0));
        assert_eq!(percent(Table::Clevel, Part::Others), Some(92.0));
        assert_eq!(bytes(Table::DashLh, Part::Resize), None);
        let (_, _, locks, _) = MEANS[0];
        assert_eq!(locks, Some(62.5));
    }
}
