//! Reads of the list of memory servers by the clients of a compute server, which share a copy of it (`server_list`).

use farbank_fabric::Fabric;
use farbank_fabric::service::LEASE_SERVER;

use crate::client::Client;
use crate::error::TreeError;
use crate::server_list::{ListCopy, ServerList, read_list};

impl<F: Fabric> Client<F> {
    /// Returns the list, if necessary read again (TREE-LIST-1).
    pub(crate) async fn server_list(&self) -> Result<ServerList, TreeError> {
        let now = self.fabric().now();
        let (list, outdated) = self.list_copy(|copy| {
            let is_old = now.saturating_sub(copy.read_ns) > self.config().list_ns_max;
            (copy.list, copy.created.filter(|_| is_old))
        });
        match outdated {
            Some(created) => self.read_server_list(created).await,
            None => Ok(list),
        }
    }

    /// Reads the list of a tree that was created on `created` servers, and keeps the copy.
    pub(crate) async fn read_server_list(&self, created: u16) -> Result<ServerList, TreeError> {
        self.reachable(LEASE_SERVER)?;
        let now = self.fabric().now();
        let list = read_list(self.fabric(), created).await?;
        self.list_copy(|copy| *copy = ListCopy::read(list, created, now));
        Ok(list)
    }
}
