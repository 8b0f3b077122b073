//! A simulated cluster with a tree.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use farbank_fabric::sim::{ClusterConstants, ComputeNode, SimCluster};
use farbank_tree::{Client, Compute, Config, Key};

pub(crate) struct TreeCluster {
    pub(crate) sim: SimCluster,
    config: Config,
    computes: Vec<Compute<ComputeNode>>,
}

const SERVERS: u16 = 3;

/// Converts entries whose keys are numbers.
pub(crate) fn numbers(entries: Vec<(Key, u64)>) -> Vec<(u64, u64)> {
    let number = |(key, value): (Key, u64)| (key.first(), value);
    entries.into_iter().map(number).collect()
}

impl TreeCluster {
    /// Creates a cluster with an empty tree and `computes` compute servers.
    pub(crate) fn new(computes: u16, config: Config, in_order: bool, seed: u64) -> TreeCluster {
        let cluster = TreeCluster::bare(computes, config, in_order, seed);
        farbank_tree::create(&config, SERVERS, &mut &cluster.sim);
        cluster
    }

    /// Creates a cluster with a tree of the even keys below `2 * entries`, each with its successor as value.
    pub(crate) fn filled(computes: u16, config: Config, entries: u64) -> TreeCluster {
        let cluster = TreeCluster::bare(computes, config, true, 1);
        let pairs = (0..entries).map(|n| (2 * n, 2 * n + 1));
        farbank_tree::fill(&config, SERVERS, 0.8, pairs, &mut &cluster.sim);
        cluster
    }

    fn bare(computes: u16, config: Config, in_order: bool, seed: u64) -> TreeCluster {
        let constants = ClusterConstants {
            read_line_order: in_order,
            chunk_bytes: 64 << 10,
            ..ClusterConstants::default()
        };
        let sim = SimCluster::new(computes, SERVERS, 16 << 20, constants, seed);
        let computes = (0..computes)
            .map(|compute| Compute::new(sim.node(compute), compute, 1, config))
            .collect();
        TreeCluster {
            sim,
            config,
            computes,
        }
    }

    /// Returns a new client of a compute server.
    pub(crate) fn client(&self, compute: u16) -> Client<ComputeNode> {
        self.computes[usize::from(compute)].client()
    }

    /// Fills the index cache of every compute server as lookups of `keys` would.
    pub(crate) fn warm(&self, keys: impl Iterator<Item = u64> + Clone) {
        for compute in &self.computes {
            compute.warm(keys.clone(), &|at, to| self.sim.peek(at, to));
        }
    }

    /// Runs until no events are left.
    pub(crate) fn run(&self) {
        self.sim.run(&mut |_| false);
    }

    /// Runs one client alone, and returns its result.
    pub(crate) fn alone<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Client<ComputeNode>) -> F,
    ) -> T {
        self.with(self.client(0), work)
    }

    /// Like [`TreeCluster::alone`], for a compute server with another configuration.
    pub(crate) fn alone_with<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        config: Config,
        work: impl FnOnce(Client<ComputeNode>) -> F,
    ) -> T {
        let other = Compute::new(self.sim.node(0), 0, self.sim.node(0).epoch(), config);
        self.with(other.client(), work)
    }

    fn with<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        client: Client<ComputeNode>,
        work: impl FnOnce(Client<ComputeNode>) -> F,
    ) -> T {
        let made = Rc::new(RefCell::new(None));
        let put = Rc::clone(&made);
        let work = work(client);
        self.sim
            .spawn(0, async move { *put.borrow_mut() = Some(work.await) });
        self.run();
        made.take().expect("the client has finished")
    }

    /// Reads all entries by a range query from a fresh compute server, whose empty cache makes it read leaf by leaf.
    pub(crate) fn contents(&self) -> Vec<(u64, u64)> {
        let fresh = Compute::new(self.sim.node(0), 0, self.sim.node(0).epoch(), self.config);
        let client = fresh.client();
        let made = Rc::new(RefCell::new(Vec::new()));
        let put = Rc::clone(&made);
        self.sim.spawn(0, async move {
            *put.borrow_mut() = numbers(client.range(0, usize::MAX >> 1).await.unwrap());
        });
        self.run();
        made.take()
    }
}
