//! memcached's text protocol and meta commands, as in its version 1.6.
//!
//! ```text
//!   input ─▶ parse::read ─▶ a window of requests ─▶ prefetch ─▶ text | meta | stats ─▶ output
//! ```
//!
//! Keys are in database 0, so Redis clients see the same values. The store also keeps an item's flags, expiry, version
//! (the source of its `cas`), and the marks *stale* and *won* in the high bits of the kind
//! ([`KIND_STALE`](farbank_store::KIND_STALE)). Only the time of a key's last use is in DRAM (`recency`).
//!
//! * `text`: the classic commands. `meta`: the two-letter meta commands. Both write through `items`.
//! * `stats`: the `stats` command.
//! * `recency`: last uses of keys. `prefixes`: counts for `stats detail`.
//!
//! # Invariants
//! Those of `commands`: a write's reply is behind the mark whether or not it changed anything (SRV-CMD-1); a read sees
//! undurable writes only if its reply is behind the mark (SRV-CMD-2). A write without a reply also sets the mark, because
//! later replies may reveal it.

mod items;
mod meta;
mod prefixes;
mod recency;
mod stats;
mod text;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farbank_store::{Absence, Error, Key, ReadView, RoomReply, Session};

use crate::buffers::pool::BufferPool;
use crate::commands::{ExecOutcome, long};
use crate::exec_context::{ExecContext, STALL_BYTES, TimeBudget, WINDOW};
use crate::protocol::memcached::parse::{
    self, BAD_FORMAT, ERROR, KEY_BYTES_MAX, ParseStep, TextLimits, TextRequest, Words,
};
use crate::protocol::resp::{ReplyBuffer, ReplySink};
use crate::state::shared::{ClientInfo, Counter, CounterTotals, ServerShared, WorkerFigures};
use crate::stats::hot_keys::Sampler;
use items::CasSource;
use prefixes::PrefixStats;
use recency::{AccessTimes, KeyAccess};

/// Most words of a `gat` line that is not long: it reads values and writes them again.
const TOUCHED_WORDS: usize = 6;
/// Most bytes of a line that is not a long request: hundreds of keys.
const LINE_BYTES_LONG: usize = 16 << 10;
/// The memcached version whose protocol this server implements, as reported to clients.
pub(crate) const VERSION: &str = "1.6.18";

/// State of memcached's protocol that all connections share and that is not in the store.
pub(crate) struct MemcachedState {
    recency: AccessTimes,
    prefixes: PrefixStats,
    /// Time of a delayed `flush_all`, in milliseconds since 1970; 0 if none is pending.
    flush_ms: AtomicU64,
    /// Time of the last flush, in seconds of the server's clock, plus one; 0 if there was none.
    flushed_secs: AtomicU64,
}

impl MemcachedState {
    /// Creates the state; `spoken`: an endpoint of the server has memcached's protocol.
    pub(crate) fn new(spoken: bool) -> MemcachedState {
        MemcachedState {
            recency: AccessTimes::new(spoken),
            prefixes: PrefixStats::default(),
            flush_ms: AtomicU64::new(0),
            flushed_secs: AtomicU64::new(0),
        }
    }

    /// Schedules a flush, in place of a pending one; 0 cancels it.
    fn flush_at(&self, at_ms: u64) {
        self.flush_ms.store(at_ms, Ordering::Relaxed);
    }

    /// Records a flush in this second of the server's clock.
    pub(crate) fn note_flush(&self, now_secs: u64) {
        self.flushed_secs.store(now_secs + 1, Ordering::Relaxed);
    }

    /// Whether the last flush was in this second.
    fn was_flushed_at(&self, now_secs: u64) -> bool {
        self.flushed_secs.load(Ordering::Relaxed) == now_secs + 1
    }

    /// Whether a delayed flush is due. Returns `true` to one caller only.
    pub(crate) fn flush_is_due(&self, session: &dyn Session) -> bool {
        let at = self.flush_ms.load(Ordering::Relaxed);
        at != 0
            && session.now_ms() >= at
            && self
                .flush_ms
                .compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Parser state of a connection.
#[derive(Default)]
pub(crate) struct MemcachedConn {
    /// Bytes of the input that are known to contain no line end.
    scanned: usize,
    /// Bytes of the input that the request in progress needs.
    needed: usize,
    /// Bytes to discard: they belong to a value that was refused.
    skip: usize,
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

/// What a request works with.
struct MemcachedCtx<'a> {
    session: &'a mut dyn Session,
    shared: &'a ServerShared<'a>,
    figures: &'a WorkerFigures,
    /// Buffers for large replies.
    buffer_pool: &'a mut BufferPool,
    sampler: &'a mut Sampler,
    tally: &'a mut CounterTotals,
    out: &'a mut ReplyBuffer,
    /// Start of the first reply that must wait for this batch's ticket.
    mark: &'a mut Option<usize>,
    /// Whether replies of earlier batches still wait for their tickets.
    unacknowledged: bool,
    /// Whether this thread executes long requests.
    executes_long: bool,
    limits: TextLimits,
    cas: CasSource,
    /// The server's clock, in seconds.
    now_secs: u64,
    /// The connection is closed once its replies are sent.
    leaving: bool,
}

impl MemcachedCtx<'_> {
    /// Prepares a write whose reply starts here (SRV-CMD-1). Returns `None`, after an error reply, if the medium has failed.
    #[inline]
    fn writes(&mut self, quiet: bool) -> Option<ReplyStart> {
        if let Some(reason) = self.shared.poisoned.get() {
            self.count(Counter::Errors);
            self.append_reply(&cannot_be_written(reason), quiet);
            return None;
        }
        let from = self.out.len();
        let first = self.mark.is_none();
        if first {
            *self.mark = Some(from);
        }
        Some(ReplyStart { from, first, quiet })
    }

    /// Prepares a read whose reply starts here. Returns which writes it may see (SRV-CMD-2).
    #[inline]
    fn reads(&mut self) -> ReadView {
        if self.unacknowledged && self.mark.is_none() {
            *self.mark = Some(self.out.len());
        }
        match self.mark {
            None => ReadView::Durable,
            Some(_) => ReadView::Pending,
        }
    }

    #[inline]
    fn count(&mut self, what: Counter) {
        self.tally.count(what, 1);
    }

    /// Counts a miss, and whether the item had expired or was flushed.
    fn count_miss(&mut self, name: &[u8]) {
        self.count(Counter::Misses);
        match self.session.absence(key(name)) {
            Absence::Missing => {}
            Absence::Expired => self.count(Counter::Expired),
            Absence::Flushed => self.count(Counter::Flushed),
        }
    }

    /// Records a use of `key`: a read, or else a write.
    #[inline]
    fn used(&self, key: &[u8], read: bool) {
        let secs = self.now_secs;
        self.shared
            .memcached
            .recency
            .note(key, KeyAccess { secs, read });
    }

    /// Replies with a line, unless `quiet`.
    #[inline]
    fn append_reply(&mut self, line: &str, quiet: bool) {
        if !quiet {
            self.out.extend_from_slice(line.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Replies with an error, which a client cannot suppress.
    #[cold]
    fn refuse(&mut self, line: &str) {
        self.count(Counter::Errors);
        self.append_reply(line, false);
    }

    /// Replies with an error of the store to the request whose reply starts at `start`.
    #[cold]
    fn failed(&mut self, error: &Error, start: ReplyStart) {
        self.out.truncate(start.from);
        self.count(Counter::Errors);
        let text = match error {
            error if error.is_full() => "SERVER_ERROR out of memory storing object".to_owned(),
            Error::Poisoned(poisoned) => {
                let reason = poisoned.reason.to_string();
                let text = cannot_be_written(&reason);
                if self.shared.poisoned.set(reason).is_ok() {
                    tracing::error!("{poisoned}");
                }
                if start.first {
                    *self.mark = None; // Nothing was written, so the error reply need not wait.
                }
                text
            }
            error => format!("SERVER_ERROR {error}"),
        };
        self.append_reply(&text, start.quiet);
    }
}

/// Start of the reply to a request.
#[derive(Clone, Copy)]
struct ReplyStart {
    from: usize,
    /// This request has set the mark.
    first: bool,
    /// The client wants no reply.
    quiet: bool,
}

fn cannot_be_written(reason: &str) -> String {
    format!("SERVER_ERROR the pool cannot be written: {reason}")
}

/// The key `bytes` in database 0.
#[inline]
fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

/// Executes the complete requests in the connection's input.
pub(crate) fn execute(turn: ExecContext<'_>, talk: &mut MemcachedConn) {
    let ExecContext {
        session,
        shared,
        figures,
        buffer_pool,
        sampler,
        counters: tally,
        input,
        output,
        closing,
        stalled,
        awaits_room,
        awaits_long,
        unfinished,
        requests,
        deadline,
        executes_long,
    } = turn;
    let stalled_len = output.len_at_pending(STALL_BYTES);
    let mut ctx = MemcachedCtx {
        session,
        shared,
        figures,
        buffer_pool,
        sampler,
        tally,
        unacknowledged: output.holds(),
        executes_long,
        out: &mut output.buffer,
        mark: &mut output.mark,
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
    let mut budget = TimeBudget::until(deadline);
    while !*closing && !*stalled && !*awaits_room && !*awaits_long && !*unfinished {
        let skipped = talk.skip.min(input.unread().len());
        talk.skip -= skipped;
        input.consume(skipped);
        if talk.skip > 0 {
            return;
        }
        let unread = input.unread();
        let (window, count, end) = look_ahead(unread, talk, ctx.limits);
        prefetch(&mut ctx, &window[..count]);
        let mut consumed = 0;
        for (request, used) in &window[..count] {
            if !executes_long {
                *awaits_long = is_long(request, *used);
                *awaits_room = !*awaits_long && !has_room(&mut ctx, request, *used);
            }
            let replied = ctx.out.len();
            if !*awaits_room && !*awaits_long {
                *awaits_long = run(&mut ctx, request) == ExecOutcome::Long;
            }
            if *awaits_room || *awaits_long {
                break;
            }
            ctx.count(Counter::Commands);
            *requests += 1;
            consumed += used;
            *closing = ctx.leaving || ctx.out.is_cut();
            *stalled = ctx.out.len() >= stalled_len;
            let is_short = matches!(request, TextRequest::Store(_) | TextRequest::MetaSet { .. });
            let moved_bytes = used + ctx.out.len().saturating_sub(replied);
            *unfinished = executes_long || budget.is_spent(is_short, moved_bytes);
            if *closing || *stalled || *unfinished {
                break;
            }
        }
        let all = !*closing && !*stalled && !*awaits_room && !*awaits_long && !*unfinished;
        input.consume(consumed);
        match end {
            // Requests parsed ahead are parsed again when the connection resumes.
            _ if !all => (talk.scanned, talk.needed) = (0, 0),
            WindowEnd::Window => *unfinished = Instant::now() >= deadline,
            WindowEnd::Skip(bytes) => talk.skip = bytes,
            WindowEnd::Hangup => *closing = true,
            WindowEnd::Part => return,
        }
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
fn look_ahead<'a>(input: &'a [u8], talk: &mut MemcachedConn, limits: TextLimits) -> LookAhead<'a> {
    let mut window = [(NOTHING, 0); WINDOW];
    let mut at = 0;
    let mut hint = std::mem::take(&mut talk.scanned);
    talk.needed = 0;
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
                (talk.scanned, talk.needed) = (scanned, needed);
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
    let mut keys = [key(&[]); WINDOW];
    let (mut found, mut reads) = (0, false);
    for (request, _) in window {
        let bytes = match request {
            TextRequest::Get { keys, .. } => {
                reads = true;
                keys.clone().next()
            }
            TextRequest::Store(store) => Some(store.key),
            TextRequest::MetaSet { key, .. } => Some(*key),
            TextRequest::Line(words) => {
                let mut words = *words;
                reads |= words.next() == Some(b"mg");
                words.next()
            }
            TextRequest::Fault { .. } => None,
        };
        if let Some(bytes) = bytes.filter(|key| key.len() <= KEY_BYTES_MAX) {
            keys[found] = key(bytes);
            found += 1;
        }
    }
    ctx.sampler.sample(&keys[..found], &ctx.figures.hot);
    if found > 1 {
        ctx.session.prefetch(&keys[..found], reads);
    }
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
    !matches!(ctx.session.prepare(bytes, deletes), Ok(RoomReply::Wait))
}

/// Whether a request of `bytes` is long: it takes more time than a worker may spend while other clients wait.
#[inline]
fn is_long(request: &TextRequest<'_>, bytes: usize) -> bool {
    match request {
        TextRequest::Store(_) | TextRequest::MetaSet { .. } => bytes > long::LONG_REQUEST_BYTES,
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
        b"quit" => ctx.leaving = true,
        b"shutdown" => ctx.refuse("ERROR: shutdown not enabled"),
        b"stats" => stats::stats(ctx, args),
        // HTTP, which a web page could make a browser send to the server.
        verb if verb.len() > 1 && words.last().is_some_and(|w| w.starts_with(b"HTTP/")) => {
            ctx.leaving = true;
        }
        _ => ctx.refuse(ERROR),
    }
}
