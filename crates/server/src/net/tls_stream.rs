//! TLS over a socket that does not block.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;
use rustls::ServerConnection;

/// Most calls of `read` on the socket in one [`TlsStream::read`]. Each returns at most a record.
const READS_MAX: usize = 64;
/// Bytes of memory that an idle session uses, about.
const SESSION_BYTES: usize = 20 << 10;

/// The session of a connection whose handshake is complete.
pub(super) struct TlsStream(Box<ServerConnection>);

/// Result of [`TlsStream::read`].
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct TlsRead {
    /// Bytes of the client's data.
    pub(super) bytes: usize,
    /// The socket has no more bytes for now.
    pub(super) is_blocked: bool,
    /// The client has ended the connection.
    pub(super) is_ended: bool,
}

impl TlsStream {
    /// Takes a session whose handshake is complete.
    pub(super) fn new(session: Box<ServerConnection>) -> TlsStream {
        TlsStream(session)
    }

    /// Reads and decrypts until `space` is full, or the socket has no more bytes, or [`READS_MAX`] is reached.
    ///
    /// # Errors
    /// The socket failed, or the client violates the protocol; it is sent an alert if the socket accepts it.
    pub(super) fn read(&mut self, stream: &mut TcpStream, space: &mut [u8]) -> io::Result<TlsRead> {
        let mut read = TlsRead::default();
        let mut reads = 0;
        while read.bytes < space.len() {
            match self.0.reader().read(&mut space[read.bytes..]) {
                Ok(0) => {
                    read.is_ended = true;
                    break;
                }
                Ok(n) => {
                    read.bytes += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The client has closed the socket without an alert.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    read.is_ended = true;
                    break;
                }
                Err(e) => return Err(e),
            }
            if reads == READS_MAX {
                break;
            }
            reads += 1;
            match self.0.read_tls(stream) {
                Ok(_) => {
                    if let Err(error) = self.0.process_new_packets() {
                        self.flush(stream).ok(); // The alert.
                        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    read.is_blocked = true;
                    break;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(read)
    }

    /// Whether encrypted bytes wait for the socket.
    pub(super) fn has_unsent(&self) -> bool {
        self.0.wants_write()
    }

    /// Sends encrypted bytes. Returns whether all were sent.
    pub(super) fn flush(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        while self.0.wants_write() {
            match self.0.write_tls(stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Tells the client that no more data follows, if the socket accepts it.
    pub(super) fn end(&mut self, stream: &mut TcpStream) {
        self.0.send_close_notify();
        if let Err(error) = self.flush(stream) {
            tracing::debug!(%error, "cannot send the end of a TLS connection");
        }
    }

    /// Bytes of memory that the session uses, about.
    pub(super) fn memory_bytes(&self) -> usize {
        SESSION_BYTES
    }
}

/// Encrypts what is written, and sends it. The session keeps at most its buffer limit of encrypted bytes.
pub(super) struct TlsWriter<'a> {
    pub(super) tls: &'a mut TlsStream,
    pub(super) stream: &'a mut TcpStream,
}

impl Write for TlsWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.tls.flush(self.stream)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.tls.0.writer().write_vectored(bytes)?;
        self.tls.flush(self.stream)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tls.flush(self.stream).map(drop)
    }
}
