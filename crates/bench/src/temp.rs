//! Temporary files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    /// Returns an unused path on tmpfs, named after `purpose` and this process. Each call returns another path, so that
    /// two measurements of a process can run at the same time.
    ///
    /// # Errors
    /// The machine has no `/dev/shm`.
    pub fn on_tmpfs(purpose: &str) -> Result<PathBuf, Error> {
        static PATHS: AtomicU64 = AtomicU64::new(0);
        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            let why = "/dev/shm does not exist; name a file on a tmpfs";
            return Err(Error::Failed(why.into()));
        }
        let (process, number) = (std::process::id(), PATHS.fetch_add(1, Relaxed));
        Ok(folder.join(format!("farbank-bench-{purpose}-{process}-{number}.pool")))
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
    fn two_paths_of_a_process_differ() {
        let path = || TempFile::on_tmpfs("purpose").unwrap();
        assert_ne!(path(), path());
    }

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
