//! The bytes of a HyperLogLog, which Redis stores in a string.
//!
//! ```text
//!   bytes   0     4          5       8                    16
//!         ┌──────┬──────────┬───────┬────────────────────┬───────────────────────┐
//!         │ HYLL │ encoding │ unused│ cached cardinality │ registers             │
//!         └──────┴──────────┴───────┴────────────────────┴───────────────────────┘
//!   dense (0): 16,384 registers of 6 bits, the lowest bits first
//!   sparse (1): runs of equal registers
//!     00nnnnnn           n+1 registers are 0
//!     01nnnnnn nnnnnnnn  n+1 registers are 0
//!     1vvvvvnn           n+1 registers are v+1
//! ```
//!
//! The highest bit of the cached cardinality (8 bytes, the lowest first) is set if the cache is invalid. A sparse value
//! becomes dense when a register exceeds 32 or the value 3,000 bytes. The runs are split and merged as in Redis, so
//! that the same commands produce the same bytes.
//!
//! The estimator is the improved one of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches"
//! (arXiv:1702.01284), section 4.

/// Number of registers, a power of two.
pub(super) const REGISTERS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
/// Bits of a hash that a register counts the trailing zeros of.
const HASH_BITS: u32 = 64 - INDEX_BITS;
const REGISTER_BITS: usize = 6;
/// Largest value of a register.
pub(super) const REGISTER_MAX: u8 = 0x3f;
const HEAD_BYTES: usize = 16;
const DENSE_BYTES: usize = HEAD_BYTES + REGISTERS * REGISTER_BITS / 8;
const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING_AT: usize = 4;
const CACHE_AT: usize = 8;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
/// Redis's default of `hll-sparse-max-bytes`.
pub(super) const SPARSE_BYTES_MAX: usize = 3000;
const SPARSE_VALUE_MAX: u8 = 32;
const ZERO_RUN_MAX: usize = 64;
const VALUE_RUN_MAX: usize = 4;
/// Runs that are visited after a change, to merge equal neighbours.
const MERGE_RUNS: usize = 5;
const HASH_SEED: u64 = 0xadc8_3b19;
/// The limit of the bias correction for many registers: `1 / (2 ln 2)`.
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// The registers, one byte each.
pub(super) type Registers = [u8; REGISTERS];

/// The value is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CorruptHll;

/// MurmurHash64A.
fn hash(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = HASH_SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let mut mixed = u64::from_le_bytes(*word).wrapping_mul(M);
        mixed ^= mixed >> R;
        hash = (hash ^ mixed.wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> R
}

/// Returns the register of an element, and the value that the register must have at least.
fn register_of(element: &[u8]) -> (usize, u8) {
    let hash = hash(element);
    let index = hash as usize & (REGISTERS - 1);
    let rest = hash >> INDEX_BITS | 1 << HASH_BITS;
    (index, rest.trailing_zeros() as u8 + 1)
}

/// A run of equal registers of the sparse encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RegisterRun {
    pub(super) value: u8,
    pub(super) len: usize,
    /// Bytes that it takes.
    pub(super) bytes: usize,
}

impl RegisterRun {
    /// The run that begins at `at`.
    fn at(bytes: &[u8], at: usize) -> RegisterRun {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let first = byte(at);
        let low = usize::from(first & 0x3f);
        match first >> 6 {
            0 => RegisterRun {
                value: 0,
                len: low + 1,
                bytes: 1,
            },
            1 => RegisterRun {
                value: 0,
                len: (low << 8 | usize::from(byte(at + 1))) + 1,
                bytes: 2,
            },
            _ => RegisterRun {
                value: (first >> 2 & 0x1f) + 1,
                len: usize::from(first & 3) + 1,
                bytes: 1,
            },
        }
    }
}

/// Appends a run of zeros.
fn push_zeros(out: &mut Vec<u8>, len: usize) {
    match len {
        0 => {}
        1..=ZERO_RUN_MAX => out.push((len - 1) as u8),
        _ => out.extend_from_slice(&[((len - 1) >> 8) as u8 | 0x40, (len - 1) as u8]),
    }
}

/// Appends a run of a value of at most 32, of at most four registers.
fn push_values(out: &mut Vec<u8>, value: u8, len: usize) {
    if len > 0 {
        out.push(value_run(value, len));
    }
}

fn value_run(value: u8, len: usize) -> u8 {
    0x80 | (value - 1) << 2 | (len - 1) as u8
}

/// A HyperLogLog, as the bytes of its string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HyperLogLog {
    bytes: Vec<u8>,
}

impl HyperLogLog {
    /// Creates an empty one, in the sparse encoding.
    pub(super) fn new() -> HyperLogLog {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[ENCODING_AT] = SPARSE;
        push_zeros(&mut bytes, REGISTERS);
        HyperLogLog { bytes }
    }

    /// Reads a string; `None` if its head is not that of a HyperLogLog.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Option<HyperLogLog> {
        let is_valid = bytes.len() >= HEAD_BYTES
            && bytes.starts_with(MAGIC)
            && match bytes[ENCODING_AT] {
                DENSE => bytes.len() == DENSE_BYTES,
                encoding => encoding == SPARSE,
            };
        is_valid.then_some(HyperLogLog { bytes })
    }

    /// The string.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn is_dense(&self) -> bool {
        self.bytes[ENCODING_AT] == DENSE
    }

    /// The cached cardinality, if it is valid.
    pub(super) fn cached(&self) -> Option<u64> {
        let word = self.bytes[CACHE_AT..HEAD_BYTES].try_into().ok()?;
        let cached = u64::from_le_bytes(word);
        (cached >> 63 == 0).then_some(cached)
    }

    /// Caches the cardinality.
    pub(super) fn set_cached(&mut self, cardinality: u64) {
        self.bytes[CACHE_AT..HEAD_BYTES].copy_from_slice(&cardinality.to_le_bytes());
    }

    /// Marks the cached cardinality as invalid.
    pub(super) fn invalidate(&mut self) {
        self.bytes[HEAD_BYTES - 1] |= 0x80;
    }

    /// The runs of the sparse encoding.
    pub(super) fn runs(&self) -> impl Iterator<Item = RegisterRun> {
        let mut at = HEAD_BYTES;
        std::iter::from_fn(move || {
            let run = (at < self.bytes.len()).then(|| RegisterRun::at(&self.bytes, at))?;
            at += run.bytes;
            Some(run)
        })
    }

    /// Register `index` of the dense encoding.
    fn dense(&self, index: usize) -> u8 {
        let (at, shift) = (
            HEAD_BYTES + index * REGISTER_BITS / 8,
            index * REGISTER_BITS % 8,
        );
        let next = self.bytes.get(at + 1).copied().unwrap_or(0);
        let pair = u16::from_le_bytes([self.bytes[at], next]);
        (pair >> shift) as u8 & REGISTER_MAX
    }

    /// Raises register `index` of the dense encoding. Returns whether it changed.
    fn raise_dense(&mut self, index: usize, value: u8) -> bool {
        if self.dense(index) >= value {
            return false;
        }
        let (at, shift) = (
            HEAD_BYTES + index * REGISTER_BITS / 8,
            index * REGISTER_BITS % 8,
        );
        let [mask_low, mask_high] = (u16::from(REGISTER_MAX) << shift).to_le_bytes();
        let [low, high] = (u16::from(value) << shift).to_le_bytes();
        self.bytes[at] = self.bytes[at] & !mask_low | low;
        if let Some(byte) = self.bytes.get_mut(at + 1) {
            *byte = *byte & !mask_high | high;
        }
        true
    }

    /// Changes the encoding to dense.
    pub(super) fn make_dense(&mut self) -> Result<(), CorruptHll> {
        if self.is_dense() {
            return Ok(());
        }
        let mut registers = [0; REGISTERS];
        self.merge_into(&mut registers)?;
        self.bytes.truncate(HEAD_BYTES);
        self.bytes.resize(DENSE_BYTES, 0);
        self.bytes[ENCODING_AT] = DENSE;
        for (index, &value) in registers.iter().enumerate() {
            self.raise_dense(index, value);
        }
        Ok(())
    }

    /// Raises `registers` to the registers of this HyperLogLog where those are greater.
    pub(super) fn merge_into(&self, registers: &mut Registers) -> Result<(), CorruptHll> {
        if self.is_dense() {
            for (index, register) in registers.iter_mut().enumerate() {
                *register = (*register).max(self.dense(index));
            }
            return Ok(());
        }
        let mut index = 0;
        for run in self.runs() {
            let covered = registers
                .get_mut(index..index + run.len)
                .ok_or(CorruptHll)?;
            if run.value > 0 {
                for register in covered {
                    *register = (*register).max(run.value);
                }
            }
            index += run.len;
        }
        if index == REGISTERS {
            Ok(())
        } else {
            Err(CorruptHll)
        }
    }

    /// Adds an element. Returns whether a register changed.
    pub(super) fn add(&mut self, element: &[u8]) -> Result<bool, CorruptHll> {
        let (index, value) = register_of(element);
        self.raise(index, value)
    }

    /// Raises register `index` to at least `value`. Returns whether it changed.
    pub(super) fn raise(&mut self, index: usize, value: u8) -> Result<bool, CorruptHll> {
        if self.is_dense() {
            return Ok(self.raise_dense(index, value));
        }
        if value > SPARSE_VALUE_MAX {
            self.make_dense()?;
            return Ok(self.raise_dense(index, value));
        }
        let (mut at, mut before, mut first) = (HEAD_BYTES, None, 0);
        let run = loop {
            if at >= self.bytes.len() {
                return Err(CorruptHll);
            }
            let run = RegisterRun::at(&self.bytes, at);
            if index < first + run.len {
                break run;
            }
            (before, at, first) = (Some(at), at + run.bytes, first + run.len);
        };
        if run.value >= value {
            return Ok(false);
        }
        let (left, right) = (index - first, first + run.len - 1 - index);
        let mut runs = Vec::with_capacity(5);
        let push = |runs: &mut Vec<u8>, len| match run.value {
            0 => push_zeros(runs, len),
            same => push_values(runs, same, len),
        };
        push(&mut runs, left);
        push_values(&mut runs, value, 1);
        push(&mut runs, right);
        let len = self.bytes.len() - run.bytes + runs.len();
        if runs.len() > run.bytes && len > SPARSE_BYTES_MAX {
            self.make_dense()?;
            return Ok(self.raise_dense(index, value));
        }
        let end = (at + run.bytes).min(self.bytes.len());
        self.bytes.splice(at..end, runs);
        self.merge_runs(before.unwrap_or(HEAD_BYTES));
        self.invalidate();
        Ok(true)
    }

    /// Merges neighbouring runs of the same value, in the few runs from `at` on.
    fn merge_runs(&mut self, mut at: usize) {
        let mut visits = MERGE_RUNS;
        while at < self.bytes.len() && visits > 0 {
            visits -= 1;
            let run = RegisterRun::at(&self.bytes, at);
            if run.value > 0 && at + 1 < self.bytes.len() {
                let next = RegisterRun::at(&self.bytes, at + 1);
                let len = run.len + next.len;
                if next.value == run.value && len <= VALUE_RUN_MAX {
                    self.bytes[at + 1] = value_run(run.value, len);
                    self.bytes.remove(at);
                    continue;
                }
            }
            at += run.bytes;
        }
    }
}

/// Estimates the number of different elements.
pub(super) fn cardinality(registers: &Registers) -> u64 {
    let mut histogram = [0_u32; 64];
    for &register in registers {
        histogram[usize::from(register)] += 1;
    }
    let m = REGISTERS as f64;
    let last = HASH_BITS as usize;
    let mut z = m * tau((m - f64::from(histogram[last + 1])) / m);
    for &count in histogram[1..=last].iter().rev() {
        z = (z + f64::from(count)) * 0.5;
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    (ALPHA * m * m / z).round() as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(hll: &HyperLogLog) -> Registers {
        let mut registers = [0; REGISTERS];
        hll.merge_into(&mut registers).unwrap();
        registers
    }

    #[test]
    fn both_encodings_hold_the_same_registers() {
        let mut sparse = HyperLogLog::new();
        let mut dense = HyperLogLog::new();
        dense.make_dense().unwrap();
        for at in 0..20_000_u32 {
            let element = at.to_string();
            let changed = sparse.add(element.as_bytes()).unwrap();
            assert_eq!(changed, dense.add(element.as_bytes()).unwrap(), "{at}");
            if at % 500 == 0 {
                assert_eq!(registers(&sparse), registers(&dense), "{at}");
            }
        }
        assert!(sparse.is_dense());
        let estimate = cardinality(&registers(&sparse));
        assert!((19_600..20_400).contains(&estimate), "{estimate}");
    }

    #[test]
    fn an_empty_one_counts_nothing() {
        let hll = HyperLogLog::new();
        assert_eq!(cardinality(&registers(&hll)), 0);
        assert_eq!(hll.cached(), Some(0));
        assert_eq!(HyperLogLog::from_bytes(hll.clone().into_bytes()), Some(hll));
    }

    #[test]
    fn damaged_runs_are_an_error() {
        let mut bytes = HyperLogLog::new().into_bytes();
        bytes.truncate(HEAD_BYTES);
        for runs in [&[][..], &[0x7f], &[0x7f, 0xff, 0x00], &[0x3f]] {
            let bytes = [&bytes[..], runs].concat();
            let hll = HyperLogLog::from_bytes(bytes).unwrap();
            assert_eq!(
                hll.merge_into(&mut [0; REGISTERS]),
                Err(CorruptHll),
                "{runs:?}"
            );
        }
    }
}
