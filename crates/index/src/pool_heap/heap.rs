//! The allocator of blocks and runs. A crash leaks no far memory.
//!
//! ```text
//!   a slab (one chunk): groups, then their blocks                a group: one line
//!   ┌───────┬───────┬─ ... ─┬───────┬───────┬─ ... ─┐            ┌────────┬─────────────────────────────┐
//!   │group 0│group 1│       │block 0│block 1│       │            │ intent │ 448 bits: allocated blocks  │
//!   └───────┴───────┴─ ... ─┴───────┴───────┴─ ... ─┘            └────────┴─────────────────────────────┘
//!
//!   a context's line in the head
//!   ┌─────────┬─────────┬─────────┬─────────┬────────┬──────────┬──────────┬────────┐
//!   │ group of class 0, 1, 2, 3             │ run    │ freed 0  │ freed 1  │ note   │
//!   └─────────┴─────────┴─────────┴─────────┴────────┴──────────┴──────────┴────────┘
//! ```
//!
//! A table declares up to four classes of blocks. A worker allocates blocks from a group of its own until the group is
//! used up. A request that fits no class gets a run of whole chunks. After a crash, only a worker's last operations can
//! be in doubt: the intents of its groups, its run, and what it was freeing. So recovery reads one line per context,
//! and checks whether the table refers to those few blocks.
//!
//! # Invariants
//! IX-HEAP-1  A bit is set, or a run recorded, only after an intent that names it. The intent is in the same line and stored
//!     before it, or it is durable.
//! IX-HEAP-2  A block or a run is linked only after a drain that makes its bit or its record durable. The link is durable
//!     before the same worker allocates another block of the class, or another run.
//! IX-HEAP-3  Before a block or run is unlinked, the context's line names it durably. It stays named until its bit is durably
//!     clear.
//! IX-HEAP-4  A worker's group is named in its context's line before its first block is allocated.
//! IX-HEAP-5  A group belongs to one worker at a time. Only that worker sets its bits; any worker that frees a block clears
//!     its bit.
//! IX-HEAP-6  The record of a freed run is durably cleared before its chunks are reused.
//! IX-HEAP-7  After a failed drain, no worker changes an intent any more. The last named blocks stay in doubt until the next
//!     open.
//!
//! # Crash argument
//! | crash between               | recovery sees                    | and does                             |
//! |-----------------------------|----------------------------------|--------------------------------------|
//! | intent, bit                 | an intent, no bit                | nothing                              |
//! | bit, link                   | both, and no reference           | clears the bit (IX-HEAP-1, IX-HEAP-2)              |
//! | run's intent, its record    | no record                        | nothing: the chunks are free         |
//! | record, link                | a record, and no reference       | clears it                            |
//! | named as freed, unlinked    | a reference from the table       | nothing: it was not freed            |
//! | unlinked, bit clear         | no reference, bit set            | clears the bit (IX-HEAP-3)                  |

use std::collections::BTreeSet;

use farbank_pm::model::Category;
use farbank_pm::sync::{Arc, Mutex, unpoisoned};
use farbank_pm::{LINE, Medium, Off, PersistCtx, WORD, situation};

use super::{TablePool, TableWorker};
use crate::error::{IndexError, OpenError};
use crate::failure::SharedFailure;

/// Maximum number of block classes of a table.
const CLASSES: usize = 4;
/// Maximum number of blocks in a group.
const BLOCKS: u64 = 7 * 64;
/// Index of the context's word for the run that it allocates.
pub(super) const RUN: u64 = CLASSES as u64;
/// Index of the first of the context's two words for what it frees, used in turn.
pub(super) const FREED: u64 = RUN + 1;
/// Index of the context's word whose meaning the table defines.
pub(super) const NOTE: u64 = FREED + 2;

/// Types of chunks in the low byte of their words.
const SLAB: u64 = 1;
const RECORD: u64 = 2;

/// A class of blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockClass {
    /// Bytes in a block: a multiple of a word.
    pub block_bytes: u64,
    /// Alignment of the first block of a slab: a power of two. All blocks have it if the block size is a multiple of
    /// it.
    pub align: u64,
}

/// A block or a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapBlock {
    /// Offset of its start.
    pub at: Off,
    /// Class of the block; `None`: a run.
    pub class: Option<usize>,
}

/// Layout of a slab of one class.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkCut {
    pub(super) block_bytes: u64,
    /// Offset of the first block in its chunk.
    first: u64,
    pub(super) blocks: u64,
}

impl ChunkCut {
    fn of(class: &BlockClass, chunk_bytes: u64) -> Option<ChunkCut> {
        let first =
            |blocks: u64| (blocks.div_ceil(BLOCKS) * LINE as u64).next_multiple_of(class.align);
        let mut blocks = chunk_bytes / class.block_bytes;
        while blocks > 0 && first(blocks) + blocks * class.block_bytes > chunk_bytes {
            blocks -= 1;
        }
        (blocks > 0).then(|| ChunkCut {
            block_bytes: class.block_bytes,
            first: first(blocks),
            blocks,
        })
    }

    pub(super) fn groups(&self) -> u64 {
        self.blocks.div_ceil(BLOCKS)
    }
}

/// The use of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkUse {
    Free,
    Head,
    Slab(usize),
    /// The first chunk of a run of this many chunks.
    Run(u32),
    /// A later chunk of a run.
    Inside,
}

/// The group from which a worker allocates blocks. Empty at first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockGroup {
    at: Off,
    /// Bits that were clear when the worker took the group and have not been used since.
    free: [u64; 7],
    first: Off,
}

impl BlockGroup {
    fn take(&mut self) -> Option<u64> {
        let word = self.free.iter().position(|bits| *bits != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        Some(word as u64 * 64 + u64::from(bit))
    }
}

/// Groups of one class that may have free blocks.
#[derive(Debug, Default)]
struct SizeClassList {
    ready: BTreeSet<u64>,
    /// Slabs of before the open that have not been scanned yet.
    unknown: BTreeSet<u32>,
    owned: BTreeSet<u64>,
}

impl SizeClassList {
    fn take(&mut self) -> Option<u64> {
        let at = *self.ready.difference(&self.owned).next()?;
        self.ready.remove(&at);
        self.owned.insert(at);
        Some(at)
    }
}

/// The allocator's state in DRAM.
pub(super) struct PoolHeap {
    contexts_at: Off,
    contexts: u32,
    first: Off,
    chunk_bytes: u64,
    cuts: Vec<ChunkCut>,
    uses: Mutex<Vec<ChunkUse>>,
    group_lists: Vec<Mutex<SizeClassList>>,
    contexts_free: Mutex<BTreeSet<u32>>,
    pub(super) failure: Arc<SharedFailure>,
}

impl PoolHeap {
    pub(super) fn new(
        contexts_at: Off,
        contexts: u32,
        first: Off,
        chunks: u32,
        chunk_bytes: u64,
        classes: &[BlockClass],
    ) -> Result<PoolHeap, OpenError> {
        assert!(
            classes.len() <= CLASSES,
            "a context's line names the groups of at most {CLASSES} classes"
        );
        let cut = |class: &BlockClass| {
            ChunkCut::of(class, chunk_bytes).ok_or(OpenError::Chunks {
                block_bytes: class.block_bytes,
                chunk_bytes,
            })
        };
        Ok(PoolHeap {
            contexts_at,
            contexts,
            first,
            chunk_bytes,
            cuts: classes.iter().map(cut).collect::<Result<_, _>>()?,
            uses: Mutex::new(vec![ChunkUse::Free; chunks as usize]),
            group_lists: classes.iter().map(|_| Mutex::default()).collect(),
            contexts_free: Mutex::new((0..contexts).collect()),
            failure: Arc::default(),
        })
    }

    pub(super) fn take_head(&self, chunks: u32) {
        let mut uses = unpoisoned(self.uses.lock());
        uses[..chunks as usize].fill(ChunkUse::Head);
    }

    pub(super) fn contexts(&self) -> u32 {
        self.contexts
    }

    /// Returns the offset of word `n` of context `ctx`'s line.
    pub(super) fn ctx_word(&self, ctx: u32, n: u64) -> Off {
        self.contexts_at
            .plus(u64::from(ctx) * LINE as u64 + n * WORD as u64)
    }

    /// Returns the offset of the word of chunk `chunk`.
    fn record_of(&self, chunk: u32) -> Off {
        self.ctx_word(self.contexts, u64::from(chunk))
    }

    /// Returns the end of the head, after the words of all chunks.
    pub(super) fn head_end(&self) -> Off {
        let chunks = unpoisoned(self.uses.lock()).len();
        self.record_of(chunks as u32)
    }

    pub(super) fn take_ctx(&self) -> Result<u32, IndexError> {
        let mut free = unpoisoned(self.contexts_free.lock());
        free.pop_first().ok_or(IndexError::Workers {
            most: self.contexts,
        })
    }

    pub(super) fn no_groups(&self) -> Vec<BlockGroup> {
        vec![BlockGroup::default(); self.cuts.len()]
    }

    /// Takes back a worker's context and its groups.
    pub(super) fn give_back(&self, ctx: u32, groups: Vec<BlockGroup>) {
        for (list, group) in self.group_lists.iter().zip(groups) {
            let mut list = unpoisoned(list.lock());
            list.owned.remove(&group.at.0);
            if group.free != [0; 7] {
                list.ready.insert(group.at.0);
            }
        }
        let mut free = unpoisoned(self.contexts_free.lock());
        free.insert(ctx);
    }

    fn chunk(&self, chunk: u32) -> Off {
        self.first.plus(u64::from(chunk) * self.chunk_bytes)
    }

    /// Returns the number of the chunk that would contain `at`; it may lie past the pool's end.
    fn chunk_of(&self, at: Off) -> Option<u32> {
        let chunk = at.0.checked_sub(self.first.0)? / self.chunk_bytes;
        u32::try_from(chunk).ok()
    }

    pub(super) fn use_of(&self, chunk: u32) -> Option<ChunkUse> {
        let uses = unpoisoned(self.uses.lock());
        uses.get(chunk as usize).copied()
    }

    /// Returns the block or run that starts at `at`, allocated or not.
    pub(super) fn block_at(&self, at: Off) -> Option<HeapBlock> {
        let chunk = self.chunk_of(at)?;
        let class = match self.use_of(chunk)? {
            ChunkUse::Slab(class) => Some(class),
            ChunkUse::Run(_) => None,
            ChunkUse::Free | ChunkUse::Head | ChunkUse::Inside => return None,
        };
        let within = at.0 - self.chunk(chunk).0;
        let starts = match class {
            None => within == 0,
            Some(class) => {
                let cut = &self.cuts[class];
                let from_first = within.checked_sub(cut.first)?;
                from_first.is_multiple_of(cut.block_bytes)
                    && from_first / cut.block_bytes < cut.blocks
            }
        };
        starts.then_some(HeapBlock { at, class })
    }

    /// Returns the bytes of the run that starts at `at`.
    pub(super) fn run_bytes(&self, at: Off) -> Option<u64> {
        let chunk = self.chunk_of(at).filter(|chunk| self.chunk(*chunk) == at)?;
        match self.use_of(chunk)? {
            ChunkUse::Run(len) => Some(u64::from(len) * self.chunk_bytes),
            ChunkUse::Free | ChunkUse::Head | ChunkUse::Slab(_) | ChunkUse::Inside => None,
        }
    }

    /// Returns the group of the block of `class` at `at`, and the block's number in the group.
    fn group_of(&self, at: Off, class: usize) -> (Off, u64) {
        let chunk = self.chunk_of(at).expect("a block lies in a chunk");
        let cut = &self.cuts[class];
        let n = (at.0 - self.chunk(chunk).0 - cut.first) / cut.block_bytes;
        let group = self.chunk(chunk).plus(n / BLOCKS * LINE as u64);
        (group, n % BLOCKS)
    }

    /// Returns the first block of the group at `at` and its number of blocks, or `None` if `at` is no group of `class`.
    pub(super) fn blocks_of(&self, at: Off, class: usize) -> Option<(Off, u64)> {
        let chunk = self.chunk_of(at)?;
        let cut = self.cuts.get(class)?;
        let group = (at.0 - self.chunk(chunk).0) / LINE as u64;
        if self.use_of(chunk)? != ChunkUse::Slab(class)
            || group >= cut.groups()
            || !at.0.is_multiple_of(LINE as u64)
        {
            return None;
        }
        let first = self
            .chunk(chunk)
            .plus(cut.first + group * BLOCKS * cut.block_bytes);
        Some((first, BLOCKS.min(cut.blocks - group * BLOCKS)))
    }

    /// Returns block `n` of the group of `class` whose first block is at `first`.
    pub(super) fn nth_block(&self, first: Off, n: u64, class: usize) -> HeapBlock {
        HeapBlock {
            at: first.plus(n * self.cuts[class].block_bytes),
            class: Some(class),
        }
    }

    /// Returns the groups of a slab of `class`.
    pub(super) fn groups_of(&self, chunk: u32, class: usize) -> impl Iterator<Item = Off> {
        let first = self.chunk(chunk);
        (0..self.cuts[class].groups()).map(move |n| first.plus(n * LINE as u64))
    }

    /// Takes `len` contiguous free chunks for `what`. Returns the first.
    fn take_chunks(&self, len: u64, what: ChunkUse) -> Result<u32, IndexError> {
        let mut uses = unpoisoned(self.uses.lock());
        let mut free = 0;
        let end = uses.iter().position(|u| {
            free = if *u == ChunkUse::Free { free + 1 } else { 0 };
            free == len
        });
        let Some(end) = end else {
            situation!("ground.full");
            let bytes = len * self.chunk_bytes;
            return Err(IndexError::Full { bytes });
        };
        let start = end + 1 - len as usize;
        uses[start..=end].fill(ChunkUse::Inside);
        uses[start] = what;
        Ok(start as u32)
    }

    /// Marks the chunks of a run free.
    pub(super) fn forget_run(&self, run: HeapBlock) {
        let chunk = self.chunk_of(run.at).expect("a run lies in chunks") as usize;
        let mut uses = unpoisoned(self.uses.lock());
        if let ChunkUse::Run(len) = uses[chunk] {
            uses[chunk..][..len as usize].fill(ChunkUse::Free);
        }
    }

    /// Returns the bytes of the chunks in use, the head included.
    pub(super) fn bytes_used(&self) -> u64 {
        let uses = unpoisoned(self.uses.lock());
        uses.iter().filter(|u| **u != ChunkUse::Free).count() as u64 * self.chunk_bytes
    }

    /// Makes a freed block or run available again.
    pub(super) fn make_available(&self, block: HeapBlock) {
        match block.class {
            None => self.forget_run(block),
            Some(class) => {
                let (group, _) = self.group_of(block.at, class);
                self.make_groups_available(class, std::iter::once(group));
            }
        }
    }

    /// Makes the free blocks of these groups of `class` available again.
    fn make_groups_available(&self, class: usize, groups: impl Iterator<Item = Off>) {
        let mut list = unpoisoned(self.group_lists[class].lock());
        list.ready.extend(groups.map(|group| group.0));
    }

    /// Sets the use of each chunk from its word, at open.
    pub(super) fn take_recorded(&self, records: &[u64]) -> Result<(), IndexError> {
        let mut uses = unpoisoned(self.uses.lock());
        let mut chunk = 0;
        while chunk < uses.len() {
            let (record, head) = (records[chunk], uses[chunk] == ChunkUse::Head);
            let (what, rest) = (record & 0xff, record >> 8);
            let mut len = 1;
            match what {
                0 if rest == 0 => {}
                SLAB if !head && rest < self.cuts.len() as u64 => {
                    uses[chunk] = ChunkUse::Slab(rest as usize);
                    let mut list = unpoisoned(self.group_lists[rest as usize].lock());
                    list.unknown.insert(chunk as u32);
                }
                RECORD if !head && (1..=(uses.len() - chunk) as u64).contains(&rest) => {
                    len = rest as usize;
                    uses[chunk..][..len].fill(ChunkUse::Inside);
                    uses[chunk] = ChunkUse::Run(rest as u32);
                }
                _ => {
                    return Err(IndexError::damaged(format!(
                        "the word of chunk {chunk} is {record:#x}, which is no valid use"
                    )));
                }
            }
            chunk += len;
        }
        Ok(())
    }
}

impl<M: Medium> TablePool<M> {
    /// Reads the words of all chunks.
    pub(super) fn read_chunks(&self) -> Result<(), OpenError> {
        let chunks = self.pool.segments();
        let records: Vec<u64> = (0..chunks)
            .map(|chunk| self.medium().load(self.heap.record_of(chunk)))
            .collect();
        Ok(self.heap.take_recorded(&records)?)
    }

    /// Allocates a block of `class`, with its old content. Its bit is flushed. Link the block only after the worker's
    /// next drain, and make the link durable before allocating another (IX-HEAP-2).
    pub(crate) fn allocate(
        &self,
        worker: &mut TableWorker,
        class: usize,
    ) -> Result<Off, IndexError> {
        let _for = Category::Allocator.scope();
        let (medium, heap) = (self.medium(), &self.heap);
        heap.failure.check()?; // IX-HEAP-7
        loop {
            let Some(n) = worker.groups[class].take() else {
                self.take_group(worker, class)?;
                continue;
            };
            let group = &worker.groups[class];
            medium.store(&mut worker.ctx, group.at, n + 1); // IX-HEAP-1
            self.change_bit(&mut worker.ctx, group.at, n, true);
            return Ok(heap.nth_block(group.first, n, class).at);
        }
    }

    /// Sets or clears a bit of a group, and flushes it.
    pub(super) fn change_bit(&self, ctx: &mut PersistCtx, group: Off, n: u64, set: bool) {
        self.change_bits(ctx, group, [(n / 64, 1 << (n % 64))], set);
    }

    /// Sets or clears bits of a group, and flushes it. `words` are pairs of a word's number and its bits.
    fn change_bits(
        &self,
        ctx: &mut PersistCtx,
        group: Off,
        words: impl IntoIterator<Item = (u64, u64)>,
        set: bool,
    ) {
        let medium = self.medium();
        for (n, these) in words {
            let at = group.plus(WORD as u64 * (1 + n));
            let mut bits = medium.load(at);
            loop {
                let new = if set { bits | these } else { bits & !these };
                match medium.cas(ctx, at, bits, new) {
                    Ok(_) => break,
                    Err(found) => bits = found,
                }
            }
        }
        medium.flush(ctx, group, LINE);
    }

    /// Returns whether a bit of a group is set.
    pub(super) fn is_set(&self, group: Off, n: u64) -> bool {
        let bits = self.medium().load(group.plus(WORD as u64 * (1 + n / 64)));
        bits >> (n % 64) & 1 == 1
    }

    /// Gives `worker` another group of `class` in place of its exhausted one.
    fn take_group(&self, worker: &mut TableWorker, class: usize) -> Result<(), IndexError> {
        let (medium, heap) = (self.medium(), &self.heap);
        let old = std::mem::take(&mut worker.groups[class]);
        let list = || unpoisoned(heap.group_lists[class].lock());
        list().owned.remove(&old.at.0);
        loop {
            let taken = list().take();
            let Some(at) = taken.map(Off) else {
                self.add_groups(worker, class)?;
                continue;
            };
            let (first, blocks) = heap
                .blocks_of(at, class)
                .expect("the list holds only groups");
            let mut free = [0; 7];
            for (word, free) in (0..).zip(&mut free) {
                let bits = blocks.saturating_sub(word * 64).min(64);
                let all = 1_u64.checked_shl(bits as u32).map_or(u64::MAX, |b| b - 1);
                *free = !medium.load(at.plus(WORD as u64 * (1 + word))) & all;
            }
            if free == [0; 7] {
                list().owned.remove(&at.0);
                continue;
            }
            worker.groups[class] = BlockGroup { at, free, first };
            let named = heap.ctx_word(worker.number, class as u64);
            return worker.put_word(medium, named, at.0); // IX-HEAP-4
        }
    }

    /// Adds groups to the list of `class`: those of a slab not scanned yet, or of a new one.
    fn add_groups(&self, worker: &mut TableWorker, class: usize) -> Result<(), IndexError> {
        let (medium, heap) = (self.medium(), &self.heap);
        let unknown = {
            let mut list = unpoisoned(heap.group_lists[class].lock());
            list.unknown.pop_first()
        };
        let chunk = match unknown {
            Some(chunk) => {
                situation!("ground.slab_of_before");
                chunk
            }
            None => {
                situation!("ground.slab_made");
                let chunk = heap.take_chunks(1, ChunkUse::Slab(class))?;
                for at in heap.groups_of(chunk, class) {
                    medium.copy_in(&mut worker.ctx, at, &[&[0; LINE]]);
                }
                worker.commit(medium)?;
                let record = heap.record_of(chunk);
                worker.put_word(medium, record, SLAB | (class as u64) << 8)?;
                chunk
            }
        };
        heap.make_groups_available(class, heap.groups_of(chunk, class));
        Ok(())
    }

    /// Allocates a run of at least `bytes`, with its old content. Its record is flushed. Link the run only after the
    /// worker's next drain, and make the link durable before allocating another (IX-HEAP-2).
    pub(crate) fn allocate_run(
        &self,
        worker: &mut TableWorker,
        bytes: u64,
    ) -> Result<Off, IndexError> {
        let _for = Category::Allocator.scope();
        let (medium, heap) = (self.medium(), &self.heap);
        let len = bytes.div_ceil(heap.chunk_bytes).max(1);
        let chunk = heap.take_chunks(len, ChunkUse::Run(len as u32))?;
        let intent = heap.ctx_word(worker.number, RUN);
        worker.put_word(medium, intent, heap.chunk(chunk).0)?; // IX-HEAP-1
        let record = heap.record_of(chunk);
        medium.store(&mut worker.ctx, record, RECORD | len << 8);
        medium.flush(&mut worker.ctx, record, WORD);
        Ok(heap.chunk(chunk))
    }

    /// Names the block or run at `at` durably in the context's line, before it is unlinked (IX-HEAP-3). Call
    /// [`TablePool::free`] after it is unlinked, before the worker announces a third.
    #[track_caller]
    pub(crate) fn about_to_free(
        &self,
        worker: &mut TableWorker,
        at: Off,
    ) -> Result<HeapBlock, IndexError> {
        let _for = Category::Allocator.scope();
        let (medium, block) = (self.medium(), self.block(at)?);
        let named = self
            .heap
            .ctx_word(worker.number, FREED + worker.freeing % 2);
        worker.freeing += 1;
        worker.put_word(medium, named, at.0)?;
        Ok(block)
    }

    /// Stores a word for the table's recovery in the worker's line. Durable on `Ok`.
    #[track_caller]
    pub(crate) fn set_note(&self, worker: &mut TableWorker, word: u64) -> Result<(), IndexError> {
        let at = self.heap.ctx_word(worker.number, NOTE);
        worker.put_word(self.medium(), at, word)
    }

    /// Returns the word that the worker of context `number` stored last with [`TablePool::note`]; 0: none.
    pub(crate) fn note_of(&self, number: u32) -> u64 {
        self.medium().load(self.heap.ctx_word(number, NOTE))
    }

    /// Frees a block or run that is no longer referenced or read. A run can be reused after the worker's next drain.
    pub(crate) fn free(&self, worker: &mut TableWorker, block: HeapBlock) {
        let _for = Category::Allocator.scope();
        self.clear_on_medium(&mut worker.ctx, block);
        match block.class {
            None => worker.freed.push(block), // IX-HEAP-6
            Some(_) => self.heap.make_available(block),
        }
    }

    /// Frees blocks of `class`: clears their bits, runs `between`, which drains, and only then makes the blocks
    /// available again.
    pub(crate) fn free_all<R>(
        &self,
        worker: &mut TableWorker,
        class: usize,
        mut blocks: Vec<Off>,
        between: impl FnOnce(&mut TableWorker) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        blocks.sort_unstable();
        let bits = blocks.into_iter().map(|at| self.heap.group_of(at, class));
        let bits: Vec<_> = bits.collect();
        let groups = || bits.chunk_by(|a, b| a.0 == b.0);
        for bits in groups() {
            let words = bits.chunk_by(|a, b| a.1 / 64 == b.1 / 64).map(|bits| {
                let these = bits.iter().fold(0, |these, (_, n)| these | 1 << (n % 64));
                (bits[0].1 / 64, these)
            });
            self.change_bits(&mut worker.ctx, bits[0].0, words, false);
        }
        let result = between(worker)?;
        let groups = groups().map(|bits| bits[0].0);
        self.heap.make_groups_available(class, groups);
        Ok(result)
    }

    /// Clears the bit or the record of `block` on the medium, and flushes it.
    pub(super) fn clear_on_medium(&self, ctx: &mut PersistCtx, block: HeapBlock) {
        match block.class {
            Some(class) => {
                let (group, n) = self.heap.group_of(block.at, class);
                self.change_bit(ctx, group, n, false);
            }
            None => {
                let chunk = self.heap.chunk_of(block.at).expect("a run lies in chunks");
                let record = self.heap.record_of(chunk);
                self.medium().store(ctx, record, 0);
                self.medium().flush(ctx, record, WORD);
            }
        }
    }

    /// Flushes the bit of `block`. Does nothing for a run.
    pub(super) fn flush_bit(&self, ctx: &mut PersistCtx, block: HeapBlock) {
        if let Some(class) = block.class {
            let (group, _) = self.heap.group_of(block.at, class);
            self.medium().flush(ctx, group, LINE);
        }
    }

    /// Returns whether the medium records `block` as allocated.
    pub(super) fn is_handed_out(&self, block: HeapBlock) -> bool {
        match block.class {
            None => {
                let chunk = self.heap.chunk_of(block.at).expect("a run lies in chunks");
                self.medium().load(self.heap.record_of(chunk)) != 0
            }
            Some(class) => {
                let (group, n) = self.heap.group_of(block.at, class);
                self.is_set(group, n)
            }
        }
    }

    /// Returns the bytes of far memory in use, in whole chunks.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.heap.bytes_used()
    }
}
