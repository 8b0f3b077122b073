//! Scripts: EVAL EVALSHA EVAL_RO EVALSHA_RO SCRIPT.
//!
//! A script runs as one group of the store, of the keys that it touches (`optimistic`). So it is isolated, and after a
//! crash it has happened whole or not at all, also for keys that it does not declare. In a transaction it is a part of
//! the transaction's group.
//!
//! A script runs on the worker of its client for [`script_run`](super::script_run)'s time limit. A script that takes
//! longer has changed nothing (SRV-OPT-1), and runs again on the thread of long requests until it ends, or SCRIPT KILL
//! ends it.

use std::rc::Rc;

use farbank_store::{Error, GroupDecision};

use super::command::help_of;
use super::context::CommandContext;
use super::context::command_row::Command;
use super::error::{CommandError, NOT_INTEGER};
use super::script_run::{ScriptAbort, ScriptCall, run_once};
use super::{maxmemory, text};
use crate::exec_context::StoreAccess;
use crate::lua::compiled::CompiledScript;
use crate::lua::engine::ScriptEngine;
use crate::lua::shebang::split;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::state::scripts::KillOutcome;
use crate::state::shared::ServerShared;

/// Bytes that a script may use on a worker.
const WORKER_BYTES_MAX: usize = 8 << 20;
/// Bytes that a script may use on the thread of long requests.
const LONG_BYTES_MAX: usize = 256 << 20;

const NO_SCRIPT: CommandError =
    CommandError::Fixed("NOSCRIPT No matching script. Please use EVAL.");

/// Whether the script or function that a request runs declares that it does not write.
pub(super) fn is_read_only(shared: &ServerShared<'_>, command: &Command, args: Args<'_>) -> bool {
    let declares = |body: &[u8]| split(body).is_ok_and(|(flags, _)| flags.no_writes);
    match command.name {
        "eval" => declares(args.at(1)),
        "evalsha" => std::str::from_utf8(args.at(1))
            .ok()
            .and_then(|name| shared.programs.scripts.get(&name.to_ascii_lowercase()))
            .is_some_and(|body| declares(&body)),
        _ => {
            let libraries = shared.programs.functions.current();
            let function = libraries.find(args.at(1));
            function.is_some_and(|(_, function)| function.flags[0])
        }
    }
}

/// Returns the thread's engine, without scripts that SCRIPT FLUSH has removed. The caller puts it back.
fn take_engine(ctx: &mut CommandContext<'_>) -> Result<Box<ScriptEngine>, CommandError> {
    let flushes = ctx.shared.programs.scripts.flushes();
    if let Some(mut engine) = ctx.thread.scripts.take() {
        if engine.flushes != flushes {
            engine.forget_compiled();
            engine.flushes = flushes;
        }
        return Ok(engine);
    }
    let bytes_max = match ctx.executes_long {
        true => LONG_BYTES_MAX,
        false => WORKER_BYTES_MAX,
    };
    let engine = ScriptEngine::new(bytes_max, flushes).map_err(|error| {
        CommandError::Detailed(format!("ERR cannot create a Lua state: {error}").into_bytes())
    })?;
    Ok(Box::new(engine))
}

/// Calls `body` with the thread's engine.
pub(super) fn with_engine<R>(
    ctx: &mut CommandContext<'_>,
    body: impl FnOnce(&mut CommandContext<'_>, &mut ScriptEngine) -> Result<R, CommandError>,
) -> Result<R, CommandError> {
    let mut engine = take_engine(ctx)?;
    let outcome = body(ctx, &mut engine);
    ctx.thread.scripts = Some(engine);
    outcome
}

/// The keys and the further arguments of a request `EVAL script numkeys ...`. `invalid`: the error of a number that is
/// none.
pub(super) fn arguments(
    args: Args<'_>,
    invalid: CommandError,
) -> Result<(Args<'_>, Args<'_>), CommandError> {
    let keys = parse_i64(args.at(2)).ok_or(invalid)?;
    let rest = args.rest(3);
    match usize::try_from(keys) {
        Ok(keys) if keys <= rest.len() => Ok((rest.until(keys), rest.rest(keys))),
        Ok(_) => Err(CommandError::Fixed(
            "ERR Number of keys can't be greater than number of args",
        )),
        Err(_) => Err(CommandError::Fixed("ERR Number of keys can't be negative")),
    }
}

/// Compiles a script that EVAL executes, and adds it to the loaded scripts.
#[cold]
fn compile(
    ctx: &mut CommandContext<'_>,
    engine: &mut ScriptEngine,
    body: &[u8],
) -> Result<Rc<CompiledScript>, CommandError> {
    let script = engine.compile(body).map_err(CommandError::Detailed)?;
    ctx.shared.programs.scripts.note_eval(&script.name, body);
    Ok(script)
}

/// Finds a loaded script by its SHA1.
fn find_named(
    ctx: &mut CommandContext<'_>,
    engine: &mut ScriptEngine,
    name: &[u8],
) -> Result<Rc<CompiledScript>, CommandError> {
    let name = std::str::from_utf8(name)
        .map_err(|_| NO_SCRIPT)?
        .to_ascii_lowercase();
    if let Some(script) = engine.find_named(&name) {
        return Ok(script);
    }
    let body = ctx.shared.programs.scripts.get(&name).ok_or(NO_SCRIPT)?;
    engine.compile(&body).map_err(CommandError::Detailed)
}

/// Runs a script or a function: in a group of its own, or in the transaction's group. `args`: the request, whose keys
/// were checked.
pub(super) fn run(
    ctx: &mut CommandContext<'_>,
    engine: &mut ScriptEngine,
    script: &CompiledScript,
    args: Args<'_>,
    is_readonly: bool,
) -> Result<(), CommandError> {
    let (keys, argv) = arguments(args, NOT_INTEGER)?;
    if is_readonly && !script.flags.no_writes && !script.flags.is_unknown {
        return Err(CommandError::Fixed(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    maxmemory::check_script(ctx, script.flags)?;
    let call = ScriptCall {
        script,
        request: args,
        keys,
        argv,
        is_readonly: is_readonly || script.flags.no_writes,
    };
    let from = ctx.out.len();
    ctx.note_script_keys(keys.from(0));
    if !matches!(ctx.store, StoreAccess::Session(_)) {
        let outcome = run_once(ctx, engine, call).map_err(ScriptAbort::into_error);
        ctx.request.has_failed = ctx.out.as_slice().get(from) == Some(&b'-');
        return outcome;
    }
    let was_cut = ctx.out.is_cut();
    ctx.mark.get_or_insert(from); // The script reads undurable writes.
    let effects = ctx.thread.mark_effects();
    let calls = ctx.thread.timer.inner();
    let mut abort = None;
    let decision = ctx.with_any_keys(ctx.executes_long, &mut |ctx| {
        match was_cut {
            true => ctx.out.truncate(from),
            false => ctx.out.rewind(from),
        }
        ctx.thread.rewind_effects(effects);
        ctx.thread.timer.restore_inner(&calls);
        match run_once(ctx, engine, call) {
            Ok(()) => Ok(GroupDecision::Apply),
            Err(ScriptAbort::Store(error)) => Err(error),
            Err(why) => {
                abort = Some(why);
                Ok(GroupDecision::Abandon)
            }
        }
    });
    if !matches!(decision, Ok(GroupDecision::Apply)) {
        ctx.thread.rewind_effects(effects);
        ctx.thread.timer.restore_inner(&calls);
    }
    match decision {
        Ok(GroupDecision::Apply) => {
            ctx.request.has_failed = ctx.out.as_slice().get(from) == Some(&b'-');
            Ok(())
        }
        Ok(GroupDecision::Abandon) => {
            Err(abort.map_or(CommandError::Long, ScriptAbort::into_error))
        }
        // The thread of long requests waits until there is room.
        Err(error) if error.is_full() && !ctx.executes_long => Err(CommandError::Long),
        Err(Error::Conflict | Error::NotInGroup) => Err(CommandError::Fixed(
            "ERR Error running script: other clients write its keys faster than it runs",
        )),
        Err(error) => Err(error.into()),
    }
}

fn eval_body(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    is_readonly: bool,
) -> Result<(), CommandError> {
    arguments(args, NOT_INTEGER)?;
    with_engine(ctx, |ctx, engine| {
        let script = match engine.find(args.at(1)) {
            Some(script) => script,
            None => compile(ctx, engine, args.at(1))?,
        };
        run(ctx, engine, &script, args, is_readonly)
    })
}

fn eval_named(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    is_readonly: bool,
) -> Result<(), CommandError> {
    /// Digits of a SHA1.
    const NAME_BYTES: usize = 40;
    if args.at(1).len() != NAME_BYTES {
        return Err(NO_SCRIPT);
    }
    with_engine(ctx, |ctx, engine| {
        arguments(args, NOT_INTEGER)?;
        let script = find_named(ctx, engine, args.at(1))?;
        run(ctx, engine, &script, args, is_readonly)
    })
}

/// `EVAL script numkeys [key ...] [arg ...]`
pub(super) fn eval(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    eval_body(ctx, args, false)
}

/// `EVAL_RO script numkeys [key ...] [arg ...]`
pub(super) fn eval_ro(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    eval_body(ctx, args, true)
}

/// `EVALSHA sha1 numkeys [key ...] [arg ...]`
pub(super) fn evalsha(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    eval_named(ctx, args, false)
}

/// `EVALSHA_RO sha1 numkeys [key ...] [arg ...]`
pub(super) fn evalsha_ro(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    eval_named(ctx, args, true)
}

/// `SCRIPT LOAD script`
pub(super) fn load(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let body = args.at(2);
    with_engine(ctx, |ctx, engine| {
        let script = engine.compile(body).map_err(CommandError::Detailed)?;
        if !ctx.shared.programs.scripts.load(&script.name, body) {
            return Err(CommandError::Fixed(
                "ERR the loaded scripts take too much memory; remove them with SCRIPT FLUSH",
            ));
        }
        reply::bulk(ctx.out, script.name.as_bytes());
        Ok(())
    })
}

/// `SCRIPT EXISTS sha1 [sha1 ...]`
pub(super) fn exists(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    reply::array(ctx.out, args.len() - 2);
    for name in args.from(2) {
        let name = std::str::from_utf8(name).unwrap_or("").to_ascii_lowercase();
        let exists = ctx.shared.programs.scripts.get(&name).is_some();
        reply::integer(ctx.out, i64::from(exists));
    }
    Ok(())
}

/// `SCRIPT FLUSH [ASYNC|SYNC]`
pub(super) fn flush(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match (args.len(), text::option(args.at(2)).as_slice()) {
        (2, _) | (3, b"sync" | b"async") => {}
        _ => {
            let text = "ERR SCRIPT FLUSH only support SYNC|ASYNC option";
            return Err(CommandError::Fixed(text));
        }
    }
    ctx.shared.programs.scripts.flush();
    reply::ok(ctx.out);
    Ok(())
}

/// `SCRIPT KILL`
pub(super) fn kill(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    kill_running(ctx, false)
}

/// The error of a request that cannot be executed while a script or, with `is_function`, a function runs.
pub(super) fn busy(is_function: bool) -> CommandError {
    CommandError::Fixed(match is_function {
        true => {
            "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
        }
        false => {
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
        }
    })
}

/// Ends the running script, or with `function` the running function.
pub(super) fn kill_running(
    ctx: &mut CommandContext<'_>,
    function: bool,
) -> Result<(), CommandError> {
    match ctx.shared.programs.scripts.running.kill(function) {
        KillOutcome::Killed => {
            reply::ok(ctx.out);
            Ok(())
        }
        KillOutcome::NotBusy => Err(CommandError::Fixed(
            "NOTBUSY No scripts in execution right now.",
        )),
        KillOutcome::OtherKind => Err(busy(!function)),
        KillOutcome::HasWritten => Err(CommandError::Fixed(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either \
             wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        )),
    }
}

/// `SCRIPT DEBUG YES|SYNC|NO`. There is no debugger, so only `NO` succeeds.
pub(super) fn debug(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match text::option(args.at(2)).as_slice() {
        b"no" => {
            reply::ok(ctx.out);
            Ok(())
        }
        b"yes" | b"sync" => Err(CommandError::Fixed("ERR this server has no Lua debugger")),
        _ => Err(CommandError::Fixed("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    }
}

/// `SCRIPT HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "script");
    Ok(())
}
