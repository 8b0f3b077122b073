//! A cost model of persistent memory that needs no hardware: exact access counts, and virtual time.
//!
//! ```text
//!   structure ─▶ Modelled<M> ─▶ M: executes at once       workers:  ●      ●      ●   least clock next
//!                    │ steps, one per line                          │      │      │
//!                    ▼                                              ▼      ▼      ▼
//!                  Trace ─────────────────────▶ Machine:  cache ─▶ link ─▶ 6 x ( queue ─▶ XPBuffer ─▶ media )
//!                                                  │
//!                                                  ▼ Outcome: counts, DIMMs, wear, hotspots, latencies
//! ```
//!
//! A [`Modelled`] medium wraps another one and records the [`Step`]s of each access. A [`Machine`] runs
//! virtual workers. The worker with the least clock executes its next operation, whole and at once. Then
//! its steps are interleaved with those of the other workers, one event per step. So the *effect* of an
//! operation is that of the real code, and the *time* and order in which its lines reach the DIMMs are
//! modelled.
//!
//! # Invariants
//! PM-MODEL-1  Counts of requested accesses are exact: they depend only on the operations, not on clocks or the
//!     number of workers.
//! PM-MODEL-2  Everything is a function of the operations, the [`MachineConfig`] and its seed. It does not depend
//!     on the real time, on addresses in this process or on hash order.
//! PM-MODEL-3  Steps of one worker keep their order. Lines of several workers at one DIMM keep their order while
//!     they fit into its queues. Lines beyond that are admitted in random order, which ruins write combining.
//! PM-MODEL-4  A line counts as written when it arrives at the memory controller, an XPLine when the media
//!     writes it. The XPLines that the XPBuffers hold at the end are written then.
//!
//! All constants are in [`constants`], and the measurements that they are compared with in [`published`].
//! `docs/model.md` has the equations and the accuracy.
//!
//! ```
//! use farbank_pm::media::Mapped;
//! use farbank_pm::model::{Category, MachineConfig, Machine, Modelled};
//! use farbank_pm::{PersistCtx, Medium, Off};
//!
//! // Any structure, here a table of slots whose every insert takes one lock.
//! let medium = Modelled::new(Mapped::anonymous(1 << 20).unwrap());
//! let trace = medium.trace();
//! let mut machine = Machine::new(MachineConfig::study(6));
//! let mut contexts = [PersistCtx::new(0), PersistCtx::new(1)];
//! let mut left = 100;
//! machine.run(contexts.len(), |worker, steps| {
//!     if left == 0 {
//!         return false; // this worker has nothing left to do
//!     }
//!     left -= 1;
//!     let _scope = Category::KeyValue.scope();
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
