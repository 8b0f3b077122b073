//! Treatment of bytes that the device cannot read.
//!
//! The medium returns zeros in their place ([`Medium::unreadable`]). From these zeros recovery must conclude nothing:
//! neither that the bytes were never written, nor that a write was torn.

use farbank_pm::{Medium, Off};

use crate::engine::Engine;
use crate::format::record::{RecordHeader, ValueExtent};
use crate::format::segment::{FIRST, SegmentState};

/// Whether the device cannot read all of the `len` bytes at `at`. With `header`, the header of a whole record at `at`,
/// the extents of the record are included.
pub(crate) fn is_any<M: Medium>(
    engine: &Engine<M>,
    (at, len): (Off, usize),
    header: Option<&RecordHeader>,
) -> bool {
    let medium = engine.medium();
    if medium.unreadable(at, len).is_some() {
        return true;
    }
    let Some(header) = header.filter(|header| header.large && !header.moved) else {
        return false;
    };
    let payload = engine.geometry().payload();
    ValueExtent::decode_all(&engine.segments.table_of(at, header)).any(|extent| {
        let begin = || engine.geometry().base(extent.segment).plus(FIRST as u64);
        engine.segments.has_generation(&extent) && medium.unreadable(begin(), payload).is_some()
    })
}

/// Returns a description of what is wrong with `len` bytes at `at`: that the device cannot read them, or `otherwise`.
pub(crate) fn describe<M: Medium>(
    engine: &Engine<M>,
    (at, len): (Off, usize),
    otherwise: &str,
) -> String {
    match engine.medium().unreadable(at, len) {
        Some(first) => format!("cannot be read at {:#x}", first.0),
        None => otherwise.to_owned(),
    }
}

/// Removes those of the free `segments` that the device cannot read completely, and quarantines them. Writes to them
/// could be lost or fail, and the next open would scan their earlier content again. Returns a description of each.
pub(crate) fn quarantine_unreadable<M: Medium>(
    engine: &Engine<M>,
    segments: &mut Vec<u32>,
) -> Vec<String> {
    let mut kept_out = Vec::new();
    segments.retain(|segment| {
        let base = engine.geometry().base(*segment);
        let first = engine
            .medium()
            .unreadable(base, engine.geometry().segment_bytes());
        let Some(first) = first else {
            return true;
        };
        engine.info(*segment).set_state(SegmentState::Quarantined);
        kept_out.push(format!(
            "segment {segment} at {:#x}: the device cannot read {:#x}; the segment is not used",
            base.0, first.0
        ));
        false
    });
    kept_out
}
