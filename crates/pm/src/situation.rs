//! Situations: places in the code that a check must have come by.
//!
//! A check that never meets a situation says nothing of it. A structure marks its rare branches and the thresholds of its
//! sizes, `situation!("kv.value_in_several_extents")`, and lists the names; `check situations` explores until each was met.
//!
//! Only the `faults` feature counts: without it a mark is nothing for the compiler.
//!
//! ```
//! use farbank_pm::{situation, situation::{met, uncounted}};
//! situation!("pm.example");
//! situation!("pm.example", 2 + 2 == 5);
//! uncounted(|| situation!("pm.example"));
//! assert_eq!(met("pm.example"), u64::from(farbank_pm::fault::NAMED));
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// A situation, as a structure lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Situation {
    /// `structure.situation`.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub what: &'static str,
}

impl Situation {
    /// The situation called `name`.
    #[must_use]
    pub const fn new(name: &'static str, what: &'static str) -> Situation {
        Situation { name, what }
    }
}

/// A place in the code that counts how often it was met.
#[derive(Debug)]
pub struct SituationMark {
    name: &'static str,
    met: AtomicU64,
}

thread_local! {
    /// Whether this thread counts what it meets.
    static COUNTS: Cell<bool> = const { Cell::new(true) };
}

/// The marks that were met.
static MET: Mutex<Vec<&'static SituationMark>> = Mutex::new(Vec::new());

impl SituationMark {
    /// A mark of the situation called `name`.
    #[must_use]
    pub const fn new(name: &'static str) -> SituationMark {
        SituationMark {
            name,
            met: AtomicU64::new(0),
        }
    }

    /// Counts that it was met, if this thread counts.
    pub fn record(&'static self) {
        if COUNTS.get() && self.met.fetch_add(1, Relaxed) == 0 {
            let mut met = MET.lock().unwrap_or_else(PoisonError::into_inner);
            met.push(self);
        }
    }
}

/// Runs `prepare` without counting what this thread meets: what only prepares a check is not checked.
pub fn uncounted<R>(prepare: impl FnOnce() -> R) -> R {
    struct CountingPause(bool);
    impl Drop for CountingPause {
        fn drop(&mut self) {
            COUNTS.set(self.0);
        }
    }
    let _again = CountingPause(COUNTS.replace(false));
    prepare()
}

/// How often this process met the situation called `name`.
#[must_use]
pub fn met(name: &str) -> u64 {
    let marks = MET.lock().unwrap_or_else(PoisonError::into_inner);
    let own = marks.iter().filter(|mark| mark.name == name);
    own.map(|mark| mark.met.load(Relaxed)).sum()
}

/// Counts that the situation of this name was met, here or if a condition holds. Nothing without the `faults` feature, not
/// even the condition.
#[macro_export]
macro_rules! situation {
    ($name:literal) => {
        $crate::situation!($name, true)
    };
    ($name:literal, $condition:expr) => {
        if $crate::fault::NAMED {
            static MARK: $crate::situation::SituationMark =
                $crate::situation::SituationMark::new($name);
            if $condition {
                MARK.record();
            }
        }
    };
}
