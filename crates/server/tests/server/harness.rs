//! A running server and its clients.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farbank_server::{Endpoint, Server, ServerHandle, ServerOptions};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::volatile::Volatile;

/// A test that waits longer than this hangs, and fails.
const HUNG: Duration = Duration::from_secs(60);

/// A server on a free port; stops when dropped.
pub(crate) struct Running {
    addr: SocketAddr,
    memcached_addr: SocketAddr,
    admin_addr: Option<SocketAddr>,
    tls_addr: Option<SocketAddr>,
    memcached_tls_addr: Option<SocketAddr>,
    pub(crate) store: Volatile,
    handle: ServerHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Running {
    /// Starts a server with one worker, so that all connections share a batch and an order.
    pub(crate) fn new() -> Running {
        Running::with(ServerOptions {
            workers: 1,
            ..ServerOptions::default()
        })
    }

    /// Starts a server with these options, except for the time slices. They last until all arrived requests are executed,
    /// and all keys above the limit are evicted. So requests that a test sends in one write are one batch even on a slow
    /// machine.
    pub(crate) fn with(options: ServerOptions) -> Running {
        let options = ServerOptions {
            time_slice: HUNG,
            eviction_slice: HUNG,
            ..options
        };
        Running::start(options)
    }

    /// Starts a server with these options.
    pub(crate) fn start(options: ServerOptions) -> Running {
        let store = Volatile::new();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut endpoints = vec![Endpoint::resp(addr), Endpoint::memcached(addr)];
        if !options.tls.cert_file.is_empty() {
            let plain = [Endpoint::resp(addr), Endpoint::memcached(addr)];
            endpoints.extend(plain.map(|endpoint| Endpoint {
                tls: true,
                ..endpoint
            }));
        }
        let server = Server::bind(&endpoints, options).unwrap();
        server.listen().unwrap();
        let [addr, memcached_addr] = [0, 1].map(|at| server.endpoints()[at].addr);
        let [tls_addr, memcached_tls_addr] =
            [2, 3].map(|at| server.endpoints().get(at).map(|endpoint| endpoint.addr));
        let (handle, admin_addr) = (server.handle(), server.admin_addr());
        let served = store.clone();
        let thread = std::thread::spawn(move || server.run(&served));
        Running {
            addr,
            memcached_addr,
            admin_addr,
            tls_addr,
            memcached_tls_addr,
            store,
            handle,
            thread: Some(thread),
        }
    }

    /// Connects a Redis client.
    pub(crate) fn connect(&self) -> Client {
        Running::connect_to(self.addr)
    }

    /// Connects a memcached client.
    pub(crate) fn connect_memcached(&self) -> Client {
        Running::connect_to(self.memcached_addr)
    }

    /// Connects to the admin port.
    pub(crate) fn connect_admin(&self) -> Client {
        Running::connect_to(self.admin_addr.expect("the options have an admin port"))
    }

    /// Connects a socket to memcached's port for TLS.
    pub(crate) fn connect_memcached_tls_socket(&self) -> TcpStream {
        let addr = self.memcached_tls_addr;
        Running::connect_to(addr.expect("the options have a certificate")).stream
    }

    /// Connects a socket to the port for TLS.
    pub(crate) fn connect_tls_socket(&self) -> TcpStream {
        let addr = self.tls_addr.expect("the options have a certificate");
        Running::connect_to(addr).stream
    }

    /// The port of Redis clients.
    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Connects a Redis client from the address `ip`.
    pub(crate) fn connect_from(&self, ip: [u8; 4]) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        socket.connect(&self.addr.into()).unwrap();
        Running::client(socket.into())
    }

    /// Connects a Redis client to a Unix socket.
    pub(crate) fn connect_unix(path: &Path) -> Client {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
        Running::client(socket.into())
    }

    fn connect_to(addr: SocketAddr) -> Client {
        Running::client(TcpStream::connect(addr).unwrap())
    }

    fn client(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(HUNG)).unwrap();
        stream.set_write_timeout(Some(HUNG)).unwrap();
        Client {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Waits until at least `count` batches are held.
    #[track_caller]
    pub(crate) fn await_held(&self, count: usize) {
        wait_until(|| self.store.held() >= count);
    }

    /// Whether clients can connect.
    pub(crate) fn accepts(&self) -> bool {
        TcpStream::connect(self.addr).is_ok()
    }

    /// Waits until the server has stopped, for example after SHUTDOWN.
    pub(crate) fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After a failed test, threads may still wait at the gate or for tickets.
        self.store.open_gate();
        self.store.let_go();
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < HUNG,
            "condition still false after {HUNG:?}"
        );
        std::thread::yield_now();
    }
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

/// Encodes a request as an array of bulk strings. Words are separated by blanks; `''` is the empty word.
pub(crate) fn request(line: &str) -> Vec<u8> {
    let words: Vec<_> = line
        .split_whitespace()
        .map(|w| if w == "''" { "" } else { w })
        .collect();
    request_of(&words)
}

/// Encodes a request of words that may contain blanks.
fn request_of(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    farbank_server::resp::request(&mut bytes, words);
    bytes
}

impl Client {
    /// Sends requests, separated by semicolons, in one write.
    pub(crate) fn send(&mut self, lines: &str) {
        let bytes: Vec<u8> = lines.split(';').flat_map(request).collect();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Sends a request of words that may contain blanks.
    pub(crate) fn send_words(&mut self, words: &[&str]) {
        self.send_raw(&request_of(words));
    }

    /// Sends bytes unchanged.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Closes the sending direction of the connection.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Reads as many bytes as `expected` has, and compares.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) {
        let mut got = vec![0; expected.len()];
        let mut at = 0;
        while at < got.len() {
            match self.stream.read(&mut got[at..]) {
                Ok(0) => break,
                Ok(n) => at += n,
                Err(error) => panic!("{error}, after {:?}", show(&got[..at])),
            }
            if got[..at] != expected.as_bytes()[..at] {
                break;
            }
        }
        assert_eq!(show(&got[..at]), show(expected.as_bytes()));
    }

    /// Sends requests and compares the replies. Ends with a round trip, which proves that no other reply follows.
    #[track_caller]
    pub(crate) fn ask(&mut self, lines: &str, expected: &str) {
        self.send(&format!("{lines};ECHO done"));
        self.expect(&format!("{expected}$4\r\ndone\r\n"));
    }

    /// Reads one line, without its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        show(&line[..line.len() - 2])
    }

    /// Reads everything until the server closes the connection.
    pub(crate) fn drain(&mut self) -> String {
        loop {
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => self.buffer.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(e) => panic!("{e}"),
            }
        }
        show(&std::mem::take(&mut self.buffer))
    }

    /// Sends a request and reads a bulk string.
    pub(crate) fn bulk(&mut self, line: &str) -> String {
        self.send(line);
        let len: usize = self.line()[1..].parse().unwrap();
        let mut body = vec![0; len + 2];
        self.stream.read_exact(&mut body).unwrap();
        show(&body[..len])
    }
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The fixed time of the store's clock in [`agree`], in milliseconds since 1970.
pub(crate) const NOW_MS: u64 = 1_700_000_000_000;

/// Sends the requests of each row to a store that is empty, and compares the replies. `/` stands for the end of a line.
pub(crate) fn agree(table: &[(&str, &str)]) {
    let server = Running::new();
    server.store.set_clock(NOW_MS);
    for (requests, replies) in table {
        let mut client = server.connect();
        client.ask("FLUSHALL", "+OK\r\n");
        client.ask(requests, &replies.replace('/', "\r\n"));
    }
}

/// The value of a field of INFO's section `section`.
#[track_caller]
pub(crate) fn field(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.bulk(&format!("INFO {section}"));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .to_owned()
}
