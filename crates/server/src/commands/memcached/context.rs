//! What memcached's commands work with.

use farbank_store::{Absence, Error, Key, ReadView, Session};
use xxhash_rust::xxh3::xxh3_64;

use super::recency::KeyAccess;
use super::state::MemcachedState;
use crate::buffers::reply::ReplySink;
use crate::exec_context::ExecContext;
use crate::protocol::memcached::parse::TextLimits;
use crate::stats::counters::Counter;

/// Reply to a request that stores an item where there is no space for it.
pub(super) const OUT_OF_MEMORY_STORING: &str = "SERVER_ERROR out of memory storing object";
/// Reply to arithmetic where there is no space for the result.
pub(super) const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory";

/// What a command of memcached works with.
pub(super) type MemcachedCtx<'a> = ExecContext<'a, &'a mut dyn Session, MemcachedClient<'a>>;

/// Source of the `cas` numbers that clients see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CasSource {
    Numbers,
    /// All are 0: `cas` is off (`-C`).
    Off,
}

impl CasSource {
    /// The `cas` number of a version of the item at `name`. Later versions of an item have larger numbers. Different
    /// items with equal versions have equal numbers with a probability of 2^-16; the hash is needed because a store
    /// counts versions per key, or per group of a few keys.
    #[inline]
    pub(super) fn of(self, name: &[u8], version: u64) -> u64 {
        match (self, version) {
            (CasSource::Off, _) | (_, 0) => 0,
            (CasSource::Numbers, version) => version << 16 | xxh3_64(name) & 0xffff,
        }
    }
}

/// What commands need to know about the client and the server's options for memcached.
pub(super) struct MemcachedClient<'a> {
    pub(super) state: &'a MemcachedState,
    pub(super) limits: TextLimits,
    pub(super) cas: CasSource,
    /// The server's clock, in seconds.
    pub(super) now_secs: u64,
    /// The connection is closed once its replies are sent.
    pub(super) leaving: bool,
}

impl MemcachedCtx<'_> {
    /// Prepares a write whose reply starts here (SRV-CMD-1). Returns `None`, after an error reply, if the medium has failed.
    #[inline]
    pub(super) fn writes(&mut self, quiet: bool) -> Option<ReplyStart> {
        if let Some(reason) = self.shared.durability.poisoned.get() {
            self.count(Counter::Errors);
            self.append_reply(&cannot_be_written(reason), quiet);
            return None;
        }
        let from = self.out.len();
        let first = self.mark.is_none();
        if first {
            *self.mark = Some(from);
        }
        Some(ReplyStart { from, first, quiet })
    }

    /// Prepares a read whose reply starts here. Returns which writes it may see (SRV-CMD-2).
    #[inline]
    pub(super) fn reads(&mut self) -> ReadView {
        if self.unacknowledged && self.mark.is_none() {
            *self.mark = Some(self.out.len());
        }
        match self.mark {
            None => ReadView::Durable,
            Some(_) => ReadView::Pending,
        }
    }

    /// Counts a miss, and whether the item had expired or was flushed.
    pub(super) fn count_miss(&mut self, name: &[u8]) {
        self.count(Counter::Misses);
        match self.store.absence(key(name)) {
            Absence::Missing => {}
            Absence::Expired => self.count(Counter::Expired),
            Absence::Flushed => self.count(Counter::Flushed),
        }
    }

    /// Records a use of `key`: a read, or else a write.
    #[inline]
    pub(super) fn used(&self, key: &[u8], read: bool) {
        let secs = self.client.now_secs;
        self.client
            .state
            .recency
            .note(key, KeyAccess { secs, read });
    }

    /// Replies with a line, unless `quiet`.
    #[inline]
    pub(super) fn append_reply(&mut self, line: &str, quiet: bool) {
        if !quiet {
            self.out.extend_from_slice(line.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Replies with an error, which a client cannot suppress.
    #[cold]
    pub(super) fn refuse(&mut self, line: &str) {
        self.count(Counter::Errors);
        self.append_reply(line, false);
    }

    /// Replies with an error of the store to the request whose reply starts at `start`.
    #[cold]
    pub(super) fn failed(&mut self, error: &Error, start: ReplyStart) {
        self.out.truncate(start.from);
        self.count(Counter::Errors);
        let text = match error {
            error if error.is_full() => OUT_OF_MEMORY_STORING.to_owned(),
            Error::Poisoned(poisoned) => {
                let text = cannot_be_written(poisoned.reason());
                self.shared.note_poisoned(poisoned);
                if start.first {
                    *self.mark = None; // Nothing was written, so the error reply need not wait.
                }
                text
            }
            error => format!("SERVER_ERROR {error}"),
        };
        self.append_reply(&text, start.quiet);
    }
}

/// Start of the reply to a request.
#[derive(Clone, Copy)]
pub(super) struct ReplyStart {
    pub(super) from: usize,
    /// This request has set the mark.
    pub(super) first: bool,
    /// The client wants no reply.
    pub(super) quiet: bool,
}

fn cannot_be_written(reason: &str) -> String {
    format!("SERVER_ERROR the pool cannot be written: {reason}")
}

/// The key `bytes` in database 0.
#[inline]
pub(super) fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}
