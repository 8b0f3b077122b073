//! A real memory server: its memory, the execution of verbs, and its service. Transports (`tcp`) call it.
//!
//! ```text
//!                  ┌──────────────────────── MemoryNode ─────────────────────────┐
//!   a batch  ─────▶│ Admission: the caller's epoch has not ended, the connection │
//!                  │ is its newest, this server has a lease of its own           │
//!                  │     └─▶ WordMemory: the verbs, in order, word by word       │
//!                  │                                                             │
//!   a call   ─────▶│ chunks;  on server 0: LeaseManager ── floors ──▶ Admission  │
//!                  └────────────────────────────────────────▲────────────────────┘
//!   a member reports the floors that it has applied ────────┘ and gets a lease and all floors
//! ```
//!
//! The memory is a [`Medium`]: memory of the process, or a file that outlives it. Unlike the
//! network cards of the paper, the server's processor executes the verbs.
//!
//! A compute server's *floor* is the first of its epochs that has not ended. Server 0 is the lease server. It raises
//! floors; the other servers are *members* and learn them with each lease that they get from the lease server.
//!
//! # Files
//! * `memory`: words, and the header of a memory server's medium. `sharing`: the part of it for processes of the same host.
//! * `slots`: the fence of processes that execute verbs themselves ([`shm`](crate::shm)). `host_process`: such a process.
//! * `redo`: the write that such a process executes, to be completed if it dies.
//! * `admission`: the check before each batch. `one_sided`, by the feature `libfabric`: the same for endpoints of libfabric.
//! * `lease_manager`: leases of compute servers and members, on the lease server.
//!
//! # Invariants
//! These refine FABRIC-1 to FABRIC-4 of [`Fabric`](crate::Fabric).
//!
//! MEMSRV-1  All access to the memory is by atomic words. A read loads the words in increasing order, each with acquire
//!     ordering. A write stores them in increasing order with release ordering, and changes only its own bytes of its
//!     first and last word, by compare-and-swap. (FABRIC-1, `read_line_order`)
//! MEMSRV-2  The verbs of a batch execute one after another on one thread. A batch is validated as a whole before its first
//!     verb executes; a rejected batch has no effect. (FABRIC-2)
//! MEMSRV-3  A batch executes under the shared lock of `Admission`, after the check of its caller. To end an epoch, or to
//!     replace a connection, a thread changes the admission under the exclusive lock. So after the change no batch of
//!     the old epoch or connection executes, and none is half done. (FABRIC-2 across connections, FABRIC-4)
//! MEMSRV-4  A result is sent after a full fence that follows the last verb of its batch. (FABRIC-3)
//! MEMSRV-5  Floors only rise, also across restarts that keep the memory.
//!
//! MEMSRV-6  Processes that map the memory execute verbs themselves. The lease server answers `Expired`, and gives out a number
//!     again, only when such a process is outside its batch (SLOT-1), or makes no store any more (SLOT-3)
//!     and its write is completed (REDO-2). All members rely
//!     on that: their own floors do not stop such a process. (FABRIC-4)
//!
//! LEASE-1  A member executes batches only until the end of its lease. The lease begins, on the member's clock, when the
//!     member sent the request. So it ends before the lease server believes that it has ended.
//! LEASE-2  A member applies the floors of a grant before it extends its lease, under one exclusive lock.
//! LEASE-3  The lease server answers `Expired` when each member has applied the raised floor, or when the last lease granted
//!     to the member has ended. A member that returns must get a new lease, and with it the floor (LEASE-2). (FABRIC-4)
//! LEASE-4  A lease server that has just started does not know which leases its predecessor granted. It answers `Expired`
//!     only after the duration of a member's lease. It starts with all leases of compute servers renewed.
//! LEASE-5  An epoch of a compute server begins once on each server, which keeps the newest epoch in its memory. A lease server
//!     that has lost its memory may give out an epoch again. Then a member that knows the epoch refuses the first
//!     connection in it, and the compute server joins again, until the lease server has learned the member's floors.
//! LEASE-6  A compute server that holds no lock and has no request under way may leave its epoch. The lease server gives a left
//!     epoch to the next process, with a higher number of the process. So each memory server that the next
//!     process uses refuses the connections of the former (MEMSRV-3).
//!
//! # Failures
//! | failure                             | effect                                                                       |
//! |-------------------------------------|------------------------------------------------------------------------------|
//! | a client dies within a frame        | the incomplete batch has no effect; complete ones have executed (MEMSRV-2)   |
//! | a client pauses beyond its lease    | after `Expired` its batches are refused as `Fenced` (MEMSRV-3, LEASE-3)      |
//! | a connection breaks                 | requests under way end with `Timeout`; their batches execute before the next |
//! |                                     | connection's first batch or never (MEMSRV-3)                                 |
//! | a member dies or is unreachable     | a fence waits for the end of its lease (LEASE-3), then needs it no more      |
//! | a member pauses within a batch      | the batch ends before any other batch that arrives there later is admitted,  |
//! |                                     | because that needs a new lease (LEASE-1) and its exclusive lock (LEASE-2)    |
//! | a memory server restarts            | a new generation: clients of the old one get `Empty`                         |
//! | the lease server dies               | members stop at the end of their leases; clients get `Timeout`               |
//!
//! Nothing is flushed: the contents of a file outlive the process, not a power failure.
//!
//! A check of an expired lease is answered by `Alive` until LEASE-3 allows `Expired`: at most the duration of a member's lease,
//! if a member is unreachable.
//!
//! LEASE-1 assumes that the clocks of two servers advance at rates that differ by less than an eighth, and that a
//! suspended machine counts the time of its suspension or restarts the server.

mod admission;
mod host_process;
mod lease_manager;
mod memory;
#[cfg(feature = "libfabric")]
mod one_sided;
mod redo;
mod sharing;
mod slots;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use farbank_pm::{Medium, PersistCtx};

pub use memory::{MemoryError, MemorySettings, WordMemory};

use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};
use crate::wire::{
    ANY_COMPUTE, BatchReader, FLOORS, Failure, Grant, Refusal, Report, VerbRef, WireError,
    response_bytes,
};
use admission::{Admission, FIRST_PROCESS};
use lease_manager::LeaseManager;
#[cfg(feature = "libfabric")]
use one_sided::MappedService;
use slots::CallerFence;

pub(crate) use admission::{Caller, FIRST_ATTEMPT};
pub(crate) use host_process::HostProcess;
pub(crate) use memory::SLOT_PARTS;
pub(crate) use redo::{MAPPED_MAX, RedoFile};
pub(crate) use sharing::{own_pid_namespace, path_hash};
pub(crate) use slots::CallerSlot;

/// Highest epoch of a compute server. Lock words of structures have 6 bits for it.
const EPOCH_MAX: u8 = 63;

/// The durations of leases. All memory servers of a cluster must have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseSettings {
    /// Duration of the lease of a compute server without renewal.
    pub compute: Duration,
    /// Duration of the lease of a memory server, which it renews by itself. A compute server that holds locks can be
    /// replaced only after this time if a memory server is unreachable.
    pub member: Duration,
}

impl Default for LeaseSettings {
    fn default() -> LeaseSettings {
        LeaseSettings {
            compute: Duration::from_secs(2),
            member: Duration::from_secs(1),
        }
    }
}

/// A memory server.
pub struct MemoryNode<M> {
    memory: WordMemory<M>,
    admission: Admission,
    manager: Option<LeaseManager>,
    callers: CallerFence,
    /// File of the memory, if processes of this host may map it.
    path: Option<PathBuf>,
    #[cfg(feature = "libfabric")]
    libfabric: Option<MappedService<M>>,
    leases: LeaseSettings,
    batches: AtomicU64,
}

impl<M: Medium> MemoryNode<M> {
    /// Creates a memory server on `memory`. Server 0 manages the leases. Every other server executes verbs only while
    /// it has a lease from server 0.
    #[must_use]
    pub fn new(memory: WordMemory<M>, leases: LeaseSettings) -> MemoryNode<M> {
        let floors = memory.floors();
        let manages = memory.server() == LEASE_SERVER;
        MemoryNode {
            manager: manages.then(|| LeaseManager::new(leases, floors.clone())),
            admission: Admission::new(floors, memory.joined(), !manages, leases.member),
            memory,
            callers: CallerFence::new(leases.compute / 4, None),
            path: None,
            #[cfg(feature = "libfabric")]
            libfabric: None,
            leases,
            batches: AtomicU64::new(0),
        }
    }

    /// Lets processes of this host execute verbs on the server's memory, which is in the file `path` ([`shm`](crate::shm)).
    #[must_use]
    pub fn shared_at(mut self, path: impl Into<PathBuf>) -> MemoryNode<M> {
        let path = path.into();
        let path = path.canonicalize().unwrap_or(path);
        self.callers = CallerFence::new(self.leases.compute / 4, Some(path.clone()));
        self.path = Some(path);
        self
    }

    /// Shows to processes of this host, if they may map the memory, that the server listens on `address`.
    pub(crate) fn begin_sharing(&self, address: SocketAddr) {
        if let Some(path) = &self.path {
            let mut ctx = PersistCtx::new(0);
            self.memory.begin_sharing(&mut ctx, address, path);
        }
    }

    /// Returns the server's memory.
    #[must_use]
    pub fn memory(&self) -> &WordMemory<M> {
        &self.memory
    }

    /// Returns the number of executed batches.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Returns whether compute servers send their verbs over libfabric only.
    pub(crate) fn is_one_sided(&self) -> bool {
        #[cfg(feature = "libfabric")]
        return self.libfabric.is_some();
        #[cfg(not(feature = "libfabric"))]
        false
    }

    pub(crate) fn leases(&self) -> LeaseSettings {
        self.leases
    }

    /// Admits a connection of a thread of a compute server, and ends its earlier ones (MEMSRV-3).
    pub(crate) fn connect(&self, ctx: &mut PersistCtx, caller: Caller) -> Result<(), Refusal> {
        let is_any = caller.compute == ANY_COMPUTE && caller.epoch == 0;
        let is_number = usize::from(caller.compute) < FLOORS || is_any;
        if !is_number || caller.epoch > EPOCH_MAX {
            return Err(Refusal::BadNumber);
        }
        // Epoch 0 can only join, so it needs no order.
        match caller.epoch {
            0 if self.manager.is_some() => Ok(()),
            0 => Err(Refusal::NotLeaseServer),
            _ => {
                self.admission.connect(caller)?;
                self.memory.record_join(ctx, caller.compute, caller.epoch);
                Ok(())
            }
        }
    }

    /// Admits a connection of a member that reports.
    pub(crate) fn admit_member(&self, member: u16) -> Result<(), Refusal> {
        match &self.manager {
            None => Err(Refusal::NotLeaseServer),
            Some(_) if member == LEASE_SERVER => Err(Refusal::BadNumber),
            Some(_) => Ok(()),
        }
    }

    /// Executes a batch of `caller` and appends its results to `out`. On `Err` the batch has no effect.
    ///
    /// # Errors
    /// Outer: the batch cannot be decoded. Inner: the caller may not execute it, or a verb is invalid.
    pub(crate) fn batch(
        &self,
        ctx: &mut PersistCtx,
        caller: &Caller,
        batch: BatchReader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Result<(), Failure>, WireError> {
        response_bytes(batch)?;
        if !self.is_valid(batch)? {
            return Ok(Err(Failure::Rejected));
        }
        let executed = self.admission.execute(caller, || {
            let mut verbs = batch;
            while let Some(verb) = verbs.next()? {
                self.execute(ctx, verb, out);
            }
            fence(Ordering::SeqCst);
            Ok(())
        });
        self.batches.fetch_add(1, Ordering::Relaxed);
        match executed {
            Ok(done) => done.map(Ok),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Returns whether every verb of `batch` is in bounds and aligned.
    fn is_valid(&self, mut batch: BatchReader<'_>) -> Result<bool, WireError> {
        while let Some(verb) = batch.next()? {
            let is_valid = match verb {
                VerbRef::Read { at, len } => self.memory.place(at, len).is_some(),
                VerbRef::Write { at, bytes } => self.memory.place(at, bytes.len()).is_some(),
                VerbRef::Cas { at, .. } | VerbRef::Add { at, .. } => {
                    self.memory.word_place(at).is_some()
                }
            };
            if !is_valid {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Executes a valid verb and appends its result to `out`.
    fn execute(&self, ctx: &mut PersistCtx, verb: VerbRef<'_>, out: &mut Vec<u8>) {
        const VALID: &str = "the batch was validated";
        let memory = &self.memory;
        match verb {
            VerbRef::Read { at, len } => {
                let place = memory.place(at, len).expect(VALID);
                memory.read(place, len, out);
            }
            VerbRef::Write { at, bytes } => {
                let place = memory.place(at, bytes.len()).expect(VALID);
                memory.write(ctx, place, bytes);
            }
            VerbRef::Cas { at, old, new, mask } => {
                let place = memory.word_place(at).expect(VALID);
                let found = memory.masked_cas(ctx, place, old, new, mask);
                out.extend(found.to_le_bytes());
            }
            VerbRef::Add { at, by } => {
                let place = memory.word_place(at).expect(VALID);
                let found = memory.update(ctx, place, |word| word.wrapping_add(by));
                out.extend(found.to_le_bytes());
            }
        }
    }

    /// Serves a call of `caller`.
    pub(crate) fn call(
        &self,
        ctx: &mut PersistCtx,
        caller: &Caller,
        request: ServiceRequest,
    ) -> Result<ServiceResponse, Failure> {
        if request == ServiceRequest::Join {
            return self.join(ctx, caller.compute);
        }
        if caller.epoch == 0 {
            return Err(Failure::Fenced);
        }
        match request {
            ServiceRequest::Chunk => self
                .admission
                .execute(caller, || self.memory.allocate_chunk(ctx)),
            ServiceRequest::Reserve { to } => {
                if !self.memory.has_host_memory(to) {
                    return Err(Failure::Rejected);
                }
                self.admission.execute(caller, || {
                    self.memory.reserve(ctx, to);
                    ServiceResponse::Reserved
                })
            }
            ServiceRequest::Renew => {
                let manager = self.manager.as_ref().ok_or(Failure::Rejected)?;
                self.admission.execute(caller, || {
                    manager.renew(caller.compute);
                    ServiceResponse::Alive
                })
            }
            ServiceRequest::Leave => {
                let manager = self.manager.as_ref().ok_or(Failure::Rejected)?;
                self.admission.execute(caller, || {
                    manager.leave(caller.compute, caller.epoch, caller.process);
                    ServiceResponse::Left
                })
            }
            ServiceRequest::CheckLease { compute, epoch } => {
                self.admission.execute(caller, || ())?;
                self.check_lease(ctx, compute, epoch)
            }
            ServiceRequest::Join => unreachable!("served above"),
        }
    }

    fn join(&self, ctx: &mut PersistCtx, compute: u16) -> Result<ServiceResponse, Failure> {
        let manager = self.manager.as_ref().ok_or(Failure::Rejected)?;
        let joined = match compute {
            ANY_COMPUTE => manager.join_any(),
            _ => manager.join(compute),
        };
        let Some(joined) = joined else {
            return Ok(ServiceResponse::Full);
        };
        self.raise(ctx, joined.compute, joined.epoch);
        // The next owner of the number gets its slot.
        let began = Instant::now();
        while !self
            .callers
            .is_out(&self.memory, joined.compute, joined.epoch)
        {
            if began.elapsed() > self.leases.compute {
                return Err(Failure::Unavailable);
            }
        }
        Ok(ServiceResponse::Joined {
            compute: joined.compute,
            epoch: joined.epoch,
            process: joined.process,
        })
    }

    /// Checks a lease. Answers `Alive` also while an expired lease is not fenced on every member and in its process yet; the
    /// caller checks again later (LEASE-3, MEMSRV-6).
    fn check_lease(
        &self,
        ctx: &mut PersistCtx,
        compute: u16,
        epoch: u8,
    ) -> Result<ServiceResponse, Failure> {
        let manager = self.manager.as_ref().ok_or(Failure::Rejected)?;
        if usize::from(compute) >= FLOORS || epoch > EPOCH_MAX {
            return Err(Failure::Rejected);
        }
        let Some(floor) = manager.check(compute, epoch) else {
            return Ok(ServiceResponse::Alive);
        };
        self.raise(ctx, compute, floor);
        let is_fenced = manager.is_fenced(compute);
        Ok(
            match is_fenced && self.callers.is_out(&self.memory, compute, floor) {
                true => ServiceResponse::Expired,
                false => ServiceResponse::Alive,
            },
        )
    }

    /// Raises a floor here: in the memory, then in the admission, which waits for the batches that are under way.
    fn raise(&self, ctx: &mut PersistCtx, compute: u16, floor: u8) {
        self.memory.raise_floor(ctx, compute, floor);
        self.admission.raise(compute, floor);
    }

    /// Serves the report of a member, and waits up to a quarter of its lease for floors that it has not applied.
    /// Returns `None` if this is not the lease server, or if the member is an older process.
    pub(crate) fn report(
        &self,
        ctx: &mut PersistCtx,
        member: u16,
        report: &Report,
    ) -> Option<Grant> {
        let manager = self.manager.as_ref()?;
        for (compute, floor) in manager.merge(&report.floors) {
            self.raise(ctx, compute, floor);
        }
        manager.grant(member, report)
    }

    /// Returns this member's report to the lease server.
    pub(crate) fn make_report(&self, applied: u64) -> Report {
        Report {
            generation: self.memory.generation(),
            applied,
            floors: self.memory.floors(),
        }
    }

    /// Applies a grant whose request was sent at `asked` (LEASE-1, LEASE-2).
    pub(crate) fn apply(&self, ctx: &mut PersistCtx, grant: &Grant, asked: Instant) {
        for (compute, floor) in grant.floors.0.iter().enumerate() {
            self.memory.raise_floor(ctx, compute as u16, *floor);
        }
        let until = asked + Duration::from_nanos(grant.lease_ns);
        self.admission.grant(&grant.floors, until);
    }
}
