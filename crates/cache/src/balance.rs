//! Balance between classes: a class that evicts much gets pages from classes that evict little.
//!
//! The demand of a class is its number of items plus its recent evictions. All demands are scaled by one factor so
//! that their sum equals the pages in use (Tair's rule, "the target count of a class"). A class with at least one
//! page more than its scaled demand gives a page up, if another class lacks one. It evicts its oldest items until the
//! rest of a page can be moved to its other pages, so that old items go, and not the items that happen to be in that
//! page. The page is then free for the first class that needs one, which is a class that evicts.

use std::sync::PoisonError;

use farbank_pm::Medium;
use farbank_pm::sync::Arc;
use farbank_store::{Error, SlabClass};

use crate::engine::Engine;
use crate::maintenance::EvacuationMode;
use crate::metadata::ClassCounter;
use crate::stats::class_of;
use crate::worker::CacheWorker;

/// Checks after which the recent evictions are counted anew: evictions of an hour ago are no evidence.
const LOOKS: u32 = 60;

/// Evictions of each class at the last transfer of a page, or at the last recount.
#[derive(Default)]
pub(crate) struct EvictionBalance {
    evicted: Vec<u64>,
    looks: u32,
}

/// Returns the class that should give up a page: the class with the largest surplus, if it has a page to spare and
/// another class lacks one. The `evicted` field of `classes` counts recent evictions only.
fn giver(classes: &[SlabClass]) -> Option<usize> {
    let pages = |count: u64, class: &SlabClass| count as f64 / class.slots_per_page as f64;
    let used: f64 = classes.iter().map(|c| pages(c.items, c)).sum();
    let asked: f64 = classes.iter().map(|c| pages(c.items + c.evicted, c)).sum();
    let lacks = |class: &SlabClass| {
        let fair = pages(class.items + class.evicted, class) * used / asked;
        fair - pages(class.items, class)
    };
    if !classes.iter().any(|class| lacks(class) >= 1.0) {
        return None;
    }
    let to_spare = |(_, class): &(usize, &SlabClass)| class.pages > 1 && lacks(class) <= -1.0;
    let most = classes
        .iter()
        .enumerate()
        .filter(to_spare)
        .min_by(|a, b| lacks(a.1).total_cmp(&lacks(b.1)));
    most.map(|(n, _)| n)
}

impl EvictionBalance {
    fn evicted(&self, class: u8) -> u64 {
        self.evicted
            .get(usize::from(class))
            .copied()
            .unwrap_or_default()
    }
}

fn all_evicted<N: Medium, F: Medium>(engine: &Engine<N, F>) -> Vec<u64> {
    let classes = 0..engine.classes.len() as u8;
    classes
        .map(|class| engine.metadata.tally(class, ClassCounter::Evicted))
        .collect()
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Makes a class give up a page, if no page is free and the classes are out of balance. Returns whether one did.
    pub(crate) fn balance(&mut self) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        let mut balance = engine
            .balance
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let locked = engine.lock();
        let of_late = |number| {
            let class = class_of(&engine, number);
            SlabClass {
                evicted: class.evicted.saturating_sub(balance.evicted(number)),
                ..class
            }
        };
        let classes: Vec<SlabClass> = (0..engine.classes.len() as u8).map(of_late).collect();
        let none_is_free = locked.state.free_pages.is_empty();
        drop(locked);
        let giver = giver(&classes).filter(|_| none_is_free);
        let given = match giver {
            Some(giver) => self.give_page(giver as u8)?,
            None => false,
        };
        balance.looks += 1;
        // The evictions that this transfer caused do not count as demand of that class.
        if given || balance.looks >= LOOKS {
            *balance = EvictionBalance {
                evicted: all_evicted(&engine),
                looks: 0,
            };
        }
        Ok(given)
    }

    /// Evicts the oldest items of `class` until one of its pages can be emptied. Returns whether a page was emptied.
    fn give_page(&mut self, class: u8) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        // The bound is twice the slots of a page, because other sessions may take the freed slots.
        for _ in 0..2 * engine.classes.slots(class) {
            let page = engine.lock().hold_page_to_merge(class);
            if let Some(page) = page {
                return self.empty_page(page, EvacuationMode::Move);
            }
            if !self.evict_some(class, 0, false)? {
                break;
            }
            self.return_slots_of_all_sessions();
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(pages: u64, slots_per_page: u64, evicted: u64) -> SlabClass {
        SlabClass {
            pages,
            slots_per_page,
            items: pages * slots_per_page,
            evicted,
            ..SlabClass::default()
        }
    }

    #[test]
    fn a_class_that_evicts_gets_a_page_of_the_one_that_evicts_least_for_its_size() {
        let idle = || class(40, 100, 0);
        let busy = || class(10, 5_000, 25_000);
        assert_eq!(giver(&[idle(), busy()]), Some(0));
        assert_eq!(giver(&[busy(), class(12, 100, 0), idle()]), Some(2));
        assert_eq!(giver(&[busy(), class(40, 100, 2_000), idle()]), Some(2));
    }

    #[test]
    fn no_class_gives_up_less_than_a_page_or_its_last_page() {
        assert_eq!(giver(&[]), None);
        let idle = || class(40, 100, 0);
        assert_eq!(giver(&[idle(), idle()]), None, "no class evicts");
        assert_eq!(
            giver(&[idle(), class(10, 100, 100)]),
            None,
            "less than a page is lacking"
        );
        assert_eq!(
            giver(&[class(40, 100, 400), class(10, 100, 100)]),
            None,
            "both have the same share"
        );
        assert_eq!(
            giver(&[class(1, 100, 0), class(10, 100, 9_000)]),
            None,
            "the last page"
        );
    }
}
