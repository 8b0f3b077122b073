//! The library `redis`, except for `redis.call` and `redis.pcall` (see `engine`).

use mlua::{Lua, Table, Value};
use sha1::{Digest, Sha1};

use super::convert::{read_arguments, until_nul};
use super::host::{LogLevel, with_host};
use super::library::{Arguments, LibraryError, LibraryResult, nothing, one, register};
use crate::hex::hex;
use crate::protocol::resp::RespVersion;
use crate::protocol::resp::parse::ArgsBuffer;

/// The Redis version whose scripts this server executes.
const VERSION: [u32; 3] = [7, 0, 15];

/// Returns the SHA1 of `bytes` in hexadecimal digits.
pub(crate) fn sha1_hex(bytes: &[u8]) -> String {
    hex(&Sha1::digest(bytes))
}

/// The library's functions and constants.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let [major, minor, patch] = VERSION;
    table.raw_set("REDIS_VERSION", format!("{major}.{minor}.{patch}"))?;
    table.raw_set("REDIS_VERSION_NUM", major << 16 | minor << 8 | patch)?;
    let constants = [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
    ];
    for (name, value) in constants {
        table.raw_set(name, value)?;
    }
    register(lua, &table, "sha1hex", |lua, args| match args.len() {
        1 => {
            let text = sha1_hex(&args.bytes(lua, 1)?);
            one(Value::String(lua.create_string(text)?))
        }
        _ => Err(LibraryError::Reply("ERR wrong number of arguments")),
    })?;
    register(lua, &table, "error_reply", error_reply)?;
    register(lua, &table, "status_reply", status_reply)?;
    register(lua, &table, "log", log)?;
    register(lua, &table, "setresp", set_resp)?;
    register(lua, &table, "acl_check_cmd", acl_check_cmd)?;
    register(lua, &table, "set_repl", set_repl)?;
    register(lua, &table, "replicate_commands", |_, _| {
        one(Value::Boolean(true))
    })?;
    register(lua, &table, "breakpoint", |_, _| one(Value::Boolean(false)))?;
    register(lua, &table, "debug", |_, _| nothing())?;
    Ok(table)
}

fn field(lua: &Lua, name: &str, text: &[u8]) -> LibraryResult {
    let table = lua.create_table()?;
    table.raw_set(name, lua.create_string(text)?)?;
    one(Value::Table(table))
}

/// `redis.error_reply(text)`. A text of several words begins with the error's code, after an optional `-`.
fn error_reply(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let (1, Value::String(text)) = (args.len(), args.value(1)) else {
        return field(lua, "err", b"ERR wrong number or type of arguments");
    };
    let text = text.as_bytes();
    let text = until_nul(&text);
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let text = match text.contains(&b' ') {
        true => text.to_vec(),
        false => [b"ERR ", text].concat(),
    };
    field(lua, "err", &text)
}

/// `redis.status_reply(text)`
fn status_reply(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    match (args.len(), args.value(1)) {
        (1, Value::String(text)) => field(lua, "ok", &text.as_bytes()),
        _ => field(lua, "err", b"ERR wrong number or type of arguments"),
    }
}

/// `redis.log(level, text, ...)`
fn log(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    if args.len() < 2 {
        let text = "ERR redis.log() requires two arguments or more.";
        return Err(LibraryError::Reply(text));
    }
    let (Value::Integer(_) | Value::Number(_)) = args.value(1) else {
        let text = "ERR First argument must be a number (log level).";
        return Err(LibraryError::Reply(text));
    };
    let level = match args.integer(lua, 1)? {
        0 => LogLevel::Debug,
        1 => LogLevel::Verbose,
        2 => LogLevel::Notice,
        3 => LogLevel::Warning,
        _ => return Err(LibraryError::Reply("ERR Invalid debug level.")),
    };
    let mut text = Vec::new();
    for value in args.from(2) {
        if let Some(part) = lua.coerce_string(value.clone())? {
            if !text.is_empty() {
                text.push(b' ');
            }
            text.extend_from_slice(&part.as_bytes());
        }
    }
    with_host(|host| host.log(level, &text));
    nothing()
}

/// `redis.setresp(2|3)`
fn set_resp(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    if args.len() != 1 {
        let text = "ERR redis.setresp() requires one argument.";
        return Err(LibraryError::Reply(text));
    }
    let resp = match args.integer(lua, 1) {
        Ok(2) => RespVersion::V2,
        Ok(3) => RespVersion::V3,
        _ => return Err(LibraryError::Reply("ERR RESP version must be 2 or 3.")),
    };
    with_host(|host| host.set_resp(resp));
    nothing()
}

/// `redis.acl_check_cmd(command, ...)`
fn acl_check_cmd(_: &Lua, args: &Arguments<'_>) -> LibraryResult {
    let mut request = ArgsBuffer::default();
    if read_arguments(args.from(1), &mut request).is_err() {
        return Err(LibraryError::Reply(match args.len() {
            0 => "ERR Please specify at least one argument for this redis lib call",
            _ => "ERR Lua redis lib command arguments must be strings or integers",
        }));
    }
    match with_host(|host| host.may_execute(request.args())).flatten() {
        Some(is_allowed) => one(Value::Boolean(is_allowed)),
        None => Err(LibraryError::Reply(
            "ERR Invalid command passed to redis.acl_check_cmd()",
        )),
    }
}

/// `redis.set_repl(flags)`: no effect, because a script's writes are one group of the store.
fn set_repl(lua: &Lua, args: &Arguments<'_>) -> LibraryResult {
    if args.len() != 1 {
        let text = "ERR redis.set_repl() requires two arguments.";
        return Err(LibraryError::Reply(text));
    }
    match args.integer(lua, 1)? {
        0..=3 => nothing(),
        _ => Err(LibraryError::Reply(
            "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
        )),
    }
}
