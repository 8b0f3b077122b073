//! A connection that speaks memcached's text protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::child::Stop;

/// An item: its bytes, and the number that `cas` compares.
pub(super) type Item = Option<(Vec<u8>, u64)>;

/// One connection.
pub(super) struct Memcached {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

fn gone(why: impl ToString) -> Stop {
    Stop::Gone(why.to_string())
}

impl Memcached {
    pub(super) fn connect(addr: &str) -> Result<Memcached, Stop> {
        let stream = TcpStream::connect(addr).map_err(gone)?;
        stream.set_nodelay(true).map_err(gone)?;
        let input = BufReader::new(stream.try_clone().map_err(gone)?);
        Ok(Memcached { stream, input })
    }

    /// Sends a line, and a block of data if there is one; reads one line.
    pub(super) fn ask(&mut self, line: &str, data: Option<&[u8]>) -> Result<String, Stop> {
        let mut request = format!("{line}\r\n").into_bytes();
        if let Some(data) = data {
            request.extend_from_slice(data);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&request).map_err(gone)?;
        self.line()
    }

    fn line(&mut self) -> Result<String, Stop> {
        let mut line = String::new();
        self.input.read_line(&mut line).map_err(gone)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.into()),
            None => Err(gone("the connection ended")),
        }
    }

    /// `gets` of one key.
    pub(super) fn gets(&mut self, key: &str) -> Result<Item, Stop> {
        let line = self.ask(&format!("gets {key}"), None)?;
        if line == "END" {
            return Ok(None);
        }
        let mut numbers = line.rsplit(' ').map(str::parse::<u64>);
        let (Some(Ok(cas)), Some(Ok(len))) = (numbers.next(), numbers.next()) else {
            return Err(gone(format!("{line:?} is no item")));
        };
        let mut bytes = vec![0; usize::try_from(len).map_err(gone)? + 2];
        self.input.read_exact(&mut bytes).map_err(gone)?;
        bytes.truncate(bytes.len() - 2);
        match self.line()?.as_str() {
            "END" => Ok(Some((bytes, cas))),
            line => Err(gone(format!("{line:?} ends no item"))),
        }
    }
}
