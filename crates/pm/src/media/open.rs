//! Which medium a path becomes.
//!
//! | the path is                     | medium           | can be asked for |
//! |---------------------------------|------------------|------------------|
//! | a devdax device                 | [`Mapped`], DAX  |                  |
//! | a file that maps with `MAP_SYNC`| [`Mapped`], DAX  | [`File`]         |
//! | a file on tmpfs or ramfs        | [`Mapped`], DRAM | [`File`]         |
//! | any other file                  | [`File`]         | [`Mapped`], DRAM: see [`OpenOptions::page_cache`] |
//!
//! What was asked for and cannot be is an error, never another medium.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{error, fmt};

use super::file::{File, SyncPolicy};
use super::filesystem::{self, FileSystemReport};
use super::lease::{FreeLease, Lease, WaitNotice};
use super::mapped::Mapped;
use super::page_cache;
use super::pool_path::PendingPath;
use super::reader::ReadMode;
use super::signature;
use super::space::{FileIo, FileKind, KernelIo, PoolFile, Progress, check_limit};
use super::sysfs::Sysfs;
use super::window::PAGE;
use crate::medium::{Caps, Kind, Medium, Off, Poisoned};
use crate::pool;
use std::sync::Arc;

/// How to open or create a medium.
#[derive(Clone)]
pub struct OpenOptions {
    /// The medium that must be had; `None` takes what the path is best at.
    pub medium: Option<Kind>,
    /// When a [`File`]'s writes are made durable. The other media do not ask.
    pub sync: SyncPolicy,
    /// How the bytes of a [`File`] are read. The other media do not ask.
    pub read_by: ReadMode,
    /// Whether an ordinary file is mapped instead, as [`Mapped`] DRAM whose bytes are in the page cache: fast, and
    /// safe from a kill, but not from a power cut. On a file in memory, too, lines are not written back then. For
    /// those who can start empty after a restart of the machine: writes also go on after the file was removed.
    pub page_cache: bool,
    /// Whether a file system is taken that a pool should not be on, because other machines can have the file
    /// open too or because it does not sync; and a file whose blocks remain shared with a copy of it.
    pub accept_file_system: bool,
    /// Whether a new pool may overwrite what is on a device, a pool too.
    pub force: bool,
    /// Told, in one line for people, that an open waits: for a host that may have the pool open.
    pub notice: Option<WaitNotice>,
    /// The system calls; tests have them fail.
    pub io: Arc<dyn FileIo>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            medium: None,
            sync: SyncPolicy::default(),
            read_by: ReadMode::default(),
            page_cache: false,
            accept_file_system: false,
            force: false,
            notice: None,
            io: Arc::new(KernelIo),
        }
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("medium", &self.medium)
            .field("sync", &self.sync)
            .finish_non_exhaustive()
    }
}

/// A real medium of either type. Match on it once: what stands on it is generic.
#[derive(Debug)]
pub enum AnyMedium {
    /// DAX or DRAM.
    Mapped(Mapped),
    /// An ordinary file.
    File(File),
}

impl AnyMedium {
    /// What the medium promises.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        match self {
            AnyMedium::Mapped(medium) => medium.caps(),
            AnyMedium::File(medium) => medium.caps(),
        }
    }

    /// Bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            AnyMedium::Mapped(medium) => medium.len(),
            AnyMedium::File(medium) => medium.len(),
        }
    }

    /// Makes every page present now, instead of at its first use.
    pub fn prefault(&self, progress: Progress<'_>) {
        match self {
            AnyMedium::Mapped(medium) => medium.prefault(progress),
            AnyMedium::File(medium) => medium.prefault(progress),
        }
    }

    /// Has its capabilities tell what was found at its place.
    fn with(mut self, found: FileSystemReport) -> AnyMedium {
        let caps = match &mut self {
            AnyMedium::Mapped(medium) => medium.caps_mut(),
            AnyMedium::File(medium) => medium.caps_mut(),
        };
        caps.warnings.extend(found.warnings);
        if let Some(survives) = found.survives {
            caps.survives = survives.into();
        }
        if let Some(limits) = found.limits {
            caps.survives = format!("{}; here {limits}", caps.survives);
        }
        self
    }

    /// Closes it: see [`File::close`]. The other media have nothing left to do.
    pub fn close(self) -> Result<(), Poisoned> {
        match self {
            AnyMedium::Mapped(_) => Ok(()),
            AnyMedium::File(medium) => medium.close(),
        }
    }
}

/// Why a medium could not be opened or created.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A system call failed.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: "open", "lock", ...
        doing: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// Another process, or this one, has the pool open.
    InUse {
        /// The file.
        path: PathBuf,
        /// Process id and name, as far as the kernel tells.
        by: Option<(u32, String)>,
    },
    /// Another host has the file open: its lease is counted up.
    OtherHost {
        /// The file.
        path: PathBuf,
        /// The host's name.
        host: String,
    },
    /// There is something at the path where a new pool was to be made.
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The device has something on it already. See [`OpenOptions::force`].
    Occupied {
        /// The device.
        path: PathBuf,
        /// What is on it.
        what: String,
    },
    /// The device or file system has no room. Nothing was left behind.
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The file has a hole where there should be a pool.
    Sparse {
        /// The file.
        path: PathBuf,
        /// The hole's first byte.
        hole: u64,
        /// Bytes that should have been written.
        bytes: u64,
    },
    /// The file is shorter than a superblock.
    TooShort {
        /// The file.
        path: PathBuf,
        /// Bytes it has.
        bytes: u64,
    },
    /// A pool should not be on this file system. See [`OpenOptions::accept_file_system`].
    FileSystem {
        /// The file.
        path: PathBuf,
        /// The file system's name.
        name: String,
        /// What could go wrong there.
        why: &'static str,
    },
    /// The file shares blocks with a copy of it, and could not be given its own.
    Shared {
        /// The file.
        path: PathBuf,
        /// Bytes of such blocks; 0 if they could not be counted.
        bytes: u64,
        /// What was tried said this.
        source: io::Error,
    },
    /// A mapping of the file does not show what is written to it.
    Incoherent {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read past the page cache ([`ReadBy::Direct`]).
    NoDirectReads {
        /// The file.
        path: PathBuf,
        /// The file system's name.
        file_system: String,
        /// What was tried, and its error.
        source: io::Error,
    },
    /// The medium asked for is not to be had here.
    Unavailable {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        medium: Kind,
        /// What the path is instead.
        why: &'static str,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, doing: &'static str, source: io::Error) -> OpenError {
        OpenError::Io {
            path: path.into(),
            doing,
            source,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io {
                path,
                doing,
                source,
            } => {
                write!(f, "cannot {doing} {}: {source}", path.display())
            }
            OpenError::InUse { path, by } => {
                write!(f, "{} is in use", path.display())?;
                match by {
                    Some((pid, name)) => write!(f, " by process {pid} ({name})"),
                    None => write!(f, " by another process"),
                }
            }
            OpenError::OtherHost { path, host } => write!(
                f,
                "{} is in use on another host, {host:?}: end the server there first",
                path.display()
            ),
            OpenError::Exists { path } => write!(
                f,
                "{} exists already: open it, or remove it to make a new pool there",
                path.display()
            ),
            OpenError::Occupied { path, what } => write!(
                f,
                "{} has {what} on it already, which a new pool would overwrite",
                path.display()
            ),
            OpenError::NoSpace { path, bytes } => {
                write!(f, "no room for the {bytes} bytes of {}", path.display())
            }
            OpenError::Sparse { path, hole, bytes } => write!(
                f,
                "{} has a hole at byte {hole}, before the end of the pool at {bytes}: writing there \
                 could run out of space. If it was copied, copy it again with cp --sparse=never; \
                 if its creation was interrupted, remove it; if its file system stores zeros as \
                 holes (ZFS with compression does), turn that off for it",
                path.display()
            ),
            OpenError::TooShort { path, bytes } => write!(
                f,
                "{} is not a pool: it has {bytes} bytes, fewer than the {} of a superblock",
                path.display(),
                pool::HEAD_BYTES
            ),
            OpenError::FileSystem { path, name, why } => {
                write!(
                    f,
                    "{} is on {name}, where no pool should be: {why}",
                    path.display()
                )
            }
            OpenError::Shared {
                path,
                bytes,
                source,
            } => write!(
                f,
                "{} shares {bytes} bytes with a copy of it (reflink, snapshot) and could not be given \
                 blocks of its own: {source}. Writing there could run out of space",
                path.display()
            ),
            OpenError::Incoherent { path } => write!(
                f,
                "{}: a mapping of the file does not show what is written to it, so that reads would be \
                 wrong: this file system cannot hold a pool",
                path.display()
            ),
            OpenError::NoDirectReads {
                path,
                file_system,
                source,
            } => write!(
                f,
                "{} is on {file_system}, where direct reads are not to be had ({source})",
                path.display()
            ),
            OpenError::Unavailable { path, medium, why } => {
                write!(
                    f,
                    "{} cannot be the {} medium: it is {why}",
                    path.display(),
                    medium.name()
                )
            }
        }
    }
}

impl error::Error for OpenError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            OpenError::Io { source, .. }
            | OpenError::Shared { source, .. }
            | OpenError::NoDirectReads { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Opens the medium of the pool at `path`, locked against everyone else. It has as many bytes as
/// were ever written, rounded down to whole pages; whether they are a pool is for
/// [`Pool::open`](crate::pool::Pool::open) to say.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<AnyMedium, OpenError> {
    let failed = |doing| move |e| OpenError::io(path, doing, e);
    let file = PoolFile::open(path, Arc::clone(&options.io))?;
    let place = file.place().map_err(failed("open"))?;
    let kind = choose(path, place, options)?;
    let mut found = filesystem::examine(&file, place, options)?;
    check_reads(&file, kind, options)?;
    // Before anything is written: what is cached here may be older than what another host has written since.
    let free = match place {
        FileKind::Disk | FileKind::Dax if is_pool(&file) => free_lease(&file, options)?,
        _ => None,
    };
    if kind == Kind::File && place == FileKind::Disk {
        page_cache::evict(&file).map_err(failed("bring to its device what is cached of"))?;
    }
    let bytes = match place {
        FileKind::Device { bytes, .. } => bytes,
        FileKind::Dax | FileKind::Memory | FileKind::Disk => {
            let bytes = file.bytes().map_err(failed("read"))?;
            if bytes < pool::HEAD_BYTES {
                let path = path.into();
                return Err(OpenError::TooShort { path, bytes });
            }
            written(&file)?
        }
    };
    if kind == Kind::File {
        check_limit(bytes).map_err(failed("write all of"))?;
    }
    if place == FileKind::Disk {
        filesystem::prepare(&file, bytes, options, &mut found)?;
    }
    let bytes = bytes / PAGE * PAGE;
    // Last: a file that is refused is left as it was, a hole in its first page is not filled.
    let lease = free.and_then(FreeLease::take);
    let opened = medium(file, place, kind, bytes, options, lease).map_err(failed("map"))?;
    Ok(opened.with(found))
}

/// Makes a new medium of `bytes`, rounded up to whole pages, at `path`: space is allocated, written
/// and, as far as the medium goes, durable on `Ok`. An existing file is refused, and so is a device that has
/// anything on it ([`OpenOptions::force`]); on an error no file is left behind. A device becomes a medium as a
/// whole.
///
/// The file has its name before there is a pool in it: for a pool that must survive a kill of its
/// creation see [`prepare_path`].
pub fn create_path(
    path: &Path,
    bytes: u64,
    options: &OpenOptions,
    progress: Progress<'_>,
) -> Result<AnyMedium, OpenError> {
    let (medium, name) = prepare_path(path, bytes, options, progress)?;
    name.publish()?;
    Ok(medium)
}

/// As [`create_path`], but the file gets its name only from [`PendingName::publish`], which the caller
/// calls when a whole pool is on the medium. A process that is killed before that leaves nothing at
/// `path`, and what it leaves beside it the next creation removes.
pub fn prepare_path(
    path: &Path,
    bytes: u64,
    options: &OpenOptions,
    progress: Progress<'_>,
) -> Result<(AnyMedium, PendingPath), OpenError> {
    if fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device()) {
        let medium = create_on_device(path, bytes, options, progress)?;
        return Ok((medium, PendingPath::none(path)));
    }
    let (file, name) = PoolFile::create(path, Arc::clone(&options.io))?;
    let whole = bytes.checked_next_multiple_of(PAGE);
    let whole = whole.ok_or_else(|| OpenError::NoSpace {
        path: path.into(),
        bytes,
    })?;
    let medium = create_in(file, path, whole, options, progress)?;
    Ok((medium, name))
}

fn create_in(
    file: PoolFile,
    path: &Path,
    bytes: u64,
    options: &OpenOptions,
    progress: Progress<'_>,
) -> Result<AnyMedium, OpenError> {
    let failed = |doing| move |e| OpenError::io(path, doing, e);
    let place = file.place().map_err(failed("create"))?;
    let kind = choose(path, place, options)?;
    filesystem::overwrite_in_place(&file);
    let found = filesystem::examine(&file, place, options)?;
    check_reads(&file, kind, options)?;
    file.fill(0, bytes, progress, || file.sync())
        .map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => OpenError::NoSpace {
                path: path.into(),
                bytes,
            },
            _ => OpenError::io(path, "write", e),
        })?;
    let hole = file.written_bytes().map_err(failed("look for holes in"))?;
    if hole < bytes {
        return Err(OpenError::Sparse {
            path: path.into(),
            hole,
            bytes,
        });
    }
    if place == FileKind::Disk && bytes >= pool::HEAD_BYTES {
        filesystem::self_test(&file, options.read_by)?;
    }
    let lease = match place {
        FileKind::Disk | FileKind::Dax if bytes >= pool::HEAD_BYTES => {
            free_lease(&file, options)?.and_then(FreeLease::take)
        }
        _ => None,
    };
    let made = medium(file, place, kind, bytes, options, lease).map_err(failed("map"))?;
    Ok(made.with(found))
}

fn create_on_device(
    path: &Path,
    bytes: u64,
    options: &OpenOptions,
    progress: Progress<'_>,
) -> Result<AnyMedium, OpenError> {
    let opened = open_path(path, options)?;
    let AnyMedium::Mapped(mapped) = &opened else {
        unreachable!("a device is mapped")
    };
    check_free(mapped, path, bytes, options.force)?;
    mapped.wipe(progress);
    Ok(opened)
}

/// Whether a new pool of `bytes` may be made on the device at `path`. Changes nothing.
fn check_free(mapped: &Mapped, path: &Path, bytes: u64, force: bool) -> Result<(), OpenError> {
    if bytes > mapped.len() {
        return Err(OpenError::NoSpace {
            path: path.into(),
            bytes,
        });
    }
    if force {
        return Ok(());
    }
    let what = match pool::is_pool(mapped) {
        true => Some("a pool".to_owned()),
        false => {
            let mut begin = vec![0; signature::LOOKED_AT.min(mapped.len() as usize)];
            mapped.copy_out(Off(0), &mut begin);
            signature::of(&begin)
        }
    };
    what.map_or(Ok(()), |what| {
        let path = path.into();
        Err(OpenError::Occupied { path, what })
    })
}

/// Bytes of the devdax device at `path`, all of which a new pool there takes; `None` if it is a file, or not
/// there. Nothing is opened.
///
/// # Errors
/// The kernel does not say how long the device is.
pub fn device_bytes(path: &Path) -> Result<Option<u64>, OpenError> {
    let metadata = fs::metadata(path).ok();
    let device = metadata.filter(|m| m.file_type().is_char_device());
    let bytes = device.map(|device| Sysfs::system().dax_bytes(device.rdev()));
    bytes.transpose().map_err(|e| OpenError::io(path, "use", e))
}

/// Bytes of `file` that a medium may serve: up to the first hole, which must not be in the pool.
fn written(file: &PoolFile) -> Result<u64, OpenError> {
    let failed = |e| OpenError::io(file.path(), "read", e);
    let (bytes, written) = (
        file.bytes().map_err(failed)?,
        file.written_bytes().map_err(failed)?,
    );
    if written < bytes {
        let copies = pool::COPIES.map(|at| {
            let mut copy = [0; pool::COPY_BYTES];
            file.read(at.0, &mut copy).map(|()| copy)
        });
        let [a, b] = copies;
        // The tail of a growth that was cut short does not belong to the pool yet.
        let needed = pool::recorded_bytes(&[a.map_err(failed)?, b.map_err(failed)?]);
        let needed = needed.unwrap_or(bytes).min(bytes);
        if written < needed {
            let path = file.path().into();
            return Err(OpenError::Sparse {
                path,
                hole: written,
                bytes: needed,
            });
        }
    }
    Ok(written)
}

fn choose(path: &Path, place: FileKind, options: &OpenOptions) -> Result<Kind, OpenError> {
    let (best, what) = match place {
        FileKind::Disk if options.page_cache => (Kind::Dram, "an ordinary file: dram or file"),
        FileKind::Device { .. } => (Kind::Dax, "a devdax device, which only dax can be"),
        FileKind::Dax => (Kind::Dax, "a file on persistent memory: dax or file"),
        FileKind::Memory => (Kind::Dram, "a file in memory: dram or file"),
        FileKind::Disk => (
            Kind::File,
            "an ordinary file, which no mapping makes durable: file",
        ),
    };
    let is_file = !matches!(place, FileKind::Device { .. });
    match options.medium {
        None => Ok(best),
        Some(wanted) if wanted == best || (wanted == Kind::File && is_file) => Ok(wanted),
        Some(medium) => Err(OpenError::Unavailable {
            path: path.into(),
            medium,
            why: what,
        }),
    }
}

fn medium(
    file: PoolFile,
    place: FileKind,
    kind: Kind,
    bytes: u64,
    options: &OpenOptions,
    lease: Option<Lease>,
) -> io::Result<AnyMedium> {
    match kind {
        Kind::File => File::on_file(file, place, bytes, options, lease).map(AnyMedium::File),
        _ => Mapped::on_file(file, place, bytes, options.page_cache, lease).map(AnyMedium::Mapped),
    }
}

/// Refuses a file that cannot be read as it was asked for, before anything is written to it.
fn check_reads(file: &PoolFile, kind: Kind, options: &OpenOptions) -> Result<(), OpenError> {
    match (kind, options.read_by) {
        (Kind::File, ReadMode::Direct) => filesystem::check_direct(file),
        _ => Ok(()),
    }
}

/// Whether one of the superblock's copies in `file` begins as it does. Nothing is written to a file that is no pool.
fn is_pool(file: &PoolFile) -> bool {
    let begins = |at: Off| {
        let mut begin = [0; 8];
        file.read(at.0, &mut begin).is_ok() && pool::begins_as_pool(&begin)
    };
    file.bytes().is_ok_and(|bytes| bytes >= pool::HEAD_BYTES)
        && pool::COPIES.into_iter().any(begins)
}

fn free_lease(file: &PoolFile, options: &OpenOptions) -> Result<Option<FreeLease>, OpenError> {
    FreeLease::find(file, &|line| {
        if let Some(notice) = &options.notice {
            notice(line);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PersistCtx;
    use crate::pool::{Pool, PoolLayout};

    const BYTES: u64 = 1 << 20;

    fn memory() -> Mapped {
        Mapped::anonymous(BYTES).expect("a little memory")
    }

    fn refused(mapped: &Mapped) -> OpenError {
        let path = Path::new("/dev/dax0.0");
        check_free(mapped, path, BYTES, true).expect("forced");
        check_free(mapped, path, BYTES, false).expect_err("something is on it")
    }

    #[test]
    fn a_device_with_something_on_it_is_refused_by_name_and_taken_when_forced() {
        check_free(&memory(), Path::new("x"), BYTES, false).expect("zeros");
        let mut ctx = PersistCtx::default();
        for (at, bytes, what) in [
            (0, &b"PMEMPOOL"[..], "a PMDK pool"),
            (1072, b"12345678\x53\xef", "ext4"),
            (8, b"?", "something unknown"),
        ] {
            let mapped = memory();
            mapped.copy_in(&mut ctx, Off(at), &[bytes]);
            let error = refused(&mapped).to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_device_with_a_pool_is_refused_though_its_superblock_is_damaged() {
        let mut ctx = PersistCtx::default();
        let layout = PoolLayout {
            segment_bytes: 64 << 10,
        };
        let pool = Pool::create(memory(), &mut ctx, &layout).expect("a sound layout");
        let mapped = pool.into_medium();
        mapped.copy_in(&mut ctx, Off(64), &[&[7; 64]]);
        mapped.copy_in(&mut ctx, Off(4096), &[&[7; 64]]);
        assert!(refused(&mapped).to_string().contains("a pool"));
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_though_forced() {
        let path = Path::new("x");
        let error = check_free(&memory(), path, BYTES + 1, true).expect_err("no room");
        assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    }

    #[test]
    fn a_path_without_a_device_has_no_devices_bytes() {
        assert_eq!(device_bytes(Path::new("/nowhere")).expect("none"), None);
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(device_bytes(file.path()).expect("none"), None);
        device_bytes(Path::new("/dev/null")).expect_err("no devdax device");
    }
}
