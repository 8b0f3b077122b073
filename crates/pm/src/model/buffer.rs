//! A DIMM's buffers: the XPBuffer, which combines writes, and the read buffer.

use crate::rng::Rng;

/// No XPLine.
const NONE: u32 = u32::MAX;
/// All four lines of an XPLine.
pub(super) const WHOLE: u8 = 0b1111;

/// A dirty XPLine that leaves the XPBuffer and has to be written to the media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EvictedLine {
    pub(super) xpline: u32,
    /// Mask of its lines that were written.
    pub(super) lines: u8,
    /// Whether its other lines were read before.
    pub(super) known: bool,
    /// Owner of the last write to it (see `Step::owner`).
    pub(super) owner: u32,
}

/// The numbers of the XPLines in a buffer, some 64. A search is a scan, which the compiler vectorises. Counters
/// by hash avoid most scans for XPLines that are not in the buffer.
#[derive(Clone, Debug)]
struct TagArray {
    tags: Vec<u32>,
    /// Number of XPLines with each hash.
    hashes: [u8; 256],
}

fn hash(xpline: u32) -> usize {
    (xpline.wrapping_mul(0x9e37_79b1) >> 24) as usize
}

impl TagArray {
    fn new(entries: usize) -> TagArray {
        assert!(
            entries < 256,
            "a buffer of {entries} XPLines, but at most 255 are supported"
        );
        TagArray {
            tags: vec![NONE; entries],
            hashes: [0; 256],
        }
    }

    fn set(&mut self, at: usize, xpline: u32) {
        let old = std::mem::replace(&mut self.tags[at], xpline);
        if old != NONE {
            self.hashes[hash(old)] -= 1;
        }
        self.hashes[hash(xpline)] += 1;
    }

    fn find(&self, xpline: u32) -> Option<usize> {
        const WIDE: usize = 16;
        if self.hashes[hash(xpline)] == 0 {
            return None;
        }
        let (chunks, rest) = self.tags.as_chunks::<WIDE>();
        for (at, chunk) in chunks.iter().enumerate() {
            if chunk.iter().fold(false, |any, tag| any | (*tag == xpline)) {
                let within = chunk.iter().position(|tag| *tag == xpline)?;
                return Some(at * WIDE + within);
            }
        }
        let within = rest.iter().position(|tag| *tag == xpline)?;
        Some(self.tags.len() - rest.len() + within)
    }
}

/// The write-combining buffer: fully associative, with random replacement.
#[derive(Clone, Debug)]
pub(super) struct XpBuffer {
    tags: TagArray,
    entries: Vec<BufferEntry>,
    /// Number of entries in use; they are used in order.
    used: usize,
    /// XPLines that were closed, and when, oldest first. Some may have left the buffer since.
    closed: std::collections::VecDeque<(u32, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BufferEntry {
    /// Mask of the lines written and not yet on the media; 0 is clean.
    lines: u8,
    known: bool,
    /// Whether all its lines, or its last one, were written. The media writes closed entries when it is idle.
    closed: bool,
    owner: u32,
}

/// Mask of the last line of an XPLine.
const LAST: u8 = 0b1000;

/// The result of writing a line into the XPBuffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteOutcome {
    /// Its XPLine was in the buffer, so the writes combine.
    Combined,
    /// Its XPLine took a free or an evicted entry. `Some`: the evicted XPLine is dirty and must be written first.
    Replaced(Option<EvictedLine>),
}

impl XpBuffer {
    pub(super) fn new(entries: usize) -> XpBuffer {
        XpBuffer {
            tags: TagArray::new(entries),
            entries: vec![BufferEntry::default(); entries],
            used: 0,
            closed: std::collections::VecDeque::new(),
        }
    }

    pub(super) fn has(&self, xpline: u32) -> bool {
        self.tags.find(xpline).is_some()
    }

    /// Writes the lines of `new`, which arrive at `now`.
    pub(super) fn write(&mut self, new: EvictedLine, now: u64, rng: &mut Rng) -> WriteOutcome {
        let EvictedLine {
            xpline,
            lines: line,
            known,
            owner,
        } = new;
        if let Some(at) = self.tags.find(xpline) {
            self.entries[at].lines |= line;
            self.entries[at].owner = owner;
            self.close(at, line, now);
            return WriteOutcome::Combined;
        }
        let (at, evicted) = if self.used < self.entries.len() {
            self.used += 1;
            (self.used - 1, None)
        } else {
            let at = rng.below(self.used as u64) as usize;
            (at, self.dirty(at))
        };
        self.tags.set(at, xpline);
        self.entries[at] = BufferEntry {
            lines: line,
            known,
            closed: false,
            owner,
        };
        self.close(at, line, now);
        WriteOutcome::Replaced(evicted)
    }

    fn close(&mut self, at: usize, line: u8, now: u64) {
        let entry = &mut self.entries[at];
        if !entry.closed && (entry.lines == WHOLE || line == LAST) {
            entry.closed = true;
            self.closed.push_back((self.tags.tags[at], now));
        }
    }

    fn dirty(&self, at: usize) -> Option<EvictedLine> {
        let BufferEntry {
            lines,
            known,
            owner,
            ..
        } = self.entries[at];
        (lines != 0).then(|| EvictedLine {
            xpline: self.tags.tags[at],
            lines,
            known,
            owner,
        })
    }

    /// Returns the oldest XPLine that was closed by `before`, and the time when it was closed. The caller writes it
    /// to the media. It stays in the buffer, clean, and combines with later writes.
    pub(super) fn take_closed(&mut self, before: u64) -> Option<(EvictedLine, u64)> {
        while let Some(&(xpline, since)) = self.closed.front() {
            if since > before {
                return None;
            }
            self.closed.pop_front();
            let Some(at) = self.tags.find(xpline) else {
                continue;
            };
            if self.entries[at].closed {
                let evicted = self.dirty(at)?;
                self.entries[at] = BufferEntry {
                    known: true,
                    ..BufferEntry::default()
                };
                return Some((evicted, since));
            }
        }
        None
    }

    /// Empties the buffer, and returns all XPLines that are not on the media yet.
    pub(super) fn drain(&mut self) -> Vec<EvictedLine> {
        let all = (0..self.used).filter_map(|at| self.dirty(at)).collect();
        self.entries.fill(BufferEntry::default());
        self.closed.clear();
        all
    }
}

/// The XPLines that were read last, with first-in-first-out replacement.
#[derive(Clone, Debug)]
pub(super) struct ReadBuffer {
    tags: TagArray,
    next: usize,
}

impl ReadBuffer {
    pub(super) fn new(entries: usize) -> ReadBuffer {
        ReadBuffer {
            tags: TagArray::new(entries),
            next: 0,
        }
    }

    pub(super) fn has(&self, xpline: u32) -> bool {
        self.tags.find(xpline).is_some()
    }

    pub(super) fn put(&mut self, xpline: u32) {
        self.tags.set(self.next, xpline);
        self.next = (self.next + 1) % self.tags.tags.len();
    }
}
