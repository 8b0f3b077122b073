//! Waiting for another session: what a write does about a key that another session has staged a write of.
//!
//! ```text
//!   session A   put k ── staged ........................ commit, or drop
//!   session B        put k ── nothing staged? ── sleeps ─────────────────▶ goes on
//!                             something staged: commits it first, or is refused
//! ```
//!
//! A session sleeps on its key's stripe. Draining a write and taking it off the list both wake it (W5).

use std::time::{Duration, Instant};

use farbank_pm::Medium;
use farbank_pm::process_stamp::this_thread;
use farbank_pm::sync::Arc;

use crate::session::KvSession;
use crate::store::{CONFLICT_WAIT, ConflictPolicy, Error};

/// How long a session sleeps before it looks whether the medium has failed: a failed session drains nothing.
const NAP: Duration = Duration::from_millis(100);

impl<M: Medium> KvSession<M> {
    /// Waits until no other session has yet to drain a write of `hash`'s key (N2). Nothing may be locked.
    pub(crate) fn wait_for_other(&mut self, hash: u64) -> Result<(), Error> {
        self.engine.check_poison()?;
        if !self.writes.is_empty() {
            match self.conflicts {
                ConflictPolicy::Refuse => return Err(Error::Conflict),
                ConflictPolicy::Commit => self.commit_batch().map(drop)?,
            }
        }
        self.unpin();
        let engine = Arc::clone(&self.engine);
        let stripe = engine.stripe(hash);
        if let Some(theirs) = stripe.lock().foreign(hash, self.id)
            && theirs.thread != 0
            && theirs.thread == this_thread()
        {
            return Err(Error::Conflict);
        }
        let begun = Instant::now();
        while !stripe.wait_for_others(hash, self.id, NAP) {
            engine.check_poison()?;
            if self.conflicts == ConflictPolicy::Refuse && begun.elapsed() >= CONFLICT_WAIT {
                return Err(Error::Conflict);
            }
        }
        self.pin();
        Ok(())
    }
}
