//! Access to the pool: its medium, and whether the pool can still be used.
//!
//! An error of the medium *poisons* the pool: nothing is acknowledged any more. A forked child must not use the pool
//! of its parent.

use farbank_pm::fault;
use farbank_pm::pool::Pool;
use farbank_pm::process_stamp::ProcessStamp;
use farbank_pm::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use farbank_pm::sync::{Mutex, unpoisoned};
use farbank_pm::{Caps, Drain, Medium, Poisoned, Ticket};

/// An open pool and its state.
pub(crate) struct PoolAccess<M: Medium> {
    pool: Pool<M>,
    /// The process that opened the pool.
    process: ProcessStamp,
    poisoned: Mutex<Option<Poisoned>>,
    is_poisoned: AtomicBool,
}

impl<M: Medium> PoolAccess<M> {
    pub(crate) fn new(pool: Pool<M>) -> PoolAccess<M> {
        PoolAccess {
            pool,
            process: ProcessStamp::current(),
            poisoned: Mutex::default(),
            is_poisoned: AtomicBool::new(false),
        }
    }

    pub(crate) fn pool(&self) -> &Pool<M> {
        &self.pool
    }

    pub(crate) fn into_medium(self) -> M {
        self.pool.into_medium()
    }

    #[inline]
    pub(crate) fn medium(&self) -> &M {
        self.pool.medium()
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.medium().caps()
    }

    /// Returns whether a drain's ticket is durable as soon as it is issued.
    #[inline]
    pub(crate) fn tickets_are_durable_at_once(&self) -> bool {
        self.caps().drain != Drain::Sync
    }

    /// Returns whether a completed ticket proves durability. With relaxed drains only a settle proves it. Then no
    /// record may certify the records before it, and no segment is sealed.
    #[inline]
    pub(crate) fn drains_are_real(&self) -> bool {
        self.caps().drain != Drain::Relaxed
    }

    /// Returns whether the calling process opened the pool.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    /// Fails in a forked child.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Poisoned> {
        self.process.check()
    }

    /// Poisons the pool: nothing is acknowledged any more.
    pub(crate) fn poison(&self, why: &Poisoned) {
        unpoisoned(self.poisoned.lock()).get_or_insert_with(|| why.clone());
        self.is_poisoned.store(true, Release);
    }

    #[inline]
    pub(crate) fn check_poison(&self) -> Result<(), Poisoned> {
        if !self.is_poisoned.load(Acquire) {
            return self.process.check();
        }
        match &*unpoisoned(self.poisoned.lock()) {
            Some(poisoned) => Err(poisoned.clone()),
            None => Ok(()),
        }
    }

    /// Polls a ticket. An error poisons the pool.
    pub(crate) fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.medium()
            .poll(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Waits until everything drained so far is certainly durable. An error poisons the pool.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if fault!("kv.settled_by_tickets") {
            return self.wait(ticket);
        }
        self.medium()
            .wait_until_durable(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Waits for a ticket. An error poisons the pool.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.medium()
            .wait(ticket)
            .inspect_err(|why| self.poison(why))
    }
}
