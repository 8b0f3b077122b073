//! [`Transfers`]: the operations of an endpoint that are under way, with their buffers.
//!
//! FI-TRANSFER-1  A buffer belongs to its operation until the operation has ended, or the endpoint is closed. Nothing else reads,
//!     changes or frees it meanwhile.

use std::collections::HashMap;
use std::ptr::{self, NonNull};

use super::LibfabricError;
use super::abi::{
    AtomicOps, AtomicValidFn, Context, FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_CSWAP,
    FI_DELIVERY_COMPLETE, FI_EAGAIN, FI_SUM, FI_UINT8, FI_UINT64, FiAddr, Ioc, MsgAtomic, RmaIoc,
};
use super::endpoint::{Completion, Endpoint};

const WORD: usize = size_of::<u64>();

/// Memory of a peer: the endpoint that serves it, an address there, and the key of the registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RemotePlace {
    pub(super) peer: FiAddr,
    pub(super) at: u64,
    pub(super) key: u64,
}

/// An operation on a peer's memory, with its buffer.
#[derive(Debug)]
pub(super) enum Transfer {
    /// Reads `0.len()` bytes.
    Read(Vec<u8>),
    /// Writes bytes.
    Write(Vec<u8>),
    /// Replaces the word `old` by `new`. `found` is set at the end.
    Cas { old: u64, new: u64, found: u64 },
    /// Adds `by` to a word. `found` is set at the end.
    Add { by: u64, found: u64 },
}

/// An operation that has ended: the number with which it was posted, and its buffer.
#[derive(Debug)]
pub(super) struct EndedTransfer {
    pub(super) number: u64,
    pub(super) transfer: Transfer,
    pub(super) is_ok: bool,
}

/// The reason why an operation was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotPosted {
    /// The provider has no resources now, or is connecting: try again.
    Again,
    /// The provider refuses the operation.
    Refused,
}

/// Memory of an operation that is neither moved nor freed while it is under way.
#[repr(C)]
struct OpMemory {
    /// For the provider. Its address is the name of the operation.
    context: Context,
    /// Expected word or summand, new word, found word.
    words: [u64; 3],
}

/// Owner of an [`OpMemory`] on the heap. Not a `Box`, which claims that nothing else points there.
struct OpMemoryOwner(NonNull<OpMemory>);

impl OpMemoryOwner {
    fn new() -> OpMemoryOwner {
        let memory = Box::new(OpMemory {
            context: Context([ptr::null_mut(); 8]),
            words: [0; 3],
        });
        OpMemoryOwner(NonNull::from(Box::leak(memory)))
    }

    /// Returns the name of the operation.
    fn name(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Returns the found word of an operation that has ended.
    fn found(&self) -> u64 {
        // SAFETY: allocated until the drop of this value, and the library uses it no more.
        unsafe { (*self.0.as_ptr()).words[2] }
    }
}

impl Drop for OpMemoryOwner {
    fn drop(&mut self) {
        // SAFETY: made by a `Box`, and the library uses it no more: the operation has ended, or the endpoint is closed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

struct UnderWay {
    number: u64,
    transfer: Transfer,
    memory: OpMemoryOwner,
}

/// Maximum bytes of the operations of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TransferLimits {
    /// Of a write, if its address and its length are multiples of 8.
    pub(super) write_words: usize,
    /// Of another write.
    pub(super) write_bytes: usize,
    /// Of a read, if its address and its length are multiples of 8.
    pub(super) read_words: usize,
    /// Of another read.
    pub(super) read_bytes: usize,
}

/// The operations of an endpoint.
pub(super) struct Transfers {
    // Closed before the buffers are freed (FI-TRANSFER-1): fields are dropped in this order.
    endpoint: Endpoint<'static>,
    under_way: HashMap<usize, UnderWay>,
    free: Vec<OpMemoryOwner>,
    ended: Vec<Completion>,
    limits: TransferLimits,
}

impl Transfers {
    /// Uses `endpoint` for operations.
    ///
    /// # Errors
    /// Its provider has no operation that the fabric needs.
    pub(super) fn new(endpoint: Endpoint<'static>) -> Result<Transfers, LibfabricError> {
        let limits = limits(&endpoint)?;
        Ok(Transfers {
            endpoint,
            under_way: HashMap::new(),
            free: Vec::new(),
            ended: Vec::new(),
            limits,
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint<'static> {
        &self.endpoint
    }

    pub(super) fn limits(&self) -> TransferLimits {
        self.limits
    }

    /// Posts an operation, whose end [`Transfers::progress`] reports with `number`. Its length is within the limits.
    ///
    /// # Errors
    /// The operation, and the reason why it was not posted.
    pub(super) fn post(
        &mut self,
        place: RemotePlace,
        number: u64,
        transfer: Transfer,
    ) -> Result<(), (NotPosted, Transfer)> {
        let mut under_way = UnderWay {
            number,
            transfer,
            memory: self.free.pop().unwrap_or_else(OpMemoryOwner::new),
        };
        let code = self.start(place, &mut under_way);
        if code == 0 {
            self.under_way.insert(under_way.memory.name(), under_way);
            return Ok(());
        }
        let UnderWay {
            transfer, memory, ..
        } = under_way;
        self.free.push(memory);
        let why = match code as i64 {
            code if code == -FI_EAGAIN => NotPosted::Again,
            _ => NotPosted::Refused,
        };
        Err((why, transfer))
    }

    /// Calls the provider. Returns 0 if the operation is under way.
    fn start(&self, place: RemotePlace, op: &mut UnderWay) -> isize {
        let RemotePlace { peer, at, key } = place;
        let endpoint = self.endpoint.raw();
        let memory = op.memory.0.as_ptr();
        let context = memory.cast();
        let none = ptr::null_mut();
        // SAFETY: an open endpoint, whose table of atomics is complete (`limits`). The buffers and the context stay where they
        // are, and only the library uses them, until the operation has ended (FI-TRANSFER-1): `under_way` keeps them.
        unsafe {
            let atomics: &AtomicOps = &*(*endpoint).atomic;
            let [first, second, found] = [0, 1, 2].map(|n| (&raw mut (*memory).words[n]).cast());
            match &mut op.transfer {
                Transfer::Read(bytes) => {
                    let (kind, count) = unit(at, bytes.len());
                    let to = bytes.as_mut_ptr().cast();
                    (atomics.readwrite)(
                        endpoint,
                        first,
                        count,
                        none,
                        to,
                        none,
                        peer,
                        at,
                        key,
                        kind,
                        FI_ATOMIC_READ,
                        context,
                    )
                }
                Transfer::Write(bytes) => {
                    let (datatype, count) = unit(at, bytes.len());
                    let local = Ioc {
                        addr: bytes.as_mut_ptr().cast(),
                        count,
                    };
                    let remote = RmaIoc {
                        addr: at,
                        count,
                        key,
                    };
                    let mut descriptor = none;
                    let message = MsgAtomic {
                        msg_iov: &raw const local,
                        desc: &raw mut descriptor,
                        iov_count: 1,
                        addr: peer,
                        rma_iov: &raw const remote,
                        rma_iov_count: 1,
                        datatype,
                        op: FI_ATOMIC_WRITE,
                        context,
                        data: 0,
                    };
                    // The other atomics return a word that they have found, so their end means that they have taken effect.
                    (atomics.writemsg)(endpoint, &raw const message, FI_DELIVERY_COMPLETE)
                }
                Transfer::Cas { old, new, .. } => {
                    (*memory).words = [*old, *new, 0];
                    (atomics.compwrite)(
                        endpoint, second, 1, none, first, none, found, none, peer, at, key,
                        FI_UINT64, FI_CSWAP, context,
                    )
                }
                Transfer::Add { by, .. } => {
                    (*memory).words = [*by, 0, 0];
                    (atomics.readwrite)(
                        endpoint, first, 1, none, found, none, peer, at, key, FI_UINT64, FI_SUM,
                        context,
                    )
                }
            }
        }
    }

    /// Lets the provider work, and appends the operations that have ended to `ended`.
    pub(super) fn progress(&mut self, ended: &mut Vec<EndedTransfer>) {
        self.endpoint.progress(&mut self.ended);
        for completion in self.ended.drain(..) {
            let Some(under_way) = self.under_way.remove(&completion.context) else {
                continue;
            };
            let UnderWay {
                number,
                mut transfer,
                memory,
            } = under_way;
            if let Transfer::Cas { found, .. } | Transfer::Add { found, .. } = &mut transfer {
                *found = memory.found();
            }
            self.free.push(memory);
            ended.push(EndedTransfer {
                number,
                transfer,
                is_ok: completion.is_ok,
            });
        }
    }
}

/// Returns the type and the number of the elements of a read or write.
fn unit(at: u64, bytes: usize) -> (i32, usize) {
    match is_words(at, bytes) {
        true => (FI_UINT64, bytes / WORD),
        false => (FI_UINT8, bytes),
    }
}

/// Returns whether `bytes` bytes at `at` are whole words.
pub(super) fn is_words(at: u64, bytes: usize) -> bool {
    at.is_multiple_of(WORD as u64) && bytes.is_multiple_of(WORD)
}

/// Asks the provider for the limits of the operations that the fabric needs.
pub(super) fn limits(endpoint: &Endpoint<'_>) -> Result<TransferLimits, LibfabricError> {
    let missing = || LibfabricError::NoAtomics {
        provider: endpoint.info().name(),
    };
    // SAFETY: an open endpoint. A table that is shorter than the part that is used, or null, is not read.
    let atomics = unsafe { (*endpoint.raw()).atomic.as_ref() };
    let atomics = atomics.filter(|atomics| atomics.size >= size_of::<AtomicOps>());
    let atomics = atomics.ok_or_else(missing)?;
    let count = |valid: AtomicValidFn, kind, op| {
        let mut count = 0;
        // SAFETY: an open endpoint, and a place for the count.
        let code = unsafe { valid(endpoint.raw(), kind, op, &raw mut count) };
        match (code, count) {
            (0, 1..) => Ok(count),
            _ => Err(missing()),
        }
    };
    count(atomics.compwritevalid, FI_UINT64, FI_CSWAP)?;
    count(atomics.readwritevalid, FI_UINT64, FI_SUM)?;
    Ok(TransferLimits {
        write_words: count(atomics.writevalid, FI_UINT64, FI_ATOMIC_WRITE)? * WORD,
        write_bytes: count(atomics.writevalid, FI_UINT8, FI_ATOMIC_WRITE)?,
        read_words: count(atomics.readwritevalid, FI_UINT64, FI_ATOMIC_READ)? * WORD,
        read_bytes: count(atomics.readwritevalid, FI_UINT8, FI_ATOMIC_READ)?,
    })
}
