//! A pool: a medium with a superblock, cut into equal segments.
//!
//! ```text
//!   0        4096      8192        first segment               the end
//!   ┌────────┬─────────┬─ unused ─┬───────────┬───────────┬─ ... ─┐
//!   │ copy A │ copy B  │          │ segment 0 │ segment 1 │       │
//!   └────────┴─────────┴──────────┴───────────┴───────────┴─ ... ─┘
//! ```
//!
//! # Invariants
//! P1  An update of the superblock writes copy A, drains and waits, then copy B, drains and waits.
//!     Between updates both copies are equal, so one damaged copy loses nothing.
//! P2  Of two valid copies the one with the higher update number counts: a crash between the two
//!     writes leaves the newer, whole copy in A.

use std::fmt;

use crate::lane::Lane;
use crate::medium::{Medium, Off, Poisoned};

/// Words of the superblock that belong to the engine above: see its own documentation.
pub const ROOT_WORDS: usize = 40;

/// The engine's part of the superblock, replaced whole by [`Pool::set_root`].
pub type Root = [u64; ROOT_WORDS];

/// How a new pool is laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Bytes in a segment: a power of two from 4 KiB to 1 GiB.
    pub segment_bytes: u64,
}

/// Why a pool could not be made or opened. Nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// The medium refused.
    Poisoned(Poisoned),
    /// The bytes are no pool of ours, or a damaged one: what was found, what was expected, where.
    NotAPool(String),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Poisoned(p) => p.fmt(f),
            PoolError::NotAPool(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PoolError {}

/// A medium with a superblock.
pub struct Pool<M> {
    medium: M,
}

impl<M: Medium> Pool<M> {
    /// Makes a new, empty pool of all of `medium`. Durable on `Ok`.
    pub fn create(_medium: M, _lane: &mut Lane, _layout: &Layout) -> Result<Pool<M>, PoolError> {
        todo!()
    }
    /// Opens the pool on `medium`; repairs a damaged superblock copy from the other.
    pub fn open(_medium: M, _lane: &mut Lane) -> Result<Pool<M>, PoolError> {
        todo!()
    }
    /// The medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }
    /// The medium back, the pool closed.
    pub fn into_medium(self) -> M {
        self.medium
    }
    /// The secret, random identity of the pool.
    pub fn id(&self) -> [u8; 16] {
        todo!()
    }
    /// Bytes in a segment.
    pub fn segment_bytes(&self) -> u64 {
        todo!()
    }
    /// How many segments the pool has now.
    pub fn segments(&self) -> u32 {
        todo!()
    }
    /// Where segment `index` starts.
    pub fn segment(&self, _index: u32) -> Off {
        todo!()
    }
    /// The engine's words.
    pub fn root(&self) -> Root {
        todo!()
    }
    /// Replaces the engine's words. Durable, in both copies, on `Ok`.
    pub fn set_root(&self, _lane: &mut Lane, _root: &Root) -> Result<(), Poisoned> {
        todo!()
    }
    /// Grows the medium to hold `segments` segments, then records it. Durable on `Ok`.
    pub fn grow(&self, _lane: &mut Lane, _segments: u32) -> std::io::Result<()> {
        todo!()
    }
}
