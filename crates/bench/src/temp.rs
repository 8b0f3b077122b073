//! Files that are there only while something is measured.

use std::path::{Path, PathBuf};

use crate::figure::Error;

/// A file that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    /// Takes over the file at `path`.
    pub(crate) fn new(path: &Path) -> TempFile {
        TempFile(path.into())
    }

    /// A path in memory that nobody uses, named after `purpose` and this process.
    pub(crate) fn on_tmpfs(purpose: &str) -> Result<PathBuf, Error> {
        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            let why = "there is no /dev/shm here: name a file on a tmpfs";
            return Err(Error::Failed(why.into()));
        }
        Ok(folder.join(format!(
            "farbank-bench-{purpose}-{}.pool",
            std::process::id()
        )))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // Someone else may have removed it; there is nobody to tell.
        std::fs::remove_file(&self.0).ok();
    }
}
