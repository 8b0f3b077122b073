//! The bytes of a node, in two layouts.
//!
//! ```text
//!   safe    line 0   ver ent occ │ low 8  sibling 8  level 1  state 1  lowest 8  highest 8 │ an entry
//!           line n   ver ent occ │ entry   entry   entry
//!                    1   1   1     8 + 8   8 + 8   8 + 8
//!
//!   paper   crc 8 │ front 1 │ low 8  sibling 8  level 1  state 1  lowest 8  highest 8 │ entries of 17 │ rear 1
//!           entry   FEV:4 │ key:64 │ value:64 │ REV:4
//! ```
//!
//! *Safe* (ours): every line begins with the node's version, which a write of the whole node changes, so lines of
//! different writes cannot pass for one node, in whatever order a card fetches them. An entry lies in one line and
//! `occ` says which are there: writing an entry is writing its line. Entries longer than a line have lines of their own, which
//! must agree on the entry's version `ent`.
//!
//! *Paper* (Sherman, section 4.4): the node's version stands in front and at the end, an entry's in its first and last four bits; value
//! 0 is an empty entry. Both are right only if a card fetches lines in increasing order, which none promises, and if at most
//! 15 writes fall into one read: a read that takes more than 8 us is discarded.
//!
//! With [`Layout::checked`] a checksum of all other bytes stands in place of versions, as FG has it: whole nodes only.

use std::ops::Range;

use farbank_fabric::{GAddr, Nanos};

const LINE: usize = 64;
/// Node's version, entry's version, occupied.
const LINE_HEAD: usize = 3;
const LINE_BODY: usize = LINE - LINE_HEAD;
const HEAD: usize = 34;
/// Checksum and front version.
const PAPER_FRONT: usize = 9;
const SMALL_VALUE: usize = 8;

/// What readers rely on to tell a whole node from a torn one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A version in every line.
    Safe,
    /// Versions in front and at the end, as published.
    Paper,
}

/// How nodes are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Which versions there are.
    pub format: Format,
    /// Bytes of a node, a multiple of 64.
    pub node_bytes: usize,
    /// Bytes a key takes; it counts by its first 8.
    pub key_bytes: usize,
    /// Whether a checksum over the whole node is what counts.
    pub checked: bool,
}

/// Whether a node is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Live,
    /// A leaf whose entries are about to be those of the leaf [`Head::low`].
    Moving,
    /// A leaf that was, until its entries became those of the leaf [`Head::low`].
    Freed,
}

/// What a node says of itself besides its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The child below the first key; of a leaf that is moving or freed, where its entries go.
    pub(crate) low: GAddr,
    /// The next node of its level.
    pub(crate) sibling: GAddr,
    /// 0 is a leaf.
    pub(crate) level: u8,
    pub(crate) state: State,
    /// Its keys are at least this.
    pub(crate) lowest: u64,
    /// Its keys are below this; `None`: there is no bound.
    pub(crate) highest: Option<u64>,
}

impl Head {
    /// Whether `key` would be in this node.
    pub(crate) fn covers(&self, key: u64) -> bool {
        self.lowest <= key && self.highest.is_none_or(|highest| key < highest)
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) value: u64,
}

/// The bytes read were not one node: they were being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Torn;

impl Layout {
    /// Nodes of 1 KiB, keys of 8 bytes.
    #[must_use]
    pub fn new(format: Format) -> Layout {
        Layout {
            format,
            node_bytes: 1024,
            key_bytes: 8,
            checked: false,
        }
    }

    fn entry_bytes(&self) -> usize {
        self.key_bytes + SMALL_VALUE
    }

    /// Lines of an entry; entries of a line, if one is enough.
    fn lines_an_entry(&self) -> usize {
        self.entry_bytes().div_ceil(LINE_BODY)
    }

    /// Whether line 0 has room for an entry behind the head.
    fn first_line_holds(&self) -> usize {
        usize::from(self.entry_bytes() <= LINE_BODY - HEAD)
    }

    /// Entries of a node.
    #[must_use]
    pub fn entries(&self) -> usize {
        match self.format {
            Format::Paper => (self.node_bytes - PAPER_FRONT - HEAD - 1) / (self.entry_bytes() + 1),
            Format::Safe if self.lines_an_entry() > 1 => {
                (self.node_bytes / LINE - 1) / self.lines_an_entry()
            }
            Format::Safe => {
                let a_line = LINE_BODY / self.entry_bytes();
                self.first_line_holds() + (self.node_bytes / LINE - 1) * a_line
            }
        }
    }

    /// How long a read may have taken for its versions to mean anything.
    pub(crate) fn read_ns_max(&self) -> Nanos {
        /// No write follows another of the same node sooner.
        const WRITE_NS_MIN: Nanos = 500;
        match (self.checked, self.format) {
            (true, _) => Nanos::MAX,
            (false, Format::Paper) => 16 * WRITE_NS_MIN,
            (false, Format::Safe) => 256 * WRITE_NS_MIN,
        }
    }

    /// Of the safe format: the line of entry `slot` and its place in it.
    fn line_of(&self, slot: usize) -> (usize, usize) {
        let first = self.first_line_holds();
        if slot < first {
            return (0, 0);
        }
        if self.lines_an_entry() > 1 {
            return (1 + (slot - first) * self.lines_an_entry(), 0);
        }
        let a_line = LINE_BODY / self.entry_bytes();
        (1 + (slot - first) / a_line, (slot - first) % a_line)
    }

    /// The bytes that change when entry `slot` does.
    pub(crate) fn range_of(&self, slot: usize) -> Range<usize> {
        match self.format {
            Format::Paper => {
                let at = PAPER_FRONT + HEAD + slot * (self.entry_bytes() + 1);
                at..at + self.entry_bytes() + 1
            }
            Format::Safe => {
                let (line, _) = self.line_of(slot);
                line * LINE..(line + self.lines_an_entry()) * LINE
            }
        }
    }
}

/// A node's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) layout: Layout,
    pub(crate) bytes: Vec<u8>,
}

impl Page {
    /// A node without entries, of version `version`.
    pub(crate) fn new(layout: Layout, head: &Head, version: u8) -> Page {
        let bytes = vec![0; layout.node_bytes];
        let mut page = Page { layout, bytes };
        page.set_version(version);
        page.set_head(head);
        page
    }

    fn head_at(&self) -> usize {
        match self.layout.format {
            Format::Paper => PAPER_FRONT,
            Format::Safe => LINE_HEAD,
        }
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }

    fn set_word(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn head(&self) -> Head {
        let at = self.head_at();
        let state = match self.bytes[at + 17] & 3 {
            0 => State::Live,
            1 => State::Moving,
            _ => State::Freed,
        };
        let bounded = self.bytes[at + 17] & 4 != 0;
        Head {
            low: GAddr(self.word(at)),
            sibling: GAddr(self.word(at + 8)),
            level: self.bytes[at + 16],
            state,
            lowest: self.word(at + 18),
            highest: bounded.then(|| self.word(at + 26)),
        }
    }

    pub(crate) fn set_head(&mut self, head: &Head) {
        let at = self.head_at();
        self.set_word(at, head.low.0);
        self.set_word(at + 8, head.sibling.0);
        self.bytes[at + 16] = head.level;
        self.bytes[at + 17] = head.state as u8 | u8::from(head.highest.is_some()) << 2;
        self.set_word(at + 18, head.lowest);
        self.set_word(at + 26, head.highest.unwrap_or(0));
    }

    /// The node's version.
    pub(crate) fn version(&self) -> u8 {
        match self.layout.format {
            Format::Paper => self.bytes[PAPER_FRONT - 1],
            Format::Safe => self.bytes[0],
        }
    }

    fn set_version(&mut self, version: u8) {
        match self.layout.format {
            Format::Paper => {
                self.bytes[PAPER_FRONT - 1] = version;
                *self.bytes.last_mut().expect("nodes have bytes") = version;
            }
            Format::Safe => {
                for line in self.bytes.chunks_mut(LINE) {
                    line[0] = version;
                }
            }
        }
    }

    /// Makes the bytes ready to be written whole: they are a new version.
    pub(crate) fn seal(&mut self) {
        let next = match self.layout.format {
            // Four bits, though they have a byte: the published rule of 8 us is about 16.
            Format::Paper => (self.version() + 1) % 16,
            Format::Safe => self.version().wrapping_add(1),
        };
        self.set_version(next);
        if self.layout.checked {
            let crc = u64::from(crc32c::crc32c(&self.bytes[8..]));
            match self.layout.format {
                Format::Paper => self.set_word(0, crc),
                Format::Safe => unreachable!("only the paper's format has a checksum"),
            }
        }
    }

    /// Whether these bytes are one node.
    pub(crate) fn check(&self) -> Result<(), Torn> {
        let whole = match self.layout.format {
            Format::Paper if self.layout.checked => {
                self.word(0) == u64::from(crc32c::crc32c(&self.bytes[8..]))
            }
            Format::Paper => self.bytes.last() == Some(&self.version()),
            Format::Safe => self
                .bytes
                .chunks(LINE)
                .all(|line| line[0] == self.version()),
        };
        if whole { Ok(()) } else { Err(Torn) }
    }

    /// Entry `slot`, if there is one.
    pub(crate) fn entry(&self, slot: usize) -> Result<Option<Entry>, Torn> {
        match self.layout.format {
            Format::Paper => self.paper_entry(slot),
            Format::Safe => self.safe_entry(slot),
        }
    }

    fn paper_entry(&self, slot: usize) -> Result<Option<Entry>, Torn> {
        let bytes = &self.bytes[self.layout.range_of(slot)];
        let last = bytes.len() - 1;
        if !self.layout.checked && bytes[0] & 15 != bytes[last] >> 4 {
            return Err(Torn);
        }
        let word = |at: usize| {
            let nibbles = |i: usize| bytes[at + i] >> 4 | bytes[at + i + 1] << 4;
            u64::from_le_bytes(std::array::from_fn(nibbles))
        };
        let (key, value) = (word(0), word(self.layout.key_bytes));
        Ok((value != 0).then_some(Entry { key, value }))
    }

    fn safe_entry(&self, slot: usize) -> Result<Option<Entry>, Torn> {
        let (line, place) = self.layout.line_of(slot);
        let at = line * LINE;
        if self.bytes[at + 2] & 1 << place == 0 {
            return Ok(None);
        }
        let lines = self.layout.lines_an_entry();
        if lines == 1 {
            let head = if line == 0 { HEAD } else { 0 };
            let at = at + LINE_HEAD + head + place * self.layout.entry_bytes();
            let (key, value) = (self.word(at), self.word(at + self.layout.key_bytes));
            return Ok(Some(Entry { key, value }));
        }
        let versions = (line..line + lines).map(|line| self.bytes[line * LINE + 1]);
        if versions
            .clone()
            .any(|version| version != self.bytes[at + 1])
        {
            return Err(Torn);
        }
        // The value stands at the start of the last line, the key at that of the first.
        let (first, last) = (at + LINE_HEAD, (line + lines - 1) * LINE + LINE_HEAD);
        let (key, value) = (self.word(first), self.word(last));
        Ok(Some(Entry { key, value }))
    }

    /// Puts `entry`, or nothing, in `slot`; the bytes that changed are [`Layout::range_of`] it.
    pub(crate) fn set_entry(&mut self, slot: usize, entry: Option<Entry>) {
        match self.layout.format {
            Format::Paper => self.set_paper_entry(slot, entry),
            Format::Safe => self.set_safe_entry(slot, entry),
        }
    }

    fn set_paper_entry(&mut self, slot: usize, entry: Option<Entry>) {
        let Entry { key, value } = entry.unwrap_or(Entry { key: 0, value: 0 });
        let key_bytes = self.layout.key_bytes;
        let mut raw = vec![0; self.layout.entry_bytes()];
        raw[..8].copy_from_slice(&key.to_le_bytes());
        raw[key_bytes..].copy_from_slice(&value.to_le_bytes());
        let range = self.layout.range_of(slot);
        let bytes = &mut self.bytes[range];
        let version = bytes[0].wrapping_add(1) & 15;
        let last = bytes.len() - 1;
        bytes[0] = version | raw[0] << 4;
        for i in 1..last {
            bytes[i] = raw[i - 1] >> 4 | raw[i] << 4;
        }
        bytes[last] = raw[last - 1] >> 4 | version << 4;
    }

    fn set_safe_entry(&mut self, slot: usize, entry: Option<Entry>) {
        let (line, place) = self.layout.line_of(slot);
        let lines = self.layout.lines_an_entry();
        let at = line * LINE;
        self.bytes[at + 2] &= !(1 << place);
        for line in line..line + lines {
            self.bytes[line * LINE + 1] = self.bytes[line * LINE + 1].wrapping_add(1);
        }
        let Some(Entry { key, value }) = entry else {
            return;
        };
        self.bytes[at + 2] |= 1 << place;
        if lines == 1 {
            let head = if line == 0 { HEAD } else { 0 };
            let at = at + LINE_HEAD + head + place * self.layout.entry_bytes();
            self.set_word(at, key);
            self.set_word(at + self.layout.key_bytes, value);
        } else {
            self.set_word(at + LINE_HEAD, key);
            self.set_word((line + lines - 1) * LINE + LINE_HEAD, value);
        }
    }

    /// All entries there are, with their slots.
    pub(crate) fn each(&self) -> impl Iterator<Item = Result<(usize, Entry), Torn>> {
        (0..self.layout.entries()).filter_map(|slot| match self.entry(slot) {
            Ok(None) => None,
            Ok(Some(entry)) => Some(Ok((slot, entry))),
            Err(torn) => Some(Err(torn)),
        })
    }

    /// All entries, by key.
    pub(crate) fn sorted(&self) -> Result<Vec<Entry>, Torn> {
        let mut entries: Vec<Entry> = self
            .each()
            .map(|found| found.map(|(_, entry)| entry))
            .collect::<Result<_, _>>()?;
        entries.sort_unstable();
        Ok(entries)
    }

    /// Replaces all entries.
    pub(crate) fn refill(&mut self, entries: &[Entry]) {
        for slot in 0..self.layout.entries() {
            let entry = entries.get(slot).copied();
            if entry.is_some() || self.entry(slot) != Ok(None) {
                self.set_entry(slot, entry);
            }
        }
    }

    /// Where `key` is, and what it has.
    pub(crate) fn find(&self, key: u64) -> Result<Option<(usize, u64)>, Torn> {
        for found in self.each() {
            let (slot, entry) = found?;
            if entry.key == key {
                return Ok(Some((slot, entry.value)));
            }
        }
        Ok(None)
    }

    /// The first slot that is free.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        (0..self.layout.entries()).find(|&slot| self.entry(slot) == Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> Vec<Layout> {
        let mut all = Vec::new();
        for format in [Format::Safe, Format::Paper] {
            all.push(Layout::new(format));
            for key_bytes in [16, 64, 256, 1024] {
                all.push(Layout {
                    key_bytes,
                    node_bytes: (key_bytes + 8).next_multiple_of(64) * 48 + 64,
                    ..Layout::new(format)
                });
            }
        }
        all
    }

    fn head() -> Head {
        Head {
            low: GAddr::host(3, 4096),
            sibling: GAddr::host(1, 8192),
            level: 0,
            state: State::Live,
            lowest: 5,
            highest: Some(900),
        }
    }

    #[test]
    fn nodes_of_a_kibibyte_have_46_safe_entries_or_57_of_the_papers_17_bytes() {
        assert_eq!(Layout::new(Format::Safe).entries(), 46);
        let paper = Layout::new(Format::Paper);
        assert_eq!((paper.entries(), paper.range_of(3).len()), (57, 17));
    }

    #[test]
    fn what_is_put_in_a_slot_is_found_and_disturbs_nothing() {
        for layout in layouts() {
            let mut page = Page::new(layout, &head(), 3);
            for slot in 0..layout.entries() {
                let (key, value) = (u64::MAX - slot as u64, 0x0102_0304_0506_0708 + slot as u64);
                page.set_entry(slot, Some(Entry { key, value }));
            }
            assert_eq!(page.head(), head(), "{layout:?}");
            assert_eq!(page.check(), Ok(()), "{layout:?}");
            for slot in 0..layout.entries() {
                let found = page.find(u64::MAX - slot as u64).unwrap();
                assert_eq!(
                    found,
                    Some((slot, 0x0102_0304_0506_0708 + slot as u64)),
                    "{layout:?}"
                );
            }
            page.set_entry(1, None);
            assert_eq!(page.free_slot(), Some(1), "{layout:?}");
            assert_eq!(page.find(u64::MAX - 1), Ok(None), "{layout:?}");
        }
    }

    #[test]
    fn changing_a_slot_changes_only_its_range() {
        for layout in layouts() {
            let mut page = Page::new(layout, &head(), 3);
            page.refill(&[Entry { key: 1, value: 2 }; 20]);
            let before = page.bytes.clone();
            page.set_entry(7, Some(Entry { key: 9, value: 9 }));
            let range = layout.range_of(7);
            for (at, (old, new)) in before.iter().zip(&page.bytes).enumerate() {
                assert!(old == new || range.contains(&at), "{layout:?}: byte {at}");
            }
        }
    }

    #[test]
    fn lines_of_two_versions_are_torn_in_the_safe_format_and_pass_in_the_papers() {
        for (format, torn) in [(Format::Safe, true), (Format::Paper, false)] {
            let layout = Layout::new(format);
            let mut old = Page::new(layout, &head(), 0);
            old.refill(&[Entry { key: 1, value: 1 }; 40]);
            let mut new = old.clone();
            new.refill(&[Entry { key: 2, value: 2 }; 40]);
            new.seal();
            let mut mixed = new.clone();
            mixed.bytes[512..576].copy_from_slice(&old.bytes[512..576]);
            assert_eq!(mixed.check().is_err(), torn, "{format:?}");
        }
    }
}
