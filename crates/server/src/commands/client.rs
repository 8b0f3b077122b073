//! Commands about clients: CLIENT and its subcommands.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::command::help_of;
use super::context::CommandContext;
use super::context::client_state::ReplyMode;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text::{self, quote};
use super::tracking;
use crate::buffers::reply::ReplySink;
use crate::lock::lock;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::state::clients::ClientInfo;
use crate::state::pause::PauseKind;
use crate::state::tracking::tracking_flag;
use crate::state::users::Users;

/// `CLIENT ID`
pub(super) fn id(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::integer(ctx.out, i64::try_from(ctx.client.id()).unwrap_or(i64::MAX));
    Ok(())
}

/// `CLIENT GETNAME`
pub(super) fn getname(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let name = lock(&ctx.client.client_info.labels).name.clone();
    if name.is_empty() {
        reply::null(ctx.out, ctx.client.resp);
    } else {
        reply::bulk(ctx.out, &name);
    }
    Ok(())
}

/// Whether `text` is all printable ASCII without blanks, so that it cannot break CLIENT LIST's lines.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}

/// Sets this connection's name; an empty name removes it.
pub(super) fn rename(ctx: &mut CommandContext<'_>, name: &[u8]) -> Result<(), CommandError> {
    if !is_plain(name) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(CommandError::Fixed(text));
    }
    lock(&ctx.client.client_info.labels).name = name.to_vec();
    Ok(())
}

/// `CLIENT SETNAME name`
pub(super) fn setname(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    rename(ctx, args.at(2))?;
    reply::ok(ctx.out);
    Ok(())
}

/// `CLIENT SETINFO LIB-NAME|LIB-VER value`
pub(super) fn setinfo(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (attribute, value) = (args.at(2), args.at(3));
    let name = attribute.to_ascii_lowercase();
    if !matches!(name.as_slice(), b"lib-name" | b"lib-ver") {
        let text = [
            b"ERR Unrecognized option '",
            quote(attribute, usize::MAX),
            b"'",
        ];
        return Err(CommandError::Detailed(text.concat()));
    }
    if !is_plain(value) {
        let name = String::from_utf8_lossy(&name);
        let text = format!("ERR {name} cannot contain spaces, newlines or special characters.");
        return Err(CommandError::Detailed(text.into_bytes()));
    }
    let mut labels = lock(&ctx.client.client_info.labels);
    match name.as_slice() {
        b"lib-name" => labels.library = value.to_vec(),
        _ => labels.library_version = value.to_vec(),
    }
    drop(labels);
    reply::ok(ctx.out);
    Ok(())
}

/// A connection's line of CLIENT LIST, without its end: the fields of Redis 7.0 in its order, then those of newer
/// versions.
pub(super) fn line_of(ctx: &CommandContext<'_>, client_info: &ClientInfo) -> String {
    let now = ctx.shared.clock_ms();
    let secs = |since: u64| now.saturating_sub(since) / 1000;
    let labels = lock(&client_info.labels).clone();
    let multi = client_info.multi.load(Ordering::Relaxed);
    let watching = client_info.watching.load(Ordering::Relaxed);
    let spared = client_info.is_eviction_exempt.load(Ordering::Relaxed);
    let mut flags = String::new();
    let is_monitor = client_info.is_monitor.load(Ordering::Relaxed);
    let tracking = client_info.tracking.load(Ordering::Relaxed);
    let tracks = |flag: u8| tracking & flag != 0;
    for (letter, is_set) in [
        ('O', is_monitor),
        ('P', receives_messages(client_info)),
        ('x', multi >= 0),
        ('b', client_info.is_paused.load(Ordering::Relaxed)),
        ('t', tracks(tracking_flag::ON)),
        ('R', tracks(tracking_flag::BROKEN)),
        ('B', tracks(tracking_flag::BCAST)),
        ('U', client_info.is_unix),
        ('e', spared),
    ] {
        if is_set {
            flags.push(letter);
        }
    }
    if flags.is_empty() {
        flags.push('N');
    }
    let number = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (input, output) = (
        number(&client_info.input_bytes),
        number(&client_info.output_bytes),
    );
    let arguments = number(&client_info.argument_bytes);
    // As in Redis, watched keys count together with queued requests.
    let transaction = number(&client_info.queue_bytes) + number(&client_info.watch_bytes);
    let list = usize::from(output > 0);
    let total = number(&client_info.counted_bytes).max(input + output + arguments + transaction);
    format!(
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={flags} db={} sub={} psub={} \
         ssub={} multi={multi} qbuf={input} qbuf-free=0 argv-mem={arguments} multi-mem={transaction} \
         rbs=0 rbp=0 obl={output} oll={list} omem={output} tot-mem={total} events=r cmd={} user={} \
         redir={} resp={} watch={watching} lib-name={} lib-ver={}",
        client_info.id,
        client_info.addr,
        client_info.laddr,
        client_info.fd,
        String::from_utf8_lossy(&labels.name),
        secs(client_info.connected_ms),
        secs(client_info.active_ms.load(Ordering::Relaxed)),
        client_info.db.load(Ordering::Relaxed),
        number(&client_info.channels),
        number(&client_info.patterns),
        number(&client_info.shards),
        labels.command,
        String::from_utf8_lossy(&labels.user),
        tracking::redirect_of(client_info),
        client_info.resp.load(Ordering::Relaxed),
        String::from_utf8_lossy(&labels.library),
        String::from_utf8_lossy(&labels.library_version),
    )
}

fn reply_lines(ctx: &mut CommandContext<'_>, clients: &[Arc<ClientInfo>]) {
    ctx.client.show();
    let mut text = ctx.out.sibling();
    for client_info in clients {
        if text.is_cut() {
            return ctx.out.cut();
        }
        text.extend_from_slice(line_of(ctx, client_info).as_bytes());
        text.push(b'\n');
    }
    let text = String::from_utf8_lossy(text.as_slice());
    reply::verbatim(ctx.out, ctx.client.resp, &text);
}

/// `CLIENT INFO`
pub(super) fn info(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let client_info = Arc::clone(&ctx.client.client_info);
    reply_lines(ctx, &[client_info]);
    Ok(())
}

/// Whether clients of the type `kind` are those with subscriptions; `None` if this server has no clients of that type.
fn type_named(kind: &[u8]) -> Result<Option<bool>, CommandError> {
    match text::option(kind).as_slice() {
        b"normal" => Ok(Some(false)),
        b"pubsub" => Ok(Some(true)),
        b"master" | b"slave" | b"replica" => Ok(None),
        _ => {
            let text = [b"ERR Unknown client type '", quote(kind, usize::MAX), b"'"];
            Err(CommandError::Detailed(text.concat()))
        }
    }
}

/// Whether a client has a type.
fn is_of_type(client_info: &ClientInfo, kind: Option<bool>) -> bool {
    kind == Some(receives_messages(client_info))
}

/// Whether a client is subscribed to channels or patterns. A client that only monitors is not.
fn receives_messages(client_info: &ClientInfo) -> bool {
    let is_monitor = client_info.is_monitor.load(Ordering::Relaxed);
    client_info.is_subscribed.load(Ordering::Relaxed) && !is_monitor
}

/// `CLIENT LIST [TYPE type|ID id ...]`
pub(super) fn list(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let mut clients = ctx.shared.clients.all();
    let option = text::option(args.at(2));
    match (option.as_slice(), args.len()) {
        (_, 2) => {}
        (b"type", 4) => {
            let kind = type_named(args.at(3))?;
            clients.retain(|client_info| is_of_type(client_info, kind));
        }
        (b"id", 4..) => {
            // Any integer is accepted, even if no client has that id. Lines are in the order of the arguments.
            let wanted = args
                .from(3)
                .map(|arg| parse_i64(arg).ok_or(CommandError::Fixed("ERR Invalid client ID")));
            let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
            let client_of = |id: &i64| {
                let id = u64::try_from(*id).ok()?;
                let at = clients
                    .binary_search_by_key(&id, |client_info| client_info.id)
                    .ok()?;
                Some(Arc::clone(&clients[at]))
            };
            clients = wanted.iter().filter_map(client_of).collect();
        }
        _ => return Err(SYNTAX),
    }
    reply_lines(ctx, &clients);
    Ok(())
}

/// Filters of CLIENT KILL.
struct KillFilter<'a> {
    id: Option<u64>,
    addr: Option<&'a [u8]>,
    laddr: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    /// Only clients of this type, as [`type_named`] returns it.
    kind: Option<Option<bool>>,
    spares_me: bool,
}

impl KillFilter<'_> {
    fn includes(&self, client_info: &ClientInfo, me: u64) -> bool {
        self.kind.is_none_or(|kind| is_of_type(client_info, kind))
            && self.id.is_none_or(|id| id == client_info.id)
            && self
                .addr
                .is_none_or(|addr| addr == client_info.addr.as_bytes())
            && self
                .laddr
                .is_none_or(|laddr| laddr == client_info.laddr.as_bytes())
            && self
                .user
                .is_none_or(|user| user == &*lock(&client_info.labels).user)
            && !(self.spares_me && client_info.id == me)
    }
}

fn kill_filters<'a>(args: Args<'a>, users: &Users) -> Result<KillFilter<'a>, CommandError> {
    let mut filter = KillFilter {
        id: None,
        addr: None,
        laddr: None,
        user: None,
        kind: None,
        spares_me: true,
    };
    if args.len() == 3 {
        return Ok(KillFilter {
            addr: args.get(2),
            spares_me: false,
            ..filter
        });
    }
    let mut at = 2;
    while let Some(option) = args.get(at) {
        let value = args.get(at + 1).ok_or(SYNTAX)?;
        match text::option(option).as_slice() {
            b"id" => {
                let id = parse_i64(value)
                    .and_then(|id| u64::try_from(id).ok())
                    .filter(|&id| id > 0);
                filter.id = Some(id.ok_or(CommandError::Fixed(
                    "ERR client-id should be greater than 0",
                ))?);
            }
            b"addr" => filter.addr = Some(value),
            b"laddr" => filter.laddr = Some(value),
            b"type" => filter.kind = Some(type_named(value)?),
            b"user" if users.get(value).is_some() => filter.user = Some(value),
            b"user" => {
                let text = [b"ERR No such user '", quote(value, usize::MAX), b"'"];
                return Err(CommandError::Detailed(text.concat()));
            }
            b"skipme" if text::is_option(value, "yes") => filter.spares_me = true,
            b"skipme" if text::is_option(value, "no") => filter.spares_me = false,
            _ => return Err(SYNTAX),
        }
        at += 2;
    }
    Ok(filter)
}

/// `CLIENT KILL addr`, `CLIENT KILL filter value [filter value ...]`
pub(super) fn kill(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let filter = kill_filters(args, &ctx.shared.security.users.current())?;
    let mut killed = 0;
    for client_info in ctx.shared.clients.all() {
        if !filter.includes(&client_info, ctx.client.id()) {
            continue;
        }
        killed += 1;
        if client_info.id == ctx.client.id() {
            ctx.client.leaving = true;
        } else {
            ctx.shared.kill(&client_info);
        }
    }
    match (args.len(), killed) {
        (3, 0) => return Err(CommandError::Fixed("ERR No such client")),
        (3, _) => reply::ok(ctx.out),
        _ => reply::integer(ctx.out, killed),
    }
    Ok(())
}

/// `CLIENT REPLY ON|OFF|SKIP`
pub(super) fn reply(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match text::option(args.at(2)).as_slice() {
        b"on" => {
            ctx.client.replies = ReplyMode::On;
            reply::ok(ctx.out);
        }
        b"off" => ctx.client.replies = ReplyMode::Off,
        b"skip" if ctx.client.replies == ReplyMode::Off => {}
        b"skip" => ctx.client.replies = ReplyMode::Skip,
        _ => return Err(SYNTAX),
    }
    Ok(())
}

/// Parses `ON` or `OFF`.
fn switch(word: &[u8]) -> Result<bool, CommandError> {
    match text::option(word).as_slice() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(SYNTAX),
    }
}

/// `CLIENT NO-EVICT ON|OFF`
pub(super) fn no_evict(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let spared = switch(args.at(2))?;
    ctx.client
        .client_info
        .is_eviction_exempt
        .store(spared, Ordering::Relaxed);
    reply::ok(ctx.out);
    Ok(())
}

/// `CLIENT NO-TOUCH ON|OFF`. Has no effect.
pub(super) fn no_touch(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    switch(args.at(2))?;
    reply::ok(ctx.out);
    Ok(())
}

/// `CLIENT PAUSE timeout [WRITE|ALL]`
pub(super) fn pause(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let kind = match (args.len(), text::option(args.at(3)).as_slice()) {
        (3, _) | (4, b"all") => PauseKind::All,
        (4, b"write") => PauseKind::Writes,
        (4, _) => {
            let text = "ERR CLIENT PAUSE mode must be WRITE or ALL";
            return Err(CommandError::Fixed(text));
        }
        _ => return Err(text::subcommand_syntax("CLIENT", args.at(1))),
    };
    let timeout_ms = text::timeout_ms(args.at(2))?;
    let now_ms = ctx.shared.clock_ms();
    ctx.shared
        .clients
        .pause
        .begin(now_ms, now_ms + timeout_ms, kind);
    reply::ok(ctx.out);
    Ok(())
}

/// `CLIENT UNPAUSE`
pub(super) fn unpause(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.shared.clients.pause.end();
    ctx.shared.threads.wake();
    reply::ok(ctx.out);
    Ok(())
}

/// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`. This server has no blocking commands, so no client is blocked.
pub(super) fn unblock(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match (args.len(), text::option(args.at(3)).as_slice()) {
        (3, _) | (4, b"timeout" | b"error") => {}
        (4, _) => {
            let text = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
            return Err(CommandError::Fixed(text));
        }
        _ => return Err(text::subcommand_syntax("CLIENT", args.at(1))),
    }
    parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    reply::integer(ctx.out, 0);
    Ok(())
}

/// `CLIENT HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "client");
    Ok(())
}
