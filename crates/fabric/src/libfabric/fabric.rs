//! [`LibfabricFabric`]: the fabric of one thread of a compute server, over libfabric.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mio::Interest;
use mio::unix::SourceFd;

use super::LibfabricError;
use super::batches::{Batches, RemoteServer};
use super::endpoint::Endpoint;
use super::library::{Library, Near};
use super::transfers::Transfers;
use crate::addr::GAddr;
use crate::fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};
use crate::tcp::{ConnectError, EventSource, Membership, Reactor, TcpFabric, TcpSettings};
use crate::wire::EndpointName;

/// The reason why a compute server could not connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum LibfabricConnectError {
    /// A connection by TCP failed.
    Connect(ConnectError),
    /// libfabric cannot be used.
    Library(LibfabricError),
}

impl fmt::Display for LibfabricConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibfabricConnectError::Connect(error) => error.fmt(f),
            LibfabricConnectError::Library(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LibfabricConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LibfabricConnectError::Connect(error) => Some(error),
            LibfabricConnectError::Library(error) => Some(error),
        }
    }
}

impl From<ConnectError> for LibfabricConnectError {
    fn from(error: ConnectError) -> LibfabricConnectError {
        LibfabricConnectError::Connect(error)
    }
}

impl From<LibfabricError> for LibfabricConnectError {
    fn from(error: LibfabricError) -> LibfabricConnectError {
        LibfabricConnectError::Library(error)
    }
}

struct LibfabricShared {
    control: TcpFabric,
    /// Time after which a batch without an answer fails.
    timeout: Duration,
    batches: RefCell<Batches>,
}

/// The access of one thread of a compute server to memory servers over libfabric. Clones share the endpoint. See [`TcpFabric`] about
/// errors; after [`FabricError::Timeout`] a server is used again only by a new fabric.
#[derive(Clone)]
pub struct LibfabricFabric(Rc<LibfabricShared>);

impl LibfabricFabric {
    /// Joins the cluster as [`TcpFabric::connect`] does, and connects to the endpoints of all memory servers. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// As for [`TcpFabric::connect`]; also, libfabric is not installed, or does not have the provider of the memory servers.
    pub fn connect(
        reactor: &Reactor,
        settings: TcpSettings,
    ) -> Result<LibfabricFabric, LibfabricConnectError> {
        // Before the join, which uses up an epoch.
        Library::load()?;
        let (control, endpoints) = TcpFabric::connect_one_sided(reactor, settings)?;
        LibfabricFabric::start(control, &endpoints)
    }

    /// Connects another thread of a process, in the process's epoch and with an endpoint of its own.
    ///
    /// # Errors
    /// As for [`TcpFabric::connect_thread`].
    pub fn connect_thread(
        reactor: &Reactor,
        membership: &Membership,
    ) -> Result<LibfabricFabric, LibfabricConnectError> {
        let (control, endpoints) = TcpFabric::connect_thread_one_sided(reactor, membership)?;
        LibfabricFabric::start(control, &endpoints)
    }

    fn start(
        control: TcpFabric,
        endpoints: &[Option<EndpointName>],
    ) -> Result<LibfabricFabric, LibfabricConnectError> {
        let mut providers = endpoints.iter().flatten().map(|name| &name.provider);
        let first = providers.next().ok_or(ConnectError::NoLeaseServer)?;
        if let Some(other) = providers.find(|other| *other != first) {
            let (first, other) = (first.clone(), other.clone());
            return Err(LibfabricError::OtherProvider { first, other }.into());
        }
        let near = control.address(LEASE_SERVER);
        let near = near.map(|address| Near::Peer(address.ip()));
        let info = Library::load()?.find(first, near)?;
        let endpoint = Endpoint::open(info, None)?;
        let servers = endpoints.iter().zip(0..).map(|(name, server)| {
            let Some(name) = name else {
                return Ok(None);
            };
            Ok(Some(RemoteServer {
                peer: endpoint.add_peer(&name.address)?,
                base: name.base,
                key: name.key,
                info: control.server_info(server),
            }))
        });
        let servers = servers.collect::<Result<Vec<_>, LibfabricError>>()?;
        let batches = Batches::new(Transfers::new(endpoint)?, servers);
        let shared = Rc::new(LibfabricShared {
            timeout: control.timeout(),
            batches: RefCell::new(batches),
            control,
        });
        shared.reach_all()?;
        shared.register()?;
        Ok(LibfabricFabric(shared))
    }

    /// Returns the process of this fabric, for its other threads.
    #[must_use]
    pub fn membership(&self) -> Membership {
        self.0.control.membership()
    }

    /// Returns the fabric of the connections by TCP.
    #[must_use]
    pub fn control(&self) -> &TcpFabric {
        &self.0.control
    }

    /// Returns the epoch of the compute server in which this fabric joined.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.0.control.epoch()
    }

    /// Returns the name of the provider.
    #[must_use]
    pub fn provider(&self) -> String {
        let batches = self.0.batches.borrow();
        batches.transfers().endpoint().info().name()
    }

    /// Returns the length of the longest write of whole words of which a compute server that dies leaves nothing or all, in bytes.
    #[must_use]
    pub fn whole_write_bytes_max(&self) -> usize {
        self.0.batches.borrow().transfers().limits().write_words
    }

    /// Posts a batch. Returns the future of its result.
    pub(crate) fn post(&self, server: u16, verbs: Vec<Verb>) -> BatchFuture {
        assert!(
            !verbs.is_empty() && verbs.iter().all(|verb| verb.at().server() == server),
            "a batch must have verbs, all of them on server {server}: {verbs:?}"
        );
        let mut batches = self.0.batches.borrow_mut();
        if let Some(error) = self.0.control.lost(server) {
            batches.lose(server, error);
        }
        let deadline = self.now() + self.0.timeout.as_nanos() as Nanos;
        BatchFuture {
            number: batches.post(server, verbs, deadline),
            shared: Rc::clone(&self.0),
        }
    }
}

impl LibfabricShared {
    /// Ends the batches to servers whose connection is lost.
    fn notice_losses(&self, batches: &mut Batches) {
        for server in 0..self.control.servers() {
            if !batches.is_lost(server)
                && let Some(error) = self.control.lost(server)
            {
                batches.lose(server, error);
            }
        }
    }

    /// Reads a word of each memory server, so that the endpoints are connected before the first request.
    fn reach_all(&self) -> Result<(), ConnectError> {
        const PAUSE: Duration = Duration::from_micros(100);
        let began = Instant::now();
        let mut batches = self.batches.borrow_mut();
        for server in 0..self.control.servers() {
            let Some(address) = self.control.address(server) else {
                continue;
            };
            let verbs = vec![Verb::read(GAddr::lock(server, 0), 8)];
            let number = batches.post(server, verbs, Nanos::MAX);
            let unreached = |kind: io::ErrorKind| {
                let error = io::Error::new(kind, "the endpoint of libfabric does not answer");
                ConnectError::Io(address, error)
            };
            loop {
                batches.progress();
                match batches.poll(number, &mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(_)) => break,
                    Poll::Ready(Err(_)) => return Err(unreached(io::ErrorKind::ConnectionRefused)),
                    Poll::Pending if began.elapsed() > self.timeout => {
                        return Err(unreached(io::ErrorKind::TimedOut));
                    }
                    Poll::Pending => thread::sleep(PAUSE),
                }
            }
            batches.drop_future(number);
        }
        Ok(())
    }

    /// Lets the reactor drive the endpoint.
    fn register(self: &Rc<LibfabricShared>) -> Result<(), LibfabricConnectError> {
        let weak: Weak<LibfabricShared> = Rc::downgrade(self);
        let reactor = self.control.reactor();
        let source = reactor.add_source(weak);
        let batches = self.batches.borrow();
        let descriptor = batches.transfers().endpoint().descriptor().as_raw_fd();
        let (registry, token) = reactor.socket_token(source, 0);
        let address = self.control.address(LEASE_SERVER);
        let address = address.ok_or(ConnectError::NoLeaseServer)?;
        let registered = registry.register(&mut SourceFd(&descriptor), token, Interest::READABLE);
        registered.map_err(|error| ConnectError::Io(address, error).into())
    }
}

impl Drop for LibfabricShared {
    fn drop(&mut self) {
        let batches = self.batches.get_mut();
        let descriptor = batches.transfers().endpoint().descriptor().as_raw_fd();
        let (registry, _) = self.control.reactor().socket_token(0, 0);
        // It was not registered if the connection failed.
        let _ = registry.deregister(&mut SourceFd(&descriptor));
    }
}

impl EventSource for LibfabricShared {
    fn before_wait(&self, now: Nanos) -> Option<Nanos> {
        /// Pause after which a provider without resources is asked again.
        const STALLED_NS: Nanos = 1_000_000;
        let mut batches = self.batches.borrow_mut();
        self.notice_losses(&mut batches);
        let may_wait = !batches.progress() && batches.transfers().endpoint().may_wait();
        let next = batches.expire(now);
        let again = match (may_wait, batches.is_stalled()) {
            (false, _) => Some(now),
            (true, true) => Some(now + STALLED_NS),
            (true, false) => None,
        };
        [next, again].into_iter().flatten().min()
    }

    fn ready(&self, _: usize) {
        self.batches.borrow_mut().progress();
    }
}

/// The future of a batch. Dropping it does not end the batch.
pub(crate) struct BatchFuture {
    shared: Rc<LibfabricShared>,
    number: u64,
}

impl Future for BatchFuture {
    type Output = Result<Vec<Verb>, FabricError>;

    fn poll(self: Pin<&mut BatchFuture>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut batches = self.shared.batches.borrow_mut();
        batches.poll(self.number, context)
    }
}

impl Drop for BatchFuture {
    fn drop(&mut self) {
        let mut batches = self.shared.batches.borrow_mut();
        batches.drop_future(self.number);
    }
}

impl Fabric for LibfabricFabric {
    fn servers(&self) -> u16 {
        self.0.control.servers()
    }

    fn caps(&self, server: u16) -> FabricCaps {
        FabricCaps {
            ordered: self.0.batches.borrow().is_ordered(),
            masked_cas: false,
            ..self.0.control.caps(server)
        }
    }

    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        self.post(server, verbs)
    }

    fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> impl Future<Output = Result<ServiceResponse, FabricError>> {
        self.0.control.call(server, ask)
    }

    fn now(&self) -> Nanos {
        self.0.control.now()
    }

    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()> {
        self.0.control.sleep(ns)
    }
}
