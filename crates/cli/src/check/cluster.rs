//! `farbank check cluster`: kills, pauses and cuts off the processes of a tree on memory servers, and checks that the calls of its clients
//! are linearizable. And the compute process that it starts.

use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use farbank_check::cluster::{
    self, ClusterAnswer, ClusterCall, ClusterFabric, ClusterFigures, ClusterLine, LEASE_DEFAULT,
    LEASE_MIN, UNLISTED, key_bytes, key_number, monotonic_ns, value_bytes, value_id,
};
use farbank_fabric::FabricError;
use farbank_fabric::shm::ServerAddress;
use farbank_pm::rng::Rng;
use farbank_tree::{CasOutcome, Cluster, ClusterError, ClusterSettings, KeyValue, TreeError};

use super::ended::{CheckFigures, CheckReport, in_memory};
use crate::common::{Failure, read_key};

const EXAMPLES: &str = "\
Examples:
  farbank check cluster --cycles 300
      two memory servers and three compute processes; each cycle kills, pauses or restarts one of them
  farbank check cluster --processes 4 --clients 8 --seed 7
      more processes and clients
  farbank check cluster --fabric shm --processes 4
      by shared memory
  farbank check cluster --fabric libfabric
      over libfabric, for programs built with it
  farbank check cluster --fabric libfabric --provider 'verbs;ofi_rxm' --listen 10.9.0.1 --lease-ms 3000
      over a network card with verbs that has this address, on a slow machine
  farbank check cluster --hosts --cycles 300
      each process on a host of its own, a network namespace; half of the cycles cut a host off (needs root and iproute2)";

/// Kill, pause and cut off processes of a tree on memory servers, and check that the recorded calls are linearizable.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckClusterArgs {
    /// How the compute processes reach the memory servers.
    #[arg(long, value_enum, default_value = "tcp")]
    fabric: ClusterFabricChoice,
    /// Provider of --fabric libfabric. Default: tcp;ofi_rxm.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Address on which the memory servers listen.
    #[arg(
        long,
        value_name = "IP",
        default_value = "127.0.0.1",
        conflicts_with = "hosts"
    )]
    listen: IpAddr,
    /// Duration of the lease of a compute process, in milliseconds. On a slow machine, a short one ends during a call.
    #[arg(long, value_name = "MS", default_value_t = LEASE_DEFAULT.as_millis() as u64,
        value_parser = value_parser!(u64).range(LEASE_MIN.as_millis() as u64..=60_000))]
    lease_ms: u64,
    /// Run each process on a host of its own, a network namespace, and cut hosts off. Needs root and iproute2.
    #[arg(long)]
    hosts: bool,
    /// Number of cycles. Most kill, pause or restart a process.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u64).range(1..))]
    cycles: u64,
    /// Compute processes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(2..=16))]
    processes: u32,
    /// Threads of the tree in each compute process. They share its lease, its index cache and its locks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=16))]
    threads: u32,
    /// Clients of each compute process.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Calls of each client in a cycle.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u64).range(1..=4000))]
    calls: u64,
    /// Memory servers that leave during the run, at most one more than join. The process that removes one may be killed, too.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(..=16))]
    leaves: u16,
    /// Memory servers that join during the run. The process that adds one may be killed, too.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(..=16))]
    joins: u16,
    /// Seed of the random number generator. Timing still differs from run to run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ClusterFabricChoice {
    /// By TCP.
    Tcp,
    /// By shared memory: they map the files of the memory servers.
    Shm,
    /// Over libfabric. Only in programs that were built with the feature libfabric.
    Libfabric,
}

impl CheckClusterArgs {
    /// Returns the fabric and its provider.
    fn fabric(&self) -> Result<ClusterFabric, Failure> {
        match (self.fabric, &self.provider) {
            (ClusterFabricChoice::Libfabric, provider) => Ok(ClusterFabric::Libfabric {
                provider: provider.clone(),
            }),
            (_, Some(_)) => Err(Failure::Usage("--provider needs --fabric libfabric".into())),
            (ClusterFabricChoice::Tcp, None) => Ok(ClusterFabric::Tcp),
            (ClusterFabricChoice::Shm, None) => Ok(ClusterFabric::Shm),
        }
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        let fabric = self.fabric()?;
        if self.leaves > self.joins + 1 {
            let text =
                "--leaves can be at most one more than --joins, so that memory server 0 stays";
            return Err(Failure::Usage(text.into()));
        }
        let folder = in_memory("cluster");
        let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", folder.display()));
        std::fs::create_dir(&folder).map_err(failed)?;
        let program = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find the path of this program: {e}")))?;
        let options = cluster::ClusterOptions {
            program,
            folder: folder.clone(),
            fabric,
            has_hosts: self.hosts,
            listen: self.listen,
            lease: Duration::from_millis(self.lease_ms),
            cycles: self.cycles,
            processes: self.processes as usize,
            threads: self.threads as usize,
            clients: self.clients as usize,
            calls: self.calls,
            joins: self.joins,
            leaves: self.leaves,
            seed: self.seed,
        };
        let report = CheckReport {
            check: "cluster",
            cycles: self.cycles,
            json: self.json,
            kept: &folder,
        };
        report.run(
            |progress| cluster::run(&options, progress),
            |folder| std::fs::remove_dir_all(folder),
        )
    }
}

impl CheckFigures for ClusterFigures {
    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn line(&self) -> String {
        format!(
            "{} cycles ({} kills and {} pauses of compute processes, {} of them killed by the lease server, {} restarts of memory servers, \
         {} long and {} short cuts of compute processes, {} of memory servers), {} memory servers joined and {} left ({} of these changes repeated), {} calls answered, {} failed, {} \
         in flight at a kill, {} locks taken over, {} of them during a long cut, {} nodes mended, {} histories linearizable, {} not decided, longest call of \
         another process {:.0} ms; {:.1} s",
            self.cycles,
            self.kills,
            self.pauses,
            self.expelled,
            self.restarts,
            self.cuts,
            self.short_cuts,
            self.server_cuts,
            self.joined,
            self.left,
            self.changes_repeated,
            self.answered,
            self.failed,
            self.in_flight,
            self.taken_over,
            self.taken_in_cuts,
            self.mended,
            self.histories,
            self.given_up,
            self.longest.as_secs_f64() * 1e3,
            self.elapsed.as_secs_f64(),
        )
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "check": "cluster", "holds": true, "cycles": self.cycles, "kills": self.kills, "pauses": self.pauses, "expelled": self.expelled,
            "restarts": self.restarts, "cuts": self.cuts, "short_cuts": self.short_cuts, "server_cuts": self.server_cuts, "joined": self.joined,
            "left": self.left, "changes_repeated": self.changes_repeated, "answered": self.answered, "failed": self.failed, "in_flight": self.in_flight,
            "taken_over": self.taken_over, "taken_in_cuts": self.taken_in_cuts, "mended": self.mended, "histories": self.histories,
            "given_up": self.given_up, "longest_ms": self.longest.as_secs_f64() * 1e3,
            "elapsed_s": self.elapsed.as_secs_f64(),
        })
    }
}

/// The compute process of `check cluster`: executes the rounds that it reads from standard input, and prints its calls.
#[derive(Args)]
pub(crate) struct CheckClusterClientArgs {
    #[arg(long, value_delimiter = ',', required = true)]
    servers: Vec<ServerAddress>,
    #[arg(long)]
    key_file: PathBuf,
    #[arg(long)]
    clients: u64,
    #[arg(long)]
    threads: usize,
}

impl CheckClusterClientArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let settings = ClusterSettings {
            threads: self.threads,
            ..ClusterSettings::new(self.servers, read_key(&self.key_file)?)
        };
        let cluster = Cluster::connect(settings).map_err(Failure::failed)?;
        print(&ClusterLine::Done {
            taken_over: 0,
            mended: 0,
        });
        let mut counted = (0, 0);
        for command in std::io::stdin().lock().lines() {
            let command = command.map_err(Failure::failed)?;
            let words: Vec<&str> = command.split(' ').collect();
            let (name, numbers) = words.split_first().unwrap_or((&"", &[]));
            let numbers: Vec<u64> = numbers.iter().flat_map(|word| word.parse()).collect();
            match (*name, numbers.as_slice()) {
                ("calls", &[ids, first, keys, calls]) => {
                    make_calls(&cluster, self.clients, (ids, first, keys, calls));
                }
                ("read", &[keys]) => read_all(&cluster, self.clients, keys),
                _ => return Err(Failure::failed(format!("unknown round {command:?}"))),
            }
            let stats = cluster.stats().map_err(Failure::failed)?;
            print(&ClusterLine::Done {
                taken_over: stats.taken_over - counted.0,
                mended: stats.mended - counted.1,
            });
            counted = (stats.taken_over, stats.mended);
        }
        Ok(())
    }
}

/// Prints a line with one write, so that a kill does not tear it.
fn print(line: &ClusterLine) {
    let text = format!("{line}\n");
    let mut stdout = std::io::stdout().lock();
    // The parent process has ended if this fails, and then this process ends with its standard input.
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Runs a round of calls of all clients.
fn make_calls(cluster: &Cluster, clients: u64, (ids, first, keys, calls): (u64, u64, u64, u64)) {
    thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let mut rng = Rng::new(ids).fork(client);
                for call in 0..calls {
                    let key = first + rng.below(keys);
                    let id = ids + (client << 12) + call;
                    let call = draw(cluster, key, id, &mut rng);
                    make(cluster, client, key, call);
                }
            });
        }
    });
}

/// Draws a call. `id` is the id of a new value.
fn draw(cluster: &Cluster, key: u64, id: u64, rng: &mut Rng) -> ClusterCall {
    /// Keys of a scan.
    const SCANNED: usize = 6;
    let swap = |new| {
        let found = cluster.get(&key_bytes(key)).ok().flatten();
        let expected = found.and_then(|bytes| value_id(&bytes));
        ClusterCall::Swap { expected, new }
    };
    match rng.below(12) {
        0..3 => ClusterCall::Get,
        3..7 => ClusterCall::Put(id),
        7 | 8 => swap(Some(id)),
        9 => swap(None),
        10 => ClusterCall::Delete,
        _ => ClusterCall::Scan {
            is_down: rng.below(2) == 0,
            count: SCANNED,
        },
    }
}

/// Makes a call and prints it. Returns whether it was answered.
fn make(cluster: &Cluster, client: u64, key: u64, call: ClusterCall) -> bool {
    print(&ClusterLine::Begin {
        client,
        ns: monotonic_ns(),
        key,
        call,
    });
    let answer = execute(cluster, key, call);
    let answer = answer.unwrap_or_else(|error| {
        ClusterAnswer::Failed(match error {
            ClusterError::Tree(TreeError::Fabric(FabricError::Unlisted { .. })) => UNLISTED.into(),
            error => error.to_string(),
        })
    });
    let is_answered = !matches!(answer, ClusterAnswer::Failed(_));
    print(&ClusterLine::End {
        client,
        ns: monotonic_ns(),
        answer,
    });
    is_answered
}

/// Returns the id of a value; for bytes that no client wrote, an id that no client uses.
fn id_of(bytes: &[u8]) -> u64 {
    value_id(bytes).unwrap_or(u64::MAX)
}

fn execute(cluster: &Cluster, key: u64, call: ClusterCall) -> Result<ClusterAnswer, ClusterError> {
    let bytes = key_bytes(key);
    Ok(match call {
        ClusterCall::Get => {
            let found = cluster.get(&bytes)?;
            ClusterAnswer::Found(found.as_deref().map(id_of))
        }
        ClusterCall::Put(id) => {
            cluster.put(&bytes, &value_bytes(id))?;
            ClusterAnswer::Stored
        }
        ClusterCall::Delete => ClusterAnswer::Removed(cluster.delete(&bytes)?),
        ClusterCall::Swap { expected, new } => {
            let (old, new) = (expected.map(value_bytes), new.map(value_bytes));
            let outcome = cluster.compare_and_swap(&bytes, old.as_deref(), new.as_deref())?;
            ClusterAnswer::Found(match outcome {
                CasOutcome::Swapped => expected,
                CasOutcome::Differs(found) => found.as_deref().map(id_of),
            })
        }
        ClusterCall::Scan { is_down, count } => {
            let begin = Bound::Included(bytes.as_slice());
            let found = match is_down {
                false => cluster.scan(begin, Bound::Unbounded, count)?,
                true => cluster.scan_down(Bound::Unbounded, begin, count)?,
            };
            let entry =
                |(key, value): KeyValue| (key_number(&key).unwrap_or(u64::MAX), id_of(&value));
            ClusterAnswer::Entries(found.into_iter().map(entry).collect())
        }
    })
}

/// Reads all keys, by gets and by scans in both directions. Repeats a read that fails.
fn read_all(cluster: &Cluster, clients: u64, keys: u64) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in 0..clients {
            let next = &next;
            scope.spawn(move || {
                loop {
                    let key = next.fetch_add(1, Ordering::Relaxed);
                    if key >= keys {
                        return;
                    }
                    while !make(cluster, client, key, ClusterCall::Get) {}
                }
            });
        }
    });
    for (key, is_down) in [(0, false), (keys, true)] {
        let count = 2 * keys as usize;
        while !make(cluster, 0, key, ClusterCall::Scan { is_down, count }) {}
    }
}
