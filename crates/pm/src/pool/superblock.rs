//! The encoding of one copy of the superblock, and its validation.
//!
//! ```text
//!   0       8         12        16       24        32        40       56        64
//!   ┌───────┬─────────┬─────────┬────────┬─────────┬─────────┬────────┬─────────┬──────────┐
//!   │ magic │ version │ bytes   │ compat │ ro      │ incompat│ id     │ segment │ segments │
//!   │       │  u32    │ u32=512 │ bits   │ compat  │ bits    │ 16 B   │ bytes   │          │
//!   └───────┴─────────┴─────────┴────────┴─────────┴─────────┴────────┴─────────┴──────────┘
//!   72         80        88              128                    448       464         496        512
//!   ┌──────────┬─────────┬─ ... ─────────┬──────────────────────┬─────────┬───────────┬──────────┐
//!   │ created, │ update  │ reserved, 0   │ root: 40 words of    │ in use  │ reserved, │ XXH3-128 │
//!   │ Unix s   │ number  │               │ the engine           │ as file │ 0         │ of 0..496│
//!   └──────────┴─────────┴───────────────┴──────────────────────┴─────────┴───────────┴──────────┘
//!
//!   in use as file: inode number, 0 after a clean close; creation time in nanoseconds since 1970
//! ```
//!
//! Magic, version, length and the position of the checksum are the same in every version, so that an
//! old program can distinguish a newer pool from a damaged one.

use std::ops::Range;

use super::{PoolRoot, ROOT_WORDS};
use crate::medium::{FileId, WORD};

/// Bytes in a copy: one sector, which a power cut never tears on a file.
pub(super) const BYTES: usize = 512;
pub(super) const MAGIC: [u8; 8] = *b"FARBANK\n";
/// Format versions that this program supports.
pub(super) const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;

const COMPAT: usize = 16;
const RO_COMPAT: usize = 24;
const INCOMPAT: usize = 32;
const ID: Range<usize> = 40..56;
const SEGMENT_BYTES: usize = 56;
const SEGMENTS: usize = 64;
const CREATED: usize = 72;
const UPDATE: usize = 80;
const ROOT: usize = 128;
const INODE: usize = 448;
const CREATED_NS: usize = 456;
const CHECKSUM: Range<usize> = 496..512;

const _: () = assert!(ROOT + ROOT_WORDS * WORD <= INODE && CHECKSUM.end == BYTES);
const _: () = assert!(CREATED_NS + WORD <= CHECKSUM.start);

/// The contents of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Format version: one of [`VERSIONS`].
    pub(super) version: u32,
    pub(super) features: Features,
    pub(super) id: [u8; 16],
    pub(super) segment_bytes: u64,
    pub(super) segments: u64,
    pub(super) created_unix_s: u64,
    pub(super) update: u64,
    pub(super) root: PoolRoot,
    /// The file in which the pool is open, or was open at the last crash. `None` after a clean close.
    pub(super) in_use_as: Option<FileId>,
}

/// Feature bits. This program supports [`SWAPPED_DATABASES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// A program that does not support one of these bits may read and write the pool.
    pub(super) compat: u64,
    /// A program that does not support one of these bits may only read the pool.
    pub(super) ro_compat: u64,
    /// A program that does not support one of these bits must not open the pool.
    pub(super) incompat: u64,
}

/// Incompatible feature: the engine's words have a mapping of the databases' numbers. A program that does not know it would
/// show keys in the wrong databases.
pub(super) const SWAPPED_DATABASES: u64 = 1;

/// Highest update number. No pool has as many updates, so a copy with a higher number is invalid.
pub(super) const UPDATE_MAX: u64 = 1 << 62;

/// The result of validating 512 bytes as a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "at most two exist, briefly, on the stack"
)]
pub(super) enum SuperblockCopy {
    /// Intact, and of a version that this program supports.
    Valid(Superblock),
    /// Intact, but of this other version, which this program does not support.
    Version(u32),
    /// The magic is right, but the checksum or a field is wrong.
    Damaged,
    /// The magic is not a pool's: the first eight bytes.
    Foreign([u8; 8]),
}

impl Superblock {
    pub(super) fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(BYTES as u32).to_le_bytes());
        bytes[ID].copy_from_slice(&self.id);
        let fields = [
            (COMPAT, self.features.compat),
            (RO_COMPAT, self.features.ro_compat),
            (INCOMPAT, self.features.incompat),
            (SEGMENT_BYTES, self.segment_bytes),
            (SEGMENTS, self.segments),
            (CREATED, self.created_unix_s),
            (UPDATE, self.update),
            (INODE, self.in_use_as.map_or(0, |file| file.inode)),
            (CREATED_NS, self.in_use_as.map_or(0, |file| file.created_ns)),
        ];
        let root = self
            .root
            .iter()
            .enumerate()
            .map(|(i, word)| (ROOT + i * WORD, *word));
        for (at, value) in fields.into_iter().chain(root) {
            bytes[at..at + WORD].copy_from_slice(&value.to_le_bytes());
        }
        let checksum = checksum(&bytes);
        bytes[CHECKSUM].copy_from_slice(&checksum);
        bytes
    }

    pub(super) fn classify(bytes: &[u8; BYTES]) -> SuperblockCopy {
        if bytes[..8] != MAGIC {
            return SuperblockCopy::Foreign(bytes[..8].try_into().expect("eight bytes"));
        }
        if bytes[CHECKSUM] != checksum(bytes) {
            return SuperblockCopy::Damaged;
        }
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        if !VERSIONS.contains(&version) {
            return SuperblockCopy::Version(version);
        }
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + WORD].try_into().expect("eight bytes"));
        let length = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes"));
        if length != BYTES as u32 || word(UPDATE) > UPDATE_MAX {
            return SuperblockCopy::Damaged;
        }
        SuperblockCopy::Valid(Superblock {
            version,
            features: Features {
                compat: word(COMPAT),
                ro_compat: word(RO_COMPAT),
                incompat: word(INCOMPAT),
            },
            id: bytes[ID].try_into().expect("sixteen bytes"),
            segment_bytes: word(SEGMENT_BYTES),
            segments: word(SEGMENTS),
            created_unix_s: word(CREATED),
            update: word(UPDATE),
            root: std::array::from_fn(|i| word(ROOT + i * WORD)),
            in_use_as: (word(INODE) != 0).then(|| FileId {
                inode: word(INODE),
                created_ns: word(CREATED_NS),
            }),
        })
    }
}

fn checksum(bytes: &[u8; BYTES]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(&bytes[..CHECKSUM.start]).to_le_bytes()
}
