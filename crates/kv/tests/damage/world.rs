//! Pools with a known history of values, and checks of the values read from damaged copies of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use farbank_check::Violation;
use farbank_check::guarded;
use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::Medium;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, PoolImage, Sim};
use farbank_store::{Error, GroupDecision, Key, Ops, ReadView, Session, Store, Value, ValueMeta};

/// Bytes of a segment.
pub(crate) const SEGMENT: u64 = 4 << 10;
/// Segments of a pool.
pub(crate) const SEGMENTS: u64 = 32;
/// Offset of the first segment.
pub(crate) const FIRST: u64 = 8 << 10;
/// Bytes of a pool.
pub(crate) const POOL: u64 = FIRST + SEGMENTS * SEGMENT;

/// Number of keys. The first few have large values, the next are members of large groups.
const KEYS: u64 = 60;
const LARGE_KEYS: u64 = 3;
const GROUP_KEYS: u64 = 9;
const NOW_MS: u64 = 1_000_000;

pub(crate) fn config() -> Config {
    Config {
        clock: Arc::new(|| NOW_MS),
        uptime: Arc::new(|| 0),
        cleaning: CleaningMode::Inline,
        open_threads: 1,
        read_cache_bytes: 1, // Few rows, because pools are opened tens of thousands of times.
        ..Config::default()
    }
}

/// History of each key: every value it ever had, the latest acknowledged value last. `None`: the key was absent.
#[derive(Clone, Default)]
pub(crate) struct KeyHistories(pub(crate) BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>);

impl KeyHistories {
    pub(crate) fn note(&mut self, key: &[u8], value: Option<Vec<u8>>) {
        self.0
            .entry(key.to_vec())
            .or_insert_with(|| vec![None])
            .push(value);
    }

    pub(crate) fn latest(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.0.get(key)?.last()?.as_ref()
    }
}

/// Set of results that a read may return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// Only the latest value.
    Latest,
    /// The latest value or an error.
    LatestOrError,
    /// Any value that the key ever had, or an error.
    EverOrError,
}

pub(crate) fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

pub(crate) fn read(session: &mut dyn Session, k: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut out = Vec::new();
    let found = session.get(
        key(k),
        ReadView::Durable,
        &mut out,
        &mut |_: &ValueMeta, _| true,
    )?;
    Ok(found.then_some(out))
}

/// Reads all keys, and some that were never written, and checks the results against `claim`.
pub(crate) fn judge(
    session: &mut dyn Session,
    past: &KeyHistories,
    claim: Claim,
) -> Result<(), Violation> {
    let absent: Vec<Vec<u8>> = (0..20)
        .map(|n| format!("absent {n}").into_bytes())
        .collect();
    for k in past.0.keys().chain(&absent) {
        let found = read(session, k);
        let fine = match &found {
            Ok(value) if value.as_ref() == past.latest(k) => true,
            Ok(value) => {
                let history = past.0.get(k).map_or(&[None][..], |values| &values[..]);
                claim == Claim::EverOrError && history.contains(value)
            }
            Err(Error::Damaged(_)) => claim != Claim::Latest,
            Err(_) => false,
        };
        if !fine {
            let name = String::from_utf8_lossy(k);
            let expected = past.latest(k).map(|v| brief(v));
            let found = found.map(|v| v.as_deref().map(brief));
            return Err(Violation::new(format!(
                "{name}: found {found:?}, acknowledged {expected:?} (allowed: {claim:?})"
            )));
        }
    }
    Ok(())
}

fn brief(value: &[u8]) -> String {
    format!(
        "{} bytes, {}...",
        value.len(),
        String::from_utf8_lossy(&value[..value.len().min(24)])
    )
}

impl Claim {
    /// Returns the claim that holds after the open of `kv`: a weaker one if the open reported damage.
    fn after<M: Medium>(self, kv: &Kv<M>) -> Claim {
        if kv.opened().damage.is_empty() {
            self
        } else {
            Claim::EverOrError
        }
    }
}

/// A pool in use, with its history.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) kv: Kv<Sim>,
    pub(crate) past: KeyHistories,
    pub(crate) rng: Rng,
    writes: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let sim = Sim::new(POOL, Persistency::Eadr);
        let kv = Kv::create(sim.clone(), SEGMENT, config()).expect("a fresh store");
        World {
            sim,
            kv,
            past: KeyHistories::default(),
            rng: Rng::new(seed),
            writes: 0,
        }
    }

    /// Closes the store cleanly and opens it again.
    fn reopened(self) -> World {
        let World { sim, kv, .. } = self;
        kv.close().expect("it closes");
        let kv = Kv::open(sim.clone(), config()).expect("it opens");
        World { sim, kv, ..self }
    }

    /// Executes one random acknowledged write: a put, a delete or a group.
    pub(crate) fn write(&mut self, session: &mut dyn Session) -> Result<(), Error> {
        match self.rng.below(20) {
            0..=1 => self.delete(session),
            2..=3 => self.put(session, 0, LARGE_KEYS, 4_500),
            4..=5 => self.group(session, LARGE_KEYS, GROUP_KEYS, 6, 300),
            6..=8 => self.group(session, GROUP_KEYS, KEYS, 3, 60),
            _ => self.put(session, GROUP_KEYS, KEYS, 150),
        }
    }

    /// Returns a new value: its key and a number, followed by up to `bytes` random bytes.
    fn value(&mut self, k: &[u8], bytes: u64) -> Vec<u8> {
        self.writes += 1;
        let mut value = [k, b" write ", self.writes.to_string().as_bytes(), b" "].concat();
        let len = value.len() as u64 + self.rng.below(bytes);
        while (value.len() as u64) < len {
            value.push(self.rng.draw() as u8);
        }
        value
    }

    fn some_key(&mut self, from: u64, to: u64) -> Vec<u8> {
        format!("key {}", from + self.rng.below(to - from)).into_bytes()
    }

    fn put(
        &mut self,
        session: &mut dyn Session,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let k = self.some_key(from, to);
        let value = self.value(&k, bytes);
        let expires_ms = if self.rng.one_in(4) { NOW_MS * 2 } else { 0 };
        let flags = if self.rng.one_in(4) { 7 } else { 0 };
        session.put(
            key(&k),
            Value {
                bytes: &value,
                expires_ms,
                flags,
                kind: 0,
            },
        )?;
        session.commit()?;
        self.past.note(&k, Some(value));
        Ok(())
    }

    fn delete(&mut self, session: &mut dyn Session) -> Result<(), Error> {
        let k = self.some_key(0, KEYS);
        session.delete(key(&k))?;
        session.commit()?;
        self.past.note(&k, None);
        Ok(())
    }

    fn group(
        &mut self,
        session: &mut dyn Session,
        from: u64,
        to: u64,
        count: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let names: Vec<Vec<u8>> = (0..count).map(|_| self.some_key(from, to)).collect();
        let values: Vec<Vec<u8>> = names.iter().map(|k| self.value(k, bytes)).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|k| key(k)).collect();
        session.group(&keys, &mut |ops: &mut dyn Ops| {
            for (k, value) in keys.iter().zip(&values) {
                ops.put(
                    *k,
                    Value {
                        bytes: value,
                        ..Value::default()
                    },
                )?;
            }
            Ok(GroupDecision::Apply)
        })?;
        session.commit()?;
        for (k, value) in names.iter().zip(values) {
            self.past.note(k, Some(value));
        }
        Ok(())
    }

    pub(crate) fn writes(&mut self, count: u64) {
        let mut session = self.kv.session();
        for _ in 0..count {
            self.write(&mut *session).expect("the pool has room");
        }
    }
}

/// A pool after a clean close or a kill.
#[derive(Clone)]
pub(crate) struct Pool {
    /// The function and the seed that made the pool.
    pub(crate) name: String,
    pub(crate) image: PoolImage,
    pub(crate) past: KeyHistories,
}

impl Pool {
    /// Returns a pool after many writes, much cleaning and a clean close.
    pub(crate) fn closed(seed: u64) -> Pool {
        let mut world = World::new(seed);
        world.writes(800);
        assert!(
            Store::stats(&world.kv).writes.segments_cleaned > 10,
            "the cleaner has not worked"
        );
        let World { sim, kv, past, .. } = world;
        kv.close().expect("it closes");
        Pool {
            name: format!("closed({seed})"),
            image: sim.visible(),
            past,
        }
    }

    /// Returns a pool after a clean close, some more writes and a kill. All writes, except the last few to the key
    /// `last`, are followed by a SETTLED record. So bytes of them that fail their checksum are damage, not a torn
    /// write.
    pub(crate) fn killed(seed: u64) -> Pool {
        let mut world = World::new(seed);
        world.writes(800);
        for _ in 0..SEGMENTS {
            world.kv.clean().expect("memory does not fail");
        }
        let mut world = world.reopened();
        let mut session = world.kv.session();
        for _ in 0..20 {
            world.write(&mut *session).expect("the pool has room");
        }
        for n in 0..3_u32 {
            let value = Value {
                bytes: &n.to_le_bytes(),
                ..Value::default()
            };
            session.put(key(b"last"), value).expect("the pool has room");
            session.commit().expect("memory does not fail");
        }
        assert_eq!(
            Store::stats(&world.kv).writes.segments_cleaned,
            0,
            "this test needs records that the cleaner has not moved"
        );
        let (name, image) = (format!("killed({seed})"), world.sim.visible());
        Pool {
            name,
            image,
            past: world.past,
        }
    }

    /// Opens `image`, a damaged copy, and calls `look`. A panic is returned as an error.
    pub(crate) fn examine(
        &self,
        image: PoolImage,
        look: impl FnOnce(&Sim, Kv<Sim>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let attempt = || {
            let sim = Sim::from_image(image, Persistency::Eadr);
            match Kv::open(sim.clone(), config()) {
                Ok(kv) => look(&sim, kv),
                Err(error) => Err(Violation::new(format!("it does not open: {error}"))),
            }
        };
        guarded(attempt).and_then(|ended| ended)
    }

    /// Checks a damaged copy, then writes, cleans and reads, and checks the pool again after a kill. If an open reports
    /// damage, values may be old. Otherwise `claim` holds.
    pub(crate) fn stands(
        &self,
        image: PoolImage,
        seed: u64,
        claim: Claim,
    ) -> Result<(), Violation> {
        self.examine(image, |sim, kv| {
            let claim = claim.after(&kv);
            let mut world = World {
                sim: sim.clone(),
                kv,
                past: self.past.clone(),
                rng: Rng::new(seed),
                writes: 1_000_000,
            };
            let mut session = world.kv.session();
            judge(&mut *session, &world.past, claim)?;
            for _ in 0..20 {
                match world.write(&mut *session) {
                    Ok(()) | Err(Error::Full | Error::CannotGrow(_) | Error::Damaged(_)) => {}
                    Err(error) => return Err(Violation::new(format!("a write fails: {error}"))),
                }
                world
                    .kv
                    .clean()
                    .map_err(|e| Violation::from(e).context("cleaning fails"))?;
            }
            judge(&mut *session, &world.past, claim).map_err(|e| e.context("after use"))?;
            let sim = Sim::from_image(sim.visible(), Persistency::Eadr);
            let kv = Kv::open(sim, config());
            let kv = kv.map_err(|e| Violation::from(e).context("after use"))?;
            let claim = claim.after(&kv);
            judge(&mut *kv.session(), &world.past, claim).map_err(|e| e.context("after a kill"))
        })
    }
}

/// Flips the bits of `mask` in the byte at `at`.
pub(crate) fn flip(image: &mut PoolImage, at: u64, mask: u8) {
    let word = farbank_pm::Off(at / 8 * 8);
    let flipped = image.word(word) ^ u64::from(mask) << (at % 8 * 8);
    image.set_word(word, flipped);
}
