//! Groups whose keys are not known before they run: scripts, and transactions with scripts.
//!
//! ```text
//!   run the body ── reads: value and version ─▶ store        validate ─ versions unchanged ─▶ apply all writes
//!        ▲         writes: kept in TouchedKeys                   │      (one group of the touched keys)
//!        └───────────────── a version has changed ───────────────┘
//! ```
//!
//! The body reads from the session and writes to a buffer. No lock is held meanwhile, so a body may take long without
//! delaying other clients, and it may be abandoned at any time. Then one group of the touched keys compares the versions
//! that the body has read with the current ones, and applies the writes.
//!
//! If a key has changed, the body runs again. From round [`OPTIMISTIC_ROUNDS`] on it runs inside a group of all keys that
//! earlier rounds have touched: no other session writes them meanwhile. If it touches a further key, the group is
//! abandoned and runs again with that key. A body inside a group holds locks, so it must end soon
//! (`RequestFigures::holds_locks`).
//!
//! # Invariants
//! SRV-OPT-1  The store is not changed before the body has ended. So a body that is abandoned has no effect.
//! SRV-OPT-2  All writes of a body are one group, or the write of one key. So after a crash all of them are there, or none.
//! SRV-OPT-3  When the writes are applied, every key that the body has read has the version that the body saw. So the body's
//!     effect is the same as if it had run at that moment. A body without writes that has read several keys is
//!     validated in the same way.
//!
//! Commands that visit all keys (KEYS, SCAN, DBSIZE, RANDOMKEY) are outside of this: they see the store without the body's
//! writes, and what they have seen is not validated. FLUSHALL takes effect at once, and the body's effect is that of its
//! commands after it.
//!
//! Versions of values differ, but all absent keys have version 0. A key that was absent, then written and deleted again, is
//! absent as it was read, so SRV-OPT-3 holds for its value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use farbank_store::{
    BeforeValue, Error, GetStep, GroupDecision, Key, Ops, ReadView, Session, StoredItem,
    UpdateDecision, Value, ValueMeta,
};

use super::context::CommandContext;
use crate::exec_context::{OptimisticAccess, StoreAccess};
use crate::lock::lock;
use crate::state::change_log::ChangeLog;

/// Rounds in which the body runs without locks.
const OPTIMISTIC_ROUNDS: usize = 2;
/// Rounds after which the group fails with [`Error::Conflict`].
const ROUNDS_MAX: usize = 100;

/// Most keys that are found without a hash table.
const FEW_KEYS: usize = 8;
/// Most bytes of memory that the touched keys and their new values may use.
const TOUCHED_BYTES_MAX: usize = 256 << 20;
/// Bytes of memory that a touched key uses besides its name and its value.
const KEY_OVERHEAD_BYTES: usize = 256;

/// What the body of a group has done with a key.
struct TouchedKey {
    db: u8,
    bytes: Box<[u8]>,
    /// The version that it has read; 0 if the key was absent.
    read: Option<u64>,
    /// The write that is not applied yet.
    change: UpdateDecision,
}

impl TouchedKey {
    fn key(&self) -> Key<'_> {
        Key {
            db: self.db,
            bytes: &self.bytes,
        }
    }
}

fn apply(change: &UpdateDecision, ops: &mut dyn Ops, key: Key<'_>) -> Result<(), Error> {
    match (change, change.value()) {
        (_, Some(value)) => ops.put(key, value).map(|_| ()),
        (UpdateDecision::Delete, _) => ops.delete(key).map(|_| ()),
        _ => Ok(()),
    }
}

/// Keys that the body of a group has read or written.
#[derive(Default)]
pub(super) struct TouchedKeys {
    keys: Vec<TouchedKey>,
    /// Positions in `keys`, once there are more than [`FEW_KEYS`].
    positions: HashMap<(u8, Box<[u8]>), usize>,
    /// Bytes of memory that the keys and their new values use.
    bytes: usize,
    /// Whether a key has a change.
    has_changes: bool,
    /// A second read of a key has found another version.
    has_conflict: bool,
    /// A command has visited all keys, which it cannot do inside a group of known keys.
    has_walked: bool,
}

impl TouchedKeys {
    /// Forgets what earlier rounds have done with the keys.
    fn restart(&mut self) {
        self.keys.clear();
        self.positions.clear();
        self.bytes = 0;
        (self.has_changes, self.has_conflict) = (false, false);
        self.has_walked = false;
    }

    fn position(&self, key: Key<'_>) -> Option<usize> {
        if self.keys.len() <= FEW_KEYS {
            return self.keys.iter().position(|touched| touched.key() == key);
        }
        self.positions.get(&(key.db, key.bytes.into())).copied()
    }

    fn entry(&mut self, key: Key<'_>) -> &mut TouchedKey {
        let position = self.position(key).unwrap_or_else(|| self.add(key));
        &mut self.keys[position]
    }

    /// Adds a key that is not touched yet. Returns its position.
    fn add(&mut self, key: Key<'_>) -> usize {
        let position = self.keys.len();
        self.bytes += 2 * key.bytes.len() + KEY_OVERHEAD_BYTES;
        self.keys.push(TouchedKey {
            db: key.db,
            bytes: key.bytes.into(),
            read: None,
            change: UpdateDecision::Keep,
        });
        if position >= FEW_KEYS {
            for at in self.positions.len()..=position {
                let touched = &self.keys[at];
                self.positions
                    .insert((touched.db, touched.bytes.clone()), at);
            }
        }
        position
    }

    fn check_bytes(&self) -> Result<(), Error> {
        match self.bytes > TOUCHED_BYTES_MAX {
            true => Err(Error::GroupTooLong {
                bytes: self.bytes,
                bytes_max: TOUCHED_BYTES_MAX,
            }),
            false => Ok(()),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Key<'_>, &TouchedKey)> {
        self.keys.iter().map(|touched| (touched.key(), touched))
    }

    fn names(&self) -> Vec<Key<'_>> {
        self.keys.iter().map(TouchedKey::key).collect()
    }

    /// Applies the changes if no read key has another version. Returns whether it did (SRV-OPT-3).
    fn commit(&self, session: &mut dyn Session) -> Result<bool, Error> {
        if self.has_conflict {
            return Ok(false);
        }
        match (self.keys.len(), self.has_changes) {
            (0 | 1, false) => Ok(true),
            (_, false) => self.is_snapshot(session),
            (1, true) => self.commit_one(session),
            _ => self.commit_group(session),
        }
    }

    /// Whether all keys have the versions that were read, at one moment.
    fn is_snapshot(&self, session: &mut dyn Session) -> Result<bool, Error> {
        let (keys, reads): (Vec<_>, Vec<_>) = self
            .iter()
            .map(|(key, touched)| (key, touched.read))
            .unzip();
        let (mut at, mut is_same) = (0, true);
        session.get_many_into(&keys, ReadView::Pending, &mut Vec::new(), &mut |meta, _| {
            is_same &= reads[at].is_none_or(|read| read == version_of(meta));
            at += 1;
            if is_same {
                GetStep::NextKey
            } else {
                GetStep::Nothing
            }
        })?;
        Ok(is_same)
    }

    fn commit_one(&self, session: &mut dyn Session) -> Result<bool, Error> {
        let Some((key, touched)) = self.iter().next() else {
            return Ok(true);
        };
        let Some(read) = touched.read else {
            apply(&touched.change, session, key)?;
            return Ok(true);
        };
        let mut is_same = false;
        session.update(key, &mut |item| {
            is_same = version_of(item.map(|item| item.meta).as_ref()) == read;
            match is_same {
                true => touched.change.clone(),
                false => UpdateDecision::Keep,
            }
        })?;
        Ok(is_same)
    }

    fn commit_group(&self, session: &mut dyn Session) -> Result<bool, Error> {
        let decision = session.group(&self.names(), &mut |ops| {
            for (key, touched) in self.iter() {
                if let Some(read) = touched.read {
                    let meta = ops.meta(key, ReadView::Pending)?;
                    if version_of(meta.as_ref()) != read {
                        return Ok(GroupDecision::Abandon);
                    }
                }
            }
            for (key, touched) in self.iter() {
                apply(&touched.change, ops, key)?;
            }
            Ok(GroupDecision::Apply)
        })?;
        Ok(decision == GroupDecision::Apply)
    }
}

fn version_of(meta: Option<&ValueMeta>) -> u64 {
    meta.map_or(0, |meta| meta.version)
}

/// The operations of a body that runs without locks.
struct OptimisticOps<'a> {
    session: &'a mut dyn Session,
    touched: &'a mut TouchedKeys,
    value_bytes_max: usize,
    /// Where changes are recorded, if they are.
    log: Option<&'a Mutex<ChangeLog>>,
}

impl OptimisticOps<'_> {
    /// Records that the body has seen `key` with `version`.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it has seen another version before.
    fn note_read(&mut self, key: Key<'_>, version: u64) -> Result<(), Error> {
        let touched = self.touched.entry(key);
        if *touched.read.get_or_insert(version) == version {
            return self.touched.check_bytes();
        }
        self.touched.has_conflict = true;
        Err(Error::Conflict)
    }

    /// The change of `key`, if the body has changed it.
    fn changed(&self, key: Key<'_>) -> Option<&UpdateDecision> {
        let change = &self.touched.keys[self.touched.position(key)?].change;
        (*change != UpdateDecision::Keep).then_some(change)
    }

    /// The value that the body has stored for `key`: `None` if the body has not changed the key, `Some(None)` if it has
    /// deleted it.
    fn changed_value(&self, key: Key<'_>) -> Option<Option<(ValueMeta, &[u8])>> {
        let value = self.changed(key)?.value();
        let value = value.filter(|v| v.expires_ms == 0 || v.expires_ms > self.session.now_ms());
        Some(value.map(|value| {
            let meta = ValueMeta {
                value_bytes: value.bytes.len(),
                expires_ms: value.expires_ms,
                flags: value.flags,
                kind: value.kind,
                version: 0,
            };
            (meta, value.bytes)
        }))
    }

    /// Records a write of `key`.
    ///
    /// # Errors
    /// [`Error::ValueTooLong`], or [`Error::GroupTooLong`] if the touched keys use too much memory.
    fn change(&mut self, key: Key<'_>, change: UpdateDecision) -> Result<(), Error> {
        let bytes_of =
            |change: &UpdateDecision| change.value().map_or(0, |value| value.bytes.len());
        let new = bytes_of(&change);
        if new > self.value_bytes_max {
            return Err(Error::ValueTooLong {
                bytes: new,
                bytes_max: self.value_bytes_max,
            });
        }
        self.touched.has_changes = true;
        if let Some(log) = self.log {
            lock(log).note_change(key.bytes);
        }
        let touched = self.touched.entry(key);
        let old = bytes_of(&touched.change);
        touched.change = change;
        self.touched.bytes = self.touched.bytes + new - old;
        self.touched.check_bytes()
    }
}

impl OptimisticAccess for OptimisticOps<'_> {
    fn ops(&mut self) -> &mut dyn Ops {
        self
    }

    fn session(&mut self) -> &mut dyn Session {
        self.touched.has_walked = true;
        &mut *self.session
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        self.touched.restart();
        self.touched.has_walked = true;
        self.session.flush_all()
    }
}

impl Ops for OptimisticOps<'_> {
    fn get(
        &mut self,
        key: Key<'_>,
        _view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        if let Some(value) = self.changed_value(key) {
            let Some((meta, bytes)) = value else {
                return Ok(false);
            };
            if head(&meta, out) {
                out.extend_from_slice(bytes);
            }
            return Ok(true);
        }
        let (from, mut version) = (out.len(), 0);
        let found = self
            .session
            .get(key, ReadView::Pending, out, &mut |meta, out| {
                version = meta.version;
                head(meta, out)
            })?;
        let seen = self.note_read(key, if found { version } else { 0 });
        if seen.is_err() {
            out.truncate(from);
        }
        seen.map(|()| found)
    }

    fn meta(&mut self, key: Key<'_>, _view: ReadView) -> Result<Option<ValueMeta>, Error> {
        if let Some(value) = self.changed_value(key) {
            return Ok(value.map(|(meta, _)| meta));
        }
        let meta = self.session.meta(key, ReadView::Pending)?;
        self.note_read(key, version_of(meta.as_ref()))?;
        Ok(meta)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        let change = UpdateDecision::Put {
            bytes: value.bytes.to_vec(),
            expires_ms: value.expires_ms,
            flags: value.flags,
            kind: value.kind,
        };
        self.change(key, change)?;
        Ok(0)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let existed = match self.meta(key, ReadView::Pending) {
            // The delete replaces a damaged record, whatever its version is.
            Err(Error::Damaged(_)) => true,
            other => other?.is_some(),
        };
        if existed {
            self.change(key, UpdateDecision::Delete)?;
        }
        Ok(existed)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let (mut bytes, mut found) = (Vec::new(), None);
        self.get(key, ReadView::Pending, &mut bytes, &mut |meta, _| {
            found = Some(*meta);
            true
        })?;
        match decide(found.map(|meta| StoredItem {
            bytes: &bytes,
            meta,
        })) {
            UpdateDecision::Keep => Ok(version_of(found.as_ref())),
            UpdateDecision::Delete => self.delete(key).map(|_| 0),
            put => self.change(key, put).map(|()| 0),
        }
    }

    fn now_ms(&self) -> u64 {
        self.session.now_ms()
    }
}

/// The operations of a body inside a group. Records keys that the body touches.
struct LockedOps<'a> {
    ops: &'a mut dyn Ops,
    touched: &'a mut TouchedKeys,
}

impl Ops for LockedOps<'_> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        self.touched.entry(key);
        self.ops.get(key, view, out, head)
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.touched.entry(key);
        self.ops.meta(key, view)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.touched.entry(key);
        self.ops.put(key, value)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        self.touched.entry(key);
        self.ops.delete(key)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.touched.entry(key);
        self.ops.update(key, decide)
    }

    fn now_ms(&self) -> u64 {
        self.ops.now_ms()
    }
}

/// Whether an error of the store ends the group in which a command runs, instead of being the command's reply.
pub(super) fn ends_group(error: &Error) -> bool {
    error.is_full()
        || matches!(
            error,
            Error::Poisoned(_) | Error::NotInGroup | Error::Conflict | Error::GroupTooLong { .. }
        )
}

/// Body of a group: runs commands, and decides whether their writes are applied. It must return a store's error that a
/// command meets.
pub(super) type GroupBody<'b> =
    &'b mut dyn FnMut(&mut CommandContext<'_>) -> Result<GroupDecision, Error>;

impl CommandContext<'_> {
    /// As [`CommandContext::with_group`], for a body whose keys are not known.
    pub(super) fn with_any_keys(
        &mut self,
        executes_long: bool,
        body: GroupBody<'_>,
    ) -> Result<GroupDecision, Error> {
        let mut touched = TouchedKeys::default();
        for round in 0..ROUNDS_MAX {
            if round < OPTIMISTIC_ROUNDS || touched.has_walked {
                touched.restart();
                match self.run_optimistic(&mut touched, executes_long, body) {
                    Ok(Some(decision)) => return Ok(decision),
                    Ok(None) | Err(Error::Conflict) => {}
                    Err(error) => return Err(error),
                }
            } else {
                match self.run_locked(&mut touched, executes_long, body) {
                    Err(Error::NotInGroup) => {}
                    other => return other,
                }
            }
        }
        Err(Error::Conflict)
    }

    /// Runs `body` without locks. `None`: a key has changed meanwhile.
    fn run_optimistic(
        &mut self,
        touched: &mut TouchedKeys,
        executes_long: bool,
        body: GroupBody<'_>,
    ) -> Result<Option<GroupDecision>, Error> {
        let value_bytes_max = self.shared.store.item_bytes_max();
        let log = self.thread.records.then(|| Arc::clone(&self.thread.log));
        let log = log.as_deref();
        let start = log.map(|log| lock(log).mark());
        let (store, mut rest) = self.split_store();
        let StoreAccess::Session(session) = store else {
            return Ok(Some(GroupDecision::Abandon));
        };
        rest.executes_long = executes_long;
        rest.request.hidden_bytes = 0;
        let mut ops = OptimisticOps {
            session: &mut **session,
            touched,
            value_bytes_max,
            log,
        };
        let ended = body(&mut rest.with_store(StoreAccess::Optimistic(&mut ops)));
        let recorded = log.map(|log| lock(log).mark());
        let outcome = match ended {
            Ok(GroupDecision::Apply) => touched.commit(&mut **session),
            _ => Ok(false),
        };
        if let Some(log) = log {
            // The events of the body are in its order; the session has recorded the same changes again.
            let kept = if matches!(outcome, Ok(true)) {
                recorded
            } else {
                start
            };
            lock(log).rewind(kept.unwrap_or_default());
        }
        match ended? {
            GroupDecision::Abandon => Ok(Some(GroupDecision::Abandon)),
            decision => Ok(outcome?.then_some(decision)),
        }
    }

    /// Runs `body` in a group of the keys touched so far. If it touches another key, that is added to the keys and the
    /// error is [`Error::NotInGroup`].
    fn run_locked(
        &mut self,
        touched: &mut TouchedKeys,
        executes_long: bool,
        body: GroupBody<'_>,
    ) -> Result<GroupDecision, Error> {
        let names = touched
            .keys
            .iter()
            .map(|touched| (touched.db, touched.bytes.clone()));
        let names: Vec<(u8, Box<[u8]>)> = names.collect();
        let keys: Vec<Key<'_>> = names
            .iter()
            .map(|(db, bytes)| Key { db: *db, bytes })
            .collect();
        self.with_group(&keys, executes_long, &mut |ctx| {
            let (store, rest) = ctx.split_store();
            let StoreAccess::Group(ops) = store else {
                return Ok(GroupDecision::Abandon);
            };
            let mut ops = LockedOps {
                ops: &mut **ops,
                touched,
            };
            body(&mut rest.with_store(StoreAccess::Group(&mut ops)))
        })
    }
}
