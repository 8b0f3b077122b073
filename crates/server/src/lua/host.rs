//! What a running script can do besides computing.

use scoped_tls_hkt::scoped_thread_local;

use crate::buffers::reply::ReplyBuffer;
use crate::protocol::resp::{Args, RespVersion};

/// Level of a message that a script writes to the server's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogLevel {
    Debug,
    Verbose,
    Notice,
    Warning,
}

impl LogLevel {
    /// Writes a message of a script to the server's log.
    pub(crate) fn write(self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        match self {
            LogLevel::Debug => tracing::trace!("script: {text}"),
            LogLevel::Verbose => tracing::debug!("script: {text}"),
            LogLevel::Notice => tracing::info!("script: {text}"),
            LogLevel::Warning => tracing::warn!("script: {text}"),
        }
    }
}

/// Protocol versions that decide how a script's result is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyVersions {
    /// The version of the client's connection.
    pub(crate) client: RespVersion,
    /// The version that the script has chosen with `redis.setresp`.
    pub(crate) script: RespVersion,
}

/// Executes the commands of a running script and decides how long it may run.
pub(crate) trait ScriptHost {
    /// Executes a command and appends its reply to `reply`. An error reply is an `Ok`, too.
    ///
    /// # Errors
    /// The text of an error for which Redis does not execute the command.
    fn call(&mut self, args: Args<'_>, reply: &mut ReplyBuffer) -> Result<(), Vec<u8>>;

    /// Sets the protocol version in which commands reply to the script.
    fn set_resp(&mut self, resp: RespVersion);

    /// The versions by which the script's result is written.
    fn versions(&self) -> ReplyVersions;

    /// Decides whether the script must end now. Reads the clock.
    fn check_time(&mut self);

    /// Whether the script must end.
    fn is_aborted(&self) -> bool;

    /// Records that the Lua state has reached its memory limit. The script must end.
    fn note_out_of_memory(&mut self);

    /// Writes a message to the server's log.
    fn log(&mut self, level: LogLevel, text: &[u8]);

    /// Whether the client's user may execute the request `args`; `None` if the command does not exist.
    fn may_execute(&self, args: Args<'_>) -> Option<bool>;
}

scoped_thread_local!(
    /// The host of the script that this thread is running.
    pub(super) static mut HOST: for<'a> &'a mut (dyn ScriptHost + 'a)
);

/// Calls `f` with the host of the running script; returns `None` if none is running.
pub(super) fn with_host<R>(f: impl FnOnce(&mut dyn ScriptHost) -> R) -> Option<R> {
    HOST.is_set().then(|| HOST.with(|host| f(host)))
}

/// Checks the time of the running script. Returns whether it must end.
pub(super) fn checked() -> bool {
    let checked = with_host(|host| {
        host.check_time();
        host.is_aborted()
    });
    checked == Some(true)
}

/// The error of a function that ends because the script must end.
pub(super) fn aborted() -> mlua::Error {
    mlua::Error::runtime("the script was aborted")
}
