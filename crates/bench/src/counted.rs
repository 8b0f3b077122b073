//! Medium that counts the operations on it.
//!
//! All operations are forwarded to the inner medium. They are counted for each thread separately. So a driver can
//! determine the operations of one request, and counting makes no thread wait for another.

use std::io;
use std::ops::{AddAssign, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use farbank_pm::{Caps, LINE, Medium, Off, PersistCounters, PersistCtx, Poisoned, Ticket, WORD};

/// Bytes that persistent memory media read and write at a time.
const XPLINE: u64 = 256;
/// Number of counter shards. If there are more threads, some share a shard.
const SHARDS: usize = 64;
/// Marks that there is no line.
const NOWHERE: u64 = u64::MAX;

/// Counts of medium operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediumCounts {
    /// Calls that load words, or that copy, compare or checksum ranges.
    pub reads: u64,
    /// Locations read. A read counts unless its lines overlap or adjoin those of the thread's previous read in the
    /// same operation.
    pub places: u64,
    /// Drains that had something to order.
    pub fences: u64,
    /// Bytes copied in or stored.
    pub bytes: u64,
    /// 64-byte lines written back, counted once per line and call.
    pub lines: u64,
    /// 256-byte XPLines written back. Consecutive writes of a thread to one XPLine before its next drain count once.
    pub xplines: u64,
}

impl AddAssign for MediumCounts {
    fn add_assign(&mut self, other: MediumCounts) {
        self.reads += other.reads;
        self.places += other.places;
        self.fences += other.fences;
        self.bytes += other.bytes;
        self.lines += other.lines;
        self.xplines += other.xplines;
    }
}

impl Sub for MediumCounts {
    type Output = MediumCounts;

    fn sub(self, other: MediumCounts) -> MediumCounts {
        MediumCounts {
            reads: self.reads - other.reads,
            places: self.places - other.places,
            fences: self.fences - other.fences,
            bytes: self.bytes - other.bytes,
            lines: self.lines - other.lines,
            xplines: self.xplines - other.xplines,
        }
    }
}

/// Counters of the threads with one shard number, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    reads: AtomicU64,
    places: AtomicU64,
    fences: AtomicU64,
    bytes: AtomicU64,
    lines: AtomicU64,
    xplines: AtomicU64,
    /// First and last line of the location that was read last.
    last_read: [AtomicU64; 2],
    /// Last XPLine written since the last drain.
    last_xpline: AtomicU64,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            reads: AtomicU64::new(0),
            places: AtomicU64::new(0),
            fences: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            xplines: AtomicU64::new(0),
            last_read: [const { AtomicU64::new(NOWHERE) }; 2],
            last_xpline: AtomicU64::new(NOWHERE),
        }
    }

    fn counts(&self) -> MediumCounts {
        MediumCounts {
            reads: self.reads.load(Relaxed),
            places: self.places.load(Relaxed),
            fences: self.fences.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            lines: self.lines.load(Relaxed),
            xplines: self.xplines.load(Relaxed),
        }
    }

    fn read(&self, at: Off, len: usize) {
        self.reads.fetch_add(1, Relaxed);
        let first = at.0 / LINE as u64;
        let last = (at.0 + len as u64).saturating_sub(1) / LINE as u64;
        let [from, to] = self.last_read.each_ref().map(|line| line.load(Relaxed));
        let goes_on = from != NOWHERE && first <= to + 1 && from <= last + 1;
        let [from, to] = match goes_on {
            true => [from.min(first), to.max(last)],
            false => [first, last],
        };
        self.places.fetch_add(u64::from(!goes_on), Relaxed);
        self.last_read[0].store(from, Relaxed);
        self.last_read[1].store(to, Relaxed);
    }

    fn written_back(&self, at: Off, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (at.0 / XPLINE, (at.0 + len as u64 - 1) / XPLINE);
        let known = self.last_xpline.swap(last, Relaxed) == first;
        let count = last - first + u64::from(!known);
        self.xplines.fetch_add(count, Relaxed);
    }
}

/// Counters of a [`Counted`] medium. They stay readable after the medium has moved into a store.
#[derive(Clone, Debug)]
pub struct Meter(Arc<[Shard; SHARDS]>);

impl Meter {
    fn new() -> Meter {
        Meter(Arc::new(std::array::from_fn(|_| Shard::new())))
    }

    /// Returns the counts of all threads.
    #[must_use]
    pub fn total(&self) -> MediumCounts {
        let mut total = MediumCounts::default();
        self.0.iter().for_each(|shard| total += shard.counts());
        total
    }

    /// Returns the counts of this thread and of other threads in its shard.
    #[must_use]
    pub fn mine(&self) -> MediumCounts {
        self.shard().counts()
    }

    /// Marks the start of an operation of this thread. Its first read counts as a new location.
    pub fn begin(&self) {
        self.shard().last_read[0].store(NOWHERE, Relaxed);
    }

    fn shard(&self) -> &Shard {
        &self.0[thread_number() % SHARDS]
    }
}

fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Medium that counts the operations on an inner medium.
#[derive(Debug)]
pub struct Counted<M> {
    inner: M,
    meter: Meter,
}

impl<M: Medium> Counted<M> {
    /// Wraps `inner` with all counts at 0.
    pub fn new(inner: M) -> Counted<M> {
        Counted {
            inner,
            meter: Meter::new(),
        }
    }

    /// Returns a handle to the counters.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// Returns the inner medium.
    pub fn into_inner(self) -> M {
        self.inner
    }

    /// Adds the changes of `ctx`'s counters since `before`.
    fn did(&self, ctx: &PersistCtx, before: PersistCounters) {
        let (now, shard) = (ctx.counters, self.meter.shard());
        shard.fences.fetch_add(now.fences - before.fences, Relaxed);
        shard.bytes.fetch_add(now.bytes - before.bytes, Relaxed);
        shard.lines.fetch_add(now.lines - before.lines, Relaxed);
    }

    fn read(&self, at: Off, len: usize) {
        self.meter.shard().read(at, len);
    }
}

impl<M: Medium> Medium for Counted<M> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }

    fn load(&self, at: Off) -> u64 {
        self.read(at, WORD);
        self.inner.load(at)
    }

    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        let before = ctx.counters;
        self.inner.store(ctx, at, value);
        self.did(ctx, before);
    }

    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        let before = ctx.counters;
        let found = self.inner.cas(ctx, at, old, new);
        self.did(ctx, before);
        found
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.read(at, to.len());
        self.inner.copy_out(at, to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.read(at, len);
        self.inner.append_out(at, len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.read(at, bytes.len());
        self.inner.matches(at, bytes)
    }

    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        self.meter.shard().written_back(at, len);
        let before = ctx.counters;
        self.inner.copy_in(ctx, at, parts);
        self.did(ctx, before);
    }

    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        self.meter.shard().written_back(at, len);
        let before = ctx.counters;
        self.inner.flush(ctx, at, len);
        self.did(ctx, before);
    }

    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        self.meter.shard().last_xpline.store(NOWHERE, Relaxed);
        let before = ctx.counters;
        let ticket = self.inner.drain(ctx);
        self.did(ctx, before);
        ticket
    }

    fn make_visible(&self, ctx: &mut PersistCtx) {
        let before = ctx.counters;
        self.inner.make_visible(ctx);
        self.did(ctx, before);
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.inner.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.wait(ticket)
    }

    fn wait_until_durable(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.wait_until_durable(ticket)
    }

    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        self.inner.unreadable(at, len)
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.on_durable(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.read(at, len);
        self.inner.crc(at, len, seed)
    }

    fn prefetch(&self, at: Off, len: usize) {
        self.inner.prefetch(at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbank_pm::media::Mapped;

    #[test]
    fn each_kind_of_read_counts_once_and_writes_do_not() {
        let medium = Counted::new(Mapped::anonymous(4096).unwrap());
        let meter = medium.meter();
        let mut ctx = PersistCtx::new(0);
        medium.copy_in(&mut ctx, Off(64), &[b"far away"]);
        medium.store(&mut ctx, Off(128), 7);
        medium.cas(&mut ctx, Off(128), 7, 8).unwrap();
        medium.flush(&mut ctx, Off(128), 8);
        let ticket = medium.drain(&mut ctx);
        medium.wait(ticket).unwrap();
        medium.prefetch(Off(64), 8);
        assert_eq!(meter.total().reads, 0);

        let mut bytes = [0; 8];
        medium.copy_out(Off(64), &mut bytes);
        assert_eq!(&bytes, b"far away");
        let mut more = Vec::new();
        medium.append_out(Off(64), 3, &mut more);
        assert_eq!(more, b"far");
        assert!(medium.matches(Off(64), b"far away"));
        assert_eq!(medium.load(Off(128)), 8);
        assert_eq!(
            medium.crc(Off(64), 8, 0),
            medium.into_inner().crc(Off(64), 8, 0)
        );
        assert_eq!(meter.total().reads, 5);
        assert_eq!(meter.mine(), meter.total());
    }

    #[test]
    fn writes_match_the_context_counters_and_blocks_count_once() {
        let medium = Counted::new(Mapped::anonymous(8192).unwrap());
        let meter = medium.meter();
        let mut ctx = PersistCtx::new(0);
        // 240 bytes at offset 64: lines 1 to 4, XPLines 0 and 1.
        medium.copy_in(&mut ctx, Off(64), &[&[1; 240]]);
        // On the same XPLine, so combined with it. After the drain, a write to this XPLine counts again.
        medium.store(&mut ctx, Off(448), 7);
        medium.flush(&mut ctx, Off(448), 8);
        medium.drain(&mut ctx);
        medium.store(&mut ctx, Off(456), 7);
        medium.flush(&mut ctx, Off(456), 8);
        medium.drain(&mut ctx);
        let counts = meter.total();
        assert_eq!(counts.bytes, ctx.counters.bytes);
        assert_eq!(counts.lines, ctx.counters.lines);
        assert_eq!((counts.fences, counts.lines), (2, 6));
        assert_eq!(counts.xplines, 3);
    }

    #[test]
    fn adjacent_reads_are_one_location_until_the_next_operation() {
        let medium = Counted::new(Mapped::anonymous(8192).unwrap());
        let meter = medium.meter();
        let mut bytes = [0; 100];
        for _ in 0..2 {
            meter.begin();
            medium.load(Off(1024));
            medium.copy_out(Off(1032), &mut bytes);
            medium.copy_out(Off(1132), &mut bytes);
            medium.load(Off(1016));
        }
        medium.load(Off(4096));
        assert_eq!((meter.total().reads, meter.total().places), (9, 3));
    }
}
