//! Transactions: MULTI EXEC DISCARD WATCH UNWATCH.
//!
//! MULTI queues requests. EXEC runs the queue as one group of the store: isolated, and durable completely or not at
//! all. WATCH records the version of a key. EXEC compares it inside the group, so no write can come between the
//! comparison and the group's writes. Marking watchers when another client executes a write, as Redis does, would be
//! wrong: the write becomes visible later, and a client that watches and reads in between would read the old value and
//! stay unmarked.
//!
//! Commands without particular keys (DBSIZE, SCAN, FLUSHALL, CLIENT ...) cannot be in a group. They run at their place,
//! between the group of the commands before them and the group of the commands after them.

use std::collections::HashMap;
use std::ops::Range;

use farbank_store::{Error, GroupDecision, Key, ReadView};

use super::table::{Command, flag};
use super::{
    CommandContext, CommandError, ExecOutcome, StoreAccess, WriteNeed, check_keys, execute,
    misconf, reject,
};
use crate::protocol::resp::number::parse_u64;
use crate::protocol::resp::parse::QueuedRequests;
use crate::protocol::resp::{Args, reply};
use crate::settings::size;

/// Requests queued by MULTI.
#[derive(Default)]
pub(crate) struct TransactionQueue {
    requests: QueuedRequests,
    commands: Vec<&'static Command>,
    /// A request was refused: EXEC will fail.
    pub(super) broken: bool,
}

impl TransactionQueue {
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Number of arguments of all requests, including command names.
    pub(super) fn args(&self) -> usize {
        self.requests.arg_count()
    }

    /// Whether a queued command has one of these flags.
    pub(super) fn has(&self, flags: u32) -> bool {
        self.commands.iter().any(|command| command.is(flags))
    }

    /// Bytes of memory that the queue uses.
    pub(super) fn bytes(&self) -> usize {
        self.requests.bytes() + self.commands.len() * size_of::<&Command>()
    }

    /// The space that EXEC needs in the store, if a queued command writes.
    pub(super) fn needs_room(&self) -> Option<WriteNeed> {
        let writes = self.commands.iter().any(|c| c.is(flag::WRITE));
        writes.then(|| WriteNeed {
            bytes: self.requests.bytes(),
            deletes: !self.commands.iter().any(|c| c.is(flag::DENYOOM)),
        })
    }

    /// The longest range of commands from `at` that can be in one group.
    fn groupable(&self, at: usize) -> Range<usize> {
        let in_group = |c: &&&Command| c.keys.first > 0 || c.is(flag::GROUPED);
        at..at + self.commands[at..].iter().take_while(in_group).count()
    }

    /// Keys of the commands in `range`. `db`: the database of the first command.
    fn keys(&self, range: Range<usize>, mut db: u8) -> Vec<Key<'_>> {
        let mut keys = Vec::new();
        for at in range {
            let (command, args) = (self.commands[at], self.requests.args(at));
            if command.name == "select" {
                let index = parse_u64(args.at(1)).and_then(|n| u8::try_from(n).ok());
                db = index
                    .filter(|&n| usize::from(n) < farbank_store::DATABASES)
                    .unwrap_or(db);
            }
            for position in command.keys.positions(args.len()) {
                keys.push(Key {
                    db,
                    bytes: args.at(position),
                });
            }
        }
        keys
    }
}

/// Watched keys: their versions when they were first watched, 0 for a key that was absent.
#[derive(Default)]
pub(crate) struct WatchedKeys {
    versions: HashMap<(u8, Vec<u8>), u64>,
    /// Bytes of all key names.
    name_bytes: usize,
}

impl WatchedKeys {
    /// Number of watched keys.
    pub(crate) fn len(&self) -> usize {
        self.versions.len()
    }

    /// Bytes of memory that the watched keys use.
    pub(crate) fn bytes(&self) -> usize {
        /// Bytes that the hash table uses for a key besides its name, with the allocator's overhead.
        const ENTRY_BYTES: usize = 2 * size_of::<((u8, Vec<u8>), u64)>();
        self.name_bytes + self.versions.len() * ENTRY_BYTES
    }

    /// Removes all watched keys.
    pub(crate) fn clear(&mut self) {
        *self = WatchedKeys::default();
    }

    fn iter(&self) -> impl Iterator<Item = (Key<'_>, u64)> {
        self.versions.iter().map(|((db, bytes), version)| {
            let key = Key { db: *db, bytes };
            (key, *version)
        })
    }
}

/// Queues a request.
pub(super) fn queue(ctx: &mut CommandContext<'_>, command: &'static Command, args: Args<'_>) {
    if command.is(flag::NO_MULTI) {
        return reject(
            ctx,
            &CommandError::Fixed("ERR Command not allowed inside a transaction"),
        );
    }
    if let Err(fail) = check_keys(command, args) {
        return reject(ctx, &fail);
    }
    let most = size(&ctx.shared.settings.input_bytes_max);
    let Some(queue) = &mut ctx.client.queue else {
        return;
    };
    if queue.requests.bytes() > most {
        return reject(
            ctx,
            &CommandError::Fixed("ERR the transaction exceeds client-query-buffer-limit"),
        );
    }
    if !queue.broken {
        queue.requests.push(args);
        queue.commands.push(command);
    }
    reply::simple(ctx.out, "QUEUED");
}

/// `MULTI`
pub(super) fn multi(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.queue.is_some() {
        return Err(CommandError::Fixed("ERR MULTI calls can not be nested"));
    }
    ctx.client.queue = Some(Box::default());
    reply::ok(ctx.out);
    Ok(())
}

/// `DISCARD`
pub(super) fn discard(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.queue.take().is_none() {
        return Err(CommandError::Fixed("ERR DISCARD without MULTI"));
    }
    ctx.client.watched.clear();
    reply::ok(ctx.out);
    Ok(())
}

/// `WATCH key [key ...]`
pub(super) fn watch(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.queue.is_some() {
        return Err(CommandError::Fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let view = ctx.view();
    for bytes in args.from(1) {
        let key = ctx.key(bytes);
        let name = (key.db, bytes.to_vec());
        if ctx.client.watched.versions.contains_key(&name) {
            continue;
        }
        let version = ctx.ops().meta(key, view)?.map_or(0, |meta| meta.version);
        ctx.client.watched.name_bytes += bytes.len();
        ctx.client.watched.versions.insert(name, version);
    }
    reply::ok(ctx.out);
    Ok(())
}

/// `UNWATCH`
pub(super) fn unwatch(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.client.watched.clear();
    reply::ok(ctx.out);
    Ok(())
}

/// Ends the transaction of an EXEC that is refused before it runs.
#[cold]
pub(super) fn abort(ctx: &mut CommandContext<'_>, fail: &CommandError) {
    ctx.client.queue = None;
    ctx.client.watched.clear();
    let text = fail.text(ctx.shared);
    let cause = text.strip_prefix(b"ERR ").unwrap_or(&text);
    ctx.refuse(ctx.out.len(), &aborted(cause));
}

fn aborted(cause: &[u8]) -> CommandError {
    CommandError::Detailed([b"EXECABORT Transaction discarded because of: ", cause].concat())
}

/// `EXEC`
pub(super) fn exec(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let Some(queue) = ctx.client.queue.take() else {
        return Err(CommandError::Fixed("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut ctx.client.watched);
    ctx.client.executing = Some(queue.len());
    let outcome = run_queue(ctx, &queue, &watched);
    ctx.client.executing = None;
    if let Err(CommandError::Long) = outcome {
        (ctx.client.queue, ctx.client.watched) = (Some(queue), watched);
    }
    outcome
}

/// Executes the queued requests, unless one was refused, the medium has failed, or a watched key has changed.
fn run_queue(
    ctx: &mut CommandContext<'_>,
    queue: &TransactionQueue,
    watched: &WatchedKeys,
) -> Result<(), CommandError> {
    if queue.broken {
        let text = "EXECABORT Transaction discarded because of previous errors.";
        return Err(CommandError::Fixed(text));
    }
    if let Some(reason) = ctx.shared.poisoned.get()
        && queue.commands.iter().any(|c| c.is(flag::WRITE))
    {
        return Err(aborted(&misconf(reason)));
    }
    let start = ctx.out.len();
    reply::array(ctx.out, queue.len());
    let mut at = 0;
    while at < queue.len() || at == 0 {
        let range = queue.groupable(at);
        let watched = (at == 0).then_some(watched);
        match run_group(ctx, queue, range.clone(), watched) {
            Ok(ExecGroup::Applied) => {}
            Ok(ExecGroup::Long) => return Err(CommandError::Long),
            Ok(ExecGroup::Abandoned) => {
                ctx.out.truncate(start);
                reply::null_array(ctx.out, ctx.client.resp);
                return Ok(());
            }
            Err(error) if at == 0 => return Err(abandoned(ctx, error)),
            // Earlier groups have taken effect. Each command of this group replies with the error.
            Err(error) => range
                .clone()
                .for_each(|_| ctx.refuse(ctx.out.len(), &error.clone().into())),
        }
        at = range.end.max(at);
        if let Some(&command) = queue.commands.get(at) {
            execute(ctx, command, queue.requests.args(at));
        }
        at += 1;
    }
    Ok(())
}

/// The error reply of a transaction that had no effect.
fn abandoned(ctx: &CommandContext<'_>, error: Error) -> CommandError {
    match error {
        poisoned @ Error::Poisoned(_) => poisoned.into(),
        other => aborted(&CommandError::Store(other).text(ctx.shared)),
    }
}

/// Outcome of a group.
enum ExecGroup {
    Applied,
    /// A watched key has changed.
    Abandoned,
    /// As [`CommandError::Long`].
    Long,
}

/// Runs the commands in `range` as one group, if the watched keys are unchanged. Only the first group, which has
/// `watched`, may return [`ExecGroup::Long`]: before a later group, other commands have already run.
fn run_group(
    ctx: &mut CommandContext<'_>,
    queue: &TransactionQueue,
    range: Range<usize>,
    watched: Option<&WatchedKeys>,
) -> Result<ExecGroup, Error> {
    let mut keys = queue.keys(range.clone(), ctx.client.db);
    keys.extend(
        watched
            .into_iter()
            .flat_map(WatchedKeys::iter)
            .map(|(key, _)| key),
    );
    if keys.is_empty() {
        for at in range {
            execute(ctx, queue.commands[at], queue.requests.args(at));
        }
        return Ok(ExecGroup::Applied);
    }
    let (from, was_cut, db) = (ctx.out.len(), ctx.out.is_cut(), ctx.client.db);
    ctx.mark.get_or_insert(from); // A group reads the newest values, durable or not.
    let CommandContext {
        store_access: door,
        client,
        out,
        buffer_pool,
        mark,
        unacknowledged,
        executes_long,
        from: request_from,
        updated_value_bytes: _,
        shared,
        tally,
    } = ctx;
    let StoreAccess::Session(session) = door else {
        return Ok(ExecGroup::Abandoned);
    };
    let mut is_long = false;
    let verdict = session.group(&keys, &mut |ops| {
        match was_cut {
            true => out.truncate(from),
            false => out.rewind(from),
        }
        client.db = db;
        for (key, version) in watched.into_iter().flat_map(WatchedKeys::iter) {
            let now = ops.meta(key, ReadView::Pending)?;
            if now.map_or(0, |meta| meta.version) != version {
                return Ok(GroupDecision::Abandon);
            }
        }
        let mut ctx = CommandContext {
            store_access: StoreAccess::Group(ops),
            client,
            out,
            buffer_pool,
            mark,
            unacknowledged: *unacknowledged,
            executes_long: *executes_long || watched.is_none(),
            from: *request_from,
            updated_value_bytes: 0,
            shared,
            tally,
        };
        for at in range.clone() {
            if run_in_group(&mut ctx, queue.commands[at], queue.requests.args(at))?
                == ExecOutcome::Long
            {
                is_long = true;
                return Ok(GroupDecision::Abandon);
            }
        }
        Ok(GroupDecision::Apply)
    })?;
    Ok(match verdict {
        GroupDecision::Apply => ExecGroup::Applied,
        GroupDecision::Abandon if is_long => ExecGroup::Long,
        GroupDecision::Abandon => ExecGroup::Abandoned,
    })
}

/// Runs one command of a group. An error of the request is the command's reply. An error of the pool (full, or failed
/// medium) ends the group.
fn run_in_group(
    ctx: &mut CommandContext<'_>,
    command: &Command,
    args: Args<'_>,
) -> Result<ExecOutcome, Error> {
    let from = ctx.out.len();
    match (command.run)(ctx, args) {
        Ok(()) => Ok(ExecOutcome::Done),
        Err(CommandError::Long) => Ok(ExecOutcome::Long),
        Err(CommandError::Store(error))
            if error.is_full() || matches!(error, Error::Poisoned(_)) =>
        {
            Err(error)
        }
        Err(fail) => {
            ctx.refuse(from, &fail);
            Ok(ExecOutcome::Done)
        }
    }
}
