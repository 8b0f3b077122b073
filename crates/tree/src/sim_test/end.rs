//! The end of a trial: a fresh compute server reads and writes everything that is still reachable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use farbank_fabric::GAddr;
use farbank_fabric::sim::SimCluster;

use super::clients::{ClientLog, KEYS, NumberedClient, UNKNOWN, key_of, shown};
use super::judge::violation;
use super::{COMPUTES, EVENTS_MAX, LEASE_NS, TrialConfig, TrialViolation};
use crate::block::BlockRef;
use crate::config::ValueMode;
use crate::lookup::{Lookup, child_for, classify};
use crate::page::{NodePage, NodeState};
use crate::superblock::ROOT;
use crate::{Compute, Config, TreeError};

/// The final value of every key. Keys that are unreachable are missing.
type FinalState = BTreeMap<u64, Option<u64>>;

/// The reason why the final check rejects a trial.
#[derive(Debug)]
enum FinalCheckError {
    /// An operation failed, although every server works.
    Failed(TreeError),
    /// A write of a key that does not need the failed server `gone` did not replace the value `found`.
    WriteBeside {
        key: u64,
        gone: u16,
        found: Option<u64>,
        written: Result<Option<u64>, TreeError>,
    },
    /// A lookup failed that must not fail, or with another error or later than it must.
    LookupBeside {
        key: u64,
        gone: u16,
        /// Whether the key does not need the failed server.
        free: bool,
        took_ns: u64,
        error: TreeError,
    },
    /// A range and the reads of single keys returned different entries.
    RangeDiffers {
        only_range: Vec<(u64, u64)>,
        only_single: Vec<(u64, u64)>,
    },
    /// A write replaced another value than the one read before.
    WriteReplaced {
        key: u64,
        was: Option<u64>,
        old: Option<u64>,
    },
}

impl fmt::Display for FinalCheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |entries: &[(u64, u64)]| {
            let one = |(key, value): &(u64, u64)| format!("{key}={}", shown(*value));
            entries.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        match self {
            FinalCheckError::Failed(error) => write!(f, "the final check failed: {error}"),
            FinalCheckError::WriteBeside {
                key,
                gone,
                found,
                written,
            } => write!(
                f,
                "key {key} does not need the failed memory server {gone}; it had {found:?}, but its write ended with {written:?}"
            ),
            FinalCheckError::LookupBeside {
                key,
                gone,
                free,
                took_ns,
                error,
            } => {
                let where_to = if *free { "does not need" } else { "needs" };
                write!(
                    f,
                    "key {key} {where_to} the failed memory server {gone}, and after {took_ns} ns its lookup ended with: {error}"
                )
            }
            FinalCheckError::RangeDiffers {
                only_range,
                only_single,
            } => write!(
                f,
                "the range and the single reads differ: only the range returns [{}], only the single reads return [{}]",
                listed(only_range),
                listed(only_single)
            ),
            FinalCheckError::WriteReplaced { key, was, old } => {
                write!(f, "key {key} had {was:?}, but its write replaced {old:?}")
            }
        }
    }
}

impl std::error::Error for FinalCheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FinalCheckError::Failed(error) | FinalCheckError::LookupBeside { error, .. } => {
                Some(error)
            }
            _ => None,
        }
    }
}

impl TrialConfig {
    /// Reads and writes everything from a fresh compute server; if memory server `gone` has failed, everything that
    /// does not need it.
    pub(super) fn end(
        &self,
        sim: &SimCluster,
        config: Config,
        gone: Option<u16>,
        book: &Rc<RefCell<ClientLog>>,
    ) -> Result<FinalState, TrialViolation> {
        let fresh = Compute::new(sim.node(COMPUTES), COMPUTES, 1, config);
        let caller = NumberedClient {
            client: fresh.client(),
        };
        let result = Rc::new(RefCell::new(None));
        let put = Rc::clone(&result);
        let (trial, cluster) = (*self, sim.clone());
        sim.spawn(COMPUTES, async move {
            let found = match gone {
                None => look(&caller).await,
                Some(server) => trial.look_beside(&caller, &cluster, server).await,
            };
            *put.borrow_mut() = Some((found, caller.client.take_op()));
        });
        let stuck = sim.run(&mut |events| events > 2 * EVENTS_MAX);
        let mut book = book.borrow_mut();
        let what = match result.take() {
            Some((Ok(end), op)) => {
                book.spend(&op);
                if gone.is_some() {
                    book.beside = end.len() as u64;
                    book.lost = KEYS - book.beside;
                }
                return Ok(end);
            }
            Some((Err(error), _)) => error.to_string(),
            None if stuck => "the final check waits for ever: a lock was never released".into(),
            None => "the final check did not finish".into(),
        };
        Err(violation(&book.calls, book.struck.as_ref(), what))
    }

    /// Reads and writes every key whose path avoids the failed memory server `gone`. Checks that other keys fail with
    /// an error that names the server, within a lease.
    async fn look_beside(
        &self,
        caller: &NumberedClient,
        sim: &SimCluster,
        gone: u16,
    ) -> Result<FinalState, FinalCheckError> {
        use farbank_fabric::FabricError::{Empty, Timeout};
        let mut end = FinalState::new();
        for key in 0..KEYS {
            let free = self.is_beside(sim, key, gone);
            let began_ns = sim.now();
            let failed = match caller.get(key).await {
                Ok(found) => {
                    end.insert(key, found);
                    let written = match found {
                        Some(_) if free => caller.insert(key, u64::MAX).await,
                        _ => continue,
                    };
                    if written.is_ok_and(|old| agrees(old, found)) {
                        continue;
                    }
                    return Err(FinalCheckError::WriteBeside {
                        key,
                        gone,
                        found,
                        written,
                    });
                }
                Err(error) => error,
            };
            let took_ns = sim.now() - began_ns;
            let named = matches!(
                failed,
                TreeError::Fabric(Timeout { server } | Empty { server }) if server == gone
            );
            if free || !named || took_ns > LEASE_NS {
                return Err(FinalCheckError::LookupBeside {
                    key,
                    gone,
                    free,
                    took_ns,
                    error: failed,
                });
            }
        }
        Ok(end)
    }

    /// Returns whether the word of an entry refers to a block on memory server `gone`. Blocks do not move with their
    /// entries.
    fn names(&self, word: u64, gone: u16) -> bool {
        self.config.values != ValueMode::Words && BlockRef(word).at().server() == gone
    }

    /// Returns whether nothing on the path from the root to `key` is on server `gone`.
    fn is_beside(&self, sim: &SimCluster, key: u64, gone: u16) -> bool {
        let (layout, key) = (self.config.layout, key_of(self.config.layout, key));
        if ROOT.server() == gone {
            return false;
        }
        let mut bytes = vec![0; layout.node_bytes];
        sim.peek(ROOT, &mut bytes[..8]);
        let word = *bytes.first_chunk().expect("nodes have eight bytes");
        let mut at = GAddr(u64::from_le_bytes(word));
        loop {
            if at.server() == gone {
                return false;
            }
            sim.peek(at, &mut bytes);
            let page = NodePage {
                layout,
                bytes: bytes.clone(),
            };
            let head = page.head();
            at = match classify(&page, &key, head.level) {
                Lookup::Found if head.level > 0 => child_for(&page, &key).0,
                Lookup::Found => {
                    // A write to a moving leaf first follows `low`.
                    let lives = head.state == NodeState::Live || head.low.server() != gone;
                    let found = page.find(&key).ok().flatten();
                    return lives && !found.is_some_and(|(_, word)| self.names(word, gone));
                }
                Lookup::Follow(next) => next,
                // The search would take another path.
                Lookup::Restart => return false,
            };
        }
    }
}

/// Returns whether the old value reported by a write agrees with the value read before.
fn agrees(old: Option<u64>, was: Option<u64>) -> bool {
    old == was || old == Some(UNKNOWN) && was.is_some()
}

/// Reads all entries by a range and key by key, compares both, and writes every key.
async fn look(caller: &NumberedClient) -> Result<FinalState, FinalCheckError> {
    let failed = FinalCheckError::Failed;
    let range = caller.range(0, usize::MAX >> 1).await.map_err(failed)?;
    let mut single = FinalState::new();
    for key in 0..KEYS {
        single.insert(key, caller.get(key).await.map_err(failed)?);
    }
    let there = single
        .iter()
        .filter_map(|(key, value)| value.map(|value| (*key, value)));
    if !there.clone().eq(range.iter().copied()) {
        let single: Vec<_> = there.collect();
        let without = |entries: &[(u64, u64)], others: &[(u64, u64)]| {
            let only = entries.iter().filter(|entry| !others.contains(entry));
            only.copied().collect()
        };
        return Err(FinalCheckError::RangeDiffers {
            only_range: without(&range, &single),
            only_single: without(&single, &range),
        });
    }
    for (key, was) in &single {
        let old = caller.insert(*key, u64::MAX).await.map_err(failed)?;
        if !agrees(old, *was) {
            return Err(FinalCheckError::WriteReplaced {
                key: *key,
                was: *was,
                old,
            });
        }
    }
    Ok(single)
}
