//! The parameters `dir` and `dbfilename`: where SAVE and BGSAVE write.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::state::shared::ServerShared;

/// The parameters, which CONFIG SET changes for clients that may change protected ones.
pub(super) const FOLDER: &str = "dir";
pub(super) const FILE: &str = "dbfilename";
pub(super) const FILE_DEFAULT: &str = "dump.rdb";

/// Returns the name of one of the two parameters.
pub(super) fn named(name: &str) -> Option<&'static str> {
    [FOLDER, FILE].into_iter().find(|own| *own == name)
}

/// The folder of backups: by default that of the pool. A pool in memory or on a device has none; its backups are in the
/// working directory.
pub(crate) fn save_folder(shared: &ServerShared<'_>) -> PathBuf {
    if let Some(folder) = shared.settings.kept.get(FOLDER) {
        return folder.into();
    }
    let pool = Path::new(&shared.options.pool);
    let is_file = std::fs::metadata(pool).is_ok_and(|found| {
        let kind = found.file_type();
        !kind.is_block_device() && !kind.is_char_device()
    });
    let parent = pool.parent().filter(|_| is_file);
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    folder.canonicalize().unwrap_or_else(|_| folder.into())
}

/// Name of the file of backups.
pub(super) fn save_file(shared: &ServerShared<'_>) -> String {
    let kept = shared.settings.kept.get(FILE);
    kept.unwrap_or_else(|| FILE_DEFAULT.into())
}

/// Path of the file of backups.
pub(crate) fn save_path(shared: &ServerShared<'_>) -> PathBuf {
    save_folder(shared).join(save_file(shared))
}

/// Checks a value of one of the two parameters. Returns it as CONFIG GET shows it, or why it is refused.
pub(super) fn check(name: &str, value: &[u8]) -> Result<String, &'static str> {
    let text = std::str::from_utf8(value).map_err(|_| "the path must be UTF-8")?;
    if name == FILE {
        return match text.is_empty() || text.contains('/') || text == "." || text == ".." {
            true => Err("dbfilename can't be a path, just a filename"),
            false => Ok(text.to_owned()),
        };
    }
    let folder = Path::new(text).canonicalize();
    let folder = folder.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => "Permission denied",
        _ => "No such file or directory",
    })?;
    match (folder.is_dir(), folder.to_str()) {
        (false, _) => Err("Not a directory"),
        (true, None) => Err("the path must be UTF-8"),
        (true, Some(folder)) => Ok(folder.to_owned()),
    }
}
