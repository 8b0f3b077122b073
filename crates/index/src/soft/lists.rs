//! The lists: all that a search reads, in DRAM.
//!
//! ```text
//!   heads     a word a bucket: the first node's number, 0 none
//!   nodes     four words each: key, value, where it is in far memory, the next node's number
//! ```
//!
//! Nodes never move and are never taken back, so a reader that strays into one which was freed, or is another list's
//! by now, reads words that make no sense, and drops them when it sees the version (I4).

use farbank_pm::Off;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::table::{Table, prefetch};

use crate::hash::hash;
use crate::locks::{Guard, Locks};

const WORDS: u64 = 4;
const KEY: usize = 0;
const VALUE: usize = 1;
const FAR: usize = 2;
const NEXT: usize = 3;
/// Buckets that are split in a go.
const SPLIT_AT_ONCE: u64 = 16;

/// All lists.
pub(super) struct Lists {
    heads: Table<AtomicU64>,
    nodes: Table<AtomicU64>,
    /// How many buckets there are: 2^n, and as many more as have been split of those.
    buckets: AtomicU64,
    /// How many nodes there are, in lists or free.
    made: AtomicU64,
    growing: Mutex<()>,
    locks: Locks,
}

/// A list under its lock.
pub(super) struct Held<'a> {
    bucket: u64,
    _guard: Guard<'a>,
}

/// Where in a list a key is, or would be.
pub(super) struct Spot<'a> {
    link: &'a AtomicU64,
    /// The node that has the key; 0: none.
    pub(super) node: u64,
    /// The first whose key is not smaller.
    next: u64,
}

/// A list node, read.
pub(super) struct Node {
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) far: Off,
}

impl Lists {
    pub(super) fn new(bucket_bits: u32) -> Lists {
        let buckets = 1 << bucket_bits;
        let heads = Table::new(buckets as usize);
        heads.reserve(buckets as usize);
        let nodes = Table::new(1 << 10);
        nodes.reserve(WORDS as usize); // node 0, which is none
        Lists {
            heads,
            nodes,
            buckets: AtomicU64::new(buckets),
            made: AtomicU64::new(0),
            growing: Mutex::new(()),
            locks: Locks::new(buckets, 1, false),
        }
    }

    /// Makes node `node`, the next one, for good that of `far` (I6).
    pub(super) fn add(&self, node: u64, far: Off) {
        self.nodes.reserve(((node + 1) * WORDS) as usize);
        self.word(node, FAR).store(far.0, Ordering::Relaxed);
        self.made.store(node, Ordering::Relaxed);
    }

    /// The words of a list node.
    #[inline]
    fn words(&self, node: u64) -> &[AtomicU64; WORDS as usize] {
        self.nodes.get_all((node * WORDS) as usize)
    }

    #[inline]
    fn word(&self, node: u64, word: usize) -> &AtomicU64 {
        &self.words(node)[word]
    }

    #[inline]
    fn load(&self, node: u64, word: usize) -> u64 {
        self.word(node, word).load(Ordering::Relaxed)
    }

    #[inline]
    fn head(&self, bucket: u64) -> &AtomicU64 {
        self.heads.get(bucket as usize)
    }

    /// A list node, as it is; for whoever holds its list.
    pub(super) fn node(&self, node: u64) -> Node {
        Node {
            key: self.load(node, KEY),
            value: self.load(node, VALUE),
            far: Off(self.load(node, FAR)),
        }
    }

    #[inline]
    fn bucket_of(&self, hash: u64) -> u64 {
        bucket_among(self.buckets.load(Ordering::Acquire), hash)
    }

    /// Where `key` is; `None` if `still` says no on the way.
    #[inline]
    fn seek(&self, bucket: u64, key: u64, still: impl Fn() -> bool) -> Option<Spot<'_>> {
        let mut link = self.head(bucket);
        loop {
            let next = link.load(Ordering::Acquire);
            let words = self.words(next); // node 0, which is none, has words too
            let found = words[KEY].load(Ordering::Relaxed);
            if !still() {
                return None;
            }
            if next == 0 || found >= key {
                let node = if found == key { next } else { 0 };
                return Some(Spot { link, node, next });
            }
            link = &words[NEXT];
        }
    }

    /// The value under `key`.
    #[inline]
    pub(super) fn get(&self, hash: u64, key: u64) -> Option<u64> {
        loop {
            let bucket = self.bucket_of(hash);
            let seen = self.locks.even(Off(bucket));
            let still = || seen.unchanged();
            if self.bucket_of(hash) != bucket {
                continue; // split since we looked
            }
            let Some(spot) = self.seek(bucket, key, still) else {
                continue;
            };
            if spot.node == 0 {
                return None;
            }
            let value = self.load(spot.node, VALUE);
            if still() {
                return Some(value);
            }
        }
    }

    /// Takes the lock of the list `hash` leads to.
    pub(super) fn hold(&self, hash: u64) -> Held<'_> {
        loop {
            let bucket = self.bucket_of(hash);
            self.locks.prefetch(Off(bucket));
            self.prefetch_first(bucket);
            let guard = self.locks.lock_made(Off(bucket));
            if self.bucket_of(hash) == bucket {
                return Held {
                    bucket,
                    _guard: guard,
                };
            }
        }
    }

    /// Where `key` is in a list that is held.
    pub(super) fn find(&self, held: &Held<'_>, key: u64) -> Spot<'_> {
        let spot = self.seek(held.bucket, key, || true);
        spot.expect("nobody else changes a list that is held")
    }

    /// Links `node`, which is durable, with its words.
    pub(super) fn link(&self, spot: &Spot<'_>, node: u64, key: u64, value: u64) {
        self.word(node, KEY).store(key, Ordering::Relaxed);
        self.word(node, VALUE).store(value, Ordering::Relaxed);
        self.word(node, NEXT).store(spot.next, Ordering::Relaxed);
        spot.link.store(node, Ordering::Release);
    }

    /// Unlinks the node of a spot.
    pub(super) fn unlink(&self, spot: &Spot<'_>) {
        let next = self.load(spot.node, NEXT);
        spot.link.store(next, Ordering::Release);
    }

    /// Replaces the value of a spot's node.
    pub(super) fn set_value(&self, spot: &Spot<'_>, value: u64) {
        self.word(spot.node, VALUE).store(value, Ordering::Relaxed);
    }

    /// Splits some buckets if there are more than `most` nodes for each, were all of them in lists, and nobody else does.
    #[inline]
    pub(super) fn split_if_long(&self, most: u64) {
        let wanted = self.made.load(Ordering::Relaxed) / most;
        if wanted > self.buckets.load(Ordering::Relaxed) {
            self.split_some(wanted);
        }
    }

    /// Several at once, so that it is seldom that readers find their number changed.
    #[cold]
    fn split_some(&self, wanted: u64) {
        let Ok(_growing) = self.growing.try_lock() else {
            return;
        };
        let buckets = self.buckets.load(Ordering::Relaxed);
        let wanted = wanted.clamp(buckets, buckets + SPLIT_AT_ONCE);
        self.heads.reserve(wanted as usize);
        self.locks.reserve(wanted as usize);
        for young in buckets..wanted {
            self.split(young);
            // By the time of the next split its list has arrived.
            self.prefetch_first(elder_of(young + 1));
        }
    }

    /// Splits the bucket whose turn it is: nothing changes in far memory.
    fn split(&self, young: u64) {
        let elder = elder_of(young);
        let _elder = self.locks.lock_made(Off(elder));
        let _young = self.locks.lock_made(Off(young));
        let (mut stay, mut move_on) = (self.head(elder), self.head(young));
        let mut node = stay.load(Ordering::Relaxed);
        while node != 0 {
            let moves = bucket_among(young + 1, hash(self.load(node, KEY))) == young;
            let link = if moves { &mut move_on } else { &mut stay };
            link.store(node, Ordering::Release);
            *link = self.word(node, NEXT);
            node = link.load(Ordering::Relaxed);
        }
        stay.store(0, Ordering::Release);
        move_on.store(0, Ordering::Release);
        self.buckets.store(young + 1, Ordering::Release);
    }

    /// Has the CPU fetch the first node of a bucket's list.
    #[inline]
    fn prefetch_first(&self, bucket: u64) {
        let first = self.head(bucket).load(Ordering::Acquire);
        prefetch(self.word(first, KEY));
    }

    /// Tells of every node, with the bucket its list is of. Nobody changes the lists meanwhile.
    pub(super) fn each(&self, mut each: impl FnMut(u64, Node)) {
        for bucket in 0..self.buckets.load(Ordering::Acquire) {
            let mut node = self.head(bucket).load(Ordering::Acquire);
            while node != 0 {
                each(bucket, self.node(node));
                node = self.load(node, NEXT);
            }
        }
    }

    /// Whether keys of `hash` are looked for in `bucket`.
    pub(super) fn serves(&self, bucket: u64, hash: u64) -> bool {
        self.bucket_of(hash) == bucket
    }

    /// Has the CPU fetch what lookups of `keys` will read: heads and locks, then first nodes.
    pub(super) fn fetch(&self, keys: &[u64]) {
        for key in keys {
            let bucket = self.bucket_of(hash(*key));
            self.locks.prefetch(Off(bucket));
            prefetch(self.head(bucket));
        }
        for key in keys {
            self.prefetch_first(self.bucket_of(hash(*key)));
        }
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        (self.heads.bytes() + self.nodes.bytes()) as u64 + self.locks.bytes()
    }
}

/// The bucket that is split into itself and `young`.
#[inline]
fn elder_of(young: u64) -> u64 {
    young - (1 << young.ilog2())
}

/// The bucket of a hash when there are `buckets`: by as many bits as name them all, or by one less.
#[inline]
fn bucket_among(buckets: u64, hash: u64) -> u64 {
    let half = 1 << buckets.ilog2();
    let bucket = hash & (2 * half - 1);
    if bucket < buckets {
        bucket
    } else {
        bucket - half
    }
}
