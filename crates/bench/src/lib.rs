//! Measurements of Farbank: workloads, drivers, experiments, and the figures that they report.

#![forbid(unsafe_code)]

pub mod cache;
pub mod chart;
pub mod counted;
mod error;
pub mod figure;
mod full;
pub mod index;
pub mod kv;
pub mod machine;
mod misses;
pub mod modelled;
pub mod registry;
mod reopen;
mod scale;
pub mod server;
mod stat;
pub mod temp;
pub mod tree;
