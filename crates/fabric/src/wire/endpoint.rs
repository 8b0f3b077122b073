//! Endpoints of libfabric at which a memory server serves its memory.
//!
//! ```text
//!   OpenEndpoint  nothing
//!   Endpoint      base u64 │ key u64 │ length of the name u8 │ name of the provider │ address of the endpoint
//! ```

use super::{BodyReader, FrameKind, WireError, put_frame};

/// Maximum bytes of a provider's name.
const PROVIDER_BYTES_MAX: usize = 64;
/// Maximum bytes of an endpoint's address.
const ADDRESS_BYTES_MAX: usize = 512;

/// An endpoint of a memory server, as a compute server needs to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EndpointName {
    /// Name of the provider.
    pub(crate) provider: String,
    /// Address of the first byte of the registered memory: of the lock memory, before the host memory.
    pub(crate) base: u64,
    /// Key of the registration.
    pub(crate) key: u64,
    /// Address of the endpoint, in the format of the provider.
    pub(crate) address: Vec<u8>,
}

impl EndpointName {
    /// Appends the request for an endpoint to `out`.
    pub(crate) fn encode_request(id: u64, out: &mut Vec<u8>) {
        put_frame(out, FrameKind::OpenEndpoint, id, |_| {});
    }

    /// Appends the response to `out`. Returns whether it was appended: a field may be too long.
    pub(crate) fn encode(&self, id: u64, out: &mut Vec<u8>) -> bool {
        let name = self.provider.as_bytes();
        if name.len() > PROVIDER_BYTES_MAX || self.address.len() > ADDRESS_BYTES_MAX {
            return false;
        }
        put_frame(out, FrameKind::Endpoint, id, |out| {
            out.extend(self.base.to_le_bytes());
            out.extend(self.key.to_le_bytes());
            out.push(name.len() as u8);
            out.extend(name);
            out.extend(&self.address);
        });
        true
    }

    pub(crate) fn decode(body: &[u8]) -> Result<EndpointName, WireError> {
        let mut fields = BodyReader::new(body);
        let (base, key) = (fields.u64()?, fields.u64()?);
        let bytes = usize::from(fields.u8()?);
        let wrong = |name, found| WireError::Field { name, found };
        if bytes > PROVIDER_BYTES_MAX {
            return Err(wrong("length of a provider's name", bytes as u64));
        }
        let provider = std::str::from_utf8(fields.bytes(bytes)?);
        let provider = provider
            .map_err(|_| wrong("provider", bytes as u64))?
            .into();
        let address = fields.rest();
        if address.len() > ADDRESS_BYTES_MAX {
            return Err(wrong("length of an address", address.len() as u64));
        }
        Ok(EndpointName {
            provider,
            base,
            key,
            address: address.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FRAME_BYTES_MAX, Frame};

    #[test]
    fn an_endpoint_is_decoded_as_it_was_encoded_and_long_fields_are_refused() {
        let endpoint = EndpointName {
            provider: "tcp;ofi_rxm".into(),
            base: 1 << 40,
            key: u64::MAX,
            address: vec![7; 28],
        };
        let mut out = Vec::new();
        assert!(endpoint.encode(9, &mut out));
        let (frame, len) = Frame::split(&out, FRAME_BYTES_MAX).unwrap().unwrap();
        assert_eq!((frame.id, len), (9, out.len()));
        let body = frame.expect(FrameKind::Endpoint).unwrap();
        assert_eq!(EndpointName::decode(body), Ok(endpoint.clone()));
        assert_eq!(EndpointName::decode(&body[..20]), Err(WireError::Short));
        let mut long = body.to_vec();
        long[16] = 65;
        assert!(matches!(
            EndpointName::decode(&long),
            Err(WireError::Field { found: 65, .. })
        ));
        long = body.to_vec();
        long.extend([0; 512]);
        assert!(matches!(
            EndpointName::decode(&long),
            Err(WireError::Field { .. })
        ));
        let address = vec![0; 513];
        let long = EndpointName {
            address,
            ..endpoint
        };
        assert!(!long.encode(1, &mut out));
    }
}
