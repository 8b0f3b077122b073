//! Conversion of RESP replies to Lua values, and of a script's result to a RESP reply, by Redis's rules.

use mlua::{Lua, Table, Value};

use super::host::ReplyVersions;
use crate::buffers::reply::ReplySink;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::parse::ArgsBuffer;
use crate::protocol::resp::{RespVersion, reply};

/// Most nested tables of a script's result.
const DEPTH_MAX: usize = 1000;

/// Converts the reply at the start of `bytes`, which a command has written. Returns the value and the bytes after the
/// reply.
pub(super) fn value_of<'b>(lua: &Lua, bytes: &'b [u8]) -> mlua::Result<(Value, &'b [u8])> {
    let (line, rest) = line_of(bytes);
    let Some((&marker, text)) = line.split_first() else {
        return Ok((Value::Boolean(false), rest));
    };
    let number = || parse_i64(text).unwrap_or(0);
    let count = usize::try_from(number()).ok();
    let value = match (marker, count) {
        (b':', _) => Value::Number(number() as f64),
        (b'$', Some(len)) => {
            let value = Value::String(lua.create_string(&rest[..len.min(rest.len())])?);
            return Ok((value, rest.get(len + 2..).unwrap_or_default()));
        }
        (b'=', Some(len)) => {
            let content = &rest[..len.min(rest.len())];
            let text = lua.create_table()?;
            text.raw_set("format", lua.create_string(&content[..3.min(len)])?)?;
            text.raw_set(
                "string",
                lua.create_string(content.get(4..).unwrap_or_default())?,
            )?;
            let value = field(lua, "verbatim_string", Value::Table(text))?;
            return Ok((value, rest.get(len + 2..).unwrap_or_default()));
        }
        (b'*', Some(count)) => return array_of(lua, rest, count),
        (b'~', Some(count)) => return set_of(lua, rest, count),
        (b'%', Some(count)) => return map_of(lua, rest, count),
        (b'$' | b'*', None) => Value::Boolean(false),
        (b'+', _) => field(lua, "ok", Value::String(lua.create_string(text)?))?,
        (b'-', _) => Value::Table(error_table(lua, text)?),
        (b'#', _) => Value::Boolean(text == b"t"),
        (b',', _) => {
            let number = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
            field(lua, "double", Value::Number(number.unwrap_or(0.0)))?
        }
        (b'(', _) => field(lua, "big_number", Value::String(lua.create_string(text)?))?,
        _ => Value::Nil,
    };
    Ok((value, rest))
}

/// Returns the line at the start of `bytes`, without its end, and the bytes after it.
fn line_of(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'\n', bytes) {
        Some(end) => (&bytes[..end.saturating_sub(1)], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn field(lua: &Lua, name: &str, value: Value) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

/// The table that stands for the error reply `text` of a command.
pub(super) fn error_table(lua: &Lua, text: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 2)?;
    table.raw_set("err", lua.create_string(text)?)?;
    table.raw_set("ignore_error_stats_update", true)?;
    Ok(table)
}

fn array_of<'b>(lua: &Lua, mut rest: &'b [u8], count: usize) -> mlua::Result<(Value, &'b [u8])> {
    let table = lua.create_table_with_capacity(count, 0)?;
    for at in 1..=count {
        let (value, after) = value_of(lua, rest)?;
        table.raw_set(at, value)?;
        rest = after;
    }
    Ok((Value::Table(table), rest))
}

fn set_of<'b>(lua: &Lua, mut rest: &'b [u8], count: usize) -> mlua::Result<(Value, &'b [u8])> {
    let table = lua.create_table()?;
    for _ in 0..count {
        let (value, after) = value_of(lua, rest)?;
        table.raw_set(value, true)?;
        rest = after;
    }
    Ok((field(lua, "set", Value::Table(table))?, rest))
}

fn map_of<'b>(lua: &Lua, mut rest: &'b [u8], count: usize) -> mlua::Result<(Value, &'b [u8])> {
    let table = lua.create_table()?;
    for _ in 0..count {
        let (key, after) = value_of(lua, rest)?;
        let (value, after) = value_of(lua, after)?;
        table.raw_set(key, value)?;
        rest = after;
    }
    Ok((field(lua, "map", Value::Table(table))?, rest))
}

/// Appends a script's result as a reply.
pub(super) fn reply_of(
    out: &mut impl ReplySink,
    versions: ReplyVersions,
    value: &Value,
) -> mlua::Result<()> {
    append(out, versions, value, 0)
}

fn append(
    out: &mut impl ReplySink,
    versions: ReplyVersions,
    value: &Value,
    depth: usize,
) -> mlua::Result<()> {
    match value {
        Value::String(text) => reply::bulk(out, &text.as_bytes()),
        Value::Integer(number) => reply::integer(out, *number),
        Value::Number(number) => reply::integer(out, truncated(*number)),
        Value::Boolean(flag) => match (versions.script, versions.client, flag) {
            (RespVersion::V2, _, true) | (_, RespVersion::V2, true) => reply::integer(out, 1),
            (RespVersion::V2, resp, false) => reply::null(out, resp),
            (_, RespVersion::V2, false) => reply::integer(out, 0),
            (_, _, flag) => out.extend_from_slice(if *flag { b"#t\r\n" } else { b"#f\r\n" }),
        },
        Value::Table(_) if depth >= DEPTH_MAX => reply::error(out, b"ERR reached lua stack limit"),
        Value::Table(table) => return append_table(out, versions, table, depth),
        _ => reply::null(out, versions.client),
    }
    Ok(())
}

/// Converts a number as C does on x86-64: a number that has no `i64` becomes the smallest one.
fn truncated(number: f64) -> i64 {
    let in_range = number > -9.3e18 && number < 9_223_372_036_854_775_808.0;
    if in_range { number as i64 } else { i64::MIN }
}

fn append_table(
    out: &mut impl ReplySink,
    versions: ReplyVersions,
    table: &Table,
    depth: usize,
) -> mlua::Result<()> {
    let named = |name: &str| table.raw_get::<Value>(name);
    if let Value::String(text) = named("err")? {
        reply::error(out, until_nul(&text.as_bytes()));
    } else if let Value::String(text) = named("ok")? {
        simple(out, until_nul(&text.as_bytes()));
    } else if let Some(number) = number_of(&named("double")?) {
        double(out, versions.client, number);
    } else if let Value::Table(map) = named("map")? {
        reply::map(out, versions.client, entries(&map)?);
        map.for_each(|key: Value, value: Value| {
            append(out, versions, &key, depth + 1)?;
            append(out, versions, &value, depth + 1)
        })?;
    } else if let Value::Table(set) = named("set")? {
        reply::set(out, versions.client, entries(&set)?);
        set.for_each(|member: Value, _: Value| append(out, versions, &member, depth + 1))?;
    } else if let Value::String(digits) = named("big_number")? {
        big_number(out, versions.client, &digits.as_bytes());
    } else if let Value::Table(text) = named("verbatim_string")? {
        let (format, string) = (text.raw_get("format")?, text.raw_get("string")?);
        if let (Value::String(format), Value::String(string)) = (format, string) {
            verbatim(out, versions.client, &format.as_bytes(), &string.as_bytes());
        }
    } else {
        return append_array(out, versions, table, depth);
    }
    Ok(())
}

/// Number of entries of a table. Handles of many Lua values at once would fill mlua's stack, so they are not collected.
fn entries(table: &Table) -> mlua::Result<usize> {
    let mut count = 0;
    table.for_each(|_: Value, _: Value| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

fn append_array(
    out: &mut impl ReplySink,
    versions: ReplyVersions,
    table: &Table,
    depth: usize,
) -> mlua::Result<()> {
    let mut count = 0;
    while !table.raw_get::<Value>(count + 1)?.is_nil() {
        count += 1;
    }
    reply::array(out, count);
    for at in 1..=count {
        append(out, versions, &table.raw_get(at)?, depth + 1)?;
    }
    Ok(())
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// The bytes before the first NUL, where Redis ends texts of errors and statuses.
pub(super) fn until_nul(text: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    &text[..end]
}

/// Appends a status.
fn simple(out: &mut impl ReplySink, text: &[u8]) {
    out.push(b'+');
    out.extend_from_slice(&on_one_line(text));
    out.extend_from_slice(b"\r\n");
}

/// Returns `text` with blanks instead of line breaks.
fn on_one_line(text: &[u8]) -> Vec<u8> {
    let blank = |&b: &u8| if matches!(b, b'\r' | b'\n') { b' ' } else { b };
    text.iter().map(blank).collect()
}

fn double(out: &mut impl ReplySink, resp: RespVersion, number: f64) {
    let text = match number {
        n if n.is_nan() => "nan".to_owned(),
        n if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.to_owned(),
        n => general(n, 17),
    };
    match resp {
        RespVersion::V2 => reply::bulk(out, text.as_bytes()),
        RespVersion::V3 => {
            out.push(b',');
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn big_number(out: &mut impl ReplySink, resp: RespVersion, digits: &[u8]) {
    let digits = on_one_line(digits);
    match resp {
        RespVersion::V2 => reply::bulk(out, &digits),
        RespVersion::V3 => {
            out.push(b'(');
            out.extend_from_slice(&digits);
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn verbatim(out: &mut impl ReplySink, resp: RespVersion, format: &[u8], text: &[u8]) {
    match resp {
        RespVersion::V2 => reply::bulk(out, text),
        RespVersion::V3 => {
            let mut format = format.to_vec();
            format.resize(3, b' ');
            out.extend_from_slice(format!("={}\r\n", text.len() + 4).as_bytes());
            out.extend_from_slice(&format);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Formats a finite number as C's `%.{digits}g` does.
pub(super) fn general(number: f64, digits: usize) -> String {
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
    trim(&format!("{number:.decimals$}"))
}

/// Reads the arguments of `redis.call`: strings and numbers.
pub(super) fn read_arguments<'v>(
    values: impl Iterator<Item = &'v Value>,
    args: &mut ArgsBuffer,
) -> Result<(), Vec<u8>> {
    for value in values {
        match value {
            Value::String(text) => args.push(&text.as_bytes()),
            Value::Integer(number) => args.push(number.to_string().as_bytes()),
            Value::Number(number) => args.push(number_argument(*number).as_bytes()),
            _ => {
                let text = "ERR Lua redis lib command arguments must be strings or integers";
                return Err(text.into());
            }
        }
    }
    match args.is_empty() {
        true => Err("ERR Please specify at least one argument for this redis lib call".into()),
        false => Ok(()),
    }
}

fn number_argument(number: f64) -> String {
    match number {
        n if n.is_nan() => if n.is_sign_negative() { "-nan" } else { "nan" }.to_owned(),
        n if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.to_owned(),
        n => general(n, 17),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_in_c() {
        for (number, digits, text) in [
            (1.5, 17, "1.5"),
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e20, 17, "1e+20"),
            (1e16, 17, "10000000000000000"),
            (1e-5, 14, "1e-05"),
            (-2.0, 14, "-2"),
            (123_456_789_012_345.6, 14, "1.2345678901235e+14"),
        ] {
            assert_eq!(general(number, digits), text);
        }
    }

    #[test]
    fn numbers_out_of_range_become_the_smallest_integer() {
        assert_eq!(truncated(3.99), 3);
        assert_eq!(truncated(-0.5), 0);
        assert_eq!(truncated(f64::NAN), i64::MIN);
        assert_eq!(truncated(1e300), i64::MIN);
    }
}
