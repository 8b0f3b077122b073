//! The tree tried: clients of several compute servers on a small rack, one disaster, and the question whether what everybody
//! was told can be explained.
//!
//! A trial is a function of its seed: which clients do what, at which of all events which disaster comes. Calls on
//! one key must be linearizable: those that were answered in an order that agrees with their answers and times, those that failed or were cut
//! off anywhere after they began or never. A range counts as a read of every key. When all is over a compute server that
//! knows nothing reads everything, key by key and as a range, and writes every key: no key may be out of reach, no lock
//! without an owner.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use farbank_check::oracle::{Act, Call, linearizable};
use farbank_fabric::service::KEEPER;
use farbank_fabric::sim::{Constants, Node, Sim};
use farbank_fabric::{GAddr, Nanos};
use farbank_pm::sim::Rng;

use crate::tally::Op;
use crate::{Client, Compute, Config, Error, Key, Layout, Place};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disaster {
    /// Nothing.
    None,
    /// A compute server is gone.
    Crash,
    /// A compute server stops for three leases, and goes on.
    Pause,
    /// A memory server is gone.
    Kill,
    /// A memory server comes back with nothing in it.
    Empty,
}

impl Disaster {
    /// All of them.
    pub const ALL: [Disaster; 5] = [
        Disaster::None,
        Disaster::Crash,
        Disaster::Pause,
        Disaster::Kill,
        Disaster::Empty,
    ];
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The tree.
    pub config: Config,
    /// What goes wrong, at an event that the seed chooses.
    pub disaster: Disaster,
    /// Whether cards fetch the lines of a read in increasing order.
    pub read_line_order: bool,
}

/// What a trial came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed with an error.
    pub failed: u64,
    /// Calls that were cut off.
    pub cut_off: u64,
    /// The longest that a call took that was not paused, in nanoseconds.
    pub longest_ns: Nanos,
    /// Reads that were made again because what came was torn.
    pub torn: u64,
    /// Nodes that were split.
    pub splits: u64,
    /// Leaves that were merged.
    pub merges: u64,
    /// A function of everything that happened.
    pub digest: u64,
}

/// Something that cannot be explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What it is.
    pub what: String,
    /// The calls it is about, in the order in which they began.
    pub history: Vec<String>,
}

impl fmt::Display for Violation {
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
const CALLS: u64 = 36;
const KEYS: u64 = 96;
/// Keys that a range asks for.
const RANGE: usize = 8;
/// Neighbouring keys that all clients are busy with at about the same time.
const BUSY: u64 = 10;
const LEASE_NS: Nanos = 200_000;
const TIMEOUT_NS: Nanos = 60_000;
/// No trial has so many events unless somebody waits for ever.
const EVENTS_MAX: u64 = 400_000;

#[derive(Clone, Copy, Debug)]
enum Ask {
    Get,
    Insert(u64),
    Remove,
    Range,
}

/// A call of a client, as it went.
#[derive(Clone, Debug)]
struct Made {
    client: u16,
    key: u64,
    ask: Ask,
    invoked: u64,
    acked: Option<u64>,
    /// What was found: of a range, of every key from `key` on.
    found: Vec<(u64, u64)>,
    error: Option<Error>,
}

impl Made {
    /// Whether a range tells anything of `key`.
    fn spans(&self, key: u64) -> bool {
        let last = self.found.get(RANGE - 1).map_or(KEYS, |(last, _)| *last);
        (self.key..=last).contains(&key)
    }
}

#[derive(Default)]
struct Book {
    clock: u64,
    made: Vec<Made>,
    longest_ns: Nanos,
    cost: Op,
    running: BTreeSet<u16>,
}

impl Book {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
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

impl Trial {
    /// Runs the trial of `seed`.
    pub fn run(&self, seed: u64) -> Result<Outcome, Violation> {
        let calm = Trial {
            disaster: Disaster::None,
            ..*self
        };
        let (_, events) = calm.play(seed, None)?;
        match self.disaster {
            Disaster::None => Ok(calm.play(seed, None)?.0),
            _ => {
                let at = Rng::new(seed).fork(1).below(events);
                Ok(self.play(seed, Some(at))?.0)
            }
        }
    }

    fn rack(&self, seed: u64) -> Sim {
        // Slow cards make long windows, and chance fills them. A node takes the same time however long keys are.
        let bytes_per_ns = 0.2 * (self.config.layout.node_bytes as f64 / 192.0).max(1.0);
        let constants = Constants {
            read_line_order: self.read_line_order,
            bytes_per_ns,
            pcie_bytes_per_ns: bytes_per_ns,
            jitter_ns: 1_000,
            lease_ns: LEASE_NS,
            timeout_ns: TIMEOUT_NS,
            chunk_bytes: 16 << 10,
            ..Constants::default()
        };
        let sim = Sim::new(COMPUTES + 1, SERVERS, 4 << 20, constants, seed);
        let layout = self.config.layout;
        let start = start(seed)
            .into_iter()
            .map(|(number, value)| (key_of(layout, number), value));
        crate::fill(&self.config, SERVERS, 0.8, start, &mut At(&sim));
        sim
    }

    /// Plays the clients' calls, with the disaster at event `at`; the outcome, and how many events there were.
    fn play(&self, seed: u64, at: Option<u64>) -> Result<(Outcome, u64), Violation> {
        let sim = self.rack(seed);
        let config = Config {
            doubt_ns: LEASE_NS / 2,
            ..self.config
        };
        let book = Rc::new(RefCell::new(Book::default()));
        for compute in 0..COMPUTES {
            let home = Compute::new(sim.node(compute), compute, 1, config);
            sim.spawn(compute, renewing(home.client(), sim.node(compute), &book));
            for client in (compute..CLIENTS).step_by(COMPUTES.into()) {
                book.borrow_mut().running.insert(client);
                sim.spawn(compute, calling(home.client(), client, seed, &sim, &book));
            }
        }
        let mut rng = Rng::new(seed).fork(2);
        let (compute, server) = (
            rng.below(COMPUTES.into()) as u16,
            rng.below(SERVERS.into()) as u16,
        );
        let mut events = 0;
        let strike = |events: u64| {
            if Some(events) == at {
                match self.disaster {
                    Disaster::None => {}
                    Disaster::Crash => {
                        sim.crash_compute(compute);
                        let lives = |client: &u16| client % COMPUTES != compute;
                        book.borrow_mut().running.retain(lives);
                    }
                    Disaster::Pause => sim.pause_compute(compute, 3 * LEASE_NS),
                    Disaster::Kill => sim.kill_server(server),
                    Disaster::Empty => sim.empty_server(server),
                }
            }
        };
        let stuck = sim.run(&mut |n| {
            events = n;
            strike(n);
            n > EVENTS_MAX
        });
        if stuck {
            return Err(told(&book.borrow().made, "somebody waits for ever".into()));
        }
        let lost_memory = matches!(self.disaster, Disaster::Kill | Disaster::Empty);
        if lost_memory && at.is_some() {
            self.judge_errors(&book.borrow(), server)?;
        }
        let end = match lost_memory && at.is_some() {
            true => None,
            false => Some(self.read_all(&sim, config, &book)?),
        };
        judge(&start(seed), &book.borrow().made, end.as_deref())?;
        let book = book.borrow();
        let count = |which: &dyn Fn(&Made) -> bool| book.made.iter().filter(|m| which(m)).count();
        let outcome = Outcome {
            answered: count(&|made| made.acked.is_some()) as u64,
            failed: count(&|made| made.error.is_some()) as u64,
            cut_off: count(&|made| made.acked.is_none() && made.error.is_none()) as u64,
            longest_ns: book.longest_ns,
            torn: book.cost.read_retries.into(),
            splits: book.cost.splits.into(),
            merges: book.cost.merges.into(),
            digest: sim.digest(),
        };
        Ok((outcome, events))
    }

    /// When a memory server is gone, what needs it fails by name and in time, and nothing else stops.
    fn judge_errors(&self, book: &Book, server: u16) -> Result<(), Violation> {
        use farbank_fabric::Error::{Empty, Timeout};
        for made in &book.made {
            let named = match made.error {
                None => made.acked.is_some(),
                Some(Error::Fabric(Timeout { server: at } | Empty { server: at })) => at == server,
                // Without the keeper nobody renews.
                Some(_) => server == KEEPER,
            };
            if !named {
                let what = format!(
                    "server {server} is gone, and a call ended with {:?}",
                    made.error
                );
                return Err(told(std::slice::from_ref(made), what));
            }
        }
        Ok(())
    }

    /// Reads and writes everything from a compute server that knows nothing yet.
    fn read_all(
        &self,
        sim: &Sim,
        config: Config,
        book: &Rc<RefCell<Book>>,
    ) -> Result<Vec<(u64, u64)>, Violation> {
        let fresh = Compute::new(sim.node(COMPUTES), COMPUTES, 1, config);
        let client = fresh.client();
        let result = Rc::new(RefCell::new(None));
        let put = Rc::clone(&result);
        sim.spawn(COMPUTES, async move {
            *put.borrow_mut() = Some(look(&client).await)
        });
        let stuck = sim.run(&mut |events| events > 2 * EVENTS_MAX);
        let made = &book.borrow().made;
        match result.take() {
            Some(Ok(entries)) => Ok(entries),
            Some(Err(what)) => Err(told(made, what)),
            None if stuck => Err(told(made, "a lock has no owner any more".into())),
            None => Err(told(made, "the last reader did not come to its end".into())),
        }
    }
}

/// Whether the trial of `seed` starts from a full tree and removes most of it.
fn shrinks(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// The key called `number`: where keys are long, four in a row differ in the last byte only.
fn key_of(layout: Layout, number: u64) -> Key {
    if layout.key_bytes == 8 {
        return Key::from(number);
    }
    let mut bytes = vec![0; layout.key_bytes];
    bytes[..8].copy_from_slice(&Key::from(number / 4).first_bytes());
    *bytes.last_mut().expect("keys have bytes") = (number % 4) as u8;
    Key::new(&bytes)
}

/// Entries by the numbers of their keys.
fn numbered(layout: Layout, entries: Vec<(Key, u64)>) -> Vec<(u64, u64)> {
    let number = |key: &Key| {
        let mut bytes = vec![0; layout.key_bytes];
        key.fill(&mut bytes);
        match layout.key_bytes {
            8 => key.first(),
            _ => key.first() * 4 + u64::from(bytes[layout.key_bytes - 1]),
        }
    };
    let numbered = |(key, value)| (number(&key), value);
    entries.into_iter().map(numbered).collect()
}

/// What is there at the start.
fn start(seed: u64) -> Vec<(u64, u64)> {
    let there = if shrinks(seed) { KEYS } else { 0 };
    (0..there).map(|key| (key, u64::MAX - 1 - key)).collect()
}

/// Everything there is, found in two ways, after which every key is written.
async fn look(client: &Client<Node>) -> Result<Vec<(u64, u64)>, String> {
    let failed = |error: Error| format!("the last reader: {error}");
    let layout = client.home.config.layout;
    let range = client.range(0, usize::MAX >> 1).await.map_err(failed)?;
    let range = numbered(layout, range);
    let mut single = Vec::new();
    for key in 0..KEYS {
        if let Some(value) = client.get(key_of(layout, key)).await.map_err(failed)? {
            single.push((key, value));
        }
    }
    if range != single {
        return Err(format!(
            "a range shows {range:?}, reading key by key {single:?}"
        ));
    }
    for key in 0..KEYS {
        let old = client
            .insert(key_of(layout, key), u64::MAX)
            .await
            .map_err(failed)?;
        let was = range.iter().find(|(other, _)| *other == key);
        if old != was.map(|(_, value)| *value) {
            return Err(format!(
                "key {key} had {was:?}, and {old:?} when it was written"
            ));
        }
    }
    Ok(range)
}

/// Renews a compute server's lease while any client runs.
fn renewing(
    client: Client<Node>,
    node: Node,
    book: &Rc<RefCell<Book>>,
) -> impl Future<Output = ()> + 'static {
    use farbank_fabric::Fabric;
    let book = Rc::clone(book);
    async move {
        while !book.borrow().running.is_empty() && client.renew().await.is_ok() {
            node.sleep(LEASE_NS / 5).await;
        }
    }
}

/// One client's calls, until one fails because its compute server was fenced.
fn calling(
    client: Client<Node>,
    number: u16,
    seed: u64,
    sim: &Sim,
    book: &Rc<RefCell<Book>>,
) -> impl Future<Output = ()> + 'static {
    let (sim, book) = (sim.clone(), Rc::clone(book));
    let mut rng = Rng::new(seed).fork(100 + u64::from(number));
    async move {
        for made in 0..CALLS {
            // Everybody goes through the keys from the first to the last, so that they meet in the same leaves.
            let key = made * (KEYS - BUSY) / CALLS + rng.below(BUSY);
            let inserts = if shrinks(seed) { 4 } else { 11 };
            let ask = match rng.below(20) {
                0..4 => Ask::Get,
                4 => Ask::Range,
                n if n < 5 + inserts => Ask::Insert(u64::from(number) << 32 | (made + 1)),
                _ => Ask::Remove,
            };
            let (call, began) = {
                let mut book = book.borrow_mut();
                let invoked = book.tick();
                book.made.push(Made {
                    client: number,
                    key,
                    ask,
                    invoked,
                    acked: None,
                    found: Vec::new(),
                    error: None,
                });
                (book.made.len() - 1, sim.now())
            };
            let found = answer(&client, key, ask).await;
            let mut book = book.borrow_mut();
            book.longest_ns = book.longest_ns.max(sim.now() - began);
            let cost = client.take_op();
            book.cost.read_retries += cost.read_retries;
            book.cost.splits += cost.splits;
            book.cost.merges += cost.merges;
            let now = book.tick();
            let made = &mut book.made[call];
            match found {
                Ok(found) => (made.found, made.acked) = (found, Some(now)),
                Err(error) => {
                    made.error = Some(error);
                    if error == Error::Fabric(farbank_fabric::Error::Fenced) {
                        break;
                    }
                }
            }
        }
        book.borrow_mut().running.remove(&number);
    }
}

async fn answer(client: &Client<Node>, number: u64, ask: Ask) -> Result<Vec<(u64, u64)>, Error> {
    let one = |found: Option<u64>| found.map(|value| (number, value)).into_iter().collect();
    let layout = client.home.config.layout;
    let key = key_of(layout, number);
    match ask {
        Ask::Get => client.get(key).await.map(one),
        Ask::Insert(value) => client.insert(key, value).await.map(one),
        Ask::Remove => client.remove(key).await.map(one),
        Ask::Range => Ok(numbered(layout, client.range(key, RANGE).await?)),
    }
}

/// Whether the calls on every key can be put in an order.
fn judge(start: &[(u64, u64)], made: &[Made], end: Option<&[(u64, u64)]>) -> Result<(), Violation> {
    for key in 0..KEYS {
        let concerned: Vec<Made> = made
            .iter()
            .filter(|made| match made.ask {
                Ask::Range => made.acked.is_some() && made.spans(key),
                _ => made.key == key,
            })
            .cloned()
            .collect();
        let mut calls: Vec<Call> = concerned
            .iter()
            .filter_map(|made| call(made, key))
            .collect();
        if let Some(end) = end {
            let found = end.iter().find(|(other, _)| *other == key);
            let last = made
                .iter()
                .filter_map(|made| made.acked.max(Some(made.invoked)))
                .max();
            calls.push(Call {
                act: Act::Read(found.map(|(_, value)| *value)),
                invoked: last.unwrap_or(0) + 1,
                acked: Some(last.unwrap_or(0) + 2),
            });
        }
        let first = start.iter().find(|(other, _)| *other == key);
        if !explained(&calls, first.map(|(_, value)| *value)) {
            let what = match end {
                Some(end) => format!(
                    "key {key}: no order of its calls explains them; at the end it is {:?}",
                    end.iter().find(|(other, _)| *other == key)
                ),
                None => format!("key {key}: no order of its calls explains them"),
            };
            return Err(told(&concerned, what));
        }
    }
    Ok(())
}

/// Whether there is an order, whatever it leaves behind.
fn explained(calls: &[Call], start: Option<u64>) -> bool {
    let mut ends = vec![None, start];
    ends.extend(calls.iter().filter_map(|call| match call.act {
        Act::Write(to) | Act::Update(_, to) => Some(to),
        Act::Read(_) => None,
    }));
    ends.iter().any(|end| linearizable(calls, start, *end))
}

/// A call as the search sees it. What a call that failed found is not known.
fn call(made: &Made, key: u64) -> Option<Call> {
    let found = made.found.iter().find(|(other, _)| *other == key);
    let found = found.map(|(_, value)| *value);
    let act = match (made.ask, made.acked) {
        (Ask::Get | Ask::Range, None) => return None,
        (Ask::Get | Ask::Range, Some(_)) => Act::Read(found),
        (Ask::Insert(value), Some(_)) => Act::Update(found, Some(value)),
        (Ask::Remove, Some(_)) => Act::Update(found, None),
        (Ask::Insert(value), None) => Act::Write(Some(value)),
        (Ask::Remove, None) => Act::Write(None),
    };
    Some(Call {
        act,
        invoked: made.invoked,
        acked: made.acked,
    })
}

fn told(made: &[Made], what: String) -> Violation {
    let line = |made: &Made| {
        let Made {
            client,
            key,
            ask,
            invoked,
            found,
            ..
        } = made;
        let end = match (made.acked, made.error) {
            (Some(acked), _) => format!("{acked}: {found:?}"),
            (None, Some(error)) => error.to_string(),
            (None, None) => "cut off".into(),
        };
        format!("client {client}, key {key}: {ask:?} from {invoked} to {end}")
    };
    Violation {
        what,
        history: made.iter().map(line).collect(),
    }
}
