//! Contenders: volatile tables in DRAM. Keys are 16 bytes stored inline, values are boxed.

use std::hash::BuildHasher;
use std::sync::RwLock;

use farbank_pm::sync::unpoisoned;

use crate::mix::Name;
use crate::run::{Contender, Outcome, Peer, PeerSession, Settings, run};

type BoxedBytes = Box<[u8]>;
type Hasher = hashbrown::DefaultHashBuilder;

pub(crate) fn all() -> Vec<Contender> {
    let contender = |name, what, run| Contender { name, what, run };
    vec![
        contender("papaya", "papaya::HashMap, sized for its keys", run_papaya),
        contender(
            "dashmap",
            "dashmap::DashMap, sized for its keys",
            run_dashmap,
        ),
        contender("scc", "scc::HashMap, sized for its keys", run_scc),
        contender(
            "sharded",
            "256 x RwLock<hashbrown::HashMap>, sized for its keys",
            run_sharded,
        ),
    ]
}

fn run_papaya(settings: &Settings<'_>) -> Result<Outcome, String> {
    let keys = settings.mix.keys as usize;
    let map = papaya::HashMap::builder()
        .capacity(keys)
        .hasher(Hasher::default())
        .build();
    run(&Papaya(map), settings)
}

fn run_dashmap(settings: &Settings<'_>) -> Result<Outcome, String> {
    let keys = settings.mix.keys as usize;
    let map = dashmap::DashMap::with_capacity_and_hasher(keys, Hasher::default());
    run(&Dash(map), settings)
}

fn run_scc(settings: &Settings<'_>) -> Result<Outcome, String> {
    let keys = settings.mix.keys as usize;
    let map = scc::HashMap::with_capacity_and_hasher(keys, Hasher::default());
    run(&Scc(map), settings)
}

fn run_sharded(settings: &Settings<'_>) -> Result<Outcome, String> {
    let each = settings.mix.keys as usize / SHARDS * 9 / 8;
    let shards = (0..SHARDS)
        .map(|_| {
            RwLock::new(hashbrown::HashMap::with_capacity_and_hasher(
                each,
                Hasher::default(),
            ))
        })
        .collect();
    run(
        &Sharded {
            shards,
            choose: Hasher::default(),
        },
        settings,
    )
}

struct Papaya(papaya::HashMap<Name, BoxedBytes, Hasher>);

impl Peer for Papaya {
    fn session(&self) -> impl PeerSession + '_ {
        PapayaSession(&self.0)
    }

    fn count(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
}

struct PapayaSession<'a>(&'a papaya::HashMap<Name, BoxedBytes, Hasher>);

impl PeerSession for PapayaSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        self.0.pin().insert(*name, value.into());
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        match self.0.pin().get(name) {
            Some(value) => out.extend_from_slice(value),
            None => return false,
        }
        true
    }
}

struct Dash(dashmap::DashMap<Name, BoxedBytes, Hasher>);

impl Peer for Dash {
    fn session(&self) -> impl PeerSession + '_ {
        DashSession(&self.0)
    }

    fn count(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
}

struct DashSession<'a>(&'a dashmap::DashMap<Name, BoxedBytes, Hasher>);

impl PeerSession for DashSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        self.0.insert(*name, value.into());
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        match self.0.get(name) {
            Some(value) => out.extend_from_slice(&value),
            None => return false,
        }
        true
    }
}

struct Scc(scc::HashMap<Name, BoxedBytes, Hasher>);

impl Peer for Scc {
    fn session(&self) -> impl PeerSession + '_ {
        SccSession(&self.0)
    }

    fn count(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
}

struct SccSession<'a>(&'a scc::HashMap<Name, BoxedBytes, Hasher>);

impl PeerSession for SccSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        self.0.upsert_sync(*name, value.into());
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        self.0
            .read_sync(name, |_, value| out.extend_from_slice(value))
            .is_some()
    }
}

const SHARDS: usize = 256;

type Shard = RwLock<hashbrown::HashMap<Name, BoxedBytes, Hasher>>;

struct Sharded {
    shards: Vec<Shard>,
    choose: Hasher,
}

impl Peer for Sharded {
    fn session(&self) -> impl PeerSession + '_ {
        ShardedSession(self)
    }

    fn count(&self) -> Option<u64> {
        let len = |shard: &Shard| unpoisoned(shard.read()).len() as u64;
        Some(self.shards.iter().map(len).sum())
    }
}

struct ShardedSession<'a>(&'a Sharded);

impl ShardedSession<'_> {
    fn shard(&self, name: &Name) -> &Shard {
        &self.0.shards[self.0.choose.hash_one(name) as usize % SHARDS]
    }
}

impl PeerSession for ShardedSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        let boxed = value.into();
        let mut shard = unpoisoned(self.shard(name).write());
        let old = shard.insert(*name, boxed);
        drop(shard);
        drop(old);
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        match unpoisoned(self.shard(name).read()).get(name) {
            Some(value) => out.extend_from_slice(value),
            None => return false,
        }
        true
    }
}
