//! Where the bytes of a node are, in two layouts.
//!
//! ```text
//!   safe    line 0   ver ent occ │ low 8  sibling 8  level 1  state 1  lowest k  highest k │ entries that fit
//!           line n   ver ent occ │ entry   entry   entry
//!                    1   1   1     k + 8   k + 8   k + 8           k: bytes of a key, 8 to 1,024
//!
//!   paper   crc 8 │ front 1 │ low 8  sibling 8  level 1  state 1  lowest k  highest k │ entries of k + 9 │ rear 1
//!           entry   FEV:4 │ key │ value:64 │ REV:4
//! ```
//!
//! *Safe* (ours): every line begins with the node's version, which a write of the whole node changes, so lines of
//! different writes cannot pass for one node, in whatever order a card fetches them. An entry lies in one line and
//! `occ` says which are there: writing an entry is writing its line. Entries longer than a line have lines of their own, which
//! must agree on the entry's version `ent`. So does the head, whose fences have all bytes of a key.
//!
//! *Paper* (Sherman, section 4.4): the node's version stands in front and at the end, an entry's in its first and last four bits; value
//! 0 is an empty entry. Both are right only if a card fetches lines in increasing order, which none promises, and if at most
//! 15 writes fall into one read: a read that takes more than 8 us is discarded.
//!
//! With [`Layout::checked`] a checksum of all other bytes stands in place of versions, as FG has it: whole nodes only.

use std::ops::Range;

use farbank_fabric::Nanos;

use crate::key::KEY_BYTES_MAX;

pub(crate) const LINE: usize = 64;
/// Node's version, entry's version, occupied.
pub(crate) const LINE_HEAD: usize = 3;
pub(crate) const LINE_BODY: usize = LINE - LINE_HEAD;
/// Of a node's head, what is before its fences.
pub(crate) const HEAD_FIXED: usize = 18;
/// Checksum and front version.
pub(crate) const PAPER_FRONT: usize = 9;
pub(crate) const SMALL_VALUE: usize = 8;
/// A node of fewer cannot be split.
const ENTRIES_MIN: usize = 3;

/// What readers rely on to tell a whole node from a torn one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeFormat {
    /// A version in every line.
    Safe,
    /// Versions in front and at the end, as published.
    Paper,
}

/// How nodes are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeLayout {
    /// Which versions there are.
    pub format: NodeFormat,
    /// Bytes of a node; of the safe format, a multiple of 64.
    pub node_bytes: usize,
    /// Bytes of a key, 8 to 1,024.
    pub key_bytes: usize,
    /// Whether a checksum over the whole node is what counts.
    pub checked: bool,
}

/// Of the safe format: where an entry is.
pub(crate) struct EntryLines {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Its place among the entries of the line, if it has not several.
    pub(crate) place: usize,
    /// Where it starts among the bodies of all lines.
    pub(crate) body_at: usize,
}

impl NodeLayout {
    /// Nodes of 1 KiB, keys of 8 bytes.
    #[must_use]
    pub fn new(format: NodeFormat) -> NodeLayout {
        NodeLayout {
            format,
            node_bytes: 1024,
            key_bytes: 8,
            checked: false,
        }
    }

    /// The same with keys of `key_bytes`, in the smallest nodes that have at least `entries` of them.
    ///
    /// # Panics
    /// If `key_bytes` is not 8 to 1,024.
    #[must_use]
    pub fn with_keys(self, key_bytes: usize, entries: usize) -> NodeLayout {
        assert!(
            (8..=KEY_BYTES_MAX).contains(&key_bytes),
            "keys of {key_bytes} bytes: they may have 8 to {KEY_BYTES_MAX}"
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
        enough.next().expect("sizes do not end")
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

    /// Lines of an entry.
    fn lines_an_entry(&self) -> usize {
        self.entry_bytes().div_ceil(LINE_BODY)
    }

    /// Entries for which the last line of the head has room.
    fn head_line_holds(&self) -> usize {
        (self.head_lines() * LINE_BODY - self.head_bytes()) / self.entry_bytes()
    }

    /// Entries of a node.
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

    /// How long a read may have taken for its versions to mean anything.
    pub(crate) fn read_ns_max(&self) -> Nanos {
        /// No write follows another of the same node sooner.
        const WRITE_NS_MIN: Nanos = 500;
        /// Nor sooner than the node takes to be read, as who writes it has to first: so long each 100 bytes, at 100 Gbit/s.
        const READ_NS_A_HUNDRED: Nanos = 8;
        let apart = (self.node_bytes as u64 * READ_NS_A_HUNDRED / 100).max(WRITE_NS_MIN);
        match (self.checked, self.format) {
            (true, _) => Nanos::MAX,
            (false, NodeFormat::Paper) => 16 * apart,
            (false, NodeFormat::Safe) => 256 * apart,
        }
    }

    /// Of the safe format: where entry `slot` is.
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

    /// The bytes that change when entry `slot` does.
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
