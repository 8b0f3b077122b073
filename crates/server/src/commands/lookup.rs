//! From a request's first words to its command, or to the error reply for an unknown command.

use super::context::command_row::Command;
use super::error::CommandError;
use super::text::quote;
use crate::protocol::resp::Args;

/// Most bytes of a client's text that an error quotes.
const QUOTE_BYTES: usize = 128;

/// Returns the command or subcommand of `args`, and checks its arity.
#[inline]
pub(super) fn resolve(
    command: Option<&'static Command>,
    args: Args<'_>,
) -> Result<&'static Command, CommandError> {
    let command = lookup(command, args)?;
    if command.takes(args.len()) {
        Ok(command)
    } else {
        Err(CommandError::arity(command.name))
    }
}

/// Returns the command or subcommand of `args`, without a check of its arity.
#[inline]
pub(super) fn lookup(
    command: Option<&'static Command>,
    args: Args<'_>,
) -> Result<&'static Command, CommandError> {
    let command = command.ok_or_else(|| unknown(args))?;
    match args.get(1) {
        Some(name) if !command.subcommands.is_empty() => command
            .subcommand(name)
            .ok_or_else(|| unknown_subcommand(command, name)),
        _ => Ok(command),
    }
}

#[cold]
fn unknown(args: Args<'_>) -> CommandError {
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(quote(args.at(0), QUOTE_BYTES));
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for arg in args.from(1) {
        let used = text.len() - start;
        if used >= QUOTE_BYTES {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(quote(arg, QUOTE_BYTES - used));
        text.extend_from_slice(b"' ");
    }
    CommandError::Detailed(text)
}

fn unknown_subcommand(container: &Command, name: &[u8]) -> CommandError {
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend_from_slice(quote(name, QUOTE_BYTES));
    let container = container.name.to_ascii_uppercase();
    text.extend_from_slice(format!("'. Try {container} HELP.").as_bytes());
    CommandError::Detailed(text)
}
