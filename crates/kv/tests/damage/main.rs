//! The engine on damaged pools and failing disks: a clear error or a quarantined record, never a panic,
//! a hang or a wrong value.
//!
//! * `world` writes pools and remembers what was written, and when.
//! * `flips` damages bytes of pools, `foreign` replaces whole parts of them.
//! * `disk` has the system calls of a file fail, `lost_pages` also the page cache show what the device
//!   does not have, `unreadable` pages that the device cannot read.

mod disk;
mod flips;
mod foreign;
mod lost_pages;
mod unreadable;
mod world;
