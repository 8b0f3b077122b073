//! Results of an exploration, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use farbank_pm::sim::{Persistency, SourceAction, SourceLine, brief};

use crate::Violation;
use crate::digest::fold;
use crate::history::AckRule;

/// What follows a crash point: an image to check, or a kill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageChoice {
    /// A power cut that leaves the image of this number.
    Image(usize),
    /// A power cut whose memory is decided while recovery reads it. Holds the choice at each decision.
    Lazy(Vec<u32>),
    /// A kill. Volatile data stays visible, and stays volatile.
    Kill,
}

impl fmt::Display for ImageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageChoice::Image(number) => write!(f, "{number}"),
            ImageChoice::Kill => f.write_str("kill"),
            ImageChoice::Lazy(script) => {
                let script: Vec<String> = script.iter().map(u32::to_string).collect();
                write!(f, "lazy:{}", script.join("."))
            }
        }
    }
}

impl std::str::FromStr for ImageChoice {
    type Err = ImageChoiceError;

    fn from_str(text: &str) -> Result<ImageChoice, ImageChoiceError> {
        let wrong = || ImageChoiceError(text.into());
        if let Some(script) = text.strip_prefix("lazy:") {
            let words = script.split('.').filter(|_| !script.is_empty());
            let script = words.map(str::parse).collect::<Result<_, _>>();
            return script.map(ImageChoice::Lazy).map_err(|_| wrong());
        }
        match text.parse() {
            Ok(number) => Ok(ImageChoice::Image(number)),
            Err(_) if text == "kill" => Ok(ImageChoice::Kill),
            Err(_) => Err(wrong()),
        }
    }
}

/// A text that is no [`ImageChoice`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageChoiceError(String);

impl fmt::Display for ImageChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(
            f,
            "{text:?} is not an image; expected a number, `kill`, or lazy:N.N.N"
        )
    }
}

impl std::error::Error for ImageChoiceError {}

/// A violation, and how to reproduce it.
#[derive(Clone, Debug)]
pub struct CrashViolation {
    /// The seed of the run.
    pub seed: u64,
    /// The crash point, and what followed it. `None` if the run failed without a crash.
    pub crash: Option<(u64, ImageChoice)>,
    /// Steps from the crash to the failure, one line each.
    pub trail: Vec<String>,
    /// Description of the violation.
    pub what: String,
    /// The last lines of the history of the affected key.
    pub history: Vec<String>,
    /// The data that was volatile at the last crash, and how much of it survived.
    pub survivors: Vec<String>,
    /// Whether the check holds under [`AckRule::Acknowledged`], or the violation under that rule. `None` if that rule
    /// was used from the start.
    pub acknowledged: Option<Result<(), Violation>>,
    /// Command that reproduces the violation.
    pub command: String,
    /// Distinct images of this seed that were checked before the violation.
    pub distinct: u64,
}

impl fmt::Display for CrashViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trail = if self.trail.is_empty() {
            "no crash".into()
        } else {
            self.trail.join(", then ")
        };
        writeln!(
            f,
            "violation: seed {:#x}, {trail}: {}",
            self.seed, self.what
        )?;
        let mut section = |title: &str, lines: &[String]| -> fmt::Result {
            if !lines.is_empty() {
                writeln!(f, "  {title}:")?;
            }
            lines.iter().try_for_each(|line| writeln!(f, "    {line}"))
        };
        section("volatile at the crash", &self.survivors)?;
        section("history", &self.history)?;
        match &self.acknowledged {
            None => {}
            Some(Ok(())) => writeln!(
                f,
                "  counting only acknowledged writes it holds: only data that a read had returned is lost"
            )?,
            Some(Err(what)) => writeln!(
                f,
                "  counting only acknowledged writes it is violated too: {what}"
            )?,
        }
        write!(f, "  again: {}", self.command)
    }
}

/// Exact counts of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CrashCounts {
    /// Seeds run.
    pub seeds: u64,
    /// Steps of all runs together.
    pub steps: u64,
    /// Crash points of the runs, without those of recoveries.
    pub crash_points: u64,
    /// Crash points whose every image was checked.
    pub exhaustive_points: u64,
    /// Crash points of recoveries and of the steps after them: a second consecutive crash.
    pub nested_points: u64,
    /// Crash points of the recoveries from those: a third consecutive crash, or a later one.
    pub deep_points: u64,
    /// Images checked, including those checked before against another history.
    pub images: u64,
    /// Distinct images opened and checked.
    pub distinct_images: u64,
    /// Nested runs: images and kills whose recovery was crashed in turn.
    pub nested_runs: u64,
    /// Nested runs that began with a kill.
    pub kills: u64,
    /// Images on which recovery was repeated and the structure was used afterwards.
    pub probes: u64,
    /// Operations refused for lack of space.
    pub refused: u64,
    /// Lazy exploration: crash points already checked against the same history.
    pub repeated_points: u64,
    /// Lazy exploration: memory contents that recovery can tell apart (leaves).
    pub leaves: u64,
    /// Lazy exploration: maximum number of leaves at one crash point.
    pub most_leaves: u64,
    /// Lazy exploration: crash points with more leaves than [`ExploreConfig::leaves`](crate::ExploreConfig::leaves).
    pub cut_off: u64,
}

impl CrashCounts {
    /// Returns the names and values of all counts, in order.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 16] {
        [
            ("seeds", self.seeds),
            ("steps", self.steps),
            ("crash_points", self.crash_points),
            ("exhaustive_points", self.exhaustive_points),
            ("nested_points", self.nested_points),
            ("deep_points", self.deep_points),
            ("images", self.images),
            ("distinct_images", self.distinct_images),
            ("nested_runs", self.nested_runs),
            ("kills", self.kills),
            ("probes", self.probes),
            ("refused", self.refused),
            ("repeated_points", self.repeated_points),
            ("leaves", self.leaves),
            ("most_leaves", self.most_leaves),
            ("cut_off", self.cut_off),
        ]
    }

    /// Adds the counts of another seed, except distinct images: two seeds may share images, so the explorer counts
    /// them.
    fn add(&mut self, other: &CrashCounts) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.crash_points += other.crash_points;
        self.exhaustive_points += other.exhaustive_points;
        self.nested_points += other.nested_points;
        self.deep_points += other.deep_points;
        self.images += other.images;
        self.nested_runs += other.nested_runs;
        self.kills += other.kills;
        self.probes += other.probes;
        self.refused += other.refused;
        self.repeated_points += other.repeated_points;
        self.leaves += other.leaves;
        self.most_leaves = self.most_leaves.max(other.most_leaves);
        self.cut_off += other.cut_off;
    }
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct CrashReport {
    /// The target's name.
    pub target: String,
    /// Persistency mode: what a power cut could lose.
    pub persistency: Persistency,
    /// Rule that decided which data must survive.
    pub verdict: AckRule,
    /// Whether the exploration was lazy.
    pub lazy: bool,
    /// Digest of every crash point, all contents shown and every violation. It depends only on target, configuration
    /// and seeds.
    pub digest: u64,
    /// Exact counts, the same for the same seeds.
    pub counts: CrashCounts,
    /// Every source line that accessed far memory.
    pub places: Vec<SourceLine>,
    /// Violations, at most one per seed, in the order of the seeds.
    pub violations: Vec<CrashViolation>,
    /// Elapsed time.
    pub elapsed: std::time::Duration,
    /// CPU time of all threads.
    pub cpu: std::time::Duration,
}

impl CrashReport {
    /// Creates the report of an exploration that has not begun.
    pub(crate) fn new(
        target: String,
        persistency: Persistency,
        verdict: AckRule,
        lazy: bool,
    ) -> CrashReport {
        CrashReport {
            target,
            persistency,
            verdict,
            lazy,
            digest: 0,
            counts: CrashCounts::default(),
            places: Vec::new(),
            violations: Vec::new(),
            elapsed: std::time::Duration::ZERO,
            cpu: std::time::Duration::ZERO,
        }
    }

    /// Adds the report of the next seed.
    pub(crate) fn add(&mut self, seed: CrashReport) {
        self.digest = fold(self.digest, seed.digest);
        self.counts.add(&seed.counts);
        self.add_places(&seed.places);
        self.violations.extend(seed.violations);
    }

    pub(crate) fn add_places(&mut self, more: &[SourceLine]) {
        let key = |p: &SourceLine| (p.at.file(), p.at.line(), p.at.column(), p.act);
        let mut all: BTreeMap<_, SourceLine> =
            self.places.drain(..).map(|p| (key(&p), p)).collect();
        for place in more {
            let known = all.entry(key(place)).or_insert(SourceLine {
                hits: 0,
                crashes: 0,
                ..*place
            });
            known.hits += place.hits;
            known.crashes += place.crashes;
            known.units_max = known.units_max.max(place.units_max);
        }
        self.places = all.into_values().collect();
    }

    /// Returns whether no violation was found.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns the places without a crash at a time when their effect could be lost. Where caches are durable (eADR),
    /// flushes and drains have no effect to lose, and are left out.
    pub fn uncovered(&self) -> impl Iterator<Item = &SourceLine> {
        let idle = |act| {
            self.persistency == Persistency::Eadr
                && matches!(act, SourceAction::Flush | SourceAction::Drain)
        };
        self.places
            .iter()
            .filter(move |p| p.crashes == 0 && !idle(p.act))
    }

    /// Returns one JSON object on one line.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = format!(
            "{{\"check\":\"crash\",\"target\":{},\"persistency\":\"{}\",\"verdict\":\"{}\",\"lazy\":{},\
             \"holds\":{},\"digest\":\"{:016x}\"",
            quote(&self.target),
            self.persistency,
            self.verdict,
            self.lazy,
            self.holds(),
            self.digest
        );
        for (name, count) in self.counts.fields() {
            let _ = write!(out, ",\"{name}\":{count}");
        }
        let places = self.places.len();
        let _ = write!(out, ",\"places\":{places},\"places_crashed\":{}", {
            places - self.uncovered().count()
        });
        let _ = write!(
            out,
            ",\"elapsed_s\":{:.3},\"cpu_s\":{:.3},\"violations\":[",
            self.elapsed.as_secs_f64(),
            self.cpu.as_secs_f64()
        );
        for (i, v) in self.violations.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                out,
                "{comma}{{\"seed\":{},\"what\":{}",
                v.seed,
                quote(&v.what)
            );
            if let Some((crash, pick)) = &v.crash {
                let _ = write!(out, ",\"crash\":{crash},\"image\":\"{pick}\"");
            }
            if let Some(acknowledged) = &v.acknowledged {
                let holds = acknowledged.is_ok();
                let _ = write!(out, ",\"holds_by_acknowledgements\":{holds}");
            }
            let _ = write!(out, ",\"command\":{}}}", quote(&v.command));
        }
        out + "]}"
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}\n")?;
        }
        writeln!(
            f,
            "places (with the number of crash points at which their effect could be lost):"
        )?;
        for place in &self.places {
            let act = place.act.name();
            let at = brief(place.at);
            writeln!(
                f,
                "  {act:8} {at:40} {:>10} hits {:>10} crashes",
                place.hits, place.crashes
            )?;
        }
        let verdict = if self.holds() { "holds" } else { "VIOLATED" };
        let judged = match self.verdict {
            AckRule::Strict => "",
            AckRule::Acknowledged => ", counting only acknowledged writes",
        };
        write!(
            f,
            "{} {}{judged}: {verdict}; ",
            self.target, self.persistency
        )?;
        if self.lazy {
            self.write_lazy(f)?;
        } else {
            self.write_eager(f)?;
        }
        write!(
            f,
            ", {} seeds, {} violations; crashes at {} of {} places; digest {:016x}; {:.1} s, {:.1} s of \
             CPU time",
            self.counts.seeds,
            self.violations.len(),
            self.places.len() - self.uncovered().count(),
            self.places.len(),
            self.digest,
            self.elapsed.as_secs_f64(),
            self.cpu.as_secs_f64(),
        )
    }
}

impl CrashReport {
    fn write_eager(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        write!(
            f,
            "{} distinct images ({:.0} per CPU second) at {} crash points ({} exhaustively), {} in \
             recoveries",
            c.distinct_images,
            c.distinct_images as f64 / self.cpu.as_secs_f64().max(1e-9),
            c.crash_points,
            c.exhaustive_points,
            c.nested_points,
        )?;
        match c.deep_points {
            0 => Ok(()),
            deep => write!(f, ", {deep} in recoveries from those"),
        }
    }

    fn write_lazy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        write!(
            f,
            "lazily {} crash points ({} without sampling, {} cut off; {} repeated), {} leaves, \
             at most {} at one",
            c.crash_points,
            c.exhaustive_points,
            c.cut_off,
            c.repeated_points,
            c.leaves,
            c.most_leaves,
        )
    }
}

/// Returns `text` as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}
