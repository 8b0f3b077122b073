//! The thread of a memory server that reports to the lease server, to get leases of its own (LEASE-1).

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farbank_pm::{Medium, PersistCtx};

use super::handshake::{StreamError, connect, nonce};
use super::sockets::OpenSockets;
use crate::server::MemoryNode;
use crate::service::LEASE_SERVER;
use crate::wire::{FrameKind, Grant, Hello, Role, SharedKey};

/// Pause after a failed connection.
const PAUSE: Duration = Duration::from_millis(20);

/// Reports to the lease server at `lease_server` until the server stops.
pub(super) fn run<M: Medium>(
    node: &MemoryNode<M>,
    sockets: &Arc<OpenSockets>,
    lease_server: SocketAddr,
    key: &SharedKey,
) {
    while !sockets.is_stopping() {
        // Without reports the lease of this server ends, and clients see that it does not serve.
        let _ = report_until_error(node, sockets, lease_server, key);
        if !sockets.is_stopping() {
            thread::sleep(PAUSE);
        }
    }
}

fn report_until_error<M: Medium>(
    node: &MemoryNode<M>,
    sockets: &Arc<OpenSockets>,
    lease_server: SocketAddr,
    key: &SharedKey,
) -> Result<(), StreamError> {
    let hello = Hello {
        role: Role::Member,
        server: LEASE_SERVER,
        number: node.memory().server(),
        epoch: 0,
        process: 0,
        thread: 0,
        attempt: 0,
        nonce: nonce()?,
    };
    let timeout = node.leases().member;
    let (mut stream, _) = connect(lease_server, timeout, key, &hello, None)?;
    let Some(_open) = sockets.register(&stream.stream, usize::MAX)? else {
        return Ok(());
    };
    let mut ctx = PersistCtx::new(0);
    // The versions of another process of the lease server mean nothing, so each connection begins without one.
    let mut applied = 0;
    let mut out = Vec::new();
    loop {
        let asked = Instant::now();
        out.clear();
        node.make_report(applied).encode(&mut out);
        stream.send(&out)?;
        let grant = stream.receive(|frame| Ok(Grant::decode(frame.expect(FrameKind::Grant)?)?))?;
        node.apply(&mut ctx, &grant, asked);
        applied = grant.version;
    }
}
