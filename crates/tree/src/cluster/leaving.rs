//! A memory server that leaves the tree while clients use it.
//!
//! ```text
//!   leaving ──▶ three lease times ──▶ nodes and values move (`drain`) ──▶ has left ──▶ three lease times ──▶ leaving: none
//!   splits put nothing there          until a pass changes nothing        sessions end, and begin without the server
//! ```
//!
//! # Invariants
//! TREE-LEAVE-1  A server has left when nothing leads to it any more (TREE-DRAIN-3). Its number is not used again.
//! TREE-LEAVE-2  A session looks at the list four times in a lease time (TREE-JOIN-2), and ends if it uses a server that has left. So
//!     when the server is cleared as leaving, either no session uses it, or the session's lease has ended.
//!
//! # Crash argument
//! The client that removes a server can be killed after any step. The server stays in the list as leaving: splits put nothing there,
//! and no other server can join or leave. The next removal of the same server repeats the steps; or [`keep_server`] ends them. Nodes that
//! have moved stay on the other servers. Their old memory is lost.

use farbank_fabric::Fabric;
use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::shm::ShmFabric;

use super::ClusterError;
use super::descriptor::TreeDescriptor;
use super::joining::{as_owner_of_list, wait_for_sessions};
use super::session::compute_server;
use crate::client::Compute;
use crate::drain::DrainCounts;
use crate::error::TreeError;
use crate::server_list::{ListCopy, ServerList, read_list, write_left, write_numbers};

/// Moves everything from `server`, and removes it from the list of servers.
pub(super) async fn remove_server(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    server: u16,
    progress: &mut dyn FnMut(&DrainCounts),
) -> Result<DrainCounts, ClusterError> {
    let remove = async {
        let list = changeable_list(fabric, tree, server).await?;
        let mut counts = DrainCounts::default();
        if !list.has_left(server) {
            counts = drain_server(fabric, tree, list, server, progress).await?;
            write_left(fabric, &list, server).await?;
        } else if list.leaving.is_none() {
            return Ok(counts);
        }
        wait_for_sessions(fabric).await;
        set_leaving(fabric, list, None).await?;
        Ok(counts)
    };
    as_owner_of_list(fabric, remove).await
}

/// Gives `server` nodes again, after a removal that was interrupted.
pub(super) async fn keep_server(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    server: u16,
) -> Result<(), ClusterError> {
    let keep = async {
        let list = changeable_list(fabric, tree, server).await?;
        match list.has_left(server) {
            true => Err(ClusterError::HasLeft { server }),
            false => set_leaving(fabric, list, None).await,
        }
    };
    as_owner_of_list(fabric, keep).await
}

/// Reads the list of servers, and checks that no server but `server` is joining or leaving.
async fn changeable_list(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    server: u16,
) -> Result<ServerList, ClusterError> {
    let list = read_list(fabric, tree.servers).await?;
    if server == LEASE_SERVER {
        return Err(ClusterError::LeaseServerLeaves);
    }
    if list.in_use < list.announced {
        let server = list.in_use;
        return Err(ClusterError::OtherJoins { server });
    }
    if server >= list.announced {
        return Err(ClusterError::NoServer { server });
    }
    match list.leaving {
        Some(other) if other != server => Err(ClusterError::OtherLeaves { server: other }),
        _ => Ok(list),
    }
}

async fn set_leaving(
    fabric: &ShmFabric,
    list: ServerList,
    leaving: Option<u16>,
) -> Result<(), ClusterError> {
    Ok(write_numbers(fabric, &list.with_leaving(leaving)).await?)
}

/// Moves everything from `server`.
async fn drain_server(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    list: ServerList,
    server: u16,
    progress: &mut dyn FnMut(&DrainCounts),
) -> Result<DrainCounts, ClusterError> {
    let leaving = Some(server);
    set_leaving(fabric, list, leaving).await?;
    let copy = ListCopy::read(list.with_leaving(leaving), tree.servers, fabric.now());
    let compute = compute_server(fabric, tree, copy);
    let client = Compute::on_thread(fabric.clone(), &compute).client();
    let drained = client.drain(server, progress).await;
    if !matches!(drained, Err(TreeError::Fabric(_))) {
        client.leave_spare().await?;
    }
    Ok(drained?)
}
