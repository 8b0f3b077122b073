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
        let what = self.what;
        let begun = self.begun(|| {
            let bar = ProgressBar::new(all).with_message(what);
            let template = "{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left";
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        if let Some(bar) = begun {
            bar.set_length(all);
            bar.set_position(done);
        }
    }

    /// Shows a text instead of a bar, for an operation whose end is not known.
    pub(crate) fn tell(&mut self, text: impl FnOnce() -> String) {
        if let Some(bar) = self.begun(ProgressBar::new_spinner) {
            bar.set_message(text());
            bar.tick();
        }
    }

    /// Returns the bar, which `begin` creates when it is time. `None`: it is not, or there is no terminal.
    fn begun(&mut self, begin: impl FnOnce() -> ProgressBar) -> Option<&ProgressBar> {
        if self.bar.is_none() {
            if self.since.elapsed() < PATIENCE || !std::io::stderr().is_terminal() {
                return None;
            }
            self.bar = Some(begin());
        }
        self.bar.as_ref()
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
