//! A rack of compute and memory servers in one process and in virtual time, deterministic from a seed.
//!
//! ```text
//!   compute server          card                wire          card               memory server
//!   task ── post ──▶ tx: a message costs ──▶ wire_ns ──▶ rx ──┬─ pcie_ns ──▶ host memory: read, write
//!                    1/rate or its bytes                      ├─ bucket ───▶ host memory: atomics
//!                                                             └─ on chip ──▶ lock memory
//!   task ◀─ answer ─ rx ◀── wire_ns ◀── tx ◀──────────────────┘
//! ```
//!
//! Everything is an event in one queue, ordered by time and then by when it was planned. Data really moves: a
//! write changes the server's bytes at its moment, in increasing pieces, and a read takes each line at a moment of its
//! own (`memory`). A card serves messages in the order in which they arrive, at [`Constants::messages_per_us`] or
//! [`Constants::bytes_per_ns`], whichever is slower, separately for each direction; a compute server and a memory
//! server with the same number share a card.
//!
//! # What can go wrong
//! Between any two events a compute server can crash ([`Sim::crash_compute`]: what it has sent goes on, the rest
//! does not happen) or pause ([`Sim::pause_compute`]: it will go on later, with what it believed before), and a
//! memory server can die ([`Sim::kill_server`]) or come back empty ([`Sim::empty_server`]).

mod cluster;
mod constants;
mod exec;
mod lease_manager;
mod memory;
mod verbs;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll};

pub use cluster::Traffic;
pub use constants::{ClusterConstants, VerbOrder};
pub use exec::ComputeThread;

use crate::fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
use crate::service::{ServiceRequest, ServiceResponse};
use cluster::{Cluster, WakeReason};

/// The parts of a nanosecond in which the rack counts time.
const PER_NS: u64 = 1024;

/// A rack.
#[derive(Clone)]
pub struct SimCluster {
    rack: Rc<RefCell<Cluster>>,
    /// Tasks; one that is being polled has been taken out.
    tasks: Rc<RefCell<Vec<Option<exec::Task>>>>,
    woken: exec::Woken,
}

/// One compute server's door to the rack's memory servers.
#[derive(Clone)]
pub struct ComputeNode {
    rack: Rc<RefCell<Cluster>>,
    compute: u16,
    epoch: u8,
}

impl SimCluster {
    /// A rack of `computes` compute servers and `servers` memory servers with `host_bytes` of memory each, all zeros.
    #[must_use]
    pub fn new(
        computes: u16,
        servers: u16,
        host_bytes: u64,
        constants: ClusterConstants,
        seed: u64,
    ) -> SimCluster {
        let rack = Cluster::new(computes, servers, host_bytes, constants, seed);
        SimCluster {
            rack: Rc::new(RefCell::new(rack)),
            tasks: Rc::default(),
            woken: exec::Woken::default(),
        }
    }

    /// Compute server `compute`'s door, in its present life, to the memory servers as they are now.
    #[must_use]
    pub fn node(&self, compute: u16) -> ComputeNode {
        self.rack.borrow_mut().connect(compute);
        let epoch = self.rack.borrow().epoch(compute);
        ComputeNode {
            rack: Rc::clone(&self.rack),
            compute,
            epoch,
        }
    }

    /// One more thread of `compute`.
    #[must_use]
    pub fn thread(&self, compute: u16) -> ComputeThread {
        let number = self.rack.borrow_mut().thread();
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
        self.woken.lock().expect("no holder panics").push(task);
    }

    /// Goes on until nothing is left to happen or `until` says so, asked after each event with the number of
    /// events so far. Returns whether anything is left.
    pub fn run(&self, until: &mut dyn FnMut(u64) -> bool) -> bool {
        loop {
            self.poll_woken();
            let Some(task) = self.rack.borrow_mut().step() else {
                return false;
            };
            if let Some(turn) = task {
                self.let_run(turn);
                self.poll_woken();
            }
            let events = self.rack.borrow().events();
            if until(events) {
                return true;
            }
        }
    }

    fn poll_woken(&self) {
        loop {
            let woken = std::mem::take(&mut *self.woken.lock().expect("no holder panics"));
            if woken.is_empty() {
                return;
            }
            for task in woken {
                self.let_run(WakeReason::Called(task));
            }
        }
    }

    /// Has a task run as soon as its thread is free and has done what comes first.
    fn let_run(&self, turn: WakeReason) {
        let task = turn.task();
        let Some(thread) = self.tasks.borrow()[task].as_ref().map(|task| task.thread) else {
            return;
        };
        if self.rack.borrow_mut().may_run(thread, turn) {
            self.poll(task);
        }
    }

    fn poll(&self, number: usize) {
        let Some(mut task) = self.tasks.borrow_mut()[number].take() else {
            return;
        };
        let waker = task.waker.clone();
        self.rack.borrow_mut().runs(number, task.thread);
        if task
            .run
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            self.tasks.borrow_mut()[number] = Some(task);
        }
    }

    /// Ends every task of `compute`, at once. What it has sent goes on; its memory is gone.
    pub fn crash_compute(&self, compute: u16) {
        let ended: Vec<_> = self
            .tasks
            .borrow_mut()
            .iter_mut()
            .filter_map(|task| task.take_if(|task| task.thread.compute == compute))
            .collect();
        self.rack.borrow_mut().crash(compute);
        drop(ended);
    }

    /// Has `compute` do nothing for `ns`; what it has sent goes on.
    pub fn pause_compute(&self, compute: u16, ns: Nanos) {
        self.rack.borrow_mut().pause(compute, ns);
    }

    /// Ends memory server `server` for good.
    pub fn kill_server(&self, server: u16) {
        self.rack.borrow_mut().kill(server);
    }

    /// Has memory server `server` lose what it stores and come back: with zeros, under another generation. Who is
    /// connected to the one before is refused.
    pub fn empty_server(&self, server: u16) {
        self.rack.borrow_mut().empty(server);
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.rack.borrow().now_ns()
    }

    /// What the cards have carried so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.rack.borrow().traffic()
    }

    /// A function of everything that has happened.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.rack.borrow().digest()
    }

    /// Reads host memory from outside, at once: for checkers.
    pub fn peek(&self, at: crate::GAddr, to: &mut [u8]) {
        self.rack.borrow().peek(at, to);
    }

    /// Has `server` hand out no chunk before byte `at` of its host memory: what is there was filled from outside.
    pub fn take(&self, server: u16, at: u64) {
        self.rack.borrow_mut().take(server, at);
    }

    /// Writes host memory from outside, at once: to fill a structure without waiting for it.
    pub fn poke(&self, at: crate::GAddr, bytes: &[u8]) {
        self.rack.borrow_mut().poke(at, bytes);
    }
}

impl ComputeNode {
    /// Which compute server this is.
    #[must_use]
    pub fn compute(&self) -> u16 {
        self.compute
    }

    /// In which of its lives.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.epoch
    }

    /// Has the client that asks compute for `ns`, on its thread.
    pub fn work(&self, ns: Nanos) -> impl Future<Output = ()> + use<> {
        let number = self.rack.borrow_mut().work(ns);
        self.nap(number)
    }

    fn nap(&self, number: u32) -> AnswerFuture<()> {
        AnswerFuture {
            rack: Rc::clone(&self.rack),
            number,
            take: Cluster::take_nap,
            give_up: Cluster::abandon_nap,
            done: false,
        }
    }
}

/// What a task waits for: an answer that the rack will have under this number.
struct AnswerFuture<T> {
    rack: Rc<RefCell<Cluster>>,
    number: u32,
    take: fn(&mut Cluster, u32) -> Option<T>,
    give_up: fn(&mut Cluster, u32),
    done: bool,
}

impl<T> Future for AnswerFuture<T> {
    type Output = T;

    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        let taken = (self.take)(&mut self.rack.borrow_mut(), self.number);
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
            (self.give_up)(&mut self.rack.borrow_mut(), self.number);
        }
    }
}

impl Fabric for ComputeNode {
    fn servers(&self) -> u16 {
        self.rack.borrow().servers()
    }

    fn caps(&self, _server: u16) -> FabricCaps {
        self.rack.borrow().caps()
    }

    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        let number = self
            .rack
            .borrow_mut()
            .post(self.compute, self.epoch, server, verbs);
        AnswerFuture {
            rack: Rc::clone(&self.rack),
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
            .rack
            .borrow_mut()
            .call(self.compute, self.epoch, server, ask);
        AnswerFuture {
            rack: Rc::clone(&self.rack),
            number,
            take: Cluster::take_call,
            give_up: Cluster::abandon_call,
            done: false,
        }
    }

    fn now(&self) -> Nanos {
        self.rack.borrow().now_ns()
    }

    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()> {
        let number = self.rack.borrow_mut().sleep(ns);
        self.nap(number)
    }
}

#[cfg(test)]
mod tests;
