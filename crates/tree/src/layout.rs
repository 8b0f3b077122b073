//! The byte layout of nodes, in two formats.
//!
//! ```text
//!   safe    line 0   ver ent occ │ low 8  sibling 8  level 1  state 1  lowest k  highest k │ entries that fit
//!           line n   ver ent occ │ entry   entry   entry
//!                    1   1   1     k + 8   k + 8   k + 8           k: bytes of a key, 8 to 1,026
//!
//!   paper   crc 8 │ front 1 │ low 8  sibling 8  level 1  state 1  lowest k  highest k │ entries of k + 9 │ rear 1
//!           entry   FEV:4 │ key │ value:64 │ REV:4
//! ```
//!
//! *Safe* (Farbank's): every line begins with the node's version, which a write of the whole node changes. So lines of
//! different writes cannot pass for one node, whatever the order in which a network card fetches them. An entry lies in
//! one line, and `occ` marks the occupied places of the line: writing an entry is writing its line. Entries longer than
//! a line have lines of their own, which must agree on the entry's version `ent`. The header may also take several
//! lines, because its fence keys are full keys.
//!
//! *Paper* (Sherman, section 4.4): the node's version is at its front and at its end, an entry's version in its first
//! and last four bits. Value 0 is an empty entry. Both are correct only if a network card fetches lines in increasing
//! order, which none guarantees, and if at most 15 writes occur during one read. So a read that takes more than 8 us is
//! discarded.
//!
//! With [`NodeLayout::checked`], a checksum of all other bytes replaces the versions, as in FG. Nodes are then always
//! written whole.
//!
//! With [`NodeLayout::neighbourhood_lines`], leaves of the safe format have their entries near their keys' home lines (`hashed_leaf`).

use std::ops::Range;

use farbank_fabric::Nanos;

use farbank_pm::rng::Rng;

use crate::key::{KEY_BYTES_MAX, Key};

pub(crate) const LINE: usize = 64;
/// Bytes before a line's body: the node's version, the entry's version, and the occupied bits.
pub(crate) const LINE_HEAD: usize = 3;
pub(crate) const LINE_BODY: usize = LINE - LINE_HEAD;
/// Bytes of the header before the fence keys.
pub(crate) const HEAD_FIXED: usize = 18;
/// Bytes of the checksum and the front version.
pub(crate) const PAPER_FRONT: usize = 9;
pub(crate) const SMALL_VALUE: usize = 8;
/// Minimum number of entries; a node of fewer cannot be split.
const ENTRIES_MIN: usize = 3;

/// How readers distinguish whole nodes from torn ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeFormat {
    /// A version in every line.
    Safe,
    /// Versions at the front and at the end, as published.
    Paper,
}

/// Layout of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeLayout {
    /// Format of the versions.
    pub format: NodeFormat,
    /// Bytes of a node; in the safe format, a multiple of 64.
    pub node_bytes: usize,
    /// Bytes of a key, 8 to [`KEY_BYTES_MAX`].
    pub key_bytes: usize,
    /// Whether a checksum over the whole node replaces the versions.
    pub checked: bool,
    /// Number of lines of a leaf in which a key can be, from its home line on; at least 2. 0: a key can be anywhere in its leaf.
    /// Only the safe format with keys of 8 bytes uses it.
    pub neighbourhood_lines: usize,
}

/// Location of an entry in the safe format.
pub(crate) struct EntryLines {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Its position among the entries of the line; 0 if it takes several lines.
    pub(crate) place: usize,
    /// Its start in the concatenated bodies of all lines.
    pub(crate) body_at: usize,
}

impl NodeLayout {
    /// Returns the layout with nodes of 1 KiB and keys of 8 bytes.
    #[must_use]
    pub fn new(format: NodeFormat) -> NodeLayout {
        NodeLayout {
            format,
            node_bytes: 1024,
            key_bytes: 8,
            checked: false,
            neighbourhood_lines: 0,
        }
    }

    /// Returns this layout with keys of `key_bytes`, in the smallest nodes that have at least `entries` entries.
    ///
    /// # Panics
    /// If `key_bytes` is not 8 to [`KEY_BYTES_MAX`].
    #[must_use]
    pub fn with_keys(self, key_bytes: usize, entries: usize) -> NodeLayout {
        assert!(
            (8..=KEY_BYTES_MAX).contains(&key_bytes),
            "key_bytes is {key_bytes}, expected 8 to {KEY_BYTES_MAX}"
        );
        let step = match self.format {
            NodeFormat::Safe => LINE,
            NodeFormat::Paper => LINE / 2,
        };
        let sizes = (1..).map(|steps| NodeLayout {
            key_bytes,
            node_bytes: steps * step,
            ..self
        });
        let mut enough = sizes.filter(|layout| layout.entries() >= entries.max(ENTRIES_MIN));
        enough.next().expect("the sequence of sizes is infinite")
    }

    pub(crate) fn entry_bytes(&self) -> usize {
        self.key_bytes + SMALL_VALUE
    }

    pub(crate) fn head_bytes(&self) -> usize {
        HEAD_FIXED + 2 * self.key_bytes
    }

    fn head_lines(&self) -> usize {
        self.head_bytes().div_ceil(LINE_BODY)
    }

    /// Returns the lines of an entry.
    fn lines_an_entry(&self) -> usize {
        self.entry_bytes().div_ceil(LINE_BODY)
    }

    /// Returns the number of entries that fit the last line of the header.
    fn head_line_holds(&self) -> usize {
        (self.head_lines() * LINE_BODY - self.head_bytes()) / self.entry_bytes()
    }

    /// Returns whether the entries of leaves are near their keys' home lines.
    #[must_use]
    pub fn is_hashed(&self) -> bool {
        self.format == NodeFormat::Safe && self.key_bytes == 8 && self.neighbourhood_lines > 1
    }

    /// Returns the number of lines after the header, which are lines 1 to this one.
    pub(crate) fn body_lines(&self) -> usize {
        self.node_bytes / LINE - 1
    }

    /// Returns the lines in which `key` can be in a hashed leaf, its home line first. After the last line of the leaf comes line 1.
    pub(crate) fn neighbourhood(&self, key: &Key) -> impl Iterator<Item = usize> + use<> {
        let count = self.body_lines();
        let home = Rng::new(key.first()).draw() as usize % count;
        (0..self.neighbourhood_lines.min(count)).map(move |n| (home + n) % count + 1)
    }

    /// Returns the slots in line `line` of a hashed leaf, which is not the header's.
    pub(crate) fn slots_of_line(&self, line: usize) -> Range<usize> {
        let a_line = LINE_BODY / self.entry_bytes();
        let first = self.head_line_holds() + (line - 1) * a_line;
        first..first + a_line
    }

    /// Returns the number of entries of a node.
    #[must_use]
    pub fn entries(&self) -> usize {
        match self.format {
            NodeFormat::Paper => {
                let others = PAPER_FRONT + self.head_bytes() + 1;
                self.node_bytes.saturating_sub(others) / (self.entry_bytes() + 1)
            }
            NodeFormat::Safe => {
                let Some(lines) = (self.node_bytes / LINE).checked_sub(self.head_lines()) else {
                    return 0;
                };
                let others = match self.lines_an_entry() {
                    1 => lines * (LINE_BODY / self.entry_bytes()),
                    several => lines / several,
                };
                self.head_line_holds() + others
            }
        }
    }

    /// Returns the version window in nanoseconds: in a slower read, versions may have wrapped.
    pub(crate) fn read_ns_max(&self) -> Nanos {
        /// Least time between two writes of the same node.
        const WRITE_NS_MIN: Nanos = 500;
        /// A writer first reads the node, which takes this time per 100 bytes at 100 Gbit/s.
        const READ_NS_A_HUNDRED: Nanos = 8;
        let apart = (self.node_bytes as u64 * READ_NS_A_HUNDRED / 100).max(WRITE_NS_MIN);
        match (self.checked, self.format) {
            (true, _) => Nanos::MAX,
            (false, NodeFormat::Paper) => 16 * apart,
            (false, NodeFormat::Safe) => 256 * apart,
        }
    }

    /// Returns the location of entry `slot` in the safe format.
    pub(crate) fn lines_of(&self, slot: usize) -> EntryLines {
        let (head, in_head) = (self.head_lines(), self.head_line_holds());
        if slot < in_head {
            return EntryLines {
                first: head - 1,
                count: 1,
                place: slot,
                body_at: self.head_bytes() + slot * self.entry_bytes(),
            };
        }
        let (slot, count) = (slot - in_head, self.lines_an_entry());
        let (first, place) = match count {
            1 => {
                let a_line = LINE_BODY / self.entry_bytes();
                (head + slot / a_line, slot % a_line)
            }
            several => (head + slot * several, 0),
        };
        EntryLines {
            first,
            count,
            place,
            body_at: first * LINE_BODY + place * self.entry_bytes(),
        }
    }

    /// Returns the bytes that change when entry `slot` does.
    pub(crate) fn range_of(&self, slot: usize) -> Range<usize> {
        match self.format {
            NodeFormat::Paper => {
                let at = PAPER_FRONT + self.head_bytes() + slot * (self.entry_bytes() + 1);
                at..at + self.entry_bytes() + 1
            }
            NodeFormat::Safe => {
                let lines = self.lines_of(slot);
                lines.first * LINE..(lines.first + lines.count) * LINE
            }
        }
    }
}
