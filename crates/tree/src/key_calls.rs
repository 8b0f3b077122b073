//! The shared operations of a compute server that are under way, as data. `key_sharing` describes them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use crossbeam_utils::CachePadded;
use farbank_pm::fault;
use farbank_pm::rng::Rng;
use farbank_pm::sync::unpoisoned;

use crate::error::TreeError;
use crate::key::Key;

/// Maximum number of reads of one key that are under way at a time. Where a second client reads the key, sharing would cost it
/// the time that is left of the first one's read, and save little.
const READS_MAX: usize = 2;

/// An operation whose result several calls wait for.
pub(crate) struct SharedCall<T>(Mutex<CallState<T>>);

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

    /// Waits until the operation may be performed.
    pub(crate) async fn due(&self) {
        self.wait(|state| state.is_due.then_some(())).await;
    }

    /// Waits for the result.
    pub(crate) async fn result(&self) -> T {
        self.wait(|state| state.result.clone()).await
    }

    /// Passes the result to all calls.
    pub(crate) fn finish(&self, result: T) {
        self.update(|state| state.result = Some(result));
    }
}

pub(crate) type ReadResult = Result<Option<u64>, TreeError>;
/// The values of a combined write in the order of their arrival, after the value that they replaced.
pub(crate) type WriteResult = Result<Arc<[Option<u64>]>, TreeError>;

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
pub(crate) enum CallRole<T> {
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
    pub(crate) fn begin_read(&self, key: &Key) -> CallRole<ReadResult> {
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
    pub(crate) fn end_read(&self, key: &Key) {
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
    pub(crate) fn begin_write(&self, key: &Key, value: u64) -> (CallRole<WriteResult>, usize) {
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
    pub(crate) fn close_write(&self, key: &Key) -> Vec<u64> {
        self.change(key, |calls| calls.write.take().map(|(_, values)| values))
            .unwrap_or_default()
    }
}
