//! The real media: [`Mapped`] (DAX and DRAM) and [`File`], and which of them a path becomes.
//!
//! ```text
//!   open_path, create_path ── which medium? ──┐
//!                                             ▼
//!                        Mapped                            File
//!               stores, clwb, sfence              pwritev, one fdatasync for all
//!                  │          │                      │            │
//!                 cpu       window ◀── reads ────────┘          space
//!           instructions    one mapped range that grows         the locked file:
//!                           and never moves                     allocated, written, never sparse
//! ```
//!
//! * `filesystem` judges the file system under a pool and tests that its mappings show what is written.
//! * `extents` gives a file blocks of its own where it shares them with a copy.
//! * `lease` tells a second host that a pool is open; `reader` is how a file is read.
//! * `sigbus` has the process outlive pages that cannot be read; `bad_blocks` are those the kernel knows of.
//! * `sysfs` reads what the kernel says of the devices under it; `signature` knows what is on one already.

mod bad_blocks;
pub(crate) mod cpu;
mod extents;
pub mod file;
mod filesystem;
mod lease;
pub mod mapped;
pub mod open;
mod page_cache;
mod pool_path;
mod reader;
mod sigbus;
mod signature;
mod space;
mod sysfs;
mod watch;
mod window;

pub use cpu::WriteBack;
pub use file::{File, SyncPolicy};
pub use lease::WaitNotice;
pub use mapped::Mapped;
pub use open::{
    AnyMedium, OpenError, OpenOptions, create_path, device_bytes, open_path, prepare_path,
};
pub use pool_path::PendingPath;
pub use reader::ReadMode;
pub use space::{FileIo, KernelIo, Progress, file_id};

#[cfg(not(all(target_arch = "x86_64", target_endian = "little", target_os = "linux")))]
compile_error!(
    "Farbank's media are written for x86-64 Linux: no other processor's order of stores and \
     flushes has been thought through"
);
