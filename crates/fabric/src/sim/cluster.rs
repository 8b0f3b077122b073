//! The rack's parts and its queue of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use farbank_pm::sim::Rng;

use super::PER_NS;
use super::constants::{ClusterConstants, VerbOrder};
use super::exec::ComputeThread;
use super::lease_manager::{LeaseCall, LeaseManager};
use super::memory::ServerMemory;
use super::verbs::PostedBatch;
use crate::addr::GAddr;
use crate::fabric::{FabricCaps, Nanos};

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClusterEvent {
    /// A batch has reached its memory server.
    Arrive(u32),
    /// So has a later verb of it.
    Follow(u32, u32),
    /// A verb of a batch takes effect, or begins to.
    Act(u32, u32),
    /// Bytes of a write take effect: batch, verb, from, to.
    Piece(u32, u32, u32, u32),
    /// A batch's answer has reached its compute server.
    Answer(u32),
    /// A batch's answer has passed its compute server's card, or it has failed.
    Done(u32),
    /// A call reaches the service thread.
    Called(u32),
    /// A call's answer is there.
    Replied(u32),
    /// A memory server refuses a compute server's lives before this one from now on.
    Fence(u16, u16, u8),
    /// A sleep has ended.
    Woke(u32),
    /// A task's turn has come: its thread has done what came first, or a pause is over.
    Resume(usize),
}

/// A task that may go on, and why.
#[derive(Clone, Copy, Debug)]
pub(super) enum WakeReason {
    /// Its answer is there: its thread takes it.
    Answered(usize),
    /// Another client of its server called it.
    Called(usize),
    /// Its time has come.
    Due(usize),
}

impl WakeReason {
    pub(super) fn task(self) -> usize {
        match self {
            WakeReason::Answered(task) | WakeReason::Called(task) | WakeReason::Due(task) => task,
        }
    }
}

/// One server's network card.
#[derive(Default)]
pub(super) struct Nic {
    pub(super) tx_free: u64,
    pub(super) rx_free: u64,
    pub(super) atomic_free: u64,
}

/// Whether a memory server is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerState {
    Alive,
    Dead,
}

pub(super) struct MemoryServer {
    pub(super) state: ServerState,
    /// How often its memory began as zeros.
    pub(super) generation: u32,
    pub(super) memory: ServerMemory,
    /// When each bucket of addresses is free for the next atomic.
    pub(super) buckets: Vec<u64>,
    /// When everything posted towards host memory so far will be there.
    pub(super) written: u64,
    /// The first life of each compute server that is not refused.
    pub(super) admitted: Vec<u8>,
    /// When the newest effect of each line takes place.
    pub(super) newest: QueueTimes,
    /// When the newest batch of each line arrives.
    pub(super) arrived: QueueTimes,
    pub(super) next_chunk: u64,
    pub(super) thread_free: u64,
}

/// A time for each line; of one that nobody has stood in, 0.
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
    /// Of each memory server, the generation it is connected to.
    pub(super) connected: Vec<u32>,
    pub(super) crashed_at: Option<u64>,
    pub(super) paused_until: u64,
}

/// What all cards have carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Batches answered: round trips.
    pub round_trips: u64,
    /// Verbs.
    pub verbs: u64,
    /// Bytes that reads brought.
    pub bytes_read: u64,
    /// Bytes that writes carried.
    pub bytes_written: u64,
    /// Atomics on host memory.
    pub host_atomics: u64,
    /// Atomics on lock memory.
    pub lock_atomics: u64,
    /// Calls to service threads.
    pub calls: u64,
}

pub(super) struct Cluster {
    pub(super) constants: ClusterConstants,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    /// Events by when they were planned; the queue has their numbers.
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
    naps: Slab<Sleep>,
    pub(super) keeper: LeaseManager,
    pub(super) traffic: Traffic,
    /// When each thread is free.
    threads: Vec<u64>,
    /// The task that runs now, and on which thread.
    pub(super) polling: usize,
    polling_on: usize,
}

struct Sleep {
    task: usize,
    over: bool,
}

/// Things by number; numbers of those that are gone are used again.
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
            .expect("numbers name what is there")
    }

    pub(super) fn remove(&mut self, number: u32) -> T {
        self.free.push(number);
        self.items[number as usize]
            .take()
            .expect("numbers name what is there")
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
            keeper: LeaseManager::new(computes),
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
            naps: Slab::new(),
            traffic: Traffic::default(),
            threads: Vec::new(),
            polling: 0,
            polling_on: 0,
        }
    }

    /// Has `event` happen at `time`, or now if that has passed.
    pub(super) fn plan(&mut self, time: u64, event: ClusterEvent) {
        let number = self.planned.add(event);
        self.seq += 1;
        let order = self.seq << 24 | u64::from(number);
        self.queue.push(Reverse((time.max(self.now), order)));
    }

    /// Has the next event happen. `None`: there is none; else the task it wakes, if it wakes one.
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
            ClusterEvent::Woke(nap) => return Some(self.woke(nap).map(WakeReason::Due)),
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

    /// Connects `compute` to every memory server as it is now.
    pub(super) fn connect(&mut self, compute: u16) {
        let now = self.servers.iter().map(|server| server.generation);
        self.computes[usize::from(compute)].connected = now.collect();
    }

    /// Whether `compute` is connected to the memory that `server` had before it lost it.
    pub(super) fn is_outlived(&self, compute: u16, server: u16) -> bool {
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
    // What can go wrong

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

    /// Whether a task of `thread` may run now; if not, it is asked again when it may.
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

    /// The line in which verbs of the task that runs stand, which is one of `compute`.
    pub(super) fn line(&self, compute: u16) -> usize {
        match self.constants.line {
            VerbOrder::Thread => self.polling_on,
            VerbOrder::Compute => compute.into(),
            VerbOrder::Card => 0,
        }
    }

    pub(super) fn runs(&mut self, task: usize, on: ComputeThread) {
        (self.polling, self.polling_on) = (task, on.number as usize);
    }

    /// Has the task that runs compute for `ns`.
    pub(super) fn work(&mut self, ns: Nanos) -> u32 {
        let free = &mut self.threads[self.polling_on];
        *free = self.now.max(*free) + ns * PER_NS;
        let until = *free;
        self.nap_until(until)
    }

    // -----------------------------------------------------------------------------------------
    // Sleeping, and looking from outside

    pub(super) fn sleep(&mut self, ns: Nanos) -> u32 {
        self.nap_until(self.now + ns * PER_NS)
    }

    fn nap_until(&mut self, time: u64) -> u32 {
        let task = self.polling;
        let nap = self.naps.add(Sleep { task, over: false });
        self.plan(time, ClusterEvent::Woke(nap));
        nap
    }

    fn woke(&mut self, number: u32) -> Option<usize> {
        let nap = self.naps.get(number);
        if nap.over {
            self.naps.remove(number);
            return None;
        }
        nap.over = true;
        Some(nap.task)
    }

    pub(super) fn take_nap(&mut self, number: u32) -> Option<()> {
        if !self.naps.get(number).over {
            return None;
        }
        self.naps.remove(number);
        Some(())
    }

    pub(super) fn abandon_nap(&mut self, number: u32) {
        let nap = self.naps.get(number);
        if nap.over {
            self.naps.remove(number);
        } else {
            nap.over = true;
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
