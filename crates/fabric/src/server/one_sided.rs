//! The part of a memory server whose verbs arrive at endpoints of libfabric.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use farbank_pm::Medium;
use farbank_pm::media::Mapped;

use super::MemoryNode;
use super::admission::Caller;
use crate::libfabric::{LibfabricError, LibfabricService, ServedEndpoint};
use crate::wire::Failure;

/// A [`LibfabricService`] on the mapped medium of a memory server.
pub(super) struct MappedService<M> {
    service: LibfabricService,
    mapped: fn(&M) -> &Mapped,
}

impl MemoryNode<Mapped> {
    /// Serves verbs by endpoints of libfabric's `provider` only, and no longer over the connections. The memory must have been opened with
    /// [`MemorySettings::whole_locks`](super::MemorySettings::whole_locks).
    ///
    /// # Errors
    /// libfabric is not installed, or its provider does not have what the fabric needs.
    ///
    /// # Panics
    /// If the memory has locks of another format.
    pub fn over_libfabric(mut self, provider: &str) -> Result<MemoryNode<Mapped>, LibfabricError> {
        assert!(
            self.memory.has_whole_locks(),
            "the memory was opened for locks that are parts of words"
        );
        let medium = self.memory.medium();
        let service = LibfabricService::start(provider, medium, self.memory.verbs_at())?;
        self.libfabric = Some(MappedService {
            service,
            mapped: |medium| medium,
        });
        Ok(self)
    }
}

impl<M: Medium> MemoryNode<M> {
    /// Returns the provider of libfabric by which the server serves its memory.
    #[must_use]
    pub fn provider(&self) -> Option<&str> {
        let libfabric = self.libfabric.as_ref()?;
        Some(libfabric.service.provider())
    }

    /// Opens an endpoint at the address `own` of this host, whose memory has `key`. Returns `None` without libfabric.
    pub(crate) fn open_endpoint(
        &self,
        own: IpAddr,
        key: u64,
    ) -> Option<Result<ServedEndpoint<'_>, LibfabricError>> {
        let MappedService { service, mapped } = self.libfabric.as_ref()?;
        let medium = mapped(self.memory.medium());
        Some(service.open(medium, self.memory.verbs_at(), Some(own), key))
    }

    /// Executes the verbs of `caller` that have arrived at its `endpoint` (LIBFABRIC-1). Returns whether its thread may wait for more. On
    /// `Err` the caller may not execute verbs, and its endpoint must be closed.
    pub(crate) fn execute_endpoint(
        &self,
        caller: &Caller,
        endpoint: &mut ServedEndpoint<'_>,
    ) -> Result<bool, Failure> {
        let libfabric = self.libfabric.as_ref().ok_or(Failure::Rejected)?;
        let executed = self
            .admission
            .execute(caller, || libfabric.service.execute(endpoint));
        self.batches.fetch_add(1, Ordering::Relaxed);
        executed
    }
}
