//! A session of a store as the explorers of `farbank-check` use it.

mod key_names;

use std::collections::BTreeMap;

use farbank_check::Violation;
use farbank_check::target::{
    Change as Decision, KeyWrite, OpAnswer, ReadView as Seen, TargetClient, TargetOp,
    Value as Stored,
};
use farbank_pm::Ticket;
use farbank_pm::pool::PoolIdentity;

use self::key_names::{self as names, KeyName};
use crate::{
    ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView, Session, StoredItem, UpdateDecision,
    Value, ValueMeta,
};

/// Keys that a sample of [`SessionClient::check_sample`] visits: few, so that a walk has several samples.
const SAMPLE_VISITS: usize = 3;
/// Most samples of a walk through an explored store.
const SAMPLE_CALLS_MAX: usize = 1 << 16;

/// Identity of every explored pool. It is constant, so that the same calls write the same bytes.
pub const IDENTITY: PoolIdentity = PoolIdentity {
    id: *b"farbank explorer",
    created_unix_s: 1_700_000_000,
};

/// Number of operations in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchMode {
    /// All operations that the session stages before it commits.
    Many,
    /// One operation, which is durable when it returns.
    OfOne,
}

/// A client with one session of a store, of this engine or another.
pub struct SessionClient {
    session: Box<dyn Session>,
    batches: BatchMode,
}

impl SessionClient {
    /// Returns a client that executes its operations with `session`.
    #[must_use]
    pub fn new(mut session: Box<dyn Session>, batches: BatchMode) -> SessionClient {
        session.on_conflict(ConflictPolicy::Commit);
        SessionClient { session, batches }
    }

    /// Returns all keys with their values, each key once.
    ///
    /// # Errors
    /// If a read fails, or a key or value was never written.
    pub fn contents(&mut self) -> Result<Vec<(u64, Stored)>, Violation> {
        let mut contents = Vec::new();
        for key in self.keys()? {
            if let OpAnswer::Found(Some(value)) = self.get(key, Seen::Durable)? {
                contents.push((key, value));
            }
        }
        Ok(contents)
    }

    /// Checks a walk of [`Session::sample`] through the store: it visits each key at most once, and only keys that are in
    /// `contents`, with their metadata. With `is_quiet`, no session has pending writes, and it visits all of them.
    ///
    /// # Errors
    /// The walk breaks this contract.
    pub fn check_sample(
        &mut self,
        contents: &[(u64, Stored)],
        is_quiet: bool,
    ) -> Result<(), Violation> {
        let mut left: BTreeMap<u64, Stored> = contents.iter().copied().collect();
        let (mut position, mut wrong) = (0, Ok(()));
        // Each call visits at least one group of the index.
        for _ in 0..SAMPLE_CALLS_MAX {
            let mut each = |key: Key<'_>, meta: &ValueMeta| {
                wrong = check_sampled(&mut left, key, meta);
                wrong.is_ok()
            };
            position = self.session.sample(position, SAMPLE_VISITS, &mut each);
            wrong?;
            if position == 0 {
                return match left.first_key_value() {
                    Some((key, value)) if is_quiet => Err(Violation::new(format!(
                        "no sample visits key {key} with {value:?}"
                    ))),
                    _ => Ok(()),
                };
            }
            wrong = Ok(());
        }
        let what = format!("{SAMPLE_CALLS_MAX} samples do not reach the last key");
        Err(Violation::new(what))
    }

    /// Executes an operation that is durable when it returns.
    fn apply_alone(&mut self, op: &TargetOp) -> Result<OpAnswer, Violation> {
        let TargetOp::Write(KeyWrite::Put {
            key,
            value,
            expires_ms,
        }) = op
        else {
            let answer = self.apply_staged(op)?;
            let ticket = self.session.commit()?;
            self.session.wait(ticket)?;
            return Ok(answer);
        };
        let bytes = value.encode();
        let value = to_store(*value, &bytes, *expires_ms);
        let done = self.session.put_durable(KeyName::of(*key).as_key(), value);
        if let Ok((_, ticket)) = done {
            self.session.wait(ticket)?;
        }
        answer(done.map(|_| OpAnswer::Done))
    }

    fn apply_staged(&mut self, op: &TargetOp) -> Result<OpAnswer, Violation> {
        match op {
            TargetOp::Write(write) => answer(apply_write(&mut *self.session, write)),
            TargetOp::Group(writes) => self.group(writes),
            TargetOp::Update { key, change } => self.update(*key, *change),
            TargetOp::Get { key, view } => self.get(*key, *view),
            TargetOp::FlushAll => answer(self.session.flush_all().map(|()| OpAnswer::Done)),
            TargetOp::Swap { first, second } => {
                let [first, second] = [*first, *second].map(names::database);
                let swapped = self.session.swap_databases(first, second);
                answer(swapped.map(|()| OpAnswer::Done))
            }
        }
    }

    fn group(&mut self, writes: &[KeyWrite]) -> Result<OpAnswer, Violation> {
        let names: Vec<KeyName> = writes.iter().map(|w| KeyName::of(w.key())).collect();
        let keys: Vec<Key<'_>> = names.iter().map(KeyName::as_key).collect();
        let mut saw = Vec::new();
        let mut body = |ops: &mut dyn Ops| {
            saw.clear();
            for key in &keys {
                saw.push(read(ops, *key, ReadView::Pending)?);
            }
            for write in writes {
                apply_write(ops, write)?;
            }
            Ok(GroupDecision::Apply)
        };
        let done = self.session.group(&keys, &mut body);
        let saw = saw.into_iter().collect::<Result<_, _>>()?;
        answer(done.map(|_| OpAnswer::Saw(saw)))
    }

    fn update(&mut self, key: u64, change: Decision) -> Result<OpAnswer, Violation> {
        let mut old = Ok(None);
        let mut decide = |item: Option<StoredItem<'_>>| {
            let decoded = item.map(|item| names::decode(item.bytes, item.meta.flags));
            old = decoded.transpose();
            match change {
                Decision::Keep => UpdateDecision::Keep,
                Decision::Delete => UpdateDecision::Delete,
                Decision::Put(value) => UpdateDecision::Put {
                    bytes: value.encode(),
                    expires_ms: 0,
                    flags: names::flags_of(value),
                    kind: 0,
                },
            }
        };
        let done = self.session.update(KeyName::of(key).as_key(), &mut decide);
        let old = old?;
        answer(done.map(|_| OpAnswer::Found(old)))
    }

    fn get(&mut self, key: u64, view: Seen) -> Result<OpAnswer, Violation> {
        let view = match view {
            Seen::Durable => ReadView::Durable,
            Seen::Own => ReadView::Pending,
        };
        let found = read(&mut *self.session, KeyName::of(key).as_key(), view);
        Ok(OpAnswer::Found(found??))
    }

    /// Returns all keys.
    fn keys(&mut self) -> Result<Vec<u64>, Violation> {
        let mut keys = Vec::new();
        for db in KeyName::databases() {
            let mut cursor = 0;
            loop {
                let mut each = |name: &[u8], _: &_| keys.push(KeyName::key_of(db, name.to_vec()));
                cursor = self.session.scan(db, cursor, usize::MAX, &mut each)?;
                if cursor == 0 {
                    break;
                }
            }
        }
        keys.into_iter().collect()
    }
}

/// Returns the value of `key`. An error inside `Ok` means that the bytes are no value that was ever stored.
fn read<O: Ops + ?Sized>(
    ops: &mut O,
    key: Key<'_>,
    view: ReadView,
) -> Result<Result<Option<Stored>, Violation>, Error> {
    let (mut bytes, mut flags) = (Vec::new(), 0);
    let found = ops.get(key, view, &mut bytes, &mut |meta, _| {
        flags = meta.flags;
        true
    })?;
    Ok(found.then(|| names::decode(&bytes, flags)).transpose())
}

/// Checks that a sampled key is in `left`, and removes it.
fn check_sampled(
    left: &mut BTreeMap<u64, Stored>,
    name: Key<'_>,
    meta: &ValueMeta,
) -> Result<(), Violation> {
    let key = KeyName::key_of(name.db, name.bytes.to_vec())?;
    let has_meta = |value: Stored| {
        meta.value_bytes == value.bytes as usize && meta.flags == names::flags_of(value)
    };
    match left.remove(&key) {
        Some(value) if has_meta(value) => Ok(()),
        found => Err(Violation::new(format!(
            "a sample visits key {key} with {meta:?}; a read finds {found:?} that no sample has visited"
        ))),
    }
}

impl TargetClient for SessionClient {
    fn apply(&mut self, op: &TargetOp) -> Result<OpAnswer, Violation> {
        match self.batches {
            BatchMode::Many => self.apply_staged(op),
            BatchMode::OfOne => self.apply_alone(op),
        }
    }

    fn commit(&mut self) -> Result<Ticket, Violation> {
        self.session.commit().map_err(Violation::from)
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Violation> {
        self.session.durable(ticket).map_err(Violation::from)
    }
}

/// Returns `value`, encoded as `bytes`, with the flags that are stored with it.
fn to_store(value: Stored, bytes: &[u8], expires_ms: u64) -> Value<'_> {
    Value {
        bytes,
        expires_ms,
        flags: names::flags_of(value),
        ..Value::default()
    }
}

fn apply_write<O: Ops + ?Sized>(ops: &mut O, write: &KeyWrite) -> Result<OpAnswer, Error> {
    match write {
        KeyWrite::Put {
            key,
            value,
            expires_ms,
        } => {
            let bytes = value.encode();
            let value = to_store(*value, &bytes, *expires_ms);
            ops.put(KeyName::of(*key).as_key(), value)
                .map(|_| OpAnswer::Done)
        }
        KeyWrite::Delete { key } => ops.delete(KeyName::of(*key).as_key()).map(OpAnswer::Was),
    }
}

fn answer(done: Result<OpAnswer, Error>) -> Result<OpAnswer, Violation> {
    match done {
        Ok(answer) => Ok(answer),
        Err(error) if error.is_full() => Ok(OpAnswer::Refused),
        Err(error) => Err(error.into()),
    }
}
