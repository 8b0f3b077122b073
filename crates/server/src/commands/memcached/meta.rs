//! The meta commands: mg ms md ma me.
//!
//! A request has a key and flags: one letter each, some with a token. The reply repeats the flags that request data, in
//! their order. `mg` and `ma` can also write: they create an item for an absent key, or change its expiry. `mg` can
//! also give one client the *win*: this client shall replace the item. Two marks of an item record that a client has
//! won, and that the item is *stale* (`md` with `I`).

use farbank_store::{Error, KIND_STALE, KIND_WON, StoredItem, UpdateDecision, Value, ValueMeta};

use super::context::{CasSource, MemcachedCtx, OUT_OF_MEMORY, ReplyStart, key};
use super::items::{
    self, CounterChange, CounterDirection, CounterOutcome, ItemWrite, WriteOutcome, expires_ms,
};
use super::prefixes::KeyOperation;
use super::recency::KeyAccess;
use super::text::{BAD_CHUNK, NOT_NUMERIC, REPLY_TOO_LONG, TOO_LARGE, not_stored, too_large};
use crate::buffers::pool::reserve;
use crate::buffers::reply::ReplySink;
use crate::protocol::memcached::base64;
use crate::protocol::memcached::parse::{
    BAD_FORMAT, ERROR, KEY_BYTES_MAX, StoreCondition, ValuePayload, Words, i32_of, u32_of, u64_of,
};
use crate::protocol::resp::number::DecimalText;
use crate::stats::counters::Counter;

/// Most flags of a request.
const FLAGS_MAX: usize = 17;
/// An opaque token must be shorter than this many bytes.
const OPAQUE_BYTES_MAX: usize = 32;
/// Bytes of an item besides its key and value, as `me` reports them.
const ITEM_HEAD_BYTES: usize = 50;

const TOO_MANY_GET: &str = "CLIENT_ERROR options flags are too long";
const TOO_MANY: &str = "CLIENT_ERROR options flags too long";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";
const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";

/// A request's key and parsed flags.
#[derive(Default)]
struct MetaRequest<'a> {
    /// The key as sent by the client.
    sent: &'a [u8],
    /// The decoded key, if it was sent in base64.
    decoded: Option<Vec<u8>>,
    /// The flags in their order.
    flags: [&'a [u8]; FLAGS_MAX],
    count: usize,
    value: bool,
    quiet: bool,
    no_update: bool,
    invalidate: bool,
    cas: Option<u64>,
    client_flags: u32,
    mode: Option<u8>,
    delta: Option<u64>,
    initial: u64,
    // Times in memcached's format: tokens of the flags T, N and R.
    exptime: Option<i32>,
    vivify: Option<i32>,
    recache: Option<i32>,
}

impl<'a> MetaRequest<'a> {
    /// Parses the flags of a request for the key `sent`. `too_many`: the error for too many flags.
    fn read(
        sent: &'a [u8],
        flags: Words<'a>,
        too_many: &'static str,
    ) -> Result<MetaRequest<'a>, &'static str> {
        let mut asked = MetaRequest {
            sent,
            ..MetaRequest::default()
        };
        let (mut seen, mut wrong) = (0u128, None);
        for flag in flags {
            if asked.count == FLAGS_MAX {
                return Err(too_many);
            }
            asked.flags[asked.count] = flag;
            asked.count += 1;
        }
        for at in 0..asked.count {
            let (letter, token) = (asked.flags[at][0], &asked.flags[at][1..]);
            if letter >= 127 || seen & 1 << letter != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << letter;
            // After a bad token, parsing goes on, because an invalid or duplicate flag takes precedence.
            if let Err(text) = asked.take(letter, token)? {
                wrong = Some(text);
            }
        }
        match wrong {
            Some(text) => Err(text),
            None => Ok(asked),
        }
    }

    /// Parses one flag. The inner error is a bad token; the outer error is an unknown flag.
    fn take(&mut self, letter: u8, token: &[u8]) -> Result<Result<(), &'static str>, &'static str> {
        let time = i32_of(token).ok_or(BAD_TOKEN);
        Ok(match letter {
            b'b' => {
                self.decoded = base64::decode(self.sent);
                match self.decoded {
                    Some(_) => Ok(()),
                    None => Err("CLIENT_ERROR error decoding key"),
                }
            }
            b'N' => time.map(|at| self.vivify = Some(at)),
            b'T' => time.map(|at| self.exptime = Some(at)),
            b'R' => time.map(|at| self.recache = Some(at)),
            b'O' if token.len() >= OPAQUE_BYTES_MAX => Err(OPAQUE_TOO_LONG),
            b'l' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' => Ok(()),
            b'v' => {
                self.value = true;
                Ok(())
            }
            b'u' => {
                self.no_update = true;
                Ok(())
            }
            b'q' => {
                self.quiet = true;
                Ok(())
            }
            b'I' => {
                self.invalidate = true;
                Ok(())
            }
            b'F' => u32_of(token)
                .ok_or(BAD_FORMAT)
                .map(|flags| self.client_flags = flags),
            b'C' => u64_of(token)
                .ok_or(BAD_TOKEN)
                .map(|cas| self.cas = Some(cas)),
            b'M' => match token {
                [mode] => {
                    self.mode = Some(*mode);
                    Ok(())
                }
                _ => Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => u64_of(token)
                .ok_or("CLIENT_ERROR invalid numeric initial value")
                .map(|initial| self.initial = initial),
            b'D' => u64_of(token)
                .ok_or("CLIENT_ERROR invalid numeric delta value")
                .map(|delta| self.delta = Some(delta)),
            _ => return Err("CLIENT_ERROR invalid flag"),
        })
    }

    /// The decoded key.
    fn key(&self) -> &[u8] {
        self.decoded.as_deref().unwrap_or(self.sent)
    }

    fn flags(&self) -> &[&'a [u8]] {
        &self.flags[..self.count]
    }

    /// Appends the flags O and k, the only ones that a reply without an item repeats, and ends the line.
    fn echo(&self, out: &mut impl ReplySink) {
        for flag in self.flags() {
            self.echo_one(flag, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn echo_one(&self, flag: &[u8], out: &mut impl ReplySink) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                match &self.decoded {
                    None => out.extend_from_slice(self.sent),
                    Some(bytes) => {
                        base64::encode(bytes, out);
                        out.extend_from_slice(b" b");
                    }
                }
            }
            _ => {}
        }
    }
}

/// Parses a request's key and flags. Returns `None`, after an error reply, if they are invalid.
fn asked<'a>(
    ctx: &mut MemcachedCtx<'_>,
    mut words: Words<'a>,
    too_many: &'static str,
    otherwise: Option<&'static str>,
) -> Option<MetaRequest<'a>> {
    let Some(sent) = words.next() else {
        ctx.refuse(ERROR);
        return None;
    };
    if sent.len() > KEY_BYTES_MAX {
        ctx.refuse(BAD_FORMAT);
        return None;
    }
    match MetaRequest::read(sent, words, too_many) {
        Ok(asked) => Some(asked),
        Err(text) => {
            let exact = text == too_many || text == OPAQUE_TOO_LONG;
            ctx.refuse(otherwise.filter(|_| !exact).unwrap_or(text));
            None
        }
    }
}

fn number(out: &mut impl ReplySink, letter: u8, value: u64) {
    out.extend_from_slice(&[b' ', letter]);
    out.extend_from_slice(DecimalText::unsigned(value).as_bytes());
}

/// Appends the seconds until `expires_ms`, or -1 if the item never expires.
fn time_left(out: &mut impl ReplySink, expires_ms: u64, now_ms: u64) {
    match expires_ms {
        0 => out.extend_from_slice(b" t-1"),
        at => number(out, b't', at.saturating_sub(now_ms).div_ceil(1000)),
    }
}

/// Data of an item for the reply of `mg`.
#[derive(Clone, Copy)]
struct ItemView {
    meta: ValueMeta,
    /// Its expiry before the request.
    expired_ms: u64,
    /// The request created the item.
    created: bool,
    /// The request's client has won.
    won: bool,
    used: KeyAccess,
    now_ms: u64,
    now_secs: u64,
    cas: CasSource,
}

impl ItemView {
    /// Appends the line before the value.
    fn line(&self, asked: &MetaRequest<'_>, out: &mut impl ReplySink) {
        let meta = &self.meta;
        match asked.value {
            true => {
                out.extend_from_slice(b"VA ");
                out.extend_from_slice(DecimalText::unsigned(meta.value_bytes as u64).as_bytes());
            }
            false => out.extend_from_slice(b"HD"),
        }
        // The flag `t` reports the expiry after the flags before it.
        let mut expires_ms = self.expired_ms;
        for flag in asked.flags() {
            match flag[0] {
                b'T' => expires_ms = meta.expires_ms,
                b'N' if self.created => expires_ms = meta.expires_ms,
                b's' => number(out, b's', meta.value_bytes as u64),
                b't' => time_left(out, expires_ms, self.now_ms),
                b'c' => number(out, b'c', self.cas.of(asked.key(), meta.version)),
                b'f' => number(out, b'f', meta.flags.into()),
                b'l' => number(out, b'l', self.now_secs.saturating_sub(self.used.secs)),
                b'h' => number(out, b'h', self.used.read.into()),
                _ => asked.echo_one(flag, out),
            }
        }
        if meta.kind & KIND_WON != 0 && !self.won {
            out.extend_from_slice(b" Z");
        }
        if meta.kind & KIND_STALE != 0 {
            out.extend_from_slice(b" X");
        }
        if self.won {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// `mg key flag...`
pub(super) fn get(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    let Some(asked) = asked(ctx, words, TOO_MANY_GET, None) else {
        return;
    };
    let found = match (asked.exptime, asked.vivify, asked.recache) {
        (None, None, None) => look(ctx, &asked),
        _ => None,
    };
    let found = match found {
        Some(found) => found,
        None => return change(ctx, &asked),
    };
    if !found {
        missed(ctx, &asked);
    }
}

/// Replies that the item does not exist, unless the request is quiet.
fn missed(ctx: &mut MemcachedCtx<'_>, asked: &MetaRequest<'_>) {
    if !asked.quiet {
        ctx.out.extend_from_slice(b"EN");
        asked.echo(ctx.out);
    }
}

/// Replies with an item without changing it. Returns whether it exists, or `None` without a reply if the request must
/// change it: it is stale and no client has won yet.
fn look(ctx: &mut MemcachedCtx<'_>, asked: &MetaRequest<'_>) -> Option<bool> {
    let (from, view) = (ctx.out.len(), ctx.reads());
    let wants = |letter| asked.flags().iter().any(|flag| flag[0] == letter);
    let mut shown = ItemView {
        meta: ValueMeta::default(),
        expired_ms: 0,
        created: false,
        won: false,
        used: KeyAccess::default(),
        now_ms: 0,
        now_secs: ctx.client.now_secs,
        cas: ctx.client.cas,
    };
    if wants(b'h') || wants(b'l') {
        shown.used = ctx.client.state.recency.of(asked.key());
    }
    if wants(b't') {
        shown.now_ms = ctx.store.now_ms();
    }
    let mut show = |meta: &ValueMeta| {
        (shown.meta, shown.expired_ms) = (*meta, meta.expires_ms);
        shown
    };
    let mut wins = false;
    let (most, mut fits) = (ctx.out.bytes_max(), true);
    let buffer_pool = &mut ctx.thread.buffer_pool;
    let mut head = |meta: &ValueMeta, out: &mut Vec<u8>| {
        wins = meta.kind & (KIND_STALE | KIND_WON) == KIND_STALE;
        show(meta).line(asked, out);
        let value_bytes = if asked.value { meta.value_bytes + 2 } else { 0 };
        fits = out.len().saturating_add(value_bytes) <= most;
        if fits {
            reserve(out, value_bytes, buffer_pool);
        }
        fits
    };
    let out = ctx.out.bytes_mut();
    let found = if asked.value {
        ctx.store.get(key(asked.key()), view, out, &mut head)
    } else {
        let meta = ctx.store.meta(key(asked.key()), view);
        meta.map(|meta| meta.map(|meta| head(&meta, out)).is_some())
    };
    match found {
        Ok(true) if !fits => {
            ctx.out.rewind(from);
            ctx.refuse(REPLY_TOO_LONG);
            Some(true)
        }
        Ok(true) if wins => {
            ctx.out.truncate(from);
            None
        }
        Ok(hit) => {
            if hit && asked.value {
                ctx.out.extend_from_slice(b"\r\n");
            }
            match hit {
                true => ctx.count(Counter::Hits),
                false => ctx.count_miss(asked.key()),
            }
            if hit && !asked.no_update {
                ctx.used(asked.key(), true);
            }
            ctx.client
                .state
                .prefixes
                .note(asked.key(), KeyOperation::Get { hit });
            Some(hit)
        }
        Err(error) => {
            let (first, quiet) = (false, false);
            ctx.failed(&error, ReplyStart { from, first, quiet });
            Some(true)
        }
    }
}

/// Times of a request, in milliseconds since 1970.
struct RequestTimes {
    exptime: Option<u64>,
    vivify: Option<u64>,
    recache: Option<u64>,
    now_ms: u64,
}

impl RequestTimes {
    fn of(ctx: &MemcachedCtx<'_>, asked: &MetaRequest<'_>) -> RequestTimes {
        let now_ms = ctx.store.now_ms();
        let moment = |time: Option<i32>| time.map(|time| expires_ms(time, || now_ms));
        RequestTimes {
            exptime: moment(asked.exptime),
            vivify: moment(asked.vivify),
            recache: moment(asked.recache),
            now_ms,
        }
    }
}

/// Executes an `mg` that may change the item.
fn change(ctx: &mut MemcachedCtx<'_>, asked: &MetaRequest<'_>) {
    let Some(start) = ctx.writes(false) else {
        return;
    };
    let times = RequestTimes::of(ctx, asked);
    let used = ctx.client.state.recency.of(asked.key());
    let (now_secs, cas) = (ctx.client.now_secs, ctx.client.cas);
    let (mut shown, mut value) = (None, Vec::new());
    let updated = ctx.store.update(key(asked.key()), &mut |item| {
        let (meta, created, won) = item_after(asked, &times, item);
        shown = meta.map(|meta| ItemView {
            meta,
            expired_ms: item.map_or(0, |item| item.meta.expires_ms),
            created,
            won,
            used,
            now_ms: times.now_ms,
            now_secs,
            cas,
        });
        let bytes = item.map_or(&[][..], |item| item.bytes);
        value.clear();
        if asked.value {
            value.extend_from_slice(bytes);
        }
        let before = item.map(|item| (item.meta.expires_ms, item.meta.kind));
        match meta {
            Some(meta) if before != Some((meta.expires_ms, meta.kind)) => UpdateDecision::Put {
                bytes: bytes.to_vec(),
                expires_ms: meta.expires_ms,
                flags: meta.flags,
                kind: meta.kind,
            },
            _ => UpdateDecision::Keep,
        }
    });
    let version = match updated {
        Ok(version) => version,
        Err(error) => return ctx.failed(&error, start),
    };
    let touches = asked.exptime.is_some();
    match &mut shown {
        None => {
            match touches {
                true => ctx.count(Counter::TouchMisses),
                false => ctx.count_miss(asked.key()),
            }
            missed(ctx, asked);
        }
        Some(shown) => {
            ctx.count(if touches {
                Counter::TouchHits
            } else {
                Counter::Hits
            });
            if shown.created {
                ctx.used(asked.key(), false);
            } else if !asked.no_update {
                ctx.used(asked.key(), true);
            }
            shown.meta.version = version;
            shown.line(asked, ctx.out);
            if asked.value {
                ctx.out.extend_from_slice(&value);
                ctx.out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// Returns the item after `mg`, whether `mg` creates it, and whether the client wins.
fn item_after(
    asked: &MetaRequest<'_>,
    times: &RequestTimes,
    item: Option<StoredItem<'_>>,
) -> (Option<ValueMeta>, bool, bool) {
    let created = item.is_none();
    let mut meta = match (item, times.vivify) {
        (Some(item), _) => item.meta,
        (None, Some(_)) => ValueMeta::default(),
        (None, None) => return (None, false, false),
    };
    let mut won = created;
    for flag in asked.flags() {
        match flag[0] {
            b'T' => meta.expires_ms = times.exptime.unwrap_or(0),
            b'N' if created => meta.expires_ms = times.vivify.unwrap_or(0),
            b'R' => {
                let soon = times.recache.unwrap_or(0);
                won |= meta.expires_ms != 0 && meta.expires_ms < soon;
            }
            _ => {}
        }
    }
    won |= meta.kind & KIND_STALE != 0;
    won &= meta.kind & KIND_WON == 0;
    if won {
        meta.kind |= KIND_WON;
    }
    (Some(meta), created, won)
}

/// `ms key bytes flag...` and a value.
pub(super) fn set(
    ctx: &mut MemcachedCtx<'_>,
    sent: &[u8],
    flags: Words<'_>,
    payload: ValuePayload<'_>,
) {
    // The length counts as one of the flags.
    let count = flags.count();
    let read = match count < FLAGS_MAX {
        true => MetaRequest::read(sent, flags, TOO_MANY),
        false => Err(TOO_MANY),
    };
    let asked = match read {
        Ok(asked) => asked,
        Err(text) => return ctx.refuse(text),
    };
    let how = match asked.mode {
        None | Some(b'S') => StoreCondition::Set,
        Some(b'E') => StoreCondition::Add,
        Some(b'A') => StoreCondition::Append,
        Some(b'P') => StoreCondition::Prepend,
        Some(b'R') => StoreCondition::Replace,
        Some(_) => return ctx.refuse("CLIENT_ERROR invalid mode for ms M token"),
    };
    let how = match how {
        StoreCondition::Set | StoreCondition::Replace if asked.cas.is_some() => StoreCondition::Cas,
        how => how,
    };
    let Some(start) = ctx.writes(false) else {
        return;
    };
    ctx.count(Counter::Sets);
    ctx.client
        .state
        .prefixes
        .note(asked.key(), KeyOperation::Set);
    let bytes = match payload {
        ValuePayload::Whole(bytes) => bytes,
        ValuePayload::Misplaced => return ctx.refuse(BAD_CHUNK),
        // Deletes the old item in every mode, so that clients do not read it as the new value.
        ValuePayload::TooLarge => return too_large(ctx, asked.key(), StoreCondition::Set, start),
    };
    if ctx
        .client
        .limits
        .exceeded(asked.key().len(), asked.client_flags, bytes.len())
    {
        return ctx.refuse(TOO_LARGE);
    }
    let write = ItemWrite {
        how,
        key: asked.key(),
        value: Value {
            bytes,
            expires_ms: expires_ms(asked.exptime.unwrap_or(0), || ctx.store.now_ms()),
            flags: asked.client_flags,
            kind: 0,
        },
        cas: asked.cas.unwrap_or(0),
        may_be_stale: asked.invalidate,
    };
    match items::store(ctx, &write) {
        Ok((WriteOutcome::Stored, _)) if asked.quiet => {}
        Ok((outcome, version)) => {
            ctx.out.extend_from_slice(match outcome {
                WriteOutcome::Stored => b"HD",
                WriteOutcome::NotStored => b"NS",
                WriteOutcome::Exists => b"EX",
                WriteOutcome::NotFound => b"NF",
            });
            for flag in asked.flags() {
                match flag[0] {
                    b'c' => number(ctx.out, b'c', ctx.client.cas.of(asked.key(), version)),
                    _ => asked.echo_one(flag, ctx.out),
                }
            }
            ctx.out.extend_from_slice(b"\r\n");
        }
        Err(error) => not_stored(ctx, &write, &error, start),
    }
}

/// `md key flag...`
pub(super) fn delete(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    let Some(asked) = asked(ctx, words, TOO_MANY, Some(BAD_FLAG)) else {
        return;
    };
    let Some(start) = ctx.writes(false) else {
        return;
    };
    ctx.client
        .state
        .prefixes
        .note(asked.key(), KeyOperation::Delete);
    let code = match (asked.invalidate, asked.cas) {
        (false, None) => ctx.store.delete(key(asked.key())).map(|found| match found {
            true => "HD",
            false => "NF",
        }),
        _ => delete_if(ctx, &asked),
    };
    let code = match code {
        Ok(code) => code,
        Err(error) => return ctx.failed(&error, start),
    };
    match code {
        "HD" if asked.invalidate => {}
        "HD" => ctx.count(Counter::DeleteHits),
        _ => ctx.count(Counter::DeleteMisses),
    }
    if code != "HD" || !asked.quiet {
        ctx.out.extend_from_slice(code.as_bytes());
        asked.echo(ctx.out);
    }
}

/// Deletes an item or marks it stale, if its `cas` number matches.
fn delete_if(ctx: &mut MemcachedCtx<'_>, asked: &MetaRequest<'_>) -> Result<&'static str, Error> {
    let expires = RequestTimes::of(ctx, asked).exptime;
    let (mut code, cas) = ("NF", ctx.client.cas);
    ctx.store.update(key(asked.key()), &mut |item| {
        let Some(item) = item else {
            code = "NF";
            return UpdateDecision::Keep;
        };
        if asked
            .cas
            .is_some_and(|asked_for| asked_for != cas.of(asked.key(), item.meta.version))
        {
            code = "EX";
            return UpdateDecision::Keep;
        }
        code = "HD";
        if !asked.invalidate {
            return UpdateDecision::Delete;
        }
        // Without the mark, the next client can win.
        let kind = (item.meta.kind | KIND_STALE) & !KIND_WON;
        items::with(item, expires.unwrap_or(item.meta.expires_ms), kind)
    })?;
    Ok(code)
}

/// `ma key flag...`
pub(super) fn arithmetic(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    let Some(asked) = asked(ctx, words, TOO_MANY, Some(BAD_FLAG)) else {
        return;
    };
    let sign = match asked.mode {
        None | Some(b'I' | b'+') => CounterDirection::Plus,
        Some(b'D' | b'-') => CounterDirection::Minus,
        Some(_) => return ctx.refuse("CLIENT_ERROR invalid mode for ma M token"),
    };
    let Some(start) = ctx.writes(false) else {
        return;
    };
    let times = RequestTimes::of(ctx, &asked);
    let sum = CounterChange {
        key: asked.key(),
        sign,
        delta: asked.delta.unwrap_or(1),
        cas: asked.cas.unwrap_or(0),
        expires_ms: times.exptime,
        initial: times
            .vivify
            .map(|at| (asked.initial, times.exptime.unwrap_or(at))),
    };
    let (value, version, expired_ms, created) = match items::add(ctx, &sum) {
        Ok((CounterOutcome::Is { .. }, _)) if asked.quiet => return,
        Ok((CounterOutcome::Is { value, expired_ms }, version)) => {
            (value, version, expired_ms, false)
        }
        Ok((CounterOutcome::Created(value), version)) => (value, version, 0, true),
        Ok((CounterOutcome::NotNumeric, _)) => return ctx.refuse(NOT_NUMERIC),
        Ok((CounterOutcome::NotFound, _)) => return no_number(ctx, &asked, b"NF"),
        Ok((CounterOutcome::Exists, _)) => return no_number(ctx, &asked, b"EX"),
        Err(error) if error.is_full() => return ctx.refuse(OUT_OF_MEMORY),
        Err(error) => return ctx.failed(&error, start),
    };
    let digits = DecimalText::unsigned(value);
    match asked.value {
        true => {
            ctx.out.extend_from_slice(b"VA ");
            let len = digits.as_bytes().len() as u64;
            ctx.out
                .extend_from_slice(DecimalText::unsigned(len).as_bytes());
        }
        false => ctx.out.extend_from_slice(b"HD"),
    }
    let mut expires_ms = expired_ms;
    for flag in asked.flags() {
        match flag[0] {
            b'T' => expires_ms = times.exptime.unwrap_or(0),
            b'N' if created => expires_ms = times.vivify.unwrap_or(0),
            b't' => time_left(ctx.out, expires_ms, times.now_ms),
            b'c' => number(ctx.out, b'c', ctx.client.cas.of(asked.key(), version)),
            _ => asked.echo_one(flag, ctx.out),
        }
    }
    ctx.out.extend_from_slice(b"\r\n");
    if asked.value {
        ctx.out.extend_from_slice(digits.as_bytes());
        ctx.out.extend_from_slice(b"\r\n");
    }
}

fn no_number(ctx: &mut MemcachedCtx<'_>, asked: &MetaRequest<'_>, code: &[u8]) {
    ctx.out.extend_from_slice(code);
    asked.echo(ctx.out);
}

/// `me key [b]`
pub(super) fn debug(ctx: &mut MemcachedCtx<'_>, mut words: Words<'_>) {
    let (sent, flag) = (words.next().unwrap_or_default(), words.next());
    if sent.is_empty() || sent.len() > KEY_BYTES_MAX {
        return ctx.refuse(BAD_FORMAT);
    }
    let decoded = match flag {
        Some(b"b") => match base64::decode(sent) {
            Some(decoded) => Some(decoded),
            None => return ctx.refuse(BAD_FORMAT),
        },
        _ => None,
    };
    ctx.count(Counter::Metas);
    let name = decoded.as_deref().unwrap_or(sent);
    let (from, view) = (ctx.out.len(), ctx.reads());
    let meta = match ctx.store.meta(key(name), view) {
        Ok(Some(meta)) => meta,
        Ok(None) => return ctx.append_reply("EN", false),
        Err(error) => {
            let (first, quiet) = (false, false);
            return ctx.failed(&error, ReplyStart { from, first, quiet });
        }
    };
    let KeyAccess { secs, read } = ctx.client.state.recency.of(name);
    let left = match meta.expires_ms {
        0 => -1,
        at => i64::try_from(at.saturating_sub(ctx.store.now_ms()) / 1000).unwrap_or(i64::MAX),
    };
    ctx.out.extend_from_slice(b"ME ");
    ctx.out.extend_from_slice(sent);
    let line = format!(
        " exp={left} la={} cas={} fetch={} cls=1 size={}\r\n",
        ctx.client.now_secs.saturating_sub(secs),
        ctx.client.cas.of(name, meta.version),
        if read { "yes" } else { "no" },
        ITEM_HEAD_BYTES + name.len() + meta.value_bytes,
    );
    ctx.out.extend_from_slice(line.as_bytes());
}
