//! Lazy memory: the outcome of a crash is decided only for the bytes that are read.
//!
//! ```text
//!   chain of a line:   w=1  x=2  w=3         durable: w=0, x=0
//!   prefixes allowed: 0    1    2    3
//!                                            load(x): 0 ── {0, 1}     2 ── {2, 3}     a decision
//!   script: 1 ────────────────────────────▶                           load(w): 1 or 3, another
//! ```
//!
//! An image is a prefix of each chain of stores. Most images are equal in the few words that a reader
//! reads. So each chain keeps the set of prefixes that agree with all reads so far. A read groups them
//! by its result. More than one group is a *decision*: a script of numbers (0 after its end) chooses
//! one, and only its prefixes stay. To see each behaviour of a reader on all images once, run it under
//! every script, each time advancing the last decision that has more choices ([`next_script`]).
//!
//! # Decisions
//! * A read of words or bytes: one choice for each content.
//! * [`Medium::matches`](crate::medium::Medium::matches): equal, or not.
//! * [`Medium::crc_is`](crate::medium::Medium::crc_is) and
//!   [`Medium::copy_out_if`](crate::medium::Medium::copy_out_if): content with a valid checksum was
//!   written whole. The candidates are the contents of the range after each call that stored to it, if
//!   they pass the check. The range equals one of them, or is torn.
//! * [`Medium::crc`](crate::medium::Medium::crc): the same, but every candidate passes. For torn
//!   content the result is the checksum of one possible torn content.
//!
//! *Not equal* narrows no chain. It adds a *clause*: not all of some chains keep the prefixes that
//! equality needs. So a torn record is one choice, not one for each of its words.
//!
//! # Invariants
//! PM-LAZY-1  Each chain's set is never empty, and one prefix of each can be chosen so that every clause
//!     holds. On the image of any such choice all reads so far have the same results, except for PM-LAZY-3.
//!     A choice that would break this is never offered.
//! PM-LAZY-2  A word with the same value under all prefixes of the sets is in the visible image, which all
//!     other read paths use. So is a word that the reader has stored to.
//! PM-LAZY-3  Content that was never written whole matches a given checksum with probability 2^-32, which is
//!     treated as 0. So a reader may compare a checksum, but must not keep it.
//!
//! Not modelled: a second crash. Flushes and drains are only counted. Crashes of recovery are explored from images.

use super::Sim;
use super::chains::Queues;
use super::crash::CrashState;
use super::image::PoolImage;
use super::image_cuts::ImageCut;
use super::lazy_state::{LazyDecision, LazyState, LazyUnits, lazy_units};
use super::source_lines::SourceLines;
use super::state::SimState;
use super::survivors::UnitSurvivors;
use crate::persistency::Persistency;
use crate::sync::Arc;

/// Returns the script after the one that led to `decisions`, depth first: the last decision that has more
/// choices takes its next one. `None` after the last script. The first script is empty.
#[must_use]
pub fn next_script(decisions: &[LazyDecision]) -> Option<Vec<u32>> {
    let last = decisions.iter().rposition(|d| d.chosen + 1 < d.of)?;
    let mut script: Vec<u32> = decisions[..=last].iter().map(|d| d.chosen).collect();
    script[last] += 1;
    Some(script)
}

impl Sim {
    /// Creates memory after `crash` whose contents are decided on each read: by `script`, then by 0.
    ///
    /// For recovery and reads on one thread, without crash points. A read panics if the script has a choice
    /// that does not exist: the script is from another crash or reader, or the reader is not deterministic.
    #[must_use]
    pub fn lazy(crash: &CrashState, script: &[u32]) -> Sim {
        LazyCrash::of(crash).follow(script)
    }

    /// Returns the decisions so far, in order. Empty for memory that is not lazy.
    #[must_use]
    pub fn decisions(&self) -> Vec<LazyDecision> {
        let state = self.state();
        let lazy = state.lazy.as_ref();
        lazy.map_or(Vec::new(), |lazy| lazy.decisions().to_vec())
    }

    /// Returns the decided survivors, by line or sector. Empty for memory that is not lazy.
    #[must_use]
    pub fn survivors(&self) -> Vec<UnitSurvivors> {
        let state = self.state();
        let lazy = state.lazy.as_ref();
        lazy.map_or(Vec::new(), |lazy| lazy.survivors())
    }

    /// Returns a cut whose image agrees with all decisions so far. `None` for memory that is not lazy.
    #[must_use]
    pub fn cut(&self) -> Option<ImageCut> {
        let state = self.state();
        let lazy = state.lazy.as_ref();
        lazy.map(|lazy| lazy.cut(state.durable.clone()))
    }
}

/// A crash state without decisions, from which lazy memory is created for many scripts.
pub struct LazyCrash {
    persistency: Persistency,
    durable: PoolImage,
    /// The durable image, with the words that have the same value in every cut.
    visible: PoolImage,
    units: LazyUnits,
    cas_drains: bool,
    places: Option<Arc<SourceLines>>,
}

impl LazyCrash {
    /// Prepares a crash state.
    #[must_use]
    pub fn of(crash: &CrashState) -> LazyCrash {
        let mut visible = crash.durable.clone();
        LazyCrash {
            units: lazy_units(
                crash.persistency,
                &crash.durable,
                &crash.queues,
                &mut visible,
            ),
            persistency: crash.persistency,
            durable: crash.durable.clone(),
            visible,
            cas_drains: crash.cas_drains,
            places: crash.places.clone(),
        }
    }

    /// Creates lazy memory as [`Sim::lazy`] does.
    #[must_use]
    pub fn follow(&self, script: &[u32]) -> Sim {
        let mut state = SimState::new(self.durable.clone(), self.visible.clone(), Queues::new());
        state.cas_drains = self.cas_drains;
        state.lazy = Some(Box::new(LazyState::new(
            self.persistency.unit_bytes(),
            self.units.clone(),
            script,
            self.places.clone(),
        )));
        Sim::with_state(state, self.persistency)
    }
}
