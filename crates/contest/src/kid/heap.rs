//! Records in far memory: their layout, writing and reading.
//!
//! ```text
//!   far memory: one partition per thread       record, in a block of whole units of 32 bytes
//!   ┌───────┬───────┬─ ... ─┬────────┐         ┌──────────┬─────────┬───────────┬─────────┬─────┬─────┬───────┐
//!   │ part 0│ part 1│       │ part 15│         │checksum:2│mem_len:2│value_len:2│version:1│pad:1│key  │value  │
//!   └───────┴───────┴─ ... ─┴────────┘         └──────────┴─────────┴───────────┴─────────┴─────┴─────┴───────┘
//!                                              0          2         4           6         7     8     24
//!
//!   place (8 bytes, a key's value in the index): pos_in_part:32 | mem_len:16 | part:8 | version:8
//! ```
//!
//! The checksum is the low 16 bits of XXH3-64 over all bytes between the checksum and the value's end. A place contains
//! everything needed to free a block without reading it.
//!
//! # Invariants
//! KID-HEAP-1  A partition consists of whole blocks from its start to `end`, and `end` only grows.
//! KID-HEAP-2  All records that a block ever holds have the same `mem_len`. It is in the same atomic word as the checksum.
//! KID-HEAP-3  A record is durable before the index refers to it. A block is freed after the index refers to another block.
//!
//! # Crash argument
//! | crash between              | recovery sees                  | and does                                          |
//! |----------------------------|--------------------------------|---------------------------------------------------|
//! | append and its drain       | no record, a torn or whole one | ends the partition there, or keeps the record     |
//! | same, in a reused block    | the same, within the partition | **ends the partition there: loses all later keys** |
//! | drain and index update     | two versions                   | keeps the higher one                              |
//!
//! The second row is a defect of the published engine. By KID-HEAP-2 recovery could have skipped the block.

use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use farbank_pm::sync::{Mutex, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned};
use xxhash_rust::xxh3::xxh3_64;

use super::lines::{HashLines, LineSlot, PENDING};
use super::lists::FreeLists;
use super::place::{RecordPlace, UNIT_BYTES, VALUE_BYTES_MAX};
use super::{KidChecksum, KidOptions};
use crate::engine::{Error, Key, OpenError};
use crate::limits::ContestLimits;

const HEADER_BYTES: usize = 24;
const BLOCK_BYTES_MAX: usize = (HEADER_BYTES + VALUE_BYTES_MAX).next_multiple_of(UNIT_BYTES);
/// Largest size of a partition that a 32-bit offset can address, in bytes.
const PARTITION_BYTES_MAX: u64 = 1 << 32;

farbank_pm::zeroed! {
    /// One cache line of counters, of one thread or of four threads.
    #[repr(C, align(64))]
    struct CountRow([AtomicU64; 8]);
}

/// Counters of one thread.
struct ThreadCounts<'a> {
    /// Bytes of the thread's partition that are blocks (KID-HEAP-1).
    end: &'a AtomicU64,
    /// Bytes among them that were appended since the engine was opened.
    appended: &'a AtomicU64,
}

/// The engine's far memory and its partitions.
pub(super) struct KidHeap<M> {
    medium: M,
    partition_bytes: u64,
    rows: Vec<CountRow>,
    lists: Vec<Mutex<FreeLists>>,
    options: KidOptions,
}

impl<M: Medium> KidHeap<M> {
    /// Returns a heap on `medium` whose partitions count as empty until [`KidHeap::recover`] has run.
    pub(super) fn new(
        medium: M,
        terms: &ContestLimits,
        options: KidOptions,
    ) -> Result<KidHeap<M>, OpenError> {
        let (has, needs, parts) = (medium.len(), terms.far_bytes, terms.threads);
        if has < needs {
            return Err(OpenError::Unfit(format!(
                "the medium has {has} bytes, the limits require {needs}"
            )));
        }
        if !(1..=256).contains(&parts) {
            return Err(OpenError::Unfit(format!(
                "{parts} threads, expected 1 to 256: each thread has one partition, and a place has 8 bits for it"
            )));
        }
        let partition_bytes = (needs / parts as u64).min(PARTITION_BYTES_MAX);
        let partition_bytes = partition_bytes - partition_bytes % UNIT_BYTES as u64;
        let lists = || FreeLists::new(partition_bytes, options.list_nodes_ahead);
        Ok(KidHeap {
            medium,
            partition_bytes,
            rows: (0..parts).map(|_| CountRow::default()).collect(),
            lists: (0..parts).map(|_| Mutex::new(lists())).collect(),
            options,
        })
    }

    pub(super) fn partitions(&self) -> usize {
        self.lists.len()
    }

    /// Returns the bytes of all blocks.
    pub(super) fn taken_bytes(&self) -> u64 {
        (0..self.partitions())
            .map(|n| self.counts(n).end.load(Relaxed))
            .sum()
    }

    /// Returns the bytes of DRAM that the free lists take.
    pub(super) fn lists_bytes(&self) -> u64 {
        self.lists
            .iter()
            .map(|lists| unpoisoned(lists.lock()).bytes())
            .sum()
    }

    /// Overwrites all partitions with zeros.
    pub(super) fn pre_heat(&self) -> Result<(), Poisoned> {
        static PIECE: [u8; 64 << 10] = [0; 64 << 10];
        let mut ctx = PersistCtx::default();
        let end = self.partition_bytes * self.partitions() as u64;
        for at in (0..end).step_by(PIECE.len()) {
            let len = (end - at).min(PIECE.len() as u64) as usize;
            self.medium.copy_in(&mut ctx, Off(at), &[&PIECE[..len]]);
        }
        let ticket = self.medium.drain(&mut ctx);
        self.medium.wait_until_durable(ticket)
    }

    /// Writes a record durably to a block of thread `number`. `old` is the place of the key's former record, if there
    /// is one. `record` is a scratch buffer.
    pub(super) fn put(
        &self,
        ctx: &mut PersistCtx,
        number: usize,
        record: &mut Vec<u8>,
        (key, value): (&Key, &[u8]),
        old: Option<RecordPlace>,
    ) -> Result<RecordPlace, Error> {
        let bytes = (HEADER_BYTES + value.len()).next_multiple_of(UNIT_BYTES);
        let block = self.take(number, bytes).ok_or(Error::Full)?;
        let version = old.map_or(block.version(), |old| old.version().wrapping_add(1));
        let place = block.with_version(version);
        record.clear();
        record.extend_from_slice(&[0; 2]);
        record.extend_from_slice(&(place.block_bytes() as u16).to_le_bytes());
        record.extend_from_slice(&(value.len() as u16).to_le_bytes());
        record.extend_from_slice(&[version, 0]);
        record.extend_from_slice(key);
        record.extend_from_slice(value);
        let checksum = self.checksum(&record[2..]);
        record[..2].copy_from_slice(&checksum.to_le_bytes());
        self.medium.copy_in(ctx, self.off(place), &[record]);
        let ticket = self.medium.drain(ctx);
        self.medium.wait_until_durable(ticket)?;
        Ok(place)
    }

    /// Takes a block of `bytes` for thread `number`. The block comes from the end of the partition until half of the
    /// partition has been appended, and then from the free lists. If that source is empty, it comes from the other one.
    fn take(&self, number: usize, bytes: usize) -> Option<RecordPlace> {
        let pop = || unpoisoned(self.lists[number].lock()).pop(bytes);
        if self.counts(number).appended.load(Relaxed) < self.partition_bytes / 2 {
            self.append(number, bytes).or_else(pop)
        } else {
            pop().or_else(|| self.append(number, bytes))
        }
    }

    fn append(&self, number: usize, bytes: usize) -> Option<RecordPlace> {
        let ThreadCounts { end, appended } = self.counts(number);
        let fits = |at| Some(at + bytes as u64).filter(|end| *end <= self.partition_bytes);
        // Two threads may share a partition: see `PartitionRule::Random`.
        let at = end.fetch_update(Relaxed, Relaxed, fits).ok()?;
        appended.fetch_add(bytes as u64, Relaxed);
        Some(RecordPlace::new(number, at, bytes, 0))
    }

    /// Puts the block at `place` on the free lists of thread `number`.
    pub(super) fn free(&self, number: usize, place: RecordPlace) {
        unpoisoned(self.lists[number].lock()).push(place);
    }

    /// Replaces `out` with the value at `place`. Another thread may be overwriting the record, so the length read from
    /// far memory can be wrong. It is therefore limited to the size of the block.
    pub(super) fn value(&self, place: RecordPlace, out: &mut Vec<u8>) {
        let at = self.off(place);
        let header = self.medium.load(at);
        let value_bytes = (header >> 32) as usize & 0xffff;
        let value_bytes = value_bytes.min(place.block_bytes() - HEADER_BYTES);
        out.clear();
        self.medium
            .append_out(at.plus(HEADER_BYTES as u64), value_bytes, out);
    }

    /// Fills the index from far memory. Reads every partition from its start to the first record that is not whole. The
    /// places it enters have version 0, whatever the version in the record.
    pub(super) fn recover(&self, lines: &HashLines) -> Result<(), OpenError> {
        for part in 0..self.partitions() {
            let mut at = 0;
            while let Some((block_bytes, version, key)) = self.whole_record(part, at) {
                let here = RecordPlace::new(part, at, block_bytes, 0);
                match lines.find_or_reserve(&key).0 {
                    LineSlot::New(val) => val.store(here.0, Release),
                    LineSlot::Old(val) => {
                        debug_assert_ne!(val.load(Acquire), PENDING);
                        let there = self.medium.load(self.off(RecordPlace(val.load(Acquire))));
                        if version > (there >> 48) as u8 {
                            val.store(here.0, Release);
                        }
                    }
                    LineSlot::None => {
                        let what = "far memory holds more keys than the limits";
                        return Err(OpenError::Unfit(what.into()));
                    }
                }
                at += block_bytes as u64;
            }
            self.counts(part).end.store(at, Relaxed);
        }
        Ok(())
    }

    /// Returns block size, version and key of the record at `at`, if its checksum is right.
    fn whole_record(&self, part: usize, at: u64) -> Option<(usize, u8, Key)> {
        let mut bytes = [0; BLOCK_BYTES_MAX];
        let room = (self.partition_bytes - at).min(bytes.len() as u64) as usize;
        let bytes = bytes
            .get_mut(..room)
            .filter(|bytes| bytes.len() >= UNIT_BYTES)?;
        let off = self.off(RecordPlace::new(part, at, 0, 0));
        let whole = self
            .medium
            .copy_out_if(off, bytes, &|bytes| self.checksummed_bytes(bytes));
        let key = bytes[8..HEADER_BYTES]
            .try_into()
            .expect("a key is 16 bytes");
        whole.then(|| (u16_at(bytes, 2), bytes[6], key))
    }

    /// Returns the number of bytes that the block's checksum covers. Returns 0 if the checksum is wrong or a length is
    /// impossible.
    fn checksummed_bytes(&self, block: &[u8]) -> usize {
        let (block_bytes, value_bytes) = (u16_at(block, 2), u16_at(block, 4));
        let record_bytes = HEADER_BYTES + value_bytes;
        let plausible = block_bytes.is_multiple_of(UNIT_BYTES)
            && (record_bytes..=block.len()).contains(&block_bytes);
        let holds = || self.checksum(&block[2..record_bytes]) as usize == u16_at(block, 0);
        if plausible && holds() {
            record_bytes
        } else {
            0
        }
    }

    fn checksum(&self, bytes: &[u8]) -> u16 {
        match self.options.checksum {
            KidChecksum::None => 0,
            KidChecksum::Crc32c => crc32c::crc32c(bytes) as u16,
            KidChecksum::Xxh3 => xxh3_64(bytes) as u16,
        }
    }

    fn off(&self, place: RecordPlace) -> Off {
        Off(place.part() as u64 * self.partition_bytes + place.at())
    }

    fn counts(&self, number: usize) -> ThreadCounts<'_> {
        let (row, first) = match self.options.padded {
            true => (number, 0),
            false => (number / 4, number % 4 * 2),
        };
        let words = &self.rows[row].0;
        ThreadCounts {
            end: &words[first],
            appended: &words[first + 1],
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}
