//! Mapped pages that the device or the file system cannot serve: a page of zeros takes their place.
//!
//! The kernel answers an access to such a page with SIGBUS: a sector that cannot be read, a file that
//! another process has made shorter, persistent memory that has lost a line. Without a handler the
//! process ends, and the next one ends at the same place.
//!
//! ```text
//!   a load, or a store ──▶ SIGBUS ──▶ is the address in a window?
//!                                       │yes                    │no
//!                    note the page, map zeros over it        the handler that was there before,
//!                    the access is made again: zeros         or the end of the process
//! ```
//!
//! Zeros fail the checksum of a record, so that a reader reports damage and its offset; of what has no
//! checksum, readers ask [`Window::unreadable`](super::window::Window::unreadable).
//!
//! # Invariants
//! PM-FAULT-1  A page is noted before its zeros can be read. So what was read before a look at the
//!     notes, and was zeros that are not in the file, is in a page that the look finds.
//! PM-FAULT-2  The handler reads and writes atomics of this module and makes system calls; it takes no
//!     lock and allocates nothing. It is told of windows by a table that only grows stale entries: an
//!     entry is read between two looks at its sequence number, which is odd while it changes.
//! PM-FAULT-3  A window leaves the table before its addresses are given back.
//!
//! A program that installs a handler of its own for SIGBUS later, and does not call the one it
//! replaces, ends at such a page.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::window::PAGE;

/// Windows over files that a process can have at once.
pub(super) const WINDOWS_MAX: usize = 1024;
/// Bytes that are replaced together where single pages cannot be: of a device with large pages.
const HUGE: u64 = 2 << 20;

/// What the handler knows of a window.
struct WindowEntry {
    /// Odd while the entry changes.
    sequence: AtomicU64,
    /// Whether a window has the entry.
    taken: AtomicBool,
    /// First address; 0: no window.
    base: AtomicUsize,
    reserved: AtomicUsize,
    is_writable: AtomicBool,
    /// A bit for each page.
    notes: AtomicPtr<AtomicU64>,
    /// Pages that are noted.
    pages: AtomicU64,
}

static WINDOWS: [WindowEntry; WINDOWS_MAX] = [const {
    WindowEntry {
        sequence: AtomicU64::new(0),
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        reserved: AtomicUsize::new(0),
        is_writable: AtomicBool::new(false),
        notes: AtomicPtr::new(ptr::null_mut()),
        pages: AtomicU64::new(0),
    }
}; WINDOWS_MAX];

/// How many pages of a window that no handler watches are noted.
pub(super) static NONE: AtomicU64 = AtomicU64::new(0);

/// What SIGBUS did before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// The notes of a window, and its place in the handler's table until they are dropped.
pub(super) struct WindowFaults {
    entry: &'static WindowEntry,
    /// A bit for each page the window can have; readable and writable as far as it has them.
    notes: (*mut c_void, usize),
}

// SAFETY: the notes are atomics, and only `Drop`, which has them for itself, unmaps them.
unsafe impl Send for WindowFaults {}
// SAFETY: as above.
unsafe impl Sync for WindowFaults {}

impl WindowFaults {
    /// Watches the `reserved` bytes at `base`, of a window that files are mapped into.
    ///
    /// # Errors
    /// The handler cannot be installed, there are no addresses for notes, or the process has too many
    /// windows.
    pub(super) fn watch(
        base: *mut u8,
        reserved: u64,
        is_writable: bool,
    ) -> io::Result<WindowFaults> {
        install()?;
        let bytes = usize::try_from(reserved / PAGE).map_err(io::Error::other)?;
        let bytes = (bytes / 8 + 1).next_multiple_of(PAGE as usize);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let notes = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags)? };
        let free = WINDOWS.iter().find(|entry| {
            let taken =
                entry
                    .taken
                    .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        });
        let Some(entry) = free else {
            // SAFETY: the mapping just made.
            let _ = unsafe { munmap(notes, bytes) };
            let why =
                format!("this process has {WINDOWS_MAX} pools in files open, which is the most");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        };
        entry.change(|entry| {
            entry.reserved.store(reserved as usize, Ordering::Relaxed);
            entry.is_writable.store(is_writable, Ordering::Relaxed);
            entry.notes.store(notes.cast(), Ordering::Relaxed);
            entry.pages.store(0, Ordering::Relaxed);
            entry.base.store(base as usize, Ordering::Relaxed);
        });
        Ok(WindowFaults {
            entry,
            notes: (notes, bytes),
        })
    }

    /// Makes the notes of the window's first `len` bytes ready, before these are mapped.
    pub(super) fn cover(&self, len: u64) -> io::Result<()> {
        let bytes = (len / PAGE / 8 + 1).next_multiple_of(PAGE) as usize;
        let (notes, whole) = self.notes;
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is this window's own, and what is in it stays.
        unsafe { mprotect(notes, bytes.min(whole), both)? };
        Ok(())
    }

    /// Pages that are noted.
    pub(super) fn pages(&self) -> &'static AtomicU64 {
        &self.entry.pages
    }

    /// The first page of `pages`, which the notes cover, that is noted.
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

    /// Takes the note of `page` away: something else than zeros was mapped there.
    pub(super) fn forget(&self, page: u64) {
        let before = self.word(page).fetch_and(!bit(page), Ordering::Relaxed);
        if before & bit(page) != 0 {
            self.entry.pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has zeros in place of the page that holds `within`, as if it had been found unreadable.
    pub(super) fn replace(&self, within: u64) -> bool {
        let base = self.entry.base.load(Ordering::Relaxed);
        self.entry.replace(base, within)
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        let (notes, bytes) = self.notes;
        let word = usize::try_from(page / 64).unwrap_or(usize::MAX);
        assert!(
            word < bytes / size_of::<u64>(),
            "page {page} is not one of the window's"
        );
        // SAFETY: inside of the notes, as just asserted, and aligned; mapped as long as `self` lives.
        unsafe { &*notes.cast::<AtomicU64>().add(word) }
    }
}

impl Drop for WindowFaults {
    fn drop(&mut self) {
        self.entry
            .change(|entry| entry.base.store(0, Ordering::Relaxed));
        self.entry.taken.store(false, Ordering::Release);
        let (notes, bytes) = self.notes;
        // SAFETY: the mapping is this window's own. Nothing accesses the window any more, so that no
        // handler runs for it (PM-FAULT-3).
        let _ = unsafe { munmap(notes, bytes) };
    }
}

fn bit(page: u64) -> u64 {
    1 << (page % 64)
}

impl WindowEntry {
    /// Changes an entry that is the caller's (PM-FAULT-2).
    fn change(&self, change: impl FnOnce(&WindowEntry)) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        self.sequence.store(before + 2, Ordering::Release);
    }

    /// Whether `address` is in this entry's window and has zeros now.
    fn serve(&self, address: usize) -> bool {
        let before = self.sequence.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Relaxed);
        let reserved = self.reserved.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_same = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        let within = address.wrapping_sub(base);
        // The thread that made the access has the window, so that its entry stays as it is.
        is_same && base != 0 && within < reserved && self.replace(base, within as u64)
    }

    /// Maps zeros over the page of a window that holds `within`, or over the large page.
    fn replace(&self, base: usize, within: u64) -> bool {
        let reserved = self.reserved.load(Ordering::Relaxed) as u64;
        [PAGE, HUGE].into_iter().any(|bytes| {
            let start = within / bytes * bytes;
            if start + bytes > reserved {
                return false;
            }
            for page in start / PAGE..(start + bytes) / PAGE {
                self.note(page); // PM-FAULT-1
            }
            self.map_zeros(base + start as usize, bytes as usize)
        })
    }

    fn note(&self, page: u64) {
        let notes = self.notes.load(Ordering::Relaxed);
        // SAFETY: a page that is mapped, or in a large one with it, has its note in the window's notes.
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
        // SAFETY: pages of a window that lives, of which no references exist but to words as atomics,
        // whose values are anything another thread may have stored. Its system call alone is made,
        // which a signal handler may do; it leaves errno alone.
        unsafe { mmap_anonymous(at, bytes, prot, flags).is_ok() }
    }
}

/// Installs the handler, once in a process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = *INSTALLED.get_or_init(|| {
        // SAFETY: all zeros are a valid `sigaction`, an empty mask and the default action.
        let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut ours = before;
        ours.sa_sigaction = on_bus_error as extern "C" fn(_, _, _) as usize;
        // On a thread's signal stack, if it has one, as the standard library's threads do.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: it reads the action there is now.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        BEFORE.store(Box::leak(Box::new(before)), Ordering::Release);
        // SAFETY: the handler is safe in a signal (PM-FAULT-2), and knows the one before it.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a whole `siginfo_t`.
    let code = unsafe { (*info).si_code };
    let is_ours = matches!(
        code,
        libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO
    );
    if is_ours {
        // SAFETY: of these codes the address is set.
        let address = unsafe { (*info).si_addr() } as usize;
        if WINDOWS.iter().any(|entry| entry.serve(address)) {
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type HandlerTableFull = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: stored before the handler was installed, whole, and never freed.
    let (action, flags) = unsafe { ((*before).sa_sigaction, (*before).sa_flags) };
    // SAFETY: the kernel hands over a whole `siginfo_t`.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match action {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both calls may be made in a signal handler. An access that faulted is made again
            // after the return, and ends the process; a signal that was sent is sent again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if was_sent {
                    libc::raise(signal);
                }
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: that is what a handler with this flag is.
            let handler = unsafe { std::mem::transmute::<usize, HandlerTableFull>(action) };
            handler(signal, info, context);
            end_if_sent(signal, was_sent);
        }
        _ => {
            // SAFETY: that is what a handler without the flag is.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action) };
            handler(signal);
            end_if_sent(signal, was_sent);
        }
    }
}

/// A handler that knows nothing better, like the standard library's, restores the default action and
/// returns, for the access to be made again. A signal that was sent has no access: it is sent again.
fn end_if_sent(signal: c_int, was_sent: bool) {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut now: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: it reads the action there is now, which may be done in a signal handler.
    let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) } == 0;
    if was_sent && known && now.sa_sigaction == libc::SIG_DFL {
        // SAFETY: it may be called in a signal handler.
        unsafe { libc::raise(signal) };
    }
}
