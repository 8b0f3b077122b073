//! The machine's memory: cache, link between sockets, DIMMs, and what Memory Mode puts before them.

use super::buffer::EvictedLine;
use super::cache::CpuCache;
use super::constants as c;
use super::count::{CountsByCategory, HotMap, WearMap};
use super::dimm::{Dimm, MediaWork, QueuedLine, ps};
use super::step::{Category, Step};
use crate::sim::Rng;

/// What a machine has.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineConfig {
    /// DIMMs, interleaved.
    pub dimms: u32,
    /// Nanoseconds a DIMM takes to write an XPLine: by its size.
    pub write_xpline_ns: f64,
    /// Bytes of the last-level cache.
    pub cache_bytes: u64,
    /// Memory Mode: so many bytes of DRAM are a direct-mapped cache before the DIMMs, and nothing is
    /// durable.
    pub memory_mode_bytes: Option<u64>,
    /// Whether caches are durable: flushes are left out.
    pub eadr: bool,
    /// Whether a flushed line stays in the cache. On the first generation it does not.
    pub flush_keeps: bool,
    /// Workers from this one on run on the other socket.
    pub remote_from: usize,
    /// Whether lines' writers and XPLines' wear are kept: some 13 bytes a line of the pool.
    pub places: bool,
    /// Decides what chance decides.
    pub seed: u64,
}

impl MachineConfig {
    /// The machine the published measurements are from: 256 GB DIMMs, two Xeon 8260.
    #[must_use]
    pub fn study(dimms: u32) -> MachineConfig {
        MachineConfig {
            dimms,
            write_xpline_ns: c::WRITE_XPLINE_256GB.value,
            cache_bytes: 36 << 20,
            memory_mode_bytes: None,
            eadr: false,
            flush_keeps: false,
            remote_from: usize::MAX,
            places: true,
            seed: 0,
        }
    }

    /// The hash index study's machine: 128 GB DIMMs, Xeon Gold 5218.
    #[must_use]
    pub fn small_dimms(dimms: u32) -> MachineConfig {
        MachineConfig {
            write_xpline_ns: c::WRITE_XPLINE_128GB.value,
            cache_bytes: 22 << 20,
            ..MachineConfig::study(dimms)
        }
    }

    /// What is printed beside every modelled figure.
    #[must_use]
    pub fn label(&self) -> String {
        let mode = match self.memory_mode_bytes {
            Some(bytes) => format!(", memory mode with {} MiB of DRAM", bytes >> 20),
            None if self.eadr => ", eADR".into(),
            None => String::new(),
        };
        format!(
            "model v{}, {} DIMMs, R={} W={} ns, C={}, seed {:#x}{mode}",
            c::VERSION,
            self.dimms,
            c::READ_XPLINE.value,
            self.write_xpline_ns,
            c::XPBUFFER.value,
            self.seed
        )
    }
}

/// DRAM before the DIMMs, in Memory Mode: one line of DRAM for many of the DIMMs'.
struct DramCache {
    tags: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;
const DIRTY: u32 = 1 << 31;

impl DramCache {
    /// Uses `line`: whether it was there, and the dirty one it replaced.
    fn touch(&mut self, line: u32, dirty: bool) -> (bool, Option<u32>) {
        let at = line as usize % self.tags.len();
        let old = self.tags[at];
        let hit = old != EMPTY && old & !DIRTY == line;
        let was_dirty = old != EMPTY && old & DIRTY != 0;
        self.tags[at] = line | if dirty || hit && was_dirty { DIRTY } else { 0 };
        (hit, (!hit && was_dirty).then_some(old & !DIRTY))
    }
}

/// The link between sockets: one line after another, slower while loads and writes alternate.
#[derive(Default)]
struct SocketLink {
    free: u64,
    /// The last 32 lines; 1 was written.
    recent: u32,
}

impl SocketLink {
    fn cross(&mut self, write: bool, now: u64) -> u64 {
        const FEW: u32 = 4;
        self.recent = self.recent << 1 | u32::from(write);
        let writes = self.recent.count_ones();
        let ns = match writes {
            few if few < FEW => c::LINK_LOAD,
            many if many > u32::BITS - FEW => c::LINK_WRITE,
            _ => c::LINK_MIXED,
        };
        self.free = self.free.max(now) + ps(ns.value);
        self.free
    }
}

/// Where a written line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AcceptedLine {
    /// In the persistence domain at this time.
    At(u64),
    /// Waiting for the DIMM.
    Waits,
}

pub(super) struct MemorySystem {
    pub(super) config: MachineConfig,
    pub(super) dimms: Vec<Dimm>,
    cache: CpuCache,
    near: Option<DramCache>,
    link: SocketLink,
    rng: Rng,
    pub(super) counts: CountsByCategory,
    pub(super) wear: WearMap,
    pub(super) hot: HotMap,
    /// DIMMs for whose queue the first line waits now.
    pub(super) crowded: Vec<usize>,
}

/// No worker: a line that DRAM wrote back in Memory Mode.
pub(super) const NOBODY: u32 = u32::MAX;

impl MemorySystem {
    pub(super) fn new(config: MachineConfig) -> MemorySystem {
        let near = config.memory_mode_bytes.map(|bytes| DramCache {
            tags: vec![EMPTY; (bytes / c::LINE_BYTES).max(1) as usize],
        });
        MemorySystem {
            dimms: (0..config.dimms)
                .map(|_| Dimm::new(config.write_xpline_ns))
                .collect(),
            cache: CpuCache::new(config.cache_bytes),
            near,
            link: SocketLink::default(),
            rng: Rng::new(config.seed).fork(0x6d65_6d6f_7279),
            counts: CountsByCategory::default(),
            wear: WearMap::default(),
            hot: HotMap::default(),
            crowded: Vec::new(),
            config,
        }
    }

    pub(super) fn is_remote(&self, worker: u32) -> bool {
        worker != NOBODY && worker as usize >= self.config.remote_from
    }

    pub(super) fn dimm_of(&self, line: u32) -> usize {
        const LINES: u32 = (c::INTERLEAVE.value as u64 / c::LINE_BYTES) as u32;
        (line / LINES % self.config.dimms) as usize
    }

    /// Whether the cache has the line, which it has from now on; and the dirty line that left for that,
    /// with where it is now. It counts for what it was last stored to for, and for the place of this step.
    pub(super) fn cached(
        &mut self,
        step: Step,
        dirty: bool,
        worker: u32,
        now: u64,
    ) -> (bool, Option<(u32, AcceptedLine)>) {
        let touched = (self.cache).touch(step.what, dirty.then_some(step.category));
        let left = touched.written_back.map(|(line, category)| {
            let accepted = ps(c::FLUSH_ACCEPTED.value);
            let evicted = Step {
                what: line,
                category,
                ..step
            };
            (line, self.write(evicted, worker, now, accepted))
        });
        (touched.hit, left)
    }

    /// Whether a flushed line was dirty.
    pub(super) fn clean(&mut self, line: u32) -> bool {
        let keep = self.config.flush_keeps;
        self.cache.clean(line, keep)
    }

    /// Fetches a line the cache does not have: when it has arrived.
    pub(super) fn fetch(&mut self, step: Step, fill: bool, worker: u32, now: u64) -> u64 {
        let mut now = now;
        let mut extra = 0;
        if self.is_remote(worker) {
            now = self.link.cross(false, now);
            extra = ps(c::LOAD_RANDOM.value * (c::REMOTE_LOAD.value - 1.0));
        }
        if let Some(near) = &mut self.near {
            let (hit, victim) = near.touch(step.what, false);
            if let Some(line) = victim {
                self.write_through(Step { what: line, ..step }, NOBODY, now, 0);
            }
            if hit {
                return now + extra + ps(c::LOAD_DRAM.value);
            }
        }
        let dimm = self.dimm_of(step.what);
        let (done, MediaWork { media_read, .. }) = self.dimms[dimm].read(step.what, fill, now);
        self.counts[step.category].media_reads += u64::from(media_read);
        self.collect(dimm);
        done + extra
    }

    /// Writes a line: `accepted_ns` after its issue it is in the persistence domain, if there is room.
    pub(super) fn write(
        &mut self,
        step: Step,
        worker: u32,
        now: u64,
        accepted: u64,
    ) -> AcceptedLine {
        let mut now = now;
        let mut accepted = accepted;
        if self.is_remote(worker) {
            now = self.link.cross(true, now);
            accepted = (accepted as f64 * c::REMOTE_WRITE.value) as u64;
        }
        if let Some(near) = &mut self.near {
            let (_, victim) = near.touch(step.what, true);
            if let Some(line) = victim {
                self.write_through(Step { what: line, ..step }, NOBODY, now, 0);
            }
            return AcceptedLine::At(now + accepted);
        }
        self.write_through(step, worker, now, accepted)
    }

    fn write_through(&mut self, step: Step, worker: u32, now: u64, accepted: u64) -> AcceptedLine {
        self.counts[step.category].lines_written += 1;
        let owner = step.owner();
        if self.config.places {
            self.hot.one_more(step.what, owner);
        }
        let at = self.dimm_of(step.what);
        let dimm = &mut self.dimms[at];
        if !dimm.has_room(now) || dimm.waiting() > 0 {
            if dimm.waiting() == 0 {
                self.crowded.push(at);
            }
            dimm.wait(QueuedLine {
                line: step.what,
                owner,
                worker,
            });
            return AcceptedLine::Waits;
        }
        self.admit(at, step.what, owner, now);
        AcceptedLine::At(now + accepted)
    }

    /// Lets a waiting line into the queue, if it has room now: which.
    pub(super) fn let_in(&mut self, dimm: usize, now: u64) -> Option<QueuedLine> {
        if !self.dimms[dimm].has_room(now) {
            return None;
        }
        let line = self.dimms[dimm].next_waiting(&mut self.rng)?;
        self.admit(dimm, line.line, line.owner, now);
        Some(line)
    }

    fn admit(&mut self, dimm: usize, line: u32, owner: u32, now: u64) {
        let work = self.dimms[dimm].admit(line, owner, now, &mut self.rng);
        self.counts[category(owner)].combined += u64::from(work.combined);
        self.collect(dimm);
    }

    /// Counts what went to the media, for those who wrote it.
    fn collect(&mut self, dimm: usize) {
        while let Some(xpline) = self.dimms[dimm].written.pop() {
            self.count_written(xpline);
        }
    }

    fn count_written(&mut self, written: EvictedLine) {
        let counts = &mut self.counts[category(written.owner)];
        counts.media_writes += 1;
        counts.partial += u64::from(written.is_partial());
        counts.media_reads_to_write += u64::from(written.is_partial() && !written.known);
        if self.config.places {
            self.wear.one_more(written.xpline);
        }
    }

    /// Lets everything that waits in, and writes what the XPBuffers hold: the end of a count.
    pub(super) fn drain(&mut self, now: u64) {
        for dimm in 0..self.dimms.len() {
            while let Some(line) = self.dimms[dimm].next_waiting(&mut self.rng) {
                self.admit(dimm, line.line, line.owner, now);
            }
            self.dimms[dimm].drain(now);
            self.collect(dimm);
        }
    }
}

fn category(owner: u32) -> Category {
    Category::ALL[(owner & 0xff) as usize]
}
