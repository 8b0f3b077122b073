//! One run: a filled tree, clients that ask without pause, and what it came to.

use std::cell::RefCell;
use std::rc::Rc;

use farbank_fabric::sim::{Constants, Node, Sim, Traffic};
use farbank_fabric::{Fabric, GAddr, Nanos};
use farbank_pm::sim::Rng;
use farbank_tree::tally::{Histogram, Tally};
use farbank_tree::{Client, Compute, Config, Error, Place};

use super::load::{Keys, Mix, Op};

/// A rack, a tree and its clients.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Compute servers; as many memory servers share their cards.
    pub servers: u16,
    /// Clients of each compute server.
    pub clients: u16,
    /// Entries at the start; nodes are 80 % full.
    pub entries: u64,
    /// What clients do.
    pub mix: Mix,
    /// Skew of the keys, 0 to 0.99.
    pub theta: f64,
    /// The tree's techniques.
    pub config: Config,
    /// The rack.
    pub constants: Constants,
    /// Virtual time that is measured, after a quarter of it to warm up, in nanoseconds.
    pub window_ns: Nanos,
    /// Decides everything that chance decides.
    pub seed: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Operations in the window.
    pub operations: u64,
    /// Million operations a second of virtual time.
    pub mops: f64,
    /// Nanoseconds an operation took, in steps of a hundredth.
    pub latency: Histogram,
    /// What the operations cost.
    pub tally: Tally,
    /// What the cards carried, warming up included.
    pub traffic: Traffic,
    /// The fewest operations of a client over the most.
    pub fairness: f64,
    /// Bytes of internal nodes a compute server keeps at the end.
    pub cache_bytes: usize,
    /// A function of everything that happened.
    pub digest: u64,
}

impl Outcome {
    /// Microseconds that so large a part of all operations did not take longer than.
    #[must_use]
    pub fn latency_us(&self, part: f64) -> f64 {
        self.latency.quantile(part) as f64 / 1000.0
    }
}

struct At<'a>(&'a Sim);

impl Place for At<'_> {
    fn put(&mut self, at: GAddr, bytes: &[u8]) {
        self.0.poke(at, bytes);
    }

    fn taken(&mut self, server: u16, at: u64) {
        self.0.take(server, at);
    }
}

/// What clients write down while the window is open.
#[derive(Default)]
struct Notes {
    outcome: Outcome,
    each: Vec<u64>,
    error: Option<Error>,
}

/// When the window opens and closes.
#[derive(Clone, Copy)]
struct Window {
    opens: Nanos,
    closes: Nanos,
}

impl Setup {
    /// Host memory of each server, with room to grow.
    fn host_bytes(&self) -> u64 {
        let node = self.config.layout.node_bytes as u64;
        let leaves = self.entries / (self.config.layout.entries() as u64 / 2) + 1024;
        (leaves * node * 2 / u64::from(self.servers)).max(32 << 20) + (16 << 20)
    }

    fn rack(&self) -> Sim {
        let constants = self.constants.clone();
        Sim::new(
            self.servers,
            self.servers,
            self.host_bytes(),
            constants,
            self.seed,
        )
    }

    fn window(&self) -> Window {
        let opens = self.window_ns / 4;
        let closes = opens + self.window_ns;
        Window { opens, closes }
    }

    /// Fills the tree and has the clients go.
    pub fn run(&self) -> Result<Outcome, Error> {
        let sim = self.rack();
        let keys = Rc::new(Keys::new(self.entries, self.theta));
        farbank_tree::fill(&self.config, self.servers, 0.8, keys.start(), &mut At(&sim));
        let computes: Vec<Compute<Node>> = (0..self.servers)
            .map(|compute| Compute::new(sim.node(compute), compute, 1, self.config))
            .collect();
        self.drive(&sim, |number, notes| {
            let compute = number % self.servers;
            let client = computes[usize::from(compute)].client();
            let rng = Rng::new(self.seed).fork(u64::from(number));
            let (keys, mix) = (Rc::clone(&keys), self.mix);
            let node = sim.node(compute);
            sim.spawn(
                compute,
                asking(client, node, mix, keys, rng, self.window(), number, notes),
            );
        })
        .map(|outcome| Outcome {
            cache_bytes: computes[0].cache_bytes(),
            ..outcome
        })
    }

    /// Has clients take and release `locks` locks, nothing else: the paper's micro-benchmark (section 5.6).
    pub fn run_locks(&self, locks: u64) -> Result<Outcome, Error> {
        let sim = self.rack();
        let keys = Rc::new(super::load::Zipf::new(locks, self.theta));
        let computes: Vec<Compute<Node>> = (0..self.servers)
            .map(|compute| Compute::new(sim.node(compute), compute, 1, self.config))
            .collect();
        self.drive(&sim, |number, notes| {
            let compute = number % self.servers;
            let client = computes[usize::from(compute)].client();
            let mut rng = Rng::new(self.seed).fork(u64::from(number));
            let (keys, node, window) = (Rc::clone(&keys), sim.node(compute), self.window());
            let servers = u64::from(self.servers);
            sim.spawn(compute, async move {
                while node.now() < window.closes {
                    let lock = keys.draw(&mut rng);
                    let node_at = GAddr::host((lock % servers) as u16, (1 << 20) + lock * 1024);
                    let began = node.now();
                    let done = client.take_and_release(node_at).await;
                    let tally = |tally: &mut Tally| tally.write(&client.take_op());
                    note(&notes, window, number, began, node.now(), done, tally);
                }
            });
        })
    }

    fn drive(
        &self,
        sim: &Sim,
        mut start: impl FnMut(u16, Rc<RefCell<Notes>>),
    ) -> Result<Outcome, Error> {
        let all = self.clients * self.servers;
        let notes = Rc::new(RefCell::new(Notes {
            each: vec![0; all.into()],
            ..Notes::default()
        }));
        for number in 0..all {
            start(number, Rc::clone(&notes));
        }
        sim.run(&mut |_| false);
        let Notes {
            mut outcome,
            each,
            error,
        } = notes.take();
        if let Some(error) = error {
            return Err(error);
        }
        outcome.mops = outcome.operations as f64 * 1000.0 / self.window_ns as f64;
        let most = each.iter().max().copied().unwrap_or(0).max(1);
        outcome.fairness = each.iter().min().copied().unwrap_or(0) as f64 / most as f64;
        outcome.traffic = sim.traffic();
        outcome.digest = sim.digest();
        Ok(outcome)
    }
}

/// One client: one operation after another until the window closes.
async fn asking(
    client: Client<Node>,
    node: Node,
    mix: Mix,
    keys: Rc<Keys>,
    mut rng: Rng,
    window: Window,
    number: u16,
    notes: Rc<RefCell<Notes>>,
) {
    let mut written = 0;
    while node.now() < window.closes {
        let op = mix.draw(&keys, &mut rng);
        let began = node.now();
        let done = match op {
            Op::Get(key) => client.get(key).await.map(|_| ()),
            Op::Insert(key) => {
                written += 1;
                client.insert(key, written).await.map(|_| ())
            }
            Op::Range(key, count) => client.range(key, count).await.map(|_| ()),
        };
        let cost = client.take_op();
        note(
            &notes,
            window,
            number,
            began,
            node.now(),
            done,
            |tally| match op {
                Op::Get(_) => tally.lookup(&cost),
                Op::Insert(_) => tally.write(&cost),
                Op::Range(..) => {}
            },
        );
    }
}

/// Writes an operation down, if it ended while the window was open.
fn note(
    notes: &Rc<RefCell<Notes>>,
    window: Window,
    number: u16,
    began: Nanos,
    ended: Nanos,
    done: Result<(), Error>,
    tally: impl FnOnce(&mut Tally),
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
    notes.outcome.latency.add(rounded(ended - began));
    tally(&mut notes.outcome.tally);
}

/// To two digits or a bit more, so that histograms stay small.
fn rounded(ns: Nanos) -> Nanos {
    let step = (1 << ns.max(1).ilog2()) / 64;
    ns / step.max(1) * step.max(1)
}
