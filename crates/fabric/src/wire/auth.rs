//! The shared key, and the frames of the handshake.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{BodyReader, FrameKind, WireError, put_frame};

/// Minimum bytes of a [`SharedKey`].
pub const KEY_BYTES_MIN: usize = 16;
pub(crate) const NONCE_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"frbkwire";
/// Version of the protocol. Both ends must have the same.
pub const PROTOCOL_VERSION: u16 = 4;

/// The secret that all compute and memory servers of a cluster share. They authenticate each other with HMAC-SHA-256.
#[derive(Clone)]
pub struct SharedKey(Vec<u8>);

impl SharedKey {
    /// Makes a key of `bytes`, which should be random. Returns `None` if there are fewer than [`KEY_BYTES_MIN`].
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<SharedKey> {
        let bytes = bytes.into();
        (bytes.len() >= KEY_BYTES_MIN).then_some(SharedKey(bytes))
    }

    fn code(&self, author: ProofOf, hello: &[u8], challenge: &[u8]) -> Hmac<Sha256> {
        let mut code =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // Both parts have a fixed length, so that their border is unambiguous.
        code.update(author.label());
        code.update(hello);
        code.update(challenge);
        code
    }

    /// Returns the proof by `author` that it has the key, for this handshake.
    pub(crate) fn prove(
        &self,
        author: ProofOf,
        hello: &[u8],
        challenge: &[u8],
    ) -> [u8; PROOF_BYTES] {
        let code = self.code(author, hello, challenge);
        code.finalize().into_bytes().into()
    }

    /// Returns whether `proof` proves that `author` has the key. Takes the same time for all wrong proofs.
    pub(crate) fn is_proof(
        &self,
        author: ProofOf,
        hello: &[u8],
        challenge: &[u8],
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        let code = self.code(author, hello, challenge);
        code.verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedKey({} bytes)", self.0.len())
    }
}

/// The author of a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProofOf {
    Server,
    Client,
}

impl ProofOf {
    fn label(self) -> &'static [u8] {
        match self {
            ProofOf::Server => b"farbank fabric, server, 1\0",
            ProofOf::Client => b"farbank fabric, client, 1\0",
        }
    }
}

/// What the sender of a [`Hello`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Role {
    /// A compute server. In epoch 0 it may only join.
    Compute,
    /// A memory server that reports to the lease server.
    Member,
    /// A compute server that sends its verbs by an endpoint of libfabric, and only calls over the connection.
    OneSided,
}

impl Role {
    const ALL: [Role; 3] = [Role::Compute, Role::Member, Role::OneSided];
}

/// The first frame of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) role: Role,
    /// The memory server that the sender expects.
    pub(crate) server: u16,
    /// Number of the sender.
    pub(crate) number: u16,
    /// Epoch of the sending compute server; 0: none yet.
    pub(crate) epoch: u8,
    /// Number of the process among those that have used the epoch.
    pub(crate) process: u32,
    /// Number of the thread in the process.
    pub(crate) thread: u8,
    /// Number of the connection among those of this thread. A connection ends the thread's earlier ones.
    pub(crate) attempt: u64,
    pub(crate) nonce: [u8; NONCE_BYTES],
}

impl Hello {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, FrameKind::Hello, 0, |out| {
            out.extend(MAGIC);
            out.extend(PROTOCOL_VERSION.to_le_bytes());
            out.extend([self.role as u8, self.epoch]);
            out.extend(self.server.to_le_bytes());
            out.extend(self.number.to_le_bytes());
            out.extend(self.process.to_le_bytes());
            out.push(self.thread);
            out.extend(self.attempt.to_le_bytes());
            out.extend(self.nonce);
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Hello, WireError> {
        let mut fields = BodyReader::new(body);
        check_version(&mut fields)?;
        let role = fields.u8()?;
        let known = Role::ALL.into_iter().find(|known| *known as u8 == role);
        let role = known.ok_or(WireError::Field {
            name: "role",
            found: role.into(),
        })?;
        let epoch = fields.u8()?;
        let hello = Hello {
            role,
            epoch,
            server: fields.u16()?,
            number: fields.u16()?,
            process: fields.u32()?,
            thread: fields.u8()?,
            attempt: fields.u64()?,
            nonce: fields.array()?,
        };
        fields.end()?;
        Ok(hello)
    }
}

fn check_version(fields: &mut BodyReader<'_>) -> Result<(), WireError> {
    let magic = fields.array::<8>()?;
    if magic != MAGIC {
        return Err(WireError::Field {
            name: "magic",
            found: u64::from_le_bytes(magic),
        });
    }
    match fields.u16()? {
        PROTOCOL_VERSION => Ok(()),
        version => Err(WireError::Field {
            name: "version",
            found: version.into(),
        }),
    }
}

/// The answer of a memory server to [`Hello`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Challenge {
    pub(crate) server: u16,
    pub(crate) generation: u64,
    pub(crate) host_bytes: u64,
    pub(crate) lock_bytes: u64,
    /// Duration of the lease of a compute server.
    pub(crate) lease_ns: u64,
    pub(crate) nonce: [u8; NONCE_BYTES],
}

impl Challenge {
    /// Returns the fields that the server's proof covers.
    pub(crate) fn fields(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend(MAGIC);
        out.extend(PROTOCOL_VERSION.to_le_bytes());
        out.extend(self.server.to_le_bytes());
        for word in [
            self.generation,
            self.host_bytes,
            self.lock_bytes,
            self.lease_ns,
        ] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.nonce);
        out
    }

    pub(crate) fn encode(&self, proof: &[u8; PROOF_BYTES], out: &mut Vec<u8>) {
        put_frame(out, FrameKind::Challenge, 0, |out| {
            out.extend(self.fields());
            out.extend(proof);
        });
    }

    /// Decodes a challenge and the server's proof.
    pub(crate) fn decode(body: &[u8]) -> Result<(Challenge, [u8; PROOF_BYTES]), WireError> {
        let mut fields = BodyReader::new(body);
        check_version(&mut fields)?;
        let challenge = Challenge {
            server: fields.u16()?,
            generation: fields.u64()?,
            host_bytes: fields.u64()?,
            lock_bytes: fields.u64()?,
            lease_ns: fields.u64()?,
            nonce: fields.array()?,
        };
        let proof = fields.array()?;
        fields.end()?;
        Ok((challenge, proof))
    }
}

pub(crate) fn encode_proof(proof: &[u8; PROOF_BYTES], out: &mut Vec<u8>) {
    put_frame(out, FrameKind::Proof, 0, |out| out.extend(proof));
}

pub(crate) fn decode_proof(body: &[u8]) -> Result<[u8; PROOF_BYTES], WireError> {
    let mut fields = BodyReader::new(body);
    let proof = fields.array()?;
    fields.end()?;
    Ok(proof)
}

pub(crate) fn encode_welcome(out: &mut Vec<u8>) {
    put_frame(out, FrameKind::Welcome, 0, |_| {});
}

/// The reason why a memory server refuses a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The key differs.
    BadKey = 1,
    /// The server has another number than expected.
    WrongServer = 2,
    /// The epoch of the compute server has ended.
    Fenced = 3,
    /// The compute server has a newer connection.
    Superseded = 4,
    /// The server has as many connections as it allows.
    TooManyConnections = 5,
    /// The number of a compute server or member is too large.
    BadNumber = 6,
    /// The server manages no leases.
    NotLeaseServer = 7,
    /// The server serves its memory over libfabric only.
    NeedsLibfabric = 8,
    /// The server does not serve its memory over libfabric.
    NoLibfabric = 9,
}

impl Refusal {
    const ALL: [Refusal; 9] = [
        Refusal::BadKey,
        Refusal::WrongServer,
        Refusal::Fenced,
        Refusal::Superseded,
        Refusal::TooManyConnections,
        Refusal::BadNumber,
        Refusal::NotLeaseServer,
        Refusal::NeedsLibfabric,
        Refusal::NoLibfabric,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::BadKey => "the keys differ",
            Refusal::WrongServer => "the memory server at this address has another number",
            Refusal::Fenced => "the epoch of this compute server has ended",
            Refusal::Superseded => "this compute server has a newer connection",
            Refusal::TooManyConnections => "the memory server has no free connection",
            Refusal::BadNumber => "the number of this server is too large",
            Refusal::NotLeaseServer => "the server manages no leases",
            Refusal::NeedsLibfabric => {
                "the server was started with --fabric libfabric: use the address libfabric:IP:PORT"
            }
            Refusal::NoLibfabric => {
                "the server was started without --fabric libfabric: use the address IP:PORT"
            }
        })
    }
}

pub(crate) fn encode_refusal(refusal: Refusal, out: &mut Vec<u8>) {
    put_frame(out, FrameKind::Refused, 0, |out| out.push(refusal as u8));
}

pub(crate) fn decode_refusal(body: &[u8]) -> Result<Refusal, WireError> {
    let mut fields = BodyReader::new(body);
    let code = fields.u8()?;
    fields.end()?;
    let known = Refusal::ALL.into_iter().find(|known| *known as u8 == code);
    known.ok_or(WireError::Field {
        name: "refusal",
        found: code.into(),
    })
}
