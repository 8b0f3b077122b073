//! The contest's published engines as contenders.

use farbank_bench::figure::Error;
use farbank_check::target::Target;

use super::contender::{Contender, FarMemory, on_far};
use super::plan::ContestRound;
use super::published::{FigureBound, KID, PRELIM, PublishedFigures, V1, V2};
use crate::kid::{self, Kid, KidConfig};
use crate::prelim::{self, Prelim};
use crate::target::EngineTarget;
use crate::v1::{self, V1, V1Config};
use crate::v2::{self, V2, V2Config};
use crate::{ContestLimits, Engine, ReusePolicy};

/// First place of the preliminary round. Nothing is durable.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrelimEngine(pub prelim::PrelimOptions);

/// Engine of the slides: hash lines, one write per set.
#[derive(Clone, Copy, Debug, Default)]
pub struct KidEngine(pub kid::KidOptions);

/// First version of the third place's engine: two writes per set.
#[derive(Clone, Copy, Debug)]
pub struct V1Engine(pub v1::V1Tuning);

/// Last version of the third place's engine: one write per set.
#[derive(Clone, Copy, Debug)]
pub struct V2Engine(pub v2::V2Tuning);

/// Blocks are reused from the start. As published, blocks are reused only when far memory is nearly full. Then neither
/// engine can store all sets of the mix that can be rebuilt from public information.
impl Default for V1Engine {
    fn default() -> V1Engine {
        V1Engine(v1::V1Tuning {
            reuse: ReusePolicy::Always,
            ..v1::V1Tuning::PUBLISHED
        })
    }
}

impl Default for V2Engine {
    fn default() -> V2Engine {
        V2Engine(v2::V2Tuning {
            reuse: ReusePolicy::Always,
            ..v2::V2Tuning::PUBLISHED
        })
    }
}

/// Far memory of the final in GiB, according to the third place's text. Other sources say 64 GiB.
const PUBLISHED_FAR_GIB: u64 = 74;

fn made<E: Engine + 'static, W: std::fmt::Display>(
    engine: Result<E, W>,
) -> Result<Box<dyn Engine>, Error> {
    match engine {
        Ok(engine) => Ok(Box::new(engine)),
        Err(why) => Err(Error::Failed(why.to_string())),
    }
}

impl Contender for PrelimEngine {
    fn name(&self) -> &'static str {
        "prelim"
    }

    fn supports_round(&self, round: ContestRound) -> bool {
        round == ContestRound::Preliminary
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        on_far!(far, medium => made(Prelim::create(medium, terms, self.0)))
    }

    fn open(&self, _: FarMemory, _: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        Err(Error::Failed(
            "prelim stores nothing durably and cannot be reopened".into(),
        ))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        None
    }

    fn published(&self, terms: &ContestLimits) -> PublishedFigures {
        // One drain per buffer. Buffers scale with far memory.
        const RECORDS_A_BUFFER: f64 = 41_943.0;
        let part = (74_u64 << 30) as f64 / terms.far_bytes as f64;
        PublishedFigures {
            fences_a_set: FigureBound::Near(part / RECORDS_A_BUFFER),
            ..PRELIM
        }
    }
}

impl Contender for KidEngine {
    fn name(&self) -> &'static str {
        "kid"
    }

    fn supports_round(&self, round: ContestRound) -> bool {
        round == ContestRound::Final
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        on_far!(far, medium => made(Kid::open(medium, terms, self.0)))
    }

    fn open(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        self.create(far, terms)
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        const TARGET: EngineTarget<KidConfig> = EngineTarget(KidConfig);
        Some((
            &TARGET,
            Some("recovery forgets versions, and ends a partition at its first torn block"),
        ))
    }

    fn published(&self, _: &ContestLimits) -> PublishedFigures {
        KID
    }
}

impl Contender for V1Engine {
    fn name(&self) -> &'static str {
        "v1"
    }

    fn supports_round(&self, round: ContestRound) -> bool {
        round == ContestRound::Final
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn published_far_bytes(&self, part: u64) -> Option<u64> {
        Some((PUBLISHED_FAR_GIB << 30) / part)
    }

    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        on_far!(far, medium => made(V1::create(medium, terms, self.0)))
    }

    fn open(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        on_far!(far, medium => made(V1::open(medium, terms, self.0)))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        const TARGET: EngineTarget<V1Config> = EngineTarget(V1Config(v1::V1Tuning::PUBLISHED));
        Some((
            &TARGET,
            Some("reads return data left by a kill before it is durable"),
        ))
    }

    fn published(&self, _: &ContestLimits) -> PublishedFigures {
        V1
    }
}

impl Contender for V2Engine {
    fn name(&self) -> &'static str {
        "v2"
    }

    fn supports_round(&self, round: ContestRound) -> bool {
        round == ContestRound::Final
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        on_far!(far, medium => made(V2::create(medium, terms, self.0)))
    }

    fn open(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        on_far!(far, medium => made(V2::open(medium, terms, self.0)))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        const TARGET: EngineTarget<V2Config> = EngineTarget(V2Config(v2::V2Tuning::PUBLISHED));
        Some((&TARGET, Some("the checksum covers a quarter of a record")))
    }

    fn published(&self, _: &ContestLimits) -> PublishedFigures {
        V2
    }
}
