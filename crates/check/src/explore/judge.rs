//! Checks of a crash point: the contents of each image, and whether the structure can still be used.

use farbank_pm::rng::Rng;
use farbank_pm::sim::{CrashState, ImageCut, PoolImage, Sim};

use super::open_subject::OpenSubject;
use super::run::WorkloadRun;
use super::{Contents, Explorer, Pairs, SeedFailure, ShownContents, sorted};
use crate::Violation;
use crate::digest::fold;
use crate::guard::guarded;
use crate::oracle::check_history;
use crate::report::ImageChoice;
use crate::target::{DATABASES, KeyWrite, OpAnswer, ReadView, TargetOp, TargetSubject, Value};

impl Explorer<'_> {
    /// Checks one crash point.
    pub(super) fn check_state(
        &mut self,
        run: &mut WorkloadRun,
        state: &CrashState,
    ) -> Result<(), Box<SeedFailure>> {
        run.crashes += 1;
        let number = run.crashes;
        let only = self.config.only.as_ref().filter(|_| run.nesting.depth == 1);
        if only.is_some_and(|(crash, _)| *crash != number) {
            return Ok(());
        }
        self.fold(state.digest());
        match only {
            None if self.config.lazy => self.check_lazily(run, state, number),
            Some((_, None)) if self.config.lazy => self.check_lazily(run, state, number),
            Some((_, Some(ImageChoice::Lazy(script)))) => {
                self.check_script(run, state, number, script)
            }
            _ => self.check_eagerly(run, state, number, only.map(|(_, pick)| pick.as_ref())),
        }
    }

    /// Checks the images of a crash point, and sometimes a kill. `only`: check just this point, and if it names an
    /// image or a kill, just that.
    fn check_eagerly(
        &mut self,
        run: &mut WorkloadRun,
        state: &CrashState,
        number: u64,
        only: Option<Option<&ImageChoice>>,
    ) -> Result<(), Box<SeedFailure>> {
        let rng = Rng::new(run.seed).fork(number);
        let (count, cap) = match run.nesting.depth {
            1 => (&mut self.counts.crash_points, self.config.cap),
            2 => (&mut self.counts.nested_points, self.config.cap_nested),
            _ => (&mut self.counts.deep_points, self.config.cap_nested),
        };
        *count += 1;
        let images = state.images(cap, rng.fork(1).draw());
        self.counts.exhaustive_points += u64::from(run.nesting.depth == 1 && images.exhaustive());
        let pick = only.flatten();
        for cut in images {
            let this = ImageChoice::Image(cut.number);
            if pick.is_some_and(|pick| *pick != this) {
                continue;
            }
            self.check_image(run, state, &cut, &rng, only.is_some())
                .map_err(|failure| {
                    let failure = failure.surviving(&state.survivors(&cut));
                    failure.after_crash(number, state, this)
                })?;
        }
        let kill = rng.fork(2).one_in(self.config.kill_one_in);
        if (kill && only.is_none() && self.may_nest(run)) || pick == Some(&ImageChoice::Kill) {
            run.nesting.left -= 1;
            self.counts.kills += 1;
            self.nest(run, state.killed(), rng.fork(3).draw())
                .map_err(|failure| failure.after_crash(number, state, ImageChoice::Kill))?;
        }
        Ok(())
    }

    fn may_nest(&self, run: &WorkloadRun) -> bool {
        run.nesting.depth < self.config.depth && run.nesting.left > 0
    }

    /// Checks one image of a crash point.
    fn check_image(
        &mut self,
        run: &mut WorkloadRun,
        state: &CrashState,
        cut: &ImageCut,
        rng: &Rng,
        always_nest: bool,
    ) -> Result<(), Box<SeedFailure>> {
        if !run.is_new(cut.hash) {
            return Ok(());
        }
        self.counts.images += 1;
        let key = (cut.hash, run.now_ms);
        let rng = rng.fork(cut.number as u64);
        let fresh = !self.known.contains_key(&key);
        if fresh {
            let probe = always_nest || rng.fork(4).one_in(self.config.probe_one_in);
            let shown = self.recover(state.image(cut), run.now_ms, probe);
            let shown = shown.map_err(|what| run.failure(None, what))?;
            self.fold(digest_of(&shown));
            self.known.insert(key, shown);
        }
        let shown = &self.known[&key];
        check_contents(run, shown)?;
        // In nested runs only the random choice counts, not whether the image is known (CHECK-EXPLORE-2).
        let nest = (fresh || run.nesting.depth > 1) && rng.fork(5).one_in(self.config.nest_one_in);
        if (nest || always_nest) && shown.is_ok() && self.may_nest(run) {
            run.nesting.left -= 1;
            let sim = self.sim(state.image(cut));
            self.nest(run, sim, rng.fork(6).draw())?;
        }
        Ok(())
    }

    /// Opens an image and returns its contents. A probe also opens it again, uses it, closes it and opens it once
    /// more.
    fn recover(
        &mut self,
        image: PoolImage,
        now_ms: u64,
        probe: bool,
    ) -> Result<ShownContents, Violation> {
        let sim = self.sim(image);
        let (subject, contents) = match self.open_and_check(&sim, now_ms)? {
            Ok(recovered) => recovered,
            Err(refusal) => return Ok(Err(refusal)),
        };
        drop(subject);
        if probe {
            self.counts.probes += 1;
            self.probe(&sim.crash_state().killed(), now_ms, contents.clone())?;
        }
        Ok(Ok(contents.into()))
    }

    /// Checks that a second recovery shows the same contents, that the structure can be used, and that it keeps its
    /// contents across a close.
    fn probe(&self, sim: &Sim, now_ms: u64, mut contents: Pairs) -> Result<(), Violation> {
        let (mut subject, second) = self.must_open(sim, now_ms)?;
        same(&contents, &second).map_err(|wrong| wrong.context("a second recovery"))?;
        let used = guarded(|| self.usable(&mut *subject, sim, &mut contents));
        used.and_then(|used| used)
            .map_err(|e| e.context("the structure fails when used after recovery"))?;
        let closed = guarded(|| subject.into_inner().close()).and_then(|closed| closed);
        closed.map_err(|e| e.context("close after recovery failed"))?;
        let (_, third) = self.must_open(&sim.crash_state().killed(), now_ms)?;
        if self.shape.forgets {
            contents.retain(|pair| third.contains(pair));
        }
        same(&contents, &third).map_err(|wrong| wrong.context("after a close and an open"))
    }

    /// Opens a structure whose open must succeed.
    fn must_open(&self, sim: &Sim, now_ms: u64) -> Result<(OpenSubject, Pairs), Violation> {
        self.open_and_check(sim, now_ms)?
            .map_err(|refusal| refusal.context("the first open succeeded, but a later one failed"))
    }

    /// Opens the structure, reads its contents and runs its own check. Returns `Ok(Err(_))` if the open refused with
    /// an error.
    pub(super) fn open_and_check(&self, sim: &Sim, now_ms: u64) -> Result<Opened, Violation> {
        let opened = guarded(|| self.target.open(sim.clone(), now_ms));
        let mut subject = match opened.map_err(|e| e.context("open failed"))? {
            Ok(subject) => OpenSubject::new(subject),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let contents = guarded(|| subject.contents()).and_then(|contents| contents)?;
        let checked = guarded(|| subject.check()).and_then(|checked| checked);
        checked.map_err(|e| e.context("its own check after recovery"))?;
        Ok(Ok((subject, sorted(contents))))
    }

    /// Checks that an unused key can be stored and found, and deleted if the structure supports that, and that every
    /// present key can be overwritten. Updates `contents` to match.
    fn usable(
        &self,
        subject: &mut dyn TargetSubject,
        sim: &Sim,
        contents: &mut Pairs,
    ) -> Result<(), Violation> {
        let fresh = match self.shape.swaps {
            // A key whose name no database has.
            true => (self.shape.keys / DATABASES + 1) * DATABASES,
            false => self.shape.keys + 1,
        };
        let bytes = self.shape.value_bytes.0;
        let value = |key: u64| Value {
            id: (u64::MAX >> 1) + key,
            bytes,
        };
        let put = |key: u64| {
            TargetOp::Write(KeyWrite::Put {
                key,
                value: value(key),
                expires_ms: 0,
            })
        };
        if subject.apply(0, &put(fresh))? != OpAnswer::Refused {
            commit(subject, sim)?;
            self.finds(subject, fresh, Some(value(fresh)))?;
            if self.shape.deletes {
                subject.apply(0, &TargetOp::Write(KeyWrite::Delete { key: fresh }))?;
                commit(subject, sim)?;
                self.finds(subject, fresh, None)?;
            } else {
                // Larger than every key of a run, so it sorts last.
                contents.push((fresh, value(fresh)));
            }
        }
        for (key, old) in &mut *contents {
            if subject.apply(0, &put(*key))? != OpAnswer::Refused {
                *old = value(*key);
            }
        }
        commit(subject, sim)?;
        for (key, value) in &*contents {
            self.finds(subject, *key, Some(*value))?;
        }
        subject.check()
    }

    fn finds(
        &self,
        subject: &mut dyn TargetSubject,
        key: u64,
        expected: Option<Value>,
    ) -> Result<(), Violation> {
        let view = ReadView::Durable;
        match subject.apply(0, &TargetOp::Get { key, view })? {
            OpAnswer::Found(found) if found == expected => Ok(()),
            OpAnswer::Found(None) if self.shape.forgets => Ok(()),
            found => Err(Violation::new(format!(
                "key {key}: expected {expected:?}, got {found:?}"
            ))),
        }
    }
}

/// An open structure and its contents, or the error with which the open refused.
type Opened = Result<(OpenSubject, Pairs), Violation>;

/// Checks the contents of an image against the current history.
pub(super) fn check_contents(
    run: &WorkloadRun,
    shown: &ShownContents,
) -> Result<(), Box<SeedFailure>> {
    match shown {
        Err(_) if run.creating => Ok(()), // CHECK-EXPLORE-4
        Err(refusal) => Err(run.failure(None, refusal.clone().context("open failed"))),
        Ok(contents) => check_history(&run.history, contents, run.now_ms)
            .map_err(|c| run.failure(Some(c.key), c.what)),
    }
}

/// Returns a digest of the contents of an image.
pub(super) fn digest_of(shown: &ShownContents) -> u64 {
    let contents: &Contents = match shown {
        Ok(contents) => contents,
        Err(_) => return 1,
    };
    contents.iter().fold(0, |digest, (key, value)| {
        fold(fold(fold(digest, *key), value.id), u64::from(value.bytes))
    })
}

fn commit(subject: &mut dyn TargetSubject, sim: &Sim) -> Result<(), Violation> {
    let ticket = subject.commit(0)?;
    sim.sync()?;
    match subject.durable(0, ticket)? {
        true => Ok(()),
        false => Err(Violation::new(format!(
            "{ticket:?} is not durable after a sync"
        ))),
    }
}

/// Returns an error that describes the first difference, if any.
fn same(expected: &Pairs, found: &Pairs) -> Result<(), Violation> {
    if expected == found {
        return Ok(());
    }
    let missing = expected.iter().find(|pair| !found.contains(pair));
    let new = found.iter().find(|pair| !expected.contains(pair));
    let say = |pair: Option<&(u64, Value)>| match pair {
        Some((key, value)) => format!("key {key} = {value:?}"),
        None => "nothing".into(),
    };
    Err(Violation::new(format!(
        "different contents: {} instead of {}",
        say(new),
        say(missing)
    )))
}
