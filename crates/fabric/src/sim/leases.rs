//! The lease server's table of leases.

/// The time of the last renewal of each compute server's lease.
pub(super) struct LeaseTable {
    last_renewal: Vec<u64>,
}

impl LeaseTable {
    pub(super) fn new(computes: u16) -> LeaseTable {
        LeaseTable {
            last_renewal: vec![0; computes.into()],
        }
    }

    /// Renews the lease of `compute` at time `now`.
    pub(super) fn renew(&mut self, compute: usize, now: u64) {
        self.last_renewal[compute] = now;
    }

    /// Returns the time of the last renewal by `compute`.
    pub(super) fn renewed(&self, compute: usize) -> u64 {
        self.last_renewal[compute]
    }
}
