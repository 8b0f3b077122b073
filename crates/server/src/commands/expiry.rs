//! Expiry: EXPIRE PEXPIRE EXPIREAT PEXPIREAT TTL PTTL EXPIRETIME PEXPIRETIME PERSIST.

use farbank_store::{StoredItem, UpdateDecision};

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER};
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};

/// Unit of a command's time argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimeUnit {
    milliseconds: i64,
    relative: bool,
}

impl TimeUnit {
    pub(super) const SECONDS: TimeUnit = TimeUnit {
        milliseconds: 1000,
        relative: true,
    };
    pub(super) const MILLISECONDS: TimeUnit = TimeUnit {
        milliseconds: 1,
        relative: true,
    };
    const SECOND: TimeUnit = TimeUnit {
        milliseconds: 1000,
        relative: false,
    };
    const MILLISECOND: TimeUnit = TimeUnit {
        milliseconds: 1,
        relative: false,
    };

    /// The unit of an option of SET or GETEX.
    pub(super) fn of(option: &[u8]) -> Option<TimeUnit> {
        let units = [
            ("ex", TimeUnit::SECONDS),
            ("px", TimeUnit::MILLISECONDS),
            ("exat", TimeUnit::SECOND),
            ("pxat", TimeUnit::MILLISECOND),
        ];
        let found = units.iter().find(|(name, _)| text::is_option(option, name));
        found.map(|&(_, unit)| unit)
    }

    /// Converts `amount` to milliseconds since 1970; `None` on overflow.
    fn moment(self, amount: i64, now_ms: u64) -> Option<i64> {
        let now = if self.relative {
            i64::try_from(now_ms).ok()?
        } else {
            0
        };
        amount.checked_mul(self.milliseconds)?.checked_add(now)
    }
}

fn invalid(command: &str) -> CommandError {
    CommandError::Detailed(format!("ERR invalid expire time in '{command}' command").into_bytes())
}

/// Parses `amount` for a command that stores a value; it must be positive. Returns milliseconds since 1970.
pub(super) fn deadline(
    unit: TimeUnit,
    amount: &[u8],
    now_ms: u64,
    command: &str,
) -> Result<u64, CommandError> {
    let amount = parse_i64(amount).ok_or(NOT_INTEGER)?;
    let moment = unit.moment(amount, now_ms).filter(|_| amount > 0);
    moment
        .and_then(|ms| u64::try_from(ms).ok())
        .ok_or_else(|| invalid(command))
}

/// Conditions under which EXPIRE, PEXPIRE, EXPIREAT and PEXPIREAT set the expiry.
#[derive(Clone, Copy, Default)]
struct ExpiryConditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl ExpiryConditions {
    fn parse(args: Args<'_>) -> Result<ExpiryConditions, CommandError> {
        let mut conditions = ExpiryConditions::default();
        for option in args.from(3) {
            match text::option(option).as_slice() {
                b"nx" => conditions.nx = true,
                b"xx" => conditions.xx = true,
                b"gt" => conditions.gt = true,
                b"lt" => conditions.lt = true,
                _ => {
                    let text = [b"ERR Unsupported option ", text::quote(option, usize::MAX)];
                    return Err(CommandError::Detailed(text.concat()));
                }
            }
        }
        let ExpiryConditions { nx, xx, gt, lt } = conditions;
        if nx && (xx || gt || lt) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(CommandError::Fixed(text));
        }
        if gt && lt {
            return Err(CommandError::Fixed(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(conditions)
    }

    /// Whether the conditions allow to change the expiry from `old` (`None`: never expires) to `new`.
    fn allow(self, old: Option<i64>, new: i64) -> bool {
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

fn expire_by(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    unit: TimeUnit,
    name: &str,
) -> Result<(), CommandError> {
    let conditions = ExpiryConditions::parse(args)?;
    let amount = parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    let (key, now) = (ctx.key(args.at(1)), ctx.ops().now_ms());
    let moment = unit.moment(amount, now).ok_or_else(|| invalid(name))?;
    ctx.refuse_long_value(key)?;
    let (mut done, mut is_deleted) = (false, false);
    ctx.update(key, &mut |item| {
        let old = item.map(expiry_of);
        is_deleted = false;
        done = old.is_some_and(|old| conditions.allow(old, moment));
        match (item, u64::try_from(moment)) {
            (Some(item), Ok(expires_ms)) if done && expires_ms > now => with(item, expires_ms),
            _ if done => {
                is_deleted = true;
                UpdateDecision::Delete
            }
            _ => UpdateDecision::Keep,
        }
    })?;
    if done {
        ctx.notify_generic(if is_deleted { "del" } else { "expire" }, key);
    }
    reply::integer(ctx.out, i64::from(done));
    Ok(())
}

fn expiry_of(item: StoredItem<'_>) -> Option<i64> {
    match item.meta.expires_ms {
        0 => None,
        ms => Some(i64::try_from(ms).unwrap_or(i64::MAX)),
    }
}

/// Returns the decision to store the same value with another expiry.
fn with(item: StoredItem<'_>, expires_ms: u64) -> UpdateDecision {
    let (flags, kind) = (item.meta.flags, item.meta.kind);
    UpdateDecision::Put {
        bytes: item.bytes.to_vec(),
        expires_ms,
        flags,
        kind,
    }
}

/// `EXPIRE key seconds [NX|XX|GT|LT]`
pub(super) fn expire(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    expire_by(ctx, args, TimeUnit::SECONDS, "expire")
}

/// `PEXPIRE key milliseconds [NX|XX|GT|LT]`
pub(super) fn pexpire(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    expire_by(ctx, args, TimeUnit::MILLISECONDS, "pexpire")
}

/// `EXPIREAT key second [NX|XX|GT|LT]`
pub(super) fn expireat(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    expire_by(ctx, args, TimeUnit::SECOND, "expireat")
}

/// `PEXPIREAT key millisecond [NX|XX|GT|LT]`
pub(super) fn pexpireat(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    expire_by(ctx, args, TimeUnit::MILLISECOND, "pexpireat")
}

/// `PERSIST key`
pub(super) fn persist(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = ctx.key(args.at(1));
    ctx.refuse_long_value(key)?;
    let mut done = false;
    ctx.update(key, &mut |item| {
        let expiring = item.filter(|i| i.meta.expires_ms != 0);
        done = expiring.is_some();
        expiring.map_or(UpdateDecision::Keep, |item| with(item, 0))
    })?;
    if done {
        ctx.notify_generic("persist", key);
    }
    reply::integer(ctx.out, i64::from(done));
    Ok(())
}

/// Replies with `figure` of a key's expiry and the current time; -1 if the key has no expiry, -2 if it is absent.
fn show(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    figure: fn(i64, i64) -> i64,
) -> Result<(), CommandError> {
    let (key, view) = (ctx.key(args.at(1)), ctx.view());
    let now = i64::try_from(ctx.ops().now_ms()).unwrap_or(i64::MAX);
    let meta = ctx.ops().meta(key, view)?;
    ctx.count_lookup(key, meta.is_some());
    let value = match meta.map(|m| i64::try_from(m.expires_ms).unwrap_or(i64::MAX)) {
        None => -2,
        Some(0) => -1,
        Some(at) => figure(at, now),
    };
    reply::integer(ctx.out, value);
    Ok(())
}

/// Rounds non-negative milliseconds to the nearest second.
fn rounded(milliseconds: i64) -> i64 {
    milliseconds / 1000 + i64::from(milliseconds % 1000 >= 500)
}

/// `TTL key`
pub(super) fn ttl(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    show(ctx, args, |at, now| rounded((at - now).max(0)))
}

/// `PTTL key`
pub(super) fn pttl(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    show(ctx, args, |at, now| (at - now).max(0))
}

/// `EXPIRETIME key`
pub(super) fn expiretime(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    show(ctx, args, |at, _| rounded(at))
}

/// `PEXPIRETIME key`
pub(super) fn pexpiretime(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    show(ctx, args, |at, _| at)
}
