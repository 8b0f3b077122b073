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
    /// The published value of the same quantity, and how far from it this may be.
    pub published: Option<Published>,
    /// Number of events the value is taken from, if that can be 0.
    pub events: Option<u64>,
    /// Why the value is not a measurement of what the experiment is about.
    pub caveat: Option<String>,
}

/// A published value and the tolerance that is set before a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Published {
    /// The published value.
    pub value: f64,
    /// The largest distance that counts as near, in the figure's unit.
    pub within: f64,
    /// Whether a larger distance fails the run. If not, the figure only counts as not near.
    pub binding: bool,
}

/// What a run says about the bounds of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All of them hold.
    Holds,
    /// One of them does not.
    Broken,
    /// The events that the figure counts never happened, or the figure has a caveat.
    NotMeasured,
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
            events: None,
            caveat: None,
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

    /// The same, with a published value and how far from it this may be: farther fails the run.
    #[must_use]
    pub fn published(self, value: f64, within: f64) -> Figure {
        Figure {
            published: Some(Published {
                value,
                within,
                binding: true,
            }),
            ..self
        }
    }

    /// The same, scored against a published value: near if it is within `part` of it. Farther does not fail the run.
    #[must_use]
    pub fn compared(self, value: f64, part: f64) -> Figure {
        Figure {
            published: Some(Published {
                value,
                within: part * value.abs(),
                binding: false,
            }),
            ..self
        }
    }

    /// The same, taken from so many events. Of none, no bound is measured.
    #[must_use]
    pub fn of_events(self, events: u64) -> Figure {
        Figure {
            events: Some(events),
            ..self
        }
    }

    /// The same, with a reason why it does not measure what the experiment is about, if there is one.
    #[must_use]
    pub fn caveat(self, caveat: Option<String>) -> Figure {
        Figure { caveat, ..self }
    }

    /// The same, with what the rounds found.
    #[must_use]
    pub fn spread(self, rounds: &[f64]) -> Figure {
        Figure {
            spread: Some(spread(rounds)),
            ..self
        }
    }

    /// Whether the value can be compared with anything.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.events != Some(0) && self.caveat.is_none()
    }

    /// Whether the bounds hold; `None` without any. A value that is not a number breaks every bound.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let binding = self.published.filter(|published| published.binding);
        if self.at_most.is_none() && self.at_least.is_none() && binding.is_none() {
            return None;
        }
        if !self.is_measured() {
            return Some(Verdict::NotMeasured);
        }
        let holds = self.at_most.is_none_or(|most| self.value <= most)
            && self.at_least.is_none_or(|least| self.value >= least)
            && binding.is_none_or(|published| self.is_within(published));
        Some(match holds {
            true => Verdict::Holds,
            false => Verdict::Broken,
        })
    }

    /// Whether no bound is broken.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdict() != Some(Verdict::Broken)
    }

    /// How it compares with the published value; `None` if there is none.
    #[must_use]
    pub fn score(&self) -> Option<Score> {
        let published = self.published?;
        Some(match (self.is_measured(), self.is_within(published)) {
            (false, _) => Score::NotMeasured,
            (true, true) => Score::Near,
            (true, false) => Score::Far,
        })
    }

    fn is_within(&self, published: Published) -> bool {
        (self.value - published.value).abs() <= published.within
    }
}

/// How a figure compares with its published value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Score {
    /// Within the tolerance.
    Near,
    /// Outside of the tolerance.
    Far,
    /// There is nothing to compare.
    NotMeasured,
}

impl Score {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Score::Near => "near",
            Score::Far => "NOT NEAR",
            Score::NotMeasured => "NOT MEASURED",
        }
    }
}

/// Figures with a published value, by their score.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scores {
    /// How many are near.
    pub near: usize,
    /// Names of those that are not.
    pub far: Vec<String>,
    /// Names of those that were not measured.
    pub not_measured: Vec<String>,
}

impl Scores {
    /// Scores every one of `figures` that has a published value.
    #[must_use]
    pub fn of<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> Scores {
        let mut scores = Scores::default();
        for figure in figures {
            let name = || format!("{}: {}", figure.experiment, figure.name);
            match figure.score() {
                None => {}
                Some(Score::Near) => scores.near += 1,
                Some(Score::Far) => scores.far.push(name()),
                Some(Score::NotMeasured) => scores.not_measured.push(name()),
            }
        }
        scores
    }

    /// Figures with a published value.
    #[must_use]
    pub fn all(&self) -> usize {
        self.near + self.far.len() + self.not_measured.len()
    }

    /// The count and the losing rows in words; nothing if nothing was compared.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let all = self.all();
        if all == 0 {
            return Vec::new();
        }
        let count = format!(
            "{} of {all} published values are near: {} are not, {} were not measured",
            self.near,
            self.far.len(),
            self.not_measured.len()
        );
        let far = self.far.iter().map(|name| format!("not near: {name}"));
        let none = self.not_measured.iter();
        let none = none.map(|name| format!("not measured: {name}"));
        std::iter::once(count).chain(far).chain(none).collect()
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
pub type ProgressFn<'a> = &'a mut dyn FnMut(Step<'_>) -> bool;

/// How often those tell who wait for others.
pub(crate) const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Of what is quick, one in so many is told.
pub(crate) const LOOK_EVERY: u64 = 4096;

/// Tells how far it is, once in [`LOOK_EVERY`]; an error if it is not to go on.
pub(crate) fn report_every(
    watch: ProgressFn<'_>,
    what: &str,
    done: u64,
    all: u64,
) -> Result<(), Error> {
    match done % LOOK_EVERY {
        0 => report_progress(watch, what, done, all),
        _ => Ok(()),
    }
}

/// Tells how far it is; an error if it is not to go on.
pub(crate) fn report_progress(
    watch: ProgressFn<'_>,
    what: &str,
    done: u64,
    all: u64,
) -> Result<(), Error> {
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

    #[test]
    fn a_bound_on_something_that_never_happened_is_not_measured() {
        let splits = |share, events| {
            let figure = Figure::counted("counts", "writes that split", share);
            figure.at_most(0.01).compared(0.004, 0.35).of_events(events)
        };
        let none = splits(0.0, 0);
        assert_eq!(none.verdict(), Some(Verdict::NotMeasured));
        assert_eq!(none.score(), Some(Score::NotMeasured));
        assert!(none.holds(), "it does not fail a run");
        assert_eq!(splits(0.004, 7).verdict(), Some(Verdict::Holds));
        assert_eq!(splits(0.004, 7).score(), Some(Score::Near));
        assert_eq!(splits(0.02, 7).verdict(), Some(Verdict::Broken));
        let small = splits(0.004, 7).caveat(Some("all data fit the cache".into()));
        assert_eq!(small.verdict(), Some(Verdict::NotMeasured));
    }

    #[test]
    fn every_published_value_is_scored_and_losing_rows_are_named() {
        let figure = |name: &str, value| Figure::modelled("test", name, value);
        let figures = [
            figure("inside", 1.34).compared(1.0, 0.35),
            figure("outside", 0.64).compared(1.0, 0.35),
            figure("no number", f64::NAN).compared(1.0, 0.35),
            figure("binding", 1.1).published(1.0, 0.15),
            figure("never", 0.0).compared(1.0, 0.35).of_events(0),
            figure("unpublished", 1.0),
        ];
        assert!(figures.iter().all(Figure::holds), "none of these binds");
        let scores = Scores::of(&figures);
        assert_eq!((scores.near, scores.all()), (2, 5));
        assert_eq!(scores.far, ["test: outside", "test: no number"]);
        assert_eq!(scores.not_measured, ["test: never"]);
        let notes = scores.notes();
        assert_eq!(
            notes[0],
            "2 of 5 published values are near: 2 are not, 1 were not measured"
        );
        assert_eq!(notes.len(), 4);
        assert!(Scores::default().notes().is_empty());
    }
}
