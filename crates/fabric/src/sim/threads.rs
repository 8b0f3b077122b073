//! The threads of compute servers, the running task, and sleeps.

use super::PER_NS;
use super::exec::ComputeThread;
use super::slab::Slab;
use crate::fabric::Nanos;

/// The number of a task that can continue, and the reason.
#[derive(Clone, Copy, Debug)]
pub(super) enum WakeReason {
    /// The result of its batch or call has arrived. Its thread has to process it.
    Answered(usize),
    /// Another client of its compute server woke it.
    Called(usize),
    /// A sleep has ended, or its thread is free.
    Due(usize),
}

impl WakeReason {
    pub(super) fn task(self) -> usize {
        match self {
            WakeReason::Answered(task) | WakeReason::Called(task) | WakeReason::Due(task) => task,
        }
    }
}

struct Sleep {
    task: usize,
    over: bool,
}

/// The threads of all compute servers.
pub(super) struct ThreadTable {
    /// Time at which each thread is free.
    free_at: Vec<u64>,
    /// The running task.
    task: usize,
    /// The thread of the running task.
    on: usize,
    sleeps: Slab<Sleep>,
}

impl ThreadTable {
    pub(super) fn new() -> ThreadTable {
        ThreadTable {
            free_at: Vec::new(),
            task: 0,
            on: 0,
            sleeps: Slab::new(),
        }
    }

    /// Adds a thread. Returns its number.
    pub(super) fn add(&mut self) -> u32 {
        self.free_at.push(0);
        self.free_at.len() as u32 - 1
    }

    /// Returns the time at which `thread` is free.
    pub(super) fn free_at(&mut self, thread: ComputeThread) -> &mut u64 {
        &mut self.free_at[thread.number as usize]
    }

    /// Records the running task and its thread.
    pub(super) fn runs(&mut self, task: usize, on: ComputeThread) {
        (self.task, self.on) = (task, on.number as usize);
    }

    /// Returns the running task.
    pub(super) fn task(&self) -> usize {
        self.task
    }

    /// Returns the number of the running task's thread.
    pub(super) fn running(&self) -> usize {
        self.on
    }

    /// Occupies the thread of the running task for `ns` from `now`. Returns the time at which it is free.
    pub(super) fn occupy(&mut self, now: u64, ns: Nanos) -> u64 {
        let free = &mut self.free_at[self.on];
        *free = now.max(*free) + ns * PER_NS;
        *free
    }

    /// Adds a sleep of the running task. Returns its number.
    pub(super) fn begin_sleep(&mut self) -> u32 {
        let task = self.task;
        self.sleeps.add(Sleep { task, over: false })
    }

    /// Ends a sleep. Returns the task to wake.
    pub(super) fn woke(&mut self, number: u32) -> Option<usize> {
        let sleep = self.sleeps.get(number);
        if sleep.over {
            self.sleeps.remove(number);
            return None;
        }
        sleep.over = true;
        Some(sleep.task)
    }

    /// Removes a sleep that has ended.
    pub(super) fn take_sleep(&mut self, number: u32) -> Option<()> {
        if !self.sleeps.get(number).over {
            return None;
        }
        self.sleeps.remove(number);
        Some(())
    }

    /// Removes a sleep whose task does not wait for it any more, now or when it ends.
    pub(super) fn abandon_sleep(&mut self, number: u32) {
        let sleep = self.sleeps.get(number);
        if sleep.over {
            self.sleeps.remove(number);
        } else {
            sleep.over = true;
        }
    }
}
