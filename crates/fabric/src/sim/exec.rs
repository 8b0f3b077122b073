//! Tasks in virtual time: clients of compute servers, each an async function.
//!
//! A task is polled at the virtual time of the event that it waits for. It runs alone until it waits again. Tasks of
//! one simulated thread share its time: while one computes
//! ([`ClusterConstants::client_ns`](super::ClusterConstants::client_ns),
//! [`ComputeNode::work`](super::ComputeNode::work)), the others wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use farbank_pm::sync::unpoisoned;

/// A simulated thread of a compute server. Its clients take turns on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComputeThread {
    pub(super) compute: u16,
    pub(super) number: u32,
}

/// A client: its thread and its future.
pub(super) struct Task {
    pub(super) thread: ComputeThread,
    pub(super) run: Pin<Box<dyn Future<Output = ()>>>,
    pub(super) waker: Waker,
}

/// Numbers of the tasks that were woken, in the order of the wake-ups.
pub(super) type WokenTasks = Arc<Mutex<Vec<usize>>>;

struct TaskWaker {
    task: usize,
    woken: WokenTasks,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<TaskWaker>) {
        unpoisoned(self.woken.lock()).push(self.task);
    }
}

/// Returns a waker for task number `task`.
pub(super) fn waker(task: usize, woken: &WokenTasks) -> Waker {
    let woken = Arc::clone(woken);
    Waker::from(Arc::new(TaskWaker { task, woken }))
}
