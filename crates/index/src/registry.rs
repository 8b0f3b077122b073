//! The table kinds by name, with their presets and faults.

use std::fmt;
use std::str::FromStr;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;
use farbank_pm::situation::Situation;

use crate::cceh::{self, Cceh};
use crate::clevel::{self, Clevel};
use crate::clht::{self, Clht};
use crate::dash_eh::{self, DashEh};
use crate::dash_lh::{self, DashLh};
use crate::error::OpenError;
use crate::hash::Hashing;
use crate::index::Index;
use crate::level::{self, LevelHash};
use crate::locks::EARLY_READS;
use crate::pool_heap::PoolPlan;
use crate::reserved_key::HashTable;
use crate::situations::{
    BLOCKS, CCEH, CLEVEL, CLHT, DASH, DASH_EH, DASH_LH, EXTENDIBLE, LEVEL, RUNS, SOFT,
};
use crate::soft::{self, Soft};

/// A kind of table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// Cacheline-conscious extendible hashing.
    Cceh,
    /// The cache-line hash table, made persistent.
    Clht,
    /// The hash set SOFT (sets with an optimal flushing technique).
    Soft,
    /// Level hashing.
    Level,
    /// Level hashing with lock-free search.
    Clevel,
    /// Dash over extendible hashing.
    DashEh,
    /// Dash over linear hashing.
    DashLh,
}

/// Size of a new table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableSize {
    /// The paper's sizes of segments and buckets, in a number that gives this many slots.
    Slots(u64),
    /// Parts so small that a dozen keys make the table grow: for the crash explorers.
    Small,
}

/// Configuration of a new table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablePreset {
    /// Farbank's configuration, which is crash-consistent.
    Farbank,
    /// The published configuration, as far as parameters express it, with the published hash in place of the plan's.
    /// Named faults express the other differences.
    Published,
}

impl TablePreset {
    /// Both presets.
    pub const ALL: [TablePreset; 2] = [TablePreset::Farbank, TablePreset::Published];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TablePreset::Farbank => "farbank",
            TablePreset::Published => "published",
        }
    }
}

impl TableKind {
    /// All table kinds.
    pub const ALL: [TableKind; 7] = [
        TableKind::Cceh,
        TableKind::Clht,
        TableKind::Soft,
        TableKind::Level,
        TableKind::Clevel,
        TableKind::DashEh,
        TableKind::DashLh,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TableKind::Cceh => cceh::NAME,
            TableKind::Clht => clht::NAME,
            TableKind::Soft => soft::NAME,
            TableKind::Level => level::NAME,
            TableKind::Clevel => clevel::NAME,
            TableKind::DashEh => dash_eh::NAME,
            TableKind::DashLh => dash_lh::NAME,
        }
    }

    /// Returns the faults of this table that sequential exploration finds.
    #[must_use]
    pub fn faults(self) -> &'static [NamedFault] {
        match self {
            TableKind::Cceh => &cceh::FAULTS,
            TableKind::Clht => &clht::FAULTS,
            TableKind::Soft => &soft::FAULTS,
            TableKind::Level => &level::FAULTS,
            TableKind::Clevel => &clevel::FAULTS,
            TableKind::DashEh => &dash_eh::FAULTS,
            TableKind::DashLh => &dash_lh::FAULTS,
        }
    }

    /// Returns the situations that the exploration of this table must reach: those of the parts that it is built on,
    /// then its own.
    #[must_use]
    pub fn situations(self) -> Vec<Situation> {
        let parts: &[&[Situation]] = match self {
            TableKind::Cceh => &[&RUNS, &BLOCKS, &EXTENDIBLE, &CCEH],
            TableKind::Clht => &[&RUNS, &BLOCKS, &CLHT],
            TableKind::Soft => &[&RUNS, &SOFT],
            TableKind::Level => &[&RUNS, &LEVEL],
            TableKind::Clevel => &[&RUNS, &BLOCKS, &CLEVEL],
            TableKind::DashEh => &[&RUNS, &BLOCKS, &EXTENDIBLE, &DASH, &DASH_EH],
            TableKind::DashLh => &[&RUNS, &BLOCKS, &DASH, &DASH_LH],
        };
        parts.concat()
    }

    /// Returns the faults that exploration with threads finds. Some also occur in [`TableKind::faults`].
    #[must_use]
    pub fn faults_in_threads(self) -> &'static [NamedFault] {
        const EARLY: [NamedFault; 1] = [EARLY_READS];
        match self {
            TableKind::Clht => &clht::FAULTS_IN_THREADS,
            TableKind::Cceh | TableKind::Clevel => &EARLY,
            TableKind::Soft => &soft::FAULTS_IN_THREADS,
            TableKind::Level | TableKind::DashEh | TableKind::DashLh => &[],
        }
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create<M: Medium>(
        self,
        medium: M,
        plan: &PoolPlan,
        size: TableSize,
        preset: TablePreset,
    ) -> Result<Box<dyn Index>, OpenError> {
        let plan = &match preset {
            TablePreset::Farbank => plan.clone(),
            TablePreset::Published => PoolPlan {
                hashing: Hashing::Published,
                ..plan.clone()
            },
        };
        macro_rules! sized {
            ($config:ty) => {
                match size {
                    TableSize::Slots(slots) => <$config>::paper(slots),
                    TableSize::Small => <$config>::small(),
                }
            };
        }
        macro_rules! config {
            ($config:ty) => {
                match preset {
                    TablePreset::Farbank => sized!($config),
                    TablePreset::Published => sized!($config).published(),
                }
            };
        }
        Ok(match self {
            TableKind::Cceh => boxed(Cceh::create(medium, plan, config!(cceh::CcehConfig))?),
            TableKind::Clht => boxed(Clht::create(medium, plan, config!(clht::ClhtConfig))?),
            TableKind::Soft => boxed(Soft::create(medium, plan, config!(soft::SoftConfig))?),
            TableKind::Level => boxed(LevelHash::create(
                medium,
                plan,
                config!(level::LevelConfig),
            )?),
            TableKind::Clevel => {
                boxed(Clevel::create(medium, plan, config!(clevel::ClevelConfig))?)
            }
            TableKind::DashEh => boxed(DashEh::create(
                medium,
                plan,
                config!(dash_eh::DashEhConfig),
            )?),
            TableKind::DashLh => boxed(DashLh::create(
                medium,
                plan,
                config!(dash_lh::DashLhConfig),
            )?),
        })
    }

    /// Opens the table on `medium`, with recovery if it is needed.
    pub fn open<M: Medium>(self, medium: M) -> Result<Box<dyn Index>, OpenError> {
        Ok(match self {
            TableKind::Cceh => boxed(Cceh::open(medium)?),
            TableKind::Clht => boxed(Clht::open(medium)?),
            TableKind::Soft => boxed(Soft::open(medium)?),
            TableKind::Level => boxed(LevelHash::open(medium)?),
            TableKind::Clevel => boxed(Clevel::open(medium)?),
            TableKind::DashEh => boxed(DashEh::open(medium)?),
            TableKind::DashLh => boxed(DashLh::open(medium)?),
        })
    }
}

/// Returns the table as an index. Every index handles the reserved key in one place, [`HashTable`]'s module.
fn boxed(table: impl HashTable + 'static) -> Box<dyn Index> {
    Box::new(table)
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTable {
    name: String,
}

impl fmt::Display for UnknownTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = TableKind::ALL.map(TableKind::name).join(", ");
        write!(f, "unknown table {:?}, expected one of: {names}", self.name)
    }
}

impl std::error::Error for UnknownTable {}

impl FromStr for TableKind {
    type Err = UnknownTable;

    fn from_str(text: &str) -> Result<TableKind, UnknownTable> {
        let known = TableKind::ALL
            .into_iter()
            .find(|table| table.name() == text);
        known.ok_or_else(|| UnknownTable { name: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use farbank_check::marks::{assert_documented, assert_marked};

    use super::{Situation, TableKind};

    /// Returns the situations of all tables, each once.
    fn all() -> Vec<Situation> {
        let mut all: Vec<Situation> = TableKind::ALL
            .into_iter()
            .flat_map(TableKind::situations)
            .collect();
        all.sort_unstable_by_key(|situation| situation.name);
        all.dedup();
        all
    }

    #[test]
    fn every_situation_is_listed_and_every_mark_is_in_one_place() {
        assert_marked(env!("CARGO_MANIFEST_DIR"), &all());
    }

    #[test]
    fn the_documents_list_every_situation() {
        assert_documented(&all());
    }
}
