//! Temporary files.

use std::path::{Path, PathBuf};

use crate::figure::Error;

/// Path whose regular file is removed on drop. Other file types, such as devices, are left alone.
#[derive(Debug)]
pub struct TempFile(PathBuf);

impl TempFile {
    /// Takes ownership of the file at `path`.
    #[must_use]
    pub fn new(path: &Path) -> TempFile {
        TempFile(path.into())
    }

    /// Returns an unused path on tmpfs, named after `purpose` and this process.
    ///
    /// # Errors
    /// The machine has no `/dev/shm`.
    pub fn on_tmpfs(purpose: &str) -> Result<PathBuf, Error> {
        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            let why = "/dev/shm does not exist; name a file on a tmpfs";
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
        // A device node existed before. Removal fails if the file is gone already, and then there is nothing to do.
        if std::fs::symlink_metadata(&self.0).is_ok_and(|found| found.is_file()) {
            std::fs::remove_file(&self.0).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_is_removed_and_other_file_types_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("file"), folder.path().join("socket"));
        std::fs::write(&file, "").unwrap();
        // The socket stands for a device node, whose creation needs a privilege.
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        drop((TempFile::new(&file), TempFile::new(&socket)));
        assert_eq!((file.exists(), socket.exists()), (false, true));
    }
}
