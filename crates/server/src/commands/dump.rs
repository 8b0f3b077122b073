//! Values as payloads: DUMP and RESTORE.
//!
//! The payload is that of Redis 7.0 (see [`crate::rdb`]). Compressing and checking a payload takes several times as long
//! as copying it, so a worker handles only payloads of up to [`WORKER_BYTES_MAX`].

use std::borrow::Cow;

use farbank_store::{ReadView, UpdateDecision};

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX, TOO_LONG};
use super::text;
use super::values::STRING;
use crate::eviction_policy::EvictionPolicy;
use crate::exec_context::LONG_REQUEST_BYTES;
use crate::keyspace_events::KeyspaceEvents;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::rdb::{PayloadError, dump_string, restore_string};
use crate::state::access_table::KeyUse;

/// How many times longer it takes to handle a byte of a payload than to copy it.
const COST: usize = 8;
/// Most bytes of a value, or of a payload, that a worker handles.
const WORKER_BYTES_MAX: usize = LONG_REQUEST_BYTES / COST;

const BUSY_KEY: CommandError = CommandError::Fixed("BUSYKEY Target key name already exists.");
const BAD_FOOTER: CommandError =
    CommandError::Fixed("ERR DUMP payload version or checksum are wrong");
const BAD_FORMAT: CommandError = CommandError::Fixed("ERR Bad data format");

/// `DUMP key`
pub(super) fn dump(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    if !ctx.executes_long {
        let bytes_left = ctx.bytes_left().saturating_sub(ctx.request.hidden_bytes) / COST;
        let meta = ctx.ops().meta(key, view)?;
        if meta.is_some_and(|meta| meta.value_bytes > bytes_left) {
            return Err(CommandError::Long);
        }
    }
    let Some(value) = ctx.read_string(key)? else {
        reply::null(ctx.out, ctx.client.resp);
        return Ok(());
    };
    ctx.request.hidden_bytes += value.len() * (COST - 1);
    reply::bulk(ctx.out, &dump_string(&value));
    Ok(())
}

/// Parsed options of RESTORE.
#[derive(Default)]
struct RestoreOptions {
    replaces: bool,
    /// The expiry is a moment, instead of a duration.
    is_absolute: bool,
    idle_secs: Option<u64>,
    frequency: Option<u8>,
}

impl RestoreOptions {
    /// The uses that the restored key has under `policy`, if an option sets them.
    fn uses(&self, policy: EvictionPolicy) -> Option<KeyUse> {
        let used = KeyUse {
            idle_secs: self.idle_secs.unwrap_or(0),
            frequency: self.frequency.unwrap_or(0),
        };
        let is_set = match policy.is_by_frequency() {
            true => self.frequency.is_some(),
            false => self.idle_secs.is_some(),
        };
        is_set.then_some(used)
    }
}

/// Parses the options.
fn restore_options(args: Args<'_>) -> Result<RestoreOptions, CommandError> {
    let mut options = RestoreOptions::default();
    let mut at = 4;
    while let Some(option) = args.get(at) {
        let number = || parse_i64(args.at(at + 1)).ok_or(NOT_INTEGER);
        let has_value = args.len() > at + 1;
        match text::option(option).as_slice() {
            b"replace" => options.replaces = true,
            b"absttl" => options.is_absolute = true,
            b"idletime" if has_value && options.frequency.is_none() => {
                let text = "ERR Invalid IDLETIME value, must be >= 0";
                let secs = u64::try_from(number()?).map_err(|_| CommandError::Fixed(text))?;
                options.idle_secs = Some(secs);
                at += 1;
            }
            b"freq" if has_value && options.idle_secs.is_none() => {
                let text = "ERR Invalid FREQ value, must be >= 0 and <= 255";
                let frequency = u8::try_from(number()?).map_err(|_| CommandError::Fixed(text))?;
                options.frequency = Some(frequency);
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(options)
}

/// Returns the string of `payload`.
fn decode<'a>(ctx: &CommandContext<'_>, payload: &'a [u8]) -> Result<Cow<'a, [u8]>, CommandError> {
    let bytes_left = match ctx.executes_long {
        true => usize::MAX,
        false => WORKER_BYTES_MAX.saturating_sub(ctx.request.hidden_bytes / COST),
    };
    if payload.len() > bytes_left {
        return Err(CommandError::Long);
    }
    let bytes_max = ctx.value_bytes_max();
    restore_string(payload, bytes_max.min(bytes_left)).map_err(|error| match error {
        PayloadError::Footer => BAD_FOOTER,
        PayloadError::Format => BAD_FORMAT,
        PayloadError::TooLong(bytes) if bytes <= bytes_max as u64 => CommandError::Long,
        PayloadError::TooLong(_) => TOO_LONG,
        PayloadError::OtherType(number) => CommandError::Detailed(
            format!(
                "ERR Bad data format: a value of RDB type {number}; this server stores strings only"
            )
            .into_bytes(),
        ),
    })
}

/// `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
pub(super) fn restore(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let options = restore_options(args)?;
    let key = ctx.key(args.at(1));
    if !options.replaces && ctx.ops().meta(key, ReadView::Pending)?.is_some() {
        return Err(BUSY_KEY);
    }
    let expiry = parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    if expiry < 0 {
        return Err(CommandError::Fixed("ERR Invalid TTL value, must be >= 0"));
    }
    let value = decode(ctx, args.at(3))?;
    ctx.refuse_long_value(key)?;
    ctx.request.hidden_bytes += value.len() * COST;
    let now = i64::try_from(ctx.ops().now_ms()).unwrap_or(i64::MAX);
    let expiry = match expiry {
        0 => None,
        // As in Redis, a sum that is too large wraps to a moment in the past.
        after if !options.is_absolute => Some(now.wrapping_add(after)),
        moment => Some(moment),
    };
    let is_expired = expiry.is_some_and(|moment| moment <= now);
    let expires_ms = expiry.and_then(|moment| u64::try_from(moment).ok());
    let (mut is_busy, mut existed) = (false, false);
    ctx.update(key, &mut |item| {
        existed = item.is_some();
        is_busy = existed && !options.replaces;
        match (is_busy, is_expired) {
            (true, _) => UpdateDecision::Keep,
            (_, true) if existed => UpdateDecision::Delete,
            (_, true) => UpdateDecision::Keep,
            _ => UpdateDecision::Put {
                bytes: value.to_vec(),
                expires_ms: expires_ms.unwrap_or(0),
                flags: 0,
                kind: STRING,
            },
        }
    })?;
    if is_busy {
        return Err(BUSY_KEY);
    }
    match (is_expired, existed) {
        (true, true) => ctx.notify_generic("del", key),
        (true, false) => {}
        (false, existed) => {
            if !existed || options.replaces {
                // Redis deletes the old value first, so the key is new.
                ctx.notify(KeyspaceEvents::NEW, "new", key);
            }
            ctx.notify_generic("restore", key);
            let shared = ctx.shared;
            if let Some(table) = shared.access_table()
                && let Some(used) = options.uses(shared.settings.eviction_policy())
            {
                table.set(key, shared.access_clock(), used);
            }
        }
    }
    reply::ok(ctx.out);
    Ok(())
}
