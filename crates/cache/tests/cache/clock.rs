//! Expiry of items when the machine's clock is set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_cache::{Cache, CacheSession, Config};
use farbank_pm::media::Mapped;
use farbank_store::clock::STEP_HELD_MS;
use farbank_store::{Ops, ReadView, Session, Value};

const MIB: u64 = 1 << 20;
const NOW_MS: u64 = 1_700_000_000_000;
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// The machine's two clocks.
#[derive(Clone)]
struct Machine {
    wall: Arc<AtomicU64>,
    uptime: Arc<AtomicU64>,
}

impl Machine {
    fn new(wall_ms: u64) -> Machine {
        Machine {
            wall: Arc::new(AtomicU64::new(wall_ms)),
            uptime: Arc::default(),
        }
    }

    fn pass(&self, ms: u64) {
        self.wall.fetch_add(ms, Relaxed);
        self.uptime.fetch_add(ms, Relaxed);
    }

    fn config(&self) -> Config {
        let (wall, uptime) = (Arc::clone(&self.wall), Arc::clone(&self.uptime));
        Config {
            clock: Arc::new(move || wall.load(Relaxed)),
            uptime: Arc::new(move || uptime.load(Relaxed)),
            background_maintenance: false,
            ..Config::default()
        }
    }
}

fn put(door: &mut CacheSession<Mapped>, name: &[u8], expires_ms: u64) {
    let value = Value {
        bytes: b"v",
        expires_ms,
        ..Value::default()
    };
    let key = farbank_store::Key { db: 0, bytes: name };
    door.put_durable(key, value).expect("room");
}

fn is_there(door: &mut CacheSession<Mapped>, name: &[u8]) -> bool {
    let key = farbank_store::Key { db: 0, bytes: name };
    let mut out = Vec::new();
    door.get(key, ReadView::Durable, &mut out, &mut |_, _| true)
        .expect("a read")
}

/// Checks that the cache follows the wall clock, that an item expires in time, and that `shown` stays absent.
fn later_expiries_fire(cache: &Cache<Mapped>, machine: &Machine) {
    let mut door = cache.new_session();
    assert_eq!(door.now_ms(), machine.wall.load(Relaxed));
    assert!(!is_there(&mut door, b"shown"));
    let soon = door.now_ms() + 1_000;
    put(&mut door, b"n", soon);
    assert!(is_there(&mut door, b"n"));
    machine.pass(1_000);
    assert!(!is_there(&mut door, b"n"));
    assert!(!is_there(&mut door, b"shown"));
}

#[test]
fn an_item_seen_as_expired_stays_absent_after_a_restart_and_later_items_expire_in_time() {
    let machine = Machine::new(NOW_MS + YEAR_MS);
    let medium = Mapped::anonymous(8 * MIB).expect("memory");
    let mut cache = Cache::create(medium, MIB, machine.config()).expect("a cache");
    put(&mut cache.new_session(), b"shown", NOW_MS + 3_600_000);
    assert!(!is_there(&mut cache.new_session(), b"shown"));
    machine.wall.store(NOW_MS, Relaxed);
    for _ in 0..3 {
        let medium = cache.close().expect("a close").expect("the only one");
        cache = Cache::open(medium, machine.config()).expect("it opens");
        later_expiries_fire(&cache, &machine);
    }
}

#[test]
fn a_clock_that_is_a_year_ahead_for_two_seconds_changes_no_expiry() {
    let machine = Machine::new(NOW_MS);
    let medium = Mapped::anonymous(8 * MIB).expect("memory");
    let mut cache = Cache::create(medium, MIB, machine.config()).expect("a cache");
    put(&mut cache.new_session(), b"minute", NOW_MS + 60_000);
    put(&mut cache.new_session(), b"shown", NOW_MS);
    machine.wall.fetch_add(YEAR_MS, Relaxed);
    cache.tidy().expect("the medium holds");
    machine.pass(2_000);
    assert!(is_there(&mut cache.new_session(), b"minute"));
    machine.wall.fetch_sub(YEAR_MS, Relaxed);
    for clean in [false, true] {
        later_expiries_fire(&cache, &machine);
        assert!(is_there(&mut cache.new_session(), b"minute"));
        let medium = match clean {
            true => cache.close().expect("a close"),
            false => cache.into_medium(),
        };
        let medium = medium.expect("the only one");
        cache = Cache::open(medium, machine.config()).expect("it opens");
    }
    later_expiries_fire(&cache, &machine);
}

#[test]
fn a_clock_that_stays_behind_is_followed_and_expired_items_stay_absent() {
    for behind in [3_000 + STEP_HELD_MS, YEAR_MS] {
        let machine = Machine::new(NOW_MS);
        let medium = Mapped::anonymous(8 * MIB).expect("memory");
        let mut cache = Cache::create(medium, MIB, machine.config()).expect("a cache");
        put(&mut cache.new_session(), b"shown", NOW_MS);
        assert!(!is_there(&mut cache.new_session(), b"shown"));
        machine.wall.fetch_sub(behind, Relaxed);
        cache.tidy().expect("the medium holds");
        machine.pass(STEP_HELD_MS);
        cache.tidy().expect("the medium holds");
        later_expiries_fire(&cache, &machine);
        let medium = cache.into_medium().expect("the only one");
        cache = Cache::open(medium, machine.config()).expect("it opens");
        later_expiries_fire(&cache, &machine);
    }
}
