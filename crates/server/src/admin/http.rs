//! One HTTP/1.1 request and its response, on a connection that is closed afterwards.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Maximum bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 64;
/// How long one read waits before it checks whether the server stops.
const STEP: Duration = Duration::from_millis(100);

/// A request without its body, which no path of the admin port reads.
pub(super) struct Request {
    pub(super) method: String,
    target: String,
    host: Option<String>,
}

impl Request {
    /// The path, without the query.
    pub(super) fn path(&self) -> &str {
        self.target.split(['?', '#']).next().unwrap_or_default()
    }

    /// Whether the client has named the server by a loopback address or as localhost. A browser sends the name of the
    /// site whose page makes the request.
    pub(super) fn names_loopback(&self) -> bool {
        let Some(host) = &self.host else {
            return false;
        };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
    }

    /// Parses the head of a request. Returns `None` while it is incomplete.
    fn parse(head: &[u8]) -> Result<Option<Request>, httparse::Error> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut fields);
        if parsed.parse(head)?.is_partial() {
            return Ok(None);
        }
        let mut fields = parsed.headers.iter();
        let host = fields.find(|field| field.name.eq_ignore_ascii_case("host"));
        let host = host.map(|field| String::from_utf8_lossy(field.value).trim().to_owned());
        Ok(Some(Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            target: parsed.path.unwrap_or_default().to_owned(),
            host,
        }))
    }
}

/// A response with a text.
pub(super) struct Response {
    status: u16,
    content_type: &'static str,
    text: String,
    has_body: bool,
}

impl Response {
    /// Creates a response.
    pub(super) fn text(status: u16, content_type: &'static str, text: String) -> Response {
        Response {
            status,
            content_type,
            text,
            has_body: true,
        }
    }

    /// Leaves the body out if `is_head`, as the reply to a HEAD request does.
    pub(super) fn without_body(self, is_head: bool) -> Response {
        Response {
            has_body: !is_head,
            ..self
        }
    }

    fn refusal(status: u16, text: &str) -> Response {
        Response::text(status, super::TEXT, text.to_owned())
    }

    fn bytes(&self) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let (status, kind, length) = (self.status, self.content_type, self.text.len());
        let mut bytes = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Allow: GET, HEAD\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
             style-src 'unsafe-inline'; connect-src 'self'\r\nConnection: close\r\n\r\n"
        )
        .into_bytes();
        if self.has_body {
            bytes.extend_from_slice(self.text.as_bytes());
        }
        bytes
    }
}

/// Reads the head of a request. Returns the response to send instead if the request is invalid or late.
///
/// # Errors
/// The connection is lost, or the server stops.
pub(super) fn read_request(
    mut stream: &TcpStream,
    deadline: Instant,
    is_stopping: impl Fn() -> bool,
) -> io::Result<Result<Request, Response>> {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Response::refusal(408, "the request took too long\n")));
        }
        if is_stopping() {
            return Err(io::Error::other("the server stops"));
        }
        stream.set_read_timeout(Some(left.min(STEP)))?;
        let read = match stream.read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&chunk[..read]);
        match Request::parse(&head) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Ok(None) if head.len() < HEAD_BYTES_MAX => {}
            Ok(None) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(Err(Response::refusal(431, "the request is too long\n")));
            }
            Err(error) => {
                let text = format!("not a request of HTTP/1.1: {error}\n");
                return Ok(Err(Response::refusal(400, &text)));
            }
        }
    }
}

/// Sends `response` until `deadline`.
///
/// # Errors
/// The connection is lost, or the client did not take the response in time.
pub(super) fn send(
    mut stream: &TcpStream,
    response: &Response,
    deadline: Instant,
) -> io::Result<()> {
    let bytes = response.bytes();
    let mut unsent = &bytes[..];
    while !unsent.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left.min(STEP)))?;
        match stream.write(unsent) {
            Ok(sent) => unsent = &unsent[sent..],
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    discard_rest(stream)
}

/// Reads what the client still sends, for a moment: closing a connection with unread input would discard the response.
fn discard_rest(mut stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(STEP))?;
    let mut chunk = [0; 4096];
    for _ in 0..HEAD_BYTES_MAX / chunk.len() {
        if !matches!(stream.read(&mut chunk), Ok(read) if read > 0) {
            break;
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(head: &str) -> Option<Request> {
        Request::parse(head.as_bytes()).expect("valid")
    }

    #[test]
    fn a_request_is_parsed_once_it_is_complete() {
        assert!(request("GET /metrics HTTP/1.1\r\nHost: x\r\n").is_none());
        let whole = request("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n").expect("complete");
        assert_eq!((whole.method.as_str(), whole.path()), ("GET", "/metrics"));
        assert!(Request::parse(b"PING\r\n").is_err());
        assert!(Request::parse(b"*1\r\n$4\r\nPING\r\n").is_err());
    }

    #[test]
    fn only_loopback_addresses_and_localhost_name_this_machine() {
        let names = |host: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            request(&head).expect("complete").names_loopback()
        };
        for host in [
            "127.0.0.1:9121",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:9121",
            "[::1]",
        ] {
            assert!(names(host), "{host}");
        }
        for host in [
            "evil.example:9121",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!names(host), "{host}");
        }
        let without = request("GET / HTTP/1.1\r\n\r\n").expect("complete");
        assert!(!without.names_loopback());
    }
}
