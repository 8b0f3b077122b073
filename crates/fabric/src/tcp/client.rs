//! [`TcpFabric`]: the fabric of one thread of a compute server, over TCP.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
#[cfg(feature = "libfabric")]
use std::net::SocketAddr;
use std::net::TcpStream;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use mio::Interest;

use super::ConnectError;
use super::buffer::InputBuffer;
use super::handshake::{FrameStream, StreamError};
use super::link::{LinkState, ServerLink};
use super::membership::{
    MadeConnection, Membership, MembershipState, TcpSettings, connect_all, connect_to, join,
    prepare_all,
};
use super::reactor::{EventSource, Reactor, WakeQueue};
use crate::fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
use crate::server::Caller;
use crate::service::{LEASE_SERVER, ServiceRequest, ServiceResponse};
use crate::wire::{
    Failure, Frame, FrameKind, Refusal, Role, WireError, decode_failure, decode_response,
    decode_results, encode_batch, encode_call,
};

/// A request that was posted.
struct PendingRequest {
    server: u16,
    /// The verbs of a batch; none for a call.
    verbs: Option<Vec<Verb>>,
    result: Option<Result<RequestResult, FabricError>>,
    waker: Option<Waker>,
}

enum RequestResult {
    Verbs(Vec<Verb>),
    Response(ServiceResponse),
}

/// A connection that a thread has made, or the reason why none can be made.
type NewConnection = (usize, Result<(TcpStream, InputBuffer), StreamError>);

/// The connections made by threads that the fabric has not taken yet.
struct Connector {
    made: Mutex<Vec<NewConnection>>,
    queue: Arc<WakeQueue>,
    is_closed: AtomicBool,
}

impl Connector {
    fn put(&self, connection: NewConnection) {
        let made = self.made.lock();
        made.unwrap_or_else(PoisonError::into_inner)
            .push(connection);
        self.queue.interrupt();
    }

    fn take(&self) -> Vec<NewConnection> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *made)
    }
}

struct FabricState {
    links: Vec<ServerLink>,
    requests: HashMap<u64, PendingRequest>,
    next_id: u64,
}

struct FabricShared {
    reactor: Reactor,
    /// Number of this source of events in the reactor.
    source: usize,
    membership: Membership,
    caller: Caller,
    state: RefCell<FabricState>,
    connector: Arc<Connector>,
}

/// The access of one thread of a compute server to memory servers over TCP. Clones share the connections.
///
/// After [`FabricError::Fenced`], or to use a server again after [`FabricError::Timeout`] or [`FabricError::Empty`],
/// connect again: a new fabric has a new epoch.
#[derive(Clone)]
pub struct TcpFabric(Rc<FabricShared>);

impl TcpFabric {
    /// Joins the cluster in a new epoch of the compute server, which ends all its earlier epochs, and connects to all
    /// memory servers. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// A server is not reachable, has another key or number, or the compute server's epochs are used up.
    pub fn connect(reactor: &Reactor, settings: TcpSettings) -> Result<TcpFabric, ConnectError> {
        let connected = TcpFabric::connect_as(reactor, settings, Role::Compute, |_| Ok(()))?;
        Ok(connected.0)
    }

    /// Like [`TcpFabric::connect`], as `role`. Prepares each connection by `prepare`, and returns the results, too.
    pub(super) fn connect_as<T>(
        reactor: &Reactor,
        settings: TcpSettings,
        role: Role,
        prepare: impl Fn(&mut FrameStream) -> Result<T, StreamError>,
    ) -> Result<(TcpFabric, Vec<Option<T>>), ConnectError> {
        /// Attempts to join. A lease server that has lost its memory learns from the members which epochs have ended.
        const JOINS_MAX: u32 = 8;
        let count = settings.servers.len();
        if count == 0 || count > usize::from(u16::MAX) + 1 {
            return Err(ConnectError::Servers { count });
        }
        let mut joins = 0;
        loop {
            let joined = join(&settings, role)?;
            let connected = connect_all(&settings, (role, joined), |_| None);
            joins += 1;
            if matches!(connected, Err(ConnectError::Refused(_, Refusal::Fenced)))
                && joins < JOINS_MAX
            {
                thread::sleep(settings.timeout / 16);
                continue;
            }
            let mut connected = connected?;
            let prepared = prepare_all(&settings, &mut connected, &prepare)?;
            let generations = connected.iter().map(|made| {
                let (_, challenge) = made.as_ref()?;
                Some(challenge.generation)
            });
            let membership = Membership(Arc::new(MembershipState {
                generations: generations.collect(),
                settings,
                role,
                first: joined,
                threads: AtomicU16::new(1),
                is_fenced: AtomicBool::new(false),
            }));
            let fabric = TcpFabric::start(reactor, membership, joined, connected);
            return Ok((fabric, prepared));
        }
    }

    /// Connects another thread of a process to all memory servers, in the process's epoch. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// A server is not reachable or has restarted, the epoch has ended, or the process has had 256 fabrics in it.
    pub fn connect_thread(
        reactor: &Reactor,
        membership: &Membership,
    ) -> Result<TcpFabric, ConnectError> {
        Ok(TcpFabric::connect_thread_as(reactor, membership, |_| Ok(()))?.0)
    }

    /// Like [`TcpFabric::connect_thread`]. Prepares each connection by `prepare`, and returns the results, too.
    pub(super) fn connect_thread_as<T>(
        reactor: &Reactor,
        membership: &Membership,
        prepare: impl Fn(&mut FrameStream) -> Result<T, StreamError>,
    ) -> Result<(TcpFabric, Vec<Option<T>>), ConnectError> {
        let caller = membership.next_thread()?;
        let MembershipState {
            settings,
            role,
            generations,
            ..
        } = &*membership.0;
        let mut connected = connect_all(settings, (*role, caller), |server| generations[server])?;
        let prepared = prepare_all(settings, &mut connected, &prepare)?;
        let membership = membership.clone();
        let fabric = TcpFabric::start(reactor, membership, caller, connected);
        Ok((fabric, prepared))
    }

    fn start(
        reactor: &Reactor,
        membership: Membership,
        caller: Caller,
        connected: Vec<Option<MadeConnection>>,
    ) -> TcpFabric {
        let links = connected.iter().zip(0..).map(|(made, server)| match made {
            Some((_, challenge)) => ServerLink::new(*challenge),
            None => ServerLink::unused(server),
        });
        let state = FabricState {
            links: links.collect(),
            requests: HashMap::new(),
            next_id: 0,
        };
        let shared = Rc::new_cyclic(|weak: &Weak<FabricShared>| FabricShared {
            reactor: reactor.clone(),
            source: reactor.add_source(weak.clone()),
            membership,
            caller,
            state: RefCell::new(state),
            connector: Arc::new(Connector {
                made: Mutex::default(),
                queue: reactor.queue(),
                is_closed: AtomicBool::new(false),
            }),
        });
        for (link, made) in connected.into_iter().enumerate() {
            let Some((stream, _)) = made else {
                continue;
            };
            let made = (link, Ok(stream.into_parts()));
            shared.state.borrow_mut().links[link].attempt = caller.attempt;
            shared.use_connection(made);
        }
        TcpFabric(shared)
    }

    /// Returns the process of this fabric, for its other threads.
    #[must_use]
    pub fn membership(&self) -> Membership {
        self.0.membership.clone()
    }

    /// Returns the number of the compute server.
    #[must_use]
    pub fn compute(&self) -> u16 {
        self.0.caller.compute
    }

    /// Returns the epoch of the compute server in which this fabric joined.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.0.caller.epoch
    }

    /// Returns the number of the thread in its process.
    pub(crate) fn thread(&self) -> u8 {
        self.0.caller.thread
    }

    /// Returns the reactor that drives this fabric.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        &self.0.reactor
    }

    /// Returns the duration of the compute server's lease without renewal.
    #[must_use]
    pub fn lease_ns(&self) -> Nanos {
        let state = self.0.state.borrow();
        state.links[usize::from(LEASE_SERVER)].challenge.lease_ns
    }

    /// Returns the sizes and the generation of memory server `server`, as it reported them at the connection; zeros if it is not used.
    #[must_use]
    pub fn server_info(&self, server: u16) -> ServerInfo {
        let state = self.0.state.borrow();
        let challenge = &state.links[usize::from(server)].challenge;
        ServerInfo {
            generation: challenge.generation,
            host_bytes: challenge.host_bytes,
            lock_bytes: challenge.lock_bytes,
        }
    }

    /// Returns whether `server` is used: it was given with an address.
    #[must_use]
    pub fn uses(&self, server: u16) -> bool {
        let servers = &self.0.membership.0.settings.servers;
        servers
            .get(usize::from(server))
            .is_some_and(Option::is_some)
    }

    /// Returns the address of `server`, if it is used.
    #[cfg(feature = "libfabric")]
    pub(crate) fn address(&self, server: u16) -> Option<SocketAddr> {
        self.0.membership.0.settings.servers[usize::from(server)]
    }

    /// Returns the time after which a request fails.
    #[cfg(feature = "libfabric")]
    pub(crate) fn timeout(&self) -> Duration {
        self.0.membership.0.settings.timeout
    }

    /// Returns the error with which all requests to `server` fail because its connection is lost, if it is.
    #[cfg(feature = "libfabric")]
    pub(crate) fn lost(&self, server: u16) -> Option<FabricError> {
        if self.0.is_fenced() {
            return Some(FabricError::Fenced);
        }
        match self.0.state.borrow().links.get(usize::from(server))?.state {
            LinkState::Lost(error) => Some(error),
            LinkState::Connecting | LinkState::Connected(_) => None,
        }
    }

    /// Returns whether verbs for `server` that are executed in another way follow all that this fabric has posted (FABRIC-2), and
    /// the server is connected and has not ended the epoch.
    pub(crate) fn is_idle(&self, server: u16) -> bool {
        let state = self.0.state.borrow();
        !self.0.is_fenced() && state.links[usize::from(server)].is_idle()
    }

    /// Makes all later requests fail with [`FabricError::Fenced`]: the epoch has ended.
    pub(crate) fn end_epoch(&self) {
        self.0.fence();
    }

    /// Leaves the epoch, so that another process can use it (LEASE-6 of [`server`](crate::server)). All later requests of all threads
    /// fail with [`FabricError::Fenced`]. Without this call, the end of the process uses up one of the number's 63
    /// epochs.
    ///
    /// No thread may hold a lock or have a request under way, and no request may have failed with [`FabricError::Timeout`],
    /// because its effects may come later.
    ///
    /// # Errors
    /// The lease server does not answer, or has ended the epoch.
    pub async fn leave(&self) -> Result<(), FabricError> {
        let left = self.call(LEASE_SERVER, ServiceRequest::Leave);
        self.0.fence();
        left.await.map(|_| ())
    }

    /// Renews the lease of the compute server, four times in its duration. One thread of a process does that. Returns the error
    /// when that fails, or `None` when all other handles of the fabric were dropped.
    pub async fn keep_alive(self) -> Option<FabricError> {
        self.keep_alive_while(|| true).await
    }

    /// Like [`TcpFabric::keep_alive`], but returns `None` also when `is_used` returns false.
    pub async fn keep_alive_while(self, is_used: impl Fn() -> bool) -> Option<FabricError> {
        let every = self.lease_ns() / 4;
        let reactor = self.0.reactor.clone();
        let fabric = Rc::downgrade(&self.0);
        drop(self);
        let sleep = move || reactor.sleep(every);
        loop {
            let fabric = TcpFabric(fabric.upgrade().filter(|_| is_used())?);
            if let Err(error) = fabric.call(LEASE_SERVER, ServiceRequest::Renew).await {
                return Some(error);
            }
            drop(fabric);
            sleep().await;
        }
    }
}

/// The sizes and the generation of a memory server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerInfo {
    /// The generation: the number of its start.
    pub generation: u64,
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes of lock memory.
    pub lock_bytes: u64,
}

impl FabricShared {
    fn is_fenced(&self) -> bool {
        self.membership.0.is_fenced.load(Ordering::SeqCst)
    }

    fn fence(&self) {
        self.membership.0.is_fenced.store(true, Ordering::SeqCst);
    }

    /// Begins to use a connection, or gives up the server if it cannot have one.
    fn use_connection(&self, (number, made): NewConnection) {
        let mut state = self.state.borrow_mut();
        let link = &mut state.links[number];
        let server = link.server;
        let lost = match made {
            Ok((stream, input)) => match self.register(number, stream) {
                Ok(stream) => return link.connected(stream, input),
                Err(_) => FabricError::Timeout { server },
            },
            Err(StreamError::Refused(Refusal::Fenced)) => FabricError::Fenced,
            Err(StreamError::OtherGeneration) => FabricError::Empty { server },
            Err(_) => FabricError::Timeout { server },
        };
        let ended = link.close(LinkState::Lost(lost));
        if lost == FabricError::Fenced {
            self.fence();
        }
        state.end_all(ended, lost);
    }

    fn register(&self, link: usize, stream: TcpStream) -> std::io::Result<mio::net::TcpStream> {
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        let (registry, token) = self.reactor.socket_token(self.source, link);
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(stream)
    }

    /// Closes a connection and starts a thread that makes another (TCP-2, TCP-3).
    fn reconnect(&self, state: &mut FabricState, number: usize) {
        let Some(address) = self.membership.0.settings.servers[number] else {
            return; // A server that is not used has no connection.
        };
        let link = &mut state.links[number];
        let server = link.server;
        // The thread numbers its attempts from here. A server may have admitted an attempt that seems to have failed.
        link.attempt += ATTEMPTS_MAX;
        let (attempt, generation) = (link.attempt, link.challenge.generation);
        if self.membership.0.role == Role::OneSided {
            // The memory server has closed the endpoint with the connection.
            let lost = FabricError::Timeout { server };
            let ended = link.close(LinkState::Lost(lost));
            return state.end_all(ended, lost);
        }
        let ended = link.close(LinkState::Connecting);
        state.end_all(ended, FabricError::Timeout { server });
        let settings = self.membership.0.settings.clone();
        let (role, first) = (self.membership.0.role, self.caller);
        let connector = Arc::clone(&self.connector);
        let run = move || {
            let connect = |tries| {
                let caller = Caller {
                    attempt: attempt + tries,
                    ..first
                };
                connect_to(
                    &settings,
                    (server, address),
                    (role, caller),
                    Some(generation),
                )
            };
            if let Some(made) = connect_again(&connector, connect) {
                connector.put((number, made));
            }
        };
        let thread = thread::Builder::new().name("farbank-connect".into());
        if thread.spawn(run).is_err() {
            let lost = FabricError::Timeout { server };
            state.links[number].state = LinkState::Lost(lost);
        }
    }

    /// Posts a request. Returns the future of its result.
    fn post(
        self: &Rc<FabricShared>,
        server: u16,
        verbs: Option<Vec<Verb>>,
        encode: impl FnOnce(u64, Option<&[Verb]>, &mut Vec<u8>) -> bool,
    ) -> RequestFuture {
        let mut state = self.state.borrow_mut();
        state.next_id += 1;
        let id = state.next_id;
        let deadline = self.reactor.now() + self.membership.0.settings.timeout.as_nanos() as Nanos;
        let posted = match state.links.get_mut(usize::from(server)) {
            _ if self.is_fenced() => Err(FabricError::Fenced),
            None => Err(FabricError::Unlisted { server }),
            Some(link) => link.post(id, deadline, verbs.is_some(), |out| {
                encode(id, verbs.as_deref(), out)
            }),
        };
        let request = PendingRequest {
            server,
            verbs,
            result: posted.err().map(Err),
            waker: None,
        };
        state.requests.insert(id, request);
        RequestFuture {
            shared: Rc::clone(self),
            id,
        }
    }
}

/// Number of the failure with which a memory server closes the endpoint of a connection. No request has it.
const ENDPOINT_ENDED: u64 = 0;
/// Maximum attempts of one thread to connect: enough for years.
const ATTEMPTS_MAX: u64 = 1 << 32;

/// Connects until it succeeds or cannot any more. Returns `None` if the fabric is closed.
fn connect_again(
    connector: &Connector,
    connect: impl Fn(u64) -> Result<MadeConnection, ConnectError>,
) -> Option<Result<(TcpStream, InputBuffer), StreamError>> {
    const PAUSES_MS: [u64; 5] = [1, 10, 50, 200, 500];
    for tries in 0..ATTEMPTS_MAX {
        if connector.is_closed.load(Ordering::SeqCst) {
            break;
        }
        match connect(tries) {
            Ok((stream, _)) => return Some(Ok(stream.into_parts())),
            Err(ConnectError::OtherGeneration(_)) => {
                return Some(Err(StreamError::OtherGeneration));
            }
            Err(ConnectError::Refused(_, Refusal::TooManyConnections)) => {}
            Err(ConnectError::Refused(_, refusal)) => {
                return Some(Err(StreamError::Refused(refusal)));
            }
            Err(ConnectError::BadKey(_)) => return Some(Err(StreamError::BadKey)),
            Err(_) => {}
        }
        let pause = PAUSES_MS[(tries as usize).min(PAUSES_MS.len() - 1)];
        thread::sleep(Duration::from_millis(pause));
    }
    None
}

impl FabricState {
    /// Ends requests with `error`.
    fn end_all(&mut self, ids: Vec<u64>, error: FabricError) {
        for id in ids {
            if let Some(request) = self.requests.get_mut(&id) {
                request.end(Err(error));
            }
        }
    }
}

impl PendingRequest {
    fn end(&mut self, result: Result<RequestResult, FabricError>) {
        if self.result.is_none() {
            self.result = Some(result);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    /// Ends the request with the response `frame`. Returns the error if the response is invalid.
    fn answer(&mut self, frame: Frame<'_>) -> Result<(), StreamError> {
        let server = self.server;
        let result = match (frame.kind, &mut self.verbs) {
            (FrameKind::Results, Some(verbs)) => {
                decode_results(frame.body, verbs)?;
                Ok(RequestResult::Verbs(std::mem::take(verbs)))
            }
            (FrameKind::Response, None) => {
                Ok(RequestResult::Response(decode_response(frame.body)?))
            }
            (FrameKind::Failure, _) => Err(match decode_failure(frame.body)? {
                Failure::Fenced => FabricError::Fenced,
                Failure::Rejected => FabricError::Rejected { server },
                Failure::Unavailable => FabricError::Timeout { server },
            }),
            (kind, _) => {
                return Err(WireError::Field {
                    name: "kind",
                    found: kind as u64,
                }
                .into());
            }
        };
        self.end(result);
        Ok(())
    }
}

impl EventSource for FabricShared {
    fn before_wait(&self, now: Nanos) -> Option<Nanos> {
        for made in self.connector.take() {
            self.use_connection(made);
        }
        let mut state = self.state.borrow_mut();
        let mut next = None;
        for number in 0..state.links.len() {
            if state.links[number].send().is_err() {
                self.reconnect(&mut state, number);
            }
            next = [next, self.expire(&mut state, number, now)]
                .into_iter()
                .flatten()
                .min();
        }
        next
    }

    fn ready(&self, number: usize) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let requests = &mut state.requests;
        let mut is_fenced = false;
        let link = &mut state.links[number];
        let received = link.receive(|frame| {
            // The future of a request that has no entry was dropped.
            let Some(request) = requests.get_mut(&frame.id) else {
                is_fenced |= frame.id == ENDPOINT_ENDED
                    && frame.kind == FrameKind::Failure
                    && decode_failure(frame.body)? == Failure::Fenced;
                return Ok(());
            };
            request.answer(frame)?;
            is_fenced |= matches!(request.result, Some(Err(FabricError::Fenced)));
            Ok(())
        });
        let sent = received.and_then(|()| Ok(link.send()?));
        if is_fenced {
            self.fence();
        }
        if sent.is_err() {
            self.reconnect(state, number);
        }
    }
}

impl FabricShared {
    /// Ends requests whose time is over. Returns the next deadline of the link.
    fn expire(&self, state: &mut FabricState, number: usize, now: Nanos) -> Option<Nanos> {
        let (requests, links) = (&mut state.requests, &mut state.links);
        let is_over = |id| {
            let request = requests.get(&id);
            request.is_none_or(|request: &PendingRequest| request.result.is_some())
        };
        let deadline = links[number].oldest(is_over)?;
        if deadline > now {
            return Some(deadline);
        }
        if matches!(links[number].state, LinkState::Connected(_)) {
            self.reconnect(state, number);
            return None;
        }
        // A thread connects already, so no request was sent. Later requests end too: so none of them is sent.
        let (server, ended) = {
            let link = &mut links[number];
            (link.server, link.close(LinkState::Connecting))
        };
        state.end_all(ended, FabricError::Timeout { server });
        None
    }
}

impl Drop for FabricShared {
    fn drop(&mut self) {
        self.connector.is_closed.store(true, Ordering::SeqCst);
    }
}

/// The future of a request. Dropping it does not end the request.
struct RequestFuture {
    shared: Rc<FabricShared>,
    id: u64,
}

impl Future for RequestFuture {
    type Output = Result<RequestResult, FabricError>;

    fn poll(self: Pin<&mut RequestFuture>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state.borrow_mut();
        let request = state.requests.get_mut(&self.id);
        let request = request.expect("the request exists as long as its future");
        match request.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                request.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for RequestFuture {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().requests.remove(&self.id);
    }
}

impl Fabric for TcpFabric {
    fn servers(&self) -> u16 {
        self.0.membership.0.settings.servers.len() as u16
    }

    fn caps(&self, server: u16) -> FabricCaps {
        let state = self.0.state.borrow();
        // No request is sent to a server that is unlisted or not used, so its sizes do not matter.
        let link = state.links.get(usize::from(server));
        let link = link.unwrap_or(&state.links[usize::from(LEASE_SERVER)]);
        FabricCaps {
            ordered: true,
            masked_cas: true,
            lock_bytes: link.challenge.lock_bytes,
            read_line_order: true,
        }
    }

    fn batch(
        &self,
        server: u16,
        verbs: Vec<Verb>,
    ) -> impl Future<Output = Result<Vec<Verb>, FabricError>> {
        assert!(
            !verbs.is_empty() && verbs.iter().all(|verb| verb.at().server() == server),
            "a batch must have verbs, all of them on server {server}: {verbs:?}"
        );
        let request = self.0.post(server, Some(verbs), |id, verbs, out| {
            encode_batch(id, verbs.unwrap_or_default(), out)
        });
        async move {
            match request.await? {
                RequestResult::Verbs(verbs) => Ok(verbs),
                RequestResult::Response(_) => unreachable!("a batch is answered by results"),
            }
        }
    }

    /// [`ServiceRequest::Join`] ends the epoch of this fabric.
    fn call(
        &self,
        server: u16,
        ask: ServiceRequest,
    ) -> impl Future<Output = Result<ServiceResponse, FabricError>> {
        let request = self.0.post(server, None, |id, _, out| {
            encode_call(id, ask, out);
            true
        });
        async move {
            match request.await? {
                RequestResult::Response(response) => Ok(response),
                RequestResult::Verbs(_) => unreachable!("a call is answered by a response"),
            }
        }
    }

    fn now(&self) -> Nanos {
        self.0.reactor.now()
    }

    fn sleep(&self, ns: Nanos) -> impl Future<Output = ()> {
        self.0.reactor.sleep(ns)
    }
}
