//! [`LeaseManager`]: the leases of compute servers and of members, on the lease server.
//!
//! ```text
//!   check: lease expired ─▶ floor raised, version v ─▶ waiting members get a grant with v ─▶ their next report has applied v
//!                                                      or: the lease of the member ends      ─▶ Expired
//! ```

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{EPOCH_MAX, FIRST_PROCESS, LeaseSettings};
use crate::lease_table::{LeaseCheck, LeaseTable};
use crate::wire::{FLOORS, Floors, Grant, Report};

/// What the lease server knows about a member.
#[derive(Clone, Copy)]
struct MemberState {
    generation: u64,
    /// Version of the floors that the member has applied.
    applied: u64,
    /// Time of the last grant.
    granted: Instant,
}

struct ManagerState {
    leases: LeaseTable,
    floors: Floors,
    /// Number of changes of the floors.
    version: u64,
    /// Version that raised the floor of each compute server last.
    raised_in: Vec<u64>,
    members: HashMap<u16, MemberState>,
    /// Compute servers that have left an epoch: the epoch, and the number of its last process (LEASE-6).
    left: HashMap<u16, (u8, u32)>,
}

/// The number and the epoch of a compute server that joins, and the number of its process in the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct JoinedEpoch {
    pub(super) compute: u16,
    pub(super) epoch: u8,
    pub(super) process: u32,
}

pub(super) struct LeaseManager {
    started: Instant,
    member_lease: Duration,
    state: Mutex<ManagerState>,
    /// Notified after each change of the floors.
    changed: Condvar,
}

impl LeaseManager {
    pub(super) fn new(settings: LeaseSettings, floors: Floors) -> LeaseManager {
        let mut leases = LeaseTable::new(FLOORS as u16, 0, settings.compute.as_nanos() as u64);
        for (compute, floor) in floors.0.iter().enumerate() {
            leases.raise(compute as u16, *floor);
        }
        LeaseManager {
            started: Instant::now(),
            member_lease: settings.member,
            state: Mutex::new(ManagerState {
                leases,
                floors,
                version: 1,
                raised_in: vec![1; FLOORS],
                members: HashMap::new(),
                left: HashMap::new(),
            }),
            changed: Condvar::new(),
        }
    }

    // No holder of the lock panics while it changes the state.
    fn state(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Renews the lease of `compute`.
    pub(super) fn renew(&self, compute: u16) {
        let now = self.now();
        self.state().leases.renew(compute, now);
    }

    /// Begins a new epoch of `compute` and its lease, or continues an epoch that it has left (LEASE-6). All earlier
    /// epochs end. Returns `None` if it has used all epochs.
    pub(super) fn join(&self, compute: u16) -> Option<JoinedEpoch> {
        let now = self.now();
        let joined = self.state().join(compute, now);
        self.changed.notify_all();
        joined
    }

    /// Like [`LeaseManager::join`], for any number that is not in use. Returns `None` if there is none with an epoch
    /// left.
    pub(super) fn join_any(&self) -> Option<JoinedEpoch> {
        let now = self.now();
        let mut state = self.state();
        let left = state.left.keys().copied().min();
        let compute = left.or_else(|| {
            // The highest numbers first: those that users select are low.
            let numbers = (0..FLOORS as u16).rev();
            let free = numbers.filter(|number| state.leases.is_free(*number, now));
            free.min_by_key(|number| state.leases.epoch(*number))
        })?;
        let joined = state.join(compute, now);
        self.changed.notify_all();
        joined
    }

    /// Records that process `process` of `compute` has left `epoch` (LEASE-6).
    pub(super) fn leave(&self, compute: u16, epoch: u8, process: u32) {
        let mut state = self.state();
        if epoch == state.leases.epoch(compute) && process < u32::MAX {
            state.left.insert(compute, (epoch, process));
        }
    }

    /// Checks the lease of `compute` in `epoch`. Returns the floor of `compute` if the epoch has ended, also by this
    /// check.
    pub(super) fn check(&self, compute: u16, epoch: u8) -> Option<u8> {
        let now = self.now();
        let mut state = self.state();
        match state.leases.check(compute, epoch, now) {
            LeaseCheck::Alive => None,
            LeaseCheck::Ended => Some(state.leases.epoch(compute)),
            LeaseCheck::Expired(next) => {
                state.raise(compute, next);
                self.changed.notify_all();
                Some(next)
            }
        }
    }

    /// Returns whether every member refuses the ended epochs of `compute` (LEASE-3, LEASE-4).
    pub(super) fn is_fenced(&self, compute: u16) -> bool {
        let lease = self.believed_lease();
        let state = self.state();
        let version = state.raised_in[usize::from(compute)];
        let fenced =
            |member: &MemberState| member.applied >= version || member.granted.elapsed() > lease;
        self.started.elapsed() > lease && state.members.values().all(fenced)
    }

    /// Returns the time after which a granted lease has ended on the member's clock, which may be slower by an eighth.
    fn believed_lease(&self) -> Duration {
        self.member_lease + self.member_lease / 8
    }

    /// Merges the floors of a member, which may know more than a lease server that has restarted without its memory.
    /// Returns the raised floors.
    pub(super) fn merge(&self, floors: &Floors) -> Vec<(u16, u8)> {
        let mut state = self.state();
        let mut raised = Vec::new();
        for (compute, floor) in floors.0.iter().enumerate() {
            if *floor > state.floors.0[compute] {
                state.raise(compute as u16, *floor);
                raised.push((compute as u16, *floor));
            }
        }
        if !raised.is_empty() {
            self.changed.notify_all();
        }
        raised
    }

    /// Grants a lease to a member, with all floors. Waits up to a quarter of the lease for a version of the floors that
    /// the member has not applied, so that a fence reaches it at once. Returns `None` if the member has reported from a
    /// newer generation: an older process of the same number gets no lease.
    pub(super) fn grant(&self, member: u16, report: &Report) -> Option<Grant> {
        let mut state = self.state();
        let asked = Instant::now();
        let known = state.members.entry(member).or_insert(MemberState {
            generation: report.generation,
            applied: 0,
            granted: asked,
        });
        if known.generation > report.generation {
            return None;
        }
        known.generation = report.generation;
        known.applied = report.applied;
        let until = asked + self.member_lease / 4;
        while state.version == report.applied {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (version, floors) = (state.version, state.floors.clone());
        let known = state.members.get_mut(&member)?;
        if known.generation > report.generation {
            return None;
        }
        known.granted = Instant::now();
        Some(Grant {
            lease_ns: self.member_lease.as_nanos() as u64,
            version,
            floors,
        })
    }
}

impl ManagerState {
    fn join(&mut self, compute: u16, now: u64) -> Option<JoinedEpoch> {
        let current = self.leases.epoch(compute);
        let joined = match self.left.remove(&compute) {
            Some((epoch, process)) if epoch == current => JoinedEpoch {
                compute,
                epoch,
                process: process + 1,
            },
            _ if current < EPOCH_MAX => {
                self.raise(compute, current + 1);
                JoinedEpoch {
                    compute,
                    epoch: current + 1,
                    process: FIRST_PROCESS,
                }
            }
            _ => return None,
        };
        self.leases.renew(compute, now);
        Some(joined)
    }

    /// Raises the floor of `compute` in a new version.
    fn raise(&mut self, compute: u16, floor: u8) {
        self.leases.raise(compute, floor);
        self.floors.0[usize::from(compute)] = floor;
        self.version += 1;
        self.raised_in[usize::from(compute)] = self.version;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LEASES: LeaseSettings = LeaseSettings {
        compute: Duration::from_millis(40),
        member: Duration::from_millis(80),
    };

    fn report(applied: u64) -> Report {
        Report {
            generation: 1,
            applied,
            floors: Floors::new(),
        }
    }

    fn epoch_of(joined: Option<JoinedEpoch>) -> Option<u8> {
        joined.map(|joined| joined.epoch)
    }

    #[test]
    fn an_epoch_is_fenced_when_each_member_has_applied_the_floor_or_its_lease_has_ended() {
        let manager = LeaseManager::new(LEASES, Floors::new());
        thread::sleep(LEASES.member * 3 / 2);
        assert_eq!(epoch_of(manager.join(5)), Some(1));
        let grant = manager.grant(1, &report(0)).unwrap();
        assert_eq!(manager.check(5, 1), None);
        thread::sleep(LEASES.compute);
        manager.grant(2, &report(grant.version)).unwrap();
        assert_eq!(manager.check(5, 1), Some(2));
        assert!(!manager.is_fenced(5), "no member knows the floor");
        let grant = manager.grant(1, &report(grant.version)).unwrap();
        assert_eq!(grant.floors.0[5], 2);
        assert!(!manager.is_fenced(5), "no member has applied the floor");
        manager.grant(1, &report(grant.version)).unwrap();
        thread::sleep(LEASES.member * 5 / 4);
        assert!(manager.is_fenced(5), "the lease of member 2 has ended");
    }

    #[test]
    fn an_older_process_of_a_member_gets_no_lease() {
        let manager = LeaseManager::new(LEASES, Floors::new());
        let newer = Report {
            generation: 2,
            ..report(0)
        };
        assert!(manager.grant(1, &newer).is_some());
        assert!(manager.grant(1, &report(0)).is_none());
        assert!(manager.grant(1, &newer).is_some());
    }

    #[test]
    fn a_lease_server_that_has_just_started_fences_no_epoch() {
        let manager = LeaseManager::new(LEASES, Floors::new());
        thread::sleep(LEASES.compute);
        assert_eq!(manager.check(5, 3), Some(4));
        assert!(!manager.is_fenced(5));
        thread::sleep(LEASES.member);
        assert!(manager.is_fenced(5));
        assert_eq!(epoch_of(manager.join(5)), Some(5));
    }

    #[test]
    fn floors_that_a_member_knows_are_not_given_out_again() {
        let manager = LeaseManager::new(LEASES, Floors::new());
        let mut floors = Floors::new();
        floors.0[7] = 62;
        assert_eq!(manager.merge(&floors), [(7, 62)]);
        assert_eq!(epoch_of(manager.join(7)), Some(63));
        assert_eq!(manager.join(7), None);
    }

    #[test]
    fn a_left_epoch_is_continued_by_the_next_join_and_an_ended_one_is_not() {
        let manager = LeaseManager::new(LEASES, Floors::new());
        let first = manager.join_any().unwrap();
        assert_eq!((first.compute, first.epoch), (FLOORS as u16 - 1, 1));
        let other = manager.join_any().unwrap();
        assert_ne!(other.compute, first.compute);
        manager.leave(first.compute, first.epoch, 9);
        let next = JoinedEpoch {
            process: 10,
            ..first
        };
        assert_eq!(manager.join_any(), Some(next));
        manager.leave(next.compute, next.epoch, 10);
        thread::sleep(LEASES.compute);
        assert_eq!(manager.check(next.compute, next.epoch), Some(2));
        let joined = manager.join(next.compute).unwrap();
        assert_eq!((joined.epoch, joined.process), (3, FIRST_PROCESS));
    }

    #[test]
    fn a_number_whose_lease_has_not_expired_is_not_given_out() {
        let manager = LeaseManager::new(LEASES, Floors::new());
        let mut given: Vec<_> = (0..FLOORS)
            .filter_map(|_| manager.join_any())
            .map(|joined| joined.compute)
            .collect();
        // Slow machines: a lease may have expired meanwhile.
        if manager.now() < LEASES.compute.as_nanos() as u64 {
            given.sort_unstable();
            given.dedup();
            assert_eq!(given.len(), FLOORS);
            assert_eq!(manager.join_any(), None);
        }
        thread::sleep(LEASES.compute);
        assert_eq!(manager.join_any().map(|joined| joined.epoch), Some(2));
    }
}
