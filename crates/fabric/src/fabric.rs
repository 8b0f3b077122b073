//! [`Fabric`], the trait for access to the memory of other servers.
//!
//! A [`Verb`] acts on one memory server without its CPU. Verbs are posted in batches. A batch goes to one
//! server and costs one round trip. The fabric owns the buffers while a batch is in flight, so a caller can
//! safely drop the future of a batch.
//!
//! # Guarantees
//! FABRIC-1  A word (8 bytes, aligned) is never torn. Longer data may be torn at line boundaries. The lines of a read
//!     may be taken at different times in any order, unless [`FabricCaps::read_line_order`] is set.
//! FABRIC-2  With [`FabricCaps::ordered`], the writes and atomics of a batch take effect in the order of the batch, and
//!     after those of this compute server's earlier batches to that server. A read that starts after an effect
//!     was seen sees all effects before it. A read of a batch starts after the atomics before it in the batch have taken effect.
//! FABRIC-3  `Ok` means that the verb has taken effect. After [`FabricError::Timeout`] it may have taken effect, may
//!     still do so, or may never do so. After [`FabricError::Fenced`] the refused verb has no effect, now or later.
//! FABRIC-4  Once [`ServiceRequest::CheckLease`] was answered with [`ServiceResponse::Expired`], no verb that the fenced compute
//!     server posted before or posts later takes effect any more.

use std::fmt;
use std::future::Future;

use crate::addr::GAddr;
use crate::service::{ServiceRequest, ServiceResponse};

/// A time or a duration of the fabric's clock, in nanoseconds.
pub type Nanos = u64;

/// The capabilities of a memory server's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricCaps {
    /// Whether the verbs of a batch take effect in order (FABRIC-2).
    pub ordered: bool,
    /// Whether a compare-and-swap can apply to only some bits of a word.
    pub masked_cas: bool,
    /// Bytes of lock memory. 0: there is none, and locks are in host memory.
    pub lock_bytes: u64,
    /// Whether a read takes its lines in increasing order of their addresses.
    pub read_line_order: bool,
}

/// One operation on one memory server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Reads `bytes.len()` bytes at `at` into `bytes`.
    Read {
        /// Address of the first byte.
        at: GAddr,
        /// The buffer. Its contents are replaced.
        bytes: Vec<u8>,
    },
    /// Writes `bytes` at `at`.
    Write {
        /// Address of the first byte.
        at: GAddr,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// Replaces the bits `mask` of the word at `at` with those of `new`, if they equal those of `old`.
    Cas {
        /// Address of an aligned word.
        at: GAddr,
        /// The expected value.
        old: u64,
        /// The new value.
        new: u64,
        /// The bits that are compared and replaced. Must be all bits without [`FabricCaps::masked_cas`].
        mask: u64,
        /// The value found, set when the batch completes.
        found: u64,
    },
    /// Adds `by` to the word at `at`, modulo 2^64.
    Add {
        /// Address of an aligned word.
        at: GAddr,
        /// The summand.
        by: u64,
        /// The value found, set when the batch completes.
        found: u64,
    },
}

impl Verb {
    /// Returns a read of `len` bytes.
    #[must_use]
    pub fn read(at: GAddr, len: usize) -> Verb {
        let bytes = vec![0; len];
        Verb::Read { at, bytes }
    }

    /// Returns a write of `bytes`.
    #[must_use]
    pub fn write(at: GAddr, bytes: Vec<u8>) -> Verb {
        Verb::Write { at, bytes }
    }

    /// Returns a compare-and-swap of a whole word.
    #[must_use]
    pub fn cas(at: GAddr, old: u64, new: u64) -> Verb {
        Verb::masked_cas(at, old, new, u64::MAX)
    }

    /// Returns a compare-and-swap of the bits in `mask`.
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

    /// Returns a fetch-and-add.
    #[must_use]
    pub fn add(at: GAddr, by: u64) -> Verb {
        Verb::Add { at, by, found: 0 }
    }

    /// Returns the address on which the verb acts.
    #[must_use]
    pub fn at(&self) -> GAddr {
        match *self {
            Verb::Read { at, .. }
            | Verb::Write { at, .. }
            | Verb::Cas { at, .. }
            | Verb::Add { at, .. } => at,
        }
    }

    /// Returns the bytes of a read or a write; for an atomic, no bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Verb::Read { bytes, .. } | Verb::Write { bytes, .. } => bytes,
            Verb::Cas { .. } | Verb::Add { .. } => Vec::new(),
        }
    }

    /// Returns the value that a completed atomic found; for a read or a write, 0.
    #[must_use]
    pub fn found(&self) -> u64 {
        match *self {
            Verb::Cas { found, .. } | Verb::Add { found, .. } => found,
            Verb::Read { .. } | Verb::Write { .. } => 0,
        }
    }
}

/// The error of a batch or a call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FabricError {
    /// The server did not answer in time: it is dead or unreachable. The request may or may not take effect.
    Timeout {
        /// The memory server.
        server: u16,
    },
    /// The lease of this compute server expired, and the memory servers refuse its requests (FABRIC-3, FABRIC-4).
    Fenced,
    /// The memory server restarted with a generation newer than the one to which this compute server is connected. The
    /// data on it is lost, unless the server's memory outlives its process.
    Empty {
        /// The memory server.
        server: u16,
    },
    /// The memory of the memory server, which this process maps, cannot be read or written: its file was truncated, or its
    /// device reports an error.
    Damaged {
        /// The memory server.
        server: u16,
    },
    /// The memory server rejected the request, which has no effect: an address is outside its memory, an atomic is not
    /// aligned, or the request is too large.
    Rejected {
        /// The memory server.
        server: u16,
    },
    /// The memory server has joined since this compute server has connected, or has left. The request was not sent.
    Unlisted {
        /// The memory server.
        server: u16,
    },
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricError::Timeout { server } => write!(f, "memory server {server} does not answer"),
            FabricError::Fenced => f.write_str(
                "the lease of this compute server expired and memory servers refuse its requests; join again \
                 under a new epoch",
            ),
            FabricError::Empty { server } => {
                write!(
                    f,
                    "memory server {server} has restarted: connect again; its data is lost unless it is in a file or a device"
                )
            }
            FabricError::Damaged { server } => write!(
                f,
                "the memory of memory server {server} cannot be accessed: its file was truncated, or its device reports an \
                 error"
            ),
            FabricError::Rejected { server } => write!(
                f,
                "memory server {server} rejected the request: it needs aligned atomics, addresses inside its memory, \
                 and at most 1 MiB each way"
            ),
            FabricError::Unlisted { server } => write!(
                f,
                "memory server {server} has joined or left since this compute server has connected: connect again"
            ),
        }
    }
}

impl std::error::Error for FabricError {}

/// The access of one compute server to the memory servers.
pub trait Fabric: Clone + 'static {
    /// Returns the number of memory servers. They are numbered from 0.
    fn servers(&self) -> u16;

    /// Returns the capabilities of `server`'s NIC.
    fn caps(&self, server: u16) -> FabricCaps;

    /// Executes `verbs`, all of them on `server`, in one round trip. Returns the verbs with the bytes of reads and
    /// the `found` values of atomics filled in. If the NIC does not order verbs, they execute one after another.
    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>>;

    /// Sends a request to `server`'s service thread and returns its response.
    fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> impl Future<Output = Result<ServiceResponse, FabricError>>;

    /// Returns the current time.
    fn now(&self) -> Nanos;

    /// Waits for `ns` nanoseconds.
    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()>;

    /// Executes one verb.
    fn verb(&self, verb: Verb) -> impl Future<Output = Result<Verb, FabricError>> {
        let answer = self.batch(verb.at().server(), vec![verb]);
        async { Ok(answer.await?.remove(0)) }
    }

    /// Reads `len` bytes at `at`.
    fn read(&self, at: GAddr, len: usize) -> impl Future<Output = Result<Vec<u8>, FabricError>> {
        let read = self.verb(Verb::read(at, len));
        async { Ok(read.await?.into_bytes()) }
    }

    /// Writes `bytes` at `at`.
    fn write(&self, at: GAddr, bytes: Vec<u8>) -> impl Future<Output = Result<(), FabricError>> {
        let write = self.verb(Verb::write(at, bytes));
        async { write.await.map(|_| ()) }
    }

    /// Compares and swaps the word at `at`. Returns the word found.
    fn cas(&self, at: GAddr, old: u64, new: u64) -> impl Future<Output = Result<u64, FabricError>> {
        self.masked_cas(at, old, new, u64::MAX)
    }

    /// Compares and swaps the bits `mask` of the word at `at`. Returns the whole word found.
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

    /// Adds `by` to the word at `at`. Returns the word found.
    fn fetch_add(&self, at: GAddr, by: u64) -> impl Future<Output = Result<u64, FabricError>> {
        let add = self.verb(Verb::add(at, by));
        async { Ok(add.await?.found()) }
    }
}
