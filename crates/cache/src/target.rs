//! The cache as the explorers see it: `check crash --target mdb`.
//!
//! A pool of a few small pages, so that evictions, merges, pages that change their class, and recovery meet in every
//! run. A cache may forget ([`Shape::forgets`]): what is judged is that nothing it shows is old, deleted or expired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_check::target::{
    Answer, Client, Op, Shape, Shared, Subject, Target, Value as Stored, View as Seen, Write,
};
use farbank_kv::store::{Change, Error, Item, Key, Ops, Session, Value, View};
use farbank_pm::fault::Named;
use farbank_pm::pool::Identity;
use farbank_pm::sim::{Persistency, Sim};
use farbank_pm::{Medium, Ticket};

use crate::api::{Cache, Door};
use crate::config::Config;
use crate::near::MetadataRoom;

/// The cache on ten pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct MdbTarget;

const PAGE_BYTES: u64 = 4 << 10;
const SESSIONS: usize = 2;
/// Every pool's, so that the same calls make the same bytes.
const IDENTITY: Identity = Identity {
    id: *b"farbank explorer",
    created_unix_s: 1_700_000_000,
};

impl Target for MdbTarget {
    fn name(&self) -> &str {
        "mdb"
    }

    fn has_command(&self) -> bool {
        true
    }

    fn shape(&self) -> Shape {
        Shape {
            pool_bytes: 8192 + 7 * PAGE_BYTES,
            keys: 16,
            value_bytes: (8, 1_500),
            sessions: SESSIONS,
            deletes: true,
            updates: true,
            expiry: true,
            flush_all: true,
            cleans: true,
            used_before: true,
            forgets: true,
            ..Shape::default()
        }
    }

    fn faults(&self) -> &'static [Named] {
        &crate::faults::ALL
    }

    fn faults_in_threads(&self) -> &'static [Named] {
        &crate::faults::IN_THREADS
    }

    fn create(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn Subject>, String> {
        let time = Arc::new(AtomicU64::new(now_ms));
        let cache = Cache::create_as(sim, PAGE_BYTES, IDENTITY, config(&time), near);
        let cache = cache.map_err(|e| e.to_string())?;
        Ok(MdbSubject::over(cache, time))
    }

    fn open(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn Subject>, String> {
        let MdbShared { cache, time } = open(sim, now_ms)?;
        Ok(MdbSubject::over(cache, time))
    }

    fn share(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn Shared>, String> {
        Ok(Box::new(open(sim, now_ms)?))
    }
}

fn open(sim: Sim, now_ms: u64) -> Result<MdbShared<Sim>, String> {
    let time = Arc::new(AtomicU64::new(now_ms));
    let cache = Cache::open_on(sim, config(&time), near).map_err(|e| e.to_string())?;
    Ok(MdbShared { cache, time })
}

/// Metadata needs no durability: in a simulation that keeps everything at once nothing of it is explored.
fn near(room: MetadataRoom) -> std::io::Result<Sim> {
    Ok(Sim::new(room.bytes, Persistency::Eadr))
}

fn config(time: &Arc<AtomicU64>) -> Config {
    let time = Arc::clone(time);
    Config {
        clock: Arc::new(move || time.load(Relaxed)),
        tended: false,
        stash_slots: 2,
        slot_bytes_min: 128,
        slot_factor: 2.0,
        ..Config::default()
    }
}

/// The cache for one caller.
struct MdbSubject<M: Medium> {
    /// Gone before the cache is.
    clients: Vec<MdbClient<M>>,
    cache: Cache<M, Sim>,
    time: Arc<AtomicU64>,
}

impl<M: Medium> MdbSubject<M> {
    fn over(cache: Cache<M, Sim>, time: Arc<AtomicU64>) -> Box<dyn Subject> {
        Box::new(MdbSubject {
            clients: (0..SESSIONS).map(|_| MdbClient(cache.door())).collect(),
            cache,
            time,
        })
    }
}

/// The cache for several threads.
struct MdbShared<M: Medium> {
    cache: Cache<M, Sim>,
    time: Arc<AtomicU64>,
}

impl<M: Medium> Shared for MdbShared<M> {
    fn client(&self) -> Box<dyn Client> {
        Box::new(MdbClient(self.cache.door()))
    }

    fn clean(&self) -> Result<(), String> {
        self.cache.tidy().map(|_| ()).map_err(|e| e.to_string())
    }

    fn alone(self: Box<Self>) -> Box<dyn Subject> {
        MdbSubject::over(self.cache, self.time)
    }
}

/// One session of the cache.
struct MdbClient<M: Medium>(Door<M, Sim>);

impl<M: Medium> MdbClient<M> {
    fn get(&mut self, key: u64) -> Result<Option<Stored>, String> {
        let mut out = Vec::new();
        let key = key.to_le_bytes();
        let found = self
            .0
            .get(key_of(&key), View::Durable, &mut out, &mut |_, _| {})
            .map_err(|e| e.to_string())?;
        found.then(|| Stored::decode(&out)).transpose()
    }

    fn write(&mut self, write: &Write) -> Result<Answer, String> {
        let done = match write {
            Write::Put {
                key,
                value,
                expires_ms,
            } => {
                let bytes = value.encode();
                let value = Value {
                    bytes: &bytes,
                    expires_ms: *expires_ms,
                    ..Value::default()
                };
                self.0.put(key_of(&key.to_le_bytes()), value).map(|_| ())
            }
            Write::Delete { key } => self.0.delete(key_of(&key.to_le_bytes())).map(|_| ()),
        };
        answer(done.map(|()| Answer::Done))
    }

    fn update(&mut self, key: u64, value: Stored) -> Result<Answer, String> {
        let mut old = Ok(None);
        let mut decide = |item: Option<Item<'_>>| {
            old = item.map(|item| Stored::decode(item.bytes)).transpose();
            Change::Put {
                bytes: value.encode(),
                expires_ms: 0,
                flags: 0,
                kind: 0,
            }
        };
        let done = self.0.update(key_of(&key.to_le_bytes()), &mut decide);
        let old = old?;
        answer(done.map(|_| Answer::Found(old)))
    }
}

impl<M: Medium> Client for MdbClient<M> {
    fn apply(&mut self, op: &Op) -> Result<Answer, String> {
        match op {
            Op::Write(write) => self.write(write),
            Op::Group(_) => Err("the cache writes no groups whole".into()),
            Op::Update { key, value } => self.update(*key, *value),
            Op::Get { key, view } => {
                debug_assert!(matches!(view, Seen::Durable | Seen::Own));
                Ok(Answer::Found(self.get(*key)?))
            }
            Op::FlushAll => answer(self.0.flush_all().map(|()| Answer::Done)),
        }
    }

    fn commit(&mut self) -> Result<Ticket, String> {
        self.0.commit().map_err(|e| e.to_string())
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, String> {
        self.0.durable(ticket).map_err(|e| e.to_string())
    }
}

fn key_of(bytes: &[u8; 8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn answer(done: Result<Answer, Error>) -> Result<Answer, String> {
    match done {
        Ok(answer) => Ok(answer),
        Err(Error::Full) => Ok(Answer::Refused),
        Err(error) => Err(error.to_string()),
    }
}

impl<M: Medium> Subject for MdbSubject<M> {
    fn apply(&mut self, session: usize, op: &Op) -> Result<Answer, String> {
        self.clients[session].apply(op)
    }

    fn commit(&mut self, session: usize) -> Result<Ticket, String> {
        self.clients[session].commit()
    }

    fn durable(&mut self, session: usize, ticket: Ticket) -> Result<bool, String> {
        self.clients[session].durable(ticket)
    }

    fn contents(&mut self) -> Result<Vec<(u64, Stored)>, String> {
        let (mut names, mut cursor) = (Vec::new(), 0);
        loop {
            let mut each = |key: &[u8], _: &_| names.push(key.to_vec());
            let scanned = self.clients[0].0.scan(0, cursor, usize::MAX, &mut each);
            cursor = scanned.map_err(|e| e.to_string())?;
            if cursor == 0 {
                break;
            }
        }
        let mut contents = Vec::new();
        for name in names {
            let name: [u8; 8] = name
                .try_into()
                .map_err(|k| format!("a key nobody wrote: {k:?}"))?;
            let key = u64::from_le_bytes(name);
            if let Some(value) = self.clients[0].get(key)? {
                contents.push((key, value));
            }
        }
        Ok(contents)
    }

    fn check(&mut self) -> Result<(), String> {
        for client in &mut self.clients {
            client.0.rest();
        }
        self.cache.verify()
    }

    fn clean(&mut self) -> Result<(), String> {
        self.cache.tidy().map(|_| ()).map_err(|e| e.to_string())
    }

    fn set_time(&mut self, now_ms: u64) {
        self.time.store(now_ms, Relaxed);
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        let MdbSubject { clients, cache, .. } = *self;
        drop(clients);
        cache.close().map(|_| ()).map_err(|e| e.to_string())
    }
}
