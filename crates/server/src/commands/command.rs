//! Commands about commands: COMMAND and its subcommands.

use super::acl::categories::categories;
use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::context::command_table::CommandTable;
use super::error::{CommandError, SYNTAX};
use super::key_access::{accesses, keys_with_access};
use super::lookup::lookup;
use super::text;
use crate::buffers::reply::ReplyBuffer;
use crate::glob::{LetterCase, matches};
use crate::protocol::resp::{Args, RespVersion, reply};

/// `COMMAND`
pub(super) fn command(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let commands = ctx.client.table.rows();
    reply::array(ctx.out, commands.len());
    for command in commands {
        describe(ctx.out, ctx.client.resp, command);
    }
    Ok(())
}

/// `COMMAND COUNT`
pub(super) fn count(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let count = ctx.client.table.rows().len();
    reply::integer(ctx.out, i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// `COMMAND INFO [name ...]`
pub(super) fn info(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() == 2 {
        return command(ctx, args);
    }
    reply::array(ctx.out, args.len() - 2);
    for name in args.from(2) {
        if ctx.out.is_cut() {
            break;
        }
        match ctx.client.table.named(name) {
            Some(command) => describe(ctx.out, ctx.client.resp, command),
            None => reply::null(ctx.out, ctx.client.resp),
        }
    }
    Ok(())
}

/// Appends the ten elements with which Redis 7 describes a command.
fn describe(out: &mut ReplyBuffer, resp: RespVersion, command: &Command) {
    reply::array(out, 10);
    reply::bulk(out, command.name.as_bytes());
    reply::integer(out, command.arity);
    let flags: Vec<_> = flag::NAMES
        .iter()
        .filter(|(bit, _)| command.is(*bit))
        .collect();
    reply::set(out, resp, flags.len());
    for (_, name) in flags {
        reply::simple(out, &name.to_ascii_lowercase());
    }
    for value in [command.keys.first, command.keys.last, command.keys.step] {
        reply::integer(out, value);
    }
    reply::set(out, resp, categories(command).count());
    for category in categories(command) {
        reply::simple(out, &format!("@{category}"));
    }
    let tips: Vec<_> = command.tips.split_whitespace().collect();
    reply::set(out, resp, tips.len());
    for tip in tips {
        reply::bulk(out, tip.as_bytes());
    }
    key_specs(out, resp, command);
    // As Redis does, sends an array of subcommands, or an empty set if there are none.
    if command.subcommands.is_empty() {
        reply::set(out, resp, 0);
    } else {
        reply::array(out, command.subcommands.len());
    }
    for subcommand in command.subcommands {
        describe(out, resp, subcommand);
    }
}

/// How a key specification finds its keys: by a range of positions, or by a number among the arguments.
enum FindKeys {
    /// Distance to the last key.
    Range(i64),
    Counted,
}

/// Appends the key specifications: where the keys are and how they are accessed.
fn key_specs(out: &mut ReplyBuffer, resp: RespVersion, command: &Command) {
    if command.counts_keys() {
        reply::set(out, resp, 1);
        return key_spec(out, resp, command, command.access, 2, FindKeys::Counted);
    }
    if command.keys.first == 0 {
        return reply::set(out, resp, 0);
    }
    let (accesses, options) = (accesses(command), option_specs(command.name));
    reply::set(out, resp, accesses.len() + options.len());
    for (at, access) in (0..).zip(&accesses) {
        let is_last = usize::try_from(at).is_ok_and(|at: usize| at + 1 == accesses.len());
        let last = match command.keys.last {
            _ if !is_last => 0,
            last if last < 0 => last,
            last => last - command.keys.first - at,
        };
        let index = command.keys.first + at;
        key_spec(out, resp, command, access, index, FindKeys::Range(last));
    }
    for spec in options {
        spec.append(out, resp);
    }
}

/// A key specification of options.
struct OptionSpec {
    /// Why the specification does not say where the keys are; empty if the keys follow the keyword KEYS.
    note: &'static str,
    access: &'static str,
}

/// The key specifications of the options of a command.
fn option_specs(name: &str) -> &'static [OptionSpec] {
    const BY_AND_GET: OptionSpec = OptionSpec {
        note: "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of \
               the key we sort",
        access: "RO access",
    };
    const STORE: OptionSpec = OptionSpec {
        note: "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the \
               argument array",
        access: "OW update",
    };
    const KEYS: OptionSpec = OptionSpec {
        note: "",
        access: "RW access delete incomplete",
    };
    match name {
        "sort" => &[BY_AND_GET, STORE],
        "sort_ro" => &[BY_AND_GET],
        "migrate" => &[KEYS],
        _ => &[],
    }
}

impl OptionSpec {
    fn append(&self, out: &mut ReplyBuffer, resp: RespVersion) {
        let text = |out: &mut ReplyBuffer, text: &str| reply::bulk(out, text.as_bytes());
        let is_unknown = !self.note.is_empty();
        reply::map(out, resp, 3 + usize::from(is_unknown));
        if is_unknown {
            text(out, "notes");
            text(out, self.note);
        }
        text(out, "flags");
        let access: Vec<_> = self.access.split_whitespace().collect();
        reply::set(out, resp, access.len());
        access.iter().for_each(|word| reply::simple(out, word));
        for part in ["begin_search", "find_keys"] {
            text(out, part);
            reply::map(out, resp, 2);
            text(out, "type");
            let (kind, values): (_, &[_]) = match (is_unknown, part) {
                (true, _) => ("unknown", &[]),
                (false, "begin_search") => ("keyword", &[("startfrom", -2)]),
                (false, _) => ("range", &[("lastkey", -1), ("keystep", 1), ("limit", 0)]),
            };
            text(out, kind);
            text(out, "spec");
            reply::map(out, resp, values.len() + usize::from(kind == "keyword"));
            if kind == "keyword" {
                text(out, "keyword");
                text(out, "KEYS");
            }
            for &(name, value) in values {
                text(out, name);
                reply::integer(out, value);
            }
        }
    }
}

/// The note of a command's key specification.
fn key_note(command: &Command) -> Option<&'static str> {
    Some(match command.name {
        "set" => "RW and ACCESS due to the optional `GET` argument",
        "getex" => "RW and UPDATE because it changes the TTL",
        "bitfield" => "This command allows both access and modification of the key",
        "pfcount" => {
            "RW because it may change the internal representation of the key, and propagate to replicas"
        }
        "eval" | "fcall" => {
            "We cannot tell how the keys will be used so we assume the worst, RW and UPDATE"
        }
        "eval_ro" | "fcall_ro" => {
            "We cannot tell how the keys will be used so we assume the worst, RO and ACCESS"
        }
        _ => return None,
    })
}

/// Appends one key specification: `index` is the position of its first key, or of the number of its keys.
fn key_spec(
    out: &mut ReplyBuffer,
    resp: RespVersion,
    command: &Command,
    access: &str,
    index: i64,
    find: FindKeys,
) {
    let text = |out: &mut ReplyBuffer, text: &str| reply::bulk(out, text.as_bytes());
    let note = key_note(command);
    reply::map(out, resp, 3 + usize::from(note.is_some()));
    if let Some(note) = note {
        text(out, "notes");
        text(out, note);
    }
    text(out, "flags");
    let access: Vec<_> = access.split_whitespace().collect();
    reply::set(out, resp, access.len());
    for word in access {
        reply::simple(out, word);
    }
    text(out, "begin_search");
    reply::map(out, resp, 2);
    text(out, "type");
    text(out, "index");
    text(out, "spec");
    reply::map(out, resp, 1);
    text(out, "index");
    reply::integer(out, index);
    let (kind, values) = match find {
        FindKeys::Range(last) => (
            "range",
            [
                ("lastkey", last),
                ("keystep", command.keys.step),
                ("limit", 0),
            ],
        ),
        FindKeys::Counted => (
            "keynum",
            [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)],
        ),
    };
    text(out, "find_keys");
    reply::map(out, resp, 2);
    text(out, "type");
    text(out, kind);
    text(out, "spec");
    reply::map(out, resp, 3);
    for (name, value) in values {
        text(out, name);
        reply::integer(out, value);
    }
}

/// `COMMAND DOCS [name ...]`
pub(super) fn docs(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let table = ctx.client.table;
    let commands: Vec<_> = match args.len() {
        2 => table.rows().iter().collect(),
        _ => args.from(2).filter_map(|name| table.named(name)).collect(),
    };
    reply::map(ctx.out, ctx.client.resp, commands.len());
    for command in commands {
        if ctx.out.is_cut() {
            break;
        }
        document(ctx.out, ctx.client.resp, command);
    }
    Ok(())
}

fn document(out: &mut ReplyBuffer, resp: RespVersion, command: &Command) {
    reply::bulk(out, command.name.as_bytes());
    let is_container = !command.subcommands.is_empty();
    reply::map(out, resp, 3 + usize::from(is_container));
    for (name, value) in [
        ("summary", command.summary),
        ("since", command.since),
        ("group", command.group),
    ] {
        reply::bulk(out, name.as_bytes());
        reply::bulk(out, value.as_bytes());
    }
    if is_container {
        reply::bulk(out, b"subcommands");
        reply::map(out, resp, command.subcommands.len());
        for subcommand in command.subcommands {
            document(out, resp, subcommand);
        }
    }
}

/// `COMMAND LIST [FILTERBY MODULE name|ACLCAT category|PATTERN pattern]`
pub(super) fn list(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let all = ctx.client.table.every();
    let names: Vec<_> = if args.len() == 2 {
        all.map(|c| c.name).collect()
    } else if args.len() == 5 && text::is_option(args.at(2), "filterby") {
        let value = args.at(4);
        let of_category =
            |c: &&Command| categories(c).any(|own| own.as_bytes().eq_ignore_ascii_case(value));
        match text::option(args.at(3)).as_slice() {
            b"module" => Vec::new(),
            b"aclcat" => all.filter(of_category).map(|c| c.name).collect(),
            b"pattern" => all
                .map(|c| c.name)
                .filter(|name| matches(value, name.as_bytes(), LetterCase::Fold))
                .collect(),
            _ => return Err(SYNTAX),
        }
    } else {
        return Err(SYNTAX);
    };
    reply::array(ctx.out, names.len());
    for name in names {
        reply::bulk(ctx.out, name.as_bytes());
    }
    Ok(())
}

/// Returns the command of the request that starts at argument 2, and the positions of its keys.
fn inner(
    table: &CommandTable,
    args: Args<'_>,
) -> Result<(&'static Command, Vec<usize>), CommandError> {
    let request = args.rest(2);
    let command = lookup(table.find(request.at(0)), request);
    let command = command.map_err(|_| CommandError::Fixed("ERR Invalid command specified"))?;
    if !command.has_keys() {
        return Err(CommandError::Fixed("ERR The command has no key arguments"));
    }
    if !command.takes(request.len()) {
        let text = "ERR Invalid number of arguments specified for command";
        return Err(CommandError::Fixed(text));
    }
    let positions: Vec<usize> = command.key_positions(request).map(|at| at + 2).collect();
    let lacks_keys = positions.is_empty() && !command.is(flag::NO_MANDATORY_KEYS);
    // As in Redis, each specification must find a key. All but the last are of one key.
    if lacks_keys || !command.counts_keys() && positions.len() < accesses(command).len() {
        let text = "ERR Invalid arguments specified for command";
        return Err(CommandError::Fixed(text));
    }
    Ok((command, positions))
}

/// `COMMAND GETKEYS command [argument ...]`
pub(super) fn getkeys(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (_, positions) = inner(ctx.client.table, args)?;
    reply::array(ctx.out, positions.len());
    for at in positions {
        reply::bulk(ctx.out, args.at(at));
    }
    Ok(())
}

/// `COMMAND GETKEYSANDFLAGS command [argument ...]`
pub(super) fn getkeysandflags(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    let (command, positions) = inner(ctx.client.table, args)?;
    reply::array(ctx.out, positions.len());
    for (at, access) in keys_with_access(command, args.rest(2)) {
        let access: Vec<_> = access.split_whitespace().collect();
        reply::array(ctx.out, 2);
        reply::bulk(ctx.out, args.at(at + 2));
        reply::set(ctx.out, ctx.client.resp, access.len());
        for word in &access {
            reply::simple(ctx.out, word);
        }
    }
    Ok(())
}

/// Replies with help lines about the subcommands of `container`.
pub(super) fn help_of(ctx: &mut CommandContext<'_>, container: &str) {
    let Some(command) = ctx.client.table.find(container.as_bytes()) else {
        return;
    };
    let name = container.to_ascii_uppercase();
    reply::array(ctx.out, 1 + 2 * command.subcommands.len());
    reply::simple(
        ctx.out,
        &format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"),
    );
    for subcommand in command.subcommands {
        reply::simple(ctx.out, &subcommand.own_name().to_ascii_uppercase());
        reply::simple(ctx.out, &format!("    {}", subcommand.summary));
    }
}

/// `COMMAND HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "command");
    Ok(())
}
