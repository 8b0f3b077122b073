//! [`TcpServer`]: a memory server that listens on a socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbank_pm::{Medium, PersistCtx};
use socket2::{SockRef, TcpKeepalive};

use super::WaitMode;
use super::buffer::InputBuffer;
use super::execution::execute;
use super::handshake::{FrameStream, HANDSHAKE_TIMEOUT, StreamError, accept, nonce};
use super::member;
#[cfg(feature = "libfabric")]
use super::one_sided;
use super::sockets::OpenSockets;
use crate::server::{Caller, MemoryNode};
use crate::wire::{
    Challenge, FRAME_BYTES_MAX, FrameKind, Hello, Refusal, Report, Role, SharedKey, encode_refusal,
};

/// Maximum time for which a server waits until a client takes its results.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without traffic after which the kernel asks whether the client's host exists.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The settings of a [`TcpServer`].
#[derive(Clone, Debug)]
pub struct TcpServerSettings {
    /// The key that all servers of the cluster share.
    pub key: SharedKey,
    /// Address of the lease server, for a server that is not the lease server.
    pub lease_server: Option<SocketAddr>,
    /// Maximum number of connections. Each has a thread.
    pub connections_max: usize,
    /// How the threads wait for requests.
    pub wait: WaitMode,
}

impl TcpServerSettings {
    /// Returns the settings of a lease server with `key`.
    #[must_use]
    pub fn new(key: SharedKey) -> TcpServerSettings {
        TcpServerSettings {
            key,
            lease_server: None,
            connections_max: 1024,
            wait: WaitMode::Block,
        }
    }
}

/// A memory server that serves connections, until it is dropped.
pub struct TcpServer {
    address: SocketAddr,
    sockets: Arc<OpenSockets>,
    threads: Vec<JoinHandle<()>>,
}

impl TcpServer {
    /// Serves `node` on `listener`.
    ///
    /// # Errors
    /// The address of `listener` is unknown, or a thread cannot be started.
    pub fn start<M: Medium>(
        listener: TcpListener,
        node: Arc<MemoryNode<M>>,
        settings: TcpServerSettings,
    ) -> io::Result<TcpServer> {
        let address = listener.local_addr()?;
        let sockets = Arc::new(OpenSockets::new());
        let mut server = TcpServer {
            address,
            sockets: Arc::clone(&sockets),
            threads: Vec::new(),
        };
        if let Some(lease_server) = settings.lease_server {
            let (node, sockets) = (Arc::clone(&node), Arc::clone(&sockets));
            let key = settings.key.clone();
            let run = move || member::run(&node, &sockets, lease_server, &key);
            let thread = thread::Builder::new().name("farbank-member".into());
            server.threads.push(thread.spawn(run)?);
        }
        node.begin_sharing(address);
        let run = move || {
            accept_all(&listener, &node, &sockets, &settings);
            node.memory().end_sharing(&mut PersistCtx::new(0));
        };
        let thread = thread::Builder::new().name("farbank-accept".into());
        server.threads.push(thread.spawn(run)?);
        Ok(server)
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.sockets.close_all();
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect_timeout(&self.address, HANDSHAKE_TIMEOUT);
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn accept_all<M: Medium>(
    listener: &TcpListener,
    node: &Arc<MemoryNode<M>>,
    sockets: &Arc<OpenSockets>,
    settings: &TcpServerSettings,
) {
    /// Pause after a failed accept, for example without free file descriptors.
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        let accepted = listener.accept();
        if sockets.is_stopping() {
            return;
        }
        let Ok((stream, _)) = accepted else {
            thread::sleep(PAUSE);
            continue;
        };
        match sockets.register(&stream, settings.connections_max) {
            Ok(Some(socket)) => {
                let (node, settings) = (Arc::clone(node), settings.clone());
                let run = move || {
                    // The client sees the end of the connection.
                    let _ = serve(
                        &node,
                        FrameStream::new(stream, HANDSHAKE_TIMEOUT),
                        &settings,
                    );
                    // The stop waits for the socket, and its caller may open the medium again.
                    drop(node);
                    drop(socket);
                };
                let thread = thread::Builder::new().name("farbank-verbs".into());
                // Without a thread the connection is closed.
                let _ = thread.spawn(run);
            }
            Ok(None) => refuse(stream, Refusal::TooManyConnections),
            Err(_) => {}
        }
    }
}

fn refuse(mut stream: TcpStream, refusal: Refusal) {
    let mut out = Vec::new();
    encode_refusal(refusal, &mut out);
    // The client may have closed it.
    let _ = stream.write_all(&out);
}

/// Serves a connection until it ends.
fn serve<M: Medium>(
    node: &MemoryNode<M>,
    mut stream: FrameStream,
    settings: &TcpServerSettings,
) -> Result<(), StreamError> {
    stream.stream.set_nodelay(true)?;
    stream.stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let memory = node.memory();
    let challenge = Challenge {
        server: memory.server(),
        generation: memory.generation(),
        host_bytes: memory.host_bytes(),
        lock_bytes: memory.lock_bytes(),
        lease_ns: node.leases().compute.as_nanos() as u64,
        nonce: nonce()?,
    };
    let mut ctx = PersistCtx::new(0);
    let admit = |hello: &Hello| match hello.role {
        Role::Compute if node.is_one_sided() => Err(Refusal::NeedsLibfabric),
        Role::OneSided if !node.is_one_sided() => Err(Refusal::NoLibfabric),
        Role::Compute | Role::OneSided => node.connect(&mut ctx, caller_of(hello)),
        Role::Member => node.admit_member(hello.number),
    };
    let hello = accept(&mut stream, &settings.key, &challenge, admit)?;
    // A connection to a host that has disappeared ends, and its thread with it.
    let alive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / 4);
    SockRef::from(&stream.stream).set_tcp_keepalive(&alive)?;
    if hello.role == Role::Member {
        return serve_member(node, stream, hello.number);
    }
    let (socket, input) = stream.into_parts();
    #[cfg(feature = "libfabric")]
    if hello.role == Role::OneSided && hello.epoch > 0 {
        return one_sided::serve(node, &caller_of(&hello), (socket, input), settings.wait);
    }
    let mut requests = RequestLoop {
        node,
        caller: caller_of(&hello),
        ctx,
        input,
        out: Vec::new(),
    };
    match settings.wait {
        WaitMode::Block => requests.run(socket),
        WaitMode::Spin => {
            socket.set_nonblocking(true)?;
            requests.run(SpinningStream(socket))
        }
    }
}

fn caller_of(hello: &Hello) -> Caller {
    Caller {
        compute: hello.number,
        epoch: hello.epoch,
        process: hello.process,
        thread: hello.thread,
        attempt: hello.attempt,
    }
}

fn serve_member<M: Medium>(
    node: &MemoryNode<M>,
    mut stream: FrameStream,
    member: u16,
) -> Result<(), StreamError> {
    let mut ctx = PersistCtx::new(0);
    let mut out = Vec::new();
    loop {
        let report =
            stream.receive(|frame| Ok(Report::decode(frame.expect(FrameKind::Report)?)?))?;
        let Some(grant) = node.report(&mut ctx, member, &report) else {
            return Err(StreamError::Refused(Refusal::NotLeaseServer));
        };
        out.clear();
        grant.encode(&mut out);
        stream.send(&out)?;
    }
}

/// The requests of one connection.
struct RequestLoop<'a, M> {
    node: &'a MemoryNode<M>,
    caller: Caller,
    ctx: PersistCtx,
    input: InputBuffer,
    out: Vec<u8>,
}

impl<M: Medium> RequestLoop<'_, M> {
    /// Executes requests in the order of their arrival until the connection ends (TCP-1).
    fn run(&mut self, mut socket: impl Read + Write) -> Result<(), StreamError> {
        loop {
            while let Some((frame, len)) = self.input.frame()? {
                let (node, caller) = (self.node, &self.caller);
                execute(node, caller, &mut self.ctx, frame, &mut self.out)?;
                self.input.consume(len);
                if self.out.len() >= FRAME_BYTES_MAX {
                    self.flush(&mut socket)?;
                }
            }
            self.flush(&mut socket)?;
            if self.input.fill(&mut socket)? == 0 {
                return Ok(());
            }
        }
    }

    fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

/// A non-blocking socket whose reads and writes poll.
struct SpinningStream(TcpStream);

impl SpinningStream {
    /// Repeats `once` until it does not block, for at most `timeout`.
    fn spin<T>(
        timeout: Option<Duration>,
        mut once: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        /// Attempts before the thread lets another one run.
        const SPINS: u32 = 64;
        let started = Instant::now();
        for spins in (1..=SPINS).cycle() {
            match once() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            if timeout.is_some_and(|timeout| started.elapsed() > timeout) {
                break;
            }
            thread::yield_now();
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Read for SpinningStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        SpinningStream::spin(None, || self.0.read(to))
    }
}

impl Write for SpinningStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SpinningStream::spin(Some(WRITE_TIMEOUT), || self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
