//! Subcommands of the containers in [`table`](super::table), one row each. Each container has a range of numbers of its
//! own.

use super::context::command_row::flag::*;
use super::context::command_row::{Command, SECOND, rows};
use super::{
    acl, client, cluster, command, config, config_rewrite, functions, latency, memory, object,
    pubsub, scripts, slowlog, tracking,
};

/// Subcommands of OBJECT.
pub(super) static OBJECT: &[Command] = rows! { 256;
    "object|encoding" {
        arity: 3, flags: READONLY, keys: SECOND, access: "RO",
        acl: "@keyspace", group: "generic", since: "2.2.3", run: object::encoding,
        tips: "nondeterministic_output",
        summary: "Returns how Redis would store a value.",
    }
    "object|freq" {
        arity: 3, flags: READONLY, keys: SECOND, access: "RO",
        acl: "@keyspace", group: "generic", since: "4.0.0", run: object::freq,
        tips: "nondeterministic_output",
        summary: "Returns how often a key is used, if an LFU policy is selected.",
    }
    "object|idletime" {
        arity: 3, flags: READONLY, keys: SECOND, access: "RO",
        acl: "@keyspace", group: "generic", since: "2.2.3", run: object::idletime,
        tips: "nondeterministic_output",
        summary: "Returns the seconds since a key was last used.",
    }
    "object|refcount" {
        arity: 3, flags: READONLY, keys: SECOND, access: "RO",
        acl: "@keyspace", group: "generic", since: "2.2.3", run: object::refcount,
        tips: "nondeterministic_output",
        summary: "Returns how many references a value has.",
    }
    "object|help" {
        arity: 2, flags: LOADING | STALE,
        acl: "@keyspace", group: "generic", since: "6.2.0", run: object::help,
        summary: "Lists the subcommands of OBJECT.",
    }
};

/// Subcommands of SCRIPT.
pub(super) static SCRIPT_COMMANDS: &[Command] = rows! { 288;
    "script|load" {
        arity: 3, flags: NOSCRIPT | STALE,
        acl: "@scripting", group: "scripting", since: "2.6.0", run: scripts::load,
        tips: "request_policy:all_nodes response_policy:all_succeeded",
        summary: "Loads a script and returns its SHA1.",
    }
    "script|debug" {
        arity: 3, flags: NOSCRIPT,
        acl: "@scripting", group: "scripting", since: "3.2.0", run: scripts::debug,
        summary: "Turns the debugger of scripts off.",
    }
    "script|help" {
        arity: 2, flags: LOADING | STALE,
        acl: "@scripting", group: "scripting", since: "5.0.0", run: scripts::help,
        summary: "Lists the subcommands of SCRIPT.",
    }
    "script|kill" {
        arity: 2, flags: NOSCRIPT | ALLOW_BUSY,
        acl: "@scripting", group: "scripting", since: "2.6.0", run: scripts::kill,
        tips: "request_policy:all_shards response_policy:one_succeeded",
        summary: "Ends the running script if it has not written.",
    }
    "script|exists" {
        arity: -3, flags: NOSCRIPT,
        acl: "@scripting", group: "scripting", since: "2.6.0", run: scripts::exists,
        tips: "request_policy:all_shards response_policy:agg_logical_and",
        summary: "Returns which scripts are loaded.",
    }
    "script|flush" {
        arity: -2, flags: NOSCRIPT,
        acl: "@scripting", group: "scripting", since: "2.6.0", run: scripts::flush,
        tips: "request_policy:all_nodes response_policy:all_succeeded",
        summary: "Removes all loaded scripts.",
    }
};

/// Subcommands of FUNCTION. Those that change libraries wait for the medium, so they are long.
pub(super) static FUNCTION_COMMANDS: &[Command] = rows! { 512;
    "function|load" {
        arity: -3, flags: WRITE | DENYOOM | NOSCRIPT | WALKS | ALONE,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::load,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Loads a library of functions.",
    }
    "function|help" {
        arity: 2, flags: LOADING | STALE,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::help,
        summary: "Lists the subcommands of FUNCTION.",
    }
    "function|kill" {
        arity: 2, flags: NOSCRIPT | ALLOW_BUSY,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::kill,
        tips: "request_policy:all_shards response_policy:one_succeeded",
        summary: "Ends the running function if it has not written.",
    }
    "function|flush" {
        arity: -2, flags: WRITE | NOSCRIPT | WALKS | ALONE,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::flush,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Removes all libraries.",
    }
    "function|restore" {
        arity: -3, flags: WRITE | DENYOOM | NOSCRIPT | WALKS | ALONE,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::restore,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Adds the libraries that FUNCTION DUMP has returned.",
    }
    "function|list" {
        arity: -2, flags: NOSCRIPT,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::list,
        tips: "nondeterministic_output_order",
        summary: "Describes libraries.",
    }
    "function|delete" {
        arity: 3, flags: WRITE | NOSCRIPT | WALKS | ALONE,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::delete,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Removes a library.",
    }
    "function|dump" {
        arity: 2, flags: NOSCRIPT,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::dump,
        summary: "Returns all libraries in the format of FUNCTION RESTORE.",
    }
    "function|stats" {
        arity: 2, flags: NOSCRIPT | ALLOW_BUSY,
        acl: "@scripting", group: "scripting", since: "7.0.0", run: functions::stats,
        tips: "nondeterministic_output request_policy:all_shards response_policy:special",
        summary: "Describes the running function, and counts libraries.",
    }
};

/// Subcommands of CLIENT.
pub(super) static CLIENT: &[Command] = rows! { 320;
    "client|id" {
        arity: 2, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "5.0.0", run: client::id,
        summary: "Returns this connection's id.",
    }
    "client|getname" {
        arity: 2, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "2.6.9", run: client::getname,
        summary: "Returns this connection's name.",
    }
    "client|setname" {
        arity: 3, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "2.6.9", run: client::setname,
        summary: "Sets this connection's name.",
    }
    "client|setinfo" {
        arity: 4, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "7.2.0", run: client::setinfo,
        summary: "Sets the client library's name or version.",
    }
    "client|list" {
        arity: -2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "2.4.0", run: client::list,
        tips: "nondeterministic_output",
        summary: "Lists connections.",
    }
    "client|info" {
        arity: 2, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "6.2.0", run: client::info,
        tips: "nondeterministic_output",
        summary: "Describes this connection.",
    }
    "client|kill" {
        arity: -3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "2.4.0", run: client::kill,
        summary: "Closes connections.",
    }
    "client|reply" {
        arity: 3, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "3.2.0", run: client::reply,
        summary: "Turns replies to this connection on or off.",
    }
    "client|no-evict" {
        arity: 3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "7.0.0", run: client::no_evict,
        summary: "Exempts this connection from eviction by maxmemory-clients.",
    }
    "client|no-touch" {
        arity: 3, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "7.2.0", run: client::no_touch,
        summary: "Excludes this connection's reads from LRU statistics; no effect.",
    }
    "client|getredir" {
        arity: 2, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "6.0.0", run: tracking::getredir,
        summary: "Returns the client that receives this connection's invalidations.",
    }
    "client|pause" {
        arity: -3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "2.9.50", run: client::pause,
        summary: "Holds back requests, or only writes, for some time.",
    }
    "client|unpause" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "6.2.0", run: client::unpause,
        summary: "Ends a pause.",
    }
    "client|unblock" {
        arity: -3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "5.0.0", run: client::unblock,
        summary: "Returns 0: there are no blocking commands.",
    }
    "client|tracking" {
        arity: -3, flags: NOSCRIPT | LOADING | STALE | TRACKS,
        acl: "@connection", group: "connection", since: "6.0.0", run: tracking::tracking,
        summary: "Turns client-side caching of this connection on or off.",
    }
    "client|caching" {
        arity: 3, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "6.0.0", run: tracking::caching,
        summary: "Includes or excludes the keys of the next request from client-side caching.",
    }
    "client|trackinginfo" {
        arity: 2, flags: NOSCRIPT | LOADING | STALE,
        acl: "@connection", group: "connection", since: "6.2.0", run: tracking::trackinginfo,
        summary: "Describes this connection's client-side caching.",
    }
    "client|help" {
        arity: 2, flags: LOADING | STALE,
        acl: "@connection", group: "connection", since: "5.0.0", run: client::help,
        summary: "Lists the subcommands of CLIENT.",
    }
};

/// Subcommands of SLOWLOG.
pub(super) static SLOWLOG: &[Command] = rows! { 448;
    "slowlog|get" {
        arity: -2, flags: ADMIN | LOADING | STALE,
        group: "server", since: "2.2.12", run: slowlog::get,
        tips: "request_policy:all_nodes nondeterministic_output",
        summary: "Returns the latest slow requests.",
    }
    "slowlog|len" {
        arity: 2, flags: ADMIN | LOADING | STALE,
        group: "server", since: "2.2.12", run: slowlog::len,
        tips: "request_policy:all_nodes response_policy:agg_sum nondeterministic_output",
        summary: "Returns the number of slow requests in the log.",
    }
    "slowlog|reset" {
        arity: 2, flags: ADMIN | LOADING | STALE,
        group: "server", since: "2.2.12", run: slowlog::reset,
        tips: "request_policy:all_nodes response_policy:all_succeeded",
        summary: "Empties the log of slow requests.",
    }
    "slowlog|help" {
        arity: 2, flags: LOADING | STALE,
        group: "server", since: "6.2.0", run: slowlog::help,
        summary: "Lists the subcommands of SLOWLOG.",
    }
};

/// Subcommands of PUBSUB.
pub(super) static PUBSUB_CONTAINER: &[Command] = rows! { 352;
    "pubsub|channels" {
        arity: -2, flags: PUBSUB | LOADING | STALE,
        group: "pubsub", since: "2.8.0", run: pubsub::channels,
        summary: "Returns the channels that have subscribers.",
    }
    "pubsub|numpat" {
        arity: 2, flags: PUBSUB | LOADING | STALE,
        group: "pubsub", since: "2.8.0", run: pubsub::numpat,
        summary: "Returns the number of patterns that have subscribers.",
    }
    "pubsub|numsub" {
        arity: -2, flags: PUBSUB | LOADING | STALE,
        group: "pubsub", since: "2.8.0", run: pubsub::numsub,
        summary: "Returns the numbers of subscribers of channels.",
    }
    "pubsub|shardchannels" {
        arity: -2, flags: PUBSUB | LOADING | STALE,
        group: "pubsub", since: "7.0.0", run: pubsub::shardchannels,
        summary: "Returns the shard channels that have subscribers.",
    }
    "pubsub|shardnumsub" {
        arity: -2, flags: PUBSUB | LOADING | STALE,
        group: "pubsub", since: "7.0.0", run: pubsub::shardnumsub,
        summary: "Returns the numbers of subscribers of shard channels.",
    }
    "pubsub|help" {
        arity: 2, flags: LOADING | STALE,
        group: "pubsub", since: "6.2.0", run: pubsub::help,
        summary: "Lists the subcommands of PUBSUB.",
    }
};

/// Subcommands of CONFIG.
pub(super) static CONFIG: &[Command] = rows! { 384;
    "config|get" {
        arity: -3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.0.0", run: config::get,
        summary: "Returns the parameters that match patterns.",
    }
    "config|set" {
        arity: -4, flags: ADMIN | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "server", since: "2.0.0", run: config::set,
        tips: "request_policy:all_nodes response_policy:all_succeeded",
        summary: "Changes parameters, all or none.",
    }
    "config|resetstat" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.0.0", run: config::resetstat,
        summary: "Resets the counters of INFO.",
    }
    "config|rewrite" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE | WALKS | ALONE,
        group: "server", since: "2.8.0", run: config_rewrite::rewrite,
        summary: "Writes the parameters and users to the configuration file.",
    }
    "config|help" {
        arity: 2, flags: LOADING | STALE,
        group: "server", since: "5.0.0", run: config::help,
        summary: "Lists the subcommands of CONFIG.",
    }
};

/// Subcommands of COMMAND.
pub(super) static COMMAND: &[Command] = rows! { 416;
    "command|count" {
        arity: 2, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "2.8.13", run: command::count,
        summary: "Returns the number of commands.",
    }
    "command|docs" {
        arity: -2, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "7.0.0", run: command::docs,
        tips: "nondeterministic_output_order",
        summary: "Returns the documentation of commands.",
    }
    "command|info" {
        arity: -2, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "2.8.13", run: command::info,
        tips: "nondeterministic_output_order",
        summary: "Returns the arity, flags and keys of commands.",
    }
    "command|list" {
        arity: -2, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "7.0.0", run: command::list,
        tips: "nondeterministic_output_order",
        summary: "Returns the names of commands.",
    }
    "command|getkeys" {
        arity: -4, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "2.8.13", run: command::getkeys,
        summary: "Returns the keys of a request.",
    }
    "command|getkeysandflags" {
        arity: -4, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "7.0.0", run: command::getkeysandflags,
        summary: "Returns the keys of a request, and how it accesses them.",
    }
    "command|help" {
        arity: 2, flags: LOADING | STALE,
        acl: "@connection", group: "server", since: "5.0.0", run: command::help,
        summary: "Lists the subcommands of COMMAND.",
    }
};

/// Subcommands of LATENCY.
pub(super) static LATENCY: &[Command] = rows! { 480;
    "latency|latest" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.8.13", run: latency::latest,
        tips: "nondeterministic_output request_policy:all_nodes response_policy:special",
        summary: "Returns the latest latency peak of each event.",
    }
    "latency|history" {
        arity: 3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.8.13", run: latency::history,
        tips: "nondeterministic_output request_policy:all_nodes response_policy:special",
        summary: "Returns the latency peaks of an event.",
    }
    "latency|reset" {
        arity: -2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.8.13", run: latency::reset,
        tips: "request_policy:all_nodes response_policy:all_succeeded",
        summary: "Forgets the latency peaks of some or all events.",
    }
    "latency|graph" {
        arity: 3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.8.13", run: latency::graph,
        tips: "nondeterministic_output request_policy:all_nodes response_policy:special",
        summary: "Draws the latency peaks of an event.",
    }
    "latency|doctor" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "2.8.13", run: latency::doctor,
        tips: "nondeterministic_output request_policy:all_nodes response_policy:special",
        summary: "Reports the latency peaks as a text.",
    }
    "latency|histogram" {
        arity: -2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "7.0.0", run: latency::histogram,
        tips: "nondeterministic_output request_policy:all_nodes response_policy:special",
        summary: "Returns the distribution of the times of commands.",
    }
    "latency|help" {
        arity: 2, flags: LOADING | STALE,
        group: "server", since: "2.8.13", run: latency::help,
        summary: "Lists the subcommands of LATENCY.",
    }
};

/// Subcommands of MEMORY.
pub(super) static MEMORY: &[Command] = rows! { 496;
    "memory|usage" {
        arity: -3, flags: READONLY, keys: SECOND, access: "RO",
        group: "server", since: "4.0.0", run: memory::usage,
        summary: "Returns the bytes that a key takes in the pool, about.",
    }
    "memory|stats" {
        arity: 2,
        group: "server", since: "4.0.0", run: memory::stats,
        tips: "nondeterministic_output request_policy:all_shards response_policy:special",
        summary: "Returns figures about the server's memory.",
    }
    "memory|doctor" {
        arity: 2,
        group: "server", since: "4.0.0", run: memory::doctor,
        tips: "nondeterministic_output request_policy:all_shards response_policy:special",
        summary: "Reports problems with the server's memory.",
    }
    "memory|purge" {
        arity: 2,
        group: "server", since: "4.0.0", run: memory::purge,
        tips: "request_policy:all_shards response_policy:all_succeeded",
        summary: "Has no effect: the allocator returns memory itself.",
    }
    "memory|malloc-stats" {
        arity: 2,
        group: "server", since: "4.0.0", run: memory::malloc_stats,
        tips: "nondeterministic_output request_policy:all_shards response_policy:special",
        summary: "Says that the allocator has no statistics.",
    }
    "memory|help" {
        arity: 2, flags: LOADING | STALE,
        group: "server", since: "4.0.0", run: memory::help,
        summary: "Lists the subcommands of MEMORY.",
    }
};

/// Subcommands of ACL. Those that use the file wait for a disk, so they are long.
pub(super) static ACL: &[Command] = rows! { 544;
    "acl|load" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE | WALKS | ALONE,
        group: "server", since: "6.0.0", run: acl::load,
        summary: "Replaces the users by those of the ACL file.",
    }
    "acl|dryrun" {
        arity: -4, flags: ADMIN | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "server", since: "7.0.0", run: acl::dryrun,
        summary: "Returns whether a user may execute a request, without executing it.",
    }
    "acl|setuser" {
        arity: -3, flags: ADMIN | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "server", since: "6.0.0", run: acl::setuser,
        summary: "Creates a user, or applies rules to one.",
    }
    "acl|users" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "6.0.0", run: acl::users,
        summary: "Returns the names of all users.",
    }
    "acl|help" {
        arity: 2, flags: LOADING | STALE,
        group: "server", since: "6.0.0", run: acl::help,
        summary: "Lists the subcommands of ACL.",
    }
    "acl|genpass" {
        arity: -2, flags: NOSCRIPT | LOADING | STALE,
        group: "server", since: "6.0.0", run: acl::genpass,
        summary: "Returns a random password.",
    }
    "acl|whoami" {
        arity: 2, flags: NOSCRIPT | LOADING | STALE,
        group: "server", since: "6.0.0", run: acl::whoami,
        summary: "Returns the name of the connection's user.",
    }
    "acl|list" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE | WALKS,
        group: "server", since: "6.0.0", run: acl::list,
        summary: "Returns all users as rules.",
    }
    "acl|log" {
        arity: -2, flags: ADMIN | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "server", since: "6.0.0", run: acl::log,
        summary: "Returns the latest refused requests.",
    }
    "acl|getuser" {
        arity: 3, flags: ADMIN | NOSCRIPT | LOADING | STALE | MAY_WALK,
        group: "server", since: "6.0.0", run: acl::getuser,
        summary: "Describes a user.",
    }
    "acl|deluser" {
        arity: -3, flags: ADMIN | NOSCRIPT | LOADING | STALE,
        group: "server", since: "6.0.0", run: acl::deluser,
        summary: "Removes users, and closes their connections.",
    }
    "acl|cat" {
        arity: -2, flags: NOSCRIPT | LOADING | STALE,
        group: "server", since: "6.0.0", run: acl::cat,
        summary: "Returns the categories of commands, or the commands of a category.",
    }
    "acl|save" {
        arity: 2, flags: ADMIN | NOSCRIPT | LOADING | STALE | WALKS | ALONE,
        group: "server", since: "6.0.0", run: acl::save,
        summary: "Writes the users to the ACL file.",
    }
};

/// Subcommands of CLUSTER. As in Redis without a cluster, all are refused.
pub(super) static CLUSTER: &[Command] = rows! { 576;
    "cluster|addslots" {
        arity: -3, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|addslotsrange" {
        arity: -4, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "7.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|bumpepoch" {
        arity: 2, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|count-failure-reports" {
        arity: 3, flags: ADMIN | STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|countkeysinslot" {
        arity: 3, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|delslots" {
        arity: -3, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|delslotsrange" {
        arity: -4, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "7.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|failover" {
        arity: -2, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|flushslots" {
        arity: 2, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|forget" {
        arity: 3, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|getkeysinslot" {
        arity: 4, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|help" {
        arity: 2, flags: LOADING | STALE,
        group: "cluster", since: "5.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|info" {
        arity: 2, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|keyslot" {
        arity: 3, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|links" {
        arity: 2, flags: STALE,
        group: "cluster", since: "7.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|meet" {
        arity: -4, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|myid" {
        arity: 2, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|nodes" {
        arity: 2, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|replicas" {
        arity: 3, flags: ADMIN | STALE,
        group: "cluster", since: "5.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|replicate" {
        arity: 3, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|reset" {
        arity: -2, flags: ADMIN | NOSCRIPT | STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|saveconfig" {
        arity: 2, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|set-config-epoch" {
        arity: 3, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|setslot" {
        arity: -4, flags: ADMIN | STALE | NO_ASYNC_LOADING,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        summary: "Refused: the server is no cluster.",
    }
    "cluster|shards" {
        arity: 2, flags: STALE,
        group: "cluster", since: "7.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|slaves" {
        arity: 3, flags: ADMIN | STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
    "cluster|slots" {
        arity: 2, flags: STALE,
        group: "cluster", since: "3.0.0", run: cluster::refuse,
        tips: "nondeterministic_output",
        summary: "Refused: the server is no cluster.",
    }
};
