//! Destination of batches: an engine's session, or a connection to a server.

use super::error::PowerError;
use crate::child::{RespClient, RespReply};

/// One write of a batch.
#[derive(Clone, Debug)]
pub enum WriteStep {
    /// Stores a value under a key.
    Put(String, Vec<u8>),
    /// Deletes a key.
    Delete(String),
    /// Stores or deletes several keys atomically.
    Group(Vec<(String, Option<Vec<u8>>)>),
    /// Adds 1 to the number stored under a key; a missing key counts as 0.
    Count(String),
}

/// Store that executes batches.
pub trait BatchSink: Send {
    /// Executes a batch. On `Ok` all of it is durable and counts as acknowledged.
    ///
    /// # Errors
    /// The store failed or refused a write. The batch may be executed in part.
    fn commit(&mut self, steps: &[WriteStep]) -> Result<(), PowerError>;

    /// Returns the value of each key.
    ///
    /// # Errors
    /// The store failed.
    fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, PowerError>;
}

/// A batch is one pipeline: all commands are sent, then all replies are read.
impl BatchSink for RespClient {
    fn commit(&mut self, steps: &[WriteStep]) -> Result<(), PowerError> {
        steps.iter().for_each(|step| send(self, step));
        self.flush()?;
        steps
            .iter()
            .try_for_each(|step| match (step, self.reply()?) {
                (_, RespReply::Number(_)) => Ok(()),
                (_, RespReply::Simple(ok)) if ok == "OK" => Ok(()),
                (step, reply) => {
                    let what = format!("unexpected reply to {step:?}: {reply:?}");
                    Err(PowerError::Reply(what))
                }
            })
    }

    fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, PowerError> {
        names.iter().for_each(|name| self.send(&["GET", name]));
        self.flush()?;
        let mut read = |name: &String| match self.reply()? {
            RespReply::Bulk(bytes) => Ok(bytes),
            reply => {
                let what = format!("unexpected reply to GET {name}: {reply:?}");
                Err(PowerError::Reply(what))
            }
        };
        names.iter().map(&mut read).collect()
    }
}

fn send(client: &mut RespClient, step: &WriteStep) {
    match step {
        WriteStep::Put(name, bytes) => client.send(&[&b"SET"[..], name.as_bytes(), bytes]),
        WriteStep::Delete(name) => client.send(&["DEL", name]),
        WriteStep::Group(members) => {
            let put = members.iter().all(|(_, bytes)| bytes.is_some());
            let mut words: Vec<&[u8]> = vec![if put { b"MSET" } else { b"DEL" }];
            for (name, bytes) in members {
                words.push(name.as_bytes());
                words.extend(bytes.as_deref());
            }
            client.send(&words);
        }
        WriteStep::Count(name) => client.send(&["INCR", name]),
    }
}
