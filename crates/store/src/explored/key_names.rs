//! Mapping between the explorers' key numbers and keys of a store, of several lengths and in several databases.

use farbank_check::Violation;
use farbank_check::target::{DATABASES as NUMBERED, Value};

use crate::Key;

/// Databases of the keys, in turn.
const DATABASES: [u8; NUMBERED as usize] = [0, 5, 15];
/// Lengths of the keys in bytes, in turn. [`EMPTY`] is an exception.
const LENGTHS: [usize; 4] = [8, 1, 41, 17];
/// Number of the empty name.
const EMPTY: u8 = 2;

/// A key of the store, for a key number. Keys of three databases have the same name, so that databases can be exchanged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyName {
    db: u8,
    bytes: Vec<u8>,
}

/// Returns the database of the store for a database of the explorers.
pub(super) fn database(number: u64) -> u8 {
    DATABASES[number as usize]
}

impl KeyName {
    /// Returns the key with the number `key`, which is below 256.
    pub(super) fn of(key: u64) -> KeyName {
        let name = u8::try_from(key / NUMBERED).expect("an explorer has few keys");
        let mut bytes = vec![name; LENGTHS[usize::from(name) % LENGTHS.len()]];
        if name == EMPTY {
            bytes.clear();
        }
        KeyName {
            db: database(key % NUMBERED),
            bytes,
        }
    }

    /// Returns the number of the key `bytes` in `db`.
    ///
    /// # Errors
    /// If no number has this key.
    pub(super) fn key_of(db: u8, bytes: Vec<u8>) -> Result<u64, Violation> {
        let name = u64::from(bytes.first().copied().unwrap_or(EMPTY));
        let number = DATABASES.iter().position(|known| *known == db);
        let key = number.map(|number| name * NUMBERED + number as u64);
        let found = KeyName { db, bytes };
        key.filter(|key| KeyName::of(*key) == found).ok_or_else(|| {
            Violation::new(format!(
                "the store has a key that was never written: {found:?}"
            ))
        })
    }

    /// Returns the databases of all keys.
    pub(super) fn databases() -> impl Iterator<Item = u8> {
        DATABASES.into_iter()
    }

    pub(super) fn as_key(&self) -> Key<'_> {
        Key {
            db: self.db,
            bytes: &self.bytes,
        }
    }
}

/// Returns the client flags that are stored with `value`. They are 0 for a third of the values, so that some records
/// have no attributes.
pub(super) fn flags_of(value: Value) -> u32 {
    match value.id % 3 {
        0 => 0,
        _ => (value.id as u32).wrapping_mul(0x9e37_79b9),
    }
}

/// Decodes a value from `bytes`.
///
/// # Errors
/// If the bytes are no value, or `flags` are not those of the value.
pub(super) fn decode(bytes: &[u8], flags: u32) -> Result<Value, Violation> {
    let value = Value::decode(bytes)?;
    match flags == flags_of(value) {
        true => Ok(value),
        false => Err(Violation::new(format!(
            "{value:?} has wrong flags: {flags:#x}"
        ))),
    }
}
