//! Locks as data: the word of a global lock, and the table of local locks with their queues.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use crossbeam_utils::CachePadded;
use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::rng::Rng;
use farbank_pm::sync::unpoisoned;

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

    /// Returns the memory server that has the lock.
    pub(crate) fn server(&self) -> u16 {
        self.word.server()
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
type HeldLocks = HashMap<LockWord, LocalLock>;

/// The local locks of a compute server, for all its threads.
///
/// # Invariants
/// TREE-LLT-1  A lock is in the table from the moment when a client takes it until a client passes it on while nothing
///     waits. So it is in the table while a client waits for it.
/// TREE-LLT-2  A client finds a lock held and joins its queue in one step, under the lock of the part of the table.
pub(crate) struct LocalLockTable {
    parts: Vec<CachePadded<Mutex<HeldLocks>>>,
    numbers: CachePadded<AtomicU64>,
}

impl LocalLockTable {
    pub(crate) fn new() -> LocalLockTable {
        /// Parts of the table, so that threads seldom wait for each other.
        const PARTS: usize = 64;
        LocalLockTable {
            parts: (0..PARTS).map(|_| CachePadded::default()).collect(),
            numbers: CachePadded::default(),
        }
    }

    /// Locks the part of `slot`. No holder of the lock panics.
    fn part(&self, slot: LockWord) -> MutexGuard<'_, HeldLocks> {
        let place = slot.word.0 / 8 * 4 + u64::from(slot.shift / LOCK_BITS);
        unpoisoned(self.parts[place as usize % self.parts.len()].lock())
    }

    /// Takes the local lock of `slot` if it is free. Returns whether it was.
    pub(crate) fn try_take(&self, slot: LockWord) -> bool {
        take_free(&mut self.part(slot), slot)
    }

    /// Returns whether a client waits for the held lock of `slot`, and the lock was handed over less than `times_max`
    /// times in a row. Only the holder passes the lock on, so a client that waits continues to wait.
    pub(crate) fn may_hand_over(&self, slot: LockWord, times_max: u32) -> bool {
        let local = &self.part(slot)[&slot];
        !local.waiting.is_empty() && local.handed < times_max
    }

    /// Passes the local lock to the next waiter, with `turn` as its outcome (TREE-LOCK-2).
    pub(crate) fn pass_on(&self, slot: LockWord, mode: LocalLockMode, turn: WaitOutcome) {
        let mut held = self.part(slot);
        let local = held.get_mut(&slot).expect("it is held");
        let next = match (mode, local.waiting.len() as u64) {
            (_, 0) => None,
            (LocalLockMode::Table, n) => {
                let drawn = Rng::new(self.numbers.load(Ordering::Relaxed)).below(n);
                local.waiting.swap_remove_back(drawn as usize)
            }
            _ => local.waiting.pop_front(),
        };
        let Some(next) = next else {
            held.remove(&slot);
            return;
        };
        local.handed = match turn {
            WaitOutcome::Local | WaitOutcome::Failed(_) => 0,
            WaitOutcome::HandedOver => local.handed + 1,
        };
        local.called = Some((next.number, turn));
        drop(held);
        next.waker.wake();
    }

    /// Takes the local lock of `slot`, or waits for it.
    pub(crate) async fn wait_for_turn(&self, slot: LockWord) -> WaitOutcome {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut is_listed = false;
        poll_fn(|context| {
            let mut held = self.part(slot);
            if !is_listed && take_free(&mut held, slot) {
                return Poll::Ready(WaitOutcome::Local);
            }
            let local = held.get_mut(&slot).expect("it is held"); // TREE-LLT-1
            if let Some((called, turn)) = local.called
                && called == number
            {
                local.called = None;
                return Poll::Ready(turn);
            }
            if !is_listed {
                is_listed = true;
                let waker = context.waker().clone();
                local.waiting.push_back(LockWaiter { number, waker });
            }
            Poll::Pending
        })
        .await
    }
}

/// Takes the lock of `slot` if it is free. Returns whether it was.
fn take_free(held: &mut HeldLocks, slot: LockWord) -> bool {
    match held.entry(slot) {
        Entry::Occupied(_) => false,
        Entry::Vacant(free) => {
            free.insert(LocalLock::default());
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake};
    use std::thread::{self, Thread};

    use super::*;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(run: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut run = pin!(run);
        loop {
            match run.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// A global lock, and what its holder does without synchronisation of its own.
    #[derive(Default)]
    struct GlobalLock {
        is_held: AtomicU64,
        /// Number of holders, in a load and a store.
        counted: AtomicU64,
        handed: AtomicU64,
    }

    /// Takes the local lock of `slot`, and the global one if it was not handed over; counts; and passes on.
    fn hold(table: &LocalLockTable, global: &GlobalLock, slot: LockWord, mode: LocalLockMode) {
        match block_on(table.wait_for_turn(slot)) {
            WaitOutcome::Local => {
                let found = global.is_held.swap(1, Ordering::SeqCst);
                assert_eq!(found, 0, "two clients request one global lock at once");
            }
            WaitOutcome::HandedOver => {
                assert_eq!(global.is_held.load(Ordering::SeqCst), 1);
                global.handed.fetch_add(1, Ordering::Relaxed);
            }
            WaitOutcome::Failed(error) => panic!("{error:?}"),
        }
        let counted = global.counted.load(Ordering::Relaxed);
        thread::yield_now();
        global.counted.store(counted + 1, Ordering::Relaxed);
        let turn = match table.may_hand_over(slot, 3) {
            true => WaitOutcome::HandedOver,
            false => {
                global.is_held.store(0, Ordering::SeqCst);
                WaitOutcome::Local
            }
        };
        table.pass_on(slot, mode, turn);
    }

    #[test]
    fn threads_hold_a_lock_one_after_another_and_none_waits_for_ever() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 1_000;
        // Several locks are in one part of the table.
        let slots: Vec<_> = (0..3)
            .map(|n| LockWord::whole(GAddr::lock(n, 8 * u64::from(n / 2))))
            .collect();
        for mode in [LocalLockMode::HandOver(3), LocalLockMode::Table] {
            let table = LocalLockTable::new();
            let globals: Vec<_> = slots.iter().map(|_| GlobalLock::default()).collect();
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (table, slots, globals) = (&table, &slots, &globals);
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let n = (thread + round) as usize % slots.len();
                            hold(table, &globals[n], slots[n], mode);
                        }
                    });
                }
            });
            let sum = |of: fn(&GlobalLock) -> &AtomicU64| -> u64 {
                globals
                    .iter()
                    .map(|global| of(global).load(Ordering::SeqCst))
                    .sum()
            };
            assert_eq!(sum(|global| &global.counted), THREADS * ROUNDS);
            assert_eq!(sum(|global| &global.is_held), 0);
            assert!(sum(|global| &global.handed) > 0);
            assert!(
                slots.iter().all(|slot| table.try_take(*slot)),
                "all are free"
            );
        }
    }
}
