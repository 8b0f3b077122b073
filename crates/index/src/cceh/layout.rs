//! The bytes of a segment and of the directory.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{Cceh, Config};
use crate::ground::{CONFIG_WORDS, Class, OpenError};

/// The key that means an empty slot.
pub(super) const EMPTY: u64 = 0;
/// The root's word for the directory.
pub(super) const DIRECTORY: u64 = 0;
/// The class of segments.
pub(super) const SEGMENT: usize = 0;

const SLOT: u64 = 16;
const SLOTS_A_LINE: u64 = LINE as u64 / SLOT;
/// Deepest directory: 2^DEPTH_MAX entries would not fit into any pool.
pub(super) const DEPTH_MAX: u32 = 40;

/// Where a directory is, and how many bits of a hash it takes: one word, runs being aligned to chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Directory {
    pub(super) at: Off,
    pub(super) depth: u32,
}

impl Directory {
    const DEPTH_BITS: u64 = 0x3f;

    pub(super) fn of(word: u64) -> Directory {
        Directory {
            at: Off(word & !Directory::DEPTH_BITS),
            depth: (word & Directory::DEPTH_BITS) as u32,
        }
    }

    pub(super) fn word(self) -> u64 {
        self.at.0 | u64::from(self.depth)
    }

    pub(super) fn entries(self) -> u64 {
        1 << self.depth
    }

    pub(super) fn bytes(self) -> u64 {
        self.entries() * WORD as u64
    }

    pub(super) fn entry(self, n: u64) -> Off {
        self.at.plus(n * WORD as u64)
    }

    #[inline]
    pub(super) fn entry_of(self, hash: u64) -> Off {
        self.entry(top(hash, self.depth))
    }

    /// The entries of a segment: the first, and how many.
    pub(super) fn range(self, header: Header) -> (u64, u64) {
        let behind = self.depth - header.depth;
        (header.prefix << behind, 1 << behind)
    }
}

/// The first word of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// How many bits of their hashes its keys have in common.
    pub(super) depth: u32,
    /// Those bits.
    pub(super) prefix: u64,
}

impl Header {
    pub(super) fn of(word: u64) -> Header {
        Header {
            depth: (word & 0xff) as u32,
            prefix: word >> 8,
        }
    }

    pub(super) fn word(self) -> u64 {
        self.prefix << 8 | u64::from(self.depth)
    }

    /// Of the two halves of a split, the one with this next bit.
    pub(super) fn half(self, bit: u64) -> Header {
        Header {
            depth: self.depth + 1,
            prefix: self.prefix << 1 | bit,
        }
    }

    /// Whether keys of this hash are the segment's (I1).
    #[inline]
    pub(super) fn owns(self, hash: u64) -> bool {
        top(hash, self.depth) == self.prefix
    }
}

/// The top `bits` of a hash.
#[inline]
fn top(hash: u64, bits: u32) -> u64 {
    hash.checked_shr(u64::BITS - bits).unwrap_or(0)
}

impl Config {
    pub(super) fn slots(&self) -> u64 {
        SLOTS_A_LINE << self.bucket_bits
    }

    /// Bytes in a segment, its header's line included.
    pub(super) fn segment_bytes(&self) -> u64 {
        LINE as u64 + ((LINE as u64) << self.bucket_bits)
    }

    pub(super) fn classes(&self) -> [Class; 1] {
        [Class {
            block_bytes: self.segment_bytes(),
            align: LINE as u64,
        }]
    }

    pub(super) fn words(&self) -> [u64; 4] {
        let Config {
            bucket_bits,
            probe_lines,
            depth,
            far_locks,
        } = *self;
        [bucket_bits, probe_lines, depth, u32::from(far_locks)].map(u64::from)
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<Config, OpenError> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = Config {
            bucket_bits: small(words[0]),
            probe_lines: small(words[1]),
            depth: small(words[2]),
            far_locks: words[3] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = self.bucket_bits <= 16
            && (1..=1 << self.bucket_bits).contains(&self.probe_lines)
            && (1..=DEPTH_MAX).contains(&self.depth);
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no arrangement of a table"),
        })
    }
}

impl<M: Medium> Cceh<M> {
    #[inline]
    pub(super) fn header(&self, segment: Off) -> Header {
        Header::of(self.ground.medium().load(segment))
    }

    /// The word published code keeps its lock in.
    pub(super) fn lock_word(segment: Off) -> Off {
        segment.plus(WORD as u64)
    }

    /// Slot `n` of a segment.
    pub(super) fn slot(segment: Off, n: u64) -> Off {
        segment.plus(LINE as u64 + n * SLOT)
    }

    /// The home bucket's line of a hash.
    #[inline]
    pub(super) fn home(&self, segment: Off, hash: u64) -> Off {
        let bucket = hash & ((1 << self.config.bucket_bits) - 1);
        Self::slot(segment, bucket * SLOTS_A_LINE)
    }

    /// The slots that may hold keys of this hash, in the order they are looked at.
    #[inline]
    pub(super) fn slots_of(&self, segment: Off, hash: u64) -> impl Iterator<Item = Off> {
        let mask = (1 << self.config.bucket_bits) - 1;
        (0..u64::from(self.config.probe_lines)).flat_map(move |line| {
            let bucket = hash.wrapping_add(line) & mask;
            (0..SLOTS_A_LINE).map(move |n| Self::slot(segment, bucket * SLOTS_A_LINE + n))
        })
    }

    /// Tells of each live slot: where it is, its key, its value.
    pub(super) fn each_live(&self, segment: Off, mut each: impl FnMut(Off, u64, u64)) {
        let medium = self.ground.medium();
        let header = self.header(segment);
        for n in 0..self.config.slots() {
            let slot = Self::slot(segment, n);
            let key = medium.load(slot);
            if key != EMPTY && header.owns(crate::hash::hash(key)) {
                each(slot, key, medium.load(value_of(slot)));
            }
        }
    }

    /// Tells of each segment.
    pub(super) fn each_segment(&self, mut each: impl FnMut(Off)) {
        let directory = self.directory();
        let mut n = 0;
        while n < directory.entries() {
            let segment = Off(self.ground.medium().load(directory.entry(n)));
            each(segment);
            n += directory.range(self.header(segment)).1;
        }
    }
}

/// Where a slot's value is; its key is where it starts.
pub(super) fn value_of(slot: Off) -> Off {
    slot.plus(WORD as u64)
}
