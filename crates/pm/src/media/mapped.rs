//! Medium on mapped memory that is written by stores: DAX (persistent memory) and DRAM.
//!
//! ```text
//!   copy_in ──▶ large copies, pairs on AMD: non-temporal stores of whole lines ────┐
//!           └─▶ other bytes: into the cache ──▶ written back, line by line ────────┤
//!   store ────▶ into the cache    flush ──▶ written back, line by line ────────────┤
//!                                                                                  ▼
//!                                            drain: one fence ──▶ the persistence domain
//! ```
//!
//! With [`OpenOptions::page_cache`] an ordinary file is mapped too. Its stores are in the page cache, so they survive
//! a kill of the process. They survive a restart of the machine only if they were synced ([`Medium::wait_until_durable`]).
//!
//! [`OpenOptions::page_cache`]: super::OpenOptions::page_cache
//!
//! DAX and DRAM execute the same instructions, so a measurement on DRAM shows the processor's share of the
//! cost on persistent memory. The file of a DAX or tmpfs pool is mapped from its first byte to its
//! last and never shortened. It is locked, so no other process may truncate it. If a process truncates it
//! nevertheless, reads behind the new end return zeros, and no later write is acknowledged.
//!
//! # Invariants
//! PM-MAP-1  A ticket is durable when it is issued. The fence in `drain` has completed every write-back
//!     and every non-temporal store of its thread (PM-CPU-1). Where mappings are synchronous (`MAP_SYNC`), the
//!     file system's metadata for the page is durable since the page's first write fault.
//! PM-MAP-2  One thread at a time uses a context. The context moves between threads only after a drain: a fence
//!     orders only the stores of its own thread.
//! PM-MAP-3  With eADR, stores are durable once they are visible. Write-backs are omitted, fences stay.
//!     Counters count the requested operations, so they are the same with and without eADR.
//! PM-MAP-4  After the first failed sync of the file, no write is acknowledged and no sync is
//!     retried: the kernel may have dropped pages, and would report success for the next sync.
//! PM-MAP-5  A store into a page that cannot be read or written changes only the zero page that replaces it.
//!     The medium is poisoned before the drain of that store returns. A page that was only read
//!     poisons nothing, because the device has reported no error for any other page.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Arc, Mutex, OnceLock};

use super::cpu::{self, CpuModel, WriteBack};
use super::lease::Lease;
use super::reader::ReadMode;
use super::space::{FileKind, PoolFile, Progress};
use super::watch::{self, FileWatch, unreadable};
use super::window::{MapSource, RESERVE_BYTES, Window};
use crate::medium::{
    Caps, Drain, FileId, FileTrouble, Kind, Medium, Off, Poisoned, Ticket, WORD, check_pair,
    total_bytes,
};
use crate::offset::PAGE;
use crate::persist_ctx::PersistCtx;
use crate::sync::ignore_poison;

/// Smallest `copy_in`, in bytes, that writes whole lines by non-temporal stores, on processors not made by AMD.
///
/// Nanoseconds per persist (copy in, drain) on two virtual cores of an Intel Xeon of family 6,
/// model 207 (Emerald Rapids, 260 MiB L3), DRAM, medians of 9 interleaved rounds. `nt` writes
/// whole lines by non-temporal stores, `cached` writes all lines through the cache. From `cargo run
/// --release -p farbank-pm --example persist_cost`:
///
/// | bytes |     own lines: nt |  cached |     16-aligned, packed: nt |  cached |
/// |------:|------------------:|--------:|---------------------------:|--------:|
/// |    64 |               182 |     136 |                        165 |     165 |
/// |   128 |               185 |     144 |                        187 |     175 |
/// |   256 |               198 |     159 |                        193 |     192 |
/// |   512 |               203 |     208 |                        225 |     226 |
/// |  1024 |               216 |     308 |                        261 |     293 |
/// |  2048 |               260 |     506 |                        344 |     435 |
/// |  4096 |               342 |     892 |                        431 |     889 |
///
/// Partial lines always go through the cache: non-temporal stores of them cost 298 ns at 16 bytes
/// instead of 149, and 340 at 256 instead of 193.
pub const NON_TEMPORAL_FROM_BYTES: usize = 512;

/// As [`NON_TEMPORAL_FROM_BYTES`], for AMD processors. On a Zen 4, own lines cost 97 ns by non-temporal stores and 160
/// through the cache at 64 bytes, 102 and 178 at 256, 122 and 242 at 1024.
pub const NON_TEMPORAL_FROM_BYTES_AMD: usize = 64;

/// Bytes that [`Medium::copy_in_pair`] writes.
const PAIR_BYTES: usize = 2 * WORD;

/// Medium on mapped memory, written by stores. See the module documentation.
pub struct Mapped {
    // Declared before the file: dropping unmaps the pages before it releases the lock.
    window: Window,
    /// Watches the file, if there is one. Declared before the file, because dropping it gives the lease back.
    watch: Option<FileWatch>,
    backing: Backing,
    /// The medium grows by a multiple of this, in bytes.
    page_bytes: u64,
    /// Reason why no write is acknowledged: a lost store, a failed sync, or a removed or truncated file.
    poison: Arc<OnceLock<Poisoned>>,
    /// Held while the medium grows.
    growing: Mutex<()>,
    caps: Caps,
    write_back: WriteBack,
    /// Whether a drain fences. It does not where a fence could make nothing durable.
    fences: bool,
    non_temporal_from: usize,
    /// Whether [`Medium::copy_in_pair`] uses non-temporal stores: on AMD processors. An insert into a Dash table of
    /// 2,000,000 keys, which writes one pair at a random place, took 505 ns through the cache and 385 by non-temporal
    /// stores on a Zen 4.
    pairs_non_temporal: bool,
}

impl watch::PoisonFlag for Arc<OnceLock<Poisoned>> {
    fn poison(&self, reason: Arc<str>) {
        // Keeps the first reason.
        let _ = self.set(Poisoned::new(&*reason));
    }

    fn is_poisoned(&self) -> bool {
        self.get().is_some()
    }
}

enum Backing {
    Anonymous,
    /// A file on tmpfs or hugetlbfs.
    Memory(PoolFile),
    /// An ordinary file in the page cache.
    Disk(PoolFile),
    /// A file on a DAX file system.
    Dax(PoolFile),
    /// A devdax device; `map_sync` if the kernel accepts `MAP_SYNC` for it.
    Device {
        file: PoolFile,
        map_sync: bool,
    },
}

impl Backing {
    fn source(&self) -> MapSource<'_> {
        match self {
            Backing::Anonymous => MapSource::Anonymous,
            Backing::Memory(file) | Backing::Disk(file) => MapSource::Write(file.fd()),
            Backing::Dax(file)
            | Backing::Device {
                file,
                map_sync: true,
            } => MapSource::Sync(file.fd()),
            Backing::Device {
                file,
                map_sync: false,
            } => MapSource::Write(file.fd()),
        }
    }

    fn file(&self) -> Option<&PoolFile> {
        match self {
            Backing::Anonymous => None,
            Backing::Memory(file) | Backing::Disk(file) | Backing::Dax(file) => Some(file),
            Backing::Device { file, .. } => Some(file),
        }
    }
}

impl Mapped {
    /// Makes a medium of zeroed memory of this process, for tests and measurements. `bytes` is rounded up to whole
    /// pages. The medium can grow to 64 GiB, or to 16 times its first length if that is more.
    pub fn anonymous(bytes: u64) -> io::Result<Mapped> {
        const GROWS_TO_BYTES: u64 = 64 << 30;
        // If rounding up overflows, `Window::reserve` refuses the length.
        let bytes = bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes);
        let reserve = GROWS_TO_BYTES.max(bytes.saturating_mul(16));
        let survives = "nothing: the memory ends with the process".into();
        Mapped::new(Backing::Anonymous, Kind::Dram, bytes, reserve, survives)
    }

    /// Maps the first `bytes` bytes of a file or device.
    pub(super) fn on_file(
        file: PoolFile,
        place: FileKind,
        bytes: u64,
        page_cache: bool,
        lease: Option<Lease>,
    ) -> io::Result<Mapped> {
        let durable = file.caches_are_durable();
        let reserve = RESERVE_BYTES.max(bytes.saturating_mul(2));
        let mut mapped = Mapped::on_place(file, place, bytes, reserve)?;
        let kind = mapped.caps.kind;
        if kind == Kind::Dax && durable {
            mapped.caps.stores_are_durable = true;
            mapped.write_back = WriteBack::NotNeeded; // PM-MAP-3
        }
        if page_cache && kind == Kind::Dram {
            // Stores in the page cache survive a kill, and a write-back cannot move them to the device.
            mapped.write_back = WriteBack::NotNeeded;
            mapped.fences = false;
        }
        mapped.watch = mapped.start_watch(page_cache, lease)?;
        Ok(mapped)
    }

    /// Maps a file that another process has locked: without a watch, and without write-backs and fences.
    pub(super) fn shared(file: PoolFile, place: FileKind, bytes: u64) -> io::Result<Mapped> {
        let mut mapped = Mapped::on_place(file, place, bytes, bytes)?.without_durability();
        mapped.window.return_zeros();
        Ok(mapped)
    }

    fn on_place(file: PoolFile, place: FileKind, bytes: u64, reserve: u64) -> io::Result<Mapped> {
        let dram = "a kill of the process; lost in a restart or power cut: the file is in memory";
        let cached = "a kill of the process; a restart of the machine only after a clean close";
        let durable = file.caches_are_durable();
        let dax = match durable {
            true => {
                "a kill and a power cut: stores to persistent memory are durable at once (eADR)"
            }
            false => "a kill and a power cut: persistent memory, written back and fenced",
        };
        let (backing, kind, survives) = match place {
            FileKind::Memory | FileKind::HugePages { .. } => {
                (Backing::Memory(file), Kind::Dram, dram)
            }
            FileKind::Dax => (Backing::Dax(file), Kind::Dax, dax),
            FileKind::Device { map_sync, .. } => {
                (Backing::Device { file, map_sync }, Kind::Dax, dax)
            }
            FileKind::Disk => (Backing::Disk(file), Kind::Dram, cached),
        };
        let mut mapped = Mapped::new(backing, kind, bytes, reserve, survives.into())?;
        mapped.page_bytes = place.page_bytes();
        Ok(mapped)
    }

    fn start_watch(
        &self,
        may_be_removed: bool,
        lease: Option<Lease>,
    ) -> io::Result<Option<FileWatch>> {
        let file = match &self.backing {
            Backing::Memory(file) | Backing::Disk(file) | Backing::Dax(file) => file,
            Backing::Anonymous | Backing::Device { .. } => return Ok(None),
        };
        let poison = Box::new(Arc::clone(&self.poison));
        FileWatch::start(file, self.len(), may_be_removed, lease, poison).map(Some)
    }

    /// Returns the reason as an error if the medium is poisoned.
    #[inline]
    fn check_not_poisoned(&self) -> Result<(), Poisoned> {
        match self.poison.get() {
            None => Ok(()),
            Some(poisoned) => Err(poisoned.clone()),
        }
    }

    /// Poisons the medium if a store to these bytes was lost (PM-MAP-5). Called after the store, before the drain.
    #[inline]
    fn check_stored(&self, at: Off, len: usize) {
        if let Some(at) = self.window.unreadable(at, len) {
            self.lost(at);
        }
    }

    #[cold]
    fn lost(&self, at: Off) {
        let path = self
            .backing
            .file()
            .map(|file| file.path().display().to_string());
        let reason = format!(
            "writing at byte {} of {} failed: the device or the file system reports an error, or the \
             file is shorter than that offset",
            at.0,
            path.unwrap_or_default()
        );
        // Keeps the first reason.
        let _ = self.poison.set(Poisoned::new(reason));
    }

    /// Syncs the file. If the sync fails, it is the last one (PM-MAP-4).
    fn sync(&self, file: &PoolFile) -> Result<(), Poisoned> {
        self.check_not_poisoned()?;
        if let Err(error) = file.sync() {
            let operation = format_args!("fdatasync of {}", file.path().display());
            // Keeps the first reason.
            let _ = self.poison.set(Poisoned::from_io(operation, error));
        }
        self.check_not_poisoned()
    }

    fn new(
        backing: Backing,
        kind: Kind,
        bytes: u64,
        reserve: u64,
        survives: String,
    ) -> io::Result<Mapped> {
        let mut window = Window::reserve(bytes, reserve)?;
        if backing.file().is_some() {
            window.watch_faults(true)?;
        }
        window.extend(backing.source(), bytes)?;
        if let Some(file) = backing.file() {
            window.mark_all_unreadable(&file.unreadable()?)?;
        }
        window.advise_huge();
        let processor = CpuModel::detect();
        let caps = Caps {
            kind,
            tear_bytes: WORD,
            drain: Drain::Fence,
            read_mode: ReadMode::Mapping.name(),
            stores_are_durable: false,
            survives,
            warnings: Vec::new(),
        };
        Ok(Mapped {
            window,
            backing,
            page_bytes: PAGE,
            watch: None,
            poison: Arc::default(),
            growing: Mutex::new(()),
            caps,
            write_back: processor.write_back,
            fences: true,
            non_temporal_from: match processor.amd {
                true => NON_TEMPORAL_FROM_BYTES_AMD,
                false => NON_TEMPORAL_FROM_BYTES,
            },
            pairs_non_temporal: processor.amd,
        })
    }

    /// Sets the smallest `copy_in`, in bytes, that writes whole lines by non-temporal stores, on any processor: 0 for
    /// every call, `usize::MAX` for none. Pairs are written so if `bytes` is at most their length (16).
    #[must_use]
    pub fn with_non_temporal_from(mut self, bytes: usize) -> Mapped {
        self.non_temporal_from = bytes;
        self.pairs_non_temporal = bytes <= PAIR_BYTES;
        self
    }

    /// Omits write-backs and fences, to measure the cost of durability. Nothing is durable then,
    /// although tickets are durable at once.
    #[must_use]
    pub fn without_durability(mut self) -> Mapped {
        self.write_back = WriteBack::NotNeeded;
        self.fences = false;
        self.caps.survives = "nothing: lines are not written back".into();
        self
    }

    pub(super) fn caps_mut(&mut self) -> &mut Caps {
        &mut self.caps
    }

    /// Returns the address of the first byte, for a library that reads and changes the memory itself. The bytes are mapped there as long
    /// as the medium exists. Other threads access them at the same time.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.window.start()
    }

    /// Returns the instruction that writes lines back.
    #[must_use]
    pub fn write_back(&self) -> WriteBack {
        self.write_back
    }

    /// Makes every page present and writable, so that later accesses cause no page faults.
    pub fn prefault(&self, progress: Progress<'_>) {
        self.window.prefault(true, progress);
    }

    /// As [`Mapped::prefault`], for the pages that contain bytes of `part`. Offsets beyond the medium are ignored.
    pub fn prefault_part(&self, part: Range<u64>) {
        self.window.prefault_part(part, true);
    }

    /// Zeroes the whole medium, durably on return. Prepares a device for a new pool.
    pub(super) fn wipe(&self, progress: Progress<'_>) {
        static ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        const PROGRESS_EVERY_BYTES: u64 = 64 << 20;
        let mut ctx = PersistCtx::default();
        let total = self.len();
        for at in (0..total).step_by(ZEROS.len()) {
            let run = (total - at).min(ZEROS.len() as u64);
            self.copy_in(&mut ctx, Off(at), &[&ZEROS[..run as usize]]);
            self.drain(&mut ctx);
            let done = at + run;
            if done.is_multiple_of(PROGRESS_EVERY_BYTES) || done == total {
                progress(done, total);
            }
        }
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("kind", &self.caps.kind)
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Medium for Mapped {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn len(&self) -> u64 {
        self.window.len()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let _growing = ignore_poison(self.growing.lock());
        let (from, len) = (self.len(), len.next_multiple_of(self.page_bytes));
        if len <= from {
            return Ok(());
        }
        self.check_not_poisoned().map_err(io::Error::other)?;
        self.window.check_room(len)?;
        match &self.backing {
            Backing::Anonymous => self.window.extend(MapSource::Anonymous, len)?,
            Backing::Memory(file) | Backing::Dax(file) | Backing::Disk(file) => {
                file.grow(from, len, || self.sync(file).map_err(io::Error::other))?;
                if let Err(e) = self.window.extend(self.backing.source(), len) {
                    file.truncate(from)?;
                    return Err(e);
                }
            }
            Backing::Device { file, .. } => {
                let why = format!("{}: a devdax device cannot grow", file.path().display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        }
        if let Some(watch) = &self.watch {
            watch.set_len(len);
        }
        self.window.advise_huge();
        Ok(())
    }

    #[inline]
    fn load(&self, at: Off) -> u64 {
        self.window.load(at)
    }

    #[inline(always)]
    fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        self.window.load_words(at, step)
    }

    #[inline]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        ctx.counters.bytes += WORD as u64;
        self.window.word(at).store(value, Ordering::Release);
        self.check_stored(at, WORD);
    }

    #[inline]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        let word = self.window.word(at);
        let found = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        self.window.check_readable(at, WORD);
        let before = found?;
        ctx.counters.bytes += WORD as u64;
        Ok(before)
    }

    #[inline]
    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.window.copy_out(at, to);
    }

    #[inline]
    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.window.append_out(at, len, to);
    }

    #[inline]
    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        self.window.matches(at, bytes)
    }

    #[inline]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        let len = total_bytes(parts);
        let to = self.window.aligned(at, len);
        let around = len >= self.non_temporal_from && self.write_back != WriteBack::NotNeeded;
        // SAFETY: `aligned` checked that the range is mapped, in whole words by PM-WINDOW-2, and that it is 8-aligned. All
        // other access to mapped bytes is by words or by `cpu` (PM-WINDOW-3).
        unsafe { cpu::store_parts(self.write_back, around, parts, to, len) };
        self.check_stored(at, len);
        ctx.copied_in(at, len);
    }

    #[inline]
    fn copy_in_pair(&self, ctx: &mut PersistCtx, at: Off, pair: [u64; 2]) {
        check_pair(at);
        if !self.pairs_non_temporal || self.write_back == WriteBack::NotNeeded {
            return self.copy_in(ctx, at, &[pair.map(u64::to_le_bytes).as_flattened()]);
        }
        let bytes = (u128::from(pair[1]) << u64::BITS | u128::from(pair[0])).to_le_bytes();
        let to = self.window.aligned(at, PAIR_BYTES);
        // SAFETY: `aligned` checked that the range is mapped, `check_pair` that it is 16-aligned. All other access
        // to mapped bytes is by words or by `cpu` (PM-WINDOW-3).
        unsafe { cpu::stream(&bytes, to) };
        self.check_stored(at, PAIR_BYTES);
        ctx.copied_in(at, PAIR_BYTES);
    }

    #[inline]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        let from = self.window.address(at, len);
        // SAFETY: `address` checked that the range is mapped.
        unsafe { cpu::flush_range(self.write_back, from, len) };
        ctx.flushed(at, len);
    }

    #[inline]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        if ctx.take_undrained() {
            self.make_visible(ctx); // PM-MAP-1
        }
        Ticket::DURABLE
    }

    #[inline]
    fn make_visible(&self, ctx: &mut PersistCtx) {
        if self.fences {
            cpu::fence();
        }
        compiler_fence(Ordering::Release);
        ctx.counters.fences += 1;
    }

    #[inline]
    fn poll(&self, _: Ticket) -> Result<bool, Poisoned> {
        self.check_not_poisoned().map(|()| true)
    }

    #[inline]
    fn wait(&self, _: Ticket) -> Result<(), Poisoned> {
        self.check_not_poisoned()
    }

    /// Syncs the whole file if it is in the page cache. All other backings are durable already.
    fn wait_until_durable(&self, _: Ticket) -> Result<(), Poisoned> {
        self.check_not_poisoned()?;
        let Backing::Disk(file) = &self.backing else {
            return Ok(());
        };
        self.sync(file)
    }

    fn file_id(&self) -> Option<FileId> {
        match &self.backing {
            Backing::Memory(file) | Backing::Disk(file) | Backing::Dax(file) => file.id(),
            Backing::Anonymous | Backing::Device { .. } => None,
        }
    }

    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        self.window.unreadable(at, len)
    }

    fn file_trouble(&self) -> Option<FileTrouble> {
        let found = self.watch.as_ref().and_then(FileWatch::trouble);
        found.or_else(|| {
            let len = usize::try_from(self.window.len()).unwrap_or(usize::MAX);
            let first = self.window.unreadable(Off(0), len)?;
            let bytes = self.window.unreadable_bytes();
            Some(unreadable(self.backing.file()?, first, bytes))
        })
    }

    fn on_durable(&self, _: Arc<dyn Fn() + Send + Sync>) {}

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        self.window.crc(at, len, seed)
    }

    #[inline]
    fn prefetch(&self, at: Off, len: usize) {
        self.window.prefetch(at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_back_instruction_gives_the_same_bytes_and_counters() {
        let best = CpuModel::detect().write_back;
        let mut seen = Vec::new();
        for write_back in [best, WriteBack::Clflush, WriteBack::NotNeeded] {
            let mut mapped = Mapped::anonymous(PAGE).expect("a page");
            mapped.write_back = write_back;
            let mut ctx = PersistCtx::new(0);
            let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
            mapped.copy_in(&mut ctx, Off(40), &[&bytes[..7], &bytes[7..]]);
            mapped.flush(&mut ctx, Off(3), 200);
            mapped.drain(&mut ctx);
            assert!(mapped.matches(Off(40), &bytes), "{}", write_back.name());
            seen.push(ctx.counters);
        }
        assert!(seen.iter().all(|counters| *counters == seen[0]));
    }

    #[test]
    fn wiping_leaves_zeros() {
        let mapped = Mapped::anonymous(3 * PAGE).expect("three pages");
        mapped.copy_in(&mut PersistCtx::new(0), Off(0), &[&[7; 3 * PAGE as usize]]);
        let mut told = Vec::new();
        mapped.wipe(&mut |done, total| told.push((done, total)));
        assert_eq!(told, [(3 * PAGE, 3 * PAGE)]);
        assert!(mapped.matches(Off(0), &[0; 3 * PAGE as usize]));
    }
}
