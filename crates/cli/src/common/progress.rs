//! A progress bar for long operations.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How long an operation runs before the bar appears.
const PATIENCE: Duration = Duration::from_secs(2);

/// A progress bar on standard error, shown only on a terminal and only after [`PATIENCE`].
pub(crate) struct CommandProgress {
    since: Instant,
    what: &'static str,
    bar: Option<ProgressBar>,
}

impl CommandProgress {
    pub(crate) fn new(what: &'static str) -> CommandProgress {
        CommandProgress {
            since: Instant::now(),
            what,
            bar: None,
        }
    }

    pub(crate) fn show(&mut self, done: u64, all: u64) {
        if self.bar.is_none() {
            if self.since.elapsed() < PATIENCE || !std::io::stderr().is_terminal() {
                return;
            }
            let bar = ProgressBar::new(all).with_message(self.what);
            let template = "{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left";
            self.bar = Some(match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            });
        }
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
        }
    }

    /// Shows a text instead of a bar, for an operation whose end is not known.
    pub(crate) fn tell(&mut self, text: String) {
        if self.bar.is_none() {
            if self.since.elapsed() < PATIENCE || !std::io::stderr().is_terminal() {
                return;
            }
            self.bar = Some(ProgressBar::new_spinner());
        }
        if let Some(bar) = &self.bar {
            bar.set_message(text);
            bar.tick();
        }
    }

    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for CommandProgress {
    fn drop(&mut self) {
        self.clear();
    }
}
