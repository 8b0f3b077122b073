//! The users of a server at its start.

use super::acl::file::initial_users;
use super::config;
use super::table::COMMANDS;
use crate::settings::{LiveSettings, ServerOptions};
use crate::settings_error::SettingsError;
use crate::state::users::UserRegistry;

/// Returns the users that `options` define. `settings` has the parameters of `options`.
///
/// # Errors
/// [`SettingsError`], which names the rule, or the line of the ACL file.
pub(crate) fn registry(
    settings: &LiveSettings,
    options: &ServerOptions,
) -> Result<UserRegistry, SettingsError> {
    let password = options.password.as_ref();
    let (users, last_id) = initial_users(
        &COMMANDS,
        settings.has_all_channels(),
        password.map(|password| password.bytes()),
        &options.users,
        options.acl_file.as_deref(),
    )?;
    Ok(UserRegistry::new(users, last_id))
}

/// What a client may do that does not authenticate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultUser {
    /// Everything: the user `default` is on, has no password and no restriction.
    Open,
    /// What the rules of the user `default` allow.
    Restricted,
    /// Nothing: the user `default` has a password, or is off.
    Closed,
}

/// Returns what clients may do without authentication when a server with `options` starts.
///
/// # Errors
/// [`SettingsError`] if the users are not valid. It names the rule, or the line of the ACL file.
pub fn default_user(options: &ServerOptions) -> Result<DefaultUser, SettingsError> {
    let settings = LiveSettings::new(1, options);
    config::apply(&settings, &options.parameters);
    let registry = registry(&settings, options)?;
    let default = registry.current().default_user();
    Ok(match (default.is_open(), registry.is_open()) {
        (_, true) => DefaultUser::Open,
        (true, false) => DefaultUser::Restricted,
        (false, false) => DefaultUser::Closed,
    })
}
