//! The stores of a line or sector that are not durable yet, and their chains.
//!
//! A unit (a line, or a sector of a file) has one queue, in coherence order. Each store in it belongs to a *chain* of
//! the unit; at a crash every chain keeps a prefix of its own. Chain 0 belongs to the whole unit, each other chain to
//! one of its words.

use std::collections::BTreeMap;

use super::source_lines::SourceLineId;
use crate::offset::{LINE, WORD};
use crate::persistency::Persistency;

/// Maximum number of chains of a unit: its own, and one for each word of a line.
pub(super) const CHAINS: usize = 1 + LINE / WORD;

/// A store of one word that is not durable yet.
#[derive(Clone, Copy)]
pub(super) struct VolatileStore {
    /// Number of the call that made it. A flush covers the calls before it (PM-SIM-2), and a sector never keeps
    /// half a call.
    pub(super) call: u64,
    pub(super) word: u64,
    pub(super) value: u64,
    pub(super) place: SourceLineId,
    /// Number of its chain in its unit.
    pub(super) chain: u8,
}

/// The volatile stores of each line or sector, in coherence order, by its number.
pub(super) type Queues = BTreeMap<u64, Vec<VolatileStore>>;

/// The chains of a queue, numbered in the order of their first stores.
#[derive(Clone, Copy)]
pub(super) struct ChainIndex {
    slots: [u8; CHAINS],
    pub(super) count: usize,
}

impl ChainIndex {
    pub(super) fn of(queue: &[VolatileStore]) -> ChainIndex {
        let mut chains = ChainIndex {
            slots: [u8::MAX; CHAINS],
            count: 0,
        };
        for store in queue {
            let slot = &mut chains.slots[store.chain as usize];
            if *slot == u8::MAX {
                *slot = chains.count as u8;
                chains.count += 1;
            }
        }
        chains
    }

    /// Returns the number of a store's chain in this queue.
    pub(super) fn slot(&self, store: &VolatileStore) -> usize {
        self.slots[store.chain as usize] as usize
    }
}

/// Calls `each` with the kept stores of `queue`, in coherence order. `keep` has the number of stores kept per chain.
pub(super) fn for_each_kept<'a>(
    queue: &'a [VolatileStore],
    chains: &ChainIndex,
    keep: &[u32],
    mut each: impl FnMut(&'a VolatileStore),
) {
    let mut seen = [0; CHAINS];
    for store in queue {
        let slot = chains.slot(store);
        if seen[slot] < keep[slot] {
            each(store);
        }
        seen[slot] += 1;
    }
}

/// Returns whether more than one chain of this queue stores to the same word.
pub(super) fn is_mixed(queue: &[VolatileStore], chains: &ChainIndex) -> bool {
    if chains.count == 1 {
        return false;
    }
    // Besides its own chain, a word can only be in the chain of its line. A sector has only one chain.
    let mut stored = [0u8; 2];
    for store in queue {
        stored[usize::from(store.chain != 0)] |= 1 << (store.word as usize % LINE / WORD);
    }
    stored[0] & stored[1] != 0
}

/// Returns whether the chain can be cut after its `i`-th store. A sector never keeps half a call.
pub(super) fn may_cut_after(persistency: Persistency, chain: &[VolatileStore], i: usize) -> bool {
    let whole_call = chain
        .get(i + 1)
        .is_none_or(|next| next.call != chain[i].call);
    !persistency.is_file() || whole_call
}
