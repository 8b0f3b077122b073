//! [`LeaseTable`]: the leases and epochs of compute servers. The simulated and the real lease server use it.
//!
//! ```text
//!            renew                        check after the lease                check, or a verb
//!   alive ──────────▶ alive   ...  alive ─────────────────────▶ next epoch ... of the old one: refused
//! ```

/// The lease of one compute server.
#[derive(Clone, Copy)]
struct Lease {
    /// Epoch in which the compute server holds the lease. All earlier epochs have ended.
    epoch: u8,
    /// Time of the last renewal.
    renewed: u64,
}

/// The result of a check of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseCheck {
    /// The lease has not expired.
    Alive,
    /// The epoch has ended before.
    Ended,
    /// The lease has expired. This check has ended the epoch; the compute server's epoch is now this one.
    Expired(u8),
}

/// The leases of all compute servers. Times and durations have the unit of the caller's clock.
pub(crate) struct LeaseTable {
    leases: Vec<Lease>,
    duration: u64,
}

impl LeaseTable {
    /// Creates a table for `computes` compute servers, all in `epoch`, with leases renewed at time 0.
    pub(crate) fn new(computes: u16, epoch: u8, duration: u64) -> LeaseTable {
        LeaseTable {
            leases: vec![Lease { epoch, renewed: 0 }; computes.into()],
            duration,
        }
    }

    /// Returns the current epoch of `compute`.
    pub(crate) fn epoch(&self, compute: u16) -> u8 {
        self.leases[usize::from(compute)].epoch
    }

    /// Returns whether the lease of `compute` has expired at time `now`, or `compute` has never had an epoch.
    pub(crate) fn is_free(&self, compute: u16, now: u64) -> bool {
        let lease = self.leases[usize::from(compute)];
        lease.epoch == 0 || now >= lease.renewed + self.duration
    }

    /// Renews the lease of `compute` at time `now`.
    pub(crate) fn renew(&mut self, compute: u16, now: u64) {
        self.leases[usize::from(compute)].renewed = now;
    }

    /// Ends all epochs of `compute` before `epoch`.
    pub(crate) fn raise(&mut self, compute: u16, epoch: u8) {
        let lease = &mut self.leases[usize::from(compute)];
        lease.epoch = lease.epoch.max(epoch);
    }

    /// Checks the lease of `compute` in `epoch` at time `now`, and ends the epoch if the lease has expired.
    pub(crate) fn check(&mut self, compute: u16, epoch: u8, now: u64) -> LeaseCheck {
        let lease = &mut self.leases[usize::from(compute)];
        if epoch < lease.epoch {
            return LeaseCheck::Ended;
        }
        if now < lease.renewed + self.duration {
            return LeaseCheck::Alive;
        }
        lease.epoch = epoch + 1;
        LeaseCheck::Expired(lease.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_expires_when_it_was_not_renewed_and_its_epoch_never_returns() {
        let mut table = LeaseTable::new(2, 1, 100);
        table.renew(1, 50);
        assert_eq!(table.check(1, 1, 149), LeaseCheck::Alive);
        assert_eq!(table.check(1, 1, 150), LeaseCheck::Expired(2));
        assert_eq!(table.check(1, 1, 151), LeaseCheck::Ended);
        table.renew(1, 200);
        assert_eq!(table.check(1, 2, 201), LeaseCheck::Alive);
        assert_eq!((table.epoch(0), table.epoch(1)), (1, 2));
    }

    #[test]
    fn a_check_of_an_epoch_that_the_table_does_not_know_ends_that_epoch() {
        let mut table = LeaseTable::new(1, 0, 100);
        assert_eq!(table.check(0, 9, 100), LeaseCheck::Expired(10));
        table.raise(0, 4);
        assert_eq!(table.epoch(0), 10);
    }
}
