//! Replaces a file durably, by a rename.
//!
//! | a crash | the next start finds |
//! |---|---|
//! | before the rename | the old file; the next replacement removes the temporary one |
//! | after the rename, before the sync of the folder | the old file or the new one |
//! | after the sync of the folder | the new file |

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use farbank_pm::media::sync_folder;

/// Which users may access the new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileAccess {
    /// The server's user only.
    Private,
    /// The users with access to the replaced file. If there is none, the user of the server may write it and all may read it.
    AsBefore,
}

/// Replaces `file` by one with `bytes`. The new file is durable when this returns.
///
/// # Errors
/// The file could not be replaced. It is unchanged, unless the error is that of the folder's sync.
pub(crate) fn replace_file(file: &Path, bytes: &[u8], access: FileAccess) -> io::Result<()> {
    let mut temporary = OsString::from(file);
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(
        temporary,
        bytes,
        (access == FileAccess::AsBefore).then_some(file),
    );
    if let Err(error) = written.and_then(|()| fs::rename(temporary, file)) {
        // Ignores a failed removal: the next replacement removes the file, and this one reports its own error.
        let _ = fs::remove_file(temporary);
        return Err(error);
    }
    sync_folder(file)
}

/// Writes and syncs the new file `path`. It gets the permissions of `model` and, if possible, its owner.
fn write_new(path: &Path, bytes: &[u8], model: Option<&Path>) -> io::Result<()> {
    const PRIVATE: u32 = 0o600;
    const PUBLIC: u32 = 0o644;
    const PERMISSIONS: u32 = 0o7777;
    let model = model.map(fs::metadata);
    let is_new = matches!(&model, Some(Err(error)) if error.kind() == ErrorKind::NotFound);
    let mut options = File::options();
    let mode = if is_new { PUBLIC } else { PRIVATE };
    options.write(true).create_new(true).mode(mode);
    let mut written = options.open(path)?;
    written.write_all(bytes)?;
    if let Some(model) = model.filter(|_| !is_new) {
        let model = model?;
        // Only root may give a file to another user. Without that right the file belongs to the server's user, as in Redis.
        let _ = fchown(&written, Some(model.uid()), Some(model.gid()));
        written.set_permissions(Permissions::from_mode(model.mode() & PERMISSIONS))?;
    }
    written.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        replace_file(&file, b"1", FileAccess::Private).unwrap();
        assert_eq!(mode(&file), 0o600);
        for kept in [0o640, 0o444, 0o600] {
            fs::set_permissions(&file, Permissions::from_mode(kept)).unwrap();
            replace_file(&file, b"2", FileAccess::AsBefore).unwrap();
            assert_eq!(
                (mode(&file), fs::read(&file).unwrap()),
                (kept, b"2".to_vec())
            );
        }
        fs::remove_file(&file).unwrap();
        replace_file(&file, b"3", FileAccess::AsBefore).unwrap();
        assert_eq!(mode(&file) & 0o700, 0o600);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::create_dir(&file).unwrap();
        replace_file(&file, b"1", FileAccess::Private).unwrap_err();
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
    }
}
