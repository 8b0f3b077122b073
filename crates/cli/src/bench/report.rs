//! Runs a measurement and prints its report: a table, Markdown, JSON or a chart.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use farbank_bench::figure::{Error, Figure, Report, Scores, Step, Verdict};
use farbank_bench::machine;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::common::Failure;

/// Output formats besides the table.
#[derive(Args)]
pub(super) struct OutputForm {
    /// Print one JSON object on the last line.
    #[arg(long)]
    pub(super) json: bool,
    /// Write the measured curves to FILE as an SVG chart. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Print only a Markdown table of the figures that have a published value.
    #[arg(long, conflicts_with = "json")]
    pub(super) markdown: bool,
}

impl OutputForm {
    pub(super) fn json(json: bool) -> OutputForm {
        OutputForm {
            json,
            svg: None,
            markdown: false,
        }
    }

    /// Checks that the output file can be written, before the measurement.
    fn check(&self) -> Result<(), Failure> {
        let folder = self.svg.as_deref().and_then(Path::parent);
        match folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            None => Ok(()),
            Some(folder) => {
                let why = format!("--svg: the folder {} does not exist", folder.display());
                Err(Failure::Usage(why))
            }
        }
    }

    /// Writes the curves of `report` to the file of `--svg`, if given.
    fn draw(&self, report: &Report) -> Result<(), Failure> {
        let Some(path) = &self.svg else {
            return Ok(());
        };
        let file = path.display();
        if report.charts.0.is_empty() {
            let why = format!("{file} was not written: this experiment found no curve to draw");
            return Err(Failure::failed(why));
        }
        let picture = report.charts.svg().map_err(failure)?;
        let written = std::fs::write(path, picture);
        written.map_err(|error| Failure::failed(format!("cannot write {file}: {error}")))
    }
}

/// Runs a measurement with a progress bar, and prints the report. Fails if a bound does not hold.
pub(super) fn measure(
    bench: &str,
    settings: Value,
    show: &OutputForm,
    table: fn(&Report) -> String,
    run: impl FnOnce(&mut dyn FnMut(Step<'_>) -> bool) -> Result<Report, Error>,
) -> Result<(), Failure> {
    show.check()?;
    // On a signal the run stops and removes its children and files before it reports the error.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Failure::failed(format!("cannot wait for signals: {e}")))?;
    }
    let machine = MachineInfo::now();
    let started = Instant::now();
    let bar = BenchProgress::new();
    let report = run(&mut |step| {
        bar.show(&step);
        !stop.load(Ordering::Relaxed)
    });
    bar.0.finish_and_clear();
    let mut report = report.map_err(failure)?;
    let scores = Scores::of(&report.figures);
    report.notes.extend(scores.notes());
    if show.markdown {
        print!("{}", markdown(&report));
    } else {
        print!("{}", table(&report));
        println!("{}", machine.line(started.elapsed()));
        for note in &report.notes {
            println!("note: {note}");
        }
    }
    if show.json {
        println!("{}", object(bench, settings, &report, &machine));
    }
    show.draw(&report)?;
    match report.broken() {
        None => Ok(()),
        Some(figure) => Err(Failure::failed(complaint(figure))),
    }
}

pub(super) fn failure(error: Error) -> Failure {
    let hint = match &error {
        Error::Missing { package, .. } => Some(format!(
            "on Debian it is in the package {package}: apt install {package}"
        )),
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint,
    }
}

fn complaint(figure: &Figure) -> String {
    format!(
        "{}: {} is {}, and should be {}",
        figure.experiment,
        figure.name,
        number(figure.value),
        bound(figure).unwrap_or_default()
    )
}

/// Returns the bounds that `figure` must hold, as text, or `None` if it has none.
pub(super) fn bound(figure: &Figure) -> Option<String> {
    let binding = figure.published.filter(|published| published.binding);
    let bounds = [
        figure
            .at_most
            .map(|most| format!("at most {}", number(most))),
        figure
            .at_least
            .map(|least| format!("at least {}", number(least))),
        binding
            .filter(|near| near.within.is_finite())
            .map(|near| format!("{} +- {}", number(near.value), number(near.within))),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    (!bounds.is_empty()).then(|| bounds.join(", "))
}

/// Describes the bounds of a figure, whether they hold, and why it was not measured if so.
fn judged(figure: &Figure) -> String {
    let verdict = match figure.verdict() {
        Some(Verdict::Broken) => "DOES NOT HOLD",
        Some(Verdict::NotMeasured) => "NOT MEASURED",
        Some(Verdict::Holds) | None => "holds",
    };
    let bound = bound(figure).map(|bound| format!("{bound}, {verdict}"));
    let none = (figure.events == Some(0)).then(|| "it never happened".to_owned());
    let parts = [bound, none, figure.caveat.clone()];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("; ")
}

/// Describes the published value of a figure and how near the result is, if it has one.
fn published(figure: &Figure) -> Option<String> {
    let (value, score) = (figure.published?.value, figure.score()?);
    let part = figure.value / value;
    Some(format!(
        "{} (found {part:.2} of it, {})",
        number(value),
        score.name()
    ))
}

/// Formats the figures that have a published value or a bound as a Markdown table.
fn markdown(report: &Report) -> String {
    let mut text = "| experiment | figure | | here | published | near if within | |\n\
                    |---|---|---|---:|---:|---:|---|\n"
        .to_owned();
    for figure in &report.figures {
        let (Some(published), Some(score)) = (figure.published, figure.score()) else {
            continue;
        };
        let name = match score.name() {
            near @ "near" => near.to_owned(),
            other => format!("**{}**", other.to_lowercase()),
        };
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {name} |\n",
            figure.experiment,
            figure.name,
            figure.kind.name(),
            with_unit(figure),
            number(published.value),
            number(published.within),
        );
    }
    for figure in report
        .figures
        .iter()
        .filter(|figure| figure.published.is_none())
    {
        let Some(verdict) = figure.verdict() else {
            continue;
        };
        let bound = bound(figure).unwrap_or_default();
        let verdict = match verdict {
            Verdict::Holds => "holds",
            Verdict::Broken => "**does not hold**",
            Verdict::NotMeasured => "**not measured**",
        };
        text += &format!(
            "| {} | {} | {} | {} | | {bound} | {verdict} |\n",
            figure.experiment,
            figure.name,
            figure.kind.name(),
            with_unit(figure),
        );
    }
    for note in &report.notes {
        text += &format!("\n{note}\n");
    }
    text
}

fn with_unit(figure: &Figure) -> String {
    let text = format!("{} {}", number(figure.value), figure.unit);
    text.trim_end().to_owned()
}

/// Formats a value with about three significant digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        small if small < 0.001 => format!("{value:.1e}"),
        small if small < 1.0 => format!("{value:.4}"),
        small if small < 100.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats the figures as a table with one row each, without empty columns.
pub(super) fn table(report: &Report) -> String {
    let head = [
        "experiment",
        "figure",
        "",
        "found",
        "spread",
        "published",
        "bound",
    ];
    let rows = std::iter::once(head.map(str::to_owned)).chain(report.figures.iter().map(row));
    let rows: Vec<[String; 7]> = rows.collect();
    let is_filled = |column: usize| rows.iter().skip(1).any(|row| !row[column].is_empty());
    let filled: Vec<usize> = (0..head.len()).filter(|n| is_filled(*n)).collect();
    let cells = |row: &[String; 7]| filled.iter().map(|n| row[*n].clone()).collect();
    in_columns(&rows.iter().map(cells).collect::<Vec<_>>())
}

/// Formats rows, which all have the same number of cells, as aligned columns.
pub(super) fn in_columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for cells in rows {
        let padded: Vec<String> = (cells.iter().zip(&widths))
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn row(figure: &Figure) -> [String; 7] {
    let spread = figure
        .spread
        .map(|(least, most)| format!("{} to {}", number(least), number(most)));
    [
        figure.experiment.into(),
        figure.name.clone(),
        figure.kind.name().into(),
        with_unit(figure),
        spread.unwrap_or_default(),
        published(figure).unwrap_or_default(),
        judged(figure),
    ]
}

/// Returns the whole report as JSON.
fn object(bench: &str, settings: Value, report: &Report, machine: &MachineInfo) -> Value {
    let figures: Vec<Value> = report
        .figures
        .iter()
        .map(|figure| {
            json!({
                "experiment": figure.experiment,
                "name": figure.name,
                "kind": figure.kind.name(),
                "value": figure.value,
                "unit": figure.unit,
                "least": figure.spread.map(|(least, _)| least),
                "most": figure.spread.map(|(_, most)| most),
                "at_most": figure.at_most,
                "at_least": figure.at_least,
                "published": figure.published.map(|published| published.value),
                "within": figure.published.map(|near| near.within).filter(|w| w.is_finite()),
                "score": figure.score().map(|score| score.name().to_lowercase()),
                "events": figure.events,
                "caveat": figure.caveat,
                "measured": figure.is_measured(),
                "holds": figure.verdict() != Some(Verdict::NotMeasured) && figure.holds(),
            })
        })
        .collect();
    json!({
        "bench": bench,
        "holds": report.broken().is_none(),
        "settings": settings,
        "figures": figures,
        "notes": report.notes,
        "machine": {
            "cpu": machine.cpu,
            "cpus": machine.cpus,
            "load_before": machine.load,
        },
    })
}

/// The machine of the measurement, and its load when the measurement started.
struct MachineInfo {
    cpu: String,
    cpus: usize,
    load: Option<f64>,
}

impl MachineInfo {
    fn now() -> MachineInfo {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        MachineInfo {
            cpu: cpu_name(&cpus).unwrap_or("an unknown processor").into(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            load: load
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok()),
        }
    }

    fn line(&self, took: Duration) -> String {
        let load = self
            .load
            .map_or_else(|| "unknown".into(), |load| format!("{load:.2}"));
        format!(
            "in {:.0} s on {}, {} CPUs; load of the machine before: {load}",
            took.as_secs_f64(),
            self.cpu,
            self.cpus
        )
    }
}

/// Returns the processor's name, from the text of `/proc/cpuinfo`.
fn cpu_name(cpuinfo: &str) -> Option<&str> {
    machine::values(cpuinfo, "model name").next()
}

/// A progress bar, hidden if standard error is not a terminal.
struct BenchProgress(ProgressBar);

impl BenchProgress {
    fn new() -> BenchProgress {
        if !std::io::stderr().is_terminal() {
            return BenchProgress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(1);
        let template = "{msg} {wide_bar} {percent} %, {elapsed}";
        BenchProgress(match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    fn show(&self, step: &Step<'_>) {
        self.0.set_length(step.all);
        self.0.set_position(step.done);
        self.0.set_message(step.what.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_with_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0625, "0.0625"),
            (0.000_006_6, "6.6e-6"),
            (2.607, "2.61"),
            (-2.607, "-2.61"),
            (1_204_819.25, "1204819"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_processor_name_is_read_from_cpuinfo() {
        let text = "processor\t: 0\nmodel name\t: Some Processor @ 2 GHz\nflags\t: a b\n";
        assert_eq!(cpu_name(text), Some("Some Processor @ 2 GHz"));
        assert_eq!(cpu_name(""), None);
    }

    #[test]
    fn a_table_shows_the_kind_of_each_figure_and_whether_its_bound_holds() {
        let report = Report {
            figures: vec![
                Figure::counted("load", "fences", 1.0)
                    .unit("a set")
                    .at_most(1.0),
                Figure::measured("load", "slowest", 2000.0)
                    .unit("us")
                    .at_most(1000.0),
                Figure::measured("load", "time", 500.0).spread(&[400.0, 600.0]),
                Figure::counted("counts", "splits", 0.0)
                    .at_most(0.01)
                    .compared(0.004, 0.35)
                    .of_events(0),
                Figure::modelled("locks", "gain", 1.08)
                    .unit("times")
                    .compared(3.01, 0.35),
            ],
            notes: Vec::new(),
            ..Report::default()
        };
        let text = table(&report);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].ends_with("at most 1.00, holds"), "{text}");
        assert!(lines[1].contains("counted"), "{text}");
        assert!(lines[2].ends_with("at most 1000, DOES NOT HOLD"), "{text}");
        assert!(lines[3].ends_with("400 to 600"), "{text}");
        let never = "at most 0.0100, NOT MEASURED; it never happened";
        assert!(lines[4].ends_with(never), "{text}");
        assert!(
            lines[5].contains("3.01 (found 0.36 of it, NOT NEAR)"),
            "{text}"
        );
        let rows = markdown(&report);
        let far = "| locks | gain | modelled | 1.08 times | 3.01 | 1.05 | **not near** |";
        assert!(rows.lines().any(|row| row == far), "{rows}");
        assert!(rows.contains("| **not measured** |"), "{rows}");
        assert!(
            rows.contains("| load | slowest | measured | 2000 us | | at most 1000 |"),
            "{rows}"
        );
        let broken = report.broken().map(complaint).unwrap();
        assert_eq!(broken, "load: slowest is 2000, and should be at most 1000");
    }
}
