//! Reads of a file: through a mapping, or by system calls.
//!
//! ```text
//!   mapped   window ──────── page fault ────────▶ page cache ──▶ device
//!   pread    pread ─────────────────────────────▶ page cache ──▶ device
//!   direct   cachestat ─┬─ all pages cached ────▶ page cache
//!                       └─ else: pread, O_DIRECT ──────────────▶ device
//! ```
//!
//! A read through a mapping makes no system call. But a device error is a signal (SIGBUS), and every page that was read
//! takes an entry in the page tables. A system call returns the error. A direct read leaves no page in the page cache,
//! so bytes that are read once do not evict other pages.
//!
//! # Invariants
//! PM-READ-1  If a system call cannot read a page, or the file no longer contains it, the reader marks the page as unreadable
//!     and then returns zeros for it, until the page is written. [`Window`] does the same, so after a read callers
//!     check [`FileReader::unreadable`] in every mode.
//! PM-READ-2  A direct read returns every write that completed before it began: the kernel writes dirty pages to the device
//!     before it reads the device. The self-test of each open checks it.
//!
//! `cachestat` reports which pages are cached. `preadv2` with `RWF_NOWAIT` would save a call, but it makes the kernel
//! read a page that is not cached into the cache.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{Advice, AtFlags, StatxFlags};

use super::explained::explained;
use super::space::{FileIo, PoolFile, Progress};
use super::window::{
    MapSource, RESERVE_BYTES, Window, panic_invalid_word, panic_outside, panic_unreadable_word,
};
use crate::medium::{Off, WORD, total_bytes};
use crate::offset::PAGE;
use crate::sync::ignore_poison;

/// How the bytes of a [`File`](super::File) are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadMode {
    /// Through a mapping, without system calls.
    #[default]
    Mapping,
    /// By `pread`. Nothing is mapped, and a device error is an error of the call.
    Pread,
    /// By `pread` if the page cache contains all requested pages, otherwise from the device by `O_DIRECT`. Needs
    /// Linux 6.5 and a file system with direct reads.
    Direct,
}

impl ReadMode {
    /// All modes.
    pub const ALL: [ReadMode; 3] = [ReadMode::Mapping, ReadMode::Pread, ReadMode::Direct];

    /// Returns the mode's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReadMode::Mapping => "mapped",
            ReadMode::Pread => "pread",
            ReadMode::Direct => "direct",
        }
    }
}

/// Reader of a file, by a mapping or by system calls. See the module documentation.
pub(super) enum FileReader {
    Mapped(Window),
    Calls(CallReader),
}

impl FileReader {
    /// Makes a reader of the first `bytes` bytes of `file`.
    ///
    /// # Errors
    /// The process has too few addresses for a mapping, or the file cannot be read in this mode.
    pub(super) fn new(file: &PoolFile, by: ReadMode, bytes: u64) -> io::Result<FileReader> {
        let reader = match by {
            ReadMode::Mapping => {
                let most = RESERVE_BYTES.max(bytes.saturating_mul(2));
                let mut window = Window::reserve(bytes, most)?;
                window.watch_faults(false)?;
                window.extend(MapSource::Read(file.fd()), bytes)?;
                FileReader::Mapped(window)
            }
            ReadMode::Pread => FileReader::Calls(CallReader::new(file, None, bytes)?),
            ReadMode::Direct => {
                let direct = DirectReader::open(file)?;
                FileReader::Calls(CallReader::new(file, Some(direct), bytes)?)
            }
        };
        let parts = file.unreadable()?;
        match &reader {
            FileReader::Mapped(window) => window.mark_all_unreadable(&parts)?,
            FileReader::Calls(calls) => parts
                .into_iter()
                .for_each(|part| calls.mark_unreadable(part)),
        }
        Ok(reader)
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        match self {
            FileReader::Mapped(window) => window.len(),
            FileReader::Calls(calls) => calls.len.load(Ordering::Acquire),
        }
    }

    /// Checks that the reader can grow to `len` bytes.
    ///
    /// # Errors
    /// The reserved address range is too small.
    pub(super) fn check_room(&self, len: u64) -> io::Result<()> {
        match self {
            FileReader::Mapped(window) => window.check_room(len),
            FileReader::Calls(_) => Ok(()),
        }
    }

    /// Grows the reader to `len` bytes.
    ///
    /// # Errors
    /// The new bytes cannot be mapped.
    pub(super) fn extend(&self, file: &PoolFile, len: u64) -> io::Result<()> {
        match self {
            FileReader::Mapped(window) => window.extend(MapSource::Read(file.fd()), len),
            FileReader::Calls(calls) => {
                calls.len.store(len, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Checks that the `len` bytes at `at` are in the file.
    ///
    /// # Panics
    /// When they are not.
    #[inline]
    #[track_caller]
    pub(super) fn check(&self, at: Off, len: usize) {
        match self {
            FileReader::Mapped(window) => {
                window.address(at, len);
            }
            FileReader::Calls(calls) => calls.check(at, len),
        }
    }

    /// As [`FileReader::check`], for bytes to be written.
    ///
    /// # Panics
    /// Also when `at` is not 8-aligned.
    #[inline]
    #[track_caller]
    pub(super) fn check_aligned(&self, at: Off, len: usize) {
        match self {
            FileReader::Mapped(window) => {
                window.aligned(at, len);
            }
            FileReader::Calls(calls) => calls.check_aligned(at, len),
        }
    }

    #[inline]
    #[track_caller]
    pub(super) fn load(&self, at: Off) -> u64 {
        match self {
            FileReader::Mapped(window) => window.load(at),
            FileReader::Calls(calls) => calls.load(at),
        }
    }

    #[inline]
    #[track_caller]
    pub(super) fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        match self {
            FileReader::Mapped(window) => window.load_words(at, step),
            FileReader::Calls(calls) => calls.load_words(at, step),
        }
    }

    #[inline]
    #[track_caller]
    pub(super) fn copy_out(&self, at: Off, to: &mut [u8]) {
        match self {
            FileReader::Mapped(window) => window.copy_out(at, to),
            FileReader::Calls(calls) => calls.copy_out(at, to),
        }
    }

    #[inline]
    #[track_caller]
    pub(super) fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        match self {
            FileReader::Mapped(window) => window.append_out(at, len, to),
            FileReader::Calls(calls) => {
                calls.check(at, len); // Panics before `to` changes.
                let from = to.len();
                to.resize(from + len, 0);
                calls.read(at.0, &mut to[from..]);
            }
        }
    }

    #[inline]
    #[track_caller]
    pub(super) fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        match self {
            FileReader::Mapped(window) => window.matches(at, bytes),
            FileReader::Calls(calls) => {
                let mut from = 0;
                calls.visit(at, bytes.len(), &mut |part| {
                    let same = bytes[from..].starts_with(part);
                    from += part.len();
                    same
                })
            }
        }
    }

    #[inline]
    #[track_caller]
    pub(super) fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        match self {
            FileReader::Mapped(window) => window.crc(at, len, seed),
            FileReader::Calls(calls) => {
                let mut crc = seed;
                calls.visit(at, len, &mut |part| {
                    crc = crate::crc::crc32c_append(crc, part);
                    true
                });
                crc
            }
        }
    }

    #[inline]
    pub(super) fn prefetch(&self, at: Off, len: usize) {
        if let FileReader::Mapped(window) = self {
            window.prefetch(at, len);
        }
    }

    /// Reads the whole file into the page cache. Does nothing in [`ReadMode::Direct`].
    pub(super) fn prefault(&self, progress: Progress<'_>) {
        match self {
            FileReader::Mapped(window) => window.prefault(false, progress),
            FileReader::Calls(calls) => calls.read_ahead(progress),
        }
    }

    /// Returns whether any page was found unreadable.
    #[inline]
    pub(super) fn has_unreadable(&self) -> bool {
        match self {
            FileReader::Mapped(window) => window.has_unreadable(),
            FileReader::Calls(calls) => calls.has_unreadable(),
        }
    }

    /// Returns the number of bytes in pages that were found unreadable.
    pub(super) fn unreadable_bytes(&self) -> u64 {
        match self {
            FileReader::Mapped(window) => window.unreadable_bytes(),
            FileReader::Calls(calls) => calls.unreadable_pages.load(Ordering::Relaxed) * PAGE,
        }
    }

    /// Returns the first offset among the `len` bytes at `at` that is in an unreadable page. Call it after a read:
    /// bytes read before the call that are not in such a page came from the file.
    #[inline]
    pub(super) fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        match self {
            FileReader::Mapped(window) => window.unreadable(at, len),
            FileReader::Calls(calls) => calls.unreadable(at, len),
        }
    }

    /// Makes unreadable pages readable again after `parts` were written at `at`, so that reads return the new bytes and
    /// not zeros. No other thread reads those bytes at the same time, because they are unpublished.
    ///
    /// # Errors
    /// The pages cannot be mapped.
    #[cold]
    pub(super) fn mark_readable(
        &self,
        file: &PoolFile,
        at: Off,
        parts: &[&[u8]],
    ) -> io::Result<()> {
        let len = total_bytes(parts);
        match self {
            FileReader::Mapped(window) => window.map_again(MapSource::Read(file.fd()), at, len),
            FileReader::Calls(calls) => {
                calls.unmark_unreadable(at.0..at.0.saturating_add(len as u64));
                Ok(())
            }
        }
    }
}

/// Reader of a file by system calls.
pub(super) struct CallReader {
    file: OwnedFd,
    direct: Option<DirectReader>,
    io: Arc<dyn FileIo>,
    len: AtomicU64,
    /// Numbers of the pages that could not be read (PM-READ-1).
    unreadable: Mutex<BTreeSet<u64>>,
    /// Length of `unreadable`.
    unreadable_pages: AtomicU64,
}

impl CallReader {
    /// Size of the stack buffer for short reads, in bytes.
    const STACK_BUFFER_BYTES: usize = 512;
    /// Size of the stack buffer for longer visits and checksums, in bytes.
    const VISIT_BUFFER_BYTES: usize = 16 << 10;

    fn new(file: &PoolFile, direct: Option<DirectReader>, bytes: u64) -> io::Result<CallReader> {
        Ok(CallReader {
            file: file.fd().try_clone_to_owned()?,
            direct,
            io: Arc::clone(file.io()),
            len: AtomicU64::new(bytes),
            unreadable: Mutex::default(),
            unreadable_pages: AtomicU64::new(0),
        })
    }

    #[inline]
    #[track_caller]
    fn check(&self, at: Off, len: usize) {
        let most = self.len.load(Ordering::Acquire);
        let end = at.0.checked_add(len as u64);
        if end.is_none_or(|end| end > most) {
            panic_outside(at, len, most);
        }
    }

    #[inline]
    #[track_caller]
    fn check_aligned(&self, at: Off, len: usize) {
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "writes must be 8-aligned: {at:?}"
        );
        self.check(at, len);
    }

    #[track_caller]
    fn load(&self, at: Off) -> u64 {
        let most = self.len.load(Ordering::Acquire);
        if !at.0.is_multiple_of(WORD as u64) || at.0 >= most {
            panic_invalid_word(at, most);
        }
        let [word] = self.load_words(at, 1);
        word
    }

    #[track_caller]
    fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        let span = match N.checked_sub(1) {
            Some(steps) => (steps.checked_mul(step))
                .and_then(|words| words.checked_add(1)?.checked_mul(WORD))
                .unwrap_or(usize::MAX),
            None => 0,
        };
        self.check_aligned(at, span);
        let word = |bytes: &[u8]| {
            let (word, _) = bytes.split_first_chunk::<WORD>().expect("a word was read");
            u64::from_le_bytes(*word)
        };
        let words = if span <= CallReader::STACK_BUFFER_BYTES {
            let mut bytes = [0; CallReader::STACK_BUFFER_BYTES];
            self.read(at.0, &mut bytes[..span]);
            std::array::from_fn(|n| word(&bytes[n * step * WORD..]))
        } else {
            std::array::from_fn(|n| {
                let mut bytes = [0; WORD];
                self.read(at.0 + (n * step * WORD) as u64, &mut bytes);
                word(&bytes)
            })
        };
        if let Some(at) = self.unreadable(at, span) {
            panic_unreadable_word(at);
        }
        words
    }

    #[track_caller]
    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.check(at, to.len());
        self.read(at.0, to);
    }

    /// Calls `look` with consecutive parts of the `len` bytes at `at`, until it returns `false`. Returns the last
    /// result of `look`.
    #[track_caller]
    fn visit(&self, at: Off, len: usize, look: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.check(at, len);
        if len <= CallReader::STACK_BUFFER_BYTES {
            let mut bytes = [0; CallReader::STACK_BUFFER_BYTES];
            self.read(at.0, &mut bytes[..len]);
            return look(&bytes[..len]);
        }
        let mut bytes = [0; CallReader::VISIT_BUFFER_BYTES];
        (0..len)
            .step_by(CallReader::VISIT_BUFFER_BYTES)
            .all(|from| {
                let part = &mut bytes[..CallReader::VISIT_BUFFER_BYTES.min(len - from)];
                self.read(at.0 + from as u64, part);
                look(part)
            })
    }

    /// Reads `to.len()` bytes at byte `at` into `to`, with zeros for pages that cannot be read (PM-READ-1). The caller has
    /// checked the range.
    fn read(&self, at: u64, to: &mut [u8]) {
        let is_read = match &self.direct {
            Some(direct) => direct.read(&*self.io, self.file.as_fd(), at, to),
            None => has_read_all(&*self.io, self.file.as_fd(), at, to),
        };
        if !is_read || self.unreadable(Off(at), to.len()).is_some() {
            self.read_pages(at, to);
        }
    }

    /// As [`CallReader::read`], page by page.
    #[cold]
    fn read_pages(&self, at: u64, to: &mut [u8]) {
        let end = at + to.len() as u64;
        let mut from = at;
        while from < end {
            let page = from / PAGE;
            let until = end.min((page + 1) * PAGE);
            let part = &mut to[(from - at) as usize..(until - at) as usize];
            if self.unreadable_pages().contains(&page) || self.read_page(from, part).is_err() {
                self.mark_unreadable(from..until);
                part.fill(0);
            }
            from = until;
        }
    }

    /// Reads `to.len()` bytes at byte `at`, all in one page, into `to`. If the file ends in this page, the bytes behind
    /// its end are zeros, as in a mapping.
    ///
    /// # Errors
    /// The page cannot be read, or the file ends before the page.
    fn read_page(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let file = self.file.as_fd();
        let read = read_all(&*self.io, file, at, to)?;
        let is_whole = read == to.len();
        to[read..].fill(0);
        match is_whole || read_all(&*self.io, file, at / PAGE * PAGE, &mut [0])? == 1 {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn unreadable_pages(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        ignore_poison(self.unreadable.lock())
    }

    /// Marks the pages of `part` as unreadable.
    fn mark_unreadable(&self, part: Range<u64>) {
        let end = part.end.min(self.len.load(Ordering::Acquire));
        let mut noted = self.unreadable_pages();
        noted.extend(part.start / PAGE..end.div_ceil(PAGE));
        let pages = noted.len() as u64;
        self.unreadable_pages.store(pages, Ordering::Release);
    }

    /// Marks the pages of `part` as readable again, because they were written.
    fn unmark_unreadable(&self, part: Range<u64>) {
        let mut noted = self.unreadable_pages();
        let pages = part.start / PAGE..part.end.div_ceil(PAGE);
        noted.retain(|page| !pages.contains(page));
        let pages = noted.len() as u64;
        self.unreadable_pages.store(pages, Ordering::Release);
    }

    #[inline]
    fn has_unreadable(&self) -> bool {
        self.unreadable_pages.load(Ordering::Acquire) != 0
    }

    #[inline]
    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        if !self.has_unreadable() {
            return None;
        }
        let end = at.0.saturating_add(len as u64);
        let pages = at.0 / PAGE..end.div_ceil(PAGE).max(at.0 / PAGE);
        let page = *self.unreadable_pages().range(pages).next()?;
        Some(Off(at.0.max(page * PAGE)))
    }

    /// Makes the kernel read the file into the page cache, unless reads are direct.
    fn read_ahead(&self, progress: Progress<'_>) {
        const STEP: u64 = 64 << 20;
        let total = self.len.load(Ordering::Acquire);
        if self.direct.is_some() {
            return progress(total, total);
        }
        for from in (0..total).step_by(STEP as usize) {
            let to = total.min(from + STEP);
            // Only a hint.
            let len = std::num::NonZeroU64::new(to - from);
            let _ = rustix::fs::fadvise(&self.file, from, len, Advice::WillNeed);
            progress(to, total);
        }
    }
}

/// Reads `to.len()` bytes at byte `at` into `to`, or fewer at the file's end. Returns the number of bytes read.
fn read_all(io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match read_once(io, file, at + done as u64, &mut to[done..])? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Reads `to.len()` bytes at byte `at` into `to`. Returns whether all of them were read.
fn has_read_all(io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> bool {
    read_all(io, file, at, to).is_ok_and(|read| read == to.len())
}

/// Reader of a file from its device, past the page cache.
pub(super) struct DirectReader {
    /// The file, opened with `O_DIRECT`.
    file: fs::File,
    /// Alignment of the offsets, lengths and addresses of reads, in bytes: a power of two, at least [`PAGE`].
    block: usize,
    /// Free buffers, each of [`DirectReader::BUFFER_BYTES`] bytes plus one block.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl DirectReader {
    /// Maximum bytes of one read.
    const BUFFER_BYTES: usize = 256 << 10;
    /// Maximum number of free buffers.
    const BUFFERS_KEPT: usize = 16;

    /// Opens `file` for direct reads, and tries one.
    ///
    /// # Errors
    /// The file system does not support direct reads, or the kernel has no `cachestat` (Linux 6.5).
    pub(super) fn open(file: &PoolFile) -> io::Result<DirectReader> {
        let refused = |what: &'static str| {
            move |e: io::Error| {
                let text = format!("{what}: {e}");
                explained(e, text)
            }
        };
        let same = format!("/proc/self/fd/{}", file.fd().as_raw_fd());
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        let opened = options.open(same).map_err(refused("O_DIRECT"))?;
        let direct = DirectReader {
            block: block_bytes(opened.as_fd())?,
            file: opened,
            buffers: Mutex::default(),
        };
        cached_pages(file.fd(), 0..PAGE).map_err(refused("cachestat, which needs Linux 6.5"))?;
        let mut buffer = direct.buffer();
        let block = &mut direct.aligned(&mut buffer)[..direct.block];
        // An empty file returns 0 bytes, which is not an error.
        read_once(&**file.io(), direct.file.as_fd(), 0, block)
            .map_err(refused("a read with O_DIRECT"))?;
        Ok(direct)
    }

    /// Reads `to.len()` bytes at byte `at` into `to`: from `file` through the page cache if all pages are cached,
    /// otherwise from the device. Returns whether all bytes were read.
    fn read(&self, io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> bool {
        let end = at + to.len() as u64;
        let pages = at / PAGE * PAGE..end.next_multiple_of(PAGE);
        let all = (pages.end - pages.start) / PAGE;
        if cached_pages(file, pages).is_ok_and(|cached| cached >= all) {
            return has_read_all(io, file, at, to);
        }
        self.read_blocks(io, at, to).is_ok()
    }

    /// Reads `to.len()` bytes at byte `at` from the device into `to`.
    ///
    /// # Errors
    /// The device cannot be read, or the file is too short.
    pub(super) fn read_blocks(&self, io: &dyn FileIo, at: u64, to: &mut [u8]) -> io::Result<()> {
        let block = self.block as u64;
        let end = at + to.len() as u64;
        let mut buffer = self.buffer();
        let blocks = self.aligned(&mut buffer);
        let mut read = Ok(());
        for from in (at / block * block..end).step_by(DirectReader::BUFFER_BYTES) {
            let until = (from + DirectReader::BUFFER_BYTES as u64).min(end);
            let whole = until.next_multiple_of(block) - from;
            let needed = (until - from) as usize;
            // A single call: it returns fewer bytes only at the file's end, and a second call would not be aligned.
            read = read_once(io, self.file.as_fd(), from, &mut blocks[..whole as usize]).and_then(
                |read| match read >= needed {
                    true => Ok(()),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                },
            );
            if read.is_err() {
                break;
            }
            let first = from.max(at);
            let part = &blocks[(first - from) as usize..needed];
            to[(first - at) as usize..][..part.len()].copy_from_slice(part);
        }
        let mut buffers = ignore_poison(self.buffers.lock());
        if buffers.len() < DirectReader::BUFFERS_KEPT {
            buffers.push(buffer);
        }
        read
    }

    fn buffer(&self) -> Vec<u8> {
        let kept = ignore_poison(self.buffers.lock()).pop();
        kept.unwrap_or_else(|| vec![0; DirectReader::BUFFER_BYTES + self.block])
    }

    /// Returns the block-aligned part of a buffer, of [`DirectReader::BUFFER_BYTES`] bytes.
    fn aligned<'a>(&self, buffer: &'a mut [u8]) -> &'a mut [u8] {
        let from = buffer.as_ptr().align_offset(self.block);
        &mut buffer[from..][..DirectReader::BUFFER_BYTES]
    }
}

/// Returns the alignment of direct reads of `file`, in bytes. It is the alignment that the file system reports (since
/// Linux 6.1), but at least a page.
///
/// # Errors
/// The file system reports that it has no direct reads, or needs blocks larger than a buffer.
fn block_bytes(file: BorrowedFd<'_>) -> io::Result<usize> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let told = told.ok().filter(|told| {
        let mask = StatxFlags::from_bits_retain(told.stx_mask);
        mask.contains(StatxFlags::DIOALIGN)
    });
    let aligns = told.map(|told| (told.stx_dio_mem_align, told.stx_dio_offset_align));
    block_for(aligns)
}

/// Returns the alignment for `statx`'s alignments of memory and offset. `None` stands for no report.
fn block_for(aligns: Option<(u32, u32)>) -> io::Result<usize> {
    let Some((memory, offset)) = aligns else {
        return Ok(PAGE as usize);
    };
    let block = (memory.max(offset) as usize).max(PAGE as usize);
    if offset == 0 || !block.is_power_of_two() || block > DirectReader::BUFFER_BYTES {
        let why = format!(
            "statx reports an alignment of direct reads of {offset} bytes, which is not supported"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(block)
}

/// Reads up to `to.len()` bytes at byte `at` into `to` by one call. Returns the number of bytes read.
fn read_once(io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> io::Result<usize> {
    loop {
        match io.pread(file, to, at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Returns the number of pages of `part` that are in the page cache.
///
/// # Errors
/// The kernel has no `cachestat` (it is older than 6.5), or the file system has no page cache.
fn cached_pages(file: BorrowedFd<'_>, part: Range<u64>) -> io::Result<u64> {
    const CACHESTAT: libc::c_long = 451;
    let range = [part.start, part.end - part.start];
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads two words from `range` and writes five words to `counts`.
    let done = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0_u32,
        )
    };
    match done {
        0 => Ok(counts[0]),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direct_read_alignment_is_the_reported_one_between_a_page_and_a_buffer() {
        let block = |memory, offset| block_for(Some((memory, offset))).ok();
        assert_eq!(block_for(None).ok(), Some(4096));
        assert_eq!(block(4, 512), Some(4096));
        assert_eq!(block(512, 64 << 10), Some(64 << 10));
        for (memory, offset) in [(0, 0), (512, 0), (4, 12 << 10), (4, 512 << 10)] {
            assert_eq!(block(memory, offset), None, "{memory}, {offset}");
        }
    }
}
