//! [`Reactor`]: the executor of a compute server's clients. It polls futures on one thread, and waits for sockets and
//! timers.
//!
//! ```text
//!   turn:  poll the tasks that were woken ─▶ sources send what the tasks have posted ─▶ wait for sockets, timers, wakes
//!            ▲                                                                                         │
//!            └───────────────── sources receive responses and wake the tasks that wait ◀───────────────┘
//! ```
//!
//! Any thread may call a task's waker; only then does a wake need a system call. Futures need not be `Send`.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Registry, Token};

use super::WaitMode;
use crate::fabric::Nanos;

/// Token of the wake-up by another thread.
const WAKE_TOKEN: Token = Token(usize::MAX);
/// Number of the future of [`Reactor::block_on`].
const MAIN_TASK: usize = usize::MAX;
/// Sockets of a source.
const SOURCE_SOCKETS: usize = 1 << 16;

/// Something with sockets that a reactor drives.
pub(crate) trait EventSource {
    /// Sends what was posted, before the reactor waits. Returns the time of the next deadline.
    fn before_wait(&self, now: Nanos) -> Option<Nanos>;

    /// Handles the readiness of socket number `socket`.
    fn ready(&self, socket: usize);
}

/// The tasks that were woken and not polled yet. Any thread adds to it.
pub(super) struct WakeQueue {
    woken: Mutex<Vec<usize>>,
    /// Whether the reactor's thread waits in the kernel, or is about to.
    is_waiting: AtomicBool,
    /// Whether the next wait must not block: a source has something from another thread.
    is_interrupted: AtomicBool,
    waker: mio::Waker,
}

impl WakeQueue {
    // No holder of the lock panics.
    fn woken(&self) -> MutexGuard<'_, Vec<usize>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, task: usize) {
        self.woken().push(task);
        self.end_wait();
    }

    /// Ends the reactor's wait, or prevents its next one, so that the sources look for news.
    pub(super) fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::SeqCst);
        self.end_wait();
    }

    fn end_wait(&self) {
        if self.is_waiting.swap(false, Ordering::SeqCst) {
            // Without the wake-up the reactor continues after its next event. It cannot fail on an open eventfd.
            let _ = self.waker.wake();
        }
    }
}

struct ReactorWaker {
    task: usize,
    queue: Arc<WakeQueue>,
}

impl Wake for ReactorWaker {
    fn wake(self: Arc<ReactorWaker>) {
        self.queue.wake(self.task);
    }

    fn wake_by_ref(self: &Arc<ReactorWaker>) {
        self.queue.wake(self.task);
    }
}

/// A spawned future. `None` while it is being polled.
struct ReactorTask {
    run: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Waker,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Option<ReactorTask>>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Timers {
    due: BinaryHeap<Reverse<(Nanos, u64)>>,
    /// Wakers of the sleeps that wait, by number.
    waiting: HashMap<u64, Waker>,
    next: u64,
}

struct ReactorState {
    poll: RefCell<mio::Poll>,
    registry: Registry,
    events: RefCell<Events>,
    queue: Arc<WakeQueue>,
    tasks: RefCell<Tasks>,
    timers: RefCell<Timers>,
    sources: RefCell<Vec<Weak<dyn EventSource>>>,
    wait: WaitMode,
    is_running: Cell<bool>,
}

/// The executor of one thread. Clones are handles of the same executor.
#[derive(Clone)]
pub struct Reactor(Rc<ReactorState>);

impl Reactor {
    /// Creates an executor for the calling thread.
    ///
    /// # Errors
    /// The kernel has no file descriptors left.
    pub fn new(wait: WaitMode) -> io::Result<Reactor> {
        const EVENTS_MAX: usize = 256;
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), WAKE_TOKEN)?;
        Ok(Reactor(Rc::new(ReactorState {
            registry: poll.registry().try_clone()?,
            poll: RefCell::new(poll),
            events: RefCell::new(Events::with_capacity(EVENTS_MAX)),
            queue: Arc::new(WakeQueue {
                woken: Mutex::default(),
                is_waiting: AtomicBool::new(false),
                is_interrupted: AtomicBool::new(false),
                waker,
            }),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            sources: RefCell::default(),
            wait,
            is_running: Cell::new(false),
        })))
    }

    /// Returns the time since the first call of this process. So all reactors of a process have the same time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGAN.elapsed().as_nanos() as Nanos
    }

    /// Waits for `ns` nanoseconds.
    pub fn sleep(&self, ns: Nanos) -> impl Future<Output = ()> + use<> {
        let mut timers = self.0.timers.borrow_mut();
        timers.next += 1;
        SleepFuture {
            reactor: Rc::downgrade(&self.0),
            due: self.now().saturating_add(ns),
            number: timers.next,
            is_planned: false,
        }
    }

    /// Lets all other tasks run that were woken, and looks at the sockets and timers.
    pub(crate) fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        let mut has_yielded = false;
        poll_fn(
            move |context| match std::mem::replace(&mut has_yielded, true) {
                true => Poll::Ready(()),
                false => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            },
        )
    }

    /// Starts `run`. It makes progress while [`Reactor::block_on`] runs. The handle returns its result.
    pub fn spawn<T: 'static>(&self, run: impl Future<Output = T> + 'static) -> TaskHandle<T> {
        let result = Rc::new(RefCell::new(TaskResult {
            value: None,
            waiter: None,
        }));
        let put = Rc::clone(&result);
        let run = async move {
            let value = run.await;
            let mut result = put.borrow_mut();
            result.value = Some(value);
            if let Some(waiter) = result.waiter.take() {
                waiter.wake();
            }
        };
        let mut tasks = self.0.tasks.borrow_mut();
        let number = tasks.free.pop().unwrap_or(tasks.slots.len());
        let queue = Arc::clone(&self.0.queue);
        let task = ReactorTask {
            run: Some(Box::pin(run)),
            waker: Waker::from(Arc::new(ReactorWaker {
                task: number,
                queue,
            })),
        };
        if number == tasks.slots.len() {
            tasks.slots.push(None);
        }
        tasks.slots[number] = Some(task);
        self.0.queue.wake(number);
        TaskHandle(result)
    }

    /// Runs `main` and the spawned tasks until `main` ends. Returns its result.
    ///
    /// # Panics
    /// If it is called by a task of this reactor.
    pub fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        const SKIPS_MAX: u32 = 4;
        assert!(
            !self.0.is_running.replace(true),
            "a task of a reactor called its block_on"
        );
        let mut main = pin!(main);
        let queue = Arc::clone(&self.0.queue);
        let waker = Waker::from(Arc::new(ReactorWaker {
            task: MAIN_TASK,
            queue,
        }));
        let mut is_main_woken = true;
        let mut skipped = 0;
        loop {
            if is_main_woken
                && let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker))
            {
                self.0.is_running.set(false);
                return value;
            }
            let woken = std::mem::take(&mut *self.0.queue.woken());
            is_main_woken = woken.contains(&MAIN_TASK);
            for task in woken.into_iter().filter(|task| *task != MAIN_TASK) {
                self.poll_task(task);
            }
            // A main future that is woken again and again does not keep the sockets and timers waiting.
            skipped = match is_main_woken {
                true if skipped < SKIPS_MAX => skipped + 1,
                _ => {
                    self.wait(!is_main_woken);
                    0
                }
            };
        }
    }

    fn poll_task(&self, number: usize) {
        let mut tasks = self.0.tasks.borrow_mut();
        let slot = tasks.slots.get_mut(number).and_then(Option::as_mut);
        let Some((mut run, waker)) =
            slot.and_then(|task| Some((task.run.take()?, task.waker.clone())))
        else {
            return;
        };
        drop(tasks);
        let polled = run.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = self.0.tasks.borrow_mut();
        match polled {
            Poll::Pending => {
                if let Some(task) = &mut tasks.slots[number] {
                    task.run = Some(run);
                }
            }
            Poll::Ready(()) => {
                tasks.slots[number] = None;
                tasks.free.push(number);
                drop(tasks);
                drop(run);
            }
        }
    }

    /// Lets the sources send, waits for an event if it `may_block`, and handles it.
    fn wait(&self, may_block: bool) {
        let now = self.now();
        let sources: Vec<_> = self.0.sources.borrow().clone();
        let mut due = self.0.timers.borrow().due.peek().map(|due| due.0.0);
        let timer = due;
        for source in sources.iter().filter_map(Weak::upgrade) {
            let next = source.before_wait(now);
            due = [due, next].into_iter().flatten().min();
        }
        self.wait_for_events(may_block, timer, due);
        self.handle_events(&sources);
        self.fire_timers();
    }

    /// Waits until the first event or the time `due`.
    fn wait_for_events(&self, may_block: bool, timer: Option<Nanos>, due: Option<Nanos>) {
        /// The kernel's timeouts are multiples of this. Shorter sleeps poll.
        const KERNEL_NS: Nanos = 1_000_000;
        let queue = &self.0.queue;
        queue.is_waiting.store(true, Ordering::SeqCst);
        let is_interrupted = queue.is_interrupted.swap(false, Ordering::SeqCst);
        let is_woken = !may_block || is_interrupted || !queue.woken().is_empty();
        let now = self.now();
        let is_soon = timer.is_some_and(|timer| timer < now + KERNEL_NS);
        let timeout = match self.0.wait {
            _ if is_woken || is_soon => Some(Duration::ZERO),
            WaitMode::Spin => Some(Duration::ZERO),
            WaitMode::Block => due.map(|due| Duration::from_nanos(due.saturating_sub(now))),
        };
        let mut events = self.0.events.borrow_mut();
        events.clear();
        // An interrupted wait has no events; the next turn waits again.
        let _ = self.0.poll.borrow_mut().poll(&mut events, timeout);
        queue.is_waiting.store(false, Ordering::SeqCst);
        if is_soon && events.is_empty() {
            thread::yield_now();
        }
    }

    fn handle_events(&self, sources: &[Weak<dyn EventSource>]) {
        let events = self.0.events.borrow();
        for event in events.iter() {
            let Token(token) = event.token();
            let source = sources.get(token / SOURCE_SOCKETS).and_then(Weak::upgrade);
            if let Some(source) = source {
                source.ready(token % SOURCE_SOCKETS);
            }
        }
    }

    fn fire_timers(&self) {
        let now = self.now();
        let mut timers = self.0.timers.borrow_mut();
        while let Some(Reverse((due, number))) = timers.due.peek().copied()
            && due <= now
        {
            timers.due.pop();
            if let Some(waker) = timers.waiting.remove(&number) {
                waker.wake();
            }
        }
    }

    /// Registers a source. Returns its number.
    pub(crate) fn add_source(&self, source: Weak<dyn EventSource>) -> usize {
        let mut sources = self.0.sources.borrow_mut();
        // A number is reused when its source has ended, and with it all its sockets.
        let free = sources.iter().position(|other| other.strong_count() == 0);
        match free {
            Some(number) => {
                sources[number] = source;
                number
            }
            None => {
                sources.push(source);
                sources.len() - 1
            }
        }
    }

    /// Returns the registry of sockets, and the token of socket `socket` of source `source`.
    pub(crate) fn socket_token(&self, source: usize, socket: usize) -> (&Registry, Token) {
        let token = Token(source * SOURCE_SOCKETS + socket);
        (&self.0.registry, token)
    }

    /// Returns the queue with which another thread ends a wait.
    pub(super) fn queue(&self) -> Arc<WakeQueue> {
        Arc::clone(&self.0.queue)
    }
}

/// A sleep. It is planned at its first poll. It does not keep the reactor alive, which may own it through a task.
struct SleepFuture {
    reactor: Weak<ReactorState>,
    due: Nanos,
    number: u64,
    is_planned: bool,
}

impl Future for SleepFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut SleepFuture>, context: &mut Context<'_>) -> Poll<()> {
        let Some(state) = self.reactor.upgrade() else {
            return Poll::Pending;
        };
        let (due, number) = (self.due, self.number);
        if Reactor(Rc::clone(&state)).now() >= due {
            return Poll::Ready(());
        }
        let mut timers = state.timers.borrow_mut();
        if !std::mem::replace(&mut self.is_planned, true) {
            timers.due.push(Reverse((due, number)));
        }
        timers.waiting.insert(number, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for SleepFuture {
    fn drop(&mut self) {
        if let Some(state) = self.reactor.upgrade() {
            state.timers.borrow_mut().waiting.remove(&self.number);
        }
    }
}

struct TaskResult<T> {
    value: Option<T>,
    waiter: Option<Waker>,
}

/// The result of a spawned task, as a future. The task continues if the handle is dropped.
pub struct TaskHandle<T>(Rc<RefCell<TaskResult<T>>>);

impl<T> Future for TaskHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut TaskHandle<T>>, context: &mut Context<'_>) -> Poll<T> {
        let mut result = self.0.borrow_mut();
        match result.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                result.waiter = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_sleep_and_return_their_results() {
        let reactor = Reactor::new(WaitMode::Block).unwrap();
        let tasks: Vec<_> = (0..20_u64)
            .map(|n| {
                let own = reactor.clone();
                reactor.spawn(async move {
                    own.sleep((20 - n) * 100_000).await;
                    n
                })
            })
            .collect();
        let sum = reactor.block_on(async {
            let mut sum = 0;
            for task in tasks {
                sum += task.await;
            }
            sum
        });
        assert_eq!(sum, 190);
        assert!(reactor.0.timers.borrow().waiting.is_empty());
    }

    #[test]
    fn another_thread_wakes_a_reactor_that_waits_in_the_kernel() {
        let reactor = Reactor::new(WaitMode::Block).unwrap();
        let (send, receive) = std::sync::mpsc::channel::<Waker>();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let other = thread::spawn(move || {
            let waker = receive.recv().unwrap();
            thread::sleep(Duration::from_millis(30));
            done.store(true, Ordering::SeqCst);
            waker.wake();
        });
        let mut sent = false;
        reactor.block_on(std::future::poll_fn(|context| {
            if !std::mem::replace(&mut sent, true) {
                send.send(context.waker().clone()).unwrap();
            }
            match is_done.load(Ordering::SeqCst) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        other.join().unwrap();
    }
}
