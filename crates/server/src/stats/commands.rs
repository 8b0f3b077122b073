//! Calls and times of each command, for `INFO commandstats`, `errorstats` and `latencystats`.
//!
//! ```text
//!   request ─▶ CommandTimer: pending ──clock reading──▶ CommandCounters of this thread ─┐
//!   request ─▶ pending                                                                  ├─▶ sums (INFO)
//!                                        ... of other threads ──────────────────────────┘
//! ```
//!
//! A clock reading costs as much as a tenth of a short request. So the clock is not read for each request: the time
//! between two readings is divided equally among the requests since the first one. The clock is read before and after
//! each request that is not short, so that its time is not attributed to other commands.
//!
//! # Invariants
//! SRV-STATS-1  Only its thread writes a [`CommandCounters`], except for its errors. A write is a load and a store,
//!     without a locked instruction, and no other thread writes that cache line.
//! SRV-STATS-2  A reset raises the generation. Each thread clears its counters when it next counts. Until then, sums
//!     leave the thread out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use super::histogram::{Durations, Histogram, add};
use crate::lock::lock;

/// Numbers of commands are lower than this. Number 0 is no command.
pub(crate) const COMMAND_NUMBERS: usize = 640;
/// Most nanoseconds that a short request before a large one is assumed to take.
const SHORT_NS: u64 = 2000;
/// Most requests that share a time.
pub(crate) const PENDING: usize = 16;
/// Most different error codes that are counted; further ones count as [`OTHER_ERRORS`].
const ERROR_CODES: usize = 128;
const OTHER_ERRORS: &str = "ERRORSTATS_OVERFLOW";
/// Most bytes of an error code.
const ERROR_CODE_BYTES: usize = 64;

/// How calls are counted.
#[derive(Clone, Copy)]
pub(crate) struct CountRules {
    /// Number of resets so far.
    pub(crate) generation: u64,
    /// Whether the distribution of times is kept (`latency-tracking`).
    pub(crate) keeps_times: bool,
}

/// Figures of one command on one thread. Each is on cache lines of its own.
#[derive(Default)]
#[repr(align(64))]
struct CommandCells {
    calls: AtomicU64,
    ns: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    times: OnceLock<Box<Histogram>>,
}

/// The figures of all commands on one thread.
pub(crate) struct CommandCounters {
    generation: AtomicU64,
    cells: Box<[CommandCells]>,
    /// Error replies by code.
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Default for CommandCounters {
    fn default() -> CommandCounters {
        CommandCounters {
            generation: AtomicU64::new(0),
            cells: (0..COMMAND_NUMBERS)
                .map(|_| CommandCells::default())
                .collect(),
            errors: Mutex::default(),
        }
    }
}

impl CommandCounters {
    /// Counts `calls` calls of a command that took `ns` nanoseconds together.
    #[inline]
    fn count_calls(&self, number: u16, calls: u64, ns: u64, keeps_times: bool) {
        if number == 0 || calls == 0 {
            return;
        }
        let cells = &self.cells[usize::from(number)];
        add(&cells.calls, calls);
        add(&cells.ns, ns);
        if keeps_times {
            let times = cells.times.get_or_init(Box::default);
            times.record(ns / calls, calls);
        }
    }

    /// Clears all figures if they are of an earlier generation (SRV-STATS-2).
    #[inline]
    fn catch_up(&self, generation: u64) {
        if self.generation.load(Ordering::Relaxed) != generation {
            self.clear(generation);
        }
    }

    #[cold]
    fn clear(&self, generation: u64) {
        for cells in &self.cells {
            for counter in [&cells.calls, &cells.ns, &cells.rejected, &cells.failed] {
                counter.store(0, Ordering::Relaxed);
            }
            if let Some(times) = cells.times.get() {
                times.clear();
            }
        }
        lock(&self.errors).clear();
        self.generation.store(generation, Ordering::Release);
    }

    /// Counts a request that was refused before its execution.
    #[cold]
    pub(crate) fn count_rejected(&self, number: u16, generation: u64) {
        self.catch_up(generation);
        add(&self.cells[usize::from(number)].rejected, 1);
    }

    /// Counts a request whose execution has failed.
    #[cold]
    pub(crate) fn count_failed(&self, number: u16, generation: u64) {
        self.catch_up(generation);
        add(&self.cells[usize::from(number)].failed, 1);
    }

    /// Counts an error reply with this text, without its `-`.
    #[cold]
    pub(crate) fn count_error(&self, text: &[u8], generation: u64) {
        self.catch_up(generation);
        let code = text.split(|byte| byte.is_ascii_whitespace()).next();
        let code = code.unwrap_or_default();
        let code = String::from_utf8_lossy(&code[..code.len().min(ERROR_CODE_BYTES)]);
        // As in Redis, so that a line of INFO can be parsed.
        let code = code
            .replace([':', ',', '='], "_")
            .replace(char::is_control, "_");
        let mut errors = lock(&self.errors);
        let is_known = errors.contains_key(&code) || errors.len() < ERROR_CODES;
        let code = if is_known { code } else { OTHER_ERRORS.into() };
        *errors.entry(code).or_default() += 1;
    }
}

/// Calls inside a request: commands of a transaction or of a script.
#[derive(Clone, Copy, Debug)]
struct InnerCalls {
    number: u16,
    calls: u64,
    ns: u64,
    /// Calls whose time is not known yet.
    untimed: u64,
}

/// Requests of one thread whose time is not counted yet.
#[derive(Default)]
pub(crate) struct CommandTimer {
    /// When the first pending request began.
    since: Option<Instant>,
    pending: [u16; PENDING],
    len: usize,
    inner: Vec<InnerCalls>,
}

/// Inner calls at some moment, to return to when a transaction or a script runs again.
#[derive(Default)]
pub(crate) struct InnerMark(Vec<InnerCalls>);

impl CommandTimer {
    /// Starts the time of the next request at `now`. No request is pending.
    pub(crate) fn start(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Whether a request is pending.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.len > 0
    }

    /// Adds a request that was executed. Returns the number of pending requests. The caller settles them when they are
    /// [`PENDING`].
    #[inline]
    pub(crate) fn note(&mut self, number: u16) -> usize {
        self.pending[self.len % PENDING] = number;
        self.len += 1;
        self.len
    }

    /// Counts the pending requests, which have ended at `now`. Returns the nanoseconds of the last one. `is_large`: it
    /// took most of the time.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        now: Instant,
        is_large: bool,
        counters: &CommandCounters,
        CountRules {
            generation,
            keeps_times,
        }: CountRules,
    ) -> u64 {
        counters.catch_up(generation);
        let since = self.since.replace(now).unwrap_or(now);
        let ns = u64::try_from(now.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX);
        let pending = &self.pending[..self.len.min(PENDING)];
        let mut last = ns / pending.len().max(1) as u64;
        match pending {
            [earlier @ .., large] if is_large && !earlier.is_empty() => {
                let share = last.min(SHORT_NS);
                last = ns - share * earlier.len() as u64;
                for &number in earlier {
                    counters.count_calls(number, 1, share, keeps_times);
                }
                counters.count_calls(*large, 1, last, keeps_times);
            }
            [first, rest @ ..] if rest.iter().all(|number| number == first) => {
                counters.count_calls(*first, pending.len() as u64, ns, keeps_times);
            }
            mixed => {
                for &number in mixed {
                    counters.count_calls(number, 1, last, keeps_times);
                }
            }
        }
        self.len = 0;
        if !self.inner.is_empty() {
            self.settle_inner(ns, counters, keeps_times);
        }
        last
    }

    /// Forgets the pending requests.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[cold]
    fn settle_inner(&mut self, ns: u64, counters: &CommandCounters, keeps_times: bool) {
        self.time_untimed(ns);
        for inner in self.inner.drain(..) {
            counters.count_calls(inner.number, inner.calls, inner.ns, keeps_times);
        }
    }

    /// Counts an inner call. Without `ns`, it gets its share of the next [`CommandTimer::time_untimed`].
    pub(crate) fn note_inner(&mut self, number: u16, ns: Option<u64>) {
        let known = self.inner.iter().position(|inner| inner.number == number);
        let at = known.unwrap_or_else(|| {
            self.inner.push(InnerCalls {
                number,
                calls: 0,
                ns: 0,
                untimed: 0,
            });
            self.inner.len() - 1
        });
        let inner = &mut self.inner[at];
        inner.calls += 1;
        inner.ns += ns.unwrap_or(0);
        inner.untimed += u64::from(ns.is_none());
    }

    /// Divides `ns` among the inner calls whose time is not known.
    pub(crate) fn time_untimed(&mut self, ns: u64) {
        let untimed: u64 = self.inner.iter().map(|inner| inner.untimed).sum();
        if untimed > 0 {
            for inner in &mut self.inner {
                let calls = std::mem::take(&mut inner.untimed);
                inner.ns += (u128::from(ns) * u128::from(calls) / u128::from(untimed)) as u64;
            }
        }
    }

    /// The inner calls so far.
    pub(crate) fn inner(&self) -> InnerMark {
        InnerMark(self.inner.clone())
    }

    /// Forgets the inner calls since `mark`, which had no effect.
    pub(crate) fn restore_inner(&mut self, mark: &InnerMark) {
        self.inner.clone_from(&mark.0);
    }

    /// Forgets all inner calls of a request that will be executed again.
    #[cold]
    pub(crate) fn forget_inner(&mut self) {
        self.inner.clear();
    }
}

/// Figures of one command over all threads.
#[derive(Default)]
pub(crate) struct CommandFigures {
    pub(crate) calls: u64,
    pub(crate) ns: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
}

/// The threads whose counters are of `generation`.
fn current<'a>(
    threads: impl Iterator<Item = &'a CommandCounters>,
    generation: u64,
) -> impl Iterator<Item = &'a CommandCounters> {
    threads.filter(move |counters| counters.generation.load(Ordering::Acquire) == generation)
}

/// Sums the figures of the command with this number.
pub(crate) fn figures<'a>(
    threads: impl Iterator<Item = &'a CommandCounters>,
    generation: u64,
    number: u16,
) -> CommandFigures {
    let mut sum = CommandFigures::default();
    for counters in current(threads, generation) {
        let cells = &counters.cells[usize::from(number)];
        sum.calls += cells.calls.load(Ordering::Relaxed);
        sum.ns += cells.ns.load(Ordering::Relaxed);
        sum.rejected += cells.rejected.load(Ordering::Relaxed);
        sum.failed += cells.failed.load(Ordering::Relaxed);
    }
    sum
}

/// Sums the times of the command with this number; `None` if it was not called.
pub(crate) fn times<'a>(
    threads: impl Iterator<Item = &'a CommandCounters>,
    generation: u64,
    number: u16,
) -> Option<Durations> {
    let mut sum: Option<Durations> = None;
    for counters in current(threads, generation) {
        if let Some(times) = counters.cells[usize::from(number)].times.get() {
            sum.get_or_insert_default().add(times);
        }
    }
    sum.filter(|sum| sum.count() > 0)
}

/// Sums the error replies by code.
pub(crate) fn errors<'a>(
    threads: impl Iterator<Item = &'a CommandCounters>,
    generation: u64,
) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for counters in current(threads, generation) {
        for (code, count) in lock(&counters.errors).iter() {
            *sum.entry(code.clone()).or_default() += count;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEPT: CountRules = CountRules {
        generation: 0,
        keeps_times: true,
    };

    fn calls_and_ns(counters: &CommandCounters, generation: u64, number: u16) -> (u64, u64) {
        let sum = figures(std::iter::once(counters), generation, number);
        (sum.calls, sum.ns)
    }

    #[test]
    fn the_time_between_two_clock_readings_is_divided_among_the_requests() {
        let (counters, mut timer) = (CommandCounters::default(), CommandTimer::default());
        let start = Instant::now();
        timer.start(start);
        let pending = [1, 1, 2, 1].map(|number| timer.note(number));
        assert_eq!(pending, [1, 2, 3, 4]);
        let share = timer.settle(start + Duration::from_nanos(4000), false, &counters, KEPT);
        assert_eq!(share, 1000);
        assert_eq!(calls_and_ns(&counters, 0, 1), (3, 3000));
        assert_eq!(calls_and_ns(&counters, 0, 2), (1, 1000));
        timer.note(1);
        timer.note(3);
        let large = timer.settle(start + Duration::from_nanos(104_000), true, &counters, KEPT);
        assert_eq!(large, 98_000);
        assert_eq!(calls_and_ns(&counters, 0, 1), (4, 5000));
    }

    #[test]
    fn calls_inside_a_request_share_its_time_and_may_be_forgotten() {
        let (counters, mut timer) = (CommandCounters::default(), CommandTimer::default());
        let start = Instant::now();
        timer.start(start);
        timer.note_inner(3, Some(100));
        let mark = timer.inner();
        timer.note_inner(4, None);
        timer.restore_inner(&mark);
        timer.note_inner(4, None);
        timer.note_inner(5, None);
        timer.note(9);
        timer.settle(start + Duration::from_nanos(2000), false, &counters, KEPT);
        assert_eq!(calls_and_ns(&counters, 0, 3), (1, 100));
        assert_eq!(calls_and_ns(&counters, 0, 4), (1, 1000));
        assert_eq!(calls_and_ns(&counters, 0, 9), (1, 2000));
    }

    #[test]
    fn a_reset_leaves_a_thread_out_until_it_counts_again() {
        let counters = CommandCounters::default();
        counters.count_rejected(1, 0);
        counters.count_error(b"ERR no", 0);
        assert_eq!(figures(std::iter::once(&counters), 0, 1).rejected, 1);
        assert_eq!(figures(std::iter::once(&counters), 1, 1).rejected, 0);
        counters.count_failed(2, 1);
        assert_eq!(figures(std::iter::once(&counters), 1, 1).rejected, 0);
        assert_eq!(figures(std::iter::once(&counters), 1, 2).failed, 1);
        assert!(errors(std::iter::once(&counters), 1).is_empty());
    }

    #[test]
    fn times_are_kept_only_while_they_are_wanted() {
        let (counters, mut timer) = (CommandCounters::default(), CommandTimer::default());
        let start = Instant::now();
        timer.start(start);
        for (keeps_times, kept) in [(false, None), (true, Some(1)), (false, Some(1))] {
            timer.note(1);
            let rules = CountRules {
                keeps_times,
                ..KEPT
            };
            timer.settle(start + Duration::from_micros(1), false, &counters, rules);
            let times = times(std::iter::once(&counters), 0, 1);
            assert_eq!(times.map(|times| times.count()), kept);
        }
        assert_eq!(calls_and_ns(&counters, 0, 1).0, 3);
    }

    #[test]
    fn invented_error_codes_do_not_grow_without_a_limit() {
        let counters = CommandCounters::default();
        for number in 0..1000 {
            counters.count_error(format!("CODE{number} text").as_bytes(), 0);
        }
        counters.count_error(b"A:B,C=D x", 0);
        let errors = errors(std::iter::once(&counters), 0);
        assert_eq!(errors.len(), ERROR_CODES + 1);
        assert_eq!(errors[OTHER_ERRORS], 1000 + 1 - ERROR_CODES as u64);
    }
}
