//! Appending: a session's open segments and what it has staged for them.
//!
//! Records of a batch are made in DRAM, one buffer an open segment, and go to the medium together when
//! the batch ends: one copy a segment, one drain for all. Segments are kept apart by how long their
//! records are expected to live ([`CLASSES`] of them), so that they die together.
//!
//! ```text
//!   segment   ┌──────┬────── durable ──────┬── staged, in `buffer` ──┬──── free ────┬──────┐
//!             │ head │ records             │ records                 │              │ tail │
//!             └──────┴─────────────────────┴─────────────────────────┴──────────────┴──────┘
//!                                          `from`
//! ```

use farbank_pm::fault;
use farbank_pm::sync::atomic::Ordering::{Relaxed, Release};
use farbank_pm::{LINE, Lane, Medium, Off, Ticket};

use crate::engine::Engine;
use crate::record::{ALIGN, Header};
use crate::segment::{FIRST, Purpose, State};

/// Kinds of expected lifetime.
pub(crate) const CLASSES: usize = 4;

/// No free segment may be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What a segment that the cleaner fills inherits: when its pass began, when its records were written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heritage {
    pub opened: u64,
    pub born: u64,
}

/// An open segment.
struct Open {
    segment: u32,
    base: Off,
    seed: u32,
    generation: u64,
    /// Where `buffer` begins in the segment.
    from: usize,
    buffer: Vec<u8>,
    /// The ticket of what lies before `from`, if anything does.
    last: Option<Ticket>,
}

/// A full segment whose end is to be written down once its last records are durable.
struct Sealing {
    segment: u32,
    generation: u64,
    end: usize,
    ticket: Ticket,
}

/// What a session appends to.
#[derive(Default)]
pub(crate) struct Log {
    open: [Option<Open>; CLASSES],
    full: Vec<Open>,
    sealing: Vec<Sealing>,
    spare: Vec<Vec<u8>>,
}

impl Log {
    /// Makes sure that a record of `len` bytes fits into the open segment of `class`; opens another if
    /// more than `keep` free ones would remain, and gives it the age of `heritage` (`None`: now).
    pub(crate) fn make_room<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        class: usize,
        len: usize,
        keep: u32,
        heritage: Option<Heritage>,
    ) -> Result<(), NoRoom> {
        if let Some(open) = &self.open[class]
            && open.from + open.buffer.len() + len <= engine.geometry.segment_bytes - LINE
        {
            return Ok(());
        }
        let segment = engine.take_segment(keep).ok_or(NoRoom)?;
        let info = engine.info(segment);
        info.set_state(State::Open);
        match heritage {
            None => info.born.store(engine.written.load(Relaxed), Relaxed),
            Some(from) => {
                info.opened.store(from.opened, Relaxed);
                info.born.store(from.born, Relaxed);
            }
        }
        // Its end is still to be written down.
        info.unsettled.store(1, Release);
        let fresh = Open {
            segment,
            base: engine.geometry.base(segment),
            seed: info.seed.load(Relaxed),
            generation: info.generation.load(Relaxed),
            from: FIRST,
            buffer: self.spare.pop().unwrap_or_default(),
            last: None,
        };
        self.full.extend(self.open[class].replace(fresh));
        Ok(())
    }

    /// Where the next record of `class` will lie. Room must have been made.
    pub(crate) fn next(&self, class: usize) -> Off {
        let open = self.open[class].as_ref().expect("room was made");
        open.base.plus((open.from + open.buffer.len()) as u64)
    }

    /// Stages a record at [`Log::next`]: header, key, and value or table.
    pub(crate) fn stage<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        class: usize,
        header: &Header,
        body: &[&[u8]],
    ) {
        let open = self.open[class].as_mut().expect("room was made");
        let within = open.from + open.buffer.len();
        // R5: the first record of a batch vouches for what lies before it.
        let settled = open.buffer.is_empty()
            && engine.drains_are_real()
            && open
                .last
                .is_some_and(|ticket| matches!(engine.medium().poll(ticket), Ok(true)));
        let header = Header { settled, ..*header };
        let start = open.buffer.len();
        header.encode(open.seed ^ within as u32, &mut open.buffer);
        for part in body {
            open.buffer.extend_from_slice(part);
        }
        open.buffer
            .resize((open.buffer.len()).next_multiple_of(ALIGN), 0);
        debug_assert_eq!(open.buffer.len() - start, engine.record_len(&header));
    }

    /// The seed of a record at `at`, which lies in an open segment of this log.
    pub(crate) fn seed<M: Medium>(engine: &Engine<M>, at: Off) -> u32 {
        engine.info_at(at).seed.load(Relaxed) ^ engine.geometry.within(at) as u32
    }

    /// The staged bytes from `at` on, if `at` is staged here.
    pub(crate) fn staged(&self, at: Off) -> Option<&[u8]> {
        self.open
            .iter()
            .flatten()
            .chain(&self.full)
            .find_map(|open| {
                let start = open.base.plus(open.from as u64).0;
                let within = at.0.checked_sub(start)? as usize;
                open.buffer.get(within..).filter(|bytes| !bytes.is_empty())
            })
    }

    /// Whether anything is staged.
    pub(crate) fn is_staged(&self) -> bool {
        self.open
            .iter()
            .flatten()
            .chain(&self.full)
            .any(|open| !open.buffer.is_empty())
    }

    /// Copies what is staged to the medium. Returns how many bytes. `unpublished` is the first ticket
    /// whose writes are not published yet: segments they lie in are not settled before.
    pub(crate) fn copy_in<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        lane: &mut Lane,
        unpublished: Option<Ticket>,
    ) -> u64 {
        let m = engine.medium();
        self.sealing.retain(|seal| {
            let published = unpublished.is_none_or(|first| seal.ticket < first);
            let durable = published && matches!(m.poll(seal.ticket), Ok(true));
            if !durable && !fault!("kv.sealed_too_soon") {
                return true;
            }
            // S3: what was taken and never written to is not opened either, and stays as it was born.
            if engine.drains_are_real() && seal.end > FIRST {
                let place = engine.geometry.place(seal.segment);
                place.seal(m, lane, seal.generation, seal.end);
            }
            engine.info(seal.segment).unsettled.store(0, Release);
            false
        });
        let mut bytes = 0;
        for open in self.open.iter().flatten().chain(&self.full) {
            if open.buffer.is_empty() {
                continue;
            }
            if open.from == FIRST {
                let place = engine.geometry.place(open.segment);
                place.open(m, lane, open.generation, engine.boot, Purpose::Log);
            }
            m.copy_in(lane, open.base.plus(open.from as u64), &[&open.buffer]);
            bytes += open.buffer.len() as u64;
        }
        bytes
    }

    /// Notes that what was copied in has been drained under `ticket`.
    pub(crate) fn drained<M: Medium>(&mut self, engine: &Engine<M>, ticket: Ticket) {
        for open in self.open.iter_mut().flatten().chain(&mut self.full) {
            if !open.buffer.is_empty() {
                open.from += open.buffer.len();
                open.buffer.clear();
                open.last = Some(ticket);
                engine
                    .info(open.segment)
                    .used
                    .store(open.from as u32, Relaxed);
            }
        }
        for open in self.full.drain(..) {
            let Some(ticket) = open.last else {
                // Nothing was written in it, not even that it is open: it is as free as it was.
                engine.give_segment(open.segment);
                self.spare.push(open.buffer);
                continue;
            };
            engine.info(open.segment).set_state(State::Sealed);
            self.sealing.push(Sealing {
                segment: open.segment,
                generation: open.generation,
                end: open.from,
                ticket,
            });
            self.spare.push(open.buffer);
        }
    }

    /// Gives up open segments that tombstones have waited for too long. Nothing may be staged in them.
    pub(crate) fn rotate<M: Medium>(&mut self, engine: &Engine<M>) {
        let Some(limit) = engine.rotation_limit() else {
            return;
        };
        for open in &mut self.open {
            let is_old = |o: &mut Open| {
                o.buffer.is_empty() && engine.info(o.segment).opened.load(Relaxed) < limit
            };
            self.full.extend(open.take_if(is_old));
        }
        if self.full.iter().all(|open| open.buffer.is_empty()) {
            self.drained(engine, Ticket::DURABLE);
        }
    }

    /// Seals every open segment, so that others may clean them. Nothing may be staged, and everything
    /// drained must be durable. Nobody waits for the seals: without one an open reads on to where the
    /// records end.
    pub(crate) fn close<M: Medium>(&mut self, engine: &Engine<M>, lane: &mut Lane) {
        debug_assert!(!self.is_staged());
        for open in &mut self.open {
            self.full.extend(open.take());
        }
        self.drained(engine, Ticket::DURABLE);
        self.copy_in(engine, lane, None);
    }
}
