//! The blocks of values out of line: their bytes, their references, and their allocation. See `value_blocks`.

use std::collections::{HashMap, VecDeque};

use farbank_fabric::{GAddr, Nanos};
use farbank_pm::fault;

use crate::chunk_pool::ChunkPool;
use crate::config::Config;

const UNIT: u64 = 64;
/// Bytes of a block's header: check, length, name.
const HEAD: usize = 16;
/// Number of uses of a block after which its numbers repeat.
const NUMBERS: u64 = 1 << 12;
const UNITS_MAX: u64 = (1 << 12) - 1;
const PLACES: u64 = 1 << 32;
/// Maximum bytes of a value.
pub const VALUE_BYTES_MAX: usize = (UNITS_MAX / 2 + 1) as usize * UNIT as usize - HEAD;

/// Returns the maximum time between the reads of a leaf and of a block, for which a block rests between its last number and
/// number 0 (TREE-VALUE-3 of `value_blocks`).
pub(crate) fn block_read_ns_max(config: &Config) -> Nanos {
    NUMBERS * config.block_reuse_ns_min
}

/// Reference to a block, stored in an entry in place of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRef(pub(crate) u64);

impl BlockRef {
    pub(crate) fn new(at: GAddr, bytes: usize, number: u64) -> BlockRef {
        let units = (bytes as u64).div_ceil(UNIT);
        let place = at.at() / UNIT;
        debug_assert!(units <= UNITS_MAX && place < PLACES && at.server() < 256);
        BlockRef(u64::from(at.server()) | place << 8 | units << 40 | (number % NUMBERS) << 52)
    }

    /// Returns whether a name can have the address `at`: on one of the first 256 servers, in its first 256 GiB.
    pub(crate) fn has_place(at: GAddr) -> bool {
        at.at() / UNIT < PLACES && at.server() < 256
    }

    pub(crate) fn at(self) -> GAddr {
        GAddr::host(self.0 as u8 as u16, (self.0 >> 8) % PLACES * UNIT)
    }

    fn units(self) -> u64 {
        (self.0 >> 40) & UNITS_MAX
    }

    /// Returns the bytes of the block that its value uses, in whole units.
    pub(crate) fn bytes(self) -> usize {
        self.units() as usize * UNIT as usize
    }

    /// Returns the bytes of the block.
    pub(crate) fn class_bytes(self) -> u64 {
        self.class() * UNIT
    }

    fn number(self) -> u64 {
        self.0 >> 52
    }

    /// Returns the size class: the block's units, some of which the value may leave unused.
    fn class(self) -> u64 {
        self.units().next_power_of_two()
    }
}

/// The blocks that a compute server can allocate on one memory server.
#[derive(Default)]
pub(crate) struct ValueBlocks {
    /// The unused parts of chunks.
    chunks: ChunkPool,
    /// Freed blocks with their last numbers, by size class.
    freed: HashMap<u64, Vec<(GAddr, u64)>>,
    /// Freed blocks whose numbers begin again, with the time until which they rest, by size class.
    resting: HashMap<u64, VecDeque<(GAddr, Nanos)>>,
}

impl ValueBlocks {
    /// Creates an allocator without memory.
    pub(crate) fn new(keeps_rest: bool) -> ValueBlocks {
        ValueBlocks {
            chunks: ChunkPool::new(keeps_rest),
            freed: HashMap::new(),
            resting: HashMap::new(),
        }
    }

    /// Allocates a block of `class` units at time `now`. Returns its address and its number, or `None` if there is no space. A
    /// block rests for `rest_ns` between its last number and number 0.
    pub(crate) fn take(
        &mut self,
        server: u16,
        class: u64,
        now: Nanos,
        rest_ns: Nanos,
    ) -> Option<(GAddr, u64)> {
        let resting = self.resting.entry(class).or_default();
        if let Some((at, until)) = resting.front().copied()
            && until <= now
        {
            resting.pop_front();
            return Some((at, 0));
        }
        while let Some((at, number)) = self.freed.get_mut(&class).and_then(Vec::pop) {
            if number + 1 == NUMBERS {
                resting.push_back((at, now + rest_ns));
                continue;
            }
            let next = if fault!("tree.block_keeps_number") {
                0
            } else {
                1
            };
            return Some((at, number + next));
        }
        let at = self.chunks.take(class * UNIT)?;
        Some((GAddr::host(server, at), 0))
    }

    /// Adds a chunk.
    pub(crate) fn add_chunk(&mut self, at: u64, bytes: u64) {
        self.chunks.add(at.next_multiple_of(UNIT), at + bytes);
    }

    /// Removes the unused parts of chunks and the freed blocks.
    pub(crate) fn take_unused(&mut self) -> (Vec<(u64, u64)>, Vec<BlockRef>) {
        let mut freed = std::mem::take(&mut self.freed);
        for (class, blocks) in self.resting.drain() {
            let blocks = blocks.into_iter().map(|(at, _)| (at, NUMBERS - 1));
            freed.entry(class).or_default().extend(blocks);
        }
        let names = freed.into_iter().flat_map(|(class, blocks)| {
            let name = move |(at, number)| BlockRef::new(at, (class * UNIT) as usize, number);
            blocks.into_iter().map(name)
        });
        (self.chunks.take_all(), names.collect())
    }

    /// Makes a freed block available again.
    pub(crate) fn put_back(&mut self, name: BlockRef) {
        let freed = self.freed.entry(name.class()).or_default();
        freed.push((name.at(), name.number()));
    }
}

/// Returns the bytes of the block of a value of `value_bytes`, its header included, and the block's size class in units.
pub(crate) fn size_of(value_bytes: usize) -> (usize, u64) {
    let bytes = HEAD + value_bytes;
    (bytes, (bytes as u64).div_ceil(UNIT).next_power_of_two())
}

/// Returns the bytes of the block called `name`.
pub(crate) fn block(name: BlockRef, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&name.0.to_le_bytes());
    bytes.extend_from_slice(value);
    let check = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Returns the value in the copy of the block called `name`; `None` if it is another block or was being written.
pub(crate) fn value_in(name: BlockRef, bytes: &[u8]) -> Option<Vec<u8>> {
    let word =
        |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("blocks have heads"));
    let end = HEAD.checked_add(word(4) as usize)?;
    let value = bytes.get(HEAD..end)?;
    let whole = word(0) == crc32c::crc32c(&bytes[4..end]) && bytes[8..16] == name.0.to_le_bytes();
    (whole || fault!("tree.block_unchecked")).then(|| value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_encodes_its_block_and_is_never_null() {
        for (server, place, bytes, number) in [
            (0, 0, HEAD, 0),
            (255, (PLACES - 1) * UNIT, HEAD + VALUE_BYTES_MAX, 4095),
            (7, 4096, 65, 1),
        ] {
            let at = GAddr::host(server, place);
            let name = BlockRef::new(at, bytes, number);
            assert_eq!((name.at(), name.number()), (at, number));
            assert_eq!(name.units(), (bytes as u64).div_ceil(UNIT));
            assert_ne!(name.0, 0);
        }
    }

    #[test]
    fn a_block_rests_before_its_numbers_begin_again() {
        const REST: Nanos = 100;
        let mut blocks = ValueBlocks::new(false);
        blocks.add_chunk(4096, 2 * UNIT);
        let (at, number) = blocks.take(0, 1, 0, REST).unwrap();
        assert_eq!(number, 0);
        blocks.put_back(BlockRef::new(at, 64, NUMBERS - 2));
        assert_eq!(blocks.take(0, 1, 0, REST), Some((at, NUMBERS - 1)));
        blocks.put_back(BlockRef::new(at, 64, NUMBERS - 1));
        let (other, number) = blocks.take(0, 1, 7, REST).unwrap();
        assert!(other != at && number == 0);
        assert_eq!(blocks.take(0, 1, 7 + REST - 1, REST), None);
        assert_eq!(blocks.take(0, 1, 7 + REST, REST), Some((at, 0)));
        blocks.put_back(BlockRef::new(at, 64, NUMBERS - 1));
        assert_eq!(blocks.take(0, 1, 7, REST), None);
        let (_, left) = blocks.take_unused();
        assert_eq!(left, [BlockRef::new(at, 64, NUMBERS - 1)]);
    }

    #[test]
    fn a_block_with_another_name_or_a_changed_byte_is_rejected() {
        let at = GAddr::host(3, 1 << 20);
        let name = BlockRef::new(at, HEAD + 100, 5);
        let mut bytes = block(name, &[7; 100]);
        bytes.resize(name.units() as usize * UNIT as usize, 0xee);
        assert_eq!(value_in(name, &bytes), Some(vec![7; 100]));
        assert_eq!(value_in(BlockRef::new(at, HEAD + 100, 6), &bytes), None);
        for at in 0..HEAD + 100 {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(value_in(name, &other), None, "byte {at}");
        }
    }
}
