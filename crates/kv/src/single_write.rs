//! A write that is a batch by itself: numbered, made durable and published in one go.
//!
//! ```text
//!   fetch ahead ── lock stripe ── number ── copy in ── look up ── drain ── swing the index ── unlock
//! ```
//!
//! A batch of several lists its writes, lets go of the stripes and takes each again to publish (W2).
//! Where a drain is a fence, a single write holds its stripe from its number to its publication: a
//! few hundred nanoseconds, in which nobody can see it, so that it need not be listed, found again
//! and taken off. Nothing it looks at can be taken away meanwhile: the cleaner swings entries under the
//! same lock before it gives a segment up, so that no epoch is pinned either.
//!
//! The record is on its way to far memory before what it replaces is read there: the two take about as
//! long, and neither needs the other. Only the choice of a segment comes first, and for that the place of
//! the first entry that looks like the key's will do; nothing else depends on it. Of a key that the read cache holds
//! the index is not waited for before that, and the record never: the slot says where it lies and what it is. Nor is it
//! while a session writes one new key after another (a load): the next key is expected to be new.
//!
//! # Invariants
//! A1  Only with nothing staged, nothing unpublished, and none of the key's writes on its way: what the
//!     index names is the newest value (W2), and the drain covers this write alone.
//! A2  The index is swung after the drain, in the same holding of the lock (N1, N3).
//! A3  Whatever does not fit (room, a large value, a segment to be sealed) goes the way of batches.
//!
//! # Crash argument
//! As for a batch: before the drain nothing was told to anyone, and recovery keeps the record or pads
//! it; after it the record is whole.

use farbank_pm::{Drain, Medium, Off, Ticket};

use crate::engine::Engine;
use crate::index::{BucketRef, Candidate};
use crate::lookup::FoundRecord;
use crate::record::body_crc;
use crate::session::{KvSession, NewRecord, header_of};
use crate::store::{Error, Key, Ops, Value};

/// From so many new keys in a row on, the next one is expected to be new.
const NEWS_EXPECTED: u32 = 4;
/// The engine is told of what was counted at least every this part of a segment: what it counts with is read by
/// every set, and dear to write while others read it.
const PART_TOLD: u64 = 8;
/// A session that writes one value at a time looks whether it owes cleaning each time it has appended so many bytes.
const UNPAID_BYTES: u64 = 4 << 10;

impl<M: Medium> KvSession<M> {
    /// Writes one value and commits.
    pub(crate) fn set_alone(
        &mut self,
        key: Key<'_>,
        value: Value<'_>,
    ) -> Result<(u64, Ticket), Error> {
        let draft = NewRecord {
            key,
            value: Some(value),
        };
        self.admit(&draft)?;
        let hash = self.engine.geometry.hash(key.db, key.bytes);
        self.engine.fetch_for_write(hash);
        match self.write_alone(hash, &draft)? {
            Some(written) => {
                self.note(&written);
                if self.untold.written * PART_TOLD >= self.engine.geometry.payload() as u64 {
                    self.flush_counters();
                }
                self.unpin(); // It was a batch: what was read before it is done with.
                if self.unpaid >= UNPAID_BYTES {
                    self.keep_pace();
                }
                Ok((written.version, Ticket::DURABLE))
            }
            None => {
                let version = self.put(key, value)?;
                Ok((version, self.commit_batch()?))
            }
        }
    }

    /// The short way; `None`, and nothing done, if it cannot be taken (A1, A3).
    fn write_alone(
        &mut self,
        hash: u64,
        draft: &NewRecord<'_>,
    ) -> Result<Option<SingleWrite>, Error> {
        let engine = &*self.engine;
        let Some(value) = draft.value.filter(|_| self.goes_alone()) else {
            return Ok(None);
        };
        let mut header = header_of(draft);
        let len = engine.record_len(&header);
        if len > engine.geometry.inline_max() || !self.fits(len) {
            return Ok(None);
        }
        let body = [draft.key.bytes, value.bytes];
        header.body_crc = body_crc(body[0], body[1]);
        let mut locked = engine.stripe(hash).lock();
        if locked.of(hash).next().is_some() {
            return Ok(None);
        }
        let guess = self.guess(hash, draft.key);
        let class = engine.lifetime(guess.at());
        let mut open = self.shared.parked.lock().expect("no holder panics");
        if !open.takes_alone(engine, class, len) {
            return Ok(None);
        }
        header.seq = locked.next_seq();
        let at = open.next(class);
        open.copy_in_alone(engine, &mut self.ctx, class, &header, &body);
        // While the record drains: what it replaces, and growth.
        let mut spot = engine.index.spot(hash);
        let old = engine.replaced(&spot, &guess, draft.key);
        let grown = old.is_none() && !engine.index.has_room(&spot);
        if grown {
            spot = engine.lengthen(&spot);
        }
        let ticket = engine.medium().drain(&mut self.ctx);
        open.drained_alone(engine, class, ticket);
        drop(open);
        engine.poll(ticket)?; // A2: what could not be drained is not published.
        let cached = match guess {
            ReplacedGuess::Held(_) => engine.read_cache.take(hash), // H2: under this lock nobody else fills a slot.
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
        self.count_put(old, at, len as u32, header.db, header.expires_ms);
        Ok(Some(SingleWrite {
            version: header.seq,
            len: len as u32,
            old,
            grown,
        }))
    }

    /// Whether a value may go the short way now (A1).
    fn goes_alone(&self) -> bool {
        self.engine.caps().drain == Drain::Fence
            && !self.has_pending()
            && !self.undrained_extents
            && !self.log.has_full()
    }

    /// Under the stripe's lock: what a write of `key` most likely replaces, as far as that can be told without far
    /// memory; what will be looked at is on its way.
    #[inline(always)]
    fn guess(&self, hash: u64, key: Key<'_>) -> ReplacedGuess {
        let engine = &*self.engine;
        if let Some(held) = engine.read_cache.find(hash, key) {
            engine.fetch_for_count(held.at);
            return ReplacedGuess::Held(engine.found(held.at, held.raw));
        }
        if self.consecutive_inserts >= NEWS_EXPECTED {
            return ReplacedGuess::New;
        }
        let likely = engine.likely(&engine.index.spot(hash));
        likely.map_or(ReplacedGuess::New, ReplacedGuess::Likely)
    }

    /// Without a lock: counts what was written, and does what it has left to do.
    #[inline]
    fn note(&mut self, written: &SingleWrite) {
        let old = written.old;
        self.consecutive_inserts = match old {
            None => self.consecutive_inserts.saturating_add(1),
            Some(_) => 0,
        };
        self.untold.live += i64::from(written.len) - old.map_or(0, |old| i64::from(old.len));
        self.untold.written += u64::from(written.len);
        self.unpaid += u64::from(written.len);
        self.show_outstanding();
        self.engine.free_replaced(old);
        if written.grown {
            self.engine.grow_index();
        }
    }
}

/// What a write by itself has done.
struct SingleWrite {
    version: u64,
    /// Bytes of its record.
    len: u32,
    /// What it replaced.
    old: Option<FoundRecord>,
    /// Whether the index has more groups to split now.
    grown: bool,
}

/// What a write most likely replaces.
enum ReplacedGuess {
    /// The read cache holds it.
    Held(FoundRecord),
    /// The first entry that looks like the key's.
    Likely(Candidate),
    /// Nothing.
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
    /// Under the stripe's lock: what a write of `key` replaces, and the entry that names it.
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
