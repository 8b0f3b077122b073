//! Calls of a compute process, as the lines that it prints.
//!
//! ```text
//!   begin CLIENT NS KEY get | put VALUE | delete | swap EXPECTED NEW | scan up COUNT | scan down COUNT
//!   end CLIENT NS found VALUE | removed 0 | removed 1 | stored | entries KEY=VALUE,... | failed TEXT
//!   done TAKEN_OVER MENDED                                        the round has ended, with counts since the last one;
//!                                                                 the first: the process is connected
//! ```
//!
//! A value is its id, or `-` for the absence of the key. A process writes each line at once, `begin` before the call, so that a
//! kill loses no call. Times are of the monotonic clock, which all processes share.

use std::fmt;
use std::str::FromStr;

use rustix::time::{ClockId, clock_gettime};

use crate::target::Value;

/// A call of a client on one key, or on the keys from it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterCall {
    /// Reads the key.
    Get,
    /// Stores the value with this id.
    Put(u64),
    /// Removes the key.
    Delete,
    /// Stores or removes, if the key has the expected value.
    Swap {
        /// Expected value.
        expected: Option<u64>,
        /// New value.
        new: Option<u64>,
    },
    /// Reads keys in ascending order, or descending if `is_down`.
    Scan {
        /// Whether the order is descending.
        is_down: bool,
        /// Number of keys.
        count: usize,
    },
}

/// Result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterAnswer {
    /// The value that a get or a swap found. After a swap it is the expected one.
    Found(Option<u64>),
    /// Whether a delete found the key.
    Removed(bool),
    /// A put has stored its value.
    Stored,
    /// Keys and values of a scan, in its order.
    Entries(Vec<(u64, u64)>),
    /// The call failed. It may have taken effect.
    Failed(String),
}

/// A line of a compute process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterLine {
    /// A call begins.
    Begin {
        /// Client of the process. It has one call at a time.
        client: u64,
        /// Time in nanoseconds.
        ns: u64,
        /// The key.
        key: u64,
        /// The call.
        call: ClusterCall,
    },
    /// The call of a client has ended.
    End {
        /// Client of the process.
        client: u64,
        /// Time in nanoseconds.
        ns: u64,
        /// The result.
        answer: ClusterAnswer,
    },
    /// All clients have ended their calls of a round.
    Done {
        /// Locks taken from dead clients since the last round.
        taken_over: u64,
        /// Splits and merges completed for dead clients since the last round.
        mended: u64,
    },
}

/// Returns the time of the monotonic clock in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the bytes of the key with this number.
#[must_use]
pub fn key_bytes(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// Returns the number of a key, or `None` for other bytes.
#[must_use]
pub fn key_number(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.strip_prefix("key ")?.parse().ok()
}

/// Returns the bytes of the value with this id. Their number depends on the id.
#[must_use]
pub fn value_bytes(id: u64) -> Vec<u8> {
    const BYTES_MAX: u64 = 3_000;
    let bytes = farbank_pm::rng::Rng::new(id).below(BYTES_MAX - u64::from(Value::BYTES_MIN));
    Value {
        id,
        bytes: Value::BYTES_MIN + bytes as u32,
    }
    .encode()
}

/// Returns the id of a value. `None`: no client has written these bytes.
#[must_use]
pub fn value_id(bytes: &[u8]) -> Option<u64> {
    let value = Value::decode(bytes).ok()?;
    (value_bytes(value.id).len() == bytes.len()).then_some(value.id)
}

/// A value on a line.
struct ShownId(Option<u64>);

impl fmt::Display for ShownId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => id.fmt(f),
            None => f.write_str("-"),
        }
    }
}

impl fmt::Display for ClusterCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ClusterCall::Get => f.write_str("get"),
            ClusterCall::Put(id) => write!(f, "put {id}"),
            ClusterCall::Delete => f.write_str("delete"),
            ClusterCall::Swap { expected, new } => {
                write!(f, "swap {} {}", ShownId(expected), ShownId(new))
            }
            ClusterCall::Scan { is_down, count } => {
                write!(f, "scan {} {count}", if is_down { "down" } else { "up" })
            }
        }
    }
}

impl fmt::Display for ClusterAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterAnswer::Found(id) => write!(f, "found {}", ShownId(*id)),
            ClusterAnswer::Removed(was) => write!(f, "removed {}", u8::from(*was)),
            ClusterAnswer::Stored => f.write_str("stored"),
            ClusterAnswer::Entries(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, id)| format!("{key}={id}"))
                    .collect();
                write!(f, "entries {}", entries.join(","))
            }
            ClusterAnswer::Failed(error) => write!(f, "failed {}", error.replace('\n', " ")),
        }
    }
}

impl fmt::Display for ClusterLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterLine::Begin {
                client,
                ns,
                key,
                call,
            } => write!(f, "begin {client} {ns} {key} {call}"),
            ClusterLine::End { client, ns, answer } => write!(f, "end {client} {ns} {answer}"),
            ClusterLine::Done { taken_over, mended } => write!(f, "done {taken_over} {mended}"),
        }
    }
}

/// A line that is not one of a compute process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownLine(pub String);

impl fmt::Display for UnknownLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a compute process printed {:?}", self.0)
    }
}

impl std::error::Error for UnknownLine {}

fn id_of(word: &str) -> Option<Option<u64>> {
    match word {
        "-" => Some(None),
        id => id.parse().ok().map(Some),
    }
}

fn call_of(words: &[&str]) -> Option<ClusterCall> {
    Some(match *words {
        ["get"] => ClusterCall::Get,
        ["put", id] => ClusterCall::Put(id.parse().ok()?),
        ["delete"] => ClusterCall::Delete,
        ["swap", expected, new] => ClusterCall::Swap {
            expected: id_of(expected)?,
            new: id_of(new)?,
        },
        ["scan", order @ ("up" | "down"), count] => ClusterCall::Scan {
            is_down: order == "down",
            count: count.parse().ok()?,
        },
        _ => return None,
    })
}

fn answer_of(words: &[&str]) -> Option<ClusterAnswer> {
    Some(match *words {
        ["found", id] => ClusterAnswer::Found(id_of(id)?),
        ["removed", was @ ("0" | "1")] => ClusterAnswer::Removed(was == "1"),
        ["stored"] => ClusterAnswer::Stored,
        ["entries"] | ["entries", ""] => ClusterAnswer::Entries(Vec::new()),
        ["entries", list] => {
            let entry = |pair: &str| {
                let (key, id) = pair.split_once('=')?;
                Some((key.parse().ok()?, id.parse().ok()?))
            };
            ClusterAnswer::Entries(list.split(',').map(entry).collect::<Option<_>>()?)
        }
        ["failed", ..] => ClusterAnswer::Failed(words[1..].join(" ")),
        _ => return None,
    })
}

fn line_of(words: &[&str]) -> Option<ClusterLine> {
    Some(match *words {
        ["begin", client, ns, key, ref call @ ..] => ClusterLine::Begin {
            client: client.parse().ok()?,
            ns: ns.parse().ok()?,
            key: key.parse().ok()?,
            call: call_of(call)?,
        },
        ["end", client, ns, ref answer @ ..] => ClusterLine::End {
            client: client.parse().ok()?,
            ns: ns.parse().ok()?,
            answer: answer_of(answer)?,
        },
        ["done", taken_over, mended] => ClusterLine::Done {
            taken_over: taken_over.parse().ok()?,
            mended: mended.parse().ok()?,
        },
        _ => return None,
    })
}

impl FromStr for ClusterLine {
    type Err = UnknownLine;

    fn from_str(line: &str) -> Result<ClusterLine, UnknownLine> {
        let words: Vec<&str> = line.split(' ').collect();
        line_of(&words).ok_or_else(|| UnknownLine(line.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let begin = |call| ClusterLine::Begin {
            client: 3,
            ns: 1 << 60,
            key: 7,
            call,
        };
        let end = |answer| ClusterLine::End {
            client: 3,
            ns: 5,
            answer,
        };
        let lines = [
            begin(ClusterCall::Get),
            begin(ClusterCall::Put(9)),
            begin(ClusterCall::Delete),
            begin(ClusterCall::Swap {
                expected: None,
                new: Some(4),
            }),
            begin(ClusterCall::Scan {
                is_down: true,
                count: 8,
            }),
            end(ClusterAnswer::Found(Some(2))),
            end(ClusterAnswer::Found(None)),
            end(ClusterAnswer::Removed(true)),
            end(ClusterAnswer::Stored),
            end(ClusterAnswer::Entries(vec![])),
            end(ClusterAnswer::Entries(vec![(1, 2), (3, 4)])),
            end(ClusterAnswer::Failed("the server is gone".into())),
            ClusterLine::Done {
                taken_over: 1,
                mended: 2,
            },
        ];
        for line in lines {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for text in ["", "begin 1 2 3", "end 1 2 found x", "begin 1 2 3 put"] {
            assert!(text.parse::<ClusterLine>().is_err(), "{text}");
        }
        assert_eq!(key_number(&key_bytes(123)), Some(123));
        let bytes = value_bytes(77);
        assert_eq!(value_id(&bytes), Some(77));
        assert_eq!(value_id(&bytes[..bytes.len() - 1]), None);
    }
}
