//! The execution of events.

use super::cluster::Cluster;
use super::event_queue::ClusterEvent;
use super::threads::WakeReason;

impl Cluster {
    /// Executes the next event. Returns `None` if there is none, else the task that the event wakes, if any.
    pub(super) fn step(&mut self) -> Option<Option<WakeReason>> {
        let event = self.events.pop()?;
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
            ClusterEvent::Woke(sleep) => {
                return Some(self.threads.woke(sleep).map(WakeReason::Due));
            }
            ClusterEvent::Resume(task) => return Some(Some(WakeReason::Due(task))),
        }
        Some(None)
    }
}
