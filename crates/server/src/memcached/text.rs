//! The classic commands: get gets gat gats set add replace append prepend cas touch delete incr decr
//! flush_all verbosity.

use farbank_kv::store::{Error, Meta, Value, View};

use super::items::{self, Cas, Outcome, Sign, Sum, Total, Write, expires_ms};
use super::parse::{How, Payload, Store, i32_of, u32_of, u64_of};
use super::prefixes::Deed;
use super::{BAD_FORMAT, Ctx, ERROR, KEY_BYTES_MAX, Start, Words, key};
use crate::cmd::{Ran, long};
use crate::resp::Sink;
use crate::resp::number::Decimal;
use crate::shared::Count;
use crate::shelf::make_room;
use crate::turn::WINDOW;

pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
pub(super) const REPLY_TOO_LONG: &str = "SERVER_ERROR out of memory writing get response";

/// Most bytes of a reply's line before a value, and of its end, besides the key.
const LINE_BYTES_MAX: usize = 64;

/// Appends what comes before a value's bytes.
#[inline]
fn value_line(out: &mut impl Sink, key: &[u8], meta: &Meta, cas: Option<Cas>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    if meta.flags == 0 {
        out.extend_from_slice(b" 0 ");
    } else {
        out.push(b' ');
        out.extend_from_slice(Decimal::unsigned(meta.flags.into()).as_bytes());
        out.push(b' ');
    }
    out.extend_from_slice(Decimal::unsigned(meta.value_bytes as u64).as_bytes());
    if let Some(cas) = cas {
        out.push(b' ');
        let known_by = cas.of(key, meta.version);
        out.extend_from_slice(Decimal::unsigned(known_by).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// `get key...`, `gets key...`
#[inline]
pub(super) fn get(ctx: &mut Ctx<'_>, keys: Words<'_>, cas: bool) -> Ran {
    let from = ctx.out.len();
    let view = ctx.reads();
    let mut rest = keys;
    let Some(first) = rest.next() else {
        ctx.refuse(ERROR);
        return Ran::Done;
    };
    let mut left = match ctx.executes_long {
        true => usize::MAX,
        false => long::BYTES,
    };
    let one = rest.clone().next().is_none();
    let got = if one {
        get_one(ctx, first, view, cas, &mut left)
    } else {
        get_all(ctx, keys, view, cas, &mut left)
    };
    match got {
        Ok(()) => ctx.out.extend_from_slice(b"END\r\n"),
        Err(Fail::Long) => {
            ctx.out.rewind(from);
            return Ran::Long;
        }
        Err(fail) => fail.reply(ctx, from),
    }
    Ran::Done
}

/// Why a retrieval has another reply than items.
enum Fail {
    Is(&'static str),
    Store(Error),
    /// The values are so large that others would wait for long: another thread is to read them.
    Long,
}

impl Fail {
    fn reply(&self, ctx: &mut Ctx<'_>, from: usize) {
        match self {
            Fail::Is(text) => {
                ctx.out.rewind(from);
                ctx.refuse(text);
            }
            Fail::Store(error) => {
                let (first, quiet) = (false, false);
                ctx.failed(error, Start { from, first, quiet });
            }
            Fail::Long => {}
        }
    }
}

/// Appends the item called `name`, if there is one. `left` bytes of values may be read yet.
#[inline]
fn get_one(
    ctx: &mut Ctx<'_>,
    name: &[u8],
    view: View,
    cas: bool,
    left: &mut usize,
) -> Result<(), Fail> {
    if name.len() > KEY_BYTES_MAX {
        return Err(Fail::Is(BAD_FORMAT));
    }
    let cas = cas.then_some(ctx.cas);
    let (most, mut fits, mut value_bytes) = (ctx.out.bytes_max(), true, 0);
    let bytes_left = *left;
    let shelf = &mut *ctx.shelf;
    let mut head = |meta: &Meta, out: &mut Vec<u8>| {
        value_bytes = meta.value_bytes;
        if value_bytes > bytes_left {
            return false;
        }
        let bytes = name.len() + meta.value_bytes + LINE_BYTES_MAX;
        fits = out.len().saturating_add(bytes) <= most;
        if fits {
            make_room(out, bytes, shelf);
            value_line(out, name, meta, cas);
        }
        fits
    };
    let out = ctx.out.bytes_mut();
    let found = ctx.session.get(key(name), view, out, &mut head);
    let hit = found.map_err(Fail::Store)?;
    *left = bytes_left.checked_sub(value_bytes).ok_or(Fail::Long)?;
    if !fits {
        return Err(Fail::Is(REPLY_TOO_LONG));
    }
    if hit {
        ctx.out.extend_from_slice(b"\r\n");
        ctx.count(Count::Hits);
        ctx.used(name, true);
    } else {
        ctx.count_miss(name);
    }
    ctx.shared.memo.prefixes.note(name, Deed::Get { hit });
    Ok(())
}

/// Appends the items called `names`, fetching ahead.
fn get_all(
    ctx: &mut Ctx<'_>,
    mut names: Words<'_>,
    view: View,
    cas: bool,
    left: &mut usize,
) -> Result<(), Fail> {
    let mut first = true;
    let counted = *ctx.tally;
    loop {
        let mut keys = [key(&[]); WINDOW];
        let mut count = 0;
        for name in names.by_ref().take(WINDOW) {
            keys[count] = key(name);
            count += 1;
        }
        if keys.iter().any(|key| key.bytes.len() > KEY_BYTES_MAX) {
            return Err(Fail::Is(BAD_FORMAT));
        }
        // The first of all was passed when it was read ahead.
        ctx.stride
            .pass(&keys[count.min(first.into())..count], &ctx.figures.hot);
        first = false;
        ctx.session.prefetch(&keys[..count], true);
        for key in &keys[..count] {
            get_one(ctx, key.bytes, view, cas, left).inspect_err(|fail| {
                if let Fail::Long = fail {
                    *ctx.tally = counted;
                }
            })?;
        }
        if count < WINDOW {
            return Ok(());
        }
    }
}

/// `gat exptime key...`, `gats exptime key...`
pub(super) fn get_and_touch(ctx: &mut Ctx<'_>, mut args: Words<'_>, cas: bool) {
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
    let at = expires_ms(exptime, || ctx.session.now_ms());
    for name in args {
        match items::renew(ctx, name, at, true) {
            Ok(Some(found)) => {
                ctx.count(Count::Hits);
                value_line(ctx.out, name, &found.meta, cas.then_some(ctx.cas));
                ctx.out.extend_from_slice(&found.bytes);
                ctx.out.extend_from_slice(b"\r\n");
            }
            Ok(None) => ctx.count_miss(name),
            Err(error) => return ctx.failed(&error, start),
        }
        if ctx.out.is_cut() {
            return Fail::Is(REPLY_TOO_LONG).reply(ctx, start.from);
        }
    }
    ctx.out.extend_from_slice(b"END\r\n");
}

/// `set|add|replace|append|prepend|cas key flags exptime bytes [cas] [noreply]` and a value.
#[inline]
pub(super) fn store(ctx: &mut Ctx<'_>, store: &Store<'_>) {
    let Some(start) = ctx.writes(store.quiet) else {
        return;
    };
    ctx.count(Count::Sets);
    ctx.shared.memo.prefixes.note(store.key, Deed::Set);
    let bytes = match store.payload {
        Payload::Whole(bytes) => bytes,
        Payload::Misplaced => return ctx.say(BAD_CHUNK, store.quiet),
        Payload::TooLarge => return too_large(ctx, store.key, store.how, start),
    };
    let write = Write {
        how: store.how,
        key: store.key,
        value: Value {
            bytes,
            expires_ms: expires_ms(store.exptime, || ctx.session.now_ms()),
            flags: store.flags,
            kind: 0,
        },
        cas: store.cas,
        may_be_stale: false,
    };
    match items::store(ctx, &write) {
        Ok((outcome, _)) => ctx.say(
            match outcome {
                Outcome::Stored => "STORED",
                Outcome::NotStored => "NOT_STORED",
                Outcome::Exists => "EXISTS",
                Outcome::NotFound => "NOT_FOUND",
            },
            store.quiet,
        ),
        Err(error) => not_stored(ctx, &write, &error, start),
    }
}

/// A value that is not taken.
pub(super) fn too_large(ctx: &mut Ctx<'_>, name: &[u8], how: How, start: Start) {
    ctx.count(Count::TooLarge);
    match end_old(ctx, name, how) {
        Ok(()) => ctx.say(TOO_LARGE, start.quiet),
        Err(error) => ctx.failed(&error, start),
    }
}

/// Of a set that was not taken: what was there must not be taken for what was to be.
fn end_old(ctx: &mut Ctx<'_>, name: &[u8], how: How) -> Result<(), Error> {
    match how {
        How::Set => ctx.session.delete(key(name)).map(drop),
        _ => Ok(()),
    }
}

/// The store did not take it.
#[cold]
pub(super) fn not_stored(ctx: &mut Ctx<'_>, write: &Write<'_>, error: &Error, start: Start) {
    match error {
        Error::ItemTooLarge { .. } => return too_large(ctx, write.key, write.how, start),
        error if error.is_full() => {
            ctx.count(Count::NoMemory);
            if let Err(error) = end_old(ctx, write.key, write.how) {
                return ctx.failed(&error, start);
            }
        }
        _ => {}
    }
    ctx.failed(error, start);
}

/// Words of a command that takes `least` of them and possibly `noreply` after those.
fn args<'a, const N: usize>(
    ctx: &mut Ctx<'_>,
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
    // Whatever the last word stands for: memcached looks only at it.
    let quiet = last.or(found.last().copied()) == Some(b"noreply");
    Some((found, quiet))
}

/// `touch key exptime [noreply]`
pub(super) fn touch(ctx: &mut Ctx<'_>, words: Words<'_>) {
    let Some(([name, exptime], quiet)) = args(ctx, words) else {
        return;
    };
    if name.len() > KEY_BYTES_MAX {
        return ctx.say(BAD_FORMAT, quiet);
    }
    let Some(exptime) = i32_of(exptime) else {
        return ctx.say(BAD_EXPTIME, quiet);
    };
    let Some(start) = ctx.writes(quiet) else {
        return;
    };
    let at = expires_ms(exptime, || ctx.session.now_ms());
    match items::renew(ctx, name, at, false) {
        Ok(Some(_)) => ctx.say("TOUCHED", quiet),
        Ok(None) => ctx.say("NOT_FOUND", quiet),
        Err(error) => ctx.failed(&error, start),
    }
}

/// `delete key [0] [noreply]`
pub(super) fn delete(ctx: &mut Ctx<'_>, mut words: Words<'_>) {
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
            return ctx.say(usage, last == Some(b"noreply"));
        }
    };
    if name.len() > KEY_BYTES_MAX {
        return ctx.say(BAD_FORMAT, quiet);
    }
    let Some(start) = ctx.writes(quiet) else {
        return;
    };
    ctx.shared.memo.prefixes.note(name, Deed::Delete);
    match ctx.session.delete(key(name)) {
        Ok(true) => {
            ctx.count(Count::DeleteHits);
            ctx.say("DELETED", quiet);
        }
        Ok(false) => {
            ctx.count(Count::DeleteMisses);
            ctx.say("NOT_FOUND", quiet);
        }
        Err(error) => ctx.failed(&error, start),
    }
}

/// `incr|decr key delta [noreply]`
pub(super) fn arithmetic(ctx: &mut Ctx<'_>, words: Words<'_>, sign: Sign) {
    let Some(([name, delta], quiet)) = args(ctx, words) else {
        return;
    };
    if name.len() > KEY_BYTES_MAX {
        return ctx.say(BAD_FORMAT, quiet);
    }
    let Some(delta) = u64_of(delta) else {
        return ctx.say("CLIENT_ERROR invalid numeric delta argument", quiet);
    };
    let Some(start) = ctx.writes(quiet) else {
        return;
    };
    let sum = Sum {
        key: name,
        sign,
        delta,
        cas: 0,
        expires_ms: None,
        initial: None,
    };
    match items::add(ctx, &sum) {
        Ok((Total::Is { value, .. }, _)) => {
            if !quiet {
                ctx.out
                    .extend_from_slice(Decimal::unsigned(value).as_bytes());
                ctx.out.extend_from_slice(b"\r\n");
            }
        }
        Ok((Total::NotNumeric, _)) => ctx.say(NOT_NUMERIC, quiet),
        Ok(_) => ctx.say("NOT_FOUND", quiet),
        Err(error) if error.is_full() => ctx.say("SERVER_ERROR out of memory", quiet),
        Err(error) => ctx.failed(&error, start),
    }
}

/// `flush_all [delay] [noreply]`
pub(super) fn flush_all(ctx: &mut Ctx<'_>, mut words: Words<'_>) {
    let two = [words.next(), words.next()];
    if words.next().is_some() {
        return ctx.refuse(ERROR);
    }
    ctx.count(Count::Flushes);
    let (delay, quiet) = match two {
        [delay, Some(b"noreply")] => (delay, true),
        [Some(b"noreply"), None] => (None, true),
        [delay, _] => (delay, false),
    };
    if !ctx.shared.options.flush_allowed {
        return ctx.say("CLIENT_ERROR flush_all not allowed", quiet);
    }
    let Some(delay) = delay.map_or(Some(0), i32_of) else {
        return ctx.say(BAD_EXPTIME, quiet);
    };
    let at = if delay > 0 {
        expires_ms(delay, || ctx.session.now_ms())
    } else {
        0
    };
    // What was asked for last counts.
    ctx.shared.memo.flush_at(at);
    if at == 0 {
        let Some(start) = ctx.writes(quiet) else {
            return;
        };
        if let Err(error) = ctx.session.flush_all() {
            return ctx.failed(&error, start);
        }
        ctx.shared.memo.note_flush(ctx.now_secs);
    }
    ctx.say("OK", quiet);
}

/// `slabs automove level`: taken, and nothing follows from it. Pages are no client's to move.
pub(super) fn slabs(ctx: &mut Ctx<'_>, mut words: Words<'_>) {
    match (words.next(), words.next().map(u32_of)) {
        (Some(b"automove"), Some(None)) => ctx.refuse(BAD_FORMAT),
        (Some(b"automove"), Some(Some(0..=2))) => ctx.say("OK", false),
        (Some(b"reassign"), Some(_)) => ctx.refuse("CLIENT_ERROR slab reassignment disabled"),
        _ => ctx.refuse(ERROR),
    }
}

/// `verbosity level [noreply]`
pub(super) fn verbosity(ctx: &mut Ctx<'_>, words: Words<'_>) {
    if let Some(([level], quiet)) = args(ctx, words) {
        match u32_of(level) {
            Some(_) => ctx.say("OK", quiet),
            None => ctx.say(BAD_FORMAT, quiet),
        }
    }
}
