//! How a new file gets its name: it is made under another one, and renamed when it is a whole pool.
//!
//! ```text
//!   create pool.farbank-new, lock it ─▶ write ─▶ the pool is durable ─▶ rename to pool ─▶ sync the folder
//!          │                                                              │
//!          └── killed: nobody holds the lock, the next creation           └── killed: a whole pool
//!              removes the file and starts again
//! ```
//!
//! # Invariants
//! PM-NAME-1  A file has the pool's name only when it is a whole pool. So a kill during creation leaves
//!            nothing that a later start would have to refuse.
//! PM-NAME-2  Whatever has the pool's name already keeps it: the rename does not replace.
//! PM-NAME-3  A file of an earlier creation is removed only by a process that holds its lock, and only if
//!            it looks like one.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;

use super::open::OpenError;
use super::space::lock;
use crate::pool;

/// What the name of a file that is being made ends with.
const SUFFIX: &str = ".farbank-new";
/// Bytes of a name that the file system takes at least, less those of the suffix.
const STEM_BYTES_MAX: usize = 255 - SUFFIX.len();

/// Where a pool file is, or will be.
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

    /// Whether the file has its name.
    pub(super) fn is_published(&self) -> bool {
        self.published.load(Ordering::Acquire)
    }
}

/// The name a new medium does not have yet. Dropping it without [`PendingName::publish`] removes the file.
#[derive(Debug)]
#[must_use = "a new pool that is not published is removed"]
pub struct PendingPath {
    name: Arc<PoolPath>,
    /// The file's name so far, and its inode. A device has its own name all the time.
    temporary: Option<(PathBuf, u64)>,
}

impl PendingPath {
    /// The name of something that has it already.
    pub(super) fn none(path: &Path) -> PendingPath {
        PendingPath {
            name: PoolPath::new(path, true),
            temporary: None,
        }
    }

    /// Gives the file its name, durably on `Ok`. What is in it must be durable already, as
    /// [`Pool::create`](crate::pool::Pool::create) leaves it.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if something has appeared at the path meanwhile; it is left alone.
    /// [`OpenError::Io`] if the file cannot be renamed, or its folder not be synced. The new file is
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
            // The error that is on its way says more than this one could.
            let _ = fs::remove_file(path);
            return Err(OpenError::io(path, "sync the folder of", error));
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
            // The error that is on its way says more than this one could.
            let _ = fs::remove_file(&temporary);
        }
    }
}

/// Renames, unless there is something at `to`.
fn rename_new(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system, or the kernel, does not know the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::link(from, to)?;
            rustix::fs::unlink(from)
        }
        done => done,
    }
}

/// Makes the names in the folder of `path` durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()
}

/// The name under which the file of `path` is made: in the same folder, so that it can be renamed.
fn temporary_name(path: &Path) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let name = path.file_name().unwrap_or_default().as_bytes();
    let mut bytes = name[..name.len().min(STEM_BYTES_MAX)].to_vec();
    bytes.extend_from_slice(SUFFIX.as_bytes());
    path.with_file_name(OsString::from_vec(bytes))
}

/// Makes the file of a new pool at `path`, locked, under its temporary name.
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
        // Another process may have taken the file, not locked yet, for a stale one.
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

/// Removes what an earlier creation left when it was killed (PM-NAME-3).
fn remove_stale(path: &Path, temporary: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::io(temporary, "look at", error);
    let mut how = fs::OpenOptions::new();
    how.read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = match how.open(temporary) {
        Ok(file) => file,
        // Its creator has renamed or removed it.
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
