//! Valid pools with a known history. The engine makes them, and they are the same in every process.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, PoolImage, Sim};
use farbank_pm::{Off, PersistCtx};
use farbank_store::{Error, GroupDecision, Key, Ops, ReadView, Session, Value, ValueMeta};

use crate::format::{COPIES, COPY, FIRST, SEGMENT, seal_superblock};

/// Number of segments in a pool.
pub const SEGMENTS: usize = 20;
/// Size of a pool, in bytes.
pub const POOL: usize = FIRST + SEGMENTS * SEGMENT;

const KEYS: u64 = 12;
const NOW_MS: u64 = 1_000_000;

/// Returns the configuration with which all pools are opened.
pub fn config() -> Config {
    Config {
        clock: Arc::new(|| NOW_MS),
        cleaning: CleaningMode::Inline,
        open_threads: 1,
        ..Config::default()
    }
}

/// Returns an image of `bytes`. If they are as long as `base`, changes only the words of its image that differ.
pub fn image(bytes: &[u8], base: &Base) -> PoolImage {
    if bytes.len() != base.bytes.len() {
        return PoolImage::from_bytes(bytes);
    }
    let mut image = base.image.clone();
    let (new, old) = (bytes.as_chunks::<8>().0, base.bytes.as_chunks::<8>().0);
    for (word, (new, old)) in new.iter().zip(old).enumerate() {
        if new != old {
            image.set_word(Off(8 * word as u64), u64::from_le_bytes(*new));
        }
    }
    image
}

/// Opens the pool in `image`.
pub fn open(image: PoolImage) -> Result<(Sim, Kv<Sim>), String> {
    let sim = Sim::from_image(image, Persistency::Eadr);
    let kv = Kv::open(sim.clone(), config()).map_err(|e| e.to_string())?;
    Ok((sim, kv))
}

/// Returns a key of database 0.
pub fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

/// Returns the durable value of a key.
pub fn read(session: &mut dyn Session, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut out = Vec::new();
    let found = session.get(
        key(name),
        ReadView::Durable,
        &mut out,
        &mut |_: &ValueMeta, _| true,
    )?;
    Ok(found.then_some(out))
}

/// All values that each key has ever had, oldest first. `None` means absent.
#[derive(Clone, Debug, Default)]
pub struct Past(pub BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>);

impl Past {
    /// Adds a write.
    pub fn note(&mut self, name: &[u8], value: Option<Vec<u8>>) {
        let absent = || vec![None];
        self.0
            .entry(name.to_vec())
            .or_insert_with(absent)
            .push(value);
    }

    /// Adds all values of another history. The last value of each key stays the last.
    pub fn take_in(&mut self, other: &Past) {
        for (name, values) in &other.0 {
            let last = self.latest(name).cloned();
            values
                .iter()
                .for_each(|value| self.note(name, value.clone()));
            self.note(name, last);
        }
    }

    /// Returns whether `name` ever had `value`.
    pub fn knows(&self, name: &[u8], value: &Option<Vec<u8>>) -> bool {
        self.0
            .get(name)
            .map_or(value.is_none(), |all| all.contains(value))
    }

    /// Returns the last value of `name`.
    pub fn latest(&self, name: &[u8]) -> Option<&Vec<u8>> {
        self.0.get(name)?.last()?.as_ref()
    }
}

/// A pool as it was left by a close or a kill.
pub struct Base {
    /// The pool's bytes.
    pub bytes: Vec<u8>,
    /// The same bytes, in a form that is fast to copy.
    pub image: PoolImage,
    /// All writes to the pool.
    pub past: Past,
    /// Whether the pool was closed and has a snapshot.
    pub closed: bool,
}

/// Returns the two pools: one that was closed, and one that was killed after a close and some further writes.
pub fn bases() -> &'static [Base; 2] {
    static BASES: OnceLock<[Base; 2]> = OnceLock::new();
    BASES.get_or_init(|| [base(true), base(false)])
}

/// Returns an empty pool with a constant id and creation time.
fn empty() -> PoolImage {
    let sim = Sim::new(POOL as u64, Persistency::Eadr);
    let layout = PoolLayout {
        segment_bytes: SEGMENT as u64,
    };
    Pool::create(sim.clone(), &mut PersistCtx::new(0), &layout).expect("a fresh pool");
    let mut bytes = sim.visible().to_bytes();
    for start in COPIES {
        let copy = &mut bytes[start..start + COPY];
        copy[40..56].copy_from_slice(b"always the same!");
        copy[72..80].fill(7);
        seal_superblock(copy);
    }
    PoolImage::from_bytes(&bytes)
}

fn base(closed: bool) -> Base {
    let (mut sim, mut kv) = open(empty()).expect("an empty pool opens");
    let mut past = Past::default();
    let mut rng = Rng::new(1);
    for _ in 0..160 {
        write(&mut *kv.session(), &mut past, &mut rng).expect("the pool has room");
    }
    kv.clean().expect("memory does not fail");
    if !closed {
        kv.close().expect("it closes");
        (sim, kv) = open(sim.visible()).expect("it opens");
        let mut session = kv.session();
        for _ in 0..20 {
            write(&mut *session, &mut past, &mut rng).expect("the pool has room");
        }
    } else {
        kv.close().expect("it closes");
    }
    Base {
        bytes: sim.visible().to_bytes(),
        image: sim.visible(),
        past,
        closed,
    }
}

/// Does and commits one random write. Adds it to `past` if it succeeds.
pub fn write(session: &mut dyn Session, past: &mut Past, rng: &mut Rng) -> Result<(), Error> {
    let mut name = || format!("key {}", rng.below(KEYS)).into_bytes();
    let (one, two) = (name(), name());
    let kind = rng.below(10);
    let bytes = match kind {
        0 => 2_000,
        1 => 700,
        _ => 90,
    };
    let len = rng.below(bytes) as usize;
    let value: Vec<u8> = std::iter::repeat_with(|| rng.draw() as u8)
        .take(len)
        .collect();
    let stored = Value {
        bytes: &value,
        expires_ms: if kind == 3 { NOW_MS * 2 } else { 0 },
        flags: if kind == 4 { 7 } else { 0 },
        kind: 0,
    };
    let names = [key(&one), key(&two)];
    match kind {
        5 => drop(session.delete(names[0])?),
        1 | 6 | 7 => drop(session.group(&names, &mut |ops: &mut dyn Ops| {
            names
                .iter()
                .try_for_each(|name| ops.put(*name, stored).map(drop))?;
            Ok(GroupDecision::Apply)
        })?),
        _ => drop(session.put(names[0], stored)?),
    }
    session.commit()?;
    match kind {
        5 => past.note(&one, None),
        1 | 6 | 7 => [one, two]
            .iter()
            .for_each(|n| past.note(n, Some(value.clone()))),
        _ => past.note(&one, Some(value)),
    }
    Ok(())
}
