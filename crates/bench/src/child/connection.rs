//! One connection to a server, line by line: what both protocols have in common.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::ConnectionStop;

/// A server that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection. What it reads may end at any point: then the server is gone.
pub(super) struct ChildConnection {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

fn gone(why: impl ToString) -> ConnectionStop {
    ConnectionStop::Gone(why.to_string())
}

/// The server said what its protocol does not have.
pub(super) fn no_reply(what: impl ToString) -> ConnectionStop {
    ConnectionStop::wrong("protocol", what)
}

impl ChildConnection {
    pub(super) fn open(addr: &str) -> Result<ChildConnection, ConnectionStop> {
        let stream = TcpStream::connect(addr).map_err(gone)?;
        stream.set_nodelay(true).map_err(gone)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(gone)?;
        let input = BufReader::with_capacity(64 << 10, stream.try_clone().map_err(gone)?);
        Ok(ChildConnection { stream, input })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionStop> {
        self.stream.write_all(bytes).map_err(gone)
    }

    /// Reads one line, without its end.
    pub(super) fn line(&mut self) -> Result<String, ConnectionStop> {
        let mut line = Vec::new();
        self.input
            .read_until(b'\n', &mut line)
            .map_err(|e| match e.kind() {
                ErrorKind::WouldBlock => no_reply("no reply within a minute"),
                _ => gone(e),
            })?;
        if !line.ends_with(b"\r\n") {
            return Err(gone("the connection ended"));
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).map_err(|e| no_reply(format!("a line of no text: {e}")))
    }

    /// Reads so many bytes, and the end of a line after them.
    pub(super) fn block(&mut self, len: usize) -> Result<Vec<u8>, ConnectionStop> {
        let mut bytes = vec![0; len + 2];
        self.input.read_exact(&mut bytes).map_err(gone)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}
