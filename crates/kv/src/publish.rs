//! Publication: the index comes to name what is durable.

//!
//! Each write of a batch whose ticket has turned is taken off its stripe's list and the index is swung
//! to it, under the stripe's lock; what it replaced is counted as dead. The members of a group are
//! swung under [`Engine::groups`], which makes readers that overlap start over (G2).

use farbank_pm::fault;
use farbank_pm::sync::MutexGuard;
use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use farbank_pm::{Medium, Poisoned, Ticket};

use crate::engine::{Engine, Found, Located};
use crate::record::Type;
use crate::session::{Worker, Write};
use crate::store::Key;
use crate::stripe::{Locked, Pending};

impl<M: Medium> Worker<M> {
    /// Publishes what has become durable. Returns whether `ticket` is.
    pub(crate) fn publish_durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        while let Some((first, _)) = self.unsynced.front() {
            if !self.engine.poll(*first)? {
                break;
            }
            let (_, mut writes) = self.unsynced.pop_front().expect("there is a first");
            self.publish_all(&mut writes)?;
        }
        self.unpin();
        self.engine.grow_index();
        let turned = self.engine.poll(ticket)?;
        if turned && ticket >= self.relied_on {
            self.relied_on = Ticket::DURABLE;
        }
        Ok(turned)
    }

    /// Waits for `ticket` and publishes what it covers.
    pub(crate) fn settle(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        self.engine.wait(ticket)?;
        self.publish_durable(ticket).map(|_| ())
    }

    /// Publishes durable writes, in order; groups at once.
    pub(crate) fn publish_all(&mut self, writes: &mut Vec<Write>) -> Result<(), Poisoned> {
        self.pin();
        let (mut live, mut tombs) = (0, 0);
        for run in writes.chunk_by(|a, b| a.grouped && b.grouped) {
            let _group = (run[0].grouped && !fault!("kv.group_seen_half"))
                .then(|| GroupPublication::start(&self.engine));
            for write in run {
                let (more_live, more_tombs) = self.publish(write);
                live += more_live;
                tombs += more_tombs;
            }
        }
        writes.clear();
        self.engine.live.fetch_add(live, Relaxed);
        self.engine.tombs.fetch_add(tombs, Relaxed);
        Ok(())
    }

    /// Publishes one write. Returns by how much live and tombstone bytes grew.
    fn publish(&self, write: &Write) -> (i64, i64) {
        let engine = &*self.engine;
        let swung = if write.outrun {
            None
        } else {
            self.swing(write)
        };
        match swung {
            None => {
                if write.large {
                    engine.free_extents_of(write.at);
                }
                (0, 0)
            }
            Some(old) => {
                if let Some(old) = old.filter(|old| old.header.is_some_and(|h| h.large)) {
                    engine.free_extents_of(old.at);
                }
                let old_len = old.map_or(0, |old| i64::from(old.len));
                match write.what {
                    Type::Put => (i64::from(write.len) - old_len, 0),
                    _ => (-old_len, i64::from(write.len)),
                }
            }
        }
    }

    /// Takes `write` off its list and swings the index to it. Returns what it replaced; `None` if a
    /// newer write, or a flush, was faster.
    fn swing(&self, write: &Write) -> Option<Option<Found>> {
        let engine = &*self.engine;
        let stripe = engine.stripe(write.hash);
        let mut fresh: Option<Located> = None;
        loop {
            let located = fresh.as_ref().unwrap_or(&write.located);
            {
                let mut locked = stripe.lock();
                let listed = locked.of(write.hash).any(|p| p.seq == write.seq);
                let listed = listed || fault!("kv.older_published_later");
                if !listed || write.seq <= engine.floor.load(Acquire) {
                    locked.unlist(write.seq);
                    return None;
                }
                if self.swing_locked(write, located) {
                    self.unlist_older(&mut locked, write);
                    locked.unlist(write.seq);
                    return Some(located.found);
                }
            }
            fresh = Some(self.relocate(write));
        }
    }

    /// Under the stripe's lock: makes the index name `write` instead of what was located, and counts.
    /// False, and nothing done, if something else is there by now (N3).
    fn swing_locked(&self, write: &Write, located: &Located) -> bool {
        let engine = &*self.engine;
        let old = located.found;
        let swung = match (old, write.what) {
            (Some(old), Type::Put) => engine.index.replace(write.hash, old.at, write.at),
            (Some(old), _) => engine.index.remove(write.hash, old.at),
            (None, what) => {
                let fresh = engine.confirm(write.hash, located);
                if fresh && what == Type::Put {
                    let rehash = |at| engine.rehash(at);
                    engine
                        .index
                        .insert(write.hash, write.at, &engine.epochs, &rehash);
                }
                fresh
            }
        };
        if !swung {
            return false;
        }
        if let Some(old) = old {
            engine.kill(old.at, old.len);
        }
        if write.what == Type::Put {
            engine.enliven(write.at, write.len);
            note_expiry(&engine.info_at(write.at).expires_ms, write.expires_ms);
        } else {
            engine.info_at(write.at).tombs.fetch_add(write.len, Relaxed);
        }
        let keys = i64::from(write.what == Type::Put) - i64::from(old.is_some());
        self.shared.keys[write.db as usize].fetch_add(keys, Relaxed);
        true
    }

    /// Drained writes of the same key that were not published yet never will be.
    fn unlist_older(&self, locked: &mut Locked<'_>, write: &Write) {
        let older: Vec<Pending> = locked
            .of(write.hash)
            .filter(|p| p.seq < write.seq && p.ticket.is_some())
            .copied()
            .collect();
        if older.is_empty() {
            return;
        }
        let mut body = Vec::new();
        let Some(header) = self.read_record(write.at, &mut body) else {
            return;
        };
        let key = Key {
            db: header.db,
            bytes: &body[..header.key_len],
        };
        for pending in older.iter().filter(|p| self.is_of(p, key)) {
            locked.unlist(pending.seq);
        }
    }

    /// Looks again for what a durable write replaces.
    fn relocate(&self, write: &Write) -> Located {
        let mut body = Vec::new();
        let Some(header) = self.read_record(write.at, &mut body) else {
            return Located::default();
        };
        let key = Key {
            db: header.db,
            bytes: &body[..header.key_len],
        };
        self.engine.locate(write.hash, key)
    }
}

/// Readers that overlap with this start over: they see all of a group or nothing of it.
struct GroupPublication<'a, M: Medium> {
    engine: &'a Engine<M>,
    _one: MutexGuard<'a, ()>,
}

impl<'a, M: Medium> GroupPublication<'a, M> {
    fn start(engine: &'a Engine<M>) -> Self {
        let one = engine.group_lock.lock().expect("no holder panics");
        engine.groups.fetch_add(1, AcqRel);
        GroupPublication { engine, _one: one }
    }
}

impl<M: Medium> Drop for GroupPublication<'_, M> {
    fn drop(&mut self) {
        self.engine.groups.fetch_add(1, AcqRel);
    }
}

/// Lowers a segment's earliest expiry.
pub(crate) fn note_expiry(earliest: &AtomicU64, expires_ms: u64) {
    if expires_ms != 0 {
        let _ = earliest.fetch_update(Relaxed, Relaxed, |known| {
            (known == 0 || known > expires_ms).then_some(expires_ms)
        });
    }
}
