//! What an exploration found, for people and for machines.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use farbank_pm::sim::{Act, Persistency, Place, brief};

/// Which way to go from a crash point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// A power cut that left this image.
    Image(usize),
    /// A kill; what follows was still volatile.
    Kill,
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pick::Image(number) => write!(f, "{number}"),
            Pick::Kill => f.write_str("kill"),
        }
    }
}

impl std::str::FromStr for Pick {
    type Err = String;

    fn from_str(text: &str) -> Result<Pick, String> {
        match text.parse() {
            Ok(number) => Ok(Pick::Image(number)),
            Err(_) if text == "kill" => Ok(Pick::Kill),
            Err(_) => Err(format!("{text:?} is no image: a number, or `kill`")),
        }
    }
}

/// Something that must never happen, and how to see it again.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// The crash point, and which way from it; `None` if no crash was needed.
    pub crash: Option<(u64, Pick)>,
    /// From the crash to the failure, a line each.
    pub trail: Vec<String>,
    /// What is wrong.
    pub what: String,
    /// The end of the history of the key concerned.
    pub history: Vec<String>,
    /// What was volatile at the last crash, and what of it survived.
    pub survivors: Vec<String>,
    /// The command that shows it again.
    pub command: String,
    /// Distinct images this seed had judged by then.
    pub distinct: u64,
}

impl fmt::Display for Violation {
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
        write!(f, "  again: {}", self.command)
    }
}

/// Exact counts of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Seeds run.
    pub seeds: u64,
    /// Steps of all runs.
    pub steps: u64,
    /// Crash points of the runs themselves.
    pub crash_points: u64,
    /// Those of them of which every image was judged.
    pub exhaustive_points: u64,
    /// Crash points inside recoveries, and after them.
    pub nested_points: u64,
    /// Images judged, with those that were judged before under another history.
    pub images: u64,
    /// Distinct images opened and judged; distinct within a seed.
    pub distinct_images: u64,
    /// Recoveries crashed: images and kills from which a run of its own was explored.
    pub nested_runs: u64,
    /// Those of them that began with a kill.
    pub kills: u64,
    /// Images on which recovery was repeated and the structure used.
    pub probes: u64,
    /// Operations refused for want of room.
    pub refused: u64,
}

impl Counts {
    /// The names and figures, in order.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 11] {
        [
            ("seeds", self.seeds),
            ("steps", self.steps),
            ("crash_points", self.crash_points),
            ("exhaustive_points", self.exhaustive_points),
            ("nested_points", self.nested_points),
            ("images", self.images),
            ("distinct_images", self.distinct_images),
            ("nested_runs", self.nested_runs),
            ("kills", self.kills),
            ("probes", self.probes),
            ("refused", self.refused),
        ]
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.crash_points += other.crash_points;
        self.exhaustive_points += other.exhaustive_points;
        self.nested_points += other.nested_points;
        self.images += other.images;
        self.distinct_images += other.distinct_images;
        self.nested_runs += other.nested_runs;
        self.kills += other.kills;
        self.probes += other.probes;
        self.refused += other.refused;
    }
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The target's name.
    pub target: String,
    /// What a power cut could take.
    pub persistency: Persistency,
    /// Exact counts; the same for the same seeds.
    pub counts: Counts,
    /// Every line of source that acted on far memory.
    pub places: Vec<Place>,
    /// At most one a seed, in the order of the seeds.
    pub violations: Vec<Violation>,
    /// How long it took.
    pub elapsed: std::time::Duration,
}

impl Report {
    pub(crate) fn new(target: String, persistency: Persistency) -> Report {
        Report {
            target,
            persistency,
            counts: Counts::default(),
            places: Vec::new(),
            violations: Vec::new(),
            elapsed: std::time::Duration::ZERO,
        }
    }

    pub(crate) fn add_places(&mut self, more: &[Place]) {
        let key = |p: &Place| (p.at.file(), p.at.line(), p.at.column(), p.act);
        let mut all: BTreeMap<_, Place> = self.places.drain(..).map(|p| (key(&p), p)).collect();
        for place in more {
            let known = all.entry(key(place)).or_insert(Place {
                hits: 0,
                crashes: 0,
                ..*place
            });
            known.hits += place.hits;
            known.crashes += place.crashes;
        }
        self.places = all.into_values().collect();
    }

    /// Whether nothing was found wrong.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    /// Places at which no crash was tried while what they did was at stake. Where caches are durable
    /// flushes and drains do nothing, and nothing of theirs is ever at stake.
    pub fn uncovered(&self) -> impl Iterator<Item = &Place> {
        let idle =
            |act| self.persistency == Persistency::Eadr && matches!(act, Act::Flush | Act::Drain);
        self.places
            .iter()
            .filter(move |p| p.crashes == 0 && !idle(p.act))
    }

    /// One JSON object on one line.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = format!(
            "{{\"check\":\"crash\",\"target\":{},\"persistency\":\"{}\",\"holds\":{}",
            quote(&self.target),
            self.persistency,
            self.holds()
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
            ",\"elapsed_s\":{:.3},\"violations\":[",
            self.elapsed.as_secs_f64()
        );
        for (i, v) in self.violations.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                out,
                "{comma}{{\"seed\":{},\"what\":{}",
                v.seed,
                quote(&v.what)
            );
            if let Some((crash, pick)) = v.crash {
                let _ = write!(out, ",\"crash\":{crash},\"image\":\"{pick}\"");
            }
            let _ = write!(out, ",\"command\":{}}}", quote(&v.command));
        }
        out + "]}"
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}\n")?;
        }
        writeln!(f, "places (what was at stake at how many crash points):")?;
        for place in &self.places {
            let act = place.act.name();
            let at = brief(place.at);
            writeln!(
                f,
                "  {act:8} {at:40} {:>10} hits {:>10} crashes",
                place.hits, place.crashes
            )?;
        }
        let c = &self.counts;
        let verdict = if self.holds() { "holds" } else { "VIOLATED" };
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{} {}: {verdict}; {} distinct images at {} crash points ({} exhaustively) and {} \
             nested ones, {} seeds, {} violations; {} of {} places crashed at; {:.1} s, {:.0} \
             images/s",
            self.target,
            self.persistency,
            c.distinct_images,
            c.crash_points,
            c.exhaustive_points,
            c.nested_points,
            c.seeds,
            self.violations.len(),
            self.places.len() - self.uncovered().count(),
            self.places.len(),
            seconds,
            c.distinct_images as f64 / seconds.max(1e-9),
        )
    }
}

/// `text` as a JSON string.
fn quote(text: &str) -> String {
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
