//! Reading and writing: what one thread does with a [`Db`](crate::Db).

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use farbank_kv::store::{self, Error, GroupDecision, Key, Ops, ReadView, UpdateDecision, Value};

use crate::Db;

/// Keys an [`Iter`] asks the store for at a time.
const KEYS_AT_ONCE: usize = 64;

/// One thread's session of a [`Db`]. It sees its own writes at once; others see them, and they are
/// durable as the medium can make them, when [`Session::commit`] has returned `Ok`. Dropping a session abandons what
/// it has not committed.
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
pub struct Session<'a>(Box<dyn store::Session>, PhantomData<&'a Db>);

impl<'a> Session<'a> {
    pub(crate) fn new(session: Box<dyn store::Session>, _db: &'a Db) -> Session<'a> {
        Session(session, PhantomData)
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the record fails its checksum.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = value_of(&mut *self.0, key);
        self.0.rest(); // The next use may be far off.
        value
    }

    /// Stores `value` under `key`, whatever was there, without an expiry. Durable once committed.
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::CannotGrow`] if the pool has no room, [`Error::KeyTooLong`] and
    /// [`Error::ValueTooLong`] with the limits of this pool, [`Error::Conflict`] if another session has a write of the
    /// key staged and does not commit it, [`Error::Poisoned`] if the medium has failed. Nothing was written then.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(named(key), until(value, 0)).map(|_| ())
    }

    /// Stores `value` under `key` for the time `lives`, to the millisecond. Durable once committed.
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

    /// Deletes `key`. Returns whether it was there. Durable once committed.
    ///
    /// # Errors
    /// [`Error::Conflict`] and [`Error::Poisoned`] as [`Session::put`]; a full pool takes deletes.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let there = self.0.delete(named(key));
        self.0.rest();
        there
    }

    /// Adds `by` to the counter `key`, which is decimal text as Redis's `INCRBY` has it, 0 if absent; its expiry stays.
    /// Returns the new count. Atomic among all sessions; durable once committed.
    ///
    /// # Errors
    /// [`CounterError::NotAnInteger`] and [`CounterError::Overflow`], and nothing was written; else as
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

    /// Replaces the value of `key` by `new` if it is `expected`; `None` is an absent key. Returns whether it was
    /// replaced. Atomic among all sessions; durable once committed. The new value has no expiry.
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

    /// Runs `body`, which may read and write the keys that are named, isolated from all other writers of them. What it
    /// writes is staged if it returns `Ok`, and nothing of it if it returns `Err` or panics. After a crash all of a
    /// transaction is there or nothing; durable once committed. `body` may be called again from the start.
    ///
    /// # Errors
    /// What `body` returns; [`Error::NotInGroup`] if it touches a key that is not named; else as [`Session::put`].
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

    /// Visits all keys with their values, in no order. Commits first, so that this session's own writes are seen. A
    /// key that is there all the while is visited at least once; twice at most if the store grows meanwhile.
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

    /// Makes everything this session wrote durable, and waits for it.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the medium has failed: what was written since the last commit may be lost.
    pub fn commit(&mut self) -> Result<(), Error> {
        let ticket = self.0.commit()?;
        Ok(self.0.wait(ticket)?)
    }

    /// Everything else a session can do: databases, memcached's flags, updates, tickets. A caller that reads by these
    /// and commits nothing calls [`store::Session::rest`] before a pause.
    pub fn all(&mut self) -> &mut dyn store::Session {
        &mut *self.0
    }
}

/// The keys of a transaction, as its body sees them: see [`Session::transaction`].
pub struct Transaction<'a>(&'a mut dyn Ops);

impl Transaction<'_> {
    /// Returns the value of `key`, with what the body has written to it.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key was not named, [`Error::Damaged`] if its record fails its checksum.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        value_of(self.0, key)
    }

    /// Stores `value` under `key`, without an expiry.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key was not named; the limits as [`Session::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(named(key), until(value, 0)).map(|_| ())
    }

    /// Stores `value` under `key` for the time `lives`.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_for(&mut self, key: &[u8], value: &[u8], lives: Duration) -> Result<(), Error> {
        let expires_ms = expiry(self.0, lives);
        self.0.put(named(key), until(value, expires_ms)).map(|_| ())
    }

    /// Deletes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key was not named.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.0.delete(named(key))
    }
}

/// Keys with their values: see [`Session::iter`].
pub struct Iter<'a> {
    session: &'a mut dyn store::Session,
    /// Where the scan goes on; `None`: it has ended.
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
                    Ok(None) => {} // Deleted, or expired, meanwhile.
                    Err(error) => return Some(Err(error)),
                }
            }
            let cursor = self.cursor.take()?;
            let keys = &mut self.keys;
            let each = &mut |key: &[u8], _: &store::ValueMeta| keys.push_back(key.to_vec());
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

/// Why a counter was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterError {
    /// What is stored is not the decimal text of a 64-bit integer.
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

/// When something expires that is to live for `lives` from now on: never 0, which is no expiry.
fn expiry(ops: &(impl Ops + ?Sized), lives: Duration) -> u64 {
    let lives_ms = u64::try_from(lives.as_millis()).unwrap_or(u64::MAX);
    ops.now_ms().saturating_add(lives_ms).max(1)
}

fn value_of(ops: &mut (impl Ops + ?Sized), key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut value = Vec::new();
    let found = ops.get(named(key), ReadView::Pending, &mut value, &mut |_, _| true)?;
    Ok(found.then_some(value))
}

/// A number as Redis writes it: no sign but a minus, no leading zeros.
fn parse(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
