//! Classification of the file system under a pool, with the limits of its durability, and a self-test of mappings.
//!
//! ```text
//!   fstatfs: f_type ──▶ TABLE ──▶ class ──┐
//!   /proc/self/mountinfo: name, options ──┼──▶ accepted, accepted with warnings, or refused
//!   /sys/dev/block: devices under it ─────┘
//! ```
//!
//! | class         | file systems                        | result                                         |
//! |---------------|-------------------------------------|------------------------------------------------|
//! | sound         | ext2-4, XFS, F2FS, JFS, ReiserFS    | accepted                                       |
//! | memory        | tmpfs, ramfs, hugetlbfs             | accepted, as the DRAM medium                   |
//! | btrfs         | btrfs                               | warned unless the file is nodatacow            |
//! | copy on write | ZFS, bcachefs, NILFS2               | warned: an overwrite needs free space          |
//! | no journal    | FAT, exFAT, NTFS, HFS+              | warned: the file system may lose the file      |
//! | delegated     | FUSE, virtiofs                      | warned: another program implements sync        |
//! | stacked       | overlayfs                           | as its upper layer; refused if `volatile`      |
//! | remote        | NFS, CIFS, SMB, 9p, cluster systems | refused                                        |
//! | unknown       | every other one                     | warned                                         |
//!
//! [`OpenOptions::accept_file_system`] turns a refusal into a warning.
//!
//! # Self-test
//! A [`File`](super::File) writes with `pwritev` and reads through a mapping, or with `O_DIRECT`. If a file system
//! keeps separate pages for these, reads return old bytes. So every creation and every open of an ordinary file tests
//! this: it writes a pattern at [`TEST_AT`], in the unused part of the second superblock page, reads it through a
//! mapping (and by a direct read in [`ReadMode::Direct`]), and restores the former bytes. A crash during the test
//! leaves the pattern in bytes that no code reads. The test never writes to an existing file that is not a pool.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::IFlags;

use super::open_error::OpenError;
use super::open_options::OpenOptions;
use super::reader::{DirectReader, ReadMode};
use super::shared_blocks;
use super::space::{FileKind, PoolFile, check_limit};
use super::sysfs::{DevicePersistence, Sysfs};
use super::window::{MapSource, Window};
use crate::medium::{LINE, Off};
use crate::offset::PAGE;
use crate::pool;

/// Offset of the self-test: the last line of the second superblock page.
const TEST_AT: u64 = pool::HEAD_BYTES - LINE as u64;

/// Class of a file system. See the table in the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileSystemClass {
    /// Overwrites blocks in place, and `fdatasync` reaches the device.
    Sound,
    Memory,
    Btrfs,
    CopyOnWrite,
    NotCrashSafe,
    Delegated,
    Stacked,
    Remote,
    Unknown,
}

/// Known file systems: `f_type`, name and class.
const TABLE: &[(u32, &str, FileSystemClass)] = &[
    (0x0000_ef53, "ext2, ext3 or ext4", FileSystemClass::Sound),
    (0x5846_5342, "xfs", FileSystemClass::Sound),
    (0xf2f5_2010, "f2fs", FileSystemClass::Sound),
    (0x3153_464a, "jfs", FileSystemClass::Sound),
    (0x5265_4973, "reiserfs", FileSystemClass::Sound),
    (0x0102_1994, "tmpfs", FileSystemClass::Memory),
    (0x8584_58f6, "ramfs", FileSystemClass::Memory),
    (0x9584_58f6, "hugetlbfs", FileSystemClass::Memory),
    (0x9123_683e, "btrfs", FileSystemClass::Btrfs),
    (0x2fc1_2fc1, "zfs", FileSystemClass::CopyOnWrite),
    (0xca45_1a4e, "bcachefs", FileSystemClass::CopyOnWrite),
    (0x0000_3434, "nilfs2", FileSystemClass::CopyOnWrite),
    (0x0000_4d44, "vfat", FileSystemClass::NotCrashSafe),
    (0x2011_bab0, "exfat", FileSystemClass::NotCrashSafe),
    (0x5346_544e, "ntfs", FileSystemClass::NotCrashSafe),
    (0x7366_746e, "ntfs3", FileSystemClass::NotCrashSafe),
    (0x0000_482b, "hfsplus", FileSystemClass::NotCrashSafe),
    (0x6573_5546, "fuse", FileSystemClass::Delegated),
    (0x794c_7630, "overlayfs", FileSystemClass::Stacked),
    (0x0000_6969, "nfs", FileSystemClass::Remote),
    (0xff53_4d42, "cifs", FileSystemClass::Remote),
    (0xfe53_4d42, "smb2", FileSystemClass::Remote),
    (0x0000_517b, "smb", FileSystemClass::Remote),
    (0x0102_1997, "9p", FileSystemClass::Remote),
    (0x00c3_6400, "ceph", FileSystemClass::Remote),
    (0x0116_1970, "gfs2", FileSystemClass::Remote),
    (0x7461_636f, "ocfs2", FileSystemClass::Remote),
    (0x0bd0_0bd0, "lustre", FileSystemClass::Remote),
    (0x4750_4653, "gpfs", FileSystemClass::Remote),
    (0x1983_0326, "beegfs", FileSystemClass::Remote),
    (0x5346_414f, "afs", FileSystemClass::Remote),
    (0x6b41_4653, "afs", FileSystemClass::Remote),
    (0x7375_7245, "coda", FileSystemClass::Remote),
    (0x786f_4256, "vboxsf", FileSystemClass::Remote),
    (0xbacb_acbc, "vmhgfs", FileSystemClass::Remote),
];

/// FUSE file systems whose files are on other machines, by their names in `/proc/self/mountinfo`.
const REMOTE_FUSE: &[&str] = &[
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.juicefs",
    "fuse.ceph-fuse",
    "fuse.gcsfuse",
    "fuse.vmhgfs-fuse",
];

fn classify(f_type: u32) -> (&'static str, FileSystemClass) {
    let row = TABLE.iter().find(|(magic, ..)| *magic == f_type);
    row.map_or(("unknown", FileSystemClass::Unknown), |(_, name, class)| {
        (name, *class)
    })
}

/// Properties of the file system of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileSystemReport {
    /// Warnings for the operator, one line each.
    pub(super) warnings: Vec<String>,
    /// Replacement for [`Caps::survives`](crate::medium::Caps::survives) of the medium.
    pub(super) survives: Option<&'static str>,
    /// Limit of the medium's durability on this file system, appended to `Caps::survives`.
    pub(super) limits: Option<&'static str>,
    /// Name of the file system, and the reason why a pool should not be on it.
    refusal: Option<(String, &'static str)>,
    /// Whether every overwrite allocates new space, even in allocated blocks.
    copies_on_write: bool,
}

impl FileSystemReport {
    fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    /// Reports a DAX medium as persistent only if the kernel reports its memory as persistent.
    fn assess_memory(&mut self, persistence: DevicePersistence) {
        if persistence == DevicePersistence::Unknown {
            self.survives = Some(
                "a kill of the process; possibly lost in a restart or power cut: the kernel does not report this \
                 memory as persistent",
            );
            self.warn(
                "the kernel does not report this memory as persistent: it may be CXL memory, or reserved DRAM \
                 (hmem, memmap=)"
                    .into(),
            );
        }
    }

    fn refuse(&mut self, name: &str, why: &'static str) {
        self.refusal.get_or_insert((name.to_owned(), why));
    }
}

/// A mounted file system, as `/proc/self/mountinfo` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mount {
    /// Type of the file system: `ext4`, `fuse.sshfs`, ...
    kind: String,
    /// Mount options of the file system.
    options: Vec<String>,
}

impl Mount {
    /// Returns the mount of the open file `fd`. `None` if the kernel does not report it.
    fn of(fd: BorrowedFd<'_>) -> Option<Mount> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let id = id.trim().parse().ok()?;
        Mount::parse(&fs::read_to_string("/proc/self/mountinfo").ok()?, id)
    }

    /// Returns the mount with number `id`, from lines like
    /// `36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`.
    fn parse(mounts: &str, id: u64) -> Option<Mount> {
        let line = mounts.lines().find(|line| {
            let number = line.split(' ').next();
            number.and_then(|number| number.parse().ok()) == Some(id)
        })?;
        let mut fields = line.split_once(" - ")?.1.split(' ');
        let kind = fields.next()?.to_owned();
        let options = fields.nth(1).unwrap_or_default().split(',');
        let options = options.map(str::to_owned).collect();
        Some(Mount { kind, options })
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|known| known == option)
    }

    /// Returns the value of the option `name=value`, with escapes (`\040` for a space) decoded.
    fn value(&self, name: &str) -> Option<PathBuf> {
        let mut values = self.options.iter().filter_map(|option| {
            let (key, value) = option.split_once('=')?;
            (key == name).then_some(value)
        });
        values.next().map(unescape)
    }
}

/// Decodes a path of `/proc/self/mountinfo`, in which `\ooo` is the byte with that octal number.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut rest = text.as_bytes();
    let mut path = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        let escaped = after.get(..3).filter(|_| byte == b'\\').and_then(octal);
        match escaped {
            Some(meant) => {
                path.push(meant);
                rest = &after[3..];
            }
            None => {
                path.push(byte);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(path).into()
}

const WHY_REMOTE: &str = "another machine can have the same file open, and its lock and cached pages are not visible \
     here: two servers would overwrite each other's pool";
const WHY_VOLATILE: &str = "the overlay is mounted with \"volatile\", so no sync reaches the disk";

/// Assesses the file system of an open file from its `f_type`, its mount, whether the file is nodatacow, and the
/// `f_type` of an overlay's upper layer. Changes nothing.
fn assess(
    f_type: u32,
    mount: Option<&Mount>,
    no_cow: bool,
    upper: Option<u32>,
) -> FileSystemReport {
    let (known_as, class) = classify(f_type);
    let mut found = FileSystemReport::default();
    let name = mount.map_or(known_as, |mount| mount.kind.as_str());
    match class {
        FileSystemClass::Sound | FileSystemClass::Memory => {}
        FileSystemClass::Btrfs if no_cow => {}
        FileSystemClass::Btrfs => {
            found.copies_on_write = true;
            found.warn(
                "btrfs: the file is not nodatacow, so an overwrite needs free space and a full disk \
                 stops all writes; after a clean close, copy the pool into a directory with chattr +C"
                    .into(),
            );
        }
        FileSystemClass::CopyOnWrite => {
            found.copies_on_write = true;
            found.warn(format!(
                "{name}: an overwrite needs free space, so a full file system stops all writes"
            ));
        }
        FileSystemClass::NotCrashSafe => found.warn(format!(
            "{name}: this file system is not designed to survive power cuts and may lose the file in one"
        )),
        FileSystemClass::Delegated if REMOTE_FUSE.contains(&name) => {
            found.limits = Some("only if the other machine syncs the write");
            found.refuse(name, WHY_REMOTE);
        }
        FileSystemClass::Delegated => {
            found.limits = Some("a power cut only if its server syncs the write");
            found.warn(format!(
                "{name}: another program or machine serves this file system and implements its sync; if \
                 other processes can open the file there, the pool's lock may not exclude them"
            ));
        }
        FileSystemClass::Stacked => assess_overlay(&mut found, name, mount, upper),
        FileSystemClass::Remote => {
            found.limits = Some("only if the other machine syncs the write");
            found.refuse(name, WHY_REMOTE);
        }
        FileSystemClass::Unknown => found.warn(match mount {
            Some(mount) => format!(
                "the file system {} is unknown to this program: a sync may not make writes durable",
                mount.kind
            ),
            None => format!(
                "the file system with type {f_type:#x} is unknown to this program: a sync may not make writes durable"
            ),
        }),
    }
    let unordered = mount.is_some_and(|mount| mount.has("nobarrier") || mount.has("barrier=0"));
    if unordered {
        found.limits = Some("a power cut only if the device has no volatile cache");
        found.warn(format!(
            "{name}: mounted with nobarrier: a sync does not flush the device's cache"
        ));
    }
    found
}

/// Assesses an overlay by its upper layer. The open file is in the upper layer: opening it for writing copied it there.
fn assess_overlay(
    found: &mut FileSystemReport,
    name: &str,
    mount: Option<&Mount>,
    upper: Option<u32>,
) {
    if mount.is_some_and(|mount| mount.has("volatile") || mount.has("fsync=volatile")) {
        found.limits = Some("no power cut: the overlay does not sync");
        found.refuse(name, WHY_VOLATILE);
        return;
    }
    match upper.map(classify) {
        None => found.warn(format!(
            "{name}: its upper layer is not visible, as in a container: the pool is lost when the layer \
             is removed; put it on a volume"
        )),
        Some((upper, FileSystemClass::Memory)) => {
            found.limits = Some("no restart and no power cut: the upper layer is in memory");
            found.warn(format!("{name}: its upper layer is {upper}, in memory"));
        }
        Some((_, FileSystemClass::Sound)) => {}
        Some((upper, FileSystemClass::Remote)) => {
            found.limits = Some("only as far as the other machine syncs");
            found.refuse(&format!("{name} over {upper}"), WHY_REMOTE);
        }
        Some((upper, class)) => {
            found.copies_on_write = matches!(class, FileSystemClass::Btrfs | FileSystemClass::CopyOnWrite);
            found.warn(format!(
                "{name}: its upper layer is {upper}, which limits durability"
            ));
        }
    }
}

/// Examines the file system of `file`, before the first write to the file.
///
/// # Errors
/// [`OpenError::FileSystem`] if a pool should not be on it and [`OpenOptions::accept_file_system`] is not set.
pub(super) fn examine(
    file: &PoolFile,
    place: FileKind,
    options: &OpenOptions,
) -> Result<FileSystemReport, OpenError> {
    if matches!(place, FileKind::Device { .. }) {
        let device = file
            .metadata()
            .map_err(|e| OpenError::io(file.path(), "examine", e))?;
        let mut found = FileSystemReport::default();
        found.warnings.extend(permission_warning(&device));
        found.assess_memory(Sysfs::system().persistence("char", device.rdev()));
        return Ok(found);
    }
    let failed = |e: io::Error| OpenError::io(file.path(), "examine the file system of", e);
    let f_type = file_system(file.fd()).map_err(failed)?;
    let mount = Mount::of(file.fd());
    let no_cow =
        rustix::fs::ioctl_getflags(file.fd()).is_ok_and(|flags| flags.contains(IFlags::NOCOW));
    let upper = mount.as_ref().and_then(|mount| mount.value("upperdir"));
    let upper_type = upper.as_ref().and_then(|upper| file_system_of(upper).ok());
    let mut found = assess(f_type, mount.as_ref(), no_cow, upper_type);
    let metadata = file.metadata().map_err(failed)?;
    found.warnings.extend(permission_warning(&metadata));
    if place == FileKind::Dax {
        found.assess_memory(Sysfs::system().persistence("block", metadata.dev()));
    }
    if place == FileKind::Disk {
        // An overlay has no device of its own.
        let upper = upper.and_then(|upper| fs::metadata(upper).ok());
        let device = upper.map_or(metadata.dev(), |upper| upper.dev());
        let under = Sysfs::system().beneath(device);
        if under.iter().any(|layer| layer.is_memory) {
            found.limits = Some("no restart and no power cut: the device is in memory");
        }
        found
            .warnings
            .extend(under.into_iter().map(|layer| layer.text));
    }
    if let Some((name, why)) = found.refusal.take() {
        if !options.accept_file_system {
            let path = file.path().into();
            return Err(OpenError::FileSystem { path, name, why });
        }
        found.warn(format!("{name}, accepted by option: {why}"));
    }
    Ok(found)
}

/// Checks that `file` can be read past the page cache. Changes nothing.
///
/// # Errors
/// [`OpenError::NoDirectReads`].
pub(super) fn check_direct(file: &PoolFile) -> Result<(), OpenError> {
    match DirectReader::open(file) {
        Ok(_) => Ok(()),
        Err(source) => Err(OpenError::NoDirectReads {
            path: file.path().into(),
            file_system: name_of(file.fd()),
            source,
        }),
    }
}

/// Returns the name of the open file's file system, for messages.
fn name_of(fd: BorrowedFd<'_>) -> String {
    match Mount::of(fd) {
        Some(mount) => mount.kind,
        None => file_system(fd)
            .map_or("unknown", |f_type| classify(f_type).0)
            .into(),
    }
}

/// Returns the `f_type` of the open file's file system.
fn file_system(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u32)
}

fn file_system_of(path: &Path) -> io::Result<u32> {
    Ok(rustix::fs::statfs(path)?.f_type as u32)
}

/// Makes a new, empty file on btrfs nodatacow, so that overwrites reuse its blocks.
pub(super) fn overwrite_in_place(file: &PoolFile) {
    const BTRFS: u32 = 0x9123_683e;
    if file_system(file.fd()).is_ok_and(|f_type| f_type == BTRFS) {
        let flags = rustix::fs::ioctl_getflags(file.fd());
        // If this fails, `examine` warns.
        let _ =
            flags.and_then(|flags| rustix::fs::ioctl_setflags(file.fd(), flags | IFlags::NOCOW));
    }
}

/// Prepares an existing pool file of `bytes` bytes for use: replaces blocks that it shares with other files, and runs
/// the self-test. Does nothing to a file that is not a pool.
///
/// # Errors
/// [`OpenError::Shared`], [`OpenError::Incoherent`], or [`OpenError::Io`] if a system call failed.
pub(super) fn prepare(
    file: &PoolFile,
    bytes: u64,
    options: &OpenOptions,
    found: &mut FileSystemReport,
) -> Result<(), OpenError> {
    let failed = |e| OpenError::io(file.path(), "read", e);
    let mut begin = [0; 8];
    file.read(pool::COPIES[0].0, &mut begin).map_err(failed)?;
    let mut second = [0; 8];
    file.read(pool::COPIES[1].0, &mut second).map_err(failed)?;
    if !pool::begins_as_pool(&begin) && !pool::begins_as_pool(&second) {
        return Ok(());
    }
    if !found.copies_on_write
        && let Err((shared, why)) = shared_blocks::unshare(file, bytes)
    {
        let is_accepted = options.accept_file_system && is_harmless(why.kind());
        let error = OpenError::Shared {
            path: file.path().into(),
            bytes: shared,
            source: why,
        };
        if !is_accepted {
            return Err(error);
        }
        found.warn(format!("accepted by option: {error}"));
    }
    self_test(file, options.read_by)
}

/// Returns whether shared blocks still hold their bytes after a rewrite that failed with `why`: the disk was full, or
/// the file system keeps sharing the blocks. After any other error their state is unknown.
fn is_harmless(why: io::ErrorKind) -> bool {
    use io::ErrorKind::{Other, QuotaExceeded, StorageFull};
    matches!(why, StorageFull | QuotaExceeded | Other)
}

/// Checks that a mapping of `file` shows the bytes written to it, and in [`ReadMode::Direct`] that a direct read does.
/// See the module documentation.
///
/// # Errors
/// [`OpenError::Incoherent`] if one does not; [`OpenError::Io`] if the test could not run.
pub(super) fn self_test(file: &PoolFile, read_by: ReadMode) -> Result<(), OpenError> {
    let failed = |e| OpenError::io(file.path(), "test", e);
    check_limit(pool::HEAD_BYTES).map_err(|e| OpenError::io(file.path(), "write", e))?;
    let mapped = mapping(file.fd()).map_err(failed)?;
    let direct = match read_by {
        ReadMode::Direct => Some(DirectReader::open(file).map_err(failed)?),
        ReadMode::Mapping | ReadMode::Pread => None,
    };
    let is_coherent = is_coherent(file.fd(), &mut |line| {
        let mut read = [0; LINE];
        mapped.copy_out(Off(TEST_AT), &mut read);
        let is_shown = read == *line;
        if let Some(direct) = &direct {
            direct.read_blocks(&**file.io(), TEST_AT, &mut read)?;
        }
        Ok(is_shown && read == *line)
    });
    match is_coherent {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenError::Incoherent {
            path: file.path().into(),
        }),
        Err(e) => Err(failed(e)),
    }
}

/// Maps the two superblock pages of `file`.
fn mapping(file: BorrowedFd<'_>) -> io::Result<Window> {
    let window = Window::reserve(pool::HEAD_BYTES, pool::HEAD_BYTES.next_multiple_of(PAGE))?;
    window.extend(MapSource::Read(file), pool::HEAD_BYTES)?;
    Ok(window)
}

/// Writes several lines at [`TEST_AT`] and returns whether `shows` sees each of them. Restores the former bytes before
/// it returns.
fn is_coherent(
    written: BorrowedFd<'_>,
    shows: &mut dyn FnMut(&[u8; LINE]) -> io::Result<bool>,
) -> io::Result<bool> {
    let mut before = [0; LINE];
    let mut read = 0;
    while read < LINE {
        match rustix::io::pread(written, &mut before[read..], TEST_AT + read as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => read += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let inverse = before.map(|byte| !byte);
    let mut pattern = [0; LINE];
    pool::fill_random(&mut pattern)?;
    let mut coherent = Ok(true);
    for line in [&pattern, &inverse, &before] {
        write_all(written, line, TEST_AT)?;
        // Continues after an error, because the last iteration restores the former bytes.
        coherent = coherent.and_then(|so_far| Ok(shows(line)? && so_far));
    }
    coherent
}

/// Writes all of `bytes` at byte `at`. Does not use [`FileIo`](super::FileIo), because the test bytes need not become
/// durable.
pub(super) fn write_all(fd: BorrowedFd<'_>, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(fd, &bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Returns a warning if users other than the file's owner may read or change the file.
pub(super) fn permission_warning(metadata: &fs::Metadata) -> Option<String> {
    let mode = metadata.mode() & 0o777;
    let others = match mode & 0o077 {
        0 => return None,
        bits if bits & 0o022 != 0 => "other users can change the pool",
        _ => "other users can read the pool, its secret included",
    };
    Some(format!(
        "the file's mode is {mode:04o}: {others}; run chmod 600 on it"
    ))
}

#[cfg(test)]
#[path = "filesystem_tests.rs"]
mod tests;
