//! Executes a pipeline of RESP requests: parses a window ahead, executes, replies.

use std::time::Instant;

use farbank_store::{Key, RoomReply};

use super::table::{self, Command, flag};
use super::{ClientState, CommandContext, ExecOutcome, StoreAccess, WriteNeed, long, run};
use crate::exec_context::{ExecContext, STALL_BYTES, TimeBudget, WINDOW};
use crate::protocol::resp::{Args, RequestParser, reply};
use crate::state::shared::Counter;

/// Executes the complete requests in the connection's input.
pub(crate) fn execute(turn: ExecContext<'_>, client: &mut ClientState, parser: &mut RequestParser) {
    let ExecContext {
        session,
        shared,
        counters: tally,
        input,
        output,
        closing,
        stalled,
        awaits_room,
        awaits_long,
        unfinished,
        requests,
        figures,
        buffer_pool,
        sampler,
        deadline,
        executes_long,
    } = turn;
    let limits = shared.settings.limits();
    let unacknowledged = output.holds();
    let stalled_len = output.len_at_pending(STALL_BYTES);
    let mut ctx = CommandContext {
        store_access: StoreAccess::Session(session),
        client,
        out: &mut output.buffer,
        buffer_pool,
        mark: &mut output.mark,
        unacknowledged,
        executes_long,
        from: 0,
        updated_value_bytes: 0,
        shared,
        tally,
    };
    let mut budget = TimeBudget::until(deadline);
    while !*closing {
        let read = parser.read(input.unread(), limits, WINDOW);
        let mut pass = |keys: &[Key<'_>]| sampler.sample(keys, &figures.hot);
        let (window, count) = look_ahead(&mut ctx, parser, input.unread(), &mut pass);
        for (index, &command) in window[..count].iter().enumerate() {
            let args = parser.args(input.unread(), index);
            let start = index.checked_sub(1).map_or(0, |before| parser.end(before));
            let bytes = parser.end(index) - start;
            if !executes_long {
                *awaits_long = long::is_long(ctx.client, shared, command, args, bytes);
                *awaits_room = !*awaits_long
                    && needs_room(ctx.client, command, args)
                        .is_some_and(|need| !has_room(&mut ctx, need));
            }
            let replied = ctx.out.len();
            if !*awaits_room && !*awaits_long {
                *awaits_long = run(&mut ctx, command, args) == ExecOutcome::Long;
            }
            if *awaits_room || *awaits_long {
                // The request and those parsed ahead are parsed again once the store has space, or by the thread of
                // long requests.
                ctx.client.last_command = command.map_or("NULL", |command| command.name);
                input.consume(start);
                return parser.reset();
            }
            let is_short = command.is_some_and(Command::is_short);
            *requests += 1;
            *closing = ctx.client.leaving || ctx.out.is_cut();
            *stalled = ctx.out.len() >= stalled_len;
            let shown_bytes = std::mem::take(&mut ctx.updated_value_bytes);
            let moved_bytes = bytes + shown_bytes + ctx.out.len().saturating_sub(replied);
            *unfinished = executes_long || budget.is_spent(is_short, moved_bytes);
            if *closing || *stalled || *unfinished {
                // Requests parsed ahead are parsed again when the connection resumes.
                input.consume(parser.end(index));
                return parser.reset();
            }
        }
        input.consume(parser.consumed());
        parser.next();
        if let Err(error) = read {
            reply::error(ctx.out, &error.reply());
            ctx.tally.count(Counter::Errors, 1);
            *closing = true;
        } else if count < WINDOW {
            return;
        } else if Instant::now() >= deadline {
            *unfinished = true;
            return;
        }
    }
}

/// The space that a request needs in the store, if it writes now.
#[inline]
fn needs_room(
    client: &ClientState,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> Option<WriteNeed> {
    let command = command?;
    let queue = client.queue.as_ref();
    if command.name == "exec" {
        return queue.and_then(|queue| queue.needs_room());
    }
    let writes = command.is(flag::WRITE) && queue.is_none();
    writes.then(|| WriteNeed::of(command, args))
}

/// Whether the request can run now: the store has the space it needs, or will refuse it without waiting.
#[inline]
fn has_room(ctx: &mut CommandContext<'_>, need: WriteNeed) -> bool {
    let StoreAccess::Session(session) = &mut ctx.store_access else {
        return true;
    };
    // The write itself meets the same error again and replies with it.
    !matches!(
        session.prepare(need.bytes, need.deletes),
        Ok(RoomReply::Wait)
    )
}

/// Returns the commands of the requests that were parsed ahead, and their number. Prefetches their keys in the store
/// together, so that the requests do not each wait for far memory. `pass` receives the keys.
#[inline]
fn look_ahead(
    ctx: &mut CommandContext<'_>,
    parser: &RequestParser,
    input: &[u8],
    pass: &mut impl FnMut(&[Key<'_>]),
) -> ([Option<&'static Command>; WINDOW], usize) {
    let mut window = [None; WINDOW];
    let mut keys = [Key {
        db: ctx.client.db,
        bytes: &[],
    }; WINDOW];
    let (count, mut found, mut reads) = (parser.len(), 0, false);
    for (index, slot) in window[..count].iter_mut().enumerate() {
        let args = parser.args(input, index);
        *slot = table::find(args.at(0));
        if slot.is_some_and(|command| command.keys.first > 0) {
            keys[found].bytes = args.at(1);
            found += 1;
            reads |= slot.is_some_and(|command| command.flags & flag::READONLY != 0);
        }
    }
    pass(&keys[..found]);
    if found > 1
        && let StoreAccess::Session(session) = &mut ctx.store_access
    {
        session.prefetch(&keys[..found], reads);
    }
    (window, count)
}
