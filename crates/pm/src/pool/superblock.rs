//! One copy of the superblock as bytes, and how to judge bytes that claim to be one.
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
//!   in use as file: inode number, 0 after a clean close; its birth in nanoseconds since 1970
//! ```
//!
//! Magic, version, length and the place of the checksum stay what they are in every version, so
//! that an old program can tell a newer pool from a damaged one.

use std::ops::Range;

use super::{PoolRoot, ROOT_WORDS};
use crate::medium::{FileId, WORD};

/// Bytes in a copy: one sector, which no power cut tears.
pub(super) const BYTES: usize = 512;
pub(super) const MAGIC: [u8; 8] = *b"FARBANK\n";
/// Versions of the format that this program knows.
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
const BORN_NS: usize = 456;
const CHECKSUM: Range<usize> = 496..512;

const _: () = assert!(ROOT + ROOT_WORDS * WORD <= INODE && CHECKSUM.end == BYTES);
const _: () = assert!(BORN_NS + WORD <= CHECKSUM.start);

/// What a copy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Version of the format: one of [`VERSIONS`].
    pub(super) version: u32,
    pub(super) features: Features,
    pub(super) id: [u8; 16],
    pub(super) segment_bytes: u64,
    pub(super) segments: u64,
    pub(super) created_unix_s: u64,
    pub(super) update: u64,
    pub(super) root: PoolRoot,
    /// The file the pool is in use in, or was when the machine or the process ended.
    pub(super) in_use_as: Option<FileId>,
}

/// Feature bits. This program knows none yet and writes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// A program that does not know one of these may use the pool all the same.
    pub(super) compat: u64,
    /// ... may only read it.
    pub(super) ro_compat: u64,
    /// ... must leave it alone.
    pub(super) incompat: u64,
}

/// More updates than any pool has: a higher number was forged.
pub(super) const UPDATE_MAX: u64 = 1 << 62;

/// What 512 bytes turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "two of them live, briefly, on the stack"
)]
pub(super) enum SuperblockCopy {
    /// Whole, and of a version this program knows.
    Valid(Superblock),
    /// Whole, but of a version this program does not know.
    Version(u32),
    /// Ours by its magic, but the checksum does not hold.
    Damaged,
    /// Not ours: how it begins.
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
            (BORN_NS, self.in_use_as.map_or(0, |file| file.born_ns)),
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
                born_ns: word(BORN_NS),
            }),
        })
    }
}

fn checksum(bytes: &[u8; BYTES]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(&bytes[..CHECKSUM.start]).to_le_bytes()
}
