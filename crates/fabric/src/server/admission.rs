//! [`Admission`]: the check before each batch, and the changes that end an epoch or a connection.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::wire::{Failure, Floors, Refusal};

/// A connection of a compute server in an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) compute: u16,
    pub(crate) epoch: u8,
    /// Number of the process among those that have used the epoch. The first is [`FIRST_PROCESS`].
    pub(crate) process: u32,
    /// Number of the thread in the process. The first is 0.
    pub(crate) thread: u8,
    /// Number of the connection among those of the thread. The first is [`FIRST_ATTEMPT`].
    pub(crate) attempt: u64,
}

/// Number of the first process of a compute server in an epoch.
pub(crate) const FIRST_PROCESS: u32 = 1;
/// Number of the first connection of a thread to a memory server.
pub(crate) const FIRST_ATTEMPT: u64 = 1;

/// The newest process of a compute server in an epoch, and the newest connections of its threads.
#[derive(Default)]
struct NewestProcess {
    process: u32,
    /// Numbers of connections, by thread; 0: none.
    attempts: Vec<u64>,
}

impl NewestProcess {
    fn has(&self, caller: &Caller) -> bool {
        let attempt = self.attempts.get(usize::from(caller.thread));
        self.process == caller.process && attempt == Some(&caller.attempt)
    }

    /// Records a connection. Returns whether it is newer than those of the same thread.
    fn connect(&mut self, caller: &Caller) -> bool {
        if caller.process > self.process {
            *self = NewestProcess {
                process: caller.process,
                attempts: Vec::new(),
            };
        }
        let thread = usize::from(caller.thread);
        if self.attempts.len() <= thread {
            self.attempts.resize(thread + 1, 0);
        }
        let attempt = &mut self.attempts[thread];
        let is_newer = caller.process == self.process && caller.attempt > *attempt;
        if is_newer {
            *attempt = caller.attempt;
        }
        is_newer
    }
}

struct AdmissionState {
    floors: Floors,
    /// Newest epoch in which each compute server has connected.
    joined: Floors,
    /// The newest process of each compute server in each of its epochs that has not ended.
    newest: HashMap<(u16, u8), NewestProcess>,
    /// End of this server's own lease. `None`: it has not had one.
    lease_end: Option<Instant>,
}

pub(super) struct Admission {
    state: RwLock<AdmissionState>,
    /// Whether this server needs a lease.
    is_member: bool,
    /// Maximum time for which a batch waits for the server's lease.
    patience: Duration,
}

impl Admission {
    pub(super) fn new(
        floors: Floors,
        joined: Floors,
        is_member: bool,
        patience: Duration,
    ) -> Admission {
        Admission {
            state: RwLock::new(AdmissionState {
                floors,
                joined,
                newest: HashMap::new(),
                lease_end: None,
            }),
            is_member,
            patience,
        }
    }

    // No holder of the lock panics while it changes the state.
    fn shared(&self) -> RwLockReadGuard<'_, AdmissionState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, AdmissionState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` for `caller`, during which no epoch and no connection ends (MEMSRV-3). If this server has no lease, the
    /// call waits for one, so that requests of a connection stay in order.
    pub(super) fn execute<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> T,
    ) -> Result<T, Failure> {
        const PAUSE: Duration = Duration::from_millis(1);
        let mut waited_since = None;
        loop {
            let state = self.shared();
            if caller.epoch < state.floors.0[usize::from(caller.compute)] {
                return Err(Failure::Fenced);
            }
            let newest = state.newest.get(&(caller.compute, caller.epoch));
            if !newest.is_some_and(|newest| newest.has(caller)) {
                return Err(Failure::Unavailable);
            }
            let has_lease = state.lease_end.is_some_and(|end| Instant::now() < end);
            if has_lease || !self.is_member {
                return Ok(work());
            }
            drop(state);
            let since = *waited_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.patience {
                return Err(Failure::Unavailable);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Admits a connection. Ends the earlier ones of the same thread, and those of earlier processes of the same epoch. An epoch
    /// begins once (LEASE-5).
    pub(super) fn connect(&self, caller: Caller) -> Result<(), Refusal> {
        let mut state = self.exclusive();
        if caller.epoch < state.floors.0[usize::from(caller.compute)] {
            return Err(Refusal::Fenced);
        }
        let joined = &mut state.joined.0[usize::from(caller.compute)];
        match (caller.process, caller.thread, caller.attempt) {
            (FIRST_PROCESS, 0, FIRST_ATTEMPT) if caller.epoch <= *joined => {
                return Err(Refusal::Fenced);
            }
            _ if caller.epoch < *joined => return Err(Refusal::Fenced),
            _ => *joined = caller.epoch,
        }
        let newest = state
            .newest
            .entry((caller.compute, caller.epoch))
            .or_default();
        match newest.connect(&caller) {
            true => Ok(()),
            false => Err(Refusal::Superseded),
        }
    }

    /// Ends the epochs of `compute` before `floor`. Returns when none of their batches is under way.
    pub(super) fn raise(&self, compute: u16, floor: u8) {
        self.exclusive().raise(compute, floor);
    }

    /// Applies `floors`, then extends this server's lease (LEASE-2).
    pub(super) fn grant(&self, floors: &Floors, until: Instant) {
        let mut state = self.exclusive();
        for (compute, floor) in floors.0.iter().enumerate() {
            state.raise(compute as u16, *floor);
        }
        state.lease_end = state.lease_end.max(Some(until));
    }
}

impl AdmissionState {
    fn raise(&mut self, compute: u16, floor: u8) {
        let current = &mut self.floors.0[usize::from(compute)];
        if floor > *current {
            *current = floor;
            self.newest
                .retain(|(other, epoch), _| *other != compute || *epoch >= floor);
        }
    }
}
