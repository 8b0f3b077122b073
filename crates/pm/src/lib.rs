//! Far memory: a pool of bytes addressed by offset that may outlive the process.
//!
//! ```text
//!            kv, index, ...                 written once, generic over the medium
//!                 │
//!        ┌────────▼────────┐
//!        │     Medium      │  load, store, cas, copy in and out, flush, drain → Ticket
//!        └─┬──────┬──────┬─┘
//!      Mapped   File    Sim      loads and stores; pwritev and one fdatasync; x86 persistency,
//!    (DAX, DRAM)                 crash images
//! ```
//!
//! * [`offset`]: positions in far memory, and the units of access.
//! * [`medium`]: the trait for access to far memory, and its types: tickets, capabilities, errors.
//! * [`persist_ctx`]: the persistence context of one thread, and its counters.
//! * [`media`]: the real media (mapping, file). [`sim`]: the simulated medium.
//! * [`Corruption`]: the report of damaged bytes.
//! * [`pool`]: the superblock, segments and growth of a pool.
//! * [`process_stamp`]: distinguishes the process that opened a pool from a forked child.
//! * [`model`]: a medium that counts accesses and estimates their time on persistent memory.
//! * [`mod@fault`]: deliberate bugs, switched on to test the checks.
//! * [`persistency`]: the rule for what a power cut can lose. [`source_action`]: source lines that act on far memory.
//! * [`situation`](mod@situation): marks in the code that the checks must reach.
//! * [`key_hash`]: the keyed hash of keys that clients choose.
//! * [`crc`]: the checksum of short records.
//! * [`epoch`]: epoch-based reclamation.
//! * [`grow_table`]: arrays in DRAM that grow without moving their elements.
//! * [`simd`]: comparisons of several bytes or words at once.
//! * [`rng`]: pseudo-random numbers from a seed.
//! * [`sync`]: the atomics, locks and threads that all crates use, so that a model checker can replace them.
//!
//! All unsafe code for far memory is in this crate, behind safe functions.

mod corruption;
pub mod crc;
pub mod epoch;
pub mod fault;
pub mod grow_table;
pub mod key_hash;
pub mod media;
pub mod medium;
pub mod model;
pub mod offset;
pub mod persist_ctx;
pub mod persistency;
pub mod pool;
pub mod process_stamp;
pub mod rng;
pub mod sim;
pub mod simd;
pub mod situation;
pub mod source_action;
pub mod sync;

pub use corruption::Corruption;
pub use medium::{Caps, Drain, FileId, FileTrouble, Kind, Medium, Poisoned, Ticket};
pub use offset::{LINE, Off, WORD};
pub use persist_ctx::{PersistCounters, PersistCtx};
