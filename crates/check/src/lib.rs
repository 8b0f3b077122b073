//! How we know it is right: histories, oracles and crash exploration for structures in far memory.
//!
//! ```text
//!   workload ──▶ Subject on a Sim ──▶ crash states ──▶ images ──▶ open, contents, check
//!       │                                                             │
//!       └──────────▶ History: invoked, acknowledged ──▶ oracle ◀──────┘
//! ```
//!
//! * [`target`] is what a structure must implement to be checked.

#![forbid(unsafe_code)]

pub mod target;

pub use target::{Answer, Op, Shape, Subject, Target, Value, View, Write};
