//! Both sides of the handshake, over blocking sockets.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::ConnectError;
use super::buffer::InputBuffer;
use crate::wire::{
    Challenge, Frame, FrameKind, Hello, NONCE_BYTES, ProofOf, Refusal, SharedKey, WireError,
    decode_proof, decode_refusal, encode_proof, encode_refusal, encode_welcome,
};

/// Maximum time of a handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a handshake or a connection ended.
#[derive(Debug)]
pub(super) enum StreamError {
    Io(io::Error),
    Wire(WireError),
    BadKey,
    Refused(Refusal),
    /// The server has another generation than expected.
    OtherGeneration,
    /// The server could not open an endpoint of libfabric.
    #[cfg(feature = "libfabric")]
    NoEndpoint,
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> StreamError {
        StreamError::Io(error)
    }
}

impl From<WireError> for StreamError {
    fn from(error: WireError) -> StreamError {
        StreamError::Wire(error)
    }
}

impl StreamError {
    pub(super) fn at(self, address: SocketAddr) -> ConnectError {
        match self {
            StreamError::Io(error) => ConnectError::Io(address, error),
            StreamError::Wire(error) => ConnectError::Wire(address, error),
            StreamError::BadKey => ConnectError::BadKey(address),
            StreamError::Refused(refusal) => ConnectError::Refused(address, refusal),
            StreamError::OtherGeneration => ConnectError::OtherGeneration(address),
            #[cfg(feature = "libfabric")]
            StreamError::NoEndpoint => ConnectError::NoEndpoint(address),
        }
    }
}

/// A blocking connection that exchanges frames.
pub(super) struct FrameStream {
    pub(super) stream: TcpStream,
    input: InputBuffer,
    /// Time at which the handshake must have ended. `None`: it has ended.
    deadline: Option<Instant>,
}

impl FrameStream {
    /// Prepares a handshake that may take `timeout`.
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> FrameStream {
        FrameStream {
            stream,
            input: InputBuffer::new(),
            deadline: Some(Instant::now() + timeout),
        }
    }

    /// Ends the handshake. From here on the peer may send long frames, and each read may take `timeout`.
    fn authenticated(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.deadline = None;
        self.input.accept_long_frames();
        self.stream.set_read_timeout(timeout)
    }

    /// Limits the next read to the rest of the handshake's time, so that a peer that sends byte by byte gains none.
    fn limit_read(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => self.stream.set_read_timeout(Some(left)),
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives a frame, and returns what `decode` makes of it.
    pub(super) fn receive<T>(
        &mut self,
        decode: impl Fn(Frame<'_>) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        loop {
            if let Some((frame, len)) = self.input.frame()? {
                let decoded = decode(frame)?;
                self.input.consume(len);
                return Ok(decoded);
            }
            self.limit_read()?;
            if self.input.fill(&mut self.stream)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Returns the socket and the received bytes.
    pub(super) fn into_parts(self) -> (TcpStream, InputBuffer) {
        (self.stream, self.input)
    }
}

/// Returns a random nonce.
pub(super) fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes)
}

fn body_of<'a>(frame: Frame<'a>, kind: FrameKind) -> Result<&'a [u8], StreamError> {
    if frame.kind == FrameKind::Refused {
        return Err(StreamError::Refused(decode_refusal(frame.body)?));
    }
    Ok(frame.expect(kind)?)
}

/// Connects to the memory server at `address`, in `generation` if there is one.
pub(super) fn connect(
    address: SocketAddr,
    timeout: Duration,
    key: &SharedKey,
    hello: &Hello,
    generation: Option<u64>,
) -> Result<(FrameStream, Challenge), StreamError> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(timeout))?;
    let mut stream = FrameStream::new(stream, timeout);
    let mut out = Vec::new();
    hello.encode(&mut out);
    let hello_bytes = out.clone();
    stream.send(&out)?;
    let (challenge, proof) = stream.receive(|frame| {
        let body = body_of(frame, FrameKind::Challenge)?;
        Ok(Challenge::decode(body)?)
    })?;
    let fields = challenge.fields();
    if !key.is_proof(ProofOf::Server, &hello_bytes, &fields, &proof) {
        return Err(StreamError::BadKey);
    }
    if challenge.server != hello.server {
        return Err(StreamError::Refused(Refusal::WrongServer));
    }
    if generation.is_some_and(|expected| expected != challenge.generation) {
        return Err(StreamError::OtherGeneration);
    }
    out.clear();
    encode_proof(&key.prove(ProofOf::Client, &hello_bytes, &fields), &mut out);
    stream.send(&out)?;
    stream.receive(|frame| {
        let body = body_of(frame, FrameKind::Welcome)?;
        match body.is_empty() {
            true => Ok(()),
            false => Err(WireError::LeftOver.into()),
        }
    })?;
    stream.authenticated(Some(timeout))?;
    Ok((stream, challenge))
}

/// Accepts a connection on a memory server. `admit` decides about the authenticated client.
pub(super) fn accept(
    stream: &mut FrameStream,
    key: &SharedKey,
    challenge: &Challenge,
    admit: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<Hello, StreamError> {
    let hello = stream.receive(|frame| Ok(Hello::decode(frame.expect(FrameKind::Hello)?)?))?;
    // The encoding of a decoded hello is the frame that was received (WIRE-2).
    let mut hello_bytes = Vec::new();
    hello.encode(&mut hello_bytes);
    let fields = challenge.fields();
    let mut out = Vec::new();
    challenge.encode(&key.prove(ProofOf::Server, &hello_bytes, &fields), &mut out);
    stream.send(&out)?;
    let proof = stream.receive(|frame| Ok(decode_proof(frame.expect(FrameKind::Proof)?)?))?;
    let admitted = if !key.is_proof(ProofOf::Client, &hello_bytes, &fields, &proof) {
        Err(Refusal::BadKey)
    } else if hello.server != challenge.server {
        Err(Refusal::WrongServer)
    } else {
        admit(&hello)
    };
    out.clear();
    match admitted {
        Ok(()) => encode_welcome(&mut out),
        Err(refusal) => encode_refusal(refusal, &mut out),
    }
    stream.send(&out)?;
    admitted.map_err(StreamError::Refused)?;
    stream.authenticated(None)?;
    Ok(hello)
}
