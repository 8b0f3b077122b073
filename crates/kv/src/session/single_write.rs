//! A write that is a batch by itself: numbered, made durable and published under one lock.
//!
//! ```text
//!   prefetch ── lock stripe ── number ── copy in ── look up ── drain ── update the index ── unlock
//! ```
//!
//! A batch of several writes lists them, releases the stripes, and locks each stripe again to publish (KV-PEND-2). Where a
//! drain is a fence, a single write instead holds its stripe from its number to its publication, for a few hundred
//! nanoseconds. No other thread sees the write before it is published, so it is neither listed nor unlisted. No epoch
//! is pinned either: the cleaner updates entries under the same lock before it recycles a segment, so nothing that
//! this write reads can be reused meanwhile.
//!
//! The new record is on its way to far memory before the record that it replaces is read there. The two take about as
//! long, and neither depends on the other. Only the choice of the segment comes first. It needs the offset of the old
//! record, and for that the first entry whose tag matches is good enough.
//!
//! Two cases avoid that wait. If the read cache holds the key, its slot has the old record's offset and header, so
//! the old record is never read. If a session writes one new key after another (a load), the next key is assumed to
//! be new.
//!
//! # Invariants
//! KV-SINGLE-1  Only a session with nothing staged and nothing unpublished takes this path, and only if no other write of the
//!     key is listed and no session guards the key (KV-PEND-6). So the index refers to the key's newest value
//!     (KV-PEND-2), and the drain covers this write alone.
//! KV-SINGLE-2  The index is updated after the drain, under the same lock (KV-COMMIT-1, KV-COMMIT-3).
//! KV-SINGLE-3  Writes that do not fit (no room, a large value, a segment that must be sealed) or that a swap of databases
//!     holds back take the batch path.
//!
//! # Crash argument
//! As for a batch. Before the drain the write is neither acknowledged nor visible, and recovery keeps the record or
//! pads it. After the drain the record is whole.

use farbank_pm::sync::unpoisoned;
use farbank_pm::{Drain, Medium, Off, Ticket};

use crate::engine::Engine;
use crate::format::record::body_crc;
use crate::index::{BucketRef, Candidate};
use crate::pending::planned::PlannedRecord;
use crate::segments::records::FoundRecord;
use crate::session::{KvSession, NewRecord, header_of, version_of};
use farbank_store::{Error, Key, Ops, Value};

/// Number of consecutive writes of new keys after which the next key is assumed to be new.
const INSERTS_UNTIL_EXPECTED: u32 = 4;
/// A session adds its counts to the engine's at least once for each such part of a segment that it appends. The
/// engine's counters are read by every set, so updating them is expensive.
const COUNTER_FLUSH_PARTS: u64 = 8;
/// Bytes that a session of single writes appends before it checks whether it owes cleaning.
const UNPAID_BYTES: u64 = 4 << 10;

impl<M: Medium> KvSession<M> {
    /// Writes one value and commits.
    pub(crate) fn put_single(
        &mut self,
        key: Key<'_>,
        value: Value<'_>,
    ) -> Result<(u64, Ticket), Error> {
        let named = NewRecord {
            key,
            value: Some(value),
        };
        self.admit(&named)?;
        let stored = self.stored(key);
        let draft = NewRecord {
            key: stored,
            ..named
        };
        let hash = self.engine.geometry().hash(stored.db, stored.bytes);
        self.engine.fetch_for_write(hash);
        match self.try_write_single(hash, &draft)? {
            Some(written) => {
                self.note(&written);
                if self.accounts.written * COUNTER_FLUSH_PARTS
                    >= self.engine.geometry().payload() as u64
                {
                    self.flush_counters();
                }
                self.unpin(); // End of a batch: earlier reads are over.
                if self.accounts.unpaid >= UNPAID_BYTES {
                    self.clean_for_appends();
                }
                Ok((written.version, Ticket::DURABLE))
            }
            None => {
                let version = self.put(key, value)?;
                Ok((version, self.commit_batch()?))
            }
        }
    }

    /// Writes on the short path. Returns `None`, with no effect, if that is not possible (KV-SINGLE-1, KV-SINGLE-3).
    fn try_write_single(
        &mut self,
        hash: u64,
        draft: &NewRecord<'_>,
    ) -> Result<Option<SingleWrite>, Error> {
        let engine = &*self.engine;
        let Some(value) = draft.value.filter(|_| self.can_write_single()) else {
            return Ok(None);
        };
        let mut header = header_of(draft);
        let len = engine.segments.record_len(&header);
        if len > engine.geometry().inline_max() || !self.fits(len) {
            return Ok(None);
        }
        let body = [draft.key.bytes, value.bytes];
        header.body_crc = body_crc(body[0], body[1]);
        let mut locked = engine.stripe(hash).lock();
        if locked.of(hash).next().is_some()
            || locked.is_guarded(hash, self.id())
            || self.is_held_back()
        {
            return Ok(None);
        }
        let guess = self.guess(hash, draft.key);
        let class = engine.lifetime(guess.at());
        let mut open = unpoisoned(self.shared.parked.lock());
        if !open.has_room_for_single(&engine.segments, class, len) {
            return Ok(None);
        }
        header.seq = locked.next_seq();
        let at = open.next(class);
        open.copy_in_single(&engine.segments, &mut self.ctx, class, &header, &body);
        // While the record drains: look up the old record, and make room in the index.
        let mut spot = engine.index.spot(hash);
        let old = engine.replaced(&spot, &guess, draft.key);
        let grown = old.is_none() && !engine.index.has_room(&spot);
        if grown {
            spot = engine.grow_group(&spot);
        }
        let ticket = engine.medium().drain(&mut self.ctx);
        open.mark_single_drained(&engine.segments, class, ticket);
        drop(open);
        engine.poll(ticket)?; // KV-SINGLE-2: a write that could not be drained is not published.
        let cached = match guess {
            ReplacedGuess::Held(_) => engine.read_cache.take(hash), // KV-CACHE-2: only this lock's holder fills a slot.
            _ => None,
        };
        match &old {
            Some((hit, _)) => engine.index.update_entry(&spot, hit, at),
            None => {
                let placed = engine.index.place(&spot, at);
                debug_assert!(placed, "room was made");
            }
        }
        if let Some(place) = cached {
            engine.read_cache.put(place, hash, at, &header.raw(), body);
        }
        let old = old.map(|(_, found)| found);
        engine.backup.note_replaced(hash, old.as_ref());
        let record = PlannedRecord::new(hash, at, len, &header);
        self.count_put(old, &record);
        Ok(Some(SingleWrite {
            version: version_of(record.seq, record.db),
            len: record.len,
            old,
            grown,
        }))
    }

    /// Returns whether a value may take the short path now (KV-SINGLE-1).
    fn can_write_single(&self) -> bool {
        self.engine.caps().drain == Drain::Fence
            && !self.has_pending()
            && !self.batch.has_unshown_extents
            && !self.log.has_full()
    }

    /// Guesses what a write of `key` replaces, without reading far memory, and prefetches what will be read. The
    /// caller holds the stripe's lock.
    #[inline(always)]
    fn guess(&self, hash: u64, key: Key<'_>) -> ReplacedGuess {
        let engine = &*self.engine;
        if let Some(held) = engine.read_cache.find(hash, key) {
            engine.segments.fetch_for_count(held.at);
            return ReplacedGuess::Held(engine.segments.found(held.at, held.raw));
        }
        if self.batch.consecutive_inserts >= INSERTS_UNTIL_EXPECTED {
            return ReplacedGuess::New;
        }
        let likely = engine.likely(&engine.index.spot(hash));
        likely.map_or(ReplacedGuess::New, ReplacedGuess::Likely)
    }

    /// Counts a write and does the work that it has postponed. The caller holds no lock.
    #[inline]
    fn note(&mut self, written: &SingleWrite) {
        let old = written.old;
        self.batch.consecutive_inserts = match old {
            None => self.batch.consecutive_inserts.saturating_add(1),
            Some(_) => 0,
        };
        self.accounts.live += i64::from(written.len) - old.map_or(0, |old| i64::from(old.len));
        self.accounts.written += u64::from(written.len);
        self.accounts.unpaid += u64::from(written.len);
        self.show_outstanding();
        self.engine.free_replaced(old);
        if written.grown {
            self.engine.grow_index();
        }
    }
}

/// Result of a write on the short path.
struct SingleWrite {
    version: u64,
    /// Length of its record in bytes.
    len: u32,
    /// The record that it replaced.
    old: Option<FoundRecord>,
    /// Whether it lengthened a group of the index, so that the index may have to split groups.
    grown: bool,
}

/// Guess at the record that a write replaces.
enum ReplacedGuess {
    /// The record held by the read cache.
    Held(FoundRecord),
    /// The first entry whose tag matches the key.
    Likely(Candidate),
    /// No record: the key is assumed to be new.
    New,
}

impl ReplacedGuess {
    #[inline]
    fn at(&self) -> Option<Off> {
        match self {
            ReplacedGuess::Held(found) => Some(found.at),
            ReplacedGuess::Likely(hit) => Some(hit.at()),
            ReplacedGuess::New => None,
        }
    }
}

impl<M: Medium> Engine<M> {
    /// Returns the record that a write of `key` replaces, and its index entry. The caller holds the stripe's lock.
    #[inline(always)]
    fn replaced(
        &self,
        spot: &BucketRef,
        guess: &ReplacedGuess,
        key: Key<'_>,
    ) -> Option<(Candidate, FoundRecord)> {
        let guessed = match guess {
            ReplacedGuess::Held(found) => {
                let named = self.index.hit(spot, found.at);
                named.map(|hit| (hit, *found))
            }
            ReplacedGuess::Likely(hit) => self.follow(*hit, key),
            ReplacedGuess::New => None,
        };
        guessed.or_else(|| self.seek_at(spot, key, 0, |_| ()))
    }
}
