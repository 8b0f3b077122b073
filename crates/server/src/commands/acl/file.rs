//! The ACL file: one line `user NAME RULE ...` for each user.
//!
//! `state::durable_file` replaces it, so that a crash leaves the old or the new file.

use std::io;
use std::path::Path;

use super::describe;
use super::rules::{RuleContext, apply, has_blank, merged};
use crate::commands::context::command_table::CommandTable;
use crate::settings::UserRules;
use crate::settings_error::SettingsError;
use crate::state::durable_file::{FileAccess, replace_file};
use crate::state::users::{DEFAULT, PayloadChecks, User, Users};

/// Most bytes of the file.
const BYTES_MAX: u64 = 64 << 20;

/// Reads users from the file. Returns all problems, in Redis's words, if there are any. Without a user `default` in the
/// file, that user may do everything without a password.
pub(super) fn load(
    context: RuleContext,
    path: &Path,
    next_id: &dyn Fn() -> u64,
) -> Result<Users, SettingsError> {
    let shown = path.display();
    let text = read(path).map_err(|error| {
        SettingsError::from_cause(error)
            .of(format_args!("Error loading ACLs, opening file '{shown}'"))
    })?;
    let mut users = Users::new(User::new_default(next_id()));
    let (mut errors, mut has_default) = (String::new(), false);
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let place = format!("{shown}:{}", at + 1);
        let mut words = line.trim_ascii().split(|&byte| byte == b' ');
        let keyword = words.next().unwrap_or_default();
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Some(name) = words.next().filter(|_| keyword == b"user") else {
            errors += &format!("{place} should start with user keyword followed by the username. ");
            continue;
        };
        let quoted = String::from_utf8_lossy(name);
        if has_blank(name) {
            errors += &format!("'{place}: username '{quoted}' contains invalid characters. ");
            continue;
        }
        let is_repeated = match name == DEFAULT {
            true => std::mem::replace(&mut has_default, true),
            false => users.get(name).is_some(),
        };
        if is_repeated {
            errors += &format!(
                "WARNING: Duplicate user '{quoted}' found on line {}. ",
                at + 1
            );
            continue;
        }
        let mut user = User::new(next_id(), name, context.has_all_channels);
        let Ok(rules) = merged(words) else {
            errors += &format!("{place}: Unmatched parenthesis in selector definition.");
            continue;
        };
        for rule in rules {
            if let Err(error) = apply(context, &mut user, rule.trim_ascii()) {
                errors += &format!("{place}: {}. ", error.text());
            }
        }
        users.insert(user);
    }
    match errors.is_empty() {
        true => Ok(users),
        false => Err(SettingsError::new(
            errors
                + "WARNING: ACL errors detected, no change to the previously active ACL rules was performed",
        )),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > BYTES_MAX {
        let text = format!("{bytes} bytes, at most {BYTES_MAX} are allowed");
        return Err(io::Error::other(text));
    }
    std::fs::read(path)
}

/// Replaces the file durably.
pub(super) fn save(table: &'static CommandTable, path: &Path, users: &Users) -> io::Result<()> {
    let mut text = Vec::new();
    for user in users.iter() {
        text.extend_from_slice(&describe::line(table, user));
        text.push(b'\n');
    }
    replace_file(path, &text, FileAccess::Private)
}

/// Returns the users at the start: `default` with `password`, those of `lines`, or those of the ACL file. Also returns
/// the last id.
///
/// # Errors
/// [`SettingsError`], which names the rule or the line of the file.
pub(in crate::commands) fn initial_users(
    table: &'static CommandTable,
    has_all_channels: bool,
    password: Option<&[u8]>,
    lines: &[UserRules],
    file: Option<&Path>,
) -> Result<(Users, u64), SettingsError> {
    let context = RuleContext {
        table,
        has_all_channels,
    };
    let last_id = std::cell::Cell::new(0);
    let next_id = || {
        last_id.set(last_id.get() + 1);
        last_id.get()
    };
    if let Some(file) = file {
        if !lines.is_empty() || password.is_some() {
            return Err(SettingsError::new(
                "users and passwords are defined both in an ACL file and elsewhere; define them in the file only",
            ));
        }
        let users = load(context, file, &next_id)?;
        return Ok((users, last_id.get()));
    }
    let mut default = User::new_default(next_id());
    default.set_password(password.unwrap_or_default());
    let mut users = Users::new(default);
    for (at, line) in lines.iter().enumerate() {
        let name = String::from_utf8_lossy(&line.name);
        if has_blank(&line.name) {
            return Err(SettingsError::new("Spaces not allowed in ACL usernames"));
        }
        if lines[..at].iter().any(|earlier| earlier.name == line.name) {
            return Err(SettingsError::new(format!(
                "user '{name}': Duplicate user found. A user can only be defined once in config files"
            )));
        }
        let mut user = User::new(next_id(), &line.name, has_all_channels);
        if line.name == DEFAULT {
            user.payload_checks = PayloadChecks::Sanitize; // As in Redis, its rules begin with `reset`.
        }
        let rules = merged(line.rules.iter().map(Vec::as_slice)).map_err(|_| {
            SettingsError::new(format!(
                "user '{name}': Unmatched parenthesis in selector definition."
            ))
        })?;
        for rule in rules {
            apply(context, &mut user, &rule).map_err(|error| {
                let rule = String::from_utf8_lossy(&rule);
                let text = error.text();
                SettingsError::new(format!(
                    "Error loading ACL rule '{rule}' for the user named '{name}': {text}"
                ))
            })?;
        }
        if !user.is_on {
            tracing::info!("the user {name:?} is off: no rule turns it on");
        }
        users.insert(user);
    }
    Ok((users, last_id.get()))
}
