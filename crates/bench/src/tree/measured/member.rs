//! The threads of a compute server: the first joins the cluster, the others get their fabrics from it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};

use farbank_fabric::shm::{ShmFabric, ShmMembership};
use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_tree::{Compute, Config, SharedCompute};

use super::cluster::MemoryServers;
use super::{AllClientResults, compute_server, failed};
use crate::figure::Error;

/// A compute server that has joined, for its other threads.
type JoinedServer = (ShmMembership, SharedCompute);

/// The part of a thread in the beginning and the end of its compute server.
pub(super) struct ServerMember {
    /// Number of the thread in the compute server.
    pub(super) number: u16,
    role: MemberRole,
    /// Passed by all threads after their last operation.
    end: Arc<Barrier>,
}

enum MemberRole {
    /// It joins, tells the others, renews the lease, and leaves.
    First(Vec<Sender<JoinedServer>>),
    Other(Receiver<JoinedServer>),
}

/// Returns the members of a compute server of `threads` threads.
pub(super) fn members(threads: u16) -> Vec<ServerMember> {
    let end = Arc::new(Barrier::new(threads.into()));
    let (senders, receivers): (Vec<_>, Vec<_>) = (1..threads).map(|_| channel()).unzip();
    let others = receivers.into_iter().map(MemberRole::Other);
    let roles = [MemberRole::First(senders)].into_iter().chain(others);
    let members = (0..).zip(roles).map(|(number, role)| ServerMember {
        number,
        role,
        end: Arc::clone(&end),
    });
    members.collect()
}

impl ServerMember {
    /// Connects the thread.
    pub(super) fn join(
        &mut self,
        cluster: &MemoryServers,
        config: &Config,
        wait: WaitMode,
    ) -> Result<(ShmFabric, Compute<ShmFabric>), Error> {
        match &mut self.role {
            MemberRole::First(others) => {
                // Dropped also after an error, so that no other thread waits.
                let others = std::mem::take(others);
                let reactor = Reactor::new(wait).map_err(failed)?;
                let fabric = cluster.connect(&reactor)?;
                let compute = compute_server(&fabric, config);
                for other in others {
                    // Its thread waits for it.
                    let _ = other.send((fabric.membership(), compute.shared()));
                }
                Ok((fabric, compute))
            }
            MemberRole::Other(first) => {
                let joined = first.recv();
                let (membership, shared) = joined
                    .map_err(|_| failed("the first thread of the compute server has ended"))?;
                let reactor = Reactor::new(wait).map_err(failed)?;
                let fabric = ShmFabric::connect_thread(&reactor, &membership).map_err(failed)?;
                let compute = Compute::on_thread(fabric.clone(), &shared);
                Ok((fabric, compute))
            }
        }
    }

    /// Ends the thread's part. The first one leaves the epoch after the last operation of all.
    pub(super) fn end(
        self,
        ran: Result<(AllClientResults, ShmFabric), Error>,
    ) -> Result<AllClientResults, Error> {
        self.end.wait();
        let (loaded, fabric) = ran?;
        if let MemberRole::First(_) = self.role {
            fabric.reactor().block_on(fabric.leave()).map_err(failed)?;
        }
        Ok(loaded)
    }
}
