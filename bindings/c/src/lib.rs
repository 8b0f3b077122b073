//! The judge for engines that were written for the contest: in C++, against its header.
//!
//! ```text
//!   libengine.a            shim.cpp                 this library                farbank-bench
//!   class NvmEngine ──▶ table of functions ──▶ farbank_judge_main ──▶ Engine ──▶ judge
//!                                                      │
//!                                                      └ processes of its own, killed ──▶ what is left?
//! ```
//!
//! * `engine` is an engine behind the table, as the judge sees engines.
//! * `cli` are the arguments and the report, `kill` the phase that kills.
//!
//! What such an engine asks of far memory is not counted, and its power cannot be cut at every fence: it maps its own
//! file. It can be killed; and linked with our libpmem (`pmem/`), what it has not drained is lost then.

mod cli;
mod engine;
mod kill;

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;

/// Takes the value that a get has found: `farbank_sink`.
pub type Sink = unsafe extern "C" fn(to: *mut c_void, value: *const c_char, bytes: usize);

type Open = unsafe extern "C" fn(path: *const c_char) -> *mut c_void;
type Close = unsafe extern "C" fn(engine: *mut c_void);
type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *const c_char, Sink, *mut c_void) -> c_int;

/// An engine as a table of functions: `struct farbank_engine` of `farbank_judge.h`, where they are described. Any may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TableInC {
    open: Option<Open>,
    close: Option<Close>,
    set: Option<Set>,
    get: Option<Get>,
}

/// The same, none of which is null.
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

/// Judges the engine as the arguments say, and returns what `main` should.
///
/// # Safety
/// `argv` holds `argc` strings that end with a zero. `engine` points to a table whose functions keep to
/// `farbank_judge.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_judge_main(
    argc: c_int,
    argv: *const *const c_char,
    engine: *const TableInC,
) -> c_int {
    let argument = |n: usize| {
        // SAFETY: the caller has so many strings there.
        let text = unsafe { CStr::from_ptr(*argv.add(n)) };
        OsString::from_vec(text.to_bytes().to_vec())
    };
    let arguments = (0..argc.max(0) as usize).map(argument).collect();
    // SAFETY: the caller has a table there.
    let table = unsafe { *engine };
    let Some(table) = table.complete() else {
        eprintln!(
            "error: the engine's table has a null function; open, close, set and get are needed"
        );
        return 2;
    };
    // A panic has told what it is on its way here.
    std::panic::catch_unwind(|| cli::main(arguments, table)).unwrap_or(101)
}
