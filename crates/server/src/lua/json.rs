//! The library `cjson`: JSON as in lua-cjson 2.1, with its limits and messages.

use mlua::{Lua, Table, Value};

use super::convert::general;
use super::host::{aborted, checked};
use super::library::{Arguments, LibraryError, LibraryResult, nothing, one, register};

/// Most nested arrays and objects.
const DEPTH_MAX: usize = 1000;
/// An array with more elements than this may be sparse only up to [`SPARSE_RATIO`].
const SPARSE_SAFE: usize = 10;
/// Largest ratio of an array's last index to the number of its elements.
const SPARSE_RATIO: usize = 2;
/// Values after which the time is checked.
const VALUES_PER_CHECK: usize = 1000;
/// Significant digits of a number.
const DIGITS: usize = 14;

/// The library's functions and constants.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    register(lua, &table, "encode", encode)?;
    register(lua, &table, "decode", decode)?;
    register(lua, &table, "new", |lua, _| {
        one(Value::Table(library(lua)?))
    })?;
    // The limits are fixed, because all scripts share the library (LUA-1).
    for name in [
        "decode_invalid_numbers",
        "decode_max_depth",
        "encode_invalid_numbers",
        "encode_keep_buffer",
        "encode_max_depth",
        "encode_number_precision",
        "encode_sparse_array",
    ] {
        register(lua, &table, name, |_, _| nothing())?;
    }
    Ok(table)
}

fn failure<T>(text: impl Into<String>) -> Result<T, LibraryError> {
    Err(LibraryError::Text(text.into()))
}

/// Counts values, and checks the time.
#[derive(Default)]
struct Pace(usize);

impl Pace {
    fn step(&mut self) -> Result<(), LibraryError> {
        self.0 += 1;
        match self.0.is_multiple_of(VALUES_PER_CHECK) && checked() {
            true => Err(aborted().into()),
            false => Ok(()),
        }
    }
}

/// `cjson.encode(value)`
fn encode(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    if args.len() != 1 {
        return Err(args.bad(1, "expected 1 argument"));
    }
    let mut out = Vec::new();
    append(&mut out, args.value(1), 0, &mut Pace::default())?;
    one(Value::String(lua.create_string(&out)?))
}

fn append(
    out: &mut Vec<u8>,
    value: &Value,
    depth: usize,
    pace: &mut Pace,
) -> Result<(), LibraryError> {
    pace.step()?;
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(true) => out.extend_from_slice(b"true"),
        Value::Boolean(false) => out.extend_from_slice(b"false"),
        Value::Integer(number) => out.extend_from_slice(number_text(*number as f64)?.as_bytes()),
        Value::Number(number) => out.extend_from_slice(number_text(*number)?.as_bytes()),
        Value::String(text) => append_string(out, &text.as_bytes()),
        Value::Table(_) if depth >= DEPTH_MAX => {
            return failure(format!(
                "Cannot serialise, excessive nesting ({})",
                depth + 1
            ));
        }
        Value::Table(table) => append_table(out, table, depth + 1, pace)?,
        other => {
            let name = other.type_name();
            return failure(format!("Cannot serialise {name}: type not supported"));
        }
    }
    Ok(())
}

fn number_text(number: f64) -> Result<String, LibraryError> {
    match number.is_finite() {
        true => Ok(general(number, DIGITS)),
        false => failure("Cannot serialise number: must not be NaN or Inf"),
    }
}

fn append_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 | 0x7f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// The last index of an array; `None` if the table is an object.
fn array_len(table: &Table) -> Result<Option<usize>, LibraryError> {
    let (mut last, mut count, mut is_array) = (0, 0, true);
    table.for_each(|key: Value, _: Value| {
        let index = match key {
            Value::Integer(index) if index > 0 => usize::try_from(index).ok(),
            Value::Number(index) if index > 0.0 && index.fract() == 0.0 => Some(index as usize),
            _ => None,
        };
        match index {
            Some(index) => (last, count) = (last.max(index), count + 1),
            None => is_array = false,
        }
        Ok(())
    })?;
    if !is_array || count == 0 {
        return Ok(None);
    }
    if last > SPARSE_SAFE && last > count * SPARSE_RATIO {
        return failure("Cannot serialise table: excessively sparse array");
    }
    Ok(Some(last))
}

fn append_table(
    out: &mut Vec<u8>,
    table: &Table,
    depth: usize,
    pace: &mut Pace,
) -> Result<(), LibraryError> {
    if let Some(len) = array_len(table)? {
        out.push(b'[');
        for at in 1..=len {
            if at > 1 {
                out.push(b',');
            }
            append(out, &table.raw_get(at)?, depth, pace)?;
        }
        out.push(b']');
        return Ok(());
    }
    out.push(b'{');
    let mut is_first = true;
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        match key {
            Value::String(text) => append_string(out, &text.as_bytes()),
            Value::Integer(number) => append_number_key(out, number as f64)?,
            Value::Number(number) => append_number_key(out, number)?,
            other => {
                let name = other.type_name();
                let text = "table key must be a number or string";
                return failure(format!("Cannot serialise {name}: {text}"));
            }
        }
        out.push(b':');
        append(out, &value, depth, pace)?;
    }
    out.push(b'}');
    Ok(())
}

fn append_number_key(out: &mut Vec<u8>, number: f64) -> Result<(), LibraryError> {
    out.push(b'"');
    out.extend_from_slice(number_text(number)?.as_bytes());
    out.push(b'"');
    Ok(())
}

/// A part of a JSON text.
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Colon,
    Comma,
    End,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Invalid(&'static str),
}

impl Token {
    /// The name that messages use.
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Text(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Invalid(text) => text,
        }
    }
}

/// A parser of a JSON text.
struct JsonParser<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    /// Start of the last token.
    start: usize,
    pace: Pace,
}

/// `cjson.decode(text)`
fn decode(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    if args.len() != 1 {
        return Err(args.bad(1, "expected 1 argument"));
    }
    let text = args.string(lua, 1)?;
    let text = text.as_bytes();
    if text.len() > 1 && (text[0] == 0 || text[1] == 0) {
        return failure("JSON parser does not support UTF-16 or UTF-32");
    }
    let mut parser = JsonParser {
        lua,
        text: &text,
        at: 0,
        start: 0,
        pace: Pace::default(),
    };
    let first = parser.next();
    let value = parser.value(first, 0)?;
    match parser.next() {
        Token::End => one(value),
        token => parser.unexpected("the end", &token),
    }
}

impl JsonParser<'_> {
    fn unexpected<T>(&self, expected: &str, found: &Token) -> Result<T, LibraryError> {
        failure(format!(
            "Expected {expected} but found {} at character {}",
            found.name(),
            self.start + 1
        ))
    }

    fn value(&mut self, token: Token, depth: usize) -> Result<Value, LibraryError> {
        self.pace.step()?;
        Ok(match token {
            Token::Text(text) => Value::String(self.lua.create_string(text)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(flag) => Value::Boolean(flag),
            Token::Null => Value::NULL,
            Token::ObjectBegin => self.object(depth + 1)?,
            Token::ArrayBegin => self.array(depth + 1)?,
            other => return self.unexpected("value", &other),
        })
    }

    fn check_depth(&self, depth: usize) -> Result<(), LibraryError> {
        match depth > DEPTH_MAX {
            true => failure(format!(
                "Found too many nested data structures ({depth}) at character {}",
                self.at
            )),
            false => Ok(()),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, LibraryError> {
        self.check_depth(depth)?;
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if let Token::ObjectEnd = token {
            return Ok(Value::Table(table));
        }
        loop {
            let Token::Text(key) = token else {
                return self.unexpected("object key string", &token);
            };
            match self.next() {
                Token::Colon => {}
                other => return self.unexpected("colon", &other),
            }
            let first = self.next();
            let value = self.value(first, depth)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            match self.next() {
                Token::ObjectEnd => return Ok(Value::Table(table)),
                Token::Comma => token = self.next(),
                other => return self.unexpected("comma or object end", &other),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, LibraryError> {
        self.check_depth(depth)?;
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if let Token::ArrayEnd = token {
            return Ok(Value::Table(table));
        }
        for index in 1.. {
            let value = self.value(token, depth)?;
            table.raw_set(index, value)?;
            match self.next() {
                Token::ArrayEnd => break,
                Token::Comma => token = self.next(),
                other => return self.unexpected("comma or array end", &other),
            }
        }
        Ok(Value::Table(table))
    }

    fn next(&mut self) -> Token {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.start = self.at;
        let Some(&byte) = self.text.get(self.at) else {
            return Token::End;
        };
        self.at += 1;
        match byte {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b':' => Token::Colon,
            b',' => Token::Comma,
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b't' if self.word(b"rue") => Token::Boolean(true),
            b'f' if self.word(b"alse") => Token::Boolean(false),
            b'n' if self.word(b"ull") => Token::Null,
            b'n' | b'N' | b'i' | b'I' => self.number(),
            _ => Token::Invalid("invalid token"),
        }
    }

    fn word(&mut self, rest: &[u8]) -> bool {
        let is_word = self.text[self.at..].starts_with(rest);
        self.at += if is_word { rest.len() } else { 0 };
        is_word
    }

    /// A number as C's `strtod` reads it; `nan` and `inf` are numbers.
    fn number(&mut self) -> Token {
        let rest = &self.text[self.start..];
        let unsigned = rest.strip_prefix(b"-").unwrap_or(rest);
        let sign = if rest.len() == unsigned.len() {
            1.0
        } else {
            -1.0
        };
        let sign_len = rest.len() - unsigned.len();
        let is_word = |word: &[u8]| {
            unsigned
                .get(..word.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        let (value, len) = if is_word(b"infinity") {
            (f64::INFINITY, 8)
        } else if is_word(b"inf") {
            (f64::INFINITY, 3)
        } else if is_word(b"nan") {
            (f64::NAN, 3)
        } else if is_word(b"0x") {
            let digits = unsigned[2..]
                .iter()
                .take_while(|b| b.is_ascii_hexdigit())
                .count();
            let text = std::str::from_utf8(&unsigned[2..2 + digits]).unwrap_or("");
            (
                u64::from_str_radix(text, 16).unwrap_or(0) as f64,
                2 + digits,
            )
        } else {
            match decimal(unsigned) {
                Some(number) => number,
                None => {
                    return Token::Invalid(if sign_len > 0 {
                        "invalid number"
                    } else {
                        "invalid token"
                    });
                }
            }
        };
        self.at = self.start + sign_len + len;
        Token::Number(sign * value)
    }

    fn string(&mut self) -> Token {
        let mut out = Vec::new();
        loop {
            let Some(&byte) = self.text.get(self.at) else {
                self.start = self.at;
                return Token::Invalid("unexpected end of string");
            };
            self.at += 1;
            match byte {
                b'"' => return Token::Text(out),
                b'\\' => match self.escape(&mut out) {
                    Ok(()) => {}
                    Err(problem) => return Token::Invalid(problem),
                },
                _ => out.push(byte),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        let letter = self.text.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        out.push(match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let escape = self.at - 2;
                return self.unicode(out).ok_or_else(|| {
                    self.start = escape;
                    "invalid unicode escape code"
                });
            }
            _ => {
                self.start = self.at - 2;
                return Err("invalid escape code");
            }
        });
        Ok(())
    }

    /// `\uXXXX`, or a pair of them for a character outside the basic plane.
    fn unicode(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let first = self.four_digits()?;
        let code = match first {
            0xd800..0xdc00 => {
                if self.text.get(self.at..self.at + 2) != Some(b"\\u") {
                    return None;
                }
                self.at += 2;
                let second = self
                    .four_digits()
                    .filter(|code| (0xdc00..0xe000).contains(code))?;
                0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        let character = char::from_u32(code)?;
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(())
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let code = u32::from_str_radix(digits, 16).ok()?;
        self.at += 4;
        Some(code)
    }
}

/// The decimal number at the start of `text`, and its length.
fn decimal(text: &[u8]) -> Option<(f64, usize)> {
    let digits = |from: usize| {
        text[from..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let whole = digits(0);
    let mut len = whole;
    if text.get(len) == Some(&b'.') {
        len += 1 + digits(len + 1);
    }
    if whole == 0 && len < 2 {
        return None;
    }
    if let Some(b'e' | b'E') = text.get(len) {
        let signed = len + 1 + usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        let exponent = if signed <= text.len() {
            digits(signed)
        } else {
            0
        };
        if exponent > 0 {
            len = signed + exponent;
        }
    }
    let number = std::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    Some((number, len))
}
