//! Memory that compute servers have taken from a memory server, not used, and left to others at their end.
//!
//! ```text
//!   byte 192    head: number of changes:24 │ place:40                place: an offset in units of 64 bytes; 0: none
//!                                             │
//!   spare part  next place 8 │ kind 8 │ end 8 │ check 8 ──▶ next ...   never used: `end` is its end
//!   freed block next place 8 │ kind 8 │ name 8 │ check 8               its name carries its last number (TREE-VALUE-2)
//! ```
//!
//! The list of a memory server is a stack. To take the first record, a client reads the head and the record, and swaps
//! the next place into the head. To add records, it writes them and swaps the place of the first into the head, in one
//! batch. The number of changes makes a swap fail if the list has changed meanwhile.
//!
//! # Invariants
//! TREE-SPARE-1  The memory of a record is in no use: no entry refers to it, and no client will write it. So only a compute
//!     server whose operations have all succeeded adds records.
//! TREE-SPARE-2  A record is complete before the head leads to it.
//!
//! A client that dies after its swap loses the memory that it has taken. A reader with an old name of a freed block finds the
//! kind in place of the name, and reads the leaf again.

use farbank_fabric::{Fabric, GAddr, Verb};

use crate::block::BlockRef;
use crate::client::Client;
use crate::error::TreeError;

/// Unit of places.
const UNIT: u64 = 64;
const PLACE_BITS: u32 = 40;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
const RECORD_BYTES: usize = 32;
const PART: u64 = 1;
const BLOCK: u64 = 2;
/// Maximum number of records that a compute server leaves on a memory server. One batch writes them.
const RECORDS_MAX: usize = 2048;
/// Maximum number of swaps of the head that fail.
const SWAPS_MAX: u32 = 32;

/// Returns the head of the list of `server`.
fn head(server: u16) -> GAddr {
    GAddr::host(server, 192)
}

/// Memory in no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpareMemory {
    /// The never used part `at..end`.
    Part { at: u64, end: u64 },
    /// A block that was freed.
    Block(BlockRef),
}

impl SpareMemory {
    fn at(self) -> u64 {
        match self {
            SpareMemory::Part { at, .. } => at,
            SpareMemory::Block(name) => name.at().at(),
        }
    }

    /// Returns the record that links this memory to the record at `next`.
    fn encode(self, next: u64) -> Vec<u8> {
        let (kind, value) = match self {
            SpareMemory::Part { end, .. } => (PART, end),
            SpareMemory::Block(name) => (BLOCK, name.0),
        };
        [next, kind, value, check(self.at(), next, kind, value)]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// Returns the memory of the record at `at` of `server`, and the next place. `None`: the bytes are no record.
    fn decode(server: u16, at: u64, bytes: &[u8]) -> Option<(SpareMemory, u64)> {
        let word = |n: usize| Some(u64::from_le_bytes(*bytes.get(n * 8..)?.first_chunk()?));
        let (next, kind, value) = (word(0)?, word(1)?, word(2)?);
        if word(3)? != check(at, next, kind, value) || next > PLACE_MASK {
            return None;
        }
        let name = BlockRef(value);
        let memory = match kind {
            PART if value > at => SpareMemory::Part { at, end: value },
            BLOCK if name.at() == GAddr::host(server, at) => SpareMemory::Block(name),
            _ => return None,
        };
        Some((memory, next))
    }
}

fn check(at: u64, next: u64, kind: u64, value: u64) -> u64 {
    let bytes: Vec<u8> = [at, next, kind, value]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    u64::from(crc32c::crc32c(&bytes)) << 32 | 0x7370_6172
}

impl<F: Fabric> Client<F> {
    /// Takes the first record of `server`. Returns `None` if there is none.
    pub(crate) async fn take_spare(&self, server: u16) -> Result<Option<SpareMemory>, TreeError> {
        if !self.config().shares_spare {
            return Ok(None);
        }
        let mut word = word_of(self.round_trip(Verb::read(head(server), 8)).await?);
        for _ in 0..SWAPS_MAX {
            let place = word & PLACE_MASK;
            if place == 0 {
                return Ok(None);
            }
            let at = place * UNIT;
            let record = Verb::read(GAddr::host(server, at), RECORD_BYTES);
            let bytes = self.round_trip(record).await?.into_bytes();
            // Another client may have taken and used the memory. Then the swap would fail.
            let record = SpareMemory::decode(server, at, &bytes);
            let (memory, next) = match record {
                Some((memory, next)) => (Some(memory), next),
                // If the swap succeeds, the list has not changed, so the record is damaged: the list is given up.
                None => (None, 0),
            };
            let swap = Verb::cas(head(server), word, changed(word, next));
            let found = self.round_trip(swap).await?.found();
            if found == word {
                return Ok(memory);
            }
            word = found;
        }
        Ok(None)
    }

    /// Leaves the unused memory of this compute server to others. All its operations must have succeeded
    /// (TREE-SPARE-1), and none may follow.
    pub(crate) async fn leave_spare(&self) -> Result<(), TreeError> {
        for server in 0..self.fabric().servers() {
            let mut all = self.unused(server);
            all.truncate(RECORDS_MAX);
            if !all.is_empty() {
                self.add_spare(server, &all).await?;
            }
        }
        Ok(())
    }

    /// Returns the unused memory of this compute server on `server`, the largest parts first.
    fn unused(&self, server: u16) -> Vec<SpareMemory> {
        let mut parts = self.nodes(server, |nodes| nodes.take_unused());
        let (more, blocks) = self.blocks(server, |blocks| blocks.take_unused());
        parts.extend(more);
        parts.sort_by_key(|(at, end)| std::cmp::Reverse(end - at));
        let parts = parts.into_iter().filter_map(|(at, end)| {
            let at = at.next_multiple_of(UNIT);
            (at + UNIT <= end).then_some(SpareMemory::Part { at, end })
        });
        parts
            .chain(blocks.into_iter().map(SpareMemory::Block))
            .collect()
    }

    /// Adds `all`, which is not empty, to the list of `server` (TREE-SPARE-2).
    async fn add_spare(&self, server: u16, all: &[SpareMemory]) -> Result<(), TreeError> {
        let mut word = word_of(self.round_trip(Verb::read(head(server), 8)).await?);
        for _ in 0..SWAPS_MAX {
            let mut next = word & PLACE_MASK;
            let mut verbs = Vec::with_capacity(all.len() + 1);
            for memory in all {
                let at = GAddr::host(server, memory.at());
                verbs.push(Verb::write(at, memory.encode(next)));
                next = memory.at() / UNIT;
            }
            verbs.push(Verb::cas(head(server), word, changed(word, next)));
            let done = self.fabric().batch(server, verbs).await;
            let done = done.map_err(|error| self.noted(error))?;
            let found = done.last().map_or(word, Verb::found);
            if found == word {
                return Ok(());
            }
            word = found;
        }
        Ok(())
    }
}

/// Returns the head that follows `word` and leads to `place`.
fn changed(word: u64, place: u64) -> u64 {
    ((word >> PLACE_BITS).wrapping_add(1) << PLACE_BITS) | place
}

fn word_of(read: Verb) -> u64 {
    let bytes = read.into_bytes();
    u64::from_le_bytes(*bytes.first_chunk().expect("a word was read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_as_they_were_encoded_and_other_bytes_are_none() {
        let name = BlockRef::new(GAddr::host(3, 128), 200, 7);
        let part = SpareMemory::Part { at: 64, end: 4096 };
        for (memory, at) in [(part, 64), (SpareMemory::Block(name), 128)] {
            let bytes = memory.encode(9);
            assert_eq!(SpareMemory::decode(3, at, &bytes), Some((memory, 9)));
            assert_eq!(SpareMemory::decode(3, at + 64, &bytes), None);
            for byte in 0..RECORD_BYTES {
                let mut other = bytes.clone();
                other[byte] ^= 1;
                assert_eq!(SpareMemory::decode(3, at, &other), None, "byte {byte}");
            }
        }
        assert_eq!(changed(u64::MAX, 5), 5);
    }
}
