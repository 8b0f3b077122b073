//! Faults: deliberate bugs, switched on to test that the checks find them.
//!
//! There are two kinds. A fault *by place* drops the flushes or drains of one source line. The simulated
//! medium knows the source line of each call, so structures need no code for it. A fault *by name* is a
//! bug in a structure's logic, `if fault!("kv.x") { .. }`. Only the `faults` feature compiles it; without
//! the feature the condition is a constant `false`.
//!
//! At most one fault is on per thread at a time: [`with`] runs a closure with a fault on.
//!
//! ```
//! use farbank_pm::fault::{self, Fault};
//! let fault: Fault = "flush kv/log.rs:88 last".parse().unwrap();
//! let shown = fault::with(Some(&fault), || fault::active().map(|f| f.to_string()));
//! assert_eq!(shown.as_deref(), Some("flush kv/log.rs:88 last"));
//! assert!(fault::active().is_none());
//! ```

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;

use crate::persistency::Persistency;
use crate::source_action::{SourceAction, brief};

/// The part of a copy, flush or drain that a fault drops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FaultPart {
    /// All lines of the copy or flush, or the drain.
    #[default]
    Whole,
    /// The first line (of a copy or a flush).
    First,
    /// The last line (of a copy or a flush).
    Last,
}

impl FaultPart {
    /// All parts.
    pub const ALL: [FaultPart; 3] = [FaultPart::Whole, FaultPart::First, FaultPart::Last];

    /// Returns the name of the part in a fault's text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FaultPart::Whole => "whole",
            FaultPart::First => "first",
            FaultPart::Last => "last",
        }
    }
}

/// A fault by place: the flush or drain of one source line does not happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PlaceFault {
    /// The action of the line: [`SourceAction::CopyIn`] loses its implied flush, [`SourceAction::Flush`] its
    /// flush, [`SourceAction::Drain`] its drain.
    pub act: SourceAction,
    /// The source line, as [`brief`] prints it: `kv/log.rs:88`.
    pub at: String,
    /// The cache lines that are dropped.
    pub part: FaultPart,
    /// `Some(n)`: only the `n`-th execution on a medium is dropped, counted from 1. `None`: every execution.
    pub hit: Option<u64>,
}

impl PlaceFault {
    /// Returns whether this fault drops the action `act` of the source line `at`.
    #[must_use]
    pub fn concerns(&self, act: SourceAction, at: &Location<'_>) -> bool {
        let line = || self.at.rsplit_once(':').and_then(|(_, n)| n.parse().ok());
        self.act == act && line() == Some(at.line()) && brief(at) == self.at
    }
}

/// A deliberate bug.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// By place.
    Place(PlaceFault),
    /// By name, from a structure's list of [`NamedFault`].
    Name(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Name(name) => f.write_str(name),
            Fault::Place(place) => {
                write!(f, "{} {}", place.act.name(), place.at)?;
                if place.part != FaultPart::Whole {
                    write!(f, " {}", place.part.name())?;
                }
                place.hit.map_or(Ok(()), |n| write!(f, " #{n}"))
            }
        }
    }
}

/// The error of a text that is no [`Fault`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseFaultError {
    /// The text is empty.
    Empty,
    /// The first of several words is not an action.
    UnknownAct {
        /// The word.
        found: String,
    },
    /// No source line follows the action.
    NoSourceLine {
        /// The action.
        act: SourceAction,
    },
    /// A word after the source line is neither a part nor the number of an execution.
    UnknownWord {
        /// The word.
        found: String,
    },
}

impl fmt::Display for ParseFaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseFaultError::Empty => {
                write!(
                    f,
                    "the fault is empty: give NAME, or ACT FILE:LINE [first|last] [#N]"
                )
            }
            ParseFaultError::UnknownAct { found } => {
                write!(f, "{found:?} is not an act: give copy_in, flush or drain")
            }
            ParseFaultError::NoSourceLine { act } => write!(
                f,
                "the source line of the {} is missing: give FILE:LINE",
                act.name()
            ),
            ParseFaultError::UnknownWord { found } => {
                write!(f, "{found:?} is unknown: give whole, first, last or #N")
            }
        }
    }
}

impl std::error::Error for ParseFaultError {}

impl FromStr for Fault {
    type Err = ParseFaultError;

    /// Parses `NAME`, or `ACT FILE:LINE [first|last] [#N]`, the format that `Display` prints.
    fn from_str(text: &str) -> Result<Fault, ParseFaultError> {
        let mut words = text.split_whitespace();
        let first = words.next().ok_or(ParseFaultError::Empty)?;
        let act = [
            SourceAction::CopyIn,
            SourceAction::Flush,
            SourceAction::Drain,
        ]
        .into_iter()
        .find(|act| act.name() == first);
        let Some(act) = act else {
            return match words.next() {
                None => Ok(Fault::Name(first.into())),
                Some(_) => Err(ParseFaultError::UnknownAct {
                    found: first.into(),
                }),
            };
        };
        let at = words.next().ok_or(ParseFaultError::NoSourceLine { act })?;
        let mut fault = PlaceFault {
            act,
            at: at.into(),
            part: FaultPart::Whole,
            hit: None,
        };
        for word in words {
            let hit = word.strip_prefix('#').and_then(|n| n.parse().ok());
            match FaultPart::ALL.into_iter().find(|part| part.name() == word) {
                Some(part) => fault.part = part,
                None if hit.is_some() => fault.hit = hit,
                None => return Err(ParseFaultError::UnknownWord { found: word.into() }),
            }
        }
        Ok(Fault::Place(fault))
    }
}

/// An entry of a structure's list of faults by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedFault {
    /// `structure.deviation`.
    pub name: &'static str,
    /// The bug, in one sentence.
    pub description: &'static str,
    /// Origin: a published report, or the change that fixed the bug here.
    pub source: &'static str,
    /// Where a search looks for it; `None`: in every mode.
    pub shows_in: Option<ShowingRuns>,
}

/// The runs of a structure that show a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShowingRuns {
    /// The mode in which the fault is searched for: the only one whose crashes show it, or one that shows it soon.
    /// `None`: every mode, or schedules of threads.
    pub persistency: Option<Persistency>,
    /// A seed that has shown a rare fault, of runs or of schedules. A search tries it first. After a change of the
    /// structure or of its workload, another seed may show the fault; the search then takes longer and finds it.
    pub seed: Option<u64>,
}

impl ShowingRuns {
    /// The runs of one mode.
    #[must_use]
    pub const fn of(persistency: Persistency) -> ShowingRuns {
        ShowingRuns {
            persistency: Some(persistency),
            seed: None,
        }
    }

    /// The runs of one mode, of which `seed` is tried first.
    #[must_use]
    pub const fn first(persistency: Persistency, seed: u64) -> ShowingRuns {
        ShowingRuns {
            persistency: Some(persistency),
            seed: Some(seed),
        }
    }

    /// The schedules of threads, of which those of `seed` are tried first.
    #[must_use]
    pub const fn schedules(seed: u64) -> ShowingRuns {
        ShowingRuns {
            persistency: None,
            seed: Some(seed),
        }
    }
}

thread_local! {
    static ACTIVE: RefCell<Option<Fault>> = const { RefCell::new(None) };
}

/// Runs `f` with `fault` on, on this thread, then restores the previous fault.
pub fn with<R>(fault: Option<&Fault>, f: impl FnOnce() -> R) -> R {
    struct FaultScope(Option<Fault>);
    impl Drop for FaultScope {
        fn drop(&mut self) {
            ACTIVE.set(self.0.take());
        }
    }
    let _restore = FaultScope(ACTIVE.replace(fault.cloned()));
    f()
}

/// Returns the fault that is on, on this thread.
#[must_use]
pub fn active() -> Option<Fault> {
    ACTIVE.with_borrow(Clone::clone)
}

/// Returns what the active fault drops of the action `act` of the source line `at`: the part, and the only
/// execution that is dropped if there is one.
pub(crate) fn drops(act: SourceAction, at: &Location<'_>) -> Option<(FaultPart, Option<u64>)> {
    ACTIVE.with_borrow(|fault| match fault {
        Some(Fault::Place(place)) if place.concerns(act, at) => Some((place.part, place.hit)),
        _ => None,
    })
}

/// Whether faults by name are compiled in.
pub const NAMED: bool = cfg!(feature = "faults");

/// Returns whether the fault called `name` is on; a constant `false` without the `faults` feature.
#[inline(always)]
#[must_use]
pub fn is_on(name: &str) -> bool {
    NAMED && ACTIVE.with_borrow(|fault| matches!(fault, Some(Fault::Name(on)) if on == name))
}

/// Whether the fault of this name is on; a constant `false` without the `faults` feature.
#[macro_export]
macro_rules! fault {
    ($name:literal) => {
        $crate::fault::is_on($name)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_fault_parses_back_and_malformed_text_is_refused() {
        for text in [
            "kv.x",
            "drain kv/log.rs:8",
            "flush log.rs:8 first",
            "copy_in a.rs:1 last #7",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "flush",
            "store a.rs:1",
            "flush a.rs:1 middle",
            "flush a.rs:1 #x",
        ] {
            assert!(text.parse::<Fault>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_fault_is_on_inside_with_and_off_after_a_panic() {
        let name = Fault::Name("pm.test".into());
        let caught =
            std::panic::catch_unwind(|| with(Some(&name), || panic!("{}", is_on("pm.test"))));
        let text = *caught.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(text, NAMED.to_string());
        assert!(active().is_none());
    }
}
