//! Balance: a class that evicts more than others do gets pages of those that evict less.
//!
//! A class asks for as many slots as it has items and has evicted of late; all are cut by one factor, so
//! that together they ask for the pages there are (Tair's rule, "the target count of a class"). Whoever has a page more than
//! it asks for gives one, if somebody lacks one: it evicts its oldest until a page can be emptied by moving what is in it, so
//! that what goes is old and not what happened to be in that page. The page is free then, and goes to whoever needs one first,
//! which those who evict do.

use std::sync::PoisonError;

use farbank_kv::store::{Error, SlabClass};
use farbank_pm::Medium;
use farbank_pm::sync::Arc;

use crate::engine::Engine;
use crate::maintenance::EvacuationMode;
use crate::metadata::ClassCounter;
use crate::stats::class_of;
use crate::worker::CacheWorker;

/// How often it is looked before evictions are counted anew: those of an hour ago say nothing.
const LOOKS: u32 = 60;

/// What every class had evicted when a page was given last, or some looks ago.
#[derive(Default)]
pub(crate) struct EvictionBalance {
    evicted: Vec<u64>,
    looks: u32,
}

/// Who gives a page: of those that have one to spare who has most, if somebody lacks one. What they have evicted is what they
/// have of late.
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
        .map(|class| engine.near.tally(class, ClassCounter::Evicted))
        .collect()
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Has a class give a page, if none is free and the classes are out of balance. Whether one did.
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
        // What the giver evicted for this is no need of its own.
        if given || balance.looks >= LOOKS {
            *balance = EvictionBalance {
                evicted: all_evicted(&engine),
                looks: 0,
            };
        }
        Ok(given)
    }

    /// Empties a page of `class`, whose oldest items go. Whether there was one to empty.
    fn give_page(&mut self, class: u8) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        // Others may take the room that is made.
        for _ in 0..2 * engine.classes.slots(class) {
            let page = engine.lock().hold_page_to_merge(class);
            if let Some(page) = page {
                return self.empty_page(page, EvacuationMode::Move);
            }
            if !self.evict_some(class, 0, false)? {
                break;
            }
            self.settle_all();
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
    fn nobody_gives_what_is_less_than_a_page_or_the_last_one() {
        assert_eq!(giver(&[]), None);
        let idle = || class(40, 100, 0);
        assert_eq!(giver(&[idle(), idle()]), None, "nobody evicts");
        assert_eq!(
            giver(&[idle(), class(10, 100, 100)]),
            None,
            "too little is lacking"
        );
        assert_eq!(
            giver(&[class(40, 100, 400), class(10, 100, 100)]),
            None,
            "both as much"
        );
        assert_eq!(
            giver(&[class(1, 100, 0), class(10, 100, 9_000)]),
            None,
            "the last page"
        );
    }
}
