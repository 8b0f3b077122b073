//! [`Driver`]: the thread that runs the operations of a cluster's clients, and renews the lease of their compute server.
//!
//! ```text
//!   any thread: Driver::run ──▶ JobQueue ──▶ the driver's thread: a Reactor with a task for each operation
//!               waits for the reply ◀────────┘      and a session: connections, lease, index cache
//! ```
//!
//! A session ends with the first error of the fabric, because the effects of its requests may be unknown. The next
//! operation begins another session, as another compute server.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};

use farbank_fabric::shm::{ShmFabric, ShmSettings};
use farbank_fabric::tcp::{Reactor, WaitMode};

use super::descriptor::{TreeDescriptor, open_tree};
use super::{ClusterError, ClusterStats};
use crate::client::{Client, Compute};
use crate::error::TreeError;

type JobFuture = Pin<Box<dyn Future<Output = ()>>>;
/// Starts an operation on the driver's thread.
type Job = Box<dyn FnOnce(Rc<DriverState>) -> JobFuture + Send>;

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    waker: Option<Waker>,
    is_closed: bool,
}

/// The operations that the driver's thread has not started yet.
#[derive(Default)]
struct JobQueue(Mutex<QueueState>);

impl JobQueue {
    // No holder of the lock panics.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, change: impl FnOnce(&mut QueueState)) {
        let mut state = self.state();
        change(&mut state);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Returns the next job, or `None` when the queue is closed and empty.
    async fn next(&self) -> Option<Job> {
        poll_fn(|context| {
            let mut state = self.state();
            match state.jobs.pop_front() {
                Some(job) => Poll::Ready(Some(job)),
                None if state.is_closed => Poll::Ready(None),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A compute server's time in one epoch.
pub(super) struct Session {
    pub(super) fabric: ShmFabric,
    tree: RefCell<Option<OpenTree>>,
    /// Whether a request has failed, so that the effects of the session's requests are unknown.
    is_broken: Cell<bool>,
}

/// The tree, as a session uses it.
#[derive(Clone)]
struct OpenTree {
    descriptor: TreeDescriptor,
    compute: Rc<Compute<ShmFabric>>,
}

impl Session {
    /// Begins to use the tree that `descriptor` describes.
    pub(super) fn set_tree(&self, descriptor: TreeDescriptor) {
        let (compute, epoch) = (self.fabric.compute(), self.fabric.epoch());
        let compute = Compute::new(self.fabric.clone(), compute, epoch, descriptor.config());
        *self.tree.borrow_mut() = Some(OpenTree {
            descriptor,
            compute: Rc::new(compute),
        });
    }

    /// Returns the tree's sizes and a client of it.
    pub(super) async fn tree(&self) -> Result<(TreeDescriptor, Client<ShmFabric>), ClusterError> {
        if self.tree.borrow().is_none() {
            let descriptor = open_tree(&self.fabric).await?;
            self.set_tree(descriptor);
        }
        let tree = self.tree.borrow();
        let tree = tree.as_ref().expect("the tree was opened above");
        Ok((tree.descriptor, tree.compute.client()))
    }

    /// Records the error of an operation.
    fn note(&self, error: &ClusterError) {
        if matches!(error, ClusterError::Tree(TreeError::Fabric(_))) {
            self.is_broken.set(true);
        }
    }
}

/// The state of the driver's thread.
pub(super) struct DriverState {
    pub(super) reactor: Reactor,
    settings: ShmSettings,
    session: RefCell<Option<Rc<Session>>>,
    stats: Cell<ClusterStats>,
}

impl DriverState {
    /// Returns the session. Begins another if the last one is broken.
    pub(super) fn session(&self) -> Result<Rc<Session>, ClusterError> {
        let mut current = self.session.borrow_mut();
        if let Some(session) = current.as_ref().filter(|session| !session.is_broken.get()) {
            return Ok(Rc::clone(session));
        }
        *current = None;
        let fabric = ShmFabric::connect(&self.reactor, self.settings.clone())?;
        let session = Rc::new(Session {
            fabric: fabric.clone(),
            tree: RefCell::default(),
            is_broken: Cell::new(false),
        });
        let watched = Rc::downgrade(&session);
        self.reactor.spawn(async move {
            let error = fabric.keep_alive().await;
            if let (Some(_), Some(session)) = (error, watched.upgrade()) {
                session.is_broken.set(true);
            }
        });
        *current = Some(Rc::clone(&session));
        Ok(session)
    }

    /// Adds to the statistics.
    pub(super) fn count(&self, add: impl FnOnce(&mut ClusterStats)) {
        let mut stats = self.stats.get();
        add(&mut stats);
        self.stats.set(stats);
    }

    /// Returns the statistics.
    pub(super) fn stats(&self) -> ClusterStats {
        self.stats.get()
    }

    /// Leaves the epoch, if nothing of it can be under way.
    async fn close(&self) {
        let session = self.session.borrow_mut().take();
        if let Some(session) = session.filter(|session| !session.is_broken.get()) {
            let tree = session.tree.take();
            if let Some(tree) = tree {
                let left = tree.compute.client().leave_spare().await;
                if left.is_err() {
                    return;
                }
            }
            // Without the answer the epoch ends with its lease.
            let _ = session.fabric.leave().await;
        }
    }
}

/// The handle of the driver's thread. Its drop ends the thread.
pub(super) struct Driver {
    queue: Arc<JobQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts the thread and connects to the memory servers.
    pub(super) fn start(settings: ShmSettings, wait: WaitMode) -> Result<Driver, ClusterError> {
        let queue = Arc::new(JobQueue::default());
        let jobs = Arc::clone(&queue);
        let run = move || drive(&jobs, settings, wait);
        let builder = thread::Builder::new().name("farbank-tree".into());
        let thread = builder.spawn(run).map_err(ClusterError::Thread)?;
        let driver = Driver {
            queue,
            thread: Some(thread),
        };
        driver.run(|state| async move { state.session().map(|_| ()) })?;
        Ok(driver)
    }

    /// Runs an operation on the driver's thread and waits for its result.
    pub(super) fn run<T, R>(
        &self,
        operation: impl FnOnce(Rc<DriverState>) -> R + Send + 'static,
    ) -> Result<T, ClusterError>
    where
        T: Send + 'static,
        R: Future<Output = Result<T, ClusterError>> + 'static,
    {
        let (reply, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |state| {
            let done = operation(Rc::clone(&state));
            Box::pin(async move {
                let done = done.await;
                if let (Err(error), Some(session)) = (&done, &*state.session.borrow()) {
                    session.note(error);
                }
                // The caller waits for the reply, or has panicked.
                let _ = reply.send(done);
            })
        });
        self.queue.put(|state| state.jobs.push_back(job));
        result.recv().unwrap_or(Err(ClusterError::Stopped))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.put(|state| state.is_closed = true);
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Closes the queue when the driver's thread ends, also by a panic: the callers of jobs in it get an error.
struct CloseOnEnd<'a>(&'a JobQueue);

impl Drop for CloseOnEnd<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_closed = true;
        state.jobs.clear();
    }
}

fn drive(queue: &JobQueue, settings: ShmSettings, wait: WaitMode) {
    let _closing = CloseOnEnd(queue);
    // Without a reactor the queue is closed, and its callers get an error.
    let Ok(reactor) = Reactor::new(wait) else {
        return;
    };
    let state = Rc::new(DriverState {
        reactor: reactor.clone(),
        settings,
        session: RefCell::default(),
        stats: Cell::default(),
    });
    reactor.block_on(async {
        while let Some(job) = queue.next().await {
            reactor.spawn(job(Rc::clone(&state)));
        }
        state.close().await;
    });
}
