//! Assigns accepted connections to workers.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

use super::executor::ServerParts;
use super::tls_stream::TlsStream;
use super::worker_pool::WorkerMsg;
use crate::settings::WireProtocol;
use crate::state::clients::PeerAddr;
use crate::state::shared::ServerShared;

/// Assigns a connection to the worker with the fewest connections.
pub(super) fn assign_to_worker(
    parts: &ServerParts<'_>,
    stream: TcpStream,
    peer: &PeerAddr,
    protocol: WireProtocol,
    tls: Option<TlsStream>,
) {
    let shared = &parts.shared;
    shared.stats.accepted.fetch_add(1, Ordering::Relaxed);
    if matches!(peer, PeerAddr::Tcp(_))
        && let Err(error) = set_socket_options(shared, &stream)
    {
        tracing::debug!(%error, "cannot set socket options");
    }
    let workers = parts.pool.workers.iter().enumerate();
    let fewest = workers.min_by_key(|(_, worker)| worker.connections.load(Ordering::Relaxed));
    if let Some((number, worker)) = fewest {
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let client_info =
            shared
                .clients
                .register(&stream, peer, protocol, number, shared.clock_ms());
        worker.send(WorkerMsg::Accept(stream, tls, client_info));
    }
}

fn set_socket_options(shared: &ServerShared<'_>, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let secs = shared.settings.keepalive_secs.load(Ordering::Relaxed);
    if secs > 0 {
        let idle = Duration::from_secs(secs);
        let every = Duration::from_secs((secs / 3).max(1));
        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(every);
        SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}
