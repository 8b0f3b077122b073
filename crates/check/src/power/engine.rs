//! Interface of the engine under test. A program that knows the engine implements it.

use std::path::Path;

use farbank_pm::media::SyncPolicy;

use super::ack_sink::BatchSink;
use super::error::PowerError;

/// Whether stores to persistent memory are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushMode {
    /// As the engine asks for.
    Always,
    /// Never: the pool is on an [`UnflushedMedium`](super::UnflushedMedium).
    Never,
}

/// Engine that the harness can open.
pub trait PowerEngine {
    /// Opens the pool at `path`, after creating it with [`POOL_BYTES`](super::POOL_BYTES) and
    /// [`SEGMENT_BYTES`](super::SEGMENT_BYTES) if it does not exist. With `syncing` other than
    /// [`SyncPolicy::Always`], writes to a file are acknowledged before the sync: the test must detect that a power cut
    /// loses them.
    ///
    /// # Errors
    /// The pool cannot be created or opened, or the engine reports damage.
    fn open(
        &self,
        path: &Path,
        flushing: FlushMode,
        syncing: SyncPolicy,
    ) -> Result<Box<dyn OpenEngine>, PowerError>;

    /// Opens the pool at `path` for a check after a power cut. The engine runs no thread of its own.
    ///
    /// # Errors
    /// The pool cannot be opened, or the engine reports damage.
    fn open_to_check(&self, path: &Path) -> Result<Box<dyn OpenEngine>, PowerError>;
}

/// An open engine.
pub trait OpenEngine {
    /// Returns a destination of batches for one writer.
    fn sink(&self) -> Box<dyn BatchSink>;

    /// Runs the engine's own check.
    ///
    /// # Errors
    /// [`PowerError::Damaged`] if the check finds damage.
    fn verify(&self) -> Result<(), PowerError>;
}
