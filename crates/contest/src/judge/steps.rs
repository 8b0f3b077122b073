//! The published tuning steps. Each is a parameter of an engine that is turned off alone.
//!
//! For some steps the gain was reported, in seconds of a score; for others only that they were made.

use super::contender::Contender;
use super::engines::{KidEngine, PrelimEngine, V1Engine, V2Engine};
use crate::{BlockPools, ContestLimits, StripeLock, kid, prelim, v1, v2};

/// A tuning step: the engine with it and without it.
pub(super) struct TechniqueStep {
    pub what: &'static str,
    /// Score in seconds before and after the step, if it was reported.
    pub reported: Option<(f64, f64)>,
    pub with: Box<dyn Contender>,
    pub without: Box<dyn Contender>,
    /// Timed part of a run.
    pub timed: TimedPart,
    /// Whether pages are present before the run. A step that concerns page faults needs them absent.
    pub faulted: bool,
    /// Whether the step changes far-memory accesses, so that they are counted and modelled.
    pub far: bool,
    /// Factor on the round's far memory for both engines, as the engine without the step may need more space.
    pub room: f64,
}

/// Timed part of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TimedPart {
    /// A set and a get phase.
    Phases,
    /// The creation of the engine.
    Create,
}

impl TechniqueStep {
    fn new(
        what: &'static str,
        reported: Option<(f64, f64)>,
        with: impl Contender + 'static,
        without: impl Contender + 'static,
    ) -> TechniqueStep {
        TechniqueStep {
            what,
            reported,
            with: Box::new(with),
            without: Box::new(without),
            timed: TimedPart::Phases,
            faulted: true,
            far: false,
            room: 1.0,
        }
    }

    /// Returns the limits of a run. Far memory is scaled by `room`, in whole pages.
    pub(super) fn with_room(&self, terms: ContestLimits) -> ContestLimits {
        const PAGE_BYTES: u64 = 4096;
        let pages = (terms.far_bytes / PAGE_BYTES) as f64 * self.room;
        ContestLimits {
            far_bytes: pages as u64 * PAGE_BYTES,
            ..terms
        }
    }

    fn far(self) -> TechniqueStep {
        TechniqueStep { far: true, ..self }
    }

    fn room(self, room: f64) -> TechniqueStep {
        TechniqueStep { room, ..self }
    }

    fn on_fresh_pages(self) -> TechniqueStep {
        TechniqueStep {
            faulted: false,
            ..self
        }
    }
}

/// Returns all steps. The first step of each engine changes nothing; its figure shows the noise of the others.
pub(super) fn all() -> Vec<TechniqueStep> {
    let mut all = of_prelim();
    all.extend(of_v1());
    all.extend(of_v2());
    all.extend(of_kid());
    all
}

fn unchanged<C: Contender + Default + 'static>() -> TechniqueStep {
    TechniqueStep::new("any change", None, C::default(), C::default())
}

fn of_prelim() -> Vec<TechniqueStep> {
    let usual = prelim::PrelimOptions::default();
    let step = |what, change: fn(&mut prelim::PrelimOptions)| {
        let mut without = usual;
        change(&mut without);
        TechniqueStep::new(what, None, PrelimEngine(usual), PrelimEngine(without))
    };
    vec![
        unchanged::<PrelimEngine>(),
        TechniqueStep {
            timed: TimedPart::Create,
            ..step("the index filled by 16 threads", |o| o.init_threads = 1)
        },
        step("updates of the set phase appended", |o| {
            o.append_updates = false;
        })
        .far(),
        step("heads by compare-and-swap for a mutex", |o| {
            o.head_update = prelim::HeadUpdate::Locked(StripeLock::Mutex);
        }),
        step("heads by compare-and-swap for a spin lock", |o| {
            o.head_update = prelim::HeadUpdate::Locked(StripeLock::Spin);
        }),
        // Without it, 75 GiB of records do not fit into 74 GiB of far memory.
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

/// Room factor for engines that do not swap blocks, which lose free blocks of sizes that no record needs.
const ROOM_WITHOUT_SWAPS: f64 = 1.5;

fn of_v1() -> Vec<TechniqueStep> {
    let V1Engine(usual) = V1Engine::default();
    let step = |what, change: fn(&mut v1::V1Tuning)| {
        let mut without = usual;
        change(&mut without);
        TechniqueStep::new(what, None, V1Engine(usual), V1Engine(without))
    };
    // v1 did not have the steps that its successor made, so here the step is turned on.
    let later = |what, change: fn(&mut v1::V1Tuning)| {
        let mut with = usual;
        change(&mut with);
        TechniqueStep::new(what, None, V1Engine(with), V1Engine(usual))
    };
    vec![
        unchanged::<V1Engine>(),
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
            t.pools = BlockPools::PerThread;
        }),
        later("spin locks for mutexes, as v2", |t| {
            t.lock = StripeLock::Spin
        }),
    ]
}

fn of_v2() -> Vec<TechniqueStep> {
    let V2Engine(usual) = V2Engine::default();
    let step = |what, before: Option<f64>, change: fn(&mut v2::V2Tuning)| {
        const SCORE: f64 = 35.8;
        let mut without = usual;
        change(&mut without);
        let reported = before.map(|before| (before, SCORE));
        TechniqueStep::new(what, reported, V2Engine(usual), V2Engine(without))
    };
    vec![
        unchanged::<V2Engine>(),
        step("one write a set for two", Some(55.0), |t| {
            t.writes = v2::WritesPerRecord::Two;
        })
        .far(),
        step("pre-heat", Some(43.6), |t| t.preheat = false).on_fresh_pages(),
        step("the caller's value used again", Some(37.8), |t| {
            t.value_reuse = false;
        }),
        step("recycle pools of threads", Some(36.8), |t| {
            t.pools = BlockPools::Global;
        }),
        step("spin locks for mutexes", Some(35.9), |t| {
            t.lock = StripeLock::Mutex;
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
            t.checksum = v2::V2Checksum::Crc32;
        }),
    ]
}

fn of_kid() -> Vec<TechniqueStep> {
    let usual = kid::KidOptions::default();
    let step = |what, reported, change: fn(&mut kid::KidOptions)| {
        let mut without = usual;
        change(&mut without);
        TechniqueStep::new(what, reported, KidEngine(usual), KidEngine(without))
    };
    let pre_heated = kid::KidOptions {
        pre_heat: true,
        ..usual
    };
    vec![
        unchanged::<KidEngine>(),
        step("threads' counts a line apart", Some((55.0, 45.0)), |o| {
            o.padded = false;
        }),
        TechniqueStep::new(
            "pre-heat",
            Some((44.0, 39.0)),
            KidEngine(pre_heated),
            KidEngine(usual),
        )
        .on_fresh_pages(),
        // Without it, two threads may use the same partition.
        step("threads numbered by a counter", None, |o| {
            o.partition_rule = kid::Random::ByLot;
        })
        .room(2.0),
        step(
            "a branch and prefetch for a remainder",
            Some((39.0, 38.0)),
            |o| {
                o.step = kid::ProbeStep::Modulo;
                o.prefetch = false;
            },
        ),
        step("a branch for a remainder", None, |o| {
            o.step = kid::ProbeStep::Modulo;
        }),
        step("prefetch", None, |o| o.prefetch = false),
        step("XXH3 for CRC-32C", Some((38.0, 36.0)), |o| {
            o.checksum = kid::KidChecksum::Crc32c;
        }),
        step("free lists' nodes made ahead", Some((36.0, 35.5)), |o| {
            o.list_nodes_ahead = false;
        }),
    ]
}
