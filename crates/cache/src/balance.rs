//! Balance between classes: which class gives a page to classes that evict more.
//!
//! The demand of a class is its number of items plus its recent evictions. All demands are scaled by one factor so
//! that their sum equals the pages in use (Tair's rule, "the target count of a class"). A class with at least one
//! page more than its scaled demand gives a page up, if another class lacks one. It evicts its oldest items until the
//! rest of a page can be moved to its other pages, so that old items go, and not the items that happen to be in that
//! page. The page is then free for the first class that needs one, which is a class that evicts.

use farbank_store::SlabClass;

/// Checks after which the recent evictions are counted anew: evictions of an hour ago are no evidence.
const LOOKS: u32 = 60;

/// Evictions of each class at the last transfer of a page, or at the last recount.
#[derive(Default)]
pub(crate) struct EvictionBalance {
    evicted: Vec<u64>,
    looks: u32,
}

impl EvictionBalance {
    /// Returns the class that should give up a page, by its evictions since the last transfer. `classes` has all
    /// classes.
    pub(crate) fn giver(&self, classes: Vec<SlabClass>) -> Option<u8> {
        let lately = |(number, class): (usize, SlabClass)| {
            let before = self.evicted.get(number).copied().unwrap_or_default();
            SlabClass {
                evicted: class.evicted.saturating_sub(before),
                ..class
            }
        };
        let classes: Vec<SlabClass> = classes.into_iter().enumerate().map(lately).collect();
        giver(&classes).map(|number| number as u8)
    }

    /// Counts a check. Returns whether the recent evictions must be counted anew from now on: see
    /// [`EvictionBalance::restart`]. The evictions that a transfer caused do not count as demand of that class.
    pub(crate) fn is_outdated(&mut self, given: bool) -> bool {
        self.looks += 1;
        given || self.looks >= LOOKS
    }

    /// Counts the recent evictions from now on. `classes` has all classes.
    pub(crate) fn restart(&mut self, classes: &[SlabClass]) {
        *self = EvictionBalance {
            evicted: classes.iter().map(|class| class.evicted).collect(),
            looks: 0,
        };
    }
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
