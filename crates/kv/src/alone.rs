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
//! neither is waited for: its slot says where the record lies that is replaced, and what that is. While a session writes
//! one new key after another (a load), not even that is waited for: the next key is expected to be new.
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

use farbank_pm::{Drain, Medium, Ticket};

use crate::record::body_crc;
use crate::session::{Draft, Worker, header_of};
use crate::store::{Error, Key, Ops, Value};

/// From so many new keys in a row on, the next one is expected to be new.
const NEWS_EXPECTED: u32 = 4;
/// The engine is told of what was counted at least every this part of a segment: what it counts with is read by
/// every set, and dear to write while others read it.
const PART_TOLD: u64 = 8;

impl<M: Medium> Worker<M> {
    /// Writes one value and commits.
    pub(crate) fn set_alone(
        &mut self,
        key: Key<'_>,
        value: Value<'_>,
    ) -> Result<(u64, Ticket), Error> {
        let draft = Draft {
            key,
            value: Some(value),
        };
        self.admit(&draft)?;
        let hash = self.engine.geometry.hash(key.db, key.bytes);
        self.engine.fetch_for_write(hash);
        match self.write_alone(hash, &draft)? {
            Some(version) => {
                if self.untold.written * PART_TOLD >= self.engine.geometry.payload() as u64 {
                    self.tell();
                }
                self.unpin(); // It was a batch: what was read before it is done with.
                Ok((version, Ticket::DURABLE))
            }
            None => {
                let version = self.put(key, value)?;
                Ok((version, self.commit_batch()?))
            }
        }
    }

    /// The short way; `None`, and nothing done, if it cannot be taken (A1, A3).
    fn write_alone(&mut self, hash: u64, draft: &Draft<'_>) -> Result<Option<u64>, Error> {
        let engine = &*self.engine;
        let mut header = header_of(draft);
        let len = engine.record_len(&header);
        let fits = len <= engine.geometry.inline_max()
            && engine.occupied() + len as u64 <= engine.capacity();
        if !fits || engine.caps().drain != Drain::Fence || self.has_pending() || self.adrift {
            return Ok(None);
        }
        let Some(value) = draft.value else {
            return Ok(None);
        };
        header.body_crc = body_crc(draft.key.bytes, value.bytes);
        // The group's word has had time to arrive; its line has until the record is copied in.
        let mut spot = engine.index.spot(hash);
        engine.index.touch(&spot);
        let mut locked = engine.stripe(hash).lock();
        if !engine.index.is_current(&spot) {
            spot = engine.index.spot(hash);
        }
        if locked.of(hash).next().is_some() {
            return Ok(None);
        }
        let held = engine.read_cache.find(hash, draft.key);
        let held = held.map(|held| engine.found(held.at, held.raw));
        let news = self.news >= NEWS_EXPECTED;
        let likely = match held {
            Some(found) => {
                engine.fetch_for_count(found.at);
                None
            }
            None if news => None,
            None => engine.likely(&spot),
        };
        let before = held.map(|found| found.at);
        let class = engine.lifetime(before.or(likely.map(|hit| hit.at())));
        if !self.log.takes_alone(engine, class, len) {
            return Ok(None);
        }
        header.seq = locked.next_seq();
        let at = self.log.next(class);
        let body = [draft.key.bytes, value.bytes];
        self.log
            .copy_in_alone(engine, &mut self.lane, class, &header, &body);
        // While the record drains: what it replaces, and growth.
        let followed = match (held, likely) {
            (Some(found), _) => {
                let named = engine.index.hit(&spot, found.at);
                named.map(|hit| (hit, found))
            }
            (None, Some(hit)) => engine.follow(hit, draft.key),
            (None, None) => None,
        };
        let old = match followed {
            Some(followed) => Some(followed),
            None => engine.seek_at(&spot, draft.key, 0, |_| ()),
        };
        let grown = old.is_none() && !engine.index.has_room(&spot);
        if grown {
            spot = engine.lengthen(&spot);
        }
        let ticket = engine.medium().drain(&mut self.lane);
        self.log.drained_alone(engine, class, ticket);
        engine.poll(ticket)?; // A2: what could not be drained is not published.
        let cached = held.and_then(|_| engine.read_cache.take(hash)); // H2: under this lock nobody else fills a slot.
        match &old {
            Some((hit, _)) => engine.index.swing(&spot, hit, at),
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
        drop(locked);
        self.news = match old {
            None => self.news.saturating_add(1),
            Some(_) => 0,
        };
        self.untold.live += len as i64 - old.map_or(0, |old| i64::from(old.len));
        self.untold.written += len as u64;
        if let Some(old) = old.filter(|old| old.header.is_some_and(|h| h.is_large())) {
            engine.free_extents_of(old.at);
        }
        if grown {
            engine.grow_index();
        }
        Ok(Some(header.seq))
    }
}
