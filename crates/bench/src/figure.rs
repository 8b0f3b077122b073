//! What a measurement hands back: figures with their bounds, and why it could not be made.
//!
//! A figure is *counted* (exact: it would be the same on any machine), *measured* (this machine, this
//! run, with what else was going on there) or *modelled* (virtual time on memory that is not there). It
//! is always shown with that word beside it.

use std::fmt;
use std::time::Duration;

use crate::chart::Charts;

/// How a figure was come by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Exact, and independent of the machine.
    Counted,
    /// What a clock said, on this machine and in this run.
    Measured,
    /// What the model of far memory says; its version, constants and seed are among the notes.
    Modelled,
}

impl Kind {
    /// The word that is printed beside the figure.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counted => "counted",
            Kind::Measured => "measured",
            Kind::Modelled => "modelled",
        }
    }
}

/// A figure that was found, and the bound it must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The experiment it belongs to.
    pub experiment: &'static str,
    /// What was counted or measured.
    pub name: String,
    /// How it was come by.
    pub kind: Kind,
    /// What was found.
    pub value: f64,
    /// What it is counted in.
    pub unit: &'static str,
    /// The least and the most of several rounds.
    pub spread: Option<(f64, f64)>,
    /// At most this, if a bound is stated.
    pub at_most: Option<f64>,
    /// At least this, if a bound is stated.
    pub at_least: Option<f64>,
    /// What others published, and how far from it this may be.
    pub published: Option<Published>,
}

/// A figure somebody published, and how far from it one found here may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Published {
    /// The figure.
    pub value: f64,
    /// The largest distance, in the figure's unit; infinite if it is only shown beside.
    pub within: f64,
}

impl Figure {
    /// A counted figure without a bound.
    #[must_use]
    pub fn counted(experiment: &'static str, name: impl Into<String>, value: f64) -> Figure {
        Figure {
            experiment,
            name: name.into(),
            kind: Kind::Counted,
            value,
            unit: "",
            spread: None,
            at_most: None,
            at_least: None,
            published: None,
        }
    }

    /// A measured figure without a bound.
    #[must_use]
    pub fn measured(experiment: &'static str, name: impl Into<String>, value: f64) -> Figure {
        Figure {
            kind: Kind::Measured,
            ..Figure::counted(experiment, name, value)
        }
    }

    /// A modelled figure without a bound.
    #[must_use]
    pub fn modelled(experiment: &'static str, name: impl Into<String>, value: f64) -> Figure {
        Figure {
            kind: Kind::Modelled,
            ..Figure::counted(experiment, name, value)
        }
    }

    /// The same, in `unit`.
    #[must_use]
    pub fn unit(self, unit: &'static str) -> Figure {
        Figure { unit, ..self }
    }

    /// The same, with a bound.
    #[must_use]
    pub fn at_most(self, most: f64) -> Figure {
        Figure {
            at_most: Some(most),
            ..self
        }
    }

    /// The same, with a bound from below.
    #[must_use]
    pub fn at_least(self, least: f64) -> Figure {
        Figure {
            at_least: Some(least),
            ..self
        }
    }

    /// The same, with what others published and how far from it this may be.
    #[must_use]
    pub fn published(self, value: f64, within: f64) -> Figure {
        Figure {
            published: Some(Published { value, within }),
            ..self
        }
    }

    /// The same, with what the rounds found.
    #[must_use]
    pub fn spread(self, rounds: &[f64]) -> Figure {
        Figure {
            spread: Some(spread(rounds)),
            ..self
        }
    }

    /// Whether the bounds hold; true without any. What is no number holds no bound.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.at_most.is_none_or(|most| self.value <= most)
            && self.at_least.is_none_or(|least| self.value >= least)
            && self
                .published
                .is_none_or(|published| (self.value - published.value).abs() <= published.within)
    }
}

/// What a measurement found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The figures, in the order they were found.
    pub figures: Vec<Figure>,
    /// What should be known to read them: lines for people.
    pub notes: Vec<String>,
    /// What is better looked at.
    pub charts: Charts,
}

impl Report {
    /// The first figure whose bound does not hold.
    #[must_use]
    pub fn broken(&self) -> Option<&Figure> {
        self.figures.iter().find(|figure| !figure.holds())
    }
}

/// The median: of an even number of values, the mean of the two in the middle. 0 of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The least and the most; 0 and 0 of none.
#[must_use]
pub fn spread(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().reduce(f64::min);
    let most = values.iter().copied().reduce(f64::max);
    (least.unwrap_or_default(), most.unwrap_or_default())
}

/// How far a measurement has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// What is being done.
    pub what: &'a str,
    /// How much of it is done.
    pub done: u64,
    /// How much there is to do.
    pub all: u64,
}

/// Told how far a measurement has come, several times a second; answers whether to go on.
pub type Watch<'a> = &'a mut dyn FnMut(Step<'_>) -> bool;

/// How often those tell who wait for others.
pub(crate) const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Of what is quick, one in so many is told.
pub(crate) const LOOK_EVERY: u64 = 4096;

/// Tells how far it is, once in [`LOOK_EVERY`]; an error if it is not to go on.
pub(crate) fn now_and_then(watch: Watch<'_>, what: &str, done: u64, all: u64) -> Result<(), Error> {
    match done % LOOK_EVERY {
        0 => look(watch, what, done, all),
        _ => Ok(()),
    }
}

/// Tells how far it is; an error if it is not to go on.
pub(crate) fn look(watch: Watch<'_>, what: &str, done: u64, all: u64) -> Result<(), Error> {
    match watch(Step { what, done, all }) {
        true => Ok(()),
        false => Err(Error::Stopped),
    }
}

/// Why a measurement could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The medium could not be made or opened.
    Medium(farbank_pm::media::OpenError),
    /// The store could not be made or opened.
    Open(farbank_kv::OpenError),
    /// An operation on the store failed.
    Store(farbank_kv::store::Error),
    /// A program that is measured against is not there.
    Missing {
        /// The program.
        program: String,
        /// The Debian package it is in.
        package: &'static str,
    },
    /// Anything else, in words.
    Failed(String),
    /// The watcher said so.
    Stopped,
}

impl Error {
    /// An error of the system, and what was tried.
    pub(crate) fn doing(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
        move |error| Error::Failed(format!("cannot {what}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Medium(error) => error.fmt(f),
            Error::Open(error) => error.fmt(f),
            Error::Store(error) => error.fmt(f),
            Error::Missing { program, .. } => write!(f, "{program} is not there"),
            Error::Failed(why) => f.write_str(why),
            Error::Stopped => f.write_str("stopped before the end"),
        }
    }
}

impl std::error::Error for Error {}

impl From<farbank_pm::media::OpenError> for Error {
    fn from(error: farbank_pm::media::OpenError) -> Error {
        Error::Medium(error)
    }
}

impl From<farbank_kv::OpenError> for Error {
    fn from(error: farbank_kv::OpenError) -> Error {
        Error::Open(error)
    }
}

impl From<farbank_kv::store::Error> for Error {
    fn from(error: farbank_kv::store::Error) -> Error {
        Error::Store(error)
    }
}

impl From<farbank_pm::Poisoned> for Error {
    fn from(error: farbank_pm::Poisoned) -> Error {
        Error::Store(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        for (values, middle) in [
            (&[][..], 0.0),
            (&[3.0], 3.0),
            (&[9.0, 1.0, 2.0], 2.0),
            (&[4.0, 1.0, 2.0, 100.0], 3.0),
        ] {
            assert_eq!(median(values), middle, "{values:?}");
        }
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        assert_eq!(spread(&[]), (0.0, 0.0));
    }

    #[test]
    fn a_bound_holds_up_to_itself() {
        let figure = Figure::counted("load", "fences a set", 1.0);
        assert!(figure.holds());
        assert!(figure.clone().at_most(1.0).holds());
        assert!(!figure.clone().at_most(0.99).holds());
        assert!(figure.clone().at_least(1.0).holds());
        assert!(!figure.clone().at_least(1.01).holds());
        assert!(figure.clone().published(1.04, 0.05).holds());
        assert!(!figure.clone().published(0.9, 0.05).holds());
        let nothing = Figure {
            value: f64::NAN,
            ..figure
        };
        assert!(!nothing.clone().at_most(1.0).holds());
        assert!(!nothing.clone().at_least(1.0).holds());
        assert!(!nothing.published(1.0, f64::INFINITY).holds());
    }
}
