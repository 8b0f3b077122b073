//! Integers of any width inside strings: BITFIELD BITFIELD_RO.

use farbank_store::UpdateDecision;

use super::bits::{bit_at, byte_of};
use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use super::values::{extended, string_in, string_instead_of};
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};

/// What a write does if its number does not fit in the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OverflowPolicy {
    Wrap,
    Saturate,
    Fail,
}

/// Type of a field: its width, and whether it has a sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FieldType {
    is_signed: bool,
    bits: u32,
}

/// What an operation does with its field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FieldAction {
    Get,
    Set(i64, OverflowPolicy),
    Add(i64, OverflowPolicy),
}

/// An operation of BITFIELD.
#[derive(Clone, Copy, Debug)]
struct FieldOperation {
    field: FieldType,
    offset: u64,
    action: FieldAction,
}

impl FieldType {
    fn parse(word: &[u8]) -> Result<FieldType, CommandError> {
        const BAD: CommandError = CommandError::Fixed(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        );
        let (is_signed, digits) = match word {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(BAD),
        };
        let bits = parse_i64(text::quote(digits, usize::MAX)).ok_or(BAD)?;
        let most = if is_signed { 64 } else { 63 };
        match u32::try_from(bits) {
            Ok(bits) if (1..=most).contains(&bits) => Ok(FieldType { is_signed, bits }),
            _ => Err(BAD),
        }
    }

    /// Keeps the low bits of `number` and extends the sign.
    fn wrapped(self, number: i128) -> i64 {
        let unused = 64 - self.bits;
        let low = (number as u64) << unused;
        match self.is_signed {
            true => low.cast_signed() >> unused,
            false => (low >> unused).cast_signed(),
        }
    }

    fn read(self, bytes: &[u8], offset: u64) -> i64 {
        let end = offset + u64::from(self.bits);
        let add = |number: u64, at| number << 1 | u64::from(bit_at(bytes, at));
        self.wrapped((offset..end).fold(0, add).into())
    }

    /// Writes the low bits of `number`. `bytes` reach to the end of the field.
    fn write(self, bytes: &mut [u8], offset: u64, number: i64) {
        for (place, at) in (0..self.bits).rev().zip(offset..) {
            let mask = 1 << (7 - at % 8);
            let byte = &mut bytes[byte_of(at)];
            match number >> place & 1 {
                0 => *byte &= !mask,
                _ => *byte |= mask,
            }
        }
    }

    /// The smallest and the largest number of the field.
    fn range(self) -> (i128, i128) {
        match self.is_signed {
            true => (
                -(1_i128 << (self.bits - 1)),
                (1_i128 << (self.bits - 1)) - 1,
            ),
            false => (0, (1_i128 << self.bits) - 1),
        }
    }

    /// The number to store instead of `number` for SET. As in Redis, a negative number is a very large one for an
    /// unsigned field, and one that is so far below a signed field that the distance exceeds 64 bits saturates to the
    /// largest number.
    fn fitted_for_set(self, number: i64, policy: OverflowPolicy) -> Option<i64> {
        let (low, high) = self.range();
        let exact = i128::from(number);
        if !self.is_signed {
            return self.fitted(number.cast_unsigned().into(), policy);
        }
        if policy == OverflowPolicy::Saturate && exact < low && i64::try_from(high - exact).is_err()
        {
            return i64::try_from(high).ok();
        }
        self.fitted(exact, policy)
    }

    /// Returns `number` if it fits, otherwise what the policy makes of it; `None` to write nothing.
    fn fitted(self, number: i128, policy: OverflowPolicy) -> Option<i64> {
        let (low, high) = self.range();
        match policy {
            _ if (low..=high).contains(&number) => i64::try_from(number).ok(),
            OverflowPolicy::Wrap => Some(self.wrapped(number)),
            OverflowPolicy::Saturate => i64::try_from(number.clamp(low, high)).ok(),
            OverflowPolicy::Fail => None,
        }
    }
}

impl FieldOperation {
    /// Runs the operation. Returns its reply, and whether the field has changed.
    fn run(&self, bytes: &mut [u8]) -> (Option<i64>, bool) {
        let FieldOperation { field, offset, .. } = *self;
        let old = field.read(bytes, offset);
        let (new, replies_new) = match self.action {
            FieldAction::Get => return (Some(old), false),
            FieldAction::Set(number, policy) => (field.fitted_for_set(number, policy), false),
            FieldAction::Add(by, policy) => {
                (field.fitted(i128::from(old) + i128::from(by), policy), true)
            }
        };
        let Some(new) = new else {
            return (None, false);
        };
        field.write(bytes, offset, new);
        (Some(if replies_new { new } else { old }), new != old)
    }

    /// Bytes that a string needs for the field, if the operation writes.
    fn written_len(&self) -> usize {
        match self.action {
            FieldAction::Get => 0,
            _ => byte_of(self.offset + u64::from(self.field.bits) - 1) + 1,
        }
    }
}

fn operations(
    ctx: &CommandContext<'_>,
    args: Args<'_>,
) -> Result<Vec<FieldOperation>, CommandError> {
    let (mut operations, mut policy, mut at) = (Vec::new(), OverflowPolicy::Wrap, 2);
    while let Some(word) = args.get(at) {
        let (name, left) = (text::option(word), args.len() - at - 1);
        let takes = match name.as_slice() {
            b"get" => 2,
            b"set" | b"incrby" => 3,
            b"overflow" => 1,
            _ => return Err(SYNTAX),
        };
        if left < takes {
            return Err(SYNTAX);
        }
        if takes == 1 {
            policy = match text::option(args.at(at + 1)).as_slice() {
                b"wrap" => OverflowPolicy::Wrap,
                b"sat" => OverflowPolicy::Saturate,
                b"fail" => OverflowPolicy::Fail,
                _ => return Err(CommandError::Fixed("ERR Invalid OVERFLOW type specified")),
            };
        } else {
            let field = FieldType::parse(args.at(at + 1))?;
            let offset = ctx.bit_offset(args.at(at + 2), Some(field.bits))?;
            let number = || parse_i64(args.at(at + 3)).ok_or(NOT_INTEGER);
            let action = match name.as_slice() {
                b"get" => FieldAction::Get,
                b"set" => FieldAction::Set(number()?, policy),
                _ => FieldAction::Add(number()?, policy),
            };
            operations.push(FieldOperation {
                field,
                offset,
                action,
            });
        }
        at += 1 + takes;
    }
    Ok(operations)
}

/// Runs the operations on `bytes` and returns their replies and whether a field has changed.
fn run_all(operations: &[FieldOperation], bytes: &mut [u8]) -> (Vec<Option<i64>>, bool) {
    let mut is_changed = false;
    let run = |operation: &FieldOperation| {
        let (reply, changed) = operation.run(bytes);
        is_changed |= changed;
        reply
    };
    (operations.iter().map(run).collect(), is_changed)
}

fn reply_all(ctx: &mut CommandContext<'_>, replies: &[Option<i64>]) {
    reply::array(ctx.out, replies.len());
    for number in replies {
        match number {
            Some(number) => reply::integer(ctx.out, *number),
            None => reply::null(ctx.out, ctx.client.resp),
        }
    }
}

/// `BITFIELD key [GET type offset] [OVERFLOW WRAP|SAT|FAIL] [SET type offset value] [INCRBY type offset by] ...`
pub(super) fn bitfield(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let operations = operations(ctx, args)?;
    let len = operations.iter().map(FieldOperation::written_len).max();
    let len = len.unwrap_or(0);
    if len == 0 {
        return read_fields(ctx, args, &operations);
    }
    let key = ctx.key(args.at(1));
    ctx.refuse_long_value(key)?;
    ctx.check_extended(len)?;
    let (mut outcome, mut is_written) = (Ok(Vec::new()), false);
    ctx.update(key, &mut |item| {
        let old = match string_in(item) {
            Ok(old) => old.unwrap_or_default(),
            Err(error) => {
                outcome = Err(error);
                return UpdateDecision::Keep;
            }
        };
        let mut bytes = extended(old, len);
        let (replies, is_changed) = run_all(&operations, &mut bytes);
        outcome = Ok(replies);
        // The string grows even if every operation has failed.
        is_written = is_changed || len > old.len();
        if !is_written {
            return UpdateDecision::Keep;
        }
        string_instead_of(item, bytes)
    })?;
    let replies = outcome?;
    if is_written {
        ctx.notify_string("setbit", key, ctx.request.was_absent);
    }
    reply_all(ctx, &replies);
    Ok(())
}

fn read_fields(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    operations: &[FieldOperation],
) -> Result<(), CommandError> {
    let mut value = ctx.read_string(ctx.key(args.at(1)))?.unwrap_or_default();
    let (replies, _) = run_all(operations, &mut value);
    reply_all(ctx, &replies);
    Ok(())
}

/// `BITFIELD_RO key [GET type offset ...]`
pub(super) fn bitfield_ro(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    let operations = operations(ctx, args)?;
    if operations
        .iter()
        .any(|operation| operation.action != FieldAction::Get)
    {
        let text = "ERR BITFIELD_RO only supports the GET subcommand";
        return Err(CommandError::Fixed(text));
    }
    read_fields(ctx, args, &operations)
}
