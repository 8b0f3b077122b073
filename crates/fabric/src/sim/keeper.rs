//! The memory servers' threads: chunks, leases, fences.

use super::PER_NS;
use super::rack::{Event, Rack, State};
use crate::door::Error;
use crate::service::{Answer, Ask, KEEPER};

pub(super) struct Call {
    compute: u16,
    epoch: u8,
    server: u16,
    task: usize,
    ask: Ask,
    answer: Option<Result<Answer, Error>>,
    finished: bool,
    abandoned: bool,
}

/// What the keeper knows of the compute servers: when each was last heard of.
pub(super) struct Keeper {
    heard: Vec<u64>,
}

impl Keeper {
    pub(super) fn new(computes: u16) -> Keeper {
        Keeper {
            heard: vec![0; computes.into()],
        }
    }
}

impl Rack {
    pub(super) fn call(&mut self, compute: u16, epoch: u8, server: u16, ask: Ask) -> u32 {
        self.traffic.calls += 1;
        let call = self.calls.add(Call {
            compute,
            epoch,
            server,
            task: self.polling,
            ask,
            answer: None,
            finished: false,
            abandoned: false,
        });
        let there = self.now + (self.constants.post_ns + self.constants.wire_ns) * PER_NS;
        self.plan(there, Event::Called(call));
        call
    }

    /// The call is at the service thread, which takes one after another.
    pub(super) fn called(&mut self, number: u32) {
        let took = self.constants.call_ns * PER_NS;
        let wire = self.constants.wire_ns * PER_NS;
        let call = self.calls.get(number);
        let (compute, epoch, server, ask) = (call.compute, call.epoch, call.server, call.ask);
        let outlived = self.is_outlived(compute, server);
        let at = &mut self.servers[usize::from(server)];
        let (answer, after) = match at.state {
            State::Dead => (
                Err(Error::Timeout { server }),
                self.constants.timeout_ns * PER_NS,
            ),
            State::Alive if outlived => (Err(Error::Empty { server }), wire),
            State::Alive => {
                at.thread_free = at.thread_free.max(self.now) + took;
                let served = at.thread_free;
                let (answer, more) = self.serve(compute, epoch, server, ask, served);
                (answer, served + more + wire - self.now)
            }
        };
        self.calls.get(number).answer = Some(answer);
        self.plan(self.now + after, Event::Replied(number));
    }

    /// The answer, and how long it takes beyond `served`, the moment at which the thread has got to it.
    fn serve(
        &mut self,
        compute: u16,
        epoch: u8,
        server: u16,
        ask: Ask,
        served: u64,
    ) -> (Result<Answer, Error>, u64) {
        let index = usize::from(compute);
        let life = self.computes[index].epoch;
        match ask {
            _ if epoch < life && ask != Ask::Join => (Err(Error::Fenced), 0),
            Ask::Chunk => (Ok(self.chunk(server)), 0),
            Ask::Renew => {
                self.keeper.heard[index] = self.now;
                (Ok(Answer::Alive), 0)
            }
            Ask::Join => {
                self.keeper.heard[index] = self.now;
                self.computes[index].crashed_at = None;
                (Ok(Answer::Epoch(life)), 0)
            }
            Ask::Verdict { compute, epoch } => self.verdict(compute, epoch, served),
        }
    }

    fn chunk(&mut self, server: u16) -> Answer {
        let chunk_bytes = self.constants.chunk_bytes;
        let at = &mut self.servers[usize::from(server)];
        let start = at.next_chunk;
        if start + chunk_bytes > at.memory.host_bytes() {
            return Answer::Full;
        }
        at.next_chunk += chunk_bytes;
        Answer::Chunk {
            at: start,
            bytes: chunk_bytes,
        }
    }

    /// Whether a life still goes on; if its lease has run out it ends now: every memory server refuses it before
    /// the answer leaves.
    fn verdict(&mut self, compute: u16, epoch: u8, served: u64) -> (Result<Answer, Error>, u64) {
        let index = usize::from(compute);
        let life = self.computes[index].epoch;
        let lease = self.constants.lease_ns * PER_NS;
        if epoch < life {
            return (Ok(Answer::Dead), 0);
        }
        if self.now < self.keeper.heard[index] + lease {
            return (Ok(Answer::Alive), 0);
        }
        self.computes[index].epoch = life + 1;
        let there = served + self.constants.wire_ns * PER_NS;
        for server in 0..self.servers() {
            let there = if server == KEEPER { served } else { there };
            self.plan(there, Event::Fence(server, compute, life + 1));
        }
        (Ok(Answer::Dead), 2 * self.constants.wire_ns * PER_NS)
    }

    pub(super) fn replied(&mut self, number: u32) -> Option<usize> {
        let call = self.calls.get(number);
        if call.abandoned {
            self.calls.remove(number);
            return None;
        }
        call.finished = true;
        Some(call.task)
    }

    pub(super) fn take_call(&mut self, number: u32) -> Option<Result<Answer, Error>> {
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
