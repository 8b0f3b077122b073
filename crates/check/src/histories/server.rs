//! The server under test: how a run starts and ends it.

use std::ops::Range;
use std::time::Duration;

use farbank_pm::rng::Rng;

use crate::child::{ChildError, ChildServer, ServerLaunch};

/// Addresses of a running server.
#[derive(Clone, Debug)]
pub struct ServerAddresses {
    /// Address of the RESP listener.
    pub resp: String,
    /// Address of the memcached listener, if there is one.
    pub memcached: Option<String>,
}

/// What ended a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndKind {
    /// SIGKILL, or what a simulation has for it: the pool's bytes stay as the server last saw them.
    Killed,
    /// SIGTERM, followed by SIGKILL if the server still ran.
    Terminated,
    /// SHUTDOWN, or another end that closes the pool.
    Shutdown,
    /// A power cut: the pool loses what its medium had not made durable.
    PowerCut,
}

/// How a server ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerEnd {
    /// What ended it.
    pub kind: EndKind,
    /// The period in which a simulation captured the pool, in nanoseconds since the run began. The server ran on after
    /// it, until it was stopped. An answer that arrived after the start of the period promises nothing, and a call that
    /// was sent after its end has no effect. `None` if every answer that a client received was sent before the end.
    pub captured: Option<Range<u64>>,
    /// Whether the pool's medium had failed before.
    pub medium_failed: bool,
}

impl From<EndKind> for ServerEnd {
    fn from(kind: EndKind) -> ServerEnd {
        ServerEnd {
            kind,
            captured: None,
            medium_failed: false,
        }
    }
}

/// A server that a run ends and restarts. What it keeps in its pool survives an end as far as the pool's medium allows.
pub trait HistoryServer {
    /// Starts the server on its pool, which is created if it does not exist, and waits until it is ready.
    ///
    /// # Errors
    /// The server does not start.
    fn start(&mut self) -> Result<ServerAddresses, ChildError>;

    /// Ends the running server while clients use it. `now` is the clock of the history, in nanoseconds.
    ///
    /// # Errors
    /// The server had ended before, or did not end as it should.
    fn end(&mut self, now: &dyn Fn() -> u64, rng: &mut Rng) -> Result<ServerEnd, ChildError>;

    /// Called before clients put load on the server. It may arrange that the pool's medium fails under this load.
    fn before_load(&mut self) {}

    /// Whether the pool's medium fails in some cycles. Then an error reply may say so, and ends its client.
    fn medium_may_fail(&self) -> bool {
        false
    }

    /// Starts the server, and ends it while it opens its pool.
    ///
    /// # Errors
    /// The server does not start.
    fn end_in_recovery(&mut self, rng: &mut Rng) -> Result<(), ChildError>;
}

/// `farbank serve` as a child process, which signals or SHUTDOWN end.
pub struct ServerProcess {
    launch: ServerLaunch,
    running: Option<ChildServer>,
}

impl ServerProcess {
    /// Returns a server that is started as `launch` says. Its pool must not exist yet.
    #[must_use]
    pub fn new(launch: ServerLaunch) -> ServerProcess {
        ServerProcess {
            launch,
            running: None,
        }
    }
}

impl HistoryServer for ServerProcess {
    fn start(&mut self) -> Result<ServerAddresses, ChildError> {
        let server = self.running.insert(ChildServer::start(&self.launch)?);
        Ok(ServerAddresses {
            resp: server.addr().to_owned(),
            memcached: server.memcached_addr().map(str::to_owned),
        })
    }

    fn end(&mut self, _: &dyn Fn() -> u64, rng: &mut Rng) -> Result<ServerEnd, ChildError> {
        let mut server = self.running.take().expect("the server was started");
        let kind = match rng.below(8) {
            0 => server.shutdown().map(|()| EndKind::Shutdown),
            1 | 2 => {
                let patience = Duration::from_micros(rng.below(20_000));
                server.terminate(patience).map(|()| EndKind::Terminated)
            }
            _ => server.kill().map(|()| EndKind::Killed),
        };
        kind.map(ServerEnd::from)
    }

    fn end_in_recovery(&mut self, rng: &mut Rng) -> Result<(), ChildError> {
        let patience = Duration::from_micros(rng.below(40_000));
        ChildServer::start_and_kill(&self.launch, patience)
    }
}
