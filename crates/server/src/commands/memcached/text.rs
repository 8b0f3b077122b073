//! The classic commands: get gets gat gats set add replace append prepend cas touch delete incr decr
//! flush_all verbosity refresh_certs.

use farbank_store::{Error, ReadView, Value, ValueMeta};

use super::context::{CasSource, MemcachedCtx, OUT_OF_MEMORY, ReplyStart, key};
use super::items::{
    self, CounterChange, CounterDirection, CounterOutcome, ItemWrite, WriteOutcome, expires_ms,
};
use super::prefixes::KeyOperation;
use crate::buffers::pool::reserve;
use crate::buffers::reply::ReplySink;
use crate::exec_context::{ExecOutcome, LONG_REQUEST_BYTES, WINDOW};
use crate::protocol::memcached::parse::{
    BAD_FORMAT, ERROR, KEY_BYTES_MAX, StoreCondition, StoreRequest, ValuePayload, Words, i32_of,
    u32_of, u64_of,
};
use crate::protocol::resp::number::DecimalText;
use crate::settings::WireProtocol;
use crate::stats::counters::Counter;

pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
pub(super) const REPLY_TOO_LONG: &str = "SERVER_ERROR out of memory writing get response";

/// Most bytes of a value's frame in a reply, besides the key.
const LINE_BYTES_MAX: usize = 64;

/// Appends the line before a value's bytes.
#[inline]
fn value_line(out: &mut impl ReplySink, key: &[u8], meta: &ValueMeta, cas: Option<CasSource>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    if meta.flags == 0 {
        out.extend_from_slice(b" 0 ");
    } else {
        out.push(b' ');
        out.extend_from_slice(DecimalText::unsigned(meta.flags.into()).as_bytes());
        out.push(b' ');
    }
    out.extend_from_slice(DecimalText::unsigned(meta.value_bytes as u64).as_bytes());
    if let Some(cas) = cas {
        out.push(b' ');
        let known_by = cas.of(key, meta.version);
        out.extend_from_slice(DecimalText::unsigned(known_by).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// `get key...`, `gets key...`
#[inline]
pub(super) fn get(ctx: &mut MemcachedCtx<'_>, keys: Words<'_>, cas: bool) -> ExecOutcome {
    let from = ctx.out.len();
    let view = ctx.reads();
    let mut rest = keys;
    let Some(first) = rest.next() else {
        ctx.refuse(ERROR);
        return ExecOutcome::Done;
    };
    let mut left = match ctx.executes_long {
        true => usize::MAX,
        false => LONG_REQUEST_BYTES,
    };
    let one = rest.clone().next().is_none();
    let got = if one {
        get_one(ctx, first, view, cas, &mut left)
    } else {
        get_all(ctx, keys, view, cas, &mut left)
    };
    match got {
        Ok(()) => ctx.out.extend_from_slice(b"END\r\n"),
        Err(RetrievalError::Long) => {
            ctx.out.rewind(from);
            return ExecOutcome::Long;
        }
        Err(fail) => fail.reply(ctx, from),
    }
    ExecOutcome::Done
}

/// Why a retrieval does not reply with items.
enum RetrievalError {
    Is(&'static str),
    Store(Error),
    /// The values are too large for a worker: the thread of long requests must read them.
    Long,
}

impl RetrievalError {
    fn reply(&self, ctx: &mut MemcachedCtx<'_>, from: usize) {
        match self {
            RetrievalError::Is(text) => {
                ctx.out.rewind(from);
                ctx.refuse(text);
            }
            RetrievalError::Store(error) => {
                let (first, quiet) = (false, false);
                ctx.failed(error, ReplyStart { from, first, quiet });
            }
            RetrievalError::Long => {}
        }
    }
}

/// Appends the item `name`, if it exists. `left`: bytes of values that the request may still read.
#[inline]
fn get_one(
    ctx: &mut MemcachedCtx<'_>,
    name: &[u8],
    view: ReadView,
    cas: bool,
    left: &mut usize,
) -> Result<(), RetrievalError> {
    if name.len() > KEY_BYTES_MAX {
        return Err(RetrievalError::Is(BAD_FORMAT));
    }
    let cas = cas.then_some(ctx.client.cas);
    let (most, mut fits, mut value_bytes) = (ctx.out.bytes_max(), true, 0);
    let bytes_left = *left;
    let buffer_pool = &mut ctx.thread.buffer_pool;
    let mut head = |meta: &ValueMeta, out: &mut Vec<u8>| {
        value_bytes = meta.value_bytes;
        if value_bytes > bytes_left {
            return false;
        }
        let bytes = name.len() + meta.value_bytes + LINE_BYTES_MAX;
        fits = out.len().saturating_add(bytes) <= most;
        if fits {
            reserve(out, bytes, buffer_pool);
            value_line(out, name, meta, cas);
        }
        fits
    };
    let out = ctx.out.bytes_mut();
    let found = ctx.store.get(key(name), view, out, &mut head);
    let hit = found.map_err(RetrievalError::Store)?;
    *left = bytes_left
        .checked_sub(value_bytes)
        .ok_or(RetrievalError::Long)?;
    if !fits {
        return Err(RetrievalError::Is(REPLY_TOO_LONG));
    }
    if hit {
        ctx.out.extend_from_slice(b"\r\n");
        ctx.count(Counter::Hits);
        ctx.used(name, true);
    } else {
        ctx.count_miss(name);
    }
    ctx.client
        .state
        .prefixes
        .note(name, KeyOperation::Get { hit });
    Ok(())
}

/// Appends the items `names` that exist. Prefetches a window of them at a time.
fn get_all(
    ctx: &mut MemcachedCtx<'_>,
    mut names: Words<'_>,
    view: ReadView,
    cas: bool,
    left: &mut usize,
) -> Result<(), RetrievalError> {
    let mut first = true;
    let counted = ctx.thread.counters;
    loop {
        let mut keys = [key(&[]); WINDOW];
        let mut count = 0;
        for name in names.by_ref().take(WINDOW) {
            keys[count] = key(name);
            count += 1;
        }
        if keys.iter().any(|key| key.bytes.len() > KEY_BYTES_MAX) {
            return Err(RetrievalError::Is(BAD_FORMAT));
        }
        // The look-ahead has already sampled the first key.
        ctx.thread
            .sampler
            .sample(&keys[count.min(first.into())..count], &ctx.published.hot);
        first = false;
        ctx.store.prefetch(&keys[..count], true);
        for key in &keys[..count] {
            get_one(ctx, key.bytes, view, cas, left).inspect_err(|fail| {
                if let RetrievalError::Long = fail {
                    ctx.thread.counters = counted;
                }
            })?;
        }
        if count < WINDOW {
            return Ok(());
        }
    }
}

/// `gat exptime key...`, `gats exptime key...`
pub(super) fn get_and_touch(ctx: &mut MemcachedCtx<'_>, mut args: Words<'_>, cas: bool) {
    let Some(exptime) = args.next() else {
        return ctx.refuse(ERROR);
    };
    let Some(exptime) = i32_of(exptime) else {
        return ctx.refuse(BAD_EXPTIME);
    };
    if args.clone().any(|name| name.len() > KEY_BYTES_MAX) {
        return ctx.refuse(BAD_FORMAT);
    }
    let Some(start) = ctx.writes(false) else {
        return;
    };
    let at = expires_ms(exptime, || ctx.store.now_ms());
    for name in args {
        match items::set_expiry(ctx, name, at, true) {
            Ok(Some(found)) => {
                ctx.count(Counter::Hits);
                value_line(ctx.out, name, &found.meta, cas.then_some(ctx.client.cas));
                ctx.out.extend_from_slice(&found.bytes);
                ctx.out.extend_from_slice(b"\r\n");
            }
            Ok(None) => ctx.count_miss(name),
            Err(error) => return ctx.failed(&error, start),
        }
        if ctx.out.is_cut() {
            return RetrievalError::Is(REPLY_TOO_LONG).reply(ctx, start.from);
        }
    }
    ctx.out.extend_from_slice(b"END\r\n");
}

/// `set|add|replace|append|prepend|cas key flags exptime bytes [cas] [noreply]` and a value.
#[inline]
pub(super) fn store(ctx: &mut MemcachedCtx<'_>, store: &StoreRequest<'_>) {
    let Some(start) = ctx.writes(store.quiet) else {
        return;
    };
    ctx.count(Counter::Sets);
    ctx.client.state.prefixes.note(store.key, KeyOperation::Set);
    let bytes = match store.payload {
        ValuePayload::Whole(bytes) => bytes,
        ValuePayload::Misplaced => return ctx.append_reply(BAD_CHUNK, store.quiet),
        ValuePayload::TooLarge => return too_large(ctx, store.key, store.how, start),
    };
    let write = ItemWrite {
        how: store.how,
        key: store.key,
        value: Value {
            bytes,
            expires_ms: expires_ms(store.exptime, || ctx.store.now_ms()),
            flags: store.flags,
            kind: 0,
        },
        cas: store.cas,
        may_be_stale: false,
    };
    match items::store(ctx, &write) {
        Ok((outcome, _)) => ctx.append_reply(
            match outcome {
                WriteOutcome::Stored => "STORED",
                WriteOutcome::NotStored => "NOT_STORED",
                WriteOutcome::Exists => "EXISTS",
                WriteOutcome::NotFound => "NOT_FOUND",
            },
            store.quiet,
        ),
        Err(error) => not_stored(ctx, &write, &error, start),
    }
}

/// Replies that a value is too large. A refused `set` deletes the old item.
pub(super) fn too_large(
    ctx: &mut MemcachedCtx<'_>,
    name: &[u8],
    how: StoreCondition,
    start: ReplyStart,
) {
    ctx.count(Counter::TooLarge);
    match delete_old_after_refused_set(ctx, name, how) {
        Ok(()) => ctx.append_reply(TOO_LARGE, start.quiet),
        Err(error) => ctx.failed(&error, start),
    }
}

/// After a refused `set`, deletes the old item, so that clients do not read it as the new value.
fn delete_old_after_refused_set(
    ctx: &mut MemcachedCtx<'_>,
    name: &[u8],
    how: StoreCondition,
) -> Result<(), Error> {
    match how {
        StoreCondition::Set => ctx.store.delete(key(name)).map(drop),
        _ => Ok(()),
    }
}

/// Replies to a write that the store refused. If the store is full, a refused `set` deletes the old item.
#[cold]
pub(super) fn not_stored(
    ctx: &mut MemcachedCtx<'_>,
    write: &ItemWrite<'_>,
    error: &Error,
    start: ReplyStart,
) {
    match error {
        Error::ItemTooLarge { .. } => return too_large(ctx, write.key, write.how, start),
        error if error.is_full() => {
            ctx.count(Counter::NoMemory);
            if let Err(error) = delete_old_after_refused_set(ctx, write.key, write.how) {
                return ctx.failed(&error, start);
            }
        }
        _ => {}
    }
    ctx.failed(error, start);
}

/// Parses a command's `N` words and an optional `noreply` after them. Returns `None`, after an error reply, if their
/// number is wrong.
fn args<'a, const N: usize>(
    ctx: &mut MemcachedCtx<'_>,
    mut words: Words<'a>,
) -> Option<([&'a [u8]; N], bool)> {
    let mut found = [&[][..]; N];
    for slot in &mut found {
        let Some(word) = words.next() else {
            ctx.refuse(ERROR);
            return None;
        };
        *slot = word;
    }
    let last = words.next();
    if words.next().is_some() {
        ctx.refuse(ERROR);
        return None;
    }
    // As in memcached, the last word alone decides, even if it is one of the `N` words.
    let quiet = last.or(found.last().copied()) == Some(b"noreply");
    Some((found, quiet))
}

/// `touch key exptime [noreply]`
pub(super) fn touch(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    let Some(([name, exptime], quiet)) = args(ctx, words) else {
        return;
    };
    if name.len() > KEY_BYTES_MAX {
        return ctx.append_reply(BAD_FORMAT, quiet);
    }
    let Some(exptime) = i32_of(exptime) else {
        return ctx.append_reply(BAD_EXPTIME, quiet);
    };
    let Some(start) = ctx.writes(quiet) else {
        return;
    };
    let at = expires_ms(exptime, || ctx.store.now_ms());
    match items::set_expiry(ctx, name, at, false) {
        Ok(Some(_)) => ctx.append_reply("TOUCHED", quiet),
        Ok(None) => ctx.append_reply("NOT_FOUND", quiet),
        Err(error) => ctx.failed(&error, start),
    }
}

/// `delete key [0] [noreply]`
pub(super) fn delete(ctx: &mut MemcachedCtx<'_>, mut words: Words<'_>) {
    let Some(name) = words.next() else {
        return ctx.refuse(ERROR);
    };
    let more = [words.next(), words.next()];
    let quiet = match more {
        _ if words.next().is_some() => return ctx.refuse(ERROR),
        [None | Some(b"0"), None] => false,
        [Some(b"noreply"), None] | [Some(b"0"), Some(b"noreply")] => true,
        [_, last] => {
            let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
            return ctx.append_reply(usage, last == Some(b"noreply"));
        }
    };
    if name.len() > KEY_BYTES_MAX {
        return ctx.append_reply(BAD_FORMAT, quiet);
    }
    let Some(start) = ctx.writes(quiet) else {
        return;
    };
    ctx.client.state.prefixes.note(name, KeyOperation::Delete);
    match ctx.store.delete(key(name)) {
        Ok(true) => {
            ctx.count(Counter::DeleteHits);
            ctx.append_reply("DELETED", quiet);
        }
        Ok(false) => {
            ctx.count(Counter::DeleteMisses);
            ctx.append_reply("NOT_FOUND", quiet);
        }
        Err(error) => ctx.failed(&error, start),
    }
}

/// `incr|decr key delta [noreply]`
pub(super) fn arithmetic(ctx: &mut MemcachedCtx<'_>, words: Words<'_>, sign: CounterDirection) {
    let Some(([name, delta], quiet)) = args(ctx, words) else {
        return;
    };
    if name.len() > KEY_BYTES_MAX {
        return ctx.append_reply(BAD_FORMAT, quiet);
    }
    let Some(delta) = u64_of(delta) else {
        return ctx.append_reply("CLIENT_ERROR invalid numeric delta argument", quiet);
    };
    let Some(start) = ctx.writes(quiet) else {
        return;
    };
    let sum = CounterChange {
        key: name,
        sign,
        delta,
        cas: 0,
        expires_ms: None,
        initial: None,
    };
    match items::add(ctx, &sum) {
        Ok((CounterOutcome::Is { value, .. }, _)) => {
            if !quiet {
                ctx.out
                    .extend_from_slice(DecimalText::unsigned(value).as_bytes());
                ctx.out.extend_from_slice(b"\r\n");
            }
        }
        Ok((CounterOutcome::NotNumeric, _)) => ctx.append_reply(NOT_NUMERIC, quiet),
        Ok(_) => ctx.append_reply("NOT_FOUND", quiet),
        Err(error) if error.is_full() => ctx.append_reply(OUT_OF_MEMORY, quiet),
        Err(error) => ctx.failed(&error, start),
    }
}

/// `flush_all [delay] [noreply]`
pub(super) fn flush_all(ctx: &mut MemcachedCtx<'_>, mut words: Words<'_>) {
    let two = [words.next(), words.next()];
    if words.next().is_some() {
        return ctx.refuse(ERROR);
    }
    ctx.count(Counter::Flushes);
    let (delay, quiet) = match two {
        [delay, Some(b"noreply")] => (delay, true),
        [Some(b"noreply"), None] => (None, true),
        [delay, _] => (delay, false),
    };
    if !ctx.shared.options.flush_allowed {
        return ctx.append_reply("CLIENT_ERROR flush_all not allowed", quiet);
    }
    let Some(delay) = delay.map_or(Some(0), i32_of) else {
        return ctx.append_reply(BAD_EXPTIME, quiet);
    };
    let at = if delay > 0 {
        expires_ms(delay, || ctx.store.now_ms())
    } else {
        0
    };
    // The latest `flush_all` replaces a pending one.
    ctx.client.state.flush_at(at);
    if at == 0 {
        let Some(start) = ctx.writes(quiet) else {
            return;
        };
        if let Err(error) = ctx.store.flush_all() {
            return ctx.failed(&error, start);
        }
        ctx.client.state.note_flush(ctx.client.now_secs);
    }
    ctx.append_reply("OK", quiet);
}

/// `slabs automove level`: accepted without effect. Clients cannot move pages (`slabs reassign`).
pub(super) fn slabs(ctx: &mut MemcachedCtx<'_>, mut words: Words<'_>) {
    match (words.next(), words.next().map(u32_of)) {
        (Some(b"automove"), Some(None)) => ctx.refuse(BAD_FORMAT),
        (Some(b"automove"), Some(Some(0..=2))) => ctx.append_reply("OK", false),
        (Some(b"reassign"), Some(_)) => ctx.refuse("CLIENT_ERROR slab reassignment disabled"),
        _ => ctx.refuse(ERROR),
    }
}

/// `refresh_certs [noreply]`: reads the files of the certificate again, for the next connections.
pub(super) fn refresh_certs(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    let quiet = words.last() == Some(b"noreply");
    if ctx.shared.tls_port(WireProtocol::Memcached).is_none() {
        return ctx.refuse("Error TLS not enabled");
    }
    match ctx.shared.security.tls.change(|_| {}) {
        Ok(()) => ctx.append_reply("OK", quiet),
        Err(error) => ctx.refuse(&format!("Error {error}")),
    }
}

/// `verbosity level [noreply]`
pub(super) fn verbosity(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    if let Some(([level], quiet)) = args(ctx, words) {
        match u32_of(level) {
            Some(_) => ctx.append_reply("OK", quiet),
            None => ctx.append_reply(BAD_FORMAT, quiet),
        }
    }
}
