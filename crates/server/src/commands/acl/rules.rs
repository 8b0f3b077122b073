//! The rules of ACL SETUSER, of `user` lines and of the ACL file: their effect on a user.

use super::categories::{of_table, position};
use crate::commands::context::command_row::Command;
use crate::commands::context::command_table::CommandTable;
use crate::commands::text::{is_option, quote};
use crate::protocol::resp::parse::words_of;
use crate::state::users::{
    CommandSet, KeyPattern, KeyPermission, PasswordHash, PayloadChecks, RULES_MAX, Selector, User,
};

/// Why a rule is refused. The texts are Redis's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::commands) enum RuleError {
    Unknown,
    Syntax,
    AllKeys,
    AllChannels,
    NoPassword,
    Hash,
    FirstArg,
    /// The user has too many rules.
    Limit,
}

impl RuleError {
    pub(in crate::commands) fn text(self) -> &'static str {
        match self {
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::Syntax => "Syntax error",
            RuleError::AllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. \
                 Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::AllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            RuleError::Hash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::FirstArg => "Allowing first-arg of a subcommand is not supported",
            RuleError::Limit => "The user has too many rules",
        }
    }
}

/// What rules refer to: the commands, and whether new users and selectors have all channels (`acl-pubsub-default`).
#[derive(Clone, Copy)]
pub(in crate::commands) struct RuleContext {
    pub(in crate::commands) table: &'static CommandTable,
    pub(in crate::commands) has_all_channels: bool,
}

/// Joins selectors whose parentheses span several words. Fails with the position of an unmatched parenthesis.
pub(in crate::commands) fn merged<'a>(
    words: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Vec<u8>>, usize> {
    let mut rules = Vec::new();
    let mut open: Option<(usize, Vec<u8>)> = None;
    for (at, word) in words.enumerate() {
        let (begins, ends) = (word.starts_with(b"("), word.ends_with(b")"));
        if begins && !ends {
            open = Some((at, word.to_vec()));
        } else if let Some((start, mut selector)) = open.take() {
            selector.push(b' ');
            selector.extend_from_slice(word);
            match ends {
                true => rules.push(selector),
                false => open = Some((start, selector)),
            }
        } else {
            rules.push(word.to_vec());
        }
    }
    match open {
        Some((at, _)) => Err(at),
        None => Ok(rules),
    }
}

/// Whether `name` has a blank or a NUL, which would make descriptions ambiguous.
pub(in crate::commands) fn has_blank(name: &[u8]) -> bool {
    name.iter()
        .any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}

/// Applies one rule to a user. An empty rule does nothing.
pub(in crate::commands) fn apply(
    context: RuleContext,
    user: &mut User,
    rule: &[u8],
) -> Result<(), RuleError> {
    let is = |word| is_option(rule, word);
    match rule {
        [] => {}
        _ if is("on") => user.is_on = true,
        _ if is("off") => user.is_on = false,
        _ if is("skip-sanitize-payload") => user.payload_checks = PayloadChecks::Skip,
        _ if is("sanitize-payload") => user.payload_checks = PayloadChecks::Sanitize,
        _ if is("nopass") || is("resetpass") => {
            user.needs_no_password = is("nopass");
            user.passwords.clear();
        }
        [b'>', password @ ..] => add_password(user, PasswordHash::of(password)),
        [b'#', digits @ ..] => {
            let hash = PasswordHash::parse(digits).ok_or(RuleError::Hash)?;
            add_password(user, hash);
        }
        [b'<', password @ ..] => remove_password(user, PasswordHash::of(password))?,
        [b'!', digits @ ..] => {
            let hash = PasswordHash::parse(digits).ok_or(RuleError::Hash)?;
            remove_password(user, hash)?;
        }
        [b'(', rules @ .., b')'] => {
            let mut selector = Selector::new(context.has_all_channels);
            for rule in words_of(rules).unwrap_or_default() {
                apply_to_selector(context, &mut selector, &rule)?;
            }
            user.selectors.push(selector);
        }
        _ if is("clearselectors") => user.selectors.clear(),
        _ if is("reset") => {
            *user = User::new(user.id, &user.name, context.has_all_channels);
            user.payload_checks = PayloadChecks::Sanitize;
        }
        _ => apply_to_selector(context, &mut user.root, rule)?,
    }
    match user.rules() > RULES_MAX {
        true => Err(RuleError::Limit),
        false => Ok(()),
    }
}

fn add_password(user: &mut User, hash: PasswordHash) {
    if !user.passwords.contains(&hash) {
        user.passwords.push(hash);
    }
    user.needs_no_password = false;
}

fn remove_password(user: &mut User, hash: PasswordHash) -> Result<(), RuleError> {
    let at = user.passwords.iter().position(|own| *own == hash);
    user.passwords.remove(at.ok_or(RuleError::NoPassword)?);
    Ok(())
}

/// Applies a rule about commands, keys or channels.
fn apply_to_selector(
    context: RuleContext,
    selector: &mut Selector,
    rule: &[u8],
) -> Result<(), RuleError> {
    let is = |word| is_option(rule, word);
    match rule {
        _ if is("allkeys") || is("~*") || is("resetkeys") => {
            selector.has_all_keys = !is("resetkeys");
            selector.keys.clear();
        }
        _ if is("allchannels") || is("&*") || is("resetchannels") => {
            selector.has_all_channels = !is("resetchannels");
            selector.channels.clear();
        }
        _ if is("allcommands") || is("+@all") => set_all_commands(selector, true),
        _ if is("nocommands") || is("-@all") => set_all_commands(selector, false),
        [b'~' | b'%', ..] => add_key_pattern(selector, rule)?,
        [b'&', pattern @ ..] => add_channel(selector, pattern)?,
        [sign @ (b'+' | b'-'), b'@', category @ ..] => {
            let at = position(quote(category, usize::MAX)).ok_or(RuleError::Unknown)?;
            set_category(context.table, selector, at, *sign == b'+');
        }
        [b'-', name @ ..] => {
            let command = context.table.named(quote(name, usize::MAX));
            set_command(selector, command.ok_or(RuleError::Unknown)?, false);
        }
        [b'+', name @ ..] => allow(context.table, selector, quote(name, usize::MAX))?,
        _ => return Err(RuleError::Syntax),
    }
    Ok(())
}

fn set_all_commands(selector: &mut Selector, value: bool) {
    selector.commands = match value {
        true => CommandSet::ALL,
        false => CommandSet::EMPTY,
    };
    (selector.has_all_commands, selector.is_subtractive) = (value, value);
    selector.first_args.clear();
}

/// Allows or forbids the commands of a category, by its position.
pub(super) fn set_category(
    table: &'static CommandTable,
    selector: &mut Selector,
    at: usize,
    value: bool,
) {
    let category = &of_table(table)[at];
    selector.commands.set_all(&category.affected, value);
    let members = &category.members;
    selector
        .first_args
        .retain(|&number, _| !members.has(number));
    if members.common(members) > 0 {
        selector.has_all_commands &= value;
    }
}

/// Allows or forbids a command and its subcommands.
pub(super) fn set_command(selector: &mut Selector, command: &Command, value: bool) {
    selector.commands.set(command.number, value);
    for subcommand in command.subcommands {
        selector.commands.set(subcommand.number, value);
    }
    selector.first_args.remove(&command.number);
    selector.has_all_commands &= value;
}

/// Allows `command`, `container|subcommand`, or `command|first-argument`.
fn allow(
    table: &'static CommandTable,
    selector: &mut Selector,
    name: &[u8],
) -> Result<(), RuleError> {
    let Some(bar) = name.iter().rposition(|&byte| byte == b'|') else {
        let command = table.named(name).ok_or(RuleError::Unknown)?;
        set_command(selector, command, true);
        return Ok(());
    };
    let (parent, argument) = (&name[..bar], &name[bar + 1..]);
    let command = table.named(parent).ok_or(RuleError::Unknown)?;
    if parent.contains(&b'|') {
        return Err(RuleError::FirstArg);
    }
    if argument.is_empty() {
        return Err(RuleError::Syntax);
    }
    if !command.subcommands.is_empty() {
        let subcommand = command.subcommand(argument).ok_or(RuleError::Unknown)?;
        set_command(selector, subcommand, true);
        return Ok(());
    }
    let allowed = selector.first_args.entry(command.number).or_default();
    if !allowed.iter().any(|own| own.eq_ignore_ascii_case(argument)) {
        allowed.push(argument.to_vec());
    }
    Ok(())
}

/// Adds a pattern `~p`, `%R~p`, `%W~p` or `%RW~p`.
fn add_key_pattern(selector: &mut Selector, rule: &[u8]) -> Result<(), RuleError> {
    if selector.has_all_keys {
        return Err(RuleError::AllKeys);
    }
    let (access, pattern) = match rule {
        [b'~', pattern @ ..] => (KeyPermission::BOTH, pattern),
        _ => key_access(&rule[1..])?,
    };
    if has_blank(pattern) {
        return Err(RuleError::Syntax);
    }
    let known = selector.keys.iter_mut().find(|own| own.pattern == pattern);
    match known {
        Some(known) => {
            known.access.reads |= access.reads;
            known.access.writes |= access.writes;
        }
        None => selector.keys.push(KeyPattern {
            access,
            pattern: pattern.to_vec(),
        }),
    }
    Ok(())
}

/// Parses `R~p`, `W~p` or `RW~p`. As in Redis, `~p` may be missing.
fn key_access(text: &[u8]) -> Result<(KeyPermission, &[u8]), RuleError> {
    let mut access = KeyPermission {
        reads: false,
        writes: false,
    };
    let mut pattern = text;
    while let [letter, rest @ ..] = pattern {
        pattern = rest;
        match letter {
            b'r' | b'R' if !access.reads => access.reads = true,
            b'w' | b'W' if !access.writes => access.writes = true,
            b'~' => break,
            _ => return Err(RuleError::Syntax),
        }
    }
    match access.reads || access.writes {
        true => Ok((access, pattern)),
        false => Err(RuleError::Syntax),
    }
}

fn add_channel(selector: &mut Selector, pattern: &[u8]) -> Result<(), RuleError> {
    if selector.has_all_channels {
        return Err(RuleError::AllChannels);
    }
    if has_blank(pattern) {
        return Err(RuleError::Syntax);
    }
    if !selector.channels.iter().any(|own| own == pattern) {
        selector.channels.push(pattern.to_vec());
    }
    Ok(())
}
