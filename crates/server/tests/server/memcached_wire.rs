//! memcached's protocol on the wire: split requests, pipelines, misbehaving clients, Redis clients beside it, and when
//! replies are sent.

use crate::harness::{Client, Running, field, wait_until};
use farbank_server::ServerOptions;

#[track_caller]
fn round_trip(client: &mut Client) {
    client.send_raw(b"mn\r\n");
    client.expect("MN\r\n");
}

#[test]
fn a_write_is_acknowledged_and_visible_only_once_its_ticket_is_durable() {
    let server = Running::new();
    server.store.hold();
    let (mut writer, mut reader) = (server.connect_memcached(), server.connect_memcached());
    writer.send_raw(b"get a\r\nset a 0 0 1\r\n1\r\nget a\r\nincr a 1\r\n");
    writer.expect("END\r\n");
    server.await_held(1);
    reader.send_raw(b"get a\r\nmg a v\r\nmn\r\n");
    reader.expect("END\r\nEN\r\nMN\r\n");
    server.connect().ask("GET a", "$-1\r\n");
    // Replies after a held reply are held too, and their requests see the connection's own writes.
    writer.send_raw(b"mg a v\r\n");
    round_trip(&mut reader);
    server.store.turn();
    writer.expect("STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n2\r\nVA 1\r\n2\r\n");
    reader.send_raw(b"get a\r\n");
    reader.expect("VALUE a 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn every_write_command_waits_for_its_ticket_even_if_it_changed_nothing() {
    for request in [
        "add k 0 0 1\r\nx\r\n",
        "replace k 0 0 1\r\nx\r\n",
        "append k 0 0 1\r\nx\r\n",
        "cas k 0 0 1 1\r\nx\r\n",
        "ms k 1\r\nx\r\n",
        "md k\r\n",
        "md nosuch\r\n",
        "ma k\r\n",
        "mg k N30\r\n",
        "mg k T30\r\n",
        "gat 30 k\r\n",
        "touch k 30\r\n",
        "incr k 1\r\n",
        "delete k\r\n",
        "delete nosuch\r\n",
        "set other 0 0 1 noreply\r\nx\r\nget other\r\n",
    ] {
        let server = Running::new();
        server.store.hold();
        let (mut one, mut two) = (server.connect_memcached(), server.connect_memcached());
        one.send_raw(b"set k 0 0 1\r\n1\r\n");
        server.await_held(1);
        // The request applies to a write that is not durable, and its reply reveals that write.
        two.send_raw(request.as_bytes());
        let mut third = server.connect_memcached();
        round_trip(&mut third);
        two.stream.set_nonblocking(true).unwrap();
        let early = std::io::Read::read(&mut two.stream, &mut [0; 64]);
        let early = early.map_err(|e| e.kind());
        two.stream.set_nonblocking(false).unwrap();
        assert_eq!(early, Err(std::io::ErrorKind::WouldBlock), "{request:?}");
        server.store.let_go();
        one.expect("STORED\r\n");
        round_trip(&mut one);
    }
}

#[test]
fn after_a_medium_failure_no_write_is_acknowledged_and_reads_still_work() {
    let server = Running::new();
    let (mut writer, mut reader) = (server.connect_memcached(), server.connect_memcached());
    writer.send_raw(b"set a 0 0 1\r\n1\r\n");
    writer.expect("STORED\r\n");
    server.store.hold();
    writer.send_raw(b"mn\r\nset a 0 0 1\r\n2\r\nmn\r\n");
    writer.expect("MN\r\n");
    server.await_held(1);
    server.store.poison("fdatasync: Input/output error");
    assert_eq!(writer.drain(), "");
    let refused = "SERVER_ERROR the pool cannot be written: fdatasync: Input/output error\r\n";
    reader.send_raw(b"get a\r\nset a 0 0 1\r\n3\r\ndelete a\r\nmg a v\r\n");
    reader.expect(&format!(
        "VALUE a 0 1\r\n1\r\nEND\r\n{refused}{refused}VA 1\r\n1\r\n"
    ));
}

#[test]
fn a_set_refused_by_a_full_pool_deletes_the_old_item() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.send_raw(b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n");
    client.expect("STORED\r\nSTORED\r\n");
    server.store.fill(true);
    client.send_raw(b"set a 0 0 1\r\n2\r\nreplace b 0 0 1\r\n2\r\nget a b\r\n");
    let full = "SERVER_ERROR out of memory storing object\r\n";
    client.expect(&format!("{full}{full}VALUE b 0 1\r\n1\r\nEND\r\n"));
}

#[test]
fn requests_may_arrive_byte_by_byte() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    let requests = "set k 1 0 5\r\na\r\nbc\r\nget k nosuch\r\nms k 2 T0\r\nhi\r\nmg k v\r\nset k 0 0 1\r\nabc\r\n";
    for byte in requests.bytes() {
        client.send_raw(&[byte]);
    }
    let replies = "STORED\r\nVALUE k 1 5\r\na\r\nbc\r\nEND\r\nHD\r\nVA 2\r\nhi\r\n";
    client.expect(&format!(
        "{replies}CLIENT_ERROR bad data chunk\r\nERROR\r\n"
    ));
}

#[test]
fn random_input_gets_the_same_replies_for_every_split() {
    let words = [
        "get ",
        "gets ",
        "set ",
        "add ",
        "ms ",
        "mg ",
        "md ",
        "ma ",
        "incr ",
        "k ",
        "key2 ",
        "0 ",
        "1 ",
        "5 ",
        "\r\n",
        "\n",
        "hello\r\n",
        "v ",
        "t ",
        "N30 ",
        "noreply",
        "-1 ",
        "\0",
        " ",
        "x",
        "\r",
        "quit\r\n",
        "delete k\r\n",
        "99999999999 ",
        "touch k 0\r\n",
        "S",
        "cas ",
        "append ",
        "gat 0 k\r\n",
        "flush_all\r\n",
        "version\r\n",
    ];
    let mut seed = 0x5eed_u64;
    let mut draw = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for round in 0..300 {
        let count = 1 + draw(40);
        let bytes: String = (0..count).map(|_| words[draw(words.len())]).collect();
        let cuts: Vec<usize> = (0..4).map(|_| 1 + draw(20)).collect();
        let answer = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            // A fresh store, so that versions are the same.
            let server = Running::new();
            server.store.set_clock(1_700_000_000_000);
            let mut client = server.connect_memcached();
            for piece in pieces {
                // The server may have closed the connection.
                let _ = std::io::Write::write_all(&mut client.stream, piece);
            }
            let _ = client.stream.shutdown(std::net::Shutdown::Write);
            client.drain()
        };
        let bytes = bytes.as_bytes();
        let whole = answer(&mut std::iter::once(bytes));
        let mut rest = bytes;
        let mut cut = cuts.iter().cycle();
        let mut pieces = std::iter::from_fn(|| {
            let (piece, more) = rest.split_at((*cut.next()?).min(rest.len()));
            rest = more;
            (!piece.is_empty()).then_some(piece)
        });
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(
            answer(&mut pieces),
            whole,
            "round {round}: {text:?} cut by {cuts:?}"
        );
    }
}

#[test]
fn long_pipelines_and_long_lists_of_keys_are_answered_in_order() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    let (mut bytes, mut expected) = (Vec::new(), String::new());
    for at in 0..5_000 {
        bytes.extend_from_slice(format!("set k{at} 0 0 4\r\n{at:04}\r\n").as_bytes());
        expected.push_str("STORED\r\n");
    }
    bytes.extend_from_slice(b"get");
    for at in 0..5_000 {
        bytes.extend_from_slice(format!(" k{at}").as_bytes());
        expected.push_str(&format!("VALUE k{at} 0 4\r\n{at:04}\r\n"));
    }
    bytes.extend_from_slice(b"\r\n");
    expected.push_str("END\r\n");
    let mut writer = client.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || std::io::Write::write_all(&mut writer, &bytes).unwrap());
        client.expect(&expected);
    });
}

#[test]
fn values_up_to_the_limit_are_stored_and_larger_ones_are_refused() {
    let server = Running::with(ServerOptions {
        workers: 1,
        item_bytes_max: 4 << 20,
        ..ServerOptions::default()
    });
    let mut client = server.connect_memcached();
    let value = "x".repeat(3 << 20);
    let len = value.len();
    client.send_raw(
        format!("set big 0 0 {len}\r\n{value}\r\nget big\r\nappend big 0 0 {len}\r\n{value}\r\n")
            .as_bytes(),
    );
    client.expect(&format!(
        "STORED\r\nVALUE big 0 {len}\r\n{value}\r\nEND\r\nNOT_STORED\r\n"
    ));
    let too_large = 4 << 20;
    let line = format!("set big 0 0 {too_large}\r\n");
    client.send_raw(line.as_bytes());
    // The refusal does not wait for the value, and the old item is deleted.
    client.expect("SERVER_ERROR object too large for cache\r\n");
    client.send_raw(&vec![b'y'; too_large]);
    client.send_raw(b"\r\nget big\r\n");
    client.expect("END\r\n");
}

#[test]
fn an_announced_gigabyte_uses_no_memory() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.send_raw(b"set k 0 0 1\r\nx\r\nset k 0 0 1073741824\r\n");
    client.expect("STORED\r\nSERVER_ERROR object too large for cache\r\n");
    for _ in 0..16 {
        client.send_raw(&vec![b'y'; 1 << 20]);
    }
    let mut other = server.connect();
    let list = other.bulk("CLIENT LIST");
    let buffers = list.split("qbuf=").skip(1).map(|rest| {
        let digits = rest.split(' ').next().unwrap();
        digits.parse::<usize>().unwrap()
    });
    assert!(buffers.max().unwrap() <= 128 << 10, "{list}");
    other.ask("GET k", "$-1\r\n");
}

#[test]
fn a_client_that_sends_half_a_value_does_not_delay_other_clients() {
    let server = Running::new();
    let (mut half, mut other) = (server.connect_memcached(), server.connect_memcached());
    half.send_raw(b"set k 0 0 1000000\r\nabc");
    round_trip(&mut other);
    other.send_raw(b"get k\r\n");
    other.expect("END\r\n");
    half.finish();
    assert_eq!(half.drain(), "");
    other.send_raw(b"get k\r\n");
    other.expect("END\r\n");
}

#[test]
fn a_client_that_does_not_read_blocks_only_itself() {
    let server = Running::new();
    let (mut deaf, mut other) = (server.connect_memcached(), server.connect_memcached());
    let value = "x".repeat(1 << 19);
    let len = value.len();
    other.send_raw(format!("set big 0 0 {len}\r\n{value}\r\n").as_bytes());
    other.expect("STORED\r\n");
    for _ in 0..300 {
        deaf.send_raw(b"get big\r\n");
    }
    deaf.send_raw(b"set last 0 0 1\r\nx\r\n");
    round_trip(&mut other);
    let reply = format!("VALUE big 0 {len}\r\n{value}\r\nEND\r\n");
    for _ in 0..300 {
        deaf.expect(&reply);
    }
    deaf.expect("STORED\r\n");
}

#[test]
fn a_reply_above_the_limit_is_refused() {
    let server = Running::new();
    let (mut client, mut redis) = (server.connect_memcached(), server.connect());
    redis.send_raw(b"CONFIG SET client-output-buffer-limit \"normal 64mb 0 0\"\r\n");
    redis.expect("+OK\r\n");
    let value = "x".repeat(1 << 19);
    client.send_raw(format!("set big 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
    client.expect("STORED\r\n");
    client.send_raw(format!("get{}\r\nmn\r\n", " big".repeat(200)).as_bytes());
    client.expect("SERVER_ERROR out of memory writing get response\r\nMN\r\n");
}

#[test]
fn memcached_clients_above_maxclients_get_the_error_of_memcached() {
    let server = Running::with(ServerOptions {
        workers: 1,
        clients_max: 1,
        ..ServerOptions::default()
    });
    let mut one = server.connect();
    one.ask("PING", "+PONG\r\n");
    let mut two = server.connect_memcached();
    assert_eq!(two.drain(), "ERROR Too many open connections\r\n");
}

#[test]
fn both_protocols_serve_the_same_values_concurrently() {
    let server = Running::with(ServerOptions {
        workers: 2,
        ..ServerOptions::default()
    });
    let (mut redis, mut memcached) = (server.connect(), server.connect_memcached());
    redis.ask("SET a 1;SELECT 1;SET a 2", "+OK\r\n+OK\r\n+OK\r\n");
    memcached.send_raw(b"get a\r\nset n 0 0 1\r\n0\r\n");
    memcached.expect("VALUE a 0 1\r\n1\r\nEND\r\nSTORED\r\n");
    std::thread::scope(|scope| {
        for at in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..100 {
                    if at % 2 == 0 {
                        let mut client = server.connect();
                        client.send("INCR n");
                        client.line();
                    } else {
                        let mut client = server.connect_memcached();
                        client.send_raw(b"incr n 1\r\n");
                        client.line();
                    }
                }
            });
        }
    });
    memcached.send_raw(b"get n\r\n");
    memcached.expect("VALUE n 0 3\r\n800\r\nEND\r\n");
}

#[test]
fn a_refused_value_is_discarded_even_if_the_time_slice_ends_at_its_request() {
    let server = Running::start(ServerOptions {
        workers: 1,
        time_slice: std::time::Duration::ZERO,
        ..ServerOptions::default()
    });
    // The clock is read after every fourth short request, so one of these ends the time slice.
    for earlier in 0..8 {
        let mut client = server.connect_memcached();
        let mut requests = b"set k 0 0 1\r\nx\r\n".repeat(earlier);
        requests.extend_from_slice(b"set large 0 0 2000000\r\n");
        client.send_raw(&requests);
        let value = b"set k 0 0 6\r\nforged\r\n".repeat(100_000);
        client.send_raw(&value[..2_000_000]);
        client.send_raw(b"\r\nmn\r\n");
        let refusal = "SERVER_ERROR object too large for cache\r\nMN\r\n";
        client.expect(&format!("{}{refusal}", "STORED\r\n".repeat(earlier)));
    }
}

/// Starts a server whose memcached clients must give a name and a password of this file.
fn with_auth_file(path: &std::path::Path, text: &str) -> Running {
    std::fs::write(path, text).unwrap();
    Running::with(ServerOptions {
        memcached_auth_file: Some(path.into()),
        ..ServerOptions::default()
    })
}

#[test]
fn with_an_auth_file_a_client_is_served_once_it_has_given_a_name_and_its_password() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_auth_file(&folder.path().join("auth"), "anna:secret\nbert:word\n");
    let mut client = server.connect_memcached();
    let refused = "CLIENT_ERROR unauthenticated\r\n";
    for request in [
        "get k\r\n",
        "mn\r\n",
        "version\r\n",
        "stats\r\n",
        "quit\r\n",
        "\r\n",
        "ms k 1\r\n",
    ] {
        client.send_raw(request.as_bytes());
        client.expect(refused);
    }
    let failure = "CLIENT_ERROR authentication failure\r\n";
    client.send_raw(b"set k 0 0 9\r\nanna word\r\nset k 0 0 11\r\nanna secretx");
    client.expect(failure);
    client.send_raw(b"\nget k\r\n");
    client.expect(&format!(
        "CLIENT_ERROR bad command line termination\r\n{refused}"
    ));
    // Requests after the right one are executed in the same turn. The `set` stores nothing.
    client.send_raw(b"set k 0 0 9\r\nbert word\r\nget k\r\nset k 0 0 1\r\nx\r\n");
    client.expect("STORED\r\nEND\r\nSTORED\r\n");
    let shown = client.stat(" settings", "auth_enabled_ascii");
    assert_eq!(shown, folder.path().join("auth").to_str().unwrap());
    assert_eq!(client.stat("", "auth_cmds"), "2");
    assert_eq!(client.stat("", "auth_errors"), "1");
    // Another connection has to authenticate by itself. Redis clients have users of their own.
    let mut other = server.connect_memcached();
    other.send_raw(b"get k\r\n");
    other.expect(refused);
    server.connect().ask("GET k", "$1\r\nx\r\n");
}

#[test]
fn a_login_has_the_same_reply_however_its_bytes_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_auth_file(&folder.path().join("auth"), "anna:secret");
    let mut client = server.connect_memcached();
    for byte in b"set k 0 0 11\r\nanna secret\r\n" {
        client.send_raw(&[*byte]);
        server.connect().ask("PING", "+PONG\r\n");
    }
    client.expect("STORED\r\n");
    round_trip(&mut client);
}

#[test]
fn a_client_without_a_password_is_given_no_memory_for_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_auth_file(&folder.path().join("auth"), "anna:secret");
    let mut client = server.connect_memcached();
    client.send_raw(b"set k 0 0 2000000\r\n");
    client.expect("CLIENT_ERROR authentication failure\r\n");
    let mut value = vec![b'x'; 2_000_000];
    value.extend_from_slice(b"\r\nset k 0 0 11\r\nanna secret\r\n");
    client.send_raw(&value);
    client.expect("STORED\r\n");
    let mut endless = server.connect_memcached();
    endless.send_raw(&[b'x'; 4096]);
    assert_eq!(endless.drain(), "");
}

#[test]
fn a_client_without_a_password_that_reads_no_reply_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_auth_file(&folder.path().join("auth"), "anna:secret");
    let mut deaf = server.connect_memcached();
    // The replies are 93 MB; a client that reads none is served until 64 MiB of them are unsent.
    deaf.send_raw(&b"\n".repeat(3_000_000));
    let mut client = server.connect();
    let mut unsent = || {
        let shown = field(&mut client, "clients", "client_recent_max_output_buffer");
        shown.parse::<usize>().unwrap()
    };
    let mut before = 0;
    wait_until(|| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = unsent();
        let is_over = now >= 64 << 20 && now == before;
        before = now;
        is_over
    });
    // Not one request more is executed, also among those that arrived together.
    assert!(before < (64 << 20) + 100, "{before}");
}

#[test]
fn an_auth_file_counts_where_the_user_default_has_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("auth");
    std::fs::write(&path, "anna:secret\n").unwrap();
    let server = Running::with(ServerOptions {
        password: farbank_server::Password::new(b"other"),
        memcached_auth_file: Some(path),
        ..ServerOptions::default()
    });
    let mut client = server.connect_memcached();
    client.send_raw(b"get k\r\nset k 0 0 11\r\nanna secret\r\nget k\r\n");
    client.expect("CLIENT_ERROR unauthenticated\r\nSTORED\r\nEND\r\n");
}
