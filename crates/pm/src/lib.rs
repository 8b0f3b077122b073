//! Far memory: a pool of bytes addressed by offset that may outlive the process.
//!
//! ```text
//!            kv, index, ...                 written once, generic over the door
//!                 │
//!        ┌────────▼────────┐
//!        │     Medium      │  load, store, cas, copy in and out, flush, drain → Ticket
//!        └─┬──────┬──────┬─┘
//!      Mapped   File    Sim      loads and stores; pwritev and one fdatasync; x86 persistency,
//!    (DAX, DRAM)                 crash images
//! ```
//!
//! * [`medium`] is the door itself, with the words every structure is written in.
//! * [`ctx`] is one worker's identity at that door and what it has spent there.
//! * [`media`] are the real doors, [`sim`] is their simulated twin.
//! * [`pool`] makes a medium a pool: superblock, segments, growth.
//! * [`process`] tells the process that opened a pool from a forked child.
//! * [`model`] counts what it costs, and how long it would take on persistent memory.
//! * [`mod@fault`] switches deviations on, to see that the checks object.
//! * [`key_hash`] is the keyed hash of keys that clients choose.
//! * [`crc`] is the checksum of short records.
//! * [`epoch`] tells when nobody reads an offset any more.
//! * [`table`] is the DRAM beside the pool: arrays that grow without moving.
//! * [`simd`] asks many bytes at once.
//! * [`sync`] is where atomics, locks and threads come from, so that a model checker can swap them.
//!
//! All of this project's unsafe code for far memory is in this crate, behind safe functions.

pub mod crc;
pub mod epoch;
pub mod fault;
pub mod grow_table;
pub mod key_hash;
pub mod media;
pub mod medium;
pub mod model;
pub mod persist_ctx;
pub mod pool;
pub mod process_stamp;
pub mod sim;
pub mod simd;
pub mod situation;
pub mod sync;

pub use medium::{
    Caps, Drain, FileId, FileTrouble, Kind, LINE, Medium, Off, Poisoned, Ticket, WORD,
};
pub use persist_ctx::{PersistCounters, PersistCtx};
