//! Standard output and standard error.
//!
//! The standard library's macros panic when nothing can be written. Those of the same names here take their place in the whole
//! binary, since this module comes first in `main.rs`.
//!
//! | macro | where to | if that fails |
//! |---|---|---|
//! | `print!`, `println!` | standard output | the program ends: by SIGPIPE if the reader has gone, else with an error and status 1 |
//! | `eprint!`, `eprintln!` | standard error | it is ignored: there is no place left to say so |
//! | `announce!` | standard output, from a server | a warning in the log; the server goes on |
//!
//! A program ends by unwinding to `main`, so that temporary files are removed and stores are let go.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

use crate::Failure;

macro_rules! print {
    ($($arg:tt)*) => { $crate::output::write_or_end(format_args!($($arg)*)) };
}

macro_rules! println {
    ($($arg:tt)*) => { $crate::output::write_or_end(format_args!("{}\n", format_args!($($arg)*))) };
}

macro_rules! eprint {
    ($($arg:tt)*) => { $crate::output::write_message(format_args!($($arg)*)) };
}

macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::output::write_message(format_args!("{}\n", format_args!($($arg)*))) };
}

macro_rules! announce {
    ($($arg:tt)*) => { $crate::output::announce(format_args!("{}\n", format_args!($($arg)*))) };
}

/// What an unwinding to `main` carries.
struct OutputClosed(io::Error);

fn write(text: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}

/// Writes to standard output, or ends the program.
pub(crate) fn write_or_end(text: Arguments<'_>) {
    if let Err(error) = write(text) {
        resume_unwind(Box::new(OutputClosed(error)));
    }
}

/// Writes to standard error, if that can be.
pub(crate) fn write_message(text: Arguments<'_>) {
    io::stderr().write_fmt(text).ok();
}

/// Writes what a server says at its start.
pub(crate) fn announce(text: Arguments<'_>) {
    if let Err(error) = write(text) {
        tracing::warn!(%error, "standard output cannot be written");
    }
}

/// Runs `verb`; an end for lack of output is a failure of it.
pub(crate) fn catch(
    verb: impl FnOnce() -> Result<(), Failure> + UnwindSafe,
) -> Result<(), Failure> {
    catch_unwind(verb).unwrap_or_else(|cause| match cause.downcast::<OutputClosed>() {
        Ok(unwritten) => Err(Failure::Output(unwritten.0)),
        Err(panic) => resume_unwind(panic),
    })
}

/// Says that standard output could not be written. If that is because its reader has gone, the process dies as
/// others do then: by SIGPIPE.
pub(crate) fn tell_unwritten(error: &io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        emulate_default_handler(SIGPIPE).ok();
    }
    eprintln!("error: cannot write to standard output: {error}");
}
