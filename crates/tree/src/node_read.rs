//! Reads of nodes: they are repeated until a copy is whole, or end with an error if the node is damaged.
//!
//! ```text
//!   without the lock: read ──▶ torn ──▶ read again … torn for `doubt_ns` ──▶ take the node's lock if it is free or its owner
//!                                                                            is dead ──▶ read under the lock
//!   under the lock:   read ──▶ torn ──▶ read again … torn for `doubt_ns`: no client writes the node, so it is damaged
//! ```
//!
//! A copy is torn if its lines, or the lines of one of its entries, are of different writes. While a client writes the node, this
//! is normal. The lock tells the two cases apart: under it no other client writes (TREE-NODE-1), and the unfinished write of a
//! dead owner is complete before its lock is taken over (TREE-LOCK-3). Only a client whose address of the node is outdated can meet the
//! first write of a new node there, which takes a short time. So a copy that stays torn under the lock is an error, and a reader
//! without the lock does not repeat its read for ever.

use std::future::Future;
use std::task::Poll;

use farbank_fabric::{Fabric, FabricError, GAddr, Nanos, Verb};
use farbank_pm::fault;
use farbank_pm::rng::Rng;

use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::hashed_leaf::node_reads;
use crate::key::Key;
use crate::lock::HeldLock;
use crate::lock_table::LockWord;
use crate::page::NodePage;

/// The time since which every copy of a node was torn.
#[derive(Default)]
pub(crate) struct TornTime(Option<Nanos>);

/// A read of a node that was issued together with others.
pub(crate) struct TimedRead {
    pub(crate) at: GAddr,
    pub(crate) verb: Result<Verb, FabricError>,
    /// Whether the answer came within the version window.
    pub(crate) in_time: bool,
}

impl<F: Fabric> Client<F> {
    /// Reads the node at `at`, and retries until the copy is whole.
    ///
    /// # Errors
    /// [`TreeError::Damaged`]: no client writes the node, and it is torn.
    pub(crate) async fn read(&self, at: GAddr) -> Result<FetchedNode, TreeError> {
        let mut torn = TornTime::default();
        loop {
            let found = self.read_in_time(at, None).await?;
            if is_whole(&found) {
                return Ok(found);
            }
            self.torn_again(&mut torn, at).await?;
        }
    }

    /// Reads the node at `at` under its lock.
    ///
    /// # Errors
    /// As for [`Client::read`].
    pub(crate) async fn read_locked(&self, at: GAddr) -> Result<FetchedNode, TreeError> {
        let found = self.read_in_time(at, None).await?;
        self.whole_under_lock(found).await
    }

    /// Returns the node `found`, which was read under its lock. If it is torn, reads it again until it is whole.
    ///
    /// # Errors
    /// As for [`Client::read`].
    pub(crate) async fn whole_under_lock(
        &self,
        mut found: FetchedNode,
    ) -> Result<FetchedNode, TreeError> {
        let began = self.fabric().now();
        while !is_whole(&found) {
            // The node was a leaf that was freed, and a new node is being written there (TREE-NODE-6).
            let is_over = self.fabric().now() - began > self.config().doubt_ns;
            if is_over {
                return Err(found.damaged());
            }
            self.note(|op| op.read_retries += 1);
            found = self.read_in_time(found.at, None).await?;
        }
        Ok(found)
    }

    /// Reads the node at `at` while this client holds `held`, which may be the node's lock.
    pub(crate) async fn read_beside(
        &self,
        held: &HeldLock,
        at: GAddr,
    ) -> Result<FetchedNode, TreeError> {
        match self.shares(at, held) {
            true => self.read_locked(at).await,
            false => self.read(at).await,
        }
    }

    /// Reads the node at `at`, or the neighbourhood of `part` in it; the copy may be torn. A read slower than the version
    /// window cannot detect a wrapped version. So the client backs off before it retries, longer each time, because on a crowded
    /// network card immediate retries would keep all reads slow.
    pub(crate) async fn read_in_time(
        &self,
        at: GAddr,
        part: Option<&Key>,
    ) -> Result<FetchedNode, TreeError> {
        const WAIT_NS: Nanos = 4_000;
        const DOUBLINGS: u32 = 6;
        let layout = self.config().layout;
        let ns_max = self.config().read_ns_max();
        let is_bounded = ns_max < Nanos::MAX;
        let now = || self.fabric().now();
        let mut late = 0;
        self.admit(at.server()).await?;
        loop {
            let posted = if is_bounded { now() } else { 0 };
            let reads = node_reads(&layout, at, part);
            let reads = self.round_trip_of(at.server(), reads).await?;
            if !is_bounded || now() - posted <= ns_max {
                let page = NodePage::from_reads(layout, at, reads);
                return Ok(FetchedNode { at, page });
            }
            self.note(|op| op.read_retries += 1);
            let mut random = Rng::new(at.0 ^ now()).fork(self.compute().into());
            let most = WAIT_NS << late;
            late = (late + 1).min(DOUBLINGS);
            self.fabric().sleep(random.below(most)).await;
        }
    }

    /// Reads the nodes at `addresses`, all at once. Returns the results in their order. Each is timed by itself.
    pub(crate) async fn read_at_once(&self, addresses: &[GAddr]) -> Vec<TimedRead> {
        let (bytes, ns_max) = (self.config().layout.node_bytes, self.config().read_ns_max());
        let posted = self.fabric().now();
        let reads = addresses.iter().map(|at| {
            let read = self.fabric().verb(Verb::read(*at, bytes));
            (*at, read)
        });
        let reads = reads.collect();
        self.note(|op| op.round_trips += 1);
        let answers = self.each_in_its_time(reads).await.into_iter();
        let timed = answers.map(|(at, verb, answered)| TimedRead {
            at,
            verb,
            in_time: answered - posted <= ns_max,
        });
        timed.collect()
    }

    /// Returns the results of `reads` in their order, each with its time of arrival.
    async fn each_in_its_time<T, R: Future<Output = T>>(
        &self,
        reads: Vec<(GAddr, R)>,
    ) -> Vec<(GAddr, T, Nanos)> {
        let mut reads: Vec<_> = reads
            .into_iter()
            .map(|(at, read)| (at, Box::pin(read), None))
            .collect();
        std::future::poll_fn(|context| {
            let mut all = Poll::Ready(());
            for (_, read, answer) in reads.iter_mut().filter(|(.., answer)| answer.is_none()) {
                match read.as_mut().poll(context) {
                    Poll::Ready(done) => *answer = Some((done, self.fabric().now())),
                    Poll::Pending => all = Poll::Pending,
                }
            }
            all
        })
        .await;
        let answered = |(at, _, answer): (GAddr, _, Option<(T, Nanos)>)| {
            let (answer, when) = answer?;
            Some((at, answer, when))
        };
        reads.into_iter().filter_map(answered).collect()
    }

    /// Counts a torn copy of the node at `at`. After [`crate::Config::doubt_ns`] of torn copies, checks the node under its lock.
    ///
    /// # Errors
    /// As for [`Client::read`].
    pub(crate) async fn torn_again(&self, torn: &mut TornTime, at: GAddr) -> Result<(), TreeError> {
        self.note(|op| op.read_retries += 1);
        let now = self.fabric().now();
        let since = *torn.0.get_or_insert(now);
        if now - since <= self.config().doubt_ns {
            return Ok(());
        }
        torn.0 = None;
        self.check_locked(at).await
    }

    /// Checks the node at `at` under its lock, unless a living client holds the lock. The question whether its owner is dead
    /// completes the owner's unfinished write.
    async fn check_locked(&self, at: GAddr) -> Result<(), TreeError> {
        let lock = LockWord::of(self.fabric(), self.config(), at);
        let word = self.round_trip(lock.read()).await?.into_bytes();
        let owner = lock.owner_in(&word);
        if owner != 0 && !self.is_dead(owner).await? {
            return Ok(());
        }
        let Some(held) = self.try_lock_from(owner, at).await? else {
            return Ok(());
        };
        let found = self.read_locked(at).await;
        let whole = found.and_then(|found| match found.page.sorted() {
            Ok(_) => Ok(()),
            Err(_) => Err(found.damaged()),
        });
        match whole {
            Ok(()) => self.unlock(held).await,
            Err(error) => Err(self.unlock_after(held, error).await),
        }
    }
}

/// Returns whether the lines of the node are of one write.
fn is_whole(found: &FetchedNode) -> bool {
    found.page.check().is_ok() || fault!("tree.node_unchecked")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::Future;
    use std::rc::Rc;

    use farbank_fabric::sim::{ClusterConstants, ComputeNode, SimCluster};

    use super::*;
    use crate::client::Compute;
    use crate::config::Config;
    use crate::superblock::ROOT;

    const KEYS: u64 = 5;

    /// Runs `work` of a new client alone. Its lookups use no cached address.
    fn alone<T: 'static, W: Future<Output = T> + 'static>(
        sim: &SimCluster,
        config: Config,
        work: impl FnOnce(Client<ComputeNode>) -> W,
    ) -> T {
        let compute = Compute::new(sim.node(0), 0, sim.node(0).epoch(), config);
        let made = Rc::new(RefCell::new(None));
        let put = Rc::clone(&made);
        let work = work(compute.client());
        sim.spawn(0, async move { *put.borrow_mut() = Some(work.await) });
        sim.run(&mut |events| events > 1_000_000);
        made.take().expect("the client has finished in time")
    }

    /// Creates a tree whose root is a leaf with keys from 0 on. Returns the address of the leaf.
    fn one_leaf(sim: &SimCluster, config: Config) -> GAddr {
        crate::create(&config, 1, &mut &*sim);
        alone(sim, config, |client| async move {
            for key in 0..KEYS {
                client.insert(key, key + 1).await.expect("an insert");
            }
        });
        let mut word = [0; 8];
        sim.peek(ROOT, &mut word);
        GAddr(u64::from_le_bytes(word))
    }

    /// Returns the errors of all operations that use the leaf.
    fn errors(sim: &SimCluster, config: Config) -> Vec<(&'static str, Option<TreeError>)> {
        alone(sim, config, |client| async move {
            let last = KEYS - 1;
            vec![
                ("get", client.get(last).await.err()),
                ("insert", client.insert(last, 9).await.err()),
                ("remove", client.remove(last).await.err()),
                (
                    "swap",
                    client.compare_and_swap(last, Some(1), Some(2)).await.err(),
                ),
                ("range", client.range(0, 10).await.err()),
                ("descending range", client.range_down(last, 10).await.err()),
            ]
        })
    }

    #[test]
    fn a_leaf_that_is_torn_under_its_lock_is_read_again() {
        let config = Config::sherman();
        let sim = SimCluster::new(1, 1, 1 << 20, ClusterConstants::default(), 1);
        let leaf = one_leaf(&sim, config);
        let at = leaf.plus(crate::layout::LINE as u64);
        let mut old = [0];
        sim.peek(at, &mut old);
        sim.poke(at, &[old[0] ^ 1]);
        let client = Compute::new(sim.node(0), 0, sim.node(0).epoch(), config).client();
        let made = Rc::new(RefCell::new(None));
        let put = Rc::clone(&made);
        sim.spawn(0, async move {
            *put.borrow_mut() = Some(client.insert(0, 9).await)
        });
        let torn_ns = config.doubt_ns / 2;
        assert!(sim.run(&mut |_| sim.now() > torn_ns), "it waits");
        sim.poke(at, &old);
        sim.run(&mut |events| events > 1_000_000);
        assert_eq!(made.take(), Some(Ok(Some(1))));
    }

    #[test]
    fn a_damaged_leaf_ends_every_operation_with_an_error_and_keeps_no_lock() {
        let entry = |config: &Config| config.layout.range_of(0).start;
        let line = |_: &Config| crate::layout::LINE;
        let last = |config: &Config| config.layout.node_bytes - 1;
        type Byte<'a> = &'a dyn Fn(&Config) -> usize;
        let places: [(&str, Config, Byte<'_>); 4] = [
            ("version of a line", Config::sherman(), &line),
            ("last version", Config::sherman_published(), &last),
            ("version of an entry", Config::sherman_published(), &entry),
            ("checksum", Config::fg_plus(), &entry),
        ];
        for (place, config, byte) in places {
            let sim = SimCluster::new(1, 1, 1 << 20, ClusterConstants::default(), 1);
            let leaf = one_leaf(&sim, config);
            let at = leaf.plus(byte(&config) as u64);
            let mut old = [0];
            sim.peek(at, &mut old);
            sim.poke(at, &[old[0] ^ 1]);
            for (operation, error) in errors(&sim, config) {
                let expected = Some(TreeError::Damaged { at: leaf });
                assert_eq!(error, expected, "{place}: {operation}");
            }
            sim.poke(at, &old);
            let entries = alone(&sim, config, |client| async move {
                client.insert(KEYS, KEYS + 1).await.expect("an insert");
                client.range(0, 10).await.expect("a range")
            });
            let values: Vec<u64> = entries.into_iter().map(|(_, value)| value).collect();
            assert_eq!(values, (1..=KEYS + 1).collect::<Vec<_>>(), "{place}");
        }
    }
}
