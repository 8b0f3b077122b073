//! Places of records: the first ones stay in DRAM, the others are in a buffer first and later in far memory.
//!
//! ```text
//!   record numbers, in segments as large as a buffer; segment s belongs to thread s % 16
//!   ┌─────────┬─────────┬─ ... ─┬─────────┬─────────┬─────────┬─ ... ─┐
//!   │ 0: DRAM │ 1: DRAM │       │ 799     │ 800     │ 801     │       │
//!   └─────────┴─────────┴─ ... ─┴─────────┴─────────┴─────────┴─ ... ─┘
//!     head cache, 3.12 GiB                 far memory: record n at (n - first) x 100
//!
//!   place of a segment:  none ──▶ buffer b ──▶ buffer b, being flushed ──▶ far memory
//! ```
//!
//! # Invariants
//! PRELIM-REC-1  A segment's place only moves forward. A buffer is reused for another segment only after the place of its former
//!     segment is far memory. So a reader that finds the place unchanged after it read a buffer has read that segment.
//! PRELIM-REC-2  A buffer is changed only by the worker that fills it and by rewrites. A rewrite holds the buffer's lock and
//!     changes a buffer only while it is not being flushed.
//! PRELIM-REC-3  Segments have an even number of records, so they begin and end at whole words of far memory.

use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU32, fence};
use farbank_pm::sync::{Mutex, thread, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned};

use super::slab::{
    KeyWords, NONE, RECORD_BYTES, RecordLookup, RecordSlab, VALUE_BYTES, WORDS, prev_of, words,
};

/// Place of a segment in far memory. A segment not begun yet has the same place.
const FAR: u32 = 0;
/// Flag of a place in a buffer (buffer number + 1): the buffer is being flushed.
const FLUSHING: u32 = 1 << 31;
/// A flush writes far memory in pieces that end at multiples of this size.
const PIECE_BYTES: usize = 64 << 10;

/// A buffer to flush. It is full, or its worker has been dropped.
#[derive(Clone, Copy)]
pub(super) struct FullBuffer {
    pub(super) buffer: usize,
    pub(super) segment: u32,
    pub(super) records: u32,
}

/// The store of all records.
pub(super) struct RecordStore<M> {
    medium: M,
    head: RecordSlab,
    buffers: Vec<RecordSlab>,
    /// Lock of each buffer (PRELIM-REC-2).
    locks: Vec<Mutex<()>>,
    /// Place of each segment after the head segments.
    places: Vec<AtomicU32>,
    pub(super) segment_records: u32,
    pub(super) head_segments: u32,
}

/// Sizes of a [`RecordStore`].
pub(super) struct RecordCounts {
    pub(super) far_bytes: u64,
    pub(super) segment_records: u32,
    pub(super) head_segments: u32,
    pub(super) buffers: usize,
}

impl<M: Medium> RecordStore<M> {
    pub(super) fn new(medium: M, sizes: &RecordCounts) -> RecordStore<M> {
        let segment_records = sizes.segment_records as usize;
        let segment_bytes = (segment_records * RECORD_BYTES) as u64;
        let far_segments = (sizes.far_bytes / segment_bytes) as usize;
        RecordStore {
            medium,
            head: RecordSlab::new(sizes.head_segments as usize * segment_records),
            buffers: (0..sizes.buffers)
                .map(|_| RecordSlab::new(segment_records))
                .collect(),
            locks: (0..sizes.buffers).map(|_| Mutex::default()).collect(),
            places: (0..far_segments).map(|_| AtomicU32::new(FAR)).collect(),
            segment_records: sizes.segment_records,
            head_segments: sizes.head_segments,
        }
    }

    /// Returns the number of segments in DRAM and in far memory.
    pub(super) fn segments(&self) -> u32 {
        self.head_segments + self.places.len() as u32
    }

    /// Returns the bytes of DRAM that the head segments and the buffers take.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let segment_bytes = u64::from(self.segment_records) * RECORD_BYTES as u64;
        let buffers = self.buffers.len() as u64;
        (
            u64::from(self.head_segments) * segment_bytes,
            buffers * segment_bytes,
        )
    }

    /// Returns the bytes of DRAM that one flusher takes.
    pub(super) fn flusher_bytes(&self) -> u64 {
        PIECE_BYTES as u64
    }

    /// Returns the buffer that holds `segment`, if one does. Only the worker that fills the segment calls this.
    pub(super) fn buffer_of(&self, segment: u32) -> Option<usize> {
        let behind = segment.checked_sub(self.head_segments)?;
        let place = self.places[behind as usize].load(Relaxed);
        (place != FAR).then(|| place as usize - 1)
    }

    /// Sets the place of `segment` to `buffer` (PRELIM-REC-1).
    pub(super) fn begin(&self, segment: u32, buffer: usize) {
        self.place(segment).store(buffer as u32 + 1, Release);
        fence(Release);
    }

    /// Returns the slab, and the index in it, at which record `n` is written. Only the worker that fills the record's
    /// segment calls this.
    pub(super) fn slab_of(&self, n: u32) -> (&RecordSlab, usize) {
        let (segment, within) = self.split(n);
        match segment < self.head_segments {
            true => (&self.head, n as usize),
            false => (
                &self.buffers[self.place(segment).load(Relaxed) as usize - 1],
                within,
            ),
        }
    }

    /// Compares record `n` with `key`, and copies its value to `out` if the keys are equal.
    pub(super) fn look(&self, n: u32, key: KeyWords, out: &mut Vec<u8>) -> RecordLookup {
        let (segment, within) = self.split(n);
        if segment < self.head_segments {
            return self.head.look(n as usize, key, out);
        }
        loop {
            let buffer = self.place(segment).load(Acquire) & !FLUSHING;
            if buffer == FAR {
                return self.look_far(n, key, out);
            }
            let look = self.buffers[buffer as usize - 1].look(within, key, out);
            fence(Acquire);
            if self.place(segment).load(Relaxed) & !FLUSHING == buffer {
                return look; // PRELIM-REC-1
            }
        }
    }

    fn look_far(&self, n: u32, key: KeyWords, out: &mut Vec<u8>) -> RecordLookup {
        let mut record = [0; RECORD_BYTES];
        self.medium.copy_out(self.off(n), &mut record);
        if words::<4>(&record[4..20]) != key {
            return RecordLookup::Other(prev_of(words::<WORDS>(&record)[0]));
        }
        out.clear();
        out.extend_from_slice(&record[RECORD_BYTES - VALUE_BYTES..]);
        RecordLookup::Same
    }

    /// Overwrites the value of record `n` at its current place.
    pub(super) fn rewrite(
        &self,
        ctx: &mut PersistCtx,
        n: u32,
        value: &[u8],
    ) -> Result<(), Poisoned> {
        let (segment, within) = self.split(n);
        if segment < self.head_segments {
            self.head.put_value(n as usize, value);
            return Ok(());
        }
        loop {
            match self.place(segment).load(Acquire) {
                FAR => return self.rewrite_far(ctx, n, value),
                place if place & FLUSHING != 0 => thread::yield_now(),
                place => {
                    let buffer = place as usize - 1;
                    let _changing = unpoisoned(self.locks[buffer].lock());
                    if self.place(segment).load(Acquire) == place {
                        self.buffers[buffer].put_value(within, value);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Overwrites a value in far memory. In every second record the value begins at a whole word. In the others the
    /// last bytes of the key before it are rewritten with it, and its last word also contains the next record's
    /// `prev`, which no longer changes.
    fn rewrite_far(&self, ctx: &mut PersistCtx, n: u32, value: &[u8]) -> Result<(), Poisoned> {
        let at = self.off(n).plus((RECORD_BYTES - VALUE_BYTES) as u64);
        if at.0.is_multiple_of(8) {
            self.medium.copy_in(ctx, at, &[value]);
        } else {
            let mut before = [0; 4];
            let from = Off(at.0 - 4);
            self.medium.copy_out(from, &mut before);
            self.medium.copy_in(ctx, from, &[&before, value]);
        }
        let ticket = self.medium.drain(ctx);
        self.medium.poll(ticket).map(|_| ())
    }

    /// Writes a buffer to far memory. On `Ok` the buffer can be reused for another segment (PRELIM-REC-1).
    pub(super) fn flush(
        &self,
        ctx: &mut PersistCtx,
        filled: FullBuffer,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Poisoned> {
        let FullBuffer {
            buffer,
            segment,
            records,
        } = filled;
        {
            let _no_changes = unpoisoned(self.locks[buffer].lock()); // PRELIM-REC-2
            self.place(segment).fetch_or(FLUSHING, Release);
        }
        let first = self.off(segment * self.segment_records).0 as usize;
        let end = first + records as usize * RECORD_BYTES;
        let mut at = first;
        while at < end {
            let next = ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(end);
            self.buffers[buffer].bytes(at - first, next - first, scratch);
            self.medium.copy_in(ctx, Off(at as u64), &[scratch]);
            at = next;
        }
        let ticket = self.medium.drain(ctx);
        self.medium.poll(ticket)?;
        self.place(segment).store(FAR, Release);
        Ok(())
    }

    /// Returns the segment of record `n` and the record's index in it.
    fn split(&self, n: u32) -> (u32, usize) {
        debug_assert_ne!(n, NONE);
        (
            n / self.segment_records,
            (n % self.segment_records) as usize,
        )
    }

    fn place(&self, segment: u32) -> &AtomicU32 {
        &self.places[(segment - self.head_segments) as usize]
    }

    fn off(&self, n: u32) -> Off {
        let head = self.head_segments * self.segment_records;
        Off(u64::from(n - head) * RECORD_BYTES as u64)
    }
}
