//! Memory that is mapped and written by stores: DAX (persistent memory) and DRAM.
//!
//! ```text
//!   copy_in ──▶ whole lines, from a size on, pairs: around the cache ──────────────┐
//!           └─▶ the rest: into the cache ──▶ written back, line by line ───────────┤
//!   store ────▶ into the cache    flush ──▶ written back, line by line ────────────┤
//!                                                                                  ▼
//!                                            drain: one fence ──▶ the persistence domain
//! ```
//!
//! An ordinary file can be mapped too, for those who ask for it ([`OpenOptions::page_cache`]): its stores outlive the
//! process, in the page cache, and a restart of the machine only if they were synced ([`Medium::settle`]).
//!
//! [`OpenOptions::page_cache`]: super::OpenOptions::page_cache
//!
//! Both other kinds do the same work, so that what is measured on DRAM is the processor's side of what
//! persistent memory costs. The file of a DAX or tmpfs pool is mapped from its first byte to its
//! last and never shortened: no other process may truncate it (it is locked). If one does it all
//! the same, zeros are read behind the new end, and nothing is acknowledged any more.
//!
//! # Invariants
//! M1  A ticket is durable when it is issued: the fence in `drain` has completed every write-back
//!     and every store around the cache of its thread (C1), and where mappings are synchronous the
//!     page's place in the file is durable since its first write fault.
//! M2  A context is used by one thread at a time and moves between threads only after a drain, or the
//!     fence would be another thread's.
//! M3  With eADR stores are durable once they are visible: write-backs are left out, fences stay.
//!     Counters count what was asked for, so they do not change.
//! M4  After the first sync of the file that failed nothing is acknowledged any more, and no sync is
//!     tried again: the kernel may have dropped pages, and would call the next sync a success.
//! M5  A store into a page that cannot be read or written goes to the zeros in its place and nowhere
//!     else. The medium is poisoned before its drain returns. Pages that were only read there poison
//!     nothing: of all other pages the device has reported nothing.

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
use super::window::{MapSource, PAGE, RESERVE_BYTES, Window};
use crate::medium::{
    Caps, Drain, FileId, FileTrouble, Kind, Medium, Off, Poisoned, Ticket, WORD, bytes_of,
    check_pair,
};
use crate::persist_ctx::PersistCtx;

/// From how many bytes on `copy_in` stores whole lines around the cache, unless the processor is
/// an AMD one.
///
/// Nanoseconds per persist (copy in, drain) on two virtual cores of an Intel Xeon of family 6,
/// model 207 (Emerald Rapids, 260 MiB L3), DRAM, medians of 9 interleaved rounds; with `around`
/// only whole lines go around the cache. From `cargo run --release -p farbank-pm --example
/// persist_cost`:
///
/// | bytes | own lines: around | through | 16-aligned, packed: around | through |
/// |------:|------------------:|--------:|---------------------------:|--------:|
/// |    64 |               182 |     136 |                        165 |     165 |
/// |   128 |               185 |     144 |                        187 |     175 |
/// |   256 |               198 |     159 |                        193 |     192 |
/// |   512 |               203 |     208 |                        225 |     226 |
/// |  1024 |               216 |     308 |                        261 |     293 |
/// |  2048 |               260 |     506 |                        344 |     435 |
/// |  4096 |               342 |     892 |                        431 |     889 |
///
/// Partial lines always go through the cache: storing them around it, too, cost 298 ns at 16 bytes
/// instead of 149, and 340 at 256 instead of 193.
pub const NON_TEMPORAL_FROM_BYTES: usize = 512;

/// The same for AMD processors. On a Zen 4, lines of their own cost 97 ns around the cache and 160
/// through it at 64 bytes, 102 and 178 at 256, 122 and 242 at 1024.
pub const NON_TEMPORAL_FROM_BYTES_AMD: usize = 64;

/// Bytes of what [`Medium::copy_in_pair`] writes.
const PAIR_BYTES: usize = 2 * WORD;

/// Memory mapped and written by stores. See the module's head.
pub struct Mapped {
    // Before the file: its pages are unmapped before the lock is let go.
    window: Window,
    /// Looks after the file, if there is one. Before the file, too: it gives the lease back.
    watch: Option<FileWatch>,
    backing: Backing,
    /// Why nothing may be acknowledged any more: the file was removed or cut.
    poison: Arc<OnceLock<Poisoned>>,
    /// Held while the medium grows.
    growing: Mutex<()>,
    caps: Caps,
    write_back: WriteBack,
    /// Whether a drain fences: where nothing could become durable by it, it does not.
    fences: bool,
    non_temporal_from: usize,
    /// Whether [`Medium::copy_in_pair`] goes around the cache: with AMD processors. An insert into a Dash table of 2,000,000
    /// keys, which writes one pair somewhere, took 505 ns through the cache and 385 around it on a Zen 4.
    pairs_around: bool,
}

impl watch::PoisonFlag for Arc<OnceLock<Poisoned>> {
    fn poison(&self, reason: Arc<str>) {
        // The first reason stays.
        let _ = self.set(Poisoned { reason });
    }

    fn is_poisoned(&self) -> bool {
        self.get().is_some()
    }
}

enum Backing {
    Anonymous,
    /// A file on tmpfs.
    Memory(PoolFile),
    /// An ordinary file in the page cache.
    Disk(PoolFile),
    /// A file on a DAX file system.
    Dax(PoolFile),
    /// A devdax device; `map_sync` if it lets itself be asked.
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
}

impl Backing {
    fn file(&self) -> Option<&PoolFile> {
        match self {
            Backing::Anonymous => None,
            Backing::Memory(file) | Backing::Disk(file) | Backing::Dax(file) => Some(file),
            Backing::Device { file, .. } => Some(file),
        }
    }
}

impl Mapped {
    /// Zeroed memory of this process, `bytes` rounded up to whole pages: for tests and
    /// measurements. It can grow to 64 GiB, or 16 times its first length if that is more.
    pub fn anonymous(bytes: u64) -> io::Result<Mapped> {
        const GROWS_TO_BYTES: u64 = 64 << 30;
        // What cannot be rounded up cannot be reserved either, and is refused there.
        let bytes = bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes);
        let reserve = GROWS_TO_BYTES.max(bytes.saturating_mul(16));
        let survives = "nothing: the memory ends with the process".into();
        Mapped::new(Backing::Anonymous, Kind::Dram, bytes, reserve, survives)
    }

    /// Maps `bytes` of a file or device that allows it, from its first byte on.
    pub(super) fn on_file(
        file: PoolFile,
        place: FileKind,
        bytes: u64,
        page_cache: bool,
        lease: Option<Lease>,
    ) -> io::Result<Mapped> {
        let reserve = RESERVE_BYTES.max(bytes.saturating_mul(2));
        let dram = "a kill of the process; no restart and no power cut: the file is in memory";
        let cached = "a kill of the process; a restart of the machine only after a clean close";
        let durable = file.caches_are_durable();
        let dax = match durable {
            true => "a kill and a power cut: stores are durable as they are made (eADR)",
            false => "a kill and a power cut: persistent memory, written back and fenced",
        };
        let (backing, kind, survives) = match place {
            FileKind::Memory => (Backing::Memory(file), Kind::Dram, dram),
            FileKind::Dax => (Backing::Dax(file), Kind::Dax, dax),
            FileKind::Device { map_sync, .. } => {
                (Backing::Device { file, map_sync }, Kind::Dax, dax)
            }
            FileKind::Disk => (Backing::Disk(file), Kind::Dram, cached),
        };
        let mut mapped = Mapped::new(backing, kind, bytes, reserve, survives.into())?;
        if kind == Kind::Dax && durable {
            mapped.caps.stores_are_durable = true;
            mapped.write_back = WriteBack::NotNeeded; // M3
        }
        if page_cache && kind == Kind::Dram {
            // A kill takes nothing from the page cache, and no write-back reaches further.
            mapped.write_back = WriteBack::NotNeeded;
            mapped.fences = false;
        }
        mapped.watch = mapped.start_watch(page_cache, lease)?;
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

    /// Whether anything may be acknowledged.
    #[inline]
    fn sound(&self) -> Result<(), Poisoned> {
        match self.poison.get() {
            None => Ok(()),
            Some(poisoned) => Err(poisoned.clone()),
        }
    }

    /// Notices if a store to these bytes was lost (M5). After the store, before the drain.
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
             file is shorter than that",
            at.0,
            path.unwrap_or_default()
        );
        // The first reason stays.
        let _ = self.poison.set(Poisoned {
            reason: reason.into(),
        });
    }

    /// One sync of the file, the last one if it fails (M4).
    fn sync(&self, file: &PoolFile) -> Result<(), Poisoned> {
        self.sound()?;
        if let Err(error) = file.sync() {
            let reason = format!("fdatasync of {} failed: {error}", file.path().display());
            // The first reason stays.
            let _ = self.poison.set(Poisoned {
                reason: reason.into(),
            });
        }
        self.sound()
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
            read_by: ReadMode::Mapping.name(),
            stores_are_durable: false,
            survives,
            warnings: Vec::new(),
        };
        Ok(Mapped {
            window,
            backing,
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
            pairs_around: processor.amd,
        })
    }

    /// Has `copy_in` store whole lines, and pairs, around the cache from `bytes` a call on, whatever
    /// the processor: 0 always, `usize::MAX` never.
    #[must_use]
    pub fn with_non_temporal_from(mut self, bytes: usize) -> Mapped {
        self.non_temporal_from = bytes;
        self.pairs_around = bytes <= PAIR_BYTES;
        self
    }

    /// Leaves out write-backs and fences: for measuring what durability costs. Nothing is durable
    /// then, whatever a ticket says.
    #[must_use]
    pub fn without_durability(mut self) -> Mapped {
        self.write_back = WriteBack::NotNeeded;
        self.fences = false;
        self.caps.survives = "nothing: no line is written back".into();
        self
    }

    pub(super) fn caps_mut(&mut self) -> &mut Caps {
        &mut self.caps
    }

    /// How lines are written back here.
    #[must_use]
    pub fn write_back(&self) -> WriteBack {
        self.write_back
    }

    /// Makes every page present and writable now, instead of at its first use.
    pub fn prefault(&self, progress: Progress<'_>) {
        self.window.prefault(true, progress);
    }

    /// The same of the pages that a part lies in, as far as there are any.
    pub fn prefault_part(&self, part: Range<u64>) {
        self.window.prefault_part(part, true);
    }

    /// Zeroes everything, durably on return: how a device becomes fit for a new pool.
    pub(super) fn wipe(&self, progress: Progress<'_>) {
        static ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        const TELL_BYTES: u64 = 64 << 20;
        let mut ctx = PersistCtx::default();
        let total = self.len();
        for at in (0..total).step_by(ZEROS.len()) {
            let run = (total - at).min(ZEROS.len() as u64);
            self.copy_in(&mut ctx, Off(at), &[&ZEROS[..run as usize]]);
            self.drain(&mut ctx);
            let done = at + run;
            if done.is_multiple_of(TELL_BYTES) || done == total {
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
        let _growing = self.growing.lock().expect("no holder panics");
        let (from, len) = (self.len(), len.next_multiple_of(PAGE));
        if len <= from {
            return Ok(());
        }
        self.sound().map_err(io::Error::other)?;
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
                let why = format!("{}: a device cannot grow", file.path().display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        }
        if let Some(watch) = &self.watch {
            watch.serves(len);
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
        let len = bytes_of(parts);
        let to = self.window.aligned(at, len);
        let around = len >= self.non_temporal_from && self.write_back != WriteBack::NotNeeded;
        // SAFETY: checked to be mapped, in whole words by W2, and aligned; all other access to mapped
        // bytes is by words or by `cpu` (W3).
        unsafe { cpu::store_parts(self.write_back, around, parts, to, len) };
        self.check_stored(at, len);
        ctx.copied_in(at, len);
    }

    #[inline]
    fn copy_in_pair(&self, ctx: &mut PersistCtx, at: Off, pair: [u64; 2]) {
        check_pair(at);
        if !self.pairs_around || self.write_back == WriteBack::NotNeeded {
            return self.copy_in(ctx, at, &[pair.map(u64::to_le_bytes).as_flattened()]);
        }
        let bytes = (u128::from(pair[1]) << u64::BITS | u128::from(pair[0])).to_le_bytes();
        let to = self.window.aligned(at, PAIR_BYTES);
        // SAFETY: checked to be mapped and aligned; all other access to mapped bytes is by words or by
        // `cpu` (W3).
        unsafe { cpu::stream(&bytes, to) };
        self.check_stored(at, PAIR_BYTES);
        ctx.copied_in(at, PAIR_BYTES);
    }

    #[inline]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        let from = self.window.address(at, len);
        // SAFETY: checked to be mapped.
        unsafe { cpu::flush_range(self.write_back, from, len) };
        ctx.flushed(at, len);
    }

    #[inline]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        if ctx.undrained {
            if self.fences {
                cpu::fence(); // M1
            }
            compiler_fence(Ordering::Release);
            ctx.undrained = false;
            ctx.counters.fences += 1;
        }
        Ticket::DURABLE
    }

    #[inline]
    fn poll(&self, _: Ticket) -> Result<bool, Poisoned> {
        self.sound().map(|()| true)
    }

    #[inline]
    fn wait(&self, _: Ticket) -> Result<(), Poisoned> {
        self.sound()
    }

    /// A file in the page cache is synced, whole.
    fn settle(&self, _: Ticket) -> Result<(), Poisoned> {
        self.sound()?;
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

    fn on_turn(&self, _: Arc<dyn Fn() + Send + Sync>) {}

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
    fn every_way_to_write_back_leaves_the_same_bytes_and_counts() {
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
