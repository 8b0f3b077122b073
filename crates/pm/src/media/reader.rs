//! How a file's bytes are read: through a mapping, or by system calls.
//!
//! ```text
//!   mapped   window ──────── page fault ────────▶ page cache ──▶ device
//!   pread    pread ─────────────────────────────▶ page cache ──▶ device
//!   direct   cachestat ─┬─ all pages cached ────▶ page cache
//!                       └─ else: pread, O_DIRECT ──────────────▶ device
//! ```
//!
//! A mapping costs no call, but an error of the device is a signal (SIGBUS) and every page that was read takes an entry of
//! the page tables. A call returns the error. With `direct`, what is read once does not push other pages out of the page
//! cache.
//!
//! # Invariants
//! R1  A page that a call cannot read, or the file does not have any more, reads as zeros and is noted before the zeros are
//!     returned, until it is written. That is what [`Window`] does, so readers ask the same question after a read.
//! R2  A direct read sees what was written before it began: pages that are in the page cache and not on the device are
//!     written by the kernel before it reads the device. The self-test of each open tries it.
//!
//! The page cache is asked by `cachestat`. `preadv2` with `RWF_NOWAIT` would be one call fewer, but where a page is not
//! cached it has the kernel read that page into the cache.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{Advice, AtFlags, StatxFlags};

use super::space::{FileIo, PoolFile, Progress};
use super::window::{MapSource, PAGE, RESERVE_BYTES, Window, no_word, outside, unreadable_word};
use crate::medium::{Off, WORD, bytes_of};

/// How the bytes of a [`File`](super::File) are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadMode {
    /// Through a mapping: no call a read.
    #[default]
    Mapping,
    /// By `pread`: nothing is mapped, and an error of the device is an error of the call.
    Pread,
    /// By `pread` where the page cache has all of it, else from the device (`O_DIRECT`) past the page cache. Needs
    /// Linux 6.5 and a file system with direct reads.
    Direct,
}

impl ReadMode {
    /// All of them.
    pub const ALL: [ReadMode; 3] = [ReadMode::Mapping, ReadMode::Pread, ReadMode::Direct];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReadMode::Mapping => "mapped",
            ReadMode::Pread => "pread",
            ReadMode::Direct => "direct",
        }
    }
}

/// What reads a file. See the module's head.
pub(super) enum FileReader {
    Mapped(Window),
    Calls(CallReader),
}

impl FileReader {
    /// Reads `bytes` of `file`.
    ///
    /// # Errors
    /// There are no addresses for it, or it cannot be read in this way.
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
            FileReader::Calls(calls) => parts.into_iter().for_each(|part| calls.note(part)),
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

    /// Whether `len` bytes can be read of a file that is as long.
    ///
    /// # Errors
    /// There are not as many addresses.
    pub(super) fn check_room(&self, len: u64) -> io::Result<()> {
        match self {
            FileReader::Mapped(window) => window.check_room(len),
            FileReader::Calls(_) => Ok(()),
        }
    }

    /// From now on `len` bytes are read.
    ///
    /// # Errors
    /// They cannot be mapped.
    pub(super) fn extend(&self, file: &PoolFile, len: u64) -> io::Result<()> {
        match self {
            FileReader::Mapped(window) => window.extend(MapSource::Read(file.fd()), len),
            FileReader::Calls(calls) => {
                calls.len.store(len, Ordering::Release);
                Ok(())
            }
        }
    }

    /// # Panics
    /// When the `len` bytes at `at` are not all inside.
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

    /// As [`Reader::check`], of bytes to be written.
    ///
    /// # Panics
    /// Also when `at` is not the start of a word.
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
                calls.check(at, len); // On a panic `to` is as it was.
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

    /// Brings all of the file into the page cache, but for direct reads.
    pub(super) fn prefault(&self, progress: Progress<'_>) {
        match self {
            FileReader::Mapped(window) => window.prefault(false, progress),
            FileReader::Calls(calls) => calls.read_ahead(progress),
        }
    }

    /// Whether any page was found unreadable.
    #[inline]
    pub(super) fn has_unreadable(&self) -> bool {
        match self {
            FileReader::Mapped(window) => window.has_unreadable(),
            FileReader::Calls(calls) => calls.has_unreadable(),
        }
    }

    /// Bytes of the pages that were found unreadable.
    pub(super) fn unreadable_bytes(&self) -> u64 {
        match self {
            FileReader::Mapped(window) => window.unreadable_bytes(),
            FileReader::Calls(calls) => calls.unreadable_pages.load(Ordering::Relaxed) * PAGE,
        }
    }

    /// The first of `len` bytes at `at` that is in an unreadable page. Of what was read before the call: whatever is
    /// not in one was in the file.
    #[inline]
    pub(super) fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        match self {
            FileReader::Mapped(window) => window.unreadable(at, len),
            FileReader::Calls(calls) => calls.unreadable(at, len),
        }
    }

    /// Shows what was just written into pages that could not be read before, in place of zeros. No other thread reads
    /// those bytes meanwhile: they are unpublished.
    ///
    /// # Errors
    /// They cannot be mapped.
    #[cold]
    pub(super) fn show(&self, file: &PoolFile, at: Off, parts: &[&[u8]]) -> io::Result<()> {
        let len = bytes_of(parts);
        match self {
            FileReader::Mapped(window) => window.map_again(MapSource::Read(file.fd()), at, len),
            FileReader::Calls(calls) => {
                calls.forget(at.0..at.0.saturating_add(len as u64));
                Ok(())
            }
        }
    }
}

/// Reads a file by calls.
pub(super) struct CallReader {
    file: OwnedFd,
    direct: Option<DirectReader>,
    io: Arc<dyn FileIo>,
    len: AtomicU64,
    /// Pages that could not be read (R1), and how many they are.
    unreadable: Mutex<BTreeSet<u64>>,
    unreadable_pages: AtomicU64,
}

impl CallReader {
    /// Bytes of which few are read on the stack.
    const FEW: usize = 512;
    /// Bytes that are read at once where they are only looked at.
    const MANY: usize = 16 << 10;

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
            outside(at, len, most);
        }
    }

    #[inline]
    #[track_caller]
    fn check_aligned(&self, at: Off, len: usize) {
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "bytes are copied in from a word on: {at:?}"
        );
        self.check(at, len);
    }

    #[track_caller]
    fn load(&self, at: Off) -> u64 {
        let most = self.len.load(Ordering::Acquire);
        if !at.0.is_multiple_of(WORD as u64) || at.0 >= most {
            no_word(at, most);
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
        let words = if span <= CallReader::FEW {
            let mut bytes = [0; CallReader::FEW];
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
            unreadable_word(at);
        }
        words
    }

    #[track_caller]
    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.check(at, to.len());
        self.read(at.0, to);
    }

    /// Calls `look` with one part after another of the `len` bytes at `at`, until it answers `false`; its last answer.
    #[track_caller]
    fn visit(&self, at: Off, len: usize, look: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.check(at, len);
        if len <= CallReader::FEW {
            let mut bytes = [0; CallReader::FEW];
            self.read(at.0, &mut bytes[..len]);
            return look(&bytes[..len]);
        }
        let mut bytes = [0; CallReader::MANY];
        (0..len).step_by(CallReader::MANY).all(|from| {
            let part = &mut bytes[..CallReader::MANY.min(len - from)];
            self.read(at.0 + from as u64, part);
            look(part)
        })
    }

    /// Fills `to` from byte `at` on, which is inside; with zeros where the file cannot be read (R1).
    fn read(&self, at: u64, to: &mut [u8]) {
        let is_read = match &self.direct {
            Some(direct) => direct.read(&*self.io, self.file.as_fd(), at, to),
            None => has_read_all(&*self.io, self.file.as_fd(), at, to),
        };
        if !is_read || self.unreadable(Off(at), to.len()).is_some() {
            self.read_pages(at, to);
        }
    }

    /// As [`Calls::read`], page by page.
    #[cold]
    fn read_pages(&self, at: u64, to: &mut [u8]) {
        let end = at + to.len() as u64;
        let mut from = at;
        while from < end {
            let page = from / PAGE;
            let until = end.min((page + 1) * PAGE);
            let part = &mut to[(from - at) as usize..(until - at) as usize];
            if self.noted().contains(&page) || self.read_page(from, part).is_err() {
                self.note(from..until);
                part.fill(0);
            }
            from = until;
        }
    }

    /// Fills `to`, part of a page, from byte `at` on; with zeros behind the end of a file that ends in this page, as a
    /// mapping shows it.
    ///
    /// # Errors
    /// The page cannot be read, or the file ends before it.
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

    fn noted(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.unreadable.lock().expect("no holder panics")
    }

    /// Notes that the pages of `part` cannot be read.
    fn note(&self, part: Range<u64>) {
        let end = part.end.min(self.len.load(Ordering::Acquire));
        let mut noted = self.noted();
        noted.extend(part.start / PAGE..end.div_ceil(PAGE));
        let pages = noted.len() as u64;
        self.unreadable_pages.store(pages, Ordering::Release);
    }

    /// Notes that the pages of `part` were written.
    fn forget(&self, part: Range<u64>) {
        let mut noted = self.noted();
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
        let page = *self.noted().range(pages).next()?;
        Some(Off(at.0.max(page * PAGE)))
    }

    /// Has the kernel read the file into the page cache, unless reads go past it.
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

/// Fills `to` from byte `at` on by calls, up to the file's end; the number of bytes.
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

/// Whether all of `to` could be filled from byte `at` on.
fn has_read_all(io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> bool {
    read_all(io, file, at, to).is_ok_and(|read| read == to.len())
}

/// Reads from the device.
pub(super) struct DirectReader {
    /// Opened with `O_DIRECT`.
    file: fs::File,
    /// What offsets, lengths and addresses of reads are multiples of, in bytes: a power of two, [`PAGE`] or more.
    block: usize,
    /// Buffers for the next reads, each of [`Direct::BUFFER`] bytes and a block more.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl DirectReader {
    /// Most bytes of a read.
    const BUFFER: usize = 256 << 10;
    /// Most buffers that are kept.
    const BUFFERS_KEPT: usize = 16;

    /// # Errors
    /// The file system has no direct reads, or the kernel has no `cachestat`.
    pub(super) fn open(file: &PoolFile) -> io::Result<DirectReader> {
        let refused = |what: &'static str| {
            move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"))
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
        cached_pages(file.fd(), 0..PAGE).map_err(refused("cachestat, of Linux 6.5"))?;
        let mut buffer = direct.buffer();
        let block = &mut direct.aligned(&mut buffer)[..direct.block];
        // Of a file that is empty yet there is nothing, which is no error.
        read_once(&**file.io(), direct.file.as_fd(), 0, block)
            .map_err(refused("a read with O_DIRECT"))?;
        Ok(direct)
    }

    /// Fills `to` from byte `at` of `file` on; whether the file has all of it and can be read.
    fn read(&self, io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> bool {
        let end = at + to.len() as u64;
        let pages = at / PAGE * PAGE..end.next_multiple_of(PAGE);
        let all = (pages.end - pages.start) / PAGE;
        if cached_pages(file, pages).is_ok_and(|cached| cached >= all) {
            return has_read_all(io, file, at, to);
        }
        self.read_blocks(io, at, to).is_ok()
    }

    /// Fills `to` from byte `at` on, from the device.
    ///
    /// # Errors
    /// It cannot be read, or the file ends before.
    pub(super) fn read_blocks(&self, io: &dyn FileIo, at: u64, to: &mut [u8]) -> io::Result<()> {
        let block = self.block as u64;
        let end = at + to.len() as u64;
        let mut buffer = self.buffer();
        let blocks = self.aligned(&mut buffer);
        let mut read = Ok(());
        for from in (at / block * block..end).step_by(DirectReader::BUFFER) {
            let until = (from + DirectReader::BUFFER as u64).min(end);
            let whole = until.next_multiple_of(block) - from;
            let needed = (until - from) as usize;
            // One call: it answers with fewer bytes at the file's end, where the next one would not be aligned.
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
        let mut buffers = self.buffers.lock().expect("no holder panics");
        if buffers.len() < DirectReader::BUFFERS_KEPT {
            buffers.push(buffer);
        }
        read
    }

    fn buffer(&self) -> Vec<u8> {
        let kept = self.buffers.lock().expect("no holder panics").pop();
        kept.unwrap_or_else(|| vec![0; DirectReader::BUFFER + self.block])
    }

    /// The part of a buffer that begins with a block and has [`Direct::BUFFER`] bytes.
    fn aligned<'a>(&self, buffer: &'a mut [u8]) -> &'a mut [u8] {
        let from = buffer.as_ptr().align_offset(self.block);
        &mut buffer[from..][..DirectReader::BUFFER]
    }
}

/// What direct reads of `file` are aligned to: what the file system says, where it says so (Linux 6.1), but at least a
/// page.
///
/// # Errors
/// The file system says that it has none, or needs blocks larger than a buffer.
fn block_bytes(file: BorrowedFd<'_>) -> io::Result<usize> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let told = told.ok().filter(|told| {
        let mask = StatxFlags::from_bits_retain(told.stx_mask);
        mask.contains(StatxFlags::DIOALIGN)
    });
    let aligns = told.map(|told| (told.stx_dio_mem_align, told.stx_dio_offset_align));
    block_for(aligns)
}

/// The block for what memory and offsets are to be aligned to.
fn block_for(aligns: Option<(u32, u32)>) -> io::Result<usize> {
    let Some((memory, offset)) = aligns else {
        return Ok(PAGE as usize);
    };
    let block = (memory.max(offset) as usize).max(PAGE as usize);
    if offset == 0 || !block.is_power_of_two() || block > DirectReader::BUFFER {
        let why = format!("statx says that direct reads are aligned to {offset} bytes");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(block)
}

/// Fills some of `to` from byte `at` on by one call; the number of bytes.
fn read_once(io: &dyn FileIo, file: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> io::Result<usize> {
    loop {
        match io.pread(file, to, at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// How many pages of `part` are in the page cache.
///
/// # Errors
/// The kernel does not tell: it is older than 6.5, or the file system has no page cache.
fn cached_pages(file: BorrowedFd<'_>, part: Range<u64>) -> io::Result<u64> {
    const CACHESTAT: libc::c_long = 451;
    let range = [part.start, part.end - part.start];
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads a range of two words and writes five words of counts.
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
    fn a_block_is_what_the_file_system_says_but_a_page_at_least_and_a_buffer_at_most() {
        let block = |memory, offset| block_for(Some((memory, offset))).ok();
        assert_eq!(block_for(None).ok(), Some(4096));
        assert_eq!(block(4, 512), Some(4096));
        assert_eq!(block(512, 64 << 10), Some(64 << 10));
        for (memory, offset) in [(0, 0), (512, 0), (4, 12 << 10), (4, 512 << 10)] {
            assert_eq!(block(memory, offset), None, "{memory}, {offset}");
        }
    }
}
