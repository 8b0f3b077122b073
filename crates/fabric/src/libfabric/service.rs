//! [`LibfabricService`]: the part of a memory server that serves its memory by endpoints.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use farbank_pm::Medium;
use farbank_pm::media::Mapped;

use super::LibfabricError;
use super::endpoint::{Completion, Endpoint, Region};
use super::library::{Library, Near};
use super::transfers::limits;
use crate::wire::EndpointName;

/// Serves the memory of a memory server by endpoints of one provider.
pub(crate) struct LibfabricService {
    library: Arc<Library>,
    provider: String,
    /// Locked by the endpoint that executes verbs (LIBFABRIC-2).
    executing: Mutex<()>,
}

impl fmt::Debug for LibfabricService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LibfabricService({})", self.provider)
    }
}

impl LibfabricService {
    /// Prepares endpoints of `provider` that serve the memory behind byte `from` of `medium`, and opens one to see what it can.
    ///
    /// # Errors
    /// libfabric is not installed, or has no such provider that can do all that the fabric needs.
    pub(crate) fn start(
        provider: &str,
        medium: &Mapped,
        from: u64,
    ) -> Result<LibfabricService, LibfabricError> {
        let library = Library::load()?;
        let info = library.find(provider, None)?;
        if !info.is_manual() {
            let provider = info.name();
            return Err(LibfabricError::NotFenced { provider });
        }
        let service = LibfabricService {
            library,
            provider: info.name(),
            executing: Mutex::new(()),
        };
        let tried = service.open(medium, from, None, 1)?;
        limits(&tried.endpoint)?;
        Ok(service)
    }

    /// Returns the name of the provider.
    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    /// Opens an endpoint at the address `own` of this host. Peers that know `key` can use the memory behind byte `from` of `medium`.
    pub(crate) fn open<'m>(
        &self,
        medium: &'m Mapped,
        from: u64,
        own: Option<IpAddr>,
        key: u64,
    ) -> Result<ServedEndpoint<'m>, LibfabricError> {
        let info = self.library.find(&self.provider, own.map(Near::Own))?;
        let bytes = medium.len().saturating_sub(from) as usize;
        // SAFETY: the medium is mapped from its first byte to its last as long as it exists, and is only accessed by atomic
        // operations and copies that may race. `from` is inside, or no byte is registered.
        let region = unsafe {
            let start = medium.start().add(from as usize);
            Region::new(NonNull::new_unchecked(start), bytes)
        };
        Ok(ServedEndpoint {
            endpoint: Endpoint::open(info, Some((region, key)))?,
            ended: Vec::new(),
        })
    }

    /// Executes the verbs that have arrived at `endpoint`. Returns whether the thread may wait for its descriptor.
    pub(crate) fn execute(&self, endpoint: &mut ServedEndpoint<'_>) -> bool {
        // No holder of the lock panics.
        let _executing = self
            .executing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ServedEndpoint { endpoint, ended } = endpoint;
        // A memory server posts no operations.
        ended.clear();
        endpoint.progress(ended);
        endpoint.may_wait()
    }
}

/// An endpoint of a memory server for one thread of a compute server.
pub(crate) struct ServedEndpoint<'m> {
    endpoint: Endpoint<'m>,
    ended: Vec<Completion>,
}

impl ServedEndpoint<'_> {
    /// Returns what the compute server needs to use the memory.
    pub(crate) fn name(&self) -> Result<EndpointName, LibfabricError> {
        let region = self.endpoint.region();
        let (base, key) = region.map_or((0, 0), |region| (region.base, region.key));
        Ok(EndpointName {
            provider: self.endpoint.info().name(),
            base,
            key,
            address: self.endpoint.address()?,
        })
    }

    /// Returns the descriptor that becomes readable when verbs have arrived.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.endpoint.descriptor()
    }
}
