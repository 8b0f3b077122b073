//! Planned events in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use farbank_pm::rng::Rng;

use super::slab::Slab;

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

/// The queue of planned events, ordered by time and then by the order of planning.
pub(super) struct EventQueue {
    now: u64,
    /// Time of each planned event, and its sequence number and number in `planned`.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    planned: Slab<ClusterEvent>,
    seq: u64,
    count: u64,
    digest: u64,
}

impl EventQueue {
    pub(super) fn new(seed: u64) -> EventQueue {
        EventQueue {
            now: 0,
            queue: BinaryHeap::new(),
            planned: Slab::new(),
            seq: 0,
            count: 0,
            digest: seed,
        }
    }

    /// Returns the time of the last event.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Returns the number of events so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns a hash of the order and the times of all events so far.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Plans `event` for `time`, or for now if `time` has passed.
    pub(super) fn plan(&mut self, time: u64, event: ClusterEvent) {
        let number = self.planned.add(event);
        self.seq += 1;
        let order = self.seq << 24 | u64::from(number);
        self.queue.push(Reverse((time.max(self.now), order)));
    }

    /// Removes the next event, whose time is now the present.
    pub(super) fn pop(&mut self) -> Option<ClusterEvent> {
        const NUMBER: u64 = (1 << 24) - 1;
        let Reverse((time, order)) = self.queue.pop()?;
        let event = self.planned.remove((order & NUMBER) as u32);
        self.now = time;
        self.count += 1;
        self.digest = Rng::new(self.digest ^ time).fork(order >> 24).draw();
        Some(event)
    }
}
