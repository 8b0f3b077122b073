//! Protected actions (changing limits, SHUTDOWN), and the Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use farbank_server::{ProtectedActions, ServerOptions, UnixSocket, WireProtocol};

use crate::harness::Running;

const LIMITS: [&str; 4] = [
    "maxclients 100000",
    "proto-max-bulk-len 10gb",
    "client-query-buffer-limit 10gb",
    "client-output-buffer-limit ''",
];

fn refused(parameter: &str) -> String {
    format!(
        "-ERR CONFIG SET failed (possibly related to argument '{parameter}') - can't set protected config\r\n"
    )
}

const NO_SHUTDOWN: &str = "-ERR SHUTDOWN command not allowed. If the enable-protected-configs option is set to \
     \"local\", you can run it from a local connection, otherwise you need to set this option in the \
     configuration file, and then restart the server.\r\n";

fn running(protected_actions: ProtectedActions) -> Running {
    Running::with(ServerOptions {
        workers: 1,
        protected_actions,
        ..ServerOptions::default()
    })
}

#[test]
fn clients_of_other_machines_cannot_change_limits_or_stop_the_server() {
    let server = running(ProtectedActions::Local);
    // This address is on this machine too, but for Redis only 127.0.0.1 and ::1 are local.
    let mut distant = server.connect_from([127, 0, 0, 2]);
    for limit in LIMITS {
        let name = limit.split(' ').next().unwrap();
        distant.ask(&format!("CONFIG SET {limit}"), &refused(name));
    }
    distant.ask("CONFIG SET appendonly yes", "+OK\r\n");
    distant.ask("SHUTDOWN NOSAVE", NO_SHUTDOWN);
    let mut local = server.connect();
    local.ask("CONFIG SET maxclients 50", "+OK\r\n");
    local.send("SHUTDOWN NOSAVE");
    server.join();
}

#[test]
fn protected_actions_can_be_forbidden_or_allowed_for_all_clients() {
    let server = running(ProtectedActions::No);
    let mut local = server.connect();
    local.ask("CONFIG SET maxclients 50", &refused("maxclients"));
    local.ask("SHUTDOWN", NO_SHUTDOWN);
    local.ask(
        "CONFIG GET enable-protected-configs",
        "*2\r\n$24\r\nenable-protected-configs\r\n$2\r\nno\r\n",
    );
    local.ask(
        "CONFIG SET enable-protected-configs yes",
        "-ERR CONFIG SET failed (possibly related to argument 'enable-protected-configs') - can't set \
         immutable config\r\n",
    );
    let server = running(ProtectedActions::Yes);
    let mut distant = server.connect_from([127, 0, 0, 2]);
    distant.ask("CONFIG SET maxclients 50", "+OK\r\n");
    distant.send("SHUTDOWN");
    server.join();
}

/// Starts a server that also listens on a Unix socket.
fn with_socket(path: &Path, mode: u32, protocol: WireProtocol) -> Running {
    Running::with(ServerOptions {
        workers: 1,
        unix_sockets: vec![UnixSocket {
            path: path.into(),
            mode,
            protocol,
        }],
        ..ServerOptions::default()
    })
}

#[test]
fn a_unix_socket_serves_redis_clients_with_its_mode_and_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = with_socket(&path, 0o770, WireProtocol::Resp);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o770);
    let mut client = Running::connect_unix(&path);
    client.ask("SET greeting hello;GET greeting", "+OK\r\n$5\r\nhello\r\n");
    client.ask("CONFIG SET maxclients 50", "+OK\r\n");
    client.ask(
        "CONFIG GET unixsocketperm",
        "*2\r\n$14\r\nunixsocketperm\r\n$3\r\n770\r\n",
    );
    let info = client.bulk("CLIENT INFO");
    let addr = format!(" addr={0}:0 laddr={0}:0 ", path.display());
    assert!(info.contains(&addr) && info.contains(" flags=U "), "{info}");
    client.send("SHUTDOWN NOSAVE");
    server.join();
    assert!(!path.exists());
}

#[test]
fn a_unix_socket_serves_memcached_clients() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = with_socket(&path, 0o700, WireProtocol::Memcached);
    let mut client = Running::connect_unix(&path);
    client.send_raw(b"set greeting 5 0 5\r\nhello\r\nget greeting\r\n");
    client.expect("STORED\r\nVALUE greeting 5 5\r\nhello\r\nEND\r\n");
    client.send_raw(b"stats settings\r\n");
    let setting = format!("STAT domain_socket {}", path.display());
    while client.line() != setting {}
    while client.line() != "END" {}
    client.send_raw(b"stats conns\r\n");
    // The socket itself, and this connection.
    for field in ["addr", "listen_addr"] {
        let named = format!(":{field} unix:{}", path.display());
        while !client.line().ends_with(&named) {}
    }
    drop(client);
    drop(server);
    assert!(!path.exists());
}
