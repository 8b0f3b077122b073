//! Tables by their names.

use std::fmt;
use std::str::FromStr;

use farbank_pm::Medium;
use farbank_pm::fault::Named;

use crate::cceh::{self, Cceh};
use crate::clht::{self, Clht};
use crate::dash_eh::{self, DashEh};
use crate::ground::{OpenError, Plan};
use crate::index::Index;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// Cacheline-conscious extendible hashing.
    Cceh,
    /// The cache-line hash table, made persistent.
    Clht,
    /// Dash, extendible.
    DashEh,
}

/// How large a new table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The paper's parts, as many of them as hold this many slots.
    Slots(u64),
    /// Parts so small that a dozen keys make the table grow: for explorers.
    Small,
}

/// Which arrangement a new table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Ours: correct by default.
    Farbank,
    /// The paper's, as far as it is parameters; named faults are the rest.
    Published,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 3] = [Table::Cceh, Table::Clht, Table::DashEh];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Table::Cceh => cceh::NAME,
            Table::Clht => clht::NAME,
            Table::DashEh => dash_eh::NAME,
        }
    }

    /// Deviations it has by name.
    #[must_use]
    pub fn faults(self) -> &'static [Named] {
        match self {
            Table::Cceh => &cceh::FAULTS,
            Table::Clht => &clht::FAULTS,
            Table::DashEh => &dash_eh::FAULTS,
        }
    }

    /// Makes an empty one of all of `medium`. Durable on `Ok`.
    pub fn create<M: Medium>(
        self,
        medium: M,
        plan: &Plan,
        size: Size,
        preset: Preset,
    ) -> Result<Box<dyn Index>, OpenError> {
        let published = preset == Preset::Published;
        Ok(match self {
            Table::Cceh => {
                let config = match size {
                    Size::Slots(slots) => cceh::Config::paper(slots),
                    Size::Small => cceh::Config::small(),
                };
                let far_locks = published;
                Box::new(Cceh::create(
                    medium,
                    plan,
                    cceh::Config {
                        far_locks,
                        ..config
                    },
                )?)
            }
            Table::Clht => {
                let config = match size {
                    Size::Slots(slots) => clht::Config::paper(slots),
                    Size::Small => clht::Config::small(),
                };
                let config = if published {
                    config.published()
                } else {
                    config
                };
                Box::new(Clht::create(medium, plan, config)?)
            }
            Table::DashEh => {
                let config = match size {
                    Size::Slots(slots) => dash_eh::Config::paper(slots),
                    Size::Small => dash_eh::Config::small(),
                };
                let far_locks = published;
                Box::new(DashEh::create(
                    medium,
                    plan,
                    dash_eh::Config {
                        far_locks,
                        ..config
                    },
                )?)
            }
        })
    }

    /// Opens what is on `medium`, after a crash or not.
    pub fn open<M: Medium>(self, medium: M) -> Result<Box<dyn Index>, OpenError> {
        Ok(match self {
            Table::Cceh => Box::new(Cceh::open(medium)?),
            Table::Clht => Box::new(Clht::open(medium)?),
            Table::DashEh => Box::new(DashEh::open(medium)?),
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(text: &str) -> Result<Table, String> {
        let known = Table::ALL.into_iter().find(|table| table.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Table::ALL.iter().map(|table| table.name()).collect();
            format!("{text:?} is no table: {}", names.join(", "))
        })
    }
}
