//! [`Driver`]: the threads that run the operations of a cluster's clients.
//!
//! ```text
//!   any thread: Driver::run ──▶ JobQueue ──▶ a thread of the driver: a Reactor with a task for each operation,
//!               waits for the reply ◀────────┘                       and its part of the session: connections
//!                                                   all threads: lease, index cache, local locks
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};

use farbank_fabric::shm::{ShmFabric, ShmSettings};
use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_pm::sync::ignore_poison;

use super::joining::{ServerChanges, left_servers};
use super::session::{Session, SessionUse, SharedSession};
use super::{ClusterError, ClusterStats};

type JobFuture = Pin<Box<dyn Future<Output = ()>>>;
/// Starts an operation on a thread of the driver.
type Job = Box<dyn FnOnce(Rc<DriverState>) -> JobFuture + Send>;

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    /// Wakers of the threads that wait for jobs, by the number of the thread.
    waiting: BTreeMap<usize, Waker>,
    is_closed: bool,
}

/// The operations that no thread of the driver has started yet.
#[derive(Default)]
struct JobQueue(Mutex<QueueState>);

impl JobQueue {
    // No holder of the lock panics.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        ignore_poison(self.0.lock())
    }

    /// Adds a job, unless the queue is closed. Wakes the first thread that waits.
    fn put(&self, job: Job) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        state.jobs.push_back(job);
        if let Some((_, waker)) = state.waiting.pop_first() {
            waker.wake();
        }
    }

    /// Ends the threads when the jobs in the queue are done.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for waker in std::mem::take(&mut state.waiting).into_values() {
            waker.wake();
        }
    }

    /// Returns the next job for thread `thread`, or `None` when the queue is closed and empty.
    async fn next(&self, thread: usize) -> Option<Job> {
        poll_fn(|context| {
            let mut state = self.state();
            match state.jobs.pop_front() {
                Some(job) => {
                    state.waiting.remove(&thread);
                    Poll::Ready(Some(job))
                }
                None if state.is_closed => Poll::Ready(None),
                None => {
                    state.waiting.insert(thread, context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// The state that the threads of a driver share.
struct DriverShared {
    queue: JobQueue,
    /// With the servers that have joined, and without those that have left.
    settings: Mutex<ShmSettings>,
    wait: WaitMode,
    /// The newest session.
    session: Mutex<Option<Arc<SharedSession>>>,
    stats: Mutex<ClusterStats>,
    /// Threads that have not ended.
    running: AtomicUsize,
}

/// The state of one thread of a driver.
pub(super) struct DriverState {
    pub(super) reactor: Reactor,
    shared: Arc<DriverShared>,
    session: RefCell<Option<Rc<Session>>>,
}

impl DriverState {
    /// Returns the session. Begins another if the last one is not usable.
    pub(super) async fn session(&self) -> Result<SessionUse, ClusterError> {
        loop {
            let session = match self.newest_session() {
                Ok(session) => session,
                Err(error) => match self.note_left().await {
                    Ok(true) => continue,
                    _ => return Err(error),
                },
            };
            if let Some(begun) = SessionUse::begin(&session) {
                return Ok(begun);
            }
        }
    }

    /// Looks whether servers of the settings have left, which may be the reason why no session could begin. Returns whether some have.
    async fn note_left(&self) -> Result<bool, ClusterError> {
        let mut settings = self.settings();
        let known = settings.servers.len() as u16;
        if known < 2 {
            return Ok(false);
        }
        settings.servers.truncate(1);
        settings.compute = None;
        let fabric = ShmFabric::connect(&self.reactor, settings)?;
        let left = left_servers(&fabric).await;
        // Without the answer the epoch ends with its lease.
        let _ = fabric.leave().await;
        let changes = ServerChanges {
            known,
            joined: Vec::new(),
            left: left?,
        };
        let mut settings = ignore_poison(self.shared.settings.lock());
        Ok(changes.apply(&mut settings.servers))
    }

    fn newest_session(&self) -> Result<Rc<Session>, ClusterError> {
        let mut own = self.session.borrow_mut();
        let is_usable = |session: &&Rc<Session>| session.shared().is_usable();
        if let Some(session) = own.as_ref().filter(is_usable) {
            return Ok(Rc::clone(session));
        }
        *own = None;
        // Other threads that need a session wait for this one.
        let mut newest = ignore_poison(self.shared.session.lock());
        let usable = newest.take().filter(|session| session.is_usable());
        let joined = usable.and_then(|session| Session::join(&self.reactor, &session));
        let session = match joined {
            Some(session) => session,
            None => Session::begin(&self.reactor, self.settings())?,
        };
        *newest = Some(Arc::clone(session.shared()));
        *own = Some(Rc::clone(&session));
        Ok(session)
    }

    /// Returns the session, with the tree open. Begins another session if servers have joined or left.
    pub(super) async fn opened(&self) -> Result<SessionUse, ClusterError> {
        loop {
            let session = self.session().await?;
            let Some(changes) = session.open().await? else {
                return Ok(session);
            };
            session.shared().retire();
            let mut settings = ignore_poison(self.shared.settings.lock());
            changes.apply(&mut settings.servers);
        }
    }

    /// Returns the settings of the next session.
    pub(super) fn settings(&self) -> ShmSettings {
        ignore_poison(self.shared.settings.lock()).clone()
    }

    /// Adds to the statistics.
    pub(super) fn count(&self, add: impl FnOnce(&mut ClusterStats)) {
        let mut stats = ignore_poison(self.shared.stats.lock());
        add(&mut stats);
    }

    /// Returns the statistics.
    pub(super) fn stats(&self) -> ClusterStats {
        *ignore_poison(self.shared.stats.lock())
    }

    /// Leaves the epoch, if nothing of it can be under way. The other threads have ended.
    async fn close(&self) {
        let has_session = ignore_poison(self.shared.session.lock())
            .as_ref()
            .is_some_and(|session| session.is_usable());
        if !has_session {
            return;
        }
        // Without a connection the epoch ends with its lease.
        if let Ok(session) = self.session().await {
            session.leave().await;
        }
    }
}

/// The handle of the driver's threads. Its drop ends them.
pub(super) struct Driver {
    shared: Arc<DriverShared>,
    threads: Vec<JoinHandle<()>>,
}

impl Driver {
    /// Starts `threads` threads and connects to the memory servers.
    pub(super) fn start(
        settings: ShmSettings,
        wait: WaitMode,
        threads: usize,
    ) -> Result<Driver, ClusterError> {
        let shared = Arc::new(DriverShared {
            queue: JobQueue::default(),
            settings: Mutex::new(settings),
            wait,
            session: Mutex::default(),
            stats: Mutex::default(),
            running: AtomicUsize::new(0),
        });
        let mut driver = Driver {
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(threads),
        };
        for number in 0..threads.max(1) {
            let running = RunningThread::new(Arc::clone(&shared));
            let run = move || drive(number, &running);
            let builder = thread::Builder::new().name("farbank-tree".into());
            driver
                .threads
                .push(builder.spawn(run).map_err(ClusterError::Thread)?);
        }
        driver.run(|state| async move { state.session().await.map(|_| ()) })?;
        Ok(driver)
    }

    /// Runs an operation on a thread of the driver and waits for its result.
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
        self.shared.queue.put(job);
        result.recv().unwrap_or(Err(ClusterError::Stopped))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.queue.close();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A thread that runs. When it ends, also by a panic, the queue is closed: the callers of jobs in it get an error.
struct RunningThread(Arc<DriverShared>);

impl RunningThread {
    fn new(shared: Arc<DriverShared>) -> RunningThread {
        shared.running.fetch_add(1, Ordering::SeqCst);
        RunningThread(shared)
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.queue.state().jobs.clear();
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn drive(number: usize, running: &RunningThread) {
    /// Time between two looks at the other threads at the end.
    const PAUSE_NS: u64 = 200_000;
    let shared = &running.0;
    // Without a reactor the queue is closed, and its callers get an error.
    let Ok(reactor) = Reactor::new(shared.wait) else {
        return;
    };
    let state = Rc::new(DriverState {
        reactor: reactor.clone(),
        shared: Arc::clone(shared),
        session: RefCell::default(),
    });
    reactor.block_on(async {
        while let Some(job) = shared.queue.next(number).await {
            reactor.spawn(job(Rc::clone(&state)));
        }
        if number == 0 {
            while shared.running.load(Ordering::SeqCst) > 1 {
                reactor.sleep(PAUSE_NS).await;
            }
            state.close().await;
        }
    });
}
