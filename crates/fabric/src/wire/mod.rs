//! The frames that compute servers and memory servers exchange over a byte stream.
//!
//! ```text
//!   0      4      5         8           16
//!   │ len  │ kind │ zeros   │ id        │ body: len - 12 bytes │       all numbers are little-endian
//!   └ bytes after this field            └ a response has the id of its request
//!
//!   compute server                                  memory server
//!     Hello      number, epoch, process, thread, attempt, nonce ─▶
//!                ◀─ server, generation, sizes, nonce, proof of the key    Challenge
//!     Proof      of the key ─▶
//!                ◀─                                                       Welcome, or Refused with a reason
//!     Batch      verbs ─▶                        ◀─ their results         Results
//!     Call       request ─▶                      ◀─ response              Response
//!                                                ◀─ error                 Failure, to a batch or a call
//!   memory server (member)                          lease server
//!     Report     its floors of epochs ─▶         ◀─ all floors            Grant
//!   compute server, for verbs over libfabric        memory server
//!     OpenEndpoint ─▶                            ◀─ its address and key   Endpoint
//! ```
//!
//! * `auth`: the shared key, and the frames of the handshake.
//! * `verbs`: batches and their results. `requests`: calls, responses, reports and grants.
//! * `endpoint`: endpoints of libfabric.
//!
//! # Invariants
//! WIRE-1  No sequence of bytes makes a decoder panic, or allocate more than the frame's length. A frame is at most
//!     [`FRAME_BYTES_MAX`] long, and so is the response to a batch.
//! WIRE-2  A decoder accepts only bytes that the encoder can produce: padding is zero, and a body has no bytes left over.
//!     So a stream that has lost its frame boundaries is detected at the next frame, with high probability.
//! WIRE-3  Each side proves that it has the key before the other executes or believes any frame of it. A proof covers both
//!     nonces, all fields of the handshake and the role of its author. So it cannot be replayed or reflected.
//!
//! # What the key protects
//! The handshake authenticates both ends of a connection. The frames after it are not encrypted and carry no code of
//! their own: a machine on their path can change them. Use a trusted network or a tunnel.

mod auth;
#[cfg(feature = "libfabric")]
mod endpoint;
mod requests;
mod verbs;

use std::fmt;

pub(crate) use auth::{
    Challenge, Hello, NONCE_BYTES, ProofOf, Role, decode_proof, decode_refusal, encode_proof,
    encode_refusal, encode_welcome,
};
pub use auth::{KEY_BYTES_MIN, PROTOCOL_VERSION, Refusal, SharedKey};
#[cfg(feature = "libfabric")]
pub(crate) use endpoint::EndpointName;
pub(crate) use requests::{
    ANY_COMPUTE, FLOORS, Failure, Floors, Grant, Report, decode_call, decode_failure,
    decode_response, encode_call, encode_failure, encode_response,
};
pub(crate) use verbs::{
    BatchReader, VerbRef, decode_results, encode_batch, is_batch, response_bytes,
};

/// Maximum bytes of a frame.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;
/// Bytes before a frame's body.
pub(crate) const HEAD_BYTES: usize = 16;
/// Bytes of the length field, which the length does not include.
const LENGTH_BYTES: usize = 4;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Welcome = 4,
    Refused = 5,
    Batch = 16,
    Results = 17,
    Call = 18,
    Response = 19,
    Failure = 20,
    Report = 32,
    Grant = 33,
    OpenEndpoint = 48,
    Endpoint = 49,
}

impl FrameKind {
    const ALL: [FrameKind; 14] = [
        FrameKind::Hello,
        FrameKind::Challenge,
        FrameKind::Proof,
        FrameKind::Welcome,
        FrameKind::Refused,
        FrameKind::Batch,
        FrameKind::Results,
        FrameKind::Call,
        FrameKind::Response,
        FrameKind::Failure,
        FrameKind::Report,
        FrameKind::Grant,
        FrameKind::OpenEndpoint,
        FrameKind::Endpoint,
    ];

    fn of(byte: u8) -> Option<FrameKind> {
        FrameKind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The reason why bytes are no valid frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WireError {
    /// A length is larger than the maximum.
    TooLong {
        /// The length found.
        bytes: usize,
    },
    /// The body ends within a field.
    Short,
    /// The body has bytes after its last field.
    LeftOver,
    /// A field has a value that the encoder does not produce.
    Field {
        /// The name of the field.
        name: &'static str,
        /// The value found.
        found: u64,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::TooLong { bytes } => write!(
                f,
                "a frame has {bytes} bytes, the maximum is {FRAME_BYTES_MAX}, and less in a handshake"
            ),
            WireError::Short => f.write_str("the body of a frame ends within a field"),
            WireError::LeftOver => {
                f.write_str("the body of a frame has bytes after its last field")
            }
            WireError::Field { name, found } => {
                write!(
                    f,
                    "the field {name} of a frame has the invalid value {found:#x}"
                )
            }
        }
    }
}

impl std::error::Error for WireError {}

/// A frame in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: FrameKind,
    /// Number of the request, chosen by its sender.
    pub(crate) id: u64,
    pub(crate) body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns the frame at the start of `bytes`, of at most `bytes_max`, and its length, or `None` if it is not complete yet.
    pub(crate) fn split(
        bytes: &'a [u8],
        bytes_max: usize,
    ) -> Result<Option<(Frame<'a>, usize)>, WireError> {
        let mut head = BodyReader::new(bytes);
        let Ok(len) = head.u32() else {
            return Ok(None);
        };
        let total = LENGTH_BYTES + len as usize;
        if total > bytes_max {
            return Err(WireError::TooLong { bytes: total });
        }
        if total < HEAD_BYTES {
            return Err(WireError::Short);
        }
        let Some(frame) = bytes.get(LENGTH_BYTES..total) else {
            return Ok(None);
        };
        let mut fields = BodyReader::new(frame);
        let kind = fields.u8()?;
        let kind = FrameKind::of(kind).ok_or(WireError::Field {
            name: "kind",
            found: kind.into(),
        })?;
        fields.zeros::<3>()?;
        let id = fields.u64()?;
        let body = fields.rest();
        Ok(Some((Frame { kind, id, body }, total)))
    }

    /// Checks that the frame is of `kind`.
    pub(crate) fn expect(self, kind: FrameKind) -> Result<&'a [u8], WireError> {
        match self.kind == kind {
            true => Ok(self.body),
            false => Err(WireError::Field {
                name: "kind",
                found: self.kind as u64,
            }),
        }
    }
}

/// Appends a frame to `out`, whose body `body` appends.
///
/// # Panics
/// If the frame is longer than [`FRAME_BYTES_MAX`]. Callers check what they encode.
pub(crate) fn put_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    id: u64,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend([0; LENGTH_BYTES]);
    out.extend([kind as u8, 0, 0, 0]);
    out.extend(id.to_le_bytes());
    body(out);
    let total = out.len() - start;
    assert!(
        total <= FRAME_BYTES_MAX,
        "a frame of {total} bytes was encoded, the maximum is {FRAME_BYTES_MAX}"
    );
    let len = (total - LENGTH_BYTES) as u32;
    out[start..start + LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// The fields of a body that have not been decoded.
#[derive(Clone, Copy)]
pub(crate) struct BodyReader<'a>(&'a [u8]);

impl<'a> BodyReader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> BodyReader<'a> {
        BodyReader(body)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Decodes `N` bytes of padding.
    pub(crate) fn zeros<const N: usize>(&mut self) -> Result<(), WireError> {
        match self.array::<N>()?.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(byte) => Err(WireError::Field {
                name: "padding",
                found: (*byte).into(),
            }),
        }
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(self) -> Result<(), WireError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(WireError::LeftOver),
        }
    }
}

#[cfg(test)]
mod tests;
