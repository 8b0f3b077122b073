//! A moment at which power may go, and the images it may leave.

use std::fmt;
use std::panic::Location;

use super::image::{PoolImage, mix};
use super::image_cuts::{ChainIndex, CrashImages, ImageCut, kept};
use super::source_lines::{SourceLineId, SourceLines, brief};
use super::state::{CHAINS, Queues, SimState, VolatileStore};
use super::{Persistency, Sim};
use crate::medium::{LINE, Off, WORD};
use crate::sync::Arc;

/// What was about to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashMoment {
    /// A word stored or swapped.
    Store,
    /// A word of a copy.
    CopyIn,
    /// A drain.
    Drain,
    /// A sync that serves drains.
    Sync,
    /// Nothing: the driver asked.
    Asked,
}

impl CrashMoment {
    /// As it is printed: "before drain".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CrashMoment::Store => "before store",
            CrashMoment::CopyIn => "within copy_in",
            CrashMoment::Drain => "before drain",
            CrashMoment::Sync => "before sync",
            CrashMoment::Asked => "between operations",
        }
    }
}

/// What happened to the volatile stores of one line or sector, as far as it is known.
#[derive(Clone, Debug)]
pub struct UnitSurvivors {
    /// Where the line or sector starts.
    pub at: Off,
    /// How many of its stores survived.
    pub kept: usize,
    /// How many were lost. What is neither was never read (lazy memory only).
    pub lost: usize,
    /// How many it had.
    pub of: usize,
    /// Where words kept stores each on its own, what each of the eight kept: `#` all, `+` some,
    /// `.` none, `?` unknown, `-` had none.
    pub words: Option<String>,
    /// Who made the last of them, if places were counted.
    pub by: Option<&'static Location<'static>>,
}

impl fmt::Display for UnitSurvivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, kept, of) = (self.at, self.kept, self.of);
        write!(f, "{at:?}: {kept} of {of} stores survived")?;
        if self.kept + self.lost < self.of {
            write!(f, ", {} were lost, the others never read", self.lost)?;
        }
        if let Some(words) = &self.words {
            write!(f, ", words {words}")?;
        }
        self.by
            .map_or(Ok(()), |by| write!(f, " (last by {})", brief(by)))
    }
}

impl UnitSurvivors {
    /// From how many stores of each of a queue's chains survived, at least and at most.
    pub(super) fn of(
        at: Off,
        queue: &[VolatileStore],
        bounds: impl Fn(usize) -> (u32, u32),
        places: Option<&SourceLines>,
    ) -> UnitSurvivors {
        let chains = ChainIndex::of(queue);
        let mut total = [0; CHAINS];
        let mut words = ['-'; CHAINS - 1];
        for store in queue {
            total[chains.slot(store)] += 1;
        }
        let (mut kept, mut lost) = (0, 0);
        for (slot, of) in total.iter().enumerate().take(chains.count) {
            let (least, most) = bounds(slot);
            kept += least as usize;
            lost += (of - most) as usize;
        }
        for store in queue.iter().filter(|s| s.chain != 0) {
            let slot = chains.slot(store);
            words[store.chain as usize - 1] = match bounds(slot) {
                (least, most) if least < most => '?',
                (0, _) => '.',
                (least, _) if least == total[slot] => '#',
                _ => '+',
            };
        }
        let apart = queue.iter().any(|s| s.chain != 0);
        UnitSurvivors {
            at,
            kept,
            lost,
            of: queue.len(),
            words: apart.then(|| words.iter().collect()),
            by: queue.last().and_then(|s| Some(places?.get(s.place)?.at)),
        }
    }
}

/// A moment at which power may go, or the process be killed. Cheap: pages are shared.
#[derive(Clone)]
pub struct CrashState {
    pub(super) persistency: Persistency,
    pub(super) durable: PoolImage,
    pub(super) visible: PoolImage,
    pub(super) queues: Queues,
    pub(super) cas_drains: bool,
    /// What was about to happen.
    pub moment: CrashMoment,
    pub(super) place: SourceLineId,
    pub(super) places: Option<Arc<SourceLines>>,
}

impl CrashState {
    /// The line of source that was about to act, if places were counted.
    #[must_use]
    pub fn place(&self) -> Option<&'static Location<'static>> {
        Some(self.places.as_ref()?.get(self.place)?.at)
    }

    /// The images a power cut can leave, each once. All of them if they are at most `cap`; else
    /// `cap` of them, the adversarial first, the rest drawn by `seed`.
    #[must_use]
    pub fn images(&self, cap: usize, seed: u64) -> CrashImages {
        CrashImages::new(self, cap, seed)
    }

    /// The image that `cut` leaves.
    #[must_use]
    pub fn image(&self, cut: &ImageCut) -> PoolImage {
        let mut image = self.durable.clone();
        let mut keep = &cut.keep[..];
        for queue in self.queues.values() {
            let chains = ChainIndex::of(queue);
            let (mine, rest) = keep.split_at(chains.count);
            kept(queue, &chains, mine, |s| {
                image.set_word(Off(s.word), s.value)
            });
            keep = rest;
        }
        image
    }

    /// What `cut` keeps and loses, a line or sector at a time.
    #[must_use]
    pub fn survivors(&self, cut: &ImageCut) -> Vec<UnitSurvivors> {
        let unit_bytes = self.persistency.unit_bytes() as u64;
        let mut keep = &cut.keep[..];
        let queues = self.queues.iter();
        queues
            .map(|(&unit, queue)| {
                let (mine, rest) = keep.split_at(ChainIndex::of(queue).count);
                keep = rest;
                let bounds = |slot: usize| (mine[slot], mine[slot]);
                let places = self.places.as_deref();
                UnitSurvivors::of(Off(unit * unit_bytes), queue, bounds, places)
            })
            .collect()
    }

    /// A hash of what decides the images: the durable bytes, the volatile stores in their chains,
    /// and the persistency. Moments with equal digests leave the same images.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let start = mix(self.durable.hash()) ^ self.persistency as u64;
        let units = self.queues.iter();
        units.fold(mix(start), |digest, (&unit, queue)| {
            mix(digest ^ mix(unit ^ self.queue_digest(queue)))
        })
    }

    /// The order within each chain, and of the stores to each word; no other matters.
    fn queue_digest(&self, queue: &[VolatileStore]) -> u64 {
        let mut chains = [0; CHAINS];
        let mut words = [0; LINE / WORD];
        let mut previous = None;
        for store in queue {
            let store_hash = mix(store.word) ^ store.value;
            let chain = &mut chains[store.chain as usize];
            *chain = mix(*chain ^ store_hash);
            if self.persistency.is_file() {
                *chain = mix(*chain ^ u64::from(previous != Some(store.call)));
            } else {
                let word = &mut words[store.word as usize % LINE / WORD];
                *word = mix(*word ^ u64::from(store.chain) ^ mix(store.value));
            }
            previous = Some(store.call);
        }
        let all = chains.iter().chain(&words);
        all.fold(0, |digest, &part| mix(digest ^ part))
    }

    /// Far memory after a kill without a power cut: every byte that was visible is, and what was
    /// volatile still is. Flushes and drains of the dead process that had not ended count for
    /// nothing.
    #[must_use]
    pub fn killed(&self) -> Sim {
        let mut state = SimState::new(
            self.durable.clone(),
            self.visible.clone(),
            self.queues.clone(),
        );
        state.cas_drains = self.cas_drains;
        Sim::with_state(state, self.persistency)
    }

    /// Far memory after a sync that failed and a kill of its process (Page): `cut` is what had reached
    /// the device, every byte that was visible is, and pages that were not written look as if they were.
    /// A process that opens the file calls [`Sim::forget_cached`] first.
    #[must_use]
    pub fn killed_after_failed_sync(&self, cut: &ImageCut) -> Sim {
        let mut state = SimState::new(self.image(cut), self.visible.clone(), Queues::new());
        state.lost = self.queues.keys().copied().collect();
        Sim::with_state(state, self.persistency)
    }
}
