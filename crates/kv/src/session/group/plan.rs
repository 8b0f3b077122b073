//! Layout of a group's members: in the log, or in extents.

use farbank_pm::sync::Arc;
use farbank_pm::{Medium, Off};

use crate::engine::Engine;
use crate::format::record::{ALIGN, EXTENT_ENTRY, HEADER_MIN, RECORD_MIN, RecordHeader};
use crate::format::segment::FIRST;
use crate::session::KvSession;
use farbank_store::{Error, VALUE_BYTES_MAX};

/// Key of a group record. It aligns the members.
pub(super) const FILLER: [u8; 8] = [0; 8];
/// Bytes of a group record before its first member.
const HEAD_BYTES: usize = HEADER_MIN + FILLER.len();

const _: () = assert!(HEAD_BYTES.is_multiple_of(ALIGN));

/// For each member its buffer and its offset; and the extents, one for each buffer (empty: the log).
pub(super) type MemberPlaces = (Vec<(usize, Off)>, Vec<u32>);

/// Layout of a group's members.
pub(super) struct GroupLayout {
    pub(super) headers: Vec<RecordHeader>,
    /// Bytes of all members.
    pub(super) bytes: usize,
    /// Number of members in each extent. Empty if the group fits into the log.
    pub(super) runs: Vec<usize>,
}

impl GroupLayout {
    /// Returns the layout of members with these headers.
    pub(super) fn of<M: Medium>(
        engine: &Engine<M>,
        headers: Vec<RecordHeader>,
    ) -> Result<GroupLayout, Error> {
        let payload = engine.geometry().payload();
        let lens: Vec<usize> = headers
            .iter()
            .map(|h| engine.segments.record_len(h))
            .collect();
        for (header, len) in headers.iter().zip(&lens) {
            member_fits(header, *len, payload)?;
        }
        let bytes = lens.iter().sum();
        let mut plan = GroupLayout {
            headers,
            bytes,
            runs: Vec::new(),
        };
        if plan.record_len() > engine.geometry().inline_max() {
            let mut left = 0;
            for len in lens {
                if left < len {
                    plan.runs.push(0);
                    left = payload;
                }
                left -= len;
                *plan.runs.last_mut().expect("a run was begun") += 1;
            }
            let entries = (payload - RECORD_MIN) / EXTENT_ENTRY;
            let runs_max = entries.min(VALUE_BYTES_MAX / payload);
            if plan.runs.len() > runs_max {
                let bytes_max = runs_max * payload;
                return Err(Error::GroupTooLong { bytes, bytes_max });
            }
        }
        Ok(plan)
    }

    /// Returns the length of the group's record if it lies in the log.
    fn record_len(&self) -> usize {
        HEAD_BYTES + self.bytes
    }

    fn table_len(&self) -> usize {
        RECORD_MIN + self.runs.len() * EXTENT_ENTRY
    }

    /// Returns whether the log has room for the group's record, and the pool for its extents.
    pub(super) fn has_room<M: Medium>(&self, worker: &mut KvSession<M>, class: usize) -> bool {
        let engine = Arc::clone(&worker.engine);
        let keep = worker.keep_free(false);
        let len = if self.runs.is_empty() {
            self.record_len()
        } else {
            self.table_len()
        };
        worker.unpark();
        worker.fits(self.bytes)
            && engine
                .make_room(&mut worker.log, (class, len), keep, None)
                .is_ok()
            && engine.segments.free_count() > keep + self.runs.len() as u32
    }

    /// Returns each member's buffer and offset, and the extents. `None` if another session took the last free
    /// segment.
    pub(super) fn places<M: Medium>(
        &self,
        worker: &mut KvSession<M>,
        class: usize,
    ) -> Option<MemberPlaces> {
        let engine = Arc::clone(&worker.engine);
        let mut places = Vec::with_capacity(self.headers.len());
        if self.runs.is_empty() {
            let head = HEAD_BYTES as u64;
            let mut at = worker.log.next(class).plus(head);
            for header in &self.headers {
                places.push((0, at));
                at = at.plus(engine.segments.record_len(header) as u64);
            }
            return Some((places, Vec::new()));
        }
        let mut extents = Vec::with_capacity(self.runs.len());
        let mut headers = self.headers.iter();
        for (buffer, run) in self.runs.iter().enumerate() {
            let Some(segment) = engine.take_segment(engine.cleaner_reserve()) else {
                // The extents taken so far were not opened: they are still free.
                extents
                    .into_iter()
                    .for_each(|taken| engine.segments.give(taken));
                return None;
            };
            extents.push(segment);
            let mut at = engine.geometry().base(segment).plus(FIRST as u64);
            for header in headers.by_ref().take(*run) {
                places.push((buffer, at));
                at = at.plus(engine.segments.record_len(header) as u64);
            }
        }
        Some((places, extents))
    }
}

/// Returns an error if a member does not fit into one segment.
fn member_fits(header: &RecordHeader, len: usize, payload: usize) -> Result<(), Error> {
    let (key, value) = (header.key_len, header.value_len);
    let room = (payload / ALIGN * ALIGN).saturating_sub(header.len());
    match len <= payload {
        true => Ok(()),
        false if key > value => Err(Error::KeyTooLong {
            bytes: key,
            bytes_max: room.saturating_sub(value),
        }),
        false => Err(Error::ValueTooLong {
            bytes: value,
            bytes_max: room.saturating_sub(key),
        }),
    }
}
