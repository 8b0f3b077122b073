//! Commands about the connection: PING ECHO SELECT HELLO AUTH RESET QUIT.

use std::sync::atomic::Ordering;

use super::client;
use super::context::CommandContext;
use super::context::client_state::ReplyMode;
use super::error::{CommandError, SYNTAX};
use super::pubsub;
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, RespVersion, reply};
use crate::settings::REDIS_VERSION;
use crate::state::users::DEFAULT;

/// `PING [message]`
pub(super) fn ping(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match args.len() {
        1 | 2 if pubsub::is_restricted(ctx) => {
            reply::array(ctx.out, 2);
            reply::bulk(ctx.out, b"pong");
            reply::bulk(ctx.out, args.at(1));
        }
        1 => reply::simple(ctx.out, "PONG"),
        2 => reply::bulk(ctx.out, args.at(1)),
        _ => return Err(CommandError::arity("ping")),
    }
    Ok(())
}

/// `ECHO message`
pub(super) fn echo(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    reply::bulk(ctx.out, args.at(1));
    Ok(())
}

/// `SELECT index`
pub(super) fn select(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    ctx.client.db = text::database(args.at(1))?;
    reply::ok(ctx.out);
    Ok(())
}

/// Authenticates the client. `command`: the name by which the client called AUTH or HELLO.
fn authenticate(
    ctx: &mut CommandContext<'_>,
    command: &[u8],
    name: &[u8],
    password: &[u8],
) -> Result<(), CommandError> {
    if let Some(user) = ctx.shared.security.users.authenticate(name, password) {
        ctx.client.authenticate(user);
        // The user may have been removed since; the workers' message about it may be handled already.
        ctx.follow_users();
        return Ok(());
    }
    ctx.note_wrong_password(command, name);
    Err(CommandError::Fixed(
        "WRONGPASS invalid username-password pair or user is disabled.",
    ))
}

/// `AUTH [username] password`
pub(super) fn auth(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match args.len() {
        2 if !ctx.shared.security.users.default_needs_password() => {
            return Err(CommandError::Fixed(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        }
        2 => authenticate(ctx, args.at(0), DEFAULT, args.at(1))?,
        3 => authenticate(ctx, args.at(0), args.at(1), args.at(2))?,
        _ => return Err(SYNTAX),
    }
    reply::ok(ctx.out);
    Ok(())
}

/// `HELLO [2|3 [AUTH username password] [SETNAME name]]`
pub(super) fn hello(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let resp = match args.get(1).map(parse_i64) {
        None => ctx.client.resp,
        Some(Some(2)) => RespVersion::V2,
        Some(Some(3)) => RespVersion::V3,
        Some(Some(_)) => return Err(CommandError::Fixed("NOPROTO unsupported protocol version")),
        Some(None) => {
            let text = "ERR Protocol version is not an integer or out of range";
            return Err(CommandError::Fixed(text));
        }
    };
    let mut at = 2;
    while let Some(option) = args.get(at) {
        if text::is_option(option, "auth") && args.len() > at + 2 {
            authenticate(ctx, args.at(0), args.at(at + 1), args.at(at + 2))?;
            at += 3;
        } else if text::is_option(option, "setname") && args.len() > at + 1 {
            client::rename(ctx, args.at(at + 1))?;
            at += 2;
        } else {
            let text = [
                b"ERR Syntax error in HELLO option '",
                text::quote(option, usize::MAX),
                b"'",
            ];
            return Err(CommandError::Detailed(text.concat()));
        }
    }
    if !ctx.client.user.has_authenticated() {
        return Err(CommandError::Fixed(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ));
    }
    ctx.client.resp = resp;
    reply::map(ctx.out, resp, 7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply::bulk(ctx.out, name.as_bytes());
        reply::bulk(ctx.out, value.as_bytes());
    }
    reply::bulk(ctx.out, b"proto");
    reply::integer(ctx.out, resp.number());
    reply::bulk(ctx.out, b"id");
    reply::integer(ctx.out, i64::try_from(ctx.client.id()).unwrap_or(i64::MAX));
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply::bulk(ctx.out, name.as_bytes());
        reply::bulk(ctx.out, value.as_bytes());
    }
    reply::bulk(ctx.out, b"modules");
    reply::array(ctx.out, 0);
    Ok(())
}

/// `RESET`
pub(super) fn reset(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    client::rename(ctx, b"")?;
    ctx.client.transaction.queue = None;
    ctx.client.transaction.watched.clear();
    pubsub::unsubscribe_all(ctx);
    ctx.client.end_tracking(&ctx.shared.interests.tracking);
    ctx.client.db = 0;
    ctx.client.resp = RespVersion::V2;
    ctx.client.replies = ReplyMode::On;
    ctx.client.reset_user(&ctx.shared.security.users);
    reply::simple(ctx.out, "RESET");
    Ok(())
}

/// `QUIT`
pub(super) fn quit(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.client.leaving = true;
    // From here on, invalidations that are redirected to it have no receiver.
    ctx.client
        .client_info
        .has_quit
        .store(true, Ordering::Relaxed);
    pubsub::unsubscribe_all(ctx);
    reply::ok(ctx.out);
    Ok(())
}
