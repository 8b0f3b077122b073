//! A file that gets its name when it is complete.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farbank_pm::media::sync_folder;

use crate::common::Failure;

/// A file that is being written under another name, and removed when dropped.
pub(super) struct OutputFile {
    pub(super) file: File,
    unfinished: PathBuf,
    path: PathBuf,
    is_complete: bool,
}

fn of(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("{}: {error}", path.display()))
}

impl OutputFile {
    /// Creates the file that will be `path`. Without `force`, an existing `path` is an error.
    pub(super) fn create(path: &Path, force: bool) -> Result<OutputFile, Failure> {
        if path.is_dir() {
            return Err(Failure::failed(format!("{}: is a folder", path.display())));
        }
        if path.exists() && !force {
            return Err(Failure::Failed {
                error: format!("{}: the file exists", path.display()),
                hint: Some("--force replaces it when the backup is complete".into()),
            });
        }
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(".{}.saving", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        options.mode(0o600); // As a pool: it has all keys and values.
        let file = options.open(&unfinished).map_err(|e| of(path, &e))?;
        Ok(OutputFile {
            file,
            unfinished,
            path: path.into(),
            is_complete: false,
        })
    }

    /// Makes the file durable and gives it its name.
    pub(super) fn publish(mut self) -> Result<(), Failure> {
        self.file
            .sync_all()
            .and_then(|()| fs::rename(&self.unfinished, &self.path))
            .map_err(|e| of(&self.path, &e))?;
        self.is_complete = true;
        sync_folder(&self.path).map_err(|e| of(&self.path, &e))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_complete
            && let Err(error) = fs::remove_file(&self.unfinished)
        {
            eprintln!("warning: {}: {error}", self.unfinished.display());
        }
    }
}
