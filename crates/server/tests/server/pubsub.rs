//! Publish and subscribe.

use crate::harness::{Client, Running, request, wait_until};
use farbank_server::ServerOptions;

/// Starts a server with this number of workers.
fn with_workers(workers: usize) -> Running {
    Running::with(ServerOptions {
        workers,
        ..ServerOptions::default()
    })
}

/// A message of a channel in RESP2.
fn message(channel: &str, text: &str) -> String {
    let (channel_len, text_len) = (channel.len(), text.len());
    format!("*3\r\n$7\r\nmessage\r\n${channel_len}\r\n{channel}\r\n${text_len}\r\n{text}\r\n")
}

/// Subscribes to a channel and reads the confirmation.
fn subscribe(client: &mut Client, channel: &str) {
    client.send(&format!("SUBSCRIBE {channel}"));
    let len = channel.len();
    client.expect(&format!(
        "*3\r\n$9\r\nsubscribe\r\n${len}\r\n{channel}\r\n:1\r\n"
    ));
}

/// Waits until a channel has `count` subscribers.
fn await_subscribers(client: &mut Client, channel: &str, count: usize) {
    let len = channel.len();
    wait_until(|| {
        client.send(&format!("PUBSUB NUMSUB {channel}"));
        client.expect(&format!("*2\r\n${len}\r\n{channel}\r\n"));
        client.line() == format!(":{count}")
    });
}

/// Reads the reply of HELLO.
fn read_hello(client: &mut Client) {
    while client.line() != "*0" {}
}

fn replies(text: &str) -> String {
    text.replace('/', "\r\n")
}

#[test]
fn a_message_reaches_the_subscribers_of_its_channel_and_of_matching_patterns() {
    let server = Running::new();
    let (mut one, mut two, mut publisher) = (server.connect(), server.connect(), server.connect());
    one.send("SUBSCRIBE news other;PSUBSCRIBE n?ws x*");
    one.expect(&replies(
        "*3/$9/subscribe/$4/news/:1/*3/$9/subscribe/$5/other/:2/*3/$10/psubscribe/$4/n?ws/:3/\
         *3/$10/psubscribe/$2/x*/:4/",
    ));
    two.send("PSUBSCRIBE *");
    two.expect(&replies("*3/$10/psubscribe/$1/*/:1/"));
    publisher.ask(
        "PUBLISH news hi;PUBLISH none x;SPUBLISH news x",
        ":3\r\n:1\r\n:0\r\n",
    );
    one.expect(&replies(
        "*3/$7/message/$4/news/$2/hi/*4/$8/pmessage/$4/n?ws/$4/news/$2/hi/",
    ));
    two.expect(&replies(
        "*4/$8/pmessage/$1/*/$4/news/$2/hi/*4/$8/pmessage/$1/*/$4/none/$1/x/",
    ));
    publisher.ask(
        "PUBSUB CHANNELS n*;PUBSUB NUMSUB news none;PUBSUB NUMPAT;PUBSUB SHARDCHANNELS",
        &replies("*1/$4/news/*4/$4/news/:1/$4/none/:0/:3/*0/"),
    );
}

#[test]
fn a_resp2_client_with_subscriptions_may_only_use_few_commands() {
    let server = Running::new();
    let mut client = server.connect();
    subscribe(&mut client, "a");
    let refused =
        "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
    client.send(
        "GET k;CONFIG GET x;EXEC;PING;PING hi;SSUBSCRIBE s;UNSUBSCRIBE;GET k;SUNSUBSCRIBE;GET k",
    );
    client.expect(&format!(
        "-ERR Can't execute 'get': {refused}\r\n-ERR Can't execute 'config|get': {refused}\r\n\
         -EXECABORT Transaction discarded because of: Can't execute 'exec': {refused}\r\n"
    ));
    client.expect(&replies(
        "*2/$4/pong/$0//*2/$4/pong/$2/hi/*3/$10/ssubscribe/$1/s/:1/*3/$11/unsubscribe/$1/a/:0/",
    ));
    client.expect(&format!("-ERR Can't execute 'get': {refused}\r\n"));
    client.expect(&replies("*3/$12/sunsubscribe/$1/s/:0/$-1/"));
}

#[test]
fn a_resp3_client_receives_pushes_and_may_use_every_command() {
    let server = Running::new();
    let (mut client, mut publisher) = (server.connect(), server.connect());
    client.send("HELLO 3;SUBSCRIBE a;SSUBSCRIBE a;SET k v;GET k;PUBLISH a own");
    read_hello(&mut client);
    client.expect(&replies(
        ">3/$9/subscribe/$1/a/:1/>3/$10/ssubscribe/$1/a/:1/+OK/$1/v/>3/$7/message/$1/a/$3/own/:1/",
    ));
    publisher.ask("PUBLISH a x;SPUBLISH a y", ":1\r\n:1\r\n");
    client.expect(&replies(
        ">3/$7/message/$1/a/$1/x/>3/$8/smessage/$1/a/$1/y/",
    ));
}

#[test]
fn reset_and_disconnection_end_the_subscriptions() {
    let server = Running::new();
    let (mut one, mut two, mut other) = (server.connect(), server.connect(), server.connect());
    subscribe(&mut one, "a");
    subscribe(&mut two, "a");
    two.send("PSUBSCRIBE p*;SSUBSCRIBE s");
    one.ask("RESET;GET k;RESET", "+RESET\r\n$-1\r\n+RESET\r\n");
    await_subscribers(&mut other, "a", 1);
    drop(two);
    await_subscribers(&mut other, "a", 0);
    other.ask(
        "PUBSUB NUMPAT;PUBSUB SHARDCHANNELS;PUBSUB CHANNELS;PUBLISH a x",
        ":0\r\n*0\r\n*0\r\n:0\r\n",
    );
}

#[test]
fn clients_at_all_workers_receive_the_messages_of_a_publisher_in_order() {
    let server = with_workers(4);
    let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for client in &mut clients {
        subscribe(client, "news");
    }
    let mut publishers: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for at in 0..100 {
        for publisher in &mut publishers {
            publisher.send(&format!("PUBLISH news {at}"));
        }
    }
    for publisher in &mut publishers {
        publisher.expect(&":40\r\n".repeat(100));
    }
    let header = "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n";
    for client in &mut clients {
        // The messages of each publisher ascend; those of different publishers mix.
        let mut seen = [0; 100];
        for _ in 0..300 {
            client.expect(header);
            client.line();
            let at: usize = client.line().parse().unwrap();
            assert!(at == 0 || seen[at - 1] > seen[at]);
            seen[at] += 1;
        }
        assert_eq!(seen, [3; 100]);
    }
}

#[test]
fn the_end_of_a_subscription_is_confirmed_after_the_messages_that_were_published_before() {
    /// So many that a worker appends their messages in several turns of its loop.
    const SUBSCRIBERS: usize = 200;
    const MESSAGES: usize = 20;
    let server = with_workers(1);
    let mut clients: Vec<_> = (0..SUBSCRIBERS).map(|_| server.connect()).collect();
    for client in &mut clients {
        subscribe(client, "a");
    }
    let (mut publisher, mut last) = (server.connect(), clients.pop().unwrap());
    let published: Vec<String> = (0..MESSAGES).map(|n| format!("PUBLISH a {n}")).collect();
    let mut expected: String = (0..MESSAGES)
        .map(|n| message("a", &n.to_string()))
        .collect();
    expected += &replies("*3/$11/unsubscribe/$1/a/:0/");
    for _ in 0..10 {
        let counts = format!(":{SUBSCRIBERS}\r\n").repeat(MESSAGES);
        publisher.ask(&published.join(";"), &counts);
        last.ask("UNSUBSCRIBE a", &expected);
        subscribe(&mut last, "a");
    }
}

#[test]
fn a_message_waits_for_the_writes_that_its_publisher_made_before() {
    let server = Running::new();
    let (mut client, mut publisher, mut other) =
        (server.connect(), server.connect(), server.connect());
    client.send("HELLO 3;SUBSCRIBE a");
    read_hello(&mut client);
    client.expect(&replies(">3/$9/subscribe/$1/a/:1/"));
    server.store.hold();
    publisher.send("SET k v;PUBLISH a late");
    server.await_held(1);
    other.ask("PUBLISH a early", ":1\r\n");
    client.send("GET k");
    client.expect(&replies(">3/$7/message/$1/a/$5/early/_/"));
    server.store.turn();
    publisher.expect("+OK\r\n:1\r\n");
    client.expect(&replies(">3/$7/message/$1/a/$4/late/"));
    client.ask("GET k", "$1\r\nv\r\n");
}

#[test]
fn a_message_in_a_transaction_is_sent_only_if_the_transaction_takes_effect() {
    let server = Running::new();
    let (mut client, mut publisher, mut other) =
        (server.connect(), server.connect(), server.connect());
    subscribe(&mut client, "a");
    publisher.send("WATCH k;MULTI;SET k 1;PUBLISH a lost");
    publisher.expect("+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    other.ask("SET k 2", "+OK\r\n");
    publisher.ask("EXEC", "*-1\r\n");
    publisher.ask(
        "MULTI;SET k 1;PUBLISH a sent;GET k;EXEC",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n:1\r\n$1\r\n1\r\n",
    );
    client.expect(&message("a", "sent"));
}

#[test]
fn a_client_receives_what_its_script_publishes_beside_the_reply() {
    let server = Running::new();
    let mut client = server.connect();
    client.send("HELLO 3");
    read_hello(&mut client);
    client.send("SUBSCRIBE a");
    client.expect(">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    let script = "redis.call('publish','a','m') return redis.call('publish','a','n')";
    client.send_raw(
        format!(
            "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n",
            script.len()
        )
        .as_bytes(),
    );
    let push = |text| message("a", text).replace("*3", ">3");
    client.expect(&format!(":1\r\n{}{}", push("m"), push("n")));
}

/// The script exceeds the time of a worker, so it runs again on the thread of long requests.
#[test]
fn a_script_that_runs_twice_publishes_once() {
    let server = Running::new();
    let (mut client, mut events, mut publisher) =
        (server.connect(), server.connect(), server.connect());
    subscribe(&mut client, "a");
    subscribe(&mut events, "__keyevent@0__:set");
    publisher.ask("CONFIG SET notify-keyspace-events E$", "+OK\r\n");
    let script = "redis.call('publish','a','m') redis.call('set','k','v') \
                  local n = 0 while n < 1000000 do n = n + 1 end return n";
    publisher.send_raw(
        format!(
            "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n",
            script.len()
        )
        .as_bytes(),
    );
    publisher.expect(":1000000\r\n");
    publisher.ask("PUBLISH a last;SET last v", ":1\r\n+OK\r\n");
    client.expect(&format!("{}{}", message("a", "m"), message("a", "last")));
    let set = |key| message("__keyevent@0__:set", key);
    events.expect(&format!("{}{}", set("k"), set("last")));
}

#[test]
fn subscribing_in_a_transaction_replies_inside_exec() {
    let server = Running::new();
    let mut client = server.connect();
    client.send("MULTI;SUBSCRIBE a b;SSUBSCRIBE s;UNSUBSCRIBE;EXEC;GET k");
    client.expect(&replies(
        "+OK/+QUEUED/+QUEUED/+QUEUED/*3/*3/$9/subscribe/$1/a/:1/",
    ));
    client.expect(&replies(
        "*3/$9/subscribe/$1/b/:2/-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client/\
         *3/$11/unsubscribe/$1/a/:1/*3/$11/unsubscribe/$1/b/:0/$-1/",
    ));
}

#[test]
fn messages_are_sent_even_if_replies_are_off() {
    let server = Running::new();
    let mut client = server.connect();
    client.send("CLIENT REPLY OFF;SUBSCRIBE a;PING");
    client.expect(&replies("*3/$9/subscribe/$1/a/:1/"));
    server.connect().ask("PUBLISH a x", ":1\r\n");
    client.expect(&message("a", "x"));
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_at_the_limit_of_its_class() {
    for workers in [1, 2] {
        let server = with_workers(workers);
        let (mut publisher, mut reader) = (server.connect(), server.connect());
        publisher.send_raw(
            b"CONFIG SET client-output-buffer-limit \"pubsub 1mb 0 0\"\r\n\
              CONFIG GET client-output-buffer-limit\r\n",
        );
        publisher.expect(&replies(
            "+OK/*2/$26/client-output-buffer-limit/$68/normal 1073741824 0 0 slave 268435456 67108864 60 pubsub 1048576 0 0/",
        ));
        let mut slow = server.connect();
        subscribe(&mut slow, "a");
        subscribe(&mut reader, "a");
        let text = "x".repeat(64 << 10);
        let mut receivers = String::from(":2");
        let mut sent = 0;
        while receivers == ":2" {
            publisher.send(&format!("PUBLISH a {text}"));
            receivers = publisher.line();
            reader.expect(&message("a", &text));
            sent += 1;
            assert!(sent < 10_000, "the slow subscriber is still connected");
        }
        assert_eq!(receivers, ":1");
        let closed = "client_output_buffer_limit_disconnections:1\r\n";
        assert!(publisher.bulk("INFO stats").contains(closed));
    }
}

#[test]
fn client_list_and_client_kill_know_the_clients_with_subscriptions() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    client.send("SUBSCRIBE a b;PSUBSCRIBE p;SSUBSCRIBE s t");
    client.expect(&replies("*3/$9/subscribe/$1/a/:1/"));
    let line = other.bulk("CLIENT LIST TYPE pubsub");
    assert!(
        line.contains(" flags=P db=0 sub=2 psub=1 ssub=2 "),
        "{line}"
    );
    assert!(!other.bulk("CLIENT LIST TYPE normal").contains("flags=P"));
    let info = other.bulk("INFO stats");
    let fields = "pubsub_channels:2\r\npubsub_patterns:1\r\npubsubshard_channels:2\r\n";
    assert!(info.contains(fields), "{info}");
    other.ask("CLIENT KILL TYPE pubsub", ":1\r\n");
    client.drain();
    await_subscribers(&mut other, "a", 0);
}

#[test]
fn messages_for_a_client_whose_long_request_executes_arrive_after_its_reply() {
    let server = with_workers(1);
    let (mut client, mut publisher) = (server.connect(), server.connect());
    client.send("HELLO 3;SUBSCRIBE a");
    read_hello(&mut client);
    client.expect(&replies(">3/$9/subscribe/$1/a/:1/"));
    let mut later = server.connect();
    subscribe(&mut later, "a");
    server.store.close_gate();
    client.send("SELECT 1;KEYS *;PING");
    server.store.await_waiting();
    publisher.ask("PUBLISH a 1;PUBLISH a 2", ":2\r\n:2\r\n");
    // Subscribers receive a message in the order of their subscriptions: the first one's is kept by now.
    later.expect(&(message("a", "1") + &message("a", "2")));
    server.store.open_gate();
    client.expect(&replies(
        "+OK/*0/>3/$7/message/$1/a/$1/1/>3/$7/message/$1/a/$1/2/+PONG/",
    ));
}

#[test]
fn ten_thousand_patterns_are_subscribed_and_unsubscribed() {
    let server = Running::new();
    let (mut client, mut publisher) = (server.connect(), server.connect());
    let names: String = (0..10_000).map(|at| format!(" p{at}*")).collect();
    client.send_raw(&request(&format!("PSUBSCRIBE{names}")));
    for _ in 0..10_000 * 6 {
        client.line();
    }
    publisher.ask(
        "PUBSUB NUMPAT;PUBLISH p9999x m;PUBLISH q m",
        ":10000\r\n:4\r\n:0\r\n",
    );
    for _ in 0..4 {
        client.expect("*4\r\n$8\r\npmessage\r\n");
        for _ in 0..6 {
            client.line();
        }
    }
    client.send("PUNSUBSCRIBE");
    client.expect(&replies("*3/$12/punsubscribe/$3/p0*/:9999/"));
    for _ in 0..9_999 * 6 {
        client.line();
    }
    publisher.ask("PUBSUB NUMPAT", ":0\r\n");
}

#[test]
fn a_closed_client_with_many_subscriptions_leaves_none() {
    let server = with_workers(2);
    let (mut client, mut other) = (server.connect(), server.connect());
    let names: String = (0..5_000).map(|at| format!(" c{at}")).collect();
    client.send_raw(&request(&format!("SUBSCRIBE{names}")));
    for _ in 0..5_000 * 6 {
        client.line();
    }
    drop(client);
    wait_until(|| {
        let info = other.bulk("INFO stats");
        info.contains("pubsub_channels:0\r\n")
    });
}
