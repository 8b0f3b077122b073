//! Operations whose results are verified: each value contains its key, and no key is removed.

use farbank_fabric::Fabric;
use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_tree::{CasOutcome, Client, Config, Key, TreeError};

use super::super::load::{RunKeys, TreeOp};
use super::cluster::MemoryServers;
use super::{compute_server, failed};
use crate::figure::Error;

/// Bits of a value that contain the key plus one. The others count writes.
const KEY_BITS: u32 = 40;

/// Returns the value of write number `write` of `key`. The values at the start have this form, too.
pub(super) fn value_of(key: u64, write: u64) -> u64 {
    write << KEY_BITS | (key + 1)
}

fn check_value(key: u64, value: Option<u64>, keys: &RunKeys) -> Result<(), Error> {
    let is_right = match value {
        Some(value) => value & ((1 << KEY_BITS) - 1) == key + 1,
        None => !keys.is_at_start(key),
    };
    match is_right {
        true => Ok(()),
        false => Err(failed(format!("key {key} has the value {value:x?}"))),
    }
}

fn check_range(from: u64, count: usize, found: &[(Key, u64)], keys: &RunKeys) -> Result<(), Error> {
    let mut next = from;
    for (key, value) in found {
        let key = key.first();
        let is_ascending = key >= next && !(next..key).any(|missing| keys.is_at_start(missing));
        if !is_ascending {
            return Err(failed(format!(
                "a range from key {from} has key {key} where it should have one from {next} on"
            )));
        }
        check_value(key, Some(*value), keys)?;
        next = key + 1;
    }
    let is_short = found.len() < count && (next..keys.space()).any(|key| keys.is_at_start(key));
    match is_short || found.len() > count {
        false => Ok(()),
        true => Err(failed(format!(
            "a range of {count} entries from key {from} has {}",
            found.len()
        ))),
    }
}

/// Performs an operation and verifies its result. `write` is the number of a write.
pub(super) async fn perform<F: Fabric>(
    client: &Client<F>,
    keys: &RunKeys,
    op: TreeOp,
    write: u64,
) -> Result<(), Error> {
    match op {
        TreeOp::Get(key) => check_value(key, client.get(key).await.map_err(failed)?, keys),
        TreeOp::Insert(key) => {
            let value = value_of(key, write);
            let found = client.insert(key, value).await.map_err(failed)?;
            check_value(key, found, keys)
        }
        TreeOp::Range(key, count) => {
            let found = client.range(key, count).await.map_err(failed)?;
            check_range(key, count, &found, keys)
        }
        TreeOp::Modify(key) => {
            let value = Some(value_of(key, write));
            let mut found = client.get(key).await.map_err(failed)?;
            loop {
                check_value(key, found, keys)?;
                let swap = client.compare_and_swap(key, found, value).await;
                match swap.map_err(failed)? {
                    CasOutcome::Swapped => return Ok(()),
                    CasOutcome::Differs(other) => found = other,
                }
            }
        }
    }
}

/// Reads all entries of the tree, and verifies them.
pub(super) fn verify_all(
    cluster: &MemoryServers,
    config: &Config,
    wait: WaitMode,
    keys: &RunKeys,
) -> Result<(), Error> {
    const PART: usize = 1000;
    let reactor = Reactor::new(wait).map_err(failed)?;
    let fabric = cluster.connect(&reactor)?;
    let client = compute_server(&fabric, config).client();
    reactor.block_on(async {
        let mut from = 0;
        loop {
            let found = client.range(from, PART).await.map_err(failed)?;
            check_range(from, PART, &found, keys)?;
            match found.last() {
                Some((key, _)) if found.len() == PART => from = key.first() + 1,
                _ => break,
            }
        }
        fabric
            .leave()
            .await
            .map_err(TreeError::from)
            .map_err(failed)
    })
}
