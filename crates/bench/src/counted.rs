//! A medium that counts how often it is read.
//!
//! Everything is handed on to the medium inside; the calls that read far memory are counted on the
//! way, one a call, whatever its length. Writes need no counting here: every lane counts its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_pm::{Caps, Lane, Medium, Off, Poisoned, Ticket};

/// How often a [`Counted`] medium was read. Stays readable when the medium has moved into a store.
#[derive(Clone, Debug, Default)]
pub struct Reads(Arc<AtomicU64>);

impl Reads {
    /// Reads so far: words loaded, ranges copied, compared or checked.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn one_more(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A medium, and how often it was read.
#[derive(Debug)]
pub struct Counted<M> {
    inner: M,
    reads: Reads,
}

impl<M: Medium> Counted<M> {
    /// Counts the reads of `inner` from now on.
    pub fn new(inner: M) -> Counted<M> {
        Counted {
            inner,
            reads: Reads::default(),
        }
    }

    /// The count, to be kept.
    pub fn reads(&self) -> Reads {
        self.reads.clone()
    }

    /// The medium, counted no longer.
    pub fn into_inner(self) -> M {
        self.inner
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
        self.reads.one_more();
        self.inner.load(at)
    }

    #[track_caller]
    fn store(&self, lane: &mut Lane, at: Off, value: u64) {
        self.inner.store(lane, at, value);
    }

    #[track_caller]
    fn cas(&self, lane: &mut Lane, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        self.inner.cas(lane, at, old, new)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.reads.one_more();
        self.inner.copy_out(at, to);
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.reads.one_more();
        self.inner.append_out(at, len, to);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.reads.one_more();
        self.inner.matches(at, bytes)
    }

    #[track_caller]
    fn copy_in(&self, lane: &mut Lane, at: Off, parts: &[&[u8]]) {
        self.inner.copy_in(lane, at, parts);
    }

    #[track_caller]
    fn flush(&self, lane: &mut Lane, at: Off, len: usize) {
        self.inner.flush(lane, at, len);
    }

    #[track_caller]
    fn drain(&self, lane: &mut Lane) -> Ticket {
        self.inner.drain(lane)
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.inner.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.wait(ticket)
    }

    fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.settle(ticket)
    }

    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.on_turn(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.reads.one_more();
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
    fn each_way_to_read_counts_once_and_writes_do_not() {
        let medium = Counted::new(Mapped::anonymous(4096).unwrap());
        let reads = medium.reads();
        let mut lane = Lane::new(0);
        medium.copy_in(&mut lane, Off(64), &[b"far away"]);
        medium.store(&mut lane, Off(128), 7);
        medium.cas(&mut lane, Off(128), 7, 8).unwrap();
        medium.flush(&mut lane, Off(128), 8);
        let ticket = medium.drain(&mut lane);
        medium.wait(ticket).unwrap();
        medium.prefetch(Off(64), 8);
        assert_eq!(reads.count(), 0);

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
        assert_eq!(reads.count(), 5);
    }
}
