//! What is checked: a structure that stores values by key, seen through a few words.
//!
//! ```text
//!   Target  ── create, open ──▶  Subject          one open structure on one simulated pool
//!     │                            │ apply         one operation of one session: staged
//!   shape: what it can do          │ commit        its session's batch → Ticket
//!                                  │ durable       has the ticket turned?
//!                                  │ contents, check
//!                                  ▼ close         clean; a kill is to drop it
//! ```
//!
//! A [`Target`] is the recipe (a configuration is its own fields), a [`Subject`] one open structure.
//! The explorer owns the [`Sim`] beside the subject: it captures crashes, turns tickets and kills.
//!
//! # The contract
//! T1  With [`Shape::batches`], an operation is staged when `apply` returns and pending until its
//!     session's next `commit`'s ticket is durable; what is staged and never committed may be lost or
//!     kept, unless its session is dropped: then it never happened, now or after a crash. Without, it is durable when `apply` returns.
//! T2  [`Answer::Refused`] means that nothing happened, now or after a crash.
//! T3  `open` makes durable whatever it accepts before it returns. Opening a sound image never fails
//!     and never panics.
//! T4  All is deterministic: the same calls make the same bytes. No clock (the explorer sets the
//!     time), no random identities.
//! T5  Until `create` has returned, what a crash leaves of it may be refused with an error; or it
//!     opens, and then it is empty and sound. It never panics.

use std::fmt;

use farbank_pm::fault::NamedFault;
use farbank_pm::sim::{Persistency, PoolImage, Rng, Sim};
use farbank_pm::situation::Situation;
use farbank_pm::{Off, Ticket};

/// A stored value: who it is, and how many bytes it has. Its bytes follow from both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// Unique in a run: no two writes write the same.
    pub id: u64,
    /// Bytes, at least [`Value::BYTES_MIN`].
    pub bytes: u32,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}({} bytes)", self.id, self.bytes)
    }
}

impl Value {
    /// The shortest value that can say who it is.
    pub const BYTES_MIN: u32 = 8;

    /// The bytes to store: its id, then a sequence of which no stretch resembles another value's.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        assert!(
            self.bytes >= Value::BYTES_MIN,
            "a value of {} bytes has no room",
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

    /// Whose bytes these are; an error if one of them is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Value, String> {
        let Some(id) = bytes.first_chunk() else {
            return Err(format!(
                "a value of {} bytes, none was that short",
                bytes.len()
            ));
        };
        let value = Value {
            id: u64::from_le_bytes(*id),
            bytes: bytes.len() as u32,
        };
        match value.encode().iter().zip(bytes).position(|(a, b)| a != b) {
            None => Ok(value),
            Some(at) => Err(format!(
                "the bytes of {value:?} are wrong from byte {at} on"
            )),
        }
    }
}

/// A write of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyWrite {
    /// Store a value, whatever was there.
    Put {
        /// The key.
        key: u64,
        /// The value.
        value: Value,
        /// When it expires, in milliseconds of the explorer's time; 0 is never.
        expires_ms: u64,
    },
    /// Delete the key, if it is there.
    Delete {
        /// The key.
        key: u64,
    },
}

impl KeyWrite {
    /// The key it writes.
    #[must_use]
    pub fn key(&self) -> u64 {
        match *self {
            KeyWrite::Put { key, .. } | KeyWrite::Delete { key } => key,
        }
    }
}

/// What an update does with the value that it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Store this value, which does not expire.
    Put(Value),
    /// Delete the key.
    Delete,
    /// Write nothing. The answer depends on what was found all the same.
    Keep,
}

/// What a read may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadView {
    /// Only what is durable: the reply leaves at once.
    Durable,
    /// The session's own pending writes as well, and others its updates were built on: the reply waits.
    Own,
}

/// One operation of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetOp {
    /// Write one key.
    Write(KeyWrite),
    /// Write several different keys, all or nothing. The answer may be [`Answer::Saw`].
    Group(Vec<KeyWrite>),
    /// Read one key and change it, on top of the newest value there is, durable or pending, of any
    /// session. The answer is [`Answer::Found`]: what was there before.
    Update {
        /// The key.
        key: u64,
        /// What is written. A shape without [`Shape::decides`] is given [`Change::Put`] only.
        change: Change,
    },
    /// Read one key.
    Get {
        /// The key.
        key: u64,
        /// What may be seen.
        view: ReadView,
    },
    /// Delete every key, all or nothing. Durable when it returns, with all this session staged.
    FlushAll,
}

/// What an operation answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpAnswer {
    /// It is staged (or, for [`Op::FlushAll`], durable).
    Done,
    /// What a read or an update found.
    Found(Option<Value>),
    /// Whether the key of a [`Write::Delete`] was there. It is staged.
    Was(bool),
    /// What a group read of its own keys before it wrote them, in the order of its writes. It is staged.
    Saw(Vec<Option<Value>>),
    /// No room: nothing happened (T2).
    Refused,
}

/// Keys that the threads of a schedule share.
pub const SHARED_KEYS: u64 = 3;

/// What a target can do, and sizes that suit it.
#[derive(Clone, Debug)]
pub struct TargetShape {
    /// Bytes of a fresh pool.
    pub pool_bytes: u64,
    /// Keys in use: `1..=keys`.
    pub keys: u64,
    /// Shortest and longest value, in bytes. Equal: every value has that many.
    pub value_bytes: (u32, u32),
    /// Bytes of a part of a long value that the structure stores by itself: a value that is nearly a whole number of parts is
    /// drawn as exactly that. 0: none is.
    pub part_bytes: u32,
    /// Sessions, numbered from 0. At least 1.
    pub sessions: usize,
    /// Whether operations are staged until a commit, not durable when they return (T1).
    pub batches: bool,
    /// Whether it takes [`Write::Delete`].
    pub deletes: bool,
    /// Whether it takes [`Op::Group`].
    pub groups: bool,
    /// Whether it takes [`Op::Update`].
    pub updates: bool,
    /// Whether an update may delete what it found, or keep it.
    pub decides: bool,
    /// Whether values may expire.
    pub expiry: bool,
    /// Whether it takes [`Op::FlushAll`].
    pub flush_all: bool,
    /// Whether sessions may be dropped with something staged ([`Subject::abandon`]).
    pub abandons: bool,
    /// Whether [`Subject::clean`] does something.
    pub cleans: bool,
    /// Whether the memory of a pool was used for something else before, and is no zeros. What a structure does not
    /// clear or write is seen then.
    pub used_before: bool,
    /// Whether an open leaves something to whoever first comes to it, so that some runs have to go on without looking at
    /// what is there.
    pub mends_late: bool,
    /// Keys that the threads of a schedule share in every other seed; in the rest, [`SHARED_KEYS`].
    pub shared_keys: u64,
    /// Whether it is a cache: what it was told may be missing when it had to make room ([`Subject::made_room`]), or while
    /// it is written, but what is there is the newest.
    pub forgets: bool,
}

impl TargetShape {
    /// The memory of a pool before it is one, in the run of a seed.
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
            abandons: false,
            cleans: false,
            used_before: false,
            mends_late: false,
            shared_keys: SHARED_KEYS,
            forgets: false,
        }
    }
}

/// A structure that can be checked.
pub trait Target: Sync {
    /// Its name in reports: `kv`.
    fn name(&self) -> &str;

    /// Whether `farbank check crash --target NAME` knows it, so that a violation can name a command.
    fn has_command(&self) -> bool {
        false
    }

    /// Deviations it has by name: switched on to see that they are found out.
    fn faults(&self) -> &'static [NamedFault] {
        &[]
    }

    /// Situations that explorations must have met: [`mod@farbank_pm::situation`].
    fn situations(&self) -> Vec<Situation> {
        Vec::new()
    }

    /// Those that only threads can find: for [`crate::schedules`].
    fn faults_in_threads(&self) -> &'static [NamedFault] {
        &[]
    }

    /// The power cuts it is made for: those of any kind, or not those that take words one by one.
    fn modes(&self) -> &'static [Persistency] {
        &Persistency::ALL
    }

    /// What it can do.
    fn shape(&self) -> TargetShape {
        TargetShape::default()
    }

    /// What it can do in threads, and sizes that suit a schedule of a dozen operations.
    fn shape_in_threads(&self) -> TargetShape {
        self.shape()
    }

    /// The memory of a pool before it is one, in the run of a seed.
    fn before(&self, seed: u64) -> PoolImage {
        self.shape().image(seed)
    }

    /// Makes a new, empty structure of all of `sim`, which is zeros unless [`Shape::used_before`], durable when it
    /// returns (T5). As it is: zeros are an empty structure.
    fn create(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, String> {
        self.open(sim, now_ms)
    }

    /// Opens what a close, a kill or a power cut left in `sim`.
    fn open(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn TargetSubject>, String>;

    /// Opens what is in `sim` for several threads at once.
    fn share(&self, sim: Sim, now_ms: u64) -> Result<Box<dyn SharedTarget>, String> {
        let _ = (sim, now_ms);
        Err(format!("{} does not run in threads", self.name()))
    }
}

/// One open structure, used by several threads at once. An `Err` of any method is a violation.
pub trait SharedTarget: Send + Sync {
    /// A session of its own for one thread.
    fn client(&self) -> Box<dyn TargetClient>;

    /// Does one step of background work, if there is any to do. The calling thread's client has
    /// nothing staged.
    fn clean(&self) -> Result<(), String> {
        Ok(())
    }

    /// The structure for one caller, when every client has gone.
    fn alone(self: Box<Self>) -> Box<dyn TargetSubject>;
}

/// One session of a [`Shared`] structure; the methods are a [`Subject`]'s. It waits inside for other
/// sessions where it must.
pub trait TargetClient: Send {
    /// Runs `op`.
    fn apply(&mut self, op: &TargetOp) -> Result<OpAnswer, String>;

    /// Ends the batch: asks that all that was staged become durable.
    fn commit(&mut self) -> Result<Ticket, String>;

    /// Whether `ticket` is durable.
    fn durable(&mut self, ticket: Ticket) -> Result<bool, String>;
}

/// One open structure.
///
/// An `Err` of any method is a violation, except after the explorer made a drain fail.
pub trait TargetSubject {
    /// Runs `op` for `session`.
    fn apply(&mut self, session: usize, op: &TargetOp) -> Result<OpAnswer, String>;

    /// Ends the session's batch: asks that all it staged become durable. As it is: nothing is ever
    /// staged.
    fn commit(&mut self, session: usize) -> Result<Ticket, String> {
        let _ = session;
        Ok(Ticket::DURABLE)
    }

    /// Whether `ticket` of `session` is durable: what it covers may be acknowledged, and is visible
    /// to every session.
    fn durable(&mut self, session: usize, ticket: Ticket) -> Result<bool, String> {
        let _ = session;
        Ok(ticket == Ticket::DURABLE)
    }

    /// Drops the session with what it has staged, and begins another of that number. Returns whether nothing of it has
    /// happened for certain: a session may have committed early, to make room.
    fn abandon(&mut self, session: usize) -> Result<bool, String> {
        Err(format!("session {session} cannot be dropped"))
    }

    /// Everything stored now, expired values left out, in any order. Values are read back with
    /// [`Value::decode`].
    fn contents(&mut self) -> Result<Vec<(u64, Value)>, String>;

    /// Whether the structure is sound in itself: live + dead + free = pool, nothing leaked, no count
    /// off.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Does one step of background work, if there is any to do.
    fn clean(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it has given up, since it was made or opened, anything that it was told to keep.
    fn made_room(&self) -> bool {
        false
    }

    /// The time is `now_ms` from now on; it never goes backwards.
    fn set_time(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// Closes cleanly: everything committed is durable, and the next open may be quick.
    fn close(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}
