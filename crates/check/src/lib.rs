//! How we know it is right: histories, oracles and crash exploration for structures in far memory.
//!
//! ```text
//!   workload ──▶ Subject on a Sim ──▶ crash states ──▶ images ──▶ open, contents, check
//!       │                                                             │
//!       └──────────▶ History: invoked, acknowledged ──▶ judge ◀───────┘
//! ```
//!
//! * [`target`] is what a structure must implement to be checked.
//! * [`workload`] draws what it is asked to do.
//! * [`history`] keeps what it was asked, and so what a crash may leave.
//! * [`oracle`] judges what was found.
//! * [`mod@explore`] crashes it everywhere, in recovery too.
//! * [`record`] is the same for threads: what they asked at once, judged by a general search.
//! * [`schedules`] runs threads under many schedules, crashed in between.
//! * [`faults`] sees that all this objects when it should.
//! * [`marks`] sees that lists of faults and situations are complete.
//! * [`report`] says what was found and how to see it again.

#![forbid(unsafe_code)]

pub mod explore;
pub mod faults;
mod guard;
pub mod history;
pub mod marks;
pub mod oracle;
pub mod record;
pub mod report;
pub mod schedules;
pub mod target;
pub mod workload;

pub use explore::{ExploreConfig, explore, explore_seed};
pub use guard::guarded;
pub use history::AckRule;
pub use report::{CrashCounts, CrashReport, CrashViolation, ImageChoice};
pub use target::{
    Change, KeyWrite, OpAnswer, ReadView, Target, TargetOp, TargetShape, TargetSubject, Value,
};

/// Has `cargo test` compile and run the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct GuideExample;
