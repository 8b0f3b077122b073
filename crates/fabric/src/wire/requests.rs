//! Calls to the service of a memory server, their responses, and the reports of members to the lease server.

use super::{BodyReader, FrameKind, WireError, put_frame};
use crate::service::{ServiceRequest, ServiceResponse};

/// Number of compute servers of a cluster. Lock words of structures have 10 bits for the number plus one.
pub(crate) const FLOORS: usize = 1023;
/// Number in the handshake of a compute server that joins under any free number.
pub(crate) const ANY_COMPUTE: u16 = u16::MAX;

/// For each compute server its *floor*: the first epoch that has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Floors(pub(crate) Box<[u8; FLOORS]>);

impl Floors {
    pub(crate) fn new() -> Floors {
        Floors(Box::new([0; FLOORS]))
    }
}

pub(crate) fn encode_call(id: u64, request: ServiceRequest, out: &mut Vec<u8>) {
    put_frame(out, FrameKind::Call, id, |out| match request {
        ServiceRequest::Chunk => out.push(1),
        ServiceRequest::Renew => out.push(2),
        ServiceRequest::CheckLease { compute, epoch } => {
            out.push(3);
            out.extend(compute.to_le_bytes());
            out.push(epoch);
        }
        ServiceRequest::Join => out.push(4),
        ServiceRequest::Reserve { to } => {
            out.push(5);
            out.extend(to.to_le_bytes());
        }
        ServiceRequest::Leave => out.push(6),
    });
}

pub(crate) fn decode_call(body: &[u8]) -> Result<ServiceRequest, WireError> {
    let mut fields = BodyReader::new(body);
    let request = match fields.u8()? {
        1 => ServiceRequest::Chunk,
        2 => ServiceRequest::Renew,
        3 => ServiceRequest::CheckLease {
            compute: fields.u16()?,
            epoch: fields.u8()?,
        },
        4 => ServiceRequest::Join,
        5 => ServiceRequest::Reserve { to: fields.u64()? },
        6 => ServiceRequest::Leave,
        tag => {
            return Err(WireError::Field {
                name: "request",
                found: tag.into(),
            });
        }
    };
    fields.end()?;
    Ok(request)
}

pub(crate) fn encode_response(id: u64, response: ServiceResponse, out: &mut Vec<u8>) {
    put_frame(out, FrameKind::Response, id, |out| match response {
        ServiceResponse::Chunk { at, bytes } => {
            out.push(1);
            out.extend(at.to_le_bytes());
            out.extend(bytes.to_le_bytes());
        }
        ServiceResponse::Full => out.push(2),
        ServiceResponse::Alive => out.push(3),
        ServiceResponse::Expired => out.push(4),
        ServiceResponse::Epoch(epoch) => out.extend([5, epoch]),
        ServiceResponse::Reserved => out.push(6),
        ServiceResponse::Joined {
            compute,
            epoch,
            process,
        } => {
            out.push(7);
            out.extend(compute.to_le_bytes());
            out.push(epoch);
            out.extend(process.to_le_bytes());
        }
        ServiceResponse::Left => out.push(8),
    });
}

pub(crate) fn decode_response(body: &[u8]) -> Result<ServiceResponse, WireError> {
    let mut fields = BodyReader::new(body);
    let response = match fields.u8()? {
        1 => ServiceResponse::Chunk {
            at: fields.u64()?,
            bytes: fields.u64()?,
        },
        2 => ServiceResponse::Full,
        3 => ServiceResponse::Alive,
        4 => ServiceResponse::Expired,
        5 => ServiceResponse::Epoch(fields.u8()?),
        6 => ServiceResponse::Reserved,
        7 => ServiceResponse::Joined {
            compute: fields.u16()?,
            epoch: fields.u8()?,
            process: fields.u32()?,
        },
        8 => ServiceResponse::Left,
        tag => {
            return Err(WireError::Field {
                name: "response",
                found: tag.into(),
            });
        }
    };
    fields.end()?;
    Ok(response)
}

/// The reason why a memory server did not execute a request. The request has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Failure {
    /// The epoch of the compute server has ended.
    Fenced = 1,
    /// An address, a length or an alignment is invalid.
    Rejected = 2,
    /// The memory server may not serve now: it has no lease of its own, or a newer connection has replaced this one.
    Unavailable = 3,
}

impl Failure {
    const ALL: [Failure; 3] = [Failure::Fenced, Failure::Rejected, Failure::Unavailable];
}

pub(crate) fn encode_failure(id: u64, failure: Failure, out: &mut Vec<u8>) {
    put_frame(out, FrameKind::Failure, id, |out| out.push(failure as u8));
}

pub(crate) fn decode_failure(body: &[u8]) -> Result<Failure, WireError> {
    let mut fields = BodyReader::new(body);
    let code = fields.u8()?;
    fields.end()?;
    let known = Failure::ALL.into_iter().find(|known| *known as u8 == code);
    known.ok_or(WireError::Field {
        name: "failure",
        found: code.into(),
    })
}

/// The request of a member to the lease server for a lease of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    pub(crate) generation: u64,
    /// Version of the floors that the member has applied; 0: none of this lease server.
    pub(crate) applied: u64,
    pub(crate) floors: Floors,
}

impl Report {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, FrameKind::Report, 0, |out| {
            out.extend(self.generation.to_le_bytes());
            out.extend(self.applied.to_le_bytes());
            out.extend(*self.floors.0);
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Report, WireError> {
        let mut fields = BodyReader::new(body);
        let report = Report {
            generation: fields.u64()?,
            applied: fields.u64()?,
            floors: Floors(Box::new(fields.array()?)),
        };
        fields.end()?;
        Ok(report)
    }
}

/// The answer to a [`Report`]: a lease of the member, and the floors that it must apply before it uses the lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) lease_ns: u64,
    pub(crate) version: u64,
    pub(crate) floors: Floors,
}

impl Grant {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, FrameKind::Grant, 0, |out| {
            out.extend(self.lease_ns.to_le_bytes());
            out.extend(self.version.to_le_bytes());
            out.extend(*self.floors.0);
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Grant, WireError> {
        let mut fields = BodyReader::new(body);
        let grant = Grant {
            lease_ns: fields.u64()?,
            version: fields.u64()?,
            floors: Floors(Box::new(fields.array()?)),
        };
        fields.end()?;
        Ok(grant)
    }
}
