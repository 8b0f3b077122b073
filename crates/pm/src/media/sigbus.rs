//! SIGBUS handler that replaces unreadable mapped pages by pages of zeros.
//!
//! The kernel raises SIGBUS on an access to a page that the device or the file system cannot read: a bad sector, a
//! file that another process has truncated, persistent memory that has lost a line. Without a handler the
//! process ends, and after a restart it ends again at the same page.
//!
//! ```text
//!   a load, or a store ──▶ SIGBUS ──▶ is the address in a window?
//!                                       │yes                    │no
//!                    mark the page, map zeros over it        call the previous handler,
//!                    the access is retried: zeros            or end the process
//! ```
//!
//! Zeros fail the checksum of a record, so a reader reports damage and its offset. For data without a
//! checksum, readers check [`Window::unreadable`](super::window::Window::unreadable) after the read.
//!
//! # Invariants
//! PM-FAULT-1  A page is marked before its zeros can be read. So a check of the marks after a read
//!     finds every page for which the read returned zeros that are not in the file.
//! PM-FAULT-2  The handler only reads and writes atomics of this module and makes system calls. It takes no
//!     lock and allocates nothing. It finds windows in a static table, whose entries are seqlocks: an
//!     entry is valid if its sequence number is even and the same before and after the read.
//! PM-FAULT-3  A window leaves the table before its addresses are unmapped.
//!
//! If a program later installs its own SIGBUS handler and that handler does not call the one it
//! replaced, an access to an unreadable page ends the process.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::offset::PAGE;

/// Maximum number of windows over files in a process.
pub(super) const WINDOWS_MAX: usize = 1024;
/// Bytes replaced together if a single page cannot be replaced, as on a device mapped with huge pages.
const HUGE: u64 = 2 << 20;

/// Table entry of a window, for the handler.
struct WindowEntry {
    /// Sequence number of the seqlock: odd while the entry changes.
    sequence: AtomicU64,
    /// Whether a window owns the entry.
    taken: AtomicBool,
    /// First address of the window; 0 if there is none.
    base: AtomicUsize,
    /// Length of the window's address range in bytes.
    reserved: AtomicUsize,
    is_writable: AtomicBool,
    /// Bitmap with one bit for each page: set if the page is marked as unreadable.
    unreadable_bits: AtomicPtr<AtomicU64>,
    /// Number of marked pages.
    pages: AtomicU64,
}

static WINDOWS: [WindowEntry; WINDOWS_MAX] = [const {
    WindowEntry {
        sequence: AtomicU64::new(0),
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        reserved: AtomicUsize::new(0),
        is_writable: AtomicBool::new(false),
        unreadable_bits: AtomicPtr::new(ptr::null_mut()),
        pages: AtomicU64::new(0),
    }
}; WINDOWS_MAX];

/// Number of marked pages of a window without a table entry: always 0.
pub(super) static ZERO_MARKED_PAGES: AtomicU64 = AtomicU64::new(0);

/// The previous SIGBUS action of the process.
static PREVIOUS_ACTION: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Unreadable pages of a window, and its entry in the handler's table. Dropping it frees the entry.
pub(super) struct WindowFaults {
    entry: &'static WindowEntry,
    /// Address and length of the bitmap, with one bit for each page of the window's address range. Only the part for
    /// mapped pages is accessible (see `cover`).
    notes: (*mut c_void, usize),
}

// SAFETY: the bitmap consists of atomics, and only `Drop`, which has exclusive access, unmaps it.
unsafe impl Send for WindowFaults {}
// SAFETY: as for `Send`.
unsafe impl Sync for WindowFaults {}

impl WindowFaults {
    /// Registers the `reserved` bytes at `base`, the address range of a window over a file, with the handler.
    ///
    /// # Errors
    /// The handler cannot be installed, there are no addresses for the bitmap, or the process has too many
    /// windows.
    pub(super) fn register(
        base: *mut u8,
        reserved: u64,
        is_writable: bool,
    ) -> io::Result<WindowFaults> {
        install()?;
        let bytes = usize::try_from(reserved / PAGE).map_err(io::Error::other)?;
        let bytes = (bytes / 8 + 1).next_multiple_of(PAGE as usize);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let notes = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags)? };
        let free = WINDOWS.iter().find(|entry| {
            let taken =
                entry
                    .taken
                    .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        });
        let Some(entry) = free else {
            // SAFETY: unmaps the mapping just made, to which no reference exists.
            let _ = unsafe { munmap(notes, bytes) };
            let why =
                format!("this process has {WINDOWS_MAX} pools in files open, which is the maximum");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        };
        entry.change(|entry| {
            entry.reserved.store(reserved as usize, Ordering::Relaxed);
            entry.is_writable.store(is_writable, Ordering::Relaxed);
            entry.unreadable_bits.store(notes.cast(), Ordering::Relaxed);
            entry.pages.store(0, Ordering::Relaxed);
            entry.base.store(base as usize, Ordering::Relaxed);
        });
        Ok(WindowFaults {
            entry,
            notes: (notes, bytes),
        })
    }

    /// Makes the bitmap accessible for the window's first `len` bytes. Called before these are mapped.
    pub(super) fn make_bits_accessible(&self, len: u64) -> io::Result<()> {
        let bytes = (len / PAGE / 8 + 1).next_multiple_of(PAGE) as usize;
        let (notes, whole) = self.notes;
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: this window owns the range, and the call changes none of its contents.
        unsafe { mprotect(notes, bytes.min(whole), both)? };
        Ok(())
    }

    /// Returns the counter of marked pages.
    pub(super) fn pages(&self) -> &'static AtomicU64 {
        &self.entry.pages
    }

    /// Returns the first marked page in `pages`, which the bitmap covers.
    pub(super) fn first_of(&self, pages: Range<u64>) -> Option<u64> {
        let mut next = pages.start;
        while next < pages.end {
            let noted = self.word(next).load(Ordering::Relaxed) >> (next % 64);
            if noted != 0 {
                let first = next + u64::from(noted.trailing_zeros());
                return (first < pages.end).then_some(first);
            }
            next = (next / 64 + 1) * 64;
        }
        None
    }

    /// Clears the mark of `page`, because the file was mapped there again.
    pub(super) fn unmark(&self, page: u64) {
        let before = self.word(page).fetch_and(!bit(page), Ordering::Relaxed);
        if before & bit(page) != 0 {
            self.entry.pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Replaces the page that contains byte `within` of the window by zeros, as if it had been found unreadable.
    /// Returns whether that succeeded.
    pub(super) fn replace(&self, within: u64) -> bool {
        let base = self.entry.base.load(Ordering::Relaxed);
        self.entry.replace(base, within)
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        let (notes, bytes) = self.notes;
        let word = usize::try_from(page / 64).unwrap_or(usize::MAX);
        assert!(
            word < bytes / size_of::<u64>(),
            "page {page} is outside the window"
        );
        // SAFETY: inside the bitmap, as just asserted, and aligned. The bitmap is mapped while `self` exists.
        unsafe { &*notes.cast::<AtomicU64>().add(word) }
    }
}

impl Drop for WindowFaults {
    fn drop(&mut self) {
        self.entry
            .change(|entry| entry.base.store(0, Ordering::Relaxed));
        self.entry.taken.store(false, Ordering::Release);
        let (notes, bytes) = self.notes;
        // SAFETY: this window owns the mapping. No thread accesses the window any more, so no
        // handler runs for it (PM-FAULT-3).
        let _ = unsafe { munmap(notes, bytes) };
    }
}

fn bit(page: u64) -> u64 {
    1 << (page % 64)
}

impl WindowEntry {
    /// Changes an entry that the caller owns (PM-FAULT-2).
    fn change(&self, change: impl FnOnce(&WindowEntry)) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        self.sequence.store(before + 2, Ordering::Release);
    }

    /// Replaces the page at `address` by zeros if it is in this entry's window. Returns whether it did.
    fn replace_if_inside(&self, address: usize) -> bool {
        let before = self.sequence.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Relaxed);
        let reserved = self.reserved.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_same = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        let within = address.wrapping_sub(base);
        // The thread that faulted is using the window, so the entry cannot change during `replace`.
        is_same && base != 0 && within < reserved && self.replace(base, within as u64)
    }

    /// Maps zeros over the page that contains byte `within` of the window, or over its huge page if that fails.
    fn replace(&self, base: usize, within: u64) -> bool {
        let reserved = self.reserved.load(Ordering::Relaxed) as u64;
        [PAGE, HUGE].into_iter().any(|bytes| {
            let start = within / bytes * bytes;
            if start + bytes > reserved {
                return false;
            }
            for page in start / PAGE..(start + bytes) / PAGE {
                self.mark_unreadable(page); // PM-FAULT-1
            }
            self.map_zeros(base + start as usize, bytes as usize)
        })
    }

    fn mark_unreadable(&self, page: u64) {
        let notes = self.unreadable_bits.load(Ordering::Relaxed);
        // SAFETY: the bitmap has a bit for every mapped page, and for all pages of a huge page around one.
        let word = unsafe { &*notes.add((page / 64) as usize) };
        if word.fetch_or(bit(page), Ordering::SeqCst) & bit(page) == 0 {
            self.pages.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn map_zeros(&self, at: usize, bytes: usize) -> bool {
        let prot = match self.is_writable.load(Ordering::Relaxed) {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let at = ptr::with_exposed_provenance_mut(at);
        // SAFETY: the pages belong to a live window. The only references into them are to single words as atomics,
        // whose values may change at any time. The function makes only its system call, which
        // a signal handler may do, and does not change errno.
        unsafe { mmap_anonymous(at, bytes, prot, flags).is_ok() }
    }
}

/// Installs the handler, once per process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = *INSTALLED.get_or_init(|| {
        // SAFETY: all zeros are a valid `sigaction`: an empty mask and the default action.
        let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut ours = before;
        ours.sa_sigaction = on_bus_error as extern "C" fn(_, _, _) as usize;
        // Runs on the thread's alternate signal stack if it has one, as threads of the standard library do.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: only reads the current action into `before`.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        PREVIOUS_ACTION.store(Box::leak(Box::new(before)), Ordering::Release);
        // SAFETY: the handler is async-signal-safe (PM-FAULT-2), and `BEFORE` holds the previous action.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let code = unsafe { (*info).si_code };
    let is_ours = matches!(
        code,
        libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO
    );
    if is_ours {
        // SAFETY: for these codes the kernel sets the address.
        let address = unsafe { (*info).si_addr() } as usize;
        if WINDOWS.iter().any(|entry| entry.replace_if_inside(address)) {
            return;
        }
    }
    call_previous_action(signal, info, context);
}

/// Performs the previous SIGBUS action.
fn call_previous_action(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type SigactionHandler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let before = PREVIOUS_ACTION.load(Ordering::Acquire);
    // SAFETY: `install` stored it before it installed the handler, and it is never freed.
    let (action, flags) = unsafe { ((*before).sa_sigaction, (*before).sa_flags) };
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match action {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both calls are async-signal-safe. After a fault, the access is retried
            // on return and ends the process. A signal sent by a process is raised again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if was_sent {
                    libc::raise(signal);
                }
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler installed with SA_SIGINFO has this type.
            let handler = unsafe { std::mem::transmute::<usize, SigactionHandler>(action) };
            handler(signal, info, context);
            reraise_if_sent(signal, was_sent);
        }
        _ => {
            // SAFETY: a handler installed without SA_SIGINFO has this type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action) };
            handler(signal);
            reraise_if_sent(signal, was_sent);
        }
    }
}

/// Raises the signal again if it was sent by a process and the previous handler restored the default action.
///
/// Such a handler (the standard library's is one) expects that the faulting access is retried after it returns, which
/// ends the process. A signal that was sent has no access to retry.
fn reraise_if_sent(signal: c_int, was_sent: bool) {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut now: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: only reads the current action, which is async-signal-safe.
    let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) } == 0;
    if was_sent && known && now.sa_sigaction == libc::SIG_DFL {
        // SAFETY: `raise` is async-signal-safe.
        unsafe { libc::raise(signal) };
    }
}
