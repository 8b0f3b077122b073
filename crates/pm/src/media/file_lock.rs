//! The exclusive lock on a pool's file (`flock`), and the process that holds it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::open_error::OpenError;

/// Locks `file`, the pool at `path`, exclusively (PM-SPACE-1).
///
/// # Errors
/// [`OpenError::InUse`] if a process has it locked already.
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

/// Returns the id and name of the process that holds the lock on `file`, if `/proc/locks` shows it.
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

/// Returns the process id in a line of `/proc/locks` like `3: FLOCK  ADVISORY  WRITE 812 fe:00:4711 0 EOF`, if the line
/// is an `flock` of `inode`.
fn holder_in(line: &str, inode: &str) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    let kind = fields.next()?;
    let pid = fields.nth(2)?.parse().ok()?;
    (kind == "FLOCK" && fields.next()? == inode).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::holder_in;

    #[test]
    fn the_lock_holder_is_parsed_from_proc_locks() {
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
