//! The extents of a file on its device (FIEMAP).

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

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
