//! [`Session`]: a compute server's time in one epoch, on one of the threads of a cluster.
//!
//! A session ends for all threads with the first error of the fabric on one of them, because the effects of its requests may be
//! unknown. The next operation begins another session, as another compute server.
//!
//! A session *retires* when a memory server joins that it does not know (`joining`), or one leaves that it uses (`leaving`). New
//! operations begin another session. The old one is left when its operations have ended.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use farbank_fabric::Fabric;
use farbank_fabric::shm::{ShmFabric, ShmMembership, ShmSettings};
use farbank_fabric::tcp::Reactor;
use farbank_pm::sync::unpoisoned;

use super::ClusterError;
use super::descriptor::TreeDescriptor;
use super::joining::{OpenedTree, ServerChanges, knows, open_tree};
use crate::client::{Client, Compute, SharedCompute};
use crate::config::Config;
use crate::server_list::ListCopy;

/// A session, for all threads.
pub(super) struct SharedSession {
    membership: ShmMembership,
    /// The tree, when a thread has opened it. No holder of the lock panics.
    tree: Mutex<Option<(TreeDescriptor, SharedCompute)>>,
    /// Operations under way.
    uses: AtomicUsize,
    /// Whether no more operations begin.
    is_retired: AtomicBool,
    /// Whether a request has failed, so that the effects of the session's requests are unknown.
    is_broken: AtomicBool,
}

impl SharedSession {
    /// Returns whether an operation can begin.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_broken() && !self.is_retired.load(Ordering::SeqCst)
    }

    fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    /// Makes later operations begin another session.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
    }

    /// Returns the tree's sizes and the compute server, if a thread has opened the tree.
    fn opened(&self) -> Option<(TreeDescriptor, SharedCompute)> {
        unpoisoned(self.tree.lock()).clone()
    }

    fn end(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
    }
}

/// An operation's use of a session: a retired session ends when no operation uses it.
pub(super) struct SessionUse(Rc<Session>);

impl SessionUse {
    /// Begins to use `session`. `None`: no operation can begin.
    pub(super) fn begin(session: &Rc<Session>) -> Option<SessionUse> {
        // Counted before the look at the state, as `end_when_unused` looks after it has retired the session.
        session.shared.uses.fetch_add(1, Ordering::SeqCst);
        let begun = SessionUse(Rc::clone(session));
        session.shared.is_usable().then_some(begun)
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.0.shared.uses.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Deref for SessionUse {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.0
    }
}

/// A session on one thread.
pub(super) struct Session {
    pub(super) fabric: ShmFabric,
    shared: Arc<SharedSession>,
    tree: RefCell<Option<OpenTree>>,
}

/// The tree, as a thread uses it.
#[derive(Clone)]
struct OpenTree {
    descriptor: TreeDescriptor,
    compute: Rc<Compute<ShmFabric>>,
}

impl Session {
    /// Begins a session. Its lease is renewed on the thread of `reactor`.
    pub(super) fn begin(
        reactor: &Reactor,
        settings: ShmSettings,
    ) -> Result<Rc<Session>, ClusterError> {
        let fabric = ShmFabric::connect(reactor, settings)?;
        let shared = Arc::new(SharedSession {
            membership: fabric.membership(),
            tree: Mutex::default(),
            uses: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        });
        // The lease of a broken session ends, so that others get its locks, although this thread may have no operation meanwhile
        // and keeps its part of the session.
        let (renewed, watched) = (fabric.clone(), Arc::clone(&shared));
        reactor.spawn(async move {
            let is_used = || !watched.is_broken();
            if renewed.keep_alive_while(is_used).await.is_some() {
                watched.end();
            }
        });
        reactor.spawn(watch_servers(fabric.clone(), Arc::clone(&shared)));
        Ok(Session::new(fabric, shared))
    }

    /// Connects the thread of `reactor` in a session that another thread has begun. If that is not possible, ends the session and
    /// returns `None`: a server has restarted, or the lease has ended.
    pub(super) fn join(reactor: &Reactor, shared: &Arc<SharedSession>) -> Option<Rc<Session>> {
        match ShmFabric::connect_thread(reactor, &shared.membership) {
            Ok(fabric) => Some(Session::new(fabric, Arc::clone(shared))),
            Err(_) => {
                shared.end();
                None
            }
        }
    }

    fn new(fabric: ShmFabric, shared: Arc<SharedSession>) -> Rc<Session> {
        Rc::new(Session {
            fabric,
            shared,
            tree: RefCell::default(),
        })
    }

    /// Returns the session, for the other threads.
    pub(super) fn shared(&self) -> &Arc<SharedSession> {
        &self.shared
    }

    /// Begins to use the tree that `descriptor` describes, unless another thread has.
    pub(super) fn set_tree(&self, descriptor: TreeDescriptor, list: ListCopy) {
        let mut tree = unpoisoned(self.shared.tree.lock());
        let (descriptor, compute) = tree
            .get_or_insert_with(|| (descriptor, compute_server(&self.fabric, &descriptor, list)));
        self.attach(*descriptor, compute);
    }

    /// Begins to use the tree on this thread.
    fn attach(&self, descriptor: TreeDescriptor, compute: &SharedCompute) {
        let compute = Rc::new(Compute::on_thread(self.fabric.clone(), compute));
        *self.tree.borrow_mut() = Some(OpenTree {
            descriptor,
            compute,
        });
    }

    /// Opens the tree. If servers have joined or left and the session does not know them, returns the changes, and the tree is not open.
    pub(super) async fn open(&self) -> Result<Option<ServerChanges>, ClusterError> {
        if self.tree.borrow().is_some() {
            return Ok(None);
        }
        if let Some((descriptor, compute)) = self.shared.opened() {
            self.attach(descriptor, &compute);
            return Ok(None);
        }
        match open_tree(&self.fabric).await? {
            OpenedTree::OtherServers(changes) => Ok(Some(changes)),
            OpenedTree::Open(descriptor, list) => {
                self.set_tree(descriptor, list);
                Ok(None)
            }
        }
    }

    /// Returns the tree's sizes and a client of it. The tree is open.
    pub(super) fn tree(&self) -> (TreeDescriptor, Client<ShmFabric>) {
        let tree = self.tree.borrow();
        let tree = tree.as_ref().expect("the tree is open");
        (tree.descriptor, tree.compute.client())
    }

    /// Records the error of an operation.
    pub(super) fn note(&self, error: &ClusterError) {
        if error.is_of_fabric() {
            self.shared.end();
        }
    }

    /// Leaves the unused memory and the epoch, if nothing of it can be under way. No thread uses the session any more.
    pub(super) async fn leave(&self) {
        leave(&self.fabric, &self.shared).await;
    }
}

/// See [`Session::leave`].
async fn leave(fabric: &ShmFabric, shared: &SharedSession) {
    if shared.is_broken() {
        return;
    }
    if let Some((_, compute)) = shared.opened() {
        let client = Compute::on_thread(fabric.clone(), &compute).client();
        if client.leave_spare().await.is_err() {
            return;
        }
    }
    // Without the answer the epoch ends with its lease.
    let _ = fabric.leave().await;
}

/// Creates a compute server of the tree, with this copy of the list of servers.
pub(super) fn compute_server(
    fabric: &ShmFabric,
    descriptor: &TreeDescriptor,
    list: ListCopy,
) -> SharedCompute {
    let config = Config {
        list_ns_max: fabric.lease_ns(),
        ..descriptor.config()
    };
    let (compute, epoch) = (fabric.compute(), fabric.epoch());
    let compute = Compute::new(fabric.clone(), compute, epoch, config).shared();
    compute.keep_list(list);
    compute
}

/// Looks for memory servers that have joined or left, until the session ends (TREE-JOIN-2).
async fn watch_servers(fabric: ShmFabric, shared: Arc<SharedSession>) {
    let every = fabric.lease_ns() / 4;
    while shared.is_usable() {
        fabric.sleep(every).await;
        let Some((descriptor, compute)) = shared.opened() else {
            continue;
        };
        // After an error, an operation or the renewal of the lease will get one, too.
        let client = Compute::on_thread(fabric.clone(), &compute).client();
        let Ok(list) = client.read_server_list(descriptor.servers).await else {
            continue;
        };
        if !knows(&fabric, &list) {
            break;
        }
    }
    end_when_unused(&fabric, &shared).await;
}

/// Retires the session, and leaves it when its operations have ended.
async fn end_when_unused(fabric: &ShmFabric, shared: &SharedSession) {
    /// Time between two looks at the operations.
    const PAUSE_NS: u64 = 1_000_000;
    shared.retire();
    while shared.uses.load(Ordering::SeqCst) > 0 && !shared.is_broken() {
        fabric.sleep(PAUSE_NS).await;
    }
    leave(fabric, shared).await;
    shared.end();
}
