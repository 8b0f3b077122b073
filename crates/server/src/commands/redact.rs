//! Arguments that logs must not show.

use super::context::command_row::Command;
use super::text::is_option;
use crate::protocol::resp::Args;

const REDACTED: &[u8] = b"(redacted)";

/// Parameters of CONFIG SET whose values are secrets.
const SECRETS: [&str; 4] = [
    "requirepass",
    "masterauth",
    "masteruser",
    "tls-key-file-pass",
];

/// The argument at `at` of a request as logs show it: passwords are replaced, as in Redis.
pub(super) fn redacted<'a>(command: &Command, args: Args<'a>, at: usize) -> &'a [u8] {
    match is_secret(command, args, at) {
        true => REDACTED,
        false => args.at(at),
    }
}

fn is_secret(command: &Command, args: Args<'_>, at: usize) -> bool {
    match command.name {
        "auth" => at > 0,
        // HELLO [version [AUTH user password] ...]
        "hello" => (2..at).any(|option| at - option <= 2 && is_option(args.at(option), "auth")),
        "acl|setuser" => at > 1,
        // MIGRATE host port key db timeout [AUTH password|AUTH2 user password] ...
        "migrate" => {
            let follows = |distance: usize, name: &str| {
                at.checked_sub(distance)
                    .is_some_and(|option| option > 5 && is_option(args.at(option), name))
            };
            follows(1, "auth") || follows(1, "auth2") || follows(2, "auth2")
        }
        "config|set" => {
            at >= 3 && at % 2 == 1 && SECRETS.iter().any(|name| is_option(args.at(at - 1), name))
        }
        _ => false,
    }
}
