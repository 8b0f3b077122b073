//! Instructions for durable stores: line write-back, non-temporal store, fence; and wide copies out of mapped memory.
//!
//! The caller guarantees that every address passed here is mapped. [`flush_line`] is the
//! only place in the project that issues a write-back instruction.
//!
//! # Invariants
//! PM-CPU-1  After [`store_parts`] or [`flush_line`] on a line, the next [`fence`] of the same thread
//!     leaves the line's bytes in the persistence domain (power-fail protected memory).
//! PM-CPU-2  The fence also orders those stores before every later store of the thread, so a thread that
//!     sees a later store also sees them. Before the fence, another thread reads each
//!     word of a line written by non-temporal stores old or new, in any mix, even if it has seen a later
//!     store of the same thread.
//! PM-CPU-3  No byte outside the given range is changed. Bytes that share the last word with the end of the range are
//!     written back as they were read. If another thread writes that word at the same time, its write may be lost.
//! PM-CPU-4  The thread that wrote bytes by non-temporal stores reads the new bytes at once, before
//!     the fence: a load never passes an older store to the same address, of any kind (Intel SDM 3A,
//!     "Memory Ordering in P6 and More Recent Processor Families"; AMD APM 2, 7.1.1).

use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_loadu_si128};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::medium::{LINE, WORD};

/// Instruction that moves a line to the persistence domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBack {
    /// `clwb`: the line may stay in the cache.
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    Clflushopt,
    /// `clflush`: the line leaves the cache, and each `clflush` waits for the previous one.
    Clflush,
    /// No instruction: the caches are inside the persistence domain (eADR), or nothing must be durable.
    NotNeeded,
}

impl WriteBack {
    /// Returns the instruction's name, for banners.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WriteBack::Clwb => "clwb",
            WriteBack::Clflushopt => "clflushopt",
            WriteBack::Clflush => "clflush",
            WriteBack::NotNeeded => "none (eADR)",
        }
    }
}

/// Properties of the processor that decide how lines are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuModel {
    /// Best write-back instruction of the processor.
    pub(super) write_back: WriteBack,
    /// Whether the vendor is AMD.
    pub(super) amd: bool,
}

impl CpuModel {
    pub(crate) fn detect() -> CpuModel {
        const STRUCTURED_FEATURES: u32 = 7;
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        const AUTHENTIC_AMD: u32 = u32::from_le_bytes(*b"Auth");
        let (max_leaf, vendor) = cpuid_ebx(0, 0);
        let features = match max_leaf {
            ..STRUCTURED_FEATURES => 0,
            _ => cpuid_ebx(STRUCTURED_FEATURES, 0).1,
        };
        let write_back = if features & CLWB != 0 {
            WriteBack::Clwb
        } else if features & CLFLUSHOPT != 0 {
            WriteBack::Clflushopt
        } else {
            WriteBack::Clflush
        };
        CpuModel {
            write_back,
            amd: vendor == AUTHENTIC_AMD,
        }
    }
}

/// Returns `eax` and `ebx` of a CPUID leaf.
fn cpuid_ebx(leaf: u32, subleaf: u32) -> (u32, u32) {
    let (eax, ebx): (u32, u64);
    // SAFETY: every x86-64 processor has cpuid. The compiler reserves rbx, so the block
    // restores it before it ends.
    unsafe {
        asm!(
            "mov {kept}, rbx",
            "cpuid",
            "xchg {kept}, rbx",
            kept = out(reg) ebx,
            inout("eax") leaf => eax,
            inout("ecx") subleaf => _,
            out("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    (eax, ebx as u32)
}

/// Starts writing back the line that holds `at` (PM-CPU-1).
///
/// The byte load right before the instruction is for the power-failure emulator, which sees
/// operands of loads but not of write-backs. It costs one cache hit, because the line was just stored to.
///
/// # Safety
/// `at` lies in a live mapping.
#[inline]
pub(crate) unsafe fn flush_line(how: WriteBack, at: *const u8) {
    macro_rules! write_back {
        ($instruction:literal) => {
            // SAFETY: the caller guarantees that `at` is mapped, so the load is valid. A write-back changes no
            // contents. The block clobbers memory, so the compiler keeps earlier stores before it.
            unsafe {
                asm!(
                    "mov {byte}, byte ptr [{at}]",
                    $instruction,
                    at = in(reg) at,
                    byte = out(reg_byte) _,
                    options(nostack, preserves_flags),
                )
            }
        };
    }
    match how {
        WriteBack::Clwb => write_back!("clwb [{at}]"),
        WriteBack::Clflushopt => write_back!("clflushopt [{at}]"),
        WriteBack::Clflush => write_back!("clflush [{at}]"),
        WriteBack::NotNeeded => {}
    }
}

/// Starts writing back every line that overlaps the `len` bytes at `at`.
///
/// # Safety
/// The range lies in a live mapping.
pub(crate) unsafe fn flush_range(how: WriteBack, at: *const u8, len: usize) {
    if how == WriteBack::NotNeeded || len == 0 {
        return;
    }
    let within = at as usize % LINE;
    for line in 0..(within + len).div_ceil(LINE) {
        // SAFETY: the address is the first byte of a line that overlaps the caller's range, and
        // mappings consist of whole lines.
        unsafe { flush_line(how, at.sub(within).add(line * LINE)) };
    }
}

/// Completes this thread's write-backs and non-temporal stores (PM-CPU-1, PM-CPU-2).
#[inline]
pub(crate) fn fence() {
    // SAFETY: every x86-64 processor has sfence. The block clobbers memory, so the compiler moves no access
    // across it.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Copies `lines` times 64 bytes from `from` to `to`, at any alignment, two to four times as fast as by words. Words
/// that another thread writes at the same time may be torn.
///
/// In assembly, because a racing load wider than a word is undefined in Rust. On the processor it is
/// well defined.
///
/// # Safety
/// `lines * 64` bytes at `from` are mapped. `to` has room for them, and no medium maps it. `lines > 0`.
unsafe fn load_lines(from: *const u8, to: *mut u8, lines: usize) {
    debug_assert!(lines > 0);
    // SAFETY: reads and writes only the bytes that the caller guarantees, and declares every register it changes.
    unsafe {
        asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies up to 64 bytes from `from` to `to`, at any alignment, in a few loads that may overlap. Words that another
/// thread writes at the same time may be torn. In assembly for the same reason as [`load_lines`].
///
/// # Safety
/// `len` bytes at `from` are mapped. `to` has room for them, and no medium maps it. `len <= 64`.
#[inline]
unsafe fn load_some(from: *const u8, to: *mut u8, len: usize) {
    /// Copies the first `$bytes` and the last `$bytes` bytes by one load each.
    macro_rules! both_ends {
        ($bytes:literal, $class:ident, $load:literal, $store:literal) => {
            // SAFETY: `len >= $bytes`, so both runs of `$bytes` bytes lie in the caller's range.
            unsafe {
                let last = len - $bytes;
                asm!(
                    concat!($load, " {a}, [{from}]"),
                    concat!($load, " {b}, [{from} + {last}]"),
                    concat!($store, " [{to}], {a}"),
                    concat!($store, " [{to} + {last}], {b}"),
                    from = in(reg) from,
                    to = in(reg) to,
                    last = in(reg) last,
                    a = out($class) _,
                    b = out($class) _,
                    options(nostack, preserves_flags),
                )
            }
        };
    }
    debug_assert!(len <= LINE);
    match len {
        32.. => {
            // SAFETY: all four runs of 16 bytes lie in the caller's range, which has 32 to 64 bytes. Together they
            // cover it.
            unsafe {
                let last = len - 16;
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + {last} - 16]",
                    "movups {d}, [{from} + {last}]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + {last} - 16], {c}",
                    "movups [{to} + {last}], {d}",
                    from = in(reg) from,
                    to = in(reg) to,
                    last = in(reg) last,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
        16.. => both_ends!(16, xmm_reg, "movups", "movups"),
        8.. => both_ends!(8, xmm_reg, "movq", "movq"),
        4.. => both_ends!(4, xmm_reg, "movd", "movd"),
        0 => {}
        _ => {
            for i in 0..len {
                // SAFETY: byte `i < len` of the caller's source and destination.
                unsafe {
                    asm!(
                        "mov {byte}, byte ptr [{from}]",
                        "mov byte ptr [{to}], {byte}",
                        from = in(reg) from.add(i),
                        to = in(reg) to.add(i),
                        byte = out(reg_byte) _,
                        options(nostack, preserves_flags),
                    );
                }
            }
        }
    }
}

/// Copies `len` bytes from `from` to `to`: 64 at a time, then the last 64, which may overlap the bytes before them.
/// Words that another thread writes at the same time may be torn.
///
/// # Safety
/// `len` bytes at `from` are readable. `to` has room for them, and the two ranges do not overlap.
#[inline]
pub(crate) unsafe fn load(from: *const u8, to: *mut u8, len: usize) {
    if len < LINE {
        // SAFETY: guaranteed by the caller.
        return unsafe { load_some(from, to, len) };
    }
    // SAFETY: guaranteed by the caller, for the first `len / LINE` lines.
    unsafe { load_lines(from, to, len / LINE) };
    if !len.is_multiple_of(LINE) {
        let last = len - LINE;
        // SAFETY: the last 64 bytes of the caller's range, and `len >= 64`.
        unsafe { load_lines(from.add(last), to.add(last), 1) };
    }
}

/// Iterates over a list of byte slices in contiguous runs of given lengths.
struct ByteRuns<'a> {
    part: &'a [u8],
    rest: std::slice::Iter<'a, &'a [u8]>,
}

impl<'a> ByteRuns<'a> {
    fn new(parts: &'a [&'a [u8]]) -> ByteRuns<'a> {
        ByteRuns {
            part: &[],
            rest: parts.iter(),
        }
    }

    /// Returns the next `len` bytes: in place if one part holds all of them, otherwise gathered in `line`.
    #[inline]
    fn take<'b>(&mut self, len: usize, line: &'b mut [u8; LINE]) -> &'b [u8]
    where
        'a: 'b,
    {
        while self.part.is_empty() {
            self.part = self
                .rest
                .next()
                .expect("the parts hold as many bytes as were counted");
        }
        if let Some((run, part)) = self.part.split_at_checked(len) {
            self.part = part;
            return run;
        }
        let mut filled = 0;
        while filled < len {
            let run = self.part.len().min(len - filled);
            line[filled..filled + run].copy_from_slice(&self.part[..run]);
            self.part = &self.part[run..];
            filled += run;
            if filled < len {
                self.part = self
                    .rest
                    .next()
                    .expect("the parts hold as many bytes as were counted");
            }
        }
        &line[..len]
    }
}

/// Writes `parts` one after another to `to`, `len` bytes in total (PM-CPU-1, PM-CPU-3). If `around` is set, whole lines are written
/// by non-temporal stores. All other lines are written through the cache and written back.
///
/// # Safety
/// `to` is 8-aligned, and the `len` bytes there lie in a live, writable mapping in whole words.
/// Concurrent access is only by atomic words, by [`load`] or by this function: each word is then
/// old or new, and a concurrent write of a word may be lost. No reference to the bytes exists.
pub(crate) unsafe fn store_parts(
    how: WriteBack,
    around: bool,
    parts: &[&[u8]],
    to: *mut u8,
    len: usize,
) {
    debug_assert!(to.cast::<u64>().is_aligned());
    let mut gather = ByteRuns::new(parts);
    let mut scratch = [0; LINE];
    let mut done = 0;
    while done < len {
        // SAFETY: `done < len`, so the address lies in the caller's range.
        let at = unsafe { to.add(done) };
        let run = (LINE - at as usize % LINE).min(len - done);
        let bytes = gather.take(run, &mut scratch);
        match <&[u8; LINE]>::try_from(bytes) {
            // SAFETY: `bytes` is a whole line of the caller's range, so `at` is the start of a line, hence 16-aligned.
            Ok(line) if around => unsafe { stream(line, at) },
            _ => {
                // SAFETY: the run lies in one line of the caller's range.
                unsafe { store(bytes, at) };
                // SAFETY: `at` lies in the caller's mapping.
                unsafe { flush_line(how, at) };
            }
        }
        done += run;
    }
}

/// Stores `bytes` at `at` through the cache, without a write-back. They lie within one line.
///
/// # Safety
/// As for [`store_parts`].
#[inline]
unsafe fn store(bytes: &[u8], at: *mut u8) {
    let (words, tail) = bytes.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: word `i` lies in the caller's range and is aligned.
        let target = unsafe { AtomicU64::from_ptr(at.add(i * WORD).cast()) };
        target.store(u64::from_le_bytes(*word), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        // SAFETY: the last, partial word of the caller's range. The whole word is mapped.
        let target = unsafe { AtomicU64::from_ptr(at.add(words.len() * WORD).cast()) };
        let mut word = target.load(Ordering::Relaxed).to_le_bytes();
        word[..tail.len()].copy_from_slice(tail); // PM-CPU-3
        target.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
}

/// Stores `bytes` at `at` by non-temporal stores of 16 bytes each (PM-CPU-1, PM-CPU-2, PM-CPU-4). `BYTES` is a multiple of 16.
///
/// Uses inline assembly, not the intrinsic. To the compiler the intrinsic is an ordinary store, which must not race
/// in Rust, and whose bytes must not be read before the fence, not even by the same
/// thread. The assembly block tells the compiler only that memory changes, so it neither moves an access across the
/// block nor assumes its result.
///
/// # Safety
/// As for [`store_parts`]; `at` is 16-aligned.
#[inline]
pub(crate) unsafe fn stream<const BYTES: usize>(bytes: &[u8; BYTES], at: *mut u8) {
    const { assert!(BYTES.is_multiple_of(size_of::<__m128i>())) };
    debug_assert!(at.cast::<__m128i>().is_aligned());
    for i in 0..BYTES / size_of::<__m128i>() {
        // SAFETY: 16 bytes of `bytes`; the load needs no alignment.
        let some = unsafe { _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>().add(i)) };
        // SAFETY: 16 bytes of the caller's range, 16-aligned because `at` is. The block clobbers memory.
        unsafe {
            asm!(
                "movntdq [{to}], {some}",
                to = in(reg) at.cast::<__m128i>().add(i),
                some = in(xmm_reg) some,
                options(nostack, preserves_flags),
            );
        }
    }
}
