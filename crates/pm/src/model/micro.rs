//! The device microbenchmarks, on the model.

use super::machine::{Machine, MachineOutcome};
use super::memory::MachineConfig;
use super::step::{Step, StepKind};
use crate::sim::Rng;

/// How memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Independent loads.
    Load,
    /// Stores around the cache.
    Around,
    /// Stores, each line flushed.
    Flush,
    /// Stores that are left to the cache.
    Store,
}

/// Where the accesses go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessOrder {
    /// Each thread's own addresses, one after another.
    Sequential,
    /// Anywhere.
    Random,
}

/// One microbenchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Microbench {
    /// What is done.
    pub access: AccessKind,
    /// Where.
    pub order: AccessOrder,
    /// Bytes of one access, aligned to their size up to 256.
    pub bytes: u32,
    /// DIMMs, interleaved.
    pub dimms: u32,
    /// Threads.
    pub threads: u32,
}

/// Bytes all threads' accesses go to: many times the cache of [`Micro::config`].
const REGION_BYTES: u64 = 96 << 20;

impl Microbench {
    /// The machine it runs on: as published, but for a smaller cache and memory, so that a short run is
    /// as good as a long one.
    #[must_use]
    pub fn config(&self, seed: u64) -> MachineConfig {
        MachineConfig {
            cache_bytes: 1 << 20,
            places: false,
            seed,
            ..MachineConfig::study(self.dimms)
        }
    }

    /// Bytes that are accessed at once: what is sequential need not come in large pieces.
    fn chunk(&self) -> u64 {
        u64::from(self.bytes).min(4096)
    }

    /// Runs it over about `lines` lines: bytes a nanosecond, which is GB/s, and what was counted.
    #[must_use]
    pub fn run(&self, lines: u64, seed: u64) -> (f64, MachineOutcome) {
        let mut machine = Machine::new(self.config(seed));
        let per_access = self.chunk() / 64;
        let accesses = (lines / per_access / u64::from(self.threads)).max(1);
        let mut streams: Vec<AccessStream> = (0..self.threads)
            .map(|thread| AccessStream::new(*self, thread, accesses, seed))
            .collect();
        machine.run(self.threads as usize, |worker, steps| {
            streams[worker].next(steps)
        });
        let outcome = machine.outcome();
        let bytes = accesses * u64::from(self.threads) * self.chunk();
        (bytes as f64 * 1000.0 / outcome.elapsed_ps as f64, outcome)
    }
}

/// What one thread does.
struct AccessStream {
    micro: Microbench,
    rng: Rng,
    left: u64,
    at: u64,
}

impl AccessStream {
    fn new(micro: Microbench, thread: u32, left: u64, seed: u64) -> AccessStream {
        let mut rng = Rng::new(seed).fork(u64::from(thread) + 1);
        let own = REGION_BYTES / u64::from(micro.threads);
        let begin = (own * u64::from(thread) + rng.below(own)) / 4096 * 4096;
        AccessStream {
            micro,
            rng,
            left,
            at: begin,
        }
    }

    fn next(&mut self, steps: &mut Vec<Step>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let bytes = self.micro.chunk();
        let at = match self.micro.order {
            AccessOrder::Sequential => {
                self.at = (self.at + bytes) % REGION_BYTES;
                self.at
            }
            AccessOrder::Random => self.rng.below(REGION_BYTES / bytes) * bytes,
        };
        for line in (at / 64) as u32..((at + bytes) / 64) as u32 {
            match self.micro.access {
                AccessKind::Load => steps.push(Step::new(StepKind::Fetch, line)),
                AccessKind::Around => steps.push(Step::new(StepKind::Around, line)),
                AccessKind::Store => steps.push(Step::new(StepKind::Store, line)),
                AccessKind::Flush => steps.extend([
                    Step::new(StepKind::Store, line),
                    Step::new(StepKind::Flush, line),
                ]),
            }
        }
        true
    }
}

/// What a worker of a mixed run does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MixedWorker {
    /// Of so many accesses...
    pub of: u32,
    /// ... this many are loads; the others are stores around the cache.
    pub loads: u32,
}

/// Runs workers that mix loads and writes of `bytes` on `config`'s machine: GB/s.
#[must_use]
pub fn run_mixed(
    config: MachineConfig,
    mixes: &[MixedWorker],
    order: AccessOrder,
    bytes: u32,
    lines: u64,
) -> f64 {
    let seed = config.seed;
    let micro = |access| Microbench {
        access,
        order,
        bytes,
        dimms: config.dimms,
        threads: mixes.len() as u32,
    };
    let accesses = (lines * 64 / u64::from(bytes) / mixes.len() as u64).max(1);
    let mut streams: Vec<(AccessStream, u32)> = (0..mixes.len() as u32)
        .map(|thread| {
            (
                AccessStream::new(micro(AccessKind::Load), thread, u64::MAX, seed),
                0,
            )
        })
        .collect();
    // A fixed virtual time, not a fixed share each: the fast ones go on while the slow ones do.
    let mut left = accesses * mixes.len() as u64;
    let mut machine = Machine::new(config);
    machine.run(mixes.len(), |worker, steps| {
        let (stream, turn) = &mut streams[worker];
        let MixedWorker { of, loads } = mixes[worker];
        stream.micro.access = if *turn % of < loads {
            AccessKind::Load
        } else {
            AccessKind::Around
        };
        *turn += 1;
        left = left.saturating_sub(1);
        left > 0 && stream.next(steps)
    });
    let elapsed_ps = machine.outcome().elapsed_ps;
    (accesses * mixes.len() as u64 * u64::from(bytes)) as f64 * 1000.0 / elapsed_ps as f64
}

/// Nanoseconds of the last of `steps`, one worker alone, nothing cached before them.
#[must_use]
pub fn latency_ns(seed: u64, before: &[Step], steps: &[Step]) -> f64 {
    let mut machine = Machine::new(MachineConfig {
        seed,
        ..MachineConfig::study(6)
    });
    let alone = |machine: &mut Machine, steps: &[Step]| {
        let mut left = Some(steps);
        machine.run(1, |_, to| {
            left.take().is_some_and(|steps| {
                to.extend_from_slice(steps);
                true
            })
        });
    };
    alone(&mut machine, before);
    machine.restart();
    alone(&mut machine, steps);
    machine.outcome().elapsed_ps as f64 / 1000.0
}

/// Inserts of `profile`'s index, a second, by `workers` workers, from the other socket or not.
#[must_use]
pub fn inserts(
    profile: &super::published::InsertProfile,
    workers: usize,
    remote: bool,
    seed: u64,
) -> f64 {
    const INSERTS: u64 = 40_000;
    let config = MachineConfig {
        places: false,
        remote_from: if remote { 0 } else { usize::MAX },
        cache_bytes: 1 << 20,
        seed,
        ..MachineConfig::small_dimms(6)
    };
    let mut machine = Machine::new(config);
    let mut rng = Rng::new(seed).fork(7);
    let mut left = INSERTS;
    machine.run(workers, |_, steps| {
        let mut number =
            |mean: f64| mean as u64 + u64::from((rng.below(1000) as f64) < mean.fract() * 1000.0);
        let (reads, lines) = (number(profile.reads), number(profile.lines));
        let mut anywhere = || rng.below(REGION_BYTES / 64 - 8) as u32;
        let found: Vec<u32> = (0..reads.max(1)).map(|_| anywhere()).collect();
        steps.extend(found.iter().map(|line| Step::new(StepKind::Load, *line)));
        steps.push(Step::new(StepKind::Compute, profile.compute_ns));
        // A bucket, and the lines after it: they are neighbours, of which the first one was probed.
        steps.extend([
            Step::new(StepKind::Store, found[0]),
            Step::new(StepKind::Flush, found[0]),
        ]);
        steps.extend((1..lines as u32).map(|n| Step::new(StepKind::Around, found[0] + n)));
        steps.push(Step::new(StepKind::Fence, 0));
        left = left.saturating_sub(1);
        left > 0
    });
    machine.outcome().throughput()
}

/// Media writes for each XPLine of a region whose first halves are written, then its second halves,
/// over and over.
#[must_use]
pub fn write_amplification_of_region(bytes: u64, seed: u64) -> f64 {
    const HALF_LINES: u64 = 2;
    let xplines = bytes / 256;
    let rounds = (20_000 / xplines).max(4);
    let config = MachineConfig {
        places: false,
        seed,
        ..MachineConfig::study(1)
    };
    let mut machine = Machine::new(config);
    let mut half = 0;
    machine.run(1, |_, steps| {
        let first = half % 2 * HALF_LINES;
        for xpline in 0..xplines {
            for line in first..first + HALF_LINES {
                steps.push(Step::new(StepKind::Around, (xpline * 4 + line) as u32));
            }
            steps.push(Step::new(StepKind::Fence, 0));
        }
        half += 1;
        half <= rounds * 2
    });
    let writes = machine.outcome().total().media_writes;
    writes as f64 / (rounds * xplines) as f64 * super::constants::MEDIA_OVERHEAD.value
}
