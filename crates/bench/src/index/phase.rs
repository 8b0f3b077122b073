//! One phase: every thread does its share of so many operations, or what it can in so long, and the clock runs.

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
pub(super) const ENDS: usize = 10;
/// Operations that a thread is taken to do at most in a phase that ends by the clock.
const ENDLESS: u64 = 1 << 50;
/// For how many of the timed ones of such a phase there is room at once.
const TIMED: u64 = 1_000_000;

/// How a phase is run.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) threads: u32,
    pub(super) until: Until,
    /// One operation in so many is timed; 0: none.
    pub(super) timed_one_in: u64,
    /// How often it is looked how many operations are done.
    pub(super) sampling: Option<Duration>,
}

/// What ends a phase.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// So many operations of all threads.
    Done(u64),
    /// So many looks at how many are done.
    Looks(usize),
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

/// Has every thread run what `op` makes for it for its share of all numbers from 0; that says how the operation ended.
pub(super) fn phase<O: FnMut(&mut dyn Session, u64) -> Result<usize, Refused>>(
    subject: &dyn Subject,
    plan: Plan,
    op: impl Fn(u64) -> O + Sync,
) -> Result<Phase, Error> {
    let threads = u64::from(plan.threads);
    let (count, share, looks) = match plan.until {
        Until::Done(count) => (count, count.div_ceil(threads), None),
        Until::Looks(looks) => (u64::MAX, ENDLESS, Some(looks)),
    };
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
                let mine = thread * share..((thread + 1) * share).min(count);
                let by_clock = looks.map(|_| over);
                scope.spawn(move || {
                    let (mut op, done) = (op(thread), &done[thread as usize]);
                    start.wait();
                    let op = |n| op(&mut *session, n);
                    part(mine, plan.timed_one_in, done, by_clock, op)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let sampler = plan.sampling.map(|every| {
            let count = || done.iter().map(|d| d.load(Relaxed)).sum();
            scope.spawn(move || samples(every, looks, over, count))
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
        let operations: u64 = all.ends.iter().sum();
        Ok(Phase {
            took,
            millions: operations as f64 / took.as_secs_f64() / 1e6,
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
    by_clock: Option<&AtomicBool>,
    mut op: impl FnMut(u64) -> Result<usize, Refused>,
) -> Result<Part, Refused> {
    let mut part = Part::default();
    let timed = (mine.end.saturating_sub(mine.start)).checked_div(timed_one_in);
    let timed = timed.map_or(0, |timed| timed + 1);
    let at_once = by_clock.map_or(timed, |_| timed.min(TIMED));
    part.times_ns.reserve(at_once as usize);
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
        if by_clock.is_some_and(|over| over.load(Relaxed)) {
            break;
        }
    }
    Ok(part)
}

/// Looks `every` so often how many are done, and once more when it is over: how many more each time. It is over by itself
/// after so many looks, if it is told how many.
fn samples(
    every: Duration,
    looks: Option<usize>,
    over: &AtomicBool,
    done: impl Fn() -> u64,
) -> Vec<u64> {
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
        if last || looks == Some(samples.len()) {
            over.store(true, Release);
            return samples;
        }
    }
}
