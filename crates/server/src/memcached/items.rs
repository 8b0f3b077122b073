//! What requests of either kind do to items: store on a condition, renew, delete, add.
//!
//! Each is one `update` of the store: read, decided and written at once, on top of the newest value.

use farbank_kv::store::{
    Error, KIND_STALE, KIND_TYPE, KIND_WON, StoredItem, UpdateDecision, Value, ValueMeta,
};

use xxhash_rust::xxh3::xxh3_64;

use super::parse::{StoreCondition, u64_of};
use super::{MemcachedCtx, key};
use crate::resp::number::DecimalText;
use crate::shared::Counter;

/// Longest time that counts from now, in seconds; what is longer is a moment since 1970.
const RELATIVE_SECS_MAX: i32 = 60 * 60 * 24 * 30;
/// A moment that has passed.
const PAST_MS: u64 = 1;

/// When something expires that was given `exptime`, in milliseconds since 1970; 0 is never.
pub(super) fn expires_ms(exptime: i32, now_ms: impl FnOnce() -> u64) -> u64 {
    match exptime {
        0 => 0,
        ..0 => PAST_MS,
        1..=RELATIVE_SECS_MAX => now_ms() + u64::from(exptime.unsigned_abs()) * 1000,
        _ => u64::from(exptime.unsigned_abs()) * 1000,
    }
}

/// What items are known by to clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CasSource {
    Numbers,
    /// All are 0, which is nothing (`-C`).
    Off,
}

impl CasSource {
    /// What clients are told of a version of the item at `name`: no other item has the same, but by a chance of
    /// one in 2^16, and a later one of the same item has a larger one. A store counts versions of one key, or
    /// of a few.
    #[inline]
    pub(super) fn of(self, name: &[u8], version: u64) -> u64 {
        match (self, version) {
            (CasSource::Off, _) | (_, 0) => 0,
            (CasSource::Numbers, version) => version << 16 | xxh3_64(name) & 0xffff,
        }
    }
}

/// Something to be stored.
#[derive(Clone, Copy)]
pub(super) struct ItemWrite<'a> {
    pub(super) how: StoreCondition,
    pub(super) key: &'a [u8],
    pub(super) value: Value<'a>,
    /// What it must be known by ([`Cas::of`]); 0 is anything, but for [`How::Cas`].
    pub(super) cas: u64,
    /// A version that is older than the item's stores a stale item.
    pub(super) may_be_stale: bool,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteOutcome {
    Stored,
    NotStored,
    Exists,
    NotFound,
}

/// Stores `write`, if its condition holds. Returns the new version, 0 if it was not stored.
#[inline]
pub(super) fn store(
    ctx: &mut MemcachedCtx<'_>,
    write: &ItemWrite<'_>,
) -> Result<(WriteOutcome, u64), Error> {
    let mut write = *write;
    if ctx.cas == CasSource::Off {
        write.cas = 0;
        // Nothing tells it from what was stored before in the same second.
        if ctx.shared.memo.was_flushed_at(ctx.now_secs) {
            write.value.expires_ms = PAST_MS;
        }
    }
    if write.how != StoreCondition::Set {
        return store_if(ctx, &write);
    }
    let version = ctx.session.put(key(write.key), write.value)?;
    stored(ctx, write.key);
    Ok((WriteOutcome::Stored, version))
}

#[inline]
fn stored(ctx: &mut MemcachedCtx<'_>, key: &[u8]) {
    ctx.count(Counter::Stored);
    ctx.used(key, false);
}

fn store_if(
    ctx: &mut MemcachedCtx<'_>,
    write: &ItemWrite<'_>,
) -> Result<(WriteOutcome, u64), Error> {
    let mut decided = WriteOutcome::NotStored;
    let (limits, cas) = (ctx.limits, ctx.cas);
    let version = ctx.session.update(key(write.key), &mut |item| {
        let (outcome, change) = match item {
            None => absent(write),
            Some(item) => present(write, item, cas),
        };
        decided = outcome;
        match change {
            UpdateDecision::Put { bytes, flags, .. }
                if limits.exceeded(write.key.len(), flags, bytes.len()) =>
            {
                decided = WriteOutcome::NotStored;
                UpdateDecision::Keep
            }
            change => change,
        }
    })?;
    if write.how == StoreCondition::Cas {
        ctx.count(match decided {
            WriteOutcome::Stored => Counter::CasHits,
            WriteOutcome::NotFound => Counter::CasMisses,
            _ => Counter::CasBad,
        });
    }
    if decided != WriteOutcome::Stored {
        return Ok((decided, 0));
    }
    stored(ctx, write.key);
    Ok((decided, version))
}

fn put(value: Value<'_>) -> UpdateDecision {
    UpdateDecision::Put {
        bytes: value.bytes.to_vec(),
        expires_ms: value.expires_ms,
        flags: value.flags,
        kind: value.kind,
    }
}

fn absent(write: &ItemWrite<'_>) -> (WriteOutcome, UpdateDecision) {
    match write.how {
        StoreCondition::Set | StoreCondition::Add => (WriteOutcome::Stored, put(write.value)),
        StoreCondition::Cas => (WriteOutcome::NotFound, UpdateDecision::Keep),
        StoreCondition::Replace | StoreCondition::Append | StoreCondition::Prepend => {
            (WriteOutcome::NotStored, UpdateDecision::Keep)
        }
    }
}

fn present(
    write: &ItemWrite<'_>,
    item: StoredItem<'_>,
    cas: CasSource,
) -> (WriteOutcome, UpdateDecision) {
    let cas = cas.of(write.key, item.meta.version);
    let other = write.cas != 0 && write.cas != cas;
    let outdated = other && write.may_be_stale && write.cas < cas;
    let refused = |outcome| (outcome, UpdateDecision::Keep);
    match write.how {
        StoreCondition::Set | StoreCondition::Replace => (WriteOutcome::Stored, put(write.value)),
        StoreCondition::Add => refused(WriteOutcome::NotStored),
        StoreCondition::Cas if outdated => {
            let value = Value {
                expires_ms: item.meta.expires_ms,
                kind: KIND_STALE | item.meta.kind & KIND_WON,
                ..write.value
            };
            (WriteOutcome::Stored, put(value))
        }
        StoreCondition::Cas if other || write.cas == 0 => refused(WriteOutcome::Exists),
        StoreCondition::Cas => (WriteOutcome::Stored, put(write.value)),
        StoreCondition::Append | StoreCondition::Prepend if other => refused(WriteOutcome::Exists),
        StoreCondition::Append => joined(item, item.bytes, write.value.bytes),
        StoreCondition::Prepend => joined(item, write.value.bytes, item.bytes),
    }
}

/// The two after each other, with what the item has besides.
fn joined(item: StoredItem<'_>, first: &[u8], second: &[u8]) -> (WriteOutcome, UpdateDecision) {
    let change = UpdateDecision::Put {
        bytes: [first, second].concat(),
        expires_ms: item.meta.expires_ms,
        flags: item.meta.flags,
        kind: item.meta.kind & KIND_TYPE,
    };
    (WriteOutcome::Stored, change)
}

/// The same value with something else about it.
pub(super) fn with(item: StoredItem<'_>, expires_ms: u64, kind: u8) -> UpdateDecision {
    UpdateDecision::Put {
        bytes: item.bytes.to_vec(),
        expires_ms,
        flags: item.meta.flags,
        kind,
    }
}

/// An item as it was found, and its value, if that was asked for.
pub(super) struct FoundItem {
    pub(super) meta: ValueMeta,
    pub(super) bytes: Vec<u8>,
}

/// Gives `name` another expiry. Returns the item as it is then, with its value for `wanted`.
pub(super) fn renew(
    ctx: &mut MemcachedCtx<'_>,
    name: &[u8],
    expires_ms: u64,
    wanted: bool,
) -> Result<Option<FoundItem>, Error> {
    let mut found = None;
    let version = ctx.session.update(key(name), &mut |item| {
        found = item.map(|item| FoundItem {
            meta: item.meta,
            bytes: if wanted {
                item.bytes.to_vec()
            } else {
                Vec::new()
            },
        });
        match item {
            Some(item) if item.meta.expires_ms != expires_ms => {
                with(item, expires_ms, item.meta.kind)
            }
            _ => UpdateDecision::Keep,
        }
    })?;
    ctx.count(match found {
        Some(_) => Counter::TouchHits,
        None => Counter::TouchMisses,
    });
    if let Some(found) = &mut found {
        found.meta.version = version;
        found.meta.expires_ms = expires_ms;
        ctx.used(name, true);
    }
    Ok(found)
}

/// Whether a number grows or shrinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CounterDirection {
    Plus,
    Minus,
}

impl CounterDirection {
    /// `value` after `delta`: growing wraps around, shrinking ends at 0.
    fn apply(self, value: u64, delta: u64) -> u64 {
        match self {
            CounterDirection::Plus => value.wrapping_add(delta),
            CounterDirection::Minus => value.saturating_sub(delta),
        }
    }
}

/// What is added, to what, and what is there if nothing was.
pub(super) struct CounterChange<'a> {
    pub(super) key: &'a [u8],
    pub(super) sign: CounterDirection,
    pub(super) delta: u64,
    /// What it must be known by; 0 is anything.
    pub(super) cas: u64,
    /// Another expiry.
    pub(super) expires_ms: Option<u64>,
    /// For an absent key: a value and its expiry.
    pub(super) initial: Option<(u64, u64)>,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CounterOutcome {
    /// The number, and the expiry the item had before.
    Is {
        value: u64,
        expired_ms: u64,
    },
    /// The initial value.
    Began(u64),
    NotFound,
    NotNumeric,
    Exists,
}

/// Adds to the number at a key. Returns the item's version then.
pub(super) fn add(
    ctx: &mut MemcachedCtx<'_>,
    sum: &CounterChange<'_>,
) -> Result<(CounterOutcome, u64), Error> {
    let mut total = CounterOutcome::NotFound;
    let cas = ctx.cas;
    let version = ctx.session.update(key(sum.key), &mut |item| {
        let (outcome, change) = added(sum, item, cas);
        total = outcome;
        change
    })?;
    match (total, sum.sign) {
        (CounterOutcome::Is { .. }, CounterDirection::Plus) => ctx.count(Counter::IncrHits),
        (CounterOutcome::Is { .. }, CounterDirection::Minus) => ctx.count(Counter::DecrHits),
        (CounterOutcome::NotFound, CounterDirection::Plus) => ctx.count(Counter::IncrMisses),
        (CounterOutcome::NotFound, CounterDirection::Minus) => ctx.count(Counter::DecrMisses),
        _ => {}
    }
    if let CounterOutcome::Is { .. } | CounterOutcome::Began(_) = total {
        ctx.used(sum.key, matches!(total, CounterOutcome::Is { .. }));
    }
    Ok((total, version))
}

fn added(
    sum: &CounterChange<'_>,
    item: Option<StoredItem<'_>>,
    cas: CasSource,
) -> (CounterOutcome, UpdateDecision) {
    let Some(item) = item else {
        let Some((value, expires_ms)) = sum.initial else {
            return (CounterOutcome::NotFound, UpdateDecision::Keep);
        };
        let change = UpdateDecision::Put {
            bytes: DecimalText::unsigned(value).as_bytes().to_vec(),
            expires_ms,
            flags: 0,
            kind: 0,
        };
        return (CounterOutcome::Began(value), change);
    };
    if sum.cas != 0 && sum.cas != cas.of(sum.key, item.meta.version) {
        return (CounterOutcome::Exists, UpdateDecision::Keep);
    }
    let Some(old) = u64_of(item.bytes) else {
        return (CounterOutcome::NotNumeric, UpdateDecision::Keep);
    };
    let value = sum.sign.apply(old, sum.delta);
    // A number that became shorter keeps its item's length.
    let mut bytes = DecimalText::unsigned(value).as_bytes().to_vec();
    bytes.resize(bytes.len().max(item.bytes.len()), b' ');
    let change = UpdateDecision::Put {
        bytes,
        expires_ms: sum.expires_ms.unwrap_or(item.meta.expires_ms),
        flags: item.meta.flags,
        kind: item.meta.kind,
    };
    let expired_ms = item.meta.expires_ms;
    (CounterOutcome::Is { value, expired_ms }, change)
}
