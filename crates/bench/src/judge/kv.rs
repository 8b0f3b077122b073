//! Our engine as a contender.
//!
//! A set is a put, a commit and a wait: durable when it returns, and visible to everyone. Sets that are asked
//! for together are one commit. The cleaner works inside sets that find no room, so that its time is in
//! the clock: sixteen threads on sixteen processors leave it none of its own. An error other than a lack of
//! room has no place in an answer: it ends the judgement, in its own words.

use farbank_check::target::Target;
use farbank_contest::{Ask, Engine, Error as Refusal, Key, Tally, Terms, Worker};
use farbank_kv::store::{self, Session, Store, Value, View};
use farbank_kv::target::KvTarget;
use farbank_kv::{Cleaning, Config, Kv, segment_bytes_for};
use farbank_pm::Medium;

use super::contender::{Contender, Far};
use super::plan::Round;
use super::published::{KV, Published};
use crate::figure::Error;
use crate::on_far;

/// The engine with its defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct OurEngine;

/// The cleaner inside sets; the index sized for the round's keys, as the others' tables are, and as much for a read
/// cache as the final round's first engines took: 260 MiB of 64 GiB.
fn config(terms: &Terms) -> Config {
    Config {
        read_cache_bytes: terms.far_bytes / (64 << 10) * 260,
        cleaning: Cleaning::Inline,
        keys_expected: terms.keys,
        ..Config::default()
    }
}

impl Contender for OurEngine {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn takes(&self, _: Round) -> bool {
        true
    }

    fn is_durable(&self) -> bool {
        true
    }

    /// The preliminary round has 98 bytes of far memory for a key and value of 96. A record that says
    /// of itself which, how long and whether whole takes 40 more.
    fn terms(&self, round: Round, terms: Terms) -> Terms {
        let far_bytes = match round {
            Round::Preliminary => terms.far_bytes * 2,
            Round::Final => terms.far_bytes,
        };
        Terms { far_bytes, ..terms }
    }

    fn create(&self, far: Far, terms: &Terms) -> Result<Box<dyn Engine>, Error> {
        let segment_bytes = segment_bytes_for(terms.far_bytes);
        Ok(on_far!(far, medium => boxed(Kv::create(medium, segment_bytes, config(terms))?)))
    }

    fn open(&self, far: Far, terms: &Terms) -> Result<Box<dyn Engine>, Error> {
        Ok(on_far!(far, medium => boxed(Kv::open(medium, config(terms))?)))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        Some((&KvTarget::Plain, None))
    }

    fn published(&self, _: &Terms) -> Published {
        KV
    }
}

fn boxed<M: Medium>(kv: Kv<M>) -> Box<dyn Engine> {
    Box::new(Judged(kv))
}

struct Judged<M: Medium>(Kv<M>);

impl<M: Medium> Engine for Judged<M> {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(Door {
            session: self.0.session(),
        })
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.stats();
        vec![
            ("index", stats.index_bytes),
            ("live map", stats.live_map_bytes),
            ("read cache", stats.read_cache_bytes),
        ]
    }

    fn far_bytes(&self) -> u64 {
        let stats = self.0.stats();
        u64::from(stats.segments - stats.segments_free) * stats.segment_bytes
    }

    fn tally(&self) -> Tally {
        let stats = self.0.stats();
        Tally {
            cache_hits: stats.read_cache_hits,
            cache_misses: stats.read_cache_misses,
            ..Tally::default()
        }
    }
}

/// One worker's session.
struct Door {
    session: Box<dyn Session>,
}

fn name(key: &Key) -> store::Key<'_> {
    store::Key { db: 0, bytes: key }
}

fn plain(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

impl Door {
    fn put(&mut self, key: &Key, bytes: &[u8]) -> Result<(), store::Error> {
        self.session.put(name(key), plain(bytes)).map(|_| ())
    }

    fn commit(&mut self) -> Result<(), store::Error> {
        let ticket = self.session.commit()?;
        Ok(self.session.wait(ticket)?)
    }

    fn find(&mut self, key: &Key, view: View, out: &mut Vec<u8>) -> bool {
        out.clear();
        let found = self.session.get(name(key), view, out, &mut |_, _| true);
        found.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// What a judge understands of what became of a set.
fn judged(done: Result<(), store::Error>) -> Result<(), Refusal> {
    match done {
        Ok(()) => Ok(()),
        Err(error) if error.is_full() => Err(Refusal::Full),
        Err(store::Error::Poisoned(poisoned)) => Err(Refusal::Poisoned(poisoned)),
        Err(error) => panic!("{error}"),
    }
}

impl Worker for Door {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Refusal> {
        let done = self.session.put_alone(name(key), plain(value));
        judged(done.and_then(|(_, ticket)| Ok(self.session.wait(ticket)?)))
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.find(key, View::Durable, out)
    }

    fn together(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Refusal> {
        let (mut keys, mut reads) = (Vec::with_capacity(asks.len()), false);
        for ask in asks.iter() {
            let (Ask::Set(key, _) | Ask::Get(key, ..)) = ask;
            keys.push(name(key));
            reads |= matches!(ask, Ask::Get(..));
        }
        self.session.prefetch(&keys, reads);
        for ask in asks {
            match ask {
                Ask::Set(key, value) => {
                    let done = self.put(key, value);
                    judged(done)?;
                }
                // What this batch has set counts; all is told when it is durable.
                Ask::Get(key, out, found) => **found = self.find(key, View::Pending, out),
            }
        }
        let done = self.commit();
        judged(done)
    }
}
