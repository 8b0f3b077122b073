//! Tests of segment maps: an open after a kill reads live records only, and finds the same as a full scan.

use std::collections::BTreeMap;

use farbank_kv::Kv;
use farbank_pm::media::Mapped;
use farbank_pm::pool::{Pool, PoolIdentity, PoolLayout};
use farbank_pm::{Medium, Off, PersistCtx};
use farbank_store::Store;

use crate::support::{Time, User, kill, reopen};

const SEGMENT_BYTES: u64 = 16 << 10;
const POOL_BYTES: u64 = 4 << 20;
/// Offset of the first segment.
const FIRST: u64 = 16 << 10;
/// Offset of the map in a segment.
const MAP_AT: u64 = SEGMENT_BYTES - 64 - MAP_BYTES;
/// Bytes of a map: 32, plus a bit for each 32 bytes of the segment, in whole lines.
const MAP_BYTES: u64 = 128;
const KEYS: u32 = 2_000;
const ROUNDS: u32 = 20_000;

type Contents = BTreeMap<u32, Vec<u8>>;

/// Overwrites and deletes random keys until all segments hold many dead records.
fn age(kv: &Kv<Mapped>, expected: &mut Contents) {
    let mut user = User::of(kv);
    let mut drawn = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..ROUNDS {
        drawn = drawn.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let key = (drawn >> 40) as u32 % KEYS;
        if round % 16 == 0 {
            user.delete(&key.to_le_bytes());
            expected.remove(&key);
        } else {
            let value = vec![round as u8; 100 + key as usize % 100];
            user.set(&key.to_le_bytes(), &value);
            expected.insert(key, value);
        }
    }
}

fn aged() -> (Kv<Mapped>, Contents) {
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    aged_in(Kv::create(medium, SEGMENT_BYTES, Time::new().config()).expect("a fresh store"))
}

fn aged_in(kv: Kv<Mapped>) -> (Kv<Mapped>, Contents) {
    let mut expected = Contents::new();
    age(&kv, &mut expected);
    kv.clean().expect("it cleans");
    (kv, expected)
}

fn expect(kv: &Kv<Mapped>, expected: &Contents) {
    assert_eq!(kv.opened().damage, [""; 0]);
    let mut user = User::of(kv);
    for key in 0..KEYS {
        let found = user.get(&key.to_le_bytes());
        assert_eq!(found.as_ref(), expected.get(&key), "key {key}");
    }
    assert_eq!(kv.opened().keys, expected.len() as u64);
    drop(user);
    kv.verify().expect("it adds up");
}

#[test]
fn an_open_after_a_kill_reads_live_records_and_few_dead_ones() {
    let (mut kv, mut expected) = aged();
    let written = kv.stats().log.unwrap().segment_maps_written;
    assert!(written > 50, "{written} maps");
    for _ in 0..3 {
        kv = kill(kv, Time::new().config());
        expect(&kv, &expected);
        let opened = kv.opened();
        assert!(opened.segments_mapped > 50, "{opened:?}");
        // Tombstones are read, too, and an eighth of a segment may have died since its map was written.
        let most = expected.len() as u64 * 2;
        assert!(opened.records_scanned < most, "{opened:?}");
        age(&kv, &mut expected);
        kv.clean().expect("it cleans");
    }
}

#[test]
fn an_open_after_a_kill_finds_deletes_made_before_a_clean_close() {
    let (mut kv, mut expected) = aged();
    for _ in 0..2 {
        kv = reopen(kv, Time::new().config());
        expect(&kv, &expected);
        // The snapshot does not contain the offsets of tombstones.
        kv.clean().expect("it cleans");
        kv.verify().expect("it adds up");
        kv = kill(kv, Time::new().config());
        expect(&kv, &expected);
        assert!(kv.opened().segments_mapped > 50, "{:?}", kv.opened());
        age(&kv, &mut expected);
        kv.clean().expect("it cleans");
    }
}

#[test]
fn an_open_scans_a_segment_whose_map_is_damaged() {
    let (kv, expected) = aged();
    let segments = u64::from(kv.stats().pool.segments);
    let medium = kv.into_medium().expect("no session is left");
    let mut ctx = PersistCtx::new(0);
    for segment in 0..segments {
        // Flips a bit of each map: in its checksum, in its end and number of marks, or in its unused bytes.
        let at = FIRST + segment * SEGMENT_BYTES + MAP_AT + segment % 3 * 8;
        let word = medium.load(Off(at)) ^ 1 << (segment % 64);
        medium.store(&mut ctx, Off(at), word);
    }
    let kv = Kv::open(medium, Time::new().config()).expect("it opens");
    assert_eq!(kv.opened().segments_mapped, 0);
    expect(&kv, &expected);
}

#[test]
fn a_marked_record_whose_header_is_damaged_is_reported() {
    let (kv, expected) = aged();
    let key = *expected.keys().next().expect("a key");
    let value = expected[&key].clone();
    let medium = kv.into_medium().expect("no session is left");
    // Finds the newest record of the key by its key and value, and by the highest sequence number.
    let mut bytes = vec![0; POOL_BYTES as usize];
    medium.copy_out(Off(0), &mut bytes);
    let body = [&key.to_le_bytes()[..], &value].concat();
    let places = bytes.windows(body.len()).enumerate();
    let found = places.filter(|(_, window)| *window == body);
    let records = found.map(|(at, _)| at - 24);
    let seq = |at: &usize| u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("a word"));
    let newest: u64 = records.max_by_key(seq).expect("a record") as u64;
    let mut ctx = PersistCtx::new(0);
    let word = medium.load(Off(newest + 8)) ^ 1;
    medium.store(&mut ctx, Off(newest + 8), word);
    let kv = Kv::open(medium, Time::new().config()).expect("it opens");
    let damage = &kv.opened().damage;
    assert!(
        damage.iter().any(|line| line.contains("lost")),
        "{damage:?}"
    );
    assert_eq!(damage.len(), 1, "{damage:?}");
}

#[test]
fn a_pool_of_version_1_opens_and_stays_one() {
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    let identity = PoolIdentity {
        id: [7; 16],
        created_unix_s: 1,
    };
    let layout = PoolLayout {
        segment_bytes: SEGMENT_BYTES,
    };
    let pool = Pool::create_as(medium, &mut PersistCtx::new(0), &layout, identity).expect("a pool");
    assert_eq!(pool.version(), 1);
    let kv = Kv::open(pool.into_medium(), Time::new().config()).expect("it opens");
    let (mut kv, expected) = aged_in(kv);
    assert_eq!(kv.stats().log.unwrap().segment_maps_written, 0);
    for clean in [false, true] {
        kv = match clean {
            false => kill(kv, Time::new().config()),
            true => reopen(kv, Time::new().config()),
        };
        expect(&kv, &expected);
        assert_eq!(kv.opened().segments_mapped, 0);
    }
    let medium = kv.into_medium().expect("no session is left");
    let pool = Pool::open(medium, &mut PersistCtx::new(0)).expect("it opens");
    assert_eq!(pool.version(), 1);
}
