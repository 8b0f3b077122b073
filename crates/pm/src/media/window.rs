//! Mapped address range of a real medium. It grows at its end and never moves.
//!
//! ```text
//!   base                    base + len                         base + reserved
//!   ├──── mapped: file or memory ────┼──── reserved, no access ─────┤
//! ```
//!
//! # Invariants
//! PM-WINDOW-1  `0..len` is mapped as long as the window exists: `len` only rises, after the kernel has
//!     mapped the new part. A page that the file no longer contains, or that the device cannot read,
//!     is replaced by zeros and marked as unreadable ([`WindowFaults`]).
//! PM-WINDOW-2  `len` is a multiple of [`PAGE`], so an aligned word is inside or outside, never across the end.
//! PM-WINDOW-3  Mapped bytes are read only as whole aligned words, atomically, or by [`cpu::load`]. With a racing writer a
//!     read returns old, new or torn words, which is not undefined behaviour. References to mapped bytes exist only to
//!     single words as atomics.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
// Not the atomics of `crate::sync`: under loom these cannot overlay mapped memory.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::cpu;
use super::sigbus::{self, WindowFaults};
use crate::offset::{LINE, Off, PAGE, WORD};

/// Address range reserved for a file's window so that it can grow, in bytes. Less if the kernel refuses as much.
pub(crate) const RESERVE_BYTES: u64 = 4 << 40;
/// Alignment of the base address, so that huge pages fit, in bytes.
pub(super) const HUGE: u64 = 2 << 20;

/// Source of the pages mapped into a window.
#[derive(Clone, Copy)]
pub(crate) enum MapSource<'a> {
    /// Zeroed memory of this process.
    Anonymous,
    /// A file, for reading only.
    Read(BorrowedFd<'a>),
    /// A file for reading and writing, without `MAP_SYNC`: in memory (tmpfs), in the page cache, or a device whose
    /// mappings are always synchronous.
    Write(BorrowedFd<'a>),
    /// A file on persistent memory, with `MAP_SYNC`: a write fault also makes the file's metadata durable.
    Sync(BorrowedFd<'a>),
}

/// Mapped address range. See the module documentation.
pub(crate) struct Window {
    base: *mut u8,
    len: AtomicU64,
    reserved: u64,
    /// Address and length of the reservation, including the bytes lost to alignment.
    reservation: (*mut c_void, usize),
    /// Whether an extension failed. It may have unmapped part of the reservation, so the window never grows again.
    extension_failed: AtomicBool,
    /// Unreadable pages, for a window over a file.
    faults: Option<WindowFaults>,
    /// Number of unreadable pages.
    unreadable: &'static AtomicU64,
    /// Whether a load of a word in an unreadable page returns zeros instead of a panic.
    returns_zeros: bool,
}

// SAFETY: the window owns its address range. Every access to it is atomic (PM-WINDOW-3), or made by the
// unsafe functions of `cpu`, whose callers guarantee that races are allowed.
unsafe impl Send for Window {}
// SAFETY: as for `Send`.
unsafe impl Sync for Window {}

impl Window {
    /// Makes an empty window that can grow to `want` bytes. If the kernel refuses so large an address range, the window
    /// is smaller, but at least `need` bytes.
    pub(crate) fn reserve(need: u64, want: u64) -> io::Result<Window> {
        /// More addresses than a process has under any kernel.
        const TOO_MANY: u64 = 1 << 62;
        if need > TOO_MANY {
            let why = format!("{need} bytes exceed the address space of a process");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        let need = need.next_multiple_of(HUGE);
        let mut reserved = want.min(TOO_MANY).next_multiple_of(HUGE).max(need);
        loop {
            let whole = usize::try_from(reserved + HUGE).map_err(io::Error::other)?;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            match unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) } {
                Ok(start) => {
                    let base = start.cast::<u8>();
                    // SAFETY: the reservation is `HUGE` bytes longer than `reserved`, and the offset is below `HUGE`.
                    let base = unsafe { base.add(base.align_offset(HUGE as usize)) };
                    return Ok(Window {
                        base,
                        len: AtomicU64::new(0),
                        reserved,
                        reservation: (start, whole),
                        extension_failed: AtomicBool::new(false),
                        faults: None,
                        unreadable: &sigbus::ZERO_MARKED_PAGES,
                        returns_zeros: false,
                    });
                }
                Err(e) if reserved == need => return Err(e.into()),
                Err(_) => reserved = (reserved / 2).next_multiple_of(HUGE).max(need),
            }
        }
    }

    /// Registers the window with the SIGBUS handler, which replaces pages that cannot be read or written by zeros. Must
    /// be called before a file is mapped into the window.
    ///
    /// # Errors
    /// Those of [`WindowFaults::register`].
    pub(crate) fn watch_faults(&mut self, is_writable: bool) -> io::Result<()> {
        let faults = WindowFaults::register(self.base, self.reserved, is_writable)?;
        self.unreadable = faults.pages();
        self.faults = Some(faults);
        Ok(())
    }

    /// Makes loads of words in unreadable pages return zeros. The caller checks [`Window::unreadable`] after them.
    pub(crate) fn return_zeros(&mut self) {
        self.returns_zeros = true;
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.base
    }

    /// Returns whether any page was found unreadable.
    #[inline]
    pub(crate) fn has_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of bytes in pages that were found unreadable.
    pub(crate) fn unreadable_bytes(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed) * PAGE
    }

    /// Returns the first offset among the `len` bytes at `at` that is in an unreadable page. Call it after a read:
    /// bytes read before the call that are not in such a page came from the file.
    #[inline]
    pub(crate) fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        match self.has_unreadable() {
            true => self.first_unreadable(at, len),
            false => None,
        }
    }

    #[cold]
    fn first_unreadable(&self, at: Off, len: usize) -> Option<Off> {
        let end = at.0.saturating_add(len as u64).min(self.len());
        if at.0 >= end {
            return None;
        }
        let pages = at.0 / PAGE..end.div_ceil(PAGE);
        let page = self.faults.as_ref()?.first_of(pages)?;
        Some(Off(at.0.max(page * PAGE)))
    }

    /// Replaces the pages of `parts` by zeros and marks them as unreadable, before they are accessed.
    ///
    /// # Errors
    /// The zeros cannot be mapped.
    pub(crate) fn mark_all_unreadable(&self, parts: &[Range<u64>]) -> io::Result<()> {
        (parts.iter().cloned()).try_for_each(|part| self.mark_unreadable(part))
    }

    fn mark_unreadable(&self, part: Range<u64>) -> io::Result<()> {
        let Some(faults) = &self.faults else {
            return Ok(());
        };
        let end = part.end.min(self.len());
        for page in part.start / PAGE..end.div_ceil(PAGE) {
            if !faults.replace(page * PAGE) {
                return Err(io::Error::other("cannot map zeros over unreadable pages"));
            }
        }
        Ok(())
    }

    /// Maps `source` again over the unreadable pages among the `len` bytes at `at`, which were just written to it.
    ///
    /// # Errors
    /// The kernel cannot map a page. It stays unreadable.
    pub(crate) fn map_again(&self, source: MapSource<'_>, at: Off, len: usize) -> io::Result<()> {
        let Some(faults) = &self.faults else {
            return Ok(());
        };
        let end = at.0.saturating_add(len as u64).min(self.len());
        let mut next = at.0 / PAGE;
        while let Some(page) = faults.first_of(next..end.div_ceil(PAGE)) {
            self.map(source, page * PAGE, PAGE as usize)?;
            faults.unmark(page);
            next = page + 1;
        }
        Ok(())
    }

    /// Grows the window to `len` bytes by mapping `source`. Callers serialise growth.
    ///
    /// # Errors
    /// The reservation is too small, or the kernel cannot map `source`. The length has not changed.
    pub(crate) fn extend(&self, source: MapSource<'_>, len: u64) -> io::Result<()> {
        let from = self.len();
        assert!(
            len >= from && len.is_multiple_of(PAGE),
            "a window grows by whole pages"
        );
        if len == from {
            return Ok(());
        }
        self.check_room(len)?;
        let bytes = usize::try_from(len - from).expect("the length fits the reservation");
        if let Some(faults) = &self.faults {
            faults.make_bits_accessible(len)?;
        }
        if let Err(e) = self.map(source, from, bytes) {
            self.extension_failed.store(true, Ordering::Relaxed);
            return Err(e);
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Checks that the window can grow to `len` bytes.
    pub(crate) fn check_room(&self, len: u64) -> io::Result<()> {
        if len <= self.reserved && !self.extension_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = format!(
            "cannot grow to {len} bytes: {} bytes of addresses were reserved when the pool \
             was opened; close it and open it again",
            self.reserved
        );
        Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
    }

    fn map(&self, source: MapSource<'_>, from: u64, bytes: usize) -> io::Result<()> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: `from` is inside the reservation.
        let at = unsafe { self.base.add(from as usize) }.cast::<c_void>();
        let (fd, prot, flags) = match source {
            MapSource::Anonymous => {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                // SAFETY: replaces pages of this window's reservation that no thread has accessed yet (PM-WINDOW-1).
                unsafe { mmap_anonymous(at, bytes, both, flags)? };
                return Ok(());
            }
            MapSource::Read(fd) => (fd, ProtFlags::READ, MapFlags::SHARED),
            MapSource::Write(fd) => (fd, both, MapFlags::SHARED),
            MapSource::Sync(fd) => (fd, both, MapFlags::SHARED_VALIDATE | MapFlags::SYNC),
        };
        // SAFETY: replaces pages of this window's reservation that no thread accesses: new pages, or unreadable ones
        // whose bytes are unpublished. The media ensure that the file is long enough.
        unsafe { mmap(at, bytes, prot, flags | MapFlags::FIXED, fd, from)? };
        Ok(())
    }

    /// Returns the mapped length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the address of offset `at`, at which `len` bytes are mapped.
    ///
    /// # Panics
    /// When the `len` bytes at `at` are not all mapped.
    #[inline]
    #[track_caller]
    pub(crate) fn address(&self, at: Off, len: usize) -> *mut u8 {
        let end = at.0.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len()) {
            panic_outside(at, len, self.len());
        }
        // SAFETY: just checked to be inside the mapping.
        unsafe { self.base.add(at.0 as usize) }
    }

    /// As [`Window::address`], for bytes to be written.
    ///
    /// # Panics
    /// Also when `at` is not 8-aligned.
    #[inline]
    #[track_caller]
    pub(crate) fn aligned(&self, at: Off, len: usize) -> *mut u8 {
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "writes must be 8-aligned: {at:?}"
        );
        self.address(at, len)
    }

    /// Returns the word at `at`, for atomic access.
    ///
    /// # Panics
    /// When `at` is not 8-aligned, or outside the window.
    #[inline]
    #[track_caller]
    pub(crate) fn word(&self, at: Off) -> &AtomicU64 {
        // An aligned word that begins before the end is completely inside (PM-WINDOW-2).
        let within = at.0.is_multiple_of(WORD as u64) && at.0 < self.len();
        if !within {
            panic_invalid_word(at, self.len());
        }
        // SAFETY: just checked to be inside the mapping.
        let address = unsafe { self.base.add(at.0 as usize) }.cast();
        // SAFETY: aligned and mapped while `self` exists (PM-WINDOW-1), and only accessed atomically (PM-WINDOW-3). For a
        // window mapped read-only, callers only load the word with relaxed ordering, which is
        // allowed on read-only memory.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// Checks that the `len` bytes at `at`, which were just loaded as words, are readable. A word has no checksum, so
    /// zeros that are not in the file would go undetected.
    ///
    /// # Panics
    /// When one of the bytes is in an unreadable page.
    #[inline]
    #[track_caller]
    pub(crate) fn check_readable(&self, at: Off, len: usize) {
        if let Some(at) = self.unreadable(at, len)
            && !self.returns_zeros
        {
            panic_unreadable_word(at);
        }
    }

    /// Loads the word at `at` with acquire ordering.
    #[inline]
    #[track_caller]
    pub(crate) fn load(&self, at: Off) -> u64 {
        let value = self.word(at).load(Ordering::Relaxed);
        self.check_readable(at, WORD);
        // Rust allows only relaxed loads on read-only memory. Load and fence cost the same on x86-64.
        fence(Ordering::Acquire);
        value
    }

    /// Loads `N` words, each `step` words after the previous one, with acquire ordering.
    ///
    /// # Panics
    /// When `at` is not 8-aligned, or one of the words is outside or unreadable.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        // Bytes from the start of the first word to the end of the last one. If they overflow `usize`, they are
        // longer than any window.
        let span = match N.checked_sub(1) {
            Some(steps) => (steps.checked_mul(step))
                .and_then(|words| words.checked_add(1)?.checked_mul(WORD))
                .unwrap_or(usize::MAX),
            None => 0,
        };
        let from = self.aligned(at, span).cast::<u64>();
        let mut words = [0; N];
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: `n * step` is at most `(N - 1) * step`, so the word is inside the `span` bytes just
            // checked. It is aligned because `from` is.
            let there = unsafe { AtomicU64::from_ptr(from.add(n * step)) };
            *word = there.load(Ordering::Relaxed);
        }
        self.check_readable(at, span);
        fence(Ordering::Acquire); // as in `load`
        words
    }

    #[inline]
    #[track_caller]
    pub(crate) fn copy_out(&self, at: Off, to: &mut [u8]) {
        let from = self.address(at, to.len());
        if to.len() <= LINE && at.0.is_multiple_of(WORD as u64) && to.len().is_multiple_of(WORD) {
            // A few words stay in registers, so that the next use of them need not wait for stores.
            for (word, n) in to.as_chunks_mut::<WORD>().0.iter_mut().zip(0..) {
                // SAFETY: word `n` is aligned and inside the range just checked.
                let there = unsafe { AtomicU64::from_ptr(from.cast::<u64>().add(n)) };
                *word = there.load(Ordering::Relaxed).to_le_bytes();
            }
            return;
        }
        // SAFETY: `address` checked `from` for `to.len()` bytes. `to` is a reference, so no medium maps it.
        unsafe { cpu::load(from, to.as_mut_ptr(), to.len()) };
    }

    #[inline]
    #[track_caller]
    pub(crate) fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        let from = self.address(at, len);
        to.reserve(len);
        let spare = to.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `address` checked `from` for `len` bytes, and `len` bytes of spare capacity were reserved.
        unsafe { cpu::load(from, spare, len) };
        // SAFETY: `cpu::load` has initialised `len` bytes.
        unsafe { to.set_len(to.len() + len) };
    }

    #[inline]
    #[track_caller]
    pub(crate) fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        let from = self.address(at, bytes.len());
        if !at.0.is_multiple_of(WORD as u64) {
            return self.matches_anywhere(from, bytes);
        }
        let (words, tail) = bytes.as_chunks::<WORD>();
        let mut at = at;
        for ours in words {
            if self.word(at).load(Ordering::Relaxed) != u64::from_le_bytes(*ours) {
                return false;
            }
            at = at.plus(WORD as u64);
        }
        if tail.is_empty() {
            return true;
        }
        let ours = tail
            .iter()
            .rev()
            .fold(0, |word, b| word << 8 | u64::from(*b));
        let last = self.word(at).load(Ordering::Relaxed);
        (last ^ ours) << (8 * (WORD - tail.len())) == 0
    }

    /// As [`Window::matches`], for a start that is not 8-aligned. The caller has checked `from` for `bytes.len()`
    /// bytes.
    #[cold]
    fn matches_anywhere(&self, mut from: *const u8, bytes: &[u8]) -> bool {
        let mut line = [0; LINE];
        bytes.chunks(LINE).all(|ours| {
            // SAFETY: the caller has checked `from` for all of `bytes`, and this is one part of them.
            unsafe { cpu::load(from, line.as_mut_ptr(), ours.len()) };
            // SAFETY: the end of a part is inside the checked range, or its end.
            from = unsafe { from.add(ours.len()) };
            line[..ours.len()] == *ours
        })
    }

    #[track_caller]
    pub(crate) fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        const CHUNK: usize = 4096;
        let from = self.address(at, len);
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; CHUNK];
        let mut crc = seed;
        for done in (0..len).step_by(CHUNK) {
            let run = CHUNK.min(len - done);
            let to = buffer.as_mut_ptr().cast::<u8>();
            // SAFETY: `address` checked `from` for `len` bytes, and the buffer has room for a chunk.
            unsafe { cpu::load(from.add(done), to, run) };
            #[expect(
                clippy::disallowed_methods,
                reason = "our own buffer, not mapped bytes"
            )]
            // SAFETY: `cpu::load` has initialised `run` bytes of the buffer.
            let bytes = unsafe { std::slice::from_raw_parts(to, run) };
            crc = crate::crc::crc32c_append(crc, bytes);
        }
        crc
    }

    #[inline]
    pub(crate) fn prefetch(&self, at: Off, len: usize) {
        if at
            .0
            .checked_add(len as u64)
            .is_none_or(|end| end > self.len())
        {
            return;
        }
        let mut line = at.0 / LINE as u64 * LINE as u64;
        while line < at.0 + len as u64 {
            // SAFETY: the address is inside the mapping, and a prefetch changes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.add(line as usize).cast()) };
            line += LINE as u64;
        }
    }

    /// Advises the kernel to use huge pages. Only a hint.
    pub(crate) fn advise_huge(&self) {
        // SAFETY: this window owns the mapped range, and the advice changes no contents.
        let _ = unsafe { self.advise(0, self.len(), Advice::LinuxHugepage) };
    }

    /// Makes every page present, and writable if `write`. Calls `progress(done, total)` in bytes.
    pub(crate) fn prefault(&self, write: bool, progress: &mut dyn FnMut(u64, u64)) {
        const STEP: u64 = 64 << 20;
        let total = self.len();
        for from in (0..total).step_by(STEP as usize) {
            let to = total.min(from + STEP);
            self.prefault_part(from..to, write);
            progress(to, total);
        }
    }

    /// Makes the pages that contain bytes of `part` present. Ignores offsets behind the end of the window.
    pub(crate) fn prefault_part(&self, part: Range<u64>, write: bool) {
        let (from, to) = (part.start / PAGE * PAGE, part.end.min(self.len()));
        let advice = if write {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        // SAFETY: this window owns the mapped range, and populating changes no contents.
        if from < to && unsafe { self.advise(from, to, advice) }.is_err() {
            self.touch(from, to, write); // Kernels before 5.14 do not know the advice.
        }
    }

    /// Accesses each page of `from..to` once, without changing it.
    fn touch(&self, from: u64, to: u64, write: bool) {
        for page in (from..to).step_by(PAGE as usize) {
            let word = self.word(Off(page));
            if write {
                word.fetch_or(0, Ordering::Relaxed);
            } else {
                word.load(Ordering::Relaxed);
            }
        }
    }

    /// # Safety
    /// `from..to` is mapped, and the advice changes no contents.
    unsafe fn advise(&self, from: u64, to: u64, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the caller guarantees that `from` is inside the mapping.
        let at = unsafe { self.base.add(from as usize) };
        // SAFETY: this window owns the range, and the caller guarantees that the advice changes no contents.
        unsafe { madvise(at.cast(), (to - from) as usize, advice) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.faults = None; // PM-FAULT-3
        let (start, len) = match self.extension_failed.load(Ordering::Relaxed) {
            // Another mapping of the process may now use the addresses behind the mapped part.
            true => (self.base.cast(), self.len() as usize),
            false => self.reservation,
        };
        if len > 0 {
            // SAFETY: this window owns the range, and no thread can access it any more.
            let _ = unsafe { munmap(start, len) };
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn panic_invalid_word(at: Off, end: u64) -> ! {
    assert!(
        at.0.is_multiple_of(WORD as u64),
        "a word must be 8-aligned: {at:?}"
    );
    panic_outside(at, WORD, end)
}

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn panic_unreadable_word(at: Off) -> ! {
    panic!(
        "the word at {at:?} cannot be read: the device or the file system reports an error, or the \
         file is shorter than that offset"
    )
}

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn panic_outside(at: Off, len: usize, end: u64) -> ! {
    panic!("{len} bytes at {at:?} are outside the medium of {end} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(need: u64, want: u64) -> Window {
        let window = Window::reserve(need, want).expect("addresses for what is needed");
        window
            .extend(MapSource::Anonymous, need)
            .expect("a little memory");
        window
    }

    #[test]
    fn a_reservation_falls_back_to_fewer_addresses_but_never_below_the_needed_length() {
        const MORE_THAN_THERE_ARE: u64 = 1 << 60;
        let window = window(PAGE, MORE_THAN_THERE_ARE);
        assert!(window.reserved < MORE_THAN_THERE_ARE);
        for need in [MORE_THAN_THERE_ARE, 1 << 62, u64::MAX - PAGE, u64::MAX] {
            assert!(Window::reserve(need, 0).is_err());
            assert!(Window::reserve(need, u64::MAX).is_err());
        }
    }

    #[test]
    fn growth_beyond_the_reserved_addresses_is_an_error_that_changes_nothing() {
        let window = window(PAGE, HUGE);
        let refused = window
            .extend(MapSource::Anonymous, 2 * HUGE)
            .expect_err("there is no room");
        assert!(refused.to_string().contains("open it again"), "{refused}");
        assert_eq!(window.len(), PAGE);
        window
            .extend(MapSource::Anonymous, HUGE)
            .expect("that much was reserved");
    }

    #[test]
    fn a_failed_extension_ends_growth_and_changes_no_mapped_byte() {
        let window = window(PAGE, HUGE);
        window.word(Off(8)).store(7, Ordering::Relaxed);
        let null = std::fs::File::open("/proc/self/status").expect("Linux has it");
        let unmappable = MapSource::Read(std::os::fd::AsFd::as_fd(&null));
        window
            .extend(unmappable, 2 * PAGE)
            .expect_err("it cannot be mapped");
        window
            .extend(MapSource::Anonymous, 2 * PAGE)
            .expect_err("the addresses may be taken");
        assert_eq!((window.len(), window.load(Off(8))), (PAGE, 7));
    }

    #[test]
    fn more_windows_than_the_table_has_entries_can_be_created_one_after_another() {
        for _ in 0..2 * sigbus::WINDOWS_MAX {
            let mut window = Window::reserve(PAGE, HUGE).expect("a few addresses");
            window
                .watch_faults(true)
                .expect("the previous window freed its entry");
            window
                .extend(MapSource::Anonymous, 2 * PAGE)
                .expect("memory");
            window.word(Off(PAGE)).store(7, Ordering::Relaxed);
            window
                .mark_unreadable(PAGE..PAGE + 1)
                .expect("it is mapped");
            assert_eq!(
                window.unreadable(Off(0), 2 * PAGE as usize),
                Some(Off(PAGE))
            );
            let mut out = [1; 8];
            window.copy_out(Off(PAGE), &mut out);
            assert_eq!(out, [0; 8]);
        }
    }

    #[test]
    fn each_unreadable_page_is_found_by_itself_across_the_words_of_the_bitmap() {
        const PAGES: u64 = 200;
        let mut window = Window::reserve(PAGE, HUGE).expect("a few addresses");
        window.watch_faults(true).expect("an entry is free");
        window
            .extend(MapSource::Anonymous, PAGES * PAGE)
            .expect("memory");
        let marked = [1, 63, 64, 65, 127, 130, 199];
        for page in marked {
            let part = page * PAGE..(page + 1) * PAGE;
            window.mark_unreadable(part).expect("it is mapped");
        }
        for page in 0..PAGES {
            let at = Off(page * PAGE);
            let expected = marked.contains(&page).then_some(at);
            assert_eq!(
                window.unreadable(at, PAGE as usize),
                expected,
                "page {page}"
            );
        }
    }

    #[test]
    fn touching_pages_one_by_one_changes_nothing() {
        let window = window(4 * PAGE, HUGE);
        window.word(Off(PAGE)).store(7, Ordering::Relaxed);
        window.touch(0, window.len(), true);
        window.touch(0, window.len(), false);
        assert_eq!(window.load(Off(PAGE)), 7);
    }
}
