//! The pool of a table: a root of 16 words, and an allocator of blocks and runs.
//!
//! ```text
//!   superblock   chunk 0: the head                                            chunk 1 ...
//!   ┌──────────┬───────────────────────────────────────────────────────────┬──────────┬─ ... ─┐
//!   │ kind,    │ root: 16 words │reserved │ contexts: 1 line   │ chunks: 1  │ slab or  │       │
//!   │ config,  │ (2 lines)      │key      │ each               │ word each  │ run      │       │
//!   │ seed     │                │(1 line) │                    │            │          │       │
//!   └──────────┴───────────────────────────────────────────────────────────┴──────────┴─ ... ─┘
//! ```
//!
//! The pool's superblock holds the kind of table, its configuration and its hash seed. It is written once, as the last
//! step of the table's creation. The root's words belong to the table; a word is replaced by one store. Chunks are the
//! pool's segments; `heap.rs` allocates them.

mod follow;
mod heap;
mod recover;
mod run;
mod worker;

use farbank_pm::medium::persist;
use farbank_pm::pool::{CopiedPoolPolicy, Pool, PoolIdentity, PoolLayout, PoolRoot, ROOT_WORDS};
use farbank_pm::sync::Arc;
use farbank_pm::{LINE, Medium, Off, PersistCtx, Poisoned, WORD};

use crate::error::{IndexError, OpenError};
use crate::failure::SharedFailure;
use crate::hash::{self, Hasher, Hashing};
use crate::kind_word::kind_of;
use crate::locks::LockTable;
use heap::PoolHeap;
pub(crate) use heap::{BlockClass, HeapBlock};
pub(crate) use run::BucketRun;
pub use worker::TableWorker;

/// Words of the root.
const ROOT: u64 = 16;
/// Index of the first configuration word in the superblock. The words before it are the kind and the number of
/// contexts.
const CONFIG_FROM: usize = 2;
/// Index of the superblock's word for the table's hash seed. The word after it belongs to the cache engine.
const SEED: usize = ROOT_WORDS - 2;
/// Maximum number of configuration words of a table.
pub(crate) const CONFIG_WORDS: usize = SEED - CONFIG_FROM;

/// Layout of the pool of a new table.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Bytes in a chunk, from which the allocator cuts blocks: a power of two, at least 4 KiB.
    pub chunk_bytes: u64,
    /// Maximum number of workers at a time.
    pub contexts: u32,
    /// Identity of the pool; `None`: random.
    pub identity: Option<PoolIdentity>,
    /// The hash function of a new table.
    pub hashing: Hashing,
}

impl PoolPlan {
    /// Returns the default plan with the published hash, for figures that are compared with published ones.
    #[must_use]
    pub fn published() -> PoolPlan {
        PoolPlan {
            hashing: Hashing::Published,
            ..PoolPlan::default()
        }
    }
}

impl Default for PoolPlan {
    /// Chunks of 1 MiB, 128 workers, a randomly seeded hash function.
    fn default() -> PoolPlan {
        PoolPlan {
            chunk_bytes: 1 << 20,
            contexts: 128,
            identity: None,
            hashing: Hashing::Random,
        }
    }
}

/// The pool of a table, with its heap and its hash function.
pub(crate) struct TablePool<M> {
    pool: Pool<M>,
    config: [u64; CONFIG_WORDS],
    /// Seed of the table's hash; 0 means the published hash.
    seed: u64,
    hasher: Hasher,
    heap: Arc<PoolHeap>,
    outlier_lock: LockTable,
}

impl<M: Medium> TablePool<M> {
    /// Creates a pool with blocks of `classes` on `medium`, over any earlier content. The pool holds no table before
    /// [`TablePool::finish`].
    pub(crate) fn create(
        medium: M,
        plan: &PoolPlan,
        classes: &[BlockClass],
    ) -> Result<TablePool<M>, OpenError> {
        let layout = PoolLayout {
            segment_bytes: plan.chunk_bytes,
        };
        let mut ctx = PersistCtx::new(0);
        let pool = match plan.identity {
            None => Pool::create(medium, &mut ctx, &layout)?,
            Some(identity) => Pool::create_as(medium, &mut ctx, &layout, identity)?,
        };
        let seed = plan.hashing.word(pool.id());
        let ground = TablePool::over(pool, plan.contexts, seed, [0; CONFIG_WORDS], classes)?;
        ground.clear_head(&mut ctx)?;
        Ok(ground)
    }

    /// Opens the pool of a table of kind `name`. No blocks may be allocated before [`TablePool::recover`].
    pub(crate) fn open(
        medium: M,
        name: &'static str,
        classes: impl FnOnce(&[u64; CONFIG_WORDS]) -> Result<Vec<BlockClass>, OpenError>,
    ) -> Result<TablePool<M>, OpenError> {
        // A table has no clean close, so a copied pool cannot be distinguished from the pool of a table in use.
        let pool = Pool::open_with(medium, &mut PersistCtx::new(0), CopiedPoolPolicy::Accept)?;
        let root = pool.root();
        let seed = root[SEED];
        if root[0] == kind_of(name, u64::from(seed == 0)) {
            return Err(OpenError::Damaged {
                what: format!(
                    "the superblock's word {SEED}, the hash seed, is {seed:#x}, which contradicts its word 0: {:#x}",
                    root[0]
                ),
            });
        }
        if root[0] != kind_of(name, seed) {
            return Err(OpenError::Kind {
                expected: name,
                found: root[0],
            });
        }
        let contexts = u32::try_from(root[1]).unwrap_or(u32::MAX);
        let config = std::array::from_fn(|n| root[CONFIG_FROM + n]);
        let classes = classes(&config)?;
        let ground = TablePool::over(pool, contexts, seed, config, &classes)?;
        ground.accept_head()?;
        ground.read_chunks()?;
        Ok(ground)
    }

    fn over(
        pool: Pool<M>,
        contexts: u32,
        seed: u64,
        config: [u64; CONFIG_WORDS],
        classes: &[BlockClass],
    ) -> Result<TablePool<M>, OpenError> {
        let (chunks, chunk_bytes) = (pool.segments(), pool.segment_bytes());
        let fixed = ROOT * WORD as u64 + LINE as u64;
        let head_bytes =
            fixed + u64::from(contexts) * LINE as u64 + u64::from(chunks) * WORD as u64;
        let head_chunks = head_bytes.div_ceil(chunk_bytes);
        if head_chunks >= u64::from(chunks) {
            return Err(OpenError::Damaged {
                what: format!(
                    "the head for {contexts} contexts leaves no free chunk among {chunks} chunks of {chunk_bytes} bytes"
                ),
            });
        }
        let head = pool.segment(0);
        let heap = PoolHeap::new(
            head.plus(fixed),
            contexts,
            head,
            chunks,
            chunk_bytes,
            classes,
        )?;
        heap.take_head(head_chunks as u32);
        Ok(TablePool {
            pool,
            config,
            seed,
            hasher: Hasher::of_word(seed, [hash::SEED; 2])[0],
            outlier_lock: LockTable::new(&heap.failure, 0, 1, false),
            heap: Arc::new(heap),
        })
    }

    fn clear_head(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let (from, to) = (self.pool.segment(0), self.heap.head_end());
        self.clear(ctx, from, to.0 - from.0);
        let ticket = self.medium().drain(ctx);
        self.medium().wait_until_durable(ticket)
    }

    /// Stores zeros. They are durable after the next drain.
    #[track_caller]
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, at: Off, bytes: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for from in (0..bytes).step_by(ZEROS.len()) {
            let len = (bytes - from).min(ZEROS.len() as u64);
            let zeros = &ZEROS[..len as usize];
            self.medium().copy_in(ctx, at.plus(from), &[zeros]);
        }
    }

    /// Makes the head durable, with the stores that a killed process may have left volatile, before any code relies on
    /// it.
    fn accept_head(&self) -> Result<(), Poisoned> {
        let (from, to) = (self.pool.segment(0), self.heap.head_end());
        let bytes = (to.0 - from.0) as usize;
        persist(self.medium(), &mut PersistCtx::new(0), from, bytes)
    }

    /// Makes these bytes durable, with the stores that a killed process may have left volatile. If the medium fails, no
    /// thread may use them.
    #[track_caller]
    pub(crate) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        at: Off,
        bytes: u64,
    ) -> Result<(), IndexError> {
        Ok(persist(self.medium(), &mut worker.ctx, at, bytes as usize)?)
    }

    /// Writes the kind, the configuration and the seed to the superblock. The caller has made all other parts durable.
    /// From now on the pool opens as a table. Durable on `Ok`.
    pub(crate) fn finish(
        mut self,
        name: &'static str,
        config: &[u64],
    ) -> Result<TablePool<M>, OpenError> {
        let mut root: PoolRoot = [0; ROOT_WORDS];
        root[0] = kind_of(name, self.seed);
        root[SEED] = self.seed;
        root[1] = u64::from(self.heap.contexts());
        root[CONFIG_FROM..][..config.len()].copy_from_slice(config);
        self.config[..config.len()].copy_from_slice(config);
        self.pool.set_root(&mut PersistCtx::new(0), &root)?;
        Ok(self)
    }

    /// Returns the hash of `key` in this table.
    #[inline]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        self.hasher.hash(key)
    }

    /// Returns the hash function of this table.
    pub(crate) fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Returns the two hash functions of a table that uses two. `starts` are the start values of the published ones.
    pub(crate) fn hashers(&self, starts: [u64; 2]) -> [Hasher; 2] {
        Hasher::of_word(self.seed, starts)
    }

    /// Returns the configuration words the table was created with.
    pub(crate) fn config(&self) -> &[u64; CONFIG_WORDS] {
        &self.config
    }

    /// Returns the bytes of a chunk, the size of the smallest run.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.pool.segment_bytes()
    }

    /// Returns the medium.
    pub(crate) fn medium(&self) -> &M {
        self.pool.medium()
    }

    /// Returns the offset of word `n` of the table's root. The word is zero in a new pool.
    pub(crate) fn root(&self, n: u64) -> Off {
        assert!(n < ROOT, "the root has {ROOT} words");
        self.pool.segment(0).plus(n * WORD as u64)
    }

    /// Replaces word `n` of the root. Durable on `Ok`.
    #[track_caller]
    pub(crate) fn set_root(
        &self,
        worker: &mut TableWorker,
        n: u64,
        word: u64,
    ) -> Result<(), IndexError> {
        worker.put_word(self.medium(), self.root(n), word)
    }

    /// Returns the offset of the reserved key's line (the key that means an empty slot).
    pub(crate) fn reserved_key_line(&self) -> Off {
        self.pool.segment(0).plus(ROOT * WORD as u64)
    }

    /// Returns the record of the table's first failed drain.
    pub(crate) fn failure(&self) -> &Arc<SharedFailure> {
        &self.heap.failure
    }

    /// Creates a lock for every `granule_bytes` of the medium, rounded down to a power of two. `found` says whether the
    /// table was opened, not created.
    pub(crate) fn locks(&self, granule_bytes: u64, found: bool) -> LockTable {
        LockTable::new(self.failure(), self.medium().len(), granule_bytes, found)
    }

    /// Returns the reserved key's lock, at offset 0.
    pub(crate) fn reserved_key_lock(&self) -> &LockTable {
        &self.outlier_lock
    }

    /// Returns the number of contexts the pool was created for.
    pub(crate) fn contexts(&self) -> u32 {
        self.heap.contexts()
    }

    /// Returns a new worker.
    pub(crate) fn worker(&self) -> Result<TableWorker, IndexError> {
        TableWorker::new(&self.heap)
    }
}
