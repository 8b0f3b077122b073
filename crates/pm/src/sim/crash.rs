//! [`CrashState`], a moment at which a crash can happen, and the images that the crash can leave.

use std::panic::Location;

use super::Sim;
use super::chains::{CHAINS, ChainIndex, Queues, VolatileStore, for_each_kept};
use super::image::PoolImage;
use super::image_cuts::{CrashImages, ImageCut};
use super::source_lines::{SourceLineId, SourceLines};
use super::state::SimState;
use super::survivors::UnitSurvivors;
use crate::medium::{LINE, Off, WORD};
use crate::persistency::Persistency;
use crate::rng::{Rng, mix};
use crate::sync::Arc;

/// The kind of a crash point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashMoment {
    /// Before a store or a compare-and-swap of a word.
    Store,
    /// Before a word of a copy.
    CopyIn,
    /// Before a drain.
    Drain,
    /// Before a sync of drained bytes.
    Sync,
    /// Between operations, at a moment that the caller chose.
    Asked,
}

impl CrashMoment {
    /// Returns the kind as it is printed, for example "before drain".
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

/// A moment at which a power cut or a kill can happen. Cheap to clone, because images share pages.
#[derive(Clone)]
pub struct CrashState {
    pub(super) persistency: Persistency,
    pub(super) durable: PoolImage,
    pub(super) visible: PoolImage,
    pub(super) queues: Queues,
    pub(super) cas_drains: bool,
    /// The kind of the crash point.
    pub moment: CrashMoment,
    pub(super) place: SourceLineId,
    pub(super) places: Option<Arc<SourceLines>>,
}

impl CrashState {
    /// Returns the source line that was about to execute, if source lines were counted.
    #[must_use]
    pub fn place(&self) -> Option<&'static Location<'static>> {
        Some(self.places.as_ref()?.get(self.place)?.at)
    }

    /// Returns the images that a power cut can leave, without duplicates. If there are more than `cap`,
    /// returns `cap` of them: first adversarial ones, then random ones drawn with `seed`.
    #[must_use]
    pub fn images(&self, cap: usize, seed: u64) -> CrashImages {
        CrashImages::new(self.persistency, &self.durable, &self.queues, (cap, seed))
    }

    /// Draws one of the images that [`CrashState::images`] returns for `cap` and `seed`, at random from the same seed.
    #[must_use]
    pub fn drawn_cut(&self, cap: usize, seed: u64) -> ImageCut {
        let mut cuts: Vec<ImageCut> = self.images(cap, seed).collect();
        cuts.swap_remove(Rng::new(seed).below(cuts.len() as u64) as usize)
    }

    /// Returns the image that `cut` leaves.
    #[must_use]
    pub fn image(&self, cut: &ImageCut) -> PoolImage {
        let mut image = self.durable.clone();
        let mut keep = &cut.keep[..];
        for queue in self.queues.values() {
            let chains = ChainIndex::of(queue);
            let (mine, rest) = keep.split_at(chains.count);
            for_each_kept(queue, &chains, mine, |s| {
                image.set_word(Off(s.word), s.value)
            });
            keep = rest;
        }
        image
    }

    /// Returns the stores that `cut` keeps and loses, by line or sector.
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

    /// Returns a hash of everything that determines the images: the durable bytes, the volatile stores in
    /// their chains, and the persistency mode. Crash states with equal digests leave the same images.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let start = mix(self.durable.hash()) ^ self.persistency as u64;
        let units = self.queues.iter();
        units.fold(mix(start), |digest, (&unit, queue)| {
            mix(digest ^ mix(unit ^ self.queue_digest(queue)))
        })
    }

    /// Returns a hash of a queue: of the order within each chain and of the order of the stores to each word. No
    /// other order matters.
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

    /// Returns far memory after a kill without a power cut. All visible bytes stay visible, and volatile
    /// stores stay volatile. Flushes and drains that the killed process had not completed have no effect.
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

    /// Returns far memory after a failed sync and a kill of its process (Page). `cut` is the part that had
    /// reached the device. All visible bytes stay visible, and pages that were not written are marked clean.
    /// A process that opens the file calls [`Sim::drop_lost_pages`] first.
    #[must_use]
    pub fn killed_after_failed_sync(&self, cut: &ImageCut) -> Sim {
        let mut state = SimState::new(self.image(cut), self.visible.clone(), Queues::new());
        state.lost_units = self.queues.keys().copied().collect();
        Sim::with_state(state, self.persistency)
    }
}
