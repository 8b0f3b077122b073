//! Strings: GET SET MGET MSET MSETNX SETNX SETEX PSETEX GETSET GETDEL GETEX APPEND STRLEN.

use farbank_store::{
    GetStep, GroupDecision, Key, ReadView, StoredItem, UpdateDecision, Value, ValueMeta,
};

use super::context::CommandContext;
use super::error::{CommandError, SYNTAX, TOO_LONG, WRONG_TYPE};
use super::expiry::{TimeUnit, deadline};
use super::text;
use super::values::{STRING, string_in, string_instead_of};
use crate::buffers::pool::{BufferPool, reserve};
use crate::buffers::reply::{ReplyBuffer, ReplySink};
use crate::exec_context::StoreAccess;
use crate::keyspace_events::KeyspaceEvents;
use crate::protocol::resp::{Args, reply};
use crate::stats::counters::Counter;

/// Most bytes of a value's frame in a reply.
const FRAME_BYTES_MAX: usize = 32;

/// `GET key`
pub(super) fn get(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    get_into(ctx, key, view)
}

/// Whether a value and its frame fit in `out`, which may have at most `most` bytes.
#[inline]
fn value_fits(out: &[u8], value_bytes: usize, most: usize) -> bool {
    most.saturating_sub(out.len()) >= value_bytes.saturating_add(FRAME_BYTES_MAX)
}

/// Replies with the value of `key`.
fn get_into(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
    view: ReadView,
) -> Result<(), CommandError> {
    let (most, is_cut) = (ctx.out.bytes_max(), ctx.out.is_cut());
    let (mut kind, mut fits, mut is_long) = (STRING, true, false);
    let bytes_left = ctx.bytes_left();
    let buffer_pool = &mut ctx.thread.buffer_pool;
    let mut head = |meta: &ValueMeta, out: &mut Vec<u8>| {
        kind = meta.type_of();
        is_long = meta.value_bytes > bytes_left;
        if is_long {
            return false;
        }
        fits = !is_cut && value_fits(out, meta.value_bytes, most);
        if fits {
            reserve(out, meta.value_bytes + FRAME_BYTES_MAX, buffer_pool);
            reply::bulk_header(out, meta.value_bytes);
        }
        fits && kind == STRING
    };
    let out = ctx.out.bytes_mut();
    let found = match &mut ctx.store {
        StoreAccess::Session(session) => session.get(key, view, out, &mut head)?,
        group => group.ops().get(key, view, out, &mut head)?,
    };
    if is_long {
        return Err(CommandError::Long);
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
    ctx.count_lookup(key, found);
    Ok(())
}

/// `MGET key [key ...]`
pub(super) fn mget(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    reply::array(ctx.out, args.len() - 1);
    let view = ctx.view();
    let (db, resp) = (ctx.client.db, ctx.client.resp);
    let (mut bytes_left, mut is_long) = (ctx.bytes_left(), false);
    let notifies = ctx.shows_changes();
    let StoreAccess::Session(session) = &mut ctx.store else {
        return mget_in_group(ctx, args);
    };
    let keys: Vec<_> = args.from(1).map(|bytes| Key { db, bytes }).collect();
    let most = ctx.out.bytes_max();
    let (mut hits, mut misses, mut fits, mut in_value) = (0, 0, true, false);
    let (mut at, mut missing) = (0, Vec::new());
    let buffer_pool = &mut ctx.thread.buffer_pool;
    let mut head = |meta: Option<&ValueMeta>, out: &mut Vec<u8>| {
        if std::mem::take(&mut in_value) {
            out.extend_from_slice(b"\r\n");
        }
        let string = meta.filter(|meta| meta.type_of() == STRING);
        let value_bytes = string.map_or(0, |meta| meta.value_bytes);
        if notifies && meta.is_none() {
            missing.push(at);
        }
        at += 1;
        is_long = value_bytes > bytes_left;
        if is_long {
            return GetStep::Nothing;
        }
        bytes_left -= value_bytes;
        match string {
            Some(meta) if value_fits(out, meta.value_bytes, most) => {
                (hits, in_value) = (hits + 1, true);
                reserve(out, meta.value_bytes + FRAME_BYTES_MAX, buffer_pool);
                reply::bulk_header(out, meta.value_bytes);
                GetStep::Value
            }
            None if value_fits(out, 0, most) => {
                misses += 1;
                reply::null(out, resp);
                GetStep::NextKey
            }
            _ => {
                fits = false;
                GetStep::Nothing
            }
        }
    };
    session.get_many_into(&keys, view, ctx.out.bytes_mut(), &mut head)?;
    if is_long {
        return Err(CommandError::Long);
    }
    if !fits {
        ctx.out.cut();
    }
    if in_value {
        ctx.out.extend_from_slice(b"\r\n");
    }
    ctx.thread.counters.count(Counter::Hits, hits);
    ctx.thread.counters.count(Counter::Misses, misses);
    missing.into_iter().for_each(|at| ctx.notify_miss(keys[at]));
    Ok(())
}

fn mget_in_group(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    for bytes in args.from(1) {
        if ctx.out.is_cut() {
            break;
        }
        let (key, from) = (ctx.key(bytes), ctx.out.len());
        match get_into(ctx, key, ReadView::Pending) {
            Err(CommandError::Fixed(_)) => {
                ctx.out.truncate(from);
                reply::null(ctx.out, ctx.client.resp);
            }
            other => other?,
        }
    }
    Ok(())
}

/// `STRLEN key`
pub(super) fn strlen(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    let meta = ctx.ops().meta(key, view)?;
    ctx.count_lookup(key, meta.is_some());
    match meta {
        Some(meta) if meta.type_of() != STRING => return Err(WRONG_TYPE),
        Some(meta) => {
            ctx.note_use(key);
            reply::integer(ctx.out, length(meta.value_bytes));
        }
        None => reply::integer(ctx.out, 0),
    }
    Ok(())
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Condition of SET: whether the key must be absent or present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetCondition {
    Always,
    Absent,
    Present,
}

/// What SET does with the key's expiry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetExpiry {
    Never,
    Keep,
    At(u64),
}

/// Parsed options of SET.
struct SetOptions {
    when: SetCondition,
    expiry: SetExpiry,
    returns_old: bool,
}

/// `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub(super) fn set(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, bytes) = (ctx.key(args.at(1)), args.at(2));
    if args.len() == 3 {
        return put(ctx, key, bytes, 0);
    }
    let options = set_options(ctx, args)?;
    match options {
        SetOptions {
            when: SetCondition::Always,
            expiry: SetExpiry::Never,
            returns_old: false,
        } => put(ctx, key, bytes, 0),
        SetOptions {
            when: SetCondition::Always,
            expiry: SetExpiry::At(at),
            returns_old: false,
        } => put(ctx, key, bytes, at),
        _ => set_conditionally(ctx, key, bytes, &options),
    }
}

/// Stores a string unconditionally and replies OK.
#[inline]
fn put(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
    bytes: &[u8],
    expires_ms: u64,
) -> Result<(), CommandError> {
    check_length(ctx, bytes.len())?;
    if ctx.shows_changes() {
        put_and_notify(ctx, key, bytes, expires_ms)?;
    } else {
        ctx.ops().put(key, string(bytes, expires_ms))?;
        ctx.count_changes(1);
    }
    reply::ok(ctx.out);
    Ok(())
}

fn string(bytes: &[u8], expires_ms: u64) -> Value<'_> {
    Value {
        bytes,
        expires_ms,
        flags: 0,
        kind: STRING,
    }
}

/// Stores a string and publishes the events of SET.
#[cold]
fn put_and_notify(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
    bytes: &[u8],
    expires_ms: u64,
) -> Result<(), CommandError> {
    ctx.notify_if_expired(key);
    let mut was_absent = false;
    if ctx.notifies(KeyspaceEvents::NEW) {
        was_absent = ctx.ops().meta(key, ReadView::Pending)?.is_none();
    }
    ctx.ops().put(key, string(bytes, expires_ms))?;
    notify_set(ctx, key, was_absent, expires_ms);
    Ok(())
}

/// Publishes the events of SET: a further one if the command has set an expiry.
fn notify_set(ctx: &mut CommandContext<'_>, key: Key<'_>, was_absent: bool, expires_ms: u64) {
    ctx.notify_string("set", key, was_absent);
    if expires_ms > 0 {
        ctx.note_expiry(key, expires_ms);
        ctx.notify(KeyspaceEvents::GENERIC, "expire", key); // The change is counted already.
    }
}

fn check_length(ctx: &CommandContext<'_>, bytes: usize) -> Result<(), CommandError> {
    match bytes <= ctx.value_bytes_max() {
        true => Ok(()),
        false => Err(TOO_LONG),
    }
}

fn set_options(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<SetOptions, CommandError> {
    let mut options = SetOptions {
        when: SetCondition::Always,
        expiry: SetExpiry::Never,
        returns_old: false,
    };
    let mut expires = None;
    let mut at = 3;
    while let Some(option) = args.get(at) {
        let next = args.get(at + 1);
        let is = |name: &str| text::is_option(option, name);
        match (TimeUnit::of(option), next) {
            _ if is("nx") && options.when != SetCondition::Present => {
                options.when = SetCondition::Absent
            }
            _ if is("xx") && options.when != SetCondition::Absent => {
                options.when = SetCondition::Present
            }
            _ if is("get") => options.returns_old = true,
            _ if is("keepttl") && expires.is_none() => options.expiry = SetExpiry::Keep,
            // The same unit may be repeated; the last amount counts.
            (Some(unit), Some(amount))
                if options.expiry != SetExpiry::Keep && expires.is_none_or(|(u, _)| u == unit) =>
            {
                expires = Some((unit, amount));
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    if let Some((unit, amount)) = expires {
        options.expiry = SetExpiry::At(deadline(unit, amount, ctx.ops().now_ms(), "set")?);
    }
    Ok(options)
}

/// SET with options that depend on the key's old value.
fn set_conditionally(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
    bytes: &[u8],
    options: &SetOptions,
) -> Result<(), CommandError> {
    check_length(ctx, bytes.len())?;
    ctx.refuse_long_value(key)?;
    ctx.notify_if_expired(key);
    let (mut had_old, mut done, mut wrong) = (false, false, false);
    let mut was_absent = false;
    let from = ctx.out.len();
    let (ops, out, buffer_pool) = ctx.ops_and_out();
    ops.update(key, &mut |item| {
        wrong = options.returns_old && item.is_some_and(|i| i.meta.type_of() != STRING);
        let old = item.filter(|_| options.returns_old && !wrong);
        had_old = reply_old(out, buffer_pool, from, old);
        was_absent = item.is_none();
        done = !wrong
            && match options.when {
                SetCondition::Always => true,
                SetCondition::Absent => item.is_none(),
                SetCondition::Present => item.is_some(),
            };
        if !done {
            return UpdateDecision::Keep;
        }
        let expires_ms = match options.expiry {
            SetExpiry::Never => 0,
            SetExpiry::Keep => item.map_or(0, |i| i.meta.expires_ms),
            SetExpiry::At(at) => at,
        };
        UpdateDecision::Put {
            bytes: bytes.to_vec(),
            expires_ms,
            flags: 0,
            kind: STRING,
        }
    })?;
    if options.returns_old && was_absent {
        ctx.notify_miss(key);
    }
    if done {
        let expires_ms = match options.expiry {
            SetExpiry::At(at) => at,
            SetExpiry::Never | SetExpiry::Keep => 0,
        };
        notify_set(ctx, key, was_absent, expires_ms);
    }
    match (wrong, options.returns_old, done) {
        (true, ..) => return Err(WRONG_TYPE),
        (_, true, _) if had_old => {}
        (_, true, _) => reply::null(ctx.out, ctx.client.resp),
        (_, false, true) => reply::ok(ctx.out),
        (_, false, false) => reply::null(ctx.out, ctx.client.resp),
    }
    Ok(())
}

/// Writes the value of `item` as the reply that starts at `from`, and removes what an earlier call has written there.
/// Returns whether there is a value.
fn reply_old(
    out: &mut ReplyBuffer,
    buffer_pool: &mut BufferPool,
    from: usize,
    item: Option<StoredItem<'_>>,
) -> bool {
    out.truncate(from);
    match item {
        Some(item) if value_fits(out.as_slice(), item.bytes.len(), out.bytes_max()) => {
            reserve(
                out.bytes_mut(),
                item.bytes.len() + FRAME_BYTES_MAX,
                buffer_pool,
            );
            reply::bulk(out, item.bytes);
        }
        Some(_) => out.cut(),
        None => {}
    }
    item.is_some()
}

/// `SETNX key value`
pub(super) fn setnx(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, bytes) = (ctx.key(args.at(1)), args.at(2));
    check_length(ctx, bytes.len())?;
    ctx.refuse_long_value(key)?;
    let mut done = false;
    ctx.update(key, &mut |item| {
        done = item.is_none();
        if !done {
            return UpdateDecision::Keep;
        }
        UpdateDecision::Put {
            bytes: bytes.to_vec(),
            expires_ms: 0,
            flags: 0,
            kind: STRING,
        }
    })?;
    if done {
        notify_set(ctx, key, true, 0);
    }
    reply::integer(ctx.out, i64::from(done));
    Ok(())
}

/// `SETEX key seconds value`
pub(super) fn setex(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let at = deadline(TimeUnit::SECONDS, args.at(2), ctx.ops().now_ms(), "setex")?;
    put(ctx, ctx.key(args.at(1)), args.at(3), at)
}

/// `PSETEX key milliseconds value`
pub(super) fn psetex(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let at = deadline(
        TimeUnit::MILLISECONDS,
        args.at(2),
        ctx.ops().now_ms(),
        "psetex",
    )?;
    put(ctx, ctx.key(args.at(1)), args.at(3), at)
}

/// `GETSET key value`
pub(super) fn getset(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let options = SetOptions {
        when: SetCondition::Always,
        expiry: SetExpiry::Never,
        returns_old: true,
    };
    set_conditionally(ctx, ctx.key(args.at(1)), args.at(2), &options)
}

/// The event of a change, and the new expiry; 0 means none.
type ChangeEvent = (&'static str, u64);

/// Applies `change`, which also returns the event to publish and the new expiry, to the string at `key`. Replies with the old value.
fn reply_old_and_change(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
    change: &dyn Fn(StoredItem<'_>) -> (UpdateDecision, Option<ChangeEvent>),
) -> Result<(), CommandError> {
    ctx.refuse_long_value(key)?;
    let (mut had_old, mut wrong, mut event) = (false, false, None);
    let from = ctx.out.len();
    let (ops, out, buffer_pool) = ctx.ops_and_out();
    ops.update(key, &mut |item| {
        wrong = item.is_some_and(|i| i.meta.type_of() != STRING);
        had_old = reply_old(out, buffer_pool, from, item.filter(|_| !wrong));
        match item {
            Some(item) if !wrong => {
                let (decision, published) = change(item);
                event = published;
                decision
            }
            _ => UpdateDecision::Keep,
        }
    })?;
    if wrong {
        return Err(WRONG_TYPE);
    }
    ctx.count_lookup(key, had_old);
    if let Some((event, expires_ms)) = event {
        ctx.note_expiry(key, expires_ms);
        ctx.notify_generic(event, key);
    }
    if !had_old {
        reply::null(ctx.out, ctx.client.resp);
    }
    Ok(())
}

/// `GETDEL key`
pub(super) fn getdel(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    reply_old_and_change(ctx, ctx.key(args.at(1)), &|_| {
        (UpdateDecision::Delete, Some(("del", 0)))
    })
}

/// What GETEX does with the key's expiry.
enum GetExExpiry<'a> {
    Keep,
    Remove,
    Set(TimeUnit, &'a [u8]),
}

/// Parses GETEX's options. PERSIST and a unit of time exclude each other; either may be repeated, and the last amount
/// counts.
fn getex_options(args: Args<'_>) -> Result<GetExExpiry<'_>, CommandError> {
    let mut chosen = GetExExpiry::Keep;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        match (TimeUnit::of(word), args.get(at + 1), &chosen) {
            (None, _, GetExExpiry::Keep | GetExExpiry::Remove)
                if text::is_option(word, "persist") =>
            {
                chosen = GetExExpiry::Remove;
            }
            (Some(unit), Some(amount), GetExExpiry::Keep) => {
                chosen = GetExExpiry::Set(unit, amount);
                at += 1;
            }
            (Some(unit), Some(amount), GetExExpiry::Set(same, _)) if unit == *same => {
                chosen = GetExExpiry::Set(unit, amount);
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(chosen)
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub(super) fn getex(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = ctx.key(args.at(1));
    let expires_ms = match getex_options(args)? {
        GetExExpiry::Keep => return get_into(ctx, key, ReadView::Pending),
        GetExExpiry::Remove => 0,
        GetExExpiry::Set(unit, amount) => match deadline(unit, amount, ctx.ops().now_ms(), "getex")
        {
            // As in Redis, the amount is checked only if the key exists.
            Err(_) if ctx.ops().meta(key, ReadView::Pending)?.is_none() => {
                return get_into(ctx, key, ReadView::Pending);
            }
            other => other?,
        },
    };
    let now_ms = ctx.ops().now_ms();
    reply_old_and_change(ctx, key, &|item| {
        // For WATCH, setting an expiry is a change even if it is equal; removing an expiry that is not set is none.
        let event = match expires_ms {
            0 if item.meta.expires_ms == 0 => return (UpdateDecision::Keep, None),
            0 => "persist",
            past if past <= now_ms => return (UpdateDecision::Delete, Some(("del", 0))),
            _ => "expire",
        };
        let (flags, kind) = (item.meta.flags, item.meta.kind);
        let put = UpdateDecision::Put {
            bytes: item.bytes.to_vec(),
            expires_ms,
            flags,
            kind,
        };
        (put, Some((event, expires_ms)))
    })
}

/// `APPEND key value`
pub(super) fn append(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, tail) = (ctx.key(args.at(1)), args.at(2));
    let most = ctx.value_bytes_max();
    let mut outcome = Ok(0);
    ctx.refuse_long_value(key)?;
    ctx.update(key, &mut |item| {
        let old = string_in(item).map(Option::unwrap_or_default);
        let new = old.and_then(|old| match old.len() + tail.len() {
            len if len > most => Err(TOO_LONG),
            len => Ok((old, len)),
        });
        // Appending nothing also changes the key for WATCH.
        match new {
            Ok((old, len)) => {
                outcome = Ok(len);
                string_instead_of(item, [old, tail].concat())
            }
            Err(error) => {
                outcome = Err(error);
                UpdateDecision::Keep
            }
        }
    })?;
    let len = outcome?;
    ctx.notify_string("append", key, ctx.request.was_absent);
    reply::integer(ctx.out, length(len));
    Ok(())
}

/// `MSET key value [key value ...]`
pub(super) fn mset(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    store_pairs(ctx, args, "mset", SetCondition::Always)?;
    reply::ok(ctx.out);
    Ok(())
}

/// `MSETNX key value [key value ...]`
pub(super) fn msetnx(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let verdict = store_pairs(ctx, args, "msetnx", SetCondition::Absent)?;
    reply::integer(ctx.out, i64::from(verdict == GroupDecision::Apply));
    Ok(())
}

fn store_pairs(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    name: &str,
    when: SetCondition,
) -> Result<GroupDecision, CommandError> {
    if args.len().is_multiple_of(2) {
        return Err(CommandError::arity(name));
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
    let tells_new = ctx.notifies(KeyspaceEvents::NEW);
    let mut absent = Vec::new();
    let verdict = ctx.grouped(&keys, &mut |ops| {
        absent.clear();
        if when == SetCondition::Absent {
            for &key in &keys {
                if ops.meta(key, ReadView::Pending)?.is_some() {
                    return Ok(GroupDecision::Abandon);
                }
            }
        }
        for (&key, (_, bytes)) in keys.iter().zip(pairs()) {
            if tells_new {
                absent.push(ops.meta(key, ReadView::Pending)?.is_none());
            }
            ops.put(key, string(bytes, 0))?;
        }
        Ok(GroupDecision::Apply)
    })?;
    if verdict == GroupDecision::Apply {
        for (at, &key) in keys.iter().enumerate() {
            ctx.notify_string("set", key, absent.get(at) == Some(&true));
        }
    }
    Ok(verdict)
}
