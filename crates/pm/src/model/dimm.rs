//! One DIMM, with its share of the memory controller.
//!
//! ```text
//!   lines ──▶ queues, in order ───────▶ XPBuffer ──random victim──▶ media: one XPLine at a time
//!       └───▶ beyond them: random order    ▲ read buffer ◀───────────┘
//! ```

use std::collections::VecDeque;

use super::buffer::{EvictedLine, ReadBuffer, WHOLE, WriteOutcome, XpBuffer};
use super::constants as c;
use super::count::DimmCounts;
use crate::rng::Rng;

/// Converts nanoseconds to picoseconds, the unit of virtual time.
pub(super) fn ps(ns: f64) -> u64 {
    (ns * 1000.0).round() as u64
}

/// A line that waits because the write queue is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedLine {
    pub(super) line: u32,
    pub(super) owner: u32,
    /// The worker to notify when the line is admitted, or `NO_WORKER`.
    pub(super) worker: u32,
}

/// The effect of a request on buffer and media, for the caller's counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MediaWork {
    pub(super) combined: bool,
    pub(super) media_read: bool,
}

pub(super) struct Dimm {
    xpbuffer: XpBuffer,
    read_buffer: ReadBuffer,
    /// Time at which the media is free.
    media_free: u64,
    /// Time at which each line in the write queue leaves it, in order.
    departs: VecDeque<u64>,
    last_depart: u64,
    /// Lines that wait for the write queue in order.
    ordered: VecDeque<QueuedLine>,
    /// Lines beyond `ordered`, which are admitted in random order.
    unordered: Vec<QueuedLine>,
    pub(super) counts: DimmCounts,
    /// XPLines written to the media since the caller last collected them.
    pub(super) written: Vec<EvictedLine>,
    times: DimmTimes,
}

#[derive(Clone, Copy)]
struct DimmTimes {
    read: u64,
    write: u64,
    fill: u64,
    slack: u64,
    random: u64,
    buffered: u64,
    queue: usize,
    ordered: usize,
    window: u64,
}

impl Dimm {
    pub(super) fn new(write_ns: f64) -> Dimm {
        let write = ps(write_ns);
        Dimm {
            xpbuffer: XpBuffer::new(c::XPBUFFER.value as usize),
            read_buffer: ReadBuffer::new(c::READ_BUFFER.value as usize),
            media_free: 0,
            departs: VecDeque::new(),
            last_depart: 0,
            ordered: VecDeque::new(),
            unordered: Vec::new(),
            counts: DimmCounts::default(),
            written: Vec::new(),
            times: DimmTimes {
                read: ps(c::READ_XPLINE.value),
                write,
                fill: ps(c::FILL_LINE.value),
                slack: write * c::WRITE_SLACK.value as u64,
                random: ps(c::LOAD_RANDOM.value),
                buffered: ps(c::LOAD_BUFFERED.value),
                queue: c::WRITE_QUEUE.value as usize,
                ordered: c::WRITE_ORDERED.value as usize,
                window: ps(c::WINDOW.value * 1e6),
            },
        }
    }

    /// Occupies the media for `service`, from `now` or from when it is free. Returns the start. `kind` selects the
    /// column of the time series: 0 reads, 1 writes.
    fn serve(&mut self, now: u64, service: u64, kind: Option<usize>) -> u64 {
        let start = self.media_free.max(now);
        self.media_free = start + service;
        self.counts.busy_ps += service;
        if let Some(kind) = kind {
            let window = (start / self.times.window) as usize;
            if window >= self.counts.series.len() {
                self.counts.series.resize(window + 1, [0; 2]);
            }
            self.counts.series[window][kind] += 1;
        }
        start
    }

    /// Reads a line; `fill` if a store needs it. Returns the time of its arrival, and the effect on the media.
    pub(super) fn read(&mut self, line: u32, fill: bool, now: u64) -> (u64, MediaWork) {
        let xpline = line / 4;
        let hit = self.xpbuffer.has(xpline) || self.read_buffer.has(xpline);
        let (latency, service) = match (hit, fill) {
            (true, false) => return (now + self.times.buffered, MediaWork::default()),
            (true, true) => (self.times.buffered, self.times.fill),
            (false, true) => (self.times.random, self.times.fill),
            (false, false) => (self.times.random, self.times.read),
        };
        if !hit {
            self.read_buffer.put(xpline);
            self.counts.reads += 1;
        }
        let start = self.serve(now, service, (!hit).then_some(0));
        let work = MediaWork {
            media_read: !hit,
            ..MediaWork::default()
        };
        (start + latency, work)
    }

    /// Returns whether the write queue has room at `now`.
    pub(super) fn has_room(&mut self, now: u64) -> bool {
        while self.departs.front().is_some_and(|depart| *depart <= now) {
            self.departs.pop_front();
        }
        self.departs.len() < self.times.queue
    }

    /// Returns the number of lines that wait for the write queue.
    pub(super) fn waiting(&self) -> usize {
        self.ordered.len() + self.unordered.len()
    }

    /// Adds a line to those that wait for the write queue.
    pub(super) fn wait(&mut self, line: QueuedLine) {
        if self.ordered.len() < self.times.ordered {
            self.ordered.push_back(line);
        } else {
            self.unordered.push(line);
        }
    }

    /// Removes and returns the next waiting line.
    pub(super) fn next_waiting(&mut self, rng: &mut Rng) -> Option<QueuedLine> {
        let line = self.ordered.pop_front()?;
        if !self.unordered.is_empty() {
            let at = rng.below(self.unordered.len() as u64) as usize;
            self.ordered.push_back(self.unordered.swap_remove(at));
        }
        Some(line)
    }

    /// Returns the time at which the write queue next has room, if lines wait for it.
    pub(super) fn next_room(&self) -> Option<u64> {
        (self.waiting() > 0).then(|| self.departs.front().copied().unwrap_or_default())
    }

    /// Puts a line into the write queue at `now`.
    pub(super) fn admit(&mut self, line: u32, owner: u32, now: u64, rng: &mut Rng) -> MediaWork {
        let mut depart = self.last_depart.max(now);
        self.write_closed_ones(depart);
        let xpline = line / 4;
        let new = EvictedLine {
            xpline,
            lines: 1 << (line % 4),
            known: self.read_buffer.has(xpline),
            owner,
        };
        let written = self.xpbuffer.write(new, depart, rng);
        if let WriteOutcome::Replaced(Some(victim)) = written {
            depart = depart.max(self.media_free.saturating_sub(self.times.slack));
            self.write_back(victim, depart);
        }
        self.last_depart = depart;
        self.departs.push_back(depart);
        MediaWork {
            combined: written == WriteOutcome::Combined,
            ..MediaWork::default()
        }
    }

    /// Writes closed XPLines while the media is idle until `now`.
    fn write_closed_ones(&mut self, now: u64) {
        while self.media_free < now {
            let Some((closed, since)) = self.xpbuffer.take_closed(now) else {
                return;
            };
            self.write_back(closed, since);
        }
    }

    fn write_back(&mut self, xpline: EvictedLine, now: u64) {
        self.counts.writes += 1;
        self.serve(now, self.times.write, Some(1));
        self.written.push(xpline);
    }

    /// Writes all remaining XPLines to the media.
    pub(super) fn drain(&mut self, now: u64) {
        for left in self.xpbuffer.drain() {
            self.write_back(left, now);
        }
    }
}

impl EvictedLine {
    pub(super) fn is_partial(&self) -> bool {
        self.lines != WHOLE
    }
}
