//! Opening and closing a pool that exists.

use std::path::Path;

use farbank::store::Error;
use farbank::{CopiedPoolPolicy, Db, OpenError, Options, open};

use super::Failure;
use super::place::{ReadArgs, not_opened, refused, warn};

/// Warning about a copy of a pool that was in use.
pub(crate) const COPY: &str = "this is a copy of a pool that was in use or had crashed: acknowledged writes may be missing in it";

/// Opens an existing pool for inspection.
pub(crate) fn open_existing(
    path: &Path,
    accept_file_system: bool,
    reading: &ReadArgs,
) -> Result<Db, Failure> {
    if !path.exists() {
        return Err(nothing_at(path));
    }
    let options = Options {
        copies: CopiedPoolPolicy::Inspect,
        read_by: reading.read_by,
        accept_file_system,
        ..Options::default()
    };
    let db = open(path, &options).map_err(|error| match &error {
        // This error already names the path, and may have a hint.
        OpenError::Medium(error) => refused(error),
        _ => not_opened(path, &error, false),
    })?;
    warn(path, db.store().caps());
    reading.warn_if_unused(path, db.store().caps());
    if db.is_copy() {
        eprintln!("warning: {}: {COPY}", path.display());
    }
    Ok(db)
}

pub(crate) fn nothing_at(path: &Path) -> Failure {
    Failure::Failed {
        error: format!("{}: there is no pool", path.display()),
        hint: Some("`farbank pool create` and `farbank serve` create a pool".into()),
    }
}

/// Closes the pool. A pool too full to hold its index snapshot is still sound, so that is only a warning.
pub(crate) fn close(db: Db) -> Result<(), Failure> {
    match db.close() {
        Err(full @ Error::NoSnapshot { .. }) => {
            eprintln!("warning: {full}");
            Ok(())
        }
        closed => closed.map_err(Failure::failed),
    }
}
