//! Large values: a value whose record would take more than a quarter of a segment is stored in segments of its own,
//! *extents*. Its record holds a table of them.
//!
//! ```text
//!   record   ┌────────┬─────┬─ table: segment, crc, generation ─┬─ ...
//!            │ header │ key │  e0  │  e1  │  e2  │
//!            └────────┴─────┴──┼───┴──┼───┴──┼───
//!   extents                    ▼      ▼      ▼     each a segment; the last one partly filled
//! ```
//!
//! # Invariants
//! KV-LARGE-1  Extents are written before their record and drained with it. A record whose extents fail their checksums is
//!     torn, like a record whose body fails its checksum.
//! KV-LARGE-2  An extent belongs to one table. It is freed when a durable write has replaced the table's record, or when the
//!     record was never published. Relocating the record copies the table; the extents stay.
//! KV-LARGE-3  After a crash, extents that are in no table of an accepted record are free: nothing leaks.
//! KV-LARGE-4  An extent is freed only if its segment still has the generation in the table. FLUSHALL may have freed it
//!     before, and another session may have reused it. So a segment gets a new generation under the lock of
//!     [`Segments::retired`](crate::segments::Segments::retired), too.
//! KV-LARGE-5  A session that fills an extent stays pinned until its stores are visible. FLUSHALL frees extents at any time, and
//!     stores still in flight must not reach a segment that has been recycled. The simulated medium has no such stores.

use farbank_pm::Medium;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;

use crate::format::geometry::Geometry;
use crate::format::record::{ALIGN, EXTENT_ENTRY, RecordHeader, ValueExtent};
use crate::format::segment::{FIRST, SegmentPurpose, SegmentState};
use crate::session::{KvSession, NewRecord};
use farbank_store::Error;

impl<M: Medium> KvSession<M> {
    /// Writes a value that is too long for the log into extents. Returns the extent table, empty if the value stays
    /// in its record. The caller must hold no locks.
    pub(crate) fn place_large(
        &mut self,
        header: &mut RecordHeader,
        draft: &NewRecord<'_>,
    ) -> Result<Vec<u8>, Error> {
        let Some(value) = draft.value else {
            return Ok(Vec::new());
        };
        let geometry = *self.engine.geometry();
        header.large = false; // A previous attempt may have set it.
        if self.engine.segments.record_len(header) <= geometry.inline_max() {
            return Ok(Vec::new());
        }
        header.large = true;
        let table_bytes = value.bytes.len().div_ceil(geometry.payload()) * EXTENT_ENTRY;
        situation!("kv.value_of_one_extent", table_bytes == EXTENT_ENTRY);
        situation!("kv.value_of_several_extents", table_bytes > EXTENT_ENTRY);
        situation!(
            "kv.value_fills_extents",
            value.bytes.len().is_multiple_of(geometry.payload())
        );
        if self.engine.segments.record_len(header) > geometry.payload() {
            return Err(too_long(&geometry, header, table_bytes));
        }
        // Check the room for all extents before writing any, so that a refused write has no cost.
        let room = self.engine.space().room_of_large(value.bytes.len())
            + self.engine.segments.record_len(header);
        if !self.fits(room) {
            self.grow_or_refuse(room)?;
        }
        let mut table = Vec::with_capacity(table_bytes);
        for chunk in value.bytes.chunks(geometry.payload()) {
            if let Err(error) = self.write_extent(chunk, &mut table) {
                self.free_unwritten_extents(&table);
                return Err(error);
            }
        }
        Ok(table)
    }

    /// Writes `bytes` into a new extent and adds it to `table`.
    fn write_extent(&mut self, bytes: &[u8], table: &mut Vec<u8>) -> Result<(), Error> {
        let segment = self.take_extent()?;
        self.fill_extent(segment, bytes, SegmentState::Extent, table);
        Ok(())
    }

    /// Writes `bytes` into the free segment `segment` and adds it to `table`.
    pub(crate) fn fill_extent(
        &mut self,
        segment: u32,
        bytes: &[u8],
        state: SegmentState,
        table: &mut Vec<u8>,
    ) {
        self.pin(); // KV-LARGE-5
        self.batch.has_unshown_extents = true;
        self.accounts.unpaid += bytes.len() as u64;
        let engine = &*self.engine;
        let info = engine.info(segment);
        info.set_state(state);
        info.used.store((FIRST + bytes.len()) as u32, Relaxed);
        engine.space().count_extent(info);
        let written = bytes.len() as u64;
        engine.counters.user_bytes.fetch_add(written, Relaxed);
        let generation = info.generation.load(Relaxed);
        let (place, m) = (engine.geometry().place(segment), engine.medium());
        place.open(
            m,
            &mut self.ctx,
            generation,
            engine.segments.open_epoch(),
            SegmentPurpose::Extent,
        );
        m.copy_in(&mut self.ctx, place.at.plus(FIRST as u64), &[bytes]);
        ValueExtent {
            segment,
            crc: crc32c::crc32c(bytes),
            generation,
        }
        .encode(table);
    }

    /// Frees extents whose record will not be written.
    pub(crate) fn free_unwritten_extents(&mut self, table: &[u8]) {
        if !table.is_empty() {
            self.show_extents();
            self.engine.free_table(table);
        }
    }

    fn take_extent(&mut self) -> Result<u32, Error> {
        let engine = self.engine.clone();
        let keep = self.keep_free(false);
        loop {
            match engine.take_segment(keep) {
                Some(segment) => return Ok(segment),
                None => self.await_free(keep)?,
            }
        }
    }
}

/// Returns the error for a record that does not fit into a segment: its key or its extent table is too long.
fn too_long(geometry: &Geometry, header: &RecordHeader, table_bytes: usize) -> Error {
    let room = (geometry.payload() / ALIGN * ALIGN).saturating_sub(header.len());
    let (key, value) = (header.key_len, header.value_len);
    match key > table_bytes {
        true => Error::KeyTooLong {
            bytes: key,
            bytes_max: room.saturating_sub(table_bytes),
        },
        false => Error::ValueTooLong {
            bytes: value,
            bytes_max: room.saturating_sub(key) / EXTENT_ENTRY * geometry.payload(),
        },
    }
}
