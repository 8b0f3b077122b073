//! Keys and values, and their limits.

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 << 20;
/// Number of databases. They are numbered from 0.
pub const DATABASES: usize = 16;
/// Mask of the bits of a kind that hold the value's type; type 0 is a string. The two bits above hold marks of
/// memcached's meta commands. A store keeps the marks unchanged; callers mask them out to get the type.
pub const KIND_TYPE: u8 = 0x3f;
/// Mark of a stale value: out of date, but still served.
pub const KIND_STALE: u8 = 0x80;
/// Mark of a value that one client has been chosen to replace (memcached's "win" flag).
pub const KIND_WON: u8 = 0x40;

/// A key in a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    /// Database, below [`DATABASES`].
    pub db: u8,
    /// The key: any bytes, at most [`KEY_BYTES_MAX`].
    pub bytes: &'a [u8],
}

/// A value to be stored, with its metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Value<'a> {
    /// The value: at most [`VALUE_BYTES_MAX`] bytes.
    pub bytes: &'a [u8],
    /// Expiry time in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// The client's 32-bit flags (as in memcached).
    pub flags: u32,
    /// Kind of the value: a type ([`KIND_TYPE`]) and marks. 0 is a string without marks.
    pub kind: u8,
}

/// Metadata of a stored value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueMeta {
    /// Length of the value in bytes.
    pub value_bytes: usize,
    /// Expiry time in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// The client's 32-bit flags.
    pub flags: u32,
    /// Kind of the value: type and marks.
    pub kind: u8,
    /// Version of the value. It changes with every write of the key. 0 only for values that a group has decided to
    /// write and not yet written.
    pub version: u64,
}

impl ValueMeta {
    /// Returns the value's type, without the marks of its kind.
    #[inline]
    #[must_use]
    pub fn type_of(&self) -> u8 {
        self.kind & KIND_TYPE
    }
}

/// A stored value, as [`Ops::update`](crate::Ops::update) passes it to its function.
#[derive(Clone, Copy, Debug)]
pub struct StoredItem<'a> {
    /// The value's bytes.
    pub bytes: &'a [u8],
    /// The value's metadata.
    pub meta: ValueMeta,
}
