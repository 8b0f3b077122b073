//! One run: a filled tree, clients in a closed loop, and the results.

use std::cell::RefCell;
use std::rc::Rc;

use farbank_fabric::sim::{ClusterConstants, ComputeNode, ComputeThread, SimCluster, Traffic};
use farbank_fabric::{Fabric, GAddr, Nanos};
use farbank_pm::rng::Rng;
use farbank_tree::op_stats::{Histogram, TreeStats};
use farbank_tree::{Client, Compute, Config, TreeError};

use super::load::{RunKeys, TreeMix, TreeOp, perform};

/// A simulated cluster, a tree and its clients.
#[derive(Clone, Debug)]
pub struct TreeSetup {
    /// Number of compute servers. The same number of memory servers share their NICs.
    pub servers: u16,
    /// Threads of each compute server.
    pub threads: u16,
    /// Clients of each thread, which share it.
    pub coroutines: u16,
    /// Entries at the start. Nodes are 80 % full.
    pub entries: u64,
    /// Mix of operations.
    pub mix: TreeMix,
    /// Skew of the keys, 0 to 0.99.
    pub theta: f64,
    /// Techniques of the tree.
    pub config: Config,
    /// Constants of the cluster.
    pub constants: ClusterConstants,
    /// Length of the measured window of virtual time, in nanoseconds. Before it, a quarter of this time lets
    /// contention build up.
    pub window_ns: Nanos,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct TreeOutcome {
    /// Operations in the window.
    pub operations: u64,
    /// Million operations per second of virtual time.
    pub mops: f64,
    /// Latency of operations in nanoseconds, rounded to about 1 %.
    pub latency: Histogram,
    /// Latency of inserts. In a mix the overall median lies in the gap between lookups and inserts.
    pub write_latency: Histogram,
    /// Costs of the operations.
    pub tally: TreeStats,
    /// Traffic of the NICs, including the warm-up.
    pub traffic: Traffic,
    /// Ratio of the fewest operations of a client to the most.
    pub fewest_over_most: f64,
    /// Jain's index of the clients' operations: 1 if all made equally many, 1/n if one of n made all.
    pub jain: f64,
    /// Bytes of internal nodes that a compute server caches at the end.
    pub cache_bytes: usize,
    /// Digest of all events of the run.
    pub digest: u64,
}

impl TreeOutcome {
    /// Returns the latency in microseconds that this share of all operations does not exceed.
    #[must_use]
    pub fn latency_us(&self, part: f64) -> f64 {
        self.latency.quantile(part) as f64 / 1000.0
    }

    /// Returns the latency in microseconds that this share of all inserts does not exceed.
    #[must_use]
    pub fn write_us(&self, part: f64) -> f64 {
        self.write_latency.quantile(part) as f64 / 1000.0
    }
}

/// Fill of the nodes at the start.
const FILLED: f64 = 0.8;
/// Operations that warm an index cache, for each node just above the leaves.
const WARMING_ROUNDS: u64 = 20;
/// Fork of the random generator that draws the warming operations.
const WARMING: u64 = 1 << 32;

/// Results that clients collect while the window is open.
#[derive(Default)]
struct WindowNotes {
    outcome: TreeOutcome,
    each: Vec<u64>,
    error: Option<TreeError>,
}

/// Start and end of the measured window.
#[derive(Clone, Copy)]
struct MeasureWindow {
    opens: Nanos,
    closes: Nanos,
}

impl TreeSetup {
    /// Returns the host memory of each server, with room to grow.
    fn host_bytes(&self) -> u64 {
        let node = self.config.layout.node_bytes as u64;
        let leaves = self.entries / (self.config.layout.entries() as u64 / 2) + 1024;
        (leaves * node * 2 / u64::from(self.servers)).max(32 << 20) + (16 << 20)
    }

    fn cluster(&self) -> SimCluster {
        let constants = self.constants.clone();
        SimCluster::new(
            self.servers,
            self.servers,
            self.host_bytes(),
            constants,
            self.seed,
        )
    }

    fn window(&self) -> MeasureWindow {
        let opens = self.window_ns / 4;
        let closes = opens + self.window_ns;
        MeasureWindow { opens, closes }
    }

    /// Fills the tree and runs the clients.
    ///
    /// # Errors
    /// An operation of a client failed.
    pub fn run(&self) -> Result<TreeOutcome, TreeError> {
        let sim = self.cluster();
        let keys = Rc::new(RunKeys::new(self.entries, self.theta));
        farbank_tree::fill(&self.config, self.servers, FILLED, keys.start(), &mut &sim);
        let computes: Vec<Compute<ComputeNode>> = (0..self.servers)
            .map(|compute| Compute::new(sim.node(compute), compute, 1, self.config))
            .collect();
        for compute in &computes {
            self.warm(&sim, compute, &keys);
        }
        self.drive(&sim, |number, thread, notes| {
            let compute = number % self.servers;
            let asking = RequestLoop {
                client: computes[usize::from(compute)].client(),
                node: sim.node(compute),
                mix: self.mix,
                ranger: self.mix.is_ranger(u64::from(number / self.servers)),
                operation_ns: self.constants.operation_ns,
                keys: Rc::clone(&keys),
                rng: Rng::new(self.seed).fork(u64::from(number)),
                window: self.window(),
                number,
                notes,
            };
            sim.spawn_on(thread, asking.go());
        })
        .map(|outcome| TreeOutcome {
            cache_bytes: computes[0].cache_bytes(),
            ..outcome
        })
    }

    /// Fills the index cache of `compute` to the state of a long run: every node above the leaves was visited once,
    /// and then enough operations ran that the cache keeps the most-used nodes.
    fn warm(&self, sim: &SimCluster, compute: &Compute<ComputeNode>, keys: &RunKeys) {
        let fanout = (self.config.layout.entries() as f64 * FILLED) as u64;
        let mut rng = Rng::new(self.seed).fork(WARMING);
        let operations = self.entries / fanout / fanout * WARMING_ROUNDS;
        let everywhere = (0..keys.space()).step_by((fanout * fanout / 4).max(1) as usize);
        let drawn = (0..operations).map(|_| keys.draw(&mut rng));
        compute.warm(everywhere.chain(drawn), &|at, to| sim.peek(at, to));
    }

    /// Runs clients that only take and release `locks` locks: the paper's micro-benchmark (section 5.6).
    pub fn run_locks(&self, locks: u64) -> Result<TreeOutcome, TreeError> {
        let sim = self.cluster();
        let keys = Rc::new(super::load::Zipf::new(locks, self.theta));
        let computes: Vec<Compute<ComputeNode>> = (0..self.servers)
            .map(|compute| Compute::new(sim.node(compute), compute, 1, self.config))
            .collect();
        self.drive(&sim, |number, thread, notes| {
            let compute = number % self.servers;
            let client = computes[usize::from(compute)].client();
            let mut rng = Rng::new(self.seed).fork(u64::from(number));
            let (keys, node, window) = (Rc::clone(&keys), sim.node(compute), self.window());
            let servers = u64::from(self.servers);
            sim.spawn_on(thread, async move {
                while node.now() < window.closes {
                    let lock = keys.draw(&mut rng);
                    let node_at = GAddr::host((lock % servers) as u16, (1 << 20) + lock * 1024);
                    let began = node.now();
                    let done = client.take_and_release(node_at).await;
                    let change =
                        |outcome: &mut TreeOutcome, _| outcome.tally.write(&client.take_op());
                    note(&notes, window, number, began, node.now(), done, change);
                }
            });
        })
    }

    /// Runs clients of all other servers that only write `bytes` bytes to server 0.
    pub fn run_messages(&self, bytes: usize) -> Result<TreeOutcome, TreeError> {
        let sim = self.cluster();
        self.drive(&sim, |number, thread, notes| {
            let compute = number % self.servers;
            if compute == 0 && self.servers > 1 {
                return;
            }
            let (node, window) = (sim.node(compute), self.window());
            let at = GAddr::host(0, (1 << 20) + u64::from(number) * bytes as u64);
            sim.spawn_on(thread, async move {
                while node.now() < window.closes {
                    let began = node.now();
                    let done = node
                        .write(at, vec![0; bytes])
                        .await
                        .map_err(TreeError::from);
                    let change = |_: &mut TreeOutcome, _| ();
                    note(&notes, window, number, began, node.now(), done, change);
                }
            });
        })
    }

    fn drive(
        &self,
        sim: &SimCluster,
        mut start: impl FnMut(u16, ComputeThread, Rc<RefCell<WindowNotes>>),
    ) -> Result<TreeOutcome, TreeError> {
        let threads = self.threads * self.servers;
        let all = threads * self.coroutines;
        let notes = Rc::new(RefCell::new(WindowNotes {
            each: vec![0; all.into()],
            ..WindowNotes::default()
        }));
        for thread in 0..threads {
            let on = sim.thread(thread % self.servers);
            for turn in 0..self.coroutines {
                start(thread + turn * threads, on, Rc::clone(&notes));
            }
        }
        sim.run(&mut |_| false);
        let WindowNotes {
            mut outcome,
            each,
            error,
        } = notes.take();
        if let Some(error) = error {
            return Err(error);
        }
        outcome.mops = outcome.operations as f64 * 1000.0 / self.window_ns as f64;
        (outcome.fewest_over_most, outcome.jain) = fairness(&each);
        outcome.traffic = sim.traffic();
        outcome.digest = sim.digest();
        Ok(outcome)
    }
}

/// Returns the ratio of the fewest to the most, and Jain's index (sum² / (n × sum of squares)).
pub(super) fn fairness(each: &[u64]) -> (f64, f64) {
    let most = each.iter().max().copied().unwrap_or(0).max(1);
    let least = each.iter().min().copied().unwrap_or(0);
    let sum: f64 = each.iter().map(|n| *n as f64).sum();
    let squares: f64 = each.iter().map(|n| (*n as f64).powi(2)).sum();
    let jain = sum * sum / (each.len() as f64 * squares).max(1.0);
    (least as f64 / most as f64, jain)
}

/// One client, which runs one operation after another until the window closes.
struct RequestLoop {
    client: Client<ComputeNode>,
    node: ComputeNode,
    mix: TreeMix,
    ranger: bool,
    operation_ns: Nanos,
    keys: Rc<RunKeys>,
    rng: Rng,
    window: MeasureWindow,
    number: u16,
    notes: Rc<RefCell<WindowNotes>>,
}

impl RequestLoop {
    async fn go(mut self) {
        let mut written = 0;
        while self.node.now() < self.window.closes {
            let op = self.mix.draw(self.ranger, &self.keys, &mut self.rng);
            let began = self.node.now();
            self.node.work(self.operation_ns).await;
            if matches!(op, TreeOp::Insert(_) | TreeOp::Modify(_)) {
                written += 1;
            }
            let done = perform(&self.client, op, written).await;
            let cost = self.client.take_op();
            let ended = self.node.now();
            let change = |outcome: &mut TreeOutcome, took| match op {
                TreeOp::Get(_) => outcome.tally.lookup(&cost),
                TreeOp::Insert(_) | TreeOp::Modify(_) => {
                    outcome.tally.write(&cost);
                    outcome.write_latency.add(took);
                }
                TreeOp::Range(..) => outcome.tally.range(&cost),
            };
            let (notes, window) = (&self.notes, self.window);
            note(notes, window, self.number, began, ended, done, change);
        }
    }
}

/// Records an operation if it ended while the window was open.
fn note(
    notes: &Rc<RefCell<WindowNotes>>,
    window: MeasureWindow,
    number: u16,
    began: Nanos,
    ended: Nanos,
    done: Result<(), TreeError>,
    change: impl FnOnce(&mut TreeOutcome, Nanos),
) {
    let mut notes = notes.borrow_mut();
    if let Err(error) = done {
        notes.error = Some(error);
        return;
    }
    if !(window.opens..window.closes).contains(&ended) {
        return;
    }
    notes.each[usize::from(number)] += 1;
    notes.outcome.operations += 1;
    let took = rounded(ended - began);
    notes.outcome.latency.add(took);
    change(&mut notes.outcome, took);
}

/// Rounds a time to about two significant digits, so that histograms stay small.
fn rounded(ns: Nanos) -> Nanos {
    let step = (1 << ns.max(1).ilog2()) / 64;
    ns / step.max(1) * step.max(1)
}
