//! The admin port: its pages, and clients that misuse it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use farbank_server::ServerOptions;

use crate::harness::{Client, Running, wait_until};

fn with_admin() -> Running {
    Running::with(ServerOptions {
        workers: 1,
        admin: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..ServerOptions::default()
    })
}

/// Sends `head`, and returns the status and the body of the response.
fn fetch(server: &Running, head: &str) -> (u16, String) {
    let mut client = server.connect_admin();
    client.send_raw(head.as_bytes());
    response(&mut client)
}

fn response(client: &mut Client) -> (u16, String) {
    let text = client.drain();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    (status.parse().unwrap_or_default(), body.to_owned())
}

fn get(server: &Running, path: &str) -> (u16, String) {
    fetch(
        server,
        &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    )
}

/// Waits until a GET of `path` has `text` in its body: workers publish their counts once in a loop iteration.
#[track_caller]
fn await_text(server: &Running, path: &str, text: &str) -> String {
    let began = Instant::now();
    loop {
        let (status, body) = get(server, path);
        assert_eq!(status, 200, "{body}");
        if body.contains(text) {
            return body;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{text}: {body}");
    }
}

#[test]
fn metrics_count_requests_and_their_times() {
    let server = with_admin();
    let mut client = server.connect();
    client.ask(
        "SET a 1;GET a;GET b;NO",
        "+OK\r\n$1\r\n1\r\n$-1\r\n-ERR unknown command 'NO', with args beginning with: \r\n",
    );
    let text = await_text(&server, "/metrics", "farbank_keyspace_misses_total 1");
    for line in [
        "# TYPE farbank_commands counter",
        "farbank_keyspace_hits_total 1",
        "farbank_error_replies_total 1",
        "farbank_connected_clients 1",
        "farbank_keys{db=\"0\"} 1",
        "farbank_up 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
    let timed = text
        .lines()
        .find_map(|line| line.strip_prefix("farbank_request_seconds_count "));
    assert!(timed.unwrap().parse::<u64>().unwrap() >= 3, "{text}");
}

#[test]
fn a_held_reply_counts_with_the_time_until_it_is_durable() {
    let server = with_admin();
    let mut client = server.connect();
    server.store.hold();
    client.send("SET a 1");
    server.await_held(1);
    std::thread::sleep(Duration::from_millis(50));
    server.store.let_go();
    client.expect("+OK\r\n");
    let text = await_text(&server, "/metrics", "farbank_request_seconds_count 1");
    let sum = text
        .lines()
        .find_map(|line| line.strip_prefix("farbank_request_seconds_sum "));
    assert!(sum.unwrap().parse::<f64>().unwrap() >= 0.05, "{text}");
    // Prometheus computes no quantile without this bucket.
    let all = "farbank_request_seconds_bucket{le=\"+Inf\"} 1\n";
    assert!(text.contains(all), "{text}");
}

#[test]
fn keys_are_shown_only_to_a_client_that_names_this_machine() {
    let server = with_admin();
    let mut client = server.connect();
    for _ in 0..200 {
        client.ask("SET secret-key 1", "+OK\r\n");
    }
    await_text(&server, "/status.json", "secret-key");
    let (status, body) = fetch(
        &server,
        "GET /status.json HTTP/1.1\r\nHost: site.example\r\n\r\n",
    );
    assert_eq!(status, 200);
    assert!(!body.contains("secret-key"), "{body}");
    let (_, metrics) = get(&server, "/metrics");
    assert!(!metrics.contains("secret-key"), "{metrics}");
}

#[test]
fn health_and_readiness_follow_the_medium() {
    let server = with_admin();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(&server, path), (200, "ok\n".to_owned()));
    }
    server.store.poison("it broke");
    let mut client = server.connect();
    client.send("SET a 1");
    client.expect("-MISCONF Errors writing to the pool: it broke\r\n");
    for path in ["/healthz", "/readyz"] {
        let (status, body) = get(&server, path);
        assert_eq!(status, 503);
        assert!(body.contains("it broke"), "{body}");
    }
    let body = await_text(&server, "/status.json", "it broke");
    assert!(body.contains("\"up\":0"), "{body}");
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let server = with_admin();
    let (status, page) = get(&server, "/?reload=1");
    assert_eq!(status, 200);
    assert!(page.contains("</html>"), "{page}");
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let (status, body) = fetch(&server, "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((status, body.as_str()), (200, ""));
}

#[test]
fn invalid_requests_get_an_error() {
    let server = with_admin();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    for (head, expected) in [
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("GET /none HTTP/1.1\r\n\r\n", 404),
        ("GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        ("*1\r\n$4\r\nPING\r\n", 400),
        ("\0\x01\x02 garbage\r\n\r\n", 400),
        (long.as_str(), 431),
        (many.as_str(), 431),
        ("GET /metrics HTTP/1.1\r\nHost: ", 408), // Never completed.
    ] {
        assert_eq!(fetch(&server, head).0, expected, "{head}");
    }
}

#[test]
fn idle_connections_delay_other_clients_for_two_seconds_at_most() {
    let server = with_admin();
    let mut idle: Vec<_> = (0..40).map(|_| server.connect_admin()).collect();
    let mut client = server.connect();
    client.ask("PING", "+PONG\r\n"); // Clients of the store are served at once.
    for connection in &mut idle {
        // Those above the limit are closed without a response, the others when their time is over.
        let (status, _) = response(connection);
        assert!(matches!(status, 0 | 408), "{status}");
    }
    // A connection counts until its thread has ended, a moment after its client sees the end.
    wait_until(|| get(&server, "/healthz").0 == 200);
}

#[test]
fn a_server_with_an_idle_admin_connection_stops_at_once() {
    let server = with_admin();
    let _idle = server.connect_admin();
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(2));
}

/// Returns the names in `text` that begin with `farbank_`.
fn figure_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("farbank_")).collect()
}

#[test]
fn every_figure_of_the_dashboard_exists() {
    let dashboard = include_str!("../../../../etc/grafana-dashboard.json");
    let server = with_admin();
    let metrics = await_text(&server, "/metrics", "farbank_up 1");
    let (shown, existing) = (figure_names(dashboard), figure_names(&metrics));
    let missing: Vec<_> = shown.difference(&existing).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(shown.len() > 30, "{shown:?}");
}

#[test]
fn metrics_count_the_keys_that_maxmemory_evicts() {
    let server = with_admin();
    let mut client = server.connect();
    client.ask(
        "SET a 12345;SET b 12345;CONFIG SET maxmemory-policy allkeys-random maxmemory 1",
        &"+OK\r\n".repeat(3),
    );
    await_text(&server, "/metrics", "farbank_evicted_keys_total 2");
}
