//! Categories of commands, for ACL rules and `COMMAND`.

use std::sync::OnceLock;

use crate::commands::context::command_row::{Command, flag};
use crate::commands::context::command_table::CommandTable;
use crate::state::users::CommandSet;

/// All categories in Redis's order. Some are of data types that this server does not have, and are empty.
pub(in crate::commands) const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Whether `command` is of `category`: its flags imply the category, or its row names it.
fn is_in(command: &Command, category: &str) -> bool {
    let is_implied = match category {
        "read" => command.is(flag::READONLY) && !command.is(flag::SCRIPT),
        "write" => command.is(flag::WRITE),
        "pubsub" => command.is(flag::PUBSUB),
        "admin" | "dangerous" => command.is(flag::ADMIN),
        "fast" => command.is(flag::FAST),
        "slow" => !command.is(flag::FAST),
        _ => false,
    };
    let mut named = command.acl.split_whitespace();
    is_implied || named.any(|own| own.strip_prefix('@') == Some(category))
}

/// The categories of `command`.
pub(in crate::commands) fn categories(command: &Command) -> impl Iterator<Item = &'static str> {
    CATEGORIES
        .into_iter()
        .filter(move |category| is_in(command, category))
}

/// The position of the category `name`, in either case, in [`CATEGORIES`].
pub(super) fn position(name: &[u8]) -> Option<usize> {
    CATEGORIES
        .iter()
        .position(|category| category.as_bytes().eq_ignore_ascii_case(name))
}

/// The commands of a category.
pub(super) struct CategoryCommands {
    /// Commands and subcommands of the category.
    pub(super) members: CommandSet,
    /// What a rule about the category changes: the members, and all subcommands of those that are containers.
    pub(super) affected: CommandSet,
}

/// Returns the commands of each category in the order of [`CATEGORIES`]. `table`: the only table of the program.
pub(super) fn of_table(table: &'static CommandTable) -> &'static [CategoryCommands] {
    static ALL: OnceLock<Vec<CategoryCommands>> = OnceLock::new();
    ALL.get_or_init(|| {
        let of = |category| {
            let (mut members, mut affected) = (CommandSet::EMPTY, CommandSet::EMPTY);
            for command in table.every() {
                if is_in(command, category) {
                    members.set(command.number, true);
                    affected.set(command.number, true);
                    for subcommand in command.subcommands {
                        affected.set(subcommand.number, true);
                    }
                }
            }
            CategoryCommands { members, affected }
        };
        CATEGORIES.into_iter().map(of).collect()
    })
}
