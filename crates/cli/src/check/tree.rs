//! `farbank check schedules` and `farbank check faults` for the tree: trials on a simulated cluster.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use farbank_pm::fault::{self, Fault, NAMED};
use farbank_pm::sync::unpoisoned;
use farbank_tree::faults::ALL;
use farbank_tree::sim_test::{
    CaughtTrial, FaultMoment, FaultVerdict, InjectedFault, SearchPlan, SearchReport, SearchedFault,
    TreeVariant, search_fault,
};
use serde_json::{Value, json};

use super::progress_bar;
use crate::common::Failure;
use crate::common::choice::one_of;

/// Options of `check schedules` that only the tree uses.
#[derive(Args)]
#[command(next_help_heading = "Options for --target tree")]
pub(super) struct TreeArgs {
    /// Tree to check: Sherman with the safe or the published node layout, or one of its baselines.
    #[arg(long, default_value = "safe", value_parser = one_of(&TreeVariant::ALL, TreeVariant::name))]
    system: TreeVariant,
    /// Failure to inject: a compute server crashes or pauses for three leases, or a memory server stops or restarts
    /// empty. Default: each seed selects one.
    #[arg(long, value_parser = one_of(&InjectedFault::ALL, InjectedFault::name))]
    disaster: Option<InjectedFault>,
    /// Bytes of a key. Default: each seed selects 8, 24, 100 or 1,024.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(8..=1024))]
    key_bytes: Option<u16>,
    /// Maximum bytes of a value stored outside the leaf; 0 stores 8-byte values in the leaf. Default: each seed
    /// selects 0 or 300.
    #[arg(long, value_name = "N", value_parser = value_bytes)]
    value_bytes: Option<usize>,
    /// Order in which NICs fetch the lines of a read. Default: any; increasing for the published layout, which
    /// requires it.
    #[arg(long, value_enum)]
    lines: Option<LinesChoice>,
    /// A memory server leaves during the calls. Default: in one of five seeds.
    #[arg(long)]
    leaves: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinesChoice {
    Any,
    Increasing,
}

fn value_bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if bytes == 0 || (8..=2048).contains(&bytes) => Ok(bytes),
        _ => Err("a value must have 8 to 2,048 bytes, or 0 for 8-byte values in the leaf".into()),
    }
}

impl TreeArgs {
    fn plan(&self) -> SearchPlan {
        let usual = SearchPlan::new(self.system);
        SearchPlan {
            disaster: self.disaster,
            key_bytes: self.key_bytes.map(usize::from),
            value_bytes: self.value_bytes,
            drains: self.leaves.then_some(true),
            read_line_order: self.lines.map_or(usual.read_line_order, |lines| {
                lines == LinesChoice::Increasing
            }),
            ..usual
        }
    }
}

/// Returns the command that repeats the trial of `seed`.
fn again(plan: &SearchPlan, seed: u64, fault: Option<&str>) -> String {
    let mut command =
        format!("farbank check schedules --target tree --seed {seed:#x} --schedules 1");
    if plan.system != TreeVariant::Safe {
        command += &format!(" --system {}", plan.system.name());
    }
    if let Some(disaster) = plan.disaster {
        command += &format!(" --disaster {}", disaster.name());
    }
    if let Some(bytes) = plan.key_bytes {
        command += &format!(" --key-bytes {bytes}");
    }
    if let Some(bytes) = plan.value_bytes {
        command += &format!(" --value-bytes {bytes}");
    }
    if plan.read_line_order != SearchPlan::new(plan.system).read_line_order {
        let lines = if plan.read_line_order {
            "increasing"
        } else {
            "any"
        };
        command += &format!(" --lines {lines}");
    }
    if plan.drains == Some(true) {
        command += " --leaves";
    }
    fault.map_or(command.clone(), |fault| {
        format!("{command} --fault {fault}")
    })
}

/// Formats a violation as text.
fn format_violation(plan: &SearchPlan, caught: &CaughtTrial, fault: Option<&str>) -> String {
    format!(
        "violation: seed {:#x}, {}, disaster {}: {}\n  again: {}",
        caught.seed,
        plan.system.name(),
        caught.disaster.name(),
        caught.violation,
        again(plan, caught.seed, fault)
    )
}

fn caught_json(plan: &SearchPlan, caught: &CaughtTrial, fault: Option<&str>) -> Value {
    json!({
        "seed": caught.seed,
        "disaster": caught.disaster.name(),
        "what": caught.violation.what,
        "history": caught.violation.history,
        "command": again(plan, caught.seed, fault),
    })
}

/// Options of the schedules to run.
pub(super) struct TreeScheduleArgs<'a> {
    pub(super) seed: u64,
    pub(super) schedules: u64,
    pub(super) fault: Option<&'a Fault>,
    pub(super) controls: bool,
    pub(super) json: bool,
}

/// Runs schedules of the tree.
pub(super) fn schedules(choices: &TreeArgs, asked: &TreeScheduleArgs<'_>) -> Result<(), Failure> {
    let TreeScheduleArgs {
        seed,
        schedules,
        fault,
        controls,
        json,
    } = *asked;
    let mut plan = choices.plan();
    if controls {
        plan = SearchPlan {
            read_line_order: false,
            ..SearchPlan::new(TreeVariant::Published)
        };
    }
    let end = seed
        .checked_add(schedules)
        .ok_or_else(|| Failure::Usage("--seed and --schedules are too large together".into()))?;
    let name = match fault {
        None => None,
        Some(Fault::Name(name)) if ALL.iter().any(|known| known.name == name) => {
            Some(name.as_str())
        }
        Some(other) => return Err(unknown(other)),
    };
    let bar = progress_bar(schedules, plan.system.name());
    let run = fault::with(fault, || {
        plan.run(seed..end, &mut |run| {
            bar.set_position(run.schedules);
            true
        })
    });
    bar.finish_and_clear();
    if controls {
        return control(&plan, &run, json);
    }
    if json {
        println!("{}", object(&plan, &run, name));
    } else {
        print!("{}", table(&run));
        if let Some(caught) = &run.caught {
            println!("{}\n", format_violation(&plan, caught, name));
        }
        println!("{}", line(&plan, &run));
    }
    match &run.caught {
        None => Ok(()),
        Some(caught) => Err(Failure::failed(&caught.violation.what)),
    }
}

fn unknown(fault: &Fault) -> Failure {
    let known: Vec<_> = ALL.iter().map(|known| known.name).collect();
    Failure::Usage(format!(
        "the tree has no fault \"{fault}\"; it has {}",
        known.join(", ")
    ))
}

/// Checks that the published layout fails if lines are fetched in any order.
fn control(plan: &SearchPlan, run: &SearchReport, json: bool) -> Result<(), Failure> {
    match &run.caught {
        Some(caught) if json => println!(
            "{}",
            json!({
                "check": "schedules", "target": "tree", "holds": true, "schedules": run.schedules,
                "found": [{"control": "published layout, lines in any order", "run": caught_json(plan, caught, None)}],
            })
        ),
        Some(caught) => println!(
            "{}\n\ncheck schedules tree: holds; the published layout fails with lines in any order, after {} schedules",
            format_violation(plan, caught, None),
            run.schedules
        ),
        None => {
            return Err(Failure::failed(format!(
                "the published layout holds in {} schedules with lines in any order, but must fail: the check does not detect this error",
                run.schedules
            )));
        }
    }
    Ok(())
}

/// Formats how often each injected failure came at each moment.
fn table(run: &SearchReport) -> String {
    let moments = &FaultMoment::ALL[1..];
    let mut text = format!("{:<10} {:>9}", "disaster", "schedules");
    for moment in moments {
        text += &format!(" {:>15}", moment.name());
    }
    text.push('\n');
    for disaster in InjectedFault::ALL {
        let all = run.reached(disaster, FaultMoment::Any);
        if all == 0 {
            continue;
        }
        text += &format!("{:<10} {all:>9}", disaster.name());
        for moment in moments {
            text += &format!(" {:>15}", run.reached(disaster, *moment));
        }
        text.push('\n');
    }
    let (sum, reach) = (&run.sum, &run.reach);
    text += &format!(
        "{} calls answered, {} failed, {} cut off; {} splits, {} merges, {} reads torn\n\
         {} crashed or paused servers left locks in their name; {} locks of stopped servers were taken over, {} of their splits and moves were completed\n\
         {} paused servers were fenced when they resumed, {} of them while holding a lock\n\
         with a memory server gone, {} keys could be read and written and {} could not; the slowest call that failed took {:.1} us\n",
        sum.answered,
        sum.failed,
        sum.cut_off,
        sum.splits,
        sum.merges,
        sum.torn,
        reach.locks_named,
        sum.taken_over,
        sum.mended,
        reach.refused,
        reach.refused_holding,
        sum.unaffected_keys,
        sum.lost,
        sum.slowest_error_ns as f64 / 1000.0,
    );
    text
}

fn line(plan: &SearchPlan, run: &SearchReport) -> String {
    format!(
        "check schedules tree {}: {}; {} schedules; digest {:016x}; {:.1} s of CPU time",
        plan.system.name(),
        if run.caught.is_none() {
            "holds"
        } else {
            "DOES NOT HOLD"
        },
        run.schedules,
        run.digest,
        run.cpu.as_secs_f64()
    )
}

fn object(plan: &SearchPlan, run: &SearchReport, fault: Option<&str>) -> Value {
    let reached: Vec<Value> = run
        .reach
        .moments
        .iter()
        .map(|((disaster, moment), schedules)| {
            json!({"disaster": disaster, "moment": moment.name(), "schedules": schedules})
        })
        .collect();
    let (sum, reach) = (&run.sum, &run.reach);
    json!({
        "check": "schedules",
        "target": "tree",
        "system": plan.system.name(),
        "holds": run.caught.is_none(),
        "schedules": run.schedules,
        "digest": format!("{:016x}", run.digest),
        "seconds": run.cpu.as_secs_f64(),
        "reached": reached,
        "locks_named": reach.locks_named,
        "refused": reach.refused,
        "refused_holding": reach.refused_holding,
        "answered": sum.answered,
        "failed": sum.failed,
        "fenced": sum.fenced,
        "cut_off": sum.cut_off,
        "splits": sum.splits,
        "reused_leaves": sum.reused_leaves,
        "merges": sum.merges,
        "torn": sum.torn,
        "taken_over": sum.taken_over,
        "mended": sum.mended,
        "moved": sum.drained,
        "beside": sum.unaffected_keys,
        "lost": sum.lost,
        "slowest_error_ns": sum.slowest_error_ns,
        "violation": run.caught.as_ref().map(|caught| caught_json(plan, caught, fault)),
    })
}

/// Runs trials with each of the tree's named faults until a trial detects it.
pub(super) fn faults(
    only: Option<&str>,
    seeds: &Range<u64>,
    seconds: f64,
    threads: usize,
    json: bool,
) -> Result<(), Failure> {
    if !NAMED {
        return Err(Failure::Usage(
            "the tree has only faults by name, and this build has none; build with --features faults"
                .into(),
        ));
    }
    let chosen: Vec<_> = ALL
        .iter()
        .filter(|named| only.is_none_or(|only| named.name.contains(only)))
        .collect();
    if chosen.is_empty() {
        return Err(unknown(&Fault::Name(only.unwrap_or_default().into())));
    }
    if !json {
        println!(
            "{:<30} {:<8} {:<10} {:>7} {:>9} {:>7}  violation",
            "fault", "what", "system", "seed", "schedules", "cpu s"
        );
    }
    let bar = progress_bar(chosen.len() as u64, "faults");
    let plans = [
        TreeVariant::Safe,
        TreeVariant::Published,
        TreeVariant::Farbank,
    ];
    let plans = plans.map(|system| SearchPlan {
        // Only operations on words are shared.
        value_bytes: (system == TreeVariant::Farbank).then_some(0),
        ..SearchPlan::new(system)
    });
    let leaves = SearchPlan {
        drains: Some(true),
        ..SearchPlan::new(TreeVariant::Safe)
    };
    let plans: Vec<SearchPlan> = plans.into_iter().chain([leaves]).collect();
    let cpu = Duration::from_secs_f64(seconds.max(0.0));
    let searched: Mutex<Vec<Option<SearchedFault>>> = Mutex::new(vec![None; chosen.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(named) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = search_fault(named.name, &plans, seeds, cpu);
            if !json {
                bar.suspend(|| println!("{}", row(named.name, &one)));
            }
            bar.inc(1);
            let index = chosen.iter().position(|other| other.name == named.name);
            unpoisoned(searched.lock())[index.expect("it is one of them")] = Some(one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    bar.finish_and_clear();
    let searched = unpoisoned(searched.into_inner());
    let all: Vec<(&str, SearchedFault)> = chosen
        .iter()
        .zip(searched)
        .filter_map(|(named, one)| Some((named.name, one?)))
        .collect();
    conclude(&all, seconds, json)
}

fn name_of(verdict: &FaultVerdict) -> &'static str {
    match verdict {
        FaultVerdict::Found(..) => "found",
        FaultVerdict::Void(..) => "VOID",
        FaultVerdict::Idle => "idle",
        FaultVerdict::Survived => "SURVIVED",
    }
}

fn caught_of(verdict: &FaultVerdict) -> Option<(&SearchPlan, &CaughtTrial)> {
    match verdict {
        FaultVerdict::Found(plan, caught) | FaultVerdict::Void(plan, caught) => {
            Some((plan, caught))
        }
        FaultVerdict::Idle | FaultVerdict::Survived => None,
    }
}

fn row(name: &str, searched: &SearchedFault) -> String {
    let what = name_of(&searched.verdict);
    let (schedules, seconds) = (searched.schedules, searched.cpu.as_secs_f64());
    match caught_of(&searched.verdict) {
        Some((plan, caught)) => format!(
            "{name:<30} {what:<8} {:<10} {:>7} {schedules:>9} {seconds:>7.1}  {}: {}",
            plan.system.name(),
            format!("{:#x}", caught.seed),
            caught.disaster.name(),
            caught.violation.what
        ),
        None => format!(
            "{name:<30} {what:<8} {:<10} {:>7} {schedules:>9} {seconds:>7.1}",
            "", ""
        ),
    }
}

/// Prints the summary. Returns an error if a fault was not detected.
fn conclude(all: &[(&str, SearchedFault)], seconds: f64, json: bool) -> Result<(), Failure> {
    let found = |searched: &SearchedFault| matches!(searched.verdict, FaultVerdict::Found(..));
    let count = all.iter().filter(|(_, searched)| found(searched)).count();
    let cpu: f64 = all
        .iter()
        .map(|(_, searched)| searched.cpu.as_secs_f64())
        .sum();
    if json {
        let trials: Vec<Value> = all
            .iter()
            .map(|(name, searched)| {
                let caught = caught_of(&searched.verdict);
                json!({
                    "fault": name,
                    "outcome": name_of(&searched.verdict).to_lowercase(),
                    "schedules": searched.schedules,
                    "seconds": searched.cpu.as_secs_f64(),
                    "caught": caught.map(|(plan, caught)| caught_json(plan, caught, Some(name))),
                })
            })
            .collect();
        println!(
            "{}",
            json!({
                "check": "faults", "target": "tree", "holds": count == all.len(), "found": count,
                "seconds": cpu, "trials": trials,
            })
        );
    } else {
        if let [(name, searched)] = all
            && let Some((plan, caught)) = caught_of(&searched.verdict)
        {
            println!("\n{}", format_violation(plan, caught, Some(name)));
        }
        println!(
            "\ncheck faults tree: {count} of {} detected; {cpu:.1} s of CPU time",
            all.len()
        );
    }
    match all.iter().find(|(_, searched)| !found(searched)) {
        None => Ok(()),
        Some((name, searched)) => Err(Failure::failed(match &searched.verdict {
            FaultVerdict::Void(plan, caught) => format!(
                "{name}: the same violation occurs without the fault; fix that first: {}",
                again(plan, caught.seed, None)
            ),
            FaultVerdict::Idle => {
                format!("{name}: the fault changes nothing; remove it from the source")
            }
            _ => format!(
                "{name}: the fault changes the run, but no trial detected it within {seconds} s: the check does \
                 not cover it"
            ),
        })),
    }
}
