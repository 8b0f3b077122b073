//! The file under a medium: locked, its space allocated and written, never sparse.
//!
//! # Invariants
//! PM-SPACE-1  While a [`PoolFile`] exists, there is no other one of the same file on this machine (`flock`). After its drop
//!     the file can be locked again, even if a child process has inherited the descriptor.
//! PM-SPACE-2  Every byte of a medium has been written once, so no later write or page fault
//!     needs space. A full disk is an error of `create` or `grow`, never a lost write or a SIGBUS.
//! PM-SPACE-3  The file is never shortened below the mapped length.
//!
//! A crash while a file grows leaves the file longer than its pool, with a tail that may have holes.
//! [`PoolFile::written_bytes`] stops at the first hole, and the next growth overwrites the tail.

use std::fs;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;
use std::{fmt, ptr};

use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::bad_blocks;
use super::explained::explained;
use super::file_lock::lock;
use super::open_error::OpenError;
use super::pool_path::{self, PendingPath, PoolPath};
use super::sysfs::{DevicePersistence, Sysfs};
use crate::medium::FileId;
use crate::offset::PAGE;
use crate::process_stamp::ProcessStamp;
use std::sync::Arc;

/// Progress callback of a long operation: bytes done, bytes in total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// System calls that read a file, write it and make it durable. Tests replace them to inject failures.
pub trait FileIo: Send + Sync + 'static {
    /// Reads up to `to.len()` bytes at byte `at` into `to`. Returns the number of bytes read, 0 at the file's end.
    fn pread(&self, file: BorrowedFd<'_>, to: &mut [u8], at: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(file, to, at)?)
    }
    /// Writes `parts`, one after another, at byte `at`. Returns the number of bytes written, which may be fewer.
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize>;
    /// Waits until the file's bytes and length are on the device.
    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Allocates `len` bytes of space at byte `at`, and lengthens the file if necessary.
    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()>;
    /// Returns the ranges of the file, in bytes, that the kernel lists as bad sectors of its device.
    fn unreadable(&self, file: BorrowedFd<'_>) -> io::Result<Vec<Range<u64>>> {
        bad_blocks::unreadable_ranges(file)
    }
    /// Drops pages from the page cache. The kernel keeps pages that are dirty or in use.
    fn drop_cached(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            file,
            at,
            NonZeroU64::new(len),
            Advice::DontNeed,
        )?)
    }
}

/// [`FileIo`] by system calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelIo;

impl FileIo for KernelIo {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(file, parts, at)?)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(file)?)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), at, len) {
            // `PoolFile::fill` writes the space anyway. Allocating it first only detects a full disk sooner.
            Err(Errno::OPNOTSUPP) => Ok(()),
            done => Ok(done?),
        }
    }
}

/// Kind of a pool file, which decides the media it can be opened as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A devdax device.
    Device {
        /// Length of the device in bytes.
        bytes: u64,
        /// Whether the kernel accepts `MAP_SYNC` for a mapping of the device.
        map_sync: bool,
    },
    /// A file on a DAX file system.
    Dax,
    /// A file in memory: tmpfs or ramfs.
    Memory,
    /// A file in memory on hugetlbfs: its length is a multiple of `page_bytes`, and it has no `write`.
    HugePages {
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// Any other file.
    Disk,
}

impl FileKind {
    /// Returns the bytes of a page, of which the length of a file or device of this kind is a multiple.
    pub(super) fn page_bytes(self) -> u64 {
        match self {
            FileKind::HugePages { page_bytes } => page_bytes,
            _ => PAGE,
        }
    }
}

/// Open pool file, locked except after [`PoolFile::share`].
pub(crate) struct PoolFile {
    file: fs::File,
    name: Arc<PoolPath>,
    io: Arc<dyn FileIo>,
    process: ProcessStamp,
}

impl fmt::Debug for PoolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

impl Drop for PoolFile {
    /// Unlocks the file, if this descriptor has locked it. Closing the descriptor is not enough: a forked child that has not called `exec` yet shares
    /// the lock and would keep it. Such a child must not unlock the file, because its parent still uses it.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl PoolFile {
    /// Opens and locks an existing file (PM-SPACE-1).
    pub(crate) fn open(path: &Path, io: Arc<dyn FileIo>) -> Result<PoolFile, OpenError> {
        let mut how = fs::OpenOptions::new();
        let file = how.read(true).write(true).open(path);
        let file = file.map_err(|e| OpenError::io(path, "open", e))?;
        lock(&file, path)?;
        Ok(PoolFile::named(file, path, io))
    }

    /// Opens a file that another process has locked, without a lock.
    pub(super) fn share(path: &Path, io: Arc<dyn FileIo>) -> Result<PoolFile, OpenError> {
        let mut how = fs::OpenOptions::new();
        let file = how.read(true).write(true).open(path);
        let file = file.map_err(|e| OpenError::io(path, "open", e))?;
        Ok(PoolFile::named(file, path, io))
    }

    fn named(file: fs::File, path: &Path, io: Arc<dyn FileIo>) -> PoolFile {
        PoolFile {
            file,
            name: PoolPath::new(path, true),
            io,
            process: ProcessStamp::current(),
        }
    }

    /// Creates and locks a new file (PM-SPACE-1). The file gets its name when it holds a complete pool.
    pub(crate) fn create(
        path: &Path,
        io: Arc<dyn FileIo>,
    ) -> Result<(PoolFile, PendingPath), OpenError> {
        let (file, pending) = pool_path::create(path)?;
        let name = pending.name();
        let process = ProcessStamp::current();
        let file = PoolFile {
            file,
            name,
            io,
            process,
        };
        Ok((file, pending))
    }

    /// Returns the path that the file has, or will have once it is published.
    pub(super) fn name(&self) -> &Arc<PoolPath> {
        &self.name
    }

    /// Returns the path that the file has, or will have once it holds a complete pool.
    pub(crate) fn path(&self) -> &Path {
        self.name.path()
    }

    /// Returns the identity of the file. See [`file_id`].
    pub(crate) fn id(&self) -> Option<FileId> {
        file_id(&self.file)
    }

    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        self.file.metadata()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn io(&self) -> &Arc<dyn FileIo> {
        &self.io
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns the offset of the first hole, or the length of the file if it has none.
    pub(crate) fn written_bytes(&self) -> io::Result<u64> {
        let bytes = self.bytes()?;
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(0)) {
            Ok(hole) => Ok(hole.min(bytes)),
            // An empty file, or a file system that does not report holes.
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(bytes),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads `to.len()` bytes at byte `at` into `to`. Bytes behind the end of the file leave `to` unchanged.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            match self.file.read_at(&mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of `parts` at byte `at`, in as few calls as the kernel allows.
    pub(crate) fn write(&self, parts: &[&[u8]], mut at: u64) -> io::Result<()> {
        const PARTS_PER_CALL: usize = 1024;
        let filled = parts.iter().filter(|part| !part.is_empty());
        let mut slices = filled.map(|part| IoSlice::new(part)).collect::<Vec<_>>();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match self
                .io
                .pwritev(self.fd(), &rest[..rest.len().min(PARTS_PER_CALL)], at)
            {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads the bytes of `part` and writes them back unchanged.
    pub(super) fn rewrite(&self, part: Range<u64>) -> io::Result<()> {
        const PIECE_BYTES: u64 = 1 << 20;
        let mut piece = vec![0; PIECE_BYTES.min(part.end - part.start) as usize];
        for from in part.clone().step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(part.end - from) as usize;
            self.read(from, &mut piece[..len])?;
            self.write(&[&piece[..len]], from)?;
        }
        Ok(())
    }

    /// Calls `fdatasync` once. After an error no write may be reported as durable, and a retry
    /// proves nothing: the kernel may have dropped the pages that it failed to write.
    pub(crate) fn sync(&self) -> io::Result<()> {
        loop {
            match self.io.fdatasync(self.fd()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Allocates bytes `from..to`, writes zeros there and calls `sync` to make them durable (PM-SPACE-2). On hugetlbfs both are
    /// multiples of a page. On an error the file is truncated to `from` bytes.
    pub(crate) fn fill(
        &self,
        from: u64,
        to: u64,
        progress: Progress<'_>,
        mut sync: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let done = self.fill_all(from, to, progress, &mut sync);
        if done.is_err() {
            // If truncation fails, the space stays allocated until the pool grows or the file is removed.
            let _ = rustix::fs::ftruncate(&self.file, from);
        }
        done
    }

    fn fill_all(
        &self,
        from: u64,
        to: u64,
        progress: Progress<'_>,
        sync: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        const PARTS: usize = 16;
        /// Bytes written between syncs, so that the reported progress is on the device.
        const SYNC_BYTES: u64 = 256 << 20;
        let call_bytes = (PARTS * ZEROS.len()) as u64;
        check_limit(to)?;
        // hugetlbfs allocates pages of zeros.
        let is_zeroed = matches!(self.file_kind()?, FileKind::HugePages { .. });
        if to > from && !is_zeroed {
            self.allocate(from, to - from)?;
        }
        let mut at = from;
        while at < to {
            let turn = to.min(at + SYNC_BYTES);
            if is_zeroed {
                self.allocate(at, turn - at)?;
                at = turn;
            }
            while at < turn {
                let run = call_bytes.min(turn - at);
                let parts: [&[u8]; PARTS] = std::array::from_fn(|i| {
                    let rest = run.saturating_sub((i * ZEROS.len()) as u64);
                    &ZEROS[..ZEROS.len().min(rest as usize)]
                });
                self.write(&parts, at)?;
                at += run;
            }
            sync()?;
            progress(at - from, to - from);
        }
        Ok(())
    }

    /// As [`PoolFile::fill`], to grow an existing pool. The error names the file and both lengths.
    pub(crate) fn grow(
        &self,
        from: u64,
        to: u64,
        sync: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        self.fill(from, to, &mut |_, _| {}, sync).map_err(|error| {
            let path = self.path().display();
            let text = format!("cannot grow {path} from {from} to {to} bytes: {error}");
            explained(error, text)
        })
    }

    /// Returns the ranges that the kernel lists as bad sectors. See [`FileIo::unreadable`].
    pub(super) fn unreadable(&self) -> io::Result<Vec<Range<u64>>> {
        self.io.unreadable(self.fd())
    }

    /// Drops the pages of `part` from the page cache. See [`FileIo::drop_cached`].
    pub(super) fn drop_cached(&self, part: Range<u64>) -> io::Result<()> {
        self.io
            .drop_cached(self.fd(), part.start, part.end - part.start)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        loop {
            match self.io.fallocate(self.fd(), at, len) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Truncates the file to `len` bytes. The bytes behind `len` must not be mapped (PM-SPACE-3).
    pub(crate) fn truncate(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.file, len)?)
    }

    /// Determines the kind of the file.
    ///
    /// # Errors
    /// The path is neither a file nor a devdax device, or a system call failed.
    pub(crate) fn file_kind(&self) -> io::Result<FileKind> {
        const TMPFS: u32 = 0x0102_1994;
        const RAMFS: u32 = 0x8584_58f6;
        const HUGETLBFS: u32 = 0x9584_58f6;
        let metadata = self.file.metadata()?;
        if metadata.file_type().is_char_device() {
            return Ok(FileKind::Device {
                bytes: Sysfs::system().dax_bytes(metadata.rdev())?,
                map_sync: self.supports_map_sync(),
            });
        }
        if !metadata.is_file() {
            return Err(io::Error::other("neither a file nor a devdax device"));
        }
        let file_system = rustix::fs::fstatfs(&self.file)?;
        Ok(match file_system.f_type as u32 {
            TMPFS | RAMFS => FileKind::Memory,
            HUGETLBFS => FileKind::HugePages {
                page_bytes: file_system.f_bsize as u64,
            },
            _ if self.supports_map_sync() => FileKind::Dax,
            _ => FileKind::Disk,
        })
    }

    /// Returns whether the file can be mapped with `MAP_SYNC`. Only an attempt to map it is reliable.
    fn supports_map_sync(&self) -> bool {
        const DEVICE_ALIGN: usize = 2 << 20;
        let device = self
            .file
            .metadata()
            .is_ok_and(|m| m.file_type().is_char_device());
        let len = if device { DEVICE_ALIGN } else { PAGE as usize };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        // SAFETY: a new mapping at an address that the kernel chooses. It is never accessed.
        match unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, &self.file, 0) } {
            Ok(at) => {
                // SAFETY: unmaps the mapping just made, to which no reference exists.
                let _ = unsafe { rustix::mm::munmap(at, len) };
                true
            }
            Err(_) => false,
        }
    }

    /// Returns whether the kernel reports that the platform flushes the CPU caches on a power cut (eADR).
    pub(crate) fn caches_are_durable(&self) -> bool {
        let Ok(metadata) = self.file.metadata() else {
            return false;
        };
        let (class, device) = match metadata.file_type().is_char_device() {
            true => ("char", metadata.rdev()),
            false => ("block", metadata.dev()),
        };
        Sysfs::system().persistence(class, device) == DevicePersistence::Caches
    }
}

/// Returns the inode number and creation time of the file. `None` where the file system does not keep inode numbers
/// across mounts.
#[must_use]
pub fn file_id(file: &fs::File) -> Option<FileId> {
    /// `f_type` of FUSE, CIFS and SMB, which may assign other inode numbers at the next mount.
    const INVENTED: [u32; 4] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42, 0x517b];
    let kind = rustix::fs::fstatfs(file).ok()?.f_type as u32;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.ino() == 0 || INVENTED.contains(&kind) {
        return None;
    }
    let born = metadata.created().ok();
    let born = born.and_then(|born| born.duration_since(SystemTime::UNIX_EPOCH).ok());
    Some(FileId {
        inode: metadata.ino(),
        created_ns: born.map_or(0, |born| born.as_nanos() as u64),
    })
}

/// Checks that this process may write a file of `bytes` bytes. Without the check, a write beyond the limit would end
/// the process by SIGXFSZ.
pub(super) fn check_limit(bytes: u64) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit {
        Some(limit) if bytes > limit => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "a file of {bytes} bytes exceeds this process's limit of {limit} bytes (RLIMIT_FSIZE): {}",
                io::Error::from(Errno::FBIG)
            ),
        )),
        _ if i64::try_from(bytes).is_err() => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_pool_file_is_unlocked_even_if_a_child_inherited_its_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let (file, name) = PoolFile::create(&path, Arc::new(KernelIo)).unwrap();
        name.publish().unwrap();
        let inherited = file.file.try_clone().unwrap();
        drop(file);
        PoolFile::open(&path, Arc::new(KernelIo)).unwrap();
        drop(inherited);
    }
}
