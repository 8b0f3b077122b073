//! Whether a user may execute a request.

use crate::commands::context::CommandContext;
use crate::commands::context::command_row::{Command, flag};
use crate::commands::error::CommandError;
use crate::commands::key_access::{access_of, keys_with_access};
use crate::protocol::resp::Args;
use crate::state::acl_log::DenialContext;
use crate::state::users::{DenialReason, Selector, User, allows_channel};

/// Why a user may not execute a request. Positions are those of arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::commands) enum Denial {
    Command,
    Key(usize),
    Channel(usize),
}

impl Denial {
    /// The error of a request that a client has sent.
    pub(in crate::commands) fn error(self, command: &Command) -> CommandError {
        CommandError::Fixed(match self {
            Denial::Command => {
                let name = command.name;
                let text =
                    format!("NOPERM this user has no permissions to run the '{name}' command");
                return CommandError::Detailed(text.into_bytes());
            }
            Denial::Key(_) => {
                "NOPERM this user has no permissions to access one of the keys used as arguments"
            }
            Denial::Channel(_) => {
                "NOPERM this user has no permissions to access one of the channels used as arguments"
            }
        })
    }

    /// The error of a request in a transaction that was allowed when it was queued.
    pub(in crate::commands) fn error_in_exec(self) -> CommandError {
        let reason = match self {
            Denial::Command => "no permission to execute the command or subcommand",
            Denial::Key(_) => "no permission to touch the specified keys",
            Denial::Channel(_) => {
                "no permission to access one of the channels used as arguments to the command"
            }
        };
        let text = format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: {reason}"
        );
        CommandError::Detailed(text.into_bytes())
    }

    /// The error of a request that a script makes.
    pub(in crate::commands) fn text_in_script(self) -> &'static str {
        match self {
            Denial::Command => {
                "ERR The user executing the script can't run this command or subcommand"
            }
            Denial::Key(_) => {
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments"
            }
            Denial::Channel(_) => {
                "ERR The user executing the script can't publish to the channel mentioned in the command"
            }
        }
    }

    pub(super) fn reason(self) -> DenialReason {
        match self {
            Denial::Command => DenialReason::Command,
            Denial::Key(_) => DenialReason::Key,
            Denial::Channel(_) => DenialReason::Channel,
        }
    }
}

/// Most pairs of a byte of a pattern and a byte of a name that a worker compares for one request, about a millisecond.
pub(in crate::commands) const COMPARED_MAX: usize = 1 << 20;

/// Whether checking a request with patterns of `pattern_bytes` takes more time than a worker may spend.
pub(in crate::commands) fn is_long_check(
    pattern_bytes: usize,
    command: &Command,
    args: Args<'_>,
) -> bool {
    if pattern_bytes == 0 {
        return false;
    }
    let most = COMPARED_MAX / pattern_bytes;
    if args.from(1).map(|arg| arg.len() + 1).sum::<usize>() <= most {
        return false;
    }
    let bytes = match channels(command, args) {
        Some((count, _)) => args.from(1).take(count).map(|arg| arg.len() + 1).sum(),
        None => {
            let keys = command.key_positions(args);
            keys.map(|at| args.at(at).len() + 1).sum::<usize>()
        }
    };
    bytes > most
}

/// Checks a request of `user`. If no selector allows it, returns the refusal that comes closest to a permission.
pub(in crate::commands) fn check(
    user: &User,
    command: &Command,
    args: Args<'_>,
) -> Result<(), Denial> {
    let mut closest = Denial::Command;
    for selector in user.selectors() {
        match check_selector(selector, command, args) {
            Ok(()) => return Ok(()),
            Err(denial) => closest = closest.max(denial),
        }
    }
    Err(closest)
}

fn check_selector(selector: &Selector, command: &Command, args: Args<'_>) -> Result<(), Denial> {
    if !allows_command(selector, command, args) {
        return Err(Denial::Command);
    }
    if !selector.has_all_keys && command.has_keys() {
        for (at, words) in keys_with_access(command, args) {
            if !selector.allows_key(args.at(at), access_of(words)) {
                return Err(Denial::Key(at));
            }
        }
    }
    if !selector.has_all_channels
        && let Some((count, is_pattern)) = channels(command, args)
    {
        let mut positions = 1..1 + count;
        let is_denied = |at: &usize| !allows_channel(&selector.channels, args.at(*at), is_pattern);
        if let Some(at) = positions.find(is_denied) {
            return Err(Denial::Channel(at));
        }
    }
    Ok(())
}

fn allows_command(selector: &Selector, command: &Command, args: Args<'_>) -> bool {
    let is_first_arg = |allowed: &Vec<Vec<u8>>| {
        let first = args.at(1);
        args.len() > 1 && allowed.iter().any(|own| own.eq_ignore_ascii_case(first))
    };
    selector.has_all_commands
        || command.is(flag::NO_AUTH)
        || selector.commands.has(command.number)
        || selector
            .first_args
            .get(&command.number)
            .is_some_and(is_first_arg)
}

/// Number of the channels that a request names from argument 1 on, and whether they are patterns.
fn channels(command: &Command, args: Args<'_>) -> Option<(usize, bool)> {
    match command.name {
        "publish" | "spublish" => Some((1, false)),
        "subscribe" | "ssubscribe" => Some((args.len() - 1, false)),
        "psubscribe" => Some((args.len() - 1, true)),
        _ => None,
    }
}

impl CommandContext<'_> {
    /// Checks a request of the client. Records a refusal.
    #[inline]
    pub(in crate::commands) fn check_permission(
        &mut self,
        command: &Command,
        args: Args<'_>,
        context: DenialContext,
    ) -> Result<(), Denial> {
        match self.client.user.is_restricted() {
            false => Ok(()),
            true => self.check_restricted(command, args, context),
        }
    }

    #[cold]
    fn check_restricted(
        &mut self,
        command: &Command,
        args: Args<'_>,
        context: DenialContext,
    ) -> Result<(), Denial> {
        let denied = check(self.client.user.user(), command, args);
        if let Err(denial) = denied {
            self.note_denied(denial, command, args, context);
        }
        denied
    }

    /// Whether the client's user may execute `command` and read every key, as SORT with BY or GET must.
    pub(in crate::commands) fn may_read_all_keys(&self, command: &Command, args: Args<'_>) -> bool {
        let user = self.client.user.user();
        let fits = |selector: &Selector| {
            selector.reads_all_keys() && check_selector(selector, command, args).is_ok()
        };
        !user.is_restricted() || user.selectors().any(fits)
    }
}
