//! `farbank check situations`: see that the explorer comes by every situation that a structure lists.

use std::time::Instant;

use clap::Args;
use farbank_check::Target;
use farbank_check::explore::{Config, explore};
use farbank_pm::fault::NAMED;
use farbank_pm::sim::Persistency;
use farbank_pm::situation::{Situation, met};

use super::{Seeds, TargetChoice, progress_bar};
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  cargo run --release --features faults -- check situations
      the engine's situations: which seed met each first, and how often all seeds did
  cargo run --release --features faults -- check situations --markdown
      the table of docs/testing.md";

/// Explore until every situation that a structure lists was met.
///
/// A situation is a threshold of a size or a rare branch, marked in the source. A check that never comes by one says nothing of it.
/// The targets are explored in turn, a seed of each in each mode, until all were met or the seeds are used up; then one that was not
/// met makes the check fail. Needs a build with --features faults.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Situations {
    /// What is explored. All of them list the same situations.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kv,kv-large,kv-slices,kv-classes"
    )]
    target: Vec<TargetChoice>,
    /// Seeds of each target in each mode, at most.
    #[arg(long, value_name = "A..B", default_value = "0..64")]
    seeds: Seeds,
    /// Print the table as markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print one JSON object on the last line instead of the table.
    #[arg(long)]
    json: bool,
}

/// Images of a crash point that are judged: what only more of them meet, `check crash` meets with the same seeds.
const IMAGES: usize = 16;
/// The same of a crash point in a recovery.
const IMAGES_NESTED: usize = 2;

/// Where a situation was met first.
struct First {
    target: String,
    mode: Persistency,
    seed: u64,
}

impl Situations {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !NAMED {
            return Err(Failure::Usage(
                "situations are not counted in this build: build it with --features faults".into(),
            ));
        }
        let chosen = self.target.iter().map(|choice| choice.target());
        let targets: Vec<&dyn Target> = chosen.flatten().collect();
        let listed = targets
            .first()
            .map_or(&[][..], |target| target.situations());
        let is_one_list = targets.iter().all(|target| target.situations() == listed);
        if listed.is_empty() || !is_one_list || targets.len() < self.target.len() {
            return Err(Failure::Usage(
                "these targets do not list the same situations, or none".into(),
            ));
        }
        let start = Instant::now();
        let mut firsts: Vec<Option<First>> = listed.iter().map(|_| None).collect();
        let seeds = self.explore(&targets, listed, &mut firsts)?;
        self.print(listed, &firsts);
        let missing: Vec<&str> = listed
            .iter()
            .zip(&firsts)
            .filter(|(_, first)| first.is_none())
            .map(|(situation, _)| situation.name)
            .collect();
        let (holds, count, all) = (
            missing.is_empty(),
            listed.len() - missing.len(),
            listed.len(),
        );
        let seconds = start.elapsed().as_secs_f64();
        if self.json {
            let figures = serde_json::json!({
                "check": "situations",
                "holds": holds,
                "met": count,
                "listed": all,
                "missing": missing,
                "seeds": seeds,
                "seconds": (seconds * 10.0).round() / 10.0,
            });
            println!("{figures}");
        } else {
            println!(
                "\ncheck situations: {}; {count} of {all} met, {seeds} seeds explored in {seconds:.1} s",
                if holds { "holds" } else { "DOES NOT HOLD" },
            );
        }
        match holds {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "not met: {}: generate them, or remove the branch",
                missing.join(", ")
            ))),
        }
    }

    /// Explores until all were met, and notes where each was first. Returns how many seeds were explored.
    fn explore(
        &self,
        targets: &[&dyn Target],
        listed: &[Situation],
        firsts: &mut [Option<First>],
    ) -> Result<u64, Failure> {
        let bar = progress_bar(listed.len() as u64, "situations");
        let mut explored = 0;
        for (seed, target, mode) in self.runs(targets) {
            let config = Config {
                cap: IMAGES,
                cap_nested: IMAGES_NESTED,
                ..Config::new(mode)
            };
            let report = explore(target, &config, seed..seed + 1, 1, &mut |_| true);
            explored += 1;
            if let Some(violation) = report.violations.first() {
                return Err(Failure::failed(violation.to_string()));
            }
            for (situation, first) in listed.iter().zip(&mut *firsts) {
                if first.is_none() && met(situation.name) > 0 {
                    let target = target.name().into();
                    *first = Some(First { target, mode, seed });
                    bar.inc(1);
                }
            }
            if firsts.iter().all(Option::is_some) {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(explored)
    }

    /// What is explored, in order. Under eADR a crash point is every store: other modes meet the same sooner.
    fn runs<'a>(
        &self,
        targets: &'a [&'a dyn Target],
    ) -> impl Iterator<Item = (u64, &'a dyn Target, Persistency)> {
        let modes = |target: &'a dyn Target| {
            let modes = target.modes().iter().copied();
            let modes = modes.filter(|mode| *mode != Persistency::Eadr);
            modes.map(move |mode| (target, mode))
        };
        let of_one_seed = move || targets.iter().copied().flat_map(modes);
        let seeds = self.seeds.0.clone();
        seeds.flat_map(move |seed| of_one_seed().map(move |(target, mode)| (seed, target, mode)))
    }

    fn print(&self, listed: &[Situation], firsts: &[Option<First>]) {
        if self.json {
            return;
        }
        if self.markdown {
            println!("| situation | what | met first by |\n|---|---|---|");
        }
        for (situation, first) in listed.iter().zip(firsts) {
            let by = first.as_ref().map_or("nothing".into(), |first| {
                format!("{} {} {:#x}", first.target, first.mode.name(), first.seed)
            });
            match self.markdown {
                true => println!("| `{}` | {} | {by} |", situation.name, situation.what),
                false => println!(
                    "{:>12}  {:32} {by:24} {}",
                    met(situation.name),
                    situation.name,
                    situation.what
                ),
            }
        }
    }
}
