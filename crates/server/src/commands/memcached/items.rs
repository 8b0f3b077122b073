//! Operations on items for classic and meta commands: conditional stores, new expiries, arithmetic.
//!
//! Each is one atomic `update` of the store, on top of the newest value. An unconditional store is a `put`.

use farbank_store::{
    Error, KIND_STALE, KIND_TYPE, KIND_WON, StoredItem, UpdateDecision, Value, ValueMeta,
};

use super::context::{CasSource, MemcachedCtx, key};
use crate::protocol::memcached::parse::{StoreCondition, u64_of};
use crate::protocol::resp::number::DecimalText;
use crate::stats::counters::Counter;

/// Longest relative expiry, in seconds; a larger number is a time since 1970.
const RELATIVE_SECS_MAX: i32 = 60 * 60 * 24 * 30;
/// A time in the past, in milliseconds since 1970.
const PAST_MS: u64 = 1;

/// Converts a client's `exptime` to milliseconds since 1970; 0 means never.
pub(super) fn expires_ms(exptime: i32, now_ms: impl FnOnce() -> u64) -> u64 {
    match exptime {
        0 => 0,
        ..0 => PAST_MS,
        1..=RELATIVE_SECS_MAX => now_ms() + u64::from(exptime.unsigned_abs()) * 1000,
        _ => u64::from(exptime.unsigned_abs()) * 1000,
    }
}

/// A write of an item.
#[derive(Clone, Copy)]
pub(super) struct ItemWrite<'a> {
    pub(super) how: StoreCondition,
    pub(super) key: &'a [u8],
    pub(super) value: Value<'a>,
    /// The `cas` number that the item must have ([`CasSource::of`]); 0 accepts any, except for [`StoreCondition::Cas`].
    pub(super) cas: u64,
    /// If `cas` is older than the item's, store the value and mark the item stale.
    pub(super) may_be_stale: bool,
}

/// Outcome of [`store`].
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
    if ctx.client.cas == CasSource::Off {
        write.cas = 0;
        // As in memcached without `cas`, an item stored in the same second as a flush counts as flushed.
        if ctx.client.state.was_flushed_at(ctx.client.now_secs) {
            write.value.expires_ms = PAST_MS;
        }
    }
    if write.how != StoreCondition::Set {
        return store_if(ctx, &write);
    }
    let version = ctx.store.put(key(write.key), write.value)?;
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
    let (limits, cas) = (ctx.client.limits, ctx.client.cas);
    let version = ctx.store.update(key(write.key), &mut |item| {
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

/// Stores the concatenation of two values, and keeps the item's flags and expiry.
fn joined(item: StoredItem<'_>, first: &[u8], second: &[u8]) -> (WriteOutcome, UpdateDecision) {
    let change = UpdateDecision::Put {
        bytes: [first, second].concat(),
        expires_ms: item.meta.expires_ms,
        flags: item.meta.flags,
        kind: item.meta.kind & KIND_TYPE,
    };
    (WriteOutcome::Stored, change)
}

/// Returns the decision to store the same value with another expiry and kind.
pub(super) fn with(item: StoredItem<'_>, expires_ms: u64, kind: u8) -> UpdateDecision {
    UpdateDecision::Put {
        bytes: item.bytes.to_vec(),
        expires_ms,
        flags: item.meta.flags,
        kind,
    }
}

/// An item that was found. `bytes` is empty if the value was not requested.
pub(super) struct FoundItem {
    pub(super) meta: ValueMeta,
    pub(super) bytes: Vec<u8>,
}

/// Sets the expiry of `name`. Returns the item after the change, with its value if `wanted`.
pub(super) fn set_expiry(
    ctx: &mut MemcachedCtx<'_>,
    name: &[u8],
    expires_ms: u64,
    wanted: bool,
) -> Result<Option<FoundItem>, Error> {
    let mut found = None;
    let version = ctx.store.update(key(name), &mut |item| {
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

/// Whether a change increments or decrements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CounterDirection {
    Plus,
    Minus,
}

impl CounterDirection {
    /// Applies `delta` to `value`. Incrementing wraps around; decrementing stops at 0.
    fn apply(self, value: u64, delta: u64) -> u64 {
        match self {
            CounterDirection::Plus => value.wrapping_add(delta),
            CounterDirection::Minus => value.saturating_sub(delta),
        }
    }
}

/// A change of a number.
pub(super) struct CounterChange<'a> {
    pub(super) key: &'a [u8],
    pub(super) sign: CounterDirection,
    pub(super) delta: u64,
    /// The `cas` number that the item must have; 0 accepts any.
    pub(super) cas: u64,
    /// New expiry of an existing item.
    pub(super) expires_ms: Option<u64>,
    /// Value and expiry to create if the key is absent.
    pub(super) initial: Option<(u64, u64)>,
}

/// Outcome of [`add`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CounterOutcome {
    /// The new number, and the item's old expiry.
    Is {
        value: u64,
        expired_ms: u64,
    },
    /// The item was created with this value.
    Created(u64),
    NotFound,
    NotNumeric,
    Exists,
}

/// Changes the number at a key. Returns the outcome and the item's new version.
pub(super) fn add(
    ctx: &mut MemcachedCtx<'_>,
    sum: &CounterChange<'_>,
) -> Result<(CounterOutcome, u64), Error> {
    let mut total = CounterOutcome::NotFound;
    let cas = ctx.client.cas;
    let version = ctx.store.update(key(sum.key), &mut |item| {
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
    if let CounterOutcome::Is { .. } | CounterOutcome::Created(_) = total {
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
        return (CounterOutcome::Created(value), change);
    };
    if sum.cas != 0 && sum.cas != cas.of(sum.key, item.meta.version) {
        return (CounterOutcome::Exists, UpdateDecision::Keep);
    }
    let Some(old) = u64_of(item.bytes) else {
        return (CounterOutcome::NotNumeric, UpdateDecision::Keep);
    };
    let value = sum.sign.apply(old, sum.delta);
    // As in memcached, a number that became shorter is padded with blanks to the old length.
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
