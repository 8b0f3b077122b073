//! What the kernel still caches of a pool's file when the pool is opened, and why it is not trusted.
//!
//! A sync that fails leaves pages in the page cache that the device does not have. Linux calls them
//! clean: no later sync writes them, and each answers that all is well. The process in which the sync
//! failed acknowledges nothing any more (F3 of [`file`](super::file)), but the next one would read
//! such pages, accept their records and build on them, until the kernel drops the pages.
//!
//! ```text
//!   open ─▶ sync ─▶ drop the superblock's pages ─▶ read it ─┬─▶ closed cleanly: the rest stays cached
//!                                                           └─▶ else: drop all pages
//!                                                                  └─▶ write those that stay, sync
//! ```
//!
//! # Invariants
//! PM-CACHE-1  What a file medium shows of an existing file when it is opened is on the device: the
//!     pages were dropped and are read from it, or they were written to it again by a sync that did not
//!     fail, or the pool was closed cleanly.
//! PM-CACHE-2  Both copies of the superblock say that a pool was closed cleanly only after a sync
//!     that followed every write but the second copy's, in a process in which no write and no sync
//!     had failed.
//!
//! A file in memory (tmpfs) has no device; its pages are the file.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::space::PoolFile;
use super::window::PAGE;
use crate::pool;

/// Bytes of the largest folio: the kernel caches pages in such runs, and drops whole ones only.
const FOLIO_BYTES_MAX: u64 = 2 << 20;
/// Bytes whose pages are asked about in one call.
const STEP_BYTES: u64 = 256 << 20;

/// Brings what is cached of `file` in line with its device (PM-CACHE-1).
///
/// # Errors
/// The device cannot be written or read.
pub(super) fn evict(file: &PoolFile) -> io::Result<()> {
    // What a killed process wrote and did not sync may still be written, and is not dropped. The first
    // sync may report an error that nobody has asked for yet: of pages that are lost, and dropped below.
    file.sync().or_else(|_| file.sync())?;
    match was_closed(file)? {
        true => Ok(()),
        false => evict_all(file),
    }
}

/// Whether the device, not the cache, says that the pool was closed cleanly.
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
        summary.in_use_as.is_none() && !summary.mended_at_open // both copies say so
    };
    // What is no pool is refused later, and there is nothing to drop for that.
    Ok(pool::summary(&copies).as_ref().map_or(true, closed))
}

fn evict_all(file: &PoolFile) -> io::Result<()> {
    let bytes = file.bytes()?;
    file.drop_cached(0..bytes)?;
    let mut is_written = false;
    for from in (0..bytes).step_by(STEP_BYTES as usize) {
        for run in cached(file, from..bytes.min(from + STEP_BYTES))? {
            file.write_again(run)?; // Its pages are dirty from then on.
            is_written = true;
        }
    }
    match is_written {
        true => file.sync(),
        false => Ok(()),
    }
}

/// The runs of pages of `part` that are in the page cache. `part` begins with a page.
fn cached(file: &PoolFile, part: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let len = usize::try_from(part.end - part.start).map_err(io::Error::other)?;
    let mut resident = vec![0; len.div_ceil(PAGE as usize)];
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: a new mapping at an address of the kernel's choice; its pages are never accessed.
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
    // SAFETY: the mapping just made.
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

/// Asks which pages of a mapping are in memory: bit 0 of each page's byte.
fn page_states(at: *mut c_void, len: usize, states: &mut [u8]) -> io::Result<()> {
    assert!(states.len() >= len.div_ceil(PAGE as usize));
    // SAFETY: the kernel writes a byte for each page of `len` bytes; it only asks about `at`.
    match unsafe { libc::mincore(at, len, states.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
