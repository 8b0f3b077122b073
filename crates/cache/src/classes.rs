//! Slab classes: the slot sizes, and the class of an item.

use crate::layout::PAGE_HEAD_BYTES;

/// Maximum number of classes. A class is a byte, and 0 means none.
const CLASSES_MAX: usize = 200;

/// Slot sizes in ascending order. The last one takes a whole page.
#[derive(Clone, Debug)]
pub(crate) struct SlotClasses {
    slot_bytes: Vec<u32>,
    page_bytes: u64,
}

impl SlotClasses {
    /// Creates slot sizes from `base` on, each `factor` times the previous one, rounded to whole words. Tair uses 64
    /// and 1.1.
    pub(crate) fn new(page_bytes: u64, base: u32, factor: f64) -> SlotClasses {
        let most = (page_bytes - PAGE_HEAD_BYTES) as u32 / 8 * 8;
        let mut slot_bytes = Vec::new();
        let mut next = base.next_multiple_of(8).min(most);
        // A page holds only one slot larger than half a page, so the next size is the whole page.
        while next <= most / 2 && slot_bytes.len() + 1 < CLASSES_MAX {
            slot_bytes.push(next);
            let grown = (f64::from(next) * factor) as u32;
            next = grown.next_multiple_of(8).max(next + 8);
        }
        slot_bytes.push(most);
        SlotClasses {
            slot_bytes,
            page_bytes,
        }
    }

    /// Returns the number of classes.
    pub(crate) fn len(&self) -> usize {
        self.slot_bytes.len()
    }

    /// Returns the smallest class whose slots hold `bytes`.
    pub(crate) fn of(&self, bytes: usize) -> Option<u8> {
        let class = self
            .slot_bytes
            .partition_point(|&slot| (slot as usize) < bytes);
        (class < self.slot_bytes.len()).then_some(class as u8)
    }

    /// Returns the size of a slot of `class` in bytes.
    #[inline]
    pub(crate) fn slot_bytes(&self, class: u8) -> u32 {
        self.slot_bytes[usize::from(class)]
    }

    /// Returns the number of slots of `class` in a page.
    pub(crate) fn slots(&self, class: u8) -> u32 {
        ((self.page_bytes - PAGE_HEAD_BYTES) / u64::from(self.slot_bytes(class))) as u32
    }

    /// Returns the size of the largest slot in bytes.
    pub(crate) fn largest(&self) -> u32 {
        *self.slot_bytes.last().expect("there is one")
    }

    /// Returns the number of slots of the smallest class in a page, the maximum for any page.
    pub(crate) fn slots_max(&self) -> u32 {
        self.slots(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_and_an_item_takes_the_smallest_that_holds_it() {
        let classes = SlotClasses::new(1 << 20, 64, 1.1);
        assert!(classes.len() < 100, "{}", classes.len());
        assert!(classes.slot_bytes.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(u64::from(classes.largest()), (1 << 20) - PAGE_HEAD_BYTES);
        for bytes in [1, 64, 65, 100, 5_000, 700_000, classes.largest() as usize] {
            let class = classes.of(bytes).expect("a class");
            assert!(classes.slot_bytes(class) as usize >= bytes);
            assert!(class == 0 || (classes.slot_bytes(class - 1) as usize) < bytes);
            assert!(classes.slots(class) >= 1);
        }
        assert_eq!(classes.of(classes.largest() as usize + 1), None);
    }
}
