//! The hosts of a cluster's processes.

use super::cycle_fault::ClusterNode;
use crate::network::{Host, Network, NetworkError};

/// A host for each process.
pub(super) struct ClusterHosts {
    network: Network,
    memory: Vec<Host>,
    compute: Vec<Host>,
}

impl ClusterHosts {
    /// Creates hosts for `memory` memory servers and `compute` compute processes.
    pub(super) fn new(memory: usize, compute: usize) -> Result<ClusterHosts, NetworkError> {
        let mut network = Network::new()?;
        let mut add = |count| -> Result<Vec<Host>, NetworkError> {
            (0..count).map(|_| network.add_host()).collect()
        };
        let (memory, compute) = (add(memory)?, add(compute)?);
        Ok(ClusterHosts {
            network,
            memory,
            compute,
        })
    }

    pub(super) fn of(&self, node: ClusterNode) -> &Host {
        host_of(&self.memory, &self.compute, node)
    }

    /// Cuts off the host of `node`.
    pub(super) fn cut(&mut self, node: ClusterNode) -> Result<(), NetworkError> {
        let host = host_of(&self.memory, &self.compute, node);
        self.network.cut(host)
    }

    /// Connects the host of `node` to the others again.
    pub(super) fn join(&mut self, node: ClusterNode) -> Result<(), NetworkError> {
        let host = host_of(&self.memory, &self.compute, node);
        self.network.join(host)
    }
}

fn host_of<'a>(memory: &'a [Host], compute: &'a [Host], node: ClusterNode) -> &'a Host {
    match node {
        ClusterNode::Memory(number) => &memory[number],
        ClusterNode::Compute(number) => &compute[number],
    }
}
