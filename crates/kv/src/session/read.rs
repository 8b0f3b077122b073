//! Reading: a key's newest value, the newest value that a reader may see, and consistent reads of several keys.
//!
//! A key's newest value is its newest listed write (KV-PEND-2), or else the record in the index. A reader may see durable
//! values: the index, and listed writes whose ticket is durable. On request it also sees its own session's writes. A
//! record's checksums are verified each time it is read. Values in the read cache were verified when they were stored
//! there.

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off, Ticket};

use crate::format::record::{HEADER_MAX, RawHeader, RecordHeader, RecordType, body_crc};
use crate::index::{BucketRef, Candidate};
use crate::pending::stripe::{LockedStripe, PendingWrite};
use crate::read_cache::fits;
use crate::segments::records::{FETCHED_HEAD, FETCHED_VALUE, FoundRecord, body_matches};
use crate::session::{KvSession, NewestValue, meta_of};
use farbank_store::{
    BeforeValue, BeforeValues, Error, GetStep, Key, ReadView, StoredItem, ValueMeta,
};

/// Bytes of a value that are prefetched at most. For longer values the CPU's hardware prefetcher takes over.
const VALUE_FETCHED_MAX: usize = 1024;

/// Sizes up to which a session keeps its scratch buffers for the next read.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;
const GATHERED_KEPT: usize = 1 << 12;

/// Place where a reader finds a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueSource {
    /// A record in the index, with its header.
    Indexed(FoundRecord),
    /// A listed write, durable or the session's own.
    Listed(Off),
}

impl ValueSource {
    pub(crate) fn at(&self) -> Off {
        match self {
            ValueSource::Indexed(found) => found.at,
            ValueSource::Listed(at) => *at,
        }
    }
}

/// What a read did with the value of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EmittedValue {
    /// The record is a tombstone or has expired.
    Absent,
    /// The caller did not want the value.
    Skipped,
    /// The value was appended to the output.
    Appended,
}

/// What a prefetch found in the index for one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchState {
    hash: u64,
    spot: BucketRef,
    /// The first entry whose tag matches.
    hit: Option<Candidate>,
}

/// Adds one to a counter that only the calling thread changes.
#[inline]
fn count_one(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// One value of a multi-key read: the end of its bytes in the scratch buffer, and its metadata. `None`: absent.
pub(crate) type PrefetchedValue = Option<(usize, ValueMeta)>;

impl<M: Medium> KvSession<M> {
    /// Returns the state of the newest write of `key`.
    pub(crate) fn newest(&self, locked: &LockedStripe<'_>, hash: u64, key: Key<'_>) -> NewestValue {
        let mut newest: Option<PendingWrite> = None;
        for pending in locked.of(hash) {
            if pending.drained.is_none() && pending.session != self.id() {
                return NewestValue::OtherSession;
            }
            let newer = newest.as_ref().is_none_or(|n| n.seq < pending.seq);
            if newer && self.is_of(pending, key) {
                newest = Some(pending.clone());
            }
        }
        match newest {
            None => NewestValue::Published,
            Some(pending) if pending.drained.is_none() => NewestValue::Staged(pending),
            Some(pending) => NewestValue::Drained(pending),
        }
    }

    /// Records that a reply depends on a write, of any session, that may not be durable yet.
    pub(crate) fn rely_on(&mut self, newest: &NewestValue) {
        if let NewestValue::Drained(PendingWrite {
            drained: Some(drained),
            ..
        }) = newest
            && !fault!("kv.answer_relies_on_nothing")
        {
            situation!("kv.answer_relies");
            self.tickets.relied_on = self.tickets.relied_on.max(drained.ticket);
        }
    }

    /// Returns whether a listed write that may be read (KV-PEND-3) is of `key`.
    pub(crate) fn is_of(&self, pending: &PendingWrite, key: Key<'_>) -> bool {
        match self.staged_record(pending.at) {
            Some((header, staged)) => {
                let same = header.db == key.db && header.key_len == key.bytes.len();
                same && staged.starts_with(key.bytes)
            }
            None => self.engine.segments.holds(pending.at, key),
        }
    }

    /// Returns the header of a record staged by this session, and the staged bytes after it, which begin with the key.
    fn staged_record(&self, at: Off) -> Option<(RecordHeader, &[u8])> {
        let staged = self.log.staged(at)?;
        let mut bytes = [0; HEADER_MAX];
        let known = staged.len().min(bytes.len());
        bytes[..known].copy_from_slice(&staged[..known]);
        let header = RecordHeader::decode(&bytes, self.engine.segments.seed_at(at))?;
        Some((header, &staged[header.len()..]))
    }

    /// Returns the metadata of the value of the record at `at`, without reading its body. `None` if the record is a
    /// tombstone or has expired.
    pub(crate) fn meta_at(&self, at: Off) -> Result<Option<ValueMeta>, Error> {
        let staged = self.staged_record(at).map(|(header, _)| header);
        let header = staged.or_else(|| self.engine.segments.header(at));
        let header = header.ok_or(Error::Damaged(at.0))?;
        let absent =
            header.what != RecordType::Put || self.engine.is_expired(header.expires_ms, header.seq);
        Ok((!absent).then(|| meta_of(&header)))
    }

    /// Returns the header of a record, staged by this session or on the medium, and reads its body into `body`.
    pub(crate) fn read_record(&self, at: Off, body: &mut Vec<u8>) -> Option<RecordHeader> {
        body.clear();
        let segments = &self.engine.segments;
        let staged = self.staged_record(at).map(|(header, _)| header);
        let header = staged.or_else(|| segments.header(at))?;
        let (from, len) = (at.plus(header.len() as u64), segments.body_len(&header));
        match staged {
            Some(_) => self.log.append_staged(segments, from, len, body),
            None => segments.medium().append_out(from, len, body),
        }
        Some(header)
    }

    /// Calls `head`, then appends the value of the record at `at` to `out`. Returns `Ok(false)` if the record is a
    /// tombstone or has expired. On error `out` is unchanged.
    pub(crate) fn append_value(
        &mut self,
        at: Off,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        let mut body = std::mem::take(&mut self.buffers.scratch);
        let header = self.read_record(at, &mut body);
        let start = out.len();
        let result = match header {
            None => Err(Error::Damaged(at.0)),
            Some(header)
                if header.what != RecordType::Put
                    || self.engine.is_expired(header.expires_ms, header.seq) =>
            {
                Ok(false)
            }
            Some(header) if !head(&meta_of(&header), out) => Ok(true),
            Some(header) => self
                .emit_body(&header, &body, out)
                .then_some(true)
                .ok_or(Error::Damaged(at.0)),
        };
        if result.is_err() {
            out.truncate(start);
            self.engine.counters.damaged.fetch_add(1, Relaxed);
        }
        self.buffers.scratch = body;
        self.shrink_scratch();
        result
    }

    /// Frees scratch buffers that a large read has grown.
    fn shrink_scratch(&mut self) {
        if self.buffers.scratch.capacity() > SCRATCH_BYTES_KEPT {
            self.buffers.scratch = Vec::new();
        }
        if self.buffers.gathered.capacity() > GATHERED_KEPT {
            self.buffers.gathered = Vec::new();
        }
    }

    /// As [`KvSession::append_value`], for `key`'s record in the index: the value is copied directly to `out` and
    /// verified there.
    #[inline(always)]
    pub(crate) fn emit_found(
        &self,
        key: Key<'_>,
        found: FoundRecord,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<EmittedValue, Error> {
        let start = out.len();
        let Some(raw) = found.header else {
            return Err(self.damaged(found.at));
        };
        if !raw.is_put() || self.engine.is_expired(raw.expires_ms(), raw.seq()) {
            return Ok(EmittedValue::Absent);
        }
        if !head(&raw.meta(), out) {
            return Ok(EmittedValue::Skipped);
        }
        if !self.append_body(key, found.at, &raw, out) {
            out.truncate(start);
            return Err(self.damaged(found.at));
        }
        Ok(EmittedValue::Appended)
    }

    #[cold]
    fn damaged(&self, at: Off) -> Error {
        self.engine.counters.damaged.fetch_add(1, Relaxed);
        Error::Damaged(at.0)
    }

    /// Appends the value of `key`'s record at `at`. Returns false if a checksum fails.
    #[inline(always)]
    fn append_body(&self, key: Key<'_>, at: Off, raw: &RawHeader, out: &mut Vec<u8>) -> bool {
        let rest = at.plus((raw.len() + raw.key_len()) as u64);
        let start = out.len();
        if raw.is_large() {
            return self.append_extents(key, rest, raw, out);
        }
        self.engine.medium().append_out(rest, raw.value_len(), out);
        body_crc(key.bytes, &out[start..]) == raw.body_crc()
    }

    /// Appends a large value, whose extent table is at `at`.
    #[cold]
    fn append_extents(&self, key: Key<'_>, at: Off, raw: &RawHeader, out: &mut Vec<u8>) -> bool {
        let len = raw.body_len(self.engine.geometry().payload()) - raw.key_len();
        let mut table = Vec::with_capacity(len);
        self.engine.medium().append_out(at, len, &mut table);
        body_crc(key.bytes, &table) == raw.body_crc()
            && self
                .engine
                .segments
                .read_extents(raw.value_len(), &table, out)
    }

    /// Appends the value of a record whose body has been read. Returns false if a checksum fails.
    fn emit_body(&self, header: &RecordHeader, body: &[u8], out: &mut Vec<u8>) -> bool {
        let (key, rest) = body.split_at(header.key_len);
        if !body_matches(header, key, rest) {
            return false;
        }
        if header.large {
            return self
                .engine
                .segments
                .read_extents(header.value_len, rest, out);
        }
        out.extend_from_slice(rest);
        true
    }

    /// Returns whether a reader with `view` sees writes of its own session.
    #[inline]
    fn sees_own(&self, view: ReadView) -> bool {
        view == ReadView::Pending
            && (self.has_pending() || self.tickets.relied_on > Ticket::DURABLE)
    }

    /// Returns whether a value that a reader with `view` may see can be listed and not yet in the index.
    #[inline]
    fn looks_at_lists(&self, view: ReadView) -> bool {
        self.sees_own(view) || !self.engine.access().tickets_are_durable_at_once()
    }

    /// Returns where the value of `key` that a reader may see lies; `None`: absent.
    #[inline(always)]
    fn visible(&mut self, hash: u64, key: Key<'_>, view: ReadView) -> Option<ValueSource> {
        if self.looks_at_lists(view)
            && !self.engine.stripe(hash).is_quiet()
            && let Some(at) = self.listed(hash, key, view)
        {
            return Some(ValueSource::Listed(at));
        }
        let found = self.engine.seek(hash, key, FETCHED_VALUE, |_| ());
        found.map(ValueSource::Indexed)
    }

    /// As [`KvSession::visible`], not inlined: for second lookups.
    #[inline(never)]
    fn look_again(&mut self, hash: u64, key: Key<'_>, view: ReadView) -> Option<ValueSource> {
        self.visible(hash, key, view)
    }

    /// Returns the offset of the newest listed write of `key` that a reader may see.
    #[inline(never)]
    fn listed(&self, hash: u64, key: Key<'_>, view: ReadView) -> Option<Off> {
        let own = self.sees_own(view);
        let locked = self.engine.stripe(hash).lock();
        let mut newest: Option<PendingWrite> = None;
        for pending in locked.of(hash) {
            let readable = match pending.ticket() {
                None => own && pending.session == self.id(),
                // A write lost to an I/O error is not readable; the value before it is.
                Some(ticket) => {
                    // A write on which an earlier reply of this session depended is visible to later reads.
                    (own && (pending.session == self.id() || ticket <= self.tickets.relied_on))
                        || self.engine.poll(ticket).unwrap_or(false)
                }
            };
            let newer = newest.as_ref().is_none_or(|n| n.seq < pending.seq);
            if readable && newer && self.is_of(pending, key) {
                newest = Some(pending.clone());
            }
        }
        newest.map(|pending| pending.at)
    }

    /// Runs `read` again until no group is published during it.
    fn retry_during_groups<R>(&mut self, mut read: impl FnMut(&mut Self) -> R) -> R {
        loop {
            let from = self.engine.pending.group_version();
            let answer = read(self);
            if self.engine.pending.is_group_version(from) {
                return answer;
            }
        }
    }

    /// Answers a get from the read cache. `None`: the cache does not have the key.
    #[inline(always)]
    pub(crate) fn get_cached(
        &self,
        hash: u64,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Option<bool> {
        let engine = &*self.engine;
        if self.looks_at_lists(view) && !engine.stripe(hash).is_quiet() {
            return None; // KV-CACHE-4
        }
        let ignores_groups = fault!("kv.cached_during_group");
        let groups = (!ignores_groups).then(|| engine.pending.group_version());
        let Some(held) = engine.read_cache.find(hash, key) else {
            count_one(&self.shared.cache_misses);
            engine.read_cache.fetch_asked(hash);
            return None;
        };
        let start = out.len();
        let is_expired = engine.is_expired(held.raw.expires_ms(), held.raw.seq());
        if !is_expired && head(&held.raw.meta(), out) {
            held.append(out);
        }
        let is_whole = groups.is_none_or(|from| engine.pending.is_group_version(from));
        if !is_whole || !held.still_holds() {
            out.truncate(start);
            return None; // KV-CACHE-5
        }
        if is_expired {
            return Some(false);
        }
        count_one(&self.shared.cache_hits);
        Some(true)
    }

    /// Offers a value that was appended, the last bytes of `out`, to the read cache.
    #[inline]
    pub(crate) fn offer(&self, hash: u64, key: Key<'_>, found: &FoundRecord, out: &[u8]) {
        if !self.engine.read_cache.wants(hash) {
            return;
        }
        let Some(raw) = found.header.filter(|raw| !raw.is_large()) else {
            return;
        };
        let value = &out[out.len() - raw.value_len()..];
        if !fits(key.bytes, value) {
            return;
        }
        // The key may have been written meanwhile, and a session that holds the lock may be about to write it.
        if let Some(_locked) = self.engine.stripe(hash).try_lock()
            && self.engine.index.names(hash, found.at)
        {
            let body = [key.bytes, value];
            self.engine.read_cache.offer(hash, found.at, &raw, body);
        }
    }

    /// Returns where the value of `key` that a reader may see lies. As [`KvSession::retry_during_groups`], but
    /// without a closure: its result would pass through memory, which costs more than the search of a line.
    #[inline(always)]
    pub(crate) fn find(&mut self, hash: u64, key: Key<'_>, view: ReadView) -> Option<ValueSource> {
        self.pin();
        loop {
            let from = self.engine.pending.group_version();
            let seen = self.visible(hash, key, view);
            if self.engine.pending.is_group_version(from) {
                return seen;
            }
        }
    }

    /// As [`KvSession::find`], for the key that clients call `key`.
    pub(crate) fn find_named(&mut self, key: Key<'_>, view: ReadView) -> Option<ValueSource> {
        loop {
            let key = self.stored(key);
            let hash = self.engine.geometry().hash(key.db, key.bytes);
            let found = self.find(hash, key, view);
            if self.is_same_mapping() {
                return found;
            }
        }
    }

    /// Reads several keys as of one moment: each location is looked up twice, and nothing changed in between (an
    /// offset is not reused while this session is pinned).
    pub(crate) fn read_together(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        self.show_extents();
        self.engine.epochs.pin(&self.pin.slot);
        let places = self.places_together(keys, view);
        let mut bytes = std::mem::take(&mut self.buffers.scratch);
        let mut gathered = std::mem::take(&mut self.buffers.gathered);
        bytes.clear();
        gathered.clear();
        let whole = self.gather(keys, &places, &mut bytes, &mut gathered);
        if whole.is_ok() {
            let mut from = 0;
            for (place, value) in gathered.iter().enumerate() {
                let item = value.map(|(to, meta)| StoredItem {
                    bytes: &bytes[std::mem::replace(&mut from, to)..to],
                    meta,
                });
                each(place, item);
            }
        }
        (self.buffers.scratch, self.buffers.gathered) = (bytes, gathered);
        self.shrink_scratch();
        whole
    }

    /// As [`KvSession::read_together`], directly into `out`.
    pub(crate) fn read_together_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        self.show_extents();
        self.engine.epochs.pin(&self.pin.slot);
        let places = self.places_together(keys, view);
        let start = out.len();
        for (key, place) in keys.iter().zip(&places) {
            let mut wanted = GetStep::Value;
            let mut one = |meta: &ValueMeta, out: &mut Vec<u8>| {
                wanted = head(Some(meta), out);
                wanted == GetStep::Value
            };
            let there = match place {
                None => Ok(false),
                Some(ValueSource::Indexed(found)) => self
                    .emit_found(*key, *found, out, &mut one)
                    .map(|emitted| emitted != EmittedValue::Absent),
                Some(ValueSource::Listed(at)) => self.append_value(*at, out, &mut one),
            };
            let there = there.inspect_err(|_| out.truncate(start))?;
            if !there {
                wanted = head(None, out);
            }
            if wanted == GetStep::Nothing {
                break;
            }
        }
        Ok(())
    }

    /// Returns where the values of `named` lay at one moment.
    fn places_together(&mut self, named: &[Key<'_>], view: ReadView) -> Vec<Option<ValueSource>> {
        let lists = self.looks_at_lists(view);
        loop {
            let keys = &*self.stored_keys(named);
            let places = self.retry_during_groups(|worker| {
                worker.fetch(keys, FETCHED_HEAD);
                let places = keys.iter().enumerate();
                places
                    .map(|(place, key)| worker.look_where_fetched(place, *key, view, lists))
                    .collect::<Vec<_>>()
            });
            let is_whole = keys.len() == 1 || self.still_lie(keys, view, lists, &places);
            if is_whole && self.is_same_mapping() {
                return places;
            }
        }
    }

    /// Returns where the value of `key` lies, usually at the entry that [`KvSession::fetch`] found, and prefetches
    /// more of the record.
    #[inline]
    fn look_where_fetched(
        &mut self,
        place: usize,
        key: Key<'_>,
        view: ReadView,
        lists: bool,
    ) -> Option<ValueSource> {
        let PrefetchState { hash, hit, .. } = self.buffers.prefetched[place];
        let followed = hit
            .filter(|_| !lists)
            .and_then(|hit| self.engine.follow(hit, key));
        let Some((_, found)) = followed else {
            return self.look_again(hash, key, view);
        };
        let len = (found.len as usize).min(VALUE_FETCHED_MAX);
        let rest = found.at.plus(FETCHED_HEAD as u64);
        self.engine
            .medium()
            .prefetch(rest, len.saturating_sub(FETCHED_HEAD));
        Some(ValueSource::Indexed(found))
    }

    /// Returns whether all values still lie where they were found. An entry that has not changed need not be followed
    /// again.
    fn still_lie(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        lists: bool,
        places: &[Option<ValueSource>],
    ) -> bool {
        self.retry_during_groups(|worker| {
            let mut values = keys.iter().zip(places).enumerate();
            values.all(|(n, (key, place))| {
                let PrefetchState { hash, spot, hit } = &worker.buffers.prefetched[n];
                match (place, hit) {
                    (Some(ValueSource::Indexed(found)), Some(hit))
                        if !lists && hit.at() == found.at =>
                    {
                        worker.engine.index.holds(spot, hit)
                    }
                    (place, _) => {
                        let hash = *hash;
                        let now = worker.look_again(hash, *key, view);
                        now.map(|seen| seen.at()) == place.map(|seen| seen.at())
                    }
                }
            })
        })
    }

    /// Appends the values at `places` to `bytes`, one after another.
    fn gather(
        &mut self,
        keys: &[Key<'_>],
        places: &[Option<ValueSource>],
        bytes: &mut Vec<u8>,
        gathered: &mut Vec<PrefetchedValue>,
    ) -> Result<(), Error> {
        for (key, place) in keys.iter().zip(places) {
            let mut meta = None;
            let mut note = |m: &ValueMeta, _: &mut Vec<u8>| {
                meta = Some(*m);
                true
            };
            match place {
                None => false,
                Some(ValueSource::Indexed(found)) => {
                    self.emit_found(*key, *found, bytes, &mut note)? != EmittedValue::Absent
                }
                Some(ValueSource::Listed(at)) => self.append_value(*at, bytes, &mut note)?,
            };
            gathered.push(meta.map(|meta| (bytes.len(), meta)));
        }
        Ok(())
    }

    /// Prefetches what operations on `keys` will read: first every line of the index, then the records.
    pub(crate) fn fetch_ahead(&mut self, keys: &[Key<'_>], reads: bool) {
        self.pin();
        self.fetch(keys, if reads { FETCHED_VALUE } else { FETCHED_HEAD });
    }

    /// Prefetches the index lines of `keys`, then `bytes` bytes of the record of each first matching entry. Stores
    /// what it found in `ahead`. The caller is pinned.
    fn fetch(&mut self, keys: &[Key<'_>], bytes: usize) {
        let engine = &*self.engine;
        let hashes = &mut self.buffers.hashes;
        hashes.clear();
        for key in keys {
            let hash = engine.geometry().hash(key.db, key.bytes);
            engine.index.touch_group(hash);
            hashes.push(hash);
        }
        self.buffers.prefetched.clear();
        self.buffers.prefetched.extend(hashes.iter().map(|&hash| {
            let spot = engine.index.spot(hash);
            engine.index.touch(&spot);
            let hit = None;
            PrefetchState { hash, spot, hit }
        }));
        for ahead in &mut self.buffers.prefetched {
            ahead.hit = engine.index.first(&ahead.spot);
            if let Some(hit) = ahead.hit {
                engine.medium().prefetch(hit.at(), bytes);
            }
        }
    }

    /// Reads the value of the record at `at` into `bytes` and returns its metadata.
    pub(crate) fn load(
        &mut self,
        at: Off,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<ValueMeta>, Error> {
        bytes.clear();
        let mut meta = None;
        let mut note = |m: &ValueMeta, _: &mut Vec<u8>| {
            meta = Some(*m);
            true
        };
        self.append_value(at, bytes, &mut note)?;
        Ok(meta)
    }
}
