//! Commands about keys of any type: DEL UNLINK EXISTS TOUCH TYPE SCAN KEYS RANDOMKEY DBSIZE FLUSHALL FLUSHDB SWAPDB.

use std::hash::{BuildHasher, RandomState};

use farbank_store::{GroupDecision, Key};

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use super::values::STRING;
use crate::exec_context::StoreAccess;
use crate::glob::{LetterCase, matches};
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};

/// Error that ends a request which visits all keys when the server stops, so that the request does not delay the stop.
const STOPPING: CommandError = CommandError::Fixed("ERR the server is shutting down");
/// Keys per scan step of commands that visit all keys.
const STRIDE: usize = 1000;
/// Most keys that one SCAN visits, whatever its COUNT, because other clients wait meanwhile.
const COUNT_MAX: usize = 10_000;
/// DBSIZE visits each key if the store has at most this many keys, and at most [`COUNTED_INDEX_BYTES`] of index.
const COUNTED_KEYS: u64 = 10_000;
const COUNTED_INDEX_BYTES: u64 = 1 << 20;

/// `DEL key [key ...]`, `UNLINK key [key ...]`
pub(super) fn del(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let db = ctx.client.db;
    let keys = || args.from(1).map(move |bytes| Key { db, bytes });
    let mut deleted = 0;
    if args.len() == 2 {
        let key = ctx.key(args.at(1));
        deleted = i64::from(ctx.ops().delete(key)?);
        if deleted > 0 {
            ctx.notify_generic("del", key);
        }
    } else {
        let all: Vec<_> = keys().collect();
        let mut gone = Vec::new();
        let done = ctx.grouped(&all, &mut |ops| {
            deleted = 0;
            gone.clear();
            for &key in &all {
                let was_there = ops.delete(key)?;
                deleted += i64::from(was_there);
                if was_there {
                    gone.push(key);
                }
            }
            Ok(if deleted > 0 {
                GroupDecision::Apply
            } else {
                GroupDecision::Abandon
            })
        });
        match done {
            // A full pool may have no space for a group; it always accepts single deletes.
            Err(error) if error.is_full() => {
                deleted = 0;
                gone.clear();
                for key in keys() {
                    if ctx.ops().delete(key)? {
                        deleted += 1;
                        gone.push(key);
                    }
                }
            }
            other => drop(other?),
        }
        gone.into_iter()
            .for_each(|key| ctx.notify_generic("del", key));
    }
    reply::integer(ctx.out, deleted);
    Ok(())
}

/// `EXISTS key [key ...]`, `TOUCH key [key ...]`. A repeated key counts each time.
pub(super) fn exists(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    count_existing(ctx, args, false)
}

/// `TOUCH key [key ...]`: counts keys, as EXISTS does, and records a use of each.
pub(super) fn touch(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    count_existing(ctx, args, true)
}

/// Replies with the number of keys that exist.
fn count_existing(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    uses: bool,
) -> Result<(), CommandError> {
    let view = ctx.view();
    let mut found = 0;
    for bytes in args.from(1) {
        let key = ctx.key(bytes);
        let is_there = ctx.ops().meta(key, view)?.is_some();
        ctx.count_lookup(key, is_there);
        if uses && is_there {
            ctx.note_use(key);
        }
        found += i64::from(is_there);
    }
    reply::integer(ctx.out, found);
    Ok(())
}

/// The name of a kind of value.
fn kind_name(kind: u8) -> &'static str {
    match kind {
        STRING => "string",
        _ => "unknown",
    }
}

/// `TYPE key`
pub(super) fn kind(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    let meta = ctx.ops().meta(key, view)?;
    if meta.is_none() {
        ctx.notify_miss(key);
    }
    reply::simple(ctx.out, meta.map_or("none", |m| kind_name(m.type_of())));
    Ok(())
}

/// Parsed options of SCAN.
struct ScanOptions<'a> {
    pattern: &'a [u8],
    count: usize,
    kind: Option<&'a [u8]>,
}

fn scan_options(args: Args<'_>) -> Result<ScanOptions<'_>, CommandError> {
    let mut options = ScanOptions {
        pattern: b"*",
        count: 10,
        kind: None,
    };
    let mut at = 2;
    while let Some(option) = args.get(at) {
        let value = args.get(at + 1).ok_or(SYNTAX)?;
        match text::option(option).as_slice() {
            b"match" => options.pattern = value,
            b"type" => options.kind = Some(value),
            b"count" => {
                let count = parse_i64(value).ok_or(NOT_INTEGER)?;
                options.count = usize::try_from(count)
                    .ok()
                    .filter(|&n| n > 0)
                    .ok_or(SYNTAX)?;
            }
            _ => return Err(SYNTAX),
        }
        at += 2;
    }
    Ok(options)
}

/// Parses a cursor as C's `strtoul` does: up to the first NUL, with an optional sign. An empty text is 0, and a
/// negative number wraps around.
fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = text::quote(text, usize::MAX);
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let cursor: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if negative {
        cursor.wrapping_neg()
    } else {
        cursor
    })
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub(super) fn scan(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let cursor = parse_cursor(args.at(1)).ok_or(CommandError::Fixed("ERR invalid cursor"))?;
    let options = scan_options(args)?;
    let db = ctx.client.db;
    let (mut found, mut body) = (0, ctx.out.sibling());
    let count = options.count.min(COUNT_MAX);
    let next = ctx.session()?.scan(db, cursor, count, &mut |key, meta| {
        let of_kind = |name: &[u8]| text::is_option(name, kind_name(meta.type_of()));
        if options.kind.is_none_or(of_kind) && is_wanted(options.pattern, key) {
            found += 1;
            reply::bulk(&mut body, key);
        }
    })?;
    reply::array(ctx.out, 2);
    reply::bulk_number(ctx.out, next);
    reply::array(ctx.out, found);
    ctx.out.take_from(body);
    Ok(())
}

/// Whether a key matches. The pattern `*` matches every key, including the empty key.
fn is_wanted(pattern: &[u8], key: &[u8]) -> bool {
    pattern == b"*" || matches(pattern, key, LetterCase::Exact)
}

/// Returns every wanted key of the client's database once, sorted; `None` if their names take more than `bytes_max`
/// bytes.
pub(super) fn all_keys(
    ctx: &mut CommandContext<'_>,
    bytes_max: usize,
    wanted: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<Vec<Vec<u8>>>, CommandError> {
    let (db, threads) = (ctx.client.db, ctx.shared.threads);
    let shared = ctx.shared;
    let session = ctx.session()?;
    let (mut all, mut cursor, mut bytes) = (Vec::new(), 0, 0);
    let mut swaps = shared.swaps(db);
    loop {
        if shared.swaps(db) != swaps {
            // Keys from before a swap and from after it are of two databases.
            all.clear();
            (swaps, cursor, bytes) = (shared.swaps(db), 0, 0);
        }
        cursor = session.scan(db, cursor, STRIDE, &mut |key, _| {
            if bytes <= bytes_max && wanted(key) {
                bytes += key.len() + size_of::<Vec<u8>>();
                all.push(key.to_vec());
            }
        })?;
        if bytes > bytes_max {
            return Ok(None);
        }
        if cursor == 0 {
            break;
        }
        if threads.is_stopping() {
            return Err(STOPPING);
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(Some(all))
}

/// `KEYS pattern`
pub(super) fn keys(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let pattern = args.at(1);
    // The names are collected before the reply is written, so each of the two may use half of the limit.
    let bytes_max = ctx.out.bytes_max().saturating_sub(ctx.out.len()) / 2;
    let Some(keys) = all_keys(ctx, bytes_max, &|key| is_wanted(pattern, key))? else {
        ctx.out.cut();
        return Ok(());
    };
    reply::array(ctx.out, keys.len());
    for key in &keys {
        reply::bulk(ctx.out, key);
    }
    Ok(())
}

/// Returns a number below `end` that clients cannot predict.
fn random_below(end: u64) -> u64 {
    // Each state has random keys.
    RandomState::new().hash_one(0_u8) % end.max(1)
}

/// `RANDOMKEY`. Replies with one of the keys that a scan finds after a random cursor.
pub(super) fn randomkey(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    /// Scan steps of a worker. Other databases, or expired keys, may fill many steps.
    const SHORT_STEPS: usize = 32;
    /// Keys per step.
    const KEYS: usize = 16;
    let (db, threads) = (ctx.client.db, ctx.shared.threads);
    if ctx.session()?.len(db)? == 0 {
        reply::null(ctx.out, ctx.client.resp);
        return Ok(());
    }
    // An index has at least 4 bytes for each place where a scan can begin.
    let mut cursor = random_below(ctx.shared.store.stats().index_bytes / 4);
    let (mut found, mut steps, mut ends) = (Vec::new(), 0, 0);
    // The second end is reached after a whole round.
    while found.is_empty() && ends < 2 {
        if steps == SHORT_STEPS && !ctx.executes_long {
            return Err(CommandError::Long);
        }
        if threads.is_stopping() {
            return Err(STOPPING);
        }
        cursor = ctx.session()?.scan(db, cursor, KEYS, &mut |key, _| {
            found.push(key.to_vec());
        })?;
        steps += 1;
        ends += usize::from(cursor == 0);
    }
    match found.get(random_below(found.len() as u64) as usize) {
        Some(key) => reply::bulk(ctx.out, key),
        None => reply::null(ctx.out, ctx.client.resp),
    }
    Ok(())
}

/// `DBSIZE`. In a small store, counts the live keys one by one. In a large store, replies with the number of stored
/// keys, which includes keys that have expired and are not removed yet.
pub(super) fn dbsize(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let db = ctx.client.db;
    let stored = ctx.session()?.len(db)?;
    let figures = ctx.shared.store.stats();
    let is_small = figures.index_bytes <= COUNTED_INDEX_BYTES
        && figures.keys.iter().sum::<u64>() <= COUNTED_KEYS;
    let keys = match is_small {
        true => all_keys(ctx, usize::MAX, &|_| true)?.map_or(stored, |keys| keys.len() as u64),
        false => stored,
    };
    reply::integer(ctx.out, i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

/// Checks the options of FLUSHALL and FLUSHDB. SYNC and ASYNC have the same effect.
fn flush_options(args: Args<'_>) -> Result<(), CommandError> {
    match (args.len(), text::option(args.at(1)).as_slice()) {
        (1, _) | (2, b"sync" | b"async") => Ok(()),
        _ => Err(SYNTAX),
    }
}

/// `FLUSHALL [ASYNC|SYNC]`
pub(super) fn flushall(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    flush_options(args)?;
    let keys: u64 = ctx.shared.store.stats().keys.iter().sum();
    ctx.flush_all()?;
    ctx.count_changes(keys);
    reply::ok(ctx.out);
    Ok(())
}

/// `FLUSHDB [ASYNC|SYNC]`. Deletes key by key, because the store cannot drop a single database at once.
pub(super) fn flushdb(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    flush_options(args)?;
    // Client-side caches get one invalidation of all keys.
    ctx.begin_flush();
    let flushed = delete_all(ctx);
    ctx.end_flush();
    flushed?;
    reply::ok(ctx.out);
    Ok(())
}

/// Deletes every key of the client's database. The thread of long requests, which executes FLUSHDB, also executes SWAPDB, so
/// the database is the same all the time.
fn delete_all(ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    let db = ctx.client.db;
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        cursor = ctx.session()?.scan(db, cursor, STRIDE, &mut |key, _| {
            names.push(key.to_vec());
        })?;
        for bytes in names.drain(..) {
            if ctx.ops().delete(Key { db, bytes: &bytes })? {
                ctx.count_changes(1);
            }
        }
        if cursor == 0 {
            break;
        }
        if ctx.shared.threads.is_stopping() {
            return Err(STOPPING);
        }
    }
    Ok(())
}

/// Parses an argument of SWAPDB.
fn swapped_index(word: &[u8], wrong: &'static str) -> Result<i32, CommandError> {
    let index = parse_i64(word).and_then(|index| i32::try_from(index).ok());
    index.ok_or(CommandError::Fixed(wrong))
}

/// `SWAPDB index1 index2`
pub(super) fn swapdb(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let first = swapped_index(args.at(1), "ERR invalid first DB index")?;
    let second = swapped_index(args.at(2), "ERR invalid second DB index")?;
    let [first, second] = [
        text::database_number(first)?,
        text::database_number(second)?,
    ];
    let StoreAccess::Session(session) = &mut ctx.store else {
        return Err(CommandError::Fixed(
            "ERR SWAPDB takes effect for all clients at once, so no script can call it",
        ));
    };
    session.swap_databases(first, second)?;
    ctx.count_changes(1);
    reply::ok(ctx.out);
    Ok(())
}
