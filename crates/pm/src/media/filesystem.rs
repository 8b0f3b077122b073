//! The file system under a pool: which one it is, and what it cannot promise.
//!
//! ```text
//!   fstatfs: f_type ──▶ TABLE ──▶ class ──┐
//!   /proc/self/mountinfo: name, options ──┼──▶ accepted, accepted with warnings, or refused
//!   /sys/dev/block: what is under it ─────┘
//! ```
//!
//! | class         | file systems                        | answer                                         |
//! |---------------|-------------------------------------|------------------------------------------------|
//! | sound         | ext2-4, XFS, F2FS, JFS, ReiserFS    | accepted                                       |
//! | memory        | tmpfs, ramfs                        | accepted, as the DRAM medium                   |
//! | btrfs         | btrfs                               | accepted if the file is nodatacow, else warned |
//! | copy on write | ZFS, bcachefs, NILFS2               | warned: an overwrite needs free space          |
//! | no journal    | FAT, exFAT, NTFS, HFS+              | warned: the file system may lose the file      |
//! | delegated     | FUSE, virtiofs                      | warned: another program decides what is synced |
//! | stacked       | overlayfs                           | as its upper layer; refused if `volatile`      |
//! | remote        | NFS, CIFS, SMB, 9p, cluster systems | refused                                        |
//! | unknown       | every other one                     | warned                                         |
//!
//! [`OpenOptions::accept_file_system`] turns a refusal into a warning.
//!
//! # Self-test
//! A [`File`](super::File) writes with `pwritev` and reads through a mapping, or with `O_DIRECT`. Where these do not
//! share their pages, reads would return old bytes. So every creation and every open of an ordinary file writes a
//! pattern at [`TEST_AT`], in the unused part of the second superblock page, looks for it through a mapping (and by a
//! direct read, if the file is read so), and writes the former bytes back. A crash in between leaves the pattern there, where it means nothing. A
//! file that is not a pool is never written.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::IFlags;

use super::extents;
use super::open::{OpenError, OpenOptions};
use super::reader::{DirectReader, ReadMode};
use super::space::{FileKind, PoolFile, check_limit};
use super::sysfs::{DevicePersistence, Sysfs};
use super::window::{MapSource, PAGE, Window};
use crate::medium::{LINE, Off};
use crate::pool;

/// Where the self-test writes: the last line of the second superblock page.
const TEST_AT: u64 = pool::HEAD_BYTES - LINE as u64;

/// What a type of file system means to a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileSystemClass {
    /// Overwrites blocks in place, and `fdatasync` reaches the device.
    Sound,
    Memory,
    Btrfs,
    CopyOnWrite,
    NoJournal,
    Delegated,
    Stacked,
    Remote,
    Unknown,
}

/// `f_type`, name and class.
const TABLE: &[(u32, &str, FileSystemClass)] = &[
    (0x0000_ef53, "ext2, ext3 or ext4", FileSystemClass::Sound),
    (0x5846_5342, "xfs", FileSystemClass::Sound),
    (0xf2f5_2010, "f2fs", FileSystemClass::Sound),
    (0x3153_464a, "jfs", FileSystemClass::Sound),
    (0x5265_4973, "reiserfs", FileSystemClass::Sound),
    (0x0102_1994, "tmpfs", FileSystemClass::Memory),
    (0x8584_58f6, "ramfs", FileSystemClass::Memory),
    (0x9123_683e, "btrfs", FileSystemClass::Btrfs),
    (0x2fc1_2fc1, "zfs", FileSystemClass::CopyOnWrite),
    (0xca45_1a4e, "bcachefs", FileSystemClass::CopyOnWrite),
    (0x0000_3434, "nilfs2", FileSystemClass::CopyOnWrite),
    (0x0000_4d44, "vfat", FileSystemClass::NoJournal),
    (0x2011_bab0, "exfat", FileSystemClass::NoJournal),
    (0x5346_544e, "ntfs", FileSystemClass::NoJournal),
    (0x7366_746e, "ntfs3", FileSystemClass::NoJournal),
    (0x0000_482b, "hfsplus", FileSystemClass::NoJournal),
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

/// File systems behind FUSE whose files are on other machines, as `/proc/self/mountinfo` names them.
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

/// What was found out about a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileSystemReport {
    /// One line each, for people.
    pub(super) warnings: Vec<String>,
    /// What an acknowledged write survives, instead of what the medium promises by itself.
    pub(super) survives: Option<&'static str>,
    /// What limits the durability that the medium promises by itself.
    pub(super) limits: Option<&'static str>,
    /// Why a pool should not be there.
    refusal: Option<(String, &'static str)>,
    /// An overwrite takes new space, whatever blocks the file has.
    copies_on_write: bool,
}

impl FileSystemReport {
    fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    /// Memory that is mapped is announced as persistent only if something says that it is.
    fn assess_memory(&mut self, persistence: DevicePersistence) {
        if persistence == DevicePersistence::Unknown {
            self.survives = Some(
                "a kill of the process; no restart and no power cut: nothing says that this memory is persistent",
            );
            self.warn(
                "the kernel does not say that this memory is persistent: it may be CXL memory, or DRAM that was set \
                 aside (hmem, memmap=)"
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
    /// `ext4`, `fuse.sshfs`, ...
    kind: String,
    /// The options of the file system.
    options: Vec<String>,
}

impl Mount {
    /// The mount that the open file `fd` is on; `None` if the kernel does not say.
    fn of(fd: BorrowedFd<'_>) -> Option<Mount> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let id = id.trim().parse().ok()?;
        Mount::parse(&fs::read_to_string("/proc/self/mountinfo").ok()?, id)
    }

    /// The mount with number `id`, in lines like
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

    /// The value of `name=value`, its escapes (`\040` for a space) undone.
    fn value(&self, name: &str) -> Option<PathBuf> {
        let mut values = self.options.iter().filter_map(|option| {
            let (key, value) = option.split_once('=')?;
            (key == name).then_some(value)
        });
        values.next().map(unescape)
    }
}

/// A path of `/proc/self/mountinfo`, in which `\ooo` is the byte with that octal number.
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

const LOCKS: &str = "another machine can have the same file open, and neither its lock nor its cached pages reach \
     this one: two servers would overwrite each other's pool";
const VOLATILE: &str = "the overlay is mounted with \"volatile\", so that no sync reaches the disk";

/// Judges the file system of the open file. Changes nothing.
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
                "btrfs: the file is not nodatacow, so that an overwrite needs free space and a full disk \
                 stops all writes; copy the pool after a clean close into a folder with chattr +C"
                    .into(),
            );
        }
        FileSystemClass::CopyOnWrite => {
            found.copies_on_write = true;
            found.warn(format!(
                "{name}: an overwrite needs free space, so that a full file system stops all writes"
            ));
        }
        FileSystemClass::NoJournal => found.warn(format!(
            "{name}: the file system was not made to survive power cuts, and may lose the file in one"
        )),
        FileSystemClass::Delegated if REMOTE_FUSE.contains(&name) => {
            found.limits = Some("only as far as the other machine syncs");
            found.refuse(name, LOCKS);
        }
        FileSystemClass::Delegated => {
            found.limits = Some("a power cut only as far as the file system's server syncs");
            found.warn(format!(
                "{name}: another program or machine serves this file system, and decides what a sync \
                 makes durable; if others can open the file there, the pool's lock may not keep them out"
            ));
        }
        FileSystemClass::Stacked => assess_overlay(&mut found, name, mount, upper),
        FileSystemClass::Remote => {
            found.limits = Some("only as far as the other machine syncs");
            found.refuse(name, LOCKS);
        }
        FileSystemClass::Unknown => found.warn(match mount {
            Some(mount) => format!(
                "the file system {} is not known: whether a sync makes writes durable was not examined",
                mount.kind
            ),
            None => format!("the file system with type {f_type:#x} is not known"),
        }),
    }
    let unordered = mount.is_some_and(|mount| mount.has("nobarrier") || mount.has("barrier=0"));
    if unordered {
        found.limits = Some("a power cut only if the device has no volatile cache");
        found.warn(format!(
            "{name}: mounted with nobarrier: a sync does not empty the device's cache"
        ));
    }
    found
}

/// An opened file is in the upper layer: opening it for writing has copied it there.
fn assess_overlay(
    found: &mut FileSystemReport,
    name: &str,
    mount: Option<&Mount>,
    upper: Option<u32>,
) {
    if mount.is_some_and(|mount| mount.has("volatile") || mount.has("fsync=volatile")) {
        found.limits = Some("no power cut: the overlay does not sync");
        found.refuse(name, VOLATILE);
        return;
    }
    match upper.map(classify) {
        None => found.warn(format!(
            "{name}: its upper layer cannot be seen from here, as in a container: the pool goes when the \
             layer goes; put it on a volume"
        )),
        Some((upper, FileSystemClass::Memory)) => {
            found.limits = Some("no restart and no power cut: the upper layer is in memory");
            found.warn(format!("{name}: its upper layer is {upper}, in memory"));
        }
        Some((_, FileSystemClass::Sound)) => {}
        Some((upper, FileSystemClass::Remote)) => {
            found.limits = Some("only as far as the other machine syncs");
            found.refuse(&format!("{name} over {upper}"), LOCKS);
        }
        Some((upper, class)) => {
            found.copies_on_write = matches!(class, FileSystemClass::Btrfs | FileSystemClass::CopyOnWrite);
            found.warn(format!(
                "{name}: its upper layer is {upper}, which has limits of its own"
            ));
        }
    }
}

/// Finds out what the file system of `file` is, before anything is written to it.
///
/// # Errors
/// [`OpenError::FileSystem`] if a pool should not be there and that was not accepted.
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
        found.warnings.extend(exposure(&device));
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
    found.warnings.extend(exposure(&metadata));
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
        found.warn(format!("{name}, accepted as asked: {why}"));
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

/// The name of the file system that the open file is on, for people.
fn name_of(fd: BorrowedFd<'_>) -> String {
    match Mount::of(fd) {
        Some(mount) => mount.kind,
        None => file_system(fd)
            .map_or("unknown", |f_type| classify(f_type).0)
            .into(),
    }
}

/// The type of the file system that the open file is on.
fn file_system(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u32)
}

fn file_system_of(path: &Path) -> io::Result<u32> {
    Ok(rustix::fs::statfs(path)?.f_type as u32)
}

/// Has a new, empty file overwrite its blocks in place where the file system would not by itself (btrfs).
pub(super) fn overwrite_in_place(file: &PoolFile) {
    const BTRFS: u32 = 0x9123_683e;
    if file_system(file.fd()).is_ok_and(|f_type| f_type == BTRFS) {
        let flags = rustix::fs::ioctl_getflags(file.fd());
        // Where it cannot be had, `examine` warns.
        let _ =
            flags.and_then(|flags| rustix::fs::ioctl_setflags(file.fd(), flags | IFlags::NOCOW));
    }
}

/// Makes an existing file of `bytes` fit to be served, if it is a pool: blocks it shares with other files
/// are made its own, and the self-test must pass.
///
/// # Errors
/// [`OpenError::Shared`], [`OpenError::Incoherent`], or what the system calls said.
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
        && let Err((shared, why)) = extents::unshare(file, bytes)
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
        found.warn(format!("accepted as asked: {error}"));
    }
    self_test(file, options.read_by)
}

/// Whether blocks that could not be rewritten for this reason still hold what they held: there was no room for
/// others, or the file system keeps sharing them. After any other error of a sync nothing is known.
fn is_harmless(why: io::ErrorKind) -> bool {
    use io::ErrorKind::{Other, QuotaExceeded, StorageFull};
    matches!(why, StorageFull | QuotaExceeded | Other)
}

/// Checks that a mapping of `file` shows what is written to it, and so does a direct read if the file is read so. See
/// the module's head.
///
/// # Errors
/// [`OpenError::Incoherent`] if it does not; [`OpenError::Io`] if it could not be tried.
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

/// A mapping of the superblock's pages of `file`.
fn mapping(file: BorrowedFd<'_>) -> io::Result<Window> {
    let window = Window::reserve(pool::HEAD_BYTES, pool::HEAD_BYTES.next_multiple_of(PAGE))?;
    window.extend(MapSource::Read(file), pool::HEAD_BYTES)?;
    Ok(window)
}

/// Whether `shows` finds at [`TEST_AT`] each line that is written there. What was there before is there again on return.
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
        // An error does not end it: the former bytes are written last.
        coherent = coherent.and_then(|so_far| Ok(shows(line)? && so_far));
    }
    coherent
}

/// Writes all of `bytes`. Not through `Io`: nothing here is data that must become durable.
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

/// Whether users other than the file's owner may read or change it: one line for people.
pub(super) fn exposure(metadata: &fs::Metadata) -> Option<String> {
    let mode = metadata.mode() & 0o777;
    let others = match mode & 0o077 {
        0 => return None,
        bits if bits & 0o022 != 0 => "other users can change the pool",
        _ => "other users can read the pool, its secret included",
    };
    Some(format!(
        "the file's mode is {mode:04o}: {others}; chmod 600 it"
    ))
}

#[cfg(test)]
#[path = "filesystem_tests.rs"]
mod tests;
