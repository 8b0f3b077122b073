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
//!
//! # Dead owners
//! A client that waits for the same owner for [`crate::Config::doubt_ns`] asks the lease manager. If the owner's lease
//! has expired, the lease manager fences the owner on every memory server, and the client swaps its own identity into
//! the lock. Unfinished operations of the dead owner need no immediate repair: each write of an operation leaves a
//! consistent tree (see the crate).

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Poll, Waker};

use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::{Fabric, GAddr, ServiceRequest, ServiceResponse, Verb};
use farbank_pm::fault;
use farbank_pm::rng::Rng;

use crate::TreeError;
use crate::client::Client;
use crate::config::{Config, HOST_LOCKS_MAX, LocalLockMode, LockPlacement, ReleasePolicy};
use crate::phase::{Phase, PhaseGuard};

/// Bits of a lock in the network card.
const LOCK_BITS: u32 = 16;
const EPOCH_BITS: u32 = 6;
/// Offset of the locks in host memory, one word each. The tree's superblock is before them.
const HOST_LOCKS_AT: u64 = 4096;
/// Bytes at the start of each server's host memory that are not used for chunks.
pub(crate) const RESERVED_BYTES: u64 = HOST_LOCKS_AT + HOST_LOCKS_MAX * 8;

/// A global lock: its word, and its bits in the word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LockWord {
    word: GAddr,
    shift: u32,
    bits: u32,
}

impl LockWord {
    /// Returns the lock of the node at `node`.
    pub(crate) fn of<F: Fabric>(fabric: &F, config: &Config, node: GAddr) -> LockWord {
        let caps = fabric.caps(node.server());
        let hash = Rng::new(node.0).draw();
        let chip = config.locks == LockPlacement::OnChip && caps.lock_bytes > 0;
        match (chip, caps.masked_cas) {
            (true, true) => {
                let lock = hash % (caps.lock_bytes * 8 / u64::from(LOCK_BITS));
                LockWord {
                    word: GAddr::lock(node.server(), lock / 4 * 8),
                    shift: (lock % 4) as u32 * LOCK_BITS,
                    bits: LOCK_BITS,
                }
            }
            (true, false) => {
                LockWord::whole(GAddr::lock(node.server(), hash % (caps.lock_bytes / 8) * 8))
            }
            (false, _) => LockWord::whole(GAddr::host(
                node.server(),
                HOST_LOCKS_AT + hash % config.host_locks * 8,
            )),
        }
    }

    fn whole(word: GAddr) -> LockWord {
        LockWord {
            word,
            shift: 0,
            bits: 64,
        }
    }

    fn mask(&self) -> u64 {
        (u64::MAX >> (64 - self.bits)) << self.shift
    }

    fn swap(&self, old: u64, new: u64) -> Verb {
        Verb::masked_cas(self.word, old << self.shift, new << self.shift, self.mask())
    }

    fn owner(&self, word: u64) -> u64 {
        (word & self.mask()) >> self.shift
    }

    /// Returns the outcome for the next waiter after the holder has failed with `error`.
    fn after(&self, error: TreeError) -> WaitOutcome {
        use farbank_fabric::FabricError::{Empty, Fenced, Timeout};
        match error {
            TreeError::Fabric(Timeout { server } | Empty { server })
                if server == self.word.server() =>
            {
                WaitOutcome::Failed(error)
            }
            TreeError::Fabric(Fenced) => WaitOutcome::Failed(error),
            _ => WaitOutcome::Local,
        }
    }

    /// Returns the verb that releases the lock.
    fn release(&self, how: ReleasePolicy, owner: u64) -> Verb {
        match how {
            ReleasePolicy::FetchAdd => Verb::add(self.word, (owner << self.shift).wrapping_neg()),
            ReleasePolicy::Write => {
                let bytes = vec![0; self.bits as usize / 8];
                Verb::write(self.word.plus(u64::from(self.shift) / 8), bytes)
            }
        }
    }
}

/// Counts the locks on `servers` memory servers that are owned by compute server `compute` with epoch `epoch`.
#[cfg(feature = "check")]
pub(crate) fn count_locks_of(
    sim: &farbank_fabric::sim::SimCluster,
    config: &Config,
    servers: u16,
    lock_bytes: u64,
    compute: u16,
    epoch: u8,
) -> u64 {
    let owner = name(compute, epoch);
    let mut count = 0;
    for server in 0..servers {
        let (at, bytes, each) = match config.locks {
            LockPlacement::OnChip => (GAddr::lock(server, 0), lock_bytes, LOCK_BITS as usize / 8),
            LockPlacement::Host => (GAddr::host(server, HOST_LOCKS_AT), config.host_locks * 8, 8),
        };
        let mut all = vec![0; bytes as usize];
        sim.peek(at, &mut all);
        let expected = &owner.to_le_bytes()[..each];
        count += all.chunks(each).filter(|lock| *lock == expected).count();
    }
    count as u64
}

/// Encodes an owner for the lock word.
fn name(compute: u16, epoch: u8) -> u64 {
    (u64::from(compute + 1) << EPOCH_BITS) | (u64::from(epoch) % (1 << EPOCH_BITS))
}

/// A client that waits for a local lock.
struct LockWaiter {
    number: u64,
    waker: Waker,
}

/// The result of waiting for a local lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitOutcome {
    /// The local lock only: the client must request the global lock.
    Local,
    /// The local and the global lock.
    HandedOver,
    /// No lock: it is unavailable.
    Failed(TreeError),
}

#[derive(Default)]
struct LocalLock {
    waiting: VecDeque<LockWaiter>,
    /// The waiter that was selected but has not run yet, with its outcome.
    called: Option<(u64, WaitOutcome)>,
    /// Number of hand-overs since the global lock was taken.
    handed: u32,
}

/// The local locks that are held now, with their queues.
#[derive(Default)]
pub(crate) struct LocalLockTable {
    held: HashMap<LockWord, LocalLock>,
    numbers: u64,
}

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
pub(crate) enum ReleaseMode {
    /// By this verb, in a batch or alone, followed by [`Client::release`].
    Remote(Verb),
    /// By hand-over to the next client: nothing is sent.
    HandedOver,
}

impl<F: Fabric> Client<F> {
    /// Takes the lock of `node`.
    pub(crate) async fn lock(&self, node: GAddr) -> Result<HeldLock, TreeError> {
        let slot = LockWord::of(&self.home.fabric, &self.home.config, node);
        if self.home.config.local != LocalLockMode::None {
            match wait_for_turn(&self.home.locks, slot).await {
                WaitOutcome::Local => {}
                WaitOutcome::HandedOver => return Ok(self.held(slot, true)),
                WaitOutcome::Failed(error) => {
                    self.pass_on(slot, WaitOutcome::Failed(error));
                    return Err(error);
                }
            }
        }
        match self.take(slot).await {
            Ok(()) => Ok(self.held(slot, false)),
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
        let slot = LockWord::of(&self.home.fabric, &self.home.config, node);
        if self.home.config.local != LocalLockMode::None {
            let mut table = self.home.locks.borrow_mut();
            if table.held.contains_key(&slot) {
                return Ok(None);
            }
            table.held.insert(slot, LocalLock::default());
        }
        let found = self.round_trip(slot.swap(0, self.name())).await;
        match found.map(|verb| slot.owner(verb.found())) {
            Ok(0) => Ok(Some(self.held(slot, false))),
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
        LockWord::of(&self.home.fabric, &self.home.config, node) == held.slot
    }

    fn name(&self) -> u64 {
        name(self.home.compute, self.home.epoch)
    }

    /// Takes the global lock, if necessary from a dead owner. Failed attempts are counted as lock retries, not as round
    /// trips.
    async fn take(&self, slot: LockWord) -> Result<(), TreeError> {
        let me = self.name();
        let (mut expected, mut owner, mut since) = (0, 0, self.home.fabric.now());
        let mut tries = 0;
        loop {
            let verb = self.home.fabric.verb(slot.swap(expected, me)).await?;
            let found = slot.owner(verb.found());
            if found == expected {
                self.note(|op| {
                    op.round_trips += 1;
                    op.lock_retries += tries;
                    op.taken_over += u32::from(expected != 0);
                });
                return Ok(());
            }
            tries += 1;
            expected = 0;
            if found != owner || found == 0 {
                (owner, since) = (found, self.home.fabric.now());
            } else if self.home.fabric.now() - since > self.home.config.doubt_ns {
                since = self.home.fabric.now();
                if fault!("tree.owner_not_fenced") || self.is_dead(owner).await? {
                    expected = owner; // TREE-LOCK-3
                }
            }
        }
    }

    /// Returns whether the owner's epoch has ended for good: it is fenced (TREE-LOCK-3).
    async fn is_dead(&self, owner: u64) -> Result<bool, TreeError> {
        let compute = (owner >> EPOCH_BITS) as u16 - 1;
        let epoch = (owner % (1 << EPOCH_BITS)) as u8;
        if compute == self.home.compute && epoch == self.home.epoch {
            return Ok(false);
        }
        let answer = self
            .call(LEASE_SERVER, ServiceRequest::CheckLease { compute, epoch })
            .await?;
        Ok(answer == ServiceResponse::Expired)
    }

    /// Returns how `held` is to be released: by a verb that the caller sends, or by hand-over.
    pub(crate) fn release_mode(&self, held: &HeldLock) -> ReleaseMode {
        if let LocalLockMode::HandOver(times_max) = self.home.config.local {
            let table = self.home.locks.borrow();
            let local = &table.held[&held.slot];
            if !local.waiting.is_empty() && local.handed < times_max {
                return ReleaseMode::HandedOver;
            }
        }
        ReleaseMode::Remote(held.slot.release(self.home.config.release, self.name()))
    }

    /// Ends the hold, after the caller has sent the verb of [`Client::release_mode`], if there is one.
    pub(crate) fn release(&self, held: HeldLock, how: &ReleaseMode, error: Option<TreeError>) {
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
        if self.home.config.local == LocalLockMode::None {
            return;
        }
        let mut table = self.home.locks.borrow_mut();
        let numbers = table.numbers;
        let local = table.held.get_mut(&slot).expect("it is held");
        let next = match (self.home.config.local, local.waiting.len() as u64) {
            (_, 0) => None,
            (LocalLockMode::Table, n) => local
                .waiting
                .swap_remove_back(Rng::new(numbers).below(n) as usize),
            _ => local.waiting.pop_front(),
        };
        let Some(next) = next else {
            table.held.remove(&slot);
            return;
        };
        local.handed = match turn {
            WaitOutcome::Local | WaitOutcome::Failed(_) => 0,
            WaitOutcome::HandedOver => local.handed + 1,
        };
        local.called = Some((next.number, turn));
        next.waker.wake();
    }
}

/// Waits for the local lock of `slot`.
async fn wait_for_turn(table: &Rc<RefCell<LocalLockTable>>, slot: LockWord) -> WaitOutcome {
    let number = {
        let mut table = table.borrow_mut();
        table.numbers += 1;
        let number = table.numbers;
        if let Entry::Vacant(free) = table.held.entry(slot) {
            free.insert(LocalLock::default());
            return WaitOutcome::Local;
        }
        number
    };
    let mut listed = false;
    std::future::poll_fn(|context| {
        let mut table = table.borrow_mut();
        let local = table.held.get_mut(&slot).expect("it is held");
        if let Some((called, turn)) = local.called
            && called == number
        {
            local.called = None;
            return Poll::Ready(turn);
        }
        if !listed {
            listed = true;
            let waker = context.waker().clone();
            local.waiting.push_back(LockWaiter { number, waker });
        }
        Poll::Pending
    })
    .await
}
