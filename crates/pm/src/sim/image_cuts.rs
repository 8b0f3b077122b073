//! The cuts of a crash, which say how many volatile stores of each chain survive. They are enumerated or drawn at
//! random, and each resulting image appears once.

use std::collections::HashSet;

use super::chains::{ChainIndex, Queues, VolatileStore, for_each_kept, is_mixed, may_cut_after};
use super::image::{PoolImage, word_hash};
use crate::offset::{Off, WORD};
use crate::persistency::Persistency;
use crate::rng::Rng;

/// One possible outcome of a crash: the prefix of each chain that survives.
#[derive(Clone, Debug)]
pub struct ImageCut {
    /// Number of the cut in its enumeration, from 0.
    pub number: usize,
    /// Hash of the resulting image.
    pub hash: u64,
    /// Number of stores kept of each chain. The chains of a queue are in the order of their first stores.
    pub(super) keep: Vec<u32>,
}

/// The possible cuts of one chain.
struct CutChoices {
    /// Number of its queue.
    unit: usize,
    /// For each cut, the number of stores kept and the change of the image's hash. The first cut keeps none.
    cuts: Vec<(u32, u64)>,
    /// The cut whose image equals that of keeping every store.
    all: usize,
}

impl CutChoices {
    /// Collects the cuts of a chain. Cuts with equal images appear once. In a mixed queue every prefix is a cut,
    /// because there the image depends also on other chains.
    fn of(
        (persistency, durable): (Persistency, &PoolImage),
        unit: usize,
        chain: &[VolatileStore],
        mixed: bool,
    ) -> CutChoices {
        let (mut cuts, mut all) = (vec![(0, 0)], 0);
        let mut words: Vec<(u64, u64)> = Vec::new(); // word, value it has so far
        let mut delta = 0;
        for (i, store) in chain.iter().enumerate() {
            let known = words
                .iter()
                .position(|w| w.0 == store.word)
                .unwrap_or_else(|| {
                    words.push((store.word, durable.word(Off(store.word))));
                    words.len() - 1
                });
            let before = std::mem::replace(&mut words[known].1, store.value);
            delta ^= change(store.word, before, store.value);
            if may_cut_after(persistency, chain, i) {
                let same = cuts.iter().position(|c| c.1 == delta && !mixed);
                all = same.unwrap_or_else(|| {
                    cuts.push((i as u32 + 1, delta));
                    cuts.len() - 1
                });
            }
        }
        CutChoices { unit, cuts, all }
    }
}

fn change(word: u64, before: u64, after: u64) -> u64 {
    let index = word / WORD as u64;
    word_hash(index, before) ^ word_hash(index, after)
}

/// A queue whose chains share words. The effect of a cut is known only by applying it.
struct SharedWordQueue {
    queue: Vec<VolatileStore>,
    chains: ChainIndex,
    /// Number of its first chain among all chains.
    first: usize,
    /// The queue's words and their durable values.
    words: Vec<(u64, u64)>,
}

impl SharedWordQueue {
    fn delta(&self, keep: &[u32]) -> u64 {
        let mut left = self.words.clone();
        let keep = &keep[self.first..][..self.chains.count];
        for_each_kept(&self.queue, &self.chains, keep, |store| {
            let word = left.iter_mut().find(|w| w.0 == store.word);
            word.expect("listed").1 = store.value;
        });
        let changes = self.words.iter().zip(&left);
        changes.fold(0, |delta, (old, new)| delta ^ change(old.0, old.1, new.1))
    }
}

/// An iterator over the images of a [`CrashState`](super::CrashState), as [`ImageCut`]s. Each hash appears once.
pub struct CrashImages {
    chains: Vec<CutChoices>,
    mixed: Vec<SharedWordQueue>,
    units: usize,
    /// The chains whose queue has other chains too.
    multi_chain: Vec<usize>,
    base: u64,
    /// Number of combinations, or `None` if it overflows.
    total: Option<usize>,
    cap: usize,
    rng: Rng,
    seen: HashSet<u64>,
    step: usize,
    number: usize,
}

impl CrashImages {
    /// Prepares the images of a crash that can lose the stores of `queues`. See [`CrashState::images`](super::CrashState::images).
    pub(super) fn new(
        persistency: Persistency,
        durable: &PoolImage,
        queues: &Queues,
        (cap, seed): (usize, u64),
    ) -> CrashImages {
        let mut images = CrashImages {
            chains: Vec::new(),
            mixed: Vec::new(),
            units: queues.len(),
            multi_chain: Vec::new(),
            base: durable.hash(),
            total: None,
            cap,
            rng: Rng::new(seed),
            seen: HashSet::new(),
            step: 0,
            number: 0,
        };
        for (unit, queue) in queues.values().enumerate() {
            images.add((persistency, durable), unit, queue);
        }
        let mut counts = images.chains.iter().map(|c| c.cuts.len());
        images.total = counts.try_fold(1usize, |n, c| n.checked_mul(c));
        images
    }

    fn add(&mut self, of: (Persistency, &PoolImage), unit: usize, queue: &[VolatileStore]) {
        let first = self.chains.len();
        let chains = ChainIndex::of(queue);
        if chains.count == 1 {
            self.chains.push(CutChoices::of(of, unit, queue, false));
            return;
        }
        let mut split = vec![Vec::new(); chains.count];
        for store in queue {
            split[chains.slot(store)].push(*store);
        }
        let mixed = is_mixed(queue, &chains);
        for chain in &split {
            self.multi_chain.push(self.chains.len());
            self.chains.push(CutChoices::of(of, unit, chain, mixed));
        }
        if mixed {
            let mut words: Vec<u64> = queue.iter().map(|s| s.word).collect();
            words.sort_unstable();
            words.dedup();
            let durable = |word| (word, of.1.word(Off(word)));
            self.mixed.push(SharedWordQueue {
                queue: queue.to_vec(),
                chains,
                first,
                words: words.into_iter().map(durable).collect(),
            });
        }
    }

    /// Returns whether the iterator yields every possible image.
    #[must_use]
    pub fn exhaustive(&self) -> bool {
        self.total.is_some_and(|total| total <= self.cap)
    }

    /// Returns the cut of each chain at `step`, or `None` after the last step.
    fn choose(&mut self, step: usize) -> Option<Vec<usize>> {
        if self.exhaustive() {
            let mut rest = step;
            let choice = self.chains.iter().map(|c| {
                let digit = rest % c.cuts.len();
                rest /= c.cuts.len();
                digit
            });
            let choice = choice.collect();
            return (rest == 0).then_some(choice);
        }
        // Each line or sector, then each chain of a unit with several chains.
        let singles = 2 * (self.units + self.multi_chain.len());
        // These may take at most half of the images. If they are more, a random part of them is used.
        let given = singles.min(self.cap / 2);
        match step {
            0 => Some(vec![0; self.chains.len()]),
            1 => Some(self.chains.iter().map(|c| c.all).collect()),
            s if s < 2 + given => {
                let s = if given < singles {
                    self.rng.below(singles as u64) as usize
                } else {
                    s - 2
                };
                Some(self.only_or_all_but(s / 2, s % 2 == 0))
            }
            s if s < 2 + given + 4 * self.cap => Some(self.draw()),
            _ => None,
        }
    }

    /// Returns the cuts that keep only one line or chain (a pointer is durable before its target), or all but that
    /// one (the target is durable last).
    fn only_or_all_but(&self, one: usize, alone: bool) -> Vec<usize> {
        let is_it = |i: usize, c: &CutChoices| match one.checked_sub(self.units) {
            None => c.unit == one,
            Some(apart) => i == self.multi_chain[apart],
        };
        let pick = |(i, c): (usize, &CutChoices)| if is_it(i, c) == alone { c.all } else { 0 };
        self.chains.iter().enumerate().map(pick).collect()
    }

    fn draw(&mut self) -> Vec<usize> {
        let rng = &mut self.rng;
        let style = rng.below(5);
        let draw = |c: &CutChoices| match style {
            0 => c.all * rng.below(2) as usize,
            1 if !rng.one_in(4) => c.all,
            2 if !rng.one_in(4) => 0,
            _ => rng.below(c.cuts.len() as u64) as usize,
        };
        self.chains.iter().map(draw).collect()
    }

    fn hash(&self, choice: &[usize], keep: &[u32]) -> u64 {
        let mut hash = self.base;
        let mut mixed = self.mixed.iter().peekable();
        let mut at = 0;
        while at < choice.len() {
            if let Some(unit) = mixed.next_if(|m| m.first == at) {
                hash ^= unit.delta(keep);
                at += unit.chains.count;
            } else {
                hash ^= self.chains[at].cuts[choice[at]].1;
                at += 1;
            }
        }
        hash
    }
}

impl Iterator for CrashImages {
    type Item = ImageCut;

    fn next(&mut self) -> Option<ImageCut> {
        while self.number < self.cap {
            let choice = self.choose(self.step)?;
            self.step += 1;
            let chosen = self.chains.iter().zip(&choice);
            let keep: Vec<u32> = chosen.map(|(c, &cut)| c.cuts[cut].0).collect();
            let hash = self.hash(&choice, &keep);
            if self.seen.insert(hash) {
                self.number += 1;
                return Some(ImageCut {
                    number: self.number - 1,
                    hash,
                    keep,
                });
            }
        }
        None
    }
}
