//! The library `cjson`: JSON as in lua-cjson 2.1, with its limits and messages.

use mlua::{Lua, Table, Value};

use super::convert::general;
use super::host::{aborted, checked};
use super::json_config::{InvalidNumbers, JsonConfig, JsonSettings};
use super::library::{Arguments, LibraryError, LibraryResult, one, register};

/// Most nested arrays and objects. Settings above it have no effect. They fit on the stack of the server's threads
/// (`net::listener`). Each takes up to three slots of mlua's stack of 8,000 slots.
const NESTING_MAX: usize = 2000;
/// Values after which the time is checked.
const VALUES_PER_CHECK: usize = 1000;

/// The library's functions and constants. Its functions obey `settings`.
pub(super) fn library(lua: &Lua, settings: &JsonSettings) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    let own = settings.clone();
    register(lua, &table, "encode", move |lua, args| {
        encode(lua, args, own.get())
    })?;
    let own = settings.clone();
    register(lua, &table, "decode", move |lua, args| {
        decode(lua, args, own.get())
    })?;
    register(lua, &table, "new", |lua, _| {
        one(Value::Table(library(lua, &JsonSettings::default())?))
    })?;
    settings.register(lua, &table)?;
    Ok(table)
}

/// Returns whether `depth` is deeper than the setting `max`, or than the stack allows.
fn is_too_deep(depth: usize, max: i32) -> bool {
    depth > NESTING_MAX || depth as i64 > i64::from(max)
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
fn encode(lua: &Lua, args: &Arguments<'_>, config: JsonConfig) -> LibraryResult {
    if args.len() != 1 {
        return Err(args.bad(1, "expected 1 argument"));
    }
    let mut encoder = JsonEncoder {
        config,
        out: Vec::new(),
        pace: Pace::default(),
    };
    encoder.value(args.value(1), 0)?;
    one(Value::String(lua.create_string(&encoder.out)?))
}

/// The text of a value.
struct JsonEncoder {
    config: JsonConfig,
    out: Vec<u8>,
    pace: Pace,
}

impl JsonEncoder {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), LibraryError> {
        self.pace.step()?;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => {
                self.out.extend_from_slice(b"null");
            }
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => append_string(&mut self.out, &text.as_bytes()),
            Value::Table(_) if is_too_deep(depth + 1, self.config.encode_depth_max) => {
                return failure(format!(
                    "Cannot serialise, excessive nesting ({})",
                    depth + 1
                ));
            }
            Value::Table(table) => match self.array_len(table)? {
                Some(len) => self.array(table, len, depth + 1)?,
                None => self.object(table, depth + 1)?,
            },
            other => {
                let name = other.type_name();
                return failure(format!("Cannot serialise {name}: type not supported"));
            }
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), LibraryError> {
        if number.is_finite() {
            let digits = usize::try_from(self.config.digits).unwrap_or(1);
            self.out
                .extend_from_slice(general(number, digits).as_bytes());
            return Ok(());
        }
        self.out
            .extend_from_slice(match self.config.invalid_numbers {
                InvalidNumbers::Refused => {
                    return failure("Cannot serialise number: must not be NaN or Inf");
                }
                InvalidNumbers::Null => b"null",
                InvalidNumbers::Written if number.is_nan() => b"nan",
                InvalidNumbers::Written if number > 0.0 => b"inf",
                InvalidNumbers::Written => b"-inf",
            });
        Ok(())
    }

    /// The last index of an array; `None` if the table is an object.
    fn array_len(&self, table: &Table) -> Result<Option<usize>, LibraryError> {
        let (mut last, mut count, mut is_array) = (0, 0_usize, true);
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
        let setting = |value: i32| usize::try_from(value).unwrap_or(0);
        let ratio = setting(self.config.sparse_ratio);
        let is_sparse = last > setting(self.config.sparse_safe)
            && ratio > 0
            && last > count.saturating_mul(ratio);
        match is_sparse {
            true if self.config.converts_sparse => Ok(None),
            true => failure("Cannot serialise table: excessively sparse array"),
            false => Ok(Some(last)),
        }
    }

    fn array(&mut self, table: &Table, len: usize, depth: usize) -> Result<(), LibraryError> {
        self.out.push(b'[');
        for at in 1..=len {
            if at > 1 {
                self.out.push(b',');
            }
            self.value(&table.raw_get(at)?, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: usize) -> Result<(), LibraryError> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            self.key(&key)?;
            drop(key);
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Appends a key of an object and the colon.
    fn key(&mut self, key: &Value) -> Result<(), LibraryError> {
        let number = match key {
            Value::String(text) => {
                append_string(&mut self.out, &text.as_bytes());
                self.out.push(b':');
                return Ok(());
            }
            Value::Integer(number) => *number as f64,
            Value::Number(number) => *number,
            other => {
                let name = other.type_name();
                let text = "table key must be a number or string";
                return failure(format!("Cannot serialise {name}: {text}"));
            }
        };
        self.out.push(b'"');
        self.number(number)?;
        self.out.extend_from_slice(b"\":");
        Ok(())
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
    config: JsonConfig,
    text: &'a [u8],
    at: usize,
    /// Start of the last token.
    start: usize,
    pace: Pace,
}

/// `cjson.decode(text)`
fn decode(lua: &Lua, args: &Arguments<'_>, config: JsonConfig) -> LibraryResult {
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
        config,
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
        match is_too_deep(depth, self.config.decode_depth_max) {
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
            b'-' | b'0'..=b'9' if !self.config.decodes_invalid && self.is_invalid_number() => {
                Token::Invalid("invalid number")
            }
            b'-' | b'0'..=b'9' => self.number(),
            b't' if self.word(b"rue") => Token::Boolean(true),
            b'f' if self.word(b"alse") => Token::Boolean(false),
            b'n' if self.word(b"ull") => Token::Null,
            b'n' | b'N' | b'i' | b'I' | b'+' if self.config.decodes_invalid => self.number(),
            _ => Token::Invalid("invalid token"),
        }
    }

    fn word(&mut self, rest: &[u8]) -> bool {
        let is_word = self.text[self.at..].starts_with(rest);
        self.at += if is_word { rest.len() } else { 0 };
        is_word
    }

    /// Whether the number at the last token's start is one that only `strtod` accepts, and JSON does not.
    fn is_invalid_number(&self) -> bool {
        let rest = &self.text[self.start..];
        match rest.strip_prefix(b"-").unwrap_or(rest) {
            [b'0', next, ..] => matches!(next, b'x' | b'X' | b'0'..=b'9'),
            [a, b, c, ..] => {
                let word = [a, b, c].map(u8::to_ascii_lowercase);
                matches!(&word, b"inf" | b"nan")
            }
            _ => false,
        }
    }

    /// A number as C's `strtod` reads it; `nan` and `inf` are numbers.
    fn number(&mut self) -> Token {
        let rest = &self.text[self.start..];
        let unsigned = match rest {
            [b'-' | b'+', unsigned @ ..] => unsigned,
            _ => rest,
        };
        let sign = if rest[0] == b'-' { -1.0 } else { 1.0 };
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
