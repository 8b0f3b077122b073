//! Situations: marks on rare branches that a check must reach.
//!
//! A check that never reaches a branch proves nothing about it. A structure marks its rare branches and its size
//! thresholds, for example `situation!("kv.value_in_several_extents")`, and lists the names. `check situations`
//! explores until each situation was met.
//!
//! Only the `faults` feature counts; without it a mark compiles to nothing.
//!
//! ```
//! use farbank_pm::{situation, situation::{met, uncounted}};
//! situation!("pm.example");
//! situation!("pm.example", 2 + 2 == 5);
//! uncounted(|| situation!("pm.example"));
//! assert_eq!(met("pm.example"), u64::from(farbank_pm::fault::NAMED));
//! ```

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::ignore_poison;

/// An entry of a structure's list of situations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Situation {
    /// `structure.situation`.
    pub name: &'static str,
    /// The situation, in one sentence.
    pub description: &'static str,
}

impl Situation {
    /// Creates the entry of the situation called `name`.
    #[must_use]
    pub const fn new(name: &'static str, what: &'static str) -> Situation {
        Situation {
            name,
            description: what,
        }
    }
}

/// A mark in the code that counts its executions.
#[derive(Debug)]
pub struct SituationMark {
    name: &'static str,
    met: AtomicU64,
}

thread_local! {
    /// Whether this thread counts the marks that it executes.
    static COUNTS: Cell<bool> = const { Cell::new(true) };
}

/// The marks that were executed at least once.
static MET: Mutex<Vec<&'static SituationMark>> = Mutex::new(Vec::new());

impl SituationMark {
    /// Creates a mark of the situation called `name`.
    #[must_use]
    pub const fn new(name: &'static str) -> SituationMark {
        SituationMark {
            name,
            met: AtomicU64::new(0),
        }
    }

    /// Counts one execution, unless it runs inside [`uncounted`].
    pub fn record(&'static self) {
        if COUNTS.get() && self.met.fetch_add(1, Relaxed) == 0 {
            let mut met = ignore_poison(MET.lock());
            met.push(self);
        }
    }
}

/// Runs `prepare` without counting marks on this thread. Use it for preparations, which are not checked.
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

/// Returns how often this process met the situation called `name`.
#[must_use]
pub fn met(name: &str) -> u64 {
    let marks = ignore_poison(MET.lock());
    let own = marks.iter().filter(|mark| mark.name == name);
    own.map(|mark| mark.met.load(Relaxed)).sum()
}

/// Counts that the situation of this name was met, if the condition holds where one is given. Without the `faults`
/// feature nothing runs, not even the condition.
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
