//! Helpers of the engine's tests: a store in memory, clocks, and a session that commits after each write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::Medium;
use farbank_pm::media::Mapped;
use farbank_store::{Error, Key, ReadView, Session, StoredItem, Value, ValueMeta};

/// Clocks that advance only when a test moves them.
#[derive(Clone)]
pub(crate) struct Time {
    wall: Arc<AtomicU64>,
    uptime: Arc<AtomicU64>,
}

impl Time {
    pub(crate) fn new() -> Time {
        Time {
            wall: Arc::new(AtomicU64::new(1_000_000)),
            uptime: Arc::default(),
        }
    }

    pub(crate) fn pass(&self, ms: u64) {
        self.wall.fetch_add(ms, Ordering::Relaxed);
        self.uptime.fetch_add(ms, Ordering::Relaxed);
    }

    /// Sets the wall clock.
    pub(crate) fn set(&self, ms: u64) {
        self.wall.store(ms, Ordering::Relaxed);
    }

    /// The wall clock.
    pub(crate) fn now(&self) -> u64 {
        self.wall.load(Ordering::Relaxed)
    }

    pub(crate) fn config(&self) -> Config {
        let (wall, uptime) = (Arc::clone(&self.wall), Arc::clone(&self.uptime));
        Config {
            clock: Arc::new(move || wall.load(Ordering::Relaxed)),
            uptime: Arc::new(move || uptime.load(Ordering::Relaxed)),
            cleaning: CleaningMode::Inline,
            open_threads: 2,
            patience: 100,
            ..Config::default()
        }
    }
}

pub(crate) fn memory(pool_bytes: u64, segment_bytes: u64) -> Kv<Mapped> {
    let medium = Mapped::anonymous(pool_bytes).expect("memory");
    Kv::create(medium, segment_bytes, Time::new().config()).expect("a fresh store")
}

/// Drops `kv` without a close, and opens its pool again, as after a kill.
pub(crate) fn kill(kv: Kv<Mapped>, config: Config) -> Kv<Mapped> {
    let medium = kv.into_medium().expect("no session is left");
    Kv::open(medium, config).expect("it opens")
}

/// Closes `kv`, and opens its pool again.
pub(crate) fn reopen(kv: Kv<Mapped>, config: Config) -> Kv<Mapped> {
    let medium = kv.close().expect("it closes").expect("no session is left");
    Kv::open(medium, config).expect("it opens")
}

pub(crate) fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

/// A session that commits after every operation.
pub(crate) struct User(pub(crate) Box<dyn Session>);

impl User {
    pub(crate) fn of<M: Medium>(kv: &Kv<M>) -> User {
        User(kv.session())
    }

    pub(crate) fn set(&mut self, k: &[u8], v: &[u8]) {
        self.try_set(k, v).expect("a write");
    }

    pub(crate) fn try_set(&mut self, k: &[u8], v: &[u8]) -> Result<(), Error> {
        self.0.put(
            key(k),
            Value {
                bytes: v,
                ..Value::default()
            },
        )?;
        self.0.commit().map(|_| ())
    }

    pub(crate) fn set_until(&mut self, k: &[u8], v: &[u8], expires_ms: u64) {
        self.0
            .put(
                key(k),
                Value {
                    bytes: v,
                    expires_ms,
                    ..Value::default()
                },
            )
            .expect("a write");
        self.0.commit().expect("a commit");
    }

    pub(crate) fn delete(&mut self, k: &[u8]) -> bool {
        let was = self.0.delete(key(k)).expect("a delete");
        self.0.commit().expect("a commit");
        was
    }

    pub(crate) fn get(&mut self, k: &[u8]) -> Option<Vec<u8>> {
        self.try_get(k).expect("a read")
    }

    pub(crate) fn try_get(&mut self, k: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut out = Vec::new();
        let found = self.0.get(
            key(k),
            ReadView::Durable,
            &mut out,
            &mut |_: &ValueMeta, _| true,
        );
        self.0.commit().expect("a commit");
        found.map(|found| found.then_some(out))
    }

    pub(crate) fn update(&mut self, k: &[u8], decide: impl Fn(Option<&[u8]>) -> Vec<u8>) {
        let mut change = |item: Option<StoredItem<'_>>| farbank_store::UpdateDecision::Put {
            bytes: decide(item.map(|i| i.bytes)),
            expires_ms: 0,
            flags: 0,
            kind: 0,
        };
        self.0.update(key(k), &mut change).expect("an update");
        self.0.commit().expect("a commit");
    }
}
