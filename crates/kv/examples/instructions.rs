//! Executes COUNT operations of one kind, and nothing else, so that their instructions can be counted: sets with a
//! commit each (`set`), sets by `put_durable` (`alone`), gets of one key (`get`), or gets of 16 keys at a time
//! (`together`).
//!
//! ```text
//! cargo run --release -p farbank-kv --example instructions -- set 20000
//! ```
//!
//! The pool is memory of this process, with real write-backs and fences. Every run executes the same instructions,
//! because the pool's id and the clock are constant. The suite `zero-cost` counts the instructions of two runs with
//! different COUNT under valgrind. The difference is the cost of the operations alone.

use std::sync::Arc;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::Mapped;
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::{Medium, Off, PersistCtx};
use farbank_store::{Key, ReadView, Session, StoredItem, Value, ValueMeta};
use xxhash_rust::xxh3::xxh3_128;

const POOL_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 1 << 20;
const KEYS: u32 = 4096;
const VALUE: [u8; 100] = [7; 100];
const TOGETHER: u32 = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, count) = match arguments.as_slice() {
        [what, count] if ["set", "alone", "get", "together"].contains(&what.as_str()) => {
            (what, count.parse().unwrap_or(0))
        }
        _ => {
            eprintln!("usage: instructions set|alone|get|together COUNT");
            std::process::exit(2);
        }
    };
    let kv = store();
    let mut session = kv.session();
    (0..KEYS).for_each(|n| set(&mut *session, n));
    let mut out = Vec::new();
    for n in 0..count {
        match what.as_str() {
            "set" => set(&mut *session, n % KEYS),
            "alone" => set_alone(&mut *session, n % KEYS),
            "together" if n % TOGETHER != 0 => {}
            "together" => get_together(&mut *session, n % KEYS),
            _ => get(&mut *session, n % KEYS, &mut out),
        }
    }
}

/// Returns an empty store in memory with a constant pool id.
fn store() -> Kv<Mapped> {
    const ID: std::ops::Range<usize> = 40..56;
    const CHECKSUM: usize = 496;
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    let mut ctx = PersistCtx::new(0);
    let layout = PoolLayout {
        segment_bytes: SEGMENT_BYTES,
    };
    let pool = Pool::create(medium, &mut ctx, &layout).expect("a pool");
    let medium = pool.into_medium();
    let mut copy = [0; 512];
    medium.copy_out(Off(0), &mut copy);
    copy[ID].copy_from_slice(b"always the same!");
    let checksum = xxh3_128(&copy[..CHECKSUM]).to_le_bytes();
    copy[CHECKSUM..].copy_from_slice(&checksum);
    for at in [0, 4096] {
        medium.copy_in(&mut ctx, Off(at), &[&copy]);
    }
    medium.drain(&mut ctx);
    let config = Config {
        clock: Arc::new(|| 1_000_000),
        uptime: Arc::new(|| 0),
        cleaning: CleaningMode::Inline,
        open_threads: 1,
        ..Config::default()
    };
    Kv::open(medium, config).expect("an empty store")
}

fn set(session: &mut dyn Session, n: u32) {
    let name = n.to_le_bytes();
    session.put(key(&name), value()).expect("the pool has room");
    session.commit().expect("memory does not fail");
}

fn set_alone(session: &mut dyn Session, n: u32) {
    let name = n.to_le_bytes();
    let done = session.put_durable(key(&name), value());
    done.expect("the pool has room, and memory does not fail");
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn value() -> Value<'static> {
    Value {
        bytes: &VALUE,
        ..Value::default()
    }
}

fn get(session: &mut dyn Session, n: u32, out: &mut Vec<u8>) {
    out.clear();
    let name = n.to_le_bytes();
    let found = session.get(
        key(&name),
        ReadView::Durable,
        out,
        &mut |_: &ValueMeta, _| true,
    );
    assert_eq!(found, Ok(true), "a key that was set");
    assert_eq!(out.len(), VALUE.len());
    session.commit().expect("memory does not fail");
}

fn get_together(session: &mut dyn Session, n: u32) {
    let names: [[u8; 4]; TOGETHER as usize] = std::array::from_fn(|i| (n + i as u32).to_le_bytes());
    let keys = names.each_ref().map(|name| key(name));
    let mut found = 0;
    let mut each =
        |_, item: Option<StoredItem<'_>>| found += item.map_or(0, |item| item.bytes.len());
    let done = session.get_many(&keys, ReadView::Durable, &mut each);
    done.expect("memory does not fail");
    assert_eq!(found, keys.len() * VALUE.len());
}
