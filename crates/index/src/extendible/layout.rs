//! The words of a directory and of a segment's header, and the use of hash bits.

use std::fmt;

use farbank_pm::{Medium, Off, WORD};

use super::{DEPTH_MAX, SEGMENT};
use crate::error::IndexError;
use crate::pool_heap::TablePool;

/// Offset and depth of a directory, in one word: runs are aligned to chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectoryWord(pub(super) u64);

impl DirectoryWord {
    const DEPTH_BITS: u64 = 0x3f;

    pub(super) fn new(at: Off, depth: u32) -> DirectoryWord {
        DirectoryWord(at.0 | u64::from(depth))
    }

    #[inline]
    pub(super) fn at(self) -> Off {
        Off(self.0 & !DirectoryWord::DEPTH_BITS)
    }

    #[inline]
    pub(super) fn depth(self) -> u32 {
        (self.0 & DirectoryWord::DEPTH_BITS) as u32
    }

    pub(super) fn entries(self) -> u64 {
        1 << self.depth()
    }

    /// Bytes of far memory.
    pub(crate) fn bytes(self) -> u64 {
        self.entries() * WORD as u64
    }

    pub(super) fn entry(self, n: u64) -> Off {
        self.at().plus(n * WORD as u64)
    }

    /// Returns the offset of the entry for a hash.
    #[inline]
    pub(crate) fn entry_of(self, hash: u64) -> Off {
        self.entry(top(hash, self.depth()))
    }

    /// Checks that an allocated segment starts at `at`, that the entries of its header's range include that of `hash`,
    /// and that exactly those entries name it.
    pub(super) fn validate<M: Medium>(
        self,
        ground: &TablePool<M>,
        at: Off,
        hash: u64,
    ) -> Result<(), InvalidSegment> {
        let medium = ground.medium();
        if !ground.is_block(at, SEGMENT) {
            return Err(InvalidSegment::NotAllocated);
        }
        let Some(header) = plausible(medium, self, at).filter(|header| header.owns(hash)) else {
            let header = SegmentHeader::at(medium, at);
            return Err(InvalidSegment::OtherHash { header, hash });
        };
        let (first, count) = self.range(header);
        let names = |n| medium.load(self.entry(n)) == at.0;
        let others = header.depth > 0 && names(first ^ count);
        if others || !(first..first + count).all(names) {
            let last = first + count - 1;
            return Err(InvalidSegment::OtherEntries {
                header,
                first,
                last,
            });
        }
        Ok(())
    }

    /// Returns the first entry of a segment and the number of its entries.
    pub(super) fn range(self, header: SegmentHeader) -> (u64, u64) {
        let behind = self.depth() - header.depth;
        (header.prefix << behind, 1 << behind)
    }
}

/// The reason why the segment that an entry of the directory names is invalid (IX-EXT-5).
pub(super) enum InvalidSegment {
    /// No allocated segment starts there.
    NotAllocated,
    /// The range of its header does not include the hash.
    OtherHash { header: SegmentHeader, hash: u64 },
    /// Not exactly the entries of its header's range name it.
    OtherEntries {
        header: SegmentHeader,
        first: u64,
        last: u64,
    },
}

impl fmt::Display for InvalidSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidSegment::NotAllocated => f.write_str("expected an allocated segment there"),
            InvalidSegment::OtherHash { header, hash } => {
                write!(f, "whose header {header:?} does not cover hash {hash:#x}")
            }
            InvalidSegment::OtherEntries {
                header,
                first,
                last,
            } => write!(
                f,
                "whose header is {header:?}; expected that exactly entries {first} to {last} name it"
            ),
        }
    }
}

/// An entry of a directory as it was read.
#[derive(Clone, Copy)]
pub(crate) struct DirectoryEntry {
    pub(super) directory: DirectoryWord,
    pub(super) at: Off,
    pub(super) word: u64,
}

/// The header of a segment, its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    /// Number of leading hash bits that its keys have in common.
    pub(super) depth: u32,
    /// These bits.
    pub(super) prefix: u64,
}

impl SegmentHeader {
    fn of(word: u64) -> SegmentHeader {
        SegmentHeader {
            depth: (word & 0xff) as u32,
            prefix: word >> 8,
        }
    }

    /// Returns the stored form.
    pub(crate) fn word(self) -> u64 {
        self.prefix << 8 | u64::from(self.depth)
    }

    /// Reads the header of the segment at `segment`.
    #[inline]
    pub(crate) fn at<M: Medium>(medium: &M, segment: Off) -> SegmentHeader {
        SegmentHeader::of(medium.load(segment))
    }

    /// Reads the header of a segment that a lookup of `hash` returned, and checks that it covers `hash`.
    #[inline]
    pub(crate) fn serving<M: Medium>(
        medium: &M,
        segment: Off,
        hash: u64,
    ) -> Result<SegmentHeader, IndexError> {
        let header = SegmentHeader::at(medium, segment);
        if header.depth <= DEPTH_MAX && header.owns(hash) {
            return Ok(header);
        }
        Err(IndexError::damaged(format!(
            "the directory leads hash {hash:#x} to {segment:?}, whose header {header:?} does not cover it"
        )))
    }

    /// Returns the header of the half of a split whose next hash bit is `bit`.
    pub(crate) fn half(self, bit: u64) -> SegmentHeader {
        SegmentHeader {
            depth: self.depth + 1,
            prefix: self.prefix << 1 | bit,
        }
    }

    /// Returns whether keys with this hash belong to the segment.
    #[inline]
    pub(crate) fn owns(self, hash: u64) -> bool {
        top(hash, self.depth) == self.prefix
    }
}

/// Returns the header at `segment` if it fits the directory.
pub(super) fn plausible<M: Medium>(
    medium: &M,
    directory: DirectoryWord,
    segment: Off,
) -> Option<SegmentHeader> {
    let header = SegmentHeader::at(medium, segment);
    let fits = header.depth <= directory.depth() && header.prefix >> header.depth == 0;
    fits.then_some(header)
}

/// Returns the top `bits` bits of a hash.
#[inline]
fn top(hash: u64, bits: u32) -> u64 {
    hash >> 1 >> (u64::BITS - 1 - bits) // two shifts, so that 0 bits yield 0
}
