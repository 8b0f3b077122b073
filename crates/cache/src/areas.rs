//! Areas: namespaces with a quota of their own, cleared in one step.
//!
//! What must survive, up to which version an area was cleared, is on the data medium ([`crate::layout`]); here are
//! its copy in DRAM, and counts.

use farbank_kv::store::Error;
use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

/// The entry that stands for all areas, of so many entries.
pub(crate) fn all(entries: u32) -> u32 {
    entries - 1
}

/// The entry that is no area's, but the clock's.
pub(crate) fn clock(entries: u32) -> u32 {
    entries - 2
}

#[derive(Clone, Copy)]
enum AreaField {
    Cleared,
    Generation,
    Items,
    Bytes,
    Quota,
}

const FIELDS: usize = 8;

/// All areas of a cache.
pub(crate) struct AreaTable {
    /// Entries of the table.
    entries: u32,
    fields: GrowTable<AtomicU64>,
}

impl AreaTable {
    pub(crate) fn new(entries: u32) -> AreaTable {
        let fields = GrowTable::new(FIELDS);
        fields.reserve(entries as usize * FIELDS);
        AreaTable { entries, fields }
    }

    /// Entries of the table: areas, the clock's, and the one for all areas.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Areas there are, from 0 on.
    pub(crate) fn count(&self) -> u32 {
        clock(self.entries)
    }

    /// An error if `area` is none.
    pub(crate) fn check(&self, area: u16) -> Result<(), Error> {
        match u32::from(area) < self.count() {
            true => Ok(()),
            false => Err(Error::NoArea {
                area,
                areas: self.count(),
            }),
        }
    }

    fn field(&self, area: u32, field: AreaField) -> &AtomicU64 {
        self.fields.get(area as usize * FIELDS + field as usize)
    }

    /// Items of `area` up to this version are dead.
    #[inline]
    pub(crate) fn cleared(&self, area: u16) -> u64 {
        let own = self
            .field(area.into(), AreaField::Cleared)
            .load(Ordering::Acquire);
        let every = self
            .field(all(self.entries), AreaField::Cleared)
            .load(Ordering::Acquire);
        own.max(every)
    }

    /// What was counted for `area`, or all areas, is gone: everything up to `version`.
    pub(crate) fn clear(&self, area: u32, version: u64) {
        self.field(area, AreaField::Cleared)
            .fetch_max(version, Ordering::AcqRel);
        let emptied = match area == all(self.entries) {
            true => 0..self.count(),
            false => area..area + 1,
        };
        for area in emptied {
            let items = self.field(area, AreaField::Items);
            // What was never used is left untouched: its memory need not be there.
            if items.load(Ordering::Relaxed) == 0 && self.generation(area as u16) == 0 {
                continue;
            }
            items.store(0, Ordering::Relaxed);
            self.field(area, AreaField::Bytes)
                .store(0, Ordering::Relaxed);
            self.field(area, AreaField::Generation)
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The lower bits of how often `area` was cleared since it was first used.
    pub(crate) fn generation(&self, area: u16) -> u32 {
        let field = self.field(area.into(), AreaField::Generation);
        field.load(Ordering::Relaxed) as u32
    }

    /// Items of `area` that were not cleared.
    pub(crate) fn items(&self, area: u16) -> u64 {
        self.field(area.into(), AreaField::Items)
            .load(Ordering::Relaxed)
    }

    /// Bytes of their slots.
    pub(crate) fn bytes(&self, area: u16) -> u64 {
        self.field(area.into(), AreaField::Bytes)
            .load(Ordering::Relaxed)
    }

    /// Bytes of slots `area` may have; `None`: as many as there are.
    pub(crate) fn quota(&self, area: u16) -> Option<u64> {
        match self
            .field(area.into(), AreaField::Quota)
            .load(Ordering::Relaxed)
        {
            0 => None,
            quota => Some(quota - 1),
        }
    }

    pub(crate) fn set_quota(&self, area: u16, quota: Option<u64>) {
        let quota = quota.map_or(0, |bytes| bytes.saturating_add(1));
        self.field(area.into(), AreaField::Quota)
            .store(quota, Ordering::Relaxed);
    }

    /// Counts an item of `bytes` of `area`'s generation. Under the lock.
    pub(crate) fn add(&self, area: u16, bytes: u32) {
        self.change(area, AreaField::Items, 1);
        self.change(area, AreaField::Bytes, i64::from(bytes));
    }

    /// Takes it off again, if it was counted since the last clear. Under the lock.
    pub(crate) fn take(&self, area: u16, generation: u32, bytes: u32) {
        if generation == self.generation(area) {
            self.change(area, AreaField::Items, -1);
            self.change(area, AreaField::Bytes, -i64::from(bytes));
        }
    }

    /// Under the lock nobody else changes it: no locked instruction is needed.
    fn change(&self, area: u16, field: AreaField, by: i64) {
        let field = self.field(area.into(), field);
        let value = field.load(Ordering::Relaxed);
        field.store(value.wrapping_add_signed(by), Ordering::Relaxed);
    }
}
