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

use farbank_fabric::Fabric;
use farbank_pm::fault;

use crate::client::Client;
use crate::error::TreeError;
use crate::key::Key;
use crate::key_calls::{CallRole, WriteResult};
use crate::ops::NewValue;

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
        let locked = self.lock_leaf_part(&key).await;
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
