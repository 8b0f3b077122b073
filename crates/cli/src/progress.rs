//! A progress bar for people, for what may take long.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Something takes this long before a bar is worth showing.
const PATIENCE: Duration = Duration::from_secs(2);

/// A progress bar for people, once something takes long.
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

    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
