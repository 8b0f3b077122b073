//! `peers`: Farbank's engine beside other tables and engines, in turns, in one run.
//!
//! ```text
//! cargo run --release --manifest-path crates/peers/Cargo.toml -- --rounds 5
//! cargo run --release --manifest-path crates/peers/Cargo.toml --features storage -- --rounds 3
//! ```
//!
//! Each round runs every contender once, each time another one first, on the same operations
//! ([`mix`]). What is printed is the median of the rounds and their spread. Everything here is
//! measured: only ratios within one run say something.

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
use run::{Contender, Outcome, PHASES, Settings};

/// Measure Farbank's engine and its peers on the same operations, in turns.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  peers --rounds 5
      the DRAM tables and Farbank, five rounds
  peers --only papaya,farbank --keys 1000000
      two of them, fewer keys
  peers --live 0.78
      a pool of which 78 % is live while sets are mixed in: the cleaner has more to do")]
struct Arguments {
    /// Keys that are loaded; as many operations has each phase after that.
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    keys: u64,
    /// Threads that work.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Rounds; in each every contender runs once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// Share of the pool that is live once everything is loaded; the pool is aged until it is cleaned
    /// before sets are mixed in.
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    live: f64,
    /// Seconds a phase may take: engines that wait for each write do not finish.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Contenders, by name; all if none is named.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Names the contenders, and does nothing.
    #[arg(long)]
    list: bool,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.05..=0.85).contains(&share) => Ok(share),
        _ => Err("a number from 0.05 to 0.85".into()),
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
            eprintln!("there is no contender {name}; --list names them");
            return ExitCode::from(2);
        }
    }
    chosen.retain(|c| arguments.only.is_empty() || arguments.only.iter().any(|n| n == c.name));
    let settings = Settings {
        mix: Mix::new(arguments.keys),
        threads: arguments.threads,
        live: arguments.live,
        limit: Duration::from_secs_f64(arguments.seconds),
    };
    match play(&chosen, &settings, arguments.rounds) {
        Ok(found) => {
            table(&chosen, &found);
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

/// Every contender's outcomes, round by round.
fn play(
    chosen: &[Contender],
    settings: &Settings,
    rounds: u64,
) -> Result<Vec<Vec<Outcome>>, String> {
    let mut found = vec![Vec::new(); chosen.len()];
    for round in 0..rounds as usize {
        for turn in 0..chosen.len() {
            let which = (turn + round) % chosen.len();
            let contender = &chosen[which];
            let outcome = (contender.run)(settings)
                .map_err(|why| format!("{}, round {}: {why}", contender.name, round + 1))?;
            eprintln!(
                "round {}: {:<24} {}",
                round + 1,
                contender.name,
                outcome.line()
            );
            found[which].push(outcome);
        }
    }
    Ok(found)
}

/// The least, the one in the middle, and the most.
fn spread(rates: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let upper = sorted.len() / 2;
    let median = f64::midpoint(sorted[upper], sorted[(sorted.len() - 1) / 2]);
    Some((least, median, most))
}

/// Millions of operations a second in one phase, of each round.
fn rates(outcomes: &[Outcome], phase: usize) -> Vec<f64> {
    outcomes
        .iter()
        .filter_map(|outcome| outcome.rates[phase])
        .collect()
}

fn table(chosen: &[Contender], found: &[Vec<Outcome>]) {
    print!("\n| millions of operations a second |");
    PHASES.iter().for_each(|phase| print!(" {phase} |"));
    println!("\n|---|---:|---:|---:|---:|");
    for (contender, outcomes) in chosen.iter().zip(found) {
        print!("| {} |", contender.name);
        for phase in 0..PHASES.len() {
            match spread(&rates(outcomes, phase)) {
                None => print!(" |"),
                Some((least, median, most)) => print!(" {median:.3} ({least:.3} to {most:.3}) |"),
            }
        }
        println!();
    }
}

fn report(
    chosen: &[Contender],
    found: &[Vec<Outcome>],
    arguments: &Arguments,
) -> serde_json::Value {
    let rows: Vec<serde_json::Value> = chosen
        .iter()
        .zip(found)
        .flat_map(|(contender, outcomes)| {
            PHASES
                .iter()
                .enumerate()
                .map(move |(n, phase)| (contender, phase, rates(outcomes, n)))
        })
        .filter_map(|(contender, phase, rates)| {
            let (_, median, _) = spread(&rates)?;
            Some(json!({
                "contender": contender.name, "phase": phase, "kind": "measured",
                "unit": "million operations a second",
                "median": median, "rounds": rates,
            }))
        })
        .collect();
    json!({
        "keys": arguments.keys, "threads": arguments.threads, "rounds": arguments.rounds,
        "live": arguments.live, "figures": rows,
    })
}
