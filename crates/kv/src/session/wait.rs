//! Waiting for another session: the treatment of a write whose key another session has staged, or guards for a staged
//! group (KV-PEND-6).
//!
//! ```text
//!   session A   put k ── staged ........................ commit, or drop
//!   session B        put k ── nothing staged? ── sleeps ─────────────────▶ goes on
//!                             something staged: commits it first, or is refused
//! ```
//!
//! A session sleeps on its key's stripe. It is woken when a pending write is drained or removed (KV-PEND-5).

use std::time::{Duration, Instant};

use farbank_pm::Medium;
use farbank_pm::process_stamp::this_thread;
use farbank_pm::sync::Arc;

use crate::session::KvSession;
use farbank_store::{CONFLICT_WAIT, ConflictPolicy, Error};

/// How long a session sleeps before it checks whether the medium has failed. After a failure no session drains.
const NAP: Duration = Duration::from_millis(100);

impl<M: Medium> KvSession<M> {
    /// Waits until no other session has an undrained write of `hash`'s key, or guards it (KV-COMMIT-2). Nothing may be
    /// locked.
    ///
    /// # Errors
    /// [`Error::Conflict`] if this thread staged the other write, or if this session must not wait with its staged
    /// writes.
    pub(crate) fn wait_for_other(&mut self, hash: u64) -> Result<(), Error> {
        self.engine.check_poison()?;
        if !self.batch.planned.is_empty() {
            match self.conflicts {
                ConflictPolicy::Refuse => return Err(Error::Conflict),
                ConflictPolicy::Commit => self.commit_batch().map(drop)?,
            }
        }
        self.unpin();
        let engine = Arc::clone(&self.engine);
        let stripe = engine.stripe(hash);
        if let Some(theirs) = stripe.lock().foreign(hash, self.id())
            && theirs != 0
            && theirs == this_thread()
        {
            return Err(Error::Conflict);
        }
        let begun = Instant::now();
        while !stripe.wait_for_others(hash, self.id(), NAP) {
            engine.check_poison()?;
            if self.conflicts == ConflictPolicy::Refuse && begun.elapsed() >= CONFLICT_WAIT {
                return Err(Error::Conflict);
            }
        }
        self.pin();
        Ok(())
    }
}
