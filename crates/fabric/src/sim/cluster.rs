//! The state of the simulated cluster, and the failures of its servers.

use farbank_pm::rng::Rng;

use super::PER_NS;
use super::constants::{ClusterConstants, VerbOrder};
use super::event_queue::{ClusterEvent, EventQueue};
use super::exec::ComputeThread;
use super::memory::ServerMemory;
use super::requests::{LeaseCall, PostedBatch};
use super::servers::{ComputeServer, MemoryServer, Nic, QueueTimes, ServerState};
use super::slab::Slab;
use super::threads::{ThreadTable, WakeReason};
use crate::addr::GAddr;
use crate::fabric::{FabricCaps, Nanos};
use crate::lease_table::LeaseTable;

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
    pub(super) events: EventQueue,
    pub(super) rng: Rng,
    pub(super) cards: Vec<Nic>,
    pub(super) servers: Vec<MemoryServer>,
    pub(super) computes: Vec<ComputeServer>,
    pub(super) posts: Slab<PostedBatch>,
    pub(super) calls: Slab<LeaseCall>,
    pub(super) leases: LeaseTable,
    pub(super) traffic: Traffic,
    pub(super) threads: ThreadTable,
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
            connected: vec![1; servers.into()],
            crashed_at: None,
            paused_until: 0,
        };
        Cluster {
            servers: (0..servers).map(|_| server()).collect(),
            computes: (0..computes).map(|_| compute()).collect(),
            cards: (0..servers.max(computes)).map(|_| Nic::default()).collect(),
            leases: LeaseTable::new(computes, 1, constants.lease_ns * PER_NS),
            constants,
            events: EventQueue::new(seed),
            rng: Rng::new(seed),
            posts: Slab::new(),
            calls: Slab::new(),
            traffic: Traffic::default(),
            threads: ThreadTable::new(),
        }
    }

    /// Plans `event` for `time`, or for now if `time` has passed.
    pub(super) fn plan(&mut self, time: u64, event: ClusterEvent) {
        self.events.plan(time, event);
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
        self.leases.epoch(compute)
    }

    pub(super) fn now_ns(&self) -> Nanos {
        self.events.now() / PER_NS
    }

    pub(super) fn events(&self) -> u64 {
        self.events.count()
    }

    pub(super) fn digest(&self) -> u64 {
        self.events.digest()
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    // -----------------------------------------------------------------------------------------
    // Failures

    pub(super) fn crash(&mut self, compute: u16) {
        self.computes[usize::from(compute)].crashed_at = Some(self.events.now());
    }

    pub(super) fn pause(&mut self, compute: u16, ns: Nanos) {
        let until = self.events.now() + ns * PER_NS;
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
        self.threads.add()
    }

    /// Returns whether a task of `thread` can run now. If not, plans an event for the time when it can.
    pub(super) fn may_run(&mut self, thread: ComputeThread, turn: WakeReason) -> bool {
        let paused_until = self.computes[usize::from(thread.compute)].paused_until;
        let now = self.events.now();
        let free = self.threads.free_at(thread);
        let at = match turn {
            WakeReason::Answered(_) => {
                *free = now.max(*free) + self.constants.client_ns * PER_NS;
                *free
            }
            WakeReason::Called(_) => (now + self.constants.wake_ns * PER_NS).max(*free),
            WakeReason::Due(_) => now.max(*free),
        };
        let at = at.max(paused_until);
        if at > now {
            self.plan(at, ClusterEvent::Resume(turn.task()));
        }
        at == now
    }

    /// Returns the verb queue of the running task, which is a task of `compute`.
    pub(super) fn queue_of(&self, compute: u16) -> usize {
        match self.constants.verb_order {
            VerbOrder::Thread => self.threads.running(),
            VerbOrder::Compute => compute.into(),
            VerbOrder::Card => 0,
        }
    }

    /// Records the running task and its thread.
    pub(super) fn runs(&mut self, task: usize, on: ComputeThread) {
        self.threads.runs(task, on);
    }

    /// Occupies the thread of the running task for `ns`. Returns the number of the sleep that ends then.
    pub(super) fn work(&mut self, ns: Nanos) -> u32 {
        let until = self.threads.occupy(self.events.now(), ns);
        self.sleep_until(until)
    }

    // -----------------------------------------------------------------------------------------
    // Sleeps, and direct access for checkers

    pub(super) fn sleep(&mut self, ns: Nanos) -> u32 {
        self.sleep_until(self.events.now() + ns * PER_NS)
    }

    fn sleep_until(&mut self, time: u64) -> u32 {
        let sleep = self.threads.begin_sleep();
        self.plan(time, ClusterEvent::Woke(sleep));
        sleep
    }

    pub(super) fn take_sleep(&mut self, number: u32) -> Option<()> {
        self.threads.take_sleep(number)
    }

    pub(super) fn abandon_sleep(&mut self, number: u32) {
        self.threads.abandon_sleep(number);
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
