//! The byte layout of a node and of an area.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{Soft, SoftConfig};
use crate::error::OpenError;
use crate::pool_heap::CONFIG_WORDS;

/// Number of the root's word for the newest area.
pub(super) const AREAS: u64 = 0;
/// Bytes of a node. Two fit a line, so that no node straddles lines.
pub(super) const NODE_BYTES: u64 = 32;
/// Version of the node layout. The first layout, whose pools store 0 here, had all flags in one word.
const LAYOUT: u32 = 2;

/// The three flags of a node: `start` and `deleted`, one byte each, in its first word, `end` in its last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NodeFlags {
    start: bool,
    deleted: bool,
    end: bool,
}

impl NodeFlags {
    fn of(first: u64, last: u64) -> NodeFlags {
        NodeFlags {
            start: first & 1 == 1,
            deleted: first >> 8 & 1 == 1,
            end: last & 1 == 1,
        }
    }

    fn first(start: bool, deleted: bool) -> u64 {
        u64::from(start) | u64::from(deleted) << 8
    }

    /// Returns whether the node is live (IX-SOFT-1).
    pub(super) fn are_live(self) -> bool {
        self.start == self.end && self.end != self.deleted
    }

    /// Returns whether a crash interrupted making the node live.
    pub(super) fn are_torn(self) -> bool {
        self.start != self.end
    }

    /// Returns the word that is stored first to make a free node live.
    pub(super) fn begun(self) -> u64 {
        NodeFlags::first(!self.end, self.end)
    }

    /// Returns the word that is stored last to make a node live (IX-SOFT-2).
    pub(super) fn ended(self) -> u64 {
        u64::from(self.start)
    }

    /// Returns the first word that makes a live node free.
    pub(super) fn unmade(self) -> u64 {
        NodeFlags::first(self.start, self.start)
    }
}

/// Returns the offset of a node's key.
pub(super) fn key_of(node: Off) -> Off {
    node.plus(WORD as u64)
}

/// Returns the offset of a node's value.
pub(super) fn value_of(node: Off) -> Off {
    node.plus(2 * WORD as u64)
}

/// Returns the offset of a node's `end` flag.
pub(super) fn end_of(node: Off) -> Off {
    node.plus(3 * WORD as u64)
}

/// Returns the offset of node `n` of an area. The area's first line holds the offset of the area before.
pub(super) fn node_of(area: Off, n: u64) -> Off {
    area.plus(LINE as u64 + n * NODE_BYTES)
}

impl SoftConfig {
    /// Returns the bytes of an area.
    pub(super) fn area_bytes(&self) -> u64 {
        LINE as u64 + u64::from(self.area_nodes) * NODE_BYTES
    }

    pub(super) fn words(&self) -> [u64; 4] {
        let SoftConfig {
            bucket_bits,
            area_nodes,
            node_buckets,
        } = *self;
        [bucket_bits, area_nodes, node_buckets, LAYOUT].map(u64::from)
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<SoftConfig, OpenError> {
        let (expected, found) = (u64::from(LAYOUT), words[3]);
        if found != expected {
            return Err(OpenError::Layout { expected, found });
        }
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = SoftConfig {
            bucket_bits: small(words[0]),
            area_nodes: small(words[1]),
            node_buckets: small(words[2]),
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        const NODE_BUCKETS_MAX: u32 = 16;
        let sound = (1..=40).contains(&self.bucket_bits)
            && self.area_nodes > 0
            && self.node_buckets <= NODE_BUCKETS_MAX;
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }
}

impl<M: Medium> Soft<M> {
    pub(super) fn flags(&self, node: Off) -> NodeFlags {
        let medium = self.table_pool.medium();
        NodeFlags::of(medium.load(node), medium.load(end_of(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_table_of_layout_0_reports_the_layout_number() {
        let mut words = [0; CONFIG_WORDS];
        words[..3].copy_from_slice(&SoftConfig::small().words()[..3]);
        let refused = SoftConfig::of(&words).unwrap_err().to_string();
        assert!(refused.contains("number 0") && refused.contains("version"));
        words[..4].copy_from_slice(&SoftConfig::small().words());
        assert_eq!(SoftConfig::of(&words).unwrap(), SoftConfig::small());
    }

    #[test]
    fn a_damaged_configuration_is_refused() {
        let sound = SoftConfig::small().words();
        for (word, wrong) in [(0, 0), (0, 41), (1, 0), (2, 17)] {
            let mut words = [0; CONFIG_WORDS];
            words[..4].copy_from_slice(&sound);
            words[word] = wrong;
            let opened = SoftConfig::of(&words);
            let is_refused = matches!(opened, Err(OpenError::Damaged { .. }));
            assert!(is_refused, "word {word} is {wrong}: {opened:?}");
        }
    }

    #[test]
    fn flags_distinguish_free_torn_and_live_nodes() {
        for (first, last) in [(0, 0), (0x101, 1), (1, 0), (0x100, 1)] {
            let free = NodeFlags::of(first, last);
            assert!(!free.are_live());
            let begun = NodeFlags::of(free.begun(), last);
            assert!(begun.are_torn() && !begun.are_live());
            let live = NodeFlags::of(free.begun(), begun.ended());
            assert!(live.are_live() && !live.are_torn());
            assert_eq!(live.ended(), begun.ended(), "a helper stores the same word");
            let unmade = NodeFlags::of(live.unmade(), live.ended());
            assert!(!unmade.are_live() && !unmade.are_torn());
            assert_eq!(unmade.unmade(), live.unmade());
            assert_eq!(unmade.ended(), live.ended());
        }
    }
}
