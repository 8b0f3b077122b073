//! The bytes of a node, accessed according to its [`NodeLayout`].

use farbank_fabric::{GAddr, Verb};
use farbank_pm::fault;

use crate::hashed_leaf::{LineNote, place_by_hash};
use crate::key::{KEY_BYTES_MAX, Key};
use crate::layout::{
    HEAD_FIXED, LINE, LINE_BODY, LINE_HEAD, NodeFormat, NodeLayout, PAPER_FRONT, SMALL_VALUE,
};

/// State of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeState {
    /// No node: bytes that were never written.
    Nothing,
    Live,
    /// A leaf whose entries are being moved to the leaf [`NodeHeader::low`].
    Moving,
    /// A freed leaf, whose entries have moved to the leaf [`NodeHeader::low`]; or a node that has moved there as a whole (`drain`).
    Freed,
}

/// The header of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NodeHeader {
    /// Live internal node: the child for keys below the first entry. Moving or freed node: the node that receives its
    /// entries.
    pub(crate) low: GAddr,
    /// The next node on its level.
    pub(crate) sibling: GAddr,
    /// Level; 0 is a leaf.
    pub(crate) level: u8,
    pub(crate) state: NodeState,
    /// Lower fence key: its keys are at least this.
    pub(crate) lowest: Key,
    /// Upper fence key: its keys are below this; `None`: no bound.
    pub(crate) highest: Option<Key>,
}

impl NodeHeader {
    /// Returns whether this is the live node of `level` whose keys start at `key`.
    pub(crate) fn is_child(&self, level: u8, key: &Key) -> bool {
        self.level == level && self.state == NodeState::Live && self.lowest == *key
    }

    /// Returns whether `key` is within the fence keys.
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.lowest <= *key && self.highest.as_ref().is_none_or(|highest| key < highest)
    }
}

/// An entry of a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NodeEntry {
    pub(crate) key: Key,
    pub(crate) value: u64,
}

/// The copy is torn: the node was being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TornNode;

/// A copy of a node's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NodePage {
    pub(crate) layout: NodeLayout,
    pub(crate) bytes: Vec<u8>,
}

impl NodePage {
    /// Creates a node without entries, with version `version`.
    pub(crate) fn new(layout: NodeLayout, head: &NodeHeader, version: u8) -> NodePage {
        let bytes = vec![0; layout.node_bytes];
        let mut page = NodePage { layout, bytes };
        page.set_version(version);
        page.set_head(head);
        page
    }

    /// Creates the copy of the node at `at` from the results of `node_reads`. The bytes that were not read are zeros.
    pub(crate) fn from_reads(layout: NodeLayout, at: GAddr, mut reads: Vec<Verb>) -> NodePage {
        if let [read] = &reads[..]
            && read.at() == at
        {
            let bytes = reads.remove(0).into_bytes();
            return NodePage { layout, bytes };
        }
        let mut bytes = vec![0; layout.node_bytes];
        for read in reads {
            let from = (read.at().at() - at.at()) as usize;
            let part = read.into_bytes();
            bytes[from..from + part.len()].copy_from_slice(&part);
        }
        NodePage { layout, bytes }
    }

    /// Reads into `to` from byte `from` of the header or, in the safe format, of the concatenated bodies of all lines.
    fn copy_out(&self, mut from: usize, mut to: &mut [u8]) {
        if self.layout.format == NodeFormat::Paper {
            let at = PAPER_FRONT + from;
            to.copy_from_slice(&self.bytes[at..at + to.len()]);
            return;
        }
        while !to.is_empty() {
            let within = from % LINE_BODY;
            let (now, later) = to.split_at_mut((LINE_BODY - within).min(to.len()));
            let at = from / LINE_BODY * LINE + LINE_HEAD + within;
            now.copy_from_slice(&self.bytes[at..at + now.len()]);
            (from, to) = (from + now.len(), later);
        }
    }

    /// Writes `bytes` to the position where [`NodePage::copy_out`] reads them.
    fn copy_in(&mut self, mut to: usize, mut bytes: &[u8]) {
        if self.layout.format == NodeFormat::Paper {
            let at = PAPER_FRONT + to;
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        while !bytes.is_empty() {
            let within = to % LINE_BODY;
            let (now, later) = bytes.split_at((LINE_BODY - within).min(bytes.len()));
            let at = to / LINE_BODY * LINE + LINE_HEAD + within;
            self.bytes[at..at + now.len()].copy_from_slice(now);
            (to, bytes) = (to + now.len(), later);
        }
    }

    fn key_at(&self, from: usize) -> Key {
        let mut first = [0; 8];
        self.copy_out(from, &mut first);
        if self.layout.key_bytes == first.len() {
            return Key::from_first(first);
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        let bytes = &mut bytes[..self.layout.key_bytes];
        self.copy_out(from, bytes);
        Key::new(bytes)
    }

    fn set_key(&mut self, at: usize, key: &Key) {
        if self.layout.key_bytes == 8 {
            return self.copy_in(at, &key.first_bytes());
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        let bytes = &mut bytes[..self.layout.key_bytes];
        key.fill(bytes);
        self.copy_in(at, bytes);
    }

    pub(crate) fn head(&self) -> NodeHeader {
        let mut fixed = [0; HEAD_FIXED];
        self.copy_out(0, &mut fixed);
        let state = match fixed[17] & 3 {
            0 => NodeState::Nothing,
            1 => NodeState::Live,
            2 => NodeState::Moving,
            _ => NodeState::Freed,
        };
        let bounded = fixed[17] & 4 != 0;
        NodeHeader {
            low: GAddr(word(&fixed)),
            sibling: GAddr(word(&fixed[8..])),
            level: fixed[16],
            state,
            lowest: self.key_at(HEAD_FIXED),
            highest: bounded.then(|| self.key_at(HEAD_FIXED + self.layout.key_bytes)),
        }
    }

    pub(crate) fn set_head(&mut self, head: &NodeHeader) {
        let mut fixed = [0; HEAD_FIXED];
        fixed[..8].copy_from_slice(&head.low.0.to_le_bytes());
        fixed[8..16].copy_from_slice(&head.sibling.0.to_le_bytes());
        fixed[16] = head.level;
        fixed[17] = head.state as u8 | u8::from(head.highest.is_some()) << 2;
        self.copy_in(0, &fixed);
        self.set_key(HEAD_FIXED, &head.lowest);
        let highest = head.highest.as_ref().unwrap_or(&Key::LEAST);
        self.set_key(HEAD_FIXED + self.layout.key_bytes, highest);
        if self.layout.is_hashed() && head.level == 0 {
            let is_scattered = self.line_note(1).is_scattered();
            for line in 1..=self.layout.body_lines() {
                let fence = if line % 2 == 0 { &head.lowest } else { highest };
                let is_live = head.state == NodeState::Live;
                let is_bounded = head.highest.is_some();
                let note = LineNote::new(fence.first(), is_live, is_bounded, is_scattered);
                self.set_line_note(line, note);
            }
        }
    }

    /// Returns the position of the note of a line among the bodies of all lines.
    fn line_note_at(&self, line: usize) -> usize {
        line * LINE_BODY + self.layout.slots_of_line(line).len() * self.layout.entry_bytes()
    }

    fn line_note(&self, line: usize) -> LineNote {
        let mut bytes = [0; LineNote::BYTES];
        self.copy_out(self.line_note_at(line), &mut bytes);
        LineNote::decode(bytes)
    }

    fn set_line_note(&mut self, line: usize, note: LineNote) {
        self.copy_in(self.line_note_at(line), &note.encode());
    }

    fn is_hashed_leaf(&self) -> bool {
        self.layout.is_hashed() && self.line_note(1).is_leaf()
    }

    /// Returns the slots in which `key` can be, if this is a hashed leaf that is not scattered. The copy may have only the
    /// neighbourhood of `key`.
    fn placed_slots(&self, key: &Key) -> Option<impl Iterator<Item = usize> + use<>> {
        if !self.layout.is_hashed() {
            return None;
        }
        let layout = self.layout;
        let mut lines = layout.neighbourhood(key).peekable();
        let note = self.line_note(*lines.peek()?);
        let is_placed = note.is_leaf() && !note.is_scattered();
        is_placed.then(|| lines.flat_map(move |line| layout.slots_of_line(line)))
    }

    /// Returns whether this copy, which may have only the neighbourhood of `key`, is of a live and placed leaf that covers `key`
    /// (TREE-HASH-2).
    pub(crate) fn is_part_for(&self, key: &Key) -> Result<bool, TornNode> {
        let (mut version, mut lowest, mut highest) = (None, None, None);
        for line in self.layout.neighbourhood(key) {
            let of_line = self.bytes[line * LINE];
            if *version.get_or_insert(of_line) != of_line {
                return Err(TornNode);
            }
            let note = self.line_note(line);
            if !note.is_live_and_placed() {
                return Ok(false);
            }
            match line % 2 {
                0 => lowest = Some(note.fence),
                _ => highest = Some(note.is_bounded().then_some(note.fence)),
            }
        }
        if fault!("tree.part_fences_unchecked") {
            return Ok(true);
        }
        let key = key.first();
        Ok(lowest.is_some_and(|lowest| lowest <= key)
            && highest.is_some_and(|highest| highest.is_none_or(|highest| key < highest)))
    }

    /// Returns the node's version.
    pub(crate) fn version(&self) -> u8 {
        match self.layout.format {
            NodeFormat::Paper => self.bytes[PAPER_FRONT - 1],
            NodeFormat::Safe => self.bytes[0],
        }
    }

    /// Returns a copy of this node for a place whose last version is `version`.
    pub(crate) fn copy_for(&self, version: u8) -> NodePage {
        let mut page = self.clone();
        page.set_version(version);
        page
    }

    fn set_version(&mut self, version: u8) {
        match self.layout.format {
            NodeFormat::Paper => {
                self.bytes[PAPER_FRONT - 1] = version;
                *self.bytes.last_mut().expect("a node is not empty") = version;
            }
            NodeFormat::Safe => {
                for line in self.bytes.chunks_mut(LINE) {
                    line[0] = version;
                }
            }
        }
    }

    /// Prepares the bytes for a write of the whole node: increments the version and sets the checksum.
    pub(crate) fn seal(&mut self) {
        let next = match self.layout.format {
            // Only four of eight bits are used: the published limit of 8 us corresponds to 16 versions.
            NodeFormat::Paper => (self.version() + 1) % 16,
            NodeFormat::Safe => self.version().wrapping_add(1),
        };
        self.set_version(next);
        if self.layout.checked {
            let crc = u64::from(crc32c::crc32c(&self.bytes[8..]));
            match self.layout.format {
                NodeFormat::Paper => self.bytes[..8].copy_from_slice(&crc.to_le_bytes()),
                NodeFormat::Safe => unreachable!("only the paper's format has a checksum"),
            }
        }
    }

    /// Checks that the copy is one whole node.
    pub(crate) fn check(&self) -> Result<(), TornNode> {
        let whole = match self.layout.format {
            NodeFormat::Paper if self.layout.checked => {
                word(&self.bytes) == u64::from(crc32c::crc32c(&self.bytes[8..]))
            }
            NodeFormat::Paper => self.bytes.last() == Some(&self.version()),
            NodeFormat::Safe => self
                .bytes
                .chunks(LINE)
                .all(|line| line[0] == self.version()),
        };
        if whole { Ok(()) } else { Err(TornNode) }
    }

    /// Returns the entry in `slot`.
    pub(crate) fn entry(&self, slot: usize) -> Result<Option<NodeEntry>, TornNode> {
        match self.layout.format {
            NodeFormat::Paper => self.paper_entry(slot),
            NodeFormat::Safe => self.safe_entry(slot),
        }
    }

    fn paper_entry(&self, slot: usize) -> Result<Option<NodeEntry>, TornNode> {
        let bytes = &self.bytes[self.layout.range_of(slot)];
        let last = bytes.len() - 1;
        if !self.layout.checked && bytes[0] & 15 != bytes[last] >> 4 {
            return Err(TornNode);
        }
        let key_bytes = self.layout.key_bytes;
        let value = shifted_word(&bytes[key_bytes..]);
        if value == 0 {
            return Ok(None);
        }
        let key = match key_bytes {
            8 => Key::from_first(shifted_word(bytes).to_le_bytes()),
            _ => {
                let nibbles = |i: usize| bytes[i] >> 4 | bytes[i + 1] << 4;
                Key::new(&(0..key_bytes).map(nibbles).collect::<Vec<u8>>())
            }
        };
        Ok(Some(NodeEntry { key, value }))
    }

    fn safe_entry(&self, slot: usize) -> Result<Option<NodeEntry>, TornNode> {
        let lines = self.layout.lines_of(slot);
        let at = lines.first * LINE;
        if self.bytes[at + 2] & 1 << lines.place == 0 {
            return Ok(None);
        }
        let mut versions = (1..lines.count).map(|line| self.bytes[at + line * LINE + 1]);
        if versions.any(|version| version != self.bytes[at + 1]) {
            return Err(TornNode);
        }
        let mut value = [0; SMALL_VALUE];
        self.copy_out(lines.body_at + self.layout.key_bytes, &mut value);
        Ok(Some(NodeEntry {
            key: self.key_at(lines.body_at),
            value: u64::from_le_bytes(value),
        }))
    }

    /// Stores `entry` in `slot`, or clears it. The changed bytes are [`NodeLayout::range_of`] the slot.
    pub(crate) fn set_entry(&mut self, slot: usize, entry: Option<&NodeEntry>) {
        match self.layout.format {
            NodeFormat::Paper => self.set_paper_entry(slot, entry),
            NodeFormat::Safe => self.set_safe_entry(slot, entry),
        }
    }

    fn set_paper_entry(&mut self, slot: usize, entry: Option<&NodeEntry>) {
        let key_bytes = self.layout.key_bytes;
        let mut raw = vec![0; self.layout.entry_bytes()];
        if let Some(NodeEntry { key, value }) = entry {
            key.fill(&mut raw[..key_bytes]);
            raw[key_bytes..].copy_from_slice(&value.to_le_bytes());
        }
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

    fn set_safe_entry(&mut self, slot: usize, entry: Option<&NodeEntry>) {
        let lines = self.layout.lines_of(slot);
        let at = lines.first * LINE;
        for line in 0..lines.count {
            let version = &mut self.bytes[at + line * LINE + 1];
            *version = version.wrapping_add(1);
        }
        let Some(NodeEntry { key, value }) = entry else {
            self.bytes[at + 2] &= !(1 << lines.place);
            return;
        };
        self.bytes[at + 2] |= 1 << lines.place;
        self.set_key(lines.body_at, key);
        let value_at = lines.body_at + self.layout.key_bytes;
        self.copy_in(value_at, &value.to_le_bytes());
    }

    /// Returns all entries with their slots.
    pub(crate) fn each(&self) -> impl Iterator<Item = Result<(usize, NodeEntry), TornNode>> {
        (0..self.layout.entries()).filter_map(|slot| match self.entry(slot) {
            Ok(None) => None,
            Ok(Some(entry)) => Some(Ok((slot, entry))),
            Err(torn) => Some(Err(torn)),
        })
    }

    /// Returns the slots, keys and values of all slots, if keys are words in a checked node: faster than the entries one by one. A
    /// free slot has the value 0.
    fn word_entries(&self) -> Option<impl Iterator<Item = (usize, u64, u64)>> {
        const ENTRY: usize = 17;
        let layout = &self.layout;
        let first = layout.range_of(0);
        if layout.format != NodeFormat::Paper || !layout.checked || first.len() != ENTRY {
            return None;
        }
        let (entries, _) = self.bytes[first.start..].as_chunks::<ENTRY>();
        let entries = entries.iter().take(layout.entries()).enumerate();
        // The order of keys is that of their bytes.
        Some(entries.map(|(slot, bytes)| {
            let key = shifted_word(bytes).swap_bytes();
            (slot, key, shifted_word(&bytes[8..]))
        }))
    }

    /// Returns the entry with the greatest key up to `key`, if the copy has one that is whole.
    pub(crate) fn last_to(&self, key: &Key) -> Option<NodeEntry> {
        if let (Some(entries), true) = (self.word_entries(), key.len() <= 8) {
            let mut last = None;
            for (_, other, value) in entries {
                if value != 0 && other <= key.first() && last.is_none_or(|(key, _)| key < other) {
                    last = Some((other, value));
                }
            }
            let entry = |(key, value)| NodeEntry {
                key: Key::from(key),
                value,
            };
            return last.map(entry);
        }
        let entries = self
            .each()
            .filter_map(|found| found.ok().map(|(_, entry)| entry));
        entries.filter(|entry| entry.key <= *key).max()
    }

    /// Returns all entries, sorted by key.
    pub(crate) fn sorted(&self) -> Result<Vec<NodeEntry>, TornNode> {
        let mut entries: Vec<NodeEntry> = self
            .each()
            .map(|found| found.map(|(_, entry)| entry))
            .collect::<Result<_, _>>()?;
        entries.sort_unstable();
        Ok(entries)
    }

    /// Returns this node in a page without free entries, for a copy that is not changed.
    pub(crate) fn packed(&self) -> NodePage {
        let Ok(entries) = self.sorted() else {
            return self.clone();
        };
        let ends = PAPER_FRONT + self.layout.head_bytes() + 1;
        let layout = NodeLayout {
            format: NodeFormat::Paper,
            checked: true,
            node_bytes: ends + entries.len() * (self.layout.entry_bytes() + 1),
            ..self.layout
        };
        let mut page = NodePage::new(layout, &self.head(), 0);
        page.refill(&entries);
        page
    }

    /// Returns whether a hashed leaf can have `entries`: in their neighbourhoods or, if they are few, scattered.
    pub(crate) fn can_be_placed(&self, entries: &[NodeEntry]) -> bool {
        let few = entries.len() * 4 <= self.layout.entries() * 3;
        self.is_hashed_leaf() && (few || self.place(entries).is_some())
    }

    fn place(&self, entries: &[NodeEntry]) -> Option<Vec<usize>> {
        let keys: Vec<&Key> = entries.iter().map(|entry| &entry.key).collect();
        place_by_hash(&self.layout, &keys)
    }

    /// Replaces all entries.
    pub(crate) fn refill(&mut self, entries: &[NodeEntry]) {
        if self.is_hashed_leaf() {
            return self.refill_hashed(entries);
        }
        for slot in 0..self.layout.entries() {
            let entry = entries.get(slot);
            if entry.is_some() || self.entry(slot) != Ok(None) {
                self.set_entry(slot, entry);
            }
        }
    }

    fn refill_hashed(&mut self, entries: &[NodeEntry]) {
        let placed = self.place(entries);
        for line in 1..=self.layout.body_lines() {
            let note = self.line_note(line).scattered(placed.is_none());
            self.set_line_note(line, note);
        }
        let slots = placed.unwrap_or_else(|| (0..entries.len()).collect());
        let mut by_slot = vec![None; self.layout.entries()];
        for (entry, slot) in entries.iter().zip(slots) {
            by_slot[slot] = Some(entry);
        }
        for (slot, entry) in by_slot.into_iter().enumerate() {
            if entry.is_some() || self.entry(slot) != Ok(None) {
                self.set_entry(slot, entry);
            }
        }
    }

    /// Returns the slot and the value of `key`.
    pub(crate) fn find(&self, key: &Key) -> Result<Option<(usize, u64)>, TornNode> {
        if let (Some(mut entries), true) = (self.word_entries(), key.len() <= 8) {
            let found = entries.find(|(_, other, value)| *other == key.first() && *value != 0);
            return Ok(found.map(|(slot, _, value)| (slot, value)));
        }
        if let Some(slots) = self.placed_slots(key) {
            for slot in slots {
                match self.entry(slot)? {
                    Some(entry) if entry.key == *key => return Ok(Some((slot, entry.value))),
                    _ => {}
                }
            }
            return Ok(None);
        }
        for found in self.each() {
            let (slot, entry) = found?;
            if entry.key == *key {
                return Ok(Some((slot, entry.value)));
            }
        }
        Ok(None)
    }

    /// Returns the first free slot in which `key` can be.
    pub(crate) fn free_slot(&self, key: &Key) -> Option<usize> {
        if let Some(mut slots) = self.placed_slots(key) {
            return slots.find(|&slot| self.entry(slot) == Ok(None));
        }
        (0..self.layout.entries()).find(|&slot| self.entry(slot) == Ok(None))
    }
}

/// Returns the word that begins at the second half of the first of `bytes`.
fn shifted_word(bytes: &[u8]) -> u64 {
    let bytes: &[u8; 9] = bytes.first_chunk().expect("there are nine bytes");
    word(bytes) >> 4 | u64::from(bytes[8]) << 60
}

/// Returns the first word of `bytes`.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("there are eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> Vec<NodeLayout> {
        let mut all = Vec::new();
        for format in [NodeFormat::Safe, NodeFormat::Paper] {
            all.push(NodeLayout::new(format));
            for key_bytes in [9, 16, 21, 22, 52, 53, 54, 64, 256, 1024] {
                all.push(NodeLayout::new(format).with_keys(key_bytes, 48));
            }
        }
        all
    }

    /// Returns keys of full length that differ in the last byte.
    fn key(layout: NodeLayout, number: u8) -> Key {
        let mut bytes = vec![7; layout.key_bytes];
        *bytes.last_mut().unwrap() = number + 1;
        Key::new(&bytes)
    }

    fn head(layout: NodeLayout) -> NodeHeader {
        NodeHeader {
            low: GAddr::host(3, 4096),
            sibling: GAddr::host(1, 8192),
            level: 0,
            state: NodeState::Live,
            lowest: key(layout, 5),
            highest: Some(key(layout, 200)),
        }
    }

    fn entries(layout: NodeLayout, value: u64) -> Vec<NodeEntry> {
        let entry = |number| NodeEntry {
            key: key(layout, number),
            value,
        };
        (0..20).map(entry).collect()
    }

    #[test]
    fn a_1_kib_node_has_46_entries_in_the_safe_format_or_57_in_the_papers() {
        assert_eq!(NodeLayout::new(NodeFormat::Safe).entries(), 46);
        let paper = NodeLayout::new(NodeFormat::Paper);
        assert_eq!((paper.entries(), paper.range_of(3).len()), (57, 17));
    }

    #[test]
    fn searches_by_words_find_what_searches_by_entries_find() {
        let layout = NodeLayout {
            checked: true,
            ..NodeLayout::new(NodeFormat::Paper)
        };
        let mut page = NodePage::new(layout, &head(layout), 0);
        for (slot, number) in [
            (3, 70_u64),
            (0, 300),
            (7, 1),
            (56, u64::MAX),
            (9, 0x0123_4567_89ab_cdef),
        ] {
            let key = Key::from(number);
            page.set_entry(
                slot,
                Some(&NodeEntry {
                    key,
                    value: !number | 1,
                }),
            );
        }
        assert!(page.word_entries().is_some());
        for number in [0, 1, 2, 70, 299, 300, 301, 0x0123_4567_89ab_cdef, u64::MAX] {
            let key = Key::from(number);
            let all = || page.each().map(|found| found.unwrap());
            let equal = all().find(|(_, entry)| entry.key == key);
            let equal = equal.map(|(slot, entry)| (slot, entry.value));
            assert_eq!(page.find(&key), Ok(equal), "{number}");
            let last = all()
                .map(|(_, entry)| entry)
                .filter(|entry| entry.key <= key)
                .max();
            assert_eq!(page.last_to(&key), last, "{number}");
        }
    }

    #[test]
    fn with_keys_returns_the_smallest_node_for_the_wanted_entries() {
        for layout in layouts() {
            let last = layout.range_of(layout.entries() - 1);
            assert!(last.end <= layout.node_bytes, "{layout:?}");
            let smaller = NodeLayout {
                node_bytes: layout.node_bytes - 64,
                ..layout
            };
            assert!(layout.entries() >= 46, "{layout:?}");
            assert!(smaller.entries() < layout.entries(), "{layout:?}");
        }
    }

    #[test]
    fn an_entry_is_found_and_leaves_the_other_entries_unchanged() {
        for layout in layouts() {
            let mut page = NodePage::new(layout, &head(layout), 3);
            let count = layout.entries();
            for slot in 0..count {
                let (key, value) = (key(layout, slot as u8), 0x0102_0304_0506_0708 + slot as u64);
                page.set_entry(slot, Some(&NodeEntry { key, value }));
            }
            assert_eq!(page.head(), head(layout), "{layout:?}");
            assert_eq!(page.check(), Ok(()), "{layout:?}");
            for slot in 0..count {
                let found = page.find(&key(layout, slot as u8));
                let value = 0x0102_0304_0506_0708 + slot as u64;
                assert_eq!(found, Ok(Some((slot, value))), "{layout:?}");
            }
            page.set_entry(1, None);
            assert_eq!(page.free_slot(&key(layout, 1)), Some(1), "{layout:?}");
            assert_eq!(page.find(&key(layout, 1)), Ok(None), "{layout:?}");
        }
    }

    #[test]
    fn changing_a_slot_changes_only_its_range() {
        for layout in layouts() {
            let mut page = NodePage::new(layout, &head(layout), 3);
            page.refill(&entries(layout, 2));
            let before = page.bytes.clone();
            let key = key(layout, 99);
            page.set_entry(7, Some(&NodeEntry { key, value: 9 }));
            let range = layout.range_of(7);
            for (at, (old, new)) in before.iter().zip(&page.bytes).enumerate() {
                assert!(old == new || range.contains(&at), "{layout:?}: byte {at}");
            }
        }
    }

    #[test]
    fn an_entry_with_lines_of_different_writes_is_torn() {
        let layout = NodeLayout::new(NodeFormat::Safe).with_keys(256, 20);
        let mut page = NodePage::new(layout, &head(layout), 3);
        page.refill(&entries(layout, 2));
        let old = page.bytes.clone();
        let key = key(layout, 7);
        page.set_entry(7, Some(&NodeEntry { key, value: 3 }));
        let range = layout.range_of(7);
        assert_eq!(range.len(), 5 * LINE);
        for line in range.step_by(LINE) {
            let mut mixed = page.clone();
            mixed.bytes[line..line + LINE].copy_from_slice(&old[line..line + LINE]);
            assert_eq!((mixed.check(), mixed.entry(7)), (Ok(()), Err(TornNode)));
        }
    }

    #[test]
    fn lines_of_two_versions_are_torn_in_the_safe_format_and_pass_in_the_papers() {
        for (format, torn) in [(NodeFormat::Safe, true), (NodeFormat::Paper, false)] {
            let layout = NodeLayout::new(format);
            let mut old = NodePage::new(layout, &head(layout), 0);
            old.refill(&entries(layout, 1));
            let mut new = old.clone();
            new.refill(&entries(layout, 2));
            new.seal();
            let mut mixed = new.clone();
            mixed.bytes[512..576].copy_from_slice(&old.bytes[512..576]);
            assert_eq!(mixed.check().is_err(), torn, "{format:?}");
        }
    }

    #[test]
    fn zero_bytes_are_no_node() {
        for layout in layouts() {
            let bytes = vec![0; layout.node_bytes];
            assert_eq!(NodePage { layout, bytes }.head().state, NodeState::Nothing);
        }
    }
}
