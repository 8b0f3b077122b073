//! Memory that is mapped and written by stores: DAX (persistent memory) and DRAM.

use std::io;
use std::sync::atomic::Ordering;

use super::cpu::{self, Path, WriteBack};
use super::window::{PAGE, Source, Window};
use crate::lane::Lane;
use crate::medium::{Caps, Drain, Kind, LINE, Medium, Off, Poisoned, Ticket, WORD};
use crate::sync::{Arc, Mutex};

/// Mapped memory.
pub struct Mapped {
    window: Window,
    growing: Mutex<()>,
    caps: Caps,
    write_back: WriteBack,
    non_temporal_from: usize,
}

impl Mapped {
    /// Zeroed memory of this process, rounded up to whole pages: for tests and measurements.
    pub fn anonymous(bytes: u64) -> io::Result<Mapped> {
        let bytes = bytes.next_multiple_of(PAGE);
        let window = Window::reserve(bytes, (16 * bytes).max(64 << 30))?;
        window.extend(Source::Anonymous, bytes)?;
        window.advise_huge();
        Ok(Mapped {
            window,
            growing: Mutex::new(()),
            caps: Caps {
                kind: Kind::Dram,
                tear_bytes: WORD,
                drain: Drain::Fence,
                stores_are_durable: false,
                survives: "nothing: the memory ends with the process".into(),
            },
            write_back: WriteBack::detect(),
            non_temporal_from: 0,
        })
    }
}

/// Lines that `len` bytes at `at` touch.
fn lines(at: Off, len: usize) -> u64 {
    let line = LINE as u64;
    if len == 0 {
        0
    } else {
        (at.0 + len as u64 - 1) / line - at.0 / line + 1
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
        self.window.extend(Source::Anonymous, len.max(self.len()))?;
        self.window.advise_huge();
        Ok(())
    }

    #[inline]
    fn load(&self, at: Off) -> u64 {
        self.window.load(at)
    }

    #[inline]
    fn store(&self, lane: &mut Lane, at: Off, value: u64) {
        lane.counters.bytes += WORD as u64;
        self.window.word(at).store(value, Ordering::Release);
    }

    #[inline]
    fn cas(&self, lane: &mut Lane, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        let word = self.window.word(at);
        let before = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)?;
        lane.counters.bytes += WORD as u64;
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

    fn copy_in(&self, lane: &mut Lane, at: Off, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len == 0 {
            return;
        }
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "bytes are copied in at whole words: {at:?}"
        );
        let to = self.window.address(at, len);
        let path = if self.write_back != WriteBack::NotNeeded && len >= self.non_temporal_from {
            Path::NonTemporal
        } else {
            Path::Cached(self.write_back)
        };
        // SAFETY: checked to be mapped, in whole words by W2, and aligned; nobody else writes the
        // bytes, because they are this lane's and unpublished.
        unsafe { cpu::store_parts(path, parts, to, len) };
        lane.counters.bytes += len as u64;
        lane.counters.lines += lines(at, len);
        lane.undrained = true;
    }

    fn flush(&self, lane: &mut Lane, at: Off, len: usize) {
        let from = self.window.address(at, len);
        // SAFETY: checked to be mapped.
        unsafe { cpu::flush_range(self.write_back, from, len) };
        lane.counters.lines += lines(at, len);
        lane.undrained |= len > 0;
    }

    #[inline]
    fn drain(&self, lane: &mut Lane) -> Ticket {
        if lane.undrained {
            cpu::fence();
            lane.undrained = false;
            lane.counters.fences += 1;
        }
        Ticket::DURABLE
    }

    #[inline]
    fn poll(&self, _: Ticket) -> Result<bool, Poisoned> {
        Ok(true)
    }

    #[inline]
    fn wait(&self, _: Ticket) -> Result<(), Poisoned> {
        Ok(())
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
