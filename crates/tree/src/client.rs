//! A compute server and its clients: the shared state, and reads and writes of nodes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::{Fabric, GAddr, Nanos, ServiceRequest, ServiceResponse, Verb};
use farbank_pm::fault;
use farbank_pm::rng::Rng;

use crate::TreeError;
use crate::bulk_load::mark;
use crate::cache::IndexCache;
use crate::config::{Config, HOST_LOCKS_MAX};
use crate::lock::{HeldLock, LocalLockTable, ReleaseMode};
use crate::op_stats::OpStats;
use crate::page::NodePage;
use crate::phase::{Phase, PhaseCounts, PhaseGuard};
use crate::range::{AT_ONCE_PARTS, LEAVES_MAX};
use crate::value_blocks::ValueBlocks;

/// The root's address, on server 0.
pub(crate) const ROOT: GAddr = GAddr::host(0, 64);

/// The state shared by the clients of a compute server.
pub(crate) struct ComputeState<F> {
    pub(crate) fabric: F,
    pub(crate) config: Config,
    pub(crate) compute: u16,
    pub(crate) epoch: u8,
    pub(crate) locks: Rc<RefCell<LocalLockTable>>,
    pub(crate) cache: RefCell<IndexCache>,
    nodes: RefCell<Vec<NodeAllocator>>,
    blocks: RefCell<Vec<ValueBlocks>>,
    pub(crate) phases: Rc<PhaseCounts>,
    servers: RefCell<Vec<MemoryServerState>>,
}

/// A compute server's view of a memory server.
#[derive(Clone, Copy, Default)]
struct MemoryServerState {
    /// Whether the tree's mark was seen there.
    marked: bool,
    /// The error after which it is not used any more in this epoch: it did not answer, or had lost its memory.
    gone: Option<farbank_fabric::FabricError>,
}

/// The nodes that a compute server can allocate on one memory server.
#[derive(Default)]
struct NodeAllocator {
    /// Start and end of the unused part of a chunk.
    chunk: Option<(u64, u64)>,
    /// Leaves freed by merges, with their last versions.
    freed: Vec<(GAddr, u8)>,
}

/// A compute server of a tree.
pub struct Compute<F> {
    pub(crate) state: Rc<ComputeState<F>>,
}

/// One client of a compute server: one operation at a time.
pub struct Client<F> {
    pub(crate) home: Rc<ComputeState<F>>,
    op: Cell<OpStats>,
    /// Number of leaves of a range that are read at once, times `AT_ONCE_PARTS` (see `range`).
    pub(crate) at_once: Cell<usize>,
}

/// A copy of a node, with its address.
#[derive(Clone, Debug)]
pub(crate) struct FetchedNode {
    pub(crate) at: GAddr,
    pub(crate) page: NodePage,
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
        let servers = usize::from(fabric.servers());
        let node_bytes = config.layout.node_bytes;
        let cache = IndexCache::new(config.cache_bytes, node_bytes, compute.into());
        Compute {
            state: Rc::new(ComputeState {
                fabric,
                config,
                compute,
                epoch,
                locks: Rc::default(),
                cache: RefCell::new(cache),
                nodes: RefCell::new((0..servers).map(|_| NodeAllocator::default()).collect()),
                blocks: RefCell::new((0..servers).map(|_| ValueBlocks::default()).collect()),
                phases: Rc::default(),
                servers: RefCell::new(vec![MemoryServerState::default(); servers]),
            }),
        }
    }

    /// Creates a client.
    #[must_use]
    pub fn client(&self) -> Client<F> {
        Client {
            home: Rc::clone(&self.state),
            op: Cell::default(),
            at_once: Cell::new(LEAVES_MAX * AT_ONCE_PARTS),
        }
    }

    /// Returns whether any of its clients is in phase `what`.
    #[cfg(feature = "check")]
    pub(crate) fn is_in_phase(&self, what: Phase) -> bool {
        self.state.phases.any(what)
    }

    /// Returns the bytes of internal nodes in its cache.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.state.cache.borrow().bytes()
    }
}

impl<F: Fabric> Client<F> {
    /// Returns the costs of the operations since the last call, and resets them.
    pub fn take_op(&self) -> OpStats {
        self.op.take()
    }

    pub(crate) fn note(&self, change: impl FnOnce(&mut OpStats)) {
        let mut op = self.op.get();
        change(&mut op);
        self.op.set(op);
    }

    /// Counts this client as in phase `what` until the returned guard is dropped.
    pub(crate) fn begin(&self, what: Phase) -> PhaseGuard {
        self.home.phases.begin(what)
    }

    /// Checks once that memory server `server` has this tree's mark. A server that restarted with empty memory has
    /// none.
    pub(crate) async fn admit(&self, server: u16) -> Result<(), TreeError> {
        let index = usize::from(server);
        if self.home.servers.borrow()[index].marked || fault!("tree.empty_server_admitted") {
            return Ok(());
        }
        let (at, mark) = mark(server, &self.home.config.layout);
        self.reachable(server)?;
        let found = self.home.fabric.read(at, mark.len()).await;
        let found = found.map_err(|error| self.noted(error))?;
        if found.iter().all(|byte| *byte == 0) {
            return Err(self.noted(farbank_fabric::FabricError::Empty { server }));
        }
        if found != mark {
            return Err(TreeError::OtherLayout { server });
        }
        self.home.servers.borrow_mut()[index].marked = true;
        Ok(())
    }

    /// Returns the recorded error at once if `server` has failed to answer before, so that an epoch waits for its
    /// timeout only once.
    pub(crate) fn reachable(&self, server: u16) -> Result<(), TreeError> {
        let gone = self.home.servers.borrow()[usize::from(server)].gone;
        gone.map_or(Ok(()), |error| Err(TreeError::Fabric(error)))
    }

    /// Records a memory server as failed if `error` says so. Returns the tree's error.
    pub(crate) fn noted(&self, error: farbank_fabric::FabricError) -> TreeError {
        use farbank_fabric::FabricError::{Empty, Timeout};
        if let Timeout { server } | Empty { server } = error {
            self.home.servers.borrow_mut()[usize::from(server)].gone = Some(error);
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
        let answer = self.home.fabric.call(server, ask).await;
        answer.map_err(|error| self.noted(error))
    }

    pub(crate) async fn round_trip(&self, verb: Verb) -> Result<Verb, TreeError> {
        self.reachable(verb.at().server())?;
        self.note(|op| op.round_trips += 1);
        let done = self.home.fabric.verb(verb).await;
        done.map_err(|error| self.noted(error))
    }

    /// Reads the node at `at`, and retries until the copy is whole. A read slower than the version window cannot detect
    /// a wrapped version. So the client backs off before it retries, longer each time, because on a crowded network
    /// card immediate retries would keep all reads slow.
    pub(crate) async fn read(&self, at: GAddr) -> Result<FetchedNode, TreeError> {
        const WAIT_NS: Nanos = 4_000;
        const DOUBLINGS: u32 = 6;
        let layout = self.home.config.layout;
        let mut late = 0;
        self.admit(at.server()).await?;
        loop {
            let posted = self.home.fabric.now();
            let verb = self.round_trip(Verb::read(at, layout.node_bytes)).await?;
            let page = NodePage {
                layout,
                bytes: verb.into_bytes(),
            };
            let in_time = self.home.fabric.now() - posted <= self.home.config.read_ns_max();
            if in_time && (page.check().is_ok() || fault!("tree.node_unchecked")) {
                return Ok(FetchedNode { at, page });
            }
            self.note(|op| op.read_retries += 1);
            if !in_time {
                let mut lot =
                    Rng::new(at.0 ^ self.home.fabric.now()).fork(self.home.compute.into());
                let most = WAIT_NS << late;
                late = (late + 1).min(DOUBLINGS);
                self.home.fabric.sleep(lot.below(most)).await;
            }
        }
    }

    /// Performs `writes`, to one server and in order, and releases `held`: in one batch, if the configuration and the
    /// fabric allow it.
    pub(crate) async fn write_and_unlock(
        &self,
        held: HeldLock,
        mut writes: Vec<Verb>,
    ) -> Result<(), TreeError> {
        let bytes: usize = writes.iter().map(carried).sum();
        self.note(|op| op.bytes_written += bytes as u32);
        let letting = self.release_mode(&held);
        let server = writes[0].at().server();
        let ordered = self.home.config.combine && self.home.fabric.caps(server).ordered;
        if let (true, ReleaseMode::Remote(release)) = (ordered, &letting) {
            match fault!("tree.released_before_written") {
                true => drop(self.round_trip(release.clone()).await?),
                false => writes.push(release.clone()),
            }
        }
        let done = self.write_all(server, writes, ordered).await;
        let released = match (&letting, ordered, &done) {
            (ReleaseMode::Remote(release), false, Ok(())) => self.release_alone(release).await,
            _ => Ok(()),
        };
        let done = done.and(released);
        self.release(held, &letting, done.err());
        done
    }

    async fn release_alone(&self, release: &Verb) -> Result<(), TreeError> {
        for _ in 0..self.home.config.lone_release_trips {
            self.round_trip(Verb::read(release.at(), 8)).await?;
        }
        self.round_trip(release.clone()).await.map(|_| ())
    }

    /// Performs `writes` in order, in one batch if `together`.
    pub(crate) async fn write_all(
        &self,
        server: u16,
        writes: Vec<Verb>,
        together: bool,
    ) -> Result<(), TreeError> {
        if together {
            self.reachable(server)?;
            self.note(|op| op.round_trips += 1);
            let done = self.home.fabric.batch(server, writes).await;
            return done.map(|_| ()).map_err(|error| self.noted(error));
        }
        for write in writes {
            self.round_trip(write).await?;
        }
        Ok(())
    }

    /// Allocates a node on `server`: a freed one, with its last version, or a new one from a chunk.
    pub(crate) async fn allocate(&self, server: u16) -> Result<(GAddr, u8), TreeError> {
        let node_bytes = self.home.config.layout.node_bytes as u64;
        loop {
            {
                let mut nodes = self.home.nodes.borrow_mut();
                let nodes = &mut nodes[usize::from(server)];
                if let Some(node) = nodes.freed.pop() {
                    return Ok(node);
                }
                if let Some((at, end)) = nodes.chunk
                    && at + node_bytes <= end
                {
                    nodes.chunk = Some((at + node_bytes, end));
                    return Ok((GAddr::host(server, at), 0));
                }
            }
            match self.call(server, ServiceRequest::Chunk).await? {
                ServiceResponse::Chunk { at, bytes } => {
                    self.home.nodes.borrow_mut()[usize::from(server)].chunk =
                        Some((at, at + bytes));
                }
                _ => return Err(TreeError::Full { server }),
            }
        }
    }

    /// Calls `with` on this compute server's blocks on `server`.
    pub(crate) fn blocks<T>(&self, server: u16, with: impl FnOnce(&mut ValueBlocks) -> T) -> T {
        with(&mut self.home.blocks.borrow_mut()[usize::from(server)])
    }

    /// Makes a leaf available for reuse, to which nothing leads any more. A client that still has its address detects
    /// the change by the header.
    pub(crate) fn reuse(&self, found: &FetchedNode) {
        let mut nodes = self.home.nodes.borrow_mut();
        let nodes = &mut nodes[usize::from(found.at.server())];
        nodes.freed.push((found.at, found.page.version()));
    }
}

fn carried(verb: &Verb) -> usize {
    match verb {
        Verb::Write { bytes, .. } => bytes.len(),
        _ => 0,
    }
}
