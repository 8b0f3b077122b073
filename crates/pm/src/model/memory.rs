//! The machine's memory system: cache, link between sockets, DIMMs, and the DRAM cache of Memory Mode.

use super::buffer::EvictedLine;
use super::cache::CpuCache;
use super::constants as c;
use super::count::{CountsByCategory, HotMap, WearMap};
use super::dimm::{Dimm, MediaWork, QueuedLine, ps};
use super::step::{Category, Step};
use crate::rng::Rng;

/// The configuration of a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineConfig {
    /// Number of interleaved DIMMs.
    pub dimms: u32,
    /// Media time to write one XPLine, in nanoseconds. It depends on the size of the DIMM.
    pub write_xpline_ns: f64,
    /// Bytes of the last-level cache.
    pub cache_bytes: u64,
    /// Memory Mode: the bytes of DRAM that are a direct-mapped cache of the DIMMs. No data is durable.
    pub memory_mode_bytes: Option<u64>,
    /// Whether CPU caches are durable. Flushes then have no effect.
    pub eadr: bool,
    /// Whether a flushed line stays in the cache. On the first generation it does not.
    pub flush_keeps: bool,
    /// Workers with this number or a higher one run on the other socket.
    pub remote_from: usize,
    /// Whether to record the writers of lines and the wear of XPLines, which takes some 13 bytes per line of the pool.
    pub places: bool,
    /// Seed of all random choices.
    pub seed: u64,
}

impl MachineConfig {
    /// Returns the machine of the published measurements: 256 GB DIMMs, two Xeon 8260.
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

    /// Returns the machine of the hash index study: 128 GB DIMMs, Xeon Gold 5218.
    #[must_use]
    pub fn small_dimms(dimms: u32) -> MachineConfig {
        MachineConfig {
            write_xpline_ns: c::WRITE_XPLINE_128GB.value,
            cache_bytes: 22 << 20,
            ..MachineConfig::study(dimms)
        }
    }

    /// Returns the description that is printed with every modelled figure.
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

/// The DRAM of Memory Mode: a direct-mapped cache of the DIMMs.
struct DramCache {
    tags: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;
const DIRTY: u32 = 1 << 31;

impl DramCache {
    /// Accesses `line`. Returns whether it was a hit, and the dirty line that was evicted.
    fn touch(&mut self, line: u32, dirty: bool) -> (bool, Option<u32>) {
        let at = line as usize % self.tags.len();
        let old = self.tags[at];
        let hit = old != EMPTY && old & !DIRTY == line;
        let was_dirty = old != EMPTY && old & DIRTY != 0;
        self.tags[at] = line | if dirty || hit && was_dirty { DIRTY } else { 0 };
        (hit, (!hit && was_dirty).then_some(old & !DIRTY))
    }
}

/// The link between sockets. It carries one line at a time, and is slower while loads and writes mix.
#[derive(Default)]
struct SocketLink {
    free: u64,
    /// The last 32 lines; a set bit is a write.
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

/// The state of a written line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AcceptedLine {
    /// It is in the persistence domain at this time.
    At(u64),
    /// It waits for the DIMM's write queue.
    Waits,
}

pub(super) struct MemorySystem {
    pub(super) config: MachineConfig,
    pub(super) dimms: Vec<Dimm>,
    cache: CpuCache,
    dram_cache: Option<DramCache>,
    link: SocketLink,
    rng: Rng,
    pub(super) counts: CountsByCategory,
    pub(super) wear: WearMap,
    pub(super) hot: HotMap,
    /// DIMMs whose write queue has become full.
    pub(super) newly_full: Vec<usize>,
}

/// No worker: a line that the DRAM cache of Memory Mode wrote back.
pub(super) const NO_WORKER: u32 = u32::MAX;

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
            dram_cache: near,
            link: SocketLink::default(),
            rng: Rng::new(config.seed).fork(0x6d65_6d6f_7279),
            counts: CountsByCategory::default(),
            wear: WearMap::default(),
            hot: HotMap::default(),
            newly_full: Vec::new(),
            config,
        }
    }

    pub(super) fn is_remote(&self, worker: u32) -> bool {
        worker != NO_WORKER && worker as usize >= self.config.remote_from
    }

    pub(super) fn dimm_of(&self, line: u32) -> usize {
        const LINES: u32 = (c::INTERLEAVE.value as u64 / c::LINE_BYTES) as u32;
        (line / LINES % self.config.dimms) as usize
    }

    /// Accesses a line in the cache. Returns whether it was a hit, and the dirty line that was evicted and written.
    /// That write counts for the category of the last store to the line and for the source line of this step.
    pub(super) fn access_cache(
        &mut self,
        step: Step,
        dirty: bool,
        worker: u32,
        now: u64,
    ) -> (bool, Option<(u32, AcceptedLine)>) {
        let touched = (self.cache).touch(step.argument, dirty.then_some(step.category));
        let left = touched.written_back.map(|(line, category)| {
            let accepted = ps(c::FLUSH_ACCEPTED.value);
            let evicted = Step {
                argument: line,
                category,
                ..step
            };
            (line, self.write(evicted, worker, now, accepted))
        });
        (touched.hit, left)
    }

    /// Flushes a line from the cache. Returns whether it was dirty.
    pub(super) fn clean(&mut self, line: u32) -> bool {
        let keep = self.config.flush_keeps;
        self.cache.clean(line, keep)
    }

    /// Fetches a line that the cache does not have. Returns the time of its arrival.
    pub(super) fn fetch(&mut self, step: Step, fill: bool, worker: u32, now: u64) -> u64 {
        let mut now = now;
        let mut extra = 0;
        if self.is_remote(worker) {
            now = self.link.cross(false, now);
            extra = ps(c::LOAD_RANDOM.value * (c::REMOTE_LOAD.value - 1.0));
        }
        if let Some(near) = &mut self.dram_cache {
            let (hit, victim) = near.touch(step.argument, false);
            if let Some(line) = victim {
                self.write_through(
                    Step {
                        argument: line,
                        ..step
                    },
                    NO_WORKER,
                    now,
                    0,
                );
            }
            if hit {
                return now + extra + ps(c::LOAD_DRAM.value);
            }
        }
        let dimm = self.dimm_of(step.argument);
        let (done, MediaWork { media_read, .. }) = self.dimms[dimm].read(step.argument, fill, now);
        self.counts[step.category].media_reads += u64::from(media_read);
        self.collect(dimm);
        done + extra
    }

    /// Writes a line. If the DIMM's queue has room, it is in the persistence domain `accepted` after `now`.
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
        if let Some(near) = &mut self.dram_cache {
            let (_, victim) = near.touch(step.argument, true);
            if let Some(line) = victim {
                self.write_through(
                    Step {
                        argument: line,
                        ..step
                    },
                    NO_WORKER,
                    now,
                    0,
                );
            }
            return AcceptedLine::At(now + accepted);
        }
        self.write_through(step, worker, now, accepted)
    }

    fn write_through(&mut self, step: Step, worker: u32, now: u64, accepted: u64) -> AcceptedLine {
        self.counts[step.category].lines_written += 1;
        let owner = step.owner();
        if self.config.places {
            self.hot.one_more(step.argument, owner);
        }
        let at = self.dimm_of(step.argument);
        let dimm = &mut self.dimms[at];
        if !dimm.has_room(now) || dimm.waiting() > 0 {
            if dimm.waiting() == 0 {
                self.newly_full.push(at);
            }
            dimm.wait(QueuedLine {
                line: step.argument,
                owner,
                worker,
            });
            return AcceptedLine::Waits;
        }
        self.admit(at, step.argument, owner, now);
        AcceptedLine::At(now + accepted)
    }

    /// Admits a waiting line to the write queue, if there is room now, and returns it.
    pub(super) fn admit_waiting(&mut self, dimm: usize, now: u64) -> Option<QueuedLine> {
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

    /// Counts the XPLines that were written to the media, for the categories of their writes.
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

    /// Admits all waiting lines, and writes the contents of the XPBuffers to the media: the end of a run.
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
