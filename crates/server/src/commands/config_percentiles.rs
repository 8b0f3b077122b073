//! The parameter `latency-tracking-info-percentiles`: the percentiles that INFO latencystats shows.

use super::config_error::ConfigError;
use super::text::quote;
use crate::settings::LiveSettings;

pub(super) const NAME: &str = "latency-tracking-info-percentiles";
const DEFAULT: &str = "50 99 99.9";

/// The percentiles as CONFIG GET and INFO show them, separated by a blank.
pub(super) fn value(settings: &LiveSettings) -> String {
    let kept = settings.kept.get(NAME);
    kept.unwrap_or_else(|| DEFAULT.into())
}

/// Checks a value: numbers from 0 to 100, separated by a blank, or nothing. Returns it as CONFIG GET shows it.
pub(super) fn check(value: &[u8]) -> Result<String, ConfigError> {
    let text = std::str::from_utf8(quote(value, usize::MAX));
    let text = text.map_err(|_| ConfigError::NotPercentiles)?;
    if text.is_empty() {
        return Ok(String::new());
    }
    let mut shown = Vec::new();
    for word in text.split(' ') {
        let number = word.parse().ok().filter(|number: &f64| !number.is_nan());
        let percent = number.ok_or(ConfigError::NotPercentiles)?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(ConfigError::PercentileRange);
        }
        shown.push(label(percent));
    }
    Ok(shown.join(" "))
}

/// Returns a percentile as it is shown: C's `%f` without zeros at its end.
fn label(percent: f64) -> String {
    let label = format!("{percent:.6}");
    let label = label.trim_end_matches('0');
    label.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numbers_up_to_100_shown_without_zeros_at_the_end() {
        for (value, shown) in [
            ("", Ok("")),
            ("0.0 50.0 100.0", Ok("0 50 100")),
            ("99.9 5e1 0.001", Ok("99.9 50 0.001")),
            ("99.99999999999", Ok("100")),
            ("0.00001 1e-7 33.3333333", Ok("0.00001 0 33.333333")),
            ("10 20 30 ", Err(ConfigError::NotPercentiles)),
            ("10.0 50.0 a", Err(ConfigError::NotPercentiles)),
            ("NaN", Err(ConfigError::NotPercentiles)),
            ("inf", Err(ConfigError::PercentileRange)),
            ("-1", Err(ConfigError::PercentileRange)),
            ("10.0 101", Err(ConfigError::PercentileRange)),
        ] {
            assert_eq!(check(value.as_bytes()), shown.map(str::to_owned), "{value}");
        }
        assert_eq!(label(99.9), "99.9");
        assert_eq!(label(100.0), "100");
        assert_eq!(label(0.0), "0");
    }
}
