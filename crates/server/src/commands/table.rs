//! Table of all commands, used for dispatch and for the replies of `COMMAND`.
//!
//! Look-up folds a name to lower case in a 16-byte integer and probes a hash table that is built at compile time.

use super::{
    CommandContext, CommandError, client, command, config, connection, counters, expiry, info,
    keys, server,
};
use super::{strings, transactions};
use crate::protocol::resp::Args;

/// A command's function: appends its reply, or returns an error.
pub(crate) type CommandFn = fn(&mut CommandContext<'_>, Args<'_>) -> Result<(), CommandError>;

/// Positions of a command's keys among its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyArgs {
    /// Position of the first key; 0 if there are none.
    pub(crate) first: i64,
    /// Position of the last key; negative counts from the end.
    pub(crate) last: i64,
    /// Distance from one key to the next.
    pub(crate) step: i64,
}

const NONE: KeyArgs = KeyArgs {
    first: 0,
    last: 0,
    step: 0,
};
const ONE: KeyArgs = KeyArgs {
    first: 1,
    last: 1,
    step: 1,
};
const ALL: KeyArgs = KeyArgs {
    first: 1,
    last: -1,
    step: 1,
};
const PAIRS: KeyArgs = KeyArgs {
    first: 1,
    last: -1,
    step: 2,
};

impl KeyArgs {
    /// Positions of the keys among `count` arguments.
    pub(crate) fn positions(self, count: usize) -> impl Iterator<Item = usize> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let end = match self {
            KeyArgs { first: 0, .. } => 0,
            KeyArgs { last, .. } if last < 0 => count + last + 1,
            KeyArgs { last, .. } => (last + 1).min(count),
        };
        let step = usize::try_from(self.step).unwrap_or(1).max(1);
        (self.first..end)
            .step_by(step)
            .map(|at| usize::try_from(at).unwrap_or(0))
    }
}

/// Properties of a command, as bits.
pub(crate) mod flag {
    macro_rules! flags {
        ($($name:ident $bit:literal)*) => {
            $(pub(crate) const $name: u32 = 1 << $bit;)*
            /// Names as `COMMAND INFO` prints them, in its order.
            pub(crate) const NAMES: &[(u32, &str)] = &[$(($name, stringify!($name))),*];
        };
    }
    flags! {
        WRITE 0 READONLY 1 DENYOOM 2 ADMIN 3 NOSCRIPT 4 LOADING 5 STALE 6 SKIP_SLOWLOG 7 FAST 8
        NO_AUTH 9 NO_MULTI 10 ALLOW_BUSY 11
    }
    // Clients do not see the flags below.
    /// Executed immediately inside MULTI instead of being queued.
    pub(crate) const AT_ONCE: u32 = 1 << 16;
    /// Has no keys, and can still be in a group.
    pub(crate) const GROUPED: u32 = 1 << 17;
    /// Its reply reveals data it read, although it has no READONLY flag.
    pub(crate) const READS: u32 = 1 << 18;
    /// Visits all keys: always a long request.
    pub(crate) const WALKS: u32 = 1 << 19;
    /// Long for some arguments (see `long`).
    pub(crate) const MAY_WALK: u32 = 1 << 20;
}

/// A row of the table.
pub(crate) struct Command {
    /// Its name, in lower case; a subcommand's is `container|name`.
    pub(crate) name: &'static str,
    /// Number of arguments, including the name; -n means at least n.
    pub(crate) arity: i64,
    /// Its properties: see [`flag`].
    pub(crate) flags: u32,
    /// Positions of its keys.
    pub(crate) keys: KeyArgs,
    /// How it accesses its keys, as `COMMAND INFO` prints it.
    pub(crate) access: &'static str,
    /// Access categories besides those its flags imply.
    pub(crate) acl: &'static str,
    /// Hints for proxies.
    pub(crate) tips: &'static str,
    /// The group of its documentation.
    pub(crate) group: &'static str,
    /// First Redis version that had it.
    pub(crate) since: &'static str,
    /// One-line description.
    pub(crate) summary: &'static str,
    /// Its function.
    pub(crate) run: CommandFn,
    /// Subcommands of a container.
    pub(crate) subcommands: &'static [Command],
}

impl Command {
    /// Whether `flag` is set.
    pub(crate) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether `count` arguments fit its arity.
    pub(crate) fn takes(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if self.arity >= 0 {
            count == self.arity
        } else {
            count >= -self.arity
        }
    }

    /// Whether it accesses exactly one key.
    pub(crate) fn is_short(&self) -> bool {
        self.keys == ONE
    }

    /// Its name without the container's name.
    pub(crate) fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }

    /// Finds the subcommand `name`, in either case.
    pub(crate) fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        self.subcommands
            .iter()
            .find(|s| s.own_name().as_bytes().eq_ignore_ascii_case(name))
    }
}

macro_rules! table {
    ($($name:literal $arity:literal [$($flag:ident)*] $keys:ident $access:literal $acl:literal
       $tips:literal $group:literal $since:literal $run:path $([$subcommands:ident])? :
       $summary:literal)*) => {
        &[$(Command {
            name: $name,
            arity: $arity,
            flags: 0 $(| flag::$flag)*,
            keys: $keys,
            access: $access,
            acl: $acl,
            tips: $tips,
            group: $group,
            since: $since,
            summary: $summary,
            run: $run,
            subcommands: table!(@ $($subcommands)?),
        }),*]
    };
    (@) => { &[] };
    (@ $subcommands:ident) => { $subcommands };
}

/// Every command, most used first.
pub(crate) static COMMANDS: &[Command] = table! {
    "get" 2 [READONLY FAST] ONE "RO access" "@string"
        "" "string" "1.0.0" strings::get:
        "Returns the value of a key."
    "set" -3 [WRITE DENYOOM] ONE "RW access update variable_flags" "@string"
        "" "string" "1.0.0" strings::set:
        "Stores a string, whatever the key held; options make it conditional or give it an expiry."
    "mget" -2 [READONLY FAST] ALL "RO access" "@string"
        "request_policy:multi_shard" "string" "1.0.0" strings::mget:
        "Returns the values of several keys, read atomically."
    "mset" -3 [WRITE DENYOOM] PAIRS "OW update" "@string"
        "request_policy:multi_shard response_policy:all_succeeded" "string" "1.0.1" strings::mset:
        "Stores several strings, all or none."
    "msetnx" -3 [WRITE DENYOOM] PAIRS "OW insert" "@string"
        "request_policy:multi_shard response_policy:agg_min" "string" "1.0.1" strings::msetnx:
        "Stores several strings if none of the keys exists."
    "setnx" 3 [WRITE DENYOOM FAST] ONE "OW insert" "@string"
        "" "string" "1.0.0" strings::setnx:
        "Stores a string if the key does not exist."
    "setex" 4 [WRITE DENYOOM] ONE "OW update" "@string"
        "" "string" "2.0.0" strings::setex:
        "Stores a string that expires after some seconds."
    "psetex" 4 [WRITE DENYOOM] ONE "OW update" "@string"
        "" "string" "2.6.0" strings::psetex:
        "Stores a string that expires after some milliseconds."
    "getset" 3 [WRITE DENYOOM FAST] ONE "RW access update" "@string"
        "" "string" "1.0.0" strings::getset:
        "Stores a string and returns the old value."
    "getdel" 2 [WRITE FAST] ONE "RW access delete" "@string"
        "" "string" "6.2.0" strings::getdel:
        "Deletes a key and returns its value."
    "getex" -2 [WRITE FAST] ONE "RW access update" "@string"
        "" "string" "6.2.0" strings::getex:
        "Returns the value of a key and sets or removes its expiry."
    "append" 3 [WRITE DENYOOM FAST] ONE "RW insert" "@string"
        "" "string" "2.0.0" strings::append:
        "Appends to the value of a key and returns the new length."
    "strlen" 2 [READONLY FAST] ONE "RO" "@string"
        "" "string" "2.2.0" strings::strlen:
        "Returns the length of a value."
    "incr" 2 [WRITE DENYOOM FAST] ONE "RW access update" "@string"
        "" "string" "1.0.0" counters::incr:
        "Adds one to a number."
    "decr" 2 [WRITE DENYOOM FAST] ONE "RW access update" "@string"
        "" "string" "1.0.0" counters::decr:
        "Subtracts one from a number."
    "incrby" 3 [WRITE DENYOOM FAST] ONE "RW access update" "@string"
        "" "string" "1.0.0" counters::incrby:
        "Adds to a number."
    "decrby" 3 [WRITE DENYOOM FAST] ONE "RW access update" "@string"
        "" "string" "1.0.0" counters::decrby:
        "Subtracts from a number."
    "del" -2 [WRITE] ALL "RM delete" "@keyspace"
        "request_policy:multi_shard response_policy:agg_sum" "generic" "1.0.0" keys::del:
        "Deletes keys and returns how many existed."
    "unlink" -2 [WRITE FAST] ALL "RM delete" "@keyspace"
        "request_policy:multi_shard response_policy:agg_sum" "generic" "4.0.0" keys::del:
        "Deletes keys, as DEL does."
    "exists" -2 [READONLY FAST] ALL "RO" "@keyspace"
        "request_policy:multi_shard response_policy:agg_sum" "generic" "1.0.0" keys::exists:
        "How many of the keys exist."
    "touch" -2 [READONLY FAST] ALL "RO" "@keyspace"
        "request_policy:multi_shard response_policy:agg_sum" "generic" "3.2.1" keys::exists:
        "How many of the keys exist."
    "type" 2 [READONLY FAST] ONE "RO" "@keyspace"
        "" "generic" "1.0.0" keys::kind:
        "Returns the type of a value."
    "keys" 2 [READONLY WALKS] NONE "" "@keyspace @dangerous"
        "request_policy:all_shards nondeterministic_output_order" "generic" "1.0.0" keys::keys:
        "Returns all keys that match a pattern."
    "scan" -2 [READONLY MAY_WALK] NONE "" "@keyspace"
        "nondeterministic_output request_policy:special" "generic" "2.8.0" keys::scan:
        "Returns some keys, and the cursor for the next call."
    "dbsize" 1 [READONLY FAST MAY_WALK] NONE "" "@keyspace"
        "request_policy:all_shards response_policy:agg_sum" "server" "1.0.0" keys::dbsize:
        "Returns the number of keys in the database."
    "flushall" -1 [WRITE WALKS] NONE "" "@keyspace @dangerous"
        "request_policy:all_shards response_policy:all_succeeded" "server" "1.0.0" keys::flushall:
        "Removes every key of every database."
    "flushdb" -1 [WRITE WALKS] NONE "" "@keyspace @dangerous"
        "request_policy:all_shards response_policy:all_succeeded" "server" "1.0.0" keys::flushdb:
        "Removes every key of this database."
    "expire" -3 [WRITE FAST] ONE "RW update" "@keyspace"
        "" "generic" "1.0.0" expiry::expire:
        "Sets the expiry of a key, in seconds from now."
    "pexpire" -3 [WRITE FAST] ONE "RW update" "@keyspace"
        "" "generic" "2.6.0" expiry::pexpire:
        "Sets the expiry of a key, in milliseconds from now."
    "expireat" -3 [WRITE FAST] ONE "RW update" "@keyspace"
        "" "generic" "1.2.0" expiry::expireat:
        "Sets the expiry of a key, in seconds of the Unix clock."
    "pexpireat" -3 [WRITE FAST] ONE "RW update" "@keyspace"
        "" "generic" "2.6.0" expiry::pexpireat:
        "Sets the expiry of a key, in milliseconds of the Unix clock."
    "ttl" 2 [READONLY FAST] ONE "RO access" "@keyspace"
        "nondeterministic_output" "generic" "1.0.0" expiry::ttl:
        "Returns the seconds until a key expires."
    "pttl" 2 [READONLY FAST] ONE "RO access" "@keyspace"
        "nondeterministic_output" "generic" "2.6.0" expiry::pttl:
        "Returns the milliseconds until a key expires."
    "expiretime" 2 [READONLY FAST] ONE "RO access" "@keyspace"
        "" "generic" "7.0.0" expiry::expiretime:
        "Returns the expiry of a key, in seconds of the Unix clock."
    "pexpiretime" 2 [READONLY FAST] ONE "RO access" "@keyspace"
        "" "generic" "7.0.0" expiry::pexpiretime:
        "Returns the expiry of a key, in milliseconds of the Unix clock."
    "persist" 2 [WRITE FAST] ONE "RW update" "@keyspace"
        "" "generic" "2.2.0" expiry::persist:
        "Removes a key's expiry."
    "multi" 1 [NOSCRIPT LOADING STALE FAST ALLOW_BUSY AT_ONCE] NONE "" "@transaction"
        "" "transactions" "1.2.0" transactions::multi:
        "Starts a transaction; the following commands are queued."
    "exec" 1 [NOSCRIPT LOADING STALE SKIP_SLOWLOG AT_ONCE] NONE "" "@transaction"
        "" "transactions" "1.2.0" transactions::exec:
        "Executes the queued commands, all or none."
    "discard" 1 [NOSCRIPT LOADING STALE FAST ALLOW_BUSY AT_ONCE] NONE "" "@transaction"
        "" "transactions" "2.0.0" transactions::discard:
        "Discards the queued commands."
    "watch" -2 [NOSCRIPT LOADING STALE FAST ALLOW_BUSY AT_ONCE READS] ALL "RO" "@transaction"
        "" "transactions" "2.2.0" transactions::watch:
        "Makes the next EXEC fail if one of the keys has changed."
    "unwatch" 1 [NOSCRIPT LOADING STALE FAST ALLOW_BUSY GROUPED] NONE "" "@transaction"
        "" "transactions" "2.2.0" transactions::unwatch:
        "Removes all watched keys."
    "ping" -1 [FAST GROUPED] NONE "" "@connection"
        "request_policy:all_shards response_policy:all_succeeded" "connection" "1.0.0"
        connection::ping:
        "Returns PONG, or its argument."
    "echo" 2 [LOADING STALE FAST GROUPED] NONE "" "@connection"
        "" "connection" "1.0.0" connection::echo:
        "Returns its argument."
    "select" 2 [LOADING STALE FAST GROUPED] NONE "" "@connection"
        "" "connection" "1.0.0" connection::select:
        "Changes the connection's database."
    "hello" -1 [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] NONE "" "@connection"
        "" "connection" "6.0.0" connection::hello:
        "Selects the protocol version and describes the server."
    "auth" -2 [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] NONE "" "@connection"
        "" "connection" "1.0.0" connection::auth:
        "Authenticates the connection."
    "reset" 1 [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY AT_ONCE] NONE "" "@connection"
        "" "connection" "6.2.0" connection::reset:
        "Resets the connection's state."
    "quit" -1 [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY AT_ONCE] NONE "" "@connection"
        "" "connection" "1.0.0" connection::quit:
        "Closes the connection."
    "client" -2 [MAY_WALK] NONE "" ""
        "" "connection" "2.4.0" server::container [CLIENT]:
        "Commands about connections."
    "command" -1 [LOADING STALE] NONE "" "@connection"
        "nondeterministic_output_order" "server" "2.8.13" command::command [COMMAND]:
        "Describes all commands."
    "config" -2 [] NONE "" ""
        "" "server" "2.0.0" server::container [CONFIG]:
        "Commands about the configuration."
    "info" -1 [LOADING STALE] NONE "" "@dangerous"
        "nondeterministic_output request_policy:all_shards response_policy:special" "server" "1.0.0"
        info::info:
        "Returns statistics of the server."
    "time" 1 [LOADING STALE FAST GROUPED] NONE "" ""
        "nondeterministic_output" "server" "2.6.0" server::time:
        "Returns the server's time."
    "shutdown" -1 [ADMIN NOSCRIPT LOADING STALE NO_MULTI ALLOW_BUSY] NONE "" ""
        "" "server" "1.0.0" server::shutdown:
        "Stops the server; acknowledged writes are durable."
};

static CLIENT: &[Command] = table! {
    "client|id" 2 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "5.0.0" client::id:
        "Returns this connection's id."
    "client|getname" 2 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "2.6.9" client::getname:
        "Returns this connection's name."
    "client|setname" 3 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "2.6.9" client::setname:
        "Sets this connection's name."
    "client|setinfo" 4 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "7.2.0" client::setinfo:
        "Sets the client library's name or version."
    "client|list" -2 [ADMIN NOSCRIPT LOADING STALE] NONE "" "@connection"
        "nondeterministic_output" "connection" "2.4.0" client::list:
        "Lists connections."
    "client|info" 2 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "nondeterministic_output" "connection" "6.2.0" client::info:
        "Describes this connection."
    "client|kill" -3 [ADMIN NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "2.4.0" client::kill:
        "Closes connections."
    "client|reply" 3 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "3.2.0" client::reply:
        "Turns replies to this connection on or off."
    "client|no-evict" 3 [ADMIN NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "7.0.0" client::no_evict:
        "Exempts this connection from eviction by maxmemory-clients."
    "client|no-touch" 3 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "7.2.0" client::no_touch:
        "Excludes this connection's reads from LRU statistics; no effect."
    "client|getredir" 2 [NOSCRIPT LOADING STALE] NONE "" "@connection"
        "" "connection" "6.0.0" client::getredir:
        "Returns -1: client tracking is not supported."
    "client|help" 2 [LOADING STALE] NONE "" "@connection"
        "" "connection" "5.0.0" client::help:
        "Lists the subcommands of CLIENT."
};

static CONFIG: &[Command] = table! {
    "config|get" -3 [ADMIN NOSCRIPT LOADING STALE] NONE "" ""
        "" "server" "2.0.0" config::get:
        "Returns the parameters that match patterns."
    "config|set" -4 [ADMIN NOSCRIPT LOADING STALE] NONE "" ""
        "request_policy:all_nodes response_policy:all_succeeded" "server" "2.0.0" config::set:
        "Changes parameters, all or none."
    "config|resetstat" 2 [ADMIN NOSCRIPT LOADING STALE] NONE "" ""
        "" "server" "2.0.0" config::resetstat:
        "Resets the counters of INFO."
    "config|rewrite" 2 [ADMIN NOSCRIPT LOADING STALE] NONE "" ""
        "" "server" "2.8.0" config::rewrite:
        "Fails: the server has no configuration file."
    "config|help" 2 [LOADING STALE] NONE "" ""
        "" "server" "5.0.0" config::help:
        "Lists the subcommands of CONFIG."
};

static COMMAND: &[Command] = table! {
    "command|count" 2 [LOADING STALE] NONE "" "@connection"
        "" "server" "2.8.13" command::count:
        "Returns the number of commands."
    "command|docs" -2 [LOADING STALE] NONE "" "@connection"
        "nondeterministic_output_order" "server" "7.0.0" command::docs:
        "Returns the documentation of commands."
    "command|info" -2 [LOADING STALE] NONE "" "@connection"
        "nondeterministic_output_order" "server" "2.8.13" command::info:
        "Returns the arity, flags and keys of commands."
    "command|list" -2 [LOADING STALE] NONE "" "@connection"
        "nondeterministic_output_order" "server" "7.0.0" command::list:
        "Returns the names of commands."
    "command|getkeys" -4 [LOADING STALE] NONE "" "@connection"
        "" "server" "2.8.13" command::getkeys:
        "Returns the keys of a request."
    "command|getkeysandflags" -4 [LOADING STALE] NONE "" "@connection"
        "" "server" "7.0.0" command::getkeysandflags:
        "Returns the keys of a request, and how it accesses them."
    "command|help" 2 [LOADING STALE] NONE "" "@connection"
        "" "server" "5.0.0" command::help:
        "Lists the subcommands of COMMAND."
};

/// Most bytes of a command's name.
const NAME_BYTES_MAX: usize = 16;
const SLOTS: usize = 256;

/// Hash table from folded names to positions in [`COMMANDS`] plus one; 0 is empty.
static INDEX: [(u128, u8); SLOTS] = index();

const fn index() -> [(u128, u8); SLOTS] {
    let mut slots = [(0, 0); SLOTS];
    let mut at = 0;
    while at < COMMANDS.len() {
        let name = fold(COMMANDS[at].name.as_bytes());
        let mut slot = slot_of(name);
        while slots[slot].1 != 0 {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = (name, at as u8 + 1);
        at += 1;
    }
    slots
}

/// Folds a name of up to 16 bytes to a number, with letters in lower case.
#[inline]
const fn fold(name: &[u8]) -> u128 {
    let mut folded = 0u128;
    let mut at = 0;
    while at < name.len() {
        folded = folded << 8 | name[at].to_ascii_lowercase() as u128;
        at += 1;
    }
    folded
}

#[inline]
const fn slot_of(folded: u128) -> usize {
    let mixed = (folded as u64 ^ (folded >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % SLOTS
}

/// Finds the command `name`, in either case.
#[inline]
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let folded = fold(name);
    let mut slot = slot_of(folded);
    loop {
        match INDEX[slot] {
            (_, 0) => return None,
            (found, at) if found == folded => {
                // A leading NUL does not change the folded number, so the length is compared too.
                let command = &COMMANDS[usize::from(at) - 1];
                return (command.name.len() == name.len()).then_some(command);
            }
            _ => slot = (slot + 1) % SLOTS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_either_case() {
        for command in COMMANDS {
            for name in [command.name.to_owned(), command.name.to_ascii_uppercase()] {
                let found = find(name.as_bytes()).map(|c| c.name);
                assert_eq!(found, Some(command.name));
            }
        }
        for name in [
            "",
            "ge",
            "gets",
            "\0get",
            "get\0",
            "a-name-of-more-than-16-bytes",
        ] {
            assert!(find(name.as_bytes()).is_none(), "{name:?}");
        }
    }

    #[test]
    fn every_row_is_consistent() {
        for command in COMMANDS {
            assert_eq!(
                command.keys.first > 0,
                !command.access.is_empty(),
                "{}",
                command.name
            );
            assert!(command.name.len() <= NAME_BYTES_MAX);
            for sub in command.subcommands {
                assert_eq!(sub.name.split_once('|').map(|(c, _)| c), Some(command.name));
            }
        }
    }

    #[test]
    fn key_positions_match_the_number_of_arguments() {
        let positions = |keys: KeyArgs, count| keys.positions(count).collect::<Vec<_>>();
        assert_eq!(positions(NONE, 5), Vec::<usize>::new());
        assert_eq!(positions(ONE, 2), [1]);
        assert_eq!(positions(ALL, 4), [1, 2, 3]);
        assert_eq!(positions(PAIRS, 5), [1, 3]);
    }
}
