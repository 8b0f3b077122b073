//! Our engine as a contender.
//!
//! A set is a put, a commit and a wait: it is durable and visible when it returns. Sets passed in one call are one
//! commit. The cleaner runs inside sets that find no room, so that its time is measured too: sixteen threads on
//! sixteen processors leave no processor for a cleaner thread. The contest's interface can report only a lack of room.
//! Any other error ends the run as a panic with the error's text.

use farbank_bench::figure::Error;
use farbank_check::target::Target;
use farbank_kv::target::KvTarget;
use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::Medium;
use farbank_store::{ReadView, Session, Store, Value};

use super::contender::{Contender, FarMemory, on_far};
use super::plan::ContestRound;
use super::published::{KV, PublishedFigures};
use crate::{ContestLimits, Engine, EngineRequest, EngineStats, Error as Refusal, Key, Worker};

/// Our engine in its default configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct OurEngine;

/// Returns the configuration. The cleaner runs inside sets. The read cache is as large as that of the final round's
/// first engines: 260 MiB for 64 GiB of far memory. The index is sized for the round's keys, like the other engines'
/// tables.
fn config(terms: &ContestLimits) -> Config {
    Config {
        read_cache_bytes: terms.far_bytes / (64 << 10) * 260,
        cleaning: CleaningMode::Inline,
        keys_expected: terms.keys,
        ..Config::default()
    }
}

impl Contender for OurEngine {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn supports_round(&self, _: ContestRound) -> bool {
        true
    }

    fn is_durable(&self) -> bool {
        true
    }

    /// Doubles the far memory of the preliminary round. The round allows 98 bytes for a key and value of 96 bytes. A
    /// record with key, lengths and checksum takes 40 bytes more.
    fn terms(&self, round: ContestRound, terms: ContestLimits) -> ContestLimits {
        let far_bytes = match round {
            ContestRound::Preliminary => terms.far_bytes * 2,
            ContestRound::Final => terms.far_bytes,
        };
        ContestLimits { far_bytes, ..terms }
    }

    fn create(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        let segment_bytes = segment_bytes_for(terms.far_bytes);
        Ok(on_far!(far, medium => boxed(Kv::create(medium, segment_bytes, config(terms))?)))
    }

    fn open(&self, far: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        Ok(on_far!(far, medium => boxed(Kv::open(medium, config(terms))?)))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        Some((&KvTarget::Plain, None))
    }

    fn published(&self, _: &ContestLimits) -> PublishedFigures {
        KV
    }
}

fn boxed<M: Medium>(kv: Kv<M>) -> Box<dyn Engine> {
    Box::new(JudgedKv(kv))
}

struct JudgedKv<M: Medium>(Kv<M>);

impl<M: Medium> Engine for JudgedKv<M> {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(JudgedKvWorker {
            session: self.0.session(),
        })
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.stats();
        vec![
            ("index", stats.index_bytes),
            ("live map", stats.log.unwrap_or_default().live_map_bytes),
            ("read cache", stats.read_cache.unwrap_or_default().bytes),
        ]
    }

    fn far_bytes(&self) -> u64 {
        let pool = self.0.stats().pool;
        u64::from(pool.segments - pool.segments_free) * pool.segment_bytes
    }

    fn stats(&self) -> EngineStats {
        let read_cache = self.0.stats().read_cache.unwrap_or_default();
        EngineStats {
            cache_hits: read_cache.hits,
            cache_misses: read_cache.misses,
            ..EngineStats::default()
        }
    }
}

/// Session of one worker.
struct JudgedKvWorker {
    session: Box<dyn Session>,
}

fn name(key: &Key) -> farbank_store::Key<'_> {
    farbank_store::Key { db: 0, bytes: key }
}

fn plain(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

impl JudgedKvWorker {
    fn put(&mut self, key: &Key, bytes: &[u8]) -> Result<(), farbank_store::Error> {
        self.session.put(name(key), plain(bytes)).map(|_| ())
    }

    fn commit(&mut self) -> Result<(), farbank_store::Error> {
        let ticket = self.session.commit()?;
        Ok(self.session.wait(ticket)?)
    }

    fn find(&mut self, key: &Key, view: ReadView, out: &mut Vec<u8>) -> bool {
        out.clear();
        let found = self.session.get(name(key), view, out, &mut |_, _| true);
        found.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Converts the result of a set into the contest's error.
fn judged(done: Result<(), farbank_store::Error>) -> Result<(), Refusal> {
    match done {
        Ok(()) => Ok(()),
        Err(error) if error.is_full() => Err(Refusal::Full),
        Err(farbank_store::Error::Poisoned(poisoned)) => Err(Refusal::Poisoned(poisoned)),
        Err(error) => panic!("{error}"),
    }
}

impl Worker for JudgedKvWorker {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Refusal> {
        let done = self.session.put_durable(name(key), plain(value));
        judged(done.and_then(|(_, ticket)| Ok(self.session.wait(ticket)?)))
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.find(key, ReadView::Durable, out)
    }

    fn run_batch(&mut self, asks: &mut [EngineRequest<'_>]) -> Result<(), Refusal> {
        let (mut keys, mut reads) = (Vec::with_capacity(asks.len()), false);
        for ask in asks.iter() {
            let (EngineRequest::Set(key, _) | EngineRequest::Get(key, ..)) = ask;
            keys.push(name(key));
            reads |= matches!(ask, EngineRequest::Get(..));
        }
        self.session.prefetch(&keys, reads);
        for ask in asks {
            match ask {
                EngineRequest::Set(key, value) => {
                    let done = self.put(key, value);
                    judged(done)?;
                }
                // A get sees the sets of its own batch. All answers are given when the batch is durable.
                EngineRequest::Get(key, out, found) => {
                    **found = self.find(key, ReadView::Pending, out)
                }
            }
        }
        let done = self.commit();
        judged(done)
    }
}
