//! `peers`: benchmarks Farbank's engine and other tables and engines, in turns, in one run.
//!
//! ```text
//! cargo run --release --manifest-path crates/peers/Cargo.toml
//! cargo run --release --manifest-path crates/peers/Cargo.toml --features storage -- --only farbank-tmpfs,rocksdb,fjall
//! ```
//!
//! All contenders run the same operations ([`mix`]) and take turns, one slice of a phase each. The output is the median
//! of the slices and their spread, and the ratios of Farbank's slices to the adjacent slices of the others. All figures
//! are measured, so only ratios within one run are meaningful.

#![deny(unsafe_code)]

mod mix;
mod ours;
mod run;
#[cfg(feature = "storage")]
mod storage;
mod tables;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;

use mix::Mix;
use run::{Contender, Outcome, PHASES, Ring, Settings};

/// Measure Farbank's engine and its peers on the same operations, in turns.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  peers
      the DRAM tables and Farbank
  peers --only papaya,farbank --keys 1000000
      two contenders, fewer keys
  peers --live 0.78
      a pool of which 78 % is live during the mix: the cleaner has more work")]
struct Arguments {
    /// Number of keys to load; every later phase has the same number of operations.
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    keys: u64,
    /// Number of worker threads.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Number of slices in a phase; the contenders alternate slice by slice.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=999))]
    slices: u64,
    /// Share of the pool that is live after the load. Before the mix, the pool is updated until it is being cleaned.
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    live: f64,
    /// Time limit of a phase, in seconds. Engines that wait for each write do not finish a phase.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Names of the contenders to run; all if none is given.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// List the contenders and exit.
    #[arg(long)]
    list: bool,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.05..=0.85).contains(&share) => Ok(share),
        _ => Err("expected a number from 0.05 to 0.85".into()),
    }
}

fn contenders() -> Vec<Contender> {
    let mut all = tables::all();
    all.extend(ours::all());
    #[cfg(feature = "storage")]
    all.extend(storage::all());
    all
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut chosen = contenders();
    if arguments.list {
        for contender in &chosen {
            println!("{:<24} {}", contender.name, contender.what);
        }
        return ExitCode::SUCCESS;
    }
    for name in &arguments.only {
        if !chosen.iter().any(|c| c.name == name) {
            eprintln!("there is no contender {name}; --list shows all names");
            return ExitCode::from(2);
        }
    }
    chosen.retain(|c| arguments.only.is_empty() || arguments.only.iter().any(|n| n == c.name));
    match play(&chosen, &arguments) {
        Ok(found) => {
            table(&chosen, &found);
            compare(&chosen, &found);
            if arguments.json {
                println!("{}", report(&chosen, &found, &arguments));
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all contenders and returns their outcomes.
fn play(chosen: &[Contender], arguments: &Arguments) -> Result<Vec<Outcome>, String> {
    let (mix, ring) = (Mix::new(arguments.keys), Ring::of(chosen.len()));
    let run = |place: usize| {
        let contender = &chosen[place];
        let settings = Settings {
            mix: &mix,
            threads: arguments.threads,
            live: arguments.live,
            limit: Duration::from_secs_f64(arguments.seconds),
            slices: arguments.slices,
            turn: ring.turn(place),
        };
        settings.turn.take();
        let outcome = (contender.run)(&settings);
        if outcome.is_err() {
            settings.turn.leave();
        }
        outcome.map_err(|why| format!("{}: {why}", contender.name))
    };
    std::thread::scope(|scope| {
        let run = &run;
        let all = 0..chosen.len();
        let threads: Vec<_> = all.map(|place| scope.spawn(move || run(place))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|outcome| outcome.expect("a contender's thread panicked"))
            .collect()
    })
}

/// Returns the smallest rate, the median and the largest rate.
fn spread(rates: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let upper = sorted.len() / 2;
    let median = f64::midpoint(sorted[upper], sorted[(sorted.len() - 1) / 2]);
    Some((least, median, most))
}

fn table(chosen: &[Contender], found: &[Outcome]) {
    print!("\n| millions of operations per second |");
    PHASES.iter().for_each(|phase| print!(" {phase} |"));
    println!("\n|---|---:|---:|---:|---:|");
    for (contender, outcome) in chosen.iter().zip(found) {
        print!("| {} |", contender.name);
        for rates in &outcome.rates {
            match spread(rates) {
                None => print!(" |"),
                Some((least, median, most)) => print!(" {median:.2} ({least:.2} to {most:.2}) |"),
            }
        }
        println!();
    }
}

/// Prints the speed of the first Farbank contender relative to each other contender, slice by slice. Its batches of 16
/// gets are compared with single gets if the other has no batches.
fn compare(chosen: &[Contender], found: &[Outcome]) {
    const GET: usize = 2;
    let Some(place) = chosen.iter().position(|c| c.name.starts_with("farbank")) else {
        return;
    };
    let ours = &found[place];
    print!("\n| speed of {} relative to |", chosen[place].name);
    PHASES.iter().for_each(|phase| print!(" {phase} |"));
    println!("\n|---|---:|---:|---:|---:|");
    for (other, (contender, outcome)) in chosen.iter().zip(found).enumerate() {
        if other == place {
            continue;
        }
        print!("| {} |", contender.name);
        for (phase, rates) in outcome.rates.iter().enumerate() {
            let theirs = match rates.is_empty() {
                true => &outcome.rates[GET],
                false => rates,
            };
            let ratios: Vec<f64> = ours.rates[phase]
                .iter()
                .zip(theirs)
                .map(|(a, b)| a / b)
                .collect();
            match spread(&ratios) {
                None => print!(" |"),
                Some((least, median, most)) => print!(" {median:.2} ({least:.2} to {most:.2}) |"),
            }
        }
        println!();
    }
}

fn report(chosen: &[Contender], found: &[Outcome], arguments: &Arguments) -> serde_json::Value {
    let rows: Vec<serde_json::Value> = chosen
        .iter()
        .zip(found)
        .flat_map(|(contender, outcome)| {
            let phases = PHASES.iter().zip(&outcome.rates);
            phases.map(move |(phase, rates)| (contender, phase, rates))
        })
        .filter_map(|(contender, phase, rates)| {
            let (_, median, _) = spread(rates)?;
            Some(json!({
                "contender": contender.name, "phase": phase, "kind": "measured",
                "unit": "million operations a second",
                "median": median, "slices": rates,
            }))
        })
        .collect();
    json!({
        "keys": arguments.keys, "threads": arguments.threads, "slices": arguments.slices,
        "live": arguments.live, "figures": rows,
    })
}
