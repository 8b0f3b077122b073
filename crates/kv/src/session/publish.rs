//! Publication: durable writes enter the index and become visible.
//!
//! When the ticket of a batch is durable, each of its writes is unlisted from its stripe, and the index entry is
//! updated to its record, under the stripe's lock; the record that it replaces is counted as dead. The members of a
//! group are published within [`PendingWrites::publish_group`](crate::pending::PendingWrites::publish_group), which
//! makes overlapping readers retry (KV-GROUP-2). Where tickets become durable later than they are issued, a session may
//! supersede a member of another session's group that is durable and not published yet. It first publishes that group
//! (KV-GROUP-4).

use farbank_pm::fault;
use farbank_pm::medium::Drain;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off, Poisoned, Ticket};

use crate::engine::Engine;
use crate::engine::lookup::EntryLocation;
use crate::format::record::RecordType;
use crate::pending::stripe::{LockedStripe, PendingWrite};
use crate::segments::records::FoundRecord;
use crate::session::{KvSession, StagedWrite};
use farbank_store::Key;

impl<M: Medium> KvSession<M> {
    /// Publishes the writes that have become durable. Returns whether `ticket` is durable.
    pub(crate) fn publish_durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.engine.access().check_process()?;
        while let Some((first, _)) = self.tickets.unsynced.front() {
            if !self.engine.poll(*first)? {
                break;
            }
            let (_, mut writes) = self.tickets.unsynced.pop_front().expect("there is a first");
            self.publish_all(&mut writes)?;
        }
        self.park();
        self.flush_counters();
        self.unpin();
        self.engine.grow_index();
        let turned = self.engine.poll(ticket)?;
        if turned && ticket >= self.tickets.relied_on {
            self.tickets.relied_on = Ticket::DURABLE;
        }
        Ok(turned)
    }

    /// Waits for `ticket` and publishes the writes that it covers.
    pub(crate) fn settle(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        self.engine.access().check_process()?;
        if ticket == Ticket::DURABLE && self.tickets.unsynced.is_empty() {
            return Ok(());
        }
        self.engine.access().wait(ticket)?;
        self.publish_durable(ticket).map(|_| ())
    }

    /// Publishes durable writes in order, each group as a whole.
    pub(crate) fn publish_all(&mut self, writes: &mut Vec<StagedWrite>) -> Result<(), Poisoned> {
        self.pin();
        for (run, at_once) in runs(writes) {
            self.publish_superseded_groups(run);
            self.publish_run(run, at_once, true);
        }
        self.count_published(writes);
        writes.clear();
        Ok(())
    }

    /// Publishes durable writes. `own`: whether they are this session's.
    fn publish_run(&self, run: &[StagedWrite], at_once: bool, own: bool) {
        let (mut live, mut tombs) = (0, 0);
        let group = at_once && !fault!("kv.group_seen_half");
        let group = group.then(|| self.engine.pending.publish_group());
        for write in run {
            let (more_live, more_tombs) = self.publish(write, own);
            live += more_live;
            tombs += more_tombs;
        }
        drop(group);
        self.engine.space().count_live(live);
        self.engine.space().count_tombstones(tombs);
    }

    /// Publishes other sessions' groups that one of `writes` supersedes (KV-GROUP-4): members that were drained before
    /// `writes`. Such groups exist only where tickets become durable later than they are issued.
    fn publish_superseded_groups(&self, writes: &[StagedWrite]) {
        if self.engine.caps().drain != Drain::Sync {
            return;
        }
        for write in writes.iter().filter(|write| !write.superseded) {
            let older = |p: &&PendingWrite| p.seq < write.seq && p.session != self.id;
            let overtaken: Vec<Off> = {
                let locked = self.engine.stripe(write.hash).lock();
                let older = locked.of(write.hash).filter(older);
                older
                    .filter(|p| !p.is_published)
                    .map(|p| p.publish_with)
                    .collect()
            };
            for with in overtaken.into_iter().filter(|with| !with.is_null()) {
                self.publish_for_another(with);
            }
        }
    }

    /// Publishes another session's writes that must become visible together with the write at `with`. All of them are
    /// durable.
    fn publish_for_another(&self, with: Off) {
        let stripes = self.engine.pending.stripes();
        let theirs: Vec<PendingWrite> = stripes
            .flat_map(|stripe| {
                let locked = stripe.lock();
                let theirs = locked
                    .all()
                    .filter(|p| p.publish_with == with && !p.is_published);
                theirs.cloned().collect::<Vec<_>>()
            })
            .collect();
        situation!("kv.group_published_for_another", !theirs.is_empty());
        let mut writes: Vec<StagedWrite> = theirs.iter().filter_map(|p| self.write_of(p)).collect();
        writes.sort_unstable_by_key(|write| write.at);
        self.publish_superseded_groups(&writes);
        self.publish_run(&writes, true, false);
    }

    /// Reconstructs another session's write from its record.
    fn write_of(&self, pending: &PendingWrite) -> Option<StagedWrite> {
        let mut body = Vec::new();
        let header = self.read_record(pending.at, &mut body)?;
        let key = Key {
            db: header.db,
            bytes: body.get(..header.key_len)?,
        };
        Some(StagedWrite {
            hash: pending.hash,
            seq: pending.seq,
            at: pending.at,
            len: self.engine.segments.record_len(&header) as u32,
            db: header.db,
            what: header.what,
            large: header.large,
            expires_ms: header.expires_ms,
            located: self.engine.locate(pending.hash, key),
            superseded: false,
            grouped: true,
        })
    }

    /// Publishes one write. Returns the changes of live bytes and of tombstone bytes.
    fn publish(&self, write: &StagedWrite, own: bool) -> (i64, i64) {
        let engine = &*self.engine;
        let swung = match write.superseded {
            true => PublishOutcome::Superseded,
            false => self.publish_entry(write),
        };
        match swung {
            PublishOutcome::AlreadyPublished => (0, 0),
            PublishOutcome::Superseded => {
                // Another session's extents are left to that session: it may have published the write meanwhile.
                if write.large && own {
                    engine.free_extents_of(write.at);
                }
                (0, 0)
            }
            PublishOutcome::Now(old) => {
                engine.free_replaced(old);
                let old_len = old.map_or(0, |old| i64::from(old.len));
                match write.what {
                    RecordType::Put => (i64::from(write.len) - old_len, 0),
                    _ => (-old_len, i64::from(write.len)),
                }
            }
        }
    }

    /// Updates the index to `write` and unlists it. Another session's write stays listed, marked as published.
    fn publish_entry(&self, write: &StagedWrite) -> PublishOutcome {
        let engine = &*self.engine;
        let stripe = engine.stripe(write.hash);
        let mut fresh: Option<EntryLocation> = None;
        loop {
            let located = fresh.as_ref().unwrap_or(&write.located);
            {
                let mut locked = stripe.lock();
                let listed = locked.listed(write.seq);
                let (is_listed, seen) = (
                    listed.is_some(),
                    listed.as_ref().is_some_and(|p| p.is_published),
                );
                let own = listed.is_none_or(|p| p.session == self.id);
                let is_due = is_listed || fault!("kv.older_published_later");
                let is_dead = write.seq <= engine.superblock.flushed_seq();
                situation!("kv.overtaken", !seen && !is_dead && !is_due);
                situation!("kv.flushed_before_published", is_dead);
                if seen || is_dead || !is_due {
                    if own {
                        locked.unlist(write.seq);
                    }
                    return if seen {
                        PublishOutcome::AlreadyPublished
                    } else {
                        PublishOutcome::Superseded
                    };
                }
                if self.update_index_locked(write, located) {
                    self.unlist_older(&mut locked, write);
                    if own {
                        locked.unlist(write.seq);
                    } else if let Some(theirs) = locked.listed(write.seq) {
                        theirs.is_published = true;
                    }
                    return PublishOutcome::Now(located.found);
                }
            }
            situation!("kv.relocated");
            fresh = Some(self.relocate(write));
        }
    }

    /// Updates the index from the located entry to `write`, and the counts. Returns false, with no effect, if the
    /// index has changed since the entry was located (KV-COMMIT-3). The caller holds the stripe's lock.
    fn update_index_locked(&self, write: &StagedWrite, located: &EntryLocation) -> bool {
        let engine = &*self.engine;
        let old = located.found;
        engine.read_cache.take(write.hash); // KV-CACHE-2
        let swung = match (old, write.what) {
            (Some(old), RecordType::Put) => engine.index.replace(write.hash, old.at, write.at),
            (Some(old), _) => engine.index.remove(write.hash, old.at),
            (None, what) => {
                let fresh = engine.confirm(write.hash, located);
                if fresh && what == RecordType::Put {
                    engine.insert(write.hash, write.at);
                }
                fresh
            }
        };
        if !swung {
            return false;
        }
        if write.what == RecordType::Put {
            self.count_put(old, write.at, write.len, write.db, write.expires_ms);
        } else {
            engine.segments.mark_tombstone(write.at, write.len);
            self.count_old(old);
            self.count_keys(write.db, -i64::from(old.is_some()));
        }
        true
    }

    /// Counts a value that the index now refers to instead of `old`. The caller holds the stripe's lock.
    #[inline]
    pub(crate) fn count_put(
        &self,
        old: Option<FoundRecord>,
        at: Off,
        len: u32,
        db: u8,
        expires_ms: u64,
    ) {
        self.count_old(old);
        self.engine.segments.mark_live(at, len);
        self.engine.info_at(at).note_expiry(expires_ms);
        self.count_keys(db, i64::from(old.is_none()));
    }

    fn count_old(&self, old: Option<FoundRecord>) {
        if let Some(old) = old {
            self.engine.segments.mark_dead(old.at, old.len);
        }
    }

    /// Adds to this session's key count. The caller holds a stripe's lock. Only this session and FLUSHALL, which
    /// holds every lock, change the count, so a plain store suffices.
    #[inline]
    fn count_keys(&self, db: u8, more: i64) {
        if more == 0 {
            return;
        }
        let keys = &self.shared.keys[db as usize];
        keys.store(keys.load(Relaxed) + more, Relaxed);
    }

    /// Unlists drained writes of the same key that `write` supersedes before they were published.
    fn unlist_older(&self, locked: &mut LockedStripe<'_>, write: &StagedWrite) {
        let older: Vec<PendingWrite> = locked
            .of(write.hash)
            .filter(|p| p.seq < write.seq && p.ticket.is_some())
            .cloned()
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
        situation!("kv.drained_twice", !older.is_empty());
        for pending in older.iter().filter(|p| self.is_of(p, key)) {
            locked.unlist(pending.seq);
        }
    }

    /// Locates again the entry that a durable write replaces.
    fn relocate(&self, write: &StagedWrite) -> EntryLocation {
        let mut body = Vec::new();
        let Some(header) = self.read_record(write.at, &mut body) else {
            return EntryLocation::default();
        };
        let key = Key {
            db: header.db,
            bytes: &body[..header.key_len],
        };
        self.engine.locate(write.hash, key)
    }
}

/// Outcome of publishing a write.
enum PublishOutcome {
    /// Published now; it replaced this record.
    Now(Option<FoundRecord>),
    /// Published before, by another session that superseded it.
    AlreadyPublished,
    /// Never to be published: a newer write or a FLUSHALL came first.
    Superseded,
}

/// Splits a batch into runs for publication, each with whether it is published as a whole. Adjacent members of groups
/// form such a run. A batch in which a write supersedes a group's member is a single one (KV-GROUP-4).
fn runs(writes: &[StagedWrite]) -> impl Iterator<Item = (&[StagedWrite], bool)> {
    let whole = writes.iter().any(|write| write.grouped && write.superseded);
    let runs = writes.chunk_by(move |a, b| whole || a.grouped && b.grouped);
    runs.map(move |run| (run, whole || run[0].grouped))
}

/// Marks a batch's writes as drained under `ticket`. Before that, links each write of a run that is published as a
/// whole to the run's first write: once one of them is drained, another session may supersede it. Overlapping readers
/// retry (KV-GROUP-2).
pub(crate) fn list_drained<M: Medium>(engine: &Engine<M>, writes: &[StagedWrite], ticket: Ticket) {
    let each = |writes: &[StagedWrite], note: &dyn Fn(&mut LockedStripe<'_>, u64)| {
        for write in writes.iter().filter(|write| !write.superseded) {
            note(&mut engine.stripe(write.hash).lock(), write.seq);
        }
    };
    for (run, _) in runs(writes).filter(|(_, at_once)| *at_once) {
        each(run, &|locked, seq| {
            if let Some(pending) = locked.listed(seq) {
                pending.publish_with = run[0].at;
            }
        });
    }
    // The ticket may become durable before all of them have it.
    let group = runs(writes).any(|(_, at_once)| at_once);
    let _group = group.then(|| engine.pending.publish_group());
    each(writes, &|locked, seq| locked.drained(seq, ticket));
}
