//! Comparison with published values: how many values are near, and which published orders hold.
//!
//! A value is near if it is within 35 % of the published one. This tolerance was set before any run was compared. An
//! order is a claim about several values; each of its steps is checked. A value is held out unless the cluster was
//! calibrated on it.

use crate::figure::{Figure, Score, Scores};

/// Largest relative distance from the published value that counts as near.
pub(super) const NEAR: f64 = 0.35;
/// Smallest share of held-out values that should be near.
const NEAR_SHARE_MIN: f64 = 2.0 / 3.0;

/// Published orders, and descriptions of those that do not hold.
#[derive(Debug, Default)]
pub(super) struct PublishedOrders {
    all: u32,
    broken: Vec<String>,
}

/// Direction of a series from each value to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SeriesTrend {
    /// Every value is larger than the one before it.
    Rises,
    /// Every value is smaller than the one before it.
    Falls,
}

impl SeriesTrend {
    fn goes(self, from: f64, to: f64) -> bool {
        match self {
            SeriesTrend::Rises => to > from,
            SeriesTrend::Falls => to < from,
        }
    }
}

impl PublishedOrders {
    /// Adds a published order, and returns a figure that states whether it holds.
    pub(super) fn order(&mut self, experiment: &'static str, what: &str, holds: bool) -> Figure {
        self.all += 1;
        if !holds {
            self.broken.push(what.into());
        }
        let found = f64::from(u8::from(holds));
        Figure::modelled(experiment, format!("order: {what}"), found).at_least(1.0)
    }

    /// Adds a published order of a series. It holds if every step goes in the direction `way`. The figure's name
    /// contains the values and the number of wrong steps.
    pub(super) fn series(
        &mut self,
        experiment: &'static str,
        what: &str,
        way: SeriesTrend,
        values: &[f64],
    ) -> Figure {
        let text: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        let mut what = format!("{what} ({})", text.join(", "));
        let steps = values.windows(2);
        let wrong = steps.filter(|pair| !way.goes(pair[0], pair[1])).count();
        if wrong > 0 {
            what += &format!(", {wrong} of {} steps do not", values.len() - 1);
        }
        self.order(experiment, &what, wrong == 0)
    }

    /// Returns lines that state how many orders hold and which do not. Empty if there are no orders.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.all > 0 {
            let hold = self.all - self.broken.len() as u32;
            notes.push(format!("{hold} of {} published orders hold", self.all));
        }
        let broken = self.broken.iter();
        notes.extend(broken.map(|what| format!("does not hold: {what}")));
        notes
    }
}

/// Returns the share of held-out values that are near, with its bound. A value that was not measured is not near.
pub(super) fn share_near<'a>(figures: impl Iterator<Item = &'a Figure> + Clone) -> Figure {
    let held_out = |figure: &&Figure| figure.published.is_some_and(|one| !one.binding);
    let scores = Scores::of(figures.filter(held_out));
    let all = scores.all();
    let share = scores.near as f64 / all.max(1) as f64;
    let name = format!(
        "{}: {} of {all} that were held out",
        Score::Near.name(),
        scores.near
    );
    Figure::modelled("held-out", name, share).at_least(NEAR_SHARE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_means_within_35_percent_and_calibrated_values_are_not_held_out() {
        let ratio = |value| Figure::modelled("test", "ratio", value);
        let compared =
            [0.66, 1.34, 0.64, 1.36, f64::NAN].map(|value| ratio(value).compared(1.0, NEAR));
        let calibrated = ratio(1.0).published(1.0, 0.15);
        let share = share_near(compared.iter().chain([&calibrated]));
        assert_eq!((share.value, share.holds()), (0.4, false));
        assert_eq!(share.name, "near: 2 of 5 that were held out");
    }

    #[test]
    fn an_order_that_does_not_hold_breaks_its_bound_and_is_reported() {
        let mut orders = PublishedOrders::default();
        assert!(orders.order("test", "a over b", true).holds());
        assert!(!orders.order("test", "b over c", false).holds());
        assert_eq!(
            orders.notes(),
            ["1 of 2 published orders hold", "does not hold: b over c"]
        );
    }

    #[test]
    fn a_series_with_a_falling_step_does_not_rise() {
        let mut orders = PublishedOrders::default();
        // Gains with keys of 16, 64, 256 and 1,024 bytes. The last is larger than the first, but the second step
        // falls.
        let gains = [1.12, 0.90, 1.22, 1.40];
        let figure = orders.series(
            "keys",
            "the longer the keys, the more",
            SeriesTrend::Rises,
            &gains,
        );
        assert!(!figure.holds());
        assert_eq!(
            figure.name,
            "order: the longer the keys, the more (1.12, 0.90, 1.22, 1.40), 1 of 3 steps do not"
        );
        let rising = orders.series("keys", "up", SeriesTrend::Rises, &[1.0, 1.1, 1.2]);
        assert!(rising.holds());
        assert!(
            !orders
                .series("keys", "flat", SeriesTrend::Rises, &[1.0, 1.0])
                .holds()
        );
        assert!(
            orders
                .series("keys", "down", SeriesTrend::Falls, &[1.2, 1.1])
                .holds()
        );
    }
}
