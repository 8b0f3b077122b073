//! A client that speaks as much RESP as is needed.

use farbank_server::resp::request;

use super::Stop;
use super::connection::{Connection, no_reply};

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    /// `None`: a transaction that was not executed.
    Array(Option<Vec<Reply>>),
}

/// One connection.
pub(crate) struct Client {
    connection: Connection,
    output: Vec<u8>,
}

/// What INFO says of the pool.
pub(crate) struct PoolFigures {
    pub(crate) live_share: f64,
    pub(crate) segments_cleaned: u64,
}

impl Client {
    pub(crate) fn connect(addr: &str) -> Result<Client, Stop> {
        Ok(Client {
            connection: Connection::open(addr)?,
            output: Vec::new(),
        })
    }

    /// Adds a command to what is sent next.
    pub(crate) fn send<T: AsRef<[u8]>>(&mut self, words: &[T]) {
        request(&mut self.output, words);
    }

    /// Sends all commands that were added.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        let sent = self.connection.write(&self.output);
        self.output.clear();
        sent
    }

    /// Reads one reply.
    pub(crate) fn reply(&mut self) -> Result<Reply, Stop> {
        let line = self.connection.line()?;
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(no_reply("an empty line"));
        };
        let number = || {
            rest.parse::<i64>()
                .map_err(|e| no_reply(format!("{line:?}: {e}")))
        };
        match kind {
            "+" => Ok(Reply::Simple(rest.into())),
            "-" => Ok(Reply::Error(rest.into())),
            ":" => Ok(Reply::Number(number()?)),
            "$" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Bulk(None)),
                Ok(len) => Ok(Reply::Bulk(Some(self.connection.block(len)?))),
            },
            "*" => match number()? {
                ..0 => Ok(Reply::Array(None)),
                count => {
                    let members = (0..count).map(|_| self.reply()).collect::<Result<_, _>>()?;
                    Ok(Reply::Array(Some(members)))
                }
            },
            _ => Err(no_reply(format!("{line:?} is no reply"))),
        }
    }

    /// Sends one command and reads its reply.
    pub(crate) fn ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Result<Reply, Stop> {
        self.send(words);
        self.flush()?;
        self.reply()
    }

    /// The number stored under `key`, 0 if there is none.
    pub(crate) fn number(&mut self, key: &str) -> Result<u64, Stop> {
        match self.ask(&["GET", key])? {
            Reply::Bulk(None) => Ok(0),
            Reply::Bulk(Some(digits)) => String::from_utf8_lossy(&digits)
                .parse()
                .map_err(|e| no_reply(format!("{key} is no number: {e}"))),
            other => Err(no_reply(format!("GET {key}: {other:?}"))),
        }
    }

    /// Keys the server counts.
    pub(crate) fn key_count(&mut self) -> Result<u64, Stop> {
        match self.ask(&["DBSIZE"])? {
            Reply::Number(keys) if keys >= 0 => Ok(keys as u64),
            other => Err(no_reply(format!("DBSIZE: {other:?}"))),
        }
    }

    /// What INFO says of the pool.
    pub(crate) fn pool_figures(&mut self) -> Result<PoolFigures, Stop> {
        let Reply::Bulk(Some(text)) = self.ask(&["INFO", "farbank"])? else {
            return Err(no_reply("INFO is no text"));
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let figure = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|figure| figure.trim().parse::<u64>().ok())
                .ok_or_else(|| no_reply(format!("INFO has no {name}")))
        };
        let live = figure("pool_live_bytes")?;
        Ok(PoolFigures {
            live_share: live as f64 / figure("pool_bytes")?.max(1) as f64,
            segments_cleaned: figure("pool_segments_cleaned")?,
        })
    }
}
