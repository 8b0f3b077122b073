//! What the explorers' numbered keys are called in a store: names of several lengths, in several databases.

use farbank_check::target::Value;

use crate::store::Key;

/// Databases that keys lie in, by turns.
const DATABASES: [u8; 3] = [0, 5, 15];
/// Lengths of names in bytes, by turns. The key that has the empty name is [`EMPTY`].
const LENGTHS: [usize; 4] = [8, 1, 41, 17];
const EMPTY: u64 = 7;

/// The name of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyName {
    db: u8,
    bytes: Vec<u8>,
}

impl KeyName {
    /// The name of the explorers' key `key`, which is below 256.
    pub(crate) fn of(key: u64) -> KeyName {
        let first = u8::try_from(key).expect("an explorer has few keys");
        let mut bytes = vec![first; LENGTHS[key as usize % LENGTHS.len()]];
        if key == EMPTY {
            bytes.clear();
        }
        KeyName {
            db: DATABASES[key as usize % DATABASES.len()],
            bytes,
        }
    }

    /// The key that is called `bytes` in `db`; an error if none is.
    pub(crate) fn key_of(db: u8, bytes: Vec<u8>) -> Result<u64, String> {
        let key = bytes.first().map_or(EMPTY, |first| u64::from(*first));
        let found = KeyName { db, bytes };
        match KeyName::of(key) == found {
            true => Ok(key),
            false => Err(format!("a key that was never written: {found:?}")),
        }
    }

    /// The databases that names lie in.
    pub(crate) fn databases() -> impl Iterator<Item = u8> {
        DATABASES.into_iter()
    }

    pub(crate) fn as_key(&self) -> Key<'_> {
        Key {
            db: self.db,
            bytes: &self.bytes,
        }
    }
}

/// The client's 32 bits that are stored with `value`: most values have some, so that a record has the field or not.
pub(crate) fn flags_of(value: Value) -> u32 {
    match value.id % 3 {
        0 => 0,
        _ => (value.id as u32).wrapping_mul(0x9e37_79b9),
    }
}

/// The value that `bytes` are of, if its flags are `flags`.
pub(crate) fn decode(bytes: &[u8], flags: u32) -> Result<Value, String> {
    let value = Value::decode(bytes)?;
    match flags == flags_of(value) {
        true => Ok(value),
        false => Err(format!("{value:?} has the flags {flags:#x}")),
    }
}
