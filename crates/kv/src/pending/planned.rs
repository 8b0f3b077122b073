//! Planned writes: what publication needs to know about a record.
//!
//! ```text
//!   header, offset ──▶ PlannedRecord ─┬─ single write: drained and published under one lock
//!                                     └─ batch, group: PlannedBatch::add ── drain ──▶ pending writes ── publish
//! ```
//!
//! Each path that writes a record makes its [`PlannedRecord`] from the record's header. A write that is published later
//! also becomes a [`PlannedWrite`] of its session's [`PlannedBatch`]. The batch copies the keys of its writes to one
//! buffer. So publication reads no record to learn a key.
//!
//! # Invariants
//! KV-PLAN-1  A batch changes only until it is drained. If its ticket becomes durable later than that, its pending
//!     writes share it ([`DrainedWrite`]), and any session may publish them.

use std::ops::Range;

use farbank_pm::sync::Arc;
use farbank_pm::{Off, Ticket};
use farbank_store::Key;

use crate::format::record::{RecordHeader, RecordType};
use crate::segments::records::EntryLocation;

/// The facts about a record that its publication needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedRecord {
    pub hash: u64,
    pub seq: u64,
    pub at: Off,
    /// Bytes of the record, padding included.
    pub len: u32,
    pub db: u8,
    pub what: RecordType,
    pub large: bool,
    /// Whether it belongs to a group.
    pub grouped: bool,
    pub expires_ms: u64,
}

impl PlannedRecord {
    /// Plans the record of `len` bytes at `at`, whose header has its sequence number.
    #[inline(always)]
    pub(crate) fn new(hash: u64, at: Off, len: usize, header: &RecordHeader) -> PlannedRecord {
        PlannedRecord {
            hash,
            seq: header.seq,
            at,
            len: len as u32,
            db: header.db,
            what: header.what,
            large: header.large,
            grouped: header.member,
            expires_ms: header.expires_ms,
        }
    }
}

/// A write of a batch that is not published yet.
#[derive(Debug)]
pub(crate) struct PlannedWrite {
    pub record: PlannedRecord,
    /// Index entry that the write replaces, as located when it was staged.
    pub located: EntryLocation,
    /// Whether a later write of the same batch supersedes it. It is then never published.
    pub superseded: bool,
    /// Place of its key in [`PlannedBatch::keys`].
    key: Range<usize>,
}

/// The writes of a session between two commits, with their keys.
#[derive(Debug, Default)]
pub(crate) struct PlannedBatch {
    writes: Vec<PlannedWrite>,
    keys: Vec<u8>,
    /// Bytes of the records that the writes replace or delete, and of values that a later write of the batch supersedes.
    replaced_bytes: u64,
}

impl PlannedBatch {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the writes in the order in which they were staged.
    pub(crate) fn writes(&self) -> &[PlannedWrite] {
        &self.writes
    }

    /// Returns the writes that a stripe lists: all that no later write of the batch supersedes.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &PlannedWrite> {
        self.writes.iter().filter(|write| !write.superseded)
    }

    /// Adds the write of `key` whose record is `record`.
    pub(crate) fn add(&mut self, record: PlannedRecord, key: &[u8], located: EntryLocation) {
        let from = self.keys.len();
        self.replaced_bytes += bytes_at(&located);
        self.keys.extend_from_slice(key);
        self.writes.push(PlannedWrite {
            record,
            located,
            superseded: false,
            key: from..self.keys.len(),
        });
    }

    /// Marks the write `seq` of a key with this hash as superseded. Returns the index entry that it would have
    /// replaced. `None` if the write is not in this batch.
    pub(crate) fn supersede(&mut self, hash: u64, seq: u64) -> Option<EntryLocation> {
        let is_sought = |w: &&mut PlannedWrite| w.record.seq == seq && w.record.hash == hash;
        let write = self.writes.iter_mut().rev().find(is_sought)?;
        write.superseded = true;
        let located = std::mem::take(&mut write.located);
        self.replaced_bytes -= bytes_at(&located);
        if write.record.what == RecordType::Put {
            self.replaced_bytes += u64::from(write.record.len);
        }
        Some(located)
    }

    /// Returns the bytes that stop to be live when the batch is published, as far as is known when it is staged.
    pub(crate) fn replaced_bytes(&self) -> u64 {
        self.replaced_bytes
    }

    /// Returns the key of one of this batch's writes.
    pub(crate) fn key_of(&self, write: &PlannedWrite) -> Key<'_> {
        Key {
            db: write.record.db,
            bytes: &self.keys[write.key.clone()],
        }
    }

    /// Splits the batch into runs for publication, each with whether it is published as a whole. Adjacent members of
    /// groups form such a run. A batch in which a write supersedes a group's member is a single one (KV-GROUP-4).
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&[PlannedWrite], bool)> {
        let overtakes = |write: &PlannedWrite| write.record.grouped && write.superseded;
        let whole = self.writes.iter().any(overtakes);
        let is_joined =
            move |a: &PlannedWrite, b: &PlannedWrite| whole || a.record.grouped && b.record.grouped;
        let runs = self.writes.chunk_by(is_joined);
        runs.map(move |run| (run, whole || run[0].record.grouped))
    }

    /// Returns the run of the write with this number, if that run is published as a whole.
    fn run_of(&self, number: usize) -> Option<&[PlannedWrite]> {
        let mut end = 0;
        let (run, at_once) = self.runs().find(|(run, _)| {
            end += run.len();
            number < end
        })?;
        at_once.then_some(run)
    }

    /// Removes the writes. Keeps the memory for the next batch.
    pub(crate) fn clear(&mut self) {
        self.writes.clear();
        self.keys.clear();
        self.replaced_bytes = 0;
    }
}

/// Bytes of the record that was found for a key.
fn bytes_at(located: &EntryLocation) -> u64 {
    located
        .found
        .as_ref()
        .map_or(0, |found| u64::from(found.len))
}

/// A drained write, as its stripe lists it: its ticket and its batch (KV-PLAN-1).
#[derive(Clone, Debug)]
pub(crate) struct DrainedWrite {
    pub ticket: Ticket,
    batch: Arc<PlannedBatch>,
    /// Number of the write in its batch.
    number: usize,
}

impl DrainedWrite {
    /// Describes write `number` of `batch`, which has been drained under `ticket`.
    pub(crate) fn new(ticket: Ticket, batch: &Arc<PlannedBatch>, number: usize) -> DrainedWrite {
        let batch = Arc::clone(batch);
        DrainedWrite {
            ticket,
            batch,
            number,
        }
    }

    pub(crate) fn key(&self) -> Key<'_> {
        self.batch.key_of(&self.batch.writes[self.number])
    }

    pub(crate) fn batch(&self) -> &PlannedBatch {
        &self.batch
    }

    /// Returns the writes with which it becomes visible, itself included. `None`: it becomes visible alone.
    pub(crate) fn run(&self) -> Option<&[PlannedWrite]> {
        self.batch.run_of(self.number)
    }
}
