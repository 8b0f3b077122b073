//! Interface of a checked structure, which stores values by key.
//!
//! ```text
//!   Target  ── create, open ──▶  TargetSubject    one open structure on one simulated pool
//!     │                            │ apply         stages one operation of one session
//!   shape: its features            │ commit        ends its session's batch → Ticket
//!                                  │ durable       is the ticket durable?
//!                                  │ contents, check
//!                                  ▼ close         closes cleanly; a kill drops the subject
//! ```
//!
//! A [`Target`] creates and opens structures (its fields are their configuration). A [`TargetSubject`] is one open
//! structure. The explorer owns the [`Sim`] under the subject: it captures crashes, makes tickets durable and kills.
//!
//! # The contract
//! CHECK-TARGET-1  With [`TargetShape::batches`], an operation is staged when `apply` returns. It is pending until the ticket of
//!     its session's next `commit` is durable. An operation that is staged and never committed may be lost or kept.
//!     If its session is dropped, it has never happened, now or after a crash. Without `batches`, an operation is
//!     durable when `apply` returns.
//! CHECK-TARGET-2  [`OpAnswer::Refused`] means that nothing happened, now or after a crash.
//! CHECK-TARGET-3  `open` makes durable all data that it accepts before it returns. Opening a sound image never fails and never
//!     panics.
//! CHECK-TARGET-4  The structure is deterministic: the same calls write the same bytes. It uses no clock (the explorer sets the
//!     time) and no random identities.
//! CHECK-TARGET-5  Until `create` has returned, `open` may refuse with an error what a crash leaves. If it opens, the structure
//!     is empty and sound. It never panics.

use std::fmt;

use farbank_pm::fault::NamedFault;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, PoolImage, Sim};
use farbank_pm::situation::Situation;
use farbank_pm::{Off, Ticket};

use crate::Violation;

/// A stored value: its id and its length, which determine its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// Id, unique in a run: no two writes have the same.
    pub id: u64,
    /// Length in bytes, at least [`Value::BYTES_MIN`].
    pub bytes: u32,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}({} bytes)", self.id, self.bytes)
    }
}

impl Value {
    /// Length of the shortest value: the bytes of its id.
    pub const BYTES_MIN: u32 = 8;

    /// Returns the bytes to store: the id, then a pseudo-random sequence. No part of it resembles another value's.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        assert!(
            self.bytes >= Value::BYTES_MIN,
            "a value of {} bytes has no room for its id",
            self.bytes
        );
        let mut bytes = Vec::with_capacity(self.bytes as usize + 8);
        bytes.extend_from_slice(&self.id.to_le_bytes());
        let mut rng = Rng::new(self.id).fork(u64::from(self.bytes));
        while bytes.len() < self.bytes as usize {
            bytes.extend_from_slice(&rng.draw().to_le_bytes());
        }
        bytes.truncate(self.bytes as usize);
        bytes
    }

    /// Returns the value that has these bytes. Returns an error if a byte is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Value, Violation> {
        let Some(id) = bytes.first_chunk() else {
            return Err(Violation::new(format!(
                "found a value of {} bytes, shorter than any that was written",
                bytes.len()
            )));
        };
        let value = Value {
            id: u64::from_le_bytes(*id),
            bytes: bytes.len() as u32,
        };
        match value.encode().iter().zip(bytes).position(|(a, b)| a != b) {
            None => Ok(value),
            Some(at) => Err(Violation::new(format!(
                "the bytes of {value:?} are wrong from byte {at} on"
            ))),
        }
    }
}

/// A write of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyWrite {
    /// Store a value, whether the key is present or not.
    Put {
        /// The key.
        key: u64,
        /// The value.
        value: Value,
        /// Time of expiry, in milliseconds of the explorer's time; 0 means never.
        expires_ms: u64,
    },
    /// Delete the key, if present.
    Delete {
        /// The key.
        key: u64,
    },
}

impl KeyWrite {
    /// Returns the key that the write changes.
    #[must_use]
    pub fn key(&self) -> u64 {
        match *self {
            KeyWrite::Put { key, .. } | KeyWrite::Delete { key } => key,
        }
    }
}

/// Change that an update makes to the value it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Store this value, which does not expire.
    Put(Value),
    /// Delete the key.
    Delete,
    /// Write nothing. The answer still depends on the value found.
    Keep,
}

/// Writes that a read may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadView {
    /// Durable writes only. The reply is sent at once.
    Durable,
    /// Also the session's own pending writes, and pending writes that its updates were built on. The reply is
    /// withheld.
    Own,
}

/// One operation of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetOp {
    /// Write one key.
    Write(KeyWrite),
    /// Write several different keys, all or none. The answer may be [`OpAnswer::Saw`].
    Group(Vec<KeyWrite>),
    /// Read one key and change it, based on its newest value, durable or pending, of any session. The answer is
    /// [`OpAnswer::Found`] with the previous value.
    Update {
        /// The key.
        key: u64,
        /// The change. Without [`TargetShape::decides`] it is always [`Change::Put`].
        change: Change,
    },
    /// Read one key.
    Get {
        /// The key.
        key: u64,
        /// Writes that the read may see.
        view: ReadView,
    },
    /// Delete every key, all or none. Durable when it returns, together with all that this session staged.
    FlushAll,
    /// Exchange two databases, all keys or none: each key of one gets the state of its [`partner`] in the other. Durable when
    /// it returns, together with all that any session staged before.
    Swap {
        /// A database, below [`DATABASES`].
        first: u64,
        /// Another one.
        second: u64,
    },
}

impl TargetOp {
    /// Returns a [`TargetOp::Swap`] of two different databases.
    pub(crate) fn random_swap(rng: &mut Rng) -> TargetOp {
        let first = rng.below(DATABASES);
        let second = (first + 1 + rng.below(DATABASES - 1)) % DATABASES;
        TargetOp::Swap { first, second }
    }
}

/// Number of databases among which keys are divided: key k is the key k / 3 of database k % 3.
pub const DATABASES: u64 = 3;

/// Returns the key of the same name in the other one of two databases. `None` if `key` is in neither.
#[must_use]
pub fn partner(key: u64, first: u64, second: u64) -> Option<u64> {
    match key % DATABASES {
        db if db == first => Some(key - first + second),
        db if db == second => Some(key - second + first),
        _ => None,
    }
}

/// Answer of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpAnswer {
    /// The operation is staged (or, for [`TargetOp::FlushAll`] and [`TargetOp::Swap`], durable).
    Done,
    /// Value that a read or an update found.
    Found(Option<Value>),
    /// Whether the key of a [`KeyWrite::Delete`] was present. The delete is staged.
    Was(bool),
    /// Values of a group's keys before it wrote them, in the order of its writes. The group is staged.
    Saw(Vec<Option<Value>>),
    /// No space: nothing happened (CHECK-TARGET-2).
    Refused,
}

/// Keys that the threads of a schedule share.
pub const SHARED_KEYS: u64 = 3;

/// Features of a target, and suitable sizes.
#[derive(Clone, Debug)]
pub struct TargetShape {
    /// Bytes of a new pool.
    pub pool_bytes: u64,
    /// Keys in use: `1..=keys`.
    pub keys: u64,
    /// Length of the shortest and of the longest value, in bytes. If equal, every value has this length.
    pub value_bytes: (u32, u32),
    /// Length of the parts in which the structure stores a long value, in bytes. A drawn length near a multiple of it
    /// is rounded to the multiple. 0: values are not divided.
    pub part_bytes: u32,
    /// Sessions, numbered from 0. At least 1.
    pub sessions: usize,
    /// Whether operations are staged until a commit, instead of being durable when they return (CHECK-TARGET-1).
    pub batches: bool,
    /// Whether it supports [`KeyWrite::Delete`].
    pub deletes: bool,
    /// Whether it supports [`TargetOp::Group`].
    pub groups: bool,
    /// Whether it supports [`TargetOp::Update`].
    pub updates: bool,
    /// Whether it supports [`Change::Delete`] and [`Change::Keep`].
    pub decides: bool,
    /// Whether values may expire.
    pub expiry: bool,
    /// Whether it supports [`TargetOp::FlushAll`].
    pub flush_all: bool,
    /// Whether it supports [`TargetOp::Swap`]. It then reads all contents after each open.
    pub swaps: bool,
    /// Whether sessions may be dropped with staged operations ([`TargetSubject::abandon`]).
    pub abandons: bool,
    /// Whether [`TargetSubject::clean`] does something.
    pub cleans: bool,
    /// Whether the memory of a new pool holds old data instead of zeros. This reveals fields that a structure neither
    /// clears nor writes.
    pub used_before: bool,
    /// Whether an open defers repairs to the first access of each part. Some runs then continue after an open without
    /// reading the contents.
    pub repairs_on_access: bool,
    /// Number of keys that the threads of a schedule share under even seeds; under odd seeds it is [`SHARED_KEYS`].
    pub shared_keys: u64,
    /// Whether it is a cache: a key may be missing after the cache made room ([`TargetSubject::made_room`]) or while
    /// the key is being written. A value that is present is the newest.
    pub forgets: bool,
}

impl TargetShape {
    /// Returns the memory of a pool before its creation, in the run of a seed.
    #[must_use]
    pub fn image(&self, seed: u64) -> PoolImage {
        let mut image = PoolImage::zeroed(self.pool_bytes);
        if self.used_before {
            let mut before = Rng::new(seed);
            for at in (0..self.pool_bytes).step_by(8) {
                image.set_word(Off(at), before.draw() | 1);
            }
        }
        image
    }
}

impl Default for TargetShape {
    fn default() -> TargetShape {
        TargetShape {
            pool_bytes: 64 << 10,
            keys: 12,
            value_bytes: (8, 200),
            part_bytes: 0,
            sessions: 1,
            batches: false,
            deletes: true,
            groups: false,
            updates: false,
            decides: false,
            expiry: false,
            flush_all: false,
            swaps: false,
            abandons: false,
            cleans: false,
            used_before: false,
            repairs_on_access: false,
            shared_keys: SHARED_KEYS,
            forgets: false,
        }
    }
}

/// A kind of structure that can be checked.
pub trait Target: Sync {
    /// Returns its name in reports, such as `kv`.
    fn name(&self) -> &str;

    /// Returns whether `farbank check crash --target NAME` supports it, so that a violation can quote a command.
    fn has_command(&self) -> bool {
        false
    }

    /// Returns its named faults, which the explorer must detect when they are enabled.
    fn faults(&self) -> &'static [NamedFault] {
        &[]
    }

    /// Returns the situations that explorations must reach: [`mod@farbank_pm::situation`].
    fn situations(&self) -> Vec<Situation> {
        Vec::new()
    }

    /// Returns the faults that only concurrent threads can show, for [`crate::schedules`].
    fn faults_in_threads(&self) -> &'static [NamedFault] {
        &[]
    }

    /// Returns the persistency modes that it supports.
    fn modes(&self) -> &'static [Persistency] {
        &Persistency::ALL
    }

    /// Returns its features.
    fn shape(&self) -> TargetShape {
        TargetShape::default()
    }

    /// Returns its features with concurrent threads, with sizes suitable for a schedule of a dozen operations.
    fn shape_in_threads(&self) -> TargetShape {
        self.shape()
    }

    /// Returns the memory of a pool before its creation, in the run of a seed.
    fn before(&self, seed: u64) -> PoolImage {
        self.shape().image(seed)
    }

    /// Creates a new, empty structure on all of `sim`, durable when it returns (CHECK-TARGET-5). The memory is zero unless
    /// [`TargetShape::used_before`] is set. The default opens `sim`: zeros are an empty structure.
    fn create(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        self.open(sim, now_ms)
    }

    /// Opens the structure that a close, a kill or a power cut left in `sim`.
    fn open(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, Violation>;

    /// Opens the structure in `sim` for several concurrent threads.
    fn share(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn SharedTarget>, Violation> {
        let _ = (sim, now_ms);
        let why = format!("{} does not run in threads", self.name());
        Err(Violation::new(why))
    }
}

/// One open structure, used by several concurrent threads. An `Err` of any method is a violation.
pub trait SharedTarget: Send + Sync {
    /// Returns a new session for one thread.
    fn client(&self) -> Box<dyn TargetClient>;

    /// Does one step of background work, if any is due. The calling thread's client has nothing staged.
    fn clean(&self) -> Result<(), Violation> {
        Ok(())
    }

    /// Returns the structure for a single caller, after every client was dropped.
    fn into_subject(self: Box<Self>) -> Box<dyn TargetSubject>;
}

/// One session of a [`SharedTarget`]. The methods are those of a [`TargetSubject`]; they block inside on other
/// sessions where necessary.
pub trait TargetClient: Send {
    /// Runs `op`.
    fn apply(&mut self, op: &TargetOp) -> Result<OpAnswer, Violation>;

    /// Ends the batch: requests that all staged operations become durable.
    fn commit(&mut self) -> Result<Ticket, Violation>;

    /// Returns whether `ticket` is durable.
    fn durable(&mut self, ticket: Ticket) -> Result<bool, Violation>;
}

/// One open structure.
///
/// An `Err` of any method is a violation, except after the explorer made a drain fail.
pub trait TargetSubject {
    /// Runs `op` for `session`.
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, Violation>;

    /// Ends the session's batch: requests that all its staged operations become durable. By default nothing is ever
    /// staged.
    fn commit(&mut self, session: usize) -> Result<Ticket, Violation> {
        let _ = session;
        Ok(Ticket::DURABLE)
    }

    /// Returns whether `ticket` of `session` is durable. The operations that it covers may then be acknowledged, and
    /// are visible to every session.
    fn durable(&mut self, session: usize, ticket: Ticket) -> Result<bool, Violation> {
        let _ = session;
        Ok(ticket == Ticket::DURABLE)
    }

    /// Drops the session with its staged operations, and starts another with the same number. Returns whether it is
    /// certain that none of them has happened: a session may have committed early, to make room.
    fn abandon(&mut self, session: usize) -> Result<bool, Violation> {
        let why = format!("session {session} cannot be dropped");
        Err(Violation::new(why))
    }

    /// Returns all keys and values stored now, without expired values, in any order. Values are read with
    /// [`Value::decode`].
    fn contents(&mut self) -> Result<Vec<(u64, Value)>, Violation>;

    /// Checks the structure's own invariants: live + dead + free = pool, nothing leaked, counters correct.
    fn check(&mut self) -> Result<(), Violation> {
        Ok(())
    }

    /// Does one step of background work, if any is due.
    fn clean(&mut self) -> Result<(), Violation> {
        Ok(())
    }

    /// Returns whether it has evicted anything since it was created or opened.
    fn made_room(&self) -> bool {
        false
    }

    /// Sets the time to `now_ms`. It never goes backwards.
    fn set_time(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// Closes cleanly: all committed operations are durable, and the next open may be fast.
    fn close(self: Box<Self>) -> Result<(), Violation> {
        Ok(())
    }
}
