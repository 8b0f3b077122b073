//! Clients with another key, with damaged frames, and clients that die.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use farbank_fabric::tcp::{
    ConnectError, PROTOCOL_VERSION, Reactor, Refusal, SharedKey, TcpFabric, TcpSettings, WaitMode,
};
use farbank_fabric::{Fabric, GAddr};

use crate::cluster::Cluster;

/// Returns a hello of compute server 1 in epoch 0, to server 0.
fn hello() -> Vec<u8> {
    let mut body = b"frbkwire".to_vec();
    body.extend(PROTOCOL_VERSION.to_le_bytes());
    body.extend([0, 0]);
    body.extend(0_u16.to_le_bytes());
    body.extend(1_u16.to_le_bytes());
    body.extend([0; 5]);
    body.extend(0_u64.to_le_bytes());
    body.extend([3; 32]);
    framed(1, &body)
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32 + 12).to_le_bytes().to_vec();
    frame.extend([kind, 0, 0, 0]);
    frame.extend([0; 8]);
    frame.extend(body);
    frame
}

/// Sends `bytes` and returns what the server answers until it closes the connection.
fn answer_to(cluster: &Cluster, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut answer = Vec::new();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn works(cluster: &Cluster) {
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 7);
    reactor
        .block_on(fabric.read(GAddr::host(0, 4096), 8))
        .unwrap();
}

#[test]
fn a_client_with_another_key_is_refused_by_both_sides() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let settings = TcpSettings {
        key: SharedKey::new(*b"another key of this length").unwrap(),
        ..cluster.settings(1)
    };
    let error = TcpFabric::connect(&reactor, settings).err();
    assert!(matches!(error, Some(ConnectError::BadKey(_))), "{error:?}");
    // A client that does not check the server's proof, and sends one of its own.
    let mut bytes = hello();
    bytes.extend(framed(3, &[0; 32]));
    let answer = answer_to(&cluster, &bytes);
    let refused = framed(5, &[Refusal::BadKey as u8]);
    assert!(answer.ends_with(&refused), "{answer:?}");
    works(&cluster);
}

#[test]
fn requests_before_the_proof_are_not_executed() {
    let cluster = Cluster::new(1);
    let mut write = 1_u16.to_le_bytes().to_vec();
    write.push(2);
    write.extend(GAddr::host(0, 4096).0.to_le_bytes());
    write.extend(8_u32.to_le_bytes());
    write.extend([0xee; 8]);
    let mut bytes = hello();
    bytes.extend(framed(16, &write));
    answer_to(&cluster, &bytes);
    let only_write = framed(16, &write);
    assert!(answer_to(&cluster, &only_write).is_empty());
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let read = reactor.block_on(fabric.read(GAddr::host(0, 4096), 8));
    assert_eq!(read, Ok(vec![0; 8]));
}

#[test]
fn oversized_and_damaged_frames_end_their_connection_only() {
    let cluster = Cluster::new(1);
    let mut oversized = u32::MAX.to_le_bytes().to_vec();
    oversized.extend([0; 100]);
    let mut padded = hello();
    padded[6] = 1;
    let mut version = hello();
    version[24] = 9;
    let mut longer = hello();
    longer.push(0);
    longer[0] += 1;
    for bytes in [
        oversized,
        padded,
        version,
        longer,
        framed(99, &[]),
        vec![0; 64],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        let answer = answer_to(&cluster, &bytes);
        assert!(answer.is_empty(), "{bytes:?}: {answer:?}");
    }
    works(&cluster);
}

#[test]
fn a_server_under_another_number_is_refused() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let mut settings = cluster.settings(1);
    settings.servers.swap(0, 1);
    let error = TcpFabric::connect(&reactor, settings).err();
    assert!(
        matches!(error, Some(ConnectError::Refused(_, Refusal::WrongServer))),
        "{error:?}"
    );
    let settings = TcpSettings {
        compute: Some(1023),
        ..cluster.settings(1)
    };
    let error = TcpFabric::connect(&reactor, settings).err();
    assert!(
        matches!(error, Some(ConnectError::Refused(_, Refusal::BadNumber))),
        "{error:?}"
    );
}

#[test]
fn a_compute_server_that_has_used_its_epochs_cannot_join() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    for epoch in 1..=63 {
        assert_eq!(cluster.fabric(&reactor, 1).epoch(), epoch);
    }
    let error = TcpFabric::connect(&reactor, cluster.settings(1)).err();
    assert!(
        matches!(error, Some(ConnectError::EpochsUsed { compute: 1 })),
        "{error:?}"
    );
    works(&cluster);
}

#[test]
fn a_client_that_has_not_proved_the_key_cannot_send_long_frames_or_take_long() {
    let cluster = Cluster::new(1);
    let started = Instant::now();
    // The head of a frame of half a mebibyte, of which the server must not wait for the rest.
    let mut head = framed(1, &[])[..16].to_vec();
    head[..4].copy_from_slice(&(1_u32 << 19).to_le_bytes());
    assert_eq!(answer_to(&cluster, &head), []);
    assert!(started.elapsed() < Duration::from_secs(4));
    // A client that sends its hello byte by byte.
    let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
    let started = Instant::now();
    let mut slowly = hello().into_iter();
    for byte in slowly.by_ref() {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(500));
    }
    assert!(
        slowly.len() > 0,
        "the handshake took {:?}",
        started.elapsed()
    );
    works(&cluster);
}
