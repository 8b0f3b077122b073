//! Simulation test of the tree: clients of several compute servers on a small cluster, one injected failure, and a
//! check of whether the results of all calls are linearizable.
//!
//! ```text
//!   clean run:   records the events at which a compute server holds a lock, or is in a split, root growth or merge
//!   failing run: the same events up to one of those, or up to any other; there the failure is injected
//!   the end:     a fresh compute server reads everything, in two ways, and writes every key
//! ```
//!
//! A trial is a function of its seed, which selects the clients' calls, the failure and its event. Calls on one key
//! must be linearizable: answered calls in an order that agrees with their results and times; failed or interrupted
//! calls at any time after their start, or never. A range counts as a read of every key. At the end, every key must be
//! reachable, and no lock may be left without an owner. After a memory server has failed, calls that need it must fail
//! with an error that names it, in time (`judge`), and all other calls must succeed (`end`).

mod clients;
mod drain;
mod end;
mod fault_search;
mod judge;
#[cfg(test)]
mod reused_leaf;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use farbank_fabric::Nanos;
use farbank_fabric::sim::{ClusterConstants, SimCluster};
use farbank_pm::rng::Rng;

use crate::config::ValueMode;
use crate::phase::Phase;
use crate::{Compute, Config};
use clients::{ClientLog, bytes_of, calling, churns, key_of, renewing, shares, start};
use drain::list_ns_max;
pub use fault_search::{
    CaughtTrial, FaultReach, FaultVerdict, SearchPlan, SearchReport, SearchedFault, TreeVariant,
    search_fault,
};
use judge::{check_errors, check_linearizable, violation};

/// The injected failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// Nothing.
    None,
    /// A compute server crashes.
    Crash,
    /// A compute server pauses for three leases, then continues.
    Pause,
    /// A memory server dies.
    Kill,
    /// A memory server restarts with empty memory.
    Empty,
}

impl InjectedFault {
    /// All of them.
    pub const ALL: [InjectedFault; 5] = [
        InjectedFault::None,
        InjectedFault::Crash,
        InjectedFault::Pause,
        InjectedFault::Kill,
        InjectedFault::Empty,
    ];

    /// Returns the name in reports and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            InjectedFault::None => "none",
            InjectedFault::Crash => "crash",
            InjectedFault::Pause => "pause",
            InjectedFault::Kill => "kill",
            InjectedFault::Empty => "empty",
        }
    }

    /// Returns whether the failure is of a memory server.
    #[must_use]
    pub const fn takes_memory(self) -> bool {
        matches!(self, InjectedFault::Kill | InjectedFault::Empty)
    }
}

/// The moment of a failure, by what a client of a compute server is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultMoment {
    /// At any event.
    Any,
    /// While it holds a lock.
    Holding,
    /// While the nodes of a split are being written, or only the sibling leads to the new node.
    Splitting,
    /// While a new root is being created.
    Growing,
    /// While a leaf's entries are being moved to its sibling.
    Merging,
    /// While it moves a node, or an address, away from a memory server that leaves.
    Draining,
}

impl FaultMoment {
    /// All of them.
    pub const ALL: [FaultMoment; 6] = [
        FaultMoment::Any,
        FaultMoment::Holding,
        FaultMoment::Splitting,
        FaultMoment::Growing,
        FaultMoment::Merging,
        FaultMoment::Draining,
    ];

    const fn doing(self) -> Option<Phase> {
        match self {
            FaultMoment::Any => None,
            FaultMoment::Holding => Some(Phase::Holding),
            FaultMoment::Splitting => Some(Phase::Splitting),
            FaultMoment::Growing => Some(Phase::Growing),
            FaultMoment::Merging => Some(Phase::Merging),
            FaultMoment::Draining => Some(Phase::Draining),
        }
    }

    /// Returns the name in reports and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FaultMoment::Any => "any",
            FaultMoment::Holding => "holding a lock",
            FaultMoment::Splitting => "in a split",
            FaultMoment::Growing => "in root growth",
            FaultMoment::Merging => "in a merge",
            FaultMoment::Draining => "emptying a server",
        }
    }
}

/// Parameters of a trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialConfig {
    /// Configuration of the tree.
    pub config: Config,
    /// The failure, at an event that the seed selects.
    pub disaster: InjectedFault,
    /// Whether network cards fetch the lines of a read in increasing order.
    pub read_line_order: bool,
    /// Whether a memory server, which the seed selects, leaves during the calls.
    pub drains: bool,
}

/// The failure as it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultOutcome {
    /// What the compute server was doing; for a memory server, what any compute server was doing.
    pub doing: Vec<FaultMoment>,
    /// Number of locks that the compute server owned then.
    pub locks: u64,
    /// Time in nanoseconds.
    pub at_ns: Nanos,
    who: String,
}

/// Outcome of a trial.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrialOutcome {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed with an error.
    pub failed: u64,
    /// Those of them that failed because their compute server was fenced.
    pub fenced: u64,
    /// Calls that were interrupted.
    pub cut_off: u64,
    /// Longest time, in nanoseconds, that a call took to fail after a memory server had failed.
    pub slowest_error_ns: Nanos,
    /// Keys that were read and written without the failed memory server.
    pub unaffected_keys: u64,
    /// Keys that could not be read because a memory server had failed.
    pub lost: u64,
    /// Reads that were repeated because they were torn.
    pub torn: u64,
    /// Nodes that were split.
    pub splits: u64,
    /// Splits whose new leaf had the memory of a freed one.
    pub reused_leaves: u64,
    /// Leaves that were merged.
    pub merges: u64,
    /// Locks taken from dead owners.
    pub taken_over: u64,
    /// Separators added and moves completed for clients that did not finish.
    pub mended: u64,
    /// Nodes and values that were moved from a memory server that left.
    pub drained: u64,
    /// The violation that ended the run, if there was one.
    pub failure: Option<FaultOutcome>,
    /// Digest of all events.
    pub digest: u64,
}

/// A violation that a trial found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrialViolation {
    /// Description.
    pub what: String,
    /// The calls concerned, in the order of their start, and the failure.
    pub history: Vec<String>,
}

impl fmt::Display for TrialViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.history
            .iter()
            .try_for_each(|line| write!(f, "\n    {line}"))
    }
}

const COMPUTES: u16 = 3;
const SERVERS: u16 = 3;
const CLIENTS: u16 = 6;
/// Clients in trials where they shall share operations.
const SHARING_CLIENTS: u16 = 9;
const LEASE_NS: Nanos = 200_000;
const TIMEOUT_NS: Nanos = 60_000;
/// Bytes of locks per server; so few that nodes share them.
const LOCK_BYTES: u64 = 2048;
/// Maximum number of events; a trial exceeds it only if a client waits for ever.
const EVENTS_MAX: u64 = 400_000;

/// Place of the failure: the event, and the servers.
#[derive(Clone, Copy)]
struct FaultPlan {
    event: u64,
    compute: u16,
    server: u16,
}

/// For each [`FaultMoment`], one of the events at which a compute server is in it, chosen uniformly.
struct MomentTable {
    rng: Rng,
    seen: [u64; FaultMoment::ALL.len()],
    drawn: [Option<(u64, u16)>; FaultMoment::ALL.len()],
}

impl MomentTable {
    fn look(&mut self, event: u64, computes: &[Compute<farbank_fabric::sim::ComputeNode>]) {
        for (compute, home) in computes.iter().enumerate() {
            for moment in FaultMoment::ALL {
                if moment.doing().is_some_and(|doing| home.is_in_phase(doing)) {
                    let index = moment as usize;
                    self.seen[index] += 1;
                    if self.rng.below(self.seen[index]) == 0 {
                        self.drawn[index] = Some((event, compute as u16));
                    }
                }
            }
        }
    }
}

struct PlayedTrial {
    outcome: TrialOutcome,
    events: u64,
    moments: MomentTable,
}

impl TrialConfig {
    /// Runs the trial of `seed`.
    pub fn run(&self, seed: u64) -> Result<TrialOutcome, TrialViolation> {
        let calm = TrialConfig {
            disaster: InjectedFault::None,
            ..*self
        };
        let played = calm.play(seed, None)?;
        if self.disaster == InjectedFault::None {
            return Ok(played.outcome);
        }
        let mut rng = Rng::new(seed).fork(1);
        let any = (rng.below(played.events), rng.below(COMPUTES.into()) as u16);
        let mut choices = vec![any];
        choices.extend(played.moments.drawn.iter().flatten());
        let (event, compute) = choices[rng.below(choices.len() as u64) as usize];
        let server = rng.below(SERVERS.into()) as u16;
        let strike = FaultPlan {
            event,
            compute,
            server,
        };
        Ok(self.play(seed, Some(strike))?.outcome)
    }

    fn cluster(&self, seed: u64) -> SimCluster {
        let layout = self.config.layout;
        // Slow network cards make long race windows. A node takes the same time for all key sizes.
        let bytes_per_ns = 0.2 * (layout.node_bytes as f64 / 192.0).max(1.0);
        let constants = ClusterConstants {
            read_line_order: self.read_line_order,
            bytes_per_ns,
            pcie_bytes_per_ns: bytes_per_ns,
            jitter_ns: 1_000,
            client_ns: 0,
            wake_ns: 0,
            lease_ns: LEASE_NS,
            timeout_ns: TIMEOUT_NS,
            lock_bytes: LOCK_BYTES,
            chunk_bytes: (8 * layout.node_bytes.next_power_of_two() as u64).max(16 << 10),
            ..ClusterConstants::default()
        };
        let host_bytes = 4 << 20;
        let sim = SimCluster::new(COMPUTES + 1, SERVERS, host_bytes, constants, seed);
        let start = start(seed).into_iter();
        let start = start.map(|(number, value)| (key_of(layout, number), value));
        match self.config.values {
            ValueMode::Words => crate::fill(&self.config, SERVERS, 0.8, start, &mut &sim),
            ValueMode::Blocks { bytes_max } => {
                let start = start.map(|(key, value)| (key, bytes_of(value, bytes_max)));
                crate::fill_bytes(&self.config, SERVERS, 0.8, start, &mut &sim);
            }
        }
        sim
    }

    /// Runs the clients' calls, with the failure if there is one.
    fn play(&self, seed: u64, strike: Option<FaultPlan>) -> Result<PlayedTrial, TrialViolation> {
        let sim = self.cluster(seed);
        let config = Config {
            doubt_ns: LEASE_NS / 2,
            list_ns_max: list_ns_max(seed),
            // So that the nodes of a split are on different servers.
            spread_splits: self.drains || churns(seed),
            ..self.config
        };
        let book = Rc::new(RefCell::new(ClientLog::default()));
        let mut computes = Vec::new();
        let clients = match shares(&config, seed) {
            true => SHARING_CLIENTS,
            false => CLIENTS,
        };
        for compute in 0..COMPUTES {
            let home = Compute::new(sim.node(compute), compute, 1, config);
            sim.spawn(compute, renewing(home.client(), sim.node(compute), &book));
            for client in (compute..clients).step_by(COMPUTES.into()) {
                book.borrow_mut().running.insert(client);
                sim.spawn(compute, calling(home.client(), client, seed, &sim, &book));
            }
            computes.push(home);
        }
        if let Some(server) = self.leaving(seed) {
            self.start_drain(&sim, &computes, seed, server, &book);
        }
        let mut events = 0;
        let mut moments = MomentTable {
            rng: Rng::new(seed).fork(2),
            seen: [0; FaultMoment::ALL.len()],
            drawn: [None; FaultMoment::ALL.len()],
        };
        let stuck = sim.run(&mut |n| {
            events = n;
            match strike {
                None => moments.look(n, &computes),
                Some(strike) if strike.event == n => {
                    let struck = self.inject(&sim, &computes, strike, &book);
                    book.borrow_mut().struck = Some(struck);
                }
                Some(_) => {}
            }
            n > EVENTS_MAX
        });
        if stuck {
            let what = "a client waits for ever".into();
            let book = book.borrow();
            return Err(violation(&book.calls, book.struck.as_ref(), what));
        }
        let gone = strike
            .filter(|_| self.disaster.takes_memory())
            .map(|strike| strike.server);
        if let Some(server) = gone {
            check_errors(&mut book.borrow_mut(), server, config.spread_splits)?;
        }
        let left = self.leaving(seed).filter(|_| gone.is_none());
        if let Some(server) = left {
            self.finish_drain(&sim, config, server, &book)?;
        }
        let end = self.end(&sim, config, gone, &book)?;
        let book = book.borrow();
        check_linearizable(&start(seed), &book, &end)?;
        Ok(PlayedTrial {
            outcome: TrialOutcome {
                digest: sim.digest(),
                ..book.outcome()
            },
            events,
            moments,
        })
    }

    /// Injects the failure.
    fn inject(
        &self,
        sim: &SimCluster,
        computes: &[Compute<farbank_fabric::sim::ComputeNode>],
        strike: FaultPlan,
        book: &Rc<RefCell<ClientLog>>,
    ) -> FaultOutcome {
        let FaultPlan {
            compute, server, ..
        } = strike;
        let concerned = |moment: FaultMoment, home: &Compute<_>| {
            moment.doing().is_some_and(|doing| home.is_in_phase(doing))
        };
        let takes_memory = self.disaster.takes_memory();
        let is = |moment: &FaultMoment| match takes_memory {
            true => computes.iter().any(|home| concerned(*moment, home)),
            false => concerned(*moment, &computes[usize::from(compute)]),
        };
        let doing = FaultMoment::ALL.into_iter().filter(is).collect();
        let locks = match takes_memory {
            true => 0,
            false => crate::lock_table::count_locks_of(
                sim,
                &self.config,
                SERVERS,
                LOCK_BYTES,
                compute,
                1,
            ),
        };
        let who = match self.disaster {
            InjectedFault::None => String::new(),
            InjectedFault::Crash => format!("compute server {compute} crashes"),
            InjectedFault::Pause => format!("compute server {compute} pauses for three leases"),
            InjectedFault::Kill => format!("memory server {server} dies"),
            InjectedFault::Empty => format!("memory server {server} restarts with empty memory"),
        };
        let at_ns = sim.now();
        match self.disaster {
            InjectedFault::None => {}
            InjectedFault::Crash => {
                sim.crash_compute(compute);
                let lives = |client: &u16| client % COMPUTES != compute;
                book.borrow_mut().running.retain(lives);
            }
            InjectedFault::Pause => sim.pause_compute(compute, 3 * LEASE_NS),
            InjectedFault::Kill => sim.kill_server(server),
            InjectedFault::Empty => sim.empty_server(server),
        }
        FaultOutcome {
            doing,
            locks,
            at_ns,
            who,
        }
    }
}
