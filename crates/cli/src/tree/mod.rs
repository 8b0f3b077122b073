//! `farbank tree`: reads and writes a tree on memory servers (`farbank memory-server`), by TCP or by shared memory.
//!
//! * `load`: the subcommand that reads many entries. `servers`: memory servers that join and leave.
//!
//! Each run is a client of its own: it joins the cluster, and leaves it at its end.

mod load;
mod servers;

use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use farbank_fabric::shm::ServerAddress;
use farbank_tree::{
    CasOutcome, Cluster, ClusterError, ClusterSettings, TreeError, TreeSettings, VALUE_BYTES_MAX,
};

use crate::common::output::write_bytes_or_end;
use crate::common::{Failure, json, read_key, size};

const EXAMPLES: &str = "\
Keys and values are bytes. A tree has a maximum length of keys, at most 1 KiB, that is chosen at its creation; each entry
takes this much. Values have at most 131056 bytes.

Exit status: 0 on success; 1 if the command failed, or get or delete found no key, or the condition of --if-absent or
--if-value was not met; 2 if the command line is wrong.

Examples:
  head -c 32 /dev/urandom > key
  farbank memory-server --key-file key &
  farbank memory-server --key-file key --number 1 --listen 127.0.0.1:7412 --lease-server 127.0.0.1:7411 &
      two memory servers
  cluster='--servers 127.0.0.1:7411,127.0.0.1:7412 --key-file key'
  farbank tree create $cluster
  farbank tree put $cluster greeting hello
  farbank tree get $cluster greeting
  farbank tree put $cluster greeting goodbye --if-value hello
      a compare-and-swap
  farbank tree scan $cluster --from a --to n --count 10 --json
  farbank tree scan $cluster --reverse --count 1
      the greatest key
  seq 1000 | sed 's/.*/key&\\tvalue&/' | farbank tree load $cluster
      a key, a tab and a value in each line
  farbank tree stat $cluster --keys
  farbank memory-server --key-file key --number 2 --listen 127.0.0.1:7414 --lease-server 127.0.0.1:7411 &
  farbank tree add-server $cluster 127.0.0.1:7414
      a third memory server, which running clients learn of
  farbank tree remove-server $cluster 1
      memory server 1 leaves: its nodes and values move to the others
  farbank memory-server --key-file key --pool /dev/shm/memory0 --listen 127.0.0.1:7413 &
  farbank tree create --servers shm:/dev/shm/memory0 --key-file key
      without the network: the client maps the server's file";

/// Read and write a tree on memory servers.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum TreeCommand {
    /// Create an empty tree.
    Create(TreeCreateArgs),
    /// Print the values of keys.
    Get(GetArgs),
    /// Set the value of a key.
    Put(PutArgs),
    /// Remove a key.
    Delete(DeleteArgs),
    /// Print keys and values in the order of the keys.
    Scan(ScanArgs),
    /// Set the values of many keys.
    Load(load::LoadArgs),
    /// Print the sizes of the tree and of its memory servers.
    Stat(StatArgs),
    /// Add a memory server to the tree, while clients use it.
    AddServer(servers::AddServerArgs),
    /// Move everything from a memory server to the others, and remove it from the tree, while clients use it.
    RemoveServer(servers::RemoveServerArgs),
}

/// Options of every `farbank tree` subcommand.
#[derive(Args)]
struct ClusterArgs {
    /// The memory servers with which the tree was created, in the order of their numbers: their addresses, or shm:FILE for servers
    /// of this host with --pool FILE. Those that have joined later can follow. "-" stands for one that has left.
    #[arg(
        long,
        value_name = "IP:PORT|shm:FILE|libfabric:IP:PORT,...",
        value_delimiter = ',',
        required = true
    )]
    servers: Vec<ServerAddress>,
    /// File with the key of the cluster.
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Time after which a memory server that does not answer is an error, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = value_parser!(u64).range(10..=3_600_000))]
    timeout_ms: u64,
    /// Number of this client, below 1023, which no other client uses. Default: the lease server selects one.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(..1023))]
    compute: Option<u16>,
    /// Print JSON: one object, or for scan one object per line. Bytes beyond ASCII are escaped as \u00XX.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TreeCreateArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Maximum bytes of a key, 8 to 1024. Each entry takes this much.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u16).range(8..=1024))]
    key_bytes: u16,
    /// Maximum bytes of a value. The chunks of the memory servers must be twice as large.
    #[arg(long, value_name = "N", default_value_t = VALUE_BYTES_MAX as u32, value_parser = value_parser!(u32).range(1..=VALUE_BYTES_MAX as i64))]
    value_bytes: u32,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The keys. Each value is printed on a line.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The key.
    key: OsString,
    /// Remove the key only if it has this value. Exits with 1 if it has another one.
    #[arg(long, value_name = "VALUE")]
    if_value: Option<OsString>,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The key.
    key: OsString,
    /// The value. "-" reads it from standard input.
    value: OsString,
    /// Set the value only if the key has none. Exits with 1 if it has one.
    #[arg(long, conflicts_with = "if_value")]
    if_absent: bool,
    /// Set the value only if the key has this value. Exits with 1 if it has another one, or none.
    #[arg(long, value_name = "VALUE")]
    if_value: Option<OsString>,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// First key.
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// End of the range: the first key that is not printed.
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Start with the last key of the range and go down.
    #[arg(long)]
    reverse: bool,
    /// Maximum number of keys.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
    /// Print the keys without the values.
    #[arg(long)]
    keys_only: bool,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Also count the keys and the bytes of values, which reads the whole tree.
    #[arg(long)]
    keys: bool,
}

impl TreeCommand {
    /// Runs the subcommand.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            TreeCommand::Create(create) => create.run(),
            TreeCommand::Get(get) => get.run(),
            TreeCommand::Put(put) => put.run(),
            TreeCommand::Delete(delete) => delete.run(),
            TreeCommand::Scan(scan) => scan.run(),
            TreeCommand::Load(load) => load.run(),
            TreeCommand::Stat(stat) => stat.run(),
            TreeCommand::AddServer(add) => add.run(),
            TreeCommand::RemoveServer(remove) => remove.run(),
        }
    }
}

impl ClusterArgs {
    fn connect(&self) -> Result<Cluster, Failure> {
        let settings = ClusterSettings {
            compute: self.compute,
            timeout: Duration::from_millis(self.timeout_ms),
            ..ClusterSettings::new(self.servers.clone(), read_key(&self.key_file)?)
        };
        Cluster::connect(settings).map_err(failed)
    }
}

/// Returns the failure of a command, with a hint if there is one.
fn failed(error: ClusterError) -> Failure {
    let hint = match &error {
        ClusterError::Tree(TreeError::NoTree) => Some("`farbank tree create` creates a tree"),
        ClusterError::Connect(_) => Some(
            "all memory servers must run, be listed in the order of their numbers, and have the same key file",
        ),
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}

/// The failure of a command that has printed its result.
fn not_done(text: String, is_json: bool) -> Failure {
    match is_json {
        true => Failure::Told(1),
        false => Failure::failed(text),
    }
}

fn print_json(object: &serde_json::Value) {
    println!("{}", json::escaped(&object.to_string()));
}

impl TreeCreateArgs {
    fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let settings = TreeSettings {
            key_bytes_max: self.key_bytes.into(),
            value_bytes_max: self.value_bytes as usize,
        };
        cluster.create(&settings).map_err(failed)?;
        let tree = cluster.info().map_err(failed)?.tree;
        match self.cluster.json {
            true => print_json(&serde_json::json!({
                "servers": tree.servers, "key_bytes_max": tree.key_bytes_max,
                "value_bytes_max": tree.value_bytes_max, "node_bytes": tree.node_bytes,
            })),
            false => println!(
                "created a tree on {} memory server{}: keys to {} bytes, values to {} bytes, nodes of {} bytes",
                tree.servers,
                if tree.servers == 1 { "" } else { "s" },
                tree.key_bytes_max,
                tree.value_bytes_max,
                tree.node_bytes
            ),
        }
        Ok(())
    }
}

impl GetArgs {
    fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let keys = self.keys.iter().map(|key| key.as_bytes().to_vec());
        let values = cluster.get_all(keys.collect()).map_err(failed)?;
        let mut done = Ok(());
        for (key, value) in self.keys.iter().zip(values) {
            if self.cluster.json {
                let text = value.as_deref().map(json::text);
                let key = json::text(key.as_bytes());
                print_json(&serde_json::json!({ "key": key, "value": text }));
            } else if let Some(value) = &value {
                write_bytes_or_end(&[value, b"\n"]);
            }
            if value.is_none() {
                done = done.and(Err(not_done(absent(key), self.cluster.json)));
            }
        }
        done
    }
}

impl DeleteArgs {
    fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let key = self.key.as_bytes();
        let outcome = match &self.if_value {
            None => match cluster.delete(key).map_err(failed)? {
                true => CasOutcome::Swapped,
                false => CasOutcome::Differs(None),
            },
            Some(expected) => {
                let expected = Some(expected.as_bytes());
                let swap = cluster.compare_and_swap(key, expected, None);
                swap.map_err(failed)?
            }
        };
        if self.cluster.json {
            let removed = outcome == CasOutcome::Swapped;
            print_json(&serde_json::json!({ "key": json::text(key), "deleted": removed }));
        }
        finish(&self.key, &outcome, self.cluster.json)
    }
}

impl PutArgs {
    fn run(self) -> Result<(), Failure> {
        let value = match self.value == "-" {
            true => load::read_value()?,
            false => self.value.as_bytes().to_vec(),
        };
        let cluster = self.cluster.connect()?;
        let key = self.key.as_bytes();
        let expected = self.if_value.as_deref().map(OsStr::as_bytes);
        let (outcome, existed) = match (self.if_absent, expected) {
            (false, None) => {
                let existed = cluster.put(key, &value).map_err(failed)?;
                (CasOutcome::Swapped, existed)
            }
            (_, expected) => {
                let swap = cluster.compare_and_swap(key, expected, Some(&value));
                let outcome = swap.map_err(failed)?;
                let existed = match &outcome {
                    CasOutcome::Swapped => expected.is_some(),
                    CasOutcome::Differs(found) => found.is_some(),
                };
                (outcome, existed)
            }
        };
        if self.cluster.json {
            let object = serde_json::json!({
                "key": json::text(key), "stored": outcome == CasOutcome::Swapped, "existed": existed,
            });
            print_json(&object);
        }
        match self.if_absent && existed {
            true => {
                let text = format!("the tree has the key {:?} already", self.key);
                Err(not_done(text, self.cluster.json))
            }
            false => finish(&self.key, &outcome, self.cluster.json),
        }
    }
}

/// Returns the result of a conditional write, which has been printed as JSON if `is_json`.
fn finish(key: &OsStr, outcome: &CasOutcome<Vec<u8>>, is_json: bool) -> Result<(), Failure> {
    let text = match outcome {
        CasOutcome::Swapped => return Ok(()),
        CasOutcome::Differs(None) => absent(key),
        CasOutcome::Differs(Some(_)) => format!("the key {key:?} has another value"),
    };
    Err(not_done(text, is_json))
}

fn absent(key: &OsStr) -> String {
    format!("the tree has no key {key:?}")
}

impl ScanArgs {
    fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let from = self.from.as_deref().map(OsStr::as_bytes);
        let to = self.to.as_deref().map(OsStr::as_bytes);
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        let to = to.map_or(Bound::Unbounded, Bound::Excluded);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let scanned = cluster.scan_each(from, to, self.reverse, count, |key, value| {
            match self.cluster.json {
                true if self.keys_only => {
                    print_json(&serde_json::json!({ "key": json::text(key) }))
                }
                true => print_json(&serde_json::json!({
                    "key": json::text(key), "value": json::text(value),
                })),
                false if self.keys_only => write_bytes_or_end(&[key, b"\n"]),
                false => write_bytes_or_end(&[key, b"\t", value, b"\n"]),
            }
            true
        });
        scanned.map_err(failed)
    }
}

impl StatArgs {
    fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let info = cluster.info().map_err(failed)?;
        let (mut keys, mut bytes) = (0_u64, 0_u64);
        if self.keys {
            let all = Bound::Unbounded;
            let scanned = cluster.scan_each(all, all, false, usize::MAX, |_, value| {
                keys += 1;
                bytes += value.len() as u64;
                true
            });
            scanned.map_err(failed)?;
        }
        let counted = self.keys.then_some((keys, bytes));
        let stats = cluster.stats().map_err(failed)?;
        let tree = info.tree;
        if self.cluster.json {
            let servers = info
                .servers
                .iter()
                .zip(&info.addresses)
                .map(|(server, address)| {
                    serde_json::json!({
                        "address": address.to_string(), "generation": server.generation,
                        "host_bytes": server.host_bytes, "lock_bytes": server.lock_bytes,
                    })
                });
            print_json(&serde_json::json!({
                "servers": servers.collect::<Vec<_>>(), "key_bytes_max": tree.key_bytes_max,
                "leaving": info.leaving,
                "value_bytes_max": tree.value_bytes_max, "node_bytes": tree.node_bytes,
                "keys": counted.map(|(keys, _)| keys), "value_bytes": counted.map(|(_, bytes)| bytes),
                "compute": info.compute, "epoch": info.epoch, "round_trips": stats.round_trips,
                "read_retries": stats.read_retries,
            }));
            return Ok(());
        }
        println!(
            "tree: keys to {} bytes, values to {} bytes, nodes of {} bytes",
            tree.key_bytes_max, tree.value_bytes_max, tree.node_bytes
        );
        for (number, (server, address)) in info.servers.iter().zip(&info.addresses).enumerate() {
            if *address == ServerAddress::Left {
                println!("memory server {number} has left");
                continue;
            }
            println!(
                "memory server {number} at {address}: {} of host memory, {} of lock memory, generation {}{}",
                size::human(server.host_bytes),
                size::human(server.lock_bytes),
                server.generation,
                match info.leaving {
                    Some(leaving) if usize::from(leaving) == number => ", leaving",
                    _ => "",
                }
            );
        }
        if let Some((keys, bytes)) = counted {
            println!("{keys} keys, {} of values", size::human(bytes));
        }
        println!(
            "this client: compute server {}, epoch {}",
            info.compute, info.epoch
        );
        Ok(())
    }
}
