//! Locks as data: the word of a global lock, and the table of local locks with their queues.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Poll, Waker};

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::rng::Rng;

use crate::config::{Config, LocalLockMode, LockPlacement, ReleasePolicy};
use crate::error::TreeError;
use crate::superblock::HOST_LOCKS_AT;

/// Bits of a lock in the network card.
const LOCK_BITS: u32 = 16;
const EPOCH_BITS: u32 = 6;

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

    /// Returns the verb that changes the owner from `old` to `new`.
    pub(crate) fn swap(&self, old: u64, new: u64) -> Verb {
        Verb::masked_cas(self.word, old << self.shift, new << self.shift, self.mask())
    }

    /// Returns the verb that reads the lock's word.
    pub(crate) fn read(&self) -> Verb {
        Verb::read(self.word, 8)
    }

    /// Returns the owner in the bytes of the lock's word.
    pub(crate) fn owner_in(&self, bytes: &[u8]) -> u64 {
        let word = bytes.first_chunk().expect("a word was read");
        self.owner(u64::from_le_bytes(*word))
    }

    /// Returns the owner in a copy of the lock's word; 0: the lock is free.
    pub(crate) fn owner(&self, word: u64) -> u64 {
        (word & self.mask()) >> self.shift
    }

    /// Returns the outcome for the next waiter after the holder has failed with `error`.
    pub(crate) fn after(&self, error: TreeError) -> WaitOutcome {
        use farbank_fabric::FabricError::{Damaged, Empty, Fenced, Timeout};
        match error {
            TreeError::Fabric(Timeout { server } | Empty { server } | Damaged { server })
                if server == self.word.server() =>
            {
                WaitOutcome::Failed(error)
            }
            TreeError::Fabric(Fenced) => WaitOutcome::Failed(error),
            _ => WaitOutcome::Local,
        }
    }

    /// Returns the verb that releases the lock.
    pub(crate) fn release(&self, how: ReleasePolicy, owner: u64) -> Verb {
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
    let owner = encode_owner(compute, epoch);
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
pub(crate) fn encode_owner(compute: u16, epoch: u8) -> u64 {
    (u64::from(compute + 1) << EPOCH_BITS) | (u64::from(epoch) % (1 << EPOCH_BITS))
}

/// Returns the compute server and the epoch of an owner.
pub(crate) fn decode_owner(owner: u64) -> (u16, u8) {
    let compute = (owner >> EPOCH_BITS) as u16 - 1;
    (compute, (owner % (1 << EPOCH_BITS)) as u8)
}

/// A client that waits for a local lock.
struct LockWaiter {
    number: u64,
    waker: Waker,
}

/// The result of waiting for a local lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
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

impl LocalLockTable {
    /// Takes the local lock of `slot` if it is free. Returns whether it was.
    pub(crate) fn try_take(&mut self, slot: LockWord) -> bool {
        match self.held.entry(slot) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(LocalLock::default());
                true
            }
        }
    }

    /// Returns whether a client waits for the held lock of `slot`, and the lock was handed over less than `times_max`
    /// times in a row.
    pub(crate) fn may_hand_over(&self, slot: LockWord, times_max: u32) -> bool {
        let local = &self.held[&slot];
        !local.waiting.is_empty() && local.handed < times_max
    }

    /// Passes the local lock to the next waiter, with `turn` as its outcome (TREE-LOCK-2).
    pub(crate) fn pass_on(&mut self, slot: LockWord, mode: LocalLockMode, turn: WaitOutcome) {
        let numbers = self.numbers;
        let local = self.held.get_mut(&slot).expect("it is held");
        let next = match (mode, local.waiting.len() as u64) {
            (_, 0) => None,
            (LocalLockMode::Table, n) => local
                .waiting
                .swap_remove_back(Rng::new(numbers).below(n) as usize),
            _ => local.waiting.pop_front(),
        };
        let Some(next) = next else {
            self.held.remove(&slot);
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
pub(crate) async fn wait_for_turn(
    table: &Rc<RefCell<LocalLockTable>>,
    slot: LockWord,
) -> WaitOutcome {
    let number = {
        let mut table = table.borrow_mut();
        table.numbers += 1;
        let number = table.numbers;
        if table.try_take(slot) {
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
