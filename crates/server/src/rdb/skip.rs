//! Skips values that are no strings: their forms in the RDB versions 1 to 10.

use std::io::BufRead;

use super::OPCODE_MODULE_AUX;
use super::source::{RdbError, Source};

/// Codes of the parts of a module's value.
const MODULE_END: u64 = 0;
const MODULE_SIGNED: u64 = 1;
const MODULE_UNSIGNED: u64 = 2;
const MODULE_FLOAT: u64 = 3;
const MODULE_DOUBLE: u64 = 4;
const MODULE_STRING: u64 = 5;
/// First byte of a score that is not a text: not a number, and the infinities.
const SPECIAL_SCORES: u8 = 253;
/// Bytes of an entry's id in a stream.
const STREAM_ID_BYTES: u64 = 16;
/// The second form of a stream has more fields.
const TYPE_STREAM_2: u8 = 19;

/// Skips the value of type `number`, or the data of a module, which precede the entries. Returns the name of the type.
pub(super) fn skip_value<R: BufRead>(
    source: &mut Source<R>,
    number: u8,
) -> Result<&'static str, RdbError> {
    let strings_per_part = match number {
        1 | 2 | 14 => 1,
        4 => 2,
        _ => 0,
    };
    match number {
        1 | 2 | 4 | 14 => {
            for _ in 0..source.length()? {
                for _ in 0..strings_per_part {
                    source.skip_string()?;
                }
            }
        }
        3 | 5 => {
            for _ in 0..source.length()? {
                source.skip_string()?;
                skip_score(source, number == 5)?;
            }
        }
        7 | OPCODE_MODULE_AUX => {
            source.length()?;
            skip_module(source)?;
        }
        9..=13 | 16 | 17 => source.skip_string()?,
        18 => {
            for _ in 0..source.length()? {
                source.length()?;
                source.skip_string()?;
            }
        }
        15 | TYPE_STREAM_2 => skip_stream(source, number == TYPE_STREAM_2)?,
        _ => return Err(source.malformed("a type of Redis 7.0, or the end, before it")),
    }
    Ok(match number {
        1 | 10 | 14 | 18 => "list",
        2 | 11 => "set",
        3 | 5 | 12 | 17 => "zset",
        4 | 9 | 13 | 16 => "hash",
        15 | TYPE_STREAM_2 => "stream",
        _ => "module",
    })
}

fn skip_score<R: BufRead>(source: &mut Source<R>, is_binary: bool) -> Result<(), RdbError> {
    if is_binary {
        return source.skip(8);
    }
    match source.byte()? {
        SPECIAL_SCORES.. => Ok(()),
        len => source.skip(u64::from(len)),
    }
}

fn skip_module<R: BufRead>(source: &mut Source<R>) -> Result<(), RdbError> {
    loop {
        match source.length()? {
            MODULE_END => return Ok(()),
            MODULE_SIGNED | MODULE_UNSIGNED => source.length().map(drop)?,
            MODULE_FLOAT => source.skip(4)?,
            MODULE_DOUBLE => source.skip(8)?,
            MODULE_STRING => source.skip_string()?,
            _ => return Err(source.malformed("a part of a module's value before it")),
        }
    }
}

fn skip_lengths<R: BufRead>(source: &mut Source<R>, count: usize) -> Result<(), RdbError> {
    (0..count).try_for_each(|_| source.length().map(drop))
}

fn skip_stream<R: BufRead>(source: &mut Source<R>, is_second: bool) -> Result<(), RdbError> {
    for _ in 0..source.length()? {
        source.skip_string()?;
        source.skip_string()?;
    }
    // The number of entries and the last id; then the first id, the largest deleted id and the entries ever added.
    skip_lengths(source, if is_second { 8 } else { 3 })?;
    for _ in 0..source.length()? {
        source.skip_string()?;
        skip_lengths(source, if is_second { 3 } else { 2 })?;
        for _ in 0..source.length()? {
            source.skip(STREAM_ID_BYTES + 8)?;
            source.length()?;
        }
        for _ in 0..source.length()? {
            source.skip_string()?;
            source.skip(8)?;
            for _ in 0..source.length()? {
                source.skip(STREAM_ID_BYTES)?;
            }
        }
    }
    Ok(())
}
