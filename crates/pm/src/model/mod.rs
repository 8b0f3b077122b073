//! What far memory costs, without the hardware: exact counts, and a clock of its own.
//!
//! ```text
//!   structure ─▶ Modelled<M> ─▶ M: does it at once        workers:  ●      ●      ●   least clock next
//!                    │ steps, a line each                           │      │      │
//!                    ▼                                              ▼      ▼      ▼
//!                  Trace ─────────────────────▶ Machine:  cache ─▶ link ─▶ 6 x ( queue ─▶ XPBuffer ─▶ media )
//!                                                  │
//!                                                  ▼ Outcome: counts, DIMMs, wear, hotspots, latencies
//! ```
//!
//! A [`Modelled`] medium wraps another one and remembers the [`Step`]s of each access. A [`Machine`] runs
//! virtual workers: the one whose clock is least executes its next operation, whole and at once, and its
//! steps are then played out among everyone else's, one event a step. So what an operation *does* is
//! what the code does, and *when* its lines reach the DIMMs, in which order and how late, is modelled.
//!
//! # Invariants
//! V1  Counts of what was asked for are exact: they depend on the operations alone, not on clocks or on
//!     how many workers there are.
//! V2  Everything is a function of the operations, the [`Config`] and its seed. No clock, no address of
//!     this process and no hash order is looked at.
//! V3  Steps of one worker keep their order. Lines of many at one DIMM keep it for as long as they fit
//!     into its queues; those beyond are admitted in no order, which is what ruins write combining.
//! V4  A line counts as written when it arrives at the memory controller, an XPLine when the media
//!     writes it. What the XPBuffers hold at the end is written then.
//!
//! Every number is in [`constants`], every measurement it is compared with in [`published`]; the
//! equations, and what to trust, are in `docs/model.md`.
//!
//! ```
//! use farbank_pm::media::Mapped;
//! use farbank_pm::model::{Category, Config, Machine, Modelled};
//! use farbank_pm::{Lane, Medium, Off};
//!
//! // Any structure, here a table of slots whose every insert takes one lock.
//! let medium = Modelled::new(Mapped::anonymous(1 << 20).unwrap());
//! let trace = medium.trace();
//! let mut machine = Machine::new(Config::study(6));
//! let mut contexts = [Lane::new(0), Lane::new(1)];
//! let mut left = 100;
//! machine.run(contexts.len(), |worker, steps| {
//!     if left == 0 {
//!         return false; // this worker has nothing left to do
//!     }
//!     left -= 1;
//!     let _spending = Category::KeyValue.spend();
//!     let slot = Off(4096 + left * 256);
//!     trace.compute(100); // what it takes besides memory
//!     trace.lock_taken(0);
//!     medium.store(&mut contexts[worker], slot, left);
//!     medium.flush(&mut contexts[worker], slot, 8);
//!     medium.drain(&mut contexts[worker]);
//!     trace.lock_dropped(0);
//!     trace.take(steps);
//!     true
//! });
//! let outcome = machine.outcome();
//! assert_eq!(outcome.operations, 100);
//! assert_eq!(outcome.counts[Category::KeyValue].media_writes, 100);
//! println!("{:.0} inserts a second, {}", outcome.throughput(), machine.config().label());
//! ```

mod buffer;
mod cache;
pub mod check;
pub mod constants;
mod count;
mod dimm;
mod machine;
mod medium;
mod memory;
pub mod micro;
pub mod published;
mod step;
#[cfg(test)]
mod tests;

pub use count::{AccessCounts, CountsByCategory, DimmCounts, Hotspot, WearFigures};
pub use machine::{Machine, MachineOutcome};
pub use medium::{Modelled, Trace};
pub use memory::MachineConfig;
pub use step::{Category, CategoryScope, Step, StepKind};
