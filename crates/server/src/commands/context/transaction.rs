//! State of a transaction: requests queued by MULTI, and watched keys. The commands are in `commands::transactions`.

use std::collections::HashMap;
use std::ops::Range;

use farbank_store::Key;

use super::command_row::{Command, WriteNeed, flag};
use crate::commands::text;
use crate::protocol::resp::Args;
use crate::protocol::resp::number::parse_u64;
use crate::protocol::resp::parse::QueuedRequests;

/// Requests queued by MULTI.
#[derive(Default)]
pub(in crate::commands) struct TransactionQueue {
    pub(in crate::commands) requests: QueuedRequests,
    pub(in crate::commands) commands: Vec<&'static Command>,
    /// A request was refused: EXEC will fail.
    pub(in crate::commands) broken: bool,
}

impl TransactionQueue {
    /// Number of requests.
    pub(in crate::commands) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Number of arguments of all requests, including command names.
    pub(in crate::commands) fn args(&self) -> usize {
        self.requests.arg_count()
    }

    /// Whether a queued command has one of these flags.
    pub(in crate::commands) fn has(&self, flags: u32) -> bool {
        self.commands.iter().any(|command| command.is(flags))
    }

    /// Bytes of memory that the queue uses.
    pub(in crate::commands) fn bytes(&self) -> usize {
        self.requests.bytes() + self.commands.len() * size_of::<&Command>()
    }

    /// The space that EXEC needs in the store, if a queued command writes.
    pub(in crate::commands) fn needs_room(&self) -> Option<WriteNeed> {
        let writes = self.has(flag::WRITE | flag::SCRIPT);
        writes.then(|| WriteNeed {
            bytes: self.requests.bytes(),
            deletes: !self.has(flag::DENYOOM | flag::SCRIPT),
        })
    }

    /// The longest range of commands from `at` that can be in one group.
    pub(in crate::commands) fn groupable(&self, at: usize) -> Range<usize> {
        let in_group = |c: &&&Command| (c.has_keys() || c.is(flag::GROUPED)) && !c.is(flag::ALONE);
        at..at + self.commands[at..].iter().take_while(in_group).count()
    }

    /// Whether all commands can be in one group.
    pub(in crate::commands) fn is_one_group(&self) -> bool {
        self.groupable(0).len() == self.len()
    }

    /// Whether a command in `range` runs a script.
    pub(in crate::commands) fn has_script(&self, range: Range<usize>) -> bool {
        self.commands[range].iter().any(|c| c.is(flag::SCRIPT))
    }

    /// Keys of the commands in `range`. `db`: the database of the first command.
    pub(in crate::commands) fn keys(&self, range: Range<usize>, mut db: u8) -> Vec<Key<'_>> {
        let mut keys = Vec::new();
        for at in range {
            let (command, args) = (self.commands[at], self.requests.args(at));
            if command.name == "select" {
                let index = parse_u64(args.at(1)).and_then(|n| u8::try_from(n).ok());
                db = index
                    .filter(|&n| usize::from(n) < farbank_store::DATABASES)
                    .unwrap_or(db);
            }
            for position in command.key_positions(args) {
                keys.push(Key {
                    db,
                    bytes: args.at(position),
                });
            }
            keys.extend(key_elsewhere(command, args));
        }
        keys
    }
}

/// The key of a command in the database that its arguments name.
fn key_elsewhere<'a>(command: &Command, args: Args<'a>) -> Option<Key<'a>> {
    let (key, db) = match command.name {
        "copy" => {
            let mut options = 3..args.len();
            (
                2,
                options.rfind(|&at| text::is_option(args.at(at), "db"))? + 1,
            )
        }
        "move" => (1, 2),
        _ => return None,
    };
    let db = text::database(args.get(db)?).ok()?;
    let bytes = args.at(key);
    Some(Key { db, bytes })
}

/// A key's state when it was first watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::commands) struct WatchedState {
    /// Its version; 0 if it was absent.
    pub(in crate::commands) version: u64,
    /// How often SWAPDB had moved its database.
    pub(in crate::commands) swaps: u64,
}

impl WatchedState {
    /// Whether EXEC fails, if the key has this version now and its database was moved so often. Like Redis, SWAPDB touches a
    /// key that exists, also if a second SWAPDB brings it back.
    pub(in crate::commands) fn is_touched(&self, version: u64, swaps: u64) -> bool {
        self.version != version || version != 0 && self.swaps != swaps
    }
}

/// Watched keys, with their states when they were first watched.
#[derive(Default)]
pub(in crate::commands) struct WatchedKeys {
    states: HashMap<(u8, Vec<u8>), WatchedState>,
    /// Bytes of all key names.
    name_bytes: usize,
}

impl WatchedKeys {
    /// Number of watched keys.
    pub(in crate::commands) fn len(&self) -> usize {
        self.states.len()
    }

    /// Bytes of memory that the watched keys use.
    pub(in crate::commands) fn bytes(&self) -> usize {
        /// Bytes that the hash table uses for a key besides its name, with the allocator's overhead.
        const ENTRY_BYTES: usize = 2 * size_of::<((u8, Vec<u8>), WatchedState)>();
        self.name_bytes + self.states.len() * ENTRY_BYTES
    }

    /// Whether the key `name`, with its database, is watched.
    pub(in crate::commands) fn contains(&self, name: &(u8, Vec<u8>)) -> bool {
        self.states.contains_key(name)
    }

    /// Adds a key, with its database, that is not watched.
    pub(in crate::commands) fn insert(&mut self, name: (u8, Vec<u8>), state: WatchedState) {
        self.name_bytes += name.1.len();
        self.states.insert(name, state);
    }

    /// Removes all watched keys.
    pub(in crate::commands) fn clear(&mut self) {
        *self = WatchedKeys::default();
    }

    /// The keys and their states.
    pub(in crate::commands) fn iter(&self) -> impl Iterator<Item = (Key<'_>, WatchedState)> {
        self.states.iter().map(|((db, bytes), state)| {
            let key = Key { db: *db, bytes };
            (key, *state)
        })
    }
}
