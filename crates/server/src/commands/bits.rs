//! Bits of strings: SETBIT GETBIT BITCOUNT BITPOS BITOP. Bit 0 is the highest bit of the first byte.

use farbank_store::{GroupDecision, Key, ReadView, UpdateDecision, Value};

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX, TOO_LONG};
use super::ranges::resolve_range;
use super::text;
use super::values::{STRING, extended, string_in, string_instead_of};
use crate::exec_context::LONG_REQUEST_BYTES;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::settings::size;

impl CommandContext<'_> {
    /// Parses the offset of a bit. `#n` is the n-th field, if `field_bits` is the number of bits of a field.
    pub(super) fn bit_offset(
        &self,
        word: &[u8],
        field_bits: Option<u32>,
    ) -> Result<u64, CommandError> {
        const BAD: CommandError =
            CommandError::Fixed("ERR bit offset is not an integer or out of range");
        let offset = match (word, field_bits) {
            ([b'#', number @ ..], Some(bits)) => {
                parse_i64(number).map(|number| number.wrapping_mul(i64::from(bits)))
            }
            _ => parse_i64(word),
        };
        let offset = offset
            .and_then(|offset| u64::try_from(offset).ok())
            .ok_or(BAD)?;
        let most = size(&self.shared.settings.bulk_bytes_max) as u64;
        if offset / 8 >= most {
            Err(BAD)
        } else {
            Ok(offset)
        }
    }

    /// Checks that a value that a write extends to `len` bytes is neither too long to store nor for a worker.
    pub(super) fn check_extended(&self, len: usize) -> Result<(), CommandError> {
        if len > self.value_bytes_max() {
            return Err(TOO_LONG);
        }
        if len > LONG_REQUEST_BYTES && !self.executes_long {
            return Err(CommandError::Long);
        }
        Ok(())
    }
}

/// The position of the byte of a bit.
pub(super) fn byte_of(bit: u64) -> usize {
    usize::try_from(bit / 8).unwrap_or(usize::MAX)
}

/// The bit `offset` of `bytes`; 0 after the end.
pub(super) fn bit_at(bytes: &[u8], offset: u64) -> bool {
    let byte = bytes.get(byte_of(offset)).copied().unwrap_or(0);
    byte >> (7 - offset % 8) & 1 == 1
}

/// `SETBIT key offset bit`
pub(super) fn setbit(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    const BAD: CommandError = CommandError::Fixed("ERR bit is not an integer or out of range");
    let offset = ctx.bit_offset(args.at(2), None)?;
    let on = match parse_i64(args.at(3)).ok_or(BAD)? {
        0 => false,
        1 => true,
        _ => return Err(BAD),
    };
    let key = ctx.key(args.at(1));
    let len = byte_of(offset) + 1;
    ctx.refuse_long_value(key)?;
    ctx.check_extended(len)?;
    let (mut outcome, mut is_changed) = (Ok(false), false);
    ctx.update(key, &mut |item| {
        let old = match string_in(item) {
            Ok(old) => old.unwrap_or_default(),
            Err(error) => {
                outcome = Err(error);
                return UpdateDecision::Keep;
            }
        };
        let was_on = bit_at(old, offset);
        outcome = Ok(was_on);
        // Setting a bit to its value is no change, unless the string grows.
        is_changed = was_on != on || len > old.len();
        if !is_changed {
            return UpdateDecision::Keep;
        }
        let mut bytes = extended(old, len);
        let mask = 1 << (7 - offset % 8);
        match on {
            true => bytes[len - 1] |= mask,
            false => bytes[len - 1] &= !mask,
        }
        string_instead_of(item, bytes)
    })?;
    let was_on = outcome?;
    if is_changed {
        ctx.notify_string("setbit", key, ctx.request.was_absent);
    }
    reply::integer(ctx.out, i64::from(was_on));
    Ok(())
}

/// `GETBIT key offset`
pub(super) fn getbit(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let offset = ctx.bit_offset(args.at(2), None)?;
    let value = ctx.read_string(ctx.key(args.at(1)))?.unwrap_or_default();
    reply::integer(ctx.out, i64::from(bit_at(&value, offset)));
    Ok(())
}

/// Whether a range counts bits, by its unit.
fn counts_bits(unit: &[u8]) -> Result<bool, CommandError> {
    match text::option(unit).as_slice() {
        b"bit" => Ok(true),
        b"byte" => Ok(false),
        _ => Err(SYNTAX),
    }
}

/// A range of bits: the first, and the last.
type BitRange = (u64, u64);

/// Resolves a range of bytes or bits of a string of `len` bytes; `None` if it is empty.
fn bit_range(start: i64, end: i64, is_bits: bool, len: usize) -> Option<BitRange> {
    if is_bits {
        let (first, last) = resolve_range(start, end, len * 8)?;
        return Some((first as u64, last as u64));
    }
    let (first, last) = resolve_range(start, end, len)?;
    Some((first as u64 * 8, last as u64 * 8 + 7))
}

/// `BITCOUNT key [start end [BYTE|BIT]]`
pub(super) fn bitcount(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    // As in Redis, the range is checked only if the key exists.
    let Some(value) = ctx.read_string(ctx.key(args.at(1)))? else {
        reply::integer(ctx.out, 0);
        return Ok(());
    };
    let range = match args.len() {
        2 => bit_range(0, -1, false, value.len()),
        4 | 5 => {
            let start = parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
            let end = parse_i64(args.at(3)).ok_or(NOT_INTEGER)?;
            if start < 0 && end < 0 && start > end {
                None
            } else {
                let is_bits = args.get(4).map_or(Ok(false), counts_bits)?;
                bit_range(start, end, is_bits, value.len())
            }
        }
        _ => return Err(SYNTAX),
    };
    let count = range.map_or(0, |range| count_bits(&value, range));
    reply::integer(ctx.out, i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// The bits of byte `at` that are in the range.
fn masked(byte: u8, at: usize, (first, last): BitRange) -> u8 {
    let mut mask = 0xff;
    if at == byte_of(first) {
        mask &= 0xff >> (first % 8);
    }
    if at == byte_of(last) {
        mask &= 0xff << (7 - last % 8);
    }
    byte & mask
}

/// Number of bits of the range that are 1.
fn count_bits(bytes: &[u8], range: BitRange) -> u64 {
    let (from, to) = (byte_of(range.0), byte_of(range.1));
    let inside = bytes.get(from + 1..to).unwrap_or_default();
    let (words, rest) = inside.as_chunks::<8>();
    let words: u64 = words
        .iter()
        .map(|word| u64::from(u64::from_le_bytes(*word).count_ones()))
        .sum();
    let mut edges = vec![from];
    if to != from {
        edges.push(to);
    }
    let edges = edges.into_iter().map(|at| masked(bytes[at], at, range));
    words
        + rest
            .iter()
            .copied()
            .chain(edges)
            .map(|byte| u64::from(byte.count_ones()))
            .sum::<u64>()
}

/// The first bit of the range that is `bit`.
fn find_bit(bytes: &[u8], bit: bool, range: BitRange) -> Option<u64> {
    let flip = if bit { 0 } else { 0xff };
    let (from, to) = (byte_of(range.0), byte_of(range.1));
    let wanted = |at: usize| masked(bytes[at] ^ flip, at, range);
    let found = (wanted(from) != 0).then_some(from);
    let inside = bytes.get(from + 1..to).unwrap_or_default();
    let in_the_middle = || {
        inside
            .iter()
            .position(|&byte| byte != flip)
            .map(|at| from + 1 + at)
    };
    let at = found
        .or_else(in_the_middle)
        .or_else(|| (wanted(to) != 0).then_some(to))?;
    Some(at as u64 * 8 + u64::from(wanted(at).leading_zeros()))
}

/// `BITPOS key bit [start [end [BYTE|BIT]]]`
pub(super) fn bitpos(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let bit = match parse_i64(args.at(2)).ok_or(NOT_INTEGER)? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::Fixed("ERR The bit argument must be 1 or 0.")),
    };
    let Some(value) = ctx.read_string(ctx.key(args.at(1)))? else {
        reply::integer(ctx.out, if bit { -1 } else { 0 });
        return Ok(());
    };
    if args.len() > 6 {
        return Err(SYNTAX);
    }
    let start = args.get(3).map_or(Some(0), parse_i64).ok_or(NOT_INTEGER)?;
    let is_bits = args.get(5).map_or(Ok(false), counts_bits)?;
    let end = args.get(4).map_or(Some(-1), parse_i64).ok_or(NOT_INTEGER)?;
    let range = bit_range_of_bitpos(start, end, is_bits, value.len());
    let found = range.map(|range| find_bit(&value, bit, range));
    let position = match found {
        Some(Some(at)) => i64::try_from(at).unwrap_or(i64::MAX),
        // Without an end, zeros follow the string.
        Some(None) if !bit && args.len() < 5 => i64::try_from(value.len() * 8).unwrap_or(i64::MAX),
        _ => -1,
    };
    reply::integer(ctx.out, position);
    Ok(())
}

/// As [`bit_range`], for BITPOS, where both ends before the start of the string mean its first position in any order.
fn bit_range_of_bitpos(start: i64, end: i64, is_bits: bool, len: usize) -> Option<BitRange> {
    let total = i64::try_from(if is_bits { len * 8 } else { len }).unwrap_or(i64::MAX);
    let clamp = |at: i64| if at < 0 { (at + total).max(0) } else { at };
    bit_range(clamp(start), clamp(end), is_bits, len)
}

/// Operation of BITOP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BitOperation {
    And,
    Or,
    Xor,
    Not,
}

/// `BITOP AND|OR|XOR|NOT destination key [key ...]`
pub(super) fn bitop(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let operation = match text::option(args.at(1)).as_slice() {
        b"and" => BitOperation::And,
        b"or" => BitOperation::Or,
        b"xor" => BitOperation::Xor,
        b"not" => BitOperation::Not,
        _ => return Err(SYNTAX),
    };
    if operation == BitOperation::Not && args.len() != 4 {
        let text = "ERR BITOP NOT must be called with a single source key.";
        return Err(CommandError::Fixed(text));
    }
    let db = ctx.client.db;
    let keys: Vec<_> = args.from(2).map(|bytes| Key { db, bytes }).collect();
    let (mut outcome, mut read_bytes) = (Ok(0), 0);
    let (mut missing, mut was_there, mut is_set) = (Vec::new(), false, false);
    let (bytes_left, notifies) = (ctx.string_reader(), ctx.shows_changes());
    ctx.grouped(&keys, &mut |ops| {
        let (mut reader, mut result) = (bytes_left.clone(), None::<Vec<u8>>);
        read_bytes = 0;
        missing.clear();
        for &key in &keys[1..] {
            let mut value = Vec::new();
            match reader.append(ops, key, ReadView::Pending, &mut value) {
                Ok(meta) => {
                    read_bytes += value.len();
                    if notifies && meta.is_none() {
                        missing.push(key);
                    }
                }
                Err(CommandError::Store(error)) => return Err(error),
                Err(other) => {
                    outcome = Err(other);
                    return Ok(GroupDecision::Abandon);
                }
            }
            result = Some(match result {
                None => value,
                Some(sum) => combined(operation, sum, value),
            });
        }
        let mut bytes = result.unwrap_or_default();
        if operation == BitOperation::Not {
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        outcome = Ok(bytes.len());
        is_set = !bytes.is_empty();
        if bytes.is_empty() {
            was_there = ops.delete(keys[0])?;
        } else {
            was_there = notifies && ops.meta(keys[0], ReadView::Pending)?.is_some();
            let value = Value {
                bytes: &bytes,
                expires_ms: 0,
                flags: 0,
                kind: STRING,
            };
            ops.put(keys[0], value)?;
        }
        Ok(GroupDecision::Apply)
    })?;
    ctx.request.hidden_bytes += read_bytes;
    let len = outcome?;
    missing.into_iter().for_each(|key| ctx.notify_miss(key));
    match (is_set, was_there) {
        (true, _) => ctx.notify_string("set", keys[0], !was_there),
        (false, true) => ctx.notify_generic("del", keys[0]),
        (false, false) => {}
    }
    reply::integer(ctx.out, i64::try_from(len).unwrap_or(i64::MAX));
    Ok(())
}

/// Combines two strings; the shorter one counts as extended with zeros.
fn combined(operation: BitOperation, a: Vec<u8>, b: Vec<u8>) -> Vec<u8> {
    let (mut long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let (head, tail) = long.split_at_mut(short.len());
    let pairs = head.iter_mut().zip(&short);
    match operation {
        BitOperation::And => {
            pairs.for_each(|(a, b)| *a &= b);
            tail.fill(0);
        }
        BitOperation::Or => pairs.for_each(|(a, b)| *a |= b),
        BitOperation::Xor => pairs.for_each(|(a, b)| *a ^= b),
        BitOperation::Not => {}
    }
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_positions_agree_with_single_bits() {
        let bytes: Vec<u8> = (0..40_u8).map(|at| at.wrapping_mul(37) ^ at >> 1).collect();
        let last = bytes.len() as u64 * 8 - 1;
        for first in 0..=last {
            for end in first..=last {
                let inside = || (first..=end).filter(|&at| bit_at(&bytes, at));
                assert_eq!(count_bits(&bytes, (first, end)), inside().count() as u64);
                assert_eq!(find_bit(&bytes, true, (first, end)), inside().next());
                let clear = (first..=end).find(|&at| !bit_at(&bytes, at));
                assert_eq!(find_bit(&bytes, false, (first, end)), clear);
            }
        }
    }
}
