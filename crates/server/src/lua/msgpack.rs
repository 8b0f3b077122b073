//! The library `cmsgpack`: MessagePack as in lua-cmsgpack 0.4.

use mlua::{Lua, MultiValue, Table, Value};

use super::host::{aborted, checked};
use super::library::{Arguments, LibraryError, LibraryResult, one, register};

/// Most nested tables that are packed; deeper ones become nil.
const PACK_DEPTH_MAX: usize = 16;
/// Most nested arrays and maps that are unpacked.
const UNPACK_DEPTH_MAX: usize = 1000;
/// Values after which the time is checked.
const VALUES_PER_CHECK: usize = 1000;

/// The library's functions and constants.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.raw_set("_COPYRIGHT", "Copyright (C) 2012, Redis Ltd.")?;
    table.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    register(lua, &table, "pack", pack)?;
    register(lua, &table, "unpack", |lua, args| unpack(lua, args, 0, 0))?;
    register(lua, &table, "unpack_one", |lua, args| {
        unpack(lua, args, 1, args.integer_or(lua, 2, 0)?)
    })?;
    register(lua, &table, "unpack_limit", |lua, args| {
        let limit = args.integer(lua, 2)?;
        unpack(lua, args, limit, args.integer_or(lua, 3, 0)?)
    })?;
    Ok(table)
}

/// `cmsgpack.pack(value, ...)`
fn pack(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    if args.len() == 0 {
        return Err(args.bad(0, "MessagePack pack needs input."));
    }
    let (mut out, mut count) = (Vec::new(), 0);
    for value in args.from(1) {
        append(&mut out, value, 0, &mut count)?;
    }
    one(Value::String(lua.create_string(&out)?))
}

fn step(count: &mut usize) -> Result<(), LibraryError> {
    *count += 1;
    match count.is_multiple_of(VALUES_PER_CHECK) && checked() {
        true => Err(aborted().into()),
        false => Ok(()),
    }
}

/// Appends a number after its marker, in big-endian order. `bytes` are in little-endian order.
fn marked<const N: usize>(out: &mut Vec<u8>, marker: u8, bytes: [u8; N]) {
    out.push(marker);
    out.extend(bytes.iter().rev());
}

fn append(
    out: &mut Vec<u8>,
    value: &Value,
    depth: usize,
    count: &mut usize,
) -> Result<(), LibraryError> {
    step(count)?;
    match value {
        Value::Boolean(flag) => out.push(if *flag { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => append_integer(out, *number),
        Value::Number(number) => append_number(out, *number),
        Value::String(text) => append_string(out, &text.as_bytes()),
        Value::Table(_) if depth >= PACK_DEPTH_MAX => out.push(0xc0),
        Value::Table(table) => append_table(out, table, depth + 1, count)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn append_integer(out: &mut Vec<u8>, number: i64) {
    match number {
        0..=0x7f => out.push(number as u8),
        -32..0 => out.push(number as i8 as u8),
        0x80..=0xff => marked(out, 0xcc, [number as u8]),
        0x100..=0xffff => marked(out, 0xcd, (number as u16).to_le_bytes()),
        0x1_0000..=0xffff_ffff => marked(out, 0xce, (number as u32).to_le_bytes()),
        0x1_0000_0000.. => marked(out, 0xcf, (number as u64).to_le_bytes()),
        -0x80..-32 => marked(out, 0xd0, (number as i8).to_le_bytes()),
        -0x8000..-0x80 => marked(out, 0xd1, (number as i16).to_le_bytes()),
        -0x8000_0000..-0x8000 => marked(out, 0xd2, (number as i32).to_le_bytes()),
        _ => marked(out, 0xd3, number.to_le_bytes()),
    }
}

fn append_number(out: &mut Vec<u8>, number: f64) {
    const INTEGERS: std::ops::Range<f64> =
        -9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0;
    if number.fract() == 0.0 && INTEGERS.contains(&number) {
        return append_integer(out, number as i64);
    }
    let short = number as f32;
    if f64::from(short) == number {
        marked(out, 0xca, short.to_le_bytes());
    } else {
        marked(out, 0xcb, number.to_le_bytes());
    }
}

fn append_string(out: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..=0xff => marked(out, 0xd9, [len as u8]),
        len @ 0x100..=0xffff => marked(out, 0xda, (len as u16).to_le_bytes()),
        len => marked(out, 0xdb, (len as u32).to_le_bytes()),
    }
    out.extend_from_slice(text);
}

/// Appends the header of an array (`base` 0x90) or a map (0x80) of `len` elements.
fn append_header(out: &mut Vec<u8>, base: u8, long: u8, len: usize) {
    match len {
        0..16 => out.push(base | len as u8),
        16..=0xffff => marked(out, long, (len as u16).to_le_bytes()),
        _ => marked(out, long + 1, (len as u32).to_le_bytes()),
    }
}

fn append_table(
    out: &mut Vec<u8>,
    table: &Table,
    depth: usize,
    count: &mut usize,
) -> Result<(), LibraryError> {
    let (mut entries, mut last, mut is_array) = (0, 0, true);
    table.for_each(|key: Value, _: Value| {
        let index = match key {
            Value::Integer(index) if index > 0 => usize::try_from(index).ok(),
            Value::Number(index) if index > 0.0 && index.fract() == 0.0 => Some(index as usize),
            _ => None,
        };
        entries += 1;
        is_array &= index.is_some();
        last = last.max(index.unwrap_or(0));
        Ok(())
    })?;
    if is_array && last == entries {
        append_header(out, 0x90, 0xdc, entries);
        for at in 1..=entries {
            append(out, &table.raw_get(at)?, depth, count)?;
        }
        return Ok(());
    }
    append_header(out, 0x80, 0xde, entries);
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        append(out, &key, depth, count)?;
        append(out, &value, depth, count)?;
    }
    Ok(())
}

/// Unpacks values: all if `limit` is 0, and then returns them; otherwise up to `limit`, after the offset of the next one
/// (-1 at the end).
fn unpack(lua: &Lua, args: &Arguments<'_>, limit: i64, offset: i64) -> LibraryResult {
    let text = args.string(lua, 1)?;
    let text = text.as_bytes();
    let is_whole = limit == 0 && offset == 0;
    if limit < 0 || offset < 0 {
        return Err(LibraryError::Text(format!(
            "Invalid request to unpack with offset of {offset} and limit of {}.",
            text.len()
        )));
    }
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    if at > text.len() {
        return Err(LibraryError::Text(format!(
            "Start offset {offset} greater than input length {}.",
            text.len()
        )));
    }
    /// Most values that one call returns.
    const RESULTS_MAX: usize = 7000;
    let limit = match usize::try_from(limit) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(limit) => limit,
    };
    let mut reader = PackReader {
        lua,
        text: &text,
        at,
        count: 0,
    };
    let mut values = Vec::new();
    while reader.at < text.len() && values.len() < limit {
        if values.len() >= RESULTS_MAX {
            return Err(LibraryError::Text("too many results to unpack".to_owned()));
        }
        values.push(reader.value(0)?);
    }
    if !is_whole {
        let next = if reader.at == text.len() {
            -1.0
        } else {
            reader.at as f64
        };
        values.insert(0, Value::Number(next));
    }
    Ok(MultiValue::from_vec(values))
}

/// A reader of packed values.
struct PackReader<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    count: usize,
}

impl PackReader<'_> {
    fn bytes(&mut self, len: usize) -> Result<&[u8], LibraryError> {
        let end = self.at.checked_add(len);
        let bytes = end.and_then(|end| self.text.get(self.at..end));
        let bytes =
            bytes.ok_or_else(|| LibraryError::Text("Missing bytes in input.".to_owned()))?;
        self.at += len;
        Ok(bytes)
    }

    /// Reads an unsigned big-endian number of `len` bytes.
    fn unsigned(&mut self, len: usize) -> Result<u64, LibraryError> {
        let bytes = self.bytes(len)?;
        Ok(bytes
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Reads a signed big-endian number of `len` bytes.
    fn signed(&mut self, len: usize) -> Result<f64, LibraryError> {
        let unused = 64 - 8 * len;
        let number = self.unsigned(len)? << unused;
        Ok((number as i64 >> unused) as f64)
    }

    fn length(&mut self, len: usize) -> Result<usize, LibraryError> {
        Ok(usize::try_from(self.unsigned(len)?).unwrap_or(usize::MAX))
    }

    fn value(&mut self, depth: usize) -> Result<Value, LibraryError> {
        step(&mut self.count)?;
        let marker = self.bytes(1)?[0];
        let number = |number: f64| Ok(Value::Number(number));
        match marker {
            0..=0x7f => number(f64::from(marker)),
            0xe0..=0xff => number(f64::from(marker as i8)),
            0x80..=0x8f => self.map(usize::from(marker & 0xf), depth),
            0x90..=0x9f => self.array(usize::from(marker & 0xf), depth),
            0xa0..=0xbf => self.string(usize::from(marker & 0x1f)),
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Boolean(marker == 0xc3)),
            0xca => number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => number(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xcf => number(self.unsigned(1 << (marker - 0xcc))? as f64),
            0xd0..=0xd3 => number(self.signed(1 << (marker - 0xd0))?),
            0xd9..=0xdb => {
                let len = self.length(1 << (marker - 0xd9))?;
                self.string(len)
            }
            0xdc | 0xdd => {
                let len = self.length(2 << (marker - 0xdc))?;
                self.array(len, depth)
            }
            0xde | 0xdf => {
                let len = self.length(2 << (marker - 0xde))?;
                self.map(len, depth)
            }
            _ => Err(LibraryError::Text("Bad data format in input.".to_owned())),
        }
    }

    fn string(&mut self, len: usize) -> Result<Value, LibraryError> {
        let lua = self.lua;
        Ok(Value::String(lua.create_string(self.bytes(len)?)?))
    }

    fn check_depth(depth: usize) -> Result<(), LibraryError> {
        match depth >= UNPACK_DEPTH_MAX {
            true => Err(LibraryError::Text("Bad data format in input.".to_owned())),
            false => Ok(()),
        }
    }

    fn array(&mut self, len: usize, depth: usize) -> Result<Value, LibraryError> {
        Self::check_depth(depth)?;
        let table = self.lua.create_table()?;
        for at in 1..=len {
            table.raw_set(at, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, len: usize, depth: usize) -> Result<Value, LibraryError> {
        Self::check_depth(depth)?;
        let table = self.lua.create_table()?;
        for _ in 0..len {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            if let Value::Nil = key {
                return Err(LibraryError::Text("table index is nil".to_owned()));
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}
