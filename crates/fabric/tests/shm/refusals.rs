//! Files that are no served memory are refused.

use std::fs;

use farbank_fabric::shm::{ServerAddress, ShmConnectError, ShmFabric};
use farbank_fabric::tcp::Reactor;

use crate::cluster::{Cluster, open};
use crate::shared::MEMORY_BYTES;

/// Offset of the magic number.
const MAGIC_AT: usize = 16 << 10;

fn refusal(cluster: &Cluster) -> String {
    let error: ShmConnectError = cluster.connect(1).err().expect("it is refused");
    error.to_string()
}

#[test]
fn files_that_are_no_served_memory_are_refused_with_the_reason() {
    let mut cluster = Cluster::new(1);
    let path = cluster.path(0);
    cluster.fabric(1);
    let served = fs::read(&path).unwrap();
    cluster.stop(0);
    assert!(refusal(&cluster).contains("no memory server serves it"));
    let refused = |bytes: &[u8], text: &str| {
        fs::write(&path, bytes).unwrap();
        let error = refusal(&cluster);
        assert!(error.contains(text), "{error}");
    };
    let mut other = served.clone();
    other[MAGIC_AT + 7] = b'9';
    refused(&other, "has version 9 of the format");
    other[MAGIC_AT..MAGIC_AT + 8].copy_from_slice(b"a story.");
    refused(&other, "has data that no memory server wrote");
    refused(&served[..served.len() - 8192], "its file was truncated");
    refused(&served[..64 << 10], "a memory server needs at least");
    refused(&served[..100], "100 bytes");
    // It names the socket of a server that has ended.
    refused(&served, "memory server at 127.0.0.1");
    fs::remove_file(&path).unwrap();
    assert!(refusal(&cluster).contains("No such file"));
    fs::create_dir(&path).unwrap();
    refusal(&cluster);
}

#[test]
fn a_copy_of_a_memory_and_memories_in_another_order_are_refused() {
    let cluster = Cluster::new(2);
    let settings = cluster.settings(1);
    let reactor = Reactor::new(Default::default()).unwrap();
    let mut swapped = settings.clone();
    swapped.servers.swap(0, 1);
    assert!(ShmFabric::connect(&reactor, swapped).is_err());
    let mut by_tcp = settings.clone();
    by_tcp.servers[0] = ServerAddress::Tcp(cluster.servers[0].as_ref().unwrap().address());
    let error = ShmFabric::connect(&reactor, by_tcp).err().unwrap();
    assert!(matches!(error, ShmConnectError::LeaseServerByTcp));
    // Only the lease server by its file.
    let mut mixed = settings.clone();
    mixed.servers[1] = ServerAddress::Tcp(cluster.servers[1].as_ref().unwrap().address());
    ShmFabric::connect(&reactor, mixed).unwrap();
    let other = cluster.folder.path().join("other");
    let mut named = settings.clone();
    named.servers[1] = ServerAddress::Shm(other.clone());
    std::os::unix::fs::symlink(cluster.path(1), &other).unwrap();
    ShmFabric::connect(&reactor, named.clone()).unwrap();
    fs::remove_file(&other).unwrap();
    let refused = |settings| ShmFabric::connect(&reactor, settings).err().unwrap();
    fs::hard_link(cluster.path(1), &other).unwrap();
    let error = refused(named.clone());
    assert!(matches!(error, ShmConnectError::OtherPath(_)), "{error}");
    fs::remove_file(&other).unwrap();
    fs::copy(cluster.path(1), &other).unwrap();
    let error = refused(named);
    assert!(matches!(error, ShmConnectError::OtherPath(_)), "{error}");
    // The file was replaced by another state of it.
    let mut bytes = fs::read(cluster.path(1)).unwrap();
    let generation = bytes[MAGIC_AT + 16] ^ 1;
    bytes[MAGIC_AT + 16] = generation;
    bytes[MAGIC_AT + 3072] = generation;
    fs::remove_file(cluster.path(1)).unwrap();
    fs::write(cluster.path(1), bytes).unwrap();
    let error = refused(settings);
    assert!(matches!(error, ShmConnectError::OtherMemory(_)), "{error}");
}

#[test]
fn a_second_server_on_the_same_file_is_refused_and_the_first_continues() {
    let cluster = Cluster::new(1);
    let fabric = cluster.fabric(1);
    let error = open(&cluster.path(0)).expect_err("the file is locked");
    assert!(error.to_string().contains("is in use by"), "{error}");
    drop(fabric);
    cluster.fabric(1);
    assert_eq!(fs::metadata(cluster.path(0)).unwrap().len(), MEMORY_BYTES);
}
