//! [`ShmFabric`]: the fabric of one thread of a compute process, on mapped memory and over TCP.

use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use farbank_pm::PersistCtx;

use super::attachment::{Attachment, VerbOutcome};
use super::{ServerAddress, ShmConnectError};
use crate::fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
use crate::server::{CallerSlot, HostProcess, MAPPED_MAX, RedoFile};
use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};
use crate::tcp::{ConnectError, Reactor, ServerInfo, SharedKey, TcpFabric, TcpSettings};
use crate::wire::is_batch;

/// Batches after which a thread looks at its sockets and timers.
const BATCHES_OF_TURN: u32 = 64;

/// The settings of a [`ShmFabric`].
#[derive(Clone, Debug)]
pub struct ShmSettings {
    /// All memory servers, in the order of their numbers. The first is the lease server.
    pub servers: Vec<ServerAddress>,
    /// Number of the compute server, as in [`TcpSettings`].
    pub compute: Option<u16>,
    /// The key that all servers of the cluster share.
    pub key: SharedKey,
    /// Time after which a request to a server that does not answer fails with [`FabricError::Timeout`].
    pub timeout: Duration,
}

/// What a compute process has in and beside the lease server's memory.
struct Ownership {
    slot: CallerSlot,
    redo: RedoFile,
}

struct ShmState {
    /// The slot and the record of writes, if a server's memory is mapped (SHM-4).
    own: Option<Ownership>,
    ctx: PersistCtx,
    /// Batches since the thread has looked at its sockets.
    batches: u32,
}

struct ShmShared {
    control: TcpFabric,
    /// Mapped memories, by server. `None`: the server is reached by TCP.
    attachments: Vec<Option<Attachment>>,
    state: RefCell<ShmState>,
}

/// The access of one thread of a compute process to memory servers: to those of its host by shared memory, if their files
/// are given, and to others by TCP. Clones share the connections and mappings. See [`TcpFabric`] about errors.
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
                ServerAddress::Tcp(_) => Ok(None),
                ServerAddress::Shm(path) => Attachment::open(path).map(Some),
            })
            .collect::<Result<_, _>>()?;
        let is_mapped = attachments.iter().any(Option::is_some);
        if is_mapped && attachments[usize::from(LEASE_SERVER)].is_none() {
            return Err(ShmConnectError::LeaseServerByTcp);
        }
        if is_mapped && attachments.len() > MAPPED_MAX {
            let count = attachments.len();
            return Err(ConnectError::Servers { count }.into());
        }
        let addresses = settings.servers.iter().zip(&attachments);
        let addresses = addresses.filter_map(|(server, attachment)| match (server, attachment) {
            (ServerAddress::Tcp(address), _) => Some(*address),
            (_, Some(attachment)) => Some(attachment.control),
            (ServerAddress::Shm(_), None) => None,
        });
        let control = TcpSettings {
            servers: addresses.collect(),
            compute: settings.compute,
            key: settings.key,
            timeout: settings.timeout,
        };
        let control = TcpFabric::connect(reactor, control)?;
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
        let mut ctx = PersistCtx::new(0);
        let own = match attachments.first() {
            Some(Some(lease_server)) => {
                let process = HostProcess::current().map_err(ShmConnectError::Process)?;
                let owner = (control.compute(), control.epoch());
                let paths: Vec<_> = attachments.iter().map(path_of).collect();
                let slot = CallerSlot::take(&lease_server.memory, &mut ctx, owner, process);
                let [name, former] = slot.names;
                let redo = RedoFile::create(name, former, &paths).map_err(ShmConnectError::Open)?;
                Some(Ownership { slot, redo })
            }
            _ => None,
        };
        Ok(ShmFabric(Rc::new(ShmShared {
            control,
            attachments,
            state: RefCell::new(ShmState {
                own,
                ctx,
                batches: 0,
            }),
        })))
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

    /// Returns the sizes and the generation of memory server `server`, as it reported them at the connection.
    #[must_use]
    pub fn server_info(&self, server: u16) -> ServerInfo {
        self.0.control.server_info(server)
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
        let renewal = self.0.control.clone().keep_alive();
        drop(self);
        renewal.await
    }
}

impl ShmShared {
    /// Executes a batch on the mapping of `server`, or returns it if it has to be sent (SHM-2, SHM-6).
    fn execute(&self, server: u16, mut verbs: Vec<Verb>) -> Result<ExecutedBatch, Vec<Verb>> {
        let Some(attachment) = &self.attachments[usize::from(server)] else {
            return Err(verbs);
        };
        let lease_server = self.attachments[usize::from(LEASE_SERVER)].as_ref();
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
        let ShmState { own, ctx, .. } = state;
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
        let Ownership { slot, redo } = own.as_mut().expect("it exists if a memory is mapped");
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
        self.0.control.caps(server)
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
        let sent = executed.map_err(|verbs| self.0.control.batch(server, verbs));
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
