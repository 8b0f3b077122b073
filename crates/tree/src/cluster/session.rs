//! [`Session`]: a compute server's time in one epoch, on one of the threads of a cluster.
//!
//! A session ends for all threads with the first error of the fabric on one of them, because the effects of its requests may be
//! unknown. The next operation begins another session, as another compute server.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use farbank_fabric::shm::{ShmFabric, ShmMembership, ShmSettings};
use farbank_fabric::tcp::Reactor;
use farbank_pm::sync::unpoisoned;

use super::ClusterError;
use super::descriptor::{TreeDescriptor, open_tree};
use crate::client::{Client, Compute, SharedCompute};
use crate::error::TreeError;

/// A session, for all threads.
pub(super) struct SharedSession {
    membership: ShmMembership,
    /// The tree, when a thread has opened it. No holder of the lock panics.
    tree: Mutex<Option<(TreeDescriptor, SharedCompute)>>,
    /// Whether a request has failed, so that the effects of the session's requests are unknown.
    is_broken: AtomicBool,
}

impl SharedSession {
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
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
    pub(super) fn set_tree(&self, descriptor: TreeDescriptor) {
        let mut tree = unpoisoned(self.shared.tree.lock());
        let (compute, epoch) = (self.fabric.compute(), self.fabric.epoch());
        let (descriptor, compute) = match &*tree {
            Some((descriptor, shared)) => {
                (*descriptor, Compute::on_thread(self.fabric.clone(), shared))
            }
            None => {
                let config = descriptor.config();
                let compute = Compute::new(self.fabric.clone(), compute, epoch, config);
                *tree = Some((descriptor, compute.shared()));
                (descriptor, compute)
            }
        };
        *self.tree.borrow_mut() = Some(OpenTree {
            descriptor,
            compute: Rc::new(compute),
        });
    }

    /// Returns the tree's sizes and a client of it.
    pub(super) async fn tree(&self) -> Result<(TreeDescriptor, Client<ShmFabric>), ClusterError> {
        if self.tree.borrow().is_none() {
            let opened = unpoisoned(self.shared.tree.lock())
                .as_ref()
                .map(|tree| tree.0);
            let descriptor = match opened {
                Some(descriptor) => descriptor,
                None => open_tree(&self.fabric).await?,
            };
            self.set_tree(descriptor);
        }
        let tree = self.tree.borrow();
        let tree = tree.as_ref().expect("the tree was opened above");
        Ok((tree.descriptor, tree.compute.client()))
    }

    /// Records the error of an operation.
    pub(super) fn note(&self, error: &ClusterError) {
        if matches!(error, ClusterError::Tree(TreeError::Fabric(_))) {
            self.shared.end();
        }
    }

    /// Leaves the unused memory and the epoch, if nothing of it can be under way. No thread uses the session any more.
    pub(super) async fn leave(&self) {
        if self.shared.is_broken() {
            return;
        }
        let opened = unpoisoned(self.shared.tree.lock()).is_some();
        if opened {
            let left = match self.tree().await {
                Ok((_, client)) => client.leave_spare().await.is_ok(),
                Err(_) => false,
            };
            if !left {
                return;
            }
        }
        // Without the answer the epoch ends with its lease.
        let _ = self.fabric.leave().await;
    }
}
