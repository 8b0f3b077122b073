//! [`LazyState`], the outcome of a crash of [lazy memory](super::lazy), as far as it is decided.

use std::collections::BTreeMap;
use std::ops::Range;

use super::chains::{ChainIndex, Queues, VolatileStore, for_each_kept, may_cut_after};
use super::image::PoolImage;
use super::image_cuts::ImageCut;
use super::source_lines::SourceLines;
use super::survivors::UnitSurvivors;
use crate::offset::{Off, WORD};
use crate::persistency::{Persistency, SECTOR};
use crate::sync::Arc;

/// A decision: the choice among several possible results of a read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LazyDecision {
    /// The choice, from 0.
    pub chosen: u32,
    /// Number of choices.
    pub of: u32,
}

/// Lines or sectors by number. Scripts share them until a decision changes one.
pub(super) type LazyUnits = BTreeMap<u64, Arc<LazyUnit>>;

/// Returns the lines or sectors of a crash, all undecided. Writes the words that have the same value in every cut to
/// the visible image (PM-LAZY-2).
pub(super) fn lazy_units(
    persistency: Persistency,
    durable: &PoolImage,
    queues: &Queues,
    visible: &mut PoolImage,
) -> LazyUnits {
    let units = queues.iter().map(|(&at, queue)| {
        let mut unit = LazyUnit::new(persistency, durable, queue);
        unit.settle(visible);
        (at, Arc::new(unit))
    });
    units.collect()
}

/// The undecided outcomes of a crash.
pub(super) struct LazyState {
    unit_bytes: u64,
    units: LazyUnits,
    clauses: Vec<Clause>,
    script: DecisionScript,
    places: Option<Arc<SourceLines>>,
}

struct DecisionScript {
    entries: Vec<u32>,
    decisions: Vec<LazyDecision>,
}

impl DecisionScript {
    /// Makes a decision among `of` choices. With one choice there is no decision.
    fn choose(&mut self, of: usize) -> usize {
        if of == 1 {
            return 0;
        }
        let number = self.decisions.len();
        let chosen = self.entries.get(number).copied().unwrap_or(0);
        let of = of as u32;
        assert!(
            chosen < of,
            "the script says {chosen} at decision {number}, which has {of} choices: it is from another \
             crash, or the reader is not deterministic"
        );
        self.decisions.push(LazyDecision { chosen, of });
        chosen as usize
    }
}

/// A chain: the number of its unit, and its number in the unit.
type ChainId = (u64, usize);

/// A condition: at least one of these chains keeps none of its listed prefixes.
type Clause = Vec<(ChainId, Vec<u32>)>;

/// Subsets of the allowed prefixes of some chains.
type AllowedPrefixes = BTreeMap<ChainId, Vec<u32>>;

/// One line or sector with volatile stores.
#[derive(Clone)]
pub(super) struct LazyUnit {
    queue: Vec<VolatileStore>,
    chains: ChainIndex,
    /// The prefixes that each chain can keep, ascending (PM-LAZY-1).
    allowed: Vec<Vec<u32>>,
    words: Vec<LazyWord>,
}

/// A word that had volatile stores.
#[derive(Clone)]
struct LazyWord {
    at: u64,
    durable: u64,
    /// Its stores in coherence order.
    stores: Vec<ConditionalStore>,
    /// The chain of its stores, if all have the same one.
    chain: Option<usize>,
    known: WordKnowledge,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WordKnowledge {
    /// More than one value is possible.
    Open,
    /// The visible image has the value that the crash left.
    Settled,
    /// The visible image has a value that the reader stored.
    Overwritten,
}

/// A store, and the condition under which it is kept.
#[derive(Clone, Copy)]
struct ConditionalStore {
    chain: usize,
    /// The shortest prefix of its chain that contains it.
    from: u32,
    value: u64,
    call: u64,
}

/// Words that are decided together: all words of one chain in a range, or one word with several chains.
struct DecisionAtom {
    words: Vec<usize>,
    chain: Option<usize>,
}

/// A possible content of an atom, and the prefixes that give it.
struct AtomChoice {
    content: Vec<u64>,
    allowed: Vec<(usize, Vec<u32>)>,
}

impl LazyWord {
    /// Returns the word's value if each chain keeps `prefix`.
    fn value(&self, prefix: impl Fn(usize) -> u32) -> u64 {
        let kept = self.stores.iter().rev().find(|s| s.from <= prefix(s.chain));
        kept.map_or(self.durable, |s| s.value)
    }

    /// Returns the word's value after `call`.
    fn version(&self, call: u64) -> u64 {
        let last = self.stores.iter().rev().find(|s| s.call <= call);
        last.map_or(self.durable, |s| s.value)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.at < range.end && range.start < self.at + WORD as u64
    }
}

impl LazyUnit {
    fn new(persistency: Persistency, durable: &PoolImage, queue: &[VolatileStore]) -> LazyUnit {
        let chains = ChainIndex::of(queue);
        let mut split = vec![Vec::new(); chains.count];
        let mut words: Vec<LazyWord> = Vec::new();
        let mut index = [usize::MAX; SECTOR / WORD];
        for store in queue {
            let slot = chains.slot(store);
            split[slot].push(*store);
            let kept = ConditionalStore {
                chain: slot,
                from: split[slot].len() as u32,
                value: store.value,
                call: store.call,
            };
            let known = &mut index[store.word as usize % SECTOR / WORD];
            if *known == usize::MAX {
                *known = words.len();
                words.push(LazyWord {
                    at: store.word,
                    durable: durable.word(Off(store.word)),
                    stores: Vec::new(),
                    chain: Some(slot),
                    known: WordKnowledge::Open,
                });
            }
            let word = &mut words[*known];
            word.chain = word.chain.filter(|&chain| chain == slot);
            word.stores.push(kept);
        }
        words.sort_unstable_by_key(|w| w.at);
        let prefixes = |chain: &Vec<VolatileStore>| -> Vec<u32> {
            let ends = (0..chain.len()).filter(|&i| may_cut_after(persistency, chain, i));
            [0].into_iter().chain(ends.map(|i| i as u32 + 1)).collect()
        };
        LazyUnit {
            allowed: split.iter().map(prefixes).collect(),
            queue: queue.to_vec(),
            chains,
            words,
        }
    }

    /// Returns the first open atom of the range, starting at word `from`.
    fn atom(&self, range: &Range<u64>, from: usize) -> Option<DecisionAtom> {
        let open = |w: &LazyWord| w.known == WordKnowledge::Open && w.overlaps(range);
        let first = from + self.words.get(from..)?.iter().position(open)?;
        let chain = self.words[first].chain;
        let words = match chain {
            None => vec![first],
            Some(_) => (first..self.words.len())
                .filter(|&i| self.words[i].chain == chain && open(&self.words[i]))
                .collect(),
        };
        Some(DecisionAtom { words, chain })
    }

    /// Returns all open atoms of the range.
    fn atoms(&self, range: &Range<u64>) -> Vec<DecisionAtom> {
        let mut atoms: Vec<DecisionAtom> = Vec::new();
        let mut from = 0;
        while let Some(atom) = self.atom(range, from) {
            from = atom.words[0] + 1;
            let known = |a: &DecisionAtom| a.chain.is_some() && a.chain == atom.chain;
            if !atoms.iter().any(known) {
                atoms.push(atom);
            }
        }
        atoms
    }

    /// Returns the possible contents of an atom within the range. For an atom of one chain, each appears once.
    fn choices(&self, atom: &DecisionAtom, range: &Range<u64>) -> Vec<AtomChoice> {
        let Some(chain) = atom.chain else {
            return self.last_stores(&self.words[atom.words[0]], range);
        };
        let mut choices: Vec<AtomChoice> = Vec::new();
        for &prefix in &self.allowed[chain] {
            let words = atom.words.iter().map(|&w| &self.words[w]);
            let content = words
                .map(|w| w.value(|_| prefix) & mask(w.at, range))
                .collect();
            match choices.iter_mut().find(|c| c.content == content) {
                Some(choice) => choice.allowed[0].1.push(prefix),
                None => choices.push(AtomChoice {
                    content,
                    allowed: vec![(chain, vec![prefix])],
                }),
            }
        }
        choices
    }

    /// Returns the choices of a word that several chains store to: the last store that is kept. A choice by
    /// value would not give each chain a set of its own (PM-LAZY-1).
    fn last_stores(&self, word: &LazyWord, range: &Range<u64>) -> Vec<AtomChoice> {
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
                choices.push(AtomChoice {
                    content: vec![kept.map_or(word.durable, |s| s.value) & mask],
                    allowed,
                });
            }
        }
        if choices.iter().all(|c| c.content == choices[0].content) {
            choices.truncate(1);
            choices[0].allowed.clear(); // The choice narrows no chain.
        }
        choices
    }

    /// Returns whether the atom, with this choice, equals `bytes`, which start at `at`.
    fn equals(&self, atom: &DecisionAtom, choice: &AtomChoice, at: Off, bytes: &[u8]) -> bool {
        let words = atom.words.iter().map(|&w| self.words[w].at);
        words
            .map(|word| word_of(word, at, bytes))
            .eq(choice.content.iter().copied())
    }

    /// Writes each word's value to the visible image (PM-LAZY-2), and for open words one possible value.
    fn settle(&mut self, visible: &mut PoolImage) {
        for i in 0..self.words.len() {
            let word = &self.words[i];
            if word.known != WordKnowledge::Open {
                continue;
            }
            let value = self.least(word);
            if visible.word(Off(word.at)) != value {
                visible.set_word(Off(word.at), value);
            }
            let atom = DecisionAtom {
                words: vec![i],
                chain: word.chain,
            };
            if self.choices(&atom, &(0..u64::MAX)).len() == 1 {
                self.words[i].known = WordKnowledge::Settled;
            }
        }
    }

    /// Returns a word's value if every chain keeps its shortest allowed prefix.
    fn least(&self, word: &LazyWord) -> u64 {
        word.value(|chain| self.allowed[chain][0])
    }

    fn bounds(&self, chain: usize) -> (u32, u32) {
        let allowed = &self.allowed[chain];
        (allowed[0], *allowed.last().expect("PM-LAZY-1"))
    }
}

/// Returns the word at `word` from `bytes`, which start at `at`; bytes outside of them are zero.
fn word_of(word: u64, at: Off, bytes: &[u8]) -> u64 {
    let byte = |i: u64| {
        let from = (word + i).checked_sub(at.0)?;
        bytes.get(from as usize).copied()
    };
    u64::from_le_bytes(std::array::from_fn(|i| byte(i as u64).unwrap_or(0)))
}

fn is_at(image: &PoolImage, at: Off, mut bytes: &[u8]) -> bool {
    image.pieces(at, bytes.len(), |piece| {
        let (head, tail) = bytes.split_at(piece.len());
        let same = head == piece;
        bytes = if same { tail } else { bytes };
        same
    });
    bytes.is_empty()
}

/// Returns the prefixes of `set` that are not in `others`; both are ascending.
fn difference(set: &[u32], others: &[u32]) -> Vec<u32> {
    let left = set.iter().filter(|p| others.binary_search(p).is_err());
    left.copied().collect()
}

/// Returns a mask of the bits of the word at `word` that are in the range.
fn mask(word: u64, range: &Range<u64>) -> u64 {
    let skip = range.start.saturating_sub(word) * 8;
    let beyond = (word + WORD as u64).saturating_sub(range.end) * 8;
    (u64::MAX << skip) & (u64::MAX >> beyond)
}

impl LazyState {
    /// Creates the state in which nothing is decided yet. Decisions follow `script`.
    pub(super) fn new(
        unit_bytes: usize,
        units: LazyUnits,
        script: &[u32],
        places: Option<Arc<SourceLines>>,
    ) -> LazyState {
        LazyState {
            unit_bytes: unit_bytes as u64,
            units,
            clauses: Vec::new(),
            script: DecisionScript {
                entries: script.to_vec(),
                decisions: Vec::new(),
            },
            places,
        }
    }

    /// Returns the decisions so far, in order.
    pub(super) fn decisions(&self) -> &[LazyDecision] {
        &self.script.decisions
    }

    /// Returns the units that overlap the range.
    fn units_in(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &LazyUnit)> + Clone {
        let first = range.start / self.unit_bytes;
        let end = range.end.div_ceil(self.unit_bytes).max(first);
        self.units
            .range(first..end)
            .map(|(&at, unit)| (at, &**unit))
    }

    pub(super) fn is_open(&self, range: &Range<u64>) -> bool {
        self.units_in(range)
            .any(|(_, unit)| unit.atom(range, 0).is_some())
    }

    /// Records that the reader has stored to a word, which hides the value that the crash left.
    pub(super) fn overwrite(&mut self, at: Off) {
        let unit = self.units.get_mut(&(at.0 / self.unit_bytes));
        let word = |unit: &LazyUnit| unit.words.iter().position(|w| w.at == at.0);
        if let Some((word, unit)) = unit.and_then(|unit| Some((word(unit)?, unit))) {
            Arc::make_mut(unit).words[word].known = WordKnowledge::Overwritten;
        }
    }

    pub(super) fn decide(&mut self, visible: &mut PoolImage, range: &Range<u64>) {
        let word = WORD as u64;
        let words = range.start / word * word..range.end.div_ceil(word).saturating_mul(word);
        while let Some((at, atom)) = self.open_atom(&words, false) {
            self.decide_atom(visible, at, &atom, &words);
        }
    }

    /// Returns the first open atom of the range; with `shared`, the first with several chains.
    fn open_atom(&self, range: &Range<u64>, shared: bool) -> Option<(u64, DecisionAtom)> {
        self.units_in(range).find_map(|(at, unit)| {
            let mut atoms = unit.atoms(range).into_iter();
            Some((at, atoms.find(|a| !shared || a.chain.is_none())?))
        })
    }

    /// Decides the content of an atom.
    fn decide_atom(
        &mut self,
        visible: &mut PoolImage,
        at: u64,
        atom: &DecisionAtom,
        range: &Range<u64>,
    ) {
        let choices = self.units[&at].choices(atom, range).into_iter();
        let narrowed = choices.map(|choice| -> AllowedPrefixes {
            let chains = choice.allowed.into_iter();
            chains.map(|(chain, set)| ((at, chain), set)).collect()
        });
        let mut possible: Vec<AllowedPrefixes> =
            narrowed.filter(|n| self.solve(n).is_some()).collect();
        let chosen = self.script.choose(possible.len());
        self.narrow(visible, possible.swap_remove(chosen));
    }

    pub(super) fn decide_match(
        &mut self,
        visible: &mut PoolImage,
        at: Off,
        bytes: &[u8],
    ) -> Option<bool> {
        let range = at.0..at.0.saturating_add(bytes.len() as u64);
        if !self.is_open(&range) {
            return None;
        }
        if !self.may_match(visible, at, bytes) {
            return Some(false);
        }
        // A value of a word with several chains has no set of prefixes per chain, so it is decided first.
        while let Some((unit, atom)) = self.open_atom(&range, true) {
            self.decide_atom(visible, unit, &atom, &(0..u64::MAX));
        }
        let Some(mut equal) = self.would_match(visible, at, bytes) else {
            return Some(false);
        };
        let can_differ = !equal.is_empty() && self.can_differ(&equal);
        let can_match = self.solve(&equal).is_some();
        let matches = match (can_match, can_differ) {
            (true, true) => self.script.choose(2) == 0,
            (can_match, _) => can_match,
        };
        if matches {
            self.narrow(visible, equal);
        } else if equal.len() == 1 {
            let (chain, set) = equal.pop_first().expect("one");
            let others = difference(&self.units[&chain.0].allowed[chain.1], &set);
            self.narrow(visible, AllowedPrefixes::from([(chain, others)]));
        } else if can_match {
            self.clauses.push(equal.into_iter().collect());
        }
        Some(matches)
    }

    /// Returns whether the range can equal `bytes`, judging each word and each atom alone.
    fn may_match(&self, visible: &PoolImage, at: Off, bytes: &[u8]) -> bool {
        let range = at.0..at.0 + bytes.len() as u64;
        let words = self.units_in(&range).flat_map(|(_, unit)| &unit.words);
        let open: Vec<u64> = words
            .filter(|w| w.known == WordKnowledge::Open)
            .map(|w| w.at)
            .collect();
        let word = WORD as u64;
        let all = (range.start / word * word..range.end).step_by(WORD);
        let mut certain = all.filter(|at| open.binary_search(at).is_err());
        let differs = |word: u64| {
            let difference = visible.word(Off(word)) ^ word_of(word, at, bytes);
            difference & mask(word, &range) != 0
        };
        !certain.any(differs)
            && self.units_in(&range).all(|(_, unit)| {
                unit.atoms(&range).iter().all(|atom| {
                    let choices = unit.choices(atom, &range);
                    choices.iter().any(|c| unit.equals(atom, c, at, bytes))
                })
            })
    }

    /// Returns the prefixes with which the range equals `bytes`, of chains that also allow others. `None`: none do.
    fn would_match(&self, visible: &PoolImage, at: Off, bytes: &[u8]) -> Option<AllowedPrefixes> {
        let range = at.0..at.0 + bytes.len() as u64;
        if !self.may_match(visible, at, bytes) {
            return None;
        }
        let mut equal = AllowedPrefixes::new();
        for (key, unit) in self.units_in(&range) {
            for atom in unit.atoms(&range) {
                let chain = atom.chain.expect("words of several chains are decided");
                let choices = unit.choices(&atom, &range);
                if choices.len() > 1 {
                    let same = choices
                        .into_iter()
                        .find(|c| unit.equals(&atom, c, at, bytes))?;
                    equal.extend(same.allowed.into_iter().map(|(_, set)| ((key, chain), set)));
                }
            }
        }
        Some(equal)
    }

    /// Returns whether at least one of these chains can keep a prefix that is not listed.
    fn can_differ(&self, equal: &AllowedPrefixes) -> bool {
        equal.iter().any(|(&chain, set)| {
            let others = difference(&self.units[&chain.0].allowed[chain.1], set);
            !others.is_empty()
                && self
                    .solve(&AllowedPrefixes::from([(chain, others)]))
                    .is_some()
        })
    }

    /// Decides among the contents of the range after each call that stored to it, if they pass `check`.
    pub(super) fn decide_whole(
        &mut self,
        visible: &mut PoolImage,
        range: &Range<u64>,
        check: &dyn Fn(&[u8]) -> usize,
    ) -> Vec<u8> {
        let at = Off(range.start);
        let mut tried: Vec<Vec<u8>> = Vec::new();
        for mut content in self.versions(visible, range) {
            let whole = check(&content);
            content.truncate(whole);
            if content.is_empty() || tried.contains(&content) {
                continue;
            }
            let decided = self.decide_match(visible, at, &content);
            if decided.unwrap_or_else(|| is_at(visible, at, &content)) {
                return content;
            }
            tried.push(content);
        }
        Vec::new()
    }

    /// Returns the range's durable content, and that after each call that stored to it, with the reader's stores.
    fn versions(&self, visible: &PoolImage, range: &Range<u64>) -> Vec<Vec<u8>> {
        let words = self.units_in(range).flat_map(|(_, unit)| &unit.words);
        let words = words.filter(|w| w.overlaps(range));
        let stores = words.clone().flat_map(|w| &w.stores);
        let mut calls: Vec<u64> = stores.map(|s| s.call).chain([0]).collect();
        calls.sort_unstable();
        calls.dedup();
        let len = (range.end - range.start) as usize;
        let mut now = Vec::with_capacity(len);
        visible.pieces(Off(range.start), len, |piece| {
            now.extend_from_slice(piece);
            true
        });
        let version = |call: u64| {
            let mut content = now.clone();
            let of_crash = words
                .clone()
                .filter(|w| w.known != WordKnowledge::Overwritten);
            for word in of_crash {
                let value = word.version(call).to_le_bytes();
                for (i, byte) in value.into_iter().enumerate() {
                    let place = (word.at + i as u64).checked_sub(range.start);
                    let place = place.and_then(|at| content.get_mut(at as usize));
                    place.into_iter().for_each(|old| *old = byte);
                }
            }
            content
        };
        calls.into_iter().map(version).collect()
    }

    /// Restricts chains to these prefixes.
    fn narrow(&mut self, visible: &mut PoolImage, narrowed: AllowedPrefixes) {
        for ((at, chain), set) in narrowed {
            let unit = Arc::make_mut(self.units.get_mut(&at).expect("it was found"));
            unit.allowed[chain] = set;
            unit.settle(visible);
        }
    }

    /// Returns subsets of `narrowed` and the allowed sets such that any choice from them satisfies every clause.
    fn solve(&self, narrowed: &AllowedPrefixes) -> Option<AllowedPrefixes> {
        if self.clauses.is_empty() {
            return Some(narrowed.clone());
        }
        self.solve_from(0, narrowed.clone())
    }

    fn solve_from(&self, clause: usize, narrowed: AllowedPrefixes) -> Option<AllowedPrefixes> {
        let Some(chains) = self.clauses.get(clause) else {
            return Some(narrowed);
        };
        let set_of = |chain: &ChainId| {
            let narrowed = narrowed.get(chain);
            narrowed.unwrap_or_else(|| &self.units[&chain.0].allowed[chain.1])
        };
        let holds = |(chain, equal): &(ChainId, Vec<u32>)| {
            let mut set = set_of(chain).iter();
            set.all(|prefix| equal.binary_search(prefix).is_err())
        };
        if chains.iter().any(holds) {
            return self.solve_from(clause + 1, narrowed);
        }
        chains.iter().find_map(|(chain, equal)| {
            let others = difference(set_of(chain), equal);
            let mut more = narrowed.clone();
            more.insert(*chain, others.clone());
            (!others.is_empty())
                .then(|| self.solve_from(clause + 1, more))
                .flatten()
        })
    }

    /// Returns the shortest prefix of each chain of a unit in the solution `solved`.
    fn least(&self, solved: &AllowedPrefixes, at: u64, unit: &LazyUnit) -> Vec<u32> {
        let least =
            |(chain, allowed): (usize, &Vec<u32>)| solved.get(&(at, chain)).unwrap_or(allowed)[0];
        unit.allowed.iter().enumerate().map(least).collect()
    }

    pub(super) fn fill(&self, image: &mut PoolImage, range: &Range<u64>) {
        let solved = self.solve(&AllowedPrefixes::new()).expect("PM-LAZY-1");
        for (at, unit) in self.units_in(range) {
            let least = self.least(&solved, at, unit);
            for word in unit.words.iter().filter(|w| w.known == WordKnowledge::Open) {
                image.set_word(Off(word.at), word.value(|chain| least[chain]));
            }
        }
    }

    pub(super) fn survivors(&self) -> Vec<UnitSurvivors> {
        let units = self.units.iter().map(|(&at, unit)| {
            UnitSurvivors::of(
                Off(at * self.unit_bytes),
                &unit.queue,
                |chain| unit.bounds(chain),
                self.places.as_deref(),
            )
        });
        units.filter(|s| s.kept + s.lost > 0).collect()
    }

    pub(super) fn cut(&self, mut image: PoolImage) -> ImageCut {
        let mut keep = Vec::new();
        let solved = self.solve(&AllowedPrefixes::new()).expect("PM-LAZY-1");
        for (&at, unit) in &self.units {
            let least = self.least(&solved, at, unit);
            for_each_kept(&unit.queue, &unit.chains, &least, |s| {
                image.set_word(Off(s.word), s.value)
            });
            keep.extend(least);
        }
        ImageCut {
            number: 0,
            hash: image.hash(),
            keep,
        }
    }
}
