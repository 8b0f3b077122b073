//! The state of the simulated cluster, and its event queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use farbank_pm::rng::Rng;

use super::PER_NS;
use super::constants::{ClusterConstants, VerbOrder};
use super::exec::ComputeThread;
use super::lease_manager::{LeaseCall, LeaseManager};
use super::memory::ServerMemory;
use super::verbs::PostedBatch;
use crate::addr::GAddr;
use crate::fabric::{FabricCaps, Nanos};

/// A planned event.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClusterEvent {
    /// The first verb of a batch reaches its memory server.
    Arrive(u32),
    /// A later verb of a batch reaches its memory server: batch, verb.
    Follow(u32, u32),
    /// A verb takes effect, or begins to: batch, verb.
    Act(u32, u32),
    /// A piece of a write takes effect: batch, verb, and the range of bytes.
    Piece(u32, u32, u32, u32),
    /// The results of a batch reach the NIC of its compute server.
    Answer(u32),
    /// The results of a batch have passed the NIC of its compute server, or the batch has failed.
    Done(u32),
    /// A call reaches the service thread.
    Called(u32),
    /// The response to a call reaches the caller.
    Replied(u32),
    /// A memory server begins to refuse earlier epochs of a compute server: memory server, compute server, epoch.
    Fence(u16, u16, u8),
    /// A sleep has ended.
    Woke(u32),
    /// The thread of this task is free, or a pause of its server is over.
    Resume(usize),
}

/// The number of a task that can continue, and the reason.
#[derive(Clone, Copy, Debug)]
pub(super) enum WakeReason {
    /// The result of its batch or call has arrived. Its thread has to process it.
    Answered(usize),
    /// Another client of its compute server woke it.
    Called(usize),
    /// A sleep has ended, or its thread is free.
    Due(usize),
}

impl WakeReason {
    pub(super) fn task(self) -> usize {
        match self {
            WakeReason::Answered(task) | WakeReason::Called(task) | WakeReason::Due(task) => task,
        }
    }
}

/// One server's NIC: the times at which its parts are free.
#[derive(Default)]
pub(super) struct Nic {
    pub(super) tx_free: u64,
    pub(super) rx_free: u64,
    pub(super) atomic_free: u64,
}

/// Whether a memory server works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerState {
    Alive,
    Dead,
}

pub(super) struct MemoryServer {
    pub(super) state: ServerState,
    /// Number of times its memory started as zeros.
    pub(super) generation: u32,
    pub(super) memory: ServerMemory,
    /// Time at which each bucket of addresses is free for the next atomic.
    pub(super) buckets: Vec<u64>,
    /// Time at which all writes to host memory so far have landed.
    pub(super) written: u64,
    /// First epoch of each compute server that this server does not refuse.
    pub(super) admitted: Vec<u8>,
    /// Time at which the last verb of each queue acts.
    pub(super) newest: QueueTimes,
    /// Time at which the last verb of each queue arrives.
    pub(super) arrived: QueueTimes,
    /// Offset of the next chunk to allocate.
    pub(super) next_chunk: u64,
    /// Time at which the service thread is free.
    pub(super) thread_free: u64,
}

/// A time for each verb queue (see [`VerbOrder`]); 0 for an unused one.
#[derive(Default)]
pub(super) struct QueueTimes(Vec<u64>);

impl QueueTimes {
    pub(super) fn of(&mut self, line: usize) -> &mut u64 {
        if self.0.len() <= line {
            self.0.resize(line + 1, 0);
        }
        &mut self.0[line]
    }
}

pub(super) struct ComputeServer {
    pub(super) epoch: u8,
    /// Generation of each memory server to which this compute server is connected.
    pub(super) connected: Vec<u32>,
    pub(super) crashed_at: Option<u64>,
    pub(super) paused_until: u64,
}

/// The traffic of all NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Completed or failed batches, each of them a round trip.
    pub round_trips: u64,
    /// Posted verbs.
    pub verbs: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Atomics on host memory.
    pub host_atomics: u64,
    /// Atomics on lock memory.
    pub lock_atomics: u64,
    /// Calls to service threads.
    pub calls: u64,
}

/// The state of the simulated cluster. All times are in units of 1 / [`PER_NS`] ns.
pub(super) struct Cluster {
    pub(super) constants: ClusterConstants,
    pub(super) now: u64,
    /// Time of each planned event, and its sequence number and number in `planned`.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    planned: Slab<ClusterEvent>,
    seq: u64,
    events: u64,
    digest: u64,
    pub(super) rng: Rng,
    pub(super) cards: Vec<Nic>,
    pub(super) servers: Vec<MemoryServer>,
    pub(super) computes: Vec<ComputeServer>,
    pub(super) posts: Slab<PostedBatch>,
    pub(super) calls: Slab<LeaseCall>,
    sleeps: Slab<Sleep>,
    pub(super) leases: LeaseManager,
    pub(super) traffic: Traffic,
    /// Time at which each thread is free.
    threads: Vec<u64>,
    /// The running task.
    pub(super) running_task: usize,
    /// The thread of the running task.
    polling_on: usize,
}

struct Sleep {
    task: usize,
    over: bool,
}

/// Items by number. The numbers of removed items are reused.
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    fn new() -> Slab<T> {
        Slab {
            items: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.items[number as usize] = Some(item);
                number
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    pub(super) fn get(&mut self, number: u32) -> &mut T {
        self.items[number as usize]
            .as_mut()
            .expect("no item has this number")
    }

    pub(super) fn remove(&mut self, number: u32) -> T {
        self.free.push(number);
        self.items[number as usize]
            .take()
            .expect("no item has this number")
    }
}

impl Cluster {
    pub(super) fn new(
        computes: u16,
        servers: u16,
        host_bytes: u64,
        constants: ClusterConstants,
        seed: u64,
    ) -> Cluster {
        let server = || MemoryServer {
            state: ServerState::Alive,
            generation: 1,
            memory: ServerMemory::new(host_bytes, constants.lock_bytes),
            buckets: vec![0; constants.buckets],
            written: 0,
            admitted: vec![1; computes.into()],
            newest: QueueTimes::default(),
            arrived: QueueTimes::default(),
            next_chunk: constants.chunk_bytes,
            thread_free: 0,
        };
        let compute = || ComputeServer {
            epoch: 1,
            connected: vec![1; servers.into()],
            crashed_at: None,
            paused_until: 0,
        };
        Cluster {
            servers: (0..servers).map(|_| server()).collect(),
            computes: (0..computes).map(|_| compute()).collect(),
            cards: (0..servers.max(computes)).map(|_| Nic::default()).collect(),
            leases: LeaseManager::new(computes),
            constants,
            now: 0,
            queue: BinaryHeap::new(),
            planned: Slab::new(),
            seq: 0,
            events: 0,
            digest: seed,
            rng: Rng::new(seed),
            posts: Slab::new(),
            calls: Slab::new(),
            sleeps: Slab::new(),
            traffic: Traffic::default(),
            threads: Vec::new(),
            running_task: 0,
            polling_on: 0,
        }
    }

    /// Plans `event` for `time`, or for now if `time` has passed.
    pub(super) fn plan(&mut self, time: u64, event: ClusterEvent) {
        let number = self.planned.add(event);
        self.seq += 1;
        let order = self.seq << 24 | u64::from(number);
        self.queue.push(Reverse((time.max(self.now), order)));
    }

    /// Executes the next event. Returns `None` if there is none, else the task that the event wakes, if any.
    pub(super) fn step(&mut self) -> Option<Option<WakeReason>> {
        const NUMBER: u64 = (1 << 24) - 1;
        let Reverse((time, order)) = self.queue.pop()?;
        let event = self.planned.remove((order & NUMBER) as u32);
        self.now = time;
        self.events += 1;
        self.digest = Rng::new(self.digest ^ time).fork(order >> 24).draw();
        match event {
            ClusterEvent::Arrive(post) => self.arrive(post),
            ClusterEvent::Follow(post, verb) => self.follow(post, verb),
            ClusterEvent::Act(post, verb) => self.act(post, verb),
            ClusterEvent::Piece(post, verb, from, to) => self.piece(post, verb, from, to),
            ClusterEvent::Answer(post) => self.answered(post),
            ClusterEvent::Called(call) => self.called(call),
            ClusterEvent::Fence(server, compute, epoch) => {
                self.servers[usize::from(server)].admitted[usize::from(compute)] = epoch;
            }
            ClusterEvent::Done(post) => return Some(self.done(post).map(WakeReason::Answered)),
            ClusterEvent::Replied(call) => {
                return Some(self.replied(call).map(WakeReason::Answered));
            }
            ClusterEvent::Woke(sleep) => return Some(self.woke(sleep).map(WakeReason::Due)),
            ClusterEvent::Resume(task) => return Some(Some(WakeReason::Due(task))),
        }
        Some(None)
    }

    pub(super) fn servers(&self) -> u16 {
        self.servers.len() as u16
    }

    pub(super) fn caps(&self) -> FabricCaps {
        FabricCaps {
            ordered: true,
            masked_cas: self.constants.masked_cas,
            lock_bytes: self.constants.lock_bytes,
            read_line_order: self.constants.read_line_order,
        }
    }

    /// Connects `compute` to the current generation of every memory server.
    pub(super) fn connect(&mut self, compute: u16) {
        let now = self.servers.iter().map(|server| server.generation);
        self.computes[usize::from(compute)].connected = now.collect();
    }

    /// Returns whether `server` has lost its memory since `compute` connected to it.
    pub(super) fn is_stale_connection(&self, compute: u16, server: u16) -> bool {
        let connected = self.computes[usize::from(compute)].connected[usize::from(server)];
        connected < self.servers[usize::from(server)].generation
    }

    pub(super) fn epoch(&self, compute: u16) -> u8 {
        self.computes[usize::from(compute)].epoch
    }

    pub(super) fn now_ns(&self) -> Nanos {
        self.now / PER_NS
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    // -----------------------------------------------------------------------------------------
    // Failures

    pub(super) fn crash(&mut self, compute: u16) {
        self.computes[usize::from(compute)].crashed_at = Some(self.now);
    }

    pub(super) fn pause(&mut self, compute: u16, ns: Nanos) {
        let until = self.now + ns * PER_NS;
        let compute = &mut self.computes[usize::from(compute)];
        compute.paused_until = compute.paused_until.max(until);
    }

    pub(super) fn kill(&mut self, server: u16) {
        self.servers[usize::from(server)].state = ServerState::Dead;
    }

    pub(super) fn empty(&mut self, server: u16) {
        let (host, lock) = {
            let memory = &self.servers[usize::from(server)].memory;
            (memory.host_bytes(), memory.lock_bytes())
        };
        let server = &mut self.servers[usize::from(server)];
        server.state = ServerState::Alive;
        server.generation += 1;
        server.memory = ServerMemory::new(host, lock);
        server.next_chunk = self.constants.chunk_bytes;
    }

    // -----------------------------------------------------------------------------------------
    // Threads

    pub(super) fn thread(&mut self) -> u32 {
        self.threads.push(0);
        self.threads.len() as u32 - 1
    }

    /// Returns whether a task of `thread` can run now. If not, plans an event for the time when it can.
    pub(super) fn may_run(&mut self, thread: ComputeThread, turn: WakeReason) -> bool {
        let paused_until = self.computes[usize::from(thread.compute)].paused_until;
        let free = &mut self.threads[thread.number as usize];
        let at = match turn {
            WakeReason::Answered(_) => {
                *free = self.now.max(*free) + self.constants.client_ns * PER_NS;
                *free
            }
            WakeReason::Called(_) => (self.now + self.constants.wake_ns * PER_NS).max(*free),
            WakeReason::Due(_) => self.now.max(*free),
        };
        let at = at.max(paused_until);
        if at > self.now {
            self.plan(at, ClusterEvent::Resume(turn.task()));
        }
        at == self.now
    }

    /// Returns the verb queue of the running task, which is a task of `compute`.
    pub(super) fn queue_of(&self, compute: u16) -> usize {
        match self.constants.verb_order {
            VerbOrder::Thread => self.polling_on,
            VerbOrder::Compute => compute.into(),
            VerbOrder::Card => 0,
        }
    }

    /// Records the running task and its thread.
    pub(super) fn runs(&mut self, task: usize, on: ComputeThread) {
        (self.running_task, self.polling_on) = (task, on.number as usize);
    }

    /// Occupies the thread of the running task for `ns`. Returns the number of the sleep that ends then.
    pub(super) fn work(&mut self, ns: Nanos) -> u32 {
        let free = &mut self.threads[self.polling_on];
        *free = self.now.max(*free) + ns * PER_NS;
        let until = *free;
        self.nap_until(until)
    }

    // -----------------------------------------------------------------------------------------
    // Sleeps, and direct access for checkers

    pub(super) fn sleep(&mut self, ns: Nanos) -> u32 {
        self.nap_until(self.now + ns * PER_NS)
    }

    fn nap_until(&mut self, time: u64) -> u32 {
        let task = self.running_task;
        let sleep = self.sleeps.add(Sleep { task, over: false });
        self.plan(time, ClusterEvent::Woke(sleep));
        sleep
    }

    fn woke(&mut self, number: u32) -> Option<usize> {
        let sleep = self.sleeps.get(number);
        if sleep.over {
            self.sleeps.remove(number);
            return None;
        }
        sleep.over = true;
        Some(sleep.task)
    }

    pub(super) fn take_nap(&mut self, number: u32) -> Option<()> {
        if !self.sleeps.get(number).over {
            return None;
        }
        self.sleeps.remove(number);
        Some(())
    }

    pub(super) fn abandon_nap(&mut self, number: u32) {
        let sleep = self.sleeps.get(number);
        if sleep.over {
            self.sleeps.remove(number);
        } else {
            sleep.over = true;
        }
    }

    pub(super) fn peek(&self, at: GAddr, to: &mut [u8]) {
        let server = &self.servers[usize::from(at.server())];
        server.memory.read(at.is_lock(), at.at(), to);
    }

    pub(super) fn take(&mut self, server: u16, at: u64) {
        let server = &mut self.servers[usize::from(server)];
        server.next_chunk = server.next_chunk.max(at);
    }

    pub(super) fn poke(&mut self, at: GAddr, bytes: &[u8]) {
        let server = &mut self.servers[usize::from(at.server())];
        server.memory.write(at.is_lock(), at.at(), bytes);
    }
}
