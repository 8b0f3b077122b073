//! A Lua state with the globals of Redis's scripts, and the scripts that it has compiled.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use bstr::BStr;
use mlua::{
    ChunkMode, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState,
};

use super::compiled::{CompiledScript, FunctionCache};
use super::convert::{error_table, read_arguments, reply_of, value_of};
use super::host::{HOST, ScriptHost, aborted, checked, with_host};
use super::json_config::JsonSettings;
use super::library::{PRELUDE_NAME, RaisedError, plain, position, register_timed};
use super::random::Rand48;
use super::redis::sha1_hex;
use super::shebang;
use super::{bits, json, msgpack, random, redis, strings, structs};
use crate::buffers::reply::ReplyBuffer;
use crate::protocol::resp::parse::ArgsBuffer;
use crate::protocol::resp::{Args, reply};

/// Name of a script's chunk.
const SCRIPT_NAME: &str = "@user_script";
/// Instructions after which a running script checks the time.
pub(crate) const INSTRUCTIONS_PER_CHECK: u32 = 1000;
/// Most compiled scripts that a state keeps. Each takes a slot of mlua's stack of 8,000 slots.
const COMPILED_MAX: usize = 400;
/// Most bytes of the sources of the compiled scripts that a state keeps.
const COMPILED_BYTES_MAX: usize = 4 << 20;
/// Bytes of a state's memory above which it is collected after a script.
const COLLECTED_BYTES: usize = 16 << 20;

/// A Lua state and its compiled scripts.
pub(crate) struct ScriptEngine {
    pub(super) lua: Lua,
    /// The globals that scripts read.
    builtins: Table,
    /// Names of `KEYS` and `ARGV` there.
    argument_names: [mlua::String; 2],
    /// `loadstring` for scripts.
    loadstring: Function,
    /// Runs a function with the error handler.
    run: Function,
    pub(super) functions: FunctionCache,
    /// Settings of the global `cjson`.
    pub(super) json: JsonSettings,
    by_body: HashMap<Box<[u8]>, Rc<CompiledScript>>,
    by_name: HashMap<String, Rc<CompiledScript>>,
    /// Bytes of the compiled scripts.
    compiled_bytes: usize,
    /// Bytes that a script may add to the state's memory.
    bytes_max: usize,
    /// Number of SCRIPT FLUSH before the compiled scripts were compiled.
    pub(crate) flushes: u64,
}

/// Outcome of a script.
pub(crate) enum ScriptOutcome {
    /// It has returned, or raised an error; the reply was appended.
    Replied,
    /// It ended because its host has aborted it.
    Aborted,
}

impl ScriptEngine {
    /// Creates a state in which a script may use `bytes_max` bytes of memory.
    pub(crate) fn new(bytes_max: usize, flushes: u64) -> mlua::Result<ScriptEngine> {
        let libs = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libs, LuaOptions::new().catch_rust_panics(false))?;
        let random = Rc::new(Cell::new(Rand48::INITIAL));
        let json = JsonSettings::default();
        let host = host_table(&lua, &random, &json, bytes_max)?;
        let prelude = lua
            .load(include_str!("prelude.lua"))
            .set_name(PRELUDE_NAME)
            .set_mode(ChunkMode::Text);
        let (builtins, run, loadstring, call, load_library) =
            prelude.call::<(Table, Function, Function, Function, Function)>(host)?;
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK);
        lua.set_global_hook(triggers, |_, _| match checked() {
            true => Err(aborted()),
            false => Ok(VmState::Continue),
        })?;
        Ok(ScriptEngine {
            argument_names: [lua.create_string("KEYS")?, lua.create_string("ARGV")?],
            lua,
            builtins,
            loadstring,
            run,
            functions: FunctionCache::new(call, load_library),
            json,
            by_body: HashMap::new(),
            by_name: HashMap::new(),
            compiled_bytes: 0,
            bytes_max,
            flushes,
        })
    }

    /// Returns the compiled script with the text `body`.
    #[inline]
    pub(crate) fn find(&self, body: &[u8]) -> Option<Rc<CompiledScript>> {
        self.by_body.get(body).cloned()
    }

    /// Returns the compiled script with this name.
    #[inline]
    pub(crate) fn find_named(&self, name: &str) -> Option<Rc<CompiledScript>> {
        self.by_name.get(name).cloned()
    }

    /// Compiles a script.
    ///
    /// # Errors
    /// The text of the error reply.
    pub(crate) fn compile(&mut self, body: &[u8]) -> Result<Rc<CompiledScript>, Vec<u8>> {
        if let Some(script) = self.find(body) {
            return Ok(script);
        }
        let (flags, source) = shebang::split(body)?;
        if self.by_body.len() >= COMPILED_MAX || self.compiled_bytes > COMPILED_BYTES_MAX {
            self.forget_compiled();
        }
        self.limit_memory();
        let compiled = self.load(source);
        self.lift_limit();
        let function = compiled.map_err(|message| {
            [b"ERR Error compiling script (new function): ", &message[..]].concat()
        })?;
        let script = Rc::new(CompiledScript {
            name: sha1_hex(body),
            flags,
            is_function: false,
            function,
        });
        self.compiled_bytes += body.len();
        self.by_body.insert(body.into(), Rc::clone(&script));
        self.by_name.insert(script.name.clone(), Rc::clone(&script));
        Ok(script)
    }

    /// Compiles Lua source.
    ///
    /// # Errors
    /// The message of Lua's compiler.
    fn load(&self, source: &[u8]) -> Result<Function, Vec<u8>> {
        let compiled = self.lua.create_string(source).and_then(|source| {
            self.loadstring
                .call::<(Option<Function>, Option<mlua::String>)>((source, SCRIPT_NAME))
        });
        match compiled {
            Ok((Some(function), _)) => Ok(function),
            Ok((None, message)) => Err(message.map_or(Vec::new(), |m| m.as_bytes().to_vec())),
            Err(error) => Err(error.to_string().into_bytes()),
        }
    }

    /// Removes all compiled scripts.
    pub(crate) fn forget_compiled(&mut self) {
        self.by_body.clear();
        self.by_name.clear();
        self.compiled_bytes = 0;
        // A failed collection leaves garbage, which the memory limit still counts.
        let _ = self.lua.gc_collect();
    }

    /// Sets the limit of the state's memory, for the time in which Lua compiles or runs a script.
    pub(super) fn limit_memory(&self) {
        let bytes = self.lua.used_memory() + self.bytes_max;
        // Fails only for a state with another allocator.
        let _ = self.lua.set_memory_limit(bytes);
    }

    /// Lifts the limit of the state's memory. Without one, mlua's functions cannot fail and need no protection, which
    /// takes most of their time.
    pub(super) fn lift_limit(&self) {
        let _ = self.lua.set_memory_limit(0);
    }

    /// Runs a compiled script and appends its reply to `out`.
    pub(crate) fn run(
        &mut self,
        script: &CompiledScript,
        keys: Args<'_>,
        argv: Args<'_>,
        host: &mut (dyn ScriptHost + '_),
        out: &mut ReplyBuffer,
    ) -> ScriptOutcome {
        let outcome = self.call(script, keys, argv, host, out);
        if self.lua.used_memory() > COLLECTED_BYTES {
            let _ = self.lua.gc_collect();
        }
        outcome
    }

    fn call(
        &self,
        script: &CompiledScript,
        keys: Args<'_>,
        argv: Args<'_>,
        host: &mut (dyn ScriptHost + '_),
        out: &mut ReplyBuffer,
    ) -> ScriptOutcome {
        self.json.reset();
        let called = match script.is_function {
            true => self.argument_tables(keys, argv).and_then(|[keys, argv]| {
                self.limit_memory();
                let call = &self.functions.call;
                HOST.set(host, || {
                    call.call::<(Value, Value)>((&script.function, keys, argv))
                })
            }),
            false => self.set_arguments(keys, argv).and_then(|()| {
                self.limit_memory();
                HOST.set(host, || self.run.call::<(Value, Value)>(&script.function))
            }),
        };
        self.lift_limit();
        let (succeeded, value) = match called {
            Ok((succeeded, value)) => (succeeded == Value::Boolean(true), value),
            Err(error) => {
                if matches!(error, mlua::Error::MemoryError(_)) {
                    host.note_out_of_memory();
                }
                (false, Value::Nil)
            }
        };
        if !succeeded && is_memory_error(&value) {
            host.note_out_of_memory();
        }
        if host.is_aborted() {
            return ScriptOutcome::Aborted;
        }
        let written = match succeeded {
            true => reply_of(out, host.versions(), &value),
            false => append_error(out, &value, &script.name),
        };
        if written.is_err() {
            host.note_out_of_memory();
            return ScriptOutcome::Aborted;
        }
        ScriptOutcome::Replied
    }

    /// Sets `KEYS` and `ARGV`.
    fn set_arguments(&self, keys: Args<'_>, argv: Args<'_>) -> mlua::Result<()> {
        let tables = self.argument_tables(keys, argv)?;
        for (name, table) in self.argument_names.iter().zip(tables) {
            self.builtins.raw_set(name, table)?;
        }
        Ok(())
    }

    /// Creates the tables of keys and of further arguments.
    fn argument_tables(&self, keys: Args<'_>, argv: Args<'_>) -> mlua::Result<[Table; 2]> {
        let table = |values: Args<'_>| {
            let strings = values.from(0).map(<&BStr>::from);
            self.lua.create_sequence_from(strings)
        };
        Ok([table(keys)?, table(argv)?])
    }
}

fn is_memory_error(value: &Value) -> bool {
    matches!(value, Value::String(text) if text.as_bytes() == b"not enough memory".as_slice())
}

/// Appends the error of a script: its text, the script and the position.
fn append_error(out: &mut ReplyBuffer, problem: &Value, label: &str) -> mlua::Result<()> {
    let Value::Table(problem) = problem else {
        reply::error(out, b"ERR unknown error");
        return Ok(());
    };
    let text: Value = problem.raw_get("err")?;
    let mut text = match text {
        Value::String(text) => text.as_bytes().to_vec(),
        _ => b"ERR unknown error".to_vec(),
    };
    let (source, line): (Value, Value) = (problem.raw_get("source")?, problem.raw_get("line")?);
    if let (Value::String(source), Value::Integer(line)) = (source, line) {
        text.extend_from_slice(format!(" script: {label}, on ").as_bytes());
        text.extend_from_slice(&source.as_bytes());
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    reply::error(out, &text);
    Ok(())
}

/// Creates the functions that the prelude needs.
fn host_table(
    lua: &Lua,
    random: &Rc<Cell<Rand48>>,
    json: &JsonSettings,
    reply_bytes_max: usize,
) -> mlua::Result<Table> {
    let host = lua.create_table()?;
    let is_aborted =
        lua.create_function(|_, ()| Ok(with_host(|host| host.is_aborted()).unwrap_or(false)))?;
    host.raw_set("is_aborted", is_aborted)?;
    let check_time =
        lua.create_function(|_, ()| if checked() { Err(aborted()) } else { Ok(()) })?;
    host.raw_set("check_time", check_time)?;
    let place = lua.create_function(|lua, ()| {
        Ok(position(lua).map_or((None, None), |(source, _, line)| (Some(source), Some(line))))
    })?;
    host.raw_set("position", place)?;
    host.raw_set("string", strings::library(lua)?)?;
    host.raw_set("math", random::library(lua, random)?)?;
    host.raw_set("bit", bits::library(lua)?)?;
    host.raw_set("cjson", json::library(lua, json)?)?;
    host.raw_set("cmsgpack", msgpack::library(lua)?)?;
    host.raw_set("struct", structs::library(lua)?)?;
    let redis = redis::library(lua)?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        redis.raw_set(name, call_function(lua, reply_bytes_max, raises)?)?;
    }
    host.raw_set("redis", redis)?;
    let tables = lua.create_table()?;
    for name in ["concat", "maxn"] {
        register_timed(lua, &tables, "table", name)?;
    }
    host.raw_set("table", tables)?;
    host.raw_set("plain", lua.create_function(plain)?)?;
    Ok(host)
}

/// Lifts the limit of a state's memory while it exists.
struct LiftedMemoryLimit<'a> {
    lua: &'a Lua,
    limit: usize,
}

impl LiftedMemoryLimit<'_> {
    fn new(lua: &Lua) -> LiftedMemoryLimit<'_> {
        let limit = lua.set_memory_limit(0).unwrap_or(0);
        LiftedMemoryLimit { lua, limit }
    }
}

impl Drop for LiftedMemoryLimit<'_> {
    fn drop(&mut self) {
        // Fails only for a state with another allocator.
        let _ = self.lua.set_memory_limit(self.limit);
    }
}

/// Creates `redis.call`, which raises error replies, or `redis.pcall`, which returns them.
fn call_function(lua: &Lua, reply_bytes_max: usize, raises: bool) -> mlua::Result<Function> {
    let mut reply = ReplyBuffer::default();
    reply.set_bytes_max(reply_bytes_max);
    let buffers = RefCell::new((ArgsBuffer::default(), reply));
    lua.create_function(move |lua, values: MultiValue| {
        let _unlimited = LiftedMemoryLimit::new(lua);
        let (args, reply) = &mut *buffers.borrow_mut();
        args.clear();
        reply.rewind(0);
        let outcome = read_arguments(values.iter(), args).and_then(|()| {
            let called = with_host(|host| host.call(args.args(), reply));
            called.unwrap_or_else(|| {
                let text = "ERR redis.call/pcall can only be called inside a script invocation";
                Err(text.into())
            })
        });
        if reply.is_cut() {
            with_host(|host| host.note_out_of_memory());
        }
        if with_host(|host| host.is_aborted()) == Some(true) {
            return Err(aborted());
        }
        let error = match &outcome {
            Ok(()) => reply.as_slice().strip_prefix(b"-"),
            Err(text) => Some(text.as_slice()),
        };
        let answer = match error {
            None => value_of(lua, reply.as_slice()).map(|(value, _)| value),
            Some(text) => {
                let text = text.strip_suffix(b"\r\n").unwrap_or(text);
                if raises {
                    return Err(mlua::Error::external(RaisedError::CommandReply(
                        text.to_vec(),
                    )));
                }
                error_table(lua, text).map(Value::Table)
            }
        };
        answer.inspect_err(|_| {
            with_host(|host| host.note_out_of_memory());
        })
    })
}
