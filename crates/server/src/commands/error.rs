//! Why a command failed, and the texts of error replies that several commands share.

use farbank_store::Error;

use crate::state::shared::ServerShared;

pub(super) const SYNTAX: CommandError = CommandError::Fixed("ERR syntax error");
pub(super) const NOT_INTEGER: CommandError =
    CommandError::Fixed("ERR value is not an integer or out of range");
pub(super) const WRONG_TYPE: CommandError =
    CommandError::Fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(super) const NOT_IN_GROUP: CommandError =
    CommandError::Fixed("ERR Command not allowed inside a transaction");
pub(super) const TOO_LONG: CommandError =
    CommandError::Fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// Why a command failed. The text's first word is the error's code.
#[derive(Debug)]
pub(super) enum CommandError {
    /// A fixed text.
    Fixed(&'static str),
    /// A text with details of the request.
    Detailed(Vec<u8>),
    /// An error of the store.
    Store(Error),
    /// The request is long and this thread does not execute long requests. It has changed nothing; the thread of long
    /// requests must execute it.
    Long,
}

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        CommandError::Store(error)
    }
}

impl CommandError {
    /// Returns the error for a wrong number of arguments of the command `name`.
    pub(super) fn arity(name: &str) -> CommandError {
        CommandError::Detailed(
            format!("ERR wrong number of arguments for '{name}' command").into_bytes(),
        )
    }

    /// The text of the error reply, without `-` and the line's end.
    pub(super) fn text(&self, shared: &ServerShared<'_>) -> Vec<u8> {
        match self {
            CommandError::Fixed(text) => text.as_bytes().to_vec(),
            CommandError::Detailed(text) => text.clone(),
            CommandError::Store(Error::Full) => full(shared.store.pool_bytes()),
            CommandError::Store(error @ Error::CannotGrow(_)) => {
                format!("OOM {error}").into_bytes()
            }
            CommandError::Store(Error::Poisoned(p)) => misconf(p.reason()),
            CommandError::Store(error) => format!("ERR {error}").into_bytes(),
            CommandError::Long => b"ERR the request takes too long here".to_vec(),
        }
    }
}

/// The error of a full pool. Clients recognise it by its first word.
fn full(pool_bytes: u64) -> Vec<u8> {
    format!(
        "OOM the pool has no room for this write: it has {pool_bytes} bytes. Delete keys, or start the server with a \
         larger --max-size"
    )
    .into_bytes()
}

/// The error of a write after the medium has failed.
pub(super) fn misconf(reason: &str) -> Vec<u8> {
    format!("MISCONF Errors writing to the pool: {reason}").into_bytes()
}
