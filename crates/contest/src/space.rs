//! Block allocation in far memory for `v1` and `v2`. Threads take segments, cut blocks from them and reuse freed ones.
//!
//! ```text
//!   from        a segment                                     next                 to
//!   ├───────────┼──────────────────────────┬──────┬───────────┼─ ... ──────────────┤
//!   │           │ block │ block │ spare │  │ tail │           │ not taken yet
//!   └───────────┴──────────────────────────┴──────┴───────────┴─ ... ──────────────┘
//!                one thread's, in order     unused
//! ```
//!
//! A block is a multiple of 16 bytes, and its number is its offset in units of 16 bytes. So 32 bits address 64 GiB.
//! A thread that needs a block
//!
//! 1. takes one from its recycle pool, if its open segment lies beyond 96.3 % of far memory and the block is for a
//!    new key;
//! 2. otherwise cuts one from its open segment, or from the next segment;
//! 3. if no segment is left, takes any block of its recycle pool that is large enough. (The published engine lacks
//!    this step: it would have written beyond its mapping.)
//!
//! Each thread also holds one *spare* block of each size. An update of the same size is written to the spare, and the
//! block that it replaces becomes the new spare.
//!
//! # Sizes
//! [`ScaledCounts`] scales every published count down to the given far memory. A segment has at least 16 KiB (or a
//! sixteenth of a tiny pool), because otherwise segment tails would waste a large part of the memory.
//!
//! # Threads of later phases
//! Each phase has new threads. As published, a new thread starts with a new segment and new spares, and the blocks of
//! the former threads are lost: 16 segments per phase. Spares do not shrink with the memory. So where memory is too
//! small for that (about 1/64 of the contest's scale and below), a new thread takes over a former thread's blocks.

use std::ops::Range;

use farbank_pm::sync::{Mutex, unpoisoned};
use farbank_pm::{LINE, Medium, Off, PersistCtx, Poisoned};

use crate::block::{AllottedBlock, UNIT, align16};
use crate::engine::{Error, OpenError, VALUE_BYTES};
use crate::limits::ContestLimits;
use crate::recycle::{BlockPools, BlockStacks, ReusePolicy};

/// Far memory of the final round, in bytes.
const PUBLISHED_FAR_BYTES: u64 = 64 << 30;
/// Threads of the final round.
pub(crate) const PUBLISHED_THREADS: u64 = 16;

/// Reads and rewrites one line of every huge page, so that no set causes the page's first page fault.
pub(crate) fn preheat<M: Medium>(medium: &M, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
    let mut line = [0; LINE];
    for at in (0..medium.len() - LINE as u64).step_by(2 << 20) {
        medium.copy_out(Off(at), &mut line);
        medium.copy_in(ctx, Off(at), &[&line]);
        let ticket = medium.drain(ctx);
        medium.wait(ticket)?;
    }
    Ok(())
}

/// Converter of published counts to the scale of the given far memory.
#[derive(Clone, Copy)]
pub(crate) struct ScaledCounts {
    far_bytes: u64,
}

impl ScaledCounts {
    pub(crate) fn to(terms: &ContestLimits) -> ScaledCounts {
        ScaledCounts {
            far_bytes: terms.far_bytes,
        }
    }

    /// Returns `published` at this scale, rounded down.
    pub(crate) fn count(self, published: u64) -> u64 {
        let scaled = u128::from(published) * u128::from(self.far_bytes);
        (scaled / u128::from(PUBLISHED_FAR_BYTES)) as u64
    }

    /// Returns the bytes of a segment that has `published` bytes at full scale.
    pub(crate) fn segment_bytes(self, published: u64) -> u64 {
        const LEAST_BYTES: u64 = 16 << 10;
        let least = LEAST_BYTES.min(self.far_bytes / 16).min(published);
        self.count(published)
            .max(least)
            .next_multiple_of(UNIT as u64)
    }

    /// Returns the offset from which new keys reuse blocks before new ones are cut.
    pub(crate) fn recycle_from(self) -> u64 {
        (self.far_bytes as f64 * 0.963) as u64
    }
}

/// Returns the sizes of the smallest and the largest block, if a value needs `more` further bytes.
pub(crate) fn block_bytes_range(
    terms: &ContestLimits,
    more: usize,
) -> Result<(usize, usize), OpenError> {
    let (least, most) = terms.value_bytes;
    if least > most || !VALUE_BYTES.contains(&least) || !VALUE_BYTES.contains(&most) {
        return Err(OpenError::Unfit(format!(
            "the limits allow values of {least} to {most} bytes, expected a range within {VALUE_BYTES:?}"
        )));
    }
    Ok((align16(more + least), align16(more + most)))
}

/// Parameters of a [`BlockSpace`].
pub(crate) struct SpaceLayout {
    /// Offsets of far memory that segments are cut from.
    pub range: Range<u64>,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Smallest and largest block, in bytes.
    pub blocks: (usize, usize),
    /// Largest number of blocks of each size class in one thread's recycle pool.
    pub capacities: Vec<usize>,
    pub reuse: ReusePolicy,
    /// Offset from which [`ReusePolicy::NearTheEnd`] reuses blocks.
    pub recycle_from: u64,
    /// Number of updates per thread that may be appended, although a spare fits, because the spare is far away.
    pub appends_for_locality: u64,
    pub threads: usize,
    pub pools: BlockPools,
}

/// The block allocator.
pub(crate) struct BlockSpace {
    layout: SpaceLayout,
    next: Mutex<u64>,
    pools: Box<[Mutex<BlockStacks>]>,
    /// Blocks held for each thread number; `None` while a worker uses them.
    idle: Mutex<Vec<Option<ThreadBlocks>>>,
}

/// Blocks and allocation state of one thread.
#[derive(Clone)]
pub(crate) struct ThreadBlocks {
    /// The thread's number.
    pub thread: usize,
    open: Range<u64>,
    /// Number of the spare block of each size class; 0 means none.
    spares: Box<[u32]>,
    /// Whether the spares have been cut.
    pub has_spares: bool,
    /// Number of updates that the thread may still append although they would fit a spare.
    pub appends_for_locality_left: u64,
}

/// Purpose of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// The first value of a new key.
    Insert,
    /// A new value of a key that is already stored.
    Update,
}

impl BlockSpace {
    /// Returns an allocator that has already taken all memory before offset `next`.
    pub(crate) fn new(layout: SpaceLayout, next: u64) -> BlockSpace {
        let pools = match layout.pools {
            BlockPools::PerThread => layout.threads,
            BlockPools::Global => 1,
        };
        let of_all = layout.threads / pools;
        let classes = (layout.blocks.1 - layout.blocks.0) / UNIT + 1;
        let capacities: Vec<usize> = match layout.reuse {
            ReusePolicy::NearTheEnd => layout.capacities.iter().map(|c| c * of_all).collect(),
            ReusePolicy::Always => vec![usize::MAX; classes],
        };
        let holding = |thread| ThreadBlocks {
            thread,
            open: 0..0,
            spares: vec![0; classes].into(),
            has_spares: false,
            appends_for_locality_left: 0,
        };
        BlockSpace {
            next: Mutex::new(next),
            pools: (0..pools)
                .map(|_| Mutex::new(BlockStacks::new(capacities.clone())))
                .collect(),
            idle: Mutex::new((0..layout.threads).map(|n| Some(holding(n))).collect()),
            layout,
        }
    }

    /// Registers a thread and returns its blocks.
    ///
    /// # Panics
    /// If as many threads as the limits allow are registered already.
    pub(crate) fn register_thread(&self) -> ThreadBlocks {
        let mut left = unpoisoned(self.idle.lock());
        let holding = left.iter_mut().find_map(Option::take);
        let mut holding = holding.unwrap_or_else(|| {
            panic!("too many workers at a time, the limit is {}", left.len());
        });
        holding.appends_for_locality_left = self.layout.appends_for_locality;
        if self.has_room_for_fresh_threads() {
            holding.open = 0..0;
            holding.spares.fill(0);
            holding.has_spares = false;
        }
        holding
    }

    /// Unregisters a thread and keeps its blocks.
    pub(crate) fn unregister_thread(&self, holding: ThreadBlocks) {
        let thread = holding.thread;
        unpoisoned(self.idle.lock())[thread] = Some(holding);
    }

    /// Returns whether new segments and spares for all threads would take at most a quarter of the free memory.
    fn has_room_for_fresh_threads(&self) -> bool {
        let (smallest, largest) = self.layout.blocks;
        let spares: usize = (smallest..=largest).step_by(UNIT).sum();
        let start =
            (spares as u64).next_multiple_of(self.layout.segment_bytes) + self.layout.segment_bytes;
        let free = self.layout.range.end.saturating_sub(self.taken());
        free / 4 >= start * self.layout.threads as u64
    }

    /// Returns the offset before which all memory has been taken.
    pub(crate) fn taken(&self) -> u64 {
        *unpoisoned(self.next.lock())
    }

    /// Marks all memory before `next` as taken.
    pub(crate) fn skip_to(&self, next: u64) {
        *unpoisoned(self.next.lock()) = next;
    }

    pub(crate) fn layout(&self) -> &SpaceLayout {
        &self.layout
    }

    /// Allocates a block of at least `bytes`. Before it takes a new segment, it calls `advance` with the segment's end,
    /// and `advance` makes that end durable.
    pub(crate) fn allot(
        &self,
        holding: &mut ThreadBlocks,
        bytes: usize,
        what: BlockUse,
        advance: impl FnOnce(u64) -> Result<(), Poisoned>,
    ) -> Result<AllottedBlock, Error> {
        let due = match self.layout.reuse {
            ReusePolicy::NearTheEnd => holding.open.start > self.layout.recycle_from,
            ReusePolicy::Always => true,
        };
        if what == BlockUse::Insert && due {
            let recycled = self.recycled(holding, bytes);
            if let Some(block) = recycled {
                return Ok(block);
            }
        }
        match self.append(holding, bytes, advance) {
            Err(Error::Full) => self.any_recycled(holding, bytes).ok_or(Error::Full),
            appended => appended,
        }
    }

    /// Searches the recycle pool as published: in steps of four size classes, and only blocks less than 336 bytes
    /// larger than the smallest block.
    fn recycled(&self, holding: &ThreadBlocks, bytes: usize) -> Option<AllottedBlock> {
        const STEP_BYTES: usize = 64;
        const LIMIT_BYTES: usize = 336;
        self.pop(holding, bytes, STEP_BYTES / UNIT, LIMIT_BYTES / UNIT)
    }

    fn any_recycled(&self, holding: &ThreadBlocks, bytes: usize) -> Option<AllottedBlock> {
        self.pop(holding, bytes, 1, usize::MAX)
    }

    fn pop(
        &self,
        holding: &ThreadBlocks,
        bytes: usize,
        step: usize,
        to: usize,
    ) -> Option<AllottedBlock> {
        let mut pool = unpoisoned(self.pool(holding.thread).lock());
        let (class, number) = pool.pop(self.class(bytes), step, to)?;
        Some(AllottedBlock {
            number,
            bytes: self.layout.blocks.0 + class * UNIT,
        })
    }

    /// Cuts `bytes` from the thread's segment, or from a new one.
    pub(crate) fn append(
        &self,
        holding: &mut ThreadBlocks,
        bytes: usize,
        advance: impl FnOnce(u64) -> Result<(), Poisoned>,
    ) -> Result<AllottedBlock, Error> {
        if holding.open.end - holding.open.start < bytes as u64 {
            let mut next = unpoisoned(self.next.lock());
            let end = *next + self.layout.segment_bytes;
            if end > self.layout.range.end {
                return Err(Error::Full);
            }
            advance(end)?;
            holding.open = *next..end;
            *next = end;
        }
        let at = holding.open.start;
        holding.open.start += bytes as u64;
        Ok(AllottedBlock {
            number: (at / UNIT as u64) as u32,
            bytes,
        })
    }

    /// Puts a block into the recycle pool. Returns false if the pool is full; the block is then lost.
    pub(crate) fn free(&self, thread: usize, block: AllottedBlock) -> bool {
        let mut pool = unpoisoned(self.pool(thread).lock());
        pool.push(self.class(block.bytes), block.number)
    }

    fn pool(&self, thread: usize) -> &Mutex<BlockStacks> {
        &self.pools[thread % self.pools.len()]
    }

    /// Returns the number of the thread's spare block of `bytes`, if it has one.
    pub(crate) fn spare(&self, holding: &ThreadBlocks, bytes: usize) -> Option<u32> {
        let spare = holding.spares.get(self.class(bytes)).copied();
        spare.filter(|&number| number != 0)
    }

    /// Makes `block` the thread's spare for its size.
    pub(crate) fn set_spare(&self, holding: &mut ThreadBlocks, block: AllottedBlock) {
        holding.spares[self.class(block.bytes)] = block.number;
    }

    /// Returns whether `bytes` is a valid block size.
    pub(crate) fn is_block(&self, bytes: usize) -> bool {
        let (smallest, largest) = self.layout.blocks;
        (smallest..=largest).contains(&bytes) && bytes.is_multiple_of(UNIT)
    }

    /// Checks the size of a block that a value needs.
    ///
    /// # Panics
    /// If the limits do not allow blocks of `bytes`.
    pub(crate) fn check_block_bytes(&self, bytes: usize) {
        let blocks = self.layout.blocks;
        assert!(
            self.is_block(bytes),
            "a value needs a block of {bytes} bytes, the limits allow {blocks:?} (smallest, largest)"
        );
    }

    /// Returns the number of size classes.
    pub(crate) fn classes(&self) -> usize {
        self.class(self.layout.blocks.1) + 1
    }

    pub(crate) fn class(&self, bytes: usize) -> usize {
        (bytes - self.layout.blocks.0) / UNIT
    }

    /// Returns the bytes of far memory in all recycle pools.
    pub(crate) fn recycled_bytes(&self) -> u64 {
        self.of_pools(|pool| pool.far_bytes(self.layout.blocks.0))
    }

    /// Returns the bytes of DRAM that the recycle pools and the lists of spares use.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let spares = self.layout.threads * self.classes() * size_of::<u32>();
        (self.of_pools(BlockStacks::bytes), spares as u64)
    }

    fn of_pools(&self, f: impl Fn(&BlockStacks) -> u64) -> u64 {
        let pools = self.pools.iter();
        let count = |pool: &Mutex<BlockStacks>| {
            let stacks = unpoisoned(pool.lock());
            f(&stacks)
        };
        pools.map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(pools: BlockPools) -> BlockSpace {
        let layout = SpaceLayout {
            range: 16..16 + 4 * 1024,
            segment_bytes: 1024,
            blocks: (112, 448),
            capacities: vec![4; 22],
            reuse: ReusePolicy::NearTheEnd,
            recycle_from: 2048,
            appends_for_locality: 3,
            threads: 2,
            pools,
        };
        BlockSpace::new(layout, 16)
    }

    fn cut(space: &BlockSpace, holding: &mut ThreadBlocks, bytes: usize) -> Result<u64, Error> {
        let block = space.append(holding, bytes, |_| Ok(()));
        block.map(AllottedBlock::at)
    }

    #[test]
    fn at_full_scale_counts_are_the_published_ones() {
        let scaled = ScaledCounts::to(&ContestLimits::finals(1));
        assert_eq!(scaled.segment_bytes(2 << 20), 2 << 20);
        assert_eq!(scaled.segment_bytes(4 << 20), 4 << 20);
        assert_eq!(scaled.count(6000), 6000);
        let small = ScaledCounts::to(&ContestLimits::finals(4096));
        assert_eq!(small.segment_bytes(2 << 20), 16 << 10);
    }

    #[test]
    fn a_block_that_does_not_fit_the_segment_begins_the_next() {
        let (space, mut ends) = (space(BlockPools::PerThread), Vec::new());
        let mut holding = space.register_thread();
        for (bytes, at) in [(448, 16), (448, 464), (448, 1040), (112, 1488)] {
            let block = space.append(&mut holding, bytes, |end| {
                ends.push(end);
                Ok(())
            });
            assert_eq!(block.map(AllottedBlock::at), Ok(at));
        }
        assert_eq!(ends, [1040, 2064]);
        assert_eq!(space.taken(), 2064);
    }

    #[test]
    fn a_segment_that_cannot_be_made_durable_is_not_taken() {
        let space = space(BlockPools::PerThread);
        let mut holding = space.register_thread();
        let failed = space.append(&mut holding, 112, |_| Err(Poisoned::new("gone")));
        assert!(matches!(failed, Err(Error::Poisoned(_))));
        assert_eq!(space.taken(), 16);
    }

    #[test]
    fn blocks_are_used_again_only_near_the_end_and_for_new_keys() {
        let space = space(BlockPools::PerThread);
        let mut holding = space.register_thread();
        let freed = AllottedBlock {
            number: 9,
            bytes: 176,
        };
        assert!(space.free(0, freed));
        let mut allot = |bytes, what| space.allot(&mut holding, bytes, what, |_| Ok(()));
        assert_ne!(allot(112, BlockUse::Insert).unwrap(), freed, "early");
        for _ in 0..5 {
            allot(448, BlockUse::Update).unwrap();
        }
        assert_ne!(allot(112, BlockUse::Update).unwrap(), freed, "an update");
        assert_ne!(
            allot(128, BlockUse::Insert).unwrap(),
            freed,
            "64 bytes a step"
        );
        assert_eq!(allot(112, BlockUse::Insert).unwrap(), freed);
    }

    #[test]
    fn when_no_segment_is_left_any_recycled_block_that_is_large_enough_is_used() {
        let space = space(BlockPools::Global);
        let (mut one, mut other) = (space.register_thread(), space.register_thread());
        while cut(&space, &mut one, 448).is_ok() {}
        let freed = AllottedBlock {
            number: 7,
            bytes: 448,
        };
        let mut allot = |bytes| space.allot(&mut other, bytes, BlockUse::Update, |_| Ok(()));
        assert_eq!(allot(400), Err(Error::Full));
        assert!(space.free(0, freed));
        assert_eq!(allot(400), Ok(freed));
        assert_eq!(allot(400), Err(Error::Full));
    }

    #[test]
    fn when_memory_is_small_a_thread_takes_over_a_former_threads_blocks() {
        let space = space(BlockPools::PerThread);
        let mut holding = space.register_thread();
        let open = cut(&space, &mut holding, 112).unwrap();
        holding.appends_for_locality_left = 0;
        let spare = AllottedBlock {
            number: 5,
            bytes: 128,
        };
        space.set_spare(&mut holding, spare);
        space.unregister_thread(holding);
        let mut next = space.register_thread();
        assert_eq!((next.thread, next.appends_for_locality_left), (0, 3));
        assert_eq!(space.spare(&next, 128), Some(5));
        assert_eq!(space.spare(&next, 112), None);
        assert_eq!(cut(&space, &mut next, 112), Ok(open + 112));
    }

    #[test]
    #[should_panic(expected = "too many workers at a time, the limit is 2")]
    fn more_threads_than_the_limits_allow_are_refused() {
        let space = space(BlockPools::PerThread);
        let _held = [
            space.register_thread(),
            space.register_thread(),
            space.register_thread(),
        ];
    }
}
