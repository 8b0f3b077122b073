//! Counts of operations per key prefix, for `stats detail`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::buffers::reply::ReplySink;
use crate::lock::lock;

/// Character that ends a key's prefix.
const DELIMITER: u8 = b':';
/// Most prefixes that are counted; further ones are ignored.
const PREFIXES_MAX: usize = 1 << 16;

/// Operation on a key.
#[derive(Clone, Copy)]
pub(super) enum KeyOperation {
    Get { hit: bool },
    Set,
    Delete,
}

#[derive(Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Default)]
pub(super) struct PrefixStats {
    counted: AtomicBool,
    by_prefix: Mutex<BTreeMap<Vec<u8>, PrefixCounts>>,
}

impl PrefixStats {
    /// Turns counting on or off.
    pub(super) fn turn(&self, on: bool) {
        self.counted.store(on, Ordering::Relaxed);
    }

    /// Whether counting is on.
    pub(super) fn counted(&self) -> bool {
        self.counted.load(Ordering::Relaxed)
    }

    /// Removes all counts.
    pub(super) fn clear(&self) {
        lock(&self.by_prefix).clear();
    }

    /// Counts an operation, if counting is on.
    #[inline]
    pub(super) fn note(&self, key: &[u8], deed: KeyOperation) {
        if self.counted() {
            self.count(key, deed);
        }
    }

    #[cold]
    fn count(&self, key: &[u8], deed: KeyOperation) {
        let Some(end) = key.iter().position(|&b| b == DELIMITER) else {
            return;
        };
        let prefix = &key[..end];
        let mut counts = lock(&self.by_prefix);
        if counts.len() >= PREFIXES_MAX && !counts.contains_key(prefix) {
            return;
        }
        let counts = counts.entry(prefix.to_vec()).or_default();
        match deed {
            KeyOperation::Get { hit } => {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            }
            KeyOperation::Set => counts.sets += 1,
            KeyOperation::Delete => counts.deletes += 1,
        }
    }

    /// Appends the counts, one line per prefix.
    pub(super) fn dump(&self, out: &mut impl ReplySink) {
        for (prefix, counts) in lock(&self.by_prefix).iter() {
            let PrefixCounts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let line = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
            out.extend_from_slice(line.as_bytes());
        }
    }
}
