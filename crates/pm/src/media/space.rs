//! The file under a medium: locked, its space allocated and written, never sparse.
//!
//! # Invariants
//! S1  While a [`PoolFile`] lives, nobody else holds one of the same file (`flock`); when it is gone,
//!     anybody can, whoever may have inherited its descriptor.
//! S2  Every byte a medium serves has been written once, so that no later write or page fault
//!     needs space: a full disk is an error of `create` or `grow`, never a lost write or a SIGBUS.
//! S3  The file is never shortened below what is mapped.
//!
//! A crash while a file grows leaves it longer than its pool, with a tail that may have holes;
//! [`PoolFile::written_bytes`] stops at the first one, and the next growth writes over it.

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
use super::open::OpenError;
use super::pool_path::{self, PendingPath, PoolPath};
use super::sysfs::{DevicePersistence, Sysfs};
use super::window::PAGE;
use crate::medium::FileId;
use crate::process_stamp::ProcessStamp;
use std::sync::Arc;

/// Called with the bytes done and the bytes in all, while something long goes on.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The system calls that read a file's bytes and make them durable, so that tests can have them fail.
pub trait FileIo: Send + Sync + 'static {
    /// Reads some of the bytes from byte `at` on into `to`; answers with how many, 0 at the file's end.
    fn pread(&self, file: BorrowedFd<'_>, to: &mut [u8], at: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(file, to, at)?)
    }
    /// Writes some of `parts` at byte `at`; answers with how many bytes.
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize>;
    /// Returns once the file's bytes and length are on the device.
    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Allocates `len` bytes of space at `at`, lengthening the file if need be.
    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()>;
    /// Parts of the file that its device is known not to read, in bytes.
    fn unreadable(&self, file: BorrowedFd<'_>) -> io::Result<Vec<Range<u64>>> {
        bad_blocks::of(file)
    }
    /// Drops pages from the page cache, as far as the kernel does so: not those in use or dirty.
    fn drop_cached(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            file,
            at,
            NonZeroU64::new(len),
            Advice::DontNeed,
        )?)
    }
}

/// [`Io`] as the kernel does it.
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
            // Writing the space is what counts; allocating it first only finds out sooner.
            Err(Errno::OPNOTSUPP) => Ok(()),
            done => Ok(done?),
        }
    }
}

/// Where a pool file lives, which decides the media it can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A devdax device of so many bytes.
    Device {
        /// Its length.
        bytes: u64,
        /// Whether the kernel lets a mapping ask for `MAP_SYNC`.
        map_sync: bool,
    },
    /// A file on a DAX file system.
    Dax,
    /// A file in memory: tmpfs or ramfs.
    Memory,
    /// Any other file.
    Disk,
}

/// An open, locked pool file.
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
    /// Closing is not enough: a child that was forked and has not come to its `exec` yet has the same
    /// lock, and would keep it. Nor may such a child let go of the lock: it is its parent's.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl PoolFile {
    /// Opens and locks an existing file (S1).
    pub(crate) fn open(path: &Path, io: Arc<dyn FileIo>) -> Result<PoolFile, OpenError> {
        let mut how = fs::OpenOptions::new();
        let file = how.read(true).write(true).open(path);
        let file = file.map_err(|e| OpenError::io(path, "open", e))?;
        lock(&file, path)?;
        let name = PoolPath::new(path, true);
        let process = ProcessStamp::current();
        Ok(PoolFile {
            file,
            name,
            io,
            process,
        })
    }

    /// Makes and locks a new file, which gets its name when it is a whole pool (S1).
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

    /// The name the file has, or will have.
    pub(super) fn name(&self) -> &Arc<PoolPath> {
        &self.name
    }

    /// Where the file is, or will be when it is a whole pool.
    pub(crate) fn path(&self) -> &Path {
        self.name.path()
    }

    /// See [`file_id`].
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

    /// Bytes the file is long.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Bytes up to the first hole, or to the end.
    pub(crate) fn written_bytes(&self) -> io::Result<u64> {
        let bytes = self.bytes()?;
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(0)) {
            Ok(hole) => Ok(hole.min(bytes)),
            // An empty file, or a file system that does not tell.
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(bytes),
            Err(e) => Err(e.into()),
        }
    }

    /// Fills `to` from byte `at` on; what the file does not have stays as it was.
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

    /// Writes the bytes of `part` again, as they are.
    pub(super) fn write_again(&self, part: Range<u64>) -> io::Result<()> {
        const PIECE_BYTES: u64 = 1 << 20;
        let mut piece = vec![0; PIECE_BYTES.min(part.end - part.start) as usize];
        for from in part.clone().step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(part.end - from) as usize;
            self.read(from, &mut piece[..len])?;
            self.write(&[&piece[..len]], from)?;
        }
        Ok(())
    }

    /// One `fdatasync`. After an error nothing may be called durable any more, and trying again
    /// would prove nothing: the kernel may have dropped what it failed to write.
    pub(crate) fn sync(&self) -> io::Result<()> {
        loop {
            match self.io.fdatasync(self.fd()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Allocates bytes `from..to`, writes zeros there and has `sync` make them durable (S2). On an
    /// error the file is `from` bytes long again.
    pub(crate) fn fill(
        &self,
        from: u64,
        to: u64,
        progress: Progress<'_>,
        mut sync: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let done = self.fill_all(from, to, progress, &mut sync);
        if done.is_err() {
            // Space that cannot be given back is given back when the pool grows or goes.
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
        /// Written between syncs, so that progress means the device's.
        const SYNC_BYTES: u64 = 256 << 20;
        let call_bytes = (PARTS * ZEROS.len()) as u64;
        check_limit(to)?;
        if to > from {
            self.allocate(from, to - from)?;
        }
        let mut at = from;
        while at < to {
            let turn = to.min(at + SYNC_BYTES);
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

    /// As [`PoolFile::fill`], of a pool that grows. The error names the file and both sizes.
    pub(crate) fn grow(
        &self,
        from: u64,
        to: u64,
        sync: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        self.fill(from, to, &mut |_, _| {}, sync).map_err(|error| {
            let path = self.path().display();
            let what = format!("cannot grow {path} from {from} to {to} bytes: {error}");
            io::Error::new(error.kind(), what)
        })
    }

    /// Parts that its device is known not to read: see [`Io::unreadable`].
    pub(super) fn unreadable(&self) -> io::Result<Vec<Range<u64>>> {
        self.io.unreadable(self.fd())
    }

    /// Drops pages from the page cache: see [`Io::drop_cached`].
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

    /// Gives up bytes beyond `len`, which must not be mapped (S3).
    pub(crate) fn truncate(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.file, len)?)
    }

    /// Finds out where the file lives.
    pub(crate) fn place(&self) -> io::Result<FileKind> {
        const TMPFS: u32 = 0x0102_1994;
        const RAMFS: u32 = 0x8584_58f6;
        let metadata = self.file.metadata()?;
        if metadata.file_type().is_char_device() {
            return Ok(FileKind::Device {
                bytes: Sysfs::system().dax_bytes(metadata.rdev())?,
                map_sync: self.maps_sync(),
            });
        }
        if !metadata.is_file() {
            return Err(io::Error::other("neither a file nor a devdax device"));
        }
        let file_system = rustix::fs::fstatfs(&self.file)?.f_type as u32;
        Ok(match file_system {
            TMPFS | RAMFS => FileKind::Memory,
            _ if self.maps_sync() => FileKind::Dax,
            _ => FileKind::Disk,
        })
    }

    /// Whether a synchronous mapping is to be had: the question itself is the only reliable answer.
    fn maps_sync(&self) -> bool {
        const DEVICE_ALIGN: usize = 2 << 20;
        let device = self
            .file
            .metadata()
            .is_ok_and(|m| m.file_type().is_char_device());
        let len = if device { DEVICE_ALIGN } else { PAGE as usize };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        // SAFETY: a new mapping at an address of the kernel's choice, accessed by nobody.
        match unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, &self.file, 0) } {
            Ok(at) => {
                // SAFETY: the mapping just made.
                let _ = unsafe { rustix::mm::munmap(at, len) };
                true
            }
            Err(_) => false,
        }
    }

    /// Whether the kernel says that caches are flushed by the platform in a power cut (eADR).
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

/// The file, as the file system knows it; `None` where that does not last.
#[must_use]
pub fn file_id(file: &fs::File) -> Option<FileId> {
    /// FUSE, CIFS and SMB invent inode numbers, or may: others at the next mount.
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
        born_ns: born.map_or(0, |born| born.as_nanos() as u64),
    })
}

/// Whether this process may make a file `bytes` long. Trying would end it, by a SIGXFSZ.
pub(super) fn check_limit(bytes: u64) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit {
        Some(limit) if bytes > limit => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "the process may write files of {limit} bytes at most (RLIMIT_FSIZE): {}",
                io::Error::from(Errno::FBIG)
            ),
        )),
        _ if i64::try_from(bytes).is_err() => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// Locks `file`, the pool at `path`, against everyone else (S1).
pub(super) fn lock(file: &fs::File, path: &Path) -> Result<(), OpenError> {
    let locked = rustix::io::retry_on_intr(|| {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
    });
    match locked {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse {
            path: path.into(),
            by: lock_holder(file),
        }),
        Err(e) => Err(OpenError::io(path, "lock", e.into())),
    }
}

/// Who holds the lock on `file`, as far as the kernel tells: process id and name.
fn lock_holder(file: &fs::File) -> Option<(u32, String)> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (
        rustix::fs::major(metadata.dev()),
        rustix::fs::minor(metadata.dev()),
    );
    let inode = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| holder_in(line, &inode))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim().to_owned()))
}

/// The process id in a line of `/proc/locks` like `3: FLOCK  ADVISORY  WRITE 812 fe:00:4711 0 EOF`.
fn holder_in(line: &str, inode: &str) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    let kind = fields.next()?;
    let pid = fields.nth(2)?.parse().ok()?;
    (kind == "FLOCK" && fields.next()? == inode).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_gone_is_free_though_a_child_inherited_its_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let (file, name) = PoolFile::create(&path, Arc::new(KernelIo)).unwrap();
        name.publish().unwrap();
        let inherited = file.file.try_clone().unwrap();
        drop(file);
        PoolFile::open(&path, Arc::new(KernelIo)).unwrap();
        drop(inherited);
    }

    #[test]
    fn the_holder_of_a_lock_is_read_from_the_kernels_list() {
        let line = "3: FLOCK  ADVISORY  WRITE 812 fe:00:4711 0 EOF";
        assert_eq!(holder_in(line, "fe:00:4711"), Some(812));
        assert_eq!(holder_in(line, "fe:00:4712"), None);
        assert_eq!(
            holder_in(
                "4: POSIX  ADVISORY  WRITE 812 fe:00:4711 0 EOF",
                "fe:00:4711"
            ),
            None
        );
        assert_eq!(
            holder_in("3: -> FLOCK  ADVISORY  WRITE 812", "fe:00:4711"),
            None
        );
        assert_eq!(holder_in("", "fe:00:4711"), None);
    }
}
