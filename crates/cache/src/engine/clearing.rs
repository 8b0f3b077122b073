//! Clearing of areas, in one step.

use farbank_pm::{Medium, PersistCtx, Poisoned, fault, situation};
use farbank_store::Error;

use super::Engine;
use crate::areas::{all, clock};

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Removes all current items of `area`, or of all areas, durably on `Ok`. Writes two words, however many items
    /// there are. Holds all key locks meanwhile, so that every write decided before the clear is published before it.
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, area: Option<u16>) -> Result<(), Error> {
        let area = area.map_or(all(self.areas.entries()), u32::from);
        self.process.check()?;
        self.key_locks.lock_all()?;
        let version = self.next_version();
        let cleared = self.write_cleared(ctx, area, version);
        if cleared.is_ok() {
            let _locked = self.lock();
            self.areas.clear(area, version);
        }
        self.key_locks.release_all();
        Ok(cleared?)
    }

    fn write_cleared(&self, ctx: &mut PersistCtx, area: u32, version: u64) -> Result<(), Poisoned> {
        self.data.store_cleared(ctx, area, version);
        if fault!("mdb.clear_undrained") {
            return Ok(());
        }
        self.data.drain(ctx)
    }

    /// Restores the version up to which each area was cleared (MDB-ITEM-4). A later power cut may lose the words of a
    /// clear that a kill interrupted, but recovery has marked all the cleared items dead by then.
    pub(crate) fn restore_cleared(&self) {
        let entries = self.areas.entries();
        for area in (0..clock(entries)).chain([all(entries)]) {
            let [cleared, other] = self.data.area(area);
            situation!(
                "mdb.clear_torn",
                cleared != !other && (cleared, other) != (0, 0)
            );
            let version = match (cleared, other) {
                (0, 0) => continue,
                (cleared, 0) => cleared,
                (cleared, other) => cleared.max(!other),
            };
            // No item has a version of this open yet, so a larger value is damage.
            let version = version.min(self.newest_version());
            self.areas.clear(area, version);
        }
    }
}
