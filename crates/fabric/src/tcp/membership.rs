//! [`Membership`]: a process of a compute server in one epoch, and the connections that it makes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use super::ConnectError;
use super::handshake::{FrameStream, StreamError, connect, nonce};
use crate::server::{Caller, FIRST_ATTEMPT};
use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};
use crate::wire::{
    ANY_COMPUTE, Challenge, FrameKind, Hello, Role, SharedKey, decode_response, encode_call,
};

/// The settings of a [`TcpFabric`](super::TcpFabric).
#[derive(Clone, Debug)]
pub struct TcpSettings {
    /// Addresses of all memory servers, in the order of their numbers. The first is the lease server. `None`: the server is not used any
    /// more, and all requests to it fail with [`FabricError::Unlisted`](crate::FabricError::Unlisted).
    pub servers: Vec<Option<SocketAddr>>,
    /// Number of the compute server, below 1023. No other process may use it at the same time: a join ends the earlier
    /// epochs of the number. `None`: the lease server selects a number that is not in use.
    pub compute: Option<u16>,
    /// The key that all servers of the cluster share.
    pub key: SharedKey,
    /// Time after which a request to a server that does not answer fails with [`FabricError::Timeout`](crate::FabricError::Timeout).
    pub timeout: Duration,
}

/// A process of a compute server in one epoch, which [`TcpFabric::connect`](super::TcpFabric::connect) has begun. Its other threads get fabrics by
/// [`TcpFabric::connect_thread`](super::TcpFabric::connect_thread). They share the epoch and its lease.
#[derive(Clone)]
pub struct Membership(pub(super) Arc<MembershipState>);

pub(super) struct MembershipState {
    pub(super) settings: TcpSettings,
    pub(super) role: Role,
    /// The first thread.
    pub(super) first: Caller,
    /// Generations of the memory servers that are used.
    pub(super) generations: Vec<Option<u64>>,
    /// Threads that have a number.
    pub(super) threads: AtomicU16,
    /// Whether a server has said that the epoch has ended, or the process has left it.
    pub(super) is_fenced: AtomicBool,
}

impl Membership {
    /// Returns whether the process sends its verbs to endpoints of libfabric.
    #[cfg(feature = "libfabric")]
    pub(crate) fn is_one_sided(&self) -> bool {
        self.0.role == Role::OneSided
    }

    /// Returns the caller of the next thread.
    pub(super) fn next_thread(&self) -> Result<Caller, ConnectError> {
        let thread = self.0.threads.fetch_add(1, Ordering::Relaxed);
        match u8::try_from(thread) {
            Ok(thread) => Ok(Caller {
                thread,
                attempt: FIRST_ATTEMPT,
                ..self.0.first
            }),
            Err(_) => {
                self.0.threads.store(THREADS_MAX, Ordering::Relaxed);
                Err(ConnectError::Threads)
            }
        }
    }
}

/// Fabrics of one process in one epoch.
const THREADS_MAX: u16 = 256;

/// A new connection to a memory server.
pub(super) type MadeConnection = (FrameStream, Challenge);

/// Connects to all servers that are used, as `caller`. `generation` returns the generation that a server must have, if it is known.
pub(super) fn connect_all(
    settings: &TcpSettings,
    caller: (Role, Caller),
    generation: impl Fn(usize) -> Option<u64>,
) -> Result<Vec<Option<MadeConnection>>, ConnectError> {
    let servers = settings.servers.iter().enumerate();
    let connected = servers.map(|(server, address)| {
        let connect = |address| {
            let generation = generation(server);
            connect_to(settings, (server as u16, address), caller, generation)
        };
        address.map(connect).transpose()
    });
    connected.collect()
}

/// Connects to `server` as `caller`, if it has `generation`.
pub(super) fn connect_to(
    settings: &TcpSettings,
    (server, address): (u16, SocketAddr),
    (role, caller): (Role, Caller),
    generation: Option<u64>,
) -> Result<MadeConnection, ConnectError> {
    let hello = Hello {
        role,
        server,
        number: caller.compute,
        epoch: caller.epoch,
        process: caller.process,
        thread: caller.thread,
        attempt: caller.attempt,
        nonce: nonce().map_err(|error| ConnectError::Io(address, error))?,
    };
    let connected = connect(address, settings.timeout, &settings.key, &hello, generation);
    connected.map_err(|error| error.at(address))
}

/// Prepares a new connection to each memory server that is used by `prepare`.
pub(super) fn prepare_all<T>(
    settings: &TcpSettings,
    connected: &mut [Option<MadeConnection>],
    prepare: impl Fn(&mut FrameStream) -> Result<T, StreamError>,
) -> Result<Vec<Option<T>>, ConnectError> {
    let streams = connected.iter_mut().zip(&settings.servers);
    let prepared = streams.map(|(made, address)| match (made, address) {
        (Some((stream, _)), Some(address)) => {
            let prepared = prepare(stream).map_err(|error| error.at(*address));
            prepared.map(Some)
        }
        _ => Ok(None),
    });
    prepared.collect()
}

/// Begins a new epoch of the compute server, or continues one that was left. Returns its first connection.
pub(super) fn join(settings: &TcpSettings, role: Role) -> Result<Caller, ConnectError> {
    let address = settings.servers[usize::from(LEASE_SERVER)];
    let address = address.ok_or(ConnectError::NoLeaseServer)?;
    let joining = Caller {
        compute: settings.compute.unwrap_or(ANY_COMPUTE),
        epoch: 0,
        process: 0,
        thread: 0,
        attempt: 0,
    };
    let (mut stream, _) = connect_to(settings, (LEASE_SERVER, address), (role, joining), None)?;
    let mut out = Vec::new();
    encode_call(1, ServiceRequest::Join, &mut out);
    let sent = stream.send(&out).map_err(StreamError::Io);
    let answered = sent.and_then(|()| {
        stream.receive(|frame| Ok(decode_response(frame.expect(FrameKind::Response)?)?))
    });
    match answered.map_err(|error| error.at(address))? {
        ServiceResponse::Joined {
            compute,
            epoch,
            process,
        } => Ok(Caller {
            compute,
            epoch,
            process,
            thread: 0,
            attempt: FIRST_ATTEMPT,
        }),
        _ => Err(match settings.compute {
            Some(compute) => ConnectError::EpochsUsed { compute },
            None => ConnectError::NoNumber,
        }),
    }
}
