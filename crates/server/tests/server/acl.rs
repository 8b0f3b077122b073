//! Users and their permissions: ACL, AUTH as a user, and what each user may do. The replies are those of redis-server 7.0.15.

use std::path::Path;

use farbank_server::{DefaultUser, Password, ServerOptions, default_user};

use crate::harness::{Client, Running};

const OK: &str = "+OK\r\n";
const NO_KEY: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
const NO_CHANNEL: &str =
    "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

fn no_command(name: &str) -> String {
    format!("-NOPERM this user has no permissions to run the '{name}' command\r\n")
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Connects a client as the user `name`, which has the password `p`.
fn connect_as(server: &Running, name: &str) -> Client {
    let mut client = server.connect();
    client.ask(&format!("AUTH {name} p"), OK);
    client
}

/// A server with a user `a`, which has these rules and the password `p`, and a client of that user.
fn with_user(rules: &str) -> (Running, Client) {
    let server = Running::new();
    server
        .connect()
        .ask(&format!("ACL SETUSER a on >p +echo {rules}"), OK);
    let client = connect_as(&server, "a");
    (server, client)
}

#[test]
fn rules_are_described_by_the_shortest_rules_with_their_effect() {
    let server = Running::new();
    let mut client = server.connect();
    let hash = "#148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
    let long = format!("{hash} ~* &* -@all +@string -set (%R~y resetchannels -@all +get)");
    for (rules, described) in [
        ("", "off resetchannels -@all"),
        ("on nopass", "on nopass resetchannels -@all"),
        ("on >p >p", &format!("on {hash} resetchannels -@all")),
        ("+@all -get +get", "off resetchannels +@all"),
        ("+@all -@dangerous", "off resetchannels +@all -@dangerous"),
        (
            "+@all -@admin -config",
            "off resetchannels +@all -@admin -config",
        ),
        ("+config|get", "off resetchannels -@all +config|get"),
        (
            "+config -config|set",
            "off resetchannels -@all +config -config|set",
        ),
        ("+@read +@write -@write", "off resetchannels -@all +@read"),
        (
            "+select|0 +select|1",
            "off resetchannels -@all +select|0 +select|1",
        ),
        (
            "~a %R~b %W~c %RW~d %r~c",
            "off ~a %R~b ~c ~d resetchannels -@all",
        ),
        ("~a allkeys", "off ~* resetchannels -@all"),
        ("allkeys resetkeys ~b", "off ~b resetchannels -@all"),
        ("&a &b &a", "off resetchannels &a &b -@all"),
        ("allchannels allcommands", "off &* +@all"),
        ("allcommands nocommands", "off resetchannels -@all"),
        (
            "skip-sanitize-payload",
            "off skip-sanitize-payload resetchannels -@all",
        ),
        (
            "on >p ~* &* +@string -set (+get %R~y)",
            &format!("on {long}"),
        ),
        (
            "( +get ~x ) (+set) clearselectors",
            "off resetchannels -@all",
        ),
        (
            "on >p ~* +@all reset",
            "off sanitize-payload resetchannels -@all",
        ),
        ("on >p <p", "on resetchannels -@all"),
        (
            "ON NoPass +@ALL ALLKEYS",
            "on nopass ~* resetchannels +@all",
        ),
    ] {
        client.ask(&format!("ACL SETUSER u {rules}"), OK);
        let expected = [
            bulk(&format!("user u {described}")),
            bulk("user default on nopass ~* &* +@all"),
        ];
        let expected = format!("*2\r\n{}{}", expected[1], expected[0]);
        client.ask("ACL LIST", &expected);
        client.ask("ACL DELUSER u", ":1\r\n");
    }
}

#[test]
fn refused_rules_change_nothing() {
    let server = Running::new();
    let mut client = server.connect();
    for (rule, why) in [
        ("%~x", "Syntax error"),
        ("%RR~x", "Syntax error"),
        ("xyz", "Syntax error"),
        ("+get|", "Syntax error"),
        ("+nope", "Unknown command or category name in ACL"),
        ("-nope", "Unknown command or category name in ACL"),
        ("+@nope", "Unknown command or category name in ACL"),
        ("+config|nope", "Unknown command or category name in ACL"),
        ("-get|x", "Unknown command or category name in ACL"),
        (
            "+config|get|x",
            "Allowing first-arg of a subcommand is not supported",
        ),
        (
            "<none",
            "The password you are trying to remove from the user does not exist",
        ),
        (
            "#12",
            "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters",
        ),
    ] {
        let error = format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}\r\n");
        client.ask(&format!("ACL SETUSER u on >p {rule}"), &error);
    }
    client.ask(
        "ACL SETUSER u on (+get",
        "-ERR Unmatched parenthesis in acl selector starting at '(+get'.\r\n",
    );
    client.ask(
        "ACL USERS;ACL WHOAMI",
        "*1\r\n$7\r\ndefault\r\n$7\r\ndefault\r\n",
    );
    client.ask("ACL GETUSER u", "$-1\r\n");
    client.ask(
        "ACL DELUSER u default",
        "-ERR The 'default' user cannot be removed\r\n",
    );
    client.ask(
        "ACL SETUSER u ~* ~x;ACL SETUSER u &* &x",
        "-ERR Error in ACL SETUSER modifier '~x': Adding a pattern after the * pattern (or the 'allkeys' flag) is not \
         valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns\r\n\
         -ERR Error in ACL SETUSER modifier '&x': Adding a pattern after the * pattern (or the 'allchannels' flag) is not \
         valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels\r\n",
    );
}

#[test]
fn a_user_has_a_limited_number_of_rules() {
    let server = Running::new();
    let mut client = server.connect();
    let patterns: String = (0..5000).map(|at| format!(" ~{at}")).collect();
    client.ask(
        &format!("ACL SETUSER u{patterns}"),
        "-ERR Error in ACL SETUSER modifier '~4095': The user has too many rules\r\n",
    );
}

#[test]
fn a_check_that_takes_long_delays_no_worker() {
    let server = Running::new();
    let mut admin = server.connect();
    let patterns: String = (0..500).map(|at| format!(" ~{at}*a*b*c*d*e")).collect();
    admin.ask(
        &format!("ACL SETUSER a on >p +@all -@admin{patterns} ~k*"),
        OK,
    );
    let mut client = connect_as(&server, "a");
    let keys: String = (0..150)
        .map(|at| format!(" k{at}{}", "x".repeat(500)))
        .collect();
    let before = admin.bulk("INFO farbank");
    client.ask(&format!("EXISTS{keys}"), ":0\r\n");
    client.ask(&format!("EXISTS{keys} other"), NO_KEY);
    client.ask(
        &format!("MULTI;EXISTS{keys};EXISTS{keys} other;EXEC"),
        &format!("+OK\r\n+QUEUED\r\n{NO_KEY}-EXECABORT Transaction discarded because of previous errors.\r\n"),
    );
    client.ask(
        &format!("EVAL return(redis.call('exists',unpack(KEYS))) 150{keys}"),
        ":0\r\n",
    );
    let long = |info: &str| {
        let field = "farbank_long_requests:";
        let line = info.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|count| count.parse::<u64>().ok())
    };
    let (before, after) = (long(&before), long(&admin.bulk("INFO stats")));
    assert!(
        after >= Some(before.unwrap_or(0) + 5),
        "{before:?} {after:?}"
    );
    let password = "p".repeat(100_000);
    client.ask(&format!("AUTH a {password}"), WRONGPASS);
    admin.ask(&format!("ACL SETUSER a >{password}"), OK);
    client.ask(&format!("AUTH a {password}"), OK);
}

#[test]
fn a_user_executes_the_commands_that_its_rules_allow() {
    let (_server, mut client) = with_user("~* +get +config|get -@dangerous +config|get +select|0");
    client.ask("GET k;get k;SELECT 0", "$-1\r\n$-1\r\n+OK\r\n");
    client.ask(
        "SET k v;SELECT 1;CONFIG SET maxmemory 1;ACL WHOAMI;SHUTDOWN;FLUSHALL",
        &[
            "set",
            "select",
            "config|set",
            "acl|whoami",
            "shutdown",
            "flushall",
        ]
        .map(no_command)
        .concat(),
    );
    client.ask("CONFIG GET maxclientsx", "*0\r\n");
    client.ask(
        "NOPE",
        "-ERR unknown command 'NOPE', with args beginning with: \r\n",
    );
    // Every user may authenticate and leave.
    client.ask("AUTH default any;ACL WHOAMI", "+OK\r\n$7\r\ndefault\r\n");
}

#[test]
fn a_user_accesses_the_keys_of_its_patterns_as_they_allow() {
    let (_server, mut client) =
        with_user("+@all ~rw:* %R~r:* %W~w:* %R~* -@admin resetkeys ~rw:* %R~r:* %W~w:*");
    let all_denied = [
        "GET x",
        "GET w:1",
        "SET r:1 v",
        "SET w:1 v GET",
        "MGET rw:1 r:1 x",
        "MSET rw:1 v r:1 v",
        "DEL r:1",
        "GETDEL w:1",
        "RENAME r:1 rw:1",
        "COPY w:1 w:2",
        "BITOP NOT r:1 rw:1",
        "BITFIELD r:1 SET u8 0 1",
        "BITFIELD w:1 GET u8 0",
        "INCR w:1",
        "EXPIRE r:1 5",
        "SORT r:1 STORE x",
        "WATCH x",
        "EVAL x 1 r:1",
        "OBJECT ENCODING x",
    ];
    for request in all_denied {
        client.ask(request, NO_KEY);
    }
    client.ask(
        "SET w:1 v;STRLEN w:1;EXISTS w:1 r:1;DEL w:1",
        "+OK\r\n:1\r\n:1\r\n:1\r\n",
    );
    client.ask(
        "GET r:1;SET rw:1 v GET;INCRBY rw:2 5",
        "$-1\r\n$-1\r\n:5\r\n",
    );
    client.ask(
        "COPY r:1 w:1;BITOP NOT w:2 r:1;BITFIELD r:1 GET u8 0",
        ":0\r\n:0\r\n*1\r\n:0\r\n",
    );
    // A command without keys, and one whose keys Redis does not find.
    client.ask(
        "DBSIZE;EVAL x nine k",
        ":2\r\n-ERR value is not an integer or out of range\r\n",
    );
}

#[test]
fn one_selector_must_allow_the_whole_request() {
    let (_server, mut client) = with_user(
        "+get ~a (+set ~b %R~c) (+@all ~d -debug-nothing)"
            .replace(" -debug-nothing", "")
            .as_str(),
    );
    client.ask(
        "GET a;SET b v;SET d v;GET d",
        "$-1\r\n+OK\r\n+OK\r\n$1\r\nv\r\n",
    );
    client.ask("SET a v;GET b;SET c v;GET c", &NO_KEY.repeat(4));
    client.ask("MGET a", NO_KEY);
    client.ask(
        "ACL DRYRUN a get x",
        &bulk("This user has no permissions to access the 'x' key"),
    );
}

#[test]
fn channels_are_allowed_by_patterns() {
    let (server, mut client) = with_user("+@all &news:* &exact resetkeys");
    client.ask("PUBLISH news:1 m;SPUBLISH exact m", ":0\r\n:0\r\n");
    client.ask(
        "PUBLISH other m;SPUBLISH other m;PSUBSCRIBE news:1;SUBSCRIBE news:1 x",
        &NO_CHANNEL.repeat(4),
    );
    client.send("PSUBSCRIBE news:*");
    client.expect("*3\r\n$10\r\npsubscribe\r\n$6\r\nnews:*\r\n:1\r\n");
    // UNSUBSCRIBE needs no permission.
    client.send("PUNSUBSCRIBE other");
    client.expect("*3\r\n$12\r\npunsubscribe\r\n$5\r\nother\r\n:1\r\n");
    server.connect().ask(
        "CONFIG SET acl-pubsub-default allchannels;ACL SETUSER new;ACL GETUSER new;CONFIG SET acl-pubsub-default x",
        "+OK\r\n+OK\r\n*12\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$9\r\npasswords\r\n*0\r\n$8\r\ncommands\r\n$5\r\n-@all\r\n\
         $4\r\nkeys\r\n$0\r\n\r\n$8\r\nchannels\r\n$2\r\n&*\r\n$9\r\nselectors\r\n*0\r\n\
         -ERR CONFIG SET failed (possibly related to argument 'acl-pubsub-default') - argument(s) must be one of the \
         following: allchannels, resetchannels\r\n",
    );
}

#[test]
fn a_transaction_is_checked_when_it_is_queued_and_again_by_exec() {
    let (_server, mut client) = with_user("+@all -keys ~k*");
    client.ask(
        "MULTI;SET x v;EXEC",
        &format!("+OK\r\n{NO_KEY}-EXECABORT Transaction discarded because of previous errors.\r\n"),
    );
}

#[test]
fn exec_refuses_what_is_no_longer_allowed_and_executes_the_rest() {
    let (server, mut client) = with_user("+@all ~k*");
    client.send("SET k1 v;MULTI;SET k2 v;GET k1;DEL k1;PING");
    client.expect("+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    server.connect().ask(
        "ACL SETUSER a -get resetkeys ~k2;ACL LOG RESET",
        "+OK\r\n+OK\r\n",
    );
    let changed = |reason: &str| {
        format!(
            "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: {reason}\r\n"
        )
    };
    client.send("EXEC");
    client.expect(&format!(
        "*4\r\n+OK\r\n{}{}+PONG\r\n",
        changed("no permission to execute the command or subcommand"),
        changed("no permission to touch the specified keys")
    ));
    let mut admin = server.connect();
    let log = lines(&mut admin, "ACL LOG");
    assert_eq!(count(&log, "context", "multi"), 2, "{log:?}");
    // AUTH inside a transaction counts for the commands after it.
    client.send("MULTI;AUTH default x;GET k1;EXEC");
    client.expect("+OK\r\n+QUEUED\r\n");
    client.expect(&no_command("get"));
    client.expect("-EXECABORT Transaction discarded because of previous errors.\r\n");
}

/// Sends a request and returns the lines of its reply up to the reply of ECHO.
fn lines(client: &mut Client, request: &str) -> Vec<String> {
    client.send(&format!("{request};ECHO end-of-reply"));
    let mut lines = Vec::new();
    loop {
        let line = client.line();
        if line == "end-of-reply" {
            return lines;
        }
        if !line.starts_with(['$', '*', '%']) {
            lines.push(line);
        }
    }
}

/// Number of places in `lines` where `value` follows `name`.
fn count(lines: &[String], name: &str, value: &str) -> usize {
    lines
        .windows(2)
        .filter(|pair| pair[0] == name && pair[1] == value)
        .count()
}

#[test]
fn scripts_and_functions_have_the_permissions_of_their_caller() {
    let (_server, mut client) =
        with_user("+eval +eval_ro +get +set +fcall +function +publish ~k* &c");
    let eval = |body: &str| format!("EVAL return({body}) 0");
    client.ask(&eval("redis.call('set','k1','v')"), OK);
    for (body, why) in [
        (
            "redis.call('get','x')",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
        ),
        (
            "redis.call('del','k1')",
            "ERR The user executing the script can't run this command or subcommand",
        ),
        (
            "redis.call('publish','d','m')",
            "ERR The user executing the script can't publish to the channel mentioned in the command",
        ),
    ] {
        client.ask(&eval(&format!("redis.p{}['err']", &body[6..])), &bulk(why));
    }
    client.ask(&eval("redis.acl_check_cmd('get','k1')"), ":1\r\n");
    client.ask(&eval("redis.acl_check_cmd('get','x')"), "$-1\r\n");
    client.ask(
        &eval("redis.pcall('sort','k1','by','w*')['err']"),
        &bulk("ERR The user executing the script can't run this command or subcommand"),
    );
}

#[test]
fn sort_reads_further_keys_only_for_users_that_may_read_all() {
    let (server, mut client) = with_user("+sort +sort_ro ~k*");
    client.ask(
        "SORT k BY w*;SORT k GET #;SORT_RO k BY w*;SORT k BY nosort",
        "-ERR BY option of SORT denied due to insufficient ACL permissions.\r\n\
         -ERR GET option of SORT denied due to insufficient ACL permissions.\r\n\
         -ERR BY option of SORT denied due to insufficient ACL permissions.\r\n*0\r\n",
    );
    server.connect().ask("ACL SETUSER a %R~*", OK);
    client.ask("SORT k BY w* GET #", "*0\r\n");
}

#[test]
fn a_change_of_a_user_counts_for_its_connections_at_once() {
    let (server, mut client) = with_user("+@all ~*");
    client.ask("SET k v", OK);
    let mut admin = server.connect();
    admin.ask("ACL SETUSER a -set", OK);
    client.ask(
        "SET k v;GET k",
        &format!("{}$1\r\nv\r\n", no_command("set")),
    );
    // `off` refuses later authentications only.
    admin.ask("ACL SETUSER a off", OK);
    client.ask("GET k", "$1\r\nv\r\n");
    server.connect().ask("AUTH a p", WRONGPASS);
    admin.ask("ACL SETUSER a on <p", OK);
    server.connect().ask("AUTH a p", WRONGPASS);
    client.ask("GET k", "$1\r\nv\r\n");
    // A change in the same packet counts for the requests after it.
    admin.send("ACL SETUSER default -get;GET k;ACL SETUSER default +get;GET k");
    admin.expect(&format!("+OK\r\n{}+OK\r\n$1\r\nv\r\n", no_command("get")));
}

#[test]
fn connections_of_removed_users_are_closed() {
    let (server, mut client) = with_user("+@all ~* &*");
    let mut subscriber = connect_as(&server, "a");
    subscriber.send("SUBSCRIBE c");
    subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    let mut admin = server.connect();
    admin.ask("ACL DELUSER a missing a", ":1\r\n");
    assert_eq!(client.drain(), "");
    assert_eq!(subscriber.drain(), "");
    // A user that removes itself gets the reply.
    admin.ask("ACL SETUSER b on nopass +@all", OK);
    let mut own = server.connect();
    own.send("AUTH b x;ACL DELUSER b;PING");
    assert_eq!(own.drain(), "+OK\r\n:1\r\n");
    admin.ask("ACL USERS", "*1\r\n$7\r\ndefault\r\n");
}

#[test]
fn subscribers_that_lose_a_channel_are_closed_and_others_stay() {
    let (server, mut first) = with_user("+@all resetchannels &c1 &c2 &p*");
    let mut second = connect_as(&server, "a");
    let mut third = connect_as(&server, "a");
    first.send("SUBSCRIBE c1");
    first.expect("*3\r\n$9\r\nsubscribe\r\n$2\r\nc1\r\n:1\r\n");
    second.send("SSUBSCRIBE c2");
    second.expect("*3\r\n$10\r\nssubscribe\r\n$2\r\nc2\r\n:1\r\n");
    third.send("PSUBSCRIBE p*");
    third.expect("*3\r\n$10\r\npsubscribe\r\n$2\r\np*\r\n:1\r\n");
    let mut admin = server.connect();
    admin.ask("ACL SETUSER a &more", OK);
    admin.ask("ACL SETUSER a resetchannels &c2 &more &p*", OK);
    assert_eq!(first.drain(), "");
    admin.ask(
        "PUBLISH c1 m;SPUBLISH c2 m;PUBLISH p1 m",
        ":0\r\n:1\r\n:1\r\n",
    );
    second.expect("*3\r\n$8\r\nsmessage\r\n$2\r\nc2\r\n$1\r\nm\r\n");
    third.expect("*4\r\n$8\r\npmessage\r\n$2\r\np*\r\n$2\r\np1\r\n$1\r\nm\r\n");
    // A pattern must be in the list itself.
    admin.ask(
        "ACL SETUSER a resetchannels &*;PUBLISH p1 m",
        "+OK\r\n:1\r\n",
    );
    third.expect("*4\r\n$8\r\npmessage\r\n$2\r\np*\r\n$2\r\np1\r\n$1\r\nm\r\n");
    admin.ask("ACL SETUSER a resetchannels &p1 &c2", OK);
    assert_eq!(third.drain(), "");
    admin.ask("ACL SETUSER a resetchannels", OK);
    assert_eq!(second.drain(), "");
}

#[test]
fn config_set_requirepass_changes_the_password_of_the_default_user() {
    let server = Running::new();
    let (mut early, mut admin) = (server.connect(), server.connect());
    early.ask("PING", "+PONG\r\n");
    admin.ask(
        "CONFIG SET requirepass secret;CONFIG GET requirepass",
        "+OK\r\n*2\r\n$11\r\nrequirepass\r\n$6\r\nsecret\r\n",
    );
    early.ask("PING", "+PONG\r\n");
    let mut late = server.connect();
    late.send("PING;AUTH wrong;AUTH secret;PING");
    late.expect(&format!(
        "-NOAUTH Authentication required.\r\n{WRONGPASS}+OK\r\n+PONG\r\n"
    ));
    // memcached clients cannot authenticate.
    let mut memcached = server.connect_memcached();
    memcached.send_raw(b"get k\r\nset k 0 0 1\r\nv\r\nversion\r\nquit\r\n");
    let refused = "CLIENT_ERROR unauthenticated\r\n";
    assert_eq!(memcached.drain(), refused.repeat(3));
    admin.ask("CONFIG SET requirepass ''", OK);
    server.connect().ask("PING", "+PONG\r\n");
    let mut memcached = server.connect_memcached();
    memcached.send_raw(b"get k\r\nquit\r\n");
    assert_eq!(memcached.drain(), "END\r\n");
    admin.ask("ACL SETUSER default -get", OK);
    let mut memcached = server.connect_memcached();
    memcached.send_raw(b"get k\r\nquit\r\n");
    assert_eq!(memcached.drain(), refused);
}

#[test]
fn a_closed_default_user_keeps_unauthenticated_clients_out() {
    let server = Running::new();
    let mut admin = server.connect();
    admin.ask(
        "ACL SETUSER a on >p +@all ~*;ACL SETUSER default off",
        "+OK\r\n+OK\r\n",
    );
    let mut client = server.connect();
    client.send("PING;AUTH x;AUTH default x;AUTH a p;PING;RESET;PING");
    client.expect(&format!(
        "-NOAUTH Authentication required.\r\n-ERR AUTH <password> called without any password configured for the default \
         user. Are you sure your configuration is correct?\r\n{WRONGPASS}+OK\r\n+PONG\r\n+RESET\r\n\
         -NOAUTH Authentication required.\r\n"
    ));
    let mut waiting = server.connect();
    waiting.send("PING");
    waiting.expect("-NOAUTH Authentication required.\r\n");
    admin.ask("ACL SETUSER default on", OK);
    waiting.ask("PING", "+PONG\r\n");
}

#[test]
fn refused_requests_are_logged_and_counted() {
    let (server, mut client) = with_user("+get +multi +hello ~k*");
    client.send("AUTH missing x;HELLO 2 AUTH a wrong;SET k v;GET x;MULTI;GET x;DISCARD");
    client.expect(WRONGPASS.repeat(2).as_str());
    client.expect(&no_command("set"));
    client.expect(&format!("{NO_KEY}+OK\r\n{NO_KEY}"));
    client.expect(&no_command("discard"));
    let mut admin = server.connect();
    let log = lines(&mut admin, "ACL LOG");
    assert_eq!(count(&log, "reason", "auth"), 2, "{log:?}");
    assert_eq!(count(&log, "reason", "key"), 2, "{log:?}");
    assert_eq!(count(&log, "reason", "command"), 2, "{log:?}");
    assert_eq!(count(&log, "object", "HELLO"), 1, "{log:?}");
    assert_eq!(count(&log, "username", "missing"), 1, "{log:?}");
    let info = log.iter().filter(|line| line.contains(" user=a ")).count();
    assert_eq!(info, 6, "{log:?}");
    let info = admin.bulk("INFO stats");
    for field in ["auth:2", "cmd:2", "key:2", "channel:0"] {
        assert!(
            info.contains(&format!("acl_access_denied_{field}\r\n")),
            "{field} {info}"
        );
    }
    admin.ask(
        "ACL LOG RESET;ACL LOG;CONFIG SET acllog-max-len 0",
        "+OK\r\n*0\r\n+OK\r\n",
    );
    client.send("EXEC");
    client.expect("-EXECABORT Transaction discarded because of: NOPERM this user has no permissions to run the 'exec' command\r\n");
    admin.ask("ACL LOG", "*0\r\n");
}

#[test]
fn client_list_and_client_kill_name_users() {
    let (server, mut client) = with_user("+@all");
    let info = client.bulk("CLIENT INFO");
    assert!(info.contains(" user=a "), "{info}");
    let mut admin = server.connect();
    admin.ask(
        "CLIENT KILL USER missing",
        "-ERR No such user 'missing'\r\n",
    );
    admin.ask("CLIENT KILL USER a", ":1\r\n");
    assert_eq!(client.drain(), "");
}

#[test]
fn passwords_are_generated_from_random_bits() {
    let server = Running::new();
    let mut client = server.connect();
    let (one, two) = (client.bulk("ACL GENPASS"), client.bulk("ACL GENPASS"));
    assert!(one.len() == 64 && one != two, "{one} {two}");
    assert_eq!(client.bulk("ACL GENPASS 5").len(), 2);
    assert_eq!(client.bulk("ACL GENPASS 4096").len(), 1024);
    client.ask(
        "ACL GENPASS 0;ACL GENPASS x",
        "-ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096\r\n\
         -ERR value is not an integer or out of range\r\n",
    );
}

fn with_file(path: &Path) -> ServerOptions {
    ServerOptions {
        workers: 1,
        acl_file: Some(path.into()),
        ..ServerOptions::default()
    }
}

#[test]
fn the_acl_file_is_loaded_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users.acl");
    std::fs::write(
        &path,
        "user default on >secret ~* &* +@all\n\nuser a on >p (~x +get) +echo\n",
    )
    .unwrap();
    assert_eq!(
        default_user(&with_file(&path)).unwrap(),
        DefaultUser::Closed
    );
    let server = Running::with(with_file(&path));
    let mut admin = server.connect();
    admin.send("PING;AUTH secret");
    admin.expect("-NOAUTH Authentication required.\r\n+OK\r\n");
    let mut client = connect_as(&server, "a");
    client.ask("GET x;GET y", &format!("$-1\r\n{NO_KEY}"));
    admin.ask("ACL SETUSER b on nopass +@read;ACL SAVE", "+OK\r\n+OK\r\n");
    let saved = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = saved.lines().collect();
    assert_eq!(lines.len(), 3, "{saved}");
    assert_eq!(lines[1], "user b on nopass resetchannels -@all +@read");
    assert!(lines[2].starts_with("user default on #") && lines[2].ends_with(" ~* &* +@all"));
    // What a save that was killed has left is overwritten.
    std::fs::write(folder.path().join("users.acl.tmp"), "torn").unwrap();
    admin.ask(
        "ACL SETUSER c;ACL LOAD;ACL USERS",
        "+OK\r\n+OK\r\n*3\r\n$1\r\na\r\n$1\r\nb\r\n$7\r\ndefault\r\n",
    );
    // As in Redis 7.0, clients of loaded users are closed, except those of `default`.
    assert_eq!(client.drain(), "");
    std::fs::write(&path, "user a on nopass\nusr b\nuser a\nuser d +nope\n").unwrap();
    let file = path.display();
    admin.ask(
        "ACL LOAD;ACL USERS",
        &format!(
            "-ERR {file}:2 should start with user keyword followed by the username. WARNING: Duplicate user 'a' found on line \
             3. {file}:4: Unknown command or category name in ACL. WARNING: ACL errors detected, no change to the previously \
             active ACL rules was performed\r\n*3\r\n$1\r\na\r\n$1\r\nb\r\n$7\r\ndefault\r\n"
        ),
    );
    admin.ask("ACL SAVE", OK);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), saved);
}

#[test]
fn users_at_the_start_are_checked() {
    let options = |users: &[&str], password: &[u8]| ServerOptions {
        users: users.iter().map(|line| line.parse().unwrap()).collect(),
        password: Password::new(password),
        ..ServerOptions::default()
    };
    for (users, password, found) in [
        (&[][..], &b""[..], DefaultUser::Open),
        (&[], b"p", DefaultUser::Closed),
        (&["a on >p +@all"], b"", DefaultUser::Open),
        (&["default off"], b"", DefaultUser::Closed),
        (&["default on nopass ~* +get"], b"", DefaultUser::Restricted),
        (&["default on nopass ~* &* +@all"], b"p", DefaultUser::Open),
    ] {
        assert_eq!(
            default_user(&options(users, password)).unwrap(),
            found,
            "{users:?}"
        );
    }
    for (users, why) in [
        (&["a +nope"][..], "Unknown command"),
        (&["a", "a"], "Duplicate user"),
        (&["a (+get"], "Unmatched parenthesis"),
        (&["'a b' on"], "Spaces not allowed"),
    ] {
        let error = default_user(&options(users, b""));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(why), "{users:?}: {error}");
    }
    let mut both = options(&[], b"p");
    both.acl_file = Some("none".into());
    assert!(
        default_user(&both)
            .unwrap_err()
            .to_string()
            .contains("in the file only")
    );
    both.password = None;
    assert!(
        default_user(&both)
            .unwrap_err()
            .to_string()
            .contains("opening file 'none'")
    );
}
