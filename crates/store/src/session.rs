//! Operations of a worker: on single keys ([`Ops`]), on several keys, and in batches ([`Session`]).

use std::time::Duration;

use farbank_pm::{Poisoned, Ticket};

use crate::error::Error;
use crate::value::{Key, StoredItem, Value, ValueMeta};

/// Longest time that a write waits for another session with [`ConflictPolicy::Refuse`].
pub const CONFLICT_WAIT: Duration = Duration::from_secs(1);

/// Decision of the function given to [`Ops::update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateDecision {
    /// Write nothing.
    Keep,
    /// Store a new value.
    Put {
        /// The new value.
        bytes: Vec<u8>,
        /// Expiry time in milliseconds since 1970; 0: never.
        expires_ms: u64,
        /// The client's 32-bit flags.
        flags: u32,
        /// Kind of the value: type and marks.
        kind: u8,
    },
    /// Delete the key. No effect if it is absent.
    Delete,
}

impl UpdateDecision {
    /// The value that the decision stores, if it stores one.
    #[must_use]
    pub fn value(&self) -> Option<Value<'_>> {
        match self {
            UpdateDecision::Put {
                bytes,
                expires_ms,
                flags,
                kind,
            } => Some(Value {
                bytes,
                expires_ms: *expires_ms,
                flags: *flags,
                kind: *kind,
            }),
            UpdateDecision::Keep | UpdateDecision::Delete => None,
        }
    }
}

/// Writes that a read may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadView {
    /// Only durable writes: the reply may be sent at once.
    Durable,
    /// Also the session's own writes that are not durable yet: the reply must wait for the ticket of
    /// [`Session::commit`].
    Pending,
}

/// Reason why a read finds no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absence {
    /// The key has no value, or none that is visible.
    Missing,
    /// The value has expired.
    Expired,
    /// The value was written before a flush of the whole store.
    Flushed,
}

/// Called with a value's metadata before its bytes are appended, to write a frame header. Returns whether the bytes
/// are to be appended; if not, none is copied.
pub type BeforeValue<'a> = &'a mut dyn FnMut(&ValueMeta, &mut Vec<u8>) -> bool;

/// What [`Session::get_many_into`] does after its caller has seen the metadata of a key's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetStep {
    /// Append the value's bytes, if the key has a value; go on with the next key.
    Value,
    /// Skip the value's bytes; go on with the next key.
    NextKey,
    /// Stop: read no further key.
    Nothing,
}

/// Called like [`BeforeValue`] for each of several keys, with `None` for an absent key.
pub type BeforeValues<'a> = &'a mut dyn FnMut(Option<&ValueMeta>, &mut Vec<u8>) -> GetStep;

/// Operations on single keys. For all of them, a key whose value has expired is absent.
pub trait Ops {
    /// Calls `head` with the metadata of the value of `key`, then appends the value to `out`. `Ok(false)`: the key is
    /// absent, and `head` was not called. If `head` returns `false`, the value is not appended and the result is
    /// `Ok(true)`. On `Err`, `out` is unchanged.
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error>;

    /// Returns the metadata of the value of `key`.
    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error>;

    /// Stores `value` under `key`, present or absent. Returns the new version (in a group 0: the version is assigned
    /// later).
    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error>;

    /// Deletes `key`. Returns whether it was present.
    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error>;

    /// Reads `key`, calls `decide` and writes its decision atomically, based on the newest value, durable or not. If
    /// another session writes the key meanwhile, `decide` is called again; the last call counts. Returns the key's
    /// version afterwards (0: absent).
    ///
    /// A damaged record is an error here; `put` and `delete` replace it.
    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error>;

    /// Returns the store's time in milliseconds since 1970, with which expiries are compared. It goes backwards only
    /// when the machine's clock has been behind it for a minute ([`crate::clock`]).
    fn now_ms(&self) -> u64;
}

/// Decision of the function given to [`Session::group`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupDecision {
    /// Write all of the group, atomically.
    Apply,
    /// Write nothing.
    Abandon,
}

/// Result of [`Session::prepare`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoomReply {
    /// The next write succeeds or fails without waiting for room.
    Ready,
    /// The cleaner is making room. Call `prepare` again after the function registered with [`Store::on_turn`](crate::Store::on_turn) was
    /// called.
    Wait,
}

/// What a session does when it writes a key for which another session has a staged, uncommitted write.
///
/// With either policy, the write fails at once with [`Error::Conflict`] if the other session's write was staged by
/// the same thread: that session could not commit while the thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConflictPolicy {
    /// A session with nothing staged sleeps until the other session commits or is dropped, for [`CONFLICT_WAIT`] at
    /// most. A session with staged writes fails with [`Error::Conflict`] at once, because two such sessions could
    /// wait for each other.
    #[default]
    Refuse,
    /// The session commits its staged writes, so that no session waits for it, and sleeps until the other session
    /// commits or is dropped. For sessions that all commit soon, as a server's do.
    Commit,
}

/// One worker's handle to a store, used by one thread at a time. Dropping it abandons the writes that it has staged
/// and not committed.
pub trait Session: Ops + Send {
    /// Sets the policy for writes of keys that other sessions have staged writes of.
    fn on_conflict(&mut self, conflicts: ConflictPolicy);

    /// Calls [`Ops::put`], then [`Session::commit`], which also commits what the session has staged before. Returns
    /// the new version and the ticket. Where a drain is a fence, a store may take a shorter path for a write that is
    /// a batch by itself.
    fn put_durable(&mut self, key: Key<'_>, value: Value<'_>) -> Result<(u64, Ticket), Error> {
        let version = self.put(key, value)?;
        Ok((version, self.commit()?))
    }

    /// Reads several keys as of one moment: no write is seen for one key and missed for another. Then calls `each`,
    /// in order, with each key's position and its value.
    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error>;

    /// As [`Session::get_many`], but calls `head` for each key and appends the values to `out`, which saves a copy of
    /// them. On `Err`, `out` is unchanged.
    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error>;

    /// Runs `body` isolated from other writers of `keys`. Its writes become visible and durable atomically. `body`
    /// may use only `keys` (other keys fail with [`Error::NotInGroup`]), and may be called again from the start. If
    /// it returns an error or panics, nothing of the group is staged; a panic continues in the caller.
    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error>;

    /// Prefetches what operations on `keys` will read, for all keys at once; with `reads`, values too. A hint: it
    /// changes nothing.
    fn prefetch(&mut self, keys: &[Key<'_>], reads: bool) {
        let _ = (keys, reads);
    }

    /// Returns why a read of `key` finds no value. Best effort: once an expired or flushed value has been removed,
    /// the result is [`Absence::Missing`].
    fn absence(&mut self, key: Key<'_>) -> Absence {
        let _ = key;
        Absence::Missing
    }

    /// Visits about `count` keys of `db` in hash order from `cursor` (0: the start). Returns the next cursor, 0 at
    /// the end. A key that exists during the whole scan is visited at least once, across restarts too. A call that meets a
    /// swap of databases ends early, so that it visits the keys of one database. Commits and waits first, so that this
    /// session's own writes are seen.
    fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error>;

    /// Returns the number of keys in `db`, including expired keys that have not been removed yet. Commits and waits
    /// first.
    fn len(&mut self, db: u8) -> Result<u64, Error>;

    /// Removes every key of every database. Durable on `Ok`. Commits first.
    fn flush_all(&mut self) -> Result<(), Error>;

    /// Exchanges the databases `first` and `second`: from one moment on, all sessions see the keys of each under the number
    /// of the other. Durable on `Ok`. Commits first. Writes of other sessions wait until the swap has ended, and the swap
    /// waits for their staged writes.
    ///
    /// # Errors
    /// [`Error::NoDatabase`]; [`Error::NoSwap`] if the store does not support it. [`Error::Conflict`] if another session
    /// has staged writes in the same thread, and [`Error::Unsettled`] if one holds staged writes for longer than
    /// [`CONFLICT_WAIT`]. After [`Error::Poisoned`] it is unknown whether the next open finds the databases exchanged.
    /// After all other errors, they are not exchanged.
    fn swap_databases(&mut self, first: u8, second: u8) -> Result<(), Error> {
        match first == second {
            true => Ok(()),
            false => Err(Error::NoSwap),
        }
    }

    /// Ends the batch and starts making it durable. Returns [`Ticket::DURABLE`] if the batch wrote nothing or is
    /// durable already.
    fn commit(&mut self) -> Result<Ticket, Error>;

    /// Returns whether a write of about `bytes`, key and value together, can proceed without waiting for room, and
    /// requests room if not. `delete` means that the write only deletes.
    ///
    /// After the first call, writes of this session fail with [`Error::Full`] where they would otherwise wait for
    /// room. A server whose worker serves many clients calls this before each write, so that only the writing client
    /// waits.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the session's staged writes could not be committed.
    fn prepare(&mut self, bytes: usize, delete: bool) -> Result<RoomReply, Error> {
        let _ = (bytes, delete);
        Ok(RoomReply::Ready)
    }

    /// Returns the bytes of the records that are live once the writes that this session has staged are visible. Staged
    /// writes of other sessions do not count. A write that replaces one which is not visible yet may count twice until
    /// that one is visible. A store that limits its records itself returns 0.
    fn used_bytes(&self) -> u64 {
        0
    }

    /// Visits keys of all databases from `position` on, in an order that does not depend on their use, until `each`
    /// returns false or about `visits` keys were visited. Returns the position behind the last key; after the last key
    /// of the store, 0. From a random position, all keys have about the same chance to be visited.
    ///
    /// Neither commits nor waits. A key of which any session has a write that is not visible yet may be left out, so
    /// that a write of a visited key rarely waits for another session. A store that evicts keys itself visits none.
    fn sample(
        &mut self,
        position: u64,
        visits: usize,
        each: &mut dyn FnMut(Key<'_>, &ValueMeta) -> bool,
    ) -> u64 {
        let _ = (position, visits, each);
        0
    }

    /// Releases the session's read pin. Until its next commit, a session keeps the memory that it has read from being
    /// reused. A session that has read and then stays idle should call this or [`Session::commit`]. If writes are
    /// staged or not durable yet, this has no effect.
    fn rest(&mut self) {}

    /// Commits, and makes every write that any session has acknowledged durable on the medium, also if the medium
    /// acknowledges earlier (`--sync everysec` and `never`).
    fn sync(&mut self) -> Result<(), Error> {
        let ticket = self.commit()?;
        self.wait(ticket)?;
        Ok(())
    }

    /// Returns whether `ticket` is durable and the writes that it covers are visible to every session.
    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned>;

    /// Waits until `ticket` is durable.
    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned>;
}
