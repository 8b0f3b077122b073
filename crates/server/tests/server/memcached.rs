//! memcached's protocol as clients see it: items, expiry, arithmetic, errors and statistics.

use farbank_server::ServerOptions;

use crate::harness::{Client, Running};

impl Client {
    /// Sends lines unchanged and compares the replies. Ends with a round trip, which proves that no other reply
    /// follows.
    #[track_caller]
    fn says(&mut self, sent: &str, expected: &str) {
        self.send_raw(format!("{sent}mn\r\n").as_bytes());
        self.expect(&format!("{expected}MN\r\n"));
    }

    /// The `cas` number of the item at `key`.
    fn cas(&mut self, key: &str) -> u64 {
        self.send_raw(format!("mg {key} c\r\n").as_bytes());
        let line = self.line();
        let cas = line
            .strip_prefix("HD c")
            .and_then(|rest| rest.split(' ').next());
        cas.unwrap_or_else(|| panic!("{line}")).parse().unwrap()
    }

    /// The value of the `stats` field `name`.
    pub(crate) fn stat(&mut self, what: &str, name: &str) -> String {
        self.send_raw(format!("stats{what}\r\n").as_bytes());
        let mut found = String::new();
        loop {
            let line = self.line();
            if line == "END" {
                return found;
            }
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = value.to_owned();
            }
        }
    }
}

#[test]
fn items_are_stored_conditionally_and_read_with_their_flags() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says("set a 7 0 3\r\nabc\r\n", "STORED\r\n");
    client.says("get a b\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n");
    client.says(
        "add a 0 0 1\r\nx\r\nadd b 0 0 1\r\nx\r\n",
        "NOT_STORED\r\nSTORED\r\n",
    );
    client.says(
        "replace c 0 0 1\r\nx\r\nreplace b 4294967295 0 1\r\ny\r\n",
        "NOT_STORED\r\nSTORED\r\n",
    );
    client.says(
        "append a 9 0 1\r\nd\r\nprepend a 9 0 1\r\n-\r\n",
        "STORED\r\nSTORED\r\n",
    );
    client.says("append c 0 0 1\r\nd\r\n", "NOT_STORED\r\n");
    client.says(
        "get a b c\r\n",
        "VALUE a 7 5\r\n-abcd\r\nVALUE b 4294967295 1\r\ny\r\nEND\r\n",
    );
    client.says(
        "delete a\r\ndelete a\r\nget a\r\n",
        "DELETED\r\nNOT_FOUND\r\nEND\r\n",
    );
    client.says(
        "set e 0 0 0\r\n\r\nget e\r\n",
        "STORED\r\nVALUE e 0 0\r\n\r\nEND\r\n",
    );
}

#[test]
fn cas_replaces_an_item_only_if_it_is_unchanged() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says("cas a 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n");
    client.says(
        "set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\n",
        "STORED\r\nSTORED\r\n",
    );
    let (a, b) = (client.cas("a"), client.cas("b"));
    assert_ne!(a, b);
    client.says("gets a\r\n", &format!("VALUE a 0 1 {a}\r\n1\r\nEND\r\n"));
    client.says(
        &format!("cas a 0 0 1 {b}\r\nx\r\ncas a 5 0 1 {a}\r\ny\r\ncas a 0 0 1 {a}\r\nz\r\n"),
        "EXISTS\r\nSTORED\r\nEXISTS\r\n",
    );
    assert!(client.cas("a") > a);
    client.says("get a\r\n", "VALUE a 5 1\r\ny\r\nEND\r\n");
    assert_eq!(client.stat("", "cas_hits"), "1");
    assert_eq!(client.stat("", "cas_badval"), "2");
    assert_eq!(client.stat("", "cas_misses"), "1");
}

#[test]
fn an_exptime_is_relative_up_to_thirty_days_absolute_above_and_past_if_negative() {
    let server = Running::new();
    server.store.set_clock(1_700_000_000_000);
    let mut client = server.connect_memcached();
    client.says(
        "set a 0 10 1\r\nx\r\nset b 0 1700000020 1\r\nx\r\nset c 0 -1 1\r\nx\r\nset d 0 2592000 1\r\nx\r\n",
        &"STORED\r\n".repeat(4),
    );
    client.says(
        "mg a t\r\nmg b t\r\nmg c t\r\nmg d t\r\n",
        "HD t10\r\nHD t20\r\nEN\r\nHD t2592000\r\n",
    );
    server.store.set_clock(1_700_000_010_000);
    client.says("get a b c\r\n", "VALUE b 0 1\r\nx\r\nEND\r\n");
    client.says(
        "touch b 100\r\ntouch a 100\r\nmg b t\r\n",
        "TOUCHED\r\nNOT_FOUND\r\nHD t100\r\n",
    );
    client.says(
        "gat 7 b a\r\nmg b t\r\n",
        "VALUE b 0 1\r\nx\r\nEND\r\nHD t7\r\n",
    );
    let cas = client.cas("b");
    client.says(
        "gats 7 b\r\n",
        &format!("VALUE b 0 1 {cas}\r\nx\r\nEND\r\n"),
    );
    client.says(
        "touch b 0\r\nmg b t\r\ntouch b -1\r\nget b\r\n",
        "TOUCHED\r\nHD t-1\r\nTOUCHED\r\nEND\r\n",
    );
}

#[test]
fn flush_all_removes_everything_at_once_or_after_its_delay() {
    let server = Running::new();
    server.store.set_clock(1_700_000_000_000);
    let mut client = server.connect_memcached();
    client.says(
        "set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n",
        "STORED\r\nOK\r\nEND\r\n",
    );
    client.says(
        "set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\n",
        "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
    server.store.set_clock(1_700_000_009_999);
    client.says(
        "set b 0 0 1\r\ny\r\nget a b\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n",
    );
    server.store.set_clock(1_700_000_010_000);
    client.says("get a b\r\n", "END\r\n");
    client.says(
        "set a 0 0 1\r\nx\r\nget a\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
    client.says(
        "flush_all x\r\nflush_all 0 noreply\r\nget a\r\n",
        "CLIENT_ERROR invalid exptime argument\r\nEND\r\n",
    );
}

#[test]
fn without_cas_all_numbers_are_zero_and_a_flush_removes_items_stored_in_the_same_second() {
    let server = Running::with(ServerOptions {
        workers: 1,
        cas_enabled: false,
        ..ServerOptions::default()
    });
    let mut client = server.connect_memcached();
    client.says(
        "set a 0 0 1\r\n1\r\ngets a\r\nmg a c\r\ncas a 0 0 1 0\r\n2\r\ncas a 0 0 1 1\r\n2\r\ncas b 0 0 1 0\r\n2\r\n",
        "STORED\r\nVALUE a 0 1 0\r\n1\r\nEND\r\nHD c0\r\nEXISTS\r\nEXISTS\r\nNOT_FOUND\r\n",
    );
    client.says(
        "ms a 1 MA C7\r\n2\r\nmg a v\r\nmd a C7\r\nmd a C0\r\n",
        "HD\r\nVA 2\r\n12\r\nEX\r\nHD\r\n",
    );
    assert_eq!(client.stat(" settings", "cas_enabled"), "no");
    // A second may end between the flush and the set, but not in all three tries.
    let lost = (0..3).any(|_| {
        client.send_raw(b"flush_all\r\nset a 0 0 1\r\n1\r\nmg a\r\n");
        client.expect("OK\r\nSTORED\r\n");
        client.line() == "EN"
    });
    assert!(lost);
}

#[test]
fn statistics_distinguish_misses_of_expired_items_from_other_misses() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says(
        "set a 0 -1 1\r\n1\r\nget a b\r\nmg a\r\nmg b\r\ngat 0 a\r\ntouch a 0\r\n",
        "STORED\r\nEND\r\nEN\r\nEN\r\nEND\r\nNOT_FOUND\r\n",
    );
    assert_eq!(client.stat("", "get_misses"), "5");
    assert_eq!(client.stat("", "get_expired"), "3");
    assert_eq!(client.stat("", "get_flushed"), "0");
}

#[test]
fn incr_wraps_around_and_decr_stops_at_zero_and_keeps_the_length() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says(
        "incr n 1\r\nset n 3 0 2\r\n99\r\nincr n 1\r\n",
        "NOT_FOUND\r\nSTORED\r\n100\r\n",
    );
    client.says(
        "decr n 1\r\nget n\r\n",
        "99\r\nVALUE n 3 3\r\n99 \r\nEND\r\n",
    );
    client.says(
        "decr n 1000\r\nget n\r\n",
        "0\r\nVALUE n 3 3\r\n0  \r\nEND\r\n",
    );
    client.says(
        "incr n 18446744073709551615\r\nincr n 2\r\n",
        "18446744073709551615\r\n1\r\n",
    );
    client.says(
        "incr n -1\r\nincr n x\r\n",
        &"CLIENT_ERROR invalid numeric delta argument\r\n".repeat(2),
    );
    let refused = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    client.says(
        "set t 0 0 3\r\n1a2\r\nincr t 1\r\ndecr t 1\r\n",
        &format!("STORED\r\n{refused}{refused}"),
    );
}

#[test]
fn a_request_with_noreply_is_executed_without_a_reply() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says(
        "set a 0 0 1 noreply\r\n1\r\nadd a 0 0 1 noreply\r\n2\r\nincr a 4 noreply\r\nget a\r\n",
        "VALUE a 0 1\r\n5\r\nEND\r\n",
    );
    client.says(
        "touch a 0 noreply\r\ndelete a noreply\r\ndelete a 0 noreply\r\nget a\r\n",
        "END\r\n",
    );
    client.says(
        "verbosity 1 noreply\r\nverbosity noreply\r\nverbosity 1\r\nverbosity x\r\n",
        "OK\r\nCLIENT_ERROR bad command line format\r\n",
    );
    client.says(
        "ms m 1 q\r\nx\r\nmg m q v\r\nmg n q v\r\nmd m q\r\nma z q N0\r\n",
        "VA 1\r\nx\r\nHD\r\n",
    );
}

#[test]
fn malformed_requests_get_the_errors_of_memcached() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    let long = "k".repeat(251);
    let format = "CLIENT_ERROR bad command line format\r\n";
    for (sent, expected) in [
        ("\r\n".to_owned(), "ERROR\r\n".to_owned()),
        (" \n".into(), "ERROR\r\n".into()),
        ("nonsense\r\n".into(), "ERROR\r\n".into()),
        ("get\r\nget \r\n".into(), "ERROR\r\nERROR\r\n".into()),
        (format!("get {long}\r\n"), format.into()),
        (format!("get a {long}\r\n"), format.into()),
        (format!("set {long} 0 0 1\r\n"), format.into()),
        (format!("mg {long}\r\n"), format.into()),
        (format!("delete {long}\r\n"), format.into()),
        ("set a 0 0 -1\r\n".into(), format.into()),
        (
            "set a 0 0 2\r\nabc\r\n".into(),
            "CLIENT_ERROR bad data chunk\r\nERROR\r\n".into(),
        ),
        (
            "delete a 5\r\n".into(),
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n".into(),
        ),
        (
            "touch a x\r\n".into(),
            "CLIENT_ERROR invalid exptime argument\r\n".into(),
        ),
        (
            "shutdown\r\n".into(),
            "ERROR: shutdown not enabled\r\n".into(),
        ),
        ("version\r\n".into(), "VERSION 1.6.18\r\n".into()),
        ("stats nonsense\r\n".into(), "ERROR\r\n".into()),
        (
            "mg a !\r\nmg a v v\r\n".into(),
            "CLIENT_ERROR invalid flag\r\nCLIENT_ERROR duplicate flag\r\n".into(),
        ),
        (
            "md a !\r\n".into(),
            "CLIENT_ERROR invalid or duplicate flag\r\n".into(),
        ),
        (
            "ms a 1 MZ\r\nx\r\n".into(),
            "CLIENT_ERROR invalid mode for ms M token\r\n".into(),
        ),
        (
            format!("mg a O{}\r\n", "x".repeat(32)),
            "CLIENT_ERROR opaque token too long\r\n".into(),
        ),
    ] {
        client.says(&sent, &expected);
    }
    for sent in [
        "GET / HTTP/1.0\r\n".to_owned(),
        "x".repeat(2049),
        "quit\r\n".into(),
    ] {
        let server = Running::new();
        let mut client = server.connect_memcached();
        client.send_raw(format!("mn\r\n{sent}").as_bytes());
        assert_eq!(client.drain(), "MN\r\n", "{sent}");
    }
}

#[test]
fn meta_replies_have_the_requested_flags_in_their_order() {
    let server = Running::new();
    server.store.set_clock(1_700_000_000_000);
    let mut client = server.connect_memcached();
    client.send_raw(b"ms k 3 F9 T60 Oabc k c\r\nxyz\r\n");
    let line = client.line();
    let cas = client.cas("k");
    assert_eq!(line, format!("HD Oabc kk c{cas}"));
    client.says("mg k s v f t O1 k\r\n", "VA 3 s3 f9 t60 O1 kk\r\nxyz\r\n");
    client.says("mg k\r\nmg nosuch O2 k v\r\n", "HD\r\nEN O2 knosuch\r\n");
    client.says("mg k t T30\r\nmg k T40 t\r\n", "HD t60\r\nHD t40\r\n");
    client.says("ms 44OG44K544OI 2 b k\r\nhi\r\n", "HD k44OG44K544OI b\r\n");
    client.says(
        "mg 44OG44K544OI b k v\r\nmg 44OG44K544OI v\r\n",
        "VA 2 k44OG44K544OI b\r\nhi\r\nEN\r\n",
    );
    server.connect().ask("GET テスト", "$2\r\nhi\r\n");
    client.says("md k O3\r\nmd k k\r\n", "HD O3\r\nNF kk\r\n");
}

#[test]
fn meta_commands_report_whether_a_key_was_read_and_when_it_was_used() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says(
        "set k 0 0 1\r\nx\r\nmg k h l\r\nmg k h u\r\n",
        "STORED\r\nHD h0 l0\r\nHD h1\r\n",
    );
    client.says(
        "set k 0 0 1\r\ny\r\nmg k u h\r\nmg k h\r\nget k\r\nmg k h\r\n",
        "STORED\r\nHD h0\r\nHD h0\r\nVALUE k 0 1\r\ny\r\nEND\r\nHD h1\r\n",
    );
    client.send_raw(b"me k\r\n");
    let line = client.line();
    assert!(line.starts_with("ME k exp=-1 la=0 cas="), "{line}");
    assert!(line.contains(" fetch=yes "), "{line}");
    client.says("me nosuch\r\n", "EN\r\n");
}

#[test]
fn one_client_wins_the_right_to_create_an_item() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says(
        "mg k v N30 t\r\nmg k v N30\r\nmg k s\r\n",
        "VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\nHD s0 Z\r\n",
    );
    let cas = client.cas("k");
    client.says(
        &format!("ms k 2 C{cas} T100\r\nhi\r\nmg k v\r\n"),
        "HD\r\nVA 2\r\nhi\r\n",
    );
    client.says(
        "mg k R50 t\r\nmg k R150 t\r\nmg k R150 t\r\n",
        "HD t100\r\nHD t100 W\r\nHD t100 Z\r\n",
    );
}

#[test]
fn a_stale_item_is_served_and_one_client_wins_the_right_to_replace_it() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says("ms k 2\r\nhi\r\n", "HD\r\n");
    let old = client.cas("k");
    client.says("md k I T30\r\n", "HD\r\n");
    client.says(
        "mg k v t\r\nmg k v\r\n",
        "VA 2 t30 X W\r\nhi\r\nVA 2 Z X\r\nhi\r\n",
    );
    client.says(&format!("ms k 2 C{old}\r\nno\r\n"), "EX\r\n");
    // With the flag I, a store with an older `cas` number leaves the item stale.
    client.says(
        &format!("ms k 2 C{old} I\r\nok\r\nmg k v t\r\n"),
        "HD\r\nVA 2 t30 Z X\r\nok\r\n",
    );
    client.says("ms k 3\r\nnew\r\nmg k v\r\n", "HD\r\nVA 3\r\nnew\r\n");
}

#[test]
fn stale_and_won_marks_do_not_change_a_values_type_for_redis() {
    let server = Running::new();
    let (mut memcached, mut redis) = (server.connect_memcached(), server.connect());
    memcached.says(
        "ms k 1\r\n1\r\nmd k I\r\nmg k v\r\n",
        "HD\r\nHD\r\nVA 1 X W\r\n1\r\n",
    );
    redis.ask(
        "GET k;TYPE k;INCR k;EXPIRE k 100;APPEND k 0",
        "$1\r\n1\r\n+string\r\n:2\r\n:1\r\n:2\r\n",
    );
    memcached.says("get k\r\n", "VALUE k 0 2\r\n20\r\nEND\r\n");
    redis.ask("SET k 5 EX 100", "+OK\r\n");
    memcached.says("incr k 1\r\nmg k t v\r\n", "6\r\nVA 1 t100\r\n6\r\n");
    redis.ask("GET k", "$1\r\n6\r\n");
}

#[test]
fn ma_creates_changes_and_compares_numbers() {
    let server = Running::new();
    let mut client = server.connect_memcached();
    client.says(
        "ma n\r\nma n N60 J13 v t\r\nma n v\r\n",
        "NF\r\nVA 2 t60\r\n13\r\nVA 2\r\n14\r\n",
    );
    client.says(
        "ma n D30 v O1 k\r\nma n MD D22 v\r\nma n M- D9000 v\r\n",
        "VA 2 O1 kn\r\n44\r\nVA 2\r\n22\r\nVA 1\r\n0\r\n",
    );
    client.says(
        "ma n C99 v\r\nma n T0 t\r\nma n M?\r\n",
        "EX\r\nHD t-1\r\nCLIENT_ERROR invalid mode for ma M token\r\n",
    );
    let cas = client.cas("n");
    client.says(&format!("ma n C{cas} v\r\n"), "VA 1\r\n2\r\n");
}

#[test]
fn stats_count_executed_operations() {
    let server = Running::new();
    server.store.set_clock(1_700_000_000_000);
    let mut client = server.connect_memcached();
    client.says(
        "set a 0 0 1\r\n1\r\nget a b\r\nincr a 1\r\nincr b 1\r\ndecr a 1\r\ntouch a 9\r\ntouch b 9\r\ndelete b\r\n",
        "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n2\r\nNOT_FOUND\r\n1\r\nTOUCHED\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
    for (name, count) in [
        ("cmd_get", "2"),
        ("cmd_set", "1"),
        ("get_hits", "1"),
        ("get_misses", "1"),
        ("incr_hits", "1"),
        ("incr_misses", "1"),
        ("decr_hits", "1"),
        ("cmd_touch", "2"),
        ("touch_hits", "1"),
        ("delete_misses", "1"),
        ("curr_items", "1"),
        ("total_items", "1"),
        ("pointer_size", "64"),
        ("version", "1.6.18"),
    ] {
        assert_eq!(client.stat("", name), count, "{name}");
    }
    assert_eq!(client.stat(" settings", "item_size_max"), "1048576");
    client.says("stats reset\r\n", "RESET\r\n");
    assert_eq!(client.stat("", "cmd_get"), "0");
    client.says("stats items\r\n", "END\r\n");
    client.says(
        "stats detail on\r\nset p:1 0 0 1\r\nx\r\nget p:1 p:2\r\ndelete p:1\r\n",
        "OK\r\nSTORED\r\nVALUE p:1 0 1\r\nx\r\nEND\r\nDELETED\r\n",
    );
    client.says(
        "stats detail dump\r\n",
        "PREFIX p get 2 hit 1 set 1 del 1\r\nEND\r\n",
    );
    client.says(
        "stats cachedump 1 10\r\n",
        "ITEM a [1 b; 1700000009 s]\r\nEND\r\n",
    );
}
