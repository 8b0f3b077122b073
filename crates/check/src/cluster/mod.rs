//! Linearizability test of a tree on memory servers, whose processes are killed and paused.
//!
//! ```text
//!   compute processes ──▶ calls on few keys, printed with their times          a cycle:
//!     0  1  2     └─TCP, shm──▶ memory servers on pools                           1. a round of calls; within it, a process
//!     └ killed, or paused for three leases    └ killed and started again          is killed or paused
//!   this process ◀── lines                                                      2. another process reads everything
//!                                                                               3. for each key: an order of the calls
//! ```
//!
//! # What is checked
//! CLUSTER-1  An answered call takes effect between its beginning and its end. A call that failed, or whose process was killed,
//!            takes effect once, after its beginning and before the end of the cycle, or never. So a late write of a process
//!            that was paused longer than its lease is a violation in the next cycle.
//! CLUSTER-2  Scans in both directions find every key that is present throughout.
//! CLUSTER-3  No call of another process waits for ever: each round ends within a minute. The longest time is reported.
//! CLUSTER-4  Memory servers keep what was acknowledged when they are killed and start again on their pools.
//!
//! Over shared memory, the lease server may kill a process that is paused within a batch. The figures count that.
//!
//! Limits: all processes are on one machine, and messages between them are not lost. A key with more than
//! [`crate::oracle::CALLS_MAX`] calls in a cycle is not decided, which the figures report.

mod calls;
mod history;
mod process;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use farbank_pm::rng::Rng;

pub use calls::{
    ClusterAnswer, ClusterCall, ClusterLine, UnknownLine, key_bytes, key_number, monotonic_ns,
    value_bytes, value_id,
};

use crate::child::{ChildError, RunFailure};
use history::{KeyValues, KeyVerdict, MadeCall, check_key, collect};
pub use process::ClusterFabric;
use process::{ClusterFiles, ComputeProcess, LEASE, MemoryProcess, write_key};

/// Number of keys. A quarter of them is in use in one cycle.
pub const KEYS: u64 = 96;
/// Keys of one cycle.
const BUSY_KEYS: u64 = KEYS / 4;
/// Memory servers.
const SERVERS: u16 = 2;
/// Time after which a round that has not ended is a violation: more than any timeout of a client.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

impl ClusterFabric {
    /// Returns the latest moment of a fault after the beginning of a round, in microseconds.
    fn fault_us_max(self) -> u64 {
        match self {
            ClusterFabric::Tcp => 15_000,
            ClusterFabric::Shm => 6_000,
        }
    }
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Path of the `farbank` binary.
    pub program: PathBuf,
    /// Folder for the pools and the key. It must exist and be empty.
    pub folder: PathBuf,
    /// How compute processes reach the memory servers.
    pub fabric: ClusterFabric,
    /// Number of cycles.
    pub cycles: u64,
    /// Number of compute processes, at least 2.
    pub processes: usize,
    /// Clients of each compute process.
    pub clients: usize,
    /// Calls of each client in a cycle.
    pub calls: u64,
    /// Seed of the random choices. Timing differs between runs even with the same seed.
    pub seed: u64,
}

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFigures {
    /// Cycles that were checked without a violation.
    pub cycles: u64,
    /// Compute processes killed.
    pub kills: u64,
    /// Compute processes paused for three leases.
    pub pauses: u64,
    /// Paused processes that the lease server has killed, because they were within a batch.
    pub expelled: u64,
    /// Memory servers killed and started again.
    pub restarts: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed with an error.
    pub failed: u64,
    /// Calls that a kill interrupted.
    pub in_flight: u64,
    /// Locks taken from dead or fenced processes.
    pub taken_over: u64,
    /// Splits and merges completed for dead processes.
    pub mended: u64,
    /// Histories of a key that an order explains.
    pub histories: u64,
    /// Histories with too many calls for the search.
    pub given_up: u64,
    /// Longest call of a process that was not killed or paused, in cycles without a restart of a memory server.
    pub longest: Duration,
    /// Duration of the run.
    pub elapsed: Duration,
}

/// The fault of a cycle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CycleFault {
    None,
    Kill(usize),
    Pause(usize),
    Restart(usize),
}

impl CycleFault {
    fn draw(processes: usize, rng: &mut Rng) -> CycleFault {
        let process = rng.below(processes as u64) as usize;
        match rng.below(8) {
            0 => CycleFault::None,
            1..4 => CycleFault::Kill(process),
            4 | 5 => CycleFault::Pause(process),
            _ => CycleFault::Restart(rng.below(SERVERS.into()) as usize),
        }
    }
}

/// Runs all cycles, and calls `progress` with the counters after each.
///
/// # Errors
/// No order explains the calls on a key, or a process ended by itself, does not start, or waits for ever.
pub fn run(
    options: &ClusterOptions,
    progress: &mut dyn FnMut(&ClusterFigures),
) -> Result<ClusterFigures, RunFailure> {
    let began = Instant::now();
    let mut cluster = Cluster::start(options)?;
    let mut rng = Rng::new(options.seed);
    let mut figures = ClusterFigures::default();
    let mut values = KeyValues::new();
    for cycle in 0..options.cycles {
        let fault = CycleFault::draw(options.processes, &mut rng);
        let mut calls = cluster.round(cycle, fault, &mut rng)?;
        let reader = rng.below(options.processes as u64) as usize;
        calls.extend(cluster.read_all(reader)?);
        let read: KeyValues = calls
            .iter()
            .filter(|made| made.is_of(READING))
            .filter_map(MadeCall::got)
            .filter_map(|(key, id)| Some((key, id?)))
            .collect();
        count(&calls, fault, &mut figures);
        for key in 0..KEYS {
            match check_key(key, &calls, &values, &read) {
                KeyVerdict::Holds => figures.histories += 1,
                KeyVerdict::Open => figures.given_up += 1,
                KeyVerdict::Fails(violation) => return Err(RunFailure::Violation(violation)),
            }
        }
        values = read;
        figures.cycles += 1;
        figures.taken_over += std::mem::take(&mut cluster.taken_over);
        figures.mended += std::mem::take(&mut cluster.mended);
        figures.expelled += std::mem::take(&mut cluster.expelled);
        figures.elapsed = began.elapsed();
        progress(&figures);
    }
    Ok(figures)
}

/// Number that stands for the process that reads everything.
const READING: u64 = u64::MAX;

fn count(calls: &[MadeCall], fault: CycleFault, figures: &mut ClusterFigures) {
    let calls = || calls.iter().filter(|made| !made.is_of(READING));
    figures.in_flight += calls().filter(|made| made.is_in_flight()).count() as u64;
    figures.failed += calls().filter(|made| made.has_failed()).count() as u64;
    figures.answered += calls().filter(|made| made.is_answered()).count() as u64;
    let struck = match fault {
        CycleFault::None => None,
        CycleFault::Kill(process) | CycleFault::Pause(process) => Some(process as u64),
        CycleFault::Restart(_) => {
            figures.restarts += 1;
            return;
        }
    };
    match fault {
        CycleFault::Kill(_) => figures.kills += 1,
        CycleFault::Pause(_) => figures.pauses += 1,
        CycleFault::None | CycleFault::Restart(_) => {}
    }
    let others = calls().filter(|made| struck.is_none_or(|process| !made.is_of(process)));
    let longest = others.filter_map(MadeCall::took_ns).max().unwrap_or(0);
    figures.longest = figures.longest.max(Duration::from_nanos(longest));
}

/// The processes of a run.
struct Cluster<'a> {
    options: &'a ClusterOptions,
    files: ClusterFiles,
    memory: Vec<MemoryProcess>,
    compute: Vec<ComputeProcess>,
    addresses: String,
    taken_over: u64,
    mended: u64,
    expelled: u64,
}

impl Cluster<'_> {
    fn start(options: &ClusterOptions) -> Result<Cluster<'_>, ChildError> {
        let files = ClusterFiles {
            program: options.program.clone(),
            folder: options.folder.clone(),
            fabric: options.fabric,
        };
        write_key(&files.key(), options.seed)?;
        let any = ([127, 0, 0, 1], 0).into();
        let mut memory: Vec<MemoryProcess> = Vec::new();
        for number in 0..SERVERS {
            let lease_server = memory.first().map(MemoryProcess::address);
            memory.push(MemoryProcess::start(&files, number, any, lease_server)?);
        }
        let addresses: Vec<_> = memory.iter().map(|server| server.name(&files)).collect();
        let addresses = addresses.join(",");
        files.create_tree(&addresses)?;
        let compute = (0..options.processes)
            .map(|_| ComputeProcess::start(&files, &addresses, options.clients));
        let mut cluster = Cluster {
            options,
            compute: compute.collect::<Result<_, _>>()?,
            files,
            memory,
            addresses,
            taken_over: 0,
            mended: 0,
            expelled: 0,
        };
        for number in 0..options.processes {
            cluster.end_round(number)?;
        }
        Ok(cluster)
    }

    /// Runs a round of calls with a fault. Returns the calls.
    fn round(
        &mut self,
        cycle: u64,
        fault: CycleFault,
        rng: &mut Rng,
    ) -> Result<Vec<MadeCall>, ChildError> {
        let first = rng.below(KEYS - BUSY_KEYS);
        for (number, process) in self.compute.iter_mut().enumerate() {
            // Ids of values are unique: the seed of a round is in them.
            let ids = (cycle * self.options.processes as u64 + number as u64 + 1) << 20;
            let calls = self.options.calls;
            process.begin(&format!("calls {ids} {first} {BUSY_KEYS} {calls}"))?;
        }
        thread::sleep(Duration::from_micros(
            rng.below(self.options.fabric.fault_us_max()),
        ));
        let mut calls = Vec::new();
        match fault {
            CycleFault::None => {}
            CycleFault::Kill(number) => {
                calls.extend(collect(number as u64, self.compute[number].kill()?));
                self.start_again(number)?;
            }
            CycleFault::Pause(number) => {
                let process = &mut self.compute[number];
                process.pause(3 * LEASE)?;
                if let Some(lines) = process.killed_lines()? {
                    calls.extend(collect(number as u64, lines));
                    self.start_again(number)?;
                    self.expelled += 1;
                }
            }
            CycleFault::Restart(number) => {
                let lease_server = (number > 0).then(|| self.memory[0].address());
                self.memory[number].restart(&self.files, lease_server)?;
            }
        }
        // A process that was started in place of a killed one ends the round when it is connected.
        for number in 0..self.compute.len() {
            let lines = self.end_round(number)?;
            calls.extend(collect(number as u64, lines));
        }
        Ok(calls)
    }

    /// Starts a process in place of the killed one.
    fn start_again(&mut self, number: usize) -> Result<(), ChildError> {
        let clients = self.options.clients;
        self.compute[number] = ComputeProcess::start(&self.files, &self.addresses, clients)?;
        Ok(())
    }

    /// Lets process `number` read all keys, by gets and by scans in both directions.
    fn read_all(&mut self, number: usize) -> Result<Vec<MadeCall>, ChildError> {
        self.compute[number].begin(&format!("read {KEYS}"))?;
        Ok(collect(READING, self.end_round(number)?))
    }

    fn end_round(&mut self, number: usize) -> Result<Vec<ClusterLine>, ChildError> {
        let lines = self.compute[number].end_round(ROUND_TIMEOUT)?;
        if let Some(ClusterLine::Done { taken_over, mended }) = lines.last() {
            self.taken_over += taken_over;
            self.mended += mended;
        }
        Ok(lines)
    }
}
