//! The append path: a session's open segments and the records staged for them.
//!
//! The records of a batch are built in DRAM, in one buffer for each open segment. They go to the medium when the
//! batch ends: one copy for each segment, one drain for all. Records are put into segments by their expected lifetime
//! (one of [`CLASSES`] classes), so that the records of a segment die at about the same time.
//!
//! ```text
//!   segment   ┌──────┬──────── drained ────┬────────────── staged ──────────────┬──── free ────┬──────┐
//!             │ head │ records             │ records        ░░░░░░░░░░          │              │ tail │
//!             └──────┴────────────────┬────┴────────────────────────────────────┴──┬───────────┴──────┘
//!                                   `line`  `staged_from`                          end of that cache line
//!                                     └──── `buffer` ───────┘  run   └─── `buffer`, then zeros ───┘
//! ```
//!
//! A session writes whole cache lines: the buffer keeps the drained bytes that share a line with the next record, and
//! zeros fill the last line. So a line need not be fetched before it is written, and the stores can bypass the cache.
//! Rewriting a drained word with the same value is safe at any power cut. The zeros lie in the segment's free part,
//! whose content does not matter.
//!
//! The cache lines of a long value are copied to the medium when the value is staged: a *run* (░). The buffer does not
//! contain them, so the value is copied once, and a batch of long values does not displace the CPU's caches.
//!
//! # Invariants
//! KV-STAGE-1  A run contains bytes of one value only, never bytes of a header or a key. So until the batch ends the medium has
//!     no header of a staged record.
//! KV-STAGE-2  A run is flushed when the value is staged, and drained with its batch, before its record is published.
//! KV-STAGE-3  No store to a run is in flight when another thread may write the same bytes. After a batch is abandoned, the locks
//!     that the session takes before it parks its segments drain the CPU's write-combining buffers.
//!
//! # Crash argument
//! Until the drain any part of the staged bytes may be durable, runs and buffers alike. Recovery keeps a record only if
//! both its checksums hold. An abandoned run has no header (KV-STAGE-1): it is content of the segment's free part, and
//! the next records overwrite it.

use std::ops::Range;

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::{Relaxed, Release};
use farbank_pm::{LINE, Medium, Off, PersistCtx, Ticket};

use crate::format::record::{ALIGN, RecordHeader, RecordType};
use crate::format::segment::{CLASSES, FIRST, SegmentInfo, SegmentPurpose, SegmentState};
use crate::segments::Segments;

/// Ages that a segment filled by the cleaner inherits: the stamp at which its pass began, and when its records were
/// written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelocationOrigin {
    pub opened: u64,
    pub written_at: u64,
}

/// Cache lines of a staged value that have been copied to the medium: a range of offsets in the segment.
#[derive(Clone, Copy, Debug)]
struct CopiedRun {
    from: usize,
    end: usize,
}

impl CopiedRun {
    /// Returns the whole lines of a value, if they have at least `bytes_min` bytes. `value` and `end` are the value's
    /// offsets in its segment.
    fn of_value(value: usize, end: usize, bytes_min: usize) -> Option<CopiedRun> {
        let (from, end) = (value.next_multiple_of(LINE), end / LINE * LINE);
        (end >= from + bytes_min).then_some(CopiedRun { from, end })
    }

    fn bytes(&self) -> usize {
        self.end - self.from
    }
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    segment: u32,
    base: Off,
    seed: u32,
    generation: u64,
    /// Offset in the segment at which the staged records begin.
    staged_from: usize,
    /// Bytes from the start of the cache line that contains `staged_from`, without those of `runs`.
    buffer: Vec<u8>,
    /// Staged bytes that have been copied to the medium, in ascending order.
    runs: Vec<CopiedRun>,
    /// Ticket of the last drain of this segment, if it was ever drained.
    last_ticket: Option<Ticket>,
}

impl OpenSegment {
    /// Returns the start of the cache line that contains `staged_from`, as an offset in the segment.
    fn line(&self) -> usize {
        self.staged_from / LINE * LINE
    }

    /// Returns the offset in the segment of the next record.
    fn end(&self) -> usize {
        let copied: usize = self.runs.iter().map(CopiedRun::bytes).sum();
        self.line() + self.buffer.len() + copied
    }

    /// Returns the number of staged bytes.
    fn staged(&self) -> usize {
        self.end() - self.staged_from
    }

    /// Returns whether `len` more bytes fit.
    fn fits_open_segment<M: Medium>(&self, segments: &Segments<M>, len: usize) -> bool {
        self.end() + len <= segments.geometry().records_end()
    }

    /// Stages a record: header, key, and value or table. `body` has key and value, in one part or in two.
    fn stage<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        header: &RecordHeader,
        body: &[&[u8]],
    ) {
        // KV-RECORD-5: the first record of a batch certifies that all records before it are durable.
        let settled = self.staged() == 0
            && segments.access().drains_are_real()
            && self
                .last_ticket
                .is_some_and(|ticket| matches!(segments.medium().poll(ticket), Ok(true)));
        let header = RecordHeader { settled, ..*header };
        let within = self.end();
        let value = within + header.len() + header.key_len;
        let end = within + header.len() + segments.body_len(&header);
        let run = match header.what {
            RecordType::Put => CopiedRun::of_value(value, end, segments.geometry().run_min()),
            // A group's body has headers.
            _ => None,
        };
        let copied = run.as_ref().map_or(0, CopiedRun::bytes);
        self.buffer
            .reserve(segments.record_len(&header) - copied + LINE);
        header.encode(self.seed ^ within as u32, &mut self.buffer);
        match run {
            None => body
                .iter()
                .for_each(|part| self.buffer.extend_from_slice(part)),
            Some(run) => self.stage_around(segments.medium(), ctx, end, body, run),
        }
        // The buffer starts at a line, and so does what follows a run: multiples of ALIGN. So aligning the buffer's
        // length aligns the record's offset.
        let padded = self.buffer.len().next_multiple_of(ALIGN);
        self.buffer.resize(padded, 0);
        debug_assert_eq!(self.end() - within, segments.record_len(&header));
    }

    /// Stages a body that ends at offset `end`: copies `run` to the medium and the rest to the buffer.
    fn stage_around<M: Medium>(
        &mut self,
        m: &M,
        ctx: &mut PersistCtx,
        end: usize,
        body: &[&[u8]],
        run: CopiedRun,
    ) {
        let (last, first) = body.split_last().expect("a body has a value");
        for part in first {
            self.buffer.extend_from_slice(part);
        }
        let (rest, after) = last.split_at(last.len() - (end - run.end));
        let (before, copied) = rest.split_at(rest.len() - run.bytes());
        self.buffer.extend_from_slice(before);
        situation!("kv.run_copied");
        m.copy_in(ctx, self.base.plus(run.from as u64), &[copied]);
        self.runs.push(run);
        self.buffer.extend_from_slice(after);
    }

    /// Copies the staged bytes to the medium that are not there yet, in whole cache lines.
    fn copy_in<M: Medium>(&mut self, segments: &Segments<M>, ctx: &mut PersistCtx) {
        let m = segments.medium();
        if self.staged_from == FIRST {
            let place = segments.geometry().place(self.segment);
            place.open(
                m,
                ctx,
                self.generation,
                segments.open_epoch(),
                SegmentPurpose::Log,
            );
        }
        let len = self.buffer.len();
        self.buffer.resize(len.next_multiple_of(LINE), 0);
        let (mut at, mut rest) = (self.line(), &self.buffer[..]);
        for run in &self.runs {
            let (before, after) = rest.split_at(run.from - at);
            m.copy_in(ctx, self.base.plus(at as u64), &[before]);
            (at, rest) = (run.end, after);
        }
        if !rest.is_empty() {
            m.copy_in(ctx, self.base.plus(at as u64), &[rest]);
        }
        self.buffer.truncate(len);
    }

    /// Returns the staged bytes of the buffer from offset `from` on, up to the next run. `None` if nothing is staged there, or
    /// if a run contains the offset.
    fn staged_at(&self, from: usize) -> Option<&[u8]> {
        let next = self.runs.iter().find(|run| run.end > from);
        let end = next.map_or(self.end(), |run| run.from);
        (self.staged_from <= from && from < end).then(|| self.buffered(from..end))
    }

    /// Returns the bytes of the buffer for a range of offsets that contains no run.
    fn buffered(&self, range: Range<usize>) -> &[u8] {
        let before = self.runs.iter().filter(|run| run.end <= range.start);
        let copied: usize = before.map(CopiedRun::bytes).sum();
        let start = range.start - self.line() - copied;
        &self.buffer[start..start + range.len()]
    }

    /// Appends to `out` a range of offsets of a staged record, which has at most one run.
    fn append_record<M: Medium>(&self, m: &M, range: Range<usize>, out: &mut Vec<u8>) {
        let mut runs = self.runs.iter();
        let Some(run) = runs.find(|run| range.start <= run.from && run.end <= range.end) else {
            return out.extend_from_slice(self.buffered(range));
        };
        situation!("kv.run_read");
        out.extend_from_slice(self.buffered(range.start..run.from));
        m.append_out(self.base.plus(run.from as u64), run.bytes(), out);
        out.extend_from_slice(self.buffered(run.end..range.end));
    }

    /// Records that the copied bytes have been drained under `ticket`.
    fn mark_drained<M: Medium>(&mut self, segments: &Segments<M>, ticket: Ticket) {
        let end = self.end();
        let kept = self.buffer.len() / LINE * LINE;
        self.buffer.copy_within(kept.., 0);
        self.buffer.truncate(self.buffer.len() - kept);
        self.runs.clear();
        self.staged_from = end;
        self.last_ticket = Some(ticket);
        segments.info(self.segment).used.store(end as u32, Relaxed);
    }

    /// Seals the segment: its records are durable and published.
    fn write_end<M: Medium>(&self, segments: &Segments<M>, ctx: &mut PersistCtx) {
        write_end(
            segments,
            ctx,
            self.segment,
            self.generation,
            self.staged_from,
        );
    }
}

/// Seals `segment`: its records end at `end`, and all are durable and published. From now on the cleaner may take it.
fn write_end<M: Medium>(
    segments: &Segments<M>,
    ctx: &mut PersistCtx,
    segment: u32,
    generation: u64,
    end: usize,
) {
    // KV-SEG-3: a segment that was taken and never written is not opened, and stays as it was initialised.
    if segments.access().drains_are_real() && end > FIRST {
        let place = segments.geometry().place(segment);
        place.seal(segments.medium(), ctx, generation, end);
    }
    segments.info(segment).is_end_unwritten.store(0, Release);
}

/// A full segment that is to be sealed once its last records are durable.
struct SealPending {
    segment: u32,
    generation: u64,
    end: usize,
    ticket: Ticket,
}

/// One session's open segments, at most one for each class.
///
/// While the session has nothing unpublished they are *parked* in [`SessionShared::parked`]. There other sessions and
/// the cleaner can take them, so an idle session holds no space.
///
/// [`SessionShared::parked`]: crate::sessions::SessionShared::parked
#[derive(Debug, Default)]
pub(crate) struct OpenSegments([Option<Box<OpenSegment>>; CLASSES]);

impl OpenSegments {
    /// Returns whether every class has a segment with room for `len` more bytes.
    pub(crate) fn take_all<M: Medium>(&self, segments: &Segments<M>, len: usize) -> bool {
        let mut classes = self.0.iter().take(segments.classes());
        classes.all(|open| {
            open.as_ref()
                .is_some_and(|open| open.fits_open_segment(segments, len))
        })
    }

    fn iter(&self) -> impl Iterator<Item = &OpenSegment> {
        self.0.iter().flatten().map(|open| &**open)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut OpenSegment> {
        self.0.iter_mut().flatten().map(|open| &mut **open)
    }

    /// Returns the bytes that cleaning these segments would gain once they are sealed.
    pub(crate) fn gain<M: Medium>(&self, segments: &Segments<M>) -> u64 {
        let open = self.iter();
        open.map(|open| segments.space().gain_of(segments.info(open.segment)))
            .sum()
    }

    /// Returns whether a record of `len` bytes can be written to `class` as a batch of its own.
    #[inline]
    pub(crate) fn has_room_for_single<M: Medium>(
        &self,
        segments: &Segments<M>,
        class: usize,
        len: usize,
    ) -> bool {
        let open = self.0[class].as_ref();
        open.is_some_and(|open| open.staged() == 0 && open.fits_open_segment(segments, len))
    }

    /// Returns the offset of the next record of `class`. Room must have been made.
    #[inline]
    pub(crate) fn next(&self, class: usize) -> Off {
        let open = self.0[class].as_ref().expect("room was made");
        open.base.plus(open.end() as u64)
    }

    /// Copies a single record to the medium, at [`OpenSegments::next`]. The caller must drain it next.
    #[inline]
    pub(crate) fn copy_in_single<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        class: usize,
        header: &RecordHeader,
        body: &[&[u8]],
    ) {
        let open = self.0[class].as_mut().expect("room was made");
        open.stage(segments, ctx, header, body);
        open.copy_in(segments, ctx);
    }

    /// Records that the single record has been drained under `ticket`.
    #[inline]
    pub(crate) fn mark_single_drained<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        class: usize,
        ticket: Ticket,
    ) {
        let open = self.0[class].as_mut().expect("room was made");
        open.mark_drained(segments, ticket);
    }

    /// Takes out a segment with room for `len` bytes, preferably one of `class`.
    pub(crate) fn take_with_room<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        class: usize,
        len: usize,
    ) -> Option<Box<OpenSegment>> {
        let has_room = |open: &mut Box<OpenSegment>| open.fits_open_segment(segments, len);
        let same = self.0[class].take_if(has_room);
        same.or_else(|| self.0.iter_mut().find_map(|open| open.take_if(has_room)))
    }

    /// Seals the parked segments that `is_wanted` selects. Segments that were never written become free again.
    /// Returns the number of segments removed.
    pub(crate) fn seal<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        is_wanted: &dyn Fn(&SegmentInfo) -> bool,
    ) -> usize {
        let mut sealed = 0;
        for open in &mut self.0 {
            let wanted = |o: &mut Box<OpenSegment>| is_wanted(segments.info(o.segment));
            let Some(open) = open.take_if(wanted) else {
                continue;
            };
            sealed += 1;
            if open.last_ticket.is_none() {
                segments.give(open.segment);
                continue;
            }
            segments.note_sealed(open.segment);
            open.write_end(segments, ctx);
        }
        sealed
    }
}

/// The log of a session: its open segments, and the full ones that are not sealed yet.
#[derive(Default)]
pub(crate) struct SessionLog {
    open: OpenSegments,
    full: Vec<OpenSegment>,
    sealing: Vec<SealPending>,
    spare: Vec<Vec<u8>>,
}

impl SessionLog {
    /// Returns the bytes that still fit into the open segments.
    pub(crate) fn room_left<M: Medium>(&self, segments: &Segments<M>) -> u64 {
        let end = segments.geometry().records_end();
        let open = self.open.iter();
        open.map(|open| (end - open.end()) as u64).sum()
    }

    /// Returns the bytes of dead records in the open segments.
    pub(crate) fn dead_in_open<M: Medium>(&self, segments: &Segments<M>) -> u64 {
        let gain = self.open.gain(segments);
        gain.saturating_sub(self.room_left(segments))
    }

    /// Exchanges the open segments with `parked`.
    pub(crate) fn exchange(&mut self, parked: &mut OpenSegments) {
        debug_assert!(!self.is_staged());
        std::mem::swap(&mut self.open, parked);
    }

    /// Returns the open segments, and the full ones that are not copied in yet.
    fn segments(&self) -> impl Iterator<Item = &OpenSegment> {
        self.open.iter().chain(&self.full)
    }

    /// Returns whether a full segment still has to be copied in or sealed.
    #[inline]
    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty() || !self.sealing.is_empty()
    }

    /// Continues `class` in a segment that an idle session had parked.
    pub(crate) fn adopt(&mut self, class: usize, open: Box<OpenSegment>) {
        self.full
            .extend(self.open.0[class].replace(open).map(|full| *full));
    }

    /// Returns whether a record of `len` bytes fits into the open segment of `class`.
    pub(crate) fn has_room<M: Medium>(
        &self,
        segments: &Segments<M>,
        class: usize,
        len: usize,
    ) -> bool {
        let open = self.open.0[class].as_ref();
        open.is_some_and(|open| open.fits_open_segment(segments, len))
    }

    /// Continues `class` in `segment`, which was free. It gets the ages of `origin` (`None`: the current ones).
    pub(crate) fn open<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        class: usize,
        segment: u32,
        origin: Option<RelocationOrigin>,
    ) {
        let info = segments.info(segment);
        info.set_state(SegmentState::Open);
        match origin {
            None => info.written_at_average.store(segments.appended(), Relaxed),
            Some(from) => {
                info.opened.store(from.opened, Relaxed);
                info.written_at_average.store(from.written_at, Relaxed);
            }
        }
        // The segment is not sealed yet.
        info.is_end_unwritten.store(1, Release);
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        let fresh = Box::new(OpenSegment {
            segment,
            base: segments.geometry().base(segment),
            seed: info.seed.load(Relaxed),
            generation: info.generation.load(Relaxed),
            staged_from: FIRST,
            buffer,
            runs: Vec::new(),
            last_ticket: None,
        });
        self.full
            .extend(self.open.0[class].replace(fresh).map(|full| *full));
    }

    /// Returns the offset of the next record of `class`. Room must have been made.
    pub(crate) fn next(&self, class: usize) -> Off {
        self.open.next(class)
    }

    /// Stages a record at [`SessionLog::next`]: header, key, and value or table. The next drain of `ctx` must be that of
    /// the batch, unless the batch is discarded.
    pub(crate) fn stage<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        class: usize,
        header: &RecordHeader,
        body: &[&[u8]],
    ) {
        let open = self.open.0[class].as_mut().expect("room was made");
        open.stage(segments, ctx, header, body);
    }

    /// Returns the staged bytes from `at` on, if a record is staged there in this log. They include its header and its
    /// key, and end before the bytes that are on the medium.
    pub(crate) fn staged(&self, at: Off) -> Option<&[u8]> {
        self.segments().find_map(|open| {
            let within = at.0.checked_sub(open.base.0)?;
            open.staged_at(within as usize)
        })
    }

    /// Appends to `out` the `len` bytes from `at` on of a record that is staged in this log. `at` is not after the record's
    /// key.
    pub(crate) fn append_staged<M: Medium>(
        &self,
        segments: &Segments<M>,
        at: Off,
        len: usize,
        out: &mut Vec<u8>,
    ) {
        let geometry = segments.geometry();
        let (segment, within) = (geometry.segment_of(at), geometry.within(at));
        if let Some(open) = self.segments().find(|open| open.segment == segment) {
            open.append_record(segments.medium(), within..within + len, out);
        }
    }

    /// Discards the staged records. The medium has none of their headers (KV-STAGE-1).
    pub(crate) fn discard(&mut self) {
        for open in self.open.iter_mut().chain(&mut self.full) {
            let drained = open.staged_from - open.line();
            open.buffer.truncate(drained);
            situation!("kv.run_abandoned", !open.runs.is_empty());
            open.runs.clear();
        }
    }

    /// Returns whether any record is staged.
    pub(crate) fn is_staged(&self) -> bool {
        self.segments().any(|open| open.staged() > 0)
    }

    /// Copies the staged records to the medium. Returns the number of bytes. `unpublished` is the first ticket whose
    /// writes are not published yet: segments with such writes are not sealed.
    pub(crate) fn copy_in<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        unpublished: Option<Ticket>,
    ) -> u64 {
        self.seal_durable(segments, ctx, unpublished);
        let mut bytes = 0;
        for open in self.open.iter_mut().chain(&mut self.full) {
            if open.staged() > 0 {
                bytes += open.staged() as u64;
                open.copy_in(segments, ctx);
            }
        }
        bytes
    }

    /// Seals the full segments whose records are durable and published, so that the cleaner may take them.
    /// `unpublished` is the first ticket whose writes are not published yet.
    pub(crate) fn seal_durable<M: Medium>(
        &mut self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        unpublished: Option<Ticket>,
    ) {
        self.sealing.retain(|seal| {
            let published = unpublished.is_none_or(|first| seal.ticket < first);
            let durable = published && matches!(segments.medium().poll(seal.ticket), Ok(true));
            if !durable && !fault!("kv.sealed_too_soon") {
                return true;
            }
            write_end(segments, ctx, seal.segment, seal.generation, seal.end);
            false
        });
    }

    /// Records that the copied bytes have been drained under `ticket`.
    pub(crate) fn drained<M: Medium>(&mut self, segments: &Segments<M>, ticket: Ticket) {
        for open in self.open.iter_mut().chain(&mut self.full) {
            if open.staged() > 0 {
                open.mark_drained(segments, ticket);
            }
        }
        for open in self.full.drain(..) {
            let Some(ticket) = open.last_ticket else {
                // Nothing was written to the segment, not even its opening: it is still free.
                segments.give(open.segment);
                self.spare.push(open.buffer);
                continue;
            };
            segments.note_sealed(open.segment);
            self.sealing.push(SealPending {
                segment: open.segment,
                generation: open.generation,
                end: open.staged_from,
                ticket,
            });
            self.spare.push(open.buffer);
        }
    }

    /// Closes open segments so old that they keep tombstones from being reclaimed. Nothing may be staged in them.
    pub(crate) fn rotate<M: Medium>(&mut self, segments: &Segments<M>) {
        let Some(limit) = segments.rotation_limit() else {
            return;
        };
        for open in &mut self.open.0 {
            let is_old = |o: &mut Box<OpenSegment>| {
                o.staged() == 0 && segments.info(o.segment).opened.load(Relaxed) < limit
            };
            self.full.extend(open.take_if(is_old).map(|old| *old));
        }
        if self.full.iter().all(|open| open.staged() == 0) {
            self.drained(segments, Ticket::DURABLE);
        }
    }

    /// Seals every open segment, so that other threads may clean them. Nothing may be staged, and everything drained
    /// must be durable. The seals are not drained: without a seal, an open reads the segment to the end of its
    /// records.
    pub(crate) fn close<M: Medium>(&mut self, segments: &Segments<M>, ctx: &mut PersistCtx) {
        debug_assert!(!self.is_staged());
        for open in &mut self.open.0 {
            self.full.extend(open.take().map(|open| *open));
        }
        self.drained(segments, Ticket::DURABLE);
        self.copy_in(segments, ctx, None);
    }
}
