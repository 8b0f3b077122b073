//! Slab classes: which slot sizes there are, and which one an item takes.

use crate::layout::PAGE_HEAD_BYTES;

/// Most classes there can be: a class is a byte, and 0 stands for none.
const CLASSES_MAX: usize = 200;

/// Slot sizes, smallest first. The last takes a whole page.
#[derive(Clone, Debug)]
pub(crate) struct SlotClasses {
    slot_bytes: Vec<u32>,
    page_bytes: u64,
}

impl SlotClasses {
    /// Sizes from `base` on, each `factor` times the one before, in whole words; 64 and 1.1 are Tair's.
    pub(crate) fn new(page_bytes: u64, base: u32, factor: f64) -> SlotClasses {
        let most = (page_bytes - PAGE_HEAD_BYTES) as u32 / 8 * 8;
        let mut slot_bytes = Vec::new();
        let mut next = base.next_multiple_of(8).min(most);
        // From half a page on, a page has room for one slot, however large.
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

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slot_bytes.len()
    }

    /// The smallest class whose slots hold `bytes`.
    pub(crate) fn of(&self, bytes: usize) -> Option<u8> {
        let class = self
            .slot_bytes
            .partition_point(|&slot| (slot as usize) < bytes);
        (class < self.slot_bytes.len()).then_some(class as u8)
    }

    /// Bytes of a slot of `class`.
    #[inline]
    pub(crate) fn slot_bytes(&self, class: u8) -> u32 {
        self.slot_bytes[usize::from(class)]
    }

    /// Slots of `class` in a page.
    pub(crate) fn slots(&self, class: u8) -> u32 {
        ((self.page_bytes - PAGE_HEAD_BYTES) / u64::from(self.slot_bytes(class))) as u32
    }

    /// The largest slot, in bytes.
    pub(crate) fn largest(&self) -> u32 {
        *self.slot_bytes.last().expect("there is one")
    }

    /// Slots of the smallest class in a page: no page has more.
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
