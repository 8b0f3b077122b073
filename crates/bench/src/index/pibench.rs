//! PiBench's output, byte for byte, so that scripts which parse it can parse ours.
//!
//! The text is that of PiBench's commit a78171a. Numbers are printed like C++ streams do: with at most six digits up
//! to the run time, and with four decimals from there on. The time is UTC.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::IndexOptions;
use super::contender::IndexContender;
use super::keys::Distribution;
use super::run::{DrawnOp, MixedRun, mixed, most_records};
use crate::figure::{Error, ProgressFn};
use crate::machine;

/// Runs PiBench's load and mix. Returns the text that PiBench prints.
pub(super) fn run(options: &IndexOptions, contender: &IndexContender) -> Result<String, Error> {
    let watch: ProgressFn<'_> = &mut |_| true;
    let subject = contender.make(options, most_records(options), watch)?;
    let mut text = environment();
    if options.seconds.is_some() {
        let before = "Time-based benchmark selected - changing key space to +inf\n";
        text.insert_str(0, before);
    }
    options_text(&mut text, options, contender);
    let mixed = mixed(options, &*subject, watch)?;
    results(&mut text, options, &mixed);
    Ok(text)
}

/// Formats a number as a C++ stream does by default: `%g`.
fn short(value: f64) -> String {
    // The exponent after rounding to six digits.
    let text = format!("{value:.5e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let whole = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        let after = (5 - exponent) as usize;
        return whole(&format!("{value:.after$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", whole(digits), exponent.abs())
}

fn environment() -> String {
    let unknown = "Could not open /proc/cpuinfo";
    let (cpus, model, cache) = match fs::read_to_string("/proc/cpuinfo") {
        Ok(info) => {
            let last = |name| {
                machine::values(&info, name)
                    .last()
                    .unwrap_or_default()
                    .to_owned()
            };
            let cpus = machine::values(&info, "model name").count();
            (cpus, last("model name"), last("cache size"))
        }
        Err(_) => (0, unknown.into(), unknown.into()),
    };
    let kernel = rustix::system::uname();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format!(
        "Environment:\n\tTime: {}\n\tCPU: {cpus} * {model}\n\tCPU Cache: {cache}\n\tKernel: {} {}\n",
        calendar(now.unwrap_or_default()),
        kernel.sysname().to_string_lossy(),
        kernel.release().to_string_lossy(),
    )
}

/// Formats a time since 1970 like `asctime`: `Tue Nov  5 14:05:25 2019`.
fn calendar(since: Duration) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
    ];
    let seconds = since.as_secs();
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March of year 0, so that a leap day is the last day of its year.
    let days = day + 719_468;
    let (era, in_era) = (days / 146_097, days % 146_097);
    let of_era = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * of_era + of_era / 4 - of_era / 100);
    let month = (5 * in_year + 2) / 153;
    let year = era * 400 + of_era + u64::from(month >= 10);
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {year}",
        DAYS[(day % 7) as usize],
        MONTHS[month as usize],
        in_year - (153 * month + 2) / 5 + 1,
        second / 3600,
        second / 60 % 60,
        second % 60,
    )
}

fn options_text(text: &mut String, options: &IndexOptions, contender: &IndexContender) {
    let target = match contender {
        IndexContender::Plugin(library) => library.display().to_string(),
        other => other.name().into(),
    };
    let distribution = match options.distribution {
        Distribution::Uniform => "UNIFORM".into(),
        Distribution::SelfSimilar(skew) => format!("SELFSIMILAR({skew:.6})"),
        Distribution::Zipfian(skew) => format!("ZIPFIAN({skew:.6})"),
    };
    let timed = match options.timed_one_in {
        0 => 0.0,
        one_in => 1.0 / one_in as f64,
    };
    let (ratios, bytes) = (&options.ratios, &options.bytes);
    let lasts = match options.seconds {
        None => ("# Operations", options.operations.to_string()),
        Some(seconds) => ("Duration (s)", seconds.to_string()),
    };
    let lines = [
        ("Target", target),
        ("# Records", options.records.to_string()),
        ("# Threads", options.threads.to_string()),
        lasts,
        ("Sampling", format!("{} ms", options.sampling_ms)),
        ("Latency", short(timed)),
        ("Key prefix", bytes.prefix.clone()),
        ("Key size", bytes.key.to_string()),
        ("Value size", bytes.value.to_string()),
        ("Random seed", options.seed.to_string()),
        ("Key distribution", distribution),
        ("Scan size", options.scan_size.to_string()),
        ("Operations ratio", String::new()),
        ("\tRead", short(ratios.read)),
        ("\tInsert", short(ratios.insert)),
        ("\tUpdate", short(ratios.update)),
        ("\tDelete", short(ratios.remove)),
        ("\tScan", short(ratios.scan)),
    ];
    text.push_str("Benchmark Options:\n");
    for (name, value) in lines {
        let space = if name == "Operations ratio" { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\t{name}:{space}{value}");
    }
}

fn results(text: &mut String, options: &IndexOptions, mixed: &MixedRun) {
    let (run, completed) = (&mixed.run, mixed.completed());
    let ms = |took: Duration| took.as_secs_f64() * 1e3;
    let rate = |count: u64| count as f64 / run.took.as_secs_f64();
    let mut line = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    line(format_args!("Overview:"));
    line(format_args!(
        "\tLoad time: {} milliseconds",
        short(ms(mixed.load))
    ));
    line(format_args!("\tRun time: {:.4} milliseconds", ms(run.took)));
    line(format_args!(
        "Results:\n\tOperations: {completed}\n\tThroughput:"
    ));
    line(format_args!("\t- Completed: {:.4} ops/s", rate(completed)));
    line(format_args!(
        "\t- Succeeded: {:.4} ops/s\n\tBreakdown:",
        rate(mixed.succeeded())
    ));
    let kinds = [
        ("Insert", mixed.tally(DrawnOp::Insert)),
        ("Read", mixed.tally(DrawnOp::Read)),
        ("Update", mixed.tally(DrawnOp::Update)),
        ("Remove", mixed.tally(DrawnOp::Remove)),
        ("Scan", mixed.tally(DrawnOp::Scan)),
    ];
    for (kind, (completed, succeeded)) in kinds {
        line(format_args!(
            "\t- {kind} completed: {:.4} ops/s",
            rate(completed)
        ));
        line(format_args!(
            "\t- {kind} succeeded: {:.4} ops/s",
            rate(succeeded)
        ));
    }
    line(format_args!("Samples:"));
    for sample in &run.samples {
        line(format_args!("\t{sample}"));
    }
    if options.timed_one_in == 0 {
        return;
    }
    line(format_args!(
        "Latencies ({} operations observed):",
        run.times_ns.len()
    ));
    let shares = [
        ("min", 0.0),
        ("50%", 0.5),
        ("90%", 0.9),
        ("99%", 0.99),
        ("99.9%", 0.999),
        ("99.99%", 0.9999),
        ("99.999%", 0.99999),
        ("max", 1.0),
    ];
    for (name, share) in shares {
        line(format_args!("\t{name}: {}", run.quantile(share)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_by_cxx_streams() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (13_894.3, "13894.3"),
            (450.6471, "450.647"),
            (999_999.0, "999999"),
            (999_999.7, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_012_34, "1.234e-05"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn times_are_printed_as_by_asctime() {
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (1_572_962_725, "Tue Nov  5 14:05:25 2019"),
            (4_107_542_399, "Sun Feb 28 23:59:59 2100"),
        ] {
            assert_eq!(calendar(Duration::from_secs(seconds)), text);
        }
    }
}
