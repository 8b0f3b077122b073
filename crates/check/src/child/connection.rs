//! Line-based TCP connection, shared by the RESP client and the memcached client.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::error::ConnectionStop;

/// Read timeout. A server that sends nothing for this long is reported as hung.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Buffered connection. A read that ends early means that the server process has ended.
pub(super) struct ChildConnection {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

/// Returns a protocol violation: the server sent `what`, which its protocol does not allow.
pub(super) fn protocol_violation(what: impl ToString) -> ConnectionStop {
    ConnectionStop::wrong("protocol", what)
}

/// Returns whether a reply line of either protocol is the error of a failed medium.
fn tells_of_a_failed_medium(line: &str) -> bool {
    line.starts_with("SERVER_ERROR the pool cannot be written")
        || line.starts_with('-') && line.contains("MISCONF Errors writing to the pool")
}

impl ChildConnection {
    pub(super) fn open(addr: &str) -> Result<ChildConnection, ConnectionStop> {
        let stream = TcpStream::connect(addr).map_err(ConnectionStop::Gone)?;
        stream.set_nodelay(true).map_err(ConnectionStop::Gone)?;
        stream
            .set_read_timeout(Some(READ_TIMEOUT))
            .map_err(ConnectionStop::Gone)?;
        let input =
            BufReader::with_capacity(64 << 10, stream.try_clone().map_err(ConnectionStop::Gone)?);
        Ok(ChildConnection { stream, input })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionStop> {
        self.stream.write_all(bytes).map_err(ConnectionStop::Gone)
    }

    /// Reads one line and removes its `\r\n`. A line which says that the server's medium has failed is an error.
    pub(super) fn line(&mut self) -> Result<String, ConnectionStop> {
        let mut line = Vec::new();
        self.input
            .read_until(b'\n', &mut line)
            .map_err(|e| match e.kind() {
                ErrorKind::WouldBlock => protocol_violation("the server sent no reply within 60 s"),
                _ => ConnectionStop::Gone(e),
            })?;
        if !line.ends_with(b"\r\n") {
            return Err(ConnectionStop::Gone(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )));
        }
        line.truncate(line.len() - 2);
        let line = String::from_utf8(line)
            .map_err(|e| protocol_violation(format!("a reply line is not UTF-8: {e}")))?;
        match tells_of_a_failed_medium(&line) {
            true => Err(ConnectionStop::MediumFailed(line)),
            false => Ok(line),
        }
    }

    /// Reads `len` bytes and the `\r\n` that follows them. Returns the `len` bytes.
    pub(super) fn block(&mut self, len: usize) -> Result<Vec<u8>, ConnectionStop> {
        let mut bytes = vec![0; len + 2];
        self.input
            .read_exact(&mut bytes)
            .map_err(ConnectionStop::Gone)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}
