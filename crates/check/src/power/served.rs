//! The server as a child process, for power-cut tests.

use std::path::Path;

use super::ack_sink::BatchSink;
use super::error::PowerError;
use super::{POOL_BYTES, SEGMENT_BYTES, WRITERS};
use crate::child::{ChildServer, RespClient, ServerLaunch};

/// A running `farbank serve`. Killed when dropped.
pub(super) struct ServedProcess(ChildServer);

impl ServedProcess {
    /// Starts a server on the pool at `path`, which is created if it does not exist, and waits until it is ready.
    pub(super) fn start(farbank: &Path, path: &Path) -> Result<ServedProcess, PowerError> {
        let segment_bytes = SEGMENT_BYTES.to_string();
        let server = ChildServer::start(&ServerLaunch {
            program: farbank.into(),
            pool: path.into(),
            pool_bytes: POOL_BYTES,
            arguments: ["--log-level", "error", "--segment-bytes", &segment_bytes]
                .map(Into::into)
                .into(),
            memcached: false,
        })?;
        Ok(ServedProcess(server))
    }

    /// Opens a connection for each writer.
    pub(super) fn connect(&self) -> Result<Vec<Box<dyn BatchSink>>, PowerError> {
        let connect = |_| {
            let client = RespClient::connect(self.0.addr())?;
            Ok(Box::new(client) as Box<dyn BatchSink>)
        };
        (0..WRITERS).map(connect).collect()
    }
}
