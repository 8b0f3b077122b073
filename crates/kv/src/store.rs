//! The interface between a server and a store: a [`Store`] creates one [`Session`] for each worker, and a session
//! runs operations ([`Ops`]) and commits them in batches.
//!
//! A batch is everything a session did since its last [`Session::commit`]. `commit` returns a ticket. Until that
//! ticket is durable ([`Session::durable`]), the writes of the batch are not visible to other sessions and must not
//! be acknowledged. The session's own reads see them with [`ReadView::Pending`]; replies to such reads must wait for
//! the same ticket. Dropping a session abandons the writes that it has staged and not committed.
//!
//! A session sometimes commits before its caller does: to make room in a full pool, before a [`Session::scan`], and
//! on a conflict with [`ConflictPolicy::Commit`].
//!
//! # Two sessions, one key
//! A staged write reserves its key: another session that writes the key waits until the first session commits or is
//! dropped. [`ConflictPolicy`] says how it waits, and when it fails with [`Error::Conflict`] instead.
//!
//! # Processes
//! A store belongs to the process that opened it. In a forked child every operation fails with [`Error::Poisoned`],
//! and dropping sessions and the store has no effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farbank_pm::{Caps, FileTrouble, PersistCounters, Poisoned, Ticket};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 << 20;
/// Number of databases. They are numbered from 0.
pub const DATABASES: usize = 16;
/// Longest time that a write waits for another session with [`ConflictPolicy::Refuse`].
pub const CONFLICT_WAIT: Duration = Duration::from_secs(1);

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

/// A stored value, as [`Ops::update`] passes it to its function.
#[derive(Clone, Copy, Debug)]
pub struct StoredItem<'a> {
    /// The value's bytes.
    pub bytes: &'a [u8],
    /// The value's metadata.
    pub meta: ValueMeta,
}

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

/// Reason why an operation failed. A failed operation has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The medium failed; see [`Poisoned`].
    Poisoned(Poisoned),
    /// The pool has no room for this write. Deletes still succeed.
    Full,
    /// The pool has no room for this write and could not grow, for the reason given. Deletes still succeed.
    CannotGrow(Arc<str>),
    /// The key is too long for this store.
    KeyTooLong {
        /// Length of the key in bytes.
        bytes: usize,
        /// Largest length in bytes: [`KEY_BYTES_MAX`], or less in a pool with small segments.
        bytes_max: usize,
    },
    /// The value is too long for this store.
    ValueTooLong {
        /// Length of the value in bytes.
        bytes: usize,
        /// Largest length in bytes: [`VALUE_BYTES_MAX`], or less in a pool with small segments and in a group.
        bytes_max: usize,
    },
    /// The writes of a group do not fit into one record.
    GroupTooLong {
        /// Bytes of the group's records.
        bytes: usize,
        /// Largest number of bytes.
        bytes_max: usize,
    },
    /// The database does not exist: databases are numbered below [`DATABASES`].
    NoDatabase {
        /// The database's number.
        db: u8,
    },
    /// The body of a group used a key that is not among the group's keys.
    NotInGroup,
    /// Another session has staged a write of the key and not committed it, and waiting for that session would
    /// deadlock or has taken too long; see [`ConflictPolicy`].
    Conflict,
    /// The store cannot be closed while sessions exist.
    SessionsAlive {
        /// Number of sessions.
        sessions: usize,
    },
    /// The store was closed and every acknowledged write is durable, but the pool has no room for the index snapshot.
    /// The next open scans the log, as after a kill.
    NoSnapshot {
        /// Free segments that the snapshot needs.
        needed: u32,
        /// Free segments in the pool.
        free: u32,
    },
    /// An item does not fit into the cache's largest slot.
    ItemTooLarge {
        /// Bytes of the item, key and overhead included.
        bytes: usize,
        /// Bytes of the largest slot.
        bytes_max: usize,
    },
    /// The item is locked: writes fail until it is unlocked.
    Locked,
    /// The cache has no area of this number.
    NoArea {
        /// The area's number.
        area: u16,
        /// Number of areas. They are numbered from 0.
        areas: u32,
    },
    /// The record that holds the key's value fails its checksum. The number is the record's offset.
    Damaged(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Poisoned(p) => p.fmt(f),
            Error::Full => f.write_str(
                "the pool has no room for this write: delete keys, or make the pool larger",
            ),
            Error::CannotGrow(why) => write!(
                f,
                "the pool is full and cannot grow: {why}; delete keys, or free space on its file system"
            ),
            Error::KeyTooLong { bytes, bytes_max } => write!(
                f,
                "the key has {bytes} bytes; the limit is {bytes_max}{}",
                small_segments(*bytes_max, KEY_BYTES_MAX)
            ),
            Error::ValueTooLong { bytes, bytes_max } => write!(
                f,
                "the value has {bytes} bytes; the limit is {bytes_max}{}",
                small_segments(*bytes_max, VALUE_BYTES_MAX)
            ),
            Error::GroupTooLong { bytes, bytes_max } => write!(
                f,
                "the group writes {bytes} bytes; the limit for one group is {bytes_max}: use several groups, or a \
                 pool with larger segments"
            ),
            Error::NoDatabase { db } => {
                write!(f, "there is no database {db}: the databases are 0 to {}", DATABASES - 1)
            }
            Error::NotInGroup => {
                f.write_str("the group's body used a key that is not in the group: name it")
            }
            Error::Conflict => f.write_str(
                "another session has staged a write of this key and not committed it: commit or drop that session, \
                 commit the staged writes of this session, and retry",
            ),
            Error::SessionsAlive { sessions } => write!(
                f,
                "the store was not closed cleanly: {sessions} of its sessions still exist; drop them first"
            ),
            Error::NoSnapshot { needed, free } => write!(
                f,
                "the store was closed and every write is durable, but its index snapshot needs {needed} free segments \
                 and the pool has {free}: the next open scans the log and takes longer; delete keys, or make the pool \
                 larger"
            ),
            Error::ItemTooLarge { bytes, bytes_max } => write!(
                f,
                "an item of {bytes} bytes does not fit the cache's largest slot of {bytes_max} bytes: store a smaller \
                 item, or create the pool with larger pages"
            ),
            Error::NoArea { area, areas } => write!(
                f,
                "there is no area {area}: a pool with pages of this size has {areas} areas, numbered from 0"
            ),
            Error::Locked => f.write_str("the item is locked: unlock it first"),
            Error::Damaged(at) => write!(
                f,
                "the record at offset {at:#x} is damaged: it fails its checksum; its bytes are kept; \
                 overwrite or delete the key"
            ),
        }
    }
}

impl Error {
    /// Returns whether the operation failed because the pool has no room for the write.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full | Error::CannotGrow(_))
    }
}

impl std::error::Error for Error {}

/// Returns the end of an error message: why a limit is below the general one.
fn small_segments(bytes_max: usize, most: usize) -> &'static str {
    match bytes_max < most {
        true => " in a pool with segments of this size, or in a group",
        false => "",
    }
}

impl From<Poisoned> for Error {
    fn from(p: Poisoned) -> Error {
        Error::Poisoned(p)
    }
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
    /// The cleaner is making room. Call `prepare` again after the function registered with [`Store::on_turn`] was
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
    /// the end. A key that exists during the whole scan is visited at least once, across restarts too. Commits and
    /// waits first, so that this session's own writes are seen.
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

    /// Releases the session's read pin. Until its next commit, a session keeps the memory that it has read from being
    /// reused. A session that has read and then stays idle should call this or [`Session::commit`]. If writes are
    /// staged or not durable yet, this has no effect.
    fn rest(&mut self) {}

    /// Returns whether `ticket` is durable and the writes that it covers are visible to every session.
    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned>;

    /// Waits until `ticket` is durable.
    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned>;
}

/// Figures for INFO and the status page, counted since the pool was opened unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Keys in each database now.
    pub keys: [u64; DATABASES],
    /// Size of the pool in bytes.
    pub pool_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments in the pool.
    pub segments: u32,
    /// Number of free segments now.
    pub segments_free: u32,
    /// Bytes of live records now: keys, values of any size, and their headers.
    pub live_bytes: u64,
    /// Bytes of live tombstones now.
    pub tombstone_bytes: u64,
    /// Live bytes the pool can hold before it refuses writes.
    pub capacity_bytes: u64,
    /// Bytes of records appended by clients' writes.
    pub user_bytes: u64,
    /// Writes that were replaced by a later write of the same key in the same batch before they reached far memory. 0
    /// in a store that writes every one.
    pub merged_writes: u64,
    /// Bytes of records that the cleaner relocated.
    pub moved_bytes: u64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Bytes of DRAM used by the index.
    pub index_bytes: u64,
    /// Bytes of DRAM for the maps of live records and of tombstones: two bits for each 32 bytes of the pool. They
    /// become resident as the pool is written.
    pub live_map_bytes: u64,
    /// Segment maps written.
    pub segment_maps_written: u64,
    /// Bytes of DRAM that the read cache uses when it is full.
    pub read_cache_bytes: u64,
    /// Single-key gets answered by the read cache.
    pub read_cache_hits: u64,
    /// Single-key gets that looked into the read cache and missed.
    pub read_cache_misses: u64,
    /// Keys found expired and removed.
    pub expired_keys: u64,
    /// Live keys evicted to make room. 0 in a store that refuses writes when it is full.
    pub evictions: u64,
    /// Expired items whose room was reused at once for another item.
    pub reclaimed: u64,
    /// Slab classes that have pages, smallest slots first. Empty in a store without slabs.
    pub classes: Vec<SlabClass>,
    /// Records found damaged, at open or later.
    pub damaged_records: u64,
    /// Persistence operations issued to the medium by all sessions.
    pub counters: PersistCounters,
}

/// Figures of a slab class: slots of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlabClass {
    /// Number of the class, from 1.
    pub id: u32,
    /// Size of a slot in bytes.
    pub slot_bytes: u64,
    /// Slots in a page.
    pub slots_per_page: u64,
    /// Pages of the class now.
    pub pages: u64,
    /// Slots that hold an item now.
    pub slots_used: u64,
    /// Free slots now.
    pub slots_free: u64,
    /// Items in the class now.
    pub items: u64,
    /// Bytes of these items: keys, values and headers.
    pub item_bytes: u64,
    /// Seconds since the last use of the item that would be evicted next.
    pub age_secs: u64,
    /// Live items evicted.
    pub evicted: u64,
    /// Evicted live items that had an expiry.
    pub evicted_nonzero: u64,
    /// Seconds between the last use and the eviction of the item evicted last.
    pub evicted_time: u64,
    /// Writes refused because no item could be evicted.
    pub out_of_memory: u64,
    /// Expired items whose slot was reused for another item.
    pub reclaimed: u64,
}

/// Report of an open: what it found in the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenReport {
    /// Whether the last close was clean and its index snapshot was used.
    pub clean: bool,
    /// Number of live keys.
    pub keys: u64,
    /// Records read by the scan (0 after a clean close).
    pub records_scanned: u64,
    /// Segments of which the scan read only the records marked in their segment maps.
    pub segments_mapped: u64,
    /// Messages for people: durations, and any damage found. Empty when nothing needs attention.
    pub damage: Vec<String>,
    /// Duration of the open in milliseconds.
    pub elapsed_ms: f64,
}

/// Problems of an open store. The default is a healthy store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Error after which the store acknowledges nothing more.
    pub poisoned: Option<Poisoned>,
    /// Problem with the pool's file.
    pub file: Option<FileTrouble>,
    /// Error of the last attempt to grow the pool, if it failed.
    pub growth_error: Option<Arc<str>>,
}

impl StoreHealth {
    /// Returns one word for monitoring, for the worst problem: `ok`, or `lease-lost`, `truncated`, `removed`,
    /// `replaced`, `unreadable`, `poisoned`, `moved`, `cannot-grow`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            StoreHealth {
                file: Some(file), ..
            } if file.what != "moved" => file.what,
            StoreHealth {
                poisoned: Some(_), ..
            } => "poisoned",
            StoreHealth {
                file: Some(file), ..
            } => file.what,
            StoreHealth {
                growth_error: Some(_),
                ..
            } => "cannot-grow",
            _ => "ok",
        }
    }
}

/// A durable store, shared by threads.
pub trait Store: Send + Sync {
    /// Creates a session for one more worker.
    fn session(&self) -> Box<dyn Session>;
    /// Returns the persistence guarantees of the medium.
    fn caps(&self) -> &Caps;
    /// Returns the current figures.
    fn stats(&self) -> Stats;
    /// Returns the current size of the pool in bytes.
    fn pool_bytes(&self) -> u64 {
        self.stats().pool_bytes
    }
    /// Returns the report of the open.
    fn opened(&self) -> &OpenReport;
    /// Returns the store's current problems. Cheap: it reads only flags.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
    /// Returns whether the store is a cache that evicts the least recently used items when it is full.
    fn evicts(&self) -> bool {
        false
    }
    /// Returns the approximate size in bytes of the largest item that the store accepts. Slightly smaller items may
    /// be refused.
    fn item_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }
    /// Registers `wake`, called from any thread when tickets may have become durable or room may have been made.
    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>);
    /// Closes the store cleanly: everything committed is durable, and an index snapshot makes the next open fast.
    ///
    /// # Errors
    /// [`Error::SessionsAlive`] if sessions exist. Nothing is lost: the next open scans the log, as after a kill, and
    /// finds all that these sessions have acknowledged and still acknowledge.
    ///
    /// [`Error::NoSnapshot`] if the snapshot does not fit into the pool even after cleaning. The store is closed and
    /// everything is durable.
    fn close(self: Box<Self>) -> Result<(), Error>;
}
