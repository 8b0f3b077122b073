//! A client that speaks as much of memcached's text protocol as is needed.

use super::ConnectionStop;
use super::connection::{ChildConnection, no_reply};

/// An item: its bytes, and the number that `cas` compares.
pub(crate) type MemcachedItem = Option<(Vec<u8>, u64)>;

/// One connection.
pub(crate) struct MemcachedClient(ChildConnection);

impl MemcachedClient {
    pub(crate) fn connect(addr: &str) -> Result<MemcachedClient, ConnectionStop> {
        ChildConnection::open(addr).map(MemcachedClient)
    }

    /// Sends a line, and a block of data if there is one; reads one line.
    pub(crate) fn request(
        &mut self,
        line: &str,
        data: Option<&[u8]>,
    ) -> Result<String, ConnectionStop> {
        let mut request = format!("{line}\r\n").into_bytes();
        if let Some(data) = data {
            request.extend_from_slice(data);
            request.extend_from_slice(b"\r\n");
        }
        self.0.write(&request)?;
        self.0.line()
    }

    /// `gets` of one key.
    pub(crate) fn gets(&mut self, key: &str) -> Result<MemcachedItem, ConnectionStop> {
        let line = self.request(&format!("gets {key}"), None)?;
        if line == "END" {
            return Ok(None);
        }
        let mut words = line.rsplit(' ');
        let cas = words.next().and_then(|word| word.parse().ok());
        let len = words.next().and_then(|word| word.parse().ok());
        let (Some(cas), Some(len)) = (cas, len) else {
            return Err(no_reply(format!("{line:?} is no item")));
        };
        let bytes = self.0.block(len)?;
        match self.0.line()?.as_str() {
            "END" => Ok(Some((bytes, cas))),
            line => Err(no_reply(format!("{line:?} ends no item"))),
        }
    }
}
