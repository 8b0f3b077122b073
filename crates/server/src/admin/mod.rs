//! The admin port: figures of the running server over HTTP, for monitoring and for people.
//!
//! | path | reply |
//! |---|---|
//! | `/` | a page that shows the figures, live |
//! | `/metrics` | all figures in the OpenMetrics format, for Prometheus |
//! | `/status.json` | what the page shows |
//! | `/healthz` | 200 while the server works; 503 once its medium has failed, with the reason |
//! | `/readyz` | 200 if the server accepts writes; 503 if not, with the reason |
//!
//! A thread accepts connections, and each connection gets a thread of its own, which answers one request. So no client
//! of the store waits for the admin port. Reading the figures takes no lock that a request takes for long.
//!
//! # Invariants
//! SRV-ADMIN-1  At most [`CONNECTIONS_MAX`] connections exist; a further one is closed at once. Each ends after
//!     [`REQUEST_TIME`] and [`REPLY_TIME`] at the latest.
//! SRV-ADMIN-2  The port changes nothing, and never shows a value of the store. Keys (the most requested ones) are shown
//!     only to a client on this machine that has named the server by a loopback address: a page of another site that
//!     a browser shows cannot read them.

mod figures;
mod http;
mod metrics;
mod status;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbank_store::StoreHealth;

use self::http::{Request, Response};
use crate::state::shared::ServerShared;

/// Maximum number of connections at once.
const CONNECTIONS_MAX: usize = 16;
/// Longest time in which a client must send its request.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// Longest time in which a client must take the reply.
const REPLY_TIME: Duration = Duration::from_secs(5);
/// How often the thread that accepts checks whether the server stops.
const TICK: Duration = Duration::from_millis(50);

const PAGE: &str = include_str!("page.html");
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the admin port until the server stops. `listener` does not block.
pub(crate) fn run(shared: &ServerShared<'_>, listener: &TcpListener) {
    let connections = AtomicUsize::new(0);
    thread::scope(|scope| {
        while !shared.threads.is_stopping() {
            match listener.accept() {
                Ok((stream, peer)) => {
                    if connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
                        continue; // SRV-ADMIN-1
                    }
                    connections.fetch_add(1, Ordering::Relaxed);
                    let connections = &connections;
                    let serve = move || {
                        if let Err(error) = serve(shared, &stream, peer) {
                            tracing::debug!(%error, %peer, "admin connection lost");
                        }
                        connections.fetch_sub(1, Ordering::Relaxed);
                    };
                    let builder = thread::Builder::new().name("admin-client".into());
                    if let Err(error) = builder.spawn_scoped(scope, serve) {
                        tracing::warn!(%error, "cannot start a thread for an admin connection");
                        connections.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::debug!(%error, "cannot accept an admin connection");
                    }
                    thread::sleep(TICK);
                }
            }
        }
    });
}

/// Reads one request and answers it.
fn serve(shared: &ServerShared<'_>, stream: &TcpStream, peer: SocketAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let is_stopping = || shared.threads.is_stopping();
    let deadline = Instant::now() + REQUEST_TIME;
    let response = match http::read_request(stream, deadline, is_stopping)? {
        Ok(request) => answer(shared, &request, peer),
        Err(refusal) => refusal,
    };
    http::send(stream, &response, Instant::now() + REPLY_TIME)
}

fn answer(shared: &ServerShared<'_>, request: &Request, peer: SocketAddr) -> Response {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return Response::text(405, TEXT, "only GET and HEAD are supported\n".into());
    }
    let shows_keys = peer.ip().to_canonical().is_loopback() && request.names_loopback();
    let response = match request.path() {
        "/" => Response::text(200, HTML, PAGE.into()),
        "/metrics" => match metrics::text(figures::read(shared)) {
            Ok(text) => Response::text(200, OPEN_METRICS, text),
            Err(error) => Response::text(500, TEXT, format!("cannot encode: {error}\n")),
        },
        "/status.json" => Response::text(200, JSON, status::json(shared, shows_keys)),
        "/healthz" => verdict(shared.durability.poisoned.get().cloned()),
        "/readyz" => verdict(unready(shared, &shared.store.health())),
        _ => Response::text(404, TEXT, "not found; see / and /metrics\n".into()),
    };
    response.without_body(request.method == "HEAD")
}

/// Why the server accepts no writes now.
fn unready(shared: &ServerShared<'_>, health: &StoreHealth) -> Option<String> {
    let poisoned = shared.durability.poisoned.get().cloned();
    poisoned.or_else(|| Some(health.file.as_ref()?.text.to_string()))
}

fn verdict(problem: Option<String>) -> Response {
    match problem {
        None => Response::text(200, TEXT, "ok\n".into()),
        Some(problem) => Response::text(503, TEXT, format!("{problem}\n")),
    }
}
