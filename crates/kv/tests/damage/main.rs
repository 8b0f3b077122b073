//! Tests of the engine on damaged pools and failing disks: the result is a clear error or a quarantined segment, never
//! a panic, a hang or a wrong value.
//!
//! * `world` writes pools, and records the history of all values.
//! * `flips` flips bytes of pools, `foreign` replaces whole parts of them.
//! * `disk` injects failures of system calls. `lost_pages` tests a page cache that differs from the device after a
//!   failed sync. `unreadable` tests pages that the device cannot read.

mod disk;
mod flips;
mod foreign;
mod lost_pages;
mod unreadable;
mod world;
