//! Interface of engines under test.

use farbank_bench::counted::Counted;
use farbank_bench::figure::Error;
use farbank_check::target::Target;
use farbank_pm::media::{AnyMedium, File, Mapped};
use farbank_pm::model::Modelled;

use super::plan::ContestRound;
use super::published::PublishedFigures;
use crate::{ContestLimits, Engine};

/// Far memory for an engine.
#[derive(Debug)]
pub enum FarMemory {
    /// Memory of this process, or a mapped file.
    Mapped(Mapped),
    /// File on a disk.
    File(File),
    /// Memory whose accesses are counted.
    Counted(Counted<Mapped>),
    /// Memory whose accesses are replayed on the model.
    Modelled(Modelled<Mapped>),
}

impl From<AnyMedium> for FarMemory {
    fn from(medium: AnyMedium) -> FarMemory {
        match medium {
            AnyMedium::Mapped(medium) => FarMemory::Mapped(medium),
            AnyMedium::File(medium) => FarMemory::File(medium),
        }
    }
}

/// Evaluates an expression for whichever medium `far` holds: `on_far!(far, medium => Engine::create(medium, ..))`.
macro_rules! on_far {
    ($far:expr, $medium:ident => $make:expr) => {
        match $far {
            $crate::judge::FarMemory::Mapped($medium) => $make,
            $crate::judge::FarMemory::File($medium) => $make,
            $crate::judge::FarMemory::Counted($medium) => $make,
            $crate::judge::FarMemory::Modelled($medium) => $make,
        }
    };
}
pub(super) use on_far;

/// Engine that the judge can test.
pub trait Contender: Sync {
    /// Returns the name used in reports.
    fn name(&self) -> &'static str;

    /// Returns whether the engine was built for this round.
    fn supports_round(&self, round: ContestRound) -> bool;

    /// Returns whether acknowledged sets are durable.
    fn is_durable(&self) -> bool;

    /// Returns the limits that apply to this engine in a round. An engine that cannot keep the round's limits, but is
    /// to be compared, increases the far memory here. The report states this as a violation of the round's limits.
    fn terms(&self, _: ContestRound, terms: ContestLimits) -> ContestLimits {
        terms
    }

    /// Returns the far memory that the engine's authors reported, at scale 1/`part`, if it differs from the round's.
    /// The engine then gets this size.
    fn published_far_bytes(&self, _part: u64) -> Option<u64> {
        None
    }

    /// Creates an engine on zeroed memory.
    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error>;

    /// Opens the engine that the memory holds.
    fn open(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error>;

    /// Returns the engine as a target of the crash explorer, if it claims to be durable. The text describes the defect
    /// of an engine that is known to lose data.
    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)>;

    /// Returns the published values and the bounds for these limits.
    fn published(&self, _: &ContestLimits) -> PublishedFigures {
        PublishedFigures::default()
    }
}
