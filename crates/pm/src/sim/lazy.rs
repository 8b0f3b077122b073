//! Lazy memory: what a crash left is decided only where it is read.
//!
//! ```text
//!   chain of a line:   w=1  x=2  w=3         durable: w=0, x=0
//!   prefixes allowed: 0    1    2    3
//!                                            load(x): 0 ── {0, 1}     2 ── {2, 3}     a decision
//!   script: 1 ────────────────────────────▶                           load(w): 1 or 3, another
//! ```
//!
//! An image is a prefix of each chain of stores; most of them look alike to whoever reads only a
//! few words. So each chain keeps the set of prefixes that agree with everything read so far. A read
//! groups them by what they would give; if there is more than one group, that is a *decision*, taken
//! by a script of numbers (0 when it has ended), and only the chosen group stays. Whoever runs a
//! reader under every script, each time advancing the last decision that has more choices, sees it
//! do everything it can do on any image, once.
//!
//! # What is a decision
//! * A word or bytes read out: one group for each content.
//! * [`Medium::matches`](crate::medium::Medium::matches): two groups a chain, equal or not; after
//!   the first that is not, nothing more is asked.
//! * [`Medium::crc`](crate::medium::Medium::crc): a reader only compares it with a checksum made
//!   over content that was written whole. So the candidates are the range's contents after each
//!   call that stored to it; a chain's groups are its contents in those that are left, and one more
//!   for everything else: *torn*, after which nothing more is asked and the checksum of some torn
//!   content is the answer. Choices grow with the sum of the chains, not with their product.
//!
//! # Invariants
//! L1  Each chain's set is never empty, and the sets are independent: any choice of one prefix of
//!     each gives an image on which the reader would have seen what it saw, but for L3.
//! L2  A word that every allowed choice gives the same value is in the visible image; the other read
//!     paths know nothing of all this. So is a word the reader has stored to.
//! L3  A torn checksum is one torn content's. Another has the same with a chance of 2^-32, as has
//!     that of whole content; so the checksum may be compared, not kept.
//!
//! # What it does not model
//! A second crash: stores are visible, and their flushes and drains are only counted and answered.
//! Recovery that crashes is explored from images.

use std::collections::BTreeMap;
use std::ops::Range;

use super::crash::{CrashState, Survivor};
use super::cuts::{Chains, Cut, kept, may_cut_after};
use super::image::Image;
use super::places::Places;
use super::state::{Queues, State, Store};
use super::{Persistency, SECTOR, Sim};
use crate::medium::{Off, WORD};
use crate::sync::Arc;

/// What was chosen where lazy memory had several possible answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decision {
    /// The choice, from 0.
    pub chosen: u32,
    /// How many there were.
    pub of: u32,
}

/// The script after the one that led to `decisions`, depth first: the last decision that has more
/// choices takes the next one. `None` after the last. The first script is the empty one.
#[must_use]
pub fn next_script(decisions: &[Decision]) -> Option<Vec<u32>> {
    let last = decisions.iter().rposition(|d| d.chosen + 1 < d.of)?;
    let mut script: Vec<u32> = decisions[..=last].iter().map(|d| d.chosen).collect();
    script[last] += 1;
    Some(script)
}

impl Sim {
    /// Memory as that crash may have left it, decided only where it is read: by `script`, then by 0.
    ///
    /// For recovery and reads on one thread; it has no crash points. A read panics if the script has
    /// a choice that does not exist: the reader is not deterministic, or read something else before.
    #[must_use]
    pub fn lazy(crash: &CrashState, script: &[u32]) -> Sim {
        let durable = crash.durable.clone();
        let mut state = State::new(durable.clone(), durable, Queues::new());
        state.cas_drains = crash.cas_drains;
        let lazy = Lazy::new(crash, script, &mut state.visible);
        state.lazy = Some(Box::new(lazy));
        Sim::with_state(state, crash.persistency)
    }

    /// What was decided, in order. Empty for memory that is not lazy.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        let state = self.state();
        let lazy = state.lazy.as_ref();
        lazy.map_or(Vec::new(), |lazy| lazy.script.decisions.clone())
    }

    /// What the decisions say of the crash, a line or sector at a time; those of which they say
    /// nothing are left out. Empty for memory that is not lazy.
    #[must_use]
    pub fn survivors(&self) -> Vec<Survivor> {
        let state = self.state();
        let lazy = state.lazy.as_ref();
        lazy.map_or(Vec::new(), |lazy| lazy.survivors())
    }

    /// A cut of the moment this lazy memory was made of whose image agrees with every decision.
    /// `None` for memory that is not lazy.
    #[must_use]
    pub fn cut(&self) -> Option<Cut> {
        let state = self.state();
        let lazy = state.lazy.as_ref();
        lazy.map(|lazy| lazy.cut(state.durable.clone()))
    }
}

impl State {
    /// Makes the visible image right in `at..at + len`.
    pub(super) fn decide(&mut self, at: Off, len: usize) {
        if let Some(lazy) = &mut self.lazy {
            let range = at.0..at.0.saturating_add(len as u64);
            lazy.decide(&mut self.visible, &range);
        }
    }

    /// Makes the visible image right in the range of `bytes` if it equals them, or says that it
    /// does not.
    pub(super) fn decide_match(&mut self, at: Off, bytes: &[u8]) -> bool {
        match &mut self.lazy {
            Some(lazy) => lazy.decide_match(&mut self.visible, at, bytes),
            None => true,
        }
    }

    /// Makes the visible image right in the range if it has content that was whole once, or gives
    /// the checksum of what is torn.
    pub(super) fn decide_crc(&mut self, at: Off, len: usize, seed: u32) -> Option<u32> {
        let range = at.0..at.0.saturating_add(len as u64);
        let lazy = self.lazy.as_mut()?;
        if lazy.decide_version(&mut self.visible, &range) {
            return None;
        }
        let mut torn = seed;
        self.visible.pieces(at, len, |piece| {
            torn = crc32c::crc32c_append(torn, piece);
            true
        });
        Some(torn)
    }
}

/// What a crash has left undecided.
pub(super) struct Lazy {
    unit_bytes: u64,
    units: BTreeMap<u64, Unit>,
    script: Script,
    places: Option<Arc<Places>>,
}

struct Script {
    entries: Vec<u32>,
    decisions: Vec<Decision>,
}

impl Script {
    /// Takes a decision, unless there is nothing to decide.
    fn choose(&mut self, of: usize) -> usize {
        if of == 1 {
            return 0;
        }
        let number = self.decisions.len();
        let chosen = self.entries.get(number).copied().unwrap_or(0);
        let of = of as u32;
        assert!(
            chosen < of,
            "the script says {chosen} at decision {number}, which has {of} choices: it was made \
             for another crash, or the reader is not deterministic"
        );
        self.decisions.push(Decision { chosen, of });
        chosen as usize
    }
}

/// One line or sector.
struct Unit {
    queue: Vec<Store>,
    chains: Chains,
    /// The prefixes each chain may have kept, ascending (L1).
    allowed: Vec<Vec<u32>>,
    words: Vec<Word>,
}

/// A word that had volatile stores.
struct Word {
    at: u64,
    durable: u64,
    /// Its stores in coherence order.
    stores: Vec<Kept>,
    /// The chain of all of them, if they have the same one.
    chain: Option<usize>,
    known: Known,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// More than one value is possible.
    Open,
    /// The visible image has what the crash left.
    Settled,
    /// The visible image has what the reader stored.
    Overwritten,
}

/// A store, and what keeps it.
#[derive(Clone, Copy)]
struct Kept {
    chain: usize,
    /// The shortest prefix of its chain with it.
    from: u32,
    value: u64,
    call: u64,
}

/// Words that are decided together: those of one chain in a range, or one word of several chains.
struct Atom {
    words: Vec<usize>,
    chain: Option<usize>,
}

/// What an atom may hold, and the prefixes with which it does.
struct Choice {
    content: Vec<u64>,
    allowed: Vec<(usize, Vec<u32>)>,
}

impl Word {
    /// What it holds if of each chain `prefix` is kept.
    fn value(&self, prefix: impl Fn(usize) -> u32) -> u64 {
        let kept = self.stores.iter().rev().find(|s| s.from <= prefix(s.chain));
        kept.map_or(self.durable, |s| s.value)
    }

    /// What it held after `call`.
    fn version(&self, call: u64) -> u64 {
        let last = self.stores.iter().rev().find(|s| s.call <= call);
        last.map_or(self.durable, |s| s.value)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.at < range.end && range.start < self.at + WORD as u64
    }
}

impl Unit {
    fn new(persistency: Persistency, durable: &Image, queue: &[Store]) -> Unit {
        let chains = Chains::of(queue);
        let mut split = vec![Vec::new(); chains.count];
        let mut words: Vec<Word> = Vec::new();
        let mut index = [usize::MAX; SECTOR / WORD];
        for store in queue {
            let slot = chains.slot(store);
            split[slot].push(*store);
            let kept = Kept {
                chain: slot,
                from: split[slot].len() as u32,
                value: store.value,
                call: store.call,
            };
            let known = &mut index[store.word as usize % SECTOR / WORD];
            if *known == usize::MAX {
                *known = words.len();
                words.push(Word {
                    at: store.word,
                    durable: durable.word(Off(store.word)),
                    stores: Vec::new(),
                    chain: Some(slot),
                    known: Known::Open,
                });
            }
            let word = &mut words[*known];
            word.chain = word.chain.filter(|&chain| chain == slot);
            word.stores.push(kept);
        }
        words.sort_unstable_by_key(|w| w.at);
        let prefixes = |chain: &Vec<Store>| -> Vec<u32> {
            let ends = (0..chain.len()).filter(|&i| may_cut_after(persistency, chain, i));
            [0].into_iter().chain(ends.map(|i| i as u32 + 1)).collect()
        };
        Unit {
            allowed: split.iter().map(prefixes).collect(),
            queue: queue.to_vec(),
            chains,
            words,
        }
    }

    /// The first undecided words of the range that belong together, after word `from`.
    fn atom(&self, range: &Range<u64>, from: usize) -> Option<Atom> {
        let open = |w: &Word| w.known == Known::Open && w.overlaps(range);
        let first = from + self.words.get(from..)?.iter().position(open)?;
        let chain = self.words[first].chain;
        let words = match chain {
            None => vec![first],
            Some(_) => (first..self.words.len())
                .filter(|&i| self.words[i].chain == chain && open(&self.words[i]))
                .collect(),
        };
        Some(Atom { words, chain })
    }

    /// Every undecided atom of the range.
    fn atoms(&self, range: &Range<u64>) -> Vec<Atom> {
        let mut atoms: Vec<Atom> = Vec::new();
        let mut from = 0;
        while let Some(atom) = self.atom(range, from) {
            from = atom.words[0] + 1;
            let known = |a: &Atom| a.chain.is_some() && a.chain == atom.chain;
            if !atoms.iter().any(known) {
                atoms.push(atom);
            }
        }
        atoms
    }

    /// What the atom may hold, as far as the range sees it; each content of a chain once.
    fn choices(&self, atom: &Atom, range: &Range<u64>) -> Vec<Choice> {
        let Some(chain) = atom.chain else {
            return self.last_stores(&self.words[atom.words[0]], range);
        };
        let mut choices: Vec<Choice> = Vec::new();
        for &prefix in &self.allowed[chain] {
            let words = atom.words.iter().map(|&w| &self.words[w]);
            let content = words
                .map(|w| w.value(|_| prefix) & mask(w.at, range))
                .collect();
            match choices.iter_mut().find(|c| c.content == content) {
                Some(choice) => choice.allowed[0].1.push(prefix),
                None => choices.push(Choice {
                    content,
                    allowed: vec![(chain, vec![prefix])],
                }),
            }
        }
        choices
    }

    /// The choices of a word that several chains store to: which store is the last one kept. That
    /// leaves each chain a set of its own (L1), which a value alone would not.
    fn last_stores(&self, word: &Word, range: &Range<u64>) -> Vec<Choice> {
        let mask = mask(word.at, range);
        let mut choices = Vec::new();
        for last in 0..=word.stores.len() {
            let later = &word.stores[last..];
            let kept = last.checked_sub(1).map(|i| word.stores[i]);
            let agrees = |chain: usize, prefix: u32| {
                kept.is_none_or(|s| s.chain != chain || s.from <= prefix)
                    && later.iter().all(|s| s.chain != chain || prefix < s.from)
            };
            let allowed = |(chain, prefixes): (usize, &Vec<u32>)| {
                let left = prefixes.iter().copied();
                (
                    chain,
                    left.filter(|&p| agrees(chain, p)).collect::<Vec<_>>(),
                )
            };
            let allowed: Vec<_> = self.allowed.iter().enumerate().map(allowed).collect();
            if allowed.iter().all(|(_, prefixes)| !prefixes.is_empty()) {
                choices.push(Choice {
                    content: vec![kept.map_or(word.durable, |s| s.value) & mask],
                    allowed,
                });
            }
        }
        if choices.iter().all(|c| c.content == choices[0].content) {
            choices.truncate(1);
            choices[0].allowed.clear(); // nothing is learnt
        }
        choices
    }

    /// Whether the atom then has what `bytes`, which start at `at`, have there.
    fn equals(&self, atom: &Atom, choice: &Choice, at: Off, bytes: &[u8]) -> bool {
        let words = atom.words.iter().map(|&w| self.words[w].at);
        words
            .map(|word| word_of(word, at, bytes))
            .eq(choice.content.iter().copied())
    }

    /// Keeps what these choices of one atom allow.
    fn keep(&mut self, choices: Vec<Choice>, visible: &mut Image) {
        let mut union: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (chain, prefixes) in choices.into_iter().flat_map(|c| c.allowed) {
            union.entry(chain).or_default().extend(prefixes);
        }
        for (chain, mut prefixes) in union {
            prefixes.sort_unstable();
            self.allowed[chain] = prefixes;
        }
        self.settle(visible);
    }

    /// L2, and for every other word one of its values.
    fn settle(&mut self, visible: &mut Image) {
        for i in 0..self.words.len() {
            let word = &self.words[i];
            if word.known != Known::Open {
                continue;
            }
            let value = self.least(word);
            if visible.word(Off(word.at)) != value {
                visible.set_word(Off(word.at), value);
            }
            let atom = Atom {
                words: vec![i],
                chain: word.chain,
            };
            if self.choices(&atom, &(0..u64::MAX)).len() == 1 {
                self.words[i].known = Known::Settled;
            }
        }
    }

    /// A word's value if every chain keeps the least it may.
    fn least(&self, word: &Word) -> u64 {
        word.value(|chain| self.allowed[chain][0])
    }

    fn bounds(&self, chain: usize) -> (u32, u32) {
        let allowed = &self.allowed[chain];
        (allowed[0], *allowed.last().expect("L1"))
    }
}

/// Choices that need not be told apart, as few as can be: one, if they are of one chain.
fn merge(atom: &Atom, choices: Vec<Choice>) -> Vec<Vec<Choice>> {
    match atom.chain {
        Some(_) if choices.is_empty() => Vec::new(),
        Some(_) => vec![choices],
        None => choices.into_iter().map(|c| vec![c]).collect(),
    }
}

/// The word at `word` as `bytes`, which start at `at`, would have it; zero outside.
fn word_of(word: u64, at: Off, bytes: &[u8]) -> u64 {
    let byte = |i: u64| {
        let from = (word + i).checked_sub(at.0)?;
        bytes.get(from as usize).copied()
    };
    u64::from_le_bytes(std::array::from_fn(|i| byte(i as u64).unwrap_or(0)))
}

/// Whether the range can equal `bytes`, asked of each word and each chain alone: no decision.
fn may_match(units: &[&mut Unit], visible: &Image, at: Off, bytes: &[u8]) -> bool {
    let range = at.0..at.0 + bytes.len() as u64;
    let words = units.iter().flat_map(|u| &u.words);
    let open: Vec<&Word> = words.filter(|w| w.known == Known::Open).collect();
    if open.is_empty() {
        return true; // the visible image knows
    }
    let word = WORD as u64;
    let certain = (range.start / word * word..range.end).step_by(WORD);
    let mut certain = certain.filter(|&at| open.binary_search_by_key(&at, |w| w.at).is_err());
    let differs =
        |word: u64| (visible.word(Off(word)) ^ word_of(word, at, bytes)) & mask(word, &range) != 0;
    !certain.any(differs)
        && units.iter().all(|unit| {
            unit.atoms(&range).iter().all(|atom| {
                let choices = unit.choices(atom, &range);
                choices.iter().any(|c| unit.equals(atom, c, at, bytes))
            })
        })
}

/// The bits of the word at `word` that are in the range.
fn mask(word: u64, range: &Range<u64>) -> u64 {
    let skip = range.start.saturating_sub(word) * 8;
    let beyond = (word + WORD as u64).saturating_sub(range.end) * 8;
    (u64::MAX << skip) & (u64::MAX >> beyond)
}

impl Lazy {
    fn new(crash: &CrashState, script: &[u32], visible: &mut Image) -> Lazy {
        let units = crash.queues.iter().map(|(&at, queue)| {
            let mut unit = Unit::new(crash.persistency, &crash.durable, queue);
            unit.settle(visible);
            (at, unit)
        });
        Lazy {
            unit_bytes: crash.persistency.unit_bytes() as u64,
            units: units.collect(),
            script: Script {
                entries: script.to_vec(),
                decisions: Vec::new(),
            },
            places: crash.places.clone(),
        }
    }

    /// The units of the range, and the script.
    fn within(&mut self, range: &Range<u64>) -> (Vec<&mut Unit>, &mut Script) {
        let (first, end) = (
            range.start / self.unit_bytes,
            range.end.div_ceil(self.unit_bytes),
        );
        let units = self.units.range_mut(first..end.max(first));
        (units.map(|(_, unit)| unit).collect(), &mut self.script)
    }

    /// What the reader stored hides what the crash left.
    pub(super) fn overwrite(&mut self, at: Off) {
        let unit = self.units.get_mut(&(at.0 / self.unit_bytes));
        let mut words = unit.into_iter().flat_map(|u| &mut u.words);
        if let Some(word) = words.find(|w| w.at == at.0) {
            word.known = Known::Overwritten;
        }
    }

    fn decide(&mut self, visible: &mut Image, range: &Range<u64>) {
        let word = WORD as u64;
        let words = range.start / word * word..range.end.div_ceil(word).saturating_mul(word);
        let (units, script) = self.within(&words);
        for unit in units {
            while let Some(atom) = unit.atom(&words, 0) {
                let mut choices = unit.choices(&atom, &words);
                let chosen = choices.swap_remove(script.choose(choices.len()));
                unit.keep(vec![chosen], visible);
            }
        }
    }

    fn decide_match(&mut self, visible: &mut Image, at: Off, bytes: &[u8]) -> bool {
        let range = at.0..at.0.saturating_add(bytes.len() as u64);
        let (units, script) = self.within(&range);
        if !may_match(&units, visible, at, bytes) {
            return false;
        }
        for unit in units {
            for atom in unit.atoms(&range) {
                let (same, other): (Vec<_>, Vec<_>) = unit
                    .choices(&atom, &range)
                    .into_iter()
                    .partition(|choice| unit.equals(&atom, choice, at, bytes));
                let (same, other) = (merge(&atom, same), merge(&atom, other));
                let equal = same.len();
                if equal == 0 {
                    return false;
                }
                let mut groups: Vec<_> = same.into_iter().chain(other).collect();
                let chosen = script.choose(groups.len());
                unit.keep(groups.swap_remove(chosen), visible);
                if chosen >= equal {
                    return false;
                }
            }
        }
        true
    }

    /// Decides between the versions of a range, or that it has none of them.
    fn decide_version(&mut self, visible: &mut Image, range: &Range<u64>) -> bool {
        let (units, script) = self.within(range);
        if units.iter().all(|unit| unit.atom(range, 0).is_none()) {
            return true;
        }
        let words = units.iter().flat_map(|u| &u.words);
        let words = words.filter(|w| w.overlaps(range));
        let mut versions: Vec<u64> = words
            .clone()
            .flat_map(|w| &w.stores)
            .map(|s| s.call)
            .chain([0])
            .collect();
        versions.sort_unstable();
        versions.dedup();
        for word in words.filter(|w| w.known == Known::Settled) {
            let found = visible.word(Off(word.at));
            versions.retain(|&v| (word.version(v) ^ found) & mask(word.at, range) == 0);
        }
        for unit in units {
            for atom in unit.atoms(range) {
                let content = |unit: &Unit, version: u64| -> Vec<u64> {
                    let words = atom.words.iter().map(|&w| &unit.words[w]);
                    words
                        .map(|w| w.version(version) & mask(w.at, range))
                        .collect()
                };
                let (whole, torn): (Vec<_>, Vec<_>) = unit
                    .choices(&atom, range)
                    .into_iter()
                    .partition(|c| versions.iter().any(|&v| content(unit, v) == c.content));
                let wholes = whole.len();
                if wholes == 0 {
                    return false;
                }
                let mut groups: Vec<_> = whole.into_iter().map(|c| vec![c]).collect();
                groups.extend(merge(&atom, torn));
                let chosen = script.choose(groups.len());
                let group = groups.swap_remove(chosen);
                versions.retain(|&v| content(unit, v) == group[0].content);
                unit.keep(group, visible);
                if chosen >= wholes {
                    return false;
                }
            }
        }
        true
    }

    fn survivors(&self) -> Vec<Survivor> {
        let units = self.units.iter().map(|(&at, unit)| {
            Survivor::of(
                Off(at * self.unit_bytes),
                &unit.queue,
                |chain| unit.bounds(chain),
                self.places.as_deref(),
            )
        });
        units.filter(|s| s.kept + s.lost > 0).collect()
    }

    fn cut(&self, mut image: Image) -> Cut {
        let mut keep = Vec::new();
        for unit in self.units.values() {
            let least: Vec<u32> = unit.allowed.iter().map(|a| a[0]).collect();
            kept(&unit.queue, &unit.chains, &least, |s| {
                image.set_word(Off(s.word), s.value)
            });
            keep.extend(least);
        }
        Cut {
            number: 0,
            hash: image.hash(),
            keep,
        }
    }
}
