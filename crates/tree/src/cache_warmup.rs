//! Warm-up of index caches, to the state after a long run.
//!
//! An empty cache takes many operations to fill, whose costs are not typical of a tree in use. The warm-up looks up
//! keys as operations would, but in no simulated time. Missing nodes are read directly and cached, and cached nodes
//! count as used, so evictions are those of a long run.

use std::sync::Arc;

use farbank_fabric::{Fabric, GAddr};

use crate::client::Compute;
use crate::key::Key;
use crate::lookup::child_for;
use crate::page::NodePage;
use crate::superblock::ROOT;

impl<F: Fabric> Compute<F> {
    /// Caches the nodes that lookups of `keys`, in this order, would have cached. `look` reads host memory directly. No
    /// client may write meanwhile.
    pub fn warm<K: Into<Key>>(
        &self,
        keys: impl Iterator<Item = K>,
        look: &dyn Fn(GAddr, &mut [u8]),
    ) {
        for key in keys {
            self.look_up(&key.into(), look);
        }
    }

    fn look_up(&self, key: &Key, look: &dyn Fn(GAddr, &mut [u8])) {
        let layout = self.config().layout;
        let mut cache = self.cache_mut();
        let mut at = match cache.lowest(1, key) {
            Some((_, page)) if page.head().level == 1 => return,
            Some((_, page)) => Some(child_for(&page, key).0),
            None => {
                let mut word = [0; 8];
                look(ROOT, &mut word);
                Some(GAddr(u64::from_le_bytes(word)))
            }
        };
        while let Some(node) = at {
            let mut bytes = vec![0; layout.node_bytes];
            look(node, &mut bytes);
            let page = Arc::new(NodePage { layout, bytes });
            let level = page.head().level;
            if level == 0 {
                return;
            }
            cache.keep(node, &page);
            at = match level {
                1 => None,
                _ => Some(child_for(&page, key).0),
            };
        }
    }
}
