//! Users and their permissions: ACL.
//!
//! * [`rules`]: rules of users. [`describe`]: the reverse. [`categories`]: sets of commands that rules name.
//! * [`check`]: whether a user may execute a request. `dispatch`, `transactions` and `script_run` call it.
//! * [`file`]: the ACL file, and the users at the start.
//!
//! The users themselves are in `state::users`, refused requests in `state::acl_log`.

pub(super) mod categories;
pub(super) mod check;
pub(super) mod describe;
pub(super) mod file;
mod rules;

use std::sync::Arc;

use self::categories::{CATEGORIES, categories, position};
use self::check::{Denial, check};
use self::rules::{RuleContext, apply, has_blank, merged};
use super::client::line_of;
use super::context::CommandContext;
use super::context::command_row::Command;
use super::error::{CommandError, NOT_INTEGER};
use super::lookup::lookup;
use super::text::{self, quote};
use crate::hex::hex;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, RespVersion, reply};
use crate::settings::size;
use crate::state::acl_log::{AclLogEntry, DenialContext};
use crate::state::users::{DenialReason, Selector, User};
use crate::stats::process::unix_ms;

/// Most bits of a generated password.
const PASSWORD_BITS_MAX: i64 = 4096;
/// Entries of ACL LOG without a count.
const LOGGED: usize = 10;

impl CommandContext<'_> {
    /// What rules refer to.
    fn rule_context(&self) -> RuleContext {
        RuleContext {
            table: self.client.table,
            has_all_channels: self.shared.settings.has_all_channels(),
        }
    }

    /// Makes the workers close connections that a change of users concerns, and follows it with this connection.
    pub(super) fn users_changed(&mut self) {
        self.shared.threads.users_changed();
        self.follow_users();
    }

    /// Follows changes of users with this connection. It is closed after this reply if its user was removed.
    pub(super) fn follow_users(&mut self) {
        if !self.client.follow_users(&self.shared.security.users) {
            self.client.leaving = true;
        }
    }

    /// Records a request that the client's user may not execute.
    fn note_denied(
        &mut self,
        denial: Denial,
        command: &Command,
        args: Args<'_>,
        context: DenialContext,
    ) {
        let object = match denial {
            Denial::Command => command.name.as_bytes(),
            Denial::Key(at) | Denial::Channel(at) => args.at(at),
        };
        let user = Arc::clone(&self.client.user.user().name);
        self.log_denial(denial.reason(), context, object, &user);
    }

    /// Records that the client has given a wrong password for `user`.
    pub(super) fn note_wrong_password(&mut self, command: &[u8], user: &[u8]) {
        let context = match self.client.transaction.queue.is_some()
            || self.client.transaction.executing.is_some()
        {
            true => DenialContext::Multi,
            false => DenialContext::TopLevel,
        };
        self.log_denial(DenialReason::Auth, context, command, user);
    }

    fn log_denial(
        &mut self,
        reason: DenialReason,
        context: DenialContext,
        object: &[u8],
        user: &[u8],
    ) {
        self.shared.security.users.count(reason);
        let len_max = size(&self.shared.settings.acl_log_len);
        if len_max == 0 {
            return;
        }
        self.client.show();
        let client = line_of(self, &self.client.client_info);
        let entry = AclLogEntry {
            count: 1,
            reason,
            context,
            object: object.to_vec(),
            user: user.to_vec(),
            at_ms: unix_ms(),
            client,
        };
        self.shared.security.acl_log.add(entry, len_max);
    }
}

/// `ACL WHOAMI`
pub(super) fn whoami(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let name = Arc::clone(&ctx.client.user.user().name);
    reply::bulk(ctx.out, &name);
    Ok(())
}

/// `ACL USERS`
pub(super) fn users(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let users = ctx.shared.security.users.current();
    reply::array(ctx.out, users.len());
    for user in users.iter() {
        reply::bulk(ctx.out, &user.name);
    }
    Ok(())
}

/// `ACL LIST`
pub(super) fn list(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let users = ctx.shared.security.users.current();
    reply::array(ctx.out, users.len());
    for user in users.iter() {
        if ctx.out.is_cut() {
            break;
        }
        reply::bulk(ctx.out, &describe::line(ctx.client.table, user));
    }
    Ok(())
}

/// `ACL GETUSER username`
pub(super) fn getuser(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let users = ctx.shared.security.users.current();
    let Some(user) = users.get(args.at(2)) else {
        // As Redis 7.0 does: an empty reply, not an error.
        reply::null(ctx.out, ctx.client.resp);
        return Ok(());
    };
    let resp = ctx.client.resp;
    reply::map(ctx.out, resp, 6);
    reply::bulk(ctx.out, b"flags");
    reply::set(ctx.out, resp, describe::flags(user).count());
    for flag in describe::flags(user) {
        reply::bulk(ctx.out, flag.as_bytes());
    }
    reply::bulk(ctx.out, b"passwords");
    reply::array(ctx.out, user.passwords.len());
    for password in &user.passwords {
        reply::bulk(ctx.out, password.hex().as_bytes());
    }
    reply_selector(ctx, &user.root);
    reply::bulk(ctx.out, b"selectors");
    reply::array(ctx.out, user.selectors.len());
    for selector in &user.selectors {
        reply::map(ctx.out, resp, 3);
        reply_selector(ctx, selector);
    }
    Ok(())
}

fn reply_selector(ctx: &mut CommandContext<'_>, selector: &Selector) {
    let commands = describe::commands(ctx.client.table, selector);
    for (name, rules) in [
        ("commands", commands),
        ("keys", describe::keys(selector)),
        ("channels", describe::channels(selector)),
    ] {
        reply::bulk(ctx.out, name.as_bytes());
        reply::bulk(ctx.out, &rules);
    }
}

/// `ACL SETUSER username [rule ...]`: all rules, or none if one is refused.
pub(super) fn setuser(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (name, context) = (args.at(2), ctx.rule_context());
    if has_blank(name) {
        let text = "ERR Usernames can't contain spaces or null characters";
        return Err(CommandError::Fixed(text));
    }
    let rules = merged(args.from(3)).map_err(|at| {
        let text: [&[u8]; 3] = [
            b"ERR Unmatched parenthesis in acl selector starting at '",
            quote(args.at(3 + at), usize::MAX),
            b"'.",
        ];
        CommandError::Detailed(text.concat())
    })?;
    let registry = &ctx.shared.security.users;
    registry.change(|users| {
        let mut user = match users.get(name) {
            Some(known) => User::clone(known),
            None => User::new(registry.next_id(), name, context.has_all_channels),
        };
        for rule in &rules {
            apply(context, &mut user, rule).map_err(|error| {
                let text: [&[u8]; 4] = [
                    b"ERR Error in ACL SETUSER modifier '",
                    quote(rule, usize::MAX),
                    b"': ",
                    error.text().as_bytes(),
                ];
                CommandError::Detailed(text.concat())
            })?;
        }
        users.insert(user);
        Ok::<_, CommandError>(())
    })?;
    ctx.users_changed();
    reply::ok(ctx.out);
    Ok(())
}

/// `ACL DELUSER username [username ...]`
pub(super) fn deluser(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let mut names = args.from(2);
    if names.any(|name| quote(name, usize::MAX) == crate::state::users::DEFAULT) {
        let text = "ERR The 'default' user cannot be removed";
        return Err(CommandError::Fixed(text));
    }
    let removed = ctx.shared.security.users.change(|users| {
        let removed = args.from(2).filter(|name| users.remove(name)).count();
        Ok::<_, CommandError>(removed)
    })?;
    ctx.users_changed();
    reply::integer(ctx.out, i64::try_from(removed).unwrap_or(i64::MAX));
    Ok(())
}

/// `ACL CAT [category]`
pub(super) fn cat(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let names: Vec<_> = match args.get(2) {
        None => CATEGORIES.to_vec(),
        Some(_) if args.len() > 3 => return Err(text::subcommand_syntax("ACL", args.at(1))),
        Some(name) => {
            let name = quote(name, usize::MAX);
            let at = position(name).ok_or_else(|| {
                let text: [&[u8]; 3] = [b"ERR Unknown category '", quote(name, 128), b"'"];
                CommandError::Detailed(text.concat())
            })?;
            let is_in = |command: &&Command| categories(command).any(|own| own == CATEGORIES[at]);
            let members = ctx.client.table.every().filter(is_in);
            members.map(|command| command.name).collect()
        }
    };
    reply::array(ctx.out, names.len());
    for name in names {
        reply::bulk(ctx.out, name.as_bytes());
    }
    Ok(())
}

/// `ACL GENPASS [bits]`
pub(super) fn genpass(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let bits = match args.get(2) {
        None => 256,
        Some(_) if args.len() > 3 => return Err(text::subcommand_syntax("ACL", args.at(1))),
        Some(bits) => parse_i64(bits).ok_or(NOT_INTEGER)?,
    };
    if !(1..=PASSWORD_BITS_MAX).contains(&bits) {
        let text = format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
             {PASSWORD_BITS_MAX}"
        );
        return Err(CommandError::Detailed(text.into_bytes()));
    }
    let digits = usize::try_from(bits.unsigned_abs().div_ceil(4)).unwrap_or(0);
    let mut random = vec![0; digits.div_ceil(2)];
    let mut filled = 0;
    while filled < random.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut random[filled..], flags).map_err(|error| {
            CommandError::Detailed(format!("ERR no random bytes: {error}").into_bytes())
        })?;
    }
    reply::bulk(ctx.out, &hex(&random).as_bytes()[..digits]);
    Ok(())
}

/// `ACL DRYRUN username command [argument ...]`
pub(super) fn dryrun(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (users, request) = (ctx.shared.security.users.current(), args.rest(3));
    let user = users
        .get(args.at(2))
        .ok_or_else(|| not_found("User", args.at(2)))?;
    let command = lookup(ctx.client.table.find(request.at(0)), request)
        .map_err(|_| not_found("Command", request.at(0)))?;
    if !command.takes(request.len()) {
        return Err(CommandError::arity(command.name));
    }
    let (kind, name): (_, &[u8]) = match check(user, command, request) {
        Ok(()) => {
            reply::ok(ctx.out);
            return Ok(());
        }
        Err(Denial::Command) => {
            let name = command.name;
            let text = format!("This user has no permissions to run the '{name}' command");
            reply::bulk(ctx.out, text.as_bytes());
            return Ok(());
        }
        Err(Denial::Key(at)) => ("key", request.at(at)),
        Err(Denial::Channel(at)) => ("channel", request.at(at)),
    };
    let text: [&[u8]; 4] = [
        b"This user has no permissions to access the '",
        quote(name, usize::MAX),
        b"' ",
        kind.as_bytes(),
    ];
    reply::bulk(ctx.out, &text.concat());
    Ok(())
}

fn not_found(what: &str, name: &[u8]) -> CommandError {
    let text: [&[u8]; 5] = [
        b"ERR ",
        what.as_bytes(),
        b" '",
        quote(name, usize::MAX),
        b"' not found",
    ];
    CommandError::Detailed(text.concat())
}

/// `ACL LOG [count|RESET]`
pub(super) fn log(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let count = match args.get(2) {
        None => LOGGED,
        Some(_) if args.len() > 3 => return Err(text::subcommand_syntax("ACL", args.at(1))),
        Some(word) if text::is_option(word, "reset") => {
            ctx.shared.security.acl_log.clear();
            reply::ok(ctx.out);
            return Ok(());
        }
        Some(word) => usize::try_from(parse_i64(word).ok_or(NOT_INTEGER)?).unwrap_or(0),
    };
    let entries = ctx.shared.security.acl_log.latest(count);
    let (now_ms, resp) = (unix_ms(), ctx.client.resp);
    reply::array(ctx.out, entries.len());
    for entry in entries {
        if ctx.out.is_cut() {
            break;
        }
        reply::map(ctx.out, resp, 7);
        reply::bulk(ctx.out, b"count");
        reply::integer(ctx.out, i64::try_from(entry.count).unwrap_or(i64::MAX));
        let age_secs = decimal(now_ms.saturating_sub(entry.at_ms) as f64 / 1000.0);
        for (name, value) in [
            ("reason", entry.reason.name().as_bytes()),
            ("context", entry.context.name().as_bytes()),
            ("object", &entry.object),
            ("username", &entry.user),
            ("age-seconds", age_secs.as_bytes()),
            ("client-info", entry.client.as_bytes()),
        ] {
            reply::bulk(ctx.out, name.as_bytes());
            match (name, resp) {
                ("age-seconds", RespVersion::V3) => reply::double(ctx.out, &age_secs),
                _ => reply::bulk(ctx.out, value),
            }
        }
    }
    Ok(())
}

/// Formats seconds as C's `%.17g` does.
fn decimal(secs: f64) -> String {
    const DIGITS: i32 = 17;
    let scientific = format!("{secs:.16e}");
    let exponent = scientific
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse().ok());
    let exponent: i32 = exponent.unwrap_or(0);
    let places = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
    let text = format!("{secs:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `ACL LOAD`
pub(super) fn load(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let path = ctx.shared.options.acl_file.as_deref().ok_or(NO_FILE)?;
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let registry = &ctx.shared.security.users;
    let loaded = file::load(ctx.rule_context(), path, &|| registry.next_id());
    let loaded = loaded.map_err(|e| CommandError::Detailed(format!("ERR {e}").into_bytes()))?;
    registry.change(|users| {
        users.replace(loaded);
        Ok::<_, CommandError>(())
    })?;
    ctx.users_changed();
    reply::ok(ctx.out);
    Ok(())
}

/// `ACL SAVE`
pub(super) fn save(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let path = ctx.shared.options.acl_file.as_deref().ok_or(NO_FILE)?;
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let users = ctx.shared.security.users.current();
    if let Err(error) = file::save(ctx.client.table, path, &users) {
        tracing::error!(%error, path = %path.display(), "cannot write the ACL file");
        return Err(CommandError::Fixed(
            "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
        ));
    }
    reply::ok(ctx.out);
    Ok(())
}

const NO_FILE: CommandError = CommandError::Fixed(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
     command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users \
     in the Redis configuration.",
);

/// `ACL HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    const LINES: &[&str] = &[
        "ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CAT [<category>]",
        "    List all commands that belong to <category>, or all command categories",
        "    when no category is specified.",
        "DELUSER <username> [<username> ...]",
        "    Delete a list of users.",
        "DRYRUN <username> <command> [<arg> ...]",
        "    Returns whether the user can execute the given command without executing the command.",
        "GETUSER <username>",
        "    Get the user's details.",
        "GENPASS [<bits>]",
        "    Generate a secure 256-bit user password. The optional `bits` argument can",
        "    be used to specify a different size.",
        "LIST",
        "    Show users details in config file format.",
        "LOAD",
        "    Reload users from the ACL file.",
        "LOG [<count> | RESET]",
        "    Show the ACL log entries.",
        "SAVE",
        "    Save the current config to the ACL file.",
        "SETUSER <username> <attribute> [<attribute> ...]",
        "    Create or modify a user with the specified attributes.",
        "USERS",
        "    List all the registered usernames.",
        "WHOAMI",
        "    Return the current connection username.",
        "HELP",
        "    Prints this help.",
    ];
    reply::array(ctx.out, LINES.len());
    for line in LINES {
        reply::simple(ctx.out, line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_seventeen_significant_digits() {
        let cases = [
            (0.0, "0"),
            (0.006, "0.0060000000000000001"),
            (0.01, "0.01"),
            (36.018, "36.018000000000001"),
            (120.0, "120"),
            (1500.0, "1500"),
        ];
        for (secs, text) in cases {
            assert_eq!(decimal(secs), text);
        }
    }
}
