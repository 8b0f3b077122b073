//! [`RedoFile`]: the write that a process executes itself, in a file, so that the lease server can complete it if the process
//! dies in its middle.
//!
//! ```text
//!   0        8        16         24       64     4096                             69632
//!   │ active │ server │ position │ length │      │ paths of the servers' memories │ bytes of the write
//!
//!   client: record ─▶ active = 1 ─▶ the write, word by word ─▶ active = 0
//! ```
//!
//! A write of one word is not recorded: it is never torn.
//!
//! # Invariants
//! REDO-1  While a process is within a write of several words, the file has the whole write. So what a process that dies
//!     leaves behind is as if it had died between two verbs.
//! REDO-2  The lease server completes the write of a process that has ended before any client hears that the epoch has ended,
//!     and only once ([`CallerFence::is_out`](super::slots::CallerFence::is_out)). Until then the dead process holds the lock
//!     of the written memory, so no other client writes there.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farbank_pm::media::{Mapped, OpenError, share_path};
use farbank_pm::{Medium, Off, PersistCtx, WORD};

use super::memory::WordMemory;
use crate::service::LEASE_SERVER;
use crate::wire::FRAME_BYTES_MAX;

const ACTIVE_AT: Off = Off(0);
const SERVER_AT: Off = Off(8);
const PLACE_AT: Off = Off(16);
const LENGTH_AT: Off = Off(24);
const PATHS_AT: u64 = 4096;
/// Maximum bytes of a path, with its length.
const PATH_BYTES: usize = 256;
/// Servers whose memories a process can map.
pub(crate) const MAPPED_MAX: usize = 256;
const BYTES_AT: u64 = PATHS_AT + (PATH_BYTES * MAPPED_MAX) as u64;
const FILE_BYTES: u64 = BYTES_AT + FRAME_BYTES_MAX as u64;

/// Name of a file: the compute server, the number of its slot, and a number that no other owner of the slot has.
pub(crate) type RedoName = (u16, u8, u64);

/// Returns the path of a file beside the lease server's memory at `memory`.
fn redo_path(memory: &Path, (compute, part, owner): RedoName) -> PathBuf {
    let mut name = memory.as_os_str().to_owned();
    name.push(format!(".redo{compute}-{part}-{owner:x}"));
    name.into()
}

/// The recorded write of a thread of this process. Its drop removes the file.
pub(crate) struct RedoFile {
    medium: Mapped,
    path: PathBuf,
}

impl RedoFile {
    /// Creates the file `name` beside the lease server's memory. `memories` are the paths of the servers' memories, empty for a server that is not mapped.
    ///
    /// # Errors
    /// The file cannot be created or mapped, or a path is longer than 254 bytes.
    pub(crate) fn create(name: RedoName, memories: &[PathBuf]) -> Result<RedoFile, OpenError> {
        let lease_server = &memories[usize::from(LEASE_SERVER)];
        let path = redo_path(lease_server, name);
        let failed = |source: io::Error| OpenError::Io {
            path: path.clone(),
            doing: "create",
            source,
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        // The pages of the record are allocated when they are written. On hugetlbfs a length is a multiple of a page.
        let file = options.open(&path).map_err(failed)?;
        let page_bytes = file.metadata().map_err(failed)?.blksize().max(1);
        file.set_len(FILE_BYTES.next_multiple_of(page_bytes))
            .map_err(failed)?;
        let redo = RedoFile {
            medium: share_path(&path)?,
            path: path.clone(),
        };
        let mut ctx = PersistCtx::new(0);
        let mapped = memories.iter().enumerate();
        for (number, memory) in mapped.filter(|(_, memory)| !memory.as_os_str().is_empty()) {
            let memory = std::path::absolute(memory).map_err(failed)?;
            let bytes = memory.as_os_str().as_bytes();
            if bytes.len() + 2 > PATH_BYTES || number >= MAPPED_MAX {
                return Err(failed(io::ErrorKind::InvalidFilename.into()));
            }
            let mut stored = (bytes.len() as u16).to_le_bytes().to_vec();
            stored.extend_from_slice(bytes);
            redo.store(&mut ctx, PATHS_AT + (number * PATH_BYTES) as u64, &stored);
        }
        Ok(redo)
    }

    /// Removes the file of the `former` owner of a slot, which has ended. `lease_server` is the path of the lease server's memory.
    pub(crate) fn remove_former(lease_server: &Path, former: RedoName) {
        // Most owners have removed their file themselves.
        let _ = std::fs::remove_file(redo_path(lease_server, former));
    }

    fn store(&self, ctx: &mut PersistCtx, at: u64, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let mut at = Off(at);
        for word in words {
            self.medium.store(ctx, at, u64::from_le_bytes(*word));
            at = at.plus(WORD as u64);
        }
        if !rest.is_empty() {
            let mut word = [0; WORD];
            word[..rest.len()].copy_from_slice(rest);
            self.medium.store(ctx, at, u64::from_le_bytes(word));
        }
    }

    /// Records a write of `bytes` at position `place` of `server`'s memory (REDO-1). Returns whether it is in the file: it
    /// is not if the file system is full.
    pub(crate) fn begin(
        &self,
        ctx: &mut PersistCtx,
        server: u16,
        place: u64,
        bytes: &[u8],
    ) -> bool {
        self.store(ctx, BYTES_AT, bytes);
        self.medium.store(ctx, SERVER_AT, server.into());
        self.medium.store(ctx, PLACE_AT, place);
        self.medium.store(ctx, LENGTH_AT, bytes.len() as u64);
        self.medium.store(ctx, ACTIVE_AT, 1);
        self.medium
            .unreadable(Off(0), FILE_BYTES as usize)
            .is_none()
    }

    /// Ends the record: the write is complete.
    pub(crate) fn end(&self, ctx: &mut PersistCtx) {
        self.medium.store(ctx, ACTIVE_AT, 0);
    }
}

impl Drop for RedoFile {
    fn drop(&mut self) {
        // Without the removal the next owner of the number replaces the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Completes the write recorded in the file `name`, whose process has ended, if it was within one (REDO-2). `lease_server` is the memory of
/// this lease server, in the file `path`. Returns whether the write is complete. Nothing
/// can be completed without the file.
pub(super) fn complete_write<M: Medium>(
    lease_server: &WordMemory<M>,
    path: &Path,
    name: RedoName,
) -> bool {
    let path = redo_path(path, name);
    let Ok(redo) = share_path(&path) else {
        return !path.exists();
    };
    if redo.len() < FILE_BYTES || redo.load(ACTIVE_AT) == 0 {
        return true;
    }
    let (server, place) = (redo.load(SERVER_AT), redo.load(PLACE_AT));
    let length = redo.load(LENGTH_AT);
    if server >= MAPPED_MAX as u64 || length > FRAME_BYTES_MAX as u64 {
        return true;
    }
    let mut bytes = vec![0; length as usize];
    redo.copy_out(Off(BYTES_AT), &mut bytes);
    let mut ctx = PersistCtx::new(0);
    if server == u64::from(LEASE_SERVER) {
        return lease_server.rewrite(&mut ctx, place, &bytes);
    }
    let mut stored = [0; PATH_BYTES];
    redo.copy_out(Off(PATHS_AT + server * PATH_BYTES as u64), &mut stored);
    let [low, high, stored @ ..] = stored;
    let length = usize::from(u16::from_le_bytes([low, high])).min(stored.len());
    let member = PathBuf::from(std::ffi::OsString::from_vec(stored[..length].to_vec()));
    let member = share_path(&member).ok().map(WordMemory::attach);
    match member {
        Some(Ok(member)) if u64::from(member.server()) == server => {
            member.rewrite(&mut ctx, place, &bytes)
        }
        _ => false,
    }
}

impl<M: Medium> WordMemory<M> {
    /// Writes recorded `bytes` at position `place`. Returns whether the position is in the lock or host memory.
    fn rewrite(&self, ctx: &mut PersistCtx, place: u64, bytes: &[u8]) -> bool {
        let is_inside = self.has_place(place, bytes.len());
        if is_inside {
            self.write(ctx, place, bytes);
        }
        is_inside
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::media::create_path;

    use super::*;
    use crate::addr::GAddr;
    use crate::server::MemorySettings;

    #[test]
    fn a_recorded_write_is_completed_in_the_memory_of_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [0, 1].map(|number| folder.path().join(format!("memory{number}")));
        let memories = [0, 1].map(|number: u16| {
            let options = farbank_pm::media::OpenOptions {
                page_cache: true,
                ..Default::default()
            };
            let path = &paths[usize::from(number)];
            let made = create_path(path, 4 << 20, &options, &mut |_, _| {});
            let farbank_pm::media::AnyMedium::Mapped(medium) = made.unwrap() else {
                panic!("a mapped file")
            };
            WordMemory::open(medium, MemorySettings::new(number), 1).unwrap()
        });
        let mut ctx = PersistCtx::new(0);
        assert!(
            complete_write(&memories[0], &paths[0], (9, 1, 5)),
            "there is none"
        );
        let redo = RedoFile::create((9, 1, 5), &paths).unwrap();
        for server in [0, 1] {
            let memory = &memories[usize::from(server)];
            let bytes = vec![7 + server as u8; 1003];
            let place = memory
                .place(GAddr::host(server, 4096), bytes.len())
                .unwrap();
            let read = || {
                let mut found = vec![0; 1003];
                memory.read_into(place, &mut found);
                found
            };
            assert!(redo.begin(&mut ctx, server, place, &bytes));
            memory.write(&mut ctx, place, &bytes[..500]);
            assert!(complete_write(&memories[0], &paths[0], (9, 1, 5)));
            assert_eq!(read(), bytes);
            redo.end(&mut ctx);
            memory.write(&mut ctx, place, &[1; 1003]);
            assert!(complete_write(&memories[0], &paths[0], (9, 1, 5)));
            assert_eq!(read(), [1; 1003], "the record has ended");
        }
        drop(redo);
        assert!(!redo_path(&paths[0], (9, 1, 5)).exists());
    }
}
