//! The thread of backups: writes the files of BGSAVE, and the copies for clients that send SYNC.
//!
//! ```text
//!   BGSAVE ── moment ──▶ queue ─▶ thread: write FILE
//!   SYNC ──── moment ──▶ queue ─▶ thread: write a file without a name ─▶ one thread a client: send it
//! ```
//!
//! A copy is complete before its first byte is sent. So a slow client costs disk space and one thread that sleeps, and
//! the pool keeps nothing for it. The client's connection leaves its worker: nothing but the copy is sent to it, and it is
//! closed afterwards.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farbank_store::{BackupError, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};

use super::executor::ServerParts;
use crate::commands::config_paths::{save_folder, save_path};
use crate::state::save_file::{self, SaveError, remove_leftover};
use crate::state::saves::{CopyRequest, SaveJob};
use crate::state::shared::ServerShared;

/// How long a client may read nothing before its connection is closed.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Bytes that are sent at a time.
const PIECE_BYTES: usize = 256 << 10;
/// How much the thread yields to the others: workers come first.
const NICE: i32 = 10;

/// Executes jobs until the server stops.
pub(super) fn run(parts: &ServerParts<'_>) {
    let shared = &parts.shared;
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "cannot lower the priority of the thread of backups");
    }
    remove_leftover(&save_path(shared));
    let stop = Arc::new(AtomicBool::new(false));
    while let Some(job) = parts.pool.saves.next() {
        match job {
            SaveJob::File(backup, path) => {
                let began = Instant::now();
                let ended = save_file::save(shared, backup, &path, true);
                note_end(shared, &path, began, ended);
            }
            SaveJob::Copy(request) => send_copy(shared, request, &stop),
        }
    }
    stop.store(true, Ordering::Relaxed);
}

/// Records how BGSAVE has ended.
fn note_end(
    shared: &ServerShared<'_>,
    path: &std::path::Path,
    began: Instant,
    ended: Result<save_file::SavedBackup, SaveError>,
) {
    let (file, saves) = (path.display(), &shared.durability.saves);
    match ended {
        Ok(saved) => {
            let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(%file, keys = saved.keys, bytes = saved.bytes, ms, "backup written");
            if saved.damaged > 0 {
                let damaged = saved.damaged;
                tracing::error!(%file, damaged, "the backup lacks damaged records");
            }
            saves.end(Some(true));
        }
        // As in Redis, FLUSHALL ends a backup and is no failure.
        Err(SaveError::Store(Error::Backup(BackupError::Flushed))) => {
            tracing::info!(%file, "FLUSHALL ended the backup");
            saves.end(None);
        }
        Err(SaveError::Stopping) => saves.end(None),
        Err(error) => {
            tracing::error!(%file, %error, "backup failed");
            saves.end(Some(false));
        }
    }
}

/// Writes a copy to a file without a name, and starts a thread that sends it.
fn send_copy(shared: &ServerShared<'_>, request: CopyRequest, stop: &Arc<AtomicBool>) {
    let CopyRequest {
        socket,
        preamble,
        backup,
    } = request;
    let folder = save_folder(shared);
    let copied = nameless(&folder)
        .map_err(|error| SaveError::File(folder.clone(), error))
        .and_then(|file| {
            let saved = save_file::write(shared, backup, &file, &folder, true)?;
            Ok((file, saved.bytes))
        });
    let saves = &shared.durability.saves;
    saves.note_progress(0, 0, 0);
    let sent = copied.map(|(file, bytes)| {
        let mut head = preamble;
        head.extend_from_slice(format!("${bytes}\r\n").as_bytes());
        let (stop, now) = (Arc::clone(stop), saves.copies_now.clone());
        let leaving = LeavingClient(now);
        std::thread::Builder::new()
            .name("copy-sender".into())
            .spawn(move || {
                let _leaving = leaving;
                if let Err(error) = send(&socket, &head, file, &stop) {
                    tracing::info!(%error, "a client has not received its copy of the store");
                }
            })
    });
    match sent {
        Ok(Ok(_)) => {}
        // The connection is closed: the client knows that it has no copy.
        Ok(Err(error)) => tracing::error!(%error, "cannot start a thread that sends a copy"),
        Err(error) => {
            saves.copies_now.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(%error, "cannot write a copy of the store");
        }
    }
}

/// Counts a client out when its copy was sent.
struct LeavingClient(Arc<AtomicUsize>);

impl Drop for LeavingClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Creates a file without a name in `folder`: nothing of it is left after a kill.
fn nameless(folder: &PathBuf) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match open(folder, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // The file system has no files without names.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            let path = folder.join(format!(".farbank-copy-{}", std::process::id()));
            let mut options = File::options();
            let file = options
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends `head` and then `file`.
fn send(socket: &OwnedFd, head: &[u8], mut file: File, stop: &AtomicBool) -> io::Result<()> {
    send_all(socket, head, stop)?;
    file.seek(SeekFrom::Start(0))?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            n => send_all(socket, &piece[..n], stop)?,
        }
    }
}

/// Sends `bytes` on a socket that does not block.
fn send_all(socket: &OwnedFd, mut bytes: &[u8], stop: &AtomicBool) -> io::Result<()> {
    let mut progress = Instant::now();
    while !bytes.is_empty() {
        match rustix::io::write(socket, bytes) {
            Ok(n) => {
                bytes = &bytes[n..];
                progress = Instant::now();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                if stop.load(Ordering::Relaxed) || progress.elapsed() > SILENCE_MAX {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let timeout = Timespec {
                    tv_sec: 0,
                    tv_nsec: 100_000_000,
                };
                let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
                match poll(&mut fds, Some(&timeout)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
