//! A connection to a Redis server, and the parser of its replies.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

/// Time after which an expected reply counts as missing.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// One reply. Two replies are equal if all their bytes are equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    /// The first line, without CR LF.
    pub(crate) head: Vec<u8>,
    pub(crate) body: ReplyBody,
}

/// The bytes of a reply after its first line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReplyBody {
    /// No further bytes: a status, an error, a number or a null.
    Line,
    /// A string.
    Text(Vec<u8>),
    /// The elements of an array, a set or a map.
    Nested(Vec<Reply>),
}

impl Reply {
    /// Returns the byte that encodes the reply's type.
    pub(crate) fn marker(&self) -> u8 {
        self.head.first().copied().unwrap_or(0)
    }

    /// Returns the number of an integer reply.
    pub(crate) fn integer(&self) -> Option<i64> {
        let digits = self.head.strip_prefix(b":")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Returns the bytes of a string reply.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        match &self.body {
            ReplyBody::Text(text) => Some(text),
            ReplyBody::Line | ReplyBody::Nested(_) => None,
        }
    }

    /// Returns the elements of an array, a set or a map.
    pub(crate) fn elements(&self) -> Option<&[Reply]> {
        match &self.body {
            ReplyBody::Nested(elements) => Some(elements),
            ReplyBody::Line | ReplyBody::Text(_) => None,
        }
    }

    /// Returns whether the reply is an error that begins with `text`.
    pub(crate) fn is_error(&self, text: &str) -> bool {
        let error = self.head.strip_prefix(b"-");
        error.is_some_and(|error| error.starts_with(text.as_bytes()))
    }

    /// Parses the reply at the start of `bytes`. Returns the reply and its length, or `None` if it has not arrived
    /// completely.
    ///
    /// # Errors
    /// The bytes are not a reply.
    fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let head = bytes[..end].to_vec();
        let after = end + 2;
        let length = || std::str::from_utf8(&head[1..]).ok()?.parse::<i64>().ok();
        let line = |head| {
            Ok(Some((
                Reply {
                    head,
                    body: ReplyBody::Line,
                },
                after,
            )))
        };
        let per_element = match head.first() {
            Some(b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(') => return line(head),
            Some(b'$' | b'=') => 0,
            Some(b'*' | b'~' | b'>') => 1,
            Some(b'%') => 2,
            _ => return Err(format!("{} is not a reply", escape(&head))),
        };
        let length = length().ok_or_else(|| format!("{} has no length", escape(&head)))?;
        let Ok(length) = usize::try_from(length) else {
            return line(head);
        };
        if per_element == 0 {
            let Some(text) = bytes.get(after..after + length + 2) else {
                return Ok(None);
            };
            let body = ReplyBody::Text(text[..length].to_vec());
            return Ok(Some((Reply { head, body }, after + length + 2)));
        }
        let (mut elements, mut at) = (Vec::new(), after);
        for _ in 0..length * per_element {
            let Some((element, bytes)) = Reply::read(&bytes[at..])? else {
                return Ok(None);
            };
            elements.push(element);
            at += bytes;
        }
        let body = ReplyBody::Nested(elements);
        Ok(Some((Reply { head, body }, at)))
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", escape(&self.head))?;
        match &self.body {
            ReplyBody::Line => Ok(()),
            ReplyBody::Text(text) => write!(f, " {}", escape(text)),
            ReplyBody::Nested(elements) => {
                for element in elements {
                    write!(f, " [{element}]")?;
                }
                Ok(())
            }
        }
    }
}

/// Returns `bytes` as text of bounded length.
pub(crate) fn escape(bytes: &[u8]) -> String {
    const SHOWN: usize = 1000;
    let shown = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    match bytes.len().checked_sub(SHOWN) {
        None | Some(0) => shown.to_string(),
        Some(more) => format!("{shown}... and {more} bytes"),
    }
}

/// Returns the bytes of a request: an array of strings.
pub(crate) fn request(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Result of waiting for a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReceivedReply {
    Reply(Reply),
    /// The server closed the connection.
    Closed,
    /// No reply arrived in time.
    Nothing,
    /// The bytes are not a reply.
    Garbage(String),
}

impl fmt::Display for ReceivedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceivedReply::Reply(reply) => reply.fmt(f),
            ReceivedReply::Closed => f.write_str("(connection closed)"),
            ReceivedReply::Nothing => f.write_str("(no reply)"),
            ReceivedReply::Garbage(why) => write!(f, "(not a reply: {why})"),
        }
    }
}

/// A connection to a server.
pub(crate) struct WireConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl WireConnection {
    pub(crate) fn connect(port: u16) -> Result<WireConnection, String> {
        let connect = || {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
            Ok(stream)
        };
        let stream = connect().map_err(|e: std::io::Error| format!("port {port}: {e}"))?;
        let buffer = Vec::new();
        Ok(WireConnection { stream, buffer })
    }

    /// Returns the local address, as the server's CLIENT LIST shows it.
    pub(crate) fn address(&self) -> String {
        let address = self.stream.local_addr();
        address.map(|a| a.to_string()).unwrap_or_default()
    }

    /// Sends `bytes`. Ignores errors: a connection that the server has closed is detected when replies are read.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Shuts down the sending direction.
    pub(crate) fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads more bytes. Returns false at the end of the connection.
    fn more(&mut self) -> Result<bool, ReceivedReply> {
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.buffer.extend_from_slice(&piece[..n]);
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(ReceivedReply::Nothing)
            }
            Err(_) => Ok(false),
        }
    }

    /// Returns the next reply.
    pub(crate) fn receive(&mut self) -> ReceivedReply {
        loop {
            match Reply::read(&self.buffer) {
                Ok(Some((reply, bytes))) => {
                    self.buffer.drain(..bytes);
                    return ReceivedReply::Reply(reply);
                }
                Ok(None) => {}
                Err(why) => return ReceivedReply::Garbage(why),
            }
            match self.more() {
                Ok(true) => {}
                Ok(false) => return ReceivedReply::Closed,
                Err(nothing) => return nothing,
            }
        }
    }

    /// Reads all bytes until the server closes the connection or the timeout. Returns the bytes and whether it was
    /// closed.
    pub(crate) fn drain(&mut self) -> (Vec<u8>, bool) {
        loop {
            match self.more() {
                Ok(true) => {}
                Ok(false) => return (std::mem::take(&mut self.buffer), true),
                Err(_) => return (std::mem::take(&mut self.buffer), false),
            }
        }
    }
}
