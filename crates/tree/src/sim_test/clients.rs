//! The clients of a trial, and the log of their calls.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use farbank_check::Value;
use farbank_fabric::sim::{ComputeNode, SimCluster};
use farbank_fabric::{Fabric, Nanos};
use farbank_pm::rng::Rng;

use super::{FaultOutcome, LEASE_NS, TrialOutcome};
use crate::config::{Config, ValueMode};
use crate::op_stats::OpStats;
use crate::range::Direction;
use crate::{CasOutcome, Client, Key, NodeLayout, TreeError};

const CALLS: u64 = 36;
pub(super) const KEYS: u64 = 96;
/// Number of keys of a range query.
pub(super) const RANGE: usize = 8;
/// Width of the window of adjacent keys from which all clients choose at about the same time.
const BUSY: u64 = 10;
/// Width of that window where clients shall share operations on a key.
const SHARED: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) enum ClientRequest {
    Get,
    Insert(u64),
    Remove,
    Range,
    /// A range in descending order.
    RangeDown,
    /// A compare-and-swap. A new value of `None` removes the key.
    Swap {
        expected: Option<u64>,
        new: Option<u64>,
    },
}

/// A client's call with its result.
#[derive(Clone, Debug)]
pub(super) struct ClientCall {
    pub(super) client: u16,
    pub(super) key: u64,
    pub(super) ask: ClientRequest,
    pub(super) invoked: u64,
    pub(super) began_ns: Nanos,
    pub(super) acked: Option<u64>,
    pub(super) ended_ns: Option<Nanos>,
    /// The result: the old or present entry; of a range, the entries from `key` on in its order.
    pub(super) found: Vec<(u64, u64)>,
    pub(super) error: Option<TreeError>,
}

impl ClientCall {
    /// Returns whether the result covers `key`.
    pub(super) fn spans(&self, key: u64) -> bool {
        let last = self.found.get(RANGE - 1).map(|(last, _)| *last);
        match self.ask {
            ClientRequest::Range => (self.key..=last.unwrap_or(KEYS)).contains(&key),
            ClientRequest::RangeDown => (last.unwrap_or(0)..=self.key).contains(&key),
            _ => self.key == key,
        }
    }
}

/// The log of a trial.
#[derive(Default)]
pub(super) struct ClientLog {
    clock: u64,
    pub(super) calls: Vec<ClientCall>,
    pub(super) struck: Option<FaultOutcome>,
    cost: OpStats,
    pub(super) slowest_error_ns: Nanos,
    pub(super) beside: u64,
    pub(super) lost: u64,
    pub(super) drained: u64,
    /// Whether a memory server has left.
    pub(super) has_left: bool,
    pub(super) running: BTreeSet<u16>,
}

impl ClientLog {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Adds the costs of calls.
    pub(super) fn spend(&mut self, op: &OpStats) {
        self.cost.read_retries += op.read_retries;
        self.cost.splits += op.splits;
        self.cost.reused_leaves += op.reused_leaves;
        self.cost.merges += op.merges;
        self.cost.taken_over += op.taken_over;
        self.cost.mended += op.mended;
    }

    /// Returns the outcome of the trial.
    pub(super) fn outcome(&self) -> TrialOutcome {
        use farbank_fabric::FabricError::Fenced;
        let count = |which: &dyn Fn(&ClientCall) -> bool| {
            self.calls.iter().filter(|m| which(m)).count() as u64
        };
        TrialOutcome {
            answered: count(&|made| made.acked.is_some()),
            failed: count(&|made| made.error.is_some()),
            fenced: count(&|made| made.error == Some(TreeError::Fabric(Fenced))),
            cut_off: count(&|made| made.ended_ns.is_none()),
            slowest_error_ns: self.slowest_error_ns,
            unaffected_keys: self.beside,
            lost: self.lost,
            torn: self.cost.read_retries.into(),
            splits: self.cost.splits.into(),
            reused_leaves: self.cost.reused_leaves.into(),
            merges: self.cost.merges.into(),
            taken_over: self.cost.taken_over.into(),
            mended: self.cost.mended.into(),
            drained: self.drained,
            failure: self.struck.clone(),
            digest: 0,
        }
    }
}

/// Returns whether the trial of `seed` starts with a full tree and removes most of it.
fn shrinks(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Returns whether the clients of the trial of `seed`, which starts with a full tree, remove most of it and then fill it again. So
/// leaves are merged away and used again.
pub(super) fn churns(seed: u64) -> bool {
    // The seeds of trials that once failed (`tests/trial.rs`) do not.
    seed % 10 == 2 || seed % 20 == 14
}

/// Returns whether the clients of the trial of `seed` also swap and read descending ranges.
fn has_later_requests(seed: u64) -> bool {
    // The seeds of trials that once failed (`tests/trial.rs`) have the requests of that time.
    seed % 7 < 2
}

/// Returns whether many clients use few keys in the trial of `seed`, so that they share operations.
pub(super) fn shares(config: &Config, seed: u64) -> bool {
    config.shares_keys && seed % 3 < 2 && !has_later_requests(seed)
}

/// Returns the entries at the start.
pub(super) fn start(seed: u64) -> Vec<(u64, u64)> {
    let there = if shrinks(seed) { KEYS } else { 0 };
    (0..there).map(|key| (key, u64::MAX - 1 - key)).collect()
}

/// Stands for bytes that no client wrote.
const NOBODYS: u64 = 1 << 63;
/// Stands for a value that existed but was not reported.
pub(super) const UNKNOWN: u64 = 1 << 63 | 1;

/// Encodes `value` as bytes, whose length depends on the value.
pub(super) fn bytes_of(value: u64, bytes_max: usize) -> Vec<u8> {
    let more = Rng::new(value).below(bytes_max as u64 - 7) as u32;
    let bytes = Value::BYTES_MIN + more;
    Value { id: value, bytes }.encode()
}

/// Decodes the value from its bytes.
fn value_of(bytes: &[u8], bytes_max: usize) -> u64 {
    match Value::decode(bytes) {
        Ok(value) if bytes_of(value.id, bytes_max).len() == bytes.len() => value.id,
        _ => NOBODYS,
    }
}

/// Formats a value for people: the client that wrote it, and the number of its call.
pub(super) fn shown(value: u64) -> String {
    match value {
        u64::MAX => "end".into(),
        NOBODYS => "bytes that no client wrote".into(),
        UNKNOWN => "a value".into(),
        first if first >= u64::MAX - 1 - KEYS => format!("first.{}", u64::MAX - 1 - first),
        value => format!("{}.{}", value >> 32, value as u32),
    }
}

/// Returns the key with this number. If keys are long, four consecutive ones differ only in the last byte.
pub(super) fn key_of(layout: NodeLayout, number: u64) -> Key {
    if layout.key_bytes == 8 {
        return Key::from(number);
    }
    let mut bytes = vec![0; layout.key_bytes];
    bytes[..8].copy_from_slice(&Key::from(number / 4).first_bytes());
    *bytes.last_mut().expect("keys have bytes") = (number % 4) as u8;
    Key::new(&bytes)
}

/// Returns the number of a key.
fn number_of(layout: NodeLayout, key: &Key) -> u64 {
    let mut bytes = vec![0; layout.key_bytes];
    key.fill(&mut bytes);
    match layout.key_bytes {
        8 => key.first(),
        _ => key.first() * 4 + u64::from(bytes[layout.key_bytes - 1]),
    }
}

/// A client of the tree that uses numbers of keys.
pub(super) struct NumberedClient {
    pub(super) client: Client<ComputeNode>,
}

impl NumberedClient {
    fn layout(&self) -> NodeLayout {
        self.client.config().layout
    }

    fn key(&self, number: u64) -> Key {
        key_of(self.layout(), number)
    }

    /// Returns the maximum bytes of a value, if values are out of line.
    fn bytes_max(&self) -> Option<usize> {
        match self.client.config().values {
            ValueMode::Words => None,
            ValueMode::Blocks { bytes_max } => Some(bytes_max),
        }
    }

    pub(super) async fn get(&self, number: u64) -> Result<Option<u64>, TreeError> {
        let key = self.key(number);
        match self.bytes_max() {
            None => self.client.get(key).await,
            Some(most) => {
                let found = self.client.get_bytes(key).await?;
                Ok(found.map(|bytes| value_of(&bytes, most)))
            }
        }
    }

    /// Inserts a value. Returns the old value; [`UNKNOWN`] if it exists but is not reported.
    pub(super) async fn insert(&self, number: u64, value: u64) -> Result<Option<u64>, TreeError> {
        let key = self.key(number);
        match self.bytes_max() {
            None => self.client.insert(key, value).await,
            Some(most) => {
                let bytes = bytes_of(value, most);
                let replaced = self.client.insert_bytes(key, &bytes).await?;
                Ok(replaced.then_some(UNKNOWN))
            }
        }
    }

    async fn remove(&self, number: u64) -> Result<Option<u64>, TreeError> {
        let key = self.key(number);
        match self.bytes_max() {
            None => self.client.remove(key).await,
            Some(_) => Ok(self.client.remove_bytes(key).await?.then_some(UNKNOWN)),
        }
    }

    pub(super) async fn range(
        &self,
        number: u64,
        count: usize,
    ) -> Result<Vec<(u64, u64)>, TreeError> {
        self.range_in(Direction::Up, number, count).await
    }

    async fn range_in(
        &self,
        direction: Direction,
        number: u64,
        count: usize,
    ) -> Result<Vec<(u64, u64)>, TreeError> {
        let (key, layout) = (self.key(number), self.layout());
        match self.bytes_max() {
            None => {
                let found = self.client.words(direction, &key, count).await?;
                let numbered = |(key, value)| (number_of(layout, &key), value);
                Ok(found.into_iter().map(numbered).collect())
            }
            Some(most) => {
                let found = self.client.range_bytes_in(direction, key, count).await?;
                let numbered = |(key, bytes): (Key, Vec<u8>)| {
                    (number_of(layout, &key), value_of(&bytes, most))
                };
                Ok(found.into_iter().map(numbered).collect())
            }
        }
    }

    /// Compares and swaps. Returns the value found, which is `expected` after a swap.
    async fn swap(
        &self,
        number: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Option<u64>, TreeError> {
        let key = self.key(number);
        let differs = match self.bytes_max() {
            None => match self.client.compare_and_swap(key, expected, new).await? {
                CasOutcome::Swapped => None,
                CasOutcome::Differs(found) => Some(found),
            },
            Some(most) => {
                let bytes = |value: Option<u64>| value.map(|value| bytes_of(value, most));
                let (old, new) = (bytes(expected), bytes(new));
                let (old, new) = (old.as_deref(), new.as_deref());
                match self.client.compare_and_swap_bytes(key, old, new).await? {
                    CasOutcome::Swapped => None,
                    CasOutcome::Differs(found) => Some(found.map(|bytes| value_of(&bytes, most))),
                }
            }
        };
        Ok(differs.unwrap_or(expected))
    }

    async fn answer(&self, number: u64, ask: ClientRequest) -> Result<Vec<(u64, u64)>, TreeError> {
        let one = |found: Option<u64>| found.map(|value| (number, value)).into_iter().collect();
        match ask {
            ClientRequest::Get => self.get(number).await.map(one),
            ClientRequest::Insert(value) => self.insert(number, value).await.map(one),
            ClientRequest::Remove => self.remove(number).await.map(one),
            ClientRequest::Range => self.range(number, RANGE).await,
            ClientRequest::RangeDown => self.range_in(Direction::Down, number, RANGE).await,
            ClientRequest::Swap { expected, new } => {
                self.swap(number, expected, new).await.map(one)
            }
        }
    }
}

impl NumberedClient {
    /// Replaces some requests by those that later versions of the tree have.
    async fn later_request(&self, key: u64, ask: ClientRequest, rng: &mut Rng) -> ClientRequest {
        let new = match ask {
            ClientRequest::Range if rng.below(2) == 0 => return ClientRequest::RangeDown,
            ClientRequest::Insert(value) => Some(value),
            ClientRequest::Remove => None,
            _ => return ask,
        };
        if rng.below(2) == 0 {
            return ask;
        }
        // If the read fails, so does the swap, probably.
        let expected = self.get(key).await.unwrap_or(None);
        ClientRequest::Swap { expected, new }
    }
}

/// Renews a compute server's lease while any client runs.
pub(super) fn renewing(
    client: Client<ComputeNode>,
    node: ComputeNode,
    book: &Rc<RefCell<ClientLog>>,
) -> impl Future<Output = ()> + 'static {
    let book = Rc::clone(book);
    async move {
        while !book.borrow().running.is_empty() && client.renew().await.is_ok() {
            node.sleep(LEASE_NS / 5).await;
        }
    }
}

/// Runs one client's calls, until one fails because its compute server is fenced.
pub(super) fn calling(
    client: Client<ComputeNode>,
    number: u16,
    seed: u64,
    sim: &SimCluster,
    book: &Rc<RefCell<ClientLog>>,
) -> impl Future<Output = ()> + 'static {
    let (sim, book) = (sim.clone(), Rc::clone(book));
    let mut rng = Rng::new(seed).fork(100 + u64::from(number));
    let mut later = Rng::new(seed).fork(200 + u64::from(number));
    let caller = NumberedClient { client };
    let shares = shares(caller.client.config(), seed);
    let window = if shares { SHARED } else { BUSY };
    let (gets, inserts) = match (shares, shrinks(seed)) {
        (true, _) => (10, 6),
        (false, true) => (4, 4),
        (false, false) => (4, 11),
    };
    async move {
        for made in 0..CALLS {
            // All clients go through the keys from first to last, so that they meet in the same leaves.
            let (sweeps, inserts) = match (churns(seed), made < CALLS / 2) {
                (false, _) => (1, inserts),
                (true, true) => (2, 0),
                (true, false) => (2, 14),
            };
            let sweep = CALLS / sweeps;
            let key = made % sweep * (KEYS - BUSY) / sweep + rng.below(window);
            let ask = match rng.below(20) {
                n if n < gets => ClientRequest::Get,
                // A range is a call on each of its keys, of which a trial can have 32.
                n if n == gets && !shares => ClientRequest::Range,
                n if n <= gets + inserts => {
                    ClientRequest::Insert(u64::from(number) << 32 | (made + 1))
                }
                _ => ClientRequest::Remove,
            };
            let ask = match has_later_requests(seed) {
                true => caller.later_request(key, ask, &mut later).await,
                false => ask,
            };
            let call = {
                let mut book = book.borrow_mut();
                let invoked = book.tick();
                book.calls.push(ClientCall {
                    client: number,
                    key,
                    ask,
                    invoked,
                    began_ns: sim.now(),
                    acked: None,
                    ended_ns: None,
                    found: Vec::new(),
                    error: None,
                });
                book.calls.len() - 1
            };
            let found = caller.answer(key, ask).await;
            let mut book = book.borrow_mut();
            book.spend(&caller.client.take_op());
            let now = book.tick();
            let made = &mut book.calls[call];
            made.ended_ns = Some(sim.now());
            match found {
                Ok(found) => (made.found, made.acked) = (found, Some(now)),
                Err(error) => {
                    made.error = Some(error);
                    if error == TreeError::Fabric(farbank_fabric::FabricError::Fenced) {
                        break;
                    }
                }
            }
        }
        book.borrow_mut().running.remove(&number);
    }
}
