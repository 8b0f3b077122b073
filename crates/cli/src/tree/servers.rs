//! `farbank tree add-server` and `remove-server`: memory servers join and leave a tree.

use clap::Args;
use farbank_fabric::shm::ServerAddress;
use farbank_tree::{Cluster, DrainCounts};

use super::{ClusterArgs, EXAMPLES, failed, print_json};
use crate::common::Failure;
use crate::common::progress::CommandProgress;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddServerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The new memory server. It was started with the next number, and has empty memory.
    #[arg(value_name = "IP:PORT|libfabric:IP:PORT")]
    server: ServerAddress,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RemoveServerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The memory server: its number, or its address. Server 0 cannot leave.
    #[arg(value_name = "NUMBER|ADDRESS")]
    server: ServerName,
    /// End an earlier removal that was interrupted: the server stays in the tree.
    #[arg(long)]
    cancel: bool,
}

/// A memory server on the command line.
#[derive(Clone, Debug)]
enum ServerName {
    Number(u16),
    Address(ServerAddress),
}

impl std::str::FromStr for ServerName {
    type Err = <ServerAddress as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<ServerName, Self::Err> {
        match text.parse() {
            Ok(number) => Ok(ServerName::Number(number)),
            Err(_) => text.parse().map(ServerName::Address),
        }
    }
}

impl AddServerArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let number = cluster.add_server(self.server.clone()).map_err(failed)?;
        match self.cluster.json {
            true => print_json(&serde_json::json!({
                "number": number, "address": self.server.to_string(),
            })),
            false => println!("memory server {number} at {} is in use", self.server),
        }
        Ok(())
    }
}

impl RemoveServerArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let cluster = self.cluster.connect()?;
        let number = self.server.number(&cluster)?;
        if self.cancel {
            cluster.keep_server(number).map_err(failed)?;
            match self.cluster.json {
                true => print_json(&serde_json::json!({ "number": number, "left": false })),
                false => println!("memory server {number} stays in the tree"),
            }
            return Ok(());
        }
        let mut progress = CommandProgress::new("removing the server");
        let show = move |counts: &DrainCounts| progress.tell(|| described(counts));
        let counts = cluster.remove_server(number, show).map_err(failed)?;
        match self.cluster.json {
            true => print_json(&serde_json::json!({
                "number": number, "left": true, "passes": counts.passes, "visits": counts.visits,
                "nodes_moved": counts.nodes_moved, "values_moved": counts.values_moved,
                "addresses_replaced": counts.addresses_replaced,
            })),
            false => println!(
                "memory server {number} has left the tree and can be ended: {} nodes and {} values were moved",
                counts.nodes_moved, counts.values_moved
            ),
        }
        Ok(())
    }
}

/// Returns the text of the progress of a removal.
fn described(counts: &DrainCounts) -> String {
    let DrainCounts {
        passes,
        visits,
        nodes_moved,
        values_moved,
        ..
    } = counts;
    format!(
        "pass {}, {visits} nodes visited: {nodes_moved} nodes and {values_moved} values moved",
        passes + 1
    )
}

impl ServerName {
    /// Returns the number of the server in the tree.
    fn number(&self, cluster: &Cluster) -> Result<u16, Failure> {
        let address = match self {
            ServerName::Number(number) => return Ok(*number),
            ServerName::Address(address) => address,
        };
        let addresses = cluster.info().map_err(failed)?.addresses;
        match addresses.iter().position(|known| known == address) {
            Some(number) => Ok(number as u16),
            None => Err(Failure::failed(format!(
                "the tree has no memory server at {address}"
            ))),
        }
    }
}
