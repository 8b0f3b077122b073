//! Where records are: the first in DRAM for good, the others in a buffer and then in far memory.
//!
//! ```text
//!   record numbers, in segments of as many as a buffer holds; segment s is thread s % 16's
//!   ┌─────────┬─────────┬─ ... ─┬─────────┬─────────┬─────────┬─ ... ─┐
//!   │ 0: DRAM │ 1: DRAM │       │ 799     │ 800     │ 801     │       │
//!   └─────────┴─────────┴─ ... ─┴─────────┴─────────┴─────────┴─ ... ─┘
//!     head cache, 3.12 GiB                 far memory: record n at (n - first) x 100
//!
//!   place of a segment:  nowhere ──▶ buffer b ──▶ buffer b, being flushed ──▶ far memory
//! ```
//!
//! # Invariants
//! N1  A segment's place only goes forward. A buffer is given to another segment after the place of its first says far
//!     memory; so who read from a buffer and finds the place unchanged has read that segment's bytes.
//! N2  A buffer is changed by the worker that fills it, and, while it is not being flushed, under its lock.
//! N3  Segments have an even number of records: they begin and end at whole words of far memory.

use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU32, fence};
use farbank_pm::sync::{Mutex, thread};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned};

use super::slab::{
    KeyWords, NONE, RECORD_BYTES, RecordLookup, RecordSlab, VALUE_BYTES, WORDS, prev_of, words,
};

/// A segment's place is far memory.
const FAR: u32 = 0;
/// Beside a buffer's number and one: it is being flushed.
const FLUSHING: u32 = 1 << 31;
/// Far memory is written in pieces that end at multiples of this.
const PIECE_BYTES: usize = 64 << 10;

/// A full buffer, or one that will not be filled.
#[derive(Clone, Copy)]
pub(super) struct FullBuffer {
    pub(super) buffer: usize,
    pub(super) segment: u32,
    pub(super) records: u32,
}

/// All records.
pub(super) struct RecordStore<M> {
    medium: M,
    head: RecordSlab,
    buffers: Vec<RecordSlab>,
    /// Of each buffer: N2.
    locks: Vec<Mutex<()>>,
    /// Of each segment behind the head.
    places: Vec<AtomicU32>,
    pub(super) segment_records: u32,
    pub(super) head_segments: u32,
}

/// How many of what there are.
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

    /// Segments there are, in DRAM and in far memory.
    pub(super) fn segments(&self) -> u32 {
        self.head_segments + self.places.len() as u32
    }

    /// Bytes of DRAM of the head cache, and of the buffers.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let segment_bytes = u64::from(self.segment_records) * RECORD_BYTES as u64;
        let buffers = self.buffers.len() as u64;
        (
            u64::from(self.head_segments) * segment_bytes,
            buffers * segment_bytes,
        )
    }

    /// Bytes of DRAM a flusher takes.
    pub(super) fn flusher_bytes(&self) -> u64 {
        PIECE_BYTES as u64
    }

    /// The buffer that `segment` is in, if it is in one. For the worker that fills it.
    pub(super) fn buffer_of(&self, segment: u32) -> Option<usize> {
        let behind = segment.checked_sub(self.head_segments)?;
        let place = self.places[behind as usize].load(Relaxed);
        (place != FAR).then(|| place as usize - 1)
    }

    /// Segment `segment` is in `buffer` from now on (N1).
    pub(super) fn begin(&self, segment: u32, buffer: usize) {
        self.place(segment).store(buffer as u32 + 1, Release);
        fence(Release);
    }

    /// Where the worker that fills record `n`'s segment writes it: a slab, and which of its records.
    pub(super) fn own(&self, n: u32) -> (&RecordSlab, usize) {
        let (segment, within) = self.split(n);
        match segment < self.head_segments {
            true => (&self.head, n as usize),
            false => (
                &self.buffers[self.place(segment).load(Relaxed) as usize - 1],
                within,
            ),
        }
    }

    /// Looks at record `n` for `key`.
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
                return look; // N1
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

    /// Makes `value` that of record `n`, where it is.
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
                    let _changing = self.locks[buffer].lock().expect("no holder panics");
                    if self.place(segment).load(Acquire) == place {
                        self.buffers[buffer].put_value(within, value);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A value begins at a whole word in every second record. In the others, the last bytes of the key before it are
    /// written with it, and its last word is shared with the next record's `prev`, which does not change any more.
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

    /// Brings a buffer to far memory. It can be given to another segment on `Ok` (N1).
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
            let _no_changes = self.locks[buffer].lock().expect("no holder panics"); // N2
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

    /// Segment of record `n`, and which of its records that is.
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
