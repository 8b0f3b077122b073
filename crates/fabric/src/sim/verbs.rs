//! The steps of a batch: post, arrive, act, answer, done.
//!
//! ```text
//!   post ─▶ tx of the client's NIC ─▶ wire ─▶ arrive: rx of the server's NIC; the time of each verb is chosen
//!        ─▶ act, once for each verb: memory is read or written ─▶ tx, wire ─▶ answer: rx ─▶ done: the task continues
//! ```
//!
//! Within a queue ([`ClusterConstants::verb_order`](super::ClusterConstants::verb_order)) verbs act in the order in
//! which they arrived. A read of host memory waits for all writes that arrived before it, from any server, because PCIe
//! lets no read overtake a write. So a client that takes a lock in lock memory and then reads host memory sees all
//! writes that the previous holder posted before it released the lock.

use super::PER_NS;
use super::cluster::{Cluster, Traffic};
use super::event_queue::ClusterEvent;
use super::memory::{LINE, OpenRead};
use super::requests::PostedBatch;
use super::servers::ServerState;
use crate::fabric::{FabricError, Verb};

/// Bytes of a message besides its payload.
const HEAD_BYTES: u64 = 30;

impl Cluster {
    /// Returns the time for which a message with `bytes` of payload occupies a NIC.
    fn message(&self, bytes: u64) -> u64 {
        let each = PER_NS as f64 * 1000.0 / self.constants.messages_per_us;
        let carried = PER_NS as f64 * (bytes + HEAD_BYTES) as f64 / self.constants.bytes_per_ns;
        each.max(carried) as u64
    }

    fn over_pcie(&self, bytes: u64) -> u64 {
        (PER_NS as f64 * bytes as f64 / self.constants.pcie_bytes_per_ns) as u64
    }

    /// Returns the time from the first to the last byte of a write: over the wire or over PCIe, whichever is slower.
    fn landing(&self, bytes: u64) -> u64 {
        self.over_pcie(bytes)
            .max(self.message(bytes) - self.message(0))
    }

    /// Sends `bytes` from the NIC of server `at`, not before `from`. Returns the time at which they are on the wire.
    fn send(&mut self, at: u16, from: u64, bytes: u64) -> u64 {
        let took = self.message(bytes);
        let card = &mut self.cards[usize::from(at)];
        card.tx_free = card.tx_free.max(from) + took;
        card.tx_free
    }

    /// Receives `bytes` at the NIC of server `at`, not before `from`. Returns the time at which they have passed it.
    fn receive(&mut self, at: u16, from: u64, bytes: u64) -> u64 {
        let took = self.message(bytes);
        let card = &mut self.cards[usize::from(at)];
        card.rx_free = card.rx_free.max(from) + took;
        card.rx_free
    }

    fn wire(&self) -> u64 {
        self.constants.wire_ns * PER_NS
    }

    /// Posts `verbs` to `server`.
    pub(super) fn post(&mut self, compute: u16, epoch: u8, server: u16, verbs: Vec<Verb>) -> u32 {
        assert!(
            !verbs.is_empty() && verbs.iter().all(|verb| verb.at().server() == server),
            "a batch must have verbs, all of them on server {server}: {verbs:?}"
        );
        self.traffic.verbs += verbs.len() as u64;
        let doorbell = self.events.now() + self.constants.post_ns * PER_NS;
        let departs: Vec<u64> = verbs
            .iter()
            .map(|verb| self.send(compute, doorbell, carried_there(verb)))
            .collect();
        let line = self.queue_of(compute);
        let there = self.arrival(line, server, &departs);
        let post = self.posts.add(PostedBatch {
            compute,
            epoch,
            server,
            line,
            task: self.threads.task(),
            left: verbs.len() as u32,
            verbs,
            departs,
            acted: 0,
            error: None,
            finished: false,
            abandoned: false,
        });
        self.plan(there, ClusterEvent::Arrive(post));
        post
    }

    /// Returns the time at which a batch that departs at `departs` arrives: not before earlier ones of its queue.
    fn arrival(&mut self, line: usize, server: u16, departs: &[u64]) -> u64 {
        let jitter = self.rng.below(self.constants.jitter_ns * PER_NS + 1);
        let newest = self.servers[usize::from(server)].arrived.of(line);
        let there = (departs[0] + self.constants.wire_ns * PER_NS + jitter).max(*newest);
        *newest = there + departs[departs.len() - 1] - departs[0];
        there
    }

    /// Returns the error with which `server` refuses a batch, if it does.
    fn refusal(&self, compute: u16, epoch: u8, server: u16) -> Option<FabricError> {
        let at = &self.servers[usize::from(server)];
        match at.state {
            ServerState::Dead => Some(FabricError::Timeout { server }),
            ServerState::Alive if self.is_stale_connection(compute, server) => {
                Some(FabricError::Empty { server })
            }
            ServerState::Alive => {
                (epoch < at.admitted[usize::from(compute)]).then_some(FabricError::Fenced)
            }
        }
    }

    /// Handles the arrival of a batch: refuses it, or schedules its first verb.
    pub(super) fn arrive(&mut self, number: u32) {
        let wire = self.wire();
        let post = self.posts.get(number);
        let (compute, epoch, server) = (post.compute, post.epoch, post.server);
        if let Some(error) = self.refusal(compute, epoch, server) {
            let after = match error {
                FabricError::Timeout { .. } => self.constants.timeout_ns * PER_NS,
                _ => wire,
            };
            self.posts.get(number).error = Some(error);
            self.plan(self.events.now() + after, ClusterEvent::Done(number));
            return;
        }
        self.follow(number, 0);
    }

    /// Schedules a verb that has arrived, and plans the arrival of the next one.
    pub(super) fn follow(&mut self, number: u32, verb: u32) {
        let post = self.posts.get(number);
        let (compute, server, line) = (post.compute, post.server, post.line);
        let crashed_at = self.computes[usize::from(compute)].crashed_at;
        if crashed_at.is_some_and(|at| at < post.departs[verb as usize]) {
            return self.cut(number, verb);
        }
        let act = post.verbs[verb as usize].shape();
        let gap = post
            .departs
            .get(verb as usize + 1)
            .filter(|_| verb + 1 < post.verbs.len() as u32);
        if let Some(gap) = gap.map(|next| next - post.departs[verb as usize]) {
            self.plan(
                self.events.now() + gap,
                ClusterEvent::Follow(number, verb + 1),
            );
        }
        // The NIC is cut-through: it forwards the start of a message before the end has arrived.
        let arrived = self.receive(server, self.events.now(), act.carried);
        let begun = arrived - self.message(act.carried) + self.message(0);
        let at = self.schedule(line, server, begun, &act);
        self.plan(at, ClusterEvent::Act(number, verb));
    }

    /// Drops `verb` and those after it: the client's server crashed before it had sent them.
    fn cut(&mut self, number: u32, verb: u32) {
        let post = self.posts.get(number);
        post.left -= post.verbs.len() as u32 - verb;
        post.verbs.truncate(verb as usize);
        if post.left == 0 {
            self.posts.remove(number);
        }
    }

    /// Returns the time at which a verb acts that has passed the NIC at `arrived`.
    fn schedule(&mut self, line: usize, server: u16, arrived: u64, act: &VerbFootprint) -> u64 {
        let pcie = self.constants.pcie_ns * PER_NS;
        let carried = self.landing(act.carried);
        let holds = match act.atomic {
            true => self.constants.host_atomic_ns * PER_NS,
            false => self.constants.host_write_holds_ns * PER_NS,
        };
        let on_chip = (PER_NS as f64 * 1000.0 / self.constants.lock_atomics_per_us) as u64;
        let at = &mut self.servers[usize::from(server)];
        let newest = at.newest.of(line);
        let from = arrived.max(*newest);
        let when = if act.lock {
            let card = &mut self.cards[usize::from(server)];
            card.atomic_free = card.atomic_free.max(from) + on_chip;
            card.atomic_free
        } else if act.atomic || act.word_write {
            let bucket = (act.at / 8) as usize % at.buckets.len();
            let start = at.buckets[bucket].max(from);
            at.buckets[bucket] = start + holds;
            if act.atomic {
                start + holds
            } else {
                start + pcie
            }
        } else {
            from + pcie
        };
        // On PCIe neither a read nor a write overtakes a write.
        let when = match act.lock || act.atomic {
            true => when,
            false => when.max(at.written),
        };
        if act.carried > 0 && !act.lock {
            at.written = at.written.max(when + carried);
        }
        // A read does not delay the verbs behind it in its queue. All other verbs act in order.
        if !act.read {
            *newest = when
                .saturating_sub(if act.lock { 0 } else { pcie })
                .max(*newest);
        }
        when
    }

    /// Executes a verb, or refuses it.
    pub(super) fn act(&mut self, number: u32, verb: u32) {
        let now = self.events.now();
        let post = self.posts.get(number);
        let (compute, epoch, server) = (post.compute, post.epoch, post.server);
        if let Some(error) = self.refusal(compute, epoch, server) {
            self.posts.get(number).error = Some(error);
            return self.acted(number, now);
        }
        let (atomics, in_order) = (&mut self.traffic, self.constants.read_line_order);
        let post = self.posts.get(number);
        let memory = &mut self.servers[usize::from(server)].memory;
        let until = match &mut post.verbs[verb as usize] {
            Verb::Read { at, bytes } => {
                memory.read(at.is_lock(), at.at(), bytes);
                atomics.bytes_read += bytes.len() as u64;
                let len = bytes.len() as u64;
                let (at, on_chip) = (at.at(), at.is_lock());
                let end = now + self.over_pcie(len);
                if !on_chip && at / LINE != (at + len - 1) / LINE {
                    let memory = &mut self.servers[usize::from(server)].memory;
                    memory.opened(OpenRead {
                        post: number,
                        verb,
                        at,
                        len,
                        start: now,
                        end,
                        in_order,
                    });
                }
                end
            }
            Verb::Write { bytes, .. } => {
                atomics.bytes_written += bytes.len() as u64;
                let len = bytes.len() as u32;
                return self.write_in_pieces(number, verb, len);
            }
            Verb::Cas {
                at,
                old,
                new,
                mask,
                found,
            } => {
                let (lock, place) = (at.is_lock(), at.at());
                *found = memory.word(lock, place);
                let swapped =
                    (*found & *mask == *old & *mask).then_some((*found & !*mask) | (*new & *mask));
                count_atomic(&mut self.traffic, lock);
                if let Some(word) = swapped {
                    self.write(server, lock, place, &word.to_le_bytes());
                }
                now
            }
            Verb::Add { at, by, found } => {
                let (lock, place) = (at.is_lock(), at.at());
                *found = memory.word(lock, place);
                let word = found.wrapping_add(*by);
                count_atomic(&mut self.traffic, lock);
                self.write(server, lock, place, &word.to_le_bytes());
                now
            }
        };
        self.acted(number, until);
    }

    /// Plans the pieces of a write: up to four, cut at random line boundaries, in increasing order. If reads take
    /// lines in order, each line is a piece of its own.
    fn write_in_pieces(&mut self, number: u32, verb: u32, len: u32) {
        const PIECES: u32 = 4;
        let pieces_max = match self.constants.read_line_order {
            true => u32::MAX,
            false => PIECES,
        };
        let took = self.landing(len.into());
        let post = self.posts.get(number);
        let at = post.verbs[verb as usize].at();
        let first = (LINE - at.at() % LINE).min(len.into()) as u32;
        let lines = 1 + (len - first).div_ceil(LINE as u32);
        let (now, mut from) = (self.events.now(), 0);
        let mut line = 0;
        let pieces = lines.min(pieces_max);
        for piece in 0..pieces {
            let last = piece + 1 == pieces;
            let rest = lines - line - (pieces - piece - 1);
            line += match last {
                true => rest,
                false => 1 + self.rng.below(rest.into()) as u32,
            };
            let to = (first + (line - 1) * LINE as u32).min(len);
            let when = now + took * u64::from(from) / u64::from(len.max(1));
            self.plan(when, ClusterEvent::Piece(number, verb, from, to));
            from = to;
        }
    }

    /// Writes one piece of a write. After the last piece the verb has acted.
    pub(super) fn piece(&mut self, number: u32, verb: u32, from: u32, to: u32) {
        let post = self.posts.get(number);
        let (compute, server) = (post.compute, post.server);
        if self.is_stale_connection(compute, server) {
            let post = self.posts.get(number);
            post.error = Some(FabricError::Empty { server });
            if u64::from(to) == carried_there(&post.verbs[verb as usize]) {
                self.acted(number, self.events.now());
            }
            return;
        }
        let post = self.posts.get(number);
        let Verb::Write { at, bytes } = &mut post.verbs[verb as usize] else {
            unreachable!("only writes have pieces");
        };
        let (at, all) = (*at, std::mem::take(bytes));
        let part = &all[from as usize..to as usize];
        self.write(server, at.is_lock(), at.at() + u64::from(from), part);
        let whole = to as usize == all.len();
        if let Verb::Write { bytes, .. } = &mut self.posts.get(number).verbs[verb as usize] {
            *bytes = all;
        }
        if whole {
            self.acted(number, self.events.now());
        }
    }

    /// Writes memory, and the buffers of open reads that have yet to take these bytes.
    fn write(&mut self, server: u16, lock: bool, at: u64, bytes: &[u8]) {
        let memory = &mut self.servers[usize::from(server)].memory;
        memory.write(lock, at, bytes);
        if lock {
            return;
        }
        for patch in memory.seen_by(self.events.now(), at, bytes.len() as u64) {
            let read = patch.read;
            let part = &bytes[(patch.from - at) as usize..(patch.to - at) as usize];
            let post = self.posts.get(read.post);
            if let Verb::Read { bytes, .. } = &mut post.verbs[read.verb as usize] {
                bytes[(patch.from - read.at) as usize..][..part.len()].copy_from_slice(part);
            }
        }
    }

    /// Records that a verb of the batch has acted at `until`. After the last one, sends the results.
    fn acted(&mut self, number: u32, until: u64) {
        let post = self.posts.get(number);
        post.acted = post.acted.max(until);
        post.left -= 1;
        if post.left > 0 {
            return;
        }
        let (server, from) = (post.server, post.acted);
        let back: u64 = post.verbs.iter().map(carried_back).sum();
        let sent = self.send(server, from, back);
        self.plan(sent + self.wire(), ClusterEvent::Answer(number));
    }

    /// Receives the results at the client's NIC.
    pub(super) fn answered(&mut self, number: u32) {
        let post = self.posts.get(number);
        let compute = post.compute;
        let back: u64 = post.verbs.iter().map(carried_back).sum();
        let done = self.receive(compute, self.events.now(), back);
        self.plan(done, ClusterEvent::Done(number));
    }

    /// Completes the batch. Returns the task to wake.
    pub(super) fn done(&mut self, number: u32) -> Option<usize> {
        self.traffic.round_trips += 1;
        let post = self.posts.get(number);
        if post.abandoned {
            self.posts.remove(number);
            return None;
        }
        post.finished = true;
        Some(post.task)
    }

    pub(super) fn take_post(&mut self, number: u32) -> Option<Result<Vec<Verb>, FabricError>> {
        if !self.posts.get(number).finished {
            return None;
        }
        let post = self.posts.remove(number);
        Some(match post.error {
            Some(error) => Err(error),
            None => Ok(post.verbs),
        })
    }

    pub(super) fn abandon_post(&mut self, number: u32) {
        let post = self.posts.get(number);
        post.abandoned = true;
        if post.finished {
            self.posts.remove(number);
        }
    }
}

/// The properties of a verb that decide when it acts.
struct VerbFootprint {
    at: u64,
    lock: bool,
    read: bool,
    atomic: bool,
    /// A write of at most one word, such as an unlock. It waits for atomics of its bucket.
    word_write: bool,
    carried: u64,
}

impl Verb {
    fn shape(&self) -> VerbFootprint {
        let at = self.at();
        let carried = carried_there(self);
        VerbFootprint {
            at: at.at(),
            lock: at.is_lock(),
            read: matches!(self, Verb::Read { .. }),
            atomic: matches!(self, Verb::Cas { .. } | Verb::Add { .. }),
            word_write: matches!(self, Verb::Write { bytes, .. } if bytes.len() <= 8),
            carried,
        }
    }
}

fn carried_there(verb: &Verb) -> u64 {
    match verb {
        Verb::Write { bytes, .. } => bytes.len() as u64,
        Verb::Read { .. } | Verb::Cas { .. } | Verb::Add { .. } => 0,
    }
}

fn carried_back(verb: &Verb) -> u64 {
    match verb {
        Verb::Read { bytes, .. } => bytes.len() as u64,
        Verb::Cas { .. } | Verb::Add { .. } => 8,
        Verb::Write { .. } => 0,
    }
}

fn count_atomic(traffic: &mut Traffic, lock: bool) {
    match lock {
        true => traffic.lock_atomics += 1,
        false => traffic.host_atomics += 1,
    }
}
