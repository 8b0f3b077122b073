//! A test of TREE-NODE-6: a compute server dies in a split that uses a freed leaf again, while another still has the leaf's address.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use farbank_fabric::sim::{ClusterConstants, ComputeNode, SimCluster};

use crate::phase::Phase;
use crate::{Client, Compute, Config};

/// Entries of a leaf at the start; a leaf can have seven.
const FILLED: u64 = 5;
/// A key of the leaf that is merged away, and its value at the end.
const KEY: u64 = 2 * FILLED - 1;
const NEW_VALUE: u64 = 77;

/// Runs `work` of a client of `compute` to its end.
fn run<T: 'static, W: Future<Output = T> + 'static>(
    sim: &SimCluster,
    number: u16,
    compute: &Compute<ComputeNode>,
    work: impl FnOnce(Client<ComputeNode>) -> W,
) -> T {
    let made = Rc::new(RefCell::new(None));
    let put = Rc::clone(&made);
    let work = work(compute.client());
    sim.spawn(number, async move { *put.borrow_mut() = Some(work.await) });
    sim.run(&mut |events| events > 1_000_000);
    made.take().expect("the client has finished in time")
}

/// Returns what the client with the old address reads after the other has died in the split.
fn read_after_crash(seed: u64) -> Option<u64> {
    let config = Config {
        spread_splits: true,
        ..Config::sherman().with_small_nodes()
    };
    let sim = SimCluster::new(3, 2, 1 << 20, ClusterConstants::default(), seed);
    let entries = (0..4 * FILLED).map(|key| (key, key + 1));
    crate::fill(&config, 2, 0.8, entries, &mut &sim);
    let computes = [0, 1, 2].map(|number| Compute::new(sim.node(number), number, 1, config));
    // The reader caches the parent of both leaves.
    let get = |client: Client<ComputeNode>| async move { client.get(KEY).await.unwrap() };
    assert_eq!(run(&sim, 0, &computes[0], get), Some(KEY + 1));
    // The first two leaves merge.
    run(&sim, 1, &computes[1], |client| async move {
        for key in [5, 6, 7, 0, 1, 2, 3] {
            client.remove(key).await.unwrap();
        }
        assert_eq!(client.take_op().merges, 1);
    });
    // The leaf splits again, and the writer dies after it has written the new half.
    let writer = computes[1].client();
    sim.spawn(1, async move {
        for key in [5, 6, 7, 0, 1, 2, 3] {
            writer.insert(key, key + 1).await.unwrap();
        }
    });
    assert!(sim.run(&mut |_| computes[1].is_in_phase(Phase::Splitting)));
    sim.crash_compute(1);
    // Another one changes the value.
    let (splits, old) = run(&sim, 2, &computes[2], |client| async move {
        let old = client.insert(KEY, NEW_VALUE).await.unwrap();
        (client.take_op().splits, old)
    });
    assert_eq!((splits, old), (0, Some(KEY + 1)));
    run(&sim, 0, &computes[0], get)
}

#[test]
fn a_client_with_an_old_address_does_not_read_a_leaf_of_an_unfinished_split() {
    assert_eq!(Config::sherman().with_small_nodes().layout.entries(), 7);
    for seed in 0..40 {
        assert_eq!(read_after_crash(seed), Some(NEW_VALUE), "seed {seed}");
    }
}
