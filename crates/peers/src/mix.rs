//! The operations: keys, value lengths and ratios of the Tair contest's final round.
//!
//! * Keys have 16 bytes, values 80 to 1,024: 55 % of them up to 128, 25 % up to 256, 15 % up to 512, 5 % up to 1,024.
//!   Lengths are uniform within each range; the average is 201.
//! * The load sets every key once. After that, three of four operations are gets, and three of four go to the hottest
//!   hundredth of the keys. Sets in the mix have values of up to 128 bytes.
//! * A value starts with eight bytes derived from its key, so that a get can be checked.

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;
/// Length of the longest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 1024;

const BANDS: [(u64, usize, usize); 4] = [
    (55, 80, 128),
    (80, 129, 256),
    (95, 257, 512),
    (100, 513, 1024),
];
const STARTS: usize = 4096;
const WORD: usize = 8;

/// A key.
pub(crate) type Name = [u8; KEY_BYTES];

/// Generator of the operations, the same for all contenders.
pub(crate) struct Mix {
    /// Number of keys to load.
    pub(crate) keys: u64,
    blob: Vec<u8>,
}

/// One operation after the load.
pub(crate) struct Op {
    pub(crate) key: u64,
    pub(crate) is_set: bool,
    chance: u64,
}

/// Returns the `n`-th number of the SplitMix64 sequence.
fn scramble(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Mix {
    pub(crate) fn new(keys: u64) -> Mix {
        let words = (STARTS * WORD + VALUE_BYTES_MAX) / WORD;
        let blob = (0..words as u64)
            .flat_map(|n| scramble(!n).to_le_bytes())
            .collect();
        Mix { keys, blob }
    }

    /// Returns the bytes of key number `key`.
    #[inline]
    pub(crate) fn name(&self, key: u64) -> Name {
        let mut name = [0; KEY_BYTES];
        name[..WORD].copy_from_slice(&scramble(key + 1).to_le_bytes());
        name[WORD..].copy_from_slice(&key.to_le_bytes());
        name
    }

    /// Returns the value with which `key` is loaded.
    #[inline]
    pub(crate) fn loaded(&self, key: u64) -> &[u8] {
        self.value(key, scramble(key ^ 0x5e7))
    }

    /// Returns the value that an operation sets.
    #[inline]
    pub(crate) fn updated(&self, op: &Op) -> &[u8] {
        let (_, least, most) = BANDS[0];
        let len = least + (op.chance >> 40) as usize % (most - least + 1);
        &self.blob[self.start(op.key)..][..len]
    }

    fn value(&self, key: u64, chance: u64) -> &[u8] {
        let percent = chance % 100;
        let band = BANDS.iter().find(|(up_to, _, _)| percent < *up_to);
        let (_, least, most) = band.expect("the last range ends at 100 percent");
        let len = least + (chance >> 32) as usize % (most - least + 1);
        &self.blob[self.start(key)..][..len]
    }

    #[inline]
    fn start(&self, key: u64) -> usize {
        scramble(key ^ 0xb10b) as usize % STARTS * WORD
    }

    /// Returns whether `value` begins like a value of `key`.
    #[inline]
    pub(crate) fn is_of(&self, key: u64, value: &[u8]) -> bool {
        let start = self.start(key);
        value.len() >= BANDS[0].1 && value[..WORD] == self.blob[start..start + WORD]
    }

    /// Returns the `n`-th operation of a thread.
    #[inline]
    pub(crate) fn op(&self, thread: u64, n: u64) -> Op {
        const HOT_EVERY: u64 = 100;
        let chance = scramble(n ^ (thread + 1) << 48);
        let where_to = scramble(chance);
        let any = where_to % self.keys;
        let key = match chance % 4 {
            // Hot keys are scattered like all other keys.
            0..3 => any / HOT_EVERY * HOT_EVERY,
            _ => any,
        };
        Op {
            key,
            is_set: chance >> 8 & 3 == 0,
            chance,
        }
    }

    /// Returns the bytes of all loaded keys and values, estimated from a sample.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        const SAMPLE: u64 = 10_000;
        let sum: usize = (0..SAMPLE).map(|n| self.loaded(n).len()).sum();
        (sum as u64 * self.keys / SAMPLE) + self.keys * KEY_BYTES as u64
    }
}
