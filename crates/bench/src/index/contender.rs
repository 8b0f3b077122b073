//! Who is measured: our tables, a map in DRAM beside them, a library of somebody else's.

use std::path::{Path, PathBuf};

use farbank_index::registry::{Size, Table};
use farbank_index::{Index, Plan, Refused, Worker, hash};
use farbank_pibench::{Caller, Plugin};
use farbank_pm::Medium as _;
use farbank_pm::media::Mapped;
use farbank_pm::model::{Modelled, Trace};
use farbank_pm::pool::Identity;

use super::Options;
use crate::figure::{Error, Watch, look};
use crate::machine;

/// One of those that are measured beside each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A table of ours.
    Table(Table),
    /// The concurrent map of the crate `papaya`: in DRAM, and gone with the process.
    Papaya,
    /// A library written for PiBench.
    Plugin(PathBuf),
}

impl Contender {
    /// What its figures are called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Contender::Table(table) => table.name(),
            Contender::Papaya => "papaya",
            Contender::Plugin(_) => "plug-in",
        }
    }

    /// Makes an empty one with room for `records` keys.
    pub(super) fn make(
        &self,
        options: &Options,
        records: u64,
        watch: Watch<'_>,
    ) -> Result<Box<dyn Subject>, Error> {
        let words: Box<dyn Subject> = match self {
            Contender::Table(table) => {
                let pages = Pages::There(watch);
                Box::new(new_table(options, *table, records, pages)?)
            }
            Contender::Papaya => Box::new(Papaya::default()),
            Contender::Plugin(library) => return Ok(Box::new(plugin(library, options)?)),
        };
        Ok(match options.bytes.prefix.as_bytes() {
            [] => words,
            prefix => Box::new(Prefixed::new(words, prefix)),
        })
    }
}

/// Something that keeps words under words.
pub(super) trait Subject: Sync {
    /// One more thread at it.
    fn session(&self) -> Result<Box<dyn Session + '_>, Error>;
}

/// One thread at it. What it answers is what [`Index`]'s functions do.
pub(super) trait Session: Send {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Refused>;
    fn get(&mut self, key: u64) -> Result<Option<u64>, Refused>;
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Refused>;
    fn remove(&mut self, key: u64) -> Result<bool, Refused>;
    /// Finds up to `count` keys in order from `key` on; whether there is one. Hash tables have no order.
    fn scan(&mut self, _key: u64, _count: u32) -> Result<bool, Refused> {
        Ok(false)
    }
}

/// Far memory for `records` keys in any of the tables, growth included.
pub(super) fn pool_bytes(options: &Options, records: u64) -> u64 {
    (64 << 20) + 320 * records + 96 * options.slots
}

/// When a table's pages are the kernel's work.
pub(super) enum Pages<'a> {
    /// Before the table is made, as those of a pool are: no insert pays for a page's first touch. Those beyond half of
    /// what the machine has to spare are not, as no table needs all of its room.
    There(Watch<'a>),
    /// At their first touch: what is only counted can be as large as what it uses.
    AsTouched,
}

impl Pages<'_> {
    fn prepare(self, medium: &Mapped) -> Result<(), Error> {
        const STEP: u64 = 256 << 20;
        let Pages::There(watch) = self else {
            return Ok(());
        };
        let spare = machine::available_bytes().map_or(u64::MAX, |bytes| bytes / 2);
        let most = spare.min(medium.len());
        for from in (0..most).step_by(STEP as usize) {
            look(watch, "memory", from, most)?;
            medium.prefault_part(from..from + STEP);
        }
        Ok(())
    }
}

/// A table on memory of this process with real flushes and fences, unless they are to be left out.
pub(super) fn new_table(
    options: &Options,
    table: Table,
    records: u64,
    pages: Pages<'_>,
) -> Result<Box<dyn Index>, Error> {
    let medium = Mapped::anonymous(pool_bytes(options, records));
    let medium = medium.map_err(Error::doing("map memory"))?;
    pages.prepare(&medium)?;
    let medium = match options.durable {
        true => medium,
        false => medium.without_durability(),
    };
    let size = Size::Slots(options.slots);
    let plan = Plan {
        hashing: options.hashing,
        ..Plan::default()
    };
    let made = table.create(medium, &plan, size, options.preset);
    made.map_err(|error| Error::Failed(error.to_string()))
}

/// The same pool for the same options.
const IDENTITY: Identity = Identity {
    id: *b"farbank modelled",
    created_unix_s: 1_700_000_000,
};

/// A table on the model for so many workers, and its trace, which does not record yet.
pub(super) fn modelled_table(
    options: &Options,
    table: Table,
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
    let plan = Plan {
        lanes: workers + 1,
        identity: Some(IDENTITY),
        hashing: options.hashing,
        ..Plan::default()
    };
    let size = Size::Slots(options.slots);
    let made = table.create(medium, &plan, size, options.preset);
    let made = made.map_err(|error| Error::Failed(error.to_string()))?;
    Ok((made, trace))
}

pub(super) fn refused(refused: Refused) -> Error {
    Error::Failed(refused.to_string())
}

impl Subject for Box<dyn Index> {
    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        let worker = self.worker().map_err(refused)?;
        Ok(Box::new(AtTable {
            table: &**self,
            worker,
        }))
    }
}

struct AtTable<'a> {
    table: &'a dyn Index,
    worker: Worker,
}

impl Session for AtTable<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        Ok(self.table.insert(&mut self.worker, key, value)?.is_none())
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, Refused> {
        self.table.get(&mut self.worker, key)
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        Ok(self.table.update(&mut self.worker, key, value)?.is_some())
    }

    fn remove(&mut self, key: u64) -> Result<bool, Refused> {
        Ok(self.table.remove(&mut self.worker, key)?.is_some())
    }
}

/// The tables' hash, so that none has a better one.
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
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = hash::hash(key);
    }
}

#[derive(Default)]
pub(super) struct Papaya(papaya::HashMap<u64, u64, TableHash>);

impl Subject for Papaya {
    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(AtPapaya(&self.0)))
    }
}

struct AtPapaya<'a>(&'a papaya::HashMap<u64, u64, TableHash>);

impl Session for AtPapaya<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        Ok(self.0.pin().try_insert(key, value).is_ok())
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, Refused> {
        Ok(self.0.pin().get(&key).copied())
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        Ok(self.0.pin().update(key, |_| value).is_some())
    }

    fn remove(&mut self, key: u64) -> Result<bool, Refused> {
        Ok(self.0.pin().remove(&key).is_some())
    }
}

/// One whose keys are words, of which the first bytes are a prefix.
struct Prefixed {
    words: Box<dyn Subject>,
    prefix: u64,
    /// Bits of it.
    bits: u32,
}

impl Prefixed {
    fn new(words: Box<dyn Subject>, prefix: &[u8]) -> Prefixed {
        let mut bytes = [0; 8];
        bytes[..prefix.len()].copy_from_slice(prefix);
        Prefixed {
            words,
            prefix: u64::from_le_bytes(bytes),
            bits: 8 * prefix.len() as u32,
        }
    }

    fn key(&self, number: u64) -> u64 {
        self.prefix | number << self.bits
    }
}

impl Subject for Prefixed {
    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        let session = self.words.session()?;
        Ok(Box::new(AtPrefixed { of: self, session }))
    }
}

struct AtPrefixed<'a> {
    of: &'a Prefixed,
    session: Box<dyn Session + 'a>,
}

impl Session for AtPrefixed<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        self.session.insert(self.of.key(key), value)
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, Refused> {
        self.session.get(self.of.key(key))
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        self.session.update(self.of.key(key), value)
    }

    fn remove(&mut self, key: u64) -> Result<bool, Refused> {
        self.session.remove(self.of.key(key))
    }
}

fn plugin(library: &Path, options: &Options) -> Result<Plugin, Error> {
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

impl Subject for Plugin {
    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(self.caller()))
    }
}

impl Session for Caller<'_> {
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        Ok(Caller::insert(self, key, value))
    }

    fn get(&mut self, key: u64) -> Result<Option<u64>, Refused> {
        Ok(self.find(key))
    }

    fn update(&mut self, key: u64, value: u64) -> Result<bool, Refused> {
        Ok(Caller::update(self, key, value))
    }

    fn remove(&mut self, key: u64) -> Result<bool, Refused> {
        Ok(Caller::remove(self, key))
    }

    fn scan(&mut self, key: u64, count: u32) -> Result<bool, Refused> {
        Ok(Caller::scan(self, key, count) > 0)
    }
}
