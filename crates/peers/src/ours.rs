//! Contenders: Farbank's engine, embedded.

use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::Medium;
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path};
use farbank_store::{Key, ReadView, Session, Store, StoredItem, Value};

use crate::mix::{Mix, Name};
use crate::run::{BATCH, Contender, Outcome, Peer, PeerSession, Settings, run};

/// Average bytes of a record's header and padding.
const OVERHEAD_BYTES: u64 = 32;

pub(crate) fn all() -> Vec<Contender> {
    let contender = |name, what, run| Contender { name, what, run };
    vec![
        contender(
            "farbank",
            "every set durable: memory, flushed and fenced",
            run_durable,
        ),
        contender(
            "farbank-volatile",
            "the same without flushes and fences",
            run_volatile,
        ),
        contender(
            "farbank-uncached",
            "every set durable, without the read cache",
            run_uncached,
        ),
        contender(
            "farbank-tmpfs",
            "every set durable: a file on tmpfs, flushed and fenced",
            run_tmpfs,
        ),
    ]
}

fn pool_bytes(settings: &Settings<'_>) -> u64 {
    let records = settings.mix.loaded_bytes() + settings.mix.keys * OVERHEAD_BYTES;
    ((records as f64 / settings.live) as u64).next_multiple_of(4 << 20) + (64 << 20)
}

fn run_durable(settings: &Settings<'_>) -> Result<Outcome, String> {
    run_on(memory(settings)?, settings, Config::default())
}

fn run_uncached(settings: &Settings<'_>) -> Result<Outcome, String> {
    let config = Config {
        read_cache_bytes: 0,
        ..Config::default()
    };
    run_on(memory(settings)?, settings, config)
}

fn run_volatile(settings: &Settings<'_>) -> Result<Outcome, String> {
    run_on(
        memory(settings)?.without_durability(),
        settings,
        Config::default(),
    )
}

fn memory(settings: &Settings<'_>) -> Result<Mapped, String> {
    Mapped::anonymous(pool_bytes(settings)).map_err(|e| e.to_string())
}

fn run_tmpfs(settings: &Settings<'_>) -> Result<Outcome, String> {
    let folder = tempfile::tempdir_in("/dev/shm").map_err(|e| e.to_string())?;
    let path = folder.path().join("peers.pool");
    let options = OpenOptions::default();
    match create_path(&path, pool_bytes(settings), &options, &mut |_, _| {}) {
        Ok(AnyMedium::Mapped(medium)) => run_on(medium, settings, Config::default()),
        Ok(AnyMedium::File(_)) => Err("/dev/shm is not a tmpfs".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn run_on(medium: Mapped, settings: &Settings<'_>, config: Config) -> Result<Outcome, String> {
    medium.prefault(&mut |_, _| {});
    let segment_bytes = segment_bytes_for(medium.len());
    // The index is sized for the keys, like the tables.
    let config = Config {
        keys_expected: settings.mix.keys,
        // Cleaning runs inside sets, where it is measured. A thread of its own would also run during other contenders'
        // turns.
        cleaning: CleaningMode::Inline,
        ..config
    };
    let kv = Kv::create(medium, segment_bytes, config).map_err(|e| e.to_string())?;
    let outcome = run(&FarbankPeer(&kv), settings)?;
    let stats = kv.stats();
    let (pool, writes) = (&stats.pool, &stats.writes);
    let read_cache = stats.read_cache.unwrap_or_default();
    eprintln!(
        "  {} MiB of pool, {:.0} % live, {} segments of {} KiB cleaned, {:.2} bytes moved per byte written, {:.1} bytes of index per key, {:.0} % of gets from the read cache",
        pool.bytes >> 20,
        100.0 * pool.live_bytes as f64 / pool.bytes as f64,
        writes.segments_cleaned,
        pool.segment_bytes >> 10,
        writes.moved_bytes as f64 / writes.user_bytes as f64,
        stats.index_bytes as f64 / stats.keys[0] as f64,
        100.0 * read_cache.hits as f64 / (read_cache.hits + read_cache.misses).max(1) as f64,
    );
    Ok(outcome)
}

struct FarbankPeer<'a>(&'a Kv<Mapped>);

impl Peer for FarbankPeer<'_> {
    fn session(&self) -> impl PeerSession + '_ {
        FarbankSession(self.0.session())
    }

    fn count(&self) -> Option<u64> {
        Some(self.0.stats().keys[0])
    }

    /// Updates keys until the free space left by the load is used up and segments are being cleaned.
    fn age(&self, mix: &Mix) {
        let mut session = FarbankSession(self.0.session());
        let enough =
            self.0.stats().writes.segments_cleaned + u64::from(self.0.stats().pool.segments) / 16;
        for n in 0.. {
            let op = mix.op(u64::from(u16::MAX) >> 1, n);
            session.set(&mix.name(op.key), mix.updated(&op));
            if n % 4096 == 0 && self.0.stats().writes.segments_cleaned >= enough {
                break;
            }
        }
    }
}

struct FarbankSession(Box<dyn Session>);

impl PeerSession for FarbankSession {
    fn set(&mut self, name: &Name, value: &[u8]) {
        let value = Value {
            bytes: value,
            ..Value::default()
        };
        let done = self.0.put_durable(key(name), value);
        let (_, ticket) = done.expect("the pool has room");
        debug_assert!(self.0.durable(ticket) == Ok(true));
    }

    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool {
        self.0
            .get(key(name), ReadView::Durable, out, &mut |_, _| true)
            .expect("no record is damaged")
    }

    fn get_batch(&mut self, names: &[Name; BATCH], each: &mut dyn FnMut(usize, &[u8])) -> bool {
        let keys = names.each_ref().map(key);
        let mut each = |place: usize, item: Option<StoredItem<'_>>| {
            if let Some(item) = item {
                each(place, item.bytes);
            }
        };
        self.0
            .get_many(&keys, ReadView::Durable, &mut each)
            .expect("no record is damaged");
        true
    }

    fn rest(&mut self) {
        self.0.commit().expect("memory does not fail");
    }
}

fn key(name: &Name) -> Key<'_> {
    Key { db: 0, bytes: name }
}
