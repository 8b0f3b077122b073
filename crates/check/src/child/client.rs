//! Minimal RESP client for a `farbank serve` child process.

use super::connection::{ChildConnection, protocol_violation};
use super::error::ConnectionStop;

/// Reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RespReply {
    Simple(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    /// `None` is the reply to an EXEC that was not executed.
    Array(Option<Vec<RespReply>>),
}

/// RESP connection with a buffer of unsent commands.
pub(crate) struct RespClient {
    connection: ChildConnection,
    output: Vec<u8>,
}

/// Appends a command of `words` to `out`, as an array of bulk strings.
pub fn append_command<T: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[T]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Pool statistics from INFO.
pub(crate) struct PoolFigures {
    pub(crate) live_share: f64,
    pub(crate) segments_cleaned: u64,
    pub(crate) keys_evicted: u64,
}

impl RespClient {
    pub(crate) fn connect(addr: &str) -> Result<RespClient, ConnectionStop> {
        Ok(RespClient {
            connection: ChildConnection::open(addr)?,
            output: Vec::new(),
        })
    }

    /// Appends a command to the unsent commands.
    pub(crate) fn send<T: AsRef<[u8]>>(&mut self, words: &[T]) {
        append_command(&mut self.output, words);
    }

    /// Sends all unsent commands.
    pub(crate) fn flush(&mut self) -> Result<(), ConnectionStop> {
        let sent = self.connection.write(&self.output);
        self.output.clear();
        sent
    }

    /// Reads one reply.
    pub(crate) fn reply(&mut self) -> Result<RespReply, ConnectionStop> {
        let line = self.connection.line()?;
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(protocol_violation("the reply is an empty line"));
        };
        let number = || {
            rest.parse::<i64>()
                .map_err(|e| protocol_violation(format!("{line:?}: {e}")))
        };
        match kind {
            "+" => Ok(RespReply::Simple(rest.into())),
            "-" => Ok(RespReply::Error(rest.into())),
            ":" => Ok(RespReply::Number(number()?)),
            "$" => match usize::try_from(number()?) {
                Err(_) => Ok(RespReply::Bulk(None)),
                Ok(len) => Ok(RespReply::Bulk(Some(self.connection.block(len)?))),
            },
            "*" => match number()? {
                ..0 => Ok(RespReply::Array(None)),
                count => {
                    let members = (0..count).map(|_| self.reply()).collect::<Result<_, _>>()?;
                    Ok(RespReply::Array(Some(members)))
                }
            },
            _ => Err(protocol_violation(format!("{line:?} is not a RESP reply"))),
        }
    }

    /// Sends one command and reads its reply.
    pub(crate) fn request<T: AsRef<[u8]>>(
        &mut self,
        words: &[T],
    ) -> Result<RespReply, ConnectionStop> {
        self.send(words);
        self.flush()?;
        self.reply()
    }

    /// Returns the number stored under `key`, or 0 if the key does not exist.
    pub(crate) fn number(&mut self, key: &str) -> Result<u64, ConnectionStop> {
        match self.request(&["GET", key])? {
            RespReply::Bulk(None) => Ok(0),
            RespReply::Bulk(Some(digits)) => {
                String::from_utf8_lossy(&digits).parse().map_err(|e| {
                    protocol_violation(format!("the value of {key} is not a number: {e}"))
                })
            }
            other => Err(protocol_violation(format!("GET {key}: {other:?}"))),
        }
    }

    /// Returns the server's key count (DBSIZE).
    pub(crate) fn key_count(&mut self) -> Result<u64, ConnectionStop> {
        match self.request(&["DBSIZE"])? {
            RespReply::Number(keys) if keys >= 0 => Ok(keys as u64),
            other => Err(protocol_violation(format!("DBSIZE: {other:?}"))),
        }
    }

    /// Reads the pool statistics from INFO.
    pub(crate) fn pool_figures(&mut self) -> Result<PoolFigures, ConnectionStop> {
        let RespReply::Bulk(Some(text)) = self.request(&["INFO", "farbank", "stats"])? else {
            return Err(protocol_violation("the reply to INFO is not a bulk string"));
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let figure = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|figure| figure.trim().parse::<u64>().ok())
                .ok_or_else(|| protocol_violation(format!("INFO has no number {name:?}")))
        };
        let live = figure("pool_live_bytes")?;
        Ok(PoolFigures {
            live_share: live as f64 / figure("pool_bytes")?.max(1) as f64,
            segments_cleaned: figure("pool_segments_cleaned")?,
            keys_evicted: figure("evicted_keys")?,
        })
    }
}
