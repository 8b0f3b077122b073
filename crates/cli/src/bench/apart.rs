//! Runs the same command in a child process, for plug-in code that may end its process.
//!
//! The parent starts this program again with the same arguments. The child's standard input is a socket connected to
//! the parent. The child writes a byte to it just before it exits normally. If the child ends without that byte, the
//! plug-in ended it, whatever its exit code is.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::SIGINT;

use crate::common::Failure;

/// Environment variable that marks the child process.
const CHILD: &str = "FARBANK_APART";
/// How often the parent checks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a child may run after an interrupt.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `run` in a child process. Errors name `what` if it ends the child.
pub(super) fn apart(what: &str, run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if std::env::var_os(CHILD).is_none() {
        return parent(what);
    }
    // Best effort: the child gets SIGTERM if its parent is killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    let result = run();
    // The write fails if the parent has ended.
    let _ = rustix::io::write(std::io::stdin(), b"e");
    result
}

fn parent(what: &str) -> Result<(), Failure> {
    let failed = |doing, error| Failure::failed(format!("cannot {doing} for {what}: {error}"));
    let start = |error| failed("start a process", error);
    // The terminal sends SIGINT to the child too, and the child then shuts down.
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))
        .map_err(|e| failed("wait for signals", e))?;
    let (mut ours, theirs) = UnixStream::pair().map_err(start)?;
    ours.shutdown(Shutdown::Write).map_err(start)?; // the child's standard input is at end of file
    ours.set_read_timeout(Some(LOOK_EVERY)).map_err(start)?;
    let program = std::env::current_exe().map_err(start)?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(CHILD, "1")
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .map_err(start)?;
    let (mut since, mut late) = (None, false);
    let has_ended_itself = loop {
        match ours.read(&mut [0]) {
            Ok(read) => break read > 0,
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => {}
            Err(e) => return Err(failed("wait", e)),
        }
        // A process started by the plug-in may keep the socket open.
        if matches!(child.try_wait(), Ok(Some(_))) {
            break false;
        }
        if interrupted.load(Ordering::Relaxed) {
            let since = since.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                late = true;
                child.kill().map_err(|e| failed("end the process", e))?;
            }
        }
    };
    let status = child.wait().map_err(|e| failed("wait", e))?;
    match (has_ended_itself, status.code()) {
        (true, Some(0)) => Ok(()),
        (true, Some(code)) => Err(Failure::Told(code)),
        _ if late => Err(Failure::failed(format!(
            "{what} did not return within {} s of the interrupt; its process was killed",
            GRACE.as_secs()
        ))),
        _ => Err(Failure::Failed {
            error: format!("{what} ended the process that it ran in: {}", how(status)),
            hint: Some("gdb shows where, after \"set follow-fork-mode child\"".into()),
        }),
    }
}

/// Describes how a process ended.
fn how(status: ExitStatus) -> String {
    const NAMES: [(i32, &str); 7] = [
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
    ];
    match (status.signal(), status.code()) {
        (Some(signal), _) => match NAMES.iter().find(|(number, _)| *number == signal) {
            Some((_, name)) => format!("signal {signal}, {name}"),
            None => format!("signal {signal}"),
        },
        (None, code) => format!("exit with code {}", code.unwrap_or_default()),
    }
}
