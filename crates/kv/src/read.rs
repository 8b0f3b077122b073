//! Reading: the newest value of a key, the one a reader may see, several at one moment.

//!
//! A key's newest value is its newest listed write (W2), else what the index names. A reader may see
//! what is durable: the index, and listed writes whose ticket has turned; and, on request, whatever its
//! own session has written. A record is checked against its checksums each time it is read.

use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed};
use farbank_pm::{Medium, Off, Ticket};

use crate::engine::Engine;
use crate::log::Log;
use crate::record::{HEADER_MAX, Header, Type};
use crate::session::{Newest, Worker, meta_of};
use crate::store::{Error, Head, Item, Key, Meta, View};
use crate::stripe::{Locked, Pending};

/// How much of a record is fetched ahead: its header and a short key; with them, a small value.
const FETCHED_BY_WRITES: usize = 48;
const FETCHED_BY_READS: usize = 176;

impl<M: Medium> Worker<M> {
    /// The newest write of `key`, in its stripe's list or beyond.
    pub(crate) fn newest(&self, locked: &Locked<'_>, hash: u64, key: Key<'_>) -> Newest {
        let mut newest: Option<Pending> = None;
        for pending in locked.of(hash) {
            if pending.ticket.is_none() && pending.session != self.id {
                return Newest::Foreign;
            }
            let newer = newest.is_none_or(|n| n.seq < pending.seq);
            if newer && self.is_of(pending, key) {
                newest = Some(*pending);
            }
        }
        match newest {
            None => Newest::Published,
            Some(pending) if pending.ticket.is_none() => Newest::Staged(pending),
            Some(pending) => Newest::Drained(pending),
        }
    }

    /// Notes that a reply depends on a write that may not be durable yet, whoever wrote it.
    pub(crate) fn rely_on(&mut self, newest: &Newest) {
        if let Newest::Drained(Pending {
            ticket: Some(ticket),
            ..
        }) = newest
        {
            self.relied_on = self.relied_on.max(*ticket);
        }
    }

    /// Whether a listed write that may be read (W3) is of `key`.
    pub(crate) fn is_of(&self, pending: &Pending, key: Key<'_>) -> bool {
        let same = |header: &Header| header.db == key.db && header.key_len == key.bytes.len();
        if let Some((header, body)) = self.staged_record(pending.at) {
            return same(&header) && body.starts_with(key.bytes);
        }
        self.engine.header(pending.at).is_some_and(|header| {
            let from = pending.at.plus(header.len() as u64);
            same(&header) && self.engine.medium().matches(from, key.bytes)
        })
    }

    /// The header and the body of a record that is staged here.
    fn staged_record(&self, at: Off) -> Option<(Header, &[u8])> {
        let staged = self.log.staged(at)?;
        let mut bytes = [0; HEADER_MAX];
        let known = staged.len().min(bytes.len());
        bytes[..known].copy_from_slice(&staged[..known]);
        let header = Header::decode(&bytes, Log::seed(&self.engine, at))?;
        Some((
            header,
            &staged[header.len()..][..self.engine.body_len(&header)],
        ))
    }

    /// The header, and into `body` the bytes, of a record that is staged here or on the medium.
    pub(crate) fn read_record(&self, at: Off, body: &mut Vec<u8>) -> Option<Header> {
        body.clear();
        if let Some((header, bytes)) = self.staged_record(at) {
            body.extend_from_slice(bytes);
            return Some(header);
        }
        let header = self.engine.header(at)?;
        let from = at.plus(header.len() as u64);
        self.engine
            .medium()
            .append_out(from, self.engine.body_len(&header), body);
        Some(header)
    }

    /// Appends the value of the record at `at` to `out`, after `head`; `Ok(false)` if it is no value
    /// any more. On error `out` is as it was.
    pub(crate) fn emit(
        &mut self,
        at: Off,
        out: &mut Vec<u8>,
        head: Head<'_>,
    ) -> Result<bool, Error> {
        let mut body = std::mem::take(&mut self.scratch);
        let header = self.read_record(at, &mut body);
        let start = out.len();
        let result = match header {
            None => Err(Error::Damaged(at.0)),
            Some(header)
                if header.what != Type::Put || self.engine.is_expired(header.expires_ms) =>
            {
                Ok(false)
            }
            Some(header) => {
                head(&meta_of(&header), out);
                self.emit_body(&header, &body, out)
                    .then_some(true)
                    .ok_or(Error::Damaged(at.0))
            }
        };
        if result.is_err() {
            out.truncate(start);
            self.engine.tally.damaged.fetch_add(1, Relaxed);
        }
        self.scratch = body;
        result
    }

    /// Appends a value whose record's body has been read; false if a checksum fails.
    fn emit_body(&self, header: &Header, body: &[u8], out: &mut Vec<u8>) -> bool {
        let (key, rest) = body.split_at(header.key_len);
        if !Engine::<M>::body_matches(header, key, rest) {
            return false;
        }
        if header.large {
            return self.engine.read_extents(header.value_len, rest, out);
        }
        out.extend_from_slice(rest);
        true
    }

    /// Where the value of `key` that a reader may see lies; `None`: absent.
    fn visible(&mut self, hash: u64, key: Key<'_>, view: View) -> Option<Off> {
        let own = view == View::Pending && (self.has_pending() || self.relied_on > Ticket::DURABLE);
        let late = !self.engine.tickets_turn_at_once();
        if (own || late) && !self.engine.stripe(hash).is_quiet() {
            let locked = self.engine.stripe(hash).lock();
            let mut newest: Option<Pending> = None;
            for pending in locked.of(hash) {
                let readable = match pending.ticket {
                    None => own && pending.session == self.id,
                    // What was lost to an I/O error is not readable; what was there before is.
                    Some(ticket) => {
                        // What a reply relied on before is there for the replies after it.
                        (own && (pending.session == self.id || ticket <= self.relied_on))
                            || self.engine.poll(ticket).unwrap_or(false)
                    }
                };
                let newer = newest.is_none_or(|n| n.seq < pending.seq);
                if readable && newer && self.is_of(pending, key) {
                    newest = Some(*pending);
                }
            }
            if let Some(pending) = newest {
                return Some(pending.at);
            }
        }
        self.engine.locate(hash, key).found.map(|found| found.at)
    }

    /// Runs `read` so that no group's publication falls into it.
    pub(crate) fn undivided<R>(&mut self, mut read: impl FnMut(&mut Self) -> R) -> R {
        loop {
            let before = self.engine.groups.load(Acquire);
            if before.is_multiple_of(2) {
                let answer = read(self);
                farbank_pm::sync::atomic::fence(Acquire);
                if self.engine.groups.load(Relaxed) == before {
                    return answer;
                }
            } else {
                farbank_pm::sync::thread::yield_now();
            }
        }
    }

    pub(crate) fn find(&mut self, key: Key<'_>, view: View) -> Option<Off> {
        self.pin();
        let hash = self.engine.geometry.hash(key.db, key.bytes);
        self.undivided(|worker| worker.visible(hash, key, view))
    }

    /// Reads several keys as they were at one moment: where each lies is looked up twice, and nothing
    /// changed in between (an offset is not used again while this session is pinned).
    pub(crate) fn read_together(
        &mut self,
        keys: &[Key<'_>],
        view: View,
        each: &mut dyn FnMut(usize, Option<Item<'_>>),
    ) -> Result<(), Error> {
        self.bring_in();
        self.engine.epochs.pin(&self.slot);
        let hashes: Vec<u64> = keys
            .iter()
            .map(|key| self.engine.geometry.hash(key.db, key.bytes))
            .collect();
        for hash in &hashes {
            self.engine.index.touch(*hash);
        }
        let look = |worker: &mut Self| -> Vec<Option<Off>> {
            keys.iter()
                .zip(&hashes)
                .map(|(key, hash)| worker.visible(*hash, *key, view))
                .collect()
        };
        let mut places = self.undivided(look);
        while keys.len() > 1 {
            let again = self.undivided(look);
            if again == places {
                break;
            }
            places = again;
        }
        let mut values = Vec::with_capacity(keys.len());
        for at in places {
            let mut bytes = Vec::new();
            let meta = at.map_or(Ok(None), |at| self.load(at, &mut bytes))?;
            values.push(meta.map(|meta| (bytes, meta)));
        }
        for (place, value) in values.iter().enumerate() {
            each(
                place,
                value
                    .as_ref()
                    .map(|(bytes, meta)| Item { bytes, meta: *meta }),
            );
        }
        Ok(())
    }

    /// Fetches what operations on `keys` will look at: first every line of the index, then every
    /// record those name.
    pub(crate) fn fetch_ahead(&mut self, keys: &[Key<'_>], reads: bool) {
        self.pin();
        let engine = &*self.engine;
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        hashes.extend(
            keys.iter()
                .map(|key| engine.geometry.hash(key.db, key.bytes)),
        );
        for hash in &hashes {
            engine.index.touch(*hash);
        }
        let bytes = if reads {
            FETCHED_BY_READS
        } else {
            FETCHED_BY_WRITES
        };
        for hash in &hashes {
            engine.index.search(*hash, |at| -> Option<()> {
                engine.medium().prefetch(at, bytes);
                None
            });
        }
        self.hashes = hashes;
    }

    /// A located value's bytes and meta, into `bytes`.
    pub(crate) fn load(&mut self, at: Off, bytes: &mut Vec<u8>) -> Result<Option<Meta>, Error> {
        bytes.clear();
        let mut meta = None;
        let mut note = |m: &Meta, _: &mut Vec<u8>| meta = Some(*m);
        self.emit(at, bytes, &mut note)?;
        Ok(meta)
    }
}
