//! Hashed leaves: a lookup reads a few lines of a leaf instead of all (CHIME, SOSP 2024).
//!
//! ```text
//!   leaf     line 0: header │ 1 │ 2 │ 3 │ 4 │ 5 │ ... │ 15          nodes of 1 KiB; after line 15 comes line 1
//!                               └ neighbourhood ┘                   of a key with home line 2, if neighbourhoods have 4 lines
//!   line n   ver ent occ │ entry │ entry │ entry │ fence 8 │ state 1 │
//!                                                  └ the lower fence key in even lines, the upper one in odd lines
//! ```
//!
//! A hash of the key selects its home line. Line 0 holds no entry.
//!
//! # Invariants
//! TREE-HASH-1  An entry of a placed leaf is in its key's neighbourhood. If the keys of a leaf do not allow this, the leaf is
//!     *scattered*: its entries may be in any slot, and clients read it whole.
//! TREE-HASH-2  Every line repeats the leaf's state and one of its fence keys. Only a write of the whole node changes these, and it
//!     changes the version in each line. So an even and an odd line with equal versions show whether the leaf covers a key
//!     (TREE-NODE-2).
//! TREE-HASH-3  An entry moves to another line only by a write of the whole node. So a reader whose lines have equal versions
//!     misses no entry that was moved.
//!
//! # Deviations from the paper
//! CHIME moves entries one by one, and readers compare a bitmap of the hops. Here the node's version shows a move. CHIME finds a
//! free slot by a bitmap in the lock word; here a writer reads the whole leaf if the neighbourhood is full. Fence keys are stored
//! in full, where CHIME compares sibling pointers.

use farbank_fabric::{GAddr, Verb};

use crate::key::Key;
use crate::layout::{LINE, NodeLayout};

/// The node is a leaf.
const LEAF: u8 = 1;
/// It is live: neither moving nor freed.
const LIVE: u8 = 2;
/// It has an upper fence key.
const BOUNDED: u8 = 4;
const SCATTERED: u8 = 8;

/// What a line repeats of the leaf's header.
#[derive(Clone, Copy)]
pub(crate) struct LineNote {
    /// First bytes of a fence key, as a number.
    pub(crate) fence: u64,
    state: u8,
}

impl LineNote {
    pub(crate) const BYTES: usize = 9;

    pub(crate) fn new(fence: u64, is_live: bool, is_bounded: bool, is_scattered: bool) -> LineNote {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let state = LEAF | bit(is_live, LIVE) | bit(is_bounded, BOUNDED);
        LineNote {
            fence,
            state: state | bit(is_scattered, SCATTERED),
        }
    }

    pub(crate) fn encode(self) -> [u8; LineNote::BYTES] {
        let mut bytes = [self.state; LineNote::BYTES];
        bytes[..8].copy_from_slice(&self.fence.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; LineNote::BYTES]) -> LineNote {
        let [fence @ .., state] = bytes;
        LineNote {
            fence: u64::from_le_bytes(fence),
            state,
        }
    }

    /// Returns this note with another placement of the leaf's entries.
    pub(crate) fn scattered(self, is_scattered: bool) -> LineNote {
        LineNote {
            state: if is_scattered {
                self.state | SCATTERED
            } else {
                self.state & !SCATTERED
            },
            ..self
        }
    }

    pub(crate) fn is_leaf(self) -> bool {
        self.state & LEAF != 0
    }

    pub(crate) fn is_scattered(self) -> bool {
        self.state & SCATTERED != 0
    }

    pub(crate) fn is_bounded(self) -> bool {
        self.state & BOUNDED != 0
    }

    /// Returns whether the entries of a live leaf are in their keys' neighbourhoods.
    pub(crate) fn is_live_and_placed(self) -> bool {
        self.state & (LEAF | LIVE | SCATTERED) == LEAF | LIVE
    }
}

/// Returns the reads of the node at `at`: of the neighbourhood of `part`, or of the whole node.
pub(crate) fn node_reads(layout: &NodeLayout, at: GAddr, part: Option<&Key>) -> Vec<Verb> {
    let Some(key) = part else {
        return vec![Verb::read(at, layout.node_bytes)];
    };
    let mut runs: Vec<(usize, usize)> = Vec::with_capacity(2);
    for line in layout.neighbourhood(key) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == line => *count += 1,
            _ => runs.push((line, 1)),
        }
    }
    let read = |(first, count)| Verb::read(at.plus((first * LINE) as u64), count * LINE);
    runs.into_iter().map(read).collect()
}

/// Returns a slot for each of `keys` in its neighbourhood, if that is possible for all.
pub(crate) fn place_by_hash(layout: &NodeLayout, keys: &[&Key]) -> Option<Vec<usize>> {
    let lines_of: Vec<Vec<usize>> = keys
        .iter()
        .map(|key| layout.neighbourhood(key).collect())
        .collect();
    let mut matching = LineMatching {
        a_line: layout.slots_of_line(1).len(),
        lines_of: &lines_of,
        keys_in: vec![Vec::new(); layout.body_lines() + 1],
    };
    for key in 0..keys.len() {
        if !matching.add(key, &mut vec![false; layout.body_lines() + 1]) {
            return None;
        }
    }
    let mut slots = vec![0; keys.len()];
    for (line, keys) in matching.keys_in.iter().enumerate().skip(1) {
        for (key, slot) in keys.iter().zip(layout.slots_of_line(line)) {
            slots[*key] = slot;
        }
    }
    Some(slots)
}

/// Keys by number, and the line of each.
struct LineMatching<'a> {
    /// Entries of a line.
    a_line: usize,
    lines_of: &'a [Vec<usize>],
    keys_in: Vec<Vec<usize>>,
}

impl LineMatching<'_> {
    /// Adds `key`, and moves others if necessary, but to no line in `seen`. Returns false if no line can take it.
    fn add(&mut self, key: usize, seen: &mut [bool]) -> bool {
        let lines = &self.lines_of[key];
        if let Some(&line) = lines
            .iter()
            .find(|line| self.keys_in[**line].len() < self.a_line)
        {
            self.keys_in[line].push(key);
            return true;
        }
        for &line in lines {
            if std::mem::replace(&mut seen[line], true) {
                continue;
            }
            for place in 0..self.a_line {
                let other = self.keys_in[line][place];
                if self.add(other, seen) {
                    self.keys_in[line][place] = key;
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;
    use crate::config::Config;
    use crate::page::{NodeEntry, NodeHeader, NodePage, NodeState, TornNode};

    const AT: GAddr = GAddr::host(1, 1 << 20);

    /// Returns a leaf of the keys from 100 on, in steps of 2, below the upper fence key 200.
    fn leaf() -> NodePage {
        let layout = Config::farbank().layout;
        let entry = |number: u64| NodeEntry {
            key: Key::from(number),
            value: number + 1,
        };
        let entries: Vec<_> = (100..172).step_by(2).map(entry).collect();
        let mut page = NodePage::new(layout, &head(), 3);
        page.refill(&entries);
        page.seal();
        page
    }

    fn head() -> NodeHeader {
        NodeHeader {
            low: GAddr::NULL,
            sibling: GAddr::host(1, 8192),
            level: 0,
            state: NodeState::Live,
            lowest: Key::from(100),
            highest: Some(Key::from(200)),
        }
    }

    /// Returns a copy of the page that has only the neighbourhood of `key`.
    fn part(page: &NodePage, key: &Key) -> NodePage {
        let mut reads = node_reads(&page.layout, AT, Some(key));
        for read in &mut reads {
            let Verb::Read { at, bytes } = read else {
                unreachable!("all verbs are reads")
            };
            let from = (at.at() - AT.at()) as usize;
            let to = from + bytes.len();
            bytes.copy_from_slice(&page.bytes[from..to]);
        }
        NodePage::from_reads(page.layout, AT, reads)
    }

    #[test]
    fn a_part_of_a_leaf_has_the_entry_and_shows_which_keys_the_leaf_covers() {
        let page = leaf();
        for number in 90..210 {
            let key = Key::from(number);
            let part = part(&page, &key);
            let covers = (100..200).contains(&number);
            assert_eq!(part.is_part_for(&key), Ok(covers), "key {number}");
            let is_there = number % 2 == 0 && (100..172).contains(&number);
            let found = part.find(&key).map(|found| found.map(|(_, value)| value));
            assert_eq!(found, Ok(is_there.then_some(number + 1)), "key {number}");
            assert_eq!(part.find(&key), page.find(&key), "key {number}");
        }
    }

    #[test]
    fn a_part_of_another_node_than_a_live_leaf_is_refused() {
        let layout = Config::farbank().layout;
        let key = Key::from(120);
        let mut page = leaf();
        for state in [NodeState::Moving, NodeState::Freed] {
            page.set_head(&NodeHeader { state, ..head() });
            assert_eq!(part(&page, &key).is_part_for(&key), Ok(false), "{state:?}");
        }
        page.set_head(&head());
        assert_eq!(part(&page, &key).is_part_for(&key), Ok(true));
        let parent = NodePage::new(layout, &NodeHeader { level: 1, ..head() }, 0);
        assert_eq!(part(&parent, &key).is_part_for(&key), Ok(false));
        let bytes = vec![0; layout.node_bytes];
        assert_eq!(NodePage { layout, bytes }.is_part_for(&key), Ok(false));
    }

    #[test]
    fn a_part_with_a_line_of_another_write_is_torn() {
        let (old, key) = (leaf(), Key::from(120));
        let mut new = old.clone();
        new.seal();
        for line in new.layout.neighbourhood(&key) {
            let mut mixed = new.clone();
            let bytes = line * LINE..(line + 1) * LINE;
            mixed.bytes[bytes.clone()].copy_from_slice(&old.bytes[bytes]);
            assert_eq!(part(&mixed, &key).is_part_for(&key), Err(TornNode));
        }
    }

    #[test]
    fn a_leaf_whose_keys_cannot_be_placed_is_read_whole() {
        let mut page = leaf();
        let layout = page.layout;
        let home = |key: &Key| layout.neighbourhood(key).next();
        let key = Key::from(120);
        let same = (100..)
            .map(Key::from)
            .filter(|other| home(other) == home(&key));
        let entries: Vec<_> = same
            .take(13)
            .map(|key| NodeEntry { key, value: 9 })
            .collect();
        assert!(page.can_be_placed(&entries));
        page.refill(&entries);
        assert_eq!(part(&page, &key).is_part_for(&key), Ok(false));
        for entry in &entries {
            assert_eq!(
                page.find(&entry.key)
                    .map(|found| found.map(|(_, value)| value)),
                Ok(Some(9))
            );
        }
        assert!(page.free_slot(&Key::from(150)).is_some());
        page.refill(&entries[..12]);
        assert_eq!(part(&page, &key).is_part_for(&key), Ok(true));
    }

    #[test]
    fn keys_are_placed_in_their_neighbourhoods_up_to_a_high_load() {
        let layout = Config::farbank().layout;
        let mut rng = Rng::new(1);
        for (count, least) in [(23, 1_000), (36, 990), (41, 900)] {
            let mut placed = 0;
            for _ in 0..1_000 {
                let keys: Vec<Key> = (0..count).map(|_| Key::from(rng.draw())).collect();
                let keys: Vec<&Key> = keys.iter().collect();
                let Some(slots) = place_by_hash(&layout, &keys) else {
                    continue;
                };
                placed += 1;
                for (key, slot) in keys.iter().zip(&slots) {
                    let mut lines = layout.neighbourhood(key);
                    assert!(lines.any(|line| layout.slots_of_line(line).contains(slot)));
                }
                let mut distinct = slots.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), slots.len());
            }
            assert!(
                placed >= least,
                "{placed} of 1,000 leaves with {count} keys"
            );
        }
    }

    #[test]
    fn more_keys_of_one_home_line_than_a_neighbourhood_holds_are_not_placed() {
        let layout = Config::farbank().layout;
        let home = |key: &Key| layout.neighbourhood(key).next();
        let first = Key::from(0);
        let same: Vec<Key> = (0..)
            .map(Key::from)
            .filter(|key| home(key) == home(&first))
            .take(13)
            .collect();
        let same: Vec<&Key> = same.iter().collect();
        assert!(place_by_hash(&layout, &same[..12]).is_some());
        assert_eq!(place_by_hash(&layout, &same), None);
    }

    #[test]
    fn a_neighbourhood_is_read_in_one_run_or_two() {
        let layout = Config::farbank().layout;
        let mut counts = [0; 3];
        for key in (0..200).map(Key::from) {
            let reads = node_reads(&layout, AT, Some(&key));
            counts[reads.len()] += 1;
            let bytes: usize = reads.into_iter().map(|read| read.into_bytes().len()).sum();
            assert_eq!(bytes, 4 * LINE);
        }
        assert!(counts[1] > counts[2] && counts[2] > 0, "{counts:?}");
        assert_eq!(node_reads(&layout, AT, None), [Verb::read(AT, 1024)]);
    }
}
