//! Lazy exploration: covers every memory content after a power cut that recovery can tell apart.
//!
//! ```text
//!   script []      ──▶ open, contents, check      decided on the way: 0 of 2, 0 of 3
//!   script [0 1]   ──▶ ...                        0 of 2, 1 of 3
//!   script [0 2]   ──▶ ...                        0 of 2, 2 of 3
//!   script [1]     ──▶ ...                        1 of 2                the last: four leaves
//! ```
//!
//! Memory is decided when it is read: a read selects a value, and only the sets of surviving stores that agree with
//! it remain possible. The search is depth first and keeps only the script. A read of memory that cannot differ
//! decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use farbank_pm::sim::{CrashState, LazyCrash, Sim, next_script};

use super::judge::{check_contents, digest_of};
use super::run::WorkloadRun;
use super::{Explorer, SeedFailure, ShownContents};
use crate::Violation;
use crate::report::ImageChoice;

/// Result of following the decisions of a crash point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafCounts {
    /// Number of leaves followed.
    pub leaves: usize,
    /// Whether there are more leaves that were not followed.
    pub cut_off: bool,
}

/// Calls `each` with every memory content that a power cut at `state` may leave and that `each` can tell apart by
/// reading, at most `cap` times. `each` must be deterministic: it reads the same addresses if it has read the same
/// values.
pub fn lazily<E>(
    state: &CrashState,
    cap: usize,
    mut each: impl FnMut(&Sim) -> Result<(), E>,
) -> Result<LeafCounts, E> {
    let undecided = LazyCrash::of(state);
    let (mut script, mut leaves) = (Vec::new(), 0);
    loop {
        let sim = undecided.follow(&script);
        each(&sim)?;
        leaves += 1;
        let next = next_script(&sim.decisions());
        let cut_off = next.is_some() && leaves >= cap;
        match next {
            Some(next) if !cut_off => script = next,
            _ => return Ok(LeafCounts { leaves, cut_off }),
        }
    }
}

/// Returns the decisions that led to a leaf.
fn script_of(sim: &Sim) -> Vec<u32> {
    sim.decisions().iter().map(|d| d.chosen).collect()
}

/// All contents that recovery can show after a crash point.
#[derive(Default)]
pub(super) struct DecisionTree {
    /// Contents, each with the first script that led to them.
    shown: BTreeMap<ShownContents, Vec<u32>>,
    cut_off: bool,
}

/// A script whose recovery panicked or failed its own check.
struct DeadBranch {
    script: Vec<u32>,
    what: Violation,
}

impl Explorer<'_> {
    /// Checks all leaves of a crash point, unless it was already checked against the same history.
    pub(super) fn check_lazily(
        &mut self,
        run: &mut WorkloadRun,
        state: &CrashState,
        number: u64,
    ) -> Result<(), Box<SeedFailure>> {
        let key = (state.digest(), run.now_ms);
        if !run.is_new(key.0) {
            self.counts.repeated_points += 1;
            return Ok(());
        }
        self.counts.crash_points += 1;
        let tree = match self.trees.get(&key) {
            Some(tree) => Arc::clone(tree),
            None => {
                let tree = self.grow(state, run.now_ms).map_err(|dead| {
                    let failure = run.failure(None, dead.what);
                    self.after_leaf(failure, run, state, number, dead.script)
                })?;
                Arc::clone(self.trees.entry(key).or_insert(Arc::new(tree)))
            }
        };
        self.counts.cut_off += u64::from(tree.cut_off);
        self.counts.exhaustive_points += u64::from(!tree.cut_off);
        for (shown, script) in &tree.shown {
            check_contents(run, shown)
                .map_err(|f| self.after_leaf(f, run, state, number, script.clone()))?;
        }
        Ok(())
    }

    fn grow(&mut self, state: &CrashState, now_ms: u64) -> Result<DecisionTree, DeadBranch> {
        let mut tree = DecisionTree::default();
        let found = lazily(state, self.config.leaves, |sim| {
            let shown = self.shows(sim, now_ms).map_err(|what| DeadBranch {
                script: script_of(sim),
                what,
            })?;
            tree.shown.entry(shown).or_insert_with(|| script_of(sim));
            Ok(())
        })?;
        let counts = &mut self.counts;
        counts.leaves += found.leaves as u64;
        counts.most_leaves = counts.most_leaves.max(found.leaves as u64);
        self.fold(found.leaves as u64);
        let shown = tree.shown.keys();
        shown.for_each(|shown| self.fold(digest_of(shown)));
        tree.cut_off = found.cut_off;
        Ok(tree)
    }

    fn shows(&self, sim: &Sim, now_ms: u64) -> Result<ShownContents, Violation> {
        let opened = self.open_and_check(sim, now_ms)?;
        Ok(opened.map(|(_, contents)| contents.into()))
    }

    /// Checks one leaf of a crash point.
    pub(super) fn check_script(
        &mut self,
        run: &mut WorkloadRun,
        state: &CrashState,
        number: u64,
        script: &[u32],
    ) -> Result<(), Box<SeedFailure>> {
        self.counts.crash_points += 1;
        self.counts.leaves += 1;
        let shown = self.shows(&Sim::lazy(state, script), run.now_ms);
        shown
            .map_err(|what| run.failure(None, what))
            .and_then(|shown| check_contents(run, &shown))
            .map_err(|f| self.after_leaf(f, run, state, number, script.to_vec()))
    }

    /// Adds the crash and its survivors to a failure, by following the script again.
    fn after_leaf(
        &self,
        failure: Box<SeedFailure>,
        run: &WorkloadRun,
        state: &CrashState,
        number: u64,
        script: Vec<u32>,
    ) -> Box<SeedFailure> {
        let sim = Sim::lazy(state, &script);
        let _ = self.shows(&sim, run.now_ms);
        failure
            .surviving(&sim.survivors())
            .after_crash(number, state, ImageChoice::Lazy(script))
    }
}
