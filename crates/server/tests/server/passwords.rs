//! The server's password: AUTH, HELLO and the limits of clients that have not given it.

use farbank_server::{Password, ServerOptions};

use crate::harness::Running;

const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

fn with_password() -> Running {
    Running::with(ServerOptions {
        workers: 1,
        password: Password::new(b"secret"),
        ..ServerOptions::default()
    })
}

#[test]
fn a_client_uses_no_command_before_it_gives_the_password() {
    let server = with_password();
    let mut client = server.connect();
    for request in [
        "GET k",
        "SET k v",
        "PING",
        "MULTI",
        "EXEC",
        "SUBSCRIBE c",
        "EVAL x 0",
        "CONFIG GET requirepass",
        "SHUTDOWN",
        "KEYS *",
        "COMMAND",
    ] {
        client.send(request);
        let reply = if request == "EXEC" {
            "-EXECABORT Transaction discarded because of: NOAUTH Authentication required.\r\n"
        } else {
            NOAUTH
        };
        client.expect(reply);
    }
    client.send("NOSUCH");
    client.expect("-ERR unknown command 'NOSUCH', with args beginning with: \r\n");
    client.send("HELLO 3;HELLO 3 AUTH default wrong;AUTH wrong;AUTH secre;AUTH other secret;GET k");
    let hello = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
                 at the same time\r\n";
    client.expect(&format!(
        "{hello}{WRONGPASS}{WRONGPASS}{WRONGPASS}{WRONGPASS}{NOAUTH}"
    ));
    // The requests that were sent together with AUTH are executed after it.
    client.send("AUTH secret;SET k v;GET k;AUTH wrong;GET k;RESET;GET k");
    client.expect(&format!(
        "+OK\r\n+OK\r\n$1\r\nv\r\n{WRONGPASS}$1\r\nv\r\n+RESET\r\n{NOAUTH}"
    ));
    client.send("HELLO 2 AUTH default secret;GET k;CONFIG GET requirepass;QUIT");
    client.expect("*14\r\n");
}

#[test]
fn a_client_without_the_password_sends_small_requests_only() {
    let server = with_password();
    let mut client = server.connect();
    client.send_raw(b"*11\r\n$3\r\nSET\r\n");
    let error = client.drain();
    assert_eq!(
        error,
        "-ERR Protocol error: unauthenticated multibulk length\r\n"
    );
    let mut client = server.connect();
    client.send_raw(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n");
    let error = client.drain();
    assert_eq!(
        error,
        "-ERR Protocol error: unauthenticated bulk length\r\n"
    );
    // The limits do not apply to what follows AUTH, in the same packet too.
    let value = "v".repeat(100_000);
    let mut client = server.connect();
    client.send(&format!(
        "AUTH secret;SET k {value};MSET a 1 b 2 c 3 d 4 e 5 f 6;STRLEN k"
    ));
    client.expect("+OK\r\n+OK\r\n+OK\r\n:100000\r\n");
}
