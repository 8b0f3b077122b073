//! Descriptions of users as rules, for ACL LIST, GETUSER and SAVE. The rules recreate the user.

use super::categories::{CATEGORIES, of_table};
use super::rules::{set_category, set_command};
use crate::commands::context::command_row::Command;
use crate::commands::context::command_table::CommandTable;
use crate::state::users::{CommandSet, KeyPattern, KeyPermission, PayloadChecks, Selector, User};

/// Categories of data types that this server does not have: only SORT and SORT_RO are in them. A description does not
/// use them, because in Redis, and if the types are added, the same rule has a wider effect.
const INCOMPLETE: [&str; 3] = ["set", "sortedset", "list"];

/// The user's state besides passwords and permissions, in Redis's order.
pub(super) fn flags(user: &User) -> impl Iterator<Item = &'static str> {
    let flags = [
        ("on", user.is_on),
        ("off", !user.is_on),
        ("nopass", user.needs_no_password),
        (
            "skip-sanitize-payload",
            user.payload_checks == PayloadChecks::Skip,
        ),
        (
            "sanitize-payload",
            user.payload_checks == PayloadChecks::Sanitize,
        ),
    ];
    flags
        .into_iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(name, _)| name)
}

/// The line that recreates a user.
pub(in crate::commands) fn line(table: &'static CommandTable, user: &User) -> Vec<u8> {
    let mut line = [b"user ", &*user.name, b" "].concat();
    for flag in flags(user) {
        line.extend_from_slice(flag.as_bytes());
        line.push(b' ');
    }
    for password in &user.passwords {
        line.extend_from_slice(format!("#{} ", password.hex()).as_bytes());
    }
    append_selector(table, &user.root, &mut line);
    for selector in &user.selectors {
        line.extend_from_slice(b" (");
        append_selector(table, selector, &mut line);
        line.push(b')');
    }
    line
}

fn append_selector(table: &'static CommandTable, selector: &Selector, line: &mut Vec<u8>) {
    let keys = keys(selector);
    if !keys.is_empty() {
        line.extend_from_slice(&keys);
        line.push(b' ');
    }
    if !selector.has_all_channels {
        line.extend_from_slice(b"resetchannels ");
    }
    let channels = channels(selector);
    if !channels.is_empty() {
        line.extend_from_slice(&channels);
        line.push(b' ');
    }
    line.extend_from_slice(&commands(table, selector));
}

/// The rules about keys.
pub(super) fn keys(selector: &Selector) -> Vec<u8> {
    if selector.has_all_keys {
        return b"~*".to_vec();
    }
    let rule = |own: &KeyPattern| {
        let prefix: &[u8] = match own.access {
            KeyPermission::BOTH => b"~",
            KeyPermission { writes: false, .. } => b"%R~",
            KeyPermission { .. } => b"%W~",
        };
        [prefix, &own.pattern].concat()
    };
    selector
        .keys
        .iter()
        .map(rule)
        .collect::<Vec<_>>()
        .join(&b' ')
}

/// The rules about channels, without `resetchannels`.
pub(super) fn channels(selector: &Selector) -> Vec<u8> {
    if selector.has_all_channels {
        return b"&*".to_vec();
    }
    let rules = selector.channels.iter().map(|own| [b"&", &**own].concat());
    rules.collect::<Vec<_>>().join(&b' ')
}

/// The rules about commands: all or none, then the categories that come closest, then single commands.
pub(super) fn commands(table: &'static CommandTable, selector: &Selector) -> Vec<u8> {
    let is_subtractive = selector.is_subtractive;
    let (sign, start) = match is_subtractive {
        true => ('-', "+@all"),
        false => ('+', "-@all"),
    };
    let mut rules = start.as_bytes().to_vec();
    // What the rules so far recreate, and what is left to describe.
    let mut described = Selector::new(false);
    if is_subtractive {
        described.commands = CommandSet::ALL;
    }
    let mut left = selector.clone();
    let mut applied = [false; CATEGORIES.len()];
    while let Some(at) = best_category(table, &left, &applied, is_subtractive) {
        set_category(table, &mut described, at, !is_subtractive);
        set_category(table, &mut left, at, is_subtractive);
        rules.extend_from_slice(format!(" {sign}@{}", CATEGORIES[at]).as_bytes());
        applied[at] = true;
    }
    for command in table.rows() {
        append_command(selector, &mut described, command, &mut rules);
        for subcommand in command.subcommands {
            append_command(selector, &mut described, subcommand, &mut rules);
        }
        append_first_args(selector, command, &mut rules);
    }
    rules
}

/// The category, not applied yet, in which the fewest commands differ and more commands agree than differ.
fn best_category(
    table: &'static CommandTable,
    left: &Selector,
    applied: &[bool],
    is_subtractive: bool,
) -> Option<usize> {
    let mut best: Option<(usize, u32, u32)> = None;
    for (at, category) in of_table(table).iter().enumerate() {
        if applied[at] || INCOMPLETE.contains(&CATEGORIES[at]) {
            continue;
        }
        let on = left.commands.common(&category.members);
        let off = category.members.common(&category.members) - on;
        let (different, same) = match is_subtractive {
            true => (on, off),
            false => (off, on),
        };
        let is_better = best.is_none_or(|(_, fewest, most)| {
            different < fewest || different == fewest && same > most
        });
        if same > different && is_better {
            best = Some((at, different, same));
        }
    }
    best.map(|(at, ..)| at)
}

/// Appends a rule about one command if the rules so far do not have its effect.
fn append_command(
    selector: &Selector,
    described: &mut Selector,
    command: &Command,
    rules: &mut Vec<u8>,
) {
    let is_allowed = selector.commands.has(command.number);
    if is_allowed != described.commands.has(command.number) {
        let sign = if is_allowed { '+' } else { '-' };
        rules.extend_from_slice(format!(" {sign}{}", command.name).as_bytes());
        set_command(described, command, is_allowed);
    }
}

fn append_first_args(selector: &Selector, command: &Command, rules: &mut Vec<u8>) {
    let first_args = selector.first_args.get(&command.number);
    if selector.commands.has(command.number) {
        return;
    }
    for first_arg in first_args.into_iter().flatten() {
        rules.extend_from_slice(format!(" +{}|", command.name).as_bytes());
        rules.extend_from_slice(first_arg);
    }
}
