//! Bytes that the device cannot read, as recovery meets them.
//!
//! The medium shows zeros in their place ([`Medium::unreadable`]), and zeros prove nothing: neither that
//! bytes were never written, nor that a write was torn.

use farbank_pm::{Medium, Off};

use crate::engine::Engine;
use crate::record::{RecordHeader, ValueExtent};
use crate::segment::{FIRST, SegmentState};

/// Whether a part of `len` bytes at `at` cannot be read; or, of the record with this header there, which is
/// whole, a part of the extents it names.
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
    let payload = engine.geometry.payload();
    ValueExtent::decode_all(&engine.table_of(at, header)).any(|extent| {
        let begin = || engine.geometry.base(extent.segment).plus(FIRST as u64);
        engine.is_alive(&extent) && medium.unreadable(begin(), payload).is_some()
    })
}

/// What is wrong with `len` bytes at `at`: that they cannot be read, or what is said `otherwise`.
pub(crate) fn why<M: Medium>(
    engine: &Engine<M>,
    (at, len): (Off, usize),
    otherwise: &str,
) -> String {
    match engine.medium().unreadable(at, len) {
        Some(first) => format!("cannot be read at {:#x}", first.0),
        None => otherwise.to_owned(),
    }
}

/// Takes those of `segments`, which hold nothing, out that the device cannot read everywhere: what is
/// written there may be lost, or refused, and what was there is scanned again by the next open. Says which.
pub(crate) fn keep_out<M: Medium>(engine: &Engine<M>, segments: &mut Vec<u32>) -> Vec<String> {
    let mut kept_out = Vec::new();
    segments.retain(|segment| {
        let base = engine.geometry.base(*segment);
        let first = engine
            .medium()
            .unreadable(base, engine.geometry.segment_bytes);
        let Some(first) = first else {
            return true;
        };
        engine.info(*segment).set_state(SegmentState::Quarantined);
        kept_out.push(format!(
            "segment {segment} at {:#x}: it cannot be read at {:#x}, and is not used",
            base.0, first.0
        ));
        false
    });
    kept_out
}
