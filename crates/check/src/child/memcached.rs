//! Minimal client of memcached's text protocol.

use super::connection::{ChildConnection, protocol_violation};
use super::error::ConnectionStop;

/// Bytes and `cas` number of an item, or `None` if the key does not exist.
pub(crate) type MemcachedItem = Option<(Vec<u8>, u64)>;

/// Connection to a memcached port.
pub(crate) struct MemcachedClient(ChildConnection);

impl MemcachedClient {
    pub(crate) fn connect(addr: &str) -> Result<MemcachedClient, ConnectionStop> {
        ChildConnection::open(addr).map(MemcachedClient)
    }

    /// Sends `line`, then the block `data` if there is one, and reads one reply line.
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

    /// Reads the item of one key with `gets`.
    pub(crate) fn gets(&mut self, key: &str) -> Result<MemcachedItem, ConnectionStop> {
        let line = self.request(&format!("gets {key}"), None)?;
        if line == "END" {
            return Ok(None);
        }
        let mut words = line.rsplit(' ');
        let cas = words.next().and_then(|word| word.parse().ok());
        let len = words.next().and_then(|word| word.parse().ok());
        let (Some(cas), Some(len)) = (cas, len) else {
            return Err(protocol_violation(format!(
                "{line:?} is not a VALUE line with a length and a cas number"
            )));
        };
        let bytes = self.0.block(len)?;
        match self.0.line()?.as_str() {
            "END" => Ok(Some((bytes, cas))),
            line => Err(protocol_violation(format!(
                "{line:?} follows an item, expected END"
            ))),
        }
    }
}
