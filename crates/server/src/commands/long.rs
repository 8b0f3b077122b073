//! Decides which requests are long, that is, take more time than a worker may spend while other clients wait.
//!
//! Most are recognised by their arguments before execution ([`is_long`]): by the number of arguments, their bytes, or a
//! command that visits all keys. A request that meets large values during execution ends with [`CommandError::Long`]
//! before it has changed anything. The thread of long requests (`net::long_requests`) executes both kinds, without
//! these checks.

use farbank_pm::Drain;
use farbank_store::{Key, ReadView};

use super::acl::check::{COMPARED_MAX, is_long_check};
use super::context::CommandContext;
use super::context::client_state::ClientState;
use super::context::command_row::{Command, flag};
use super::context::transaction::{TransactionQueue, WatchedKeys};
use super::error::CommandError;
use super::text::{self, is_option};
use crate::exec_context::LONG_REQUEST_BYTES;
use crate::protocol::resp::Args;
use crate::protocol::resp::number::parse_i64;
use crate::state::shared::ServerShared;

/// Most arguments of a request.
const ARGS: usize = 1000;
/// Most arguments of a request that writes. Each key of a group costs several microseconds.
const WRITE_ARGS: usize = 200;
/// Most requests of a transaction.
const QUEUED: usize = 64;
/// Most keys that SCAN visits.
const SCANNED: i64 = 100;
/// Longest pattern of a SCAN.
const PATTERN_BYTES: usize = 128;
/// Most connections that CLIENT LIST lists.
const CLIENTS: usize = 500;

/// Most requests in the slow log that SLOWLOG GET returns, and most arguments of LATENCY HISTOGRAM.
const SLOW_REQUESTS: usize = 128;
const HISTOGRAMS: usize = 200;
/// Longest password that a worker hashes.
const PASSWORD_BYTES: usize = 64 << 10;
/// Most rules of a user that a request sets or describes.
const RULES: usize = 32;
/// Most subscriptions that a request ends.
const SUBSCRIPTIONS: usize = 1000;
/// Most patterns that PUBLISH matches.
const PATTERNS: usize = 2000;

/// Whether a request is long by its arguments. `bytes`: its length, including its frame.
#[inline]
pub(super) fn is_long(
    client: &ClientState,
    shared: &ServerShared<'_>,
    command: Option<&'static Command>,
    args: Args<'_>,
    bytes: usize,
) -> bool {
    let Some(command) = command else {
        return args.len() > ARGS;
    };
    if client.user.is_restricted() && is_long_check(client.user.pattern_bytes(), command, args) {
        return true;
    }
    match &client.transaction.queue {
        Some(queue) if command.name == "exec" => {
            let patterns = shared.interests.subscriptions.patterns();
            let compared = queue.bytes().saturating_mul(client.user.pattern_bytes());
            return is_long_queue(queue, &client.transaction.watched, patterns)
                || client.user.is_restricted() && compared > COMPARED_MAX;
        }
        // The transaction queues it.
        Some(_) if !command.is(flag::AT_ONCE) => return false,
        _ => {}
    }
    let args_max = if command.is(flag::WRITE) {
        WRITE_ARGS
    } else {
        ARGS
    };
    bytes > LONG_REQUEST_BYTES
        || args.len() > args_max
        || command.is(flag::WALKS)
        || command.is(flag::MAY_WALK) && walks(client, shared, command, args)
        || shared.interests.subscriptions.patterns() > PATTERNS
            && (command.is(flag::PUBLISHES) || command.has_keys() && shared.settings.notifies())
}

/// Whether a request of a [`flag::MAY_WALK`] command visits much, or waits for the medium.
#[cold]
fn walks(
    client: &ClientState,
    shared: &ServerShared<'_>,
    command: &Command,
    args: Args<'_>,
) -> bool {
    // The session first waits until its own writes are durable.
    let waits = || shared.store.caps().drain == Drain::Sync;
    match command.name {
        "scan" => {
            let mut options = (2..args.len()).step_by(2);
            waits()
                || options.any(|at| {
                    let (option, value) = (args.at(at), args.at(at + 1));
                    is_option(option, "count") && parse_i64(value).is_none_or(|n| n > SCANNED)
                        || is_option(option, "match") && value.len() > PATTERN_BYTES
                })
        }
        "dbsize" | "randomkey" => waits(),
        "unsubscribe" | "punsubscribe" | "sunsubscribe" | "reset" | "quit" => {
            let own = client.subscriptions.as_ref();
            let is_all = args.len() == 1 || command.name == "quit";
            is_all && own.is_some_and(|own| own.total() > SUBSCRIPTIONS)
        }
        "client" => is_option(args.at(1), "list") && shared.clients.count() > CLIENTS,
        "function" => ["load", "delete", "flush", "restore"]
            .iter()
            .any(|name| is_option(args.at(1), name)),
        // It reads files.
        "config" | "config|set" => {
            is_option(args.at(1), "set")
                && args
                    .from(2)
                    .any(|arg| arg.len() > 4 && arg[..4].eq_ignore_ascii_case(b"tls-"))
        }
        "auth" | "hello" => has_long_word(args),
        "acl" => walks_users(shared, args.at(1), args),
        name if name.starts_with("acl|") => walks_users(shared, args.at(1), args),
        "slowlog" => is_option(args.at(1), "get") && shared.stats.slow_log.len() > SLOW_REQUESTS,
        "latency" => args.len() > HISTOGRAMS,
        _ => false,
    }
}

/// Whether an argument may be a password that takes long to hash.
fn has_long_word(args: Args<'_>) -> bool {
    args.from(1).any(|arg| arg.len() > PASSWORD_BYTES)
}

/// Whether a subcommand of ACL uses the file, or visits many users, rules or refused requests.
fn walks_users(shared: &ServerShared<'_>, subcommand: &[u8], args: Args<'_>) -> bool {
    match text::option(subcommand).as_slice() {
        b"load" | b"save" | b"list" => true,
        b"setuser" => args.len() > RULES || has_long_word(args),
        b"getuser" => {
            let users = shared.security.users.current();
            users
                .get(args.at(2))
                .is_some_and(|user| user.rules() > RULES)
        }
        b"dryrun" => {
            let (users, request) = (shared.security.users.current(), args.rest(3));
            let bytes = request.from(0).map(|arg| arg.len() + 1).sum::<usize>();
            users.get(args.at(2)).is_some_and(|user| {
                user.rules() > RULES || user.pattern_bytes().saturating_mul(bytes) > COMPARED_MAX
            })
        }
        b"log" => shared.security.acl_log.len() > SLOW_REQUESTS,
        _ => false,
    }
}

fn is_long_queue(queue: &TransactionQueue, watched: &WatchedKeys, patterns: usize) -> bool {
    queue.len() > QUEUED
        || queue.bytes() > LONG_REQUEST_BYTES
        || queue.args() + watched.len() > WRITE_ARGS
        || queue.has(flag::WALKS | flag::MAY_WALK)
        // Only the first group can end as long (`transactions`).
        || queue.has(flag::SCRIPT) && !queue.is_one_group()
        || patterns > PATTERNS / QUEUED
}

impl CommandContext<'_> {
    /// Bytes of values that the request may still read before it is long.
    #[inline]
    pub(super) fn bytes_left(&self) -> usize {
        match self.executes_long {
            true => usize::MAX,
            false => LONG_REQUEST_BYTES.saturating_sub(self.out.len() - self.request.reply_start),
        }
    }

    /// Checks that the value of `key` is not too large for a worker to copy.
    ///
    /// # Errors
    /// [`CommandError::Long`] if it is too large.
    #[inline]
    pub(super) fn refuse_long_value(&mut self, key: Key<'_>) -> Result<(), CommandError> {
        if self.executes_long || self.shared.store.item_bytes_max() <= LONG_REQUEST_BYTES {
            return Ok(());
        }
        // The command itself meets the same error again and replies with it.
        match self.ops().meta(key, ReadView::Pending) {
            Ok(Some(meta)) if meta.value_bytes > LONG_REQUEST_BYTES => Err(CommandError::Long),
            _ => Ok(()),
        }
    }
}
