//! `farbank check situations`: checks that the explorer reaches every situation that a structure lists.

use std::time::Instant;

use clap::Args;
use farbank_check::Target;
use farbank_check::explore::{ExploreConfig, explore};
use farbank_pm::fault::NAMED;
use farbank_pm::sim::Persistency;
use farbank_pm::situation::{Situation, met};
use indicatif::ProgressBar;

use super::targets::{CheckedStructure, structure};
use super::{SeedRange, progress_bar};
use crate::common::Failure;

const EXAMPLES: &str = "\
Examples:
  cargo run --release --features faults -- check situations
      the situations of the engine, the cache and the tables, and the first seed that reaches each
  cargo run --release --features faults -- check situations --target level
      the situations of one table
  cargo run --release --features faults -- check situations --markdown
      the table of docs/testing/explorer.md";

/// Explore until every situation that a structure lists is reached.
///
/// A situation is a size threshold or a rare branch, marked in the source. A check that never reaches it shows
/// nothing about it. Targets that list the same situations are explored in turn, one seed of each target in each
/// mode, until all situations are reached or the seeds run out. The check fails if a situation is not reached. It
/// needs a build with --features faults.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SituationsArgs {
    /// Targets to explore.
    #[arg(
        long,
        value_parser = structure(),
        value_delimiter = ',',
        default_value = "kv,kv-large,kv-slices,kv-classes,kv-checkpoint,mdb,cceh,clht,soft,level,clevel,dash-eh,dash-lh"
    )]
    target: Vec<CheckedStructure>,
    /// Maximum seeds of each target in each mode.
    #[arg(long, value_name = "A..B", default_value = "0..64")]
    seeds: SeedRange,
    /// Print the table as markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print one JSON object on the last line instead of the table.
    #[arg(long)]
    json: bool,
}

/// Maximum images checked per crash point. `check crash` uses the same seeds with more images, and reaches the
/// situations that need them.
const IMAGES: usize = 16;
/// Maximum images checked per crash point of a recovery.
const IMAGES_NESTED: usize = 2;

/// The run that reached a situation first.
struct FirstMet {
    target: String,
    mode: Persistency,
    seed: u64,
}

/// Targets that list the same situations.
struct SituationGroup<'a> {
    targets: Vec<&'a dyn Target>,
    listed: Vec<Situation>,
    firsts: Vec<Option<FirstMet>>,
}

impl<'a> SituationGroup<'a> {
    fn of(targets: &[&'a dyn Target]) -> Vec<SituationGroup<'a>> {
        let mut groups: Vec<SituationGroup<'a>> = Vec::new();
        for target in targets {
            let listed = target.situations();
            match groups.iter_mut().find(|group| group.listed == listed) {
                Some(group) => group.targets.push(*target),
                None => groups.push(SituationGroup {
                    targets: vec![*target],
                    firsts: listed.iter().map(|_| None).collect(),
                    listed,
                }),
            }
        }
        groups
    }

    fn has_met_all(&self) -> bool {
        self.firsts.iter().all(Option::is_some)
    }

    fn missing(&self) -> impl Iterator<Item = &'static str> {
        let all = self.listed.iter().zip(&self.firsts);
        all.filter_map(|(situation, first)| first.is_none().then_some(situation.name))
    }
}

impl SituationsArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !NAMED {
            return Err(Failure::Usage(
                "this build does not count situations; build with --features faults".into(),
            ));
        }
        let chosen = self.target.iter().map(|choice| choice.target());
        let targets: Vec<&dyn Target> = chosen.flatten().collect();
        let mut groups = SituationGroup::of(&targets);
        if targets.len() < self.target.len() || groups.iter().any(|group| group.listed.is_empty()) {
            return Err(Failure::Usage(
                "one of the targets of --target lists no situations".into(),
            ));
        }
        let start = Instant::now();
        let all = groups.iter().map(|group| group.listed.len()).sum();
        let bar = progress_bar(all as u64, "situations");
        let mut seeds = 0;
        for group in &mut groups {
            seeds += self.explore(group, &bar)?;
        }
        bar.finish_and_clear();
        self.print(&groups);
        let missing: Vec<&str> = groups.iter().flat_map(SituationGroup::missing).collect();
        self.conclude(&missing, all, seeds, start.elapsed().as_secs_f64())
    }

    fn conclude(
        &self,
        missing: &[&str],
        all: usize,
        seeds: u64,
        seconds: f64,
    ) -> Result<(), Failure> {
        let (holds, count) = (missing.is_empty(), all - missing.len());
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
                "\ncheck situations: {}; {count} of {all} situations reached, {seeds} seeds explored in {seconds:.1} s",
                if holds { "holds" } else { "DOES NOT HOLD" },
            );
        }
        match holds {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "not reached: {}; extend the workload so that it reaches them, or remove the branch",
                missing.join(", ")
            ))),
        }
    }

    /// Explores until all situations of the group are reached, and records the first run that reached each. Returns
    /// the number of explored seeds.
    fn explore(&self, group: &mut SituationGroup<'_>, bar: &ProgressBar) -> Result<u64, Failure> {
        let mut explored = 0;
        for (seed, target, mode) in self.runs(&group.targets) {
            if group.has_met_all() {
                break;
            }
            let config = ExploreConfig {
                cap: IMAGES,
                cap_nested: IMAGES_NESTED,
                ..ExploreConfig::new(mode)
            };
            // Other groups may have reached the situations that this group shares with them.
            let before: Vec<u64> = group.listed.iter().map(|one| met(one.name)).collect();
            let report = explore(target, &config, seed..seed + 1, 1, &mut |_| true);
            explored += 1;
            if let Some(violation) = report.violations.first() {
                return Err(Failure::failed(violation.to_string()));
            }
            let listed = group.listed.iter().zip(before);
            for ((situation, before), first) in listed.zip(&mut group.firsts) {
                if first.is_none() && met(situation.name) > before {
                    let target = target.name().into();
                    *first = Some(FirstMet { target, mode, seed });
                    bar.inc(1);
                }
            }
        }
        Ok(explored)
    }

    /// Returns the runs in their order. The mode eADR is left out, because there every store is a crash point and
    /// other modes reach the same situations sooner.
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

    fn print(&self, groups: &[SituationGroup<'_>]) {
        if self.json {
            return;
        }
        if self.markdown {
            println!("| situation | what | first reached by |\n|---|---|---|");
        }
        let all = groups
            .iter()
            .flat_map(|group| group.listed.iter().zip(&group.firsts));
        for (situation, first) in all {
            let by = first.as_ref().map_or("nothing".into(), |first| {
                format!("{} {} {:#x}", first.target, first.mode.name(), first.seed)
            });
            match self.markdown {
                true => println!(
                    "| `{}` | {} | {by} |",
                    situation.name, situation.description
                ),
                false => println!(
                    "{:>12}  {:32} {by:24} {}",
                    met(situation.name),
                    situation.name,
                    situation.description
                ),
            }
        }
    }
}
