//! The parameter `latency-tracking-info-percentiles`: the percentiles that INFO latencystats shows.

use super::config_error::ConfigError;
use super::text::quote;
use crate::settings::LiveSettings;

pub(super) const NAME: &str = "latency-tracking-info-percentiles";
const DEFAULT: &str = "50 99 99.9";
/// Digits of a percentile that CONFIG GET shows, as Redis's `%.10g` does.
const DIGITS: i32 = 10;

/// The value as CONFIG GET shows it.
pub(super) fn value(settings: &LiveSettings) -> String {
    let kept = settings.kept.get(NAME);
    kept.unwrap_or_else(|| DEFAULT.into())
}

/// The percentiles. None if the value is empty.
pub(super) fn percentiles(settings: &LiveSettings) -> Vec<f64> {
    let value = value(settings);
    value.split(' ').flat_map(str::parse).collect()
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
        shown.push(short(percent));
    }
    Ok(shown.join(" "))
}

/// Returns a percentile with [`DIGITS`] significant digits, without zeros at its end.
fn short(percent: f64) -> String {
    let before = match percent {
        0.0 => 1,
        _ => percent.log10().floor() as i32 + 1,
    };
    trimmed(&format!("{percent:.*}", (DIGITS - before) as usize))
}

/// Returns a percentile as INFO shows it: C's `%f` without zeros at its end.
pub(super) fn label(percent: f64) -> String {
    trimmed(&format!("{percent:.6}"))
}

fn trimmed(number: &str) -> String {
    let number = number.trim_end_matches('0');
    number.trim_end_matches('.').to_owned()
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
