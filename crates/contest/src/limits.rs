//! What the contest allowed, at any scale.

use crate::engine::{Key, OpenError};

/// The contest's terms, as an engine must know them to size its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContestLimits {
    /// Threads of a phase.
    pub threads: usize,
    /// Sets of the set phase, updates included; as many operations has a get phase.
    pub operations: u64,
    /// Different keys among them.
    pub keys: u64,
    /// Bytes of far memory.
    pub far_bytes: u64,
    /// Bytes of DRAM an engine may hold.
    pub dram_bytes: u64,
    /// Most bytes of values that are live at a time.
    pub live_bytes_max: u64,
    /// Bits of a hash that name a chain.
    pub hash_bits: u32,
    /// Shortest and longest value, in bytes.
    pub value_bytes: (usize, usize),
}

/// The number by which `key` is found: its first eight bytes. Keys are uniform, so their low bits are a hash.
pub(crate) fn hash_of(key: &Key) -> u64 {
    u64::from_le_bytes(*key.first_chunk().expect("sixteen bytes"))
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl ContestLimits {
    /// The final round at a scale of `1 / part`, `part` a power of two: 24 Mi sets by each of 16 threads of values
    /// of 80 to 1,024 bytes, 56.9 % of them of new keys, in 64 GiB of far memory and 8 GiB and 320 MiB of DRAM.
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

    /// The preliminary round at a scale of `1 / part`, `part` a power of two: 48 Mi sets by each of 16 threads of
    /// values of 80 bytes, hardly any of an old key, in 74 GiB of far memory and 4 GiB and 320 MiB of DRAM. Nothing
    /// has to be durable.
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

    /// Slots of the final round's read caches, and stripes: as many as slots, or, without a cache, as many as
    /// there would be slots. 2^18 of 2^28 chains each, so that a stripe's chains are its own.
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

    /// An error if a medium of `bytes` is too small for these terms.
    pub(crate) fn fit(&self, bytes: u64) -> Result<(), OpenError> {
        if bytes >= self.far_bytes {
            return Ok(());
        }
        Err(OpenError::Unfit(format!(
            "the medium has {bytes} bytes, the terms give {}: grow it, or scale the terms down",
            self.far_bytes
        )))
    }

    /// The same terms with `threads` threads.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> ContestLimits {
        ContestLimits { threads, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_full_size_these_are_the_contests_numbers() {
        let full = ContestLimits::finals(1);
        assert_eq!((full.operations, full.keys), (402_653_184, 229_037_390));
        assert_eq!((full.far_bytes, full.hash_bits), (64 << 30, 28));
        let first = ContestLimits::preliminary(1);
        assert_eq!(first.operations, 805_306_368);
        assert_eq!(first.operations * 96, 72 << 30);
    }

    #[test]
    fn chains_are_as_long_at_every_scale() {
        for part in [1, 16, 64, 256, 1024] {
            let terms = ContestLimits::finals(part);
            let load = terms.keys as f64 / (1u64 << terms.hash_bits) as f64;
            assert!((load - 0.8532).abs() < 0.001, "1/{part}: {load}");
        }
    }
}
