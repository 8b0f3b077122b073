//! Tests of how recovery pads torn writes.

use farbank_pm::Off;
use farbank_pm::sim::{Persistency, Sim};

use crate::api::Kv;
use crate::config::{CleaningMode, Config};
use crate::format::record::RecordType;
use farbank_store::{Key, Session, Value};

const SEGMENT_BYTES: u64 = 4 << 10;

fn config() -> Config {
    Config {
        cleaning: CleaningMode::Inline,
        open_threads: 1,
        ..Config::default()
    }
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

/// Puts `name` in a batch of its own. Returns the offset of its record.
fn put(kv: &Kv<Sim>, session: &mut dyn Session, name: &[u8], wait: bool) -> Off {
    let value = Value {
        bytes: &[7; 100],
        ..Value::default()
    };
    session.put(key(name), value).unwrap();
    let ticket = session.commit().unwrap();
    if wait {
        session.wait(ticket).unwrap();
    }
    let engine = &kv.engine;
    let hash = engine.geometry().hash(0, name);
    let pending = engine.stripe(hash).lock().all().map(|p| p.at).max();
    pending.unwrap_or_else(|| engine.locate(hash, key(name)).found.unwrap().at)
}

/// A pad that is not SETTLED in place of a SETTLED record is a bug: the second open after that would no longer know
/// that the records before it were durable, and could pad them as torn (KV-OPEN-2).
#[test]
fn a_pad_that_replaces_a_settled_record_is_settled() {
    let sim = Sim::new(8192 + 16 * SEGMENT_BYTES, Persistency::Page);
    let kv = Kv::create(sim.clone(), SEGMENT_BYTES, config()).unwrap();
    let mut session = kv.session();
    put(&kv, &mut *session, b"durable", true);
    let torn = put(&kv, &mut *session, b"torn", false);
    put(&kv, &mut *session, b"later", false);
    let header = kv.engine.segments.header(torn).unwrap();
    assert!(header.settled, "the first batch was durable");
    let mut image = sim.visible();
    let body = torn.plus(header.len() as u64).0 / 8 * 8 + 16;
    image.set_word(Off(body), !image.word(Off(body)));

    let kv = Kv::open(Sim::from_image(image, Persistency::Page), config()).unwrap();
    assert!(kv.opened().damage.is_empty(), "{:?}", kv.opened().damage);
    let pad = kv.engine.segments.header(torn).unwrap();
    assert_eq!((pad.what, pad.settled), (RecordType::Pad, true));
    let mut session = kv.session();
    for (name, there) in [(&b"durable"[..], true), (b"torn", false), (b"later", true)] {
        let found = session
            .meta(key(name), farbank_store::ReadView::Durable)
            .unwrap();
        assert_eq!(found.is_some(), there);
    }
}
