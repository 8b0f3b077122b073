//! Adapter of a table to the crash explorer: `farbank check crash --target cceh`.
//!
//! Values are eight bytes and serve as their own identities. An operation is durable when it returns. Keys of the
//! explorer are small numbers. Key 1 is stored as 0 and key 2 as the largest word, so that every run contains the keys
//! a table may reserve. Some keys are stored as words with equal leading and trailing hash bits. So a split may move
//! nothing and be repeated at once, and chains get long.

use std::sync::{Arc, LazyLock};

use farbank_check::Violation;
use farbank_check::target::{
    Change, KeyWrite, OpAnswer, SharedTarget, Target, TargetClient, TargetOp, TargetShape,
    TargetSubject, Value,
};
use farbank_pm::fault::NamedFault;
use farbank_pm::pool::{PoolIdentity, PoolLayout};
use farbank_pm::sim::{Persistency, PoolImage, Sim};
use farbank_pm::situation::Situation;
use farbank_pm::{Off, Ticket, WORD};

use crate::error::{IndexError, OpenError};
use crate::hash::{Hashing, hash};
use crate::index::Index;
use crate::pool_heap::{PoolPlan, TableWorker};
use crate::registry::{TableKind, TablePreset, TableSize};

/// A kind of table with small parts on a small pool, and its hash function. With the published hash, some of the keys
/// have similar hashes.
#[derive(Clone, Copy, Debug)]
pub struct TableTarget(pub TableKind, pub Hashing);

const CHUNK_BYTES: u64 = 4 << 10;
const CHUNKS: u32 = 8;
/// Number of sizes of short pools. A short pool has the chunks of an empty table plus 0 to `SHORT_SIZES - 1`.
const SHORT_SIZES: u64 = 4;
const LAYOUT: PoolLayout = PoolLayout {
    segment_bytes: CHUNK_BYTES,
};
const WORKERS: usize = 3;
const KEYS: u64 = 40;
/// The explorer's keys from here on are stored as words with equal leading and trailing hash bits. Those of the second
/// half agree in more bits.
const ALIKE_FROM: u64 = 25;
/// These words.
static ALIKE: LazyLock<Vec<u64>> = LazyLock::new(|| {
    const HALF: usize = (KEYS - ALIKE_FROM + 1) as usize / 2;
    let alike = |begin: u32, end: u32| {
        let is_alike = move |word: &u64| {
            hash(*word).leading_zeros() >= begin && hash(*word).trailing_zeros() >= end
        };
        (1000..).filter(is_alike)
    };
    let more: Vec<u64> = alike(6, 4).take(HALF).collect();
    let fewer = alike(4, 2).filter(|word| !more.contains(word));
    fewer.take(HALF).chain(more.iter().copied()).collect()
});
/// Identity of every pool, so that the same calls produce the same bytes.
const IDENTITY: PoolIdentity = PoolIdentity {
    id: *b"farbank explorer",
    created_unix_s: 1_700_000_000,
};

impl Target for TableTarget {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn has_command(&self) -> bool {
        true
    }

    /// The papers rely on the stores to one line becoming durable in order, which a medium of single words does not
    /// guarantee.
    fn modes(&self) -> &'static [Persistency] {
        &[Persistency::Adr, Persistency::Eadr, Persistency::Page]
    }

    fn faults(&self) -> &'static [NamedFault] {
        self.0.faults()
    }

    fn situations(&self) -> Vec<Situation> {
        self.0.situations()
    }

    fn faults_in_threads(&self) -> &'static [NamedFault] {
        self.0.faults_in_threads()
    }

    fn shape(&self) -> TargetShape {
        TargetShape {
            pool_bytes: LAYOUT.pool_bytes(CHUNKS),
            keys: KEYS,
            value_bytes: (Value::BYTES_MIN, Value::BYTES_MIN),
            sessions: 2,
            updates: true,
            used_before: true,
            repairs_on_access: true,
            shared_keys: 12,
            ..TargetShape::default()
        }
    }

    /// Every other pool held a table of the same kind before and lost its superblock, so bytes that a new table does
    /// not clear look valid. Every fourth pool is short: the table can grow rarely or not at all.
    fn before(&self, seed: u64) -> PoolImage {
        if seed % 4 == 2 {
            let chunks = self.chunks_least() + (seed / 4 % SHORT_SIZES) as u32;
            return TargetShape {
                pool_bytes: LAYOUT.pool_bytes(chunks.min(CHUNKS)),
                ..self.shape()
            }
            .image(seed);
        }
        let image = self.shape().image(seed);
        if seed.is_multiple_of(2) {
            return image;
        }
        let sim = Sim::from_image(image.clone(), Persistency::Eadr);
        let mut older = self
            .create(sim.clone(), 0)
            .expect("the pool fits the table");
        for key in 1..=KEYS {
            // A fault under test may make the operation fail.
            let _ = older.apply(0, &TargetOp::Write(put(key)));
        }
        let mut left = sim.visible();
        for at in (0..LAYOUT.first_segment()).step_by(WORD).map(Off) {
            left.set_word(at, image.word(at));
        }
        left
    }

    fn create(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        let plan = PoolPlan {
            chunk_bytes: CHUNK_BYTES,
            contexts: WORKERS as u32 + 1,
            identity: Some(IDENTITY),
            hashing: self.1,
        };
        let table = self
            .0
            .create(sim, &plan, TableSize::Small, TablePreset::Farbank);
        subject(table)
    }

    fn open(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        subject(self.0.open(sim))
    }

    fn share(&self, sim: Sim, _now_ms: u64) -> Result<Box<dyn SharedTarget>, Violation> {
        let table = self.0.open(sim)?;
        Ok(Box::new(SharedTableSubject(table.into())))
    }
}

impl TableTarget {
    /// Returns the least number of chunks for an empty table.
    fn chunks_least(&self) -> u32 {
        let is_enough = |chunks: &u32| {
            let image = PoolImage::zeroed(LAYOUT.pool_bytes(*chunks));
            let sim = Sim::from_image(image, Persistency::Eadr);
            self.create(sim, 0).is_ok()
        };
        (1..CHUNKS).find(is_enough).unwrap_or(CHUNKS)
    }
}

fn subject(table: Result<Box<dyn Index>, OpenError>) -> Result<Box<dyn TargetSubject>, Violation> {
    let table: Arc<dyn Index> = table?.into();
    Ok(Box::new(SharedTableSubject(table)).into_subject())
}

/// Returns the table's key for a key of the explorer.
fn key_of(key: u64) -> u64 {
    match key {
        1 => 0,
        2 => u64::MAX,
        ALIKE_FROM..=KEYS => ALIKE[(key - ALIKE_FROM) as usize],
        _ => key,
    }
}

fn name_of(key: u64) -> u64 {
    match key {
        0 => 1,
        u64::MAX => 2,
        _ => match ALIKE.iter().position(|alike| *alike == key) {
            Some(n) => ALIKE_FROM + n as u64,
            None => key,
        },
    }
}

fn put(key: u64) -> KeyWrite {
    KeyWrite::Put {
        key,
        value: stored(key),
        expires_ms: 0,
    }
}

fn stored(value: u64) -> Value {
    Value {
        id: value,
        bytes: Value::BYTES_MIN,
    }
}

struct SharedTableSubject(Arc<dyn Index>);

impl SharedTarget for SharedTableSubject {
    fn client(&self) -> Box<dyn TargetClient> {
        Box::new(TableClient::of(&self.0))
    }

    fn into_subject(self: Box<Self>) -> Box<dyn TargetSubject> {
        let clients = (0..2).map(|_| TableClient::of(&self.0)).collect();
        Box::new(TableSubject {
            table: self.0,
            clients,
        })
    }
}

/// A worker with its table.
struct TableClient {
    table: Arc<dyn Index>,
    worker: TableWorker,
}

impl TableClient {
    fn of(table: &Arc<dyn Index>) -> TableClient {
        TableClient {
            table: Arc::clone(table),
            worker: table.worker().expect("the plan has enough contexts"),
        }
    }

    fn run(&mut self, op: &TargetOp) -> Result<OpAnswer, IndexError> {
        match op {
            TargetOp::Write(KeyWrite::Put { key, value, .. }) => {
                self.exchange(key_of(*key), value.id)?;
                Ok(OpAnswer::Done)
            }
            TargetOp::Write(KeyWrite::Delete { key }) => {
                let removed = self.table.remove(&mut self.worker, key_of(*key))?;
                Ok(OpAnswer::Was(removed.is_some()))
            }
            TargetOp::Update {
                key,
                change: Change::Put(value),
            } => self.exchange(key_of(*key), value.id),
            TargetOp::Get { key, .. } => {
                let found = self.table.get(&mut self.worker, key_of(*key))?;
                Ok(OpAnswer::Found(found.map(stored)))
            }
            TargetOp::Update { .. }
            | TargetOp::Group(_)
            | TargetOp::FlushAll
            | TargetOp::Swap { .. } => {
                unreachable!("the shape has none of these")
            }
        }
    }

    /// Stores a value and returns the old one. Retries when a concurrent insert or remove interferes.
    fn exchange(&mut self, key: u64, value: u64) -> Result<OpAnswer, IndexError> {
        loop {
            if let Some(old) = self.table.update(&mut self.worker, key, value)? {
                return Ok(OpAnswer::Found(Some(stored(old))));
            }
            if self.table.insert(&mut self.worker, key, value)?.is_none() {
                return Ok(OpAnswer::Found(None));
            }
        }
    }
}

impl TargetClient for TableClient {
    fn apply(&mut self, op: &TargetOp) -> Result<OpAnswer, Violation> {
        match self.run(op) {
            Err(IndexError::Full { .. } | IndexError::Crowded { .. }) => Ok(OpAnswer::Refused),
            other => other.map_err(Violation::from),
        }
    }

    fn commit(&mut self) -> Result<Ticket, Violation> {
        Ok(Ticket::DURABLE)
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Violation> {
        Ok(ticket == Ticket::DURABLE)
    }
}

struct TableSubject {
    table: Arc<dyn Index>,
    clients: Vec<TableClient>,
}

impl TargetSubject for TableSubject {
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, Violation> {
        self.clients[session].apply(op)
    }

    fn contents(&mut self) -> Result<Vec<(u64, Value)>, Violation> {
        let mut found = Vec::new();
        let client = &mut self.clients[0];
        let each = self.table.each(&mut client.worker, &mut |key, value| {
            found.push((name_of(key), stored(value)));
        });
        each.map_err(Violation::from)?;
        for (key, value) in &found {
            let got = client.table.get(&mut client.worker, key_of(*key));
            if got != Ok(Some(value.id)) {
                return Err(Violation::new(format!(
                    "the scan finds key {key} with {value:?}, but get returns {got:?}"
                )));
            }
        }
        Ok(found)
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.table.check().map_err(Violation::from)
    }
}
