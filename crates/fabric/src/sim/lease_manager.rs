//! The memory servers' service threads: chunks, leases and fencing.

use super::PER_NS;
use super::cluster::Cluster;
use super::event_queue::ClusterEvent;
use super::requests::LeaseCall;
use super::servers::ServerState;
use crate::fabric::FabricError;
use crate::lease_table::LeaseCheck;
use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};

impl Cluster {
    pub(super) fn call(
        &mut self,
        compute: u16,
        epoch: u8,
        server: u16,
        ask: ServiceRequest,
    ) -> u32 {
        self.traffic.calls += 1;
        let call = self.calls.add(LeaseCall {
            compute,
            epoch,
            server,
            task: self.threads.task(),
            ask,
            answer: None,
            finished: false,
            abandoned: false,
        });
        let there = self.events.now() + (self.constants.post_ns + self.constants.wire_ns) * PER_NS;
        self.plan(there, ClusterEvent::Called(call));
        call
    }

    /// Serves a call that has reached the service thread. The thread serves one call at a time.
    pub(super) fn called(&mut self, number: u32) {
        let took = self.constants.call_ns * PER_NS;
        let wire = self.constants.wire_ns * PER_NS;
        let call = self.calls.get(number);
        let (compute, epoch, server, ask) = (call.compute, call.epoch, call.server, call.ask);
        let outlived = self.is_stale_connection(compute, server);
        let at = &mut self.servers[usize::from(server)];
        let (answer, after) = match at.state {
            ServerState::Dead => (
                Err(FabricError::Timeout { server }),
                self.constants.timeout_ns * PER_NS,
            ),
            ServerState::Alive if outlived => (Err(FabricError::Empty { server }), wire),
            ServerState::Alive => {
                at.thread_free = at.thread_free.max(self.events.now()) + took;
                let served = at.thread_free;
                let (answer, more) = self.serve(compute, epoch, server, ask, served);
                (answer, served + more + wire - self.events.now())
            }
        };
        self.calls.get(number).answer = Some(answer);
        self.plan(self.events.now() + after, ClusterEvent::Replied(number));
    }

    /// Returns the response, and its delay after `served`, the time at which the thread has served the call.
    fn serve(
        &mut self,
        compute: u16,
        epoch: u8,
        server: u16,
        ask: ServiceRequest,
        served: u64,
    ) -> (Result<ServiceResponse, FabricError>, u64) {
        let life = self.leases.epoch(compute);
        match ask {
            _ if epoch < life && ask != ServiceRequest::Join => (Err(FabricError::Fenced), 0),
            ServiceRequest::Chunk => (Ok(self.chunk(server)), 0),
            ServiceRequest::Renew => {
                self.leases.renew(compute, self.events.now());
                (Ok(ServiceResponse::Alive), 0)
            }
            ServiceRequest::Join => {
                self.leases.renew(compute, self.events.now());
                self.computes[usize::from(compute)].crashed_at = None;
                (Ok(ServiceResponse::Epoch(life)), 0)
            }
            // The simulated lease server gives no epoch to a second holder.
            ServiceRequest::Leave => (Ok(ServiceResponse::Left), 0),
            ServiceRequest::CheckLease { compute, epoch } => self.verdict(compute, epoch, served),
            ServiceRequest::Reserve { to } => {
                self.take(server, to);
                (Ok(ServiceResponse::Reserved), 0)
            }
        }
    }

    fn chunk(&mut self, server: u16) -> ServiceResponse {
        let chunk_bytes = self.constants.chunk_bytes;
        let at = &mut self.servers[usize::from(server)];
        let start = at.next_chunk;
        if start + chunk_bytes > at.memory.host_bytes() {
            return ServiceResponse::Full;
        }
        at.next_chunk += chunk_bytes;
        ServiceResponse::Chunk {
            at: start,
            bytes: chunk_bytes,
        }
    }

    /// Checks the lease of `compute` in `epoch`. If it has expired, starts a new epoch, and every memory server refuses
    /// verbs of the old one before the response leaves.
    fn verdict(
        &mut self,
        compute: u16,
        epoch: u8,
        served: u64,
    ) -> (Result<ServiceResponse, FabricError>, u64) {
        let next = match self.leases.check(compute, epoch, self.events.now()) {
            LeaseCheck::Alive => return (Ok(ServiceResponse::Alive), 0),
            LeaseCheck::Ended => return (Ok(ServiceResponse::Expired), 0),
            LeaseCheck::Expired(next) => next,
        };
        let there = served + self.constants.wire_ns * PER_NS;
        for server in 0..self.servers() {
            let there = if server == LEASE_SERVER {
                served
            } else {
                there
            };
            self.plan(there, ClusterEvent::Fence(server, compute, next));
        }
        (
            Ok(ServiceResponse::Expired),
            2 * self.constants.wire_ns * PER_NS,
        )
    }

    /// Completes a call whose response has reached the caller. Returns the task to wake.
    pub(super) fn replied(&mut self, number: u32) -> Option<usize> {
        let call = self.calls.get(number);
        if call.abandoned {
            self.calls.remove(number);
            return None;
        }
        call.finished = true;
        Some(call.task)
    }

    pub(super) fn take_call(
        &mut self,
        number: u32,
    ) -> Option<Result<ServiceResponse, FabricError>> {
        if !self.calls.get(number).finished {
            return None;
        }
        self.calls.remove(number).answer
    }

    pub(super) fn abandon_call(&mut self, number: u32) {
        let call = self.calls.get(number);
        call.abandoned = true;
        if call.finished {
            self.calls.remove(number);
        }
    }
}
