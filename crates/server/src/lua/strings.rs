//! Functions of `string` whose time Lua does not bound: patterns, `rep`, and those that copy a long string.

use mlua::{Lua, MultiValue, Table, Value};

use super::host::{aborted, checked};
use super::library::{Arguments, LibraryError, LibraryResult, one, register, register_timed};
use super::pattern::{Capture, Matcher, PatternError};

/// Most bytes that `string.rep` builds.
const REP_BYTES_MAX: usize = 256 << 20;
/// Bytes that `string.rep` and `string.gsub` copy between two checks of the time.
const BYTES_PER_CHECK: usize = 64 << 10;

impl From<PatternError> for LibraryError {
    fn from(error: PatternError) -> LibraryError {
        match error {
            PatternError::Malformed(text) => LibraryError::Text(text.to_owned()),
            PatternError::Aborted => aborted().into(),
        }
    }
}

/// The functions.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    register(lua, &table, "rep", rep)?;
    register(lua, &table, "find", find)?;
    register(lua, &table, "match", match_one)?;
    register(lua, &table, "next_match", next_match)?;
    register(lua, &table, "gsub", gsub)?;
    for name in ["lower", "upper", "reverse", "format", "byte"] {
        register_timed(lua, &table, "string", name)?;
    }
    Ok(table)
}

fn check_time() -> Result<(), LibraryError> {
    match checked() {
        true => Err(aborted().into()),
        false => Ok(()),
    }
}

/// `string.rep(s, n)`
fn rep(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let text = args.bytes(lua, 1)?;
    let count = usize::try_from(args.integer(lua, 2)?).unwrap_or(0);
    let bytes = text.len().saturating_mul(count);
    // The Lua state's own limit is lower on a worker, and counts the copy in the state.
    if bytes > REP_BYTES_MAX {
        return Err(LibraryError::Text("resulting string too large".to_owned()));
    }
    if bytes > BYTES_PER_CHECK {
        check_time()?;
        // Fails if the state's limit does not allow the result, before it is built here.
        let free = lua.create_string("").and(memory_left(lua))?;
        if bytes > free {
            return Err(mlua::Error::MemoryError("not enough memory".to_owned()).into());
        }
    }
    one(Value::String(lua.create_string(text.repeat(count))?))
}

/// Bytes that the Lua state may still allocate.
fn memory_left(lua: &Lua) -> mlua::Result<usize> {
    let limit = lua.set_memory_limit(0)?;
    lua.set_memory_limit(limit)?;
    Ok(match limit {
        0 => usize::MAX,
        limit => limit.saturating_sub(lua.used_memory()),
    })
}

/// Converts a start position, which may count from the end, to an offset.
fn offset(position: i64, len: usize) -> usize {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let offset = match position {
        position if position > 0 => position - 1,
        0 => 0,
        position => (len + position).max(0),
    };
    usize::try_from(offset.min(len)).unwrap_or(0)
}

/// The value of a capture.
fn capture_value(lua: &Lua, text: &[u8], capture: Capture) -> Result<Value, LibraryError> {
    Ok(match capture {
        Capture::Range(start, end) => Value::String(lua.create_string(&text[start..end])?),
        Capture::Position(at) => Value::Number((at + 1) as f64),
        Capture::Open(_) => return Err(LibraryError::Text("unfinished capture".to_owned())),
    })
}

/// The captures of a match, or the whole match if the pattern has none.
fn captured(
    lua: &Lua,
    matcher: &Matcher<'_>,
    text: &[u8],
    whole: (usize, usize),
) -> Result<Vec<Value>, LibraryError> {
    if matcher.captures().is_empty() {
        let capture = Capture::Range(whole.0, whole.1);
        return Ok(vec![capture_value(lua, text, capture)?]);
    }
    let captures = matcher.captures().iter();
    captures
        .map(|&capture| capture_value(lua, text, capture))
        .collect()
}

fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// `string.find(s, pattern [, init [, plain]])`
fn find(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let (text, pattern) = (args.string(lua, 1)?, args.string(lua, 2)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let init = offset(args.integer_or(lua, 3, 1)?, text.len());
    if text.len() > BYTES_PER_CHECK {
        check_time()?;
    }
    if args.flag(4) || is_plain(&pattern) {
        let found = memchr::memmem::find(&text[init..], &pattern);
        return Ok(match found {
            Some(at) => MultiValue::from_vec(vec![
                Value::Number((init + at + 1) as f64),
                Value::Number((init + at + pattern.len()) as f64),
            ]),
            None => MultiValue::from_vec(vec![Value::Nil]),
        });
    }
    let mut matcher = Matcher::new(&text, &pattern);
    let Some(found) = matcher.find(init)? else {
        return one(Value::Nil);
    };
    let mut values = vec![
        Value::Number((found.start + 1) as f64),
        Value::Number(found.end as f64),
    ];
    if !matcher.captures().is_empty() {
        values.extend(captured(lua, &matcher, &text, (found.start, found.end))?);
    }
    Ok(MultiValue::from_vec(values))
}

/// `string.match(s, pattern [, init])`
fn match_one(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let (text, pattern) = (args.string(lua, 1)?, args.string(lua, 2)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let init = offset(args.integer_or(lua, 3, 1)?, text.len());
    let mut matcher = Matcher::new(&text, &pattern);
    match matcher.find(init)? {
        Some(found) => Ok(MultiValue::from_vec(captured(
            lua,
            &matcher,
            &text,
            (found.start, found.end),
        )?)),
        None => one(Value::Nil),
    }
}

/// One step of `string.gmatch`: `next_match(s, pattern, from)` returns where the next step begins, and the captures.
fn next_match(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let (text, pattern) = (args.string(lua, 1)?, args.string(lua, 2)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let from = usize::try_from(args.integer_or(lua, 3, 0)?).unwrap_or(0);
    let mut matcher = Matcher::new(&text, &pattern);
    // As in Lua 5.1, `^` is no anchor in `gmatch`.
    let mut start = from;
    while start <= text.len() {
        if let Some(end) = matcher.match_unanchored(start)? {
            let next = end + usize::from(end == start);
            let mut values = vec![Value::Number(next as f64)];
            values.extend(captured(lua, &matcher, &text, (start, end))?);
            return Ok(MultiValue::from_vec(values));
        }
        start += 1;
    }
    one(Value::Nil)
}

/// `string.gsub(s, pattern, replacement [, n])`
fn gsub(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let (text, pattern) = (args.string(lua, 1)?, args.string(lua, 2)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let replacement = match args.value(3) {
        Value::Function(_) | Value::Table(_) => None,
        Value::String(_) | Value::Integer(_) | Value::Number(_) => Some(args.string(lua, 3)?),
        _ => return Err(args.bad(3, "string/function/table expected")),
    };
    let most = args.integer_or(lua, 4, i64::try_from(text.len()).unwrap_or(i64::MAX) + 1)?;
    let is_anchored = pattern.first() == Some(&b'^');
    let left = memory_left(lua)?;
    let mut matcher = Matcher::new(&text, &pattern);
    let (mut out, mut at, mut count, mut checked_len) = (Vec::new(), 0, 0, 0);
    while count < most {
        let found = matcher.match_at(at)?;
        if let Some(end) = found {
            count += 1;
            let piece = (at, end);
            match &replacement {
                Some(template) => {
                    expand(lua, &mut out, &matcher, &text, piece, &template.as_bytes())?
                }
                None => replace(lua, &mut out, &matcher, &text, piece, args.value(3))?,
            }
        }
        match found {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                out.push(text[at]);
                at += 1;
            }
            _ => break,
        }
        if out.len() > checked_len + BYTES_PER_CHECK {
            checked_len = out.len();
            check_time()?;
            if out.len() > left {
                return Err(mlua::Error::MemoryError("not enough memory".to_owned()).into());
            }
        }
        if is_anchored {
            break;
        }
    }
    out.extend_from_slice(&text[at.min(text.len())..]);
    let result = Value::String(lua.create_string(&out)?);
    Ok(MultiValue::from_vec(vec![
        result,
        Value::Number(count as f64),
    ]))
}

/// Appends a replacement string, in which `%1` stands for a capture and `%0` for the match.
fn expand(
    lua: &Lua,
    out: &mut Vec<u8>,
    matcher: &Matcher<'_>,
    text: &[u8],
    (start, end): (usize, usize),
    template: &[u8],
) -> Result<(), LibraryError> {
    let mut bytes = template.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'0') => out.extend_from_slice(&text[start..end]),
            Some(digit @ b'1'..=b'9') => {
                let index = usize::from(digit - b'1');
                let captures = matcher.captures();
                let capture = match captures.get(index) {
                    None if index == 0 && captures.is_empty() => Capture::Range(start, end),
                    None => return Err(LibraryError::Text("invalid capture index".to_owned())),
                    Some(capture) => *capture,
                };
                append_text(lua, out, capture_value(lua, text, capture)?);
            }
            Some(other) => out.push(*other),
            None => out.push(0),
        }
    }
    Ok(())
}

fn append_text(lua: &Lua, out: &mut Vec<u8>, value: Value) {
    if let Ok(Some(text)) = lua.coerce_string(value) {
        out.extend_from_slice(&text.as_bytes());
    }
}

/// Appends what a function or a table has for the first capture; false and nil keep the match.
fn replace(
    lua: &Lua,
    out: &mut Vec<u8>,
    matcher: &Matcher<'_>,
    text: &[u8],
    (start, end): (usize, usize),
    replacement: &Value,
) -> Result<(), LibraryError> {
    let values = captured(lua, matcher, text, (start, end))?;
    let result: Value = match replacement {
        Value::Function(function) => function.call(MultiValue::from_vec(values))?,
        Value::Table(table) => table.get(values.into_iter().next().unwrap_or(Value::Nil))?,
        _ => Value::Nil,
    };
    match result {
        Value::Nil | Value::Boolean(false) => out.extend_from_slice(&text[start..end]),
        Value::String(_) | Value::Integer(_) | Value::Number(_) => append_text(lua, out, result),
        other => {
            let text = format!("invalid replacement value (a {})", other.type_name());
            return Err(LibraryError::Text(text));
        }
    }
    Ok(())
}
