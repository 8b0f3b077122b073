//! What a front end sees: a [`Store`] hands out [`Session`]s, one a worker, and a session runs
//! operations ([`Ops`]) and commits them in batches.
//!
//! A batch is everything a session did since its last [`Session::commit`]. Its writes are not
//! visible to other sessions, and must not be acknowledged, before the ticket that `commit` returns
//! is durable ([`Session::durable`]). Its own reads see them on request ([`View::Pending`]); such a
//! reply must be withheld by the same ticket. A session that is dropped abandons what it has staged and not committed.
//! (It may have been committed already: a session commits early where it must, to make room in a full pool, before a
//! [`Session::scan`], and as [`Conflicts::Commit`] says.)
//!
//! # One key, two sessions
//! A staged write keeps its key: another session that writes the key waits until the first commits or is dropped.
//! [`Conflicts`] says what it does meanwhile, and when it answers with [`Error::Conflict`] instead.
//!
//! # Processes
//! A store belongs to the process that opened it. In a forked child every operation answers with [`Error::Poisoned`], and
//! dropping sessions and store does nothing there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farbank_pm::{Caps, FileTrouble, PersistCounters, Poisoned, Ticket};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 << 20;
/// Databases, numbered from 0.
pub const DATABASES: usize = 16;
/// How long a write waits for another session to commit or to be dropped, with [`Conflicts::Refuse`].
pub const CONFLICT_WAIT: Duration = Duration::from_secs(1);

/// The bits of a kind that are the value's type; 0 is a string. The two bits above are marks of
/// memcached's meta commands: a store keeps them like the rest, and who asks for a type masks them.
pub const KIND_TYPE: u8 = 0x3f;
/// The mark of a value that is out of date and still served.
pub const KIND_STALE: u8 = 0x80;
/// The mark of a value that one client was told to replace.
pub const KIND_WON: u8 = 0x40;

/// Names a value: a key in a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    /// Database, below [`DATABASES`].
    pub db: u8,
    /// Up to [`KEY_BYTES_MAX`] bytes, any bytes.
    pub bytes: &'a [u8],
}

/// A value to be stored, with what is kept beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Value<'a> {
    /// Up to [`VALUE_BYTES_MAX`] bytes.
    pub bytes: &'a [u8],
    /// When it expires, in milliseconds since 1970; 0 is never.
    pub expires_ms: u64,
    /// 32 bits that belong to the client (memcached's flags).
    pub flags: u32,
    /// What kind of value this is: a type ([`KIND_TYPE`]) and marks; 0 is a string without marks.
    pub kind: u8,
}

/// What is known about a stored value besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueMeta {
    /// Length of the value in bytes.
    pub value_bytes: usize,
    /// When it expires, in milliseconds since 1970; 0 is never.
    pub expires_ms: u64,
    /// The client's 32 bits.
    pub flags: u32,
    /// The kind of value.
    pub kind: u8,
    /// The version: changes with every write of the key. 0 only for a group's own, unwritten values.
    pub version: u64,
}

impl ValueMeta {
    /// The value's type, without the marks its kind may carry.
    #[inline]
    #[must_use]
    pub fn type_of(&self) -> u8 {
        self.kind & KIND_TYPE
    }
}

/// A stored value, as [`Ops::update`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct StoredItem<'a> {
    /// The value's bytes.
    pub bytes: &'a [u8],
    /// The rest.
    pub meta: ValueMeta,
}

/// What [`Ops::update`]'s function decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateDecision {
    /// Leave everything as it is. Nothing is written.
    Keep,
    /// Store this instead.
    Put {
        /// The new value.
        bytes: Vec<u8>,
        /// When it expires, in milliseconds since 1970; 0 is never.
        expires_ms: u64,
        /// The client's 32 bits.
        flags: u32,
        /// The kind of value.
        kind: u8,
    },
    /// Delete the key (nothing happens if it is absent).
    Delete,
}

/// Which writes a read may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadView {
    /// Only what is durable: the reply may leave at once.
    Durable,
    /// This session's own writes too: the reply must wait for [`Session::commit`]'s ticket.
    Pending,
}

/// Why a read finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absence {
    /// There is no such item, or none that is shown.
    Missing,
    /// There is one whose time has passed.
    Expired,
    /// There is one from before everything was removed.
    Flushed,
}

/// Why an operation did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The medium failed; see [`Poisoned`].
    Poisoned(Poisoned),
    /// The pool has no room for this write. Deletes are still taken.
    Full,
    /// The pool has no room for this write, and could not grow: why. Deletes are still taken.
    CannotGrow(Arc<str>),
    /// The key is too long for this store.
    KeyTooLong {
        /// Bytes it has.
        bytes: usize,
        /// Bytes it may have: [`KEY_BYTES_MAX`], less in a pool of small segments.
        bytes_max: usize,
    },
    /// The value is too long for this store.
    ValueTooLong {
        /// Bytes it has.
        bytes: usize,
        /// Bytes it may have: [`VALUE_BYTES_MAX`], less in a pool of small segments and in a group.
        bytes_max: usize,
    },
    /// A group writes more than one record can hold.
    GroupTooLong {
        /// Bytes of its records.
        bytes: usize,
        /// Bytes they may have.
        bytes_max: usize,
    },
    /// There is no such database: they are numbered below [`DATABASES`].
    NoDatabase {
        /// The database.
        db: u8,
    },
    /// The body of a group has touched a key that was not named when the group began.
    NotInGroup,
    /// Another session has staged a write of the key and not committed it, and waiting for that cannot end or has taken
    /// too long; see [`Conflicts`]. Nothing happened.
    Conflict,
    /// The store cannot be closed while so many sessions are alive.
    SessionsAlive {
        /// How many.
        sessions: usize,
    },
    /// The store was closed, and all that was acknowledged is durable; but its pool has no room for the index
    /// snapshot: the next open reads the log, as after a kill.
    NoSnapshot {
        /// Free segments that the snapshot takes.
        needed: u32,
        /// Free segments there are.
        free: u32,
    },
    /// An item of so many bytes, key and overhead included, does not fit the cache's largest slot.
    ItemTooLarge {
        /// Bytes it takes.
        bytes: usize,
        /// Bytes there are for one.
        bytes_max: usize,
    },
    /// The item is locked: it takes no writes until it is unlocked.
    Locked,
    /// The cache has no such area.
    NoArea {
        /// The area.
        area: u16,
        /// How many there are, from 0 on.
        areas: u32,
    },
    /// The record that holds the key's value fails its checksum: offset of the record.
    Damaged(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Poisoned(p) => p.fmt(f),
            Error::Full => f.write_str(
                "the pool has no room for this write: delete something, or make it larger",
            ),
            Error::CannotGrow(why) => write!(
                f,
                "the pool is full and cannot grow: {why}; delete something, or make room there"
            ),
            Error::KeyTooLong { bytes, bytes_max } => write!(
                f,
                "the key has {bytes} bytes, at most {bytes_max} are taken{}",
                small_segments(*bytes_max, KEY_BYTES_MAX)
            ),
            Error::ValueTooLong { bytes, bytes_max } => write!(
                f,
                "the value has {bytes} bytes, at most {bytes_max} are taken{}",
                small_segments(*bytes_max, VALUE_BYTES_MAX)
            ),
            Error::GroupTooLong { bytes, bytes_max } => write!(
                f,
                "the group writes {bytes} bytes, at most {bytes_max} are taken at once: use several groups, or a \
                 pool with larger segments"
            ),
            Error::NoDatabase { db } => {
                write!(f, "there is no database {db}: they are numbered from 0 to {}", DATABASES - 1)
            }
            Error::NotInGroup => {
                f.write_str("the group's body touched a key that the group does not name: name it")
            }
            Error::Conflict => f.write_str(
                "another session has staged a write of this key and not committed it: commit or drop that session \
                 first, and commit what this one has staged",
            ),
            Error::SessionsAlive { sessions } => write!(
                f,
                "the store was not closed cleanly: {sessions} of its sessions are alive; drop them first"
            ),
            Error::NoSnapshot { needed, free } => write!(
                f,
                "the store was closed and loses nothing, but its index snapshot takes {needed} free segments and the \
                 pool has {free}: the next start reads the log and takes longer; delete something, or make the pool \
                 larger"
            ),
            Error::ItemTooLarge { bytes, bytes_max } => write!(
                f,
                "an item of {bytes} bytes does not fit the cache's largest slot of {bytes_max}: store less, or make \
                 the pool with larger pages"
            ),
            Error::NoArea { area, areas } => write!(
                f,
                "there is no area {area}: a pool with pages of this size has {areas}, from 0 on"
            ),
            Error::Locked => f.write_str("the item is locked: unlock it first"),
            Error::Damaged(at) => write!(
                f,
                "the record at offset {at:#x} is damaged (checksum); its bytes are kept; \
                 overwrite or delete the key to go on"
            ),
        }
    }
}

impl Error {
    /// Whether the pool has no room for the write.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full | Error::CannotGrow(_))
    }
}

impl std::error::Error for Error {}

/// Why a limit is below the one of every store.
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

/// Called with what is known of a value before its bytes are appended, to write a frame header. Returns
/// whether the bytes are wanted; if not, none is copied.
pub type BeforeValue<'a> = &'a mut dyn FnMut(&ValueMeta, &mut Vec<u8>) -> bool;

/// What a caller of [`Session::get_many_into`] wants after it has seen what is known of a key's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetStep {
    /// The value's bytes, if the key has a value, then the next key.
    Value,
    /// The next key.
    NextKey,
    /// Nothing: no further key is read.
    Nothing,
}

/// As [`Head`], for each of several keys, with `None` for a key that is absent.
pub type BeforeValues<'a> = &'a mut dyn FnMut(Option<&ValueMeta>, &mut Vec<u8>) -> GetStep;

/// Operations on single keys. A key whose expiry has passed is absent to all of them.
pub trait Ops {
    /// Appends the value of `key` to `out`, after `head` has run on `out`. `Ok(false)`: absent, and
    /// `head` was not called. If `head` returns `false`, the value is not appended and the answer is
    /// `Ok(true)`. On `Err`, `out` is as it was.
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error>;

    /// What is known about `key`, without its bytes.
    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error>;

    /// Stores `value`, whatever was there. Returns the new version (in a group: 0, it is not known yet).
    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error>;

    /// Deletes `key`. Returns whether it was there.
    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error>;

    /// Reads, decides and writes `key` atomically, on top of the newest value, durable or pending.
    /// `decide` may be called again if another session was faster; the last call counts. Returns the
    /// version the key has now (0: absent).
    ///
    /// A damaged record is an error here; `put` and `delete` replace it.
    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error>;

    /// Now, in milliseconds since 1970, as this store's expiries see it. It goes backwards only when the machine's clock has
    /// been behind it for a minute ([`crate::clock`]).
    fn now_ms(&self) -> u64;
}

/// What [`Session::group`]'s function decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupDecision {
    /// Write the group, all of it or nothing.
    Apply,
    /// Write nothing.
    Abandon,
}

/// What [`Session::prepare`] answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoomReply {
    /// The write can be made now; it will be executed or refused without waiting.
    Ready,
    /// Room is being made. Ask again when the store's waker was called ([`Store::on_turn`]).
    Wait,
}

/// What a session does when it is to write a key of which another session has staged a write and not committed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConflictPolicy {
    /// With nothing staged itself it sleeps until the other session commits or is dropped, for [`CONFLICT_WAIT`] at
    /// most. With something staged it answers with [`Error::Conflict`] at once: each could wait for the other.
    #[default]
    Refuse,
    /// It commits what it has staged, so that no session waits for this one, and sleeps until the other session commits
    /// or is dropped. For sessions that all commit soon, as a server's do.
    ///
    /// In both cases the answer is [`Error::Conflict`] at once where the other session's write was staged by the thread
    /// that asks: it cannot commit while it waits.
    Commit,
}

/// One worker's door to a store. Used by one thread at a time. Dropping it abandons what it has staged and not committed.
pub trait Session: Ops + Send {
    /// Sets what writes do about keys that other sessions have staged writes of.
    fn on_conflict(&mut self, conflicts: ConflictPolicy);

    /// [`Ops::put`], then [`Session::commit`]: a batch of one, with what the session has staged before.
    /// Returns the new version and the ticket. Where a drain is a fence, a write that is a batch by
    /// itself takes a shorter way than the two calls.
    fn put_durable(&mut self, key: Key<'_>, value: Value<'_>) -> Result<(u64, Ticket), Error> {
        let version = self.put(key, value)?;
        Ok((version, self.commit()?))
    }

    /// Reads several keys at one moment: no write is seen for one and missed for another. `each` is
    /// called in order with a key's position and its value, only when all of them are known.
    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error>;

    /// As [`Session::get_many`], but appends each value to `out` after `head` has run on `out`, so that no
    /// second copy of the values is made. On `Err`, `out` is as it was.
    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error>;

    /// Runs `body` isolated from other writers of `keys`; what it writes becomes visible and durable
    /// whole or not at all. `body` may touch only `keys` (others are [`Error::NotInGroup`]), and may be called again from the
    /// start. When it answers with an error, or panics, nothing of the group is staged; the panic goes on in the caller.
    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error>;

    /// Hints that operations on `keys` follow soon: what they will need is fetched for all of them
    /// at once; for `reads`, values too. Changes nothing.
    fn prefetch(&mut self, keys: &[Key<'_>], reads: bool) {
        let _ = (keys, reads);
    }

    /// Why a read of `key` finds nothing, as far as is known: what expired or was flushed is forgotten once it is
    /// removed.
    fn absence(&mut self, key: Key<'_>) -> Absence {
        let _ = key;
        Absence::Missing
    }

    /// Visits about `count` keys of `db` in hash order from `cursor` (0: the start); returns the next
    /// cursor, 0 at the end. A key that is there all the while is visited at least once, across
    /// restarts too. Commits first, and waits, so that this session's own writes are seen.
    fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error>;

    /// Keys in `db`, those expired but not yet removed included. Commits first, and waits.
    fn len(&mut self, db: u8) -> Result<u64, Error>;

    /// Removes every key of every database; durable on `Ok`. Commits first.
    fn flush_all(&mut self) -> Result<(), Error>;

    /// Ends the batch: asks that it become durable. [`Ticket::DURABLE`] if it wrote nothing, or is
    /// durable already.
    fn commit(&mut self) -> Result<Ticket, Error>;

    /// Says whether a write of about `bytes`, key and value together, can be made without waiting for room, and
    /// asks for room if not; `delete`: it writes nothing but deletes. From the first call on, writes of this session
    /// answer [`Error::Full`] where they would otherwise wait until room was made: a front end whose worker serves
    /// many clients calls this before each write and has only this client wait.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if what the session had staged could not be committed.
    fn prepare(&mut self, bytes: usize, delete: bool) -> Result<RoomReply, Error> {
        let _ = (bytes, delete);
        Ok(RoomReply::Ready)
    }

    /// Lets go of what reads hold. What a session has read since its last commit stays where it is, so that the room of
    /// it cannot be used again: one that has read, and will not be used for a while, rests, or commits. What is staged
    /// stays staged, and holds on.
    fn rest(&mut self) {}

    /// Whether `ticket` is durable and what it covers visible to everyone.
    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned>;

    /// Waits until `ticket` is durable.
    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned>;
}

/// Figures for INFO and the status page. All since the pool was opened unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Keys in each database now.
    pub keys: [u64; DATABASES],
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments of the pool.
    pub segments: u32,
    /// Segments that are free now.
    pub segments_free: u32,
    /// Bytes of live records now: keys, values of any size, and what is kept beside them.
    pub live_bytes: u64,
    /// Bytes of tombstones now.
    pub tombstone_bytes: u64,
    /// Live bytes the pool can hold before it refuses writes.
    pub capacity_bytes: u64,
    /// Bytes of records appended for users.
    pub user_bytes: u64,
    /// Writes that a later one of the same key and batch took the place of, before any reached far memory; 0 in a store
    /// that keeps each.
    pub merged_writes: u64,
    /// Bytes of records the cleaner moved.
    pub moved_bytes: u64,
    /// Segments the cleaner emptied.
    pub segments_cleaned: u64,
    /// Bytes of DRAM the index takes.
    pub index_bytes: u64,
    /// Bytes of DRAM that say where live records and tombstones are in the pool: two bits for each 32 bytes of it.
    /// They become resident as the pool is written.
    pub live_map_bytes: u64,
    /// Segment maps written since the open.
    pub segment_maps_written: u64,
    /// Bytes of DRAM the read cache takes when it is full.
    pub read_cache_bytes: u64,
    /// Gets of one key that the read cache answered.
    pub read_cache_hits: u64,
    /// Gets of one key that it was asked for and did not answer.
    pub read_cache_misses: u64,
    /// Keys found expired and removed.
    pub expired_keys: u64,
    /// Live keys removed to make room; a store that refuses writes when it is full evicts none.
    pub evictions: u64,
    /// Times an expired key's room was taken for another at once.
    pub reclaimed: u64,
    /// Slab classes that have pages, smallest slots first; none in a store without slabs.
    pub classes: Vec<SlabClass>,
    /// Records quarantined: found damaged at open, or since.
    pub damaged_records: u64,
    /// What was asked of the medium by all sessions.
    pub counters: PersistCounters,
}

/// A slab class: slots of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlabClass {
    /// Its number, from 1.
    pub id: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots of a page.
    pub slots_per_page: u64,
    /// Pages it has now.
    pub pages: u64,
    /// Slots with an item in them now.
    pub slots_used: u64,
    /// Slots without one.
    pub slots_free: u64,
    /// Items now.
    pub items: u64,
    /// Bytes of those items: keys, values and what is kept beside them.
    pub item_bytes: u64,
    /// Seconds since the item next to be evicted was last used.
    pub age_secs: u64,
    /// Live items evicted.
    pub evicted: u64,
    /// Of those, how many had an expiry.
    pub evicted_nonzero: u64,
    /// Seconds since the item evicted last had been used.
    pub evicted_time: u64,
    /// Writes refused because nothing could be evicted.
    pub out_of_memory: u64,
    /// Times an expired item's slot was taken for another.
    pub reclaimed: u64,
}

/// How a pool came back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenReport {
    /// Whether the last close was clean and its index snapshot was used.
    pub clean: bool,
    /// Live keys.
    pub keys: u64,
    /// Records read by the scan (0 after a clean close).
    pub records_scanned: u64,
    /// Segments of which the scan read only what their maps mark.
    pub segments_mapped: u64,
    /// What took how long, and what was found wrong: lines for people, empty when all is well.
    pub damage: Vec<String>,
    /// Milliseconds the open took.
    pub elapsed_ms: f64,
}

/// What is wrong with a store that is open. All is well by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Why nothing is acknowledged any more.
    pub poisoned: Option<Poisoned>,
    /// What has happened to the pool's file.
    pub file: Option<FileTrouble>,
    /// Why the pool could not grow when it last had to.
    pub growth_error: Option<Arc<str>>,
}

impl StoreHealth {
    /// One word for monitoring, the worst first: `ok`, or `lease-lost`, `truncated`, `removed`, `replaced`,
    /// `unreadable`, `poisoned`, `moved`, `cannot-grow`.
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
    /// A door for one more worker.
    fn session(&self) -> Box<dyn Session>;
    /// What the medium promises.
    fn caps(&self) -> &Caps;
    /// Figures, now.
    fn stats(&self) -> Stats;
    /// Bytes of the pool, now.
    fn pool_bytes(&self) -> u64 {
        self.stats().pool_bytes
    }
    /// How the pool came back when it was opened.
    fn opened(&self) -> &OpenReport;
    /// What is wrong with it, now. Cheap: nothing is looked up for it.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
    /// Whether it is a cache: what was used least lately goes when it is full.
    fn evicts(&self) -> bool {
        false
    }
    /// Bytes of the largest item it keeps, or about that: what is near may be refused.
    fn item_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }
    /// Has `wake` called, from any thread, when withheld tickets may have turned.
    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>);
    /// Closes cleanly: everything committed is durable and an index snapshot is left, so that the
    /// next open is quick.
    ///
    /// # Errors
    /// [`Error::SessionsAlive`] if sessions are left. Nothing is lost then: what they have acknowledged and still
    /// acknowledge is found by the next open, which reads the log as after a kill. [`Error::NoSnapshot`] if the pool is
    /// so full that the snapshot does not fit, also after cleaning: the store is closed and everything is durable.
    fn close(self: Box<Self>) -> Result<(), Error>;
}
