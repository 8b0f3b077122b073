//! A memory server that leaves during a trial: a client empties it while the others make their calls. If it does not end, a fresh compute
//! server completes the drain. Then the memory server dies: nothing may lead there, and everything must be reachable.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use farbank_fabric::sim::{ComputeNode, SimCluster};
use farbank_fabric::{Fabric, FabricError, GAddr, Nanos};
use farbank_pm::rng::Rng;

use super::clients::ClientLog;
use super::judge::violation;
use super::{COMPUTES, EVENTS_MAX, SERVERS, TrialConfig, TrialViolation};
use crate::block::BlockRef;
use crate::config::ValueMode;
use crate::drain::DrainCounts;
use crate::page::{NodePage, NodeState};
use crate::server_list::{ListCopy, ServerList, read_list, write_numbers};
use crate::superblock::ROOT;
use crate::{Client, Compute, Config, TreeError};

/// Longest time before the server begins to leave.
const DELAY_NS_MAX: Nanos = 300_000;

/// Returns whether compute servers read the list of servers from time to time in the trial of `seed`. Otherwise they read it only when
/// their copy is too old.
fn watches(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

/// Returns the maximum age of a copy of the list of servers.
pub(super) fn list_ns_max(seed: u64) -> Nanos {
    match watches(seed) {
        true => 20_000,
        false => 150_000,
    }
}

impl TrialConfig {
    /// Returns the server that leaves in the trial of `seed`.
    pub(super) fn leaving(&self, seed: u64) -> Option<u16> {
        let server = 1 + Rng::new(seed).fork(4).below(u64::from(SERVERS) - 1) as u16;
        self.drains.then_some(server)
    }

    /// Starts a client that empties `server`, and the tasks of all compute servers that read the list of servers.
    pub(super) fn start_drain(
        &self,
        sim: &SimCluster,
        computes: &[Compute<ComputeNode>],
        seed: u64,
        server: u16,
        book: &Rc<RefCell<ClientLog>>,
    ) {
        let mut rng = Rng::new(seed).fork(5);
        for (compute, home) in computes.iter().enumerate() {
            watch_list(home, sim.now());
            if watches(seed) {
                let watching = watching(home.client(), rng.below(list_ns_max(seed)), book);
                sim.spawn(compute as u16, watching);
            }
        }
        let drainer = rng.below(COMPUTES.into()) as u16;
        let delay_ns = rng.below(DELAY_NS_MAX);
        let client = computes[usize::from(drainer)].client();
        let book = Rc::clone(book);
        sim.spawn(drainer, async move {
            client.fabric().sleep(delay_ns).await;
            let drained = drain(&client, server).await;
            let mut book = book.borrow_mut();
            // After an error or a crash, the fresh compute server continues.
            if let Ok(counts) = drained {
                book.drained += counts.nodes_moved + counts.values_moved;
                book.has_left = true;
            }
            book.spend(&client.take_op());
        });
    }

    /// Completes the drain from a fresh compute server, if necessary. Then the memory server dies.
    pub(super) fn finish_drain(
        &self,
        sim: &SimCluster,
        config: Config,
        server: u16,
        book: &Rc<RefCell<ClientLog>>,
    ) -> Result<(), TrialViolation> {
        let has_left = book.borrow().has_left;
        let what = match has_left {
            true => None,
            false => self.repeat_drain(sim, config, server, book),
        };
        match what.or_else(|| self.address_on(sim, server)) {
            None => {
                sim.kill_server(server);
                Ok(())
            }
            Some(what) => {
                let book = book.borrow();
                Err(violation(&book.calls, book.struck.as_ref(), what))
            }
        }
    }

    /// Empties `server` from a fresh compute server. Returns what went wrong.
    fn repeat_drain(
        &self,
        sim: &SimCluster,
        config: Config,
        server: u16,
        book: &Rc<RefCell<ClientLog>>,
    ) -> Option<String> {
        let fresh = Compute::new(sim.node(COMPUTES), COMPUTES, 1, config);
        watch_list(&fresh, sim.now());
        let client = fresh.client();
        let result = Rc::new(RefCell::new(None));
        let put = Rc::clone(&result);
        sim.spawn(COMPUTES, async move {
            let drained = drain(&client, server).await;
            *put.borrow_mut() = Some((drained, client.take_op()));
        });
        let stuck = sim.run(&mut |events| events > 2 * EVENTS_MAX);
        match result.take() {
            Some((Ok(counts), op)) => {
                let mut book = book.borrow_mut();
                book.drained += counts.nodes_moved + counts.values_moved;
                book.spend(&op);
                None
            }
            Some((Err(error), _)) => Some(format!("the drain failed: {error}")),
            None if stuck => Some("the drain waits for ever".into()),
            None => Some("the drain did not finish".into()),
        }
    }
}

impl TrialConfig {
    /// Describes an address on `server` to which the tree leads, if there is one (TREE-DRAIN-3).
    fn address_on(&self, sim: &SimCluster, server: u16) -> Option<String> {
        let mut word = [0; 8];
        sim.peek(ROOT, &mut word);
        let mut next = vec![(ROOT, GAddr(u64::from_le_bytes(word)))];
        let mut seen = BTreeSet::new();
        while let Some((from, at)) = next.pop() {
            if at.server() == server {
                return Some(format!(
                    "after the drain of memory server {server}, {from:?} leads to {at:?}"
                ));
            }
            if at.is_null() || !seen.insert(at) {
                continue;
            }
            let layout = self.config.layout;
            let mut bytes = vec![0; layout.node_bytes];
            sim.peek(at, &mut bytes);
            let page = NodePage { layout, bytes };
            let head = page.head();
            next.push((at, head.sibling));
            if head.state != NodeState::Live || head.level > 0 {
                next.push((at, head.low));
            }
            let values = page.each().flatten().map(|(_, entry)| entry.value);
            match (head.level, self.config.values) {
                (0, ValueMode::Words) => {}
                (0, ValueMode::Blocks { .. }) => {
                    let there = values.map(|word| BlockRef(word).at());
                    next.extend(
                        there
                            .filter(|block| block.server() == server)
                            .map(|block| (at, block)),
                    );
                }
                _ => next.extend(values.map(|child| (at, GAddr(child)))),
            }
        }
        None
    }
}

/// Makes a compute server use a copy of the list of servers.
fn watch_list(home: &Compute<ComputeNode>, now: Nanos) {
    let copy = ListCopy::read(ServerList::of_created(SERVERS), SERVERS, now);
    home.shared().keep_list(copy);
}

/// Empties `server`, which begins to leave.
async fn drain(client: &Client<ComputeNode>, server: u16) -> Result<DrainCounts, TreeError> {
    let list = read_list(client.fabric(), SERVERS).await?;
    let leaving = list.with_leaving(Some(server));
    write_numbers(client.fabric(), &leaving).await?;
    client.drain(server, &mut |_| {}).await
}

/// Reads the list of servers while any client runs.
fn watching(
    client: Client<ComputeNode>,
    phase_ns: Nanos,
    book: &Rc<RefCell<ClientLog>>,
) -> impl Future<Output = ()> + 'static {
    let book = Rc::clone(book);
    async move {
        client.fabric().sleep(phase_ns).await;
        while !book.borrow().running.is_empty() {
            let read = client.read_server_list(SERVERS).await;
            if read == Err(TreeError::Fabric(FabricError::Fenced)) {
                break;
            }
            client.fabric().sleep(client.config().list_ns_max / 4).await;
        }
    }
}
