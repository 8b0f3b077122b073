//! The `farbank` binary: its subcommands and its exit codes.
//!
//! Exit codes: 0 on success, 1 if the command failed, 2 if the command line is wrong. If the reader of standard
//! output closes its end of the pipe, the process dies by SIGPIPE, which a shell shows as 141.
//!
//! Each subcommand has a module of its name: `serve` (with `serve::memcached`), `memory_server`, `tree`, `pool`, `check`
//! and `bench`; `shell` has `completions` and `man`. All use `common`.

#![forbid(unsafe_code)]

#[macro_use]
mod common;

mod backup;
mod bench;
mod check;
mod memory_server;
mod pool;
mod serve;
mod shell;
mod tree;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::common::{Failure, options_file, output, redis_conf};
use crate::serve::{memcached, redis_server};

const EXIT_STATUS: &str = "\
Exit status: 0 on success (every check and bound holds), 1 if the command failed or a check or bound does not hold,
2 if the command line is wrong.";

/// A durable key-value store for persistent memory that speaks the Redis protocol.
#[derive(Parser)]
#[command(name = "farbank", version, arg_required_else_help = true, disable_help_subcommand = true, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    verb: TopCommand,
}

#[derive(Subcommand)]
enum TopCommand {
    /// Serve a pool to Redis and memcached clients.
    Serve(Box<serve::ServeArgs>),
    /// Serve memcached clients; takes memcached's own flags (see `farbank memcached -h`).
    #[command(disable_help_flag = true)]
    Memcached {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Serve memory to compute servers, for structures on disaggregated memory.
    MemoryServer(memory_server::MemoryServerArgs),
    /// Read and write a tree on memory servers.
    #[command(subcommand)]
    Tree(tree::TreeCommand),
    /// Create, inspect, check or dump a pool that no server has open.
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// Run the correctness checks.
    #[command(subcommand)]
    Check(check::CheckCommand),
    /// Run the benchmarks.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print the completions of the command line for a shell.
    Completions(shell::CompletionsArgs),
    /// Write the manual pages of all subcommands to a folder.
    Man(shell::ManArgs),
}

fn run() -> Result<(), Failure> {
    let own: Vec<OsString> = std::env::args_os().collect();
    let translated = if let Some(flags) = memcached::flags(&own) {
        memcached::translate(flags)?
    } else if let Some(flags) = redis_server::flags(&own) {
        redis_server::translate(flags)?
    } else {
        Some(own)
    };
    let Some(own) = translated else {
        return Ok(());
    };
    let args = redis_conf::with_file(own.clone())?;
    let args = options_file::with_file(args)?;
    let parsed = Cli::command().try_get_matches_from(&args);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() => {
            if args != own {
                eprintln!("after adding the options of the --config or --workload file:");
            }
            error.print().ok();
            return Err(Failure::Told(2));
        }
        Err(help) => {
            let printed = help.print().and_then(|()| std::io::stdout().flush());
            return printed.map_err(Failure::Output);
        }
    };
    bench::unused::refuse(&matches)?;
    match cli.verb {
        TopCommand::Serve(serve) => serve.run(),
        // `memcached::translate` handles this subcommand before clap parses the line. It gets here only if another
        // argument precedes it.
        TopCommand::Memcached { .. } => Err(Failure::Usage(
            "memcached must be the first argument".into(),
        )),
        TopCommand::MemoryServer(server) => server.run(),
        TopCommand::Tree(tree) => tree.run(),
        TopCommand::Pool(pool) => pool.run(),
        TopCommand::Check(check) => check.run(),
        TopCommand::Bench(bench) => bench.run(),
        TopCommand::Completions(completions) => completions.run(),
        TopCommand::Man(man) => man.run(),
    }
}

fn main() -> ExitCode {
    match output::catch(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => {
            output::report_output_error(&error);
            ExitCode::FAILURE
        }
        Err(Failure::Usage(error)) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
        Err(Failure::Failed { error, hint }) => {
            eprintln!("error: {error}");
            if let Some(hint) = hint {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
        Err(Failure::Told(code)) => u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
