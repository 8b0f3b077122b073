//! Publication: durable writes enter the index and become visible.
//!
//! When the ticket of a batch is durable, each of its writes is unlisted from its stripe, and the index entry is
//! updated to its record, under the stripe's lock; the record that it replaces is counted as dead. The members of a
//! group are published within [`PendingWrites::publish_group`](crate::pending::PendingWrites::publish_group), which
//! makes overlapping readers retry (KV-GROUP-2). Where tickets become durable later than they are issued, a session may
//! supersede a member of another session's group that is durable and not published yet. It first publishes that group
//! (KV-GROUP-4), from the batch that the group's pending writes share (KV-PLAN-1).

use farbank_pm::fault;
use farbank_pm::medium::Drain;
use farbank_pm::situation;
use farbank_pm::sync::Arc;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Poisoned, Ticket};

use crate::engine::Engine;
use crate::format::record::RecordType;
use crate::pending::planned::{DrainedWrite, PlannedBatch, PlannedRecord, PlannedWrite};
use crate::pending::stripe::{LockedStripe, PendingWrite};
use crate::segments::records::{EntryLocation, FoundRecord};
use crate::session::KvSession;
use farbank_store::Key;

impl<M: Medium> KvSession<M> {
    /// Publishes the writes that have become durable. Returns whether `ticket` is durable.
    pub(crate) fn publish_durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.engine.access().check_process()?;
        while let Some((first, _)) = self.tickets.unsynced.front() {
            if !self.engine.poll(*first)? {
                break;
            }
            let (_, batch) = self.tickets.unsynced.pop_front().expect("there is a first");
            self.publish_all(&batch);
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

    /// Waits until all writes that were acknowledged so far are durable, whatever the sync policy.
    pub(crate) fn sync_medium(&mut self) -> Result<(), Poisoned> {
        self.engine.settle(Ticket::DURABLE)
    }

    /// Publishes a durable batch of this session in order, each group as a whole.
    pub(crate) fn publish_all(&mut self, batch: &PlannedBatch) {
        self.pin();
        for (run, at_once) in batch.runs() {
            self.publish_superseded_groups(run);
            self.publish_run(batch, run, at_once, true);
        }
        self.count_published(batch);
    }

    /// Publishes durable writes of `batch`. `own`: whether they are this session's.
    fn publish_run<'a>(
        &self,
        batch: &PlannedBatch,
        run: impl IntoIterator<Item = &'a PlannedWrite>,
        at_once: bool,
        own: bool,
    ) {
        let (mut live, mut tombs) = (0, 0);
        let group = at_once && !fault!("kv.group_seen_half");
        let group = group.then(|| self.engine.pending.publish_group());
        for write in run {
            let (more_live, more_tombs) = self.publish(write, batch.key_of(write), own);
            live += more_live;
            tombs += more_tombs;
        }
        drop(group);
        self.engine.space().count_live(live);
        self.engine.space().count_tombstones(tombs);
    }

    /// Publishes other sessions' groups that one of `writes` supersedes (KV-GROUP-4): members that were drained before
    /// `writes`. Such groups exist only where tickets become durable later than they are issued.
    fn publish_superseded_groups<'a>(&self, writes: impl IntoIterator<Item = &'a PlannedWrite>) {
        if self.engine.caps().drain != Drain::Sync {
            return;
        }
        for write in writes.into_iter().filter(|write| !write.superseded) {
            let record = &write.record;
            let is_overtaken =
                |p: &&PendingWrite| p.seq < record.seq && p.session != self.id() && !p.is_published;
            let overtaken: Vec<DrainedWrite> = {
                let locked = self.engine.stripe(record.hash).lock();
                let overtaken = locked.of(record.hash).filter(is_overtaken);
                overtaken.filter_map(|p| p.drained.clone()).collect()
            };
            for theirs in &overtaken {
                if let Some(run) = theirs.run() {
                    self.publish_for_another(theirs.batch(), run, true);
                }
            }
        }
    }

    /// Publishes another session's batch, which is durable.
    pub(crate) fn publish_batch_of_another(&mut self, batch: &PlannedBatch) {
        self.pin();
        for (run, at_once) in batch.runs() {
            self.publish_for_another(batch, run, at_once);
        }
        self.unpin();
    }

    /// Publishes a run of another session's batch that is durable. `at_once`: as a whole.
    fn publish_for_another(&self, batch: &PlannedBatch, run: &[PlannedWrite], at_once: bool) {
        let is_due = |PlannedWrite { record, .. }: &&PlannedWrite| {
            let mut locked = self.engine.stripe(record.hash).lock();
            locked.listed(record.seq).is_some_and(|p| !p.is_published)
        };
        let theirs: Vec<&PlannedWrite> = run.iter().filter(is_due).collect();
        situation!(
            "kv.group_published_for_another",
            at_once && !theirs.is_empty()
        );
        self.publish_superseded_groups(theirs.iter().copied());
        self.publish_run(batch, theirs, at_once, false);
    }

    /// Publishes one write of `key`. Returns the changes of live bytes and of tombstone bytes.
    fn publish(&self, write: &PlannedWrite, key: Key<'_>, own: bool) -> (i64, i64) {
        let (engine, record) = (&*self.engine, &write.record);
        let swung = match write.superseded {
            true => PublishOutcome::Superseded,
            false => self.publish_entry(write, key),
        };
        match swung {
            PublishOutcome::AlreadyPublished => (0, 0),
            PublishOutcome::Superseded => {
                // Another session's extents are left to that session: it may have published the write meanwhile.
                if record.large && own {
                    engine.free_extents_of(record.at);
                }
                (0, 0)
            }
            PublishOutcome::Now(old) => {
                engine.free_replaced(old);
                let old_len = old.map_or(0, |old| i64::from(old.len));
                match record.what {
                    RecordType::Put => (i64::from(record.len) - old_len, 0),
                    _ => (-old_len, i64::from(record.len)),
                }
            }
        }
    }

    /// Updates the index to a write of `key` and unlists it. Another session's write stays listed, marked as published.
    fn publish_entry(&self, write: &PlannedWrite, key: Key<'_>) -> PublishOutcome {
        let (engine, record) = (&*self.engine, &write.record);
        let stripe = engine.stripe(record.hash);
        let mut fresh: Option<EntryLocation> = None;
        loop {
            let located = fresh.as_ref().unwrap_or(&write.located);
            {
                let mut locked = stripe.lock();
                let listed = locked.listed(record.seq);
                let (is_listed, seen) = (
                    listed.is_some(),
                    listed.as_ref().is_some_and(|p| p.is_published),
                );
                let own = listed.is_none_or(|p| p.session == self.id());
                let is_due = is_listed || fault!("kv.older_published_later");
                let is_dead = record.seq <= engine.superblock.flushed_seq();
                situation!("kv.overtaken", !seen && !is_dead && !is_due);
                situation!("kv.flushed_before_published", is_dead);
                if seen || is_dead || !is_due {
                    if own {
                        locked.unlist(record.seq);
                    }
                    return if seen {
                        PublishOutcome::AlreadyPublished
                    } else {
                        PublishOutcome::Superseded
                    };
                }
                if self.update_index_locked(record, located) {
                    engine.keep_for_backup(&locked, record, key, located.found.as_ref());
                    unlist_older(&mut locked, record, key);
                    if own {
                        locked.unlist(record.seq);
                    } else if let Some(theirs) = locked.listed(record.seq) {
                        theirs.is_published = true;
                    }
                    return PublishOutcome::Now(located.found);
                }
            }
            situation!("kv.relocated");
            fresh = Some(engine.locate(record.hash, key));
        }
    }

    /// Updates the index from the located entry to `record`, and the counts. Returns false, with no effect, if the
    /// index has changed since the entry was located (KV-COMMIT-3). The caller holds the stripe's lock.
    fn update_index_locked(&self, record: &PlannedRecord, located: &EntryLocation) -> bool {
        let engine = &*self.engine;
        let old = located.found;
        engine.read_cache.take(record.hash); // KV-CACHE-2
        let swung = match (old, record.what) {
            (Some(old), RecordType::Put) => engine.index.replace(record.hash, old.at, record.at),
            (Some(old), _) => engine.index.remove(record.hash, old.at),
            (None, what) => {
                let fresh = engine.confirm(record.hash, located);
                if fresh && what == RecordType::Put {
                    engine.insert(record.hash, record.at);
                }
                fresh
            }
        };
        if !swung {
            return false;
        }
        if record.what == RecordType::Put {
            self.count_put(old, record);
        } else {
            engine.segments.mark_tombstone(record.at, record.len);
            self.count_old(old);
            self.count_keys(record.db, -i64::from(old.is_some()));
        }
        true
    }

    /// Counts a value that the index now refers to instead of `old`. The caller holds the stripe's lock.
    #[inline(always)]
    pub(crate) fn count_put(&self, old: Option<FoundRecord>, record: &PlannedRecord) {
        self.count_old(old);
        self.engine.segments.mark_live(record.at, record.len);
        let info = self.engine.info_at(record.at);
        info.note_expiry(record.expires_ms);
        self.count_keys(record.db, i64::from(old.is_none()));
    }

    fn count_old(&self, old: Option<FoundRecord>) {
        if let Some(old) = old {
            self.engine.segments.mark_dead(old.at, old.len);
            let expires_ms = old.header.map_or(0, |header| header.expires_ms());
            if expires_ms != 0 && expires_ms <= self.engine.now_ms() {
                self.engine.counters.expired.fetch_add(1, Relaxed);
            }
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

/// Unlists drained writes of `key` that `record` supersedes before they were published.
fn unlist_older(locked: &mut LockedStripe<'_>, record: &PlannedRecord, key: Key<'_>) {
    let older = locked.of(record.hash).filter(|p| p.seq < record.seq);
    let is_of_key = |p: &&PendingWrite| p.drained.as_ref().is_some_and(|d| d.key() == key);
    let older: Vec<u64> = older.filter(is_of_key).map(|p| p.seq).collect();
    situation!("kv.drained_twice", !older.is_empty());
    for seq in older {
        locked.unlist(seq);
    }
}

/// Gives a batch's pending writes their ticket and the batch. From then on, another session may supersede one of them,
/// and it publishes the write's run with its own.
pub(crate) fn list_drained<M: Medium>(
    engine: &Engine<M>,
    batch: &Arc<PlannedBatch>,
    ticket: Ticket,
) {
    // The ticket may become durable before all of them have it. Overlapping readers retry (KV-GROUP-2).
    let group = batch.runs().any(|(_, at_once)| at_once);
    let _group = group.then(|| engine.pending.publish_group());
    let numbered = batch.writes().iter().enumerate();
    for (number, write) in numbered.filter(|(_, write)| !write.superseded) {
        let mut locked = engine.stripe(write.record.hash).lock();
        let drained = DrainedWrite::new(ticket, batch, number);
        locked.mark_drained(write.record.seq, drained);
    }
}
