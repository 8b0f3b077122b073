//! Frees and flushes the extents of large values and groups (`session::large`).

use farbank_pm::fault;
use farbank_pm::{Medium, Off, PersistCtx};

use crate::engine::Engine;
use crate::format::record::ValueExtent;
use crate::format::segment::FIRST;
use crate::segments::records::FoundRecord;

impl<M: Medium> Engine<M> {
    /// Frees the extents of a record that no reader can find any more (KV-LARGE-2).
    pub(crate) fn free_extents_of(&self, at: Off) {
        if let Some(header) = self.segments.header(at) {
            self.free_table(&self.segments.table_of(at, &header));
        }
    }

    /// Frees the extents of a replaced record, if it has any.
    #[inline]
    pub(crate) fn free_replaced(&self, old: Option<FoundRecord>) {
        if let Some(old) = old.filter(|old| old.header.is_some_and(|h| h.is_large())) {
            self.free_extents_of(old.at);
        }
    }

    /// Frees the extents of a table: they stay retired until the last reader has left.
    pub(crate) fn free_table(&self, table: &[u8]) {
        if table.is_empty() {
            return;
        }
        let epoch = self.epochs.retire();
        for extent in ValueExtent::decode_all(table) {
            // KV-LARGE-4
            let mut retired = self.segments.retired();
            if !self.segments.has_generation(&extent) {
                continue;
            }
            let info = self.info(extent.segment);
            if self.segments.empty_extent(info) {
                self.segments.drop_tombstones(info);
                retired.push_back((epoch, extent.segment));
            }
        }
    }
}

/// Flushes the extents of a table, `len` bytes in all. Their segments' heads were flushed when they were read.
pub(crate) fn flush_extents<M: Medium>(
    engine: &Engine<M>,
    ctx: &mut PersistCtx,
    table: &[u8],
    len: usize,
) {
    let mut left = len;
    let count = if fault!("kv.first_extent_flushed") {
        1
    } else {
        usize::MAX
    };
    for extent in ValueExtent::decode_all(table).take(count) {
        let len = left.min(engine.geometry().payload());
        left -= len;
        if extent.segment < engine.segments.count() {
            let base = engine.geometry().base(extent.segment);
            engine.medium().flush(ctx, base.plus(FIRST as u64), len);
        }
    }
}
