//! `farbank check model`: compares the media model with published measurements of persistent memory.

use std::io::IsTerminal;
use std::time::Instant;

use clap::{Args, value_parser};
use farbank_pm::model::check::{ModelReport, ModelRow, run};
use farbank_pm::model::constants::{ALL, ConstantSource, VERSION};
use farbank_pm::model::published::{CURVE_BOUND, FigureUse};
use serde_json::{Value, json};

use crate::common::Failure;

const EXAMPLES: &str = "\
Examples:
  farbank check model
      every row, in about ten seconds
  farbank check model --seed 7 --lines 1000000
      another seed, ten times as long
  farbank check model --constants
      the constants of the model, and the source of each";

/// A held-out row without a bound is marked if its relative error is larger than this.
const FAR: f64 = 0.20;

/// Compare the media model with published measurements.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ModelArgs {
    /// Seed of the random number generator. The same seed gives the same digest.
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::number)]
    seed: u64,
    /// Number of lines that each microbenchmark accesses.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u64).range(10_000..=100_000_000))]
    lines: u64,
    /// Print the model's constants and exit.
    #[arg(long)]
    constants: bool,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

impl ModelArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.constants {
            self.print_constants();
            return Ok(());
        }
        let started = Instant::now();
        let people = std::io::stderr().is_terminal();
        let check = run(self.seed, self.lines, |_| true, &mut |row| {
            if people {
                eprint!("\r\x1b[K{row}");
            }
            true
        });
        if people {
            eprint!("\r\x1b[K");
        }
        print!("{}", table(&check));
        let seconds = started.elapsed().as_secs_f64();
        println!("measured: all rows in {seconds:.1} s");
        println!(
            "{}",
            if self.json {
                object(&check, self.seed).to_string()
            } else {
                line(&check, self.seed)
            }
        );
        match complaint(&check) {
            None => Ok(()),
            Some(why) => Err(Failure::failed(why)),
        }
    }

    fn print_constants(&self) {
        for constant in ALL {
            let origin = origin(constant.origin);
            println!(
                "{:<20} {:>9} {:<8} {origin:<10} {}",
                constant.name.to_lowercase(),
                constant.value,
                constant.unit,
                constant.source
            );
        }
        println!("model v{VERSION}: {} constants", ALL.len());
    }
}

fn origin(origin: ConstantSource) -> &'static str {
    match origin {
        ConstantSource::Published => "published",
        ConstantSource::Calibrated => "calibrated",
    }
}

fn how(row: &ModelRow) -> String {
    match row.how {
        FigureUse::Calibrated => "calibrated".into(),
        FigureUse::HeldOut(None) if row.error().abs() > FAR => "held out, FAR OFF".into(),
        FigureUse::HeldOut(None) => "held out".into(),
        FigureUse::HeldOut(Some(bound)) => {
            let holds = if row.holds() {
                "holds"
            } else {
                "DOES NOT HOLD"
            };
            format!("held out, within {:.0} %: {holds}", bound * 100.0)
        }
    }
}

fn table(check: &ModelReport) -> String {
    let mut text = format!(
        "{:<52} {:>10} {:>10} {:>8}  {:<32} {}\n",
        "modelled", "published", "model", "error", "use", "source"
    );
    let mut group = "";
    for row in &check.rows {
        if row.group != group {
            group = row.group;
            text += &format!("-- {group}, {}\n", row.unit);
        }
        text += &format!(
            "{:<52} {:>10.3} {:>10.3} {:>+6.1} %  {:<32} {}\n",
            row.name,
            row.published,
            row.modelled,
            row.error() * 100.0,
            how(row),
            row.source
        );
    }
    text += &format!(
        "XPBuffer curve: root mean square {:.4}, at most {CURVE_BOUND}\n",
        check.curve_rms
    );
    text
}

/// Counts held-out rows: all of them, those with a bound, and those without a bound that are far off.
fn held_out(check: &ModelReport) -> (usize, usize, usize) {
    let held = check
        .rows
        .iter()
        .filter(|row| row.how != FigureUse::Calibrated);
    let bound = held
        .clone()
        .filter(|row| matches!(row.how, FigureUse::HeldOut(Some(_))));
    let far = held
        .clone()
        .filter(|row| row.how == FigureUse::HeldOut(None) && row.error().abs() > FAR);
    (held.clone().count(), bound.count(), far.count())
}

fn line(check: &ModelReport, seed: u64) -> String {
    let (held, bound, far) = held_out(check);
    format!(
        "check model: {}; model v{VERSION}, seed {seed:#x}, {} rows, {held} held out, {bound} of them \
         bounded, {} broken, {far} others off by more than {:.0} %, XPBuffer curve {:.4}; digest {:016x}",
        if check.holds() {
            "holds"
        } else {
            "DOES NOT HOLD"
        },
        check.rows.len(),
        check.broken().count(),
        FAR * 100.0,
        check.curve_rms,
        check.digest(),
    )
}

fn object(check: &ModelReport, seed: u64) -> Value {
    let rows: Vec<Value> = check
        .rows
        .iter()
        .map(|row| {
            json!({
                "group": row.group,
                "name": row.name,
                "unit": row.unit,
                "published": row.published,
                "modelled": row.modelled,
                "error": row.error(),
                "use": if row.how == FigureUse::Calibrated { "calibrated" } else { "held out" },
                "within": match row.how { FigureUse::HeldOut(bound) => bound, FigureUse::Calibrated => None },
                "holds": row.holds(),
                "source": row.source,
            })
        })
        .collect();
    json!({
        "check": "model",
        "holds": check.holds(),
        "version": VERSION,
        "seed": seed,
        "xpbuffer_rms": check.curve_rms,
        "xpbuffer_rms_at_most": CURVE_BOUND,
        "rows": rows,
        "constants": ALL.iter().map(|c| json!({
            "name": c.name, "value": c.value, "unit": c.unit,
            "origin": origin(c.origin), "source": c.source,
        })).collect::<Vec<_>>(),
        "digest": format!("{:016x}", check.digest()),
    })
}

fn complaint(check: &ModelReport) -> Option<String> {
    if let Some(row) = check.broken().next() {
        return Some(format!(
            "{}: the model gives {:.3} {}, but {:.3} was measured",
            row.name, row.modelled, row.unit, row.published
        ));
    }
    (!check.holds()).then(|| {
        format!(
            "the XPBuffer curve has a root mean square error of {:.4}, but at most {CURVE_BOUND} is allowed",
            check.curve_rms
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(modelled: f64, how: FigureUse) -> ModelRow {
        ModelRow {
            group: "bandwidth",
            name: "six of them".into(),
            unit: "GB/s",
            published: 10.0,
            modelled,
            how,
            source: "a study",
        }
    }

    #[test]
    fn a_row_out_of_its_bound_fails_and_an_inaccurate_row_without_a_bound_is_marked() {
        let held = FigureUse::HeldOut(Some(0.15));
        let mut check = ModelReport {
            rows: vec![row(11.4, held)],
            curve_rms: 0.01,
            steps: 0,
        };
        assert_eq!(complaint(&check), None);
        check.rows.push(row(13.0, FigureUse::HeldOut(None)));
        assert_eq!(complaint(&check), None);
        assert!(table(&check).contains("FAR OFF"));
        assert_eq!(held_out(&check), (2, 1, 1));
        check.rows.push(row(8.4, held));
        let why = complaint(&check).unwrap();
        assert_eq!(
            why,
            "six of them: the model gives 8.400 GB/s, but 10.000 was measured"
        );
        assert!(table(&check).contains("DOES NOT HOLD"));
        assert!(line(&check, 1).contains("1 broken, 1 others"));
    }

    #[test]
    fn an_inaccurate_curve_fails() {
        let check = ModelReport {
            rows: Vec::new(),
            curve_rms: 0.04,
            steps: 0,
        };
        assert!(complaint(&check).unwrap().contains("0.0400"));
    }
}
