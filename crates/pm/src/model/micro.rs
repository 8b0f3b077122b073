//! The published device microbenchmarks, run on the model.

use super::machine::{Machine, MachineOutcome};
use super::memory::MachineConfig;
use super::step::{Step, StepKind};
use crate::rng::Rng;

/// The kind of access of a microbenchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Independent loads.
    Load,
    /// Stores around the cache.
    Around,
    /// Stores, each line flushed.
    Flush,
    /// Stores without flushes.
    Store,
}

/// The order of the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessOrder {
    /// Consecutive addresses, from a different start for each thread.
    Sequential,
    /// Uniformly random addresses.
    Random,
}

/// One microbenchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Microbench {
    /// Kind of access.
    pub access: AccessKind,
    /// Order of the addresses.
    pub order: AccessOrder,
    /// Bytes of one access.
    pub bytes: u32,
    /// Number of interleaved DIMMs.
    pub dimms: u32,
    /// Number of threads.
    pub threads: u32,
}

/// Bytes of the region that all threads access: many times the cache of [`Microbench::config`].
const REGION_BYTES: u64 = 96 << 20;

impl Microbench {
    /// Returns the machine to run on: the published one, but with a smaller cache, so that a short run gives the
    /// result of a long one.
    #[must_use]
    pub fn config(&self, seed: u64) -> MachineConfig {
        MachineConfig {
            cache_bytes: 1 << 20,
            places: false,
            seed,
            ..MachineConfig::study(self.dimms)
        }
    }

    /// Returns the bytes of one operation: larger accesses are split into operations of 4096 bytes.
    fn chunk(&self) -> u64 {
        u64::from(self.bytes).min(4096)
    }

    /// Runs the microbenchmark over about `lines` lines. Returns the bandwidth in GB/s, and the outcome.
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

/// The accesses of one thread.
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

/// The mix of accesses of a worker: of each `of` accesses, the first `loads` are loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MixedWorker {
    /// Accesses in one round.
    pub of: u32,
    /// Loads in one round. The other accesses are stores around the cache.
    pub loads: u32,
}

/// Runs workers that mix loads and writes of `bytes` on `config`'s machine. Returns the bandwidth in GB/s.
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
    // The accesses are shared: fast workers continue as long as slow ones do, so all run for the same time.
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

/// Returns the time of `steps` in nanoseconds, run by a single worker after `before`, on a machine that was empty.
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

/// Returns the inserts per second into `profile`'s index by `workers` workers; `remote`: from the other socket.
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
        // An insert writes the probed bucket and the lines after it.
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

/// Returns the media writes per XPLine of a region. Each round first writes the first halves of all its XPLines, then
/// the second halves.
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
