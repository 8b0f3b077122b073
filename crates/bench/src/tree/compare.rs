//! What was published beside what is found: how much of it is near, and which orders hold.
//!
//! A figure is near if it is within 35 % of the published one. Nothing that is compared here was looked at to calibrate the rack.

use crate::figure::Figure;

/// How far from the published figure a near one may be, as a part of it.
const NEAR: f64 = 0.35;
/// At least this part of all should be near.
const NEAR_SHARE_MIN: f64 = 2.0 / 3.0;

/// What has been compared.
#[derive(Debug, Default)]
pub(super) struct Compared {
    near: u32,
    far: Vec<String>,
    orders: u32,
    broken: Vec<String>,
}

impl Compared {
    /// Compares `figure`, and shows what was published beside it.
    pub(super) fn ratio(&mut self, figure: Figure, published: f64) -> Figure {
        if (figure.value - published).abs() <= NEAR * published {
            self.near += 1;
        } else {
            self.far.push(figure.name.clone());
        }
        figure.published(published, f64::INFINITY)
    }

    /// An order of figures that was published, and whether it is found.
    pub(super) fn order(&mut self, experiment: &'static str, what: &str, holds: bool) -> Figure {
        self.orders += 1;
        if !holds {
            self.broken.push(what.into());
        }
        let found = f64::from(u8::from(holds));
        Figure::modelled(experiment, format!("order: {what}"), found).at_least(1.0)
    }

    /// Which part is near, and the bound that it should hold.
    pub(super) fn share_near(&self) -> Figure {
        let all = self.near + self.far.len() as u32;
        let share = f64::from(self.near) / f64::from(all.max(1));
        let name = format!("near what was published, of {all} held out");
        Figure::modelled("held-out", name, share).at_least(NEAR_SHARE_MIN)
    }

    /// In words, if anything was compared.
    pub(super) fn notes(&self) -> Vec<String> {
        let all = self.near + self.far.len() as u32;
        let mut notes = Vec::new();
        if all > 0 {
            notes.push(format!(
                "{} of {all} held-out figures are within 35 % of what was published",
                self.near
            ));
        }
        notes.extend(self.far.iter().map(|name| format!("not near: {name}")));
        if self.orders > 0 {
            let hold = self.orders - self.broken.len() as u32;
            notes.push(format!("{hold} of {} published orders hold", self.orders));
        }
        notes.extend(
            self.broken
                .iter()
                .map(|what| format!("does not hold: {what}")),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_is_35_in_a_hundred_and_no_more() {
        let mut compared = Compared::default();
        for value in [0.66, 1.34, 0.64, 1.36, f64::NAN] {
            compared.ratio(Figure::modelled("test", "ratio", value), 1.0);
        }
        let share = compared.share_near();
        assert_eq!((share.value, share.holds()), (0.4, false));
        assert_eq!(compared.far.len(), 3);
    }

    #[test]
    fn an_order_that_does_not_hold_breaks_its_bound_and_is_told() {
        let mut compared = Compared::default();
        assert!(compared.order("test", "a over b", true).holds());
        assert!(!compared.order("test", "b over c", false).holds());
        assert!(
            compared
                .notes()
                .iter()
                .any(|note| note.ends_with("b over c"))
        );
    }
}
