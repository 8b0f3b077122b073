//! Simultaneous operations on one key that the clients of a compute server share: read delegation and write combining
//! (SMART, OSDI 2023).
//!
//! ```text
//!   reads    A, D read ──────▶ A has ended: B reads ────────▶          B's read was issued after B and C had come,
//!            B, C come: they wait             its value is C's, too    so it may answer both
//!   writes   A waits for the leaf's lock ──▶ A has the lock: it writes the last of the values 1, 2, 3
//!            A: 1   B: 2   C: 3 come         the results: A replaced the old value, B replaced 1, C replaced 2
//! ```
//!
//! At a hot key, a compute server has few reads under way and one that waits, however many clients it has, and its clients
//! write the leaf once for all that have come while one of them waited for the lock.
//!
//! # Invariants
//! TREE-SHARE-1  A client uses only the result of a read that was issued after the client's call began. So a value that was
//!     replaced before the call is not its result.
//! TREE-SHARE-2  A write is combined only with calls that came before the write's value was chosen, under the leaf's lock. The
//!     calls take effect in the order of their arrival, at the moment of that one write.
//! TREE-SHARE-3  A client that waits here holds no lock. So the client that it waits for never waits for it.
//!
//! # Failures
//! If the shared operation fails, all its calls fail with the same error, and may have taken effect: the last value may be
//! there, the others never. All clients that share an operation are of one compute server, which is fenced as a whole.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use crossbeam_utils::CachePadded;
use farbank_fabric::Fabric;
use farbank_pm::fault;
use farbank_pm::rng::Rng;
use farbank_pm::sync::unpoisoned;

use crate::client::Client;
use crate::error::TreeError;
use crate::key::Key;
use crate::ops::NewValue;

/// Maximum number of reads of one key that are under way at a time. Where a second client reads the key, sharing would cost it
/// the time that is left of the first one's read, and save little.
const READS_MAX: usize = 2;

/// An operation whose result several calls wait for.
struct SharedCall<T>(Mutex<CallState<T>>);

struct CallState<T> {
    /// Whether the first of the calls may perform the operation.
    is_due: bool,
    result: Option<T>,
    wakers: Vec<Waker>,
}

impl<T: Clone> SharedCall<T> {
    fn new(is_due: bool) -> Arc<SharedCall<T>> {
        Arc::new(SharedCall(Mutex::new(CallState {
            is_due,
            result: None,
            wakers: Vec::new(),
        })))
    }

    /// Changes the state, and wakes all calls. No holder of the lock panics.
    fn update(&self, change: impl FnOnce(&mut CallState<T>)) {
        let mut state = unpoisoned(self.0.lock());
        change(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `seen` returns a value.
    async fn wait<R>(&self, seen: impl Fn(&CallState<T>) -> Option<R>) -> R {
        poll_fn(|context| {
            let mut state = unpoisoned(self.0.lock());
            match seen(&state) {
                Some(value) => Poll::Ready(value),
                None => {
                    state.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    async fn due(&self) {
        self.wait(|state| state.is_due.then_some(())).await;
    }

    async fn result(&self) -> T {
        self.wait(|state| state.result.clone()).await
    }

    fn finish(&self, result: T) {
        self.update(|state| state.result = Some(result));
    }
}

type ReadResult = Result<Option<u64>, TreeError>;
/// The values of a combined write in the order of their arrival, after the value that they replaced.
type WriteResult = Result<Arc<[Option<u64>]>, TreeError>;

/// The shared operations on a key that are under way.
#[derive(Default)]
struct KeyCalls {
    /// The number of reads that were issued, and the last of them.
    reads: usize,
    read: Option<Arc<SharedCall<ReadResult>>>,
    /// The read that is issued when one of them has ended.
    next_read: Option<Arc<SharedCall<ReadResult>>>,
    /// The write that waits for the leaf's lock, with its values.
    write: Option<(Arc<SharedCall<WriteResult>>, Vec<u64>)>,
}

/// What a call has to do.
enum CallRole<T> {
    /// Perform the operation when it is due.
    Perform(Arc<SharedCall<T>>),
    /// Wait for the result.
    Wait(Arc<SharedCall<T>>),
}

type KeyPart = HashMap<Key, KeyCalls>;

/// The shared operations of a compute server, for all its threads.
pub(crate) struct KeySharing(Vec<CachePadded<Mutex<KeyPart>>>);

impl KeySharing {
    pub(crate) fn new() -> KeySharing {
        /// Parts of the table, so that threads seldom wait for each other.
        const PARTS: usize = 64;
        KeySharing((0..PARTS).map(|_| CachePadded::default()).collect())
    }

    /// Locks the part of `key`. No holder of the lock panics.
    fn part(&self, key: &Key) -> MutexGuard<'_, KeyPart> {
        let place = Rng::new(key.first()).draw() as usize % self.0.len();
        unpoisoned(self.0[place].lock())
    }

    /// Changes the calls of `key`, and forgets the key if no call is left.
    fn change<T>(&self, key: &Key, change: impl FnOnce(&mut KeyCalls) -> T) -> T {
        let mut part = self.part(key);
        let calls = part.entry(key.clone()).or_default();
        let result = change(calls);
        if calls.reads == 0 && calls.write.is_none() {
            part.remove(key);
        }
        result
    }

    /// Begins or joins a read of `key` (TREE-SHARE-1).
    fn begin_read(&self, key: &Key) -> CallRole<ReadResult> {
        self.change(key, |calls| {
            if let Some(read) = &calls.read
                && fault!("tree.read_joined_late")
            {
                return CallRole::Wait(Arc::clone(read));
            }
            if calls.reads < READS_MAX {
                calls.reads += 1;
                return CallRole::Perform(Arc::clone(calls.read.insert(SharedCall::new(true))));
            }
            match &calls.next_read {
                Some(next) => CallRole::Wait(Arc::clone(next)),
                None => {
                    let next = calls.next_read.insert(SharedCall::new(false));
                    CallRole::Perform(Arc::clone(next))
                }
            }
        })
    }

    /// Ends a read of `key` that was issued. The next one is due.
    fn end_read(&self, key: &Key) {
        let next = self.change(key, |calls| {
            let next = calls.next_read.take();
            match &next {
                Some(next) => calls.read = Some(Arc::clone(next)),
                None => calls.reads -= 1,
            }
            next
        });
        if let Some(next) = next {
            next.update(|state| state.is_due = true);
        }
    }

    /// Begins or joins a write of `value` to `key`. Returns its place among the combined values.
    fn begin_write(&self, key: &Key, value: u64) -> (CallRole<WriteResult>, usize) {
        self.change(key, |calls| match &mut calls.write {
            Some((write, values)) => {
                values.push(value);
                (CallRole::Wait(Arc::clone(write)), values.len() - 1)
            }
            none => {
                let write = SharedCall::new(true);
                *none = Some((Arc::clone(&write), vec![value]));
                (CallRole::Perform(write), 0)
            }
        })
    }

    /// Returns the values of the write to `key`. Later calls do not join it (TREE-SHARE-2).
    fn close_write(&self, key: &Key) -> Vec<u64> {
        self.change(key, |calls| calls.write.take().map(|(_, values)| values))
            .unwrap_or_default()
    }
}

impl<F: Fabric> Client<F> {
    /// Returns the word in the entry of `key`, perhaps from the read of another client of this compute server.
    pub(crate) async fn shared_word(&self, key: &Key) -> Result<Option<u64>, TreeError> {
        let read = match self.key_sharing().begin_read(key) {
            CallRole::Perform(read) => read,
            CallRole::Wait(read) => {
                self.note(|op| op.shared = true);
                return read.result().await;
            }
        };
        read.due().await;
        let result = self.word(key).await;
        self.key_sharing().end_read(key);
        read.finish(result);
        result
    }

    /// Sets the value of `key`, perhaps by the write of another client of this compute server. Returns the replaced value.
    pub(crate) async fn shared_put(&self, key: Key, value: u64) -> Result<Option<u64>, TreeError> {
        let (role, place) = self.key_sharing().begin_write(&key, value);
        match role {
            CallRole::Perform(write) => {
                let result = self.combined_put(key, value).await;
                write.finish(result.clone());
                result.map(|values| values[place])
            }
            CallRole::Wait(write) => {
                self.note(|op| op.shared = true);
                write.result().await.map(|values| values[place])
            }
        }
    }

    /// Performs the write to `key` that this client has begun with `value`: writes its last value.
    async fn combined_put(&self, key: Key, value: u64) -> WriteResult {
        let locked = self.lock_leaf(&key).await;
        let joins_late = fault!("tree.write_joined_late");
        let mut values = match joins_late {
            true => vec![value],
            false => self.key_sharing().close_write(&key),
        };
        let last = *values.last().expect("the value of this client is there");
        let old = match locked {
            Ok(locked) => {
                self.put_locked(locked, key.clone(), NewValue::Word(last))
                    .await
            }
            Err(error) => Err(error),
        };
        if joins_late {
            values = self.key_sharing().close_write(&key);
        }
        let values = values.into_iter().map(Some);
        Ok(std::iter::once(old?).chain(values).collect())
    }
}
