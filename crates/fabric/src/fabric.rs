//! The door to memory that is somewhere else.
//!
//! A [`Verb`] acts on one memory server without its processor. Verbs are posted in batches; a batch goes to
//! one server and costs one round trip. Buffers are owned by the fabric while a batch is under way, so that
//! giving up on one is safe.
//!
//! # What a structure may rely on
//! F1  A word (8 bytes, aligned) is never torn; anything longer may be, line by line, and the lines of a read
//!     may be as of different moments in any order, unless [`Caps::read_line_order`] says otherwise.
//! F2  With [`Caps::ordered`], the writes and atomics of a batch take effect in its order, and after those of
//!     this compute server's earlier batches to that server; and who reads, after seeing an effect, sees all
//!     before it.
//! F3  `Ok` means that the verb has taken effect. After [`Error::Timeout`] it may have, may yet, or may never.
//!     After [`Error::Fenced`] it has not and will not.
//! F4  Once [`Ask::Verdict`] has been answered with [`Answer::Dead`] no verb that the fenced compute server
//!     posted, before or later, takes effect any more.

use std::fmt;
use std::future::Future;

use crate::addr::GAddr;
use crate::service::{ServiceRequest, ServiceResponse};

/// Nanoseconds of the fabric's clock.
pub type Nanos = u64;

/// What a memory server's card can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricCaps {
    /// Whether the verbs of a batch take effect in order (F2).
    pub ordered: bool,
    /// Whether a compare-and-swap may concern some bits of a word only.
    pub masked_cas: bool,
    /// Bytes of lock memory; 0: there is none, locks are in host memory.
    pub lock_bytes: u64,
    /// Whether the lines of a read are as of moments in increasing order.
    pub read_line_order: bool,
}

/// One act on one memory server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Fills `bytes` from `at` on.
    Read {
        /// From where.
        at: GAddr,
        /// As many as there are here; what they were does not matter.
        bytes: Vec<u8>,
    },
    /// Writes `bytes` at `at`.
    Write {
        /// To where.
        at: GAddr,
        /// What is written.
        bytes: Vec<u8>,
    },
    /// Replaces the bits `mask` of the word at `at` by those of `new`, if they are those of `old`.
    Cas {
        /// An aligned word.
        at: GAddr,
        /// What is expected there.
        old: u64,
        /// What is to be there.
        new: u64,
        /// Which bits are compared and replaced; all of them without [`Caps::masked_cas`].
        mask: u64,
        /// What was there, once the batch has been answered.
        found: u64,
    },
    /// Adds to the word at `at`.
    Add {
        /// An aligned word.
        at: GAddr,
        /// How much.
        by: u64,
        /// What was there, once the batch has been answered.
        found: u64,
    },
}

impl Verb {
    /// A read of `len` bytes.
    #[must_use]
    pub fn read(at: GAddr, len: usize) -> Verb {
        let bytes = vec![0; len];
        Verb::Read { at, bytes }
    }

    /// A write.
    #[must_use]
    pub fn write(at: GAddr, bytes: Vec<u8>) -> Verb {
        Verb::Write { at, bytes }
    }

    /// A compare-and-swap of a whole word.
    #[must_use]
    pub fn cas(at: GAddr, old: u64, new: u64) -> Verb {
        Verb::masked_cas(at, old, new, u64::MAX)
    }

    /// A compare-and-swap of the bits in `mask`.
    #[must_use]
    pub fn masked_cas(at: GAddr, old: u64, new: u64, mask: u64) -> Verb {
        Verb::Cas {
            at,
            old,
            new,
            mask,
            found: 0,
        }
    }

    /// A fetch-and-add.
    #[must_use]
    pub fn add(at: GAddr, by: u64) -> Verb {
        Verb::Add { at, by, found: 0 }
    }

    /// Where it acts.
    #[must_use]
    pub fn at(&self) -> GAddr {
        match *self {
            Verb::Read { at, .. }
            | Verb::Write { at, .. }
            | Verb::Cas { at, .. }
            | Verb::Add { at, .. } => at,
        }
    }

    /// The bytes of a read or a write; none of an atomic.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Verb::Read { bytes, .. } | Verb::Write { bytes, .. } => bytes,
            Verb::Cas { .. } | Verb::Add { .. } => Vec::new(),
        }
    }

    /// What an answered atomic found; 0 of a read or a write.
    #[must_use]
    pub fn found(&self) -> u64 {
        match *self {
            Verb::Cas { found, .. } | Verb::Add { found, .. } => found,
            Verb::Read { .. } | Verb::Write { .. } => 0,
        }
    }
}

/// Why a batch or a call was not answered as asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FabricError {
    /// No answer in time: the server is dead, or the way there is cut. What was asked may or may not happen.
    Timeout {
        /// Which memory server.
        server: u16,
    },
    /// This compute server's lease ran out and others were told that it is dead: none of it happened.
    Fenced,
    /// The memory server came back without its memory, under another generation than this compute server is
    /// connected to: what was stored there is lost.
    Empty {
        /// Which memory server.
        server: u16,
    },
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricError::Timeout { server } => write!(f, "memory server {server} does not answer"),
            FabricError::Fenced => f.write_str(
                "this compute server was taken for dead and fenced; join again under a new epoch",
            ),
            FabricError::Empty { server } => {
                write!(
                    f,
                    "memory server {server} came back empty: its part is lost"
                )
            }
        }
    }
}

impl std::error::Error for FabricError {}

/// Far memory as one compute server sees it.
pub trait Fabric: Clone + 'static {
    /// How many memory servers there are, numbered from 0.
    fn servers(&self) -> u16;

    /// What `server`'s card can do.
    fn caps(&self, server: u16) -> FabricCaps;

    /// Does `verbs`, all of them to `server`, in one round trip; answers with them, reads filled and atomics'
    /// `found` set. Where verbs are not ordered this is one after another.
    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>>;

    /// Asks `server`'s service thread.
    fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> impl Future<Output = Result<ServiceResponse, FabricError>>;

    /// What time it is.
    fn now(&self) -> Nanos;

    /// Does nothing for `ns`.
    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()>;

    /// Does one verb.
    fn verb(&self, verb: Verb) -> impl Future<Output = Result<Verb, FabricError>> {
        let answer = self.batch(verb.at().server(), vec![verb]);
        async { Ok(answer.await?.remove(0)) }
    }

    /// Reads `len` bytes.
    fn read(&self, at: GAddr, len: usize) -> impl Future<Output = Result<Vec<u8>, FabricError>> {
        let read = self.verb(Verb::read(at, len));
        async { Ok(read.await?.into_bytes()) }
    }

    /// Writes `bytes`.
    fn write(&self, at: GAddr, bytes: Vec<u8>) -> impl Future<Output = Result<(), FabricError>> {
        let write = self.verb(Verb::write(at, bytes));
        async { write.await.map(|_| ()) }
    }

    /// Compare-and-swap of the word at `at`; answers with what was there.
    fn cas(&self, at: GAddr, old: u64, new: u64) -> impl Future<Output = Result<u64, FabricError>> {
        self.masked_cas(at, old, new, u64::MAX)
    }

    /// Compare-and-swap of the bits `mask` of the word at `at`; answers with the word that was there.
    fn masked_cas(
        &self,
        at: GAddr,
        old: u64,
        new: u64,
        mask: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> {
        let cas = self.verb(Verb::masked_cas(at, old, new, mask));
        async { Ok(cas.await?.found()) }
    }

    /// Adds `by` to the word at `at`; answers with what was there.
    fn fetch_add(&self, at: GAddr, by: u64) -> impl Future<Output = Result<u64, FabricError>> {
        let add = self.verb(Verb::add(at, by));
        async { Ok(add.await?.found()) }
    }
}
