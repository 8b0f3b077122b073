//! Linearizability test of a tree on memory servers, whose processes are killed, paused and cut off.
//!
//! ```text
//!   compute processes ──▶ calls on few keys, printed with their times          a cycle:
//!     0  1  2     └─TCP, shm──▶ memory servers on pools                           1. a round of calls; within it, a process
//!     └ killed, or paused for three leases    └ killed and started again          is killed, paused or cut off
//!   this process ◀── lines                                                      2. another process reads everything
//!                                                                               3. for each key: an order of the calls
//! ```
//!
//! With [`ClusterOptions::has_hosts`], each process has a host of its own ([`network`](crate::network)). Then half of the cycles cut
//! a host off, for seven leases or for less than half of one. What the processes sent before and during a cut arrives after it,
//! because TCP sends it again.
//!
//! # What is checked
//! CLUSTER-1  An answered call takes effect between its beginning and its end. A call that failed, or whose process was killed,
//!            takes effect once, after its beginning and before the end of the cycle, or never. So a late write of a process
//!            that was paused longer than its lease is a violation in the next cycle.
//! CLUSTER-2  Scans in both directions find every key that is present throughout.
//! CLUSTER-3  A call of a process takes at most [`wait_max`] while another compute process is killed, paused or cut off. Each round
//!            ends within a minute. Between hosts over libfabric, TCP may delay a call after a cut for three times as long as the cut.
//! CLUSTER-4  Memory servers keep what was acknowledged when they are killed and start again on their pools.
//! CLUSTER-5  While memory servers join and leave ([`ClusterOptions::joins`], [`ClusterOptions::leaves`]), no call fails because its process
//!            does not know one, unless the process is paused or cut off. Each joins or leaves in the end, also if the process that adds or
//!            removes it is killed. A server that has left is ended: nothing leads there.
//!
//! Over shared memory, the lease server may kill a process that is paused within a batch. The figures count that.
//!
//! Limits: all processes are on one machine. A key with more than [`crate::oracle::CALLS_MAX`] calls in a cycle is not decided,
//! which the figures report.

mod calls;
mod changes;
mod cycle_fault;
mod history;
mod hosts;
mod process;

use std::net::IpAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use farbank_pm::rng::Rng;

pub use calls::{
    ClusterAnswer, ClusterCall, ClusterLine, UnknownLine, key_bytes, key_number, monotonic_ns,
    value_bytes, value_id,
};

use crate::child::{ChildError, RunFailure, ServerViolation};
use changes::ServerChanges;
use cycle_fault::{ClusterNode, CutLength, CycleFault};
use history::{KeyValues, KeyVerdict, MadeCall, check_key, collect, longest_call};
use hosts::ClusterHosts;
pub use process::ClusterFabric;
use process::{ChangeProcess, ChangeState, ComputeProcess, MemoryProcess, ServerChange, write_key};

/// Number of keys. A quarter of them is in use in one cycle.
pub const KEYS: u64 = 96;
/// Keys of one cycle.
const BUSY_KEYS: u64 = KEYS / 4;
/// Memory servers at the creation of the tree.
const SERVERS: u16 = 2;
/// Text of [`ClusterAnswer::Failed`] if the process does not know a memory server.
pub const UNLISTED: &str = "unlisted";
/// Time in which a server joins or leaves after the last cycle, besides leases.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Leases in which it does.
const CHANGE_LEASES: u32 = 20;
/// Time after which a round that has not ended is a violation: more than any timeout of a client.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// Shortest lease of a compute process: cuts of less than half of it are possible.
pub const LEASE_MIN: Duration = Duration::from_millis(100);
/// Lease of a compute process, unless the machine is slow.
pub const LEASE_DEFAULT: Duration = Duration::from_millis(300);

/// Returns the longest call of a process while another compute process is killed, paused or cut off. It is the lease of that
/// process, and five more for the detection and for a machine under load. A cut takes longer.
#[must_use]
pub fn wait_max(lease: Duration) -> Duration {
    6 * lease
}

impl ClusterOptions {
    /// Returns the longest that a call may take whose process is not struck by a fault of a compute process.
    fn wait_max(&self) -> Duration {
        let leases = wait_max(self.lease);
        match self.fabric {
            // After a cut, the kernel's TCP below the provider tries again at intervals that double.
            ClusterFabric::Libfabric { .. } if self.has_hosts => {
                leases + 3 * CutLength::Long.duration(self.lease)
            }
            _ => leases,
        }
    }

    /// Returns the latest moment of a fault after the beginning of a round, in microseconds. A longer lease is for a
    /// slower machine.
    fn fault_us_max(&self) -> u64 {
        let us = match self.fabric {
            ClusterFabric::Tcp => 15_000,
            ClusterFabric::Libfabric { .. } => 25_000,
            ClusterFabric::Shm => 6_000,
        };
        us * self.lease.as_millis() as u64 / LEASE_DEFAULT.as_millis() as u64
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
    /// Whether each process has a host of its own, which cycles cut off.
    pub has_hosts: bool,
    /// Address of the memory servers, if they have no hosts of their own.
    pub listen: IpAddr,
    /// Duration of the lease of a compute process, at least [`LEASE_MIN`].
    pub lease: Duration,
    /// Number of cycles.
    pub cycles: u64,
    /// Number of compute processes, at least 2.
    pub processes: usize,
    /// Threads of the tree in each compute process.
    pub threads: usize,
    /// Clients of each compute process.
    pub clients: usize,
    /// Calls of each client in a cycle.
    pub calls: u64,
    /// Number of memory servers that join during the run, one after another.
    pub joins: u16,
    /// Number of memory servers that leave during the run, at most one more than join.
    pub leaves: u16,
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
    /// Hosts of compute processes cut off for seven leases.
    pub cuts: u64,
    /// Hosts of compute processes cut off for less than half of a lease.
    pub short_cuts: u64,
    /// Hosts of memory servers cut off.
    pub server_cuts: u64,
    /// Memory servers that joined.
    pub joined: u64,
    /// Memory servers that left, and were ended then.
    pub left: u64,
    /// Processes that added or removed one and were killed, or failed because of another fault.
    pub changes_repeated: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed with an error.
    pub failed: u64,
    /// Calls that a kill interrupted.
    pub in_flight: u64,
    /// Locks taken from dead or fenced processes.
    pub taken_over: u64,
    /// Those that were taken while a compute process was cut off for seven leases.
    pub taken_in_cuts: u64,
    /// Splits and merges completed for dead processes.
    pub mended: u64,
    /// Histories of a key that an order explains.
    pub histories: u64,
    /// Histories with too many calls for the search.
    pub given_up: u64,
    /// Longest call of a process that was not killed, paused or cut off, in cycles without a fault of a memory server.
    pub longest: Duration,
    /// Duration of the run.
    pub elapsed: Duration,
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
        cluster.change_servers(cycle, &mut rng)?;
        let fault = match CycleFault::draw(options, cluster.memory.len(), &mut rng) {
            CycleFault::Restart(server) | CycleFault::Cut(ClusterNode::Memory(server), _)
                if cluster.changes.has_left(server) =>
            {
                CycleFault::None
            }
            fault => fault,
        };
        cluster.cycle((cycle, fault), &mut rng, &mut values, &mut figures)?;
        figures.cycles += 1;
        figures.elapsed = began.elapsed();
        progress(&figures);
    }
    if options.joins + options.leaves > 0 {
        cluster.end_changes()?;
        let last = (options.cycles, CycleFault::None);
        cluster.cycle(last, &mut rng, &mut values, &mut figures)?;
        figures.elapsed = began.elapsed();
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
    match fault {
        CycleFault::None => {}
        CycleFault::Kill(_) => figures.kills += 1,
        CycleFault::Pause(_) => figures.pauses += 1,
        CycleFault::Restart(_) => figures.restarts += 1,
        CycleFault::Cut(ClusterNode::Memory(_), _) => figures.server_cuts += 1,
        CycleFault::Cut(ClusterNode::Compute(_), CutLength::Long) => figures.cuts += 1,
        CycleFault::Cut(ClusterNode::Compute(_), CutLength::Short(_)) => figures.short_cuts += 1,
    }
}

/// Checks the times of the calls of processes that `fault` has not struck (CLUSTER-3). Returns the longest.
fn check_waits(
    calls: &[MadeCall],
    fault: CycleFault,
    wait_max: Duration,
) -> Result<Duration, ServerViolation> {
    let struck = fault.struck().map(|process| process as u64);
    let others = calls
        .iter()
        .filter(|made| !made.is_of(READING) && struck.is_none_or(|process| !made.is_of(process)));
    let (longest, history) = longest_call(others);
    match fault {
        _ if fault.is_of_server() => Ok(Duration::ZERO),
        _ if longest <= wait_max => Ok(longest),
        _ => Err(ServerViolation {
            key: "of another process".into(),
            what: format!("a call took {longest:?}, expected at most {wait_max:?}"),
            history,
        }),
    }
}

/// Checks that no call of a process that `fault` has not struck failed because of a memory server that it does not know (CLUSTER-5).
fn check_unlisted(calls: &[MadeCall], fault: CycleFault) -> Result<(), ServerViolation> {
    let struck = fault.struck().map(|process| process as u64);
    let is_wrong = |made: &&MadeCall| {
        let is_struck = struck.is_some_and(|process| made.is_of(process));
        !is_struck && made.failure() == Some(UNLISTED)
    };
    match calls.iter().find(is_wrong) {
        None => Ok(()),
        Some(made) => Err(ServerViolation {
            key: "of a process that was not struck".into(),
            what: "a call failed because its process does not know a memory server".into(),
            history: vec![made.line(0)],
        }),
    }
}

/// The processes of a run.
struct Cluster<'a> {
    options: &'a ClusterOptions,
    hosts: Option<ClusterHosts>,
    memory: Vec<MemoryProcess>,
    compute: Vec<ComputeProcess>,
    /// Addresses of the servers at the creation. Compute processes learn of the others.
    addresses: String,
    /// Memory servers that join and leave.
    changes: ServerChanges,
    taken_over: u64,
    mended: u64,
    expelled: u64,
}

impl Cluster<'_> {
    /// Runs a round of calls with a fault, reads everything, and checks all calls. `values` are the values at the beginning, and then at the
    /// end.
    fn cycle(
        &mut self,
        (cycle, fault): (u64, CycleFault),
        rng: &mut Rng,
        values: &mut KeyValues,
        figures: &mut ClusterFigures,
    ) -> Result<(), RunFailure> {
        let mut calls = self.round(cycle, fault, rng)?;
        let reader = rng.below(self.options.processes as u64) as usize;
        calls.extend(self.read_all(reader)?);
        let read: KeyValues = calls
            .iter()
            .filter(|made| made.is_of(READING))
            .filter_map(MadeCall::got)
            .filter_map(|(key, id)| Some((key, id?)))
            .collect();
        count(&calls, fault, figures);
        let longest = check_waits(&calls, fault, self.options.wait_max());
        let longest = longest.map_err(RunFailure::Violation)?;
        figures.longest = figures.longest.max(longest);
        check_unlisted(&calls, fault).map_err(RunFailure::Violation)?;
        for key in 0..KEYS {
            match check_key(key, &calls, values, &read) {
                KeyVerdict::Holds => figures.histories += 1,
                KeyVerdict::Open => figures.given_up += 1,
                KeyVerdict::Fails(violation) => return Err(RunFailure::Violation(violation)),
            }
        }
        *values = read;
        self.count_events(fault, figures);
        Ok(())
    }

    /// Adds what has happened since the last cycle.
    fn count_events(&mut self, fault: CycleFault, figures: &mut ClusterFigures) {
        let taken_over = std::mem::take(&mut self.taken_over);
        figures.taken_over += taken_over;
        if matches!(
            fault,
            CycleFault::Cut(ClusterNode::Compute(_), CutLength::Long)
        ) {
            figures.taken_in_cuts += taken_over;
        }
        figures.mended += std::mem::take(&mut self.mended);
        figures.expelled += std::mem::take(&mut self.expelled);
        figures.joined = self.changes.joined;
        figures.left = self.changes.left();
        figures.changes_repeated = self.changes.repeated;
    }

    fn start(options: &ClusterOptions) -> Result<Cluster<'_>, ChildError> {
        write_key(&options.key(), options.seed)?;
        let hosts = match options.has_hosts {
            true => {
                let servers = usize::from(SERVERS + options.joins);
                Some(ClusterHosts::new(servers, options.processes)?)
            }
            false => None,
        };
        let host = |node| hosts.as_ref().map(|hosts| hosts.of(node));
        let mut memory: Vec<MemoryProcess> = Vec::new();
        for number in 0..SERVERS {
            let lease_server = memory.first().map(MemoryProcess::address);
            let host = host(ClusterNode::Memory(number.into()));
            memory.push(MemoryProcess::start(options, host, number, lease_server)?);
        }
        let addresses: Vec<_> = memory.iter().map(|server| server.name(options)).collect();
        let addresses = addresses.join(",");
        options.create_tree(host(ClusterNode::Compute(0)), &addresses)?;
        let compute = (0..options.processes).map(|number| {
            let host = host(ClusterNode::Compute(number));
            ComputeProcess::start(options, host, &addresses)
        });
        let mut cluster = Cluster {
            options,
            compute: compute.collect::<Result<_, _>>()?,
            hosts,
            memory,
            addresses,
            changes: ServerChanges::new(options),
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
        match fault {
            CycleFault::Cut(ClusterNode::Compute(number), _) => {
                // Within its round, which is short: so it often holds a lock.
                let calls = self.options.clients as u64 * self.options.calls;
                self.compute[number].wait_for_lines(rng.below(2 * calls) as usize);
            }
            _ => thread::sleep(Duration::from_micros(
                rng.below(self.options.fault_us_max()),
            )),
        }
        let mut calls = self.strike(fault)?;
        // A process that was started in place of a killed one ends the round when it is connected.
        for number in 0..self.compute.len() {
            let lines = self.end_round(number)?;
            calls.extend(collect(number as u64, lines));
        }
        Ok(calls)
    }

    /// Executes `fault`, until it is over. Returns the calls of a process that has ended.
    fn strike(&mut self, fault: CycleFault) -> Result<Vec<MadeCall>, ChildError> {
        match fault {
            CycleFault::None => {}
            CycleFault::Kill(number) => {
                let lines = self.compute[number].kill()?;
                self.start_again(number)?;
                return Ok(collect(number as u64, lines));
            }
            CycleFault::Pause(number) => {
                let process = &mut self.compute[number];
                process.pause(3 * self.options.lease)?;
                if let Some(lines) = process.killed_lines()? {
                    self.start_again(number)?;
                    self.expelled += 1;
                    return Ok(collect(number as u64, lines));
                }
            }
            CycleFault::Restart(number) => {
                let lease_server = (number > 0).then(|| self.memory[0].address());
                let hosts = self.hosts.as_ref();
                let host = hosts.map(|hosts| hosts.of(ClusterNode::Memory(number)));
                self.memory[number].restart(self.options, host, lease_server)?;
            }
            CycleFault::Cut(node, time) => {
                if let Some(hosts) = &mut self.hosts {
                    hosts.cut(node)?;
                    thread::sleep(time.duration(self.options.lease));
                    hosts.join(node)?;
                }
            }
        }
        Ok(Vec::new())
    }

    /// Starts a process in place of the killed one.
    fn start_again(&mut self, number: usize) -> Result<(), ChildError> {
        let hosts = self.hosts.as_ref();
        let host = hosts.map(|hosts| hosts.of(ClusterNode::Compute(number)));
        self.compute[number] = ComputeProcess::start(self.options, host, &self.addresses)?;
        Ok(())
    }

    /// Starts the next change of the memory servers if it is time, or continues.
    fn change_servers(&mut self, cycle: u64, rng: &mut Rng) -> Result<(), ChildError> {
        // Now and then the process of a change is killed.
        if self.changes.is_running() && rng.below(8) == 0 {
            self.repeat_change()?;
        }
        self.continue_change(cycle, false).map(drop)
    }

    /// Looks at the change that is under way, and repeats it if it has failed because of a fault. If there is none, starts the next one if
    /// it is time, or the cycles are over.
    fn continue_change(&mut self, cycle: u64, is_over: bool) -> Result<ChangeState, ChildError> {
        let (state, done) = self.changes.poll()?;
        if let Some(ServerChange::Leave(server)) = done {
            // Nothing leads there any more.
            self.memory[usize::from(server)].end()?;
        }
        if let ChangeState::Failed(_) = state {
            self.repeat_change()?;
        }
        let Some(change) = self.changes.next(cycle, is_over) else {
            return Ok(state);
        };
        if let ServerChange::Join(number) = change {
            let lease_server = Some(self.memory[0].address());
            let hosts = self.hosts.as_ref();
            let host = hosts.map(|hosts| hosts.of(ClusterNode::Memory(number.into())));
            let server = MemoryProcess::start(self.options, host, number, lease_server)?;
            self.memory.push(server);
        }
        self.start_change(change)?;
        Ok(ChangeState::Running)
    }

    /// Starts the process of a change.
    fn start_change(&mut self, change: ServerChange) -> Result<(), ChildError> {
        let hosts = self.hosts.as_ref();
        let host = hosts.map(|hosts| hosts.of(ClusterNode::Compute(0)));
        let (ServerChange::Join(number) | ServerChange::Leave(number)) = change;
        let server = &self.memory[usize::from(number)];
        let process = ChangeProcess::start(self.options, host, &self.addresses, (change, server))?;
        self.changes.run(change, process);
        Ok(())
    }

    /// Ends the process of the change that is under way, if it runs, and starts another.
    fn repeat_change(&mut self) -> Result<(), ChildError> {
        match self.changes.interrupt() {
            Some(change) => self.start_change(change),
            None => Ok(()),
        }
    }

    /// Makes the changes that have not been made, and waits for the last one.
    fn end_changes(&mut self) -> Result<(), ChildError> {
        const PAUSE: Duration = Duration::from_millis(20);
        let changes = u32::from(self.options.joins + self.options.leaves);
        let due = Instant::now() + changes * (CHANGE_TIMEOUT + CHANGE_LEASES * self.options.lease);
        let mut failure = String::new();
        loop {
            match self.continue_change(self.options.cycles, true)? {
                ChangeState::Done => return Ok(()),
                ChangeState::Failed(why) => failure = why,
                ChangeState::Running => {}
            }
            if Instant::now() > due {
                let what = format!("a memory server does not join or leave. {failure}");
                return Err(ChildError::Round(what));
            }
            thread::sleep(PAUSE);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_another_process_that_waits_for_the_end_of_a_cut_is_a_violation() {
        let took = |time: Duration| {
            let end = format!("end 1 {} stored", time.as_nanos());
            let lines = ["begin 1 0 7 put 5", &end].map(|line| line.parse().unwrap());
            collect(0, lines.to_vec())
        };
        let cut = |process| CycleFault::Cut(ClusterNode::Compute(process), CutLength::Long);
        let waited = took(CutLength::Long.duration(LEASE_DEFAULT));
        let longest = wait_max(LEASE_DEFAULT);
        assert!(check_waits(&waited, cut(1), longest).is_err());
        assert!(check_waits(&waited, CycleFault::Kill(1), longest).is_err());
        assert!(check_waits(&waited, CycleFault::None, longest).is_err());
        assert_eq!(
            check_waits(&waited, cut(0), longest).unwrap(),
            Duration::ZERO
        );
        let of_server = CycleFault::Cut(ClusterNode::Memory(0), CutLength::Long);
        for fault in [of_server, CycleFault::Restart(0)] {
            assert_eq!(
                check_waits(&waited, fault, longest).unwrap(),
                Duration::ZERO
            );
        }
        assert_eq!(
            check_waits(&took(longest), cut(1), longest).unwrap(),
            longest
        );
    }

    #[test]
    fn half_of_the_faults_of_a_cluster_with_hosts_cut_one_off() {
        let options = |has_hosts| ClusterOptions {
            listen: std::net::Ipv4Addr::LOCALHOST.into(),
            lease: LEASE_DEFAULT,
            program: PathBuf::new(),
            folder: PathBuf::new(),
            fabric: ClusterFabric::Tcp,
            has_hosts,
            cycles: 1,
            processes: 3,
            threads: 1,
            clients: 1,
            calls: 1,
            joins: 0,
            leaves: 0,
            seed: 1,
        };
        let mut rng = Rng::new(1);
        let mut cuts = |has_hosts| {
            let options = options(has_hosts);
            let drawn = (0..1000).map(|_| CycleFault::draw(&options, 2, &mut rng));
            let cuts = drawn.filter(|fault| matches!(fault, CycleFault::Cut(..)));
            cuts.count()
        };
        assert_eq!(cuts(false), 0);
        assert!((400..600).contains(&cuts(true)));
    }
}
