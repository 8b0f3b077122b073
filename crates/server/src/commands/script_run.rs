//! One run of a script: executes the commands that it calls, and ends it when it must not go on.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farbank_store::Error;

use super::acl::check::{check, is_long_check};
use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::{CommandError, misconf};
use super::execute::check_keys;
use super::long;
use super::lookup::lookup;
use super::maxmemory::OVER_MAXMEMORY;
use super::optimistic::ends_group;
use crate::buffers::reply::ReplyBuffer;
use crate::lua::compiled::CompiledScript;
use crate::lua::engine::{ScriptEngine, ScriptOutcome};
use crate::lua::host::{LogLevel, ReplyVersions, ScriptHost};
use crate::protocol::resp::{Args, RespVersion};
use crate::state::acl_log::DenialContext;
use crate::state::functions::RunningFunction;

/// Longest run of a script on a worker. A script that takes longer runs again on the thread of long requests.
const SHORT_RUN: Duration = Duration::from_millis(1);
/// Commands after which the time is checked.
const CALLS_PER_CHECK: u32 = 8;
/// Longest run of a script that holds locks of the store, on the thread of long requests.
const LOCKED_RUN: Duration = Duration::from_millis(100);

/// A script and the arguments of its call.
#[derive(Clone, Copy)]
pub(super) struct ScriptCall<'a> {
    pub(super) script: &'a CompiledScript,
    /// The whole request.
    pub(super) request: Args<'a>,
    pub(super) keys: Args<'a>,
    pub(super) argv: Args<'a>,
    /// The script must not write.
    pub(super) is_readonly: bool,
}

/// Why a script has ended before it returned.
#[derive(Clone, Debug)]
pub(super) enum ScriptAbort {
    /// As [`CommandError::Long`].
    Long,
    /// SCRIPT KILL has ended it.
    Killed,
    /// The server is stopping.
    Stopping,
    OutOfMemory,
    /// It has held locks for too long.
    Locked,
    /// The store could not execute a command. The group ends with this error.
    Store(Error),
}

impl ScriptAbort {
    /// The reply of a script that has ended in this way.
    pub(super) fn into_error(self) -> CommandError {
        CommandError::Fixed(match self {
            ScriptAbort::Long => return CommandError::Long,
            ScriptAbort::Store(error) => return CommandError::Store(error),
            ScriptAbort::Killed => {
                "ERR Error running script: Script killed by user with SCRIPT KILL."
            }
            ScriptAbort::Stopping => "ERR Error running script: the server is stopping",
            ScriptAbort::OutOfMemory => "ERR Error running script: not enough memory",
            ScriptAbort::Locked => {
                "ERR Error running script: other clients write its keys faster than it runs"
            }
        })
    }
}

/// A running script.
struct ScriptRun<'r, 'c> {
    ctx: &'r mut CommandContext<'c>,
    is_readonly: bool,
    versions: ReplyVersions,
    /// When the time was checked first. Most scripts end before.
    started: Option<Instant>,
    /// Commands called so far.
    calls: u32,
    /// A command that it has called has failed.
    has_failed: bool,
    /// Its first write is refused if that may add bytes: it started above `maxmemory`.
    denies_growth: bool,
    abort: Option<ScriptAbort>,
}

/// Runs a script once in the current group, and appends its reply.
pub(super) fn run_once(
    ctx: &mut CommandContext<'_>,
    engine: &mut ScriptEngine,
    call: ScriptCall<'_>,
) -> Result<(), ScriptAbort> {
    let (db, resp) = (ctx.client.db, ctx.client.resp);
    let mut out = std::mem::take(ctx.out);
    let from = out.len();
    ctx.client.resp = RespVersion::V2;
    let is_listed = ctx.executes_long;
    if is_listed {
        let is_function = call.script.is_function;
        if is_function {
            let running = RunningFunction::new(&call.script.name, call.request.from(0));
            ctx.shared.programs.functions.note_running(Some(running));
        }
        let now_ms = ctx.shared.clock_ms();
        ctx.shared
            .programs
            .scripts
            .running
            .start(now_ms, is_function);
    }
    let denies_growth = ctx.request.is_over_maxmemory && !call.script.flags.allow_oom;
    let mut run = ScriptRun {
        ctx,
        is_readonly: call.is_readonly,
        versions: ReplyVersions {
            client: resp,
            script: RespVersion::V2,
        },
        started: None,
        calls: 0,
        has_failed: false,
        denies_growth,
        abort: None,
    };
    let outcome = engine.run(call.script, call.keys, call.argv, &mut run, &mut out);
    let (abort, has_failed) = (run.abort, run.has_failed);
    if is_listed {
        ctx.shared.programs.scripts.running.end();
        ctx.shared.programs.functions.note_running(None);
    }
    *ctx.out = out;
    (ctx.client.db, ctx.client.resp) = (db, resp);
    count_own_error(ctx, from, has_failed);
    match (outcome, abort) {
        (ScriptOutcome::Replied, _) => Ok(()),
        (ScriptOutcome::Aborted, abort) => Err(abort.unwrap_or(ScriptAbort::OutOfMemory)),
    }
}

/// Counts the error that a script has returned or raised: its reply from `from` on. As in Redis, an error of a command
/// that it has called counts once.
fn count_own_error(ctx: &mut CommandContext<'_>, from: usize, has_failed: bool) {
    let reply = ctx.out.as_slice().get(from..).unwrap_or_default();
    if let [b'-', text @ ..] = reply
        && !has_failed
    {
        let text = text.to_vec();
        ctx.count_error(&text);
    }
}

impl ScriptRun<'_, '_> {
    /// Whether checking the permissions of a request takes more time than a worker may spend.
    fn is_long_check(&self, args: Args<'_>) -> bool {
        let client = &self.ctx.client;
        client.user.is_restricted()
            && lookup(client.table.find(args.at(0)), args)
                .is_ok_and(|command| is_long_check(client.user.pattern_bytes(), command, args))
    }

    /// The command of a request, if the script may call it.
    fn allowed(&mut self, args: Args<'_>) -> Result<&'static Command, Vec<u8>> {
        let table = self.ctx.client.table;
        let command = lookup(table.find(args.at(0)), args)
            .map_err(|_| b"ERR Unknown Redis command called from script".to_vec())?;
        let text = if !command.takes(args.len()) {
            "ERR Wrong number of args calling Redis command from script"
        } else if command.is(flag::NOSCRIPT) && !self.may_debug(command) {
            "ERR This Redis command is not allowed from script"
        } else if let Err(denial) = self.ctx.check_permission(command, args, DenialContext::Lua) {
            denial.text_in_script()
        } else if command.may_write() && self.is_readonly {
            "ERR Write commands are not allowed from read-only scripts."
        } else {
            return Ok(command);
        };
        Err(text.into())
    }

    /// Whether `command` is DEBUG, and a client has allowed it in scripts.
    fn may_debug(&self, command: &Command) -> bool {
        let may_debug = &self.ctx.shared.programs.scripts.may_debug;
        command.name == "debug" && may_debug.load(Ordering::Relaxed)
    }

    /// Executes a command, with `reply` as its reply buffer.
    fn execute(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), CommandError> {
        let ctx = &mut *self.ctx;
        check_keys(command, args)?;
        if command.is(flag::WRITE)
            && let Some(reason) = ctx.shared.durability.poisoned.get()
        {
            return Err(CommandError::Detailed(misconf(reason)));
        }
        if self.denies_growth && command.is(flag::DENYOOM) {
            return Err(OVER_MAXMEMORY);
        }
        // As in Redis, a script that has begun to write is not stopped halfway.
        self.denies_growth &= !command.is(flag::WRITE);
        if !ctx.executes_long && long::is_long(ctx.client, ctx.shared, Some(command), args, 0) {
            return Err(CommandError::Long);
        }
        let (store, mut rest) = ctx.split_store();
        rest.out = reply;
        (rest.request.reply_start, rest.request.replies_to_script) = (0, true);
        let mut inner = rest.with_store(store.reborrow());
        inner.track_reads(command, args);
        let outcome = (command.run)(&mut inner, args);
        ctx.request.hidden_bytes = inner.request.hidden_bytes + inner.out.len();
        outcome
    }
}

impl ScriptHost for ScriptRun<'_, '_> {
    fn call(&mut self, args: Args<'_>, reply: &mut ReplyBuffer) -> Result<(), Vec<u8>> {
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_CHECK) {
            self.check_time();
        }
        if !self.ctx.executes_long && self.is_long_check(args) {
            self.abort.get_or_insert(ScriptAbort::Long);
            return Ok(()); // LUA-2: the engine ends the script.
        }
        let command = self.allowed(args)?;
        let is_listed = self.ctx.executes_long && command.is(flag::WRITE);
        if is_listed && !self.ctx.shared.programs.scripts.running.note_write() {
            self.abort.get_or_insert(ScriptAbort::Killed);
        }
        if self.abort.is_some() {
            return Ok(()); // LUA-2: the engine ends the script.
        }
        match self.execute(command, args, reply) {
            Ok(()) => {}
            Err(CommandError::Long) => self.abort = Some(ScriptAbort::Long),
            Err(CommandError::Store(error)) if ends_group(&error) => {
                self.abort = Some(ScriptAbort::Store(error));
            }
            Err(fail) => {
                reply.rewind(0);
                let text = fail.text(self.ctx.shared);
                crate::protocol::resp::reply::error(reply, &text);
                self.ctx.count_error(&text);
                self.ctx.count_failed(command);
                self.has_failed = true;
            }
        }
        self.ctx.thread.timer.note_inner(command.number, None);
        let is_inner = std::mem::replace(&mut self.ctx.request.replies_to_script, true);
        self.ctx.show_executed(command, args);
        self.ctx.request.replies_to_script = is_inner;
        Ok(())
    }

    fn set_resp(&mut self, resp: RespVersion) {
        self.versions.script = resp;
        self.ctx.client.resp = resp;
    }

    fn versions(&self) -> ReplyVersions {
        self.versions
    }

    fn check_time(&mut self) {
        if self.abort.is_some() {
            return;
        }
        let run = self.started.get_or_insert_with(Instant::now).elapsed();
        let ctx = &*self.ctx;
        self.abort = if !ctx.executes_long {
            (run > SHORT_RUN).then_some(ScriptAbort::Long)
        } else if ctx.shared.threads.is_stopping() {
            Some(ScriptAbort::Stopping)
        } else if ctx.shared.programs.scripts.running.is_killed() {
            Some(ScriptAbort::Killed)
        } else {
            (ctx.request.holds_locks && run > LOCKED_RUN).then_some(ScriptAbort::Locked)
        };
    }

    fn is_aborted(&self) -> bool {
        self.abort.is_some()
    }

    fn note_out_of_memory(&mut self) {
        // The thread of long requests allows more memory.
        let abort = match self.ctx.executes_long {
            true => ScriptAbort::OutOfMemory,
            false => ScriptAbort::Long,
        };
        self.abort.get_or_insert(abort);
    }

    fn log(&mut self, level: LogLevel, text: &[u8]) {
        level.write(text);
    }

    fn may_execute(&self, args: Args<'_>) -> Option<bool> {
        let command = lookup(self.ctx.client.table.find(args.at(0)), args).ok()?;
        Some(check(self.ctx.client.user.user(), command, args).is_ok())
    }
}
