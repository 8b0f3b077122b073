//! The thread of a memory server that serves one thread of a compute server whose verbs arrive at an endpoint of libfabric.
//!
//! The connection carries the request for the endpoint, and calls. The end of one is the end of the other.

use std::io::{self, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use farbank_pm::{Medium, PersistCtx};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::WaitMode;
use super::buffer::InputBuffer;
use super::execution::execute;
use super::handshake::{StreamError, nonce};
use crate::libfabric::ServedEndpoint;
use crate::server::{Caller, MemoryNode};
use crate::wire::{Failure, FrameKind, encode_failure};

/// Longest wait for verbs. A provider may not signal all that it has to do.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Longest wait for verbs at a new endpoint. A provider may not signal the arrival of a connection.
const CONNECTING_WAIT_MAX: Duration = Duration::from_millis(1);
/// Time for which an endpoint is new.
const CONNECTING: Duration = Duration::from_secs(1);

/// Serves the connection `stream` of `caller` and its endpoint until one of them ends.
pub(super) fn serve<M: Medium>(
    node: &MemoryNode<M>,
    caller: &Caller,
    (mut socket, input): (TcpStream, InputBuffer),
    wait: WaitMode,
) -> Result<(), StreamError> {
    let own = socket.local_addr()?.ip();
    let mut connection = OneSidedConnection {
        node,
        caller,
        ctx: PersistCtx::new(0),
        input,
        out: Vec::new(),
        endpoint: None,
        opened: Instant::now(),
    };
    loop {
        connection.execute_frames(own)?;
        socket.write_all(&connection.out)?;
        connection.out.clear();
        let may_wait = match connection.execute_verbs() {
            Ok(may_wait) => may_wait && wait == WaitMode::Block,
            Err(failure) => {
                encode_failure(0, failure, &mut connection.out);
                return Ok(socket.write_all(&connection.out)?);
            }
        };
        let endpoint = connection.endpoint.as_ref();
        let wait_max = match connection.opened.elapsed() < CONNECTING {
            _ if !may_wait => Duration::ZERO,
            true => CONNECTING_WAIT_MAX,
            false => WAIT_MAX,
        };
        if wait_for_either(&socket, endpoint, wait_max)? && connection.input.fill(&mut socket)? == 0
        {
            return Ok(());
        }
    }
}

struct OneSidedConnection<'a, M> {
    node: &'a MemoryNode<M>,
    caller: &'a Caller,
    ctx: PersistCtx,
    input: InputBuffer,
    out: Vec<u8>,
    endpoint: Option<ServedEndpoint<'a>>,
    /// Time at which the endpoint was opened.
    opened: Instant,
}

impl<M: Medium> OneSidedConnection<'_, M> {
    /// Executes the requests that have arrived on the connection.
    fn execute_frames(&mut self, own: IpAddr) -> Result<(), StreamError> {
        while let Some((frame, len)) = self.input.frame()? {
            if frame.kind == FrameKind::OpenEndpoint {
                self.endpoint = None;
                self.opened = Instant::now();
                self.endpoint = open(self.node, own, frame.id, &mut self.out)?;
            } else {
                execute(self.node, self.caller, &mut self.ctx, frame, &mut self.out)?;
            }
            self.input.consume(len);
        }
        Ok(())
    }

    /// Executes the verbs that have arrived at the endpoint. Returns whether the thread may wait for more.
    fn execute_verbs(&mut self) -> Result<bool, Failure> {
        match &mut self.endpoint {
            None => Ok(true),
            Some(endpoint) => self.node.execute_endpoint(self.caller, endpoint),
        }
    }
}

/// Opens an endpoint and answers request `id` with its name.
fn open<'a, M: Medium>(
    node: &'a MemoryNode<M>,
    own: IpAddr,
    id: u64,
    out: &mut Vec<u8>,
) -> io::Result<Option<ServedEndpoint<'a>>> {
    let mut key = [0; 8];
    key.copy_from_slice(&nonce()?[..8]);
    let opened = node.open_endpoint(own, u64::from_le_bytes(key));
    let named = opened.and_then(|opened| {
        let endpoint = opened.ok()?;
        let name = endpoint.name().ok()?;
        name.encode(id, out).then_some(endpoint)
    });
    if named.is_none() {
        // The provider worked at the start of the server, so it has no resources now.
        encode_failure(id, Failure::Unavailable, out);
    }
    Ok(named)
}

/// Waits until the connection or the endpoint has something, with an endpoint at most for `wait_max`. Returns whether the connection has.
fn wait_for_either(
    socket: &TcpStream,
    endpoint: Option<&ServedEndpoint<'_>>,
    wait_max: Duration,
) -> io::Result<bool> {
    let connection = PollFd::new(socket, PollFlags::IN);
    let is_bounded = endpoint.is_some() || wait_max.is_zero();
    let timeout = is_bounded.then_some(wait_max).map(|time| Timespec {
        tv_sec: 0,
        tv_nsec: time.subsec_nanos().into(),
    });
    let mut both = Vec::with_capacity(2);
    both.push(connection);
    if let Some(endpoint) = endpoint {
        both.push(PollFd::from_borrowed_fd(
            endpoint.descriptor(),
            PollFlags::IN,
        ));
    }
    match poll(&mut both, timeout.as_ref()) {
        Ok(_) => Ok(!both[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
