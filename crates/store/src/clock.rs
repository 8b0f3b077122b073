//! The store's clock: the time that expiries are compared with.
//!
//! ```text
//!   wall clock of the machine ──▶ base           adopted at open, and when it has differed for a minute
//!   store's clock               = base + uptime  so a step of the wall clock does not move it
//!
//!   expired:   expires ≤ store's clock
//!         or   expires ≤ a setback's time, and the record is no newer than the setback
//! ```
//!
//! A wall clock can be wrong by years for some seconds. While a pool is open, time is measured by the machine's
//! uptime, so such a step has no effect. A difference that lasts [`STEP_HELD_MS`] is taken for a correction, and the
//! store's clock follows it. An open adopts the wall clock as it is.
//!
//! When the store's clock is set back, values that were shown as expired must stay expired. A *setback* records
//! which: it holds the latest time at which a value was found expired, and the highest version assigned by then.
//! Values written later are compared with the new time only. A setback is dropped once the clock has passed it, or
//! when a later setback covers it. Up to [`SETBACKS_MAX`] setbacks are kept. When there is no room for another, the
//! store's clock is not set back until it has passed one of them.
//!
//! # Invariants
//! STORE-CLOCK-1  A setback is durable before the clock is set back.
//! STORE-CLOCK-2  The result that a value has expired counts only if the clock was not changed meanwhile. So a
//!                setback includes every time at which a value was found expired before it.
//! STORE-CLOCK-3  The clock is changed, and times are written to the medium, under the same lock. So a time from
//!                before a setback is never written after it.

use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use farbank_pm::sync::{Arc, Mutex, unpoisoned};
use rustix::time::{ClockId, clock_gettime};

/// A function that returns a time in milliseconds.
pub type ClockFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Number of setbacks that are kept at a time.
pub const SETBACKS_MAX: usize = 8;
/// How long, in milliseconds, the machine's clock must differ from the store's before the store adopts its time.
pub const STEP_HELD_MS: u64 = 60_000;
/// Largest difference in milliseconds that is ignored: two clocks cannot be read at the same moment.
const TOLERANCE_MS: u64 = 10;

/// A setback of the clock: values of versions up to `version_max` that expire by `clock_ms` have expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setback {
    /// Latest time at which a value was found expired, in milliseconds since 1970; 0: no setback.
    pub clock_ms: u64,
    /// Highest version assigned by then.
    pub version_max: u64,
}

/// All setbacks, the one with the latest time first.
pub type Setbacks = [Setback; SETBACKS_MAX];

/// The store's clock, shared by all threads.
pub struct StoreClock {
    wall: ClockFn,
    uptime: ClockFn,
    held_ms: u64,
    /// The store's time at uptime 0.
    base: AtomicU64,
    /// Version counter of changes. Odd while base and setbacks change.
    epoch: AtomicU64,
    /// Latest time of all setbacks; 0: there is none.
    setback_max_ms: AtomicU64,
    setbacks: [(AtomicU64, AtomicU64); SETBACKS_MAX],
    /// Latest time at which a value was found expired.
    acted_ms: AtomicU64,
    /// Latest such time that is durable.
    recorded_ms: AtomicU64,
    /// Current difference between the wall clock and the store's clock: the uptime at which it was first seen, and by
    /// how many milliseconds the wall clock is ahead.
    difference: Mutex<Option<(u64, i64)>>,
    changing: Mutex<()>,
}

/// Direction in which the wall clock has differed for long enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockShift {
    /// Later than the store's clock.
    Ahead,
    /// Earlier than the store's clock.
    Behind,
}

impl StoreClock {
    /// Creates a clock that starts at the machine's time, but not before `recorded_ms`, the latest recorded time at
    /// which a value was found expired. `setbacks` are those that were in force. A step of the wall clock is adopted
    /// after `held_ms`.
    #[must_use]
    pub fn new(
        (wall, uptime): (ClockFn, ClockFn),
        held_ms: u64,
        recorded_ms: u64,
        setbacks: &Setbacks,
    ) -> StoreClock {
        let base = wall().max(recorded_ms).wrapping_sub(uptime());
        let clock = StoreClock {
            wall,
            uptime,
            held_ms,
            base: AtomicU64::new(base),
            epoch: AtomicU64::new(0),
            setback_max_ms: AtomicU64::new(0),
            setbacks: Default::default(),
            acted_ms: AtomicU64::new(recorded_ms),
            recorded_ms: AtomicU64::new(recorded_ms),
            difference: Mutex::default(),
            changing: Mutex::default(),
        };
        clock.keep(setbacks);
        clock
    }

    /// Returns the store's time, in milliseconds since 1970.
    #[inline]
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.uptime)().wrapping_add(self.base.load(Relaxed))
    }

    /// Returns the milliseconds of the uptime clock, which no step of the wall clock moves.
    #[must_use]
    pub fn uptime_ms(&self) -> u64 {
        (self.uptime)()
    }

    /// Returns whether a value of `version` that expires at `expires_ms` (0: never) has expired. Before this first
    /// returns true for the value, it calls `record`, which may make the time durable with [`StoreClock::record`].
    #[inline]
    pub fn has_expired(&self, expires_ms: u64, version: u64, record: impl Fn()) -> bool {
        expires_ms != 0
            && (expires_ms <= self.recorded_ms.load(Relaxed)
                || self.is_set_back(expires_ms, version)
                || expires_ms <= self.now_ms() && self.act(expires_ms, version, record))
    }

    #[cold]
    fn act(&self, expires_ms: u64, version: u64, record: impl Fn()) -> bool {
        loop {
            let epoch = self.stable_epoch();
            let now_ms = self.now_ms();
            if expires_ms > now_ms {
                return self.is_set_back(expires_ms, version);
            }
            self.acted_ms.fetch_max(now_ms, SeqCst);
            record();
            if self.epoch.load(SeqCst) == epoch {
                return true; // STORE-CLOCK-2
            }
        }
    }

    fn stable_epoch(&self) -> u64 {
        loop {
            let epoch = self.epoch.load(SeqCst);
            if epoch.is_multiple_of(2) {
                return epoch;
            }
            drop(unpoisoned(self.changing.lock()));
        }
    }

    /// Returns whether a value of `version` that expires at `expires_ms` had expired before the clock was set back.
    #[inline]
    #[must_use]
    pub fn is_set_back(&self, expires_ms: u64, version: u64) -> bool {
        expires_ms != 0
            && expires_ms <= self.setback_max_ms.load(Acquire)
            && self.is_listed(expires_ms, version)
    }

    #[cold]
    fn is_listed(&self, expires_ms: u64, version: u64) -> bool {
        loop {
            let epoch = self.stable_epoch();
            let mut all = self.setbacks().into_iter();
            let listed = all.any(|s| expires_ms <= s.clock_ms && version <= s.version_max);
            if self.epoch.load(SeqCst) == epoch {
                return listed;
            }
        }
    }

    /// Returns all setbacks.
    #[must_use]
    pub fn setbacks(&self) -> Setbacks {
        let load = |at: usize| Setback {
            clock_ms: self.setbacks[at].0.load(SeqCst),
            version_max: self.setbacks[at].1.load(SeqCst),
        };
        std::array::from_fn(load)
    }

    fn keep(&self, setbacks: &Setbacks) {
        for ((clock_ms, version_max), setback) in self.setbacks.iter().zip(setbacks) {
            clock_ms.store(setback.clock_ms, SeqCst);
            version_max.store(setback.version_max, SeqCst);
        }
        let furthest = setbacks.iter().map(|s| s.clock_ms).max().unwrap_or(0);
        self.setback_max_ms.store(furthest, SeqCst);
    }

    /// Records the current time as one at which a value was found expired.
    pub fn act_on_time(&self) {
        self.acted_ms.fetch_max(self.now_ms(), SeqCst);
    }

    /// Calls `write_down` with the latest time at which a value was found expired. `write_down` must make it durable
    /// before it returns `Ok`.
    pub fn record<E>(&self, write_down: impl FnOnce(u64) -> Result<(), E>) -> Result<(), E> {
        let _changing = unpoisoned(self.changing.lock()); // STORE-CLOCK-3
        let acted_ms = self.acted_ms.load(SeqCst).min(self.now_ms());
        write_down(acted_ms)?;
        self.recorded_ms.fetch_max(acted_ms, Relaxed);
        Ok(())
    }

    /// Returns the direction of the wall clock's difference if it has been the same for long enough to be adopted.
    /// Must be called periodically.
    pub fn shift(&self) -> Option<ClockShift> {
        let before = (self.uptime)();
        let wall = (self.wall)();
        let uptime = (self.uptime)();
        if uptime.wrapping_sub(before) > TOLERANCE_MS {
            return None; // The readings are too far apart.
        }
        let ahead = wall.wrapping_sub(self.now_ms()).cast_signed();
        let mut difference = unpoisoned(self.difference.lock());
        if ahead.unsigned_abs() <= TOLERANCE_MS {
            *difference = None;
            return None;
        }
        match *difference {
            Some((since, was)) if was.abs_diff(ahead) <= 2 * TOLERANCE_MS => {
                let held = uptime.wrapping_sub(since) >= self.held_ms;
                let shift = if ahead > 0 {
                    ClockShift::Ahead
                } else {
                    ClockShift::Behind
                };
                held.then_some(shift)
            }
            _ => {
                *difference = Some((uptime, ahead));
                None
            }
        }
    }

    /// Adopts the time of a wall clock that is ahead.
    pub fn set_ahead(&self) {
        let _changing = unpoisoned(self.changing.lock());
        let wall = (self.wall)();
        if wall > self.now_ms() {
            self.base.store(wall.wrapping_sub((self.uptime)()), Relaxed);
        }
    }

    /// Adopts the time of a wall clock that is behind. `version_max` is the highest version assigned so far; values
    /// written from now on have higher versions. `write_down` makes the setbacks durable, with the latest time at
    /// which a value was found expired. Returns whether the clock was set back.
    pub fn set_back<E>(
        &self,
        version_max: u64,
        write_down: impl FnOnce(&Setbacks, u64) -> Result<(), E>,
    ) -> Result<bool, E> {
        let _changing = unpoisoned(self.changing.lock());
        let wall = (self.wall)();
        let now_ms = self.now_ms();
        if wall.saturating_add(TOLERANCE_MS) >= now_ms {
            return Ok(false);
        }
        self.epoch.fetch_add(1, SeqCst);
        let acted_ms = self.acted_ms.load(SeqCst).min(now_ms);
        let setback = Setback {
            clock_ms: acted_ms,
            version_max,
        };
        let left_ms = acted_ms.min(wall);
        let kept = with(&self.setbacks(), setback, wall);
        let written = match &kept {
            Some(setbacks) => write_down(setbacks, left_ms),
            None => Ok(()),
        };
        if let (Some(setbacks), Ok(())) = (&kept, &written) {
            self.keep(setbacks);
            self.acted_ms.store(left_ms, SeqCst);
            let recorded_ms = self.recorded_ms.load(Relaxed).min(left_ms);
            self.recorded_ms.store(recorded_ms, SeqCst);
            self.base.store(wall.wrapping_sub((self.uptime)()), SeqCst);
        }
        self.epoch.fetch_add(1, SeqCst);
        written.map(|()| kept.is_some())
    }
}

/// Returns the setbacks in force when the clock is set back to `now_ms`; `None` if there is no room for so many.
fn with(setbacks: &Setbacks, new: Setback, now_ms: u64) -> Option<Setbacks> {
    let mut with = Setbacks::default();
    let further = setbacks.iter().filter(|old| old.clock_ms > new.clock_ms);
    let all = further.chain([&new]).filter(|s| s.clock_ms > now_ms);
    for (place, setback) in all.enumerate() {
        *with.get_mut(place)? = *setback;
    }
    Some(with)
}

/// Returns the machine's wall clock, in milliseconds since 1970. A [`ClockFn`].
#[must_use]
pub fn wall_clock_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Returns the milliseconds since the machine started, including suspended time. A [`ClockFn`].
#[must_use]
pub fn uptime_ms() -> u64 {
    let since = clock_gettime(ClockId::Boottime);
    since.tv_sec.cast_unsigned() * 1_000 + since.tv_nsec.cast_unsigned() / 1_000_000
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;

    struct MachineClock {
        wall: Arc<AtomicU64>,
        uptime: Arc<AtomicU64>,
    }

    impl MachineClock {
        fn new() -> MachineClock {
            MachineClock {
                wall: Arc::new(AtomicU64::new(NOW_MS)),
                uptime: Arc::new(AtomicU64::new(5_000)),
            }
        }

        fn clock(&self, recorded_ms: u64) -> StoreClock {
            let of = |ms: &Arc<AtomicU64>| -> ClockFn {
                let ms = Arc::clone(ms);
                Arc::new(move || ms.load(Relaxed))
            };
            let clocks = (of(&self.wall), of(&self.uptime));
            StoreClock::new(clocks, STEP_HELD_MS, recorded_ms, &Setbacks::default())
        }

        fn pass(&self, ms: u64) {
            self.wall.fetch_add(ms, Relaxed);
            self.uptime.fetch_add(ms, Relaxed);
        }

        fn step(&self, ms: i64) {
            let wall = self.wall.load(Relaxed).wrapping_add_signed(ms);
            self.wall.store(wall, Relaxed);
        }
    }

    fn expired(clock: &StoreClock, expires_ms: u64, version: u64) -> bool {
        clock.has_expired(expires_ms, version, || ())
    }

    fn set_back(clock: &StoreClock, version_max: u64) -> bool {
        clock
            .set_back(version_max, |_, _| Ok::<(), ()>(()))
            .unwrap()
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_no_expiry_until_it_has_lasted_a_minute() {
        for step in [3_000, YEAR_MS as i64, -3_000, -(YEAR_MS as i64)] {
            let machine = MachineClock::new();
            let clock = machine.clock(0);
            machine.step(step);
            for second in 0..60 {
                assert_eq!(clock.now_ms(), NOW_MS + second * 1_000, "{step}");
                assert_eq!(clock.shift(), None, "{step} {second}");
                machine.pass(1_000);
            }
            let shift = if step > 0 {
                ClockShift::Ahead
            } else {
                ClockShift::Behind
            };
            assert_eq!(clock.shift(), Some(shift), "{step}");
            match shift {
                ClockShift::Ahead => clock.set_ahead(),
                ClockShift::Behind => assert!(set_back(&clock, 1)),
            }
            assert_eq!(clock.now_ms(), machine.wall.load(Relaxed), "{step}");
            assert_eq!(clock.shift(), None);
        }
    }

    #[test]
    fn a_step_that_is_undone_before_a_minute_is_never_adopted() {
        let machine = MachineClock::new();
        let clock = machine.clock(0);
        for _ in 0..10 {
            for step in [YEAR_MS as i64, -(YEAR_MS as i64)] {
                machine.step(step);
                for _ in 0..50 {
                    assert_eq!(clock.shift(), None);
                    machine.pass(1_000);
                }
            }
        }
        assert_eq!(clock.now_ms(), NOW_MS + 1_000_000);
    }

    #[test]
    fn a_value_seen_expired_stays_expired_after_a_setback_and_later_values_expire_on_time() {
        let machine = MachineClock::new();
        machine.step(YEAR_MS as i64);
        let clock = machine.clock(0);
        let shown = NOW_MS + YEAR_MS - 1;
        assert!(expired(&clock, shown, 7));
        machine.step(-(YEAR_MS as i64));
        assert!(set_back(&clock, 9));
        assert!(expired(&clock, shown, 7) && expired(&clock, NOW_MS, 7));
        assert!(
            !expired(&clock, NOW_MS + YEAR_MS + 1, 7),
            "no reader has seen it expire"
        );
        assert!(!expired(&clock, NOW_MS + 1_000, 10));
        machine.pass(1_000);
        assert!(expired(&clock, NOW_MS + 1_000, 10));
        assert!(!expired(&clock, shown, 10));
    }

    #[test]
    fn nested_setbacks_are_all_kept_until_there_is_no_room() {
        let machine = MachineClock::new();
        machine.step(20 * YEAR_MS as i64);
        let clock = machine.clock(0);
        let mut shown = Vec::new();
        for round in 1..=SETBACKS_MAX as u64 + 2 {
            let now_ms = clock.now_ms();
            assert!(expired(&clock, now_ms, round));
            shown.push((now_ms, round));
            machine.step(-(YEAR_MS as i64));
            assert_eq!(set_back(&clock, round), round <= SETBACKS_MAX as u64);
            for (expires_ms, version) in &shown {
                assert!(expired(&clock, *expires_ms, *version), "{round}");
                let later = *expires_ms > clock.now_ms();
                assert_eq!(!expired(&clock, *expires_ms, 99), later, "{round}");
            }
        }
        // The last setback reaches three years further than the wall clock.
        machine.step(3 * YEAR_MS as i64 + 1_000);
        clock.set_ahead();
        assert!(expired(&clock, clock.now_ms(), 50));
        machine.step(-500);
        assert!(set_back(&clock, 50), "a passed setback is dropped");
    }

    #[test]
    fn a_time_from_before_a_setback_is_not_recorded_after_it() {
        let machine = MachineClock::new();
        let clock = machine.clock(NOW_MS + YEAR_MS);
        assert_eq!(clock.now_ms(), NOW_MS + YEAR_MS);
        assert!(set_back(&clock, 1));
        clock.acted_ms.store(NOW_MS + YEAR_MS, SeqCst); // A slow reader.
        let mut recorded = 0;
        let wrote = clock.record(|ms| {
            recorded = ms;
            Ok::<(), ()>(())
        });
        assert_eq!((wrote, recorded), (Ok(()), NOW_MS));
    }
}
