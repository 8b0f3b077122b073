//! Creation of a pool file under a temporary name, and its rename when it holds a complete pool.
//!
//! ```text
//!   create pool.farbank-new, lock it ─▶ write ─▶ the pool is durable ─▶ rename to pool ─▶ sync the directory
//!          │                                                              │
//!          └── killed: the lock is free, the next creation                └── killed: a complete pool
//!              removes the file and starts again
//! ```
//!
//! # Invariants
//! PM-NAME-1  A file has the pool's name only when it is a complete pool. So a kill during creation leaves
//!            no file that a later start would have to refuse.
//! PM-NAME-2  The rename never replaces a file that already has the pool's name.
//! PM-NAME-3  A temporary file of an earlier creation is removed only by a process that holds its lock, and only
//!            if it is empty, or begins with zeros or as a pool.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;

use super::file_lock::lock;
use super::open_error::OpenError;
use crate::pool;

/// Suffix of a temporary name.
const SUFFIX: &str = ".farbank-new";
/// Longest file name that every supported file system accepts, minus the suffix, in bytes.
const STEM_BYTES_MAX: usize = 255 - SUFFIX.len();

/// Path that a pool file has, or will have.
#[derive(Debug)]
pub(super) struct PoolPath {
    path: PathBuf,
    published: AtomicBool,
}

impl PoolPath {
    pub(super) fn new(path: &Path, published: bool) -> Arc<PoolPath> {
        Arc::new(PoolPath {
            path: path.into(),
            published: AtomicBool::new(published),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file has this path, and no longer its temporary name.
    pub(super) fn is_published(&self) -> bool {
        self.published.load(Ordering::Acquire)
    }
}

/// Path that a new medium does not have yet. Dropping it without [`PendingPath::publish`] removes the file.
#[derive(Debug)]
#[must_use = "a new pool that is not published is removed"]
pub struct PendingPath {
    name: Arc<PoolPath>,
    /// The file's temporary name, and its inode number. `None` for a device, which always has its own name.
    temporary: Option<(PathBuf, u64)>,
}

impl PendingPath {
    /// The path of a device, which needs no rename.
    pub(super) fn none(path: &Path) -> PendingPath {
        PendingPath {
            name: PoolPath::new(path, true),
            temporary: None,
        }
    }

    /// Renames the file to its final path, durably on `Ok`. Its content must be durable already, which
    /// [`Pool::create`](crate::pool::Pool::create) ensures.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if a file was created at the path in the meantime; that file is unchanged.
    /// [`OpenError::Io`] if the file cannot be renamed, or its directory cannot be synced. The new file is
    /// removed in both cases.
    pub fn publish(mut self) -> Result<(), OpenError> {
        let Some((temporary, _)) = &self.temporary else {
            return Ok(());
        };
        let path = self.name.path();
        rename_new(temporary, path).map_err(|error| match error {
            Errno::EXIST => OpenError::Exists { path: path.into() },
            error => OpenError::io(path, "rename the new file to", error.into()),
        })?;
        if let Err(error) = sync_folder(path) {
            // Ignores a failed removal: the error of the sync is reported instead.
            let _ = fs::remove_file(path);
            return Err(OpenError::io(path, "sync the directory of", error));
        }
        self.name.published.store(true, Ordering::Release);
        self.temporary = None;
        Ok(())
    }
}

impl Drop for PendingPath {
    fn drop(&mut self) {
        let Some((temporary, inode)) = self.temporary.take() else {
            return;
        };
        if fs::symlink_metadata(&temporary).is_ok_and(|found| found.ino() == inode) {
            // Ignores a failed removal: the error that ended the creation is reported instead.
            let _ = fs::remove_file(&temporary);
        }
    }
}

/// Renames `from` to `to`. Fails with `EEXIST` if a file exists at `to`.
fn rename_new(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system or the kernel does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::link(from, to)?;
            rustix::fs::unlink(from)
        }
        done => done,
    }
}

/// Makes the names in the directory of `path` durable: a file that was created, renamed or removed there stays so after a power
/// cut.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()
}

/// Returns the temporary name of the file for `path`. It is in the same directory, so that the file can be renamed.
fn temporary_name(path: &Path) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let name = path.file_name().unwrap_or_default().as_bytes();
    let mut bytes = name[..name.len().min(STEM_BYTES_MAX)].to_vec();
    bytes.extend_from_slice(SUFFIX.as_bytes());
    path.with_file_name(OsString::from_vec(bytes))
}

/// Creates and locks the file of a new pool at `path`, under its temporary name.
pub(super) fn create(path: &Path) -> Result<(fs::File, PendingPath), OpenError> {
    const OWNER_ONLY: u32 = 0o600;
    let failed = |error| OpenError::io(path, "create", error);
    if fs::symlink_metadata(path).is_ok() {
        return Err(OpenError::Exists { path: path.into() });
    }
    let temporary = temporary_name(path);
    let mut how = fs::OpenOptions::new();
    how.read(true).write(true).create_new(true).mode(OWNER_ONLY);
    loop {
        let file = match how.open(&temporary) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                remove_stale(path, &temporary)?;
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        // Before this lock, another process may have removed the file as a stale one. Then the inode differs.
        lock(&file, path)?;
        let inode = file.metadata().map_err(failed)?.ino();
        let named = fs::symlink_metadata(&temporary);
        if named.is_ok_and(|named| named.ino() == inode) {
            let pending = PendingPath {
                name: PoolPath::new(path, false),
                temporary: Some((temporary, inode)),
            };
            return Ok((file, pending));
        }
    }
}

impl PendingPath {
    pub(super) fn name(&self) -> Arc<PoolPath> {
        Arc::clone(&self.name)
    }
}

/// Removes the temporary file of an earlier creation that was killed (PM-NAME-3).
///
/// # Errors
/// [`OpenError::InUse`] if a creation is in progress; [`OpenError::Exists`] if the file is not that of a creation.
fn remove_stale(path: &Path, temporary: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::io(temporary, "examine", error);
    let mut how = fs::OpenOptions::new();
    how.read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = match how.open(temporary) {
        Ok(file) => file,
        // The process that created it has renamed or removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let path = temporary.into();
        return Err(OpenError::Exists { path });
    }
    lock(&file, path)?;
    let named = fs::symlink_metadata(temporary);
    if !named.is_ok_and(|named| named.ino() == metadata.ino()) {
        return Ok(());
    }
    let mut begin = [0; 8];
    let read = file.read_at(&mut begin, 0).map_err(failed)?;
    if read != 0 && begin != [0; 8] && !pool::begins_as_pool(&begin) {
        let path = temporary.into();
        return Err(OpenError::Exists { path });
    }
    fs::remove_file(temporary).map_err(|error| OpenError::io(temporary, "remove", error))
}
