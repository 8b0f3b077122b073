//! Tests of keys that the index cannot distinguish, because they have the same group and the same tag. Only a
//! comparison with the record finds the entry of a key. A bug to guard against: a set of the first of two such keys
//! never ends, because it starts over whenever it finds another matching entry after its own.

use std::collections::HashMap;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::key_hash::KeyHash;
use farbank_pm::media::Mapped;
use farbank_pm::{Medium, Off};
use farbank_store::{Key, ReadView, Session, UpdateDecision, Value, ValueMeta};

const SEGMENT: u64 = 4096;
/// Few segments, so that the index has 2^7 groups.
const POOL: u64 = 8192 + 60 * SEGMENT;
/// Bits of hash that two keys must share: the number of the group, and 25 bits of tag.
const SHARED_BITS: u32 = 7 + 25;

/// Searches for pairs of keys that the index of a pool with this id cannot distinguish.
fn twins(id: &[u8; 16]) -> Vec<[Vec<u8>; 2]> {
    let key_hash = KeyHash::of_pool(id);
    let mut seen: HashMap<u64, u32> = HashMap::new();
    let mut twins = Vec::new();
    for n in 0..400_000_u32 {
        let hash = key_hash.hash(0, &n.to_le_bytes()) & ((1 << SHARED_BITS) - 1);
        if let Some(twin) = seen.insert(hash, n) {
            twins.push([twin, n].map(|n| n.to_le_bytes().to_vec()));
        }
    }
    twins
}

fn config() -> Config {
    Config {
        cleaning: CleaningMode::Inline,
        ..Config::default()
    }
}

fn store() -> (Kv<Mapped>, Vec<[Vec<u8>; 2]>) {
    let medium = Mapped::anonymous(POOL).expect("memory");
    let kv = Kv::create(medium, SEGMENT, config()).expect("a fresh store");
    let medium = kv.into_medium().expect("no session is left");
    let mut id = [0; 16];
    medium.copy_out(Off(40), &mut id); // as docs/format.md says
    let twins = twins(&id);
    assert!(
        !twins.is_empty(),
        "about 18 pairs of 400,000 keys agree in 32 bits"
    );
    (Kv::open(medium, config()).expect("it opens"), twins)
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn set(session: &mut dyn Session, k: &[u8], bytes: &[u8]) {
    let value = Value {
        bytes,
        ..Value::default()
    };
    session.put(key(k), value).expect("a write");
    session.commit().expect("a commit");
}

fn append(session: &mut dyn Session, k: &[u8], more: &[u8]) {
    let mut change = |item: Option<farbank_store::StoredItem<'_>>| UpdateDecision::Put {
        bytes: [item.expect("it was set").bytes, more].concat(),
        expires_ms: 0,
        flags: 0,
        kind: 0,
    };
    session.update(key(k), &mut change).expect("an update");
    session.commit().expect("a commit");
}

fn delete(session: &mut dyn Session, k: &[u8]) {
    assert_eq!(session.delete(key(k)), Ok(true));
    session.commit().expect("a commit");
}

fn get(session: &mut dyn Session, k: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = session.get(
        key(k),
        ReadView::Durable,
        &mut out,
        &mut |_: &ValueMeta, _| true,
    );
    found.expect("a read").then_some(out)
}

#[test]
fn keys_that_share_group_and_tag_are_set_updated_and_deleted_apart() {
    let (kv, twins) = store();
    let mut session = kv.session();
    let user = &mut *session;
    for [one, two] in &twins {
        set(user, one, b"1");
        set(user, two, b"2");
        // Each order of the two entries is tested.
        for k in [one, two, one] {
            set(user, k, k);
            append(user, k, b" and more");
        }
        for k in [one, two] {
            let expected = [k.as_slice(), b" and more"].concat();
            assert_eq!(get(user, k), Some(expected));
        }
        delete(user, one);
        assert_eq!(get(user, one), None);
        assert!(get(user, two).is_some());
        set(user, one, b"back");
        delete(user, two);
        assert_eq!(get(user, one), Some(b"back".to_vec()));
        assert_eq!(get(user, two), None);
    }
    drop(session);
    assert_eq!(kv.verify(), Ok(()));
}
