//! Faults: deviations switched on to see that the checks object.
//!
//! Two kinds, one word for both. A fault *by place* drops what one line of source flushes or drains;
//! the simulated medium knows the lines, so no structure changes for it. A fault *by name* is a
//! deviation in a structure's logic, `if fault!("kv.x") { .. }`, which only the `faults` feature
//! compiles: without it the condition is `false` for the compiler.
//!
//! One fault is on at a time, on one thread: [`with`] a fault, whatever runs inside it deviates.
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

use crate::sim::{Persistency, SourceAction, brief};

/// What of its lines a place drops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FaultPart {
    /// Everything it flushes, or the whole drain.
    #[default]
    Whole,
    /// The first line (of a copy or a flush).
    First,
    /// The last line (of a copy or a flush).
    Last,
}

impl FaultPart {
    /// All of them.
    pub const ALL: [FaultPart; 3] = [FaultPart::Whole, FaultPart::First, FaultPart::Last];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FaultPart::Whole => "whole",
            FaultPart::First => "first",
            FaultPart::Last => "last",
        }
    }
}

/// A deviation by place: what this line of source flushes or drains does not happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PlaceFault {
    /// What the place does: [`Act::CopyIn`] loses its implied flush, [`Act::Flush`] its flush,
    /// [`Act::Drain`] its drain.
    pub act: SourceAction,
    /// Where, as [`brief`] prints it: `kv/log.rs:88`.
    pub at: String,
    /// Which of its lines.
    pub part: FaultPart,
    /// Only the `n`-th time it runs on a medium, from 1; `None`: always.
    pub hit: Option<u64>,
}

impl PlaceFault {
    /// Whether this is about what `at` does.
    #[must_use]
    pub fn concerns(&self, act: SourceAction, at: &Location<'_>) -> bool {
        let line = || self.at.rsplit_once(':').and_then(|(_, n)| n.parse().ok());
        self.act == act && line() == Some(at.line()) && brief(at) == self.at
    }
}

/// A deviation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// By place.
    Place(PlaceFault),
    /// By name, from a structure's list of [`Named`].
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

impl FromStr for Fault {
    type Err = String;

    /// `NAME`, or `ACT FILE:LINE [first|last] [#N]` as it is printed.
    fn from_str(text: &str) -> Result<Fault, String> {
        let mut words = text.split_whitespace();
        let first = words.next().ok_or("a fault has a name or a place")?;
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
                Some(_) => Err(format!("{first:?} is no act: copy_in, flush or drain")),
            };
        };
        let at = words
            .next()
            .ok_or_else(|| format!("where is the {first}? FILE:LINE"))?;
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
                None => return Err(format!("{word:?}: whole, first, last or #N")),
            }
        }
        Ok(Fault::Place(fault))
    }
}

/// A fault that has a name, as a structure lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedFault {
    /// `structure.deviation`.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub what: &'static str,
    /// Where it comes from: a published report, or the change that mended it here.
    pub source: &'static str,
    /// The only mode whose crashes show it; `None` if several do.
    pub shows_in: Option<Persistency>,
}

thread_local! {
    static ACTIVE: RefCell<Option<Fault>> = const { RefCell::new(None) };
}

/// Runs `f` with `fault` on, on this thread; what was on before is on again afterwards.
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

/// The fault that is on, on this thread.
#[must_use]
pub fn active() -> Option<Fault> {
    ACTIVE.with_borrow(Clone::clone)
}

/// What the fault that is on drops of what `at` does: which part, and which time only.
pub(crate) fn drops(act: SourceAction, at: &Location<'_>) -> Option<(FaultPart, Option<u64>)> {
    ACTIVE.with_borrow(|fault| match fault {
        Some(Fault::Place(place)) if place.concerns(act, at) => Some((place.part, place.hit)),
        _ => None,
    })
}

/// Whether faults by name are compiled in.
pub const NAMED: bool = cfg!(feature = "faults");

/// Whether the fault called `name` is on; `false` for the compiler without the `faults` feature.
#[inline(always)]
#[must_use]
pub fn is_on(name: &str) -> bool {
    NAMED && ACTIVE.with_borrow(|fault| matches!(fault, Some(Fault::Name(on)) if on == name))
}

/// Whether the fault of this name is on: a condition that is `false` without the `faults` feature.
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
    fn faults_are_read_as_they_are_printed() {
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
