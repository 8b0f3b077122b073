//! The tuning steps that were published, each turned back alone.
//!
//! Those who built the engines told what each step gained them, in seconds of a score, on their machine. Here an engine
//! with the step and one without take turns, a set and a get phase each, on memory of this process; the least
//! time of each counts. What is compared is the order and rough size of a step, not its seconds: far memory
//! here is DRAM, and costs a fraction of what theirs did.

use farbank_contest::{Lock, Pools, kid, v2};
use farbank_pm::media::Mapped;

use super::Options;
use super::contender::{Contender, Far};
use super::contest::{KidEngine, V2Engine};
use super::phases::{Trial, plainly};
use super::plan::Phase;
use crate::figure::{Error, Figure, Report, Watch};

/// Times each of both takes its turn.
const TURNS: u32 = 3;

/// A step: the engine with it and without it.
struct Turn {
    what: &'static str,
    /// Seconds of the score before and after it, as reported.
    reported: (f64, f64),
    with: Box<dyn Contender>,
    without: Box<dyn Contender>,
    /// Whether pages are there before: what the step is about may be that they are not.
    faulted: bool,
}

/// The least times of an engine.
struct Least {
    wall: f64,
    cpu: f64,
}

fn of_kid() -> Vec<Turn> {
    let usual = kid::Options::default();
    let turn = |what, reported, without| Turn {
        what,
        reported,
        with: Box::new(KidEngine(usual)),
        without: Box::new(KidEngine(without)),
        faulted: true,
    };
    vec![
        turn(
            "threads' counts a line apart",
            (55.0, 45.0),
            kid::Options {
                padded: false,
                ..usual
            },
        ),
        Turn {
            with: Box::new(KidEngine(kid::Options {
                pre_heat: true,
                ..usual
            })),
            faulted: false,
            ..turn("pre-heat", (44.0, 39.0), usual)
        },
        turn(
            "a branch and prefetch for a remainder",
            (39.0, 38.0),
            kid::Options {
                step: kid::Step::Modulo,
                prefetch: false,
                ..usual
            },
        ),
        turn(
            "XXH3 for CRC-32C",
            (38.0, 36.0),
            kid::Options {
                checksum: kid::Checksum::Crc32c,
                ..usual
            },
        ),
        turn(
            "free lists' nodes made ahead",
            (36.0, 35.5),
            kid::Options {
                list_nodes_ahead: false,
                ..usual
            },
        ),
    ]
}

fn of_v2() -> Vec<Turn> {
    let V2Engine(usual) = V2Engine::default();
    let turn = |what, reported, without| Turn {
        what,
        reported,
        with: Box::new(V2Engine(usual)),
        without: Box::new(V2Engine(without)),
        faulted: true,
    };
    vec![
        turn(
            "one write a set for two",
            (55.0, 35.8),
            v2::Tuning {
                writes: v2::Writes::Two,
                ..usual
            },
        ),
        Turn {
            faulted: false,
            ..turn(
                "pre-heat",
                (43.6, 35.8),
                v2::Tuning {
                    preheat: false,
                    ..usual
                },
            )
        },
        turn(
            "the caller's value used again",
            (37.8, 35.8),
            v2::Tuning {
                value_reuse: false,
                ..usual
            },
        ),
        turn(
            "recycle pools of threads",
            (36.8, 35.8),
            v2::Tuning {
                pools: Pools::Global,
                ..usual
            },
        ),
        turn(
            "spin locks for mutexes",
            (35.9, 35.8),
            v2::Tuning {
                lock: Lock::Mutex,
                ..usual
            },
        ),
    ]
}

/// Turns back every step of the engines that are judged.
pub(super) fn run(
    options: &Options<'_>,
    report: &mut Report,
    watch: Watch<'_>,
) -> Result<(), Error> {
    let judged = |turn: &Turn| {
        let names = options.contenders.iter().map(|contender| contender.name());
        names.into_iter().any(|name| name == turn.with.name())
    };
    for turn in of_v2().into_iter().chain(of_kid()).filter(judged) {
        if !turn.with.takes(options.round) {
            continue;
        }
        let mut least: [Option<Least>; 2] = [None, None];
        for _ in 0..TURNS {
            for (which, least) in [&turn.with, &turn.without].into_iter().zip(&mut least) {
                let now = time(options, &**which, turn.faulted, watch)?;
                let before = least.get_or_insert(Least {
                    wall: f64::INFINITY,
                    cpu: f64::INFINITY,
                });
                before.wall = before.wall.min(now.wall);
                before.cpu = before.cpu.min(now.cpu);
            }
        }
        let [Some(with), Some(without)] = least else {
            continue;
        };
        let name = turn.with.name();
        let reported = turn.reported.0 / turn.reported.1;
        let times = |what: &str, value| {
            let figure = Figure::measured(name, format!("without {}: {what}", turn.what), value);
            figure
                .unit("times as long")
                .published(reported, f64::INFINITY)
        };
        report.figures.extend([
            times("time", without.wall / with.wall),
            times("processor time", without.cpu / with.cpu),
        ]);
    }
    Ok(())
}

/// A set and a get phase.
fn time(
    options: &Options<'_>,
    contender: &dyn Contender,
    faulted: bool,
    watch: Watch<'_>,
) -> Result<Least, Error> {
    let terms = options.terms_for(contender);
    let medium = Mapped::anonymous(terms.far_bytes).map_err(Error::doing("map memory"))?;
    if faulted {
        medium.prefault(&mut |_, _| {});
    }
    let mut trial = Trial::new(options, contender);
    let engine = contender.create(Far::Mapped(medium), &terms)?;
    let mut least = Least {
        wall: 0.0,
        cpu: 0.0,
    };
    for phase in [Phase::Set, Phase::Get(0)] {
        let found = trial.phase(&*engine, phase, plainly(options.group), watch)?;
        if found.refused + found.wrong_answers() > 0 {
            let (name, what) = (contender.name(), found.told.join("; "));
            return Err(Error::Failed(format!("{name} cannot be timed: {what}")));
        }
        least.wall += found.seconds;
        least.cpu += found.cpu_seconds;
    }
    Ok(least)
}
