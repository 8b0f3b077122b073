//! Recycle pools: blocks to use again, in one stack a size.
//!
//! ```text
//!   size    80    96   112  ...            freed: pushed on the stack of its size, or forgotten if it is full
//!         ┌────┬────┬────┬─ ... ─┐         wanted: from its size upward in steps, the first stack that has one
//!         │ ▓▓ │    │ ▓  │       │
//!         └────┴────┴────┴─ ... ─┘
//! ```

use crate::space::UNIT;

/// Whose pools there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockPools {
    /// Every thread has its own.
    PerThread,
    /// All threads share one, under a lock.
    Global,
}

/// When and how blocks are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReusePolicy {
    /// As published: for new keys, where a thread's segment is beyond 96.3 % of far memory, from stacks that hold
    /// so many blocks and no more, and some sizes not at all. Nobody knows the mix it was made for: on the one
    /// that can be rebuilt from what is public, `v2` fills 64 GiB with 93 % of its sets.
    NearTheEnd,
    /// For new keys, from the start, of every size, however many there are.
    Always,
}

/// One pool.
pub(crate) struct BlockStacks {
    /// Of the class's size, block numbers.
    stacks: Vec<Vec<u32>>,
    /// Most blocks of each class.
    capacities: Vec<usize>,
}

impl BlockStacks {
    /// A pool of as many classes as there are capacities.
    pub(crate) fn new(capacities: Vec<usize>) -> BlockStacks {
        BlockStacks {
            stacks: vec![Vec::new(); capacities.len()],
            capacities,
        }
    }

    /// Keeps a block; false if its stack is full: it is lost.
    pub(crate) fn push(&mut self, class: usize, block: u32) -> bool {
        let (Some(stack), Some(&most)) = (self.stacks.get_mut(class), self.capacities.get(class))
        else {
            return false;
        };
        if stack.len() >= most {
            return false;
        }
        stack.push(block);
        true
    }

    /// A block of class `from`, `from + step`, and so on, below `to`; and its class.
    pub(crate) fn pop(&mut self, from: usize, step: usize, to: usize) -> Option<(usize, u32)> {
        (from..to.min(self.stacks.len()))
            .step_by(step)
            .find_map(|class| Some((class, self.stacks[class].pop()?)))
    }

    /// Bytes of far memory in the blocks kept, the smallest class being of `smallest` bytes.
    pub(crate) fn far_bytes(&self, smallest: usize) -> u64 {
        let sizes = (smallest..).step_by(UNIT);
        let bytes = self.stacks.iter().zip(sizes);
        bytes.map(|(stack, size)| (stack.len() * size) as u64).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let held: usize = self.stacks.iter().map(Vec::capacity).sum();
        (held * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_goes_upward_in_steps_and_stops() {
        let mut pool = BlockStacks::new(vec![2; 12]);
        assert!(pool.push(5, 50) && pool.push(8, 80) && pool.push(4, 40));
        assert_eq!(pool.pop(0, 4, 8), Some((4, 40)));
        assert_eq!(pool.pop(0, 4, 8), None);
        assert_eq!(pool.pop(0, 4, 9), Some((8, 80)));
        assert_eq!(pool.pop(0, 1, 12), Some((5, 50)));
        assert_eq!(pool.far_bytes(112), 0);
    }

    #[test]
    fn a_full_stack_forgets_blocks() {
        let mut pool = BlockStacks::new(vec![2, 0]);
        assert!(pool.push(0, 1) && pool.push(0, 2) && !pool.push(0, 3));
        assert!(!pool.push(1, 4) && !pool.push(2, 5));
        assert_eq!(pool.far_bytes(112), 224);
        assert_eq!(pool.pop(0, 1, 2), Some((0, 2)));
    }
}
