//! What Redis commands work with.
//!
//! These types refer to each other, so they are together: a command's row has its function, the function takes the
//! context, the context has the client's state, and that has the rows of the queued commands.
//!
//! * [`CommandContext`]: what a command's function works with.
//! * [`client_state`]: the state of a connection: database, protocol version, transaction.
//! * [`transaction`]: requests queued by MULTI, and watched keys.
//! * [`command_row`]: a row of the table of commands. [`command_table`]: the look-up by name.

pub(crate) mod client_state;
pub(super) mod command_row;
pub(super) mod command_table;
pub(super) mod transaction;

use farbank_pm::rng::Rng;
use farbank_store::{
    Error, GroupDecision, Key, Ops, ReadView, Session, StoredItem, UpdateDecision,
};

use super::error::{CommandError, NOT_IN_GROUP};
use crate::buffers::pool::BufferPool;
use crate::buffers::reply::ReplyBuffer;
use crate::exec_context::{ExecContext, StoreAccess};
use crate::protocol::resp::reply;
use crate::stats::counters::Counter;
use client_state::ClientState;
use command_row::Command;

/// What a Redis command works with.
pub(in crate::commands) type CommandContext<'a> = ExecContext<'a, StoreAccess<'a>, ClientState>;

impl CommandContext<'_> {
    /// Operations on single keys.
    #[inline]
    pub(in crate::commands) fn ops(&mut self) -> &mut dyn Ops {
        self.store.ops()
    }

    /// Operations on single keys, the reply buffer, and buffers for large replies.
    pub(in crate::commands) fn ops_and_out(
        &mut self,
    ) -> (&mut dyn Ops, &mut ReplyBuffer, &mut BufferPool) {
        (self.store.ops(), self.out, &mut self.thread.buffer_pool)
    }

    /// [`Ops::update`] for a command whose reply does not contain the value. Counts the value's bytes in `request.hidden_bytes`,
    /// and records whether the key was absent.
    pub(in crate::commands) fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let (mut bytes, mut was_absent, mut new_expiry) = (0, false, 0);
        self.notify_if_expired(key);
        let updated = self.ops().update(key, &mut |item| {
            bytes = item.map_or(0, |item| item.bytes.len());
            was_absent = item.is_none();
            let decision = decide(item);
            if let UpdateDecision::Put { expires_ms, .. } = decision {
                new_expiry = expires_ms;
            }
            decision
        });
        self.note_expiry(key, new_expiry);
        self.request.hidden_bytes += bytes;
        self.request.was_absent = was_absent;
        updated
    }

    /// The session, for commands that are not about single keys. Such commands never run inside a group of known keys.
    pub(in crate::commands) fn session(&mut self) -> Result<&mut dyn Session, CommandError> {
        match &mut self.store {
            StoreAccess::Session(session) => Ok(&mut **session),
            StoreAccess::Group(_) => Err(NOT_IN_GROUP),
            StoreAccess::Optimistic(access) => Ok(access.session()),
        }
    }

    /// Removes every key of every database.
    pub(in crate::commands) fn flush_all(&mut self) -> Result<(), CommandError> {
        match &mut self.store {
            StoreAccess::Session(session) => Ok(session.flush_all()?),
            StoreAccess::Group(_) => Err(NOT_IN_GROUP),
            StoreAccess::Optimistic(access) => Ok(access.flush_all()?),
        }
    }

    /// Runs `body` isolated and atomically: in a new group, or in the current one.
    pub(in crate::commands) fn grouped(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        match &mut self.store {
            StoreAccess::Session(session) => session.group(keys, body),
            group => body(group.ops()),
        }
    }

    /// Runs `body` in a new group of `keys`, with a context whose commands access the group. Abandons the group if
    /// this context is in a group itself. `executes_long`: the commands of the group are never long.
    pub(in crate::commands) fn with_group(
        &mut self,
        keys: &[Key<'_>],
        executes_long: bool,
        body: &mut dyn FnMut(&mut CommandContext<'_>) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        let (store, mut rest) = self.split_store();
        let StoreAccess::Session(session) = store else {
            return Ok(GroupDecision::Abandon);
        };
        rest.executes_long = executes_long;
        (rest.request.hidden_bytes, rest.request.holds_locks) = (0, true);
        session.group(keys, &mut |ops| {
            body(&mut rest.split_store().1.with_store(StoreAccess::Group(ops)))
        })
    }

    /// The key `bytes` in the client's database.
    #[inline]
    pub(in crate::commands) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key {
            db: self.client.db,
            bytes,
        }
    }

    /// Which writes a read may see now (SRV-CMD-2).
    #[inline]
    pub(in crate::commands) fn view(&self) -> ReadView {
        match self.store {
            StoreAccess::Session(_) if self.mark.is_none() => ReadView::Durable,
            _ => ReadView::Pending,
        }
    }

    /// Whether the client may change limits and stop the server.
    pub(in crate::commands) fn may_protected(&self) -> bool {
        let actions = self.shared.options.protected_actions;
        actions.allows(self.client.client_info.is_local)
    }

    /// Counts a look-up of a key as a hit or a miss.
    #[inline]
    pub(in crate::commands) fn count_lookup(&mut self, key: Key<'_>, found: bool) {
        self.count(match found {
            true => Counter::Hits,
            false => Counter::Misses,
        });
        if !found {
            self.notify_miss(key);
        }
    }

    /// Records a use of `key` by a command that reads only its metadata, if the eviction policy depends on uses.
    #[inline]
    pub(in crate::commands) fn note_use(&mut self, key: Key<'_>) {
        if let Some(table) = self.shared.access_table() {
            let mut random = Rng::new(self.thread.evictor.seed());
            table.note(key, self.shared.access_clock(), &mut random);
        }
    }

    /// Records that the bytes from `start` on are no reply: CLIENT REPLY does not withhold them if they precede the
    /// request's reply.
    pub(in crate::commands) fn note_push(&mut self, start: usize) {
        if self.request.push_end == start {
            self.request.push_end = self.out.len();
        }
    }

    /// Replies with an error, in place of what the request has appended from `from` on.
    pub(in crate::commands) fn refuse(&mut self, from: usize, fail: &CommandError) {
        let text = fail.text(self.shared);
        self.out.truncate(from);
        reply::error(self.out, &text);
        self.count_error(&text);
    }

    /// Counts an error reply with this text.
    #[cold]
    pub(in crate::commands) fn count_error(&mut self, text: &[u8]) {
        self.count(Counter::Errors);
        let generation = self.shared.stats.counters.generation();
        self.published.commands.count_error(text, generation);
    }

    /// Counts a request of `command` that is refused before its execution.
    #[cold]
    pub(in crate::commands) fn count_rejected(&mut self, command: &Command) {
        let generation = self.shared.stats.counters.generation();
        self.published
            .commands
            .count_rejected(command.number, generation);
    }

    /// Counts a request of `command` as failed if its function has appended an error itself.
    #[cold]
    pub(in crate::commands) fn count_if_failed(&mut self, command: &Command) {
        if std::mem::take(&mut self.request.has_failed) {
            self.count_failed(command);
        }
    }

    /// Counts a request of `command` whose execution has failed.
    #[cold]
    pub(in crate::commands) fn count_failed(&mut self, command: &Command) {
        let generation = self.shared.stats.counters.generation();
        self.published
            .commands
            .count_failed(command.number, generation);
    }
}
