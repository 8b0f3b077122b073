//! Executes a pipeline of memcached requests: parses a window ahead, executes, replies.

use std::sync::atomic::Ordering;

use farbank_store::{Key, RoomReply};

use super::context::{
    CasSource, MemcachedClient, MemcachedCtx, OUT_OF_MEMORY, OUT_OF_MEMORY_STORING, key,
};
use super::credentials::MemcachedCredentials;
use super::items;
use super::state::MemcachedState;
use super::{meta, stats, text};
use crate::buffers::input::InputBuffer;
use crate::commands::maxmemory;
use crate::exec_context::{
    ExecOutcome, ExecutedRequest, LONG_REQUEST_BYTES, Turn, TurnProgress, WINDOW, WindowKeys,
};
use crate::protocol::memcached::VERSION;
use crate::protocol::memcached::login::{self, LoginStep, UNAUTHENTICATED, WRONG_LOGIN};
use crate::protocol::memcached::parse::{
    self, ERROR, KEY_BYTES_MAX, ParseStep, TextLimits, TextRequest, Words,
};
use crate::state::clients::ClientInfo;
use crate::state::pause::PauseKind;
use crate::state::shared::ServerShared;
use crate::stats::counters::Counter;

/// Most words of a `gat` line that is not long: it reads values and writes them again.
const TOUCHED_WORDS: usize = 6;
/// Most bytes of a line that is not a long request: hundreds of keys.
const LINE_BYTES_LONG: usize = 16 << 10;
/// Parser state of a connection.
#[derive(Default)]
pub(crate) struct MemcachedConn {
    /// Bytes of the input that are known to contain no line end.
    scanned: usize,
    /// Bytes of the input that the request in progress needs.
    needed: usize,
    /// Bytes to discard: they belong to a value that was refused.
    skip: usize,
    /// The client has given a name and a password of the auth file.
    has_authenticated: bool,
}

impl MemcachedConn {
    /// Bytes of input that the request in progress needs; 0 if unknown.
    pub(crate) fn needed(&self) -> usize {
        self.needed
    }

    /// Publishes the state in the connection's [`ClientInfo`], for other threads.
    pub(crate) fn show(&self, client_info: &ClientInfo) {
        let reading = self.needed > 0 || self.skip > 0;
        client_info.reads_value.store(reading, Ordering::Relaxed);
    }
}

/// Executes the complete requests in the connection's input.
pub(crate) fn execute<'a>(turn: Turn<'a>, state: &'a MemcachedState, conn: &mut MemcachedConn) {
    let shared = turn.shared;
    let mut client = MemcachedClient {
        state,
        limits: TextLimits {
            item_bytes_max: shared.item_bytes_max(),
        },
        cas: match shared.options.cas_enabled {
            true => CasSource::Numbers,
            false => CasSource::Off,
        },
        now_secs: shared.clock_ms() / 1000,
        leaving: false,
    };
    let (input, mut ctx, mut turn): (_, MemcachedCtx<'_>, _) = turn.split(&mut client);
    while turn.status.goes_on() {
        let skipped = conn.skip.min(input.unread().len());
        conn.skip -= skipped;
        input.consume(skipped);
        if conn.skip > 0 {
            return;
        }
        if let Some(credentials) = state.credentials()
            && !conn.has_authenticated
        {
            match log_in(&mut ctx, &mut turn, credentials, input, conn) {
                WindowEnd::Window => {}
                WindowEnd::Skip(bytes) => conn.skip = bytes,
                WindowEnd::Hangup => turn.status.closing = true,
                WindowEnd::Part => return,
            }
            continue;
        }
        match execute_window(&mut ctx, &mut turn, input, conn) {
            WindowEnd::Skip(bytes) => conn.skip = bytes,
            // Requests parsed ahead are parsed again when the connection resumes.
            _ if !turn.status.goes_on() => (conn.scanned, conn.needed) = (0, 0),
            WindowEnd::Window => turn.status.unfinished = turn.is_over(),
            WindowEnd::Hangup => turn.status.closing = true,
            WindowEnd::Part => return,
        }
    }
}

/// Executes one request of a client that has not authenticated, and consumes it: it authenticates the client, or is refused.
#[cold]
fn log_in(
    ctx: &mut MemcachedCtx<'_>,
    turn: &mut TurnProgress<'_>,
    credentials: &MemcachedCredentials,
    input: &mut InputBuffer,
    conn: &mut MemcachedConn,
) -> WindowEnd {
    conn.needed = 0;
    let (used, text, skip) = match login::read(input.unread()) {
        LoginStep::Login {
            name,
            password,
            used,
        } => {
            ctx.count(Counter::Logins);
            conn.has_authenticated = credentials.accepts(name, password);
            match conn.has_authenticated {
                true => (used, "STORED", 0),
                false => {
                    ctx.count(Counter::FailedLogins);
                    (used, WRONG_LOGIN, 0)
                }
            }
        }
        LoginStep::Refused { text, used, skip } => (used, text, skip),
        LoginStep::Part { needed } => {
            conn.needed = needed;
            return WindowEnd::Part;
        }
        LoginStep::Hangup => return WindowEnd::Hangup,
    };
    if !conn.has_authenticated {
        ctx.count(Counter::Errors);
    }
    ctx.count(Counter::Commands);
    ctx.request.reply_start = ctx.out.len();
    ctx.append_reply(text, false);
    input.consume(used);
    let request = ExecutedRequest {
        number: 0,
        bytes: used,
        is_short: true,
        is_last: false,
        leaves: false,
    };
    turn.note_executed(ctx, request);
    match skip {
        0 => WindowEnd::Window,
        bytes => WindowEnd::Skip(bytes),
    }
}

/// Executes the requests of a window until the turn ends, and consumes them. Returns why the window ends.
fn execute_window(
    ctx: &mut MemcachedCtx<'_>,
    turn: &mut TurnProgress<'_>,
    input: &mut InputBuffer,
    conn: &mut MemcachedConn,
) -> WindowEnd {
    let (window, count, end) = look_ahead(input.unread(), conn, ctx.client.limits);
    prefetch(ctx, &window[..count]);
    let (mut consumed, mut executed) = (0, 0);
    for (request, used) in &window[..count] {
        let status = &mut *turn.status;
        status.paused = ctx.shared.clients.pause.is_set() && is_paused(ctx.shared, request);
        if status.paused {
            break;
        }
        if !ctx.executes_long {
            status.awaits_long = is_long(request, *used);
            status.awaits_room = !status.awaits_long && !has_room(ctx, request, *used);
        }
        ctx.request.reply_start = ctx.out.len();
        if !status.awaits_room && !status.awaits_long {
            status.awaits_long = run(ctx, request) == ExecOutcome::Long;
        }
        if status.awaits_room || status.awaits_long {
            break;
        }
        ctx.count(Counter::Commands);
        consumed += used;
        executed += 1;
        let is_short = matches!(request, TextRequest::Store(_) | TextRequest::MetaSet { .. });
        let leaves = ctx.client.leaving;
        turn.note_executed(
            ctx,
            ExecutedRequest {
                number: 0,
                bytes: *used,
                is_short,
                is_last: false,
                leaves,
            },
        );
        if !turn.status.goes_on() {
            break;
        }
    }
    input.consume(consumed);
    match end {
        // The bytes to discard belong to the last request, which will be parsed again.
        WindowEnd::Skip(_) if executed < count => WindowEnd::Window,
        end => end,
    }
}

/// Why a window ends.
enum WindowEnd {
    /// The window is full.
    Window,
    /// This many bytes after the last request must be discarded.
    Skip(usize),
    /// The next request is not complete.
    Part,
    /// The next bytes are not memcached's protocol.
    Hangup,
}

type LookAhead<'a> = ([(TextRequest<'a>, usize); WINDOW], usize, WindowEnd);

const NOTHING: TextRequest<'static> = TextRequest::Fault {
    text: ERROR,
    quiet: true,
};

/// Parses a window of complete requests. Returns them with their lengths, their number, and why the window ends.
#[inline]
fn look_ahead<'a>(input: &'a [u8], conn: &mut MemcachedConn, limits: TextLimits) -> LookAhead<'a> {
    let mut window = [(NOTHING, 0); WINDOW];
    let mut at = 0;
    let mut hint = std::mem::take(&mut conn.scanned);
    conn.needed = 0;
    for count in 0..WINDOW {
        let rest = &input[at..];
        if rest.is_empty() {
            return (window, count, WindowEnd::Part);
        }
        match parse::read(rest, std::mem::take(&mut hint), limits) {
            ParseStep::Whole {
                request,
                used,
                skip,
            } => {
                window[count] = (request, used);
                at += used;
                if skip > 0 {
                    return (window, count + 1, WindowEnd::Skip(skip));
                }
            }
            ParseStep::Part { scanned, needed } => {
                (conn.scanned, conn.needed) = (scanned, needed);
                return (window, count, WindowEnd::Part);
            }
            ParseStep::Hangup => return (window, count, WindowEnd::Hangup),
        }
    }
    (window, WINDOW, WindowEnd::Window)
}

/// Prefetches the keys of the requests in the store together, and samples them for the hot keys.
#[inline]
fn prefetch(ctx: &mut MemcachedCtx<'_>, window: &[(TextRequest<'_>, usize)]) {
    let mut keys = WindowKeys::new();
    for (request, _) in window {
        keys.add(key_of(request));
    }
    ctx.thread.sampler.sample(keys.keys(), &ctx.published.hot);
    keys.prefetch(&mut *ctx.store);
}

/// The key of the only complete request in `input`, and whether the request reads its value.
pub(crate) fn lone_key<'a>(
    conn: &MemcachedConn,
    input: &'a [u8],
    item_bytes_max: usize,
) -> Option<(Key<'a>, bool)> {
    let limits = TextLimits { item_bytes_max };
    match parse::read(input, conn.scanned, limits) {
        ParseStep::Whole { request, used, .. } if conn.skip == 0 && used == input.len() => {
            key_of(&request)
        }
        _ => None,
    }
}

/// The first key of a request, and whether the request reads its value.
#[inline]
fn key_of<'a>(request: &TextRequest<'a>) -> Option<(Key<'a>, bool)> {
    let (bytes, is_read) = match request {
        TextRequest::Get { keys, .. } => (keys.clone().next()?, true),
        TextRequest::Store(store) => (store.key, false),
        TextRequest::MetaSet { key, .. } => (*key, false),
        TextRequest::Line(words) => {
            let mut words = *words;
            let is_read = words.next() == Some(b"mg");
            (words.next()?, is_read)
        }
        TextRequest::Fault { .. } => return None,
    };
    (bytes.len() <= KEY_BYTES_MAX).then(|| (key(bytes), is_read))
}

/// Whether a request of `bytes` can run now: the store has the space it needs, or will refuse it without waiting.
#[inline]
fn has_room(ctx: &mut MemcachedCtx<'_>, request: &TextRequest<'_>, bytes: usize) -> bool {
    let deletes = match request {
        TextRequest::Store(_) | TextRequest::MetaSet { .. } => false,
        TextRequest::Line(words) => match words.clone().next() {
            Some(b"incr" | b"decr" | b"ma") => false,
            Some(b"delete" | b"md" | b"touch" | b"gat" | b"gats") => true,
            _ => return true,
        },
        TextRequest::Get { .. } | TextRequest::Fault { .. } => return true,
    };
    // The write itself meets the same error again and replies with it.
    !matches!(ctx.store.prepare(bytes, deletes), Ok(RoomReply::Wait))
}

/// Whether a pause of clients holds a request back. Lines that are no retrievals count as writes.
#[cold]
fn is_paused(shared: &ServerShared<'_>, request: &TextRequest<'_>) -> bool {
    let Some((kind, _)) = shared.clients.pause.current(shared.clock_ms()) else {
        return false;
    };
    let reads = match request {
        TextRequest::Store(_) | TextRequest::MetaSet { .. } => false,
        TextRequest::Line(words) => {
            matches!(
                words.clone().next(),
                Some(b"mg" | b"mn" | b"me" | b"stats" | b"version" | b"quit")
            )
        }
        TextRequest::Get { .. } | TextRequest::Fault { .. } => true,
    };
    kind == PauseKind::All || !reads
}

/// Whether a request of `bytes` is long: it takes more time than a worker may spend while other clients wait.
#[inline]
fn is_long(request: &TextRequest<'_>, bytes: usize) -> bool {
    match request {
        TextRequest::Store(_) | TextRequest::MetaSet { .. } => bytes > LONG_REQUEST_BYTES,
        TextRequest::Line(words) => {
            bytes > LINE_BYTES_LONG
                || match words.clone().next() {
                    Some(b"flush_all") => true,
                    Some(b"gat" | b"gats") => words.clone().nth(TOUCHED_WORDS).is_some(),
                    Some(b"stats") => stats::walks(words.clone().nth(1)),
                    _ => false,
                }
        }
        _ => bytes > LINE_BYTES_LONG,
    }
}

#[inline]
fn run(ctx: &mut MemcachedCtx<'_>, request: &TextRequest<'_>) -> ExecOutcome {
    let options = &ctx.shared.options;
    let is_open = options.memcached_unprotected || ctx.client.state.credentials().is_some();
    if !is_open && !ctx.shared.security.users.is_open() {
        refuse(ctx, request);
        return ExecOutcome::Done;
    }
    if maxmemory::is_exceeded(ctx.shared, &*ctx.store) && refuses_growth(ctx, request) {
        return ExecOutcome::Done;
    }
    match *request {
        TextRequest::Get { keys, cas } => return text::get(ctx, keys, cas),
        TextRequest::Store(store) => text::store(ctx, &store),
        TextRequest::MetaSet {
            key,
            flags,
            payload,
        } => meta::set(ctx, key, flags, payload),
        TextRequest::Line(words) => line(ctx, words),
        TextRequest::Fault { text, quiet } => ctx.append_reply(text, quiet),
    }
    ExecOutcome::Done
}

/// Refuses a request because the user `default` has a password or is restricted, and there is no auth file with which
/// memcached clients could authenticate.
#[cold]
fn refuse(ctx: &mut MemcachedCtx<'_>, request: &TextRequest<'_>) {
    if let TextRequest::Line(words) = request
        && words.clone().next() == Some(b"quit")
    {
        ctx.client.leaving = true;
        return;
    }
    ctx.append_reply(UNAUTHENTICATED, false);
}

/// Evicts keys for a request that may add bytes, above `maxmemory`, or refuses it. Returns whether it was refused.
#[cold]
fn refuses_growth(ctx: &mut MemcachedCtx<'_>, request: &TextRequest<'_>) -> bool {
    let (text, quiet) = match *request {
        TextRequest::Store(store) => (OUT_OF_MEMORY_STORING, store.quiet),
        TextRequest::MetaSet { .. } => (OUT_OF_MEMORY_STORING, false),
        TextRequest::Line(mut words) => match words.next() {
            Some(b"incr" | b"decr") => (OUT_OF_MEMORY, words.last() == Some(b"noreply")),
            Some(b"ma") => (OUT_OF_MEMORY, false),
            _ => return false,
        },
        TextRequest::Get { .. } | TextRequest::Fault { .. } => return false,
    };
    let (session, mut rest) = ctx.split_store();
    if maxmemory::evict_for_reply(&mut **session, &mut rest) {
        return false;
    }
    ctx.count(Counter::Errors);
    ctx.append_reply(text, quiet);
    true
}

/// Executes a request that consists of one line.
fn line(ctx: &mut MemcachedCtx<'_>, words: Words<'_>) {
    let mut args = words;
    match args.next().unwrap_or_default() {
        b"mg" => meta::get(ctx, args),
        b"md" => meta::delete(ctx, args),
        b"ma" => meta::arithmetic(ctx, args),
        b"me" => meta::debug(ctx, args),
        b"mn" => ctx.append_reply("MN", false),
        b"gat" => text::get_and_touch(ctx, args, false),
        b"gats" => text::get_and_touch(ctx, args, true),
        b"touch" => text::touch(ctx, args),
        b"delete" => text::delete(ctx, args),
        b"incr" => text::arithmetic(ctx, args, items::CounterDirection::Plus),
        b"decr" => text::arithmetic(ctx, args, items::CounterDirection::Minus),
        b"flush_all" => text::flush_all(ctx, args),
        b"verbosity" => text::verbosity(ctx, args),
        b"version" => ctx.append_reply(&format!("VERSION {VERSION}"), false),
        b"slabs" => text::slabs(ctx, args),
        b"refresh_certs" => text::refresh_certs(ctx, args),
        b"quit" => ctx.client.leaving = true,
        b"shutdown" => ctx.refuse("ERROR: shutdown not enabled"),
        b"stats" => stats::stats(ctx, args),
        // HTTP, which a web page could make a browser send to the server.
        verb if verb.len() > 1 && words.last().is_some_and(|w| w.starts_with(b"HTTP/")) => {
            ctx.client.leaving = true;
        }
        _ => ctx.refuse(ERROR),
    }
}
