//! Adapter of the cache for the checks: `check crash --target mdb`.
//!
//! The pool has a few small pages, so that evictions, merges, pages that change their class, and recovery happen in
//! every run. A cache may forget ([`TargetShape::forgets`]): the check is that no item shown is old, deleted or
//! expired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_check::Violation;
use farbank_check::target::{
    OpAnswer, SharedTarget, Target, TargetClient, TargetOp, TargetShape, TargetSubject,
    Value as Stored,
};
use farbank_pm::fault::NamedFault;
use farbank_pm::sim::{Persistency, Sim};
use farbank_pm::situation::Situation;
use farbank_pm::{Medium, Ticket};
use farbank_store::Store;
use farbank_store::clock::ClockFn;
use farbank_store::explored::{BatchMode, IDENTITY, SessionClient};

use crate::cache::Cache;
use crate::config::{Config, EvictionOrder};
use crate::metadata::MetadataRoom;

/// The cache on six pages of 4 KiB, which may become eight.
#[derive(Clone, Copy, Debug, Default)]
pub struct MdbTarget;

const PAGE_BYTES: u64 = 4 << 10;
/// Size up to which the pool may grow.
const POOL_BYTES_MAX: u64 = 8192 + 9 * PAGE_BYTES;
const SESSIONS: usize = 2;

impl Target for MdbTarget {
    fn name(&self) -> &str {
        "mdb"
    }

    fn has_command(&self) -> bool {
        true
    }

    fn shape(&self) -> TargetShape {
        TargetShape {
            pool_bytes: 8192 + 7 * PAGE_BYTES,
            keys: 16,
            value_bytes: (8, 1_500),
            sessions: SESSIONS,
            batches: true,
            deletes: true,
            updates: true,
            decides: true,
            expiry: true,
            flush_all: true,
            abandons: true,
            cleans: true,
            used_before: true,
            forgets: true,
            ..TargetShape::default()
        }
    }

    /// Large enough for all writes of a schedule, so that nothing is evicted.
    fn shape_in_threads(&self) -> TargetShape {
        TargetShape {
            pool_bytes: 8192 + 14 * PAGE_BYTES,
            value_bytes: (8, 200),
            ..self.shape()
        }
    }

    fn faults(&self) -> &'static [NamedFault] {
        &crate::faults::ALL
    }

    fn situations(&self) -> Vec<Situation> {
        crate::situations::ALL.to_vec()
    }

    fn faults_in_threads(&self) -> &'static [NamedFault] {
        &crate::faults::IN_THREADS
    }

    fn create(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        let time = Arc::new(AtomicU64::new(now_ms));
        let config = config(&time, EvictionOrder::S3Fifo);
        let cache = Cache::create_as(sim, PAGE_BYTES, IDENTITY, config, near);
        let cache = cache?;
        Ok(MdbSubject::over(cache, time))
    }

    fn open(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        let MdbSharedTarget { cache, time } = open(sim, now_ms)?;
        Ok(MdbSubject::over(cache, time))
    }

    fn share(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn SharedTarget>, Violation> {
        Ok(Box::new(open(sim, now_ms)?))
    }
}

fn open(sim: Sim, now_ms: u64) -> Result<MdbSharedTarget<Sim>, Violation> {
    // The wall clock is set back to 0. After a clean close the pool has the time. After a crash the wall clock may be
    // set.
    let time = Arc::new(AtomicU64::new(0));
    let cache = Cache::open_on(sim, config(&time, eviction_after(now_ms)), near)?;
    if !cache.opened().clean {
        time.store(now_ms, Relaxed);
    }
    Ok(MdbSharedTarget { cache, time })
}

/// Metadata needs no durability. It is on a simulated medium in eADR mode, so that the explorer does not vary it.
fn near(room: MetadataRoom) -> std::io::Result<Sim> {
    Ok(Sim::new(room.bytes, Persistency::Eadr))
}

/// Returns the order of eviction after an open at `now_ms`. So runs change from one order to the other.
fn eviction_after(now_ms: u64) -> EvictionOrder {
    match now_ms / 8 % 2 {
        0 => EvictionOrder::Lru,
        _ => EvictionOrder::S3Fifo,
    }
}

fn config(time: &Arc<AtomicU64>, eviction: EvictionOrder) -> Config {
    let time = Arc::clone(time);
    let clock: ClockFn = Arc::new(move || time.load(Relaxed));
    Config {
        clock: Arc::clone(&clock),
        uptime: clock,
        eviction,
        background_maintenance: false,
        pool_bytes_max: POOL_BYTES_MAX,
        slots_per_refill: 2,
        slot_bytes_min: 128,
        slot_factor: 2.0,
        ..Config::default()
    }
}

/// A cache for one caller.
struct MdbSubject<M: Medium> {
    /// Declared first, so that it is dropped before the cache.
    clients: Vec<SessionClient>,
    cache: Cache<M, Sim>,
    time: Arc<AtomicU64>,
}

impl<M: Medium> MdbSubject<M> {
    fn over(cache: Cache<M, Sim>, time: Arc<AtomicU64>) -> Box<dyn TargetSubject> {
        Box::new(MdbSubject {
            clients: (0..SESSIONS).map(|_| client(&cache)).collect(),
            cache,
            time,
        })
    }

    fn commit_others(&mut self, session: Option<usize>) -> Result<(), Violation> {
        for other in (0..SESSIONS).filter(|&other| Some(other) != session) {
            self.clients[other].commit()?;
        }
        Ok(())
    }
}

fn client<M: Medium>(cache: &Cache<M, Sim>) -> SessionClient {
    SessionClient::new(Box::new(cache.new_session()), BatchMode::Many)
}

/// Does the work of the background thread.
fn maintain<M: Medium>(cache: &Cache<M, Sim>) -> Result<(), Violation> {
    let tended = cache.tidy().and_then(|_| cache.balance());
    tended.map(|_| ()).map_err(Violation::from)
}

/// A cache for several threads.
struct MdbSharedTarget<M: Medium> {
    cache: Cache<M, Sim>,
    time: Arc<AtomicU64>,
}

impl<M: Medium> SharedTarget for MdbSharedTarget<M> {
    fn client(&self) -> Box<dyn TargetClient> {
        Box::new(client(&self.cache))
    }

    fn clean(&self) -> Result<(), Violation> {
        maintain(&self.cache)
    }

    fn into_subject(self: Box<Self>) -> Box<dyn TargetSubject> {
        MdbSubject::over(self.cache, self.time)
    }
}

impl<M: Medium> TargetSubject for MdbSubject<M> {
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, Violation> {
        // A session waits for the session that has staged a write of its key. There is only one thread, so all other
        // sessions are committed first.
        self.commit_others(Some(session))?;
        self.clients[session].apply(op)
    }

    fn commit(&mut self, session: usize) -> Result<Ticket, Violation> {
        self.clients[session].commit()
    }

    fn durable(&mut self, session: usize, ticket: Ticket) -> Result<bool, Violation> {
        self.clients[session].durable(ticket)
    }

    fn abandon(&mut self, session: usize) -> Result<bool, Violation> {
        self.clients[session] = client(&self.cache);
        Ok(false) // A full batch, or one that is read, is written before its commit.
    }

    fn contents(&mut self) -> Result<Vec<(u64, Stored)>, Violation> {
        self.commit_others(Some(0))?;
        self.clients[0].contents()
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.commit_others(None)?;
        self.cache.verify().map_err(Violation::from)
    }

    fn clean(&mut self) -> Result<(), Violation> {
        maintain(&self.cache)
    }

    fn made_room(&self) -> bool {
        self.cache
            .stats()
            .cache
            .is_some_and(|cache| cache.evictions > 0)
    }

    fn set_time(&mut self, now_ms: u64) {
        self.time.store(now_ms, Relaxed);
    }

    fn close(self: Box<Self>) -> Result<(), Violation> {
        let MdbSubject { clients, cache, .. } = *self;
        drop(clients);
        cache.close().map(|_| ()).map_err(Violation::from)
    }
}
