//! Files that are there only while something is measured.

use std::path::{Path, PathBuf};

use crate::figure::Error;

/// A file that is removed when this is dropped; what is no file stays.
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
        // A device's node was there before. A file may be gone already: there is nobody to tell.
        if std::fs::symlink_metadata(&self.0).is_ok_and(|found| found.is_file()) {
            std::fs::remove_file(&self.0).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_removed_and_what_is_none_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("file"), folder.path().join("socket"));
        std::fs::write(&file, "").unwrap();
        // Stands for a device's node, which takes a privilege to make.
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        drop((TempFile::new(&file), TempFile::new(&socket)));
        assert_eq!((file.exists(), socket.exists()), (false, true));
    }
}
