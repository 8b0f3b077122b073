//! Serves the volatile store of the tests, to measure the cost of the protocol without a storage engine.
//!
//!     cargo run --release -p farbank-server --example volatile -- 6399

#[expect(dead_code, reason = "only tests hold and complete tickets")]
#[path = "../tests/support/volatile.rs"]
mod volatile;

use std::net::{Ipv4Addr, SocketAddr};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args()
        .nth(1)
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(6399);
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let endpoints = [farbank_server::Endpoint::resp(addr)];
    let server =
        farbank_server::Server::bind(&endpoints, farbank_server::ServerOptions::default())?;
    println!("{:?}", server.endpoints());
    Ok(server.run(&volatile::Volatile::new())?)
}
