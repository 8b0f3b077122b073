//! What every table stands on: a pool, a few words that lead to the table, blocks and runs.
//!
//! ```text
//!   superblock   chunk 0: the head                                            chunk 1 ...
//!   ┌──────────┬───────────────────────────────────────────────────────────┬──────────┬─ ... ─┐
//!   │ kind,    │ root: 16 words │ outlier │ contexts: a line each │ chunks: a  │ slab or  │       │
//!   │ config,  │ (two lines)    │ (a line)│                    │ word each  │ run      │       │
//!   │ seed     │                │         │                    │            │          │       │
//!   └──────────┴───────────────────────────────────────────────────────────┴──────────┴─ ... ─┘
//! ```
//!
//! What kind of table it is, how it was configured and the seed of its hash stand in the pool's superblock, written once, last of
//! all when the table is made. The root's words are the table's own: a word is replaced by one store. Chunks are
//! the pool's segments; `heap.rs` hands them out.

mod failure;
mod follow;
mod heap;
mod recover;
mod run;
mod worker;

use std::fmt;

use farbank_pm::medium::persist;
use farbank_pm::pool::{
    CopiedPoolPolicy, Pool, PoolError, PoolIdentity, PoolLayout, PoolRoot, ROOT_WORDS,
};
use farbank_pm::sync::Arc;
use farbank_pm::{LINE, Medium, Off, PersistCtx, Poisoned, WORD};

use crate::hash::{self, Hasher, Hashing};
use crate::index::IndexError;
use crate::locks::LockTable;
pub(crate) use failure::SharedFailure;
use heap::PoolHeap;
pub(crate) use heap::{BlockClass, HeapBlock};
pub(crate) use run::BucketRun;
pub use worker::TableWorker;

/// Words of the root.
const ROOT: u64 = 16;
/// Words of the superblock before the table's configuration: the kind, the contexts.
const CONFIG_FROM: usize = 2;
/// The superblock's word for the seed of the table's hash. The one after it is a cache's.
const SEED: usize = ROOT_WORDS - 2;
/// Words a table may keep of its configuration.
pub(crate) const CONFIG_WORDS: usize = SEED - CONFIG_FROM;

/// How the pool of a new table is laid out.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Bytes in a chunk, which is what the allocator cuts blocks from: a power of two from 4 KiB.
    pub chunk_bytes: u64,
    /// Most workers at a time.
    pub contexts: u32,
    /// Who the pool is; `None`: random.
    pub identity: Option<PoolIdentity>,
    /// The hash function of a new table.
    pub hashing: Hashing,
}

impl PoolPlan {
    /// The default one, with the study's hash: for figures that are compared with published ones.
    #[must_use]
    pub fn published() -> PoolPlan {
        PoolPlan {
            hashing: Hashing::Published,
            ..PoolPlan::default()
        }
    }
}

impl Default for PoolPlan {
    /// Chunks of 1 MiB, 128 workers, a hash function of the table's own.
    fn default() -> PoolPlan {
        PoolPlan {
            chunk_bytes: 1 << 20,
            contexts: 128,
            identity: None,
            hashing: Hashing::Random,
        }
    }
}

/// Why a table cannot be made or opened. Nothing was changed that a table had.
#[derive(Debug)]
pub enum OpenError {
    /// The pool is none, is damaged, or its medium failed.
    Pool(PoolError),
    /// Another kind of table, or none, is in the pool.
    Kind {
        /// What was looked for.
        expected: &'static str,
        /// What the superblock names.
        found: u64,
    },
    /// The table is there, laid out as another version of Farbank does it.
    Layout {
        /// The number of the layout this one knows.
        expected: u64,
        /// What the superblock names.
        found: u64,
    },
    /// A word in the pool is none that a table writes.
    Damaged {
        /// What is wrong, and where.
        what: String,
    },
    /// The table's blocks do not fit into the pool's chunks.
    Chunks {
        /// Bytes of one that does not.
        block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The table did not fit, or the medium failed.
    Refused(IndexError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Pool(error) => error.fmt(f),
            OpenError::Kind { expected, found: 0 } => write!(
                f,
                "no table is in this pool, {expected} was looked for: making it may have been cut short; create it again"
            ),
            OpenError::Kind { expected, found } => write!(
                f,
                "the pool holds {:?}, {expected} was looked for; open it as what it is",
                name_of(*found)
            ),
            OpenError::Layout { expected, found } => write!(
                f,
                "the table is laid out as number {found}, and this Farbank knows {expected} alone; open it with the version that made it"
            ),
            OpenError::Damaged { what } => IndexError::damaged(what).fmt(f),
            OpenError::Chunks {
                block_bytes,
                chunk_bytes,
            } => write!(
                f,
                "blocks of {block_bytes} bytes do not fit into chunks of {chunk_bytes}; make the pool with larger chunks"
            ),
            OpenError::Refused(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<PoolError> for OpenError {
    fn from(error: PoolError) -> OpenError {
        OpenError::Pool(error)
    }
}

impl From<IndexError> for OpenError {
    fn from(refused: IndexError) -> OpenError {
        match refused {
            IndexError::Damaged { what } => OpenError::Damaged { what },
            refused => OpenError::Refused(refused),
        }
    }
}

impl From<Poisoned> for OpenError {
    fn from(poisoned: Poisoned) -> OpenError {
        OpenError::Refused(poisoned.into())
    }
}

/// A table's kind as a word: its name, of seven letters at most, and a byte that is 1 if the table has a seed. So programs
/// that know of no seeds refuse such a table.
fn kind_of(name: &str, seed: u64) -> u64 {
    let mut word = [0; WORD];
    for (byte, letter) in word[..SEEDED].iter_mut().zip(name.bytes()) {
        *byte = letter;
    }
    word[SEEDED] = u8::from(seed != 0);
    u64::from_le_bytes(word)
}

/// The byte of a kind that says whether the table has a seed.
const SEEDED: usize = WORD - 1;

fn name_of(kind: u64) -> String {
    let letters = kind.to_le_bytes();
    String::from_utf8_lossy(&letters[..SEEDED])
        .trim_end_matches('\0')
        .into()
}

/// The pool of a table, and what leads to its parts.
pub(crate) struct TablePool<M> {
    pool: Pool<M>,
    config: [u64; CONFIG_WORDS],
    /// The seed of the table's hash; 0: it has none.
    seed: u64,
    hasher: Hasher,
    heap: Arc<PoolHeap>,
    outlier_lock: LockTable,
}

impl<M: Medium> TablePool<M> {
    /// Makes `medium` a pool whose blocks are of `classes`, over whatever is there. No table is in it before
    /// [`Ground::finish`].
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

    /// Opens the pool of a table called `name`. Blocks are not handed out before [`Ground::recover`].
    pub(crate) fn open(
        medium: M,
        name: &'static str,
        classes: impl FnOnce(&[u64; CONFIG_WORDS]) -> Result<Vec<BlockClass>, OpenError>,
    ) -> Result<TablePool<M>, OpenError> {
        // A table has no clean close, after which a copy could be told from one of a table in use.
        let pool = Pool::open_with(medium, &mut PersistCtx::new(0), CopiedPoolPolicy::Accept)?;
        let root = pool.root();
        let seed = root[SEED];
        if root[0] == kind_of(name, u64::from(seed == 0)) {
            return Err(OpenError::Damaged {
                what: format!(
                    "the superblock's word {SEED} for the seed of the hash is {seed:#x}, and its word 0 says otherwise: {:#x}",
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
                    "{chunks} chunks of {chunk_bytes} bytes have no room beside the head of {contexts} contexts"
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
        self.medium().settle(ticket)
    }

    /// Stores zeros, on their way to durability.
    #[track_caller]
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, at: Off, bytes: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for from in (0..bytes).step_by(ZEROS.len()) {
            let len = (bytes - from).min(ZEROS.len() as u64);
            let zeros = &ZEROS[..len as usize];
            self.medium().copy_in(ctx, at.plus(from), &[zeros]);
        }
    }

    /// Makes durable what a killed process may have left in the head before anybody builds on it.
    fn accept_head(&self) -> Result<(), Poisoned> {
        let (from, to) = (self.pool.segment(0), self.heap.head_end());
        let bytes = (to.0 - from.0) as usize;
        persist(self.medium(), &mut PersistCtx::new(0), from, bytes)
    }

    /// Makes durable what a killed process may have left in these bytes. If the medium fails, nobody is to see them.
    #[track_caller]
    pub(crate) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        at: Off,
        bytes: u64,
    ) -> Result<(), IndexError> {
        Ok(persist(self.medium(), &mut worker.ctx, at, bytes as usize)?)
    }

    /// Says what is in the pool, when all of it is durable: from now on it opens as a table. Durable on `Ok`.
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

    /// The hash of `key` in this table.
    #[inline]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        self.hasher.hash(key)
    }

    /// The hash function of this table.
    pub(crate) fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// The hash functions of a table with two: the published ones are from these start values.
    pub(crate) fn hashers(&self, starts: [u64; 2]) -> [Hasher; 2] {
        Hasher::of_word(self.seed, starts)
    }

    /// The words of configuration the table was made with.
    pub(crate) fn config(&self) -> &[u64; CONFIG_WORDS] {
        &self.config
    }

    /// Bytes of a chunk: what the smallest run takes.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.pool.segment_bytes()
    }

    /// The medium.
    pub(crate) fn medium(&self) -> &M {
        self.pool.medium()
    }

    /// Where word `n` of the table's root is. Zero in a new pool.
    pub(crate) fn root(&self, n: u64) -> Off {
        assert!(n < ROOT, "the root has {ROOT} words");
        self.pool.segment(0).plus(n * WORD as u64)
    }

    /// Replaces word `n` of the root. Durable, or refused, when it returns.
    #[track_caller]
    pub(crate) fn set_root(
        &self,
        worker: &mut TableWorker,
        n: u64,
        word: u64,
    ) -> Result<(), IndexError> {
        worker.put_word(self.medium(), self.root(n), word)
    }

    /// The line of the key that means empty.
    pub(crate) fn outlier(&self) -> Off {
        self.pool.segment(0).plus(ROOT * WORD as u64)
    }

    /// The first drain of the table that failed, if one has.
    pub(crate) fn failure(&self) -> &Arc<SharedFailure> {
        &self.heap.failure
    }

    /// A lock for every `granule_bytes` of the medium, rounded down to a power of two; whether what is there was `found`.
    pub(crate) fn locks(&self, granule_bytes: u64, found: bool) -> LockTable {
        LockTable::new(self.failure(), self.medium().len(), granule_bytes, found)
    }

    /// Its lock, at offset 0.
    pub(crate) fn outlier_lock(&self) -> &LockTable {
        &self.outlier_lock
    }

    /// Lanes the pool was made for.
    pub(crate) fn contexts(&self) -> u32 {
        self.heap.contexts()
    }

    /// One more worker.
    pub(crate) fn worker(&self) -> Result<TableWorker, IndexError> {
        TableWorker::new(&self.heap)
    }
}
