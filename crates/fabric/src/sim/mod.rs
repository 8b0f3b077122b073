//! A simulated cluster of compute and memory servers, in one process and in virtual time. A seed determines every run.
//!
//! ```text
//!   compute server          NIC                 wire          NIC                memory server
//!   task ── post ──▶ tx: a message costs ──▶ wire_ns ──▶ rx ──┬─ pcie_ns ──▶ host memory: read, write
//!                    1/rate or its bytes                      ├─ bucket ───▶ host memory: atomics
//!                                                             └─ on chip ──▶ lock memory
//!   task ◀─ answer ─ rx ◀── wire_ns ◀── tx ◀──────────────────┘
//! ```
//!
//! Everything is an event in one queue, ordered by virtual time and then by the order of planning. The simulation moves
//! real data: a write changes the server's bytes in pieces at increasing addresses and times, and a read takes each
//! line at a time of its own (`memory`). A NIC serves messages in the order in which they arrive, separately for each
//! direction. Its rate is [`ClusterConstants::messages_per_us`] or [`ClusterConstants::bytes_per_ns`], whichever is
//! slower. A compute server and a memory server with the same number share a NIC.
//!
//! # Files
//! ```text
//!   mod       SimCluster, ComputeNode: the tasks of clients, and the fabric that they use
//!   steps     executes an event: a step of a batch (verbs) or of a call (lease_manager)
//!   cluster   the state that events change: servers, requests, leases, threads, event_queue
//! ```
//!
//! # Failures
//! Failures can happen between any two events. A compute server can crash ([`SimCluster::crash_compute`]): messages
//! that it has sent still take effect, later ones do not. It can pause ([`SimCluster::pause_compute`]) and continue
//! later with outdated state. A memory server can die ([`SimCluster::kill_server`]), or lose its memory and restart
//! ([`SimCluster::empty_server`]).

mod cluster;
mod constants;
mod event_queue;
mod exec;
mod lease_manager;
mod memory;
mod requests;
mod servers;
mod slab;
mod steps;
mod threads;
mod verbs;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll};

use farbank_pm::sync::unpoisoned;

pub use cluster::Traffic;
pub use constants::{ClusterConstants, VerbOrder};
pub use exec::ComputeThread;

use crate::fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
use crate::service::{ServiceRequest, ServiceResponse};
use cluster::Cluster;
use threads::WakeReason;

/// Units of the cluster's internal time per nanosecond.
const PER_NS: u64 = 1024;

/// A simulated cluster.
#[derive(Clone)]
pub struct SimCluster {
    cluster: Rc<RefCell<Cluster>>,
    /// Tasks by number. `None`: the task has ended or is being polled.
    tasks: Rc<RefCell<Vec<Option<exec::Task>>>>,
    woken: exec::WokenTasks,
}

/// The fabric of one compute server: its access to the cluster's memory servers.
#[derive(Clone)]
pub struct ComputeNode {
    cluster: Rc<RefCell<Cluster>>,
    compute: u16,
    epoch: u8,
}

impl SimCluster {
    /// Creates a cluster of `computes` compute servers and `servers` memory servers. Each memory server has
    /// `host_bytes` of memory, rounded up to whole MiB, all zeros.
    #[must_use]
    pub fn new(
        computes: u16,
        servers: u16,
        host_bytes: u64,
        constants: ClusterConstants,
        seed: u64,
    ) -> SimCluster {
        let cluster = Cluster::new(computes, servers, host_bytes, constants, seed);
        SimCluster {
            cluster: Rc::new(RefCell::new(cluster)),
            tasks: Rc::default(),
            woken: exec::WokenTasks::default(),
        }
    }

    /// Connects compute server `compute` to the current generations of all memory servers, and returns its fabric in
    /// its current epoch.
    #[must_use]
    pub fn node(&self, compute: u16) -> ComputeNode {
        self.cluster.borrow_mut().connect(compute);
        let epoch = self.cluster.borrow().epoch(compute);
        ComputeNode {
            cluster: Rc::clone(&self.cluster),
            compute,
            epoch,
        }
    }

    /// Creates a thread of `compute`.
    #[must_use]
    pub fn thread(&self, compute: u16) -> ComputeThread {
        let number = self.cluster.borrow_mut().thread();
        ComputeThread { compute, number }
    }

    /// Starts a client on `compute`, with a thread of its own.
    pub fn spawn(&self, compute: u16, run: impl Future<Output = ()> + 'static) {
        self.spawn_on(self.thread(compute), run);
    }

    /// Starts a client on `thread`.
    pub fn spawn_on(&self, thread: ComputeThread, run: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let task = tasks.len();
        tasks.push(Some(exec::Task {
            thread,
            run: Box::pin(run),
            waker: exec::waker(task, &self.woken),
        }));
        unpoisoned(self.woken.lock()).push(task);
    }

    /// Runs until no event is left or `until` returns `true`. `until` is called after each event with the number of
    /// events so far. Returns `false` if no event is left.
    pub fn run(&self, until: &mut dyn FnMut(u64) -> bool) -> bool {
        loop {
            self.poll_woken();
            let Some(task) = self.cluster.borrow_mut().step() else {
                return false;
            };
            if let Some(turn) = task {
                self.let_run(turn);
                self.poll_woken();
            }
            let events = self.cluster.borrow().events();
            if until(events) {
                return true;
            }
        }
    }

    fn poll_woken(&self) {
        loop {
            let woken = std::mem::take(&mut *unpoisoned(self.woken.lock()));
            if woken.is_empty() {
                return;
            }
            for task in woken {
                self.let_run(WakeReason::Called(task));
            }
        }
    }

    /// Polls a task now if its thread is free, or plans to do so when it is.
    fn let_run(&self, turn: WakeReason) {
        let task = turn.task();
        let Some(thread) = self.tasks.borrow()[task].as_ref().map(|task| task.thread) else {
            return;
        };
        if self.cluster.borrow_mut().may_run(thread, turn) {
            self.poll(task);
        }
    }

    fn poll(&self, number: usize) {
        let Some(mut task) = self.tasks.borrow_mut()[number].take() else {
            return;
        };
        let waker = task.waker.clone();
        self.cluster.borrow_mut().runs(number, task.thread);
        if task
            .run
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            self.tasks.borrow_mut()[number] = Some(task);
        }
    }

    /// Ends every task of `compute` at once. Messages that it has sent still take effect.
    pub fn crash_compute(&self, compute: u16) {
        let ended: Vec<_> = self
            .tasks
            .borrow_mut()
            .iter_mut()
            .filter_map(|task| task.take_if(|task| task.thread.compute == compute))
            .collect();
        self.cluster.borrow_mut().crash(compute);
        drop(ended);
    }

    /// Pauses all threads of `compute` for `ns`. Messages that it has sent still take effect.
    pub fn pause_compute(&self, compute: u16, ns: Nanos) {
        self.cluster.borrow_mut().pause(compute, ns);
    }

    /// Ends memory server `server` permanently.
    pub fn kill_server(&self, server: u16) {
        self.cluster.borrow_mut().kill(server);
    }

    /// Restarts memory server `server` with zeroed memory and a new generation. It refuses compute servers that are
    /// connected to an earlier generation.
    pub fn empty_server(&self, server: u16) {
        self.cluster.borrow_mut().empty(server);
    }

    /// Returns the current virtual time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.cluster.borrow().now_ns()
    }

    /// Returns the traffic of all NICs so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.cluster.borrow().traffic()
    }

    /// Returns a hash of the order and the times of all events so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.cluster.borrow().digest()
    }

    /// Reads a server's memory directly, in no virtual time. For checkers.
    pub fn peek(&self, at: crate::GAddr, to: &mut [u8]) {
        self.cluster.borrow().peek(at, to);
    }

    /// Reserves the host memory of `server` before byte `at`, so that no chunk of it is allocated. For memory that
    /// [`SimCluster::poke`] filled.
    pub fn reserve_host_memory(&self, server: u16, at: u64) {
        self.cluster.borrow_mut().take(server, at);
    }

    /// Writes a server's memory directly, in no virtual time. For filling a structure fast.
    pub fn poke(&self, at: crate::GAddr, bytes: &[u8]) {
        self.cluster.borrow_mut().poke(at, bytes);
    }
}

impl ComputeNode {
    /// Returns the number of the compute server.
    #[must_use]
    pub fn compute(&self) -> u16 {
        self.compute
    }

    /// Returns the compute server's epoch at the time when this fabric was created.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.epoch
    }

    /// Occupies the calling client's thread for `ns`, as a computation does.
    pub fn work(&self, ns: Nanos) -> impl Future<Output = ()> + use<> {
        let number = self.cluster.borrow_mut().work(ns);
        self.sleep_future(number)
    }

    fn sleep_future(&self, number: u32) -> AnswerFuture<()> {
        AnswerFuture {
            cluster: Rc::clone(&self.cluster),
            number,
            take: Cluster::take_sleep,
            give_up: Cluster::abandon_sleep,
            done: false,
        }
    }
}

/// The future of a batch, a call or a sleep: its result, which the cluster keeps under `number`.
struct AnswerFuture<T> {
    cluster: Rc<RefCell<Cluster>>,
    number: u32,
    take: fn(&mut Cluster, u32) -> Option<T>,
    give_up: fn(&mut Cluster, u32),
    done: bool,
}

impl<T> Future for AnswerFuture<T> {
    type Output = T;

    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        let taken = (self.take)(&mut self.cluster.borrow_mut(), self.number);
        match taken {
            Some(answer) => {
                self.done = true;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for AnswerFuture<T> {
    fn drop(&mut self) {
        if !self.done {
            (self.give_up)(&mut self.cluster.borrow_mut(), self.number);
        }
    }
}

impl Fabric for ComputeNode {
    fn servers(&self) -> u16 {
        self.cluster.borrow().servers()
    }

    fn caps(&self, _server: u16) -> FabricCaps {
        self.cluster.borrow().caps()
    }

    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        let number = self
            .cluster
            .borrow_mut()
            .post(self.compute, self.epoch, server, verbs);
        AnswerFuture {
            cluster: Rc::clone(&self.cluster),
            number,
            take: Cluster::take_post,
            give_up: Cluster::abandon_post,
            done: false,
        }
    }

    fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> impl Future<Output = Result<ServiceResponse, FabricError>> {
        let number = self
            .cluster
            .borrow_mut()
            .call(self.compute, self.epoch, server, ask);
        AnswerFuture {
            cluster: Rc::clone(&self.cluster),
            number,
            take: Cluster::take_call,
            give_up: Cluster::abandon_call,
            done: false,
        }
    }

    fn now(&self) -> Nanos {
        self.cluster.borrow().now_ns()
    }

    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()> {
        let number = self.cluster.borrow_mut().sleep(ns);
        self.sleep_future(number)
    }
}

#[cfg(test)]
mod tests;
