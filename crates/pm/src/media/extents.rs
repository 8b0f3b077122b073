//! Blocks that a file shares with other files, and how it gets blocks of its own.
//!
//! A file that was copied by reference (`cp --reflink`, a snapshot of the file system) shares blocks with its
//! copy. The first overwrite of such a block takes new space, so that a full disk would stop a pool that was
//! allocated whole (S2). Writing the same bytes again takes that space at once, or fails before anything
//! depends on it. Every block holds the same bytes before and after, whenever the power goes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::filesystem::write_all;
use super::space::{PoolFile, check_limit};

/// Extents asked for by a call.
const EXTENTS: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

impl Extent {
    /// `FIEMAP_EXTENT_LAST`: no other comes after it.
    const LAST: u32 = 0x1;
    /// `FIEMAP_EXTENT_SHARED`: its blocks are another file's, too.
    const SHARED: u32 = 0x2000;
}

/// `struct fiemap`, with room for extents behind it.
#[repr(C)]
struct Request {
    head: Head,
    extents: [Extent; EXTENTS],
}

#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Head>() == 32 && size_of::<Extent>() == 56);

// SAFETY: the opcode is FS_IOC_FIEMAP. The kernel writes at most `count` extents behind the head, which is as
// many as `Request` has, and reads nothing else; `as_ptr` is valid for both, with no padding in between.
unsafe impl Ioctl for &mut Request {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Head>(b'f', 11)
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

/// The parts of the file's first `bytes` that share blocks: where each begins, and its length. None where the
/// file system does not tell.
fn shared(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut shared = Vec::new();
    let mut start = 0;
    while start < bytes {
        let mut request = Request {
            head: Head {
                start,
                length: bytes - start,
                flags: 0,
                mapped: 0,
                count: EXTENTS as u32,
                reserved: 0,
            },
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: see `Request`; asking changes no file.
        match unsafe { ioctl(file, &mut request) } {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => break,
            Err(e) => return Err(e.into()),
        }
        let mapped = (request.head.mapped as usize).min(EXTENTS);
        let Some(last) = request.extents[..mapped].last() else {
            break;
        };
        let before = start;
        start = last.logical.saturating_add(last.length);
        for extent in &request.extents[..mapped] {
            let end = extent.logical.saturating_add(extent.length).min(bytes);
            if extent.flags & Extent::SHARED != 0 && extent.logical < end {
                shared.push((extent.logical, end - extent.logical));
            }
        }
        if last.flags & Extent::LAST != 0 || start <= before {
            break;
        }
    }
    Ok(shared)
}

/// Gives the file's first `bytes` blocks of their own, durably.
///
/// # Errors
/// Bytes that share blocks still, and why: the disk is full, or the file system shares them again.
pub(super) fn unshare(file: &PoolFile, bytes: u64) -> Result<(), (u64, io::Error)> {
    let total = |parts: &[(u64, u64)]| parts.iter().map(|(_, len)| len).sum::<u64>();
    let parts = shared(file.fd(), bytes).map_err(|e| (0, e))?;
    if parts.is_empty() {
        return Ok(());
    }
    let rewritten = check_limit(bytes)
        .and_then(|()| parts.iter().try_for_each(|part| rewrite(file, *part)))
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

/// Writes `len` bytes at `at` again, as they are.
fn rewrite(file: &PoolFile, (at, len): (u64, u64)) -> io::Result<()> {
    const STEP: u64 = 1 << 20;
    let mut buffer = vec![0; STEP.min(len) as usize];
    for from in (at..at + len).step_by(STEP as usize) {
        let run = STEP.min(at + len - from) as usize;
        file.read(from, &mut buffer[..run])?;
        write_all(file.fd(), &buffer[..run], from)?;
    }
    Ok(())
}
