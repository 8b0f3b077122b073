//! The engine's words in the superblock, and what depends on them: the clock of expiries and the floor of FLUSHALL.

use farbank_pm::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use farbank_pm::sync::{Mutex, MutexGuard, unpoisoned};
use farbank_pm::{Drain, Medium, PersistCtx, Poisoned};
use farbank_store::DatabaseMap;
use farbank_store::clock::StoreClock;

use crate::config::Config;
use crate::format::pool_root::RootWords;
use crate::segments::pool_access::PoolAccess;

/// The words of the superblock, and the context in which they are written.
pub(crate) struct SuperblockWriter {
    pub ctx: PersistCtx,
    words: RootWords,
}

/// The engine's part of the superblock.
pub(crate) struct Superblock {
    writer: Mutex<SuperblockWriter>,
    flushed_seq: AtomicU64,
    clock: StoreClock,
}

impl Superblock {
    pub(crate) fn new(words: RootWords, config: &Config) -> Superblock {
        Superblock {
            flushed_seq: AtomicU64::new(words.flushed_seq),
            clock: StoreClock::new(
                (config.clock.clone(), config.uptime.clone()),
                config.step_held_ms,
                words.clock_ms,
                &words.setbacks,
            ),
            writer: Mutex::new(SuperblockWriter {
                ctx: PersistCtx::new(u32::MAX),
                words,
            }),
        }
    }

    /// Locks the superblock for a change.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SuperblockWriter> {
        unpoisoned(self.writer.lock())
    }

    /// Changes the engine's words in the superblock. Durable on `Ok`.
    pub(crate) fn change<M: Medium>(
        &self,
        access: &PoolAccess<M>,
        change: impl FnOnce(&mut RootWords),
    ) -> Result<(), Poisoned> {
        let mut writer = self.lock();
        let SuperblockWriter { ctx, words } = &mut *writer;
        let before = *words;
        change(words);
        if *words == before {
            return Ok(());
        }
        let has_swapped = words.databases != DatabaseMap::default();
        let pool = access.pool();
        let result = pool.set_root_of_databases(ctx, &words.to_root(), has_swapped);
        if let Err(poisoned) = &result {
            *words = before;
            access.poison(poisoned);
        }
        result
    }

    /// Returns the store's clock.
    #[inline]
    pub(crate) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// Returns the highest sequence number that FLUSHALL has deleted.
    #[inline]
    pub(crate) fn flushed_seq(&self) -> u64 {
        self.flushed_seq.load(Acquire)
    }

    /// Sets the highest sequence number that FLUSHALL has deleted. It must be durable.
    pub(crate) fn set_flushed_seq(&self, seq: u64) {
        self.flushed_seq.store(seq, Release);
    }

    /// Returns whether a value with sequence number `seq` that expires at `expires_ms` has expired. An expired value
    /// stays expired, even if the machine's clock is set back: the time is made durable first (on a file: by the
    /// background thread, within a second).
    #[inline]
    pub(crate) fn is_expired<M: Medium>(
        &self,
        access: &PoolAccess<M>,
        expires_ms: u64,
        seq: u64,
    ) -> bool {
        self.clock.has_expired(expires_ms, seq, || {
            if access.caps().drain == Drain::Fence {
                // An error has poisoned the engine, so the next write fails.
                self.record_time(access).ok();
            }
        })
    }

    /// Makes the latest time at which a value was found expired durable.
    pub(crate) fn record_time<M: Medium>(&self, access: &PoolAccess<M>) -> Result<(), Poisoned> {
        self.clock.record(|acted_ms| {
            self.change(access, |words| {
                words.clock_ms = words.clock_ms.max(acted_ms)
            })
        })
    }
}
