//! Areas: namespaces, each with its own quota, that can be cleared in one step.
//!
//! The version up to which an area was cleared must survive, and is on the data medium ([`crate::layout`]). This
//! module has its copy in DRAM, and counters.

use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_store::Error;

/// Returns the entry for all areas together, in a table of `entries`.
pub(crate) fn all(entries: u32) -> u32 {
    entries - 1
}

/// Returns the entry of the clock, in a table of `entries`.
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
    /// Number of entries in the table.
    entries: u32,
    fields: GrowTable<AtomicU64>,
}

impl AreaTable {
    pub(crate) fn new(entries: u32) -> AreaTable {
        let fields = GrowTable::new(FIELDS);
        fields.reserve(entries as usize * FIELDS);
        AreaTable { entries, fields }
    }

    /// Returns the number of entries: areas, the clock, and the entry for all areas.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number of areas. Areas are numbered from 0.
    pub(crate) fn count(&self) -> u32 {
        clock(self.entries)
    }

    /// Returns an error if `area` does not exist.
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

    /// Returns the version up to which items of `area` are dead.
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

    /// Records that `area`, or all areas, was cleared up to `version`, and resets its counters.
    pub(crate) fn clear(&self, area: u32, version: u64) {
        self.field(area, AreaField::Cleared)
            .fetch_max(version, Ordering::AcqRel);
        let emptied = match area == all(self.entries) {
            true => 0..self.count(),
            false => area..area + 1,
        };
        for area in emptied {
            let items = self.field(area, AreaField::Items);
            // Skip an area that was never used: a write would allocate its memory.
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

    /// Returns the lower 32 bits of the number of times `area` was cleared since its first use.
    pub(crate) fn generation(&self, area: u16) -> u32 {
        let field = self.field(area.into(), AreaField::Generation);
        field.load(Ordering::Relaxed) as u32
    }

    /// Returns the number of items of `area` that were not cleared.
    pub(crate) fn items(&self, area: u16) -> u64 {
        self.field(area.into(), AreaField::Items)
            .load(Ordering::Relaxed)
    }

    /// Returns the bytes of the slots that the items of `area` occupy.
    pub(crate) fn bytes(&self, area: u16) -> u64 {
        self.field(area.into(), AreaField::Bytes)
            .load(Ordering::Relaxed)
    }

    /// Returns the bytes of slots that `area` may use. `None` means no limit.
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

    /// Counts an item of `area` with a slot of `bytes`. Needs the lock.
    pub(crate) fn add(&self, area: u16, bytes: u32) {
        self.change(area, AreaField::Items, 1);
        self.change(area, AreaField::Bytes, i64::from(bytes));
    }

    /// Uncounts an item if it was counted since the last clear. Needs the lock.
    pub(crate) fn take(&self, area: u16, generation: u32, bytes: u32) {
        if generation == self.generation(area) {
            self.change(area, AreaField::Items, -1);
            self.change(area, AreaField::Bytes, -i64::from(bytes));
        }
    }

    /// Changes a counter. Needs the lock, so that no atomic read-modify-write is needed.
    fn change(&self, area: u16, field: AreaField, by: i64) {
        let field = self.field(area.into(), field);
        let value = field.load(Ordering::Relaxed);
        field.store(value.wrapping_add_signed(by), Ordering::Relaxed);
    }
}
