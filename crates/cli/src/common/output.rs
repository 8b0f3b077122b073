//! Standard output and standard error.
//!
//! The standard library's print macros panic if the write fails. The macros here have the same names and replace them
//! in the whole binary, because this module comes first in `main.rs`.
//!
//! | macro | destination | if the write fails |
//! |---|---|---|
//! | `print!`, `println!` | standard output | ends the program, by SIGPIPE or with exit code 1 |
//! | `eprint!`, `eprintln!` | standard error | the failure is ignored: there is nowhere to report it |
//! | `announce!` | standard output, from a server | a warning is logged and the server continues |
//!
//! The program ends by unwinding to `main`, so destructors remove temporary files and close stores.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

use crate::common::{Failure, json_lines};

macro_rules! print {
    ($($arg:tt)*) => { $crate::common::output::write_or_end(format_args!($($arg)*)) };
}

macro_rules! println {
    ($($arg:tt)*) => { $crate::common::output::write_or_end(format_args!("{}\n", format_args!($($arg)*))) };
}

macro_rules! eprint {
    ($($arg:tt)*) => { $crate::common::output::write_message(format_args!($($arg)*)) };
}

macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::common::output::write_message(format_args!("{}\n", format_args!($($arg)*))) };
}

macro_rules! announce {
    ($($arg:tt)*) => { $crate::common::output::announce(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Panic payload of the unwinding to `main`: the error of the failed write.
struct OutputClosed(io::Error);

/// Writes to standard output.
fn write(text: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}

/// Writes to standard output. If the write fails, unwinds to [`catch`].
pub(crate) fn write_or_end(text: Arguments<'_>) {
    if let Err(error) = write(text) {
        resume_unwind(Box::new(OutputClosed(error)));
    }
}

/// Writes bytes to standard output. If the write fails, unwinds to [`catch`].
pub(crate) fn write_bytes_or_end(parts: &[&[u8]]) {
    let mut out = io::stdout().lock();
    let written = parts.iter().try_for_each(|part| out.write_all(part));
    if let Err(error) = written.and_then(|()| out.flush()) {
        resume_unwind(Box::new(OutputClosed(error)));
    }
}

/// Writes to standard error, as a JSON object if the server writes those. Ignores a failed write.
pub(crate) fn write_message(text: Arguments<'_>) {
    match json_lines::of(text) {
        Some(line) => io::stderr().write_all(line.as_bytes()).ok(),
        None => io::stderr().write_fmt(text).ok(),
    };
}

/// Writes a line of a server's banner to standard output, as a JSON object if the server writes those. If the write
/// fails, logs a warning.
pub(crate) fn announce(text: Arguments<'_>) {
    let written = match json_lines::of(text) {
        Some(line) => write(format_args!("{line}")),
        None => write(text),
    };
    if let Err(error) = written {
        tracing::warn!(%error, "standard output cannot be written");
    }
}

/// Runs `verb`. Returns [`Failure::Output`] if a write to standard output failed.
pub(crate) fn catch(
    verb: impl FnOnce() -> Result<(), Failure> + UnwindSafe,
) -> Result<(), Failure> {
    catch_unwind(verb).unwrap_or_else(|cause| match cause.downcast::<OutputClosed>() {
        Ok(unwritten) => Err(Failure::Output(unwritten.0)),
        Err(panic) => resume_unwind(panic),
    })
}

/// Reports that standard output cannot be written. If its reader closed the pipe, the process instead dies by
/// SIGPIPE, as other Unix programs do.
pub(crate) fn report_output_error(error: &io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        emulate_default_handler(SIGPIPE).ok();
    }
    eprintln!("error: cannot write to standard output: {error}");
}
