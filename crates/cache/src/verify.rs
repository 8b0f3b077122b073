//! Consistency check of slots, pages, lists and chains.

use std::collections::HashSet;

use farbank_pm::Medium;

use crate::engine::Engine;
use crate::metadata::{ClassCounter, HELD, PARTIALS, SlotId, follow};
use crate::state::LockedState;

/// Checks MDB-STATE-1 to MDB-STATE-3. All slot caches must be empty.
pub(crate) fn verify<N: Medium, F: Medium>(engine: &Engine<N, F>) -> Result<(), String> {
    let locked = engine.lock();
    let chained = chained(&locked)?;
    let listed = listed(&locked)?;
    if chained != listed {
        let odd = chained.symmetric_difference(&listed).next();
        return Err(format!(
            "{odd:?} is only in a chain or only in a list, but must be in both"
        ));
    }
    let mut bytes = 0;
    for page in 0..engine.pages() {
        bytes += page_is_sound(&locked, page, &chained)?;
    }
    let held = locked.pages_held();
    let pages = u64::from(engine.pages());
    let free = locked.state.free_pages.len() as u64;
    let classed: u64 = (0..engine.classes.len() as u8)
        .map(|class| engine.metadata.tally(class, ClassCounter::Pages))
        .sum();
    if classed + free + held != pages {
        return Err(format!(
            "{classed} pages with a class, {free} free and {held} reserved pages do not add up to the pool's {pages}"
        ));
    }
    let counted: u64 = (0..engine.areas.count())
        .map(|area| engine.areas.bytes(area as u16))
        .sum();
    if counted > bytes {
        return Err(format!(
            "areas count {counted} bytes, but only {bytes} bytes of slots are in use"
        ));
    }
    Ok(())
}

fn chained<N: Medium>(locked: &LockedState<'_, N>) -> Result<HashSet<SlotId>, String> {
    let mut all = HashSet::new();
    for bucket in 0..locked.near.buckets() {
        let mut word = locked.near.bucket(bucket);
        while let Some((tag, slot)) = follow(word) {
            let link = locked.near.link(slot);
            if !all.insert(slot) || !link.linked || link.tag != tag {
                return Err(format!(
                    "{slot:?} in the chain of bucket {bucket} has a wrong or repeated link: {link:?}"
                ));
            }
            word = locked.near.chain(slot);
        }
    }
    Ok(all)
}

fn listed<N: Medium>(locked: &LockedState<'_, N>) -> Result<HashSet<SlotId>, String> {
    let mut all = HashSet::new();
    for (class, area, list) in locked.all_lists() {
        let (mut at, mut before, mut items) = (list.head, 0, 0);
        while let Some(slot) = at.checked_sub(1).map(SlotId) {
            let link = locked.near.link(slot);
            let right = link.area == area && locked.class_of(slot) == class && link.prev == before;
            if !right || !all.insert(slot) {
                return Err(format!(
                    "{slot:?} in the list of class {class}, area {area} has a wrong or repeated link: {link:?}"
                ));
            }
            (before, at) = (at, link.next);
            items += 1;
        }
        if before != list.tail || items != list.items {
            return Err(format!(
                "the list of class {class}, area {area} is {list:?}, but has {items} items"
            ));
        }
    }
    Ok(all)
}

/// Checks a page. Returns the bytes of its slots in use.
fn page_is_sound<N: Medium>(
    locked: &LockedState<'_, N>,
    page: u32,
    used: &HashSet<SlotId>,
) -> Result<u64, String> {
    let info = locked.near.info(page);
    let Some(class) = info.class else {
        return Ok(0);
    };
    let slots = locked.classes.slots(class);
    let in_use = (0..slots)
        .filter(|&index| used.contains(&locked.near.slot(page, index)))
        .count() as u32;
    let mut free = slots - info.fresh;
    let mut at = info.free_head;
    while let Some(index) = at.checked_sub(1) {
        free += 1;
        if used.contains(&locked.near.slot(page, index)) || free > slots {
            return Err(format!(
                "slot {index} of page {page} is both free and in use, or the free list is too long: {info:?}"
            ));
        }
        at = locked.near.chain(locked.near.slot(page, index)) as u32;
    }
    if free != info.free || free + in_use != slots {
        return Err(format!(
            "page {page} has {slots} slots, but {free} are free and {in_use} in use: {info:?}"
        ));
    }
    let list_holds = u64::from(info.list) < PARTIALS;
    if list_holds != (info.free > 0) && info.list != HELD {
        return Err(format!("page {page} is on the wrong list: {info:?}"));
    }
    Ok(u64::from(in_use) * u64::from(locked.classes.slot_bytes(class)))
}
