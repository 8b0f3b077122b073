//! Correctness checking for structures in far memory: histories, oracles and crash exploration.
//!
//! ```text
//!   workload ──▶ subject on a Sim ──▶ crash states ──▶ images ──▶ open, contents, check
//!       │                                                             │
//!       └──────────▶ History: invoked, acknowledged ──▶ oracle ◀──────┘
//! ```
//!
//! * [`target`] has the traits that a structure implements to be checked.
//! * [`workload`] draws the operations of a run from a seed.
//! * [`history`] records the operations of one driver, and so the states that a crash may leave.
//! * [`oracle`] checks the contents found after a crash against the history.
//! * [`mod@explore`] crashes a structure at every crash point, including those of recovery.
//! * [`record`] records the calls of concurrent threads and checks them with a general search.
//! * [`schedules`] runs threads under many schedules, with crashes in between.
//! * [`faults`] checks that the explorer detects deliberately introduced bugs.
//! * [`marks`] checks that lists of faults and situations are complete.
//! * [`report`] describes violations and how to reproduce them.
//!
//! The feature `harness` adds checks of a real server and of a real medium. None of them knows an engine: they drive a
//! child process, or an engine behind a trait.
//!
//! * `child` starts `farbank serve` as a process, and has clients for its protocols.
//! * `kill` kills the server under load and checks every key after each restart.
//! * `histories` kills the server and checks that the calls of its clients are linearizable.
//! * `cluster` kills, pauses and cuts off the processes of a tree on memory servers.
//! * `network` runs processes on hosts of their own, which are network namespaces.
//! * `power` writes until the power is cut and checks the data after the next boot.

#![forbid(unsafe_code)]

#[cfg(feature = "harness")]
pub mod child;
#[cfg(feature = "harness")]
pub mod cluster;
mod digest;
pub mod explore;
pub mod faults;
mod guard;
#[cfg(feature = "harness")]
pub mod histories;
pub mod history;
#[cfg(feature = "harness")]
pub mod kill;
pub mod marks;
#[cfg(feature = "harness")]
pub mod network;
pub mod oracle;
#[cfg(feature = "harness")]
pub mod power;
pub mod record;
pub mod report;
pub mod schedules;
pub mod target;
mod violation;
pub mod workload;

pub use explore::{ExploreConfig, explore, explore_seed};
pub use guard::guarded;
pub use history::AckRule;
pub use report::{CrashCounts, CrashReport, CrashViolation, ImageChoice};
pub use target::{
    Change, KeyWrite, OpAnswer, ReadView, Target, TargetOp, TargetShape, TargetSubject, Value,
};
pub use violation::Violation;

/// Makes `cargo test` compile and run the code in the pages of docs/testing.
#[cfg(doctest)]
mod testing_pages {
    #[doc = include_str!("../../../docs/testing/README.md")]
    struct Guide;
    #[doc = include_str!("../../../docs/testing/explorer.md")]
    struct Explorer;
    #[doc = include_str!("../../../docs/testing/faults.md")]
    struct Faults;
    #[doc = include_str!("../../../docs/testing/power.md")]
    struct Power;
    #[doc = include_str!("../../../docs/testing/sanitizers.md")]
    struct Sanitizers;
    #[doc = include_str!("../../../docs/testing/schedules.md")]
    struct Schedules;
}
