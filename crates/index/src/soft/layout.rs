//! The bytes of a node and of an area.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{Config, Soft};
use crate::ground::{CONFIG_WORDS, OpenError};

/// The root's word for the newest area.
pub(super) const AREAS: u64 = 0;
/// Bytes of a node: two a line, so that none straddles.
pub(super) const NODE_BYTES: u64 = 32;

/// The three flags of a node, a byte each in its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flags(pub(super) u64);

impl Flags {
    fn of(start: bool, end: bool, deleted: bool) -> Flags {
        Flags(u64::from(start) | u64::from(end) << 8 | u64::from(deleted) << 16)
    }

    fn start(self) -> bool {
        self.0 & 1 == 1
    }

    fn end(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn deleted(self) -> bool {
        self.0 >> 16 & 1 == 1
    }

    /// Whether the node is live (I1).
    pub(super) fn are_live(self) -> bool {
        self.start() == self.end() && self.end() != self.deleted()
    }

    /// Whether the node was being made live when a crash came.
    pub(super) fn are_torn(self) -> bool {
        self.start() != self.end()
    }

    /// What is stored first into a free node that is made live.
    pub(super) fn begun(self) -> Flags {
        Flags::of(!self.start(), self.start(), self.start())
    }

    /// What is stored last, into a node begun (I2).
    pub(super) fn ended(self) -> Flags {
        Flags::of(self.start(), self.start(), !self.start())
    }

    /// What makes a live node free.
    pub(super) fn unmade(self) -> Flags {
        Flags::of(self.start(), self.start(), self.start())
    }
}

/// Where a node's key is.
pub(super) fn key_of(node: Off) -> Off {
    node.plus(WORD as u64)
}

/// Where its value is.
pub(super) fn value_of(node: Off) -> Off {
    node.plus(2 * WORD as u64)
}

/// Where node `n` of an area is: the area's first line names the area before.
pub(super) fn node_of(area: Off, n: u64) -> Off {
    area.plus(LINE as u64 + n * NODE_BYTES)
}

impl Config {
    /// Bytes of an area.
    pub(super) fn area_bytes(&self) -> u64 {
        LINE as u64 + u64::from(self.area_nodes) * NODE_BYTES
    }

    pub(super) fn words(&self) -> [u64; 3] {
        let Config {
            bucket_bits,
            area_nodes,
            list_nodes,
        } = *self;
        [bucket_bits, area_nodes, list_nodes].map(u64::from)
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<Config, OpenError> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = Config {
            bucket_bits: small(words[0]),
            area_nodes: small(words[1]),
            list_nodes: small(words[2]),
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = (1..=40).contains(&self.bucket_bits) && self.area_nodes > 0;
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no arrangement of a table"),
        })
    }
}

impl<M: Medium> Soft<M> {
    pub(super) fn flags(&self, node: Off) -> Flags {
        Flags(self.ground.medium().load(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell_free_torn_and_live_from_any_start() {
        for free in [
            (false, false, false),
            (true, true, true),
            (true, false, false),
        ] {
            let free = Flags::of(free.0, free.1, free.2);
            assert!(!free.are_live());
            let begun = free.begun();
            assert!(begun.are_torn() && !begun.are_live());
            let live = begun.ended();
            assert!(live.are_live() && !live.are_torn());
            let unmade = live.unmade();
            assert!(!unmade.are_live() && !unmade.are_torn());
        }
    }
}
