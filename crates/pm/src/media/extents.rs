//! The extents of a file on its device (FIEMAP), and the replacement of blocks that it shares with other files.
//!
//! A file that was copied by reference (`cp --reflink`, a snapshot of the file system) shares blocks with its
//! copy. The first overwrite of a shared block allocates new space, so a full disk would stop a pool whose space was
//! allocated at creation (PM-SPACE-2). Rewriting the same bytes at open allocates that space at once, or fails before any
//! write depends on it. A power cut at any point is harmless, because every block holds the same bytes before and
//! after.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::space::{PoolFile, check_limit};

/// Extents returned by one call.
const EXTENTS: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

impl FiemapExtent {
    /// `FIEMAP_EXTENT_LAST`: the last extent of the file.
    const LAST: u32 = 0x1;
    /// `FIEMAP_EXTENT_SHARED`: another file shares the blocks.
    const SHARED: u32 = 0x2000;
}

/// `struct fiemap`, followed by room for the extents.
#[repr(C)]
struct FiemapRequest {
    head: FiemapHeader,
    extents: [FiemapExtent; EXTENTS],
}

#[repr(C)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<FiemapHeader>() == 32 && size_of::<FiemapExtent>() == 56);

// SAFETY: the opcode is FS_IOC_FIEMAP. The kernel reads the head and writes at most `count` extents behind it.
// `FiemapRequest` has room for `count` extents, with no padding in between, and `as_ptr` is valid for all of it.
unsafe impl Ioctl for &mut FiemapRequest {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<FiemapHeader>(b'f', 11)
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        (&raw mut **self).cast()
    }

    unsafe fn output_from_ptr(
        _: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// A run of a file's bytes that is contiguous on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileExtent {
    /// Offset in the file, in bytes.
    pub(super) at: u64,
    /// Offset on the device, in bytes.
    pub(super) device: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// Whether another file shares the blocks.
    pub(super) is_shared: bool,
}

/// Returns the extents of the file's first `bytes` bytes, in order. `None` if the file system does not report them.
///
/// # Errors
/// The file system cannot read the extents.
pub(super) fn extents(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Option<Vec<FileExtent>>> {
    let mut all = Vec::new();
    let mut start = 0;
    while start < bytes {
        let mut request = FiemapRequest {
            head: FiemapHeader {
                start,
                length: bytes - start,
                flags: 0,
                mapped: 0,
                count: EXTENTS as u32,
                reserved: 0,
            },
            extents: [FiemapExtent::default(); EXTENTS],
        };
        // SAFETY: see `impl Ioctl for &mut FiemapRequest`. The call changes no file.
        match unsafe { ioctl(file, &mut request) } {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            // The file system does not report extents, or a seccomp filter forbids the call.
            Err(
                Errno::OPNOTSUPP
                | Errno::NOTTY
                | Errno::INVAL
                | Errno::NOSYS
                | Errno::PERM
                | Errno::ACCESS,
            ) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let mapped = (request.head.mapped as usize).min(EXTENTS);
        let found = &request.extents[..mapped];
        all.extend(found.iter().map(|raw| FileExtent {
            at: raw.logical,
            device: raw.physical,
            len: raw.length.min(bytes.saturating_sub(raw.logical)),
            is_shared: raw.flags & FiemapExtent::SHARED != 0,
        }));
        let Some(last) = found.last() else {
            break;
        };
        let before = start;
        start = last.logical.saturating_add(last.length);
        if last.flags & FiemapExtent::LAST != 0 || start <= before {
            break;
        }
    }
    all.retain(|extent: &FileExtent| extent.len > 0);
    Ok(Some(all))
}

/// Returns the ranges, as offset and length, of the file's first `bytes` bytes that are in shared blocks. Empty if the
/// file system does not report extents.
fn shared(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    let all = extents(file, bytes)?.unwrap_or_default();
    let shared = all.iter().filter(|extent| extent.is_shared);
    Ok(shared.map(|extent| (extent.at, extent.len)).collect())
}

/// Rewrites the shared blocks among the file's first `bytes` bytes, so that the file has blocks of its own. Durable on
/// `Ok`.
///
/// # Errors
/// The number of bytes still in shared blocks (0 if unknown), and the reason: the disk is full, a system call failed,
/// or the file system keeps sharing the blocks.
pub(super) fn unshare(file: &PoolFile, bytes: u64) -> Result<(), (u64, io::Error)> {
    let total = |parts: &[(u64, u64)]| parts.iter().map(|(_, len)| len).sum::<u64>();
    let parts = shared(file.fd(), bytes).map_err(|e| (0, e))?;
    if parts.is_empty() {
        return Ok(());
    }
    let rewritten = check_limit(bytes)
        .and_then(|()| {
            let mut parts = parts.iter();
            parts.try_for_each(|(at, len)| file.rewrite(*at..at + len))
        })
        .and_then(|()| file.sync());
    rewritten.map_err(|e| (total(&parts), e))?;
    match shared(file.fd(), bytes) {
        Ok(left) if left.is_empty() => Ok(()),
        Ok(left) => {
            let why = io::Error::other("the file system keeps sharing blocks that were rewritten");
            Err((total(&left), why))
        }
        Err(e) => Err((total(&parts), e)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_without_a_reflink_copy_shares_no_blocks() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[7; 1 << 20]).expect("a little space");
        assert_eq!(shared(file.as_fd(), 1 << 20).expect("it tells"), []);
        let pipe = io::pipe().expect("a pipe");
        let unknown = shared(pipe.0.as_fd(), 1 << 20);
        assert_eq!(unknown.expect("what does not tell shares nothing"), []);
    }
}
