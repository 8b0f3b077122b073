//! The library `struct`: numbers and strings in the layout of C structures.
//!
//! A format is a sequence of options: `<` `>` byte order; `!n` alignment; `x` a padding byte; `b` `h` `l` `T` `i[n]`
//! integers, in capital letters unsigned; `f` `d` floating-point numbers; `s` a string that ends with a zero byte; `c[n]` n
//! bytes, `c0` as many as the number before says (unpack), or the whole string (pack).

use mlua::{Lua, MultiValue, Table, Value};

use super::library::{Arguments, LibraryError, LibraryResult, bad_argument, one, register};

/// Largest integer, in bytes.
const INTEGER_BYTES_MAX: usize = 32;
/// Largest alignment of `!` without a number.
const ALIGN_DEFAULT: usize = 8;
/// Most values that `unpack` returns.
const RESULTS_MAX: usize = 7000;

/// The library's functions.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    register(lua, &table, "pack", pack)?;
    register(lua, &table, "unpack", unpack)?;
    register(lua, &table, "size", size)?;
    Ok(table)
}

fn failure<T>(text: impl Into<String>) -> Result<T, LibraryError> {
    Err(LibraryError::Text(text.into()))
}

/// An option that stands for bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Padding,
    Integer { bytes: usize, is_signed: bool },
    Float,
    Double,
    ZeroEnded,
    Bytes(usize),
}

/// A format that is being read.
struct Format<'a> {
    /// The function that reads it, for messages.
    function: &'static str,
    rest: &'a [u8],
    is_little: bool,
    align: usize,
}

impl Format<'_> {
    fn new<'a>(function: &'static str, rest: &'a [u8]) -> Format<'a> {
        Format {
            function,
            rest,
            is_little: true,
            align: 1,
        }
    }

    /// Reads a decimal number, if there is one.
    fn number(&mut self) -> Result<Option<usize>, LibraryError> {
        let len = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(len);
        self.rest = rest;
        if digits.is_empty() {
            return Ok(None);
        }
        let mut number = 0_usize;
        for digit in digits {
            number = number * 10 + usize::from(digit - b'0');
            if number > i32::MAX as usize {
                return failure("integral size overflow");
            }
        }
        Ok(Some(number))
    }

    fn integer(&mut self, is_signed: bool) -> Result<Field, LibraryError> {
        let bytes = self.number()?.unwrap_or(size_of::<i32>());
        if bytes > INTEGER_BYTES_MAX {
            return failure(format!(
                "integral size {bytes} is larger than limit of {INTEGER_BYTES_MAX}"
            ));
        }
        Ok(Field::Integer { bytes, is_signed })
    }

    /// Reads options up to the next field, and its alignment.
    fn next(&mut self) -> Result<Option<(Field, usize)>, LibraryError> {
        while let Some((&option, rest)) = self.rest.split_first() {
            self.rest = rest;
            let fixed = |bytes, is_signed| Field::Integer { bytes, is_signed };
            let field = match option {
                b' ' => continue,
                b'>' | b'<' => {
                    self.is_little = option == b'<';
                    continue;
                }
                b'!' => {
                    let align = self.number()?.unwrap_or(ALIGN_DEFAULT);
                    if !align.is_power_of_two() {
                        return failure("alignment is not a power of 2");
                    }
                    self.align = align;
                    continue;
                }
                b'x' => Field::Padding,
                b'b' | b'B' => fixed(1, option == b'b'),
                b'h' | b'H' => fixed(2, option == b'h'),
                b'l' | b'L' => fixed(8, option == b'l'),
                b'T' => fixed(8, false),
                b'i' | b'I' => self.integer(option == b'i')?,
                b'f' => Field::Float,
                b'd' => Field::Double,
                b's' => Field::ZeroEnded,
                b'c' => Field::Bytes(self.number()?.unwrap_or(1)),
                other => {
                    let problem = format!("invalid format option '{}'", char::from(other));
                    return Err(bad_argument(1, self.function, &problem));
                }
            };
            let natural = match field {
                Field::Integer { bytes, .. } => bytes,
                Field::Float => 4,
                Field::Double => 8,
                _ => 1,
            };
            return Ok(Some((field, natural.min(self.align).max(1))));
        }
        Ok(None)
    }
}

/// Bytes between `len` and the next multiple of `align`.
fn padding(len: usize, align: usize) -> Result<usize, LibraryError> {
    match align.is_power_of_two() {
        true => Ok(len.next_multiple_of(align) - len),
        false => failure(format!("alignment {align} is not a power of 2")),
    }
}

/// `struct.pack(format, value, ...)`
fn pack(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let text = args.string(lua, 1)?;
    let text = text.as_bytes();
    let (mut format, mut out, mut position) = (Format::new("pack", &text), Vec::new(), 2);
    while let Some((field, align)) = format.next()? {
        out.resize(out.len() + padding(out.len(), align)?, 0);
        match field {
            Field::Padding => out.push(0),
            Field::Integer { bytes, .. } => {
                let number = integer_of(args.number(lua, position)?);
                let mut own: Vec<u8> = (0..bytes)
                    .map(|at| if at < 8 { number.to_le_bytes()[at] } else { 0 })
                    .collect();
                if !format.is_little {
                    own.reverse();
                }
                out.extend_from_slice(&own);
            }
            Field::Float => {
                let number = args.number(lua, position)? as f32;
                out.extend_from_slice(&ordered(number.to_le_bytes(), format.is_little));
            }
            Field::Double => {
                let number = args.number(lua, position)?;
                out.extend_from_slice(&ordered(number.to_le_bytes(), format.is_little));
            }
            Field::ZeroEnded => {
                out.extend_from_slice(&args.bytes(lua, position)?);
                out.push(0);
            }
            Field::Bytes(len) => {
                let bytes = args.bytes(lua, position)?;
                let len = if len == 0 { bytes.len() } else { len };
                if bytes.len() < len {
                    return Err(args.bad(position + 1, "string too short"));
                }
                out.extend_from_slice(&bytes[..len]);
            }
        }
        position += usize::from(field != Field::Padding);
    }
    one(Value::String(lua.create_string(&out)?))
}

fn ordered<const N: usize>(mut bytes: [u8; N], is_little: bool) -> [u8; N] {
    if !is_little {
        bytes.reverse();
    }
    bytes
}

/// Converts a number to 64 bits, as C converts it to a signed or an unsigned integer.
fn integer_of(number: f64) -> u64 {
    if number < 0.0 {
        number as i64 as u64
    } else {
        number as u64
    }
}

/// `struct.unpack(format, s [, position])`: the values, and the position after them.
fn unpack(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let (text, data) = (args.string(lua, 1)?, args.string(lua, 2)?);
    let (text, data) = (text.as_bytes(), data.as_bytes());
    let position = args.integer_or(lua, 3, 1)?;
    if position == 0 {
        return Err(args.bad(3, "offset must be 1 or greater"));
    }
    // A negative position is after the end.
    let mut at = usize::try_from(position).map_or(usize::MAX / 2, |position| position - 1);
    let (mut format, mut values) = (Format::new("unpack", &text), Vec::<Value>::new());
    while let Some((field, align)) = format.next()? {
        at = at.saturating_add(padding(at.min(data.len()), align)?);
        let rest = data.get(at..).unwrap_or_default();
        let fixed = |len: usize| match rest.get(..len) {
            Some(bytes) if at <= data.len() => Ok(bytes),
            _ => Err(args.bad(2, "data string too short")),
        };
        if values.len() >= RESULTS_MAX {
            return failure("too many results to unpack");
        }
        at += match field {
            Field::Padding => fixed(1)?.len(),
            Field::Integer { bytes, is_signed } => {
                let number = read_integer(fixed(bytes)?, format.is_little, is_signed);
                values.push(Value::Number(number));
                bytes
            }
            Field::Float => {
                let bytes: [u8; 4] = fixed(4)?.try_into().unwrap_or_default();
                let number = f32::from_le_bytes(ordered(bytes, format.is_little));
                values.push(Value::Number(f64::from(number)));
                4
            }
            Field::Double => {
                let bytes: [u8; 8] = fixed(8)?.try_into().unwrap_or_default();
                let number = f64::from_le_bytes(ordered(bytes, format.is_little));
                values.push(Value::Number(number));
                8
            }
            Field::ZeroEnded => {
                let end = memchr::memchr(0, rest);
                let Some(end) = end else {
                    return failure("unfinished string in data");
                };
                values.push(Value::String(lua.create_string(&rest[..end])?));
                end + 1
            }
            Field::Bytes(len) => {
                let len = match len {
                    0 => counted_len(&mut values)?,
                    len => len,
                };
                values.push(Value::String(lua.create_string(fixed(len)?)?));
                len
            }
        };
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

/// Removes the number before `c0`: the length of its string.
fn counted_len(values: &mut Vec<Value>) -> Result<usize, LibraryError> {
    let number = match values.pop() {
        Some(Value::Number(number)) => Some(number),
        Some(Value::Integer(number)) => Some(number as f64),
        _ => None,
    };
    match number {
        Some(number) if number >= 0.0 => Ok(number as usize),
        _ => failure("format 'c0' needs a previous size"),
    }
}

fn read_integer(bytes: &[u8], is_little: bool, is_signed: bool) -> f64 {
    let mut number = 0_u64;
    let mut add = |&byte: &u8| number = number << 8 | u64::from(byte);
    match is_little {
        true => bytes.iter().rev().for_each(&mut add),
        false => bytes.iter().for_each(&mut add),
    }
    let unused = 64_usize.saturating_sub(8 * bytes.len());
    match is_signed && unused < 64 {
        true => ((number << unused) as i64 >> unused) as f64,
        false => number as f64,
    }
}

/// `struct.size(format)`
fn size(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let text = args.string(lua, 1)?;
    let text = text.as_bytes();
    let (mut format, mut total) = (Format::new("size", &text), 0_usize);
    while let Some((field, align)) = format.next()? {
        total += padding(total, align)?;
        total += match field {
            Field::Padding => 1,
            Field::Integer { bytes, .. } => bytes,
            Field::Float => 4,
            Field::Double => 8,
            Field::ZeroEnded => return Err(args.bad(1, "option 's' has no fixed size")),
            Field::Bytes(0) => return Err(args.bad(1, "option 'c0' has no fixed size")),
            Field::Bytes(len) => len,
        };
    }
    one(Value::Number(total as f64))
}
