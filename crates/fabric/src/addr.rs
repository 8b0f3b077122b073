//! Names of far memory.

use std::fmt;

/// A place in a memory server's memory, as it is stored in far memory itself.
///
/// ```text
///   bit 63      62 ... 16     15 ... 0
///   lock memory  offset        server        0 is null: place 0 of server 0's host memory is never used
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GAddr(pub u64);

const LOCK: u64 = 1 << 63;
const SERVER_BITS: u32 = 16;

impl GAddr {
    /// Nowhere.
    pub const NULL: GAddr = GAddr(0);

    /// Byte `at` of `server`'s host memory.
    #[must_use]
    pub const fn host(server: u16, at: u64) -> GAddr {
        GAddr(at << SERVER_BITS | server as u64)
    }

    /// Byte `at` of `server`'s lock memory: a few hundred KiB on its network card.
    #[must_use]
    pub const fn lock(server: u16, at: u64) -> GAddr {
        GAddr(LOCK | at << SERVER_BITS | server as u64)
    }

    /// Whose memory it is.
    #[must_use]
    pub const fn server(self) -> u16 {
        self.0 as u16
    }

    /// Bytes from the start of that memory.
    #[must_use]
    pub const fn at(self) -> u64 {
        (self.0 & !LOCK) >> SERVER_BITS
    }

    /// Whether it is in lock memory.
    #[must_use]
    pub const fn is_lock(self) -> bool {
        self.0 & LOCK != 0
    }

    /// Whether it is nowhere.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The place `bytes` further on.
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
