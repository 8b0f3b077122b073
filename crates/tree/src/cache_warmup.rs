//! Index caches as a run that has lasted leaves them.
//!
//! A cache that starts empty fills in the time of many operations, and what those cost says little of a tree in use. Here keys are looked
//! up as operations would look them up, in no time: what is not kept is read from outside and kept, and what is kept
//! counts as used, so that what is evicted is what a long run would evict.

use std::rc::Rc;

use farbank_fabric::{Fabric, GAddr};

use crate::client::{Compute, ROOT};
use crate::key::Key;
use crate::lookup::child_for;
use crate::page::NodePage;

impl<F: Fabric> Compute<F> {
    /// Keeps the nodes that lookups of `keys`, one after another, would have left here. `look` reads host memory, at
    /// once; nobody may be writing.
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
        let layout = self.home.config.layout;
        let mut cache = self.home.cache.borrow_mut();
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
            let page = Rc::new(NodePage { layout, bytes });
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
