//! The real media: [`Mapped`] (DAX and DRAM) and [`File`], and the choice between them for a path.
//!
//! ```text
//!   open_path, create_path ── which medium? ──┐
//!                                             ▼
//!                        Mapped                            File
//!               stores, clwb, sfence              pwritev, one fdatasync for all
//!                  │          │                      │            │
//!                 cpu       window ◀── reader ───────┘          space
//!           instructions    one mapped range that grows         the locked file:
//!                           and never moves                     allocated, written, never sparse
//! ```
//!
//! * `open` chooses the medium for a path, and opens or creates it, with `open_options`. `open_error` is its error.
//! * `mapped` and `file` are the two media.
//! * `cpu` holds the write-back, non-temporal store and fence instructions.
//! * `window` is a mapped address range that grows at its end and never moves.
//! * `reader` reads a file through a window, by `pread`, or by `pread` with `O_DIRECT`.
//! * `space` is the locked pool file: allocation, writes, `fdatasync`, growth.
//! * `file_lock` locks the file of a pool.
//! * `pool_path` gives a new file its name only when it holds a complete pool.
//! * `page_cache` discards cached pages of an existing file that may differ from the device.
//! * `filesystem` classifies the file system of a pool and tests that mappings show written bytes.
//! * `extents` lists a file's blocks on its device. `shared_blocks` replaces those shared with a reflink copy.
//! * `lease` lets a second host detect that a pool is open; `watch` detects a removed, moved or truncated file.
//! * `sigbus` replaces mapped pages that cannot be read by zeros, so that the process survives.
//! * `bad_blocks` reads the kernel's lists of bad sectors.
//! * `explained` adds the failed operation to an I/O error.
//! * `sysfs` reads properties of the devices under a pool.
//! * `signature` recognises data that is already on a device.

mod bad_blocks;
pub(crate) mod cpu;
mod explained;
mod extents;
pub mod file;
mod file_lock;
mod filesystem;
mod lease;
pub mod mapped;
pub mod open;
mod open_error;
mod open_options;
mod page_cache;
mod pool_path;
mod reader;
mod shared_blocks;
mod sigbus;
mod signature;
mod space;
mod sysfs;
mod watch;
mod window;

pub use cpu::WriteBack;
pub use file::File;
pub use mapped::Mapped;
pub use open::{AnyMedium, create_path, device_bytes, open_path, prepare_path, share_path};
pub use open_error::OpenError;
pub use open_options::{OpenOptions, SyncPolicy, WaitNotice};
pub use pool_path::{PendingPath, sync_folder};
pub use reader::ReadMode;
pub use space::{FileIo, KernelIo, Progress, file_id};

#[cfg(not(all(target_arch = "x86_64", target_endian = "little", target_os = "linux")))]
compile_error!(
    "Farbank supports only x86-64 Linux: its crash arguments assume the x86-64 ordering of stores \
     and flushes"
);
