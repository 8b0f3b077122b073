//! A tree between hosts, which are network namespaces: the commands of docs/tree.md as written, all mixes, and what remains after
//! a kill.
//!
//! These tests need root, iproute2 and a kernel with network namespaces. `cargo xtask suites tree-hosts` runs them. Without the
//! environment variable [`ENABLED`] they do nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farbank_bench::tree::TreeMix;
use farbank_check::network::{Host, Network};
use rustix::process::{Pid, Signal, kill_process};

const FARBANK: &str = env!("CARGO_BIN_EXE_farbank");
const PAGE: &str = include_str!("../../../docs/tree.md");
/// The line of the page that names the host of the memory servers.
const HOST_LINE: &str = "host=127.0.0.1\n";

/// Environment variable that enables the tests.
const ENABLED: &str = "FARBANK_TEST_HOSTS";

fn is_enabled() -> bool {
    let is_enabled = std::env::var_os(ENABLED).is_some();
    if !is_enabled {
        eprintln!("skipped: {ENABLED} is not set");
    }
    is_enabled
}

/// Returns the blocks of commands below a heading of the page.
fn blocks(heading: &str) -> Vec<&'static str> {
    let (_, section) = PAGE.split_once(heading).expect("the page has the heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let parts = section.split("```sh\n").skip(1);
    parts.filter_map(|part| part.split("```").next()).collect()
}

/// A process that is killed when dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledOnDrop {
    fn stdout(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }
}

/// Opens a terminal on `host` in `folder`. All that was started in it ends with it.
fn terminal(host: &Host, folder: &Path) -> Command {
    let own = Path::new(FARBANK).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap();
    let mut command = host.command("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "sh", "-e"])
        .current_dir(folder)
        .env("PATH", format!("{own}:{path}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Types `commands` in a terminal.
fn type_in(mut terminal: Command, commands: &str) -> KilledOnDrop {
    let mut shell = KilledOnDrop(terminal.spawn().unwrap());
    let mut stdin = shell.0.stdin.take().unwrap();
    stdin.write_all(commands.as_bytes()).unwrap();
    shell
}

/// Types the commands of the page: those of the servers on `servers`, the others on `clients`. `address` is the first one's.
fn type_the_page(servers: &Host, clients: &Host, address: &str) {
    let [first, second] = blocks("## Two terminals, four commands\n")[..] else {
        panic!("the page has other blocks");
    };
    let typed = [first, second].map(|block| {
        assert!(block.starts_with(HOST_LINE), "{block}");
        block.replace(HOST_LINE, &format!("host={address}\n"))
    });
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [first, second] = folders.each_ref().map(tempfile::TempDir::path);
    let mut running = type_in(terminal(servers, first), &typed[0]);
    let banners: Vec<_> = running.stdout().lines().take(2).collect();
    for banner in banners {
        assert!(banner.unwrap().contains(" listens on "));
    }
    fs::copy(first.join("key"), second.join("key")).unwrap();
    let mut used = type_in(terminal(clients, second), &typed[1]);
    let last = used.stdout().lines().last().unwrap().unwrap();
    assert!(used.0.wait().unwrap().success());
    assert_eq!(last, "hello");
}

#[test]
fn the_commands_of_the_page_work_on_one_host_as_written_and_between_two() {
    if !is_enabled() {
        return;
    }
    let mut network = Network::new().unwrap();
    let [first, second] = [(); 2].map(|()| network.add_host().unwrap());
    type_the_page(&first, &first, "127.0.0.1");
    type_the_page(&first, &second, &first.address().to_string());
}

/// A network between hosts.
#[derive(Clone, Copy, Debug)]
enum HostFabric {
    Tcp,
    Libfabric,
}

impl HostFabric {
    /// The fabrics that this program has.
    const ALL: &[HostFabric] = match cfg!(feature = "libfabric") {
        true => &[HostFabric::Tcp, HostFabric::Libfabric],
        false => &[HostFabric::Tcp],
    };

    /// Returns the fabric's name on the command line.
    fn name(self) -> &'static str {
        match self {
            HostFabric::Tcp => "tcp",
            HostFabric::Libfabric => "libfabric",
        }
    }

    /// Returns the address of the memory server of a host for clients.
    fn address(self, host: &Host) -> String {
        let address = format!("{}:7411", host.address());
        match self {
            HostFabric::Tcp => address,
            HostFabric::Libfabric => format!("libfabric:{address}"),
        }
    }
}

/// Starts a memory server, and waits until it listens.
fn memory_server(fabric: HostFabric, host: &Host, key: &Path, more: &[String]) -> KilledOnDrop {
    let mut command = host.command(FARBANK);
    command
        .args(["memory-server", "--size", "256mb", "--key-file"])
        .arg(key)
        .args(["--fabric", fabric.name()])
        .args(["--listen", &format!("{}:7411", host.address())])
        .args(more)
        .stdout(Stdio::piped());
    let mut server = KilledOnDrop(command.spawn().unwrap());
    let mut banner = String::new();
    server.stdout().read_line(&mut banner).unwrap();
    assert!(banner.contains(" listens on "), "{banner}");
    server
}

/// Runs a mix on new memory servers.
fn run_mix(fabric: HostFabric, hosts: &[Host; 3], key: &Path, mix: TreeMix) -> Output {
    let lease_server = format!("{}:7411", hosts[0].address());
    let _first = memory_server(fabric, &hosts[0], key, &[]);
    let member = ["--number", "1", "--lease-server", &lease_server].map(String::from);
    let _second = memory_server(fabric, &hosts[1], key, &member);
    let servers = [0, 1].map(|at| fabric.address(&hosts[at])).join(",");
    let mut command = hosts[2].command(FARBANK);
    command
        .args(["bench", "tree", "--fabric", fabric.name()])
        .args(["--system", "sherman"])
        .args(["--mix", mix.name, "--memory-servers", &servers])
        .args(["--threads", "2", "--coroutines", "4"])
        .args(["--entries", "20000", "--window-us", "300000", "--json"])
        .arg("--key-file")
        .arg(key);
    command.output().unwrap()
}

#[test]
fn every_result_of_every_mix_is_right_between_three_hosts() {
    if !is_enabled() {
        return;
    }
    let mut network = Network::new().unwrap();
    let hosts = [(); 3].map(|()| network.add_host().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "a key for this test only").unwrap();
    let fabrics = HostFabric::ALL.iter();
    for (fabric, mix) in fabrics.flat_map(|fabric| TreeMix::ALL.map(|mix| (*fabric, mix))) {
        let output = run_mix(fabric, &hosts, &key, mix);
        // A wrong result is an error without a report. A latency that is out of its bound is reported, and no failure here.
        let report = String::from_utf8_lossy(&output.stdout);
        let is_verified = report.contains("2 memory servers in other processes")
            && report.contains("every result verified");
        let error = String::from_utf8_lossy(&output.stderr);
        let name = mix.name;
        assert!(is_verified, "{fabric:?}, {name}: {report}{error}");
    }
}

/// Returns the network namespaces of all processes.
fn namespaces() -> BTreeSet<u64> {
    let processes = fs::read_dir("/proc").unwrap();
    let link = |process: fs::DirEntry| fs::metadata(process.path().join("ns/net"));
    let found = processes.filter_map(|process| link(process.ok()?).ok());
    found.map(|metadata| metadata.ino()).collect()
}

/// Namespaces of a check: three compute processes, two memory servers, one that joins, and the bridge.
const NAMESPACES: usize = 7;

/// Waits until `is_so`.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn no_namespace_remains_when_a_check_with_hosts_is_killed() {
    if !is_enabled() {
        return;
    }
    for signal in [Signal::KILL, Signal::INT] {
        let before = namespaces();
        // A shell starts a background job with SIGINT ignored, and so would be everything that the job starts.
        let mut check = Command::new("env");
        check.args(["--default-signal=INT", FARBANK]);
        check.args(["check", "cluster", "--hosts", "--cycles", "10000"]);
        let mut check = KilledOnDrop(check.stdout(Stdio::piped()).spawn().unwrap());
        let others = || namespaces().difference(&before).count();
        wait_until("the hosts exist", || others() == NAMESPACES);
        // Long enough that all processes run.
        thread::sleep(Duration::from_secs(2));
        assert_eq!(others(), NAMESPACES);
        kill_process(Pid::from_child(&check.0), signal).unwrap();
        let status = check.0.wait().unwrap();
        assert!(!status.success());
        wait_until("the hosts have ended", || others() == 0);
        let folder = format!("/dev/shm/farbank-check-cluster-{}", check.0.id());
        fs::remove_dir_all(folder).unwrap();
    }
}
