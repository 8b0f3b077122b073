//! `farbank completions` and `farbank man`: what a shell and a manual reader need, from the definition of the command
//! line.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;
use crate::common::Failure;

const EXAMPLES: &str = "\
Examples:
  farbank completions bash > ~/.local/share/bash-completion/completions/farbank
  farbank completions fish > ~/.config/fish/completions/farbank.fish
  farbank completions zsh > ~/.zfunc/_farbank
      for a folder that is in $fpath";

/// Options of `completions`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the completions.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "farbank", &mut text);
        print!("{}", String::from_utf8_lossy(&text));
        Ok(())
    }
}

const MAN_EXAMPLES: &str = "\
Examples:
  farbank man ~/.local/share/man/man1
  man farbank-serve";

/// Options of `man`.
#[derive(Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder; it must exist. Pages that it has are replaced.
    folder: PathBuf,
}

impl ManArgs {
    /// Writes a page for each subcommand.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        write_pages(&self.folder)
            .map_err(|error| Failure::failed(format!("{}: {error}", self.folder.display())))
    }
}

fn write_pages(folder: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), folder)
}
