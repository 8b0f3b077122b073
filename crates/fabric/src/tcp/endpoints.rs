//! Connections of a compute server whose verbs go to endpoints of libfabric.

use super::ConnectError;
use super::client::TcpFabric;
use super::handshake::{FrameStream, StreamError};
use super::membership::{Membership, TcpSettings};
use super::reactor::Reactor;
use crate::wire::{EndpointName, FrameKind, Role, decode_failure};

impl TcpFabric {
    /// Like [`TcpFabric::connect`], for memory servers that serve their memory over libfabric. Also returns the name of an endpoint of
    /// each server that is used.
    pub(crate) fn connect_one_sided(
        reactor: &Reactor,
        settings: TcpSettings,
    ) -> Result<(TcpFabric, Vec<Option<EndpointName>>), ConnectError> {
        TcpFabric::connect_as(reactor, settings, Role::OneSided, ask_for_endpoint)
    }

    /// Like [`TcpFabric::connect_thread`], for memory servers that serve their memory over libfabric.
    pub(crate) fn connect_thread_one_sided(
        reactor: &Reactor,
        membership: &Membership,
    ) -> Result<(TcpFabric, Vec<Option<EndpointName>>), ConnectError> {
        TcpFabric::connect_thread_as(reactor, membership, ask_for_endpoint)
    }
}

fn ask_for_endpoint(stream: &mut FrameStream) -> Result<EndpointName, StreamError> {
    let mut out = Vec::new();
    EndpointName::encode_request(1, &mut out);
    stream.send(&out)?;
    stream.receive(|frame| {
        if frame.kind == FrameKind::Failure {
            decode_failure(frame.body)?;
            return Err(StreamError::NoEndpoint);
        }
        Ok(EndpointName::decode(frame.expect(FrameKind::Endpoint)?)?)
    })
}
