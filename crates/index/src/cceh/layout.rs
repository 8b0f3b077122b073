//! The bytes of a segment.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{Cceh, Config};
use crate::extendible::{DEPTH_MAX, Header};
use crate::ground::{CONFIG_WORDS, Class, OpenError};

/// The key that means an empty slot.
pub(super) const EMPTY: u64 = 0;

const SLOT: u64 = 16;
const SLOTS_A_LINE: u64 = LINE as u64 / SLOT;

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
        Header::at(self.ground.medium(), segment)
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
}

/// Where a slot's value is; its key is where it starts.
pub(super) fn value_of(slot: Off) -> Off {
    slot.plus(WORD as u64)
}
