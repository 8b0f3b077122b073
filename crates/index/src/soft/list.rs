//! The list in DRAM, which holds everything that a search reads.
//!
//! ```text
//!   heads     one link per bucket
//!   nodes     four words each: hash, value, offset in far memory, link
//!
//!   heads[0] ─▶ node ─▶ node ─▶ heads[2] ─▶ heads[1] ─▶ node ─▶ heads[3] ─▶ end       four buckets
//! ```
//!
//! One list holds all nodes, ordered by the bits of their hashes, lowest bit first (Shalev and Shavit, JACM '06), with
//! the heads of buckets among them. Bucket `b` of 2^n begins before the first hash whose low n bits are `b`. So a
//! bucket is split by linking a new head into the middle of it, and nothing moves. A thread that uses an outdated
//! number of buckets begins too early and walks through the new head.
//!
//! Nodes never move and their memory is never freed. A search that follows a node which is being reused reads arbitrary
//! words. It repeats when it sees that nodes were reclaimed (`nodes.rs`).

use farbank_pm::grow_table::{GrowTable, prefetch, prefetch_for_write};
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::{Off, fault};

use super::tagged_ptr::{LinkTarget, NodeState, TaggedLink};
use crate::locks::wait;

const WORDS: u64 = 4;
const HASH: usize = 0;
const VALUE: usize = 1;
const FAR: usize = 2;
const LINK: usize = 3;
/// Number of buckets split at a time, so that readers rarely find the number changed, and threads rarely find the lock
/// taken.
const SPLIT_AT_ONCE: u64 = 64;
/// Prefetch distance of splits, in buckets.
const FETCH_AHEAD: u64 = 16;

/// The list, with the heads of its buckets.
pub(super) struct NodeList {
    heads: GrowTable<AtomicU64>,
    nodes: GrowTable<AtomicU64>,
    /// Number of buckets: 2^n, plus one for each of those that has been split.
    buckets: AtomicU64,
    /// Number of nodes, in the list or free.
    made: AtomicU64,
    growing: Mutex<()>,
}

/// The position of a hash in the list, present or not.
pub(super) struct ListPosition<'a> {
    link: &'a AtomicU64,
    /// The value of `link` when it was read. It leads to the first node whose hash is not smaller in list order.
    seen: TaggedLink,
    /// The node with the hash, and that node's link.
    pub(super) node: Option<(u64, TaggedLink)>,
}

/// A copy of a list node.
pub(super) struct ListNode {
    pub(super) hash: u64,
    pub(super) value: u64,
    pub(super) far: Off,
    pub(super) state: NodeState,
}

/// A node held for the replacement of its value, released on drop.
pub(super) struct HeldNode<'a> {
    list: &'a NodeList,
    node: u64,
}

impl NodeList {
    pub(super) fn new(bucket_bits: u32) -> NodeList {
        let buckets = 1_u64 << bucket_bits;
        let heads = GrowTable::new(buckets as usize);
        heads.reserve(buckets as usize);
        let nodes = GrowTable::new(1 << 10);
        nodes.reserve(WORDS as usize);
        let list = NodeList {
            heads,
            nodes,
            buckets: AtomicU64::new(buckets),
            made: AtomicU64::new(0),
            growing: Mutex::new(()),
        };
        for bucket in 0..buckets {
            let next =
                bucket_after(bucket, bucket_bits).map_or(TaggedLink::END, TaggedLink::to_bucket);
            list.head(bucket).store(next.0, Ordering::Relaxed);
        }
        list
    }

    /// Adds the next node number, `node`, and assigns it permanently to the far node `far` (IX-SOFT-6).
    pub(super) fn add(&self, node: u64, far: Off) {
        self.nodes.reserve(((node + 1) * WORDS) as usize);
        self.words(node)[FAR].store(far.0, Ordering::Release);
        self.made.store(node, Ordering::Relaxed);
    }

    #[inline]
    fn words(&self, node: u64) -> &[AtomicU64; WORDS as usize] {
        self.nodes.get_all((node * WORDS) as usize)
    }

    #[inline]
    fn head(&self, bucket: u64) -> &AtomicU64 {
        self.heads.get(bucket as usize)
    }

    #[inline]
    fn link(&self, node: u64) -> TaggedLink {
        TaggedLink(self.words(node)[LINK].load(Ordering::Acquire))
    }

    /// Returns the state of a node.
    pub(super) fn state(&self, node: u64) -> NodeState {
        self.link(node).state()
    }

    /// Returns the offset of a node in far memory.
    pub(super) fn far(&self, node: u64) -> Off {
        Off(self.words(node)[FAR].load(Ordering::Acquire))
    }

    /// Returns the value of an inserted node, or of one that was inserted, while the caller is pinned.
    pub(super) fn value(&self, node: u64) -> u64 {
        self.words(node)[VALUE].load(Ordering::Acquire)
    }

    #[inline]
    fn bucket_of(&self, hash: u64) -> u64 {
        bucket_among(self.buckets.load(Ordering::Acquire), hash)
    }

    /// Returns the value of `hash`. Valid only if no node was reclaimed meanwhile, which the caller checks.
    #[inline]
    pub(super) fn search(&self, hash: u64) -> Option<u64> {
        let mut link = TaggedLink(self.head(self.bucket_of(hash)).load(Ordering::Acquire));
        loop {
            match link.to() {
                LinkTarget::Node(node) => {
                    let words = self.words(node);
                    let next = TaggedLink(words[LINK].load(Ordering::Acquire));
                    let found = words[HASH].load(Ordering::Acquire);
                    if found == hash {
                        return next
                            .state()
                            .is_seen()
                            .then(|| words[VALUE].load(Ordering::Acquire)); // IX-SOFT-3
                    }
                    if comes_before(hash, found) {
                        return None;
                    }
                    link = next;
                }
                LinkTarget::Bucket(bucket) if !comes_before(hash, bucket) => {
                    link = TaggedLink(self.head(bucket).load(Ordering::Acquire));
                }
                LinkTarget::Bucket(_) | LinkTarget::End => return None,
            }
        }
    }

    /// Finds the position of `hash`. Unlinks deleted nodes on the way and passes them to `gone`. The caller is pinned.
    pub(super) fn find(&self, hash: u64, gone: impl FnMut(u64)) -> ListPosition<'_> {
        self.find_from(self.bucket_of(hash), hash, gone)
    }

    fn find_from(&self, bucket: u64, hash: u64, mut gone: impl FnMut(u64)) -> ListPosition<'_> {
        loop {
            if let Some(position) = self.try_find(bucket, hash, &mut gone) {
                return position;
            }
        }
    }

    /// Returns `None` if another thread changed the path meanwhile.
    #[inline]
    fn try_find(
        &self,
        bucket: u64,
        hash: u64,
        gone: &mut impl FnMut(u64),
    ) -> Option<ListPosition<'_>> {
        let mut link = self.head(bucket);
        let mut seen = TaggedLink(link.load(Ordering::Acquire));
        loop {
            let node = match seen.to() {
                LinkTarget::Node(node) => node,
                LinkTarget::Bucket(bucket) if !comes_before(hash, bucket) => {
                    link = self.head(bucket);
                    seen = TaggedLink(link.load(Ordering::Acquire));
                    continue;
                }
                LinkTarget::Bucket(_) | LinkTarget::End => {
                    return Some(ListPosition {
                        link,
                        seen,
                        node: None,
                    });
                }
            };
            let words = self.words(node);
            let next = TaggedLink(words[LINK].load(Ordering::Acquire));
            if next.state() == NodeState::Deleted {
                seen = replace(link, seen, seen.leading_as(next))?;
                gone(node);
                continue;
            }
            let found = words[HASH].load(Ordering::Acquire);
            if !comes_before(found, hash) {
                let node = (found == hash).then_some((node, next));
                return Some(ListPosition { link, seen, node });
            }
            (link, seen) = (&words[LINK], next);
        }
    }

    /// Fills in `node` and links it at `position`, in state `IntendToInsert`. Returns false if another thread changed the
    /// link first.
    pub(super) fn insert(
        &self,
        position: &ListPosition<'_>,
        node: u64,
        hash: u64,
        value: u64,
    ) -> bool {
        let words = self.words(node);
        words[HASH].store(hash, Ordering::Release);
        words[VALUE].store(value, Ordering::Release);
        let state = if fault!("soft.seen_at_once") {
            NodeState::Inserted
        } else {
            NodeState::IntendToInsert
        };
        let next = position.seen.in_state(state);
        words[LINK].store(next.0, Ordering::Release);
        let leading = position.seen.leading_as(TaggedLink::to_node(node));
        replace(position.link, position.seen, leading).is_some()
    }

    /// Unlinks the deleted `node` at `position`. Returns false if another thread changed the link first.
    pub(super) fn unlink(&self, position: &ListPosition<'_>, node: u64) -> bool {
        let by = position.seen.leading_as(self.link(node));
        replace(position.link, position.seen, by).is_some()
    }

    /// Moves `node` from one state to the next. Returns whether this call did it. Waits while the node is held.
    pub(super) fn advance_state(&self, node: u64, from: NodeState, to: NodeState) -> bool {
        self.change(node, from, |link| link.in_state(to))
    }

    /// Holds `node`, if it is `Inserted`. Until the release, no thread deletes it or replaces its value.
    pub(super) fn hold(&self, node: u64) -> Option<HeldNode<'_>> {
        let holds = |link: TaggedLink| TaggedLink(link.0 | TaggedLink::HELD);
        let held = self.change(node, NodeState::Inserted, holds);
        held.then_some(HeldNode { list: self, node })
    }

    fn change(&self, node: u64, from: NodeState, to: impl Fn(TaggedLink) -> TaggedLink) -> bool {
        let link = &self.words(node)[LINK];
        let mut tries = 0;
        loop {
            let seen = TaggedLink(link.load(Ordering::Acquire));
            if seen.state() != from {
                return false;
            }
            if seen.is_held() {
                wait(&mut tries);
            } else if replace(link, seen, to(seen)).is_some() {
                return true;
            }
        }
    }

    /// Returns the wanted number of buckets, `node_buckets` per node, if it exceeds the present number.
    #[inline]
    pub(super) fn wants_split(&self, node_buckets: u64) -> Option<u64> {
        let wanted = self.made.load(Ordering::Relaxed) * node_buckets;
        (wanted > self.buckets.load(Ordering::Relaxed)).then_some(wanted)
    }

    /// Splits some buckets toward the wanted number, unless another thread is splitting. The caller is pinned.
    #[cold]
    pub(super) fn split_some(&self, wanted: u64, mut gone: impl FnMut(u64)) {
        let Ok(_growing) = self.growing.try_lock() else {
            return;
        };
        let buckets = self.buckets.load(Ordering::Relaxed);
        let wanted = wanted.clamp(buckets, buckets + SPLIT_AT_ONCE);
        self.heads.reserve(wanted as usize);
        let first = (buckets + FETCH_AHEAD).min(wanted);
        (buckets..first).for_each(|young| self.prefetch_split(young));
        for young in buckets..wanted {
            if young + FETCH_AHEAD < wanted {
                self.prefetch_split(young + FETCH_AHEAD);
            }
            self.split(young, &mut gone);
        }
        self.buckets.store(wanted, Ordering::Release);
    }

    /// Links the head of a new bucket.
    fn split(&self, young: u64, mut gone: impl FnMut(u64)) {
        let head = self.head(young);
        loop {
            let position = self.find_from(elder_of(young), young, &mut gone);
            let next = position.seen.in_state(NodeState::Inserted);
            head.store(next.0, Ordering::Release);
            let leading = position.seen.leading_as(TaggedLink::to_bucket(young));
            if replace(position.link, position.seen, leading).is_some() {
                return;
            }
        }
    }

    /// Prefetches what linking the head of a bucket needs.
    #[inline]
    fn prefetch_split(&self, young: u64) {
        prefetch_for_write(self.head(young));
        self.prefetch_first(elder_of(young));
    }

    /// Prefetches the first node of a bucket.
    #[inline]
    fn prefetch_first(&self, bucket: u64) {
        let first = TaggedLink(self.head(bucket).load(Ordering::Acquire));
        if let LinkTarget::Node(first) = first.to() {
            prefetch(&self.words(first)[HASH]);
        }
    }

    /// Calls `each` for every node from a bucket's head to the next head, and returns the next head. No thread may
    /// change the list meanwhile.
    pub(super) fn walk(&self, bucket: u64, mut each: impl FnMut(ListNode)) -> LinkTarget {
        let mut link = TaggedLink(self.head(bucket).load(Ordering::Acquire));
        while let LinkTarget::Node(node) = link.to() {
            link = self.link(node);
            each(ListNode {
                hash: self.words(node)[HASH].load(Ordering::Acquire),
                value: self.value(node),
                far: self.far(node),
                state: link.state(),
            });
        }
        link.to()
    }

    /// Returns whether a lookup of `hash` starts in `bucket`.
    pub(super) fn serves(&self, bucket: u64, hash: u64) -> bool {
        self.bucket_of(hash) == bucket
    }

    /// Returns the number of buckets.
    pub(super) fn buckets(&self) -> u64 {
        self.buckets.load(Ordering::Acquire)
    }

    /// Prefetches for lookups of `hashes`: the heads, then the first nodes.
    pub(super) fn fetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        for hash in hashes.clone() {
            prefetch(self.head(self.bucket_of(hash)));
        }
        for hash in hashes {
            self.prefetch_first(self.bucket_of(hash));
        }
    }

    /// Returns the bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        (self.heads.bytes() + self.nodes.bytes()) as u64
    }
}

impl HeldNode<'_> {
    /// Replaces the value. Returns the old one.
    pub(super) fn exchange(&self, value: u64) -> u64 {
        self.list.words(self.node)[VALUE].swap(value, Ordering::AcqRel)
    }
}

impl Drop for HeldNode<'_> {
    fn drop(&mut self) {
        self.list.words(self.node)[LINK].fetch_and(!TaggedLink::HELD, Ordering::Release);
    }
}

/// Replaces a link by `by`, and returns that. Returns `None` if the link was not `seen` any more.
#[inline]
fn replace(link: &AtomicU64, seen: TaggedLink, by: TaggedLink) -> Option<TaggedLink> {
    let replaced = link.compare_exchange(seen.0, by.0, Ordering::AcqRel, Ordering::Relaxed);
    replaced.is_ok().then_some(by)
}

/// Returns whether hash or bucket `a` comes before `b`: in the lowest bit in which they differ, `b` has a one.
#[inline]
pub(super) fn comes_before(a: u64, b: u64) -> bool {
    let differ = a ^ b;
    b & differ & differ.wrapping_neg() != 0
}

/// Returns the bucket whose head follows that of `bucket` when there are 2^`bits`: an increment with reversed bit
/// order.
fn bucket_after(bucket: u64, bits: u32) -> Option<u64> {
    let ones = (bucket << (64 - bits)).leading_ones();
    let bit = bits.checked_sub(ones + 1)?;
    Some(bucket & ((1 << bit) - 1) | 1 << bit)
}

/// Returns the bucket whose split creates `young`.
#[inline]
fn elder_of(young: u64) -> u64 {
    young - (1 << young.ilog2())
}

/// Returns the bucket of a hash when there are `buckets`. Uses the bits that number all buckets, or one bit less if
/// that bucket does not exist yet.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_a_new_list_are_all_linked_and_in_order() {
        for bits in 1..8 {
            let list = NodeList::new(bits);
            let (mut bucket, mut met) = (0, 1);
            while let LinkTarget::Bucket(next) =
                list.walk(bucket, |_| unreachable!("the list is empty"))
            {
                assert!(comes_before(bucket, next), "{bucket} before {next}");
                (bucket, met) = (next, met + 1);
            }
            assert_eq!(met, 1 << bits);
        }
    }

    #[test]
    fn split_buckets_are_linked_in_order() {
        let list = NodeList::new(1);
        list.add(1, Off(64));
        list.add(2, Off(96));
        for (node, hash) in [(1, 0x1000_0003), (2, 0xffff_ffff_0000_0003)] {
            let position = list.find(hash, |_| unreachable!("none is deleted"));
            assert!(position.node.is_none() && list.insert(&position, node, hash, 7));
            assert_eq!(
                list.search(hash),
                None,
                "a node that is not durable is not found"
            );
            assert!(list.advance_state(node, NodeState::IntendToInsert, NodeState::Inserted));
        }
        for _ in 0..10 {
            list.split_some(100, |_| unreachable!("none is deleted"));
        }
        assert_eq!(list.buckets(), 100);
        let (mut last, mut bucket, mut met, mut nodes) = (0, 0, 1, Vec::new());
        loop {
            let then = list.walk(bucket, |node| {
                assert!(comes_before(last, node.hash));
                last = node.hash;
                nodes.push(node.hash);
            });
            let LinkTarget::Bucket(next) = then else {
                break;
            };
            assert!(comes_before(last, next));
            (last, bucket, met) = (next, next, met + 1);
        }
        assert_eq!((met, nodes.len()), (100, 2));
        assert_eq!(list.search(0x1000_0003), Some(7));
    }
}
