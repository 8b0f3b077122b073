//! A moment at which power may go, and the images it may leave.

use std::collections::HashSet;
use std::fmt;
use std::panic::Location;

use super::image::{Image, Rng, word_hash};
use super::places::{PlaceId, Places, brief};
use super::{Persistency, Queues, Sim, Store};
use crate::medium::Off;
use crate::sync::Arc;

/// What was about to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
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

impl Moment {
    /// As it is printed: "before drain".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Moment::Store => "before store",
            Moment::CopyIn => "within copy_in",
            Moment::Drain => "before drain",
            Moment::Sync => "before sync",
            Moment::Asked => "between operations",
        }
    }
}

/// What happened to the volatile stores of one line or sector in one image.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// Where the line or sector starts.
    pub at: Off,
    /// How many of its stores survived.
    pub kept: usize,
    /// How many it had.
    pub of: usize,
    /// Who made the last of them, if places were counted.
    pub by: Option<&'static Location<'static>>,
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: {} of {} stores survived",
            self.at, self.kept, self.of
        )?;
        match self.by {
            Some(by) => write!(f, " (last by {})", brief(by)),
            None => Ok(()),
        }
    }
}

/// A moment at which power may go, or the process be killed. Cheap: pages are shared.
#[derive(Clone)]
pub struct CrashState {
    persistency: Persistency,
    durable: Image,
    visible: Image,
    queues: Queues,
    /// What was about to happen.
    pub moment: Moment,
    place: PlaceId,
    places: Option<Arc<Places>>,
}

/// One way the volatile stores can be cut: which prefix of each queue survives.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Its number in the enumeration it came from, from 0.
    pub number: usize,
    /// The hash of the image it leaves.
    pub hash: u64,
    /// Stores kept of each queue, in the queues' order.
    keep: Vec<u32>,
}

impl CrashState {
    pub(super) fn new(
        persistency: Persistency,
        durable: Image,
        visible: Image,
        queues: Queues,
        moment: Moment,
        place: PlaceId,
        places: Option<Arc<Places>>,
    ) -> CrashState {
        CrashState {
            persistency,
            durable,
            visible,
            queues,
            moment,
            place,
            places,
        }
    }

    /// The line of source that was about to act, if places were counted.
    #[must_use]
    pub fn place(&self) -> Option<&'static Location<'static>> {
        Some(self.places.as_ref()?.get(self.place)?.at)
    }

    /// The images a power cut can leave, each once. All of them if they are at most `cap`; else
    /// `cap` of them, the adversarial first, the rest drawn by `seed`.
    #[must_use]
    pub fn images(&self, cap: usize, seed: u64) -> Images {
        Images::new(self, cap, seed)
    }

    /// The image that `cut` leaves.
    #[must_use]
    pub fn image(&self, cut: &Cut) -> Image {
        let mut image = self.durable.clone();
        for (queue, &keep) in self.queues.values().zip(&cut.keep) {
            for store in &queue[..keep as usize] {
                image.set_word(Off(store.word), store.value);
            }
        }
        image
    }

    /// What `cut` keeps and loses, a line or sector at a time.
    #[must_use]
    pub fn survivors(&self, cut: &Cut) -> Vec<Survivor> {
        let unit_bytes = self.persistency.unit_bytes() as u64;
        let by = |stores: &[Store]| Some(self.places.as_ref()?.get(stores.last()?.place)?.at);
        let queues = self.queues.iter().zip(&cut.keep);
        queues
            .map(|((&unit, queue), &keep)| Survivor {
                at: Off(unit * unit_bytes),
                kept: keep as usize,
                of: queue.len(),
                by: by(queue),
            })
            .collect()
    }

    /// Far memory after a kill without a power cut: every byte that was visible is, and what was
    /// volatile still is. Flushes and drains of the dead process that had not ended count for
    /// nothing.
    #[must_use]
    pub fn killed(&self) -> Sim {
        let (durable, visible) = (self.durable.clone(), self.visible.clone());
        Sim::resume(durable, visible, self.queues.clone(), self.persistency)
    }
}

/// Where one queue may be cut.
struct Choices {
    /// Stores kept, and what that changes in the image's hash; each change once. The first is none.
    cuts: Vec<(u32, u64)>,
    /// The one that leaves what keeping every store leaves.
    all: usize,
}

impl Choices {
    fn of(state: &CrashState, queue: &[Store]) -> Choices {
        let (mut cuts, mut all) = (vec![(0, 0)], 0);
        let mut words: Vec<(u64, u64)> = Vec::new(); // word, value it has so far
        let mut delta = 0;
        for (i, store) in queue.iter().enumerate() {
            let known = words
                .iter()
                .position(|w| w.0 == store.word)
                .unwrap_or_else(|| {
                    words.push((store.word, state.durable.word(Off(store.word))));
                    words.len() - 1
                });
            let index = store.word / 8;
            let before = std::mem::replace(&mut words[known].1, store.value);
            delta ^= word_hash(index, before) ^ word_hash(index, store.value);
            let whole_call = queue.get(i + 1).is_none_or(|next| next.call != store.call);
            let may_cut = state.persistency != Persistency::Page || whole_call;
            if may_cut {
                all = cuts.iter().position(|c| c.1 == delta).unwrap_or_else(|| {
                    cuts.push((i as u32 + 1, delta));
                    cuts.len() - 1
                });
            }
        }
        Choices { cuts, all }
    }
}

/// The images of a [`CrashState`], as [`Cut`]s: made only when asked for, each hash once.
pub struct Images {
    queues: Vec<Choices>,
    base: u64,
    /// All combinations, or `None` if they are too many to count.
    total: Option<usize>,
    cap: usize,
    rng: Rng,
    seen: HashSet<u64>,
    step: usize,
    number: usize,
}

impl Images {
    fn new(state: &CrashState, cap: usize, seed: u64) -> Images {
        let queues: Vec<_> = state
            .queues
            .values()
            .map(|q| Choices::of(state, q))
            .collect();
        let total = queues
            .iter()
            .try_fold(1usize, |n, q| n.checked_mul(q.cuts.len()));
        Images {
            queues,
            base: state.durable.hash(),
            total,
            cap,
            rng: Rng::new(seed),
            seen: HashSet::new(),
            step: 0,
            number: 0,
        }
    }

    /// Whether every image there is will be given.
    #[must_use]
    pub fn exhaustive(&self) -> bool {
        self.total.is_some_and(|total| total <= self.cap)
    }

    /// The choice of each queue at `step`, or `None` after the last.
    fn choose(&mut self, step: usize) -> Option<Vec<usize>> {
        if self.exhaustive() {
            let mut rest = step;
            let choice = self.queues.iter().map(|q| {
                let digit = rest % q.cuts.len();
                rest /= q.cuts.len();
                digit
            });
            let choice = choice.collect();
            return (rest == 0).then_some(choice);
        }
        let n = self.queues.len();
        let none = |_: &Choices| 0;
        let all = |q: &Choices| q.all;
        let with = |one: usize, here: fn(&Choices) -> usize, rest: fn(&Choices) -> usize| {
            let pick = |(i, q)| if i == one { here(q) } else { rest(q) };
            self.queues.iter().enumerate().map(pick).collect()
        };
        match step {
            0 => Some(self.queues.iter().map(none).collect()),
            1 => Some(self.queues.iter().map(all).collect()),
            s if s < 2 + 2 * n => {
                let one = (s - 2) / 2;
                // Published too early, payload late: one line alone, then all but that line.
                Some(if s % 2 == 0 {
                    with(one, all, none)
                } else {
                    with(one, none, all)
                })
            }
            s if s < 2 + 2 * n + 4 * self.cap => Some(self.draw()),
            _ => None,
        }
    }

    fn draw(&mut self) -> Vec<usize> {
        let rng = &mut self.rng;
        let style = rng.below(5);
        let draw = |q: &Choices| match style {
            0 => q.all * rng.below(2) as usize,
            1 if !rng.one_in(4) => q.all,
            2 if !rng.one_in(4) => 0,
            _ => rng.below(q.cuts.len() as u64) as usize,
        };
        self.queues.iter().map(draw).collect()
    }
}

impl Iterator for Images {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        while self.number < self.cap {
            let choice = self.choose(self.step)?;
            self.step += 1;
            let chosen = || self.queues.iter().zip(&choice).map(|(q, &c)| q.cuts[c]);
            let hash = chosen().fold(self.base, |hash, (_, delta)| hash ^ delta);
            if self.seen.insert(hash) {
                let keep = chosen().map(|(keep, _)| keep).collect();
                self.number += 1;
                return Some(Cut {
                    number: self.number - 1,
                    hash,
                    keep,
                });
            }
        }
        None
    }
}
