//! Strings: GET SET MGET MSET MSETNX SETNX SETEX PSETEX GETSET GETDEL GETEX APPEND STRLEN.

use farbank_kv::store::{Change, Item, Key, Meta, VALUE_BYTES_MAX, Value, Verdict, View, Wanted};

use super::expiry::{Unit, deadline};
use super::{Ctx, Door, Fail, SYNTAX, TOO_LONG, WRONG_TYPE};
use crate::resp::{Args, ReplyBuffer, Sink, reply};
use crate::settings::size;
use crate::shared::Count;
use crate::shelf::{Shelf, make_room};

/// Most bytes that frame a value in a reply.
const FRAME_BYTES_MAX: usize = 32;

/// The kind of a string; the only one so far.
pub(super) const STRING: u8 = 0;

/// `GET key`
pub(super) fn get(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    get_into(ctx, key, view)
}

/// Whether a value and what frames it may be appended to `out`, which holds at most `most` bytes.
#[inline]
fn value_fits(out: &[u8], value_bytes: usize, most: usize) -> bool {
    most.saturating_sub(out.len()) >= value_bytes.saturating_add(FRAME_BYTES_MAX)
}

/// Appends the value of `key` as a reply.
fn get_into(ctx: &mut Ctx<'_>, key: Key<'_>, view: View) -> Result<(), Fail> {
    let (most, is_cut) = (ctx.out.bytes_max(), ctx.out.is_cut());
    let (mut kind, mut fits, mut is_long) = (STRING, true, false);
    let bytes_left = ctx.bytes_left();
    let shelf = &mut *ctx.shelf;
    let mut head = |meta: &Meta, out: &mut Vec<u8>| {
        kind = meta.type_of();
        is_long = meta.value_bytes > bytes_left;
        if is_long {
            return false;
        }
        fits = !is_cut && value_fits(out, meta.value_bytes, most);
        if fits {
            make_room(out, meta.value_bytes + FRAME_BYTES_MAX, shelf);
            reply::bulk_header(out, meta.value_bytes);
        }
        fits && kind == STRING
    };
    let out = ctx.out.bytes_mut();
    let found = match &mut ctx.door {
        Door::Session(session) => session.get(key, view, out, &mut head)?,
        Door::Group(ops) => ops.get(key, view, out, &mut head)?,
    };
    if is_long {
        return Err(Fail::Long);
    }
    if kind != STRING {
        return Err(WRONG_TYPE);
    }
    if !fits {
        ctx.out.cut();
    } else if found {
        ctx.out.extend_from_slice(b"\r\n");
    } else {
        reply::null(ctx.out, ctx.client.resp);
    }
    ctx.looked_up(found);
    Ok(())
}

/// `MGET key [key ...]`
pub(super) fn mget(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    reply::array(ctx.out, args.len() - 1);
    let view = ctx.view();
    let (db, resp) = (ctx.client.db, ctx.client.resp);
    let (mut bytes_left, mut is_long) = (ctx.bytes_left(), false);
    let Door::Session(session) = &mut ctx.door else {
        return mget_in_group(ctx, args);
    };
    let keys: Vec<_> = args.from(1).map(|bytes| Key { db, bytes }).collect();
    let most = ctx.out.bytes_max();
    let (mut hits, mut misses, mut fits, mut in_value) = (0, 0, true, false);
    let shelf = &mut *ctx.shelf;
    let mut head = |meta: Option<&Meta>, out: &mut Vec<u8>| {
        if std::mem::take(&mut in_value) {
            out.extend_from_slice(b"\r\n");
        }
        let string = meta.filter(|meta| meta.type_of() == STRING);
        let value_bytes = string.map_or(0, |meta| meta.value_bytes);
        is_long = value_bytes > bytes_left;
        if is_long {
            return Wanted::Nothing;
        }
        bytes_left -= value_bytes;
        match string {
            Some(meta) if value_fits(out, meta.value_bytes, most) => {
                (hits, in_value) = (hits + 1, true);
                make_room(out, meta.value_bytes + FRAME_BYTES_MAX, shelf);
                reply::bulk_header(out, meta.value_bytes);
                Wanted::Value
            }
            None if value_fits(out, 0, most) => {
                misses += 1;
                reply::null(out, resp);
                Wanted::NextKey
            }
            _ => {
                fits = false;
                Wanted::Nothing
            }
        }
    };
    session.get_many_into(&keys, view, ctx.out.bytes_mut(), &mut head)?;
    if is_long {
        return Err(Fail::Long);
    }
    if !fits {
        ctx.out.cut();
    }
    if in_value {
        ctx.out.extend_from_slice(b"\r\n");
    }
    ctx.tally.count(Count::Hits, hits);
    ctx.tally.count(Count::Misses, misses);
    Ok(())
}

fn mget_in_group(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    for bytes in args.from(1) {
        if ctx.out.is_cut() {
            break;
        }
        let (key, from) = (ctx.key(bytes), ctx.out.len());
        match get_into(ctx, key, View::Pending) {
            Err(Fail::Is(_)) => {
                ctx.out.truncate(from);
                reply::null(ctx.out, ctx.client.resp);
            }
            other => other?,
        }
    }
    Ok(())
}

/// `STRLEN key`
pub(super) fn strlen(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    let meta = ctx.ops().meta(key, view)?;
    ctx.looked_up(meta.is_some());
    match meta {
        Some(meta) if meta.type_of() != STRING => return Err(WRONG_TYPE),
        Some(meta) => reply::integer(ctx.out, length(meta.value_bytes)),
        None => reply::integer(ctx.out, 0),
    }
    Ok(())
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// When SET writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum If {
    Always,
    Absent,
    Present,
}

/// What SET does with the expiry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Never,
    Keep,
    At(u64),
}

/// What SET's options ask for.
struct SetOptions {
    when: If,
    expiry: Expiry,
    returns_old: bool,
}

/// `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub(super) fn set(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (key, bytes) = (ctx.key(args.at(1)), args.at(2));
    if args.len() == 3 {
        return put(ctx, key, bytes, 0);
    }
    let options = set_options(ctx, args)?;
    match options {
        SetOptions {
            when: If::Always,
            expiry: Expiry::Never,
            returns_old: false,
        } => put(ctx, key, bytes, 0),
        SetOptions {
            when: If::Always,
            expiry: Expiry::At(at),
            returns_old: false,
        } => put(ctx, key, bytes, at),
        _ => set_conditionally(ctx, key, bytes, &options),
    }
}

/// Stores a string unconditionally and says OK.
#[inline]
fn put(ctx: &mut Ctx<'_>, key: Key<'_>, bytes: &[u8], expires_ms: u64) -> Result<(), Fail> {
    check_length(ctx, bytes.len())?;
    ctx.ops().put(
        key,
        Value {
            bytes,
            expires_ms,
            flags: 0,
            kind: STRING,
        },
    )?;
    reply::ok(ctx.out);
    Ok(())
}

fn check_length(ctx: &Ctx<'_>, bytes: usize) -> Result<(), Fail> {
    let most = size(&ctx.shared.settings.bulk_bytes_max).min(VALUE_BYTES_MAX);
    if bytes <= most { Ok(()) } else { Err(TOO_LONG) }
}

fn set_options(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<SetOptions, Fail> {
    let mut options = SetOptions {
        when: If::Always,
        expiry: Expiry::Never,
        returns_old: false,
    };
    let mut expires = None;
    let mut at = 3;
    while let Some(option) = args.get(at) {
        let next = args.get(at + 1);
        let is = |name: &str| super::is_option(option, name);
        match (Unit::of(option), next) {
            _ if is("nx") && options.when != If::Present => options.when = If::Absent,
            _ if is("xx") && options.when != If::Absent => options.when = If::Present,
            _ if is("get") => options.returns_old = true,
            _ if is("keepttl") && expires.is_none() => options.expiry = Expiry::Keep,
            // The same unit may come again; the last amount counts.
            (Some(unit), Some(amount))
                if options.expiry != Expiry::Keep && expires.is_none_or(|(u, _)| u == unit) =>
            {
                expires = Some((unit, amount));
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    if let Some((unit, amount)) = expires {
        options.expiry = Expiry::At(deadline(unit, amount, ctx.ops().now_ms(), "set")?);
    }
    Ok(options)
}

/// SET with anything that depends on what is there.
fn set_conditionally(
    ctx: &mut Ctx<'_>,
    key: Key<'_>,
    bytes: &[u8],
    options: &SetOptions,
) -> Result<(), Fail> {
    check_length(ctx, bytes.len())?;
    ctx.refuse_long_value(key)?;
    let (mut had_old, mut done, mut wrong) = (false, false, false);
    let from = ctx.out.len();
    let (ops, out, shelf) = ctx.ops_and_out();
    ops.update(key, &mut |item| {
        wrong = options.returns_old && item.is_some_and(|i| i.meta.type_of() != STRING);
        let old = item.filter(|_| options.returns_old && !wrong);
        had_old = reply_old(out, shelf, from, old);
        done = !wrong
            && match options.when {
                If::Always => true,
                If::Absent => item.is_none(),
                If::Present => item.is_some(),
            };
        if !done {
            return Change::Keep;
        }
        let expires_ms = match options.expiry {
            Expiry::Never => 0,
            Expiry::Keep => item.map_or(0, |i| i.meta.expires_ms),
            Expiry::At(at) => at,
        };
        Change::Put {
            bytes: bytes.to_vec(),
            expires_ms,
            flags: 0,
            kind: STRING,
        }
    })?;
    match (wrong, options.returns_old, done) {
        (true, ..) => return Err(WRONG_TYPE),
        (_, true, _) if had_old => {}
        (_, true, _) => reply::null(ctx.out, ctx.client.resp),
        (_, false, true) => reply::ok(ctx.out),
        (_, false, false) => reply::null(ctx.out, ctx.client.resp),
    }
    Ok(())
}

/// Makes the value of `item` the reply that starts at `from`, in place of what an earlier call has written
/// there. Returns whether there is a value.
fn reply_old(
    out: &mut ReplyBuffer,
    shelf: &mut Shelf,
    from: usize,
    item: Option<Item<'_>>,
) -> bool {
    out.truncate(from);
    match item {
        Some(item) if value_fits(out.as_slice(), item.bytes.len(), out.bytes_max()) => {
            make_room(out.bytes_mut(), item.bytes.len() + FRAME_BYTES_MAX, shelf);
            reply::bulk(out, item.bytes);
        }
        Some(_) => out.cut(),
        None => {}
    }
    item.is_some()
}

/// `SETNX key value`
pub(super) fn setnx(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (key, bytes) = (ctx.key(args.at(1)), args.at(2));
    check_length(ctx, bytes.len())?;
    ctx.refuse_long_value(key)?;
    let mut done = false;
    ctx.update(key, &mut |item| {
        done = item.is_none();
        if !done {
            return Change::Keep;
        }
        Change::Put {
            bytes: bytes.to_vec(),
            expires_ms: 0,
            flags: 0,
            kind: STRING,
        }
    })?;
    reply::integer(ctx.out, i64::from(done));
    Ok(())
}

/// `SETEX key seconds value`
pub(super) fn setex(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let at = deadline(Unit::SECONDS, args.at(2), ctx.ops().now_ms(), "setex")?;
    put(ctx, ctx.key(args.at(1)), args.at(3), at)
}

/// `PSETEX key milliseconds value`
pub(super) fn psetex(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let at = deadline(Unit::MILLISECONDS, args.at(2), ctx.ops().now_ms(), "psetex")?;
    put(ctx, ctx.key(args.at(1)), args.at(3), at)
}

/// `GETSET key value`
pub(super) fn getset(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let options = SetOptions {
        when: If::Always,
        expiry: Expiry::Never,
        returns_old: true,
    };
    set_conditionally(ctx, ctx.key(args.at(1)), args.at(2), &options)
}

/// Changes `key` by `change`, which sees a string, and replies with what it held.
fn take(ctx: &mut Ctx<'_>, key: Key<'_>, change: &dyn Fn(Item<'_>) -> Change) -> Result<(), Fail> {
    ctx.refuse_long_value(key)?;
    let (mut had_old, mut wrong) = (false, false);
    let from = ctx.out.len();
    let (ops, out, shelf) = ctx.ops_and_out();
    ops.update(key, &mut |item| {
        wrong = item.is_some_and(|i| i.meta.type_of() != STRING);
        had_old = reply_old(out, shelf, from, item.filter(|_| !wrong));
        match item {
            Some(item) if !wrong => change(item),
            _ => Change::Keep,
        }
    })?;
    if wrong {
        return Err(WRONG_TYPE);
    }
    ctx.looked_up(had_old);
    if !had_old {
        reply::null(ctx.out, ctx.client.resp);
    }
    Ok(())
}

/// `GETDEL key`
pub(super) fn getdel(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    take(ctx, ctx.key(args.at(1)), &|_| Change::Delete)
}

/// What GETEX does with the expiry.
enum NewExpiry<'a> {
    Keep,
    Remove,
    Set(Unit, &'a [u8]),
}

/// PERSIST and a unit of time exclude each other; either may come again, the last amount counts.
fn getex_options(args: Args<'_>) -> Result<NewExpiry<'_>, Fail> {
    let mut chosen = NewExpiry::Keep;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        match (Unit::of(word), args.get(at + 1), &chosen) {
            (None, _, NewExpiry::Keep | NewExpiry::Remove) if super::is_option(word, "persist") => {
                chosen = NewExpiry::Remove;
            }
            (Some(unit), Some(amount), NewExpiry::Keep) => {
                chosen = NewExpiry::Set(unit, amount);
                at += 1;
            }
            (Some(unit), Some(amount), NewExpiry::Set(same, _)) if unit == *same => {
                chosen = NewExpiry::Set(unit, amount);
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(chosen)
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub(super) fn getex(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let key = ctx.key(args.at(1));
    let expires_ms = match getex_options(args)? {
        NewExpiry::Keep => return get_into(ctx, key, View::Pending),
        NewExpiry::Remove => 0,
        NewExpiry::Set(unit, amount) => match deadline(unit, amount, ctx.ops().now_ms(), "getex") {
            // Only of a key that exists is the amount looked at.
            Err(_) if ctx.ops().meta(key, View::Pending)?.is_none() => {
                return get_into(ctx, key, View::Pending);
            }
            other => other?,
        },
    };
    take(ctx, key, &|item| {
        // WATCH counts an expiry set to what it was as a change, but not a removal of none.
        if expires_ms == 0 && item.meta.expires_ms == 0 {
            return Change::Keep;
        }
        let (flags, kind) = (item.meta.flags, item.meta.kind);
        Change::Put {
            bytes: item.bytes.to_vec(),
            expires_ms,
            flags,
            kind,
        }
    })
}

/// `APPEND key value`
pub(super) fn append(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let (key, tail) = (ctx.key(args.at(1)), args.at(2));
    let most = size(&ctx.shared.settings.bulk_bytes_max).min(VALUE_BYTES_MAX);
    let mut outcome = Ok(0);
    ctx.refuse_long_value(key)?;
    ctx.update(key, &mut |item| {
        let old = item.map_or(&[][..], |i| i.bytes);
        outcome = match item {
            Some(item) if item.meta.type_of() != STRING => Err(WRONG_TYPE),
            _ if old.len() + tail.len() > most => Err(TOO_LONG),
            _ => Ok(old.len() + tail.len()),
        };
        // Appending nothing is a change, too: WATCH must see it.
        if outcome.is_err() {
            return Change::Keep;
        }
        let meta = item.map(|i| i.meta).unwrap_or_default();
        let bytes = [old, tail].concat();
        Change::Put {
            bytes,
            expires_ms: meta.expires_ms,
            flags: meta.flags,
            kind: STRING,
        }
    })?;
    reply::integer(ctx.out, length(outcome?));
    Ok(())
}

/// `MSET key value [key value ...]`
pub(super) fn mset(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    store_pairs(ctx, args, "mset", If::Always)?;
    reply::ok(ctx.out);
    Ok(())
}

/// `MSETNX key value [key value ...]`
pub(super) fn msetnx(ctx: &mut Ctx<'_>, args: Args<'_>) -> Result<(), Fail> {
    let verdict = store_pairs(ctx, args, "msetnx", If::Absent)?;
    reply::integer(ctx.out, i64::from(verdict == Verdict::Apply));
    Ok(())
}

fn store_pairs(ctx: &mut Ctx<'_>, args: Args<'_>, name: &str, when: If) -> Result<Verdict, Fail> {
    if args.len().is_multiple_of(2) {
        return Err(Fail::arity(name));
    }
    let db = ctx.client.db;
    let pairs = || {
        (1..args.len())
            .step_by(2)
            .map(|at| (args.at(at), args.at(at + 1)))
    };
    for (_, bytes) in pairs() {
        check_length(ctx, bytes.len())?;
    }
    let keys: Vec<_> = pairs().map(|(bytes, _)| Key { db, bytes }).collect();
    let verdict = ctx.grouped(&keys, &mut |ops| {
        if when == If::Absent {
            for &key in &keys {
                if ops.meta(key, View::Pending)?.is_some() {
                    return Ok(Verdict::Abandon);
                }
            }
        }
        for (&key, (_, bytes)) in keys.iter().zip(pairs()) {
            ops.put(
                key,
                Value {
                    bytes,
                    expires_ms: 0,
                    flags: 0,
                    kind: STRING,
                },
            )?;
        }
        Ok(Verdict::Apply)
    })?;
    Ok(verdict)
}
