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
pub mod kill;
pub mod kv;
pub mod machine;
mod misses;
pub mod modelled;
pub mod power;
mod reopen;
mod scale;
pub mod server;
mod stat;
pub mod temp;
pub mod tree;
