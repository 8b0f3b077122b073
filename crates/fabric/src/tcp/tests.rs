//! Connections of authenticated clients that break, are replaced, or send invalid frames.

use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farbank_pm::media::Mapped;

use super::handshake::{FrameStream, StreamError, connect, nonce};
use super::*;
use crate::addr::GAddr;
use crate::fabric::Verb;
use crate::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use crate::service::{ServiceRequest, ServiceResponse};
use crate::wire::{
    Challenge, Failure, FrameKind, Hello, Role, decode_failure, decode_response, encode_batch,
    encode_call, put_frame,
};

const AT: GAddr = GAddr::host(0, 4096);
const TIMEOUT: Duration = Duration::from_secs(10);

fn key() -> SharedKey {
    SharedKey::new(*b"a key for tests only").unwrap()
}

fn node() -> Arc<MemoryNode<Mapped>> {
    let medium = Mapped::anonymous(4 << 20).unwrap();
    let memory = WordMemory::open(medium, MemorySettings::new(0), 1).unwrap();
    Arc::new(MemoryNode::new(memory, LeaseSettings::default()))
}

fn server() -> TcpServer {
    server_of(node())
}

fn server_of(node: Arc<MemoryNode<Mapped>>) -> TcpServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpServer::start(listener, node, TcpServerSettings::new(key())).unwrap()
}

fn dial(
    address: SocketAddr,
    epoch: u8,
    attempt: u64,
) -> Result<(FrameStream, Challenge), StreamError> {
    dial_as(address, epoch, (1, 0), attempt)
}

/// Dials as a process and a thread of it.
fn dial_as(
    address: SocketAddr,
    epoch: u8,
    (process, thread): (u32, u8),
    attempt: u64,
) -> Result<(FrameStream, Challenge), StreamError> {
    let hello = Hello {
        role: Role::Compute,
        server: 0,
        number: 1,
        epoch,
        process,
        thread,
        attempt,
        nonce: nonce().unwrap(),
    };
    connect(address, TIMEOUT, &key(), &hello, None)
}

fn batch(id: u64, verb: Verb) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(encode_batch(id, &[verb], &mut out));
    out
}

/// Sends `request` and returns the kind and body of the response.
fn ask(stream: &mut FrameStream, request: &[u8]) -> Result<(FrameKind, Vec<u8>), StreamError> {
    stream.send(request)?;
    stream.receive(|frame| Ok((frame.kind, frame.body.to_vec())))
}

/// Joins, and returns the epoch.
fn join(address: SocketAddr) -> u8 {
    let (mut stream, _) = dial(address, 0, 0).unwrap();
    let mut call = Vec::new();
    encode_call(1, ServiceRequest::Join, &mut call);
    let (_, body) = ask(&mut stream, &call).unwrap();
    match decode_response(&body).unwrap() {
        ServiceResponse::Joined { epoch, .. } => epoch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_that_dies_within_a_frame_has_executed_the_complete_ones_only() {
    let server = server();
    let epoch = join(server.address());
    let (mut dying, _) = dial(server.address(), epoch, 1).unwrap();
    let mut sent = batch(1, Verb::write(AT, vec![1; 64]));
    let second = batch(2, Verb::write(AT, vec![2; 64]));
    sent.extend(&second[..second.len() - 1]);
    let (kind, _) = ask(&mut dying, &sent).unwrap();
    assert_eq!(kind, FrameKind::Results);
    dying.stream.shutdown(Shutdown::Both).unwrap();
    let (mut next, _) = dial(server.address(), epoch, 2).unwrap();
    let (kind, read) = ask(&mut next, &batch(1, Verb::read(AT, 64))).unwrap();
    assert_eq!((kind, read), (FrameKind::Results, vec![1; 64]));
}

/// TCP-2.
#[test]
fn a_newer_connection_ends_the_older_and_an_older_attempt_is_refused() {
    let server = server();
    let epoch = join(server.address());
    let (mut older, _) = dial(server.address(), epoch, 1).unwrap();
    let (mut newer, _) = dial(server.address(), epoch, 6).unwrap();
    let write = batch(1, Verb::write(AT, vec![1; 8]));
    let (kind, body) = ask(&mut older, &write).unwrap();
    assert_eq!(kind, FrameKind::Failure);
    assert_eq!(decode_failure(&body), Ok(Failure::Unavailable));
    let (_, read) = ask(&mut newer, &batch(1, Verb::read(AT, 8))).unwrap();
    assert_eq!(read, [0; 8]);
    for attempt in [5, 6] {
        let refused = dial(server.address(), epoch, attempt).err();
        assert!(
            matches!(refused, Some(StreamError::Refused(Refusal::Superseded))),
            "{refused:?}"
        );
    }
}

/// LEASE-6.
#[test]
fn connections_of_threads_live_together_until_the_next_process_uses_the_epoch() {
    let server = server();
    let epoch = join(server.address());
    let read = batch(1, Verb::read(AT, 8));
    let (mut first, _) = dial_as(server.address(), epoch, (1, 0), 1).unwrap();
    let (mut second, _) = dial_as(server.address(), epoch, (1, 9), 1).unwrap();
    for thread in [&mut first, &mut second] {
        let (kind, _) = ask(thread, &read).unwrap();
        assert_eq!(kind, FrameKind::Results);
    }
    let (mut newer, _) = dial_as(server.address(), epoch, (1, 9), 2).unwrap();
    let kinds =
        |threads: [&mut FrameStream; 3]| threads.map(|thread| ask(thread, &read).unwrap().0);
    let found = kinds([&mut first, &mut second, &mut newer]);
    assert_eq!(
        found,
        [FrameKind::Results, FrameKind::Failure, FrameKind::Results]
    );
    let (mut next, _) = dial_as(server.address(), epoch, (2, 0), 1).unwrap();
    let found = kinds([&mut first, &mut newer, &mut next]);
    assert_eq!(
        found,
        [FrameKind::Failure, FrameKind::Failure, FrameKind::Results]
    );
    for thread in [0, 9, 10] {
        let refused = dial_as(server.address(), epoch, (1, thread), 7).err();
        assert!(
            matches!(refused, Some(StreamError::Refused(Refusal::Superseded))),
            "{refused:?}"
        );
    }
}

#[test]
fn an_invalid_frame_of_an_authenticated_client_ends_its_connection() {
    let server = server();
    let epoch = join(server.address());
    let mut oversized = Vec::new();
    oversized.extend(u32::MAX.to_le_bytes());
    oversized.extend([0; 64]);
    let mut unknown_verb = Vec::new();
    put_frame(&mut unknown_verb, FrameKind::Batch, 1, |out| {
        out.extend([1, 0, 77]);
        out.extend([0; 8]);
    });
    let mut out_of_place = Vec::new();
    put_frame(&mut out_of_place, FrameKind::Welcome, 1, |_| {});
    for (attempt, bytes) in (1..).zip([oversized, unknown_verb, out_of_place]) {
        let (mut stream, _) = dial(server.address(), epoch, attempt).unwrap();
        let error = ask(&mut stream, &bytes).unwrap_err();
        assert!(matches!(error, StreamError::Io(_)), "{error:?}");
    }
    let (mut stream, _) = dial(server.address(), epoch, 9).unwrap();
    let (kind, _) = ask(&mut stream, &batch(1, Verb::read(AT, 8))).unwrap();
    assert_eq!(kind, FrameKind::Results);
}

#[test]
fn a_client_without_an_epoch_can_only_join() {
    let server = server();
    let (mut stream, _) = dial(server.address(), 0, 0).unwrap();
    let mut chunk = Vec::new();
    encode_call(2, ServiceRequest::Chunk, &mut chunk);
    for request in [batch(1, Verb::read(AT, 8)), chunk] {
        let (kind, body) = ask(&mut stream, &request).unwrap();
        assert_eq!(kind, FrameKind::Failure);
        let failure = decode_failure(&body).unwrap();
        assert!(matches!(failure, Failure::Fenced | Failure::Unavailable));
    }
}

/// A connection's thread that releases the memory after the server has ended makes the next open of the file fail. The
/// busy threads let the scheduler interrupt such a thread in between.
#[test]
fn no_thread_of_a_stopped_server_has_its_memory() {
    let (done, started) = (AtomicBool::new(false), Instant::now());
    let busy = || {
        while !done.load(Ordering::Relaxed) && started.elapsed() < TIMEOUT {
            std::hint::spin_loop();
        }
    };
    let owners = std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(busy)));
        let owners = (0..16).map(|_| owners_after_stop()).max();
        done.store(true, Ordering::Relaxed);
        owners
    });
    assert_eq!(owners, Some(0));
}

/// Stops a server that has connections. Returns the number of owners of its memory.
fn owners_after_stop() -> usize {
    let node = node();
    let owners = Arc::downgrade(&node);
    let server = server_of(node);
    let epoch = join(server.address());
    let dial = |thread| dial_as(server.address(), epoch, (7, thread), 1);
    let streams: Vec<_> = (0..32).map(|thread| dial(thread).unwrap()).collect();
    drop(server);
    let left = owners.strong_count();
    drop(streams);
    left
}
