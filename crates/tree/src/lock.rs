//! Hierarchical locks on chip (Sherman, section 4.3).
//!
//! ```text
//!   client ──▶ local lock, one per global lock ──▶ global lock: 16 bits in the memory server's network card
//!              a queue of this compute server's                 epoch:6 │ compute server + 1:10; 0: free
//!              clients; hands over the global lock
//! ```
//!
//! A node's address hashes to a lock on the node's own server; several nodes can share one. The client that holds a
//! lock may write the nodes it covers. Only a merge holds several locks; it gives up instead of waiting for a further
//! lock.
//!
//! # Invariants
//! TREE-LOCK-1  At most one client of the cluster holds a lock. The word contains its compute server and that server's epoch.
//! TREE-LOCK-2  Clients of one compute server request the global lock one at a time, in the order of their queue.
//! TREE-LOCK-3  A lock is taken from a dead owner only after the lease manager has fenced the owner. So none of its writes can
//!     follow.
//! TREE-LOCK-4  A read in the batch that takes a lock is used only if that batch took the lock. Then the read follows the swap
//!     (FABRIC-2), and sees what the last owner wrote. With [`crate::Config::reads_with_lock`] a write so takes two round trips.
//!
//! # Dead owners
//! A client that waits for the same owner for [`crate::Config::doubt_ns`] asks the lease manager. If the owner's lease
//! has expired, the lease manager fences the owner on every memory server, and the client swaps its own identity into
//! the lock. Unfinished operations of the dead owner need no immediate repair: each write of an operation leaves a
//! consistent tree (see the crate). A reader that finds the same node torn for this time takes the node's lock in the same way
//! (`node_read`): on a fabric where a dying client can leave a part of a write, the fence completes it.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::client::Client;
use crate::config::LocalLockMode;
use crate::error::TreeError;
use crate::lock_table::{LockWord, WaitOutcome};
use crate::phase::{Phase, PhaseGuard};

/// A held lock.
#[must_use]
pub(crate) struct HeldLock {
    slot: LockWord,
    /// Whether another client of this compute server handed it over, without a round trip.
    pub(crate) handed: bool,
    /// Counts this client in phase `Holding`.
    _holding: PhaseGuard,
}

/// How a lock is released.
enum ReleaseMode {
    /// By this verb, in a batch or alone, followed by [`Client::release`].
    Remote(Verb),
    /// By hand-over to the next client: nothing is sent.
    HandedOver,
}

impl<F: Fabric> Client<F> {
    /// Takes the lock of `node`.
    pub(crate) async fn lock(&self, node: GAddr) -> Result<HeldLock, TreeError> {
        let (held, _) = self.lock_and_read(node, &[]).await?;
        Ok(held)
    }

    /// Takes the lock of `node`, and performs `reads` of its server in the same batch (TREE-LOCK-4). Returns the completed reads,
    /// or `None` if the caller has to perform them: the lock was handed over, or the configuration or the fabric excludes it.
    pub(crate) async fn lock_and_read(
        &self,
        node: GAddr,
        reads: &[Verb],
    ) -> Result<(HeldLock, Option<Vec<Verb>>), TreeError> {
        let slot = LockWord::of(self.fabric(), self.config(), node);
        if self.config().local != LocalLockMode::None {
            match self.local_locks().wait_for_turn(slot).await {
                WaitOutcome::Local => {}
                WaitOutcome::HandedOver => return Ok((self.held(slot, true), None)),
                WaitOutcome::Failed(error) => {
                    self.pass_on(slot, WaitOutcome::Failed(error));
                    return Err(error);
                }
            }
        }
        let together = !reads.is_empty()
            && self.config().reads_with_lock
            && self.fabric().caps(slot.server()).ordered;
        match self.take(slot, if together { reads } else { &[] }).await {
            Ok(found) => Ok((self.held(slot, false), together.then_some(found))),
            Err(error) => {
                self.pass_on(slot, slot.after(error));
                Err(error)
            }
        }
    }

    fn held(&self, slot: LockWord, handed: bool) -> HeldLock {
        HeldLock {
            slot,
            handed,
            _holding: self.begin(Phase::Holding),
        }
    }

    /// Takes and releases the lock of the node at `node`, to measure the cost of locks alone.
    pub async fn take_and_release(&self, node: GAddr) -> Result<(), TreeError> {
        let held = self.lock(node).await?;
        self.note(|op| op.handed_over = held.handed);
        self.unlock(held).await
    }

    /// Takes the lock of `node` if it is free.
    pub(crate) async fn try_lock(&self, node: GAddr) -> Result<Option<HeldLock>, TreeError> {
        self.try_lock_from(0, node).await
    }

    /// Takes the lock of `node` if `owner` has it; 0: if it is free. The owner is dead (TREE-LOCK-3).
    pub(crate) async fn try_lock_from(
        &self,
        owner: u64,
        node: GAddr,
    ) -> Result<Option<HeldLock>, TreeError> {
        let slot = LockWord::of(self.fabric(), self.config(), node);
        if self.config().local != LocalLockMode::None && !self.local_locks().try_take(slot) {
            return Ok(None);
        }
        let found = self.round_trip(slot.swap(owner, self.lock_owner())).await;
        match found.map(|verb| slot.owner(verb.found())) {
            Ok(found) if found == owner => Ok(Some(self.held(slot, false))),
            Ok(_) => {
                self.pass_on(slot, WaitOutcome::Local);
                Ok(None)
            }
            Err(error) => {
                self.pass_on(slot, slot.after(error));
                Err(error)
            }
        }
    }

    /// Returns whether `held` is also the lock of `node`.
    pub(crate) fn shares(&self, node: GAddr, held: &HeldLock) -> bool {
        LockWord::of(self.fabric(), self.config(), node) == held.slot
    }

    /// Takes the global lock, if necessary from a dead owner, and performs `reads` under it. Failed attempts are counted as lock
    /// retries, not as round trips.
    async fn take(&self, slot: LockWord, reads: &[Verb]) -> Result<Vec<Verb>, TreeError> {
        let me = self.lock_owner();
        let (mut expected, mut owner, mut since) = (0, 0, self.fabric().now());
        let mut tries = 0;
        let mut first_reads = None;
        loop {
            let mut verbs = vec![slot.swap(expected, me)];
            verbs.extend_from_slice(reads);
            let mut done = self.fabric().batch(slot.server(), verbs).await?;
            let found = slot.owner(done.remove(0).found());
            if fault!("tree.read_before_lock") {
                done = first_reads.get_or_insert(done).clone();
            }
            if found == expected {
                self.note(|op| {
                    op.round_trips += 1;
                    op.lock_retries += tries;
                    op.taken_over += u32::from(expected != 0);
                });
                return Ok(done);
            }
            if found == me {
                // A client of this compute server could not release it, because the server did not answer.
                self.reachable(slot.server())?;
            }
            tries += 1;
            expected = 0;
            if found != owner || found == 0 {
                (owner, since) = (found, self.fabric().now());
            } else if self.fabric().now() - since > self.config().doubt_ns {
                since = self.fabric().now();
                if fault!("tree.owner_not_fenced") || self.is_dead(owner).await? {
                    expected = owner; // TREE-LOCK-3
                }
            }
        }
    }

    /// Returns how `held` is to be released: by a verb that the caller sends, or by hand-over.
    fn release_mode(&self, held: &HeldLock) -> ReleaseMode {
        if let LocalLockMode::HandOver(times_max) = self.config().local
            && self.local_locks().may_hand_over(held.slot, times_max)
        {
            return ReleaseMode::HandedOver;
        }
        ReleaseMode::Remote(held.slot.release(self.config().release, self.lock_owner()))
    }

    /// Ends the hold, after the caller has sent the verb of [`Client::release_mode`], if there is one.
    fn release(&self, held: HeldLock, how: &ReleaseMode, error: Option<TreeError>) {
        let turn = match (error, how) {
            (Some(error), _) if held.slot.after(error) != WaitOutcome::Local => {
                held.slot.after(error)
            }
            (_, ReleaseMode::Remote(_)) => WaitOutcome::Local,
            (_, ReleaseMode::HandedOver) => WaitOutcome::HandedOver,
        };
        self.pass_on(held.slot, turn);
    }

    /// Releases `held` after `error`, as far as possible, and returns `error`. If the lock is unreachable, all local
    /// waiters fail with the error at once, instead of after one timeout each.
    pub(crate) async fn unlock_after(&self, held: HeldLock, error: TreeError) -> TreeError {
        match held.slot.after(error) {
            WaitOutcome::Failed(_) => self.pass_on(held.slot, WaitOutcome::Failed(error)),
            _ => {
                let _ = self.unlock(held).await;
            }
        }
        error
    }

    /// Releases `held`, without a write.
    pub(crate) async fn unlock(&self, held: HeldLock) -> Result<(), TreeError> {
        let letting = self.release_mode(&held);
        let done = match &letting {
            ReleaseMode::Remote(verb) => self.round_trip(verb.clone()).await.map(|_| ()),
            ReleaseMode::HandedOver => Ok(()),
        };
        self.release(held, &letting, done.err());
        done
    }

    /// Passes the local lock to the next waiter (TREE-LOCK-2).
    fn pass_on(&self, slot: LockWord, turn: WaitOutcome) {
        let mode = self.config().local;
        if mode != LocalLockMode::None {
            self.local_locks().pass_on(slot, mode, turn);
        }
    }

    /// Performs `writes`, to one server and in order, and releases `held`: in one batch, if the configuration and the
    /// fabric allow it.
    pub(crate) async fn write_and_unlock(
        &self,
        held: HeldLock,
        mut writes: Vec<Verb>,
    ) -> Result<(), TreeError> {
        let bytes: usize = writes.iter().map(carried).sum();
        self.note(|op| op.bytes_written += bytes as u32);
        let letting = self.release_mode(&held);
        let server = writes[0].at().server();
        let ordered = self.config().combine && self.fabric().caps(server).ordered;
        if let (true, ReleaseMode::Remote(release)) = (ordered, &letting) {
            match fault!("tree.released_before_written") {
                true => drop(self.round_trip(release.clone()).await?),
                false => writes.push(release.clone()),
            }
        }
        let done = self.write_all(server, writes, ordered).await;
        let released = match (&letting, ordered, &done) {
            (ReleaseMode::Remote(release), false, Ok(())) => self.release_alone(release).await,
            _ => Ok(()),
        };
        let done = done.and(released);
        self.release(held, &letting, done.err());
        done
    }

    async fn release_alone(&self, release: &Verb) -> Result<(), TreeError> {
        for _ in 0..self.config().lone_release_trips {
            self.round_trip(Verb::read(release.at(), 8)).await?;
        }
        self.round_trip(release.clone()).await.map(|_| ())
    }
}

fn carried(verb: &Verb) -> usize {
    match verb {
        Verb::Write { bytes, .. } => bytes.len(),
        _ => 0,
    }
}
