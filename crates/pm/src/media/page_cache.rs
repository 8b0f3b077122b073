//! Discards pages of a pool's file that are still in the page cache when the pool is opened.
//!
//! A failed sync leaves pages in the page cache whose bytes are not on the device. Linux marks them
//! clean: no later sync writes them, and later syncs report success. The process in which the sync
//! failed acknowledges no more writes (PM-FILE-3 of [`file`](super::file)). But until the kernel drops these pages, the next
//! process would read them, accept their records and write data that depends on them.
//!
//! ```text
//!   open ─▶ sync ─▶ drop the superblock's pages ─▶ read it ─┬─▶ closed cleanly: other pages stay cached
//!                                                           └─▶ else: drop all pages
//!                                                                  └─▶ rewrite pages not dropped, sync
//! ```
//!
//! # Invariants
//! PM-CACHE-1  When a file medium opens an existing file, every byte it reads is on the device: the
//!     page was dropped and is read from the device, or it was rewritten by a sync that
//!     succeeded, or the pool was closed cleanly.
//! PM-CACHE-2  Both copies of the superblock record a clean close only after a sync
//!     that covered every write except that of the second copy, in a process in which no write and no sync
//!     had failed.
//!
//! A file in memory (tmpfs) has no device; its pages are the file.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::space::PoolFile;
use crate::offset::PAGE;
use crate::pool;

/// Bytes of the largest folio. The kernel caches pages in folios and drops only whole ones.
const FOLIO_BYTES_MAX: u64 = 2 << 20;
/// Bytes whose pages one `mincore` call checks.
const STEP_BYTES: u64 = 256 << 20;

/// Makes the cached pages of `file` equal to its device (PM-CACHE-1).
///
/// # Errors
/// The device cannot be written or read.
pub(super) fn evict(file: &PoolFile) -> io::Result<()> {
    // Dirty pages of a killed process are valid and must be written, because the kernel does not drop dirty pages. The
    // first sync may report an earlier, unreported error, for pages that are lost and dropped below. So it is retried.
    file.sync().or_else(|_| file.sync())?;
    match was_closed(file)? {
        true => Ok(()),
        false => evict_all(file),
    }
}

/// Returns whether the superblock on the device, not in the page cache, records a clean close.
fn was_closed(file: &PoolFile) -> io::Result<bool> {
    file.drop_cached(0..FOLIO_BYTES_MAX.min(file.bytes()?))?;
    // A file without an identity is never marked as in use.
    if file.id().is_none() || !cached(file, 0..pool::HEAD_BYTES)?.is_empty() {
        return Ok(false);
    }
    let mut copies = [[0; pool::COPY_BYTES]; 2];
    for (copy, at) in copies.iter_mut().zip(pool::COPIES) {
        file.read(at.0, copy)?;
    }
    let closed = |summary: &pool::PoolSummary| {
        summary.in_use_as.is_none() && !summary.needs_repair // both copies say so
    };
    // A file that is not a pool is refused later, so its pages need not be dropped.
    Ok(pool::summary(&copies).as_ref().map_or(true, closed))
}

fn evict_all(file: &PoolFile) -> io::Result<()> {
    let bytes = file.bytes()?;
    file.drop_cached(0..bytes)?;
    let mut is_written = false;
    for from in (0..bytes).step_by(STEP_BYTES as usize) {
        for run in cached(file, from..bytes.min(from + STEP_BYTES))? {
            file.rewrite(run)?; // Makes its pages dirty, so that the sync below writes them.
            is_written = true;
        }
    }
    match is_written {
        true => file.sync(),
        false => Ok(()),
    }
}

/// Returns the ranges of `part`, in whole pages, that are in the page cache. `part.start` is page-aligned.
fn cached(file: &PoolFile, part: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let len = usize::try_from(part.end - part.start).map_err(io::Error::other)?;
    let mut resident = vec![0; len.div_ceil(PAGE as usize)];
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: a new mapping at an address that the kernel chooses. Its pages are never accessed.
    let at = unsafe {
        let flags = MapFlags::SHARED;
        mmap(
            ptr::null_mut(),
            len,
            ProtFlags::READ,
            flags,
            file.fd(),
            part.start,
        )?
    };
    let told = page_states(at, len, &mut resident);
    // SAFETY: unmaps the mapping just made, to which no reference exists.
    unsafe { munmap(at, len)? };
    told?;
    let mut runs: Vec<Range<u64>> = Vec::new();
    let pages = (part.start..part.end).step_by(PAGE as usize);
    for (page, _) in pages.zip(&resident).filter(|(_, state)| **state & 1 != 0) {
        let end = part.end.min(page + PAGE);
        match runs.last_mut() {
            Some(run) if run.end == page => run.end = end,
            _ => runs.push(page..end),
        }
    }
    Ok(runs)
}

/// Sets bit 0 of each page's byte in `states` if that page of the mapping is in memory.
fn page_states(at: *mut c_void, len: usize, states: &mut [u8]) -> io::Result<()> {
    assert!(states.len() >= len.div_ceil(PAGE as usize));
    // SAFETY: the kernel writes one byte for each page of `len` bytes, and `states` has room for them. It does not
    // access the memory at `at`.
    match unsafe { libc::mincore(at, len, states.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
