//! DEBUG.

use farbank_server::{ProtectedActions, ServerOptions};

use crate::harness::Running;

const NOT_ALLOWED: &str = "-ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you \
     can run it from a local connection, otherwise you need to set this option in the configuration file, and then \
     restart the server.\r\n";

fn running(debug_command: ProtectedActions) -> Running {
    Running::with(ServerOptions {
        workers: 1,
        debug_command,
        ..ServerOptions::default()
    })
}

#[test]
fn debug_is_refused_unless_an_option_allows_it() {
    let server = Running::new();
    server.connect().ask("DEBUG SLEEP 0", NOT_ALLOWED);
    let server = running(ProtectedActions::Local);
    server.connect().ask("DEBUG SLEEP 0", "+OK\r\n");
    let mut distant = server.connect_from([127, 0, 0, 2]);
    distant.ask("DEBUG SLEEP 0", NOT_ALLOWED);
    distant.ask(
        "CONFIG GET enable-debug-command",
        "*2\r\n$20\r\nenable-debug-command\r\n$5\r\nlocal\r\n",
    );
}

#[test]
fn scripts_may_call_debug_once_a_client_has_allowed_it() {
    let server = running(ProtectedActions::Yes);
    let mut client = server.connect();
    let script = "EVAL return(redis.call('debug','protocol','integer')) 0";
    client.send(script);
    assert!(client.line().contains("not allowed from script"));
    client.ask("DEBUG SET-DISABLE-DENY-SCRIPTS 1", "+OK\r\n");
    client.ask(script, ":12345\r\n");
}

#[test]
fn digests_are_those_of_redis() {
    let server = running(ProtectedActions::Yes);
    let mut client = server.connect();
    client.ask(
        "DEBUG DIGEST",
        "+0000000000000000000000000000000000000000\r\n",
    );
    client.ask("SET a b", "+OK\r\n");
    client.ask(
        "DEBUG DIGEST",
        "+479783d7290f02957dfbe3408a858ba13eea1709\r\n",
    );
    client.ask(
        "DEBUG DIGEST-VALUE a nothing",
        "*2\r\n+b78559cd22bce6e6df712eb99ce7f3b08e8f8f1f\r\n+0000000000000000000000000000000000000000\r\n",
    );
    client.ask("SET b 12 EX 1000", "+OK\r\n");
    let long = "x".repeat(55);
    client.ask(&format!("SET n {long}"), "+OK\r\n");
    client.ask(
        "DEBUG DIGEST",
        "+73eed4b40a27e6d080ed61ac5d4c685b680aec43\r\n",
    );
}

#[test]
fn values_are_described_and_created() {
    let server = running(ProtectedActions::Yes);
    let mut client = server.connect();
    client.ask("DEBUG POPULATE 3 pre 6", "+OK\r\n");
    client.ask("GET pre:2", "$6\r\nvalue:\r\n");
    client.ask("DEBUG POPULATE 2", "+OK\r\n");
    client.ask("GET key:1", "$7\r\nvalue:1\r\n");
    client.ask(
        "DEBUG POPULATE -1",
        "-ERR value is out of range, must be positive\r\n",
    );
    client.ask(
        "DEBUG OBJECT key:1",
        "+Value at:0x0 refcount:1 encoding:embstr serializedlength:8 lru:0 lru_seconds_idle:0\r\n",
    );
    client.ask("DEBUG OBJECT none", "-ERR no such key\r\n");
    client.ask("DEBUG RELOAD", "+OK\r\n");
    client.ask("DBSIZE", ":5\r\n");
}

#[test]
fn test_replies_have_the_types_of_the_protocol_version() {
    let server = running(ProtectedActions::Yes);
    let mut client = server.connect();
    client.ask("DEBUG PROTOCOL true", ":1\r\n");
    client.ask("DEBUG PROTOCOL double", "$5\r\n3.141\r\n");
    client.ask(
        "DEBUG PROTOCOL push",
        "-ERR RESP2 is not supported by this command\r\n",
    );
    client.send("HELLO 3;PING end");
    while client.line() != "end" {}
    client.ask("DEBUG PROTOCOL false", "#f\r\n");
    client.ask(
        "DEBUG PROTOCOL map",
        "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n",
    );
    client.ask(
        "DEBUG NOTHING",
        "-ERR unknown subcommand or wrong number of arguments for 'NOTHING'. Try DEBUG HELP.\r\n",
    );
}
