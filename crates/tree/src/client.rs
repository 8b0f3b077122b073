//! A compute server and its clients: the shared state, and the access to memory servers.
//!
//! ```text
//!   thread 0: Compute, its fabric, Clients ─┐
//!   thread 1: Compute, its fabric, Clients ─┼──▶ ComputeState: index cache, local locks, allocators, one owner of global locks
//!             └ all futures of a thread run on this thread
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_utils::sync::{ShardedLockReadGuard, ShardedLockWriteGuard};
use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, ServiceResponse, Verb};
use farbank_pm::fault;
use farbank_pm::sync::unpoisoned;

use crate::block::{VALUE_BYTES_MAX, ValueBlocks};
use crate::cache::{IndexCache, SharedCache};
use crate::config::{Config, HOST_LOCKS_MAX, ValueMode};
use crate::error::TreeError;
use crate::key::Key;
use crate::key_calls::KeySharing;
use crate::leaf_window::LeafWindow;
use crate::lock_table::{LocalLockTable, decode_owner, encode_owner};
use crate::node_allocator::NodeAllocator;
use crate::op_stats::OpStats;
use crate::page::NodePage;
use crate::phase::{Phase, PhaseCounts, PhaseGuard};
use crate::server_list::ListCopy;
use crate::superblock::mark;

/// The state shared by the clients of a compute server, on all its threads. No holder of one of its locks panics.
struct ComputeState {
    config: Config,
    compute: u16,
    epoch: u8,
    locks: LocalLockTable,
    keys: KeySharing,
    cache: SharedCache,
    servers: Vec<MemoryServerState>,
    list: Mutex<ListCopy>,
}

/// A compute server's view of a memory server, and its memory there.
struct MemoryServerState {
    /// Whether the tree's mark was seen there.
    is_marked: AtomicBool,
    /// Whether `error` is there.
    is_gone: AtomicBool,
    /// The error after which it is not used any more in this epoch: it did not answer, or had lost its memory.
    error: Mutex<Option<FabricError>>,
    nodes: Mutex<NodeAllocator>,
    blocks: Mutex<ValueBlocks>,
}

impl MemoryServerState {
    fn new(config: &Config) -> MemoryServerState {
        MemoryServerState {
            is_marked: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            error: Mutex::default(),
            nodes: Mutex::new(NodeAllocator::new(config.shares_spare)),
            blocks: Mutex::new(ValueBlocks::new(config.shares_spare)),
        }
    }
}

/// A compute server of a tree, for its other threads ([`Compute::on_thread`]).
#[derive(Clone)]
pub struct SharedCompute(Arc<ComputeState>);

impl SharedCompute {
    /// Begins to use this copy of the list of memory servers. Before the first call, all of them get new nodes.
    pub(crate) fn keep_list(&self, copy: ListCopy) {
        *unpoisoned(self.0.list.lock()) = copy;
    }
}

/// A thread of a compute server.
struct ComputeThread<F> {
    fabric: F,
    state: Arc<ComputeState>,
    phases: Rc<PhaseCounts>,
}

/// A compute server of a tree, on one of its threads.
pub struct Compute<F> {
    thread: Rc<ComputeThread<F>>,
}

/// One client of a compute server: one operation at a time.
pub struct Client<F> {
    thread: Rc<ComputeThread<F>>,
    op: Cell<OpStats>,
    leaf_window: LeafWindow,
}

/// A copy of a node, with its address.
#[derive(Clone, Debug)]
pub(crate) struct FetchedNode {
    pub(crate) at: GAddr,
    pub(crate) page: NodePage,
}

impl FetchedNode {
    /// Returns the error for a node that is torn although no client writes it.
    pub(crate) fn damaged(&self) -> TreeError {
        TreeError::Damaged { at: self.at }
    }
}

impl<F: Fabric> Compute<F> {
    /// Creates compute server `compute` with lease epoch `epoch`, for a tree that [`crate::create`] or [`crate::fill`]
    /// has created with the same layout and locks.
    ///
    /// # Panics
    /// If `host_locks` is not 1 to [`HOST_LOCKS_MAX`].
    pub fn new(fabric: F, compute: u16, epoch: u8, config: Config) -> Compute<F> {
        let host_locks = config.host_locks;
        assert!(
            (1..=HOST_LOCKS_MAX).contains(&host_locks),
            "host_locks is {host_locks}, expected 1 to {HOST_LOCKS_MAX}"
        );
        let cache = IndexCache::new(&config, compute.into());
        let servers = (0..fabric.servers()).map(|_| MemoryServerState::new(&config));
        let state = ComputeState {
            config,
            compute,
            epoch,
            locks: LocalLockTable::new(),
            keys: KeySharing::new(),
            cache: SharedCache::new(cache),
            servers: servers.collect(),
            list: Mutex::new(ListCopy::fixed(fabric.servers())),
        };
        Compute::on_thread(fabric, &SharedCompute(Arc::new(state)))
    }

    /// Creates the handle of a compute server for the thread of `fabric`, which is of the same epoch. Its clients share the index
    /// cache and hand over locks with those of the other threads.
    #[must_use]
    pub fn on_thread(fabric: F, shared: &SharedCompute) -> Compute<F> {
        Compute {
            thread: Rc::new(ComputeThread {
                fabric,
                state: Arc::clone(&shared.0),
                phases: Rc::default(),
            }),
        }
    }

    /// Returns the compute server, for its other threads.
    #[must_use]
    pub fn shared(&self) -> SharedCompute {
        SharedCompute(Arc::clone(&self.thread.state))
    }

    /// Creates a client.
    #[must_use]
    pub fn client(&self) -> Client<F> {
        Client {
            thread: Rc::clone(&self.thread),
            op: Cell::default(),
            leaf_window: LeafWindow::new(),
        }
    }

    /// Returns whether any of its clients on this thread is in phase `what`.
    #[cfg(feature = "check")]
    pub(crate) fn is_in_phase(&self, what: Phase) -> bool {
        self.thread.phases.any(what)
    }

    /// Returns the tree's configuration.
    pub(crate) fn config(&self) -> &Config {
        &self.thread.state.config
    }

    /// Returns its index cache, to change it.
    pub(crate) fn cache_mut(&self) -> ShardedLockWriteGuard<'_, IndexCache> {
        unpoisoned(self.thread.state.cache.write())
    }

    /// Returns the bytes of internal nodes in its cache.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        unpoisoned(self.thread.state.cache.read()).bytes()
    }
}

impl<F: Fabric> Client<F> {
    /// Returns the costs of the operations since the last call, and resets them.
    pub fn take_op(&self) -> OpStats {
        self.op.take()
    }

    /// Returns the access to the memory servers.
    pub(crate) fn fabric(&self) -> &F {
        &self.thread.fabric
    }

    /// Returns the tree's configuration.
    pub(crate) fn config(&self) -> &Config {
        &self.state().config
    }

    fn state(&self) -> &ComputeState {
        &self.thread.state
    }

    /// Calls `with` on this compute server's copy of the list of memory servers.
    pub(crate) fn list_copy<T>(&self, with: impl FnOnce(&mut ListCopy) -> T) -> T {
        let mut copy = unpoisoned(self.state().list.lock());
        with(&mut copy)
    }

    /// Returns the state of `server`, if this compute server knows it.
    fn listed(&self, server: u16) -> Result<&MemoryServerState, TreeError> {
        let state = self.state().servers.get(usize::from(server));
        state.ok_or(TreeError::Fabric(FabricError::Unlisted { server }))
    }

    fn server(&self, server: u16) -> &MemoryServerState {
        &self.state().servers[usize::from(server)]
    }

    /// Returns the compute server's index cache, for lookups.
    pub(crate) fn cache(&self) -> ShardedLockReadGuard<'_, IndexCache> {
        unpoisoned(self.state().cache.read())
    }

    /// Returns the compute server's index cache, to change it.
    pub(crate) fn cache_mut(&self) -> ShardedLockWriteGuard<'_, IndexCache> {
        unpoisoned(self.state().cache.write())
    }

    /// Returns the compute server's local locks.
    pub(crate) fn local_locks(&self) -> &LocalLockTable {
        &self.state().locks
    }

    /// Returns the compute server's shared operations.
    pub(crate) fn key_sharing(&self) -> &KeySharing {
        &self.state().keys
    }

    /// Returns the compute server in its epoch, as owner of locks.
    pub(crate) fn lock_owner(&self) -> u64 {
        encode_owner(self.state().compute, self.state().epoch)
    }

    /// Returns the number of this compute server.
    pub(crate) fn compute(&self) -> u16 {
        self.state().compute
    }

    /// Returns whether this is the compute server `compute` in epoch `epoch`.
    pub(crate) fn is_on(&self, compute: u16, epoch: u8) -> bool {
        (compute, epoch) == (self.state().compute, self.state().epoch)
    }

    /// Returns the number of leaves that ranges read at once.
    pub(crate) fn leaf_window(&self) -> &LeafWindow {
        &self.leaf_window
    }

    /// Returns `key`, if it is not too long for this tree.
    pub(crate) fn fitting(&self, key: Key) -> Result<Key, TreeError> {
        let most = self.config().layout.key_bytes;
        match key.len() <= most {
            true => Ok(key),
            false => Err(TreeError::KeyTooLong {
                bytes: key.len(),
                most,
            }),
        }
    }

    /// Checks that values are `out_of_line`, or words. Returns their maximum bytes.
    pub(crate) fn values_are(&self, out_of_line: bool) -> Result<usize, TreeError> {
        match (self.config().values, out_of_line) {
            (ValueMode::Words, false) => Ok(8),
            (ValueMode::Blocks { bytes_max }, true) => Ok(bytes_max.min(VALUE_BYTES_MAX)),
            _ => Err(TreeError::OtherValues),
        }
    }

    /// Returns whether lookups and inserts read a part of a leaf.
    pub(crate) fn reads_parts(&self) -> bool {
        self.config().layout.is_hashed() && self.config().entries_alone
    }

    pub(crate) fn note(&self, change: impl FnOnce(&mut OpStats)) {
        let mut op = self.op.get();
        change(&mut op);
        self.op.set(op);
    }

    /// Counts this client as in phase `what` until the returned guard is dropped.
    pub(crate) fn begin(&self, what: Phase) -> PhaseGuard {
        self.thread.phases.begin(what)
    }

    /// Checks once that memory server `server` has this tree's mark. A server that restarted with empty memory has
    /// none.
    pub(crate) async fn admit(&self, server: u16) -> Result<(), TreeError> {
        let state = self.listed(server)?;
        if state.is_marked.load(Ordering::Acquire) || fault!("tree.empty_server_admitted") {
            return Ok(());
        }
        let (at, mark) = mark(server, &self.config().layout);
        self.reachable(server)?;
        let found = self.fabric().read(at, mark.len()).await;
        let found = found.map_err(|error| self.noted(error))?;
        if found.iter().all(|byte| *byte == 0) {
            return Err(self.noted(FabricError::Empty { server }));
        }
        if found != mark {
            return Err(TreeError::OtherLayout { server });
        }
        state.is_marked.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the recorded error at once if `server` has failed to answer before, so that an epoch waits for its
    /// timeout only once.
    pub(crate) fn reachable(&self, server: u16) -> Result<(), TreeError> {
        let state = self.listed(server)?;
        if !state.is_gone.load(Ordering::Acquire) {
            return Ok(());
        }
        let error = *unpoisoned(state.error.lock());
        error.map_or(Ok(()), |error| Err(TreeError::Fabric(error)))
    }

    /// Records a memory server as failed if `error` says so. Returns the tree's error.
    pub(crate) fn noted(&self, error: FabricError) -> TreeError {
        use FabricError::{Damaged, Empty, Timeout};
        if let Timeout { server } | Empty { server } | Damaged { server } = error {
            let state = self.server(server);
            *unpoisoned(state.error.lock()) = Some(error);
            state.is_gone.store(true, Ordering::Release);
        }
        TreeError::Fabric(error)
    }

    /// Renews this compute server's lease. The application must call it more often than the lease duration.
    pub async fn renew(&self) -> Result<(), TreeError> {
        self.call(LEASE_SERVER, ServiceRequest::Renew)
            .await
            .map(|_| ())
    }

    pub(crate) async fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> Result<ServiceResponse, TreeError> {
        self.reachable(server)?;
        let answer = self.fabric().call(server, ask).await;
        answer.map_err(|error| self.noted(error))
    }

    pub(crate) async fn round_trip(&self, verb: Verb) -> Result<Verb, TreeError> {
        self.reachable(verb.at().server())?;
        self.note(|op| op.round_trips += 1);
        let done = self.fabric().verb(verb).await;
        done.map_err(|error| self.noted(error))
    }

    /// Performs `verbs`, all of them on `server`, in one batch.
    pub(crate) async fn round_trip_of(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> Result<Vec<Verb>, TreeError> {
        self.reachable(server)?;
        self.note(|op| op.round_trips += 1);
        let done = self.fabric().batch(server, verbs).await;
        done.map_err(|error| self.noted(error))
    }

    /// Returns whether the owner's epoch has ended for good: it is fenced (TREE-LOCK-3).
    pub(crate) async fn is_dead(&self, owner: u64) -> Result<bool, TreeError> {
        let (compute, epoch) = decode_owner(owner);
        if self.is_on(compute, epoch) {
            return Ok(false);
        }
        let answer = self
            .call(LEASE_SERVER, ServiceRequest::CheckLease { compute, epoch })
            .await?;
        Ok(answer == ServiceResponse::Expired)
    }

    /// Performs `writes` in order, in one batch if `together`.
    pub(crate) async fn write_all(
        &self,
        server: u16,
        writes: Vec<Verb>,
        together: bool,
    ) -> Result<(), TreeError> {
        if together {
            return self.round_trip_of(server, writes).await.map(|_| ());
        }
        for write in writes {
            self.round_trip(write).await?;
        }
        Ok(())
    }

    /// Calls `with` on this compute server's nodes on `server`.
    pub(crate) fn nodes<T>(&self, server: u16, with: impl FnOnce(&mut NodeAllocator) -> T) -> T {
        let mut nodes = unpoisoned(self.server(server).nodes.lock());
        with(&mut nodes)
    }

    /// Calls `with` on this compute server's blocks on `server`.
    pub(crate) fn blocks<T>(&self, server: u16, with: impl FnOnce(&mut ValueBlocks) -> T) -> T {
        let mut blocks = unpoisoned(self.server(server).blocks.lock());
        with(&mut blocks)
    }
}
