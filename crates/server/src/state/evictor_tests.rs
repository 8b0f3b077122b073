//! How much one eviction does, counted in keys. The clock of the tests advances only with the work of the store.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use farbank_pm::{Poisoned, Ticket};
use farbank_store::{
    BeforeValue, BeforeValues, ConflictPolicy, DatabaseMap, GroupDecision, Ops, StoredItem, Value,
};

use super::*;
use crate::eviction_policy::POLICIES;

/// Positions of a sample per key.
const STEP: u64 = 1 << 47;
/// Keys of a store: a random position is never behind the last one.
const KEYS: u64 = 1 << 17;
const RECORD_BYTES: u64 = 100;

const META: ValueMeta = ValueMeta {
    value_bytes: 10,
    expires_ms: 0,
    flags: 0,
    kind: 0,
    version: 1,
};

/// Time of the tests, and what the store has done.
#[derive(Default)]
struct Work {
    elapsed_ns: AtomicU64,
    visited: AtomicU64,
    deleted: AtomicU64,
    commits: AtomicU64,
}

impl Work {
    fn now(&self, start: Instant) -> Instant {
        start + Duration::from_nanos(self.elapsed_ns.load(Relaxed))
    }

    fn spend(&self, ns: u64) {
        self.elapsed_ns.fetch_add(ns, Relaxed);
    }
}

/// A store with keys that are numbers. It can only do what an eviction needs.
struct CountedStore<'a> {
    work: &'a Work,
    keys: BTreeSet<u64>,
    /// Keys that samples have visited.
    seen: BTreeSet<u64>,
    /// Number of the only key that expires.
    expiring: u64,
    visit_ns: u64,
    delete_ns: u64,
}

impl<'a> CountedStore<'a> {
    fn new(work: &'a Work) -> CountedStore<'a> {
        CountedStore {
            work,
            keys: (0..KEYS).collect(),
            seen: BTreeSet::new(),
            expiring: u64::MAX,
            visit_ns: 0,
            delete_ns: 0,
        }
    }

    fn meta_of(&self, number: u64) -> ValueMeta {
        ValueMeta {
            expires_ms: u64::from(number == self.expiring),
            ..META
        }
    }
}

fn number_of(key: Key<'_>) -> u64 {
    u64::from_le_bytes(key.bytes.try_into().expect("a key of 8 bytes"))
}

/// Ends a test that calls an operation which no eviction needs.
fn unused() -> ! {
    unreachable!("an eviction called an operation that it does not need")
}

impl Ops for CountedStore<'_> {
    fn get(
        &mut self,
        _: Key<'_>,
        _: ReadView,
        _: &mut Vec<u8>,
        _: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        unused()
    }

    fn meta(&mut self, key: Key<'_>, _: ReadView) -> Result<Option<ValueMeta>, Error> {
        let number = number_of(key);
        let is_present = self.keys.contains(&number);
        Ok(is_present.then(|| self.meta_of(number)))
    }

    fn put(&mut self, _: Key<'_>, _: Value<'_>) -> Result<u64, Error> {
        unused()
    }

    fn delete(&mut self, _: Key<'_>) -> Result<bool, Error> {
        unused()
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let number = number_of(key);
        let meta = self.meta_of(number);
        let bytes = &[0; 10];
        if decide(Some(StoredItem { bytes, meta })) == UpdateDecision::Delete {
            self.work.spend(self.delete_ns);
            self.work.deleted.fetch_add(1, Relaxed);
            self.keys.remove(&number);
        }
        Ok(0)
    }

    fn now_ms(&self) -> u64 {
        0
    }
}

impl Session for CountedStore<'_> {
    fn on_conflict(&mut self, _: ConflictPolicy) {}

    fn get_many(
        &mut self,
        _: &[Key<'_>],
        _: ReadView,
        _: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        unused()
    }

    fn get_many_into(
        &mut self,
        _: &[Key<'_>],
        _: ReadView,
        _: &mut Vec<u8>,
        _: BeforeValues<'_>,
    ) -> Result<(), Error> {
        unused()
    }

    fn group(
        &mut self,
        _: &[Key<'_>],
        _: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        unused()
    }

    fn scan(
        &mut self,
        _: u8,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error> {
        unused()
    }

    fn len(&mut self, _: u8) -> Result<u64, Error> {
        unused()
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        unused()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.work.commits.fetch_add(1, Relaxed);
        Ok(Ticket::DURABLE)
    }

    fn used_bytes(&self) -> u64 {
        self.keys.len() as u64 * RECORD_BYTES
    }

    fn sample(
        &mut self,
        position: u64,
        visits: usize,
        each: &mut dyn FnMut(Key<'_>, &ValueMeta) -> bool,
    ) -> u64 {
        let mut rest = self.keys.range(position.div_ceil(STEP)..);
        for number in rest.by_ref().take(visits) {
            self.work.visited.fetch_add(1, Relaxed);
            self.seen.insert(*number);
            self.work.spend(self.visit_ns);
            let bytes = &number.to_le_bytes();
            let meta = ValueMeta {
                expires_ms: u64::from(*number == self.expiring),
                ..META
            };
            if !each(Key { db: 0, bytes }, &meta) {
                break;
            }
        }
        rest.next().map_or(0, |next| next * STEP)
    }

    fn durable(&mut self, _: Ticket) -> Result<bool, Poisoned> {
        Ok(true)
    }

    fn wait(&mut self, _: Ticket) -> Result<(), Poisoned> {
        Ok(())
    }
}

fn policy(name: &str) -> EvictionPolicy {
    let number = POLICIES.iter().position(|policy| *policy == name);
    EvictionPolicy::numbered(number.expect("a policy") as u64)
}

/// Returns an evictor whose random positions are the same in every run, because counts of visited keys depend on them.
fn evictor() -> Evictor {
    Evictor {
        random: Rng::new(7),
        ..Evictor::default()
    }
}

/// Evicts keys until the store is within `bytes_max`, as a request does.
fn run(
    evictor: &mut Evictor,
    store: &mut CountedStore<'_>,
    name: &str,
    bytes_max: u64,
) -> EvictionOutcome {
    // All tests of a process share the start, so the clock of a test never goes backwards.
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    let work = store.work;
    let clock = AccessClock {
        secs: 0,
        log_factor: 10,
        decay_minutes: 1,
        databases: DatabaseMap::default(),
    };
    let task = EvictionTask {
        policy: policy(name),
        bytes_max,
        samples: 5,
        clock,
        table: None,
        time_max: Duration::from_millis(1),
        now: &|| work.now(start),
    };
    let outcome = evictor.run(store, &task, &mut |_| ());
    outcome.expect("the store has no errors")
}

#[test]
fn a_request_evicts_no_more_keys_than_the_time_allows() {
    for (name, visits_each) in [("allkeys-random", 1), ("allkeys-lru", 5)] {
        let work = Work::default();
        let mut store = CountedStore::new(&work);
        store.delete_ns = 50_000;
        let mut evictor = evictor();
        for request in 1..=3 {
            let outcome = run(&mut evictor, &mut store, name, 0);
            assert_eq!(outcome, EvictionOutcome::OutOfTime, "{name}");
            // A millisecond.
            assert_eq!(work.deleted.load(Relaxed), request * 20, "{name}");
        }
        let visited = work.visited.load(Relaxed);
        let visits = 60 * visits_each;
        // A key that was sampled twice costs another sample.
        assert!(
            (visits..=visits + 25).contains(&visited),
            "{name}: {visited}"
        );
    }
}

#[test]
fn a_request_evicts_no_more_keys_than_it_needs() {
    let work = Work::default();
    let mut store = CountedStore::new(&work);
    let bytes_max = (KEYS - 10) * RECORD_BYTES;
    let outcome = run(&mut evictor(), &mut store, "allkeys-lru", bytes_max);
    assert_eq!(outcome, EvictionOutcome::Within);
    assert_eq!(work.deleted.load(Relaxed), 10);
}

#[test]
fn a_request_that_finds_no_candidate_visits_a_bounded_number_of_keys() {
    let work = Work::default();
    let mut store = CountedStore::new(&work);
    store.visit_ns = 1_000;
    let mut evictor = evictor();
    let outcome = run(&mut evictor, &mut store, "volatile-lru", 0);
    assert_eq!(outcome, EvictionOutcome::NoCandidate);
    // Two samples, with a commit in between. Each makes 4 steps of 256 keys however long they take.
    assert_eq!(work.commits.load(Relaxed), 1);
    assert_eq!(work.visited.load(Relaxed), 2 * 4 * 256);
    // The next search begins nine times as long after this one.
    let visited = work.visited.load(Relaxed);
    work.spend(visited * 1_000 * 9 - 1);
    let outcome = run(&mut evictor, &mut store, "volatile-lru", 0);
    assert_eq!(outcome, EvictionOutcome::NoCandidate);
    assert_eq!(work.visited.load(Relaxed), visited);
    work.spend(1);
    run(&mut evictor, &mut store, "volatile-lru", 0);
    assert_eq!(work.visited.load(Relaxed), 2 * visited);
}

#[test]
fn later_requests_go_on_with_a_search_that_has_found_no_key() {
    let work = Work::default();
    let mut store = CountedStore::new(&work);
    store.visit_ns = 1_000;
    let mut evictor = evictor();
    // Each request visits up to 2,048 keys, and none of them again before all others.
    for _ in 1..KEYS / 2_048 {
        run(&mut evictor, &mut store, "volatile-ttl", 0);
        assert_eq!(store.seen.len() as u64, work.visited.load(Relaxed));
        work.spend(100_000_000);
    }
    store.expiring = 77_777;
    for _ in 0..=KEYS / 2_048 {
        run(&mut evictor, &mut store, "volatile-ttl", 0);
        work.spend(100_000_000);
    }
    assert!(!store.keys.contains(&77_777));
}
