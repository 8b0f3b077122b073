//! Which keys a request accesses, and how: for COMMAND GETKEYSANDFLAGS and for the permissions of users.

use super::context::command_row::Command;
use super::text;
use crate::protocol::resp::Args;
use crate::protocol::resp::number::parse_u64;
use crate::state::users::KeyPermission;

/// How a request of the command accesses each of its keys: one word list for each key specification. The last one
/// counts for all further keys.
pub(super) fn accesses(command: &Command) -> Vec<&'static str> {
    command.access.split('|').map(str::trim).collect()
}

/// The positions of a request's keys, with the words that say how it accesses them.
pub(super) fn keys_with_access(
    command: &Command,
    request: Args<'_>,
) -> impl Iterator<Item = (usize, &'static str)> + use<> {
    let accesses = match command.name {
        "set" => vec![set_access(request)],
        "bitfield" => vec![bitfield_access(request)],
        "sort" => vec!["RO access", "OW update"],
        // As in Redis, the specification finds no keys then.
        _ if command.counts_keys() && parse_u64(request.at(2)).is_none() => vec![""],
        _ => accesses(command),
    };
    let positions = command.key_positions(request).enumerate();
    positions.map(move |(index, at)| {
        let words = accesses.get(index).or(accesses.last());
        (at, words.map_or("", |words| words))
    })
}

/// The access that `words` describe.
pub(super) fn access_of(words: &str) -> KeyPermission {
    let has = |word| words.split(' ').any(|own| own == word);
    KeyPermission {
        reads: has("access"),
        writes: has("insert") || has("delete") || has("update"),
    }
}

/// How a SET accesses its key: whether it reads depends on its options.
fn set_access(request: Args<'_>) -> &'static str {
    let returns_old = request.from(3).any(|option| text::is_option(option, "get"));
    if returns_old {
        "RW access update"
    } else {
        "OW update"
    }
}

/// How a BITFIELD accesses its key: with GET and OVERFLOW only, it reads.
fn bitfield_access(request: Args<'_>) -> &'static str {
    let mut at = 2;
    while let Some(operation) = request.get(at) {
        let left = request.len() - at - 1;
        match text::option(operation).as_slice() {
            b"get" if left >= 2 => at += 3,
            b"overflow" if left >= 1 => at += 2,
            _ => return "RW access update",
        }
    }
    "RO access"
}
