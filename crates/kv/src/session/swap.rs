//! The exchange of two databases, and what other sessions do meanwhile. The invariants KV-SWAP-1 to 5 are in
//! `engine::databases`.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use farbank_pm::fault;
use farbank_pm::process_stamp::this_thread;
use farbank_pm::situation;
use farbank_pm::sync::{Arc, thread};
use farbank_pm::{Medium, Ticket};
use farbank_store::{CONFLICT_WAIT, ConflictPolicy, Error, Key};

use super::{KvSession, check_database};
use crate::pending::planned::DrainedWrite;

/// How long a swap sleeps while another session has staged writes.
const NAP: Duration = Duration::from_micros(200);
/// How long a session sleeps before it checks whether the medium has failed.
const HELD_NAP: Duration = Duration::from_millis(100);

/// A write of another session, for which a swap waits.
enum EarlierWrite {
    /// The thread that has staged it; 0: not known.
    Staged(u32),
    Drained(DrainedWrite),
}

impl<M: Medium> KvSession<M> {
    /// Begins an operation on `key`: returns it as records have it.
    #[inline(always)]
    pub(crate) fn stored<'k>(&mut self, key: Key<'k>) -> Key<'k> {
        self.view = self.engine.databases.map.view();
        self.view.map.stored_key(key)
    }

    /// As [`KvSession::stored`], for several keys.
    pub(crate) fn stored_keys<'s, 'k>(&mut self, keys: &'s [Key<'k>]) -> Cow<'s, [Key<'k>]> {
        self.view = self.engine.databases.map.view();
        let map = self.view.map;
        let is_same = |key: &Key<'_>| map.stored(key.db) == key.db;
        match keys.iter().all(is_same) {
            true => Cow::Borrowed(keys),
            false => keys.iter().map(|key| map.stored_key(*key)).collect(),
        }
    }

    /// Returns whether the mapping is still the one with which the operation has translated its keys (KV-SWAP-3).
    #[inline(always)]
    pub(crate) fn is_same_mapping(&self) -> bool {
        self.engine.databases.map.is_current(&self.view) || fault!("kv.swap_unseen_by_reads")
    }

    /// Returns whether a write must wait for a swap, or translate its key again (KV-SWAP-2). The caller holds the lock of the
    /// key's stripe.
    #[inline(always)]
    pub(crate) fn is_held_back(&self) -> bool {
        let databases = &self.engine.databases;
        let is_changed =
            !databases.map.is_current(&self.view) && !fault!("kv.swap_unseen_by_writes");
        databases.is_held() || is_changed
    }

    /// Waits until writes are not held. Nothing may be locked (KV-SWAP-5).
    ///
    /// # Errors
    /// [`Error::Conflict`] if this session must not wait with its staged writes.
    pub(crate) fn wait_for_swap(&mut self) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        if !engine.databases.is_held() {
            return Ok(());
        }
        if !self.batch.planned.is_empty() && self.conflicts == ConflictPolicy::Refuse {
            return Err(Error::Conflict);
        }
        let ticket = self.commit_batch()?;
        self.settle(ticket)?;
        self.unpin();
        while !engine.databases.wait(HELD_NAP) {
            engine.check_poison()?;
        }
        Ok(())
    }

    /// See [`Session::swap_databases`](farbank_store::Session::swap_databases).
    pub(crate) fn swap(&mut self, first: u8, second: u8) -> Result<(), Error> {
        self.engine.check_poison()?;
        check_database(first)?;
        check_database(second)?;
        let ticket = self.commit_batch()?;
        self.settle(ticket)?;
        self.unpin();
        if first == second {
            return Ok(());
        }
        let engine = Arc::clone(&self.engine);
        let _only = engine.databases.lock_swap();
        let held = engine.databases.hold(&engine.cleaning.requests);
        if !fault!("kv.swap_before_pending") {
            self.await_earlier_writes()?;
        }
        engine.settle(Ticket::DURABLE)?; // KV-SWAP-4, where tickets prove nothing.
        if !fault!("kv.swap_volatile") {
            engine.set_root(|words| words.databases = words.databases.swapped(first, second))?;
        }
        let stripes = engine.pending.lock_all_briefly();
        engine.databases.map.swap(first, second);
        drop(stripes);
        drop(held);
        Ok(())
    }

    /// Waits until every write of every session is published. Writes are held, so there are no new ones.
    ///
    /// # Errors
    /// [`Error::Conflict`] if this thread has staged a write with another session. [`Error::Unsettled`] if a session holds
    /// a staged write for too long.
    fn await_earlier_writes(&mut self) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let began = Instant::now();
        while let Some(earlier) = self.earlier_write() {
            match earlier {
                EarlierWrite::Drained(write) => {
                    situation!("kv.swap_publishes");
                    engine.access().wait(write.ticket)?;
                    self.publish_batch_of_another(write.batch());
                }
                EarlierWrite::Staged(thread) if thread != 0 && thread == this_thread() => {
                    return Err(Error::Conflict);
                }
                EarlierWrite::Staged(_) if began.elapsed() > CONFLICT_WAIT => {
                    return Err(Error::Unsettled);
                }
                EarlierWrite::Staged(_) => {
                    engine.check_poison()?;
                    thread::yield_now(); // For schedulers of tests, in which sleeping takes no time.
                    thread::sleep(NAP);
                }
            }
        }
        Ok(())
    }

    /// Returns a write that is not published: a staged one, or else the one that was drained first. So the batches of a
    /// session become visible in their order.
    fn earlier_write(&self) -> Option<EarlierWrite> {
        let mut first: Option<DrainedWrite> = None;
        for stripe in self.engine.pending.stripes() {
            for pending in stripe.lock().unpublished() {
                let Some(drained) = &pending.drained else {
                    return Some(EarlierWrite::Staged(pending.thread));
                };
                if first.as_ref().is_none_or(|f| drained.ticket < f.ticket) {
                    first = Some(drained.clone());
                }
            }
        }
        first.map(EarlierWrite::Drained)
    }
}
