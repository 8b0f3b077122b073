//! `farbank pool`: creates, inspects, checks and dumps pools. `crate::backup`: backups.
//!
//! `info` only reads the two superblock copies, so it also works while a server has the pool open. The other
//! subcommands open the pool as a server does: recovery repairs it after a crash, and no other process may have it
//! open.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use farbank::Db;
use farbank::store::{DATABASES, Error, Key, ReadView, Session, Stats, StoredItem};
use farbank_cache::{AnyCache, CacheHistory};
use farbank_kv::{AnyKv, Config, PoolHistory};
use farbank_pm::media::{AnyMedium, file_id};
use farbank_pm::pool::{PoolRoot, PoolSummary, summary};
use farbank_server::resp::request;

use crate::backup::{BackupArgs, ImportArgs, RestoreArgs};
use crate::common::existing::{COPY, close, nothing_at, open_existing};
use crate::common::place::{
    PoolPlace, ReadArgs, StoreEngine, not_opened, refused, superblocks, warn,
};
use crate::common::progress::CommandProgress;
use crate::common::{Failure, json, size};

const EXAMPLES: &str = "\
Examples:
  farbank pool create /mnt/pmem0/bank --size 64gb
      creates an empty pool for a server to open later
  farbank pool info
      describes ./farbank.pool, even while a server has it open
  farbank pool scrub /var/lib/farbank/pool
      reads every value and reports what is damaged, and where
  farbank pool dump old.pool | redis-cli --pipe
      copies the keys into another server
  farbank pool backup localhost:6379 monday.rdb
      backs up a running server, as it is at this moment
  farbank pool restore monday.rdb new.pool
      makes a pool from a backup
  farbank pool import /var/lib/redis/dump.rdb new.pool
      takes over the data of a Redis server";

/// Keys that one scan call visits.
const STRIDE: usize = 256;

/// Create, inspect, check, dump, back up or load a pool.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum PoolCommand {
    /// Create an empty pool and exit.
    Create(CreateArgs),
    /// Print a pool's sizes, age and how it was closed. Changes nothing and needs no lock.
    Info(PoolArgs),
    /// Open a pool, run recovery if it was not closed cleanly, and verify the counters of every segment.
    Check(OpenArgs),
    /// Like check, and also read every value and verify its checksum.
    Scrub(OpenArgs),
    /// Write every key and value to standard output.
    Dump(DumpArgs),
    /// Write a backup of a running server, or of a closed pool, to an RDB file.
    Backup(BackupArgs),
    /// Make a pool from a backup.
    Restore(RestoreArgs),
    /// Load data of Redis into a pool: an RDB file or an append-only file.
    Import(ImportArgs),
}

/// Options of `pool info`, which `pool check` and `pool scrub` share.
#[derive(Args)]
pub(crate) struct PoolArgs {
    /// The pool: a file, or a devdax device.
    #[arg(value_name = "PATH", default_value = "./farbank.pool")]
    path: PathBuf,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Accept a file system that is unsafe for pools: a shared one, or one that does not sync.
    #[arg(long)]
    accept_file_system: bool,
}

/// Options of `pool check` and `pool scrub`.
#[derive(Args)]
pub(crate) struct OpenArgs {
    #[command(flatten)]
    at: PoolArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

/// Options of `pool create`.
#[derive(Args)]
pub(crate) struct CreateArgs {
    /// Path of the new pool. It must not exist yet, unless it is a devdax device.
    #[arg(value_name = "PATH", default_value = "./farbank.pool")]
    path: PathBuf,
    #[command(flatten)]
    place: PoolPlace,
    /// Overwrite the data on a device. Files are never overwritten.
    #[arg(long)]
    force: bool,
}

/// Options of `pool dump`.
#[derive(Args)]
pub(crate) struct DumpArgs {
    /// The pool: a file, or a devdax device.
    #[arg(value_name = "PATH", default_value = "./farbank.pool")]
    path: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value = "resp")]
    format: DumpFormat,
    /// Accept a file system that is unsafe for pools: a shared one, or one that does not sync.
    #[arg(long)]
    accept_file_system: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

/// Output format of `pool dump`.
#[derive(Clone, Copy, ValueEnum)]
enum DumpFormat {
    /// Redis commands that store the keys again, for `redis-cli --pipe`.
    Resp,
    /// One JSON object per line: db, key, value, expires_ms. Bytes beyond ASCII are escaped as \u00XX.
    Json,
}

impl PoolCommand {
    /// Runs the subcommand.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            PoolCommand::Create(create) => create.run(),
            PoolCommand::Info(at) => at.info(),
            PoolCommand::Check(opened) => opened.check(false),
            PoolCommand::Scrub(opened) => opened.check(true),
            PoolCommand::Dump(dump) => dump.run(),
            PoolCommand::Backup(backup) => backup.run(),
            PoolCommand::Restore(restore) => restore.run(),
            PoolCommand::Import(import) => import.run(),
        }
    }
}

impl CreateArgs {
    fn run(mut self) -> Result<(), Failure> {
        self.place.find_engine(&self.path);
        self.place.check()?;
        self.place.force = self.force;
        let (medium, name) = self.place.make(&self.path)?;
        let (kind, bytes) = (medium.caps().kind.name(), medium.bytes());
        warn(&self.path, medium.caps());
        self.fill(medium)?;
        name.publish().map_err(|error| refused(&error))?;
        println!(
            "pool {}: {} in segments of {}, medium {kind}, empty",
            self.path.display(),
            size::human(bytes),
            size::human(self.place.segment_bytes())
        );
        Ok(())
    }

    /// Makes the pool of an empty store on `medium`.
    fn fill(&self, medium: AnyMedium) -> Result<(), Failure> {
        let segment_bytes = self.place.segment_bytes();
        let closed = match self.place.engine() {
            StoreEngine::Kv => AnyKv::create(medium, segment_bytes, Config::default())
                .map_err(|error| not_opened(&self.path, error, false))?
                .close(),
            StoreEngine::Mdb => {
                let config = farbank_cache::Config::default();
                AnyCache::create(medium, segment_bytes, config)
                    .map_err(|error| not_opened(&self.path, error, false))?
                    .close()
            }
        };
        closed.map_err(Failure::failed)
    }
}

/// Facts about a pool's past, from the words of its engine.
enum EngineHistory {
    Store(PoolHistory),
    Cache(CacheHistory),
}

impl EngineHistory {
    fn of(root: &PoolRoot) -> EngineHistory {
        match CacheHistory::of(root) {
            Some(cache) => EngineHistory::Cache(cache),
            None => EngineHistory::Store(PoolHistory::of(root)),
        }
    }

    fn engine(&self) -> &'static str {
        match self {
            EngineHistory::Store(_) => "kv",
            EngineHistory::Cache(_) => "mdb",
        }
    }

    /// Returns whether the last close was clean, and the number of opens.
    fn opens(&self) -> (bool, u64) {
        match self {
            EngineHistory::Store(past) => (past.closed_cleanly, past.opened),
            EngineHistory::Cache(past) => (past.closed_cleanly, past.opened),
        }
    }

    /// Describes the last close and what the next open reads.
    fn next_open(&self) -> &'static str {
        match self {
            EngineHistory::Cache(past) if past.closed_cleanly => "closed cleanly",
            EngineHistory::Store(past) if past.closed_cleanly => {
                "closed cleanly: the next open loads the index snapshot"
            }
            EngineHistory::Store(past) if past.has_checkpoint => {
                "in use, or not closed cleanly: the next open loads the latest checkpoint of the index and reads the records \
                 after it"
            }
            _ => "in use, or not closed cleanly: the next open reads the whole pool",
        }
    }

    /// Returns the databases whose records have other numbers.
    fn exchanged_databases(&self) -> Vec<u8> {
        match self {
            EngineHistory::Store(past) => (0..DATABASES as u8)
                .filter(|db| past.databases.stored(*db) != *db)
                .collect(),
            EngineHistory::Cache(_) => Vec::new(),
        }
    }
}

impl PoolArgs {
    fn info(&self) -> Result<(), Failure> {
        let PoolSummary {
            version,
            segment_bytes,
            segments,
            pool_bytes,
            created_unix_s,
            needs_repair: mended_at_open,
            root,
            in_use_as,
            ..
        } = self.summary()?;
        let own = File::open(&self.path).ok().and_then(|file| file_id(&file));
        let copy = in_use_as.zip(own).is_some_and(|(a, b)| !a.may_be(b));
        let past = EngineHistory::of(&root);
        let engine = past.engine();
        let (closed_cleanly, opened) = past.opens();
        let exchanged = past.exchanged_databases();
        if self.json {
            let object = serde_json::json!({
                "pool": self.path, "format_version": version, "engine": engine, "pool_bytes": pool_bytes,
                "segment_bytes": segment_bytes, "segments": segments, "created_unix_s": created_unix_s, "opened": opened,
                "closed_cleanly": closed_cleanly, "superblock_whole": !mended_at_open,
                "copy": copy, "exchanged_databases": exchanged,
            });
            println!("{object}");
            return Ok(());
        }
        let made = SystemTime::UNIX_EPOCH + Duration::from_secs(created_unix_s);
        let age = SystemTime::now().duration_since(made).unwrap_or_default();
        println!(
            "pool {}, format version {version}, engine {engine}",
            self.path.display()
        );
        println!(
            "{} in {segments} segments of {}",
            size::human(pool_bytes),
            size::human(segment_bytes)
        );
        println!(
            "created {} hours ago, opened {opened} times",
            age.as_secs() / 3600
        );
        println!("{}", past.next_open());
        if !exchanged.is_empty() {
            let numbers: Vec<_> = exchanged.iter().map(u8::to_string).collect();
            println!("databases exchanged by SWAPDB: {}", numbers.join(" "));
        }
        if copy {
            println!("warning: {COPY}");
        }
        if mended_at_open {
            println!("one copy of the superblock is damaged or older; the next open repairs it");
        }
        Ok(())
    }

    fn summary(&self) -> Result<PoolSummary, Failure> {
        let name = self.path.display();
        let copies = superblocks(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => nothing_at(&self.path),
            ErrorKind::UnexpectedEof => Failure::failed(format!(
                "{name}: not a pool: the file has {} bytes, which is shorter than a superblock",
                std::fs::metadata(&self.path).map_or(0, |file| file.len())
            )),
            _ => Failure::failed(format!("{name}: cannot read the superblock: {error}")),
        })?;
        summary(&copies).map_err(|error| Failure::failed(format!("{name}: {error}")))
    }
}

impl OpenArgs {
    fn check(&self, read_all: bool) -> Result<(), Failure> {
        let PoolArgs {
            path,
            json,
            accept_file_system,
        } = &self.at;
        let db = open_existing(path, *accept_file_system, &self.reading)?;
        let (opened, stats) = (db.store().opened().clone(), db.store().stats());
        let copy = db.is_copy();
        let mut damage = opened.damage.clone();
        let read = match read_all {
            true => Some(read_values(&db, stats.pool.live_bytes, &mut damage)?),
            false => None,
        };
        let sum = db.verify().err();
        damage.extend(sum.map(|what| format!("the counters do not add up: {what}")));
        close(db)?;
        if *json {
            let object = serde_json::json!({
                "pool": path, "holds": damage.is_empty(), "keys": stats.keys.iter().sum::<u64>(),
                "live_bytes": stats.pool.live_bytes, "value_bytes_read": read.unwrap_or(0),
                "records_scanned": opened.records_scanned,
                "keys_checkpointed": opened.keys_checkpointed, "was_closed_cleanly": opened.clean,
                "copy": copy,
                "damage": damage,
            });
            println!("{object}");
        } else {
            self.at.print_result(&stats, read, &damage);
        }
        match damage.len() {
            0 => Ok(()),
            n => Err(Failure::failed(format!(
                "the pool is damaged in {n} places"
            ))),
        }
    }
}

impl PoolArgs {
    fn print_result(&self, stats: &Stats, read: Option<u64>, damage: &[String]) {
        for line in damage {
            println!("damage: {line}");
        }
        let (path, keys) = (self.path.display(), stats.keys.iter().sum::<u64>());
        let judgement = match damage.is_empty() {
            true => "sound",
            false => "DAMAGED",
        };
        let live = size::human(stats.pool.live_bytes);
        let values = match read {
            Some(bytes) => format!(", {} of values read back", size::human(bytes)),
            None => String::new(),
        };
        println!("{path}: {judgement}, {keys} keys, {live} live{values}");
    }
}

/// Reads every value and returns the number of value bytes read. Adds a line to `damage` for each value that cannot
/// be read.
fn read_values(db: &Db, live_bytes: u64, damage: &mut Vec<String>) -> Result<u64, Failure> {
    let mut session = db.store().session();
    let mut progress = CommandProgress::new("reading");
    let mut read = 0_u64;
    each_key(&mut *session, &mut |session, db, key| {
        let found = session.get_many(
            &[Key { db, bytes: key }],
            ReadView::Durable,
            &mut |_, item| {
                read += item.map_or(0, |item| item.bytes.len() as u64);
            },
        );
        progress.show(read, live_bytes.max(read));
        if let Err(error) = found {
            damage.push(of_key(key, error));
        }
        Ok(())
    })?;
    progress.clear();
    db.damaged(&mut |at, _, key| damage.push(of_key(key, Error::Damaged(at))));
    Ok(read)
}

/// Formats the error of a record with its key, or with the part of the key that is readable.
fn of_key(key: &[u8], error: Error) -> String {
    format!("key \"{}\": {error}", key.escape_ascii())
}

/// Callback for a key of a database.
type EachKey<'a> = dyn FnMut(&mut dyn Session, u8, &[u8]) -> Result<(), Failure> + 'a;

/// Calls `each` once for every key of every database.
fn each_key(session: &mut dyn Session, each: &mut EachKey<'_>) -> Result<(), Failure> {
    for db in 0..DATABASES as u8 {
        let mut cursor = 0;
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let scanned = session.scan(db, cursor, STRIDE, &mut |key, _| keys.push(key.to_vec()));
            cursor = scanned.map_err(Failure::failed)?;
            for key in &keys {
                each(session, db, key)?;
            }
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(())
}

impl DumpArgs {
    fn run(self) -> Result<(), Failure> {
        let db = open_existing(&self.path, self.accept_file_system, &self.reading)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let mut session = db.store().session();
        let (mut selected, mut damaged) = (0, 0_u64);
        let mut entry = Vec::new();
        let dumped = each_key(&mut *session, &mut |session, db, key| {
            entry.clear();
            if matches!(self.format, DumpFormat::Resp) && selected != db {
                request(&mut entry, &[&b"SELECT"[..], db.to_string().as_bytes()]);
                selected = db;
            }
            let found = session.get_many(
                &[Key { db, bytes: key }],
                ReadView::Durable,
                &mut |_, item| {
                    if let Some(item) = item {
                        self.format.write(&mut entry, db, key, item);
                    }
                },
            );
            if let Err(error) = found {
                damaged += 1;
                eprintln!("damage: {}", of_key(key, error));
            }
            out.write_all(&entry).map_err(Failure::Output)
        });
        let flushed = dumped.and_then(|()| out.flush().map_err(Failure::Output));
        drop(session);
        db.damaged(&mut |at, _, key| {
            damaged += 1;
            eprintln!("damage: {}", of_key(key, Error::Damaged(at)));
        });
        close(db)?;
        flushed?;
        match damaged {
            0 => Ok(()),
            n => Err(Failure::failed(format!(
                "{n} values are damaged and were left out"
            ))),
        }
    }
}

impl DumpFormat {
    fn write(self, out: &mut Vec<u8>, db: u8, key: &[u8], item: StoredItem<'_>) {
        let expires_ms = item.meta.expires_ms;
        match self {
            DumpFormat::Resp if expires_ms == 0 => request(out, &[&b"SET"[..], key, item.bytes]),
            DumpFormat::Resp => {
                let at = expires_ms.to_string();
                request(out, &[&b"SET"[..], key, item.bytes, b"PXAT", at.as_bytes()]);
            }
            DumpFormat::Json => {
                let object = serde_json::json!({
                    "db": db, "key": json::text(key), "value": json::text(item.bytes), "expires_ms": expires_ms,
                });
                out.extend_from_slice(json::escaped(&object.to_string()).as_bytes());
                out.push(b'\n');
            }
        }
    }
}
