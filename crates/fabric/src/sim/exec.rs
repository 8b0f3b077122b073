//! Tasks in virtual time: clients of compute servers, each an async function.
//!
//! A task is polled when something it waits for has happened, at that moment of virtual time, and only its
//! thread of control runs until it waits again. Tasks of one thread take turns: what one has to do itself
//! ([`Constants::client_ns`](super::Constants::client_ns), [`Node::work`](super::Node::work)) the others wait for.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

/// A thread of a compute server; its clients take turns on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComputeThread {
    pub(super) compute: u16,
    pub(super) number: u32,
}

/// A task: whose, and what is left of it.
pub(super) struct Task {
    pub(super) thread: ComputeThread,
    pub(super) run: Pin<Box<dyn Future<Output = ()>>>,
    pub(super) waker: Waker,
}

/// Tasks that have been woken, in that order.
pub(super) type Woken = Arc<Mutex<Vec<usize>>>;

struct TaskWaker {
    task: usize,
    woken: Woken,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<TaskWaker>) {
        self.woken.lock().expect("no holder panics").push(self.task);
    }
}

/// What wakes task number `task`.
pub(super) fn waker(task: usize, woken: &Woken) -> Waker {
    let woken = Arc::clone(woken);
    Waker::from(Arc::new(TaskWaker { task, woken }))
}
