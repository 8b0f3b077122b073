//! Workloads, benchmark drivers and crash tests for Farbank.

#![forbid(unsafe_code)]

pub mod cache;
pub mod chart;
pub mod child;
pub mod counted;
pub mod figure;
mod full;
pub mod histories;
pub mod index;
pub mod judge;
pub mod kill;
pub mod kv;
pub mod machine;
mod misses;
pub mod modelled;
pub mod power;
pub mod registry;
mod reopen;
mod scale;
pub mod server;
mod stat;
mod temp;
pub mod tree;
