//! Replaces a file durably, by a rename.
//!
//! | a crash | the next start finds |
//! |---|---|
//! | before the rename | the old file; the next replacement overwrites the temporary one |
//! | after the rename, before the sync of the folder | the old file or the new one |
//! | after the sync of the folder | the new file |

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use farbank_pm::media::sync_folder;

/// Replaces `file` by one with `bytes`, which only the server's user can read. The new file is durable when this
/// returns.
///
/// # Errors
/// The file could not be replaced. It is unchanged, unless the error is that of the folder's sync.
pub(crate) fn replace_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = OsString::from(file);
    temporary.push(".tmp");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut written = options.open(&temporary)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    fs::rename(&temporary, file)?;
    sync_folder(file)
}
