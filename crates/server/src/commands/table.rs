//! Table of all Redis commands, used for dispatch and for the replies of `COMMAND`.
//!
//! A row names only what differs from a plain command. Its fields are those of [`Command`]. The rows of subcommands
//! are in [`subcommands`](super::subcommands).

use super::context::command_row::flag::*;
use super::context::command_row::{
    ALL, ALL_FROM_SECOND, Command, ONE, PAIRS, SECOND, THIRD, TWO, rows,
};
use super::context::command_table::CommandTable;
use super::subcommands::{
    ACL, CLIENT, CLUSTER, COMMAND, CONFIG, FUNCTION_COMMANDS, LATENCY, MEMORY, OBJECT,
    PUBSUB_CONTAINER, SCRIPT_COMMANDS, SLOWLOG,
};
use super::{
    bitfield, bits, cluster, command, connection, counters, debug, dump, expiry, functions,
    hyperloglog, info, keys, lcs, migrate, monitor, moves, persistence, pfdebug, pubsub, ranges,
    scripts, server, sort, strings, transactions,
};

/// All commands.
pub(crate) static COMMANDS: CommandTable = CommandTable::new(ROWS);

/// Whether a command is called `name`, in either case.
#[must_use]
pub fn has_command(name: &[u8]) -> bool {
    COMMANDS.find(name).is_some()
}

/// Every command, most used first.
static ROWS: &[Command] = rows! { 1;
    "get" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@string", group: "string", since: "1.0.0", run: strings::get,
        summary: "Returns the value of a key.",
    }
    "set" {
        arity: -3, flags: WRITE | DENYOOM, keys: ONE, access: "RW access update variable_flags",
        acl: "@string", group: "string", since: "1.0.0", run: strings::set,
        summary: "Stores a string, whatever the key held; options make it conditional or give it an expiry.",
    }
    "mget" {
        arity: -2, flags: READONLY | FAST, keys: ALL, access: "RO access",
        acl: "@string", group: "string", since: "1.0.0", run: strings::mget,
        tips: "request_policy:multi_shard",
        summary: "Returns the values of several keys, read atomically.",
    }
    "mset" {
        arity: -3, flags: WRITE | DENYOOM, keys: PAIRS, access: "OW update",
        acl: "@string", group: "string", since: "1.0.1", run: strings::mset,
        tips: "request_policy:multi_shard response_policy:all_succeeded",
        summary: "Stores several strings, all or none.",
    }
    "msetnx" {
        arity: -3, flags: WRITE | DENYOOM, keys: PAIRS, access: "OW insert",
        acl: "@string", group: "string", since: "1.0.1", run: strings::msetnx,
        tips: "request_policy:multi_shard response_policy:agg_min",
        summary: "Stores several strings if none of the keys exists.",
    }
    "setnx" {
        arity: 3, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "OW insert",
        acl: "@string", group: "string", since: "1.0.0", run: strings::setnx,
        summary: "Stores a string if the key does not exist.",
    }
    "setex" {
        arity: 4, flags: WRITE | DENYOOM, keys: ONE, access: "OW update",
        acl: "@string", group: "string", since: "2.0.0", run: strings::setex,
        summary: "Stores a string that expires after some seconds.",
    }
    "psetex" {
        arity: 4, flags: WRITE | DENYOOM, keys: ONE, access: "OW update",
        acl: "@string", group: "string", since: "2.6.0", run: strings::psetex,
        summary: "Stores a string that expires after some milliseconds.",
    }
    "getset" {
        arity: 3, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "1.0.0", run: strings::getset,
        summary: "Stores a string and returns the old value.",
    }
    "getdel" {
        arity: 2, flags: WRITE | FAST, keys: ONE, access: "RW access delete",
        acl: "@string", group: "string", since: "6.2.0", run: strings::getdel,
        summary: "Deletes a key and returns its value.",
    }
    "getex" {
        arity: -2, flags: WRITE | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "6.2.0", run: strings::getex,
        summary: "Returns the value of a key and sets or removes its expiry.",
    }
    "append" {
        arity: 3, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW insert",
        acl: "@string", group: "string", since: "2.0.0", run: strings::append,
        summary: "Appends to the value of a key and returns the new length.",
    }
    "strlen" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO",
        acl: "@string", group: "string", since: "2.2.0", run: strings::strlen,
        summary: "Returns the length of a value.",
    }
    "incr" {
        arity: 2, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "1.0.0", run: counters::incr,
        summary: "Adds one to a number.",
    }
    "decr" {
        arity: 2, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "1.0.0", run: counters::decr,
        summary: "Subtracts one from a number.",
    }
    "incrby" {
        arity: 3, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "1.0.0", run: counters::incrby,
        summary: "Adds to a number.",
    }
    "decrby" {
        arity: 3, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "1.0.0", run: counters::decrby,
        summary: "Subtracts from a number.",
    }
    "incrbyfloat" {
        arity: 3, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW access update",
        acl: "@string", group: "string", since: "2.6.0", run: counters::incrbyfloat,
        summary: "Adds to a floating-point number.",
    }
    "getrange" {
        arity: 4, flags: READONLY, keys: ONE, access: "RO access",
        acl: "@string", group: "string", since: "2.4.0", run: ranges::getrange,
        summary: "Returns a part of a value.",
    }
    "substr" {
        arity: 4, flags: READONLY, keys: ONE, access: "RO access",
        acl: "@string", group: "string", since: "1.0.0", run: ranges::getrange,
        summary: "Returns a part of a value, as GETRANGE does.",
    }
    "setrange" {
        arity: 4, flags: WRITE | DENYOOM, keys: ONE, access: "RW update",
        acl: "@string", group: "string", since: "2.2.0", run: ranges::setrange,
        summary: "Overwrites a part of a value; zeros fill a gap before it.",
    }
    "lcs" {
        arity: -3, flags: READONLY, keys: TWO, access: "RO access",
        acl: "@string", group: "string", since: "7.0.0", run: lcs::lcs,
        summary: "Returns the longest common subsequence of two values.",
    }
    "setbit" {
        arity: 4, flags: WRITE | DENYOOM, keys: ONE, access: "RW access update",
        acl: "@bitmap", group: "bitmap", since: "2.2.0", run: bits::setbit,
        summary: "Sets or clears a bit of a value and returns its old state.",
    }
    "getbit" {
        arity: 3, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@bitmap", group: "bitmap", since: "2.2.0", run: bits::getbit,
        summary: "Returns a bit of a value.",
    }
    "bitcount" {
        arity: -2, flags: READONLY, keys: ONE, access: "RO access",
        acl: "@bitmap", group: "bitmap", since: "2.6.0", run: bits::bitcount,
        summary: "Returns how many bits of a value, or of a part of it, are 1.",
    }
    "bitpos" {
        arity: -3, flags: READONLY, keys: ONE, access: "RO access",
        acl: "@bitmap", group: "bitmap", since: "2.8.7", run: bits::bitpos,
        summary: "Returns the position of the first bit that is 0 or 1.",
    }
    "bitop" {
        arity: -4, flags: WRITE | DENYOOM, keys: ALL_FROM_SECOND, access: "OW update|RO access",
        acl: "@bitmap", group: "bitmap", since: "2.6.0", run: bits::bitop,
        summary: "Combines values bit by bit and stores the result.",
    }
    "bitfield" {
        arity: -2, flags: WRITE | DENYOOM, keys: ONE, access: "RW access update variable_flags",
        acl: "@bitmap", group: "bitmap", since: "3.2.0", run: bitfield::bitfield,
        summary: "Reads and writes integers of any width inside a value.",
    }
    "bitfield_ro" {
        arity: -2, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@bitmap", group: "bitmap", since: "6.0.0", run: bitfield::bitfield_ro,
        summary: "Reads integers of any width inside a value.",
    }
    "pfadd" {
        arity: -2, flags: WRITE | DENYOOM | FAST, keys: ONE, access: "RW insert",
        acl: "@hyperloglog", group: "hyperloglog", since: "2.8.9", run: hyperloglog::pfadd,
        summary: "Adds elements to a HyperLogLog.",
    }
    "pfcount" {
        arity: -2, flags: READONLY, keys: ALL, access: "RW access",
        acl: "@hyperloglog", group: "hyperloglog", since: "2.8.9", run: hyperloglog::pfcount,
        summary: "Estimates how many different elements HyperLogLogs have together.",
    }
    "pfmerge" {
        arity: -2, flags: WRITE | DENYOOM, keys: ALL, access: "RW access insert|RO access",
        acl: "@hyperloglog", group: "hyperloglog", since: "2.8.9", run: hyperloglog::pfmerge,
        summary: "Merges HyperLogLogs into one.",
    }
    "pfdebug" {
        arity: 3, flags: WRITE | DENYOOM | ADMIN, keys: SECOND, access: "RW access",
        acl: "@hyperloglog", group: "hyperloglog", since: "2.8.9", run: pfdebug::pfdebug,
        summary: "Shows or changes the encoding of a HyperLogLog, for tests.",
    }
    "pfselftest" {
        arity: 1, flags: ADMIN | WALKS,
        acl: "@hyperloglog", group: "hyperloglog", since: "2.8.9", run: pfdebug::pfselftest,
        summary: "Tests the implementation of HyperLogLogs.",
    }
    "rename" {
        arity: 3, flags: WRITE, keys: TWO, access: "RW access delete|OW update",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: moves::rename,
        summary: "Renames a key and replaces the new name's value.",
    }
    "renamenx" {
        arity: 3, flags: WRITE | FAST, keys: TWO, access: "RW access delete|OW insert",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: moves::renamenx,
        summary: "Renames a key if the new name has no value.",
    }
    "copy" {
        arity: -3, flags: WRITE | DENYOOM, keys: TWO, access: "RO access|OW update",
        acl: "@keyspace", group: "generic", since: "6.2.0", run: moves::copy,
        summary: "Copies a value to another key, of this or another database.",
    }
    "move" {
        arity: 3, flags: WRITE | FAST, keys: ONE, access: "RW access update",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: moves::move_key,
        summary: "Moves a key to another database.",
    }
    "randomkey" {
        arity: 1, flags: READONLY | MAY_WALK,
        acl: "@keyspace", group: "generic", since: "1.0.0", run: keys::randomkey,
        tips: "request_policy:all_shards nondeterministic_output",
        summary: "Returns a random key.",
    }
    "dump" {
        arity: 2, flags: READONLY, keys: ONE, access: "RO access",
        acl: "@keyspace", group: "generic", since: "2.6.0", run: dump::dump,
        tips: "nondeterministic_output",
        summary: "Returns a value in the format of RESTORE.",
    }
    "restore" {
        arity: -4, flags: WRITE | DENYOOM, keys: ONE, access: "OW update",
        acl: "@keyspace @dangerous", group: "generic", since: "2.6.0", run: dump::restore,
        summary: "Stores a value that DUMP has returned.",
    }
    "restore-asking" {
        arity: -4, flags: WRITE | DENYOOM | ASKING, keys: ONE, access: "OW update",
        acl: "@keyspace @dangerous", group: "server", since: "3.0.0", run: dump::restore,
        summary: "Stores a value, as RESTORE does; for nodes of a cluster.",
    }
    "sort" {
        arity: -2, flags: WRITE | DENYOOM | MOVABLEKEYS, keys: ONE, access: "RO access",
        acl: "@set @sortedset @list @dangerous", group: "generic", since: "1.0.0", run: sort::sort,
        summary: "Sorts the elements of a list or set; a string is no such value.",
    }
    "sort_ro" {
        arity: -2, flags: READONLY | MOVABLEKEYS, keys: ONE, access: "RO access",
        acl: "@set @sortedset @list @dangerous", group: "generic", since: "7.0.0", run: sort::sort_ro,
        summary: "As SORT, without the option to store the result.",
    }
    "migrate" {
        arity: -6, flags: WRITE | MOVABLEKEYS | WALKS | ALONE, keys: THIRD, access: "RW access delete",
        acl: "@keyspace @dangerous", group: "generic", since: "2.6.0", run: migrate::migrate,
        tips: "nondeterministic_output",
        summary: "Moves keys to another server.",
    }
    "object" {
        arity: -2,
        group: "generic", since: "2.2.3", run: server::container, subcommands: OBJECT,
        summary: "Commands about the representation of values.",
    }
    "del" {
        arity: -2, flags: WRITE, keys: ALL, access: "RM delete",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: keys::del,
        tips: "request_policy:multi_shard response_policy:agg_sum",
        summary: "Deletes keys and returns how many existed.",
    }
    "unlink" {
        arity: -2, flags: WRITE | FAST, keys: ALL, access: "RM delete",
        acl: "@keyspace", group: "generic", since: "4.0.0", run: keys::del,
        tips: "request_policy:multi_shard response_policy:agg_sum",
        summary: "Deletes keys, as DEL does.",
    }
    "exists" {
        arity: -2, flags: READONLY | FAST, keys: ALL, access: "RO",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: keys::exists,
        tips: "request_policy:multi_shard response_policy:agg_sum",
        summary: "How many of the keys exist.",
    }
    "touch" {
        arity: -2, flags: READONLY | FAST, keys: ALL, access: "RO",
        acl: "@keyspace", group: "generic", since: "3.2.1", run: keys::touch,
        tips: "request_policy:multi_shard response_policy:agg_sum",
        summary: "How many of the keys exist.",
    }
    "type" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: keys::kind,
        summary: "Returns the type of a value.",
    }
    "keys" {
        arity: 2, flags: READONLY | WALKS,
        acl: "@keyspace @dangerous", group: "generic", since: "1.0.0", run: keys::keys,
        tips: "request_policy:all_shards nondeterministic_output_order",
        summary: "Returns all keys that match a pattern.",
    }
    "scan" {
        arity: -2, flags: READONLY | MAY_WALK,
        acl: "@keyspace", group: "generic", since: "2.8.0", run: keys::scan,
        tips: "nondeterministic_output request_policy:special",
        summary: "Returns some keys, and the cursor for the next call.",
    }
    "dbsize" {
        arity: 1, flags: READONLY | FAST | MAY_WALK,
        acl: "@keyspace", group: "server", since: "1.0.0", run: keys::dbsize,
        tips: "request_policy:all_shards response_policy:agg_sum",
        summary: "Returns the number of keys in the database.",
    }
    "flushall" {
        arity: -1, flags: WRITE | WALKS,
        acl: "@keyspace @dangerous", group: "server", since: "1.0.0", run: keys::flushall,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Removes every key of every database.",
    }
    "flushdb" {
        arity: -1, flags: WRITE | WALKS,
        acl: "@keyspace @dangerous", group: "server", since: "1.0.0", run: keys::flushdb,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Removes every key of this database.",
    }
    "swapdb" {
        arity: 3, flags: WRITE | FAST | WALKS,
        acl: "@keyspace @dangerous", group: "server", since: "4.0.0", run: keys::swapdb,
        summary: "Exchanges two databases.",
    }
    "expire" {
        arity: -3, flags: WRITE | FAST, keys: ONE, access: "RW update",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: expiry::expire,
        summary: "Sets the expiry of a key, in seconds from now.",
    }
    "pexpire" {
        arity: -3, flags: WRITE | FAST, keys: ONE, access: "RW update",
        acl: "@keyspace", group: "generic", since: "2.6.0", run: expiry::pexpire,
        summary: "Sets the expiry of a key, in milliseconds from now.",
    }
    "expireat" {
        arity: -3, flags: WRITE | FAST, keys: ONE, access: "RW update",
        acl: "@keyspace", group: "generic", since: "1.2.0", run: expiry::expireat,
        summary: "Sets the expiry of a key, in seconds of the Unix clock.",
    }
    "pexpireat" {
        arity: -3, flags: WRITE | FAST, keys: ONE, access: "RW update",
        acl: "@keyspace", group: "generic", since: "2.6.0", run: expiry::pexpireat,
        summary: "Sets the expiry of a key, in milliseconds of the Unix clock.",
    }
    "ttl" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@keyspace", group: "generic", since: "1.0.0", run: expiry::ttl,
        tips: "nondeterministic_output",
        summary: "Returns the seconds until a key expires.",
    }
    "pttl" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@keyspace", group: "generic", since: "2.6.0", run: expiry::pttl,
        tips: "nondeterministic_output",
        summary: "Returns the milliseconds until a key expires.",
    }
    "expiretime" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@keyspace", group: "generic", since: "7.0.0", run: expiry::expiretime,
        summary: "Returns the expiry of a key, in seconds of the Unix clock.",
    }
    "pexpiretime" {
        arity: 2, flags: READONLY | FAST, keys: ONE, access: "RO access",
        acl: "@keyspace", group: "generic", since: "7.0.0", run: expiry::pexpiretime,
        summary: "Returns the expiry of a key, in milliseconds of the Unix clock.",
    }
    "persist" {
        arity: 2, flags: WRITE | FAST, keys: ONE, access: "RW update",
        acl: "@keyspace", group: "generic", since: "2.2.0", run: expiry::persist,
        summary: "Removes a key's expiry.",
    }
    "multi" {
        arity: 1, flags: NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | AT_ONCE,
        acl: "@transaction", group: "transactions", since: "1.2.0", run: transactions::multi,
        summary: "Starts a transaction; the following commands are queued.",
    }
    "exec" {
        arity: 1, flags: NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | AT_ONCE | TRACKS,
        acl: "@transaction", group: "transactions", since: "1.2.0", run: transactions::exec,
        summary: "Executes the queued commands, all or none.",
    }
    "discard" {
        arity: 1, flags: NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | AT_ONCE,
        acl: "@transaction", group: "transactions", since: "2.0.0", run: transactions::discard,
        summary: "Discards the queued commands.",
    }
    "watch" {
        arity: -2, flags: NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | AT_ONCE | READS, keys: ALL, access: "RO",
        acl: "@transaction", group: "transactions", since: "2.2.0", run: transactions::watch,
        summary: "Makes the next EXEC fail if one of the keys has changed.",
    }
    "unwatch" {
        arity: 1, flags: NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | GROUPED,
        acl: "@transaction", group: "transactions", since: "2.2.0", run: transactions::unwatch,
        summary: "Removes all watched keys.",
    }
    "ping" {
        arity: -1, flags: FAST | GROUPED,
        acl: "@connection", group: "connection", since: "1.0.0", run: connection::ping,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Returns PONG, or its argument.",
    }
    "echo" {
        arity: 2, flags: LOADING | STALE | FAST | GROUPED,
        acl: "@connection", group: "connection", since: "1.0.0", run: connection::echo,
        summary: "Returns its argument.",
    }
    "select" {
        arity: 2, flags: LOADING | STALE | FAST | GROUPED,
        acl: "@connection", group: "connection", since: "1.0.0", run: connection::select,
        summary: "Changes the connection's database.",
    }
    "hello" {
        arity: -1, flags: NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | MAY_WALK,
        acl: "@connection", group: "connection", since: "6.0.0", run: connection::hello,
        summary: "Selects the protocol version and describes the server.",
    }
    "auth" {
        arity: -2, flags: NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | MAY_WALK,
        acl: "@connection", group: "connection", since: "1.0.0", run: connection::auth,
        summary: "Authenticates the connection.",
    }
    "reset" {
        arity: 1, flags: NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | AT_ONCE | MAY_WALK,
        acl: "@connection", group: "connection", since: "6.2.0", run: connection::reset,
        summary: "Resets the connection's state.",
    }
    "quit" {
        arity: -1, flags: NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | AT_ONCE | MAY_WALK,
        acl: "@connection", group: "connection", since: "1.0.0", run: connection::quit,
        summary: "Closes the connection.",
    }
    "publish" {
        arity: 3, flags: PUBSUB | LOADING | STALE | FAST | GROUPED | READS | PUBLISHES,
        group: "pubsub", since: "2.0.0", run: pubsub::publish,
        summary: "Sends a message to the subscribers of a channel, and returns their number.",
    }
    "spublish" {
        arity: 3, flags: PUBSUB | LOADING | STALE | FAST | GROUPED | READS | PUBLISHES | NO_KEYS,
        keys: ONE, access: "not_key",
        group: "pubsub", since: "7.0.0", run: pubsub::spublish,
        summary: "Sends a message to the subscribers of a shard channel, and returns their number.",
    }
    "subscribe" {
        arity: -2, flags: PUBSUB | NOSCRIPT | LOADING | STALE,
        group: "pubsub", since: "2.0.0", run: pubsub::subscribe,
        summary: "Subscribes to channels.",
    }
    "unsubscribe" {
        arity: -1, flags: PUBSUB | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "pubsub", since: "2.0.0", run: pubsub::unsubscribe,
        summary: "Ends subscriptions to channels.",
    }
    "psubscribe" {
        arity: -2, flags: PUBSUB | NOSCRIPT | LOADING | STALE,
        group: "pubsub", since: "2.0.0", run: pubsub::psubscribe,
        summary: "Subscribes to channels that match patterns.",
    }
    "punsubscribe" {
        arity: -1, flags: PUBSUB | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "pubsub", since: "2.0.0", run: pubsub::punsubscribe,
        summary: "Ends subscriptions to patterns.",
    }
    "ssubscribe" {
        arity: -2, flags: PUBSUB | NOSCRIPT | LOADING | STALE | NO_KEYS,
        keys: ALL, access: "not_key",
        group: "pubsub", since: "7.0.0", run: pubsub::ssubscribe,
        summary: "Subscribes to shard channels.",
    }
    "sunsubscribe" {
        arity: -1, flags: PUBSUB | NOSCRIPT | LOADING | STALE | NO_KEYS | MAY_WALK,
        keys: ALL, access: "not_key",
        group: "pubsub", since: "7.0.0", run: pubsub::sunsubscribe,
        summary: "Ends subscriptions to shard channels.",
    }
    "pubsub" {
        arity: -2,
        group: "pubsub", since: "2.8.0", run: server::container, subcommands: PUBSUB_CONTAINER,
        summary: "Commands about subscriptions.",
    }
    "client" {
        arity: -2, flags: MAY_WALK | TRACKS,
        group: "connection", since: "2.4.0", run: server::container, subcommands: CLIENT,
        summary: "Commands about connections.",
    }
    "command" {
        arity: -1, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "2.8.13", run: command::command, subcommands: COMMAND,
        tips: "nondeterministic_output_order",
        summary: "Describes all commands.",
    }
    "config" {
        arity: -2, flags: MAY_WALK,
        group: "server", since: "2.0.0", run: server::container, subcommands: CONFIG,
        summary: "Commands about the configuration.",
    }
    "info" {
        arity: -1, flags: LOADING | STALE,
        acl: "@dangerous", group: "server", since: "1.0.0", run: info::info,
        tips: "nondeterministic_output request_policy:all_shards response_policy:special",
        summary: "Returns statistics of the server.",
    }
    "time" {
        arity: 1, flags: LOADING | STALE | FAST | GROUPED,
        group: "server", since: "2.6.0", run: server::time,
        tips: "nondeterministic_output",
        summary: "Returns the server's time.",
    }
    "eval" {
        arity: -3, flags: NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | GROUPED | SCRIPT,
        access: "RW access update", acl: "@scripting", group: "scripting", since: "2.6.0", run: scripts::eval,
        summary: "Executes a Lua script, all or nothing.",
    }
    "evalsha" {
        arity: -3, flags: NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | GROUPED | SCRIPT,
        access: "RW access update", acl: "@scripting", group: "scripting", since: "2.6.0", run: scripts::evalsha,
        summary: "Executes a loaded Lua script, all or nothing.",
    }
    "eval_ro" {
        arity: -3, flags: READONLY | NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | GROUPED | SCRIPT,
        access: "RO access", acl: "@scripting", group: "scripting", since: "7.0.0", run: scripts::eval_ro,
        summary: "Executes a Lua script that does not write.",
    }
    "evalsha_ro" {
        arity: -3, flags: READONLY | NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | GROUPED | SCRIPT,
        access: "RO access", acl: "@scripting", group: "scripting", since: "7.0.0", run: scripts::evalsha_ro,
        summary: "Executes a loaded Lua script that does not write.",
    }
    "fcall" {
        arity: -3, flags: NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | GROUPED | SCRIPT,
        access: "RW access update", acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::fcall,
        summary: "Calls a function of a library, all or nothing.",
    }
    "fcall_ro" {
        arity: -3, flags: READONLY | NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLEKEYS | GROUPED | SCRIPT,
        access: "RO access", acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::fcall_ro,
        summary: "Calls a function of a library that does not write.",
    }
    "function" {
        arity: -2, flags: MAY_WALK,
        group: "scripting", since: "7.0.0", run: server::container, subcommands: FUNCTION_COMMANDS,
        summary: "Commands about libraries of functions.",
    }
    "script" {
        arity: -2,
        group: "scripting", since: "2.6.0", run: server::container, subcommands: SCRIPT_COMMANDS,
        summary: "Commands about scripts.",
    }
    "slowlog" {
        arity: -2, flags: MAY_WALK,
        group: "server", since: "2.2.12", run: server::container, subcommands: SLOWLOG,
        summary: "Commands about slow requests.",
    }
    "latency" {
        arity: -2, flags: MAY_WALK,
        group: "server", since: "2.8.13", run: server::container, subcommands: LATENCY,
        summary: "Commands about latency.",
    }
    "memory" {
        arity: -2,
        group: "server", since: "4.0.0", run: server::container, subcommands: MEMORY,
        summary: "Commands about memory.",
    }
    "acl" {
        arity: -2, flags: MAY_WALK,
        group: "server", since: "6.0.0", run: server::container, subcommands: ACL,
        summary: "Commands about users and their permissions.",
    }
    "cluster" {
        arity: -2,
        group: "cluster", since: "3.0.0", run: server::container, subcommands: CLUSTER,
        summary: "Commands for clusters.",
    }
    "readonly" {
        arity: 1, flags: LOADING | STALE | FAST,
        acl: "@connection", group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "readwrite" {
        arity: 1, flags: LOADING | STALE | FAST,
        acl: "@connection", group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "asking" {
        arity: 1, flags: FAST,
        acl: "@connection", group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "save" {
        arity: 1, flags: ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI | WALKS,
        group: "server", since: "1.0.0", run: persistence::save,
        summary: "Writes a backup of this moment to a file, and replies when it is durable.",
    }
    "bgsave" {
        arity: -1, flags: ADMIN | NOSCRIPT | NO_ASYNC_LOADING | WALKS,
        group: "server", since: "1.0.0", run: persistence::bgsave,
        summary: "Begins to write a backup of this moment to a file.",
    }
    "replconf" {
        arity: -1, flags: ADMIN | NOSCRIPT | LOADING | STALE | ALLOW_BUSY,
        group: "server", since: "3.0.0", run: persistence::replconf,
        summary: "Accepts the options of a replica; they have no effect.",
    }
    "sync" {
        arity: 1, flags: ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI | WALKS,
        group: "server", since: "1.0.0", run: persistence::sync,
        summary: "Sends a copy of the store as an RDB file, and closes the connection.",
    }
    "psync" {
        arity: -3, flags: ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI | WALKS,
        group: "server", since: "2.8.0", run: persistence::psync,
        summary: "Sends a copy of the store as an RDB file, and closes the connection.",
    }
    "bgrewriteaof" {
        arity: 1, flags: ADMIN | NOSCRIPT | NO_ASYNC_LOADING,
        group: "server", since: "1.0.0", run: persistence::bgrewriteaof,
        summary: "Has no effect: there is no append-only file.",
    }
    "lastsave" {
        arity: 1, flags: LOADING | STALE | FAST,
        acl: "@admin @dangerous", group: "server", since: "1.0.0", run: persistence::lastsave,
        tips: "nondeterministic_output",
        summary: "Returns when SAVE or BGSAVE was last executed.",
    }
    "wait" {
        arity: 3, flags: NOSCRIPT | READS,
        acl: "@connection", group: "generic", since: "3.0.0", run: persistence::wait,
        tips: "request_policy:all_shards response_policy:agg_min",
        summary: "Returns 0, the number of replicas, when the client's writes are durable.",
    }
    "role" {
        arity: 1, flags: NOSCRIPT | LOADING | STALE | FAST,
        acl: "@admin @dangerous", group: "server", since: "2.8.12", run: persistence::role,
        summary: "Returns the server's role in replication: master.",
    }
    "lolwut" {
        arity: -1, flags: READONLY | FAST,
        group: "server", since: "5.0.0", run: server::lolwut,
        summary: "Returns the version.",
    }
    "monitor" {
        arity: 1, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "1.0.0", run: monitor::monitor,
        summary: "Shows the requests of all clients.",
    }
    "debug" {
        arity: -2, flags: ADMIN | NOSCRIPT | LOADING | STALE | WALKS | READS,
        group: "server", since: "1.0.0", run: debug::debug,
        summary: "Commands for test suites, if enable-debug-command allows them.",
    }
    "shutdown" {
        arity: -1, flags: ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY,
        group: "server", since: "1.0.0", run: server::shutdown,
        summary: "Stops the server; acknowledged writes are durable.",
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::context::command_table::NAME_BYTES_MAX;
    use crate::stats::commands::COMMAND_NUMBERS;

    #[test]
    fn every_command_is_found_in_either_case() {
        for command in ROWS {
            for name in [command.name.to_owned(), command.name.to_ascii_uppercase()] {
                let found = COMMANDS.find(name.as_bytes()).map(|c| c.name);
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
            assert!(COMMANDS.find(name.as_bytes()).is_none(), "{name:?}");
        }
    }

    #[test]
    fn every_command_has_a_number_of_its_own() {
        let mut seen = [false; COMMAND_NUMBERS];
        let subcommands = ROWS.iter().flat_map(|command| command.subcommands);
        for command in ROWS.iter().chain(subcommands) {
            let number = usize::from(command.number);
            assert!(number > 0 && !seen[number], "{}", command.name);
            seen[number] = true;
        }
    }

    #[test]
    fn every_row_is_consistent() {
        for command in ROWS {
            assert_eq!(
                command.keys.first > 0 || command.is(MOVABLEKEYS),
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
}
