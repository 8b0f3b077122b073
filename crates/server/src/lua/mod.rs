//! Lua for scripts: states, their libraries, and conversion between Lua values and RESP.
//!
//! ```text
//!   commands::scripts ── source, keys, arguments ──▶ ScriptEngine ── runs ──▶ script
//!          ▲                                                                   │ redis.call
//!          └──────────── ScriptHost: executes a command, checks the time ◀─────┘
//! ```
//!
//! Each thread that executes requests has one [`engine::ScriptEngine`] with one Lua state and the functions that it has
//! compiled. The module knows neither commands nor the store: a script's effects go through [`host::ScriptHost`].
//!
//! * [`engine`]: a Lua state, compiled scripts, and the call of a script. `prelude.lua` builds the globals.
//! * [`compiled`]: compiled scripts and functions. [`functions`]: libraries of functions that a state has loaded.
//! * [`host`]: the commands that a script calls. [`library`]: how functions of the libraries are registered.
//! * [`convert`]: RESP to Lua values and back.
//! * [`strings`] and [`pattern`]: functions of `string` whose time is bounded. [`random`]: `math.random` of Redis.
//! * [`json`] and its settings [`json_config`], [`msgpack`], [`structs`], [`bits`], [`redis`]: the libraries cjson,
//!   cmsgpack, struct, bit and redis.
//!
//! # Invariants
//! LUA-1  No script changes what a later script sees: globals and libraries refuse writes, and each script has its own
//!     `KEYS`, `ARGV` and settings of `cjson`. Only the sequence of `math.random` continues, and local variables that
//!     the functions of a library share. Those belong to one state, and are lost when libraries change.
//! LUA-2  A script that must end (`ScriptHost::is_aborted`) does not catch that error.
//! LUA-3  Between two checks of the time, a script runs at most [`engine::INSTRUCTIONS_PER_CHECK`] instructions, and each of
//!     these takes time proportional to the state's memory at most.

pub(crate) mod bits;
pub(crate) mod compiled;
pub(crate) mod convert;
pub(crate) mod engine;
pub(crate) mod functions;
pub(crate) mod host;
mod json;
mod json_config;
mod library;
mod msgpack;
mod pattern;
mod random;
pub(crate) mod redis;
pub(crate) mod shebang;
mod strings;
mod structs;
