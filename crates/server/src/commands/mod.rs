//! Redis commands: one file per family, one [`table`] of all commands, and the path from a request to a reply.
//!
//! ```text
//!   args ─▶ find ─▶ arity ─▶ allowed now? ─▶ queue (in MULTI), or execute ─▶ reply
//!             │        │            │                          │
//!             └────────┴────────────┴───── error reply ◀───────┘
//! ```
//!
//! A command's function appends its reply to `ctx.out`, or returns a [`CommandError`]. In that case the bytes it has
//! appended are removed, and the error is the reply.
//!
//! # Invariants
//! SRV-CMD-1  A write's reply is behind the mark (see `output`), whether or not it changed anything: a write that changes
//!     nothing may reveal another, undurable write.
//! SRV-CMD-2  A read sees undurable writes only if its reply is behind the mark.

mod client;
mod command;
mod config;
mod connection;
mod counters;
mod expiry;
pub(crate) mod info;
mod keys;
pub(crate) mod long;
pub(crate) mod memcached;
pub(crate) mod pipeline;
mod server;
mod strings;
pub(crate) mod table;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farbank_store::{
    Error, GroupDecision, KEY_BYTES_MAX, Key, Ops, ReadView, Session, StoredItem, UpdateDecision,
};

use crate::buffers::pool::BufferPool;
use crate::protocol::resp::{Args, ReplyBuffer, RespVersion, reply};
use crate::state::shared::{ClientInfo, Counter, CounterTotals, ServerShared, lock};
use table::{Command, flag};
use transactions::TransactionQueue;

/// Most bytes of a client's text that an error quotes.
const QUOTE_BYTES: usize = 128;

pub(crate) const SYNTAX: CommandError = CommandError::Fixed("ERR syntax error");
pub(crate) const NOT_INTEGER: CommandError =
    CommandError::Fixed("ERR value is not an integer or out of range");
pub(crate) const WRONG_TYPE: CommandError =
    CommandError::Fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(crate) const NOT_IN_GROUP: CommandError =
    CommandError::Fixed("ERR Command not allowed inside a transaction");
pub(crate) const TOO_LONG: CommandError =
    CommandError::Fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// Why a command failed. The text's first word is the error's code.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// A fixed text.
    Fixed(&'static str),
    /// A text with details of the request.
    Detailed(Vec<u8>),
    /// An error of the store.
    Store(Error),
    /// The request is long and this thread does not execute long requests. It has changed nothing; the thread of long
    /// requests must execute it.
    Long,
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecOutcome {
    /// It was executed, queued or refused.
    Done,
    /// As [`CommandError::Long`].
    Long,
}

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        CommandError::Store(error)
    }
}

impl CommandError {
    /// Returns the error for a wrong number of arguments of the command `name`.
    pub(crate) fn arity(name: &str) -> CommandError {
        CommandError::Detailed(
            format!("ERR wrong number of arguments for '{name}' command").into_bytes(),
        )
    }

    /// The text of the error reply, without `-` and the line's end.
    pub(crate) fn text(&self, shared: &ServerShared<'_>) -> Vec<u8> {
        match self {
            CommandError::Fixed(text) => text.as_bytes().to_vec(),
            CommandError::Detailed(text) => text.clone(),
            CommandError::Store(Error::Full) => full(shared.store.pool_bytes()),
            CommandError::Store(error @ Error::CannotGrow(_)) => {
                format!("OOM {error}").into_bytes()
            }
            CommandError::Store(Error::Poisoned(p)) => misconf(&p.reason),
            CommandError::Store(error) => format!("ERR {error}").into_bytes(),
            CommandError::Long => b"ERR the request takes too long here".to_vec(),
        }
    }
}

/// The error of a full pool. Clients recognise it by its first word.
fn full(pool_bytes: u64) -> Vec<u8> {
    format!(
        "OOM the pool has no room for this write: it has {pool_bytes} bytes. Delete keys, or start the server with a \
         larger --max-size"
    )
    .into_bytes()
}

fn misconf(reason: &str) -> Vec<u8> {
    format!("MISCONF Errors writing to the pool: {reason}").into_bytes()
}

/// Which replies a client gets (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReplyMode {
    #[default]
    On,
    Off,
    /// No reply to the CLIENT REPLY SKIP that is executing, nor to the next request.
    Skip,
    /// No reply to the request that is executing.
    SkipThis,
}

/// Space that a request needs in the store, estimated from its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteNeed {
    /// Bytes of its arguments.
    pub(crate) bytes: usize,
    /// The request stores no value: it only deletes, or changes an expiry.
    pub(crate) deletes: bool,
}

impl WriteNeed {
    fn of(command: &Command, args: Args<'_>) -> WriteNeed {
        WriteNeed {
            bytes: args.from(1).map(<[u8]>::len).sum(),
            deletes: !command.is(flag::DENYOOM),
        }
    }
}

/// RESP state of a connection.
pub(crate) struct ClientState {
    pub(crate) id: u64,
    pub(crate) client_info: Arc<ClientInfo>,
    pub(crate) db: u8,
    pub(crate) resp: RespVersion,
    pub(crate) replies: ReplyMode,
    pub(crate) queue: Option<Box<TransactionQueue>>,
    /// Requests of the transaction that EXEC is executing.
    pub(crate) executing: Option<usize>,
    pub(crate) watched: Box<transactions::WatchedKeys>,
    pub(crate) last_command: &'static str,
    shown_command: &'static str,
    /// The connection is closed once its replies are sent.
    pub(crate) leaving: bool,
}

impl ClientState {
    pub(crate) fn new(client_info: Arc<ClientInfo>) -> ClientState {
        ClientState {
            id: client_info.id,
            client_info,
            shown_command: "NULL",
            db: 0,
            resp: RespVersion::V2,
            replies: ReplyMode::On,
            queue: None,
            executing: None,
            watched: Box::default(),
            last_command: "NULL",
            leaving: false,
        }
    }

    /// Bytes of memory that queued requests and watched keys use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.bytes()) + self.watched.bytes()
    }

    /// Publishes the state in the connection's [`ClientInfo`], for other threads.
    pub(crate) fn show(&mut self) {
        let client_info = &self.client_info;
        client_info.db.store(self.db, Ordering::Relaxed);
        client_info
            .resp
            .store(self.resp.number() as u8, Ordering::Relaxed);
        let queued = self.queue.as_ref().map(|queue| queue.len());
        let queued = queued
            .or(self.executing)
            .map_or(-1, |len| i32::try_from(len).unwrap_or(i32::MAX));
        client_info.multi.store(queued, Ordering::Relaxed);
        client_info
            .watching
            .store(self.watched.len(), Ordering::Relaxed);
        let queue_bytes = self.queue.as_ref().map_or(0, |queue| queue.bytes());
        client_info
            .queue_bytes
            .store(queue_bytes, Ordering::Relaxed);
        let watch_bytes = self.watched.bytes();
        client_info
            .watch_bytes
            .store(watch_bytes, Ordering::Relaxed);
        if self.shown_command != self.last_command {
            lock(&client_info.labels).command = self.last_command;
            self.shown_command = self.last_command;
        }
    }
}

/// Access to the store: the thread's session, or a group inside it.
pub(crate) enum StoreAccess<'a> {
    Session(&'a mut dyn Session),
    Group(&'a mut dyn Ops),
}

/// What a command works with.
pub(crate) struct CommandContext<'a> {
    pub(crate) store_access: StoreAccess<'a>,
    pub(crate) client: &'a mut ClientState,
    pub(crate) out: &'a mut ReplyBuffer,
    /// Buffers for large replies.
    pub(crate) buffer_pool: &'a mut BufferPool,
    /// Start of the first reply that must wait for this batch's ticket.
    pub(crate) mark: &'a mut Option<usize>,
    /// Whether replies of earlier batches still wait for their tickets.
    pub(crate) unacknowledged: bool,
    /// Whether this thread executes long requests.
    pub(crate) executes_long: bool,
    /// Start of the request's reply in `out`.
    pub(crate) from: usize,
    /// Bytes of the values that [`CommandContext::update`] has read for this request; the pipeline resets it.
    pub(crate) updated_value_bytes: usize,
    pub(crate) shared: &'a ServerShared<'a>,
    pub(crate) tally: &'a mut CounterTotals,
}

impl CommandContext<'_> {
    /// Operations on single keys.
    #[inline]
    pub(crate) fn ops(&mut self) -> &mut dyn Ops {
        match &mut self.store_access {
            StoreAccess::Session(session) => &mut **session,
            StoreAccess::Group(ops) => &mut **ops,
        }
    }

    /// Operations on single keys, the reply buffer, and buffers for large replies.
    pub(crate) fn ops_and_out(&mut self) -> (&mut dyn Ops, &mut ReplyBuffer, &mut BufferPool) {
        let ops: &mut dyn Ops = match &mut self.store_access {
            StoreAccess::Session(session) => &mut **session,
            StoreAccess::Group(ops) => &mut **ops,
        };
        (ops, self.out, self.buffer_pool)
    }

    /// [`Ops::update`] for a command whose reply does not contain the value. Counts the value's bytes in `shown_bytes`.
    pub(crate) fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let mut bytes = 0;
        let updated = self.ops().update(key, &mut |item| {
            bytes = item.map_or(0, |item| item.bytes.len());
            decide(item)
        });
        self.updated_value_bytes += bytes;
        updated
    }

    /// The session, for commands that are not about single keys. Such commands never run inside a group.
    pub(crate) fn session(&mut self) -> Result<&mut dyn Session, CommandError> {
        match &mut self.store_access {
            StoreAccess::Session(session) => Ok(&mut **session),
            StoreAccess::Group(_) => Err(NOT_IN_GROUP),
        }
    }

    /// Runs `body` isolated and atomically: in a new group, or in the current one.
    pub(crate) fn grouped(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        match &mut self.store_access {
            StoreAccess::Session(session) => session.group(keys, body),
            StoreAccess::Group(ops) => body(&mut **ops),
        }
    }

    /// The key `bytes` in the client's database.
    #[inline]
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key {
            db: self.client.db,
            bytes,
        }
    }

    /// Which writes a read may see now (SRV-CMD-2).
    #[inline]
    pub(crate) fn view(&self) -> ReadView {
        match self.store_access {
            StoreAccess::Session(_) if self.mark.is_none() => ReadView::Durable,
            _ => ReadView::Pending,
        }
    }

    /// Whether the client may change limits and stop the server.
    pub(crate) fn may_protected(&self) -> bool {
        let actions = self.shared.options.protected_actions;
        actions.allows(self.client.client_info.is_local)
    }

    /// Counts a look-up of a key as a hit or a miss.
    #[inline]
    pub(crate) fn count_lookup(&mut self, found: bool) {
        self.tally.count(
            if found {
                Counter::Hits
            } else {
                Counter::Misses
            },
            1,
        );
    }

    fn refuse(&mut self, from: usize, fail: &CommandError) {
        self.out.truncate(from);
        reply::error(self.out, &fail.text(self.shared));
        self.tally.count(Counter::Errors, 1);
    }
}

/// Executes one request; `command` is the result of looking up its name. Appends exactly one reply, or none if the
/// client has turned replies off or the request is long.
#[inline]
pub(crate) fn run(
    ctx: &mut CommandContext<'_>,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> ExecOutcome {
    let from = ctx.out.len();
    ctx.from = from;
    match resolve(command, args) {
        Ok(command) => {
            if queue_or_execute(ctx, command, args) == ExecOutcome::Long {
                return ExecOutcome::Long;
            }
        }
        Err(fail) => {
            if is_http(args.at(0)) {
                ctx.client.leaving = true;
                return ExecOutcome::Done;
            }
            ctx.client.last_command = lookup(command, args).map_or("NULL", |found| found.name);
            match command {
                Some(command) if command.name == "exec" => transactions::abort(ctx, &fail),
                _ => reject(ctx, &fail),
            }
        }
    }
    ctx.tally.count(Counter::Commands, 1);
    if ctx.client.replies != ReplyMode::On {
        withhold_reply(ctx, from);
    }
    ExecOutcome::Done
}

/// Whether the request is HTTP, which a web page could make a browser send to the server.
fn is_http(name: &[u8]) -> bool {
    is_option(name, "post") || is_option(name, "host:")
}

#[cold]
fn withhold_reply(ctx: &mut CommandContext<'_>, from: usize) {
    match ctx.client.replies {
        ReplyMode::On => return,
        ReplyMode::Off => {}
        ReplyMode::Skip => ctx.client.replies = ReplyMode::SkipThis,
        ReplyMode::SkipThis => ctx.client.replies = ReplyMode::On,
    }
    ctx.out.truncate(from);
}

/// Returns the command or subcommand of `args`, and checks its arity.
#[inline]
pub(crate) fn resolve(
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
pub(crate) fn lookup(
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

/// Whether `word` is the option `name`, in either case. As in Redis, a word ends at its first NUL.
#[inline]
pub(crate) fn is_option(word: &[u8], name: &str) -> bool {
    word.get(name.len()).is_none_or(|&next| next == 0)
        && word
            .get(..name.len())
            .is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
}

/// An option's name or value in lower case. As in Redis, it ends at the first NUL.
pub(crate) fn option(text: &[u8]) -> Vec<u8> {
    quote(text, usize::MAX).to_ascii_lowercase()
}

/// The part of a client's text that an error quotes: up to `most` bytes, and nothing after a NUL.
pub(crate) fn quote(text: &[u8], most: usize) -> &[u8] {
    let text = &text[..text.len().min(most)];
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    &text[..end]
}

/// Replies with an error before execution. It makes the EXEC of a queued transaction fail.
#[cold]
fn reject(ctx: &mut CommandContext<'_>, fail: &CommandError) {
    if let Some(queue) = &mut ctx.client.queue {
        queue.broken = true;
    }
    ctx.refuse(ctx.out.len(), fail);
}

/// Queues a command (in MULTI) or executes it, if it is allowed now.
#[inline]
fn queue_or_execute(
    ctx: &mut CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
) -> ExecOutcome {
    ctx.client.last_command = command.name;
    // As in Redis, PING is refused together with writes: clients use it as a health check.
    if (command.is(flag::WRITE) || command.name == "ping")
        && let Some(reason) = ctx.shared.poisoned.get()
    {
        reject(ctx, &CommandError::Detailed(misconf(reason)));
        return ExecOutcome::Done;
    }
    if ctx.client.queue.is_some() && !command.is(flag::AT_ONCE) {
        transactions::queue(ctx, command, args);
        return ExecOutcome::Done;
    }
    execute(ctx, command, args)
}

/// Executes a command outside any group.
#[inline]
fn execute(ctx: &mut CommandContext<'_>, command: &'static Command, args: Args<'_>) -> ExecOutcome {
    let from = ctx.out.len();
    let clean = ctx.mark.is_none();
    let tells =
        command.is(flag::WRITE) || (command.is(flag::READONLY | flag::READS) && ctx.unacknowledged);
    if tells && clean {
        *ctx.mark = Some(from); // SRV-CMD-1, SRV-CMD-2
    }
    match check_keys(command, args).and_then(|()| (command.run)(ctx, args)) {
        Ok(()) => ExecOutcome::Done,
        Err(fail) => failed(ctx, from, clean, &fail),
    }
}

#[cold]
fn failed(
    ctx: &mut CommandContext<'_>,
    from: usize,
    clean: bool,
    fail: &CommandError,
) -> ExecOutcome {
    if let CommandError::Long = fail {
        ctx.out.rewind(from);
        if clean {
            *ctx.mark = None;
        }
        return ExecOutcome::Long;
    }
    if let CommandError::Store(Error::Poisoned(poisoned)) = fail {
        if ctx.shared.poisoned.set(poisoned.reason.to_string()).is_ok() {
            tracing::error!("{poisoned}");
        }
        if clean {
            *ctx.mark = None; // Nothing was written, so the error reply need not wait.
        }
    }
    ctx.refuse(from, fail);
    ExecOutcome::Done
}

#[inline]
fn check_key(key: &[u8]) -> Result<(), CommandError> {
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Error::KeyTooLong {
            bytes,
            bytes_max: KEY_BYTES_MAX,
        }
        .into()),
    }
}

/// Refuses keys that are longer than the store allows, before anything is done.
#[inline]
fn check_keys(command: &Command, args: Args<'_>) -> Result<(), CommandError> {
    if command.keys.first == 0 {
        return Ok(());
    }
    if command.keys.last == 1 {
        return check_key(args.at(1));
    }
    let mut positions = command.keys.positions(args.len());
    positions.try_for_each(|at| check_key(args.at(at)))
}
