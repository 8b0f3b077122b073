//! The contest's limits, at any scale.

use crate::engine::{Key, OpenError};

/// The contest's limits, from which an engine sizes its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContestLimits {
    /// Number of threads in each phase.
    pub threads: usize,
    /// Sets in the set phase, updates included. A get phase has the same number of operations.
    pub operations: u64,
    /// Number of distinct keys among them.
    pub keys: u64,
    /// Bytes of far memory.
    pub far_bytes: u64,
    /// Bytes of DRAM that an engine may use.
    pub dram_bytes: u64,
    /// Largest total size of live values at any time, in bytes.
    pub live_bytes_max: u64,
    /// Number of hash bits that select a chain.
    pub hash_bits: u32,
    /// Lengths of the shortest and the longest value, in bytes.
    pub value_bytes: (usize, usize),
}

/// Returns the hash of `key`: its first eight bytes. Keys are uniformly random, so their low bits serve as a hash.
pub(crate) fn hash_of(key: &Key) -> u64 {
    u64::from_le_bytes(*key.first_chunk().expect("sixteen bytes"))
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl ContestLimits {
    /// Returns the limits of the final round at a scale of `1 / part`. `part` is a power of two.
    ///
    /// At full scale each of 16 threads does 24 Mi sets of values of 80 to 1,024 bytes, 56.9 % of them of new keys. An
    /// engine has 64 GiB of far memory and 8 GiB and 320 MiB of DRAM.
    #[must_use]
    pub fn finals(part: u64) -> ContestLimits {
        let operations = (16 * 24 * MIB).div_ceil(part);
        ContestLimits {
            threads: 16,
            operations,
            keys: operations
                .saturating_mul(229_037_390)
                .div_ceil(16 * 24 * MIB),
            far_bytes: 64 * GIB / part,
            dram_bytes: (8 * GIB + 320 * MIB) / part,
            live_bytes_max: 50_000_000_000 / part,
            hash_bits: 28 - part.ilog2(),
            value_bytes: (80, 1024),
        }
    }

    /// Returns the limits of the preliminary round at a scale of `1 / part`. `part` is a power of two.
    ///
    /// At full scale each of 16 threads does 48 Mi sets of values of 80 bytes, nearly all of them of new keys. An
    /// engine has 74 GiB of far memory and 4 GiB and 320 MiB of DRAM. Nothing has to be durable.
    #[must_use]
    pub fn preliminary(part: u64) -> ContestLimits {
        let operations = (16 * 48 * MIB).div_ceil(part);
        ContestLimits {
            threads: 16,
            operations,
            keys: operations - operations / 500,
            far_bytes: 74 * GIB / part,
            dram_bytes: (4 * GIB + 320 * MIB) / part,
            live_bytes_max: u64::MAX,
            hash_bits: 28 - part.ilog2(),
            value_bytes: (80, 80),
        }
    }

    /// Returns the number of read-cache slots and the number of lock stripes, for the engines of the final round.
    ///
    /// The two numbers are equal, except that without a cache there are as many stripes as the default number of slots.
    /// At full scale the default is 2^18 slots for 2^28 chains, so each chain belongs to exactly one stripe.
    pub(crate) fn slots_and_stripes(&self, slots: Option<u64>) -> Result<(u64, u64), OpenError> {
        let usual = 1 << self.hash_bits.saturating_sub(10).max(self.hash_bits.min(2));
        match slots {
            None => Ok((usual, usual)),
            Some(0) => Ok((0, usual)),
            Some(slots) if slots.is_power_of_two() && slots <= 1 << self.hash_bits => {
                Ok((slots, slots))
            }
            Some(slots) => Err(OpenError::Unfit(format!(
                "a read cache of {slots} slots: expected 0, or a power of two up to 2^{}",
                self.hash_bits
            ))),
        }
    }

    /// Returns an error if a medium of `bytes` is too small for these limits.
    pub(crate) fn check_medium_bytes(&self, bytes: u64) -> Result<(), OpenError> {
        if bytes >= self.far_bytes {
            return Ok(());
        }
        Err(OpenError::Unfit(format!(
            "the medium has {bytes} bytes, the limits require {}: enlarge it, or use a smaller scale",
            self.far_bytes
        )))
    }

    /// Returns the same limits with `threads` threads.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> ContestLimits {
        ContestLimits { threads, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_at_full_scale_are_the_published_numbers() {
        let full = ContestLimits::finals(1);
        assert_eq!((full.operations, full.keys), (402_653_184, 229_037_390));
        assert_eq!((full.far_bytes, full.hash_bits), (64 << 30, 28));
        let first = ContestLimits::preliminary(1);
        assert_eq!(first.operations, 805_306_368);
        assert_eq!(first.operations * 96, 72 << 30);
    }

    #[test]
    fn the_average_chain_length_is_the_same_at_every_scale() {
        for part in [1, 16, 64, 256, 1024] {
            let terms = ContestLimits::finals(part);
            let load = terms.keys as f64 / (1u64 << terms.hash_bits) as f64;
            assert!((load - 0.8532).abs() < 0.001, "1/{part}: {load}");
        }
    }
}
