//! [`ShmFabric`]: the fabric of one thread of a compute process, on mapped memory and over TCP.

use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use farbank_pm::PersistCtx;

use super::attachment::{Attachment, VerbOutcome};
use super::remote::RemoteFabric;
use super::{ServerAddress, ShmConnectError};
use crate::fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
use crate::server::{CallerSlot, HostProcess, MAPPED_MAX, RedoFile, SLOT_PARTS};
use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};
use crate::tcp::{
    ConnectError, Membership, Reactor, ServerInfo, SharedKey, TcpFabric, TcpSettings,
};
use crate::wire::is_batch;

/// Batches after which a thread looks at its sockets and timers.
const BATCHES_OF_TURN: u32 = 64;

/// The settings of a [`ShmFabric`].
#[derive(Clone, Debug)]
pub struct ShmSettings {
    /// All memory servers, in the order of their numbers. The first is the lease server. Those that have left are
    /// [`ServerAddress::Left`].
    pub servers: Vec<ServerAddress>,
    /// Number of the compute server, as in [`TcpSettings`].
    pub compute: Option<u16>,
    /// The key that all servers of the cluster share.
    pub key: SharedKey,
    /// Time after which a request to a server that does not answer fails with [`FabricError::Timeout`].
    pub timeout: Duration,
}

/// What threads of a compute process have in and beside the lease server's memory (SHM-4).
struct Ownership {
    slot: CallerSlot,
    /// `None`: no thread uses the slot yet.
    redo: Option<RedoFile>,
}

/// The mappings of a process, which its threads share.
struct ProcessMappings {
    /// Mapped memories, by server. `None`: the server is reached by TCP, or not used.
    attachments: Vec<Option<Attachment>>,
    /// The slots with their records of writes; none if no memory is mapped. Threads use them in turn.
    own: Vec<CachePadded<Mutex<Ownership>>>,
}

impl ProcessMappings {
    /// Locks the slot of thread number `thread`. No holder of the lock panics.
    fn own(&self, thread: u8) -> MutexGuard<'_, Ownership> {
        let own = self.own[usize::from(thread % SLOT_PARTS)].lock();
        own.unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the record of writes of thread number `thread`, unless another thread has.
    fn begin_thread(&self, thread: u8) -> Result<(), ShmConnectError> {
        if self.own.is_empty() {
            return Ok(());
        }
        let mut own = self.own(thread);
        if own.redo.is_none() {
            let paths: Vec<_> = self.attachments.iter().map(path_of).collect();
            let redo = RedoFile::create(own.slot.names[0], &paths);
            own.redo = Some(redo.map_err(ShmConnectError::Open)?);
        }
        Ok(())
    }
}

/// A process of a compute server in one epoch, which [`ShmFabric::connect`] has begun, for its other threads.
#[derive(Clone)]
pub struct ShmMembership {
    control: Membership,
    mappings: Arc<ProcessMappings>,
}

struct ShmState {
    ctx: PersistCtx,
    /// Batches since the thread has looked at its sockets.
    batches: u32,
}

struct ShmShared {
    control: TcpFabric,
    /// The way to servers that are not mapped.
    remote: RemoteFabric,
    mappings: Arc<ProcessMappings>,
    state: RefCell<ShmState>,
}

/// The access of one thread of a compute process to memory servers: to those of its host by shared memory, if their files
/// are given, and to others by TCP; or to all over libfabric. Clones share the connections and mappings. See [`TcpFabric`] about errors.
#[derive(Clone)]
pub struct ShmFabric(Rc<ShmShared>);

/// A batch that was executed on a mapping.
struct ExecutedBatch {
    result: Result<Vec<Verb>, FabricError>,
    /// Whether other tasks, sockets and timers get a turn before the caller continues.
    is_turn: bool,
}

impl ShmFabric {
    /// Maps the files of `settings`, and joins the cluster as [`TcpFabric::connect`] does. Without files, all is sent by TCP.
    ///
    /// # Errors
    /// A file is no memory that a memory server of this host serves, or a server is not reachable.
    pub fn connect(reactor: &Reactor, settings: ShmSettings) -> Result<ShmFabric, ShmConnectError> {
        let attachments: Vec<_> = settings
            .servers
            .iter()
            .map(|server| match server {
                ServerAddress::Tcp(_) | ServerAddress::Libfabric(_) | ServerAddress::Left => {
                    Ok(None)
                }
                ServerAddress::Shm(path) => Attachment::open(path).map(Some),
            })
            .collect::<Result<_, _>>()?;
        let used = || {
            settings
                .servers
                .iter()
                .filter(|server| **server != ServerAddress::Left)
        };
        let is_libfabric = |server: &ServerAddress| matches!(server, ServerAddress::Libfabric(_));
        let by_libfabric = used().any(is_libfabric);
        if by_libfabric && !used().all(is_libfabric) {
            return Err(ShmConnectError::MixedLibfabric);
        }
        let is_mapped = attachments.iter().any(Option::is_some);
        if is_mapped && attachments[usize::from(LEASE_SERVER)].is_none() {
            return Err(ShmConnectError::LeaseServerByTcp);
        }
        if is_mapped && attachments.len() > MAPPED_MAX {
            let count = attachments.len();
            return Err(ConnectError::Servers { count }.into());
        }
        let addresses = settings.servers.iter().zip(&attachments);
        let addresses = addresses.map(|(server, attachment)| match server {
            ServerAddress::Tcp(address) | ServerAddress::Libfabric(address) => Some(*address),
            ServerAddress::Shm(_) => attachment.as_ref().map(|attachment| attachment.control),
            ServerAddress::Left => None,
        });
        let control = TcpSettings {
            servers: addresses.collect(),
            compute: settings.compute,
            key: settings.key,
            timeout: settings.timeout,
        };
        let remote = RemoteFabric::connect(reactor, control, by_libfabric)?;
        let control = &remote.control;
        for (number, (server, attachment)) in settings.servers.iter().zip(&attachments).enumerate()
        {
            let (ServerAddress::Shm(path), Some(attachment)) = (server, attachment) else {
                continue;
            };
            let generation = control.server_info(number as u16).generation;
            let memory = &attachment.memory;
            if (memory.generation(), usize::from(memory.server())) != (generation, number) {
                return Err(ShmConnectError::OtherMemory(path.clone()));
            }
        }
        let own = match attachments.first() {
            Some(Some(lease_server)) => take_slots(lease_server, control)?,
            _ => Vec::new(),
        };
        let mappings = Arc::new(ProcessMappings { attachments, own });
        mappings.begin_thread(control.thread())?;
        Ok(ShmFabric::new(remote, mappings))
    }

    /// Connects another thread of a process, in the process's epoch and on its mappings.
    ///
    /// # Errors
    /// As for [`TcpFabric::connect_thread`].
    pub fn connect_thread(
        reactor: &Reactor,
        membership: &ShmMembership,
    ) -> Result<ShmFabric, ShmConnectError> {
        let remote = RemoteFabric::connect_thread(reactor, &membership.control)?;
        let mappings = Arc::clone(&membership.mappings);
        mappings.begin_thread(remote.control.thread())?;
        Ok(ShmFabric::new(remote, mappings))
    }

    fn new(remote: RemoteFabric, mappings: Arc<ProcessMappings>) -> ShmFabric {
        ShmFabric(Rc::new(ShmShared {
            control: remote.control.clone(),
            remote,
            mappings,
            state: RefCell::new(ShmState {
                ctx: PersistCtx::new(0),
                batches: 0,
            }),
        }))
    }

    /// Returns the process of this fabric, for its other threads.
    #[must_use]
    pub fn membership(&self) -> ShmMembership {
        ShmMembership {
            control: self.0.control.membership(),
            mappings: Arc::clone(&self.0.mappings),
        }
    }

    /// Returns the number of the compute server.
    #[must_use]
    pub fn compute(&self) -> u16 {
        self.0.control.compute()
    }

    /// Returns the epoch of the compute server in which this fabric joined.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.0.control.epoch()
    }

    /// Returns the reactor that drives this fabric.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        self.0.control.reactor()
    }

    /// Returns the duration of the compute server's lease without renewal.
    #[must_use]
    pub fn lease_ns(&self) -> Nanos {
        self.0.control.lease_ns()
    }

    /// Returns the sizes and the generation of memory server `server`, as it reported them at the connection; zeros if it is not used.
    #[must_use]
    pub fn server_info(&self, server: u16) -> ServerInfo {
        self.0.control.server_info(server)
    }

    /// Returns whether `server` is used: it was given, and not as [`ServerAddress::Left`].
    #[must_use]
    pub fn uses(&self, server: u16) -> bool {
        self.0.control.uses(server)
    }

    /// Returns the length of the longest write of which a compute server that dies leaves nothing or all, in bytes. `None`: of all.
    #[must_use]
    pub fn whole_write_bytes_max(&self) -> Option<usize> {
        self.0.remote.whole_write_bytes_max()
    }

    /// Leaves the epoch. See [`TcpFabric::leave`].
    ///
    /// # Errors
    /// The lease server does not answer, or has ended the epoch.
    pub async fn leave(&self) -> Result<(), FabricError> {
        self.0.control.leave().await
    }

    /// Renews the lease of the compute server until that fails. See [`TcpFabric::keep_alive`].
    pub async fn keep_alive(self) -> Option<FabricError> {
        self.keep_alive_while(|| true).await
    }

    /// Renews the lease while `is_used` returns true. See [`TcpFabric::keep_alive_while`].
    pub async fn keep_alive_while(self, is_used: impl Fn() -> bool) -> Option<FabricError> {
        let renewal = self.0.control.clone().keep_alive_while(is_used);
        drop(self);
        renewal.await
    }
}

impl ShmShared {
    /// Executes a batch on the mapping of `server`, or returns it if it has to be sent (SHM-2, SHM-6).
    fn execute(&self, server: u16, mut verbs: Vec<Verb>) -> Result<ExecutedBatch, Vec<Verb>> {
        let attachments = &self.mappings.attachments;
        let Some(Some(attachment)) = attachments.get(usize::from(server)) else {
            return Err(verbs);
        };
        let lease_server = attachments[usize::from(LEASE_SERVER)].as_ref();
        let lease_server = lease_server.expect("it is mapped if another server is");
        let is_served = attachment.memory.is_served() && self.control.is_idle(server);
        if !is_served && !attachment.is_damaged() && !attachment.memory.has_newer_generation() {
            return Err(verbs);
        }
        let mut state = self.state.borrow_mut();
        let done = if !is_served {
            Err(FabricError::Empty { server })
        } else if is_batch(&verbs) && attachment.is_valid(&verbs) {
            self.execute_on(attachment, lease_server, &mut state, &mut verbs)
        } else {
            Err(FabricError::Rejected { server })
        };
        // Checked last: a byte that cannot be accessed may have been the floor or the slot.
        let damaged = match (attachment.is_damaged(), lease_server.is_damaged()) {
            (true, _) => Some(server),
            (false, true) => Some(LEASE_SERVER),
            (false, false) => None,
        };
        let (result, has_failed) = match (damaged, done) {
            (Some(server), _) => (Err(FabricError::Damaged { server }), false),
            (None, Ok(has_failed)) => (Ok(verbs), has_failed),
            (None, Err(error)) => (Err(error), false),
        };
        state.batches += 1;
        let is_turn = has_failed || state.batches >= BATCHES_OF_TURN;
        if is_turn {
            state.batches = 0;
        }
        if has_failed {
            // The holder of the lock may wait for this processor.
            thread::yield_now();
        }
        Ok(ExecutedBatch { result, is_turn })
    }

    /// Executes valid verbs. Returns whether a compare-and-swap found another value.
    fn execute_on(
        &self,
        attachment: &Attachment,
        lease_server: &Attachment,
        state: &mut ShmState,
        verbs: &mut [Verb],
    ) -> Result<bool, FabricError> {
        let (compute, epoch) = (self.control.compute(), self.control.epoch());
        let has_ended = || lease_server.memory.floor(compute) > epoch;
        let fenced = || match lease_server.is_damaged() {
            true => FabricError::Damaged {
                server: LEASE_SERVER,
            },
            false => {
                self.control.end_epoch();
                FabricError::Fenced
            }
        };
        let ctx = &mut state.ctx;
        if verbs.iter().all(|verb| matches!(verb, Verb::Read { .. })) {
            for verb in verbs {
                attachment.read(verb);
            }
            // SHM-5. The loads have acquire ordering.
            return match has_ended() {
                true => Err(fenced()),
                false => Ok(false),
            };
        }
        let mut own = self.mappings.own(self.control.thread());
        let Ownership { slot, redo } = &mut *own;
        let redo = redo.as_ref().expect("the thread has begun");
        if !slot.enter(&lease_server.memory, ctx) {
            return Err(fenced());
        }
        if has_ended() || lease_server.is_damaged() {
            slot.abandon(&lease_server.memory, ctx);
            return Err(fenced());
        }
        let mut done = Ok(false);
        for verb in verbs {
            match attachment.execute(ctx, redo, verb) {
                VerbOutcome::Done => {}
                VerbOutcome::NotSwapped => done = Ok(true),
                VerbOutcome::NotRecorded => {
                    let server = LEASE_SERVER;
                    done = Err(FabricError::Damaged { server });
                    break;
                }
            }
        }
        slot.leave(&lease_server.memory, ctx); // SHM-3
        done
    }
}

/// Takes the slots of a process that has joined, also those that it will not use: so no thread of a former process can enter one.
fn take_slots(
    lease_server: &Attachment,
    control: &TcpFabric,
) -> Result<Vec<CachePadded<Mutex<Ownership>>>, ShmConnectError> {
    let process = HostProcess::current().map_err(ShmConnectError::Process)?;
    let mut ctx = PersistCtx::new(0);
    let slots = (0..SLOT_PARTS).map(|part| {
        let owner = (control.compute(), part, control.epoch());
        let slot = CallerSlot::take(&lease_server.memory, &mut ctx, owner, process);
        RedoFile::remove_former(&lease_server.path, slot.names[1]);
        CachePadded::new(Mutex::new(Ownership { slot, redo: None }))
    });
    Ok(slots.collect())
}

/// Returns the path of a server's memory; an empty one if it is reached by TCP.
fn path_of(attachment: &Option<Attachment>) -> PathBuf {
    let path = attachment.as_ref().map(|attachment| &attachment.path);
    path.cloned().unwrap_or_default()
}

impl Fabric for ShmFabric {
    fn servers(&self) -> u16 {
        self.0.control.servers()
    }

    fn caps(&self, server: u16) -> FabricCaps {
        self.0.remote.caps(server)
    }

    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        debug_assert!(
            verbs.iter().all(|verb| verb.at().server() == server),
            "a batch must have verbs on server {server} only: {verbs:?}"
        );
        let executed = self.0.execute(server, verbs);
        let sent = executed.map_err(|verbs| self.0.remote.batch(server, verbs));
        let is_turn = matches!(&sent, Ok(batch) if batch.is_turn);
        let turn = is_turn.then(|| self.reactor().yield_now());
        async move {
            match sent {
                Ok(batch) => {
                    if let Some(turn) = turn {
                        turn.await;
                    }
                    batch.result
                }
                Err(sent) => sent.await,
            }
        }
    }

    fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> impl Future<Output = Result<ServiceResponse, FabricError>> {
        self.0.control.call(server, ask)
    }

    fn now(&self) -> Nanos {
        self.0.control.now()
    }

    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()> {
        self.0.control.sleep(ns)
    }
}
