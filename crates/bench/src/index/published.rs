//! Published values of the study of persistent hash indexes (Hu et al., PVLDB 14(5), 2021).
//!
//! All tolerances were set before a run was compared. The study ran 200 million operations on tables with 16 Mi
//! initial slots. It states bytes for the whole run; here they are per operation.

use farbank_index::registry::{TableKind, TablePreset};

use super::IndexOptions;
use crate::figure::Figure;

/// Number of operations of the study.
pub(super) const OPERATIONS: u64 = 200_000_000;
/// Initial number of slots of its tables.
pub(super) const SLOTS: u64 = 16_777_216;
/// Bytes of a key and its value.
pub(super) const PAIR_BYTES: f64 = 16.0;
/// Largest relative distance of a modelled value that counts as near.
pub(super) const NEAR: f64 = 0.3;
/// Largest relative distance of a counted value, which depends on no machine, that counts as near.
pub(super) const COUNTED_NEAR: f64 = 0.05;

/// Published values by table.
pub(super) type ByTable = [(TableKind, f64)];

/// Returns the value of `table`, if there is one.
pub(super) fn of(values: &ByTable, table: TableKind) -> Option<f64> {
    let found = values.iter().find(|(of, _)| *of == table);
    found.map(|(_, value)| *value)
}

/// Share of a run that structure changes take, in percent (figure 9).
pub(super) const RESIZE_PERCENT: [(TableKind, f64); 4] = [
    (TableKind::Level, 24.8),
    (TableKind::Clht, 13.6),
    (TableKind::Cceh, 5.0),
    (TableKind::DashEh, 5.8),
];

/// Slowdown of inserts from the other socket (figure 14).
pub(super) const REMOTE_TIMES: [(TableKind, f64); 4] = [
    (TableKind::DashEh, 2.6),
    (TableKind::Cceh, 2.3),
    (TableKind::Level, 1.4),
    (TableKind::Clht, 1.4),
];

/// Speedup of inserts on six DIMMs over one (figure 6).
pub(super) const DIMMS_INSERT_TIMES: [(TableKind, f64); 1] = [(TableKind::Level, 1.0)];
/// Speedup of positive searches on six DIMMs over one (figure 6).
pub(super) const DIMMS_SEARCH_TIMES: [(TableKind, f64); 1] = [(TableKind::Soft, 1.0)];

/// Largest load factor of a growing table, in percent (figure 10).
pub(super) const LOAD_FACTOR_PERCENT: [(TableKind, f64); 6] = [
    (TableKind::Cceh, 44.0),
    (TableKind::DashEh, 86.0),
    (TableKind::Level, 79.0),
    (TableKind::Clevel, 83.0),
    (TableKind::Clht, 83.0),
    (TableKind::Soft, 100.0),
];

/// Largest utilisation, in percent (table 2). For SOFT it is that of far memory alone, "close to 100 %".
pub(super) const UTILISATION_PERCENT: [(TableKind, f64); 6] = [
    (TableKind::Cceh, 44.0),
    (TableKind::DashEh, 74.6),
    (TableKind::Level, 52.6),
    (TableKind::Clevel, 55.3),
    (TableKind::Clht, 62.2),
    (TableKind::Soft, 100.0),
];

/// Utilisation including DRAM, in percent (table 2).
pub(super) const UTILISATION_WITH_DRAM_PERCENT: [(TableKind, f64); 1] = [(TableKind::Soft, 22.0)];

/// Number of structure changes in an insert-only run (section 4.6).
pub(super) const RESIZES: [(TableKind, f64); 2] = [(TableKind::Level, 5.0), (TableKind::Clht, 2.0)];

/// Purpose of bytes written by inserts, as the study divides them (section 4.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BytesPart {
    /// Finding and freeing space.
    Allocator,
    /// Moving existing entries.
    Resize,
    /// Keys and values: 16 bytes per insert, without the bytes written around them.
    KeyValue,
    /// Locks that are stored in far memory.
    Lock,
    /// All other bytes: other bytes of written lines, bitmaps, fingerprints, displaced pairs.
    Others,
}

impl BytesPart {
    pub(super) const ALL: [BytesPart; 5] = [
        BytesPart::Allocator,
        BytesPart::Resize,
        BytesPart::KeyValue,
        BytesPart::Lock,
        BytesPart::Others,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            BytesPart::Allocator => "allocator",
            BytesPart::Resize => "resize",
            BytesPart::KeyValue => "key and value",
            BytesPart::Lock => "locks",
            BytesPart::Others => "others",
        }
    }
}

/// Bytes of a table for one purpose: gigabytes of the run, and percent of all bytes.
type PublishedBytes = (TableKind, BytesPart, f64, Option<f64>);

const BYTES: [PublishedBytes; 9] = [
    (TableKind::DashEh, BytesPart::Allocator, 8.5, Some(18.0)),
    (TableKind::Cceh, BytesPart::Allocator, 3.9, Some(13.0)),
    (TableKind::Clht, BytesPart::Allocator, 4.4, Some(11.0)),
    (TableKind::Soft, BytesPart::Allocator, 3.5, Some(28.0)),
    (TableKind::Level, BytesPart::Allocator, 0.041, None),
    (TableKind::Level, BytesPart::Resize, 6.8, Some(16.0)),
    (TableKind::Clht, BytesPart::Resize, 4.6, Some(11.0)),
    (TableKind::Cceh, BytesPart::Resize, 3.0, Some(9.0)),
    (TableKind::DashEh, BytesPart::Resize, 2.2, Some(5.0)),
];

/// Percentage of Clevel's bytes that belong to `Others`.
const CLEVEL_OTHERS_PERCENT: f64 = 92.0;

/// Returns the bytes that an insert of `table` writes for `part`.
pub(super) fn bytes(table: TableKind, part: BytesPart) -> Option<f64> {
    let gigabytes = BYTES.iter().find(|row| (row.0, row.1) == (table, part));
    gigabytes.map(|row| row.2 * 1e9 / OPERATIONS as f64)
}

/// Returns the percentage of an insert's bytes that `table` writes for `part`.
pub(super) fn percent(table: TableKind, part: BytesPart) -> Option<f64> {
    if (table, part) == (TableKind::Clevel, BytesPart::Others) {
        return Some(CLEVEL_OTHERS_PERCENT);
    }
    let row = BYTES.iter().find(|row| (row.0, row.1) == (table, part));
    row.and_then(|row| row.3)
}

/// Means over several tables: the tables, the part, bytes per insert if published, and percent. According to the
/// study, keys and values are a quarter of `Others`.
pub(super) const MEANS: [(&[TableKind], BytesPart, Option<f64>, f64); 3] = [
    (
        &[TableKind::Cceh, TableKind::DashEh, TableKind::Clht],
        BytesPart::Lock,
        Some(12.5e9 / OPERATIONS as f64),
        32.0,
    ),
    (
        &[
            TableKind::Cceh,
            TableKind::DashEh,
            TableKind::Clht,
            TableKind::Soft,
        ],
        BytesPart::KeyValue,
        None,
        10.0,
    ),
    (
        &[
            TableKind::Cceh,
            TableKind::DashEh,
            TableKind::Clht,
            TableKind::Soft,
        ],
        BytesPart::Others,
        None,
        40.0,
    ),
];

/// Published rankings by bytes that an insert writes, from most to fewest. `None` stands for all parts together.
pub(super) const BYTES_ORDERS: [(Option<BytesPart>, &str); 5] = [
    (None, "clevel > dash-eh > clht ~ level > cceh > soft"),
    (
        Some(BytesPart::Allocator),
        "dash-eh > clht > cceh > soft > level",
    ),
    (
        Some(BytesPart::Resize),
        "level ~ clevel > clht > cceh > dash-eh",
    ),
    (Some(BytesPart::Lock), "dash-eh > cceh > clht"),
    (
        Some(BytesPart::Others),
        "clevel > level > clht > dash-eh > cceh > soft",
    ),
];

/// Scores a figure if there is a published value and the tables use the study's configuration.
pub(super) fn compare_with_study(
    options: &IndexOptions,
    figure: Figure,
    value: impl Into<Option<f64>>,
    near: f64,
) -> Figure {
    match (options.preset, value.into()) {
        (TablePreset::Published, Some(value)) => figure.compared(value, near),
        _ => figure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_an_insert_are_the_gigabytes_of_the_run() {
        assert_eq!(bytes(TableKind::DashEh, BytesPart::Allocator), Some(42.5));
        assert_eq!(percent(TableKind::DashEh, BytesPart::Allocator), Some(18.0));
        assert_eq!(percent(TableKind::Clevel, BytesPart::Others), Some(92.0));
        assert_eq!(bytes(TableKind::DashLh, BytesPart::Resize), None);
        let (_, _, locks, _) = MEANS[0];
        assert_eq!(locks, Some(62.5));
    }
}
