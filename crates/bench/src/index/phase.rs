//! One phase: every thread does its share of so many operations, and the clock runs.

use std::sync::Barrier;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use farbank_index::Refused;

use super::contender::{Session, Subject, refused};
use crate::figure::Error;

/// Ways an operation may end that are told apart.
pub(super) const ENDS: usize = 8;

/// How a phase is run.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) threads: u32,
    /// Operations of all threads.
    pub(super) count: u64,
    /// One operation in so many is timed; 0: none.
    pub(super) timed_one_in: u64,
    /// How often it is looked how many operations are done.
    pub(super) sampling: Option<Duration>,
}

/// What a phase of all threads took.
pub(super) struct Phase {
    pub(super) took: Duration,
    /// Operations, in millions a second.
    pub(super) millions: f64,
    /// Nanoseconds of those that were timed, sorted.
    pub(super) times_ns: Vec<u64>,
    /// How many operations ended in which way.
    pub(super) ends: [u64; ENDS],
    /// Operations between two looks.
    pub(super) samples: Vec<u64>,
}

impl Phase {
    /// Nanoseconds that this share of the operations took at most.
    pub(super) fn quantile(&self, share: f64) -> u64 {
        quantile(&self.times_ns, share)
    }
}

/// Of sorted times the one that this share of them takes at most; 0 of none.
pub(super) fn quantile(times_ns: &[u64], share: f64) -> u64 {
    let last = times_ns.len().saturating_sub(1);
    let at = (times_ns.len() as f64 * share) as usize;
    times_ns.get(at.min(last)).copied().unwrap_or_default()
}

/// One thread's part.
#[derive(Default)]
struct Part {
    times_ns: Vec<u64>,
    ends: [u64; ENDS],
}

/// Has every thread run `op` for its share of `0..count`; `op` says how the operation ended.
pub(super) fn phase(
    subject: &dyn Subject,
    plan: Plan,
    op: impl Fn(&mut dyn Session, u64) -> Result<usize, Refused> + Sync,
) -> Result<Phase, Error> {
    let threads = u64::from(plan.threads);
    let share = plan.count.div_ceil(threads);
    let sessions: Result<Vec<_>, Error> = (0..threads).map(|_| subject.session()).collect();
    let done: Vec<CachePadded<AtomicU64>> = (0..threads).map(|_| CachePadded::default()).collect();
    let (start, over, op) = (
        Barrier::new(plan.threads as usize + 1),
        AtomicBool::new(false),
        &op,
    );
    let (start, over, done) = (&start, &over, &done);
    thread::scope(|scope| {
        let running: Vec<_> = (0..)
            .zip(sessions?)
            .map(|(thread, mut session)| {
                let mine = thread * share..((thread + 1) * share).min(plan.count);
                scope.spawn(move || {
                    start.wait();
                    let done = &done[thread as usize];
                    part(mine, plan.timed_one_in, done, |n| op(&mut *session, n))
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let sampler = plan.sampling.map(|every| {
            scope.spawn(move || samples(every, over, || done.iter().map(|d| d.load(Relaxed)).sum()))
        });
        let parts: Vec<_> = running
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .collect();
        let took = began.elapsed();
        over.store(true, Release);
        let samples = sampler.map_or_else(Vec::new, |sampler| {
            sampler.thread().unpark();
            sampler.join().expect("no thread panics")
        });
        let mut all = Part::default();
        for part in parts {
            let part = part.map_err(refused)?;
            all.times_ns.extend(part.times_ns);
            for (all, part) in all.ends.iter_mut().zip(part.ends) {
                *all += part;
            }
        }
        all.times_ns.sort_unstable();
        Ok(Phase {
            took,
            millions: plan.count as f64 / took.as_secs_f64() / 1e6,
            times_ns: all.times_ns,
            ends: all.ends,
            samples,
        })
    })
}

fn part(
    mine: std::ops::Range<u64>,
    timed_one_in: u64,
    done: &AtomicU64,
    mut op: impl FnMut(u64) -> Result<usize, Refused>,
) -> Result<Part, Refused> {
    let mut part = Part::default();
    let timed = (mine.end.saturating_sub(mine.start)).checked_div(timed_one_in);
    part.times_ns
        .reserve(timed.map_or(0, |timed| timed as usize + 1));
    let first = mine.start;
    let mut next_timed = match timed_one_in {
        0 => u64::MAX,
        one_in => first.next_multiple_of(one_in),
    };
    for n in mine {
        let end = if n == next_timed {
            next_timed += timed_one_in;
            let began = Instant::now();
            let end = op(n)?;
            part.times_ns.push(began.elapsed().as_nanos() as u64);
            end
        } else {
            op(n)?
        };
        part.ends[end] += 1;
        done.store(n + 1 - first, Relaxed);
    }
    Ok(part)
}

/// Looks `every` so often how many are done, and once more when it is over: how many more each time.
fn samples(every: Duration, over: &AtomicBool, done: impl Fn() -> u64) -> Vec<u64> {
    let (began, mut samples, mut before) = (Instant::now(), Vec::new(), 0);
    loop {
        let next = every * (samples.len() as u32 + 1);
        let is_over = || over.load(Acquire);
        while !is_over() && began.elapsed() < next {
            thread::park_timeout(next.saturating_sub(began.elapsed()));
        }
        let last = is_over();
        let now = done();
        samples.push(now - before);
        before = now;
        if last {
            return samples;
        }
    }
}
