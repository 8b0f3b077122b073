//! A session of the engine as a destination of batches.

use farbank_check::power::{BatchSink, PowerError, WriteStep};
use farbank_store::{
    Error, GroupDecision, Key, Ops, ReadView, Session, StoredItem, UpdateDecision, Value,
};

/// Session of one writer.
pub(crate) struct SessionSink(pub(crate) Box<dyn Session>);

impl BatchSink for SessionSink {
    fn commit(&mut self, steps: &[WriteStep]) -> Result<(), PowerError> {
        steps
            .iter()
            .try_for_each(|step| write(&mut *self.0, step))
            .map_err(PowerError::engine)?;
        let ticket = self.0.commit().map_err(PowerError::engine)?;
        self.0.wait(ticket).map_err(PowerError::engine)
    }

    fn get(&mut self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, PowerError> {
        let mut read = |name: &String| {
            let mut bytes = Vec::new();
            let there = self
                .0
                .get(named(name), ReadView::Durable, &mut bytes, &mut |_, _| true);
            there
                .map(|there| there.then_some(bytes))
                .map_err(|e| PowerError::engine(format!("{name}: {e}")))
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

fn write(session: &mut dyn Session, step: &WriteStep) -> Result<(), Error> {
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
            let mut add = |item: Option<StoredItem<'_>>| {
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
