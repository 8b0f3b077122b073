//! Workloads, drivers and the measurements Farbank states.

#![forbid(unsafe_code)]

pub mod kill;
