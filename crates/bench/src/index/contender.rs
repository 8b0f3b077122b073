//! Indexes that are measured: our tables, a map in DRAM, and plug-in libraries.

use std::path::{Path, PathBuf};

use farbank_index::registry::{TableKind, TableSize};
use farbank_index::{Index, IndexError, PoolPlan, TableWorker, hash};
use farbank_pibench::{Caller, Plugin};
use farbank_pm::Medium as _;
use farbank_pm::media::Mapped;
use farbank_pm::model::{Modelled, Trace};
use farbank_pm::pool::PoolIdentity;

use super::IndexOptions;
use crate::figure::{Error, ProgressFn, report_progress};
use crate::machine;

/// Index to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexContender {
    /// One of our tables.
    Table(TableKind),
    /// Concurrent map of the crate `papaya`, which is in DRAM and not persistent.
    Papaya,
    /// Library with PiBench's plug-in interface.
    Plugin(PathBuf),
}

impl IndexContender {
    /// Returns the name used in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            IndexContender::Table(table) => table.name(),
            IndexContender::Papaya => "papaya",
            IndexContender::Plugin(_) => "plug-in",
        }
    }

    /// Creates an empty index with room for `records` keys.
    pub(super) fn make(
        &self,
        options: &IndexOptions,
        records: u64,
        watch: ProgressFn<'_>,
    ) -> Result<Box<dyn IndexSubject>, Error> {
        let words: Box<dyn IndexSubject> = match self {
            IndexContender::Table(table) => {
                let pages = PagePreparation::Prefault(watch);
                Box::new(new_table(options, *table, records, pages)?)
            }
            IndexContender::Papaya => Box::new(PapayaMap::default()),
            IndexContender::Plugin(library) => return Ok(Box::new(plugin(library, options)?)),
        };
        Ok(match options.bytes.prefix.as_bytes() {
            [] => words,
            prefix => Box::new(PrefixedKeys::new(words, prefix)),
        })
    }
}

/// Index from 64-bit keys to 64-bit values.
pub(super) trait IndexSubject: Sync {
    /// Opens a session for one more thread.
    fn session(&self) -> Result<Box<dyn IndexSession + '_>, Error>;
}

/// Session of one thread. Its functions return the same as those of [`Index`].
pub(super) trait IndexSession: Send {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, IndexError>;
    fn get(&mut self, key: u64) -> Result<Option<u64>, IndexError>;
    fn update(&mut self, key: u64, value: u64) -> Result<bool, IndexError>;
    fn remove(&mut self, key: u64) -> Result<bool, IndexError>;
    /// Scans up to `count` keys in order, starting with `key`. Returns whether there is one. Hash tables have no
    /// order.
    fn scan(&mut self, _key: u64, _count: u32) -> Result<bool, IndexError> {
        Ok(false)
    }
}

/// Returns the size of far memory for `records` keys in any of the tables, growth included.
pub(super) fn pool_bytes(options: &IndexOptions, records: u64) -> u64 {
    (64 << 20) + 320 * records + 96 * options.slots
}

/// When the kernel allocates a table's pages.
pub(super) enum PagePreparation<'a> {
    /// Before the table is created, like those of a pool, so that no insert pays for the first touch of a page. At
    /// most half of the machine's available memory is allocated in advance, as no table needs all of its room.
    Prefault(ProgressFn<'a>),
    /// At their first touch. Counting runs can then reserve more memory than they use.
    AsTouched,
}

impl PagePreparation<'_> {
    fn prepare(self, medium: &Mapped) -> Result<(), Error> {
        const STEP: u64 = 256 << 20;
        let PagePreparation::Prefault(watch) = self else {
            return Ok(());
        };
        let spare = machine::available_bytes().map_or(u64::MAX, |bytes| bytes / 2);
        let most = spare.min(medium.len());
        for from in (0..most).step_by(STEP as usize) {
            report_progress(watch, "memory", from, most)?;
            medium.prefault_part(from..from + STEP);
        }
        Ok(())
    }
}

/// Creates a table on memory of this process. Flushes and fences are real, unless the options turn them off.
pub(super) fn new_table(
    options: &IndexOptions,
    table: TableKind,
    records: u64,
    pages: PagePreparation<'_>,
) -> Result<Box<dyn Index>, Error> {
    let medium = Mapped::anonymous(pool_bytes(options, records));
    let medium = medium.map_err(Error::doing("map memory"))?;
    pages.prepare(&medium)?;
    let medium = match options.durable {
        true => medium,
        false => medium.without_durability(),
    };
    let size = TableSize::Slots(options.slots);
    let plan = PoolPlan {
        hashing: options.hashing,
        ..PoolPlan::default()
    };
    let made = table.create(medium, &plan, size, options.preset);
    made.map_err(|error| Error::Failed(error.to_string()))
}

/// Fixed identity, so that the same options create the same pool.
const IDENTITY: PoolIdentity = PoolIdentity {
    id: *b"farbank modelled",
    created_unix_s: 1_700_000_000,
};

/// Creates a table on the model for `workers` workers. The returned trace does not record yet.
pub(super) fn modelled_table(
    options: &IndexOptions,
    table: TableKind,
    workers: u32,
) -> Result<(Box<dyn Index>, Trace), Error> {
    let memory = Mapped::anonymous(pool_bytes(options, options.records));
    let medium = Modelled::new(memory.map_err(Error::doing("map memory"))?);
    let medium = match options.durable {
        true => medium,
        false => medium.without_durability(),
    };
    let trace = medium.trace();
    trace.record(false);
    let plan = PoolPlan {
        contexts: workers + 1,
        identity: Some(IDENTITY),
        hashing: options.hashing,
        ..PoolPlan::default()
    };
    let size = TableSize::Slots(options.slots);
    let made = table.create(medium, &plan, size, options.preset);
    let made = made.map_err(|error| Error::Failed(error.to_string()))?;
    Ok((made, trace))
}

pub(super) fn refused(refused: IndexError) -> Error {
    Error::Failed(refused.to_string())
}

impl IndexSubject for Box<dyn Index> {
    fn session(&self) -> Result<Box<dyn IndexSession + '_>, Error> {
        let worker = self.worker().map_err(refused)?;
        Ok(Box::new(TableSession {
            table: &**self,
            worker,
        }))
    }
}

struct TableSession<'a> {
    table: &'a dyn Index,
    worker: TableWorker,
}

impl IndexSession for TableSession<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(self.table.insert(&mut self.worker, key, value)?.is_none())
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, IndexError> {
        self.table.get(&mut self.worker, key)
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(self.table.update(&mut self.worker, key, value)?.is_some())
    }

    fn remove(&mut self, key: u64) -> Result<bool, IndexError> {
        Ok(self.table.remove(&mut self.worker, key)?.is_some())
    }
}

/// Hash function of the tables, also used for papaya so that the comparison is fair.
#[derive(Clone, Copy, Default)]
struct TableHash;

impl std::hash::BuildHasher for TableHash {
    type Hasher = TableHasher;

    fn build_hasher(&self) -> TableHasher {
        TableHasher(0)
    }
}

struct TableHasher(u64);

impl std::hash::Hasher for TableHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are 64-bit integers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = hash::hash(key);
    }
}

#[derive(Default)]
pub(super) struct PapayaMap(papaya::HashMap<u64, u64, TableHash>);

impl IndexSubject for PapayaMap {
    fn session(&self) -> Result<Box<dyn IndexSession + '_>, Error> {
        Ok(Box::new(PapayaSession(&self.0)))
    }
}

struct PapayaSession<'a>(&'a papaya::HashMap<u64, u64, TableHash>);

impl IndexSession for PapayaSession<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(self.0.pin().try_insert(key, value).is_ok())
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, IndexError> {
        Ok(self.0.pin().get(&key).copied())
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(self.0.pin().update(key, |_| value).is_some())
    }

    fn remove(&mut self, key: u64) -> Result<bool, IndexError> {
        Ok(self.0.pin().remove(&key).is_some())
    }
}

/// Index whose keys start with a prefix, in their low bytes.
struct PrefixedKeys {
    words: Box<dyn IndexSubject>,
    prefix: u64,
    /// Bits of the prefix.
    bits: u32,
}

impl PrefixedKeys {
    fn new(words: Box<dyn IndexSubject>, prefix: &[u8]) -> PrefixedKeys {
        let mut bytes = [0; 8];
        bytes[..prefix.len()].copy_from_slice(prefix);
        PrefixedKeys {
            words,
            prefix: u64::from_le_bytes(bytes),
            bits: 8 * prefix.len() as u32,
        }
    }

    fn key(&self, number: u64) -> u64 {
        self.prefix | number << self.bits
    }
}

impl IndexSubject for PrefixedKeys {
    fn session(&self) -> Result<Box<dyn IndexSession + '_>, Error> {
        let session = self.words.session()?;
        Ok(Box::new(PrefixedSession { of: self, session }))
    }
}

struct PrefixedSession<'a> {
    of: &'a PrefixedKeys,
    session: Box<dyn IndexSession + 'a>,
}

impl IndexSession for PrefixedSession<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        self.session.insert(self.of.key(key), value)
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, IndexError> {
        self.session.get(self.of.key(key))
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        self.session.update(self.of.key(key), value)
    }

    fn remove(&mut self, key: u64) -> Result<bool, IndexError> {
        self.session.remove(self.of.key(key))
    }
}

fn plugin(library: &Path, options: &IndexOptions) -> Result<Plugin, Error> {
    let told = farbank_pibench::Options {
        pool: &options.pool,
        pool_bytes: options.pool_bytes,
        threads: options.threads,
        slots: options.slots,
        key_prefix: &options.bytes.prefix,
        key_bytes: options.bytes.key,
        value_bytes: options.bytes.value,
    };
    Plugin::load(library, &told)
        .map_err(|why| Error::Failed(format!("{}: {why}", library.display())))
}

impl IndexSubject for Plugin {
    fn session(&self) -> Result<Box<dyn IndexSession + '_>, Error> {
        Ok(Box::new(self.caller()))
    }
}

impl IndexSession for Caller<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(Caller::insert(self, key, value))
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, IndexError> {
        Ok(self.find(key))
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(Caller::update(self, key, value))
    }

    fn remove(&mut self, key: u64) -> Result<bool, IndexError> {
        Ok(Caller::remove(self, key))
    }

    fn scan(&mut self, key: u64, count: u32) -> Result<bool, IndexError> {
        Ok(Caller::scan(self, key, count) > 0)
    }
}
