//! Sessions: reads and writes of one thread on a [`Db`](crate::Db).

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use farbank_store::{Error, GroupDecision, Key, Ops, ReadView, UpdateDecision, Value};

use crate::Db;

/// Number of keys that an [`Iter`] requests from the store at a time.
const KEYS_AT_ONCE: usize = 64;

/// A session of one thread on a [`Db`]. It sees its own writes at once. When [`Session::commit`] has returned `Ok`, the
/// writes are visible to other sessions, and as durable as the medium can make them. A dropped session abandons its
/// uncommitted writes.
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
/// let db = farbank::open(folder.path().join("pool"), &small)?;
/// let mut session = db.session();
/// session.put(b"greeting", b"hello")?;
/// session.commit()?;
/// assert_eq!(session.get(b"greeting")?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session<'a>(Box<dyn farbank_store::Session>, PhantomData<&'a Db>);

impl<'a> Session<'a> {
    pub(crate) fn new(session: Box<dyn farbank_store::Session>, _db: &'a Db) -> Session<'a> {
        Session(session, PhantomData)
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the record fails its checksum.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = value_of(&mut *self.0, key);
        self.0.rest(); // The caller may not use the session again for long.
        value
    }

    /// Stores `value` under `key`, replacing any earlier value, without an expiry. Durable once committed.
    ///
    /// # Errors
    /// Nothing is written on an error. [`Error::Full`] or [`Error::CannotGrow`] if the pool has no space.
    /// [`Error::KeyTooLong`] or [`Error::ValueTooLong`], with the limit of this pool. [`Error::Conflict`] if another
    /// session has staged a write of the key and does not commit it. [`Error::Poisoned`] if the medium has failed.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(named(key), until(value, 0)).map(|_| ())
    }

    /// Stores `value` under `key`. The value expires after `lives`, rounded down to milliseconds. Durable once
    /// committed.
    ///
    /// # Errors
    /// As [`Session::put`].
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # let folder = tempfile::tempdir()?;
    /// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
    /// # let db = farbank::open(folder.path().join("pool"), &small)?;
    /// # let mut session = db.session();
    /// session.put_for(b"token", b"secret", Duration::from_secs(60))?;
    /// assert!(session.get(b"token")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_for(&mut self, key: &[u8], value: &[u8], lives: Duration) -> Result<(), Error> {
        let expires_ms = expiry(&*self.0, lives);
        self.0.put(named(key), until(value, expires_ms)).map(|_| ())
    }

    /// Deletes `key`. Returns whether it existed. Durable once committed.
    ///
    /// # Errors
    /// [`Error::Conflict`] and [`Error::Poisoned`], as for [`Session::put`]. A full pool accepts deletes.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let there = self.0.delete(named(key));
        self.0.rest();
        there
    }

    /// Adds `by` to the counter `key` and returns the new count. The value is decimal text, as for Redis's `INCRBY`. An
    /// absent key counts as 0. The expiry of the key does not change. Atomic among all sessions; durable once
    /// committed.
    ///
    /// # Errors
    /// Nothing is written on an error. [`CounterError::NotAnInteger`], [`CounterError::Overflow`], and the errors of
    /// [`Session::put`].
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
    /// # let db = farbank::open(folder.path().join("pool"), &small)?;
    /// # let mut session = db.session();
    /// assert_eq!(session.add(b"visits", 1)?, 1);
    /// assert_eq!(session.add(b"visits", 10)?, 11);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&mut self, key: &[u8], by: i64) -> Result<i64, CounterError> {
        let mut count = Ok(0);
        let updated = self.0.update(named(key), &mut |item| {
            let old = item.map_or(Some(0), |item| parse(item.bytes));
            let old = old.ok_or(CounterError::NotAnInteger);
            count = old.and_then(|old| old.checked_add(by).ok_or(CounterError::Overflow));
            match &count {
                Ok(count) => UpdateDecision::Put {
                    bytes: count.to_string().into_bytes(),
                    expires_ms: item.map_or(0, |item| item.meta.expires_ms),
                    flags: 0,
                    kind: 0,
                },
                Err(_) => UpdateDecision::Keep,
            }
        });
        self.0.rest();
        updated.map_err(CounterError::Store)?;
        count
    }

    /// Replaces the value of `key` by `new` if it equals `expected`. `None` means an absent key. Returns whether the
    /// value was replaced. The new value has no expiry. Atomic among all sessions; durable once committed.
    ///
    /// # Errors
    /// As [`Session::put`].
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
    /// # let db = farbank::open(folder.path().join("pool"), &small)?;
    /// # let mut session = db.session();
    /// assert!(session.compare_and_set(b"leader", None, Some(b"me"))?);
    /// assert!(!session.compare_and_set(b"leader", None, Some(b"you"))?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, Error> {
        let mut equal = false;
        let updated = self.0.update(named(key), &mut |item| {
            equal = item.map(|item| item.bytes) == expected;
            match new {
                _ if !equal => UpdateDecision::Keep,
                None => UpdateDecision::Delete,
                Some(bytes) => UpdateDecision::Put {
                    bytes: bytes.to_vec(),
                    expires_ms: 0,
                    flags: 0,
                    kind: 0,
                },
            }
        });
        self.0.rest();
        updated.map(|_| equal)
    }

    /// Runs `body`, which may read and write the given `keys`, isolated from all other writers of these keys. If `body`
    /// returns `Ok`, its writes are staged. If it returns `Err` or panics, none is. After a crash either all writes of
    /// a transaction are found or none. Durable once committed. `body` may be called several times, each time from the
    /// start.
    ///
    /// # Errors
    /// The error that `body` returns. [`Error::NotInGroup`] if `body` accesses a key that is not in `keys`. Otherwise
    /// the errors of [`Session::put`].
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
    /// # let db = farbank::open(folder.path().join("pool"), &small)?;
    /// # let mut session = db.session();
    /// session.put(b"alice", b"10")?;
    /// session.transaction(&[b"alice", b"bob"], |accounts| {
    ///     let all = accounts.get(b"alice")?.unwrap_or_default();
    ///     accounts.put(b"bob", &all)?;
    ///     accounts.delete(b"alice").map(|_| ())
    /// })?;
    /// session.commit()?;
    /// assert_eq!(session.get(b"bob")?.as_deref(), Some(&b"10"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transaction<T, E: From<Error>>(
        &mut self,
        keys: &[&[u8]],
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let keys: Vec<Key<'_>> = keys.iter().map(|key| named(key)).collect();
        let mut outcome = None;
        let grouped = self.0.group(&keys, &mut |ops| {
            let result = body(&mut Transaction(ops));
            let verdict = match result.is_ok() {
                true => GroupDecision::Apply,
                false => GroupDecision::Abandon,
            };
            outcome = Some(result);
            Ok(verdict)
        });
        self.0.rest();
        grouped?;
        outcome.expect("a group that returned has run its body")
    }

    /// Returns an iterator over all keys with their values, in no particular order. It commits first, so that this
    /// session's own writes are included. A key that exists during the whole iteration is returned at least once. If
    /// the index grows meanwhile, it may be returned twice.
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
    /// # let db = farbank::open(folder.path().join("pool"), &small)?;
    /// # let mut session = db.session();
    /// session.put(b"one", b"1")?;
    /// for pair in session.iter() {
    ///     let (key, value) = pair?;
    ///     assert_eq!((key, value), (b"one".to_vec(), b"1".to_vec()));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&mut self) -> Iter<'_> {
        Iter {
            session: &mut *self.0,
            cursor: Some(0),
            keys: VecDeque::new(),
        }
    }

    /// Commits all staged writes of this session, and waits until they are durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the medium has failed: writes since the last commit may be lost.
    pub fn commit(&mut self) -> Result<(), Error> {
        let ticket = self.0.commit()?;
        Ok(self.0.wait(ticket)?)
    }

    /// Returns the engine's session, with all operations: databases, memcached's flags, updates, tickets. A caller that
    /// reads with it and does not commit should call [`farbank_store::Session::rest`] before it is idle.
    pub fn all(&mut self) -> &mut dyn farbank_store::Session {
        &mut *self.0
    }
}

/// Access to the keys of a transaction in its body: see [`Session::transaction`].
pub struct Transaction<'a>(&'a mut dyn Ops);

impl Transaction<'_> {
    /// Returns the value of `key`, including writes of this body.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key is not one of the transaction. [`Error::Damaged`] if its record fails its
    /// checksum.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        value_of(self.0, key)
    }

    /// Stores `value` under `key`, without an expiry.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key is not one of the transaction; the limits of [`Session::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(named(key), until(value, 0)).map(|_| ())
    }

    /// Stores `value` under `key`. The value expires after `lives`.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_for(&mut self, key: &[u8], value: &[u8], lives: Duration) -> Result<(), Error> {
        let expires_ms = expiry(self.0, lives);
        self.0.put(named(key), until(value, expires_ms)).map(|_| ())
    }

    /// Deletes `key`. Returns whether it existed.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key is not one of the transaction.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.0.delete(named(key))
    }
}

/// Iterator over keys with their values: see [`Session::iter`].
pub struct Iter<'a> {
    session: &'a mut dyn farbank_store::Session,
    /// Cursor of the next scan; `None`: the scan has ended.
    cursor: Option<u64>,
    keys: VecDeque<Vec<u8>>,
}

impl Iterator for Iter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(key) = self.keys.pop_front() {
                match value_of(self.session, &key) {
                    Ok(Some(value)) => return Some(Ok((key, value))),
                    Ok(None) => {} // The key was deleted or has expired meanwhile.
                    Err(error) => return Some(Err(error)),
                }
            }
            let cursor = self.cursor.take()?;
            let keys = &mut self.keys;
            let each = &mut |key: &[u8], _: &farbank_store::ValueMeta| keys.push_back(key.to_vec());
            match self.session.scan(0, cursor, KEYS_AT_ONCE, each) {
                Ok(0) => {}
                Ok(next) => self.cursor = Some(next),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Iter<'_> {
    fn drop(&mut self) {
        self.session.rest();
    }
}

/// Error of [`Session::add`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterError {
    /// The value is not the decimal text of a 64-bit integer.
    NotAnInteger,
    /// The sum is not a 64-bit integer.
    Overflow,
    /// The store refused the write.
    Store(Error),
}

impl fmt::Display for CounterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CounterError::NotAnInteger => {
                f.write_str("the value is not the decimal text of a 64-bit integer")
            }
            CounterError::Overflow => f.write_str("the sum is out of the range of 64-bit integers"),
            CounterError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CounterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CounterError::Store(error) => Some(error),
            CounterError::NotAnInteger | CounterError::Overflow => None,
        }
    }
}

fn named(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn until(bytes: &[u8], expires_ms: u64) -> Value<'_> {
    Value {
        bytes,
        expires_ms,
        ..Value::default()
    }
}

/// Returns the expiry of a value that is valid for `lives` from now on, in milliseconds since 1970. Never 0, which
/// would mean no expiry.
fn expiry(ops: &(impl Ops + ?Sized), lives: Duration) -> u64 {
    let lives_ms = u64::try_from(lives.as_millis()).unwrap_or(u64::MAX);
    ops.now_ms().saturating_add(lives_ms).max(1)
}

fn value_of(ops: &mut (impl Ops + ?Sized), key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut value = Vec::new();
    let found = ops.get(named(key), ReadView::Pending, &mut value, &mut |_, _| true)?;
    Ok(found.then_some(value))
}

/// Parses a decimal number in Redis's form: no plus sign and no leading zeros.
fn parse(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
