//! Tests of a store's statistics: live bytes and bytes written match the values that were written.

use std::collections::BTreeMap;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::Mapped;
use farbank_store::{GroupDecision, Key, Ops, Store, Value};

const POOL_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;

fn config() -> Config {
    Config {
        cleaning: CleaningMode::Inline,
        ..Config::default()
    }
}

fn store() -> Kv<Mapped> {
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    Kv::create(medium, SEGMENT_BYTES, config()).expect("a fresh store")
}

fn reopen(kv: Kv<Mapped>, clean: bool) -> Kv<Mapped> {
    let medium = match clean {
        true => kv.close().expect("it closes"),
        false => kv.into_medium(),
    };
    Kv::open(medium.expect("no session is left"), config()).expect("it opens")
}

/// A model of the store: the length of each key's value.
#[derive(Default)]
struct Model(BTreeMap<u32, usize>);

impl Model {
    fn put(&mut self, kv: &Kv<Mapped>, key: u32, len: usize) {
        let mut session = kv.session();
        let value = Value {
            bytes: &vec![key as u8; len],
            ..Value::default()
        };
        let bytes = &key.to_le_bytes();
        session.put(Key { db: 0, bytes }, value).expect("room");
        session.commit().expect("a commit");
        self.0.insert(key, len);
    }

    fn delete(&mut self, kv: &Kv<Mapped>, key: u32) {
        let mut session = kv.session();
        let bytes = &key.to_le_bytes();
        session.delete(Key { db: 0, bytes }).expect("room");
        session.commit().expect("a commit");
        self.0.remove(&key);
    }

    /// Checks that the store's live bytes are the bytes of all values, plus `beside` bytes for each value.
    fn check(&self, kv: &Kv<Mapped>, beside: impl Fn(usize) -> usize, when: &str) {
        let values: usize = self.0.values().sum();
        let records: usize = self.0.values().map(|len| len + beside(*len)).sum();
        let live = kv.stats().pool.live_bytes as usize;
        assert!(live >= values, "{when}: {live} of {values}");
        assert_eq!(live, records, "{when}: live bytes");
        kv.verify().expect("it adds up");
    }
}

/// Returns the live bytes beside a value of `len` bytes, measured in a new store.
fn beside(len: usize) -> usize {
    let kv = store();
    Model::default().put(&kv, 1, len);
    let beside = kv.stats().pool.live_bytes as usize - len;
    assert!(beside <= 96 + len / 1_000, "{beside} bytes beside {len}");
    beside
}

#[test]
fn live_bytes_are_those_of_values_of_every_size() {
    let lens = [0, 10, 500, 15_000, 20_000, 80_000, 200_000];
    let each: BTreeMap<usize, usize> = lens.iter().map(|len| (*len, beside(*len))).collect();
    let beside = |len: usize| each[&len];
    let (mut kv, mut model) = (store(), Model::default());
    for round in 0..3 {
        for key in 0..70_u32 {
            model.put(&kv, key, lens[(key as usize + round) % lens.len()]);
        }
        model.check(&kv, beside, "values were replaced");
        for key in (round as u32..70).step_by(5) {
            model.delete(&kv, key);
        }
        model.check(&kv, beside, "keys were deleted");
        while kv.clean().expect("a clean") && kv.stats().writes.segments_cleaned < 200 {}
        model.check(&kv, beside, "records were moved");
        for clean in [false, true] {
            kv = reopen(kv, clean);
            model.check(&kv, beside, "the pool was opened again");
        }
    }
    kv.session().flush_all().expect("a flush");
    Model::default().check(&kv, beside, "all was removed");
    assert_eq!(reopen(kv, false).stats().pool.live_bytes, 0);
}

#[test]
fn live_bytes_include_the_values_that_groups_have_written() {
    let mut kv = store();
    let lens = [10_usize, 500, 30_000, 40_000, 60_000];
    for _ in 0..3 {
        let names: Vec<[u8; 4]> = (0..lens.len() as u32).map(u32::to_le_bytes).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|bytes| Key { db: 0, bytes }).collect();
        let mut write = |ops: &mut dyn Ops| {
            for (key, len) in keys.iter().zip(lens) {
                let value = Value {
                    bytes: &vec![1; len],
                    ..Value::default()
                };
                ops.put(*key, value)?;
            }
            Ok(GroupDecision::Apply)
        };
        let mut session = kv.session();
        session.group(&keys, &mut write).expect("room");
        session.commit().expect("a commit");
        drop(session);
        for clean in [false, true] {
            let (live, values) = (
                kv.stats().pool.live_bytes as usize,
                lens.iter().sum::<usize>(),
            );
            let most = values + 128 * lens.len();
            assert!((values..=most).contains(&live), "{live} of {values}");
            kv.verify().expect("it adds up");
            kv = reopen(kv, clean);
        }
    }
}

#[test]
fn user_bytes_include_large_values() {
    let (kv, mut model) = (store(), Model::default());
    for key in 0..20 {
        model.put(&kv, key, 80_000);
    }
    let written = kv.stats().writes.user_bytes;
    assert!((1_600_000..1_610_000).contains(&written), "{written}");
}
