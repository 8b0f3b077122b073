//! What Redis tells about a value's representation: OBJECT ENCODING, REFCOUNT, IDLETIME, FREQ, HELP.
//!
//! Farbank stores every string in the same way. The replies are those of Redis for a string with these bytes that SET
//! has stored.

use std::sync::atomic::Ordering;

use super::command;
use super::context::CommandContext;
use super::error::CommandError;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::rdb::dump_string;
use crate::settings::LiveSettings;
use crate::state::access_table::KeyUse;

/// Longest string that Redis stores together with its header.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Longest text of a 64-bit integer.
const INTEGER_BYTES_MAX: usize = 20;
/// Redis shares the integers below this one between all keys.
const SHARED_INTEGERS: i64 = 10_000;
/// Redis's count of references to a shared integer.
const SHARED_REFERENCES: i64 = i32::MAX as i64;

/// Length and, if it is short, content of the string at a key.
struct ObjectValue {
    len: usize,
    integer: Option<i64>,
}

impl ObjectValue {
    /// Returns the value of a string of `len` bytes. `bytes` are the string, if it is short.
    fn of(len: usize, bytes: &[u8]) -> ObjectValue {
        let is_short = len <= INTEGER_BYTES_MAX;
        let integer = is_short.then(|| parse_i64(bytes)).flatten();
        ObjectValue { len, integer }
    }

    /// Redis's name of the representation.
    fn encoding(&self) -> &'static str {
        match self.integer {
            Some(_) => "int",
            None if self.len <= EMBEDDED_BYTES_MAX => "embstr",
            None => "raw",
        }
    }

    /// How many references Redis counts. It shares no integers whose uses it records.
    fn references(&self, settings: &LiveSettings) -> i64 {
        let is_recorded = settings.maxmemory.load(Ordering::Relaxed) != 0
            && settings.eviction_policy().depends_on_use();
        let is_small = self
            .integer
            .is_some_and(|n| (0..SHARED_INTEGERS).contains(&n));
        match is_small && !is_recorded {
            true => SHARED_REFERENCES,
            false => 1,
        }
    }
}

/// Returns the value at argument 2. If there is none, replies with null and returns `None`.
fn object(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<Option<ObjectValue>, CommandError> {
    let (key, view) = (ctx.key(args.at(2)), ctx.view());
    let (mut len, mut bytes) = (0, Vec::new());
    let found = ctx.ops().get(key, view, &mut bytes, &mut |meta, _| {
        len = meta.value_bytes;
        len <= INTEGER_BYTES_MAX
    })?;
    if !found {
        reply::null(ctx.out, ctx.client.resp);
        return Ok(None);
    }
    Ok(Some(ObjectValue::of(len, &bytes)))
}

/// `OBJECT ENCODING key`
pub(super) fn encoding(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let Some(value) = object(ctx, args)? else {
        return Ok(());
    };
    reply::bulk(ctx.out, value.encoding().as_bytes());
    Ok(())
}

/// `OBJECT REFCOUNT key`
pub(super) fn refcount(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if let Some(value) = object(ctx, args)? {
        reply::integer(ctx.out, value.references(&ctx.shared.settings));
    }
    Ok(())
}

/// Returns the uses of the key at argument 2, with the defaults if the policy does not depend on uses. If there is no
/// such key, replies with null and returns `None`.
fn uses(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<Option<KeyUse>, CommandError> {
    let (key, view) = (ctx.key(args.at(2)), ctx.view());
    if ctx.ops().meta(key, view)?.is_none() {
        reply::null(ctx.out, ctx.client.resp);
        return Ok(None);
    }
    let table = ctx.shared.access_table();
    let used = table.map(|table| table.of(key, ctx.shared.access_clock()));
    Ok(Some(used.unwrap_or_default()))
}

/// `OBJECT IDLETIME key`. Unless the policy is LRU, the time of a key's last use is not kept, and every key counts as
/// just used. As in Redis, an error with an LFU policy.
pub(super) fn idletime(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let Some(used) = uses(ctx, args)? else {
        return Ok(());
    };
    if ctx.shared.settings.eviction_policy().is_by_frequency() {
        return Err(CommandError::Fixed(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
             between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    let secs = i64::try_from(used.idle_secs).unwrap_or(i64::MAX);
    reply::integer(ctx.out, secs);
    Ok(())
}

/// `OBJECT FREQ key`. As in Redis, an error without an LFU policy.
pub(super) fn freq(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let Some(used) = uses(ctx, args)? else {
        return Ok(());
    };
    if !ctx.shared.settings.eviction_policy().is_by_frequency() {
        return Err(CommandError::Fixed(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    reply::integer(ctx.out, used.frequency.into());
    Ok(())
}

/// `DEBUG OBJECT key`. There is no address in memory to show, and no time of the last use.
pub(super) fn describe(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    /// Bytes of a payload of DUMP besides the serialized value: type, version and checksum.
    const FRAME_BYTES: usize = 11;
    let key = ctx.key(args.at(2));
    let Some(value) = ctx.read_string(key)? else {
        return Err(CommandError::Fixed("ERR no such key"));
    };
    let value_bytes = dump_string(&value).len() - FRAME_BYTES;
    let object = ObjectValue::of(value.len(), &value);
    let text = format!(
        "Value at:0x0 refcount:{} encoding:{} serializedlength:{value_bytes} lru:0 lru_seconds_idle:0",
        object.references(&ctx.shared.settings),
        object.encoding(),
    );
    reply::simple(ctx.out, &text);
    Ok(())
}

/// `OBJECT HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    command::help_of(ctx, "object");
    Ok(())
}
