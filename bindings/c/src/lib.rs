//! The judge for contest engines in C++ that implement the contest's header.
//!
//! ```text
//!   libengine.a            shim.cpp                 this library                farbank-bench
//!   class NvmEngine ──▶ table of functions ──▶ farbank_judge_main ──▶ Engine ──▶ judge
//!                                                      │
//!                                                      └ child processes, killed ──▶ check all keys
//! ```
//!
//! * `engine` adapts the table of functions to the judge's interface.
//! * `cli` contains the arguments and the report, `kill` the phase that kills.
//!
//! The judge cannot count such an engine's accesses to far memory, and cannot cut the power at every fence, because the
//! engine maps its own file. It can kill the engine. If the engine is linked with our libpmem (`pmem/`), a kill loses
//! all bytes that were not drained.

mod cli;
mod engine;
mod kill;

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;

/// Callback that receives the value found by a get: `farbank_sink`.
pub type Sink = unsafe extern "C" fn(to: *mut c_void, value: *const c_char, bytes: usize);

type Open = unsafe extern "C" fn(path: *const c_char) -> *mut c_void;
type Close = unsafe extern "C" fn(engine: *mut c_void);
type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *const c_char, Sink, *mut c_void) -> c_int;

/// An engine as a table of functions: `struct farbank_engine` of `farbank_judge.h`. Any function may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TableInC {
    open: Option<Open>,
    close: Option<Close>,
    set: Option<Set>,
    get: Option<Get>,
}

/// An engine's table in which no function is null.
#[derive(Clone, Copy, Debug)]
struct Table {
    open: Open,
    close: Close,
    set: Set,
    get: Get,
}

impl TableInC {
    fn complete(self) -> Option<Table> {
        Some(Table {
            open: self.open?,
            close: self.close?,
            set: self.set?,
            get: self.get?,
        })
    }
}

/// Runs the judge with the given command line. Returns the exit code for `main`.
///
/// # Safety
/// `argv` points to `argc` strings that end with a zero byte. `engine` points to a table whose functions behave as
/// `farbank_judge.h` specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_judge_main(
    argc: c_int,
    argv: *const *const c_char,
    engine: *const TableInC,
) -> c_int {
    let argument = |n: usize| {
        // SAFETY: the caller guarantees `argc` strings, and `n` is below `argc`.
        let text = unsafe { CStr::from_ptr(*argv.add(n)) };
        OsString::from_vec(text.to_bytes().to_vec())
    };
    let arguments = (0..argc.max(0) as usize).map(argument).collect();
    // SAFETY: the caller guarantees a valid table.
    let table = unsafe { *engine };
    let Some(table) = table.complete() else {
        eprintln!(
            "error: the engine's table has a null function; open, close, set and get are needed"
        );
        return 2;
    };
    // The panic's message has already been printed.
    std::panic::catch_unwind(|| cli::main(arguments, table)).unwrap_or(101)
}
