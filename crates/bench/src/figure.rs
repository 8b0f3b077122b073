//! Results of a measurement: figures with their bounds, and reports.
//!
//! A figure is *counted* (exact, the same on any machine), *measured* (by a clock, on this machine, in this run and
//! with its other load) or *modelled* (virtual time of simulated memory). Output always shows this word next to the
//! figure.

use std::time::Duration;

use crate::chart::Charts;

pub use crate::error::Error;

/// How the value of a figure was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Counted: exact, and independent of the machine.
    Counted,
    /// Measured by a clock, on this machine and in this run.
    Measured,
    /// Computed by the model of far memory. The notes state its version, constants and seed.
    Modelled,
}

impl Kind {
    /// Returns the word that is printed next to the figure.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counted => "counted",
            Kind::Measured => "measured",
            Kind::Modelled => "modelled",
        }
    }
}

/// A value with its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Experiment that the figure belongs to.
    pub experiment: &'static str,
    /// Name of the quantity.
    pub name: String,
    /// How the value was obtained.
    pub kind: Kind,
    /// The value.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// Smallest and largest value of several rounds.
    pub spread: Option<(f64, f64)>,
    /// Upper bound, if there is one.
    pub at_most: Option<f64>,
    /// Lower bound, if there is one.
    pub at_least: Option<f64>,
    /// Published value of the same quantity, with the allowed distance from it.
    pub published: Option<Published>,
    /// Number of events from which the value was computed, if it can be 0.
    pub events: Option<u64>,
    /// Reason why the value does not measure the subject of the experiment.
    pub caveat: Option<String>,
}

/// A published value and its tolerance, which is set before a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Published {
    /// The published value.
    pub value: f64,
    /// Largest distance that counts as near, in the figure's unit.
    pub within: f64,
    /// Whether a larger distance fails the run. Otherwise the figure only counts as not near.
    pub binding: bool,
}

/// Result of comparing a figure with its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All bounds hold.
    Holds,
    /// A bound is broken.
    Broken,
    /// No event was counted, or the figure has a caveat.
    NotMeasured,
}

impl Figure {
    /// Creates a counted figure without a bound.
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

    /// Creates a measured figure without a bound.
    #[must_use]
    pub fn measured(experiment: &'static str, name: impl Into<String>, value: f64) -> Figure {
        Figure {
            kind: Kind::Measured,
            ..Figure::counted(experiment, name, value)
        }
    }

    /// Creates a modelled figure without a bound.
    #[must_use]
    pub fn modelled(experiment: &'static str, name: impl Into<String>, value: f64) -> Figure {
        Figure {
            kind: Kind::Modelled,
            ..Figure::counted(experiment, name, value)
        }
    }

    /// Sets the unit.
    #[must_use]
    pub fn unit(self, unit: &'static str) -> Figure {
        Figure { unit, ..self }
    }

    /// Sets an upper bound.
    #[must_use]
    pub fn at_most(self, most: f64) -> Figure {
        Figure {
            at_most: Some(most),
            ..self
        }
    }

    /// Sets a lower bound.
    #[must_use]
    pub fn at_least(self, least: f64) -> Figure {
        Figure {
            at_least: Some(least),
            ..self
        }
    }

    /// Sets a published value and the allowed distance from it. A larger distance fails the run.
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

    /// Sets a published value; the figure is near if it differs by at most `part` of it. A larger distance does not
    /// fail the run.
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

    /// Sets the number of events that the value comes from. With 0 events the bounds count as not measured.
    #[must_use]
    pub fn of_events(self, events: u64) -> Figure {
        Figure {
            events: Some(events),
            ..self
        }
    }

    /// Sets the reason, if any, why the value does not measure the subject of the experiment.
    #[must_use]
    pub fn caveat(self, caveat: Option<String>) -> Figure {
        Figure { caveat, ..self }
    }

    /// Sets the spread from the values of all rounds.
    #[must_use]
    pub fn spread(self, rounds: &[f64]) -> Figure {
        Figure {
            spread: Some(spread(rounds)),
            ..self
        }
    }

    /// Returns whether the value can be compared with bounds and published values.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.events != Some(0) && self.caveat.is_none()
    }

    /// Returns whether the bounds hold, or `None` if there are none. NaN breaks every bound.
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

    /// Returns whether no bound is broken.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdict() != Some(Verdict::Broken)
    }

    /// Returns how the value compares with the published value, or `None` if there is none.
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

/// Result of comparing a figure with its published value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Score {
    /// Within the tolerance.
    Near,
    /// Outside of the tolerance.
    Far,
    /// The figure was not measured.
    NotMeasured,
}

impl Score {
    /// Returns the word that is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Score::Near => "near",
            Score::Far => "NOT NEAR",
            Score::NotMeasured => "NOT MEASURED",
        }
    }
}

/// Scores of all figures with a published value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scores {
    /// Number of figures that are near.
    pub near: usize,
    /// Names of the figures that are not near.
    pub far: Vec<String>,
    /// Names of the figures that were not measured.
    pub not_measured: Vec<String>,
}

impl Scores {
    /// Scores every figure that has a published value.
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

    /// Returns the number of figures with a published value.
    #[must_use]
    pub fn all(&self) -> usize {
        self.near + self.far.len() + self.not_measured.len()
    }

    /// Returns the counts, and a line for each figure that is not near. Empty if no figure has a published value.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let all = self.all();
        if all == 0 {
            return Vec::new();
        }
        let count = format!(
            "{} of {all} figures are near their published values: {} are not, {} were not measured",
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

/// Results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Figures, in the order in which they were computed.
    pub figures: Vec<Figure>,
    /// Lines that help to interpret the figures.
    pub notes: Vec<String>,
    /// Charts of the figures.
    pub charts: Charts,
}

impl Report {
    /// Returns the first figure with a broken bound.
    #[must_use]
    pub fn broken(&self) -> Option<&Figure> {
        self.figures.iter().find(|figure| !figure.holds())
    }
}

/// Returns the median. For an even number of values it is the mean of the middle two; for none it is 0.
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

/// Returns the smallest and the largest value; 0 and 0 for no values.
#[must_use]
pub fn spread(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().reduce(f64::min);
    let most = values.iter().copied().reduce(f64::max);
    (least.unwrap_or_default(), most.unwrap_or_default())
}

/// Progress of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Current activity.
    pub what: &'a str,
    /// Units of work done.
    pub done: u64,
    /// Units of work in total.
    pub all: u64,
}

/// Callback that receives the progress several times a second. It returns whether to continue.
pub type ProgressFn<'a> = &'a mut dyn FnMut(Step<'_>) -> bool;

/// Interval at which a waiting thread reports progress.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// For quick operations, progress is reported once in this many.
pub(crate) const PROGRESS_EVERY: u64 = 4096;

/// Reports progress once in 4,096 operations.
///
/// # Errors
/// [`Error::Stopped`] if the callback stops the run.
pub fn report_every(watch: ProgressFn<'_>, what: &str, done: u64, all: u64) -> Result<(), Error> {
    match done % PROGRESS_EVERY {
        0 => report_progress(watch, what, done, all),
        _ => Ok(()),
    }
}

/// Reports progress.
///
/// # Errors
/// [`Error::Stopped`] if the callback stops the run.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_spread_of_few_values_are_right() {
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
    fn a_value_equal_to_its_bound_holds_and_nan_does_not() {
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
    fn a_bound_without_events_or_with_a_caveat_is_not_measured() {
        let splits = |share, events| {
            let figure = Figure::counted("counts", "writes that split", share);
            figure.at_most(0.01).compared(0.004, 0.35).of_events(events)
        };
        let none = splits(0.0, 0);
        assert_eq!(none.verdict(), Some(Verdict::NotMeasured));
        assert_eq!(none.score(), Some(Score::NotMeasured));
        assert!(
            none.holds(),
            "a figure that was not measured does not fail a run"
        );
        assert_eq!(splits(0.004, 7).verdict(), Some(Verdict::Holds));
        assert_eq!(splits(0.004, 7).score(), Some(Score::Near));
        assert_eq!(splits(0.02, 7).verdict(), Some(Verdict::Broken));
        let small = splits(0.004, 7).caveat(Some("all data fit the cache".into()));
        assert_eq!(small.verdict(), Some(Verdict::NotMeasured));
    }

    #[test]
    fn every_published_value_is_scored_and_figures_that_are_not_near_are_named() {
        let figure = |name: &str, value| Figure::modelled("test", name, value);
        let figures = [
            figure("inside", 1.34).compared(1.0, 0.35),
            figure("outside", 0.64).compared(1.0, 0.35),
            figure("no number", f64::NAN).compared(1.0, 0.35),
            figure("binding", 1.1).published(1.0, 0.15),
            figure("never", 0.0).compared(1.0, 0.35).of_events(0),
            figure("unpublished", 1.0),
        ];
        assert!(figures.iter().all(Figure::holds), "no bound is broken");
        let scores = Scores::of(&figures);
        assert_eq!((scores.near, scores.all()), (2, 5));
        assert_eq!(scores.far, ["test: outside", "test: no number"]);
        assert_eq!(scores.not_measured, ["test: never"]);
        let notes = scores.notes();
        assert_eq!(
            notes[0],
            "2 of 5 figures are near their published values: 2 are not, 1 were not measured"
        );
        assert_eq!(notes.len(), 4);
        assert!(Scores::default().notes().is_empty());
    }
}
