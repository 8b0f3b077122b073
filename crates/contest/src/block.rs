//! A block of far memory: its number, its offset and its size.

/// Granularity of a block, in bytes.
pub(crate) const UNIT: usize = 16;

/// Rounds `bytes` up to a whole number of units.
pub(crate) const fn align16(bytes: usize) -> usize {
    bytes.next_multiple_of(UNIT)
}

/// An allocated block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AllottedBlock {
    /// Offset of the block, in units.
    pub number: u32,
    /// Size in bytes; at least the size requested.
    pub bytes: usize,
}

impl AllottedBlock {
    pub(crate) fn at(self) -> u64 {
        offset(self.number)
    }
}

/// Returns the offset of a block, in bytes.
pub(crate) fn offset(number: u32) -> u64 {
    u64::from(number) * UNIT as u64
}
