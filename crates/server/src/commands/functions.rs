//! Functions: FCALL FCALL_RO FUNCTION.
//!
//! A function runs as a script does (`scripts`): as one group of the keys that it touches. Its library is loaded in each
//! thread that calls it.
//!
//! Libraries change on the thread of long requests only, one change after the other. A change is durable before clients
//! see it (SRV-FUNCTION-1).

use std::rc::Rc;
use std::sync::Arc;

use super::command::help_of;
use super::context::CommandContext;
use super::error::CommandError;
use super::function_load::{LoadThread, load_known, load_new};
use super::scripts::{arguments, busy, kill_running, run, with_engine};
use super::text;
use crate::glob::{LetterCase, matches};
use crate::lua::compiled::CompiledScript;
use crate::lua::engine::ScriptEngine;
use crate::lua::functions::FLAG_NAMES;
use crate::lua::shebang;
use crate::protocol::resp::{Args, reply};
use crate::rdb::{LibraryPayloadError, LibraryReader};
use crate::state::functions::{CODE_BYTES_MAX, Libraries, Library, LibraryConflict};

/// Most bytes of code that a worker dumps or sends.
const WORKER_BYTES_MAX: usize = 256 << 10;

const NOT_FOUND: CommandError = CommandError::Fixed("ERR Function not found");
const TOO_LONG: &str = "ERR the libraries take too much memory; remove some with FUNCTION DELETE";

impl<'a> CommandContext<'a> {
    /// Where this context loads a library.
    fn load_thread(&self) -> LoadThread<'a> {
        LoadThread {
            threads: self.shared.threads,
            executes_long: self.executes_long,
        }
    }
}

/// Returns the function `name`, in either case. Loads its library in `engine` if necessary.
fn find(
    ctx: &CommandContext<'_>,
    engine: &mut ScriptEngine,
    name: &[u8],
) -> Result<Rc<CompiledScript>, CommandError> {
    engine.follow_changes(ctx.shared.programs.functions.changes());
    if let Some(function) = engine.find_function(name) {
        return Ok(function);
    }
    let libraries = ctx.shared.programs.functions.current();
    let (library, info) = libraries.find(name).ok_or(NOT_FOUND)?;
    load_known(engine, library, ctx.load_thread())?;
    let ready = engine.ready_function(library.id, info, name);
    ready.ok_or(NOT_FOUND)
}

fn call(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    is_readonly: bool,
) -> Result<(), CommandError> {
    with_engine(ctx, |ctx, engine| {
        let function = find(ctx, engine, args.at(1))?;
        arguments(args, CommandError::Fixed("ERR Bad number of keys provided"))?;
        run(ctx, engine, &function, args, is_readonly)
    })
}

/// `FCALL function numkeys [key ...] [arg ...]`
pub(super) fn fcall(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    call(ctx, args, false)
}

/// `FCALL_RO function numkeys [key ...] [arg ...]`
pub(super) fn fcall_ro(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    call(ctx, args, true)
}

/// Changes the libraries: calls `change` with a copy, makes it durable and publishes it.
fn change<R>(
    ctx: &mut CommandContext<'_>,
    change: impl FnOnce(&mut CommandContext<'_>, &mut Libraries) -> Result<R, CommandError>,
) -> Result<R, CommandError> {
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let functions = &ctx.shared.programs.functions;
    let mut libraries = Libraries::clone(&functions.current());
    let outcome = change(ctx, &mut libraries)?;
    functions.replace(libraries).map_err(|error| {
        let file = functions.file().unwrap_or("".as_ref()).display();
        let text = format!("ERR cannot write the libraries to {file}: {error}");
        CommandError::Detailed(text.into_bytes())
    })?;
    Ok(outcome)
}

/// `FUNCTION LOAD [REPLACE] code`
pub(super) fn load(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let last = args.len() - 1;
    let mut replaces = false;
    for option in args.from(2).take(last - 2) {
        if !text::is_option(option, "replace") {
            let text = [
                b"ERR Unknown option given: ",
                text::quote(option, usize::MAX),
            ];
            return Err(CommandError::Detailed(text.concat()));
        }
        replaces = true;
    }
    let name = change(ctx, |ctx, libraries| {
        let code = args.at(last);
        refuse_known(libraries, code, replaces)?;
        let library = load_library(ctx, code)?;
        let name = library.name.clone();
        let added = libraries.add(Arc::new(library), replaces);
        added.map_err(|conflict| refused(conflict, &format!("'{name}'")))?;
        Ok(name)
    })?;
    reply::bulk(ctx.out, name.as_bytes());
    Ok(())
}

/// Refuses a library whose name exists, before its code runs.
fn refuse_known(libraries: &Libraries, code: &[u8], replaces: bool) -> Result<(), CommandError> {
    let (name, _) = shebang::library(code).map_err(CommandError::Detailed)?;
    match !replaces && libraries.iter().any(|library| library.name == name) {
        true => Err(refused(LibraryConflict::Library, &format!("'{name}'"))),
        false => Ok(()),
    }
}

fn load_library(ctx: &mut CommandContext<'_>, code: &[u8]) -> Result<Library, CommandError> {
    let thread = ctx.load_thread();
    with_engine(ctx, |ctx, engine| {
        load_new(&ctx.shared.programs.functions, engine, code, thread)
    })
}

/// The error of a library that was not added. `name`: its name as the error quotes it.
fn refused(conflict: LibraryConflict, name: &str) -> CommandError {
    CommandError::Detailed(match conflict {
        LibraryConflict::Library => format!("ERR Library {name} already exists").into_bytes(),
        LibraryConflict::Function(function) => {
            format!("ERR Function {function} already exists").into_bytes()
        }
        LibraryConflict::TooLong => TOO_LONG.into(),
    })
}

/// The error of a subcommand with too many arguments.
fn too_many(args: Args<'_>) -> CommandError {
    let name = text::quote(args.at(1), 128);
    let text = [
        b"ERR unknown subcommand or wrong number of arguments for '",
        name,
        b"'. Try FUNCTION HELP.",
    ];
    CommandError::Detailed(text.concat())
}

/// `FUNCTION DELETE library`
pub(super) fn delete(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    change(ctx, |_, libraries| {
        let name = std::str::from_utf8(args.at(2)).unwrap_or_default();
        match libraries.remove(name) {
            true => Ok(()),
            false => Err(CommandError::Fixed("ERR Library not found")),
        }
    })?;
    reply::ok(ctx.out);
    Ok(())
}

/// `FUNCTION FLUSH [ASYNC|SYNC]`
pub(super) fn flush(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() > 3 {
        return Err(too_many(args));
    }
    match (args.len(), text::option(args.at(2)).as_slice()) {
        (2, _) | (_, b"sync" | b"async") => {}
        _ => {
            let text = "ERR FUNCTION FLUSH only supports SYNC|ASYNC option";
            return Err(CommandError::Fixed(text));
        }
    }
    change(ctx, |_, libraries| {
        *libraries = Libraries::default();
        Ok(())
    })?;
    reply::ok(ctx.out);
    Ok(())
}

/// What FUNCTION RESTORE does with the libraries that exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RestorePolicy {
    Append,
    Replace,
    Flush,
}

/// `FUNCTION RESTORE payload [FLUSH|APPEND|REPLACE]`
pub(super) fn restore(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() > 4 {
        return Err(too_many(args));
    }
    let policy = match (args.len(), text::option(args.at(3)).as_slice()) {
        (3, _) | (_, b"append") => RestorePolicy::Append,
        (_, b"replace") => RestorePolicy::Replace,
        (_, b"flush") => RestorePolicy::Flush,
        _ => {
            return Err(CommandError::Fixed(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let reader = LibraryReader::new(args.at(2), CODE_BYTES_MAX)
        .map_err(|_| CommandError::Fixed("ERR DUMP payload version or checksum are wrong"))?;
    change(ctx, |ctx, libraries| {
        // First the libraries of the payload alone, which must not contradict each other.
        let mut restored = Libraries::default();
        for code in reader {
            let code = code.map_err(|error| {
                CommandError::Fixed(match error {
                    LibraryPayloadError::PreRelease => "ERR Failed loading engine name",
                    LibraryPayloadError::OtherType => "ERR given type is not a function",
                    LibraryPayloadError::Code => "ERR Failed loading library payload",
                })
            })?;
            refuse_known(&restored, &code, false)?;
            let library = load_library(ctx, &code)?;
            let name = format!("'{}'", library.name);
            let added = restored.add(Arc::new(library), false);
            added.map_err(|conflict| refused(conflict, &name))?;
        }
        if policy == RestorePolicy::Flush {
            *libraries = restored;
            return Ok(());
        }
        if policy == RestorePolicy::Replace {
            for library in restored.iter() {
                libraries.remove(&library.name);
            }
        }
        for library in restored.iter() {
            let added = libraries.add(Arc::clone(library), false);
            added.map_err(|conflict| refused(conflict, &library.name))?;
        }
        Ok(())
    })?;
    reply::ok(ctx.out);
    Ok(())
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`
pub(super) fn list(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (mut pattern, mut has_code, mut at) = (None, false, 2);
    while let Some(option) = args.get(at) {
        match text::option(option).as_slice() {
            b"withcode" if !has_code => has_code = true,
            b"libraryname" if pattern.is_none() => {
                at += 1;
                pattern = Some(args.get(at).ok_or(CommandError::Fixed(
                    "ERR library name argument was not given",
                ))?);
            }
            _ => {
                // An error without line ends at its end: here, Redis keeps blanks for them.
                let option = reply::on_one_line(text::quote(option, usize::MAX));
                let text = [b"ERR Unknown argument ", option.as_slice()];
                return Err(CommandError::Detailed(text.concat()));
            }
        }
        at += 1;
    }
    let libraries = ctx.shared.programs.functions.current();
    if !ctx.executes_long && libraries.code_bytes() > WORKER_BYTES_MAX {
        return Err(CommandError::Long);
    }
    let is_wanted = |library: &&Arc<Library>| {
        pattern.is_none_or(|pattern| matches(pattern, library.name.as_bytes(), LetterCase::Fold))
    };
    let wanted: Vec<_> = libraries.iter().filter(is_wanted).collect();
    reply::array(ctx.out, wanted.len());
    for library in wanted {
        if ctx.out.is_cut() {
            break;
        }
        describe(ctx, library, has_code);
    }
    Ok(())
}

/// Appends what FUNCTION LIST tells of a library.
fn describe(ctx: &mut CommandContext<'_>, library: &Library, has_code: bool) {
    let (out, resp) = (&mut *ctx.out, ctx.client.resp);
    reply::map(out, resp, 3 + usize::from(has_code));
    for text in ["library_name", &library.name, "engine", "LUA", "functions"] {
        reply::bulk(out, text.as_bytes());
    }
    reply::array(out, library.functions.len());
    for function in &library.functions {
        reply::map(out, resp, 3);
        reply::bulk(out, b"name");
        reply::bulk(out, function.name.as_bytes());
        reply::bulk(out, b"description");
        match &function.description {
            Some(text) => reply::bulk(out, text),
            None => reply::null(out, resp),
        }
        reply::bulk(out, b"flags");
        let flags = FLAG_NAMES.iter().zip(function.flags);
        let flags: Vec<_> = flags.filter(|(_, is_set)| *is_set).collect();
        reply::set(out, resp, flags.len());
        flags.iter().for_each(|(name, _)| reply::simple(out, name));
    }
    if has_code {
        reply::bulk(out, b"library_code");
        reply::bulk(out, &library.code);
    }
}

/// `FUNCTION DUMP`
pub(super) fn dump(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let libraries = ctx.shared.programs.functions.current();
    if !ctx.executes_long && libraries.code_bytes() > WORKER_BYTES_MAX {
        return Err(CommandError::Long);
    }
    reply::bulk(ctx.out, &libraries.dump());
    Ok(())
}

/// `FUNCTION STATS`
pub(super) fn stats(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let run_ms = ctx.shared.script_run_ms();
    if run_ms.is_some() && !ctx.shared.programs.scripts.running.is_function() {
        return Err(busy(false));
    }
    let running = ctx.shared.programs.functions.running().zip(run_ms);
    let libraries = ctx.shared.programs.functions.current();
    let (out, resp) = (&mut *ctx.out, ctx.client.resp);
    reply::map(out, resp, 2);
    reply::bulk(out, b"running_script");
    match running {
        None => reply::null(out, resp),
        Some((function, run_ms)) => {
            reply::map(out, resp, 3);
            reply::bulk(out, b"name");
            reply::bulk(out, function.name.as_bytes());
            reply::bulk(out, b"command");
            reply::array(out, function.command.len());
            function
                .command
                .iter()
                .for_each(|word| reply::bulk(out, word));
            reply::bulk(out, b"duration_ms");
            reply::integer(out, i64::try_from(run_ms).unwrap_or(i64::MAX));
        }
    }
    reply::bulk(out, b"engines");
    reply::map(out, resp, 1);
    reply::bulk(out, b"LUA");
    reply::map(out, resp, 2);
    for (name, count) in [
        ("libraries_count", libraries.len()),
        ("functions_count", libraries.functions()),
    ] {
        reply::bulk(out, name.as_bytes());
        reply::integer(out, i64::try_from(count).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// `FUNCTION KILL`
pub(super) fn kill(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    kill_running(ctx, true)
}

/// `FUNCTION HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "function");
    Ok(())
}
