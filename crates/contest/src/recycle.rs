//! Recycle pools: freed blocks for reuse, in one stack per size.
//!
//! ```text
//!   size    80    96   112  ...            push: onto the stack of the block's size; if it is full, the block is lost
//!         ┌────┬────┬────┬─ ... ─┐         pop: from the first non-empty stack, searched upward from the size in steps
//!         │ ▓▓ │    │ ▓  │       │
//!         └────┴────┴────┴─ ... ─┘
//! ```

use crate::block::UNIT;

/// Sharing of recycle pools between threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockPools {
    /// Each thread has a pool of its own.
    PerThread,
    /// All threads share one pool.
    Global,
}

/// Rule for when blocks are reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReusePolicy {
    /// The published rule. A block is reused only for a new key, and only when the thread's segment lies beyond
    /// 96.3 % of far memory. Each stack has a capacity, and some sizes are not kept at all. The mix of operations that
    /// these numbers were chosen for is not public. On the mix rebuilt from public sources, `v2` has filled 64 GiB
    /// after 93 % of its sets.
    NearTheEnd,
    /// A block of any size is reused for a new key from the start. Stacks have no capacity limit.
    Always,
}

/// One recycle pool.
pub(crate) struct BlockStacks {
    /// Block numbers, one stack per size class.
    blocks_by_class: Vec<Vec<u32>>,
    /// Capacity of each stack, in blocks.
    capacities: Vec<usize>,
}

impl BlockStacks {
    /// Returns an empty pool with one size class per capacity.
    pub(crate) fn new(capacities: Vec<usize>) -> BlockStacks {
        BlockStacks {
            blocks_by_class: vec![Vec::new(); capacities.len()],
            capacities,
        }
    }

    /// Pushes a block. Returns false if the stack is full; the block is then lost.
    pub(crate) fn push(&mut self, class: usize, block: u32) -> bool {
        let (Some(stack), Some(&most)) = (
            self.blocks_by_class.get_mut(class),
            self.capacities.get(class),
        ) else {
            return false;
        };
        if stack.len() >= most {
            return false;
        }
        stack.push(block);
        true
    }

    /// Pops a block of class `from`, `from + step`, and so on, below `to`. Returns its class and its number.
    pub(crate) fn pop(&mut self, from: usize, step: usize, to: usize) -> Option<(usize, u32)> {
        (from..to.min(self.blocks_by_class.len()))
            .step_by(step)
            .find_map(|class| Some((class, self.blocks_by_class[class].pop()?)))
    }

    /// Returns the bytes of far memory in this pool. A block of class 0 has `smallest` bytes.
    pub(crate) fn far_bytes(&self, smallest: usize) -> u64 {
        let sizes = (smallest..).step_by(UNIT);
        let bytes = self.blocks_by_class.iter().zip(sizes);
        bytes.map(|(stack, size)| (stack.len() * size) as u64).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let held: usize = self.blocks_by_class.iter().map(Vec::capacity).sum();
        (held * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_searches_larger_classes_in_steps_and_stops_at_the_limit() {
        let mut pool = BlockStacks::new(vec![2; 12]);
        assert!(pool.push(5, 50) && pool.push(8, 80) && pool.push(4, 40));
        assert_eq!(pool.pop(0, 4, 8), Some((4, 40)));
        assert_eq!(pool.pop(0, 4, 8), None);
        assert_eq!(pool.pop(0, 4, 9), Some((8, 80)));
        assert_eq!(pool.pop(0, 1, 12), Some((5, 50)));
        assert_eq!(pool.far_bytes(112), 0);
    }

    #[test]
    fn a_full_stack_drops_blocks() {
        let mut pool = BlockStacks::new(vec![2, 0]);
        assert!(pool.push(0, 1) && pool.push(0, 2) && !pool.push(0, 3));
        assert!(!pool.push(1, 4) && !pool.push(2, 5));
        assert_eq!(pool.far_bytes(112), 224);
        assert_eq!(pool.pop(0, 1, 2), Some((0, 2)));
    }
}
