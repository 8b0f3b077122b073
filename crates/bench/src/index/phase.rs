//! One timed phase: every thread executes its share of a number of operations, or as many as it can in a given time.

use std::sync::Barrier;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use farbank_index::IndexError;

use super::contender::{IndexSession, IndexSubject, refused};
use crate::figure::{Error, PROGRESS_INTERVAL, ProgressFn, report_progress};

/// Number of results of an operation that are counted separately.
pub(super) const ENDS: usize = 10;
/// Assumed largest number of operations of a thread in a phase that ends by time.
const ENDLESS: u64 = 1 << 50;
/// Number of timed operations for which such a phase preallocates room.
const TIMED: u64 = 1_000_000;

/// Options of a phase.
#[derive(Clone, Copy)]
pub(super) struct PhasePlan {
    pub(super) what: &'static str,
    pub(super) threads: u32,
    pub(super) until: PhaseEnd,
    /// One of this many operations is timed; 0 for none.
    pub(super) timed_one_in: u64,
    /// Interval at which completed operations are sampled.
    pub(super) sampling: Option<Duration>,
}

impl PhasePlan {
    /// Returns the amount of work: operations, or milliseconds.
    fn asked_for(&self) -> u64 {
        match (self.until, self.sampling) {
            (PhaseEnd::Done(count), _) => count,
            (PhaseEnd::Samples(looks), every) => {
                looks as u64 * every.unwrap_or_default().as_millis() as u64
            }
        }
    }
}

/// Condition that ends a phase.
#[derive(Clone, Copy)]
pub(super) enum PhaseEnd {
    /// All threads together have executed this many operations.
    Done(u64),
    /// This many samples were taken.
    Samples(usize),
}

/// Result of a phase of all threads.
pub(super) struct ThreadsPhase {
    pub(super) took: Duration,
    /// Rate in millions of operations per second.
    pub(super) millions: f64,
    /// Times of the timed operations in nanoseconds, sorted.
    pub(super) times_ns: Vec<u64>,
    /// Number of operations by result.
    pub(super) ends: [u64; ENDS],
    /// Operations completed between two samples.
    pub(super) samples: Vec<u64>,
}

impl ThreadsPhase {
    /// Returns the time in nanoseconds that this share of the timed operations does not exceed.
    pub(super) fn quantile(&self, share: f64) -> u64 {
        quantile(&self.times_ns, share)
    }
}

/// Returns the given quantile of sorted times; 0 if there are none.
pub(super) fn quantile(times_ns: &[u64], share: f64) -> u64 {
    let last = times_ns.len().saturating_sub(1);
    let at = (times_ns.len() as f64 * share) as usize;
    times_ns.get(at.min(last)).copied().unwrap_or_default()
}

/// Result of one thread.
#[derive(Default)]
struct ThreadPart {
    times_ns: Vec<u64>,
    ends: [u64; ENDS],
}

/// Runs a phase. Each thread gets a function from `op` and calls it for its share of the numbers from 0 on. The
/// function returns the number of the operation's result.
pub(super) fn phase<O: FnMut(&mut dyn IndexSession, u64) -> Result<usize, IndexError>>(
    subject: &dyn IndexSubject,
    plan: PhasePlan,
    watch: ProgressFn<'_>,
    op: impl Fn(u64) -> O + Sync,
) -> Result<ThreadsPhase, Error> {
    let threads = u64::from(plan.threads);
    let (count, share, looks) = match plan.until {
        PhaseEnd::Done(count) => (count, count.div_ceil(threads), None),
        PhaseEnd::Samples(looks) => (u64::MAX, ENDLESS, Some(looks)),
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
        let (tell, told) = mpsc::channel::<()>(); // no message is sent; the channel closes when all threads have ended
        let running: Vec<_> = (0..)
            .zip(sessions?)
            .map(|(number, mut session)| {
                let mine = number * share..((number + 1) * share).min(count);
                let tell = tell.clone();
                scope.spawn(move || {
                    let (mut op, done) = (op(number), &done[number as usize]);
                    start.wait();
                    let op = |n| op(&mut *session, n);
                    let part = part(mine, (plan.timed_one_in, looks.is_some()), done, over, op);
                    let ended = Instant::now();
                    drop(tell);
                    (part, ended)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let sampler = plan.sampling.map(|every| {
            let count = || done.iter().map(|d| d.load(Relaxed)).sum();
            scope.spawn(move || samples(every, looks, over, count))
        });
        let asked_for = plan.asked_for();
        drop(tell);
        while told.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let so_far = match plan.until {
                PhaseEnd::Done(_) => done.iter().map(|d| d.load(Relaxed)).sum(),
                PhaseEnd::Samples(_) => began.elapsed().as_millis() as u64,
            };
            if let Err(stopped) = report_progress(watch, plan.what, so_far, asked_for) {
                over.store(true, Release);
                return Err(stopped);
            }
        }
        let ended = running.into_iter();
        let ended = ended.map(|thread| thread.join().expect("a thread of the phase panicked"));
        let (parts, ends): (Vec<_>, Vec<_>) = ended.unzip();
        let last = ends.into_iter().max().unwrap_or(began);
        let took = last.saturating_duration_since(began);
        over.store(true, Release);
        let samples = sampler.map_or_else(Vec::new, |sampler| {
            sampler.thread().unpark();
            sampler.join().expect("the sampler thread panicked")
        });
        let mut all = ThreadPart::default();
        for part in parts {
            let part = part.map_err(refused)?;
            all.times_ns.extend(part.times_ns);
            for (all, part) in all.ends.iter_mut().zip(part.ends) {
                *all += part;
            }
        }
        all.times_ns.sort_unstable();
        let operations: u64 = all.ends.iter().sum();
        Ok(ThreadsPhase {
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
    (timed_one_in, by_clock): (u64, bool),
    done: &AtomicU64,
    over: &AtomicBool,
    mut op: impl FnMut(u64) -> Result<usize, IndexError>,
) -> Result<ThreadPart, IndexError> {
    let mut part = ThreadPart::default();
    let timed = (mine.end.saturating_sub(mine.start)).checked_div(timed_one_in);
    let timed = timed.map_or(0, |timed| timed + 1);
    let at_once = if by_clock { timed.min(TIMED) } else { timed };
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
        if over.load(Relaxed) {
            break;
        }
    }
    Ok(part)
}

/// Samples the number of completed operations at the interval `every`, and once more when `over` is set. Returns the
/// differences. With `looks` it stops after that many samples.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::contender::PapayaMap;

    #[test]
    fn a_phase_stops_on_request() {
        let plan = PhasePlan {
            what: "for ever",
            threads: 2,
            until: PhaseEnd::Done(1 << 50),
            timed_one_in: 0,
            sampling: None,
        };
        let mut told = 0;
        let watch: ProgressFn<'_> = &mut |step| {
            told += 1;
            step.done == 0
        };
        let stopped = phase(&PapayaMap::default(), plan, watch, |_| {
            |session: &mut dyn IndexSession, n| Ok(usize::from(session.get(n)?.is_some()))
        });
        assert!(matches!(stopped, Err(Error::Stopped)));
        assert!(told >= 1);
    }
}
