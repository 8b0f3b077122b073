//! MONITOR: shows the requests of all clients to the clients that monitor.
//!
//! A monitoring client has a subscription of its own kind, so lines go the way of published messages: they have their
//! bounds (SRV-PUB-4), and a client that reads too slowly is closed at the limit of its output. As in Redis, a line
//! appears after its command has executed, but a script's line before those of the commands that the script calls.
//! Administrative commands are not shown, and passwords are hidden.

use std::fmt::Write;
use std::time::SystemTime;

use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::CommandError;
use super::redact::redacted;
use crate::protocol::resp::parse::quoted;
use crate::protocol::resp::{Args, reply};
use crate::state::messages::SubscriptionKind;

/// Most bytes of an argument, and of all arguments, that a line shows.
const ARG_BYTES_MAX: usize = 16 << 10;
const LINE_BYTES_MAX: usize = 64 << 10;

/// `MONITOR`
pub(super) fn monitor(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.transaction.executing.is_some() {
        let text = "ERR MONITOR isn't allowed for DENY BLOCKING client";
        return Err(CommandError::Fixed(text));
    }
    let kind = SubscriptionKind::Monitor;
    let own = ctx.client.subscriptions.get_or_insert_default();
    if let Some(name) = own.insert(kind, b"") {
        let client_info = &ctx.client.client_info;
        ctx.shared
            .interests
            .subscriptions
            .add(client_info, kind, &name);
    }
    ctx.client.note_subscribed();
    reply::ok(ctx.out);
    Ok(())
}

/// Refuses commands that access keys to a client that monitors, with Redis's error.
pub(super) fn check_allowed(
    ctx: &CommandContext<'_>,
    command: &Command,
) -> Result<(), CommandError> {
    let accesses = flag::WRITE | flag::READONLY | flag::PUBLISHES | flag::SCRIPT;
    match ctx.client.is_monitor() && command.is(accesses) {
        true => Err(CommandError::Fixed(
            "ERR Replica can't interact with the keyspace",
        )),
        false => Ok(()),
    }
}

impl CommandContext<'_> {
    /// Shows a script that is about to run.
    #[inline]
    pub(super) fn show_script(&mut self, command: &'static Command, args: Args<'_>) {
        if self.shared.interests.subscriptions.has_monitors() && command.is(flag::SCRIPT) {
            self.show(command, args);
        }
    }

    /// Shows a command that has executed, except for scripts.
    #[inline]
    pub(super) fn show_executed(&mut self, command: &'static Command, args: Args<'_>) {
        if self.shared.interests.subscriptions.has_monitors()
            && !command.is(flag::ADMIN | flag::SKIP_MONITOR | flag::SCRIPT)
        {
            self.show(command, args);
        }
    }

    #[cold]
    fn show(&mut self, command: &'static Command, args: Args<'_>) {
        let source = match self.request.replies_to_script {
            true => "lua",
            false => &*self.client.client_info.addr,
        };
        let line = line(self.client.db, source, command, args);
        let publication = self
            .shared
            .interests
            .subscriptions
            .publish_line(line.as_bytes());
        if let Some(publication) = publication {
            self.send_with_batch(publication);
        }
    }
}

/// The line of a request.
fn line(db: u8, source: &str, command: &Command, args: Args<'_>) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let (secs, micros) = (now.as_secs(), now.subsec_micros());
    let mut line = format!("{secs}.{micros:06} [{db} {source}]");
    for at in 0..args.len() {
        if line.len() > LINE_BYTES_MAX {
            append(
                &mut line,
                format_args!(" ... ({} more arguments)", args.len() - at),
            );
            break;
        }
        let arg = redacted(command, args, at);
        let shown = &arg[..arg.len().min(ARG_BYTES_MAX)];
        line.push(' ');
        line.extend(quoted(shown).into_iter().map(char::from));
        if shown.len() < arg.len() {
            append(
                &mut line,
                format_args!("... ({} more bytes)", arg.len() - shown.len()),
            );
        }
    }
    line
}

fn append(line: &mut String, text: std::fmt::Arguments<'_>) {
    let written = line.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to a String cannot fail");
}
