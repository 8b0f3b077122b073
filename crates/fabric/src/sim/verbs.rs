//! The life of a batch: posted, carried, done, answered.
//!
//! ```text
//!   post ─▶ tx of the asker's card ─▶ wire ─▶ arrive: rx of the server's card, places of its verbs in time
//!        ─▶ act, one for each verb: memory is read or written ─▶ tx, wire ─▶ answer: rx ─▶ done: the task goes on
//! ```
//!
//! Within a line ([`Constants::line`](super::Constants::line)) verbs act in the order in which they arrived, and a
//! read of host memory waits for writes that arrived before it, whoever sent them: PCIe lets no read overtake a
//! write. So who takes a lock on the card and then reads sees what the one who released it had written before.

use super::PER_NS;
use super::cluster::{Cluster, ClusterEvent, ServerState};
use super::memory::{LINE, OpenRead};
use crate::fabric::{FabricError, Verb};

/// Bytes of a message besides what it carries.
const HEAD_BYTES: u64 = 30;

pub(super) struct PostedBatch {
    compute: u16,
    epoch: u8,
    server: u16,
    line: usize,
    task: usize,
    verbs: Vec<Verb>,
    /// When each verb has left the asker's card.
    departs: Vec<u64>,
    /// When the last of its effects takes place, by what is known so far.
    acted: u64,
    /// Verbs that have not acted.
    left: u32,
    error: Option<FabricError>,
    finished: bool,
    abandoned: bool,
}

impl Cluster {
    /// How long a card is busy with `bytes` in one message.
    fn message(&self, bytes: u64) -> u64 {
        let each = PER_NS as f64 * 1000.0 / self.constants.messages_per_us;
        let carried = PER_NS as f64 * (bytes + HEAD_BYTES) as f64 / self.constants.bytes_per_ns;
        each.max(carried) as u64
    }

    fn over_pcie(&self, bytes: u64) -> u64 {
        (PER_NS as f64 * bytes as f64 / self.constants.pcie_bytes_per_ns) as u64
    }

    /// How long a write of `bytes` takes to land: as it comes over the wire, or over PCIe.
    fn landing(&self, bytes: u64) -> u64 {
        self.over_pcie(bytes)
            .max(self.message(bytes) - self.message(0))
    }

    /// Has the card of server `at` send `bytes` no earlier than `from`; when they are on the wire.
    fn send(&mut self, at: u16, from: u64, bytes: u64) -> u64 {
        let took = self.message(bytes);
        let card = &mut self.cards[usize::from(at)];
        card.tx_free = card.tx_free.max(from) + took;
        card.tx_free
    }

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
            "a batch is of one server's verbs: {verbs:?}"
        );
        self.traffic.verbs += verbs.len() as u64;
        let doorbell = self.now + self.constants.post_ns * PER_NS;
        let departs: Vec<u64> = verbs
            .iter()
            .map(|verb| self.send(compute, doorbell, carried_there(verb)))
            .collect();
        let line = self.line(compute);
        let there = self.arrival(line, server, &departs);
        let post = self.posts.add(PostedBatch {
            compute,
            epoch,
            server,
            line,
            task: self.polling,
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

    /// When a batch that departs at `departs` is there: not before those of the same line.
    fn arrival(&mut self, line: usize, server: u16, departs: &[u64]) -> u64 {
        let jitter = self.rng.below(self.constants.jitter_ns * PER_NS + 1);
        let newest = self.servers[usize::from(server)].arrived.of(line);
        let there = (departs[0] + self.constants.wire_ns * PER_NS + jitter).max(*newest);
        *newest = there + departs[departs.len() - 1] - departs[0];
        there
    }

    /// Why nothing of a batch happens at `server`, if nothing does.
    fn refusal(&self, compute: u16, epoch: u8, server: u16) -> Option<FabricError> {
        let at = &self.servers[usize::from(server)];
        match at.state {
            ServerState::Dead => Some(FabricError::Timeout { server }),
            ServerState::Alive if self.is_outlived(compute, server) => {
                Some(FabricError::Empty { server })
            }
            ServerState::Alive => {
                (epoch < at.admitted[usize::from(compute)]).then_some(FabricError::Fenced)
            }
        }
    }

    /// The batch has arrived: its verbs get their places in time.
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
            self.plan(self.now + after, ClusterEvent::Done(number));
            return;
        }
        self.follow(number, 0);
    }

    /// A verb of the batch has arrived, and gets its place in time; then the next one will.
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
            self.plan(self.now + gap, ClusterEvent::Follow(number, verb + 1));
        }
        // A card hands on what it has got of a message while the rest comes in.
        let arrived = self.receive(server, self.now, act.carried);
        let begun = arrived - self.message(act.carried) + self.message(0);
        let at = self.place(line, server, begun, &act);
        self.plan(at, ClusterEvent::Act(number, verb));
    }

    /// The asker crashed before it had sent `verb` and what follows it.
    fn cut(&mut self, number: u32, verb: u32) {
        let post = self.posts.get(number);
        post.left -= post.verbs.len() as u32 - verb;
        post.verbs.truncate(verb as usize);
        if post.left == 0 {
            self.posts.remove(number);
        }
    }

    /// When a verb that has passed the card at `arrived` acts.
    fn place(&mut self, line: usize, server: u16, arrived: u64, act: &VerbFootprint) -> u64 {
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
        // PCIe lets neither reads nor writes overtake a write.
        let when = match act.lock || act.atomic {
            true => when,
            false => when.max(at.written),
        };
        if act.carried > 0 && !act.lock {
            at.written = at.written.max(when + carried);
        }
        // A read answers late and holds up nobody behind it; everything else is done in order.
        if !act.read {
            *newest = when
                .saturating_sub(if act.lock { 0 } else { pcie })
                .max(*newest);
        }
        when
    }

    /// A verb acts.
    pub(super) fn act(&mut self, number: u32, verb: u32) {
        let now = self.now;
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

    /// Writes land in up to four pieces, cut between lines, in increasing order; line by line where it is
    /// known in which order reads meet them.
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
        let (now, mut from) = (self.now, 0);
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

    /// Bytes of a write land; with the last of them the verb has acted.
    pub(super) fn piece(&mut self, number: u32, verb: u32, from: u32, to: u32) {
        let post = self.posts.get(number);
        let (compute, server) = (post.compute, post.server);
        if self.is_outlived(compute, server) {
            let post = self.posts.get(number);
            post.error = Some(FabricError::Empty { server });
            if u64::from(to) == carried_there(&post.verbs[verb as usize]) {
                self.acted(number, self.now);
            }
            return;
        }
        let post = self.posts.get(number);
        let Verb::Write { at, bytes } = &mut post.verbs[verb as usize] else {
            unreachable!("only writes land in pieces");
        };
        let (at, all) = (*at, std::mem::take(bytes));
        let part = &all[from as usize..to as usize];
        self.write(server, at.is_lock(), at.at() + u64::from(from), part);
        let whole = to as usize == all.len();
        if let Verb::Write { bytes, .. } = &mut self.posts.get(number).verbs[verb as usize] {
            *bytes = all;
        }
        if whole {
            self.acted(number, self.now);
        }
    }

    /// Changes memory, and what open reads are yet to see of it.
    fn write(&mut self, server: u16, lock: bool, at: u64, bytes: &[u8]) {
        let memory = &mut self.servers[usize::from(server)].memory;
        memory.write(lock, at, bytes);
        if lock {
            return;
        }
        for patch in memory.seen_by(self.now, at, bytes.len() as u64) {
            let read = patch.read;
            let part = &bytes[(patch.from - at) as usize..(patch.to - at) as usize];
            let post = self.posts.get(read.post);
            if let Verb::Read { bytes, .. } = &mut post.verbs[read.verb as usize] {
                bytes[(patch.from - read.at) as usize..][..part.len()].copy_from_slice(part);
            }
        }
    }

    /// One more verb of the batch is done at `until`; the last one's end sends the answer.
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

    /// The answer is at the asker's card.
    pub(super) fn answered(&mut self, number: u32) {
        let post = self.posts.get(number);
        let compute = post.compute;
        let back: u64 = post.verbs.iter().map(carried_back).sum();
        let done = self.receive(compute, self.now, back);
        self.plan(done, ClusterEvent::Done(number));
    }

    /// The answer is with the task.
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

/// What of a verb decides when it acts.
struct VerbFootprint {
    at: u64,
    lock: bool,
    read: bool,
    atomic: bool,
    /// A write of one word at most: an unlock waits for atomics of its bucket.
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

fn count_atomic(traffic: &mut super::Traffic, lock: bool) {
    match lock {
        true => traffic.lock_atomics += 1,
        false => traffic.host_atomics += 1,
    }
}
