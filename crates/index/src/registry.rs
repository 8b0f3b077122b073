//! Tables by their names.

use std::fmt;
use std::str::FromStr;

use farbank_pm::Medium;
use farbank_pm::fault::Named;
use farbank_pm::situation::Situation;

use crate::cceh::{self, Cceh};
use crate::clevel::{self, Clevel};
use crate::clht::{self, Clht};
use crate::dash_eh::{self, DashEh};
use crate::dash_lh::{self, DashLh};
use crate::ground::{OpenError, Plan};
use crate::hash::Hashing;
use crate::index::Index;
use crate::level::{self, LevelHash};
use crate::locks::EARLY_READS;
use crate::situations;
use crate::soft::{self, Soft};

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// Cacheline-conscious extendible hashing.
    Cceh,
    /// The cache-line hash table, made persistent.
    Clht,
    /// Sets with an optimal flushing technique.
    Soft,
    /// Level hashing.
    Level,
    /// Level hashing whose searches are not blocked.
    Clevel,
    /// Dash, extendible.
    DashEh,
    /// Dash, linear.
    DashLh,
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
    /// The paper's, as far as it is parameters, with the study's hash, whatever the plan says; named faults are the rest.
    Published,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 7] = [
        Table::Cceh,
        Table::Clht,
        Table::Soft,
        Table::Level,
        Table::Clevel,
        Table::DashEh,
        Table::DashLh,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Table::Cceh => cceh::NAME,
            Table::Clht => clht::NAME,
            Table::Soft => soft::NAME,
            Table::Level => level::NAME,
            Table::Clevel => clevel::NAME,
            Table::DashEh => dash_eh::NAME,
            Table::DashLh => dash_lh::NAME,
        }
    }

    /// Deviations it has by name.
    #[must_use]
    pub fn faults(self) -> &'static [Named] {
        match self {
            Table::Cceh => &cceh::FAULTS,
            Table::Clht => &clht::FAULTS,
            Table::Soft => &soft::FAULTS,
            Table::Level => &level::FAULTS,
            Table::Clevel => &clevel::FAULTS,
            Table::DashEh => &dash_eh::FAULTS,
            Table::DashLh => &dash_lh::FAULTS,
        }
    }

    /// Situations that explorations of it must have met.
    #[must_use]
    pub fn situations(self) -> Vec<Situation> {
        situations::of(self)
    }

    /// Those of them, and others, that threads find.
    #[must_use]
    pub fn faults_in_threads(self) -> &'static [Named] {
        const EARLY: [Named; 1] = [EARLY_READS];
        match self {
            Table::Clht => &clht::FAULTS_IN_THREADS,
            Table::Cceh | Table::Clevel => &EARLY,
            Table::Soft => &soft::FAULTS_IN_THREADS,
            Table::Level | Table::DashEh | Table::DashLh => &[],
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
        let plan = &match preset {
            Preset::Farbank => plan.clone(),
            Preset::Published => Plan {
                hashing: Hashing::Published,
                ..plan.clone()
            },
        };
        macro_rules! sized {
            ($table:ident) => {
                match size {
                    Size::Slots(slots) => $table::Config::paper(slots),
                    Size::Small => $table::Config::small(),
                }
            };
        }
        macro_rules! config {
            ($table:ident) => {
                match preset {
                    Preset::Farbank => sized!($table),
                    Preset::Published => sized!($table).published(),
                }
            };
        }
        Ok(match self {
            Table::Cceh => Box::new(Cceh::create(medium, plan, config!(cceh))?),
            Table::Clht => Box::new(Clht::create(medium, plan, config!(clht))?),
            Table::Soft => Box::new(Soft::create(medium, plan, config!(soft))?),
            Table::Level => Box::new(LevelHash::create(medium, plan, config!(level))?),
            Table::Clevel => Box::new(Clevel::create(medium, plan, config!(clevel))?),
            Table::DashEh => Box::new(DashEh::create(medium, plan, config!(dash_eh))?),
            Table::DashLh => Box::new(DashLh::create(medium, plan, config!(dash_lh))?),
        })
    }

    /// Opens what is on `medium`, after a crash or not.
    pub fn open<M: Medium>(self, medium: M) -> Result<Box<dyn Index>, OpenError> {
        Ok(match self {
            Table::Cceh => Box::new(Cceh::open(medium)?),
            Table::Clht => Box::new(Clht::open(medium)?),
            Table::Soft => Box::new(Soft::open(medium)?),
            Table::Level => Box::new(LevelHash::open(medium)?),
            Table::Clevel => Box::new(Clevel::open(medium)?),
            Table::DashEh => Box::new(DashEh::open(medium)?),
            Table::DashLh => Box::new(DashLh::open(medium)?),
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
