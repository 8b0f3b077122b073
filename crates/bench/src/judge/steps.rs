//! The tuning steps that were published: each is a parameter of an engine, turned back alone.
//!
//! Of some it was told what they gained, in seconds of a score; of others only that they were made.

use farbank_contest::{Lock, Pools, Terms, kid, prelim, v1, v2};

use super::contender::Contender;
use super::contest::{KidEngine, PrelimEngine, V1Engine, V2Engine};

/// A step: the engine with it and without it.
pub(super) struct Step {
    pub what: &'static str,
    /// Seconds of the score before and after it, if they were reported.
    pub reported: Option<(f64, f64)>,
    pub with: Box<dyn Contender>,
    pub without: Box<dyn Contender>,
    /// What is timed.
    pub timed: Timed,
    /// Whether pages are there before: what the step is about may be that they are not.
    pub faulted: bool,
    /// Whether it changes what is asked of far memory: then that is counted, and modelled.
    pub far: bool,
    /// How much of the round's far memory both are given: without the step there may be no room for all sets.
    pub room: f64,
}

/// What of a run is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Timed {
    /// A set and a get phase.
    Phases,
    /// Making the engine.
    Create,
}

impl Step {
    fn new(
        what: &'static str,
        reported: Option<(f64, f64)>,
        with: impl Contender + 'static,
        without: impl Contender + 'static,
    ) -> Step {
        Step {
            what,
            reported,
            with: Box::new(with),
            without: Box::new(without),
            timed: Timed::Phases,
            faulted: true,
            far: false,
            room: 1.0,
        }
    }

    /// The terms of a run: what is given of far memory follows [`Step::room`], in whole pages.
    pub(super) fn with_room(&self, terms: Terms) -> Terms {
        const PAGE_BYTES: u64 = 4096;
        let pages = (terms.far_bytes / PAGE_BYTES) as f64 * self.room;
        Terms {
            far_bytes: pages as u64 * PAGE_BYTES,
            ..terms
        }
    }

    fn far(self) -> Step {
        Step { far: true, ..self }
    }

    fn room(self, room: f64) -> Step {
        Step { room, ..self }
    }

    fn on_fresh_pages(self) -> Step {
        Step {
            faulted: false,
            ..self
        }
    }
}

/// All of them; of each engine a step first that changes nothing, which shows how much chance there is in the
/// others.
pub(super) fn all() -> Vec<Step> {
    let mut all = of_prelim();
    all.extend(of_v1());
    all.extend(of_v2());
    all.extend(of_kid());
    all
}

fn nothing<C: Contender + Default + 'static>() -> Step {
    Step::new("any change", None, C::default(), C::default())
}

fn of_prelim() -> Vec<Step> {
    let usual = prelim::Options::default();
    let step = |what, change: fn(&mut prelim::Options)| {
        let mut without = usual;
        change(&mut without);
        Step::new(what, None, PrelimEngine(usual), PrelimEngine(without))
    };
    vec![
        nothing::<PrelimEngine>(),
        Step {
            timed: Timed::Create,
            ..step("the index filled by 16 threads", |o| o.init_threads = 1)
        },
        step("updates of the set phase appended", |o| {
            o.append_updates = false;
        })
        .far(),
        step("heads by compare-and-swap for a mutex", |o| {
            o.swing = prelim::Swing::Locked(Lock::Mutex);
        }),
        step("heads by compare-and-swap for a spin lock", |o| {
            o.swing = prelim::Swing::Locked(Lock::Spin);
        }),
        // Without it 75 GiB of records are for 74 GiB of far memory.
        step("the first records in DRAM for good", |o| {
            o.head_segments = 0
        })
        .far()
        .room(1.05),
        step("five flushers for one", |o| o.flushers = 1),
        step("the read cache", |o| o.read_cache = false).far(),
        step("updates the cache takes only there", |o| {
            o.cache_absorbs = false;
        })
        .far(),
        step("the caller's value used again", |o| o.value_reuse = false),
    ]
}

/// Room for engines that do not swap: blocks are lost to sizes that nobody wants.
const ROOM_WITHOUT_SWAPS: f64 = 1.5;

fn of_v1() -> Vec<Step> {
    let V1Engine(usual) = V1Engine::default();
    let step = |what, change: fn(&mut v1::Tuning)| {
        let mut without = usual;
        change(&mut without);
        Step::new(what, None, V1Engine(usual), V1Engine(without))
    };
    // What its successor is said to have changed, it did not have: that is turned on.
    let later = |what, change: fn(&mut v1::Tuning)| {
        let mut with = usual;
        change(&mut with);
        Step::new(what, None, V1Engine(with), V1Engine(usual))
    };
    vec![
        nothing::<V1Engine>(),
        step("heads in DRAM, too", |t| t.mirror = false).far(),
        step("swaps", |t| t.swaps = false)
            .far()
            .room(ROOM_WITHOUT_SWAPS),
        step("the read cache", |t| t.cache_slots = Some(0)).far(),
        later("pre-heat, as v2", |t| t.preheat = true).on_fresh_pages(),
        later("the caller's value used again, as v2", |t| {
            t.value_reuse = true;
        }),
        later("recycle pools of threads, as v2", |t| {
            t.pools = Pools::PerThread;
        }),
        later("spin locks for mutexes, as v2", |t| t.lock = Lock::Spin),
    ]
}

fn of_v2() -> Vec<Step> {
    let V2Engine(usual) = V2Engine::default();
    let step = |what, before: Option<f64>, change: fn(&mut v2::Tuning)| {
        const SCORE: f64 = 35.8;
        let mut without = usual;
        change(&mut without);
        let reported = before.map(|before| (before, SCORE));
        Step::new(what, reported, V2Engine(usual), V2Engine(without))
    };
    vec![
        nothing::<V2Engine>(),
        step("one write a set for two", Some(55.0), |t| {
            t.writes = v2::Writes::Two;
        })
        .far(),
        step("pre-heat", Some(43.6), |t| t.preheat = false).on_fresh_pages(),
        step("the caller's value used again", Some(37.8), |t| {
            t.value_reuse = false;
        }),
        step("recycle pools of threads", Some(36.8), |t| {
            t.pools = Pools::Global;
        }),
        step("spin locks for mutexes", Some(35.9), |t| {
            t.lock = Lock::Mutex;
        }),
        step("swaps", None, |t| t.swaps = false)
            .far()
            .room(ROOM_WITHOUT_SWAPS),
        step("updates moved to near their spares", None, |t| {
            t.locality = false;
        })
        .far(),
        step("the read cache", None, |t| t.cache_slots = Some(0)).far(),
        step("a sum of integers for CRC-32", None, |t| {
            t.checksum = v2::Checksum::Crc32;
        }),
    ]
}

fn of_kid() -> Vec<Step> {
    let usual = kid::Options::default();
    let step = |what, reported, change: fn(&mut kid::Options)| {
        let mut without = usual;
        change(&mut without);
        Step::new(what, reported, KidEngine(usual), KidEngine(without))
    };
    let pre_heated = kid::Options {
        pre_heat: true,
        ..usual
    };
    vec![
        nothing::<KidEngine>(),
        step("threads' counts a line apart", Some((55.0, 45.0)), |o| {
            o.padded = false;
        }),
        Step::new(
            "pre-heat",
            Some((44.0, 39.0)),
            KidEngine(pre_heated),
            KidEngine(usual),
        )
        .on_fresh_pages(),
        // Two threads may draw one partition.
        step("threads numbered by a counter", None, |o| {
            o.numbers = kid::Numbers::ByLot;
        })
        .room(2.0),
        step(
            "a branch and prefetch for a remainder",
            Some((39.0, 38.0)),
            |o| {
                o.step = kid::Step::Modulo;
                o.prefetch = false;
            },
        ),
        step("a branch for a remainder", None, |o| {
            o.step = kid::Step::Modulo;
        }),
        step("prefetch", None, |o| o.prefetch = false),
        step("XXH3 for CRC-32C", Some((38.0, 36.0)), |o| {
            o.checksum = kid::Checksum::Crc32c;
        }),
        step("free lists' nodes made ahead", Some((36.0, 35.5)), |o| {
            o.list_nodes_ahead = false;
        }),
    ]
}
