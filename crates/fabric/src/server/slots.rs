//! Slots of compute servers that execute verbs themselves, in the memory of the lease server. A compute server has [`SLOT_PARTS`]
//! slots, so that its threads do not wait for each other.
//!
//! ```text
//!   slot, one line:  │ state │ process id │ start of the process │ owner │
//!
//!   state            │ epoch 8 │ number of batches 55 │ busy 1 │
//!
//!   a client                                        the lease server
//!     idle ─▶ busy   by compare-and-swap              raises the floor of the epoch
//!     full fence                                      full fence
//!     the floor is higher: no verb executes           the slot is busy in the epoch: the fence has to wait
//!     executes the verbs
//!     busy ─▶ idle
//! ```
//!
//! # Invariants
//! SLOT-1  Of the two full fences one is first. So a client sees the raised floor and executes nothing, or the lease server
//!     sees its slot busy.
//! SLOT-2  Only the owner changes a slot that is busy. A new owner takes it when the epoch of the former has ended and the
//!     former is out ([`CallerFence::is_out`]), or has left. A former owner that continues does not find the state that it
//!     left, so its compare-and-swap fails.
//! SLOT-3  A process that stays in one batch, because it is stopped, is killed: nothing else can prevent its next store. Only
//!     the process that maps the memory and began at the time in the slot is killed (`host_process`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farbank_pm::{LINE, Medium, Off, PersistCtx, WORD};

use super::host_process::{HostProcess, ProcessState};
use super::memory::{SLOT_PARTS, SLOTS_AT, WordMemory};
use super::redo::{RedoName, complete_write};

const BUSY: u64 = 1;
/// Added to a state for each further batch: the bits from here on count batches.
const BATCH: u64 = 2;
const EPOCH_SHIFT: u32 = 56;

/// Returns the position of slot number `part` of a compute server.
fn slot_at(compute: u16, part: u8) -> Off {
    let number = u64::from(compute) * u64::from(SLOT_PARTS) + u64::from(part);
    Off(SLOTS_AT + number * LINE as u64)
}

fn word_of(slot: Off, number: usize) -> Off {
    slot.plus((number * WORD) as u64)
}

fn epoch_of(state: u64) -> u8 {
    (state >> EPOCH_SHIFT) as u8
}

/// A slot of a compute server in one epoch, for the process that owns it.
#[derive(Debug)]
pub(crate) struct CallerSlot {
    at: Off,
    /// State of the slot while the owner is outside a batch.
    idle: u64,
    /// Names of the owner's file and of the former owner's ([`redo`](super::redo)).
    pub(crate) names: [RedoName; 2],
}

impl CallerSlot {
    /// Takes slot number `part` of `compute` for `epoch`, which the lease server has given to this process (SLOT-2).
    pub(crate) fn take<M: Medium>(
        memory: &WordMemory<M>,
        ctx: &mut PersistCtx,
        (compute, part, epoch): (u16, u8, u8),
        process: HostProcess,
    ) -> CallerSlot {
        let at = slot_at(compute, part);
        let before = memory.medium().load(at);
        memory
            .medium()
            .store(ctx, word_of(at, 1), process.id.into());
        memory.medium().store(ctx, word_of(at, 2), process.began);
        let counted = (before & !BUSY).wrapping_add(BATCH) << 8 >> 8;
        let idle = u64::from(epoch) << EPOCH_SHIFT | counted;
        let former = memory.medium().load(word_of(at, 3));
        memory.medium().store(ctx, word_of(at, 3), idle);
        memory.medium().store(ctx, at, idle);
        let names = [(compute, part, idle), (compute, part, former)];
        CallerSlot { at, idle, names }
    }

    /// Begins a batch, unless another owner has the slot. Returns whether it has begun.
    #[inline]
    pub(crate) fn enter<M: Medium>(&self, memory: &WordMemory<M>, ctx: &mut PersistCtx) -> bool {
        let entered = memory
            .medium()
            .cas(ctx, self.at, self.idle, self.idle | BUSY);
        fence(Ordering::SeqCst); // SLOT-1
        entered.is_ok()
    }

    /// Ends a batch. Its effects are visible to all processes before that.
    #[inline]
    pub(crate) fn leave<M: Medium>(&mut self, memory: &WordMemory<M>, ctx: &mut PersistCtx) {
        fence(Ordering::SeqCst);
        self.idle += BATCH;
        memory.medium().store(ctx, self.at, self.idle);
    }

    /// Ends a batch whose epoch has ended and which has executed nothing. The slot may have another owner meanwhile.
    pub(crate) fn abandon<M: Medium>(&self, memory: &WordMemory<M>, ctx: &mut PersistCtx) {
        let state = self.idle | BUSY;
        // Fails if there is another owner (SLOT-2).
        let _ = memory.medium().cas(ctx, self.at, state, self.idle);
    }
}

/// The lease server's view of the slots: batches that were seen busy after the end of their epoch.
pub(super) struct CallerFence {
    /// Held while a write is completed (REDO-2).
    seen: Mutex<HashMap<(u16, u8), (u64, Instant)>>,
    /// File of the memory, if other processes can map it.
    path: Option<PathBuf>,
    /// Time after which a process that does not end its batch is killed, if it is not stopped.
    patience: Duration,
}

impl CallerFence {
    pub(super) fn new(patience: Duration, path: Option<PathBuf>) -> CallerFence {
        CallerFence {
            path,
            seen: Mutex::default(),
            patience,
        }
    }

    // No holder of the lock panics.
    fn seen(&self) -> MutexGuard<'_, HashMap<(u16, u8), (u64, Instant)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether no process executes verbs of `compute` in epochs before `floor`, which was raised before the call
    /// (SLOT-1). Otherwise the caller asks again later. Kills a process that is stopped within a batch (SLOT-3), and completes the
    /// writes of a process that has ended (REDO-2).
    pub(super) fn is_out<M: Medium>(
        &self,
        memory: &WordMemory<M>,
        compute: u16,
        floor: u8,
    ) -> bool {
        (0..SLOT_PARTS).all(|part| self.is_slot_out(memory, (compute, part), floor))
    }

    fn is_slot_out<M: Medium>(
        &self,
        memory: &WordMemory<M>,
        (compute, part): (u16, u8),
        floor: u8,
    ) -> bool {
        /// Time of a batch of a process that runs.
        const BATCH_TIME: Duration = Duration::from_micros(200);
        const LOOKS: u32 = 5;
        let at = slot_at(compute, part);
        let medium = memory.medium();
        let is_out = |state: u64| state & BUSY == 0 || epoch_of(state) >= floor;
        let mut state = 0;
        for look in 0..LOOKS {
            if look > 0 {
                thread::sleep(BATCH_TIME);
            }
            fence(Ordering::SeqCst); // SLOT-1
            state = medium.load(at);
            if is_out(state) {
                self.seen().remove(&(compute, part));
                return true;
            }
        }
        let process = HostProcess {
            id: medium.load(word_of(at, 1)) as u32,
            began: medium.load(word_of(at, 2)),
        };
        let mut seen = self.seen();
        if medium.load(at) != state {
            return false;
        }
        let (known, since) = seen
            .entry((compute, part))
            .or_insert((state, Instant::now()));
        if *known != state {
            (*known, *since) = (state, Instant::now());
        }
        let is_gone = match process.state() {
            ProcessState::Gone => true,
            ProcessState::Runs if since.elapsed() < self.patience => false,
            ProcessState::Stopped | ProcessState::Runs => process.expel(medium.file_id()),
        };
        let is_out = is_gone
            && match &self.path {
                Some(path) => {
                    let owner = medium.load(word_of(at, 3));
                    complete_write(memory, path, (compute, part, owner))
                }
                None => true,
            };
        if is_out {
            // The write is completed once. The owner has ended, so nothing else changes the slot.
            medium.store(&mut PersistCtx::new(0), at, state & !BUSY);
            seen.remove(&(compute, part));
        }
        is_out
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::media::Mapped;

    use super::*;
    use crate::server::MemorySettings;

    #[test]
    fn a_former_owner_cannot_enter_and_does_not_disturb_the_next() {
        let medium = Mapped::anonymous(2 << 20).unwrap();
        let memory = WordMemory::open(medium, MemorySettings::new(0), 5).unwrap();
        let (mut ctx, process) = (PersistCtx::new(0), HostProcess::current().unwrap());
        let mut first = CallerSlot::take(&memory, &mut ctx, (1022, 0, 3), process);
        assert!(first.enter(&memory, &mut ctx));
        let fence = CallerFence::new(Duration::from_secs(100), None);
        assert!(!fence.is_out(&memory, 1022, 4), "the batch is under way");
        assert!(fence.is_out(&memory, 1022, 3), "its epoch has not ended");
        first.leave(&memory, &mut ctx);
        assert!(fence.is_out(&memory, 1022, 4));
        // Also if the next owner has the same epoch, which the first has left.
        let next = CallerSlot::take(&memory, &mut ctx, (1022, 0, 3), process);
        assert!(!first.enter(&memory, &mut ctx));
        first.abandon(&memory, &mut ctx);
        assert!(next.enter(&memory, &mut ctx));
        first.abandon(&memory, &mut ctx);
        assert!(!fence.is_out(&memory, 1022, 4));
    }

    #[test]
    fn a_batch_of_a_process_that_has_ended_is_out() {
        let medium = Mapped::anonymous(2 << 20).unwrap();
        let memory = WordMemory::open(medium, MemorySettings::new(0), 5).unwrap();
        let mut ctx = PersistCtx::new(0);
        let mut process = HostProcess::current().unwrap();
        process.began -= 1;
        let slot = CallerSlot::take(&memory, &mut ctx, (7, 5, 1), process);
        assert!(slot.enter(&memory, &mut ctx));
        let fence = CallerFence::new(Duration::from_secs(100), None);
        assert!(fence.is_out(&memory, 7, 2));
    }
}
