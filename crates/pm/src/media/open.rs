//! Opens or creates the medium of a pool path, and chooses the kind of medium.
//!
//! | the path is                     | default medium   | other media that [`OpenOptions`] can select |
//! |---------------------------------|------------------|------------------|
//! | a devdax device                 | [`Mapped`], DAX  |                  |
//! | a file that maps with `MAP_SYNC`| [`Mapped`], DAX  | [`File`]         |
//! | a file on tmpfs or ramfs        | [`Mapped`], DRAM | [`File`]         |
//! | a file on hugetlbfs             | [`Mapped`], DRAM |                  |
//! | any other file                  | [`File`]         | [`Mapped`], DRAM: see [`OpenOptions::page_cache`] |
//!
//! If the path cannot be the requested medium, the open fails. It never falls back to another medium.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use super::file::File;
use super::filesystem::{self, FileSystemReport};
use super::lease::{FreeLease, Lease};
use super::mapped::Mapped;
use super::open_error::OpenError;
use super::open_options::OpenOptions;
use super::page_cache;
use super::pool_path::PendingPath;
use super::reader::ReadMode;
use super::signature;
use super::space::{FileKind, KernelIo, PoolFile, Progress, check_limit};
use super::sysfs::Sysfs;
use super::window::HUGE;
use crate::medium::{Caps, Kind, Medium, Off, Poisoned};
use crate::offset::PAGE;
use crate::pool;

/// A real medium of either type. Callers match on it once and then use code that is generic over the medium.
#[derive(Debug)]
pub enum AnyMedium {
    /// DAX or DRAM.
    Mapped(Mapped),
    /// An ordinary file.
    File(File),
}

impl AnyMedium {
    /// Returns the capabilities of the medium.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        match self {
            AnyMedium::Mapped(medium) => medium.caps(),
            AnyMedium::File(medium) => medium.caps(),
        }
    }

    /// Returns the length of the medium in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            AnyMedium::Mapped(medium) => medium.len(),
            AnyMedium::File(medium) => medium.len(),
        }
    }

    /// Makes every page present, so that later accesses cause no page faults.
    pub fn prefault(&self, progress: Progress<'_>) {
        match self {
            AnyMedium::Mapped(medium) => medium.prefault(progress),
            AnyMedium::File(medium) => medium.prefault(progress),
        }
    }

    /// Adds the warnings and limits of the file system to the medium's capabilities.
    fn with_file_system_report(mut self, found: FileSystemReport) -> AnyMedium {
        let caps = match &mut self {
            AnyMedium::Mapped(medium) => medium.caps_mut(),
            AnyMedium::File(medium) => medium.caps_mut(),
        };
        caps.warnings.extend(found.warnings);
        if let Some(survives) = found.survives {
            caps.survives = survives.into();
        }
        if let Some(limits) = found.limits {
            caps.survives = format!("{}; but on this file system {limits}", caps.survives);
        }
        self
    }

    /// Closes the medium. See [`File::close`]; a [`Mapped`] has nothing to do.
    pub fn close(self) -> Result<(), Poisoned> {
        match self {
            AnyMedium::Mapped(_) => Ok(()),
            AnyMedium::File(medium) => medium.close(),
        }
    }
}

/// Opens and locks the medium of the pool at `path`. Its length is the written length of the file, rounded down to
/// whole pages. [`Pool::open`](crate::pool::Pool::open) checks whether it contains a pool.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<AnyMedium, OpenError> {
    let failed = |doing| move |e| OpenError::io(path, doing, e);
    let file = PoolFile::open(path, Arc::clone(&options.io))?;
    let place = file.file_kind().map_err(failed("open"))?;
    let kind = choose(path, place, options)?;
    let mut found = filesystem::examine(&file, place, options)?;
    check_reads(&file, kind, options)?;
    // Before any write: the pages cached on this host may be older than the writes of another host.
    let free = match place {
        FileKind::Disk | FileKind::Dax if is_pool(&file) => free_lease(&file, options)?,
        _ => None,
    };
    if kind == Kind::File && place == FileKind::Disk {
        page_cache::evict(&file).map_err(failed("write back the cached pages of"))?;
    }
    let bytes = match place {
        FileKind::Device { bytes, .. } => bytes,
        FileKind::Dax | FileKind::Memory | FileKind::HugePages { .. } | FileKind::Disk => {
            let bytes = file.bytes().map_err(failed("read"))?;
            if bytes < pool::HEAD_BYTES {
                let path = path.into();
                return Err(OpenError::TooShort { path, bytes });
            }
            written_len(&file)?
        }
    };
    if kind == Kind::File {
        check_limit(bytes).map_err(failed("write all of"))?;
    }
    if place == FileKind::Disk {
        filesystem::prepare(&file, bytes, options, &mut found)?;
    }
    let bytes = bytes / PAGE * PAGE;
    // Last: a refused file stays unchanged, and a hole in its first page is not filled.
    let lease = free.and_then(FreeLease::take);
    let opened = medium(file, place, kind, bytes, options, lease).map_err(failed("map"))?;
    Ok(opened.with_file_system_report(found))
}

/// Maps the file or device at `path`, which another process has locked and uses as a [`Mapped`] medium. Both see each other's
/// stores. The medium is not locked, cannot grow, and writes no lines back.
///
/// Its loads do not panic on bytes that cannot be read, because the other process may truncate the file at any time: they
/// return zeros, and [`Medium::unreadable`] reports them afterwards.
pub fn share_path(path: &Path) -> Result<Mapped, OpenError> {
    let failed = |doing| move |e| OpenError::io(path, doing, e);
    let file = PoolFile::share(path, Arc::new(KernelIo))?;
    let place = file.file_kind().map_err(failed("open"))?;
    let bytes = match place {
        FileKind::Device { bytes, .. } => bytes,
        _ => file.bytes().map_err(failed("read"))?,
    };
    if bytes < PAGE {
        let path = path.into();
        return Err(OpenError::TooShort { path, bytes });
    }
    Mapped::shared(file, place, bytes / PAGE * PAGE).map_err(failed("map"))
}

/// Creates a medium of `bytes`, rounded up to whole pages (on hugetlbfs to whole huge pages), at `path`. On `Ok` its space is
/// allocated and written, and durable if the medium can be. An existing file is refused, and so is a device that contains data
/// (unless [`OpenOptions::force`]). On an error no file is left behind. A device is always used as a whole.
///
/// The file has its name before it contains a pool. To create a pool so that a kill leaves no incomplete one at
/// `path`, use [`prepare_path`].
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

/// As [`create_path`], but the file gets its name only in [`PendingPath::publish`]. The caller
/// calls it when the medium contains a complete pool. A process that is killed before leaves nothing at
/// `path`; the next creation removes its temporary file.
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
    let medium = create_in(file, path, bytes, options, progress)?;
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
    let place = file.file_kind().map_err(failed("create"))?;
    let whole = bytes.checked_next_multiple_of(place.page_bytes());
    let bytes = whole.ok_or_else(|| OpenError::NoSpace {
        path: path.into(),
        bytes,
    })?;
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
    Ok(made.with_file_system_report(found))
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

/// Checks that a new pool of `bytes` may be created on the device at `path`. Changes nothing.
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
            let mut begin = vec![0; signature::EXAMINED_BYTES.min(mapped.len() as usize)];
            mapped.copy_out(Off(0), &mut begin);
            signature::describe(&begin)
        }
    };
    what.map_or(Ok(()), |what| {
        let path = path.into();
        Err(OpenError::Occupied { path, what })
    })
}

/// Returns the length in bytes of the devdax device at `path`, which is the length of a new pool there. `None` if the
/// path is a file or does not exist. Opens nothing.
///
/// # Errors
/// The kernel does not report the length of the device.
pub fn device_bytes(path: &Path) -> Result<Option<u64>, OpenError> {
    let metadata = fs::metadata(path).ok();
    let device = metadata.filter(|m| m.file_type().is_char_device());
    let bytes = device.map(|device| Sysfs::system().dax_bytes(device.rdev()));
    bytes.transpose().map_err(|e| OpenError::io(path, "use", e))
}

/// Returns the length in bytes of the written part of `file`, up to the first hole.
///
/// # Errors
/// [`OpenError::Sparse`] if the hole is within the pool.
fn written_len(file: &PoolFile) -> Result<u64, OpenError> {
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
        // The tail of an interrupted growth is not part of the pool yet.
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
        FileKind::HugePages { page_bytes } if page_bytes > HUGE => {
            let why = "its pages are larger than 2 MiB; mount hugetlbfs with pagesize=2M";
            return Err(OpenError::io(path, "map", io::Error::other(why)));
        }
        FileKind::HugePages { .. } => (Kind::Dram, "a file of huge pages, which only dram can be"),
        FileKind::Disk => (
            Kind::File,
            "an ordinary file, which no mapping makes durable: file",
        ),
    };
    let has_write = !matches!(place, FileKind::Device { .. } | FileKind::HugePages { .. });
    match options.medium {
        None => Ok(best),
        Some(wanted) if wanted == best || (wanted == Kind::File && has_write) => Ok(wanted),
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

/// Refuses a file that cannot be read in the requested mode, before any write to it.
fn check_reads(file: &PoolFile, kind: Kind, options: &OpenOptions) -> Result<(), OpenError> {
    match (kind, options.read_by) {
        (Kind::File, ReadMode::Direct) => filesystem::check_direct(file),
        _ => Ok(()),
    }
}

/// Returns whether one of the two superblock copies in `file` begins with the pool's magic number. An open writes
/// nothing to a file that is not a pool.
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
    fn a_device_that_contains_data_is_refused_with_its_format_and_accepted_when_forced() {
        check_free(&memory(), Path::new("x"), BYTES, false).expect("zeros");
        let mut ctx = PersistCtx::default();
        for (at, bytes, what) in [
            (0, &b"PMEMPOOL"[..], "a PMDK pool"),
            (1072, b"12345678\x53\xef", "ext4"),
            (8, b"?", "unknown data"),
        ] {
            let mapped = memory();
            mapped.copy_in(&mut ctx, Off(at), &[bytes]);
            let error = refused(&mapped).to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_device_with_a_pool_is_refused_even_if_its_superblock_is_damaged() {
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
    fn a_device_that_is_too_small_is_refused_even_when_forced() {
        let path = Path::new("x");
        let error = check_free(&memory(), path, BYTES + 1, true).expect_err("no room");
        assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    }

    #[test]
    fn device_bytes_is_none_for_a_path_that_is_not_a_device() {
        assert_eq!(device_bytes(Path::new("/nowhere")).expect("none"), None);
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(device_bytes(file.path()).expect("none"), None);
        device_bytes(Path::new("/dev/null")).expect_err("no devdax device");
    }
}
