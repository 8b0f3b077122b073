//! Writes a backup to an RDB file.
//!
//! ```text
//!   backup ─▶ FILE.saving ── sync ── rename to FILE ── sync of the folder
//! ```
//!
//! # Invariants
//! SRV-SAVE-1  FILE is always a complete backup, or what it was before. It is replaced by a rename, after a sync.
//! SRV-SAVE-2  One process writes `FILE.saving` at a time: it holds the file's lock.
//! SRV-SAVE-3  The backup is dropped before the sync. So the pool keeps nothing for it while the disk works.
//!
//! # Crash argument
//! | a crash | FILE | beside it |
//! |---|---|---|
//! | before the rename | as before | an incomplete `FILE.saving`; the next start, and the next backup, remove it |
//! | after the rename, before the sync of the folder | the old or the new backup | nothing |
//! | after the sync of the folder | the new backup | nothing |
//!
//! An error removes `FILE.saving`. The pool is never changed.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farbank_pm::media::sync_folder;
use farbank_store::{Backup, Error};
use rustix::fs::{FlockOperation, flock};

use super::shared::{Durability, ServerShared};
use crate::rdb::writer::{RdbString, RdbWriter};
use crate::settings::{REDIS_VERSION, size};
use crate::stats::process::unix_secs;

/// Keys that one step of a backup scans.
const STEP_KEYS: usize = 16;
/// Shortest pause after each step of a backup in the background; a longer step is followed by a pause twice as long.
/// A thread that computes without a pause can delay a worker by a time slice of the kernel: several milliseconds.
const YIELD_MIN: Duration = Duration::from_micros(100);
/// How long the scan pauses when it is ahead of the limit of its rate. What writers replace is read between pauses.
const PAUSE: Duration = Duration::from_millis(2);

/// Why a backup was not written.
#[derive(Debug)]
pub(crate) enum SaveError {
    /// The store could not go on with the backup.
    Store(Error),
    /// The file could not be written.
    File(PathBuf, io::Error),
    /// Another process writes a backup to the same file.
    Busy(PathBuf),
    /// The server is stopping.
    Stopping,
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaveError::Store(error) => error.fmt(f),
            SaveError::File(path, error) => write!(f, "cannot write {}: {error}", path.display()),
            SaveError::Busy(path) => {
                write!(f, "another process is writing {}", path.display())
            }
            SaveError::Stopping => f.write_str("the server is stopping"),
        }
    }
}

/// A backup that was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SavedBackup {
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    /// Damaged records, which the backup lacks.
    pub(crate) damaged: u64,
}

/// Returns the name of an incomplete backup.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".saving");
    name.into()
}

/// Opens `path` for an incomplete backup, and locks it (SRV-SAVE-2).
fn open_locked(path: &Path) -> Result<File, SaveError> {
    let of = |error| SaveError::File(path.into(), error);
    let mut options = OpenOptions::new();
    options.write(true).read(true).create(true).truncate(false);
    options.mode(0o600); // As the pool: it has all keys and values.
    loop {
        let file = options.open(path).map_err(of)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SaveError::Busy(path.into())),
            Err(error) => return Err(of(error.into())),
        }
        // Another process may have renamed or removed the file before the lock.
        if is_at(&file, path) {
            file.set_len(0).map_err(of)?;
            return Ok(file);
        }
    }
}

/// Returns whether `path` still names `file`.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: io::Result<fs::Metadata>| found.ok().map(|meta| (meta.dev(), meta.ino()));
    id(file.metadata()) == id(fs::metadata(path))
}

/// Removes the incomplete backup of an earlier run, if there is one that no process writes.
pub(crate) fn remove_leftover(path: &Path) {
    let path = temporary(path);
    if !path.exists() {
        return;
    }
    if let Ok(_locked) = open_locked(&path) {
        match fs::remove_file(&path) {
            Ok(()) => tracing::info!(file = %path.display(), "removed an incomplete backup"),
            Err(error) => {
                tracing::warn!(%error, file = %path.display(), "cannot remove an incomplete backup");
            }
        }
    }
}

/// Writes `backup` to the file `path`, and makes it durable. With `yields`, other threads come first.
///
/// # Errors
/// [`SaveError`]. The file is then as it was before.
pub(crate) fn save(
    shared: &ServerShared<'_>,
    backup: Box<dyn Backup>,
    path: &Path,
    yields: bool,
) -> Result<SavedBackup, SaveError> {
    let unfinished = temporary(path);
    let file = open_locked(&unfinished)?;
    let saved = write(shared, backup, &file, &unfinished, yields).and_then(|saved| {
        let of = |error| SaveError::File(path.into(), error);
        file.sync_all().map_err(of)?;
        fs::rename(&unfinished, path).map_err(of)?;
        sync_folder(path).map_err(of)?;
        Ok(saved)
    });
    match &saved {
        Ok(saved) => {
            let Durability {
                saves,
                last_save_secs,
                ..
            } = &shared.durability;
            last_save_secs.fetch_max(unix_secs(), Ordering::Relaxed);
            saves.saves.fetch_add(1, Ordering::Relaxed);
            // No other backup begins before this one has ended.
            let changes = saves.changes_at_begin.load(Ordering::Relaxed);
            saves.changes_at_save.store(changes, Ordering::Relaxed);
            saves.damaged.store(saved.damaged, Ordering::Relaxed);
        }
        Err(_) => {
            if let Err(error) = fs::remove_file(&unfinished)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, file = %unfinished.display(), "cannot remove an incomplete backup");
            }
        }
    }
    saved
}

/// Writes `backup` to `out`, whose name is `path`.
pub(crate) fn write(
    shared: &ServerShared<'_>,
    mut backup: Box<dyn Backup>,
    out: impl Write,
    path: &Path,
    yields: bool,
) -> Result<SavedBackup, SaveError> {
    let of = |error| SaveError::File(path.into(), error);
    let compresses = shared.settings.kept.get("rdbcompression");
    let compresses = compresses.is_none_or(|value| value == "yes");
    let mut writer = begin(shared, &*backup, out, compresses).map_err(of)?;
    let total: u64 = backup.keys().iter().sum();
    let (mut keys, mut failure) = (0, None);
    let began = Instant::now();
    loop {
        if shared.threads.is_stopping() {
            return Err(SaveError::Stopping);
        }
        let rate = size(&shared.settings.backup_bytes_per_sec) as f64;
        let is_ahead = rate > 0.0 && writer.bytes() as f64 > rate * began.elapsed().as_secs_f64();
        let count = if is_ahead { 0 } else { STEP_KEYS };
        let step = Instant::now();
        let goes_on = backup.step(count, &mut |key, item| {
            if failure.is_some() {
                return;
            }
            keys += 1;
            failure = writer.string(&RdbString::of(key, item)).err();
        });
        if let Some(error) = failure.take() {
            return Err(of(error));
        }
        shared
            .durability
            .saves
            .note_progress(keys, total, writer.bytes());
        match goes_on.map_err(SaveError::Store)? {
            false => break,
            true if is_ahead => std::thread::sleep(PAUSE),
            true if yields => std::thread::sleep((2 * step.elapsed()).max(YIELD_MIN)),
            true => {}
        }
    }
    let damaged = backup.damaged();
    drop(backup); // SRV-SAVE-3
    let (_, bytes) = writer.finish().map_err(of)?;
    Ok(SavedBackup {
        keys,
        bytes,
        damaged,
    })
}

/// Writes what precedes the keys.
fn begin<W: Write>(
    shared: &ServerShared<'_>,
    backup: &dyn Backup,
    out: W,
    compresses: bool,
) -> io::Result<RdbWriter<W>> {
    let now = unix_secs().to_string();
    let aux = [
        ("redis-ver", REDIS_VERSION),
        ("redis-bits", "64"),
        ("ctime", &now),
        ("used-mem", "0"),
        ("aof-base", "0"),
        ("farbank-ver", env!("CARGO_PKG_VERSION")),
    ];
    let mut writer = RdbWriter::new(out, compresses, &aux)?;
    for library in shared.programs.functions.current().iter() {
        writer.library(&library.code)?;
    }
    let databases = backup.keys();
    for (db, keys) in (0_u32..).zip(databases).filter(|(_, keys)| *keys > 0) {
        writer.database(db, keys, 0)?;
    }
    Ok(writer)
}
