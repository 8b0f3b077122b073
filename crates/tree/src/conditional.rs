//! Compare-and-swap: writes that take effect only if the key has the expected value.
//!
//! ```text
//!   lock and read the leaf ──▶ read the value's block ──▶ equal: write the entry and release the lock
//!                                (values out of line)    different: release the lock, return the value found
//! ```
//!
//! Under the leaf's lock no other client changes the key (TREE-NODE-1). So the comparison and the write are one step, and the
//! block that was read is whole (TREE-VALUE-1). A client that dies before its write changes nothing; one that was fenced cannot
//! write.

use farbank_fabric::Fabric;
use farbank_pm::fault;

use crate::block::BlockRef;
use crate::client::Client;
use crate::error::TreeError;
use crate::key::Key;
use crate::locked_node::LockedNode;
use crate::ops::NewValue;

/// Result of a compare-and-swap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CasOutcome<V> {
    /// The key had the expected value, and has the new one.
    Swapped,
    /// The key had this value, or none. Nothing was changed.
    Differs(Option<V>),
}

impl<F: Fabric> Client<F> {
    /// Sets the value of `key` to `new` if it is `expected`. `None` is the absence of the key, so it inserts only a new key, or
    /// removes the key. On `Ok`, every later read of any client sees the result.
    ///
    /// # Errors
    /// The values of the tree are not words, the key is too long, or a memory server does not answer. After an error of a
    /// memory server, the swap may have taken effect.
    pub async fn compare_and_swap(
        &self,
        key: impl Into<Key>,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<CasOutcome<u64>, TreeError> {
        self.values_are(false)?;
        new.map_or(Ok(()), |value| self.check_word(value))?;
        let key = self.fitting(key.into())?;
        let locked = self.lock_leaf(&key).await?;
        let (locked, entry) = self.find_locked(locked, &key).await?;
        let found = entry.map(|(_, word)| word);
        if differs(&found, &expected) {
            self.unlock(locked.held).await?;
            return Ok(CasOutcome::Differs(found));
        }
        self.change_locked(locked, key, new.map(NewValue::Word))
            .await?;
        Ok(CasOutcome::Swapped)
    }

    /// Like [`Client::compare_and_swap`], in a tree with values out of line.
    ///
    /// # Errors
    /// As for [`Client::compare_and_swap`]; also, the new value is too long, or a memory server is full.
    pub async fn compare_and_swap_bytes(
        &self,
        key: impl Into<Key>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CasOutcome<Vec<u8>>, TreeError> {
        self.values_are(true)?;
        new.map_or(Ok(()), |value| self.check_bytes(value))?;
        let key = self.fitting(key.into())?;
        let locked = self.lock_leaf(&key).await?;
        let (locked, entry) = self.find_locked(locked, &key).await?;
        let old = entry.map(|(_, word)| BlockRef(word));
        let found = match old {
            None => None,
            Some(name) => match self.value_under_lock(name).await {
                Ok(value) => Some(value),
                Err(error) => return Err(self.unlock_after(locked.held, error).await),
            },
        };
        if differs(&found.as_deref(), &expected) {
            self.unlock(locked.held).await?;
            return Ok(CasOutcome::Differs(found));
        }
        self.change_locked(locked, key, new.map(NewValue::Bytes))
            .await?;
        if let Some(name) = old {
            self.free_block(name);
        }
        Ok(CasOutcome::Swapped)
    }

    /// Sets the value of `key` in its locked leaf, or removes the key. Releases the lock.
    async fn change_locked(
        &self,
        locked: LockedNode,
        key: Key,
        new: Option<NewValue<'_>>,
    ) -> Result<(), TreeError> {
        match new {
            Some(value) => self.put_locked(locked, key, value).await?,
            None => self.take_out_locked(locked, &key).await?,
        };
        Ok(())
    }
}

/// Returns whether the value found is not the expected one.
fn differs<V: PartialEq>(found: &V, expected: &V) -> bool {
    found != expected && !fault!("tree.swap_uncompared")
}
