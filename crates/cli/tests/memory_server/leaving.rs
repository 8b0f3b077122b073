//! `farbank tree remove-server`: a memory server leaves a tree that clients use.

use std::process::{Command, Stdio};

use farbank_fabric::shm::ServerAddress;
use farbank_fabric::tcp::SharedKey;
use farbank_tree::{Cluster, ClusterSettings, TreeSettings};

use super::KEY;
use super::tree::{TwoServers, Way};
use super::writers::{assert_written, keys_of, write_during};

/// Keys that all writers put before the server leaves.
const BEFORE: usize = 1_000;
/// Bytes of a value that moves in a visit of its own.
const LARGE: usize = 100_000;

/// Returns the number that stands before ` {what}` in `printed`.
fn counted(printed: &str, what: &str) -> u64 {
    let before = printed.split(&format!(" {what}")).next().unwrap();
    let word = before.rsplit(' ').next().unwrap();
    word.parse()
        .unwrap_or_else(|_| panic!("no number of {what} in {printed:?}"))
}

for_each_way!(clients_continue_while_a_server_leaves_and_nothing_is_lost_when_it_ends => leave_and_kill);

fn leave_and_kill(way: Way) {
    let mut two = TwoServers::start(way);
    let cluster = two.cluster();
    cluster.create(&TreeSettings::default()).unwrap();
    let (idle, other) = (two.cluster(), two.cluster());
    let large: Vec<u8> = (0..LARGE).map(|n| (n / 7) as u8).collect();
    for number in 0..20 {
        idle.put(format!("large {number}").as_bytes(), &large)
            .unwrap();
    }
    let clusters = [&cluster, &cluster, &other];
    let (printed, counts) = write_during(clusters, BEFORE, || two.print("remove-server", &["1"]));
    assert!(printed.starts_with("memory server 1 has left the tree and can be ended: "));
    assert!(counted(&printed, "nodes") > 5, "{printed}");
    assert!(counted(&printed, "values") > 100, "{printed}");
    two.kill(1);
    let all: usize = counts.iter().sum::<usize>() + 20;
    // A client that was idle, clients with a list that has the server, and one with "-".
    let key_file = SharedKey::new(KEY).unwrap();
    let list = vec![two.addresses().remove(0), ServerAddress::Left];
    let without = Cluster::connect(ClusterSettings::new(list, key_file)).unwrap();
    for client in [&idle, &cluster, &other, &two.cluster(), &without] {
        assert_eq!(keys_of(client), all);
        assert_eq!(client.info().unwrap().addresses[1], ServerAddress::Left);
    }
    assert_written(&without, &counts);
    for number in 0..20 {
        let found = without.get(format!("large {number}").as_bytes()).unwrap();
        assert!(found.as_deref() == Some(&large[..]), "large {number}");
    }
    assert!(
        two.print("stat", &["--keys"])
            .contains("memory server 1 has left\n")
    );
    // A server joins with the next number.
    let third = two.start_next(2);
    assert!(two.add(&third).starts_with("memory server 2 at"));
    assert_eq!(keys_of(&idle), all);
}

#[test]
fn a_removal_that_was_killed_is_cancelled_or_continued() {
    let two = TwoServers::start(Way::Tcp);
    two.print("create", &[]);
    two.print("put", &["key", "value"]);
    let third = two.start_next(2);
    let third_address = third.address.to_string();
    interrupt(&two);
    let text = "memory server 1 is leaving: complete or cancel its removal first";
    two.fail("add-server", &[&third_address], 1, text);
    let cancelled = two.print("remove-server", &["1", "--cancel"]);
    assert_eq!(cancelled, "memory server 1 stays in the tree\n");
    assert!(two.add(&third).starts_with("memory server 2 at"));
    interrupt(&two);
    two.fail("remove-server", &["2"], 1, text);
    let address = two.addresses()[1].to_string();
    let done = two.print("remove-server", &[&address]);
    assert!(
        done.starts_with("memory server 1 has left the tree"),
        "{done}"
    );
    let again = two.print("remove-server", &["1", "--json"]);
    assert!(
        again.contains("\"left\":true") && again.contains("\"passes\":0"),
        "{again}"
    );
    let text = "memory server 1 has left the tree";
    two.fail("remove-server", &["1", "--cancel"], 1, text);
    assert_eq!(two.print("get", &["key"]), "value\n");
}

/// Kills a removal of server 1 when the server is leaving.
fn interrupt(two: &TwoServers) {
    let mut removal: Command = two.command("remove-server");
    let mut removal = removal.arg("1").stdout(Stdio::null()).spawn().unwrap();
    while !two.print("stat", &[]).contains(", leaving\n") {
        assert_eq!(
            removal.try_wait().unwrap(),
            None,
            "it waits for three leases"
        );
    }
    removal.kill().unwrap();
    removal.wait().unwrap();
}

#[test]
fn servers_that_cannot_leave_are_refused() {
    let two = TwoServers::start(Way::Tcp);
    two.fail("remove-server", &["1"], 1, "there is no tree");
    two.print("create", &[]);
    two.fail("remove-server", &["0"], 1, "memory server 0 cannot leave");
    for number in ["2", "7", "65535"] {
        let text = format!("the tree has no memory server {number}\n");
        two.fail("remove-server", &[number], 1, &text);
    }
    let text = "the tree has no memory server at 127.0.0.1:1";
    two.fail("remove-server", &["127.0.0.1:1"], 1, text);
    two.fail(
        "remove-server",
        &["memory"],
        2,
        "no address of a memory server",
    );
    let first = two.addresses().remove(0);
    let missing = |subcommand: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
        command.args(["tree", subcommand, "--servers", &format!("{first},-")]);
        command.arg("--key-file").arg(two.folder.path().join("key"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{subcommand}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = "memory server 1 was given as \"-\", but it has not left the tree: give its address";
    assert!(missing("stat").contains(text));
    assert!(missing("create").contains(text));
}
