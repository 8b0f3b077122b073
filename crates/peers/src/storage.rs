//! Contenders: storage engines on tmpfs. Each set is durable, in the engine's own terms, when it returns.

use std::path::Path;

use crate::mix::Name;
use crate::run::{Contender, Outcome, Peer, PeerSession, Settings, run};

pub(crate) fn all() -> Vec<Contender> {
    let contender = |name, what, run| Contender { name, what, run };
    vec![
        contender("rocksdb", "RocksDB, WAL synced for each set", run_rocksdb),
        contender("fjall", "fjall, journal synced for each set", run_fjall),
        contender("lmdb", "LMDB, one synced transaction per set", run_lmdb),
        contender("redb", "redb, one immediate transaction per set", run_redb),
    ]
}

fn on_tmpfs(run: impl FnOnce(&Path) -> Result<Outcome, String>) -> Result<Outcome, String> {
    let folder = tempfile::tempdir_in("/dev/shm").map_err(|e| e.to_string())?;
    run(folder.path())
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn run_rocksdb(settings: &Settings<'_>) -> Result<Outcome, String> {
    on_tmpfs(|path| {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.set_compression_type(rocksdb::DBCompressionType::None);
        options.set_write_buffer_size(128 << 20);
        let mut table = rocksdb::BlockBasedOptions::default();
        table.set_bloom_filter(10.0, false);
        table.set_block_cache(&rocksdb::Cache::new_lru_cache(1 << 30).map_err(failed)?);
        options.set_block_based_table_factory(&table);
        run(
            &Rocks(rocksdb::DB::open(&options, path).map_err(failed)?),
            settings,
        )
    })
}

struct Rocks(rocksdb::DB);

impl Peer for Rocks {
    fn session(&self) -> impl PeerSession + '_ {
        let mut how = rocksdb::WriteOptions::default();
        how.set_sync(true);
        RocksSession(&self.0, how)
    }

    fn count(&self) -> Option<u64> {
        None
    }
}

struct RocksSession<'a>(&'a rocksdb::DB, rocksdb::WriteOptions);

impl PeerSession for RocksSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        self.0.put_opt(name, value, &self.1).expect("RocksDB sets");
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        let value = self.0.get_pinned(name).expect("RocksDB gets");
        value
            .as_deref()
            .map(|value| out.extend_from_slice(value))
            .is_some()
    }
}

fn run_fjall(settings: &Settings<'_>) -> Result<Outcome, String> {
    on_tmpfs(|path| {
        let keyspace = fjall::Config::new(path)
            .manual_journal_persist(true)
            .open()
            .map_err(failed)?;
        let options = fjall::PartitionCreateOptions::default();
        let partition = keyspace.open_partition("peers", options).map_err(failed)?;
        run(
            &Fjall {
                keyspace,
                partition,
            },
            settings,
        )
    })
}

struct Fjall {
    keyspace: fjall::Keyspace,
    partition: fjall::PartitionHandle,
}

impl Peer for Fjall {
    fn session(&self) -> impl PeerSession + '_ {
        FjallSession(self)
    }

    fn count(&self) -> Option<u64> {
        None
    }
}

struct FjallSession<'a>(&'a Fjall);

impl PeerSession for FjallSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        self.0.partition.insert(name, value).expect("fjall sets");
        self.0
            .keyspace
            .persist(fjall::PersistMode::SyncData)
            .expect("fjall syncs");
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        let value = self.0.partition.get(name).expect("fjall gets");
        value.map(|value| out.extend_from_slice(&value)).is_some()
    }
}

type LmdbBytes = heed::Database<heed::types::Bytes, heed::types::Bytes>;

fn run_lmdb(settings: &Settings<'_>) -> Result<Outcome, String> {
    on_tmpfs(|path| {
        let mut options = heed::EnvOpenOptions::new();
        let options = options.map_size(16 << 30);
        #[expect(unsafe_code, reason = "LMDB's open is unsafe")]
        // SAFETY: the environment must not be opened twice or changed by another process. It is in a folder that this
        // process has just created, and is opened once.
        let env = unsafe { options.open(path) }.map_err(failed)?;
        let mut txn = env.write_txn().map_err(failed)?;
        let base = env.create_database(&mut txn, None).map_err(failed)?;
        txn.commit().map_err(failed)?;
        run(&Lmdb { env, base }, settings)
    })
}

struct Lmdb {
    env: heed::Env,
    base: LmdbBytes,
}

impl Peer for Lmdb {
    fn session(&self) -> impl PeerSession + '_ {
        LmdbSession(self)
    }

    fn count(&self) -> Option<u64> {
        None
    }
}

struct LmdbSession<'a>(&'a Lmdb);

impl PeerSession for LmdbSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        let mut txn = self.0.env.write_txn().expect("LMDB begins");
        self.0.base.put(&mut txn, name, value).expect("LMDB sets");
        txn.commit().expect("LMDB commits");
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        let txn = self.0.env.read_txn().expect("LMDB begins");
        let value = self.0.base.get(&txn, name).expect("LMDB gets");
        value.map(|value| out.extend_from_slice(value)).is_some()
    }
}

const REDB_TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("peers");

fn run_redb(settings: &Settings<'_>) -> Result<Outcome, String> {
    on_tmpfs(|path| {
        let base = redb::Database::create(path.join("redb")).map_err(failed)?;
        let txn = base.begin_write().map_err(failed)?;
        txn.open_table(REDB_TABLE).map_err(failed)?;
        txn.commit().map_err(failed)?;
        run(&Redb(base), settings)
    })
}

struct Redb(redb::Database);

impl Peer for Redb {
    fn session(&self) -> impl PeerSession + '_ {
        RedbSession(&self.0)
    }

    fn count(&self) -> Option<u64> {
        None
    }
}

struct RedbSession<'a>(&'a redb::Database);

impl PeerSession for RedbSession<'_> {
    fn set(&mut self, name: &Name, value: &[u8]) {
        let txn = self.0.begin_write().expect("redb begins");
        {
            let mut table = txn.open_table(REDB_TABLE).expect("redb has the table");
            table.insert(&name[..], value).expect("redb sets");
        }
        txn.commit().expect("redb commits");
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        let txn = self.0.begin_read().expect("redb begins");
        let table = txn.open_table(REDB_TABLE).expect("redb has the table");
        let value = table.get(&name[..]).expect("redb gets");
        value
            .map(|value| out.extend_from_slice(value.value()))
            .is_some()
    }
}
