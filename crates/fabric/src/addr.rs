//! [`GAddr`], the address of a byte in far memory.

use std::fmt;

/// The address of a byte in a memory server's memory. Far memory stores addresses in this format.
///
/// ```text
///   bit 63      62 ... 16     15 ... 0
///   lock memory  offset        server        0 is null: offset 0 of server 0's host memory is never used
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GAddr(pub u64);

const LOCK: u64 = 1 << 63;
const SERVER_BITS: u32 = 16;

impl GAddr {
    /// The null address.
    pub const NULL: GAddr = GAddr(0);

    /// Returns the address of byte `at` of `server`'s host memory.
    #[must_use]
    pub const fn host(server: u16, at: u64) -> GAddr {
        GAddr(at << SERVER_BITS | server as u64)
    }

    /// Returns the address of byte `at` of `server`'s lock memory: a few hundred KiB on its NIC.
    #[must_use]
    pub const fn lock(server: u16, at: u64) -> GAddr {
        GAddr(LOCK | at << SERVER_BITS | server as u64)
    }

    /// Returns the memory server.
    #[must_use]
    pub const fn server(self) -> u16 {
        self.0 as u16
    }

    /// Returns the offset from the start of the server's host or lock memory, in bytes.
    #[must_use]
    pub const fn at(self) -> u64 {
        (self.0 & !LOCK) >> SERVER_BITS
    }

    /// Returns whether the address is in lock memory.
    #[must_use]
    pub const fn is_lock(self) -> bool {
        self.0 & LOCK != 0
    }

    /// Returns whether this is the null address.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the address `bytes` after this one.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> GAddr {
        GAddr(self.0 + (bytes << SERVER_BITS))
    }
}

impl fmt::Debug for GAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.is_lock() { " lock" } else { "" };
        write!(f, "{}{space}@{:#x}", self.server(), self.at())
    }
}
