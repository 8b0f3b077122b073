//! Who can be judged: an engine, and what is known of it.

use farbank_check::target::Target;
use farbank_contest::{ContestLimits, Engine};
use farbank_pm::media::{AnyMedium, File, Mapped};
use farbank_pm::model::Modelled;

use super::plan::ContestRound;
use super::published::PublishedFigures;
use crate::counted::Counted;
use crate::figure::Error;

/// Far memory, given to an engine whole.
#[derive(Debug)]
pub enum FarMemory {
    /// Memory, or a file mapped.
    Mapped(Mapped),
    /// A file on a disk.
    File(File),
    /// Memory, and what is asked of it.
    Counted(Counted<Mapped>),
    /// Memory whose every access is played to the model.
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

/// Does the same on whichever medium it is: `on_far!(far, medium => Engine::create(medium, ..))`.
#[macro_export]
#[doc(hidden)]
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

/// An engine that can be judged.
pub trait Contender: Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Whether it was built for this round.
    fn takes(&self, round: ContestRound) -> bool;

    /// Whether what it acknowledges is durable.
    fn is_durable(&self) -> bool;

    /// The terms it is judged on in a round. One that cannot keep the round's, and is to be compared all the
    /// same, asks for more far memory here; the report says so, and that it must not.
    fn terms(&self, _: ContestRound, terms: ContestLimits) -> ContestLimits {
        terms
    }

    /// Bytes of far memory those who built it told of, at one part of so many, if they are not the round's: it gets
    /// those.
    fn far_bytes_told(&self, _part: u64) -> Option<u64> {
        None
    }

    /// A new engine on zeros.
    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error>;

    /// The engine that was left there.
    fn open(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error>;

    /// The engine as the crash explorer sees it; and what about it is to be expected, if it is known to
    /// lose data.
    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)>;

    /// What was published of it, or is asked of it, on these terms.
    fn published(&self, _: &ContestLimits) -> PublishedFigures {
        PublishedFigures::default()
    }
}
