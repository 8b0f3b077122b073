//! A row of the table of commands: its arity, flags, keys, documentation and function.

use std::ops::Range;

use super::CommandContext;
use crate::commands::error::CommandError;
use crate::commands::text;
use crate::protocol::resp::Args;
use crate::protocol::resp::number::parse_u64;

/// A command's function: appends its reply, or returns an error.
pub(in crate::commands) type CommandFn =
    fn(&mut CommandContext<'_>, Args<'_>) -> Result<(), CommandError>;

/// Positions of a command's keys among its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::commands) struct KeyArgs {
    /// Position of the first key; 0 if there are none.
    pub(in crate::commands) first: i64,
    /// Position of the last key; negative counts from the end.
    pub(in crate::commands) last: i64,
    /// Distance from one key to the next.
    pub(in crate::commands) step: i64,
}

/// No keys.
pub(in crate::commands) const NONE: KeyArgs = KeyArgs {
    first: 0,
    last: 0,
    step: 0,
};
/// The first argument.
pub(in crate::commands) const ONE: KeyArgs = KeyArgs {
    first: 1,
    last: 1,
    step: 1,
};
/// The first two arguments.
pub(in crate::commands) const TWO: KeyArgs = KeyArgs {
    first: 1,
    last: 2,
    step: 1,
};
/// The second argument.
pub(in crate::commands) const SECOND: KeyArgs = KeyArgs {
    first: 2,
    last: 2,
    step: 1,
};
/// The third argument.
pub(in crate::commands) const THIRD: KeyArgs = KeyArgs {
    first: 3,
    last: 3,
    step: 1,
};
/// All arguments from the second on.
pub(in crate::commands) const ALL_FROM_SECOND: KeyArgs = KeyArgs {
    first: 2,
    last: -1,
    step: 1,
};
/// All arguments.
pub(in crate::commands) const ALL: KeyArgs = KeyArgs {
    first: 1,
    last: -1,
    step: 1,
};
/// Every second argument, from the first.
pub(in crate::commands) const PAIRS: KeyArgs = KeyArgs {
    first: 1,
    last: -1,
    step: 2,
};

impl KeyArgs {
    /// Positions of the keys among `count` arguments.
    pub(in crate::commands) fn positions(
        self,
        count: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let end = match self {
            KeyArgs { first: 0, .. } => 0,
            KeyArgs { last, .. } if last < 0 => count + last + 1,
            KeyArgs { last, .. } => (last + 1).min(count),
        };
        let step = usize::try_from(self.step).unwrap_or(1).max(1);
        (self.first..end)
            .step_by(step)
            .map(|at| usize::try_from(at).unwrap_or(0))
    }
}

/// Properties of a command, as bits.
pub(in crate::commands) mod flag {
    macro_rules! flags {
        ($($name:ident $bit:literal)*) => {
            $(pub(in crate::commands) const $name: u32 = 1 << $bit;)*
            /// Names as `COMMAND INFO` prints them, in its order.
            pub(in crate::commands) const NAMES: &[(u32, &str)] = &[$(($name, stringify!($name))),*];
        };
    }
    flags! {
        WRITE 0 READONLY 1 DENYOOM 2 ADMIN 3 PUBSUB 12 NOSCRIPT 4 LOADING 5 STALE 6 SKIP_MONITOR 26 SKIP_SLOWLOG 7 ASKING 27 FAST 8
        NO_AUTH 9 NO_MANDATORY_KEYS 24 NO_ASYNC_LOADING 29 NO_MULTI 10 ALLOW_BUSY 11 MOVABLEKEYS 25
    }
    // Clients do not see the flags below.
    /// May make its client track keys (CLIENT TRACKING).
    pub(in crate::commands) const TRACKS: u32 = 1 << 13;
    /// Executed immediately inside MULTI instead of being queued.
    pub(in crate::commands) const AT_ONCE: u32 = 1 << 16;
    /// Has no keys, and can still be in a group.
    pub(in crate::commands) const GROUPED: u32 = 1 << 17;
    /// Its reply reveals data it read, although it has no READONLY flag.
    pub(in crate::commands) const READS: u32 = 1 << 18;
    /// Visits all keys, or waits for another server or for all sessions: always a long request.
    pub(in crate::commands) const WALKS: u32 = 1 << 19;
    /// Long for some arguments (see `long`).
    pub(in crate::commands) const MAY_WALK: u32 = 1 << 20;
    /// Runs a script, which may access keys that are not among its arguments.
    pub(in crate::commands) const SCRIPT: u32 = 1 << 21;
    /// Publishes a message.
    pub(in crate::commands) const PUBLISHES: u32 = 1 << 22;
    /// The arguments in the place of keys are shard channels, which the store does not have.
    pub(in crate::commands) const NO_KEYS: u32 = 1 << 23;
    /// Never in a group, because it waits for another server.
    pub(in crate::commands) const ALONE: u32 = 1 << 28;
}

/// A row of the table.
pub(in crate::commands) struct Command {
    /// Its name, in lower case; a subcommand's is `container|name`.
    pub(in crate::commands) name: &'static str,
    /// Its number among all commands and subcommands, from 1; see [`numbered`].
    pub(in crate::commands) number: u16,
    /// Number of arguments, including the name; -n means at least n.
    pub(in crate::commands) arity: i64,
    /// Its properties: see [`flag`].
    pub(in crate::commands) flags: u32,
    /// Positions of its keys.
    pub(in crate::commands) keys: KeyArgs,
    /// How it accesses its keys, as `COMMAND INFO` prints it. If it accesses its first keys in another way than the
    /// further ones, `|` separates them.
    pub(in crate::commands) access: &'static str,
    /// Access categories besides those its flags imply.
    pub(in crate::commands) acl: &'static str,
    /// Hints for proxies.
    pub(in crate::commands) tips: &'static str,
    /// The group of its documentation.
    pub(in crate::commands) group: &'static str,
    /// First Redis version that had it.
    pub(in crate::commands) since: &'static str,
    /// One-line description.
    pub(in crate::commands) summary: &'static str,
    /// Its function.
    pub(in crate::commands) run: CommandFn,
    /// Subcommands of a container.
    pub(in crate::commands) subcommands: &'static [Command],
}

/// A command without flags, keys, subcommands and documentation.
pub(in crate::commands) const PLAIN: Command = Command {
    name: "",
    number: 0,
    arity: -1,
    flags: 0,
    keys: NONE,
    access: "",
    acl: "",
    tips: "",
    group: "",
    since: "",
    summary: "",
    run: no_function,
    subcommands: &[],
};

/// The function of a row that names none. No request reaches it: every row of the table names one.
fn no_function(_: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    Err(CommandError::Fixed("ERR the command has no function"))
}

/// Expands to the rows, numbered from the first argument on: one [`Command`] literal for each name.
macro_rules! rows {
    ($first:literal; $($name:literal { $($field:ident: $value:expr,)* })*) => {
        &$crate::commands::context::command_row::numbered($first, [
            $(Command { name: $name, $($field: $value,)* ..$crate::commands::context::command_row::PLAIN }),*
        ])
    };
}
pub(in crate::commands) use rows;

/// Numbers rows from `first` on. The numbers of all commands and subcommands differ, and are lower than
/// [`COMMAND_NUMBERS`](crate::stats::commands::COMMAND_NUMBERS).
pub(in crate::commands) const fn numbered<const N: usize>(
    first: u16,
    mut rows: [Command; N],
) -> [Command; N] {
    let mut at = 0;
    while at < N {
        rows[at].number = first + at as u16;
        at += 1;
    }
    rows
}

impl Command {
    /// Whether `flag` is set.
    pub(in crate::commands) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether it writes, or does what Redis may replicate: it publishes, or, as PFCOUNT, may store its result in the value.
    pub(in crate::commands) fn may_write(&self) -> bool {
        self.is(flag::WRITE | flag::PUBLISHES) || self.name == "pfcount"
    }

    /// Whether `count` arguments fit its arity.
    pub(in crate::commands) fn takes(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if self.arity >= 0 {
            count == self.arity
        } else {
            count >= -self.arity
        }
    }

    /// Whether its requests access keys of the store that are among their arguments.
    pub(in crate::commands) fn has_keys(&self) -> bool {
        (self.keys.first > 0 || self.is(flag::MOVABLEKEYS)) && !self.is(flag::NO_KEYS)
    }

    /// Positions of the keys among `args`.
    pub(in crate::commands) fn key_positions(
        &self,
        args: Args<'_>,
    ) -> impl Iterator<Item = usize> + use<> {
        let counted = match self.counts_keys() {
            true => counted_keys(args),
            false => 0..0,
        };
        let optional = match self.is(flag::MOVABLEKEYS) {
            true => optional_keys(self.name, args),
            false => OptionalKeys::default(),
        };
        let fixed = match self.is(flag::NO_KEYS) || optional.replace_fixed {
            true => None,
            false => Some(self.keys.positions(args.len())),
        };
        let fixed = fixed.into_iter().flatten();
        counted.chain(fixed).chain(optional.positions)
    }

    /// Whether the second argument is the number of its keys, which follow.
    pub(in crate::commands) fn counts_keys(&self) -> bool {
        self.is(flag::MOVABLEKEYS) && self.keys.first == 0
    }

    /// Position of the first key among `args`; 0 if there is none.
    #[inline]
    pub(in crate::commands) fn first_key(&self, args: Args<'_>) -> usize {
        if self.flags & (flag::MOVABLEKEYS | flag::NO_KEYS) == 0 {
            return usize::try_from(self.keys.first).unwrap_or(0);
        }
        self.key_positions(args).next().unwrap_or(0)
    }

    /// Whether it accesses exactly one key.
    pub(in crate::commands) fn is_short(&self) -> bool {
        self.keys == ONE
    }

    /// Its name without the container's name.
    pub(in crate::commands) fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }

    /// Finds the subcommand `name`, in either case.
    pub(in crate::commands) fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        self.subcommands
            .iter()
            .find(|s| s.own_name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Positions of keys whose number is the second argument, before them.
fn counted_keys(args: Args<'_>) -> Range<usize> {
    const FIRST: usize = 3;
    // As in Redis, digits before other characters count here, although the command itself refuses them.
    let count = args.at(FIRST - 1);
    let digits = count
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let count = parse_u64(&count[..digits]).and_then(|count| usize::try_from(count).ok());
    let end = count.and_then(|count| count.checked_add(FIRST));
    FIRST..end.filter(|&end| end <= args.len()).unwrap_or(FIRST)
}

/// Keys whose positions depend on a request's options.
#[derive(Default)]
struct OptionalKeys {
    positions: Range<usize>,
    /// The request has no other keys.
    replace_fixed: bool,
}

/// Returns the keys that options of the command `name` name, as Redis finds them: without a check of the syntax.
fn optional_keys(name: &str, args: Args<'_>) -> OptionalKeys {
    let mut keys = OptionalKeys::default();
    let (mut at, values): (usize, &[(&str, usize)]) = match name {
        "sort" => (2, &[("limit", 2), ("get", 1), ("by", 1)]),
        "migrate" => (6, &[("copy", 0), ("replace", 0), ("auth", 1), ("auth2", 2)]),
        _ => return keys,
    };
    while let Some(option) = args.get(at) {
        let is = |name: &str| text::is_option(option, name);
        if name == "sort" && is("store") && at + 1 < args.len() {
            keys.positions = at + 1..at + 2;
        } else if name == "migrate" && is("keys") {
            if args.at(3).is_empty() {
                keys.positions = at + 1..args.len();
                keys.replace_fixed = true;
            }
            break;
        }
        let found = values.iter().find(|(name, _)| is(name));
        at += 1 + found.map_or(0, |(_, values)| *values);
    }
    keys
}

/// Space that a request needs in the store, estimated from its arguments.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct WriteNeed {
    /// Bytes of its arguments.
    pub(in crate::commands) bytes: usize,
    /// The request stores no value: it only deletes, or changes an expiry.
    pub(in crate::commands) deletes: bool,
}

impl WriteNeed {
    /// The need of a request of `command`.
    pub(in crate::commands) fn of(command: &Command, args: Args<'_>) -> WriteNeed {
        WriteNeed {
            bytes: args.from(1).map(<[u8]>::len).sum(),
            deletes: !command.is(flag::DENYOOM | flag::SCRIPT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_positions_match_the_number_of_arguments() {
        let positions = |keys: KeyArgs, count| keys.positions(count).collect::<Vec<_>>();
        assert_eq!(positions(NONE, 5), Vec::<usize>::new());
        assert_eq!(positions(ONE, 2), [1]);
        assert_eq!(positions(ALL, 4), [1, 2, 3]);
        assert_eq!(positions(PAIRS, 5), [1, 3]);
    }
}
