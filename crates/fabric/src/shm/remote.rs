//! [`RemoteFabric`]: the fabric to memory servers whose memory is not mapped.

use std::future::Future;

use super::ShmConnectError;
use crate::fabric::{Fabric, FabricCaps, FabricError, Verb};
#[cfg(feature = "libfabric")]
use crate::libfabric::LibfabricFabric;
use crate::tcp::{Membership, Reactor, TcpFabric, TcpSettings};

/// The fabric of one thread to memory servers whose memory is not mapped. Calls go over TCP in any case.
pub(super) struct RemoteFabric {
    pub(super) control: TcpFabric,
    /// The way of verbs, if it is not TCP.
    #[cfg(feature = "libfabric")]
    libfabric: Option<LibfabricFabric>,
}

impl From<TcpFabric> for RemoteFabric {
    fn from(control: TcpFabric) -> RemoteFabric {
        RemoteFabric {
            control,
            #[cfg(feature = "libfabric")]
            libfabric: None,
        }
    }
}

impl RemoteFabric {
    /// Joins the cluster. `by_libfabric`: the verbs go over libfabric.
    pub(super) fn connect(
        reactor: &Reactor,
        settings: TcpSettings,
        by_libfabric: bool,
    ) -> Result<RemoteFabric, ShmConnectError> {
        match by_libfabric {
            false => Ok(TcpFabric::connect(reactor, settings)?.into()),
            #[cfg(feature = "libfabric")]
            true => Ok(LibfabricFabric::connect(reactor, settings)?.into()),
            #[cfg(not(feature = "libfabric"))]
            true => Err(ShmConnectError::WithoutLibfabric),
        }
    }

    /// Connects another thread of a process.
    pub(super) fn connect_thread(
        reactor: &Reactor,
        membership: &Membership,
    ) -> Result<RemoteFabric, ShmConnectError> {
        #[cfg(feature = "libfabric")]
        if membership.is_one_sided() {
            return Ok(LibfabricFabric::connect_thread(reactor, membership)?.into());
        }
        Ok(TcpFabric::connect_thread(reactor, membership)?.into())
    }

    /// Returns the length of the longest write of which a compute server that dies leaves nothing or all, if there is a limit.
    pub(super) fn whole_write_bytes_max(&self) -> Option<usize> {
        #[cfg(feature = "libfabric")]
        return Some(self.libfabric.as_ref()?.whole_write_bytes_max());
        #[cfg(not(feature = "libfabric"))]
        None
    }

    pub(super) fn caps(&self, server: u16) -> FabricCaps {
        #[cfg(feature = "libfabric")]
        if let Some(libfabric) = &self.libfabric {
            return libfabric.caps(server);
        }
        self.control.caps(server)
    }

    #[cfg(feature = "libfabric")]
    pub(super) fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        let sent = match &self.libfabric {
            Some(libfabric) => Ok(libfabric.post(server, verbs)),
            None => Err(self.control.batch(server, verbs)),
        };
        async move {
            match sent {
                Ok(by_libfabric) => by_libfabric.await,
                Err(by_tcp) => by_tcp.await,
            }
        }
    }

    #[cfg(not(feature = "libfabric"))]
    pub(super) fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        self.control.batch(server, verbs)
    }
}

#[cfg(feature = "libfabric")]
impl From<LibfabricFabric> for RemoteFabric {
    fn from(libfabric: LibfabricFabric) -> RemoteFabric {
        RemoteFabric {
            control: libfabric.control().clone(),
            libfabric: Some(libfabric),
        }
    }
}
