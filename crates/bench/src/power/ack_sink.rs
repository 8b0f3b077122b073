//! Destination of batches: an engine session, or a connection to a server.

use farbank_store::{Error, GroupDecision, Key, Ops, ReadView, Session, UpdateDecision, Value};

use crate::child::{ConnectionStop, RespClient, RespReply};

/// One write of a batch.
#[derive(Clone, Debug)]
pub(crate) enum WriteStep {
    /// Stores a value under a key.
    Put(String, Vec<u8>),
    Delete(String),
    /// Stores or deletes several keys atomically.
    Group(Vec<(String, Option<Vec<u8>>)>),
    /// Adds 1 to the number stored under a key; a missing key counts as 0.
    Count(String),
}

/// Store that executes batches.
pub(crate) trait BatchSink: Send {
    /// Executes a batch. On `Ok` all of it is durable and counts as acknowledged.
    fn commit(&mut self, steps: &[WriteStep]) -> Result<(), String>;
    /// Returns the value of each key.
    fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, String>;
}

impl BatchSink for Box<dyn Session> {
    fn commit(&mut self, steps: &[WriteStep]) -> Result<(), String> {
        steps
            .iter()
            .try_for_each(|step| write(self, step))
            .map_err(|e| e.to_string())?;
        let ticket = Session::commit(&mut **self).map_err(|e| e.to_string())?;
        self.wait(ticket).map_err(|e| e.to_string())
    }

    fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, String> {
        let mut read = |name: &String| {
            let mut bytes = Vec::new();
            let there = Ops::get(
                &mut **self,
                named(name),
                ReadView::Durable,
                &mut bytes,
                &mut |_, _| true,
            );
            there
                .map(|there| there.then_some(bytes))
                .map_err(|e| format!("{name}: {e}"))
        };
        names.iter().map(&mut read).collect()
    }
}

fn named(name: &str) -> Key<'_> {
    Key {
        db: 0,
        bytes: name.as_bytes(),
    }
}

fn valued(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn write(session: &mut Box<dyn Session>, step: &WriteStep) -> Result<(), Error> {
    match step {
        WriteStep::Put(name, bytes) => session.put(named(name), valued(bytes)).map(drop),
        WriteStep::Delete(name) => session.delete(named(name)).map(drop),
        WriteStep::Group(members) => {
            let keys: Vec<Key<'_>> = members.iter().map(|(name, _)| named(name)).collect();
            let mut body = |ops: &mut dyn Ops| {
                for (name, bytes) in members {
                    match bytes {
                        Some(bytes) => ops.put(named(name), valued(bytes)).map(drop)?,
                        None => ops.delete(named(name)).map(drop)?,
                    }
                }
                Ok(GroupDecision::Apply)
            };
            session.group(&keys, &mut body).map(drop)
        }
        WriteStep::Count(name) => {
            let mut add = |item: Option<farbank_store::StoredItem<'_>>| {
                let count =
                    item.and_then(|item| std::str::from_utf8(item.bytes).ok()?.parse().ok());
                UpdateDecision::Put {
                    bytes: (count.unwrap_or(0_u64) + 1).to_string().into_bytes(),
                    expires_ms: 0,
                    flags: 0,
                    kind: 0,
                }
            };
            session.update(named(name), &mut add).map(drop)
        }
    }
}

/// A batch is one pipeline: all commands are sent, then all replies are read.
impl BatchSink for RespClient {
    fn commit(&mut self, steps: &[WriteStep]) -> Result<(), String> {
        steps.iter().for_each(|step| send(self, step));
        self.flush().map_err(stop_to_text)?;
        steps
            .iter()
            .try_for_each(|step| match (step, self.reply().map_err(stop_to_text)?) {
                (_, RespReply::Number(_)) => Ok(()),
                (_, RespReply::Simple(ok)) if ok == "OK" => Ok(()),
                (step, reply) => Err(format!("unexpected reply to {step:?}: {reply:?}")),
            })
    }

    fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, String> {
        names.iter().for_each(|name| self.send(&["GET", name]));
        self.flush().map_err(stop_to_text)?;
        let mut read = |name: &String| match self.reply().map_err(stop_to_text)? {
            RespReply::Bulk(bytes) => Ok(bytes),
            reply => Err(format!("unexpected reply to GET {name}: {reply:?}")),
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

pub(crate) fn stop_to_text(stop: ConnectionStop) -> String {
    match stop {
        ConnectionStop::Gone(why) => format!("the server ended: {why}"),
        ConnectionStop::Wrong(violation) => violation.what,
    }
}
