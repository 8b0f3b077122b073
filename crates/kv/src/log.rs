//! Appending: a session's open segments and what it has staged for them.
//!
//! Records of a batch are made in DRAM, one buffer an open segment, and go to the medium together when
//! the batch ends: one copy a segment, one drain for all. Segments are kept apart by how long their
//! records are expected to live ([`CLASSES`] of them), so that they die together.
//!
//! ```text
//!   segment   ┌──────┬──────── drained ────┬───────── staged ────────┬──── free ────┬──────┐
//!             │ head │ records             │ records                 │              │ tail │
//!             └──────┴────────────────┬────┴─────────────────────────┴──┬───────────┴──────┘
//!                                   `line`  `from`                      the line's end
//!                                     └──── `buffer`, then zeros ───────┘
//! ```
//!
//! What goes to the medium is whole lines: the buffer keeps the drained bytes that share a line with the
//! next record, and zeros fill the last line. So a line need not be fetched to be written, and can go
//! around the cache. Storing a drained word again as it is changes nothing, whenever the power fails; the
//! zeros lie in the segment's free part, where anything may lie.

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
    /// Where what is staged begins in the segment.
    from: usize,
    /// From the start of the line that `from` lies in.
    buffer: Vec<u8>,
    /// The ticket of what lies before `from`, if anything does.
    last: Option<Ticket>,
}

impl Open {
    /// Where the line begins that `from` lies in.
    fn line(&self) -> usize {
        self.from / LINE * LINE
    }

    /// Where the next record will lie in the segment.
    fn end(&self) -> usize {
        self.line() + self.buffer.len()
    }

    /// Bytes that are staged.
    fn staged(&self) -> usize {
        self.end() - self.from
    }

    /// Whether `len` more bytes fit.
    fn takes<M: Medium>(&self, engine: &Engine<M>, len: usize) -> bool {
        self.end() + len <= engine.geometry.segment_bytes - LINE
    }

    /// Stages a record: header, key, and value or table.
    fn stage<M: Medium>(&mut self, engine: &Engine<M>, header: &Header, body: &[&[u8]]) {
        // R5: the first record of a batch vouches for what lies before it.
        let settled = self.staged() == 0
            && engine.drains_are_real()
            && self
                .last
                .is_some_and(|ticket| matches!(engine.medium().poll(ticket), Ok(true)));
        let header = Header { settled, ..*header };
        let within = self.end();
        self.buffer.reserve(engine.record_len(&header) + LINE);
        header.encode(self.seed ^ within as u32, &mut self.buffer);
        for part in body {
            self.buffer.extend_from_slice(part);
        }
        // A line starts at a multiple of the alignment, so the buffer's length tells the place's.
        let padded = self.buffer.len().next_multiple_of(ALIGN);
        self.buffer.resize(padded, 0);
        debug_assert_eq!(self.end() - within, engine.record_len(&header));
    }

    /// Copies what is staged to the medium, in whole lines.
    fn copy_in<M: Medium>(&mut self, engine: &Engine<M>, lane: &mut Lane) {
        let m = engine.medium();
        if self.from == FIRST {
            let place = engine.geometry.place(self.segment);
            place.open(m, lane, self.generation, engine.boot, Purpose::Log);
        }
        let len = self.buffer.len();
        self.buffer.resize(len.next_multiple_of(LINE), 0);
        let line = self.base.plus(self.line() as u64);
        m.copy_in(lane, line, &[&self.buffer]);
        self.buffer.truncate(len);
    }

    /// Notes that what was copied in has been drained under `ticket`.
    fn drained<M: Medium>(&mut self, engine: &Engine<M>, ticket: Ticket) {
        let end = self.end();
        let kept = self.buffer.len() / LINE * LINE;
        self.buffer.copy_within(kept.., 0);
        self.buffer.truncate(self.buffer.len() - kept);
        self.from = end;
        self.last = Some(ticket);
        engine.info(self.segment).used.store(end as u32, Relaxed);
    }
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
            && open.takes(engine, len)
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
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        let fresh = Open {
            segment,
            base: engine.geometry.base(segment),
            seed: info.seed.load(Relaxed),
            generation: info.generation.load(Relaxed),
            from: FIRST,
            buffer,
            last: None,
        };
        self.full.extend(self.open[class].replace(fresh));
        Ok(())
    }

    /// Where the next record of `class` will lie. Room must have been made.
    pub(crate) fn next(&self, class: usize) -> Off {
        let open = self.open[class].as_ref().expect("room was made");
        open.base.plus(open.end() as u64)
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
        open.stage(engine, header, body);
    }

    /// Whether a record of `len` bytes can go to `class` by itself: it fits, and nothing else waits to be
    /// copied in or sealed.
    #[inline]
    pub(crate) fn takes_alone<M: Medium>(
        &self,
        engine: &Engine<M>,
        class: usize,
        len: usize,
    ) -> bool {
        let open = self.open[class].as_ref();
        self.full.is_empty()
            && self.sealing.is_empty()
            && open.is_some_and(|open| open.staged() == 0 && open.takes(engine, len))
    }

    /// Copies in a record by itself, at [`Log::next`]. It must be drained next.
    #[inline]
    pub(crate) fn copy_in_alone<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        lane: &mut Lane,
        class: usize,
        header: &Header,
        body: &[&[u8]],
    ) {
        let open = self.open[class].as_mut().expect("room was made");
        open.stage(engine, header, body);
        open.copy_in(engine, lane);
    }

    /// Notes that the record copied in by itself has been drained under `ticket`.
    #[inline]
    pub(crate) fn drained_alone<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        class: usize,
        ticket: Ticket,
    ) {
        let open = self.open[class].as_mut().expect("room was made");
        open.drained(engine, ticket);
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
                let start = open.base.plus(open.line() as u64).0;
                let within = at.0.checked_sub(start)? as usize;
                let staged = within >= open.from - open.line();
                let bytes = open.buffer.get(within..).filter(|bytes| !bytes.is_empty());
                bytes.filter(|_| staged)
            })
    }

    /// Whether anything is staged.
    pub(crate) fn is_staged(&self) -> bool {
        self.open
            .iter()
            .flatten()
            .chain(&self.full)
            .any(|open| open.staged() > 0)
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
        for open in self.open.iter_mut().flatten().chain(&mut self.full) {
            if open.staged() > 0 {
                bytes += open.staged() as u64;
                open.copy_in(engine, lane);
            }
        }
        bytes
    }

    /// Notes that what was copied in has been drained under `ticket`.
    pub(crate) fn drained<M: Medium>(&mut self, engine: &Engine<M>, ticket: Ticket) {
        for open in self.open.iter_mut().flatten().chain(&mut self.full) {
            if open.staged() > 0 {
                open.drained(engine, ticket);
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
                o.staged() == 0 && engine.info(o.segment).opened.load(Relaxed) < limit
            };
            self.full.extend(open.take_if(is_old));
        }
        if self.full.iter().all(|open| open.staged() == 0) {
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
