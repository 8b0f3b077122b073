//! Commands: one file a family, one [`table`] of them all, and the way from a request to a reply.
//!
//! ```text
//!   args ─▶ find ─▶ arity ─▶ may it run now? ─▶ queue it (MULTI), or run it ─▶ reply
//!             │        │            │                                │
//!             └────────┴────────────┴──── an error reply ◀───────────┘
//! ```
//!
//! A command's function appends its reply to `ctx.out` and returns, or returns why it could not: then
//! whatever it had appended is taken back and the reason is the reply.
//!
//! # Invariants
//! C1  A write's reply is behind the mark (see `conn`), whether or not it changed anything: that it
//!     changed nothing may itself be news of an undurable write.
//! C2  A read sees undurable writes only if its reply is behind the mark.

mod client;
mod command;
mod config;
mod connection;
mod counters;
mod expiry;
pub(crate) mod info;
mod keys;
pub(crate) mod long;
pub(crate) mod pipeline;
mod server;
mod strings;
pub(crate) mod table;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farbank_kv::store::{
    Error, GroupDecision, KEY_BYTES_MAX, Key, Ops, ReadView, Session, StoredItem, UpdateDecision,
};

use crate::buffer_pool::BufferPool;
use crate::resp::{Args, ReplyBuffer, RespVersion, reply};
use crate::shared::{ClientInfo, Counter, CounterTotals, ServerShared, lock};
use table::{Command, flag};
use transactions::TransactionQueue;

/// Text of a client's own making that an error quotes is cut here.
const QUOTE_BYTES: usize = 128;

pub(crate) const SYNTAX: CommandError = CommandError::Is("ERR syntax error");
pub(crate) const NOT_INTEGER: CommandError =
    CommandError::Is("ERR value is not an integer or out of range");
pub(crate) const WRONG_TYPE: CommandError =
    CommandError::Is("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(crate) const NOT_IN_GROUP: CommandError =
    CommandError::Is("ERR Command not allowed inside a transaction");
pub(crate) const TOO_LONG: CommandError =
    CommandError::Is("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// Why a command did not do what it was asked. The text's first word is the error's code.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// As always.
    Is(&'static str),
    /// With particulars.
    Says(Vec<u8>),
    /// What the store said.
    Store(Error),
    /// It takes long, and others wait for this thread: nothing has happened yet, and another thread is to execute it.
    Long,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecOutcome {
    /// It was executed, or refused.
    Done,
    /// As [`Fail::Long`].
    Long,
}

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        CommandError::Store(error)
    }
}

impl CommandError {
    /// The wrong number of arguments for the command called `name`.
    pub(crate) fn arity(name: &str) -> CommandError {
        CommandError::Says(
            format!("ERR wrong number of arguments for '{name}' command").into_bytes(),
        )
    }

    /// The error line, without its marker and end.
    pub(crate) fn text(&self, shared: &ServerShared<'_>) -> Vec<u8> {
        match self {
            CommandError::Is(text) => text.as_bytes().to_vec(),
            CommandError::Says(text) => text.clone(),
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

/// Clients know the error by its first word.
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

/// How a client wants its replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReplyMode {
    #[default]
    On,
    Off,
    /// None to the request that asked for it, nor to the next.
    Skip,
    /// None to this request.
    SkipThis,
}

/// What a request writes, as far as its arguments tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteNeed {
    /// Bytes of its arguments.
    pub(crate) bytes: usize,
    /// It only deletes, or changes what is beside a value.
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

/// What a connection is, apart from its socket.
pub(crate) struct ClientState {
    pub(crate) id: u64,
    pub(crate) card: Arc<ClientInfo>,
    pub(crate) db: u8,
    pub(crate) resp: RespVersion,
    pub(crate) replies: ReplyMode,
    pub(crate) queue: Option<Box<TransactionQueue>>,
    /// Requests of the transaction that EXEC is executing.
    pub(crate) executing: Option<usize>,
    pub(crate) watched: Box<transactions::WatchedKeys>,
    pub(crate) last_command: &'static str,
    shown_command: &'static str,
    /// The connection is closed once its replies have left.
    pub(crate) leaving: bool,
}

impl ClientState {
    pub(crate) fn new(card: Arc<ClientInfo>) -> ClientState {
        ClientState {
            id: card.id,
            card,
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

    /// Bytes of memory that queued requests and watched keys take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.bytes()) + self.watched.bytes()
    }

    /// Shows on its card what others may know.
    pub(crate) fn show(&mut self) {
        let card = &self.card;
        card.db.store(self.db, Ordering::Relaxed);
        card.resp.store(self.resp.number() as u8, Ordering::Relaxed);
        let queued = self.queue.as_ref().map(|queue| queue.len());
        let queued = queued
            .or(self.executing)
            .map_or(-1, |len| i32::try_from(len).unwrap_or(i32::MAX));
        card.multi.store(queued, Ordering::Relaxed);
        card.watching.store(self.watched.len(), Ordering::Relaxed);
        let queue_bytes = self.queue.as_ref().map_or(0, |queue| queue.bytes());
        card.queue_bytes.store(queue_bytes, Ordering::Relaxed);
        let watch_bytes = self.watched.bytes();
        card.watch_bytes.store(watch_bytes, Ordering::Relaxed);
        if self.shown_command != self.last_command {
            lock(&card.labels).command = self.last_command;
            self.shown_command = self.last_command;
        }
    }
}

/// The way to the store: the worker's session, or a group inside it.
pub(crate) enum CommandContext<'a> {
    Session(&'a mut dyn Session),
    Group(&'a mut dyn Ops),
}

/// What a command may use.
pub(crate) struct CommandCtx<'a> {
    pub(crate) door: CommandContext<'a>,
    pub(crate) client: &'a mut ClientState,
    pub(crate) out: &'a mut ReplyBuffer,
    /// Buffers for large replies.
    pub(crate) shelf: &'a mut BufferPool,
    /// Where the first reply starts that must wait for this batch's ticket.
    pub(crate) mark: &'a mut Option<usize>,
    /// Whether replies of earlier batches still wait.
    pub(crate) unacknowledged: bool,
    /// Whether this is the thread of long requests, for which no other client waits.
    pub(crate) executes_long: bool,
    /// Where the request's reply starts.
    pub(crate) from: usize,
    /// Bytes of the values that [`Ctx::update`] has shown, since the pipeline has asked last.
    pub(crate) shown_bytes: usize,
    pub(crate) shared: &'a ServerShared<'a>,
    pub(crate) tally: &'a mut CounterTotals,
}

impl CommandCtx<'_> {
    /// Operations on single keys.
    #[inline]
    pub(crate) fn ops(&mut self) -> &mut dyn Ops {
        match &mut self.door {
            CommandContext::Session(session) => &mut **session,
            CommandContext::Group(ops) => &mut **ops,
        }
    }

    /// Operations on single keys, where the reply goes, and buffers for a large one.
    pub(crate) fn ops_and_out(&mut self) -> (&mut dyn Ops, &mut ReplyBuffer, &mut BufferPool) {
        let ops: &mut dyn Ops = match &mut self.door {
            CommandContext::Session(session) => &mut **session,
            CommandContext::Group(ops) => &mut **ops,
        };
        (ops, self.out, self.shelf)
    }

    /// [`Ops::update`] of a command that replies without the value: counts the bytes that it shows.
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
        self.shown_bytes += bytes;
        updated
    }

    /// The session, which commands that span keys need. They are never run inside a group.
    pub(crate) fn session(&mut self) -> Result<&mut dyn Session, CommandError> {
        match &mut self.door {
            CommandContext::Session(session) => Ok(&mut **session),
            CommandContext::Group(_) => Err(NOT_IN_GROUP),
        }
    }

    /// Runs `body` isolated and all or nothing: in a group of its own, or in the one it is in.
    pub(crate) fn grouped(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        match &mut self.door {
            CommandContext::Session(session) => session.group(keys, body),
            CommandContext::Group(ops) => body(&mut **ops),
        }
    }

    /// The key called `bytes` in the client's database.
    #[inline]
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key {
            db: self.client.db,
            bytes,
        }
    }

    /// What a read may see now (C2).
    #[inline]
    pub(crate) fn view(&self) -> ReadView {
        match self.door {
            CommandContext::Session(_) if self.mark.is_none() => ReadView::Durable,
            _ => ReadView::Pending,
        }
    }

    /// Whether the client may change limits and end the server.
    pub(crate) fn may_protected(&self) -> bool {
        let actions = self.shared.options.protected_actions;
        actions.allows(self.client.card.is_local)
    }

    /// Counts a key that was asked for.
    #[inline]
    pub(crate) fn looked_up(&mut self, found: bool) {
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

/// Executes one request, whose name was looked up: appends exactly one reply, unless the client wants
/// none, or nothing if the request is long.
#[inline]
pub(crate) fn run(
    ctx: &mut CommandCtx<'_>,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> ExecOutcome {
    let from = ctx.out.len();
    ctx.from = from;
    match resolve(command, args) {
        Ok(command) => {
            if admit(ctx, command, args) == ExecOutcome::Long {
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

/// What a browser, tricked into talking to us, would send.
fn is_http(name: &[u8]) -> bool {
    is_option(name, "post") || is_option(name, "host:")
}

#[cold]
fn withhold_reply(ctx: &mut CommandCtx<'_>, from: usize) {
    match ctx.client.replies {
        ReplyMode::On => return,
        ReplyMode::Off => {}
        ReplyMode::Skip => ctx.client.replies = ReplyMode::SkipThis,
        ReplyMode::SkipThis => ctx.client.replies = ReplyMode::On,
    }
    ctx.out.truncate(from);
}

/// The command that `args` asks for, given what its name was found to be; its arity fits.
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

/// The command or subcommand that `args` names, whether or not its arity fits.
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
    CommandError::Says(text)
}

fn unknown_subcommand(container: &Command, name: &[u8]) -> CommandError {
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend_from_slice(quote(name, QUOTE_BYTES));
    let container = container.name.to_ascii_uppercase();
    text.extend_from_slice(format!("'. Try {container} HELP.").as_bytes());
    CommandError::Says(text)
}

/// Whether `word` is the option called `name`, in either case. As in Redis, a word ends at its
/// first NUL.
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

/// As much of a client's text as an error quotes: up to `most` bytes, and nothing after a NUL.
pub(crate) fn quote(text: &[u8], most: usize) -> &[u8] {
    let text = &text[..text.len().min(most)];
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    &text[..end]
}

/// An error before execution: it breaks a transaction that is being queued.
#[cold]
fn reject(ctx: &mut CommandCtx<'_>, fail: &CommandError) {
    if let Some(queue) = &mut ctx.client.queue {
        queue.broken = true;
    }
    ctx.refuse(ctx.out.len(), fail);
}

/// Queues a command in a MULTI, or executes it, if it may run now.
#[inline]
fn admit(ctx: &mut CommandCtx<'_>, command: &'static Command, args: Args<'_>) -> ExecOutcome {
    ctx.client.last_command = command.name;
    // PING is refused with writes, as Redis does: it is what clients judge health by.
    if (command.is(flag::WRITE) || command.name == "ping")
        && let Some(reason) = ctx.shared.poisoned.get()
    {
        reject(ctx, &CommandError::Says(misconf(reason)));
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
fn execute(ctx: &mut CommandCtx<'_>, command: &'static Command, args: Args<'_>) -> ExecOutcome {
    let from = ctx.out.len();
    let clean = ctx.mark.is_none();
    let tells =
        command.is(flag::WRITE) || (command.is(flag::READONLY | flag::READS) && ctx.unacknowledged);
    if tells && clean {
        *ctx.mark = Some(from); // C1, C2
    }
    match check_keys(command, args).and_then(|()| (command.run)(ctx, args)) {
        Ok(()) => ExecOutcome::Done,
        Err(fail) => failed(ctx, from, clean, &fail),
    }
}

#[cold]
fn failed(ctx: &mut CommandCtx<'_>, from: usize, clean: bool, fail: &CommandError) -> ExecOutcome {
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
            *ctx.mark = None; // nothing was written: this error is no acknowledgement
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

/// Keys longer than the store takes are refused by name before anything is done.
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
