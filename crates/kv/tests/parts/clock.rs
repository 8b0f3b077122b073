//! Tests of expiries when the machine's clock is set, in both directions, by seconds and by years.

use std::sync::{Arc, Mutex};

use crate::support::{Time, User, kill, reopen};
use farbank_kv::{Config, Kv};
use farbank_pm::media::Mapped;
use farbank_pm::sim::{CrashState, Persistency, Sim};
use farbank_pm::sync::unpoisoned;
use farbank_store::Store;
use farbank_store::clock::STEP_HELD_MS;

const SECONDS_MS: i64 = 3_000;
const YEAR_MS: i64 = 365 * 24 * 3_600_000;
const STEPS_MS: [i64; 4] = [SECONDS_MS, YEAR_MS, -SECONDS_MS, -YEAR_MS];

fn calendar() -> Time {
    let time = Time::new();
    time.set(1_700_000_000_000);
    time
}

fn memory_of(time: &Time) -> Kv<Mapped> {
    let medium = Mapped::anonymous(4 << 20).expect("memory");
    Kv::create(medium, 16 << 10, time.config()).expect("a fresh store")
}

/// Lets a minute pass, with a cleaning step each second, like the background thread.
fn a_minute(time: &Time, kv: &Kv<Mapped>) {
    for _ in 0..=STEP_HELD_MS / 1_000 {
        kv.clean().expect("a clean");
        time.pass(1_000);
    }
    kv.clean().expect("a clean");
}

#[test]
fn an_expired_value_counts_once_whether_it_is_removed_or_replaced() {
    let time = calendar();
    let kv = memory_of(&time);
    let mut user = User::of(&kv);
    let soon = time.now() + 1_000;
    for key in [b"removed", b"replace", b"replac2"] {
        user.set_until(key, b"v", soon);
    }
    time.pass(2_000);
    user.set_until(b"replace", b"w", 0);
    user.set_until(b"replac2", b"w", time.now() + 3_600_000);
    assert_eq!(kv.stats().expired_keys, 2);
    user.set_until(b"replace", b"x", 0);
    // The sweep visits sealed segments.
    for _ in 0..64 {
        user.set_until(b"filler", &[b'x'; 1_000], 0);
    }
    a_minute(&time, &kv);
    assert_eq!(user.get(b"removed"), None);
    assert_eq!(kv.stats().expired_keys, 3);
}

#[test]
fn a_clock_that_is_wrong_for_seconds_moves_no_expiry() {
    for step in STEPS_MS {
        let time = calendar();
        let kv = memory_of(&time);
        let mut user = User::of(&kv);
        let now = time.now();
        user.set_until(b"minute", b"v", now + 60_000);
        time.set(now.wrapping_add_signed(step));
        time.pass(2_000);
        kv.clean().expect("a clean");
        assert!(user.get(b"minute").is_some(), "{step}");
        time.set(now + 2_000);
        let soon = user.0.now_ms() + 1_000;
        assert_eq!(soon, now + 3_000, "{step}");
        user.set_until(b"n", b"v", soon);
        assert!(user.get(b"n").is_some(), "{step}");
        time.pass(1_000);
        assert_eq!(user.get(b"n"), None, "{step}");
        time.pass(57_000);
        assert_eq!(user.get(b"minute"), None, "{step}");
    }
}

#[test]
fn after_a_restart_expired_values_stay_expired_and_later_expiries_take_effect() {
    for (step, clean) in [
        (SECONDS_MS, true),
        (SECONDS_MS, false),
        (YEAR_MS, true),
        (YEAR_MS, false),
    ] {
        let back = |kv, time: &Time| match clean {
            true => reopen(kv, time.config()),
            false => kill(kv, time.config()),
        };
        let time = calendar();
        let now = time.now();
        time.set(now + step.unsigned_abs());
        let mut kv = memory_of(&time);
        let mut user = User::of(&kv);
        let shown = now + step.unsigned_abs() - 1;
        user.set(b"shown", b"older");
        user.set_until(b"shown", b"v", shown);
        user.set_until(b"later", b"v", shown + 10_000);
        assert_eq!(user.get(b"shown"), None);
        drop(user);
        // The machine's clock is corrected.
        time.set(now);
        for _ in 0..3 {
            kv = back(kv, &time);
            let mut user = User::of(&kv);
            assert_eq!(
                user.0.now_ms(),
                time.now(),
                "the open takes the machine's time"
            );
            assert_eq!(user.get(b"shown"), None, "{step} {clean}");
            assert!(user.get(b"later").is_some(), "{step} {clean}");
            kv.clean().expect("a clean");
            assert_eq!(user.0.len(0), Ok(1), "the sweep removes expired values");
            user.set_until(b"n", b"v", time.now() + 1_000);
            user.set_until(b"shown again", b"v", time.now() + 1_000);
            assert!(user.get(b"n").is_some(), "{step} {clean}");
            time.pass(1_000);
            assert_eq!(user.get(b"n"), None, "{step} {clean}");
        }
    }
}

#[test]
fn a_value_that_is_written_again_after_a_setback_lives_until_its_own_expiry() {
    let time = calendar();
    let now = time.now();
    time.set(now + YEAR_MS as u64);
    let kv = memory_of(&time);
    User::of(&kv).set_until(b"k", b"old", now + 5_000);
    assert_eq!(User::of(&kv).get(b"k"), None);
    time.set(now);
    let mut kv = kill(kv, time.config());
    User::of(&kv).set_until(b"k", b"new", now + 5_000);
    for _ in 0..4 {
        assert_eq!(User::of(&kv).get(b"k").as_deref(), Some(&b"new"[..]));
        kv.clean().expect("a clean");
        kv = kill(kv, time.config());
        time.pass(1_000);
    }
    time.pass(1_000);
    assert_eq!(User::of(&kv).get(b"k"), None);
}

#[test]
fn a_clock_that_stays_different_for_a_minute_is_followed() {
    for step in STEPS_MS {
        let time = calendar();
        let mut kv = memory_of(&time);
        let mut user = User::of(&kv);
        let now = time.now();
        user.set_until(b"shown", b"v", now);
        assert_eq!(user.get(b"shown"), None);
        time.set(now.wrapping_add_signed(step));
        a_minute(&time, &kv);
        assert_eq!(user.0.now_ms(), time.now(), "{step}");
        assert_eq!(user.get(b"shown"), None, "{step}");
        // Later writes are compared with the current time.
        user.set_until(b"n", b"v", time.now() + 1_000);
        assert!(user.get(b"n").is_some(), "{step}");
        time.pass(1_000);
        assert_eq!(user.get(b"n"), None, "{step}");
        drop(user);
        kv = kill(kv, time.config());
        assert_eq!(User::of(&kv).get(b"shown"), None, "{step}");
        assert_eq!(User::of(&kv).get(b"n"), None, "{step}");
    }
}

#[test]
fn a_pool_whose_clock_is_ahead_follows_the_machines_clock_after_an_open() {
    // Pools of versions before 0.2 may have a clock that is a year ahead, and no setbacks.
    let time = calendar();
    let now = time.now();
    time.set(now + YEAR_MS as u64);
    let kv = memory_of(&time);
    User::of(&kv).set_until(b"k", b"v", now);
    assert_eq!(User::of(&kv).get(b"k"), None);
    time.set(now);
    let kv = kill(kv, time.config());
    let mut user = User::of(&kv);
    user.set_until(b"n", b"v", user.0.now_ms() + 1_000);
    time.pass(1_001);
    assert_eq!(user.get(b"n"), None);
}

/// The recorded crash points of a medium.
#[derive(Clone, Default)]
struct Points(Arc<Mutex<Vec<CrashState>>>);

impl Points {
    fn of(sim: &Sim) -> Points {
        let points = Points::default();
        let seen = Arc::clone(&points.0);
        sim.observe(Some(Arc::new(move |state| {
            unpoisoned(seen.lock()).push(state);
        })));
        points
    }

    /// Returns the crash points since the last call.
    fn take(&self) -> Vec<CrashState> {
        std::mem::take(&mut *unpoisoned(self.0.lock()))
    }
}

/// Writes a value that is durable when this returns.
fn set_durably(user: &mut User, k: &[u8], expires_ms: u64) {
    user.set_until(k, b"v", expires_ms);
    user.0.len(0).expect("a commit");
}

/// Opens up to 100 crash images of each of `states`, and calls `each` with a session.
fn each_image(
    states: &[CrashState],
    persistency: Persistency,
    time: &Time,
    each: &dyn Fn(&mut User),
) {
    assert!(states.len() > 1, "{persistency}");
    for state in states {
        for cut in state.images(100, 7) {
            let sim = Sim::from_image(state.image(&cut), persistency);
            let kv = Kv::open(sim, alone(time)).expect("it opens");
            let mut user = User(kv.session());
            each(&mut user);
            let soon = user.0.now_ms() + 1;
            user.set_until(b"new", b"v", soon);
            user.0.len(0).expect("a commit");
            assert!(user.get(b"new").is_some(), "{persistency}");
            drop(user);
            kv.verify().expect("it adds up");
        }
    }
}

fn alone(time: &Time) -> Config {
    Config {
        open_threads: 1,
        ..time.config()
    }
}

/// Power is cut at every crash point around a setback, at an open and while the pool is served.
#[test]
fn no_crash_around_a_setback_restores_an_expired_value_or_loses_a_later_one() {
    for persistency in Persistency::ALL {
        let time = calendar();
        let now = time.now();
        time.set(now + YEAR_MS as u64);
        let sim = Sim::new((16 << 12) + 8192, persistency);
        let kv = Kv::create(sim.clone(), 4 << 10, alone(&time)).expect("a store");
        let mut user = User(kv.session());
        set_durably(&mut user, b"shown", now + 1_000_000);
        set_durably(&mut user, b"kept", 0);
        assert_eq!(user.get(b"shown"), None);
        drop(user);
        kv.clean().expect("a clean"); // Writes the clock to the superblock, which a server does each second.
        drop(kv);
        let sim = sim.crash_state().killed();
        // An open, with the clock set back by a year.
        time.set(now);
        let points = Points::of(&sim);
        let kv = Kv::open(sim, alone(&time)).expect("it opens");
        each_image(&points.take(), persistency, &time, &|user| {
            assert_eq!(user.get(b"shown"), None, "{persistency}");
            assert!(user.get(b"kept").is_some(), "{persistency}");
        });
        let mut user = User(kv.session());
        set_durably(&mut user, b"later", now + 900_000);
        set_durably(&mut user, b"soon", now + 200);
        time.pass(200);
        assert_eq!(user.get(b"soon"), None);
        kv.clean().expect("a clean");
        // Then by some seconds, while it is served.
        time.set(time.now() - 100_000);
        points.take();
        kv.clean().expect("a clean");
        time.pass(STEP_HELD_MS);
        kv.clean().expect("a clean");
        assert_eq!(user.0.now_ms(), time.now());
        set_durably(&mut user, b"last", now + 150);
        each_image(&points.take(), persistency, &time, &|user| {
            assert_eq!(user.get(b"shown"), None, "{persistency}");
            assert_eq!(user.get(b"soon"), None, "{persistency}");
            assert!(user.get(b"kept").is_some(), "{persistency}");
            assert!(user.get(b"later").is_some(), "{persistency}");
        });
        assert!(user.get(b"last").is_some(), "{persistency}");
    }
}

/// Sequence numbers that were assigned before a setback and lost in a power cut are not assigned again.
#[test]
fn a_value_written_after_a_crash_does_not_count_as_written_before_the_setback() {
    let time = calendar();
    let now = time.now();
    time.set(now + YEAR_MS as u64);
    let sim = Sim::new((16 << 12) + 8192, Persistency::Adr);
    let kv = Kv::create(sim.clone(), 4 << 10, alone(&time)).expect("a store");
    let mut user = User(kv.session());
    set_durably(&mut user, b"shown", now + 1_000_000);
    assert_eq!(user.get(b"shown"), None);
    for n in 0..100_u32 {
        let value = farbank_store::Value::default();
        let bytes = &n.to_le_bytes();
        user.0
            .put(farbank_store::Key { db: 0, bytes }, value)
            .expect("room");
    }
    time.set(now);
    kv.clean().expect("a clean");
    time.pass(STEP_HELD_MS);
    kv.clean().expect("a clean");
    assert_eq!(user.0.now_ms(), time.now());
    let state = sim.crash_state();
    let cut = state.images(1, 1).next().expect("an image");
    let sim = Sim::from_image(state.image(&cut), Persistency::Adr);
    let kv = Kv::open(sim, alone(&time)).expect("it opens");
    let mut user = User(kv.session());
    assert_eq!(user.get(b"shown"), None);
    set_durably(&mut user, b"later", now + 900_000);
    assert!(user.get(b"later").is_some());
}
